//! Measured link profiles, stored on disk in one file for each endpoint.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lightship_tuner::{Calibration, Link, Rates, Sample};
use serde::{Deserialize, Serialize};

use crate::state::{encoded_name, host_name, replace_file, state_folder};

/// Version of the file format. Other versions are rejected.
const VERSION: u32 = 1;
/// Networks change; an older profile should be measured again.
const STALE: Duration = Duration::from_secs(30 * 24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Environment variable that overrides the folder of the profiles.
const FOLDER_VARIABLE: &str = "LIGHTSHIP_PROFILES";

/// A measured link between this host and an endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    version: u32,
    /// The endpoint, without secrets.
    pub endpoint: String,
    /// Name of the host that measured the link.
    pub host: String,
    /// Time of the measurement, in seconds since 1970.
    pub measured_at: u64,
    /// The query that was used.
    pub sql: String,
    /// Shortest mean time from a request for a batch to its first message.
    pub rtt_seconds: f64,
    /// Bytes per second of rows that are streamed without waiting for requests, if that was measured.
    #[serde(default)]
    pub bytes_per_second: Option<f64>,
    /// Mean bytes of a row of the query.
    pub row_bytes: f64,
    /// The fitted model.
    pub calibration: Calibration,
    /// The measurements that it was fitted to.
    pub samples: Vec<Sample>,
}

/// A reason not to trust a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Staleness {
    /// The profile is old.
    Stale {
        /// Its age.
        days: u64,
    },
    /// Another host measured the link.
    Foreign {
        /// Its name.
        host: String,
    },
    /// Its timestamp is in the future, so a clock was changed.
    Future,
}

impl fmt::Display for Staleness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { days } => write!(f, "it is {days} days old"),
            Self::Foreign { host } => write!(f, "it was measured on another host, {host}"),
            Self::Future => f.write_str("its timestamp is in the future"),
        }
    }
}

/// A profile could not be stored or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// No folder for profiles is configured.
    #[error("no folder for profiles: none of LIGHTSHIP_PROFILES, XDG_STATE_HOME and HOME is set")]
    NoFolder,
    /// A file or folder could not be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
    /// The file is not a profile, or is damaged.
    #[error("{} is not a valid profile: {why}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file has an unsupported format version.
    #[error("{} has format version {version}, expected {VERSION}", .path.display())]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its format version.
        version: u64,
    },
}

impl Profile {
    /// The profile of an endpoint that this host has just measured.
    pub(crate) fn new(
        endpoint: String,
        sql: String,
        row_bytes: f64,
        rtt_seconds: f64,
        bytes_per_second: Option<f64>,
        calibration: Calibration,
        samples: Vec<Sample>,
    ) -> Self {
        let measured_at = unix_seconds(SystemTime::now());
        Self {
            version: VERSION,
            endpoint,
            host: host_name(),
            measured_at,
            sql,
            rtt_seconds,
            bytes_per_second,
            row_bytes,
            calibration,
            samples,
        }
    }

    /// The link model that plans are computed from.
    pub fn link(&self) -> Link {
        let rates = Rates { send: self.bytes_per_second, ..Rates::default() };
        Link { model: self.calibration.model, rtt_seconds: self.rtt_seconds, rates }
    }

    /// Reasons not to trust the profile, on this host at time `now`.
    pub fn doubts(&self, now: SystemTime) -> Vec<Staleness> {
        let now = unix_seconds(now);
        let age = Duration::from_secs(now.saturating_sub(self.measured_at));
        let stale = (age > STALE).then(|| Staleness::Stale { days: age.as_secs() / DAY.as_secs() });
        let future = (self.measured_at > now + DAY.as_secs()).then_some(Staleness::Future);
        let foreign = (self.host != host_name()).then(|| Staleness::Foreign { host: self.host.clone() });
        [stale, future, foreign].into_iter().flatten().collect()
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ProfileError> {
        let damaged = |why: String| ProfileError::Damaged { path: path.to_owned(), why };
        let value: serde_json::Value = serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => return Err(ProfileError::OtherVersion { path: path.to_owned(), version }),
            None => return Err(damaged("missing version".into())),
        }
        let profile: Self = serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
        profile.calibration.model.check().map_err(|e| damaged(e.to_string()))?;
        profile.link().rates.check().map_err(|e| damaged(e.to_string()))?;
        if profile.rtt_seconds.is_finite() && profile.rtt_seconds >= 0.0 {
            Ok(profile)
        } else {
            Err(damaged(format!("invalid round trip of {} seconds", profile.rtt_seconds)))
        }
    }
}

/// The folder that holds profiles.
#[derive(Debug, Clone)]
pub struct Profiles {
    folder: PathBuf,
}

impl Profiles {
    /// The current user's profiles, in `LIGHTSHIP_PROFILES`, or else in `lightship/profiles` below
    /// `XDG_STATE_HOME` or `~/.local/state`.
    ///
    /// # Errors
    /// [`ProfileError::NoFolder`] if `LIGHTSHIP_PROFILES`, `XDG_STATE_HOME` and `HOME` are all unset.
    pub fn of_user() -> Result<Self, ProfileError> {
        state_folder("profiles", Some(FOLDER_VARIABLE)).map(Self::at).ok_or(ProfileError::NoFolder)
    }

    /// Profiles in `folder`, which is created when the first one is stored.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of an endpoint's profile.
    pub fn path(&self, endpoint: &str) -> PathBuf {
        self.folder.join(encoded_name(endpoint) + ".json")
    }

    /// The endpoint for a file name without its extension; `None` if it is not an encoded endpoint.
    pub(crate) fn endpoint_of(stem: &str) -> Option<String> {
        let mut pieces = stem.split('_');
        let mut endpoint = pieces.next()?.to_owned();
        while let Some(code) = pieces.next() {
            endpoint.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
            endpoint.push_str(pieces.next()?);
        }
        Some(endpoint)
    }

    /// Stores a profile, replaces an earlier one, and returns the path.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn keep(&self, profile: &Profile) -> Result<PathBuf, ProfileError> {
        let path = self.path(&profile.endpoint);
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| ProfileError::Io { path, source }
        };
        let text = serde_json::to_string_pretty(profile).map_err(|e| io(&path)(e.into()))?;
        replace_file(&path, (text + "\n").as_bytes()).map_err(io(&path))?;
        Ok(path)
    }

    /// The profile of an endpoint, or `None` if there is none.
    ///
    /// # Errors
    /// [`ProfileError`] if it exists but can't be read.
    pub fn find(&self, endpoint: &str) -> Result<Option<Profile>, ProfileError> {
        let path = self.path(endpoint);
        match fs::read_to_string(&path) {
            Ok(text) => Profile::parse(&path, &text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) if source.kind() == io::ErrorKind::InvalidData => {
                Err(ProfileError::Damaged { path, why: source.to_string() })
            }
            Err(source) => Err(ProfileError::Io { path, source }),
        }
    }
}

pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lightship_tuner::{Plane, calibrate};

    fn profile(endpoint: &str) -> Profile {
        let first = Plane::new(1e-9, 2e-9, 1e-3);
        let next = Plane::new(0.0, 1e-9, 1e-6);
        let sizes = [(32e3, 8e3), (128e3, 8e3), (128e3, 32e3), (512e3, 64e3)];
        let sample = |(batch_bytes, message_bytes): (f64, f64)| Sample {
            batch_bytes,
            message_bytes,
            first_seconds: first.seconds(batch_bytes, message_bytes),
            first_count: 3,
            next_seconds: next.seconds(batch_bytes, message_bytes),
            next_count: 9,
        };
        let samples: Vec<_> = sizes.map(sample).into();
        let calibration = calibrate(&samples).expect("a plane");
        Profile::new(endpoint.into(), "select 1".into(), 8.0, 1e-3, Some(1e6), calibration, samples)
    }

    /// The fields that identify a profile. Numbers in JSON may differ in the last digit.
    fn told(profile: Option<Profile>) -> Option<(String, u64, usize)> {
        profile.map(|profile| (profile.endpoint, profile.measured_at, profile.samples.len()))
    }

    #[test]
    fn a_stored_profile_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let profiles = Profiles::at(folder.path().join("not/there/yet"));
        let one = profile("lightship://db.example:4270");
        assert_eq!(profiles.find(&one.endpoint).expect("none"), None);
        let path = profiles.keep(&one).expect("kept");
        assert_eq!(path, profiles.path(&one.endpoint));
        let found = || told(profiles.find(&one.endpoint).expect("read"));
        assert_eq!(found(), told(Some(one.clone())));
        // Different endpoints have different files, whatever characters they contain.
        let other = profile("lightship://db/example:4270");
        profiles.keep(&other).expect("kept");
        assert_eq!(found(), told(Some(one.clone())));
        let later = Profile { measured_at: one.measured_at + 1, ..one.clone() };
        profiles.keep(&later).expect("kept");
        assert_eq!(found(), told(Some(later)));
        assert_eq!(fs::read_dir(profiles.folder()).expect("there").count(), 2);
    }

    #[test]
    fn a_damaged_profile_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let profiles = Profiles::at(folder.path());
        let one = profile("a");
        let path = profiles.keep(&one).expect("kept");
        let text = fs::read_to_string(&path).expect("there");
        for spoilt in [
            String::new(),
            text[..text.len() / 2].to_owned(),
            "{}".to_owned(),
            text.replace("\"version\": 1", "\"version\": \"one\""),
            text.replace("\"rtt_seconds\": 0.001", "\"rtt_seconds\": -1"),
            text.replace("\"rtt_seconds\": 0.001", "\"rtt_seconds\": null"),
            text.replace("\"bytes_per_second\": 1000000.0", "\"bytes_per_second\": 0.0"),
            text.replacen("\"constant\": ", "\"constant\": -", 1),
        ] {
            assert_ne!(spoilt, text);
            fs::write(&path, &spoilt).expect("written");
            let error = profiles.find("a").expect_err(&spoilt);
            assert!(matches!(error, ProfileError::Damaged { .. }), "{spoilt}: {error}");
        }
        fs::write(&path, [0xff, 0xfe]).expect("written");
        assert!(matches!(profiles.find("a"), Err(ProfileError::Damaged { .. })));
        fs::write(&path, text.replace("\"version\": 1", "\"version\": 7")).expect("written");
        assert!(matches!(profiles.find("a"), Err(ProfileError::OtherVersion { version: 7, .. })));
        fs::remove_file(&path).and_then(|()| fs::create_dir(&path)).expect("a folder in its place");
        assert!(matches!(profiles.find("a"), Err(ProfileError::Io { .. })));
    }

    #[test]
    fn old_and_foreign_profiles_have_doubts() {
        let mut one = profile("a");
        let now = UNIX_EPOCH + Duration::from_secs(one.measured_at);
        assert_eq!(one.doubts(now), []);
        assert_eq!(one.doubts(now + 31 * DAY), [Staleness::Stale { days: 31 }]);
        assert_eq!(one.doubts(now - 2 * DAY), [Staleness::Future]);
        one.host = "elsewhere.example".into();
        assert_eq!(one.doubts(now), [Staleness::Foreign { host: "elsewhere.example".into() }]);
    }
}
