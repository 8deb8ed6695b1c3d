//! A history of predicted and actual transfer times, stored on disk beside the profile: for each
//! endpoint a file with one line per transfer.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::profile::{ProfileError, Profiles, unix_seconds};
use crate::state::replace_file;
use crate::{Options, Report};

/// A larger file is cut to its latest `BYTES_MAX / 2` bytes.
const BYTES_MAX: u64 = 256 << 10;

/// The record of a completed transfer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferRecord {
    /// When it ended, in seconds since 1970.
    pub at: u64,
    /// Fingerprint of the statement. The text is not stored.
    pub query: String,
    /// Rows that arrived.
    pub rows: u64,
    /// Bytes of the rows as Arrow buffers.
    pub volume_bytes: u64,
    /// Bytes on the wire.
    pub bytes_wire: u64,
    /// Duration of the transfer.
    pub seconds: f64,
    /// The predicted duration, if there was a prediction.
    pub predicted_seconds: Option<f64>,
    /// M at the beginning.
    pub message_bytes: u64,
    /// W at the beginning.
    pub window_batches: u64,
    /// The carrier of the rows.
    pub carrier: String,
    /// Whether all tunable settings were left at `auto`: [`Options::are_ours`].
    pub ours: bool,
}

impl TransferRecord {
    /// The record of a completed transfer of a statement's result.
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

    /// Identifies a statement without storing its text. It is not secure: someone who knows all of the
    /// text except a number can find the number. History files are therefore readable only by their
    /// owner.
    pub fn fingerprint(sql: &str) -> String {
        format!("{:08x}-{}", lightship_wire::frame::crc32c(sql.as_bytes()), sql.len())
    }

    /// The error of the prediction as a fraction of the actual time; positive if the transfer took
    /// longer than predicted. `None` without a prediction.
    pub fn error(&self) -> Option<f64> {
        let error = (self.seconds - self.predicted_seconds?) / self.seconds;
        error.is_finite().then_some(error)
    }
}

impl Profiles {
    /// The history file of an endpoint.
    pub fn history_path(&self, endpoint: &str) -> PathBuf {
        self.path(endpoint).with_extension("history")
    }

    /// Appends a record with the current time. A file above the size limit loses its oldest records;
    /// lines that another process appends during the cut are lost too.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn record(&self, endpoint: &str, fact: TransferRecord) -> Result<(), ProfileError> {
        let path = self.history_path(endpoint);
        let written = || -> io::Result<()> {
            let fact = TransferRecord { at: unix_seconds(SystemTime::now()), ..fact };
            let line = serde_json::to_string(&fact)? + "\n";
            fs::create_dir_all(self.folder())?;
            let mut file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&path)?;
            let bytes = file.metadata()?.len();
            // An earlier line may be incomplete after a full disk. Start on a new line.
            let whole = bytes == 0 || {
                let mut last = [0];
                file.seek(SeekFrom::Start(bytes - 1))?;
                file.read_exact(&mut last)?;
                last == *b"\n"
            };
            let line = if whole { line } else { format!("\n{line}") };
            // Use a single write, so that lines of two processes don't mix.
            file.write_all(line.as_bytes())?;
            if bytes > BYTES_MAX {
                let mut text = Vec::new();
                file.seek(SeekFrom::End(-((BYTES_MAX / 2) as i64)))?;
                file.take(BYTES_MAX).read_to_end(&mut text)?;
                // Drop the incomplete first line.
                let rest = text.iter().position(|&byte| byte == b'\n').map_or(text.len(), |at| at + 1);
                replace_file(&path, &text[rest..])?;
            }
            Ok(())
        };
        written().map_err(|source| ProfileError::Io { path: path.clone(), source })
    }

    /// The records of an endpoint, oldest first. Invalid lines, for example incomplete ones after a
    /// full disk, are skipped.
    ///
    /// # Errors
    /// [`ProfileError::Io`] if the file exists but can't be read.
    pub fn facts(&self, endpoint: &str) -> Result<Vec<TransferRecord>, ProfileError> {
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

    /// The endpoints that have a history.
    ///
    /// # Errors
    /// [`ProfileError::Io`] if the folder can't be read.
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

/// Parses one record per line, and skips invalid lines.
pub(crate) fn parse(text: &[u8]) -> Vec<TransferRecord> {
    text.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: &str = "lightship://db.example:4270";

    fn fact(rows: u64) -> TransferRecord {
        TransferRecord {
            rows,
            query: TransferRecord::fingerprint("select 1"),
            seconds: 2.0,
            ..TransferRecord::default()
        }
    }

    #[test]
    fn records_keep_their_order() {
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
    fn a_history_above_its_size_limit_loses_the_oldest_records() {
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
    fn invalid_lines_are_skipped() {
        let folder = tempfile::tempdir().expect("a folder");
        let profiles = Profiles::at(folder.path());
        profiles.record(ENDPOINT, fact(1)).expect("kept");
        let path = profiles.history_path(ENDPOINT);
        let mut text = fs::read_to_string(&path).expect("there");
        text.push_str("{\"rows\": 7, \"sec");
        fs::write(&path, &text).expect("written");
        assert_eq!(profiles.facts(ENDPOINT).expect("read").len(), 1);
        // The next record is on its own line.
        profiles.record(ENDPOINT, fact(2)).expect("kept");
        let rows = |profiles: &Profiles| -> Vec<u64> {
            profiles.facts(ENDPOINT).expect("read").iter().map(|fact| fact.rows).collect()
        };
        assert_eq!(rows(&profiles), [1, 2]);
        fs::write(&path, [0xff, 0xfe]).expect("written");
        profiles.record(ENDPOINT, fact(3)).expect("kept");
        assert_eq!(rows(&profiles), [3]);
        // A large amount of invalid data is skipped too.
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
    fn the_prediction_error_is_a_fraction_of_the_actual_time() {
        let of = |predicted_seconds, seconds| {
            TransferRecord { predicted_seconds, seconds, ..TransferRecord::default() }.error()
        };
        assert_eq!(of(Some(1.0), 2.0), Some(0.5));
        assert_eq!(of(Some(3.0), 2.0), Some(-0.5));
        assert_eq!((of(None, 2.0), of(Some(1.0), 0.0)), (None, None));
    }
}
