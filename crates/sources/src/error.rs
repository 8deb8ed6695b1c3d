//! Errors of sources and destinations.

use arrow_schema::ArrowError;

use crate::objects::{ObjectError, ObjectErrorKind};

/// Result of this crate.
pub type Result<T, E = SourceError> = std::result::Result<T, E>;

/// An error of a source or a destination. The text is for people; the variants
/// are for code.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The given text is not a location.
    #[error("`{given}` is not a location: {reason}")]
    Location {
        /// The text given.
        given: String,
        /// Why it is not one.
        reason: String,
    },
    /// No connection could be made.
    #[error("can't reach {target}: {reason}")]
    Connect {
        /// Host, port or path, never a password.
        target: String,
        /// Why it failed.
        reason: String,
        /// The driver's error.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// A driver can't open its database.
    #[error("cannot open {target}: {reason}")]
    Open {
        /// The driver and its options, without secrets.
        target: String,
        /// The driver's message.
        reason: String,
    },
    /// The server answered, and refused the login or the database.
    #[error("{target} refused the login: {reason}")]
    Login {
        /// Host, port, user and database, never a password.
        target: String,
        /// The server's message.
        reason: String,
    },
    /// The statement was refused.
    #[error("{reason}{}", .position.map(|p| format!(" (at character {p})")).unwrap_or_default())]
    Sql {
        /// The server's message.
        reason: String,
        /// 1-based character in the statement, if the server reports it.
        position: Option<u32>,
        /// SQLSTATE or the server's error number, if there is one.
        code: Option<String>,
        /// The server's hint or detail, if there is one.
        hint: Option<String>,
    },
    /// The values of a statement's parameters are too few, too many, or of the wrong type.
    #[error("{reason}")]
    Parameters {
        /// What is wrong.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// No table has that name.
    #[error("no table `{name}`")]
    NoTable {
        /// The name looked for.
        name: String,
    },
    /// The connection ended before the result did.
    #[error("the connection to {target} was lost after {rows} rows: {reason}")]
    Lost {
        /// Which server.
        target: String,
        /// Rows received so far.
        rows: u64,
        /// The message of the driver or the server.
        reason: String,
    },
    /// All connections that this process may open to the server are in use.
    #[error("all {connections} connections to {target} are in use, and none became free within {} s", .waited.as_secs_f32())]
    Busy {
        /// Which server.
        target: String,
        /// The maximum number of connections.
        connections: usize,
        /// How long the caller waited for one.
        waited: std::time::Duration,
    },
    /// The column's Arrow type can't hold a value.
    #[error("column `{column}`: {reason}")]
    Value {
        /// Which column.
        column: String,
        /// What is wrong with the value, and how to read it.
        reason: String,
    },
    /// A value can't be written unchanged.
    #[error("row {row}, column `{column}`: {reason}")]
    Unfit {
        /// Which row of the result, from 1.
        row: u64,
        /// Which column.
        column: String,
        /// What is wrong with the value.
        reason: String,
        /// What a user can do.
        hint: Option<String>,
    },
    /// A row is too large.
    #[error("row {row}{} has {bytes} bytes, more than the limit of {bytes_max} bytes", .part.as_deref().unwrap_or_default())]
    RowTooLarge {
        /// Which row, from 1.
        row: u64,
        /// If the table is read in parts: where the row's part begins, in words.
        part: Option<String>,
        /// Its bytes, as the source sends it.
        bytes: u64,
        /// The maximum bytes of a row.
        bytes_max: u64,
    },
    /// Two columns of a result have the same name, and the destination needs unique names.
    #[error("columns {first} and {second} of the result are both named `{name}`")]
    DuplicateColumn {
        /// The name.
        name: String,
        /// Number of the first column, from 1.
        first: usize,
        /// Number of the second column, from 1.
        second: usize,
    },
    /// A driver can't be loaded.
    #[error("cannot load the ADBC driver `{driver}`: {reason}")]
    Driver {
        /// The path or name that was given.
        driver: String,
        /// The loader's message.
        reason: String,
        /// What a user can do.
        hint: String,
    },
    /// An upsert needs a unique index on its key.
    #[error("table `{table}` has no unique index on the key ({key})")]
    NoUniqueIndex {
        /// The table.
        table: String,
        /// The columns of the key, separated by commas.
        key: String,
    },
    /// Two rows of an upsert have the same key.
    #[error("rows {first} and {second} have the same key ({key})")]
    DuplicateKey {
        /// A row of the result, from 1.
        first: u64,
        /// A later row with the same key.
        second: u64,
        /// The columns of the key, separated by commas.
        key: String,
    },
    /// The server's data violates its protocol or format.
    #[error("invalid data from {target}: {reason}")]
    Malformed {
        /// Which server.
        target: String,
        /// What was wrong.
        reason: String,
    },
    /// A type or a statement that is not supported.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A file or stream could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which file, or `standard output`.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// An object of an object store could not be read or written.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// An existing file that can't be changed as asked.
    #[error("{path}: {reason}")]
    ExistingFile {
        /// Which file.
        path: String,
        /// Why not.
        reason: String,
        /// What a user can do.
        hint: String,
    },
    /// An error from Arrow.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// An error from the Parquet writer.
    #[error(transparent)]
    Parquet(#[from] parquet::errors::ParquetError),
}

impl SourceError {
    /// The kind of the system's error behind this one, if any: a writer's own
    /// error can wrap a full disk or a broken pipe.
    pub fn io_kind(&self) -> Option<std::io::ErrorKind> {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if let Some(io) = error.downcast_ref::<std::io::Error>() {
                return Some(io.kind());
            }
            cause = error.source();
        }
        None
    }

    /// Converts an error of a batch to one of the result, which has `rows` rows before the batch.
    pub(crate) fn after_rows(mut self, rows: u64) -> Self {
        if let Self::Unfit { row, .. } = &mut self {
            *row += rows;
        }
        self
    }

    /// Whether a retry may succeed.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Object(error) => error.kind == ObjectErrorKind::Unreachable,
            _ => matches!(self, Self::Connect { .. } | Self::Lost { .. } | Self::Busy { .. }),
        }
    }
}
