//! The consumer's side of a result over several connections. Placeholders on the first connection define the
//! order of the messages that come over the joined ones (decision 0007).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use arrow_buffer::Buffer;
use lightship_wire::control::Plan;
use lightship_wire::join::{Join, StripeOffer};
use tokio::task::JoinSet;

use super::client_task::{ClientLink, Event, ResultQueue, unpack};
use super::{ClientConfig, Connection, Endpoint, lock};
use crate::proto::{ClientEvent, PendingMessage};
use crate::{Result, TransportError};

/// No message is shorter: each has a head.
const MESSAGE_BYTES_MIN: usize = 20;

/// Payloads that have arrived over the joined connections of a result before their placeholders.
pub(super) struct StripePayloads {
    secret: [u8; 16],
    /// By number of the connection, from 1.
    connections: Vec<ConnectionPayloads>,
    bytes: u64,
    /// The window: a correct producer never has more outstanding.
    bytes_max: u64,
}

#[derive(Default)]
struct ConnectionPayloads {
    payloads: VecDeque<Buffer>,
    ended: Option<TransportError>,
}

impl StripePayloads {
    pub(super) fn new(offer: &StripeOffer, bytes_max: u64) -> Self {
        let connections = (0..offer.connections).map(|_| ConnectionPayloads::default()).collect();
        Self { secret: offer.secret, connections, bytes: 0, bytes_max }
    }

    /// Raises the limit to `bytes`, if that is more.
    pub(super) fn allow(&mut self, bytes: u64) {
        self.bytes_max = self.bytes_max.max(bytes);
    }

    fn of(&mut self, connection: u32) -> Option<&mut ConnectionPayloads> {
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
        if let Some(of_connection) = self.of(connection) {
            of_connection.payloads.push_back(payload);
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
    pub(super) fn store_offer(&mut self, offer: StripeOffer, plan: &Plan) {
        if let Some(queue) = lock(&self.link.shared).queues.get_mut(&self.stream) {
            queue.stripe_payloads = Some(StripePayloads::new(&offer, plan.memory_bytes()));
        }
        self.join_permit = Some(JoinPermit { offer, message_bytes_max: plan.message_bytes_max, used: 0 });
    }

    /// Stripes the current result over this many connections, or as many as the server offers. Messages then come
    /// over streams that join the result: the first over this connection, each other one over a new connection. If
    /// a connection can't be opened, the result goes on without it.
    pub fn widen(&mut self, connections: u32) {
        let own = self.share();
        let Some(JoinPermit { offer, message_bytes_max, used }) = &mut self.join_permit else { return };
        let Some(endpoint) = &self.endpoint else { return };
        let wanted = connections.min(offer.connections);
        for connection in *used + 1..=wanted {
            let join = Join { secret: offer.secret, connection };
            let (link, endpoint, config) = (self.link.clone(), endpoint.clone(), self.config.clone());
            let over = (connection == 1).then(|| own.share());
            self.joined.spawn(run_joined(
                link,
                self.stream,
                over,
                endpoint,
                config,
                join,
                *message_bytes_max,
            ));
        }
        *used = wanted.max(*used);
    }

    /// Closes the connections that have joined the result.
    pub(super) fn narrow(&mut self) {
        self.joined = JoinSet::new();
        self.join_permit = None;
        if let Some(queue) = lock(&self.link.shared).queues.get_mut(&self.stream) {
            queue.stripe_payloads = None;
        }
    }
}

impl ResultQueue {
    /// Handles a placeholder. Returns the event for the application: rows if their payload has arrived.
    pub(super) fn placeholder(&mut self, pending: PendingMessage) -> Result<Event> {
        let connection = pending.connection();
        let Some(payloads) = &mut self.stripe_payloads else { return Ok(Event::Pending(pending)) };
        if let Some(payload) = payloads.take(connection) {
            return Ok(unpack(pending.arrive(payload)?));
        }
        match payloads.of(connection).and_then(|of_connection| of_connection.ended.take()) {
            Some(error) => Ok(lost(connection, error)),
            None => Ok(Event::Pending(pending)),
        }
    }

    /// Handles a payload from a joined connection. Ignores it if its result has ended.
    fn add_payload(&mut self, join: &Join, payload: Buffer) -> Result<()> {
        let Some(payloads) = self.stripe_payloads.as_mut().filter(|payloads| payloads.secret == join.secret)
        else {
            return Ok(());
        };
        match self.events.iter_mut().find(|event| event.awaits(join.connection)) {
            None => payloads.hold(join.connection, payload),
            Some(event) => {
                if let Event::Pending(pending) = event {
                    *event = unpack(pending.clone().arrive(payload)?);
                }
                Ok(())
            }
        }
    }

    /// Handles the end of a joined connection. It is an error only if a message is missing: one whose
    /// placeholder has arrived, or arrives later.
    fn connection_ended(&mut self, join: &Join, error: TransportError) {
        let Some(payloads) = self.stripe_payloads.as_mut().filter(|payloads| payloads.secret == join.secret)
        else {
            return;
        };
        match self.events.iter().position(|event| event.awaits(join.connection)) {
            Some(first) => {
                self.events.truncate(first);
                self.events.push_back(lost(join.connection, error));
            }
            None => {
                if let Some(of_connection) = payloads.of(join.connection) {
                    of_connection.ended = Some(error);
                }
            }
        }
    }

    /// The result has failed: drops everything from the first message that has not arrived.
    pub(super) fn truncate_at_missing(&mut self) {
        self.stripe_payloads = None;
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
async fn run_joined(
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
    let received =
        async { receive_payloads(&link, stream, connected.await?, &join, message_bytes_max).await };
    let Err(error) = received.await;
    tracing::debug!(connection = join.connection, %error, "a joined connection ended");
    if let Some(queue) = lock(&link.shared).queues.get_mut(&stream) {
        queue.connection_ended(&join, error);
        queue.incoming.notify_one();
    }
}

async fn receive_payloads(
    link: &ClientLink,
    stream: u32,
    mut connection: Connection,
    join: &Join,
    message_bytes_max: u32,
) -> Result<Infallible> {
    connection.join(join, message_bytes_max)?;
    loop {
        match connection.next_event().await? {
            ClientEvent::Payload(payload) => {
                if let Some(queue) = lock(&link.shared).queues.get_mut(&stream) {
                    queue.add_payload(join, payload)?;
                    queue.incoming.notify_one();
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
        let mut payloads = StripePayloads::new(&offer, 100);
        let payload = |bytes: usize| Buffer::from(vec![0u8; bytes]);
        payloads.hold(1, payload(60)).unwrap();
        payloads.hold(2, payload(40)).unwrap();
        assert_eq!(payloads.take(1).map(|payload| payload.len()), Some(60));
        payloads.hold(2, payload(60)).unwrap();
        let refused = payloads.hold(1, payload(20)).unwrap_err();
        assert!(matches!(refused, TransportError::Protocol(_)), "{refused}");
        assert!(payloads.take(0).is_none() && payloads.take(3).is_none());
    }
}
