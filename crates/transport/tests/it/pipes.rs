//! The protocol over pipes of frames.

use std::io;

use futures::channel::mpsc;
use futures::{SinkExt, StreamExt};
use lightship_transport::net::{
    Carrier, ClientConfig, Connection, FramePart, FramePipe, Intake, Server, ServerConfig,
};
use lightship_transport::{Result, TransportError};
use lightship_wire::control::{ErrorCode, Plan};
use lightship_wire::frame::{FrameHeader, FrameKind};

use crate::support::*;

/// Less than a message and than many other payloads, which therefore come in parts.
const PART_BYTES_MAX: u32 = 100;

/// Both ends of a pipe. Each frame waits until the last one is taken.
fn ends() -> (FramePipe, FramePipe) {
    let (to_theirs, theirs) = mpsc::channel::<FramePart>(0);
    let (to_ours, ours) = mpsc::channel::<FramePart>(0);
    let end = |frames: mpsc::Receiver<FramePart>, sink: mpsc::Sender<FramePart>| {
        let sink = sink.sink_map_err(|e| io::Error::new(io::ErrorKind::BrokenPipe, e));
        FramePipe::new(frames.map(Ok), sink, PART_BYTES_MAX)
    };
    (end(ours, to_theirs), end(theirs, to_ours))
}

/// A server that listens nowhere.
async fn serve(config: ServerConfig) -> (Running, Intake) {
    let server = Server::bind(&[], config).await.expect("nothing that could fail");
    let intake = server.intake();
    (Running::of(server), intake)
}

async fn pipe(intake: &Intake) -> FramePipe {
    let (ours, theirs) = ends();
    intake.serve(theirs, "a test".into()).await.expect("the server is there");
    ours
}

async fn connect(intake: &Intake, config: &ClientConfig) -> Result<Connection> {
    within(Connection::over(pipe(intake).await, "the other end", config)).await
}

#[tokio::test]
async fn rows_an_error_and_a_cancel() {
    let (server, intake) = serve(ServerConfig::default()).await;
    let mut connection = connect(&intake, &ClientConfig::default()).await.expect("a connection");
    assert_eq!((connection.carrier(), connection.same_host()), (Carrier::Overlay, false));
    assert!(connection.can_resize() && connection.segments().is_none());
    // None can join; who asks for it gets all over this one.
    let wide = connection.settle(Plan { streams: 4, ..plan(3) });
    assert_eq!(wide.streams, 1);
    whole(&mut connection, 500, wide).await;
    ask(&mut connection, "10 fail", plan(2)).await.expect("an answer");
    let error = take(&mut connection, 0, u64::MAX).await.expect_err("it fails");
    assert_eq!(code(&error), Some(ErrorCode::Source), "{error}");
    let error = ask(&mut connection, "none", plan(2)).await.expect_err("no number");
    assert_eq!(code(&error), Some(ErrorCode::Sql), "{error}");
    ask(&mut connection, "1000000000", plan(2)).await.expect("an answer");
    take(&mut connection, 0, 10 * BATCH_ROWS).await.expect("rows");
    connection.cancel();
    whole(&mut connection, 5, plan(2)).await;
    server.dropped(4).await;
    // One that is dropped with its pipe.
    ask(&mut connection, "5 hang", plan(2)).await.expect("an answer");
    drop(connection);
    server.dropped(5).await;
}

#[tokio::test]
async fn many_pipes_beside_a_listener() {
    let listen = lightship_transport::net::Listen::Tcp(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&[listen], ServerConfig::default()).await.expect("an address");
    let intake = server.intake();
    let server = Running::of(server);
    let pipes = futures::future::join_all((0..20).map(|_| async {
        let mut connection = connect(&intake, &ClientConfig::default()).await.expect("a connection");
        whole(&mut connection, 50, plan(2)).await;
    }));
    let sockets = async { whole(&mut server.connect().await, 50, plan(2)).await };
    within(futures::future::join(pipes, sockets)).await;
}

#[tokio::test]
async fn tokens_and_places() {
    let config = ServerConfig {
        tokens: vec!["one".into()],
        peer_token: Some("us".into()),
        connections_max: 1,
        peer_connections_max: 1,
        queue_max: 0,
        ..ServerConfig::default()
    };
    let (_server, intake) = serve(config).await;
    let with = |token: &str, peer| ClientConfig { token: token.into(), peer, ..ClientConfig::default() };
    for (token, peer) in [("", false), ("two", false), ("us", false), ("one", true), ("", true)] {
        let Err(error) = connect(&intake, &with(token, peer)).await else { panic!("let in: {token} {peer}") };
        assert_eq!(code(&error), Some(ErrorCode::Unauthenticated), "{error}");
    }
    let mut client = connect(&intake, &with("one", false)).await.expect("a connection");
    // A node takes no client's slot; and each has its own limit.
    let mut node = connect(&intake, &with("us", true)).await.expect("a connection");
    for config in [with("one", false), with("us", true)] {
        let Err(error) = connect(&intake, &config).await else { panic!("let in") };
        assert_eq!(code(&error), Some(ErrorCode::Busy), "{error}");
    }
    whole(&mut client, 5, plan(2)).await;
    whole(&mut node, 5, plan(2)).await;
}

#[tokio::test]
async fn a_server_that_ends() {
    let (server, intake) = serve(ServerConfig::default()).await;
    let mut connection = connect(&intake, &ClientConfig::default()).await.expect("a connection");
    whole(&mut connection, 5, plan(2)).await;
    server.stop.send_replace(true);
    within(server.ended).await.expect("no panic").expect("in good order");
    let refused = intake.serve(ends().0, "late".into()).await;
    assert!(matches!(refused, Err(TransportError::Closed { .. })), "{refused:?}");
    let error = ask(&mut connection, "1", plan(2)).await.expect_err("it has ended");
    assert!(
        code(&error) == Some(ErrorCode::ShuttingDown) || matches!(error, TransportError::Closed { .. }),
        "{error}"
    );
    // One that was never run.
    let server = Server::bind(&[], ServerConfig::default()).await.expect("nothing that could fail");
    let intake = server.intake();
    let waiting = pipe(&intake).await;
    drop(server);
    let refused = within(Connection::over(waiting, "it", &ClientConfig::default())).await.map(drop);
    assert!(matches!(refused, Err(TransportError::Closed { .. })), "{refused:?}");
    assert!(intake.serve(ends().0, "late".into()).await.is_err());
}

#[tokio::test]
async fn nobody_at_the_other_end() {
    let config =
        ClientConfig { welcome_timeout: std::time::Duration::from_millis(10), ..ClientConfig::default() };
    let (ours, theirs) = ends();
    let Err(error) = within(Connection::over(ours, "node 7", &config)).await else { panic!("welcome") };
    assert_eq!(error.to_string(), "can't reach node 7: no welcome within 0.01 seconds");
    drop(theirs);
    let (ours, theirs) = ends();
    drop(theirs);
    assert!(within(Connection::over(ours, "node 7", &config)).await.is_err());
}

#[tokio::test]
async fn a_payload_is_whole_only_with_all_its_parts() {
    let sends = async |parts: &[(FrameKind, u32, u32, usize)]| {
        let (_server, intake) = serve(ServerConfig::default()).await;
        let (mut to_server, theirs) = mpsc::channel::<FramePart>(8);
        let (to_ours, mut ours) = mpsc::channel::<FramePart>(8);
        let sink = to_ours.sink_map_err(io::Error::other);
        let pipe = FramePipe::new(theirs.map(Ok), sink, 1 << 20);
        intake.serve(pipe, "a test".into()).await.expect("the server is there");
        for &(kind, payload_bytes, part_bytes, bytes) in parts {
            let header = FrameHeader { payload_bytes, part_bytes, ..FrameHeader::whole(kind, 0, 0, 0, &[]) };
            let _ = to_server.send((header, vec![0; bytes].into())).await;
        }
        let (header, payload) = within(ours.next()).await.expect("an error");
        assert_eq!(header.kind, FrameKind::Error);
        String::from_utf8_lossy(&payload).into_owned()
    };
    for (parts, expected) in [
        (&[(FrameKind::Hello, 20, 20, 19)][..], "19 bytes after a header that states 20"),
        (&[(FrameKind::Hello, 20, 10, 10), (FrameKind::Hello, 20, 11, 11)], "between the parts of a payload"),
        (&[(FrameKind::Hello, 20, 10, 10), (FrameKind::Hello, 21, 10, 10)], "between the parts of a payload"),
        (&[(FrameKind::Hello, 20, 10, 10), (FrameKind::Ping, 0, 0, 0)], "between the parts of a payload"),
        (&[(FrameKind::Hello, 20, 10, 10), (FrameKind::Hello, 20, 10, 10)], "checksum of the payload"),
    ] {
        let error = sends(parts).await;
        assert!(error.contains(expected), "{error}");
    }
}
