//! Nodes that restart in another epoch on the same ports, one after the other.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use lightship_overlay::Shape;
use lightship_relay::{Config, Inbox, Relay, RelayError, Result};
use tokio::task::JoinHandle;

use crate::support::*;

/// A node's listener, which is reused by its next relay.
fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// Starts node `node` of the nodes at `addresses`, on a clone of its listener.
fn starting(
    listener: &TcpListener,
    node: u32,
    addresses: &[SocketAddr],
    epoch: u64,
    connect_timeout: Duration,
) -> JoinHandle<Result<(Relay, Inbox)>> {
    let listener = listener.try_clone().expect("a clone");
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    let routes = routes(Shape::FullMesh, addresses.len());
    let config = Config { epoch, connect_timeout, ..Config::new(node, addresses.to_vec(), routes, 1000) };
    tokio::spawn(Relay::start(listener, config))
}

async fn started(starting: JoinHandle<Result<(Relay, Inbox)>>) -> (Relay, Inbox) {
    soon(starting).await.expect("no panic").expect("started")
}

/// Starts two nodes in epoch 1 and a third in epoch 2, then restarts the two in epoch 2. The arguments are
/// the numbers in epoch 2.
async fn restart_with_a_third([number_a, number_b, number_c]: [u32; 3]) {
    let ((a, at_a), (b, at_b), (c, at_c)) = (listener(), listener(), listener());
    let before = [at_a, at_b];
    let mut after = [(number_a, at_a), (number_b, at_b), (number_c, at_c)];
    after.sort_unstable();
    let after = after.map(|(_, address)| address);
    let (old_a, old_b) = (starting(&a, 0, &before, 1, PATIENCE), starting(&b, 1, &before, 1, PATIENCE));
    let ((relay_a, inbox_a), (relay_b, inbox_b)) = (started(old_a).await, started(old_b).await);

    let new_c = starting(&c, number_c, &after, 2, PATIENCE);
    let (relays, mut inboxes) = ([relay_a, relay_b], [inbox_a, inbox_b]);
    // The others continue, although the third tries to connect.
    for _ in 0..200 {
        exchange(&relays, &mut inboxes, 0, 1).await;
        exchange(&relays, &mut inboxes, 1, 0).await;
    }
    assert!(!new_c.is_finished());
    let [relay_a, relay_b] = relays;
    drop(relay_a);
    let new_a = starting(&a, number_a, &after, 2, PATIENCE);
    // The other one notices, and restarts later.
    let error = soon(inboxes[1].recv()).await.expect_err("its neighbour is gone");
    assert_eq!(error.node(), Some(0));
    drop((relay_b, inboxes));
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(!new_a.is_finished() && !new_c.is_finished());
    let new_b = starting(&b, number_b, &after, 2, PATIENCE);
    let mut nodes = Vec::new();
    for (number, new) in [(number_a, new_a), (number_b, new_b), (number_c, new_c)] {
        nodes.push((number, started(new).await));
    }
    nodes.sort_by_key(|(number, _)| *number);
    let (relays, mut inboxes): (Vec<_>, Vec<_>) = nodes.into_iter().map(|(_, node)| node).unzip();
    for (from, to) in [(0, 1), (1, 2), (2, 0), (1, 0)] {
        exchange(&relays, &mut inboxes, from, to).await;
    }
    close(&relays).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_third_node_joins_when_all_restart_in_the_next_epoch() {
    // The third opens connections to both, to one, or to none of the others.
    for numbers in [[1, 2, 0], [0, 2, 1], [0, 1, 2], [2, 1, 0]] {
        restart_with_a_third(numbers).await;
    }
}

#[tokio::test]
async fn nodes_of_different_epochs_refuse_each_other() {
    let ((a, at_a), (b, at_b)) = (listener(), listener());
    let addresses = [at_a, at_b];
    let (other, mine) = (
        starting(&b, 1, &addresses, 8, Duration::from_secs(5)),
        starting(&a, 0, &addresses, 7, Duration::from_millis(300)),
    );
    let error = soon(mine).await.expect("no panic").map(drop).expect_err("refused");
    let expected = "no connection to node 1: it refused the connection: epoch, topology, queue size or largest \
                    message differ";
    assert_eq!(error.to_string(), expected);
    // The other one has not failed because of it.
    let mine = starting(&a, 0, &addresses, 8, PATIENCE);
    let ((relay_a, _inbox_a), (relay_b, _inbox_b)) = (started(mine).await, started(other).await);
    close(&[relay_a, relay_b]).await;
}

/// A node connects and gives up before the other one accepts: its connection is still in the accept queue.
#[tokio::test]
async fn a_connection_whose_node_has_given_up_is_skipped() {
    let ((a, at_a), (b, at_b)) = (listener(), listener());
    let addresses = [at_a, at_b];
    for _ in 0..3 {
        let early = starting(&a, 0, &addresses, 1, Duration::from_millis(50));
        let error = soon(early).await.expect("no panic").map(drop).expect_err("nobody answers");
        assert!(matches!(error, RelayError::Missing { .. } | RelayError::Connect { .. }), "{error}");
    }
    for _ in 0..3 {
        let starting_b = starting(&b, 1, &addresses, 1, PATIENCE);
        let starting_a = starting(&a, 0, &addresses, 1, PATIENCE);
        let (relay_b, inbox_b) = started(starting_b).await;
        let (relay_a, inbox_a) = started(starting_a).await;
        let relays = [relay_a, relay_b];
        exchange(&relays, &mut [inbox_a, inbox_b], 0, 1).await;
        close(&relays).await;
    }
}
