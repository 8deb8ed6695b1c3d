//! Counts the checked queries and their results.

use std::collections::BTreeMap;

use super::places::Place;
use super::{Check, KNOWN, Verdict};

/// A query whose answers differ.
pub(super) struct Fault {
    /// The seeds of the tables and the query.
    pub(super) seed: (u64, u64),
    pub(super) check: String,
    pub(super) way: &'static str,
    pub(super) query: String,
    pub(super) found: String,
    /// The tables' columns.
    pub(super) about: String,
}

#[derive(Default)]
struct Counts {
    same: u64,
    both_fail: u64,
    one_fails: u64,
    differs: u64,
}

/// Counts of a place.
pub(super) struct Tally {
    place: Place,
    counts: BTreeMap<(&'static str, &'static str), Counts>,
    /// Pairs of tables with values that can't be read.
    pub(super) unreadable: u64,
    pub(super) faults: Vec<Fault>,
    known: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(super) fn new(place: Place) -> Self {
        let (counts, known) = (BTreeMap::new(), BTreeMap::new());
        Self { place, counts, unreadable: 0, faults: Vec::new(), known }
    }

    pub(super) fn count(&mut self, check: Check, way: &'static str, verdict: &Verdict) {
        let check = match check {
            Check::Compare => "compared",
            Check::Partitions => "partitions",
            Check::Counts => "counts",
        };
        let counts = self.counts.entry((check, way)).or_default();
        *match verdict {
            Verdict::Same => &mut counts.same,
            Verdict::BothFail => &mut counts.both_fail,
            Verdict::OneFails => &mut counts.one_fails,
            Verdict::Differs(_) => &mut counts.differs,
        } += 1;
    }

    /// Whether the fault is one of [`KNOWN`], which are only counted.
    pub(super) fn is_known(&mut self, found: &str) -> bool {
        let known = KNOWN.iter().find(|(part, _)| found.contains(part));
        known.is_some_and(|(part, _)| {
            *self.known.entry(part).or_default() += 1;
            true
        })
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        if !self.is_known(&fault.found) {
            eprintln!("{}", self.shown(&fault));
            self.faults.push(fault);
        }
    }

    fn shown(&self, fault: &Fault) -> String {
        let Fault { seed: (tables, query), check, way, query: sql, found, about } = fault;
        format!(
            "{:?}, {way}, {check}, LIGHTSHIP_SEED={tables}/{query}:\n  {sql}\n  {found}\n{about}",
            self.place
        )
    }

    pub(super) fn progress(&self) {
        let done: u64 = self.counts.values().map(|c| c.same + c.both_fail + c.one_fails + c.differs).sum();
        if done.is_multiple_of(100) {
            eprintln!("{:?}: {done} answers compared, {} faults", self.place, self.faults.len());
        }
    }

    /// Prints the counts.
    ///
    /// # Panics
    /// When two answers differed.
    pub(super) fn end(self) {
        for ((check, way), Counts { same, both_fail, one_fails, differs }) in &self.counts {
            eprintln!(
                "{:?}, {check}, {way}: {same} the same, {both_fail} fail in both ways, {one_fails} can't be \
                 computed in one, {differs} differ",
                self.place
            );
        }
        if self.unreadable > 0 {
            eprintln!("{:?}: {} pairs of tables have values that can't be read", self.place, self.unreadable);
        }
        for ((part, why), count) in KNOWN.iter().filter_map(|known| Some((known, self.known.get(known.0)?))) {
            eprintln!("{:?}: {count} known: {part} ({why})", self.place);
        }
        let same: u64 = self.counts.values().map(|counts| counts.same).sum();
        assert!(self.faults.is_empty(), "{} faults, shown above", self.faults.len());
        assert!(same > 0, "no query had the same answer in both ways");
    }
}
