//! Sends the rows of a result as messages of Flight.
//!
//! A task produces them, beside the connection: it waits when the client does, ends when the client has gone, and lets
//! go of the query when the client takes nothing for too long.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use futures::{FutureExt, Stream, StreamExt};
use lightship_transport::net::Rows;
use lightship_wire::control::{ErrorCode, Failure};
use lightship_wire::{Cutter, WireError, message_bytes};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;

use crate::FlightConfig;
use crate::admission::Permit;
use crate::encode::MessageEncoder;
use crate::plain::{plain_batch, rows_at_once};
use crate::running::Run;
use crate::status::status;

/// The size to which messages are cut. Clients that set no limit of their own accept 4 MiB.
const MESSAGE_BYTES: u32 = 1 << 20;
/// Messages that wait for the connection to take them.
const MESSAGES_WAITING: usize = 1;

/// Limits of a result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultLimits {
    message_bytes_max: u32,
    stall_timeout: Option<Duration>,
}

impl ResultLimits {
    pub(crate) fn new(config: &FlightConfig) -> Self {
        Self { message_bytes_max: config.message_bytes_max, stall_timeout: config.stall_timeout }
    }
}

/// The messages of a result. When it is dropped, the query ends.
pub(crate) struct Messages {
    messages: mpsc::Receiver<Result<FlightData, Status>>,
    task: JoinSet<()>,
}

/// Why a result ended early.
enum Ended {
    /// The client has gone.
    Gone,
    Failed(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Messages {
    /// Sends rows with the columns of `schema`, or that can be sent as such. The query has its permit, if it has one of
    /// its own, until its last rows are produced.
    pub(crate) fn send(
        schema: SchemaRef,
        rows: Rows,
        limits: ResultLimits,
        run: Option<Run>,
        permit: Option<Permit>,
    ) -> Self {
        let (sender, messages) = mpsc::channel(MESSAGES_WAITING);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let cancelled = async {
                match &run {
                    Some(run) => run.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            let ended = tokio::select! {
                ended = Producer::new(schema, limits, sender.clone()).produce(rows) => ended,
                () = cancelled => Err(Failure::new(ErrorCode::Cancelled, "the query was cancelled").into()),
            };
            drop((run, permit));
            if let Err(Ended::Failed(failure)) = ended {
                // Waits for the client, without the query.
                let _ = sender.send(Err(status(&failure))).await;
            }
        });
        Self { messages, task }
    }
}

impl Stream for Messages {
    type Item = Result<FlightData, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(message) = ready!(self.messages.poll_recv(context)) {
            return Poll::Ready(Some(message));
        }
        // Without this, a result whose task has panicked would look complete.
        match ready!(self.task.poll_join_next(context)) {
            Some(Err(_)) => {
                let failure = Failure::new(ErrorCode::Internal, "the query ended with an internal error");
                Poll::Ready(Some(Err(status(&failure))))
            }
            _ => Poll::Ready(None),
        }
    }
}

/// Makes messages of rows: gathers small batches and cuts large ones.
struct Producer {
    schema: SchemaRef,
    limits: ResultLimits,
    cutter: Cutter,
    encoder: MessageEncoder,
    /// The message that announces the columns, until it is sent.
    first: Option<FlightData>,
    sender: mpsc::Sender<Result<FlightData, Status>>,
    /// Rows that are too few for a message, while more are ready.
    small: Vec<RecordBatch>,
    small_bytes: u64,
}

impl Producer {
    fn new(
        schema: SchemaRef,
        limits: ResultLimits,
        sender: mpsc::Sender<Result<FlightData, Status>>,
    ) -> Self {
        let (encoder, first) = MessageEncoder::new(&schema);
        let cutter = Cutter::new(MESSAGE_BYTES, limits.message_bytes_max);
        let (small, small_bytes) = (Vec::new(), 0);
        Self { schema, limits, cutter, encoder, first: Some(first), sender, small, small_bytes }
    }

    async fn produce(mut self, mut rows: Rows) -> Result<(), Ended> {
        if let Some(first) = self.first.take() {
            self.deliver(first).await?;
        }
        loop {
            let next = match rows.next().now_or_never() {
                Some(next) => next,
                None => {
                    // What there is should not wait for more.
                    self.flush().await?;
                    rows.next().await
                }
            };
            match next {
                Some(Ok(batch)) => self.push(&batch).await?,
                Some(Err(failure)) => {
                    self.flush().await?;
                    return Err(failure.into());
                }
                None => return self.flush().await,
            }
        }
    }

    async fn push(&mut self, batch: &RecordBatch) -> Result<(), Ended> {
        let mut start = 0;
        while start < batch.num_rows() {
            let rows = rows_at_once(batch, &self.schema, start, self.limits.message_bytes_max.into())?;
            let piece = plain_batch(&batch.slice(start, rows), &self.schema)?;
            start += rows;
            self.small_bytes += message_bytes(&piece, 0, piece.num_rows());
            self.small.push(piece);
            if self.small_bytes >= MESSAGE_BYTES.into() {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Sends the rows that have been gathered.
    async fn flush(&mut self) -> Result<(), Ended> {
        let small = std::mem::take(&mut self.small);
        self.small_bytes = 0;
        let batch = match small.as_slice() {
            [] => return Ok(()),
            [batch] => batch.clone(),
            batches => concat_batches(&self.schema, batches)
                .map_err(|error| Failure::new(ErrorCode::Data, error.to_string()))?,
        };
        drop(small);
        let mut start = 0;
        while start < batch.num_rows() {
            let rows = self.cutter.next_rows(&batch, start).map_err(too_large)?;
            for message in self.encoder.encode(&batch.slice(start, rows))? {
                self.check(&message)?;
                self.deliver(message).await?;
            }
            start += rows;
        }
        Ok(())
    }

    /// The cut bounds the rows, and this what else is in a message.
    fn check(&self, message: &FlightData) -> Result<(), Failure> {
        let bytes = message.data_header.len() + message.data_body.len();
        let bytes_max = self.limits.message_bytes_max as usize * 2;
        if bytes <= bytes_max.min(FLIGHT_MESSAGE_BYTES_MAX) {
            return Ok(());
        }
        let message = format!("a message would have {bytes} bytes, more than clients of Flight accept");
        Err(Failure { needed_bytes: Some(bytes as u64), ..Failure::new(ErrorCode::Limit, message) })
    }

    async fn deliver(&mut self, message: FlightData) -> Result<(), Ended> {
        let place = self.sender.reserve();
        let place = match self.limits.stall_timeout {
            None => place.await,
            Some(limit) => timeout(limit, place).await.map_err(|_| {
                let message = format!("the client took nothing for {} seconds", limit.as_secs_f32());
                Failure::new(ErrorCode::Stalled, message)
            })?,
        };
        place.map_err(|_| Ended::Gone)?.send(Ok(message));
        Ok(())
    }
}

/// The largest message that all clients accept.
const FLIGHT_MESSAGE_BYTES_MAX: usize = 16 << 20;

fn too_large(error: WireError) -> Failure {
    match error {
        WireError::RowTooLarge { needed_bytes, limit_bytes, .. } => Failure {
            needed_bytes: Some(needed_bytes),
            ..Failure::new(
                ErrorCode::RowTooLarge,
                format!("a row has {needed_bytes} bytes; messages of Flight have at most {limit_bytes}"),
            )
        },
        error => Failure::new(ErrorCode::Internal, error.to_string()),
    }
}
