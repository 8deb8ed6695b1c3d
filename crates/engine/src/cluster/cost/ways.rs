//! Chooses how each join and aggregation of a plan runs on several nodes, by predicted seconds.
//!
//! DataFusion sends one side of a join to all nodes if it has few rows, and otherwise divides both sides by
//! the hash of their keys. What is faster depends on both sides, on the number of nodes, on the link, and on
//! whether a side is divided by the same keys already. So this rule compares all ways, and keeps for each
//! subplan the fastest way for each division of its rows, as P. G. Selinger et al. keep the fastest way for
//! each order ("Access Path Selection in a Relational Database Management System", 1979, section 5).
//!
//! DataFusion aggregates rows before they are divided, and again after. The first aggregation is left out
//! where it is known, from a query before, to join too few rows to be worth its time. An estimate is not
//! enough for that: if it is wrong, all rows of a table are sent for a handful of groups.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::config::ConfigOptions;
use datafusion::common::{JoinType, Result};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalExpr, physical_exprs_equal};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions,
};

use super::estimate::Estimate;
use super::facts::Facts;
use super::identity::identity;
use super::rates::Rates;
use crate::explained::{Choice, Cost, Strategy};

/// Ways to run a subplan that are compared further up.
const WAYS_MAX: usize = 4;
/// Bytes of a row in a hash table, beside the row itself: DataFusion's hash, index and link to the next row, with room.
const HASH_ROW_BYTES: f64 = 32.0;

/// The choices made for a query.
#[derive(Debug, Default)]
pub(crate) struct Choices(Mutex<Vec<Choice>>);

impl Choices {
    /// In the order in which the operators run.
    pub(crate) fn get(&self) -> Vec<Choice> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, choices: Vec<Choice>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = choices;
    }
}

/// How a join can run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JoinStrategy {
    BroadcastLeft,
    BroadcastRight,
    Repartition,
}

/// A way to run a join that has not been built.
struct Candidate {
    /// Which way of each input.
    inputs: [usize; 2],
    way: JoinStrategy,
    /// Its cost, then those of the other ways.
    costs: Vec<Cost>,
    seconds: f64,
    divided_by: Vec<Vec<usize>>,
}

/// The rule. It has to run before operators that divide rows are inserted.
#[derive(Debug)]
pub(crate) struct FastestStrategies {
    /// Nodes that run a query.
    pub(crate) nodes: usize,
    pub(crate) rates: Rates,
    /// Memory of queries on this node, which the others probably have too.
    pub(crate) memory_bytes: f64,
    pub(crate) facts: Arc<Facts>,
    pub(crate) choices: Arc<Choices>,
}

impl PhysicalOptimizerRule for FastestStrategies {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        options: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if self.nodes < 2 {
            return Ok(plan);
        }
        let pricing = Pricing {
            nodes: self.nodes as f64,
            threads: options.execution.target_partitions.max(1),
            rates: self.rates,
            memory_bytes: self.memory_bytes,
            // So a query is planned whose joins have needed too much memory (`other_joins.rs`).
            trusts_estimates: options.optimizer.hash_join_single_partition_threshold > 0,
            facts: &self.facts,
        };
        // The fastest is the first.
        let Some(best) = pricing.explore(&plan)?.ways.into_iter().next() else { return Ok(plan) };
        self.choices.set(best.choices);
        Ok(best.plan)
    }

    fn name(&self) -> &'static str {
        "fastest_strategies"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A way to run a subplan.
#[derive(Clone)]
struct SubplanWay {
    plan: Arc<dyn ExecutionPlan>,
    /// Seconds of all joins in it.
    seconds: f64,
    /// The columns by whose hash its rows are divided over the nodes; several if joins made them equal.
    divided_by: Vec<Vec<usize>>,
    choices: Vec<Choice>,
}

/// A subplan, and the ways to run it.
struct Subplan {
    identity: u64,
    estimate: Estimate,
    /// Whether the number of rows was measured.
    is_measured: bool,
    /// The rows that a first aggregation gets.
    whole: Option<Given>,
    ways: Vec<SubplanWay>,
}

/// What it costs to bring the rows of each group together.
struct Regroup {
    /// Rows before.
    rows: f64,
    /// As DataFusion plans it.
    twice: Cost,
    /// Without the first aggregation, if it is known what that gives.
    once: Option<Cost>,
}

struct Pricing<'a> {
    nodes: f64,
    threads: usize,
    rates: Rates,
    memory_bytes: f64,
    /// Whether an input of which few rows are expected, but none were measured, may be sent to all nodes.
    trusts_estimates: bool,
    facts: &'a Facts,
}

impl Pricing<'_> {
    fn explore(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Subplan> {
        let inputs = plan.children().into_iter().map(|child| self.explore(child));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let identities: Vec<u64> = inputs.iter().map(|input| input.identity).collect();
        let streams = self.nodes as usize * self.threads;
        let identity = identity(plan.as_ref(), &identities, streams);
        let rows_before = self.facts.rows(identity);
        let estimates: Vec<&Estimate> = inputs.iter().map(|input| &input.estimate).collect();
        let estimate = Estimate::of(plan.as_ref(), &estimates, streams, rows_before);
        let ways = match inputs.as_slice() {
            [] => vec![SubplanWay {
                plan: plan.clone(),
                seconds: 0.0,
                divided_by: Vec::new(),
                choices: Vec::new(),
            }],
            [input] => self.ways_above(plan, input)?,
            [left, right] => match plan.downcast_ref::<HashJoinExec>() {
                Some(join) => match self.ways_to_join(join, [left, right])? {
                    Some(ways) => ways,
                    None => vec![fastest_of_each(plan, &inputs)?],
                },
                None => vec![fastest_of_each(plan, &inputs)?],
            },
            inputs => vec![fastest_of_each(plan, inputs)?],
        };
        let aggregate = plan.downcast_ref::<AggregateExec>();
        let is_first = aggregate.is_some_and(|aggregate| *aggregate.mode() == AggregateMode::Partial);
        let whole = estimates.first().filter(|_| is_first).and_then(|input| Given::of(input));
        Ok(Subplan {
            identity,
            estimate,
            is_measured: rows_before.is_some(),
            whole,
            ways: fastest(ways, |way| (way.seconds, &way.divided_by)),
        })
    }

    /// The ways to run an operator with one input.
    fn ways_above(&self, plan: &Arc<dyn ExecutionPlan>, input: &Subplan) -> Result<Vec<SubplanWay>> {
        let mut found = Vec::new();
        for way in &input.ways {
            let regroup = self.regroup(plan, way, input);
            let above = with_inputs(plan, vec![way.plan.clone()])?;
            let divided_by = divided_above(plan, &way.divided_by);
            let (mut seconds, mut choices) = (way.seconds, way.choices.clone());
            let Some(regroup) = regroup else {
                found.push(SubplanWay { plan: above, seconds, divided_by, choices });
                continue;
            };
            let once = regroup.once.and_then(|cost| Some((cost, aggregate_once(plan, &way.plan)?)));
            let plan = match once {
                Some((once, single)) => {
                    let twice = regroup.twice;
                    let is_once = once.seconds() < twice.seconds();
                    let (ways, plan) = if is_once { ([once, twice], single) } else { ([twice, once], above) };
                    seconds += ways[0].seconds();
                    choices.push(Choice { on: groups(&plan), rows: vec![regroup.rows], ways: ways.to_vec() });
                    plan
                }
                None => {
                    seconds += regroup.twice.seconds();
                    above
                }
            };
            found.push(SubplanWay { plan, seconds, divided_by, choices });
        }
        Ok(found)
    }

    /// What it costs to bring the rows of each group together; `None` if the operator does not.
    fn regroup(&self, plan: &Arc<dyn ExecutionPlan>, way: &SubplanWay, input: &Subplan) -> Option<Regroup> {
        let aggregate = plan.downcast_ref::<AggregateExec>()?;
        if !matches!(aggregate.mode(), AggregateMode::FinalPartitioned | AggregateMode::SinglePartitioned) {
            return None;
        }
        let given = Given::of(&input.estimate)?;
        let keys: Vec<_> = aggregate.group_expr().expr().iter().map(|(group, _)| index_of(group)).collect();
        let is_divided = is_divided(&way.divided_by, &keys);
        let cost = |way: Strategy, sent: Given, grouped_rows: f64| {
            let moving = self.moving([sent].into_iter().filter(|_| !is_divided));
            let grouping = grouped_rows / self.nodes * self.rates.processor.group_row / self.threads as f64;
            Cost { strategy: way, processor_seconds: moving.processor_seconds + grouping, ..moving }
        };
        let Some(whole) = input.whole else {
            return Some(Regroup {
                rows: given.rows,
                twice: cost(Strategy::AggregateOnce, given, given.rows),
                once: None,
            });
        };
        Some(Regroup {
            rows: whole.rows,
            twice: cost(Strategy::AggregateTwice, given, whole.rows + given.rows),
            once: input.is_measured.then(|| cost(Strategy::AggregateOnce, whole, whole.rows)),
        })
    }

    /// `None` if there is nothing to choose.
    fn ways_to_join(&self, join: &HashJoinExec, inputs: [&Subplan; 2]) -> Result<Option<Vec<SubplanWay>>> {
        let [Some(left), Some(right)] = inputs.map(|input| Given::of(&input.estimate)) else {
            return Ok(None);
        };
        let single = |side: &Arc<dyn ExecutionPlan>| side.output_partitioning().partition_count() == 1;
        if join.null_aware || (single(join.left()) && single(join.right())) {
            return Ok(None);
        }
        let keys: [Vec<Option<usize>>; 2] = [
            join.on().iter().map(|(key, _)| index_of(key)).collect(),
            join.on().iter().map(|(_, key)| index_of(key)).collect(),
        ];
        let skew = |side: usize| {
            let keys = join.on().iter().map(|on| if side == 0 { &on.0 } else { &on.1 });
            self.facts.skew(inputs[side].identity, keys)
        };
        let (left, right) = (Given { skew: skew(0), ..left }, Given { skew: skew(1), ..right });
        let mut found = Vec::new();
        for (l, left_way) in inputs[0].ways.iter().enumerate() {
            for (r, right_way) in inputs[1].ways.iter().enumerate() {
                let divided =
                    [is_divided(&left_way.divided_by, &keys[0]), is_divided(&right_way.divided_by, &keys[1])];
                let mut costs = Vec::new();
                if broadcasts_left(*join.join_type()) && self.fits(inputs[0], left) {
                    costs.push((
                        JoinStrategy::BroadcastLeft,
                        self.broadcast(Strategy::BroadcastLeft, left, right),
                    ));
                }
                if broadcasts_left(join.join_type().swap()) && self.fits(inputs[1], right) {
                    costs.push((
                        JoinStrategy::BroadcastRight,
                        self.broadcast(Strategy::BroadcastRight, right, left),
                    ));
                }
                costs.push((JoinStrategy::Repartition, self.repartition([left, right], divided)));
                for (way, cost) in &costs {
                    let others = costs.iter().filter(|(other, _)| other != way).map(|(_, cost)| *cost);
                    let below = [&left_way.divided_by, &right_way.divided_by];
                    found.push(Candidate {
                        inputs: [l, r],
                        way: *way,
                        costs: [*cost].into_iter().chain(others).collect(),
                        seconds: left_way.seconds + right_way.seconds + cost.seconds(),
                        divided_by: divided_by_join(join, *way, below, &keys),
                    });
                }
            }
        }
        // A join is built only if it may be used: that takes time, and there are many ways to run many joins.
        let found = fastest(found, |candidate| (candidate.seconds, &candidate.divided_by));
        let build = |candidate: Candidate| {
            let [l, r] = [&inputs[0].ways[candidate.inputs[0]], &inputs[1].ways[candidate.inputs[1]]];
            let choice = Choice { on: on(join), rows: vec![left.rows, right.rows], ways: candidate.costs };
            Ok(SubplanWay {
                plan: join_by(join, candidate.way, left.bytes > right.bytes, [&l.plan, &r.plan])?,
                seconds: candidate.seconds,
                divided_by: candidate.divided_by,
                choices: l.choices.iter().chain(&r.choices).cloned().chain([choice]).collect(),
            })
        };
        found.into_iter().map(build).collect::<Result<Vec<_>>>().map(Some)
    }

    /// Whether every node is expected to have memory for the hash table of all rows of one side, by what may be trusted.
    fn fits(&self, input: &Subplan, build: Given) -> bool {
        (self.trusts_estimates || input.is_measured)
            && build.bytes + build.rows * HASH_ROW_BYTES <= self.memory_bytes
    }

    /// Every node builds the hash table of all rows of one side, in one thread, and looks its own rows up.
    fn broadcast(&self, way: Strategy, build: Given, probe: Given) -> Cost {
        let received = build.bytes * (self.nodes - 1.0) / self.nodes;
        let coding = received * self.rates.processor.code_byte() / self.threads as f64;
        let building = build.rows * self.rates.processor.build_row;
        let probing = probe.rows / self.nodes * self.rates.processor.probe_row / self.threads as f64;
        Cost {
            strategy: way,
            processor_seconds: coding + building + probing,
            link_seconds: received / self.rates.link,
            bytes: received * self.nodes,
        }
    }

    /// Every node gets its share of both sides, unless a side is divided so already.
    fn repartition(&self, sides: [Given; 2], divided: [bool; 2]) -> Cost {
        let moved = sides.into_iter().zip(divided).filter(|(_, divided)| !divided).map(|(side, _)| side);
        let moving = self.moving(moved);
        let [left, right] = sides;
        let (build, probe) = if left.bytes > right.bytes { (right, left) } else { (left, right) };
        // All rows with one key are joined by one thread.
        let of_busiest = |side: Given| side.rows * side.busiest(self.nodes * self.threads as f64);
        let joining = of_busiest(build) * self.rates.processor.build_row
            + of_busiest(probe) * self.rates.processor.probe_row;
        Cost { processor_seconds: joining + moving.processor_seconds, ..moving }
    }

    /// The rows, which nodes have alike, are repartitioned over all nodes: what the node takes that gets most of them.
    fn moving(&self, inputs: impl IntoIterator<Item = Given>) -> Cost {
        let (mut rows, mut moved, mut received) = (0.0, 0.0, 0.0);
        for input in inputs {
            let from_others = input.bytes * (self.nodes - 1.0) / self.nodes;
            rows += input.rows / self.nodes;
            moved += from_others;
            received += from_others * input.busiest(self.nodes);
        }
        let processor_seconds =
            rows * self.rates.processor.route_row + received * self.rates.processor.code_byte();
        Cost {
            strategy: Strategy::Repartition,
            processor_seconds: processor_seconds / self.threads as f64,
            link_seconds: received / self.rates.link,
            bytes: moved,
        }
    }
}

/// What an input is expected to give.
#[derive(Clone, Copy)]
struct Given {
    rows: f64,
    bytes: f64,
    /// The part of its rows that has one key, beyond that of the others.
    skew: f64,
}

impl Given {
    fn of(estimate: &Estimate) -> Option<Self> {
        Some(Self { rows: estimate.rows()?, bytes: estimate.bytes()?, skew: 0.0 })
    }

    /// The part of its rows that the busiest of this many gets, if they are divided by their keys.
    fn busiest(self, parts: f64) -> f64 {
        self.skew + (1.0 - self.skew) / parts
    }
}

/// Whether a join of this type emits no left row without a match: if all nodes had all left rows, each would emit
/// it.
fn broadcasts_left(kind: JoinType) -> bool {
    use JoinType as J;
    matches!(kind, J::Inner | J::Right | J::RightSemi | J::RightAnti | J::RightMark)
}

/// The join, run in this way. The smaller side of a repartitioned join becomes the left one.
fn join_by(
    join: &HashJoinExec,
    way: JoinStrategy,
    left_is_larger: bool,
    inputs: [&Arc<dyn ExecutionPlan>; 2],
) -> Result<Arc<dyn ExecutionPlan>> {
    let inputs = inputs.map(Arc::clone).to_vec();
    let (mode, swap) = match way {
        JoinStrategy::BroadcastLeft => (PartitionMode::CollectLeft, false),
        JoinStrategy::BroadcastRight => (PartitionMode::CollectLeft, true),
        JoinStrategy::Repartition => (PartitionMode::Partitioned, left_is_larger),
    };
    let join = join.builder().with_new_children(inputs)?.with_partition_mode(mode).build()?;
    if swap { join.swap_inputs(mode) } else { Ok(Arc::new(join)) }
}

fn with_inputs(
    plan: &Arc<dyn ExecutionPlan>,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let same = plan.children().into_iter().zip(&inputs).all(|(old, new)| Arc::ptr_eq(old, new));
    if same {
        return Ok(plan.clone());
    }
    plan.clone().replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// The second of two aggregations, without the first; `None` if they can't be one.
fn aggregate_once(
    plan: &Arc<dyn ExecutionPlan>,
    first: &Arc<dyn ExecutionPlan>,
) -> Option<Arc<dyn ExecutionPlan>> {
    let (last, first) = (plan.downcast_ref::<AggregateExec>()?, first.downcast_ref::<AggregateExec>()?);
    let same = last.group_expr().is_single()
        && first.group_expr().is_single()
        && physical_exprs_equal(&first.group_expr().output_exprs(), &last.group_expr().input_exprs())
        && first.aggr_expr().len() == last.aggr_expr().len()
        && first.aggr_expr().iter().zip(last.aggr_expr()).all(|(first, last)| first == last);
    if !same || *last.mode() != AggregateMode::FinalPartitioned || *first.mode() != AggregateMode::Partial {
        return None;
    }
    let once = AggregateExec::try_new(
        AggregateMode::SinglePartitioned,
        first.group_expr().clone(),
        first.aggr_expr().to_vec(),
        first.filter_expr().to_vec(),
        first.input().clone(),
        first.input_schema(),
    );
    let once = once.ok()?.with_limit_options(last.limit_options());
    (once.schema() == last.schema()).then(|| Arc::new(once) as _)
}

/// What an aggregation groups by.
fn groups(plan: &Arc<dyn ExecutionPlan>) -> String {
    let groups = plan.downcast_ref::<AggregateExec>().map(AggregateExec::group_expr);
    let names = groups.into_iter().flat_map(|groups| groups.expr()).map(|(_, name)| name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// The way to run an operator with the fastest way of each input.
fn fastest_of_each(plan: &Arc<dyn ExecutionPlan>, inputs: &[Subplan]) -> Result<SubplanWay> {
    let best = inputs.iter().filter_map(|input| input.ways.first());
    let best: Vec<&SubplanWay> = best.collect();
    Ok(SubplanWay {
        plan: with_inputs(plan, best.iter().map(|way| way.plan.clone()).collect())?,
        seconds: best.iter().map(|way| way.seconds).sum(),
        divided_by: Vec::new(),
        choices: best.iter().flat_map(|way| way.choices.clone()).collect(),
    })
}

/// The fastest way for each division of the rows, the fastest of all first. `of` has the seconds of a way, and how
/// it divides its rows.
fn fastest<T>(mut ways: Vec<T>, of: impl Fn(&T) -> (f64, &Vec<Vec<usize>>)) -> Vec<T> {
    ways.sort_by(|a, b| of(a).0.total_cmp(&of(b).0));
    let mut kept: Vec<T> = Vec::new();
    for way in ways {
        // A slower way is of use only if its division is new.
        let is_new = of(&way).1.iter().any(|keys| !kept.iter().any(|other| of(other).1.contains(keys)));
        if kept.is_empty() || (is_new && kept.len() < WAYS_MAX) {
            kept.push(way);
        }
    }
    kept
}

fn index_of(expression: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expression.downcast_ref::<Column>().map(Column::index)
}

fn is_divided(divided_by: &[Vec<usize>], keys: &[Option<usize>]) -> bool {
    divided_by
        .iter()
        .any(|by| by.len() == keys.len() && by.iter().zip(keys).all(|(by, key)| Some(*by) == *key))
}

/// Divisions by columns of an input, as columns of the output.
fn mapped(divided_by: &[Vec<usize>], to: impl Fn(usize) -> Option<usize>) -> Vec<Vec<usize>> {
    divided_by.iter().filter_map(|by| by.iter().map(|column| to(*column)).collect()).collect()
}

/// How the rows of an operator with one input are divided.
fn divided_above(plan: &Arc<dyn ExecutionPlan>, divided_by: &[Vec<usize>]) -> Vec<Vec<usize>> {
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        return mapped(divided_by, |column| {
            projection.expr().iter().position(|output| index_of(&output.expr) == Some(column))
        });
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        return match filter.projection() {
            Some(columns) => mapped(divided_by, |column| columns.iter().position(|output| *output == column)),
            None => divided_by.to_vec(),
        };
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let groups = aggregate.group_expr();
        return match aggregate.mode() {
            AggregateMode::FinalPartitioned | AggregateMode::SinglePartitioned if groups.is_single() => {
                vec![(0..groups.expr().len()).collect()]
            }
            AggregateMode::Partial if groups.is_single() => mapped(divided_by, |column| {
                groups.expr().iter().position(|(group, _)| index_of(group) == Some(column))
            }),
            _ => Vec::new(),
        };
    }
    Vec::new()
}

/// How the rows of a join are divided.
fn divided_by_join(
    join: &HashJoinExec,
    way: JoinStrategy,
    inputs: [&Vec<Vec<usize>>; 2],
    keys: &[Vec<Option<usize>>; 2],
) -> Vec<Vec<usize>> {
    use JoinType as J;
    let kind = *join.join_type();
    let (has_left, has_right) = match kind {
        J::LeftSemi | J::LeftAnti | J::LeftMark => (true, false),
        J::RightSemi | J::RightAnti | J::RightMark => (false, true),
        _ => (true, true),
    };
    let left_columns = join.left().schema().fields().len();
    let output = |column: usize| match join.projection.as_ref() {
        Some(columns) => columns.iter().position(|output| *output == column),
        None => Some(column),
    };
    let from_left = |column: usize| has_left.then(|| output(column)).flatten();
    let from_right = |column: usize| {
        has_right.then(|| output(if has_left { left_columns + column } else { column })).flatten()
    };
    match way {
        JoinStrategy::BroadcastLeft => mapped(inputs[1], from_right),
        JoinStrategy::BroadcastRight => mapped(inputs[0], from_left),
        JoinStrategy::Repartition => {
            let whole = |keys: &Vec<Option<usize>>| keys.iter().copied().collect::<Option<Vec<usize>>>();
            // Rows without a partner have no value on the other side.
            let left = whole(&keys[0]).filter(|_| !matches!(kind, J::Right | J::Full));
            let right = whole(&keys[1]).filter(|_| !matches!(kind, J::Left | J::Full));
            let left = left.map(|keys| mapped(&[keys], from_left));
            let right = right.map(|keys| mapped(&[keys], from_right));
            left.into_iter().chain(right).flatten().collect()
        }
    }
}

fn on(join: &HashJoinExec) -> String {
    let on: Vec<String> = join.on().iter().map(|(left, right)| format!("{left} = {right}")).collect();
    on.join(" AND ")
}
