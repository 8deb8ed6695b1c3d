//! MySQL, against a real MariaDB server.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::{DataType, TimeUnit};
use futures::TryStreamExt;
use lightship_sources::mysql::MySqlSource;
use lightship_sources::{Cursor, Cursors, Dialect, ReadOptions, Rows, Scan, Source, SourceError, TableName};
use lightship_testkit::mariadb::MariaDb;

use super::{collect, texts};

/// One server for the tests that run at the same time; the last one stops it.
pub(crate) fn server() -> Arc<MariaDb> {
    static SERVER: Mutex<Weak<MariaDb>> = Mutex::new(Weak::new());
    let mut shared = SERVER.lock().unwrap();
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(MariaDb::start());
        *shared = Arc::downgrade(&server);
        server
    })
}

pub(crate) async fn connect(server: &MariaDb) -> MySqlSource {
    MySqlSource::connect(&server.uri()).await.unwrap()
}

async fn query(source: &MySqlSource, sql: &str) -> Result<Rows, SourceError> {
    source.query(sql, &ReadOptions::default()).await
}

fn scan(table: &str) -> Scan {
    Scan { table: name(table), columns: None, filter: None, limit: None }
}

fn name(table: &str) -> TableName {
    TableName { schema: None, name: table.into() }
}

/// Waits until the server's list of running statements contains `marker`, or no longer does.
pub(crate) fn wait_for(server: &MariaDb, marker: &str, running: bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let ids = server.sql(&format!(
            "SELECT id FROM information_schema.processlist WHERE info LIKE '%{marker}%' AND id <> CONNECTION_ID()"
        ));
        if ids.is_empty() != running {
            return ids.trim().to_owned();
        }
        assert!(Instant::now() < deadline, "running: {ids:?}");
    }
}

/// Values as SQL, and as they arrive.
type Values<'a> = &'a [(&'a str, &'a str)];

#[tokio::test]
async fn every_type_is_read() {
    const US: TimeUnit = TimeUnit::Microsecond;
    let server = server();
    let source = connect(&server).await;
    assert_eq!(source.dialect(), Dialect::MySql);
    // Declared type, Arrow type, values.
    let cases: &[(&str, DataType, Values<'_>)] = &[
        ("tinyint", DataType::Int8, &[("-128", "-128"), ("127", "127")]),
        ("tinyint unsigned", DataType::UInt8, &[("0", "0"), ("255", "255")]),
        ("bool", DataType::Int8, &[("true", "1"), ("false", "0"), ("7", "7")]),
        ("smallint", DataType::Int16, &[("-32768", "-32768"), ("32767", "32767")]),
        ("smallint unsigned", DataType::UInt16, &[("65535", "65535")]),
        ("mediumint", DataType::Int32, &[("-8388608", "-8388608"), ("8388607", "8388607")]),
        ("mediumint unsigned", DataType::UInt32, &[("16777215", "16777215")]),
        ("int", DataType::Int32, &[("-2147483648", "-2147483648"), ("2147483647", "2147483647")]),
        ("int unsigned", DataType::UInt32, &[("4294967295", "4294967295")]),
        ("bigint", DataType::Int64, &[("-9223372036854775808", "-9223372036854775808")]),
        (
            "bigint unsigned",
            DataType::UInt64,
            &[("0", "0"), ("18446744073709551615", "18446744073709551615")],
        ),
        ("bit(1)", DataType::UInt64, &[("b'1'", "1"), ("b'0'", "0")]),
        ("bit(64)", DataType::UInt64, &[("0xffffffffffffffff", "18446744073709551615"), ("5", "5")]),
        ("year", DataType::Int16, &[("1901", "1901"), ("2155", "2155"), ("0", "0")]),
        ("float", DataType::Float32, &[("1.5", "1.5"), ("-3.402823e38", "-3.402823e38"), ("0", "0.0")]),
        (
            "double",
            DataType::Float64,
            &[("0.1", "0.1"), ("1.7976931348623157e308", "1.7976931348623157e308")],
        ),
        ("decimal(10,2)", DataType::Decimal128(10, 2), &[("12345678.90", "12345678.90"), ("-0.01", "-0.01")]),
        ("decimal(10,2) unsigned", DataType::Decimal128(10, 2), &[("99999999.99", "99999999.99")]),
        ("decimal(5,0)", DataType::Decimal128(5, 0), &[("-99999", "-99999"), ("0", "0")]),
        ("decimal(5,0) unsigned", DataType::Decimal128(5, 0), &[("99999", "99999")]),
        ("decimal(3,3)", DataType::Decimal128(3, 3), &[("0.999", "0.999"), ("-0.999", "-0.999")]),
        (
            "decimal(38,38)",
            DataType::Decimal128(38, 38),
            &[("0.12345678901234567890123456789012345678", "0.12345678901234567890123456789012345678")],
        ),
        (
            "decimal(65,30)",
            DataType::Decimal256(65, 30),
            &[(
                "-99999999999999999999999999999999999.999999999999999999999999999999",
                "-99999999999999999999999999999999999.999999999999999999999999999999",
            )],
        ),
        ("date", DataType::Date32, &[("'1000-01-01'", "1000-01-01"), ("'9999-12-31'", "9999-12-31")]),
        ("datetime", DataType::Timestamp(US, None), &[("'2024-02-29 23:59:59'", "2024-02-29T23:59:59")]),
        (
            "datetime(6)",
            DataType::Timestamp(US, None),
            &[
                ("'1000-01-01 00:00:00.000001'", "1000-01-01T00:00:00.000001"),
                ("'9999-12-31 23:59:59.999999'", "9999-12-31T23:59:59.999999"),
            ],
        ),
        (
            "timestamp(3) null",
            DataType::Timestamp(US, Some("UTC".into())),
            &[
                ("'1970-01-01 00:00:01.5'", "1970-01-01T00:00:01.500Z"),
                ("'2038-01-19 03:14:07'", "2038-01-19T03:14:07Z"),
            ],
        ),
        ("time", DataType::Duration(US), &[("'-838:59:59'", "-PT3020399S"), ("'00:00:00'", "P0D")]),
        ("time(6)", DataType::Duration(US), &[("'12:00:00.000001'", "PT43200.000001S")]),
        ("char(5)", DataType::Utf8, &[("'abc'", "abc"), ("''", "")]),
        ("varchar(20)", DataType::Utf8, &[("'ü€😀'", "ü€😀"), ("'a\\0b'", "a\0b")]),
        ("varchar(20) character set latin1", DataType::Utf8, &[("'ü'", "ü")]),
        ("varchar(20) character set utf8mb4 collate utf8mb4_bin", DataType::Utf8, &[("'ü'", "ü")]),
        ("tinytext", DataType::Utf8, &[("'x'", "x")]),
        ("text", DataType::Utf8, &[("'x'", "x")]),
        ("mediumtext", DataType::Utf8, &[("REPEAT('é', 100)", &"é".repeat(100))]),
        ("longtext", DataType::Utf8, &[("'x'", "x")]),
        ("json", DataType::Utf8, &[("'{\"a\": [1, null]}'", "{\"a\": [1, null]}")]),
        ("binary(3)", DataType::Binary, &[("0x00ff", "00ff00")]),
        ("varbinary(3)", DataType::Binary, &[("0x00ff", "00ff"), ("''", "")]),
        ("tinyblob", DataType::Binary, &[("0xff", "ff")]),
        ("blob", DataType::Binary, &[("0xff", "ff")]),
        ("longblob", DataType::Binary, &[("0xff", "ff")]),
        ("enum('a','b')", DataType::Utf8, &[("'b'", "b")]),
        ("set('a','b','c')", DataType::Utf8, &[("'a,c'", "a,c"), ("''", "")]),
        (
            "uuid",
            DataType::Utf8,
            &[("'123e4567-e89b-12d3-a456-426655440000'", "123e4567-e89b-12d3-a456-426655440000")],
        ),
        ("inet6", DataType::Utf8, &[("'::1'", "::1")]),
        (
            "point",
            DataType::Binary,
            &[("ST_GeomFromText('POINT(1 2)', 4326)", "e61000000101000000000000000000f03f0000000000000040")],
        ),
    ];
    for (index, (declared, data_type, values)) in cases.iter().enumerate() {
        let table = format!("type_{index}");
        let rows: String =
            values.iter().enumerate().map(|(id, (sql, _))| format!("({id}, {sql}),")).collect();
        server.sql(&format!(
            "SET sql_mode = 'STRICT_ALL_TABLES'; CREATE TABLE {table} (id int, v {declared});
             INSERT INTO {table} VALUES {rows} (1000, NULL)"
        ));
        let rows = query(&source, &format!("SELECT v FROM {table} ORDER BY id")).await.unwrap();
        assert_eq!(rows.schema.field(0).data_type(), data_type, "{declared}");
        let info = source.table(&name(&table), &ReadOptions::default()).await.unwrap();
        assert_eq!(info.schema.field(1), rows.schema.field(0), "{declared}");
        let expected = values.iter().map(|(_, text)| vec![(*text).to_owned()]).chain([vec!["NULL".into()]]);
        let expected: Vec<_> = expected.collect();
        assert_eq!(texts(rows).await.unwrap(), expected, "{declared}");
    }
}

#[tokio::test]
async fn expressions_have_types_too() {
    let server = server();
    let source = connect(&server).await;
    let sql = "SELECT NULL, 1, 1 + 1.50, 'a', x'00', NOW(6) > 0, CAST(1 AS UNSIGNED), 1e0, COUNT(*), \
               CURRENT_TIMESTAMP, IF(0, 1, NULL), CAST('1.2' AS DECIMAL(20, 5)), DATE '2024-01-01' \
               FROM seq_1_to_3";
    let rows = query(&source, sql).await.unwrap();
    let types: Vec<_> = rows.schema.fields().iter().map(|field| field.data_type().to_string()).collect();
    assert_eq!(
        types,
        [
            "Null",
            "Int32",
            "Decimal128(4, 2)",
            "Utf8",
            "Binary",
            "Int32",
            "UInt32",
            "Float64",
            "Int64",
            "Timestamp(µs)",
            "Int32",
            "Decimal128(20, 5)",
            "Date32"
        ]
    );
    assert_eq!(collect(rows).await.unwrap()[0].num_rows(), 1);
}

#[tokio::test]
async fn results_of_every_shape_are_read() {
    let server = server();
    let source = connect(&server).await;
    let check = async |sql: &str, names: &[&str], expected: &[&[&str]]| {
        let rows = query(&source, sql).await.unwrap();
        let found: Vec<_> = rows.schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(found, names, "{sql}");
        assert_eq!(texts(rows).await.unwrap(), expected, "{sql}");
    };
    check("SELECT 1 AS a, 2 AS a, 3 AS a", &["a", "a", "a"], &[&["1", "2", "3"]]).await;
    check("SELECT seq AS n FROM seq_1_to_3 WHERE seq > 3", &["n"], &[]).await;
    check("SELECT 1 AS `ü ``x`", &["ü `x"], &[&["1"]]).await;
    check("SELECT ':a' AS x -- ?\n", &["x"], &[&[":a"]]).await;
    check("SHOW VARIABLES LIKE 'time_zone'", &["Variable_name", "Value"], &[&["time_zone", "+00:00"]]).await;
    check("VALUES (1), (2)", &["1"], &[&["1"], &["2"]]).await;
    check("WITH c AS (SELECT 5 AS v) SELECT * FROM c;", &["v"], &[&["5"]]).await;
}

#[tokio::test]
async fn invalid_dates_are_errors() {
    let server = server();
    let source = connect(&server).await;
    server.sql(
        "SET sql_mode = ''; CREATE TABLE zero_dates (d date, t datetime, s timestamp);
         INSERT INTO zero_dates VALUES ('0000-00-00', '2020-00-15 01:02:03', '0000-00-00 00:00:00')",
    );
    for (column, shown) in [("d", "0000-00-00"), ("t", "2020-00-15"), ("s", "0000-00-00")] {
        let sql = format!("SELECT 1, {column} FROM zero_dates");
        let rows = query(&source, &sql).await.unwrap();
        let error = collect(rows).await.unwrap_err();
        let SourceError::Value { column: found, reason } = &error else { panic!("{error}") };
        assert_eq!(found, column);
        assert!(reason.contains(shown) && reason.contains("CAST(... AS CHAR)"), "{reason}");
    }
    let casts = "SELECT CAST(d AS CHAR), NULLIF(d, 0), CAST(t AS CHAR) FROM zero_dates";
    let rows = query(&source, casts).await.unwrap();
    assert_eq!(texts(rows).await.unwrap(), [["0000-00-00", "NULL", "2020-00-15 01:02:03"]]);
}

#[tokio::test]
async fn batches_are_bounded_in_rows_and_bytes() {
    let server = server();
    let source = connect(&server).await;
    let sizes = async |sql: &str, batch_rows: usize, batch_bytes: usize| -> Vec<usize> {
        let options = ReadOptions { batch_rows, batch_bytes, ..ReadOptions::default() };
        let batches = collect(source.query(sql, &options).await.unwrap()).await.unwrap();
        batches.iter().map(|batch| batch.num_rows()).collect()
    };
    assert_eq!(sizes("SELECT seq FROM seq_1_to_10", 4, 1 << 20).await, [4, 4, 2]);
    assert_eq!(sizes("SELECT seq FROM seq_1_to_8", 4, 1 << 20).await, [4, 4]);
    assert_eq!(sizes("SELECT seq FROM seq_1_to_3", 0, 1 << 20).await, [1, 1, 1]);
    assert_eq!(sizes("SELECT REPEAT('x', 1000) FROM seq_1_to_7", 100, 3000).await, [3, 3, 1]);
    // A value larger than the limit has its own batch.
    assert_eq!(sizes("SELECT REPEAT('x', 20000000) FROM seq_1_to_2", 100, 1000).await, [1, 1]);
}

#[tokio::test]
async fn large_results_stream() {
    const ROWS: i64 = 1_000_000;
    let server = server();
    let source = connect(&server).await;
    let sql = format!("SELECT CAST(seq AS SIGNED) AS n, CONCAT('row ', seq) AS t FROM seq_1_to_{ROWS}");
    let mut rows = query(&source, &sql).await.unwrap();
    let (mut sum, mut count) = (0, 0);
    while let Some(batch) = rows.batches.try_next().await.unwrap() {
        assert!(batch.num_rows() <= 8192);
        let numbers = batch.column(0).as_primitive::<Int64Type>();
        let texts = batch.column(1).as_string::<i32>();
        for (number, text) in numbers.values().iter().zip(texts) {
            count += 1;
            assert_eq!(*number, count);
            sum += text.map_or(0, str::len);
        }
    }
    assert_eq!(count, ROWS);
    assert_eq!(sum, 4 * 1_000_000 + 5_888_896);
}

#[tokio::test]
async fn refused_statements_report_code_and_position() {
    let server = server();
    let source = connect(&server).await;
    let check = async |sql: &str, expected_code: &str, expected_position: Option<u32>| match query(
        &source, sql,
    )
    .await
    {
        Err(SourceError::Sql { code, position, reason, .. }) => {
            assert_eq!(
                (code.as_deref(), position),
                (Some(expected_code), expected_position),
                "{sql}: {reason}"
            );
        }
        other => panic!("{sql}: {other:?}"),
    };
    check("SELEC 1", "1064", Some(1)).await;
    check("SELECT 'ü'\n FORM t x", "1064", Some(18)).await;
    check("SELECT 1 FROM", "1064", None).await;
    check("SELECT nothing", "1054", None).await;
    check("SELECT * FROM nothing", "1146", None).await;
    check("SELECT 1; SELECT 2", "1064", Some(11)).await;
    // Writes are refused.
    server.sql("CREATE TABLE kept (a int)");
    check("INSERT INTO kept VALUES (1)", "1792", None).await;
    for sql in ["DROP TABLE kept", "ALTER TABLE kept ADD b int", "TRUNCATE kept", "CREATE TABLE made (a int)"]
    {
        check(sql, "1792", None).await;
    }
    let unsupported = async |sql: &str, expected: &str| match query(&source, sql).await {
        Err(SourceError::Unsupported(reason)) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("{sql}: {other:?}"),
    };
    assert!(matches!(query(&source, "SELECT ?").await, Err(SourceError::Parameters { .. })));
    unsupported("SELECT :a", "named parameters").await;
    unsupported("DO 1", "no rows").await;
    // An error in a row may come after the rows before it.
    let sql = "SELECT IF(seq < 100, seq, (SELECT 1 UNION SELECT 2)) FROM seq_1_to_1000";
    let options = ReadOptions { batch_rows: 10, ..ReadOptions::default() };
    match source.query(sql, &options).await {
        Err(SourceError::Sql { code, .. }) => assert_eq!(code.as_deref(), Some("1242")),
        Ok(rows) => {
            let error = collect(rows).await.unwrap_err();
            assert!(
                matches!(&error, SourceError::Sql { code: Some(code), .. } if code == "1242"),
                "{error:?}"
            );
        }
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn more_than_one_result_is_an_error() {
    let server = server();
    let source = connect(&server).await;
    server.sql("DELIMITER //\nCREATE PROCEDURE two() BEGIN SELECT 1; SELECT 2; END//");
    let rows = query(&source, "CALL two()").await.unwrap();
    let error = collect(rows).await.unwrap_err();
    assert!(matches!(error, SourceError::Unsupported(_)), "{error}");
    server.sql("CREATE PROCEDURE one() SELECT 1");
    assert_eq!(texts(query(&source, "CALL one()").await.unwrap()).await.unwrap(), [["1"]]);
}

#[tokio::test]
async fn scans_read_what_they_ask_for() {
    let server = server();
    let source = connect(&server).await;
    server.sql(
        "CREATE TABLE `scan ``me` (id int PRIMARY KEY, `the name` varchar(20), `select` double);
         INSERT INTO `scan ``me` SELECT seq, CONCAT('n', seq), seq / 2 FROM seq_1_to_100;
         ANALYZE TABLE `scan ``me`",
    );
    let options = ReadOptions { batch_rows: 7, ..ReadOptions::default() };
    let base = scan("scan `me");
    let rows = source.scan(&base, &options).await.unwrap();
    assert_eq!(rows.rows_estimate, Some(100));
    assert_eq!(texts(rows).await.unwrap().len(), 100);

    let some = Scan {
        columns: Some(vec!["select".into(), "the name".into()]),
        filter: Some("id % 10 = 0 OR id = 1 -- and".into()),
        limit: Some(2),
        ..base.clone()
    };
    let rows = source.scan(&some, &options).await.unwrap();
    assert_eq!(rows.rows_estimate, None);
    assert_eq!(texts(rows).await.unwrap(), [["0.5", "n1"], ["5.0", "n10"]]);

    let limited = Scan { limit: Some(3), ..base.clone() };
    assert_eq!(source.scan(&limited, &options).await.unwrap().rows_estimate, Some(3));

    let empty = Scan { columns: Some(vec![]), ..base.clone() };
    let batches = collect(source.scan(&empty, &options).await.unwrap()).await.unwrap();
    assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 100);
    assert!(batches.iter().all(|batch| batch.num_columns() == 0 && batch.num_rows() <= 7));
    let empty = Scan { filter: Some("id > 90".into()), limit: Some(5), ..empty };
    assert_eq!(source.scan(&empty, &options).await.unwrap().rows_estimate, Some(5));

    let elsewhere = TableName { schema: Some("information_schema".into()), name: "character_sets".into() };
    let rows = source.scan(&Scan { table: elsewhere, ..base.clone() }, &options).await.unwrap();
    assert!(!texts(rows).await.unwrap().is_empty());

    let error = source.scan(&scan("nothing"), &options).await.unwrap_err();
    assert!(matches!(&error, SourceError::NoTable { name } if name == "nothing"), "{error:?}");
}

#[tokio::test]
async fn tables_are_listed_and_described() {
    let server = MariaDb::start();
    server.sql("CREATE TABLE b (x int NOT NULL, y json); CREATE VIEW a AS SELECT x FROM b");
    let source = connect(&server).await;
    assert_eq!(source.tables().await.unwrap(), [name("a"), name("b")]);
    let info = source.table(&name("b"), &ReadOptions::default()).await.unwrap();
    assert_eq!(info.schema.fields().len(), 2);
    assert!(info.rows_estimate.is_some());
    assert_eq!(source.table(&name("a"), &ReadOptions::default()).await.unwrap().rows_estimate, None);
    for table in [name("nothing"), TableName { schema: Some("nowhere".into()), name: "x".into() }] {
        let error = source.table(&table, &ReadOptions::default()).await.unwrap_err();
        assert!(matches!(error, SourceError::NoTable { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn refused_logins_and_missing_servers_are_errors() {
    let server = server();
    for uri in [
        server.uri_as(server.user(), "wrong", "test"),
        server.uri_as("nobody", server.password(), "test"),
        server.uri_as(server.user(), server.password(), "nowhere"),
    ] {
        let error = MySqlSource::connect(&uri).await.unwrap_err();
        let SourceError::Login { target, .. } = &error else { panic!("{error:?}") };
        assert!(target.contains(&format!("@127.0.0.1:{}/", server.port())), "{target}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("wrong") && !shown.contains(server.password()), "{shown}");
    }
    // Nothing listens on port 1.
    for uri in ["mysql://u:hidden@127.0.0.1:1/d", "mysql://u:hidden@no-such-host.invalid/d"] {
        let error = MySqlSource::connect(uri).await.unwrap_err();
        assert!(matches!(error, SourceError::Connect { .. }) && error.retryable(), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("hidden"));
    }
    for uri in ["mysql://u:hidden@h/d?no_such_option=1", "nonsense"] {
        let error = MySqlSource::connect(uri).await.unwrap_err();
        assert!(matches!(error, SourceError::Location { .. }), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("hidden"));
    }
    let source = connect(&server).await;
    assert!(!format!("{source:?}").contains(server.password()));
}

#[tokio::test]
async fn a_killed_connection_reports_the_received_rows() {
    let server = server();
    let source = connect(&server).await;
    let mut rows = query(&source, "SELECT seq, 'killed halfway' FROM seq_1_to_1000000000").await.unwrap();
    let mut received = rows.batches.try_next().await.unwrap().unwrap().num_rows() as u64;
    let id = wait_for(&server, "killed halfway", true);
    server.sql(&format!("KILL CONNECTION {id}"));
    let error = loop {
        match rows.batches.try_next().await {
            Ok(Some(batch)) => received += batch.num_rows() as u64,
            Ok(None) => panic!("the result ended as if complete"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SourceError::Lost { rows, .. } if rows == received), "{error} but {received}");
    assert!(error.retryable());
}

#[tokio::test]
async fn dropping_the_stream_ends_the_statement() {
    let server = server();
    let source = connect(&server).await;
    let mut rows = query(&source, "SELECT seq, 'dropped stream' FROM seq_1_to_1000000000").await.unwrap();
    rows.batches.try_next().await.unwrap();
    wait_for(&server, "dropped stream", true);
    drop(rows);
    let server = tokio::task::spawn_blocking(move || {
        wait_for(&server, "dropped stream", false);
        server
    });
    server.await.unwrap();
}

#[tokio::test]
async fn dropping_the_query_future_ends_the_statement() {
    let server = server();
    let source = connect(&server).await;
    // It writes nothing for hours, so it would not notice that the socket is closed.
    let sql = "SELECT COUNT(*), 'dropped question' FROM seq_1_to_1000000 a, seq_1_to_1000000 b \
               WHERE a.seq * b.seq % 7 = 3";
    let running = {
        let server = server.clone();
        tokio::task::spawn_blocking(move || wait_for(&server, "dropped question", true))
    };
    tokio::select! {
        result = query(&source, sql) => panic!("{result:?}"),
        id = running => assert!(!id.unwrap().is_empty()),
    }
    tokio::task::spawn_blocking(move || wait_for(&server, "dropped question", false)).await.unwrap();
}

#[tokio::test]
async fn a_result_is_one_consistent_snapshot() {
    let server = server();
    let source = connect(&server).await;
    server.sql(
        "CREATE TABLE changing (a int) ENGINE=InnoDB; INSERT INTO changing SELECT seq FROM seq_1_to_200000",
    );
    let options = ReadOptions { batch_rows: 10, ..ReadOptions::default() };
    let mut rows = source.scan(&scan("changing"), &options).await.unwrap();
    let mut count = rows.batches.try_next().await.unwrap().unwrap().num_rows();
    server.sql("DELETE FROM changing WHERE a % 2 = 0");
    while let Some(batch) = rows.batches.try_next().await.unwrap() {
        count += batch.num_rows();
    }
    assert_eq!(count, 200_000);
}

#[tokio::test]
async fn tls_verifies_as_the_uri_requires() {
    let dir = tempfile::tempdir().unwrap();
    // The server runs as its own user.
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let options = [format!("--ssl-cert={}", certificate.display()), format!("--ssl-key={}", key.display())];
    let server = MariaDb::start_with(&[&options[0], &options[1], "--require-secure-transport=ON"]);

    let check = async |options: &str| MySqlSource::connect(&format!("{}{options}", server.uri())).await;
    let error = check("").await.unwrap_err();
    assert!(matches!(error, SourceError::Login { .. }), "{error:?}");
    let error = check("?require_ssl=true").await.unwrap_err();
    assert!(matches!(error, SourceError::Connect { .. }), "{error:?}");
    let error = check(&format!("?ssl_ca={}", key.display())).await.unwrap_err();
    assert!(matches!(error, SourceError::Connect { .. }), "{error:?}");
    let unchecked = "?require_ssl=true&verify_ca=false&verify_identity=false".to_owned();
    for options in [unchecked, format!("?ssl_ca={}", certificate.display())] {
        let source = check(&options).await.unwrap();
        let rows = query(&source, "SHOW STATUS LIKE 'Ssl_cipher'").await.unwrap();
        assert!(texts(rows).await.unwrap()[0][1].starts_with("TLS_"), "{options}");
        let mut cursor = source.cursor("SELECT 7").await.unwrap();
        assert_eq!(cursor.fetch(10).await.unwrap().rows, 1, "{options}");
    }
}
