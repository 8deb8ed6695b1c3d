//! Converts SQLite's errors to [`SourceError`]s.

use std::io;
use std::path::Path;

use rusqlite::{Error, ErrorCode};

use crate::SourceError;

/// The error of a file that can't be opened, or is not a database.
pub(super) fn open(path: &Path, error: Error) -> SourceError {
    let reason = match &error {
        Error::SqliteFailure(failure, _) if failure.code == ErrorCode::NotADatabase => {
            "the file is not an SQLite database".to_owned()
        }
        Error::SqliteFailure(_, Some(message)) => message.clone(),
        error => error.to_string(),
    };
    SourceError::Connect { target: path.display().to_string(), reason, source: Some(Box::new(error)) }
}

/// The error of a failed statement.
pub(super) fn statement(path: &Path, sql: &str, error: Error) -> SourceError {
    let target = || path.display().to_string();
    match error {
        Error::SqlInputError { error, msg, sql: refused, offset } => {
            let before = usize::try_from(offset).ok().and_then(|offset| sql.get(..offset));
            // The text after the first statement is refused on its own.
            let position = before.filter(|_| refused == sql).map(|before| before.chars().count() + 1);
            SourceError::Sql {
                reason: msg,
                position: position.and_then(|position| u32::try_from(position).ok()),
                code: Some(error.extended_code.to_string()),
                hint: None,
            }
        }
        Error::SqliteFailure(failure, message) => {
            let reason = message.unwrap_or_else(|| failure.to_string());
            match failure.code {
                ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt => {
                    SourceError::Malformed { target: target(), reason }
                }
                ErrorCode::CannotOpen | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                    SourceError::Connect {
                        target: target(),
                        reason,
                        source: Some(Box::new(Error::SqliteFailure(failure, None))),
                    }
                }
                ErrorCode::SystemIoFailure => {
                    SourceError::Io { path: target(), source: io::Error::other(reason) }
                }
                _ => SourceError::Sql {
                    reason,
                    position: None,
                    code: Some(failure.extended_code.to_string()),
                    hint: None,
                },
            }
        }
        Error::MultipleStatement => SourceError::Unsupported("more than one statement at a time".into()),
        Error::Utf8Error(..) => SourceError::Malformed { target: target(), reason: error.to_string() },
        error => SourceError::Sql { reason: error.to_string(), position: None, code: None, hint: None },
    }
}
