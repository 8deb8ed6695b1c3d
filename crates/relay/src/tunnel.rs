//! Tunnels: the frames of a connection between two nodes, in order, over an overlay.
//!
//! Frames may overtake each other on the way, so they are numbered and put in order on arrival. One task
//! always receives, and its queues have no credit of their own: the streams of the connection that a tunnel
//! carries bound what its sender may send, and their receiver never waits to read. A limit in bytes ends a
//! tunnel whose frames break that rule.

mod table;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::poll_fn;
use futures::{Sink, Stream};
use lightship_wire::frame::FrameHeader;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

#[cfg(fuzzing)]
pub(crate) use self::table::fuzz;
use self::table::{Key, TunnelTable};
use crate::error::{RelayError, Result};
use crate::relay::{Inbox, Relay};

/// The limits of a node's tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelsConfig {
    /// Most bytes of a tunnel that have arrived and were not read: more than the windows of its streams allow.
    pub unread_bytes_max: u64,
    /// Most tunnels between this node and another one, opened by either. Use the same value on all nodes.
    pub tunnels_max: usize,
}

impl Default for TunnelsConfig {
    /// 512 MiB, and 16 tunnels.
    fn default() -> Self {
        Self { unread_bytes_max: 512 << 20, tunnels_max: 16 }
    }
}

/// What a node's tunnels, their task and their users share.
#[derive(Debug)]
struct TunnelsState {
    table: Mutex<TunnelTable>,
    relay: Relay,
    /// Notified when there is a tunnel to accept, or never will be.
    opened: Notify,
    /// Notified when no tunnel is open any more.
    idle: Notify,
}

impl TunnelsState {
    /// Runs `act` on the tunnels, sends the ends of tunnels, and wakes the tasks that have work to do.
    fn with<R>(&self, act: impl FnOnce(&mut TunnelTable) -> R) -> R {
        let (result, ends) = self.locked(|table| (act(table), table.take_ends()));
        for (to, end) in ends {
            // If the relay has failed, or the node has closed, nothing comes back either.
            if let Err(error) = self.relay.submit(to, end) {
                self.locked(|table| table.fail_peer(to, &error));
            }
        }
        result
    }

    fn locked<R>(&self, act: impl FnOnce(&mut TunnelTable) -> R) -> R {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut table);
        if table.can_accept() {
            self.opened.notify_one();
        }
        if table.is_idle() {
            self.idle.notify_waiters();
        }
        result
    }
}

/// Ends the relay and the task that receives from it.
#[derive(Debug)]
struct Owner {
    shared: Arc<TunnelsState>,
    receiving: JoinHandle<()>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.receiving.abort();
        // First, so that no tunnel ends as if all had been sent.
        self.shared.with(|table| table.fail(RelayError::Closed));
        self.shared.relay.kill();
    }
}

/// A node's tunnels to others. Dropping the last clone ends the relay, and all tunnels fail.
#[derive(Debug, Clone)]
pub struct Tunnels {
    owner: Arc<Owner>,
}

/// Accepts tunnels that others open to this node. Once it is dropped, they are ended at once.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<TunnelsState>,
}

/// One end of a tunnel: frames in both directions, in order.
///
/// Dropping the sending half (closing it does not suffice) ends its direction, after all frames that were sent. When the relay fails, both
/// halves fail with its [`RelayError`] inside [`io::ErrorKind::ConnectionAborted`].
#[derive(Debug)]
pub struct Tunnel {
    reader: Half<true>,
    writer: Half<false>,
}

/// The receiving or the sending half of a tunnel.
#[derive(Debug)]
struct Half<const READS: bool> {
    shared: Arc<TunnelsState>,
    key: Key,
}

impl<const READS: bool> Drop for Half<READS> {
    fn drop(&mut self) {
        self.shared.with(|table| if READS { table.stop_reading(self.key) } else { table.end(self.key) });
    }
}

impl Tunnels {
    /// Takes over a relay and its inbox. From now on the relay carries only tunnels; all nodes must use them.
    /// Call this in a Tokio runtime.
    pub fn start(relay: Relay, inbox: Inbox, config: TunnelsConfig) -> (Self, Incoming) {
        let table = TunnelTable::new(relay.config().node, relay.config().addresses.len() as u32, config);
        let (opened, idle) = (Notify::new(), Notify::new());
        let shared = Arc::new(TunnelsState { table: Mutex::new(table), relay, opened, idle });
        let receiving = tokio::spawn(receive(inbox, Arc::clone(&shared)));
        let owner = Arc::new(Owner { shared: Arc::clone(&shared), receiving });
        (Self { owner }, Incoming { shared })
    }

    /// Whether no tunnel can be opened or used any more.
    pub fn has_failed(&self) -> bool {
        self.error().is_some()
    }

    /// The error that ended them, if one has.
    pub fn error(&self) -> Option<RelayError> {
        self.owner.shared.with(|table| table.error())
    }

    /// Opens a tunnel to another node. Frames can be sent at once. If the other node does not accept it, the
    /// tunnel ends.
    ///
    /// # Errors
    /// [`RelayError::TunnelsFull`], [`RelayError::Config`] if there is no such node, or the error that ended the
    /// relay.
    pub fn open(&self, to: u32) -> Result<Tunnel> {
        let shared = &self.owner.shared;
        let key = shared.with(|table| table.open(to))?;
        Ok(Tunnel::new(shared, key))
    }

    /// The number of open tunnels, opened by either end. One counts until both ends have ended it.
    pub fn open_count(&self) -> usize {
        self.owner.shared.with(|table| table.open_count())
    }

    /// The relay, for its statistics and for choosing its direct connections. Do not send messages over it.
    pub fn relay(&self) -> &Relay {
        &self.owner.shared.relay
    }

    /// Waits until no tunnel is open, or the relay has failed.
    pub async fn idle(&self) {
        let shared = &self.owner.shared;
        loop {
            let idle = shared.idle.notified();
            tokio::pin!(idle);
            // Enabled before the check, so that no notification is missed.
            idle.as_mut().enable();
            if shared.with(|table| table.is_idle()) {
                return;
            }
            idle.await;
        }
    }
}

/// Receives all frames, so that no sender has to wait for room.
async fn receive(mut inbox: Inbox, shared: Arc<TunnelsState>) {
    let error = loop {
        match inbox.recv_frame().await {
            Ok(Some(arrived)) => {
                let from = arrived.from;
                if let Err(reason) = shared.with(|table| table.received(from, arrived.frame)) {
                    break inbox.break_off(from, reason);
                }
            }
            Ok(None) => break RelayError::Closed,
            Err(error) => break error,
        }
    };
    shared.with(|table| table.fail(error));
}

impl Incoming {
    /// The next tunnel, and the node that opened it; `None` once the relay is closed or has failed.
    /// Cancel-safe.
    pub async fn accept(&mut self) -> Option<(u32, Tunnel)> {
        loop {
            match self.shared.with(TunnelTable::accept) {
                Ok(Some(key)) => return Some((key.peer, Tunnel::new(&self.shared, key))),
                Ok(None) => self.shared.opened.notified().await,
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.shared.with(TunnelTable::accept_no_more);
    }
}

impl Tunnel {
    fn new(shared: &Arc<TunnelsState>, key: Key) -> Self {
        let (reader, writer) = (Arc::clone(shared), Arc::clone(shared));
        Self { reader: Half { shared: reader, key }, writer: Half { shared: writer, key } }
    }

    /// The node at the other end.
    pub fn peer(&self) -> u32 {
        self.reader.key.peer
    }

    /// The frames that arrive, and where to send frames. Each is a header and the part of the payload that
    /// follows it, of at most [`Config::message_bytes_max`](crate::Config::message_bytes_max) bytes.
    pub fn split(
        self,
    ) -> (
        impl Stream<Item = io::Result<(FrameHeader, Bytes)>> + Send + 'static,
        impl Sink<(FrameHeader, Bytes), Error = io::Error> + Send + 'static,
    ) {
        let Self { reader, writer } = self;
        let frames = poll_fn(move |context| reader.poll_next(context));
        let sink = futures::sink::unfold(writer, |writer, (header, part)| async move {
            writer.send(header, part).await.map_err(aborted)?;
            Ok(writer)
        });
        (frames, sink)
    }
}

impl Half<true> {
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<io::Result<(FrameHeader, Bytes)>>> {
        self.shared.with(|table| match table.next(self.key, context.waker()) {
            Ok(Poll::Ready(frame)) => Poll::Ready(frame.map(Ok)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(error) => Poll::Ready(Some(Err(aborted(error)))),
        })
    }
}

impl Half<false> {
    /// Waits for room among the node's own frames.
    async fn send(&self, header: FrameHeader, part: Bytes) -> Result<()> {
        let max = self.shared.relay.config().message_bytes_max;
        if part.len() > max as usize {
            return Err(RelayError::TooLarge { bytes: part.len(), max });
        }
        let room = self.shared.relay.room().await?;
        // No await from here on: a number that is not sent would stop the other end.
        let frame = self.shared.with(|table| table.number(self.key, header, part))?;
        match self.shared.relay.submit(self.key.peer, frame) {
            Ok(()) => {
                room.forget();
                Ok(())
            }
            // The other node has closed its connections first. That affects only tunnels to it.
            Err(error) => {
                self.shared.with(|table| table.fail_peer(self.key.peer, &error));
                Err(error)
            }
        }
    }
}

fn aborted(error: RelayError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, error)
}
