//! Errors as clients of PostgreSQL know them: SQLSTATE, message, hint.

use arrow_schema::ArrowError;
use lightship_wire::control::{ErrorCode, Failure, Reason};

/// SQLSTATE codes (PostgreSQL's Appendix A).
pub(crate) mod code {
    pub(crate) const CONNECTION_FAILURE: &str = "08006";
    pub(crate) const PROTOCOL_VIOLATION: &str = "08P01";
    pub(crate) const FEATURE_NOT_SUPPORTED: &str = "0A000";
    pub(crate) const DATA_EXCEPTION: &str = "22000";
    pub(crate) const NUMERIC_OUT_OF_RANGE: &str = "22003";
    pub(crate) const DATETIME_OVERFLOW: &str = "22008";
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
    pub(crate) const STATEMENT_ERROR: &str = "42000";
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
        let of_kind = match failure.code {
            ErrorCode::Sql => code::STATEMENT_ERROR,
            ErrorCode::Data => code::DATA_EXCEPTION,
            ErrorCode::Parameters => code::INVALID_PARAMETER_VALUE,
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
        let code = failure.reason.map_or(of_kind, Reason::sqlstate);
        Self { code, message: failure.message, hint: failure.hint, position: None, is_fatal: false }
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
        let check = |kind, reason: Option<Reason>, expected: &str| {
            // The text means nothing.
            let failure = Failure::new(kind, "table 'x' not found").because(reason);
            assert_eq!(PgError::from(failure).code, expected, "{kind:?} {reason:?}");
        };
        check(ErrorCode::Sql, Some(Reason::UndefinedTable), "42P01");
        check(ErrorCode::Sql, Some(Reason::UndefinedColumn), "42703");
        check(ErrorCode::Sql, Some(Reason::UndefinedFunction), "42883");
        check(ErrorCode::Sql, Some(Reason::Syntax), "42601");
        check(ErrorCode::Sql, None, "42000");
        check(ErrorCode::Data, Some(Reason::DivisionByZero), "22012");
        check(ErrorCode::Data, Some(Reason::OutOfRange), "22003");
        check(ErrorCode::Data, None, "22000");
        check(ErrorCode::Limit, Some(Reason::OutOfMemory), "53200");
        check(ErrorCode::Cancelled, None, "57014");
        check(ErrorCode::Forbidden, None, "0A000");
    }

    #[test]
    fn positions_count_characters() {
        assert_eq!(character("ä\nselect x", 2, 8), Some(10));
        assert_eq!(character("select", 1, 1), Some(1));
        assert_eq!(character("select", 3, 80), None);
    }
}
