//! What can be wrong with measurements, limits and queries.

/// Result of this crate.
pub type Result<T, E = TunerError> = std::result::Result<T, E>;

/// Inputs that no plan or model can be made of.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TunerError {
    /// A number that is not finite, or makes no sense.
    #[error("the {what} is {value:?}, and not between {min:?} and {max:?}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// What it is.
        value: f64,
        /// The least that makes sense.
        min: f64,
        /// The most that makes sense.
        max: f64,
    },
    /// One row alone is larger than a batch may be.
    #[error("a row takes {row_bytes} bytes, and a batch may have {batch_bytes_max}")]
    RowTooLarge {
        /// Mean size of a row.
        row_bytes: f64,
        /// The largest batch allowed, by its own limit or by the memory.
        batch_bytes_max: u64,
    },
    /// Fewer samples than a plane has coefficients.
    #[error("{found} samples of {what} messages, and at least {needed} are needed")]
    TooFewSamples {
        /// Of first or of next messages.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many it takes.
        needed: usize,
    },
    /// Batch size and message size change only together: what each costs can't be told apart.
    #[error("in the samples of {what} messages the sizes of batch and message change only together")]
    Collinear {
        /// Of first or of next messages.
        what: &'static str,
    },
    /// No point of a grid is within the limits.
    #[error("none of the {points} points of the grid is within the limits")]
    EmptyGrid {
        /// How many there are.
        points: usize,
    },
}

/// Checks that a number is finite and within `min..=max`.
pub(crate) fn within(what: &'static str, value: f64, min: f64, max: f64) -> Result<()> {
    // Written so that NaN is outside.
    if value >= min && value <= max { Ok(()) } else { Err(TunerError::OutOfRange { what, value, min, max }) }
}
