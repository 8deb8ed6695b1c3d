//! What operators gave in earlier queries: better than any estimate, as M. Stillger et al. found ("LEO - DB2's
//! LEarning Optimizer", 2001).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion_distributed::NetworkBoundaryExt;

use super::identity::{identity, reads_all};
use crate::cluster::explain::{by_edge, by_task};

/// Operators that are remembered; the oldest are forgotten first.
const FACTS_MAX: usize = 4096;

/// What an operator gave when it last ran.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fact {
    pub(crate) rows: f64,
}

/// What it took to send the rows of an operator to other nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sent {
    /// Bytes on the wire for a row.
    pub(crate) row_bytes: f64,
    /// Seconds for a row of an edge, from the first to the last: of the last run, and half as much of each
    /// before.
    pub(crate) row_seconds: f64,
}

/// What is known of operators, by their [`identity`].
#[derive(Debug, Default)]
pub(crate) struct Facts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    facts: HashMap<u64, Fact>,
    /// What was sent between nodes, by the operator that gave the rows and their columns.
    sent: HashMap<(u64, u64), Sent>,
    order: VecDeque<u64>,
}

impl Facts {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, identity: u64) -> Option<Fact> {
        self.lock().facts.get(&identity).copied()
    }

    /// What it took to send the rows of the operator, with these columns.
    pub(crate) fn sent(&self, identity: u64, plan: &dyn ExecutionPlan) -> Option<Sent> {
        self.lock().sent.get(&(identity, columns(plan))).copied()
    }

    /// Learns from a plan that has run to its end, with its metrics.
    pub(crate) fn learn(&self, plan: &Arc<dyn ExecutionPlan>) {
        self.visit(plan, true);
    }

    /// Learns from a subplan. `whole` says whether all its rows were read.
    fn visit(&self, plan: &Arc<dyn ExecutionPlan>, whole: bool) -> Seen {
        let whole_below = reads_all(plan.as_ref()) || (whole && plan.fetch().is_none());
        let mut inputs: Vec<Seen> = Vec::new();
        for child in plan.children() {
            // A join that has nothing to find does not read its other side.
            let pointless =
                plan.is::<HashJoinExec>() && inputs.first().is_some_and(|build| build.rows == Some(0));
            inputs.push(self.visit(child, whole_below && !pointless));
        }
        let identities: Vec<u64> = inputs.iter().map(|input| input.identity).collect();
        let identity = identity(plan.as_ref(), &identities);
        let metrics = plan.metrics().unwrap_or_default();
        if let (Some(boundary), [input]) = (plan.as_network_boundary(), inputs.as_slice()) {
            let (mut rows, mut bytes, mut ns) = (0, 0, 0);
            for sent in by_edge(&metrics).into_values().filter(|sent| sent.bytes > 0) {
                rows += sent.rows;
                bytes += sent.bytes;
                ns += sent.transfer_ns;
            }
            if rows > 0 && boundary.input_stage().task_count() > 0 {
                let key = (identity, columns(plan.as_ref()));
                let row_seconds = ns as f64 / 1e9 / rows as f64;
                let mut known = self.lock();
                // Times vary from run to run, bytes do not.
                let before = known.sent.get(&key).map_or(row_seconds, |sent| sent.row_seconds);
                let row_seconds = (before + row_seconds) / 2.0;
                known.sent.insert(key, Sent { row_bytes: bytes as f64 / rows as f64, row_seconds });
            }
            return Seen { identity, rows: input.rows };
        }
        let measured = by_task(&metrics);
        let rows = measured
            .values()
            .any(|task| task.has_rows)
            .then(|| measured.values().map(|task| task.rows).sum::<u64>());
        let passed_on = inputs.iter().any(|input| input.identity == identity);
        if let Some(rows) = rows.filter(|_| whole && !passed_on) {
            self.lock().insert(identity, Fact { rows: rows as f64 });
        }
        let rows = rows.or_else(|| inputs.first().filter(|_| passed_on).and_then(|input| input.rows));
        Seen { identity, rows }
    }
}

impl Known {
    fn insert(&mut self, identity: u64, fact: Fact) {
        if self.facts.insert(identity, fact).is_none() {
            self.order.push_back(identity);
        }
        if self.order.len() > FACTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.facts.remove(&oldest);
            self.sent.retain(|(operator, _), _| *operator != oldest);
        }
    }
}

/// An operator of a plan that has run.
struct Seen {
    identity: u64,
    rows: Option<u64>,
}

/// A number for the columns of an operator, in their order.
fn columns(plan: &dyn ExecutionPlan) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    for field in plan.schema().fields() {
        (field.name(), field.data_type()).hash(&mut hasher);
    }
    hasher.finish()
}
