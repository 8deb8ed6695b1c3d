//! Nodes that are lost, that never start, and that break the protocol.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lightship_overlay::Shape;
use lightship_relay::{Config, Refusal, Relay, RelayError};
use lightship_wire::frame::{FrameHeader, FrameKind};
use lightship_wire::overlay::{ClassCredit, LinkNotice, LinkUse, Neighbour, Route, encode_lost};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::*;

/// Under load, so that messages are in flight everywhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed_is_named_by_all_others() {
    const KILLED: usize = 3;
    let (relays, inboxes) = start(Shape::Ring, 8, |config| config.queue_messages = 1).await;
    let relays: Vec<_> = relays.into_iter().map(Arc::new).collect();
    let mut senders = JoinSet::new();
    let mut receivers = JoinSet::new();
    for (node, relay) in relays.iter().enumerate() {
        let relay = Arc::clone(relay);
        senders.spawn(async move {
            let mut to = node;
            loop {
                to = (to + 1) % 8;
                if to != node
                    && let Err(error) = relay.send(to as u32, Bytes::from(vec![1; 10_000])).await
                {
                    return (node, error);
                }
            }
        });
    }
    for (node, mut inbox) in inboxes.into_iter().enumerate() {
        receivers.spawn(async move {
            loop {
                match inbox.recv().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return (node, None),
                    Err(error) => return (node, Some(error)),
                }
            }
        });
    }
    until(|| relays.iter().all(|relay| relay.stats().counts.forwarded > 20)).await;
    relays[KILLED].kill();
    for (node, error) in soon(senders.join_all()).await {
        if node != KILLED {
            assert_eq!(error.node(), Some(KILLED as u32), "{node}: {error}");
        }
    }
    for (node, error) in soon(receivers.join_all()).await {
        if node != KILLED {
            let error = error.expect("not silently");
            assert!(error.to_string().contains("node 3 was lost"), "{node}: {error}");
        }
    }
    for (node, relay) in relays.into_iter().enumerate() {
        let closed = soon(relay.close()).await;
        assert!(closed.is_err() || node == KILLED, "{node}");
    }
}

#[tokio::test]
async fn a_node_that_does_not_start_is_named() {
    let routes = routes(Shape::Ring, 4);
    let (mut listeners, addresses) = listeners(4).await;
    // Node 2 does not run: node 1 can't reach it, node 3 waits for it, both tell node 0.
    listeners.remove(2);
    let mut starting = JoinSet::new();
    for (node, listener) in [0, 1, 3].into_iter().zip(listeners) {
        let mut config = Config::new(node, addresses.clone(), Arc::clone(&routes), 1000);
        config.connect_timeout = Duration::from_millis(300);
        starting.spawn(async move { Relay::start(listener, config).await });
    }
    // Node 0 may have been ready before: both of its neighbours run.
    let started = soon(starting.join_all()).await;
    let named = started.iter().filter(|done| done.as_ref().is_err_and(|e| e.node() == Some(2))).count();
    assert!(named >= 2, "{named}");
}

#[tokio::test]
async fn nodes_of_different_overlays_refuse_each_other() {
    for (shape, bytes, queue) in [(Shape::FullMesh, 1000, 4), (Shape::Ring, 1001, 4), (Shape::Ring, 1000, 5)]
    {
        let (mut listeners, addresses) = listeners(4).await;
        let mut theirs = Config::new(1, addresses.clone(), routes(shape, 4), bytes);
        theirs.queue_messages = queue;
        let (theirs_at, ours_at) = (listeners.remove(1), listeners.remove(0));
        theirs.connect_timeout = Duration::from_secs(5);
        let their = tokio::spawn(Relay::start(theirs_at, theirs));
        let mut ours = Config::new(0, addresses.clone(), routes(Shape::Ring, 4), 1000);
        // The connection is retried until then.
        ours.connect_timeout = Duration::from_millis(300);
        let error = soon(Relay::start(ours_at, ours)).await.map(|_| ()).expect_err("refused");
        assert!(
            error.to_string().starts_with("no connection to node 1: it refused the connection"),
            "{error}"
        );
        their.abort();
    }
}

/// Node 0 of two nodes, and the raw end of its connection to node 1.
async fn with_raw_peer() -> (Relay, lightship_relay::Inbox, TcpStream) {
    with_raw_peer_and(|_| {}).await
}

async fn with_raw_peer_and(change: impl FnOnce(&mut Config)) -> (Relay, lightship_relay::Inbox, TcpStream) {
    let (mut listeners, addresses) = listeners(2).await;
    let raw = listeners.remove(1);
    let mut config = Config::new(0, addresses, routes(Shape::FullMesh, 2), 1000);
    config.queue_messages = 1;
    change(&mut config);
    let started = tokio::spawn(Relay::start(listeners.remove(0), config));
    let (mut peer, _) = soon(raw.accept()).await.expect("it comes");
    let (kind, hello) = read_control(&mut peer).await;
    assert_eq!(kind, FrameKind::Hello);
    let (kind, neighbour) = read_control(&mut peer).await;
    assert_eq!(kind, FrameKind::Neighbour);
    let neighbour = Neighbour::decode(&neighbour).expect("valid");
    assert_eq!((neighbour.node, neighbour.peer, neighbour.link), (0, 1, LinkUse::Topology));
    let welcome = FrameHeader::whole(FrameKind::Hello, 0, 0, 0, &hello).encode();
    peer.write_all(&[&welcome, &hello[..]].concat()).await.expect("sent");
    let (relay, inbox) = soon(started).await.expect("no panic").expect("started");
    (relay, inbox, peer)
}

#[tokio::test]
async fn a_peer_that_breaks_the_protocol_is_cut_off_and_named() {
    let rules = |refusal| RelayError::Rules { node: 1, refusal };
    let broken = |reason: &str| RelayError::Malformed { node: 1, reason: reason.into() };
    let route = |from, to, hops| Route { from, to, hops, ..ROUTE };
    let credit =
        |class, count| control(FrameKind::ClassCredit, &ClassCredit { class, count, received: 0 }.encode());
    let notice = LinkNotice { by: 1, peer: 0, opened: false, topology: true, number: 0, received: Some(0) };
    let notice = |change: fn(&mut LinkNotice)| {
        let mut changed = notice;
        change(&mut changed);
        control(FrameKind::LinkNotice, &changed.encode())
    };
    let impossible = |by, peer| Ok(rules(Refusal::Notice { by, peer }));
    for (bytes, expected) in [
        (notice(|_| {}), Ok(RelayError::Lost { node: 1, kind: None, by: Some(1) })),
        (notice(|notice| notice.peer = 7), impossible(1, 7)),
        (notice(|notice| (notice.by, notice.peer) = (u32::MAX, 0)), impossible(u32::MAX, 0)),
        (notice(|notice| notice.peer = 1), impossible(1, 1)),
        // Node 0 has opened the connection, and no other one.
        (notice(|notice| notice.opened = true), impossible(1, 0)),
        // Connections that this node may have had and has forgotten.
        (notice(|notice| notice.number = 1), Ok(RelayError::Lost { node: 1, kind: None, by: None })),
        (notice(|notice| notice.topology = false), Ok(RelayError::Lost { node: 1, kind: None, by: None })),
        (notice(|notice| notice.received = Some(1)), Ok(rules(Refusal::Receipt { received: 1 }))),
        (control(FrameKind::LinkNotice, &[0; 7]), Err("cut short")),
        (vec![0xab; 36], Err("does not speak Lightship's protocol")),
        (damaged(credit(1, 1), 16), Err("checksum of the header")),
        (damaged(message(b"good"), 40), Err("checksum of the route")),
        (damaged(credit(1, 1), 34), Err("checksum of the payload")),
        (control(FrameKind::ClassCredit, b"short"), Err("cut short")),
        (hello("", 0)[..100].to_vec(), Err("an unexpected Hello frame")),
        (control(FrameKind::Query, b""), Err("an unexpected Query frame")),
        (control(FrameKind::Message, b"without a route"), Err("an unexpected Message frame")),
        (control(FrameKind::ClassCredit, &[0; 65]), Err("an unexpected ClassCredit frame")),
        ([credit(0, 0), credit(0, 0)].concat(), Err("an unexpected ClassCredit frame")),
        (routed(ROUTE, 1001, b""), Ok(broken("1001 bytes in a Message frame"))),
        (routed(ROUTE, u32::MAX, b""), Ok(broken("4294967295 bytes in a Message frame"))),
        (routed(route(1, 7, 1), 1, b""), Ok(rules(Refusal::Astray { from: 1, to: 7, hops: 1 }))),
        (routed(route(1, 1, 1), 1, b""), Ok(rules(Refusal::Astray { from: 1, to: 1, hops: 1 }))),
        (
            routed(route(1, 0, u16::MAX), 1, b""),
            Ok(rules(Refusal::Astray { from: 1, to: 0, hops: u16::MAX.into() })),
        ),
        ([message(b""), message(b"")].concat(), Ok(rules(Refusal::NoRoom { class: 1 }))),
        (credit(1, 1), Ok(rules(Refusal::Credit { class: 1, count: 1 }))),
        (
            credit(u32::MAX, u32::MAX),
            Ok(rules(Refusal::Credit { class: u32::MAX as usize, count: u32::MAX as usize })),
        ),
        (
            routed(ROUTE, 500, b""),
            Ok(RelayError::Lost { node: 1, kind: Some(std::io::ErrorKind::UnexpectedEof), by: None }),
        ),
        (
            control(FrameKind::Lost, &encode_lost(5)),
            Ok(RelayError::Lost { node: 5, kind: None, by: Some(1) }),
        ),
    ] {
        let (relay, mut inbox, mut peer) = with_raw_peer().await;
        peer.write_all(&bytes).await.expect("sent");
        peer.shutdown().await.expect("sent");
        let error = soon(async {
            loop {
                match inbox.recv().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("not silently"),
                    Err(error) => return error,
                }
            }
        })
        .await;
        match expected {
            Ok(expected) => assert_eq!(error, expected),
            Err(expected) => {
                assert!(error.to_string().starts_with("node 1 sent an invalid frame: "), "{error}");
                assert!(error.to_string().contains(expected), "{error}, expected {expected}");
            }
        }
        assert_eq!(soon(relay.close()).await, Err(error));
    }
    // A valid message arrives.
    let (_relay, mut inbox, mut peer) = with_raw_peer().await;
    peer.write_all(&message(b"good")).await.expect("sent");
    let arrived = soon(inbox.recv()).await.expect("no failure").expect("a message");
    assert_eq!(&arrived.bytes[..], b"good");
    // Its receiver verifies the payload of a message.
    let (relay, mut inbox, mut peer) = with_raw_peer().await;
    peer.write_all(&damaged(message(b"good"), 57)).await.expect("sent");
    let error = soon(inbox.recv()).await.expect_err("damaged");
    assert!(error.to_string().contains("checksum of the payload"), "{error}");
    assert_eq!(soon(relay.close()).await, Err(error));
    // A peer may close in order, although messages for it are queued.
    let (relay, _, mut peer) = with_raw_peer().await;
    peer.write_all(&control(FrameKind::Close, &[])).await.expect("sent");
    let refused = soon(async {
        loop {
            if let Err(error) = relay.send(1, Bytes::new()).await {
                return error;
            }
        }
    })
    .await;
    assert_eq!(refused, RelayError::Unroutable(Refusal::NoWay { to: 1 }));
}

/// Like a suspended process: it sends nothing, and its sockets stay open.
#[tokio::test]
async fn a_peer_that_hangs_is_named() {
    let brief = |config: &mut Config| config.ping_interval = Duration::from_millis(50);
    let (relay, mut inbox, mut peer) = with_raw_peer_and(brief).await;
    // It is not lost while it sends heartbeats, even if it sends nothing else.
    for number in 1..9 {
        assert_eq!(read_control(&mut peer).await.0, FrameKind::Ping);
        let ping = FrameHeader::whole(FrameKind::Ping, 0, 0, number, &[]);
        peer.write_all(&ping.encode()).await.expect("sent");
    }
    let error = soon(inbox.recv()).await.expect_err("it is lost");
    assert_eq!(error, RelayError::Lost { node: 1, kind: Some(std::io::ErrorKind::TimedOut), by: None });
    assert_eq!(error.to_string(), "node 1 was lost: no sign of life from it");
    assert_eq!(soon(relay.close()).await, Err(error));
}

#[tokio::test]
async fn connections_without_a_valid_hello_are_closed() {
    let routes = routes(Shape::Ring, 3);
    let (listeners, addresses) = listeners(3).await;
    let mut starting = JoinSet::new();
    for (node, listener) in (0..).zip(listeners) {
        let config = Config::new(node, addresses.clone(), Arc::clone(&routes), MESSAGE_BYTES_MAX);
        starting.spawn(async move { (node, Relay::start(listener, config).await.expect("started")) });
    }
    let mut started = soon(starting.join_all()).await;
    started.sort_by_key(|(node, _)| *node);
    let (relays, mut inboxes): (Vec<_>, Vec<_>) = started.into_iter().map(|(_, started)| started).unzip();
    for bytes in [b"GET / HTTP/1.1\r\n\r\n padding padding".to_vec(), hello("", 0), hello("", 7), vec![]] {
        let mut unauthenticated = TcpStream::connect(addresses[0]).await.expect("connected");
        unauthenticated.write_all(&bytes).await.expect("sent");
        unauthenticated.shutdown().await.expect("sent");
        let mut answer = Vec::new();
        // Nothing, or a refusal.
        let _ = soon(unauthenticated.read_to_end(&mut answer)).await;
        assert!(answer.is_empty() || answer[5] == FrameKind::Error as u8, "{answer:?}");
    }
    // A silent connection does not delay the close.
    let silent = TcpStream::connect(addresses[0]).await.expect("connected");
    exchange(&relays, &mut inboxes, 0, 1).await;
    close(&relays).await;
    drop(silent);
}

#[tokio::test]
async fn invalid_configurations_are_refused() {
    let listener = || async { TcpListener::bind("127.0.0.1:0").await.expect("a port") };
    let address = listener().await.local_addr().expect("bound");
    let config = Config::new(0, vec![address; 3], routes(Shape::Ring, 3), 10);
    for config in [
        Config { node: 3, ..config.clone() },
        Config { addresses: vec![address; 2], ..config.clone() },
        Config { queue_messages: 0, ..config.clone() },
        Config { window_messages: 0, ..config.clone() },
        Config { message_bytes_max: 0, ..config.clone() },
    ] {
        let error = Relay::start(listener().await, config).await.map(|_| ());
        assert!(matches!(error, Err(RelayError::Config(_))), "{error:?}");
    }
    // Two neighbours and a direct connection, one class of hops, queues of 4, and 32 own messages.
    assert_eq!(config.memory_bytes_max(1), (2 * 3 * (4 + 2) + 32) * 10);
}
