//! The consumer's side of a result over several connections. Placeholders on the first connection define the
//! order of the messages that come over the joined ones (decision 0007).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use arrow_buffer::Buffer;
use lightship_wire::control::Plan;
use lightship_wire::join::{Join, StripeOffer};
use tokio::task::JoinSet;

use super::client_task::{Arriving, ClientLink, Event, unpack};
use super::{ClientConfig, Connection, Endpoint, lock};
use crate::proto::{ClientEvent, PendingMessage};
use crate::{Result, TransportError};

/// No message is shorter: each has a head.
const MESSAGE_BYTES_MIN: usize = 20;

/// Payloads that have arrived over the joined connections of a result before their placeholders.
pub(super) struct Arrivals {
    secret: [u8; 16],
    /// By number of the connection, from 1.
    connections: Vec<Arrived>,
    bytes: u64,
    /// The window: a correct producer never has more outstanding.
    bytes_max: u64,
}

#[derive(Default)]
struct Arrived {
    payloads: VecDeque<Buffer>,
    ended: Option<TransportError>,
}

impl Arrivals {
    pub(super) fn new(offer: &StripeOffer, bytes_max: u64) -> Self {
        let connections = (0..offer.connections).map(|_| Arrived::default()).collect();
        Self { secret: offer.secret, connections, bytes: 0, bytes_max }
    }

    /// Raises the limit to `bytes`, if that is more.
    pub(super) fn allow(&mut self, bytes: u64) {
        self.bytes_max = self.bytes_max.max(bytes);
    }

    fn of(&mut self, connection: u32) -> Option<&mut Arrived> {
        self.connections.get_mut((connection as usize).checked_sub(1)?)
    }

    fn hold(&mut self, connection: u32, payload: Buffer) -> Result<()> {
        if payload.len() < MESSAGE_BYTES_MIN {
            return Err(TransportError::Protocol(format!("a message of {} bytes", payload.len())));
        }
        self.bytes += payload.len() as u64;
        if self.bytes > self.bytes_max {
            return Err(TransportError::Protocol("payloads that exceed the window".into()));
        }
        if let Some(arrived) = self.of(connection) {
            arrived.payloads.push_back(payload);
        }
        Ok(())
    }

    fn take(&mut self, connection: u32) -> Option<Buffer> {
        let payload = self.of(connection)?.payloads.pop_front()?;
        self.bytes -= payload.len() as u64;
        Some(payload)
    }
}

/// Allows connections to join the current result.
pub(super) struct JoinPermit {
    offer: StripeOffer,
    message_bytes_max: u32,
    /// The number of connections used so far.
    used: u32,
}

impl Connection {
    /// Stores the stripe offer of the current result.
    pub(super) fn admit(&mut self, offer: StripeOffer, plan: &Plan) {
        if let Some(arriving) = lock(&self.link.shared).arriving.get_mut(&self.stream) {
            arriving.arrivals = Some(Arrivals::new(&offer, plan.memory_bytes()));
        }
        self.admission = Some(JoinPermit { offer, message_bytes_max: plan.message_bytes_max, used: 0 });
    }

    /// Stripes the current result over this many connections, or as many as the server offers. Messages then come
    /// over streams that join the result: the first over this connection, each other one over a new connection. If
    /// a connection can't be opened, the result goes on without it.
    pub fn widen(&mut self, connections: u32) {
        let own = self.share();
        let Some(JoinPermit { offer, message_bytes_max, used }) = &mut self.admission else { return };
        let Some(endpoint) = &self.endpoint else { return };
        let wanted = connections.min(offer.connections);
        for connection in *used + 1..=wanted {
            let join = Join { secret: offer.secret, connection };
            let (link, endpoint, config) = (self.link.clone(), endpoint.clone(), self.config.clone());
            let over = (connection == 1).then(|| own.share());
            self.joined.spawn(carry(link, self.stream, over, endpoint, config, join, *message_bytes_max));
        }
        *used = wanted.max(*used);
    }

    /// Closes the connections that have joined the result.
    pub(super) fn narrow(&mut self) {
        self.joined = JoinSet::new();
        self.admission = None;
        if let Some(arriving) = lock(&self.link.shared).arriving.get_mut(&self.stream) {
            arriving.arrivals = None;
        }
    }
}

impl Arriving {
    /// Handles a placeholder. Returns the event for the application: rows if their payload has arrived.
    pub(super) fn place(&mut self, pending: PendingMessage) -> Result<Event> {
        let connection = pending.connection();
        let Some(arrivals) = &mut self.arrivals else { return Ok(Event::Pending(pending)) };
        if let Some(payload) = arrivals.take(connection) {
            return Ok(unpack(pending.arrive(payload)?));
        }
        match arrivals.of(connection).and_then(|arrived| arrived.ended.take()) {
            Some(error) => Ok(lost(connection, error)),
            None => Ok(Event::Pending(pending)),
        }
    }

    /// Handles a payload from a joined connection. Ignores it if its result has ended.
    fn arrived(&mut self, join: &Join, payload: Buffer) -> Result<()> {
        let Some(arrivals) = self.arrivals.as_mut().filter(|arrivals| arrivals.secret == join.secret) else {
            return Ok(());
        };
        match self.events.iter_mut().find(|event| event.awaits(join.connection)) {
            None => arrivals.hold(join.connection, payload),
            Some(place) => {
                if let Event::Pending(pending) = place {
                    *place = unpack(pending.clone().arrive(payload)?);
                }
                Ok(())
            }
        }
    }

    /// Handles the end of a joined connection. It is an error only if a message is missing: one whose
    /// placeholder has arrived, or arrives later.
    fn left(&mut self, join: &Join, error: TransportError) {
        let Some(arrivals) = self.arrivals.as_mut().filter(|arrivals| arrivals.secret == join.secret) else {
            return;
        };
        match self.events.iter().position(|event| event.awaits(join.connection)) {
            Some(first) => {
                self.events.truncate(first);
                self.events.push_back(lost(join.connection, error));
            }
            None => {
                if let Some(arrived) = arrivals.of(join.connection) {
                    arrived.ended = Some(error);
                }
            }
        }
    }

    /// The result has failed: drops everything from the first message that has not arrived.
    pub(super) fn forsake(&mut self) {
        self.arrivals = None;
        if let Some(first) = self.events.iter().position(|event| matches!(event, Event::Pending(_))) {
            self.events.truncate(first);
        }
    }
}

impl Event {
    fn awaits(&self, connection: u32) -> bool {
        matches!(self, Self::Pending(pending) if pending.connection() == connection)
    }
}

fn lost(connection: u32, error: TransportError) -> Event {
    Event::Lost(TransportError::Lost { connection, source: Box::new(error) })
}

/// The task of a joined connection: passes its payloads to the result until either ends.
async fn carry(
    link: Arc<ClientLink>,
    stream: u32,
    over: Option<Connection>,
    endpoint: Endpoint,
    config: ClientConfig,
    join: Join,
    message_bytes_max: u32,
) {
    let connected = async {
        match over {
            Some(connection) => Ok(connection),
            None => Connection::connect(&endpoint, &config).await,
        }
    };
    let brought = async { bring(&link, stream, connected.await?, &join, message_bytes_max).await };
    let Err(error) = brought.await;
    tracing::debug!(connection = join.connection, %error, "a joined connection ended");
    if let Some(arriving) = lock(&link.shared).arriving.get_mut(&stream) {
        arriving.left(&join, error);
        arriving.incoming.notify_one();
    }
}

async fn bring(
    link: &ClientLink,
    stream: u32,
    mut connection: Connection,
    join: &Join,
    message_bytes_max: u32,
) -> Result<Infallible> {
    connection.join(join, message_bytes_max)?;
    loop {
        match connection.told().await? {
            ClientEvent::Payload(payload) => {
                if let Some(arriving) = lock(&link.shared).arriving.get_mut(&stream) {
                    arriving.arrived(join, payload)?;
                    arriving.incoming.notify_one();
                }
            }
            // All its messages have arrived.
            ClientEvent::Finished(_) => return std::future::pending().await,
            ClientEvent::Failed(failure) => return Err(failure.into()),
            other => return Err(TransportError::Protocol(format!("{other:?} on a joined connection"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_payloads_may_not_exceed_the_window() {
        let offer = StripeOffer { secret: [7; 16], connections: 2 };
        let mut arrivals = Arrivals::new(&offer, 100);
        let payload = |bytes: usize| Buffer::from(vec![0u8; bytes]);
        arrivals.hold(1, payload(60)).unwrap();
        arrivals.hold(2, payload(40)).unwrap();
        assert_eq!(arrivals.take(1).map(|payload| payload.len()), Some(60));
        arrivals.hold(2, payload(60)).unwrap();
        let refused = arrivals.hold(1, payload(20)).unwrap_err();
        assert!(matches!(refused, TransportError::Protocol(_)), "{refused}");
        assert!(arrivals.take(0).is_none() && arrivals.take(3).is_none());
    }
}
