//! Appends values to Arrow columns as the server sends them: one `match` for each
//! value, no allocation.

use std::fmt::Display;
use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int16Type,
    Int32Type, Int64Type, IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType,
    UInt32Type,
};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, ListArray, PrimitiveArray, StringArray,
};
use arrow_buffer::{
    BooleanBufferBuilder, Buffer, IntervalMonthDayNano, NullBuffer, NullBufferBuilder, OffsetBuffer,
    ScalarBuffer, i256,
};
use arrow_schema::{ArrowError, DataType};

use super::numeric::{Numeric, max128};
use super::types::PgType;
use crate::InfiniteRule;

/// Days from 1970 to 2000, where the server's calendar begins.
pub(super) const EPOCH_DAYS: i32 = 10_957;
/// The same in microseconds.
pub(super) const EPOCH_US: i64 = EPOCH_DAYS as i64 * 86_400_000_000;
/// Why a value could not be decoded.
#[derive(Debug)]
pub(super) enum Bad {
    /// The bytes don't match the type.
    Malformed(&'static str),
    /// The column's Arrow type can't hold the value.
    Value(String),
}

impl Bad {
    #[cold]
    pub(super) fn malformed(what: &'static str) -> Box<Self> {
        Box::new(Self::Malformed(what))
    }

    #[cold]
    fn value(what: impl Into<String>) -> Box<Self> {
        Box::new(Self::Value(what.into()))
    }
}

type Taken = Result<(), Box<Bad>>;

/// Values of variable length, one after another.
struct Variable {
    offsets: Vec<i32>,
    data: Vec<u8>,
}

impl Variable {
    fn with_room(rows: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { offsets, data: Vec::with_capacity(bytes) }
    }

    #[inline]
    fn append(&mut self, value: &[u8]) -> Taken {
        self.data.extend_from_slice(value);
        self.end()
    }

    /// Ends the current value.
    #[inline]
    fn end(&mut self) -> Taken {
        let end = i32::try_from(self.data.len())
            .map_err(|_| Bad::value("the values of one batch exceed 2 GiB; use smaller batches"))?;
        self.offsets.push(end);
        Ok(())
    }

    fn take(&mut self, rows: usize) -> (OffsetBuffer<i32>, Buffer) {
        let room = self.data.len() + self.data.len() / 8;
        let full = std::mem::replace(self, Self::with_room(rows, room));
        (OffsetBuffer::new(full.offsets.into()), full.data.into())
    }
}

enum Values {
    Bool(BooleanBufferBuilder),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    UInt32(Vec<u32>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Decimal128 { values: Vec<i128>, scale: i8, max: u128 },
    Decimal256 { values: Vec<i256>, precision: u8, scale: i8 },
    NumericText(Variable),
    NumericDouble(Vec<f64>),
    Money(Vec<i128>),
    Date(Vec<i32>),
    Time(Vec<i64>),
    Timestamp(Vec<i64>),
    Interval(Vec<IntervalMonthDayNano>),
    Uuid(Vec<u8>),
    Utf8(Variable),
    Jsonb(Variable),
    Bytes(Variable),
    List { offsets: Vec<i32>, items: Box<Column> },
    TextList { offsets: Vec<i32>, items: Box<Column> },
}

/// A column being filled.
pub(super) struct Column {
    values: Values,
    nulls: NullBufferBuilder,
    /// Whether infinite and not-a-number values become NULL.
    infinite_is_null: bool,
    /// Whether values vary in size.
    pub(super) variable: bool,
}

impl Column {
    /// An empty column, with room for `room` values.
    pub(super) fn new(kind: &PgType, room: usize, infinite: InfiniteRule) -> Self {
        let variable = || Variable::with_room(room, room * 16);
        let offsets = || {
            let mut offsets = Vec::with_capacity(room + 1);
            offsets.push(0);
            offsets
        };
        let values = match kind {
            PgType::Bool => Values::Bool(BooleanBufferBuilder::new(room)),
            PgType::Int16 => Values::Int16(Vec::with_capacity(room)),
            PgType::Int32 => Values::Int32(Vec::with_capacity(room)),
            PgType::Int64 => Values::Int64(Vec::with_capacity(room)),
            PgType::UInt32 => Values::UInt32(Vec::with_capacity(room)),
            PgType::Float32 => Values::Float32(Vec::with_capacity(room)),
            PgType::Float64 => Values::Float64(Vec::with_capacity(room)),
            PgType::Decimal128 { precision, scale } => Values::Decimal128 {
                values: Vec::with_capacity(room),
                scale: *scale,
                max: max128((*precision).min(38)),
            },
            PgType::Decimal256 { precision, scale } => {
                Values::Decimal256 { values: Vec::with_capacity(room), precision: *precision, scale: *scale }
            }
            PgType::NumericText => Values::NumericText(variable()),
            PgType::NumericDouble => Values::NumericDouble(Vec::with_capacity(room)),
            PgType::Money { .. } => Values::Money(Vec::with_capacity(room)),
            PgType::Date => Values::Date(Vec::with_capacity(room)),
            PgType::Time => Values::Time(Vec::with_capacity(room)),
            PgType::Timestamp | PgType::TimestampTz => Values::Timestamp(Vec::with_capacity(room)),
            PgType::Interval => Values::Interval(Vec::with_capacity(room)),
            PgType::Uuid => Values::Uuid(Vec::with_capacity(room * 16)),
            PgType::Bytes => Values::Bytes(variable()),
            PgType::Utf8 | PgType::Json | PgType::Text => Values::Utf8(variable()),
            PgType::Jsonb => Values::Jsonb(variable()),
            PgType::List(item) => {
                Values::List { offsets: offsets(), items: Box::new(Self::new(item, room, infinite)) }
            }
            PgType::TextList => Values::TextList {
                offsets: offsets(),
                items: Box::new(Self::new(&PgType::Text, room, infinite)),
            },
        };
        Self {
            values,
            nulls: NullBufferBuilder::new(room),
            infinite_is_null: infinite == InfiniteRule::Null,
            variable: kind.is_variable(),
        }
    }

    /// Bytes of numbers as text, which may be only a few digits and an exponent on the wire.
    pub(super) fn expanded_bytes(&self) -> usize {
        match &self.values {
            Values::NumericText(values) => values.data.len(),
            Values::List { items, .. } => items.expanded_bytes(),
            _ => 0,
        }
    }

    /// Appends a value.
    ///
    /// # Errors
    /// What is wrong with the value. The column can't be used after an error.
    #[inline]
    pub(super) fn append(&mut self, value: &[u8]) -> Taken {
        match &mut self.values {
            Values::Int16(values) => values.push(i16::from_be_bytes(fixed(value)?)),
            Values::Int32(values) => values.push(i32::from_be_bytes(fixed(value)?)),
            Values::Int64(values) | Values::Time(values) => values.push(i64::from_be_bytes(fixed(value)?)),
            // The server has only one NaN, greater than all numbers; Arrow distinguishes NaNs by sign.
            Values::Float32(values) => {
                let float = f32::from_be_bytes(fixed(value)?);
                values.push(if float.is_nan() { f32::NAN } else { float });
            }
            Values::Float64(values) => {
                let float = f64::from_be_bytes(fixed(value)?);
                values.push(if float.is_nan() { f64::NAN } else { float });
            }
            Values::Decimal128 { values, scale, max } => {
                let numeric = Numeric::parse(value)?;
                match numeric.to_i128(*scale, *max) {
                    Some(unscaled) => values.push(unscaled),
                    None => {
                        let data_type = format!("decimal({}, {scale})", max.ilog10() + 1);
                        return self.unfit(numeric, &data_type);
                    }
                }
            }
            Values::Date(values) => match i32::from_be_bytes(fixed(value)?) {
                i32::MIN | i32::MAX => return self.infinite("an infinite date"),
                days => values.push(days.checked_add(EPOCH_DAYS).ok_or_else(|| far("a date"))?),
            },
            Values::Timestamp(values) => match i64::from_be_bytes(fixed(value)?) {
                i64::MIN | i64::MAX => return self.infinite("an infinite timestamp"),
                us => values.push(us.checked_add(EPOCH_US).ok_or_else(|| far("a timestamp"))?),
            },
            Values::Utf8(values) | Values::Bytes(values) => values.append(value)?,
            _ => return self.append_rare(value),
        }
        self.nulls.append_non_null();
        Ok(())
    }

    /// Handles a numeric that does not fit the column's decimal type.
    #[cold]
    fn unfit(&mut self, numeric: Numeric<'_>, data_type: &str) -> Taken {
        if numeric.is_special() {
            return self.infinite(numeric.to_text());
        }
        let mut text = numeric.to_text();
        if text.len() > 100 {
            text.truncate(100);
            text.push_str("...");
        }
        Err(Bad::value(format!(
            "{text}, which does not fit {data_type} exactly; use numeric=string or numeric=double \
             (--numeric, or in the URI of a table), or cast it in the query (::text, ::float8 or \
             ::numeric(p, s))"
        )))
    }

    /// Handles a value that Arrow can't hold: as NULL, if the rule allows it.
    #[cold]
    fn infinite(&mut self, what: impl Display) -> Taken {
        if self.infinite_is_null {
            self.append_null();
            return Ok(());
        }
        Err(Bad::value(format!(
            "{what}, which Arrow can't hold; use infinite=null or infinite=text (--infinite, \
             or in the URI of a table), or cast it in the query (::text)"
        )))
    }

    /// Separate, to keep the code for the common types short.
    #[inline(never)]
    fn append_rare(&mut self, value: &[u8]) -> Taken {
        match &mut self.values {
            Values::Bool(values) => values.append(fixed::<1>(value)?[0] != 0),
            Values::UInt32(values) => values.push(u32::from_be_bytes(fixed(value)?)),
            Values::Decimal256 { values, precision, scale } => {
                let numeric = Numeric::parse(value)?;
                match numeric.to_i256(*precision, *scale) {
                    Some(unscaled) => values.push(unscaled),
                    None => {
                        let data_type = format!("decimal({precision}, {scale})");
                        return self.unfit(numeric, &data_type);
                    }
                }
            }
            Values::NumericText(values) => values.append(Numeric::parse(value)?.to_text().as_bytes())?,
            Values::NumericDouble(values) => values.push(Numeric::parse(value)?.to_f64()),
            Values::Money(values) => values.push(i64::from_be_bytes(fixed(value)?).into()),
            Values::Interval(values) => match interval(fixed(value)?)? {
                Some(interval) => values.push(interval),
                None => return self.infinite("an infinite interval"),
            },
            Values::Uuid(values) => values.extend_from_slice(&fixed::<16>(value)?),
            Values::Jsonb(values) => match value.split_first() {
                Some((1, text)) => values.append(text)?,
                _ => return Err(Bad::malformed("jsonb of an unknown version")),
            },
            Values::List { offsets, items } => {
                list(value, items)?;
                offsets.push(item_count(items)?);
            }
            Values::TextList { offsets, items } => {
                super::array_text::elements(value, |item| match item {
                    Some(text) => items.append(text),
                    None => {
                        items.append_null();
                        Ok(())
                    }
                })?;
                offsets.push(item_count(items)?);
            }
            // The common types were handled before.
            _ => return Err(Bad::malformed("a value of an unknown type")),
        }
        self.nulls.append_non_null();
        Ok(())
    }

    /// Appends NULL.
    #[inline]
    pub(super) fn append_null(&mut self) {
        match &mut self.values {
            Values::Bool(values) => values.append(false),
            Values::Int16(values) => values.push(0),
            Values::Int32(values) | Values::Date(values) => values.push(0),
            Values::Int64(values) | Values::Time(values) | Values::Timestamp(values) => values.push(0),
            Values::UInt32(values) => values.push(0),
            Values::Float32(values) => values.push(0.0),
            Values::Float64(values) | Values::NumericDouble(values) => values.push(0.0),
            Values::Decimal128 { values, .. } | Values::Money(values) => values.push(0),
            Values::Decimal256 { values, .. } => values.push(i256::ZERO),
            Values::Interval(values) => values.push(IntervalMonthDayNano::ZERO),
            Values::Uuid(values) => values.extend_from_slice(&[0; 16]),
            Values::Utf8(Variable { offsets, .. })
            | Values::Bytes(Variable { offsets, .. })
            | Values::Jsonb(Variable { offsets, .. })
            | Values::NumericText(Variable { offsets, .. })
            | Values::List { offsets, .. }
            | Values::TextList { offsets, .. } => {
                let end = offsets.last().copied().unwrap_or(0);
                offsets.push(end);
            }
        }
        self.nulls.append_null();
    }

    /// Closes the column and makes room for `room` more values.
    pub(super) fn finish(&mut self, data_type: &DataType, room: usize) -> Result<ArrayRef, ArrowError> {
        let nulls = self.nulls.finish();
        Ok(match &mut self.values {
            Values::Bool(values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Values::Int16(values) => primitive::<Int16Type>(values, nulls, room, data_type),
            Values::Int32(values) => primitive::<Int32Type>(values, nulls, room, data_type),
            Values::Int64(values) => primitive::<Int64Type>(values, nulls, room, data_type),
            Values::UInt32(values) => primitive::<UInt32Type>(values, nulls, room, data_type),
            Values::Float32(values) => primitive::<Float32Type>(values, nulls, room, data_type),
            Values::Float64(values) | Values::NumericDouble(values) => {
                primitive::<Float64Type>(values, nulls, room, data_type)
            }
            Values::Decimal128 { values, .. } | Values::Money(values) => {
                primitive::<Decimal128Type>(values, nulls, room, data_type)
            }
            Values::Decimal256 { values, .. } => primitive::<Decimal256Type>(values, nulls, room, data_type),
            Values::Date(values) => primitive::<Date32Type>(values, nulls, room, data_type),
            Values::Time(values) => primitive::<Time64MicrosecondType>(values, nulls, room, data_type),
            Values::Timestamp(values) => {
                primitive::<TimestampMicrosecondType>(values, nulls, room, data_type)
            }
            Values::Interval(values) => primitive::<IntervalMonthDayNanoType>(values, nulls, room, data_type),
            Values::Uuid(values) => {
                let full = std::mem::replace(values, Vec::with_capacity(room * 16));
                Arc::new(FixedSizeBinaryArray::try_new(16, full.into(), nulls)?)
            }
            Values::Utf8(values) | Values::Jsonb(values) | Values::NumericText(values) => {
                let (offsets, data) = values.take(room);
                Arc::new(StringArray::try_new(offsets, data, nulls)?)
            }
            Values::Bytes(values) => {
                let (offsets, data) = values.take(room);
                Arc::new(BinaryArray::try_new(offsets, data, nulls)?)
            }
            Values::List { offsets, items } | Values::TextList { offsets, items } => {
                let mut fresh = Vec::with_capacity(room + 1);
                fresh.push(0);
                let offsets = OffsetBuffer::new(std::mem::replace(offsets, fresh).into());
                let DataType::List(field) = data_type else {
                    return Err(ArrowError::SchemaError(format!("a list where {data_type} is expected")));
                };
                let items = items.finish(field.data_type(), items.nulls.len())?;
                Arc::new(ListArray::try_new(field.clone(), offsets, items, nulls)?)
            }
        })
    }
}

fn primitive<T: ArrowPrimitiveType>(
    values: &mut Vec<T::Native>,
    nulls: Option<NullBuffer>,
    room: usize,
    data_type: &DataType,
) -> ArrayRef {
    let full = std::mem::replace(values, Vec::with_capacity(room));
    let array = PrimitiveArray::<T>::new(ScalarBuffer::from(full), nulls);
    Arc::new(array.with_data_type(data_type.clone()))
}

#[inline]
fn fixed<const N: usize>(value: &[u8]) -> Result<[u8; N], Box<Bad>> {
    value.try_into().map_err(|_| Bad::malformed("a value of the wrong length for its type"))
}

fn item_count(items: &Column) -> Result<i32, Box<Bad>> {
    i32::try_from(items.nulls.len()).map_err(|_| Bad::value("the arrays of one batch exceed 2^31 items"))
}

#[cold]
fn far(what: &str) -> Box<Bad> {
    Bad::value(format!("{what} beyond the range of Arrow; cast it in the query (::text)"))
}

/// `None` if infinite, which PostgreSQL since 17 encodes as the extremes of all three parts.
fn interval(value: [u8; 16]) -> Result<Option<IntervalMonthDayNano>, Box<Bad>> {
    let [us, rest] = [0, 8].map(|at| i64::from_be_bytes(std::array::from_fn(|i| value[at + i])));
    let (days, months) = ((rest >> 32) as i32, rest as i32);
    if matches!((us, days, months), (i64::MAX, i32::MAX, i32::MAX) | (i64::MIN, i32::MIN, i32::MIN)) {
        return Ok(None);
    }
    let nanoseconds = us.checked_mul(1000).ok_or_else(|| {
        Bad::value("an interval with more than 292 years in its time part; cast it in the query (::text)")
    })?;
    Ok(Some(IntervalMonthDayNano::new(months, days, nanoseconds)))
}

/// The error of an array whose subscripts do not begin with 1: a list would lose them.
#[cold]
pub(super) fn bounds(first: impl std::fmt::Display) -> Box<Bad> {
    Bad::value(format!(
        "an array whose subscripts begin with {first}, but those of lists begin with 1; cast it in the query (::text), or \
         renumber it (v[:])"
    ))
}

/// An array: `i32` dimensions, `i32` flags, element type; for each dimension
/// length and lower bound; then the elements.
fn list(value: &[u8], items: &mut Column) -> Taken {
    let short = || Bad::malformed("a truncated array");
    let (head, mut rest) = value.split_first_chunk::<12>().ok_or_else(short)?;
    match i32::from_be_bytes([head[0], head[1], head[2], head[3]]) {
        0 => return Ok(()),
        1 => {}
        dimensions => {
            return Err(Bad::value(format!(
                "an array of {dimensions} dimensions, but lists have one; cast it in the query (::text) or unnest \
                 it"
            )));
        }
    }
    let (dimension, after) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    rest = after;
    let [count, bound] = [0, 4].map(|at| i32::from_be_bytes(std::array::from_fn(|i| dimension[at + i])));
    if bound != 1 {
        return Err(bounds(bound));
    }
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        rest = after;
        match usize::try_from(i32::from_be_bytes(*length)) {
            Err(_) => items.append_null(),
            Ok(length) => {
                let (item, after) = rest.split_at_checked(length).ok_or_else(short)?;
                items.append(item)?;
                rest = after;
            }
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(Bad::malformed("an array longer than its items")) }
}
