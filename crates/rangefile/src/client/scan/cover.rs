//! Which parts cover the intervals of a scan, and what is missing of each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use lightship_transport::proto::reception::{Admission, Announcement};

use crate::client::PAUSES;
use crate::client::owners::CORRECTIONS_MAX;
use crate::error::RangeError;
use crate::image::{Image, Owner, Piece};
use crate::key::{Interval, Key};
use crate::network::silent;

/// The parts of a scan that have not ended. Those that were not admitted are holes.
#[derive(Debug, Default)]
pub(super) struct Cover {
    parts: BTreeMap<u64, Part>,
    /// By rank and number.
    holes: BTreeSet<(u64, u64)>,
    next: u64,
}

/// A part: the keys of one bucket, as far as is known.
#[derive(Debug)]
pub(super) struct Part {
    /// What is missing.
    pub(super) interval: Interval,
    pub(super) owner: Option<Owner>,
    /// What is missing of its rows, if they are here already. Nobody is asked for them.
    pub(super) ready: Option<RecordBatch>,
    /// Most rows that are missing.
    pub(super) limit: Option<u64>,
    /// Ranks have the order of keys. A part that is divided divides its ranks: from `rank`, `ranks` of them.
    rank: u64,
    ranks: u64,
    is_admitted: bool,
    /// Its owner was asked, and no rows have arrived since.
    was_asked: bool,
    stuck: Option<Stuck>,
    /// Refusals since the last rows that said where the keys are.
    corrections: u32,
    /// The image has changed since its owner refused it: it need not be looked up.
    is_corrected: bool,
    /// The last failure.
    failed: Option<RangeError>,
}

/// A part moves from node to node.
#[derive(Debug, Clone, Copy)]
struct Stuck {
    since: Instant,
    pause: Duration,
}

/// What is found for a part that was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The parts that it is now; several if it was divided.
    Parts(Vec<u64>),
    /// Its owner has changed since it was admitted.
    Moved,
    /// It is divided more often than there are ranks for.
    Scattered,
}

impl Cover {
    /// The parts of a scan with at most `limit` rows. The pieces are in order; the rows of some are here already.
    pub(super) fn new(pieces: Vec<(Piece, Option<RecordBatch>)>, limit: Option<u64>) -> Self {
        let mut cover = Self::default();
        let ranks = u64::MAX / (pieces.len() as u64).max(1);
        for (((interval, owner), ready), index) in pieces.into_iter().zip(0..) {
            let rank = index * ranks;
            let part = Part {
                interval,
                owner,
                ready,
                limit,
                rank,
                ranks,
                is_admitted: false,
                was_asked: false,
                stuck: None,
                corrections: 0,
                is_corrected: false,
                failed: None,
            };
            cover.insert(part);
        }
        cover
    }

    /// Adds a part that is a hole. Returns its number.
    fn insert(&mut self, part: Part) -> u64 {
        let number = self.next;
        self.next += 1;
        self.holes.insert((part.rank, number));
        self.parts.insert(number, part);
        number
    }

    pub(super) fn get(&self, part: u64) -> Option<&Part> {
        self.parts.get(&part)
    }

    pub(super) fn admit(&mut self, part: u64) -> Admission {
        match self.parts.get_mut(&part).filter(|part| !part.is_admitted) {
            Some(known) => {
                known.is_admitted = true;
                self.holes.remove(&(known.rank, part));
                Admission::Admitted
            }
            None => Admission::Redundant,
        }
    }

    pub(super) fn withdraw(&mut self, part: u64) {
        let Some(known) = self.parts.get_mut(&part) else { return };
        known.is_admitted = false;
        if known.is_complete() {
            self.parts.remove(&part);
        } else {
            self.holes.insert((known.rank, part));
        }
    }

    /// The numbers of the holes, in the order of keys.
    pub(super) fn holes(&self) -> impl Iterator<Item = u64> {
        self.holes.iter().map(|(_, part)| *part)
    }

    pub(super) fn first_hole(&self) -> Option<u64> {
        self.holes.first().map(|(rank, _)| *rank)
    }

    /// Rows of a part have arrived: its next ones have keys from `low` on.
    pub(super) fn arrived(&mut self, part: u64, low: Key, rows: u64) {
        let Some(part) = self.parts.get_mut(&part) else { return };
        part.interval.low = low;
        part.limit = part.limit.map(|limit| limit.saturating_sub(rows));
        if let Some(ready) = &mut part.ready {
            let arrived = usize::try_from(rows).unwrap_or(usize::MAX).min(ready.num_rows());
            *ready = ready.slice(arrived, ready.num_rows() - arrived);
        }
        (part.was_asked, part.stuck, part.corrections, part.failed) = (false, None, 0, None);
    }

    pub(super) fn ended(&mut self, part: u64) {
        self.parts.remove(&part);
    }

    /// Notes that a part failed.
    pub(super) fn failed(&mut self, part: u64, error: RangeError) {
        if let Some(part) = self.parts.get_mut(&part) {
            part.failed = Some(error);
        }
    }

    /// Notes that the owner of a part has refused it. Returns whether that goes on for longer than `patience`.
    pub(super) fn is_lost(&mut self, part: u64, patience: Duration, now: Instant) -> bool {
        let Some(part) = self.parts.get_mut(&part) else { return false };
        let stuck = part.stuck.map_or(Stuck { since: now, pause: Duration::ZERO }, |stuck| Stuck {
            pause: (stuck.pause * 2).clamp(PAUSES[0], PAUSES[1]),
            ..stuck
        });
        part.stuck = Some(stuck);
        now.saturating_duration_since(stuck.since) + stuck.pause >= patience
    }

    /// Notes that the owner of a part has refused it, and that the image is corrected. Returns whether that is followed at
    /// once: not if it goes on and on.
    pub(super) fn corrected(&mut self, part: u64) -> bool {
        let Some(part) = self.parts.get_mut(&part).filter(|part| part.corrections < CORRECTIONS_MAX) else {
            return false;
        };
        part.corrections += 1;
        part.is_corrected = true;
        true
    }

    /// How long to wait before a part is asked for.
    pub(super) fn pause(&self, part: u64) -> Duration {
        self.parts.get(&part).and_then(|part| part.stuck).map_or(Duration::ZERO, |stuck| stuck.pause)
    }

    /// Notes that a part's owner is asked. Returns whether it should be looked up first: it is unknown, has refused
    /// the part, or was asked before without an answer.
    pub(super) fn ask(&mut self, part: u64) -> bool {
        let Some(part) = self.parts.get_mut(&part) else { return true };
        if part.ready.is_some() {
            return false;
        }
        let was_asked = std::mem::replace(&mut part.was_asked, true);
        if std::mem::take(&mut part.is_corrected) {
            return false;
        }
        was_asked || part.owner.is_none() || part.stuck.is_some() || part.failed.is_some()
    }

    /// Looks a part up in the image. A hole is divided if it belongs to several buckets; its first part keeps the
    /// number.
    pub(super) fn resolve(&mut self, number: u64, image: &Image) -> Found {
        let Some(part) = self.parts.get_mut(&number) else { return Found::Parts(Vec::new()) };
        if part.ready.is_some() {
            return Found::Parts(vec![number]);
        }
        let pieces = image.route(&part.interval);
        if part.is_admitted {
            let bucket = part.owner.as_ref().map(|owner| owner.bucket);
            return match pieces.as_slice() {
                [] => Found::Parts(vec![number]),
                [(_, Some(owner))] if Some(owner.bucket) == bucket => {
                    part.owner = Some(owner.clone());
                    Found::Parts(vec![number])
                }
                _ => Found::Moved,
            };
        }
        let ranks = part.ranks / (pieces.len() as u64).max(1);
        if ranks == 0 {
            return Found::Scattered;
        }
        let (rank, limit, stuck, corrections) = (part.rank, part.limit, part.stuck, part.corrections);
        let mut pieces = pieces.into_iter();
        let Some((interval, owner)) = pieces.next() else { return Found::Parts(vec![number]) };
        (part.interval, part.owner, part.ranks) = (interval, owner, ranks);
        let mut numbers = vec![number];
        for ((interval, owner), index) in pieces.zip(1..) {
            let rank = rank + index * ranks;
            let part = Part {
                interval,
                owner,
                ready: None,
                limit,
                rank,
                ranks,
                is_admitted: false,
                was_asked: false,
                stuck,
                corrections,
                is_corrected: false,
                failed: None,
            };
            numbers.push(self.insert(part));
        }
        Found::Parts(numbers)
    }

    /// The announcements of those parts whose owners are known.
    pub(super) fn announcements(&self, parts: &[u64]) -> Vec<Announcement> {
        let announcement = |&number: &u64| {
            let part = self.parts.get(&number)?;
            let owner = part.owner.as_ref()?;
            let (rows, bytes) = (owner.records, owner.bytes);
            Some(Announcement { part: number, bytes, rows, rank: part.rank })
        };
        parts.iter().filter_map(announcement).collect()
    }

    /// What is missing of one of the parts or, if none of them is known, of the first hole; with the last failure.
    pub(super) fn missing(&mut self, parts: &[u64]) -> (Interval, RangeError) {
        let known = parts.iter().copied().find(|part| self.parts.contains_key(part));
        let part = known.or_else(|| self.holes().next()).and_then(|part| self.parts.get_mut(&part));
        match part {
            Some(part) => (part.interval.clone(), part.failed.take().unwrap_or_else(|| part.silence())),
            None => (Interval::ALL, RangeError::Moved),
        }
    }
}

impl Part {
    /// Whether nothing is missing.
    pub(super) fn is_complete(&self) -> bool {
        self.interval.is_empty() || self.limit == Some(0)
    }

    /// Why it is missing, if nothing has failed.
    fn silence(&self) -> RangeError {
        match &self.owner {
            Some(owner) if self.stuck.is_none() => silent(&owner.node),
            _ => RangeError::Moved,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::request::BucketEntry;

    fn image(bounds: &[(u8, u64)]) -> Image {
        let mut image = Image::default();
        for (index, &(low, bucket)) in bounds.iter().enumerate() {
            let high = bounds.get(index + 1).map(|(high, _)| vec![*high]);
            let range = Interval::new(if low == 0 { Vec::new() } else { vec![low] }, high);
            image.learn(&BucketEntry {
                bucket,
                epoch: bounds.len() as u64,
                range: (&range).into(),
                node: format!("n{bucket}"),
                ..BucketEntry::default()
            });
        }
        image
    }

    fn cover(pieces: Vec<Piece>) -> Cover {
        Cover::new(pieces.into_iter().map(|piece| (piece, None)).collect(), None)
    }

    fn in_order(cover: &Cover) -> Vec<Key> {
        let mut parts: Vec<_> =
            cover.parts.values().map(|part| (part.rank, part.interval.low.clone())).collect();
        parts.sort();
        parts.into_iter().map(|(_, low)| low).collect()
    }

    #[test]
    fn a_part_that_is_divided_keeps_the_order() {
        let mut known = image(&[(0, 1), (5, 2)]);
        let mut cover = cover(known.route(&Interval::ALL));
        let parts: Vec<u64> = cover.holes().collect();
        parts.iter().for_each(|&part| assert_eq!(cover.admit(part), Admission::Admitted));
        assert_eq!(cover.first_hole(), None);
        // Rows up to 2 have arrived when the first bucket has split, twice.
        cover.arrived(parts[0], vec![2], 10);
        known = image(&[(0, 1), (3, 3), (4, 4), (5, 2)]);
        assert_eq!(cover.resolve(parts[0], &known), Found::Moved);
        cover.withdraw(parts[0]);
        assert_eq!(cover.resolve(parts[0], &known), Found::Parts(vec![parts[0], 2, 3]));
        assert_eq!(in_order(&cover), [vec![2], vec![3], vec![4], vec![5]]);
        assert_eq!(cover.holes().collect::<Vec<_>>(), [parts[0], 2, 3]);
        assert!(cover.first_hole() < cover.get(parts[1]).map(|part| part.rank));
    }

    #[test]
    fn a_part_that_has_arrived_is_no_hole() {
        let known = image(&[(0, 1)]);
        let mut cover = cover(known.route(&Interval::new(vec![1], Some(vec![2]))));
        assert_eq!(cover.admit(0), Admission::Admitted);
        cover.arrived(0, vec![2], 1);
        cover.withdraw(0);
        assert_eq!((cover.first_hole(), cover.parts.len()), (None, 0));
    }

    #[test]
    fn rows_that_are_here_are_asked_of_nobody() {
        let known = image(&[(0, 1), (5, 2)]);
        let ids = arrow_array::Int64Array::from(vec![1, 2, 3]);
        let rows = RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap();
        let pieces = known.route(&Interval::ALL);
        let mut cover =
            Cover::new(pieces.into_iter().map(|piece| (piece, Some(rows.clone()))).collect(), None);
        let part = cover.holes().next().unwrap();
        assert!(!cover.ask(part) && !cover.ask(part));
        assert_eq!(cover.resolve(part, &image(&[(0, 1), (3, 3)])), Found::Parts(vec![part]));
        assert_eq!(cover.admit(part), Admission::Admitted);
        // Only what is missing, if the reading is interrupted.
        cover.arrived(part, vec![3], 2);
        assert_eq!(cover.get(part).unwrap().ready, Some(rows.slice(2, 1)));
    }

    #[test]
    fn one_that_moves_for_too_long_is_lost() {
        let known = image(&[(0, 1)]);
        let mut cover = cover(known.route(&Interval::ALL));
        let (now, patience) = (Instant::now(), Duration::from_secs(1));
        assert!(!cover.is_lost(0, patience, now));
        assert_eq!(cover.pause(0), Duration::ZERO);
        assert!(!cover.is_lost(0, patience, now));
        assert_eq!(cover.pause(0), PAUSES[0]);
        assert!(cover.is_lost(0, patience, now + patience));
        cover.arrived(0, vec![1], 1);
        assert!(!cover.is_lost(0, patience, now + patience));
    }
}
