//! A result over several connections, as its consumer sees them: what comes by a
//! joined one takes the place that the first connection says (decision 0007).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use arrow_buffer::Buffer;
use lightship_wire::control::Plan;
use lightship_wire::join::{Join, Ticket};
use tokio::task::JoinSet;

use super::client::{Event, Link, Shared, unpack};
use super::{ClientConfig, Connection, Endpoint, lock};
use crate::proto::{Awaited, ClientEvent};
use crate::{Result, TransportError};

/// What has come by the joined connections of a result, before its place was known.
pub(super) struct Arrivals {
    secret: [u8; 16],
    /// By number, from 1.
    connections: Vec<Arrived>,
    bytes: u64,
    /// An honest producer never has more on its way.
    bytes_max: u64,
}

#[derive(Default)]
struct Arrived {
    payloads: VecDeque<Buffer>,
    ended: Option<TransportError>,
}

impl Arrivals {
    pub(super) fn new(ticket: &Ticket, bytes_max: u64) -> Self {
        let connections = (0..ticket.connections).map(|_| Arrived::default()).collect();
        Self { secret: ticket.secret, connections, bytes: 0, bytes_max }
    }

    /// The window has changed, and may have grown.
    pub(super) fn allow(&mut self, bytes: u64) {
        self.bytes_max = self.bytes_max.max(bytes);
    }

    fn of(&mut self, connection: u32) -> Option<&mut Arrived> {
        self.connections.get_mut((connection as usize).checked_sub(1)?)
    }

    fn hold(&mut self, connection: u32, payload: Buffer) -> Result<()> {
        self.bytes += payload.len() as u64;
        if self.bytes > self.bytes_max {
            return Err(TransportError::Protocol("payloads beyond the window".into()));
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

/// What lets connections join the running result.
pub(super) struct Admission {
    ticket: Ticket,
    message_bytes_max: u32,
    /// How many have been let in.
    used: u32,
}

impl Connection {
    /// Other connections may join the running result.
    pub(super) fn admit(&mut self, ticket: Ticket, plan: &Plan) {
        lock(&self.link.shared).arrivals = Some(Arrivals::new(&ticket, plan.memory_bytes()));
        self.admission = Some(Admission { ticket, message_bytes_max: plan.message_bytes_max, used: 0 });
    }

    /// Has other connections join the running result, until there are so many beside this one, or as many as
    /// may join. Those that can't be made are done without. Once one has joined, rows come by them alone.
    pub fn widen(&mut self, connections: u32) {
        let Some(Admission { ticket, message_bytes_max, used }) = &mut self.admission else { return };
        let Some(endpoint) = &self.endpoint else { return };
        let wanted = connections.min(ticket.connections);
        for connection in *used + 1..=wanted {
            let join = Join { secret: ticket.secret, connection };
            let (link, endpoint, config) = (self.link.clone(), endpoint.clone(), self.config.clone());
            self.joined.spawn(carry(link, endpoint, config, join, *message_bytes_max));
        }
        *used = wanted.max(*used);
    }

    /// Nothing more is wanted of the connections that have joined.
    pub(super) fn narrow(&mut self) {
        self.joined = JoinSet::new();
        self.admission = None;
        lock(&self.link.shared).arrivals = None;
    }
}

impl Shared {
    /// The place of a message is known. Answers what stands there for the application.
    pub(super) fn place(&mut self, awaited: Awaited) -> Result<Event> {
        let connection = awaited.connection();
        let Some(arrivals) = &mut self.arrivals else { return Ok(Event::Awaited(awaited)) };
        if let Some(payload) = arrivals.take(connection) {
            return unpack(awaited.arrive(payload)?);
        }
        match arrivals.of(connection).and_then(|arrived| arrived.ended.take()) {
            Some(error) => Ok(lost(connection, error)),
            None => Ok(Event::Awaited(awaited)),
        }
    }

    /// A payload has come by a joined connection, unless its result is over.
    fn arrived(&mut self, join: &Join, payload: Buffer) -> Result<()> {
        let Some(arrivals) = self.arrivals.as_mut().filter(|arrivals| arrivals.secret == join.secret) else {
            return Ok(());
        };
        match self.events.iter_mut().find(|event| event.awaits(join.connection)) {
            None => arrivals.hold(join.connection, payload),
            Some(place) => {
                if let Event::Awaited(awaited) = place {
                    *place = unpack(awaited.clone().arrive(payload)?)?;
                }
                Ok(())
            }
        }
    }

    /// A joined connection has ended. This is a fault only where messages are missing: those that
    /// have a place already, or will get one.
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

    /// The result has failed: what has not come by joined connections is not waited for.
    pub(super) fn forsake(&mut self) {
        self.arrivals = None;
        if let Some(first) = self.events.iter().position(|event| matches!(event, Event::Awaited(_))) {
            self.events.truncate(first);
        }
    }
}

impl Event {
    fn awaits(&self, connection: u32) -> bool {
        matches!(self, Self::Awaited(awaited) if awaited.connection() == connection)
    }
}

fn lost(connection: u32, error: TransportError) -> Event {
    Event::Lost(TransportError::Lost { connection, source: Box::new(error) })
}

/// What a joined connection is for: it brings payloads of another's result until either ends.
async fn carry(
    link: Arc<Link>,
    endpoint: Endpoint,
    config: ClientConfig,
    join: Join,
    message_bytes_max: u32,
) {
    let Err(error) = bring(&link, &endpoint, &config, &join, message_bytes_max).await;
    tracing::debug!(connection = join.connection, %error, "a joined connection ended");
    lock(&link.shared).left(&join, error);
    link.incoming.notify_one();
}

async fn bring(
    link: &Link,
    endpoint: &Endpoint,
    config: &ClientConfig,
    join: &Join,
    message_bytes_max: u32,
) -> Result<Infallible> {
    let mut connection = Connection::connect(endpoint, config).await?;
    connection.join(join, message_bytes_max)?;
    loop {
        match connection.told().await? {
            ClientEvent::Payload(payload) => lock(&link.shared).arrived(join, payload)?,
            ClientEvent::Failed(failure) => return Err(failure.into()),
            other => return Err(TransportError::Protocol(format!("{other:?} on a joined connection"))),
        }
        link.incoming.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_held_than_the_window_lets_out() {
        let ticket = Ticket { secret: [7; 16], connections: 2 };
        let mut arrivals = Arrivals::new(&ticket, 100);
        let payload = |bytes: usize| Buffer::from(vec![0u8; bytes]);
        arrivals.hold(1, payload(60)).unwrap();
        arrivals.hold(2, payload(40)).unwrap();
        assert_eq!(arrivals.take(1).map(|payload| payload.len()), Some(60));
        arrivals.hold(2, payload(60)).unwrap();
        let refused = arrivals.hold(1, payload(1)).unwrap_err();
        assert!(matches!(refused, TransportError::Protocol(_)), "{refused}");
        assert!(arrivals.take(0).is_none() && arrivals.take(3).is_none());
    }
}
