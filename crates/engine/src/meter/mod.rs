//! Counts the processor time of each task of each query.
//!
//! The system counts processor time by process and thread, but queries share both. So whatever runs for a task, and
//! whatever DataFusion spawns meanwhile, is timed with the clock of its thread ([`poll`]). Two readings of that clock
//! take about half a microsecond, a poll usually makes a batch of rows.
//!
//! Not counted: reading of files and messages, which other threads do, and encoding of messages. They are part of the
//! process's own figures.

mod poll;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use datafusion_distributed::TaskKey;
use lightship_transport::net::Delivery;
use lightship_usage::{Entry, Figure, Figures, Subject};
use uuid::Uuid;

pub(crate) use self::poll::{metered, metered_batches, thread_cpu_ns};

/// The most tasks that are counted at a time. Each takes some 200 bytes.
const TASKS_MAX: usize = 4096;
/// Tasks that ended get at least this part of the entries, so that those that run can't keep them in the table forever.
const ENDED_PART: usize = 4;
/// The stage of the task that gives its rows to the client; those that give theirs to other tasks have higher numbers.
const LAST_STAGE: u32 = 0;

/// Is told of queries that begin and end on a node.
pub trait QueryObserver: Send + Sync {
    /// A query has been planned, and begins to run. It arrived `age` ago.
    fn began(&self, query: &str, sql: &str, age: Duration);
    /// All its rows have been taken, or it failed, or was cancelled.
    fn ended(&self, query: &str, outcome: QueryOutcome, times: &QueryTimes);
}

/// What is known of the time of a query. Times begin with its arrival.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryTimes {
    /// When it had been planned.
    pub planned: Duration,
    /// From and to: it waited until there was room for it among other queries.
    pub queued: Vec<(Duration, Duration)>,
    /// How often rows waited until the client had taken earlier ones.
    pub client_waits: u64,
    /// Bytes of rows that were sent to the client; 0 if that was not counted.
    pub sent_bytes: u64,
}

/// How a query ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryOutcome {
    /// The client took all rows.
    Finished,
    /// It failed with this message.
    Failed(String),
    /// The client took no more rows.
    Cancelled,
}

/// The processor time of tasks, and who is told of queries.
#[derive(Default)]
pub struct TaskMeters {
    tasks: Mutex<HashMap<TaskId, Counted>>,
    /// Tasks that were counted so far.
    count: AtomicU64,
    /// Tasks that were not counted because there were too many.
    left_out: AtomicU64,
    observer: OnceLock<Arc<dyn QueryObserver>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct TaskId {
    query: Uuid,
    stage: u32,
    task: u32,
}

struct Counted {
    meter: Arc<Meter>,
    /// How many tasks were counted before it.
    number: u64,
    /// An entry has been made after its end.
    told: bool,
}

/// What one task used.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    cpu_ns: AtomicU64,
    /// For the last task: the time during which its client took no rows.
    client_wait: Mutex<ClientWait>,
    /// The most that was told of it, in nanoseconds.
    client_wait_told: AtomicU64,
    /// For the last task: what was sent to the client.
    delivery: Arc<Delivery>,
    /// For the last task: when the query waited for room, after its arrival.
    queued: Mutex<Vec<(Duration, Duration)>>,
}

#[derive(Debug, Default)]
struct ClientWait {
    /// Waits that have ended.
    ended: Duration,
    /// When the client took the rows that it has not come back from.
    since: Option<Instant>,
}

impl Meter {
    fn client_wait(&self) -> MutexGuard<'_, ClientWait> {
        self.client_wait.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The query, which arrived at `arrived`, has waited for room since `began`.
    pub(crate) fn queued(&self, arrived: Instant, began: Instant) {
        let wait = (began.saturating_duration_since(arrived), arrived.elapsed());
        self.waits().push(wait);
    }

    fn waits(&self) -> MutexGuard<'_, Vec<(Duration, Duration)>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Also counts a wait that has not ended: it may be longer than many samples are apart.
    fn client_wait_ns(&self) -> u64 {
        let all = if self.delivery.payload_bytes() > 0 {
            // Who sends the rows knows it better: it also encodes them before it asks for the next.
            self.delivery.waits().1
        } else {
            let wait = self.client_wait();
            wait.ended + wait.since.map_or(Duration::ZERO, |since| since.elapsed())
        };
        let ns = u64::try_from(all.as_nanos()).unwrap_or(u64::MAX);
        // A counter never goes back.
        self.client_wait_told.fetch_max(ns, Ordering::Relaxed).max(ns)
    }
}

impl std::fmt::Debug for TaskMeters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskMeters").field("left_out", &self.left_out).finish_non_exhaustive()
    }
}

impl TaskMeters {
    /// Meters of the queries of one engine, from now on.
    pub fn new() -> Arc<Self> {
        poll::follow_spawned_work();
        Arc::default()
    }

    /// Sets who is told of queries. The first one stays.
    pub fn observe(&self, observer: Arc<dyn QueryObserver>) {
        // A second one is of no use.
        let _ = self.observer.set(observer);
    }

    /// The counters of at most `entries_max` tasks: the running ones, the oldest first, and those that ended since the
    /// last call that returned them. Ended tasks for which there is no room are returned by a later call.
    pub fn entries(&self, entries_max: usize) -> Vec<Entry> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|_, counted| counted.runs() || !counted.told);
        // A task that is counted in each sample stays in them, so that its use is seen over time.
        let (mut running, mut ended): (Vec<_>, Vec<_>) =
            tasks.iter_mut().partition(|(_, counted)| counted.runs());
        running.sort_unstable_by_key(|(_, counted)| counted.number);
        ended.sort_unstable_by_key(|(_, counted)| counted.number);
        let reserved = ended.len().min(entries_max / ENDED_PART);
        running.truncate(entries_max - reserved);
        let chosen = running.into_iter().chain(ended).take(entries_max);
        chosen.map(|(id, counted)| counted.entry(id)).collect()
    }

    /// Tasks that were not counted because there were too many.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// The meter of a task of another node's plan.
    pub(crate) fn of_task(&self, key: &TaskKey) -> Arc<Meter> {
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let id = TaskId {
            query: key.query_id,
            stage: number(key.stage_id as u64),
            task: number(key.task_number as u64),
        };
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        match tasks.get(&id) {
            Some(counted) => counted.meter.clone(),
            None => {
                let meter = Arc::default();
                self.add(&mut tasks, id, &meter);
                meter
            }
        }
    }

    fn add(&self, tasks: &mut HashMap<TaskId, Counted>, id: TaskId, meter: &Arc<Meter>) {
        if tasks.len() >= TASKS_MAX {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        tasks.insert(id, Counted { meter: meter.clone(), number, told: false });
    }

    /// A query that has been planned, and begins to run. Its last task has used `meter` since it arrived.
    pub(crate) fn begin(
        self: &Arc<Self>,
        query: Uuid,
        sql: &str,
        meter: Arc<Meter>,
        arrived: Instant,
    ) -> ObservedQuery {
        let id = TaskId { query, stage: LAST_STAGE, task: 0 };
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        self.add(&mut tasks, id, &meter);
        drop(tasks);
        let query = query.to_string();
        let planned = arrived.elapsed();
        if let Some(observer) = self.observer.get() {
            observer.began(&query, sql, planned);
        }
        ObservedQuery { meters: self.clone(), query, meter, planned, outcome: QueryOutcome::Cancelled }
    }
}

impl Counted {
    fn runs(&self) -> bool {
        // Only the table still has the meter of a task that has ended.
        Arc::strong_count(&self.meter) > 1
    }

    fn entry(&mut self, id: &TaskId) -> Entry {
        // Before the figures are read: what is added later belongs to the next entry.
        self.told = !self.runs();
        let mut figures = Figures::default();
        if poll::COUNTS {
            figures.set(Figure::CpuNs, self.meter.cpu_ns.load(Ordering::Relaxed));
        }
        if id.stage == LAST_STAGE {
            figures.set(Figure::ClientWaitNs, self.meter.client_wait_ns());
        }
        let TaskId { query, stage, task } = *id;
        Entry { subject: Subject::Task { query: query.to_string(), stage, task }, figures }
    }
}

/// A query that runs. Dropping it ends the query.
pub(crate) struct ObservedQuery {
    meters: Arc<TaskMeters>,
    query: String,
    meter: Arc<Meter>,
    planned: Duration,
    outcome: QueryOutcome,
}

impl ObservedQuery {
    /// Where what is sent to the client is counted.
    pub(crate) fn delivery(&self) -> Arc<Delivery> {
        self.meter.delivery.clone()
    }

    /// The client asks for rows.
    pub(crate) fn asked(&mut self) {
        let mut wait = self.meter.client_wait();
        if let Some(since) = wait.since.take() {
            wait.ended += since.elapsed();
        }
    }

    /// The client gets rows.
    pub(crate) fn gave(&mut self) {
        self.meter.client_wait().since = Some(Instant::now());
    }

    /// The query has ended: with an error, or with its last rows.
    pub(crate) fn end(&mut self, error: Option<String>) {
        self.outcome = match error {
            Some(message) => QueryOutcome::Failed(message),
            None => QueryOutcome::Finished,
        };
    }
}

impl Drop for ObservedQuery {
    fn drop(&mut self) {
        self.asked();
        if let Some(observer) = self.meters.observer.get() {
            let outcome = std::mem::replace(&mut self.outcome, QueryOutcome::Cancelled);
            let times = QueryTimes {
                planned: self.planned,
                queued: self.meter.waits().clone(),
                client_waits: self.meter.delivery.waits().0,
                sent_bytes: self.meter.delivery.payload_bytes(),
            };
            observer.ended(&self.query, outcome, &times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(stage: usize) -> TaskKey {
        TaskKey { query_id: Uuid::from_u128(7), stage_id: stage, task_number: 3 }
    }

    #[test]
    fn a_task_has_an_entry_after_its_end_and_then_none() {
        let meters = TaskMeters::new();
        let meter = meters.of_task(&key(2));
        assert!(Arc::ptr_eq(&meter, &meters.of_task(&key(2))));
        meter.cpu_ns.store(5, Ordering::Relaxed);
        for _ in 0..3 {
            let [entry] = meters.entries(9).try_into().unwrap();
            assert_eq!(entry.figures.get(Figure::CpuNs), Some(5));
            assert_eq!(entry.figures.get(Figure::ClientWaitNs), None);
            let Subject::Task { query, stage, task } = entry.subject else { panic!("{entry:?}") };
            assert_eq!((query, stage, task), (Uuid::from_u128(7).to_string(), 2, 3));
        }
        drop(meter);
        assert_eq!(meters.entries(9).len(), 1);
        assert_eq!(meters.entries(9).len(), 0);
    }

    #[test]
    fn the_oldest_tasks_stay_in_the_entries_and_ended_ones_wait_for_room() {
        let meters = TaskMeters::new();
        let stages = |entries: Vec<Entry>| {
            let stage = |entry: Entry| match entry.subject {
                Subject::Task { stage, .. } => stage,
                subject => panic!("{subject:?}"),
            };
            entries.into_iter().map(stage).collect::<Vec<u32>>()
        };
        let running: Vec<_> = (0..6).map(|stage| meters.of_task(&key(stage))).collect();
        (6..9).for_each(|stage| drop(meters.of_task(&key(stage))));
        // A quarter is for those that ended.
        assert_eq!(stages(meters.entries(4)), [0, 1, 2, 6]);
        assert_eq!(stages(meters.entries(4)), [0, 1, 2, 7]);
        drop(running);
        assert_eq!(stages(meters.entries(4)), [0, 1, 2, 3]);
        assert_eq!(stages(meters.entries(4)), [4, 5, 8]);
        assert_eq!(stages(meters.entries(4)), [0; 0]);
    }

    #[test]
    fn tasks_beyond_the_limit_are_not_counted_but_said_to_be_missing() {
        let meters = TaskMeters::new();
        let _kept: Vec<_> = (0..TASKS_MAX + 2).map(|stage| meters.of_task(&key(stage))).collect();
        assert_eq!((meters.entries(usize::MAX).len(), meters.left_out()), (TASKS_MAX, 2));
    }
}
