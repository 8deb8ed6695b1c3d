//! Exhaustive search over a grid of sizes: a baseline for the optimisers.

use serde::{Deserialize, Serialize};

use crate::cost::Cost;
use crate::error::{Result, TunerError};
use crate::model::{Batch, Limits, LinkModel, Plan, Point, Query};

/// All pairs of these batch sizes and message sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    /// F.
    pub batch_rows: Vec<u64>,
    /// M.
    pub message_bytes: Vec<u64>,
}

impl Grid {
    /// A grid within the limits: the smallest message size and its doublings, batches of 1, 2, 3, 5, 7,
    /// 10, 20, ... rows, and the largest of both.
    ///
    /// # Errors
    /// As [`newton`](crate::newton).
    pub fn over(query: &Query, limits: &Limits) -> Result<Self> {
        let region = limits.region(query)?;
        let up_to = |max: u64, sizes: Vec<u64>| -> Vec<u64> {
            sizes.into_iter().filter(|&size| size < max).chain(std::iter::once(max)).collect()
        };
        let doubles = (0..60).map_while(|power| limits.message_bytes_min.checked_shl(power));
        let decades = (0..18).flat_map(|power| [1, 2, 3, 5, 7].map(|digit| digit * 10u64.pow(power)));
        Ok(Self {
            batch_rows: up_to(Batch::fitting(query, region.x_max).rows as u64, decades.collect()),
            message_bytes: up_to(limits.message_bytes_max, doubles.collect()),
        })
    }

    /// The number of pairs.
    pub fn points(&self) -> usize {
        self.batch_rows.len() * self.message_bytes.len()
    }

    /// The pair with the least cost, with ceilings; the smaller batch if two cost the same. Pairs
    /// outside the limits are ignored. A batch is no larger than the result.
    ///
    /// # Errors
    /// [`TunerError::EmptyGrid`] if no pair is within the limits, and as
    /// [`newton`](crate::newton).
    pub fn best(&self, model: &LinkModel, query: &Query, limits: &Limits) -> Result<Plan> {
        limits.region(query)?;
        let cost = Cost::new(model, query)?;
        let batches = || {
            let sizes = self.batch_rows.iter().map(|&rows| (rows.max(1) as f64).min(query.rows()));
            sizes
                .map(|rows| Batch::of(query, rows))
                .filter(|batch| batch.bytes <= limits.batch_bytes_max as f64)
        };
        let messages = limits.message_bytes_min..=limits.message_bytes_max;
        let message_bytes = self.message_bytes.iter().filter(|bytes| messages.contains(bytes));
        let plans = message_bytes
            .flat_map(|&bytes| batches().map(move |batch| Point { x: batch.bytes, y: bytes as f64 }))
            .map(|point| cost.plan_at(query, point));
        let best = plans.min_by(|one, other| {
            let seconds = one.predicted_seconds.total_cmp(&other.predicted_seconds);
            seconds.then(one.batch_bytes.cmp(&other.batch_bytes))
        });
        best.ok_or(TunerError::EmptyGrid { points: self.points() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thesis::{self, LIMITS, Q3, TEN_GIGABIT};

    #[test]
    fn the_thesis_grid_has_629_pairs() {
        let grid = thesis::grid();
        assert_eq!((grid.points(), grid.batch_rows.len()), (629, 37));
        assert_eq!((grid.batch_rows[0], grid.batch_rows[36]), (110, 1_100_000));
        assert_eq!((grid.message_bytes[0], grid.message_bytes[16]), (1536, 32_767));
        assert!(grid.batch_rows.is_sorted() && grid.message_bytes.is_sorted());
    }

    #[test]
    fn a_grid_fits_any_limits() -> Result<()> {
        let narrow = Limits { message_bytes_min: 100, message_bytes_max: 450, batch_bytes_max: 300 };
        let grid = Grid::over(&Q3, &narrow)?;
        assert_eq!(
            (grid.batch_rows, grid.message_bytes),
            (vec![1, 2, 3, 5, 7, 10, 11], vec![100, 200, 400, 450])
        );
        let one = Limits { message_bytes_min: 1, message_bytes_max: 1, batch_bytes_max: 27 };
        assert_eq!(Grid::over(&Q3, &one)?.points(), 1);
        let wide = Limits { message_bytes_min: 1, message_bytes_max: 1 << 60, batch_bytes_max: 1 << 60 };
        let grid = Grid::over(&Query { volume_bytes: 1 << 60, row_bytes: 1e-6 }, &wide)?;
        assert!(grid.batch_rows.is_sorted() && grid.message_bytes.is_sorted() && grid.points() < 6000);
        let best = Grid::over(&Q3, &LIMITS)?.best(&TEN_GIGABIT, &Q3, &LIMITS)?;
        assert_eq!((best.batch_rows, best.message_bytes), (1_111_111, 32_767));
        Ok(())
    }

    #[test]
    fn best_finds_the_cheapest_pair() -> Result<()> {
        let best = thesis::grid().best(&TEN_GIGABIT, &Q3, &LIMITS)?;
        let cost = Cost::new(&TEN_GIGABIT, &Q3)?;
        for (rows, bytes) in [(110, 1536), (1_100_000, 32_767), (880_000, 30_720), (550_000, 32_767)] {
            assert!(best.predicted_seconds <= cost.seconds(f64::from(rows) * 27.0, f64::from(bytes)));
        }
        assert_eq!(best.message_bytes, 32_767);
        Ok(())
    }

    #[test]
    fn pairs_outside_the_limits_are_ignored() -> Result<()> {
        let narrow = Limits { message_bytes_min: 4096, message_bytes_max: 5000, batch_bytes_max: 30_000 };
        let best = thesis::grid().best(&TEN_GIGABIT, &Q3, &narrow)?;
        assert_eq!((best.message_bytes, best.batch_rows), (4096, 1100));
        let none = Limits { message_bytes_min: 100, message_bytes_max: 200, ..LIMITS };
        let found = thesis::grid().best(&TEN_GIGABIT, &Q3, &none);
        assert_eq!(found, Err(TunerError::EmptyGrid { points: 629 }));
        // A result of ten rows is a single batch.
        let ten = Query { volume_bytes: 270, row_bytes: 27.0 };
        assert_eq!(thesis::grid().best(&TEN_GIGABIT, &ten, &LIMITS)?.batch_rows, 10);
        Ok(())
    }
}
