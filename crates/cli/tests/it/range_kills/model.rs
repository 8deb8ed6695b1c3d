//! What clients did to the rows of a range file, and what they may see.
//!
//! A write is an event of each of its keys. One that was not acknowledged may have happened, at any time. A client
//! repeats a request whose answer is lost, so each lost request may have happened as well.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use lightship_rangefile::{Connections, Network, RangeError, Reply, WriteMode};
use lightship_testkit::linear::{Action, Event, Row, is_linearizable};
use lightship_transport::net::PushedConnection;
use lightship_wire::control::ErrorCode;

pub(super) fn schema() -> SchemaRef {
    let field = |name, kind| Field::new(name, kind, false);
    Arc::new(Schema::new(vec![field("id", DataType::Int64), field("text", DataType::Utf8)]))
}

/// The rows of a write. Their text has its number and the key, so that a row of other keys is noticed.
pub(super) fn rows(ids: &[i64], row: Row) -> RecordBatch {
    let texts: Vec<String> = ids.iter().map(|id| format!("{row} of {id}")).collect();
    let (ids, texts) = (Int64Array::from(ids.to_vec()), StringArray::from(texts));
    RecordBatch::try_new(schema(), vec![Arc::new(ids), Arc::new(texts)]).expect("rows")
}

/// The keys, and the numbers of the writes that wrote them.
pub(super) fn found(rows: &RecordBatch) -> Vec<(i64, Row)> {
    let (ids, texts) = (rows.column(0).as_primitive::<Int64Type>(), rows.column(1).as_string::<i32>());
    let found = ids.values().iter().zip(texts).map(|(&id, text)| {
        let text = text.expect("a text");
        let row = text.strip_suffix(&format!(" of {id}")).and_then(|row| row.parse().ok());
        (id, row.unwrap_or_else(|| panic!("key {id} has the row {text:?}")))
    });
    found.collect()
}

/// The events of a run.
#[derive(Default)]
pub(super) struct History {
    clock: AtomicU64,
    writes: AtomicU32,
    operations: AtomicU64,
    events: Mutex<BTreeMap<i64, Vec<Event>>>,
    /// Operations that failed, and the errors of those that did not name their keys.
    failed: Mutex<(u64, Vec<String>)>,
}

impl History {
    /// A moment after all earlier ones.
    pub(super) fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Operations of clients that have ended.
    pub(super) fn operations(&self) -> u64 {
        self.operations.load(Ordering::SeqCst)
    }

    pub(super) fn operation_ended(&self) {
        self.operations.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn failed(&self, error: &RangeError) {
        let mut failed = self.failed.lock().expect("no panic");
        failed.0 += 1;
        if !matches!(error, RangeError::Missing { .. }) {
            failed.1.push(error.to_string());
        }
    }

    /// The number of operations that failed, and the errors of those that did not name their keys.
    pub(super) fn failures(&self) -> (u64, Vec<String>) {
        self.failed.lock().expect("no panic").clone()
    }

    fn record(&self, key: i64, event: Event) {
        self.events.lock().expect("no panic").entry(key).or_default().push(event);
    }

    /// Records that a reader has seen these rows, and no others with these keys.
    pub(super) fn read(&self, keys: impl IntoIterator<Item = i64>, seen: &[(i64, Row)], start: u64) {
        let (seen, end) = (seen.iter().copied().collect::<BTreeMap<i64, Row>>(), Some(self.now()));
        for key in keys {
            let action = Action::Read(seen.get(&key).copied());
            self.record(key, Event { action, start, end });
        }
    }

    /// Begins a write.
    pub(super) fn write<'a>(
        &'a self,
        mode: WriteMode,
        keys: &'a [i64],
        lost: &'a AtomicU64,
    ) -> PendingWrite<'a> {
        lost.store(0, Ordering::SeqCst);
        let row = self.writes.fetch_add(1, Ordering::SeqCst);
        PendingWrite { history: self, mode, keys, row, lost, start: self.now(), outcome: None }
    }

    /// Fails if what happened to some key can't have happened in any order.
    pub(super) fn check(&self) {
        for (key, events) in self.events.lock().expect("no panic").iter() {
            assert!(is_linearizable(events), "key {key}: {}", listed(events));
        }
    }
}

/// The events of a key, one on a line, in their order.
fn listed(events: &[Event]) -> String {
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.start);
    events.iter().map(|Event { action, start, end }| format!("\n{start}-{end:?} {action:?}")).collect()
}

/// A write, recorded when it is dropped: its client may be gone before it ends.
pub(super) struct PendingWrite<'a> {
    history: &'a History,
    mode: WriteMode,
    keys: &'a [i64],
    /// The number in its rows.
    pub(super) row: Row,
    /// Requests whose answers were lost.
    lost: &'a AtomicU64,
    start: u64,
    outcome: Option<Result<(), RangeError>>,
}

impl PendingWrite<'_> {
    pub(super) fn ended(mut self, outcome: Result<(), RangeError>) {
        self.outcome = Some(outcome);
    }
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        let Self { history, mode, keys, row, lost, start, outcome } = self;
        let (lost, end) = (lost.load(Ordering::SeqCst), Some(history.now()));
        // A repeated insert accepts a row that is the same.
        let again = match mode {
            WriteMode::Upsert => Action::Upsert(*row),
            WriteMode::Delete => Action::Delete,
            WriteMode::Insert | WriteMode::InsertAgain => Action::InsertAgain(*row),
        };
        let once = if *mode == WriteMode::Insert && lost == 0 { Action::Insert(*row) } else { again };
        let refused = match outcome {
            Some(Err(error)) => refused_key(error),
            _ => None,
        };
        for &key in *keys {
            let is_done = matches!(outcome, Some(Ok(())));
            if is_done {
                history.record(key, Event { action: once, start: *start, end });
            } else if refused == Some(key) {
                history.record(key, Event { action: Action::Refused, start: *start, end });
            }
            // Without an answer, the last request may have happened as well.
            let is_unsure = !is_done && refused != Some(key);
            for _ in 0..lost + u64::from(is_unsure) {
                history.record(key, Event { action: again, start: *start, end: None });
            }
        }
    }
}

/// The key at which an insert was refused.
pub(super) fn refused_key(error: &RangeError) -> Option<i64> {
    let text = error.to_string();
    text.strip_prefix("key ")?.strip_suffix(" exists already")?.parse().ok()
}

/// The first byte of requests with rows to write: the tag of a field with a length.
const WRITE: u8 = 3 << 3 | 2;

/// Connections that count the writes whose answers are lost.
pub(super) struct Counting {
    pub(super) connections: Connections,
    pub(super) lost: Arc<AtomicU64>,
}

/// Counts a request that may have arrived, although its answer did not.
fn count(lost: &AtomicU64, error: &RangeError) {
    let failure = error.to_failure();
    let was_sent = !failure.message.starts_with("can't reach");
    if was_sent && !matches!(failure.code, ErrorCode::Moved | ErrorCode::Data) {
        lost.fetch_add(1, Ordering::SeqCst);
    }
}

/// Counts a request that its client gives up before there is an answer.
struct GivenUp(Option<Arc<AtomicU64>>);

impl GivenUp {
    fn answered(&mut self) {
        self.0 = None;
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some(lost) = self.0.take() {
            lost.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Network for Counting {
    fn nodes(&self) -> Vec<String> {
        self.connections.nodes()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply, RangeError>> {
        let is_write = body.first() == Some(&WRITE);
        let (lost, sent) = (self.lost.clone(), self.connections.request(node, body));
        if !is_write {
            return sent;
        }
        async move {
            let mut given_up = GivenUp(Some(lost.clone()));
            let answered = sent.await;
            let Reply { schema, rows } = answered.inspect_err(|error| {
                given_up.answered();
                count(&lost, error);
            })?;
            let rows = rows.inspect(move |rows| {
                given_up.answered();
                if let Err(error) = rows {
                    count(&lost, error);
                }
            });
            Ok(Reply { schema, rows: rows.boxed() })
        }
        .boxed()
    }

    fn request_on(
        &self,
        node: &str,
        connection: PushedConnection,
        body: Vec<u8>,
    ) -> BoxFuture<'static, Result<Reply, RangeError>> {
        self.connections.request_on(node, connection, body)
    }
}

/// The keys of an interval that a scan says something of: with a limit, it may have ended before the last ones.
pub(super) fn covered(keys: Range<i64>, rows: &[(i64, Row)], is_limited: bool, is_ordered: bool) -> Vec<i64> {
    match (is_limited, is_ordered, rows.last()) {
        (false, ..) => keys.collect(),
        (true, true, Some(&(last, _))) => (keys.start..=last).collect(),
        _ => rows.iter().map(|&(key, _)| key).collect(),
    }
}
