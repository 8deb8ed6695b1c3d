//! Errors in measurements, limits and queries.

/// A result whose error is [`TunerError`].
pub type Result<T, E = TunerError> = std::result::Result<T, E>;

/// Inputs from which no plan or model can be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TunerError {
    /// A number is not finite, or out of range.
    #[error("the {what} is {value:?}, expected {min:?} to {max:?}")]
    OutOfRange {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: f64,
        /// The minimum.
        min: f64,
        /// The maximum.
        max: f64,
    },
    /// A single row is larger than the largest batch.
    #[error("a row takes {row_bytes} bytes, but a batch may have at most {batch_bytes_max}")]
    RowTooLarge {
        /// Mean bytes of a row.
        row_bytes: f64,
        /// The largest batch that its limit and the memory allow.
        batch_bytes_max: u64,
    },
    /// There are fewer samples than a plane has coefficients.
    #[error("found {found} samples of {what} messages, but at least {needed} are needed")]
    TooFewSamples {
        /// The kind of messages: `first` or `next`.
        what: &'static str,
        /// The number of samples found.
        found: usize,
        /// The number of samples needed.
        needed: usize,
    },
    /// Batch size and message size vary only together, so their costs can't be separated.
    #[error("batch size and message size vary only together in the samples of {what} messages")]
    Collinear {
        /// The kind of messages: `first` or `next`.
        what: &'static str,
    },
    /// No point of a grid is within the limits.
    #[error("none of the {points} points of the grid is within the limits")]
    EmptyGrid {
        /// The number of points of the grid.
        points: usize,
    },
}

/// Checks that a number is finite and within `min..=max`.
pub(crate) fn within(what: &'static str, value: f64, min: f64, max: f64) -> Result<()> {
    // Written so that NaN is outside.
    if value >= min && value <= max { Ok(()) } else { Err(TunerError::OutOfRange { what, value, min, max }) }
}
