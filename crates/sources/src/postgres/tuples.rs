//! Rows that go from one table of PostgreSQL into another as they are.
//!
//! A row of a result in binary form (`DataRow`) is to the byte a tuple of binary COPY. Where each
//! column goes into one of the same type, nothing is gained by decoding it. Tuples travel as
//! batches of one column of bytes: a tuple a value.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use arrow_array::{BinaryArray, RecordBatch};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::connection::Described;
use super::decode::Bad;
use super::rows::BATCH_BYTES_MAX;
use super::types::Kind;
use crate::{InfiniteRule, NumericRule, ReadOptions};

/// What a batch of tuples looks like.
static SCHEMA: LazyLock<SchemaRef> =
    LazyLock::new(|| Arc::new(Schema::new(vec![Field::new("tuple", DataType::Binary, false)])));

const TEXT: u32 = 25;
const BPCHAR: u32 = 1042;
const VARCHAR: u32 = 1043;
/// Types whose binary form is the same on every server, each with its arrays. It is not of `money`, which has the
/// places of a locale, nor of what a database has made itself.
const PORTABLE: [(u32, u32); 20] = [
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
];

/// The offer of a source to leave its rows as they are. Who takes it gets batches of tuples.
#[derive(Debug)]
pub struct Tuples {
    columns: Vec<Described>,
    taken: Arc<AtomicBool>,
}

impl Tuples {
    /// For rows of `columns`, read as `kinds`; nothing where they would not be the same undecoded.
    pub(super) fn offer(columns: &[Described], kinds: &[Kind], options: &ReadOptions) -> Option<Self> {
        // Rules for values are applied by who decodes them.
        let has_rules = options.infinite != InfiniteRule::Error || options.numeric != NumericRule::RESULT;
        let is_binary = kinds.iter().all(|kind| kind.format() == 1);
        (options.tuples && !has_rules && is_binary && !columns.is_empty())
            .then(|| Self { columns: columns.to_vec(), taken: Arc::default() })
    }

    /// Whether it has been taken, later.
    pub(super) fn taken(&self) -> impl FnOnce() -> bool + Send + 'static {
        let taken = self.taken.clone();
        move || taken.load(Ordering::Relaxed)
    }

    /// Takes the offer, if tuples of these rows are tuples of `columns`.
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
    // The server makes values fit a modifier without a word: to be sure of none, both have the same, or the
    // table has none.
    let has_room = to.modifier == from.modifier || to.modifier < 0;
    match (from.oid, to.oid) {
        (a, b) if a == b => is_portable && has_room,
        // Blanks at the end of `char(n)` count where they come from, not where they go.
        (a, b) => is_text(a) && is_text(b) && b != BPCHAR && to.modifier < 0,
    }
}

/// Tuples being gathered into batches.
pub(super) struct Gatherer {
    columns: u16,
    bytes: Vec<u8>,
    /// Where each tuple ends, after where the first begins.
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

    /// Takes one row. What its values hold is the destination's to judge; that it is one tuple is ours, or rows of
    /// a broken server would end within each other.
    ///
    /// # Errors
    /// When it has another number of columns, or other bytes than they say.
    #[inline]
    pub(super) fn row(&mut self, body: &[u8]) -> Result<(), (Option<usize>, Box<Bad>)> {
        let outside = |what| (None, Bad::malformed(what));
        let (count, mut rest) = body.split_first_chunk::<2>().ok_or_else(|| outside("an empty row"))?;
        if u16::from_be_bytes(*count) != self.columns {
            return Err(outside("a row with another number of columns"));
        }
        for _ in 0..self.columns {
            let (length, after) = rest.split_first_chunk::<4>().ok_or_else(|| outside("a short row"))?;
            // NULL has a length of -1, and no bytes.
            let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
            rest = after.get(length..).ok_or_else(|| outside("a short row"))?;
        }
        if !rest.is_empty() {
            return Err(outside("a row longer than its columns"));
        }
        self.bytes.extend_from_slice(body);
        // A batch is below half of what offsets can say, and a row at most 1 GiB.
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
        // The next batch will be as large as this one, most probably.
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
    fn values_stay_as_they_are_only_where_none_would_change() {
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
        // money, and a type of the database's own.
        check((790, -1), (790, -1), false);
        check((16_400, -1), (16_400, -1), false);
    }

    #[test]
    fn an_offer_is_taken_for_all_columns_or_none() {
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
    fn tuples_are_gathered_as_they_are() {
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
        // Two tuples in one row, and one that goes on behind it.
        gatherer.row(&[row(b"a"), row(b"b")].concat()).unwrap_err();
        gatherer.row(&row(b"a")[..6]).unwrap_err();
        assert_eq!(gatherer.rows(), 0);
    }
}
