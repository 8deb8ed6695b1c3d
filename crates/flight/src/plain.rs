//! Columns as plain values: without dictionaries, runs, views and the newest decimals, which not all clients can read.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ByteViewType, RunEndIndexType};
use arrow_array::{
    Array, ArrayRef, GenericByteViewArray, GenericListViewArray, OffsetSizeTrait, RecordBatch,
    RecordBatchOptions, RunArray, UInt64Array, downcast_dictionary_array, downcast_run_array,
};
use arrow_buffer::ArrowNativeType;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema, SchemaRef};
use arrow_select::take::take;
use lightship_wire::control::{ErrorCode, Failure};

/// Rows that have at most this many bytes as plain values are converted at once. A dictionary of one large value can be
/// thousands of times larger as values.
const PIECE_BYTES: u64 = 8 << 20;

/// The type in which values of a type are sent.
pub(crate) fn plain_type(data_type: &DataType) -> DataType {
    use DataType::*;
    match data_type {
        Dictionary(_, values) => plain_type(values),
        RunEndEncoded(_, values) => plain_type(values.data_type()),
        Utf8View => Utf8,
        BinaryView => Binary,
        Decimal32(precision, scale) | Decimal64(precision, scale) => Decimal128(*precision, *scale),
        List(item) | ListView(item) => List(plain_field(item)),
        LargeList(item) | LargeListView(item) => LargeList(plain_field(item)),
        FixedSizeList(item, size) => FixedSizeList(plain_field(item), *size),
        Map(entries, sorted) => Map(plain_field(entries), *sorted),
        Struct(fields) => Struct(fields.iter().map(plain_field).collect()),
        other => other.clone(),
    }
}

/// A field with the type in which its values are sent.
pub(crate) fn plain_field(field: &FieldRef) -> FieldRef {
    let data_type = plain_type(field.data_type());
    if data_type == *field.data_type() {
        return field.clone();
    }
    let nullable = match field.data_type() {
        // The nulls of runs are those of their values.
        DataType::RunEndEncoded(_, values) => field.is_nullable() || values.is_nullable(),
        _ => field.is_nullable(),
    };
    Arc::new(Field::new(field.name(), data_type, nullable).with_metadata(field.metadata().clone()))
}

/// Columns with the types in which their values are sent.
pub(crate) fn plain_schema(schema: &Schema) -> SchemaRef {
    let fields: Vec<_> = schema.fields().iter().map(plain_field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Whether rows with the columns `answered` can be sent as `declared`: the same names and, but for what is optional or
/// annotated, the same types.
pub(crate) fn are_sent_as(answered: &Schema, declared: &Schema) -> bool {
    let same = |answered: &FieldRef, declared: &FieldRef| {
        answered.name() == declared.name() && similar(&plain_type(answered.data_type()), declared.data_type())
    };
    answered.fields().len() == declared.fields().len()
        && answered.fields().iter().zip(declared.fields()).all(|(a, d)| same(a, d))
}

/// Whether types are equal but for the names, annotations and nulls of what is nested in them.
fn similar(one: &DataType, other: &DataType) -> bool {
    use DataType::*;
    let fields = |one: &FieldRef, other: &FieldRef| similar(one.data_type(), other.data_type());
    match (one, other) {
        (List(a), List(b)) | (LargeList(a), LargeList(b)) => fields(a, b),
        (FixedSizeList(a, size), FixedSizeList(b, other)) => size == other && fields(a, b),
        (Map(a, sorted), Map(b, other)) => sorted == other && fields(a, b),
        (Struct(a), Struct(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.name() == b.name() && fields(a, b))
        }
        _ => one == other,
    }
}

/// The number of rows from `start` that are converted at once, at least 1.
///
/// # Errors
/// [`ErrorCode::RowTooLarge`] if a single row has more than `row_bytes_max` as plain values.
pub(crate) fn rows_at_once(
    batch: &RecordBatch,
    schema: &Schema,
    start: usize,
    row_bytes_max: u64,
) -> Result<usize, Failure> {
    let bytes = |rows| growing_bytes(batch, schema, start, rows);
    let rest = batch.num_rows() - start;
    if rest <= 1 || bytes(rest) <= PIECE_BYTES {
        if rest == 1 {
            check_row(bytes(1), row_bytes_max)?;
        }
        return Ok(rest);
    }
    // `low` rows fit, or there is one; `high` do not.
    let (mut low, mut high) = (1, rest);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if bytes(middle) <= PIECE_BYTES { low = middle } else { high = middle }
    }
    if low == 1 {
        check_row(bytes(1), row_bytes_max)?;
    }
    Ok(low)
}

/// The size of `len` rows from `start` as plain values, in the columns that are converted.
pub(crate) fn growing_bytes(batch: &RecordBatch, schema: &Schema, start: usize, len: usize) -> u64 {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.filter(|(column, field)| column.data_type() != field.data_type());
    columns.fold(0, |sum: u64, (column, _)| sum.saturating_add(plain_bytes(column, start, len)))
}

fn check_row(bytes: u64, bytes_max: u64) -> Result<(), Failure> {
    if bytes <= bytes_max {
        return Ok(());
    }
    let message = format!("a row has {bytes} bytes; messages of Flight have at most {bytes_max}");
    Err(Failure { needed_bytes: Some(bytes), ..Failure::new(ErrorCode::RowTooLarge, message) })
}

/// Rows with the types of `schema`, as which they can be sent.
///
/// # Errors
/// [`ErrorCode::Data`] if there is a NULL in a column that is not nullable.
pub(crate) fn plain_batch(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, Failure> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| plain_array(column, field.data_type()));
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = columns.collect::<Result<_, _>>().map_err(data_failure)?;
    RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(data_failure)
}

fn data_failure(error: ArrowError) -> Failure {
    Failure::new(ErrorCode::Data, error.to_string())
}

fn plain_array(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == data_type {
        return Ok(array.clone());
    }
    // A cast converts all values below a list, also those of other rows.
    let array = match shares_values(array) {
        true => &take(array, &UInt64Array::from_iter_values(0..array.len() as u64), None)?,
        false => array,
    };
    cast_with_options(array, data_type, &CastOptions { safe: false, ..CastOptions::default() })
}

/// Whether an array has lists whose values are those of other rows too.
fn shares_values(array: &ArrayRef) -> bool {
    let covers = |first: usize, last: usize, values: &ArrayRef| first == 0 && last == values.len();
    match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let (first, last) = (list.offsets()[0] as usize, list.offsets()[list.len()] as usize);
            !covers(first, last, list.values()) || shares_values(list.values())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let (first, last) = (list.offsets()[0] as usize, list.offsets()[list.len()] as usize);
            !covers(first, last, list.values()) || shares_values(list.values())
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let (first, last) = (map.offsets()[0] as usize, map.offsets()[map.len()] as usize);
            first != 0 || last != map.entries().len()
        }
        DataType::ListView(_) | DataType::LargeListView(_) => true,
        DataType::Struct(_) => array.as_struct().columns().iter().any(shares_values),
        _ => false,
    }
}

/// The size of `len` rows from `start` as plain values.
fn plain_bytes(array: &dyn Array, start: usize, len: usize) -> u64 {
    use DataType::*;
    let rows = len as u64;
    match array.data_type() {
        Utf8 => offset_bytes(array.as_string::<i32>().offsets(), start, len),
        LargeUtf8 => offset_bytes(array.as_string::<i64>().offsets(), start, len),
        Binary => offset_bytes(array.as_binary::<i32>().offsets(), start, len),
        LargeBinary => offset_bytes(array.as_binary::<i64>().offsets(), start, len),
        Utf8View => view_bytes(array.as_string_view(), start, len),
        BinaryView => view_bytes(array.as_binary_view(), start, len),
        List(_) => {
            let list = array.as_list::<i32>();
            list_bytes(list.offsets(), list.values(), start, len)
        }
        LargeList(_) => {
            let list = array.as_list::<i64>();
            list_bytes(list.offsets(), list.values(), start, len)
        }
        Map(..) => {
            let map = array.as_map();
            list_bytes(map.offsets(), map.entries(), start, len)
        }
        ListView(_) => list_view_bytes(array.as_list_view::<i32>(), start, len),
        LargeListView(_) => list_view_bytes(array.as_list_view::<i64>(), start, len),
        FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(0);
            plain_bytes(array.as_fixed_size_list().values(), start * size, len * size)
        }
        Struct(_) => {
            let columns = array.as_struct().columns().iter();
            columns.fold(rows, |sum, column| sum.saturating_add(plain_bytes(column, start, len)))
        }
        Dictionary(..) => downcast_dictionary_array!(
            array => {
                let value = |row| array.key(row).map_or(0, |key| plain_bytes(array.values(), key, 1));
                (start..start + len).fold(rows, |sum, row| sum.saturating_add(value(row)))
            }
            _ => rows
        ),
        RunEndEncoded(..) => downcast_run_array!(
            array => run_bytes(array, start, len),
            _ => rows
        ),
        // Decimals are sent with 16 bytes.
        Decimal32(..) | Decimal64(..) => rows * 16,
        FixedSizeBinary(size) => rows.saturating_mul(u64::try_from(*size).unwrap_or(0)),
        // A union is sent as it is; the cut into messages takes care of it.
        other => rows.saturating_mul(other.primitive_width().unwrap_or(1) as u64),
    }
}

fn offset_bytes<O: OffsetSizeTrait>(offsets: &[O], start: usize, len: usize) -> u64 {
    let bytes = offsets[start + len].as_usize() - offsets[start].as_usize();
    (bytes + len * size_of::<O>()) as u64
}

fn view_bytes<T: ByteViewType>(array: &GenericByteViewArray<T>, start: usize, len: usize) -> u64 {
    // The length is the first part of a view.
    array.views()[start..start + len].iter().map(|view| u64::from(*view as u32) + 4).sum()
}

fn list_bytes<O: OffsetSizeTrait>(offsets: &[O], values: &dyn Array, start: usize, len: usize) -> u64 {
    let (first, last) = (offsets[start].as_usize(), offsets[start + len].as_usize());
    plain_bytes(values, first, last - first).saturating_add((len * size_of::<O>()) as u64)
}

fn list_view_bytes<O: OffsetSizeTrait>(list: &GenericListViewArray<O>, start: usize, len: usize) -> u64 {
    let value = |row: usize| {
        plain_bytes(list.values(), list.value_offset(row).as_usize(), list.value_size(row).as_usize())
    };
    let offsets = (len * size_of::<O>()) as u64;
    (start..start + len).fold(offsets, |sum, row| sum.saturating_add(value(row)))
}

fn run_bytes<R: RunEndIndexType>(array: &RunArray<R>, start: usize, len: usize) -> u64 {
    let (mut row, end, mut sum) = (start, start + len, 0_u64);
    while row < end {
        let run = array.get_physical_index(row);
        let ends = array.run_ends().values()[run].as_usize();
        let run_end = ends.saturating_sub(array.run_ends().offset()).clamp(row + 1, end);
        let value = plain_bytes(array.values(), run, 1);
        sum = sum.saturating_add(value.saturating_mul((run_end - row) as u64));
        row = run_end;
    }
    sum
}

#[cfg(test)]
mod tests {
    use arrow_array::types::{Int32Type, UInt8Type};
    use arrow_array::{
        DictionaryArray, Int32Array, Int64Array, ListArray, RunArray, StringArray, StringViewArray,
    };

    use super::*;

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, c)| (name, c, true)))
            .unwrap()
    }

    fn plain(batch: &RecordBatch) -> RecordBatch {
        plain_batch(batch, &plain_schema(&batch.schema())).unwrap()
    }

    #[test]
    fn values_stay_the_same() {
        let words: DictionaryArray<UInt8Type> = ["a", "b", "a"].into_iter().collect();
        let runs =
            RunArray::try_new(&Int32Array::from(vec![2, 3]), &StringArray::from(vec!["x", "y"])).unwrap();
        let views = StringViewArray::from(vec![Some("a long text, not inline"), None, Some("z")]);
        let lists = ListArray::new(
            Arc::new(Field::new("item", DataType::Utf8View, true)),
            arrow_buffer::OffsetBuffer::from_lengths([1, 0, 2]),
            Arc::new(StringViewArray::from(vec!["p", "q", "r"])),
            None,
        );
        let before = batch(vec![
            ("words", Arc::new(words)),
            ("runs", Arc::new(runs)),
            ("views", Arc::new(views)),
            ("lists", Arc::new(lists)),
            ("numbers", Arc::new(Int64Array::from(vec![1, 2, 3]))),
        ]);
        let after = plain(&before);
        let texts = |at: usize| after.column(at).as_string::<i32>().iter().collect::<Vec<_>>();
        assert_eq!(texts(0), [Some("a"), Some("b"), Some("a")]);
        assert_eq!(texts(1), [Some("x"), Some("x"), Some("y")]);
        assert_eq!(texts(2), [Some("a long text, not inline"), None, Some("z")]);
        let items = after.column(3).as_list::<i32>();
        assert_eq!(items.value(2).as_string::<i32>().iter().collect::<Vec<_>>(), [Some("q"), Some("r")]);
        assert!(Arc::ptr_eq(before.column(4), after.column(4)), "plain columns are not copied");
        // The lists of a slice refer to the values of all rows.
        let last = plain(&before.slice(2, 1));
        assert_eq!(last.column(3).as_list::<i32>().values().len(), 2);
        assert!(are_sent_as(&before.schema(), &after.schema()));
        assert!(!are_sent_as(&before.schema(), &before.schema()));
    }

    #[test]
    fn large_dictionaries_are_converted_in_pieces() {
        let (rows, value_bytes) = (100, 1 << 20);
        let keys = Int32Array::from(vec![0; rows]);
        let values = StringArray::from(vec!["x".repeat(value_bytes)]);
        let column = DictionaryArray::<Int32Type>::new(keys, Arc::new(values));
        let batch = batch(vec![("large", Arc::new(column))]);
        let schema = plain_schema(&batch.schema());
        let (mut start, mut pieces) = (0, 0);
        while start < rows {
            let piece = rows_at_once(&batch, &schema, start, 2 << 20).unwrap();
            assert!((1..=8).contains(&piece), "{piece}");
            (start, pieces) = (start + piece, pieces + 1);
        }
        assert_eq!(start, rows);
        assert!(pieces >= 12, "{pieces}");
        let refused = rows_at_once(&batch, &schema, rows - 1, 1 << 19).unwrap_err();
        assert_eq!(refused.code, ErrorCode::RowTooLarge);
        assert!(refused.needed_bytes.unwrap() >= value_bytes as u64);
    }

    #[test]
    fn sizes_count_what_is_sent() {
        let runs = RunArray::try_new(
            &Int32Array::from(vec![10, 20]),
            &StringArray::from(vec!["x".repeat(50), "y".into()]),
        );
        let runs = runs.unwrap();
        let (first, second) = (plain_bytes(&runs, 0, 10), plain_bytes(&runs, 10, 10));
        assert_eq!((first, second), (540, 50));
        assert_eq!(plain_bytes(&runs, 5, 10), first / 2 + second / 2);
        let sliced = runs.slice(5, 10);
        assert_eq!(plain_bytes(&sliced, 0, 10), first / 2 + second / 2);
    }
}
