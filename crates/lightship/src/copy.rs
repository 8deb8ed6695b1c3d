//! Copies a query result to a file, a table or a pipe.

use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, FieldRef, SchemaRef};
use lightship_sources::objects::ObjectLocation;
use lightship_sources::writers::{self, FileMode, Format, WriteOptions};
use lightship_sources::{
    Destination, Location, NumericRule, TableName, TableWrite, Tuples, WriteMode, Written, open_table,
};

use crate::options::Options;
use crate::range::{self, RangeTarget};
use crate::report::Report;
use crate::result::Connection;
use crate::{Error, ErrorKind, Result, Statement};

/// Where rows are written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Target {
    /// A file, a pipe or standard output.
    File {
        /// The file, pipe or standard output.
        target: writers::Target,
        /// The file format.
        format: Format,
        /// The settings of the format. Its memory limit is replaced by a third of
        /// [`Options::memory_bytes`].
        options: WriteOptions,
    },
    /// A range file of a node. The rows arrive as they are written: after an error, some may be there.
    RangeFile {
        /// The node.
        location: Location,
        /// The name of the file.
        name: String,
        /// What to do with rows whose keys exist.
        mode: range::WriteMode,
    },
    /// A table of a database.
    Table {
        /// The database.
        location: Location,
        /// The table, and what to do if it exists.
        write: TableWrite,
    },
}

impl Target {
    /// A file in this format.
    pub fn file(target: writers::Target, format: Format) -> Self {
        Self::File { target, format, options: WriteOptions::default() }
    }

    /// A file, a table of a database or a range file, with the options that apply to it. `key` has the columns that
    /// identify a row, for [`WriteMode::Upsert`] into a database.
    ///
    /// # Errors
    /// If the location can't be written, a name is missing, or an option does not apply.
    pub fn at(
        location: &Location,
        table: Option<&str>,
        mode: Option<WriteMode>,
        key: &[String],
    ) -> Result<Self> {
        let no_key = |what: &str| match key {
            [] => Ok(()),
            _ => Err(Error::usage(format!("--key applies to --mode upsert into a database, but {what}"))),
        };
        match (location, table) {
            (Location::Node { .. } | Location::NodeUnix { .. }, Some(name)) => {
                no_key(&format!("{location} is a node"))
                    .map_err(|error| error.hint("leave out --key: a range file has a key of its own"))?;
                let mode = match mode {
                    None | Some(WriteMode::Append | WriteMode::Existing) => range::WriteMode::Insert,
                    Some(WriteMode::Upsert) => range::WriteMode::Upsert,
                    Some(WriteMode::Create | WriteMode::Replace | WriteMode::Truncate) => {
                        return Err(Error::usage("rows are only added to a range file").hint(
                            "leave out --mode; `lightship range create` creates a range file, `drop` removes it",
                        ));
                    }
                };
                Self::range_file(location, name, mode)
            }
            (Location::Node { .. } | Location::NodeUnix { .. }, None) => {
                Err(Error::usage("a copy into a node requires --table NAME, the name of a range file"))
            }
            (Location::Path(_) | Location::Object(_), Some(name)) => Err(Error::usage(format!(
                "--table applies to a table of a database, but {location} is a file"
            ))
            .hint(format!("leave out --table, and name the file after it, as in {name}.parquet"))),
            (Location::Path(path), None) => {
                no_key(&format!("{location} is a file"))?;
                Self::path(path, mode)
            }
            (Location::Object(object), None) => {
                no_key(&format!("{location} is an object"))?;
                Self::object(object, mode)
            }
            (_, None) => Err(Error::usage("a copy into a database requires --table [SCHEMA.]NAME")),
            (_, Some(name)) => {
                let (table, mode) = (TableName::parse(name), mode.unwrap_or_default());
                if mode != WriteMode::Upsert {
                    no_key("the mode is another")?;
                    return Self::table(location, table, mode);
                }
                if key.is_empty() {
                    return Err(Error::usage("--mode upsert requires --key COLUMN[,COLUMN...]").hint(
                        "name the columns that identify a row, on which the table has a unique index",
                    ));
                }
                Self::upsert(location, table, key.to_vec())
            }
        }
    }

    /// A file, or a new file in a folder.
    fn path(path: &Path, mode: Option<WriteMode>) -> Result<Self> {
        let refuse = |mode: &str, hint: &str| {
            let what = if is_folder(path) { "a folder" } else { "a file" };
            Err(Error::usage(format!("--mode {mode} does not apply to {}, which is {what}", path.display()))
                .hint(hint))
        };
        if is_folder(path) {
            let (mode, hint) = match mode {
                None | Some(WriteMode::Append) => {
                    let format = format_in(path).unwrap_or(Format::Parquet);
                    return Ok(Self::file(writers::Target::Folder(path.to_owned(), format), format));
                }
                Some(WriteMode::Existing) if path.is_dir() => return Self::path(path, None),
                Some(WriteMode::Existing) => {
                    return Err(Error::new(ErrorKind::Source, format!("{}: no such folder", path.display())));
                }
                Some(WriteMode::Create) if !path.exists() => return Self::path(path, None),
                Some(WriteMode::Create) => {
                    return Err(Error::new(ErrorKind::Source, format!("{}: it exists", path.display()))
                        .hint("add a file to it with --mode append"));
                }
                Some(WriteMode::Replace) => ("replace", "remove its files first, or name one of them"),
                Some(WriteMode::Truncate) => ("truncate", "remove its files first, or name one of them"),
                Some(WriteMode::Upsert) => ("upsert", "its files have no keys: copy into a database"),
            };
            return refuse(mode, hint);
        }
        let (path, text) = writers::TextOptions::split(path)?;
        let Some(format) = Format::from_path(&path) else { return Err(not_writable(&Location::Path(path))) };
        let mode = match mode {
            None | Some(WriteMode::Replace) => FileMode::Replace,
            Some(WriteMode::Create) => FileMode::Create,
            Some(WriteMode::Append) => FileMode::Append,
            Some(WriteMode::Existing) => FileMode::Existing,
            Some(WriteMode::Truncate) => {
                return refuse("truncate", "use --mode replace: nothing of a file but its rows stays");
            }
            Some(WriteMode::Upsert) => return refuse("upsert", "a file has no keys: copy into a database"),
        };
        let options = WriteOptions { mode, text, ..WriteOptions::default() };
        Ok(Self::File { target: writers::Target::File(path), format, options })
    }

    /// An object of an object store.
    fn object(object: &ObjectLocation, mode: Option<WriteMode>) -> Result<Self> {
        const REPLACED: &str = "leave out --mode: the object appears, or is replaced, once it is complete";
        let (mode, hint) = match mode {
            None | Some(WriteMode::Replace) => {
                let text = writers::TextOptions::of_object(object)?;
                let Some(format) = Format::from_path(object.as_path()) else {
                    return Err(not_writable(&Location::Object(object.clone())));
                };
                let options = WriteOptions { text, ..WriteOptions::default() };
                let target = writers::Target::Object(object.clone());
                return Ok(Self::File { target, format, options });
            }
            Some(WriteMode::Append) => {
                ("append", "write another object, and read all of them with a pattern")
            }
            Some(WriteMode::Upsert) => ("upsert", "an object has no keys: copy into a database"),
            Some(WriteMode::Create) => ("create", REPLACED),
            Some(WriteMode::Existing) => ("existing", REPLACED),
            Some(WriteMode::Truncate) => ("truncate", REPLACED),
        };
        Err(Error::usage(format!("--mode {mode} does not apply to {object}, which is an object")).hint(hint))
    }

    /// A table of a database, in a mode without a key.
    ///
    /// # Errors
    /// If the location is not a database.
    pub fn table(location: &Location, table: TableName, mode: WriteMode) -> Result<Self> {
        Self::database(location, TableWrite::new(table, mode))
    }

    /// A table of a database, whose rows are updated if their key exists, and inserted if not.
    ///
    /// # Errors
    /// If the location is not a database.
    pub fn upsert(location: &Location, table: TableName, key: Vec<String>) -> Result<Self> {
        Self::database(location, TableWrite::upsert(table, key))
    }

    fn database(location: &Location, write: TableWrite) -> Result<Self> {
        match location {
            Location::Postgres(_) | Location::MySql(_) | Location::Sqlite(_) | Location::Adbc(_) => {
                Ok(Self::Table { location: location.clone(), write })
            }
            other => Err(not_writable(other)),
        }
    }

    /// A range file.
    ///
    /// # Errors
    /// If the location is not a node.
    pub fn range_file(location: &Location, name: &str, mode: range::WriteMode) -> Result<Self> {
        match location {
            Location::Node { .. } | Location::NodeUnix { .. } => {
                Ok(Self::RangeFile { location: location.clone(), name: name.to_owned(), mode })
            }
            other => Err(Error::usage(format!("{other} is not a node"))),
        }
    }

    /// The same target, whose writer keeps to its part of the memory.
    fn within(self, memory_bytes: u64) -> Self {
        match self {
            Self::File { target, format, options } => {
                let memory_bytes = usize::try_from(memory_bytes / 3).unwrap_or(usize::MAX);
                Self::File { target, format, options: WriteOptions { memory_bytes, ..options } }
            }
            other => other,
        }
    }

    async fn open(self, schema: SchemaRef) -> Result<Opened> {
        Ok(match self {
            Self::File { target, format, options } => {
                Opened::Whole(writers::create(target, format, schema, options)?)
            }
            Self::Table { location, write } => Opened::Whole(open_table(&location, &write, &schema).await?),
            Self::RangeFile { location, name, mode } => {
                Opened::RangeFile(RangeTarget::open(&location, &name, mode, &schema).await?)
            }
        })
    }
}

/// Whether a path names a folder: one that exists, or by a slash at its end.
fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// The format of the files that a folder has: that of the first one by name.
fn format_in(folder: &Path) -> Option<Format> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    entries
        .filter_map(|path| Some((Format::from_path(&path)?, path)))
        .min_by(|a, b| a.1.cmp(&b.1))
        .map(|(format, _)| format)
}

fn not_writable(location: &Location) -> Error {
    Error::usage(format!("can't copy into {location}")).hint(
        "copy writes to PostgreSQL (postgresql://…), MySQL and MariaDB (mysql://…), SQLite (sqlite:FILE), databases \
         with an ADBC driver (adbc:DRIVER?…), range files (lightship://…), and files (.parquet, .csv, .json, .arrow), also \
         in object stores (s3://…, gs://…, az://…)",
    )
}

/// A target that is being written.
enum Opened {
    /// It gets all rows or none.
    Whole(Box<dyn Destination>),
    RangeFile(RangeTarget),
}

impl Opened {
    fn take_tuples(&mut self, offer: Tuples) -> bool {
        match self {
            Self::Whole(destination) => destination.take_tuples(offer),
            Self::RangeFile(_) => false,
        }
    }

    fn notices(&self) -> Vec<String> {
        match self {
            Self::Whole(destination) => destination.notices(),
            Self::RangeFile(_) => Vec::new(),
        }
    }

    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        match self {
            Self::Whole(destination) => Ok(destination.write(batch).await?),
            Self::RangeFile(file) => file.write(&batch).await,
        }
    }

    /// Returns the bytes that were written.
    async fn finish(self) -> Result<u64> {
        match self {
            Self::Whole(destination) => Ok(destination.finish().await?.bytes),
            Self::RangeFile(mut file) => file.finish().await,
        }
    }
}

/// Observes the progress of a copy.
pub trait Observer {
    /// The query has begun to return rows. `open_numbers` are the `numeric` columns without a declared
    /// precision, which are read as decimals. A value that does not fit the decimal type is an error,
    /// however late it arrives.
    fn began(&mut self, rows_estimate: Option<u64>, open_numbers: &[&str]) {
        let _ = (rows_estimate, open_numbers);
    }

    /// The user should know this before rows are written, such as what of a replaced table is not kept. All of it is
    /// in [`Report::notices`], too.
    fn noticed(&mut self, notice: &str) {
        let _ = notice;
    }

    /// More rows have arrived; `bytes` is their size as Arrow buffers.
    fn arrived(&mut self, rows: u64, bytes: u64) {
        let _ = (rows, bytes);
    }
}

/// Observes nothing.
impl Observer for () {}

/// Runs a query at one or several sources and writes its result. A file or a table of a database gets all rows or
/// none; a range file keeps what was written before an error; a pipe and standard output get rows as they arrive. Dropping the future cancels the query, and
/// leaves no incomplete file or table.
///
/// The file or table is created only after all sources have begun to return rows with compatible columns.
///
/// # Errors
/// The first error of a source or of the target.
pub async fn copy(
    from: &[Location],
    statement: impl Into<Statement>,
    to: Target,
    options: &Options,
    observer: &mut (dyn Observer + Send),
) -> Result<Report> {
    let tuples = matches!(to, Target::Table { .. }) && options.has_default_values();
    let statement = statement.into();
    Connection::open(from, options, tuples).await?.copy(statement, to, observer).await
}

impl Connection {
    /// Runs a query over this connection and writes its result, as [`copy`] does.
    ///
    /// # Errors
    /// The first error of a source or of the target.
    pub async fn copy(
        &mut self,
        statement: impl Into<Statement>,
        to: Target,
        observer: &mut (dyn Observer + Send),
    ) -> Result<Report> {
        let statement = statement.into();
        let to = to.within(self.memory_bytes());
        let mut result = self.query(statement).await?;
        let schema = result.schema().clone();
        let mut destination = to.open(schema.clone()).await?;
        let is_decoded = !result.take_tuples().is_some_and(|offer| destination.take_tuples(offer));
        let open_numbers = if is_decoded { open_numbers(&schema) } else { Vec::new() };
        let notices = destination.notices();
        notices.iter().for_each(|notice| observer.noticed(notice));
        observer.began(result.rows_estimate(), &open_numbers);
        while let Some((batch, bytes)) = result.next_counted().await? {
            observer.arrived(batch.num_rows() as u64, bytes);
            destination.write(batch).await?;
        }
        let written = destination.finish().await?;
        Ok(Report { notices, ..result.report_written(written) })
    }
}

/// Writes batches of the caller. As with [`copy`], a file or a table of a database gets all rows or none: dropping the
/// writer before [`Self::finish`] leaves it as it was.
pub struct Writer {
    destination: Opened,
    schema: SchemaRef,
    rows: u64,
}

impl Writer {
    /// Creates the file or table, or finds it.
    ///
    /// # Errors
    /// If the target can't be written, or can't hold these columns.
    pub async fn open(to: Target, schema: SchemaRef, options: &Options) -> Result<Self> {
        let destination = to.within(options.memory_bytes()).open(schema.clone()).await?;
        Ok(Self { destination, schema, rows: 0 })
    }

    /// What the caller should know, such as what of a replaced table is not kept.
    pub fn notices(&self) -> Vec<String> {
        self.destination.notices()
    }

    /// Writes a batch.
    ///
    /// # Errors
    /// If it has other columns than the target was opened with, or a value can't be written. The writer can only be
    /// dropped then.
    pub async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.schema_ref() != &self.schema && batch.schema_ref().fields() != self.schema.fields() {
            return Err(Error::new(ErrorKind::Data, "a batch has other columns than the first"));
        }
        self.rows += batch.num_rows() as u64;
        self.destination.write(batch).await
    }

    /// Makes the rows visible. Returns their number and the bytes that were written.
    ///
    /// # Errors
    /// If the target refuses them; then none are there, except in a range file.
    pub async fn finish(self) -> Result<Written> {
        Ok(Written { rows: self.rows, bytes: self.destination.finish().await? })
    }
}

fn open_numbers(schema: &SchemaRef) -> Vec<&str> {
    let NumericRule::Decimal { precision, scale } = NumericRule::RESULT else { return Vec::new() };
    let is_open = |field: &&FieldRef| *field.data_type() == DataType::Decimal256(precision, scale);
    schema.fields().iter().filter(is_open).map(|field| field.name().as_str()).collect()
}
