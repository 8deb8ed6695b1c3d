//! Results whose rows are divided over several endpoints.
//!
//! A statement runs once, when the first of its endpoints is fetched, and each batch goes to the stream that asks for it
//! first. So all rows arrive however a client fetches the endpoints: at once, one after the other, or only one of
//! them. What would lose or repeat rows is an error: an endpoint that is fetched twice, a stream that another one has
//! outlived with rows missing, and a ticket that comes when the server does not know any more what became of its
//! result.

use std::collections::VecDeque;
use std::collections::hash_map::{self, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::{StreamExt, stream};
use lightship_transport::Result as TransportResult;
use lightship_transport::net::{Answer, Rows};
use lightship_wire::control::{ErrorCode, Failure};
use tokio::sync::{OnceCell, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::admission::Permit;
use crate::connection::lock;
use crate::handle::Share;
use crate::running::{RunId, Running};

/// The most endpoints of a result.
pub(crate) const ENDPOINTS_MAX: usize = 64;

/// How long after a request for endpoints the first one can be fetched, and how long the server knows at least what
/// became of a result.
const TICKET_LIFE: Duration = Duration::from_secs(300);

/// The results that are divided, with those that have ended not long ago.
pub(crate) struct DividedResults {
    /// Tells tickets of this server from those of others, and from those before a restart.
    server: RunId,
    started: Instant,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    results: HashMap<RunId, Entry>,
    /// Results in the order in which they can be forgotten.
    to_forget: VecDeque<(Instant, RunId)>,
}

struct Entry {
    /// A bit for each endpoint that was fetched.
    fetched: u64,
    state: State,
}

enum State {
    /// Streams of it are open, this many.
    Open(Arc<Shared>, usize),
    /// All rows were taken.
    Complete,
    /// The statement has failed, or rows were lost.
    Failed(Failure),
}

/// What is fetched with a ticket.
pub(crate) enum Fetched {
    /// A share of the rows.
    Share(ShareOfRows),
    /// Others have taken all rows.
    Nothing,
}

/// One execution, for all streams of its result. It ends with the last of them.
#[derive(Default)]
pub(crate) struct Shared {
    execution: OnceCell<Execution>,
    /// Why the result has failed.
    failure: watch::Sender<Option<Failure>>,
}

struct Execution {
    schema: SchemaRef,
    requests: mpsc::Sender<oneshot::Sender<Next>>,
    _task: JoinSet<()>,
    _permit: Permit,
}

type Next = Option<Result<RecordBatch, Failure>>;

impl DividedResults {
    /// # Errors
    /// If the system provides no random bytes.
    pub(crate) fn new(running: &Running) -> TransportResult<Self> {
        Ok(Self { server: running.identifier()?, started: Instant::now(), known: Mutex::default() })
    }

    /// The shares of a new result.
    pub(crate) fn shares(&self, count: usize) -> impl Iterator<Item = Share> {
        let issued_ms = self.started.elapsed().as_millis() as u64;
        (0..count as u32).map(move |place| Share::new(self.server, issued_ms, place))
    }

    /// Begins to fetch a share of a result.
    ///
    /// # Errors
    /// If it was fetched before, or rows of the result are lost or may be.
    pub(crate) fn fetch(self: &Arc<Self>, run: RunId, share: &Share) -> Result<Fetched, Failure> {
        self.fetch_at(Instant::now(), run, share)
    }

    fn fetch_at(self: &Arc<Self>, now: Instant, run: RunId, share: &Share) -> Result<Fetched, Failure> {
        let place =
            1_u64.checked_shl(share.place).filter(|_| share.is_of(&self.server)).ok_or_else(|| {
                again("the ticket is one of another server, or of this one before it was started again")
            })?;
        let known = &mut *lock(&self.known);
        known.forget(now);
        let entry = match known.results.entry(run) {
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hash_map::Entry::Vacant(vacant) => {
                let age =
                    now.duration_since(self.started).saturating_sub(Duration::from_millis(share.issued_ms));
                if age >= TICKET_LIFE {
                    let seconds = TICKET_LIFE.as_secs();
                    return Err(again(format!("the result was not fetched within {seconds} seconds")));
                }
                known.to_forget.push_back((now + TICKET_LIFE, run));
                vacant.insert(Entry { fetched: 0, state: State::Open(Arc::default(), 0) })
            }
        };
        if entry.fetched & place != 0 {
            return Err(again("this endpoint of the result was fetched before"));
        }
        entry.fetched |= place;
        match &mut entry.state {
            State::Complete => Ok(Fetched::Nothing),
            State::Failed(failure) => Err(failure.clone()),
            State::Open(shared, streams) => {
                *streams += 1;
                let shared = shared.clone();
                Ok(Fetched::Share(ShareOfRows { shared, results: self.clone(), run, has_ended: false }))
            }
        }
    }
}

impl Known {
    /// Forgets results that have ended, and whose tickets are not valid any more.
    fn forget(&mut self, now: Instant) {
        while let Some((_, run)) = self.to_forget.pop_front_if(|(at, _)| *at <= now) {
            match self.results.get(&run) {
                Some(Entry { state: State::Open(..), .. }) => {
                    self.to_forget.push_back((now + TICKET_LIFE, run))
                }
                _ => drop(self.results.remove(&run)),
            }
        }
    }
}

/// The rows of a result that one stream gets. If it is dropped before its end, the result fails.
pub(crate) struct ShareOfRows {
    shared: Arc<Shared>,
    results: Arc<DividedResults>,
    run: RunId,
    has_ended: bool,
}

impl ShareOfRows {
    /// The columns of the result. Starts the statement, unless another stream has.
    ///
    /// # Errors
    /// If it can't be started.
    pub(crate) async fn start(
        &self,
        start: impl Future<Output = Result<(Answer, Permit), Failure>>,
    ) -> Result<SchemaRef, Failure> {
        let shared = &self.shared;
        let begin = async {
            // Another stream may have tried before.
            if let Some(failure) = shared.failure.borrow().clone() {
                return Err(failure);
            }
            let (answer, permit) = start.await.inspect_err(|failure| shared.fail(failure))?;
            Ok(shared.execute(answer, permit))
        };
        shared.execution.get_or_try_init(|| begin).await.map(|execution| execution.schema.clone())
    }

    /// The rows, once it was started.
    pub(crate) fn rows(self) -> Rows {
        Box::pin(stream::unfold(self, |mut share| async move {
            let next = share.next().await;
            share.has_ended = next.is_none();
            Some((next?, share))
        }))
    }

    async fn next(&self) -> Next {
        let (sender, receiver) = oneshot::channel();
        let execution = self.shared.execution.get()?;
        if execution.requests.send(sender).await.is_ok()
            && let Ok(next) = receiver.await
        {
            return next;
        }
        Some(Err(Failure::new(ErrorCode::Internal, "the query ended with an internal error")))
    }
}

impl Shared {
    /// Makes the result fail, unless it has failed before.
    fn fail(&self, failure: &Failure) {
        self.failure.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert_with(|| failure.clone());
            is_first
        });
    }

    fn execute(&self, answer: Answer, permit: Permit) -> Execution {
        let (requests, requested) = mpsc::channel(ENDPOINTS_MAX);
        let mut task = JoinSet::new();
        task.spawn(hand_out(answer.rows, requested, self.failure.clone()));
        Execution { schema: answer.schema, requests, _task: task, _permit: permit }
    }
}

/// Gives each batch to the stream that asks for it first.
async fn hand_out(
    rows: Rows,
    mut requested: mpsc::Receiver<oneshot::Sender<Next>>,
    failure: watch::Sender<Option<Failure>>,
) {
    let mut rows = rows.fuse();
    let mut failed = failure.subscribe();
    while let Some(request) = requested.recv().await {
        let next = tokio::select! {
            biased;
            // The sender is here, so this ends only with a failure.
            Ok(found) = failed.wait_for(Option::is_some) => found.clone().map(Err),
            next = rows.next() => next,
        };
        if let Some(Err(found)) = &next {
            failure.send_replace(Some(found.clone()));
        }
        // If the stream has gone, the result fails.
        let _ = request.send(next);
    }
}

impl Drop for ShareOfRows {
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.fail(&rows_lost());
        }
        let mut known = lock(&self.results.known);
        let Some(entry) = known.results.get_mut(&self.run) else { return };
        let State::Open(shared, streams) = &mut entry.state else { return };
        *streams -= 1;
        if *streams == 0 {
            let failure = shared.failure.borrow().clone();
            entry.state = failure.map_or(State::Complete, State::Failed);
        }
    }
}

fn rows_lost() -> Failure {
    again("another endpoint of the result was left before its end")
}

fn again(message: impl Into<String>) -> Failure {
    let failure = Failure::new(ErrorCode::Cancelled, message.into());
    Failure { retryable: true, ..failure }.hint("run the statement again")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Arc<DividedResults> {
        Arc::new(DividedResults::new(&Running::new().unwrap()).unwrap())
    }

    #[test]
    fn what_became_of_a_result_is_known_while_its_tickets_are_valid() {
        let results = results();
        let [first, second, third] = results.shares(3).collect::<Vec<_>>().try_into().unwrap();
        let now = Instant::now();
        let Ok(Fetched::Share(open)) = results.fetch_at(now, [1; 16], &first) else { panic!("a share") };
        // It is open for longer than tickets are valid.
        let later = now + 2 * TICKET_LIFE;
        let Ok(Fetched::Share(joined)) = results.fetch_at(later, [1; 16], &second) else { panic!("a share") };
        drop((open, joined));
        let message = |at, run, share: &Share| match results.fetch_at(at, run, share) {
            Err(failure) => failure.message,
            Ok(_) => panic!("not refused"),
        };
        assert!(message(later, [1; 16], &second).contains("fetched before"));
        assert!(message(later, [1; 16], &third).contains("before its end"));
        assert!(message(later, [2; 16], &first).contains("within 300 seconds"));
        // It is forgotten, and its tickets are refused.
        assert!(message(later + 2 * TICKET_LIFE, [1; 16], &third).contains("within 300 seconds"));
        assert!(lock(&results.known).results.is_empty() && lock(&results.known).to_forget.is_empty());
    }

    #[test]
    fn tickets_of_other_servers_are_refused() {
        let (here, there) = (results(), results());
        let share = there.shares(1).next().unwrap();
        let refused = here.fetch([1; 16], &share).map(drop).unwrap_err();
        assert!(refused.message.contains("another server"), "{refused:?}");
        // A forged place is refused too.
        let mut far = here.shares(1).next().unwrap();
        far.place = 64;
        assert!(here.fetch([1; 16], &far).is_err());
        assert!(lock(&here.known).results.is_empty());
    }
}
