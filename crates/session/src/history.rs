//! What was predicted of transfers and what happened, kept on disk: a file of lines for each endpoint, beside
//! its profile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::Report;
use crate::profile::{ProfileError, Profiles, unix_seconds};

/// A file that is larger is cut to its latest half.
const BYTES_MAX: u64 = 256 << 10;

/// A transfer that came to its end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fact {
    /// Seconds since 1970.
    pub at: u64,
    /// Tells one statement from another; its text is not kept.
    pub query: String,
    /// Rows that arrived.
    pub rows: u64,
    /// Their bytes as Arrow buffers.
    pub volume_bytes: u64,
    /// Bytes on the wire.
    pub bytes_wire: u64,
    /// What it took.
    pub seconds: f64,
    /// What it was to take, where that was predicted.
    pub predicted_seconds: Option<f64>,
    /// M at the beginning.
    pub message_bytes: u64,
    /// W at the beginning.
    pub window_batches: u64,
    /// What carried the rows.
    pub carrier: String,
}

impl Fact {
    /// Of a transfer of a statement's result that has come to its end.
    pub fn of(sql: &str, report: &Report) -> Self {
        Self {
            at: 0,
            query: Self::fingerprint(sql),
            rows: report.rows,
            volume_bytes: report.bytes_arrow,
            bytes_wire: report.bytes_wire,
            seconds: report.seconds,
            predicted_seconds: report.predicted_seconds,
            message_bytes: report.plan.message_bytes.into(),
            window_batches: report.plan.window_batches.into(),
            carrier: report.carrier.to_string(),
        }
    }

    /// What a statement is told by.
    pub fn fingerprint(sql: &str) -> String {
        format!("{:08x}-{}", lightship_wire::frame::crc32c(sql.as_bytes()), sql.len())
    }

    /// The part by which the prediction was wrong of what it took; above zero where it took longer. Nothing
    /// where there was none.
    pub fn error(&self) -> Option<f64> {
        let error = (self.seconds - self.predicted_seconds?) / self.seconds;
        error.is_finite().then_some(error)
    }
}

impl Profiles {
    /// Where the facts of an endpoint are.
    pub fn history_path(&self, endpoint: &str) -> PathBuf {
        self.path(endpoint).with_extension("history")
    }

    /// Keeps a fact, now. A file that has grown large loses its oldest facts, and what another process
    /// adds in that moment.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn record(&self, endpoint: &str, fact: Fact) -> Result<(), ProfileError> {
        let path = self.history_path(endpoint);
        let written = || -> io::Result<()> {
            let fact = Fact { at: unix_seconds(SystemTime::now()), ..fact };
            // One write, so that lines of two processes don't mix.
            let line = serde_json::to_string(&fact)? + "\n";
            fs::create_dir_all(self.folder())?;
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            file.write_all(line.as_bytes())?;
            if file.metadata()?.len() > BYTES_MAX {
                let text = fs::read_to_string(&path)?;
                let half = text.len() / 2;
                // From the next line on; what is no text from any byte is no history.
                let rest = text.as_bytes()[half..]
                    .iter()
                    .position(|&byte| byte == b'\n')
                    .map_or(text.len(), |at| half + at + 1);
                self.replace(&path, &text[rest..])?;
            }
            Ok(())
        };
        written().map_err(|source| ProfileError::Io { path: path.clone(), source })
    }

    /// The facts of an endpoint, the latest last. Lines that are none, as a full disk leaves, are skipped.
    ///
    /// # Errors
    /// [`ProfileError::Io`] when there is a file that can't be read.
    pub fn facts(&self, endpoint: &str) -> Result<Vec<Fact>, ProfileError> {
        let path = self.history_path(endpoint);
        match File::open(&path).and_then(|file| io::read_to_string(io::Read::take(file, 2 * BYTES_MAX))) {
            Ok(text) => Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
                Ok(Vec::new())
            }
            Err(source) => Err(ProfileError::Io { path, source }),
        }
    }

    /// Endpoints that have facts.
    ///
    /// # Errors
    /// [`ProfileError::Io`] when the folder can't be read.
    pub fn endpoints(&self) -> Result<Vec<String>, ProfileError> {
        let io = |source| ProfileError::Io { path: self.folder().to_owned(), source };
        let entries = match fs::read_dir(self.folder()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let path = entry.map_err(io)?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            if path.extension().is_some_and(|extension| extension == "history") {
                names.extend(stem.and_then(Self::endpoint_of));
            }
        }
        names.sort();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: &str = "lightship://db.example:4270";

    fn fact(rows: u64) -> Fact {
        Fact { rows, query: Fact::fingerprint("select 1"), seconds: 2.0, ..Fact::default() }
    }

    #[test]
    fn facts_are_kept_in_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let profiles = Profiles::at(folder.path().join("not/there"));
        assert_eq!(profiles.facts(ENDPOINT).expect("none"), []);
        assert_eq!(profiles.endpoints().expect("none"), Vec::<String>::new());
        for rows in 0..3 {
            profiles.record(ENDPOINT, fact(rows)).expect("kept");
        }
        let facts = profiles.facts(ENDPOINT).expect("read");
        assert_eq!(facts.iter().map(|fact| fact.rows).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(facts.iter().all(|fact| fact.at > 1_500_000_000));
        profiles.record("lightship+unix:/run/ä b", fact(1)).expect("kept");
        assert_eq!(profiles.endpoints().expect("read"), ["lightship+unix:/run/ä b", ENDPOINT]);
    }

    #[test]
    fn a_history_has_a_limit_and_loses_its_oldest() {
        let folder = tempfile::tempdir().expect("a folder");
        let profiles = Profiles::at(folder.path());
        let line = serde_json::to_string(&fact(0)).expect("json").len() as u64;
        let many = BYTES_MAX / line + 100;
        for rows in 0..many {
            profiles.record(ENDPOINT, fact(rows)).expect("kept");
        }
        let facts = profiles.facts(ENDPOINT).expect("read");
        assert!(fs::metadata(profiles.history_path(ENDPOINT)).expect("there").len() <= BYTES_MAX);
        let rows: Vec<u64> = facts.iter().map(|fact| fact.rows).collect();
        assert_eq!(rows, ((many - rows.len() as u64)..many).collect::<Vec<_>>());
        assert!(rows.len() > 500, "{}", rows.len());
    }

    #[test]
    fn lines_that_are_no_facts_are_skipped() {
        let folder = tempfile::tempdir().expect("a folder");
        let profiles = Profiles::at(folder.path());
        profiles.record(ENDPOINT, fact(1)).expect("kept");
        let path = profiles.history_path(ENDPOINT);
        let mut text = fs::read_to_string(&path).expect("there");
        text.push_str("{\"rows\": 7, \"sec");
        fs::write(&path, &text).expect("written");
        assert_eq!(profiles.facts(ENDPOINT).expect("read").len(), 1);
        fs::write(&path, [0xff, 0xfe]).expect("written");
        assert_eq!(profiles.facts(ENDPOINT).expect("read"), []);
        fs::remove_file(&path).and_then(|()| fs::create_dir(&path)).expect("a folder in its place");
        assert!(profiles.record(ENDPOINT, fact(2)).is_err());
    }

    #[test]
    fn errors_of_predictions() {
        let of = |predicted_seconds, seconds| Fact { predicted_seconds, seconds, ..Fact::default() }.error();
        assert_eq!(of(Some(1.0), 2.0), Some(0.5));
        assert_eq!(of(Some(3.0), 2.0), Some(-0.5));
        assert_eq!((of(None, 2.0), of(Some(1.0), 0.0)), (None, None));
    }
}
