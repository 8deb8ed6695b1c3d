//! Splits of full buckets, and their end after a restart.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures::future::BoxFuture;
use lightship_transport::net::Caller;
use lightship_wire::control::{ErrorCode, Failure};
use tokio::time::timeout;

use super::{File, Node};
use crate::bucket::{BLOCK_ROWS_MAX, Bucket, Merge, Run, RunBuilder, View, Writer, block_rows, decode_block};
use crate::error::{RangeError, Result};
use crate::key::{Interval, Key};
use crate::network::{ask_one, tell};
use crate::request::{
    BucketEntry, BucketName, Child, Directory, Prepare, Receive, RequestKind, SplitOutcome,
};
use crate::split;
use crate::store::Change;

/// How long writes to a bucket may be held back by its split; then it is abandoned.
const FREEZE_MAX: Duration = Duration::from_secs(10);
/// Bytes of blocks that are sent together.
const SEND_BYTES: usize = 4 << 20;
/// Writes go on while rows are copied. After this many rounds, those of the last one are held back.
const ROUNDS_MAX: u32 = 4;
/// Fewer bytes than these, as Arrow data, are sent so soon that writes can be held back meanwhile.
const LAST_BYTES: u64 = 8 << 20;
/// The first and the longest pause before another node is asked again.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// What became of the maintenance of a bucket.
pub(super) enum Maintained {
    /// There is nothing more to do.
    Done,
    /// There may be more to do.
    Again,
    /// It has split or moved, now or before. It can split again when the new bucket has confirmed it.
    Split,
    /// Its neighbours are to be looked at later.
    Later,
}

impl Node {
    /// Merges runs of a bucket, splits it, or merges it with a neighbour, if that is due. Does not wait for the
    /// end.
    pub(super) fn maintain(&self, file: &Arc<File>, bucket: &Arc<Bucket>) {
        bucket.note_growth();
        let is_untidy = bucket.is_untidy.load(SeqCst);
        let is_due = bucket.wants_compaction()
            || bucket.is_full()
            || bucket.may_join()
            || is_untidy
            || bucket.view().is_splitting;
        // A bucket of an old copy of the disk stays as it is.
        if !is_due || bucket.view().check_current().is_err() || !bucket.begin_maintenance() {
            return;
        }
        let (node, file, bucket) = (self.clone(), file.clone(), bucket.clone());
        tokio::spawn(async move {
            let maintained = node.maintained(&file, &bucket).await;
            let is_asked_again = bucket.end_maintenance();
            match maintained {
                Ok(Maintained::Again) => node.maintain(&file, &bucket),
                // Its neighbour may have asked for another look meanwhile, or writes may have filled it.
                Ok(Maintained::Done) if is_asked_again || bucket.may_join() => node.maintain(&file, &bucket),
                Ok(Maintained::Done) => {}
                Ok(Maintained::Later) => {
                    node.maintain_later(&file, &bucket);
                    if is_asked_again && bucket.is_full() {
                        // A split does not wait for a neighbour.
                        node.maintain(&file, &bucket);
                    }
                }
                // The new bucket may have confirmed it before this one could be maintained again.
                Ok(Maintained::Split) => {
                    if bucket.writer.lock().await.record.given.is_none() {
                        node.maintain(&file, &bucket);
                    }
                }
                Err(error) => {
                    tracing::warn!(file = file.definition.name, bucket = bucket.id, %error, "maintenance of a bucket failed");
                    node.maintain_later(&file, &bucket);
                }
            }
        });
    }

    async fn maintained(&self, file: &Arc<File>, bucket: &Arc<Bucket>) -> Result<Maintained> {
        abandon_split(bucket).await?;
        bucket.compact(false).await?;
        if bucket.is_untidy.swap(false, SeqCst) {
            bucket.compact(true).await?;
        }
        if !bucket.is_full() {
            return self.shrunk(file, bucket).await;
        }
        if bucket.writer.lock().await.record.given.is_some() {
            return Ok(Maintained::Split);
        }
        if !bucket.view().is_apart() {
            // Rows that were replaced or have moved do not count, and the median is exact.
            bucket.compact(true).await?;
        }
        if !bucket.is_full() {
            return Ok(Maintained::Again);
        }
        self.split(file, bucket).await
    }

    /// Merges a bucket with a neighbour, if it has shrunk.
    async fn shrunk(&self, file: &Arc<File>, bucket: &Arc<Bucket>) -> Result<Maintained> {
        if !bucket.may_join() {
            return Ok(Maintained::Done);
        }
        if !bucket.view().is_tidy() {
            bucket.compact(true).await?;
        }
        match self.merge(file, bucket).await {
            Ok(merged) => {
                bucket.maintenance_succeeded();
                Ok(merged)
            }
            Err(error) => {
                tracing::debug!(file = file.definition.name, bucket = bucket.id, %error, "a bucket did not merge");
                Ok(Maintained::Later)
            }
        }
    }

    /// Splits a bucket, if it has a key to split at.
    async fn split(&self, file: &Arc<File>, bucket: &Arc<Bucket>) -> Result<Maintained> {
        let reading = bucket.clone();
        let found = tokio::task::spawn_blocking(move || reading.split_key());
        let Some(low) = found.await.map_err(|_| RangeError::Closed)?? else { return Ok(Maintained::Done) };
        let text = file.definition.format().display(&low);
        let upper = Interval::new(low.clone(), bucket.view().range.high.clone());
        let target = self.target(file, bucket.view().bytes_of(&upper)).await;
        self.hand_over(file, bucket, low, text, target).await
    }

    /// Gives the keys of a bucket from `low` on to a new bucket on another node; `text` is `low` as text.
    ///
    /// # Errors
    /// If that was abandoned.
    pub(super) async fn hand_over(
        &self,
        file: &Arc<File>,
        bucket: &Arc<Bucket>,
        low: Key,
        text: String,
        target: String,
    ) -> Result<Maintained> {
        let child = {
            let mut writer = bucket.writer.lock().await;
            let (record, child) = split::begin(&writer.record, low, text, self.new_id(), target)?;
            bucket.put_record(&mut writer, record).await?;
            child
        };
        let copied = self.copy_and_commit(file, bucket, &child).await;
        if let Err(error) = copied {
            if child.node != self.shared.name && matches!(error, RangeError::Remote(_)) {
                self.shared.failures.note(&child.node);
            }
            if split::outcome(&bucket.writer.lock().await.record, child.bucket) != Some(true) {
                if let Err(error) = abandon_split(bucket).await {
                    // It is not decided before that: the disk may have stored that the keys are the new bucket's.
                    tracing::warn!(%error, "a split is abandoned once that can be stored");
                }
                return Err(error);
            }
        }
        self.shared.failures.forget(&child.node);
        let (node, file, bucket) = (self.clone(), file.clone(), bucket.clone());
        bucket.maintenance_succeeded();
        tokio::spawn(async move {
            node.confirm(&file, &bucket, &child).await;
            // Until now it could not split again.
            node.maintain(&file, &bucket);
        });
        Ok(Maintained::Split)
    }

    async fn copy_and_commit(&self, file: &Arc<File>, bucket: &Arc<Bucket>, child: &Child) -> Result<()> {
        let prepare = Prepare {
            file: file.record.clone(),
            bucket: child.bucket,
            range: child.range.clone(),
            epoch: child.epoch,
            from_node: self.shared.name.clone(),
            from_bucket: bucket.id,
            bytes: bucket.view().bytes_of(&child.range.clone().into()),
        };
        self.tell_node(&child.node, RequestKind::Prepare(prepare)).await?;
        // A merge could drop a deletion of a row that was sent.
        let _uncompacted = bucket.compaction.lock().await;
        let mut copy = Copy { node: self, file, bucket, child, age: None, sent: 0 };
        for _ in 0..ROUNDS_MAX {
            let view = bucket.view();
            if copy.bytes_left(&view) <= LAST_BYTES {
                break;
            }
            copy.send(&view).await?;
        }
        // From here to the end, writes wait.
        let mut writer = bucket.writer.clone().lock_owned().await;
        let view = bucket.view();
        timeout(FREEZE_MAX, copy.send(&view)).await.unwrap_or_else(|_| {
            let why = format!("node {} took too long to receive rows", child.node);
            Err(Failure::new(ErrorCode::Peer, why).into())
        })?;
        bucket.view().check_current()?;
        // Not to be interrupted: what is on disk and what readers see must not differ.
        self.committed(file, bucket, &mut writer).await
    }

    /// Stores that the upper keys are the new bucket's.
    async fn committed(&self, file: &Arc<File>, bucket: &Arc<Bucket>, writer: &mut Writer) -> Result<()> {
        let record = split::commit(&writer.record)?;
        bucket.put_record(writer, record).await?;
        file.image().learn(&bucket.entry(&self.shared.name));
        Ok(())
    }

    /// Activates the new bucket, however long that takes, and tells the other nodes.
    async fn confirm(&self, file: &Arc<File>, bucket: &Arc<Bucket>, child: &Child) {
        let activate = BucketName { file: file.definition.name.clone(), bucket: child.bucket };
        let mut pause = PAUSES[0];
        while let Err(error) = self.tell_node(&child.node, RequestKind::Activate(activate.clone())).await {
            if error.is_moved() || error.is_no_file() {
                // It was prepared before the split was decided, and an undecided answer does not remove it: it
                // has been active before, and was removed when it moved or joined another one, or with the file.
                break;
            }
            if bucket.writer.lock().await.is_removed {
                return;
            }
            tracing::warn!(node = child.node, %error, "a new bucket is not active yet");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
        let mut pause = PAUSES[0];
        while let Err(error) = self.store_confirmed(file, bucket, child).await {
            if error.is_moved() {
                return;
            }
            tracing::warn!(%error, "the end of a split is stored later");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
        let upper = BucketEntry {
            bucket: child.bucket,
            node: child.node.clone(),
            range: child.range.clone(),
            epoch: child.epoch,
            low_text: child.low_text.clone(),
            ..BucketEntry::default()
        };
        if child.node != self.shared.name {
            file.image().learn(&upper);
        }
        self.announce(file, vec![bucket.entry(&self.shared.name), upper], Some(&child.node)).await;
    }

    /// Stores that the new bucket is active. A bucket that has given it all its keys is removed.
    ///
    /// # Errors
    /// [`RangeError::Moved`] if the bucket was removed; or that it can't be stored.
    async fn store_confirmed(&self, file: &File, bucket: &Arc<Bucket>, child: &Child) -> Result<()> {
        let mut writer = bucket.writer.lock().await;
        if writer.record.given.as_ref().is_none_or(|given| given.bucket != child.bucket) {
            // Stored before. Since then, the bucket may have split again.
            return writer.check();
        }
        if Interval::from(writer.record.range.clone()).is_empty() {
            return self.remove_bucket(file, bucket, &mut writer).await;
        }
        let record = split::confirm(&writer.record);
        bucket.put_record(&mut writer, record).await
    }

    /// Tells the other nodes of buckets; `except` knows them.
    pub(super) async fn announce(
        &self,
        file: &Arc<File>,
        buckets: Vec<BucketEntry>,
        except: Option<&String>,
    ) {
        for node in self.others().into_iter().filter(|node| Some(node) != except) {
            let directory =
                Directory { file: file.record.clone(), buckets: buckets.clone(), ..Directory::default() };
            // A node that misses this learns it when a bucket refuses what is no longer its own.
            let _ = tell(&self.shared.network, &node, RequestKind::Announce(directory)).await;
        }
    }

    /// Sends a request to a node, which may be this one.
    pub(super) async fn tell_node(&self, node: &str, kind: RequestKind) -> Result<()> {
        if node == self.shared.name {
            let request = crate::request::Request { kind: Some(kind) };
            let answered: BoxFuture<'_, _> =
                Box::pin(self.answered(request, &Caller { is_peer: true, address: None }));
            return answered.await.map(drop);
        }
        tell(&self.shared.network, node, kind).await
    }

    /// The keys of a bucket are its own now.
    ///
    /// # Errors
    /// If the bucket was removed, or that can't be stored yet: the caller is to say it again.
    pub(super) async fn activate(&self, file: &Arc<File>, bucket: &Arc<Bucket>) -> Result<()> {
        let stored = bucket.activate(&mut *bucket.writer.lock().await).await;
        if bucket.view().is_active {
            file.image().learn(&bucket.entry(&self.shared.name));
        }
        stored?;
        self.maintain(file, bucket);
        Ok(())
    }

    /// Looks for buckets of an old copy of the node's folder, and ends what was interrupted when the node last ran: splits of
    /// its buckets, and buckets that were being received. That goes on in the background, and is tried again if it can't be stored.
    /// Returns when other nodes have answered, after two seconds at most; requests about rows wait so long. Call it when the
    /// node can be reached.
    pub async fn recover(&self) {
        self.compare_with_others().await;
        let files: Vec<Arc<File>> = self.files_read().values().cloned().collect();
        for file in files {
            for bucket in file.all() {
                let record = bucket.writer.lock().await.record.clone();
                if let Some(child) = record.given {
                    let (node, file, bucket) = (self.clone(), file.clone(), bucket.clone());
                    tokio::spawn(async move {
                        node.confirm(&file, &bucket, &child).await;
                        node.maintain(&file, &bucket);
                    });
                }
                if let Some(origin) = record.incoming {
                    let (node, file, bucket) = (self.clone(), file.clone(), bucket.clone());
                    tokio::spawn(async move { node.settle(&file, &bucket, &origin.node).await });
                } else {
                    self.maintain(&file, &bucket);
                }
            }
        }
    }

    /// Asks the bucket that splits what became of this one, until that is decided: the split may be abandoned, or
    /// the message that activates this one lost.
    pub(super) async fn settle(&self, file: &Arc<File>, bucket: &Arc<Bucket>, origin: &str) {
        let name = BucketName { file: file.definition.name.clone(), bucket: bucket.id };
        let mut pause = PAUSES[0];
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
            {
                let writer = bucket.writer.lock().await;
                if writer.is_removed || (writer.record.incoming.is_none() && !writer.is_unsure) {
                    return;
                }
            }
            let asked = match origin == self.shared.name {
                true => self.outcome(&name.file, name.bucket).await,
                false => {
                    ask_one::<SplitOutcome>(&self.shared.network, origin, RequestKind::Outcome(name.clone()))
                        .await
                }
            };
            let settled = match asked {
                Ok(SplitOutcome { committed: Some(true) }) => self.activate(file, bucket).await,
                Ok(SplitOutcome { committed: Some(false) }) => self.abandon(file, bucket).await,
                Ok(SplitOutcome { committed: None }) => Ok(()),
                // The file was dropped there, and with it the bucket that had the keys.
                Err(error) if error.is_no_file() => self.abandon(file, bucket).await,
                Err(error) => Err(error),
            };
            if let Err(error) = settled {
                tracing::warn!(node = origin, %error, "a bucket waits for the end of its split");
            }
        }
    }
}

impl Node {
    /// Removes a bucket whose split was abandoned. The answer that says so may be out of date: a bucket that has
    /// become active since then stays.
    async fn abandon(&self, file: &File, bucket: &Arc<Bucket>) -> Result<()> {
        let mut writer = bucket.writer.lock().await;
        if writer.record.incoming.is_none() {
            Ok(())
        } else {
            self.remove_bucket(file, bucket, &mut writer).await
        }
    }
}

/// Abandons a split that is not decided, for the task that maintains the bucket.
///
/// # Errors
/// If that can't be stored. The bucket can't split before it is.
async fn abandon_split(bucket: &Bucket) -> Result<()> {
    if !bucket.view().is_splitting {
        // Without a wait for the writes that go on: more runs would have to be merged.
        return Ok(());
    }
    let mut writer = bucket.writer.lock().await;
    let record = split::abort(&writer.record);
    bucket.put_record(&mut writer, record).await
}

/// Sends the rows of a bucket to the one that takes over its upper keys.
struct Copy<'a> {
    node: &'a Node,
    file: &'a Arc<File>,
    bucket: &'a Arc<Bucket>,
    child: &'a Child,
    /// The age of the newest run that was sent.
    age: Option<u64>,
    /// Runs that were sent.
    sent: u64,
}

impl Copy<'_> {
    /// Runs that were not sent.
    fn newer<'v>(&self, view: &'v View) -> &'v [Arc<Run>] {
        let start = view.runs.partition_point(|run| self.age.is_some_and(|age| run.age() <= age));
        &view.runs[start..]
    }

    /// About the bytes that were not sent.
    fn bytes_left(&self, view: &View) -> u64 {
        let interval: Interval = self.child.range.clone().into();
        self.newer(view).iter().map(|run| run.bytes_of(&interval)).sum()
    }

    /// Sends the runs that were not sent, as one or more.
    async fn send(&mut self, view: &View) -> Result<()> {
        let runs = self.newer(view).to_vec();
        let Some(age) = runs.last().map(|run| run.age()) else { return Ok(()) };
        let definition = self.bucket.definition.clone();
        let interval: Interval = self.child.range.clone().into();
        let (blocks, mut built) = tokio::sync::mpsc::channel::<Result<Vec<Vec<u8>>>>(1);
        let merging = tokio::task::spawn_blocking(move || {
            let mut merge = Merge::new(definition.clone(), &runs, interval, true, 8192);
            loop {
                // One message is a run of its own: the rows of the next one are all greater.
                let mut builder = RunBuilder::of_blocks(&definition);
                let mut is_last = false;
                let filled = loop {
                    match merge.next() {
                        Ok(Some(merged)) => {
                            let pushed = merged.keyed(&definition).and_then(|rows| builder.push(&rows));
                            if pushed.is_err() || builder.bytes() >= SEND_BYTES {
                                break pushed;
                            }
                        }
                        Ok(None) => {
                            is_last = true;
                            break Ok(());
                        }
                        Err(error) => break Err(error),
                    }
                };
                let message = filled.map(|()| builder.into_blocks());
                is_last |= message.is_err();
                if blocks.blocking_send(message).is_err() || is_last {
                    break;
                }
            }
        });
        while let Some(message) = built.recv().await {
            let blocks = message?;
            if blocks.is_empty() {
                continue;
            }
            self.sent += 1;
            let (file, bucket) = (self.file.definition.name.clone(), self.child.bucket);
            let receive = Receive { file, bucket, number: self.sent, blocks };
            self.node.tell_node(&self.child.node, RequestKind::Receive(receive)).await?;
        }
        merging.await.map_err(|_| RangeError::Closed)?;
        self.age = Some(age);
        Ok(())
    }
}

impl Bucket {
    /// Stores a run of a bucket that is being received.
    pub(super) async fn receive(self: &Arc<Self>, request: Receive) -> Result<()> {
        let mut writer = self.writer.clone().lock_owned().await;
        writer.check()?;
        let Some(record) = split::receive(&writer.record, request.number)? else { return Ok(()) };
        let (number, age) = (writer.take_run(), writer.take_age());
        let (bucket, blocks) = (self.clone(), request.blocks);
        let built = tokio::task::spawn_blocking(move || {
            // What a node sends is not trusted with memory.
            let rows = blocks.iter().map(|block| block_rows(block).min(BLOCK_ROWS_MAX)).sum();
            let mut builder = RunBuilder::new(&bucket.definition, 1, age, rows);
            let mut last = Vec::new();
            for block in blocks {
                let rows = decode_block(&bucket.definition, &block)?;
                if rows.len() > 0 && !last.is_empty() && *rows.key(0) <= *last {
                    return Err(RangeError::Definition("blocks are not in the order of their keys".into()));
                }
                last = rows.len().checked_sub(1).map_or(last, |row| rows.key(row).to_vec());
                builder.push_block(&rows, block);
            }
            Ok(builder.finish())
        });
        let mut changes = vec![Change::PutBucket(self.id, Box::new(record.clone()))];
        let mut runs = self.view().runs.clone();
        if let Some((run, blocks)) = built.await.map_err(|_| RangeError::Closed)?? {
            changes.push(Change::PutRun(self.id, number, Box::new(run.clone()), blocks));
            runs.push(Arc::new(Run::new(self.blocks.clone(), self.id, number, run)));
        }
        self.blocks.store().commit(changes).await?;
        writer.record = record;
        self.publish(&writer.record, runs);
        Ok(())
    }
}
