//! The interface of a node: send, receive, direct connections, statistics.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use lightship_overlay::forwarder::Counts;
use lightship_wire::frame::{FrameHeader, FrameKind};
use tokio::net::TcpListener;
use tokio::sync::SemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::config::Config;
use crate::driver::drive;
use crate::error::{RelayError, Result};
use crate::frame::RoutedFrame;
use crate::state::{RelayState, Status, Wanted};

/// A frame that has arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: u32,
    pub(crate) frame: RoutedFrame,
    pub(crate) hops: usize,
}

/// A message that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The node that sent it.
    pub from: u32,
    /// What it sent.
    pub bytes: Bytes,
    /// Connections that it crossed: 1 if it was not forwarded.
    pub hops: usize,
}

/// Statistics of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Messages sent, received and forwarded.
    pub counts: Counts,
    /// Current connections. A connection counts once both ends have accepted it.
    pub connections: usize,
    /// The most connections at any time.
    pub connections_max: usize,
    /// Direct connections that this node has opened since its start.
    pub opened: u64,
    /// Direct connections that others refused to this node.
    pub refused: u64,
    /// Connections of this node that broke, and were routed around.
    pub broken: u64,
    /// Links of the topology, of any nodes, that are broken now.
    pub broken_links: usize,
}

/// A node of an overlay. Dropping it cuts all its connections: the others fail, because it may have held messages.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<RelayState>,
    driver: JoinHandle<()>,
}

/// Receives a node's messages. Messages that are not received hold up their senders.
#[derive(Debug)]
pub struct Inbox {
    shared: Arc<RelayState>,
}

impl Relay {
    /// Starts a node on the listener where the others expect it, and waits until the connections of the
    /// topology are open. Nodes need not start at the same time: those that are not ready yet, or still
    /// have other settings, are tried again. A clone of the listener can serve another relay later, such as
    /// one of the next [`Config::epoch`].
    ///
    /// # Errors
    /// [`RelayError::Config`], also if it listens beyond this host without TLS and a token
    /// ([`Config::security`]); [`RelayError::Connect`] and [`RelayError::Missing`] if a node can't be
    /// reached, or does not connect, within [`Config::connect_timeout`].
    pub async fn start(listener: TcpListener, config: Config) -> Result<(Self, Inbox)> {
        config.check()?;
        let listens = listener.local_addr().map_err(|e| RelayError::Config(format!("the listener: {e}")))?;
        config.security.check(listens)?;
        let wait = config.connect_timeout;
        let nodes = config.addresses.len() as u64;
        let shared = Arc::new(RelayState::new(config));
        let driver = tokio::spawn(drive(Arc::clone(&shared), listener));
        let this = Self { driver, shared: Arc::clone(&shared) };
        let mut status = shared.status.subscribe();
        let ready = status.wait_for(|status| status.missing.is_empty() || status.error.is_some());
        let is_ready = timeout(wait, ready).await.is_ok();
        if !is_ready {
            let Status { missing, mut attempts, .. } = shared.status.borrow().clone();
            let tried = missing.iter().find_map(|id| attempts.remove(id));
            // In a one-way topology, incoming links are numbered after outgoing ones.
            let nodes = missing.into_iter().map(|id| (id % nodes) as u32).collect();
            shared.fail(tried.unwrap_or(RelayError::Missing { nodes }));
        }
        match shared.error() {
            Some(error) => {
                // Waits until the others are notified.
                let _ = this.ended().await;
                Err(error)
            }
            None => Ok((this, Inbox { shared })),
        }
    }

    /// Sends a message, by any route. Waits for room among the node's own messages, not for the arrival.
    ///
    /// # Errors
    /// [`RelayError::TooLarge`], [`RelayError::Unroutable`], or the error that ended the relay.
    pub async fn send(&self, to: u32, bytes: Bytes) -> Result<()> {
        let max = self.shared.config.message_bytes_max;
        if bytes.len() > max as usize {
            return Err(RelayError::TooLarge { bytes: bytes.len(), max });
        }
        let header = FrameHeader::whole(FrameKind::Message, 0, 0, 0, &bytes);
        let room = self.room().await?;
        self.submit(to, RoutedFrame::new(header, bytes))?;
        room.forget();
        Ok(())
    }

    /// Waits for a slot among the node's own frames. Forget it once the frame is submitted: it is returned when
    /// the frame has left.
    pub(crate) async fn room(&self) -> Result<SemaphorePermit<'_>> {
        let room = self.shared.room.acquire().await;
        room.map_err(|_| self.shared.error().unwrap_or(RelayError::Closed))
    }

    /// Sends a frame without waiting for room. The caller limits how many have no slot.
    pub(crate) fn submit(&self, to: u32, frame: RoutedFrame) -> Result<()> {
        let bytes = u64::from(frame.header.part_bytes);
        let submitted = self.shared.with(|state| {
            let id = u64::from(frame.number);
            state.forwarder.submit(to, id, frame)?;
            *state.demand.entry(to).or_default() += bytes;
            Ok(())
        });
        // After a failure many nodes are unroutable; the failure is the cause.
        submitted.map_err(|refusal| self.shared.error().unwrap_or(RelayError::Unroutable(refusal)))
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Requests direct connections to these peers, best first, `most` at most. Direct connections to other
    /// nodes are closed. Nodes that refuse are skipped until the next call.
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

    /// Waits until all requested direct connections are open or were refused, or the relay has ended. A
    /// connection that waits for another one to close may open later.
    pub async fn direct_settled(&self) {
        loop {
            let settled = self.shared.settled.notified();
            tokio::pin!(settled);
            // Enabled before the check, so that no notification is missed.
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

    /// Bytes sent to each node since the last call. The choice of direct connections is based on them.
    pub fn take_demand(&self) -> BTreeMap<u32, u64> {
        self.shared.with(|state| std::mem::take(&mut state.demand))
    }

    /// The statistics of this node.
    pub fn stats(&self) -> Stats {
        self.shared.with(|state| Stats {
            counts: state.forwarder.counts(),
            connections: state.writers.len(),
            connections_max: state.connections_max,
            opened: state.opened_count,
            refused: state.refused_count,
            broken: state.broken_count,
            broken_links: state.forwarder.broken_links(),
        })
    }

    /// Cuts all connections immediately, as if the process had died: the neighbours fail.
    pub fn kill(&self) {
        self.driver.abort();
        self.shared.room.close();
        self.shared.end();
    }

    /// Closes all connections in order. Call this after every node has received all of its messages: a message
    /// that still has to pass through this node takes another route, or is an error.
    ///
    /// # Errors
    /// The error that ended the relay before.
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

    /// Ends the relay because the caller knows that a node was lost. The others are told which node.
    pub fn give_up(&self, node: u32) {
        self.shared.fail(RelayError::Lost { node, kind: None, by: None });
    }

    /// Waits until the relay has ended and has told its neighbours why. If it is dropped earlier, this node
    /// seems to be the lost one.
    ///
    /// # Errors
    /// The error that ended it.
    pub async fn ended(&self) -> Result<()> {
        let mut status = self.shared.status.subscribe();
        // Can't fail, because the sender is in `self`.
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
    /// The next message; `None` once the relay is closed.
    ///
    /// # Errors
    /// The error that ended the relay. Messages may be lost then.
    pub async fn recv(&mut self) -> Result<Option<Message>> {
        let Some(Arrived { from, frame, hops }) = self.recv_frame().await? else { return Ok(None) };
        let whole = if frame.tunnel == 0 && frame.header.kind == FrameKind::Message {
            frame.header.verify(&frame.part).map_err(|e| e.to_string())
        } else {
            Err(format!("a {:?} frame instead of a message", frame.header.kind))
        };
        match whole {
            Ok(()) => Ok(Some(Message { from, bytes: frame.part, hops })),
            Err(reason) => Err(self.break_off(from, reason)),
        }
    }

    /// The next frame; `None` once the relay is closed.
    pub(crate) async fn recv_frame(&mut self) -> Result<Option<Arrived>> {
        loop {
            let next = self.shared.with(|state| {
                let (arrived, slot) = state.inbox.pop_front()?;
                state.forwarder.consumed(slot);
                Some(arrived)
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

    /// Ends the relay, because a node has sent something invalid.
    pub(crate) fn break_off(&self, node: u32, reason: String) -> RelayError {
        let error = RelayError::Malformed { node, reason };
        self.shared.fail(error.clone());
        error
    }
}
