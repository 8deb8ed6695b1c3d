//! Entry points of the fuzz targets; not part of the crate's interface.

use bytes::Bytes;

/// Decodes a frame's header. An accepted header must encode to the same bytes.
pub fn frame(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk() else { return };
    if let Ok(header) = crate::frame::RelayHeader::decode(bytes) {
        assert_eq!(&header.encode(), bytes);
    }
}

/// Receives messages of circuits from another node, while this node has circuits of its own.
pub fn circuits(messages: &[Vec<u8>]) {
    crate::circuit::fuzz(messages.iter().map(|message| Bytes::copy_from_slice(message)));
}
