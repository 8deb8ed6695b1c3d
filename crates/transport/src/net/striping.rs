//! The producer's side of a result over several connections. Connections join by a stripe offer, and each
//! message goes to one that has room (decision 0007).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lightship_wire::EncodedMessage;
use lightship_wire::control::{ErrorCode, Failure};
use lightship_wire::join::{JOINED_MAX, Join, StripeOffer};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

use super::lock;
use super::rendezvous::random_bits;
use super::stream::{Stop, Stream};
use crate::TransportError;

/// Messages that wait for a connection, besides the one that it is sending. With one, the connection
/// need not wait for the producer.
const WAITING_MESSAGES_MAX: usize = 1;

/// The results of a server that connections may join, by the secret of their stripe offer.
#[derive(Default)]
pub(super) struct StripeOffers(Mutex<HashMap<[u8; 16], Open>>);

/// A result that can be joined.
struct Open {
    /// Which numbers of connections are free.
    free: Vec<bool>,
    joining: mpsc::Sender<Joined>,
    wake: Arc<Notify>,
    /// Closed when the result has ended.
    result: watch::Receiver<()>,
}

/// The rate of a connection in bytes per nanosecond; `None` while unknown.
type Rate = Arc<Mutex<Option<f64>>>;

/// A connection that has joined, as the producer sees it.
struct Joined {
    connection: u32,
    messages: mpsc::Sender<EncodedMessage>,
    rate: Rate,
    /// Whether any message was distributed to it.
    used: bool,
}

/// The connections that have joined a result. When it is dropped, no more can join; those that have joined
/// still send what was distributed to them.
pub(super) struct Striping {
    offers: Arc<StripeOffers>,
    secret: [u8; 16],
    joining: mpsc::Receiver<Joined>,
    joined: Vec<Joined>,
    /// The index in `joined` of the connection whose turn it is.
    next: usize,
    _result: watch::Sender<()>,
}

/// Where a message can go.
pub(super) enum StripeTarget {
    /// No connection has joined.
    Alone,
    /// A joined connection has room.
    At(ReservedConnection),
    /// No joined connection has room.
    Full,
}

/// A joined connection with room for a message.
pub(super) struct ReservedConnection {
    pub(super) connection: u32,
    messages: mpsc::OwnedPermit<EncodedMessage>,
}

impl ReservedConnection {
    pub(super) fn send(self, message: EncodedMessage) {
        self.messages.send(message);
    }
}

impl StripeOffers {
    /// Offers that at most `connections` join a result. `wake` wakes its producer when one joins, leaves or
    /// has room. `None` if the system provides no random bits.
    pub(super) fn issue(
        self: &Arc<Self>,
        connections: u32,
        wake: &Arc<Notify>,
    ) -> Option<(StripeOffer, Striping)> {
        let connections = connections.min(JOINED_MAX);
        let offer = StripeOffer { secret: random_bits()?, connections };
        let (sender, joining) = mpsc::channel(connections as usize);
        let (ends, result) = watch::channel(());
        let free = vec![true; connections as usize];
        let open = Open { free, joining: sender, wake: Arc::clone(wake), result };
        lock(&self.0).insert(offer.secret, open);
        let (offers, secret) = (Arc::clone(self), offer.secret);
        Some((offer, Striping { offers, secret, joining, joined: Vec::new(), next: 0, _result: ends }))
    }

    /// Lets a connection join. `None` if the offer is unknown or the number is taken.
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
        // The channel has room for every number.
        open.joining.try_send(Joined { connection, messages: sender, rate, used: false }).ok()?;
        open.wake.notify_one();
        Some(mailbox)
    }
}

impl Striping {
    /// Updates the list of joined connections.
    ///
    /// # Errors
    /// [`ErrorCode::Lost`] if a connection that has had messages is gone: they may not have arrived.
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

    /// Where the next message can go. Connections with room take turns.
    ///
    /// # Errors
    /// As [`Striping::look`].
    pub(super) fn room(&mut self) -> Result<StripeTarget, Failure> {
        self.look()?;
        if self.joined.is_empty() {
            return Ok(StripeTarget::Alone);
        }
        let count = self.joined.len();
        for index in (0..count).map(|step| (self.next + step) % count) {
            let joined = &mut self.joined[index];
            if let Ok(messages) = joined.messages.clone().try_reserve_owned() {
                joined.used = true;
                self.next = index + 1;
                return Ok(StripeTarget::At(ReservedConnection { connection: joined.connection, messages }));
            }
        }
        Ok(StripeTarget::Full)
    }

    /// The total rate of the joined connections in bytes per nanosecond; `None` before the first message.
    pub(super) fn bytes_per_ns(&self) -> Option<f64> {
        self.joined.iter().filter_map(|joined| *lock(&joined.rate)).reduce(|a, b| a + b)
    }
}

impl Drop for Striping {
    fn drop(&mut self) {
        lock(&self.offers.0).remove(&self.secret);
    }
}

/// The queue from which a joined connection takes its messages.
struct Mailbox {
    messages: mpsc::Receiver<EncodedMessage>,
    rate: Rate,
    wake: Arc<Notify>,
    result: watch::Receiver<()>,
}

impl Mailbox {
    /// The next message; `None` after the last one. Cancel-safe.
    async fn next(&mut self) -> Option<EncodedMessage> {
        let message = self.messages.recv().await;
        self.wake.notify_one();
        message
    }

    /// Returns when `limit` has passed since the end of the result.
    async fn outstayed(&mut self, limit: Option<Duration>) -> Duration {
        // The sender sends nothing; it is dropped at the end of the result.
        while self.result.changed().await.is_ok() {}
        let Some(limit) = limit else { return std::future::pending().await };
        sleep(limit).await;
        limit
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // Close before waking the producer, which looks for closed queues.
        self.messages.close();
        self.wake.notify_one();
    }
}

/// Serves a stream that joins a result: sends the messages distributed to it. The client closes the connection:
/// a side that closes a socket while data is arriving can lose data that it has sent. After the end of the
/// result, each remaining message has `stall_timeout` to be sent.
pub(super) async fn send_stripe(
    offers: &StripeOffers,
    join: &Join,
    stream: &Stream,
    stall_timeout: Option<Duration>,
) -> Result<(), Stop> {
    // Keep the kernel's buffer short, so that the fastest connection takes the most messages.
    lock(&stream.link.meter).attend();
    let Some(mut mailbox) = offers.join(join) else {
        let message = "the stripe offer is unknown, expired or already used";
        return Err(Failure::new(ErrorCode::Forbidden, message).into());
    };
    while let Some(message) = stream.attended(mailbox.next()).await? {
        stream.proto().joined_message(stream.id, message);
        // Beside other results, the client is watched as for those.
        let limit = stall_timeout.filter(|_| stream.proto().only_joins());
        tokio::select! {
            biased;
            sent = stream.flush() => { sent?; }
            after = mailbox.outstayed(limit) => return Err(TransportError::Stalled { after }.into()),
        }
        *lock(&mailbox.rate) = lock(&stream.link.meter).bytes_per_ns(Instant::now());
    }
    stream.proto().finish_joined(stream.id);
    Ok(())
}
