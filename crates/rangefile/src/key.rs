//! Keys as bytes whose order is the order of the keys, and intervals of them.

use std::fmt;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{DataType, SchemaRef};

use crate::error::{RangeError, Result};
use crate::key_bytes::is_key;

/// A key, or a bound between keys, as bytes. The empty bytes precede every key.
pub type Key = Vec<u8>;

/// The longest key in bytes. Bounds of buckets are kept in memory by every node and client.
pub const KEY_BYTES_MAX: usize = 4 << 10;

/// The keys from `low` (included) to `high` (excluded); without `high`, to the last one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interval {
    /// The least bytes in it.
    pub low: Key,
    /// The least bytes after it.
    pub high: Option<Key>,
}

impl Interval {
    /// All keys.
    pub const ALL: Self = Self { low: Vec::new(), high: None };

    /// The interval with these bounds.
    pub fn new(low: Key, high: Option<Key>) -> Self {
        Self { low, high }
    }

    /// The interval that has only `key`.
    pub fn of_key(key: &[u8]) -> Self {
        Self { low: key.to_vec(), high: Some(after(key)) }
    }

    /// Whether it has only one key, `low`.
    pub fn is_of_key(&self) -> bool {
        self.high.as_ref().is_some_and(|high| *high == after(&self.low))
    }

    /// Whether no key is in it.
    pub fn is_empty(&self) -> bool {
        self.high.as_ref().is_some_and(|high| *high <= self.low)
    }

    /// Whether the key is in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.low <= *key && !is_past(self.high.as_deref(), key)
    }

    /// Whether all of `other` is in it.
    pub fn covers(&self, other: &Self) -> bool {
        other.is_empty() || (self.low <= other.low && !self.ends_before(other))
    }

    /// The keys that are in both; empty if there are none.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let low = self.low.clone().max(other.low.clone());
        let high = if self.ends_before(other) { &self.high } else { &other.high };
        Self { low, high: high.clone() }
    }

    /// Whether it ends before the other one does.
    pub fn ends_before(&self, other: &Self) -> bool {
        ends_before(self.high.as_deref(), other.high.as_deref())
    }

    /// Whether a key could be in both.
    pub fn meets(&self, other: &Self) -> bool {
        !self.intersection(other).is_empty()
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, ", Hex(&self.low))?;
        match &self.high {
            Some(high) => write!(f, "{})", Hex(high)),
            None => f.write_str("..)"),
        }
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The least bytes that are greater than `key`.
pub(crate) fn after(key: &[u8]) -> Key {
    [key, &[0]].concat()
}

/// Whether an interval that ends at `high` has no key from `key` on.
fn is_past(high: Option<&[u8]>, key: &[u8]) -> bool {
    high.is_some_and(|high| high <= key)
}

/// Whether an interval that ends at `high` ends before one that ends at `other`.
pub(crate) fn ends_before(high: Option<&[u8]>, other: Option<&[u8]>) -> bool {
    match (high, other) {
        (Some(high), Some(other)) => high < other,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// Converts the key columns of rows to bytes and back.
pub struct KeyFormat {
    /// Positions of the key columns in the schema, in the order of the key.
    columns: Vec<usize>,
    schema: SchemaRef,
    converter: RowConverter,
}

impl fmt::Debug for KeyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyFormat").field(&self.columns).finish()
    }
}

impl KeyFormat {
    /// The format of the keys of a file with these columns.
    ///
    /// # Errors
    /// If there is no such column, a column is named twice, or its type has no order.
    pub fn new(schema: &SchemaRef, key: &[String]) -> Result<Self> {
        let mut columns = Vec::new();
        for name in key {
            let column = schema.index_of(name).map_err(|_| {
                let all: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                RangeError::Definition(format!(
                    "there is no column {name}; the columns are {}",
                    all.join(", ")
                ))
            })?;
            if columns.contains(&column) {
                return Err(RangeError::Definition(format!("column {name} is twice in the key")));
            }
            let data_type = schema.field(column).data_type();
            if !is_ordered(data_type) {
                return Err(RangeError::Definition(format!(
                    "column {name} of type {data_type} can't be a key"
                )));
            }
            columns.push(column);
        }
        if columns.is_empty() {
            return Err(RangeError::Definition("a key needs at least one column".into()));
        }
        let fields = columns.iter().map(|&column| SortField::new(schema.field(column).data_type().clone()));
        let converter = RowConverter::new(fields.collect())?;
        Ok(Self { columns, schema: schema.clone(), converter })
    }

    /// Positions of the key columns in the schema, in the order of the key.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The keys of rows.
    ///
    /// # Errors
    /// [`RangeError::NullKey`] if a key has NULL; [`RangeError::LongKey`] if one is too long.
    pub fn keys(&self, batch: &RecordBatch) -> Result<Rows> {
        let arrays: Vec<ArrayRef> = self.columns.iter().map(|&column| batch.column(column).clone()).collect();
        for (array, &column) in arrays.iter().zip(&self.columns) {
            if let Some(row) = (array.logical_null_count() > 0)
                .then(|| array.logical_nulls())
                .flatten()
                .and_then(|nulls| (0..array.len()).find(|&row| nulls.is_null(row)))
            {
                let column = self.schema.field(column).name().clone();
                return Err(RangeError::NullKey { column, row: row as u64 });
            }
        }
        let rows = self.converter.convert_columns(&arrays)?;
        match rows.lengths().position(|bytes| bytes > KEY_BYTES_MAX) {
            Some(row) => Err(RangeError::LongKey { row: row as u64, bytes: rows.row(row).data().len() }),
            None => Ok(rows),
        }
    }

    /// No keys.
    pub(crate) fn no_keys(&self) -> Rows {
        self.converter.empty_rows(0, 0)
    }

    /// The key of some values, one for each key column.
    ///
    /// # Errors
    /// As [`KeyFormat::keys`].
    pub fn key(&self, values: &[ArrayRef]) -> Result<Key> {
        let rows = self.converter.convert_columns(values)?;
        match rows.num_rows() {
            1 => Ok(rows.row(0).data().to_vec()),
            rows => Err(RangeError::Definition(format!("{rows} values for one key"))),
        }
    }

    /// The bounds of all keys that begin with these values, of the first key columns, one array of length 1 for
    /// each: the least bytes in, and the least bytes after them (`None` if no key follows).
    ///
    /// # Errors
    /// If there are no values, more than columns, or their types are not those of the columns.
    pub fn prefix(&self, values: &[ArrayRef]) -> Result<Interval> {
        if values.is_empty() || values.len() > self.columns.len() || values.iter().any(|v| v.len() != 1) {
            return Err(RangeError::Definition(format!(
                "{} values for a key of {} columns",
                values.len(),
                self.columns.len()
            )));
        }
        // Columns are encoded one after the other, and no encoding of a value is the beginning of another one.
        let fields = self.columns.iter().take(values.len());
        let fields = fields.map(|&column| SortField::new(self.schema.field(column).data_type().clone()));
        let rows = RowConverter::new(fields.collect())?.convert_columns(values)?;
        let low = rows.row(0).data().to_vec();
        let mut high = low.clone();
        while high.last() == Some(&u8::MAX) {
            high.pop();
        }
        let high = high.last_mut().map(|last| *last += 1).is_some().then_some(high);
        Ok(Interval { low, high })
    }

    /// The values of a key, one array of length 1 for each key column. `None` if these are not bytes of a key,
    /// as bounds need not be, and what other nodes send may not be.
    pub fn values(&self, key: &[u8]) -> Option<Vec<ArrayRef>> {
        let types = self.columns.iter().map(|&column| self.schema.field(column).data_type());
        if !is_key(types, key) {
            return None;
        }
        let parser = self.converter.parser();
        self.converter.convert_rows([parser.parse(key)]).ok()
    }

    /// The key as text.
    pub fn display(&self, key: &[u8]) -> String {
        self.text(key).unwrap_or_else(|| Hex(key).to_string())
    }

    /// The values of a key, or of the first columns of keys, as text.
    fn text(&self, key: &[u8]) -> Option<String> {
        let options = arrow_cast::display::FormatOptions::default();
        let text = |array: &ArrayRef| {
            let formatter = arrow_cast::display::ArrayFormatter::try_new(array, &options).ok()?;
            Some(formatter.value(0).to_string())
        };
        let values = self.values(key).or_else(|| self.first_values(key))?;
        Some(values.iter().map(text).collect::<Option<Vec<_>>>()?.join(", "))
    }

    /// The values in bytes that keys begin with, for some of their columns.
    fn first_values(&self, bytes: &[u8]) -> Option<Vec<ArrayRef>> {
        let data_type = |&column: &usize| self.schema.field(column).data_type();
        let columns = (1..self.columns.len()).map(|count| &self.columns[..count]);
        let columns = columns.rev().find(|columns| is_key(columns.iter().map(data_type), bytes))?;
        let fields = columns.iter().map(|column| SortField::new(data_type(column).clone()));
        let converter = RowConverter::new(fields.collect()).ok()?;
        let parser = converter.parser();
        converter.convert_rows([parser.parse(bytes)]).ok()
    }

    /// The ends of an interval as text: its first key, and the first key after it. Where these bytes are only next to a
    /// key, it says so.
    pub fn display_interval(&self, interval: &Interval) -> (String, String) {
        let text = |bytes: &[u8], beside: &str| {
            let next_to = || bytes.strip_suffix(&[0]).and_then(|key| self.text(key));
            self.text(bytes)
                .or_else(|| next_to().map(|key| format!("{key} ({beside})")))
                .unwrap_or_else(|| Hex(bytes).to_string())
        };
        let from = match interval.low.as_slice() {
            [] => "the first".to_owned(),
            low => text(low, "excluded"),
        };
        let to = interval.high.as_ref().map_or_else(|| "the last".to_owned(), |high| text(high, "included"));
        (from, to)
    }
}

/// Whether values of the type have an order, and keep it as bytes.
fn is_ordered(data_type: &DataType) -> bool {
    data_type.is_integer()
        || data_type.is_floating()
        || data_type.is_temporal()
        || matches!(
            data_type,
            DataType::Boolean
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
                | DataType::FixedSizeBinary(_)
                | DataType::Decimal32(..)
                | DataType::Decimal64(..)
                | DataType::Decimal128(..)
                | DataType::Decimal256(..)
        )
}

/// The positions of rows in the order of their keys; equal keys keep their order.
pub(crate) fn order(keys: &Rows) -> Vec<u32> {
    let mut order: Vec<u32> = (0..keys.num_rows() as u32).collect();
    order.sort_by(|&a, &b| keys.row(a as usize).cmp(&keys.row(b as usize)));
    order
}

/// Shared by all who read and write a file.
pub(crate) type SharedKeyFormat = Arc<KeyFormat>;

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, StringArray};
    use arrow_schema::{Field, Schema};
    use proptest::prelude::*;

    use super::*;

    fn format() -> KeyFormat {
        let schema = Schema::new(vec![
            Field::new("v", DataType::Int64, true),
            Field::new("a", DataType::Utf8, false),
            Field::new("n", DataType::Int64, true),
        ]);
        KeyFormat::new(&Arc::new(schema), &["a".into(), "n".into()]).unwrap()
    }

    fn batch(rows: &[(&str, Option<i64>)]) -> RecordBatch {
        let texts: StringArray = rows.iter().map(|(text, _)| Some(*text)).collect();
        let numbers: Int64Array = rows.iter().map(|(_, number)| *number).collect();
        RecordBatch::try_new(
            format().schema.clone(),
            vec![Arc::new(numbers.clone()), Arc::new(texts), Arc::new(numbers)],
        )
        .unwrap()
    }

    #[test]
    fn keys_have_the_order_of_their_values() {
        let rows = [("", Some(0)), ("a", Some(-5)), ("a", Some(7)), ("a\0", Some(1)), ("b", Some(i64::MIN))];
        let keys = format().keys(&batch(&rows)).unwrap();
        for pair in 1..rows.len() {
            assert!(keys.row(pair - 1) < keys.row(pair), "{pair}");
        }
        assert_eq!(format().display(keys.row(2).data()), "a, 7");
    }

    #[test]
    fn the_ends_of_intervals_are_values() {
        let format = format();
        let keys = format.keys(&batch(&[("a", Some(5)), ("b", Some(7))])).unwrap();
        let (a, b) = (keys.row(0).data(), keys.row(1).data());
        let value: ArrayRef = Arc::new(StringArray::from(vec!["c"]));
        let c = format.prefix(&[value]).unwrap().low;
        for (interval, expected) in [
            (Interval::ALL, ("the first", "the last")),
            (Interval::new(a.to_vec(), Some(b.to_vec())), ("a, 5", "b, 7")),
            (Interval::new(after(a), Some(after(b))), ("a, 5 (excluded)", "b, 7 (included)")),
            (Interval::new(a.to_vec(), Some(c.clone())), ("a, 5", "c")),
            (Interval::new(c, Some(vec![7, 255])), ("c", "07ff")),
        ] {
            let (from, to) = format.display_interval(&interval);
            assert_eq!((from.as_str(), to.as_str()), expected);
        }
    }

    /// The bytes are stored: an upgrade of the library must not change them.
    #[test]
    fn keys_have_the_stored_bytes() {
        let keys = format().keys(&batch(&[("ab", Some(258))])).unwrap();
        let expected = [2, b'a', b'b', 0, 0, 0, 0, 0, 0, 2, 1, 0x80, 0, 0, 0, 0, 0, 1, 2];
        assert_eq!(keys.row(0).data(), expected);
    }

    #[test]
    fn a_prefix_has_all_keys_that_begin_with_it() {
        let format = format();
        let texts = ["", "a", "a\0", "ab", "b", "\u{10ffff}"];
        for prefix in texts {
            let value: ArrayRef = Arc::new(StringArray::from(vec![prefix]));
            let interval = format.prefix(&[value]).unwrap();
            for text in texts {
                for number in [i64::MIN, -1, 0, 255, i64::MAX] {
                    let key = format.keys(&batch(&[(text, Some(number))])).unwrap();
                    assert_eq!(
                        interval.contains(key.row(0).data()),
                        text == prefix,
                        "{prefix:?} {text:?} {number}"
                    );
                }
            }
        }
        assert!(format.prefix(&[]).is_err());
    }

    #[test]
    fn null_is_no_key() {
        let error = format().keys(&batch(&[("a", Some(1)), ("b", None)])).unwrap_err();
        assert!(matches!(error, RangeError::NullKey { row: 1, .. }), "{error}");
    }

    #[test]
    fn long_keys_are_refused() {
        let long = "x".repeat(KEY_BYTES_MAX);
        let error = format().keys(&batch(&[(&long, Some(1))])).unwrap_err();
        assert!(matches!(error, RangeError::LongKey { row: 0, .. }), "{error}");
    }

    fn interval() -> impl Strategy<Value = Interval> {
        let bytes = || prop::collection::vec(0..3u8, 0..3);
        (bytes(), prop::option::of(bytes())).prop_map(|(low, high)| Interval { low, high })
    }

    /// One column of each type that a key can have, in groups: a text is followed by another value.
    fn formats() -> Vec<(KeyFormat, Vec<ArrayRef>)> {
        use arrow_array::*;
        use arrow_buffer::i256;
        let values: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(vec![
                "a text that is longer than all of the small blocks together: it has many",
            ])),
            Arc::new(Int64Array::from(vec![7])),
            Arc::new(BooleanArray::from(vec![true])),
            Arc::new(BinaryArray::from(vec![&[0, 255][..]])),
            Arc::new(Float32Array::from(vec![-0.5])),
            Arc::new(StringViewArray::from(vec![""])),
            Arc::new(LargeStringArray::from(vec!["12345678"])),
            Arc::new(FixedSizeBinaryArray::try_from_iter([[1_u8, 2, 3]].into_iter()).unwrap()),
            Arc::new(Decimal256Array::from(vec![i256::from_i128(-5)])),
            Arc::new(TimestampNanosecondArray::from(vec![i64::MAX])),
            Arc::new(BinaryViewArray::from(vec![&[1; 33][..]])),
            Arc::new(LargeBinaryArray::from(vec![&[1; 32][..]])),
        ];
        let single = values.iter().map(|value| vec![value.clone()]);
        let pairs = values.windows(2).map(<[ArrayRef]>::to_vec);
        let groups = single.chain(pairs).chain([values.clone()]);
        let format = |values: Vec<ArrayRef>| {
            let names: Vec<String> = (0..values.len()).map(|column| column.to_string()).collect();
            let fields = names.iter().zip(&values);
            let fields = fields.map(|(name, value)| Field::new(name, value.data_type().clone(), false));
            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            (KeyFormat::new(&schema, &names).unwrap(), values)
        };
        groups.map(format).collect()
    }

    #[test]
    fn keys_of_all_types_have_their_values() {
        for (format, values) in formats() {
            let key = format.key(&values).unwrap();
            assert_eq!(format.values(&key).as_ref(), Some(&values), "{format:?}");
            for length in 0..key.len() {
                assert!(format.values(&key[..length]).is_none(), "{format:?}, {length} bytes");
            }
            assert!(format.values(&after(&key)).is_none(), "{format:?}");
        }
    }

    proptest! {
        /// Bounds of buckets come from other nodes, and are shown as text.
        #[test]
        fn bytes_that_are_no_key_have_no_values(
            mut bytes in prop::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..80),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            for (format, values) in formats() {
                let _ = format.display(&bytes);
                let mut key = format.key(&values).unwrap();
                for (at, byte) in &changes {
                    let at = at.index(key.len());
                    key[at] = *byte;
                }
                let _ = format.display(&key);
                std::mem::swap(&mut bytes, &mut key);
            }
        }

        #[test]
        fn intervals_are_sets_of_keys(a in interval(), b in interval(), key in prop::collection::vec(0..3u8, 0..4)) {
            let both = a.intersection(&b);
            prop_assert_eq!(both.contains(&key), a.contains(&key) && b.contains(&key));
            if a.covers(&b) && b.contains(&key) {
                prop_assert!(a.contains(&key));
            }
            if !a.meets(&b) {
                prop_assert!(!(a.contains(&key) && b.contains(&key)));
            }
            prop_assert_eq!(Interval::of_key(&key).contains(&key), true);
        }
    }
}
