//! Updates, and ingestion.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, DictionaryArray, Int64Array, RecordBatch, StringArray};
use arrow_flight::sql::{
    CommandStatementIngest, TableDefinitionOptions, TableExistsOption, TableNotExistOption,
};
use futures::stream;
use tonic::Code;

use super::{Client, Running, status};

#[tokio::test]
async fn updates_are_counted() {
    let (running, mut client) = Running::open().await;
    assert_eq!(ingest(&mut client, command("target"), vec![rows(0, 10)]).await.unwrap(), 10);
    assert_eq!(client.execute_update("delete from target".into(), None).await.unwrap(), 10);
    assert_eq!(running.service.table("target").num_rows(), 0);
    for (sql, code) in [
        ("select * from numbers", Code::InvalidArgument),
        ("insert into numbers values (1, 2)", Code::PermissionDenied),
        ("nonsense", Code::InvalidArgument),
    ] {
        assert_eq!(status(client.execute_update(sql.into(), None).await.unwrap_err()).code(), code, "{sql}");
    }
}

fn command(table: &str) -> CommandStatementIngest {
    CommandStatementIngest {
        table: table.into(),
        table_definition_options: Some(TableDefinitionOptions {
            if_not_exist: TableNotExistOption::Fail as i32,
            if_exists: TableExistsOption::Append as i32,
        }),
        ..CommandStatementIngest::default()
    }
}

fn rows(start: i64, count: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(start..start + count));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter((start..start + count).map(|n| (n % 2 == 0).then(|| n.to_string()))));
    // In another order than in the table.
    RecordBatch::try_from_iter_with_nullable([("name", texts, true), ("id", numbers, false)]).unwrap()
}

async fn ingest(
    client: &mut Client,
    command: CommandStatementIngest,
    batches: Vec<RecordBatch>,
) -> arrow_flight::error::Result<i64> {
    client.execute_ingest(command, stream::iter(batches.into_iter().map(Ok))).await
}

#[tokio::test]
async fn rows_are_appended_by_name() {
    let (running, mut client) = Running::open().await;
    let batches = vec![rows(0, 1500), rows(1500, 3), rows(1503, 0)];
    assert_eq!(ingest(&mut client, command("target"), batches).await.unwrap(), 1503);
    let table = running.service.table("target");
    let numbers = table.column(0).as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(numbers, (0..1503).collect::<Vec<_>>());
    let texts = table.column(1).as_string_view();
    assert!((0..1503).all(|row| texts.is_null(row) == (row % 2 == 1)));
    assert_eq!(table.column(2).null_count(), 1503);
    let words: DictionaryArray<arrow_array::types::Int32Type> = ["x", "y", "x"].into_iter().collect();
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let columns = [("id", numbers, false), ("name", Arc::new(words) as ArrayRef, true)];
    let words = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    assert_eq!(ingest(&mut client, command("target"), vec![words]).await.unwrap(), 3);
    assert_eq!(running.service.table("target").column(1).as_string_view().value(1505), "x");
}

#[tokio::test]
async fn ingestion_that_is_not_supported_is_refused() {
    let (running, mut client) = Running::open().await;
    let options = |if_exists: TableExistsOption, if_not_exist: TableNotExistOption| {
        Some(TableDefinitionOptions { if_exists: if_exists as i32, if_not_exist: if_not_exist as i32 })
    };
    let (append, create) = (TableExistsOption::Append, TableNotExistOption::Create);
    for (refused, code) in [
        (command("nowhere"), Code::NotFound),
        (command("numbers"), Code::PermissionDenied),
        (command(""), Code::InvalidArgument),
        (
            CommandStatementIngest { table_definition_options: options(append, create), ..command("new") },
            Code::Unimplemented,
        ),
        (
            CommandStatementIngest {
                table_definition_options: options(TableExistsOption::Fail, create),
                ..command("target")
            },
            Code::AlreadyExists,
        ),
        (
            CommandStatementIngest {
                table_definition_options: options(TableExistsOption::Replace, create),
                ..command("target")
            },
            Code::Unimplemented,
        ),
        (CommandStatementIngest { temporary: true, ..command("target") }, Code::Unimplemented),
        (
            CommandStatementIngest { transaction_id: Some("t".into()), ..command("target") },
            Code::Unimplemented,
        ),
    ] {
        let what = format!("{refused:?}");
        let error = status(ingest(&mut client, refused, vec![rows(0, 1)]).await.unwrap_err());
        assert_eq!(error.code(), code, "{what}: {}", error.message());
    }
    assert_eq!(running.service.table("target").num_rows(), 0);
}

#[tokio::test]
async fn an_error_says_how_many_rows_were_inserted() {
    let (_running, mut client) = Running::open().await;
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let bad = RecordBatch::try_from_iter_with_nullable([
        ("name", Arc::new(StringArray::from(vec!["a", "b"])) as ArrayRef, true),
        ("id", numbers, true),
    ]);
    let good = RecordBatch::try_new(bad.as_ref().unwrap().schema(), rows(0, 600).columns().to_vec()).unwrap();
    let error = status(ingest(&mut client, command("target"), vec![good, bad.unwrap()]).await.unwrap_err());
    assert!(error.message().contains("600 rows were inserted before"), "{}", error.message());
}
