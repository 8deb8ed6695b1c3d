//! The timer around a recorder.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Recorder;
use crate::collector::Collector;
use crate::history::{HistoryStatus, HistoryWriter, QueryLog};
use crate::time::monotonic_ns;

/// The time between two assessments.
const TICK: Duration = Duration::from_millis(500);

/// Assesses the queries of a recorder, stores what it found in `queries`, and keeps it informed of the collector's hosts
/// and of the history of samples, until it is dropped. The samples come from [`crate::run_collector`], whose callback should be [`Recorder::observe`].
///
/// # Errors
/// If the thread for assessments fails.
pub async fn run_recorder(
    recorder: &Arc<Recorder>,
    collector: &Mutex<Collector>,
    history: Option<&HistoryWriter>,
    queries: Option<QueryLog>,
) -> io::Result<Infallible> {
    let mut storing = queries.map(|log| Storing { log, assessed: 0, fails: false });
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now_ns = monotonic_ns();
        let (hosts, counts) = {
            let collector = collector.lock().unwrap_or_else(PoisonError::into_inner);
            (collector.hosts(now_ns), collector.counts())
        };
        let history = history.map(HistoryWriter::status);
        let mut taken = storing.take();
        let recorder = recorder.clone();
        let work = move || {
            recorder.update(hosts, counts);
            recorder.tick(now_ns);
            let error = taken.as_mut().and_then(|storing| storing.store(&recorder).err());
            if history.is_some() || error.is_some() {
                let HistoryStatus { error: of_samples, lost } = history.unwrap_or_default();
                let error = of_samples.or(error.map(|error| format!("queries: {error}")));
                recorder.set_history(HistoryStatus { error, lost });
            }
            taken
        };
        storing = tokio::task::spawn_blocking(work).await?;
    }
}

/// What is stored of the queries.
struct Storing {
    log: QueryLog,
    /// The assessed queries up to which all are stored.
    assessed: u64,
    fails: bool,
}

impl Storing {
    /// Stores the queries that were assessed since the last time. After an error, they are tried again.
    fn store(&mut self, recorder: &Recorder) -> io::Result<()> {
        let (queries, last) = recorder.assessed_after(self.assessed);
        match self.log.add(&queries) {
            Ok(()) => (self.assessed, self.fails) = (last, false),
            Err(error) => {
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(%error, "queries can't be stored");
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
