//! Which parts a query's answer has.

use std::collections::BTreeSet;

/// Whether a part belongs to the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It does, and is to be received.
    Admitted,
    /// It doesn't, or other parts that were admitted cover it.
    Redundant,
}

/// The caller's knowledge of which parts cover a query: for a range scan, the intervals of its parts; for a gather,
/// the set of its sources.
///
/// The receiver calls [`Coverage::admit`] once for each part, unless it is withdrawn. Parts that were admitted must
/// not overlap: the caller restricts a part that overlaps earlier ones when it is requested, or refuses it.
pub trait Coverage {
    /// Decides about a part that was announced, or whose sender has connected and is accepted.
    fn admit(&mut self, part: u64) -> Admission;

    /// The part will not be received, or not to its end. What is missing of it is a hole from now on.
    fn withdraw(&mut self, part: u64);

    /// Whether the parts that were admitted cover the query.
    fn is_covered(&self) -> bool;

    /// At most `max` holes: numbers for what is missing, under which it can be asked for. Called without a change in
    /// between, it returns the same. A hole may have the number of the part that will fill it, but need not. It may
    /// be empty if the caller does not know whom to ask.
    fn holes(&mut self, max: usize) -> Vec<u64>;
}

/// A fixed set of parts, numbered `0..n`: one for each source of a gather.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    missing: BTreeSet<u64>,
}

impl Sources {
    /// All of `count` sources.
    pub fn new(count: u64) -> Self {
        Self { missing: (0..count).collect() }
    }
}

impl Coverage for Sources {
    fn admit(&mut self, part: u64) -> Admission {
        if self.missing.remove(&part) { Admission::Admitted } else { Admission::Redundant }
    }

    fn withdraw(&mut self, part: u64) {
        self.missing.insert(part);
    }

    fn is_covered(&self) -> bool {
        self.missing.is_empty()
    }

    fn holes(&mut self, max: usize) -> Vec<u64> {
        self.missing.iter().take(max).copied().collect()
    }
}
