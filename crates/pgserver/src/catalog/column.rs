//! Columns of results of the catalog, from values of SQLite.

use std::sync::{Arc, PoisonError};

use arrow_array::ArrayRef;
use arrow_array::builder::{
    BooleanBuilder, Date32Builder, Float32Builder, Float64Builder, Int16Builder, Int32Builder, Int64Builder,
    ListBuilder, StringBuilder, TimestampMicrosecondBuilder, UInt32Builder,
};
use rusqlite::types::ValueRef;

use super::functions::{SharedNames, array};
use crate::encode::array::elements;
use crate::error::{PgError, PgResult, code};
use crate::types::oid;

/// A column of a result, as it is collected.
pub(super) enum Column {
    Bool(BooleanBuilder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Oid(UInt32Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    /// Microseconds from 1970.
    Timestamp(TimestampMicrosecondBuilder),
    /// Days from 1970.
    Date(Date32Builder),
    Text(StringBuilder),
    /// Arrays of names and texts.
    Texts(ListBuilder<StringBuilder>),
    /// Arrays and vectors of numbers of columns.
    Numbers(ListBuilder<Int16Builder>),
}

impl Column {
    pub(super) fn new(oid: u32) -> Self {
        match oid {
            oid::BOOL => Self::Bool(BooleanBuilder::new()),
            oid::INT2 => Self::Int16(Int16Builder::new()),
            oid::INT4 => Self::Int32(Int32Builder::new()),
            oid::INT8 => Self::Int64(Int64Builder::new()),
            oid::OID => Self::Oid(UInt32Builder::new()),
            oid::FLOAT4 => Self::Float32(Float32Builder::new()),
            oid::FLOAT8 => Self::Float64(Float64Builder::new()),
            oid::TIMESTAMPTZ => Self::Timestamp(TimestampMicrosecondBuilder::new().with_timezone("+00:00")),
            oid::DATE => Self::Date(Date32Builder::new()),
            oid::TEXT_ARRAY | oid::NAME_ARRAY | oid::CHAR_ARRAY => {
                Self::Texts(ListBuilder::new(StringBuilder::new()))
            }
            oid::INT2_ARRAY | oid::INT2VECTOR => Self::Numbers(ListBuilder::new(Int16Builder::new())),
            _ => Self::Text(StringBuilder::new()),
        }
    }

    /// Adds a value. Returns its size.
    ///
    /// # Errors
    /// If the column's type can't hold it.
    pub(super) fn push(&mut self, value: ValueRef<'_>, names: &SharedNames, oid: u32) -> PgResult<usize> {
        fn fitting<T: TryFrom<i64>>(value: ValueRef<'_>, oid: u32) -> PgResult<Option<T>> {
            let integer = integer(value, oid)?;
            integer.map(|number| number.try_into().map_err(|_| out_of_range(oid))).transpose()
        }
        match self {
            Self::Bool(builder) => builder.append_option(integer(value, oid)?.map(|number| number != 0)),
            Self::Int16(builder) => builder.append_option(fitting(value, oid)?),
            Self::Int32(builder) => builder.append_option(fitting(value, oid)?),
            Self::Int64(builder) => builder.append_option(integer(value, oid)?),
            Self::Oid(builder) => builder.append_option(fitting(value, oid)?),
            Self::Float32(builder) => builder.append_option(real(value, oid)?.map(|number| number as f32)),
            Self::Float64(builder) => builder.append_option(real(value, oid)?),
            Self::Timestamp(builder) => builder.append_option(integer(value, oid)?),
            Self::Date(builder) => builder.append_option(fitting(value, oid)?),
            Self::Text(builder) => {
                let text = shown(value, names, oid);
                builder.append_option(text.as_deref());
                return Ok(16 + text.map_or(0, |text| text.len()));
            }
            Self::Texts(builder) => {
                let text = shown(value, names, oid);
                builder.append_option(text.as_deref().and_then(elements));
                return Ok(16 + text.map_or(0, |text| 8 * text.len()));
            }
            Self::Numbers(builder) => {
                let Some(text) = shown(value, names, oid) else {
                    builder.append_null();
                    return Ok(16);
                };
                let number = |item: Option<String>| {
                    item.map(|item| item.trim().parse().map_err(|_| out_of_range(oid::INT2))).transpose()
                };
                builder.append_value(array(&text).into_iter().map(number).collect::<PgResult<Vec<_>>>()?);
                return Ok(16 + 4 * text.len());
            }
        }
        Ok(16)
    }

    pub(super) fn finish(self) -> ArrayRef {
        match self {
            Self::Bool(mut builder) => Arc::new(builder.finish()),
            Self::Int16(mut builder) => Arc::new(builder.finish()),
            Self::Int32(mut builder) => Arc::new(builder.finish()),
            Self::Int64(mut builder) => Arc::new(builder.finish()),
            Self::Oid(mut builder) => Arc::new(builder.finish()),
            Self::Float32(mut builder) => Arc::new(builder.finish()),
            Self::Float64(mut builder) => Arc::new(builder.finish()),
            Self::Timestamp(mut builder) => Arc::new(builder.finish()),
            Self::Date(mut builder) => Arc::new(builder.finish()),
            Self::Text(mut builder) => Arc::new(builder.finish()),
            Self::Texts(mut builder) => Arc::new(builder.finish()),
            Self::Numbers(mut builder) => Arc::new(builder.finish()),
        }
    }
}

fn out_of_range(oid: u32) -> PgError {
    PgError::new(code::NUMERIC_OUT_OF_RANGE, format!("value out of range for {}", type_name(oid)))
}

fn type_name(oid: u32) -> &'static str {
    match oid {
        oid::BOOL => "type boolean",
        oid::INT2 => "type smallint",
        oid::INT4 => "type integer",
        oid::INT8 => "type bigint",
        oid::OID => "type oid",
        oid::FLOAT4 => "type real",
        oid::FLOAT8 => "type double precision",
        _ => "the type of the column",
    }
}

fn integer(value: ValueRef<'_>, oid: u32) -> PgResult<Option<i64>> {
    let invalid = |text: &str| {
        let text = &text[..text.floor_char_boundary(100)];
        PgError::new(code::INVALID_TEXT, format!("invalid input syntax for {}: \"{text}\"", type_name(oid)))
    };
    Ok(match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number),
        // Both bounds are exact as floats.
        ValueRef::Real(number) if (-(2f64.powi(63))..2f64.powi(63)).contains(&number) => {
            Some(number.round() as i64)
        }
        ValueRef::Real(_) => return Err(out_of_range(oid)),
        ValueRef::Text(text) | ValueRef::Blob(text) => match String::from_utf8_lossy(text).trim() {
            "t" | "true" => Some(1),
            "f" | "false" => Some(0),
            text => Some(text.parse().map_err(|_| invalid(text))?),
        },
    })
}

fn real(value: ValueRef<'_>, oid: u32) -> PgResult<Option<f64>> {
    match value {
        ValueRef::Real(number) => Ok(Some(number)),
        other => Ok(integer(other, oid)?.map(|number| number as f64)),
    }
}

/// The text of a value. OIDs with a name are shown as the name.
fn shown(value: ValueRef<'_>, names: &SharedNames, oid: u32) -> Option<String> {
    let names = names.lock().unwrap_or_else(PoisonError::into_inner);
    Some(match value {
        ValueRef::Null => return None,
        ValueRef::Integer(number) => match oid {
            oid::REGCLASS => names.relation_name(number).unwrap_or_else(|| number.to_string()),
            oid::REGTYPE => names.format_type(number, None),
            oid::REGNAMESPACE => names.schemas.get(&number).cloned().unwrap_or_else(|| number.to_string()),
            oid::REGPROC if number == 0 => "-".into(),
            _ => number.to_string(),
        },
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    })
}
