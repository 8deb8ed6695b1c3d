//! Errors of encoding and decoding.

use arrow_schema::ArrowError;

/// Result of this crate.
pub type Result<T, E = WireError> = std::result::Result<T, E>;

/// An error of decoding bytes or encoding rows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end in the middle of a value.
    #[error("{what} is cut short: {needed} bytes needed, {available} available")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// The first bytes are not Lightship's.
    #[error("the peer does not speak Lightship's protocol (it began with {found:02x?})")]
    Magic {
        /// The bytes found instead of the magic number.
        found: [u8; 4],
    },
    /// A version that this reader does not support.
    #[error("the peer speaks version {found} of the protocol; this side knows version {known}")]
    Version {
        /// Version in the frame.
        found: u8,
        /// Version of this reader.
        known: u8,
    },
    /// A checksum does not match: the bytes were changed on the way.
    #[error("the checksum of the {what} does not match: {found:08x} sent, {computed:08x} received")]
    Checksum {
        /// Header or payload.
        what: &'static str,
        /// The sender's.
        found: u32,
        /// The checksum of the received bytes.
        computed: u32,
    },
    /// Something is larger than the reader allows. Nothing was allocated for it.
    #[error("{what} of {bytes} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// What it is.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The reader's limit.
        limit: u64,
    },
    /// One row alone does not fit a message.
    #[error(
        "row {row} alone needs a message of {needed_bytes} bytes, and the consumer takes at most {limit_bytes}"
    )]
    RowTooLarge {
        /// 0-based row in its batch.
        row: usize,
        /// The message it takes.
        needed_bytes: u64,
        /// The largest message allowed.
        limit_bytes: u64,
    },
    /// Bytes that violate the format.
    #[error("{what}: {reason}")]
    Malformed {
        /// What was being read.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Arrow refused the values.
    #[error("the values of a message are not valid: {0}")]
    Arrow(#[from] ArrowError),
}

pub(crate) fn malformed(what: &'static str, reason: impl Into<String>) -> WireError {
    WireError::Malformed { what, reason: reason.into() }
}
