//! Dictionaries and run-end encoded columns, whose values can be many times larger than what was sent.
//!
//! A dictionary of a single value of one megabyte with eight thousand keys is one megabyte on the wire and eight
//! gigabytes in a file. [`Slices`] cuts a batch so that each piece stays small when decoded.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int16Type, Int32Type, Int64Type, RunEndIndexType};
use arrow_array::{Array, ArrayRef, RecordBatch, RunArray};
use arrow_schema::{DataType, Field};

use crate::{Result, SourceError};

/// A batch is cut where its decoded dictionaries and runs exceed this.
const SLICE_BYTES: u64 = 4 << 20;
/// The size of a refused row is counted up to this many times the limit.
const COUNTED_TIMES: u64 = 16;

/// A batch in slices whose dictionaries and runs decode to at most a few MiB each; most batches are one slice.
#[derive(Debug)]
pub struct Slices {
    batch: RecordBatch,
    /// Columns that grow when decoded.
    growing: Vec<usize>,
    row: usize,
    rows_before: u64,
    row_bytes_max: u64,
}

impl Slices {
    /// Slices of `batch`, before which the result had `rows_before` rows; a single row that decodes to more than
    /// `row_bytes_max` is an error.
    pub fn new(batch: RecordBatch, rows_before: u64, row_bytes_max: u64) -> Self {
        let rows = batch.num_rows() as u64;
        let grow = |&at: &usize| {
            let column = batch.column(at);
            grows(column.data_type()) && largest(column).saturating_mul(rows) > SLICE_BYTES
        };
        let growing = (0..batch.num_columns()).filter(grow).collect();
        Self { batch, growing, row: 0, rows_before, row_bytes_max }
    }

    /// The decoded size of the next row, up to [`COUNTED_TIMES`] the limit.
    fn bytes_of_row(&self) -> u64 {
        let most = self.row_bytes_max.saturating_mul(COUNTED_TIMES);
        let mut budget = Budget(most);
        let mut columns = self.growing.iter().map(|&at| self.batch.column(at));
        let counted = columns.try_for_each(|column| budget.take(column, self.row, 1));
        counted.map_or(most, |()| most - budget.0)
    }

    /// The next slice.
    ///
    /// # Errors
    /// [`SourceError::RowTooLarge`].
    pub fn try_next(&mut self) -> Result<Option<RecordBatch>> {
        let (start, rows) = (self.row, self.batch.num_rows());
        if start >= rows {
            return Ok(None);
        }
        if self.growing.is_empty() {
            self.row = rows;
            return Ok(Some(self.batch.slice(start, rows - start)));
        }
        let mut held = 0_u64;
        while self.row < rows {
            let mut budget = Budget(self.row_bytes_max);
            let counted =
                self.growing.iter().try_for_each(|&at| budget.take(self.batch.column(at), self.row, 1));
            if counted.is_none() {
                let (row, bytes_max) = (self.rows_before + self.row as u64 + 1, self.row_bytes_max);
                let bytes = self.bytes_of_row();
                return Err(SourceError::RowTooLarge { row, part: None, bytes, bytes_max });
            }
            let bytes = self.row_bytes_max - budget.0;
            if self.row > start && held.saturating_add(bytes) > SLICE_BYTES {
                break;
            }
            held += bytes;
            self.row += 1;
        }
        Ok(Some(self.batch.slice(start, self.row - start)))
    }
}

/// The decoded size of values in bytes, counted down from a limit.
pub fn value_bytes(array: &ArrayRef, row: usize, most: u64) -> u64 {
    let mut budget = Budget(most);
    budget.take(array, row, 1).map_or(most, |()| most - budget.0)
}

/// Whether values of a type may be larger decoded than on the wire.
fn grows(data_type: &DataType) -> bool {
    let field = |field: &Field| grows(field.data_type());
    match data_type {
        DataType::Dictionary(..) | DataType::RunEndEncoded(..) => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::Map(item, _) => field(item),
        DataType::Struct(fields) => fields.iter().any(|item| field(item)),
        DataType::Union(fields, _) => fields.iter().any(|(_, item)| field(item)),
        _ => false,
    }
}

/// The largest decoded size of a value of the column; `u64::MAX` if finding it takes longer than counting
/// the rows.
fn largest(column: &ArrayRef) -> u64 {
    let values = match column.data_type() {
        DataType::Dictionary(..) => column.as_any_dictionary().values(),
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => column.as_run::<Int16Type>().values(),
            DataType::Int32 => column.as_run::<Int32Type>().values(),
            _ => column.as_run::<Int64Type>().values(),
        },
        _ => return u64::MAX,
    };
    match values.data_type().is_nested() || grows(values.data_type()) {
        true => u64::MAX,
        false => (0..values.len()).map(|row| bytes_of(values, row)).max().unwrap_or(0),
    }
}

/// Bytes of a value that is not nested.
fn bytes_of(array: &ArrayRef, row: usize) -> u64 {
    if array.is_null(row) {
        return 0;
    }
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value_length(row) as u64,
        DataType::LargeUtf8 => array.as_string::<i64>().value_length(row) as u64,
        DataType::Binary => array.as_binary::<i32>().value_length(row) as u64,
        DataType::LargeBinary => array.as_binary::<i64>().value_length(row) as u64,
        // The length is the first part of a view.
        DataType::Utf8View => u64::from(array.as_string_view().views()[row] as u32),
        DataType::BinaryView => u64::from(array.as_binary_view().views()[row] as u32),
        DataType::FixedSizeBinary(width) => *width as u64,
        other => other.primitive_width().unwrap_or(1) as u64,
    }
}

/// Bytes that are left for decoded values. Each value takes at least one, which also bounds the counting: nested
/// lists may have as many items as the product of their lengths.
struct Budget(u64);

impl Budget {
    fn spend(&mut self, bytes: u64) -> Option<()> {
        self.0 = self.0.checked_sub(bytes)?;
        Some(())
    }

    /// Subtracts the decoded size of `rows` rows; `None` if not enough is left.
    fn take(&mut self, array: &ArrayRef, start: usize, rows: usize) -> Option<()> {
        let mut valid = (start..start + rows).filter(|&row| array.is_valid(row));
        match array.data_type() {
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let (values, keys) = (dictionary.values(), dictionary.keys());
                let mut keys =
                    valid.filter_map(|row| dictionary_key(keys, row).filter(|&key| key < values.len()));
                keys.try_for_each(|key| self.take(values, key, 1))
            }
            DataType::RunEndEncoded(ends, _) => match ends.data_type() {
                DataType::Int16 => self.take_runs(array.as_run::<Int16Type>(), start, rows),
                DataType::Int32 => self.take_runs(array.as_run::<Int32Type>(), start, rows),
                _ => self.take_runs(array.as_run::<Int64Type>(), start, rows),
            },
            DataType::List(_) => {
                let (lists, offsets) = (array.as_list::<i32>(), array.as_list::<i32>().offsets());
                self.take_part(lists.values(), offsets[start] as usize, offsets[start + rows] as usize)
            }
            DataType::LargeList(_) => {
                let (lists, offsets) = (array.as_list::<i64>(), array.as_list::<i64>().offsets());
                self.take_part(lists.values(), offsets[start] as usize, offsets[start + rows] as usize)
            }
            DataType::Map(..) => {
                let (maps, offsets) = (array.as_map(), array.as_map().offsets());
                let (first, last) = (offsets[start] as usize, offsets[start + rows] as usize);
                maps.entries().columns().iter().try_for_each(|items| self.take_part(items, first, last))
            }
            DataType::FixedSizeList(_, width) => {
                let (items, width) = (array.as_fixed_size_list().values(), *width as usize);
                self.take_part(items, start * width, (start + rows) * width)
            }
            DataType::ListView(_) => {
                let lists = array.as_list_view::<i32>();
                let mut lists =
                    valid.map(|row| (lists, lists.offsets()[row] as usize, lists.sizes()[row] as usize));
                lists.try_for_each(|(lists, first, len)| self.take_part(lists.values(), first, first + len))
            }
            DataType::LargeListView(_) => {
                let lists = array.as_list_view::<i64>();
                let mut lists =
                    valid.map(|row| (lists, lists.offsets()[row] as usize, lists.sizes()[row] as usize));
                lists.try_for_each(|(lists, first, len)| self.take_part(lists.values(), first, first + len))
            }
            DataType::Struct(_) => {
                self.spend(rows as u64)?;
                array.as_struct().columns().iter().try_for_each(|column| self.take(column, start, rows))
            }
            DataType::Union(..) => {
                let union = array.as_union();
                (start..start + rows).try_for_each(|row| {
                    self.take(union.child(union.type_id(row)), union.value_offset(row), 1)
                })
            }
            _ => valid.try_for_each(|row| self.spend(bytes_of(array, row).max(1))),
        }
    }

    /// Subtracts the items of lists.
    fn take_part(&mut self, items: &ArrayRef, first: usize, last: usize) -> Option<()> {
        self.spend(1)?;
        self.take(items, first, last - first)
    }

    fn take_runs<R: RunEndIndexType>(&mut self, runs: &RunArray<R>, start: usize, rows: usize) -> Option<()> {
        let (mut row, end) = (start, start + rows);
        if rows == 0 {
            return Some(());
        }
        // Run ends count from the beginning of the unsliced array.
        let offset = runs.run_ends().offset();
        let mut run = runs.get_physical_index(row);
        while row < end {
            let run_end = arrow_buffer::ArrowNativeType::as_usize(runs.run_ends().values()[run]) - offset;
            let before = self.0;
            self.take(runs.values(), run, 1)?;
            // The first row of the run is counted already.
            let more = (run_end.min(end) - row - 1) as u64;
            self.spend((before - self.0).saturating_mul(more))?;
            (row, run) = (run_end, run + 1);
        }
        Some(())
    }
}

fn dictionary_key(keys: &dyn Array, row: usize) -> Option<usize> {
    arrow_array::downcast_integer_array!(
        keys => usize::try_from(keys.value(row) as i64).ok(),
        _ => None,
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{DictionaryArray, Int32Array, StringArray};
    use lightship_testkit::arrays;
    use proptest::prelude::*;

    use super::*;

    fn dictionary(keys: Vec<Option<i32>>, value_bytes: usize) -> ArrayRef {
        let values = StringArray::from(vec!["x".repeat(value_bytes), "y".into()]);
        Arc::new(DictionaryArray::new(Int32Array::from(keys), Arc::new(values)))
    }

    fn slices(batch: &RecordBatch, rows_before: u64, row_bytes_max: u64) -> Result<Vec<RecordBatch>> {
        let mut slices = Slices::new(batch.clone(), rows_before, row_bytes_max);
        std::iter::from_fn(|| slices.try_next().transpose()).collect()
    }

    fn bytes(array: &ArrayRef, start: usize, rows: usize) -> u64 {
        let mut budget = Budget(u64::MAX);
        budget.take(array, start, rows).unwrap();
        u64::MAX - budget.0
    }

    #[test]
    fn batches_are_cut_by_the_decoded_size_of_their_dictionaries() {
        let column = dictionary((0..8192).map(|row| (row % 3 > 0).then_some(row % 2)).collect(), 1 << 20);
        let batch = RecordBatch::try_from_iter([("d", column)]).unwrap();
        let cut = slices(&batch, 0, 1 << 30).unwrap();
        assert!(cut.len() > 500, "{}", cut.len());
        let mut row = 0;
        for slice in &cut {
            assert_eq!(slice, &batch.slice(row, slice.num_rows()));
            assert!(bytes(slice.column(0), 0, slice.num_rows()) <= SLICE_BYTES);
            row += slice.num_rows();
        }
        assert_eq!(row, batch.num_rows());
        let error = slices(&batch, 10, 1 << 19).unwrap_err();
        assert!(matches!(error, SourceError::RowTooLarge { row: 13, bytes: 1_048_576, .. }), "{error:?}");
        // A small batch stays whole, and an empty one has no slices.
        let small = batch.slice(0, 3);
        assert_eq!(slices(&small, 0, 1 << 30).unwrap(), [small]);
        assert!(slices(&batch.slice(0, 0), 0, 0).unwrap().is_empty());
    }

    #[test]
    fn dictionaries_of_short_values_are_not_counted_row_by_row() {
        let values = StringArray::from_iter_values((0..200).map(|n| format!("country {n}")));
        let keys = Int32Array::from_iter_values((0..8192).map(|row| row % 200));
        let column: ArrayRef = Arc::new(DictionaryArray::new(keys, Arc::new(values)));
        let batch = RecordBatch::try_from_iter([("d", column)]).unwrap();
        assert!(Slices::new(batch, 0, 1 << 20).growing.is_empty());
    }

    #[test]
    fn runs_count_once_for_each_row() {
        let ends = arrow_array::Int32Array::from(vec![3, 1000, 1003]);
        let values = StringArray::from(vec!["a".to_owned(), "b".repeat(1 << 20), "c".to_owned()]);
        let runs: ArrayRef = Arc::new(RunArray::<Int32Type>::try_new(&ends, &values).unwrap());
        assert_eq!(bytes(&runs, 0, 1003), 3 + 997 * (1 << 20) + 3);
        assert_eq!(bytes(&runs.slice(2, 3), 0, 3), 1 + 2 * (1 << 20));
        assert_eq!(bytes(&runs.slice(1, 1002), 998, 2), (1 << 20) + 1);
        let batch = RecordBatch::try_from_iter([("r", runs)]).unwrap();
        let rows: usize = slices(&batch, 0, 1 << 30).unwrap().iter().map(RecordBatch::num_rows).sum();
        assert_eq!(rows, 1003);
    }

    #[test]
    fn counting_nested_lists_stops_at_the_limit() {
        // Three levels of 10,000 lists, each of which contains the whole next level, above empty lists.
        let mut items: ArrayRef = Arc::new(arrow_array::Int8Array::from(Vec::<i8>::new()));
        for level in 0..4 {
            let field = Arc::new(Field::new_list_field(items.data_type().clone(), true));
            let sizes = vec![if level == 0 { 0 } else { 10_000 }; 10_000];
            let offsets = vec![0; 10_000];
            let lists = arrow_array::ListViewArray::try_new(field, offsets.into(), sizes.into(), items, None);
            items = Arc::new(lists.unwrap());
        }
        let column: ArrayRef = Arc::new(DictionaryArray::new(Int32Array::from(vec![0]), items));
        let batch = RecordBatch::try_from_iter([("d", column)]).unwrap();
        let error = slices(&batch, 0, 1 << 20).unwrap_err();
        assert!(matches!(error, SourceError::RowTooLarge { row: 1, .. }), "{error:?}");
    }

    proptest! {
        #[test]
        fn slices_keep_rows_of_any_type(batches in arrays::any_batches()) {
            for batch in batches {
                for column in batch.columns() {
                    bytes(column, 0, column.len());
                }
                let mut row = 0;
                for slice in slices(&batch, 0, u64::MAX - 1).unwrap() {
                    prop_assert_eq!(&slice, &batch.slice(row, slice.num_rows()));
                    row += slice.num_rows();
                }
                prop_assert_eq!(row, batch.num_rows());
            }
        }
    }
}
