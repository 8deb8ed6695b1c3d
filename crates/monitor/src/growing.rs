//! Sums of counters that appear and disappear.

use std::collections::HashMap;
use std::hash::Hash;

/// The sum of many counters, which does not fall when one of them disappears or restarts: its last value stays in the
/// sum. What a counter counts between its last reading and its end is lost.
#[derive(Debug)]
pub(crate) struct GrowingSum<K, const N: usize> {
    total: [u64; N],
    last: HashMap<K, ([u64; N], u64)>,
    round: u64,
}

impl<K, const N: usize> Default for GrowingSum<K, N> {
    fn default() -> Self {
        Self { total: [0; N], last: HashMap::new(), round: 0 }
    }
}

impl<K: Eq + Hash, const N: usize> GrowingSum<K, N> {
    /// Adds what `key` counted since its last reading: all of it, if it is new or has fallen.
    pub(crate) fn add(&mut self, key: K, values: [u64; N]) {
        let round = self.round;
        let (last, seen) = self.last.entry(key).or_insert(([0; N], round));
        *seen = round;
        // A counter that fell is another one with the same key.
        if last.iter().zip(&values).any(|(last, value)| value < last) {
            *last = [0; N];
        }
        for ((total, last), value) in self.total.iter_mut().zip(last).zip(values) {
            *total = total.saturating_add(value - *last);
            *last = value;
        }
    }

    /// The last reading of `key`, which counts as read in this round.
    pub(crate) fn keep(&mut self, key: &K) -> Option<[u64; N]> {
        let (last, seen) = self.last.get_mut(key)?;
        *seen = self.round;
        Some(*last)
    }

    /// Ends a round of readings: forgets the counters that had none, and returns the sums.
    pub(crate) fn finish(&mut self) -> [u64; N] {
        let round = self.round;
        self.last.retain(|_, (_, seen)| *seen == round);
        self.round += 1;
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_keeps_what_vanished_counters_had() {
        let mut sum = GrowingSum::default();
        sum.add("a", [10]);
        sum.add("b", [5]);
        assert_eq!(sum.finish(), [15]);
        sum.add("b", [6]);
        assert_eq!(sum.finish(), [16]);
        sum.add("a", [3]);
        sum.add("b", [6]);
        assert_eq!(sum.finish(), [19], "a counter that comes back is another one");
        sum.add("b", [2]);
        assert_eq!(sum.finish(), [21], "a counter that falls is another one");
        sum.add("b", [2]);
        assert_eq!(sum.keep(&"a"), None);
        assert_eq!(sum.finish(), [21]);
    }
}
