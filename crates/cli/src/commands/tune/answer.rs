//! Computes the answer from a link, a query and limits: the plan, the reasons for it, and what other
//! plans would cost.

use lightship_tuner::{
    Bound, Explanation, Grid, Halt, Iteration, Limits, Link, Plan, Query, Rules, Strategy, Walk, WindowCost,
    descent, explain, newton, plan,
};
use serde::Serialize;
use serde_json::Value;

use super::args::{Method, PlanRequest};
use super::settings::{Advice, advise};
use crate::error::CliError;

/// The object of `--json`, and the source of the text.
#[derive(Debug, Serialize)]
pub(super) struct TuneResult {
    pub(super) query: QueryReport,
    pub(super) link: Link,
    pub(super) limits: Limits,
    pub(super) method: Method,
    pub(super) plan: Plan,
    /// Where the steps of the method stopped, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) halt: Option<HaltReport>,
    pub(super) why: Explanation,
    pub(super) strategies: Vec<StrategyReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) iterations: Option<Vec<IterationReport>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) settings: Vec<Advice>,
    /// Whether the size of messages can be chosen.
    #[serde(skip)]
    pub(super) messages: bool,
}

impl TuneResult {
    /// The object of `--json`, on one line.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        if self.messages {
            return serde_json::to_string(self);
        }
        let mut value = serde_json::to_value(self)?;
        leave_messages_out(&mut value);
        serde_json::to_string(&value)
    }
}

fn leave_messages_out(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !key.starts_with("message_bytes"));
            object.values_mut().for_each(leave_messages_out);
        }
        Value::Array(values) => values.iter_mut().for_each(leave_messages_out),
        _ => {}
    }
}

#[derive(Debug, Serialize)]
pub(super) struct QueryReport {
    pub(super) volume_bytes: u64,
    pub(super) rows: u64,
    pub(super) row_bytes: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct HaltReport {
    /// The step that is the plan.
    pub(super) k: usize,
    pub(super) reason: Halt,
    #[serde(flatten)]
    pub(super) rules: Rules,
    /// The step that was not taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<NextStep>,
}

/// What a step would save and cost.
#[derive(Debug, Serialize)]
pub(super) struct NextStep {
    pub(super) gain_seconds: f64,
    pub(super) more_bytes: f64,
}

/// A fixed choice of both sizes, for comparison with the plan.
#[derive(Debug, Serialize)]
pub(super) struct StrategyReport {
    pub(super) strategy: Strategy,
    #[serde(flatten)]
    pub(super) plan: Plan,
    /// Its time divided by the plan's.
    pub(super) ratio: f64,
}

/// A step of the method, in whole bytes.
#[derive(Debug, Serialize)]
pub(super) struct IterationReport {
    pub(super) k: usize,
    pub(super) batch_bytes: u64,
    pub(super) batch_rows: u64,
    pub(super) message_bytes: u64,
    pub(super) seconds: f64,
    pub(super) gain_seconds: f64,
    /// Whether the plan is this one.
    pub(super) chosen: bool,
}

impl IterationReport {
    fn new(iteration: &Iteration, chosen: bool) -> Self {
        Self {
            k: iteration.k,
            batch_bytes: iteration.batch_bytes.round() as u64,
            batch_rows: iteration.batch_rows,
            message_bytes: iteration.message_bytes.round() as u64,
            seconds: iteration.seconds,
            gain_seconds: iteration.gain_seconds,
            chosen,
        }
    }
}

pub(super) fn answer(
    link: &Link,
    query: &Query,
    limits: &Limits,
    ask: &PlanRequest,
) -> Result<TuneResult, CliError> {
    let walk = |rules: &Rules| match ask.method {
        Method::Descent => descent(&link.model, query, limits, rules),
        _ => newton(&link.model, query, limits, rules),
    };
    let walked = if ask.method.walks() { Some(walk(&ask.rules)?) } else { None };
    let found = match (&walked, ask.method) {
        (Some(walked), _) => walked.plan,
        (None, Method::Grid) => Grid::over(query, limits)?.best(&link.model, query, limits)?,
        (None, _) => plan(link, query, limits, &ask.budget)?,
    };
    // All plans are timed by the same model, which includes the slowest stage.
    let cost = WindowCost::new(link, query)?;
    let timed = |plan: Plan| Plan {
        predicted_seconds: cost.seconds(
            plan.batch_bytes as f64,
            plan.message_bytes as f64,
            plan.window_batches,
        ),
        ..plan
    };
    let found = timed(found);
    // Some strategies differ only in the size of messages.
    let fixed =
        |strategy: &Strategy| ask.messages || matches!(strategy, Strategy::Default | Strategy::LargestBatch);
    let strategies = Strategy::ALL.into_iter().filter(fixed).map(|strategy| {
        let plan = timed(strategy.plan(&link.model, query, &ask.compared)?);
        Ok(StrategyReport { strategy, plan, ratio: plan.predicted_seconds / found.predicted_seconds })
    });
    let iterations = if ask.trace {
        let chosen = walked.as_ref().map(|walked| walked.k);
        // Without rules the method takes the same steps, and then those that did not pay off.
        let all = walk(&Rules::default())?;
        Some(all.trace.iter().map(|step| IterationReport::new(step, chosen == Some(step.k))).collect())
    } else {
        None
    };
    let mut why = explain(link, query, limits, &ask.budget, &found)?;
    if !ask.messages {
        // A batch is one message, so all time beyond waiting is that of messages.
        why.messages_seconds += std::mem::take(&mut why.first_messages_seconds);
        if why.bound == Bound::FirstMessages {
            why.bound = Bound::Messages;
        }
    }
    Ok(TuneResult {
        query: QueryReport {
            volume_bytes: query.volume_bytes,
            rows: (query.volume_bytes as f64 / query.row_bytes).round().max(1.0) as u64,
            row_bytes: query.row_bytes,
        },
        link: *link,
        limits: *limits,
        method: ask.method,
        plan: found,
        halt: walked.as_ref().map(|walked| halted(walked, ask.rules)),
        why,
        strategies: strategies.collect::<Result<_, CliError>>()?,
        iterations,
        settings: advise(&ask.drivers, &found, query, ask.messages),
        messages: ask.messages,
    })
}

fn halted(walk: &Walk, rules: Rules) -> HaltReport {
    let next = walk.trace.get(walk.k).zip(walk.trace.get(walk.k + 1)).map(|(here, next)| NextStep {
        gain_seconds: next.gain_seconds,
        more_bytes: next.batch_bytes - here.batch_bytes,
    });
    HaltReport { k: walk.k, reason: walk.halt, rules, next }
}
