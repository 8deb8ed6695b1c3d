//! The state that the tasks of a node share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use lightship_overlay::forwarder::{ConnectionId, Forwarder, LinkNotice, QueueSlot, Refusal};
use tokio::sync::{Notify, Semaphore, watch};

use crate::config::Config;
use crate::error::{RelayError, Result};
use crate::frame::RoutedFrame;
use crate::relay::Arrived;

/// The status of a node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    /// Connections of the topology that are not open yet.
    pub(crate) missing: BTreeSet<ConnectionId>,
    /// Why the last attempt to open one of them failed.
    pub(crate) attempts: BTreeMap<ConnectionId, RelayError>,
    pub(crate) error: Option<RelayError>,
    /// Whether it is closing.
    pub(crate) closing: bool,
    /// Whether all of its connections have ended.
    pub(crate) ended: bool,
}

/// The direct connections that a node wants.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// Best first.
    pub(crate) peers: Vec<u32>,
    pub(crate) most: usize,
    /// Peers that have refused since this was set.
    pub(crate) refused: BTreeSet<u32>,
}

/// The part of a node's state behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) forwarder: Forwarder<RoutedFrame>,
    /// The signals to the tasks of each open connection.
    pub(crate) writers: BTreeMap<ConnectionId, Arc<Signals>>,
    /// Frames for this node that have not been received. Each holds a slot of a queue, which bounds them.
    pub(crate) inbox: VecDeque<(Arrived, QueueSlot)>,
    /// Direct connections that this node opened and that still count.
    pub(crate) opened: BTreeMap<ConnectionId, u32>,
    /// Connections of the topology that others have opened.
    pub(crate) greeted: BTreeSet<ConnectionId>,
    /// By peer, the number of the last link that it has opened again.
    pub(crate) reopened: BTreeMap<u32, u64>,
    /// Peers to which a direct connection is being opened.
    pub(crate) asking: BTreeSet<u32>,
    /// Direct connections that others opened and that still count.
    pub(crate) accepted: BTreeSet<ConnectionId>,
    pub(crate) wanted: Wanted,
    /// Wanted connections have changed, or an answer has arrived, and the driver has not handled it yet.
    pub(crate) unsettled: bool,
    /// Bytes sent since the last `take_demand`, by destination.
    pub(crate) demand: BTreeMap<u32, u64>,
    pub(crate) connections_max: usize,
    pub(crate) opened_count: u64,
    pub(crate) refused_count: u64,
    pub(crate) broken_count: u64,
    forgotten: u64,
}

/// Signals to the tasks of a connection.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// There may be something to write.
    pub(crate) write: Notify,
    /// The other end has said that the connection is broken.
    pub(crate) cut: Notify,
}

/// The state that all tasks of a node share.
#[derive(Debug)]
pub(crate) struct RelayState {
    pub(crate) config: Config,
    pub(crate) digest: u64,
    state: Mutex<State>,
    pub(crate) status: watch::Sender<Status>,
    /// Permits for own messages.
    pub(crate) room: Semaphore,
    /// Notified when a message has arrived, or none will.
    pub(crate) arrived: Notify,
    /// Notified when direct connections may have to be opened or closed, or a connection has broken.
    pub(crate) direct: Notify,
    /// Notified when the driver has done that.
    pub(crate) settled: Notify,
}

impl RelayState {
    pub(crate) fn new(config: Config) -> Self {
        let links = Forwarder::<RoutedFrame>::topology_links(&config.routes, config.node);
        let missing = links.into_iter().map(|link| link.id).collect();
        let forwarder =
            Forwarder::new(Arc::clone(&config.routes), config.node, config.queue_messages, config.seed);
        let state = State {
            forwarder,
            writers: BTreeMap::new(),
            inbox: VecDeque::new(),
            opened: BTreeMap::new(),
            greeted: BTreeSet::new(),
            reopened: BTreeMap::new(),
            asking: BTreeSet::new(),
            accepted: BTreeSet::new(),
            wanted: Wanted::default(),
            unsettled: false,
            demand: BTreeMap::new(),
            connections_max: 0,
            opened_count: 0,
            refused_count: 0,
            broken_count: 0,
            forgotten: 0,
        };
        Self {
            digest: config.digest(),
            room: Semaphore::new(config.window_messages.min(Semaphore::MAX_PERMITS)),
            config,
            state: Mutex::new(state),
            status: watch::channel(Status { missing, ..Status::default() }).0,
            arrived: Notify::new(),
            direct: Notify::new(),
            settled: Notify::new(),
        }
    }

    /// Runs `act` on the state, then wakes the tasks that have work to do because of it.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        // After a panic in another task, counts may be wrong; nothing else.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut state);
        for connection in state.forwarder.take_ready() {
            if let Some(writer) = state.writers.get(&connection) {
                writer.write.notify_one();
            }
        }
        if state.forgotten < state.forwarder.forgotten() {
            state.forgotten = state.forwarder.forgotten();
            let direct: BTreeSet<_> = state.forwarder.direct().map(|(id, _)| id).collect();
            state.opened.retain(|id, _| direct.contains(id));
            state.accepted.retain(|id| direct.contains(id));
            self.direct.notify_one();
        }
        result
    }

    /// Whether an error ended a connection only: the other node may live, and there may be other routes to it.
    fn is_passing(&self, error: &RelayError) -> bool {
        let stops = {
            let status = self.status.borrow();
            status.closing || status.error.is_some()
        };
        !stops
            && matches!(error, RelayError::Lost { by: None, .. })
            && self.config.routes.topology().both_ways()
    }

    /// Whether an error on a connection ends this node: not if the connection is known to be broken, because the other
    /// end no longer follows the rules on it.
    pub(crate) fn is_fatal(&self, connection: ConnectionId, error: &RelayError) -> bool {
        let stops = self.status.borrow().error.is_some();
        let is_broken = self.config.routes.topology().both_ways()
            && self.with(|state| state.forwarder.is_broken(connection));
        stops || !(is_broken || self.is_passing(error))
    }

    /// A connection to a node broke. What was on it takes another route, if there is one; otherwise the node is
    /// lost, and this one fails.
    pub(crate) fn broke(&self, connection: ConnectionId, peer: u32, error: RelayError) {
        let outcome = self.with(|state| {
            if state.forwarder.is_broken(connection) {
                return Ok(None);
            }
            state.broken_count += 1;
            state.forwarder.broke(connection)?;
            Ok(state.forwarder.unreachable())
        });
        self.direct.notify_one();
        match outcome {
            Ok(None) => {}
            Ok(Some(node)) if node == peer => self.fail(error),
            Ok(Some(node)) => self.fail(RelayError::Lost { node, kind: None, by: None }),
            Err(refusal) => self.fail(RelayError::Unroutable(refusal)),
        }
    }

    /// Another node has told what became of a connection.
    pub(crate) fn noticed(&self, connection: ConnectionId, peer: u32, notice: LinkNotice) -> Result<()> {
        let outcome = self.with(|state| {
            let cut = state.forwarder.noticed(connection, notice)?;
            if let Some(cut) = cut {
                state.broken_count += 1;
                if let Some(signals) = state.writers.get(&cut) {
                    signals.cut.notify_one();
                }
            }
            Ok(state.forwarder.unreachable())
        });
        self.direct.notify_one();
        match outcome {
            Ok(None) => Ok(()),
            Ok(Some(node)) => Err(RelayError::Lost { node, kind: None, by: Some(notice.by) }),
            Err(refusal @ (Refusal::NoWay { .. } | Refusal::Astray { .. })) => {
                Err(RelayError::Unroutable(refusal))
            }
            Err(Refusal::Undelivered { by: node }) => Err(RelayError::Lost { node, kind: None, by: None }),
            Err(refusal @ Refusal::Receipt { .. }) => Err(RelayError::Rules { node: notice.by, refusal }),
            Err(refusal) => Err(RelayError::Rules { node: peer, refusal }),
        }
    }

    /// Ends the node with an error, unless it has failed before.
    pub(crate) fn fail(&self, error: RelayError) {
        let failed = self.status.send_if_modified(|status| {
            let is_first = status.error.is_none();
            status.error.get_or_insert(error);
            is_first
        });
        if failed {
            self.wake_all();
        }
    }

    /// The error that ended it.
    pub(crate) fn error(&self) -> Option<RelayError> {
        self.status.borrow().error.clone()
    }

    /// Waits until it has failed.
    pub(crate) async fn failed(&self) {
        // Can't fail, because the sender is in `self`.
        let _ = self.status.subscribe().wait_for(|status| status.error.is_some()).await;
    }

    /// Waits until it has failed or is closing.
    pub(crate) async fn stopping(&self) {
        let stops = |status: &Status| status.error.is_some() || status.closing;
        let _ = self.status.subscribe().wait_for(stops).await;
    }

    /// Marks it as ended.
    pub(crate) fn end(&self) {
        self.status.send_modify(|status| status.ended = true);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.room.close();
        self.arrived.notify_one();
        self.direct.notify_one();
        self.settled.notify_waiters();
        self.with(|state| state.writers.values().for_each(|writer| writer.write.notify_one()));
    }
}
