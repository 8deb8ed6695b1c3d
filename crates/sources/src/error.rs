//! What can go wrong between Lightship and a database or a file.

use arrow_schema::ArrowError;

/// Result of this crate.
pub type Result<T, E = SourceError> = std::result::Result<T, E>;

/// A failure at a source or a destination. The text is for a person; variants
/// are for code.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// What was typed is not a location.
    #[error("`{given}` is not a location: {reason}")]
    Location {
        /// The text given.
        given: String,
        /// Why it is none.
        reason: String,
    },
    /// No connection could be made.
    #[error("can't reach {target}: {reason}")]
    Connect {
        /// Host, port or path, never a password.
        target: String,
        /// Why.
        reason: String,
        /// The driver's error.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The server answered, and refused the login or the database.
    #[error("{target} refused the login: {reason}")]
    Login {
        /// Host, port, user and database, never a password.
        target: String,
        /// The server's words.
        reason: String,
    },
    /// The statement was refused.
    #[error("{reason}{}", .position.map(|p| format!(" (at character {p})")).unwrap_or_default())]
    Sql {
        /// The server's words.
        reason: String,
        /// 1-based character in the statement, where the server says.
        position: Option<u32>,
        /// SQLSTATE or the server's number, where there is one.
        code: Option<String>,
        /// The server's hint or detail, where there is one.
        hint: Option<String>,
    },
    /// There is no table of that name.
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
        /// What the driver or the server said.
        reason: String,
    },
    /// The process has as many connections to this server as it may have.
    #[error("all {connections} connections to {target} are in use, and none became free within {} s", .waited.as_secs_f32())]
    Busy {
        /// Which server.
        target: String,
        /// How many connections it may have.
        connections: usize,
        /// How long was waited for one.
        waited: std::time::Duration,
    },
    /// A value can't be carried in the column's Arrow type.
    #[error("column `{column}`: {reason}")]
    Value {
        /// Which column.
        column: String,
        /// What is wrong with the value, and what would take it.
        reason: String,
    },
    /// A value can't be written as it is.
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
    /// There is no room for a row.
    #[error("row {row}{} has {bytes} bytes, and there is room for rows of {bytes_max}", .part.as_deref().unwrap_or_default())]
    RowTooLarge {
        /// Which row, from 1.
        row: u64,
        /// Of which part of the table, in words, where it is read in parts.
        part: Option<String>,
        /// What it has, as the source sends it.
        bytes: u64,
        /// What it may have.
        bytes_max: u64,
    },
    /// Two columns of a result have one name, where they are told apart by name.
    #[error("columns {first} and {second} of the result are both named `{name}`")]
    DuplicateColumn {
        /// The name.
        name: String,
        /// Number of one column, from 1.
        first: usize,
        /// Number of the other.
        second: usize,
    },
    /// What the server sent does not follow its own format.
    #[error("{target} sent something that can't be read: {reason}")]
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
        /// Which file (`-` is standard output).
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Arrow refused.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// The Parquet writer refused.
    #[error(transparent)]
    Parquet(#[from] parquet::errors::ParquetError),
}

impl SourceError {
    /// The system's error behind this one, if any: a full disk or a broken pipe
    /// can lie below a writer's own error.
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

    /// The error of a batch as that of a result which has `rows` rows before it.
    pub(crate) fn after_rows(mut self, rows: u64) -> Self {
        if let Self::Unfit { row, .. } = &mut self {
            *row += rows;
        }
        self
    }

    /// Whether trying the same again may succeed.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Lost { .. } | Self::Busy { .. })
    }
}
