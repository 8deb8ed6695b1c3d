//! Every message arrives once, over the expected connections and within the configured limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use lightship_overlay::{Shape, Topology};
use lightship_relay::{Relay, RelayError};
use tokio::task::JoinSet;

use crate::support::*;

const EACH: u64 = 20;

fn payload(from: usize, to: usize, number: u64) -> Bytes {
    let mut bytes = vec![(from * 7 + to) as u8; 100 + 997 * (number as usize % 9)];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes.into()
}

/// All nodes send to all others; checks the messages and the counts.
async fn all_to_all(shape: Shape, nodes: usize, queue_messages: usize) {
    let topology = Topology::new(shape.clone(), nodes).expect("a topology");
    let (relays, inboxes) = start(shape, nodes, |config| {
        config.queue_messages = queue_messages;
        config.window_messages = 3;
    })
    .await;
    let relays: Arc<Vec<Relay>> = Arc::new(relays);
    let mut tasks = JoinSet::new();
    for from in 0..nodes {
        let relays = Arc::clone(&relays);
        tasks.spawn(async move {
            for number in 0..EACH {
                for to in (0..nodes).filter(|to| *to != from) {
                    relays[from].send(to as u32, payload(from, to, number)).await.expect("sent");
                }
            }
            0
        });
    }
    for (to, mut inbox) in inboxes.into_iter().enumerate() {
        tasks.spawn(async move {
            let (mut seen, mut forwards) = (BTreeSet::new(), 0);
            while seen.len() < EACH as usize * (nodes - 1) {
                let message = inbox.recv().await.expect("no failure").expect("a message");
                let number = u64::from_le_bytes(message.bytes[..8].try_into().expect("8 bytes"));
                assert_eq!(message.bytes, payload(message.from as usize, to, number));
                assert!(seen.insert((message.from, number)), "twice");
                forwards += message.hops as u64 - 1;
            }
            forwards
        });
    }
    let forwards: u64 = soon(tasks.join_all()).await.into_iter().sum();
    // All messages have been sent, but may not have been counted yet.
    let each = EACH * (nodes as u64 - 1);
    until(|| relays.iter().all(|relay| relay.stats().counts.sent == each)).await;
    let stats: Vec<_> = relays.iter().map(Relay::stats).collect();
    for (stats, sockets) in stats.iter().zip(topology.sockets()) {
        assert_eq!(stats.counts.received, each);
        assert_eq!((stats.connections, stats.connections_max), (sockets, sockets));
    }
    close(&relays).await;
    let stats: Vec<_> = relays.iter().map(Relay::stats).collect();
    assert_eq!(stats.iter().map(|stats| stats.counts.forwarded).sum::<u64>(), forwards);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_to_all_over_every_kind_of_topology() {
    for (shape, nodes) in [
        (Shape::FullMesh, 6),
        (Shape::Ring, 7),
        (Shape::Tree { arity: 2 }, 7),
        (Shape::Hypercube, 8),
        (Shape::Circulant { offsets: vec![2, 5] }, 12),
        (Shape::Original { degree: 3 }, 10),
        (Shape::Kautz { degree: 2, both_ways: false }, 9),
    ] {
        for queue_messages in [1, 4] {
            all_to_all(shape.clone(), nodes, queue_messages).await;
        }
    }
}

#[tokio::test]
async fn all_to_all_on_one_thread() {
    all_to_all(Shape::Ring, 6, 1).await;
}

#[tokio::test]
async fn messages_may_be_empty_or_of_the_largest_size_and_no_larger() {
    let (relays, mut inboxes) = start(Shape::Ring, 5, |_| {}).await;
    let max = MESSAGE_BYTES_MAX as usize;
    for bytes in [0, 1, max] {
        relays[0].send(2, vec![7; bytes].into()).await.expect("sent");
        let message = soon(inboxes[2].recv()).await.expect("no failure").expect("a message");
        assert_eq!(message.bytes, vec![7; bytes]);
        assert_eq!(message.hops, 2);
    }
    let error = relays[0].send(2, vec![7; max + 1].into()).await;
    assert_eq!(error, Err(RelayError::TooLarge { bytes: max + 1, max: MESSAGE_BYTES_MAX }));
    for to in [0, 5] {
        assert!(matches!(relays[0].send(to, Bytes::new()).await, Err(RelayError::Unroutable(_))));
    }
    // The errors affect only those messages.
    exchange(&relays, &mut inboxes, 0, 2).await;
    close(&relays).await;
    assert_eq!(inboxes[2].recv().await, Ok(None));
}

#[tokio::test]
async fn a_node_that_does_not_receive_holds_up_the_sender() {
    let (relays, mut inboxes) = start(Shape::FullMesh, 2, |config| {
        config.queue_messages = 2;
        config.window_messages = 3;
    })
    .await;
    let relays = Arc::new(relays);
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let sender = tokio::spawn({
        let (relays, sent) = (Arc::clone(&relays), Arc::clone(&sent));
        async move {
            for number in 0..100 {
                relays[0].send(1, payload(0, 1, number)).await.expect("sent");
                sent.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
    });
    until(|| relays[1].stats().counts.received == 2 && sent.load(std::sync::atomic::Ordering::SeqCst) == 5)
        .await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert_eq!(relays[1].stats().counts.received, 2);
        assert_eq!(sent.load(std::sync::atomic::Ordering::SeqCst), 5);
    }
    for _ in 0..100 {
        soon(inboxes[1].recv()).await.expect("no failure").expect("a message");
    }
    soon(sender).await.expect("no panic");
    close(&relays).await;
}

#[tokio::test]
async fn direct_connections_open_and_close() {
    let (relays, mut inboxes) = start(Shape::Ring, 6, |_| {}).await;
    assert_eq!(exchange(&relays, &mut inboxes, 0, 3).await.hops, 3);
    assert_eq!(relays[0].take_demand().into_iter().collect::<Vec<_>>(), [(3, 4)]);
    assert!(relays[0].take_demand().is_empty());
    relays[0].set_direct(vec![3], 1);
    soon(relays[0].direct_settled()).await;
    assert_eq!(exchange(&relays, &mut inboxes, 0, 3).await.hops, 1);
    // It is used in both directions.
    assert_eq!(exchange(&relays, &mut inboxes, 3, 0).await.hops, 1);
    assert_eq!((relays[0].direct(), relays[0].stats().connections), (vec![3], 3));
    // A different one: never both at a time.
    relays[0].set_direct(vec![2], 1);
    until_hops(&relays, &mut inboxes, (0, 2), 1).await;
    assert_eq!((relays[0].direct(), relays[0].stats().connections_max), (vec![2], 3));
    assert_eq!(exchange(&relays, &mut inboxes, 0, 3).await.hops, 3);
    relays[0].set_direct(vec![], 0);
    until_hops(&relays, &mut inboxes, (0, 2), 2).await;
    until(|| relays[0].direct().is_empty()).await;
    // And one that is open when all nodes close.
    relays[1].set_direct(vec![4], 1);
    until_hops(&relays, &mut inboxes, (1, 4), 1).await;
    close(&relays).await;
}

#[tokio::test]
async fn a_one_way_connection_is_not_used_backwards() {
    let (relays, mut inboxes) =
        start(Shape::Original { degree: 2 }, 8, |config| config.direct_both_ways = false).await;
    // Node 0 has a direct connection to node 5; node 5 has none to node 0.
    relays[0].set_direct(vec![5], 1);
    until_hops(&relays, &mut inboxes, (0, 5), 1).await;
    let back = Topology::new(Shape::Original { degree: 2 }, 8).expect("a topology");
    let hops = lightship_overlay::Routes::new(back).hops(5, 0);
    assert_eq!(exchange(&relays, &mut inboxes, 5, 0).await.hops, hops);
    close(&relays).await;
}

#[tokio::test]
async fn a_receiver_refuses_more_than_it_accepts() {
    let (relays, mut inboxes) = start(Shape::Ring, 9, |config| config.accepted_max = Some(1)).await;
    relays[0].set_direct(vec![4], 1);
    until_hops(&relays, &mut inboxes, (0, 4), 1).await;
    // Node 4 has reached its limit; the next best peer is used.
    relays[1].set_direct(vec![4, 6], 1);
    soon(relays[1].direct_settled()).await;
    assert_eq!(exchange(&relays, &mut inboxes, 1, 6).await.hops, 1);
    assert_eq!((relays[1].direct(), relays[1].stats().refused), (vec![6], 1));
    assert_eq!(exchange(&relays, &mut inboxes, 1, 4).await.hops, 3);
    // When that connection is closed, node 4 accepts another one.
    relays[0].set_direct(vec![], 0);
    until(|| relays[4].stats().connections == 2).await;
    relays[1].set_direct(vec![4], 1);
    until_hops(&relays, &mut inboxes, (1, 4), 1).await;
    close(&relays).await;
}

/// Under load, with the smallest queues.
#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_while_direct_connections_change() {
    const NODES: usize = 8;
    let (relays, inboxes) = start(Shape::Ring, NODES, |config| {
        config.queue_messages = 1;
        config.accepted_max = Some(2);
    })
    .await;
    let relays = Arc::new(relays);
    let mut tasks = JoinSet::new();
    for from in 0..NODES {
        let relays = Arc::clone(&relays);
        tasks.spawn(async move {
            for number in 0..400 {
                let to = (from + 1 + number % (NODES - 1)) % NODES;
                relays[from].send(to as u32, payload(from, to, number as u64)).await.expect("sent");
                if number % 10 == 0 {
                    let others = (0..3).map(|more| ((from + 2 + number / 10 + more) % NODES) as u32);
                    relays[from].set_direct(others.collect(), 1);
                }
            }
        });
    }
    let expected: usize = NODES * 400;
    let counted = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut receivers = JoinSet::new();
    for mut inbox in inboxes {
        let counted = Arc::clone(&counted);
        receivers.spawn(async move {
            let mut seen = BTreeSet::new();
            while let Some(message) = inbox.recv().await.expect("no failure") {
                let number = u64::from_le_bytes(message.bytes[..8].try_into().expect("8 bytes"));
                assert!(seen.insert((message.from, number)), "twice");
                counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        });
    }
    soon(tasks.join_all()).await;
    until(|| counted.load(std::sync::atomic::Ordering::SeqCst) == expected).await;
    for relay in relays.iter() {
        let stats = relay.stats();
        // Two of the ring, one opened, two accepted.
        assert!(stats.connections_max <= 5, "{stats:?}");
    }
    assert!(relays.iter().map(|relay| relay.stats().opened).sum::<u64>() > 0);
    close(&relays).await;
    soon(receivers.join_all()).await;
    assert_eq!(counted.load(std::sync::atomic::Ordering::SeqCst), expected);
}
