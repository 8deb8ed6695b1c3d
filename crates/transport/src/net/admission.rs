//! Admits connections. Unauthenticated connections, clients and other nodes each have their own slots.
//! Unauthenticated connections are few and must authenticate soon. Clients without a slot wait in a queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lightship_wire::control::{ErrorCode, Failure};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, sleep_until};

use super::ServerConfig;
use crate::proto::{OVERSLEPT, QUEUE_TIMEOUT_MAX};

/// While all slots of unauthenticated connections are taken, none may keep its slot for longer.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(2);

/// The slot of an unauthenticated connection, a client or a node. It is freed when dropped.
pub(super) type ConnectionSlot = OwnedSemaphorePermit;

/// All slots of a server.
pub(super) struct Admission {
    unauthenticated: Arc<Semaphore>,
    /// Whether all slots of unauthenticated connections are taken.
    crowded: watch::Sender<bool>,
    clients: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    peers: Arc<Semaphore>,
    config: Arc<ServerConfig>,
}

/// A client's place in the queue.
pub(super) struct QueueTurn {
    clients: Arc<Semaphore>,
    /// The number of clients before this one.
    pub(super) ahead: usize,
    _slot: ConnectionSlot,
}

/// A connection that has not authenticated yet, and must do so in time.
pub(super) struct Unauthenticated {
    since: Instant,
    timeout: Duration,
    /// `None` for a connection from the intake, which takes no slot.
    slot: Option<(ConnectionSlot, watch::Receiver<bool>)>,
}

impl Admission {
    pub(super) fn new(config: Arc<ServerConfig>) -> Self {
        let slots = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Self {
            unauthenticated: slots(config.unauthenticated_max.max(1)),
            crowded: watch::Sender::new(false),
            clients: slots(config.connections_max),
            queue: slots(config.queue_max),
            peers: slots(config.peer_slots()),
            config,
        }
    }

    /// Waits for the slot of an unauthenticated connection. Cancel-safe.
    pub(super) async fn unauthenticated(&self) -> Unauthenticated {
        let slot = match self.unauthenticated.clone().try_acquire_owned() {
            Ok(slot) => slot,
            Err(_) => {
                self.set_crowded(true);
                match self.unauthenticated.clone().acquire_owned().await {
                    Ok(slot) => slot,
                    // The semaphore is never closed.
                    Err(_) => std::future::pending().await,
                }
            }
        };
        self.set_crowded(false);
        let timeout = self.config.handshake_timeout;
        Unauthenticated { since: Instant::now(), timeout, slot: Some((slot, self.crowded.subscribe())) }
    }

    /// A connection from the intake. It needs no slot, because a known node carries it.
    pub(super) fn unauthenticated_from_intake(&self) -> Unauthenticated {
        Unauthenticated { since: Instant::now(), timeout: self.config.handshake_timeout, slot: None }
    }

    fn set_crowded(&self, crowded: bool) {
        self.crowded.send_if_modified(|known| std::mem::replace(known, crowded) != crowded);
    }

    /// Takes a slot for another node of the cluster.
    ///
    /// # Errors
    /// [`ErrorCode::Busy`] if all are taken.
    pub(super) fn peer(&self) -> Result<ConnectionSlot, Failure> {
        self.peers.clone().try_acquire_owned().map_err(|_| {
            let max = self.config.peer_connections_max;
            Failure::new(ErrorCode::Busy, format!("all {max} connections of other nodes are taken"))
        })
    }

    /// Takes a client's slot for another concurrent query of a connection.
    ///
    /// # Errors
    /// [`ErrorCode::Busy`] if all are taken.
    pub(super) fn free_slot(&self) -> Result<ConnectionSlot, Failure> {
        let more = ", and each concurrent query takes one";
        self.clients.clone().try_acquire_owned().map_err(|_| self.busy(more))
    }

    /// Takes a slot for a client, or a place in the queue.
    ///
    /// # Errors
    /// [`ErrorCode::Busy`] if the queue is full.
    pub(super) fn client(&self) -> Result<Result<ConnectionSlot, QueueTurn>, Failure> {
        if let Ok(slot) = self.clients.clone().try_acquire_owned() {
            return Ok(Ok(slot));
        }
        let ahead = self.config.queue_max.saturating_sub(self.queue.available_permits());
        match self.queue.clone().try_acquire_owned() {
            Ok(slot) => Ok(Err(QueueTurn { clients: self.clients.clone(), ahead, _slot: slot })),
            Err(_) => Err(self.busy(&match self.config.queue_max {
                0 => String::new(),
                max => format!(", and the queue of {max} clients is full"),
            })),
        }
    }

    /// The failure of a client or a query that gets no slot.
    pub(super) fn busy(&self, more: &str) -> Failure {
        let max = self.config.connections_max;
        Failure::new(ErrorCode::Busy, format!("all {max} connections of the node are taken{more}"))
            .hint("try again later, or raise the node's --connections-max")
    }

    /// How long a client may wait in the queue.
    pub(super) fn queue_timeout(&self) -> Duration {
        self.config.queue_timeout.min(QUEUE_TIMEOUT_MAX)
    }
}

impl QueueTurn {
    /// Waits for a client's slot.
    pub(super) async fn slot(&self) -> ConnectionSlot {
        match self.clients.clone().acquire_owned().await {
            Ok(slot) => slot,
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Returns after `deadline`. If the process stood still, it waits a little longer, so that what arrived
/// meanwhile is handled first.
async fn past(deadline: Instant) {
    sleep_until(deadline.into()).await;
    if deadline.elapsed() > OVERSLEPT {
        sleep(OVERSLEPT).await;
    }
}

impl Unauthenticated {
    /// Restarts its timeout: the slot was taken before the connection was accepted.
    pub(super) fn begins_now(self) -> Self {
        Self { since: Instant::now(), ..self }
    }

    /// Returns the elapsed time when the connection has not authenticated in time.
    pub(super) async fn expired(&mut self) -> Duration {
        let brief = self.timeout.min(CROWDED_TIMEOUT);
        past(self.since + brief).await;
        let late = past(self.since + self.timeout);
        match &mut self.slot {
            Some((_, crowded)) => tokio::select! {
                () = late => {}
                // The sender lives as long as the server.
                _ = crowded.wait_for(|&crowded| crowded) => {}
            },
            None => late.await,
        }
        self.since.elapsed()
    }
}
