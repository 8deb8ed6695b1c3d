//! Reads several inputs at once, within one budget, and delivers their items as they arrive.
//!
//! Which inputs are read, and how many at a time, is decided by the receiver of many senders
//! (`lightship_transport::proto::reception`): each input is a part that it pulls.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use lightship_transport::proto::reception::{
    Action, Announcement, Event, Receiver, ReceptionConfig, ReceptionMode, Sources,
};
use tokio::task::coop::consume_budget;

use crate::{Error, Result};

/// A query may take very long before its first row: the reception itself gives no input up.
const PATIENCE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Delivers items one at a time, then `None`.
pub(crate) trait Input: Send {
    type Item: Send;
    type Error: Send;

    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Item>, Self::Error>> + Send;

    /// Bytes and rows of an item.
    fn size(item: &Self::Item) -> (u64, u64);
}

/// What a [`Gather`] delivers.
pub(crate) enum Gathered<I: Input> {
    Item(I::Item),
    /// An input that has no more items.
    Ended(I),
    Failed(I, I::Error),
}

/// What an input has delivered.
struct Delivered<I: Input> {
    part: u64,
    input: I,
    item: Result<Option<I::Item>, I::Error>,
}

/// An item that the consumer is processing: its memory is not free.
struct Handed<I> {
    part: u64,
    input: I,
    bytes: u64,
}

/// Polls several inputs at once, and holds at most one item of each.
///
/// Items are delivered in the order in which they became ready. An input whose item is consumed goes to the end of
/// the queue, so every other ready input is served before its next item, however fast it is.
pub(crate) struct Gather<'a, I: Input> {
    receiver: Receiver<Sources>,
    /// Inputs that have not begun.
    waiting: HashMap<u64, I>,
    reading: FuturesUnordered<BoxFuture<'a, Delivered<I>>>,
    /// What each input that is being read may still deliver within the budget.
    credit: HashMap<u64, u64>,
    handed: Option<Handed<I>>,
}

impl<'a, I: Input + 'a> Gather<'a, I> {
    /// Reads `at_once` inputs at a time, or all if they are fewer; with more inputs than that, the number follows the
    /// measured throughput, and `at_once` is the most.
    ///
    /// # Errors
    /// If the budget is smaller than a byte for each.
    pub(crate) fn new(inputs: Vec<I>, at_once: usize, budget_bytes: u64) -> Result<Self> {
        let count = inputs.len() as u64;
        let connections_max = u32::try_from(at_once).unwrap_or(u32::MAX).max(1);
        let mode = match inputs.len() <= at_once {
            true => ReceptionMode::Pull { connections: connections_max },
            false => ReceptionMode::Auto,
        };
        let mut config = ReceptionConfig {
            mode,
            connections_max,
            budget_bytes,
            grant_bytes_min: (budget_bytes / u64::from(connections_max)).max(1),
            quiet: PATIENCE,
            stall: PATIENCE,
            patience: PATIENCE,
            ..ReceptionConfig::default()
        };
        config.conditions.parts = count;
        let receiver = Receiver::new(config, Sources::new(count), Instant::now());
        let mut gather = Self {
            receiver: receiver.map_err(|error| Error::usage(error.to_string()))?,
            waiting: (0..).zip(inputs).collect(),
            reading: FuturesUnordered::new(),
            credit: HashMap::new(),
            handed: None,
        };
        for part in 0..count {
            gather.handle(Event::Announced(Announcement { part, bytes: None, rows: None, rank: 0 }));
        }
        Ok(gather)
    }

    /// The next item; `None` once no input is left.
    pub(crate) async fn next(&mut self) -> Option<Gathered<I>> {
        if let Some(Handed { part, input, bytes }) = self.handed.take() {
            self.read(part, input);
            self.handle(Event::Consumed { part, bytes });
        }
        // Tokio's sockets and channels return Pending to a task that has used up its budget. Without
        // yielding here, an input that is always ready would keep the others pending forever.
        consume_budget().await;
        let Delivered { part, input, item } = self.reading.next().await?;
        Some(match item {
            Ok(Some(item)) => {
                let (bytes, rows) = I::size(&item);
                // A single row may be larger than what is granted.
                let credit = self.credit.entry(part).or_default();
                let bytes = bytes.min(*credit);
                *credit -= bytes;
                self.handed = Some(Handed { part, input, bytes });
                self.handle(Event::Received { part, bytes, rows });
                Gathered::Item(item)
            }
            Ok(None) => {
                self.handle(Event::Ended { part });
                Gathered::Ended(input)
            }
            Err(error) => Gathered::Failed(input, error),
        })
    }

    /// Drops all inputs.
    pub(crate) fn cancel(&mut self) {
        self.waiting.clear();
        self.reading.clear();
        self.handed = None;
    }

    /// Waits for the next item of an input.
    fn read(&mut self, part: u64, mut input: I) {
        self.reading.push(Box::pin(async move {
            let item = input.next().await;
            Delivered { part, input, item }
        }));
    }

    /// Passes an event to the receiver, and does what it says.
    fn handle(&mut self, event: Event) {
        self.receiver.handle(event, Instant::now());
        while let Some(action) = self.receiver.next_action() {
            match action {
                Action::Pull { part, grant_bytes, .. } => {
                    *self.credit.entry(part).or_default() += grant_bytes;
                    if let Some(input) = self.waiting.remove(&part) {
                        self.read(part, input);
                    }
                }
                Action::Grant { part, bytes } => *self.credit.entry(part).or_default() += bytes,
                // All inputs are known and pulled once: there is nobody to answer, to ask again or to refuse.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;

    use super::*;

    const ITEM_BYTES: u64 = 100;

    enum Given {
        /// `left` items, without waiting.
        Ready { name: char, left: usize },
        /// An item for each message.
        Later { name: char, come: mpsc::Receiver<()> },
        /// Two items, counting those that have begun and not ended.
        Counted { began: bool, left: usize, open: Arc<AtomicUsize>, open_max: Arc<AtomicUsize> },
    }

    impl Input for Given {
        type Item = char;
        type Error = Infallible;

        async fn next(&mut self) -> Result<Option<char>, Infallible> {
            Ok(match self {
                Self::Ready { left: 0, .. } => None,
                Self::Ready { name, left } => {
                    *left -= 1;
                    Some(*name)
                }
                Self::Later { name, come } => come.recv().await.map(|()| *name),
                Self::Counted { began, left, open, open_max } => {
                    if !*began {
                        *began = true;
                        open_max.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                    tokio::task::yield_now().await;
                    let item = left.checked_sub(1).map(|_| 'x');
                    *left = left.saturating_sub(1);
                    if item.is_none() {
                        open.fetch_sub(1, Ordering::Relaxed);
                    }
                    item
                }
            })
        }

        fn size(_: &char) -> (u64, u64) {
            (ITEM_BYTES, 1)
        }
    }

    fn gather<'a>(inputs: impl IntoIterator<Item = Given>) -> Gather<'a, Given> {
        Gather::new(inputs.into_iter().collect(), 8, 8 * ITEM_BYTES).expect("a budget")
    }

    /// The next item; `None` if an input has ended.
    async fn take(inputs: &mut Gather<'_, Given>) -> Option<char> {
        match inputs.next().await.expect("an item") {
            Gathered::Item(item) => Some(item),
            Gathered::Ended(_) => None,
        }
    }

    async fn take_many(inputs: &mut Gather<'_, Given>, many: usize) -> Vec<Option<char>> {
        let mut taken = Vec::new();
        for _ in 0..many {
            taken.push(take(inputs).await);
        }
        taken
    }

    fn count(taken: &[Option<char>], of: Option<char>) -> usize {
        taken.iter().filter(|given| **given == of).count()
    }

    #[tokio::test]
    async fn a_ready_input_comes_before_the_next_item_of_another() {
        let ready = |name, left| Given::Ready { name, left };
        let mut inputs = gather([ready('a', usize::MAX), ready('b', 50), ready('c', usize::MAX)]);
        for round in 0..50 {
            let mut three = take_many(&mut inputs, 3).await;
            three.sort_unstable();
            assert_eq!(three, [Some('a'), Some('b'), Some('c')], "round {round}");
        }
        // One input has ended; the others continue.
        let rest = take_many(&mut inputs, 101).await;
        assert_eq!([Some('a'), Some('c'), None].map(|of| count(&rest, of)), [50, 50, 1]);
    }

    #[tokio::test]
    async fn a_slow_input_does_not_delay_the_others_and_is_served_once_it_is_ready() {
        let (send, come) = mpsc::channel(1);
        let mut inputs = gather([
            Given::Later { name: 'l', come },
            Given::Ready { name: 'r', left: usize::MAX },
            Given::Ready { name: 's', left: usize::MAX },
        ]);
        for _ in 0..1000 {
            let without = take_many(&mut inputs, 100).await;
            assert_eq!([Some('r'), Some('s')].map(|of| count(&without, of)), [50, 50]);
            send.try_send(()).expect("room");
            // Inputs that were ready earlier come first, once each, and once more if the task had to yield.
            let with = take_many(&mut inputs, 5).await;
            assert_eq!(count(&with, Some('l')), 1, "{with:?}");
        }
    }

    #[tokio::test]
    async fn an_input_that_is_always_ready_does_not_starve_another() {
        let (send, come) = mpsc::channel(1000);
        (0..1000).for_each(|_| send.try_send(()).expect("room"));
        let mut inputs =
            gather([Given::Ready { name: 'r', left: usize::MAX }, Given::Later { name: 'l', come }]);
        let taken = take_many(&mut inputs, 2000).await;
        assert!(count(&taken, Some('l')) > 900, "{}", count(&taken, Some('l')));
    }

    #[tokio::test]
    async fn of_many_inputs_only_some_are_read_at_a_time_and_all_to_their_end() {
        let (open, open_max) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counted =
            |_| Given::Counted { began: false, left: 2, open: open.clone(), open_max: open_max.clone() };
        let mut inputs = gather((0..100).map(counted));
        let (mut items, mut ended) = (0, 0);
        while let Some(next) = inputs.next().await {
            match next {
                Gathered::Item(_) => items += 1,
                Gathered::Ended(_) => ended += 1,
            }
        }
        assert_eq!((items, ended), (200, 100));
        let most = open_max.load(Ordering::Relaxed);
        assert!((1..=8).contains(&most), "{most} at once");
    }

    #[tokio::test]
    async fn no_inputs_deliver_nothing() {
        assert!(gather([]).next().await.is_none());
    }
}
