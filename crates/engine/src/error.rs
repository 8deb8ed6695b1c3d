//! Errors of queries and tables, and how they are reported to clients.

use std::sync::Arc;

use arrow_schema::ArrowError;
use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use lightship_rangefile::RangeError;
use lightship_sources::SourceError;
use lightship_sources::objects::{ObjectError, ObjectErrorKind};
use lightship_wire::control::{ErrorCode, Failure, Reason};

use crate::threads::{QueryPhase, panicked};

/// Result of this crate.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// Why a query or a table failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The statement is not valid SQL, or names something that does not exist.
    #[error("{message}")]
    Sql {
        /// What is wrong.
        message: String,
        /// Line and column, from 1, where known.
        position: Option<(u32, u32)>,
        /// What may have been meant.
        hint: Option<String>,
        /// What programs may react to.
        reason: Option<Reason>,
    },
    /// The values of a statement's parameters are too few, too many, or of the wrong type.
    #[error("{message}")]
    Parameters {
        /// What is wrong.
        message: String,
        /// What to do.
        hint: String,
    },
    /// The statement does more than read.
    #[error("{0}")]
    Forbidden(String),
    /// A file or database behind a table failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A file behind a table failed.
    #[error("{0}")]
    File(String),
    /// The contents of a file can't be read as rows of the table.
    #[error("{message}")]
    BadFile {
        /// The file, the line where known, and what is wrong.
        message: String,
        /// What to do.
        hint: String,
    },
    /// A value can't be computed.
    #[error("{0}")]
    Data(String),
    /// A value can't be computed, for a reason that programs may react to.
    #[error("{message}")]
    Value {
        /// What can't be computed.
        message: String,
        /// Why.
        reason: Reason,
    },
    /// More memory was needed than is available.
    #[error("{message}")]
    Limit {
        /// What needed the memory, and which limit it exceeds.
        message: String,
        /// How much was needed, where known.
        needed_bytes: Option<u64>,
    },
    /// The statement is too large, too deep, or reads tables too many times.
    #[error("{message}")]
    TooComplex {
        /// Which limit it exceeds.
        message: String,
        /// Line and column, from 1, where known.
        position: Option<(u32, u32)>,
        /// What to do instead.
        hint: Option<String>,
    },
    /// Another node of the cluster has failed, or the connection to it.
    #[error("{0}")]
    Remote(Failure),
    /// Settings that contradict each other.
    #[error("{0}")]
    Config(String),
    /// An internal error of the engine.
    #[error("{0}")]
    Internal(String),
    /// An internal error of the engine, such as a panic, that ended only one query.
    #[error("internal error while {part} the query: {message}")]
    Panic {
        /// What the engine was doing.
        part: QueryPhase,
        /// The message of the panic or error.
        message: String,
    },
}

impl From<RangeError> for EngineError {
    fn from(error: RangeError) -> Self {
        Self::Remote(error.to_failure())
    }
}

impl EngineError {
    /// The error as it is sent to a client.
    pub fn to_failure(&self) -> Failure {
        let code = match self {
            Self::Sql { .. } => ErrorCode::Sql,
            Self::Parameters { .. } => ErrorCode::Parameters,
            Self::Forbidden(_) => ErrorCode::Forbidden,
            Self::Source(SourceError::Busy { .. }) => ErrorCode::Busy,
            Self::Source(SourceError::RowTooLarge { .. }) => ErrorCode::Limit,
            Self::Source(SourceError::Object(error)) if error.kind == ObjectErrorKind::Unreachable => {
                ErrorCode::Lost
            }
            Self::Source(_) | Self::File(_) => ErrorCode::Source,
            Self::Remote(failure) => return failure.clone(),
            Self::Data(_) | Self::Value { .. } | Self::BadFile { .. } => ErrorCode::Data,
            Self::Limit { .. } | Self::TooComplex { .. } => ErrorCode::Limit,
            Self::Config(_) | Self::Internal(_) | Self::Panic { .. } => ErrorCode::Internal,
        };
        let mut failure = Failure::new(code, self.to_string());
        match self {
            Self::Sql { reason, .. } => failure.reason = *reason,
            Self::Value { reason, .. } => failure.reason = Some(*reason),
            Self::Limit { .. } => failure.reason = Some(Reason::OutOfMemory),
            _ => {}
        }
        match self {
            Self::Sql { position, hint, .. } | Self::TooComplex { position, hint, .. } => {
                (failure.position, failure.hint) = (*position, hint.clone());
            }
            Self::Panic { .. } => {
                failure.hint =
                    Some("other queries are not affected; try to write this query differently".into());
            }
            Self::Forbidden(_) => {
                failure.hint = Some("a node runs only queries that read the tables it serves".into());
            }
            Self::BadFile { hint, .. } | Self::Parameters { hint, .. } => failure.hint = Some(hint.clone()),
            Self::Source(SourceError::RowTooLarge { bytes, .. }) => {
                failure.needed_bytes = Some(*bytes);
                failure.hint = Some("leave out the column, or select only parts of its values".into());
            }
            Self::Source(error) => {
                failure.retryable = error.retryable();
                if let SourceError::Object(error) = error {
                    failure.hint.clone_from(&error.hint);
                }
                if matches!(error, SourceError::Busy { .. }) {
                    failure.hint = Some(
                        "try again, or let the node open more connections (--source-connections)".into(),
                    );
                }
            }
            Self::Limit { needed_bytes, .. } => {
                failure.needed_bytes = *needed_bytes;
                failure.hint = Some(
                    "raise --query-memory or --table-memory of the node, or --memory of a query over files"
                        .into(),
                );
            }
            _ => {}
        }
        failure
    }
}

impl From<DataFusionError> for EngineError {
    fn from(error: DataFusionError) -> Self {
        use DataFusionError as E;
        if let Some(diagnostic) = error.diagnostic() {
            let reason = reason_of(error.find_root());
            let position = diagnostic.span.map(|span| (span.start.line as u32, span.start.column as u32));
            let help = diagnostic
                .notes
                .iter()
                .map(|n| &n.message)
                .chain(diagnostic.helps.iter().map(|h| &h.message));
            let hint = help.cloned().collect::<Vec<_>>().join("; ");
            return Self::Sql {
                message: diagnostic.message.clone(),
                position,
                hint: Some(hint).filter(|hint| !hint.is_empty()),
                reason,
            };
        }
        if let Some(error) = ObjectError::find(&error) {
            return Self::Source(error.clone().into());
        }
        match error {
            E::Context(_, inner) | E::Diagnostic(_, inner) => Self::from(*inner),
            E::Shared(inner) => match Arc::try_unwrap(inner) {
                Ok(inner) => Self::from(inner),
                Err(shared) => Self::of_shared(&shared),
            },
            E::Collection(mut errors) if !errors.is_empty() => Self::from(errors.swap_remove(0)),
            E::External(inner) => {
                let inner = match inner.downcast::<Self>() {
                    Ok(own) => return *own,
                    Err(other) => other,
                };
                match inner.downcast::<SourceError>() {
                    Ok(source) => Self::Source(*source),
                    Err(other) => match other.downcast::<DataFusionError>() {
                        Ok(inner) => Self::from(*inner),
                        Err(other) => Self::Internal(other.to_string()),
                    },
                }
            }
            E::ExecutionJoin(error) => match error.try_into_panic() {
                Ok(panic) => panicked(QueryPhase::Running, panic),
                Err(error) => Self::Internal(error.to_string()),
            },
            E::ArrowError(inner, context) => match *inner {
                ArrowError::ExternalError(inner) => Self::from(E::External(inner)),
                inner => Self::of_shared(&E::ArrowError(Box::new(inner), context)),
            },
            error => Self::of_shared(&error),
        }
    }
}

impl EngineError {
    /// The error that an error of DataFusion contains, as far as it can be copied.
    pub(crate) fn of_shared(error: &DataFusionError) -> Self {
        use DataFusionError as E;
        let mut message = error.message().into_owned();
        // DataFusion's internal errors end with a request to report them to DataFusion, also inside
        // other texts.
        if let Some(end) = message.find(REPORT_REQUEST) {
            message.truncate(end);
        }
        match error {
            E::SQL(error, _) => {
                use datafusion::sql::sqlparser::parser::ParserError;
                let message = match &**error {
                    ParserError::RecursionLimitExceeded => {
                        return Self::TooComplex {
                            message: "the statement has too many nested parentheses or queries".into(),
                            position: None,
                            hint: Some("move inner queries to a WITH clause".into()),
                        };
                    }
                    ParserError::ParserError(text) | ParserError::TokenizerError(text) => text.clone(),
                };
                let position = position_in(&message);
                Self::Sql { message, position, hint: None, reason: Some(Reason::Syntax) }
            }
            E::Plan(_) | E::SchemaError(_, _) | E::NotImplemented(_) | E::Configuration(_) => {
                let hint = repeats_a_name(error)
                    .then(|| "name one of the columns in the query, as in `select a, a as a_2`".into());
                Self::Sql { message, position: None, hint, reason: reason_of(error) }
            }
            E::ArrowError(_, _) | E::Execution(_) => match reason_of(error) {
                Some(reason) => Self::Value { message, reason },
                None => Self::Data(message),
            },
            // DataFusion says this when the types of a BETWEEN can't be compared: a mistake in the statement.
            E::Internal(fault) if fault.starts_with("Failed to coerce types") => Self::Sql {
                message: fault.clone(),
                position: None,
                hint: Some("cast one of the operands".into()),
                reason: None,
            },
            E::Internal(fault) => Self::Panic { part: QueryPhase::Running, message: fault.clone() },
            E::ResourcesExhausted(_) => Self::Limit { message, needed_bytes: None },
            E::ParquetError(_) => Self::bad_file(message, "a Parquet file is damaged: write it again"),
            E::IoError(_) | E::ObjectStore(_) => Self::File(message),
            E::Context(_, inner) | E::Diagnostic(_, inner) => Self::of_shared(inner),
            E::Shared(inner) => Self::of_shared(inner),
            E::External(inner) => match inner.downcast_ref::<Self>() {
                Some(own) => own.of_same(),
                None => match inner.downcast_ref::<SourceError>() {
                    Some(source) => Self::File(source.to_string()),
                    None => match inner.downcast_ref::<DataFusionError>() {
                        Some(inner) => Self::of_shared(inner),
                        None => Self::Internal(message),
                    },
                },
            },
            _ => Self::Internal(message),
        }
    }
}

impl EngineError {
    /// A file that can't be read as rows of the table, and what to do.
    pub(crate) fn bad_file(message: String, hint: impl Into<String>) -> Self {
        Self::BadFile { message, hint: hint.into() }
    }

    /// A file that can't be read.
    pub(crate) fn reading(path: &std::path::Path, error: &std::io::Error) -> Self {
        match ObjectError::find(error) {
            // It names the object.
            Some(error) => Self::Source(error.clone().into()),
            None => Self::File(format!("{}: {error}", path.display())),
        }
    }

    /// A node that has left the cluster since the query was planned.
    pub(crate) fn gone(name: &str) -> Self {
        let failure = Failure::new(
            ErrorCode::Peer,
            format!("node {name} left the cluster after the query was planned"),
        );
        Self::Remote(Failure { retryable: true, ..failure })
    }

    /// A copy of the error, for each of those that wait for the same failed work.
    fn of_same(&self) -> Self {
        match self {
            Self::Sql { message, position, hint, reason } => Self::Sql {
                message: message.clone(),
                position: *position,
                hint: hint.clone(),
                reason: *reason,
            },
            Self::Parameters { message, hint } => {
                Self::Parameters { message: message.clone(), hint: hint.clone() }
            }
            Self::Value { message, reason } => Self::Value { message: message.clone(), reason: *reason },
            Self::Forbidden(message) => Self::Forbidden(message.clone()),
            Self::Source(SourceError::Object(error)) => Self::Source(error.clone().into()),
            Self::Source(source) => Self::File(source.to_string()),
            Self::File(message) => Self::File(message.clone()),
            Self::BadFile { message, hint } => Self::bad_file(message.clone(), hint),
            Self::Data(message) => Self::Data(message.clone()),
            Self::Limit { message, needed_bytes } => {
                Self::Limit { message: message.clone(), needed_bytes: *needed_bytes }
            }
            Self::Remote(failure) => Self::Remote(failure.clone()),
            Self::Config(message) => Self::Config(message.clone()),
            Self::Internal(message) => Self::Internal(message.clone()),
            Self::TooComplex { message, position, hint } => {
                Self::TooComplex { message: message.clone(), position: *position, hint: hint.clone() }
            }
            Self::Panic { part, message } => Self::Panic { part: *part, message: message.clone() },
        }
    }
}

impl From<EngineError> for DataFusionError {
    fn from(error: EngineError) -> Self {
        Self::External(Box::new(error))
    }
}

/// What programs may react to in an error of DataFusion's.
fn reason_of(error: &DataFusionError) -> Option<Reason> {
    Some(match error {
        DataFusionError::SQL(_, _) => Reason::Syntax,
        DataFusionError::SchemaError(fault, _) => match **fault {
            SchemaError::FieldNotFound { .. } => Reason::UndefinedColumn,
            SchemaError::AmbiguousReference { .. } => Reason::AmbiguousColumn,
            SchemaError::DuplicateQualifiedField { .. } | SchemaError::DuplicateUnqualifiedField { .. } => {
                Reason::DuplicateColumn
            }
        },
        DataFusionError::NotImplemented(_) => Reason::Unsupported,
        DataFusionError::ArrowError(fault, _) => match **fault {
            ArrowError::DivideByZero => Reason::DivisionByZero,
            ArrowError::ArithmeticOverflow(_) => Reason::OutOfRange,
            ArrowError::CastError(_) | ArrowError::ParseError(_) => Reason::InvalidValue,
            _ => return None,
        },
        _ => return None,
    })
}

/// Whether a list of columns has a name twice.
fn repeats_a_name(error: &DataFusionError) -> bool {
    match error {
        DataFusionError::Plan(fault) => fault.contains("require unique expression names"),
        DataFusionError::SchemaError(fault, _) => !matches!(**fault, SchemaError::FieldNotFound { .. }),
        _ => false,
    }
}

/// The start of the text that DataFusion adds to its internal errors.
const REPORT_REQUEST: &str = ".\nThis issue was likely caused by a bug in DataFusion";

/// The position of a syntax error, which the parser gives only in its message.
fn position_in(message: &str) -> Option<(u32, u32)> {
    let (_, rest) = message.rsplit_once("Line: ")?;
    let (line, rest) = rest.split_once(", Column: ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((line.parse().ok()?, rest[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_errors_do_not_ask_for_reports_to_datafusion() {
        let fault = || DataFusionError::Internal("no such partition".into());
        let cases = [
            fault(),
            DataFusionError::Shared(Arc::new(fault())),
            DataFusionError::Context("while joining".into(), Box::new(fault())),
            DataFusionError::Execution(fault().to_string()),
            DataFusionError::External(Box::new(fault())),
        ];
        for error in cases {
            let failure = EngineError::from(error).to_failure();
            assert!(failure.message.ends_with("no such partition"), "{failure:?}");
        }
    }
}
