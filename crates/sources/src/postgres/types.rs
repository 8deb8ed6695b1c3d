//! PostgreSQL's built-in types, and the Arrow types of columns.

use std::sync::Arc;

use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};

use crate::NumericRule;

/// How a column is sent, and its Arrow type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PgType {
    Bool,
    Int16,
    Int32,
    Int64,
    UInt32,
    Float32,
    Float64,
    Decimal128 {
        precision: u8,
        scale: i8,
    },
    Decimal256 {
        precision: u8,
        scale: i8,
    },
    /// `numeric` as exact text.
    NumericText,
    /// `numeric` as the nearest double.
    NumericDouble,
    /// In hundredths, or whatever the locale's smallest unit is.
    Money {
        scale: i8,
    },
    Date,
    Time,
    Timestamp,
    TimestampTz,
    Interval,
    Uuid,
    Bytes,
    /// Types whose binary format is their text.
    Utf8,
    Json,
    /// A version byte, then text.
    Jsonb,
    /// All other types, as the server prints them.
    Text,
    /// An array of one dimension, with elements in binary format.
    List(Box<PgType>),
    /// An array whose elements' binary format is not supported.
    TextList,
}

impl PgType {
    /// Format code to ask for: 0 is text, 1 is binary.
    pub(super) fn format(&self) -> i16 {
        i16::from(!matches!(self, Self::Text | Self::TextList))
    }

    /// Its Arrow type.
    pub(super) fn data_type(&self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int16 => DataType::Int16,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::UInt32 => DataType::UInt32,
            Self::Float32 => DataType::Float32,
            Self::Float64 | Self::NumericDouble => DataType::Float64,
            Self::Decimal128 { precision, scale } => DataType::Decimal128(*precision, *scale),
            Self::Decimal256 { precision, scale } => DataType::Decimal256(*precision, *scale),
            Self::Money { scale } => DataType::Decimal128(19, *scale),
            Self::Date => DataType::Date32,
            Self::Time => DataType::Time64(TimeUnit::Microsecond),
            Self::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
            Self::TimestampTz => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
            Self::Uuid => DataType::FixedSizeBinary(16),
            Self::Bytes => DataType::Binary,
            Self::Utf8 | Self::Json | Self::Jsonb | Self::Text | Self::NumericText => DataType::Utf8,
            Self::List(item) => DataType::List(Arc::new(item.field("item"))),
            Self::TextList => DataType::List(Arc::new(Self::Text.field("item"))),
        }
    }

    /// The field of a column. It is always nullable, because the description of a query does not say.
    pub(super) fn field(&self, name: &str) -> Field {
        let field = Field::new(name, self.data_type(), true);
        let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        match self {
            Self::Uuid => field.with_metadata([entry(EXTENSION_TYPE_NAME_KEY, "arrow.uuid")].into()),
            Self::Json | Self::Jsonb => field.with_metadata(
                [entry(EXTENSION_TYPE_NAME_KEY, "arrow.json"), entry(EXTENSION_TYPE_METADATA_KEY, "")].into(),
            ),
            _ => field,
        }
    }

    /// Whether the server has infinite or not-a-number values of this type that Arrow lacks.
    pub(super) fn is_bounded(&self) -> bool {
        match self {
            Self::Decimal128 { .. } | Self::Decimal256 { .. } => true,
            Self::Date | Self::Timestamp | Self::TimestampTz | Self::Interval => true,
            Self::List(item) => item.is_bounded(),
            _ => false,
        }
    }

    /// Switches to text if [`Self::is_bounded`].
    pub(super) fn show_infinite(&mut self) {
        *self = match self {
            Self::Decimal128 { .. } | Self::Decimal256 { .. } => Self::NumericText,
            Self::Date | Self::Timestamp | Self::TimestampTz | Self::Interval => Self::Text,
            Self::List(item) if item.is_bounded() => {
                item.show_infinite();
                match **item {
                    Self::Text => Self::TextList,
                    _ => return,
                }
            }
            _ => return,
        };
    }

    /// Bytes of one value in Arrow, for types of a fixed size.
    pub(super) fn fixed_bytes(&self) -> usize {
        match self {
            Self::Bool => 1,
            Self::Int16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 | Self::Date => 4,
            Self::Int64 | Self::Float64 | Self::NumericDouble | Self::Time => 8,
            Self::Timestamp | Self::TimestampTz => 8,
            Self::Decimal128 { .. } | Self::Money { .. } | Self::Interval | Self::Uuid => 16,
            Self::Decimal256 { .. } => 32,
            // An offset; the bytes are counted as they arrive.
            _ => 4,
        }
    }

    /// Whether values vary in size.
    pub(super) fn is_variable(&self) -> bool {
        matches!(
            self,
            Self::Bytes
                | Self::Utf8
                | Self::Json
                | Self::Jsonb
                | Self::Text
                | Self::NumericText
                | Self::List(_)
                | Self::TextList
        )
    }
}

/// Precision and scale of `numeric(p, s)` by its type modifier; `None` for plain `numeric`.
pub(super) fn declared(modifier: i32) -> Option<(i32, i32)> {
    let packed = modifier.checked_sub(4).filter(|packed| *packed >= 0)?;
    // Eleven bits with a sign since PostgreSQL 15; always positive before.
    Some((packed >> 16 & 0xffff, ((packed & 0x7ff) ^ 1024) - 1024))
}

fn numeric(modifier: i32, rule: NumericRule) -> PgType {
    let exact = declared(modifier).and_then(|(precision, scale)| {
        // In Arrow the scale can't exceed the precision; 0.00012 as numeric(2, 5) takes five digits.
        let precision = u8::try_from(precision.max(scale)).ok()?;
        let scale = i8::try_from(scale).ok()?;
        match precision {
            1..=38 => Some(PgType::Decimal128 { precision, scale }),
            39..=76 => Some(PgType::Decimal256 { precision, scale }),
            _ => None,
        }
    });
    exact.unwrap_or(match rule {
        NumericRule::Decimal { precision: precision @ ..=38, scale } => {
            PgType::Decimal128 { precision, scale }
        }
        NumericRule::Decimal { precision, scale } => PgType::Decimal256 { precision, scale },
        NumericRule::String => PgType::NumericText,
        NumericRule::Double => PgType::NumericDouble,
    })
}

/// Types that every server has. `None` for a type that has to be looked up.
pub(super) fn builtin(oid: u32, modifier: i32, rule: NumericRule) -> Option<PgType> {
    Some(match oid {
        16 => PgType::Bool,
        17 => PgType::Bytes,
        19 | 25 | 1042 | 1043 => PgType::Utf8, // name, text, bpchar, varchar
        20 => PgType::Int64,
        21 => PgType::Int16,
        23 => PgType::Int32,
        26 => PgType::UInt32,
        114 => PgType::Json,
        700 => PgType::Float32,
        701 => PgType::Float64,
        790 => PgType::Money { scale: 2 },
        1082 => PgType::Date,
        1083 => PgType::Time,
        1114 => PgType::Timestamp,
        1184 => PgType::TimestampTz,
        1186 => PgType::Interval,
        1700 => numeric(modifier, rule),
        2950 => PgType::Uuid,
        3802 => PgType::Jsonb,
        // "char", int2vector, regproc, tid, xid, cid, oidvector, xml, pg_lsn, record, void,
        // unknown, inet, cidr, macaddr, macaddr8, timetz, bit, varbit, point ... circle
        18
        | 22
        | 24
        | 27..=30
        | 142
        | 3220
        | 2249
        | 2278
        | 705
        | 869
        | 650
        | 829
        | 774
        | 1266
        | 1560
        | 1562 => PgType::Text,
        600..=604 | 628 | 718 => PgType::Text,
        1000
        | 1001
        | 1003
        | 1005
        | 1007
        | 1009
        | 1014..=1016
        | 1021
        | 1022
        | 1028
        | 199
        | 791
        | 1182
        | 1183
        | 1115
        | 1185
        | 1187
        | 1231
        | 2951
        | 3807 => PgType::List(Box::new(builtin(builtin_element(oid)?, modifier, rule)?)),
        1002 | 143 | 1041 | 651 | 1040 | 1270 | 1561 | 1563 => PgType::TextList,
        _ => return None,
    })
}

/// Element type of the arrays of `builtin`.
pub(super) fn builtin_element(array: u32) -> Option<u32> {
    Some(match array {
        1000 => 16,
        1001 => 17,
        1003 => 19,
        1005 => 21,
        1007 => 23,
        1009 => 25,
        1014 => 1042,
        1015 => 1043,
        1016 => 20,
        1021 => 700,
        1022 => 701,
        1028 => 26,
        199 => 114,
        791 => 790,
        1182 => 1082,
        1183 => 1083,
        1115 => 1114,
        1185 => 1184,
        1187 => 1186,
        1231 => 1700,
        2951 => 2950,
        3807 => 3802,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modifiers_of_numeric_are_read() {
        let modifier = |precision: i32, scale: i32| (precision << 16 | scale & 0x7ff) + 4;
        let check =
            |p, s, expected| assert_eq!(numeric(modifier(p, s), NumericRule::String), expected, "{p},{s}");
        check(15, 2, PgType::Decimal128 { precision: 15, scale: 2 });
        check(39, 20, PgType::Decimal256 { precision: 39, scale: 20 });
        check(3, -2, PgType::Decimal128 { precision: 3, scale: -2 });
        check(2, 5, PgType::Decimal128 { precision: 5, scale: 5 });
        check(100, 2, PgType::NumericText);
        assert_eq!(numeric(-1, NumericRule::RESULT), PgType::Decimal256 { precision: 76, scale: 44 });
        let narrow = NumericRule::Decimal { precision: 38, scale: 10 };
        assert_eq!(numeric(-1, narrow), PgType::Decimal128 { precision: 38, scale: 10 });
        assert_eq!(numeric(-1, NumericRule::Double), PgType::NumericDouble);
    }

    #[test]
    fn every_builtin_array_has_an_element_of_its_kind() {
        for oid in 0..10_000 {
            if let Some(PgType::List(item)) = builtin(oid, -1, NumericRule::String) {
                let element = builtin_element(oid).unwrap();
                assert_eq!(builtin(element, -1, NumericRule::String), Some(*item), "{oid}");
            }
        }
    }
}
