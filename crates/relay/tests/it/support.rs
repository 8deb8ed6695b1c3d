//! Helpers that start nodes and wait for events.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use lightship_overlay::{Routes, Shape, Topology};
use lightship_relay::{Config, Inbox, Message, Relay, Result};
use lightship_wire::control::Hello;
use lightship_wire::frame::{FrameHeader, FrameKind, HEADER_BYTES};
use lightship_wire::overlay::{CAPABILITY_OVERLAY, FLAG_ROUTED, LinkUse, Neighbour, Route};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The timeout of all waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const MESSAGE_BYTES_MAX: u32 = 3 << 20;

/// Waits for a future, with a timeout.
#[track_caller]
pub(crate) fn soon<T>(what: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move { timeout(PATIENCE, what).await.unwrap_or_else(|_| panic!("never, at {caller}")) }
}

pub(crate) fn routes(shape: Shape, nodes: usize) -> Arc<Routes> {
    Arc::new(Routes::new(Topology::new(shape, nodes).expect("a topology")))
}

/// A listener for each node, and their addresses.
pub(crate) async fn listeners(nodes: usize) -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let mut listeners = Vec::new();
    for _ in 0..nodes {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    }
    let addresses = listeners.iter().map(|l| l.local_addr().expect("bound")).collect();
    (listeners, addresses)
}

/// Starts all nodes of a topology.
pub(crate) async fn start(
    shape: Shape,
    nodes: usize,
    change: impl Fn(&mut Config),
) -> (Vec<Relay>, Vec<Inbox>) {
    let routes = routes(shape, nodes);
    let (listeners, addresses) = listeners(nodes).await;
    let mut starting = JoinSet::new();
    for (node, listener) in (0..).zip(listeners) {
        let mut config = Config::new(node, addresses.clone(), Arc::clone(&routes), MESSAGE_BYTES_MAX);
        change(&mut config);
        starting.spawn(async move { (node, Relay::start(listener, config).await) });
    }
    let mut started = soon(starting.join_all()).await;
    started.sort_by_key(|(node, _)| *node);
    started.into_iter().map(|(_, started)| started.expect("started")).unzip()
}

/// Closes all relays.
pub(crate) async fn close(relays: &[Relay]) {
    let closing = join_all(relays.iter().map(Relay::close));
    soon(closing).await.into_iter().for_each(|done: Result<()>| done.expect("closed in good order"));
}

/// Sends one message, and receives it at the other end.
pub(crate) async fn exchange(relays: &[Relay], inboxes: &mut [Inbox], from: usize, to: usize) -> Message {
    relays[from].send(to as u32, Bytes::from_static(b"over")).await.expect("sent");
    let message = soon(inboxes[to].recv()).await.expect("no failure").expect("a message");
    assert_eq!((message.from as usize, &message.bytes[..]), (from, &b"over"[..]));
    message
}

/// Sends until a message takes this many hops: connections open and close asynchronously.
pub(crate) async fn until_hops(
    relays: &[Relay],
    inboxes: &mut [Inbox],
    (from, to): (usize, usize),
    hops: usize,
) {
    soon(async { while exchange(relays, inboxes, from, to).await.hops != hops {} }).await;
}

/// Polls until a condition holds.
pub(crate) async fn until(mut done: impl FnMut() -> bool) {
    soon(async {
        while !done() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A frame of the connection itself, as node 1 sends it to node 0 after the handshake.
pub(crate) fn control(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader::whole(kind, 0, 0, 1, payload);
    [&header.encode(), payload].concat()
}

/// A frame from node 1 to node 0, and `payload_bytes` in its header.
pub(crate) fn routed(route: Route, payload_bytes: u32, payload: &[u8]) -> Vec<u8> {
    let whole = FrameHeader::whole(FrameKind::Message, FLAG_ROUTED, 0, 0, payload);
    let header = FrameHeader { payload_bytes, part_bytes: payload_bytes, ..whole };
    [&header.encode()[..], &route.encode(), payload].concat()
}

/// The route of a message from node 1 to node 0.
pub(crate) const ROUTE: Route = Route { from: 1, to: 0, hops: 1, accepted: false, tunnel: 0, number: 0 };

/// A message from node 1 to node 0.
pub(crate) fn message(bytes: &[u8]) -> Vec<u8> {
    routed(ROUTE, bytes.len() as u32, bytes)
}

/// A hello and the frame that follows it, as node 1 sends it to node 0.
pub(crate) fn hello(token: &str, peer: u32) -> Vec<u8> {
    let hello = Hello {
        agent: "test".into(),
        token: token.into(),
        capabilities: CAPABILITY_OVERLAY,
        ping_interval_ms: 1000,
    };
    let hello = hello.encode();
    let first = FrameHeader::whole(FrameKind::Hello, 0, 0, 0, &hello);
    let neighbour = Neighbour { node: 1, peer, link: LinkUse::Topology, number: 0, digest: 0 };
    [&first.encode()[..], &hello, &control(FrameKind::Neighbour, &neighbour.encode())].concat()
}

/// Reads a frame of the connection itself.
pub(crate) async fn read_control(read: &mut (impl AsyncRead + Unpin)) -> (FrameKind, Vec<u8>) {
    let mut header = [0; HEADER_BYTES];
    soon(read.read_exact(&mut header)).await.expect("a header");
    let header = FrameHeader::decode(&header).expect("valid");
    let mut payload = vec![0; header.payload_bytes as usize];
    soon(read.read_exact(&mut payload)).await.expect("a payload");
    header.verify(&payload).expect("valid");
    (header.kind, payload)
}

/// The frame with one bit changed.
pub(crate) fn damaged(mut frame: Vec<u8>, at: usize) -> Vec<u8> {
    frame[at] ^= 1;
    frame
}
