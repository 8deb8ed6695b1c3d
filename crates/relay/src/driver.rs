//! The task that accepts and opens all connections of a node. It ends after the last of them.

use std::sync::Arc;

use lightship_overlay::forwarder::{Forwarder, Refusal, Trouble};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::connection::{answer, dial, dial_direct};
use crate::error::{RelayError, Result};
use crate::frame::RoutedFrame;
use crate::state::RelayState;

/// Unauthenticated connections that are accepted beyond those of the overlay.
const UNAUTHENTICATED_MAX: usize = 64;

/// After this many intervals of heartbeats, a node that has not told what it has received is lost.
const SETTLING_INTERVALS: u32 = 3;

/// Runs a node's connections until it is closed or has failed, and all of them have ended.
pub(crate) async fn drive(shared: Arc<RelayState>, listener: TcpListener) {
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    let mut status = shared.status.subscribe();
    let config = &shared.config;
    let links = Forwarder::<RoutedFrame>::topology_links(&config.routes, config.node);
    let tasks_max = links.len() + 2 * config.addresses.len() + UNAUTHENTICATED_MAX;
    for link in links.into_iter().filter(|link| link.opens) {
        tasks.spawn(dial(Arc::clone(&shared), link.id, link.peer));
    }
    let mut listener = Some(listener);
    // When messages that can't go on end this node.
    let mut deadline: Option<(Trouble, Instant)> = None;
    loop {
        let trouble = shared.with(|state| state.forwarder.trouble());
        deadline = trouble.map(|trouble| match deadline {
            Some((same, at)) if same == trouble => (trouble, at),
            _ => (trouble, Instant::now() + SETTLING_INTERVALS * config.ping_interval),
        });
        let settled = async {
            match deadline {
                Some((_, deadline)) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let stops = {
            let status = status.borrow_and_update();
            status.closing || status.error.is_some()
        };
        if stops {
            // The listener is dropped, so that new connections are refused at once.
            listener = None;
            if tasks.is_empty() {
                break;
            }
        }
        let has_room = tasks.len() < tasks_max;
        let accept = async {
            match &listener {
                Some(listener) if has_room => listener.accept().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = accept => match accepted {
                Ok((socket, _)) => drop(tasks.spawn(answer(Arc::clone(&shared), socket))),
                // Usually out of file descriptors. Waiting connections are accepted when one is free.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            },
            Some(done) = tasks.join_next() => match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => shared.fail(error),
                Err(error) if error.is_panic() => {
                    shared.fail(RelayError::Config(format!("a task of the relay failed: {error}")));
                }
                Err(_) => {}
            },
            () = shared.direct.notified() => if !stops {
                adjust(&shared, &mut tasks);
            },
            () = settled, if !stops => match shared.with(|state| state.forwarder.trouble()).filter(|now| Some(*now) == trouble) {
                Some(Trouble::Unsettled { peer: node }) => {
                    shared.fail(RelayError::Lost { node, kind: Some(std::io::ErrorKind::TimedOut), by: None });
                }
                Some(Trouble::Stranded { to }) => shared.fail(RelayError::Unroutable(Refusal::NoWay { to })),
                None => {}
            },
            _ = status.changed() => {}
        }
    }
    shared.end();
}

/// Closes direct connections that are no longer wanted, and opens the wanted ones, up to the limit.
fn adjust(shared: &Arc<RelayState>, tasks: &mut JoinSet<Result<()>>) {
    let asked = shared.with(|state| {
        state.unsettled = false;
        let wanted = &state.wanted;
        // A peer that has opened a two-way connection to this node needs no other.
        let theirs: Vec<_> = state
            .forwarder
            .direct()
            .filter(|(id, _)| shared.config.direct_both_ways && state.accepted.contains(id))
            .map(|(_, peer)| peer)
            .collect();
        let target: Vec<_> = wanted
            .peers
            .iter()
            .filter(|peer| !wanted.refused.contains(peer) && !theirs.contains(peer))
            .take(wanted.most)
            .copied()
            .collect();
        let open: Vec<_> = state.forwarder.open().collect();
        let unwanted: Vec<_> = state
            .opened
            .iter()
            .filter(|(id, peer)| open.contains(id) && !target.contains(peer))
            .map(|(id, _)| *id)
            .collect();
        for connection in unwanted {
            if let Err(refusal) = state.forwarder.close(connection) {
                return Err(RelayError::Unroutable(refusal));
            }
        }
        // A closing connection counts until all messages that arrived on it have left.
        let mut room = wanted.most.saturating_sub(state.opened.len() + state.asking.len());
        let mut asked = Vec::new();
        for peer in target {
            let has = state.asking.contains(&peer) || state.opened.values().any(|other| *other == peer);
            if room > 0 && !has {
                room -= 1;
                state.asking.insert(peer);
                asked.push(peer);
            }
        }
        Ok(asked)
    });
    match asked {
        Ok(asked) => asked.into_iter().for_each(|peer| {
            tasks.spawn(dial_direct(Arc::clone(shared), peer));
        }),
        Err(error) => shared.fail(error),
    }
    shared.settled.notify_waiters();
}
