//! Errors with a kind, a hint, and the number of rows that had arrived.

use std::fmt;
use std::io::ErrorKind as IoErrorKind;

use lightship_engine::EngineError;
use lightship_monitor::HostCalibrateError;
use lightship_session::{
    ErrorCode, Failure, PredictionsError, ProfileError, Reason, StateError, TransportError,
};
use lightship_sources::SourceError;
use lightship_sources::objects::ObjectErrorKind;
use serde::Serialize;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// A bug in Lightship.
    Internal,
    /// The request is invalid.
    Usage,
    /// A database, a node or a file refused the statement, or could not be read.
    Source,
    /// A server could not be reached, or was lost.
    Network,
    /// A value can't be represented, or data is malformed.
    Data,
    /// Memory, disk space or time ran out.
    Limits,
    /// The reader of the output closed it.
    BrokenPipe,
    /// The caller cancelled it.
    Cancelled,
}

/// A failure. `Display` shows only the message; the fields hold the rest.
#[derive(Debug, Clone, Serialize)]
pub struct Error {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// What went wrong.
    pub message: String,
    /// The source that failed, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Box<str>>,
    /// What can be done about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<Box<str>>,
    /// The code that the database gave the failure: SQLSTATE of PostgreSQL, the error number of MySQL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Box<str>>,
    /// Where in the statement the error is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Memory that would have sufficed, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed_bytes: Option<u64>,
    /// Rows that had arrived before the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A position in a statement. Line and column count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}

/// SQLSTATE for parameters that do not fit the statement: invalid_parameter_value.
const PARAMETER_CODE: &str = "22023";
/// Maximum characters of a statement's line shown with an error.
const SHOWN_MAX: usize = 100;

impl Position {
    /// Converts a column that counts on across line ends to the line and column it falls in.
    fn settle(&mut self, sql: &str) {
        for line in sql.lines().skip(self.line.saturating_sub(1) as usize) {
            // The position after the last character belongs to the line.
            let places = u32::try_from(line.chars().count()).unwrap_or(u32::MAX).saturating_add(1);
            if self.column <= places {
                return;
            }
            self.column -= places;
            self.line += 1;
        }
        // A peer may send a position beyond the end of the statement.
        self.column = self.column.min(1);
    }
}

impl Error {
    /// Creates an error without details.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            kind,
            message,
            place: None,
            hint: None,
            code: None,
            position: None,
            needed_bytes: None,
            rows: None,
        }
    }

    /// The message with the hint below it.
    pub fn with_hint(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}\nhint: {hint}", self.message),
            None => self.message.clone(),
        }
    }

    /// The SQLSTATE: the one that the database gave, or the class that fits the kind of the failure.
    pub fn sqlstate(&self) -> Option<&str> {
        let is_sqlstate = |code: &&str| code.len() == 5 && code.bytes().all(|b| b.is_ascii_alphanumeric());
        self.code.as_deref().filter(is_sqlstate).or(match self.kind {
            ErrorKind::Internal => Some("XX000"),
            ErrorKind::Network => Some("08000"),
            ErrorKind::Data => Some("22000"),
            ErrorKind::Limits => Some("53000"),
            ErrorKind::Cancelled => Some("57014"),
            _ => None,
        })
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into().into()), ..self }
    }

    /// Adds the source that failed, if there are several.
    pub(crate) fn at(self, place: &str) -> Self {
        Self { place: Some(place.into()), ..self }
    }

    /// Adds the number of rows that had arrived.
    pub(crate) fn after(self, rows: u64) -> Self {
        Self { rows: Some(rows), ..self }
    }

    /// Adds the line of `sql` that the error's position is in, if the position is known.
    #[must_use]
    pub fn in_statement(mut self, sql: &str) -> Self {
        if let Some(position) = &mut self.position {
            position.settle(sql);
            let Position { line, column } = *position;
            let text = sql.lines().nth(line.saturating_sub(1) as usize).unwrap_or("");
            let before = column.saturating_sub(1) as usize;
            // Shorten a long line to fit a terminal.
            let left_out =
                if text.chars().count() > SHOWN_MAX { before.saturating_sub(SHOWN_MAX / 2) } else { 0 };
            let text: String = text.chars().skip(left_out).take(SHOWN_MAX).collect();
            let indent = " ".repeat(before - left_out);
            self.message = format!("{}\n  {text}\n  {indent}^", self.message);
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<SourceError> for Error {
    fn from(error: SourceError) -> Self {
        let message = error.to_string();
        match error.io_kind() {
            Some(IoErrorKind::BrokenPipe)
                if !matches!(error, SourceError::Connect { .. } | SourceError::Lost { .. }) =>
            {
                return Self::new(ErrorKind::BrokenPipe, message);
            }
            Some(IoErrorKind::StorageFull) => {
                return Self::new(ErrorKind::Limits, message)
                    .hint("nothing was left half written; make room and try again");
            }
            _ => {}
        }
        match error {
            SourceError::Location { .. } => Self::new(ErrorKind::Usage, message),
            SourceError::Connect { .. } => Self::new(ErrorKind::Network, message),
            SourceError::Lost { .. } => {
                Self::new(ErrorKind::Network, message).hint("nothing was left half written; try again")
            }
            SourceError::Sql { position, hint, code, .. } => {
                let mut this = Self::new(ErrorKind::Source, message);
                // Databases count characters from the start of the statement; `in_statement` finds the
                // line.
                this.position = position.map(|column| Position { line: 1, column });
                this.hint = hint.map(Into::into);
                this.code = code.map(Into::into);
                this
            }
            SourceError::Value { .. } | SourceError::Malformed { .. } | SourceError::Arrow(_) => {
                Self::new(ErrorKind::Data, message)
            }
            SourceError::Unfit { hint, .. } => {
                Self { hint: hint.map(Into::into), ..Self::new(ErrorKind::Data, message) }
            }
            SourceError::RowTooLarge { bytes, bytes_max, .. } => {
                let times = bytes.div_ceil(bytes_max.max(1));
                let hint = format!("raise --memory to {times} times its value, or select fewer columns");
                Self { needed_bytes: Some(bytes), ..Self::new(ErrorKind::Limits, message) }.hint(hint)
            }
            SourceError::DuplicateColumn { name, .. } => Self::new(ErrorKind::Usage, message).hint(format!(
                "rename one in the SQL, as in `… as {name}_2`, or use --duplicate-columns rename"
            )),
            SourceError::Driver { hint, .. } => Self::new(ErrorKind::Usage, message).hint(hint),
            SourceError::NoUniqueIndex { table, key } => Self::new(ErrorKind::Source, message).hint(format!(
                "create one, as with CREATE UNIQUE INDEX ON {table} ({key}), or name the columns of another in --key"
            )),
            SourceError::ExistingFile { hint, .. } => Self::new(ErrorKind::Source, message).hint(hint),
            SourceError::DuplicateKey { .. } => Self::new(ErrorKind::Data, message).hint(
                "keep one row of each key in the query, as with row_number() OVER (PARTITION BY …), \
                 or name more columns in --key",
            ),
            // SQLSTATE for an undefined table.
            SourceError::NoTable { .. } => {
                Self { code: Some("42P01".into()), ..Self::new(ErrorKind::Source, message) }
            }
            SourceError::Busy { .. } => Self::new(ErrorKind::Network, message)
                .hint("try again, or let the node open more connections (--source-connections)"),
            SourceError::Object(error) => {
                let kind = match error.kind {
                    ObjectErrorKind::Unreachable => ErrorKind::Network,
                    _ => ErrorKind::Source,
                };
                Self { hint: error.hint.map(Into::into), ..Self::new(kind, message) }
            }
            SourceError::Parameters { hint, .. } => {
                Self { code: Some(PARAMETER_CODE.into()), ..Self::new(ErrorKind::Source, message) }.hint(hint)
            }
            SourceError::Unsupported(_) => Self::new(ErrorKind::Usage, message),
            _ => Self::new(ErrorKind::Source, message),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = match failure.code {
            ErrorCode::Internal | ErrorCode::Cancelled => ErrorKind::Internal,
            ErrorCode::Protocol
            | ErrorCode::Busy
            | ErrorCode::ShuttingDown
            | ErrorCode::Lost
            | ErrorCode::Peer => ErrorKind::Network,
            ErrorCode::RowTooLarge | ErrorCode::Limit | ErrorCode::Stalled => ErrorKind::Limits,
            ErrorCode::Data => ErrorKind::Data,
            _ => ErrorKind::Source,
        };
        let code = match failure.code {
            ErrorCode::Sql => Some("42000"),
            ErrorCode::Unauthenticated => Some("28000"),
            ErrorCode::Forbidden => Some("42501"),
            ErrorCode::Cancelled => Some("57014"),
            ErrorCode::Parameters => Some(PARAMETER_CODE),
            _ => None,
        };
        Self {
            hint: failure.hint.map(Into::into),
            code: failure.reason.map(Reason::sqlstate).or(code).map(Into::into),
            position: failure.position.map(|(line, column)| Position { line, column }),
            needed_bytes: failure.needed_bytes,
            ..Self::new(kind, failure.message)
        }
    }
}

impl From<TransportError> for Error {
    fn from(error: TransportError) -> Self {
        let message = error.to_string();
        match error {
            TransportError::Failed(failure) => failure.into(),
            // A TLS alert record: the reply of a TLS server to bytes that are not TLS.
            TransportError::Wire(lightship_wire::WireError::Magic { found: [0x15, 0x03, ..] }) => {
                Self::new(ErrorKind::Network, message)
                    .hint("the node accepts only TLS: add ?tls=true, and &ca=FILE for a private CA")
            }
            TransportError::Wire(lightship_wire::WireError::Arrow(_)) => Self::new(ErrorKind::Data, message),
            TransportError::Config(_) => Self::new(ErrorKind::Usage, message)
                .hint("give --tls-cert, --tls-key and --token, or --insecure if the network is trusted"),
            TransportError::TooOld { .. } => Self { code: Some("0A000".into()), ..Self::usage(message) }
                .hint("upgrade the node; until then, write the values into the SQL"),
            TransportError::Full { .. } => Self::new(ErrorKind::Limits, message),
            TransportError::Token { .. } => Self::new(ErrorKind::Usage, message),
            TransportError::Tls(_) => Self::new(ErrorKind::Network, message),
            // The TLS library's error.
            TransportError::Connect { source, .. } if source.to_string().contains("certificate") => {
                Self::new(ErrorKind::Network, message).hint(
                    "give the certificate of the CA that signed the server's with ?ca=FILE, and connect by a name \
                     that is in the server's certificate",
                )
            }
            TransportError::Connect { .. } => Self::new(ErrorKind::Network, message)
                .hint("is a node listening there? start one with `lightship node`"),
            TransportError::Unwelcome { .. } => Self::new(ErrorKind::Network, message).hint(
                "the host can be reached: either no node listens on this port, or it is too busy to answer; try again",
            ),
            _ => Self::new(ErrorKind::Network, message),
        }
    }
}

impl From<ProfileError> for Error {
    fn from(error: ProfileError) -> Self {
        let this = Self::new(ErrorKind::Source, error.to_string());
        match error {
            ProfileError::Damaged { .. } | ProfileError::OtherVersion { .. } => {
                this.hint("measure the link again: lightship calibrate URI")
            }
            _ => this,
        }
    }
}

impl From<StateError> for Error {
    fn from(error: StateError) -> Self {
        let kind = match &error {
            StateError::NoFolder { .. } => ErrorKind::Usage,
            StateError::Damaged { .. } => ErrorKind::Data,
            _ => ErrorKind::Source,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<PredictionsError> for Error {
    fn from(error: PredictionsError) -> Self {
        match error {
            PredictionsError::State(error) => error.into(),
            error @ PredictionsError::NotSaved { .. } => Self::new(ErrorKind::Usage, error.to_string())
                .hint("store one before the change: lightship usage what-if LABEL --save"),
            error => Self::new(ErrorKind::Usage, error.to_string()),
        }
    }
}

impl From<HostCalibrateError> for Error {
    fn from(error: HostCalibrateError) -> Self {
        let message = error.to_string();
        match error {
            HostCalibrateError::DiskFull { .. } => {
                Self::new(ErrorKind::Limits, message).hint("make room, or choose a folder on another disk")
            }
            HostCalibrateError::Disk { .. } => Self::new(ErrorKind::Source, message),
            HostCalibrateError::Unsupported => Self::new(ErrorKind::Usage, message),
            _ => Self::new(ErrorKind::Data, message),
        }
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Source(error) => error.into(),
            EngineError::Config(message) => Self::usage(message),
            error => error.to_failure().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstate_is_that_of_the_database_or_of_the_kind() {
        let of = |kind, code: Option<&str>| {
            let error = Error { code: code.map(Into::into), ..Error::new(kind, "") };
            error.sqlstate().map(str::to_owned)
        };
        assert_eq!(of(ErrorKind::Source, Some("42P01")).as_deref(), Some("42P01"));
        // The number of MySQL is none.
        assert_eq!(of(ErrorKind::Source, Some("1064")), None);
        assert_eq!(of(ErrorKind::Cancelled, None).as_deref(), Some("57014"));
        assert_eq!(of(ErrorKind::Usage, None), None);
    }
}
