//! Reads results: connections decode rows and send batches over a bounded channel to one stream.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use futures::stream;
use tokio::sync::mpsc;

use super::Pool;
use super::connection::{Connection, MESSAGE_BYTES_MAX};
use super::decode::Bad;
use super::message::MessageHeader;
use super::parameters::BoundValue;
use super::rows::Decoder;
use super::split::Parts;
use super::tuples::Gatherer;
use super::types::PgType;
use crate::cancel::StatementGuard;
use crate::{BatchStream, ReadOptions, Result, SourceError};

/// Batches that may wait for the consumer, in addition to the one that each connection fills.
const WAITING_BATCHES: usize = 2;
/// By how much the share of time that a connection waits for the consumer must exceed what makes it superfluous:
/// it does not come back.
const SPARE_MARGIN: f64 = 0.1;
/// The time after which that is decided, so that a consumer that begins late or pauses once does not lose connections.
const SPARE_AFTER: Duration = Duration::from_millis(500);

/// What to read.
pub(super) enum Work {
    /// One statement, to its end.
    Whole {
        sql: String,
        /// Of its parameters.
        values: Vec<BoundValue>,
    },
    /// Parts of a table, in any order.
    Parts(Parts),
}

/// The form in which rows are returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowFormat {
    /// As Arrow columns.
    Decoded,
    /// As the server sends them.
    Tuples,
}

/// A result to read.
pub(super) struct ReadRequest {
    pub(super) work: Work,
    pub(super) schema: SchemaRef,
    pub(super) kinds: Vec<PgType>,
    pub(super) options: ReadOptions,
    pub(super) pool: Pool,
}

/// State that the connections of one result share.
struct ReadState {
    wanted: ReadRequest,
    form: RowFormat,
    formats: Vec<i16>,
    next_part: AtomicU32,
    rows: AtomicU64,
    /// Connections that read parts.
    readers: AtomicUsize,
    finished: AtomicUsize,
}

impl ReadState {
    /// Takes one off the readers, if none has left since there were `readers`: how long each waits for the consumer
    /// depends on their number.
    fn leave(&self, readers: usize) -> bool {
        self.readers.compare_exchange(readers, readers - 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Whether the consumer is so slow that `readers - 1` connections are enough for it. With a consumer of rate c and
/// `readers` connections of rate r, each connection waits for 1 - c / (readers * r) of its time; c is below
/// (readers - 1) * r if that is more than 1 / readers.
fn is_spare(readers: usize, blocked: Duration, took: Duration) -> bool {
    blocked.as_secs_f64() > took.as_secs_f64() * (1.0 / readers as f64 + SPARE_MARGIN)
}

/// Reads `wanted` over `connections`, each in a transaction of the same snapshot.
pub(super) fn stream(connections: Vec<Connection>, wanted: ReadRequest, form: RowFormat) -> BatchStream {
    let readers = connections.len();
    let shared = Arc::new(ReadState {
        formats: match form {
            RowFormat::Tuples => vec![1; wanted.kinds.len()],
            RowFormat::Decoded => wanted.kinds.iter().map(PgType::format).collect(),
        },
        wanted,
        form,
        next_part: AtomicU32::new(0),
        rows: AtomicU64::new(0),
        readers: AtomicUsize::new(readers),
        finished: AtomicUsize::new(0),
    });
    let (sender, receiver) = mpsc::channel(WAITING_BATCHES);
    for (place, connection) in connections.into_iter().enumerate() {
        // The first reader reads whatever the others leave.
        let may_end_early = place > 0;
        // A reader ends when it has no more to do, or when its receiver is gone. Its connection then
        // cancels a statement that still runs.
        let working = StatementGuard::begin(connection.target());
        let output = Output { sender: sender.clone(), blocked: Duration::ZERO };
        let reader = reader(connection, shared.clone(), output, may_end_early);
        tokio::spawn(async move {
            reader.await;
            drop(working);
        });
    }
    drop(sender);
    Box::pin(stream::unfold(Some(receiver), move |receiver| {
        let shared = shared.clone();
        async move {
            let mut receiver = receiver?;
            match receiver.recv().await {
                Some(Ok(batch)) => Some((Ok(batch), Some(receiver))),
                // Nothing follows an error. Dropping the receiver stops the other readers.
                Some(Err(e)) => Some((Err(e), None)),
                None if shared.finished.load(Ordering::Acquire) == readers => None,
                // A reader has ended without a message, so the result is not complete.
                None => Some((Err(stopped(&shared)), None)),
            }
        }
    }))
}

fn stopped(shared: &ReadState) -> SourceError {
    SourceError::Lost {
        target: "the server".into(),
        rows: shared.rows.load(Ordering::Relaxed),
        reason: "the task that was reading was stopped".into(),
    }
}

/// The consumer has dropped the stream.
struct ConsumerGone;

/// Rows of the next batch.
enum BatchBuilder {
    Columns(Box<Decoder>),
    Tuples(Gatherer),
}

impl BatchBuilder {
    fn new(shared: &ReadState) -> Self {
        let ReadRequest { schema, kinds, options, .. } = &shared.wanted;
        match shared.form {
            RowFormat::Decoded => Self::Columns(Box::new(Decoder::new(schema.clone(), kinds, options))),
            RowFormat::Tuples => Self::Tuples(Gatherer::new(kinds.len(), options)),
        }
    }

    #[inline]
    fn row(&mut self, body: &[u8]) -> Result<(), (Option<usize>, Box<Bad>)> {
        match self {
            Self::Columns(decoder) => decoder.row(body),
            Self::Tuples(gatherer) => gatherer.row(body),
        }
    }

    fn rows(&self) -> usize {
        match self {
            Self::Columns(decoder) => decoder.rows(),
            Self::Tuples(gatherer) => gatherer.rows(),
        }
    }

    #[inline]
    fn is_full(&self) -> bool {
        match self {
            Self::Columns(decoder) => decoder.is_full(),
            Self::Tuples(gatherer) => gatherer.is_full(),
        }
    }

    fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        match self {
            Self::Columns(decoder) => decoder.finish(),
            Self::Tuples(gatherer) => gatherer.finish(),
        }
    }
}

/// Where a reader puts its batches.
struct Output {
    sender: mpsc::Sender<Result<RecordBatch>>,
    /// How long the reader has waited for the consumer, since this was last reset.
    blocked: Duration,
}

impl Output {
    async fn send(&mut self, batch: Result<RecordBatch>) -> Result<(), ConsumerGone> {
        let began = Instant::now();
        let sent = self.sender.send(batch).await;
        self.blocked += began.elapsed();
        sent.map_err(|_| ConsumerGone)
    }
}

async fn reader(mut connection: Connection, shared: Arc<ReadState>, mut output: Output, may_end_early: bool) {
    let mut gathered = BatchBuilder::new(&shared);
    match read(&mut connection, &mut gathered, &shared, &mut output, may_end_early).await {
        Ok(Ok(())) => {
            shared.wanted.pool.put(connection);
            shared.finished.fetch_add(1, Ordering::Release);
        }
        Ok(Err(ConsumerGone)) => {}
        Err(e) => {
            // Stop the server before the consumer takes the rows that precede the error.
            drop(connection);
            // The consumer gets the rows that precede the error.
            if gathered.rows() > 0
                && let Ok(batch) = gathered.finish()
                && output.send(Ok(batch)).await.is_err()
            {
                return;
            }
            // Without a receiver nobody needs the error.
            let _ = output.send(Err(e)).await;
        }
    }
}

async fn read(
    connection: &mut Connection,
    gathered: &mut BatchBuilder,
    shared: &ReadState,
    output: &mut Output,
    may_end_early: bool,
) -> Result<Result<(), ConsumerGone>> {
    match &shared.wanted.work {
        Work::Whole { sql, values } => {
            // The end of the transaction is sent along, which saves a round trip.
            connection.execute(sql, values, &shared.formats, Some("ROLLBACK")).await?;
            if let Err(ConsumerGone) = rows(connection, gathered, shared, output, None).await? {
                return Ok(Err(ConsumerGone));
            }
            connection.until_ready(|_| Ok(())).await?;
        }
        Work::Parts(parts) => {
            let (mut began, mut readers) = (Instant::now(), shared.readers.load(Ordering::Relaxed));
            loop {
                // While other queries wait for a connection, this one keeps only its first.
                if may_end_early && shared.wanted.pool.server.is_awaited() {
                    shared.readers.fetch_sub(1, Ordering::Relaxed);
                    break;
                }
                let part = shared.next_part.fetch_add(1, Ordering::Relaxed);
                let Some(sql) = parts.sql(part) else { break };
                connection.execute(&sql, &[], &shared.formats, None).await?;
                let start = Some(parts.start(part));
                if let Err(ConsumerGone) = rows(connection, gathered, shared, output, start).await? {
                    return Ok(Err(ConsumerGone));
                }
                let took = began.elapsed();
                if took < SPARE_AFTER {
                    continue;
                }
                let is_spare = is_spare(readers, output.blocked, took);
                if may_end_early && is_spare && shared.leave(readers) {
                    tracing::debug!(readers, "one connection fewer reads the table");
                    break;
                }
                (began, readers) = (Instant::now(), shared.readers.load(Ordering::Relaxed));
                output.blocked = Duration::ZERO;
            }
            connection.simple("ROLLBACK").await?;
        }
    }
    if gathered.rows() > 0 {
        return deliver(connection, gathered, output).await;
    }
    Ok(Ok(()))
}

async fn deliver(
    connection: &Connection,
    gathered: &mut BatchBuilder,
    output: &mut Output,
) -> Result<Result<(), ConsumerGone>> {
    let batch = gathered.finish().map_err(|e: ArrowError| malformed(connection, &e.to_string()))?;
    Ok(output.send(Ok(batch)).await)
}

fn malformed(connection: &Connection, reason: &str) -> SourceError {
    SourceError::Malformed { target: connection.target(), reason: reason.into() }
}

/// Why no more rows can be taken from the buffer.
enum StopReason {
    Full,
    NoWholeMessage,
    /// The next row has this many bytes, more than allowed.
    TooLarge(usize),
    OtherMessage,
}

/// Reads the rows of one statement, up to its `ReadyForQuery`. For a part of a table, `start` is where it
/// begins.
async fn rows(
    connection: &mut Connection,
    gathered: &mut BatchBuilder,
    shared: &ReadState,
    output: &mut Output,
    start: Option<String>,
) -> Result<Result<(), ConsumerGone>> {
    connection.expect_rows(true);
    let mut taken: u64 = 0;
    let row_bytes_max = shared.wanted.options.row_bytes_max;
    loop {
        let before = gathered.rows();
        let (bytes, pause) = match take_rows(connection.buffered(), gathered, row_bytes_max) {
            Ok(done) => done,
            Err((column, bad)) => {
                let row = taken + (gathered.rows() - before) as u64 + 1;
                return Err(match *bad {
                    Bad::Malformed(what) => malformed(connection, what),
                    Bad::Value(reason) => SourceError::Value {
                        column: column
                            .map_or_else(String::new, |at| shared.wanted.schema.field(at).name().clone()),
                        reason: match &start {
                            None => format!("row {row} holds {reason}"),
                            Some(start) => format!("row {row}, counted from ctid {start}, holds {reason}"),
                        },
                    },
                });
            }
        };
        connection.consume(bytes);
        taken += (gathered.rows() - before) as u64;
        shared.rows.fetch_add((gathered.rows() - before) as u64, Ordering::Relaxed);
        let lost =
            |connection: &Connection, e: io::Error| connection.lost(e, shared.rows.load(Ordering::Relaxed));
        match pause {
            StopReason::Full => {
                if let Err(ConsumerGone) = deliver(connection, gathered, output).await? {
                    return Ok(Err(ConsumerGone));
                }
            }
            StopReason::TooLarge(bytes) => {
                let (bytes, bytes_max) = (bytes as u64, row_bytes_max as u64);
                let part = start.as_ref().map(|start| format!(", counted from ctid {start},"));
                return Err(SourceError::RowTooLarge { row: taken + 1, part, bytes, bytes_max });
            }
            StopReason::NoWholeMessage => {
                connection.header().map_err(|e| lost(connection, e))?;
                tokio::select! {
                    biased;
                    filled = connection.fill() => filled.map_err(|e| lost(connection, e))?,
                    () = output.sender.closed() => return Ok(Err(ConsumerGone)),
                }
            }
            StopReason::OtherMessage => {
                // Between rows there may be notices.
                let frame = connection.frame_or_row().await.map_err(|e| lost(connection, e))?;
                let Some(frame) = frame else { continue };
                match frame.tag {
                    b'Z' => {
                        connection.expect_rows(false);
                        return Ok(Ok(()));
                    }
                    b'E' => {
                        return Err(connection.server_error(&frame.body, shared.rows.load(Ordering::Relaxed)));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Takes the rows at the front of `buffered`; returns their bytes, and why it stopped.
fn take_rows(
    buffered: &[u8],
    gathered: &mut BatchBuilder,
    row_bytes_max: usize,
) -> Result<(usize, StopReason), (Option<usize>, Box<Bad>)> {
    let mut at = 0;
    loop {
        if gathered.is_full() {
            return Ok((at, StopReason::Full));
        }
        let rest = &buffered[at..];
        match MessageHeader::parse(rest) {
            Some(header) if header.tag != b'D' => return Ok((at, StopReason::OtherMessage)),
            // An impossible length is an error of `Connection::header`.
            Some(header) if header.total() > row_bytes_max && header.body_bytes <= MESSAGE_BYTES_MAX => {
                return Ok((at, StopReason::TooLarge(header.total())));
            }
            Some(header) if rest.len() >= header.total() => {
                gathered.row(&rest[MessageHeader::BYTES..header.total()])?;
                at += header.total();
            }
            _ => return Ok((at, StopReason::NoWholeMessage)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_spare_if_the_others_are_faster_than_the_consumer() {
        let check = |readers: usize, consumer_rate: f64, expected: bool| {
            // Each connection has the rate 1.
            let blocked = (1.0 - consumer_rate / readers as f64).max(0.0);
            let found = is_spare(readers, Duration::from_secs_f64(blocked), Duration::from_secs(1));
            assert_eq!(found, expected, "{readers} connections, a consumer of rate {consumer_rate}");
        };
        check(2, 0.7, true);
        check(2, 0.9, false);
        check(2, 3.0, false);
        check(4, 2.5, true);
        check(4, 3.1, false);
        // The first connection is never asked.
        check(1, 0.01, false);
    }
}
