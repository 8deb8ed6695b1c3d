//! The thread that writes.

use std::sync::Arc;

use prost::Message;
use redb::{Database, Durability};
use tokio::sync::{mpsc, oneshot};

use super::{BLOCKS, BUCKETS, Change, FILES, RUNS, storage};
use crate::error::{RangeError, Result};

/// Jobs that may wait for the thread; more wait until there is room.
const WAITING_MAX: usize = 256;
/// Bytes of changes that are committed together.
const TOGETHER_BYTES_MAX: usize = 32 << 20;

/// Changes that belong together, and who waits for them.
struct Job {
    changes: Vec<Change>,
    done: Option<oneshot::Sender<Result<(), String>>>,
}

#[derive(Clone)]
pub(super) struct Committer {
    jobs: mpsc::Sender<Job>,
}

impl Committer {
    /// Starts the thread. It ends when the last clone is dropped.
    pub(super) fn start(database: Arc<Database>) -> Self {
        let (jobs, mut waiting) = mpsc::channel(WAITING_MAX);
        std::thread::Builder::new()
            .name("range-commit".into())
            .spawn(move || run(&database, &mut waiting))
            .expect("a thread");
        Self { jobs }
    }

    pub(super) async fn commit(&self, changes: Vec<Change>) -> Result<()> {
        let (done, answer) = oneshot::channel();
        self.jobs.send(Job { changes, done: Some(done) }).await.map_err(|_| RangeError::Closed)?;
        answer.await.map_err(|_| RangeError::Closed)?.map_err(RangeError::Storage)
    }

    pub(super) fn commit_later(&self, changes: Vec<Change>) {
        // What is not made now is made when the node starts again.
        let _ = self.jobs.try_send(Job { changes, done: None });
    }
}

fn run(database: &Database, waiting: &mut mpsc::Receiver<Job>) {
    while let Some(first) = waiting.blocking_recv() {
        let bytes = |job: &Job| job.changes.iter().map(Change::bytes).sum::<usize>();
        let mut total = bytes(&first);
        let mut jobs = vec![first];
        while total < TOGETHER_BYTES_MAX
            && let Ok(job) = waiting.try_recv()
        {
            total += bytes(&job);
            jobs.push(job);
        }
        let (changes, done): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.changes, job.done)).unzip();
        let outcome = write(database, &changes).map_err(|error| match error {
            RangeError::Storage(message) => message,
            error => error.to_string(),
        });
        if let Err(error) = &outcome {
            tracing::error!(%error, "range files can't be stored");
        }
        for done in done.into_iter().flatten() {
            let _ = done.send(outcome.clone());
        }
    }
}

fn write(database: &Database, jobs: &[Vec<Change>]) -> Result<()> {
    let mut transaction = database.begin_write().map_err(storage)?;
    transaction.set_durability(Durability::Immediate).map_err(|e| RangeError::Storage(e.to_string()))?;
    {
        let mut files = transaction.open_table(FILES).map_err(storage)?;
        let mut buckets = transaction.open_table(BUCKETS).map_err(storage)?;
        let mut runs = transaction.open_table(RUNS).map_err(storage)?;
        let mut blocks = transaction.open_table(BLOCKS).map_err(storage)?;
        for change in jobs.iter().flatten() {
            match change {
                Change::PutFile(record) => {
                    files.insert(record.name.as_str(), record.encode_to_vec().as_slice()).map_err(storage)?;
                }
                Change::DeleteFile(name) => drop(files.remove(name.as_str()).map_err(storage)?),
                Change::PutBucket(id, record) => {
                    buckets.insert(id, record.encode_to_vec().as_slice()).map_err(storage)?;
                }
                Change::DeleteBucket(id) => {
                    buckets.remove(id).map_err(storage)?;
                    runs.retain_in((*id, 0)..=(*id, u64::MAX), |_, _| false).map_err(storage)?;
                }
                Change::PutRun(bucket, run, record, contents) => {
                    runs.insert((*bucket, *run), record.encode_to_vec().as_slice()).map_err(storage)?;
                    for (number, content) in contents.iter().enumerate() {
                        blocks.insert((*bucket, *run, number as u32), content.as_slice()).map_err(storage)?;
                    }
                }
                Change::DeleteRun(bucket, run) => drop(runs.remove((*bucket, *run)).map_err(storage)?),
                Change::DeleteBlocks(bucket, run, count) => {
                    for number in 0..*count {
                        blocks.remove((*bucket, *run, number)).map_err(storage)?;
                    }
                }
            }
        }
    }
    transaction.commit().map_err(storage)
}
