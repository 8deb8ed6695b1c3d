//! Writes numbers to columns of other number types, exactly or not at all.
//!
//! A whole number goes into a `real` or `double precision` column if the type has exactly this value. A
//! number with decimal places has no exact float; it goes into such a column if the float is printed with
//! the same digits. A float goes into a `numeric` column as the digits it is printed with (decision 0017).

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, PrimitiveArray};
use arrow_buffer::i256;
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType};
use bytes::{BufMut, BytesMut};

use super::limit::Limit;
use super::numeric::{put_i128, put_i256, put_special, put_trimmed};
use super::types::PgType;
use crate::decimal::Decimal;
use crate::unfit::EncodeError;

/// The scale of numbers without a declared precision ([`crate::NumericRule::RESULT`]).
const OPEN_SCALE: i8 = 44;
const CAST: &str = "cast it in the query, or choose another type for the column";
/// The first version with infinities in `numeric`: PostgreSQL 14.
const NUMERIC_INFINITY_VERSION: u32 = 140_000;

/// A column of numbers, in the narrowest of these types that holds all values of its Arrow type.
enum Numbers {
    Whole(PrimitiveArray<Int64Type>),
    Decimal128(PrimitiveArray<Decimal128Type>, i8),
    Decimal256(PrimitiveArray<Decimal256Type>, i8),
    Float32(PrimitiveArray<Float32Type>),
    Float64(PrimitiveArray<Float64Type>),
}

/// The type that the server expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Int16,
    Int32,
    Int64,
    UInt32,
    Float32,
    Float64,
    Numeric { limit: Limit, has_infinity: bool },
    Money { scale: i8 },
}

/// A column of numbers and the type it is written as.
pub(super) struct NumberEncoder {
    numbers: Numbers,
    to: To,
}

impl NumberEncoder {
    /// The encoder of `array` for a column of `kind`; `None` if either is not a number type.
    pub(super) fn new(
        array: &ArrayRef,
        kind: &PgType,
        limit: Limit,
        version: u32,
    ) -> Result<Option<Self>, ArrowError> {
        let to = match kind {
            PgType::Int16 => To::Int16,
            PgType::Int32 => To::Int32,
            PgType::Int64 => To::Int64,
            PgType::UInt32 => To::UInt32,
            PgType::Float32 => To::Float32,
            PgType::Float64 => To::Float64,
            PgType::Decimal128 { .. }
            | PgType::Decimal256 { .. }
            | PgType::NumericText
            | PgType::NumericDouble => {
                let has_infinity = limit == Limit::None && version >= NUMERIC_INFINITY_VERSION;
                To::Numeric { limit: narrowed(limit, array.data_type()), has_infinity }
            }
            PgType::Money { scale } => To::Money { scale: *scale },
            _ => return Ok(None),
        };
        // None of these casts changes a value.
        let numbers = match array.data_type() {
            DataType::UInt64 => {
                Numbers::Decimal128(cast(array, &DataType::Decimal128(20, 0))?.as_primitive().clone(), 0)
            }
            t if t.is_integer() => Numbers::Whole(cast(array, &DataType::Int64)?.as_primitive().clone()),
            DataType::Decimal32(p, s) | DataType::Decimal64(p, s) => {
                Numbers::Decimal128(cast(array, &DataType::Decimal128(*p, *s))?.as_primitive().clone(), *s)
            }
            DataType::Decimal128(_, s) => Numbers::Decimal128(array.as_primitive().clone(), *s),
            DataType::Decimal256(_, s) => Numbers::Decimal256(array.as_primitive().clone(), *s),
            DataType::Float16 | DataType::Float32 => {
                Numbers::Float32(cast(array, &DataType::Float32)?.as_primitive().clone())
            }
            DataType::Float64 => Numbers::Float64(array.as_primitive().clone()),
            _ => return Ok(None),
        };
        Ok(Some(Self { numbers, to }))
    }

    pub(super) fn is_null(&self, row: usize) -> bool {
        match &self.numbers {
            Numbers::Whole(values) => values.is_null(row),
            Numbers::Decimal128(values, _) => values.is_null(row),
            Numbers::Decimal256(values, _) => values.is_null(row),
            Numbers::Float32(values) => values.is_null(row),
            Numbers::Float64(values) => values.is_null(row),
        }
    }

    /// Appends a value that is not NULL, without a length.
    #[inline]
    pub(super) fn put(&self, row: usize, out: &mut BytesMut) -> Result<(), EncodeError> {
        match (&self.numbers, self.to) {
            (Numbers::Whole(values), To::Int16 | To::Int32 | To::Int64 | To::UInt32) => {
                self.put_whole(values.value(row).into(), out)?;
            }
            (Numbers::Float64(values), To::Float64) => out.put_f64(values.value(row)),
            (Numbers::Float32(values), To::Float32) => out.put_f32(values.value(row)),
            (Numbers::Float32(values), To::Float64) => out.put_f64(values.value(row).into()),
            (Numbers::Float64(values), To::Float32) => {
                let value = values.value(row);
                let narrow = value as f32;
                if f64::from(narrow) != value && !value.is_nan() {
                    return Err(EncodeError::new(format!("{value} is not a value of type real"), CAST));
                }
                out.put_f32(narrow);
            }
            (Numbers::Whole(values), To::Numeric { limit: Limit::None, .. }) => {
                put_i128(values.value(row).into(), 0, out);
            }
            (Numbers::Decimal128(values, scale), To::Numeric { limit: Limit::None, .. }) => {
                put_i128(values.value(row), *scale, out);
            }
            (Numbers::Decimal256(values, OPEN_SCALE), To::Numeric { limit: Limit::None, .. }) => {
                put_trimmed(values.value(row), OPEN_SCALE, out);
            }
            (Numbers::Decimal256(values, scale), To::Numeric { limit: Limit::None, .. }) => {
                put_i256(values.value(row), *scale, out);
            }
            (Numbers::Whole(values), To::Float64)
                if values.value(row).unsigned_abs() <= 1 << f64::MANTISSA_DIGITS =>
            {
                out.put_f64(values.value(row) as f64);
            }
            (Numbers::Decimal128(values, scale), To::Float64) => match short(values.value(row), *scale) {
                Some(value) => out.put_f64(value),
                None => self.put_converted(row, out)?,
            },
            _ => self.put_converted(row, out)?,
        }
        Ok(())
    }

    fn put_whole(&self, value: i128, out: &mut BytesMut) -> Result<(), EncodeError> {
        let unfit = |name: &str| EncodeError::new(format!("{value} is out of range for type {name}"), CAST);
        match self.to {
            To::Int16 => out.put_i16(value.try_into().map_err(|_| unfit("smallint"))?),
            To::Int32 => out.put_i32(value.try_into().map_err(|_| unfit("integer"))?),
            To::UInt32 => out.put_u32(value.try_into().map_err(|_| unfit("oid"))?),
            _ => out.put_i64(value.try_into().map_err(|_| unfit("bigint"))?),
        }
        Ok(())
    }

    fn put_converted(&self, row: usize, out: &mut BytesMut) -> Result<(), EncodeError> {
        let value = match &self.numbers {
            Numbers::Whole(values) => Decimal { value: i256::from_i128(values.value(row).into()), scale: 0 },
            Numbers::Decimal128(values, scale) => {
                Decimal { value: i256::from_i128(values.value(row)), scale: i32::from(*scale) }
            }
            Numbers::Decimal256(values, scale) => {
                Decimal { value: values.value(row), scale: i32::from(*scale) }
            }
            Numbers::Float32(values) => match Decimal::shown(values.value(row)) {
                Some(decimal) => decimal,
                None => return self.put_special(values.value(row).into(), out),
            },
            Numbers::Float64(values) => match Decimal::shown(values.value(row)) {
                Some(decimal) => decimal,
                None => return self.put_special(values.value(row), out),
            },
        };
        match self.to {
            To::Numeric { limit, .. } => {
                limit.check_decimal(value.value, value.scale)?;
                put_i256(value.value, value.scale, out);
            }
            To::Money { scale } => {
                let unfit = || EncodeError::new(format!("{value} is not a value of type money"), CAST);
                let units = value.rescaled(i32::from(scale)).and_then(|units| i64::try_from(units).ok());
                out.put_i64(units.ok_or_else(unfit)?);
            }
            To::Float32 => {
                let unfit = || EncodeError::new(format!("{value} is not a value of type real"), CAST);
                out.put_f32(value.to_float().ok_or_else(unfit)?);
            }
            To::Float64 => {
                let unfit =
                    || EncodeError::new(format!("{value} is not a value of type double precision"), CAST);
                out.put_f64(value.to_float().ok_or_else(unfit)?);
            }
            To::Int16 | To::Int32 | To::Int64 | To::UInt32 => {
                let unfit = || EncodeError::new(format!("{value} is out of range for an integer"), CAST);
                self.put_whole(value.rescaled(0).ok_or_else(unfit)?, out)?;
            }
        }
        Ok(())
    }

    fn put_special(&self, value: f64, out: &mut BytesMut) -> Result<(), EncodeError> {
        match self.to {
            To::Numeric { has_infinity, .. } if value.is_nan() || has_infinity => {
                put_special(value, out);
                Ok(())
            }
            _ => Err(EncodeError::new("the column can't hold infinity", CAST)),
        }
    }
}

/// `value` / 10^`scale` as a double that is printed with the same digits, for numbers of up to 15
/// digits: a double preserves 15 digits, and the quotient of two exact doubles is rounded only once.
fn short(value: i128, scale: i8) -> Option<f64> {
    const POWERS: [f64; 16] =
        [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    let power = POWERS.get(usize::try_from(scale).ok()?)?;
    (value.unsigned_abs() < 10u128.pow(f64::DIGITS)).then(|| value as f64 / power)
}

/// The limit; none if all values of the Arrow type fit.
fn narrowed(limit: Limit, from: &DataType) -> Limit {
    let (precision, scale) = match from {
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => (*p, *s),
        DataType::Int8 | DataType::UInt8 => (3, 0),
        DataType::Int16 | DataType::UInt16 => (5, 0),
        DataType::Int32 | DataType::UInt32 => (10, 0),
        DataType::Int64 => (19, 0),
        DataType::UInt64 => (20, 0),
        _ => return limit,
    };
    if limit.holds_all(precision, scale) { Limit::None } else { limit }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_short_path_agrees_with_the_long_one(value in -999_999_999_999_999i64..=999_999_999_999_999, scale in 0i8..=15) {
            let long = Decimal { value: i256::from_i128(value.into()), scale: scale.into() }.to_float::<f64>();
            prop_assert_eq!(short(value.into(), scale), long);
        }
    }
}
