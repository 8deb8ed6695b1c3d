//! Failures as statuses of gRPC.

use lightship_wire::control::{ErrorCode, Failure};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// The most bytes of a message and of a hint. They are sent in headers, of which many clients accept 8 KiB, and each
/// byte may need three there.
const MESSAGE_BYTES_MAX: usize = 1536;
const HINT_BYTES_MAX: usize = 512;

/// The trailer with the number of the [`ErrorCode`], of which several have the same code in gRPC.
pub(crate) const CODE_TRAILER: &str = "lightship-code";
/// The trailer with what programs may react to, as SQLSTATE.
pub(crate) const SQLSTATE_TRAILER: &str = "lightship-sqlstate";
/// The trailer that says whether a retry may succeed.
pub(crate) const RETRYABLE_TRAILER: &str = "lightship-retryable";

fn code(failure: &Failure) -> Code {
    match failure.code {
        ErrorCode::Protocol | ErrorCode::Sql | ErrorCode::Data | ErrorCode::Parameters => {
            Code::InvalidArgument
        }
        ErrorCode::Unauthenticated => Code::Unauthenticated,
        ErrorCode::Forbidden => Code::PermissionDenied,
        ErrorCode::RowTooLarge | ErrorCode::Limit => Code::ResourceExhausted,
        ErrorCode::Cancelled => Code::Cancelled,
        ErrorCode::Stalled => Code::DeadlineExceeded,
        ErrorCode::Busy | ErrorCode::ShuttingDown => Code::Unavailable,
        _ if failure.retryable => Code::Unavailable,
        _ => Code::Internal,
    }
}

/// A failure as a status, with its message, position and hint.
pub(crate) fn status(failure: &Failure) -> Status {
    let mut message = cut(&failure.message, MESSAGE_BYTES_MAX).to_owned();
    if let Some((line, column)) = failure.position
        && !message.contains(&format!("line {line}"))
    {
        message.push_str(&format!(" (line {line}, column {column})"));
    }
    if let Some(hint) = &failure.hint {
        message.push_str(&format!(" (hint: {})", cut(hint, HINT_BYTES_MAX)));
    }
    let mut trailers = MetadataMap::new();
    trailers.insert(CODE_TRAILER, (failure.code as u16).into());
    if let Ok(retryable) = failure.retryable.to_string().parse() {
        trailers.insert(RETRYABLE_TRAILER, retryable);
    }
    if let Some(reason) = failure.reason {
        trailers.insert(SQLSTATE_TRAILER, MetadataValue::from_static(reason.sqlstate()));
    }
    Status::with_metadata(code(failure), message, trailers)
}

/// A status for something that a client sent and that is not valid.
pub(crate) fn invalid(message: impl Into<String>) -> Status {
    status(&Failure::new(ErrorCode::Protocol, message))
}

/// A status for something that this server does not do.
pub(crate) fn unsupported(message: impl Into<String>) -> Status {
    Status::unimplemented(message)
}

fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use lightship_wire::control::Reason;

    use super::*;

    #[test]
    fn failures_keep_their_message_and_kind() {
        for (error, expected) in [
            (ErrorCode::Sql, Code::InvalidArgument),
            (ErrorCode::Data, Code::InvalidArgument),
            (ErrorCode::Forbidden, Code::PermissionDenied),
            (ErrorCode::Busy, Code::Unavailable),
            (ErrorCode::Limit, Code::ResourceExhausted),
            (ErrorCode::Source, Code::Internal),
            (ErrorCode::Lost, Code::Unavailable),
            (ErrorCode::Internal, Code::Internal),
            (ErrorCode::Stalled, Code::DeadlineExceeded),
        ] {
            let status = status(&Failure::new(error, "what").hint("why"));
            assert_eq!(status.code(), expected, "{error:?}");
            assert_eq!(status.message(), "what (hint: why)");
            let number = status.metadata().get(CODE_TRAILER).unwrap().to_str().unwrap();
            assert_eq!(number, (error as u16).to_string());
        }
        let unknown = Failure::new(ErrorCode::Sql, "no such table").because(Reason::UndefinedTable);
        assert_eq!(status(&unknown).metadata().get(SQLSTATE_TRAILER).unwrap().to_str().unwrap(), "42P01");
        assert!(status(&Failure::new(ErrorCode::Sql, "x")).metadata().get(SQLSTATE_TRAILER).is_none());
        let retryable = Failure { retryable: true, ..Failure::new(ErrorCode::Source, "gone") };
        assert_eq!(status(&retryable).code(), Code::Unavailable);
        let placed = Failure { position: Some((1, 8)), ..Failure::new(ErrorCode::Sql, "no such column") };
        assert_eq!(status(&placed).message(), "no such column (line 1, column 8)");
    }

    #[test]
    fn long_messages_fit_in_headers() {
        let failure = Failure::new(ErrorCode::Sql, "ä".repeat(100_000)).hint("ö".repeat(100_000));
        let bytes: usize = status(&failure).message().len();
        assert!(bytes * 3 < 8 << 10, "{bytes}");
    }
}
