//! Replaces files atomically, because another process may be reading them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
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
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // As readable as files usually are; the umask applies.
    let permissions = fs::Permissions::from_mode(0o666);
    let unfinished = tempfile::Builder::new().permissions(permissions).tempfile_in(folder);
    let written = unfinished.and_then(|mut unfinished| {
        unfinished.write_all(text)?;
        unfinished.persist(path).map_err(|error| error.error)
    });
    written.map(drop).map_err(|source| fail(path, source))
}
