//! Files and folders as tables.

mod arrow;
mod arrow_messages;
mod avro;
mod binary;
mod by_name;
mod bytes;
mod columns;
mod csv;
pub(crate) mod damage;
mod excel;
mod fingerprint;
mod input;
mod json;
mod kind;
mod memory;
mod numbers;
mod objects;
mod parquet;
mod parquet_format;
mod pattern;
mod read_ahead;
mod shared_reads;
pub(crate) mod stdin;
mod temporary;
#[cfg(test)]
mod tests;
mod text;
mod values;
mod wide_keys;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt as _;
use lightship_sources::file_options::{FileFormat, FileOptions};
use lightship_sources::objects::ObjectLocation;
use tempfile::TempPath;
use url::Url;

use self::fingerprint::fingerprint;
pub(crate) use self::fingerprint::hash;
use self::input::FilePath;
use self::kind::FileKind;
pub(crate) use self::memory::load;
pub(crate) use self::parquet_format::PruneWithoutFloats;
use self::pattern::Pattern;
pub(crate) use self::shared_reads::SharedReads;
use crate::error::{EngineError, Result};

/// Maximum depth of folders that are searched for files.
const DEPTH_MAX: usize = 16;

/// Where the files of a table are.
#[derive(Debug, Clone)]
pub enum FileLocation {
    /// A file or folder of this host, or a pattern of files; perhaps with [`FileOptions`].
    Path(PathBuf),
    /// Objects of an object store.
    Objects(ObjectLocation),
}

impl From<&Path> for FileLocation {
    fn from(path: &Path) -> Self {
        Self::Path(path.into())
    }
}

impl FileLocation {
    /// A table over a file, over the files that a pattern matches, or over the files of a folder and of its
    /// `COLUMN=VALUE` subfolders.
    pub(crate) async fn open(&self, context: &SessionContext) -> Result<Arc<dyn TableProvider>> {
        match self {
            Self::Path(path) => open(context, path).await,
            Self::Objects(location) => objects::open(context, location).await,
        }
    }

    /// Tells versions of the files apart. Never 0.
    pub(crate) async fn fingerprint(&self) -> Result<u64> {
        match self {
            Self::Path(path) => fingerprint(path),
            Self::Objects(location) => objects::fingerprint(location).await,
        }
    }
}

async fn open(context: &SessionContext, location: &Path) -> Result<Arc<dyn TableProvider>> {
    let (path, options) = FileOptions::split(location)?;
    let fail = |reason: String| EngineError::File(format!("{}: {reason}", path.display()));
    if path == Path::new(STDIN) {
        return Err(EngineError::Config("standard input is a table only of fetch and copy".into()));
    }
    let found = match Pattern::of(&path) {
        Some(pattern) => by_pattern(context, &pattern, &options).await?,
        None => by_path(&path.canonicalize().map_err(|e| fail(e.to_string()))?, &options)?,
    };
    table(context, &path, found, &options).await
}

/// Whether the name of a file stands for a format that can be read.
pub fn is_known_file(path: &Path) -> bool {
    FileKind::by_name(path).is_some()
}

/// The location of standard input.
pub const STDIN: &str = "-";

/// A table over a temporary file, which exists until the table is dropped.
async fn open_temporary(
    context: &SessionContext,
    file: TempPath,
    options: &FileOptions,
) -> Result<Arc<dyn TableProvider>> {
    let found = by_path(&file, options)?;
    let inner = table(context, Path::new("standard input"), found, options).await?;
    Ok(Arc::new(temporary::Temporary { inner, _file: file }))
}

/// Files of one kind.
struct Found {
    kind: FileKind,
    /// The end of the names of the files that are read, of those in a folder.
    suffix: String,
    urls: Vec<ListingTableUrl>,
    /// Where to look for the files, if they are on this host.
    paths: Vec<PathBuf>,
    /// The files, if they are objects.
    objects: Vec<FilePath>,
    /// The URI of the store that has them; `None` for files of this host.
    root: Option<String>,
}

const HIDDEN_HINT: &str = "hidden file in the folder of a table; move it elsewhere";
const UNREAD_HINT: &str = "files in subfolders are read only if the folders are named COLUMN=VALUE; read each subfolder as \
                           a table, or move its files";

/// The only kind of a folder's files, and the end of their names.
fn one_kind(found: BTreeSet<(FileKind, String)>) -> std::result::Result<(FileKind, String), String> {
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err("the folder has no files of Parquet, CSV, JSON, Arrow, Avro or Excel".into()),
        (Some((_, one)), Some((_, other))) => {
            Err(format!("the folder has files of several kinds (.{one}, .{other})"))
        }
    }
}

/// The end of the names of the files of a table, as a filter.
fn filter(suffix: &str) -> String {
    if suffix.is_empty() { String::new() } else { format!(".{suffix}") }
}

/// As a URL: in a plain path, `*`, `?` and `[` would be wildcards.
fn url_of(path: &Path, pattern: Option<glob::Pattern>) -> Result<ListingTableUrl> {
    let url = if path.is_dir() { Url::from_directory_path(path) } else { Url::from_file_path(path) };
    let url = url.map_err(|()| EngineError::File(format!("{}: not an absolute path", path.display())))?;
    Ok(ListingTableUrl::try_new(url, pattern)?)
}

/// A file, or the files of a folder.
fn by_path(path: &Path, options: &FileOptions) -> Result<Found> {
    let fail = |reason: String| EngineError::File(format!("{}: {reason}", path.display()));
    let (kind, suffix) = if path.is_dir() {
        let (mut found, mut unread) = (BTreeSet::new(), None);
        let mut give = |file: PathBuf| {
            let Some(kind) = kind_in_folder(&file, options) else { return };
            if !is_read(path, &file) {
                unread.get_or_insert(file);
            }
            found.insert(kind);
        };
        look(path, DEPTH_MAX, &mut give).map_err(|e| fail(e.to_string()))?;
        if let Some(file) = hidden_file(path, options).map_err(|e| fail(e.to_string()))? {
            return Err(fail(format!("{}: {HIDDEN_HINT}", file.display())));
        }
        if let Some(file) = unread {
            return Err(fail(format!("{}: {UNREAD_HINT}", file.display())));
        }
        one_kind(found).map_err(fail)?
    } else {
        (FileKind::of_file(&path.to_owned().into(), options)?, String::new())
    };
    let (urls, paths) = (vec![url_of(path, None)?], vec![path.to_owned()]);
    Ok(Found { kind, suffix: filter(&suffix), urls, paths, objects: Vec::new(), root: None })
}

/// The kind of a file in a folder, and the end of its name that stands for it; `None` if it does not belong to a table.
fn kind_in_folder(file: &Path, options: &FileOptions) -> Option<(FileKind, String)> {
    let named = FileKind::by_name(file);
    match FileKind::given(options, None) {
        // All files are of the kind that is asked for.
        Some(kind) => Some((kind, String::new())),
        None => named,
    }
}

/// The files that a pattern matches.
async fn by_pattern(context: &SessionContext, pattern: &Pattern, options: &FileOptions) -> Result<Found> {
    let paths = pattern.files()?;
    let mut kinds = BTreeSet::new();
    for path in &paths {
        kinds.insert(FileKind::of_file(&path.clone().into(), options)?);
    }
    let kind = match (kinds.pop_first(), kinds.is_empty()) {
        (Some(kind), true) => kind,
        _ => {
            let first = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
            return Err(EngineError::File(format!(
                "{first} and other files that match are of several kinds"
            )));
        }
    };
    let mut urls = paths.iter().map(|path| url_of(path, None)).collect::<Result<Vec<_>>>()?;
    if pattern.has_partitions() {
        urls = vec![partitioned(context, pattern, &paths).await?];
    }
    Ok(Found { kind, suffix: String::new(), urls, paths, objects: Vec::new(), root: None })
}

/// The files of a pattern as those of a folder with subfolders named `COLUMN=VALUE`, which are columns.
async fn partitioned(
    context: &SessionContext,
    pattern: &Pattern,
    paths: &[PathBuf],
) -> Result<ListingTableUrl> {
    let folder = &pattern.folder;
    let fail = |reason: String| EngineError::File(format!("{}: {reason}", folder.display()));
    let name = pattern.file_name().and_then(|name| glob::Pattern::new(name).ok());
    let url = url_of(&folder.canonicalize().map_err(|e| fail(e.to_string()))?, name)?;
    let state = context.state();
    let store = context.runtime_env().object_store(url.object_store())?;
    let listed: Vec<_> = url.list_all_files(&state, store.as_ref(), "").await?.try_collect().await?;
    let listed: BTreeSet<PathBuf> = listed.iter().map(by_name::path_of).collect::<Result<_, _>>()?;
    if !paths.iter().eq(&listed) {
        return Err(EngineError::bad_file(
            format!("{}: a pattern must match all of its folders named COLUMN=VALUE", folder.display()),
            "read the folder, and use a condition on the column",
        ));
    }
    Ok(url)
}

/// A table over files that were found; `path` is what they are called in messages.
async fn table(
    context: &SessionContext,
    path: &Path,
    found: Found,
    options: &FileOptions,
) -> Result<Arc<dyn TableProvider>> {
    let fail = |reason: String| EngineError::File(format!("{}: {reason}", path.display()));
    let Found { kind, suffix, urls, paths, objects, root } = found;
    let format = kind.format(path, options, root)?;
    let is_parquet = kind.format == FileFormat::Parquet;
    if is_parquet {
        let checked = tokio::task::spawn_blocking(move || {
            let mut files = Vec::new();
            for path in &paths {
                look(path, DEPTH_MAX, &mut |file| files.push((file, path.is_dir())))
                    .map_err(|e| EngineError::File(format!("{}: {e}", path.display())))?;
            }
            let is_part = |file: &Path| FileKind::by_name(file).is_some_and(|(named, _)| named == kind);
            files
                .iter()
                .filter(|(file, inside)| !inside || is_part(file))
                .try_for_each(|(file, _)| parquet::check(&file.clone().into()))
        });
        checked.await.map_err(|e| EngineError::Internal(e.to_string()))??;
    }
    let listing = ListingOptions::new(format).with_file_extension(suffix);
    let config = ListingTableConfig::new_with_multi_paths(urls)
        .with_listing_options(listing)
        .with_expr_adapter_factory(Arc::new(parquet::UniqueNames))
        .infer_partitions_from_path(&context.state())
        .await?
        .infer_schema(&context.state())
        .await;
    if is_parquet && config.is_err() {
        // Only now: each check of an object is a request.
        let checked = tokio::task::spawn_blocking(move || objects.iter().try_for_each(parquet::check));
        checked.await.map_err(|e| EngineError::Internal(e.to_string()))??;
    }
    let config = config.map_err(|e| {
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
    if let Some(schema) = &config.file_schema {
        columns::check_types(schema, options)?;
    }
    let config = match &config.file_schema {
        Some(schema) if is_parquet => {
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
fn hidden_file(folder: &Path, options: &FileOptions) -> std::io::Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if is_hidden && entry.file_type()?.is_file() && kind_in_folder(&entry.path(), options).is_some() {
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
