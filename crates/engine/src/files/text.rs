//! Shared limits of the text formats.

/// Bytes read at once.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// Maximum length of a record. Without it, a record that never ends would take the rest of the file
/// into memory.
pub(super) const RECORD_BYTES_MAX: u64 = 256 << 20;

/// A batch ends when it has this much text.
pub(super) const BATCH_BYTES: u64 = 16 << 20;
