//! Loads drivers, and converts their errors.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use adbc_core::error::{Error, Status};
use adbc_core::options::{AdbcVersion, OptionDatabase};
use adbc_core::{Database as _, Driver as _, LOAD_FLAG_DEFAULT};
use adbc_driver_manager::{ManagedConnection, ManagedDatabase, ManagedDriver};
use arrow_schema::ArrowError;

use super::AdbcLocation;
use crate::{Result, SourceError};

/// A driver's name, and its entry point if that is not the usual one.
type DriverKey = (String, Option<String>);

/// Drivers, as many as users name. They are never unloaded.
static LOADED: LazyLock<Mutex<HashMap<DriverKey, ManagedDriver>>> = LazyLock::new(Mutex::default);

/// Shorter values would be found in too many messages that have nothing to do with them.
const SECRET_BYTES_MIN: usize = 3;

/// Databases that are open. An embedded database like DuckDB locks its file for one instance, so the source and the
/// destination of a copy share it.
static OPENED: LazyLock<Mutex<HashMap<AdbcLocation, Arc<Mutex<Shared>>>>> = LazyLock::new(Mutex::default);

/// A database and the number of its users.
#[derive(Default)]
struct Shared {
    database: Option<ManagedDatabase>,
    users: usize,
}

/// A user of an open database. The last one closes it; meanwhile nobody can open it again. Connections must be closed
/// before.
pub(super) struct OpenDatabase {
    /// `None` while it is dropped.
    database: Option<ManagedDatabase>,
    shared: Arc<Mutex<Shared>>,
}

impl OpenDatabase {
    /// # Errors
    /// Those of the driver.
    pub(super) fn connect(&self) -> Result<ManagedConnection, Error> {
        let closed = || Error::with_message_and_status("the database is closed", Status::InvalidState);
        self.database.as_ref().ok_or_else(closed)?.new_connection()
    }
}

impl Drop for OpenDatabase {
    fn drop(&mut self) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        self.database = None;
        shared.users -= 1;
        if shared.users == 0 {
            shared.database = None;
        }
    }
}

/// Opens a database, unless it is open already. This blocks.
pub(super) fn open(location: &AdbcLocation) -> Result<(OpenDatabase, Arc<Failures>)> {
    let failures = Arc::new(Failures::new(location));
    let entry = {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|_, shared| Arc::strong_count(shared) > 1);
        opened.entry(location.clone()).or_default().clone()
    };
    // Others may open other databases meanwhile.
    let mut shared = entry.lock().unwrap_or_else(PoisonError::into_inner);
    let database = match &shared.database {
        Some(database) => database.clone(),
        None => {
            let mut driver = load(location)?;
            let options = location.options.iter();
            let options =
                options.map(|(name, value)| (OptionDatabase::from(name.as_str()), value.as_str().into()));
            driver.new_database_with_opts(options).map_err(|error| failures.connect(error))?
        }
    };
    shared.database = Some(database.clone());
    shared.users += 1;
    Ok((OpenDatabase { database: Some(database), shared: entry.clone() }, failures))
}

fn load(location: &AdbcLocation) -> Result<ManagedDriver> {
    let fail = |reason: String, hint: &str| SourceError::Driver {
        driver: location.driver.clone(),
        reason,
        hint: hint.to_owned(),
    };
    let path = Path::new(&location.driver);
    let is_path = location.driver.contains('/') || path.extension().is_some();
    let mut name = location.driver.clone();
    if is_path {
        // The loader would search for a name without a folder elsewhere.
        let found = path.canonicalize().map_err(|error| {
            fail(error.to_string(), "give the path of the driver's shared library (.so) or manifest (.toml)")
        })?;
        if found.is_dir() {
            return Err(fail("it is a folder".into(), "give the path of the shared library in it"));
        }
        name = found.to_string_lossy().into_owned();
    }
    let key = (name.clone(), location.entrypoint.clone());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = loaded.get(&key) {
        return Ok(driver.clone());
    }
    let entrypoint = location.entrypoint.as_deref().map(str::as_bytes);
    let driver = ManagedDriver::load_from_name(&name, entrypoint, AdbcVersion::V110, LOAD_FLAG_DEFAULT, None);
    let driver = driver.map_err(|error| match (is_path, location.entrypoint.is_some()) {
        (false, _) => fail(
            error.message,
            "install its manifest where ADBC looks (ADBC_DRIVER_PATH, ~/.config/adbc/drivers), or give the path of \
             the shared library: adbc:/usr/lib/…/libadbc_driver_….so",
        ),
        (true, true) => fail(error.message, "is this the shared library of an ADBC driver, and its entry point?"),
        (true, false) => fail(
            error.message,
            "is this the shared library of an ADBC driver? If its entry point has another name, add \
             ?entrypoint=NAME, as in entrypoint=duckdb_adbc_init",
        ),
    })?;
    loaded.insert(key, driver.clone());
    Ok(driver)
}

/// Converts the errors of a driver, without the secrets that they may repeat.
#[derive(Debug)]
pub(super) struct Failures {
    target: String,
    secrets: Vec<Secret>,
}

/// A text that is not printed.
struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Failures {
    fn new(location: &AdbcLocation) -> Self {
        let secrets = location.secrets().filter(|secret| secret.len() >= SECRET_BYTES_MIN);
        let mut secrets: Vec<_> = secrets.map(|secret| Secret(secret.to_owned())).collect();
        // One may contain another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.0.len()));
        Self { target: location.to_string(), secrets }
    }

    /// The location, without secrets.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    fn words(&self, message: String) -> String {
        let message = self.secrets.iter().fold(message, |text, secret| text.replace(&secret.0, "***"));
        let message = message.trim_end_matches(['\n', '.', ' ']);
        if message.is_empty() { "the driver gave no reason".into() } else { message.to_owned() }
    }

    /// The error of a database that can't be opened. Many drivers have no status for a server that can't be reached, and
    /// those of databases in a file (DuckDB, SQLite) reach no server.
    pub(super) fn connect(&self, error: Error) -> SourceError {
        let (target, status) = (self.target.clone(), error.status);
        let reason = self.words(error.message);
        match status {
            Status::Unauthenticated | Status::Unauthorized => SourceError::Login { target, reason },
            Status::IO | Status::Timeout => SourceError::Connect { target, reason, source: None },
            _ => SourceError::Open { target, reason },
        }
    }

    /// The error of a statement.
    pub(super) fn statement(&self, error: Error) -> SourceError {
        let code: String = error.sqlstate.iter().map(|&byte| char::from(byte.cast_unsigned())).collect();
        let is_code = code.bytes().all(|byte| byte.is_ascii_alphanumeric()) && code != "00000";
        let reason = self.words(error.message);
        match error.status {
            Status::NotImplemented => SourceError::Unsupported(format!("{reason} (says the driver)")),
            _ => SourceError::Sql { reason, position: None, code: is_code.then_some(code), hint: None },
        }
    }

    /// The error of a stream of rows.
    pub(super) fn stream(&self, error: ArrowError) -> SourceError {
        let reason = match error {
            ArrowError::ExternalError(error) => error.to_string(),
            ArrowError::CDataInterface(reason) => reason,
            error => error.to_string(),
        };
        SourceError::Sql { reason: self.words(reason), position: None, code: None, hint: None }
    }

    pub(super) fn malformed(&self, reason: String) -> SourceError {
        SourceError::Malformed { target: self.target.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_do_not_repeat_secrets() {
        let location = AdbcLocation::parse("x?password=hush&uri=me:hush@h").unwrap();
        let failures = Failures::new(&location);
        for status in [Status::IO, Status::Internal] {
            let error = Error::with_message_and_status("no login for me:hush@h with hush.\n", status);
            let shown = format!("{:?} {failures:?}", failures.connect(error));
            assert!(!shown.contains("hush") && shown.contains("no login for *** with ***"), "{shown}");
        }
    }
}
