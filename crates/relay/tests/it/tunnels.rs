//! Tunnels over relays with real sockets.

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use futures::future::join_all;
use futures::{Sink, SinkExt, Stream, StreamExt};
use lightship_overlay::Shape;
use lightship_relay::{Config, Incoming, RelayError, Tunnel, Tunnels, TunnelsConfig};
use lightship_wire::frame::{FrameHeader, FrameKind};
use tokio::task::JoinSet;

use crate::support::*;

type FramePart = (FrameHeader, Bytes);

async fn nodes(
    shape: Shape,
    nodes: usize,
    config: TunnelsConfig,
    change: impl Fn(&mut Config),
) -> (Vec<Tunnels>, Vec<Incoming>) {
    let (relays, inboxes) = start(shape, nodes, change).await;
    relays.into_iter().zip(inboxes).map(|(relay, inbox)| Tunnels::start(relay, inbox, config)).unzip()
}

/// An end of a tunnel.
struct End {
    frames: Pin<Box<dyn Stream<Item = io::Result<FramePart>> + Send>>,
    sink: Pin<Box<dyn Sink<FramePart, Error = io::Error> + Send>>,
}

impl End {
    fn of(tunnel: Tunnel) -> Self {
        let (frames, sink) = tunnel.split();
        Self { frames: Box::pin(frames), sink: Box::pin(sink) }
    }

    async fn send(&mut self, number: u32, bytes: usize) -> io::Result<()> {
        soon(self.sink.send(frame(number, bytes))).await
    }

    async fn next(&mut self) -> Option<io::Result<FramePart>> {
        soon(self.frames.next()).await
    }
}

/// A frame that shows its number.
fn frame(number: u32, bytes: usize) -> FramePart {
    let part = Bytes::from(vec![number as u8; bytes]);
    (FrameHeader::whole(FrameKind::Message, 1, 7, number, &part), part)
}

/// Both ends of a tunnel.
async fn open(from: &Tunnels, to: u32, incoming: &mut Incoming) -> (End, End) {
    let ours = from.open(to).expect("open");
    assert_eq!(ours.peer(), to);
    let mut ours = End::of(ours);
    // Frames do not wait for an answer.
    ours.send(0, 1).await.expect("sent");
    let (_, theirs) = soon(incoming.accept()).await.expect("a tunnel");
    let mut theirs = End::of(theirs);
    assert_eq!(theirs.next().await.expect("a frame").expect("no failure"), frame(0, 1));
    (ours, theirs)
}

/// Sends this many frames and ends; at the same time reads frames to the end.
async fn exchange_all(end: End, sends: u32, bytes: usize) -> u32 {
    let End { mut frames, mut sink } = end;
    let sending = async move {
        for number in 0..sends {
            sink.send(frame(number, bytes)).await.expect("sent");
        }
    };
    let reading = async move {
        let mut read = 0;
        while let Some(next) = frames.next().await {
            assert_eq!(next.expect("no failure"), frame(read, bytes));
            read += 1;
        }
        read
    };
    futures::future::join(sending, reading).await.1
}

async fn until_closed(tunnels: &[Tunnels]) {
    until(|| tunnels.iter().all(|tunnels| tunnels.open_count() == 0)).await;
    soon(join_all(tunnels.iter().map(Tunnels::idle))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_arrive_in_order_in_both_directions_until_each_end() {
    for (shape, queue_messages) in [(Shape::Ring, 1), (Shape::Tree { arity: 2 }, 4)] {
        let change = |config: &mut Config| config.queue_messages = queue_messages;
        let (tunnels, mut incoming) = nodes(shape, 7, TunnelsConfig::default(), change).await;
        let (ours, theirs) = open(&tunnels[3], 6, &mut incoming[6]).await;
        let both = futures::future::join(exchange_all(ours, 300, 3000), exchange_all(theirs, 200, 3000));
        assert_eq!(soon(both).await, (200, 300));
        assert!(tunnels.iter().any(|tunnels| tunnels.relay().stats().counts.forwarded > 0));
        until_closed(&tunnels).await;
    }
}

/// One direction ends, and the other continues; what was sent before an end arrives.
#[tokio::test]
async fn an_end_is_of_one_direction_and_follows_what_was_sent() {
    let (tunnels, mut incoming) = nodes(Shape::Ring, 5, TunnelsConfig::default(), |_| {}).await;
    let (from, to) = (&tunnels[0], &mut incoming[2]);
    let (ours, mut theirs) = open(from, 2, to).await;
    let End { mut frames, sink } = ours;
    drop(sink);
    assert!(theirs.next().await.is_none());
    assert!(theirs.next().await.is_none(), "still the end");
    theirs.send(0, 100).await.expect("sent");
    drop(theirs);
    assert_eq!(soon(frames.next()).await.expect("a frame").expect("no failure"), frame(0, 100));
    assert!(soon(frames.next()).await.is_none());
    drop(frames);

    // Sent and dropped at once. The other end may still send, which nobody reads.
    let (mut ours, mut theirs) = open(from, 2, to).await;
    for number in 0..50 {
        ours.send(number, 1000).await.expect("sent");
    }
    drop(ours);
    for number in 0..50 {
        assert_eq!(theirs.next().await.expect("a frame").expect("no failure"), frame(number, 1000));
    }
    assert!(theirs.next().await.is_none());
    for number in 0..50 {
        theirs.send(number, 1000).await.expect("sent");
    }
    drop(theirs);

    // Opened, and dropped before it is accepted.
    drop(from.open(2).expect("open"));
    let (_, seen) = soon(to.accept()).await.expect("a tunnel");
    assert!(End::of(seen).next().await.is_none());
    until_closed(&tunnels).await;
    let itself = from.open(0).map(drop).expect_err("itself").to_string();
    assert_eq!(itself, "no tunnel from node 0 to node 0: expected another of 5 nodes");
    assert!(from.open(5).is_err());
}

/// A send that is dropped while it waits leaves no gap.
#[tokio::test]
async fn a_send_that_is_given_up_is_as_if_it_never_was() {
    let few = |config: &mut Config| (config.window_messages, config.queue_messages) = (1, 1);
    let (tunnels, mut incoming) = nodes(Shape::FullMesh, 2, TunnelsConfig::default(), few).await;
    let (mut ours, mut theirs) = open(&tunnels[0], 1, &mut incoming[1]).await;
    let mut sent = 0;
    for _ in 0..200 {
        let given_up = ours.sink.send(frame(sent, 100_000));
        if futures::future::poll_immediate(given_up).await.is_some() {
            sent += 1;
        } else {
            break;
        }
    }
    drop(ours);
    let mut read = 0;
    while let Some(next) = theirs.next().await {
        assert_eq!(next.expect("no failure"), frame(read, 100_000));
        read += 1;
    }
    assert_eq!(read, sent);
    drop(theirs);
    until_closed(&tunnels).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_over_a_killed_node_fail_and_name_it() {
    let (tunnels, mut incoming) = nodes(Shape::Ring, 6, TunnelsConfig::default(), |_| {}).await;
    let mut waiting = JoinSet::new();
    for (from, to) in [(0, 2), (0, 4), (3, 0), (5, 2)] {
        let (mut ours, mut theirs) = open(&tunnels[from], to, &mut incoming[to as usize]).await;
        waiting.spawn(async move {
            loop {
                if let Err(error) = ours.next().await.expect("no end") {
                    return error;
                }
            }
        });
        waiting.spawn(async move {
            loop {
                if let Err(error) = theirs.send(0, 1000).await {
                    return error;
                }
            }
        });
    }
    tunnels[1].relay().kill();
    for error in soon(waiting.join_all()).await {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert!(error.to_string().starts_with("node 1 was lost: "), "{error}");
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<RelayError>());
        assert_eq!(inner.and_then(RelayError::node), Some(1));
    }
    assert!(soon(incoming[0].accept()).await.is_none());
    assert_eq!(tunnels[0].open(2).map(drop).expect_err("lost").node(), Some(1));
    assert!(tunnels[0].has_failed());
    soon(tunnels[0].idle()).await;
    // Dropping the last handle fails all tunnels.
    let (tunnels, mut incoming) = nodes(Shape::FullMesh, 2, TunnelsConfig::default(), |_| {}).await;
    let (mut ours, mut theirs) = open(&tunnels[0], 1, &mut incoming[1]).await;
    let mut tunnels = tunnels.into_iter();
    drop(tunnels.next());
    let error = ours.next().await.expect("no end").map(drop).expect_err("closed");
    assert_eq!(error.to_string(), "the relay is closed");
    assert_eq!(ours.send(1, 1).await.expect_err("closed").to_string(), "the relay is closed");
    let error = theirs.next().await.expect("no end").map(drop).expect_err("lost");
    assert!(error.to_string().starts_with("node 0 was lost"), "{error}");
}

#[tokio::test]
async fn tunnels_beyond_the_limit_end_at_once() {
    let (relays, inboxes) = start(Shape::FullMesh, 2, |_| {}).await;
    let mut started = relays.into_iter().zip(inboxes).zip([10, 3]).map(|((relay, inbox), tunnels_max)| {
        Tunnels::start(relay, inbox, TunnelsConfig { tunnels_max, ..TunnelsConfig::default() })
    });
    let ((many, _), (few, mut incoming)) = (started.next().expect("one"), started.next().expect("another"));
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(open(&many, 1, &mut incoming).await);
    }
    for _ in 0..20 {
        let mut refused = End::of(many.open(1).expect("open"));
        // These bytes are sent before the refusal arrives.
        refused.send(0, 10_000).await.expect("sent");
        assert!(refused.next().await.is_none());
        drop(refused);
        until(|| many.open_count() == 3).await;
    }
    assert_eq!(few.open(0).map(drop), Err(RelayError::TunnelsFull { node: 0, max: 3 }));
    taken.pop();
    until(|| few.open_count() == 2).await;
    taken.push(open(&many, 1, &mut incoming).await);
    // Without `Incoming`, waiting tunnels and later ones end.
    taken.pop();
    until(|| few.open_count() == 2).await;
    let mut waits = End::of(many.open(1).expect("open"));
    waits.send(0, 1).await.expect("sent");
    until(|| few.open_count() == 3).await;
    drop(incoming);
    assert!(waits.next().await.is_none());
    let mut late = End::of(many.open(1).expect("open"));
    late.send(0, 1).await.expect("sent");
    assert!(late.next().await.is_none());
    drop((taken, waits, late));
    until_closed(&[many, few]).await;
}

#[tokio::test]
async fn a_tunnel_with_too_many_unread_bytes_fails_alone() {
    let config = TunnelsConfig { unread_bytes_max: 100_000, ..TunnelsConfig::default() };
    let (tunnels, mut incoming) = nodes(Shape::Tree { arity: 2 }, 3, config, |_| {}).await;
    let (mut ours, mut unread) = open(&tunnels[1], 2, &mut incoming[2]).await;
    let (other, its) = open(&tunnels[1], 2, &mut incoming[2]).await;
    for number in 0..11 {
        ours.send(number, 10_000).await.expect("sent");
    }
    until(|| tunnels[2].relay().stats().counts.received == 13).await;
    let both = futures::future::join(exchange_all(other, 30, 3000), exchange_all(its, 30, 3000));
    assert_eq!(soon(both).await, (30, 30));
    let error = unread.next().await.expect("no end").map(drop).expect_err("too many");
    assert!(error.to_string().starts_with("node 1 sent "), "{error}");
    assert!(error.to_string().ends_with(" bytes that are not read yet"), "{error}");
    drop(unread);
    assert!(ours.next().await.is_none());
    drop(ours);
    until_closed(&tunnels).await;
}

/// Small queues, many routes, and direct connections that change: frames overtake each other.
#[tokio::test(flavor = "multi_thread")]
async fn frames_arrive_in_order_over_many_routes() {
    const NODES: usize = 8;
    for seed in 1..4 {
        let change = |config: &mut Config| (config.queue_messages, config.seed) = (1, seed);
        let (tunnels, incoming) = nodes(Shape::Hypercube, NODES, TunnelsConfig::default(), change).await;
        let mut tasks = JoinSet::new();
        for (node, mut incoming) in incoming.into_iter().enumerate() {
            tasks.spawn(async move {
                let mut echoes = JoinSet::new();
                for _ in 0..NODES - 1 {
                    let (_, tunnel) = incoming.accept().await.expect("a tunnel");
                    let End { frames, sink } = End::of(tunnel);
                    echoes.spawn(async move { frames.forward(sink).await.expect("echoed") });
                }
                echoes.join_all().await;
                node
            });
        }
        for (from, opener) in tunnels.iter().enumerate() {
            for to in (0..NODES).filter(|to| *to != from) {
                let tunnel = opener.open(to as u32).expect("open");
                tasks.spawn(async move {
                    assert_eq!(exchange_all(End::of(tunnel), 70, 300).await, 70, "{from} to {to}");
                    from
                });
            }
        }
        let mut round = 0;
        while let Some(done) = soon(tasks.join_next()).await {
            let node = done.expect("no panic");
            round += 1;
            tunnels[node].relay().set_direct(vec![((node + 1 + round % (NODES - 1)) % NODES) as u32], 1);
        }
        until_closed(&tunnels).await;
    }
}

#[tokio::test]
async fn a_node_that_sends_something_else_is_named() {
    let (mut relays, mut inboxes) = start(Shape::FullMesh, 2, |_| {}).await;
    // Node 1 sends messages that are not of tunnels.
    let (other, _inbox) = (relays.remove(1), inboxes.remove(1));
    let (tunnels, _incoming) = Tunnels::start(relays.remove(0), inboxes.remove(0), TunnelsConfig::default());
    let mut to_other = End::of(tunnels.open(1).expect("open"));
    other.send(0, Bytes::from_static(b"what is this?")).await.expect("sent");
    let error = to_other.next().await.expect("no end").map(drop).expect_err("broken off");
    let expected = "node 1 sent an invalid frame: a frame outside of tunnels";
    assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::ConnectionAborted, expected));
    assert_eq!(tunnels.open(1).map(drop).expect_err("broken off").to_string(), expected);
}

/// A node that closes in good order ends the tunnels of others to it, and harms nothing else.
#[tokio::test]
async fn a_node_that_closes_first_ends_only_its_tunnels() {
    let (tunnels, mut incoming) = nodes(Shape::FullMesh, 3, TunnelsConfig::default(), |_| {}).await;
    let (mut quiet, _theirs) = open(&tunnels[0], 1, &mut incoming[1]).await;
    let (mut busy, _its) = open(&tunnels[0], 1, &mut incoming[1]).await;
    let (mut ours, mut other) = open(&tunnels[0], 2, &mut incoming[2]).await;
    let closer = tunnels[1].clone();
    let closing = tokio::spawn(async move { closer.relay().close().await });
    until(|| tunnels[0].relay().stats().connections == 1).await;
    let error = busy.send(1, 1000).await.expect_err("closed");
    assert_eq!(error.to_string(), "no route to node 1 is left");
    ours.send(1, 1).await.expect("not affected");
    assert_eq!(other.next().await.expect("a frame").expect("no failure"), frame(1, 1));
    assert!(quiet.next().await.expect("no end").is_err());
    drop((quiet, busy));
    // With nothing on the way, the drop of a tunnel notices it.
    let late = tunnels[0].open(1).expect("open");
    drop(late);
    until(|| tunnels[0].open_count() == 1).await;
    soon(closing).await.expect("no panic").expect("in good order");
}
