//! Replaces files atomically, because another process may be reading them.

use std::fs;
use std::path::Path;

use crate::error::NetbenchError;

/// Writes a file, replaces an earlier one, and creates its folder if necessary.
///
/// # Errors
/// [`NetbenchError::Io`].
pub fn write(path: &Path, text: &[u8]) -> Result<(), NetbenchError> {
    let fail = |path: &Path, source| NetbenchError::Io { path: path.to_owned(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|source| fail(folder, source))?;
    }
    let unfinished = path.with_extension(format!("{}.part", std::process::id()));
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path));
    written.map_err(|source| {
        // The unfinished file would take space on a full disk. It may not exist.
        let _ = fs::remove_file(&unfinished);
        fail(path, source)
    })
}
