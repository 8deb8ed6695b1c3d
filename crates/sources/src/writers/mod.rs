//! Files and standard output as destinations.
//!
//! [`create`] opens a [`Target`] and returns a [`Destination`] that encodes on its
//! own thread, so that receiving the next batch and encoding the last one overlap.
//! One batch waits and one is being encoded: memory is two batches and what the
//! format keeps (for Parquet the row group in progress,
//! [`WriteOptions::memory_bytes`]). Lines of text are encoded by several threads
//! ([`batches_at_once`]): memory is a batch and some MiB of lines for each, and one
//! more batch.
//!
//! A file appears under its name only when it is complete: it is written without a
//! name (if the file system has no such files, under a hidden name in the same
//! folder), synchronised and named. An object of an object store is uploaded in
//! parts. Pipes, terminals and devices are written directly.
//!
//! Every value is written unchanged, or refused with its row and column. Two
//! columns of the same name are refused, except by [`Format::Table`] and [`Format::Vertical`].
//!
//! The variants of [`Format`] document what each format does to the types.

mod append;
mod atomic_file;
mod background;
mod compress;
mod csv;
mod ipc;
mod json;
mod json_values;
mod lines;
mod open_decimal;
mod output;
mod page_spill;
mod parquet;
mod readable;
mod table;
mod text;
mod text_options;
mod type_mapping;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, DataType, Fields, SchemaRef};

pub(crate) use self::json_values::JsonValues;

use self::background::Background;
use self::lines::LineFormat;
use self::output::Output;
use self::text_options::{Dialect, extension, without_compression};
pub use self::text_options::{TextCompression, TextOptions};
use crate::columns::check_names;
use crate::objects::ObjectLocation;
use crate::{Destination, Result, SourceError};

/// How rows become bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Arrow IPC file: every type unchanged, except dictionaries, which become their
    /// values (a file holds one dictionary per column, a result has many).
    ArrowFile,
    /// Arrow IPC stream: every type unchanged.
    ArrowStream,
    /// Parquet, with the Arrow schema in its metadata, so that types read back
    /// unchanged, with these exceptions: dictionaries of anything but text and bytes,
    /// and run-end encoded columns, read back as their values, `Decimal32` of one
    /// digit as `Decimal128`, times in seconds as milliseconds, and dates in
    /// milliseconds as days. Intervals and durations are text, as in CSV. Dates with a
    /// time of day are refused, and so are unions, decimals of negative scale, structs
    /// without fields, byte arrays of size zero, and results without columns.
    Parquet,
    /// CSV as in RFC 4180, with a header line, or as [`TextOptions`] say. NULL is empty
    /// and an empty text is `""`. Bytes are hexadecimal after `\x`, UUIDs have hyphens,
    /// times are ISO 8601, years before 1 end in `BC`, intervals and lists have the form
    /// of PostgreSQL (`1 mon 2 days 03:04:05`, `{1,NULL}`), structs and maps are JSON,
    /// not-a-number and infinities `NaN`, `inf` and `-inf`. Unions are refused.
    Csv,
    /// One JSON object per line, NULL as `null`. Decimals are numbers with all their
    /// digits; bytes, UUIDs, times and intervals are text as in CSV. Unions are refused,
    /// and so are not-a-number and infinities, which JSON does not have.
    Json,
    /// A table for people to read: the first rows, and the number of further rows.
    Table,
    /// The first rows for people to read, one value on each line.
    Vertical,
}

impl Format {
    /// The main name of each format, as a user types it.
    pub const NAMES: [&str; 7] = ["arrow", "stream", "parquet", "csv", "json", "table", "vertical"];

    /// The main extension of its files.
    fn extension(self) -> &'static str {
        match self {
            Self::ArrowFile => "arrow",
            Self::ArrowStream => "arrows",
            Self::Parquet => "parquet",
            Self::Csv => "csv",
            Self::Json => "jsonl",
            Self::Table | Self::Vertical => "txt",
        }
    }

    /// The format for a file's extension: `.arrow`, `.feather`, `.ipc`, `.arrows`, `.parquet`, `.pq`, and
    /// `.csv`, `.tsv`, `.psv`, `.json`, `.jsonl`, `.ndjson`, which `.gz` or `.zst` may follow.
    pub fn from_path(path: &Path) -> Option<Self> {
        let (stem, compression) = without_compression(path);
        let extension = extension(stem)?;
        Some(match extension.as_str() {
            "arrow" | "feather" | "ipc" | "arrows" | "parquet" | "pq"
                if compression != TextCompression::None =>
            {
                return None;
            }
            "arrow" | "feather" | "ipc" => Self::ArrowFile,
            "arrows" => Self::ArrowStream,
            "parquet" | "pq" => Self::Parquet,
            "csv" | "tsv" | "psv" => Self::Csv,
            "json" | "jsonl" | "ndjson" => Self::Json,
            _ => return None,
        })
    }
}

impl FromStr for Format {
    type Err = SourceError;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "arrow" => Self::ArrowFile,
            "arrows" | "stream" => Self::ArrowStream,
            "parquet" => Self::Parquet,
            "csv" => Self::Csv,
            "json" | "jsonl" => Self::Json,
            "table" => Self::Table,
            "vertical" => Self::Vertical,
            _ => {
                let names = Self::NAMES.join(", ");
                return Err(SourceError::Unsupported(format!("format `{name}`; expected one of {names}")));
            }
        })
    }
}

/// Where the bytes go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A file, which changes once all rows are there, as [`WriteOptions::mode`] says; or a pipe or device.
    File(PathBuf),
    /// An object of an object store, which appears once it is complete.
    Object(ObjectLocation),
    /// A new file of this format in a folder, which is created if it is missing.
    Folder(PathBuf, Format),
    /// Standard output.
    Stdout,
    /// Memory, for what the program shows itself.
    Memory(SharedBytes),
}

/// Bytes that a writer adds to while others hold them.
#[derive(Debug, Clone, Default)]
pub struct SharedBytes(Arc<Mutex<Vec<u8>>>);

impl SharedBytes {
    /// Takes what was written so far.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
    }
}

/// Whether both are the same memory.
impl PartialEq for SharedBytes {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedBytes {}

/// How pages of a Parquet file are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all: largest file, least work.
    None,
    /// LZ4: about half the work of zstd, a file about a third larger.
    Lz4,
    /// Zstandard at this level, 1 to 22. Levels above 3 cost much time for little gain.
    Zstd(u8),
}

/// What to do with an existing file. A missing one is created, except by [`Self::Existing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileMode {
    /// Replace it once the new one is complete.
    #[default]
    Replace,
    /// Fail.
    Create,
    /// Add the rows to it. CSV, JSON lines and Arrow streams can grow; other formats are refused.
    Append,
    /// Add the rows to it, and fail if it is missing.
    Existing,
}

/// How to write. Defaults suit most results.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// What to do with an existing file.
    pub mode: FileMode,
    /// Compression of Parquet.
    pub compression: Compression,
    /// Maximum bytes that a Parquet writer holds of the row group it builds. What
    /// exceeds them waits in a temporary file: in the folder of the file that is written,
    /// or in the system's for a pipe. Zstandard needs about half a MiB per column in
    /// addition, and dictionaries some 70 KiB per column.
    pub memory_bytes: usize,
    /// How lines of text are written.
    pub text: TextOptions,
    /// Rows that a table shows; the rest is counted.
    pub table_rows: usize,
    /// Maximum width of a value in a table, in terminal cells; longer ones are truncated.
    pub table_value_width: usize,
    /// Maximum width of a table, in terminal cells: columns that don't fit are left out and counted.
    pub table_width: Option<usize>,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            mode: FileMode::default(),
            compression: Compression::Zstd(1),
            memory_bytes: 64 << 20,
            text: TextOptions::default(),
            table_rows: 40,
            table_value_width: 40,
            table_width: None,
        }
    }
}

/// Maximum batches that a format holds in memory at once.
pub fn batches_at_once(format: Format) -> usize {
    match format {
        Format::Csv | Format::Json => 1 + *lines::BATCHES,
        _ => 2,
    }
}

/// Opens the target for batches of `schema`.
///
/// # Errors
/// [`SourceError::Unsupported`] when the format can't hold one of the columns,
/// [`SourceError::DuplicateColumn`] when two have the same name, [`SourceError::ExistingFile`] when an existing file
/// may not be changed as the mode says, [`SourceError::Io`] when the target can't be opened. A pipe is opened at the first write, since
/// opening it waits for its reader.
pub fn create(
    target: Target,
    format: Format,
    schema: SchemaRef,
    options: WriteOptions,
) -> Result<Box<dyn Destination>> {
    let path = match &target {
        Target::File(path) => Some(path.as_path()),
        Target::Object(object) => Some(object.as_path()),
        Target::Folder(..) | Target::Stdout | Target::Memory(_) => None,
    };
    let plan = WritePlan::new(format, &schema, &options, path)?;
    let mut output = Output::open(target, options.mode)?;
    let dialect = match &plan {
        WritePlan::Csv(dialect) | WritePlan::Json(_, dialect) => Some(dialect),
        _ => None,
    };
    output.copy_existing(format, &schema, dialect)?;
    if let Some(dialect) = dialect {
        output.compress(dialect.compression)?;
    }
    let failures = output.failures();
    let (is_whole, cancel) = (output.is_whole(), output.canceller());
    let writer = plan.start(output, &schema, &options).map_err(|error| failures.explain(error))?;
    Ok(Box::new(Background::start(writer, schema, failures, is_whole, cancel)?))
}

/// Checks that a target can be opened, as far as that is known without writing to it.
///
/// # Errors
/// As [`create`], for what the target and the mode alone decide.
pub fn check_target(target: Target, mode: FileMode) -> Result<()> {
    Output::open(target, mode).map(drop)
}

/// Writes a file completely or not at all; writes to a pipe or a device directly.
///
/// # Errors
/// [`SourceError::Io`].
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut output = Output::open(Target::File(path.to_owned()), FileMode::Replace)?;
    let failures = output.failures();
    std::io::Write::write_all(&mut output, bytes).map_err(|source| failures.error(source))?;
    output.commit()?;
    Ok(())
}

/// A format's encoder: batches in, bytes into its [`Output`].
trait BatchWriter: Send {
    /// Encodes one batch. A row that an error names counts from 1 in the batch.
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;

    /// The output that it writes to.
    fn output(&mut self) -> &mut Output;

    /// Writes the end of the format and returns the output, for the caller to commit.
    fn finish(self: Box<Self>) -> Result<Output>;
}

/// How batches become bytes.
enum Writer {
    /// One batch after another.
    Batches(Box<dyn BatchWriter>),
    /// Each batch on its own.
    Lines(Arc<dyn LineFormat>, Box<Output>),
}

/// A format that has accepted a schema, before anything is opened.
enum WritePlan {
    ArrowFile(type_mapping::TypeMapping),
    ArrowStream,
    Parquet(type_mapping::TypeMapping),
    Csv(Dialect),
    Json(type_mapping::TypeMapping, Dialect),
    Table { is_vertical: bool },
}

impl WritePlan {
    fn new(format: Format, schema: &SchemaRef, options: &WriteOptions, path: Option<&Path>) -> Result<Self> {
        if !matches!(format, Format::Table | Format::Vertical) {
            check_names(schema)?;
        }
        Ok(match format {
            Format::ArrowFile => Self::ArrowFile(ipc::check_file(schema)),
            Format::ArrowStream => Self::ArrowStream,
            Format::Parquet => Self::Parquet(parquet::check(schema)?),
            Format::Csv => {
                csv::check(schema)?;
                Self::Csv(options.text.for_file(path)?)
            }
            Format::Json => Self::Json(json::check(schema)?, options.text.for_file(path)?),
            Format::Table | Format::Vertical => Self::Table { is_vertical: format == Format::Vertical },
        })
    }

    fn start(self, output: Output, schema: &SchemaRef, options: &WriteOptions) -> Result<Writer> {
        Ok(Writer::Batches(match self {
            Self::ArrowFile(type_mapping) => Box::new(ipc::File::new(output, type_mapping)?),
            Self::ArrowStream => Box::new(ipc::Stream::new(output, schema)?),
            Self::Parquet(type_mapping) => Box::new(parquet::Parquet::new(output, type_mapping, options)?),
            Self::Csv(dialect) => {
                return Ok(Writer::Lines(Arc::new(csv::Csv::new(schema, dialect)), Box::new(output)));
            }
            Self::Json(type_mapping, _) => {
                return Ok(Writer::Lines(Arc::new(json::Json::new(type_mapping)), Box::new(output)));
            }
            Self::Table { is_vertical } => Box::new(table::Table::new(output, schema, options, is_vertical)),
        }))
    }
}

/// Refuses structs with two fields of the same name, for a `format` that needs unique names.
fn check_fields(format: &str, schema: &SchemaRef) -> Result<()> {
    let repeated = |fields: &Fields| {
        let mut seen = HashSet::new();
        fields.iter().find(|field| !seen.insert(field.name())).map(|field| field.name().clone())
    };
    let has_repeated = |t: &DataType| matches!(t, DataType::Struct(fields) if repeated(fields).is_some());
    for field in schema.fields() {
        if let Some(DataType::Struct(fields)) = type_mapping::find(field.data_type(), &has_repeated) {
            return Err(SourceError::Unsupported(format!(
                "{format} can't hold two fields of the same name, and column `{}` has two named `{}`; rename one",
                field.name(),
                repeated(fields).unwrap_or_default()
            )));
        }
    }
    Ok(())
}

/// The error for a value of a batch, at this row from 0.
fn unfit(row: usize, column: &str, reason: impl Into<String>, hint: &str) -> SourceError {
    SourceError::Unfit {
        row: row as u64 + 1,
        column: column.to_owned(),
        reason: reason.into(),
        hint: Some(hint.to_owned()),
    }
}

/// Why a value can't be converted.
fn reason(error: ArrowError) -> String {
    match error {
        ArrowError::InvalidArgumentError(reason) => reason,
        other => other.to_string(),
    }
}

/// The error for a column that `format` can't hold.
fn refused(format: &str, column: &str, data_type: &DataType, hint: &str) -> SourceError {
    SourceError::Unsupported(format!("{format} can't hold {data_type} (column `{column}`); {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_found_by_name_and_by_extension() {
        for name in Format::NAMES {
            assert!(name.parse::<Format>().is_ok(), "{name}");
        }
        assert!("xlsx".parse::<Format>().is_err());
        let check = |path: &str, expected| assert_eq!(Format::from_path(Path::new(path)), expected, "{path}");
        check("a/b.parquet", Some(Format::Parquet));
        check("B.PQ", Some(Format::Parquet));
        check("x.feather", Some(Format::ArrowFile));
        check("x.arrows", Some(Format::ArrowStream));
        check("x.tar.ndjson", Some(Format::Json));
        check("x.tsv", Some(Format::Csv));
        check("x.csv.gz", Some(Format::Csv));
        check("x.jsonl.zst", Some(Format::Json));
        check("csv", None);
        check("csv.gz", None);
        check("x.parquet.gz", None);
        check("x.csv.bz2", None);
    }
}
