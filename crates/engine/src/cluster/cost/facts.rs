//! What operators gave in earlier queries: better than any estimate, as M. Stillger et al. found ("LEO - DB2's
//! LEarning Optimizer", 2001).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning};
use datafusion_distributed::{DISTRIBUTED_DATAFUSION_TASK_ID_LABEL, NetworkBoundaryExt};
use lightship_wire::Codec;

use super::identity::{fetch, hash, identity, place, reads_all, reads_all_first, unnumbered};
use super::times::{EdgeTimes, RunTimes};
use crate::cluster::explain::{by_edge, by_task, most_used};

/// Operators that are remembered; the oldest are forgotten first.
const FACTS_MAX: usize = 4096;
/// Sets of columns that are remembered of an operator.
const COLUMNS_MAX: usize = 4;
/// Places in plans at which the time of sending these columns is remembered: at most 15 MB in all.
const PLACES_MAX: usize = 4;
/// With fewer rows for each partition on average, a partition may have no row.
const FEW_ROWS: u64 = 16;

/// What is remembered of operators, by their [`identity`].
#[derive(Debug, Default)]
pub(crate) struct Facts(Mutex<Store>);

#[derive(Debug, Default)]
struct Store {
    facts: HashMap<u64, Fact>,
    /// The operators, in the order in which they were first seen.
    order: VecDeque<u64>,
}

/// What an operator gave when it last ran.
#[derive(Debug, Default)]
struct Fact {
    /// If they were all read.
    rows: Option<f64>,
    /// What it took to send them to other nodes, by their columns.
    sent: Vec<(u64, Sent)>,
    /// The part of the rows that has one key beyond that of the others, by keys.
    skew: Vec<(u64, f64)>,
}

/// What it took to send the rows of an operator to other nodes.
#[derive(Debug, Default)]
struct Sent {
    row_bytes: f64,
    /// The codec of most of them.
    codec: Option<Codec>,
    /// By the [`place`] where they are received, the last one first: rows take longer where they wait for another input.
    times: Vec<(u64, EdgeTimes)>,
}

/// A run in which the rows of an operator were sent to other nodes.
struct SentRun {
    row_bytes: f64,
    codec: Option<Codec>,
    place: u64,
    times: RunTimes,
}

/// What it takes to send the rows of an operator to other nodes, as far as it is known.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WireCost {
    /// Bytes on the wire for a row.
    pub(super) row_bytes: f64,
    /// The codec of most rows.
    pub(super) codec: Option<Codec>,
    /// If they were sent to the same place.
    pub(super) times: Option<EdgeTimes>,
}

impl Facts {
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows of an operator, in all its tasks together.
    pub(crate) fn rows(&self, identity: u64) -> Option<f64> {
        self.lock().facts.get(&identity)?.rows
    }

    /// What it took to send the rows of the operator, with these columns, to this place of a plan.
    pub(super) fn sent(&self, identity: u64, plan: &dyn ExecutionPlan, place: u64) -> Option<WireCost> {
        let columns = columns(plan);
        let known = self.lock();
        let (_, sent) = known.facts.get(&identity)?.sent.iter().find(|(known, _)| *known == columns)?;
        let here = sent.times.iter().find(|(known, _)| *known == place);
        let times = here.map(|(_, times)| times.clone());
        Some(WireCost { row_bytes: sent.row_bytes, codec: sent.codec, times })
    }

    /// The part of the operator's rows that has one key, beyond that of the others: 0 if that is not known.
    pub(crate) fn skew<'a>(
        &self,
        identity: u64,
        keys: impl Iterator<Item = &'a Arc<dyn PhysicalExpr>>,
    ) -> f64 {
        let keys = numbered(keys);
        let known = self.lock();
        let skew =
            known.facts.get(&identity).and_then(|fact| fact.skew.iter().find(|(known, _)| *known == keys));
        skew.map_or(0.0, |(_, skew)| *skew)
    }

    /// Learns from a plan that has run to its end, with its metrics. `streams` is the number of partitions of a
    /// stage in all its tasks together.
    pub(crate) fn learn(&self, plan: &Arc<dyn ExecutionPlan>, streams: usize) {
        self.visit(plan, 0, true, streams);
    }

    /// Learns from a subplan, which is `at` a place of the plan. `whole` says whether all its rows were read.
    fn visit(&self, plan: &Arc<dyn ExecutionPlan>, at: u64, whole: bool, streams: usize) -> Seen {
        let metrics = plan.metrics().unwrap_or_default();
        let tasks = by_task(&metrics);
        let is_measured = tasks.values().any(|task| task.has_rows);
        let rows = is_measured.then(|| tasks.values().map(|task| task.rows).sum::<u64>());
        // A limit that was not reached has left out nothing.
        let ends_early = |most: usize| rows.is_none_or(|rows| rows >= most as u64);
        let whole_below = match whole {
            true => reads_all(plan.as_ref()) || !fetch(plan.as_ref()).is_some_and(ends_early),
            // An operator that nobody has asked for rows has read nothing, or has been stopped.
            false => reads_all_first(plan.as_ref()) && rows.is_some_and(|rows| rows > 0),
        };
        let mut inputs: Vec<Seen> = Vec::new();
        let mut identities = Vec::new();
        for child in plan.children() {
            let skips = inputs.first().is_some_and(|left| may_skip(plan.as_ref(), &metrics, left));
            let below = place(at, plan.as_ref(), &identities);
            let input = self.visit(child, below, whole_below && !skips, streams);
            identities.push(input.identity);
            inputs.push(input);
        }
        let identity = identity(plan.as_ref(), &identities, streams);
        if let (Some(_), [input]) = (plan.as_network_boundary(), inputs.as_slice()) {
            let (mut rows, mut bytes, mut seconds) = (0, 0, Vec::new());
            let mut are_whole = whole;
            let mut decoded_bytes = [0; Codec::ALL.len()];
            let mut by_reader = BTreeMap::<usize, u64>::new();
            for ((reader, _), edge) in by_edge(&metrics) {
                *by_reader.entry(reader).or_default() += edge.rows;
                if let Some(took) = edge.seconds() {
                    rows += edge.rows;
                    bytes += edge.bytes;
                    decoded_bytes.iter_mut().zip(edge.decoded_bytes).for_each(|(all, bytes)| *all += bytes);
                    seconds.push(took);
                } else {
                    are_whole = false;
                }
            }
            if let Partitioning::Hash(keys, _) = plan.output_partitioning()
                && are_whole
                && let Some(skew) = skew_of(by_reader.values(), streams)
            {
                self.lock().skew(identity, numbered(keys.iter()), skew);
            }
            if let Some(times) = RunTimes::new(seconds, rows) {
                let (row_bytes, codec) = (bytes as f64 / rows as f64, most_used(&decoded_bytes));
                let place = place(at, plan.as_ref(), &[]);
                self.lock().sent(
                    identity,
                    columns(plan.as_ref()),
                    SentRun { row_bytes, codec, place, times },
                );
            }
            return Seen { identity, rows: input.rows };
        }
        let passed_on = inputs.iter().any(|input| input.identity == identity);
        if let Some(rows) = rows.filter(|_| whole && !passed_on) {
            self.lock().of(identity).rows = Some(rows as f64);
        }
        let rows = rows.or_else(|| inputs.first().filter(|_| passed_on).and_then(|input| input.rows));
        Seen { identity, rows }
    }
}

impl Sent {
    /// Adds a later run. Times vary from run to run, bytes do not.
    fn add(&mut self, run: SentRun) {
        (self.row_bytes, self.codec) = (run.row_bytes, run.codec);
        let known = self.times.iter().position(|(known, _)| *known == run.place);
        let mut times = known.map(|known| self.times.remove(known).1).unwrap_or_default();
        times.add(run.times);
        self.times.truncate(PLACES_MAX - 1);
        self.times.insert(0, (run.place, times));
    }
}

impl Store {
    /// What is remembered of an operator, which it is from now on.
    fn of(&mut self, identity: u64) -> &mut Fact {
        if !self.facts.contains_key(&identity) {
            self.order.push_back(identity);
            if self.order.len() > FACTS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.facts.remove(&oldest);
            }
        }
        self.facts.entry(identity).or_default()
    }

    fn sent(&mut self, identity: u64, columns: u64, run: SentRun) {
        let sent = &mut self.of(identity).sent;
        match sent.iter_mut().find(|(known, _)| *known == columns) {
            Some((_, known)) => known.add(run),
            None => {
                let mut new = Sent::default();
                new.add(run);
                sent.truncate(COLUMNS_MAX - 1);
                sent.insert(0, (columns, new));
            }
        }
    }

    fn skew(&mut self, identity: u64, keys: u64, skew: f64) {
        let known = &mut self.of(identity).skew;
        known.retain(|(other, _)| *other != keys);
        known.truncate(COLUMNS_MAX - 1);
        known.insert(0, (keys, skew));
    }
}

/// Whether an operator may have read nothing of its right side in some partition: a join does not where it has no row of its
/// left side, or only rows whose keys are NULL.
fn may_skip(plan: &dyn ExecutionPlan, metrics: &MetricsSet, left: &Seen) -> bool {
    let is_empty = left.rows.is_none_or(|rows| rows == 0);
    if plan.is::<CrossJoinExec>() {
        // Each partition has all rows of the left side.
        return is_empty;
    }
    let Some(join) = plan.downcast_ref::<HashJoinExec>() else { return false };
    let may_be_null = |key: &Arc<dyn PhysicalExpr>| key.nullable(&join.left().schema()).unwrap_or(true);
    let may_be_null = join.on().iter().any(|(key, _)| may_be_null(key));
    if *join.partition_mode() == PartitionMode::CollectLeft {
        // Each partition has all rows of the left side, and reads the right side if one does.
        let read = metrics.sum_by_name("input_rows").map_or(0, |rows| rows.as_usize());
        return read == 0 && (is_empty || may_be_null);
    }
    // Each partition has a part of them. One that has found no row of the right side may not have asked for any.
    let mut streams = BTreeMap::<(Option<&str>, Option<usize>), [usize; 2]>::new();
    for metric in metrics.iter() {
        let names = ["build_input_rows", "input_rows"];
        let Some(at) = names.iter().position(|name| metric.value().name() == *name) else { continue };
        let task = metric.labels().iter().find(|label| label.name() == DISTRIBUTED_DATAFUSION_TASK_ID_LABEL);
        let stream = (task.map(|label| label.value()), metric.partition());
        streams.entry(stream).or_default()[at] += metric.value().as_usize();
    }
    streams.values().any(|[built, read]| *read == 0 && (*built == 0 || may_be_null))
}

/// How uneven the rows of readers are, which keys divide: the part of all rows with which the busiest exceeds an even
/// division. `None` if there are too few rows to tell.
fn skew_of<'a>(rows: impl ExactSizeIterator<Item = &'a u64> + Clone, streams: usize) -> Option<f64> {
    let readers = rows.len() as f64;
    let (all, most) = (rows.clone().sum::<u64>(), rows.max().copied()?);
    if readers < 2.0 || all < FEW_ROWS * streams as u64 {
        return None;
    }
    let share = most as f64 / all as f64;
    Some((share - 1.0 / readers) / (1.0 - 1.0 / readers))
}

/// A number for keys, in any order.
fn numbered<'a>(keys: impl Iterator<Item = &'a Arc<dyn PhysicalExpr>>) -> u64 {
    let mut names: Vec<String> = keys.map(|key| unnumbered(&key.to_string())).collect();
    names.sort();
    hash(names)
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

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use arrow_schema::{DataType, Field, Schema};
    use datafusion::common::{JoinType, NullEquality};
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
    use datafusion::physical_plan::collect;
    use datafusion::physical_plan::filter::FilterExec;
    use datafusion::physical_plan::joins::HashJoinExecBuilder;

    use super::*;

    #[test]
    fn skew_is_what_the_busiest_reader_has_too_many() {
        let skew = |rows: &[u64]| skew_of(rows.iter(), 4);
        assert_eq!(skew(&[100, 100, 100, 100]), Some(0.0));
        // 30% of 1000 rows have one key, the others are divided evenly.
        assert!(skew(&[475, 175, 175, 175]).is_some_and(|skew| (skew - 0.3).abs() < 1e-9));
        assert_eq!(skew(&[1000, 0, 0, 0]), Some(1.0));
        assert_eq!((skew(&[1000]), skew(&[10, 10]), skew(&[])), (None, None, None));
    }

    #[test]
    fn a_bounded_number_of_operators_is_remembered() {
        let mut store = Store::default();
        let at = |place| SentRun {
            row_bytes: 1.0,
            codec: None,
            place,
            times: RunTimes::new(vec![1.0], 1).unwrap(),
        };
        for identity in 0..FACTS_MAX as u64 + 10 {
            store.of(identity).rows = Some(1.0);
            (0..20).for_each(|columns| store.sent(identity, columns, at(0)));
            (0..20).for_each(|place| store.sent(identity, 19, at(place)));
            (0..20).for_each(|keys| store.skew(identity, keys, 0.5));
        }
        assert_eq!((store.facts.len(), store.order.len()), (FACTS_MAX, FACTS_MAX));
        assert!(store.facts.values().all(|fact| fact.sent.len() == COLUMNS_MAX));
        assert!(store.facts.values().all(|fact| fact.sent[0].1.times.len() == PLACES_MAX));
        assert!(store.facts.values().all(|fact| fact.skew.len() == COLUMNS_MAX));
        assert!(!store.facts.contains_key(&0) && store.facts.contains_key(&(FACTS_MAX as u64)));
    }

    #[test]
    fn the_time_of_rows_is_known_by_where_they_are_received() {
        let mut sent = Sent::default();
        for (place, seconds) in [(1, 8.0), (2, 1.0), (1, 4.0), (2, 1.0)] {
            let times = RunTimes::new(vec![seconds], 1).unwrap();
            sent.add(SentRun { row_bytes: seconds, codec: None, place, times });
        }
        let known: Vec<_> = sent.times.iter().map(|(place, times)| (*place, times.usual(1.0))).collect();
        assert_eq!((sent.row_bytes, known), (1.0, vec![(2, 1.0), (1, 4.0)]));
    }

    #[test]
    fn rows_that_were_sent_elsewhere_have_known_bytes_and_an_unknown_time() {
        let rows = source(["a", "b"], &[vec![], vec![]], false);
        let facts = Facts::default();
        let times = RunTimes::new(vec![1.0], 1).unwrap();
        let run = SentRun { row_bytes: 8.0, codec: Some(Codec::None), place: 1, times };
        facts.lock().sent(7, columns(rows.as_ref()), run);
        let here = facts.sent(7, rows.as_ref(), 1).unwrap();
        assert_eq!(here.times.map(|times| times.usual(2.0)), Some(2.0));
        let elsewhere = WireCost { row_bytes: 8.0, codec: Some(Codec::None), times: None };
        assert_eq!(facts.sent(7, rows.as_ref(), 2), Some(elsewhere));
        assert_eq!(facts.sent(8, rows.as_ref(), 1), None);
    }

    /// The two keys of a row.
    type Keys = [Option<i64>; 2];

    /// Two partitions of rows.
    fn source(names: [&str; 2], partitions: &[Vec<Keys>; 2], nullable: bool) -> Arc<dyn ExecutionPlan> {
        let fields = names.map(|name| Field::new(name, DataType::Int64, nullable));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let batches = |rows: &Vec<Keys>| {
            let key = |index: usize| -> ArrayRef {
                Arc::new(rows.iter().map(|row| row[index]).collect::<Int64Array>())
            };
            vec![RecordBatch::try_new(schema.clone(), vec![key(0), key(1)]).unwrap()]
        };
        let partitions = [batches(&partitions[0]), batches(&partitions[1])];
        MemorySourceConfig::try_new_exec(&partitions, schema, None).unwrap()
    }

    /// Joins partitions by both keys, which may be NULL on the left side if it is `nullable`. Returns the rows
    /// that are then known of the right side, and those of the join.
    async fn joined(
        kind: JoinType,
        left: [Vec<Keys>; 2],
        right: [Vec<Keys>; 2],
        nullable: bool,
    ) -> (Option<f64>, usize) {
        let key = |name: &str, index: usize| -> Arc<dyn PhysicalExpr> { Arc::new(Column::new(name, index)) };
        let streams = left.len();
        let left = source(["a", "b"], &left, nullable);
        let scan = source(["c", "d"], &right, true);
        // Unlike the scan, a filter counts its rows.
        let all = Arc::new(BinaryExpr::new(key("c", 0), Operator::GtEq, lit(0_i64)));
        let right: Arc<dyn ExecutionPlan> = Arc::new(FilterExec::try_new(all, scan.clone()).unwrap());
        let on = vec![(key("a", 0), key("c", 0)), (key("b", 1), key("d", 1))];
        let join = HashJoinExecBuilder::new(left, right.clone(), on, kind)
            .with_partition_mode(PartitionMode::Partitioned)
            .with_null_equality(NullEquality::NullEqualsNothing)
            .build_exec()
            .unwrap();
        let given = collect(join.clone(), Arc::default()).await.unwrap();
        let facts = Facts::default();
        facts.learn(&join, streams);
        let scan = identity(scan.as_ref(), &[], streams);
        let known = facts.rows(identity(right.as_ref(), &[scan], streams));
        (known, given.iter().map(RecordBatch::num_rows).sum())
    }

    #[tokio::test]
    async fn rows_beside_a_divided_join_are_learned_unless_a_partition_may_have_read_none() {
        let one = vec![[Some(1), Some(1)]];
        let right = [
            vec![[Some(1), Some(1)], [Some(1), Some(1)], [Some(9), Some(9)]],
            vec![[Some(2), Some(2)], [Some(3), None], [Some(8), Some(8)]],
        ];
        let null = vec![[Some(2), None], [Some(3), None]];
        for (kind, second, known, rows) in [
            // Each partition has a row without NULL to look for.
            (JoinType::Inner, vec![[Some(2), Some(2)], [Some(3), None]], Some(6.0), 3),
            // One key that is NULL is enough for a row to find nothing, whichever of them.
            (JoinType::Inner, null.clone(), None, 2),
            (JoinType::Inner, vec![[Some(2), None], [None, Some(2)]], None, 2),
            (JoinType::LeftSemi, null.clone(), None, 1),
            (JoinType::RightSemi, null.clone(), None, 2),
            (JoinType::Inner, vec![], None, 2),
            (JoinType::Left, vec![], None, 2),
            // These give rows that find nothing, so that all are read.
            (JoinType::Left, null.clone(), Some(6.0), 4),
            (JoinType::Right, null.clone(), Some(6.0), 6),
            (JoinType::Right, vec![], Some(6.0), 6),
        ] {
            let found = joined(kind, [one.clone(), second.clone()], right.clone(), true).await;
            assert_eq!(found, (known, rows), "{kind:?} {second:?}");
        }
        // Where the right side has no rows, nobody knows whether it was read, unless no key can be NULL.
        let [first, _] = right;
        for (nullable, known) in [(true, None), (false, Some(3.0))] {
            let left = [one.clone(), vec![[Some(2), Some(2)]]];
            let found = joined(JoinType::Inner, left, [first.clone(), vec![]], nullable).await;
            assert_eq!(found, (known, 2), "{nullable}");
        }
    }
}
