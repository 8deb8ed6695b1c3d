//! What a node has on disk: files, buckets, runs and blocks of rows, in one database of `redb`.
//!
//! All changes go through one thread, which commits those that are waiting together: each commit
//! costs a sync of the disk.

mod commit;
mod opened;
#[cfg(test)]
mod reopen;
mod space;

use std::path::Path;
use std::sync::Arc;
#[cfg(test)]
use std::time::Duration;

use prost::Message;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use tokio::runtime::Handle;

use self::commit::Committer;
use self::opened::Opened;
use self::space::Space;
pub(crate) use self::space::has_room;
use crate::error::{RangeError, Result};
use crate::request::{BucketRecord, FileRecord, RunRecord};

/// The version of everything that is stored.
const VERSION: u64 = 1;
/// The file in the folder of a node.
const FILE_NAME: &str = "range.redb";
/// Blocks that are kept in memory.
const CACHE_BYTES: usize = 64 << 20;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const FILES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("files");
const BUCKETS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("buckets");
/// Numbers of buckets and files that were removed, for ever: an old request must not bring one back. Not in memory.
const REMOVED: TableDefinition<'_, u64, ()> = TableDefinition::new("removed");
const RUNS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("runs");
const BLOCKS: TableDefinition<'_, (u64, u64, u32), &[u8]> = TableDefinition::new("blocks");

/// A change of what is stored.
#[derive(Debug)]
pub(crate) enum Change {
    PutFile(FileRecord),
    /// The file of a name and a number, whose buckets are gone already.
    DeleteFile(String, u64),
    /// A file of this number, which is not there, was removed elsewhere.
    RememberRemoved(u64),
    PutBucket(u64, Box<BucketRecord>),
    DeleteBucket(u64),
    /// Blocks of a run, from this one on. Until the run is put too, they are removed when the node starts again.
    PutBlocks(u64, u64, u32, Vec<Vec<u8>>),
    /// A run of a bucket, with its blocks, unless these were put before.
    PutRun(u64, u64, Box<RunRecord>, Vec<Vec<u8>>),
    /// A run is no longer part of its bucket. Its blocks stay, for those who read them.
    DeleteRun(u64, u64),
    /// The first blocks of a run that nobody reads any more; this many.
    DeleteBlocks(u64, u64, u32),
}

impl Change {
    /// About its bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::PutBlocks(.., blocks) | Self::PutRun(.., blocks) => {
                512 + blocks.iter().map(|block| block.len() + 128).sum::<usize>()
            }
            _ => 512,
        }
    }
}

/// What was stored when the node last ran.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    pub(crate) files: Vec<FileRecord>,
    pub(crate) buckets: Vec<StoredBucket>,
}

#[derive(Debug)]
pub(crate) struct StoredBucket {
    pub(crate) id: u64,
    pub(crate) record: BucketRecord,
    /// With their numbers, in ascending order.
    pub(crate) runs: Vec<(u64, RunRecord)>,
}

/// The database of a node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Store {
    database: Arc<Opened>,
    committer: Committer,
    space: Arc<Space>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

impl Store {
    /// Opens the database in a folder, or creates it.
    ///
    /// # Errors
    /// If it can't be opened, is in use by another process, or was written by another version.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Stored)> {
        let failed = |error| RangeError::Folder { path: folder.to_owned(), error: Arc::new(error) };
        // The folder itself, and those above it that are created too.
        let new_folders = folder.ancestors().take_while(|folder| !folder.exists()).count();
        std::fs::create_dir_all(folder).map_err(failed)?;
        let path = folder.join(FILE_NAME);
        let is_new = !path.exists();
        let database = Opened::in_file(path.clone()).map_err(|error| match error {
            redb::Error::DatabaseAlreadyOpen => RangeError::InUse(folder.to_owned()),
            redb::Error::Io(error) => failed(error),
            error => RangeError::storage(error),
        })?;
        if is_new {
            // What is synced in the file would be lost with its name.
            for folder in folder.ancestors().take(new_folders + 1) {
                sync_folder(folder).map_err(failed)?;
            }
        }
        Self::with_space(database, Space::of(path))
    }

    /// Uses a database, which is opened again after a failure.
    #[cfg(test)]
    pub(crate) fn by(
        open: impl Fn() -> Result<Database, redb::DatabaseError> + Send + Sync + 'static,
    ) -> Result<(Self, Stored)> {
        let opened = Opened::by(move |_| Ok(open()?), Duration::ZERO).map_err(RangeError::storage)?;
        Self::with_space(opened, Space::default())
    }

    /// Uses a database.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn over(database: Database) -> Result<(Self, Stored)> {
        Self::with_space(Opened::over(database), Space::default())
    }

    fn with_space(database: Opened, space: Space) -> Result<(Self, Stored)> {
        let stored = database.with(|database| load(database, space.wants_quick_repair()))?;
        let (database, space) = (Arc::new(database), Arc::new(space));
        let committer = Committer::start(database.clone(), space.clone())?;
        Ok((Self { database, committer, space }, stored))
    }

    /// The bytes that can be stored on its disk; `None` if that is not known.
    pub(crate) async fn free_bytes(&self) -> Option<u64> {
        self.space.free().await
    }

    /// Commits changes together. Returns once they are on disk.
    ///
    /// # Errors
    /// If they could not be stored; then none of them was.
    pub(crate) async fn commit(&self, changes: Vec<Change>) -> Result<()> {
        self.committer.commit(changes).await
    }

    /// As [`Store::commit`], for threads that may wait.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub(crate) fn commit_blocking(&self, changes: Vec<Change>) -> Result<()> {
        Handle::current().block_on(self.commit(changes))
    }

    /// Adds changes to the next commit that succeeds. If the node stops before that, they are lost. When it starts again, it
    /// removes blocks that belong to no run.
    pub(crate) fn commit_later(&self, changes: Vec<Change>) {
        self.committer.commit_later(changes);
    }

    /// Whether there was a bucket or file of this number, which was removed.
    ///
    /// # Errors
    /// If it can't be read.
    pub(crate) async fn was_removed(&self, number: u64) -> Result<bool> {
        Ok(!self.removed(vec![number]).await?.is_empty())
    }

    /// Those of these numbers that were of buckets or files which were removed.
    ///
    /// # Errors
    /// If they can't be read.
    pub(crate) async fn removed(&self, numbers: Vec<u64>) -> Result<Vec<u64>> {
        let database = self.database.clone();
        let read = move |database: &Database| -> Result<Vec<u64>, redb::Error> {
            let table = database.begin_read()?.open_table(REMOVED)?;
            let mut removed = Vec::new();
            for number in &numbers {
                removed.extend(table.get(number)?.map(|_| *number));
            }
            Ok(removed)
        };
        let reading = tokio::task::spawn_blocking(move || {
            database.read(|database| read(database).map_err(RangeError::storage))
        });
        reading.await.map_err(|_| RangeError::Closed)?
    }

    /// Reads a block of a run, without a copy of it.
    ///
    /// # Errors
    /// If it is missing or can't be read, or what `read` returns.
    pub(crate) fn block<T>(
        &self,
        bucket: u64,
        run: u64,
        block: u32,
        read: impl Fn(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let find = |database: &Database| -> Result<Option<Result<T>>, redb::Error> {
            let table = database.begin_read()?.open_table(BLOCKS)?;
            Ok(table.get((bucket, run, block))?.map(|bytes| read(bytes.value())))
        };
        let missing =
            || RangeError::Damaged(format!("block {block} of run {run} of bucket {bucket:x} is missing"));
        self.database.read(|database| find(database).map_err(RangeError::storage))?.ok_or_else(missing)?
    }
}

/// Syncs the names in a folder.
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    // The name of a relative path's first folder is in the current one.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    std::fs::File::open(folder)?.sync_all()
}

/// Reads everything but the blocks, and removes blocks that belong to no run. Stores nothing if there is nothing to change:
/// the disk may be full.
fn load(database: &Database, is_quick: bool) -> Result<Stored> {
    let mut transaction = database.begin_write().map_err(RangeError::storage)?;
    transaction.set_quick_repair(is_quick);
    let known: Vec<String> = transaction
        .list_tables()
        .map_err(RangeError::storage)?
        .map(|table| table.name().to_owned())
        .collect();
    let all = [META.name(), FILES.name(), BUCKETS.name(), REMOVED.name(), RUNS.name(), BLOCKS.name()];
    let mut is_changed = !all.iter().all(|name| known.iter().any(|known| known == name));
    let mut stored = Stored::default();
    {
        let mut meta = transaction.open_table(META).map_err(RangeError::storage)?;
        let version = meta.get("version").map_err(RangeError::storage)?.map(|version| version.value());
        match version {
            None => {
                is_changed = true;
                meta.insert("version", VERSION).map_err(RangeError::storage)?;
            }
            Some(VERSION) => {}
            Some(other) => {
                return Err(RangeError::Version { stored: other, known: VERSION });
            }
        }
        let files = transaction.open_table(FILES).map_err(RangeError::storage)?;
        for entry in files.iter().map_err(RangeError::storage)? {
            let (_, bytes) = entry.map_err(RangeError::storage)?;
            stored.files.push(decode(bytes.value())?);
        }
        let buckets = transaction.open_table(BUCKETS).map_err(RangeError::storage)?;
        let runs = transaction.open_table(RUNS).map_err(RangeError::storage)?;
        for entry in buckets.iter().map_err(RangeError::storage)? {
            let (id, bytes) = entry.map_err(RangeError::storage)?;
            let id = id.value();
            let mut found = Vec::new();
            for entry in runs.range((id, 0)..=(id, u64::MAX)).map_err(RangeError::storage)? {
                let (key, bytes) = entry.map_err(RangeError::storage)?;
                found.push((key.value().1, decode(bytes.value())?));
            }
            stored.buckets.push(StoredBucket { id, record: decode(bytes.value())?, runs: found });
        }
        // Blocks of runs that were merged while somebody read them.
        // It is read before it is first written.
        transaction.open_table(REMOVED).map_err(RangeError::storage)?;
        let mut blocks = transaction.open_table(BLOCKS).map_err(RangeError::storage)?;
        let mut next = (0, 0, 0);
        loop {
            let Some(found) = blocks.range(next..).map_err(RangeError::storage)?.next() else { break };
            let (bucket, run, _) = found.map_err(RangeError::storage)?.0.value();
            if runs.get((bucket, run)).map_err(RangeError::storage)?.is_none() {
                is_changed = true;
                blocks
                    .retain_in((bucket, run, 0)..=(bucket, run, u32::MAX), |_, _| false)
                    .map_err(RangeError::storage)?;
            }
            next = match run.checked_add(1) {
                Some(run) => (bucket, run, 0),
                None => break,
            };
        }
    }
    if is_changed {
        transaction.commit().map_err(RangeError::storage)?;
    } else {
        transaction.abort().map_err(RangeError::storage)?;
    }
    Ok(stored)
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M> {
    M::decode(bytes).map_err(|e| RangeError::Damaged(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_use_is_an_error_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let _open = Store::open(folder.path()).unwrap();
        let error = Store::open(folder.path()).unwrap_err();
        assert!(matches!(&error, RangeError::InUse(path) if path == folder.path()), "{error}");
    }

    #[test]
    fn a_folder_that_is_a_file_is_an_error_of_its_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Store::open(file.path()).unwrap_err();
        assert!(matches!(&error, RangeError::Folder { path, .. } if path == file.path()), "{error}");
    }

    #[test]
    fn another_version_is_an_error_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::create(folder.path().join(FILE_NAME)).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("version", VERSION + 1).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let error = Store::open(folder.path()).unwrap_err();
        assert!(matches!(error, RangeError::Version { stored: 2, known: VERSION }), "{error}");
    }

    #[tokio::test]
    async fn changes_that_nobody_waits_for_are_made_with_others() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let runs = 0..1000;
        let put = |run| Change::PutBlocks(1, run, 0, vec![vec![7]]);
        store.commit(runs.clone().map(put).collect()).await.unwrap();
        // The thread that commits waits for this one, and changes wait for it.
        let held = store.database.with(|database| {
            let other = database.begin_write().unwrap();
            runs.clone().for_each(|run| store.commit_later(vec![Change::DeleteBlocks(1, run, 1)]));
            other.abort().map_err(RangeError::storage)
        });
        held.unwrap();
        store.commit(Vec::new()).await.unwrap();
        let left = runs.filter(|run| store.block(1, *run, 0, |_| Ok(())).is_ok()).count();
        assert_eq!(left, 0);
    }

    #[tokio::test]
    async fn changes_that_nobody_waits_for_are_made_after_commits_that_fail() {
        let disk = crate::simulation::disk::Disk::default();
        let of_store = disk.clone();
        let (store, _) = Store::by(move || of_store.database()).unwrap();
        store.commit(vec![Change::PutBlocks(1, 1, 0, vec![vec![7]])]).await.unwrap();
        disk.set_full(true);
        store.commit_later(vec![Change::DeleteBlocks(1, 1, 1)]);
        // Another thread may have tried to commit it before.
        store.commit(Vec::new()).await.unwrap_err();
        disk.set_full(false);
        store.commit(Vec::new()).await.unwrap();
        let read = store.block(1, 1, 0, |_| Ok(()));
        assert!(matches!(read, Err(RangeError::Damaged(_))), "{read:?}");
    }
}
