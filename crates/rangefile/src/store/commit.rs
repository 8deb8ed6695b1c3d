//! The thread that writes.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prost::Message;
use redb::{Database, Durability};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::opened::{Opened, is_full};
use super::space::{Size, Space};
use super::{BLOCKS, BUCKETS, Change, FILES, REMOVED, RUNS};
use crate::error::{RangeError, Result};

/// Jobs that may wait for the thread; more wait until there is room.
const WAITING_MAX: usize = 256;
/// Bytes of changes that may wait for the thread. Larger ones wait until nothing else does.
const WAITING_BYTES_MAX: u32 = 64 << 20;
/// Bytes of changes that are committed together.
const TOGETHER_BYTES_MAX: usize = 32 << 20;

/// Changes that belong together, and who waits for them.
pub(super) struct Job {
    changes: Vec<Change>,
    /// `None` only wakes the thread.
    done: Option<oneshot::Sender<Result<()>>>,
    /// Its bytes among those that may wait.
    _bytes: Option<OwnedSemaphorePermit>,
}

impl Job {
    fn bytes(&self) -> usize {
        self.changes.iter().map(Change::bytes).sum()
    }

    /// Whether it stores rows. Others need little room, and may make some.
    fn has_rows(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, Change::PutBlocks(..) | Change::PutRun(..)))
    }

    #[cfg(test)]
    pub(super) fn of(changes: Vec<Change>) -> Self {
        Self { changes, done: None, _bytes: None }
    }
}

/// Small changes that nobody waits for. They are part of each commit until one succeeds: there may be more than jobs that can wait.
type Later = Arc<Mutex<Vec<Change>>>;

#[derive(Clone)]
pub(super) struct Committer {
    jobs: mpsc::Sender<Job>,
    bytes: Arc<Semaphore>,
    later: Later,
}

impl Committer {
    /// Starts the thread. It ends when the last clone is dropped.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub(super) fn start(database: Arc<Opened>, space: Arc<Space>) -> Result<Self> {
        let (jobs, mut waiting) = mpsc::channel(WAITING_MAX);
        let later = Later::default();
        let taken = later.clone();
        std::thread::Builder::new()
            .name("range-commit".into())
            .spawn(move || run(&database, &space, &mut waiting, &taken))
            .map_err(|error| RangeError::storage(redb::StorageError::Io(error)))?;
        Ok(Self { jobs, bytes: Arc::new(Semaphore::new(WAITING_BYTES_MAX as usize)), later })
    }

    pub(super) async fn commit(&self, changes: Vec<Change>) -> Result<()> {
        let bytes = changes.iter().map(Change::bytes).sum::<usize>();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(WAITING_BYTES_MAX);
        let bytes = self.bytes.clone().acquire_many_owned(bytes).await.map_err(|_| RangeError::Closed)?;
        let (done, answer) = oneshot::channel();
        self.jobs
            .send(Job { changes, done: Some(done), _bytes: Some(bytes) })
            .await
            .map_err(|_| RangeError::Closed)?;
        // Simulated time stands still while a task of the runtime blocks, but not while this thread works.
        #[cfg(test)]
        let answer = async {
            let waiting = tokio::task::spawn_blocking(move || answer.blocking_recv());
            waiting.await.expect("no panic")
        };
        answer.await.unwrap_or(Err(RangeError::Closed))
    }

    pub(super) fn commit_later(&self, changes: Vec<Change>) {
        lock(&self.later).extend(changes);
        // If there is no room for it, the thread has jobs to do, and takes the changes with them.
        let _ = self.jobs.try_send(Job { changes: Vec::new(), done: None, _bytes: None });
    }
}

fn run(database: &Opened, space: &Space, waiting: &mut mpsc::Receiver<Job>, later: &Later) {
    while let Some(first) = waiting.blocking_recv() {
        let mut total = first.bytes();
        let mut jobs = vec![first];
        while total < TOGETHER_BYTES_MAX
            && let Ok(job) = waiting.try_recv()
        {
            total += job.bytes();
            jobs.push(job);
        }
        let changes = mem::take(&mut *lock(later));
        jobs.push(Job { changes, done: None, _bytes: None });
        let mut room = space.check_room(size(&jobs));
        if let Err(error) = &room
            && jobs.iter().any(Job::has_rows)
        {
            // What makes room does not have to wait for it.
            let (refused, rest) = jobs.into_iter().partition(Job::has_rows);
            answer(refused, &Err(error.clone()));
            jobs = rest;
            room = space.check_room(size(&jobs));
        }
        let is_empty = jobs.iter().all(|job| job.changes.is_empty());
        let outcome = if is_empty { Ok(()) } else { room.and_then(|()| store(database, &jobs, space)) };
        if outcome.is_err()
            && let Some(mut unmade) = jobs.pop()
        {
            let mut later = lock(later);
            unmade.changes.append(&mut later);
            *later = unmade.changes;
        }
        answer(jobs, &outcome);
    }
}

fn lock(later: &Later) -> MutexGuard<'_, Vec<Change>> {
    later.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(jobs: Vec<Job>, outcome: &Result<()>) {
    for done in jobs.into_iter().filter_map(|job| job.done) {
        let _ = done.send(outcome.clone());
    }
}

fn size(jobs: &[Job]) -> Size {
    Size {
        bytes: jobs.iter().map(Job::bytes).sum::<usize>() as u64,
        has_rows: jobs.iter().any(Job::has_rows),
    }
}

/// Commits jobs. After a failure for want of room, the database is opened again, so that it can be read.
fn store(database: &Opened, jobs: &[Job], space: &Space) -> Result<()> {
    let mut turn = database.turn();
    let is_open = if database.is_closed() { database.open_again(&mut turn) } else { Ok(()) };
    let outcome =
        is_open.and_then(|()| database.with(|database| write(database, jobs, space.wants_quick_repair())));
    let Err(error) = &outcome else {
        space.stored(size(jobs));
        return outcome;
    };
    tracing::error!(%error, "range files can't be stored");
    if !is_full(error) {
        space.failed(error);
        return outcome;
    }
    // Before the database is opened again, which may make the file smaller.
    let free = space.measure();
    let began = Instant::now();
    match database.open_again(&mut turn) {
        Ok(()) => space.was_full(error, size(jobs), free, began.elapsed()),
        Err(failure) => {
            tracing::error!(error = %failure, "range files can't be read");
            space.failed(error);
        }
    }
    outcome
}

/// Commits jobs together. See [`Space::wants_quick_repair`].
pub(super) fn write(database: &Database, jobs: &[Job], is_quick: bool) -> Result<()> {
    let mut transaction = database.begin_write().map_err(RangeError::storage)?;
    transaction.set_durability(Durability::Immediate).map_err(RangeError::storage)?;
    transaction.set_quick_repair(is_quick);
    {
        let mut files = transaction.open_table(FILES).map_err(RangeError::storage)?;
        let mut buckets = transaction.open_table(BUCKETS).map_err(RangeError::storage)?;
        let mut runs = transaction.open_table(RUNS).map_err(RangeError::storage)?;
        let mut removed = transaction.open_table(REMOVED).map_err(RangeError::storage)?;
        let mut blocks = transaction.open_table(BLOCKS).map_err(RangeError::storage)?;
        for change in jobs.iter().flat_map(|job| &job.changes) {
            match change {
                Change::PutFile(record) => {
                    files
                        .insert(record.name.as_str(), record.encode_to_vec().as_slice())
                        .map_err(RangeError::storage)?;
                }
                Change::DeleteFile(name, id) => {
                    removed.insert(id, ()).map_err(RangeError::storage)?;
                    files.remove(name.as_str()).map_err(RangeError::storage)?;
                }
                Change::RememberRemoved(id) => {
                    removed.insert(id, ()).map_err(RangeError::storage)?;
                }
                Change::PutBucket(id, record) => {
                    buckets.insert(id, record.encode_to_vec().as_slice()).map_err(RangeError::storage)?;
                }
                Change::DeleteBucket(id) => {
                    removed.insert(id, ()).map_err(RangeError::storage)?;
                    buckets.remove(id).map_err(RangeError::storage)?;
                    runs.retain_in((*id, 0)..=(*id, u64::MAX), |_, _| false).map_err(RangeError::storage)?;
                }
                Change::PutBlocks(bucket, run, first, contents) => {
                    for (number, content) in (*first..).zip(contents) {
                        blocks
                            .insert((*bucket, *run, number), content.as_slice())
                            .map_err(RangeError::storage)?;
                    }
                }
                Change::PutRun(bucket, run, record, contents) => {
                    runs.insert((*bucket, *run), record.encode_to_vec().as_slice())
                        .map_err(RangeError::storage)?;
                    for (number, content) in (0..).zip(contents) {
                        blocks
                            .insert((*bucket, *run, number), content.as_slice())
                            .map_err(RangeError::storage)?;
                    }
                }
                Change::DeleteRun(bucket, run) => {
                    drop(runs.remove((*bucket, *run)).map_err(RangeError::storage)?)
                }
                Change::DeleteBlocks(bucket, run, count) => {
                    for number in 0..*count {
                        blocks.remove((*bucket, *run, number)).map_err(RangeError::storage)?;
                    }
                }
            }
        }
    }
    transaction.commit().map_err(RangeError::storage)
}
