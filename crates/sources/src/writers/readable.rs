//! Values as text, in the forms that PostgreSQL reads: bytes as `\x6869`, UUIDs with hyphens, years before 1
//! as `0044-03-15 BC`, intervals as `1 mon -2 days 00:00:01.5`, lists as `{1,NULL,"a b"}`. Structures and maps,
//! and lists of them, are JSON.

use std::fmt::{self, Write};
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType, Int16Type,
    Int32Type, Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalYearMonthType,
    RunEndIndexType,
};
use arrow_array::{
    Array, ArrayRef, FixedSizeBinaryArray, Int64Array, IntervalMonthDayNanoArray, PrimitiveArray,
};
use arrow_buffer::{IntervalMonthDayNano, NullBuffer};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_json::writer::make_encoder;
use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{ArrowError, DataType, Field, FieldRef, IntervalUnit, TimeUnit};

use super::open_decimal::{is_open, without_zeros};
use super::type_mapping::find;
use super::{json, type_mapping};

const NS_PER_SECOND: u128 = 1_000_000_000;
/// The end of a date that the library prints as a time.
const MIDNIGHT: &str = "T00:00:00";

/// How the library prints values.
static OPTIONS: FormatOptions<'static> = FormatOptions::new();

/// Prints the values of a column.
pub(super) enum Printer<'a> {
    /// As the library prints them.
    Plain(ArrayFormatter<'a>),
    /// Numbers without a declared precision.
    OpenDecimals(ArrayFormatter<'a>),
    /// Dates, and times with a date.
    Dates(ArrayFormatter<'a>),
    /// Dates in milliseconds.
    DatesOfMilliseconds(ArrayFormatter<'a>),
    Bytes(&'a dyn Array),
    Uuids(&'a FixedSizeBinaryArray),
    Intervals(IntervalMonthDayNanoArray),
    /// Counts of a unit of so many nanoseconds.
    Durations(Int64Array, i64),
    List(Box<List<'a>>),
    Json(FieldRef, ArrayRef),
    /// The values at these positions.
    At(Vec<usize>, Box<Printer<'a>>),
}

/// The items of lists.
pub(super) struct List<'a> {
    array: &'a dyn Array,
    items: Printer<'a>,
    nulls: Option<NullBuffer>,
    /// Whether items are lists too, whose braces are not quoted.
    is_nested: bool,
}

impl<'a> Printer<'a> {
    pub(super) fn new(field: &Field, array: &'a dyn Array) -> Result<Self, ArrowError> {
        let formatter = || ArrayFormatter::try_new(array, &OPTIONS);
        Ok(match array.data_type() {
            DataType::Date64 => Self::DatesOfMilliseconds(formatter()?),
            DataType::Date32 | DataType::Timestamp(..) => Self::Dates(formatter()?),
            DataType::FixedSizeBinary(16) if is_uuid(field) => Self::Uuids(array.as_fixed_size_binary()),
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => Self::Bytes(array),
            DataType::Interval(unit) => Self::Intervals(intervals(array, *unit)),
            DataType::Duration(unit) => {
                let (ticks, unit_ns) = durations(array, *unit);
                Self::Durations(ticks, unit_ns)
            }
            DataType::Dictionary(_, values) => {
                let dictionary = array.as_any_dictionary();
                let of = Field::new(field.name(), values.as_ref().clone(), true);
                match dictionary.values().is_empty() {
                    // All rows are NULL.
                    true => Self::Plain(formatter()?),
                    false => {
                        let values = Self::new(&of, dictionary.values().as_ref())?;
                        Self::At(dictionary.normalized_keys(), Box::new(values))
                    }
                }
            }
            DataType::RunEndEncoded(ends, values) => {
                let (values_array, at) = match ends.data_type() {
                    DataType::Int16 => runs::<Int16Type>(array),
                    DataType::Int32 => runs::<Int32Type>(array),
                    _ => runs::<Int64Type>(array),
                };
                Self::At(at, Box::new(Self::new(values, values_array)?))
            }
            DataType::Struct(_) | DataType::Map(..) => json_of(field, array)?,
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
            | DataType::FixedSizeList(item, _) => {
                if find(item.data_type(), &|t| matches!(t, DataType::Struct(_) | DataType::Map(..))).is_some()
                {
                    return json_of(field, array);
                }
                let values: &dyn Array = match array.data_type() {
                    DataType::List(_) => array.as_list::<i32>().values().as_ref(),
                    DataType::LargeList(_) => array.as_list::<i64>().values().as_ref(),
                    DataType::ListView(_) => array.as_list_view::<i32>().values().as_ref(),
                    DataType::LargeListView(_) => array.as_list_view::<i64>().values().as_ref(),
                    _ => array.as_fixed_size_list().values().as_ref(),
                };
                Self::List(Box::new(List {
                    array,
                    items: Self::new(item, values)?,
                    nulls: values.logical_nulls(),
                    is_nested: is_list(item.data_type()),
                }))
            }
            other if is_open(other) => Self::OpenDecimals(formatter()?),
            _ => Self::Plain(formatter()?),
        })
    }

    /// Prints the value of a row, which is not NULL.
    ///
    /// # Errors
    /// When the value can't be printed, such as a time beyond the calendar, or `out` takes no more.
    pub(super) fn print(&self, row: usize, out: &mut dyn Write) -> Result<(), ArrowError> {
        match self {
            Self::Plain(formatter) => formatter.value(row).write(out)?,
            Self::OpenDecimals(formatter) => {
                put(out, without_zeros(&formatter.value(row).try_to_string()?))?;
            }
            Self::Dates(formatter) => put_date(&formatter.value(row).try_to_string()?, out)?,
            Self::DatesOfMilliseconds(formatter) => {
                let text = formatter.value(row).try_to_string()?;
                put_date(text.strip_suffix(MIDNIGHT).unwrap_or(&text), out)?;
            }
            Self::Bytes(array) => put_bytes(bytes_at(*array, row), out).map_err(full)?,
            Self::Uuids(uuids) => put_uuid(uuids.value(row), out).map_err(full)?,
            Self::Intervals(intervals) => put_interval(intervals.value(row), out).map_err(full)?,
            Self::Durations(ticks, unit_ns) => {
                let ns = i128::from(ticks.value(row)) * i128::from(*unit_ns);
                put_time(ns, out).map_err(full)?;
            }
            Self::List(list) => list.print(row, out)?,
            Self::Json(field, array) => put_json(field, array, row, out)?,
            Self::At(rows, values) => values.print(rows[row], out)?,
        }
        Ok(())
    }
}

impl List<'_> {
    fn print(&self, row: usize, out: &mut dyn Write) -> Result<(), ArrowError> {
        let array = self.array;
        let range = match array.data_type() {
            DataType::List(_) => offsets(array.as_list::<i32>().value_offsets(), row),
            DataType::LargeList(_) => offsets(array.as_list::<i64>().value_offsets(), row),
            DataType::ListView(_) => {
                let views = array.as_list_view::<i32>();
                let start = views.value_offsets()[row] as usize;
                start..start + views.value_sizes()[row] as usize
            }
            DataType::LargeListView(_) => {
                let views = array.as_list_view::<i64>();
                let start = views.value_offsets()[row] as usize;
                start..start + views.value_sizes()[row] as usize
            }
            _ => {
                let lists = array.as_fixed_size_list();
                let start = lists.value_offset(row) as usize;
                start..start + lists.value_length() as usize
            }
        };
        put(out, "{")?;
        let (mut text, first) = (String::new(), range.start);
        for item in range {
            if item > first {
                put(out, ",")?;
            }
            if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(item)) {
                put(out, "NULL")?;
                continue;
            }
            if self.is_nested {
                self.items.print(item, out)?;
                continue;
            }
            text.clear();
            self.items.print(item, &mut text)?;
            put_item(&text, out).map_err(full)?;
        }
        put(out, "}")
    }
}

fn offsets<O: arrow_array::OffsetSizeTrait>(offsets: &[O], row: usize) -> std::ops::Range<usize> {
    offsets[row].as_usize()..offsets[row + 1].as_usize()
}

/// The column as text.
///
/// # Errors
/// When a value can't be printed.
pub(super) fn texts(field: &Field, array: &dyn Array) -> Result<ArrayRef, ArrowError> {
    let printer = Printer::new(field, array)?;
    let nulls = array.logical_nulls();
    let mut texts = StringBuilder::with_capacity(array.len(), 0);
    for row in 0..array.len() {
        match nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            true => texts.append_null(),
            false => {
                printer.print(row, &mut texts)?;
                texts.append_value("");
            }
        }
    }
    Ok(Arc::new(texts.finish()))
}

/// Whether [`texts`] has a form of its own for a type that a format can't hold.
pub(super) fn has_own_form(data_type: &DataType) -> bool {
    data_type.is_temporal() || data_type.is_binary() || matches!(data_type, DataType::FixedSizeBinary(_))
}

/// Whether a column has UUIDs.
pub(super) fn is_uuid(field: &Field) -> bool {
    *field.data_type() == DataType::FixedSizeBinary(16)
        && field.metadata().get(EXTENSION_TYPE_NAME_KEY).is_some_and(|name| name == "arrow.uuid")
}

fn is_list(data_type: &DataType) -> bool {
    use DataType::*;
    matches!(data_type, List(_) | LargeList(_) | ListView(_) | LargeListView(_) | FixedSizeList(..))
}

fn full(error: fmt::Error) -> ArrowError {
    ArrowError::InvalidArgumentError(error.to_string())
}

fn put(out: &mut dyn Write, text: &str) -> Result<(), ArrowError> {
    out.write_str(text).map_err(full)
}

/// Prints a date or time that the library has printed, with its year as PostgreSQL writes it: without a sign, and
/// with `BC` for years before 1.
fn put_date(text: &str, out: &mut dyn Write) -> Result<(), ArrowError> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned.len() == text.len() && !text.starts_with("0000") {
        return put(out, text);
    }
    let Some((digits, rest)) = unsigned.split_once('-') else { return put(out, text) };
    let Ok(year) = digits.parse::<i64>() else { return put(out, text) };
    let year = if text.starts_with('-') { -year } else { year };
    match year {
        1.. => write!(out, "{year:04}-{rest}"),
        _ => write!(out, "{:04}-{rest} BC", 1 - year),
    }
    .map_err(full)
}

fn bytes_at(array: &dyn Array, row: usize) -> &[u8] {
    match array.data_type() {
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::LargeBinary => array.as_binary::<i64>().value(row),
        DataType::BinaryView => array.as_binary_view().value(row),
        _ => array.as_fixed_size_binary().value(row),
    }
}

fn put_hex(bytes: &[u8], out: &mut dyn Write) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0_u8; 64];
    for part in bytes.chunks(text.len() / 2) {
        for (pair, byte) in text.chunks_exact_mut(2).zip(part) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        out.write_str(std::str::from_utf8(&text[..2 * part.len()]).map_err(|_| fmt::Error)?)?;
    }
    Ok(())
}

fn put_bytes(bytes: &[u8], out: &mut dyn Write) -> fmt::Result {
    out.write_str("\\x")?;
    put_hex(bytes, out)
}

fn put_uuid(bytes: &[u8], out: &mut dyn Write) -> fmt::Result {
    for (at, part) in [0..4, 4..6, 6..8, 8..10, 10..16].into_iter().enumerate() {
        if at > 0 {
            out.write_char('-')?;
        }
        put_hex(&bytes[part], out)?;
    }
    Ok(())
}

/// Prints an interval. Its parts keep their own signs; a `+`, which PostgreSQL adds after a negative part, is left out,
/// because DuckDB does not read it.
fn put_interval(interval: IntervalMonthDayNano, out: &mut dyn Write) -> fmt::Result {
    let (months, days) = (interval.months, interval.days);
    let mut is_first = true;
    for (value, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if value == 0 {
            continue;
        }
        let (space, plural) = (if is_first { "" } else { " " }, if value == 1 { "" } else { "s" });
        write!(out, "{space}{value} {unit}{plural}")?;
        is_first = false;
    }
    match (interval.nanoseconds, is_first) {
        (0, false) => Ok(()),
        (ns, true) => put_time(ns.into(), out),
        (ns, false) => {
            out.write_char(' ')?;
            put_time(ns.into(), out)
        }
    }
}

/// Prints a span of time as hours, minutes and seconds, with the decimal places that it needs.
fn put_time(ns: i128, out: &mut dyn Write) -> fmt::Result {
    let sign = if ns < 0 { "-" } else { "" };
    let (seconds, part) = (ns.unsigned_abs() / NS_PER_SECOND, ns.unsigned_abs() % NS_PER_SECOND);
    write!(out, "{sign}{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
    match part {
        0 => Ok(()),
        _ => out.write_str(format!(".{part:09}").trim_end_matches('0')),
    }
}

/// Prints an item of a list, in quotes if it needs them.
fn put_item(text: &str, out: &mut dyn Write) -> fmt::Result {
    let is_special = |c: char| matches!(c, '{' | '}' | ',' | '"' | '\\') || c.is_whitespace();
    if !text.is_empty() && !text.eq_ignore_ascii_case("null") && !text.contains(is_special) {
        return out.write_str(text);
    }
    out.write_char('"')?;
    for part in text.split_inclusive(['"', '\\']) {
        match part.strip_suffix(['"', '\\']) {
            None => out.write_str(part)?,
            Some(plain) => {
                out.write_str(plain)?;
                out.write_char('\\')?;
                out.write_str(&part[plain.len()..])?;
            }
        }
    }
    out.write_char('"')
}

/// A printer of JSON, if the encoder knows all types.
fn json_of<'a>(field: &Field, array: &'a dyn Array) -> Result<Printer<'a>, ArrowError> {
    if find(field.data_type(), &|t| matches!(t, DataType::Union(..))).is_some() {
        // Only tables show these.
        return Ok(Printer::Plain(ArrayFormatter::try_new(array, &OPTIONS)?));
    }
    let field = type_mapping::mapped(&Arc::new(field.clone()), &json::rule);
    let array = arrow_array::make_array(array.to_data());
    let array = type_mapping::convert(&array, false, field.data_type())?;
    Ok(Printer::Json(field, array))
}

fn put_json(field: &FieldRef, array: &ArrayRef, row: usize, out: &mut dyn Write) -> Result<(), ArrowError> {
    if !json::is_finite(array, row) {
        return Err(ArrowError::InvalidArgumentError(json::NOT_FINITE.into()));
    }
    let mut text = Vec::new();
    // One row only: the encoder of an array computes things for all of its rows.
    make_encoder(field, &array.slice(row, 1), &json::options())?.encode(0, &mut text);
    put(out, std::str::from_utf8(&text).map_err(|error| ArrowError::InvalidArgumentError(error.to_string()))?)
}

/// Intervals of all units, with months, days and nanoseconds.
fn intervals(array: &dyn Array, unit: IntervalUnit) -> IntervalMonthDayNanoArray {
    match unit {
        IntervalUnit::YearMonth => array
            .as_primitive::<IntervalYearMonthType>()
            .unary(|months| IntervalMonthDayNano::new(months, 0, 0)),
        IntervalUnit::DayTime => array.as_primitive::<IntervalDayTimeType>().unary(|value| {
            IntervalMonthDayNano::new(0, value.days, i64::from(value.milliseconds) * 1_000_000)
        }),
        IntervalUnit::MonthDayNano => array.as_primitive::<IntervalMonthDayNanoType>().clone(),
    }
}

/// Durations as counts, and the nanoseconds of the unit.
fn durations(array: &dyn Array, unit: TimeUnit) -> (Int64Array, i64) {
    fn ticks<T: arrow_array::types::ArrowPrimitiveType<Native = i64>>(array: &dyn Array) -> Int64Array {
        let array: &PrimitiveArray<T> = array.as_primitive();
        Int64Array::new(array.values().clone(), array.nulls().cloned())
    }
    match unit {
        TimeUnit::Second => (ticks::<DurationSecondType>(array), 1_000_000_000),
        TimeUnit::Millisecond => (ticks::<DurationMillisecondType>(array), 1_000_000),
        TimeUnit::Microsecond => (ticks::<DurationMicrosecondType>(array), 1000),
        TimeUnit::Nanosecond => (ticks::<DurationNanosecondType>(array), 1),
    }
}

/// The values of an array of runs, and which of them each row has.
fn runs<R: RunEndIndexType>(array: &dyn Array) -> (&dyn Array, Vec<usize>) {
    let runs = array.as_run::<R>();
    (runs.values().as_ref(), (0..runs.len()).map(|row| runs.get_physical_index(row)).collect())
}

#[cfg(test)]
mod tests {
    use arrow_array::builder::{FixedSizeBinaryBuilder, Int32Builder, ListBuilder, StringBuilder};
    use arrow_array::types::Int8Type;
    use arrow_array::{
        BinaryArray, Date32Array, Date64Array, DictionaryArray, DurationMillisecondArray, Float64Array,
        StructArray, TimestampSecondArray,
    };

    use super::*;

    fn check_field(field: &Field, array: &dyn Array, expected: &[&str]) {
        let texts = texts(field, array).unwrap();
        let texts: Vec<_> = texts.as_string::<i32>().iter().map(|text| text.unwrap_or("NULL")).collect();
        assert_eq!(texts, expected);
    }

    fn check(array: &dyn Array, expected: &[&str]) {
        check_field(&Field::new("v", array.data_type().clone(), true), array, expected);
    }

    #[test]
    fn dates_have_years_as_postgresql_writes_them() {
        let days = vec![Some(0), Some(-719_162), Some(-719_163), Some(-735_233), Some(4_000_000), None];
        check(
            &Date32Array::from(days),
            &["1970-01-01", "0001-01-01", "0001-12-31 BC", "0044-01-01 BC", "12921-08-18", "NULL"],
        );
        check(&Date64Array::from(vec![0, 86_400_500]), &["1970-01-01", "1970-01-02T00:00:00.500"]);
        check(&TimestampSecondArray::from(vec![0]), &["1970-01-01T00:00:00"]);
        let zoned = TimestampSecondArray::from(vec![0, -719_163 * 86_400]).with_timezone("UTC");
        check(&zoned, &["1970-01-01T00:00:00Z", "0001-12-31T00:00:00Z BC"]);
    }

    #[test]
    fn bytes_and_uuids_are_hexadecimal() {
        let long = [0xab_u8; 40];
        let expected = format!("\\x{}", "ab".repeat(40));
        check(
            &BinaryArray::from(vec![Some(b"hi\xff".as_slice()), Some(b""), Some(&long), None]),
            &["\\x6869ff", "\\x", &expected, "NULL"],
        );
        let mut uuids = FixedSizeBinaryBuilder::new(16);
        uuids.append_value(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes()).unwrap();
        uuids.append_null();
        let uuids = uuids.finish();
        let field = Field::new("v", DataType::FixedSizeBinary(16), true);
        check_field(&field, &uuids, &["\\x0123456789abcdef0123456789abcdef", "NULL"]);
        let metadata = [(EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.uuid".to_owned())];
        let field = field.with_metadata(metadata.into());
        check_field(&field, &uuids, &["01234567-89ab-cdef-0123-456789abcdef", "NULL"]);
    }

    #[test]
    fn spans_of_time_are_printed_for_postgresql_and_duckdb() {
        let intervals = [(0, 0, 0), (14, 3, 0), (1, -2, 3_000_000), (-13, 1, -1), (0, 0, 90_061_500_000_000)];
        let intervals = intervals.map(|(months, days, ns)| IntervalMonthDayNano::new(months, days, ns));
        check(
            &IntervalMonthDayNanoArray::from(intervals.to_vec()),
            &[
                "00:00:00",
                "1 year 2 mons 3 days",
                "1 mon -2 days 00:00:00.003",
                "-1 years -1 mons 1 day -00:00:00.000000001",
                "25:01:01.5",
            ],
        );
        check(
            &DurationMillisecondArray::from(vec![-1500, i64::MAX]),
            &["-00:00:01.5", "2562047788015:12:55.807"],
        );
    }

    #[test]
    fn lists_are_arrays_of_postgresql() {
        let mut lists = ListBuilder::new(ListBuilder::new(Int32Builder::new()));
        lists.values().append_value([Some(1), None]);
        lists.values().append_value([]);
        lists.append(true);
        lists.append(false);
        lists.append(true);
        check(&lists.finish(), &["{{1,NULL},{}}", "NULL", "{}"]);
        let mut lists = ListBuilder::new(StringBuilder::new());
        let items = ["a", "", "null", "a b", "{", "c,d", "say \"hi\"", "\\", "é"];
        lists.append_value(items.map(Some));
        let lists = lists.finish();
        check(&lists, &[r#"{a,"","null","a b","{","c,d","say \"hi\"","\\",é}"#]);
        // Slices and dictionaries have the same texts.
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![b"a".as_slice()]));
        check(&DictionaryArray::<Int8Type>::new(vec![Some(0), None].into(), bytes), &["\\x61", "NULL"]);
    }

    #[test]
    fn structures_are_json() {
        let numbers: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.5), None, Some(f64::NAN)]));
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![b"a".as_slice(), b"", b""]));
        let structs = StructArray::try_from(vec![("x", numbers), ("b", bytes)]).unwrap();
        check(&structs.slice(0, 2), &[r#"{"x":1.5,"b":"\\x61"}"#, r#"{"x":null,"b":"\\x"}"#]);
        let field = Field::new("v", structs.data_type().clone(), true);
        assert!(texts(&field, &structs).unwrap_err().to_string().contains("not-a-number"));
    }
}
