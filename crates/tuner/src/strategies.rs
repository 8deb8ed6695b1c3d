//! The five fixed strategies, without tuning, that the thesis compares with.

use serde::{Deserialize, Serialize};

use crate::cost::Cost;
use crate::error::Result;
use crate::model::{Limits, LinkModel, Plan, Point, Query};

/// A driver's default rows per batch and bytes per message.
const ROWS_DEFAULT: f64 = 15.0;
const MESSAGE_BYTES_DEFAULT: f64 = 8192.0;

/// A fixed way to set both sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Batches of 15 rows, messages of 8 KB: a driver's defaults.
    Default,
    /// The largest message, and 15 rows.
    LargestMessage,
    /// The largest batch, and 8 KB.
    LargestBatch,
    /// The largest of both.
    LargestBoth,
    /// A batch is one message, the largest.
    BatchOfOneMessage,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Default, Self::LargestMessage, Self::LargestBatch, Self::LargestBoth, Self::BatchOfOneMessage];

    /// The strategy's plan for a query, with its time and memory. Sizes are clamped to the limits, and a
    /// batch also to the result.
    ///
    /// # Errors
    /// As [`newton`](crate::newton).
    pub fn plan(self, model: &LinkModel, query: &Query, limits: &Limits) -> Result<Plan> {
        let region = limits.region(query)?;
        let cost = Cost::new(model, query)?;
        let largest = limits.message_bytes_max as f64;
        let (x, y) = match self {
            Self::Default => (ROWS_DEFAULT * query.row_bytes, MESSAGE_BYTES_DEFAULT),
            Self::LargestMessage => (ROWS_DEFAULT * query.row_bytes, largest),
            Self::LargestBatch => (region.x_max, MESSAGE_BYTES_DEFAULT),
            Self::LargestBoth => (region.x_max, largest),
            Self::BatchOfOneMessage => (largest, largest),
        };
        // As in practice, messages may be set larger than batches.
        let at = Point { x: x.min(region.x_max), y: y.max(region.y_min).min(largest) };
        Ok(cost.plan_at(query, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thesis::{LIMITS, Q3, TEN_GIGABIT};

    #[test]
    fn each_strategy_has_its_sizes() -> Result<()> {
        let expected = [(15, 8192), (15, 32_767), (1_111_111, 8192), (1_111_111, 32_767), (1213, 32_767)];
        for (strategy, sizes) in Strategy::ALL.into_iter().zip(expected) {
            let plan = strategy.plan(&TEN_GIGABIT, &Q3, &LIMITS)?;
            assert_eq!((plan.batch_rows, plan.message_bytes), sizes, "{strategy:?}");
        }
        Ok(())
    }

    #[test]
    fn large_rows_fit_every_strategy() -> Result<()> {
        let query = Query { volume_bytes: 1 << 30, row_bytes: 100_000.0 };
        for strategy in Strategy::ALL {
            let plan = strategy.plan(&TEN_GIGABIT, &query, &LIMITS)?;
            assert!(plan.batch_rows >= 1 && plan.batch_bytes <= 30_000_000, "{plan:?}");
        }
        Ok(())
    }
}
