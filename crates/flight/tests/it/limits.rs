//! Limits, and the end of the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_flight::sql::{CommandStatementIngest, TableDefinitionOptions, TableExistsOption};
use futures::{StreamExt, TryStreamExt, stream};
use lightship_flight::FlightConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use super::{Running, eventually, query, status};

#[tokio::test]
async fn statements_wait_for_others_and_are_refused() {
    let queue_timeout = Duration::from_millis(100);
    let running =
        Running::new(FlightConfig { queries_max: 1, queue_timeout, ..FlightConfig::default() }).await;
    let mut client = running.client().await;
    let info = client.execute("endless".into(), None).await.unwrap();
    let mut rows = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    rows.try_next().await.unwrap();
    let refused = status(query(&mut client, "select * from numbers").await.unwrap_err());
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(client.prepare("select * from numbers".into(), None).await.is_ok());
    drop(rows);
    eventually("the query ends", || running.service.running() == 0).await;
    assert!(query(&mut client, "select * from numbers").await.is_ok());
}

#[tokio::test]
async fn a_client_that_takes_nothing_loses_its_query() {
    let stall_timeout = Some(Duration::from_millis(200));
    let running = Running::new(FlightConfig { stall_timeout, ..FlightConfig::default() }).await;
    let mut client = running.client().await;
    let info = client.execute("endless".into(), None).await.unwrap();
    let mut rows = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    rows.try_next().await.unwrap();
    eventually("the query ends", || running.service.running() == 0).await;
    let ended = loop {
        match rows.next().await.unwrap() {
            Ok(_) => {}
            Err(error) => break status(error),
        }
    };
    assert_eq!(ended.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn connections_are_limited() {
    let running = Running::new(FlightConfig { connections_max: 1, ..FlightConfig::default() }).await;
    let mut first = running.client().await;
    assert!(query(&mut first, "select * from numbers").await.is_ok());
    let mut second = running.client().await;
    let refused = status(query(&mut second, "select * from numbers").await.unwrap_err());
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("all 1 connections"), "{}", refused.message());
    drop(first);
    for attempt in 0.. {
        match query(&mut second, "select * from numbers").await {
            Ok(_) => break,
            Err(error) => assert!(attempt < 200, "{}", status(error)),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn connections_without_a_request_are_closed() {
    let handshake_timeout = Duration::from_millis(100);
    let running = Running::new(FlightConfig { handshake_timeout, ..FlightConfig::default() }).await;
    let mut client = running.client().await;
    assert!(query(&mut client, "select * from numbers").await.is_ok());
    let mut silent = TcpStream::connect(running.address).await.unwrap();
    let mut received = Vec::new();
    let closed = silent.read_to_end(&mut received);
    assert!(tokio::time::timeout(Duration::from_secs(5), closed).await.is_ok());
    assert!(query(&mut client, "select * from numbers").await.is_ok(), "others are not");
}

#[tokio::test]
async fn the_server_ends_with_its_queries() {
    let shutdown_grace = Duration::from_millis(200);
    let running = Running::new(FlightConfig { shutdown_grace, ..FlightConfig::default() }).await;
    let (service, address) = (running.service.clone(), running.address);
    let mut client = running.client().await;
    let info = client.execute("endless".into(), None).await.unwrap();
    let mut rows = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    rows.try_next().await.unwrap();
    let began = Instant::now();
    running.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5));
    eventually("the query ends", || service.running() == 0).await;
    let ended = loop {
        match rows.next().await {
            Some(Ok(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(ended, Some(Err(_))), "a result that is cut off does not look complete");
    assert!(TcpStream::connect(address).await.is_err());
}

/// The start of a request whose message does not follow, as bytes of HTTP/2.
fn request_without_message() -> Vec<u8> {
    let literal = |name: &[u8], value: &str| [name, &[value.len() as u8], value.as_bytes()].concat();
    let headers = [
        // POST and http, which have numbers, as have the names of the others but the last.
        vec![0x83, 0x86],
        literal(&[0x04], "/arrow.flight.protocol.FlightService/GetFlightInfo"),
        literal(&[0x01], "localhost"),
        literal(&[0x0f, 0x10], "application/grpc"),
        literal(&[0x00, 2, b't', b'e'], "trailers"),
    ]
    .concat();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let frame = [0, 0, headers.len() as u8, 1, 4, 0, 0, 0, 1];
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &frame, &headers].concat()
}

#[tokio::test]
async fn a_request_that_does_not_arrive_gives_its_place_to_others() {
    let handshake_timeout = Duration::from_millis(500);
    let running =
        Running::new(FlightConfig { arriving_max: 1, handshake_timeout, ..FlightConfig::default() }).await;
    let mut client = running.client().await;
    assert!(query(&mut client, "select * from numbers").await.is_ok());
    let mut silent = TcpStream::connect(running.address).await.unwrap();
    silent.write_all(&request_without_message()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    assert!(query(&mut client, "select * from numbers").await.is_ok());
    let waited = began.elapsed();
    assert!((Duration::from_millis(100)..Duration::from_secs(5)).contains(&waited), "{waited:?}");
    let mut answer = vec![0; 1000];
    let bytes = silent.read(&mut answer).await.unwrap();
    assert!(bytes > 0);
}

fn append() -> CommandStatementIngest {
    CommandStatementIngest {
        table: "target".into(),
        table_definition_options: Some(TableDefinitionOptions {
            if_exists: TableExistsOption::Append as i32,
            ..TableDefinitionOptions::default()
        }),
        ..CommandStatementIngest::default()
    }
}

#[tokio::test]
async fn a_client_that_sends_nothing_loses_its_place() {
    let (stall_timeout, queue_timeout) = (Some(Duration::from_millis(500)), Duration::from_millis(50));
    let config = FlightConfig { stall_timeout, queue_timeout, uploads_max: 1, ..FlightConfig::default() };
    let running = Running::new(config).await;
    let rows = || {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        Ok(RecordBatch::try_from_iter([("id", numbers)]).unwrap())
    };
    let mut first = running.client().await;
    let stalled = tokio::spawn(async move {
        first.execute_ingest(append(), stream::iter([rows()]).chain(stream::pending())).await
    });
    let service = running.service.clone();
    eventually("the first row is inserted", || service.table("target").num_rows() == 1).await;
    let mut second = running.client().await;
    let refused = status(second.execute_ingest(append(), stream::iter([rows()])).await.unwrap_err());
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(status(stalled.await.unwrap().unwrap_err()).code(), Code::DeadlineExceeded);
    assert_eq!(second.execute_ingest(append(), stream::iter([rows()])).await.unwrap(), 1);
}
