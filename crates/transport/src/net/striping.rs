//! A result over several connections, as its producer sees them: they join by
//! ticket, and each message goes to one that has room (decision 0007).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lightship_wire::EncodedMessage;
use lightship_wire::control::{ErrorCode, Failure};
use lightship_wire::join::{JOINED_MAX, Join, Ticket};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

use super::conversation::{Link, Stop, attended, flush};
use super::frames::FrameWriter;
use super::lock;
use super::meet::random_bits;
use super::meter::Meter;
use crate::TransportError;

/// Messages that wait for a connection, besides the one that it is sending: enough that it need
/// not wait for the producer.
const WAITING_MESSAGES_MAX: usize = 1;

/// The results of a server that connections may join, by the secret of their ticket.
#[derive(Default)]
pub(super) struct Tickets(Mutex<HashMap<[u8; 16], Open>>);

/// A result that can be joined.
struct Open {
    /// Which numbers are still to be had.
    free: Vec<bool>,
    joining: mpsc::Sender<Joined>,
    wake: Arc<Notify>,
    /// Closed when the result has ended.
    result: watch::Receiver<()>,
}

/// Bytes a nanosecond that a connection carries; `None` while that is not known.
type Rate = Arc<Mutex<Option<f64>>>;

/// A connection that has joined, on the producer's side.
struct Joined {
    connection: u32,
    messages: mpsc::Sender<EncodedMessage>,
    rate: Rate,
    /// Whether any message was dealt to it.
    used: bool,
}

/// The connections that a result has besides its first, and may get. No other can join once it
/// is dropped; those that have send what was dealt to them.
pub(super) struct Striping {
    tickets: Arc<Tickets>,
    secret: [u8; 16],
    joining: mpsc::Receiver<Joined>,
    joined: Vec<Joined>,
    /// Whose turn it is.
    next: usize,
    _result: watch::Sender<()>,
}

/// Where a message can go.
pub(super) enum Room {
    /// No connection has joined.
    Alone,
    /// To a joined one.
    At(Place),
    /// Nowhere yet.
    Full,
}

/// A joined connection with room for a message.
pub(super) struct Place {
    pub(super) connection: u32,
    messages: mpsc::OwnedPermit<EncodedMessage>,
}

impl Place {
    pub(super) fn deal(self, message: EncodedMessage) {
        self.messages.send(message);
    }
}

impl Tickets {
    /// Lets at most so many connections join a result. `wake` is called when its producer should
    /// look again. Nothing where the system has no randomness to give.
    pub(super) fn issue(
        self: &Arc<Self>,
        connections: u32,
        wake: &Arc<Notify>,
    ) -> Option<(Ticket, Striping)> {
        let connections = connections.min(JOINED_MAX);
        let ticket = Ticket { secret: random_bits()?, connections };
        let (sender, joining) = mpsc::channel(connections as usize);
        let (ends, result) = watch::channel(());
        let free = vec![true; connections as usize];
        let open = Open { free, joining: sender, wake: Arc::clone(wake), result };
        lock(&self.0).insert(ticket.secret, open);
        let (tickets, secret) = (Arc::clone(self), ticket.secret);
        Some((ticket, Striping { tickets, secret, joining, joined: Vec::new(), next: 0, _result: ends }))
    }

    /// A connection joins, if it may.
    fn join(&self, join: &Join) -> Option<Mailbox> {
        let mut open = lock(&self.0);
        let open = open.get_mut(&join.secret)?;
        let free = open.free.get_mut((join.connection as usize).checked_sub(1)?)?;
        if !std::mem::take(free) {
            return None;
        }
        let (sender, messages) = mpsc::channel(WAITING_MESSAGES_MAX);
        let (connection, rate) = (join.connection, Rate::default());
        let (wake, result) = (Arc::clone(&open.wake), open.result.clone());
        let mailbox = Mailbox { messages, rate: Arc::clone(&rate), wake, result };
        // There is room for as many as there are numbers.
        open.joining.try_send(Joined { connection, messages: sender, rate, used: false }).ok()?;
        open.wake.notify_one();
        Some(mailbox)
    }
}

impl Striping {
    /// Looks who has come and who has gone.
    ///
    /// # Errors
    /// [`ErrorCode::Lost`] when one has gone to which messages were dealt: they may not have arrived.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        while let Ok(joined) = self.joining.try_recv() {
            tracing::debug!(connection = joined.connection, "a connection joined the result");
            self.joined.push(joined);
        }
        if let Some(lost) = self.joined.iter().find(|joined| joined.used && joined.messages.is_closed()) {
            let message = format!("connection {} of the result was lost", lost.connection);
            return Err(Failure::new(ErrorCode::Lost, message));
        }
        self.joined.retain(|joined| !joined.messages.is_closed());
        Ok(())
    }

    /// Where the next message can go; the connections take turns, but for those without room.
    ///
    /// # Errors
    /// As [`Striping::look`].
    pub(super) fn room(&mut self) -> Result<Room, Failure> {
        self.look()?;
        if self.joined.is_empty() {
            return Ok(Room::Alone);
        }
        let count = self.joined.len();
        for place in (0..count).map(|step| (self.next + step) % count) {
            let joined = &mut self.joined[place];
            if let Ok(messages) = joined.messages.clone().try_reserve_owned() {
                joined.used = true;
                self.next = place + 1;
                return Ok(Room::At(Place { connection: joined.connection, messages }));
            }
        }
        Ok(Room::Full)
    }

    /// What the joined connections carry together, in bytes a nanosecond; `None` while no message
    /// has gone by one.
    pub(super) fn bytes_per_ns(&self) -> Option<f64> {
        self.joined.iter().filter_map(|joined| *lock(&joined.rate)).reduce(|a, b| a + b)
    }
}

impl Drop for Striping {
    fn drop(&mut self) {
        lock(&self.tickets.0).remove(&self.secret);
    }
}

/// Where a joined connection gets its messages.
struct Mailbox {
    messages: mpsc::Receiver<EncodedMessage>,
    rate: Rate,
    wake: Arc<Notify>,
    result: watch::Receiver<()>,
}

impl Mailbox {
    /// The next message; `None` when no more will come. Cancel-safe.
    async fn next(&mut self) -> Option<EncodedMessage> {
        let message = self.messages.recv().await;
        self.wake.notify_one();
        message
    }

    /// Comes back when the result has ended, and `limit` has passed since.
    async fn outstayed(&mut self, limit: Option<Duration>) -> Duration {
        // Nothing is ever sent.
        while self.result.changed().await.is_ok() {}
        let Some(limit) = limit else { return std::future::pending().await };
        sleep(limit).await;
        limit
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // Before the producer looks.
        self.messages.close();
        self.wake.notify_one();
    }
}

/// What a connection does that joins a result: it sends what is dealt to it. It is the client that
/// closes it: who closes while something is on its way to him can lose what is on its way from him. Once the result has
/// ended, what was dealt to it has `stall_timeout` to leave, message by message.
pub(super) async fn carry(
    tickets: &Tickets,
    join: &Join,
    link: &Link,
    writer: &mut FrameWriter,
    meter: &mut Meter,
    stall_timeout: Option<Duration>,
) -> Result<(), Stop> {
    // What lies in the kernel is no room: the connection that carries most shall get most.
    meter.attend();
    let Some(mut mailbox) = tickets.join(join) else {
        let message = "the ticket is not known, no longer good, or used";
        return Err(Failure::new(ErrorCode::Forbidden, message).into());
    };
    while let Some(message) = attended(mailbox.next(), link, writer).await? {
        let bytes = {
            let mut shared = lock(&link.shared);
            shared.proto.bring(message);
            shared.proto.queued_bytes()
        };
        let sending = Instant::now();
        tokio::select! {
            biased;
            sent = flush(link, writer) => sent?,
            after = mailbox.outstayed(stall_timeout) => return Err(TransportError::Stalled { after }.into()),
        }
        let now = Instant::now();
        meter.wrote(bytes as u64, now - sending);
        *lock(&mailbox.rate) = meter.bytes_per_ns(now);
    }
    lock(&link.shared).proto.leave();
    Ok(())
}
