//! Why a value can't be written to a column.

/// What is wrong with a value, and what a user can do.
#[derive(Debug)]
pub(crate) struct EncodeError {
    pub(crate) reason: String,
    pub(crate) hint: &'static str,
}

impl EncodeError {
    #[cold]
    pub(crate) fn new(reason: impl Into<String>, hint: &'static str) -> Self {
        Self { reason: reason.into(), hint }
    }
}
