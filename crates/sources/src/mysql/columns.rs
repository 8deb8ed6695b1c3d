//! Converts columns of a result from the server's types to Arrow's, value by value.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{
    BinaryBuilder, Date32Builder, Decimal128Builder, Decimal256Builder, DurationMicrosecondBuilder,
    Float32Builder, Float64Builder, Int8Builder, Int16Builder, Int32Builder, Int64Builder, NullBuilder,
    StringBuilder, TimestampMicrosecondBuilder, UInt8Builder, UInt16Builder, UInt32Builder, UInt64Builder,
};
use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{DataType, Field, TimeUnit};
use mysql_async::consts::{ColumnFlags, ColumnType};
use mysql_async::{Column, Value};

use super::values;
use crate::{Result, SourceError};

/// The collation of binary strings.
const BINARY: u16 = 63;

/// The Arrow field of a column. Every field is nullable, because what the server
/// reports is unreliable for views and outer joins.
///
/// # Errors
/// [`SourceError::Unsupported`] for a type that does not occur in results.
pub(super) fn field(column: &Column) -> Result<Field> {
    let name = column.name_str().into_owned();
    let data_type = data_type(column, &name)?;
    let field = Field::new(name, data_type, true);
    Ok(if column.column_type() == ColumnType::MYSQL_TYPE_JSON {
        field.with_metadata([(EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.json".to_owned())].into())
    } else {
        field
    })
}

fn data_type(column: &Column, name: &str) -> Result<DataType> {
    use ColumnType::*;
    let unsigned = column.flags().contains(ColumnFlags::UNSIGNED_FLAG);
    Ok(match (column.column_type(), unsigned) {
        (MYSQL_TYPE_NULL, _) => DataType::Null,
        (MYSQL_TYPE_TINY, false) => DataType::Int8,
        (MYSQL_TYPE_TINY, true) => DataType::UInt8,
        (MYSQL_TYPE_SHORT, false) | (MYSQL_TYPE_YEAR, _) => DataType::Int16,
        (MYSQL_TYPE_SHORT, true) => DataType::UInt16,
        (MYSQL_TYPE_LONG | MYSQL_TYPE_INT24, false) => DataType::Int32,
        (MYSQL_TYPE_LONG | MYSQL_TYPE_INT24, true) => DataType::UInt32,
        (MYSQL_TYPE_LONGLONG, false) => DataType::Int64,
        (MYSQL_TYPE_LONGLONG, true) | (MYSQL_TYPE_BIT, _) => DataType::UInt64,
        (MYSQL_TYPE_FLOAT, _) => DataType::Float32,
        (MYSQL_TYPE_DOUBLE, _) => DataType::Float64,
        (MYSQL_TYPE_DECIMAL | MYSQL_TYPE_NEWDECIMAL, _) => decimal_type(column, unsigned, name)?,
        (MYSQL_TYPE_DATE | MYSQL_TYPE_NEWDATE, _) => DataType::Date32,
        (MYSQL_TYPE_DATETIME, _) => DataType::Timestamp(TimeUnit::Microsecond, None),
        (MYSQL_TYPE_TIMESTAMP, _) => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        (MYSQL_TYPE_TIME, _) => DataType::Duration(TimeUnit::Microsecond),
        (MYSQL_TYPE_JSON | MYSQL_TYPE_ENUM | MYSQL_TYPE_SET, _) => DataType::Utf8,
        (MYSQL_TYPE_GEOMETRY | MYSQL_TYPE_VECTOR, _) => DataType::Binary,
        (
            MYSQL_TYPE_VARCHAR
            | MYSQL_TYPE_VAR_STRING
            | MYSQL_TYPE_STRING
            | MYSQL_TYPE_TINY_BLOB
            | MYSQL_TYPE_MEDIUM_BLOB
            | MYSQL_TYPE_LONG_BLOB
            | MYSQL_TYPE_BLOB,
            _,
        ) => match column.character_set() {
            BINARY => DataType::Binary,
            _ => DataType::Utf8,
        },
        (other, _) => return Err(SourceError::Unsupported(format!("column `{name}` has type {other:?}"))),
    })
}

/// The length of a decimal counts its digits, its sign and its decimal point.
fn decimal_type(column: &Column, unsigned: bool, name: &str) -> Result<DataType> {
    let scale = column.decimals();
    let precision = column.column_length().saturating_sub(u32::from(scale > 0) + u32::from(!unsigned));
    match (u8::try_from(precision.max(1)), i8::try_from(scale)) {
        (Ok(precision), Ok(scale)) if precision <= 38 && scale <= precision.cast_signed() => {
            Ok(DataType::Decimal128(precision, scale))
        }
        (Ok(precision), Ok(scale)) if precision <= 76 && scale <= precision.cast_signed() => {
            Ok(DataType::Decimal256(precision, scale))
        }
        _ => Err(SourceError::Unsupported(format!("column `{name}` is a decimal({precision}, {scale})"))),
    }
}

/// One column being filled.
pub(super) struct ColumnBuilder {
    name: String,
    values: Values,
}

enum Values {
    Null(NullBuilder),
    Int8(Int8Builder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    UInt8(UInt8Builder),
    UInt16(UInt16Builder),
    UInt32(UInt32Builder),
    UInt64(UInt64Builder),
    Bits(UInt64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Decimal128(Decimal128Builder, u8, u8),
    Decimal256(Decimal256Builder, u8, u8),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder),
    Duration(DurationMicrosecondBuilder),
    Utf8(StringBuilder),
    Binary(BinaryBuilder),
}

/// A value's type differs from the type of its column.
const MISTYPED: &str = "the server sent a value whose type differs from the announced one";

impl ColumnBuilder {
    /// A builder for the values of `column`, whose Arrow type is `field`'s.
    pub(super) fn new(column: &Column, field: &Field) -> Result<Self> {
        let name = field.name().clone();
        let values = match field.data_type() {
            DataType::Null => Values::Null(NullBuilder::new()),
            DataType::Int8 => Values::Int8(Int8Builder::new()),
            DataType::Int16 => Values::Int16(Int16Builder::new()),
            DataType::Int32 => Values::Int32(Int32Builder::new()),
            DataType::Int64 => Values::Int64(Int64Builder::new()),
            DataType::UInt8 => Values::UInt8(UInt8Builder::new()),
            DataType::UInt16 => Values::UInt16(UInt16Builder::new()),
            DataType::UInt32 => Values::UInt32(UInt32Builder::new()),
            DataType::UInt64 if column.column_type() == ColumnType::MYSQL_TYPE_BIT => {
                Values::Bits(UInt64Builder::new())
            }
            DataType::UInt64 => Values::UInt64(UInt64Builder::new()),
            DataType::Float32 => Values::Float32(Float32Builder::new()),
            DataType::Float64 => Values::Float64(Float64Builder::new()),
            &DataType::Decimal128(precision, scale) => {
                let builder = Decimal128Builder::new().with_precision_and_scale(precision, scale)?;
                Values::Decimal128(builder, precision, scale.cast_unsigned())
            }
            &DataType::Decimal256(precision, scale) => {
                let builder = Decimal256Builder::new().with_precision_and_scale(precision, scale)?;
                Values::Decimal256(builder, precision, scale.cast_unsigned())
            }
            DataType::Date32 => Values::Date(Date32Builder::new()),
            DataType::Timestamp(_, zone) => {
                Values::Timestamp(TimestampMicrosecondBuilder::new().with_timezone_opt(zone.clone()))
            }
            DataType::Duration(_) => Values::Duration(DurationMicrosecondBuilder::new()),
            DataType::Utf8 => Values::Utf8(StringBuilder::new()),
            DataType::Binary => Values::Binary(BinaryBuilder::new()),
            other => return Err(SourceError::Unsupported(format!("column `{name}` as {other}"))),
        };
        Ok(Self { name, values })
    }

    /// Appends the value of row `row` (from 1); returns how many bytes the column grew by.
    ///
    /// # Errors
    /// [`SourceError::Value`] when the value does not fit. Nothing is appended in that case.
    pub(super) fn append(&mut self, value: &Value, row: u64) -> Result<usize> {
        self.try_append(value).map_err(|reason| SourceError::Value {
            column: self.name.clone(),
            reason: format!("row {row}: {reason}"),
        })
    }

    fn try_append(&mut self, value: &Value) -> Result<usize, String> {
        macro_rules! integer {
            ($builder:ident, $native:ty) => {{
                match value {
                    Value::NULL => $builder.append_null(),
                    Value::Int(v) => $builder.append_value(<$native>::try_from(*v).map_err(|_| MISTYPED)?),
                    Value::UInt(v) => $builder.append_value(<$native>::try_from(*v).map_err(|_| MISTYPED)?),
                    _ => return Err(MISTYPED.into()),
                }
                size_of::<$native>()
            }};
        }
        macro_rules! other {
            ($builder:ident, $bytes:expr, $($pattern:pat => $native:expr),+) => {{
                match value {
                    Value::NULL => $builder.append_null(),
                    $($pattern => $builder.append_value($native),)+
                    _ => return Err(MISTYPED.into()),
                }
                $bytes
            }};
        }
        Ok(match &mut self.values {
            Values::Null(builder) => {
                builder.append_null();
                0
            }
            Values::Int8(builder) => integer!(builder, i8),
            Values::Int16(builder) => integer!(builder, i16),
            Values::Int32(builder) => integer!(builder, i32),
            Values::Int64(builder) => integer!(builder, i64),
            Values::UInt8(builder) => integer!(builder, u8),
            Values::UInt16(builder) => integer!(builder, u16),
            Values::UInt32(builder) => integer!(builder, u32),
            // The driver returns unsigned values up to i64::MAX as signed ones.
            Values::UInt64(builder) => integer!(builder, u64),
            Values::Bits(builder) => {
                other!(builder, 8, Value::Bytes(bits) => values::bits(bits).ok_or(MISTYPED)?)
            }
            Values::Float32(builder) => other!(builder, 4, Value::Float(v) => *v),
            Values::Float64(builder) => {
                other!(builder, 8, Value::Double(v) => *v, Value::Float(v) => f64::from(*v))
            }
            Values::Decimal128(builder, precision, scale) => {
                other!(builder, 16, Value::Bytes(text) => values::decimal128(text, *precision, *scale)?)
            }
            Values::Decimal256(builder, precision, scale) => {
                other!(builder, 32, Value::Bytes(text) => values::decimal256(text, *precision, *scale)?)
            }
            Values::Date(builder) => {
                other!(builder, 4, Value::Date(y, m, d, ..) => values::days(*y, *m, *d)?)
            }
            Values::Timestamp(builder) => {
                other!(builder, 8, Value::Date(y, mo, d, h, mi, s, us) =>
                    values::timestamp_us((*y, *mo, *d), (*h, *mi, *s), *us)?)
            }
            Values::Duration(builder) => {
                other!(builder, 8, Value::Time(negative, d, h, m, s, us) =>
                    values::duration_us(*negative, *d, (*h, *m, *s), *us))
            }
            Values::Utf8(builder) => match value {
                Value::NULL => {
                    builder.append_null();
                    4
                }
                Value::Bytes(bytes) => {
                    let text = std::str::from_utf8(bytes)
                        .map_err(|_| "the text is not UTF-8; use CAST(... AS BINARY) to read it as bytes")?;
                    builder.append_value(text);
                    text.len() + 4
                }
                _ => return Err(MISTYPED.into()),
            },
            Values::Binary(builder) => match value {
                Value::NULL => {
                    builder.append_null();
                    4
                }
                Value::Bytes(bytes) => {
                    builder.append_value(bytes);
                    bytes.len() + 4
                }
                _ => return Err(MISTYPED.into()),
            },
        })
    }

    /// The values so far as an array; the builder is empty afterwards.
    pub(super) fn finish(&mut self) -> ArrayRef {
        match &mut self.values {
            Values::Null(builder) => Arc::new(builder.finish()),
            Values::Int8(builder) => Arc::new(builder.finish()),
            Values::Int16(builder) => Arc::new(builder.finish()),
            Values::Int32(builder) => Arc::new(builder.finish()),
            Values::Int64(builder) => Arc::new(builder.finish()),
            Values::UInt8(builder) => Arc::new(builder.finish()),
            Values::UInt16(builder) => Arc::new(builder.finish()),
            Values::UInt32(builder) => Arc::new(builder.finish()),
            Values::UInt64(builder) | Values::Bits(builder) => Arc::new(builder.finish()),
            Values::Float32(builder) => Arc::new(builder.finish()),
            Values::Float64(builder) => Arc::new(builder.finish()),
            Values::Decimal128(builder, ..) => Arc::new(builder.finish()),
            Values::Decimal256(builder, ..) => Arc::new(builder.finish()),
            Values::Date(builder) => Arc::new(builder.finish()),
            Values::Timestamp(builder) => Arc::new(builder.finish()),
            Values::Duration(builder) => Arc::new(builder.finish()),
            Values::Utf8(builder) => Arc::new(builder.finish()),
            Values::Binary(builder) => Arc::new(builder.finish()),
        }
    }
}
