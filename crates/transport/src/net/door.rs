//! Who is let in: strangers first, a few at a time and not for long; then clients and nodes, each in places of their own;
//! and the line of clients that wait for a place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lightship_wire::control::{ErrorCode, Failure};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, sleep_until};

use super::ServerConfig;
use crate::proto::{OVERSLEPT, QUEUE_TIMEOUT_MAX};

/// While all places of strangers are taken, none may keep one for longer.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(2);
/// A client that can't be told that it waits gives up a welcome after 10 seconds.
const UNTOLD_QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// A place of a stranger, a client or a node; free again when it is dropped.
pub(super) type Place = OwnedSemaphorePermit;

/// All places of a server.
pub(super) struct Door {
    strangers: Arc<Semaphore>,
    /// Whether all places of strangers are taken.
    crowded: watch::Sender<bool>,
    clients: Arc<Semaphore>,
    line: Arc<Semaphore>,
    peers: Arc<Semaphore>,
    config: Arc<ServerConfig>,
}

/// A place in the line of clients.
pub(super) struct Turn {
    clients: Arc<Semaphore>,
    /// Clients that wait for longer.
    pub(super) ahead: usize,
    _place: Place,
}

/// A connection that has not shown yet who it is, and may not stay for long without that.
pub(super) struct Stranger {
    since: Instant,
    timeout: Duration,
    /// What came over a node's connection takes no stranger's place, and does not make a crowd.
    place: Option<(Place, watch::Receiver<bool>)>,
}

impl Door {
    pub(super) fn new(config: Arc<ServerConfig>) -> Self {
        let places = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Self {
            strangers: places(config.strangers_max.max(1)),
            crowded: watch::Sender::new(false),
            clients: places(config.connections_max),
            line: places(config.queue_max),
            peers: places(config.peer_places()),
            config,
        }
    }

    /// A stranger's place, once there is one. Cancel-safe.
    pub(super) async fn stranger(&self) -> Stranger {
        let place = match self.strangers.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                self.set_crowded(true);
                match self.strangers.clone().acquire_owned().await {
                    Ok(place) => place,
                    // The semaphore is never closed.
                    Err(_) => std::future::pending().await,
                }
            }
        };
        self.set_crowded(false);
        let timeout = self.config.handshake_timeout;
        Stranger { since: Instant::now(), timeout, place: Some((place, self.crowded.subscribe())) }
    }

    /// For a connection that came by another one, of somebody who is known.
    pub(super) fn stranger_of_ours(&self) -> Stranger {
        Stranger { since: Instant::now(), timeout: self.config.handshake_timeout, place: None }
    }

    fn set_crowded(&self, crowded: bool) {
        self.crowded.send_if_modified(|known| std::mem::replace(known, crowded) != crowded);
    }

    /// A place for another node of the cluster.
    ///
    /// # Errors
    /// [`ErrorCode::Busy`].
    pub(super) fn peer(&self) -> Result<Place, Failure> {
        self.peers.clone().try_acquire_owned().map_err(|_| {
            let max = self.config.peer_connections_max;
            Failure::new(ErrorCode::Busy, format!("all {max} connections of other nodes are taken"))
        })
    }

    /// A place for a client, or for waiting for one.
    ///
    /// # Errors
    /// [`ErrorCode::Busy`] where as many wait as may.
    pub(super) fn client(&self) -> Result<Result<Place, Turn>, Failure> {
        if let Ok(place) = self.clients.clone().try_acquire_owned() {
            return Ok(Ok(place));
        }
        let ahead = self.config.queue_max.saturating_sub(self.line.available_permits());
        match self.line.clone().try_acquire_owned() {
            Ok(place) => Ok(Err(Turn { clients: self.clients.clone(), ahead, _place: place })),
            Err(_) => Err(self.busy(&match self.config.queue_max {
                0 => String::new(),
                max => format!(", and the line of {max} clients for them is full"),
            })),
        }
    }

    /// What a client is told for which there was no place.
    pub(super) fn busy(&self, more: &str) -> Failure {
        let max = self.config.connections_max;
        Failure::new(ErrorCode::Busy, format!("all {max} connections of the node are taken{more}"))
            .hint("try again later, or raise --connections-max of the node")
    }

    /// How long a client may wait in line.
    pub(super) fn queue_timeout(&self, is_told: bool) -> Duration {
        let timeout = self.config.queue_timeout.min(QUEUE_TIMEOUT_MAX);
        if is_told { timeout } else { timeout.min(UNTOLD_QUEUE_TIMEOUT) }
    }
}

impl Turn {
    /// A client's place, when it is this one's turn.
    pub(super) async fn place(&self) -> Place {
        match self.clients.clone().acquire_owned().await {
            Ok(place) => place,
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Comes back after this time, later where the process stood still: what came meanwhile is heard first.
async fn past(deadline: Instant) {
    sleep_until(deadline.into()).await;
    if deadline.elapsed() > OVERSLEPT {
        sleep(OVERSLEPT).await;
    }
}

impl Stranger {
    /// It came just now; its place was free before.
    pub(super) fn begins_now(self) -> Self {
        Self { since: Instant::now(), ..self }
    }

    /// Comes back when it has stayed for too long, and answers for how long.
    pub(super) async fn expired(&mut self) -> Duration {
        let brief = self.timeout.min(CROWDED_TIMEOUT);
        past(self.since + brief).await;
        let late = past(self.since + self.timeout);
        match &mut self.place {
            Some((_, crowded)) => tokio::select! {
                () = late => {}
                // The door is there for as long as its server.
                _ = crowded.wait_for(|&crowded| crowded) => {}
            },
            None => late.await,
        }
        self.since.elapsed()
    }
}
