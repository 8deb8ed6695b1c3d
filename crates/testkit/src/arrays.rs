//! Random Arrow data of every type, from a seed.
//!
//! Everything here is a function of its seed, so a failure can be replayed from
//! the numbers it prints. Values are drawn in patterns that encodings care about
//! (constant, sequences, few distinct, runs, extremes), null slots hold garbage,
//! and arrays are often slices of larger ones. Times and dates stay between the
//! years 1 and 9999, so that text writers can print them.

mod types;
mod values;

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, UnionMode};
use proptest::prelude::*;

use self::types::{KEY_TYPES, RUN_END_TYPES, leaf_types, map, run_end_encoded, schema_of, union_of};
use self::values::array;
use crate::rng::Rng;

/// Maximum number of columns of [`any_schema`] and [`any_batch`].
const COLUMNS_MAX: usize = 6;
/// Maximum number of rows of [`any_batch`].
const ROWS_MAX: usize = 200;

/// Schemas of 0 to 6 columns of any types; shrinks to fewer columns.
pub fn any_schema() -> impl Strategy<Value = SchemaRef> {
    column_seeds().prop_map(|seeds| schema_of(&seeds))
}

/// Batches of 0 to 6 columns of any types and 0 to 200 rows; shrinks to fewer
/// columns and fewer rows.
pub fn any_batch() -> impl Strategy<Value = RecordBatch> {
    (column_seeds(), 0..=ROWS_MAX).prop_map(|(seeds, rows)| batch_from(&schema_of(&seeds), &seeds, rows, 0))
}

/// One to four batches of one schema, as in a stream.
pub fn any_batches() -> impl Strategy<Value = Vec<RecordBatch>> {
    (column_seeds(), proptest::collection::vec(0..=ROWS_MAX, 1..=4)).prop_map(|(seeds, rows)| {
        let schema = schema_of(&seeds);
        rows.iter().zip(0..).map(|(&rows, part)| batch_from(&schema, &seeds, rows, part)).collect()
    })
}

fn column_seeds() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(any::<u64>().no_shrink(), 0..=COLUMNS_MAX)
}

/// A batch of 0 to 6 random columns and the given number of rows.
pub fn batch(seed: u64, rows: usize) -> RecordBatch {
    let mut rng = Rng(seed);
    let seeds: Vec<u64> = (0..rng.below(COLUMNS_MAX + 1)).map(|_| rng.next()).collect();
    batch_from(&schema_of(&seeds), &seeds, rows, 0)
}

/// A batch of the given schema.
///
/// # Panics
/// When the schema nests a type that Arrow does not define (a dictionary keyed
/// by text), or has `Int16` run ends and more than 32 767 rows.
pub fn batch_of(schema: &SchemaRef, rows: usize, seed: u64) -> RecordBatch {
    let mut rng = Rng(seed);
    let seeds: Vec<u64> = schema.fields().iter().map(|_| rng.next()).collect();
    batch_from(schema, &seeds, rows, 0)
}

/// An array of the given type, with nulls (at a random rate, or none) if `nullable`.
///
/// # Panics
/// As [`batch_of`].
pub fn array_of(data_type: &DataType, nullable: bool, rows: usize, seed: u64) -> ArrayRef {
    array(&mut Rng(seed), data_type, nullable, rows)
}

/// A batch with one column of each type, named after it, and at most 32 767 rows.
pub fn every_type(rows: usize, seed: u64) -> RecordBatch {
    batch_of(&every_type_schema(), rows, seed)
}

/// The schema of [`every_type`]. All columns are nullable.
pub fn every_type_schema() -> SchemaRef {
    let mut types = leaf_types();
    types.extend(KEY_TYPES.map(|key| DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8))));
    types.extend(RUN_END_TYPES.map(|ends| run_end_encoded(ends, DataType::Utf8)));
    let item = |t: DataType| Arc::new(Field::new_list_field(t, true));
    let pair = Fields::from(vec![
        Field::new("a", DataType::Int32, false),
        Field::new("b", DataType::Utf8, true),
        Field::new("c", DataType::List(item(DataType::Float64)), true),
    ]);
    types.extend([
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Decimal128(20, 3))),
        run_end_encoded(DataType::Int32, DataType::Int64),
        DataType::List(item(DataType::Int32)),
        DataType::LargeList(item(DataType::Utf8)),
        DataType::ListView(item(DataType::Int64)),
        DataType::LargeListView(item(DataType::Utf8View)),
        DataType::FixedSizeList(item(DataType::Float32), 3),
        DataType::List(item(DataType::Struct(pair.clone()))),
        DataType::Struct(pair),
        DataType::Struct(Fields::empty()),
        map(DataType::Utf8, DataType::Int32),
        map(DataType::Int64, DataType::List(item(DataType::Utf8))),
        union_of(vec![DataType::Int32, DataType::Utf8, DataType::Null], UnionMode::Sparse),
        union_of(vec![DataType::Int64, DataType::List(item(DataType::Utf8))], UnionMode::Dense),
    ]);
    let fields = types.into_iter().enumerate().map(|(i, t)| Field::new(format!("{i} {t}"), t, true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn batch_from(schema: &SchemaRef, seeds: &[u64], rows: usize, part: u64) -> RecordBatch {
    let column = |(field, seed): (&FieldRef, &u64)| {
        let mut rng = Rng(seed ^ (part + 1).wrapping_mul(0xd1b5_4a32_d192_ed03));
        array(&mut rng, field.data_type(), field.is_nullable(), rows)
    };
    let columns = schema.fields().iter().zip(seeds).map(column).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .expect("columns follow the schema")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_data() {
        for seed in 0..200 {
            assert_eq!(batch(seed, 50), batch(seed, 50));
        }
    }

    #[test]
    fn every_type_is_valid_at_several_sizes() {
        for (seed, rows) in (0..20).zip([0, 1, 2, 7, 8, 9, 63, 64, 65, 300].into_iter().cycle()) {
            let batch = every_type(rows, seed);
            assert_eq!(batch.num_rows(), rows);
            for column in batch.columns() {
                column.to_data().validate_full().expect("valid");
            }
        }
    }

    #[test]
    fn random_batches_reach_every_type() {
        fn visit(data_type: &DataType, seen: &mut std::collections::BTreeSet<String>) {
            let name = format!("{data_type:?}");
            seen.insert(name.split(['(', ' ']).next().unwrap_or_default().into());
            match data_type {
                DataType::Struct(fields) => fields.iter().for_each(|f| visit(f.data_type(), seen)),
                DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => {
                    visit(f.data_type(), seen);
                }
                _ => {}
            }
        }
        let mut seen = Default::default();
        for seed in 0..600 {
            batch(seed, 3).schema().fields().iter().for_each(|f| visit(f.data_type(), &mut seen));
        }
        assert_eq!(seen.len(), 41, "{seen:?}");
    }

    proptest! {
        #[test]
        fn any_batch_is_valid(batch in any_batch()) {
            for column in batch.columns() {
                prop_assert!(column.to_data().validate_full().is_ok());
            }
        }

        #[test]
        fn batches_of_one_stream_share_a_schema(batches in any_batches()) {
            prop_assert!(batches.iter().all(|b| b.schema() == batches[0].schema()));
        }
    }
}
