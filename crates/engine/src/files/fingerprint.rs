//! Fingerprints, which tell versions of a table's files apart.

use std::fmt::Write as _;
use std::path::Path;
use std::time::SystemTime;

use lightship_sources::file_options::FileOptions;

use super::pattern::Pattern;
use super::{DEPTH_MAX, look};
use crate::error::{EngineError, Result};

/// Files up to this size are also compared by content: many of them have the same size and time.
const SMALL_BYTES: u64 = 64 << 10;

/// Tells versions of a file or folder apart: a hash of the names, sizes and times of its files, and
/// of the contents of small ones, and how they are read. Its own name does not matter. Never 0.
///
/// # Errors
/// When the file or folder can't be read.
pub(crate) fn fingerprint(location: &Path) -> Result<u64> {
    let fail = |e: std::io::Error| EngineError::File(format!("{}: {e}", location.display()));
    let (path, options) = FileOptions::split(location)?;
    let (folder, found) = match Pattern::of(&path) {
        Some(pattern) => (pattern.folder.clone(), pattern.files()?),
        None => {
            let mut found = Vec::new();
            look(&path, DEPTH_MAX, &mut |file| found.push(file)).map_err(fail)?;
            (path, found)
        }
    };
    let files = found.iter().map(|file| state(&folder, file)).collect::<std::io::Result<Vec<_>>>();
    let mut files = files.map_err(fail)?;
    files.sort();
    let mut text = String::new();
    if options != FileOptions::default() {
        let _ = writeln!(text, "{options:?}");
    }
    for (name, bytes, changed, inside) in files {
        let _ = writeln!(text, "{name}\0{bytes}\0{changed}\0{inside}");
    }
    Ok(hash(text.as_bytes()).max(1))
}

/// FNV-1a: the same on all nodes, regardless of their software versions.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Name relative to `folder`, size in bytes, time in nanoseconds, and a hash of the contents if the
/// file is small.
fn state(folder: &Path, file: &Path) -> std::io::Result<(String, u64, i128, u64)> {
    let metadata = file.metadata()?;
    let name = file.strip_prefix(folder).unwrap_or(file).display().to_string();
    let changed = metadata.modified()?.duration_since(SystemTime::UNIX_EPOCH);
    let changed = changed.map_or(-1, |since| since.as_nanos() as i128);
    let inside = if metadata.len() <= SMALL_BYTES { hash(&std::fs::read(file)?) } else { 0 };
    Ok((name, metadata.len(), changed, inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_files_have_different_fingerprints() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, text) in [("a/t.csv", "1"), ("b/t.csv", "2"), ("c/t.csv", "1")] {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), text).unwrap();
            let file = std::fs::File::options().append(true).open(path(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        let of = |name: &str| fingerprint(&path(name)).unwrap();
        assert_ne!(of("a/t.csv"), of("b/t.csv"), "other bytes");
        assert_eq!(of("a/t.csv"), of("c/t.csv"), "the same wherever it is");
        assert_eq!(of("a"), of("c"), "folders too");
        let before = of("a/t.csv");
        std::fs::write(path("a/t.csv"), "12").unwrap();
        assert_ne!(of("a/t.csv"), before, "another size");
        std::fs::write(path("c/u.csv"), "1").unwrap();
        assert_ne!(of("c"), before, "another file");
        assert!(fingerprint(&path("none")).is_err());
    }
}
