//! The inputs of the cost model: the link's two planes, the query, the limits.

use serde::{Deserialize, Serialize};

use crate::error::{Result, TunerError, within};

/// Larger sizes are rejected, so that no formula can overflow.
pub(crate) const BYTES_MAX: f64 = (1u64 << 60) as f64;
/// Nearly constant columns compress to less than a byte per row.
const ROW_BYTES_MIN: f64 = 1e-6;
/// In seconds, or seconds per byte. Larger coefficients are rejected for the same reason.
const COEFFICIENT_MAX: f64 = 1e6;

/// The time of one message as a plane over batch size and message size:
/// `per_batch_byte * F^B + per_message_byte * M + constant`, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Plane {
    /// Seconds per byte of the batch (F^B). The thesis' a.
    pub per_batch_byte: f64,
    /// Seconds per byte of the message (M). The thesis' b.
    pub per_message_byte: f64,
    /// Seconds independent of the sizes. The thesis' c.
    pub constant: f64,
}

impl Plane {
    /// From a, b and c, in the order of the thesis.
    pub const fn new(per_batch_byte: f64, per_message_byte: f64, constant: f64) -> Self {
        Self { per_batch_byte, per_message_byte, constant }
    }

    /// Seconds for a message of `message_bytes` in a batch of `batch_bytes`.
    pub fn seconds(&self, batch_bytes: f64, message_bytes: f64) -> f64 {
        self.per_batch_byte * batch_bytes + self.per_message_byte * message_bytes + self.constant
    }

    fn check(&self) -> Result<()> {
        within("coefficient of the batch size", self.per_batch_byte, 0.0, COEFFICIENT_MAX)?;
        within("coefficient of the message size", self.per_message_byte, 0.0, COEFFICIENT_MAX)?;
        within("constant coefficient", self.constant, 0.0, COEFFICIENT_MAX)
    }
}

/// The cost of a link, independent of the query. Measured by [`crate::calibrate`].
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LinkModel {
    /// alpha: the first message of a batch, including the wait for it.
    pub first: Plane,
    /// beta: every other message; these follow without waiting.
    pub next: Plane,
}

impl LinkModel {
    /// # Errors
    /// [`TunerError::OutOfRange`] if a coefficient is negative, not finite, or over a million
    /// seconds.
    pub fn check(&self) -> Result<()> {
        self.first.check()?;
        self.next.check()
    }
}

/// The result to be transferred.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Query {
    /// V: bytes of the result.
    pub volume_bytes: u64,
    /// Mean bytes of a row.
    pub row_bytes: f64,
}

impl Query {
    /// # Errors
    /// [`TunerError::OutOfRange`] if a row is smaller than a millionth of a byte, or either size
    /// is over 2^60 bytes.
    pub fn check(&self) -> Result<()> {
        within("volume in bytes", self.volume(), 0.0, BYTES_MAX)?;
        within("size of a row in bytes", self.row_bytes, ROW_BYTES_MIN, BYTES_MAX)
    }

    pub(crate) fn volume(&self) -> f64 {
        self.volume_bytes as f64
    }

    /// Rows of the result; at least one, because an empty result needs a reply too.
    pub(crate) fn rows(&self) -> f64 {
        (self.volume() / self.row_bytes).ceil().max(1.0)
    }
}

/// The limits for the sizes of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Smallest message.
    pub message_bytes_min: u64,
    /// Largest message.
    pub message_bytes_max: u64,
    /// Largest batch: F^B_max.
    pub batch_bytes_max: u64,
}

impl Limits {
    /// # Errors
    /// [`TunerError::OutOfRange`] if a limit is zero or over 2^60, or the smallest message is larger
    /// than the largest.
    pub fn check(&self) -> Result<()> {
        within("largest message in bytes", self.message_bytes_max as f64, 1.0, BYTES_MAX)?;
        let max = self.message_bytes_max as f64;
        within("smallest message in bytes", self.message_bytes_min as f64, 1.0, max)?;
        within("largest batch in bytes", self.batch_bytes_max as f64, 1.0, BYTES_MAX)
    }

    /// The useful sizes for a query.
    pub(crate) fn region(&self, query: &Query) -> Result<Region> {
        self.check()?;
        query.check()?;
        if query.row_bytes > self.batch_bytes_max as f64 {
            let (row_bytes, batch_bytes_max) = (query.row_bytes, self.batch_bytes_max);
            return Err(TunerError::RowTooLarge { row_bytes, batch_bytes_max });
        }
        // A batch is at most the whole result.
        let x_max = (self.batch_bytes_max as f64).min(query.volume().max(query.row_bytes));
        let y_min = self.message_bytes_min as f64;
        Ok(Region {
            x_min: query.row_bytes.max(y_min).min(x_max),
            x_max,
            y_min,
            y_max: (self.message_bytes_max as f64).min(x_max).max(y_min),
        })
    }
}

/// A batch size and a message size, in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// F^B.
    pub(crate) x: f64,
    /// M.
    pub(crate) y: f64,
}

/// The sizes to choose from. A message is no larger than its batch, unless the whole result is
/// smaller than the smallest message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Region {
    pub(crate) x_min: f64,
    pub(crate) x_max: f64,
    pub(crate) y_min: f64,
    pub(crate) y_max: f64,
}

impl Region {
    pub(crate) fn clamp(&self, at: Point) -> Point {
        let x = at.x.max(self.x_min).min(self.x_max);
        let y = at.y.max(self.y_min).min(self.largest_message(x));
        Point { x, y }
    }

    /// The largest message in a batch of `x` bytes.
    pub(crate) fn largest_message(&self, x: f64) -> f64 {
        self.y_max.min(x).max(self.y_min)
    }

    pub(crate) fn at_both_maxima(&self, at: Point) -> bool {
        at.x >= self.x_max && at.y >= self.y_max
    }
}

/// The settings of a transfer, with their predicted time and memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// F: rows per batch.
    pub batch_rows: u64,
    /// F^B: bytes per batch.
    pub batch_bytes: u64,
    /// M: maximum bytes per message.
    pub message_bytes: u64,
    /// W: batches requested and not yet consumed. 1 in the thesis' model.
    pub window_batches: u64,
    /// Predicted time of the whole transfer, with ceilings.
    pub predicted_seconds: f64,
    /// Maximum bytes of rows in flight: `window_batches * batch_bytes`.
    pub memory_bytes: u64,
}

/// A batch of whole rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Batch {
    pub(crate) rows: f64,
    pub(crate) bytes: f64,
}

impl Batch {
    /// A batch of as many whole rows as fit into `bytes`, and at least one.
    pub(crate) fn fitting(query: &Query, bytes: f64) -> Self {
        Self::of(query, (bytes / query.row_bytes).floor().max(1.0))
    }

    pub(crate) fn of(query: &Query, rows: f64) -> Self {
        Self { rows, bytes: (rows * query.row_bytes).ceil() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thesis;

    #[test]
    fn invalid_inputs_are_rejected() {
        for bad in [f64::NAN, f64::INFINITY, -1e-12, 1e7] {
            for at in 0..6 {
                let mut model = thesis::TEN_GIGABIT;
                let terms = [&mut model.first, &mut model.next].map(|plane| {
                    [&mut plane.per_batch_byte, &mut plane.per_message_byte, &mut plane.constant]
                });
                for (i, term) in terms.into_iter().flatten().enumerate() {
                    if i == at {
                        *term = bad;
                    }
                }
                assert!(matches!(model.check(), Err(TunerError::OutOfRange { .. })), "{at}: {bad}");
            }
        }
        for row_bytes in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
            assert!(Query { volume_bytes: 1, row_bytes }.check().is_err(), "{row_bytes}");
        }
        assert!(Query { volume_bytes: u64::MAX, row_bytes: 1.0 }.check().is_err());
        let good = thesis::LIMITS;
        for limits in [
            Limits { message_bytes_min: 0, ..good },
            Limits { message_bytes_min: good.message_bytes_max + 1, ..good },
            Limits { message_bytes_max: u64::MAX, ..good },
            Limits { batch_bytes_max: 0, ..good },
        ] {
            assert!(limits.check().is_err(), "{limits:?}");
        }
    }

    #[test]
    fn the_region_is_limited_by_the_query() {
        let region = |volume_bytes, row_bytes| thesis::LIMITS.region(&Query { volume_bytes, row_bytes });
        let all = Region { x_min: 512.0, x_max: 30e6, y_min: 512.0, y_max: 32_767.0 };
        assert_eq!(region(1 << 40, 27.0), Ok(all));
        assert_eq!(region(2000, 27.0), Ok(Region { x_max: 2000.0, y_max: 2000.0, ..all }));
        let one = Region { x_min: 27.0, x_max: 27.0, y_min: 512.0, y_max: 512.0 };
        assert_eq!(region(27, 27.0), Ok(one));
        assert_eq!(region(0, 27.0), Ok(one));
        let (row_bytes, batch_bytes_max) = (30e6 + 1.0, 30_000_000);
        assert_eq!(region(1 << 40, row_bytes), Err(TunerError::RowTooLarge { row_bytes, batch_bytes_max }));
    }

    #[test]
    fn batches_consist_of_whole_rows() {
        let query = Query { volume_bytes: 1 << 30, row_bytes: 27.1 };
        assert_eq!(Batch::fitting(&query, 81.5), Batch { rows: 3.0, bytes: 82.0 });
        assert_eq!(Batch::fitting(&query, 100.0), Batch { rows: 3.0, bytes: 82.0 });
        assert_eq!(Batch::fitting(&query, 1.0), Batch { rows: 1.0, bytes: 28.0 });
    }
}
