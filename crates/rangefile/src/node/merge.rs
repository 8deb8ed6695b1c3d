//! Merges of buckets that have shrunk.
//!
//! Two neighbours that together use at most half of a bucket become one. If they are on different nodes, the upper
//! one moves to the lower one's node; there they join. It is always the upper one that moves, so two neighbours
//! never change places, and the moves end: the first bucket of a file never moves, the second one only to the
//! first, and so on. Half of a bucket is far from what splits it again.
//!
//! Each step leaves a file that is complete: a move is a split, which goes on or is abandoned after a restart, and
//! a join is one commit. A bucket that was moved in vain, as the other one has changed meanwhile, stays where it is.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use lightship_wire::control::{ErrorCode, Failure};
use tokio::time::timeout;

use super::split::Maintained;
use super::{File, Node};
use crate::bucket::Bucket;
use crate::error::{RangeError, Result};
use crate::key::Interval;
use crate::locate::{Room, locate};
use crate::request::{BucketEntry, BucketName, RequestKind};
use crate::split;

/// How long another node may take to say which buckets it has.
const ASK_MAX: Duration = Duration::from_secs(10);
/// The first and the longest pause, about, before a bucket is maintained again.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];

impl Node {
    /// Looks at the neighbours of a bucket, and merges it with one of them if both fit.
    ///
    /// # Errors
    /// If that is not known now: a neighbour can't be reached, or is just being moved.
    pub(super) async fn merge(&self, file: &Arc<File>, bucket: &Arc<Bucket>) -> Result<Maintained> {
        let _turn = self.shared.looks.acquire().await.map_err(|_| RangeError::Closed)?;
        let used = bucket.used();
        // Before the look, so that a request for another one is not lost.
        bucket.looks_at_neighbours(used);
        let capacity = file.definition.capacity;
        let fits = |other: &BucketEntry| {
            let content = (other.records.unwrap_or(u64::MAX), other.bytes.unwrap_or(u64::MAX));
            used.saturating_add(capacity.used(content)) <= capacity.max() / 2
        };
        let range = bucket.view().range.clone();
        let mut lower = Ok(Maintained::Done);
        if !range.low.is_empty() {
            let known = file.image().owner_before(&range.low).map(|owner| owner.node.clone());
            match self.neighbour(file, known, |other| other.high.as_ref() == Some(&range.low)).await {
                Ok(other) if !fits(&other) => {}
                Ok(other) if other.node == self.shared.name => {
                    let other = file.bucket(other.bucket).ok_or(RangeError::Moved)?;
                    return self.join(file, &other, bucket).await;
                }
                Ok(other) => {
                    let text = bucket.entry(&self.shared.name).low_text;
                    return self.hand_over(file, bucket, range.low, text, other.node).await;
                }
                Err(error) => lower = Err(error),
            }
        }
        if let Some(high) = &range.high {
            let known = file.image().owner(high).map(|owner| owner.node.clone());
            let other = self.neighbour(file, known, |other| other.low == *high).await?;
            if fits(&other) && other.node == self.shared.name {
                let other = file.bucket(other.bucket).ok_or(RangeError::Moved)?;
                return self.join(file, bucket, &other).await;
            }
            if fits(&other) {
                let name = BucketName { file: file.definition.name.clone(), bucket: other.bucket };
                self.tell_node(&other.node, RequestKind::Approach(name)).await?;
            }
        }
        lower
    }

    /// The bucket whose range is asked for, from the node that has it. The node that is `known` is asked first.
    async fn neighbour(
        &self,
        file: &Arc<File>,
        known: Option<String>,
        is_asked_for: impl Fn(&Interval) -> bool,
    ) -> Result<BucketEntry> {
        let find = |entries: &[BucketEntry]| {
            entries.iter().find(|entry| is_asked_for(&entry.range.clone().into())).cloned()
        };
        if let Some(found) = find(&file.entries(&self.shared.name)) {
            return Ok(found);
        }
        let mut nodes = self.others();
        nodes.sort_by_key(|node| known.as_ref() != Some(node));
        let mut failed = RangeError::Moved;
        for node in nodes {
            let room = Room::default();
            let asked = locate(&self.shared.network, &node, &file.definition.name, true, &room);
            let late = || Failure::new(ErrorCode::Peer, format!("node {node} does not answer")).into();
            match timeout(ASK_MAX, asked).await.unwrap_or_else(|_| Err(late())) {
                Ok(directory) if directory.file == file.record => {
                    directory.buckets.iter().for_each(|entry| self.learn(file, entry));
                    if let Some(found) = find(&directory.buckets) {
                        return Ok(found);
                    }
                }
                Ok(_) => {}
                Err(error) if error.is_no_file() => {}
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Makes one of two adjacent buckets of this node.
    ///
    /// # Errors
    /// [`RangeError::Moved`] if one of them is splitting, or they are not adjacent any more.
    pub(super) async fn join(
        &self,
        file: &Arc<File>,
        low: &Arc<Bucket>,
        high: &Arc<Bucket>,
    ) -> Result<Maintained> {
        // The low end of a bucket never changes: all who lock two buckets take the lower one first.
        let _low_runs = low.compaction.lock().await;
        let _high_runs = high.compaction.lock().await;
        let turn = low.blocks.begin_merge().await?;
        let mut low_writer = low.writer.lock().await;
        let mut high_writer = high.writer.lock().await;
        for (bucket, writer) in [(low, &low_writer), (high, &high_writer)] {
            writer.check()?;
            bucket.view().check_current()?;
        }
        let record = split::join(&low_writer.record, &high_writer.record).ok_or(RangeError::Moved)?;
        low.take_over(&mut low_writer, high, &mut high_writer, record).await?;
        file.remove(high.id);
        let joined = low.entry(&self.shared.name);
        file.image().learn(&joined);
        drop((low_writer, high_writer, turn));
        tracing::debug!(file = file.definition.name, low = low.id, high = high.id, "joined two buckets");
        // There may be another neighbour.
        low.look_at_neighbours();
        let (node, file, low) = (self.clone(), file.clone(), low.clone());
        tokio::spawn(async move {
            node.announce(&file, vec![joined], None).await;
            node.maintain(&file, &low);
        });
        Ok(Maintained::Done)
    }

    /// Maintains a bucket again after a pause, which grows. It is random, so that buckets that are in each other's
    /// way do not come at the same time again.
    pub(super) fn maintain_later(&self, file: &Arc<File>, bucket: &Arc<Bucket>) {
        if bucket.awaits_maintenance.swap(true, SeqCst) {
            return;
        }
        let pause = PAUSES[0].saturating_mul(1 << bucket.maintenance_failed().min(16)).min(PAUSES[1]);
        let pause = pause.mul_f64(0.5 + self.random());
        // The node may be closed meanwhile.
        let (node, file, bucket) =
            (Arc::downgrade(&self.shared), Arc::downgrade(file), Arc::downgrade(bucket));
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            if let (Some(shared), Some(file), Some(bucket)) =
                (node.upgrade(), file.upgrade(), bucket.upgrade())
            {
                bucket.awaits_maintenance.store(false, SeqCst);
                bucket.look_at_neighbours();
                Self { shared }.maintain(&file, &bucket);
            }
        });
    }
}
