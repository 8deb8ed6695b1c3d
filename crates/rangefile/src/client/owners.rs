//! Finds out which buckets have which keys: from refusals, and by asking the nodes. One node that does not answer must
//! not hold up what does not need it.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::future::{BoxFuture, Shared, join_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use lightship_wire::control::{ErrorCode, Failure};
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{NODES_MAX, PAUSES, RangeFile, learn};
use crate::error::{RangeError, Result};
use crate::image::{Image, Owner};
use crate::key::Interval;
use crate::locate::{Room, locate, locate_within};
use crate::network::silent;
use crate::request::{Adjustment, BucketEntry};

/// The longest time in which a node has to say which buckets it has, as a part of the client's patience and at most.
const LOOK: (u32, Duration) = (4, Duration::from_secs(2));
/// After so long without an answer of a bucket, its node is asked whether it has it; and after as long again, all nodes are. As
/// a part of the client's patience, and at most.
const SILENCE: (u32, Duration) = (8, Duration::from_secs(1));
/// The most refusals in sequence that are followed without a pause.
pub(super) const CORRECTIONS_MAX: u32 = 64;

/// A question to all nodes, for their buckets. Several may wait for it. It ends when all nodes have answered or their time
/// is over, or nobody waits for it.
pub(super) struct Question {
    began: Instant,
    answers: Arc<Answers>,
    all: Shared<BoxFuture<'static, ()>>,
}

/// What nodes have answered.
#[derive(Default)]
struct Answers {
    image: Mutex<Image>,
    count: watch::Sender<usize>,
}

impl Answers {
    fn cover(&self, interval: &Interval) -> bool {
        let image = self.image.lock().unwrap_or_else(PoisonError::into_inner);
        image.pieces(interval).all(|(_, owner)| owner.is_some())
    }
}

/// The last question.
pub(super) type Asked = Mutex<Weak<Question>>;

impl RangeFile {
    /// Asks all nodes for their buckets. Returns these, and the nodes that did not answer in time, with the reason.
    pub async fn buckets(&self) -> (Vec<BucketEntry>, Vec<(String, RangeError)>) {
        let room = Room::default();
        let asked = self.nodes().into_iter().map(|node| async {
            let found = self.buckets_of(&node, &room, self.shared.options.patience).await;
            (node, found)
        });
        let (mut buckets, mut failed) = (Vec::new(), Vec::new());
        for (node, found) in join_all(asked).await {
            match found {
                Ok(found) => buckets.extend(found),
                Err(error) => failed.push((node, error)),
            }
        }
        if let Err(error) = learn(&mut self.locked_image(), &buckets) {
            failed.push((self.shared.definition.name.clone(), error));
        }
        buckets.sort_by(|a, b| a.range.low.cmp(&b.range.low));
        (buckets, failed)
    }

    /// The buckets of a node.
    async fn buckets_of(&self, node: &str, room: &Room, limit: Duration) -> Result<Vec<BucketEntry>> {
        let name = &self.shared.definition.name;
        let located = timeout(limit, locate(&self.shared.network, node, name, true, room)).await;
        match located.unwrap_or_else(|_| Err(silent(node))) {
            Ok(directory) if directory.file != self.shared.record => Err(RangeError::NoFile(name.clone())),
            Ok(directory) => {
                let mut nodes = self.shared.nodes.lock().unwrap_or_else(PoisonError::into_inner);
                nodes.extend(directory.nodes);
                nodes.sort();
                nodes.dedup();
                nodes.truncate(NODES_MAX);
                Ok(directory.buckets)
            }
            // A node that does not know the file has no bucket of it.
            Err(error) if error.has_no_file() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Asks all nodes for their buckets until those that have answered cover some intervals, or their time is over.
    pub(super) async fn look(&self, intervals: &[Interval]) {
        let question = self.question();
        let mut changes = question.answers.count.subscribe();
        let mut rest = intervals;
        loop {
            while let Some((first, others)) = rest.split_first()
                && question.answers.cover(first)
            {
                rest = others;
            }
            if rest.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                () = question.all.clone() => return,
                _ = changes.changed() => {}
            }
        }
    }

    /// The last question, if it has just begun, or a new one.
    fn question(&self) -> Arc<Question> {
        let mut asked = self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = asked.upgrade().filter(|last| last.began.elapsed() <= PAUSES[0]) {
            return last;
        }
        let answers = Arc::new(Answers::default());
        let all = self.clone().ask_all(answers.clone()).boxed().shared();
        let question = Arc::new(Question { began: Instant::now(), answers, all });
        *asked = Arc::downgrade(&question);
        question
    }

    async fn ask_all(self, answers: Arc<Answers>) {
        let (room, limit) = (Room::default(), self.part_of_patience(LOOK));
        let nodes = self.nodes();
        let (this, room) = (&self, &room);
        let asked = nodes.iter().map(|node| async move { (node, this.buckets_of(node, room, limit).await) });
        let mut asked: FuturesUnordered<_> = asked.collect();
        while let Some((node, found)) = asked.next().await {
            let learned = found.and_then(|buckets| {
                learn(&mut self.locked_image(), &buckets)?;
                learn(&mut answers.image.lock().unwrap_or_else(PoisonError::into_inner), &buckets)
            });
            match learned {
                Ok(()) => answers.count.send_modify(|count| *count += 1),
                // Other nodes may have all that is needed.
                Err(error) => tracing::debug!(node, %error, "a node does not say which buckets it has"),
            }
        }
    }

    fn part_of_patience(&self, (part, most): (u32, Duration)) -> Duration {
        (self.shared.options.patience / part).min(most)
    }

    /// Whether all keys of an interval are those of a bucket, as far as is known.
    pub(super) fn is_owner(&self, interval: &Interval, owner: &Owner) -> bool {
        let image = self.locked_image();
        image.pieces(interval).all(|(_, known)| known.is_some_and(|known| known.bucket == owner.bucket))
    }

    /// Learns what a bucket that has refused an interval knows of its keys. Returns whether they are known to have another
    /// owner now.
    pub(super) fn is_corrected(&self, interval: &Interval, asked: &Owner, failed: &RangeError) -> bool {
        if let RangeError::Remote(Failure { code: ErrorCode::Moved, details: Some(details), .. }) = failed
            && let Ok(adjustment) = Adjustment::decode(&**details)
        {
            self.learn_changed(&adjustment.buckets);
        }
        !self.is_owner(interval, asked)
    }

    /// Looks for the keys of a bucket that does not answer. If its node says that it has the bucket, it is only slow.
    async fn look_beside(&self, interval: &Interval, owner: &Owner) {
        let (name, room) = (&self.shared.definition.name, Room::default());
        let asked = locate_within(&self.shared.network, &owner.node, name, interval, &room);
        let mut known = Image::default();
        if let Ok(Ok(directory)) = timeout(self.part_of_patience(SILENCE), asked).await
            && directory.file == self.shared.record
        {
            let all = learn(&mut known, &directory.buckets)
                .and(learn(&mut self.locked_image(), &directory.buckets));
            if all.is_ok() && known.pieces(interval).all(|(_, owner)| owner.is_some()) {
                return;
            }
        }
        self.look(std::slice::from_ref(interval)).await;
    }

    /// Waits for the answer of a bucket, at most until `deadline`. Meanwhile it asks other nodes whether they have the
    /// bucket's keys. `None` if the keys have another owner by now, or the time is over.
    pub(super) async fn answered<T>(
        &self,
        interval: &Interval,
        owner: &Owner,
        deadline: Option<Instant>,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        let mut request = std::pin::pin!(request);
        let mut silence = self.part_of_patience(SILENCE);
        loop {
            let looks_at = Instant::now() + silence;
            let until = deadline.map_or(looks_at, |deadline| deadline.min(looks_at));
            if let Ok(answer) = timeout_at(until, request.as_mut()).await {
                return Some(answer);
            }
            let looking = async {
                if until == looks_at {
                    let looked = self.look_beside(interval, owner);
                    timeout_at(deadline.unwrap_or(Instant::now() + self.shared.options.patience), looked)
                        .await
                        .ok();
                }
            };
            tokio::select! {
                biased;
                answer = request.as_mut() => return Some(answer),
                () = looking => {}
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) || !self.is_owner(interval, owner)
            {
                return None;
            }
            silence *= 2;
        }
    }
}

/// Repeats a request, with growing pauses, until the client's patience ends.
pub(super) struct Retry<'a> {
    file: &'a RangeFile,
    deadline: Instant,
    pause: Duration,
    /// Refusals in sequence that said where the keys are.
    corrections: u32,
}

impl<'a> Retry<'a> {
    pub(super) fn new(file: &'a RangeFile) -> Self {
        let deadline = Instant::now() + file.shared.options.patience;
        Self { file, deadline, pause: Duration::ZERO, corrections: 0 }
    }

    /// When the client's patience ends.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Learns where the keys of an interval are now: from the bucket that has refused them, or from all nodes, after a pause
    /// if that was done before.
    ///
    /// # Errors
    /// [`RangeError::Missing`] if the client's patience has ended.
    pub(super) async fn again(
        &mut self,
        interval: &Interval,
        asked: Option<&Owner>,
        failed: &RangeError,
    ) -> Result<()> {
        if Instant::now() + self.pause >= self.deadline {
            return Err(self.file.missing(interval, failed));
        }
        if self.corrections < CORRECTIONS_MAX
            && asked.is_some_and(|asked| self.file.is_corrected(interval, asked, failed))
        {
            self.corrections += 1;
            return Ok(());
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).clamp(PAUSES[0], PAUSES[1]);
        let looked = self.file.look(std::slice::from_ref(interval));
        // Without an answer, the request itself shows what is missing.
        let _ = timeout_at(self.deadline, looked).await;
        Ok(())
    }

    /// Restarts the client's patience, after progress.
    pub(super) fn progress(&mut self) {
        *self = Self::new(self.file);
    }
}
