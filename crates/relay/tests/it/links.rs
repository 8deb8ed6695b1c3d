//! Connections that break while both of their nodes live.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use lightship_overlay::Shape;
use lightship_relay::{Config, Inbox, Relay, RelayError, Tunnels, TunnelsConfig};
use lightship_testkit::proxy::Proxy;
use lightship_wire::frame::{FrameHeader, FrameKind};
use tokio::task::JoinSet;

use crate::support::*;

/// Nodes, and a proxy for each link, by the node that opens it and the other.
async fn start_with_proxies(
    shape: Shape,
    nodes: usize,
    change: impl Fn(&mut Config),
) -> (Vec<Relay>, Vec<Inbox>, BTreeMap<(u32, u32), Proxy>) {
    let routes = routes(shape, nodes);
    let (listeners, addresses) = listeners(nodes).await;
    let mut proxies = BTreeMap::new();
    let mut starting = JoinSet::new();
    for (node, listener) in (0..).zip(listeners) {
        let mut config = Config::new(node, addresses.clone(), Arc::clone(&routes), MESSAGE_BYTES_MAX);
        for peer in routes.topology().links(node as usize).iter().filter(|peer| **peer > node) {
            let proxy = Proxy::listen().await;
            proxy.lead_to(addresses[*peer as usize]);
            config.addresses[*peer as usize] = proxy.name.parse().expect("an address");
            proxies.insert((node, *peer), proxy);
        }
        change(&mut config);
        starting.spawn(async move { (node, Relay::start(listener, config).await) });
    }
    let mut started = soon(starting.join_all()).await;
    started.sort_by_key(|(node, _)| *node);
    let (relays, inboxes) = started.into_iter().map(|(_, started)| started.expect("started")).unzip();
    (relays, inboxes, proxies)
}

/// Under load, with the smallest queues: links break one after the other, and work again.
#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_or_arrives_twice_when_links_break() {
    const MESSAGES: usize = 1500;
    let shapes = [(Shape::Ring, 6), (Shape::Circulant { offsets: vec![1, 3] }, 8), (Shape::FullMesh, 4)];
    for (shape, nodes) in shapes {
        let brief = |config: &mut Config| config.queue_messages = 1;
        let (relays, inboxes, proxies) = start_with_proxies(shape, nodes, brief).await;
        let relays = Arc::new(relays);
        let mut senders = JoinSet::new();
        for from in 0..nodes {
            let relays = Arc::clone(&relays);
            senders.spawn(async move {
                for number in 0..MESSAGES {
                    let to = (from + 1 + number % (nodes - 1)) % nodes;
                    let payload = [&(number as u64).to_le_bytes()[..], &[7; 2000]].concat();
                    relays[from].send(to as u32, payload.into()).await.expect("sent");
                }
            });
        }
        let counted = Arc::new(AtomicUsize::new(0));
        let mut receivers = JoinSet::new();
        for mut inbox in inboxes {
            let counted = Arc::clone(&counted);
            receivers.spawn(async move {
                let mut seen = BTreeSet::new();
                while let Some(message) = inbox.recv().await.expect("no failure") {
                    let number = u64::from_le_bytes(message.bytes[..8].try_into().expect("8 bytes"));
                    assert!(seen.insert((message.from, number)), "twice");
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let broken = |expected| relays.iter().all(|relay| relay.stats().broken_links == expected);
        for proxy in proxies.values() {
            proxy.cut();
            until(|| broken(1)).await;
            proxy.open();
            until(|| broken(0)).await;
        }
        soon(senders.join_all()).await;
        until(|| counted.load(Ordering::SeqCst) == nodes * MESSAGES).await;
        // Both ends count a connection that breaks.
        assert_eq!(relays.iter().map(|relay| relay.stats().broken).sum::<u64>(), 2 * proxies.len() as u64);
        close(&relays).await;
        soon(receivers.join_all()).await;
        assert_eq!(counted.load(Ordering::SeqCst), nodes * MESSAGES);
    }
}

/// All frames of a tunnel arrive, in order, while a link on its way is down.
#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_goes_around_a_link_that_breaks() {
    const FRAMES: u32 = 20_000;
    let (relays, inboxes, proxies) = start_with_proxies(Shape::Ring, 5, |_| {}).await;
    let config = TunnelsConfig::default();
    let (tunnels, mut incoming): (Vec<_>, Vec<_>) =
        relays.into_iter().zip(inboxes).map(|(relay, inbox)| Tunnels::start(relay, inbox, config)).unzip();
    let (_frames, sink) = tunnels[0].open(2).expect("open").split();
    let frame = |number: u32| {
        let part = Bytes::from(number.to_le_bytes().to_vec());
        (FrameHeader::whole(FrameKind::Message, 1, 7, number, &part), part)
    };
    let sending = tokio::spawn(async move {
        tokio::pin!(sink);
        for number in 0..FRAMES {
            sink.send(frame(number)).await.expect("sent");
        }
    });
    let (_, tunnel) = soon(incoming[2].accept()).await.expect("a tunnel");
    let (frames, _sink) = tunnel.split();
    tokio::pin!(frames);
    for number in 0..FRAMES {
        if number == FRAMES / 10 {
            // The shortest way is 0, 1, 2. It is not mended.
            proxies[&(1, 2)].cut();
        }
        let (header, part) = soon(frames.next()).await.expect("a frame").expect("no failure");
        assert_eq!((header.sequence, &part[..]), (number, &number.to_le_bytes()[..]));
    }
    soon(sending).await.expect("no panic");
    until(|| tunnels.iter().all(|node| node.relay().stats().broken_links == 1)).await;
    assert!(tunnels.iter().all(|node| !node.has_failed()));
    assert!(tunnels[4].relay().stats().counts.forwarded > 0, "the other way around the ring");
}

/// The node that no link reaches is named. It may live.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_links_all_break_is_named() {
    let (relays, mut inboxes, proxies) = start_with_proxies(Shape::Ring, 5, |_| {}).await;
    proxies[&(2, 3)].cut();
    until(|| relays.iter().all(|relay| relay.stats().broken_links == 1)).await;
    exchange(&relays, &mut inboxes, 2, 3).await;
    proxies[&(3, 4)].cut();
    for node in [0, 1, 2, 4] {
        let error = soon(inboxes[node].recv()).await.expect_err("a node is lost");
        assert!(matches!(error, RelayError::Lost { node: 3, .. }), "{node}: {error}");
    }
}

/// The connection stays open at both ends, but nothing arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_carries_nothing_is_routed_around() {
    let brief = |config: &mut Config| config.ping_interval = Duration::from_millis(100);
    let (relays, mut inboxes, proxies) = start_with_proxies(Shape::Ring, 4, brief).await;
    proxies[&(0, 1)].silence();
    // One hop over the link; it arrives after three.
    let message = exchange(&relays, &mut inboxes, 0, 1).await;
    assert_eq!(message.hops, 3);
    let message = exchange(&relays, &mut inboxes, 1, 0).await;
    assert_eq!(message.hops, 3);
    proxies[&(0, 1)].open();
    until(|| relays.iter().all(|relay| relay.stats().broken_links == 0)).await;
    assert_eq!(exchange(&relays, &mut inboxes, 0, 1).await.hops, 1);
    close(&relays).await;
}
