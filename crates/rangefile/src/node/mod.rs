//! A node: the buckets that it has on disk, and its answers to requests about them.

mod adjust;
mod advertise;
mod answer;
mod conflict;
mod deliver;
mod files;
mod group;
mod merge;
mod scan;
mod split;
mod target;
#[cfg(test)]
mod tests;
mod tidy;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use prost::Message;
use tokio::sync::watch;

use crate::bucket::{Blocks, Bucket, Writer};
use crate::definition::Definition;
use crate::error::{RangeError, Result};
use crate::image::Image;
use crate::key::Interval;
use crate::locate::PAGE_BYTES;
use crate::network::Network;
use crate::request::{BucketEntry, BucketRecord, Directory, FileRecord, Locate};
use crate::store::{Change, Store, Stored, StoredBucket};

/// The most files of a node.
const FILES_MAX: usize = 10_000;

/// Buckets whose neighbours are looked at at once: after a restart, there may be many.
const LOOKS_MAX: usize = 2;

/// The range files of a node. Cheap to clone.
#[derive(Clone)]
pub struct Node {
    shared: Arc<Shared>,
}

struct Shared {
    /// HOST:PORT, as others reach it.
    name: String,
    blocks: Blocks,
    files: RwLock<BTreeMap<String, Arc<File>>>,
    network: Arc<dyn Network>,
    random: Mutex<fastrand::Rng>,
    /// Held while a file or a bucket is added, or a file is dropped.
    adding: tokio::sync::Mutex<()>,
    /// Held while the neighbours of a bucket are looked at.
    looks: tokio::sync::Semaphore,
    delivery: deliver::Delivery,
    /// Requests for many buckets that are being answered.
    groups: Arc<tokio::sync::Semaphore>,
    /// Whether buckets that were stored before were compared with those of other nodes.
    is_compared: watch::Sender<bool>,
    /// Nodes that could not take over a bucket.
    failures: target::Failures,
    /// Names that no file may have.
    reserved: OnceLock<BTreeSet<String>>,
}

/// A file, as a node knows it.
struct File {
    definition: Arc<Definition>,
    record: FileRecord,
    /// Other nodes are being told of the file, and may refuse it: until they have answered, nothing is written.
    is_new: AtomicBool,
    /// The node's own.
    buckets: RwLock<BTreeMap<u64, Arc<Bucket>>>,
    /// What is known of all.
    image: Mutex<Image>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Node").field(&self.shared.name).finish()
    }
}

impl Node {
    /// Opens the range files in a folder, or creates the folder. `name` is the node's address as others reach it;
    /// `seed` is for the numbers of new buckets: it must be another one at each start. [`Node::recover`] ends what a crash has interrupted.
    ///
    /// # Errors
    /// If the folder can't be used, another process uses it, or what is stored there is damaged.
    pub fn open(folder: &Path, name: &str, network: Arc<dyn Network>, seed: u64) -> Result<Self> {
        Self::with_store(Store::open(folder)?, name, network, seed)
    }

    /// The same on a simulated disk, which may fail.
    #[cfg(test)]
    pub(crate) fn on(
        disk: crate::simulation::disk::Disk,
        name: &str,
        network: Arc<dyn Network>,
        seed: u64,
    ) -> Result<Self> {
        Self::with_store(Store::by(move || disk.database())?, name, network, seed)
    }

    /// The same over a database that can't be opened again.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn over(
        database: redb::Database,
        name: &str,
        network: Arc<dyn Network>,
        seed: u64,
    ) -> Result<Self> {
        Self::with_store(Store::over(database)?, name, network, seed)
    }

    fn with_store(
        (store, stored): (Store, Stored),
        name: &str,
        network: Arc<dyn Network>,
        seed: u64,
    ) -> Result<Self> {
        let blocks = Blocks::new(store);
        let is_new = stored.buckets.is_empty();
        let mut files = BTreeMap::new();
        for record in stored.files {
            files.insert(record.name.clone(), Arc::new(File::new(record)?));
        }
        for bucket in stored.buckets {
            let file = &bucket.record.file;
            let Some(file) = files.get(file) else {
                return Err(RangeError::Damaged(format!("bucket {:x} is of unknown file {file}", bucket.id)));
            };
            let bucket = Bucket::new(file.definition.clone(), blocks.clone(), bucket);
            if bucket.view().is_active {
                file.image().learn(&bucket.entry(name));
            }
            file.buckets.write().unwrap_or_else(PoisonError::into_inner).insert(bucket.id, bucket);
        }
        let random = Mutex::new(fastrand::Rng::with_seed(seed));
        let (name, files) = (name.to_owned(), RwLock::new(files));
        Ok(Self {
            shared: Arc::new(Shared {
                name,
                blocks,
                files,
                network,
                random,
                adding: tokio::sync::Mutex::default(),
                looks: tokio::sync::Semaphore::new(LOOKS_MAX),
                delivery: deliver::Delivery::default(),
                groups: Arc::new(tokio::sync::Semaphore::new(group::GROUPS_MAX)),
                is_compared: watch::Sender::new(is_new),
                failures: target::Failures::default(),
                reserved: OnceLock::new(),
            }),
        })
    }

    /// Its buckets of a file that are not active, or whose splits have not ended.
    #[cfg(test)]
    pub(crate) async fn unsettled(&self, file: &str) -> usize {
        let mut unsettled = 0;
        for bucket in self.file(file).map(|file| file.all()).unwrap_or_default() {
            let record = &bucket.writer.lock().await.record;
            unsettled += usize::from(
                record.incoming.is_some() || record.splitting.is_some() || record.given.is_some(),
            );
        }
        unsettled
    }

    /// Reserves names, such as those of other tables: no file with such a name is created here, or on other nodes
    /// that reach this one. The first call counts.
    pub fn reserve(&self, names: impl IntoIterator<Item = String>) {
        let _ = self.shared.reserved.set(names.into_iter().collect());
    }

    /// Fails if no file may have this name.
    fn check_name(&self, name: &str) -> Result<()> {
        if self.shared.reserved.get().is_some_and(|reserved| reserved.contains(name)) {
            return Err(RangeError::Reserved(name.to_owned()));
        }
        Ok(())
    }

    /// The names of its files.
    pub fn files(&self) -> Vec<String> {
        self.files_read().keys().cloned().collect()
    }

    /// Whether a client's file is still the node's file of this name: it may have been dropped.
    pub fn has(&self, file: &crate::client::RangeFile) -> bool {
        self.file(&file.definition().name).is_ok_and(|known| known.record == *file.record())
    }

    /// Its own buckets of a file.
    pub fn buckets(&self, file: &str) -> Vec<BucketEntry> {
        self.file(file).map(|file| file.entries(&self.shared.name)).unwrap_or_default()
    }

    fn files_read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Arc<File>>> {
        self.shared.files.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, name: &str) -> Result<Arc<File>> {
        self.files_read().get(name).cloned().ok_or_else(|| RangeError::NoFile(name.to_owned()))
    }

    fn bucket(&self, file: &str, bucket: u64) -> Result<(Arc<File>, Arc<Bucket>)> {
        let file = self.file(file)?;
        let bucket = file.bucket(bucket).ok_or(RangeError::Moved)?;
        Ok((file, bucket))
    }

    /// The file, which is stored if the node did not know it.
    async fn know(&self, record: &FileRecord) -> Result<Arc<File>> {
        if let Ok(file) = self.file(&record.name) {
            return if file.record == *record {
                Ok(file)
            } else {
                Err(RangeError::FileExists(record.name.clone()))
            };
        }
        self.add_file(record, None).await
    }

    /// Stores a file, and its first bucket if it begins here: together, since a file without a bucket could neither
    /// be used nor created again.
    async fn add_file(&self, record: &FileRecord, first: Option<(u64, BucketRecord)>) -> Result<Arc<File>> {
        // One after another: of two files of one name, the same must be stored and known.
        let _adding = self.shared.adding.lock().await;
        if let Ok(file) = self.file(&record.name) {
            return if file.record == *record {
                Ok(file)
            } else {
                Err(RangeError::FileExists(record.name.clone()))
            };
        }
        if self.shared.blocks.store().was_removed(record.id).await? {
            // A request of a split that comes late, after the file was dropped.
            return Err(RangeError::NoFile(record.name.clone()));
        }
        if self.files_read().len() >= FILES_MAX {
            return Err(RangeError::Definition(format!("there are {FILES_MAX} range files already")));
        }
        let file = Arc::new(File::new(record.clone())?);
        file.is_new.store(first.is_some(), Ordering::Release);
        let mut changes = vec![Change::PutFile(record.clone())];
        if let Some((id, record)) = first {
            changes.push(Change::PutBucket(id, Box::new(record.clone())));
            let stored = StoredBucket { id, record, runs: Vec::new() };
            let bucket = Bucket::new(file.definition.clone(), self.shared.blocks.clone(), stored);
            file.image().learn(&bucket.entry(&self.shared.name));
            file.buckets.write().unwrap_or_else(PoisonError::into_inner).insert(id, bucket);
        }
        self.shared.blocks.store().commit(changes).await?;
        let mut files = self.shared.files.write().unwrap_or_else(PoisonError::into_inner);
        files.insert(record.name.clone(), file.clone());
        Ok(file)
    }

    /// Stores a new bucket without rows.
    async fn add_bucket(&self, file: &File, id: u64, record: BucketRecord) -> Result<Arc<Bucket>> {
        let _adding = self.shared.adding.lock().await;
        if !self.file(&record.file).is_ok_and(|known| std::ptr::eq(&*known, file)) {
            // It was dropped in the meantime: a bucket without a file would be damage.
            return Err(RangeError::NoFile(record.file));
        }
        if let Some(existing) = file.bucket(id) {
            return Ok(existing);
        }
        if self.shared.blocks.store().was_removed(id).await? {
            // It was active, and then moved or joined another one: a request that arrives again, or late, would give
            // its keys a second owner.
            return Err(RangeError::Moved);
        }
        let change = Change::PutBucket(id, Box::new(record.clone()));
        self.shared.blocks.store().commit(vec![change]).await?;
        let stored = StoredBucket { id, record, runs: Vec::new() };
        let bucket = Bucket::new(file.definition.clone(), self.shared.blocks.clone(), stored);
        let mut buckets = file.buckets.write().unwrap_or_else(PoisonError::into_inner);
        Ok(buckets.entry(id).or_insert(bucket).clone())
    }

    /// Removes a bucket with its rows, for the holder of its writer. Who waits for the writer finds it removed.
    async fn remove_bucket(&self, file: &File, bucket: &Arc<Bucket>, writer: &mut Writer) -> Result<()> {
        if writer.is_removed {
            return Ok(());
        }
        self.shared.blocks.store().commit(vec![Change::DeleteBucket(bucket.id)]).await?;
        file.remove(bucket.id);
        bucket.removed(writer);
        Ok(())
    }

    /// A number that no bucket has.
    fn new_id(&self) -> u64 {
        self.shared.random.lock().unwrap_or_else(PoisonError::into_inner).u64(1..)
    }

    /// From 0 to 1.
    fn random(&self) -> f64 {
        self.shared.random.lock().unwrap_or_else(PoisonError::into_inner).f64()
    }
}

impl File {
    fn new(record: FileRecord) -> Result<Self> {
        let definition = Arc::new(Definition::from_record(&record)?);
        let (is_new, buckets, image) = (AtomicBool::new(false), RwLock::default(), Mutex::default());
        Ok(Self { definition, record, is_new, buckets, image })
    }

    /// Whether it is being created.
    fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Acquire)
    }

    fn image(&self) -> MutexGuard<'_, Image> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Bucket>> {
        self.buckets.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn bucket(&self, id: u64) -> Option<Arc<Bucket>> {
        self.buckets.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn remove(&self, id: u64) {
        self.buckets.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// The node's own buckets. One that has moved is not, until it is removed.
    fn entries(&self, node: &str) -> Vec<BucketEntry> {
        self.entries_within(node, &[], &Interval::ALL)
    }

    /// The same of those whose keys begin at `low` or later, and with keys in an interval.
    fn entries_within(&self, node: &str, low: &[u8], interval: &Interval) -> Vec<BucketEntry> {
        let all = self.all();
        let own = all.iter().filter(|bucket| {
            let view = bucket.view();
            view.is_active && view.range.meets(interval) && *view.range.low >= *low
        });
        own.map(|bucket| bucket.entry(node)).collect()
    }

    /// What is known of the buckets that are asked for, as many as there is room for.
    fn directory(&self, node: &str, locate: &Locate, nodes: Vec<String>) -> Directory {
        let within = locate.within.clone().map_or(Interval::ALL, Interval::from);
        let mut buckets = self.entries_within(node, &locate.from, &within);
        if !locate.own {
            let known = |(interval, owner): (Interval, &crate::image::Owner)| owner.entry(interval);
            let image = self.image();
            let others = image.owners().filter(|(_, owner)| owner.node != node);
            buckets.extend(others.filter(|(interval, _)| interval.low >= locate.from).map(known));
        }
        buckets.sort_unstable_by(|a, b| a.range.low.cmp(&b.range.low));
        let mut bytes = 0;
        let page = buckets.iter().position(|entry| {
            let is_first = bytes == 0;
            bytes += entry.encoded_len();
            bytes > PAGE_BYTES && !is_first
        });
        let next = page.and_then(|page| buckets.get(page)).map(|entry| entry.range.low.clone());
        buckets.truncate(page.unwrap_or(buckets.len()));
        Directory { file: self.record.clone(), buckets, nodes, next, free_bytes: None }
    }
}
