//! The queries of one connection of a server. Each is answered by its own task, once there is a slot for it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::stream;
use lightship_wire::cluster::Task;
use lightship_wire::control::{Accepted, ErrorCode, Failure, Plan, Query, Stats};
use lightship_wire::join::Join;
use lightship_wire::statement::{Action, Description, Statement};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use super::admission::ConnectionSlot;
use super::answer::Answering;
use super::blobs::blobs;
use super::conversation::{ConnectionInbox, Handler, shutting_down};
use super::lock;
use super::produce::wire_failure;
use super::stream::{ServerLink, Stop, Stream, cancelled};
use super::striping::{Striping, send_stripe};
use super::{Answer, Caller, Prepared};
use crate::{Result, TransportError};

/// Bytes of the queries of a client that have not started; more are refused.
const WAITING_BYTES_MAX: u64 = 8 << 20;
/// The same for another node of the cluster, whose tasks may be larger.
const PEER_WAITING_BYTES_MAX: u64 = 64 << 20;

/// A request of the client that opens a stream.
pub(super) enum StreamRequest {
    Query(Query),
    Statement(Statement),
    Task(Task),
    Join(Join),
    /// There was no room for the text of the query.
    TooLarge,
}

/// A request that has not started.
pub(super) struct Waiting {
    pub(super) id: u32,
    request: StreamRequest,
    bytes: u64,
}

/// Requests that have arrived and not started, in bytes bounded for both queues together.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) arrived: VecDeque<Waiting>,
    /// Of those that have not started, in this queue or in that of [`Queries`].
    bytes: u64,
}

impl Requests {
    pub(super) fn push(&mut self, id: u32, request: StreamRequest, bytes: u32, is_peer: bool) {
        let bytes_max = if is_peer { PEER_WAITING_BYTES_MAX } else { WAITING_BYTES_MAX };
        let bytes = u64::from(bytes);
        // One always has room.
        let has_room = self.bytes == 0 || self.bytes + bytes <= bytes_max;
        let (request, bytes) = if has_room { (request, bytes) } else { (StreamRequest::TooLarge, 0) };
        self.bytes += bytes;
        self.arrived.push_back(Waiting { id, request, bytes });
    }
}

/// The queries of a connection that have not ended.
pub(super) struct Queries {
    handler: Arc<Handler>,
    link: Arc<ServerLink>,
    is_peer: bool,
    /// One query at a time uses the connection's own slot.
    own_slot: Arc<Semaphore>,
    /// Those that wait for the slot of a cancelled query.
    waiting: VecDeque<Waiting>,
    running: JoinSet<Result<()>>,
    /// No more are started.
    is_ending: bool,
}

impl Queries {
    pub(super) fn new(handler: Arc<Handler>, link: Arc<ServerLink>, is_peer: bool) -> Self {
        let (own_slot, waiting, running) = (Arc::new(Semaphore::new(1)), VecDeque::new(), JoinSet::new());
        Self { handler, link, is_peer, own_slot, waiting, running, is_ending: false }
    }

    /// Refuses all that have not started, and those to come.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }

    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Starts what has arrived and can be started, and refuses what can't. Returns whether anything was there.
    ///
    /// # Errors
    /// If a query has broken the connection.
    pub(super) async fn start(&mut self, inbox: &ConnectionInbox) -> Result<bool> {
        while let Some(ended) = self.running.try_join_next() {
            answered(ended)?;
        }
        self.waiting.append(&mut lock(&inbox.unhandled).requests.arrived);
        let had_some = !self.waiting.is_empty();
        let mut is_free_soon = None;
        for _ in 0..self.waiting.len() {
            let Some(Waiting { id, request, bytes }) = self.waiting.pop_front() else { break };
            let Some(state) = lock(&self.link.streams).get(&id).cloned() else {
                lock(&inbox.unhandled).requests.bytes -= bytes;
                continue;
            };
            let stream = Stream { link: self.link.clone(), id, state };
            let slot = match request {
                _ if stream.check().is_err() => Err(cancelled()),
                // The stripe offer bounds their number.
                StreamRequest::Join(_) if !self.is_ending => Ok(None),
                StreamRequest::TooLarge => {
                    Err(Failure::new(ErrorCode::Busy, "too many queries wait on this connection"))
                }
                _ => self.slot().map(Some),
            };
            match slot {
                Ok(slot) => {
                    stream.state.is_running.store(true, Ordering::Relaxed);
                    if !self.running.is_empty() {
                        // What is in the kernel's buffer precedes the frames of every other result.
                        lock(&self.link.meter).attend();
                    }
                    self.running.spawn(self.handler.clone().run(request, stream, slot));
                }
                Err(refusal)
                    if refusal.code == ErrorCode::Busy
                        && !matches!(request, StreamRequest::TooLarge)
                        && *is_free_soon.get_or_insert_with(|| has_cancelled(&self.link)) =>
                {
                    self.waiting.push_back(Waiting { id, request, bytes });
                    continue;
                }
                Err(refusal) => {
                    lock(&self.link.streams).remove(&id);
                    lock(&self.link.proto).fail(id, &refusal);
                    self.link.flush_stream(id).await?;
                }
            }
            lock(&inbox.unhandled).requests.bytes -= bytes;
        }
        Ok(had_some)
    }

    /// Returns when a running query has ended.
    ///
    /// # Errors
    /// If it has broken the connection.
    pub(super) async fn ended(&mut self) -> Result<()> {
        match self.running.join_next().await {
            Some(ended) => answered(ended),
            None => std::future::pending().await,
        }
    }

    /// Takes a slot for a query: the connection's own, or another if that is taken.
    fn slot(&self) -> Result<ConnectionSlot, Failure> {
        if self.is_ending {
            return Err(shutting_down());
        }
        match self.own_slot.clone().try_acquire_owned() {
            Ok(slot) => Ok(slot),
            Err(_) if self.is_peer => self.handler.admission.peer(),
            Err(_) => self.handler.admission.free_slot(),
        }
    }
}

impl Handler {
    /// Answers one query, or sends messages of a result that the stream joins.
    async fn run(
        self: Arc<Self>,
        request: StreamRequest,
        stream: Stream,
        slot: Option<ConnectionSlot>,
    ) -> Result<()> {
        let ended = match request {
            StreamRequest::Join(join) => {
                send_stripe(&self.stripe_offers, &join, &stream, self.config.stall_timeout)
                    .await
                    .map(|()| None)
            }
            request => self.answer(request, &stream).await,
        };
        // The slot is free before the client can learn of the end and send another query.
        drop(slot);
        match ended {
            Ok(Some(stats)) => stream.proto().finish(stream.id, &stats),
            Ok(None) => {}
            Err(Stop::Failed(failure)) => {
                match failure.code {
                    // The sender asks another node.
                    ErrorCode::Moved => tracing::debug!(error = %failure, "request failed"),
                    code => tracing::info!(?code, error = %failure, "query failed"),
                }
                stream.proto().fail(stream.id, &failure);
            }
            Err(Stop::Broken(error)) => return Err(error),
        }
        stream.flush().await?;
        lock(&stream.link.streams).remove(&stream.id);
        Ok(())
    }

    /// Sends all rows of a query. What the producer measured is still to be sent.
    async fn answer(&self, request: StreamRequest, stream: &Stream) -> Result<Option<Stats>, Stop> {
        let limited = |plan: Plan| {
            let message_bytes = plan.message_bytes.min(self.config.message_bytes_max);
            Plan { message_bytes, ..plan }
        };
        let (plan, striping, planning) = match request {
            StreamRequest::Query(mut query) => {
                query.plan = limited(query.plan);
                let striping = self.striping(&query.plan, stream);
                (query.plan, striping, stream.attended(self.service.query(&query)).await?)
            }
            StreamRequest::Statement(mut statement) => {
                statement.plan = limited(statement.plan);
                let striping = self.striping(&statement.plan, stream);
                (statement.plan, striping, stream.attended(self.statement(&statement)).await?)
            }
            StreamRequest::Task(mut task) => {
                task.plan = limited(task.plan);
                let caller = Caller { is_peer: stream.proto().is_peer(), address: self.address };
                (task.plan, None, stream.attended(self.service.task(&task, &caller)).await?)
            }
            StreamRequest::Join(_) | StreamRequest::TooLarge => return Ok(None),
        };
        let Answer { schema, rows_estimate, encoders, delivery, rows } = planning?;
        let accepted = Accepted { schema: schema.as_ref().clone(), rows_estimate };
        stream
            .proto()
            .accept(stream.id, &accepted)
            .map_err(|e| Failure::new(ErrorCode::Internal, e.to_string()))?;
        stream.link.begin(&plan).await;
        let message_bytes_max = self.config.message_bytes_max;
        let answering = Answering::new(stream, plan, message_bytes_max, striping);
        answering.encoded_by(encoders).counted_by(delivery).run(rows).await.map(Some)
    }

    /// Executes or describes a statement.
    async fn statement(&self, statement: &Statement) -> Result<Answer, Failure> {
        let Statement { sql, action, .. } = statement;
        match action {
            Action::Execute(parameters) => self.service.execute(sql, parameters).await,
            Action::Describe => {
                let Prepared { columns, parameters, is_update, .. } = self.service.prepare(sql).await?;
                let description = Description {
                    columns: columns.as_ref().clone(),
                    parameters: parameters.as_ref().clone(),
                    is_update,
                };
                let bytes = description.encode().map_err(wire_failure)?;
                Ok(blobs(stream::iter([Ok(bytes)])))
            }
        }
    }

    /// Offers that other connections join a result, if its plan asks for that.
    fn striping(&self, plan: &Plan, stream: &Stream) -> Option<Striping> {
        let streams = Some(plan.streams).filter(|&streams| streams > 1)?;
        let (offer, striping) = self.stripe_offers.issue(streams, &stream.state.wake)?;
        // Sent together with the answer: most results end before a connection could join.
        stream.proto().offer_stripes(stream.id, &offer);
        Some(striping)
    }
}

/// The outcome of a query's task. A panic ends the connection.
fn answered(ended: Result<Result<()>, JoinError>) -> Result<()> {
    ended.map_err(|error| TransportError::Io(io::Error::other(error)))?
}

/// Whether a running query was cancelled. Its slot will be free soon.
fn has_cancelled(link: &ServerLink) -> bool {
    let ends = |state: &Arc<super::stream::StreamState>| {
        state.is_running.load(Ordering::Relaxed) && state.messages().is_cancelled
    };
    lock(&link.streams).values().any(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_that_wait_are_bounded_in_bytes() {
        let mut requests = Requests::default();
        let bytes = (WAITING_BYTES_MAX / 2) as u32;
        for id in 1..=4 {
            let query = Query { sql: "q".into(), plan: Plan::default() };
            requests.push(id, StreamRequest::Query(query), bytes, false);
        }
        let refused = |waiting: &Waiting| matches!(waiting.request, StreamRequest::TooLarge);
        assert_eq!(requests.arrived.iter().map(refused).collect::<Vec<_>>(), [false, false, true, true]);
        // One alone has room, however large it is.
        let mut requests = Requests::default();
        let query = Query { sql: "q".into(), plan: Plan::default() };
        requests.push(1, StreamRequest::Query(query), u32::MAX, false);
        assert!(!refused(&requests.arrived[0]));
    }
}
