//! Which node gets a new bucket: of those with room for it, the one with the fewest bytes of the file.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lightship_wire::control::{ErrorCode, Failure};
use tokio::time::{Instant, timeout};

use super::{File, Node};
use crate::error::{RangeError, Result};
use crate::locate::{Room, locate};
use crate::request::BucketEntry;
use crate::store::has_room;

/// How long another node may take to say which buckets it has.
const ASK_MAX: Duration = Duration::from_secs(10);
/// How long a node that failed gets no buckets: first, and at most. It grows with each failure in sequence.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];

/// Other nodes that could not take over a bucket, until they may be asked again. Of members of the cluster only.
#[derive(Default)]
pub(super) struct Failures(Mutex<BTreeMap<String, (Instant, Duration)>>);

impl Failures {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (Instant, Duration)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node has failed.
    pub(super) fn note(&self, node: &str) {
        let mut failures = self.lock();
        let now = Instant::now();
        let pause = match failures.get(node) {
            // Attempts that began before the first one failed are the same failure.
            Some((until, pause)) if *until > now => *pause,
            Some((_, pause)) => (*pause * 2).min(PAUSES[1]),
            None => PAUSES[0],
        };
        failures.insert(node.to_owned(), (now + pause, pause));
    }

    /// A node has not failed.
    pub(super) fn forget(&self, node: &str) {
        self.lock().remove(node);
    }

    /// The members of the cluster that did not fail lately. Others than members are forgotten.
    fn able(&self, mut members: Vec<String>) -> Vec<String> {
        let mut failures = self.lock();
        failures.retain(|node, _| members.contains(node));
        let now = Instant::now();
        members.retain(|node| failures.get(node).is_none_or(|(until, _)| *until <= now));
        members
    }
}

/// A node that may get a bucket.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    node: String,
    has_room: bool,
    /// Of the file.
    bytes: u64,
}

impl Candidate {
    fn new(node: String, free: Option<u64>, buckets: &[BucketEntry], needed: u64) -> Self {
        let bytes = buckets.iter().filter_map(|bucket| bucket.bytes).sum();
        Self { node, has_room: has_room(free, needed), bytes }
    }
}

/// The first one of the best.
fn choose(candidates: impl IntoIterator<Item = Candidate>) -> Option<String> {
    let best = candidates.into_iter().min_by_key(|candidate| (!candidate.has_room, candidate.bytes));
    best.map(|candidate| candidate.node)
}

impl Node {
    /// The node for a new bucket with this many bytes. It is this one if others have no room, or failed lately.
    pub(super) async fn target(&self, file: &Arc<File>, bytes: u64) -> String {
        let name = &file.definition.name;
        let own = file.entries(&self.shared.name);
        let free = self.shared.blocks.store().free_bytes().await;
        let own = Candidate::new(self.shared.name.clone(), free, &own, bytes);
        let mut nodes = self.shared.failures.able(self.others());
        nodes.sort();
        let asked = nodes.into_iter().map(|node| async move {
            let room = Room::default();
            let asked = locate(&self.shared.network, &node, name, true, &room);
            match timeout(ASK_MAX, asked).await {
                Ok(Ok(directory)) if directory.file == file.record => {
                    directory.buckets.iter().for_each(|entry| self.learn(file, entry));
                    Some(Candidate::new(node, directory.free_bytes, &directory.buckets, bytes))
                }
                // It learns of the file with the new bucket.
                Ok(Err(RangeError::Remote(failure))) if failure.code == ErrorCode::Sql => {
                    Some(Candidate::new(node, None, &[], bytes))
                }
                // It has no range files, or they are others.
                Ok(Ok(_) | Err(RangeError::Remote(Failure { code: ErrorCode::Forbidden, .. }))) => None,
                _ => {
                    self.shared.failures.note(&node);
                    None
                }
            }
        });
        let others = futures::future::join_all(asked).await.into_iter().flatten();
        choose([own].into_iter().chain(others)).unwrap_or_else(|| self.shared.name.clone())
    }

    /// Fails if the disk of this node has no room for a bucket that comes from another node.
    pub(super) async fn check_room(&self, from: &str, bytes: u64) -> Result<()> {
        // What stays on this node needs no more room than before, soon.
        if from == self.shared.name || has_room(self.shared.blocks.store().free_bytes().await, bytes) {
            return Ok(());
        }
        let why = format!("the disk of node {} has no room for another bucket", self.shared.name);
        Err(Failure::new(ErrorCode::Limit, why).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(node: &str, has_room: bool, bytes: u64) -> Candidate {
        Candidate { node: node.into(), has_room, bytes }
    }

    #[test]
    fn of_the_nodes_with_room_the_one_with_the_fewest_bytes_is_chosen() {
        let own = || candidate("own", true, 10);
        let chosen = |others: Vec<Candidate>| choose([own()].into_iter().chain(others)).unwrap();
        assert_eq!(chosen(vec![]), "own");
        assert_eq!(chosen(vec![candidate("a", true, 10)]), "own");
        assert_eq!(chosen(vec![candidate("a", true, 9), candidate("b", true, 8)]), "b");
        assert_eq!(chosen(vec![candidate("a", true, 9), candidate("b", false, 0)]), "a");
        assert_eq!(chosen(vec![candidate("b", false, 0)]), "own");
        assert_eq!(choose([candidate("own", false, 9), candidate("b", false, 0)]).unwrap(), "b");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_failed_is_left_out_for_a_while() {
        let failures = Failures::default();
        let able = || failures.able(vec!["a".into(), "b".into()]);
        failures.note("a");
        failures.note("a");
        assert_eq!(able(), ["b"]);
        tokio::time::advance(PAUSES[0]).await;
        assert_eq!(able(), ["a", "b"]);
        // It is asked again, and fails again.
        failures.note("a");
        tokio::time::advance(PAUSES[0]).await;
        assert_eq!(able(), ["b"]);
        tokio::time::advance(PAUSES[0]).await;
        assert_eq!(able(), ["a", "b"]);
        failures.note("a");
        failures.forget("a");
        assert_eq!(able(), ["a", "b"]);
        failures.note("gone");
        able();
        assert_eq!(failures.lock().len(), 0);
    }
}
