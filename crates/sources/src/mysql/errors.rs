//! Converts errors of the driver and the server to [`SourceError`]s.

use std::io::ErrorKind;

use mysql_async::{DriverError, Error, IoError, ServerError};

use crate::SourceError;

/// The server's error numbers that this crate distinguishes.
mod number {
    pub(super) const DATABASE_DENIED: u16 = 1044;
    pub(super) const ACCESS_DENIED: u16 = 1045;
    pub(super) const BAD_DATABASE: u16 = 1049;
    pub(super) const SERVER_SHUTDOWN: u16 = 1053;
    pub(super) const HOST_NOT_PRIVILEGED: u16 = 1130;
    pub(super) const NO_SUCH_TABLE: u16 = 1146;
    pub(super) const NEW_ABORTING_CONNECTION: u16 = 1184;
    pub(super) const ABORTING_CONNECTION: u16 = 1152;
    pub(super) const NET_READ_INTERRUPTED: u16 = 1159;
    pub(super) const NET_WRITE_INTERRUPTED: u16 = 1161;
    pub(super) const UNKNOWN_USER: u16 = 1449;
    pub(super) const PLUGIN_NOT_LOADED: u16 = 1524;
    pub(super) const ACCESS_DENIED_NO_PASSWORD: u16 = 1698;
    pub(super) const PASSWORD_EXPIRED: u16 = 1862;
    pub(super) const PASSWORD_MUST_CHANGE: u16 = 1820;
    pub(super) const CONNECTION_KILLED: u16 = 1927;
    pub(super) const ACCOUNT_LOCKED: u16 = 3118;
    pub(super) const INSECURE_TRANSPORT: u16 = 3159;
    pub(super) const DISCONNECTED_BY_SERVER: u16 = 4031;
    pub(super) const ACCOUNT_LOCKED_MARIADB: u16 = 4151;
}

/// The server's error number for a connection that does not exist.
pub(super) const NO_SUCH_THREAD: u16 = 1094;

/// The error of a failed connection. `server` is `host:port`; `login` also names user and database.
pub(super) fn connect(server: &str, login: &str, error: Error) -> SourceError {
    use number::*;
    match error {
        Error::Server(ServerError {
            code:
                DATABASE_DENIED
                | ACCESS_DENIED
                | BAD_DATABASE
                | HOST_NOT_PRIVILEGED
                | UNKNOWN_USER
                | PLUGIN_NOT_LOADED
                | ACCESS_DENIED_NO_PASSWORD
                | PASSWORD_EXPIRED
                | PASSWORD_MUST_CHANGE
                | ACCOUNT_LOCKED
                | INSECURE_TRANSPORT
                | ACCOUNT_LOCKED_MARIADB,
            message,
            ..
        }) => SourceError::Login { target: login.to_owned(), reason: message },
        Error::Driver(
            error @ (DriverError::UnknownAuthPlugin { .. }
            | DriverError::MysqlOldPasswordDisabled
            | DriverError::CleartextPluginDisabled),
        ) => SourceError::Login { target: login.to_owned(), reason: error.to_string() },
        error => SourceError::Connect {
            target: server.to_owned(),
            reason: words(&error),
            source: Some(Box::new(error)),
        },
    }
}

/// The error of a statement that failed after `rows` rows of its result.
pub(super) fn statement(server: &str, sql: &str, rows: u64, error: Error) -> SourceError {
    use number::*;
    match error {
        Error::Server(error) => match error.code {
            SERVER_SHUTDOWN
            | NEW_ABORTING_CONNECTION
            | ABORTING_CONNECTION
            | NET_READ_INTERRUPTED
            | NET_WRITE_INTERRUPTED
            | CONNECTION_KILLED
            | DISCONNECTED_BY_SERVER => {
                SourceError::Lost { target: server.to_owned(), rows, reason: error.message }
            }
            _ => SourceError::Sql {
                position: position(sql, &error.message),
                reason: error.message,
                code: Some(error.code.to_string()),
                hint: None,
            },
        },
        Error::Driver(DriverError::StmtParamsMismatch { required, .. }) => {
            crate::parameters::no_values(required.into())
        }
        Error::Driver(DriverError::Params(_) | DriverError::MixedParams) => SourceError::Unsupported(
            "the statement has named parameters (`:name`); write `?` for each".into(),
        ),
        Error::Io(IoError::Io(ref io)) if io.kind() == ErrorKind::InvalidData => {
            SourceError::Malformed { target: server.to_owned(), reason: words(&error) }
        }
        Error::Io(_) | Error::Driver(DriverError::ConnectionClosed) => {
            SourceError::Lost { target: server.to_owned(), rows, reason: words(&error) }
        }
        error => SourceError::Malformed { target: server.to_owned(), reason: words(&error) },
    }
}

/// The error of a statement that failed before its first row. `table` is the
/// only table it reads, if known.
pub(super) fn beginning(server: &str, sql: &str, table: Option<&str>, error: Error) -> SourceError {
    match (table, error) {
        (
            Some(name),
            Error::Server(ServerError { code: number::NO_SUCH_TABLE | number::BAD_DATABASE, .. }),
        ) => SourceError::NoTable { name: name.to_owned() },
        (_, error) => statement(server, sql, 0, error),
    }
}

/// The message of the error, without the driver's wrapping.
pub(super) fn words(error: &Error) -> String {
    match error {
        Error::Driver(error) => error.to_string(),
        Error::Io(IoError::Io(error)) => error.to_string(),
        Error::Io(error) => error.to_string(),
        Error::Other(error) => error.to_string(),
        Error::Server(error) => error.message.clone(),
        Error::Url(error) => error.to_string(),
    }
}

/// The server reports no position, but quotes up to 80 characters of the
/// statement from the error on: `near '...' at line N`. Returns the 1-based
/// character where the quoted text begins, if that is unambiguous.
fn position(sql: &str, message: &str) -> Option<u32> {
    let (_, near) = message.split_once("near '")?;
    let (near, _line) = near.rsplit_once("' at line ")?;
    if near.is_empty() {
        return None;
    }
    // The server strips semicolons and spaces from the end before it parses.
    let stripped = sql.trim_end_matches(|c: char| c == ';' || c.is_ascii_whitespace());
    let rest = [sql, stripped].into_iter().find_map(|sql| sql.strip_suffix(near));
    let before = match rest {
        Some(before) => before,
        None => {
            let (before, after) = sql.split_once(near)?;
            if after.contains(near) {
                return None;
            }
            before
        }
    };
    u32::try_from(before.chars().count() + 1).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_found_by_the_quoted_text() {
        let check = |sql: &str, message: &str, expected: Option<u32>| {
            assert_eq!(position(sql, message), expected, "{sql} / {message}");
        };
        let near = |near: &str, line: u32| format!("You have an error; near '{near}' at line {line}");
        check("SELECT 1 FORM t", &near("t", 1), Some(15));
        check("SELEC 1", &near("SELEC 1", 1), Some(1));
        check("SELECT 'ü', ,;", &near(",", 1), Some(13));
        check("SELECT 1\n  FROM FROM t ; ", &near("FROM t", 2), Some(17));
        check("SELECT 'it''s' FORM t", &near("'it''s' FORM t", 1), Some(8));
        // Cut after 80 characters: found only if it occurs once.
        let long = format!("SELECT x x x, {} FROM t", "a, ".repeat(50));
        check(&long, &near(&long[9..89], 1), Some(10));
        let twice = format!("x {0} x {0} y", "a".repeat(80));
        check(&twice, &near(&"a".repeat(80), 1), None);
        check("SELECT 1 FROM", &near("", 1), None);
        check("SELECT x", "Unknown column 'x' in 'field list'", None);
    }

    #[test]
    fn errors_are_classified_by_number() {
        let server =
            |code: u16| Error::Server(ServerError { code, message: "words".into(), state: "HY000".into() });
        for code in [1044, 1045, 1049, 1698] {
            assert!(matches!(connect("h:1", "u@h:1/d", server(code)), SourceError::Login { .. }), "{code}");
        }
        // Too many connections: a retry may succeed.
        assert!(connect("h:1", "u@h:1/d", server(1040)).retryable());
        assert!(matches!(statement("h:1", "", 7, server(1927)), SourceError::Lost { rows: 7, .. }));
        assert!(
            matches!(beginning("h:1", "", Some("t"), server(1146)), SourceError::NoTable { name } if name == "t")
        );
        let sql = statement("h:1", "", 0, server(1064));
        assert!(matches!(sql, SourceError::Sql { code: Some(code), .. } if code == "1064"));
    }
}
