//! Values of PostgreSQL: every type read, and written back.

use std::sync::Arc;

use arrow_schema::{DataType, Field, TimeUnit};
use lightship_sources::postgres::PostgresSource;
use lightship_sources::{InfiniteRule, NumericRule, ReadOptions, Source, SourceError};

use crate::postgres::{query, server, shown, source, streams, whole, write};

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
    // Decimal places that are only shown come from the Arrow type.
    let zeros = "0".repeat(42);
    assert_eq!(text("all_types").replace(&format!("3.25{zeros}"), "3.25"), text("all_types_again"));
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
