//! Which values go into which columns of MySQL and MariaDB, exactly, and the types of new columns.
//!
//! The server rounds decimals and fractions of seconds to fit a column, and cuts trailing blanks, even in its strict
//! mode. So each value is checked before it is sent.

use arrow_buffer::i256;
use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{DataType, Field};
use mysql_async::Value;

use super::{native, parse};
use crate::decimal::Decimal;
use crate::tables::cells::{Cell, has_cells, plain};
use crate::tables::text::{self, day_and_time, four_digit_date};
use crate::unfit::EncodeError;

const CAST: &str = "cast it in the query, or choose another type for the column";
const WIDEN: &str = "shorten it in the query, as with left(), or widen the column";
const TRUNCATE: &str = "truncate it in the query, or widen the column";
/// The largest time: 838:59:59.
const TIME_NS_MAX: i128 = (838 * 3600 + 59 * 60 + 59) * 1_000_000_000;
const DECIMAL_DIGITS_MAX: u8 = 65;
const DECIMAL_PLACES_MAX: i8 = 30;
/// Characters of a text, and bytes of a binary value, in the key of a new table. An index has up to 3072 bytes.
const KEY_LENGTH: u32 = 255;

/// What a column holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ColumnRule {
    Int {
        bits: u32,
        is_unsigned: bool,
    },
    Float,
    Double,
    Decimal {
        precision: u32,
        scale: i32,
        is_unsigned: bool,
    },
    Year,
    Date,
    /// `datetime` and `timestamp`; times must be multiples of `unit_ns`.
    Timestamp {
        unit_ns: i64,
    },
    Time {
        unit_ns: i64,
    },
    /// `char` if padded; otherwise `varchar` and the text types.
    Chars {
        chars_max: Option<u64>,
        bytes_max: Option<u64>,
        is_padded: bool,
    },
    /// `binary` if padded.
    Bytes {
        max: u64,
        is_padded: bool,
    },
    Json,
    Enum(Vec<String>),
    Set(Vec<String>),
    /// The server parses the text: `uuid`, `inet6`.
    Parsed,
    Other,
}

/// What `information_schema.columns` says about a column.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) data_type: String,
    /// With its parameters, as in `decimal(10,2) unsigned`.
    pub(super) column_type: String,
    pub(super) chars_max: Option<u64>,
    pub(super) bytes_max: Option<u64>,
    pub(super) precision: Option<u32>,
    pub(super) scale: Option<i32>,
    pub(super) second_places: Option<u32>,
    pub(super) charset: Option<String>,
}

impl ColumnRule {
    pub(super) fn new(column: &Described) -> Self {
        let is_unsigned = column.column_type.to_ascii_lowercase().contains("unsigned");
        let int = |bits| Self::Int { bits, is_unsigned };
        let unit_ns = 10i64.pow(9 - column.second_places.unwrap_or(0).min(6));
        let is_utf8 = column.charset.as_deref().is_some_and(|set| set.starts_with("utf8"));
        let chars = |is_padded| Self::Chars {
            chars_max: column.chars_max,
            // In other character sets, the server counts the bytes.
            bytes_max: column.bytes_max.filter(|_| is_utf8),
            is_padded,
        };
        let bytes = |is_padded| Self::Bytes { max: column.bytes_max.unwrap_or(u64::MAX), is_padded };
        match &*column.data_type.to_ascii_lowercase() {
            "tinyint" => int(8),
            "smallint" => int(16),
            "mediumint" => int(24),
            "int" | "integer" => int(32),
            "bigint" => int(64),
            // `float(7, 2)` rounds.
            "float" if column.scale.is_none() => Self::Float,
            "double" if column.scale.is_none() => Self::Double,
            "decimal" => Self::Decimal {
                precision: column.precision.unwrap_or(10),
                scale: column.scale.unwrap_or(0),
                is_unsigned,
            },
            "year" => Self::Year,
            "date" => Self::Date,
            "datetime" | "timestamp" => Self::Timestamp { unit_ns },
            "time" => Self::Time { unit_ns },
            "char" => chars(true),
            "varchar" => chars(false),
            // The number of characters that the server reports is that of bytes.
            "tinytext" | "text" | "mediumtext" | "longtext" => match chars(false) {
                Self::Chars { bytes_max, .. } => Self::Chars { chars_max: None, bytes_max, is_padded: false },
                other => other,
            },
            "binary" => bytes(true),
            "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => bytes(false),
            "json" => Self::Json,
            "enum" => Self::Enum(parse::members(&column.column_type)),
            "set" => Self::Set(parse::members(&column.column_type)),
            "uuid" | "inet4" | "inet6" => Self::Parsed,
            _ => Self::Other,
        }
    }

    /// Whether values are sent as bytes rather than text.
    pub(super) fn is_binary(&self) -> bool {
        matches!(self, Self::Bytes { .. })
    }

    /// Whether values of this type can go into the column; each is still checked when it is written.
    pub(super) fn takes(&self, from: &DataType) -> bool {
        let from = plain(from);
        let is_number = || from.is_integer() || from.is_decimal();
        match self {
            Self::Other => false,
            _ if from.is_null() => true,
            _ if !has_cells(from) => false,
            Self::Bytes { .. } => from.is_binary(),
            Self::Chars { .. } => !from.is_binary(),
            _ if from.is_string() => true,
            Self::Int { .. } => is_number() || *from == DataType::Boolean,
            Self::Year => from.is_integer(),
            Self::Float | Self::Double | Self::Decimal { .. } => is_number() || from.is_floating(),
            Self::Date => matches!(from, DataType::Date32 | DataType::Date64),
            Self::Timestamp { .. } => {
                matches!(from, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
            }
            Self::Time { .. } => {
                matches!(from, DataType::Time32(_) | DataType::Time64(_) | DataType::Duration(_))
            }
            Self::Json | Self::Enum(_) | Self::Set(_) | Self::Parsed => false,
        }
    }

    /// The value to send.
    ///
    /// # Errors
    /// When the column can't hold the value exactly.
    pub(super) fn value(&self, cell: Cell<'_>) -> Result<Value, EncodeError> {
        if matches!(cell, Cell::Null) {
            return Ok(Value::NULL);
        }
        let unfit = |name: &str| {
            let shown = text::cell(cell).ok().flatten().unwrap_or_default();
            let shown: String = shown.chars().take(60).collect();
            EncodeError::new(format!("`{shown}` is not a value of type {name}"), CAST)
        };
        match self {
            Self::Int { bits, is_unsigned } => {
                let range = match is_unsigned {
                    true => 0..=(1i128 << bits) - 1,
                    false => -(1i128 << (bits - 1))..=(1i128 << (bits - 1)) - 1,
                };
                let value = whole(cell).ok_or_else(|| unfit("integer"))?;
                match (range.contains(&value), i64::try_from(value), u64::try_from(value)) {
                    (true, Ok(value), _) => Ok(Value::Int(value)),
                    (true, _, Ok(value)) => Ok(Value::UInt(value)),
                    _ => Err(EncodeError::new(format!("{value} is out of the column's range"), CAST)),
                }
            }
            Self::Year => match whole(cell) {
                Some(year) if year == 0 || (1901..=2155).contains(&year) => Ok(Value::Int(year as i64)),
                _ => Err(unfit("year")),
            },
            Self::Float => match cell {
                Cell::Real(value) if value.is_finite() => Ok(Value::Float(value)),
                Cell::Double(value) if f64::from(value as f32) == value && value.is_finite() => {
                    Ok(Value::Float(value as f32))
                }
                Cell::Double(_) => Err(unfit("float")),
                _ => {
                    let value = number(cell).and_then(Decimal::to_float::<f32>);
                    value.map(Value::Float).ok_or_else(|| unfit("float"))
                }
            },
            Self::Double => match cell {
                Cell::Double(value) if value.is_finite() => Ok(Value::Double(value)),
                Cell::Real(value) if value.is_finite() => Ok(Value::Double(value.into())),
                _ => {
                    let value = number(cell).and_then(Decimal::to_float::<f64>);
                    value.map(Value::Double).ok_or_else(|| unfit("double"))
                }
            },
            Self::Decimal { precision, scale, is_unsigned } => {
                let value = number(cell).and_then(|number| number.with_precision(*precision, *scale));
                let value = value.filter(|value| !is_unsigned || *value >= i256::ZERO);
                let value = value.ok_or_else(|| {
                    let mut error = unfit(&format!("decimal({precision}, {scale})"));
                    error.hint = "round it in the query, as with round(), or widen the column";
                    error
                })?;
                Ok(Value::Bytes(text::decimal(Decimal { value, scale: *scale }).into_bytes()))
            }
            Self::Date => match cell {
                Cell::Date(days) => Ok(timestamp_value(days, 0)?),
                Cell::Text(text) => match parse::timestamp(text) {
                    Some((days, 0)) if text.len() == 10 => timestamp_value(days, 0),
                    _ => Err(unfit("date")),
                },
                _ => Err(unfit("date")),
            },
            Self::Timestamp { unit_ns } => {
                let (days, ns) = match cell {
                    Cell::Date(days) => (days, 0),
                    Cell::Timestamp { ns, .. } => day_and_time(ns)?,
                    Cell::Text(text) => parse::timestamp(text).ok_or_else(|| unfit("datetime"))?,
                    _ => return Err(unfit("datetime")),
                };
                check_unit(ns.into(), *unit_ns)?;
                timestamp_value(days, ns)
            }
            Self::Time { unit_ns } => {
                let ns = match cell {
                    Cell::Time(ns) => ns.into(),
                    Cell::Duration(ns) => ns,
                    Cell::Text(text) => parse::time(text).ok_or_else(|| unfit("time"))?,
                    _ => return Err(unfit("time")),
                };
                check_unit(ns, *unit_ns)?;
                if ns.abs() > TIME_NS_MAX {
                    return Err(EncodeError::new("a time beyond 838:59:59", CAST));
                }
                Ok(time_value(ns))
            }
            Self::Chars { chars_max, bytes_max, is_padded } => {
                let Some(text) = text::cell(cell)? else { return Err(unfit("text")) };
                if bytes_max.is_some_and(|max| text.len() as u64 > max) {
                    let reason = format!("a text of {} bytes, more than the column takes", text.len());
                    return Err(EncodeError::new(reason, WIDEN));
                }
                if let Some(max) = chars_max.filter(|max| text.len() as u64 > *max) {
                    let count = text.chars().count() as u64;
                    if count > max {
                        let reason = format!("a text of {count} characters where the column takes {max}");
                        return Err(EncodeError::new(reason, WIDEN));
                    }
                }
                if *is_padded && text.ends_with(' ') {
                    let hint = "remove them in the query, as with rtrim(), or use varchar for the column";
                    return Err(EncodeError::new(
                        "a text with trailing blanks, which char does not keep",
                        hint,
                    ));
                }
                Ok(Value::Bytes(text.into_bytes()))
            }
            Self::Bytes { max, is_padded } => match cell {
                Cell::Bytes(bytes) if bytes.len() as u64 > *max => {
                    let reason = format!("a value of {} bytes where the column takes {max}", bytes.len());
                    Err(EncodeError::new(reason, "widen the column"))
                }
                Cell::Bytes(bytes) if *is_padded && (bytes.len() as u64) < *max => {
                    let reason = format!("a value of {} bytes, which binary({max}) pads", bytes.len());
                    Err(EncodeError::new(reason, "use varbinary for the column"))
                }
                Cell::Bytes(bytes) => Ok(Value::Bytes(bytes.to_vec())),
                _ => Err(unfit("binary")),
            },
            Self::Enum(members) => match cell {
                Cell::Text(text) if members.iter().any(|member| member == text) => {
                    Ok(Value::Bytes(text.into()))
                }
                _ => Err(unfit("enum, as the column defines it")),
            },
            Self::Set(members) => match cell {
                Cell::Text(text) if is_set(text, members) => Ok(Value::Bytes(text.into())),
                _ => Err(unfit("set, as the column defines it")),
            },
            Self::Json | Self::Parsed => match cell {
                Cell::Text(text) => Ok(Value::Bytes(text.into())),
                _ => Err(unfit("text")),
            },
            Self::Other => Err(unfit("the column")),
        }
    }
}

/// Whether a text is members of a set in the order in which the server prints them.
fn is_set(text: &str, members: &[String]) -> bool {
    let mut rest = members.iter();
    text.is_empty() || text.split(',').all(|part| rest.any(|member| member == part))
}

fn whole(cell: Cell<'_>) -> Option<i128> {
    match cell {
        Cell::Bool(value) => Some(value.into()),
        Cell::Whole(value) => Some(value),
        Cell::Decimal(value) => value.rescaled(0),
        Cell::Text(text) => text.trim_ascii().parse().ok(),
        _ => None,
    }
}

/// A number as a decimal; a float as the digits it is printed with.
fn number(cell: Cell<'_>) -> Option<Decimal> {
    match cell {
        Cell::Whole(value) => Some(Decimal { value: i256::from_i128(value), scale: 0 }),
        Cell::Decimal(value) => Some(value),
        Cell::Real(value) => Decimal::shown(value),
        Cell::Double(value) => Decimal::shown(value),
        Cell::Text(text) => Decimal::parse(text.trim_ascii()),
        _ => None,
    }
}

fn check_unit(ns: i128, unit_ns: i64) -> Result<(), EncodeError> {
    match ns % i128::from(unit_ns) {
        0 => Ok(()),
        _ => Err(EncodeError::new(
            "a time with more decimal places of a second than the column keeps",
            TRUNCATE,
        )),
    }
}

/// A day and nanoseconds of the day, which are whole microseconds.
fn timestamp_value(days: i64, ns: i64) -> Result<Value, EncodeError> {
    let (year, month, day) = four_digit_date(days)?;
    if year == 0 {
        return Err(EncodeError::new(
            "a date in the year 0, which the server takes for an unknown one",
            CAST,
        ));
    }
    let (hour, minute, second, us) = clock(ns / 1000);
    Ok(Value::Date(year, month, day, hour as u8, minute, second, us))
}

fn time_value(ns: i128) -> Value {
    // At most 839 hours.
    let (hour, minute, second, us) = clock((ns.unsigned_abs() / 1000) as i64);
    Value::Time(ns < 0, hour / 24, (hour % 24) as u8, minute, second, us)
}

/// Hours, minutes, seconds and microseconds.
fn clock(us: i64) -> (u32, u8, u8, u32) {
    let seconds = us / 1_000_000;
    ((seconds / 3600) as u32, (seconds / 60 % 60) as u8, (seconds % 60) as u8, (us % 1_000_000) as u32)
}

/// The type of a new column for `field`. Columns of a key get types that an index takes, and a collation by which
/// different texts are different keys.
///
/// # Errors
/// The Arrow type that no column can hold.
pub(super) fn column_type(field: &Field, is_key: bool) -> Result<String, String> {
    let extension = field.metadata().get(EXTENSION_TYPE_NAME_KEY).map(String::as_str);
    let null = if is_key { "NOT NULL" } else { "NULL" };
    if let Some(native) = native::column_type(field, is_key) {
        return Ok(format!("{native} {null}"));
    }
    let made = match plain(field.data_type()) {
        DataType::Boolean => "boolean".into(),
        DataType::Int8 => "tinyint".into(),
        DataType::UInt8 => "tinyint unsigned".into(),
        DataType::Int16 => "smallint".into(),
        DataType::UInt16 => "smallint unsigned".into(),
        DataType::Int32 => "int".into(),
        DataType::UInt32 => "int unsigned".into(),
        DataType::Int64 => "bigint".into(),
        DataType::UInt64 => "bigint unsigned".into(),
        DataType::Float16 | DataType::Float32 => "float".into(),
        DataType::Float64 => "double".into(),
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => {
            let digits = i32::from(*p) - i32::from((*s).min(0));
            if digits > DECIMAL_DIGITS_MAX.into() || *s > DECIMAL_PLACES_MAX {
                return Err(format!(
                    "{}: the server's decimals have up to {DECIMAL_DIGITS_MAX} digits and {DECIMAL_PLACES_MAX} \
                     decimal places; cast it in the query, or read it with --numeric decimal(38,10)",
                    field.data_type()
                ));
            }
            format!("decimal({digits}, {})", (*s).max(0))
        }
        DataType::Date32 => "date".into(),
        DataType::Date64 | DataType::Timestamp(_, None) => "datetime(6)".into(),
        DataType::Timestamp(_, Some(_)) => "timestamp(6)".into(),
        DataType::Time32(_) | DataType::Time64(_) | DataType::Duration(_) => "time(6)".into(),
        DataType::FixedSizeBinary(width @ 1..=255) => format!("binary({width})"),
        binary if binary.is_binary() && is_key => format!("varbinary({KEY_LENGTH})"),
        binary if binary.is_binary() => "longblob".into(),
        other if !has_cells(other) => return Err(format!("{other}; select its parts in the query")),
        _ if is_key => format!("varchar({KEY_LENGTH}) COLLATE utf8mb4_bin"),
        _ if extension == Some("arrow.json") => "json".into(),
        _ => "longtext".into(),
    };
    // Without it, older servers fill a `timestamp` with the current time.
    Ok(format!("{made} {null}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(column_type: &str) -> ColumnRule {
        let data_type = column_type.split(['(', ' ']).next().unwrap().to_owned();
        let mut numbers = column_type.split_once('(').into_iter().flat_map(|(_, rest)| {
            rest.trim_end_matches(|c| c != ')')
                .trim_end_matches(')')
                .split(',')
                .map(|n| n.trim().parse().ok())
        });
        let (first, second) = (numbers.next().flatten(), numbers.next().flatten());
        ColumnRule::new(&Described {
            data_type,
            column_type: column_type.into(),
            chars_max: first.map(u64::from),
            bytes_max: first.map(|n| 4 * u64::from(n)),
            precision: first,
            scale: second.map(|n: u32| n as i32),
            second_places: first,
            charset: Some("utf8mb4".into()),
        })
    }

    #[test]
    fn values_are_converted_exactly_or_refused() {
        let check = |column: &str, cell: Cell<'_>, expected: Option<Value>| {
            assert_eq!(rule(column).value(cell).ok(), expected, "{cell:?} in {column}");
        };
        let bytes = |text: &str| Some(Value::Bytes(text.into()));
        let number = |value: i128, scale| Cell::Decimal(Decimal { value: i256::from_i128(value), scale });
        check("tinyint", Cell::Whole(127), Some(Value::Int(127)));
        check("tinyint", Cell::Whole(128), None);
        check("tinyint unsigned", Cell::Whole(255), Some(Value::Int(255)));
        check("tinyint unsigned", Cell::Whole(-1), None);
        check("bigint unsigned", Cell::Whole(u64::MAX.into()), Some(Value::UInt(u64::MAX)));
        check("bigint", Cell::Text(" 12 "), Some(Value::Int(12)));
        check("bigint", Cell::Text("12.5"), None);
        check("decimal(5,2)", number(1250, 3), bytes("1.25"));
        check("decimal(5,2)", number(1255, 3), None);
        check("decimal(5,2)", number(100_000, 2), None);
        check("decimal(5,2)", Cell::Double(0.1), bytes("0.10"));
        check("decimal(5,2) unsigned", number(-1, 2), None);
        check("float", Cell::Double(0.5), Some(Value::Float(0.5)));
        check("float", Cell::Double(0.1), None);
        check("float", Cell::Real(0.1), Some(Value::Float(0.1)));
        check("double", Cell::Double(f64::INFINITY), None);
        check("year", Cell::Whole(70), None);
        check("year", Cell::Whole(1970), Some(Value::Int(1970)));
        check("datetime", Cell::Timestamp { ns: 1_500_000_000, has_zone: false }, None);
        let at = |us| Some(Value::Date(1970, 1, 1, 0, 0, 1, us));
        check("datetime(3)", Cell::Timestamp { ns: 1_500_000_000, has_zone: false }, at(500_000));
        check("datetime(6)", Cell::Timestamp { ns: 1_500_000_001, has_zone: false }, None);
        check("datetime(6)", Cell::Text("1970-01-01 00:00:01.5"), at(500_000));
        check("date", Cell::Text("1970-01-01 00:00:00"), None);
        check("date", Cell::Text("2023-02-29"), None);
        check("date", Cell::Date(-719_528), None);
        check("time(6)", Cell::Duration(-90_061_000_001_000), Some(Value::Time(true, 1, 1, 1, 1, 1)));
        check("time(6)", Cell::Duration(TIME_NS_MAX + 1000), None);
        check("varchar(3)", Cell::Text("äöü"), bytes("äöü"));
        check("varchar(3)", Cell::Text("abc "), None);
        check("char(3)", Cell::Text("a "), None);
        check("enum('a','b')", Cell::Text("b"), bytes("b"));
        check("enum('a','b')", Cell::Text("2"), None);
        check("set('a','b')", Cell::Text("a,b"), bytes("a,b"));
        check("set('a','b')", Cell::Text("b,a"), None);
        check("geometry", Cell::Text("x"), None);
    }

    #[test]
    fn new_columns_have_matching_types() {
        let check = |data_type: DataType, is_key: bool, expected: Option<&str>| {
            let made = column_type(&Field::new("a", data_type.clone(), true), is_key).ok();
            assert_eq!(made.as_deref(), expected, "{data_type}");
        };
        check(DataType::UInt64, true, Some("bigint unsigned NOT NULL"));
        check(DataType::Utf8, true, Some("varchar(255) COLLATE utf8mb4_bin NOT NULL"));
        check(DataType::Utf8, false, Some("longtext NULL"));
        check(DataType::Decimal128(10, -2), false, Some("decimal(12, 0) NULL"));
        check(DataType::Decimal256(76, 44), false, None);
        check(DataType::Struct(arrow_schema::Fields::empty()), false, None);
    }
}
