//! One result of a server's connection, as seen by the task that produces it: what the client has sent about
//! it, and the socket, which it shares with the other results.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lightship_wire::control::{ErrorCode, Failure, Plan};
use lightship_wire::tuning::{Progress, Sizes};
use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::frames::FrameWriter;
use super::lock;
use super::meter::Meter;
use crate::proto::{Server as Proto, Stall};
use crate::{Result, TransportError};

/// While several results share a connection, a task writes this much at a time.
const SHARED_WRITE_BYTES: usize = 256 << 10;
/// No system keeps this much for a client that reads nothing.
const LONG_WRITE_BYTES: usize = 8 << 20;

/// What the tasks of one connection share.
pub(super) struct ServerLink {
    pub(super) proto: Mutex<Proto>,
    /// Open results, by stream.
    pub(super) streams: Mutex<HashMap<u32, Arc<StreamState>>>,
    /// A task that has frames to send locks it, and sends frames of all streams in their turn.
    pub(super) writer: tokio::sync::Mutex<FrameWriter>,
    /// Whether rows may go through shared memory.
    pub(super) lends: AtomicBool,
    pub(super) meter: Mutex<Meter>,
    /// Frames were sent of a stream without a task.
    sent: Notify,
}

/// What other tasks tell the task of a result.
#[derive(Default)]
pub(super) struct StreamState {
    /// Credit or another frame has arrived, or a joined connection has changed.
    pub(super) wake: Arc<Notify>,
    /// All frames of the stream were sent.
    sent: Notify,
    /// It has a task.
    pub(super) is_running: AtomicBool,
    messages: Mutex<ClientMessages>,
}

/// The latest frames of the client about a result.
#[derive(Default)]
pub(super) struct ClientMessages {
    pub(super) is_cancelled: bool,
    /// What the consumer measured.
    pub(super) progress: Option<Progress>,
    /// The sizes that the consumer requests.
    pub(super) resize: Option<Sizes>,
}

impl StreamState {
    pub(super) fn messages(&self) -> MutexGuard<'_, ClientMessages> {
        lock(&self.messages)
    }
}

/// An open result.
pub(super) struct Stream {
    pub(super) link: Arc<ServerLink>,
    pub(super) id: u32,
    pub(super) state: Arc<StreamState>,
}

/// Why the answer to a query ends early.
pub(super) enum Stop {
    /// The result failed. The client is told; the connection stays open.
    Failed(Failure),
    /// The connection failed.
    Broken(TransportError),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<TransportError> for Stop {
    fn from(error: TransportError) -> Self {
        Self::Broken(error)
    }
}

impl ServerLink {
    pub(super) fn new(proto: Proto, writer: FrameWriter, meter: Meter) -> Self {
        Self {
            proto: Mutex::new(proto),
            streams: Mutex::default(),
            writer: tokio::sync::Mutex::new(writer),
            lends: AtomicBool::new(true),
            meter: Mutex::new(meter),
            sent: Notify::new(),
        }
    }

    /// A result of this plan is next. The writer is not waited for where it has nothing to prepare.
    pub(super) async fn begin(&self, plan: &Plan) {
        if self.lends.load(Ordering::Relaxed) {
            self.writer.lock().await.begin(plan);
        }
    }

    /// No rows go through shared memory.
    pub(super) async fn lend_nothing(&self) {
        self.lends.store(false, Ordering::Relaxed);
        self.writer.lock().await.lend_nothing();
    }

    /// Sends the frames of the connection itself.
    pub(super) async fn flush(&self) -> Result<()> {
        self.flush_stream(0).await
    }

    /// Sends the frames of a stream that has no task.
    pub(super) async fn flush_stream(&self, id: u32) -> Result<()> {
        while lock(&self.proto).has_frames(id) {
            let mut writer = tokio::select! {
                biased;
                writer = self.writer.lock() => writer,
                // Another task has sent the frames.
                () = self.sent.notified() => continue,
            };
            // A client that only joins results is watched as well, for its queries would wait for this.
            let stall_timeout = lock(&self.proto).stall_timeout_any();
            self.write(&mut writer, stall_timeout).await?;
        }
        Ok(())
    }

    /// Writes the frames whose turn it is. Fails if the client reads nothing for too long.
    async fn write(&self, writer: &mut FrameWriter, stall_timeout: Option<Duration>) -> Result<()> {
        let frames = {
            let mut proto = lock(&self.proto);
            let most = if proto.is_shared() { SHARED_WRITE_BYTES } else { usize::MAX };
            let (mut frames, mut bytes) = (Vec::new(), 0);
            while bytes < most
                && let Some(frame) = proto.poll_transmit()
            {
                bytes += frame.bytes();
                frames.push(frame);
            }
            frames
        };
        if frames.is_empty() {
            return Ok(());
        }
        let bytes: usize = frames.iter().map(|frame| frame.bytes()).sum();
        let stall = Mutex::new(Stall::new(stall_timeout));
        lock(&stall).waits(Instant::now());
        let taken = || {
            let now = Instant::now();
            let mut stall = lock(&stall);
            stall.taken();
            stall.waits(now);
            // A client that reads a long message sends nothing meanwhile, and no ping can go between. Shorter writes show
            // nothing: the system takes them from a client that has gone, too.
            if bytes > LONG_WRITE_BYTES {
                lock(&self.proto).received(now);
            }
        };
        let stalled = stalled(|| lock(&stall).deadline(), |now| lock(&stall).is_over(now));
        let began = Instant::now();
        tokio::select! {
            biased;
            written = writer.write(&frames, taken) => written?,
            after = stalled => return Err(TransportError::Stalled { after }),
        }
        lock(&self.meter).wrote(bytes as u64, began.elapsed());
        let streams = lock(&self.streams);
        for frame in frames.iter().filter(|frame| frame.is_last) {
            match streams.get(&frame.stream) {
                Some(state) => state.sent.notify_one(),
                None => self.sent.notify_one(),
            }
        }
        Ok(())
    }
}

impl Stream {
    pub(super) fn proto(&self) -> MutexGuard<'_, Proto> {
        lock(&self.link.proto)
    }

    /// Sends all frames of this result. Returns whether there were any. Not cancel-safe: if it is dropped before
    /// it completes, the connection must end.
    pub(super) async fn flush(&self) -> Result<bool> {
        let mut had_some = false;
        while self.proto().has_frames(self.id) {
            had_some = true;
            let mut writer = tokio::select! {
                biased;
                writer = self.link.writer.lock() => writer,
                // Another task has sent the frames.
                () = self.state.sent.notified() => continue,
            };
            let stall_timeout = self.proto().stall_timeout();
            self.link.write(&mut writer, stall_timeout).await?;
        }
        Ok(had_some)
    }

    /// Fails if the client has cancelled the result.
    pub(super) fn check(&self) -> Result<(), Stop> {
        if self.state.messages().is_cancelled {
            return Err(cancelled().into());
        }
        Ok(())
    }

    /// Runs a future, until it completes or the client cancels.
    pub(super) async fn attended<F: Future>(&self, future: F) -> Result<F::Output, Stop> {
        let mut future = std::pin::pin!(future);
        loop {
            self.check()?;
            tokio::select! {
                biased;
                output = &mut future => return Ok(output),
                () = self.state.wake.notified() => {}
            }
        }
    }

    /// Waits until the consumer or a joined connection wakes this task. Fails if the consumer stalls.
    pub(super) async fn wait_for_consumer(&self, now: Instant) -> Result<(), Stop> {
        self.proto().waits(self.id, now);
        tokio::select! {
            () = self.state.wake.notified() => Ok(()),
            stop = self.stalled() => Err(stop),
        }
    }

    /// Returns when rows have waited too long for the client.
    async fn stalled(&self) -> Stop {
        let deadline = || self.proto().stall_deadline(self.id);
        let after = stalled(deadline, |now| self.proto().stalled(self.id, now)).await;
        let message = format!("the client took no rows of the result for {} seconds", after.as_secs_f32());
        let failure = Failure::new(ErrorCode::Stalled, message);
        failure.hint("read rows without such pauses, or raise the node's --stall-timeout").into()
    }
}

/// The failure of a query that the client has cancelled.
pub(super) fn cancelled() -> Failure {
    Failure::new(ErrorCode::Cancelled, "the query was cancelled")
}

/// Returns the elapsed time when a timer expires. The timer may restart meanwhile.
async fn stalled(
    deadline: impl Fn() -> Option<Instant>,
    is_over: impl Fn(Instant) -> Option<Duration>,
) -> Duration {
    loop {
        let Some(deadline) = deadline() else { return std::future::pending().await };
        sleep_until(deadline.into()).await;
        if let Some(after) = is_over(Instant::now()) {
            return after;
        }
    }
}
