//! Prepared statements and their parameters.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, Float64Array, Int32Array, Int64Array, NullArray, RecordBatch, StringArray,
    TimestampMillisecondArray,
};
use arrow_flight::sql::{CommandPreparedStatementQuery, ProstMessageExt};
use arrow_flight::{Action, FlightDescriptor};
use arrow_schema::{DataType, TimeUnit};
use prost::Message;
use tonic::Code;

use super::{Running, fetch, names, status};

fn row(values: Vec<ArrayRef>) -> RecordBatch {
    let names: Vec<_> = (1..=values.len()).map(|at| at.to_string()).collect();
    let columns = names.into_iter().zip(values).map(|(name, value)| (name, value, true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

#[tokio::test]
async fn parameters_are_declared_and_bound() {
    let (_running, mut client) = Running::open().await;
    let sql = "echo bigint, varchar, timestamp, unknown";
    let mut statement = client.prepare(sql.into(), None).await.unwrap();
    let parameters = statement.parameter_schema().unwrap();
    let types: Vec<_> = parameters.fields().iter().map(|field| field.data_type().clone()).collect();
    let milliseconds = DataType::Timestamp(TimeUnit::Millisecond, None);
    assert_eq!(types, [DataType::Int64, DataType::Utf8, milliseconds, DataType::Utf8]);
    assert_eq!(names(parameters), ["$1", "$2", "$3", "$4"]);
    for (number, text) in [(7, Some("seven")), (8, None)] {
        let values: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![number])),
            Arc::new(StringArray::from(vec![text])),
            Arc::new(TimestampMillisecondArray::from(vec![1500])),
            Arc::new(NullArray::new(1)),
        ];
        // Binding again replaces the values.
        statement.set_parameters(row(values)).unwrap();
        let info = statement.execute().await.unwrap();
        let ticket = info.endpoint[0].ticket.clone().unwrap();
        let mut rows = client.do_get(ticket).await.unwrap();
        let rows = futures::TryStreamExt::try_next(&mut rows).await.unwrap().unwrap();
        assert_eq!(rows.column(0).as_primitive::<Int64Type>().value(0), i64::from(number));
        assert_eq!(rows.column(1).as_string::<i32>().iter().next().unwrap(), text);
        assert_eq!(rows.column(2).as_primitive::<TimestampMicrosecondType>().value(0), 1_500_000);
        assert_eq!(rows.column(3).logical_null_count(), 1);
    }
    statement.close().await.unwrap();
}

#[tokio::test]
async fn several_rows_run_the_statement_several_times() {
    let (_running, mut client) = Running::open().await;
    let mut statement = client.prepare("echo bigint".into(), None).await.unwrap();
    statement.set_parameters(row(vec![Arc::new(Int64Array::from(vec![1, 2, 3]))])).unwrap();
    let info = statement.execute().await.unwrap();
    let (_, batches) = fetch(&mut client, info).await.unwrap();
    let values: Vec<i64> =
        batches.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
    assert_eq!(values, [1, 2, 3]);
}

#[tokio::test]
async fn values_that_are_missing_or_do_not_fit_are_refused() {
    let (_running, mut client) = Running::open().await;
    let mut statement = client.prepare("echo bigint".into(), None).await.unwrap();
    let info = statement.execute().await.unwrap();
    let missing = status(fetch(&mut client, info).await.unwrap_err());
    assert_eq!((missing.code(), missing.message()), (Code::InvalidArgument, "0 values for 1 parameters"));
    let two: Vec<ArrayRef> =
        vec![Arc::new(Int64Array::from(vec![1])), Arc::new(Float64Array::from(vec![1.0]))];
    statement.set_parameters(row(two)).unwrap();
    let info = statement.execute().await.unwrap();
    assert!(fetch(&mut client, info).await.is_err());
    let many: ArrayRef = Arc::new(Int64Array::from_iter_values(0..200_000));
    statement.set_parameters(row(vec![many])).unwrap();
    let refused = status(statement.execute().await.unwrap_err());
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let unknown = status(client.prepare("select * from nowhere".into(), None).await.unwrap_err());
    assert_eq!(unknown.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn updates_have_no_columns_and_a_count() {
    let (running, mut client) = Running::open().await;
    let sql = "insert into target values ($1, $2, $3)";
    let mut statement = client.prepare(sql.into(), None).await.unwrap();
    assert!(statement.dataset_schema().unwrap().fields().is_empty(), "JDBC tells updates by that");
    let values: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![1, 2, 3])),
        Arc::new(StringArray::from(vec![Some("a"), None, Some("c")])),
        Arc::new(TimestampMillisecondArray::from(vec![Some(1), Some(2), None])),
    ];
    statement.set_parameters(row(values)).unwrap();
    assert_eq!(statement.execute_update().await.unwrap(), 3);
    assert_eq!(running.service.table("target").num_rows(), 3);
    let mut delete = client.prepare("delete from target".into(), None).await.unwrap();
    assert_eq!(delete.execute_update().await.unwrap(), 3);
    let mut select = client.prepare("select * from numbers".into(), None).await.unwrap();
    assert_eq!(status(select.execute_update().await.unwrap_err()).code(), Code::InvalidArgument);
}

#[tokio::test]
async fn statements_that_are_never_closed_cost_nothing() {
    let (running, mut client) = Running::open().await;
    let mut statements = Vec::new();
    for _ in 0..100 {
        statements.push(client.prepare("select * from numbers".into(), None).await.unwrap());
    }
    // They outlive the connection, and even the server.
    let mut other = running.client().await;
    let info = statements[0].execute().await.unwrap();
    assert!(fetch(&mut other, info).await.is_ok());
}

#[tokio::test]
async fn handles_of_others_are_refused() {
    let (_running, mut client) = Running::open().await;
    let query = CommandPreparedStatementQuery { prepared_statement_handle: "nonsense".into() };
    let descriptor = FlightDescriptor::new_cmd(query.as_any().encode_to_vec());
    let refused = client.inner_mut().get_flight_info(descriptor).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let close = arrow_flight::sql::ActionClosePreparedStatementRequest {
        prepared_statement_handle: "nonsense".into(),
    };
    let close = Action::new("ClosePreparedStatement", close.as_any().encode_to_vec());
    assert_eq!(status(client.do_action(close).await.unwrap_err()).code(), Code::InvalidArgument);
}

#[tokio::test]
async fn columns_can_depend_on_the_values() {
    let (_running, mut client) = Running::open().await;
    let mut statement = client.prepare("echo unknown".into(), None).await.unwrap();
    let values: [(ArrayRef, DataType); 3] = [
        (Arc::new(StringArray::from(vec!["a"])), DataType::Utf8),
        (Arc::new(Int64Array::from(vec![1])), DataType::Int64),
        (Arc::new(NullArray::new(1)), DataType::Null),
    ];
    for (value, data_type) in values {
        statement.set_parameters(row(vec![value])).unwrap();
        let info = statement.execute().await.unwrap();
        // It compares the columns with the announced ones.
        let (schema, batches) = fetch(&mut client, info).await.unwrap();
        assert_eq!((schema.field(0).data_type(), batches[0].num_rows()), (&data_type, 1));
    }
}
