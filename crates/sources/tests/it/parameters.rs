//! Statements with parameters.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float64Array,
    Int64Array, ListArray, NullArray, RecordBatch, RecordBatchOptions, StringArray,
    TimestampMicrosecondArray, UInt64Array, types::Int64Type,
};
use arrow_schema::{Field, Schema};
use lightship_sources::{ReadOptions, Result, Source, SourceError};

use super::{mysql, postgres, sqlite, texts};

fn row(values: Vec<ArrayRef>) -> RecordBatch {
    let fields = values.iter().enumerate();
    let fields =
        fields.map(|(index, value)| Field::new(format!("${}", index + 1), value.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    RecordBatch::try_new_with_options(schema, values, &options).unwrap()
}

fn int(value: i64) -> ArrayRef {
    Arc::new(Int64Array::from(vec![value]))
}

fn text(value: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![value]))
}

fn null() -> ArrayRef {
    Arc::new(NullArray::new(1))
}

/// 2024-02-29 12:34:56.
const US: i64 = 1_709_210_096_000_000;

async fn answer(source: &dyn Source, sql: &str, values: Vec<ArrayRef>) -> Result<Vec<Vec<String>>> {
    texts(source.execute(sql, &row(values), &ReadOptions::default()).await?).await
}

async fn check(source: &dyn Source, sql: &str, values: Vec<ArrayRef>, expected: &[&str]) {
    let found = answer(source, sql, values).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(found, [expected], "{sql}");
}

/// The reason why the values are refused.
async fn refused(source: &dyn Source, sql: &str, values: Vec<ArrayRef>) -> String {
    match answer(source, sql, values).await {
        Err(SourceError::Parameters { reason, hint }) => {
            assert!(!hint.is_empty());
            reason
        }
        other => panic!("{sql}: {other:?}"),
    }
}

#[tokio::test]
async fn postgresql_gets_values_in_its_own_types() {
    let source = postgres::source().await;
    postgres::server().psql(
        "CREATE TABLE parameters (i int, n numeric, t text, d date);
         INSERT INTO parameters SELECT g, g * 1.5, 'row ' || g, date '2024-02-28' + g FROM generate_series(1, 9) g",
    );
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(3), None, Some(4)])]);
    let uuid = FixedSizeBinaryArray::try_from_iter([[7u8; 16]].into_iter()).unwrap();
    for (sql, values, expected) in [
        ("SELECT t FROM parameters WHERE i = $1", vec![int(3)], vec!["row 3"]),
        ("SELECT t FROM parameters WHERE i = $1", vec![text("4")], vec!["row 4"]),
        ("SELECT i FROM parameters WHERE t = $2 AND i < $1", vec![int(9), text("row 5")], vec!["5"]),
        ("SELECT count(*) FROM parameters WHERE t = $1", vec![text("' OR true --")], vec!["0"]),
        (
            "SELECT i FROM parameters WHERE n = $1",
            vec![Arc::new(Decimal128Array::from(vec![450]).with_precision_and_scale(5, 2).unwrap())],
            vec!["3"],
        ),
        ("SELECT i FROM parameters WHERE d = $1", vec![Arc::new(Date32Array::from(vec![19_782]))], vec!["1"]),
        (
            "SELECT $1::timestamptz = '2024-02-29 12:34:56Z', $2::timestamp::text",
            vec![
                Arc::new(TimestampMicrosecondArray::from(vec![US]).with_timezone("UTC")),
                Arc::new(TimestampMicrosecondArray::from(vec![US])),
            ],
            vec!["true", "2024-02-29 12:34:56"],
        ),
        (
            "SELECT $1::text IS NULL, $2::int IS NULL, $3::bool, $4::float8, $5::text",
            vec![
                null(),
                Arc::new(StringArray::from(vec![None::<&str>])),
                Arc::new(BooleanArray::from(vec![true])),
                Arc::new(Float64Array::from(vec![0.1])),
                int(12),
            ],
            vec!["true", "true", "true", "0.1", "12"],
        ),
        ("SELECT count(*) FROM parameters WHERE i = ANY($1::bigint[])", vec![Arc::new(list)], vec!["2"]),
        (
            "SELECT encode($1, 'hex')",
            vec![Arc::new(BinaryArray::from(vec![[0u8, 255].as_slice()]))],
            vec!["00ff"],
        ),
        ("SELECT left($1::uuid::text, 4)", vec![Arc::new(uuid)], vec!["0707"]),
    ] {
        check(&source, sql, values, &expected).await;
    }
    let refused = async |sql, values| refused(&source, sql, values).await;
    assert_eq!(
        refused("SELECT $1::int", vec![int(1), int(2)]).await,
        "the statement has 1 parameter, but 2 values were given"
    );
    assert!(refused("SELECT $1::date", vec![int(1)]).await.contains("parameter $1: a value of type Int64"));
    assert!(refused("SELECT $1::smallint", vec![int(100_000)]).await.starts_with("parameter $1: "));
    assert!(refused("SELECT $1::text", vec![text("a\0b")]).await.contains("NUL"));
    // The text is refused by the server.
    let error = answer(&source, "SELECT $1::int", vec![text("x")]).await.unwrap_err();
    assert!(matches!(&error, SourceError::Sql { code: Some(code), .. } if code == "22P02"), "{error}");
    let two: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let rows = RecordBatch::try_from_iter([("a", two)]).unwrap();
    let several = source.execute("SELECT $1::int", &rows, &ReadOptions::default()).await.unwrap_err();
    assert!(several.to_string().contains("2 rows"), "{several}");
    let options = ReadOptions::default();
    let info = source.describe("SELECT i, t FROM parameters WHERE d > $1 AND n < $2", &options);
    let info = info.await.unwrap();
    let shown = |schema: &arrow_schema::Schema| -> Vec<String> {
        schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect()
    };
    assert_eq!(shown(&info.columns), ["i Int32", "t Utf8"]);
    assert_eq!(shown(&info.parameters), ["$1 Date32", "$2 Utf8"]);
    // The source still works.
    check(&source, "SELECT 1", vec![], &["1"]).await;
}

#[tokio::test]
async fn mysql_gets_values_in_its_own_types() {
    let server = mysql::server();
    let source = mysql::connect(&server).await;
    server.sql(
        "CREATE TABLE parameters (i int, t varchar(20), d date, b binary(2));
         INSERT INTO parameters VALUES (1, 'one', '2024-02-29', x'00ff'), (2, 'zwei ü', NULL, NULL)",
    );
    for (sql, values, expected) in [
        ("SELECT t FROM parameters WHERE i = ?", vec![int(2)], vec!["zwei ü"]),
        ("SELECT i FROM parameters WHERE t = ? AND i > ?", vec![text("zwei ü"), int(1)], vec!["2"]),
        ("SELECT COUNT(*) FROM parameters WHERE t = ?", vec![text("' OR 1 = 1 -- ")], vec!["0"]),
        ("SELECT i FROM parameters WHERE d = ?", vec![Arc::new(Date32Array::from(vec![19_782]))], vec!["1"]),
        (
            "SELECT i FROM parameters WHERE b = ?",
            vec![Arc::new(BinaryArray::from(vec![[0u8, 255].as_slice()]))],
            vec!["1"],
        ),
        (
            "SELECT CAST(? AS DATETIME(6)) = '2024-02-29 12:34:56', ? IS NULL, CAST(? AS UNSIGNED)",
            vec![
                Arc::new(TimestampMicrosecondArray::from(vec![US]).with_timezone("UTC")),
                null(),
                Arc::new(UInt64Array::from(vec![u64::MAX])),
            ],
            vec!["1", "1", "18446744073709551615"],
        ),
    ] {
        check(&source, sql, values, &expected).await;
    }
    let refused = async |sql, values| refused(&source, sql, values).await;
    assert_eq!(refused("SELECT ?", vec![]).await, "the statement has 1 parameter, but 0 values were given");
    assert!(refused("SELECT ?", vec![Arc::new(Decimal128Array::from(vec![1]))]).await.contains("Decimal128"));
    let nan = refused("SELECT ?", vec![Arc::new(Float64Array::from(vec![f64::NAN]))]).await;
    assert!(nan.contains("NaN"), "{nan}");
    let named = answer(&source, "SELECT :a", vec![int(1)]).await.unwrap_err();
    assert!(matches!(named, SourceError::Unsupported(_)), "{named}");
    let info =
        source.describe("SELECT i FROM parameters WHERE t = ?", &ReadOptions::default()).await.unwrap();
    assert_eq!((info.columns.field(0).name().as_str(), info.parameters.fields().len()), ("i", 1));
}

#[tokio::test]
async fn sqlite_gets_values_in_its_own_types() {
    let database = sqlite::database(
        "CREATE TABLE t (i INTEGER, name TEXT, x BLOB);
         INSERT INTO t VALUES (1, 'one', x'00ff'), (2, 'two', NULL)",
    );
    let source = &database.source;
    for (sql, values, expected) in [
        ("SELECT name FROM t WHERE i = ?", vec![int(2)], vec!["two"]),
        ("SELECT name FROM t WHERE i = ?2 AND name <> ?1", vec![text("x"), text("1")], vec!["one"]),
        ("SELECT COUNT(*) FROM t WHERE name = $name", vec![text("' OR 1 --")], vec!["0"]),
        (
            "SELECT i FROM t WHERE x = ?",
            vec![Arc::new(BinaryArray::from(vec![[0u8, 255].as_slice()]))],
            vec!["1"],
        ),
        (
            "SELECT typeof(?), typeof(?)",
            vec![Arc::new(Float64Array::from(vec![1.0])), null()],
            vec!["real", "null"],
        ),
    ] {
        check(source, sql, values, &expected).await;
    }
    let reason = refused(source, "SELECT ?", vec![int(1), int(2)]).await;
    assert_eq!(reason, "the statement has 1 parameter, but 2 values were given");
    let reason = refused(source, "SELECT ?", vec![Arc::new(Date32Array::from(vec![1]))]).await;
    assert!(reason.contains("no values of type Date32"), "{reason}");
    let reason = refused(source, "SELECT ?", vec![Arc::new(Float64Array::from(vec![f64::NAN]))]).await;
    assert!(reason.contains("NaN"), "{reason}");
    let info = source.describe("SELECT i FROM t WHERE name = ?", &ReadOptions::default()).await.unwrap();
    assert_eq!((info.columns.field(0).name().as_str(), info.parameters.fields().len()), ("i", 1));
}
