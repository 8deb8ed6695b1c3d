//! Tables of every database as destinations. What arrived is read by the database's own means.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array,
    Float64Array, Int64Array, PrimitiveArray, RecordBatch, StringArray, Time64MicrosecondArray,
    TimestampMicrosecondArray, TimestampNanosecondArray, UInt64Array,
};
use arrow_cast::cast;
use arrow_schema::DataType;
use lightship_sources::limit::ConnectionLimits;
use lightship_sources::{
    Location, ReadOptions, Result, SourceError, TableName, TableWrite, WriteMode, open, open_table,
};
use lightship_testkit::arrays;
use lightship_testkit::mariadb::MariaDb;
use rusqlite::types::ValueRef;

use crate::{mysql, postgres, texts};

/// A database that tables are written to.
pub(crate) enum Database {
    Postgres,
    MariaDb(Arc<MariaDb>),
    Sqlite(tempfile::TempDir),
}

/// A server that refuses LOAD DATA LOCAL.
fn without_load() -> Arc<MariaDb> {
    static SERVER: LazyLock<Arc<MariaDb>> =
        LazyLock::new(|| Arc::new(MariaDb::start_with(&["--local-infile=0"])));
    SERVER.clone()
}

/// Every database, and both ways to load rows into MariaDB.
pub(crate) fn databases() -> Vec<(&'static str, Database)> {
    vec![
        ("postgresql", Database::Postgres),
        ("mariadb", Database::MariaDb(mysql::server())),
        ("mariadb without load data", Database::MariaDb(without_load())),
        ("sqlite", Database::Sqlite(tempfile::tempdir().unwrap())),
    ]
}

impl Database {
    fn choose<T>(&self, postgres: T, mariadb: T, sqlite: T) -> T {
        match self {
            Self::Postgres => postgres,
            Self::MariaDb(_) => mariadb,
            Self::Sqlite(_) => sqlite,
        }
    }

    pub(crate) fn location(&self) -> Location {
        match self {
            Self::Postgres => Location::Postgres(postgres::server().uri()),
            Self::MariaDb(server) => Location::MySql(server.uri()),
            Self::Sqlite(dir) => Location::Sqlite(dir.path().join("data.db")),
        }
    }

    /// Runs statements; returns the values, separated by tabs and lines.
    pub(crate) fn sql(&self, sql: &str) -> String {
        match self {
            Self::Postgres => postgres::server().psql(sql),
            Self::MariaDb(server) => server.sql(sql),
            Self::Sqlite(dir) => {
                let connection = rusqlite::Connection::open(dir.path().join("data.db")).unwrap();
                let Ok(mut statement) = connection.prepare(sql) else {
                    connection.execute_batch(sql).unwrap();
                    return String::new();
                };
                if statement.column_count() == 0 {
                    drop(statement);
                    connection.execute_batch(sql).unwrap();
                    return String::new();
                }
                let columns = statement.column_count();
                let mut rows = statement.query([]).unwrap();
                let mut lines = String::new();
                while let Some(row) = rows.next().unwrap() {
                    let value = |at| match row.get_ref(at).unwrap() {
                        ValueRef::Null => String::new(),
                        ValueRef::Integer(value) => value.to_string(),
                        ValueRef::Real(value) => format!("{value:?}"),
                        ValueRef::Text(value) => String::from_utf8(value.to_vec()).unwrap(),
                        ValueRef::Blob(value) => value.iter().map(|byte| format!("{byte:02x}")).collect(),
                    };
                    let values: Vec<_> = (0..columns).map(value).collect();
                    lines += &(values.join("\t") + "\n");
                }
                lines
            }
        }
    }

    /// The result of a query, with NULL as nothing.
    pub(crate) fn rows(&self, sql: &str) -> String {
        let text = self.sql(sql).replace("NULL", "");
        text.strip_suffix('\n').unwrap_or(&text).to_owned()
    }
}

pub(crate) fn name(table: &str) -> TableName {
    TableName { schema: None, name: table.into() }
}

/// Writes batches of the same columns.
pub(crate) async fn copy(database: &Database, write: &TableWrite, batches: &[RecordBatch]) -> Result<u64> {
    let mut destination = open_table(&database.location(), write, &batches[0].schema()).await?;
    for batch in batches {
        destination.write(batch.clone()).await?;
    }
    Ok(destination.finish().await?.rows)
}

async fn append(database: &Database, table: &str, batch: &RecordBatch) -> Result<u64> {
    copy(database, &TableWrite::new(name(table), WriteMode::Append), std::slice::from_ref(batch)).await
}

pub(crate) fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

pub(crate) fn ints(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

pub(crate) fn words<'a>(values: impl IntoIterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_create_append_or_replace() {
    for (what, database) in databases() {
        let copy = async |mode, values: &[i64]| {
            let batch = batch(vec![("a", ints(values.iter().copied()))]);
            self::copy(&database, &TableWrite::new(name("modes"), mode), &[batch]).await
        };
        let rows = || database.rows("SELECT a FROM modes ORDER BY a").replace('\n', " ");
        let missing = copy(WriteMode::Existing, &[1]).await.unwrap_err();
        assert!(matches!(missing, SourceError::NoTable { .. }), "{what}: {missing}");
        assert_eq!(copy(WriteMode::Create, &[1, 2]).await.unwrap(), 2, "{what}");
        assert_eq!(rows(), "1 2", "{what}");
        let exists = copy(WriteMode::Create, &[3]).await.unwrap_err().to_string();
        assert!(exists.contains("already exists"), "{what}: {exists}");
        copy(WriteMode::Append, &[3]).await.unwrap();
        copy(WriteMode::Existing, &[4]).await.unwrap();
        assert_eq!(rows(), "1 2 3 4", "{what}");
        copy(WriteMode::Replace, &[9]).await.unwrap();
        assert_eq!(rows(), "9", "{what}");
        // Into a table that is missing, and without rows.
        database.sql("DROP TABLE modes");
        copy(WriteMode::Replace, &[]).await.unwrap();
        assert_eq!(rows(), "", "{what}");
        database.sql("DROP TABLE modes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_copy_changes_nothing() {
    for (what, database) in databases() {
        database.sql("CREATE TABLE kept (kept_a bigint PRIMARY KEY, b varchar(9))");
        database.sql("INSERT INTO kept VALUES (7, 'old')");
        let rows = |from| batch(vec![("kept_a", ints(from..from + 5000)), ("b", words(vec!["new"; 5000]))]);
        for mode in [WriteMode::Append, WriteMode::Existing] {
            // The second batch has a key that exists.
            let write = TableWrite::new(name("kept"), mode);
            let duplicate = copy(&database, &write, &[rows(10_000), rows(5)]).await.unwrap_err();
            assert!(matches!(duplicate, SourceError::Sql { .. }), "{what}: {duplicate:?}");
        }
        let wrong = batch(vec![("kept_a", ints([8, 9])), ("b", words(["x", "longer than nine"]))]);
        if !matches!(database, Database::Sqlite(_)) {
            let unfit = append(&database, "kept", &wrong).await.unwrap_err();
            let SourceError::Unfit { row: 2, column, .. } = &unfit else { panic!("{what}: {unfit:?}") };
            assert_eq!(column, "b", "{what}");
        }
        for mode in [WriteMode::Append, WriteMode::Replace, WriteMode::Upsert] {
            // Abandoned after some rows.
            let key = if mode == WriteMode::Upsert { vec!["kept_a".to_owned()] } else { vec![] };
            let write = TableWrite { table: name("kept"), mode, key };
            let mut destination = open_table(&database.location(), &write, &rows(0).schema()).await.unwrap();
            destination.write(rows(20_000)).await.unwrap();
            destination.write(rows(30_000)).await.unwrap();
            drop(destination);
        }
        assert_eq!(database.rows("SELECT kept_a, b FROM kept"), "7\told", "{what}");
        // Those of other tests have other columns.
        let tables = match &database {
            Database::Postgres => {
                "SELECT attrelid::regclass FROM pg_attribute \
                 WHERE attname = 'kept_a' AND attrelid::regclass::text LIKE '%lightship%'"
            }
            Database::MariaDb(_) => {
                "SELECT table_name FROM information_schema.columns \
                 WHERE column_name = 'kept_a' AND table_name LIKE 'lightship%'"
            }
            Database::Sqlite(_) => "SELECT name FROM sqlite_schema WHERE name LIKE 'lightship%'",
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !database.rows(tables).is_empty() {
            assert!(Instant::now() < deadline, "{what}: a table stays");
        }
        database.sql("DROP TABLE kept");
    }
}

/// Values of a type that no database has.
fn unions() -> ArrayRef {
    let fields = [(0, Arc::new(arrow_schema::Field::new("a", DataType::Int64, true)))];
    let data_type = DataType::Union(fields.into_iter().collect(), arrow_schema::UnionMode::Sparse);
    arrow_array::new_empty_array(&data_type)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_that_do_not_fit_are_refused_before_any_row() {
    for (what, database) in databases() {
        database.sql("CREATE TABLE fits (a bigint, d real)");
        let write = |mode| TableWrite::new(name("fits"), mode);
        let refused = async |write: &TableWrite, columns| {
            let batch = batch(columns);
            match open_table(&database.location(), write, &batch.schema()).await {
                Err(error) => error,
                Ok(_) => panic!("{what}: accepted"),
            }
        };
        let missing = refused(&write(WriteMode::Append), vec![("z", ints([1]))]).await;
        assert!(
            matches!(&missing, SourceError::Value { column, reason } if column == "z" && reason.contains("a, d")),
            "{what}: {missing}"
        );
        let date: ArrayRef = Arc::new(Date32Array::from(vec![1]));
        let wrong = refused(&write(WriteMode::Append), vec![("a", date)]).await;
        assert!(matches!(&wrong, SourceError::Value { column, .. } if column == "a"), "{what}: {wrong}");
        let union = refused(&write(WriteMode::Replace), vec![("n", unions())]).await;
        assert!(matches!(&union, SourceError::Unsupported(_)), "{what}: {union}");
        // The table that was to replace it is gone.
        assert_eq!(database.rows("SELECT count(*) FROM fits"), "0", "{what}");
        database.sql("DROP TABLE fits");
    }
}

/// Columns of many types, and what each database prints of them.
fn columns() -> Vec<(&'static str, ArrayRef)> {
    let decimals =
        Decimal128Array::from(vec![Some(1250), Some(-5), None]).with_precision_and_scale(12, 2).unwrap();
    let wide = Decimal128Array::from(vec![Some(i128::from(u64::MAX) * 100 + 1), Some(-1), None]);
    let dictionary: DictionaryArray<arrow_array::types::Int32Type> =
        vec![Some("x"), Some("é\t\\N\n'\"\u{1f600}"), None].into_iter().collect();
    vec![
        ("n", ints([1, 2, 3])),
        ("b", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None]))),
        ("i8", Arc::new(arrow_array::Int8Array::from(vec![Some(i8::MIN), Some(i8::MAX), None]))),
        ("i64", Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(i64::MAX), None]))),
        ("u32", Arc::new(arrow_array::UInt32Array::from(vec![Some(u32::MAX), Some(0), None]))),
        ("f32", Arc::new(Float32Array::from(vec![Some(0.1), Some(-1.5e30), None]))),
        ("f64", Arc::new(Float64Array::from(vec![Some(0.1), Some(1e300), None]))),
        ("amount", Arc::new(decimals)),
        ("wide", Arc::new(wide.with_precision_and_scale(38, 2).unwrap())),
        ("s", Arc::new(dictionary)),
        ("bin", Arc::new(BinaryArray::from_opt_vec(vec![Some(b"\x00\xff\t\n\\"), Some(b""), None]))),
        ("d", Arc::new(Date32Array::from(vec![Some(-1), Some(19_782), None]))),
        ("t", Arc::new(Time64MicrosecondArray::from(vec![Some(0), Some(86_399_999_999), None]))),
        ("ts", Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), Some(1_709_200_000_000_001), None]))),
        (
            "tz",
            Arc::new(
                TimestampMicrosecondArray::from(vec![Some(1_000_000), Some(1_709_200_000_000_000), None])
                    .with_timezone("Europe/Paris"),
            ),
        ),
        ("z", Arc::new(arrow_array::NullArray::new(3))),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_every_kind_are_printed_by_the_database_as_they_were() {
    for (what, database) in databases() {
        append(&database, "kinds", &batch(columns())).await.unwrap();
        let print = |column: &str, expected: [&str; 2]| {
            let found = database.rows(&format!("SELECT {column} FROM kinds WHERE n < 3 ORDER BY n"));
            assert_eq!(found.split('\n').collect::<Vec<_>>(), expected, "{what}: {column}");
        };
        let is = |postgres, mariadb, sqlite| database.choose(postgres, mariadb, sqlite);
        let are = |postgres, mariadb, sqlite| database.choose(postgres, mariadb, sqlite);
        print(is("b::text", "b", "b"), are(["true", "false"], ["1", "0"], ["1", "0"]));
        print("i8", ["-128", "127"]);
        print("i64", ["-9223372036854775808", "9223372036854775807"]);
        print("u32", ["4294967295", "0"]);
        print(is("f64", "f64", "f64"), are(["0.1", "1e+300"], ["0.1", "1e300"], ["0.1", "1e300"]));
        // A float of SQLite has 64 bits.
        print(
            "f32",
            are(["0.1", "-1.5e+30"], ["0.1", "-1.5e30"], ["0.10000000149011612", "-1.4999999470133356e30"]),
        );
        print("amount", are(["12.50", "-0.05"], ["12.50", "-0.05"], ["12.5", "-0.05"]));
        print("wide", ["18446744073709551615.01", "-0.01"]);
        let hex = is("encode(convert_to(s, 'utf8'), 'hex')", "lower(hex(s))", "lower(hex(s))");
        print(hex, ["78", "c3a9095c4e0a2722f09f9880"]);
        print(is("encode(bin, 'hex')", "lower(hex(bin))", "lower(hex(bin))"), ["00ff090a5c", ""]);
        print("d", ["1969-12-31", "2024-02-29"]);
        print(
            "t",
            are(
                ["00:00:00", "23:59:59.999999"],
                ["00:00:00.000000", "23:59:59.999999"],
                ["00:00:00", "23:59:59.999999"],
            ),
        );
        print("ts", ["1969-12-31 23:59:59.999999", "2024-02-29 09:46:40.000001"]);
        print(
            is("tz AT TIME ZONE 'UTC'", "tz", "tz"),
            are(
                ["1970-01-01 00:00:01", "2024-02-29 09:46:40"],
                ["1970-01-01 00:00:01.000000", "2024-02-29 09:46:40.000000"],
                ["1970-01-01 00:00:01Z", "2024-02-29 09:46:40Z"],
            ),
        );
        let nulls = columns().iter().skip(1).map(|(name, _)| format!("{name} IS NULL")).collect::<Vec<_>>();
        let nulls =
            database.rows(&format!("SELECT count(*) FROM kinds WHERE n = 3 AND {}", nulls.join(" AND ")));
        assert_eq!(nulls, "1", "{what}");
        database.sql("DROP TABLE kinds");
    }
}

/// The same value, whatever the type is that a database has for it.
fn normal(text: &str) -> String {
    let text = text.trim_end_matches('Z').replace('T', " ").to_lowercase();
    let text = match text.as_str() {
        "true" => "1",
        "false" => "0",
        // A day as a time.
        text => text.strip_suffix(" 00:00:00").unwrap_or(text),
    };
    match text.parse::<f64>() {
        Ok(_) if text.contains('.') && !text.contains('e') => {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ if text.contains(':') && text.contains('.') => {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => text.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_values_of_every_type_are_stored_or_refused() {
    const ROWS: usize = 30;
    for (what, database) in databases() {
        if matches!(database, Database::Postgres) {
            // See `copy_in`.
            continue;
        }
        let (mut stored, mut refused) = (0, 0);
        for seed in 0..2 {
            let random = arrays::every_type(ROWS, seed);
            for (at, array) in random.columns().iter().enumerate() {
                let column = batch(vec![("n", ints(0..ROWS as i64)), ("c", array.clone())]);
                let table = format!("random_{seed}_{at}");
                // Each row alone, so that those that fit are known.
                let mut fit = vec![];
                for row in 0..ROWS {
                    match append(&database, &table, &column.slice(row, 1)).await {
                        Ok(_) => fit.push(row),
                        Err(SourceError::Unfit { row: 1, column, .. }) if column == "c" => refused += 1,
                        // A type for which the database has no column.
                        Err(SourceError::Unsupported(_)) => break,
                        Err(error) => panic!("{what}: {}: {error:?}", array.data_type()),
                    }
                    if row > 8 && what.contains("mariadb") {
                        break;
                    }
                }
                if !fit.is_empty() {
                    let source = open(&database.location(), &ConnectionLimits::unlimited()).await.unwrap();
                    let sql = format!("SELECT c FROM {table} ORDER BY n");
                    let back =
                        texts(source.query(&sql, &ReadOptions::default()).await.unwrap()).await.unwrap();
                    let found: Vec<_> = back.iter().map(|row| normal(&row[0])).collect();
                    let plain = match array.data_type() {
                        DataType::Dictionary(_, values) => cast(array, values).unwrap(),
                        DataType::RunEndEncoded(_, values) => cast(array, values.data_type()).unwrap(),
                        _ => array.clone(),
                    };
                    let plain = match plain.data_type() {
                        DataType::Timestamp(unit, Some(_)) => {
                            cast(&plain, &DataType::Timestamp(*unit, Some("UTC".into()))).unwrap()
                        }
                        _ => plain,
                    };
                    let options = arrow_cast::display::FormatOptions::new().with_null("NULL");
                    let wanted = arrow_cast::display::ArrayFormatter::try_new(&plain, &options).unwrap();
                    let kind = plain.data_type();
                    let is_other = match kind {
                        // Printed in other words, or as the nearest float of 64 bits.
                        DataType::Duration(_) | DataType::Interval(_) | DataType::Float16 => true,
                        DataType::Float32 => what == "sqlite",
                        // The type is a span of time there.
                        DataType::Time32(_) | DataType::Time64(_) => what != "sqlite",
                        _ => false,
                    };
                    for (row, found) in fit.iter().zip(&found) {
                        let wanted = normal(&wanted.value(*row).to_string());
                        if kind.is_nested() && found != "null" {
                            let json = serde_json::from_str::<serde_json::Value>(found);
                            assert!(
                                json.is_ok_and(|json| json.is_array() || json.is_object()),
                                "{what}: {kind}: {found}"
                            );
                            stored += 1;
                            continue;
                        }
                        let same = match (wanted.parse::<f64>(), found.parse::<f64>()) {
                            (Ok(wanted), Ok(found))
                                if kind.is_floating() || kind.is_decimal() && what == "sqlite" =>
                            {
                                wanted == found
                            }
                            _ => wanted == *found,
                        };
                        stored += 1;
                        assert!(same || is_other, "{what}: {kind}: {found} for {wanted}");
                    }
                    assert_eq!(found.len(), fit.len());
                }
                database.sql(&format!("DROP TABLE IF EXISTS {table}"));
            }
        }
        assert!(stored > 300 && refused > 20, "{what}: {stored} stored, {refused} refused");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_a_column_would_change_are_refused() {
    let mariadb: Vec<(&str, ArrayRef)> = vec![
        ("tinyint", ints([1, 128])),
        ("tinyint unsigned", ints([1, -1])),
        ("decimal(6, 2)", Arc::new(Float64Array::from(vec![1.25, 1.255]))),
        ("decimal(6, 2)", words(["1.25", "1.255"])),
        ("float", Arc::new(Float64Array::from(vec![0.5, 0.123_456_789_012]))),
        ("double", Arc::new(Float64Array::from(vec![0.5, f64::NAN]))),
        ("datetime(3)", Arc::new(TimestampNanosecondArray::from(vec![1_000_000, 1_001_000]))),
        ("timestamp", Arc::new(TimestampMicrosecondArray::from(vec![1_000_000, -1_000_000]))),
        ("date", words(["2024-02-29", "2023-02-29"])),
        ("varchar(3)", words(["äöü", "abcd"])),
        ("varchar(3)", words(["abc", "abc "])),
        ("char(3)", words(["a", "a "])),
        ("varchar(9) CHARACTER SET latin1", words(["é", "漢"])),
        ("tinytext", words(["x", &"x".repeat(256)])),
        ("varbinary(2)", Arc::new(BinaryArray::from(vec![b"ab" as &[u8], b"abc"]))),
        ("binary(2)", Arc::new(BinaryArray::from(vec![b"ab" as &[u8], b"a"]))),
        ("enum('a', 'b')", words(["a", "2"])),
        ("set('a', 'b')", words(["a,b", "b,a"])),
        ("year", ints([1999, 99])),
        ("int NOT NULL", Arc::new(Int64Array::from(vec![Some(0), None]))),
        ("uuid", words(["123e4567-e89b-12d3-a456-426614174000", "x"])),
        (
            "time",
            Arc::new(PrimitiveArray::<arrow_array::types::DurationSecondType>::from(vec![
                3_020_399, 3_020_400,
            ])),
        ),
    ];
    let sqlite: Vec<(&str, ArrayRef)> = vec![
        ("INTEGER", Arc::new(UInt64Array::from(vec![1, u64::MAX]))),
        ("INTEGER", words(["7", "x"])),
        ("INTEGER", Arc::new(Float64Array::from(vec![1.0, 1.5]))),
        ("REAL", Arc::new(Float64Array::from(vec![1.0, f64::NAN]))),
        ("REAL", ints([1 << 53, (1 << 53) + 1])),
        ("DATE", words(["2024-02-29", "0020240229"])),
        ("TEXT", Arc::new(Date32Array::from(vec![0, i32::MAX]))),
    ];
    let check = async |what: &str, database: &Database, column: &str, values: ArrayRef| {
        database.sql("DROP TABLE IF EXISTS narrow");
        database.sql(&format!("CREATE TABLE narrow (a {column})"));
        let values = batch(vec![("a", values)]);
        append(database, "narrow", &values.slice(0, 1))
            .await
            .unwrap_or_else(|e| panic!("{what}: {column}: {e}"));
        let error = append(database, "narrow", &values).await.unwrap_err();
        let SourceError::Unfit { row: 2, column: of, hint: Some(_), .. } = &error else {
            panic!("{what}: {column}: {error:?}")
        };
        assert_eq!(of, "a", "{what}: {column}");
        assert_eq!(database.rows("SELECT count(*) FROM narrow"), "1", "{what}: {column}");
    };
    for (what, database) in databases() {
        let cases = match database {
            Database::Postgres => continue,
            Database::MariaDb(_) => &mariadb,
            Database::Sqlite(_) => &sqlite,
        };
        for (column, values) in cases {
            check(what, &database, column, values.clone()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_rows_arrive_in_order_and_are_counted() {
    for (what, database) in databases() {
        let text = "x".repeat(3 << 20);
        let large = batch(vec![("n", ints([1, 2, 3])), ("s", words([&*text; 3]))]);
        let small = |from: i64| batch(vec![("n", ints(from..from + 3000)), ("s", words(vec!["y"; 3000]))]);
        let write = TableWrite::new(name("large"), WriteMode::Create);
        let rows = copy(&database, &write, &[large.clone(), small(4), small(3004)]).await.unwrap();
        assert_eq!(rows, 6003, "{what}");
        let sums = database.rows("SELECT count(*), sum(n), sum(length(s)) FROM large");
        assert_eq!(sums, format!("6003\t{}\t{}", 6003 * 6004 / 2, 3 * text.len() + 6000), "{what}");
        let refused = batch(vec![("n", ints([1])), ("s", words(["z"]))]);
        let mut destination =
            open_table(&database.location(), &write_append("large"), &refused.schema()).await.unwrap();
        destination.write(refused).await.unwrap();
        assert_eq!(destination.finish().await.unwrap().rows, 1, "{what}");
        database.sql("DROP TABLE large");
    }
}

fn write_append(table: &str) -> TableWrite {
    TableWrite::new(name(table), WriteMode::Append)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_data_is_used_where_the_server_allows_it() {
    for (option, loads) in [("--local-infile=1", true), ("--local-infile=0", false)] {
        let server = Arc::new(MariaDb::start_with(&[option]));
        let database = Database::MariaDb(server.clone());
        append(&database, "loaded", &batch(vec![("a", ints([1, 2]))])).await.unwrap();
        let status = server.sql("SHOW GLOBAL STATUS LIKE 'Com_insert'");
        let inserts: u64 = status.trim().rsplit('\t').next().unwrap().parse().unwrap();
        // Otherwise two rows in one statement.
        assert_eq!(inserts, u64::from(!loads), "{option}");
        assert_eq!(database.rows("SELECT count(*) FROM loaded"), "2", "{option}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_without_transactions_are_only_replaced() {
    let database = Database::MariaDb(mysql::server());
    database.sql("CREATE TABLE plain_rows (a bigint) ENGINE = MyISAM; INSERT INTO plain_rows VALUES (1)");
    let rows = batch(vec![("a", ints([2]))]);
    let error = append(&database, "plain_rows", &rows).await.unwrap_err();
    assert!(
        matches!(&error, SourceError::Sql { hint: Some(hint), .. } if hint.contains("InnoDB")),
        "{error:?}"
    );
    copy(&database, &TableWrite::new(name("plain_rows"), WriteMode::Replace), &[rows]).await.unwrap();
    assert_eq!(database.rows("SELECT a FROM plain_rows"), "2");
    // A table that others refer to stays.
    database.sql(
        "CREATE TABLE parent_rows (a bigint PRIMARY KEY);
         CREATE TABLE child_rows (a bigint, FOREIGN KEY (a) REFERENCES parent_rows (a))",
    );
    let rows = batch(vec![("a", ints([2]))]);
    let error = copy(&database, &TableWrite::new(name("parent_rows"), WriteMode::Replace), &[rows])
        .await
        .unwrap_err();
    assert!(error.to_string().contains("child_rows"), "{error}");
    database.sql("DROP TABLE child_rows, parent_rows, plain_rows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_others_refer_to_are_not_replaced_in_sqlite() {
    let database = Database::Sqlite(tempfile::tempdir().unwrap());
    database.sql(
        "CREATE TABLE parent (a INTEGER PRIMARY KEY, b INTEGER REFERENCES parent);
         CREATE TABLE child (a INTEGER REFERENCES Parent ON DELETE CASCADE);
         INSERT INTO parent VALUES (1, NULL); INSERT INTO child VALUES (1)",
    );
    let replace = async |table: &str| {
        let write = TableWrite::new(name(table), WriteMode::Replace);
        copy(&database, &write, &[batch(vec![("a", ints([2]))])]).await
    };
    let error = replace("parent").await.unwrap_err();
    assert!(error.to_string().contains("child"), "{error}");
    assert_eq!(database.rows("SELECT p.a, c.a FROM parent p, child c"), "1\t1");
    // It may refer to itself.
    database.sql("DROP TABLE child");
    replace("parent").await.unwrap();
    assert_eq!(database.rows("SELECT a FROM parent"), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_that_need_a_value_or_get_two_are_refused() {
    for (what, database) in databases() {
        let required = match &database {
            Database::Postgres => continue,
            Database::MariaDb(_) => {
                "CREATE TABLE needs (a bigint, id bigint AUTO_INCREMENT PRIMARY KEY, \
                 d bigint NOT NULL DEFAULT 7, g bigint AS (a + 1), b bigint NOT NULL)"
            }
            Database::Sqlite(_) => "CREATE TABLE needs (a INTEGER, b INTEGER NOT NULL)",
        };
        database.sql(required);
        let error = append(&database, "needs", &batch(vec![("a", ints([1]))])).await.unwrap_err();
        assert!(
            matches!(&error, SourceError::Value { column, .. } if column == "b") || what == "sqlite",
            "{what}: {error:?}"
        );
        append(&database, "needs", &batch(vec![("b", ints([2]))])).await.unwrap();
        assert_eq!(database.rows("SELECT count(*), sum(b) FROM needs"), "1\t2", "{what}");
        let twice = batch(vec![("b", ints([1])), ("B", ints([2]))]);
        let error = append(&database, "needs", &twice).await.unwrap_err();
        assert!(matches!(&error, SourceError::Value { column, .. } if column == "B"), "{what}: {error:?}");
        database.sql("DROP TABLE needs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_an_sqlite_table_would_skip_or_replace_are_errors() {
    let database = Database::Sqlite(tempfile::tempdir().unwrap());
    let rows = batch(vec![("a", ints([1, 2]))]);
    for rule in ["IGNORE", "REPLACE"] {
        database.sql(&format!("CREATE TABLE rules (a INTEGER UNIQUE ON CONFLICT {rule}, b DEFAULT 'old')"));
        database.sql("INSERT INTO rules (a) VALUES (2)");
        let error = append(&database, "rules", &rows).await.unwrap_err();
        assert!(error.to_string().contains("row 2: UNIQUE"), "{rule}: {error}");
        // An upsert updates the row.
        let write = TableWrite::upsert(name("rules"), vec!["a".into()]);
        copy(&database, &write, std::slice::from_ref(&rows)).await.unwrap();
        assert_eq!(database.rows("SELECT a, b FROM rules ORDER BY a"), "1\told\n2\told", "{rule}");
        database.sql("DROP TABLE rules");
    }
    database.sql(
        "CREATE TABLE skips (a INTEGER); CREATE TABLE seen (a INTEGER UNIQUE); INSERT INTO seen VALUES (1);
         CREATE TRIGGER note AFTER INSERT ON skips BEGIN INSERT OR IGNORE INTO seen VALUES (NEW.a); END",
    );
    // The rules of statements in triggers stay.
    append(&database, "skips", &rows).await.unwrap();
    assert_eq!(database.rows("SELECT count(*) FROM seen"), "2");
    database.sql("CREATE TRIGGER skip BEFORE INSERT ON skips WHEN NEW.a = 2 BEGIN SELECT RAISE(IGNORE); END");
    let error = append(&database, "skips", &rows).await.unwrap_err();
    assert!(error.to_string().contains("took 1 of 2 rows"), "{error}");
    assert_eq!(database.rows("SELECT count(*) FROM skips"), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_sqlite_file_can_be_copied_into_itself_and_is_made_if_missing() {
    let database = Database::Sqlite(tempfile::tempdir().unwrap());
    let Location::Sqlite(path) = database.location() else { unreachable!() };
    // A copy that fails leaves no file.
    append(&database, "t", &batch(vec![("a", unions())])).await.unwrap_err();
    assert!(!path.exists());
    // One that fails later keeps the file for another that uses it.
    let row = batch(vec![("a", ints([1]))]);
    let failing = open_table(&database.location(), &write_append("other"), &row.schema()).await.unwrap();
    let mut other = open_table(&database.location(), &write_append("other"), &row.schema()).await.unwrap();
    drop(failing);
    other.write(row).await.unwrap();
    other.finish().await.unwrap();
    assert_eq!(database.rows("SELECT a FROM other"), "1");
    let rows = batch(vec![("a", ints(0..20_000)), ("s", words(vec!["some text"; 20_000]))]);
    append(&database, "t", &rows).await.unwrap();
    let source = open(&database.location(), &ConnectionLimits::unlimited()).await.unwrap();
    let options = ReadOptions { batch_rows: 100, ..ReadOptions::default() };
    let mut rows = source.query("SELECT a + 20000 AS a, s FROM t", &options).await.unwrap();
    let mut destination = open_table(&database.location(), &write_append("t"), &rows.schema).await.unwrap();
    while let Some(batch) = futures::TryStreamExt::try_next(&mut rows.batches).await.unwrap() {
        destination.write(batch).await.unwrap();
    }
    assert_eq!(destination.finish().await.unwrap().rows, 20_000);
    assert_eq!(database.rows("SELECT count(*), sum(a) FROM t"), format!("40000\t{}", 20_000i64 * 39_999));
    let folder = Location::Sqlite(path.join("missing").join("x.db"));
    let error = open_table(&folder, &write_append("t"), &rows.schema).await.err().unwrap();
    assert!(matches!(error, SourceError::Io { .. }), "{error:?}");
}
