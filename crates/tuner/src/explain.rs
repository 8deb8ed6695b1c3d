//! Explains the time that a plan takes, and the effect of more or less memory.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::model::{Batch, Limits, Plan, Query};
use crate::plan::Budget;
use crate::stages::Stage;
use crate::window::{Link, WindowCost};

/// What limits the speed of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Waiting for the reply to a request, with nothing in flight.
    RoundTrip,
    /// The extra time of first messages, besides the round trip.
    FirstMessages,
    /// The time of all messages: the link, and the work at both ends.
    Messages,
    /// A stage that is slower than all other parts together: [`Explanation::slowest`].
    Stage,
}

/// The parts of a plan's time, and the plans with half and twice the memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The largest part.
    pub bound: Bound,
    /// Time with nothing in flight: before the first batch, and whenever the window does not cover a
    /// round trip.
    pub waiting_seconds: f64,
    /// Extra time of first messages, not counting the wait.
    pub first_messages_seconds: f64,
    /// Time of all messages.
    pub messages_seconds: f64,
    /// The slowest stage with a known rate.
    pub slowest: Option<Slowest>,
    /// The faster of two plans: half the batch, or half the window. `None` if both are at their minimum.
    pub half_memory: Option<Plan>,
    /// The faster of two plans: twice the batch, or twice the window. `None` if the limits allow neither,
    /// or the result is not larger.
    pub double_memory: Option<Plan>,
}

/// The slowest stage, which all others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Slowest {
    /// The stage.
    pub stage: Stage,
    /// The time that this stage alone takes.
    pub seconds: f64,
}

/// Explains a plan. It need not come from [`plan`](crate::plan()).
///
/// # Errors
/// As [`plan`](crate::plan()).
pub fn explain(
    link: &Link,
    query: &Query,
    limits: &Limits,
    budget: &Budget,
    plan: &Plan,
) -> Result<Explanation> {
    budget.check()?;
    let region = budget.within(limits).region(query)?;
    let cost = WindowCost::new(link, query)?;
    let parts = cost.parts(plan.batch_bytes as f64, plan.message_bytes as f64, plan.window_batches);
    let shares = [
        (Bound::RoundTrip, parts.waiting),
        (Bound::FirstMessages, parts.starting),
        (Bound::Messages, parts.messages),
    ];
    // Prefer the first of equal parts.
    let mut bound =
        shares.iter().rev().max_by(|one, other| one.1.total_cmp(&other.1)).map_or(Bound::Messages, |b| b.0);
    let all = parts.waiting + parts.starting + parts.messages;
    if cost.least_seconds() > 0.0 && cost.least_seconds() >= all {
        bound = Bound::Stage;
    }
    let sized = |rows: u64, window_batches: u64| {
        let batch = Batch::of(query, rows as f64);
        let message = (plan.message_bytes as f64).min(region.largest_message(batch.bytes));
        let batch_bytes = batch.bytes as u64;
        Plan {
            batch_rows: rows,
            batch_bytes,
            message_bytes: message as u64,
            window_batches,
            predicted_seconds: cost.seconds(batch.bytes, message, window_batches),
            memory_bytes: window_batches.saturating_mul(batch_bytes),
        }
    };
    let fastest = |plans: [Option<Plan>; 2]| {
        plans
            .into_iter()
            .flatten()
            .min_by(|one, other| one.predicted_seconds.total_cmp(&other.predicted_seconds))
    };
    let (rows, window) = (plan.batch_rows, plan.window_batches);
    let half_memory = fastest([
        (rows / 2 >= 1).then(|| sized(rows / 2, window)),
        (window / 2 >= budget.window_batches_min).then(|| sized(rows, window / 2)),
    ]);
    let allowed = |plan: &Plan| {
        plan.batch_bytes as f64 <= region.x_max
            && plan.window_batches <= budget.window_batches_max
            && plan.memory_bytes <= budget.memory_bytes_max
            && plan.window_batches.saturating_sub(1).saturating_mul(plan.batch_bytes) < query.volume_bytes
    };
    let double_memory = fastest([
        Some(sized(rows.saturating_mul(2), window)).filter(allowed),
        Some(sized(rows, window.saturating_mul(2))).filter(allowed),
    ]);
    Ok(Explanation {
        bound,
        waiting_seconds: parts.waiting,
        first_messages_seconds: parts.starting,
        messages_seconds: parts.messages,
        slowest: link.rates.slowest().map(|(stage, _)| Slowest { stage, seconds: cost.least_seconds() }),
        half_memory,
        double_memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LinkModel, Plane};
    use crate::plan::plan;
    use crate::stages::Rates;
    use crate::tests::{LONG, RICH, ROOMY};
    use crate::thesis::{LIMITS, Q3, QUERIES, TEN_GIGABIT};

    const QUERY: Query = Query { volume_bytes: 10_000_000_000, row_bytes: 100.0 };

    fn sized(link: &Link, batch_rows: u64, window_batches: u64) -> Result<Plan> {
        let batch_bytes = batch_rows * 100;
        let predicted_seconds =
            WindowCost::new(link, &QUERY)?.seconds(batch_bytes as f64, batch_bytes as f64, window_batches);
        let memory_bytes = batch_bytes * window_batches;
        Ok(Plan {
            batch_rows,
            batch_bytes,
            message_bytes: batch_bytes,
            window_batches,
            predicted_seconds,
            memory_bytes,
        })
    }

    #[test]
    fn the_bound_is_the_largest_part_of_the_time() -> Result<()> {
        let bound = |link: &Link, window| {
            explain(link, &QUERY, &ROOMY, &RICH, &sized(link, 1250, window)?).map(|why| why.bound)
        };
        assert_eq!(bound(&LONG, 1)?, Bound::RoundTrip);
        assert_eq!(bound(&LONG, 12)?, Bound::Messages);
        assert_eq!(bound(&Link { rtt_seconds: 0.0, ..LONG }, 1)?, Bound::FirstMessages);
        let rates = Rates { decode: Some(50e6), encode: Some(60e6), ..Rates::default() };
        let held = Link { rates, ..LONG };
        assert_eq!(bound(&held, 12)?, Bound::Stage);
        let why = explain(&held, &QUERY, &ROOMY, &RICH, &sized(&held, 1250, 12)?)?;
        assert_eq!(why.slowest, Some(Slowest { stage: Stage::Decode, seconds: 200.0 }));
        Ok(())
    }

    #[test]
    fn half_and_twice_the_memory() -> Result<()> {
        let plan = sized(&LONG, 1250, 8)?;
        let why = explain(&LONG, &QUERY, &ROOMY, &RICH, &plan)?;
        let (half, double) = (why.half_memory.unwrap_or(plan), why.double_memory.unwrap_or(plan));
        assert_eq!((half.memory_bytes * 2, double.memory_bytes), (plan.memory_bytes, plan.memory_bytes * 2));
        assert!(half.predicted_seconds > 1.9 * plan.predicted_seconds, "{half:?}");
        assert!(double.predicted_seconds < 0.8 * plan.predicted_seconds, "{double:?}");
        // A single row in flight has no half.
        assert_eq!(explain(&LONG, &QUERY, &ROOMY, &RICH, &sized(&LONG, 1, 1)?)?.half_memory, None);
        // At the memory limit, and with the whole result in flight, there is no plan with twice the memory.
        let budget = Budget { memory_bytes_max: plan.memory_bytes, ..RICH };
        assert_eq!(explain(&LONG, &QUERY, &ROOMY, &budget, &plan)?.double_memory, None);
        let whole = Query { volume_bytes: 125_000, ..QUERY };
        assert_eq!(explain(&LONG, &whole, &ROOMY, &RICH, &sized(&LONG, 1250, 1)?)?.double_memory, None);
        Ok(())
    }

    #[test]
    fn half_the_memory_is_slower_than_the_chosen_plan() -> Result<()> {
        for model in [TEN_GIGABIT, LinkModel { first: Plane::new(0.0, 8e-9, 0.05), ..TEN_GIGABIT }] {
            let link = Link { model, rtt_seconds: model.first.constant, ..Link::default() };
            for (name, query) in QUERIES {
                let budget = Budget::default();
                let ours = plan(&link, &query, &LIMITS, &budget)?;
                let why = explain(&link, &query, &LIMITS, &budget, &ours)?;
                let sum = why.waiting_seconds + why.first_messages_seconds + why.messages_seconds;
                assert!((sum / ours.predicted_seconds - 1.0).abs() < 1e-9, "{name} {why:?}");
                if let Some(half) = why.half_memory {
                    assert!(half.predicted_seconds > ours.predicted_seconds, "{name} {ours:?} {half:?}");
                }
            }
        }
        let nothing = Query { volume_bytes: 0, ..Q3 };
        let link = Link { model: TEN_GIGABIT, ..Link::default() };
        let ours = plan(&link, &nothing, &LIMITS, &Budget::default())?;
        assert_eq!(explain(&link, &nothing, &LIMITS, &Budget::default(), &ours)?.messages_seconds, 0.0);
        Ok(())
    }
}
