//! The folders in which Lightship keeps what it has measured, and files that are replaced as a whole.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of a JSON file that is read.
const JSON_BYTES_MAX: u64 = 64 << 20;

/// A file of the user's state could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// No folder is configured.
    #[error("no folder for {what}: none of {variable}, XDG_STATE_HOME and HOME is set")]
    NoFolder {
        /// What should be stored.
        what: &'static str,
        /// The environment variable that gives the folder.
        variable: &'static str,
    },
    /// A file or folder could not be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
    /// The file is damaged, too large, or of another version of the format.
    #[error("{} is damaged: {why}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// The current user's folder for `name`: the value of the environment variable `variable`, or else `lightship/NAME`
/// below `XDG_STATE_HOME` or `~/.local/state`. `None` if none of the variables is set. The folder may not exist yet.
pub fn state_folder(name: &str, variable: Option<&str>) -> Option<PathBuf> {
    folder_by(name, variable, |variable| std::env::var_os(variable))
}

fn folder_by(
    name: &str,
    variable: Option<&str>,
    value: impl Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    let set = |variable: &str| value(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = || set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    variable.and_then(set).or_else(|| Some(state()?.join("lightship").join(name)))
}

/// Writes a file, or replaces it atomically, because another process may be reading it. Creates its folder if
/// necessary.
///
/// # Errors
/// If the folder can't be created, or the file can't be written. An earlier file is then unchanged.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(".".as_ref());
    fs::create_dir_all(folder)?;
    let mut unfinished = tempfile::NamedTempFile::new_in(folder)?;
    unfinished.write_all(bytes)?;
    unfinished.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// The name of this host, as the system knows it.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A file name that stands for any text: ASCII letters, digits, dots and hyphens as they are, and the codes of other
/// characters. Different texts have different names.
pub fn encoded_name(text: &str) -> String {
    let letter = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => c.to_string(),
        c => format!("_{:x}_", u32::from(c)),
    };
    text.chars().map(letter).collect()
}

/// Writes a value as a JSON file, and replaces an earlier one atomically. Creates the folder if necessary.
///
/// # Errors
/// [`StateError::Io`].
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), StateError> {
    let io = |source| StateError::Io { path: path.to_owned(), source };
    let text = serde_json::to_string_pretty(value).map_err(|error| io(error.into()))?;
    replace_file(path, (text + "\n").as_bytes()).map_err(io)
}

/// Reads a value from a JSON file of at most 64 MiB; `None` if there is no such file.
///
/// # Errors
/// [`StateError::Io`] if the file can't be read, and [`StateError::Damaged`] if its contents are not such a value.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    let damaged = |why: String| StateError::Damaged { path: path.to_owned(), why };
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(JSON_BYTES_MAX + 1).read_to_end(&mut text));
    match read {
        Ok(bytes) if bytes as u64 > JSON_BYTES_MAX => {
            Err(damaged(format!("it has more than {JSON_BYTES_MAX} bytes")))
        }
        Ok(_) => serde_json::from_slice(&text).map(Some).map_err(|error| damaged(error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StateError::Io { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_gives_the_folder() {
        let folder = |set: &[(&str, &str)]| {
            let value =
                |name: &str| set.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into());
            folder_by("usage", Some("OWN"), value)
        };
        let all = [("OWN", "/own"), ("XDG_STATE_HOME", "/state"), ("HOME", "/home/a")];
        assert_eq!(folder(&all), Some("/own".into()));
        assert_eq!(folder(&all[1..]), Some("/state/lightship/usage".into()));
        assert_eq!(folder(&all[2..]), Some("/home/a/.local/state/lightship/usage".into()));
        assert_eq!(folder(&[("OWN", ""), ("HOME", "")]), None);
        assert_eq!(folder_by("a", None, |_| Some("/x".into())), Some("/x/lightship/a".into()));
    }

    #[test]
    fn values_survive_their_file_and_damaged_files_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a").join(encoded_name("../ä_b") + ".json");
        assert_eq!(path.file_name().expect("a name"), ".._2f__e4__5f_b.json");
        assert_eq!(read_json::<Vec<u32>>(&path).expect("none"), None);
        write_json(&path, &vec![1, 2]).expect("written");
        assert_eq!(read_json::<Vec<u32>>(&path).expect("read"), Some(vec![1, 2]));
        for text in [&b"[1, "[..], b"[-1]", b"", b"\xff"] {
            fs::write(&path, text).expect("written");
            assert!(matches!(read_json::<Vec<u32>>(&path), Err(StateError::Damaged { .. })));
        }
        File::create(&path).and_then(|file| file.set_len(JSON_BYTES_MAX + 1)).expect("a large file");
        let error = read_json::<Vec<u32>>(&path).expect_err("too large").to_string();
        assert!(error.contains("more than"), "{error}");
        fs::remove_file(&path).and_then(|()| fs::create_dir(&path)).expect("a folder in its place");
        assert!(matches!(read_json::<Vec<u32>>(&path), Err(StateError::Io { .. })));
        assert!(matches!(write_json(&path, &1), Err(StateError::Io { .. })));
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("not/there/yet/file");
        replace_file(&path, b"one").expect("written");
        replace_file(&path, b"two").expect("replaced");
        assert_eq!(fs::read(&path).expect("there"), b"two");
        let taken = folder.path().join("folder");
        fs::create_dir_all(taken.join("in it")).expect("a folder");
        assert!(replace_file(&taken, b"three").is_err());
        assert!(replace_file(&path.join("below"), b"three").is_err());
        assert_eq!(fs::read(&path).expect("there"), b"two");
        // No unfinished file is left.
        assert_eq!(fs::read_dir(path.parent().expect("a folder")).expect("there").count(), 1);
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 2);
    }
}
