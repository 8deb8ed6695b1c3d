//! What the fuzz targets reach of this crate; no part of its interface.

use bytes::Bytes;

/// A frame's header: any is refused or written as it was read.
pub fn frame(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk() else { return };
    if let Ok(header) = crate::frame::Header::decode(bytes) {
        assert_eq!(&header.encode(), bytes);
    }
}

/// Messages of circuits from another node, among own ones.
pub fn circuits(messages: &[Vec<u8>]) {
    crate::circuit::fuzz(messages.iter().map(|message| Bytes::copy_from_slice(message)));
}
