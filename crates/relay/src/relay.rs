//! What a node's user has in hand: send, receive, direct connections, figures.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use lightship_overlay::forwarder::Counts;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::config::Config;
use crate::driver::drive;
use crate::error::{RelayError, Result};
use crate::state::{Body, Shared, Status, Wanted};

/// A message that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The node that sent it.
    pub from: u32,
    /// What it sent.
    pub bytes: Bytes,
    /// Connections it crossed: 1 when it was not forwarded.
    pub hops: usize,
}

/// What a node has done, and has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Messages sent, received and forwarded.
    pub counts: Counts,
    /// Connections now, and the most there were at any time; those count that both ends have agreed on.
    pub connections: usize,
    /// The most there were at any time.
    pub connections_max: usize,
    /// Direct connections that this node has opened, ever.
    pub opened: u64,
    /// Those that it asked for and was refused.
    pub refused: u64,
}

/// A node of an overlay. Dropped, it cuts its connections, and its neighbours fail.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    driver: JoinHandle<()>,
}

/// Where a node's messages arrive. What is not taken holds up those who send.
#[derive(Debug)]
pub struct Inbox {
    shared: Arc<Shared>,
}

impl Relay {
    /// Starts a node that listens where the others expect it, and waits until the connections of the
    /// topology are there. Nodes need not start at the same time: those that are not there yet, or still
    /// have other settings, are tried again. Whoever keeps the listener can start another relay on it
    /// later, such as one of the next [`Config::epoch`].
    ///
    /// # Errors
    /// [`RelayError::Config`], also where it listens beyond this host without what that takes
    /// ([`Config::security`]); [`RelayError::Connect`] and [`RelayError::Missing`] when a node can't be
    /// reached, or does not come, within [`Config::connect_timeout`].
    pub async fn start(listener: TcpListener, config: Config) -> Result<(Self, Inbox)> {
        config.check()?;
        let listens = listener.local_addr().map_err(|e| RelayError::Config(format!("the listener: {e}")))?;
        config.security.check(listens)?;
        let wait = config.connect_timeout;
        let nodes = config.addresses.len() as u64;
        let shared = Arc::new(Shared::new(config));
        let driver = tokio::spawn(drive(Arc::clone(&shared), listener));
        let this = Self { driver, shared: Arc::clone(&shared) };
        let mut status = shared.status.subscribe();
        let ready = status.wait_for(|status| status.missing.is_empty() || status.error.is_some());
        let is_ready = timeout(wait, ready).await.is_ok();
        if !is_ready {
            let Status { missing, mut attempts, .. } = shared.status.borrow().clone();
            let tried = missing.iter().find_map(|id| attempts.remove(id));
            // Of links used one way, those that come in are numbered after those that go out.
            let nodes = missing.into_iter().map(|id| (id % nodes) as u32).collect();
            shared.fail(tried.unwrap_or(RelayError::Missing { nodes }));
        }
        match shared.error() {
            Some(error) => {
                // The others are told.
                let _ = this.ended().await;
                Err(error)
            }
            None => Ok((this, Inbox { shared })),
        }
    }

    /// Sends a message, by whatever way. Waits for room among the node's own messages; it is not known
    /// when it arrives.
    ///
    /// # Errors
    /// [`RelayError::TooLarge`], [`RelayError::Unroutable`]; whatever ended the relay.
    pub async fn send(&self, to: u32, bytes: Bytes) -> Result<()> {
        let max = self.shared.config.message_bytes_max;
        if bytes.len() > max as usize {
            return Err(RelayError::TooLarge { bytes: bytes.len(), max });
        }
        let body = Body::new(bytes);
        let Ok(room) = self.shared.room.acquire().await else {
            return Err(self.shared.error().unwrap_or(RelayError::Closed));
        };
        self.shared
            .with(|state| {
                let id = state.next_message;
                let length = body.bytes.len() as u64;
                state.forwarder.submit(to, id, body)?;
                state.next_message += 1;
                *state.demand.entry(to).or_default() += length;
                Ok(())
            })
            // After a failure there is no way to many: that is why.
            .map_err(|refusal| self.shared.error().unwrap_or(RelayError::Unroutable(refusal)))?;
        // Given back when the message has left.
        room.forget();
        Ok(())
    }

    /// Comes back when all own messages have left.
    pub(crate) async fn all_left(&self) -> Result<()> {
        let window = self.shared.config.window_messages.min(Semaphore::MAX_PERMITS);
        let all = self.shared.room.acquire_many(u32::try_from(window).unwrap_or(u32::MAX)).await;
        all.map(drop).map_err(|_| self.shared.error().unwrap_or(RelayError::Closed))
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Where direct connections are to lead, best first, at most so many. Those that lead elsewhere are
    /// closed; nodes that refuse are passed over, until this is said again.
    pub fn set_direct(&self, peers: Vec<u32>, most: usize) {
        let node = self.shared.config.node;
        let nodes = self.shared.config.addresses.len();
        let peers = peers.into_iter().filter(|peer| *peer != node && (*peer as usize) < nodes).collect();
        self.shared.with(|state| {
            state.wanted = Wanted { peers, most, ..Wanted::default() };
            state.unsettled = true;
        });
        self.shared.direct.notify_one();
    }

    /// Comes back when all direct connections that were asked for are there, or were refused, or the relay
    /// has ended. Those whose place is still taken by one that closes may come later.
    pub async fn direct_settled(&self) {
        loop {
            let settled = self.shared.settled.notified();
            tokio::pin!(settled);
            // Before looking, so that nothing is missed in between.
            settled.as_mut().enable();
            let ended = {
                let status = self.shared.status.borrow();
                status.ended || status.closing || status.error.is_some()
            };
            if ended || self.shared.with(|state| !state.unsettled && state.asking.is_empty()) {
                return;
            }
            settled.await;
        }
    }

    /// Nodes to which this one has opened direct connections.
    pub fn direct(&self) -> Vec<u32> {
        self.shared.with(|state| state.opened.values().copied().collect())
    }

    /// Bytes sent to each node since this was asked last: what a choice of direct connections comes from.
    pub fn take_demand(&self) -> BTreeMap<u32, u64> {
        self.shared.with(|state| std::mem::take(&mut state.demand))
    }

    /// What it has done, and has.
    pub fn stats(&self) -> Stats {
        self.shared.with(|state| Stats {
            counts: state.forwarder.counts(),
            connections: state.writers.len(),
            connections_max: state.connections_max,
            opened: state.opened_count,
            refused: state.refused_count,
        })
    }

    /// Cuts all connections at once, as if the process had died: the neighbours fail.
    pub fn kill(&self) {
        self.driver.abort();
        self.shared.end();
    }

    /// Closes all connections in good order. Only when every node has received all it is to: what is still
    /// on its way through this one has to find another, or there is an error.
    ///
    /// # Errors
    /// Whatever ended the relay before.
    pub async fn close(&self) -> Result<()> {
        self.shared.status.send_modify(|status| status.closing = true);
        let closed = self.shared.with(|state| {
            let open: Vec<_> = state.forwarder.open().collect();
            open.into_iter().try_for_each(|connection| state.forwarder.close(connection))
        });
        if let Err(refusal) = closed {
            self.shared.fail(RelayError::Unroutable(refusal));
        }
        self.ended().await
    }

    /// Ends it, as a node was lost of which something else than the relay has told. The others are told which.
    pub fn give_up(&self, node: u32) {
        self.shared.fail(RelayError::Lost { node, kind: None, by: None });
    }

    /// Comes back when it has ended, and has told its neighbours why: one that is dropped earlier looks as if it were
    /// the one that was lost.
    ///
    /// # Errors
    /// Whatever ended it.
    pub async fn ended(&self) -> Result<()> {
        let mut status = self.shared.status.subscribe();
        // The sender of it is here.
        let _ = status.wait_for(|status| status.ended).await;
        self.shared.error().map_or(Ok(()), Err)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Inbox {
    /// The next message; nothing when the relay was closed.
    ///
    /// # Errors
    /// Whatever ended the relay: messages may be lost then.
    pub async fn recv(&mut self) -> Result<Option<Message>> {
        loop {
            let next = self.shared.with(|state| {
                let (message, place) = state.inbox.pop_front()?;
                state.forwarder.left(Some(place), false);
                Some(message)
            });
            if next.is_some() {
                return Ok(next);
            }
            let (error, ended) = {
                let status = self.shared.status.borrow();
                (status.error.clone(), status.ended)
            };
            match error {
                Some(error) => return Err(error),
                None if ended => return Ok(None),
                None => self.shared.arrived.notified().await,
            }
        }
    }
}
