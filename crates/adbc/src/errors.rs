//! Errors of the library as those of ADBC: a status, SQLSTATE, and the hint in the text and the details.

use std::ffi::c_char;

use adbc_core::error::{Error, Status};
use lightship::ErrorKind;

pub(crate) fn error(status: Status, message: impl Into<String>) -> Error {
    Error::with_message_and_status(message, status)
}

pub(crate) fn not_implemented(what: &str) -> Error {
    error(Status::NotImplemented, format!("not implemented: {what}"))
}

pub(crate) fn from_library(failure: &lightship::Error) -> Error {
    let sqlstate = failure.sqlstate();
    let mut error = error(status(failure.kind, sqlstate, failure.code.as_deref()), failure.with_hint());
    if let Some(place) = &failure.place
        && !error.message.starts_with(&**place)
    {
        error.message = format!("{place}: {}", error.message);
    }
    for (to, from) in error.sqlstate.iter_mut().zip(sqlstate.unwrap_or_default().bytes()) {
        *to = from as c_char;
    }
    // MySQL numbers its errors.
    error.vendor_code = failure.code.as_ref().and_then(|code| code.parse().ok()).unwrap_or_default();
    let hint = failure.hint.iter().map(|hint| ("lightship.hint".to_owned(), hint.as_bytes().to_vec()));
    let kind = format!("{:?}", failure.kind).to_lowercase().into_bytes();
    error.details = Some(hint.chain([("lightship.kind".to_owned(), kind)]).collect());
    error
}

fn status(kind: ErrorKind, sqlstate: Option<&str>, number: Option<&str>) -> Status {
    // MySQL's number of a table that exists.
    if number == Some("1050") {
        return Status::AlreadyExists;
    }
    let code = sqlstate.unwrap_or_default();
    match (code, code.get(..2).unwrap_or_default()) {
        ("42P01" | "3F000" | "3D000", _) => Status::NotFound,
        ("42P07", _) => Status::AlreadyExists,
        ("42501", _) => Status::Unauthorized,
        ("57014", _) => Status::Cancelled,
        (_, "28") => Status::Unauthenticated,
        (_, "23") => Status::Integrity,
        (_, "22") => Status::InvalidData,
        (_, "0A") => Status::NotImplemented,
        (_, "42") => Status::InvalidArguments,
        _ => match kind {
            ErrorKind::Usage => Status::InvalidArguments,
            ErrorKind::Network | ErrorKind::BrokenPipe => Status::IO,
            ErrorKind::Data => Status::InvalidData,
            ErrorKind::Internal => Status::Internal,
            ErrorKind::Cancelled => Status::Cancelled,
            _ => Status::Unknown,
        },
    }
}
