//! What somebody knows of where the keys of a file are: which bucket has which interval. It may be out of date; the
//! buckets themselves know, and refuse what is not theirs.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::key::{Interval, Key, ends_before};
use crate::request::BucketEntry;

/// The most bytes that an image takes, about: room for a million buckets with short keys.
pub(crate) const IMAGE_BYTES_MAX: usize = 256 << 20;
/// About the bytes of an interval besides its keys and names.
const INTERVAL_BYTES: usize = 192;

/// The owner of an interval, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The bucket.
    pub bucket: u64,
    /// Its node.
    pub node: String,
    /// Of two owners of a key, the one with the greater epoch is the later one.
    pub epoch: u64,
    /// The low end of the interval as text.
    pub low_text: String,
    /// About the number of the bucket's records, if the bucket itself has told it.
    pub records: Option<u64>,
    /// About its bytes of Arrow data, if the bucket itself has told it.
    pub bytes: Option<u64>,
}

impl Owner {
    /// As others are told of it. What its bucket holds is its own to tell.
    pub(crate) fn entry(&self, interval: Interval) -> BucketEntry {
        BucketEntry {
            bucket: self.bucket,
            node: self.node.clone(),
            range: (&interval).into(),
            epoch: self.epoch,
            records: None,
            bytes: None,
            low_text: self.low_text.clone(),
            load: None,
        }
    }
}

/// Which bucket has which interval.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// By the low end of the interval, with its high end.
    owners: BTreeMap<Key, (Option<Key>, Owner)>,
    /// About the bytes of all.
    bytes: usize,
}

/// A part of an interval, with its owner if that is known.
pub type Piece = (Interval, Option<Owner>);

impl Image {
    /// Learns of a bucket. What is known of later owners of its keys stays. Returns whether there is room for it.
    pub fn learn(&mut self, entry: &BucketEntry) -> bool {
        self.learn_within(entry, IMAGE_BYTES_MAX)
    }

    fn learn_within(&mut self, entry: &BucketEntry, bytes_max: usize) -> bool {
        let range: Interval = entry.range.clone().into();
        if range.is_empty() {
            return true;
        }
        let owner = Owner {
            bucket: entry.bucket,
            node: entry.node.clone(),
            epoch: entry.epoch,
            low_text: entry.low_text.clone(),
            records: entry.records,
            bytes: entry.bytes,
        };
        for (piece, known) in self.route(&range) {
            if known.as_ref().is_none_or(|known| known.epoch <= owner.epoch) {
                // What is known of other keys of the same bucket may become two intervals.
                let divided =
                    known.as_ref().map_or(0, |known| bytes_of(&piece.low, piece.high.as_ref(), known));
                let added = bytes_of(&piece.low, piece.high.as_ref(), &owner);
                if self.bytes.saturating_add(added + divided) > bytes_max {
                    self.join(&range);
                    return false;
                }
                self.cut(&piece);
                let mut owner = owner.clone();
                // Other nodes know the bucket, but not its size.
                if let Some(known) = known.filter(|known| known.bucket == owner.bucket) {
                    owner.records = owner.records.or(known.records);
                    owner.bytes = owner.bytes.or(known.bytes);
                }
                self.put(piece.low, piece.high, owner);
            }
        }
        self.join(&range);
        true
    }

    fn put(&mut self, low: Key, high: Option<Key>, owner: Owner) {
        self.bytes += bytes_of(&low, high.as_ref(), &owner);
        self.remove(&low);
        self.owners.insert(low, (high, owner));
    }

    fn remove(&mut self, low: &Key) {
        if let Some((high, owner)) = self.owners.remove(low) {
            self.bytes -= bytes_of(low, high.as_ref(), &owner);
        }
    }

    /// The parts of an interval, in order, with their owners.
    pub fn route(&self, interval: &Interval) -> Vec<Piece> {
        self.pieces(interval).collect()
    }

    /// The same, one after another.
    pub(crate) fn pieces<'a>(&'a self, interval: &'a Interval) -> impl Iterator<Item = Piece> + 'a {
        let mut rest = Some(interval.clone());
        std::iter::from_fn(move || {
            let whole = rest.take().filter(|rest| !rest.is_empty())?;
            let (high, owner) = match self.at(&whole.low) {
                Some((high, owner)) => (high.as_ref(), Some(owner.clone())),
                None => {
                    let later = (Bound::Excluded(whole.low.as_slice()), Bound::Unbounded);
                    (self.owners.range::<[u8], _>(later).next().map(|(low, _)| low), None)
                }
            };
            let Some(high) = high.filter(|high| ends_before(Some(high.as_slice()), whole.high.as_deref()))
            else {
                return Some((whole, owner));
            };
            rest = Some(Interval::new(high.clone(), whole.high));
            Some((Interval::new(whole.low, Some(high.clone())), owner))
        })
    }

    /// The intervals with owners, in order.
    pub fn owners(&self) -> impl Iterator<Item = (Interval, &Owner)> {
        self.owners.iter().map(|(low, (high, owner))| (Interval::new(low.clone(), high.clone()), owner))
    }

    /// The owner of a key.
    pub(crate) fn owner(&self, key: &[u8]) -> Option<&Owner> {
        self.at(key).map(|(_, owner)| owner)
    }

    /// What is known of an interval, in order.
    pub(crate) fn within<'a>(
        &'a self,
        interval: &'a Interval,
    ) -> impl Iterator<Item = (Interval, &'a Owner)> + 'a {
        let upto = (Bound::Unbounded, Bound::Included(interval.low.as_slice()));
        let after = (Bound::Excluded(interval.low.as_slice()), Bound::Unbounded);
        let before = self.owners.range::<[u8], _>(upto).next_back();
        let found = before.into_iter().chain(self.owners.range::<[u8], _>(after));
        let found = found.map(|(low, (high, owner))| (Interval::new(low.clone(), high.clone()), owner));
        let is_later = |low: &Key| interval.high.as_ref().is_some_and(|high| low >= high);
        found.take_while(move |(known, _)| !is_later(&known.low)).filter(|(known, _)| known.meets(interval))
    }

    /// The owner of the last interval that begins before a key.
    pub(crate) fn owner_before(&self, key: &[u8]) -> Option<&Owner> {
        let before = self.owners.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).next_back()?;
        Some(&before.1.1)
    }

    /// The end and the owner of the interval that a key is in.
    fn at(&self, key: &[u8]) -> Option<&(Option<Key>, Owner)> {
        let (_, found) =
            self.owners.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
        found.0.as_deref().is_none_or(|high| key < high).then_some(found)
    }

    /// Removes an interval.
    fn cut(&mut self, interval: &Interval) {
        for (piece, owner) in self.route(interval) {
            let Some(owner) = owner else { continue };
            // The interval that the piece is a part of.
            let Some((low, (high, _))) = self
                .owners
                .range::<[u8], _>((Bound::Unbounded, Bound::Included(piece.low.as_slice())))
                .next_back()
                .map(|(low, found)| (low.clone(), found.clone()))
            else {
                continue;
            };
            self.remove(&low);
            if low < piece.low {
                self.put(low, Some(piece.low.clone()), owner.clone());
            }
            if ends_before(piece.high.as_deref(), high.as_deref())
                && let Some(start) = piece.high
            {
                self.put(start, high, owner);
            }
        }
    }

    /// Joins adjacent intervals of one bucket, within and at the ends of an interval.
    fn join(&mut self, interval: &Interval) {
        let start = self
            .owners
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(interval.low.as_slice())))
            .next_back()
            .map_or_else(|| interval.low.clone(), |(low, _)| low.clone());
        let mut low = start;
        while let Some((high, owner)) = self.owners.get(&low).cloned() {
            let Some(high) = high else { break };
            if ends_before(interval.high.as_deref(), Some(&high)) {
                break;
            }
            match self.owners.get(&high) {
                Some((end, next)) if next.bucket == owner.bucket && next.epoch == owner.epoch => {
                    let end = end.clone();
                    self.remove(&high);
                    self.put(low.clone(), end, owner);
                }
                Some(_) => low = high,
                // Nothing is known between the one before and the interval.
                None if low < interval.low => low = interval.low.clone(),
                None => break,
            }
        }
    }
}

/// About the bytes of an interval with its owner.
fn bytes_of(low: &Key, high: Option<&Key>, owner: &Owner) -> usize {
    let keys = low.len() + high.map_or(0, Vec::len);
    INTERVAL_BYTES + keys + owner.node.len() + owner.low_text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(low: u8, high: Option<u8>, bucket: u64, epoch: u64) -> BucketEntry {
        let range = Interval::new(if low == 0 { Vec::new() } else { vec![low] }, high.map(|high| vec![high]));
        BucketEntry {
            bucket,
            epoch,
            range: (&range).into(),
            node: format!("n{bucket}"),
            ..BucketEntry::default()
        }
    }

    fn owners(image: &Image) -> Vec<(u8, u64)> {
        image
            .owners()
            .map(|(interval, owner)| (interval.low.first().copied().unwrap_or(0), owner.bucket))
            .collect()
    }

    #[test]
    fn a_split_that_was_missed_is_learned() {
        let mut image = Image::default();
        image.learn(&entry(0, None, 1, 1));
        image.learn(&entry(5, None, 2, 2));
        assert_eq!(owners(&image), [(0, 1), (5, 2)]);
        // An old message does not undo it.
        image.learn(&entry(0, None, 1, 1));
        assert_eq!(owners(&image), [(0, 1), (5, 2)]);
        image.learn(&entry(0, Some(5), 1, 2));
        image.learn(&entry(3, Some(5), 3, 3));
        assert_eq!(owners(&image), [(0, 1), (3, 3), (5, 2)]);
    }

    #[test]
    fn what_is_known_of_an_interval_is_what_meets_it() {
        let mut image = Image::default();
        for (low, high) in [(1, 3), (3, 5), (6, 9)] {
            image.learn(&entry(low, Some(high), low.into(), 1));
        }
        for (interval, expected) in [
            (Interval::ALL, vec![1, 3, 6]),
            (Interval::of_key(&[3]), vec![3]),
            (Interval::of_key(&[5]), vec![]),
            (Interval::new(vec![2], Some(vec![6])), vec![1, 3]),
            (Interval::new(vec![2], Some(vec![7])), vec![1, 3, 6]),
            (Interval::new(vec![9], None), vec![]),
        ] {
            let found: Vec<u64> = image.within(&interval).map(|(_, owner)| owner.bucket).collect();
            assert_eq!(found, expected, "{interval:?}");
        }
    }

    #[test]
    fn unknown_parts_are_pieces_too() {
        let mut image = Image::default();
        image.learn(&entry(3, Some(5), 3, 3));
        let pieces = image.route(&Interval::ALL);
        assert_eq!(pieces.iter().map(|(_, owner)| owner.is_some()).collect::<Vec<_>>(), [false, true, false]);
        image.cut(&Interval::new(vec![4], None));
        assert_eq!(image.route(&Interval::ALL)[1].0, Interval::new(vec![3], Some(vec![4])));
    }

    /// A part of the keys has no owner then, which is an error where it is needed.
    #[test]
    fn an_image_that_is_full_keeps_what_it_knows() {
        let mut image = Image::default();
        let room = 3 * (INTERVAL_BYTES + 8);
        let learned: Vec<bool> =
            (1..9).map(|key| image.learn_within(&entry(key, Some(key + 1), key.into(), 1), room)).collect();
        assert_eq!(learned.iter().filter(|learned| **learned).count(), 3, "{learned:?}");
        assert_eq!(owners(&image), [(1, 1), (2, 2), (3, 3)]);
        assert!(image.bytes <= room);
    }

    proptest! {
        #[test]
        fn the_latest_owner_of_each_key_is_known(
            learned in prop::collection::vec((0..12u8, prop::option::of(1..13u8)), 0..20),
            order in any::<u64>(),
        ) {
            // Each is later than the one before; they are learned in any order.
            let entries: Vec<BucketEntry> = learned
                .iter()
                .enumerate()
                .map(|(index, &(low, high))| entry(low, high, index as u64, index as u64))
                .collect();
            let mut shuffled = entries.clone();
            fastrand::Rng::with_seed(order).shuffle(&mut shuffled);
            let mut image = Image::default();
            prop_assert!(shuffled.iter().all(|entry| image.learn(entry)));
            for key in 0..14u8 {
                let expected = entries.iter().rev().find(|entry| Interval::from(entry.range.clone()).contains(&[key]));
                let found = image.route(&Interval::of_key(&[key]));
                prop_assert_eq!(found.len(), 1);
                prop_assert_eq!(found[0].1.as_ref().map(|owner| owner.bucket), expected.map(|entry| entry.bucket));
            }
            let bytes = image.owners.iter().map(|(low, (high, owner))| bytes_of(low, high.as_ref(), owner));
            prop_assert_eq!(image.bytes, bytes.sum::<usize>());
            // The parts are without holes and in order, and no two neighbours are the same.
            let pieces = image.route(&Interval::ALL);
            for pair in pieces.windows(2) {
                prop_assert_eq!(pair[0].0.high.as_ref(), Some(&pair[1].0.low));
                prop_assert!(pair[0].1 != pair[1].1);
            }
        }
    }
}
