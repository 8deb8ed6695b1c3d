//! Statements: their columns, rows, errors, and ends.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, Any, CommandStatementQuery, ProstMessageExt,
};
use arrow_flight::{
    Action, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightDescriptor, FlightInfo,
    IpcMessage,
};
use arrow_schema::{DataType, Schema};
use futures::{StreamExt, TryStreamExt};
use lightship_flight::FlightConfig;
use prost::Message;
use tonic::Code;

use super::{Client, Running, eventually, fetch, names, query, status};

#[tokio::test]
async fn rows_arrive_as_announced() {
    let (running, mut client) = Running::open().await;
    let rows = query(&mut client, "select * from numbers").await.unwrap();
    assert_eq!(rows, running.service.table("numbers"));
    let empty = query(&mut client, "select * from empty").await.unwrap();
    assert_eq!((empty.num_rows(), names(&empty.schema())), (0, vec!["n", "text"]));
    let info = client.execute("select * from no_columns".into(), None).await.unwrap();
    let (schema, batches) = fetch(&mut client, info).await.unwrap();
    assert!(schema.fields().is_empty());
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
}

#[tokio::test]
async fn all_types_are_sent_as_plain_values() {
    let (_running, mut client) = Running::open().await;
    let rows = query(&mut client, "select * from types").await.unwrap();
    let data_type = |name: &str| rows.schema().field_with_name(name).unwrap().data_type().clone();
    for (name, expected) in [
        ("view", DataType::Utf8),
        ("dictionary", DataType::Utf8),
        ("runs", DataType::Utf8),
        ("small_decimal", DataType::Decimal128(10, 2)),
        ("nothing", DataType::Null),
    ] {
        assert_eq!(data_type(name), expected, "{name}");
    }
    for (name, column) in rows.schema().fields().iter().zip(rows.columns()) {
        if name.name() != "union" {
            assert!(column.is_null(1) || column.data_type() == &DataType::Null, "{name}");
            assert!(name.name() == "nothing" || column.is_valid(0), "{name}");
        }
    }
    let texts = rows.column_by_name("texts").unwrap().as_list::<i32>().value(0);
    assert_eq!(texts.as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["a", "b"]);
}

#[tokio::test]
async fn large_results_come_in_messages_of_bounded_size() {
    let (running, mut client) = Running::open().await;
    let info = client.execute("select * from large".into(), None).await.unwrap();
    let (_, batches) = fetch(&mut client, info).await.unwrap();
    assert!(batches.len() > 5, "{}", batches.len());
    let mut expected = 0;
    for batch in &batches {
        assert!(batch.get_array_memory_size() < 4 << 20, "{}", batch.get_array_memory_size());
        assert!(batch.num_rows() > 1000, "small batches are gathered");
        for (n, text) in batch
            .column(0)
            .as_primitive::<Int64Type>()
            .values()
            .iter()
            .zip(batch.column(1).as_string::<i32>())
        {
            assert_eq!((*n, text.unwrap()), (expected, format!("a longer text, number {n}").as_str()));
            expected += 1;
        }
    }
    assert_eq!(expected as usize, running.service.table("large").num_rows());
}

#[tokio::test]
async fn a_row_that_no_client_accepts_is_an_error() {
    let (_running, mut client) = Running::open().await;
    let refused = status(query(&mut client, "select * from too_wide").await.unwrap_err());
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("a row has"), "{}", refused.message());
}

#[tokio::test]
async fn errors_keep_code_message_and_hint() {
    let (_running, mut client) = Running::open().await;
    let unknown = status(client.execute("select * from nowhere".into(), None).await.unwrap_err());
    assert_eq!(unknown.code(), Code::InvalidArgument);
    assert_eq!(
        unknown.message(),
        "no table nowhere (line 1, column 15) (hint: see information_schema.tables)"
    );
    assert_eq!(unknown.metadata().get("lightship-code").unwrap().to_str().unwrap(), "4");
    let busy = status(client.execute("fail busy".into(), None).await.unwrap_err());
    assert_eq!(busy.code(), Code::Unavailable);
    assert_eq!(busy.metadata().get("lightship-retryable").unwrap().to_str().unwrap(), "true");
}

#[tokio::test]
async fn a_result_that_fails_later_does_not_look_complete() {
    let (running, mut client) = Running::open().await;
    for (sql, code, message) in [
        ("late", Code::InvalidArgument, "the second batch fails"),
        ("panic", Code::Internal, "the query ended with an internal error"),
    ] {
        let info = client.execute(sql.into(), None).await.unwrap();
        let failed = status(fetch(&mut client, info).await.unwrap_err());
        assert_eq!((failed.code(), failed.message()), (code, message));
    }
    assert!(query(&mut client, "select * from numbers").await.is_ok(), "the server still answers");
    running.stop().await;
}

/// Starts a statement without end, and reads its first rows.
async fn endless(client: &mut Client, running: &Running) -> (FlightInfo, FlightRecordBatchStream) {
    let info = client.execute("endless".into(), None).await.unwrap();
    assert_eq!(running.service.running(), 0, "nothing runs before rows are fetched");
    let mut rows = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    assert!(rows.try_next().await.unwrap().unwrap().num_rows() > 0);
    assert_eq!(running.service.running(), 1);
    (info, rows)
}

#[tokio::test]
async fn a_query_ends_when_its_client_goes() {
    let (running, mut client) = Running::open().await;
    let (_, rows) = endless(&mut client, &running).await;
    drop(rows);
    eventually("the query ends with its stream", || running.service.running() == 0).await;
    let (_, rows) = endless(&mut client, &running).await;
    // The connection ends with its last user.
    drop((rows, client));
    eventually("the query ends with its connection", || running.service.running() == 0).await;
}

#[tokio::test]
async fn a_query_is_cancelled_by_its_information() {
    let (running, mut client) = Running::open().await;
    for is_sql in [true, false] {
        let (info, mut rows) = endless(&mut client, &running).await;
        let cancelled = cancel(&mut client, info.clone(), is_sql).await;
        assert_eq!(cancelled, CancelStatus::Cancelled as i32);
        let ended = loop {
            match rows.next().await.unwrap() {
                Ok(_) => {}
                Err(error) => break status(error),
            }
        };
        assert_eq!(ended.code(), Code::Cancelled);
        eventually("the query ends", || running.service.running() == 0).await;
        assert_eq!(cancel(&mut client, info, is_sql).await, CancelStatus::NotCancellable as i32);
    }
}

pub(super) async fn cancel(client: &mut Client, info: FlightInfo, is_sql: bool) -> i32 {
    let (name, body) = if is_sql {
        let request = ActionCancelQueryRequest { info: info.encode_to_vec().into() };
        ("CancelQuery", request.as_any().encode_to_vec())
    } else {
        ("CancelFlightInfo", CancelFlightInfoRequest { info: Some(info) }.encode_to_vec())
    };
    let mut results = client.do_action(Action::new(name, body)).await.unwrap();
    let body = results.message().await.unwrap().unwrap().body;
    if is_sql {
        let any = Any::decode(body).unwrap();
        any.unpack::<ActionCancelQueryResult>().unwrap().unwrap().result
    } else {
        CancelFlightInfoResult::decode(body).unwrap().status
    }
}

#[tokio::test]
async fn schema_and_poll_answer_like_flight_info() {
    let running = Running::open().await.0;
    let mut client = FlightServiceClient::new(running.channel().await);
    let command = CommandStatementQuery { query: "select * from types".into(), transaction_id: None };
    for bytes in [command.as_any().encode_to_vec(), b"select * from types".to_vec()] {
        let descriptor = FlightDescriptor::new_cmd(bytes);
        let info = client.get_flight_info(descriptor.clone()).await.unwrap().into_inner();
        assert_eq!(info.flight_descriptor.as_ref(), Some(&descriptor));
        assert!(info.endpoint[0].location.is_empty());
        let schema = info.try_decode_schema().unwrap();
        let result = client.get_schema(descriptor.clone()).await.unwrap().into_inner();
        assert_eq!(Schema::try_from(IpcMessage(result.schema)).unwrap(), schema);
        let poll = client.poll_flight_info(descriptor).await.unwrap().into_inner();
        assert!(poll.flight_descriptor.is_none(), "it is complete");
        assert_eq!(poll.info.unwrap().try_decode_schema().unwrap(), schema);
    }
}

#[tokio::test]
async fn locations_are_advertised() {
    let locations = vec!["grpc://one.example:1".to_owned(), "grpc+tcp://two.example:2".to_owned()];
    let running =
        Running::new(FlightConfig { locations: locations.clone(), ..FlightConfig::default() }).await;
    let info = running.client().await.execute("select * from numbers".into(), None).await.unwrap();
    let told: Vec<_> = info.endpoint[0].location.iter().map(|location| location.uri.clone()).collect();
    assert_eq!((info.endpoint.len(), told), (1, locations));
}

#[tokio::test]
async fn a_ticket_whose_table_has_changed_is_refused() {
    let (running, mut client) = Running::open().await;
    let info = client.execute("select * from line_item".into(), None).await.unwrap();
    running.service.replace("line_item", running.service.table("types"));
    let refused = status(fetch(&mut client, info).await.unwrap_err());
    assert!(refused.message().contains("columns have changed"), "{}", refused.message());
}

#[tokio::test]
async fn what_is_not_supported_is_said() {
    let (_running, mut client) = Running::open().await;
    let begun = status(client.begin_transaction().await.unwrap_err());
    assert_eq!(begun.code(), Code::Unimplemented);
    let within = client.execute("select * from numbers".into(), Some("t".into())).await.unwrap_err();
    assert_eq!(status(within).code(), Code::Unimplemented);
    let unknown = client.do_action(Action::new("Nonsense", "")).await.unwrap_err();
    assert_eq!(status(unknown).code(), Code::Unimplemented);
    let malformed = client.do_action(Action::new("CancelQuery", "nonsense")).await.unwrap_err();
    assert_eq!(status(malformed).code(), Code::InvalidArgument);
    let large = format!("select '{}'", "x".repeat(1 << 20));
    let large = status(client.execute(large, None).await.unwrap_err());
    assert_eq!(large.code(), Code::ResourceExhausted);
}
