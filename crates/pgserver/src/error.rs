//! Errors as clients of PostgreSQL know them: SQLSTATE, message, hint.

use arrow_schema::ArrowError;
use lightship_wire::control::{ErrorCode, Failure};

/// SQLSTATE codes (PostgreSQL's Appendix A).
pub(crate) mod code {
    pub(crate) const CONNECTION_FAILURE: &str = "08006";
    pub(crate) const PROTOCOL_VIOLATION: &str = "08P01";
    pub(crate) const FEATURE_NOT_SUPPORTED: &str = "0A000";
    pub(crate) const DATA_EXCEPTION: &str = "22000";
    pub(crate) const NUMERIC_OUT_OF_RANGE: &str = "22003";
    pub(crate) const DATETIME_OVERFLOW: &str = "22008";
    pub(crate) const DIVISION_BY_ZERO: &str = "22012";
    pub(crate) const CHARACTER_NOT_IN_REPERTOIRE: &str = "22021";
    pub(crate) const INVALID_PARAMETER_VALUE: &str = "22023";
    pub(crate) const INVALID_TEXT: &str = "22P02";
    pub(crate) const INVALID_BINARY: &str = "22P03";
    pub(crate) const ACTIVE_TRANSACTION: &str = "25001";
    pub(crate) const NO_ACTIVE_TRANSACTION: &str = "25P01";
    pub(crate) const FAILED_TRANSACTION: &str = "25P02";
    pub(crate) const INVALID_STATEMENT_NAME: &str = "26000";
    pub(crate) const INVALID_AUTHORIZATION: &str = "28000";
    pub(crate) const INVALID_PASSWORD: &str = "28P01";
    pub(crate) const INVALID_CURSOR_NAME: &str = "34000";
    pub(crate) const SYNTAX_ERROR: &str = "42601";
    pub(crate) const UNDEFINED_COLUMN: &str = "42703";
    pub(crate) const UNDEFINED_OBJECT: &str = "42704";
    pub(crate) const UNDEFINED_FUNCTION: &str = "42883";
    pub(crate) const UNDEFINED_TABLE: &str = "42P01";
    pub(crate) const DUPLICATE_CURSOR: &str = "42P03";
    pub(crate) const DUPLICATE_STATEMENT: &str = "42P05";
    pub(crate) const OUT_OF_MEMORY: &str = "53200";
    pub(crate) const TOO_MANY_CONNECTIONS: &str = "53300";
    pub(crate) const PROGRAM_LIMIT: &str = "54000";
    pub(crate) const TOO_MANY_COLUMNS: &str = "54011";
    pub(crate) const QUERY_CANCELED: &str = "57014";
    pub(crate) const ADMIN_SHUTDOWN: &str = "57P01";
    pub(crate) const CANNOT_CONNECT_NOW: &str = "57P03";
    pub(crate) const IDLE_SESSION_TIMEOUT: &str = "57P05";
    pub(crate) const SYSTEM_ERROR: &str = "58000";
    pub(crate) const INTERNAL_ERROR: &str = "XX000";
}

/// An error for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PgError {
    /// SQLSTATE.
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Character of the statement, from 1.
    pub(crate) position: Option<usize>,
    /// Whether the connection ends with it.
    pub(crate) is_fatal: bool,
}

pub(crate) type PgResult<T> = Result<T, PgError>;

impl PgError {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, position: None, is_fatal: false }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn fatal(self) -> Self {
        Self { is_fatal: true, ..self }
    }

    pub(crate) fn syntax(message: impl Into<String>) -> Self {
        Self::new(code::SYNTAX_ERROR, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(code::FEATURE_NOT_SUPPORTED, message)
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(code::PROTOCOL_VIOLATION, message).fatal()
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(code::QUERY_CANCELED, "canceling statement due to user request")
    }

    /// The error of a service that failed to answer `sql`.
    pub(crate) fn of_statement(failure: Failure, sql: &str) -> Self {
        let position = failure.position.and_then(|(line, column)| character(sql, line, column));
        Self { position, ..failure.into() }
    }
}

/// The character of a statement at a line and column, all from 1.
fn character(sql: &str, line: u32, column: u32) -> Option<usize> {
    let before: usize =
        sql.split_inclusive('\n').take(line.checked_sub(1)? as usize).map(|l| l.chars().count()).sum();
    let at = before + column as usize;
    (column > 0 && at <= sql.chars().count() + 1).then_some(at)
}

impl From<Failure> for PgError {
    fn from(failure: Failure) -> Self {
        let code = match failure.code {
            ErrorCode::Sql => statement_code(&failure.message),
            ErrorCode::Data | ErrorCode::Parameters => data_code(&failure.message),
            ErrorCode::Protocol => code::PROTOCOL_VIOLATION,
            ErrorCode::Unauthenticated => code::INVALID_AUTHORIZATION,
            ErrorCode::Forbidden => code::FEATURE_NOT_SUPPORTED,
            ErrorCode::Source => code::SYSTEM_ERROR,
            ErrorCode::RowTooLarge => code::PROGRAM_LIMIT,
            // With the bytes that were needed, it is a limit of memory.
            ErrorCode::Limit if failure.needed_bytes.is_some() => code::OUT_OF_MEMORY,
            ErrorCode::Limit => code::PROGRAM_LIMIT,
            ErrorCode::Cancelled | ErrorCode::Stalled => code::QUERY_CANCELED,
            ErrorCode::Busy => code::TOO_MANY_CONNECTIONS,
            ErrorCode::ShuttingDown => code::ADMIN_SHUTDOWN,
            ErrorCode::Lost | ErrorCode::Peer | ErrorCode::Moved => code::CONNECTION_FAILURE,
            _ => code::INTERNAL_ERROR,
        };
        Self { code, message: failure.message, hint: failure.hint, position: None, is_fatal: false }
    }
}

/// The code of a statement that is not valid. A failure has one kind for all reasons. Tools react to unknown tables,
/// columns and functions, so these are told apart by the text; a reason that is not recognised is a syntax error.
fn statement_code(message: &str) -> &'static str {
    let lower = message.to_ascii_lowercase();
    let has = |part: &str| lower.contains(part);
    if has("table") && (has("not found") || has("unknown table") || has("no table") || has("not exist")) {
        code::UNDEFINED_TABLE
    } else if has("no field") || (has("column") && (has("not found") || has("unknown"))) {
        code::UNDEFINED_COLUMN
    } else if has("function") && (has("invalid") || has("unknown") || has("not found") || has("no function"))
    {
        code::UNDEFINED_FUNCTION
    } else {
        code::SYNTAX_ERROR
    }
}

fn data_code(message: &str) -> &'static str {
    let lower = message.to_ascii_lowercase();
    if lower.contains("divide by zero") || lower.contains("division by zero") {
        code::DIVISION_BY_ZERO
    } else if lower.contains("overflow") || lower.contains("out of range") {
        code::NUMERIC_OUT_OF_RANGE
    } else if lower.contains("cast") || lower.contains("parse") {
        code::INVALID_TEXT
    } else {
        code::DATA_EXCEPTION
    }
}

impl From<ArrowError> for PgError {
    fn from(error: ArrowError) -> Self {
        Self::new(code::DATA_EXCEPTION, error.to_string())
    }
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error("the client has closed the connection")]
    Closed,
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("{}", .0.message)]
    Fatal(PgError),
    #[error("the client took nothing for {0} seconds")]
    Stalled(u64),
    #[error("the connection was not authenticated in time")]
    Late,
}

/// Either an error for the client, after which the connection goes on, or its end.
#[derive(Debug)]
pub(crate) enum Interruption {
    Error(PgError),
    End(SessionEnd),
}

impl From<PgError> for Interruption {
    fn from(error: PgError) -> Self {
        if error.is_fatal { Self::End(SessionEnd::Fatal(error)) } else { Self::Error(error) }
    }
}

impl From<SessionEnd> for Interruption {
    fn from(end: SessionEnd) -> Self {
        Self::End(end)
    }
}

impl From<std::io::Error> for Interruption {
    fn from(error: std::io::Error) -> Self {
        Self::End(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_codes_that_clients_know() {
        let check = |kind, message: &str, expected: &str| {
            assert_eq!(PgError::from(Failure::new(kind, message)).code, expected, "{message}");
        };
        check(ErrorCode::Sql, "table 'datafusion.public.x' not found", "42P01");
        check(ErrorCode::Sql, "No field named x", "42703");
        check(ErrorCode::Sql, "Invalid function 'f'", "42883");
        check(ErrorCode::Sql, "Expected an expression, found EOF", "42601");
        check(ErrorCode::Data, "Divide by zero", "22012");
        check(ErrorCode::Cancelled, "x", "57014");
        check(ErrorCode::Forbidden, "x", "0A000");
    }

    #[test]
    fn positions_count_characters() {
        assert_eq!(character("ä\nselect x", 2, 8), Some(10));
        assert_eq!(character("select", 1, 1), Some(1));
        assert_eq!(character("select", 3, 80), None);
    }
}
