//! What was predicted of transfers and what happened, kept on disk: a file of lines for each endpoint, beside
//! its profile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::profile::{ProfileError, Profiles, unix_seconds};
use crate::{Options, Report};

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
    /// Whether all that could be was left to us.
    pub ours: bool,
}

impl Fact {
    /// Of a transfer of a statement's result that has come to its end.
    pub fn of(sql: &str, options: &Options, report: &Report) -> Self {
        Self {
            at: 0,
            query: Self::fingerprint(sql),
            rows: report.rows,
            volume_bytes: report.bytes_arrow,
            bytes_wire: report.bytes_wire,
            seconds: report.seconds,
            predicted_seconds: report.plan.predicted_seconds,
            message_bytes: report.plan.message_bytes.into(),
            window_batches: report.plan.window_batches.into(),
            carrier: report.carrier.to_string(),
            ours: options.are_ours(),
        }
    }

    /// What a statement is told by: no text, but whoever knows all of it but a number can find that out. Files of
    /// facts are their owner's alone.
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
            let line = serde_json::to_string(&fact)? + "\n";
            fs::create_dir_all(self.folder())?;
            let mut file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&path)?;
            let bytes = file.metadata()?.len();
            // A line that a full disk cut short must not take this one along.
            let whole = bytes == 0 || {
                let mut last = [0];
                file.seek(SeekFrom::Start(bytes - 1))?;
                file.read_exact(&mut last)?;
                last == *b"\n"
            };
            let line = if whole { line } else { format!("\n{line}") };
            // One write, so that lines of two processes don't mix.
            file.write_all(line.as_bytes())?;
            if bytes > BYTES_MAX {
                let mut text = Vec::new();
                file.seek(SeekFrom::End(-((BYTES_MAX / 2) as i64)))?;
                file.take(BYTES_MAX).read_to_end(&mut text)?;
                // From the next line on.
                let rest = text.iter().position(|&byte| byte == b'\n').map_or(text.len(), |at| at + 1);
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
        let read = || {
            let mut text = Vec::new();
            File::open(&path)?.take(2 * BYTES_MAX).read_to_end(&mut text)?;
            Ok(text)
        };
        let read: io::Result<Vec<u8>> = read();
        match read {
            Ok(text) => Ok(parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
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

/// Facts, a line each; lines that are none are skipped.
pub(crate) fn parse(text: &[u8]) -> Vec<Fact> {
    text.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
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
        let bytes = fs::metadata(profiles.history_path(ENDPOINT)).expect("there").len();
        assert!(bytes <= BYTES_MAX + line, "{bytes}");
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
        // The next one stands by itself.
        profiles.record(ENDPOINT, fact(2)).expect("kept");
        let rows = |profiles: &Profiles| -> Vec<u64> {
            profiles.facts(ENDPOINT).expect("read").iter().map(|fact| fact.rows).collect()
        };
        assert_eq!(rows(&profiles), [1, 2]);
        fs::write(&path, [0xff, 0xfe]).expect("written");
        profiles.record(ENDPOINT, fact(3)).expect("kept");
        assert_eq!(rows(&profiles), [3]);
        // However much of it there is.
        fs::write(&path, vec![0xff; 2 * BYTES_MAX as usize]).expect("written");
        for row in 0..3 {
            profiles.record(ENDPOINT, fact(row)).expect("kept");
        }
        assert!(fs::metadata(&path).expect("there").len() <= BYTES_MAX);
        assert_eq!(rows(&profiles), [0, 1, 2]);
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).expect("there"));
        assert_eq!(mode & 0o077, 0, "{mode:o}");
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
