//! Values of parameters, as clients send them.

use std::sync::Arc;

use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::{OffsetBuffer, i256};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, IntervalUnit, Schema, TimeUnit};
use arrow_select::concat::concat;
use bytes::{Bytes, BytesMut};

use crate::encode::Format;
use crate::encode::array::{elements, put_element};
use crate::encode::datetime::{DAY_US, EPOCH_DAYS, EPOCH_US};
use crate::encode::number::numeric_text;
use crate::error::{PgError, PgResult, code};
use crate::message::Fields;
use crate::types::{element_of, oid};

/// A value of a parameter.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    /// The type, or 0 if the client has not said it.
    pub(crate) oid: u32,
    pub(crate) format: Format,
    pub(crate) value: Option<Bytes>,
}

/// What SQLite gets in the place of a parameter.
pub(crate) use rusqlite::types::Value as CatalogValue;

/// The most elements of an array in a parameter.
const ELEMENTS_MAX: usize = 100_000;

/// The values as columns of one row. `required` has the types that the statement requires, if they are known.
pub(crate) fn batch(parameters: &[Parameter], required: Option<&Schema>) -> PgResult<RecordBatch> {
    let mut fields = Vec::new();
    let mut columns = Vec::new();
    for (index, parameter) in parameters.iter().enumerate() {
        let required = required.and_then(|schema| schema.fields().get(index)).map(|field| field.data_type());
        let value = parameter.array(required).map_err(|error| {
            let message = format!("parameter ${}: {}", index + 1, error.message);
            PgError { message, ..error }
        })?;
        fields.push(Field::new(format!("${}", index + 1), value.data_type().clone(), true));
        columns.push(value);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?)
}

fn invalid(what: &str, text: &str) -> PgError {
    let text = &text[..text.floor_char_boundary(100)];
    PgError::new(code::INVALID_TEXT, format!("invalid input syntax for type {what}: \"{text}\""))
}

fn malformed() -> PgError {
    PgError::new(code::INVALID_BINARY, "incorrect binary data format")
}

/// The bytes of a value of a fixed size.
fn fixed<const N: usize>(bytes: &[u8]) -> PgResult<[u8; N]> {
    bytes.try_into().map_err(|_| malformed())
}

fn text(bytes: &[u8]) -> PgResult<&str> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    text.ok_or_else(|| {
        PgError::new(code::CHARACTER_NOT_IN_REPERTOIRE, "invalid byte sequence for encoding \"UTF8\"")
    })
}

fn one<T: ArrowPrimitiveType>(value: T::Native) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_value(value, 1))
}

fn utf8(text: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![text]))
}

/// A date or time without the offset of a zone at its end, which PostgreSQL ignores where the type has no zone.
fn without_offset(value: &str) -> &str {
    let value = value.trim_end();
    let Some((time, offset)) = value.rfind(['+', '-']).map(|at| (&value[..at], &value[at + 1..])) else {
        return value;
    };
    let mut parts = offset.split(':');
    let is_offset =
        parts.all(|part| (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit()));
    // The hyphens within a date are something else.
    let may_follow = time.contains(':') || time.ends_with(char::is_whitespace);
    if is_offset && may_follow { time.trim_end() } else { value }
}

/// The value of a text, by Arrow's rules.
fn cast_text(value: &str, to: &DataType, name: &str) -> PgResult<ArrayRef> {
    let options = CastOptions { safe: false, ..Default::default() };
    cast_with_options(&utf8(value.trim()), to, &options).map_err(|_| invalid(name, value))
}

/// The Arrow type of values of a PostgreSQL type.
fn data_type(oid: u32) -> DataType {
    match oid {
        oid::BOOL => DataType::Boolean,
        oid::BYTEA => DataType::Binary,
        oid::INT2 => DataType::Int16,
        oid::INT4 => DataType::Int32,
        oid::INT8 | oid::OID => DataType::Int64,
        oid::FLOAT4 => DataType::Float32,
        oid::FLOAT8 => DataType::Float64,
        oid::NUMERIC => DataType::Decimal128(38, 10),
        oid::DATE => DataType::Date32,
        oid::TIME => DataType::Time64(TimeUnit::Microsecond),
        oid::TIMESTAMP => DataType::Timestamp(TimeUnit::Microsecond, None),
        oid::TIMESTAMPTZ => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
        oid::INTERVAL => DataType::Interval(IntervalUnit::MonthDayNano),
        0 | oid::UNKNOWN => DataType::Null,
        _ => match element_of(oid) {
            Some(element) => DataType::List(Arc::new(Field::new("item", data_type(element), true))),
            None => DataType::Utf8,
        },
    }
}

/// Whether the binary format of a type is its text.
fn is_text(oid: u32) -> bool {
    const XML: u32 = 142;
    matches!(
        oid,
        0 | oid::UNKNOWN | oid::TEXT | oid::VARCHAR | oid::BPCHAR | oid::NAME | oid::CHAR | oid::JSON | XML
    )
}

/// The value of `numeric`, exactly.
fn decimal(value: &str) -> PgResult<ArrayRef> {
    let value = value.trim();
    let digits = value.strip_prefix(['+', '-']).unwrap_or(value);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_plain = !(whole.is_empty() && fraction.is_empty())
        && whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit());
    if !is_plain {
        // With an exponent, or not a number.
        let float: f64 = value.parse().map_err(|_| invalid("numeric", value))?;
        return Ok(one::<Float64Type>(float));
    }
    let all = format!("{whole}{fraction}");
    let significant = all.trim_start_matches('0').len().max(fraction.len()).max(1);
    let sign = if value.starts_with('-') { "-" } else { "" };
    let unscaled = format!("{sign}{all}");
    let too_long = || PgError::new(code::NUMERIC_OUT_OF_RANGE, "a numeric of more than 76 digits");
    if significant <= 38 {
        let value: i128 = unscaled.parse().map_err(|_| too_long())?;
        let array = Decimal128Array::from_value(value, 1);
        return Ok(Arc::new(array.with_precision_and_scale(significant as u8, fraction.len() as i8)?));
    }
    let value = i256::from_string(&unscaled).filter(|_| significant <= 76).ok_or_else(too_long)?;
    let array = Decimal256Array::from_value(value, 1);
    Ok(Arc::new(array.with_precision_and_scale(significant as u8, fraction.len() as i8)?))
}

fn boolean(value: &str) -> PgResult<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "t" | "true" | "y" | "yes" | "on" | "1" => Ok(true),
        "f" | "false" | "n" | "no" | "off" | "0" => Ok(false),
        _ => Err(invalid("boolean", value)),
    }
}

/// `\x...`, or text with escapes.
fn bytea(value: &str) -> PgResult<Vec<u8>> {
    let fail = || invalid("bytea", value);
    if let Some(hex) = value.strip_prefix("\\x") {
        let digit = |b: u8| char::from(b).to_digit(16).map(|digit| digit as u8).ok_or_else(fail);
        let pairs = hex.as_bytes().chunks(2);
        return pairs.map(|pair| Ok(digit(pair[0])? << 4 | digit(*pair.get(1).ok_or_else(fail)?)?)).collect();
    }
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match after {
            _ if *first != b'\\' => {
                bytes.push(*first);
                after
            }
            [b'\\', after @ ..] => {
                bytes.push(b'\\');
                after
            }
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                after
            }
            _ => return Err(fail()),
        };
    }
    Ok(bytes)
}

fn uuid(value: &str) -> PgResult<[u8; 16]> {
    let hex: String = value.chars().filter(|c| !matches!(c, '-' | '{' | '}')).collect();
    let number = u128::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == 32);
    Ok(number.ok_or_else(|| invalid("uuid", value))?.to_be_bytes())
}

fn uuid_array(bytes: [u8; 16], required: Option<&DataType>) -> PgResult<ArrayRef> {
    if matches!(required, Some(DataType::FixedSizeBinary(16))) {
        return Ok(Arc::new(FixedSizeBinaryArray::try_from_iter([bytes].iter())?));
    }
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    Ok(utf8(&format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])))
}

impl Parameter {
    /// Whether its value can be read only if the type that the statement requires is known.
    pub(crate) fn needs_type(&self) -> bool {
        let Some(value) = &self.value else { return false };
        // An array, or a time with the offset of a zone.
        let is_open =
            |text: &str| text.trim_start().starts_with('{') || without_offset(text) != text.trim_end();
        match self.format {
            _ if self.oid == oid::UUID => true,
            Format::Binary => self.is_untyped(),
            Format::Text => self.is_untyped() && text(value).is_ok_and(is_open),
        }
    }

    /// Whether the client has not said its type.
    pub(crate) fn is_untyped(&self) -> bool {
        matches!(self.oid, 0 | oid::UNKNOWN)
    }

    /// The value as an array of one row.
    fn array(&self, required: Option<&DataType>) -> PgResult<ArrayRef> {
        let Some(value) = &self.value else { return Ok(new_null_array(&data_type(self.oid), 1)) };
        match self.format {
            Format::Text => self.text_array(text(value)?, required),
            Format::Binary => self.binary_array(value, required),
        }
    }

    fn text_array(&self, value: &str, required: Option<&DataType>) -> PgResult<ArrayRef> {
        fn parsed<T: ArrowPrimitiveType>(value: &str, name: &str) -> PgResult<ArrayRef>
        where
            T::Native: std::str::FromStr,
        {
            Ok(one::<T>(value.trim().parse().map_err(|_| invalid(name, value))?))
        }
        let array = |element: u32| {
            let items = elements(value).filter(|items| items.len() <= ELEMENTS_MAX);
            let items = items.ok_or_else(|| invalid("array", value))?;
            let item = |item: Option<String>| Self {
                oid: element,
                format: Format::Text,
                value: item.map(Bytes::from),
            };
            list(items.into_iter().map(item), element)
        };
        if self.is_untyped() {
            use DataType::*;
            // The engine would convert a time by its offset, and take an array for one element.
            return match required {
                Some(Timestamp(_, None) | Date32 | Date64 | Time32(_) | Time64(_)) => {
                    Ok(utf8(without_offset(value)))
                }
                Some(List(_) | LargeList(_)) if value.trim_start().starts_with('{') => array(oid::TEXT),
                _ => Ok(utf8(value)),
            };
        }
        match self.oid {
            oid::BOOL => Ok(Arc::new(BooleanArray::from(vec![boolean(value)?]))),
            oid::INT2 => parsed::<Int16Type>(value, "smallint"),
            oid::INT4 => parsed::<Int32Type>(value, "integer"),
            oid::INT8 => parsed::<Int64Type>(value, "bigint"),
            oid::OID => parsed::<Int64Type>(value, "oid"),
            // Rust reads inf, infinity and NaN, too.
            oid::FLOAT4 => parsed::<Float32Type>(value, "real"),
            oid::FLOAT8 => parsed::<Float64Type>(value, "double precision"),
            oid::NUMERIC => decimal(value),
            oid::BYTEA => Ok(Arc::new(BinaryArray::from(vec![bytea(value)?.as_slice()]))),
            oid::UUID => uuid_array(uuid(value)?, required),
            oid::DATE => cast_text(without_offset(value), &data_type(self.oid), "date"),
            oid::TIME => cast_text(without_offset(value), &data_type(self.oid), "time"),
            oid::TIMESTAMP => cast_text(without_offset(value), &data_type(self.oid), "timestamp"),
            oid::TIMESTAMPTZ => cast_text(value, &data_type(self.oid), "timestamp with time zone"),
            oid::INTERVAL => cast_text(value, &data_type(self.oid), "interval"),
            _ => match element_of(self.oid) {
                Some(element) => array(element),
                None => Ok(utf8(value)),
            },
        }
    }

    fn binary_array(&self, value: &[u8], required: Option<&DataType>) -> PgResult<ArrayRef> {
        Ok(match self.oid {
            oid::BOOL => Arc::new(BooleanArray::from(vec![fixed::<1>(value)?[0] != 0])),
            oid::INT2 => one::<Int16Type>(i16::from_be_bytes(fixed(value)?)),
            oid::INT4 => one::<Int32Type>(i32::from_be_bytes(fixed(value)?)),
            oid::INT8 => one::<Int64Type>(i64::from_be_bytes(fixed(value)?)),
            oid::OID => one::<Int64Type>(u32::from_be_bytes(fixed(value)?).into()),
            oid::FLOAT4 => one::<Float32Type>(f32::from_be_bytes(fixed(value)?)),
            oid::FLOAT8 => one::<Float64Type>(f64::from_be_bytes(fixed(value)?)),
            oid::NUMERIC => decimal(&numeric_text(value).ok_or_else(malformed)?)?,
            oid::BYTEA => Arc::new(BinaryArray::from(vec![value])),
            oid::UUID => uuid_array(fixed(value)?, required)?,
            oid::DATE => {
                let days = i64::from(i32::from_be_bytes(fixed(value)?)) + EPOCH_DAYS;
                one::<Date32Type>(i32::try_from(days).map_err(|_| malformed())?)
            }
            oid::TIME => {
                let us = i64::from_be_bytes(fixed(value)?);
                let is_time = (0..DAY_US).contains(&us);
                one::<Time64MicrosecondType>(is_time.then_some(us).ok_or_else(malformed)?)
            }
            oid::TIMESTAMP | oid::TIMESTAMPTZ => {
                let us = i64::from_be_bytes(fixed(value)?).checked_add(EPOCH_US).ok_or_else(malformed)?;
                let array = TimestampMicrosecondArray::from_value(us, 1);
                let is_zoned = self.oid == oid::TIMESTAMPTZ;
                Arc::new(if is_zoned { array.with_timezone("+00:00") } else { array })
            }
            oid::INTERVAL => {
                let bytes = fixed::<16>(value)?;
                let us = i64::from_be_bytes(fixed(&bytes[..8])?);
                let (days, months) =
                    (i32::from_be_bytes(fixed(&bytes[8..12])?), i32::from_be_bytes(fixed(&bytes[12..])?));
                let nanoseconds = us.checked_mul(1000).ok_or_else(malformed)?;
                one::<IntervalMonthDayNanoType>(IntervalMonthDayNano::new(months, days, nanoseconds))
            }
            oid::JSONB => utf8(text(value.strip_prefix(&[1]).ok_or_else(malformed)?)?),
            other => match element_of(other) {
                Some(_) => {
                    let (element, items) = binary_items(value)?;
                    list(items.into_iter(), element)?
                }
                None if is_text(other) => utf8(text(value)?),
                None => {
                    let message =
                        format!("values of the type with OID {other} are not supported in binary format");
                    return Err(PgError::unsupported(message).hint("send them as text"));
                }
            },
        })
    }

    /// The value for the catalog's engine, which knows numbers and texts.
    pub(crate) fn catalog_value(&self) -> PgResult<CatalogValue> {
        let Some(value) = &self.value else { return Ok(CatalogValue::Null) };
        if self.format == Format::Text {
            let value = text(value)?;
            return Ok(match self.oid {
                oid::BOOL => CatalogValue::Integer(boolean(value)?.into()),
                oid::INT2 | oid::INT4 | oid::INT8 | oid::OID => {
                    CatalogValue::Integer(value.trim().parse().map_err(|_| invalid("integer", value))?)
                }
                _ => CatalogValue::Text(value.to_owned()),
            });
        }
        Ok(match self.oid {
            oid::BOOL => CatalogValue::Integer((fixed::<1>(value)?[0] != 0).into()),
            oid::INT2 => CatalogValue::Integer(i16::from_be_bytes(fixed(value)?).into()),
            oid::INT4 => CatalogValue::Integer(i32::from_be_bytes(fixed(value)?).into()),
            oid::INT8 => CatalogValue::Integer(i64::from_be_bytes(fixed(value)?)),
            oid::OID | oid::REGCLASS | oid::REGTYPE => {
                CatalogValue::Integer(u32::from_be_bytes(fixed(value)?).into())
            }
            other if element_of(other).is_some() => {
                let mut out = BytesMut::from(&b"{"[..]);
                for (index, item) in binary_items(value)?.1.iter().enumerate() {
                    if index > 0 {
                        out.extend_from_slice(b",");
                    }
                    match item.catalog_value()? {
                        CatalogValue::Integer(number) => out.extend_from_slice(number.to_string().as_bytes()),
                        CatalogValue::Text(text) => put_element(text.as_bytes(), &mut out),
                        _ => out.extend_from_slice(b"NULL"),
                    }
                }
                out.extend_from_slice(b"}");
                CatalogValue::Text(text(&out)?.to_owned())
            }
            _ => CatalogValue::Text(text(value)?.to_owned()),
        })
    }
}

/// The elements of an array of one dimension in binary format, and their type.
fn binary_items(value: &[u8]) -> PgResult<(u32, Vec<Parameter>)> {
    let mut fields = Fields::new(Bytes::copy_from_slice(value));
    let read = |fields: &mut Fields| fields.i32().map_err(|_| malformed());
    let dimensions = read(&mut fields)?;
    read(&mut fields)?;
    let element = read(&mut fields)? as u32;
    if element_of(element).is_some() {
        return Err(malformed());
    }
    let mut items = Vec::new();
    match dimensions {
        0 => {}
        1 => {
            let count = usize::try_from(read(&mut fields)?).map_err(|_| malformed())?;
            read(&mut fields)?;
            // Each element has at least its length.
            if count > ELEMENTS_MAX || count * 4 > value.len() {
                return Err(malformed());
            }
            for _ in 0..count {
                let value = fields.value().map_err(|_| malformed())?;
                items.push(Parameter { oid: element, format: Format::Binary, value });
            }
        }
        _ => {
            return Err(PgError::unsupported("arrays of several dimensions are not supported as parameters"));
        }
    }
    fields.end().map_err(|_| malformed())?;
    Ok((element, items))
}

/// A list of one row.
fn list(items: impl Iterator<Item = Parameter>, element: u32) -> PgResult<ArrayRef> {
    let arrays: Vec<ArrayRef> = items.map(|item| item.array(None)).collect::<PgResult<_>>()?;
    // Decimals differ in scale: lists of them are sent as texts, which are cast.
    let item_type = if element == oid::NUMERIC { DataType::Utf8 } else { data_type(element) };
    let options = CastOptions { safe: false, ..Default::default() };
    let arrays: Vec<ArrayRef> = arrays
        .iter()
        .map(|array| cast_with_options(array, &item_type, &options))
        .collect::<Result<_, _>>()?;
    let parts: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    let values = if parts.is_empty() { new_empty_array(&item_type) } else { concat(&parts)? };
    let field = Arc::new(Field::new("item", item_type, true));
    Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::from_lengths([values.len()]), values, None)?))
}

#[cfg(test)]
mod tests {
    use arrow_cast::display::array_value_to_string;

    use super::*;

    fn check(oid: u32, format: Format, value: &[u8], expected: &str, data_type: DataType) {
        let parameter = Parameter { oid, format, value: Some(Bytes::copy_from_slice(value)) };
        let batch = batch(&[parameter], None).unwrap();
        let column = batch.column(0);
        assert_eq!(array_value_to_string(column, 0).unwrap(), expected);
        assert_eq!(column.data_type(), &data_type);
    }

    fn refused(oid: u32, format: Format, value: &[u8]) -> &'static str {
        let parameter = Parameter { oid, format, value: Some(Bytes::copy_from_slice(value)) };
        batch(&[parameter], None).unwrap_err().code
    }

    #[test]
    fn texts_are_read_by_their_type() {
        use Format::Text;
        check(oid::INT4, Text, b"-5", "-5", DataType::Int32);
        check(oid::BOOL, Text, b"t", "true", DataType::Boolean);
        check(0, Text, b"x", "x", DataType::Utf8);
        check(oid::NUMERIC, Text, b"-1.50", "-1.50", DataType::Decimal128(3, 2));
        check(oid::NUMERIC, Text, b"0.001", "0.001", DataType::Decimal128(3, 3));
        check(oid::DATE, Text, b"2024-02-29", "2024-02-29", DataType::Date32);
        check(oid::BYTEA, Text, b"\\x00ff", "00ff", DataType::Binary);
        check(oid::BYTEA, Text, b"a\\\\\\000", "615c00", DataType::Binary);
        let list = DataType::List(Arc::new(Field::new("item", DataType::Int32, true)));
        check(1007, Text, b"{1,NULL,3}", "[1, , 3]", list);
        assert_eq!(refused(oid::INT2, Text, b"70000"), code::INVALID_TEXT);
        assert_eq!(refused(oid::DATE, Text, b"yesterday?"), code::INVALID_TEXT);
        assert_eq!(refused(0, Text, b"a\0b"), code::CHARACTER_NOT_IN_REPERTOIRE);
        assert_eq!(refused(0, Text, b"\xff"), code::CHARACTER_NOT_IN_REPERTOIRE);
    }

    #[test]
    fn binary_values_are_read_by_their_type() {
        use Format::Binary;
        check(oid::INT8, Binary, &7i64.to_be_bytes(), "7", DataType::Int64);
        check(oid::DATE, Binary, &[0; 4], "2000-01-01", DataType::Date32);
        let numeric = [0, 2, 0, 0, 0, 0, 0, 1, 0, 12, 0x13, 0x88];
        check(oid::NUMERIC, Binary, &numeric, "12.5", DataType::Decimal128(3, 1));
        for (sign, expected) in [([0xd0, 0], "inf"), ([0xf0, 0], "-inf"), ([0xc0, 0], "NaN")] {
            let special = [[0, 0, 0, 0].as_slice(), &sign, &[0, 0]].concat();
            check(oid::NUMERIC, Binary, &special, expected, DataType::Float64);
        }
        assert_eq!(refused(oid::NUMERIC, Binary, &[0, 0, 0, 0, 0x12, 0, 0, 0]), code::INVALID_BINARY);
        assert_eq!(refused(oid::NUMERIC, Format::Text, b"--5"), code::INVALID_TEXT);
        assert_eq!(refused(oid::TIME, Binary, &(-1i64).to_be_bytes()), code::INVALID_BINARY);
        // Of inet.
        assert_eq!(refused(869, Binary, &[2, 32, 0, 4, 49, 50, 51, 52]), code::FEATURE_NOT_SUPPORTED);
        let list = DataType::List(Arc::new(Field::new("item", DataType::Int32, true)));
        let items = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 23, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 9];
        check(1007, Binary, &items, "[9]", list);
        assert_eq!(refused(oid::INT4, Binary, &[0; 3]), code::INVALID_BINARY);
        assert_eq!(refused(1007, Binary, &items[..27]), code::INVALID_BINARY);
        assert_eq!(
            refused(1007, Binary, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 23, 0x7f, 255, 255, 255, 0, 0, 0, 1]),
            code::INVALID_BINARY
        );
    }

    #[test]
    fn uuids_take_the_form_that_the_statement_requires() {
        let parameter = Parameter {
            oid: oid::UUID,
            format: Format::Binary,
            value: Some(Bytes::from_static(&[0xab; 16])),
        };
        let text = parameter.array(None).unwrap();
        assert_eq!(array_value_to_string(&text, 0).unwrap(), "abababab-abab-abab-abab-abababababab");
        let bytes = parameter.array(Some(&DataType::FixedSizeBinary(16))).unwrap();
        assert_eq!(bytes.data_type(), &DataType::FixedSizeBinary(16));
    }

    #[test]
    fn texts_are_read_by_the_type_that_the_statement_requires() {
        let read = |text: &'static str, required: &DataType| {
            let value = Some(Bytes::from_static(text.as_bytes()));
            let parameter = Parameter { oid: 0, format: Format::Text, value };
            let array = parameter.array(Some(required)).unwrap();
            (parameter.needs_type(), array_value_to_string(&array, 0).unwrap())
        };
        let timestamp = DataType::Timestamp(TimeUnit::Nanosecond, None);
        let zoned = DataType::Timestamp(TimeUnit::Nanosecond, Some("+00:00".into()));
        for (text, to, expected) in [
            ("2024-02-29 12:00:00+01", &timestamp, "2024-02-29 12:00:00"),
            ("2024-02-29 12:00:00.5-08:30 ", &timestamp, "2024-02-29 12:00:00.5"),
            ("2024-02-29 +01", &DataType::Date32, "2024-02-29"),
            ("12:00:01+0530", &DataType::Time64(TimeUnit::Nanosecond), "12:00:01"),
            ("2024-02-29 12:00:00+01", &zoned, "2024-02-29 12:00:00+01"),
            ("a:b-1", &DataType::Utf8, "a:b-1"),
            ("{a}", &DataType::Utf8, "{a}"),
        ] {
            assert_eq!(read(text, to), (true, expected.to_owned()));
        }
        for text in ["2024-02-29", "2024-02-29T12:00:00", "12:00:01", "x", "-5", "a - b"] {
            assert_eq!(read(text, &timestamp), (false, text.to_owned()));
        }
        let list = DataType::List(Arc::new(Field::new("item", DataType::Int64, true)));
        for (text, expected) in [("{}", "[]"), ("{1,NULL}", "[1, ]"), (r#"{"a,b"}"#, "[a,b]")] {
            assert_eq!(read(text, &list), (true, expected.to_owned()));
        }
        check(
            oid::TIMESTAMP,
            Format::Text,
            b"2024-02-29 12:00:00+01",
            "2024-02-29T12:00:00",
            data_type(oid::TIMESTAMP),
        );
    }
}
