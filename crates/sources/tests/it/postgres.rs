//! PostgreSQL, against a real server.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int32Type, Int64Type};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow_select::concat::concat_batches;
use futures::{StreamExt, TryStreamExt};
use lightship_sources::limit::ConnectionLimits;
use lightship_sources::postgres::{PostgresDestination, PostgresSource};
use lightship_sources::{
    Destination, InfiniteRule, NumericRule, ReadOptions, Result, Rows, Scan, Source, SourceError, TableName,
    WriteMode,
};
use lightship_testkit::postgres::Postgres;

/// One server for the tests that leave its settings alone. Tests name their tables differently.
pub(crate) fn server() -> &'static Postgres {
    static SERVER: LazyLock<Postgres> = LazyLock::new(Postgres::start);
    &SERVER
}

pub(crate) async fn source() -> PostgresSource {
    PostgresSource::connect(&server().uri()).await.unwrap()
}

pub(crate) fn streams(count: usize) -> ReadOptions {
    ReadOptions { streams: NonZeroUsize::new(count).unwrap(), ..Default::default() }
}

pub(crate) async fn whole(rows: Rows) -> Result<RecordBatch> {
    let batches: Vec<_> = rows.batches.try_collect().await?;
    Ok(concat_batches(&rows.schema, &batches)?)
}

pub(crate) async fn query(sql: &str) -> Result<RecordBatch> {
    whole(source().await.query(sql, &ReadOptions::default()).await?).await
}

/// The values of a column, as Arrow prints them.
pub(crate) fn shown(batch: &RecordBatch, column: usize) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let values = ArrayFormatter::try_new(batch.column(column), &options).unwrap();
    (0..batch.num_rows()).map(|row| values.value(row).to_string()).collect()
}

pub(crate) fn table(name: &str) -> TableName {
    TableName { schema: None, name: name.into() }
}

pub(crate) async fn destination(
    name: &str,
    schema: &SchemaRef,
    mode: WriteMode,
) -> Result<PostgresDestination> {
    PostgresDestination::create(&server().uri(), &table(name), schema, mode).await
}

pub(crate) async fn write(name: &str, batch: &RecordBatch) -> Result<u64> {
    let mut destination = destination(name, &batch.schema(), WriteMode::Append).await?;
    destination.write(batch.clone()).await?;
    Ok(Box::new(destination).finish().await?.rows)
}

/// Type, values as SQL literals, Arrow type, values as Arrow prints them.
fn every_type() -> Vec<(&'static str, &'static [&'static str], DataType, &'static [&'static str])> {
    use DataType::{
        Binary, Boolean, Date32, Decimal128, Decimal256, Float32, Float64, Int16, Int32, Int64, Utf8,
    };
    let list = |item: DataType| DataType::List(Arc::new(Field::new("item", item, true)));
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let naive = DataType::Timestamp(TimeUnit::Microsecond, None);
    vec![
        ("bool", &["true", "false"], Boolean, &["true", "false"]),
        ("int2", &["-32768", "32767"], Int16, &["-32768", "32767"]),
        ("int4", &["-2147483648", "7"], Int32, &["-2147483648", "7"]),
        ("int8", &["-9223372036854775808", "7"], Int64, &["-9223372036854775808", "7"]),
        ("float4", &["1.5", "'-Infinity'"], Float32, &["1.5", "-inf"]),
        ("float8", &["0.1", "'NaN'"], Float64, &["0.1", "NaN"]),
        (
            "numeric(15,2)",
            &["-12345.67", "9999999999999.99"],
            Decimal128(15, 2),
            &["-12345.67", "9999999999999.99"],
        ),
        (
            "numeric(38,0)",
            &["99999999999999999999999999999999999999"],
            Decimal128(38, 0),
            &["99999999999999999999999999999999999999"],
        ),
        (
            "numeric(50,10)",
            &["-1234567890123456789012345678901234567890.0000000001"],
            Decimal256(50, 10),
            &["-1234567890123456789012345678901234567890.0000000001"],
        ),
        ("numeric(5,-2)", &["123400"], Decimal128(5, -2), &["123400"]),
        ("numeric(2,5)", &["0.00012"], Decimal128(5, 5), &["0.00012"]),
        (
            "numeric",
            &["3.25 + 0e-44", "1e31 + 1e-44"],
            Decimal256(76, 44),
            &[
                "3.25000000000000000000000000000000000000000000",
                "10000000000000000000000000000000.00000000000000000000000000000000000000000001",
            ],
        ),
        ("money", &["'-12.34'"], Decimal128(19, 2), &["-12.34"]),
        ("text", &["'hello'", "''", "E'\\u00e9\\n'"], Utf8, &["hello", "", "é\n"]),
        ("varchar(5)", &["'abc'"], Utf8, &["abc"]),
        ("char(4)", &["'ab'"], Utf8, &["ab  "]),
        ("name", &["'abc'"], Utf8, &["abc"]),
        ("\"char\"", &["'x'"], Utf8, &["x"]),
        ("bytea", &["'\\x00ff'", "''"], Binary, &["00ff", ""]),
        (
            "date",
            &["'1969-12-31'", "'2024-02-29'", "'0001-01-01'"],
            Date32,
            &["1969-12-31", "2024-02-29", "0001-01-01"],
        ),
        ("time", &["'23:59:59.999999'"], DataType::Time64(TimeUnit::Microsecond), &["23:59:59.999999"]),
        ("timetz", &["'12:00:00+02'"], Utf8, &["12:00:00+02"]),
        ("timestamp", &["'1999-12-31 23:59:59.000001'"], naive.clone(), &["1999-12-31T23:59:59.000001"]),
        ("timestamptz", &["'2024-07-01 12:00:00+02'"], utc, &["2024-07-01T10:00:00Z"]),
        (
            "interval",
            &["'1 year 2 mons 3 days 04:05:06.5'"],
            DataType::Interval(arrow_schema::IntervalUnit::MonthDayNano),
            &["14 mons 3 days 4 hours 5 mins 6.500000000 secs"],
        ),
        (
            "uuid",
            &["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
            DataType::FixedSizeBinary(16),
            &["a0eebc999c0b4ef8bb6d6bb9bd380a11"],
        ),
        ("json", &["'{\"a\":  1}'"], Utf8, &["{\"a\":  1}"]),
        ("jsonb", &["'{\"a\":  1}'"], Utf8, &["{\"a\": 1}"]),
        ("oid", &["4294967295"], DataType::UInt32, &["4294967295"]),
        ("inet", &["'10.0.0.1/8'"], Utf8, &["10.0.0.1/8"]),
        ("macaddr", &["'08:00:2b:01:02:03'"], Utf8, &["08:00:2b:01:02:03"]),
        ("bit(3)", &["B'101'"], Utf8, &["101"]),
        ("varbit", &["B'1'"], Utf8, &["1"]),
        ("xml", &["'<a/>'"], Utf8, &["<a/>"]),
        ("int4range", &["'[1,5)'"], Utf8, &["[1,5)"]),
        ("tsvector", &["'a b'"], Utf8, &["'a' 'b'"]),
        ("point", &["'(1,2)'"], Utf8, &["(1,2)"]),
        ("all_mood", &["'happy'"], Utf8, &["happy"]),
        ("all_positive", &["5"], Int32, &["5"]),
        ("all_price", &["5.25"], Decimal128(8, 2), &["5.25"]),
        ("all_pair", &["'(1,x)'"], Utf8, &["(1,x)"]),
        ("int4[]", &["'{1,NULL,3}'", "'{}'"], list(Int32), &["[1, NULL, 3]", "[]"]),
        ("text[]", &["'{a,\"b,c\",\"\"}'"], list(Utf8), &["[a, b,c, ]"]),
        ("numeric(6,2)[]", &["'{1.5,-2}'"], list(Decimal128(6, 2)), &["[1.50, -2.00]"]),
        ("timestamp[]", &["'{2000-01-01}'"], list(naive), &["[2000-01-01T00:00:00]"]),
        ("bool[]", &["'{t,f}'"], list(Boolean), &["[true, false]"]),
        ("all_mood[]", &["'{sad,happy}'"], list(Utf8), &["[sad, happy]"]),
        ("all_positive[]", &["'{1,2}'"], list(Int32), &["[1, 2]"]),
        ("inet[]", &["'{10.0.0.1,NULL}'"], list(Utf8), &["[10.0.0.1, NULL]"]),
        ("money[]", &["'{1.5}'"], list(Decimal128(19, 2)), &["[1.50]"]),
    ]
}

#[tokio::test]
async fn every_type_is_read_and_written_back() {
    let types = every_type();
    server().psql(
        "CREATE TYPE all_mood AS ENUM ('sad', 'happy'); CREATE TYPE all_pair AS (a int, b text);
         CREATE DOMAIN all_positive AS int CHECK (VALUE > 0); CREATE DOMAIN all_price AS numeric(8, 2);",
    );
    let columns: Vec<_> = types.iter().enumerate().map(|(i, (t, ..))| format!("c{i} {t}")).collect();
    server().psql(&format!("CREATE TABLE all_types (n int, {})", columns.join(", ")));
    let rows = types.iter().map(|(_, values, ..)| values.len()).max().unwrap();
    for row in 0..=rows {
        // The last row is all NULL.
        let values: Vec<_> =
            types.iter().map(|(_, values, ..)| values.get(row).copied().unwrap_or("NULL")).collect();
        server().psql(&format!("INSERT INTO all_types VALUES ({row}, {})", values.join(", ")));
    }
    let batch = query("SELECT * FROM all_types ORDER BY n").await.unwrap();
    for (i, (name, _, data_type, values)) in types.iter().enumerate() {
        let schema = batch.schema();
        assert!(
            schema.field(i + 1).data_type().equals_datatype(data_type),
            "{name}: {}",
            schema.field(i + 1)
        );
        let mut expected: Vec<_> = values.iter().map(|value| (*value).to_owned()).collect();
        expected.resize(rows + 1, "NULL".to_owned());
        assert_eq!(shown(&batch, i + 1), expected, "{name}");
    }

    // Into a table of the same types, and into a new one.
    server().psql("CREATE TABLE all_types_again (LIKE all_types)");
    assert_eq!(write("all_types_again", &batch).await.unwrap(), rows as u64 + 1);
    let text = |table| server().psql(&format!("SELECT t::text FROM {table} t ORDER BY n"));
    assert_eq!(text("all_types"), text("all_types_again"));
    write("all_types_made", &batch).await.unwrap();
    let made = query("SELECT * FROM all_types_made ORDER BY n").await.unwrap();
    for i in 0..batch.num_columns() {
        let (before, after) = (shown(&batch, i), shown(&made, i));
        // A negative scale has become digits, and json has become jsonb.
        let other = i > 0 && matches!(types[i - 1].0, "numeric(5,-2)" | "json");
        assert!(before == after || other, "{}: {before:?} {after:?}", batch.schema().field(i));
    }
    let schema = made.schema();
    let extension = |name: &str| {
        let at = types.iter().position(|(t, ..)| *t == name).unwrap() + 1;
        schema.field(at).metadata().get("ARROW:extension:name").cloned()
    };
    assert_eq!(extension("uuid").as_deref(), Some("arrow.uuid"));
    assert_eq!(extension("jsonb").as_deref(), Some("arrow.json"));
}

#[tokio::test]
async fn numbers_of_arbitrary_precision_follow_the_rule() {
    let source = source().await;
    let read = async |sql: &str, numeric| {
        let options = ReadOptions { numeric, ..Default::default() };
        whole(source.query(sql, &options).await?).await
    };
    let wide = "SELECT 12345678901234567890123456789012345.5::numeric";
    assert_eq!(
        shown(&read(wide, NumericRule::String).await.unwrap(), 0),
        ["12345678901234567890123456789012345.5"]
    );
    assert_eq!(shown(&read("SELECT 'NaN'::numeric", NumericRule::Double).await.unwrap(), 0), ["NaN"]);
    let narrow = NumericRule::Decimal { precision: 38, scale: 10 };
    for (sql, rule) in
        [(wide, narrow), ("SELECT 0.00000000001", narrow), ("SELECT 1e32", NumericRule::RESULT)]
    {
        let error = read(sql, rule).await.unwrap_err();
        let SourceError::Value { reason, .. } = &error else { panic!("{error}") };
        assert!(reason.starts_with("row 1 holds ") && reason.contains("numeric=string"), "{error}");
    }
    let error = query("SELECT '{{1,2},{3,4}}'::int[]").await.unwrap_err();
    assert!(error.to_string().contains("2 dimensions"), "{error}");
}

#[tokio::test]
async fn computed_numbers_arrive_without_loss() {
    server().psql(
        "CREATE TABLE computed AS SELECT (i * 37 % 1000)::numeric(10, 2) / 100 AS price, i::int8 << 40 AS big
         FROM generate_series(1, 10000) i",
    );
    for sql in [
        "SELECT avg(price), sum(price), avg(price) / 1000000, sum(big), avg(big), stddev(price) FROM computed",
        "SELECT price / 3, 1 / (price + 7), sqrt(price), price / 1e9, big / 7.0 FROM computed",
        "SELECT sum(9223372036854775807) FROM computed",
    ] {
        let numbers = query(sql).await.unwrap();
        let options = ReadOptions { numeric: NumericRule::String, ..Default::default() };
        let texts = whole(source().await.query(sql, &options).await.unwrap()).await.unwrap();
        let trimmed = |text: &String| match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text.clone(),
        };
        for column in 0..numbers.num_columns() {
            assert_eq!(*numbers.column(column).data_type(), DataType::Decimal256(76, 44), "{sql}");
            let found: Vec<_> = shown(&numbers, column).iter().map(trimmed).collect();
            let expected: Vec<_> = shown(&texts, column).iter().map(trimmed).collect();
            assert_eq!(found, expected, "{sql}");
        }
    }
}

#[tokio::test]
async fn infinite_values_follow_the_rule() {
    let source = source().await;
    let read = async |sql: &str, infinite| {
        let options = ReadOptions { infinite, ..Default::default() };
        whole(source.query(sql, &options).await?).await
    };
    // A special value, a finite one, how the finite one is read, and the special one as text.
    let cases = [
        ("'infinity'::timestamptz", "'2024-01-01 00:00:00+00'", "2024-01-01T00:00:00Z", "infinity"),
        ("'-infinity'::timestamp", "'2024-01-01'", "2024-01-01T00:00:00", "-infinity"),
        ("'infinity'::date", "'2024-01-01'", "2024-01-01", "infinity"),
        ("'NaN'::numeric(10, 2)", "1.5::numeric(10, 2)", "1.50", "NaN"),
        ("'Infinity'::numeric", "1.5", "1.50000000000000000000000000000000000000000000", "Infinity"),
        ("ARRAY['NaN', 1]::numeric(5, 1)[]", "'{2}'::numeric(5, 1)[]", "[2.0]", "[NaN, 1.0]"),
        ("ARRAY['infinity']::date[]", "'{2024-01-01}'", "[2024-01-01]", "[infinity]"),
    ];
    for (special, finite, arrives, text) in cases {
        let sql = format!("SELECT at FROM (VALUES ({special}), ({finite})) AS v (at)");
        let error = read(&sql, InfiniteRule::Error).await.unwrap_err();
        let SourceError::Value { column, reason } = &error else { panic!("{error}") };
        assert!(
            column == "at" && reason.starts_with("row 1 holds ") && reason.contains("infinite=null"),
            "{error}"
        );
        let nulls = read(&sql, InfiniteRule::Null).await.unwrap();
        let null = match text {
            "[NaN, 1.0]" => "[NULL, 1.0]",
            "[infinity]" => "[NULL]",
            _ => "NULL",
        };
        assert_eq!(shown(&nulls, 0), [null, arrives], "{special}");
        let texts = read(&sql, InfiniteRule::Text).await.unwrap();
        assert!(matches!(texts.column(0).data_type(), DataType::Utf8 | DataType::List(_)), "{special}");
        assert_eq!(shown(&texts, 0)[0], text, "{special}");
    }
    // A double can hold these values.
    let options =
        ReadOptions { numeric: NumericRule::Double, infinite: InfiniteRule::Null, ..Default::default() };
    let rows = source.query("SELECT 'NaN'::numeric, '-Infinity'::numeric", &options).await.unwrap();
    let doubles = whole(rows).await.unwrap();
    assert_eq!((shown(&doubles, 0), shown(&doubles, 1)), (vec!["NaN".to_owned()], vec!["-inf".to_owned()]));
}

#[tokio::test]
async fn a_refused_value_is_reported_with_its_row() {
    let source = source().await;
    server().psql(
        "CREATE TABLE refused AS SELECT i AS id, CASE i WHEN 54321 THEN 1e60 ELSE i END AS n, repeat('x', 200) AS f
         FROM generate_series(1, 100000) i; ANALYZE refused",
    );
    let error = async |sql: &str, options: &ReadOptions| {
        let error = whole(source.query(sql, options).await.unwrap()).await.unwrap_err();
        let SourceError::Value { column, reason } = error else { panic!("{error}") };
        assert_eq!(column, "n");
        reason
    };
    let reason = error("SELECT n FROM refused ORDER BY id", &streams(1)).await;
    assert!(reason.starts_with("row 54321 holds 1000000"), "{reason}");
    // In a table that is read in parts: where the server finds the row.
    let reason = error("SELECT n, f FROM refused", &streams(4)).await;
    let (row, rest) =
        reason.strip_prefix("row ").and_then(|rest| rest.split_once(", counted from ctid ")).unwrap();
    let (start, _) = rest.split_once(", holds ").unwrap();
    let found =
        server().psql(&format!("SELECT id FROM refused WHERE ctid >= '{start}' OFFSET {row} - 1 LIMIT 1"));
    assert_eq!(found.trim(), "54321", "{reason}");
}

#[tokio::test]
async fn the_settings_of_a_role_do_not_change_text() {
    server().psql(
        "CREATE ROLE old_fashioned LOGIN SUPERUSER PASSWORD 'x';
         ALTER ROLE old_fashioned SET standard_conforming_strings = off",
    );
    let source = PostgresSource::connect(&server().uri_as("old_fashioned", "x", "test")).await.unwrap();
    let rows = source.query(r"SELECT 'a\nb' AS text", &ReadOptions::default()).await.unwrap();
    assert_eq!(shown(&whole(rows).await.unwrap(), 0), [r"a\nb"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_limited() {
    server().psql(
        "CREATE TABLE bounded AS SELECT i, repeat('x', 200) AS f FROM generate_series(1, 100000) i; ANALYZE bounded",
    );
    let limits = ConnectionLimits::new(NonZeroUsize::new(2).unwrap()).with_wait(Duration::from_millis(50));
    let uri = format!("{}?application_name=bounded", server().uri());
    let open = || PostgresSource::connect_within(&uri, &limits);
    let one = open().await.unwrap();
    let connections = || {
        server()
            .psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'")
            .trim()
            .to_owned()
    };
    // A result that could use four connections gets the two that the limit allows.
    let many = streams(4);
    let mut rows = one.query("SELECT * FROM bounded", &many).await.unwrap();
    assert!(rows.batches.next().await.unwrap().is_ok());
    assert_eq!(connections(), "2");
    let busy = open().await.unwrap_err();
    assert!(matches!(&busy, SourceError::Busy { connections: 2, .. }), "{busy}");
    assert!(busy.retryable());
    // A source does not wait if a connection has become free, or if one is only idle.
    let rest: usize = rows.batches.try_fold(0, async |sum, batch| Ok(sum + batch.num_rows())).await.unwrap();
    assert!(rest < 100_000);
    let two = open().await.unwrap();
    assert_eq!(whole(two.query("SELECT 1", &many).await.unwrap()).await.unwrap().num_rows(), 1);
    // With a limit of one, sources take turns.
    let limits = ConnectionLimits::new(NonZeroUsize::MIN).with_wait(Duration::from_secs(20));
    let uri = format!("{}?application_name=bounded_one", server().uri());
    let (one, two) = (
        PostgresSource::connect_within(&uri, &limits).await.unwrap(),
        PostgresSource::connect_within(&uri, &limits).await.unwrap(),
    );
    let count = async |source: &PostgresSource| {
        let rows = source.query("SELECT * FROM bounded", &many).await.unwrap();
        whole(rows).await.unwrap().num_rows()
    };
    let (a, b, c) = tokio::join!(count(&one), count(&two), count(&one));
    assert_eq!([a, b, c], [100_000; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_first_are_released_to_waiting_queries() {
    server().psql(
        "CREATE TABLE shared AS SELECT i, repeat('x', 200) AS f FROM generate_series(1, 200000) i; ANALYZE shared",
    );
    let limits = ConnectionLimits::new(NonZeroUsize::new(2).unwrap()).with_wait(Duration::from_secs(60));
    let source = PostgresSource::connect_within(&server().uri(), &limits).await.unwrap();
    let mut rows = source.query("SELECT * FROM shared", &streams(4)).await.unwrap();
    let mut read = rows.batches.next().await.unwrap().unwrap().num_rows();
    let other = async { whole(source.query("SELECT 1", &streams(4)).await.unwrap()).await.unwrap() };
    let mut other = std::pin::pin!(other);
    // The large result is read slowly, and the other query does not wait for its end.
    while tokio::time::timeout(Duration::from_millis(200), &mut other).await.is_err() {
        read += rows.batches.next().await.expect("the other query waits for all rows").unwrap().num_rows();
    }
    assert!(read < 200_000);
    let rest: usize = rows.batches.try_fold(0, async |sum, batch| Ok(sum + batch.num_rows())).await.unwrap();
    assert_eq!(read + rest, 200_000);
}

#[tokio::test]
async fn unusual_results_are_read() {
    let none = query("SELECT 1 AS a WHERE false").await.unwrap();
    assert_eq!((none.num_rows(), none.num_columns()), (0, 1));
    let bare = query("SELECT FROM generate_series(1, 20000)").await.unwrap();
    assert_eq!((bare.num_rows(), bare.num_columns()), (20_000, 0));
    let twice = query("SELECT 1 AS a, 'x' AS a").await.unwrap();
    assert_eq!((shown(&twice, 0), shown(&twice, 1)), (vec!["1".to_owned()], vec!["x".to_owned()]));
    assert_eq!(shown(&query("SHOW server_encoding").await.unwrap(), 0), ["UTF8"]);
    assert_eq!(shown(&query("VALUES (1), (2); -- done").await.unwrap(), 0), ["1", "2"]);
    assert_eq!(shown(&query("EXPLAIN SELECT 1").await.unwrap(), 0).len(), 1);
    assert_eq!(shown(&query("WITH a AS (SELECT 3) TABLE a").await.unwrap(), 0), ["3"]);
}

#[tokio::test]
async fn refused_statements_report_code_and_position() {
    let source = source().await;
    let error = async |sql: &str| match source.query(sql, &ReadOptions::default()).await {
        Ok(rows) => whole(rows).await.unwrap_err(),
        Err(error) => error,
    };
    let SourceError::Sql { position, code, hint, .. } = error("SELECT 1 +\n lenth('x')").await else {
        panic!()
    };
    assert_eq!((position, code.as_deref()), (Some(13), Some("42883")));
    assert!(hint.is_some());
    let wrong = error("SELECT 1/(a-3) FROM generate_series(1, 5) a").await;
    assert!(matches!(&wrong, SourceError::Sql { code: Some(code), .. } if code == "22012"), "{wrong}");
    for (sql, expected) in [
        ("SELECT 1; SELECT 2", "42601"),
        ("CREATE TABLE wrong_a (b int) RETURNING b", "42601"),
        ("SELECT nextval('wrong_seq')", "42P01"),
        ("SELECT 'a\0b'", ""),
    ] {
        let wrong = error(sql).await;
        let SourceError::Sql { code, .. } = &wrong else { panic!("{sql}: {wrong:?}") };
        assert_eq!(code.as_deref().unwrap_or_default(), expected, "{sql}");
    }
    server().psql("CREATE TABLE wrong_kept (a int)");
    let wrong = error("INSERT INTO wrong_kept VALUES (1) RETURNING a").await;
    assert!(matches!(&wrong, SourceError::Sql { code: Some(code), .. } if code == "25006"), "{wrong}");
    assert!(matches!(error("SELECT $1::int").await, SourceError::Parameters { .. }));
    for sql in ["CREATE TABLE wrong_b (a int)", ""] {
        assert!(matches!(error(sql).await, SourceError::Unsupported(_)), "{sql}");
    }
    // The source still works.
    assert_eq!(query("SELECT 1").await.unwrap().num_rows(), 1);
}

#[tokio::test]
async fn refused_logins_report_the_reason_without_secrets() {
    let server = server();
    let error = async |uri: String| PostgresSource::connect(&uri).await.unwrap_err();
    let login = error(server.uri_as(server.user(), "hush", "test")).await;
    assert!(matches!(login, SourceError::Login { .. }), "{login:?}");
    assert!(!format!("{login} {login:?}").contains("hush"));
    let login = error(server.uri_as(server.user(), server.password(), "nowhere")).await;
    assert!(matches!(&login, SourceError::Login { reason, .. } if reason.contains("nowhere")), "{login:?}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let connect = error(format!("postgresql://a:hush@127.0.0.1:{free}/test")).await;
    assert!(matches!(connect, SourceError::Connect { .. }), "{connect:?}");
    assert!(!format!("{connect} {connect:?}").contains("hush"));
    let tls = error(format!("{}?sslmode=require", server.uri())).await;
    assert!(matches!(&tls, SourceError::Connect { reason, .. } if reason.contains("TLS")), "{tls:?}");
    PostgresSource::connect(&server.uri_unix()).await.unwrap();
}

#[tokio::test]
async fn tls_verifies_as_sslmode_requires() {
    let certify = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (own, other) = (certify(), certify());
    let files = tempfile::tempdir().unwrap();
    let [own_file, other_file] = ["own.pem", "other.pem"].map(|name| files.path().join(name));
    std::fs::write(&own_file, own.cert.pem()).unwrap();
    std::fs::write(&other_file, other.cert.pem()).unwrap();
    let settings = ["ssl=on", "ssl_cert_file={dir}/cert.pem", "ssl_key_file={dir}/key.pem"];
    let server = Postgres::start_prepared(&settings, |dir| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(dir.join("cert.pem"), own.cert.pem()).unwrap();
        std::fs::write(dir.join("key.pem"), own.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(dir.join("key.pem"), std::fs::Permissions::from_mode(0o600)).unwrap();
    });
    let connect = async |host: &str, query: &str| {
        let uri = format!("{}?{query}", server.uri()).replace("127.0.0.1", host);
        let source = PostgresSource::connect(&uri).await?;
        let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let batch = whole(source.query(sql, &ReadOptions::default()).await?).await?;
        Ok::<_, SourceError>(batch.column(0).as_boolean().value(0))
    };
    let root = |file: &std::path::Path| format!("sslrootcert={}", file.display());
    assert!(!connect("127.0.0.1", "sslmode=disable").await.unwrap());
    assert!(connect("127.0.0.1", "sslmode=prefer").await.unwrap());
    assert!(connect("127.0.0.1", "sslmode=require").await.unwrap());
    assert!(connect("127.0.0.1", &format!("sslmode=verify-ca&{}", root(&own_file))).await.unwrap());
    assert!(connect("localhost", &format!("sslmode=verify-full&{}", root(&own_file))).await.unwrap());
    for (host, query) in [
        ("127.0.0.1", format!("sslmode=verify-full&{}", root(&own_file))),
        ("localhost", format!("sslmode=verify-full&{}", root(&other_file))),
        ("localhost", format!("sslmode=verify-ca&{}", root(&other_file))),
        ("localhost", format!("sslmode=require&{}", root(&other_file))),
        ("localhost", format!("sslmode=verify-full&{}", root(&files.path().join("none.pem")))),
    ] {
        let error = connect(host, &query).await.unwrap_err();
        assert!(matches!(error, SourceError::Connect { .. }), "{host} {query}: {error}");
    }
}

#[tokio::test]
async fn tables_are_described_and_scanned() {
    server().psql(
        "CREATE SCHEMA \"Scan S\"; CREATE TABLE \"Scan S\".\"T 1\" (a int, \"b c\" text);
         INSERT INTO \"Scan S\".\"T 1\" SELECT i, 'x' || i FROM generate_series(1, 100) i;
         CREATE VIEW scan_view AS SELECT 1 AS a; ANALYZE \"Scan S\".\"T 1\"",
    );
    let source = source().await;
    let name = TableName { schema: Some("Scan S".into()), name: "T 1".into() };
    let info = source.table(&name, &ReadOptions::default()).await.unwrap();
    assert_eq!((info.schema.fields().len(), info.rows_estimate), (2, Some(100)));
    let missing = source.table(&table("scan_nothing"), &ReadOptions::default()).await.unwrap_err();
    assert!(matches!(missing, SourceError::NoTable { .. }), "{missing}");
    assert!(source.tables().await.unwrap().contains(&table("scan_view")));

    let scan = |columns: Option<&[&str]>, filter: Option<&str>, limit| Scan {
        table: name.clone(),
        columns: columns.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        filter: filter.map(Into::into),
        limit,
    };
    let read =
        async |scan: Scan| whole(source.scan(&scan, &ReadOptions::default()).await.unwrap()).await.unwrap();
    assert_eq!(read(scan(None, None, None)).await.num_rows(), 100);
    let some = read(scan(Some(&["b c", "a"]), Some("a < 10 -- few"), Some(3))).await;
    assert_eq!((some.num_rows(), some.schema().field(0).name().as_str()), (3, "b c"));
    let bare = read(scan(Some(&[]), Some("a <= 10"), None)).await;
    assert_eq!((bare.num_rows(), bare.num_columns()), (10, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_share_one_snapshot() {
    server().psql(
        "CREATE TABLE split_t (id int, v int8, filler text);
         INSERT INTO split_t SELECT i, i, repeat('x', 200) FROM generate_series(1, 100000) i; ANALYZE split_t",
    );
    let stop = Arc::new(AtomicBool::new(false));
    // Moves amounts between rows meanwhile: the sum is the same in every snapshot.
    let churn = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                // Rows 1 to 99,999, which all exist.
                round = 1 + (round + 7919) % 99_000;
                server().psql(&format!(
                    "BEGIN; UPDATE split_t SET v = v + 10 WHERE id BETWEEN {round} AND {round} + 499;
                     UPDATE split_t SET v = v - 10 WHERE id BETWEEN {round} + 500 AND {round} + 999; COMMIT;
                     BEGIN; DELETE FROM split_t WHERE id = {round};
                     INSERT INTO split_t SELECT {round}, {round}, repeat('y', 200); ROLLBACK;"
                ));
            }
        }
    });
    let source = source().await;
    for round in 0..5 {
        let rows = source.query("select id, v, filler from split_t", &streams(4)).await.unwrap();
        assert!(rows.rows_estimate.is_some(), "it is not split");
        let batch = whole(rows).await.unwrap();
        let mut ids: Vec<_> = batch.column(0).as_primitive::<Int32Type>().values().to_vec();
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(1..=100_000), "round {round}: {} rows", ids.len());
        let sum: i64 = batch.column(1).as_primitive::<Int64Type>().values().iter().sum();
        assert_eq!(sum, 5_000_050_000, "round {round}: parts of several snapshots");
    }
    stop.store(true, Ordering::Relaxed);
    churn.join().unwrap();
    assert_ne!(server().psql("SELECT count(*) FROM split_t WHERE v <> id").trim(), "0", "nothing was moved");

    let serial = query("SELECT count(*), sum(v)::int8 FROM split_t WHERE id % 3 = 1").await.unwrap();
    let scan = Scan {
        table: table("split_t"),
        columns: Some(vec!["v".into()]),
        filter: Some("id % 3 = 1".into()),
        limit: None,
    };
    let parts = source.scan(&scan, &streams(3)).await.unwrap();
    assert!(parts.rows_estimate.is_some());
    let parts = whole(parts).await.unwrap();
    let sum: i64 = parts.column(0).as_primitive::<Int64Type>().values().iter().sum();
    assert_eq!(shown(&serial, 0), [parts.num_rows().to_string()]);
    assert_eq!(shown(&serial, 1), [sum.to_string()]);

    server()
        .psql("CREATE TABLE split_child () INHERITS (split_t); INSERT INTO split_child VALUES (0, 0, '')");
    for sql in [
        "select * from split_t",
        "select now() from only split_t",
        "select count(*) from only split_t",
        "select id from only split_t order by id",
        "select generate_series(1, 2) from only split_t",
        "select id from only split_t where id in (select id from split_child)",
        "select sum(v) over () from only split_t",
    ] {
        let rows = source.query(sql, &streams(2)).await.unwrap();
        assert!(rows.rows_estimate.is_none(), "split: {sql}");
        drop(rows);
    }
    let all = whole(source.query("select * from split_t", &streams(2)).await.unwrap()).await.unwrap();
    assert_eq!(all.num_rows(), 100_001);
}

#[tokio::test]
async fn notices_between_rows_lose_no_row() {
    server().psql(
        "CREATE FUNCTION noted(n int) RETURNS int LANGUAGE plpgsql AS
         $$ BEGIN RAISE NOTICE '%', repeat('x', n % 300 * 300); RETURN n; END $$",
    );
    let batch = query("SELECT noted(n) FROM generate_series(1, 5000) n").await.unwrap();
    let sum: i64 = batch.column(0).as_primitive::<Int32Type>().values().iter().copied().map(i64::from).sum();
    assert_eq!((batch.num_rows(), sum), (5000, 12_502_500));
}

#[tokio::test]
async fn a_dropped_stream_cancels_the_query() {
    let source = source().await;
    let sql = "SELECT /* dropped_query */ pg_sleep(600) UNION ALL SELECT pg_sleep(600)";
    let rows = source.query(sql, &ReadOptions::default()).await.unwrap();
    let running =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%dropped_query%' AND pid <> pg_backend_pid()
                   AND state = 'active'";
    let until = async |count: &str| {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while server().psql(running).trim() != count {
            assert!(std::time::Instant::now() < deadline, "not {count}");
            tokio::task::yield_now().await;
        }
    };
    until("1").await;
    drop(rows);
    until("0").await;
}

#[tokio::test]
async fn a_lost_backend_is_an_error_after_the_received_rows() {
    let source = source().await;
    let options = ReadOptions { batch_rows: 1000, ..streams(1) };
    let sql = "SELECT a, pg_backend_pid() AS pid, repeat('x', 1000) FROM generate_series(1, 1000000) a";
    let mut rows = source.query(sql, &options).await.unwrap();
    let first = rows.batches.next().await.unwrap().unwrap();
    let pid = first.column(1).as_primitive::<Int32Type>().value(0);
    server().psql(&format!("SELECT pg_terminate_backend({pid})"));
    let mut count = first.num_rows() as u64;
    let lost = loop {
        match rows.batches.next().await.expect("an error before the end") {
            Ok(batch) => count += batch.num_rows() as u64,
            Err(error) => break error,
        }
    };
    assert!(rows.batches.next().await.is_none());
    let SourceError::Lost { rows, .. } = lost else { panic!("{lost:?}") };
    assert_eq!(rows, count);
    assert!(count < 1_000_000);

    // Idle connections that were closed are not handed out.
    server()
        .psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lost_idle'");
    let source =
        PostgresSource::connect(&format!("{}?application_name=lost_idle", server().uri())).await.unwrap();
    server().psql(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'lost_idle'",
    );
    let rows = source.query("SELECT 1", &ReadOptions::default()).await.unwrap();
    assert_eq!(whole(rows).await.unwrap().num_rows(), 1);
}

#[tokio::test]
async fn large_values_arrive_complete() {
    let batch = query("SELECT repeat('abcdefghij', 10000000) AS a, 1 AS b").await.unwrap();
    let text = batch.column(0).as_string::<i32>().value(0);
    assert_eq!(text.len(), 100_000_000);
    assert!(text.as_bytes().chunks(10).all(|chunk| chunk == b"abcdefghij"));
    let batch = query("SELECT convert_to(repeat('x', 10000000), 'UTF8') AS a FROM generate_series(1, 12)")
        .await
        .unwrap();
    assert_eq!(write("large_in", &batch).await.unwrap(), 12);
    assert_eq!(server().psql("SELECT sum(length(a)) FROM large_in").trim(), "120000000");
}

#[tokio::test]
async fn other_arrow_types_are_written_to_matching_columns() {
    use arrow_array::{
        ArrayRef, DictionaryArray, Float64Array, Int64Array, LargeStringArray, NullArray, StringArray,
        StringViewArray, UInt64Array,
    };
    let keys: DictionaryArray<Int32Type> = vec![Some("x"), None, Some("x")].into_iter().collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("words", Arc::new(keys)),
        ("view", Arc::new(StringViewArray::from(vec!["a", "b", "c"]))),
        ("large", Arc::new(LargeStringArray::from(vec!["10.0.0.1", "10.0.0.2", "10.0.0.3"]))),
        ("big", Arc::new(UInt64Array::from(vec![u64::MAX, 0, 1]))),
        ("number", Arc::new(Float64Array::from(vec![1.25, -2.5, 1e10]))),
        ("day", Arc::new(StringArray::from(vec!["2024-01-01", "2024-01-02", "2024-01-03"]))),
        ("nothing", Arc::new(NullArray::new(3))),
        ("small", Arc::new(Int64Array::from(vec![1, 2, 3]))),
    ];
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap();
    write("other_made", &batch).await.unwrap();
    assert_eq!(server().psql("SELECT big FROM other_made LIMIT 1").trim(), "18446744073709551615");
    server().psql(
        "CREATE TABLE other_there (extra int DEFAULT 9, small int2, nothing date, day date, number numeric(13, 2),
         big numeric, large inet, view varchar(3), words text)",
    );
    write("other_there", &batch).await.unwrap();
    let text = server().psql("SELECT t::text FROM other_there t WHERE small = 2");
    assert_eq!(text.trim(), "(9,2,,2024-01-02,-2.50,0,10.0.0.2,b,)");
}

#[tokio::test]
async fn tables_that_do_not_fit_are_refused() {
    server().psql("CREATE TABLE fit_t (a int, b date, c int2, d varchar(2) CHECK (d <> 'no'))");
    let schema = |name: &str, data_type| Arc::new(Schema::new(vec![Field::new(name, data_type, true)]));
    let refused = async |name: &str, data_type| {
        destination("fit_t", &schema(name, data_type), WriteMode::Append).await.map(|_| ()).unwrap_err()
    };
    let missing = refused("z", DataType::Int32).await;
    assert!(
        matches!(&missing, SourceError::Value { column, reason } if column == "z" && reason.contains("a, b, c, d")),
        "{missing}"
    );
    let wrong = refused("b", DataType::Int32).await;
    assert!(matches!(&wrong, SourceError::Value { reason, .. } if reason.contains("date")), "{wrong}");
    let there = destination("fit_t", &schema("a", DataType::Int32), WriteMode::Create).await.unwrap_err();
    assert!(matches!(&there, SourceError::Sql { code: Some(code), .. } if code == "42P07"), "{there}");
    let nested = DataType::Struct(vec![Field::new("x", DataType::Int32, true)].into());
    let nested = destination("fit_new", &schema("a", nested), WriteMode::Append).await.unwrap_err();
    assert!(matches!(nested, SourceError::Unsupported(_)), "{nested}");

    let large = query("SELECT 70000::int8 AS c").await.unwrap();
    assert!(matches!(write("fit_t", &large).await.unwrap_err(), SourceError::Unfit { row: 1, .. }));
    let no = query("SELECT 'no' AS d FROM generate_series(1, 100000)").await.unwrap();
    let no = write("fit_t", &no).await.unwrap_err();
    assert!(matches!(&no, SourceError::Sql { code: Some(code), .. } if code == "23514"), "{no}");
    assert_eq!(server().psql("SELECT count(*) FROM fit_t").trim(), "0");
}

#[tokio::test]
async fn unfinished_writes_leave_nothing() {
    let batch = query("SELECT a, 'x' AS b FROM generate_series(1, 100000) a").await.unwrap();
    let mut half = destination("half_t", &batch.schema(), WriteMode::Append).await.unwrap();
    half.write(batch.clone()).await.unwrap();
    drop(half);
    let count = || server().psql("SELECT count(*) FROM pg_class WHERE relname = 'half_t'").trim().to_owned();
    assert_eq!(count(), "0");
    write("half_t", &batch).await.unwrap();
    assert_eq!(server().psql("SELECT count(*), sum(a) FROM half_t").trim(), "100000\t5000050000");
    let mut anew = destination("half_t", &batch.schema(), WriteMode::Replace).await.unwrap();
    anew.write(batch.slice(0, 10)).await.unwrap();
    Box::new(anew).finish().await.unwrap();
    assert_eq!(server().psql("SELECT count(*) FROM half_t").trim(), "10");
}

#[tokio::test]
async fn decimals_of_lists_and_slices_keep_their_values() {
    let batch = query("SELECT ARRAY[a, NULL, -a]::numeric(10,3)[] AS l, a::numeric(10,3) AS d FROM generate_series(1, 50) a")
        .await
        .unwrap();
    write("slice_t", &batch.slice(10, 5)).await.unwrap();
    let back = query("SELECT * FROM slice_t ORDER BY d").await.unwrap();
    assert_eq!(shown(&back, 0), shown(&batch.slice(10, 5), 0));
    assert_eq!(back.column(1).as_primitive::<Decimal128Type>().value(0), 11_000);
}
