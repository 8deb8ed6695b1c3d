//! A thread that writes a history, so that a slow disk does not keep a collector from receiving.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

use super::disk::Folder;
use super::{History, HistoryOptions};
use crate::collector::TimedSample;
use crate::time::{monotonic_ns, unix_ns};

/// The most samples that wait for the thread. One of 20 subjects takes about 3 kB.
const WAITING_MAX: usize = 256;
/// The longest wait for a sample: some systems can't wait for centuries.
const IDLE_NS_MAX: u64 = 86_400_000_000_000;

/// The state of a history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HistoryStatus {
    /// The last error; `None` if nothing has failed since samples were last written.
    pub error: Option<String>,
    /// Samples that were lost because of errors, or because the disk is too slow.
    pub lost: u64,
}

/// Writes samples to files in a thread of its own.
#[derive(Debug)]
pub struct HistoryWriter {
    /// `None` once it was closed.
    sender: Option<SyncSender<Arc<TimedSample>>>,
    thread: Option<JoinHandle<io::Result<()>>>,
    status: Arc<Mutex<HistoryStatus>>,
    dropped: AtomicU64,
}

impl HistoryWriter {
    /// Begins to write into a folder.
    ///
    /// # Errors
    /// If the folder can't be created, or another collector writes to it.
    pub fn open(options: HistoryOptions) -> io::Result<Self> {
        let disk = Folder::open(&options.folder)?;
        let mut history = History::new(options, Box::new(disk));
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let status = Arc::new(Mutex::new(HistoryStatus::default()));
        let shared = status.clone();
        let thread = std::thread::Builder::new()
            .name("usage-history".to_owned())
            .spawn(move || run(&mut history, &receiver, &shared))?;
        Ok(Self { sender: Some(sender), thread: Some(thread), status, dropped: AtomicU64::new(0) })
    }

    /// Adds a sample. It never waits: if the disk is too slow, the sample is dropped, and counted.
    pub fn add(&self, timed: &Arc<TimedSample>) {
        if self.sender.as_ref().is_none_or(|sender| sender.try_send(timed.clone()).is_err()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Its state.
    pub fn status(&self) -> HistoryStatus {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        status.lost += self.dropped.load(Ordering::Relaxed);
        status
    }

    /// Completes the last file.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn close(mut self) -> io::Result<()> {
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        drop(self.sender.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the thread of the history has panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for HistoryWriter {
    fn drop(&mut self) {
        if let Err(error) = self.join() {
            tracing::warn!(%error, "cannot write the end of the history");
        }
    }
}

fn run(
    history: &mut History,
    receiver: &Receiver<Arc<TimedSample>>,
    status: &Mutex<HistoryStatus>,
) -> io::Result<()> {
    // The time of day is read once: if it is set, the time line goes on as it was.
    let base_ns = i64::try_from(unix_ns()).unwrap_or(0) - i64::try_from(monotonic_ns()).unwrap_or(0);
    let idle = Duration::from_nanos(history.options.file_ns_max.min(IDLE_NS_MAX));
    loop {
        let timed = match receiver.recv_timeout(idle) {
            Ok(timed) => timed,
            // No host sends any more: complete the file.
            Err(RecvTimeoutError::Timeout) => {
                let finished = history.finish();
                show(status, history, finished);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return history.finish().map(drop),
        };
        let time_ns = base_ns.saturating_add(i64::try_from(timed.time_ns).unwrap_or(i64::MAX));
        let added = history.add(&timed, time_ns);
        show(status, history, added);
    }
}

/// Records an error until writing works again.
fn show(status: &Mutex<HistoryStatus>, history: &History, written: io::Result<bool>) {
    let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
    status.lost = history.lost;
    match written {
        Ok(true) => status.error = None,
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(%error, folder = %history.options.folder.display(), "the history pauses");
            status.error = Some(error.to_string());
        }
    }
}
