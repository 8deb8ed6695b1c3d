//! Receives the parts of an answer from many senders: tasks and timers around [`Receiver`].
//!
//! [`ReceptionDriver`] yields rows as they arrive, or in the order of the parts' ranks. Each part that is being received
//! has a task, which reads its stream while the part has credit for what its sender may have in flight: what has
//! arrived and what is on its way never exceed [`ReceptionConfig::budget_bytes`], except for single rows that are
//! larger than the credit. Dropping a [`ReceptionDriver`] ends all its tasks and closes its connections.

mod queue;
mod task;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use self::queue::RowQueue;
use self::task::{Message, PartTask, What};
use crate::Result;
use crate::proto::reception::{
    Action, Announcement, Coverage, Event, Receiver, ReceptionConfig, ReceptionError, ReceptionReport,
    Refusal,
};

/// Messages of tasks that wait to be handled. Each has one batch at most, which counts in the budget.
const MESSAGES_MAX: usize = 64;
/// Connections of senders that wait for an answer.
const WAITING_MAX: usize = 4096;
/// The timer's time if there is nothing to wait for.
const NEVER: Duration = Duration::from_secs(3600);
/// A consumer that takes longer for rows was away: its time is not that of the senders.
const AWAY_MIN: Duration = Duration::from_millis(250);

/// The rows of a part.
pub type PartRows<E> = BoxStream<'static, Result<RecordBatch, E>>;

/// Connections that senders open, with the numbers of their parts.
pub type Arrivals<C> = BoxStream<'static, (u64, C)>;

/// A question for a part or a hole, or for all (`None`).
type Question<E> = BoxFuture<'static, (Option<u64>, Result<Asked, E>)>;

/// What became of a question for a part or a hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// These parts can be pulled; none if the senders connect by themselves, or aren't known.
    Announced(Vec<Announcement>),
    /// Its sender no longer has the part: what is missing of it is a hole.
    Withdrawn,
}

/// How a reception goes on after a part failed.
#[derive(Debug)]
pub enum Fault<E> {
    /// The connection was lost, and the part is tried again after its last row.
    Lost,
    /// The sender no longer has the part: what is missing of it is a hole.
    Withdrawn,
    /// It ends with this error.
    Fatal(E),
}

/// The parts of an answer, and how to reach their senders. The caller's side of a [`ReceptionDriver`].
///
/// All methods return at once; what takes time is in the futures that they return.
pub trait Parts: Coverage + Send + 'static {
    /// A connection that a sender has opened; [`std::convert::Infallible`] if parts are only pulled.
    type Connection: Send + 'static;
    /// What the reception fails with.
    type Error: Send + 'static;

    /// Called once, at the beginning: asks for all parts.
    fn begin(&mut self) -> BoxFuture<'static, Result<Asked, Self::Error>>;

    /// Asks for a part again, or for a hole. The question that was asked before has been answered.
    fn ask(&mut self, part: u64) -> BoxFuture<'static, Result<Asked, Self::Error>>;

    /// Requests what is missing of a part, on the connection that its sender has opened, if any.
    fn open(
        &mut self,
        part: u64,
        connection: Option<Self::Connection>,
    ) -> BoxFuture<'static, Result<PartRows<Self::Error>, Self::Error>>;

    /// Closes a connection that is not wanted.
    fn refuse(&mut self, connection: Self::Connection, reason: Refusal);

    /// Notes that rows of a part have arrived, which will not be requested again. Returns them as the consumer
    /// gets them.
    ///
    /// # Errors
    /// If they are not what was requested. The reception then fails.
    fn arrived(&mut self, part: u64, rows: RecordBatch) -> Result<RecordBatch, Self::Error>;

    /// A part was received to its end.
    fn ended(&mut self, part: u64);

    /// A part failed.
    fn failed(&mut self, part: u64, error: Self::Error) -> Fault<Self::Error>;

    /// The error of a reception that can't be completed.
    fn failure(&mut self, error: ReceptionError) -> Self::Error;

    /// The least rank of a hole. Parts of greater ranks wait for it, if the order matters.
    fn first_hole(&self) -> Option<u64> {
        None
    }
}

/// Receives the parts of an answer.
pub struct ReceptionDriver<P: Parts> {
    receiver: Receiver<P>,
    /// A part's task reads while the part has credit for this many bytes.
    floor_bytes: u64,
    tasks: JoinSet<()>,
    open: HashMap<u64, PartTask>,
    attempts: u64,
    sink: mpsc::Sender<Message<P::Error>>,
    messages: mpsc::Receiver<Message<P::Error>>,
    questions: FuturesUnordered<Question<P::Error>>,
    /// The parts and holes in `questions`.
    asking: HashSet<u64>,
    arrivals: Arrivals<P::Connection>,
    /// Connections that the receiver has not decided about.
    waiting: HashMap<u64, P::Connection>,
    connections: u64,
    queue: RowQueue,
    /// The part and the bytes of the rows that the consumer is processing.
    handed: Option<(u64, u64)>,
    clock: Clock,
    failed: Option<P::Error>,
    is_over: bool,
}

/// What a reception waits for.
enum Happened<P: Parts> {
    Message(Message<P::Error>),
    Answered(Option<u64>, Result<Asked, P::Error>),
    Connected(u64, P::Connection),
    Tick,
}

impl<P: Parts> ReceptionDriver<P> {
    /// Begins to receive. Senders that connect by themselves come through `arrivals`. At most
    /// [`ReceptionConfig::grant_bytes_min`] of each part may be in flight.
    ///
    /// # Errors
    /// [`TransportError::Config`](crate::TransportError::Config) for invalid limits.
    pub fn new(config: ReceptionConfig, parts: P, arrivals: Option<Arrivals<P::Connection>>) -> Result<Self> {
        let (floor_bytes, in_order) = (config.grant_bytes_min, config.in_order);
        let (sink, messages) = mpsc::channel(MESSAGES_MAX);
        let clock = Clock::default();
        let mut reception = Self {
            receiver: Receiver::new(config, parts, clock.now())?,
            floor_bytes,
            tasks: JoinSet::new(),
            open: HashMap::new(),
            attempts: 0,
            sink,
            messages,
            questions: FuturesUnordered::new(),
            asking: HashSet::new(),
            arrivals: arrivals.map_or_else(
                || futures::stream::pending().boxed(),
                |arrivals| arrivals.chain(futures::stream::pending()).boxed(),
            ),
            waiting: HashMap::new(),
            connections: 0,
            queue: RowQueue::new(in_order),
            handed: None,
            clock,
            failed: None,
            is_over: false,
        };
        let begun = reception.receiver.coverage_mut().begin();
        reception.questions.push(begun.map(|answered| (None, answered)).boxed());
        Ok(reception)
    }

    /// What it has done so far.
    pub fn report(&self) -> ReceptionReport {
        self.receiver.report()
    }

    /// See [`Receiver::connections_settled`].
    pub fn connections_settled(&self) -> Option<u32> {
        self.receiver.connections_settled()
    }

    /// The next rows, with their part. `None` at the end, and after an error. The rows before are consumed by then,
    /// so that their memory is free.
    ///
    /// # Errors
    /// What a part failed with, or that parts are missing.
    pub async fn next(&mut self) -> Result<Option<(u64, RecordBatch)>, P::Error> {
        self.clock.returned();
        if let Some((part, bytes)) = self.handed.take() {
            self.handle(Event::Consumed { part, bytes });
        }
        loop {
            // Remove tasks that have ended.
            while self.tasks.try_join_next().is_some() {}
            if let Some(error) = self.failed.take() {
                self.stop();
                return Err(error);
            }
            if self.is_over {
                return Ok(None);
            }
            if let Some((part, rows, bytes)) = self.queue.next(self.receiver.coverage().first_hole()) {
                self.handed = Some((part, bytes));
                self.clock.left();
                return Ok(Some((part, rows)));
            }
            if self.receiver.is_over() {
                self.stop();
                return Ok(None);
            }
            match self.wait().await {
                Happened::Message(message) => self.take(message),
                Happened::Answered(part, answered) => self.answered(part, answered),
                Happened::Connected(part, connection) => self.connected(part, connection),
                Happened::Tick => self.handle(Event::Tick),
            }
        }
    }

    /// The rows as a stream, without the numbers of their parts. `report` is called after each change, at least at
    /// the end.
    pub fn into_stream(
        self,
        report: impl FnMut(ReceptionReport) + Send + 'static,
    ) -> BoxStream<'static, Result<RecordBatch, P::Error>> {
        futures::stream::unfold((self, report), |(mut reception, mut report)| async move {
            let rows = reception.next().await;
            report(reception.report());
            rows.map(|rows| rows.map(|(_, rows)| rows)).transpose().map(|rows| (rows, (reception, report)))
        })
        .boxed()
    }

    /// Rows come before the timer: what arrived while the consumer was busy must not look like silence.
    async fn wait(&mut self) -> Happened<P> {
        let deadline = self.receiver.deadline().unwrap_or_else(|| self.clock.now() + NEVER) + self.clock.away;
        tokio::select! {
            biased;
            // The reception itself has a sender: the channel doesn't end.
            Some(message) = self.messages.recv() => Happened::Message(message),
            Some((part, answered)) = self.questions.next() => Happened::Answered(part, answered),
            Some((part, connection)) = self.arrivals.next() => Happened::Connected(part, connection),
            () = sleep_until(deadline.into()) => Happened::Tick,
        }
    }

    /// Handles a message of a part's task, unless the task was replaced.
    fn take(&mut self, message: Message<P::Error>) {
        let Message { part, attempt, what } = message;
        if self.open.get(&part).is_none_or(|task| task.attempt != attempt) {
            return;
        }
        match what {
            What::Opened => self.handle(Event::Opened { part }),
            What::Rows(rows, bytes) => {
                let count = rows.num_rows() as u64;
                match self.receiver.coverage_mut().arrived(part, rows) {
                    Ok(rows) => {
                        self.handle(Event::Received { part, bytes, rows: count });
                        self.queue.push(part, rows, bytes);
                    }
                    Err(error) => self.failed = Some(error),
                }
            }
            What::Ended => {
                self.open.remove(&part);
                self.queue.ended(part);
                self.receiver.coverage_mut().ended(part);
                self.handle(Event::Ended { part });
            }
            What::Failed(error) => {
                self.open.remove(&part);
                match self.receiver.coverage_mut().failed(part, error) {
                    Fault::Lost => self.handle(Event::Lost { part }),
                    Fault::Withdrawn => self.withdrawn(part),
                    Fault::Fatal(error) => self.failed = Some(error),
                }
            }
        }
    }

    fn withdrawn(&mut self, part: u64) {
        self.queue.ended(part);
        self.handle(Event::Withdrawn { part });
    }

    fn answered(&mut self, part: Option<u64>, answered: Result<Asked, P::Error>) {
        part.map(|part| self.asking.remove(&part));
        match (part, answered) {
            (_, Ok(Asked::Announced(announcements))) => {
                for announcement in announcements {
                    self.queue.announced(announcement.part, announcement.rank);
                    self.handle(Event::Announced(announcement));
                }
            }
            (Some(part), Ok(Asked::Withdrawn)) => self.withdrawn(part),
            (None, Ok(Asked::Withdrawn)) => {}
            (_, Err(error)) => self.failed = Some(error),
        }
    }

    fn connected(&mut self, part: u64, connection: P::Connection) {
        if self.waiting.len() >= WAITING_MAX {
            self.receiver.coverage_mut().refuse(connection, Refusal::Full);
            return;
        }
        self.connections += 1;
        self.waiting.insert(self.connections, connection);
        self.handle(Event::Connected { part, connection: self.connections });
    }

    /// Passes an event to the receiver, and does what it says.
    fn handle(&mut self, event: Event) {
        self.receiver.handle(event, self.clock.now());
        while let Some(action) = self.receiver.next_action() {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            // Announcements reach the receiver only as answers to questions, which are not repeated.
            Action::Acknowledge { .. } | Action::Stop { .. } | Action::Done => {}
            Action::Pull { part, grant_bytes, .. } => self.begin(part, None, grant_bytes),
            Action::Accept { part, connection, grant_bytes, .. } => {
                let connection = self.waiting.remove(&connection);
                self.begin(part, connection, grant_bytes);
            }
            Action::Refuse { connection, reason, .. } => {
                if let Some(connection) = self.waiting.remove(&connection) {
                    self.receiver.coverage_mut().refuse(connection, reason);
                }
            }
            Action::Grant { part, bytes } => {
                if let Some(task) = self.open.get(&part) {
                    task.credit.add(bytes);
                }
            }
            Action::Ask { part, .. } => {
                // It may take longer than the receiver expects; it is not begun a second time.
                if self.asking.insert(part) {
                    let asked = self.receiver.coverage_mut().ask(part);
                    self.questions.push(asked.map(move |answered| (Some(part), answered)).boxed());
                }
            }
            Action::Close { part } => drop(self.open.remove(&part)),
            Action::Failed(error) => self.failed = Some(self.receiver.coverage_mut().failure(error)),
        }
    }

    fn begin(&mut self, part: u64, connection: Option<P::Connection>, grant_bytes: u64) {
        let opening = self.receiver.coverage_mut().open(part, connection);
        self.attempts += 1;
        let task = PartTask::spawn(
            &mut self.tasks,
            part,
            self.attempts,
            grant_bytes,
            self.floor_bytes,
            opening,
            &self.sink,
        );
        self.open.insert(part, task);
    }

    /// Ends all tasks, questions and connections.
    fn stop(&mut self) {
        self.is_over = true;
        self.open.clear();
        self.tasks.abort_all();
        self.questions.clear();
        self.asking.clear();
        self.arrivals = futures::stream::pending().boxed();
        self.waiting.clear();
    }
}

/// The time of a reception, which stands still while the consumer is away: what arrives meanwhile is not read, and
/// must not look like silence.
#[derive(Debug, Default)]
struct Clock {
    away: Duration,
    left_at: Option<Instant>,
}

impl Clock {
    fn now(&self) -> Instant {
        real_now() - self.away
    }

    fn left(&mut self) {
        self.left_at = Some(real_now());
    }

    fn returned(&mut self) {
        let took =
            self.left_at.take().map_or(Duration::ZERO, |left| real_now().saturating_duration_since(left));
        if took >= AWAY_MIN {
            self.away += took;
        }
    }
}

fn real_now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests;
