//! How much the keys of runs overlap. A reader looks at all runs that may have a key; runs whose keys follow each
//! other, as of rows that were written in the order of their keys, cost it nothing.

use std::sync::Arc;

use super::{Run, View};
use crate::definition::Capacity;
use crate::key::Key;

/// With fewer blocks, merging is quick, and the keys of blocks say little about those of rows.
const BLOCKS_MIN: usize = 32;
/// The part of what fits into a bucket that stays there when its keys have ascended. It is estimated from the mean size of
/// its rows.
const KEPT: [u64; 2] = [31, 32];

/// The most runs that may have rows with one key.
pub(super) fn depth(runs: &[Arc<Run>]) -> usize {
    let mut firsts: Vec<&[u8]> = runs.iter().map(|run| run.first()).collect();
    let mut lasts: Vec<&[u8]> = runs.iter().map(|run| run.last()).collect();
    firsts.sort_unstable();
    lasts.sort_unstable();
    let mut ended = 0;
    let depths = firsts.iter().enumerate().map(|(begun, first)| {
        while lasts[ended] < *first {
            ended += 1;
        }
        begun + 1 - ended
    });
    depths.max().unwrap_or(0)
}

/// A block of a bucket.
struct Extent<'a> {
    first: &'a [u8],
    /// The least key of the run's next block; the greatest key of the run for its last block.
    end: &'a [u8],
    rows: u64,
}

impl View {
    /// The blocks with keys of the bucket, in the order of their least keys.
    fn extents(&self) -> Vec<Extent<'_>> {
        let extents = self.runs.iter().flat_map(|run| {
            let blocks = run.blocks();
            run.blocks_of(&self.range).map(move |number| {
                let block = &blocks[number as usize];
                let end = blocks.get(number as usize + 1).map_or(run.last(), |next| &next.first);
                Extent { first: &block.first, end, rows: block.rows.into() }
            })
        });
        let mut extents: Vec<_> = extents.collect();
        extents.sort_unstable_by_key(|extent| extent.first);
        extents
    }

    /// Whether a scan has to merge runs.
    pub(crate) fn has_overlaps(&self) -> bool {
        self.runs.len() > 1 && depth(&self.runs) > 1
    }

    /// Whether merging all runs would remove few rows: at most a quarter of them have been replaced, or have moved
    /// to another bucket.
    pub(crate) fn is_tidy(&self) -> bool {
        if self.is_compact() {
            return true;
        }
        let extents = self.extents();
        let mut end = &[][..];
        let mut overlapping = 0;
        for extent in &extents {
            if extent.first < end {
                overlapping += extent.rows;
            }
            end = end.max(extent.end);
        }
        let rows: u64 =
            self.runs.iter().flat_map(|run| run.blocks()).map(|block| u64::from(block.rows)).sum();
        let within: u64 = extents.iter().map(|extent| extent.rows).sum();
        extents.len() >= BLOCKS_MIN && (rows - within) + overlapping <= rows / 4
    }

    /// Whether it can split without being merged before: it is tidy, or its keys have ascended, so that those that move
    /// are at its end.
    pub(crate) fn is_apart(&self) -> bool {
        if self.is_tidy() {
            return true;
        }
        let extents = self.extents();
        extents.len() >= BLOCKS_MIN && self.ascends(&extents, extents.iter().map(|extent| extent.rows).sum())
    }

    /// The key to split at, if it can split without being merged before.
    pub(super) fn split_key(&self, capacity: Capacity) -> Option<Key> {
        let extents = self.extents();
        let rows: u64 = extents.iter().map(|extent| extent.rows).sum();
        let below = if self.ascends(&extents, rows) {
            // The most that is not full.
            let used = capacity.used(self.content()).max(1);
            let full = u128::from(rows) * u128::from(capacity.max()) / u128::from(used);
            full.min(rows.into()) as u64 * KEPT[0] / KEPT[1]
        } else {
            rows / 2
        };
        let mut before = 0;
        let after = extents.iter().find(|extent| {
            before += extent.rows;
            before > below && *extent.first > *self.range.low
        });
        after.map(|extent| extent.first.to_vec())
    }

    /// Whether the newest rows have the greatest keys.
    fn ascends(&self, extents: &[Extent<'_>], rows: u64) -> bool {
        let mut newest = 0;
        let mut least = None::<&[u8]>;
        for run in self.runs.iter().rev().filter(|run| run.meets(&self.range)) {
            newest += run.blocks().iter().map(|block| u64::from(block.rows)).sum::<u64>();
            least = Some(least.map_or(run.first(), |least| least.min(run.first())));
            if newest >= rows / 8 {
                break;
            }
        }
        let start = extents.partition_point(|extent| least.is_some_and(|least| extent.first < least));
        extents[start..].iter().map(|extent| extent.rows).sum::<u64>() <= rows / 4
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::{BooleanArray, FixedSizeBinaryArray, Int64Array, RecordBatch};
    use arrow_schema::{DataType, Field, Schema};

    use super::*;
    use crate::bucket::{Blocks, KeyedRows, Merge, RunBuilder};
    use crate::definition::Definition;
    use crate::key::Interval;
    use crate::store::{Change, Store};

    fn definition() -> Arc<Definition> {
        let columns = Schema::new(vec![
            Field::new("id", DataType::Int64, false),
            Field::new("run", DataType::Int64, false),
            Field::new("code", DataType::FixedSizeBinary(3), false),
        ]);
        Arc::new(Definition::new("t", &columns, &["id".into()], Capacity::default()).unwrap())
    }

    /// A key that is deleted in a run.
    fn is_deleted(run: u64, key: i64) -> bool {
        !run.is_multiple_of(3) && (run as i64 * 5 + key) % 7 == 0
    }

    fn code(run: u64, key: i64) -> [u8; 3] {
        [run as u8, key as u8, (key >> 8) as u8]
    }

    /// Runs with these keys, oldest first, in blocks of `block_rows` rows.
    async fn runs(store: &Store, keys: &[&[i64]], block_rows: usize) -> Vec<Arc<Run>> {
        let (definition, blocks) = (definition(), Blocks::new(store.clone()));
        let mut runs = Vec::new();
        for (number, keys) in (0..).zip(keys) {
            let mut builder = RunBuilder::new(&definition, 0, number, keys.len());
            for keys in keys.chunks(block_rows) {
                let numbers = Int64Array::from(vec![number as i64; keys.len()]);
                let codes = keys.iter().map(|key| code(number, *key));
                let codes = FixedSizeBinaryArray::try_from_iter(codes).unwrap();
                let keys_of = Int64Array::from(keys.to_vec());
                let columns = vec![Arc::new(keys_of) as _, Arc::new(numbers) as _, Arc::new(codes) as _];
                let rows = RecordBatch::try_new(definition.loose().clone(), columns).unwrap();
                let deleted: BooleanArray = keys.iter().map(|key| Some(is_deleted(number, *key))).collect();
                builder.push(&KeyedRows::new(&definition, rows, Some(deleted)).unwrap()).unwrap();
            }
            let (record, contents) = builder.finish().unwrap();
            store.commit(vec![Change::PutBlocks(1, number, 0, contents)]).await.unwrap();
            runs.push(Arc::new(Run::new(blocks.clone(), 1, number, record)));
        }
        runs
    }

    #[tokio::test]
    async fn runs_that_follow_each_other_are_not_deep() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let apart = runs(&store, &[&[1, 2], &[3], &[7, 9], &[4, 5]], 2).await;
        let touching = runs(&store, &[&[1, 3], &[3, 4], &[4, 5]], 2).await;
        let deep = runs(&store, &[&[1, 9], &[2, 3], &[4, 6], &[5, 8]], 2).await;
        assert_eq!([&[], &*apart, &*touching, &*deep].map(depth), [0, 1, 2, 3]);
    }

    /// Of each key the newest row, unless it is a deletion, whatever runs overlap, and whatever the interval.
    #[tokio::test]
    async fn overlapping_runs_are_merged_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let definition = definition();
        let mut random = fastrand::Rng::with_seed(5);
        for round in 0..200 {
            // In half of the rounds, stretches of one run are so long that they are not copied.
            let (unit, block_rows, rows_max) =
                if round % 2 == 0 { (1, 2, 9) } else { (60, random.usize(200..900), 3000) };
            let keys: Vec<Vec<i64>> = (0..random.usize(1..7))
                .map(|_| {
                    let start = random.i64(0..40 * unit);
                    // Some runs end far from the others.
                    let (end, last) = (start + random.i64(1..20 * unit), (60 + random.i64(0..3) * 3) * unit);
                    let share = random.u8(20..);
                    (start..end).filter(|_| random.u8(..) <= share).chain([last]).collect()
                })
                .collect();
            let runs = runs(&store, &keys.iter().map(Vec::as_slice).collect::<Vec<_>>(), block_rows).await;
            let (low, high) = (random.i64(0..30 * unit), random.i64(30 * unit..70 * unit));
            let keeps_deletions = random.bool();
            let mut expected: std::collections::BTreeMap<i64, i64> = (0..)
                .zip(&keys)
                .flat_map(|(run, keys)| keys.iter().map(move |key| (*key, run)))
                .filter(|(key, _)| (low..high).contains(key))
                .collect();
            expected.retain(|key, run| keeps_deletions || !is_deleted(*run as u64, *key));
            let key = |id| definition.format().key(&[Arc::new(Int64Array::from(vec![id]))]).unwrap();
            let within = Interval::new(key(low), Some(key(high)));
            let mut merge =
                Merge::new(definition.clone(), &runs, within, keeps_deletions, random.usize(1..rows_max));
            let mut found = Vec::new();
            while let Some(merged) = merge.next().unwrap() {
                let column = |index: usize| {
                    let column = merged.rows.column(index).as_any().downcast_ref::<Int64Array>().unwrap();
                    column.values().to_vec()
                };
                let rows = column(0).into_iter().zip(column(1));
                let codes = merged.rows.column(2).as_fixed_size_binary().clone();
                for (row, (key, run)) in rows.enumerate() {
                    assert_eq!(codes.value(row), code(run as u64, key));
                    let deleted = merged.deleted.as_ref().is_some_and(|deleted| deleted.value(row));
                    assert_eq!(deleted, is_deleted(run as u64, key), "{key} of run {run}");
                    found.push((key, run));
                }
            }
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
