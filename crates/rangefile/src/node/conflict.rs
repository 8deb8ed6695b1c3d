//! Buckets of an old copy of a disk.
//!
//! Each change of the owner of a key has a greater epoch, and the one that gives a key up stores that first. So if
//! another bucket has had a key of this node's bucket since the same epoch or a later one, what this node has stored
//! since then is gone: somebody has put an old copy of its folder in place. Such a bucket serves nobody, as stale
//! clients would write rows to it that nobody else finds.
//!
//! A node asks the others for their buckets when it starts, while its clients wait a little; it goes on to ask those
//! that did not answer. Later it compares whatever it learns of other buckets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use tokio::time::{sleep, timeout};

use super::{File, Node};
use crate::error::RangeError;
use crate::key::Interval;
use crate::locate::{Room, locate};
use crate::request::BucketEntry;

/// How long clients wait for the first answers of other nodes after a start.
const FIRST_MAX: Duration = Duration::from_secs(2);
/// How long a node may take to answer later.
const ASK_MAX: Duration = Duration::from_secs(10);
/// The first and the longest pause before nodes are asked again.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

impl Node {
    /// Learns of a bucket, and compares own buckets with it.
    pub(super) fn learn(&self, file: &File, entry: &BucketEntry) {
        let range: Interval = entry.range.clone().into();
        let own: BTreeSet<u64> = {
            let mut image = file.image();
            let pieces = image.route(&range);
            if entry.node != self.shared.name {
                image.learn(entry);
            }
            let owners = pieces.into_iter().filter_map(|(_, owner)| owner);
            owners.filter(|owner| owner.node == self.shared.name).map(|owner| owner.bucket).collect()
        };
        for bucket in own.into_iter().filter_map(|bucket| file.bucket(bucket)) {
            bucket.compare(entry);
        }
    }

    /// Compares files and own buckets with those of a node. Returns whether that was done.
    async fn compare_with(&self, node: &str) -> bool {
        // At the same time: to drop files may take long, or fail, and clients are not to wait for it in vain.
        let (files, has_compared_buckets) = join(self.compare_files(node), self.compare_buckets(node)).await;
        if let Err(error) = &files {
            tracing::debug!(node, %error, "range files are not compared with those of a node yet");
        }
        files.is_ok() && has_compared_buckets
    }

    /// Compares own buckets with those of a node. Returns whether it has answered.
    async fn compare_buckets(&self, node: &str) -> bool {
        let files: Vec<Arc<File>> = self.files_read().values().cloned().collect();
        for file in files.iter().filter(|file| !file.all().is_empty()) {
            let room = Room::default();
            match locate(&self.shared.network, node, &file.definition.name, true, &room).await {
                Ok(directory) if directory.file == file.record => {
                    directory.buckets.iter().for_each(|entry| self.learn(file, entry));
                }
                Ok(_) => {}
                Err(error) if error.has_no_file() => {}
                Err(RangeError::TooManyBuckets { .. }) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Compares files and own buckets with those of all nodes that answer soon. Those that do not are asked later.
    pub(super) async fn compare_with_others(&self) {
        let asked = self.others().into_iter().map(|node| async move {
            let has_answered = timeout(FIRST_MAX, self.compare_with(&node)).await == Ok(true);
            has_answered.then_some(node)
        });
        let mut answered: BTreeSet<String> = join_all(asked).await.into_iter().flatten().collect();
        self.shared.is_compared.send_replace(true);
        // The node may be closed meanwhile.
        let node = Arc::downgrade(&self.shared);
        tokio::spawn(async move {
            let mut pause = PAUSES[0];
            loop {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSES[1]);
                let Some(shared) = node.upgrade() else { return };
                let node = Self { shared };
                // Nodes that it did not know when it started, too.
                for other in
                    node.others().into_iter().filter(|other| !answered.contains(other)).collect::<Vec<_>>()
                {
                    if timeout(ASK_MAX, node.compare_with(&other)).await == Ok(true) {
                        answered.insert(other);
                    }
                }
                // A file may have been created or dropped while this node could not be reached.
                let others = node.others();
                if let Some(other) = others.get((node.random() * others.len() as f64) as usize) {
                    let _ = timeout(ASK_MAX, node.compare_files(other)).await;
                }
            }
        });
    }

    /// Waits until the buckets that were stored before the node started are compared with those of other nodes, as far
    /// as these answer.
    pub(super) async fn until_compared(&self) {
        if !*self.shared.is_compared.borrow() {
            let mut compared = self.shared.is_compared.subscribe();
            // Not for ever: the node may not have joined its cluster.
            let _ = timeout(ASK_MAX, compared.wait_for(|is_compared| *is_compared)).await;
        }
    }
}
