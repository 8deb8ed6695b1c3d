//! Files and folders as tables.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use arrow_schema::{DataType, Fields, Schema};
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use url::Url;

use crate::error::{EngineError, Result};

/// Deepest folder that is looked into for files.
const DEPTH_MAX: usize = 16;

/// A kind of file, by the ends of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Parquet,
    Csv,
    Json,
    Arrow,
}

impl Kind {
    fn of(path: &Path) -> Option<(Self, String)> {
        let extension = path.extension()?.to_str()?.to_owned();
        let kind = match extension.to_ascii_lowercase().as_str() {
            "parquet" | "pq" => Self::Parquet,
            "csv" => Self::Csv,
            "json" | "jsonl" | "ndjson" => Self::Json,
            "arrow" | "arrows" | "feather" | "ipc" => Self::Arrow,
            _ => return None,
        };
        Some((kind, extension))
    }

    fn format(self) -> Arc<dyn FileFormat> {
        match self {
            // A format of its own does not look at the session's options.
            Self::Parquet => Arc::new(ParquetFormat::default().with_force_view_types(false)),
            Self::Csv => Arc::new(CsvFormat::default().with_has_header(true)),
            Self::Json => Arc::new(JsonFormat::default()),
            Self::Arrow => Arc::new(ArrowFormat),
        }
    }
}

/// A table over a file, or over all files below a folder.
pub(crate) async fn open(context: &SessionContext, path: &Path) -> Result<Arc<dyn TableProvider>> {
    let fail = |reason: String| EngineError::File(format!("{}: {reason}", path.display()));
    let path = path.canonicalize().map_err(|e| fail(e.to_string()))?;
    let (kind, extension) = if path.is_dir() {
        let mut found = BTreeSet::new();
        look(&path, DEPTH_MAX, &mut found).map_err(|e| fail(e.to_string()))?;
        let mut found = found.into_iter();
        match (found.next(), found.next()) {
            (Some(one), None) => one,
            (None, _) => return Err(fail("no Parquet, CSV, JSON or Arrow file in it".into())),
            (Some((_, one)), Some((_, other))) => {
                return Err(fail(format!("files of several kinds in it (.{one}, .{other})")));
            }
        }
    } else {
        Kind::of(&path).ok_or_else(|| {
            fail("not a kind of file that is known: .parquet, .csv, .json, .jsonl, .arrow, .arrows".into())
        })?
    };
    // As a URL: in a text, `*`, `?` and `[` of a name would stand for other files.
    let url = if path.is_dir() { Url::from_directory_path(&path) } else { Url::from_file_path(&path) };
    let url = url.map_err(|()| fail("no absolute path".into()))?;
    let options = ListingOptions::new(kind.format()).with_file_extension(format!(".{extension}"));
    let config = ListingTableConfig::new(ListingTableUrl::try_new(url, None)?)
        .with_listing_options(options)
        .infer_partitions_from_path(&context.state())
        .await?
        .infer_schema(&context.state())
        .await
        .map_err(|e| match EngineError::from(e) {
            EngineError::File(reason) | EngineError::Data(reason) => fail(reason),
            other => other,
        })?;
    let config = match &config.file_schema {
        // What reads Arrow files does not cast.
        Some(schema) if kind == Kind::Parquet => {
            let schema = Arc::new(with_wide_keys(schema));
            config.with_schema(schema)
        }
        _ => config,
    };
    Ok(Arc::new(ListingTable::try_new(config)?))
}

/// Columns whose dictionaries have keys of 32 bits: each batch of a file may bring a dictionary of its own, and an
/// operator that gathers rows of several makes one of all their values, for which 8 or 16 bits may be too few.
fn with_wide_keys(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Dictionary(keys, values) if keys.primitive_width().is_some_and(|bytes| bytes < 4) => {
            let wide = DataType::Dictionary(Box::new(DataType::Int32), values.clone());
            Arc::new(field.as_ref().clone().with_data_type(wide))
        }
        _ => field.clone(),
    });
    Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone())
}

fn look(folder: &Path, depth: usize, found: &mut BTreeSet<(Kind, String)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if hidden {
            continue;
        }
        if path.is_dir() {
            if depth > 0 {
                look(&path, depth - 1, found)?;
            }
        } else {
            found.extend(Kind::of(&path));
        }
    }
    Ok(())
}

/// Of files up to this size the bytes are compared too: many are of one size, and made at one time.
const SMALL_BYTES: u64 = 64 << 10;

/// What tells two states of a file or folder apart: names, sizes and times of its files, and what is in small
/// ones. Its own name does not matter. Never 0.
///
/// # Errors
/// When it can't be looked at.
pub(crate) fn fingerprint(path: &Path) -> Result<u64> {
    let mut files = Vec::new();
    list(path, Path::new(""), DEPTH_MAX, &mut files)
        .map_err(|e| EngineError::File(format!("{}: {e}", path.display())))?;
    files.sort();
    let mut text = String::new();
    for (name, bytes, changed, inside) in files {
        let _ = writeln!(text, "{name}\0{bytes}\0{changed}\0{inside}");
    }
    Ok(hash(text.as_bytes()).max(1))
}

/// FNV-1a: the same on all nodes, whatever their version of anything.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn list(
    path: &Path,
    name: &Path,
    depth: usize,
    found: &mut Vec<(String, u64, i128, u64)>,
) -> std::io::Result<()> {
    let metadata = path.metadata()?;
    if !metadata.is_dir() {
        let changed = metadata.modified()?.duration_since(SystemTime::UNIX_EPOCH);
        let changed = changed.map_or(-1, |since| since.as_nanos() as i128);
        let inside = if metadata.len() <= SMALL_BYTES { hash(&std::fs::read(path)?) } else { 0 };
        found.push((name.display().to_string(), metadata.len(), changed, inside));
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && depth > 0 {
            list(&entry.path(), &name.join(entry.file_name()), depth - 1, found)?;
        }
    }
    Ok(())
}

/// A table read into memory.
pub(crate) struct Loaded {
    pub(crate) table: MemTable,
    pub(crate) rows: u64,
    pub(crate) bytes: usize,
}

/// Reads a table into memory, into as many parts as can be scanned at once.
pub(crate) async fn load(
    context: &SessionContext,
    table: Arc<dyn TableProvider>,
    name: &str,
    bytes_max: usize,
    partitions: usize,
) -> Result<Loaded> {
    let schema = table.schema();
    let mut stream = context.read_table(table)?.execute_stream().await?;
    let mut parts = vec![Vec::new(); partitions];
    let (mut rows, mut bytes, mut count) = (0, 0, 0);
    while let Some(batch) = stream.next().await {
        let batch = batch?;
        if batch.num_rows() == 0 {
            continue;
        }
        rows += batch.num_rows() as u64;
        bytes += batch.get_array_memory_size();
        if bytes > bytes_max {
            return Err(EngineError::Limit {
                message: format!(
                    "table `{name}` does not fit the {bytes_max} bytes left for tables in memory"
                ),
                needed_bytes: None,
            });
        }
        parts[count % partitions].push(batch);
        count += 1;
    }
    Ok(Loaded { table: MemTable::try_new(schema, parts)?, rows, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, text) in [("a/t.csv", "1"), ("b/t.csv", "2"), ("c/t.csv", "1")] {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), text).unwrap();
            let file = std::fs::File::options().append(true).open(path(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        let of = |name: &str| fingerprint(&path(name)).unwrap();
        assert_ne!(of("a/t.csv"), of("b/t.csv"), "other bytes");
        assert_eq!(of("a/t.csv"), of("c/t.csv"), "the same wherever it is");
        assert_eq!(of("a"), of("c"), "folders too");
        let before = of("a/t.csv");
        std::fs::write(path("a/t.csv"), "12").unwrap();
        assert_ne!(of("a/t.csv"), before, "another size");
        std::fs::write(path("c/u.csv"), "1").unwrap();
        assert_ne!(of("c"), before, "another file");
        assert!(fingerprint(&path("none")).is_err());
    }
}
