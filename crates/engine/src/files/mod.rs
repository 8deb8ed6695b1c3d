//! Files and folders as tables.

mod arrow;
mod by_name;
mod columns;
mod csv;
mod fingerprint;
mod json;
mod memory;
mod parquet;
mod parquet_format;
mod shared_reads;
#[cfg(test)]
mod tests;
mod text;
mod wide_keys;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use lightship_sources::writers::Format;
use url::Url;

use self::by_name::FormatAdapter;
pub(crate) use self::fingerprint::{fingerprint, hash};
pub(crate) use self::memory::load;
pub(crate) use self::parquet_format::PruneWithoutFloats;
pub(crate) use self::shared_reads::SharedReads;
use crate::error::{EngineError, Result};

/// Maximum depth of folders that are searched for files.
const DEPTH_MAX: usize = 16;

/// A kind of file, recognised by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FileKind {
    Parquet,
    Csv,
    Json,
    Arrow,
}

impl FileKind {
    fn of(path: &Path) -> Option<(Self, String)> {
        let kind = match Format::from_path(path)? {
            Format::Parquet => Self::Parquet,
            Format::Csv => Self::Csv,
            Format::Json => Self::Json,
            Format::ArrowFile | Format::ArrowStream => Self::Arrow,
            Format::Table => return None,
        };
        Some((kind, path.extension()?.to_str()?.to_owned()))
    }

    fn format(self) -> Arc<dyn FileFormat> {
        match self {
            Self::Parquet => Arc::new(parquet_format::Parquet::default()),
            Self::Csv => Arc::new(FormatAdapter::new(csv::Csv::default())),
            Self::Json => Arc::new(FormatAdapter::new(json::Json)),
            Self::Arrow => Arc::new(FormatAdapter::new(arrow::Ipc)),
        }
    }
}

/// A table over a file, or over the files of a folder and of its `COLUMN=VALUE` subfolders.
pub(crate) async fn open(context: &SessionContext, path: &Path) -> Result<Arc<dyn TableProvider>> {
    let fail = |reason: String| EngineError::File(format!("{}: {reason}", path.display()));
    let path = path.canonicalize().map_err(|e| fail(e.to_string()))?;
    let (kind, extension) = if path.is_dir() {
        let (mut found, mut unread) = (BTreeSet::new(), None);
        let mut give = |file: PathBuf| {
            let Some(kind) = FileKind::of(&file) else { return };
            if !is_read(&path, &file) {
                unread.get_or_insert(file);
            }
            found.insert(kind);
        };
        look(&path, DEPTH_MAX, &mut give).map_err(|e| fail(e.to_string()))?;
        if let Some(file) = hidden_file(&path).map_err(|e| fail(e.to_string()))? {
            return Err(fail(format!(
                "{}: hidden file in the folder of a table; move it elsewhere",
                file.display()
            )));
        }
        if let Some(file) = unread {
            return Err(fail(format!(
                "{}: files in subfolders are read only if the folders are named COLUMN=VALUE; read each \
                 subfolder as a table, or move its files",
                file.display()
            )));
        }
        let mut found = found.into_iter();
        match (found.next(), found.next()) {
            (Some(one), None) => one,
            (None, _) => return Err(fail("the folder has no Parquet, CSV, JSON or Arrow files".into())),
            (Some((_, one)), Some((_, other))) => {
                return Err(fail(format!("the folder has files of several kinds (.{one}, .{other})")));
            }
        }
    } else {
        FileKind::of(&path).ok_or_else(|| {
            fail("unknown kind of file; expected .parquet, .csv, .json, .jsonl, .arrow or .arrows".into())
        })?
    };
    if kind == FileKind::Parquet {
        let path = path.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let mut files = Vec::new();
            look(&path, DEPTH_MAX, &mut |path| files.push(path))
                .map_err(|e| EngineError::File(format!("{}: {e}", path.display())))?;
            files.iter().filter(|path| FileKind::of(path).is_some()).try_for_each(|path| parquet::check(path))
        });
        checked.await.map_err(|e| EngineError::Internal(e.to_string()))??;
    }
    // As a URL: in a plain path, `*`, `?` and `[` would be wildcards.
    let url = if path.is_dir() { Url::from_directory_path(&path) } else { Url::from_file_path(&path) };
    let url = url.map_err(|()| fail("not an absolute path".into()))?;
    let options = ListingOptions::new(kind.format()).with_file_extension(format!(".{extension}"));
    let config = ListingTableConfig::new(ListingTableUrl::try_new(url, None)?)
        .with_listing_options(options)
        .with_expr_adapter_factory(Arc::new(parquet::UniqueNames))
        .infer_partitions_from_path(&context.state())
        .await?
        .infer_schema(&context.state())
        .await
        .map_err(|e| {
            // Our own errors already name the file.
            let is_named = matches!(&e, DataFusionError::External(inner) if inner.is::<EngineError>());
            match EngineError::from(e) {
                EngineError::File(reason)
                | EngineError::Data(reason)
                | EngineError::Value { message: reason, .. }
                    if !is_named =>
                {
                    fail(reason)
                }
                other => other,
            }
        })?;
    let config = match &config.file_schema {
        Some(schema) if kind == FileKind::Parquet => {
            let schema = Arc::new(wide_keys::with_wide_keys_of_columns(schema));
            config.with_schema(schema)
        }
        _ => config,
    };
    Ok(Arc::new(ListingTable::try_new(config)?))
}

/// Whether a scan of a folder reads a file below it. It skips files in subfolders that are not partitions.
fn is_read(folder: &Path, file: &Path) -> bool {
    let inner = file.strip_prefix(folder).ok().and_then(Path::parent);
    inner.is_none_or(|folders| folders.iter().all(|one| one.as_encoded_bytes().contains(&b'=')))
}

/// Finds a hidden file of a known kind. A scan would read it as part of the table, but it is usually a copy.
fn hidden_file(folder: &Path) -> std::io::Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if is_hidden && entry.file_type()?.is_file() && FileKind::of(&entry.path()).is_some() {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

/// Passes all files below a folder to `give`, or the file itself. Skips hidden files and folders.
fn look(path: &Path, depth: usize, give: &mut dyn FnMut(PathBuf)) -> std::io::Result<()> {
    if !path.is_dir() {
        give(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && depth > 0 {
            look(&entry.path(), depth - 1, give)?;
        }
    }
    Ok(())
}
