//! Formats that are lines of text: batches are encoded beside each other, and written in their order.

use std::sync::{Arc, LazyLock, mpsc};
use std::thread::available_parallelism;

use arrow_array::RecordBatch;
use tokio::sync::oneshot;

use crate::Result;

/// Batches that are encoded at once, or wait to be written.
pub(super) static BATCHES: LazyLock<usize> =
    LazyLock::new(|| available_parallelism().map_or(1, usize::from).min(BATCHES_MAX));
/// No disk takes lines as fast as more processors than these make them.
const BATCHES_MAX: usize = 8;

/// A format whose batches don't depend on each other.
pub(super) trait LineFormat: Send + Sync {
    /// What comes before the first line.
    fn header(&self) -> Vec<u8>;

    /// Appends the lines of a batch; of one with an error those before its row, which counts from 1 in
    /// the batch.
    fn encode(&self, batch: &RecordBatch, lines: &mut Vec<u8>) -> Result<()>;
}

/// What became of a batch.
pub(super) struct Lines {
    pub(super) bytes: Vec<u8>,
    pub(super) rows: u64,
    pub(super) result: Result<()>,
}

type Job = (RecordBatch, oneshot::Sender<Lines>);

/// Threads that encode in turns, each started when it is first needed.
pub(super) struct Encoders {
    format: Arc<dyn LineFormat>,
    threads: Vec<mpsc::Sender<Job>>,
    next: usize,
}

impl Encoders {
    pub(super) fn new(format: Arc<dyn LineFormat>) -> Self {
        Self { format, threads: Vec::new(), next: 0 }
    }

    /// Begins with a batch.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub(super) fn start(&mut self, batch: RecordBatch) -> std::io::Result<oneshot::Receiver<Lines>> {
        if self.threads.len() < *BATCHES {
            self.next = self.threads.len();
            self.threads.push(spawn(self.format.clone())?);
        }
        let (done, pending) = oneshot::channel();
        // A thread that has panicked drops `done`, which is noticed where the lines are awaited.
        let _ = self.threads[self.next].send((batch, done));
        self.next = (self.next + 1) % self.threads.len();
        Ok(pending)
    }
}

fn spawn(format: Arc<dyn LineFormat>) -> std::io::Result<mpsc::Sender<Job>> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let work = move || {
        let mut room = 0;
        for (batch, done) in jobs {
            // The next one will be as long as this one, most probably.
            let mut bytes = Vec::with_capacity(room);
            let result = format.encode(&batch, &mut bytes);
            room = bytes.len() + bytes.len() / 16;
            // Nobody waits for it when the destination was dropped.
            let _ = done.send(Lines { bytes, rows: batch.num_rows() as u64, result });
        }
    };
    std::thread::Builder::new().name("lightship-lines".into()).spawn(work)?;
    Ok(sender)
}
