//! Iterates to better sizes until a step no longer pays off: the common part of
//! [`newton`](crate::newton), [`descent`](crate::descent) and [`volume`](crate::volume).

use serde::{Deserialize, Serialize};

use crate::cost::Cost;
use crate::error::{Result, within};
use crate::model::{Limits, LinkModel, Plan, Point, Query, Region};

/// Maximum steps of a walk. The thesis' walks take under 30.
pub(crate) const STEPS_MAX: usize = 200;

/// When a step no longer pays off. If both rules are given, either one ends the walk. A step that gains
/// nothing always ends it. Without rules a walk ends at both maxima, or when nothing is gained.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Rules {
    /// delta1: a step must save more seconds than this.
    pub gain_seconds: Option<f64>,
    /// delta2: a second saved must cost fewer bytes of batch than this.
    pub price_bytes_per_second: Option<f64>,
}

impl Rules {
    fn check(&self) -> Result<()> {
        within("least gain in seconds", self.gain_seconds.unwrap_or(0.0), 0.0, f64::MAX)?;
        let price = self.price_bytes_per_second.unwrap_or(0.0);
        within("highest price in bytes per second", price, 0.0, f64::MAX)
    }

    /// The reason why a step that saves `gain` seconds for `bytes` more of batch does not pay off, if any.
    fn refuse(&self, gain: f64, bytes: f64) -> Option<Halt> {
        if gain <= 0.0 {
            Some(Halt::NoGain)
        } else if self.gain_seconds.is_some_and(|least| gain <= least) {
            Some(Halt::Gain)
        } else if self.price_bytes_per_second.is_some_and(|highest| bytes / gain >= highest) {
            Some(Halt::Price)
        } else {
            None
        }
    }
}

/// Why a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Halt {
    /// The next step would have saved too few seconds.
    Gain,
    /// The next step would have cost too many bytes for each second.
    Price,
    /// Batch and message are as large as they may be.
    Limits,
    /// The next step would have saved nothing.
    NoGain,
    /// There is no next step: the Hessian is singular, or a size would not have been positive.
    NoStep,
    /// The maximum number of steps was taken.
    Steps,
}

/// A point of the walk. Its sizes are not rounded to rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Number of steps from the start.
    pub k: usize,
    /// F^B.
    pub batch_bytes: f64,
    /// F, in whole rows.
    pub batch_rows: u64,
    /// M.
    pub message_bytes: f64,
    /// Cost with ceilings, as printed in the thesis.
    pub seconds: f64,
    /// Cost in the smooth form, which is minimised. Gains are differences of it.
    pub smooth_seconds: f64,
    /// Seconds that the step to this point saved; zero at the start.
    pub gain_seconds: f64,
}

/// The result of a walk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Walk {
    /// The last point whose step paid off, in whole rows and bytes.
    pub plan: Plan,
    /// Its [`Iteration::k`].
    pub k: usize,
    /// Why the walk ended.
    pub halt: Halt,
    /// All points from the start (k = 0) to the step that did not pay off, inclusive.
    pub trace: Vec<Iteration>,
}

/// Walks from the thesis' start: the smallest message, and a batch of two of them.
pub(crate) fn walk(
    model: &LinkModel,
    query: &Query,
    limits: &Limits,
    rules: &Rules,
    mut step: impl FnMut(&Cost, &Region, Point) -> Result<Point, Halt>,
) -> Result<Walk> {
    rules.check()?;
    let region = limits.region(query)?;
    let cost = Cost::new(model, query)?;
    let iteration = |k, at: Point, gain_seconds| Iteration {
        k,
        batch_bytes: at.x,
        batch_rows: cost.plan_at(query, at).batch_rows,
        message_bytes: at.y,
        seconds: cost.seconds(at.x, at.y),
        smooth_seconds: cost.smooth_at(at),
        gain_seconds,
    };
    let mut at = region.clamp(Point { x: 2.0 * region.y_min, y: region.y_min });
    let mut trace = vec![iteration(0, at, 0.0)];
    let mut k = 0;
    let halt = loop {
        if k == STEPS_MAX {
            break Halt::Steps;
        }
        let next = match step(&cost, &region, at) {
            Ok(next) => next,
            Err(halt) => break halt,
        };
        let gain = cost.smooth_at(at) - cost.smooth_at(next);
        trace.push(iteration(k + 1, next, gain));
        if let Some(halt) = rules.refuse(gain, next.x - at.x) {
            break halt;
        }
        (at, k) = (next, k + 1);
    };
    Ok(Walk { plan: cost.plan_at(query, at), k, halt, trace })
}
