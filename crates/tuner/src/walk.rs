//! A walk to ever better sizes, one step after the other, until a step no longer pays: what
//! [`newton`](crate::newton) and [`descent`](crate::descent) have in common.

use serde::{Deserialize, Serialize};

use crate::cost::Cost;
use crate::error::{Result, within};
use crate::model::{Limits, LinkModel, Plan, Point, Query, Region};

/// A walk of this length goes nowhere. The thesis' take under 30 steps.
pub(crate) const STEPS_MAX: usize = 200;

/// When a step no longer pays: by either rule, where both are given. One that gains
/// nothing never does. With no rule a walk ends at both maxima, or where nothing is gained.
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
        within("highest price in bytes a second", price, 0.0, f64::MAX)
    }

    /// Why a step does not pay that saves `gain` seconds for `bytes` more of batch.
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
    /// As many steps as are allowed were taken.
    Steps,
}

/// A stop of the walk. Sizes are not rounded to rows here.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// How many steps led here.
    pub k: usize,
    /// F^B.
    pub batch_bytes: f64,
    /// F: whole rows.
    pub batch_rows: u64,
    /// M.
    pub message_bytes: f64,
    /// Cost with ceilings, as the thesis prints it.
    pub seconds: f64,
    /// Cost of the smooth form: what is minimised, and what gains are differences of.
    pub smooth_seconds: f64,
    /// What the step that led here saved; zero at the start.
    pub gain_seconds: f64,
}

/// Where a walk has led.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Walk {
    /// The last configuration whose step paid, of whole rows and bytes.
    pub plan: Plan,
    /// Its [`Iteration::k`].
    pub k: usize,
    /// Why no further.
    pub halt: Halt,
    /// From the start (k = 0) to the step that did not pay, that one included.
    pub trace: Vec<Iteration>,
}

/// Walks from the thesis' start, a smallest message and a batch of two.
pub(crate) fn walk(
    model: &LinkModel,
    query: &Query,
    limits: &Limits,
    rules: &Rules,
    step: impl Fn(&Cost, &Region, Point) -> Result<Point, Halt>,
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
