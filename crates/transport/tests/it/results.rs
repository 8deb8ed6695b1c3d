//! Results: whole, cancelled, failed.

use lightship_transport::TransportError;
use lightship_transport::net::{Listen, ServerConfig};
use lightship_wire::Codec;
use lightship_wire::control::{ErrorCode, Plan, Reason};

use crate::support::*;

#[tokio::test]
async fn one_after_the_other_under_all_plans() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    assert!(connection.same_host());
    for codec in [None, Some(Codec::None), Some(Codec::LightLz4), Some(Codec::LightZstd)] {
        for window in [1, 2, 100, u32::MAX] {
            for (message_bytes, batch_rows, batches) in
                [(64, 0, 3), (1000, 7, 2), (9 << 10, 0, 500), (1 << 20, 5000, 300), (32 << 20, 0, 0)]
            {
                let batch_bytes = 2 * message_bytes;
                let plan = Plan {
                    codec,
                    window_batches: window,
                    message_bytes,
                    batch_rows,
                    batch_bytes,
                    ..Plan::default()
                };
                whole(&mut connection, batches, plan).await;
            }
        }
    }
}

/// The service is told how often rows waited for the client, which a small window makes them do.
#[tokio::test]
async fn waits_for_the_client_are_counted() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    let rows = 20 * BATCH_ROWS;
    whole(&mut connection, 20, Plan { batch_rows: 10, ..plan(1) }).await;
    server.dropped(1).await;
    let delivery = server.service.delivery.lock().unwrap().clone();
    let (waits, waited) = delivery.waits();
    // All but the first batches of ten rows; the end of a batch may come before it is waited for.
    assert!((rows / 20..=rows / 10).contains(&waits), "{waits}");
    assert!(!waited.is_zero() && delivery.payload_bytes() > 8 * rows, "{waited:?}");
    whole(&mut connection, 1, Plan::default()).await;
    server.dropped(2).await;
    assert_eq!(server.service.delivery.lock().unwrap().waits().0, 0);
}

#[tokio::test]
async fn over_a_unix_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let server = Running::start_at(Listen::Unix(path.clone()), ServerConfig::default()).await;
    let mut connection = server.connect().await;
    assert!(connection.same_host());
    whole(&mut connection, 100, Plan::default()).await;
    drop(connection);
    server.stop.send(true).expect("it runs");
    within(server.ended).await.expect("no panic").expect("a clean end");
    assert!(!path.exists());
}

#[tokio::test]
async fn cancelled_halfway_the_connection_lives_on() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    for round in 1..=20 {
        ask(&mut connection, "1000000000", plan(4)).await.expect("an answer");
        // Sometimes before the first row, sometimes after some.
        take(&mut connection, 0, round % 3 * BATCH_ROWS).await.expect("rows");
        connection.cancel();
        server.dropped(2 * round - 1).await;
        whole(&mut connection, 5, plan(4)).await;
    }
    assert!(server.made() < 20 * 30, "{} batches were made for nothing", server.made());
}

#[tokio::test]
async fn cancelled_while_the_service_has_nothing() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    ask(&mut connection, "3 hang", plan(8)).await.expect("an answer");
    // What there is comes at once, though more is expected.
    take(&mut connection, 0, 3 * BATCH_ROWS).await.expect("rows");
    connection.cancel();
    let error = take(&mut connection, 3 * BATCH_ROWS, u64::MAX).await.expect_err("cancelled");
    assert_eq!(code(&error), Some(ErrorCode::Cancelled));
    whole(&mut connection, 5, plan(4)).await;
}

#[tokio::test]
async fn a_query_without_reading_the_last_one() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    for _ in 0..10 {
        ask(&mut connection, "1000000000", plan(2)).await.expect("an answer");
    }
    whole(&mut connection, 5, plan(2)).await;
    server.dropped(11).await;
}

#[tokio::test]
async fn failed_at_once_and_failed_halfway() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    for _ in 0..3 {
        let error = ask(&mut connection, "many", plan(2)).await.expect_err("refused");
        let TransportError::Failed(failure) = &error else { panic!("{error}") };
        assert_eq!((failure.code, failure.position), (ErrorCode::Sql, Some((1, 1))));
        assert_eq!(failure.reason, Some(Reason::Syntax));

        ask(&mut connection, "10 fail", plan(2)).await.expect("an answer");
        let rows = take(&mut connection, 0, 5 * BATCH_ROWS).await.expect("rows");
        let error = take(&mut connection, rows, u64::MAX).await.expect_err("halfway");
        let TransportError::Failed(failure) = &error else { panic!("{error}") };
        assert_eq!((failure.code, failure.hint.as_deref()), (ErrorCode::Source, Some("find it")));
        assert_eq!(error.to_string(), "the disk has gone");
        whole(&mut connection, 5, plan(2)).await;
    }
}

#[tokio::test]
async fn many_connections_at_once() {
    let server = Running::start(ServerConfig::default()).await;
    let clients = (0..30).map(|n| {
        let server = &server;
        async move {
            let mut connection = server.connect().await;
            whole(&mut connection, 20 + n, plan(1 + n as u32 % 4)).await;
        }
    });
    futures::future::join_all(clients).await;
}

#[tokio::test]
async fn several_results_at_once_over_one_connection() {
    let server = Running::start(ServerConfig::default()).await;
    let first = server.connect().await;
    let mut tasks = tokio::task::JoinSet::new();
    for batches in 1..=40 {
        let mut connection = first.share();
        // Windows and sizes of all kinds, so that some results wait while others go on.
        let plan = Plan { message_bytes: 1 << (10 + batches % 10), ..plan(1 + batches as u32 % 5) };
        tasks.spawn(async move { whole(&mut connection, batches * 10, plan).await });
    }
    // One that nobody reads holds up no other.
    let mut unread = first.share();
    ask(&mut unread, "1000000000", plan(2)).await.expect("an answer");
    while let Some(done) = within(tasks.join_next()).await {
        done.expect("all rows, in order");
    }
    drop(unread);
    server.dropped(41).await;
    let mut first = first;
    whole(&mut first, 5, plan(2)).await;
}

#[tokio::test]
async fn a_result_that_fails_or_is_dropped_leaves_the_others() {
    let server = Running::start(ServerConfig::default()).await;
    let mut first = server.connect().await;
    let (mut second, mut third) = (first.share(), first.share());
    ask(&mut first, "30 hang", plan(2)).await.expect("an answer");
    ask(&mut second, "3 fail", plan(8)).await.expect("an answer");
    let error = take(&mut second, 0, u64::MAX).await.expect_err("it fails");
    assert_eq!(code(&error), Some(ErrorCode::Source));
    ask(&mut third, "1000000000", plan(2)).await.expect("an answer");
    drop(third);
    take(&mut first, 0, 30 * BATCH_ROWS).await.expect("rows");
    whole(&mut second, 5, plan(2)).await;
}

#[tokio::test]
async fn each_query_at_once_takes_a_place() {
    let config = ServerConfig { connections_max: 2, queue_max: 0, ..ServerConfig::default() };
    let server = Running::start(config).await;
    let mut first = server.connect().await;
    let (mut second, mut third) = (first.share(), first.share());
    ask(&mut first, "3 hang", plan(2)).await.expect("an answer");
    ask(&mut second, "3 hang", plan(2)).await.expect("the second slot");
    let refused = ask(&mut third, "3", plan(2)).await.expect_err("no third slot");
    assert_eq!(code(&refused), Some(ErrorCode::Busy), "{refused}");
    // The slot of a query that was cancelled is waited for.
    first.cancel();
    whole(&mut third, 5, plan(2)).await;
}
