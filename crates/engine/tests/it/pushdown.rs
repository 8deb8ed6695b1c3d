//! Conditions that are pushed down to a database give the same answers as conditions that are checked here.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use async_trait::async_trait;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use futures::TryStreamExt;
use lightship_engine::{Engine, EngineConfig};
use lightship_sources::mysql::MySqlSource;
use lightship_sources::postgres::PostgresSource;
use lightship_sources::sqlite::SqliteSource;
use lightship_sources::{
    Comparable, Dialect, InfiniteRule, NumericRule, ReadOptions, Result, Rows, Scan, Source, TableInfo,
    TableName,
};
use lightship_testkit::mariadb::MariaDb;
use lightship_testkit::postgres::Postgres;

/// A source that records its last scan.
#[derive(Debug)]
struct Recorded(Arc<dyn Source>, Arc<Mutex<Option<Scan>>>);

#[async_trait]
impl Source for Recorded {
    fn dialect(&self) -> Dialect {
        self.0.dialect()
    }

    async fn query(&self, sql: &str, options: &ReadOptions) -> Result<Rows> {
        self.0.query(sql, options).await
    }

    async fn scan(&self, scan: &Scan, options: &ReadOptions) -> Result<Rows> {
        *self.1.lock().unwrap() = Some(scan.clone());
        self.0.scan(scan, options).await
    }

    async fn table(&self, name: &TableName, options: &ReadOptions) -> Result<TableInfo> {
        self.0.table(name, options).await
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        self.0.tables().await
    }
}

/// A source that accepts no conditions.
#[derive(Debug)]
struct Unasked(Arc<dyn Source>);

#[async_trait]
impl Source for Unasked {
    fn dialect(&self) -> Dialect {
        self.0.dialect()
    }

    async fn query(&self, sql: &str, options: &ReadOptions) -> Result<Rows> {
        self.0.query(sql, options).await
    }

    async fn scan(&self, scan: &Scan, options: &ReadOptions) -> Result<Rows> {
        assert_eq!(scan.filter, None);
        self.0.scan(scan, options).await
    }

    async fn table(&self, name: &TableName, options: &ReadOptions) -> Result<TableInfo> {
        let mut info = self.0.table(name, options).await?;
        info.comparisons.iter_mut().for_each(|column| column.comparable = Comparable::Nothing);
        Ok(info)
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        self.0.tables().await
    }
}

/// One table registered twice: with pushdown and without.
struct Checked {
    engine: Engine,
    asked: Arc<Mutex<Option<Scan>>>,
}

impl Checked {
    async fn open(source: Arc<dyn Source>, table: &str, options: ReadOptions) -> Self {
        let mut engine = Engine::new(EngineConfig::default()).unwrap();
        let name = TableName { schema: None, name: table.into() };
        let (unasked, asked) = (Arc::new(Unasked(source.clone())), Arc::default());
        let source = Arc::new(Recorded(source, Arc::clone(&asked)));
        engine.register_source("asked", source, name.clone(), options.clone()).await.unwrap();
        engine.register_source("unasked", unasked, name, options).await.unwrap();
        Self { engine, asked }
    }

    /// Checks that pushdown does not change the rows, and whether the condition was pushed.
    async fn check(&self, condition: &str, is_pushed: bool) {
        let sql = |table| format!("select id from {table} where {condition} order by id");
        let (asked, unasked) =
            (rows(&self.engine, &sql("asked")).await, rows(&self.engine, &sql("unasked")).await);
        assert_eq!(asked, unasked, "{condition}");
        // A condition that no row can meet causes no scan.
        if let Some(scan) = self.asked.lock().unwrap().take() {
            assert_eq!(scan.filter.is_some(), is_pushed, "{condition}: {scan:?}");
        }
        // The limit counts the rows that meet the condition.
        let limited =
            rows(&self.engine, &format!("select id from asked where {condition} limit 2")).await.unwrap();
        let all: BTreeSet<_> = unasked.unwrap().into_iter().collect();
        assert_eq!(limited.len(), all.len().min(2), "{condition}");
        assert!(limited.iter().all(|row| all.contains(row)), "{condition}");
    }
}

/// All values of the result as text, row by row.
async fn rows(engine: &Engine, sql: &str) -> std::result::Result<Vec<Vec<String>>, String> {
    let running = engine.query(sql).await.map_err(|error| error.to_string())?;
    let batches: Vec<RecordBatch> =
        running.into_rows().try_collect().await.map_err(|failure| failure.message)?;
    let options = FormatOptions::new().with_null("NULL");
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<_> =
            batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
        rows.extend(
            (0..batch.num_rows()).map(|row| columns.iter().map(|c| c.value(row).to_string()).collect()),
        );
    }
    Ok(rows)
}

/// Checks conditions on a text column with `values`, and whether those for equality are pushed.
async fn check_text(checked: &Checked, column: &str, values: &[&str], is_pushed: bool) {
    for value in values {
        let value = value.replace('\'', "''");
        checked.check(&format!("{column} = '{value}'"), is_pushed).await;
        checked.check(&format!("{column} in ('{value}', 'none')"), is_pushed).await;
        checked.check(&format!("{column} <> '{value}'"), false).await;
        checked.check(&format!("{column} < '{value}'"), false).await;
        checked.check(&format!("{column} not in ('{value}')"), false).await;
    }
    checked.check(&format!("{column} like 'a%'"), false).await;
}

async fn check_ordered(checked: &Checked, column: &str, values: &[&str]) {
    for value in values {
        for operator in ["=", "<", "<=", ">", ">="] {
            checked.check(&format!("{column} {operator} {value}"), true).await;
        }
        checked.check(&format!("{column} <> {value}"), false).await;
        checked.check(&format!("not ({column} between {value} and {value})"), true).await;
    }
    checked.check(&format!("{column} in ({})", values.join(", ")), true).await;
}

async fn check_nulls(checked: &Checked, columns: &[&str], is_pushed: bool) {
    for column in columns {
        checked.check(&format!("{column} is null"), is_pushed).await;
        checked.check(&format!("{column} is not null"), is_pushed).await;
    }
}

const TEXTS: [&str; 10] =
    ["abc", "ABC", "abc ", "it's", r"a\b", r"\' or 1=1 --", "ü€😀", "", "paid", "no such thing"];

#[tokio::test]
async fn postgresql() {
    let server = Postgres::start();
    server.psql(
        r#"CREATE TYPE mood AS ENUM ('paid', 'open', 'abc');
        CREATE TYPE pair AS (a int, b int);
        CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        CREATE DOMAIN short AS varchar(20);
        CREATE TABLE wide (id int, b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric(10, 2), free numeric,
            m money, t text, v varchar(20), c char(5), "Na me" name, nc text COLLATE nocase, dom short, e mood, j json, jb jsonb,
            ip inet, bits bit(3), u uuid, y bytea, d date, ts timestamp, tz timestamptz, tm time, iv interval, l int[], p pair,
            x xml, r int4range);
        INSERT INTO wide SELECT i, i % 2 = 0, i, i, i * 3000000000, i / 10.0, i / 10.0, i / 4.0, i / 8.0, i, v, v, left(v, 5), v, v, v,
            (ARRAY['paid', 'open', 'abc'])[i % 3 + 1]::mood, '{"a": 1}', '{"a": 1}', '10.0.0.1', B'101',
            'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'abc', date '2024-01-01' + i::int, timestamp '2024-01-01' + i * interval '1 us',
            timestamptz '2024-01-01 00:00:00+02' + i * interval '1 hour', '12:00', '1 day', '{1}', (1, NULL)::pair, '<a/>', '[1,5)'
        FROM unnest(ARRAY['abc', 'ABC', 'abc ', 'it''s', E'a\\b', E'\\'' or 1=1 --', 'ü€😀', '', 'paid', 'Abc']) WITH ORDINALITY AS a (v, i);
        INSERT INTO wide (id) VALUES (100);
        INSERT INTO wide (id, p) VALUES (101, (NULL, NULL));
        INSERT INTO wide (id, f8, f4) VALUES (110, 'NaN', 'NaN'), (111, -'NaN'::float8, 'NaN'), (112, '-0', '-0'), (113, 'Infinity', 'Infinity'),
            (114, 0, 0), (115, '-Infinity', 0);
        CREATE ROLE odd LOGIN SUPERUSER PASSWORD 'x';
        ALTER ROLE odd SET standard_conforming_strings = off; ALTER ROLE odd SET TimeZone = 'Asia/Tokyo';
        ALTER ROLE odd SET DateStyle = 'SQL, DMY'; ALTER ROLE odd SET search_path = public;"#,
    );
    let source: Arc<dyn Source> =
        Arc::new(PostgresSource::connect(&server.uri_as("odd", "x", "test")).await.unwrap());
    let options = ReadOptions { numeric: NumericRule::TABLE, ..ReadOptions::default() };
    let checked = Checked::open(source.clone(), "wide", options.clone()).await;
    let columns = ["t", "v", "c", "\"Na me\"", "nc", "dom", "e"];
    for column in columns {
        check_text(&checked, column, &TEXTS, true).await;
    }
    for (column, value) in [
        ("j", r#"{"a": 1}"#),
        ("jb", r#"{"a": 1}"#),
        ("ip", "10.0.0.1"),
        ("bits", "101"),
        ("x", "<a/>"),
        ("r", "[1,5)"),
        ("p", "(1,)"),
    ] {
        check_text(&checked, column, &[value, "neither", ""], false).await;
    }
    check_ordered(&checked, "i2", &["cast(3 as smallint)", "cast(-1 as smallint)"]).await;
    check_ordered(&checked, "i4", &["3", "-1", "0"]).await;
    check_ordered(&checked, "i8", &["9000000000", "-9223372036854775808"]).await;
    check_ordered(&checked, "f8", &["0.3", "0.0", "-0.0", "1e300"]).await;
    check_ordered(&checked, "n", &["cast(0.75 as decimal(10, 2))", "cast(-1 as decimal(10, 2))"]).await;
    check_ordered(&checked, "free", &["cast(0.125 as decimal(76, 20))"]).await;
    check_ordered(&checked, "d", &["date '2024-01-03'", "date '0001-01-01'"]).await;
    check_ordered(&checked, "ts", &["timestamp '2024-01-01 00:00:00.000003'"]).await;
    let hour = "arrow_cast(timestamp '2024-01-01 01:00:00', 'Timestamp(Microsecond, Some(\"UTC\"))')";
    check_ordered(&checked, "tz", &[hour]).await;
    checked.check("f4 = cast(0.3 as float)", false).await;
    checked.check("b", true).await;
    checked.check("not b", true).await;
    checked.check("m = cast(3 as decimal(19, 2))", false).await;
    checked.check("(t = 'abc' and c > 'a') or i4 = 3", true).await;
    checked.check("t = 'abc' or c > 'a'", false).await;
    check_nulls(&checked, &["t", "e", "j", "ip", "m", "iv", "l", "u", "y", "x", "r", "n", "d"], true).await;
    check_nulls(&checked, &["p"], false).await;

    // Infinite values are NULL here, but not in the database.
    server.psql(
        "CREATE TABLE endless (id int, d date, ts timestamptz, n numeric(5, 1), f numeric, l date[]);
         INSERT INTO endless VALUES (1, 'infinity', '-infinity', 'NaN', 'Infinity', '{infinity}'), (2, NULL, NULL, NULL, NULL, NULL),
             (3, '2024-01-01', '2024-01-01', 1, 1, '{2024-01-01}')",
    );
    let null = ReadOptions { infinite: InfiniteRule::Null, ..options.clone() };
    let checked = Checked::open(source.clone(), "endless", null).await;
    check_nulls(&checked, &["d", "ts", "n", "f"], false).await;
    checked.check("d > date '2000-01-01'", false).await;
    let text = ReadOptions { infinite: InfiniteRule::Text, ..options.clone() };
    let checked = Checked::open(source.clone(), "endless", text).await;
    check_nulls(&checked, &["d", "ts", "n", "f"], true).await;
    check_text(&checked, "d", &["infinity", "2024-01-01"], false).await;
    for numeric in [NumericRule::String, NumericRule::Double] {
        let options = ReadOptions { numeric, ..options.clone() };
        let checked = Checked::open(source.clone(), "wide", options).await;
        checked.check("free = 0.125", false).await;
        check_nulls(&checked, &["free"], true).await;
    }

    // Texts that the database's encoding can't represent.
    server.psql("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    let uri = server.uri_as(server.user(), server.password(), "latin");
    let latin: Arc<dyn Source> = Arc::new(PostgresSource::connect(&uri).await.unwrap());
    let sql = "CREATE TABLE latin AS SELECT 1 AS id, 'x'::text AS t";
    server.psql(&format!("\\c latin\n{sql}"));
    let checked = Checked::open(latin, "latin", options.clone()).await;
    checked.check("t = 'x'", true).await;
    checked.check("t = '😀'", false).await;
}

#[tokio::test]
async fn mariadb() {
    let server = MariaDb::start_with(&["--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT"]);
    let texts: Vec<String> = TEXTS
        .iter()
        .enumerate()
        .map(|(id, text)| {
            let text = text.replace('\'', "''");
            let latin = if text.is_ascii() { text.as_str() } else { "ü" };
            let label = if ["abc", "paid", ""].contains(&text.as_str()) { text.as_str() } else { "open" };
            format!(
                "({id}, {id}, {id}, {id} * 5000000000, {id}, 18446744073709551615 - {id}, {id} / 10, {id} / 10, {id} / 4, \
                 '{text}', '{text}', '{text}', '{latin}', '{text}', '{label}', '{label}', '{{}}', \
                 '123e4567-e89b-12d3-a456-426655440000', '::1', 5, {year}, DATE '2024-01-01' + INTERVAL {id} DAY, \
                 TIMESTAMP '2024-01-01 00:00:00' + INTERVAL {id} MICROSECOND, '2024-01-01 00:00:00', '12:00:00', '{text}')",
                year = 1968 + id
            )
        })
        .collect();
    server.sql(&format!(
        "SET sql_mode = 'NO_BACKSLASH_ESCAPES';
         CREATE TABLE wide (id int, i1 tinyint, i4 int, i8 bigint, u4 int unsigned, u8 bigint unsigned, f4 float, f8 double,
             n decimal(10, 2), t text, v varchar(20), c char(20), l varchar(20) character set latin1,
             b varchar(20) collate utf8mb4_bin, e enum('paid', 'open', 'abc', ''), s set('paid', 'open', 'abc'), j json,
             u uuid, ip inet6, bits bit(8), y year, d date, dt datetime(6), ts timestamp null, tm time, bin varbinary(40));
         INSERT INTO wide VALUES {};
         INSERT INTO wide (id) VALUES (100);
         CREATE VIEW seen AS SELECT id, CONCAT(v, l) AS joined, v, e, n FROM wide",
        texts.join(", ")
    ));
    let source: Arc<dyn Source> = Arc::new(MySqlSource::connect(&server.uri()).await.unwrap());
    let checked = Checked::open(source.clone(), "wide", ReadOptions::default()).await;
    for column in ["t", "v", "c", "b", "e", "s"] {
        check_text(&checked, column, &TEXTS, true).await;
    }
    for text in TEXTS {
        checked.check(&format!("l = '{}'", text.replace('\'', "''")), text.is_ascii()).await;
    }
    checked.check("l = 'ü'", false).await;
    check_text(&checked, "u", &["123e4567-e89b-12d3-a456-426655440000", "x"], false).await;
    check_text(&checked, "ip", &["::1", "x"], false).await;
    check_text(&checked, "j", &["{}", "{ }"], true).await;
    check_ordered(&checked, "i1", &["cast(3 as tinyint)", "cast(-1 as tinyint)"]).await;
    check_ordered(&checked, "i4", &["3", "-1"]).await;
    check_ordered(&checked, "i8", &["15000000000", "-9223372036854775808"]).await;
    check_ordered(&checked, "u4", &["cast(3 as int unsigned)"]).await;
    check_ordered(&checked, "u8", &["arrow_cast('18446744073709551612', 'UInt64')"]).await;
    check_ordered(&checked, "f8", &["0.3", "0.0", "1e300"]).await;
    check_ordered(&checked, "n", &["cast(0.75 as decimal(10, 2))"]).await;
    check_ordered(&checked, "d", &["date '2024-01-03'", "date '0001-01-01'", "date '9999-12-31'"]).await;
    check_ordered(&checked, "dt", &["timestamp '2024-01-01 00:00:00.000003'"]).await;
    for condition in ["y > cast(70 as smallint)", "y = cast(1970 as smallint)", "f4 = cast(0.3 as float)"] {
        checked.check(condition, false).await;
    }
    checked.check("bits > arrow_cast(3, 'UInt64')", false).await;
    check_nulls(&checked, &["t", "e", "s", "j", "u", "y", "bits", "tm", "bin", "ts", "n"], true).await;

    let checked = Checked::open(source, "seen", ReadOptions::default()).await;
    for column in ["joined", "v", "e"] {
        check_text(&checked, column, &TEXTS, true).await;
    }
    check_ordered(&checked, "n", &["cast(0.75 as decimal(10, 2))"]).await;
}

#[tokio::test]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.db");
    let database = rusqlite::Connection::open(&path).unwrap();
    database.create_collation("ours", |a, b| a.to_lowercase().cmp(&b.to_lowercase())).unwrap();
    database
        .execute_batch(
            "CREATE TABLE wide (id INTEGER, i INT, b BOOLEAN, r REAL, n DECIMAL(10, 2), t TEXT, nc TEXT COLLATE NOCASE,
                 o TEXT COLLATE ours, plain, day DATE, x BLOB, f \"FLOATING POINT\");
             CREATE VIEW seen AS SELECT id, i, t FROM wide WHERE false UNION ALL SELECT id, i, i FROM wide;
             CREATE VIEW mixed AS SELECT id, t AS m FROM wide WHERE false UNION ALL SELECT id, i FROM wide",
        )
        .unwrap();
    for (id, text) in (0_i64..).zip(TEXTS) {
        let plain: rusqlite::types::Value = if id % 2 == 0 { id.into() } else { text.to_owned().into() };
        let number = id as f64 / 10.0;
        database
            .execute(
                "INSERT INTO wide VALUES (?1, ?1, ?1 % 2, ?2, ?1 / 4.0, ?3, ?3, ?3, ?4, ?1, x'00', ?2)",
                rusqlite::params![id, number, text, plain],
            )
            .unwrap();
    }
    database
        .execute_batch(
            "INSERT INTO wide (id) VALUES (100); INSERT INTO wide (id, t, day) VALUES (101, 5, 'x')",
        )
        .unwrap();
    let source: Arc<dyn Source> = Arc::new(SqliteSource::open(&path).unwrap());
    let checked = Checked::open(source.clone(), "wide", ReadOptions::default()).await;
    for column in ["t", "nc", "o"] {
        check_text(&checked, column, &TEXTS, true).await;
    }
    checked.check("t = '5'", true).await;
    // A column that is read as text may store a number.
    for column in ["plain", "day"] {
        check_text(&checked, column, &["2", "abc", "x"], false).await;
    }
    check_ordered(&checked, "i", &["3", "-1", "9223372036854775807"]).await;
    for column in ["r", "n", "f"] {
        check_ordered(&checked, column, &["0.3", "0.0", "0.75"]).await;
    }
    // Digits that SQLite may read as a different number.
    checked.check("r = 0.30000000000000004", false).await;
    checked.check("b", true).await;
    checked.check("not b", true).await;
    check_nulls(&checked, &["i", "b", "r", "t", "o", "plain", "day", "x"], true).await;

    let checked = Checked::open(source.clone(), "seen", ReadOptions::default()).await;
    checked.check("i < 5", false).await;
    checked.check("t = '5'", false).await;
    check_nulls(&checked, &["t"], true).await;
    let checked = Checked::open(source, "mixed", ReadOptions::default()).await;
    checked.check("m = '5'", false).await;

    // Many alternatives are not an error, whether pushed or not.
    let name = "wide";
    let source: Arc<dyn Source> = Arc::new(SqliteSource::open(&path).unwrap());
    let checked = Checked::open(source, name, ReadOptions::default()).await;
    let many = |count: usize| {
        (0..count).map(|n| format!("(i = {n} and r < {n}.5)")).collect::<Vec<_>>().join(" or ")
    };
    checked.check(&many(300), true).await;
    checked.check(&many(600), false).await;
}
