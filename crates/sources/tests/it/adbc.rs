//! Databases behind ADBC drivers of other vendors: SQLite's and DuckDB's.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Decimal128Array, Int64Array, TimestampMicrosecondArray};
use arrow_schema::DataType;
use futures::TryStreamExt;
use lightship_sources::limit::ConnectionLimits;
use lightship_sources::{
    Location, ReadOptions, Result, Scan, Source, SourceError, TableWrite, WriteMode, identity, open,
    open_table,
};
use tempfile::TempDir;

use crate::tables::{batch, ints, name, words};
use crate::texts;

/// How long tests wait for an event.
const PATIENCE: Duration = Duration::from_secs(30);

/// The shared library of a driver.
///
/// # Panics
/// When it is missing.
fn driver(library: &str) -> PathBuf {
    // target/debug/deps/it-…
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(3).unwrap().join("adbc-drivers").join(library);
    assert!(path.exists(), "{} is missing: run scripts/test-servers.sh", path.display());
    path
}

/// An empty database in a file of its own.
struct Database {
    what: &'static str,
    location: Location,
    file: PathBuf,
    _dir: TempDir,
}

fn sqlite() -> Database {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data.db");
    let uri = format!("adbc:{}?uri={}", driver("libadbc_driver_sqlite.so").display(), file.display());
    Database { what: "sqlite", location: Location::parse(&uri).unwrap(), file, _dir: dir }
}

fn duckdb() -> Database {
    duckdb_with("")
}

fn duckdb_with(options: &str) -> Database {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data.duckdb");
    let library = driver("libduckdb.so");
    let uri =
        format!("adbc:{}?entrypoint=duckdb_adbc_init&path={}{options}", library.display(), file.display());
    Database { what: "duckdb", location: Location::parse(&uri).unwrap(), file, _dir: dir }
}

impl Database {
    async fn source(&self) -> Box<dyn Source> {
        open(&self.location, &ConnectionLimits::unlimited()).await.unwrap()
    }

    /// Values, separated by tabs and semicolons.
    async fn rows(&self, sql: &str) -> String {
        let rows = self.source().await.query(sql, &ReadOptions::default()).await.unwrap();
        let rows: Vec<_> = texts(rows).await.unwrap().iter().map(|row| row.join("\t")).collect();
        rows.join("; ")
    }

    async fn copy(&self, table: &str, mode: WriteMode, values: &[i64]) -> Result<u64> {
        let rows = batch(vec![("a", ints(values.iter().copied()))]);
        let write = TableWrite::new(name(table), mode);
        let mut destination = open_table(&self.location, &write, &rows.schema()).await?;
        destination.write(rows).await?;
        Ok(destination.finish().await?.rows)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_written_in_every_mode_and_read_back() {
    for database in [sqlite(), duckdb()] {
        let what = database.what;
        let all = "SELECT a FROM modes ORDER BY a";
        assert_eq!(database.copy("modes", WriteMode::Create, &[1, 2]).await.unwrap(), 2, "{what}");
        database.copy("modes", WriteMode::Create, &[9]).await.unwrap_err();
        database.copy("modes", WriteMode::Append, &[3]).await.unwrap();
        database.copy("modes", WriteMode::Existing, &[4]).await.unwrap();
        assert_eq!(database.rows(all).await, "1; 2; 3; 4", "{what}");
        database.copy("missing", WriteMode::Existing, &[4]).await.unwrap_err();
        database.copy("modes", WriteMode::Replace, &[7]).await.unwrap();
        assert_eq!(database.rows(all).await, "7", "{what}");
        database.copy("new", WriteMode::Append, &[5]).await.unwrap();
        assert_eq!(database.rows("SELECT a FROM new").await, "5", "{what}");
        let write = TableWrite::upsert(name("modes"), vec!["a".into()]);
        let upsert = open_table(&database.location, &write, &batch(vec![("a", ints([1]))]).schema()).await;
        assert!(matches!(upsert.err(), Some(SourceError::Unsupported(_))), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_driver_writes_is_read_by_another_reader() {
    let database = sqlite();
    let rows = batch(vec![
        ("n", ints([1, 2])),
        ("s", words(["é\n", ""])),
        ("f", Arc::new(arrow_array::Float64Array::from(vec![Some(0.1), None]))),
    ]);
    let write = TableWrite::new(name("kinds"), WriteMode::Create);
    let mut destination = open_table(&database.location, &write, &rows.schema()).await.unwrap();
    destination.write(rows.clone()).await.unwrap();
    destination.write(rows).await.unwrap();
    destination.finish().await.unwrap();
    let connection = rusqlite::Connection::open(&database.file).unwrap();
    let read = "SELECT count(*), sum(n), group_concat(hex(s)), sum(f) FROM kinds";
    let found: (i64, i64, String, f64) = connection
        .query_row(read, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .unwrap();
    assert_eq!(found, (4, 6, "C3A90A,,C3A90A,".into(), 0.2));

    let database = duckdb();
    let decimals = Decimal128Array::from(vec![Some(1250), None]).with_precision_and_scale(12, 2).unwrap();
    let rows = batch(vec![
        ("d", Arc::new(decimals) as ArrayRef),
        ("t", Arc::new(TimestampMicrosecondArray::from(vec![Some(1_709_200_000_000_001), None]))),
    ]);
    let mut destination = open_table(&database.location, &write, &rows.schema()).await.unwrap();
    destination.write(rows).await.unwrap();
    destination.finish().await.unwrap();
    // DuckDB's own text of the values and of their types.
    let printed = database
        .rows("SELECT d::varchar, typeof(d), t::varchar, typeof(t) FROM kinds WHERE d IS NOT NULL")
        .await;
    assert_eq!(printed, "12.50\tDECIMAL(12,2)\t2024-02-29 09:46:40.000001\tTIMESTAMP");
    let back = database.source().await.query("SELECT * FROM kinds", &ReadOptions::default()).await.unwrap();
    assert_eq!(*back.schema.field(0).data_type(), DataType::Decimal128(12, 2));
    assert_eq!(texts(back).await.unwrap()[1], ["NULL", "NULL"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_fails_or_is_abandoned_changes_nothing() {
    for database in [sqlite(), duckdb()] {
        let what = database.what;
        database.copy("kept", WriteMode::Create, &[1]).await.unwrap();
        let rows = batch(vec![("a", ints(0..3000))]);
        for mode in [WriteMode::Append, WriteMode::Replace] {
            let write = TableWrite::new(name("kept"), mode);
            let abandoned = async || {
                let mut destination = open_table(&database.location, &write, &rows.schema()).await?;
                for _ in 0..3 {
                    destination.write(rows.clone()).await?;
                }
                Ok::<_, SourceError>(())
            };
            // SQLite's file is locked until the driver has ended the transaction before.
            let deadline = Instant::now() + PATIENCE;
            while let Err(error) = abandoned().await {
                assert!(error.to_string().contains("locked") && Instant::now() < deadline, "{what}: {error}");
            }
            let options = ReadOptions::default();
            let kept = loop {
                let rows = database.source().await.query("SELECT a FROM kept", &options).await;
                match rows {
                    Ok(rows) => break texts(rows).await.unwrap(),
                    Err(error) => assert!(Instant::now() < deadline, "{what}: {error}"),
                }
            };
            assert_eq!(kept, [["1"]], "{what}");
        }
        // A text that is no number is refused by the table.
        let wrong = batch(vec![("zzz", words(["x"]))]);
        let write = TableWrite::new(name("kept"), WriteMode::Existing);
        let refused = async {
            let mut destination = open_table(&database.location, &write, &wrong.schema()).await?;
            destination.write(wrong.clone()).await?;
            destination.finish().await
        };
        let error = refused.await.unwrap_err();
        assert!(matches!(error, SourceError::Sql { .. }), "{what}: {error:?}");
        assert_eq!(database.rows("SELECT a FROM kept").await, "1", "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_listed_described_and_scanned() {
    for database in [sqlite(), duckdb()] {
        let what = database.what;
        let rows = batch(vec![("a", ints(0..5000)), ("B c", words(vec!["x"; 5000]))]);
        let write = TableWrite::new(name("T 1"), WriteMode::Create);
        let mut destination = open_table(&database.location, &write, &rows.schema()).await.unwrap();
        destination.write(rows).await.unwrap();
        destination.finish().await.unwrap();
        let source = database.source().await;
        let tables = source.tables().await.unwrap();
        assert_eq!(tables.iter().map(|table| &*table.name).collect::<Vec<_>>(), ["T 1"], "{what}");
        let options = ReadOptions { batch_rows: 700, ..ReadOptions::default() };
        let info = source.table(&tables[0], &options).await.unwrap();
        let names: Vec<_> = info.schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["a", "B c"], "{what}");
        let missing = source.table(&name("nothing"), &options).await.unwrap_err();
        assert!(matches!(missing, SourceError::NoTable { .. }), "{what}: {missing:?}");
        let scan = |columns: Option<&[&str]>, limit| Scan {
            table: tables[0].clone(),
            columns: columns.map(|columns| columns.iter().map(|&c| c.to_owned()).collect()),
            filter: None,
            limit,
        };
        for (scan, columns, count) in [
            (scan(None, None), 2, 5000),
            (scan(Some(&["B c"]), Some(7)), 1, 7),
            (scan(Some(&[]), None), 0, 5000),
        ] {
            let rows = source.scan(&scan, &options).await.unwrap();
            assert_eq!(rows.schema.fields().len(), columns, "{what}");
            let batches: Vec<_> = rows.batches.try_collect().await.unwrap();
            let sizes: Vec<_> = batches.iter().map(|batch| batch.num_rows()).collect();
            assert_eq!(sizes.iter().sum::<usize>(), count, "{what}");
            assert!(sizes.iter().all(|&rows| rows <= 700), "{what}: {sizes:?}");
        }
        assert_eq!(identity(&*source, &tables[0]).await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_fail_with_the_drivers_words() {
    for database in [sqlite(), duckdb()] {
        let what = database.what;
        let source = database.source().await;
        let error = source.query("SELEC 1", &ReadOptions::default()).await.unwrap_err();
        let SourceError::Sql { reason, .. } = &error else { panic!("{what}: {error:?}") };
        assert!(reason.to_lowercase().contains("syntax error"), "{what}: {reason}");
        let error = source.query("SELECT * FROM nothing", &ReadOptions::default()).await.unwrap_err();
        assert!(error.to_string().contains("nothing"), "{what}: {error}");
    }
    // An error after the first rows.
    // With several threads, DuckDB sometimes reports that it interrupted one of them because another one had failed.
    let database = duckdb_with("&threads=1");
    let sql = "SELECT CASE WHEN i < 500000 THEN i ELSE error('too far') END AS i FROM range(1000000) t(i)";
    let rows = database.source().await.query(sql, &ReadOptions::default()).await;
    let error = match rows {
        Ok(rows) => rows.batches.try_collect::<Vec<_>>().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(error.to_string().contains("too far"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_driver_is_refused_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.so");
    std::fs::write(&text, "no library").unwrap();
    let sqlite = driver("libadbc_driver_sqlite.so");
    let duckdb = driver("libduckdb.so");
    let libc = "libc.so.6?entrypoint=malloc_usable_size";
    for (uri, word, in_hint) in [
        ("/nowhere/x.so".to_owned(), "No such file", "shared library"),
        (dir.path().display().to_string(), "folder", "shared library"),
        (text.display().to_string(), "", "entrypoint"),
        ("no_such_driver".to_owned(), "", "ADBC_DRIVER_PATH"),
        (format!("{}?entrypoint=nothing", duckdb.display()), "AdbcDriverInit", "entry point"),
        (libc.to_owned(), "No such file", "shared library"),
        // DuckDB's entry point has another name.
        (format!("{}?path=x", duckdb.display()), "", "entrypoint=duckdb_adbc_init"),
    ] {
        let location = Location::parse(&format!("adbc:{uri}")).unwrap();
        let error = open(&location, &ConnectionLimits::unlimited()).await.unwrap_err();
        let SourceError::Driver { reason, hint, .. } = &error else { panic!("{uri}: {error:?}") };
        assert!(reason.contains(word) && hint.contains(in_hint), "{uri}: {reason}; {hint}");
        let rows = batch(vec![("a", ints([1]))]);
        let write = TableWrite::new(name("t"), WriteMode::Append);
        let error = open_table(&location, &write, &rows.schema()).await.err().unwrap();
        assert!(matches!(error, SourceError::Driver { .. }), "{uri}: {error:?}");
    }
    // A database that can't be opened, and an option that the driver does not know; its value is not shown.
    for uri in [
        format!("adbc:{}?uri=/nowhere/hush/x.db", sqlite.display()),
        format!("adbc:{}?secret_option=hush", sqlite.display()),
        format!("adbc:{}?entrypoint=duckdb_adbc_init&secret_option=hush", duckdb.display()),
    ] {
        let location = Location::parse(&uri).unwrap();
        let error = open(&location, &ConnectionLimits::unlimited()).await.unwrap_err();
        assert!(matches!(error, SourceError::Connect { .. } | SourceError::Open { .. }), "{uri}: {error:?}");
        assert!(uri.contains("/nowhere") || !format!("{error} {error:?}").contains("hush"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_stream_cancels_the_statement_and_the_consumer_holds_the_driver_back() {
    let database = duckdb();
    // The next statement waits until the thread of the one before has ended.
    let limits = ConnectionLimits::new(NonZeroUsize::MIN).with_wait(PATIENCE);
    let source = open(&database.location, &limits).await.unwrap();
    let sql = "SELECT i, repeat('x', 100) AS s FROM range(1000000000000) t(i)";
    let mut rows = source.query(sql, &ReadOptions::default()).await.unwrap();
    let first = rows.batches.try_next().await.unwrap().unwrap();
    assert!(first.num_rows() > 0);
    drop(rows);

    // Before the first row, and while other tasks of this thread go on.
    let sql = "SELECT sum(a.i * b.i) FROM range(10000000) a(i), range(10000000) b(i)";
    let options = ReadOptions::default();
    let query = async {
        let rows = source.query(sql, &options).await?;
        rows.batches.try_collect::<Vec<_>>().await
    };
    let cancelled = tokio::time::timeout(Duration::from_millis(300), query).await;
    assert!(cancelled.is_err(), "{cancelled:?}");
    let rows = source.query("SELECT 1 AS one", &options).await.unwrap();
    assert_eq!(texts(rows).await.unwrap(), [["1"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_run_side_by_side_and_connections_are_limited() {
    let database = duckdb();
    database.copy("t", WriteMode::Create, &[1, 2, 3]).await.unwrap();
    let limits = ConnectionLimits::new(NonZeroUsize::MIN).with_wait(Duration::from_millis(50));
    let source = open(&database.location, &limits).await.unwrap();
    let options = ReadOptions::default();
    let one = source.query("SELECT i FROM range(100000000) t(i)", &options).await.unwrap();
    let error = source.query("SELECT a FROM t", &options).await.unwrap_err();
    assert!(matches!(error, SourceError::Busy { .. }), "{error:?}");
    drop(one);
    let deadline = Instant::now() + PATIENCE;
    let rows = loop {
        match source.query("SELECT a FROM t ORDER BY a", &options).await {
            Ok(rows) => break rows,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    let batches: Vec<_> = rows.batches.try_collect().await.unwrap();
    let values: &Int64Array = arrow_array::cast::AsArray::as_primitive(batches[0].column(0));
    assert_eq!(values.values(), &[1, 2, 3]);
}
