//! Batches that are written to tables of PostgreSQL.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int32Type};
use arrow_schema::{DataType, Field, Schema};
use lightship_sources::{Destination, SourceError, WriteMode};

use crate::postgres::{destination, query, server, shown, write};

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
