//! Rows that were written together: who reads a bucket in one answer finds all of them, or none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lightship_testkit::linear::{Action, Event, Row};
use lightship_wire::control::{ErrorCode, Failure};
use prost::Message;
use tokio::sync::Notify;

use super::cases::{client, create, found, run, started, upsert};
use crate::error::Result;
use crate::network::{Network, Reply};
use crate::request::{Request, RequestKind};
use crate::{ClientOptions, RangeFile};

/// What one answer of a bucket says of keys: their rows, or that there are none.
#[derive(Debug, Default, Clone)]
pub(super) struct Answered {
    pub(super) keys: BTreeMap<i64, Option<Row>>,
}

/// Fails if an answer has a part of what one request has written. Events with the same start are of one request.
pub(super) fn check_together(answers: &[Answered], events: &BTreeMap<i64, Vec<Event>>) {
    for answered in answers {
        for (&key, found) in &answered.keys {
            let Some(row) = *found else { continue };
            for (&other, found) in &answered.keys {
                if let Some(written) = writes_of(row, key, other, events) {
                    assert!(
                        is_not_before(written, *found, &events[&other]),
                        "row {row} of key {key} was seen, but {found:?} of key {other}, which was written with it: \
                         {answered:?}, {:#?}",
                        events[&other]
                    );
                }
            }
        }
    }
}

/// When the first request that may have stored a row with a key began, if all of them have written another key, too.
fn writes_of(row: Row, key: i64, other: i64, events: &BTreeMap<i64, Vec<Event>>) -> Option<u64> {
    let starts = |key: i64| -> BTreeSet<u64> {
        let of_row = events.get(&key).into_iter().flatten().filter(|event| {
            matches!(event.action, Action::Upsert(new) | Action::Insert(new) | Action::InsertAgain(new) if new == row)
        });
        of_row.map(|event| event.start).collect()
    };
    let of_key = starts(key);
    of_key.is_subset(&starts(other)).then(|| of_key.first().copied()).flatten()
}

/// Whether a key may be so after a write to it that began at `written`.
fn is_not_before(written: u64, found: Option<Row>, events: &[Event]) -> bool {
    let leaves = |event: &Event| match event.action {
        Action::Upsert(row) | Action::Insert(row) | Action::InsertAgain(row) => found == Some(row),
        Action::Delete => found.is_none(),
        _ => false,
    };
    events.iter().any(|event| leaves(event) && event.end.is_none_or(|end| end >= written))
}

#[test]
fn a_part_of_a_write_is_noticed() {
    let event = |action, start| Event { action, start, end: Some(start + 1) };
    let events: BTreeMap<i64, Vec<Event>> = [
        (1, vec![event(Action::Upsert(7), 10), event(Action::Upsert(8), 20)]),
        (2, vec![event(Action::Upsert(7), 10), event(Action::Upsert(8), 20), event(Action::Delete, 30)]),
        (3, vec![event(Action::Upsert(8), 22)]),
    ]
    .into();
    let is_whole = |keys: &[(i64, Option<Row>)]| {
        let answered = Answered { keys: keys.iter().copied().collect() };
        std::panic::catch_unwind(|| check_together(&[answered], &events)).is_ok()
    };
    assert!(is_whole(&[(1, Some(7)), (2, Some(7))]));
    assert!(is_whole(&[(1, Some(8)), (2, Some(8))]));
    assert!(is_whole(&[(1, Some(8)), (2, None)]));
    // Another request has written the third key.
    assert!(is_whole(&[(1, Some(8)), (2, Some(8)), (3, None)]));
    assert!(!is_whole(&[(1, Some(8)), (2, Some(7))]));
    assert!(!is_whole(&[(1, Some(7)), (2, Some(8))]));
}

/// Ends the answer to the first scan after some rows, once it may. The connection is lost then.
struct Cut {
    network: Arc<dyn Network>,
    rows: Mutex<Option<usize>>,
    may_end: Arc<Notify>,
}

impl Network for Cut {
    fn nodes(&self) -> Vec<String> {
        self.network.nodes()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        let kind = Request::decode(&*body).unwrap().kind;
        let sent = self.network.request(node, body);
        let cut = match kind {
            Some(RequestKind::Scan(_)) => self.rows.lock().unwrap().take(),
            _ => None,
        };
        let Some(rows) = cut else { return sent };
        let may_end = self.may_end.clone();
        async move {
            let mut reply = sent.await?;
            let first: Vec<Result<RecordBatch>> = match reply.rows.try_next().await? {
                Some(batch) if rows > 0 => vec![Ok(batch.slice(0, rows))],
                _ => Vec::new(),
            };
            let lost = stream::once(async move {
                may_end.notified().await;
                Err(Failure::new(ErrorCode::Lost, "the connection was lost").into())
            });
            Ok(Reply { schema: reply.schema, rows: stream::iter(first).chain(lost).boxed() })
        }
        .boxed()
    }
}

/// The rows of a scan whose first connection is lost after some rows. Meanwhile, the first and the last row are written.
async fn scanned_with_a_cut(after: usize) -> Vec<(i64, String)> {
    let cluster = started(1, 100).await;
    let file = create(&cluster).await.unwrap();
    upsert(&file, 0..4, "old").await;
    let may_end = Arc::new(Notify::new());
    let cut = Cut { network: client(&cluster), rows: Mutex::new(Some(after)), may_end: may_end.clone() };
    let reader = RangeFile::open(Arc::new(cut), "t", ClientOptions::default()).await.unwrap();
    let reading = tokio::spawn(async move { found(&reader).await });
    if after > 0 {
        // The rows have arrived when nothing else happens.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    upsert(&file, [0, 3], "new").await;
    may_end.notify_one();
    let found = reading.await.unwrap();
    assert_eq!(found.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    found
}

/// Nobody keeps what the bucket was when the scan began.
#[test]
fn a_scan_whose_connection_is_lost_reads_the_rest_as_it_is_later() {
    run(async {
        let found = scanned_with_a_cut(1).await;
        assert_eq!((found[0].1.as_str(), found[3].1.as_str()), ("old", "new"));
    });
}

#[test]
fn a_scan_that_has_no_rows_when_its_connection_is_lost_reads_the_bucket_as_it_is_later() {
    run(async {
        let found = scanned_with_a_cut(0).await;
        assert_eq!((found[0].1.as_str(), found[3].1.as_str()), ("new", "new"));
    });
}
