//! Tests the library against real sources and destinations.

mod blocking;
mod parameters;
mod round_trip;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use futures::TryStreamExt;
use lightship::{
    ErrorKind, Format, Location, Options, TableName, Target, WriteMode, WriteTarget, connect, connect_all,
    copy,
};
use lightship_testkit::postgres::Postgres;

fn location(uri: impl AsRef<str>) -> Location {
    Location::parse(uri.as_ref()).expect("a location")
}

/// Creates `t.csv` with these numbers, in a new folder.
fn csv(folder: &Path, name: &str, numbers: std::ops::Range<i64>) -> Location {
    let folder = folder.join(name);
    fs::create_dir(&folder).expect("a folder");
    let lines: String = numbers.map(|n| format!("{n}\n")).collect();
    fs::write(folder.join("t.csv"), format!("n\n{lines}")).expect("written");
    location(folder.join("t.csv").to_str().expect("UTF-8"))
}

fn numbers(batches: &[RecordBatch]) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

#[tokio::test]
async fn options_of_a_file_are_part_of_its_location() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.csv");
    fs::write(&path, "1;x\n2;y\n").expect("written");
    let place = location(format!("{}?delimiter=;&header=false", path.display()));
    let mut connection = connect(&place, &Options::default()).await.expect("opened");
    let mut result = connection.query("select column_1 from t where column_2 = 'y'").await.expect("answered");
    let batch = result.next().await.expect("rows").expect("a batch");
    assert_eq!(numbers(&[batch]), [2]);
    let tables = Location::Tables(vec![
        ("a".into(), Location::Path(path.clone())),
        ("b".into(), Location::Path(path)),
    ]);
    let mut connection = connect(&tables, &Options::default()).await.expect("opened");
    let sql = "select count(*) as n from a cross join b";
    let mut result = connection.query(sql).await.expect("answered");
    assert_eq!(numbers(&[result.next().await.expect("rows").expect("a batch")]), [1]);
}

#[tokio::test]
async fn several_sources_give_one_result_and_each_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let places = [csv(folder.path(), "a", 0..1000), csv(folder.path(), "b", 1000..1500)];
    let mut connection = connect_all(&places, &Options::default()).await.expect("opened");
    for _ in 0..2 {
        let mut result = connection.query("select n from t").await.expect("answered");
        let mut batches = Vec::new();
        while let Some(batch) = result.next().await.expect("rows") {
            batches.push(batch);
        }
        let mut all = numbers(&batches);
        all.sort_unstable();
        assert_eq!(all, (0..1500).collect::<Vec<_>>());
        let report = result.report();
        let rows: Vec<_> = report.sources.iter().map(|source| (source.uri.clone(), source.rows)).collect();
        assert_eq!(rows, [(places[0].to_string(), 1000), (places[1].to_string(), 500)]);
        assert_eq!((report.rows, report.bytes_arrow), (1500, 1500 * 8));
        // It stays at the end.
        assert!(result.next().await.expect("the end").is_none());
    }
    let error = connection.query("select m from t").await.err().expect("no such column");
    assert_eq!((error.kind, error.place.is_some()), (ErrorKind::Source, true), "{error}");
}

#[tokio::test]
async fn a_result_is_a_stream_that_can_move_to_another_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = csv(folder.path(), "a", 0..1000);
    let work = async move {
        let mut connection = connect(&place, &Options::default()).await?;
        let result = connection.query("select n from t order by n").await?;
        result.into_stream().try_collect::<Vec<_>>().await
    };
    let batches = tokio::spawn(work).await.expect("no panic").expect("rows");
    assert_eq!(numbers(&batches), (0..1000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_copy_is_complete_or_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Postgres::start();
    let (from, database) = (csv(folder.path(), "a", 0..1000), location(server.uri()));
    let table = || Target::table(&database, TableName::parse("copied"), WriteMode::Create).expect("a table");
    let options = Options::default();
    let report = copy(&[from], "select n from t", table(), &options, &mut ()).await.expect("copied");
    assert_eq!(report.rows, 1000);
    assert_eq!(server.psql("select count(*), sum(n) from copied").trim(), "1000\t499500");

    // Copy back into a file. An error after the first rows leaves no file.
    let file = folder.path().join("back.parquet");
    let to = || Target::file(WriteTarget::File(file.clone()), Format::Parquet);
    let places = [database.clone()];
    let failing = "select 1 / (99999 - n) as n from generate_series(1, 100000) as n";
    let error = copy(&places, failing, to(), &options, &mut ()).await.expect_err("a division by zero");
    assert_eq!((error.kind, file.exists()), (ErrorKind::Source, false), "{error}");
    let report = copy(&places, "select n from copied", to(), &options, &mut ()).await.expect("copied");
    assert_eq!((report.rows, report.bytes_written), (1000, file.metadata().expect("written").len()));
    let error =
        copy(&places, "select n from copied", table(), &options, &mut ()).await.expect_err("it is there");
    assert_eq!(error.kind, ErrorKind::Source, "{error}");
}

#[tokio::test]
async fn a_failed_result_stays_failed() {
    let server = Postgres::start();
    server
        .psql("create view broken as select 1::bigint / (70000 - g) as n from generate_series(1, 100000) g");
    let mut connection = connect(&location(server.uri()), &Options::default()).await.expect("opened");
    let mut result = connection.query("select n from broken").await.expect("answered");
    let mut rows = 0;
    let error = loop {
        match result.next().await {
            Ok(batch) => rows += batch.expect("an error before the end").num_rows() as u64,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind, error.rows), (ErrorKind::Source, Some(rows)), "{error}");
    let again = result.next().await.expect_err("the same error");
    assert_eq!((again.message, again.rows), (error.message, error.rows));
    let error = connect_all(&[], &Options::default()).await.err().expect("no place");
    assert_eq!(error.kind, ErrorKind::Usage, "{error}");
}

#[tokio::test]
async fn a_dropped_result_is_cancelled_at_its_source() {
    let server = Postgres::start();
    let mut connection = connect(&location(server.uri()), &Options::default()).await.expect("opened");
    let sql =
        "select /* dropped_result */ n, pg_sleep(n / 100000 * 600) from generate_series(1, 200000) as n";
    let mut result = connection.query(sql).await.expect("answered");
    result.next().await.expect("rows").expect("a batch");
    let running = || {
        let count = "select count(*) from pg_stat_activity
             where query like '%dropped_result%' and pid <> pg_backend_pid() and state = 'active'";
        server.psql(count).trim().to_owned()
    };
    assert_eq!(running(), "1");
    drop(result);
    let deadline = Instant::now() + Duration::from_secs(20);
    while running() != "0" {
        assert!(Instant::now() < deadline, "it still runs");
        tokio::task::yield_now().await;
    }
}
