//! Every message arrives once, by the connections there are, inside the bounds there are.

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

/// All send to all; gives back the relays, and what was forwarded.
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
    // What has arrived has left, but need not have been counted yet.
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
async fn on_one_thread() {
    all_to_all(Shape::Ring, 6, 1).await;
}

#[tokio::test]
async fn from_nothing_to_the_largest_message() {
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
    // It was their own fault, and nobody else's.
    exchange(&relays, &mut inboxes, 0, 2).await;
    close(&relays).await;
    assert_eq!(inboxes[2].recv().await, Ok(None));
}

#[tokio::test]
async fn who_does_not_take_holds_up_who_sends() {
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
async fn direct_connections_come_and_go() {
    let (relays, mut inboxes) = start(Shape::Ring, 6, |_| {}).await;
    assert_eq!(exchange(&relays, &mut inboxes, 0, 3).await.hops, 3);
    assert_eq!(relays[0].take_demand().into_iter().collect::<Vec<_>>(), [(3, 4)]);
    assert!(relays[0].take_demand().is_empty());
    relays[0].set_direct(vec![3], 1);
    soon(relays[0].direct_settled()).await;
    assert_eq!(exchange(&relays, &mut inboxes, 0, 3).await.hops, 1);
    // It serves both ways.
    assert_eq!(exchange(&relays, &mut inboxes, 3, 0).await.hops, 1);
    assert_eq!((relays[0].direct(), relays[0].stats().connections), (vec![3], 3));
    // Another instead: never both.
    relays[0].set_direct(vec![2], 1);
    until_hops(&relays, &mut inboxes, (0, 2), 1).await;
    assert_eq!((relays[0].direct(), relays[0].stats().connections_max), (vec![2], 3));
    assert_eq!(exchange(&relays, &mut inboxes, 0, 3).await.hops, 3);
    relays[0].set_direct(vec![], 0);
    until_hops(&relays, &mut inboxes, (0, 2), 2).await;
    until(|| relays[0].direct().is_empty()).await;
    // And one that is there when all close.
    relays[1].set_direct(vec![4], 1);
    until_hops(&relays, &mut inboxes, (1, 4), 1).await;
    close(&relays).await;
}

#[tokio::test]
async fn one_way_where_only_one_sends() {
    let (relays, mut inboxes) =
        start(Shape::Original { degree: 2 }, 8, |config| config.direct_both_ways = false).await;
    // From 0 to 5 by 3, 4 and 5, from 5 to 0 by 0 itself.
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
    // Node 4 has one; the next best does.
    relays[1].set_direct(vec![4, 6], 1);
    soon(relays[1].direct_settled()).await;
    assert_eq!(exchange(&relays, &mut inboxes, 1, 6).await.hops, 1);
    assert_eq!((relays[1].direct(), relays[1].stats().refused), (vec![6], 1));
    assert_eq!(exchange(&relays, &mut inboxes, 1, 4).await.hops, 3);
    // When that one goes there is room.
    relays[0].set_direct(vec![], 0);
    until(|| relays[4].stats().connections == 2).await;
    relays[1].set_direct(vec![4], 1);
    until_hops(&relays, &mut inboxes, (1, 4), 1).await;
    close(&relays).await;
}

/// Direct connections that change all the time under load, with the narrowest queues.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_while_they_change() {
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
