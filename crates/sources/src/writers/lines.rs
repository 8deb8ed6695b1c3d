//! Formats of lines of text: batches are encoded in parallel, and written in order.

use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;

use arrow_array::RecordBatch;

use crate::Result;

/// Maximum batches that are being encoded or wait to be written.
pub(super) static BATCHES: LazyLock<usize> =
    LazyLock::new(|| available_parallelism().map_or(1, usize::from).min(BATCHES_MAX));
/// More processors than these encode lines faster than any disk writes them.
const BATCHES_MAX: usize = 8;
/// Lines are passed on in pieces of about this size.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces of a batch that wait for earlier batches. A batch's lines may be many times larger than the batch.
const PIECES_WAITING: usize = 2;

/// A format whose batches don't depend on each other.
pub(super) trait LineFormat: Send + Sync {
    /// The bytes before the first line.
    fn header(&self) -> Vec<u8>;

    /// Appends the lines of a batch. On an error, it appends the lines before the failed row, which is
    /// counted from 1 in the batch.
    fn encode(&self, batch: &RecordBatch, lines: &mut Pieces) -> Result<()>;
}

/// Encoded lines, on their way to the writer.
pub(super) struct Pieces {
    bytes: Vec<u8>,
    to: SyncSender<Part>,
}

/// The output of encoding a batch.
pub(super) enum Part {
    Bytes(Vec<u8>),
    End { rows: u64, result: Result<()> },
}

impl Pieces {
    /// The buffer for the next line.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Called after each line: passes the buffered lines on if they are enough for a piece.
    #[inline]
    pub(super) fn end_line(&mut self) -> Result<()> {
        if self.bytes.len() < PIECE_BYTES { Ok(()) } else { Ok(self.hand_on()?) }
    }

    fn hand_on(&mut self) -> std::result::Result<(), arrow_schema::ArrowError> {
        let piece = std::mem::replace(&mut self.bytes, Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 8));
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        Ok(self.to.send(Part::Bytes(piece)).map_err(gone)?)
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= PIECE_BYTES {
            self.hand_on().map_err(io::Error::other)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Job = (RecordBatch, SyncSender<Part>);

/// Threads that encode in turn. Each is started when it is first needed.
pub(super) struct Encoders {
    format: Arc<dyn LineFormat>,
    threads: Vec<mpsc::Sender<Job>>,
    next: usize,
}

impl Encoders {
    pub(super) fn new(format: Arc<dyn LineFormat>) -> Self {
        Self { format, threads: Vec::new(), next: 0 }
    }

    /// Starts to encode a batch. Its parts end with [`Part::End`], unless its thread panics.
    ///
    /// # Errors
    /// When the system can't start a thread.
    pub(super) fn start(&mut self, batch: RecordBatch) -> io::Result<Receiver<Part>> {
        if self.threads.len() < *BATCHES {
            self.next = self.threads.len();
            self.threads.push(spawn(self.format.clone())?);
        }
        let (to, parts) = mpsc::sync_channel(PIECES_WAITING);
        // A thread that has panicked drops `to`, which the receiver of the parts notices.
        let _ = self.threads[self.next].send((batch, to));
        self.next = (self.next + 1) % self.threads.len();
        Ok(parts)
    }
}

fn spawn(format: Arc<dyn LineFormat>) -> io::Result<mpsc::Sender<Job>> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let work = move || {
        for (batch, to) in jobs {
            let mut pieces = Pieces { bytes: Vec::new(), to };
            let result = format.encode(&batch, &mut pieces);
            // Nobody waits for it when the destination was dropped.
            let _ = pieces.hand_on();
            let _ = pieces.to.send(Part::End { rows: batch.num_rows() as u64, result });
        }
    };
    std::thread::Builder::new().name("lightship-lines".into()).spawn(work)?;
    Ok(sender)
}
