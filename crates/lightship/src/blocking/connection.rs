//! Connections and the results of queries.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Check, Task, cancelled, run, spawn, started, wait};
use crate::{Error, ErrorKind, Location, Options, Report, Result, Statement, StatementInfo, connect_all};

/// One or several sources. Threads may share it: every query has a connection of its own, with the memory of
/// [`Options`].
#[derive(Clone)]
pub struct Connection(Arc<Shared>);

struct Shared {
    locations: Vec<Location>,
    options: Options,
    check: Check,
    /// The process that opened it.
    process: u32,
    state: Mutex<State>,
}

struct State {
    is_closed: bool,
    /// For the next query, so that it need not connect.
    idle: Option<crate::Connection>,
}

impl Connection {
    /// Opens sources. `check` is called while the caller waits, here and later.
    ///
    /// # Errors
    /// As [`connect_all`].
    pub fn open(locations: Vec<Location>, options: Options, check: Check) -> Result<Self> {
        let given = locations.clone();
        let opened = run(async move { connect_all(&given, &options).await }, check)?;
        let state = Mutex::new(State { is_closed: false, idle: Some(opened) });
        Ok(Self(Arc::new(Shared { locations, options, check, process: std::process::id(), state })))
    }

    /// The same sources with other options, which connects when it runs a query.
    #[must_use]
    pub fn with_options(&self, options: Options) -> Self {
        let Shared { locations, check, process, .. } = &*self.0;
        let state = Mutex::new(State { is_closed: self.is_closed(), idle: None });
        Self(Arc::new(Shared {
            locations: locations.clone(),
            options,
            check: *check,
            process: *process,
            state,
        }))
    }

    /// One of the sources alone, from 0, which connects when it runs a query. `None` if there is no such source.
    #[must_use]
    pub fn source(&self, number: usize) -> Option<Self> {
        let Shared { locations, options, check, process, .. } = &*self.0;
        let state = Mutex::new(State { is_closed: self.is_closed(), idle: None });
        Some(Self(Arc::new(Shared {
            locations: vec![locations.get(number)?.clone()],
            options: *options,
            check: *check,
            process: *process,
            state,
        })))
    }

    /// The sources, in the order given.
    pub fn locations(&self) -> &[Location] {
        &self.0.locations
    }

    /// How results are read and carried.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Runs a query and waits until its columns are known. Its rows are read one batch ahead; as long as they
    /// are not taken, the sources wait.
    ///
    /// # Errors
    /// If a source refuses the query or is lost, the connection is closed, or this process was forked from the one that
    /// opened it.
    pub fn query(&self, statement: impl Into<Statement>) -> Result<Reader> {
        let mut reader = self.start(statement)?;
        reader.begin()?;
        Ok(reader)
    }

    /// Begins a query, which can be cancelled from now on.
    ///
    /// # Errors
    /// If the connection is closed, or this process was forked from the one that opened it.
    pub fn start(&self, statement: impl Into<Statement>) -> Result<Reader> {
        let idle = self.0.state()?.idle.take();
        let (begun, beginning) = oneshot::channel();
        // One batch waits while the next one is read.
        let (messages, batches) = mpsc::channel(1);
        let (cancel, mut asked) = watch::channel(false);
        let (shared, statement) = (self.0.clone(), statement.into());
        let is_of_node = matches!(self.locations(), [Location::Node { .. } | Location::NodeUnix { .. }]);
        let affected = (is_of_node && statement.is_insert()).then_some(0);
        let work = async move {
            tokio::select! {
                () = deliver(idle, &shared, statement, begun, &messages) => {}
                _ = asked.wait_for(|asked| *asked) => {}
            }
            Ok(())
        };
        Ok(Reader {
            process: self.0.process,
            check: self.0.check,
            begun: None,
            work: Some(Work { beginning, batches, _task: spawn(work)? }),
            canceller: Canceller(Arc::new(cancel)),
            progress: Arc::default(),
            affected,
            report: Arc::default(),
            ended: None,
        })
    }

    /// What a query returns and which parameters it has, without executing it: see [`crate::Connection::describe`].
    ///
    /// # Errors
    /// As [`Self::query`].
    pub fn describe(&self, sql: &str) -> Result<StatementInfo> {
        let idle = self.0.state()?.idle.take();
        let (shared, sql) = (self.0.clone(), sql.to_owned());
        let work = async move {
            let mut connection = shared.connection(idle).await?;
            let described = connection.describe(&sql).await;
            if described.as_ref().err().is_none_or(is_usable_after) {
                shared.give_back(connection);
            }
            described
        };
        run(work, self.0.check)
    }

    /// Closes it. Results that are being read are not affected.
    pub fn close(&self) {
        if let Ok(mut state) = self.0.state() {
            state.is_closed = true;
            drop_in_runtime(state.idle.take());
        }
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.0.state().is_err()
    }
}

impl Shared {
    /// # Errors
    /// If it is closed, or of another process.
    fn state(&self) -> Result<std::sync::MutexGuard<'_, State>> {
        of_this_process(self.process)?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_closed { Err(Error::usage("the connection is closed")) } else { Ok(state) }
    }

    /// The idle connection, or a new one.
    async fn connection(&self, idle: Option<crate::Connection>) -> Result<crate::Connection> {
        match idle {
            Some(idle) => Ok(idle),
            None => connect_all(&self.locations, &self.options).await,
        }
    }

    /// Keeps a connection for the next query.
    fn give_back(&self, connection: crate::Connection) {
        if let Ok(mut state) = self.state() {
            state.idle = Some(connection);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let idle = state.idle.take();
        if of_this_process(self.process).is_ok() {
            drop_in_runtime(idle);
        } else {
            // Its socket is the parent's, too: closing it properly would say goodbye for the parent.
            mem::forget(idle);
        }
    }
}

/// Closing a connection may send something.
fn drop_in_runtime(connection: Option<crate::Connection>) {
    if let (Some(connection), Some(process)) = (connection, started()) {
        let _within = process.runtime.enter();
        drop(connection);
    }
}

fn of_this_process(id: u32) -> Result<()> {
    if id == std::process::id() {
        return Ok(());
    }
    Err(Error::usage("the connection belongs to the process that this one was forked from")
        .hint("connect again in this process"))
}

/// What is known once a query has begun to return rows.
struct Begun {
    schema: SchemaRef,
    rows_estimate: Option<u64>,
}

enum Message {
    Batch(RecordBatch),
    /// All rows have arrived.
    End(Box<Report>),
}

/// Runs a query and sends its batches, of which the reader holds at most one that it has not taken.
async fn deliver(
    idle: Option<crate::Connection>,
    shared: &Shared,
    statement: Statement,
    begun: oneshot::Sender<Result<Begun>>,
    messages: &mpsc::Sender<Result<Message>>,
) {
    let mut connection = match shared.connection(idle).await {
        Ok(connection) => connection,
        Err(error) => return drop(begun.send(Err(error))),
    };
    // Return the connection before the reader is told, so that the reader's next query can use it.
    match read(&mut connection, statement, begun, messages).await {
        Finished::Refused(begun, error) => {
            if is_usable_after(&error) {
                shared.give_back(connection);
            }
            drop(begun.send(Err(error)));
        }
        Finished::End(place, report) => {
            shared.give_back(connection);
            place.send(Ok(Message::End(report)));
        }
        Finished::Failed(place, error) => place.send(Err(error)),
        Finished::Abandoned => {}
    }
}

/// How a query ended, and the channel that tells the reader.
enum Finished<'a> {
    /// It was refused before its columns were known.
    Refused(oneshot::Sender<Result<Begun>>, Error),
    End(mpsc::Permit<'a, Result<Message>>, Box<Report>),
    Failed(mpsc::Permit<'a, Result<Message>>, Error),
    /// The reader is gone.
    Abandoned,
}

async fn read<'a>(
    connection: &mut crate::Connection,
    statement: Statement,
    begun: oneshot::Sender<Result<Begun>>,
    messages: &'a mpsc::Sender<Result<Message>>,
) -> Finished<'a> {
    let mut result = match connection.query(statement).await {
        Ok(result) => result,
        Err(error) => return Finished::Refused(begun, error),
    };
    let (schema, rows_estimate) = (result.schema().clone(), result.rows_estimate());
    if begun.send(Ok(Begun { schema, rows_estimate })).is_err() {
        return Finished::Abandoned;
    }
    loop {
        // First, so that no batch is read that can't be kept.
        let Ok(place) = messages.reserve().await else { return Finished::Abandoned };
        match result.next().await {
            Ok(Some(batch)) => place.send(Ok(Message::Batch(batch))),
            Ok(None) => return Finished::End(place, Box::new(result.report())),
            Err(error) => return Finished::Failed(place, error),
        }
    }
}

/// Whether a connection can run another query after a query was refused.
fn is_usable_after(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Source | ErrorKind::Usage | ErrorKind::Data)
}

/// A query that runs. Dropping it cancels the query.
struct Work {
    beginning: oneshot::Receiver<Result<Begun>>,
    batches: mpsc::Receiver<Result<Message>>,
    _task: Task<()>,
}

/// How many rows of a result have arrived, and how many are expected.
#[derive(Debug, Default)]
pub struct RowProgress {
    rows: AtomicU64,
    /// 0 if it is not known.
    estimate: AtomicU64,
}

impl RowProgress {
    /// Rows that have arrived.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Rows that there will be, as far as is known: an estimate, until all have arrived.
    pub fn rows_max(&self) -> Option<u64> {
        let estimate = self.estimate.load(Ordering::Relaxed);
        (estimate > 0).then(|| estimate.max(self.rows()))
    }
}

/// The rows of a query, while they arrive. Dropping it cancels the query.
pub struct Reader {
    process: u32,
    check: Check,
    begun: Option<Begun>,
    /// `None` after the end.
    work: Option<Work>,
    canceller: Canceller,
    progress: Arc<RowProgress>,
    /// Rows that an INSERT has added, as far as is known; `None` for a query.
    affected: Option<u64>,
    report: Arc<OnceLock<Report>>,
    ended: Option<Result<()>>,
}

impl Reader {
    /// Waits until the columns are known.
    ///
    /// # Errors
    /// If a source refuses the query or is lost, the query was cancelled, or the check failed.
    pub fn begin(&mut self) -> Result<()> {
        of_this_process(self.process)?;
        if let (None, Some(Work { beginning, .. })) = (&self.begun, &mut self.work) {
            let check = self.check;
            let begun = wait(beginning, &mut || check())?;
            let begun = begun.map_err(|_| self.canceller.error())??;
            // Without an estimate it stays 0.
            self.progress.estimate.store(begun.rows_estimate.unwrap_or(0), Ordering::Relaxed);
            self.begun = Some(begun);
        }
        Ok(())
    }

    /// The columns of all batches.
    ///
    /// # Errors
    /// Before [`Self::begin`].
    pub fn columns(&self) -> Result<&SchemaRef> {
        let begun =
            self.begun.as_ref().ok_or_else(|| Error::new(ErrorKind::Internal, "the query has not begun"));
        begun.map(|begun| &begun.schema)
    }

    /// The estimated number of rows, if every source has an estimate.
    pub fn rows_estimate(&self) -> Option<u64> {
        self.begun.as_ref().and_then(|begun| begun.rows_estimate)
    }

    /// Rows that were returned.
    pub fn rows(&self) -> u64 {
        self.progress.rows()
    }

    /// How far the result is, for those who give the reader away.
    pub fn progress(&self) -> Arc<RowProgress> {
        self.progress.clone()
    }

    /// Whether the statement adds rows to a table of a node. Its result is their number.
    pub fn is_insert(&self) -> bool {
        self.affected.is_some()
    }

    /// The number of rows that an INSERT at a node has added, once its result was read. `None` for a query.
    pub fn affected(&self) -> Option<u64> {
        self.affected.filter(|_| matches!(self.ended, Some(Ok(()))))
    }

    /// The report, once all rows were returned.
    pub fn report(&self) -> Option<&Report> {
        self.report.get()
    }

    /// Where the report will be, for those who give the reader away.
    pub fn later_report(&self) -> Arc<OnceLock<Report>> {
        self.report.clone()
    }

    /// Cancels the query, from any thread.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// The next batch; `None` after the last.
    ///
    /// # Errors
    /// The first error of a source, and again at every later call: a result is never silently short.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        of_this_process(self.process)?;
        if let Some(ended) = &self.ended {
            return ended.clone().map(|()| None);
        }
        let Some(Work { batches, .. }) = &mut self.work else { return Ok(None) };
        let check = self.check;
        let ended = match wait(batches.recv(), &mut || check()) {
            Ok(Some(Ok(Message::Batch(batch)))) => {
                self.progress.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
                if let (Some(affected), [counts]) = (&mut self.affected, batch.columns()) {
                    let counts = counts.as_primitive_opt::<UInt64Type>().map(|counts| counts.values().iter());
                    *affected = counts.into_iter().flatten().fold(*affected, |sum, n| sum.saturating_add(*n));
                }
                return Ok(Some(batch));
            }
            Ok(Some(Ok(Message::End(report)))) => {
                let _ = self.report.set(*report);
                self.progress.estimate.store(self.rows(), Ordering::Relaxed);
                Ok(())
            }
            Ok(Some(Err(error))) | Err(error) => Err(error),
            Ok(None) => Err(Error { rows: Some(self.rows()), ..self.canceller.error() }),
        };
        self.work = None;
        self.ended.insert(ended).clone().map(|()| None)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if of_this_process(self.process).is_err() {
            // Their other ends are in the parent's threads, and locks may be held that nobody releases here.
            mem::forget(self.work.take());
            mem::forget(self.canceller.clone());
        }
    }
}

/// For those who only know Arrow; an error carries its hint in its text.
impl Iterator for Reader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().map_err(|error| ArrowError::ExternalError(error.with_hint().into())).transpose()
    }
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        self.columns().cloned().unwrap_or_else(|_| arrow_schema::Schema::empty().into())
    }
}

/// Cancels a query.
#[derive(Clone)]
pub struct Canceller(Arc<watch::Sender<bool>>);

impl Canceller {
    /// Cancels the query. Whoever waits for it gets an error of kind [`ErrorKind::Cancelled`].
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Why a query ended without saying so.
    fn error(&self) -> Error {
        let is_ending = started().is_some_and(|process| *process.ending.borrow());
        if *self.0.borrow() || is_ending {
            return cancelled();
        }
        Error::new(ErrorKind::Internal, "the query stopped without an error")
    }
}
