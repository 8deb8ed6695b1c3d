//! Measured speeds of hosts on disk: a JSON file for each host.

use std::path::PathBuf;

use lightship_usage::HostSpeeds;

use lightship_session::{StateError, encoded_name, host_name, read_json, state_folder, write_json};

use super::{HostSpeedsMeasured, VERSION};

/// Environment variable that overrides the folder.
const FOLDER_VARIABLE: &str = "LIGHTSHIP_HOSTS";

/// The folder of measured speeds.
#[derive(Debug, Clone)]
pub struct HostSpeedsStore {
    folder: PathBuf,
}

impl HostSpeedsStore {
    /// The current user's, in `LIGHTSHIP_HOSTS`, or else in `lightship/hosts` below `XDG_STATE_HOME` or
    /// `~/.local/state`.
    ///
    /// # Errors
    /// [`StateError::NoFolder`] if none of these is set.
    pub fn of_user() -> Result<Self, StateError> {
        let missing = StateError::NoFolder { what: "measured hosts", variable: FOLDER_VARIABLE };
        state_folder("hosts", Some(FOLDER_VARIABLE)).map(Self::at).ok_or(missing)
    }

    /// Speeds in `folder`, which is created when the first ones are stored.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The file of a host's speeds.
    pub fn path(&self, host: &str) -> PathBuf {
        self.folder.join(encoded_name(host) + ".json")
    }

    /// Stores the speeds of a host, replaces earlier ones, and returns the path.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn keep(&self, measured: &HostSpeedsMeasured) -> Result<PathBuf, StateError> {
        let path = self.path(&measured.host);
        write_json(&path, measured)?;
        Ok(path)
    }

    /// The speeds of a host; `None` if it was not measured.
    ///
    /// # Errors
    /// [`StateError`] if they can't be read, have another version of the format, or are out of range.
    pub fn find(&self, host: &str) -> Result<Option<HostSpeedsMeasured>, StateError> {
        let path = self.path(host);
        let Some(measured) = read_json::<HostSpeedsMeasured>(&path)? else { return Ok(None) };
        let damaged = |why| StateError::Damaged { path: path.clone(), why };
        if measured.version != VERSION {
            return Err(damaged(format!("format version {}, expected {VERSION}", measured.version)));
        }
        measured.speeds.check().map_err(|error| damaged(error.to_string()))?;
        Ok(Some(measured))
    }

    /// The speeds of this host; `None` if it was not measured.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn find_this_host(&self) -> Result<Option<HostSpeedsMeasured>, StateError> {
        self.find(&host_name())
    }

    /// The speeds of this host in the current user's folder; `None` if it was not measured, or they can't be read,
    /// which is logged.
    pub fn own_speeds() -> Option<HostSpeeds> {
        match Self::of_user().and_then(|store| store.find_this_host()) {
            Ok(measured) => measured.map(|found| found.speeds),
            Err(StateError::NoFolder { .. }) => None,
            Err(error) => {
                tracing::warn!(%error, "cannot use the measured speeds of this host");
                None
            }
        }
    }
}
