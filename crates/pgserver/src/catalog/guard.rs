//! Limits of a query of the catalog: what it may reach, how long it may take, and how much memory it may need.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use super::sets::NUMBERS;
use super::{Engine, failed, rewrite, tables};
use crate::error::{PgError, PgResult, code};

/// How long a query of the catalog may take.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// How much SQLite's memory may grow during a query. SQLite counts it for the whole process, so databases that are read as
/// tables at the same time count, too: they need a few MiB each.
const MEMORY_BYTES_MAX: i64 = 64 << 20;
/// After how many instructions of SQLite's machine the limits are checked. One may add a value of the maximum length.
const STEPS: i32 = 100;

/// Why a query is stopped before its end.
#[derive(Debug, Clone, Copy)]
enum Stop {
    Abandoned,
    Late,
    Large,
}

impl Stop {
    fn error(self) -> PgError {
        match self {
            Self::Abandoned => PgError::cancelled(),
            Self::Late => PgError::new(
                code::QUERY_CANCELED,
                format!("a query of the catalog took longer than {} seconds", QUERY_TIMEOUT.as_secs()),
            ),
            Self::Large => {
                let message = format!(
                    "a query of the catalog needs more than {} MiB of memory",
                    MEMORY_BYTES_MAX >> 20
                );
                PgError::new(code::OUT_OF_MEMORY, message).hint("select fewer rows, without sorting them")
            }
        }
    }
}

/// The bytes that SQLite has allocated in this process.
fn sqlite_bytes() -> i64 {
    // SAFETY: it reads a counter, under a lock of its own. It needs no connection.
    unsafe { rusqlite::ffi::sqlite3_memory_used() }
}

/// Whether a statement may do something: it only reads the relations of the catalog, and calls functions that are known
/// to be harmless.
fn may(context: AuthContext<'_>) -> Authorization {
    let is_allowed = match context.action {
        AuthAction::Select | AuthAction::Recursive => true,
        // Without a column it may be a common table expression, too.
        AuthAction::Read { table_name, column_name } => {
            column_name.is_empty() || tables::is_relation(table_name) || table_name == NUMBERS
        }
        AuthAction::Function { function_name } => rewrite::is_target(function_name),
        _ => false,
    };
    if is_allowed { Authorization::Allow } else { Authorization::Deny }
}

impl Engine {
    /// Does work with statements of clients, within the limits, and as long as somebody holds what `waits` refers to.
    pub(super) fn guarded<T>(
        &mut self,
        waits: Weak<()>,
        work: impl FnOnce(&Self) -> PgResult<T>,
    ) -> PgResult<T> {
        let stopped = Arc::new(OnceLock::new());
        let deadline = Instant::now() + QUERY_TIMEOUT;
        let bytes_max = sqlite_bytes().saturating_add(MEMORY_BYTES_MAX);
        let stop = stopped.clone();
        let is_over = move || {
            let why = if waits.strong_count() == 0 {
                Stop::Abandoned
            } else if sqlite_bytes() > bytes_max {
                Stop::Large
            } else if Instant::now() > deadline {
                Stop::Late
            } else {
                return false;
            };
            let _ = stop.set(why);
            true
        };
        self.connection.progress_handler(STEPS, Some(is_over)).map_err(|error| failed(&error))?;
        self.connection.authorizer(Some(may)).map_err(|error| failed(&error))?;
        let done = work(self);
        self.release()?;
        match stopped.get() {
            Some(stop) if done.is_err() => Err(stop.error()),
            _ => done,
        }
    }

    /// Takes the limits away, for statements of this program. They are still there after a panic.
    pub(super) fn release(&mut self) -> PgResult<()> {
        let connection = &mut self.connection;
        connection.progress_handler(0, None::<fn() -> bool>).map_err(|error| failed(&error))?;
        let none = None::<fn(AuthContext<'_>) -> Authorization>;
        connection.authorizer(none).map_err(|error| failed(&error))
    }
}
