//! SQLite files.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use futures::TryStreamExt;
use lightship_sources::sqlite::SqliteSource;
use lightship_sources::{Dialect, ReadOptions, Rows, Scan, Source, SourceError, TableName};
use rusqlite::Connection;
use tempfile::TempDir;

use super::{collect, texts};

pub(crate) struct Database {
    _dir: TempDir,
    path: PathBuf,
    pub(crate) source: SqliteSource,
}

/// A new database file made by these statements.
pub(crate) fn database(sql: &str) -> Database {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.db");
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let source = SqliteSource::open(&path).unwrap();
    Database { _dir: dir, path, source }
}

async fn query(database: &Database, sql: &str) -> Result<Rows, SourceError> {
    database.source.query(sql, &ReadOptions::default()).await
}

fn name(table: &str) -> TableName {
    TableName { schema: None, name: table.into() }
}

fn scan(table: &str) -> Scan {
    Scan { table: name(table), columns: None, filter: None, limit: None }
}

fn types(rows: &Rows) -> Vec<String> {
    rows.schema.fields().iter().map(|field| field.data_type().to_string()).collect()
}

#[tokio::test]
async fn every_declared_type_is_read() {
    let database = database(
        "CREATE TABLE t (b BOOLEAN, i INTEGER, big BIGINT, v VARCHAR(20), c CLOB, x BLOB, r REAL, d DOUBLE,
                         n DECIMAL(10,2), whole NUMERIC(18,0), day DATE, at DATETIME, epoch TIMESTAMP, untyped);
         INSERT INTO t VALUES (0, -9223372036854775808, 9223372036854775807, 'ü€😀', '', x'00ff', 1.5, 1e300,
                               12.34, 999999999999999999, '2024-02-29', '2024-02-29 10:00:00', 1709200000, 'a');
         INSERT INTO t VALUES (1, 0, NULL, 5, 'a' || char(0) || 'b', x'', 2, 1e-300, 12, 1, NULL, NULL, NULL, 3);
         INSERT INTO t DEFAULT VALUES;",
    );
    assert_eq!(database.source.dialect(), Dialect::Sqlite);
    let rows = query(&database, "SELECT * FROM t").await.unwrap();
    let expected_types = [
        "Boolean", "Int64", "Int64", "Utf8", "Utf8", "Binary", "Float64", "Float64", "Float64", "Int64",
        "Utf8", "Utf8", "Int64", "Utf8",
    ];
    assert_eq!(types(&rows), expected_types);
    let first = [
        "false",
        "-9223372036854775808",
        "9223372036854775807",
        "ü€😀",
        "",
        "00ff",
        "1.5",
        "1e300",
        "12.34",
        "999999999999999999",
        "2024-02-29",
        "2024-02-29 10:00:00",
        "1709200000",
        "a",
    ];
    let second =
        ["true", "0", "NULL", "5", "a\0b", "", "2.0", "1e-300", "12.0", "1", "NULL", "NULL", "NULL", "3"];
    let expected = [first, second, ["NULL"; 14]];
    assert_eq!(texts(rows).await.unwrap(), expected);

    let rows = database.source.scan(&scan("t"), &ReadOptions::default()).await.unwrap();
    assert_eq!(types(&rows), expected_types);
    assert_eq!(rows.rows_estimate, Some(3));
    let info = database.source.table(&name("t"), &ReadOptions::default()).await.unwrap();
    assert_eq!(info.schema, rows.schema);
    assert_eq!(texts(rows).await.unwrap(), expected);
}

#[tokio::test]
async fn results_of_every_shape_are_read() {
    let database = database("CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, NULL)");
    let check = async |sql: &str, names: &[&str], expected_types: &[&str], expected: &[&[&str]]| {
        let rows = query(&database, sql).await.unwrap();
        let found: Vec<_> = rows.schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(found, names, "{sql}");
        assert_eq!(types(&rows), expected_types, "{sql}");
        assert_eq!(texts(rows).await.unwrap(), expected, "{sql}");
    };
    check(
        "SELECT a, a, b AS a FROM t",
        &["a", "a", "a"],
        &["Int64", "Int64", "Utf8"],
        &[&["1", "1", "x"], &["2", "2", "NULL"]],
    )
    .await;
    check("SELECT a FROM t WHERE a > 5", &["a"], &["Int64"], &[]).await;
    check("SELECT a + 1 AS b FROM t WHERE a > 5", &["b"], &["Utf8"], &[]).await;
    check(
        "SELECT NULL AS n, 1.5 AS r, x'01' AS x",
        &["n", "r", "x"],
        &["Utf8", "Float64", "Binary"],
        &[&["NULL", "1.5", "01"]],
    )
    .await;
    check(
        "SELECT SUM(a) AS s, COUNT(*) AS c, AVG(a) AS m FROM t;",
        &["s", "c", "m"],
        &["Int64", "Int64", "Float64"],
        &[&["3", "2", "1.5"]],
    )
    .await;
    check(
        "PRAGMA table_info(t)",
        &["cid", "name", "type", "notnull", "dflt_value", "pk"],
        &["Int64", "Utf8", "Utf8", "Int64", "Utf8", "Int64"],
        &[&["0", "a", "INTEGER", "0", "NULL", "0"], &["1", "b", "TEXT", "0", "NULL", "0"]],
    )
    .await;
}

#[tokio::test]
async fn errors_of_values_name_a_cast_that_works() {
    let database = database(
        "CREATE TABLE t (i INTEGER, s TEXT, u);
         WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3000)
         INSERT INTO t SELECT x, x, x FROM n;
         UPDATE t SET i = 'none' WHERE rowid = 2500;
         UPDATE t SET s = x'ff' WHERE rowid = 2501;
         UPDATE t SET u = 2.5 WHERE rowid = 2502;",
    );
    let options = ReadOptions { batch_rows: 1000, ..ReadOptions::default() };
    for (column, row, cast) in [("i", 2500, "TEXT"), ("s", 2501, "BLOB"), ("u", 2502, "REAL")] {
        let columns = Some(vec![column.to_owned()]);
        let scan = Scan { columns, ..scan("t") };
        let mut rows = database.source.scan(&scan, &options).await.unwrap();
        assert_eq!(rows.batches.try_next().await.unwrap().unwrap().num_rows(), 1000);
        let error = rows.batches.try_collect::<Vec<_>>().await.unwrap_err();
        let SourceError::Value { column: found, reason } = &error else { panic!("{error:?}") };
        assert_eq!(found, column);
        assert!(
            reason.contains(&format!("row {row} ")) && reason.contains(&format!("AS {cast})")),
            "{reason}"
        );
        // The cast works.
        let sql = format!("SELECT CAST({column} AS {cast}) AS c FROM t WHERE rowid >= 2400");
        let rows = database.source.query(&sql, &options).await.unwrap();
        assert_eq!(texts(rows).await.unwrap().len(), 601);
    }
    let rows = query(&database, "SELECT CAST(x'61ff' AS TEXT) AS c").await;
    let error = match rows {
        Ok(rows) => collect(rows).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(&error, SourceError::Value { reason, .. } if reason.contains("UTF-8")), "{error:?}");
}

#[tokio::test]
async fn the_types_of_a_table_do_not_depend_on_the_scan() {
    let database = database(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, u);
         INSERT INTO t (u) VALUES (1), (2.5), ('text'), (4), (NULL);
         CREATE VIEW v AS SELECT k, u AS w, k + 1 AS next FROM t;",
    );
    let options = ReadOptions { batch_rows: 1, ..ReadOptions::default() };
    for (filter, limit) in [(None, None), (Some("u = 4"), None), (None, Some(1)), (Some("k > 100"), None)] {
        let scan = Scan { filter: filter.map(str::to_owned), limit, ..scan("t") };
        let rows = database.source.scan(&scan, &options).await.unwrap();
        assert_eq!(types(&rows), ["Int64", "Utf8"], "{scan:?}");
        collect(rows).await.unwrap();
    }
    let rows = database.source.scan(&Scan { limit: Some(2), ..scan("v") }, &options).await.unwrap();
    assert_eq!(types(&rows), ["Int64", "Utf8", "Int64"]);
    assert_eq!(rows.rows_estimate, None);
    assert_eq!(texts(rows).await.unwrap(), [["1", "1", "2"], ["2", "2.5", "3"]]);
}

#[tokio::test]
async fn scans_read_what_they_ask_for() {
    let database = database(
        "CREATE TABLE \"scan `me\" (id INTEGER PRIMARY KEY, \"the name\" TEXT, \"select\" REAL);
         WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 100)
         INSERT INTO \"scan `me\" SELECT x, 'n' || x, x / 2.0 FROM n;
         ANALYZE;",
    );
    let options = ReadOptions { batch_rows: 7, ..ReadOptions::default() };
    let base = scan("scan `me");
    let rows = database.source.scan(&base, &options).await.unwrap();
    assert_eq!(rows.rows_estimate, Some(100));
    assert_eq!(texts(rows).await.unwrap().len(), 100);

    let some = Scan {
        columns: Some(vec!["select".into(), "The Name".into()]),
        filter: Some("id % 10 = 0 OR id = 1 -- and".into()),
        limit: Some(2),
        ..base.clone()
    };
    let rows = database.source.scan(&some, &options).await.unwrap();
    assert_eq!(texts(rows).await.unwrap(), [["0.5", "n1"], ["5.0", "n10"]]);

    let empty = Scan { columns: Some(vec![]), ..base.clone() };
    let batches = collect(database.source.scan(&empty, &options).await.unwrap()).await.unwrap();
    assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 100);
    assert!(batches.iter().all(|batch| batch.num_columns() == 0 && batch.num_rows() <= 7));

    let error = database.source.scan(&scan("nothing"), &options).await.unwrap_err();
    assert!(matches!(&error, SourceError::NoTable { name } if name == "nothing"), "{error:?}");
    let error = database.source.table(&name("nothing"), &options).await.unwrap_err();
    assert!(matches!(error, SourceError::NoTable { .. }), "{error:?}");
    // A column that does not exist is not read as a string.
    let wrong = Scan { columns: Some(vec!["no such".into()]), ..base };
    let error = database.source.scan(&wrong, &options).await.unwrap_err();
    assert!(matches!(error, SourceError::Sql { .. }), "{error:?}");
}

#[tokio::test]
async fn tables_are_listed() {
    let database =
        database("CREATE TABLE b (x INTEGER PRIMARY KEY AUTOINCREMENT); CREATE VIEW a AS SELECT * FROM b");
    assert_eq!(database.source.tables().await.unwrap(), [name("a"), name("b")]);
}

#[tokio::test]
async fn refused_statements_report_code_and_position() {
    let database = database("CREATE TABLE t (a INTEGER)");
    let check =
        async |sql: &str, expected: &str, expected_position: Option<u32>| match query(&database, sql).await {
            Err(SourceError::Sql { reason, position, code, .. }) => {
                assert_eq!((reason.as_str(), position), (expected, expected_position), "{sql}");
                assert_eq!(code.as_deref(), Some("1"), "{sql}");
            }
            other => panic!("{sql}: {other:?}"),
        };
    check("SELEC 1", "near \"SELEC\": syntax error", Some(1)).await;
    check("SELECT 'ü', absent FROM t", "no such column: absent", Some(13)).await;
    check("SELECT 1 FROM", "incomplete input", None).await;
    check("SELECT * FROM absent", "no such table: absent", None).await;
    let unsupported = async |sql: &str, expected: &str| match query(&database, sql).await {
        Err(SourceError::Unsupported(reason)) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("{sql}: {other:?}"),
    };
    assert!(matches!(query(&database, "SELECT ?").await, Err(SourceError::Parameters { .. })));
    unsupported("SELECT 1; SELECT 2", "more than one statement").await;
    unsupported("", "no rows").await;
    // Nothing is written, and no file is created.
    unsupported("INSERT INTO t VALUES (1)", "no rows").await;
    unsupported(&format!("ATTACH '{}.other' AS other", database.path.display()), "no rows").await;
    assert_eq!(std::fs::read_dir(database.path.parent().unwrap()).unwrap().count(), 1);
    let rows = query(&database, "INSERT INTO t VALUES (1) RETURNING a").await;
    let error = match rows {
        Ok(rows) => collect(rows).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(&error, SourceError::Sql { reason, .. } if reason.contains("readonly")), "{error:?}");
}

#[test]
fn files_that_are_not_databases_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent.db");
    let error = SqliteSource::open(&absent).unwrap_err();
    assert!(matches!(error, SourceError::Connect { .. }), "{error:?}");
    assert_eq!(error.io_kind(), Some(std::io::ErrorKind::NotFound));
    assert!(!absent.exists());

    let other = dir.path().join("other.txt");
    std::fs::write(
        &other,
        "not a database, and longer than the header of one would be: a hundred bytes".repeat(3),
    )
    .unwrap();
    let error = SqliteSource::open(&other).unwrap_err().to_string();
    assert!(error.ends_with("the file is not an SQLite database"), "{error}");

    let error = SqliteSource::open(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("it is a folder"), "{error}");
}

#[tokio::test]
async fn batches_are_bounded_in_rows_and_bytes() {
    let database = database("CREATE TABLE t (a TEXT)");
    let sizes = async |sql: &str, batch_rows: usize, batch_bytes: usize| -> Vec<usize> {
        let options = ReadOptions { batch_rows, batch_bytes, ..ReadOptions::default() };
        let batches = collect(database.source.query(sql, &options).await.unwrap()).await.unwrap();
        batches.iter().map(|batch| batch.num_rows()).collect()
    };
    let numbers = |up_to: u32, value: &str| {
        format!(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {up_to}) SELECT {value} FROM n"
        )
    };
    assert_eq!(sizes(&numbers(10, "x"), 4, 1 << 20).await, [4, 4, 2]);
    assert_eq!(sizes(&numbers(8, "x"), 4, 1 << 20).await, [4, 4]);
    assert_eq!(sizes(&numbers(3, "x"), 0, 1 << 20).await, [1, 1, 1]);
    assert_eq!(sizes(&numbers(7, "printf('%.1000c', 'x')"), 100, 3000).await, [3, 3, 1]);
    assert_eq!(sizes(&numbers(2, "printf('%.1000000c', 'x')"), 100, 1000).await, [1, 1]);
}

#[tokio::test]
async fn large_results_stream() {
    const ROWS: i64 = 1_000_000;
    let database = database("CREATE TABLE t (a INTEGER)");
    let sql = format!(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {ROWS}) SELECT x, 'row ' || x FROM n"
    );
    let mut rows = query(&database, &sql).await.unwrap();
    let (mut sum, mut count) = (0, 0);
    while let Some(batch) = rows.batches.try_next().await.unwrap() {
        assert!(batch.num_rows() <= 8192);
        let numbers = batch.column(0).as_primitive::<Int64Type>();
        for (number, text) in numbers.values().iter().zip(batch.column(1).as_string::<i32>()) {
            count += 1;
            assert_eq!(*number, count);
            sum += text.map_or(0, str::len);
        }
    }
    assert_eq!((count, sum), (ROWS, 4 * 1_000_000 + 5_888_896));
}

#[tokio::test]
async fn an_error_halfway_comes_after_the_rows_before_it() {
    let database = database("CREATE TABLE t (a INTEGER)");
    let sql = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 100) \
               SELECT CASE WHEN x < 50 THEN x ELSE abs(-9223372036854775807 - 1) END FROM n";
    let options = ReadOptions { batch_rows: 20, ..ReadOptions::default() };
    let mut rows = database.source.query(sql, &options).await.unwrap();
    let mut received = 0;
    let error = loop {
        match rows.batches.try_next().await {
            Ok(Some(batch)) => received += batch.num_rows(),
            Ok(None) => panic!("the result ended as if complete"),
            Err(error) => break error,
        }
    };
    assert_eq!(received, 49);
    assert!(matches!(&error, SourceError::Sql { reason, .. } if reason == "integer overflow"), "{error:?}");
}

/// Whether this process has the file open. The threads that read SQLite for
/// different tests have the same name, but their open files are distinct.
fn is_open(path: &std::path::Path) -> bool {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path))
}

fn wait_until_closed(path: &std::path::Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while is_open(path) {
        assert!(Instant::now() < deadline, "still reading");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn dropping_the_stream_ends_the_reader() {
    let database = database("CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1)");
    let endless = "WITH RECURSIVE n(x) AS (SELECT a FROM t UNION ALL SELECT x + 1 FROM n) SELECT x FROM n";
    let mut rows = query(&database, endless).await.unwrap();
    rows.batches.try_next().await.unwrap();
    assert!(is_open(&database.path));
    drop(rows);
    wait_until_closed(&database.path);
}

#[tokio::test]
async fn dropping_the_query_future_ends_the_reader() {
    let database = database("CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1)");
    let silent =
        "WITH RECURSIVE n(x) AS (SELECT a FROM t UNION ALL SELECT x + 1 FROM n) SELECT x FROM n WHERE x < 0";
    let path = database.path.clone();
    let running = tokio::task::spawn_blocking(move || {
        while !is_open(&path) {
            std::thread::yield_now();
        }
    });
    tokio::select! {
        result = query(&database, silent) => panic!("{result:?}"),
        done = running => done.unwrap(),
    }
    wait_until_closed(&database.path);
}
