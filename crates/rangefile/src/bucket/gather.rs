//! Copies rows of several batches into one.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, FixedSizeBinaryArray, RecordBatch};
use arrow_schema::SchemaRef;
use arrow_select::interleave::interleave;

use crate::error::Result;

/// Rows of a batch that follow each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    /// The position of the batch.
    pub(super) batch: usize,
    /// The first row.
    pub(super) row: usize,
    pub(super) rows: usize,
}

/// The rows of stretches, one after the other. All batches have this schema.
///
/// # Errors
/// If the result has too many bytes for a column's type.
pub(super) fn gather(
    schema: &SchemaRef,
    batches: &[&RecordBatch],
    stretches: &[Stretch],
) -> Result<RecordBatch> {
    if stretches.is_empty() {
        return Ok(RecordBatch::new_empty(schema.clone()));
    }
    let mut rows = None;
    let columns = (0..schema.fields().len()).map(|column| {
        let arrays: Vec<&dyn Array> = batches.iter().map(|batch| batch.column(column).as_ref()).collect();
        if let Some(gathered) = fixed_size(&arrays, stretches) {
            return Ok(gathered);
        }
        let each = || stretches.iter().flat_map(|s| (s.row..s.row + s.rows).map(|row| (s.batch, row)));
        Ok(interleave(&arrays, rows.get_or_insert_with(|| each().collect::<Vec<_>>()))?)
    });
    let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}

/// The same of values that are bytes of one size, if none is NULL. Arrow copies each of them by a call through a pointer;
/// this copies a stretch at once.
fn fixed_size(arrays: &[&dyn Array], stretches: &[Stretch]) -> Option<ArrayRef> {
    let of_size = |array: &&dyn Array| {
        array.as_fixed_size_binary_opt().filter(|array| array.null_count() == 0).cloned()
    };
    let arrays: Vec<FixedSizeBinaryArray> = arrays.iter().map(of_size).collect::<Option<_>>()?;
    let size = arrays.first()?.value_length();
    let bytes = usize::try_from(size).ok().filter(|bytes| *bytes > 0)?;
    let rows: usize = stretches.iter().map(|stretch| stretch.rows).sum();
    let mut values = Vec::with_capacity(rows * bytes);
    for Stretch { batch, row, rows } in stretches {
        values.extend_from_slice(&arrays[*batch].value_data()[row * bytes..(row + rows) * bytes]);
    }
    Some(Arc::new(FixedSizeBinaryArray::new(size, values.into(), None)))
}

#[cfg(test)]
mod tests {
    use arrow_array::{BooleanArray, Int64Array, StringArray};
    use arrow_schema::{DataType, Field, Schema};
    use arrow_select::interleave::interleave_record_batch;

    use super::*;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("id", DataType::Int64, false),
            Field::new("code", DataType::FixedSizeBinary(3), false),
            Field::new("hash", DataType::FixedSizeBinary(16), true),
            Field::new("nothing", DataType::FixedSizeBinary(0), true),
            Field::new("text", DataType::Utf8, true),
            Field::new("flag", DataType::Boolean, true),
        ]))
    }

    /// A batch that is a slice of a larger one.
    fn batch(random: &mut fastrand::Rng) -> RecordBatch {
        let rows = random.usize(1..20);
        let has_nulls = random.bool();
        let mut is_null = || has_nulls && random.u8(..4) == 0;
        let present: Vec<bool> = (0..rows).map(|_| !is_null()).collect();
        let id = random.i64(..);
        let values = |bytes: usize| {
            let value = move |row: usize| vec![(id as u8).wrapping_add(row as u8); bytes];
            present.iter().enumerate().map(move |(row, is_there)| is_there.then(|| value(row)))
        };
        let fixed = |bytes: usize| {
            let values = values(bytes);
            FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, bytes as i32).unwrap()
        };
        let codes = (0..rows).map(|row| [(id as u8).wrapping_add(row as u8); 3]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new((0..rows).map(|row| Some(id.wrapping_add(row as i64))).collect::<Int64Array>()),
            Arc::new(FixedSizeBinaryArray::try_from_iter(codes).unwrap()),
            Arc::new(fixed(16)),
            Arc::new(fixed(0)),
            Arc::new(values(2).map(|value| value.map(|bytes| format!("{bytes:?}"))).collect::<StringArray>()),
            Arc::new(values(1).map(|value| value.map(|bytes| bytes[0] > 100)).collect::<BooleanArray>()),
        ];
        let whole = RecordBatch::try_new(schema(), columns).unwrap();
        let start = random.usize(0..rows);
        whole.slice(start, random.usize(1..=rows - start))
    }

    #[test]
    fn stretches_of_batches_are_copied_in_order() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let batches: Vec<RecordBatch> = (0..random.usize(1..5)).map(|_| batch(&mut random)).collect();
            let batches: Vec<&RecordBatch> = batches.iter().collect();
            let stretches: Vec<Stretch> = (0..random.usize(0..12))
                .map(|_| {
                    let batch = random.usize(0..batches.len());
                    let row = random.usize(0..batches[batch].num_rows());
                    Stretch { batch, row, rows: random.usize(1..=batches[batch].num_rows() - row) }
                })
                .collect();
            let each = stretches.iter().flat_map(|s| (s.row..s.row + s.rows).map(|row| (s.batch, row)));
            let expected = match each.collect::<Vec<_>>() {
                rows if rows.is_empty() => RecordBatch::new_empty(schema()),
                rows => interleave_record_batch(&batches, &rows).unwrap(),
            };
            assert_eq!(gather(&schema(), &batches, &stretches).unwrap(), expected);
        }
    }
}
