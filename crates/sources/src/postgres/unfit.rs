//! Why a value can't be written to a column.

/// What is wrong with a value, and what a user can do.
#[derive(Debug)]
pub(super) struct Unfit {
    pub(super) reason: String,
    pub(super) hint: &'static str,
}

impl Unfit {
    #[cold]
    pub(super) fn new(reason: impl Into<String>, hint: &'static str) -> Self {
        Self { reason: reason.into(), hint }
    }
}
