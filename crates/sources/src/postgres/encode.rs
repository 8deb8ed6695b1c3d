//! Arrow columns as the values of binary COPY.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType, UInt32Type,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, ListArray, PrimitiveArray, StringArray,
};
use arrow_cast::{CastOptions, can_cast_types, cast_with_options};
use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{ArrowError, DataType, Field, IntervalUnit, TimeUnit};
use bytes::{BufMut, BytesMut};

use super::decode::{EPOCH_DAYS, EPOCH_US};
use super::numeric::{put_i128, put_i256};
use super::types::Kind;

/// How values of an Arrow type get into a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    /// In the column's own binary form, after a cast to this type.
    Binary(DataType),
    /// As text (or an array of texts), which the server then reads.
    Text,
}

/// The way of values of `from` into a column of `kind`, if there is one.
///
/// Numbers may widen, and shrink where every value fits; text goes wherever the
/// server can read it; times without a zone are taken as UTC.
pub(super) fn way(from: &DataType, kind: &Kind) -> Option<Way> {
    let from = plain(from);
    if *from == DataType::Null {
        return Some(Way::Binary(DataType::Null));
    }
    let own = kind.data_type();
    let into_own = || Some(Way::Binary(own.clone()));
    let is_decimal = |t: &DataType| {
        matches!(
            t,
            DataType::Decimal32(..)
                | DataType::Decimal64(..)
                | DataType::Decimal128(..)
                | DataType::Decimal256(..)
        )
    };
    let is_whole = |t: &DataType| {
        t.is_integer()
            || matches!(
                t,
                DataType::Decimal32(_, s) | DataType::Decimal64(_, s) | DataType::Decimal128(_, s)
                | DataType::Decimal256(_, s) if *s <= 0
            )
    };
    match kind {
        Kind::Bool if *from == DataType::Boolean => into_own(),
        Kind::Int16 | Kind::Int32 | Kind::Int64 | Kind::UInt32 if is_whole(from) => into_own(),
        Kind::Float32 | Kind::Float64 if from.is_integer() || from.is_floating() || is_decimal(from) => {
            into_own()
        }
        Kind::Money { .. } if from.is_integer() || is_decimal(from) => into_own(),
        Kind::Decimal128 { .. } | Kind::Decimal256 { .. } | Kind::NumericText | Kind::NumericDouble
            if !matches!(from, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) =>
        {
            // The server rounds to the places of its column, as it does for an insert.
            match from {
                DataType::Decimal256(..) => Some(Way::Binary(from.clone())),
                DataType::Decimal32(p, s) | DataType::Decimal64(p, s) | DataType::Decimal128(p, s) => {
                    Some(Way::Binary(DataType::Decimal128(*p, *s)))
                }
                whole if whole.is_integer() => Some(Way::Binary(DataType::Decimal128(20, 0))),
                float if float.is_floating() => Some(Way::Text),
                _ => None,
            }
        }
        Kind::Date if matches!(from, DataType::Date32 | DataType::Date64) => into_own(),
        Kind::Time if matches!(from, DataType::Time32(_) | DataType::Time64(_)) => into_own(),
        Kind::Timestamp | Kind::TimestampTz => match from {
            DataType::Timestamp(_, zone) => {
                Some(Way::Binary(DataType::Timestamp(TimeUnit::Microsecond, zone.clone())))
            }
            DataType::Date32 | DataType::Date64 => {
                Some(Way::Binary(DataType::Timestamp(TimeUnit::Microsecond, None)))
            }
            other => text_way(other),
        },
        Kind::Interval if matches!(from, DataType::Interval(_) | DataType::Duration(_)) => into_own(),
        Kind::Uuid if *from == DataType::FixedSizeBinary(16) => into_own(),
        Kind::Bytes if from.is_binary() => into_own(),
        Kind::Utf8 | Kind::Json | Kind::Jsonb if from.is_string() => into_own(),
        Kind::Utf8 if !from.is_nested() && !from.is_binary() && can_cast_types(from, &own) => into_own(),
        Kind::List(item) => match from {
            DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => {
                match way(f.data_type(), item)? {
                    Way::Binary(item) => {
                        Some(Way::Binary(DataType::List(f.as_ref().clone().with_data_type(item).into())))
                    }
                    Way::Text if plain(f.data_type()).is_string() => Some(Way::Text),
                    Way::Text => None,
                }
            }
            _ => None,
        },
        Kind::TextList => match from {
            DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _)
                if plain(f.data_type()).is_string() =>
            {
                Some(Way::Text)
            }
            _ => None,
        },
        _ => text_way(from),
    }
}

fn text_way(from: &DataType) -> Option<Way> {
    from.is_string().then_some(Way::Text)
}

/// The type behind a dictionary or runs.
fn plain(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain(values),
        DataType::RunEndEncoded(_, values) => plain(values.data_type()),
        other => other,
    }
}

/// The type of a column made for `field`.
///
/// # Errors
/// What has no place in a table.
pub(super) fn column_type(field: &Field) -> Result<String, String> {
    let extension = field.metadata().get(EXTENSION_TYPE_NAME_KEY).map(String::as_str);
    let decimal = |precision: u8, scale: i8| {
        // A scale below zero only since PostgreSQL 15; zeros in front of the point do as well.
        let zeros = i32::from(scale.min(0)).abs();
        format!("numeric({}, {})", i32::from(precision) + zeros, scale.max(0))
    };
    Ok(match plain(field.data_type()) {
        DataType::Boolean => "boolean".into(),
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => "smallint".into(),
        DataType::UInt16 | DataType::Int32 => "integer".into(),
        DataType::UInt32 | DataType::Int64 => "bigint".into(),
        DataType::UInt64 => "numeric(20, 0)".into(),
        DataType::Float16 | DataType::Float32 => "real".into(),
        DataType::Float64 => "double precision".into(),
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => decimal(*p, *s),
        text if text.is_string() && extension == Some("arrow.json") => "jsonb".into(),
        text if text.is_string() => "text".into(),
        DataType::Null => "text".into(),
        DataType::FixedSizeBinary(16) if extension == Some("arrow.uuid") => "uuid".into(),
        binary if binary.is_binary() => "bytea".into(),
        DataType::Date32 | DataType::Date64 => "date".into(),
        DataType::Time32(_) | DataType::Time64(_) => "time".into(),
        DataType::Timestamp(_, None) => "timestamp".into(),
        DataType::Timestamp(_, Some(_)) => "timestamptz".into(),
        DataType::Interval(_) | DataType::Duration(_) => "interval".into(),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            if plain(item.data_type()).is_nested() {
                return Err(format!("{}: a list of lists or structures", field.data_type()));
            }
            column_type(item)? + "[]"
        }
        other => return Err(other.to_string()),
    })
}

/// One column of a batch, ready to be written value by value.
pub(super) enum Encoder {
    Null,
    Bool(BooleanArray),
    Int16(PrimitiveArray<Int16Type>),
    Int32(PrimitiveArray<Int32Type>),
    Int64(PrimitiveArray<Int64Type>),
    UInt32(PrimitiveArray<UInt32Type>),
    Float32(PrimitiveArray<Float32Type>),
    Float64(PrimitiveArray<Float64Type>),
    Decimal128(PrimitiveArray<Decimal128Type>, i8),
    Decimal256(PrimitiveArray<Decimal256Type>, i8),
    Money(PrimitiveArray<Decimal128Type>),
    Date(PrimitiveArray<Date32Type>),
    Time(PrimitiveArray<Time64MicrosecondType>),
    Timestamp(PrimitiveArray<TimestampMicrosecondType>),
    Interval(PrimitiveArray<IntervalMonthDayNanoType>),
    Uuid(FixedSizeBinaryArray),
    Bytes(BinaryArray),
    Utf8(StringArray),
    Jsonb(StringArray),
    List { array: ListArray, items: Box<Encoder>, element: u32 },
}

impl Encoder {
    /// For `array`, cast to `to`, into a column of `kind`; `element` is the type of
    /// its elements if it is an array.
    ///
    /// # Errors
    /// When a value does not fit.
    pub(super) fn new(
        array: &ArrayRef,
        to: &DataType,
        kind: &Kind,
        element: u32,
    ) -> Result<Self, ArrowError> {
        if *to == DataType::Null {
            return Ok(Self::Null);
        }
        let strict = CastOptions { safe: false, ..Default::default() };
        let mut array = array.clone();
        // Casts are defined on plain arrays, not on all pairs of encodings.
        let behind = plain(array.data_type()).clone();
        for step in [&behind, to] {
            if array.data_type() != step {
                array = cast_with_options(&array, step, &strict)?;
            }
        }
        Ok(match (kind, to) {
            (Kind::Money { .. }, _) => Self::Money(array.as_primitive().clone()),
            (Kind::Jsonb, _) => Self::Jsonb(array.as_string().clone()),
            (_, DataType::Boolean) => Self::Bool(array.as_boolean().clone()),
            (_, DataType::Int16) => Self::Int16(array.as_primitive().clone()),
            (_, DataType::Int32) => Self::Int32(array.as_primitive().clone()),
            (_, DataType::Int64) => Self::Int64(array.as_primitive().clone()),
            (_, DataType::UInt32) => Self::UInt32(array.as_primitive().clone()),
            (_, DataType::Float32) => Self::Float32(array.as_primitive().clone()),
            (_, DataType::Float64) => Self::Float64(array.as_primitive().clone()),
            (_, DataType::Decimal128(_, scale)) => Self::Decimal128(array.as_primitive().clone(), *scale),
            (_, DataType::Decimal256(_, scale)) => Self::Decimal256(array.as_primitive().clone(), *scale),
            (_, DataType::Date32) => Self::Date(array.as_primitive().clone()),
            (_, DataType::Time64(_)) => Self::Time(array.as_primitive().clone()),
            (_, DataType::Timestamp(TimeUnit::Microsecond, _)) => {
                Self::Timestamp(array.as_primitive().clone())
            }
            (_, DataType::Interval(IntervalUnit::MonthDayNano)) => {
                Self::Interval(array.as_primitive().clone())
            }
            (_, DataType::FixedSizeBinary(_)) => Self::Uuid(array.as_fixed_size_binary().clone()),
            (_, DataType::Binary) => Self::Bytes(array.as_binary().clone()),
            (_, DataType::Utf8) => Self::Utf8(array.as_string().clone()),
            (Kind::List(kind), DataType::List(field)) => {
                let array: ListArray = array.as_list().clone();
                let items = Self::new(array.values(), field.data_type(), kind, 0)?;
                Self::List { array, items: Box::new(items), element }
            }
            (_, other) => return Err(ArrowError::CastError(format!("no way to write {other}"))),
        })
    }

    /// Appends length and value of one row.
    ///
    /// # Errors
    /// When the server has no such value.
    #[inline]
    pub(super) fn put(&self, row: usize, out: &mut BytesMut) -> Result<(), &'static str> {
        macro_rules! fixed {
            ($array:ident, $bytes:literal, $put:ident, $value:expr) => {{
                if $array.is_null(row) {
                    out.put_i32(-1);
                } else {
                    out.put_i32($bytes);
                    out.$put($value($array.value(row)));
                }
            }};
        }
        match self {
            Self::Null => out.put_i32(-1),
            Self::Bool(array) => fixed!(array, 1, put_u8, u8::from),
            Self::Int16(array) => fixed!(array, 2, put_i16, |v| v),
            Self::Int32(array) => fixed!(array, 4, put_i32, |v| v),
            Self::Int64(array) => fixed!(array, 8, put_i64, |v| v),
            Self::UInt32(array) => fixed!(array, 4, put_u32, |v| v),
            Self::Float32(array) => fixed!(array, 4, put_f32, |v| v),
            Self::Float64(array) => fixed!(array, 8, put_f64, |v| v),
            Self::Time(array) => fixed!(array, 8, put_i64, |v| v),
            Self::Date(array) if array.is_valid(row) => {
                let days = array.value(row).checked_sub(EPOCH_DAYS).ok_or("a date too far for the server")?;
                out.put_i32(4);
                out.put_i32(days);
            }
            Self::Timestamp(array) if array.is_valid(row) => {
                let us = array.value(row).checked_sub(EPOCH_US).ok_or("a time too far for the server")?;
                out.put_i32(8);
                out.put_i64(us);
            }
            Self::Interval(array) if array.is_valid(row) => {
                let value = array.value(row);
                if value.nanoseconds % 1000 != 0 {
                    return Err("an interval finer than a microsecond");
                }
                out.put_i32(16);
                out.put_i64(value.nanoseconds / 1000);
                out.put_i32(value.days);
                out.put_i32(value.months);
            }
            Self::Money(array) if array.is_valid(row) => {
                let units = i64::try_from(array.value(row)).map_err(|_| "an amount too large for money")?;
                out.put_i32(8);
                out.put_i64(units);
            }
            Self::Decimal128(array, scale) if array.is_valid(row) => {
                sized(out, |out| {
                    put_i128(array.value(row), *scale, out);
                    Ok(())
                })?;
            }
            Self::Decimal256(array, scale) if array.is_valid(row) => {
                sized(out, |out| {
                    put_i256(array.value(row), *scale, out);
                    Ok(())
                })?;
            }
            Self::Uuid(array) if array.is_valid(row) => put_bytes(array.value(row), out),
            Self::Bytes(array) if array.is_valid(row) => put_bytes(array.value(row), out),
            Self::Utf8(array) if array.is_valid(row) => put_bytes(array.value(row).as_bytes(), out),
            Self::Jsonb(array) if array.is_valid(row) => sized(out, |out| {
                out.put_u8(1);
                out.put_slice(array.value(row).as_bytes());
                Ok(())
            })?,
            Self::List { array, items, element } if array.is_valid(row) => {
                let offsets = array.value_offsets();
                let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                sized(out, |out| {
                    out.put_i32(i32::from(start < end));
                    out.put_i32(1);
                    out.put_u32(*element);
                    if start < end {
                        out.put_i32((end - start) as i32);
                        out.put_i32(1);
                    }
                    (start..end).try_for_each(|item| items.put(item, out))
                })?;
            }
            _ => out.put_i32(-1),
        }
        Ok(())
    }
}

/// No longer than an Arrow offset, so never longer than an `i32`.
fn put_bytes(value: &[u8], out: &mut BytesMut) {
    out.put_i32(value.len() as i32);
    out.put_slice(value);
}

/// Appends what `put` does, behind its length.
fn sized(
    out: &mut BytesMut,
    put: impl FnOnce(&mut BytesMut) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    let at = out.len();
    out.put_i32(0);
    put(out)?;
    let length = i32::try_from(out.len() - at - 4).map_err(|_| "a value of more than 2 GiB")?;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn ways_are_found() {
        use DataType::{Binary, Boolean, Date32, Float64, Int32, Int64, LargeUtf8, Utf8, Utf8View};
        let numeric = Kind::Decimal128 { precision: 10, scale: 2 };
        let check = |from: DataType, kind: &Kind, expected: Option<Way>| {
            assert_eq!(way(&from, kind), expected, "{from} to {kind:?}");
        };
        check(Int64, &Kind::Int32, Some(Way::Binary(Int32)));
        check(Utf8View, &Kind::Utf8, Some(Way::Binary(Utf8)));
        check(LargeUtf8, &Kind::Text, Some(Way::Text));
        check(Utf8, &Kind::Date, Some(Way::Text));
        check(Utf8, &numeric, Some(Way::Text));
        check(Float64, &numeric, Some(Way::Text));
        check(Int32, &numeric, Some(Way::Binary(DataType::Decimal128(20, 0))));
        check(Boolean, &Kind::Utf8, Some(Way::Binary(Utf8)));
        check(Float64, &Kind::Int32, None);
        check(Boolean, &Kind::Int32, None);
        check(Int32, &Kind::Date, None);
        check(Date32, &numeric, None);
        check(Binary, &Kind::Utf8, None);
        let words = DataType::Dictionary(Box::new(Int32), Box::new(Utf8));
        check(words, &Kind::Utf8, Some(Way::Binary(Utf8)));
        let list = |item| DataType::List(Arc::new(Field::new("item", item, true)));
        check(list(Int32), &Kind::List(Box::new(Kind::Int64)), Some(Way::Binary(list(Int64))));
        check(list(Utf8), &Kind::TextList, Some(Way::Text));
        check(Int32, &Kind::List(Box::new(Kind::Int64)), None);
    }

    #[test]
    fn columns_are_made() {
        let check = |data_type: DataType, expected: Option<&str>| {
            let made = column_type(&Field::new("a", data_type.clone(), true)).ok();
            assert_eq!(made.as_deref(), expected, "{data_type}");
        };
        check(DataType::UInt32, Some("bigint"));
        check(DataType::Decimal128(10, -2), Some("numeric(12, 0)"));
        check(
            DataType::List(Arc::new(Field::new("item", DataType::Float64, true))),
            Some("double precision[]"),
        );
        check(DataType::Struct(vec![Field::new("a", DataType::Int8, true)].into()), None);
        let json = Field::new("a", DataType::Utf8, true)
            .with_metadata([(EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.json".to_owned())].into());
        assert_eq!(column_type(&json).unwrap(), "jsonb");
    }
}
