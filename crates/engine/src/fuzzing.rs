//! What the fuzz targets reach of this crate; no part of its interface.

/// What another node asks for, describes itself by, or has measured.
pub fn between_nodes(bytes: &[u8]) {
    crate::cluster::fuzz(bytes);
}
