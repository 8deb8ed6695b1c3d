//! Limits, and the end of the server.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use lightship_flight::FlightConfig;
use tokio::io::AsyncReadExt;
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
