//! Circuits: ordered byte pipes between two nodes, over a relay, or over the one connection that they have.
//!
//! The messages of a relay may arrive in another order, and who does not take them holds up others. Here one
//! task takes them for ever, whoever reads: what a circuit may send is what its receiver has granted, and has
//! room for. Another task sends, a message of each circuit in turn, what is urgent (opens, credit, the end of
//! circuits that were dropped) before data. The bytes of a message are in the documentation of
//! `circuit/header.rs`.

mod header;
mod pipe;
mod table;
#[cfg(test)]
mod tests;
mod trunk;

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
use self::pipe::{Sizes, chunk};
use self::table::{Key, Table};
pub use self::trunk::End;
use crate::error::{RelayError, Result};
use crate::relay::{Inbox, Relay, Stats};

/// What a node's circuits may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitsConfig {
    /// Bytes of a circuit that may be on their way or unread, each way: at least two, and the same for all
    /// nodes. A circuit carries no more than this in the time that a message and its answer take.
    pub window_bytes: u32,
    /// Circuits that are open at a time, whoever opened them, with those that were dropped and not yet
    /// forgotten at the other end. About the same for all nodes: one that opens many more than another takes
    /// is cut off.
    pub circuits_max: usize,
}

impl Default for CircuitsConfig {
    /// Windows of 1 MiB, and 1024 circuits.
    fn default() -> Self {
        Self { window_bytes: 1 << 20, circuits_max: 1024 }
    }
}

impl CircuitsConfig {
    /// Bytes that circuits hold at most, beside what the relay does: a window for what comes, the piece
    /// that is being read, and as much as may be written before it leaves.
    pub fn memory_bytes_max(&self) -> u64 {
        (self.circuits_max as u64).saturating_mul(3 * u64::from(self.window_bytes))
    }
}

/// What a node's circuits have done, and have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitsStats {
    /// Circuits open now; those that were dropped count until the other end has forgotten them, too.
    pub open: usize,
    /// The most there were at any time.
    pub open_max: usize,
    /// Circuits that this node has opened, ever.
    pub opened: u64,
    /// Circuits that it has accepted, ever.
    pub accepted: u64,
    /// Circuits of others that it has refused.
    pub refused: u64,
    /// Bytes of circuits that were given to the relay.
    pub sent_bytes: u64,
    /// Bytes of circuits that have come.
    pub received_bytes: u64,
    /// The relay's own, where there is one.
    pub relay: Option<Stats>,
}

/// Of a node's circuits, their tasks and their user.
#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    /// There is something to send.
    outgoing: Notify,
    /// There is something to accept, or never will be.
    opened: Notify,
    /// Nothing is open any more.
    idle: Notify,
}

impl Shared {
    fn new(table: Table) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::new(table),
            outgoing: Notify::new(),
            opened: Notify::new(),
            idle: Notify::new(),
        })
    }

    /// Waits until there may be something to send.
    async fn outgoing(&self) {
        self.outgoing.notified().await;
    }

    /// Does something with the circuits, and wakes whoever has more to do for it.
    fn with<R>(&self, act: impl FnOnce(&mut Table) -> R) -> R {
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

/// What carries the messages, and the tasks that have it; they end with it.
#[derive(Debug)]
struct Owner {
    relay: Option<Arc<Relay>>,
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        if let Some(relay) = &self.relay {
            relay.kill();
        }
        self.shared.with(|table| table.fail(RelayError::Closed));
    }
}

/// A node's circuits to others. When the last clone is dropped the relay is, or the connection, and all circuits
/// fail.
#[derive(Debug, Clone)]
pub struct Circuits {
    owner: Arc<Owner>,
}

/// Circuits that others open to this node. Dropped, it refuses them.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<Shared>,
}

/// One end of a circuit: bytes both ways, in order.
///
/// Shutting down the write half is the end of the stream for the other end, after all that was written; what was
/// written goes out though the circuit is dropped then. Dropped without it, the circuit is reset: the other
/// end gets [`io::ErrorKind::ConnectionReset`]. When the relay fails, all circuits do, with its [`RelayError`]
/// inside of [`io::ErrorKind::ConnectionAborted`]. Flushing does nothing: what is written leaves as soon as it can.
pub struct Circuit {
    shared: Arc<Shared>,
    key: Key,
    /// Taken, and not yet read.
    current: Bytes,
}

impl Circuits {
    /// Takes over a relay and what arrives there, which from now on is circuits' alone: all nodes have them.
    /// Call in a Tokio runtime.
    ///
    /// # Errors
    /// [`RelayError::Config`] when windows or the relay's messages have no room for a byte.
    pub fn start(relay: Relay, inbox: Inbox, config: CircuitsConfig) -> Result<(Self, Incoming)> {
        let of_relay = relay.config();
        let sizes = Sizes::new(config.window_bytes, of_relay.message_bytes_max).ok_or_else(|| {
            let (window, message) = (config.window_bytes, of_relay.message_bytes_max);
            RelayError::Config(format!("circuits with windows of {window} and messages of {message} bytes"))
        })?;
        let table = Table::new(of_relay.node, of_relay.addresses.len() as u32, sizes, config.circuits_max);
        let shared = Shared::new(table);
        let relay = Arc::new(relay);
        let tasks = [
            tokio::spawn(receive(inbox, Arc::clone(&shared))),
            tokio::spawn(send(Arc::clone(&relay), Arc::clone(&shared))),
        ];
        let owner = Arc::new(Owner { relay: Some(relay), shared: Arc::clone(&shared), tasks });
        Ok((Self { owner }, Incoming { shared }))
    }

    /// Takes over a connection to another node, which does the same with its end and has the same sizes: all
    /// circuits go over it, to node 1 from the end that has opened it, and to node 0 from the other. Whatever is
    /// lost or garbled on the way is for the circuits' users to notice. Call in a Tokio runtime.
    ///
    /// # Errors
    /// [`RelayError::Config`] when windows or messages have no room for a byte.
    pub fn over(
        read: impl AsyncRead + Send + Unpin + 'static,
        write: impl AsyncWrite + Send + Unpin + 'static,
        end: End,
        message_bytes_max: u32,
        config: CircuitsConfig,
    ) -> Result<(Self, Incoming)> {
        let sizes = Sizes::new(config.window_bytes, message_bytes_max).ok_or_else(|| {
            let window = config.window_bytes;
            RelayError::Config(format!(
                "circuits with windows of {window} and messages of {message_bytes_max} bytes"
            ))
        })?;
        let shared = Shared::new(Table::new(end.node(), 2, sizes, config.circuits_max));
        let (peer, most) = (end.peer(), message_bytes_max as usize);
        let tasks = [
            tokio::spawn(trunk::receive(read, peer, most, Arc::clone(&shared))),
            tokio::spawn(trunk::send(write, peer, Arc::clone(&shared))),
        ];
        let owner = Arc::new(Owner { relay: None, shared: Arc::clone(&shared), tasks });
        Ok((Self { owner }, Incoming { shared }))
    }

    /// Whether nothing can be opened or carried any more.
    pub fn has_failed(&self) -> bool {
        self.owner.shared.with(|table| table.has_failed())
    }

    /// What ended them, where something has.
    pub fn error(&self) -> Option<RelayError> {
        self.owner.shared.with(|table| table.error())
    }

    /// Opens a circuit to another node. It can be written to at once, as far as the window goes: nobody
    /// waits for an answer. If the other node refuses it, reads and writes say so later.
    ///
    /// # Errors
    /// [`RelayError::CircuitsFull`], [`RelayError::Config`] where there is no such node; whatever ended the
    /// relay, or all that had to do with that node.
    pub fn open(&self, to: u32) -> Result<Circuit> {
        let shared = &self.owner.shared;
        let key = shared.with(|table| table.open(to))?;
        Ok(Circuit { shared: Arc::clone(shared), key, current: Bytes::new() })
    }

    /// What they have done, and have.
    pub fn stats(&self) -> CircuitsStats {
        let relay = self.owner.relay.as_ref().map(|relay| relay.stats());
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

    /// The relay, to choose direct connections by its traffic. Nothing else is to be sent by it.
    pub fn relay(&self) -> Option<&Relay> {
        self.owner.relay.as_deref()
    }

    /// Comes back when no circuit is open, whoever opened it, and nothing is left to be sent of one; or all is over.
    pub async fn idle(&self) {
        let shared = &self.owner.shared;
        loop {
            let idle = shared.idle.notified();
            tokio::pin!(idle);
            // Before looking, so that nothing is missed in between.
            idle.as_mut().enable();
            if shared.with(|table| table.is_idle()) {
                return;
            }
            idle.await;
        }
    }

    /// Opens and accepts no more circuits, and resets those that are open, but for what was written and shut
    /// down; when all of them have been forgotten at both ends, closes the relay as [`Relay::close`] does:
    /// a node that others' circuits still go through has to wait until these have ended, too.
    ///
    /// # Errors
    /// Whatever ended the relay before.
    pub async fn close(&self) -> Result<()> {
        self.owner.shared.with(Table::close);
        self.idle().await;
        match &self.owner.relay {
            Some(relay) => {
                relay.all_left().await?;
                relay.close().await
            }
            None => Ok(()),
        }
    }
}

/// Takes all that comes, so that nobody has to wait for room.
async fn receive(mut inbox: Inbox, shared: Arc<Shared>) {
    let error = loop {
        match inbox.recv().await {
            Ok(Some(message)) => shared.with(|table| table.received(message.from, &message.bytes)),
            Ok(None) => break RelayError::Closed,
            Err(error) => break error,
        }
    };
    shared.with(|table| table.fail(error));
}

/// Sends what there is, for ever.
async fn send(relay: Arc<Relay>, shared: Arc<Shared>) {
    loop {
        let Some((to, message)) = shared.with(Table::next_message) else {
            shared.outgoing.notified().await;
            continue;
        };
        match relay.send(to, message).await {
            Ok(()) => {}
            // It has closed its connections before this node has: that is between the two.
            Err(error @ RelayError::Unroutable(_)) => shared.with(|table| table.cut_off(to, error)),
            Err(error) => {
                shared.with(|table| table.fail(error));
                return;
            }
        }
    }
}

impl Incoming {
    /// The next circuit, and the node that has opened it; nothing when no others will come, as the relay was
    /// closed or has failed. Cancel-safe.
    pub async fn accept(&mut self) -> Option<(u32, Circuit)> {
        loop {
            match self.shared.with(Table::accept) {
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
        self.shared.with(Table::accept_no_more);
    }
}

impl Circuit {
    /// The node at the other end.
    pub fn peer(&self) -> u32 {
        self.key.peer
    }

    /// The next bytes, none at the end.
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

    /// How much can be written now. Where it is little, and something it can go along with has not left
    /// yet, it goes there: then nothing is left to do.
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
            Why::Full => "has as many circuits as it takes",
            Why::Unwanted => "accepts no circuits",
            Why::Closing => "is closing",
        };
        io::Error::new(io::ErrorKind::ConnectionReset, format!("node {peer} {what}"))
    }
}

/// What came of asking for room.
enum Room {
    For(usize),
    Appended(usize),
}

fn aborted(error: RelayError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, error)
}

/// So many bytes of these.
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
            // Not to hold the whole message for nothing.
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
        // Copied outside of the lock. Nobody else writes here: the room can only grow.
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

/// Has a table take messages of another node's making; it has circuits of its own, some of which are read.
#[cfg(fuzzing)]
pub(crate) fn fuzz(messages: impl Iterator<Item = Bytes>) {
    const CIRCUITS_MAX: usize = 8;
    let Some(sizes) = pipe::Sizes::new(1000, 324) else { return };
    let mut table = table::Table::new(0, 2, sizes, CIRCUITS_MAX);
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
