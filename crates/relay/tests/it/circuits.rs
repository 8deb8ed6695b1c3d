//! Circuits over relays with real sockets.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::future::join_all;
use lightship_overlay::Shape;
use lightship_relay::{Circuit, Circuits, CircuitsConfig, Config, Incoming, RelayError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::support::*;

const WINDOW: u32 = 64 << 10;
const DEFAULT: CircuitsConfig = CircuitsConfig { window_bytes: WINDOW, circuits_max: 100 };

async fn nodes(
    shape: Shape,
    nodes: usize,
    config: CircuitsConfig,
    change: impl Fn(&mut Config),
) -> (Vec<Circuits>, Vec<Incoming>) {
    let (relays, inboxes) = start(shape, nodes, change).await;
    let started = relays.into_iter().zip(inboxes);
    started.map(|(relay, inbox)| Circuits::start(relay, inbox, config).expect("started")).unzip()
}

/// Both ends of a circuit.
async fn open(from: &Circuits, to: u32, incoming: &mut Incoming) -> (Circuit, Circuit) {
    let mut ours = from.open(to).expect("open");
    assert_eq!(ours.peer(), to);
    // Writes do not wait for an answer.
    ours.write_all(b"?").await.expect("written");
    let (_, mut theirs) = soon(incoming.accept()).await.expect("a circuit");
    assert_eq!(soon(theirs.read_u8()).await.expect("read"), b'?');
    (ours, theirs)
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (seed * 31 + at * 7 + at / 253) as u8).collect()
}

/// Writes all bytes and ends the stream, and at the same time reads all bytes of the other end.
async fn exchange_all(circuit: Circuit, write: Vec<u8>) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(circuit);
    let writing = async {
        writer.write_all(&write).await.expect("written");
        writer.shutdown().await.expect("ended");
    };
    let mut read = Vec::new();
    let (_, done) = futures::future::join(writing, reader.read_to_end(&mut read)).await;
    done.expect("read");
    read
}

/// Closes all nodes, once no circuit is open at any of them.
async fn close_all(circuits: &[Circuits]) {
    until(|| circuits.iter().all(|circuits| circuits.stats().open == 0)).await;
    for closed in soon(join_all(circuits.iter().map(Circuits::close))).await {
        closed.expect("closed in good order");
    }
}

fn reset<T: std::fmt::Debug>(done: std::io::Result<T>) -> String {
    let error = done.expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_circuit_carries_a_megabyte_in_each_direction() {
    for (shape, message_bytes_max) in
        [(Shape::Ring, 10_000), (Shape::Tree { arity: 2 }, 3 << 20), (Shape::Ring, 25)]
    {
        let length = if message_bytes_max < 100 { 5_000 } else { 1 << 20 };
        let (circuits, mut incoming) =
            nodes(shape, 7, DEFAULT, |config| config.message_bytes_max = message_bytes_max).await;
        let (ours, theirs) = open(&circuits[3], 6, &mut incoming[6]).await;
        let (there, back) = (bytes(1, length), bytes(2, length + 1));
        let both =
            futures::future::join(exchange_all(ours, there.clone()), exchange_all(theirs, back.clone()));
        let (came_back, came_there) = soon(both).await;
        assert!(came_there == there && came_back == back);
        let stats = circuits[3].stats();
        assert_eq!((stats.opened, stats.accepted, stats.open_max), (1, 0, 1));
        assert_eq!((stats.sent_bytes, stats.received_bytes), (length as u64 + 1, length as u64 + 1));
        assert!(circuits.iter().any(|circuits| circuits.stats().relay.counts.forwarded > 0));
        close_all(&circuits).await;
        assert!(soon(incoming[6].accept()).await.is_none());
        assert_eq!(circuits[3].open(6).map(drop), Err(RelayError::Closed));
    }
}

#[tokio::test]
async fn a_circuit_that_is_not_read_does_not_hold_up_others() {
    let (circuits, mut incoming) = nodes(Shape::Tree { arity: 2 }, 3, DEFAULT, |config| {
        config.message_bytes_max = 5000;
        config.queue_messages = 1;
        config.window_messages = 2;
    })
    .await;
    let (mut stopped, mut unread) = open(&circuits[1], 2, &mut incoming[2]).await;
    let written = Arc::new(AtomicUsize::new(0));
    let length = 10 * WINDOW as usize;
    let writing = tokio::spawn({
        let written = Arc::clone(&written);
        async move {
            for piece in bytes(9, length).chunks(1000) {
                stopped.write_all(piece).await.expect("written");
                written.fetch_add(piece.len(), Ordering::SeqCst);
            }
            stopped.shutdown().await.expect("ended");
            stopped
        }
    });
    let mut tasks = JoinSet::new();
    for number in 0..30 {
        let (ours, theirs) = open(&circuits[1], 2, &mut incoming[2]).await;
        tasks.spawn(async move {
            assert_eq!(exchange_all(ours, bytes(number, 200_000)).await, bytes(number + 1, 150_000))
        });
        tasks.spawn(async move {
            assert_eq!(exchange_all(theirs, bytes(number + 1, 150_000)).await, bytes(number, 200_000))
        });
    }
    soon(tasks.join_all()).await;
    let before = written.load(Ordering::SeqCst);
    assert!(!writing.is_finished() && before <= 2 * WINDOW as usize, "{before}");
    let mut read = Vec::new();
    soon(unread.read_to_end(&mut read)).await.expect("read");
    assert_eq!(read, bytes(9, length));
    drop((unread, soon(writing).await.expect("no panic")));
    close_all(&circuits).await;
}

#[tokio::test]
async fn a_shutdown_ends_the_stream_and_a_drop_resets_it() {
    let (circuits, mut incoming) = nodes(Shape::Ring, 5, DEFAULT, |_| {}).await;
    let (from, to) = (&circuits[0], &mut incoming[2]);

    // One direction ends, the other continues.
    let (mut ours, mut theirs) = open(from, 2, to).await;
    ours.write_all(b"question").await.expect("written");
    ours.shutdown().await.expect("ended");
    assert_eq!(ours.write(b"more").await.expect_err("ended").kind(), ErrorKind::BrokenPipe);
    let mut read = Vec::new();
    soon(theirs.read_to_end(&mut read)).await.expect("read");
    assert_eq!(read, b"question");
    theirs.write_all(&bytes(1, 100_000)).await.expect("written");
    theirs.shutdown().await.expect("ended");
    // A stream that was shut down arrives, even if its circuit is dropped.
    drop(theirs);
    let mut read = Vec::new();
    soon(ours.read_to_end(&mut read)).await.expect("read");
    assert_eq!(read, bytes(1, 100_000));
    assert_eq!(ours.read(&mut [0]).await.expect("still the end"), 0);
    drop(ours);

    // Shut down and dropped immediately; the other end gets an error when it writes.
    let (mut ours, mut theirs) = open(from, 2, to).await;
    ours.write_all(b"last words").await.expect("written");
    ours.shutdown().await.expect("ended");
    drop(ours);
    let mut read = Vec::new();
    soon(theirs.read_to_end(&mut read)).await.expect("read");
    assert_eq!(read, b"last words");
    soon(async { while theirs.write_all(&[0; 1000]).await.is_ok() {} }).await;
    assert_eq!(reset(theirs.write(b"?").await), "node 0 dropped the circuit");
    drop(theirs);

    // Dropped: neither end waits for ever, reading or writing.
    let (ours, mut theirs) = open(from, 2, to).await;
    drop(ours);
    assert_eq!(reset(soon(theirs.read(&mut [0])).await), "node 0 dropped the circuit");
    drop(theirs);
    let (mut ours, theirs) = open(from, 2, to).await;
    drop(theirs);
    let error = soon(async {
        loop {
            if let Err(error) = ours.write_all(&[0; 1000]).await {
                return error;
            }
        }
    });
    assert_eq!(reset(Err::<(), _>(error.await)), "node 2 dropped the circuit");
    drop(ours);
    // Opened, and dropped before it is accepted.
    drop(from.open(2).expect("open"));
    let (_, mut seen) = soon(to.accept()).await.expect("a circuit");
    reset(soon(seen.read(&mut [0])).await);
    drop(seen);
    assert_eq!(
        from.open(0).map(drop).expect_err("itself").to_string(),
        "no circuit from node 0 to node 0: expected another of 5 nodes"
    );
    assert!(from.open(5).is_err());
    close_all(&circuits).await;
}

#[tokio::test]
async fn closing_a_node_resets_its_circuits_and_sends_finished_streams() {
    let (circuits, mut incoming) = nodes(Shape::FullMesh, 2, DEFAULT, |_| {}).await;
    let (mut ours, mut theirs) = open(&circuits[0], 1, &mut incoming[1]).await;
    let (mut ended, mut read_late) = open(&circuits[0], 1, &mut incoming[1]).await;
    ended.write_all(&bytes(4, 300_000)[..50_000]).await.expect("written");
    ended.shutdown().await.expect("ended");
    let closing = tokio::spawn({
        let circuits = circuits[0].clone();
        async move { circuits.close().await }
    });
    assert_eq!(reset(soon(theirs.read(&mut [0])).await), "node 0 is closing");
    let error = soon(ours.read(&mut [0])).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    let mut read = Vec::new();
    soon(read_late.read_to_end(&mut read)).await.expect("read");
    assert_eq!(read, bytes(4, 300_000)[..50_000]);
    soon(circuits[1].close()).await.expect("closed in good order");
    soon(closing).await.expect("no panic").expect("closed in good order");
}

#[tokio::test(flavor = "multi_thread")]
async fn circuits_over_a_killed_node_fail_and_name_it() {
    let (circuits, mut incoming) = nodes(Shape::Ring, 6, DEFAULT, |_| {}).await;
    let mut waiting = JoinSet::new();
    for (from, to) in [(0, 2), (0, 4), (3, 0), (5, 2)] {
        let (mut ours, mut theirs) = open(&circuits[from], to, &mut incoming[to as usize]).await;
        waiting.spawn(
            async move { tokio::io::copy(&mut ours, &mut tokio::io::sink()).await.expect_err("lost") },
        );
        waiting.spawn(async move {
            loop {
                if let Err(error) = theirs.write_all(&[0; 1000]).await {
                    return error;
                }
            }
        });
    }
    circuits[1].relay().kill();
    for error in soon(waiting.join_all()).await {
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        assert!(error.to_string().starts_with("node 1 was lost: "), "{error}");
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<RelayError>());
        assert_eq!(inner.and_then(RelayError::node), Some(1));
    }
    assert!(soon(incoming[0].accept()).await.is_none());
    assert_eq!(circuits[0].open(2).map(drop).expect_err("lost").node(), Some(1));
    assert_eq!(soon(circuits[0].close()).await.expect_err("lost").node(), Some(1));
    // Dropping the last handle fails all circuits.
    let (circuits, mut incoming) = nodes(Shape::FullMesh, 2, DEFAULT, |_| {}).await;
    let (mut ours, mut theirs) = open(&circuits[0], 1, &mut incoming[1]).await;
    let mut circuits = circuits.into_iter();
    drop(circuits.next());
    assert_eq!(soon(ours.read(&mut [0])).await.expect_err("closed").to_string(), "the relay is closed");
    assert!(soon(theirs.read(&mut [0])).await.expect_err("lost").to_string().starts_with("node 0 was lost"));
}

#[tokio::test]
async fn circuits_beyond_the_limit_are_refused() {
    let few = CircuitsConfig { circuits_max: 3, ..DEFAULT };
    let (relays, inboxes) = start(Shape::FullMesh, 2, |_| {}).await;
    let mut started = relays
        .into_iter()
        .zip(inboxes)
        .zip([DEFAULT, few])
        .map(|((relay, inbox), config)| Circuits::start(relay, inbox, config).expect("started"));
    let ((many, _), (few, mut incoming)) = (started.next().expect("one"), started.next().expect("another"));
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(open(&many, 1, &mut incoming).await);
    }
    for _ in 0..10 {
        let mut refused = many.open(1).expect("open");
        // These bytes are sent before the refusal arrives.
        refused.write_all(&[0; 10_000]).await.expect("written");
        assert_eq!(reset(soon(refused.read(&mut [0])).await), "node 1 has reached its limit of circuits");
    }
    assert_eq!(few.open(0).map(drop), Err(RelayError::CircuitsFull { max: 3 }));
    assert_eq!((few.stats().open, few.stats().open_max, few.stats().refused), (3, 3, 10));
    taken.pop();
    until(|| few.stats().open == 2).await;
    taken.push(open(&many, 1, &mut incoming).await);
    // Without `Incoming`, waiting circuits and later ones are refused.
    taken.pop();
    until(|| few.stats().open == 2).await;
    let mut waits = many.open(1).expect("open");
    until(|| few.stats().open == 3).await;
    drop(incoming);
    assert_eq!(reset(soon(waits.read(&mut [0])).await), "node 1 accepts no circuits");
    let mut late = many.open(1).expect("open");
    assert_eq!(reset(soon(late.read(&mut [0])).await), "node 1 accepts no circuits");
    drop((taken, waits, late));
    close_all(&[many, few]).await;
}

/// Small queues, many routes, and direct connections that change: messages overtake each other.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_arrive_in_order_over_many_routes() {
    const NODES: usize = 8;
    for seed in 1..4 {
        let (circuits, incoming) = nodes(Shape::Hypercube, NODES, DEFAULT, |config| {
            config.message_bytes_max = 300;
            config.queue_messages = 1;
            config.seed = seed;
        })
        .await;
        let mut tasks = JoinSet::new();
        for (node, mut incoming) in incoming.into_iter().enumerate() {
            tasks.spawn(async move {
                let mut echoes = JoinSet::new();
                for _ in 0..NODES - 1 {
                    let (_, circuit) = incoming.accept().await.expect("a circuit");
                    let (mut read, mut write) = tokio::io::split(circuit);
                    echoes.spawn(async move {
                        tokio::io::copy(&mut read, &mut write).await.expect("copied");
                        write.shutdown().await.expect("ended");
                    });
                }
                echoes.join_all().await;
                node
            });
        }
        for (from, opener) in circuits.iter().enumerate() {
            for to in (0..NODES).filter(|to| *to != from) {
                let circuit = opener.open(to as u32).expect("open");
                tasks.spawn(async move {
                    let data = bytes(from * NODES + to, 20_000);
                    assert!(exchange_all(circuit, data.clone()).await == data, "{from} to {to}");
                    from
                });
            }
        }
        let mut round = 0;
        while let Some(done) = soon(tasks.join_next()).await {
            let node = done.expect("no panic");
            round += 1;
            circuits[node].relay().set_direct(vec![((node + 1 + round % (NODES - 1)) % NODES) as u32], 1);
        }
        until(|| circuits.iter().all(|circuits| circuits.stats().open == 0)).await;
        assert!(circuits.iter().all(|circuits| circuits.stats().received_bytes == 2 * 7 * 20_000));
    }
}

#[tokio::test]
async fn a_node_that_sends_something_else_is_cut_off() {
    let (mut relays, mut inboxes) = start(Shape::FullMesh, 3, |_| {}).await;
    // Node 1 sends messages that are not of circuits.
    let (other, mut inbox) = (relays.remove(1), inboxes.remove(1));
    let mut started = relays
        .into_iter()
        .zip(inboxes)
        .map(|(relay, inbox)| Circuits::start(relay, inbox, DEFAULT).expect("started"));
    let ((circuits, _incoming), (third, mut to_third)) =
        (started.next().expect("0"), started.next().expect("2"));
    let mut to_other = circuits.open(1).expect("open");
    let (ours, theirs) = open(&circuits, 2, &mut to_third).await;
    let opened = soon(inbox.recv()).await.expect("no failure").expect("a message");
    assert_eq!(&opened.bytes[..4], b"LC\x01\x01");
    other.send(0, Bytes::from_static(b"what is this?")).await.expect("sent");
    let error = soon(to_other.read(&mut [0])).await.expect_err("cut off");
    let expected = "node 1 broke the protocol of circuits: not a message of a circuit";
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::ConnectionAborted, expected));
    assert_eq!(circuits.open(1).map(drop).expect_err("cut off").to_string(), expected);
    let off = soon(inbox.recv()).await.expect("no failure").expect("a message");
    assert_eq!(&off.bytes[..4], b"LC\x01\x06");
    // Its later messages are ignored, and other nodes are not affected.
    other.send(0, off.bytes).await.expect("sent");
    let both =
        futures::future::join(exchange_all(ours, bytes(1, 1000)), exchange_all(theirs, bytes(2, 1000)));
    assert_eq!(soon(both).await, (bytes(2, 1000), bytes(1, 1000)));
    assert!(third.open(1).is_ok());
    // Messages without room for data.
    let (relays, inboxes) = start(Shape::FullMesh, 2, |config| config.message_bytes_max = 24).await;
    for (relay, inbox) in relays.into_iter().zip(inboxes) {
        let error = Circuits::start(relay, inbox, DEFAULT).map(drop);
        assert!(matches!(error, Err(RelayError::Config(_))), "{error:?}");
    }
}
