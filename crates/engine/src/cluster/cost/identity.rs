//! Recognizes operators that give the same rows in different plans.

use std::hash::{DefaultHasher, Hash, Hasher};

use datafusion::common::JoinType;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode, displayable};
use datafusion_distributed::{DistributedLeafExec, NetworkBoundaryExt as _};

use crate::cluster::shard::ShardScanExec;

/// The number of an operator, from those of its inputs. Two operators with the same number give the same
/// rows, whatever columns they have of them, in whatever order, and however they are divided. `streams` is the
/// number of partitions of a stage in all its tasks together.
pub(crate) fn identity(plan: &dyn ExecutionPlan, inputs: &[u64], streams: usize) -> u64 {
    if let Some(leaf) = plan.downcast_ref::<DistributedLeafExec>() {
        return identity(leaf.original().as_ref(), inputs, streams);
    }
    if let Some(scan) = plan.downcast_ref::<ShardScanExec>() {
        return hash(("scan", scan.rows_read()));
    }
    if let (Some(join), [left, right]) = (plan.downcast_ref::<HashJoinExec>(), inputs) {
        return of_join(join, *left, *right);
    }
    if let (Some(aggregate), [input]) = (plan.downcast_ref::<AggregateExec>(), inputs) {
        let groups = aggregate.group_expr();
        let mut names: Vec<_> = groups.expr().iter().map(|(_, name)| unnumbered(name)).collect();
        names.sort();
        let limit = format!("{:?}", aggregate.limit_options());
        // The second of two aggregations gives the rows that one alone gives.
        let is_partial = matches!(aggregate.mode(), AggregateMode::Partial | AggregateMode::PartialReduce);
        let partial = is_partial.then_some(streams);
        return hash(("aggregate", partial, names, groups.groups(), limit, input));
    }
    if let (Some(filter), [input]) = (plan.downcast_ref::<FilterExec>(), inputs) {
        return hash(("filter", unnumbered(&filter.predicate().to_string()), fetch(plan), input));
    }
    if let (Some(projection), [input]) = (plan.downcast_ref::<ProjectionExec>(), inputs)
        && !projection.expr().iter().all(|output| {
            output.expr.downcast_ref::<Column>().is_some_and(|column| column.name() == output.alias)
        })
    {
        // What follows can be conditions on these expressions.
        let outputs =
            projection.expr().iter().map(|output| unnumbered(&format!("{} {}", output.expr, output.alias)));
        return hash(("projection", outputs.collect::<Vec<_>>(), input));
    }
    if let [input] = inputs
        && keeps_rows(plan)
    {
        return *input;
    }
    hash((plan.name(), unnumbered(&displayable(plan).one_line().to_string()), inputs))
}

/// A number for the place of an operator's input in a plan, from that of the operator: the operators above it that compute
/// something, with those of their inputs that are read before, and the borders of stages. The root has 0.
pub(super) fn place(above: u64, plan: &dyn ExecutionPlan, inputs_before: &[u64]) -> u64 {
    if keeps_rows(plan) && plan.as_network_boundary().is_none() {
        return above;
    }
    hash((above, plan.name(), inputs_before))
}

/// Whether an operator gives the rows of its input.
pub(super) fn keeps_rows(plan: &dyn ExecutionPlan) -> bool {
    let by_name = matches!(
        plan.name(),
        "RepartitionExec"
            | "CoalescePartitionsExec"
            | "CooperativeExec"
            | "BroadcastExec"
            | "SortPreservingMergeExec"
            | "SortExec"
            | "ProjectionExec"
            | "BufferExec"
            | "NetworkShuffleExec"
            | "NetworkBroadcastExec"
            | "NetworkCoalesceExec"
            | "UntilErrorExec"
    );
    by_name && fetch(plan).is_none()
}

/// The most rows that an operator gives. Operators with metrics are wrapped, and the wrapper has no limit.
pub(super) fn fetch(mut plan: &dyn ExecutionPlan) -> Option<usize> {
    while let Some(inner) = plan.downcast_delegate() {
        plan = inner;
    }
    plan.fetch()
}

/// Whether an operator reads all rows of its inputs, whatever is read of its own.
pub(crate) fn reads_all(plan: &dyn ExecutionPlan) -> bool {
    let has_limit = |aggregate: &AggregateExec| aggregate.limit_options().is_some();
    plan.is::<SortExec>()
        || plan.downcast_ref::<AggregateExec>().is_some_and(|aggregate| !has_limit(aggregate))
}

/// Whether an operator that has given a row has read all rows of its inputs before.
pub(crate) fn reads_all_first(plan: &dyn ExecutionPlan) -> bool {
    let at_end = |aggregate: &AggregateExec| {
        *aggregate.input_order_mode() == InputOrderMode::Linear
            && matches!(
                aggregate.mode(),
                AggregateMode::Final | AggregateMode::FinalPartitioned | AggregateMode::Single
            )
    };
    reads_all(plan) && plan.downcast_ref::<AggregateExec>().is_none_or(at_end)
}

/// A join gives the same rows when its sides are swapped.
fn of_join(join: &HashJoinExec, left: u64, right: u64) -> u64 {
    let kind = *join.join_type();
    let is_right =
        matches!(kind, JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark);
    let symmetric = matches!(kind, JoinType::Inner | JoinType::Full);
    let swap = is_right || (symmetric && right < left);
    let kind = if is_right { kind.swap() } else { kind };
    let sides = if swap { [right, left] } else { [left, right] };
    let mut on: Vec<_> = join
        .on()
        .iter()
        .map(|(l, r)| {
            let (l, r) = (unnumbered(&l.to_string()), unnumbered(&r.to_string()));
            if swap { (r, l) } else { (l, r) }
        })
        .collect();
    on.sort();
    let filter = join.filter().map(|filter| unnumbered(&filter.expression().to_string()));
    let nulls = format!("{:?} {}", join.null_equality(), join.null_aware);
    hash((format!("{kind:?}"), sides, on, filter, join.fetch(), nulls))
}

/// A text without the numbers of columns, which depend on the other columns: `a@1` becomes `a`.
pub(super) fn unnumbered(text: &str) -> String {
    let mut short = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        if character == '@' && rest.peek().is_some_and(char::is_ascii_digit) {
            while rest.next_if(char::is_ascii_digit).is_some() {}
        } else {
            short.push(character);
        }
    }
    short
}

pub(super) fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::unnumbered;

    #[test]
    fn columns_lose_their_numbers() {
        assert_eq!(unnumbered("a@0 = b@12 AND c@x"), "a = b AND c@x");
    }
}
