//! Errors of range files.

use arrow_schema::ArrowError;
use lightship_wire::WireError;
use lightship_wire::control::{ErrorCode, Failure};

/// The result of an operation on a range file.
pub type Result<T, E = RangeError> = std::result::Result<T, E>;

/// What went wrong with a range file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The definition of a file, or a request, does not make sense.
    #[error("{0}")]
    Definition(String),
    /// There is no file of this name.
    #[error("there is no range file {0}")]
    NoFile(String),
    /// A file of this name exists already.
    #[error("range file {0} exists already")]
    FileExists(String),
    /// A key column of a row is NULL.
    #[error("row {row}: key column {column} is NULL")]
    NullKey {
        /// The column.
        column: String,
        /// The row, counted from 0.
        row: u64,
    },
    /// A key is too long.
    #[error("row {row}: the key has {bytes} bytes, at most {} are allowed", crate::key::KEY_BYTES_MAX)]
    LongKey {
        /// The row, counted from 0.
        row: u64,
        /// Its bytes.
        bytes: usize,
    },
    /// An inserted row has the key of another row.
    #[error("key {key} exists already")]
    KeyExists {
        /// The key, as text.
        key: String,
    },
    /// The bucket no longer has this interval. The sender's image of the file is stale.
    #[error("the bucket does not have these keys")]
    Moved,
    /// A part of the file did not answer in time.
    #[error("no bucket answered for keys from {from} to {to}: {why}")]
    Missing {
        /// The first key of the part, as text.
        from: String,
        /// The first key after it, as text.
        to: String,
        /// The last error, or what was waited for.
        why: String,
    },
    /// Stored data is not what was written.
    #[error("stored data is damaged: {0}")]
    Damaged(String),
    /// The storage failed.
    #[error("the storage failed: {0}")]
    Storage(String),
    /// Rows can't be converted.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// Rows can't be encoded or decoded.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Another node failed, or refused.
    #[error(transparent)]
    Remote(#[from] Failure),
    /// The node is shutting down.
    #[error("the node is shutting down")]
    Closed,
}

impl RangeError {
    /// As sent to a client or to another node.
    pub fn to_failure(&self) -> Failure {
        let code = match self {
            Self::Remote(failure) => return failure.clone(),
            Self::Definition(_) | Self::NoFile(_) | Self::FileExists(_) => ErrorCode::Sql,
            Self::NullKey { .. } | Self::LongKey { .. } | Self::KeyExists { .. } | Self::Arrow(_) => {
                ErrorCode::Data
            }
            Self::Moved => ErrorCode::Moved,
            Self::Missing { .. } => ErrorCode::Peer,
            Self::Damaged(_) | Self::Storage(_) => ErrorCode::Source,
            Self::Wire(_) => ErrorCode::Protocol,
            Self::Closed => ErrorCode::ShuttingDown,
        };
        Failure::new(code, self.to_string())
    }

    /// Whether a node answered that it has nothing of a file: it does not know the file, or has no range files.
    pub(crate) fn has_no_file(&self) -> bool {
        matches!(self, Self::NoFile(_))
            || matches!(self, Self::Remote(failure) if matches!(failure.code, ErrorCode::Sql | ErrorCode::Forbidden))
    }

    /// Whether the sender's image of the file was stale.
    pub(crate) fn is_moved(&self) -> bool {
        matches!(self, Self::Moved)
            || matches!(self, Self::Remote(failure) if failure.code == ErrorCode::Moved)
    }
}
