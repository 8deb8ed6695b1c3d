//! The task of a client's connection: it reads and writes the socket, and sorts what arrives by result.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use futures::future::Either;
use lightship_wire::Codec;
use lightship_wire::tuning::Progress;
use tokio::sync::Notify;

use super::frames::{FrameReader, FrameWriter};
use super::jobs::Job;
use super::joined::StripePayloads;
use super::lock;
use super::shm::Ledger;
use crate::proto::{Client, ClientEvent, Message, PendingMessage};
use crate::{Result, TransportError};

/// A smaller message is decoded in place: passing it to another thread would take longer.
const BESIDE_BYTES_MIN: u32 = 64 << 10;

/// What the application and the connection's task share.
pub(super) struct ClientState {
    pub(super) client: Client,
    /// Queues of events for the application, by stream. Stream 0 is the connection itself.
    pub(super) queues: HashMap<u32, ResultQueue>,
    /// Set once, when the task ends.
    pub(super) ended: Option<TransportError>,
}

/// What has arrived of a result and was not consumed yet. The queue needs no limit: the window bounds what a
/// server may send.
#[derive(Default)]
pub(super) struct ResultQueue {
    pub(super) events: VecDeque<Event>,
    /// Payloads from joined connections, if other connections may join the result.
    pub(super) stripe_payloads: Option<StripePayloads>,
    /// There is a new event for the application.
    pub(super) incoming: Arc<Notify>,
}

/// An event that waits for the application.
pub(super) enum Event {
    /// An event of the protocol.
    Protocol(ClientEvent),
    /// Rows.
    Rows(Decoded),
    /// Rows that the consumer decodes.
    Message(Message),
    /// Rows that another thread is decoding.
    Decoding(Job<Decoded>),
    /// Rows whose payload comes over a joined connection.
    Pending(PendingMessage),
    /// The joined connection that should have sent the rows was lost.
    Lost(TransportError),
}

/// A message's rows, and the time that decoding took.
pub(super) struct Decoded {
    pub(super) codec: Codec,
    pub(super) rows: Result<RecordBatch>,
    pub(super) took: Duration,
}

pub(super) struct ClientLink {
    pub(super) shared: Mutex<ClientState>,
    /// There are frames to send.
    pub(super) outgoing: Notify,
    /// Which slots of the server's shared memory are in use.
    pub(super) ledger: Option<Arc<Ledger>>,
}

impl ClientLink {
    /// Gives back the credit of a batch that the application has consumed. Slots of shared memory are
    /// released first, so that the producer has room for what the credit lets it send.
    pub(super) fn consumed(&self, stream: u32, credit: u32, progress: &Progress) {
        let mut shared = lock(&self.shared);
        self.release(&mut shared.client);
        shared.client.consumed(stream, credit, progress);
        drop(shared);
        self.outgoing.notify_one();
    }

    pub(super) fn release(&self, client: &mut Client) {
        let Some(ledger) = &self.ledger else { return };
        loop {
            match ledger.take_returned() {
                loans if loans.is_empty() => return,
                loans => client.release(&loans),
            }
        }
    }
}

impl ClientState {
    /// Ends the connection and all its results.
    pub(super) fn end(&mut self, error: Option<TransportError>) {
        self.ended = error;
        for queue in self.queues.values() {
            queue.incoming.notify_one();
        }
    }
}

/// Runs a connection until it ends. The socket is closed on return.
pub(super) async fn run(
    link: Arc<ClientLink>,
    reader: FrameReader,
    writer: FrameWriter,
    _tcp: Option<Arc<OwnedFd>>,
) {
    let ended = tokio::select! {
        error = receive(&link, reader) => error,
        error = send_while_heard(&link, writer) => error,
        error = keep_time(&link) => error,
    };
    let mut shared = lock(&link.shared);
    let ClientState { client, queues, .. } = &mut *shared;
    // A result that is complete may still be read to its end.
    queues
        .iter_mut()
        .filter(|(stream, _)| client.is_open(**stream))
        .for_each(|(_, queue)| queue.truncate_at_missing());
    shared.end(ended.err());
}

async fn receive(link: &ClientLink, mut reader: FrameReader) -> Result<()> {
    loop {
        let limit = |kind, stream| lock(&link.shared).client.payload_bytes_max(kind, stream);
        let alive = || lock(&link.shared).client.received(Instant::now());
        let Some((header, payload)) = reader.next(limit, alive).await? else {
            let idle = lock(&link.shared).client.is_idle();
            return Err(TransportError::Closed {
                during: (!idle).then_some("before the result was complete"),
            });
        };
        let (event, is_alone) = {
            let mut shared = lock(&link.shared);
            let event = shared.client.handle(Instant::now(), &header, payload)?;
            if shared.client.wants_transmit() {
                link.outgoing.notify_one();
            }
            // One entry is the connection's own.
            (event, shared.queues.len() <= 2)
        };
        let Some((stream, event)) = event else { continue };
        let event = match event {
            ClientEvent::Message(message) => Either::Left(match unpack(message) {
                // Rows of a single result are decoded while they are in this processor's cache. Several results are
                // decoded by their consumers, which may do so at the same time.
                Event::Message(message) if is_alone => Event::Rows(decode(message)),
                event => event,
            }),
            other => Either::Right(other),
        };
        let notified = {
            let mut shared = lock(&link.shared);
            // Drop events of a cancelled result.
            let Some(queue) = shared.queues.get_mut(&stream) else { continue };
            match event {
                Either::Left(event) => queue.events.push_back(event),
                Either::Right(event) => queue.take(event)?,
            }
            queue.incoming.clone()
        };
        notified.notify_one();
        // If both share a thread, this lets the application take its rows while they are in the
        // cache, and give credit before the window is used up.
        tokio::task::yield_now().await;
    }
}

impl ResultQueue {
    fn take(&mut self, event: ClientEvent) -> Result<()> {
        let event = match event {
            ClientEvent::Placeholder(pending) => self.placeholder(pending)?,
            failed @ ClientEvent::Failed(_) => {
                self.truncate_at_missing();
                Event::Protocol(failed)
            }
            other => Event::Protocol(other),
        };
        self.events.push_back(event);
        Ok(())
    }
}

/// Starts to decode a message on another thread, unless it is so cheap that its consumer does it. The window
/// bounds both.
pub(super) fn unpack(message: Message) -> Event {
    if message.codec() == Codec::None || message.body_bytes() < BESIDE_BYTES_MIN {
        return Event::Message(message);
    }
    Event::Decoding(Job::start(move || decode(message)))
}

pub(super) fn decode(message: Message) -> Decoded {
    let began = Instant::now();
    let codec = message.codec();
    let rows = message.decode();
    Decoded { codec, rows, took: began.elapsed() }
}

/// Sends frames until the server no longer reads them. It never returns: what the server sent before it
/// closed can still be read, so the reader decides how the connection ended.
async fn send_while_heard(link: &ClientLink, writer: FrameWriter) -> Result<()> {
    let Err(error) = send(link, writer).await;
    tracing::debug!(%error, "the server no longer reads");
    std::future::pending().await
}

async fn send(link: &ClientLink, mut writer: FrameWriter) -> Result<Infallible> {
    loop {
        let frames: Vec<_> = {
            let mut shared = lock(&link.shared);
            std::iter::from_fn(|| shared.client.poll_transmit()).collect()
        };
        if frames.is_empty() {
            link.outgoing.notified().await;
        } else {
            writer.write(&frames, || ()).await?;
        }
    }
}

async fn keep_time(link: &ClientLink) -> Result<()> {
    loop {
        let deadline = lock(&link.shared).client.deadline();
        tokio::time::sleep_until(deadline.into()).await;
        lock(&link.shared).client.wake(Instant::now())?;
        link.outgoing.notify_one();
    }
}
