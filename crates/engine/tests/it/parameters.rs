//! Statements with parameters, as clients of other protocols send them.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Float64Array, Int64Array, NullArray, RecordBatch, StringArray};
use arrow_schema::DataType;
use futures::TryStreamExt;
use lightship_engine::{Engine, EngineConfig, EngineError};
use tempfile::TempDir;

/// An engine with a table `t` of the numbers 1 to 4, and their names.
async fn small() -> (TempDir, Engine) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    std::fs::write(&file, "a,name\n1,one\n2,two\n3,three\n4,four\n").unwrap();
    let mut engine = Engine::new(EngineConfig::default()).unwrap();
    engine.register_path("t", &file).await.unwrap();
    (folder, engine)
}

/// One row with these values.
fn row(values: Vec<ArrayRef>) -> RecordBatch {
    let names = (1..).map(|number| format!("${number}"));
    RecordBatch::try_from_iter(names.zip(values)).unwrap()
}

fn int(value: i64) -> ArrayRef {
    Arc::new(Int64Array::from(vec![value]))
}

fn float(value: f64) -> ArrayRef {
    Arc::new(Float64Array::from(vec![value]))
}

fn text(value: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![value]))
}

/// The numbers that a statement returns, after a look whether its columns are those that it was prepared with.
async fn numbers(engine: &Engine, sql: &str, parameters: &RecordBatch) -> Result<Vec<i64>, EngineError> {
    let prepared = engine.prepare(sql).await?;
    let running = engine.execute(sql, Some(parameters)).await?;
    let types = |schema: &arrow_schema::Schema| -> Vec<(String, DataType)> {
        schema.fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
    };
    assert_eq!(types(&prepared.columns), types(running.schema()), "{sql}");
    let batches: Vec<RecordBatch> = running.into_rows().try_collect().await.unwrap();
    let mut found: Vec<i64> = batches
        .iter()
        .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec())
        .collect();
    found.sort_unstable();
    Ok(found)
}

#[tokio::test]
async fn values_take_the_places_of_parameters() {
    let (_folder, engine) = small().await;
    for (sql, parameters, expected) in [
        ("select a from t where a > $1", vec![int(2)], vec![3, 4]),
        ("select a from t where a > ? and a < ?", vec![int(1), int(4)], vec![2, 3]),
        ("select a from t where a in ($2, $1, $2)", vec![int(4), int(1)], vec![1, 4]),
        // Cast to what the statement requires.
        ("select a from t where a = $1", vec![text("3")], vec![3]),
        ("select a from t where name like $1", vec![text("t%")], vec![2, 3]),
        ("select a from t where name = ?", vec![text("' or 1 = 1 --")], vec![]),
        ("select a from t where a = ?", vec![Arc::new(NullArray::new(1))], vec![]),
        ("select a + $1 as b from t where a <= 2", vec![int(10)], vec![11, 12]),
        ("select max(a) from t where a < (select avg(a) + $1 from t)", vec![int(1)], vec![3]),
        ("select a from t limit $1", vec![int(0)], vec![]),
        ("select cast($1 as bigint) + 1", vec![text("41")], vec![42]),
        // Compared as a literal would be: nothing is rounded.
        ("select a from t where a = $1", vec![float(1.5)], vec![]),
        ("select a from t where a < $1", vec![float(1.5)], vec![1]),
        ("select a from t where a = $1", vec![float(2.0)], vec![2]),
        ("select a from t where cast(a as decimal(10, 2)) = $1", vec![text("2.00")], vec![2]),
    ] {
        assert_eq!(numbers(&engine, sql, &row(parameters)).await.unwrap(), expected, "{sql}");
    }
}

#[tokio::test]
async fn the_types_of_parameters_are_known_before_they_have_values() {
    let (_folder, engine) = small().await;
    let prepared = engine.prepare("select a, name from t where name = ? and a = ?").await.unwrap();
    let types: Vec<(&str, &DataType)> =
        prepared.parameters.fields().iter().map(|field| (field.name().as_str(), field.data_type())).collect();
    assert_eq!(types, [("$1", &DataType::Utf8), ("$2", &DataType::Int64)]);
    assert!(!prepared.is_update);
    let columns: Vec<&str> = prepared.columns.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(columns, ["a", "name"]);
    // Casts determine types, too.
    let prepared = engine.prepare("select cast($1 as bigint) + 1, $2::date").await.unwrap();
    let types: Vec<&DataType> = prepared.parameters.fields().iter().map(|field| field.data_type()).collect();
    assert_eq!(types, [&DataType::Int64, &DataType::Date32]);
    // A parameter that is not used has no type.
    let prepared = engine.prepare("select a from t where a = $2").await.unwrap();
    assert_eq!(prepared.parameters.field(0).data_type(), &DataType::Null);
    let prepared = engine.prepare("explain select a from t").await.unwrap();
    assert_eq!(prepared.columns.fields().len(), 2);
}

#[tokio::test]
async fn wrong_parameters_are_refused() {
    let (_folder, engine) = small().await;
    let message = async |sql: &str, parameters: Vec<ArrayRef>| {
        numbers(&engine, sql, &row(parameters)).await.unwrap_err().to_string()
    };
    for (sql, parameters, expected) in [
        ("select a from t where a = $1", vec![int(1), int(2)], "has 1 parameter, but 1 row of 2 values"),
        ("select a from t where a = $2", vec![int(1)], "has 2 parameters, but 1 row of 1 value"),
        ("select a from t where a = ? or a = $1", vec![int(1)], "both kinds of parameters"),
        ("select a from t where a = $0", vec![int(1)], "zero is not a valid index"),
        ("select a from t where a = $70000", vec![int(1)], "$70000 is not a parameter"),
        ("select a from t where a = $b", vec![int(1)], "$b is not a parameter"),
        ("select a from t where a = $1", vec![text("x")], "parameter $1: "),
        ("delete from t where a = $1", vec![int(1)], "DML not supported"),
    ] {
        let found = message(sql, parameters).await;
        assert!(found.contains(expected), "{sql}: {found}");
    }
    let without = engine.query("select a from t where a = ?").await.err().unwrap();
    assert!(without.to_string().contains("no value for parameter $1"), "{without}");
    let rows =
        RecordBatch::try_from_iter([("$1", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef)]).unwrap();
    let several = engine.execute("select a from t where a = ?", Some(&rows)).await.err().unwrap();
    assert!(several.to_string().contains("2 rows of 1 value"), "{several}");
}

/// Executions for several rows of values, one of which is NULL, return the same columns.
#[tokio::test]
async fn columns_may_be_null_if_another_value_could_make_them_so() {
    let (_folder, engine) = small().await;
    let null: ArrayRef = Arc::new(Int64Array::from(vec![None]));
    for sql in [
        "select $1 as v",
        "select cast($1 as bigint) + 1 as v, 1 as one from t",
        "select a as v, a + $1 from t",
    ] {
        let mut columns = Vec::new();
        for value in [int(5), null.clone()] {
            let running = engine.execute(sql, Some(&row(vec![value]))).await.unwrap();
            columns.push(running.schema().clone());
            let batches: Vec<RecordBatch> = running.into_rows().try_collect().await.unwrap();
            assert!(batches.iter().all(|batch| batch.schema() == columns[0]), "{sql}");
        }
        assert_eq!(columns[0], columns[1], "{sql}");
    }
    let running = engine.execute("select 1 as one, $1 as v", Some(&row(vec![int(5)]))).await.unwrap();
    let nullable: Vec<bool> = running.schema().fields().iter().map(|field| field.is_nullable()).collect();
    assert_eq!(nullable, [false, true]);
}
