//! The library for callers without async.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow_array::{Int64Array, RecordBatch, RecordBatchIterator};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use lightship::blocking::{self, Check, Connection};
use lightship::{Error, ErrorKind, Format, Options, Target, WriteTarget};

use super::{csv, numbers};

const ALWAYS: Check = || Ok(());
/// More rows than are ever read.
const ENDLESS: &str = "select value from generate_series(1, 1000000000000) as t(value)";

fn open(check: Check) -> (tempfile::TempDir, Connection) {
    let folder = tempfile::tempdir().expect("a folder");
    let place = csv(folder.path(), "a", 0..1000);
    let connection = Connection::open(vec![place], Options::default(), check).expect("opened");
    (folder, connection)
}

#[test]
fn several_results_are_read_at_a_time() {
    let (_folder, connection) = open(ALWAYS);
    let sql = "select n from t order by n";
    let mut readers = [connection.query(sql).expect("rows"), connection.query(sql).expect("rows")];
    let mut counts = [0, 0];
    for _ in 0..1000 {
        for (reader, count) in readers.iter_mut().zip(&mut counts) {
            *count += reader.next_batch().expect("rows").map_or(0, |batch| batch.num_rows());
        }
    }
    assert_eq!(counts, [1000, 1000]);
    assert_eq!(readers[0].report().expect("the end").rows, 1000);
    let refused = connection.query("select m from t").err().expect("no such column");
    assert_eq!((refused.kind, refused.sqlstate()), (ErrorKind::Source, Some("42703")), "{refused}");
    connection.close();
    let closed = connection.query(sql).err().expect("closed");
    assert!(closed.message.contains("closed"), "{closed}");
}

#[tokio::test]
async fn a_thread_of_another_runtime_may_wait() {
    let (_folder, connection) = open(ALWAYS);
    let mut reader = connection.query("select n from t order by n").expect("rows");
    let mut batches = Vec::new();
    while let Some(batch) = reader.next_batch().expect("rows") {
        batches.push(batch);
    }
    assert_eq!(numbers(&batches), (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_query_is_cancelled_from_another_thread_or_by_the_check() {
    let (_folder, connection) = open(ALWAYS);
    let mut reader = connection.query(ENDLESS).expect("rows");
    let canceller = reader.canceller();
    let cancelling = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        canceller.cancel();
    });
    let error = loop {
        match reader.next_batch() {
            Ok(batch) => assert!(batch.is_some(), "it has no end"),
            Err(error) => break error,
        }
    };
    cancelling.join().expect("no panic");
    assert_eq!(error.kind, ErrorKind::Cancelled);
    assert_eq!(error.rows, Some(reader.rows()));
    // It stays an error.
    assert_eq!(reader.next_batch().expect_err("cancelled").kind, ErrorKind::Cancelled);

    static STOP: AtomicBool = AtomicBool::new(false);
    let (_folder, connection) = open(|| match STOP.load(Ordering::Relaxed) {
        true => Err(Error::new(ErrorKind::Cancelled, "by the check")),
        false => Ok(()),
    });
    STOP.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let sql = "select count(*) from generate_series(1, 1000000000000) as t(value)";
    let stopped = connection.query(sql).and_then(|mut reader| reader.next_batch()).expect_err("the check");
    assert_eq!(stopped.message, "by the check");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn all_batches_are_written_or_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("n.csv");
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
    let batch = |n| RecordBatch::try_new(schema.clone(), vec![Arc::new(Int64Array::from(vec![n]))]);
    let write = |batches: Vec<Result<RecordBatch, ArrowError>>| {
        let target = Target::file(WriteTarget::File(file.clone()), Format::Csv);
        let batches = RecordBatchIterator::new(batches, schema.clone());
        blocking::write(batches, target, Options::default(), &mut || Ok(()))
    };
    let broken = write(vec![batch(1), Err(ArrowError::ComputeError("no more".into()))]).expect_err("broken");
    assert!(broken.message.contains("no more") && broken.kind == ErrorKind::Data, "{broken}");
    assert!(!file.exists());
    let other = Arc::new(Schema::new(vec![Field::new("m", DataType::Int64, false)]));
    let other = RecordBatch::try_new(other, vec![Arc::new(Int64Array::from(vec![1]))]);
    assert_eq!(write(vec![batch(1), other]).expect_err("other columns").kind, ErrorKind::Data);
    assert!(!file.exists());
    assert_eq!(write(vec![batch(1), batch(2)]).expect("written").rows, 2);
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), "n\n1\n2\n");
}
