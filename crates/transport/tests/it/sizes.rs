//! Sizes that change while a result is on its way.

use lightship_transport::net::{ClientConfig, Connection, Incoming, ServerConfig};
use lightship_wire::Codec;
use lightship_wire::control::Plan;
use lightship_wire::tuning::Sizes;

use crate::support::*;

const KIB: u32 = 1 << 10;
/// Batches of the service in a result.
const BATCHES: u64 = 4_000;

async fn by_tcp(server: &Running) -> Connection {
    let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
    server.try_connect(&config).await.expect("a connection")
}

/// From small to large and back, in no order of size.
fn wishes() -> impl Iterator<Item = Sizes> {
    let sizes = |message: u32, batch: u32, window_batches| Sizes {
        message_bytes: message * KIB,
        batch_bytes: batch * KIB,
        window_batches,
    };
    [sizes(9, 9, 1), sizes(256, 256, 8), sizes(16, 64, 2), sizes(512, 512, 4), sizes(9, 512, 3)]
        .into_iter()
        .cycle()
}

/// Takes the whole result, wishing for other sizes whenever it may. Answers how often they changed, and how many
/// messages came by joined connections.
async fn wishing(connection: &mut Connection) -> (usize, u64) {
    let (mut rows, mut wishes) = (0, wishes());
    let mut next = wishes.next().expect("endless");
    loop {
        if connection.resize(next) {
            next = wishes.next().expect("endless");
        }
        match within(connection.next()).await.expect("rows") {
            Incoming::Rows(batch) => rows += batch.num_rows() as u64,
            Incoming::Finished(totals) => {
                assert_eq!((totals.rows, rows), (BATCHES * BATCH_ROWS, rows));
                let mut before: Option<Sizes> = None;
                for resized in &totals.resizes {
                    assert!(
                        before.is_none_or(|before| before == resized.from),
                        "{resized:?} after {before:?}"
                    );
                    before = Some(resized.to);
                }
                return (totals.resizes.len(), totals.messages_joined);
            }
        }
    }
}

#[tokio::test]
async fn the_result_is_whole_whatever_is_wished_for() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = by_tcp(&server).await;
    for codec in [Some(Codec::None), Some(Codec::LightLz4), None] {
        for window in [1, 16] {
            ask(&mut connection, &BATCHES.to_string(), Plan { codec, ..plan(window) })
                .await
                .expect("an answer");
            let (changes, _) = wishing(&mut connection).await;
            assert!(changes > 2, "{changes} with {codec:?}");
        }
    }
}

#[tokio::test]
async fn over_several_connections_as_well() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = by_tcp(&server).await;
    let plan = Plan { streams: 3, codec: Some(Codec::LightLz4), ..plan(4) };
    ask(&mut connection, &BATCHES.to_string(), plan).await.expect("an answer");
    let (changes, joined) = wishing(&mut connection).await;
    assert!(changes > 2 && joined > 2, "{changes} changes, {joined} messages joined");
}

#[tokio::test]
async fn messages_follow_the_wish() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = by_tcp(&server).await;
    ask(&mut connection, &BATCHES.to_string(), plan(1)).await.expect("an answer");
    let wish = Sizes { message_bytes: 256 * KIB, batch_bytes: 256 * KIB, window_batches: 1 };
    assert!(connection.resize(wish));
    let mut largest = 0;
    while let Incoming::Rows(batch) = within(connection.next()).await.expect("rows") {
        largest = largest.max(batch.num_rows());
    }
    // The service's batches of 8 KB are gathered into messages.
    assert!(largest > 200 * 1024 / 8 && largest <= 256 * 1024 / 8, "{largest} rows");
}

#[tokio::test]
async fn no_message_is_larger_than_the_server_lets_them_be() {
    let server =
        Running::start(ServerConfig { message_bytes_max: 64 << 10, ..ServerConfig::default() }).await;
    let mut connection = by_tcp(&server).await;
    ask(&mut connection, &BATCHES.to_string(), plan(2)).await.expect("an answer");
    let wish = Sizes { message_bytes: 1024 * KIB, batch_bytes: 1024 * KIB, window_batches: 2 };
    assert!(connection.resize(wish));
    loop {
        match within(connection.next()).await.expect("rows") {
            Incoming::Rows(batch) => assert!(batch.num_rows() <= 8 * 1024, "{} rows", batch.num_rows()),
            Incoming::Finished(totals) => {
                assert_eq!(totals.resizes[0].to, Sizes { message_bytes: 64 * KIB, ..wish });
                break;
            }
        }
    }
}

#[tokio::test]
async fn shared_memory_keeps_its_sizes() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    ask(&mut connection, "100", plan(2)).await.expect("an answer");
    let wish = Sizes { message_bytes: 256 * KIB, batch_bytes: 256 * KIB, window_batches: 4 };
    assert!(!connection.resize(wish));
    take(&mut connection, 0, u64::MAX).await.expect("rows");
}
