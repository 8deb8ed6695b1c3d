//! The common type of two types, which holds the values of both without loss.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_cast::can_cast_types;
use arrow_schema::{DataType, Field, FieldRef, Fields};

/// Maximum digits of a `Decimal128` and of a `Decimal256`.
const DIGITS_MAX_128: u8 = 38;
const DIGITS_MAX_256: u8 = 76;

/// The column that holds the values of both, with the name of the first.
pub fn common_field(a: &Field, b: &Field) -> Option<Field> {
    let data_type = common_type(a.data_type(), b.data_type())?;
    let castable = can_cast_types(a.data_type(), &data_type) && can_cast_types(b.data_type(), &data_type);
    let nullable = a.is_nullable() || b.is_nullable() || a.data_type().is_null() || b.data_type().is_null();
    let field = Field::new(a.name(), data_type, nullable);
    castable.then(|| field.with_metadata(common_metadata(a.metadata().clone(), b.metadata())))
}

/// The metadata that both have: the common column has an extension type only if both have it.
pub fn common_metadata(
    mut a: HashMap<String, String>,
    b: &HashMap<String, String>,
) -> HashMap<String, String> {
    a.retain(|key, value| b.get(key) == Some(value));
    a
}

/// The smallest type that holds every value of both; `None` if no such type is obvious.
pub fn common_type(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{
        Binary, BinaryView, Dictionary, LargeBinary, LargeList, LargeUtf8, List, Null, Struct, Timestamp,
        Utf8, Utf8View,
    };
    let field = |a: &FieldRef, b: &FieldRef| common_field(a, b).map(Arc::new);
    match (a, b) {
        (a, b) if a == b => Some(a.clone()),
        (Null, other) | (other, Null) => Some(other.clone()),
        (Dictionary(_, values), other) | (other, Dictionary(_, values)) => common_type(values, other),
        // Not all readers support views.
        (Utf8 | Utf8View, Utf8 | Utf8View) => Some(Utf8),
        (Utf8 | LargeUtf8 | Utf8View, Utf8 | LargeUtf8 | Utf8View) => Some(LargeUtf8),
        (Binary | BinaryView, Binary | BinaryView) => Some(Binary),
        (Binary | LargeBinary | BinaryView, Binary | LargeBinary | BinaryView) => Some(LargeBinary),
        (Timestamp(unit, Some(a)), Timestamp(other, Some(b))) if unit == other && is_utc(a) && is_utc(b) => {
            Some(Timestamp(*unit, Some("UTC".into())))
        }
        (List(a), List(b)) => field(a, b).map(List),
        (LargeList(a), LargeList(b)) => field(a, b).map(LargeList),
        (Struct(a), Struct(b)) => {
            let same = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.name() == b.name());
            let fields = || a.iter().zip(b).map(|(a, b)| field(a, b)).collect::<Option<Fields>>();
            same.then(fields)?.map(Struct)
        }
        (a, b) if a.is_integer() && b.is_integer() => common_integer(a, b),
        (a, b) if a.is_floating() && b.is_floating() => {
            Some(if a.primitive_width() > b.primitive_width() { a.clone() } else { b.clone() })
        }
        (a, b) => common_decimal(a, b),
    }
}

fn is_utc(zone: &str) -> bool {
    matches!(zone, "UTC" | "Etc/UTC" | "Z" | "+00:00" | "+00")
}

fn common_integer(a: &DataType, b: &DataType) -> Option<DataType> {
    let (a_bytes, b_bytes) = (a.primitive_width()?, b.primitive_width()?);
    if a.is_signed_integer() == b.is_signed_integer() {
        return Some(if a_bytes > b_bytes { a.clone() } else { b.clone() });
    }
    let (signed, unsigned) = if a.is_signed_integer() { (a_bytes, b_bytes) } else { (b_bytes, a_bytes) };
    match signed.max(2 * unsigned) {
        2 => Some(DataType::Int16),
        4 => Some(DataType::Int32),
        8 => Some(DataType::Int64),
        _ => None,
    }
}

/// The common type of two decimals, or of a decimal and an integer.
fn common_decimal(a: &DataType, b: &DataType) -> Option<DataType> {
    if !a.is_decimal() && !b.is_decimal() {
        return None;
    }
    let ((a_whole, a_scale), (b_whole, b_scale)) = (digits(a)?, digits(b)?);
    let scale = a_scale.max(b_scale);
    let precision = u8::try_from(a_whole.max(b_whole) + i16::from(scale)).ok()?;
    if (1..=DIGITS_MAX_128).contains(&precision) {
        return Some(DataType::Decimal128(precision, scale));
    }
    (1..=DIGITS_MAX_256).contains(&precision).then_some(DataType::Decimal256(precision, scale))
}

/// Digits before and after the decimal point.
fn digits(number: &DataType) -> Option<(i16, i8)> {
    use DataType::{
        Decimal32, Decimal64, Decimal128, Decimal256, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32,
        UInt64,
    };
    Some(match *number {
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => (i16::from(precision) - i16::from(scale), scale),
        Int8 | UInt8 => (3, 0),
        Int16 | UInt16 => (5, 0),
        Int32 | UInt32 => (10, 0),
        Int64 => (19, 0),
        UInt64 => (20, 0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType::*, TimeUnit};

    use super::*;

    #[test]
    fn common_types_hold_both() {
        let dictionary = Dictionary(Box::new(Int8), Box::new(Utf8));
        let utc = |zone: &str| Timestamp(TimeUnit::Microsecond, Some(zone.into()));
        let list = |name, data_type| List(Arc::new(Field::new(name, data_type, false)));
        let cases = [
            (Int32, Int64, Some(Int64)),
            (UInt8, UInt32, Some(UInt32)),
            (UInt32, Int8, Some(Int64)),
            (UInt8, Int8, Some(Int16)),
            (UInt8, Int64, Some(Int64)),
            (UInt64, Int64, None),
            (Float32, Float64, Some(Float64)),
            (Int32, Float64, None),
            (Null, Boolean, Some(Boolean)),
            (Utf8, LargeUtf8, Some(LargeUtf8)),
            (Utf8, Utf8View, Some(Utf8)),
            (Utf8View, LargeUtf8, Some(LargeUtf8)),
            (BinaryView, Binary, Some(Binary)),
            (Utf8, Binary, None),
            (dictionary.clone(), dictionary.clone(), Some(dictionary.clone())),
            (dictionary.clone(), Utf8, Some(Utf8)),
            (dictionary.clone(), Dictionary(Box::new(Int32), Box::new(Utf8)), Some(Utf8)),
            (dictionary, Int8, None),
            (Decimal128(12, 2), Decimal128(38, 10), Some(Decimal128(38, 10))),
            (Decimal128(38, 2), Decimal128(38, 10), Some(Decimal256(46, 10))),
            (Decimal256(76, 0), Decimal256(76, 1), None),
            (Decimal128(5, 2), Int64, Some(Decimal128(21, 2))),
            (Decimal128(5, -2), Decimal128(4, -3), Some(Decimal128(5, -2))),
            (Decimal128(5, 2), Float64, None),
            (utc("UTC"), utc("+00:00"), Some(utc("UTC"))),
            (utc("UTC"), utc("Europe/Berlin"), None),
            (utc("UTC"), Timestamp(TimeUnit::Microsecond, None), None),
            (Timestamp(TimeUnit::Second, None), Timestamp(TimeUnit::Nanosecond, None), None),
            (Date32, Timestamp(TimeUnit::Second, None), None),
            (list("item", Int32), list("element", Int64), Some(list("item", Int64))),
            (list("item", Int32), list("item", Utf8), None),
        ];
        for (a, b, expected) in cases {
            assert_eq!(common_type(&a, &b), expected, "{a} with {b}");
            // The order matters only for the name of a list's element, which is that of the first type.
            if !a.is_nested() || expected.is_none() {
                assert_eq!(common_type(&b, &a), expected, "{b} with {a}");
            }
        }
    }
}
