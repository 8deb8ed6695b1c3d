//! PostgreSQL's types for Arrow's.

use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{DataType, Field};

/// OIDs of built-in types, which are the same in every server (`pg_type.dat`).
pub(crate) mod oid {
    pub(crate) const BOOL: u32 = 16;
    pub(crate) const BYTEA: u32 = 17;
    pub(crate) const CHAR: u32 = 18;
    pub(crate) const NAME: u32 = 19;
    pub(crate) const INT8: u32 = 20;
    pub(crate) const INT2: u32 = 21;
    pub(crate) const INT2VECTOR: u32 = 22;
    pub(crate) const INT4: u32 = 23;
    pub(crate) const REGPROC: u32 = 24;
    pub(crate) const TEXT: u32 = 25;
    pub(crate) const OID: u32 = 26;
    pub(crate) const OIDVECTOR: u32 = 30;
    pub(crate) const JSON: u32 = 114;
    pub(crate) const FLOAT4: u32 = 700;
    pub(crate) const FLOAT8: u32 = 701;
    pub(crate) const UNKNOWN: u32 = 705;
    pub(crate) const CHAR_ARRAY: u32 = 1002;
    pub(crate) const NAME_ARRAY: u32 = 1003;
    pub(crate) const INT2_ARRAY: u32 = 1005;
    pub(crate) const TEXT_ARRAY: u32 = 1009;
    pub(crate) const BPCHAR: u32 = 1042;
    pub(crate) const VARCHAR: u32 = 1043;
    pub(crate) const DATE: u32 = 1082;
    pub(crate) const TIME: u32 = 1083;
    pub(crate) const TIMESTAMP: u32 = 1114;
    pub(crate) const TIMESTAMPTZ: u32 = 1184;
    pub(crate) const INTERVAL: u32 = 1186;
    pub(crate) const NUMERIC: u32 = 1700;
    pub(crate) const REGCLASS: u32 = 2205;
    pub(crate) const REGTYPE: u32 = 2206;
    pub(crate) const UUID: u32 = 2950;
    pub(crate) const JSONB: u32 = 3802;
    pub(crate) const REGNAMESPACE: u32 = 4089;
}

/// Arrays of the types that values are sent as: element, array.
const ARRAYS: [(u32, u32); 17] = [
    (oid::BOOL, 1000),
    (oid::BYTEA, 1001),
    (oid::NAME, oid::NAME_ARRAY),
    (oid::INT2, oid::INT2_ARRAY),
    (oid::INT4, 1007),
    (oid::TEXT, oid::TEXT_ARRAY),
    (oid::INT8, 1016),
    (oid::FLOAT4, 1021),
    (oid::FLOAT8, 1022),
    (oid::OID, 1028),
    (oid::JSON, 199),
    (oid::TIMESTAMP, 1115),
    (oid::DATE, 1182),
    (oid::TIME, 1183),
    (oid::TIMESTAMPTZ, 1185),
    (oid::INTERVAL, 1187),
    (oid::NUMERIC, 1231),
];
const UUID_ARRAY: u32 = 2951;
/// `varchar`, whose arrays clients send as parameters.
const VARCHAR_ARRAY: u32 = 1015;

/// The type of arrays of `element`.
pub(crate) fn array_of(element: u32) -> Option<u32> {
    if element == oid::UUID {
        return Some(UUID_ARRAY);
    }
    ARRAYS.iter().find(|(of, _)| *of == element).map(|(_, array)| *array)
}

/// The type of the elements of an array type.
pub(crate) fn element_of(array: u32) -> Option<u32> {
    match array {
        UUID_ARRAY => Some(oid::UUID),
        VARCHAR_ARRAY => Some(oid::VARCHAR),
        oid::INT2VECTOR => Some(oid::INT2),
        oid::CHAR_ARRAY => Some(oid::CHAR),
        _ => ARRAYS.iter().find(|(_, known)| *known == array).map(|(of, _)| *of),
    }
}

/// A column of a result, as it is described to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PgColumn {
    pub(crate) name: String,
    /// The type.
    pub(crate) oid: u32,
    /// Precision and scale of `numeric`, or -1.
    pub(crate) modifier: i32,
}

impl PgColumn {
    pub(crate) fn new(name: impl Into<String>, oid: u32) -> Self {
        Self { name: name.into(), oid, modifier: -1 }
    }

    /// The column of an Arrow field.
    pub(crate) fn of(field: &Field) -> Self {
        let (oid, modifier) = type_of(field);
        Self { name: field.name().clone(), oid, modifier }
    }

    /// Bytes of a value, or -1 if they vary (`pg_type.typlen`).
    pub(crate) fn length(&self) -> i16 {
        match self.oid {
            oid::BOOL | oid::CHAR => 1,
            oid::INT2 => 2,
            oid::INT4 | oid::OID | oid::FLOAT4 | oid::DATE => 4,
            oid::REGPROC | oid::REGCLASS | oid::REGTYPE | oid::REGNAMESPACE => 4,
            oid::INT8 | oid::FLOAT8 | oid::TIME | oid::TIMESTAMP | oid::TIMESTAMPTZ => 8,
            oid::UUID | oid::INTERVAL => 16,
            oid::NAME => 64,
            _ => -1,
        }
    }
}

/// The type and modifier of an Arrow field.
pub(crate) fn type_of(field: &Field) -> (u32, i32) {
    let extension = field.metadata().get(EXTENSION_TYPE_NAME_KEY).map(String::as_str);
    match (field.data_type(), extension) {
        (DataType::FixedSizeBinary(16), Some("arrow.uuid")) => return (oid::UUID, -1),
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, Some("arrow.json")) => {
            return (oid::JSON, -1);
        }
        _ => {}
    }
    type_of_data(field.data_type())
}

fn type_of_data(data_type: &DataType) -> (u32, i32) {
    let plain = match data_type {
        DataType::Boolean => oid::BOOL,
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => oid::INT2,
        DataType::UInt16 | DataType::Int32 => oid::INT4,
        DataType::UInt32 | DataType::Int64 => oid::INT8,
        DataType::UInt64 => return (oid::NUMERIC, numeric_modifier(20, 0)),
        DataType::Float16 | DataType::Float32 => oid::FLOAT4,
        DataType::Float64 => oid::FLOAT8,
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => {
            return (oid::NUMERIC, numeric_modifier(*precision, *scale));
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            oid::BYTEA
        }
        DataType::Date32 | DataType::Date64 => oid::DATE,
        DataType::Time32(_) | DataType::Time64(_) => oid::TIME,
        DataType::Timestamp(_, None) => oid::TIMESTAMP,
        DataType::Timestamp(_, Some(_)) => oid::TIMESTAMPTZ,
        DataType::Duration(_) | DataType::Interval(_) => oid::INTERVAL,
        DataType::Dictionary(_, value) => return type_of_data(value),
        DataType::RunEndEncoded(_, values) => return type_of(values),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => {
            // Arrays of arrays must be rectangular in PostgreSQL, and there are no arrays of anonymous rows.
            let nested = item.data_type().is_nested();
            return (array_of(type_of(item).0).filter(|_| !nested).unwrap_or(oid::JSON), -1);
        }
        DataType::Struct(_) | DataType::Map(_, _) => oid::JSON,
        // Utf8 in its layouts, unions, and columns of NULL.
        _ => oid::TEXT,
    };
    (plain, -1)
}

/// The modifier of `numeric(precision, scale)`; -1 if PostgreSQL has no such type.
fn numeric_modifier(precision: u8, scale: i8) -> i32 {
    // Negative scales exist since PostgreSQL 15, but not all clients know.
    if scale < 0 || scale.unsigned_abs() > precision {
        return -1;
    }
    (i32::from(precision) << 16 | i32::from(scale)) + 4
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn types_have_the_nearest_counterpart_that_holds_all_values() {
        let check = |data_type: DataType, expected: (u32, i32)| {
            assert_eq!(type_of(&Field::new("x", data_type.clone(), true)), expected, "{data_type}");
        };
        check(DataType::UInt32, (oid::INT8, -1));
        check(DataType::UInt64, (oid::NUMERIC, (20 << 16) + 4));
        check(DataType::Decimal128(15, 2), (oid::NUMERIC, (15 << 16 | 2) + 4));
        check(DataType::Decimal256(40, -2), (oid::NUMERIC, -1));
        let list = |item| DataType::List(Arc::new(Field::new("item", item, true)));
        check(list(DataType::Int32), (1007, -1));
        check(list(list(DataType::Int32)), (oid::JSON, -1));
        let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        check(dictionary, (oid::TEXT, -1));
        check(DataType::Null, (oid::TEXT, -1));
    }
}
