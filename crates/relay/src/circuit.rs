//! Circuits: ordered byte pipes between two nodes, over a relay.
//!
//! The messages of a relay may overtake each other, and a node that does not receive them holds up others.
//! So one task always receives, even if no circuit is read: a circuit may send only what its receiver has
//! granted, and has room for. Another task sends a message of each circuit in turn, urgent ones (opens,
//! credit, the end of dropped circuits) before data. The documentation of `circuit/header.rs` has the bytes
//! of a message.

mod header;
mod pipe;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use self::header::Why;
use self::pipe::{CircuitSizes, chunk};
use self::table::{CircuitTable, Key};
use crate::error::{RelayError, Result};
use crate::relay::{Inbox, Relay, Stats};

/// The limits of a node's circuits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitsConfig {
    /// Bytes of a circuit that may be in flight or unread, each way: at least two, and the same on all nodes. A
    /// circuit carries at most this many bytes in each round-trip time.
    pub window_bytes: u32,
    /// Most circuits that are open at a time, opened by either end, including dropped ones that the other
    /// end has not forgotten yet. Use about the same value on all nodes: a node that opens many more
    /// circuits than another one accepts is cut off.
    pub circuits_max: usize,
}

impl Default for CircuitsConfig {
    /// Windows of 1 MiB, and 1024 circuits.
    fn default() -> Self {
        Self { window_bytes: 1 << 20, circuits_max: 1024 }
    }
}

impl CircuitsConfig {
    /// Most bytes that circuits hold, in addition to the relay: for each circuit a window of received
    /// bytes, the piece that is being read, and the write buffer.
    pub fn memory_bytes_max(&self) -> u64 {
        (self.circuits_max as u64).saturating_mul(3 * u64::from(self.window_bytes))
    }
}

/// Statistics of a node's circuits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitsStats {
    /// Open circuits. Dropped ones count until the other end has forgotten them too.
    pub open: usize,
    /// The most open circuits at any time.
    pub open_max: usize,
    /// Circuits that this node has opened since its start.
    pub opened: u64,
    /// Circuits that it has accepted since its start.
    pub accepted: u64,
    /// Circuits of others that it has refused.
    pub refused: u64,
    /// Bytes of circuits that were passed to the relay.
    pub sent_bytes: u64,
    /// Bytes of circuits that were received.
    pub received_bytes: u64,
    /// Statistics of the relay.
    pub relay: Stats,
}

/// The state that a node's circuits, their tasks and their users share.
#[derive(Debug)]
struct CircuitsState {
    table: Mutex<CircuitTable>,
    /// Notified when there is a message to send.
    outgoing: Notify,
    /// Notified when there is a circuit to accept, or never will be.
    opened: Notify,
    /// Notified when no circuit is open any more.
    idle: Notify,
}

impl CircuitsState {
    fn new(table: CircuitTable) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::new(table),
            outgoing: Notify::new(),
            opened: Notify::new(),
            idle: Notify::new(),
        })
    }

    /// Runs `act` on the circuits, then wakes the tasks that have work to do because of it.
    fn with<R>(&self, act: impl FnOnce(&mut CircuitTable) -> R) -> R {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut table);
        if table.has_message() {
            self.outgoing.notify_one();
        }
        if table.can_accept() {
            self.opened.notify_one();
        }
        if table.is_idle() {
            self.idle.notify_waiters();
        }
        result
    }
}

/// The relay that carries the messages, and the tasks that use it. Dropping it ends both.
#[derive(Debug)]
struct Owner {
    relay: Arc<Relay>,
    shared: Arc<CircuitsState>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.relay.kill();
        self.shared.with(|table| table.fail(RelayError::Closed));
    }
}

/// A node's circuits to others. Dropping the last clone drops the relay, and all circuits fail.
#[derive(Debug, Clone)]
pub struct Circuits {
    owner: Arc<Owner>,
}

/// Accepts circuits that others open to this node. Once it is dropped, they are refused.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<CircuitsState>,
}

/// One end of a circuit: bytes both ways, in order.
///
/// Shutting down the write half ends the stream for the other end, after all written bytes; these are still
/// sent if the circuit is dropped afterwards. A circuit that is dropped without a shutdown is reset: the
/// other end gets [`io::ErrorKind::ConnectionReset`]. When the relay fails, all circuits fail with its
/// [`RelayError`] inside [`io::ErrorKind::ConnectionAborted`]. Flushing does nothing: written bytes leave
/// as soon as possible.
pub struct Circuit {
    shared: Arc<CircuitsState>,
    key: Key,
    /// Taken from the pipe, not yet read.
    current: Bytes,
}

impl Circuits {
    /// Takes over a relay and its inbox. From now on the relay carries only circuits; all nodes must use them.
    /// Call this in a Tokio runtime.
    ///
    /// # Errors
    /// [`RelayError::Config`] if the windows or the relay's messages are too small for a byte.
    pub fn start(relay: Relay, inbox: Inbox, config: CircuitsConfig) -> Result<(Self, Incoming)> {
        let of_relay = relay.config();
        let sizes = CircuitSizes::new(config.window_bytes, of_relay.message_bytes_max).ok_or_else(|| {
            let (window, message) = (config.window_bytes, of_relay.message_bytes_max);
            RelayError::Config(format!(
                "windows of {window} bytes and messages of {message} bytes are too small"
            ))
        })?;
        let table =
            CircuitTable::new(of_relay.node, of_relay.addresses.len() as u32, sizes, config.circuits_max);
        let shared = CircuitsState::new(table);
        let relay = Arc::new(relay);
        let tasks = [
            tokio::spawn(receive(inbox, Arc::clone(&shared))),
            tokio::spawn(send(Arc::clone(&relay), Arc::clone(&shared))),
        ];
        let owner = Arc::new(Owner { relay, shared: Arc::clone(&shared), tasks });
        Ok((Self { owner }, Incoming { shared }))
    }

    /// Whether no circuit can be opened or used any more.
    pub fn has_failed(&self) -> bool {
        self.owner.shared.with(|table| table.has_failed())
    }

    /// The error that ended them, if one has.
    pub fn error(&self) -> Option<RelayError> {
        self.owner.shared.with(|table| table.error())
    }

    /// Opens a circuit to another node. Up to a window of bytes can be written at once, without waiting for an
    /// answer. If the other node refuses the circuit, later reads and writes fail.
    ///
    /// # Errors
    /// [`RelayError::CircuitsFull`], [`RelayError::Config`] if there is no such node, or the error that
    /// ended the relay or cut off that node.
    pub fn open(&self, to: u32) -> Result<Circuit> {
        let shared = &self.owner.shared;
        let key = shared.with(|table| table.open(to))?;
        Ok(Circuit { shared: Arc::clone(shared), key, current: Bytes::new() })
    }

    /// The statistics of the circuits.
    pub fn stats(&self) -> CircuitsStats {
        let relay = self.owner.relay.stats();
        self.owner.shared.with(|table| {
            let counts = table.counts;
            CircuitsStats {
                open: table.open_count(),
                open_max: counts.open_max,
                opened: counts.opened,
                accepted: counts.accepted,
                refused: counts.refused,
                sent_bytes: counts.sent_bytes,
                received_bytes: counts.received_bytes,
                relay,
            }
        })
    }

    /// The relay, for choosing its direct connections. Do not send other messages over it.
    pub fn relay(&self) -> &Relay {
        &self.owner.relay
    }

    /// Waits until no circuit is open, opened by either end, and all messages have left; or until the relay
    /// has failed.
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

    /// Opens and accepts no more circuits, and resets the open ones; bytes that were written and shut down are
    /// still sent. When both ends have forgotten all of them, closes the relay as [`Relay::close`] does: a node
    /// that forwards circuits of others has to wait until these have ended too.
    ///
    /// # Errors
    /// The error that ended the relay before.
    pub async fn close(&self) -> Result<()> {
        self.owner.shared.with(CircuitTable::close);
        self.idle().await;
        self.owner.relay.all_left().await?;
        self.owner.relay.close().await
    }
}

/// Receives all messages, so that no sender has to wait for room.
async fn receive(mut inbox: Inbox, shared: Arc<CircuitsState>) {
    let error = loop {
        match inbox.recv().await {
            Ok(Some(message)) => shared.with(|table| table.received(message.from, &message.bytes)),
            Ok(None) => break RelayError::Closed,
            Err(error) => break error,
        }
    };
    shared.with(|table| table.fail(error));
}

/// Sends messages, for ever.
async fn send(relay: Arc<Relay>, shared: Arc<CircuitsState>) {
    loop {
        let Some((to, message)) = shared.with(CircuitTable::next_message) else {
            shared.outgoing.notified().await;
            continue;
        };
        match relay.send(to, message).await {
            Ok(()) => {}
            // The other node has closed its connections first. That affects only circuits to it.
            Err(error @ RelayError::Unroutable(_)) => shared.with(|table| table.cut_off(to, error)),
            Err(error) => {
                shared.with(|table| table.fail(error));
                return;
            }
        }
    }
}

impl Incoming {
    /// The next circuit, and the node that opened it; `None` once the relay is closed or has failed.
    /// Cancel-safe.
    pub async fn accept(&mut self) -> Option<(u32, Circuit)> {
        loop {
            match self.shared.with(CircuitTable::accept) {
                Ok(Some(key)) => {
                    let circuit = Circuit { shared: Arc::clone(&self.shared), key, current: Bytes::new() };
                    return Some((key.peer, circuit));
                }
                Ok(None) => self.shared.opened.notified().await,
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.shared.with(CircuitTable::accept_no_more);
    }
}

impl Circuit {
    /// The node at the other end.
    pub fn peer(&self) -> u32 {
        self.key.peer
    }

    /// The next bytes; empty at the end.
    fn poll_take(&self, context: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        self.shared.with(|table| {
            let pipe = table.pipe(self.key).map_err(aborted)?;
            if let Some(why) = pipe.receive.cut() {
                return Poll::Ready(Err(self.reset(why)));
            }
            if let Some((bytes, grants)) = pipe.receive.take() {
                if grants {
                    pipe.grant();
                    table.schedule(self.key);
                }
                return Poll::Ready(Ok(bytes));
            }
            if pipe.receive.is_read() {
                return Poll::Ready(Ok(Bytes::new()));
            }
            pipe.receive.waker = Some(context.waker().clone());
            Poll::Pending
        })
    }

    /// How much can be written now. A small write is appended to the last message if that has not left yet;
    /// then the write is done.
    fn poll_room(&self, context: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<Room>> {
        self.shared.with(|table| {
            let pipe = table.pipe(self.key).map_err(aborted)?;
            if let Some(why) = pipe.send.stopped() {
                return Poll::Ready(Err(self.reset(why)));
            }
            if pipe.send.is_ended() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let room = pipe.send.room();
            if room == 0 {
                pipe.send.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            let (slices, bytes) = within(slices, room);
            if !pipe.send.appends(bytes) {
                return Poll::Ready(Ok(Room::For(room)));
            }
            pipe.send.append(&slices);
            table.schedule(self.key);
            Poll::Ready(Ok(Room::Appended(bytes)))
        })
    }

    fn reset(&self, why: Why) -> io::Error {
        let peer = self.key.peer;
        let what = match why {
            Why::Whole | Why::Dropped => "dropped the circuit",
            Why::Full => "has reached its limit of circuits",
            Why::Unwanted => "accepts no circuits",
            Why::Closing => "is closing",
        };
        io::Error::new(io::ErrorKind::ConnectionReset, format!("node {peer} {what}"))
    }
}

/// The result of asking for room.
enum Room {
    For(usize),
    Appended(usize),
}

fn aborted(error: RelayError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, error)
}

/// The first `most` bytes of the slices, and their number.
fn within<'a>(slices: &'a [io::IoSlice<'_>], mut most: usize) -> (Vec<&'a [u8]>, usize) {
    let cut = |slice: &'a io::IoSlice<'_>| {
        let slice = &slice[..slice.len().min(most)];
        most -= slice.len();
        slice
    };
    let slices: Vec<_> = slices.iter().map(cut).filter(|slice| !slice.is_empty()).collect();
    let bytes = slices.iter().map(|slice| slice.len()).sum();
    (slices, bytes)
}

impl AsyncRead for Circuit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.current.is_empty() {
            match self.poll_take(context) {
                Poll::Ready(taken) => self.current = taken?,
                Poll::Pending => return Poll::Pending,
            }
        }
        let bytes = self.current.len().min(buffer.remaining());
        buffer.put_slice(&self.current[..bytes]);
        self.current.advance(bytes);
        if self.current.is_empty() {
            // Releases the memory of the message.
            self.current = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Circuit {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let room = match self.poll_room(context, slices) {
            Poll::Ready(Ok(Room::For(room))) => room,
            Poll::Ready(Ok(Room::Appended(bytes))) => return Poll::Ready(Ok(bytes)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        let (slices, bytes) = within(slices, room);
        // Copied outside the lock. There is no other writer, so the room can only grow.
        let chunk = chunk(&slices);
        Poll::Ready(self.shared.with(|table| {
            let pipe = table.pipe(self.key).map_err(aborted)?;
            if let Some(why) = pipe.send.stopped() {
                return Err(self.reset(why));
            }
            pipe.send.push(chunk);
            table.schedule(self.key);
            Ok(bytes)
        }))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shared.with(|table| {
            table.pipe(self.key).map_err(aborted)?.send.finish();
            table.schedule(self.key);
            Ok(())
        }))
    }
}

impl Drop for Circuit {
    fn drop(&mut self) {
        self.shared.with(|table| table.orphan(self.key, Why::Dropped));
    }
}

impl fmt::Debug for Circuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Circuit").field("peer", &self.key.peer).finish_non_exhaustive()
    }
}

/// Receives arbitrary messages of another node in a table that has circuits of its own.
#[cfg(fuzzing)]
pub(crate) fn fuzz(messages: impl Iterator<Item = Bytes>) {
    const CIRCUITS_MAX: usize = 8;
    let Some(sizes) = pipe::CircuitSizes::new(1000, 324) else { return };
    let mut table = table::CircuitTable::new(0, 2, sizes, CIRCUITS_MAX);
    let mut keys: Vec<_> = (0..2).filter_map(|_| table.open(1).ok()).collect();
    for message in messages {
        table.received(1, &message);
        keys.extend(table.accept().ok().flatten());
        for key in &keys {
            let Ok(pipe) = table.pipe(*key) else { continue };
            pipe.receive.take();
            if pipe.send.room() > 0 && pipe.send.stopped().is_none() {
                pipe.send.append(&[b"hello"]);
            }
            table.schedule(*key);
        }
        while table.next_message().is_some() {}
        assert!(table.open_count() <= 2 * CIRCUITS_MAX);
    }
}
