//! Interleaves the items of several inputs as they arrive.

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::task::coop::consume_budget;

/// Delivers items one at a time, then `None`.
pub(crate) trait Input: Send {
    type Item: Send;
    type Error: Send;

    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Item>, Self::Error>> + Send;
}

/// An item, and the input that delivered it, so that it can be put back.
pub(crate) struct Delivered<I: Input> {
    pub(crate) input: I,
    pub(crate) item: Result<Option<I::Item>, I::Error>,
}

/// Polls several inputs at once, and holds at most one item of each.
///
/// Items are delivered in the order in which they became ready. An input that is put back goes to the
/// end of the queue, so every other ready input is served before its next item, however fast it is.
pub(crate) struct Interleave<'a, I: Input>(FuturesUnordered<BoxFuture<'a, Delivered<I>>>);

impl<'a, I: Input + 'a> Interleave<'a, I> {
    pub(crate) fn new(inputs: impl IntoIterator<Item = I>) -> Self {
        let mut this = Self(FuturesUnordered::new());
        inputs.into_iter().for_each(|input| this.put_back(input));
        this
    }

    /// The next item; `None` once no input is left.
    pub(crate) async fn next(&mut self) -> Option<Delivered<I>> {
        // Tokio's sockets and channels return Pending to a task that has used up its budget. Without
        // yielding here, an input that is always ready would keep the others pending forever.
        consume_budget().await;
        self.0.next().await
    }

    /// Adds an input, and starts to wait for its next item.
    pub(crate) fn put_back(&mut self, mut input: I) {
        self.0.push(Box::pin(async move {
            let item = input.next().await;
            Delivered { input, item }
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::sync::mpsc;

    use super::*;

    enum Given {
        /// `left` items, without waiting.
        Ready { name: char, left: usize },
        /// An item for each message.
        Later { name: char, come: mpsc::Receiver<()> },
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
            })
        }
    }

    /// The next item; `None` if its input has ended.
    async fn take(inputs: &mut Interleave<'_, Given>) -> Option<char> {
        let delivered = inputs.next().await.expect("an item");
        let Ok(given) = delivered.item;
        if given.is_some() {
            inputs.put_back(delivered.input);
        }
        given
    }

    async fn take_many(inputs: &mut Interleave<'_, Given>, many: usize) -> Vec<Option<char>> {
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
        let mut inputs = Interleave::new([ready('a', usize::MAX), ready('b', 50), ready('c', usize::MAX)]);
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
        let mut inputs = Interleave::new([
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
            Interleave::new([Given::Ready { name: 'r', left: usize::MAX }, Given::Later { name: 'l', come }]);
        let taken = take_many(&mut inputs, 2000).await;
        assert!(count(&taken, Some('l')) > 900, "{}", count(&taken, Some('l')));
    }

    #[tokio::test]
    async fn no_inputs_deliver_nothing() {
        assert!(Interleave::<Given>::new([]).next().await.is_none());
    }
}
