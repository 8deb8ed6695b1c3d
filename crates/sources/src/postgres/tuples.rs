//! Copies rows from one table of PostgreSQL to another without decoding them.
//!
//! A row of a result in binary format (`DataRow`) has exactly the bytes of a tuple of binary COPY. If
//! each column goes into one of the same type, decoding is unnecessary. Tuples travel as batches of
//! one binary column, in which each value is a tuple.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use arrow_array::{BinaryArray, RecordBatch};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::decode::Bad;
use super::message::Described;
use super::oid::{BPCHAR, TEXT, VARCHAR};
use super::rows::BATCH_BYTES_MAX;
use crate::{InfiniteRule, NumericRule, ReadOptions};

/// The schema of a batch of tuples.
static SCHEMA: LazyLock<SchemaRef> =
    LazyLock::new(|| Arc::new(Schema::new(vec![Field::new("tuple", DataType::Binary, false)])));

/// Types whose binary format is the same on every server, each with its array type. That excludes `money`, whose
/// decimal places depend on the locale, and types that a database defines itself.
const PORTABLE: &[(u32, u32)] = &[
    (16, 1000),
    (17, 1001),
    (20, 1016),
    (21, 1005),
    (23, 1007),
    (TEXT, 1009),
    (114, 199),
    (700, 1021),
    (701, 1022),
    (BPCHAR, 1014),
    (VARCHAR, 1015),
    (1082, 1182),
    (1083, 1183),
    (1114, 1115),
    (1184, 1185),
    (1186, 1187),
    (1700, 1231),
    (2950, 2951),
    (3802, 3807),
    (26, 1028),
    // "char", name, bit, varbit, timetz, pg_lsn
    (18, 1002),
    (19, 1003),
    (1560, 1561),
    (1562, 1563),
    (1266, 1270),
    (3220, 3221),
    // inet, cidr, macaddr, macaddr8
    (869, 1041),
    (650, 651),
    (829, 1040),
    (774, 775),
    // tsvector, tsquery
    (3614, 3643),
    (3615, 3645),
    // Points, lines and areas.
    (600, 1017),
    (601, 1018),
    (602, 1019),
    (603, 1020),
    (604, 1027),
    (628, 629),
    (718, 719),
    // Ranges and multiranges.
    (3904, 3905),
    (3906, 3907),
    (3908, 3909),
    (3910, 3911),
    (3912, 3913),
    (3926, 3927),
    (4451, 6150),
    (4532, 6151),
    (4533, 6152),
    (4534, 6153),
    (4535, 6155),
    (4536, 6157),
];

/// A source's offer to leave its rows undecoded. A destination that accepts it gets batches of tuples.
#[derive(Debug)]
pub struct Tuples {
    columns: Vec<Described>,
    taken: Arc<AtomicBool>,
}

impl Tuples {
    /// The offer for rows of `columns`; `None` if they would differ undecoded.
    pub(super) fn offer(columns: &[Described], options: &ReadOptions) -> Option<Self> {
        // Rules for values are applied when they are decoded.
        let has_rules = options.infinite != InfiniteRule::Error || options.numeric != NumericRule::RESULT;
        (options.tuples && !has_rules && !columns.is_empty())
            .then(|| Self { columns: columns.to_vec(), taken: Arc::default() })
    }

    /// A function that tells later whether the offer was accepted.
    pub(super) fn taken(&self) -> impl FnOnce() -> bool + Send + 'static {
        let taken = self.taken.clone();
        move || taken.load(Ordering::Relaxed)
    }

    /// Accepts the offer if tuples of these rows are tuples of `columns`, and returns whether it did.
    pub(super) fn take_for<'a>(self, columns: impl ExactSizeIterator<Item = &'a Described>) -> bool {
        let fits = self.columns.len() == columns.len()
            && self.columns.iter().zip(columns).all(|(from, to)| is_same(from, to));
        self.taken.store(fits, Ordering::Relaxed);
        fits
    }
}

/// Whether every value of one column is a value of the other, in the same bytes.
fn is_same(from: &Described, to: &Described) -> bool {
    let is_portable = PORTABLE.iter().any(|&(value, array)| from.oid == value || from.oid == array);
    let is_text = |oid| matches!(oid, TEXT | VARCHAR | BPCHAR);
    // The server silently changes values to fit a modifier. So both columns must have the same one, or the
    // table's column none.
    let has_room = to.modifier == from.modifier || to.modifier < 0;
    match (from.oid, to.oid) {
        (a, b) if a == b => is_portable && has_room,
        // Trailing blanks of `char(n)` count where the value comes from, but not where it goes.
        (a, b) => is_text(a) && is_text(b) && b != BPCHAR && to.modifier < 0,
    }
}

/// Collects tuples into batches.
pub(super) struct Gatherer {
    columns: u16,
    bytes: Vec<u8>,
    /// Where the first tuple begins, and then where each tuple ends.
    offsets: Vec<i32>,
    batch_rows: usize,
    batch_bytes: usize,
}

impl Gatherer {
    pub(super) fn new(columns: usize, options: &ReadOptions) -> Self {
        Self {
            // No result has more than 1664 columns.
            columns: columns as u16,
            bytes: Vec::new(),
            offsets: vec![0],
            batch_rows: options.batch_rows.clamp(1, i32::MAX as usize),
            batch_bytes: options.batch_bytes.clamp(1, BATCH_BYTES_MAX),
        }
    }

    /// Adds one row. The destination checks the values. Here the row is only checked to be one tuple, because the
    /// rows of a broken server could otherwise run into each other.
    ///
    /// # Errors
    /// When the number of columns or the number of bytes is wrong.
    #[inline]
    pub(super) fn row(&mut self, body: &[u8]) -> Result<(), (Option<usize>, Box<Bad>)> {
        let outside = |what| (None, Bad::malformed(what));
        let (count, mut rest) = body.split_first_chunk::<2>().ok_or_else(|| outside("an empty row"))?;
        if u16::from_be_bytes(*count) != self.columns {
            return Err(outside("a row with the wrong number of columns"));
        }
        for _ in 0..self.columns {
            let (length, after) = rest.split_first_chunk::<4>().ok_or_else(|| outside("a truncated row"))?;
            // NULL has a length of -1, and no bytes.
            let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
            rest = after.get(length..).ok_or_else(|| outside("a truncated row"))?;
        }
        if !rest.is_empty() {
            return Err(outside("a row longer than its columns"));
        }
        self.bytes.extend_from_slice(body);
        // A batch is below half of the range of offsets, and a row has at most 1 GiB.
        self.offsets.push(self.bytes.len() as i32);
        Ok(())
    }

    pub(super) fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.rows() >= self.batch_rows || self.bytes.len() >= self.batch_bytes
    }

    pub(super) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        // The next batch is probably as large as this one.
        let room = self.bytes.len().min(self.batch_bytes + self.batch_bytes / 8);
        let bytes = std::mem::replace(&mut self.bytes, Vec::with_capacity(room));
        let offsets = std::mem::replace(&mut self.offsets, vec![0]);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        let tuples = BinaryArray::try_new(offsets, Buffer::from_vec(bytes), None)?;
        RecordBatch::try_new(SCHEMA.clone(), vec![Arc::new(tuples)])
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;

    use super::*;

    fn column(oid: u32, modifier: i32) -> Described {
        Described { name: "c".into(), oid, modifier }
    }

    #[test]
    fn columns_stay_undecoded_only_if_no_value_would_change() {
        let check = |from: (u32, i32), to: (u32, i32), expected: bool| {
            let (from, to) = (column(from.0, from.1), column(to.0, to.1));
            assert_eq!(is_same(&from, &to), expected, "{from:?} {to:?}");
        };
        check((23, -1), (23, -1), true);
        check((23, -1), (20, -1), false);
        // numeric(15,2) into numeric, and the other way, and into numeric(15,3).
        check((1700, 983_046), (1700, 983_046), true);
        check((1700, 983_046), (1700, -1), true);
        check((1700, -1), (1700, 983_046), false);
        check((1700, 983_046), (1700, 983_047), false);
        // char(10) and varchar(10) into text; text into varchar and varchar(10).
        check((BPCHAR, 14), (TEXT, -1), true);
        check((VARCHAR, 14), (TEXT, -1), true);
        check((TEXT, -1), (VARCHAR, -1), true);
        check((TEXT, -1), (VARCHAR, 14), false);
        check((VARCHAR, 14), (BPCHAR, 14), false);
        check((BPCHAR, 14), (BPCHAR, 14), true);
        // timestamp(3) into timestamp and timestamp(0).
        check((1114, 3), (1114, -1), true);
        check((1114, 3), (1114, 0), false);
        // money, and a type that the database defines.
        check((790, -1), (790, -1), false);
        check((16_400, -1), (16_400, -1), false);
    }

    #[test]
    fn an_offer_is_accepted_for_all_columns_or_none() {
        let offer = |columns: &[Described]| Tuples { columns: columns.to_vec(), taken: Arc::default() };
        let (int, text) = (column(23, -1), column(TEXT, -1));
        let both = [int.clone(), text.clone()];
        let tuples = offer(&both);
        let taken = tuples.taken();
        assert!(tuples.take_for(both.iter()));
        assert!(taken());
        assert!(!offer(&both).take_for([&text, &text].into_iter()));
        assert!(!offer(&both).take_for([&int].into_iter()));
    }

    #[test]
    fn tuples_are_collected_unchanged() {
        let options = ReadOptions { batch_rows: 2, batch_bytes: 100, ..ReadOptions::default() };
        let mut gatherer = Gatherer::new(1, &options);
        let row = |value: &[u8]| [&[0, 1], &(value.len() as i32).to_be_bytes()[..], value].concat();
        for long in [1, 200] {
            gatherer.row(&row(b"a")).unwrap();
            assert!(!gatherer.is_full());
            gatherer.row(&row(&vec![b'b'; long])).unwrap();
            assert!(gatherer.is_full() && gatherer.rows() == 2);
            let batch = gatherer.finish().unwrap();
            let tuples = batch.column(0).as_binary::<i32>();
            assert_eq!(tuples.value_data(), [row(b"a"), row(&vec![b'b'; long])].concat());
        }
        gatherer.row(&[0, 2]).unwrap_err();
        gatherer.row(&[]).unwrap_err();
        // Two tuples in one row, and a truncated tuple.
        gatherer.row(&[row(b"a"), row(b"b")].concat()).unwrap_err();
        gatherer.row(&row(b"a")[..6]).unwrap_err();
        assert_eq!(gatherer.rows(), 0);
    }
}
