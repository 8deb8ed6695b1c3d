//! What a node holds of hosts and queries: samples on one time line, the queries that it answered, and for each of them
//! where its time went.

mod hosts;
mod metrics;
mod options;
mod queries;
mod report;
mod run;
mod scaling;
mod series;
#[cfg(feature = "otlp")]
mod spans;
mod state;
mod stored;
#[cfg(test)]
mod tests;
mod trace;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::collector::{CollectorCounts, CollectorEvent, HostReport};
use crate::history::HistoryStatus;
pub use hosts::{ClockOverview, DatagramsOverview, FactsOverview, HostOverview, HostState, PressureOverview};
pub use metrics::METRICS_CONTENT_TYPE;
pub use options::{QueryEnd, RecorderOptions};
use queries::{ID_BYTES_MAX, cut};
pub use queries::{QueryCounts, QueryState};
pub use report::{
    CollectorOverview, NotableEvent, Overview, PartFraction, QueryReport, QueryRow, RecorderCounts,
    TaskReport,
};
pub use run::run_recorder;
pub use scaling::{Scaling, ScalingRuns};
pub use series::{FigureGroup, SeriesLine, SeriesReport};
#[cfg(feature = "otlp")]
pub(crate) use spans::spans;
use state::{Arrival, State};
pub use stored::StoredQuery;

/// The most that may have arrived and not be recorded yet: events, and about their bytes.
const INBOX_ITEMS_MAX: usize = 16_384;
const INBOX_BYTES_MAX: usize = 32 << 20;
/// Room that only the ends of queries may use. Without it, a query whose end is lost would seem to run for ever.
const INBOX_ENDS_MAX: usize = 4096;
/// The most bytes of an error that is in this reserve.
const RESERVED_ERROR_BYTES_MAX: usize = 256;

/// Records the samples of a collector and the queries of a node, and tells where the time of each query went.
///
/// All times are nanoseconds of the collector's clock, which is [`crate::monotonic_ns`] on the collector's host.
///
/// What arrives ([`Recorder::observe`], [`Recorder::query_began`], [`Recorder::query_ended`]) is only put in line, so
/// that neither the collector nor a query waits for a report. It is recorded by [`Recorder::tick`], and before each
/// report. Reports take up to a tenth of a second: do not call them where nothing may block.
#[derive(Debug)]
pub struct Recorder {
    inbox: Mutex<Inbox>,
    state: Mutex<State>,
    text_bytes_max: usize,
}

/// What has arrived and is not recorded yet.
#[derive(Debug, Default)]
struct Inbox {
    items: Vec<Arrival>,
    bytes: usize,
    /// Of the items, those in the reserve for ends of queries.
    reserved: usize,
    dropped: u64,
}

impl Inbox {
    fn has_room(&self, bytes: usize) -> bool {
        self.items.len() < INBOX_ITEMS_MAX && self.bytes.saturating_add(bytes) <= INBOX_BYTES_MAX
    }

    fn put(&mut self, item: Arrival, bytes: usize) {
        if !self.has_room(bytes) {
            self.dropped += 1;
            return;
        }
        self.items.push(item);
        self.bytes += bytes;
    }

    fn put_end(&mut self, id: &str, at_ns: u64, mut end: QueryEnd) {
        let bytes = 256 + id.len() + end.error.as_ref().map_or(0, String::len);
        if !self.has_room(bytes) {
            if self.reserved >= INBOX_ENDS_MAX || id.len() > ID_BYTES_MAX {
                self.dropped += 1;
                return;
            }
            self.reserved += 1;
            end.error = end.error.map(|error| cut(&error, RESERVED_ERROR_BYTES_MAX));
            self.items.push(Arrival::Ended { id: id.into(), at_ns, end });
            return;
        }
        self.items.push(Arrival::Ended { id: id.into(), at_ns, end });
        self.bytes += bytes;
    }
}

impl Recorder {
    /// A recorder without hosts and queries.
    pub fn new(options: RecorderOptions) -> Self {
        let text_bytes_max = options.text_bytes_max;
        Self { inbox: Mutex::default(), state: Mutex::new(State::new(options)), text_bytes_max }
    }

    /// Takes an event of [`crate::run_collector`], which happened at `now_ns`.
    pub fn observe(&self, event: CollectorEvent, now_ns: u64) {
        let bytes = match &event {
            CollectorEvent::Sample(timed) => 256 + 200 * timed.sample.entries.len(),
            _ => 256,
        };
        lock(&self.inbox).put(Arrival::Event { event, now_ns }, bytes);
    }

    /// Takes what the collector says of its hosts: clocks, losses and facts. Hosts that are not among them any more are
    /// forgotten.
    pub fn update(&self, hosts: Vec<HostReport>, counts: CollectorCounts) {
        self.state().update(hosts, counts);
    }

    /// Takes what became of the samples on disk.
    pub fn set_history(&self, status: HistoryStatus) {
        self.state().history = Some(status);
    }

    /// A query began at `at_ns`. `id` is the query of [`Subject::Task`](lightship_usage::Subject::Task), `label` is
    /// what people know it by, such as its text; long ones are cut.
    pub fn query_began(&self, id: &str, label: &str, at_ns: u64) {
        let label = cut(label, self.text_bytes_max);
        let bytes = 256 + id.len() + label.len();
        lock(&self.inbox).put(Arrival::Began { id: id.into(), label, at_ns }, bytes);
    }

    /// A query ended at `at_ns`. It is assessed when the samples after it have come.
    pub fn query_ended(&self, id: &str, at_ns: u64, mut end: QueryEnd) {
        end.error = end.error.map(|error| cut(&error, self.text_bytes_max));
        lock(&self.inbox).put_end(id, at_ns, end);
    }

    /// Assesses queries that ended and whose samples have come by `now_ns`, a limited number of them. Call it about
    /// twice a second; [`run_recorder`] does.
    pub fn tick(&self, now_ns: u64) {
        let (tick, assessments_max) = {
            let mut state = self.state();
            let Some(tick) = state.begin_tick(now_ns) else { return };
            (tick, state.options.assessments_per_tick_max)
        };
        for _ in 0..assessments_max {
            let Some(assignment) = self.state().next_assignment(&tick) else { break };
            // Without the lock: it may take long, and reports need not wait for it.
            let assessed = assignment.assess();
            self.state().finish(assignment, assessed);
        }
    }

    /// The state, with all that has arrived.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        let Inbox { items, dropped, .. } = std::mem::take(&mut *lock(&self.inbox));
        state.arrivals_dropped += dropped;
        items.into_iter().for_each(|item| state.take(item));
        state
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves a record that may lack one query or sample.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
