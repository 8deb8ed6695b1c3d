//! The folders in which Lightship keeps what it has measured, and files that are replaced as a whole.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

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

/// Writes a file, or replaces it atomically, because another process may be reading it. Creates its folder if necessary.
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
