//! The queries that this node has a part in, and what is given back when they end.
//!
//! A plan's parts hold the streams that they read, and whoever runs the parts may keep them a while after
//! their end. What a stream holds (memory, a connection, the work of another node) is therefore kept here, and
//! let go of when its query ends, whoever still holds the stream.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use datafusion_distributed::TaskKey;
use lightship_wire::control::{ErrorCode, Failure};
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use super::peer::Reply;
use crate::error::{EngineError, Result};
use crate::stop::{StopFlag, StopGuard};

/// So many queries that have ended are remembered.
const ENDED_MAX: usize = 1024;

/// More parts of plans than a node's memory is for.
const PARTS_MAX: usize = 4096;

/// The queries of a node.
pub(crate) struct Queries {
    state: Mutex<State>,
    /// Told of each end.
    ends: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    open: HashMap<Uuid, Open>,
    /// The last that have ended, the oldest first, and why: who still asks for their rows need not wait.
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
    /// Parts that run here, and whom to tell that the query has ended.
    parts: HashMap<TaskKey, (oneshot::Sender<()>, StopGuard)>,
    streams: Vec<Weak<Slot>>,
}

/// A stream of another node.
pub(crate) struct Slot(Mutex<SlotState>);

enum SlotState {
    Idle(Box<Reply>),
    /// Somebody reads from it.
    Polled,
    /// Its query has ended.
    Ended,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To read from; nothing once the query has ended.
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

    /// Back again, unless the query has ended meanwhile.
    pub(crate) fn put(&self, reply: Box<Reply>) {
        let mut state = self.lock();
        if let SlotState::Polled = *state {
            *state = SlotState::Idle(reply);
        }
    }

    fn end(&self) {
        let before = std::mem::replace(&mut *self.lock(), SlotState::Ended);
        drop(before);
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

    /// Parts of plans that run here.
    pub(crate) fn parts(&self) -> usize {
        self.lock().parts()
    }

    /// A part begins. The query has ended, as far as this node is concerned, when the part is dropped, or
    /// [`Queries::end`] says so, of which the receiver is told.
    ///
    /// # Errors
    /// When there is such a part, or there are as many as there may be.
    pub(crate) fn begin(self: &Arc<Self>, key: TaskKey) -> Result<(Part, oneshot::Receiver<()>)> {
        let (tell, told) = oneshot::channel();
        let stop = StopFlag::default();
        let mut state = self.lock();
        if state.parts() >= PARTS_MAX {
            return Err(EngineError::Limit {
                message: format!("this node has {PARTS_MAX} parts of queries already"),
                needed_bytes: None,
            });
        }
        let parts = &mut state.open.entry(key.query_id).or_default().parts;
        if parts.contains_key(&key) {
            return Err(EngineError::Internal("a part of a query that is there already".into()));
        }
        parts.insert(key, (tell, stop.guard()));
        drop(state);
        Ok((Part { queries: self.clone(), key, stop }, told))
    }

    /// The query of a part has ended.
    pub(crate) fn end(&self, key: &TaskKey) {
        self.end_with(key, Failure::new(ErrorCode::Cancelled, "the query has ended"));
    }

    /// The query of a part has ended, and why, for those who still read.
    pub(crate) fn end_with(&self, key: &TaskKey, why: Failure) {
        let mut state = self.lock();
        if let Some(open) = state.open.get_mut(&key.query_id) {
            let streams = std::mem::take(&mut open.streams);
            let tell = open.parts.remove(key);
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
            // Whoever waited for it may have gone with his connection.
            tell.map(|(tell, _)| tell.send(()));
            streams.iter().filter_map(Weak::upgrade).for_each(|stream| stream.end());
            self.ends.send_replace(());
        }
    }

    /// Waits until a query has ended; answers why.
    pub(crate) async fn ended(&self, query: &Uuid) -> EngineError {
        let mut ends = self.ends.subscribe();
        loop {
            if let Some(why) = self.lock().why(query) {
                return EngineError::Remote(why);
            }
            if ends.changed().await.is_err() {
                return EngineError::Internal("the node ends".into());
            }
        }
    }

    /// Why a stream has nothing to read from any more.
    pub(crate) fn why(&self, query: &Uuid) -> EngineError {
        match self.lock().why(query) {
            Some(why) => EngineError::Remote(why),
            None => EngineError::Internal("a stream of no query".into()),
        }
    }

    /// Keeps what a stream of a query holds.
    pub(crate) fn keep(&self, query: &Uuid, reply: Reply) -> Arc<Slot> {
        let slot = Arc::new(Slot(Mutex::new(SlotState::Idle(Box::new(reply)))));
        match self.lock().open.get_mut(query) {
            Some(open) => open.streams.push(Arc::downgrade(&slot)),
            // Nobody would let go of it later.
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
