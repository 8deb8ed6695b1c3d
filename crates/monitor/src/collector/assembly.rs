//! Puts the parts of samples together.

use std::collections::VecDeque;

use lightship_usage::Sample;

use crate::datagram::{PARTS_MAX, SamplePart, figures_bytes};

/// The most samples of a host of which parts are awaited.
const OPEN_MAX: usize = 4;
/// How long parts are awaited.
const OPEN_NS_MAX: u64 = 2_000_000_000;

/// A sample, with the parts that were received.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) sample: Sample,
    pub(super) received_ns: u64,
    pub(super) parts_missing: u16,
}

#[derive(Debug)]
struct Open {
    sample: Sample,
    received_ns: u64,
    parts: u16,
    /// A bit for each part that was received.
    come: [u64; (PARTS_MAX as usize).div_ceil(64)],
    bytes: usize,
}

impl Open {
    fn missing(&self) -> u16 {
        let come: u32 = self.come.iter().map(|word| word.count_ones()).sum();
        self.parts.saturating_sub(u16::try_from(come).unwrap_or(u16::MAX))
    }

    fn close(self) -> Assembled {
        let parts_missing = self.missing();
        Assembled { sample: self.sample, received_ns: self.received_ns, parts_missing }
    }
}

/// The samples of one host of which parts are awaited.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    open: VecDeque<Open>,
}

impl Assembly {
    /// Adds a part, and returns the samples that are complete, or no longer awaited. A part that is received later
    /// becomes a sample of its own.
    pub(super) fn add(&mut self, part: SamplePart, now_ns: u64) -> Vec<Assembled> {
        let SamplePart { sample, part, parts } = part;
        let bytes = figures_bytes(&sample.entries);
        let index = match self.open.iter().position(|open| open.sample.number == sample.number) {
            Some(index) => index,
            None => {
                let sample = Sample { entries: Vec::new(), ..sample.clone() };
                let come = [0; _];
                self.open.push_back(Open { sample, received_ns: now_ns, parts, come, bytes: 0 });
                self.open.len() - 1
            }
        };
        let Some(open) = self.open.get_mut(index) else { return Vec::new() };
        let bit = 1_u64 << (part % 64);
        if let Some(word) = open.come.get_mut(usize::from(part / 64))
            && *word & bit == 0
            && open.parts == parts
        {
            *word |= bit;
            open.sample.entries.extend(sample.entries);
            open.bytes += bytes;
        }
        let mut done = Vec::new();
        if open.missing() == 0 {
            // Earlier ones are unlikely to be completed.
            let number = open.sample.number;
            let (earlier, later) = self.open.drain(..).partition(|open| open.sample.number <= number);
            self.open = later;
            done = VecDeque::into(earlier);
            done.sort_by_key(|open: &Open| open.sample.number);
        } else if self.open.len() > OPEN_MAX {
            done.extend(self.open.pop_front());
        }
        done.into_iter().map(Open::close).collect()
    }

    /// The samples whose parts have been awaited for too long at `now_ns`.
    pub(super) fn expire(&mut self, now_ns: u64) -> Vec<Assembled> {
        let old = |open: &Open| now_ns.saturating_sub(open.received_ns) >= OPEN_NS_MAX;
        let (expired, rest) = self.open.drain(..).partition(old);
        self.open = rest;
        VecDeque::into_iter(expired).map(Open::close).collect()
    }

    /// All samples, complete or not.
    pub(super) fn flush(&mut self) -> Vec<Assembled> {
        self.open.drain(..).map(Open::close).collect()
    }

    /// An estimate of the memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.open.iter().map(|open| open.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use lightship_usage::{Entry, Figures, Subject};

    use super::*;

    fn part(number: u64, part: u16, parts: u16) -> SamplePart {
        let entries = vec![Entry { subject: Subject::Disk(part.to_string()), figures: Figures::default() }];
        SamplePart { sample: Sample { host: "h".into(), run: 1, number, at_ns: 5, entries }, part, parts }
    }

    fn summary(done: &[Assembled]) -> Vec<(u64, usize, u16)> {
        done.iter().map(|done| (done.sample.number, done.sample.entries.len(), done.parts_missing)).collect()
    }

    #[test]
    fn parts_in_any_order_make_a_sample() {
        let mut assembly = Assembly::default();
        assert_eq!(summary(&assembly.add(part(1, 0, 1), 0)), [(1, 1, 0)]);
        assert_eq!(summary(&assembly.add(part(2, 2, 3), 0)), []);
        assert_eq!(summary(&assembly.add(part(2, 0, 3), 0)), []);
        assert_eq!(summary(&assembly.add(part(2, 0, 3), 0)), []);
        assert!(assembly.bytes() > 0);
        assert_eq!(summary(&assembly.add(part(2, 1, 3), 0)), [(2, 3, 0)]);
        assert_eq!(assembly.bytes(), 0);
    }

    #[test]
    fn a_sample_with_lost_parts_is_given_up_for_a_later_one_or_with_time() {
        let mut assembly = Assembly::default();
        assembly.add(part(1, 0, 3), 0);
        assert_eq!(summary(&assembly.add(part(2, 0, 1), 1)), [(1, 1, 2), (2, 1, 0)]);
        assembly.add(part(3, 0, 3), 5);
        assert_eq!(summary(&assembly.expire(OPEN_NS_MAX)), []);
        assert_eq!(summary(&assembly.expire(OPEN_NS_MAX + 5)), [(3, 1, 2)]);
        for number in 0..10 {
            assembly.add(part(number, 0, 2), 0);
        }
        assert_eq!(assembly.open.len(), OPEN_MAX);
        assert_eq!(assembly.flush().len(), OPEN_MAX);
    }
}
