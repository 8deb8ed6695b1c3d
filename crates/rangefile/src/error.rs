//! Errors of range files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_schema::ArrowError;
use lightship_transport::TransportError;
use lightship_transport::proto::reception::ReceptionError;
use lightship_wire::WireError;
use lightship_wire::control::{ErrorCode, Failure};

/// The result of an operation on a range file.
pub type Result<T, E = RangeError> = std::result::Result<T, E>;

/// What went wrong with a range file. Clones share the cause: all writes of a commit fail with the same error.
#[derive(Debug, Clone, thiserror::Error)]
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
    /// Another table has the name.
    #[error("{0} is the name of a table, so no range file can have it")]
    Reserved(String),
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
    /// The node's folder is an old copy: other nodes have had keys of its bucket since.
    #[error(
        "keys from {from} to {to} are at node {node} since epoch {epoch}, but also in a bucket of epoch {own_epoch}: \
         the folder of the node that has this one is an old copy"
    )]
    OldDisk {
        /// The first key that both buckets have, as text.
        from: String,
        /// The first key after them, as text.
        to: String,
        /// The node of the other bucket.
        node: String,
        /// The other bucket's epoch.
        epoch: u64,
        /// This bucket's epoch.
        own_epoch: u64,
    },
    /// There is no memory for what nodes say of the buckets of a file.
    #[error("the file has more buckets than {} MiB have room for", bytes_max >> 20)]
    TooManyBuckets {
        /// The memory for an image of the file.
        bytes_max: usize,
    },
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
    Storage(#[source] Arc<redb::Error>),
    /// The folder of a node can't be used.
    #[error("can't use the folder {}: {error}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        error: Arc<io::Error>,
    },
    /// Another process uses the folder of a node.
    #[error("the folder {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// What is stored was written by another version of the program.
    #[error("the stored range files have version {stored}; this program reads version {known}")]
    Version {
        /// The version of what is stored.
        stored: u64,
        /// The version that this program reads.
        known: u64,
    },
    /// Rows can't be converted.
    #[error(transparent)]
    Arrow(Arc<ArrowError>),
    /// Rows can't be encoded or decoded.
    #[error(transparent)]
    Wire(Arc<WireError>),
    /// Another node failed, or refused.
    #[error(transparent)]
    Remote(#[from] Failure),
    /// A socket of this host can't be used.
    #[error(transparent)]
    Transport(Arc<TransportError>),
    /// A scan's rows can't be received.
    #[error(transparent)]
    Reception(#[from] ReceptionError),
    /// The node is shutting down.
    #[error("the node is shutting down")]
    Closed,
}

impl From<TransportError> for RangeError {
    fn from(error: TransportError) -> Self {
        Self::Transport(Arc::new(error))
    }
}

impl From<ArrowError> for RangeError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(Arc::new(error))
    }
}

impl From<WireError> for RangeError {
    fn from(error: WireError) -> Self {
        Self::Wire(Arc::new(error))
    }
}

impl RangeError {
    /// An error of the database.
    pub(crate) fn storage(error: impl Into<redb::Error>) -> Self {
        Self::Storage(Arc::new(error.into()))
    }

    /// As sent to a client or to another node.
    pub fn to_failure(&self) -> Failure {
        let code = match self {
            // Only for a request that asks for details.
            Self::Remote(failure) => return Failure { details: None, ..failure.clone() },
            Self::Definition(_) | Self::NoFile(_) | Self::FileExists(_) | Self::Reserved(_) => ErrorCode::Sql,
            Self::NullKey { .. } | Self::LongKey { .. } | Self::KeyExists { .. } | Self::Arrow(_) => {
                ErrorCode::Data
            }
            Self::Moved => ErrorCode::Moved,
            Self::Missing { .. } => ErrorCode::Peer,
            Self::Damaged(_)
            | Self::OldDisk { .. }
            | Self::Storage(_)
            | Self::Folder { .. }
            | Self::InUse(_)
            | Self::Version { .. } => ErrorCode::Source,
            Self::Wire(_) => ErrorCode::Protocol,
            Self::Transport(_) => ErrorCode::Internal,
            Self::Reception(_) | Self::TooManyBuckets { .. } => ErrorCode::Limit,
            Self::Closed => ErrorCode::ShuttingDown,
        };
        let failure = Failure::new(code, self.to_string());
        match self.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// What the operator of the node can do.
    fn hint(&self) -> Option<&'static str> {
        let of_io = |error: &io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Some("the disk is full: free space on it; if that does not help, restart the node")
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                Some("the disk is mounted read-only: mount it writable, then restart the node")
            }
            io::ErrorKind::PermissionDenied => Some("the node needs permission to read and write its folder"),
            _ => None,
        };
        match self {
            Self::Storage(error) => match error.as_ref() {
                redb::Error::Io(error) => {
                    of_io(error).or(Some("check the node's disk, then restart the node"))
                }
                // The database does nothing more after an error of the disk, other than that it is full.
                redb::Error::PreviousIo => {
                    Some("the node's disk has failed before: see the node's log, then restart the node")
                }
                redb::Error::Corrupted(_) => Some("restore the node's folder from a backup"),
                _ => None,
            },
            Self::Folder { error, .. } => of_io(error),
            Self::InUse(_) => Some("each node needs a folder of its own"),
            Self::Version { .. } => Some("use the version of the program that wrote them"),
            Self::Damaged(_) => Some("restore the node's folder from a backup"),
            Self::OldDisk { .. } => Some("stop that node, and start it with the latest copy of its folder"),
            _ => None,
        }
    }

    /// Whether a node answered that it knows no such file. A node without range files answers otherwise: it may
    /// have them again.
    pub(crate) fn is_no_file(&self) -> bool {
        matches!(self, Self::NoFile(_))
            || matches!(self, Self::Remote(failure) if failure.code == ErrorCode::Sql)
    }

    /// Whether a node answered that it has nothing of a file: it does not know the file, or has no range files.
    pub(crate) fn has_no_file(&self) -> bool {
        matches!(self, Self::NoFile(_))
            || matches!(self, Self::Remote(failure) if matches!(failure.code, ErrorCode::Sql | ErrorCode::Forbidden))
    }

    /// Whether a node has refused a request before it did anything.
    pub(crate) fn is_refusal(&self) -> bool {
        self.is_moved() || matches!(self, Self::Remote(failure) if failure.code == ErrorCode::Busy)
    }

    /// Whether the sender's image of the file was stale.
    pub(crate) fn is_moved(&self) -> bool {
        matches!(self, Self::Moved)
            || matches!(self, Self::Remote(failure) if failure.code == ErrorCode::Moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_a_refusal_are_sent() {
        let plain = RangeError::Moved.to_failure();
        assert_eq!(Failure::decode(&plain.encode()).unwrap(), plain);
        let detailed = Failure { details: Some([1, 0, 2].into()), ..plain.clone() };
        assert_eq!(Failure::decode(&detailed.encode()).unwrap(), detailed);
        assert!(detailed.encode().starts_with(&plain.encode()));
        // Too many are left out.
        let details = Some(vec![1; lightship_wire::control::DETAILS_BYTES_MAX + 1].into());
        let excessive = Failure { details, ..plain.clone() };
        assert_eq!(Failure::decode(&excessive.encode()).unwrap(), plain);
    }

    #[test]
    fn a_full_disk_has_a_hint() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        for error in [
            RangeError::storage(redb::Error::Io(full())),
            RangeError::Folder { path: "data".into(), error: Arc::new(full()) },
        ] {
            let failure = error.to_failure();
            assert_eq!(failure.code, ErrorCode::Source);
            assert!(failure.hint.is_some_and(|hint| hint.contains("disk is full")), "{error}");
        }
    }
}
