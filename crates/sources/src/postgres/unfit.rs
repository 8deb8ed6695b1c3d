//! Why a value can't be written to a column.

/// What is wrong with a value, and what a user can do.
#[derive(Debug)]
pub(super) struct EncodeError {
    pub(super) reason: String,
    pub(super) hint: &'static str,
}

impl EncodeError {
    #[cold]
    pub(super) fn new(reason: impl Into<String>, hint: &'static str) -> Self {
        Self { reason: reason.into(), hint }
    }
}
