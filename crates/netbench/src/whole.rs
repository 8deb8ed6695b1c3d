//! Files that are there whole or not at all: another process may be reading.

use std::fs;
use std::path::Path;

use crate::error::NetbenchError;

/// Writes a file in the place of an earlier one, and makes its folder.
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
        // On a full disk it is in the way; where it is not there, nothing is.
        let _ = fs::remove_file(&unfinished);
        fail(path, source)
    })
}
