//! Queries with parameters.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::DataType;
use lightship::blocking::Connection;
use lightship::{ErrorKind, Options, Statement, connect_all};

use super::{csv, numbers};

fn row(values: &[i64]) -> RecordBatch {
    let columns = values.iter().map(|&value| ("", Arc::new(Int64Array::from(vec![value])) as ArrayRef));
    RecordBatch::try_from_iter(columns).expect("a row")
}

#[tokio::test]
async fn every_source_gets_the_parameters() {
    let folder = tempfile::tempdir().expect("a folder");
    let places: Vec<_> = (0..3).map(|n| csv(folder.path(), &n.to_string(), n * 10..n * 10 + 10)).collect();
    // With this memory, sources wait for each other, and run the query again.
    for memory_bytes in [None, Some(8 << 20)] {
        let options = Options { memory_bytes, ..Options::default() };
        let mut connection = connect_all(&places, &options).await.expect("opened");
        let sql = "select n from t where n % 10 > ? and n < ?";
        let statement = Statement::with_row(sql, row(&[7, 25])).expect("one row");
        let mut result = connection.query(statement).await.expect("answered");
        let mut batches = Vec::new();
        while let Some(batch) = result.next().await.expect("rows") {
            batches.push(batch);
        }
        let mut found = numbers(&batches);
        found.sort_unstable();
        assert_eq!(found, [8, 9, 18, 19]);
        drop(result);
        let mut result =
            connection.query(Statement::with_texts("select n from t where n = $1", ["12"])).await;
        assert_eq!(
            numbers(&[result.as_mut().expect("answered").next().await.expect("rows").expect("a row")]),
            [12]
        );
        drop(result);
        let described = connection.describe(sql).await.expect("described");
        let types: Vec<_> =
            described.parameters.fields().iter().map(|field| field.data_type().clone()).collect();
        assert_eq!((described.columns.field(0).name().as_str(), types), ("n", vec![DataType::Int64; 2]));
    }
}

#[test]
fn wrong_parameters_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = csv(folder.path(), "a", 0..10);
    let connection = Connection::open(vec![place], Options::default(), || Ok(())).expect("opened");
    let sql = "select n from t where n = ?";
    let two = Statement::with_row(sql, row(&[1, 2])).expect("one row");
    for statement in [two, Statement::with_texts(sql, [])] {
        let refused = connection.query(statement).err().expect("refused");
        assert_eq!((refused.kind, refused.sqlstate()), (ErrorKind::Source, Some("22023")), "{refused}");
        assert!(refused.hint.is_some());
    }
    let refused = connection.query(Statement::with_texts(sql, ["x"])).err().expect("not a number");
    assert!(refused.message.starts_with("parameter $1: "), "{refused}");
    let refused = connection.query(sql).err().expect("no value");
    assert_eq!(refused.kind, ErrorKind::Source, "{refused}");
    let rows: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let rows = RecordBatch::try_from_iter([("n", rows)]).expect("a batch");
    assert_eq!(Statement::with_row(sql, rows).expect_err("two rows").kind, ErrorKind::Usage);
    let mut reader = connection.query(Statement::with_row(sql, row(&[3])).expect("one row")).expect("rows");
    assert_eq!(numbers(&[reader.next_batch().expect("rows").expect("a row")]), [3]);
    assert_eq!(connection.describe(sql).expect("described").parameters.fields().len(), 1);
    assert_eq!(connection.describe("select m from t").expect_err("no such column").sqlstate(), Some("42703"));
}
