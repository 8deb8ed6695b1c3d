//! What a node holds of hosts and queries: samples on one time line, the queries that it answered, and for each of them
//! where its time went.

mod hosts;
mod metrics;
mod options;
mod queries;
mod report;
mod run;
mod series;
mod state;
#[cfg(test)]
mod tests;
mod trace;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::collector::{CollectorCounts, CollectorEvent, HostReport};
pub use hosts::{ClockOverview, DatagramsOverview, FactsOverview, HostOverview, HostState, PressureOverview};
pub use metrics::METRICS_CONTENT_TYPE;
pub use options::{QueryEnd, RecorderOptions};
pub use queries::{QueryCounts, QueryState};
pub use report::{
    CollectorOverview, NotableEvent, Overview, PartFraction, QueryReport, QueryRow, RecorderCounts,
    TaskReport,
};
pub use run::run_recorder;
pub use series::{FigureGroup, SeriesLine, SeriesReport};
use state::{Arrival, State};

/// The most that may have arrived and not be recorded yet: events, and about their bytes.
const INBOX_ITEMS_MAX: usize = 16_384;
const INBOX_BYTES_MAX: usize = 32 << 20;

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
}

/// What has arrived and is not recorded yet.
#[derive(Debug, Default)]
struct Inbox {
    items: Vec<Arrival>,
    bytes: usize,
    dropped: u64,
}

impl Recorder {
    /// A recorder without hosts and queries.
    pub fn new(options: RecorderOptions) -> Self {
        Self { inbox: Mutex::default(), state: Mutex::new(State::new(options)) }
    }

    /// Takes an event of [`crate::run_collector`], which happened at `now_ns`.
    pub fn observe(&self, event: CollectorEvent, now_ns: u64) {
        let bytes = match &event {
            CollectorEvent::Sample(timed) => 256 + 200 * timed.sample.entries.len(),
            _ => 256,
        };
        self.put(Arrival::Event { event, now_ns }, bytes);
    }

    /// Takes what the collector says of its hosts: clocks, losses and facts. Hosts that are not among them any more are
    /// forgotten.
    pub fn update(&self, hosts: Vec<HostReport>, counts: CollectorCounts) {
        self.state().update(hosts, counts);
    }

    /// A query began at `at_ns`. `id` is the query of [`Subject::Task`](lightship_usage::Subject::Task), `label` is
    /// what people know it by, such as its text; long ones are cut.
    pub fn query_began(&self, id: &str, label: &str, at_ns: u64) {
        let bytes = 256 + id.len() + label.len();
        self.put(Arrival::Began { id: id.into(), label: label.into(), at_ns }, bytes);
    }

    /// A query ended at `at_ns`. It is assessed when the samples after it have come.
    pub fn query_ended(&self, id: &str, at_ns: u64, end: QueryEnd) {
        let bytes = 256 + id.len() + end.error.as_ref().map_or(0, String::len);
        self.put(Arrival::Ended { id: id.into(), at_ns, end }, bytes);
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

    fn put(&self, item: Arrival, bytes: usize) {
        let mut inbox = lock(&self.inbox);
        if inbox.items.len() >= INBOX_ITEMS_MAX || inbox.bytes.saturating_add(bytes) > INBOX_BYTES_MAX {
            inbox.dropped += 1;
            return;
        }
        inbox.items.push(item);
        inbox.bytes += bytes;
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
