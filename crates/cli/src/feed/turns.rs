//! Taking turns among all who have something to give.

use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use tokio::task::coop::consume_budget;

/// Gives one thing after another, until there is none.
pub(super) trait Supply {
    type Item;
    type Error;

    async fn next(&mut self) -> Result<Option<Self::Item>, Self::Error>;
}

/// What one of them gave, and itself, so that it can be asked again.
pub(super) struct Turn<S: Supply> {
    pub(super) supply: S,
    pub(super) given: Result<Option<S::Item>, S::Error>,
}

/// Supplies that are all waited for at once. Of each one thing at most is waiting here.
///
/// Those that have something come in the order in which they got it, and who has given goes to
/// the end of that queue: however fast one is, all others that are ready come before its next turn.
pub(super) struct Turns<'a, S: Supply>(FuturesUnordered<LocalBoxFuture<'a, Turn<S>>>);

impl<'a, S: Supply + 'a> Turns<'a, S> {
    pub(super) fn new(supplies: impl IntoIterator<Item = S>) -> Self {
        let mut this = Self(FuturesUnordered::new());
        supplies.into_iter().for_each(|supply| this.again(supply));
        this
    }

    /// Whoever is next; nothing once nobody is waited for.
    pub(super) async fn next(&mut self) -> Option<Turn<S>> {
        // Sockets and channels give nothing to a task that has gone on for long. One whose supply is always
        // ready would never pause, and the others would seem to have nothing.
        consume_budget().await;
        self.0.next().await
    }

    /// Waits for the next thing of this one too.
    pub(super) fn again(&mut self, mut supply: S) {
        self.0.push(Box::pin(async move {
            let given = supply.next().await;
            Turn { supply, given }
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::sync::mpsc;

    use super::*;

    enum Given {
        /// So many, at any time.
        Ready { name: char, left: usize },
        /// When it comes.
        Later { name: char, come: mpsc::Receiver<()> },
    }

    impl Supply for Given {
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

    /// The next thing; nothing where the next one was at its end.
    async fn take(turns: &mut Turns<'_, Given>) -> Option<char> {
        let turn = turns.next().await.expect("somebody");
        let Ok(given) = turn.given;
        if given.is_some() {
            turns.again(turn.supply);
        }
        given
    }

    async fn take_many(turns: &mut Turns<'_, Given>, many: usize) -> Vec<Option<char>> {
        let mut taken = Vec::new();
        for _ in 0..many {
            taken.push(take(turns).await);
        }
        taken
    }

    fn count(taken: &[Option<char>], of: Option<char>) -> usize {
        taken.iter().filter(|given| **given == of).count()
    }

    #[tokio::test]
    async fn whoever_has_something_comes_before_the_next_turn_of_another() {
        let ready = |name, left| Given::Ready { name, left };
        let mut turns = Turns::new([ready('a', usize::MAX), ready('b', 50), ready('c', usize::MAX)]);
        for round in 0..50 {
            let mut three = take_many(&mut turns, 3).await;
            three.sort_unstable();
            assert_eq!(three, [Some('a'), Some('b'), Some('c')], "round {round}");
        }
        // One has come to its end, the others go on.
        let rest = take_many(&mut turns, 101).await;
        assert_eq!([Some('a'), Some('c'), None].map(|of| count(&rest, of)), [50, 50, 1]);
    }

    #[tokio::test]
    async fn who_has_nothing_yet_holds_nobody_up_and_is_next_once_it_has() {
        let (send, come) = mpsc::channel(1);
        let mut turns = Turns::new([
            Given::Later { name: 'l', come },
            Given::Ready { name: 'r', left: usize::MAX },
            Given::Ready { name: 's', left: usize::MAX },
        ]);
        for _ in 0..1000 {
            let without = take_many(&mut turns, 100).await;
            assert_eq!([Some('r'), Some('s')].map(|of| count(&without, of)), [50, 50]);
            send.try_send(()).expect("room");
            // Those who were ready before it come first, each once; and once more where the task had to pause.
            let with = take_many(&mut turns, 5).await;
            assert_eq!(count(&with, Some('l')), 1, "{with:?}");
        }
    }

    #[tokio::test]
    async fn who_always_has_something_does_not_starve_who_always_has_something_too() {
        let (send, come) = mpsc::channel(1000);
        (0..1000).for_each(|_| send.try_send(()).expect("room"));
        let mut turns =
            Turns::new([Given::Ready { name: 'r', left: usize::MAX }, Given::Later { name: 'l', come }]);
        let taken = take_many(&mut turns, 2000).await;
        assert!(count(&taken, Some('l')) > 900, "{}", count(&taken, Some('l')));
    }

    #[tokio::test]
    async fn of_nobody_comes_nothing() {
        assert!(Turns::<Given>::new([]).next().await.is_none());
    }
}
