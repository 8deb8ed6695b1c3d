//! Prints how long it takes to read rows of 100 bytes that are in one run, and in several whose keys are mixed:
//!
//!     cargo test --release -p lightship-rangefile --lib -- mixed_runs --ignored --nocapture

use std::sync::Arc;
use std::time::Instant;

use arrow_array::{FixedSizeBinaryArray, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};

use super::{BLOCK_ROWS_MAX, Blocks, KeyedRows, Merge, Run, RunBuilder};
use crate::definition::{Capacity, Definition};
use crate::key::Interval;
use crate::store::{Change, Store};

const ROWS: i64 = 500_000;
const RUNS: [i64; 5] = [1, 2, 4, 8, 16];
const ROUNDS: usize = 7;
/// Of a value; a key has 8.
const VALUE_BYTES: usize = 92;

fn definition() -> Arc<Definition> {
    let columns = Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("value", DataType::FixedSizeBinary(VALUE_BYTES as i32), false),
    ]);
    Arc::new(Definition::new("t", &columns, &["id".into()], Capacity::default()).unwrap())
}

/// Runs that have the keys at random, each key once.
async fn mixed(store: &Store, definition: &Definition, count: i64) -> Vec<Arc<Run>> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut keys = vec![Vec::new(); count as usize];
    (0..ROWS).for_each(|key| keys[random.usize(0..count as usize)].push(key));
    let mut runs = Vec::new();
    for (number, keys) in (0..).zip(keys) {
        let mut builder = RunBuilder::new(definition, 0, number, keys.len());
        for keys in keys.chunks(BLOCK_ROWS_MAX) {
            let values = keys.iter().map(|_| {
                let mut value = [0; VALUE_BYTES];
                random.fill(&mut value);
                value
            });
            let values = FixedSizeBinaryArray::try_from_iter(values).unwrap();
            let columns = vec![Arc::new(Int64Array::from(keys.to_vec())) as _, Arc::new(values) as _];
            let rows = RecordBatch::try_new(definition.loose().clone(), columns).unwrap();
            builder.push(&KeyedRows::new(definition, rows, None).unwrap()).unwrap();
        }
        let (record, blocks) = builder.finish().unwrap();
        store.commit(vec![Change::PutBlocks(1, number, 0, blocks)]).await.unwrap();
        runs.push(Arc::new(Run::new(Blocks::new(store.clone()), 1, number, record)));
    }
    runs
}

#[tokio::test]
#[ignore = "prints times"]
async fn mixed_runs_are_read() {
    let definition = definition();
    for count in RUNS {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let runs = mixed(&store, &definition, count).await;
        let mut times: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let began = Instant::now();
                let mut merge = Merge::new(definition.clone(), &runs, Interval::ALL, false, BLOCK_ROWS_MAX);
                let mut rows = 0;
                while let Some(merged) = merge.next().unwrap() {
                    rows += merged.rows.num_rows();
                }
                assert_eq!(rows as i64, ROWS);
                began.elapsed().as_secs_f64() * 1e9 / ROWS as f64
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let [least, median] = [times[0], times[ROUNDS / 2]];
        eprintln!("{count} runs: {median:.0} ns for each row (median of {ROUNDS}; least {least:.0})");
    }
}
