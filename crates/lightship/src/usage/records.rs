//! Runs on disk: the last one of each label, in a file of its own.

use std::path::{Path, PathBuf};
use std::{fs, io};

use lightship_session::{replace_file, state_folder};
use lightship_usage::{Footprint, Verdict};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Environment variable that overrides the folder of the records.
const FOLDER_VARIABLE: &str = "LIGHTSHIP_USAGE";
/// The longest label in bytes. File systems limit the length of a file's name, which is the label and an extension.
const LABEL_BYTES_MAX: usize = 64;

/// A run of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub label: String,
    /// The command with its arguments.
    pub command: Vec<String>,
    /// When it began, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// Its exit code, as shells report it: 128 plus the number of the signal if a signal ended it.
    pub exit_code: i32,
    /// What it used, and where its time went.
    pub footprint: Footprint,
    /// What limited it.
    pub verdict: Verdict,
}

/// The folder of records.
#[derive(Debug, Clone)]
pub struct Records {
    folder: PathBuf,
}

impl Records {
    /// The current user's records, in `LIGHTSHIP_USAGE`, or else in `lightship/usage` below `XDG_STATE_HOME` or
    /// `~/.local/state`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if none of these is set.
    pub fn of_user() -> Result<Self> {
        state_folder("usage", Some(FOLDER_VARIABLE)).map(Self::at).ok_or_else(|| {
            Error::new(
                ErrorKind::Usage,
                "no folder for records: none of LIGHTSHIP_USAGE, XDG_STATE_HOME and HOME is set",
            )
        })
    }

    /// Records in `folder`, which is created when the first one is stored.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Checks a label: 1 to 64 ASCII letters, digits, dots, hyphens and underscores, of which the first is not a dot.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub fn check_label(label: &str) -> Result<()> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_valid = !label.is_empty() && label.len() <= LABEL_BYTES_MAX && !label.starts_with('.');
        if is_valid && label.chars().all(is_plain) {
            return Ok(());
        }
        let message = format!("the label `{}` is not valid", label.escape_debug());
        Err(Error::new(ErrorKind::Usage, message).hint(format!(
            "expected at most {LABEL_BYTES_MAX} letters, digits, dots, hyphens and underscores; the first must not be a dot"
        )))
    }

    fn path(&self, label: &str) -> PathBuf {
        self.folder.join(format!("{label}.json"))
    }

    /// Stores a record, replaces an earlier one with the same label, and returns the path.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the label is not valid, and [`ErrorKind::Source`] if the file can't be written.
    pub fn keep(&self, record: &Record) -> Result<PathBuf> {
        Self::check_label(&record.label)?;
        let path = self.path(&record.label);
        let text = serde_json::to_string_pretty(record).map_err(|e| failed("write", &path, &e.into()))?;
        replace_file(&path, (text + "\n").as_bytes()).map_err(|error| failed("write", &path, &error))?;
        Ok(path)
    }

    /// The last run with a label.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if no record has this label, [`ErrorKind::Source`] if the file can't be read, and
    /// [`ErrorKind::Data`] if it is damaged.
    pub fn find(&self, label: &str) -> Result<Record> {
        Self::check_label(label)?;
        let path = self.path(label);
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let known: Vec<String> = self.labels().unwrap_or_default();
                let hint = match known.as_slice() {
                    [] => "there are no records yet; make one with `lightship usage run --label NAME -- COMMAND`".into(),
                    known => format!("there are records of {}", known.join(", ")),
                };
                Error::new(ErrorKind::Usage, format!("there is no record of {label}")).hint(hint)
            }
            _ => failed("read", &path, &error),
        })?;
        serde_json::from_str(&text).map_err(|error| {
            Error::new(ErrorKind::Data, format!("{} is damaged: {error}", path.display()))
                .hint("run the command again, which replaces the record")
        })
    }

    /// The labels that have a record, in order.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn labels(&self) -> Result<Vec<String>> {
        let failed = |error| failed("read", &self.folder, &error);
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut labels = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let label = name.to_str().and_then(|name| name.strip_suffix(".json"));
            labels.extend(label.filter(|label| Self::check_label(label).is_ok()).map(str::to_owned));
        }
        labels.sort();
        Ok(labels)
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Source, format!("can't {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_are_not_plain_file_names_are_refused() {
        for label in ["", ".", "..", ".hidden", "a/b", "a b", "ü", &"a".repeat(65), "a\0"] {
            assert!(Records::check_label(label).is_err(), "{label:?}");
        }
        for label in ["q1", "a.b-c_D9", &"a".repeat(64)] {
            Records::check_label(label).unwrap();
        }
    }

    #[test]
    fn the_error_of_a_missing_record_lists_the_existing_ones() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::at(folder.path().join("not/there/yet"));
        let error = records.find("q1").unwrap_err();
        assert!(error.hint.unwrap().contains("no records yet"));
        let records = Records::at(folder.path());
        fs::write(folder.path().join("q2.json"), "{").unwrap();
        assert!(records.find("q1").unwrap_err().hint.unwrap().contains("q2"));
        assert_eq!(records.find("q2").unwrap_err().kind, ErrorKind::Data);
    }
}
