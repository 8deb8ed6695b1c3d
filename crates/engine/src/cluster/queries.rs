//! The queries that this node has a part in, and the resources that are released when they end.
//!
//! The parts of a plan hold the streams that they read, and datafusion-distributed keeps the parts for a
//! moment after their end (`sweep.rs`). What a stream holds (memory, a connection, the work of another node) is therefore
//! stored here, and released when its query ends, even if the stream still exists.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use datafusion_distributed::TaskKey;
use lightship_wire::control::{ErrorCode, Failure};
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use super::exchange::Lease;
use super::peer::Reply;
use crate::error::{EngineError, Result};
use crate::stop::{StopFlag, StopGuard};

/// Number of ended queries that are remembered.
const ENDED_MAX: usize = 1024;

/// Most parts of plans that a node accepts at a time.
const PARTS_MAX: usize = 4096;

/// The queries of a node.
pub(crate) struct Queries {
    state: Mutex<State>,
    /// Notified when a query ends.
    ends: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    open: HashMap<Uuid, Open>,
    /// The queries that ended last, the oldest first, and why: later requests for their rows fail at once.
    ended: VecDeque<(Uuid, Failure)>,
}

impl State {
    fn parts(&self) -> usize {
        self.open.values().map(|open| open.parts.len()).sum()
    }

    fn why(&self, query: &Uuid) -> Option<Failure> {
        self.ended.iter().find(|(ended, _)| ended == query).map(|(_, why)| why.clone())
    }
}

#[derive(Default)]
struct Open {
    /// Parts that run here. The sender notifies the part that the query has ended.
    parts: HashMap<TaskKey, (oneshot::Sender<()>, StopGuard)>,
    streams: Vec<Weak<Slot>>,
}

/// A stream of another node.
pub(crate) struct Slot {
    state: Mutex<SlotState>,
    /// Its memory. It is not part of the reply, because a stream that is not polled any more can hold that.
    lease: Mutex<Option<Lease>>,
}

enum SlotState {
    Idle(Box<Reply>),
    /// It is being read.
    Polled,
    /// Its query has ended.
    Ended,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the reply out to read from it; `None` once the query has ended.
    pub(crate) fn take(&self) -> Option<Box<Reply>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, SlotState::Polled) {
            SlotState::Idle(reply) => Some(reply),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Puts the reply back, unless the query has ended in the meantime.
    pub(crate) fn put(&self, reply: Box<Reply>) {
        let mut state = self.lock();
        if let SlotState::Polled = *state {
            *state = SlotState::Idle(reply);
        }
    }

    fn end(&self) {
        let before = std::mem::replace(&mut *self.lock(), SlotState::Ended);
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop((before, lease));
    }
}

impl Default for Queries {
    fn default() -> Self {
        Self { state: Mutex::default(), ends: watch::Sender::new(()) }
    }
}

impl Queries {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of parts of plans that run here.
    pub(crate) fn parts(&self) -> usize {
        self.lock().parts()
    }

    /// Starts a part. On this node, the query ends when the part is dropped or [`Queries::end`] is called;
    /// the receiver is notified.
    ///
    /// # Errors
    /// When the part exists already, or too many parts exist.
    pub(crate) fn begin(self: &Arc<Self>, key: TaskKey) -> Result<(Part, oneshot::Receiver<()>)> {
        let (notify, ended) = oneshot::channel();
        let stop = StopFlag::default();
        let mut state = self.lock();
        if state.parts() >= PARTS_MAX {
            let message = format!("this node already runs {PARTS_MAX} parts of queries");
            let failure = Failure::new(ErrorCode::Busy, message);
            return Err(EngineError::Remote(Failure { retryable: true, ..failure }));
        }
        let parts = &mut state.open.entry(key.query_id).or_default().parts;
        if parts.contains_key(&key) {
            return Err(EngineError::Internal("the part of the query exists already".into()));
        }
        parts.insert(key, (notify, stop.guard()));
        drop(state);
        Ok((Part { queries: self.clone(), key, stop }, ended))
    }

    /// Ends the query of a part.
    pub(crate) fn end(&self, key: &TaskKey) {
        self.end_with(key, Failure::new(ErrorCode::Cancelled, "the query has ended"));
    }

    /// Ends the query of a part; its readers get the failure.
    pub(crate) fn end_with(&self, key: &TaskKey, why: Failure) {
        let mut state = self.lock();
        if let Some(open) = state.open.get_mut(&key.query_id) {
            let streams = std::mem::take(&mut open.streams);
            let part = open.parts.remove(key);
            if open.parts.is_empty() {
                state.open.remove(&key.query_id);
            }
            if state.why(&key.query_id).is_none() {
                if state.ended.len() == ENDED_MAX {
                    state.ended.pop_front();
                }
                state.ended.push_back((key.query_id, why));
            }
            drop(state);
            // The receiver may be gone, with its connection.
            part.map(|(notify, _)| notify.send(()));
            streams.iter().filter_map(Weak::upgrade).for_each(|stream| stream.end());
            self.ends.send_replace(());
        }
    }

    /// Notified of the ends of queries.
    pub(crate) fn watch_ends(&self) -> watch::Receiver<()> {
        self.ends.subscribe()
    }

    /// Waits until a query has ended; returns why.
    pub(crate) async fn ended(&self, query: &Uuid) -> EngineError {
        let mut ends = self.watch_ends();
        loop {
            if let Some(why) = self.lock().why(query) {
                return EngineError::Remote(why);
            }
            if ends.changed().await.is_err() {
                return EngineError::Internal("the node is stopping".into());
            }
        }
    }

    /// Why a stream has no reply to read from any more.
    pub(crate) fn why(&self, query: &Uuid) -> EngineError {
        match self.lock().why(query) {
            Some(why) => EngineError::Remote(why),
            None => EngineError::Internal("the stream belongs to no query".into()),
        }
    }

    /// Stores what a stream of a query holds.
    pub(crate) fn keep(&self, query: &Uuid, mut reply: Reply) -> Arc<Slot> {
        let lease = Mutex::new(reply.take_lease());
        let slot = Arc::new(Slot { state: Mutex::new(SlotState::Idle(Box::new(reply))), lease });
        match self.lock().open.get_mut(query) {
            Some(open) => open.streams.push(Arc::downgrade(&slot)),
            // The query has ended already, so nothing would release it later.
            None => slot.end(),
        }
        slot
    }
}

/// A part of a plan that runs here, or was sent from here.
pub(crate) struct Part {
    queries: Arc<Queries>,
    key: TaskKey,
    /// Set when the query has ended.
    pub(crate) stop: StopFlag,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.queries.end(&self.key);
    }
}
