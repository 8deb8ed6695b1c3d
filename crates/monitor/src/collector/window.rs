//! Which datagrams of a run were received.

/// How many numbers, up to the highest one, are remembered as received or missing.
const WINDOW: u64 = 1024;
const WORDS: usize = (WINDOW / 64) as usize;

/// What the number of a datagram says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is the highest so far.
    Next,
    /// A later one was received before it.
    Reordered,
    /// It was received before.
    Doubled,
    /// It is too old to tell whether it was received before.
    Old,
}

/// A window over the received numbers, as in IPsec (RFC 6479).
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Bit `n % WINDOW` is set if number n was received.
    bits: [u64; WORDS],
    /// The first and the highest number.
    span: Option<(u64, u64)>,
    received: u64,
}

impl Window {
    /// Records the number of a received datagram.
    pub(super) fn accept(&mut self, number: u64) -> Arrival {
        let Some((first, highest)) = self.span else {
            self.span = Some((number, number));
            self.set(number);
            return Arrival::Next;
        };
        if number > highest {
            // The bits in between were those of numbers that are now outside the window.
            if number - highest >= WINDOW {
                self.bits = [0; WORDS];
            } else {
                (highest + 1..number).for_each(|between| self.clear(between));
            }
            self.span = Some((first, number));
            self.set(number);
            return Arrival::Next;
        }
        if highest - number >= WINDOW {
            return Arrival::Old;
        }
        if self.is_set(number) {
            return Arrival::Doubled;
        }
        self.span = Some((first.min(number), highest));
        self.set(number);
        Arrival::Reordered
    }

    /// How many numbers between the first and the highest one were not received.
    pub(super) fn lost(&self) -> u64 {
        let expected = self.span.map_or(0, |(first, highest)| (highest - first).saturating_add(1));
        expected.saturating_sub(self.received)
    }

    fn word(&mut self, number: u64) -> (Option<&mut u64>, u64) {
        let bit = number % WINDOW;
        (self.bits.get_mut((bit / 64) as usize), 1 << (bit % 64))
    }

    fn set(&mut self, number: u64) {
        if let (Some(word), bit) = self.word(number) {
            *word |= bit;
        }
        self.received += 1;
    }

    fn clear(&mut self, number: u64) {
        if let (Some(word), bit) = self.word(number) {
            *word &= !bit;
        }
    }

    fn is_set(&mut self, number: u64) -> bool {
        let (word, bit) = self.word(number);
        word.is_some_and(|word| *word & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_window_agrees_with_a_set_of_all_numbers(numbers in proptest::collection::vec(0..5000_u64, 1..300), from: u32) {
            let (mut window, mut set) = (Window::default(), BTreeSet::new());
            for number in numbers {
                let number = number + u64::from(from);
                let highest = set.last().copied();
                let expected = match highest {
                    Some(highest) if number > highest => Arrival::Next,
                    Some(highest) if highest - number >= WINDOW => Arrival::Old,
                    Some(_) if set.contains(&number) => Arrival::Doubled,
                    Some(_) => Arrival::Reordered,
                    None => Arrival::Next,
                };
                prop_assert_eq!(window.accept(number), expected);
                if expected != Arrival::Old {
                    set.insert(number);
                }
                let (first, last) = (set.first().unwrap(), set.last().unwrap());
                prop_assert_eq!(window.lost(), last - first + 1 - set.len() as u64);
            }
        }
    }

    #[test]
    fn the_smallest_and_largest_numbers_are_accepted() {
        let mut window = Window::default();
        assert_eq!(window.accept(0), Arrival::Next);
        assert_eq!(window.accept(u64::MAX), Arrival::Next);
        assert_eq!(window.accept(0), Arrival::Old);
        assert_eq!(window.accept(u64::MAX - 1), Arrival::Reordered);
        assert_eq!(window.lost(), u64::MAX - 3);
    }
}
