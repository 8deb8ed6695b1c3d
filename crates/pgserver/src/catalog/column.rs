//! Columns of results of the catalog, from values of SQLite.

use std::sync::{Arc, PoisonError};

use arrow_array::ArrayRef;
use arrow_array::builder::{
    BooleanBuilder, Date32Builder, Float32Builder, Float64Builder, Int16Builder, Int32Builder, Int64Builder,
    ListBuilder, StringBuilder, TimestampMicrosecondBuilder, UInt32Builder,
};
use rusqlite::types::ValueRef;

use super::functions::SharedNames;
use crate::encode::array::elements;
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
            _ => Self::Text(StringBuilder::new()),
        }
    }

    /// Adds a value. Returns its size.
    pub(super) fn push(&mut self, value: ValueRef<'_>, names: &SharedNames, oid: u32) -> usize {
        let integer = match value {
            ValueRef::Integer(number) => Some(number),
            ValueRef::Real(number) => Some(number as i64),
            ValueRef::Text(text) => std::str::from_utf8(text).ok().and_then(|text| match text {
                "t" | "true" => Some(1),
                "f" | "false" => Some(0),
                text => text.parse().ok(),
            }),
            _ => None,
        };
        let real = match value {
            ValueRef::Real(number) => Some(number),
            _ => integer.map(|number| number as f64),
        };
        match self {
            Self::Bool(builder) => builder.append_option(integer.map(|number| number != 0)),
            Self::Int16(builder) => builder.append_option(integer.and_then(|number| number.try_into().ok())),
            Self::Int32(builder) => builder.append_option(integer.and_then(|number| number.try_into().ok())),
            Self::Int64(builder) => builder.append_option(integer),
            Self::Oid(builder) => builder.append_option(integer.and_then(|number| number.try_into().ok())),
            Self::Float32(builder) => builder.append_option(real.map(|number| number as f32)),
            Self::Float64(builder) => builder.append_option(real),
            Self::Timestamp(builder) => builder.append_option(integer),
            Self::Date(builder) => builder.append_option(integer.and_then(|number| number.try_into().ok())),
            Self::Text(builder) => {
                let text = shown(value, names, oid);
                builder.append_option(text.as_deref());
                return 16 + text.map_or(0, |text| text.len());
            }
            Self::Texts(builder) => {
                let text = shown(value, names, oid);
                builder.append_option(text.as_deref().and_then(elements));
                return 16 + text.map_or(0, |text| 2 * text.len());
            }
        }
        16
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
        }
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
