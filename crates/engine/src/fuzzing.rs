//! Entry points for the fuzz targets; not part of the public interface.

/// Decodes what another node sends: requests, descriptions and reports.
pub fn between_nodes(bytes: &[u8]) {
    crate::cluster::fuzz(bytes);
}
