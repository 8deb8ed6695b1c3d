//! Entry points for the fuzz targets; not part of the public interface.

use crate::wire::{Reading, ReceivedCount, RequestHeader, parse_answer};

/// Parses bytes that either end may receive. An accepted header must serialise to the same bytes.
pub fn wire(bytes: &[u8]) {
    if let Some(bytes) = bytes.first_chunk()
        && let Ok(header) = RequestHeader::parse(bytes)
    {
        assert_eq!(&header.to_bytes(), bytes);
    }
    if let Some(bytes) = bytes.first_chunk() {
        let _ = parse_answer(bytes);
    }
    if let Some(bytes) = bytes.first_chunk() {
        ReceivedCount::parse(bytes);
    }
    if let Some(bytes) = bytes.first_chunk() {
        Reading::parse(bytes);
    }
}

/// Parses the outcome file of a host.
pub fn outcome(bytes: &[u8]) {
    let _ = serde_json::from_slice::<crate::SavedPlateau>(bytes);
}
