//! The timer around a recorder.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Recorder;
use crate::collector::Collector;
use crate::history::HistoryWriter;
use crate::time::monotonic_ns;

/// The time between two assessments.
const TICK: Duration = Duration::from_millis(500);

/// Assesses the queries of a recorder, and keeps it informed of the collector's hosts and of the history, until it is
/// dropped. The samples come from [`crate::run_collector`], whose callback should be [`Recorder::observe`].
///
/// # Errors
/// If the thread for assessments fails.
pub async fn run_recorder(
    recorder: &Arc<Recorder>,
    collector: &Mutex<Collector>,
    history: Option<&HistoryWriter>,
) -> io::Result<Infallible> {
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
        let recorder = recorder.clone();
        let work = move || {
            recorder.update(hosts, counts);
            if let Some(history) = history {
                recorder.set_history(history);
            }
            recorder.tick(now_ns);
        };
        tokio::task::spawn_blocking(work).await?;
    }
}
