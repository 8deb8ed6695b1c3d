//! What the fuzz targets reach of this crate; no part of its interface.

use crate::wire::{Header, Reading, Tally, parse_answer};

/// Bytes that either end may get: headers that are accepted are written as they were read.
pub fn wire(bytes: &[u8]) {
    if let Some(bytes) = bytes.first_chunk()
        && let Ok(header) = Header::parse(bytes)
    {
        assert_eq!(&header.to_bytes(), bytes);
    }
    if let Some(bytes) = bytes.first_chunk() {
        let _ = parse_answer(bytes);
    }
    if let Some(bytes) = bytes.first_chunk() {
        Tally::parse(bytes);
    }
    if let Some(bytes) = bytes.first_chunk() {
        Reading::parse(bytes);
    }
}

/// What is kept of a host, as a file.
pub fn outcome(bytes: &[u8]) {
    let _ = serde_json::from_slice::<crate::Outcome>(bytes);
}
