//! Plans a transfer: chooses batch, message and window together, with the least memory that is nearly
//! as fast as any.

use serde::{Deserialize, Serialize};

use crate::error::{Result, within};
use crate::model::{Batch, Limits, Plan, Query, Region};
use crate::window::{Link, WindowCost};

/// The window, memory and tolerance of a plan, besides the [`Limits`] of its sizes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// Minimum batches in flight. It is above one if the caller fixes the window.
    pub window_batches_min: u64,
    /// Maximum batches in flight.
    pub window_batches_max: u64,
    /// Maximum bytes of rows in flight: W times F^B.
    pub memory_bytes_max: u64,
    /// The fraction of the least possible time that may be added to save memory.
    pub tolerance: f64,
}

impl Default for Budget {
    /// 1 to 64 batches, 32 MiB, 2%.
    fn default() -> Self {
        Self { window_batches_min: 1, window_batches_max: 64, memory_bytes_max: 32 << 20, tolerance: 0.02 }
    }
}

impl Budget {
    pub(crate) fn check(&self) -> Result<()> {
        within("largest window in batches", self.window_batches_max as f64, 1.0, f64::MAX)?;
        let max = self.window_batches_max as f64;
        within("smallest window in batches", self.window_batches_min as f64, 1.0, max)?;
        within("memory in bytes", self.memory_bytes_max as f64, 1.0, f64::MAX)?;
        within("tolerance", self.tolerance, 0.0, 1e3)
    }

    fn window_max(&self, batch_bytes: f64) -> u64 {
        let fitting = (self.memory_bytes_max as f64 / batch_bytes).floor() as u64;
        self.window_batches_max.min(fitting).max(self.window_batches_min).max(1)
    }

    /// The limits, with a batch small enough that the minimum window fits into the memory.
    pub(crate) fn within(&self, limits: &Limits) -> Limits {
        let share = self.memory_bytes_max / self.window_batches_min.max(1);
        Limits { batch_bytes_max: limits.batch_bytes_max.min(share), ..*limits }
    }
}

/// Sizes are tried in steps of this factor.
const FACTOR: f64 = std::f64::consts::SQRT_2;

/// Chooses batch, message and window together. Of all plans that take at most `1 + tolerance` times the
/// least time, it returns the one with the least memory, and of those the fastest.
///
/// Sizes are tried in steps of a square root of two, and then evened out, so that all batches of a
/// result have the same size, and all messages of a batch. A finer search could find a slightly better
/// plan.
///
/// # Errors
/// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) if an input is invalid,
/// [`TunerError::RowTooLarge`](crate::TunerError::RowTooLarge) if a row does not fit a batch or the
/// memory.
pub fn plan(link: &Link, query: &Query, limits: &Limits, budget: &Budget) -> Result<Plan> {
    choose(link, query, limits, budget).map(|(plan, _)| plan)
}

/// The plan, and an upper bound for the number of costs computed.
fn choose(link: &Link, query: &Query, limits: &Limits, budget: &Budget) -> Result<(Plan, usize)> {
    budget.check()?;
    let region = budget.within(limits).region(query)?;
    let cost = WindowCost::new(link, query)?;
    let sizes = sizes(query, &region, budget.memory_bytes_max as f64);
    let largest = |size: &Size| budget.window_max(size.batch.bytes);
    let seconds = |size: &Size, window| cost.seconds(size.batch.bytes, size.message_bytes, window);
    let fastest: Vec<_> = sizes.iter().map(|size| seconds(size, largest(size))).collect();
    let least = fastest.iter().copied().fold(f64::INFINITY, f64::min);
    let target = least * (1.0 + budget.tolerance);
    let mut evaluations = sizes.len();
    let mut best: Option<Plan> = None;
    for (size, _) in sizes.iter().zip(fastest).filter(|(_, seconds)| *seconds <= target) {
        // A larger window would need more memory than the best plan so far.
        let fitting = best.map_or(u64::MAX, |best| (best.memory_bytes as f64 / size.batch.bytes) as u64);
        if fitting == 0 {
            continue;
        }
        let windows = (budget.window_batches_min, largest(size).min(fitting));
        if windows.1 < windows.0 {
            continue;
        }
        // One evaluation for the largest window, one for each halving, one for the result.
        evaluations += 1;
        let Some(window_batches) = cost.window_for(size.batch.bytes, size.message_bytes, windows, target)
        else {
            continue;
        };
        evaluations += 2 + windows.1.ilog2() as usize;
        let plan = size.plan(window_batches, seconds(size, window_batches));
        let better = best.is_none_or(|best| {
            let faster = plan.predicted_seconds < best.predicted_seconds;
            plan.memory_bytes < best.memory_bytes || (plan.memory_bytes == best.memory_bytes && faster)
        });
        if better {
            best = Some(plan);
        }
    }
    // The fastest plan always qualifies. Guard against rounding.
    let plan = best.unwrap_or_else(|| {
        let size = Size::even(query, &region, region.x_max, region.y_max);
        size.plan(largest(&size), seconds(&size, largest(&size)))
    });
    Ok((plan, evaluations))
}

/// A batch size and a message size.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Size {
    batch: Batch,
    message_bytes: f64,
}

impl Size {
    /// Evens out the sizes: the same number of batches as with `x` bytes, all with equal rows, and the
    /// same number of messages per batch as with `y` bytes, all of equal size.
    fn even(query: &Query, region: &Region, x: f64, y: f64) -> Self {
        let batches = (query.rows() / Batch::fitting(query, x).rows).ceil();
        let batch = Batch::of(query, (query.rows() / batches).ceil());
        let messages = (batch.bytes / y).ceil();
        let message_bytes = (batch.bytes / messages).ceil().max(region.y_min).min(region.y_max);
        Self { batch, message_bytes }
    }

    fn plan(&self, window_batches: u64, predicted_seconds: f64) -> Plan {
        let batch_bytes = self.batch.bytes as u64;
        Plan {
            batch_rows: self.batch.rows as u64,
            batch_bytes,
            message_bytes: self.message_bytes as u64,
            window_batches,
            predicted_seconds,
            memory_bytes: window_batches.saturating_mul(batch_bytes),
        }
    }
}

/// Candidate sizes: messages over the whole region, each with batches of whole messages that are 1/1,
/// 1/2, 1/3, 1/4, 1/6, 1/8, 1/11, ... of the memory, so that windows fill the memory.
fn sizes(query: &Query, region: &Region, memory_bytes: f64) -> Vec<Size> {
    let steps = |from: f64, to: f64| {
        let inside = std::iter::successors(Some(from), |bytes| Some(bytes * FACTOR));
        inside.take_while(move |bytes| *bytes < to).chain(std::iter::once(to))
    };
    let mut sizes: Vec<Size> = Vec::new();
    for y in steps(region.y_min, region.y_max) {
        let mut part: f64 = (memory_bytes / region.x_max).floor();
        loop {
            let share = (memory_bytes / part).min(region.x_max);
            let x = ((share / y).floor() * y).max(y).min(region.x_max);
            let size = Size::even(query, region, x, y);
            // If rows are larger than messages, the same size repeats.
            if sizes.last() != Some(&size) {
                sizes.push(size);
            }
            if share <= y.max(query.row_bytes) {
                break;
            }
            part = (part * FACTOR).round().max(part + 1.0);
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::TunerError;
    use crate::model::{LinkModel, Plane};
    use crate::stages::Rates;
    use crate::tests::{LONG, RICH, ROOMY};
    use crate::thesis::{FIFTY_MEGABIT, LIMITS, Q3, QUERIES, TEN_GIGABIT};

    fn links() -> impl Iterator<Item = Link> {
        let models = [TEN_GIGABIT, FIFTY_MEGABIT].into_iter();
        models.flat_map(|model| {
            [0.0, 1e-4, model.first.constant, 1.0].map(|rtt_seconds| Link {
                model,
                rtt_seconds,
                ..Link::default()
            })
        })
    }

    #[test]
    fn a_plan_needs_few_evaluations() -> Result<()> {
        let wide = Limits { message_bytes_min: 512, message_bytes_max: 16 << 20, batch_bytes_max: 1 << 30 };
        let budget = Budget { memory_bytes_max: 1 << 30, ..Budget::default() };
        for link in links() {
            for (name, query) in QUERIES {
                let (_, evaluations) = choose(&link, &query, &LIMITS, &Budget::default())?;
                assert!(evaluations < 1000, "{name}: {evaluations}");
                let (_, evaluations) = choose(&link, &query, &wide, &budget)?;
                assert!(evaluations < 5000, "{name}: {evaluations}");
            }
        }
        Ok(())
    }

    #[test]
    fn the_plan_is_within_the_tolerance_of_every_other() -> Result<()> {
        let budget = Budget::default();
        for link in links() {
            for (name, query) in QUERIES {
                let plan = plan(&link, &query, &LIMITS, &budget)?;
                let cost = WindowCost::new(&link, &query)?;
                let between = |from: f64, to: f64, i: u32| from * (to / from).powf(f64::from(i) / 150.0);
                for (i, j) in (0..=150).flat_map(|i| (0..=150).map(move |j| (i, j))) {
                    let x = between(query.row_bytes, 30e6, i).min(query.volume_bytes as f64);
                    let y = between(512.0, 32_767.0, j);
                    let window = budget.window_max(x);
                    let seconds = cost.seconds(x, y, window);
                    assert!(plan.predicted_seconds <= 1.025 * seconds, "{name} {x} {y}: {seconds} {plan:?}");
                    // No other plan is as fast with much less memory.
                    let memory = cost
                        .window_for(x, y, (1, window), plan.predicted_seconds)
                        .map_or(f64::INFINITY, |window| window as f64 * x);
                    let needed = plan.memory_bytes as f64;
                    assert!(needed <= 1.6 * memory, "{name} {x} {y}: {memory} {plan:?} {link:?}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_window_needs_a_fraction_of_the_memory() -> Result<()> {
        let query = Query { volume_bytes: 10_000_000_000, row_bytes: 100.0 };
        let of = |window_batches_max| plan(&LONG, &query, &ROOMY, &Budget { window_batches_max, ..RICH });
        let (one, many) = (of(1)?, of(64)?);
        assert!(many.predicted_seconds < one.predicted_seconds * 1.02, "{one:?} {many:?}");
        assert!(many.memory_bytes * 30 < one.memory_bytes, "{one:?} {many:?}");
        // Slightly more than the bandwidth-delay product.
        assert!((1_250_000..1_500_000).contains(&many.memory_bytes), "{many:?}");
        Ok(())
    }

    #[test]
    fn a_fixed_window_is_kept() -> Result<()> {
        for window in [1, 3, 64] {
            let budget =
                Budget { window_batches_min: window, window_batches_max: window, ..Budget::default() };
            for link in links() {
                for (name, query) in QUERIES {
                    let plan = plan(&link, &query, &LIMITS, &budget)?;
                    assert_eq!(plan.window_batches, window, "{name}: {plan:?}");
                    assert!(plan.memory_bytes <= budget.memory_bytes_max, "{name}: {plan:?}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_slow_stage_needs_less_in_flight() -> Result<()> {
        let link = Link { model: TEN_GIGABIT, rtt_seconds: TEN_GIGABIT.first.constant, ..Link::default() };
        let rates = Rates { consume: Some(100e6), ..Rates::default() };
        let free = plan(&link, &Q3, &LIMITS, &Budget::default())?;
        let held = plan(&Link { rates, ..link }, &Q3, &LIMITS, &Budget::default())?;
        assert!(held.predicted_seconds >= 44.5 && held.memory_bytes < free.memory_bytes, "{held:?} {free:?}");
        Ok(())
    }

    #[test]
    fn small_results_and_large_rows_have_a_plan() -> Result<()> {
        let link = Link { model: TEN_GIGABIT, rtt_seconds: 1e-4, ..Link::default() };
        let budget = Budget::default();
        let of = |volume_bytes, row_bytes| plan(&link, &Query { volume_bytes, row_bytes }, &LIMITS, &budget);
        let nothing = of(0, 27.0)?;
        assert_eq!((nothing.batch_rows, nothing.window_batches, nothing.predicted_seconds), (1, 1, 0.0));
        assert_eq!(of(27, 27.0)?.batch_rows, 1);
        assert_eq!(of(10, 27.0)?.batch_rows, 1);
        assert!(of(1 << 30, 20e6)?.batch_rows == 1);
        assert!(matches!(of(1 << 30, 31e6), Err(TunerError::RowTooLarge { .. })));
        let tight = Budget { memory_bytes_max: 1000, ..budget };
        let query = Query { volume_bytes: 1 << 30, row_bytes: 999.5 };
        assert_eq!(plan(&link, &query, &LIMITS, &tight)?.memory_bytes, 1000);
        for bad in [
            Budget { tolerance: f64::NAN, ..budget },
            Budget { window_batches_max: 0, ..budget },
            Budget { window_batches_min: 0, ..budget },
            Budget { window_batches_min: 65, ..budget },
            Budget { memory_bytes_max: 0, ..budget },
        ] {
            assert!(plan(&link, &Q3, &LIMITS, &bad).is_err(), "{bad:?}");
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_plan_is_within_all_limits(
            first in (0.0..1e-8f64, 0.0..1e-6f64, 0.0..0.5f64), next in (0.0..1e-9f64, 0.0..1e-7f64, 0.0..0.01f64),
            rtt_seconds in 0.0..0.5f64, volume_bytes in 0..1u64 << 40, row_bytes in 0.5..2000f64,
            message_bytes_min in 1..5000u64, more in 0..1u64 << 22, batch_bytes_max in 4000..1u64 << 28,
            window_batches_max in 1..200u64, memory_bytes_max in 4000..1u64 << 30,
        ) {
            let model = LinkModel { first: Plane::new(first.0, first.1, first.2), next: Plane::new(next.0, next.1, next.2) };
            let link = Link { model, rtt_seconds, ..Link::default() };
            let query = Query { volume_bytes, row_bytes };
            let limits = Limits { message_bytes_min, message_bytes_max: message_bytes_min + more, batch_bytes_max };
            let budget = Budget { window_batches_max, memory_bytes_max, ..Budget::default() };
            let plan = plan(&link, &query, &limits, &budget)?;
            prop_assert!(plan.batch_bytes <= batch_bytes_max && plan.memory_bytes <= memory_bytes_max);
            prop_assert!((1..=window_batches_max).contains(&plan.window_batches));
            prop_assert!((message_bytes_min..=message_bytes_min + more).contains(&plan.message_bytes));
            prop_assert!(plan.batch_rows >= 1 && plan.predicted_seconds.is_finite());
            prop_assert_eq!(plan.memory_bytes, plan.batch_bytes * plan.window_batches);
        }
    }
}
