//! Which values go into which columns of SQLite, exactly, and the types of new columns.
//!
//! SQLite converts a value that does not match its column's affinity, and stores any other as it is: a text `007`
//! becomes the number 7 in an integer column, and a decimal loses digits as a float. Here each value is converted
//! before it is bound, so that SQLite changes none, or it is refused.

use arrow_schema::DataType;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};

use super::columns::SqliteType;
use crate::decimal::Decimal;
use crate::tables::cells::{Cell, has_cells, plain};
use crate::tables::text;
use crate::unfit::EncodeError;

const CAST: &str = "cast it in the query, or choose another type for the column";
/// Digits that every float of SQLite preserves.
const FLOAT_DIGITS: u8 = 15;
/// Digits that every integer of SQLite has.
const INTEGER_DIGITS: i32 = 18;

/// What SQLite does with values of a column (https://sqlite.org/datatype3.html#determination_of_column_affinity).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Affinity {
    Text,
    Integer,
    Real,
    Numeric,
    /// Values are stored as they are.
    Blob,
}

/// A column of a table.
#[derive(Debug, Clone)]
pub(super) struct ColumnRule {
    affinity: Affinity,
    /// What readers expect in the column; nothing for `DATE`, `JSON` and the like.
    kind: Option<SqliteType>,
    /// For messages.
    type_name: String,
}

impl ColumnRule {
    pub(super) fn new(declared: &str) -> Self {
        let upper = declared.to_ascii_uppercase();
        let has = |parts: &[&str]| parts.iter().any(|part| upper.contains(part));
        let affinity = if has(&["INT"]) {
            Affinity::Integer
        } else if has(&["CHAR", "CLOB", "TEXT"]) {
            Affinity::Text
        } else if upper.is_empty() || has(&["BLOB"]) {
            Affinity::Blob
        } else if has(&["REAL", "FLOA", "DOUB"]) {
            Affinity::Real
        } else {
            Affinity::Numeric
        };
        let type_name = if declared.is_empty() { "without a type".to_owned() } else { declared.to_owned() };
        Self { affinity, kind: SqliteType::declared(declared), type_name }
    }

    /// Whether values of this type can go into the column; each is still checked when it is written.
    pub(super) fn takes(&self, from: &DataType) -> bool {
        let from = plain(from);
        let is_numeric =
            matches!(self.kind, Some(SqliteType::Boolean | SqliteType::Integer | SqliteType::Real));
        match from {
            DataType::Null => true,
            _ if !has_cells(from) => false,
            DataType::Boolean => self.affinity != Affinity::Real,
            from if from.is_integer() || from.is_floating() || from.is_decimal() || from.is_string() => true,
            from if from.is_binary() => !is_numeric && self.affinity != Affinity::Text,
            // Dates, times and intervals are stored as text.
            _ => !is_numeric && !matches!(self.affinity, Affinity::Integer | Affinity::Real),
        }
    }

    fn unfit(&self, value: impl std::fmt::Display) -> EncodeError {
        EncodeError::new(format!("{value} is not a value of type {}", self.type_name), CAST)
    }

    /// The value to bind, which SQLite then stores without changing it.
    ///
    /// # Errors
    /// When the column can't hold the value exactly.
    pub(super) fn value<'a>(&self, cell: Cell<'a>) -> Result<ToSqlOutput<'a>, EncodeError> {
        let owned = |value: Value| Ok(ToSqlOutput::Owned(value));
        let as_text =
            || text::cell(cell).map(|text| ToSqlOutput::Owned(text.map_or(Value::Null, Value::Text)));
        match cell {
            Cell::Null => owned(Value::Null),
            Cell::Text(text) => self.text(text),
            Cell::Bytes(bytes) => Ok(ToSqlOutput::Borrowed(ValueRef::Blob(bytes))),
            Cell::Real(value) if value.is_nan() => Err(nan()),
            Cell::Double(value) if value.is_nan() => Err(nan()),
            _ if self.affinity == Affinity::Text => as_text(),
            Cell::Bool(value) => owned(Value::Integer(value.into())),
            Cell::Whole(value) if self.affinity == Affinity::Real => {
                self.whole_as_real(value).map(ToSqlOutput::Owned)
            }
            Cell::Whole(value) => match i64::try_from(value) {
                Ok(value) => owned(Value::Integer(value)),
                Err(_) => Err(EncodeError::new(
                    format!("{value} is beyond the range of SQLite's integers"),
                    "cast it to text in the query, and copy it into a column of type TEXT",
                )),
            },
            Cell::Real(value) => self.float(value.into()).map(ToSqlOutput::Owned),
            Cell::Double(value) => self.float(value).map(ToSqlOutput::Owned),
            Cell::Decimal(value) => self.decimal(value).map(ToSqlOutput::Owned),
            Cell::Date(_) | Cell::Time(_) | Cell::Timestamp { .. } | Cell::Duration(_) => as_text(),
        }
    }

    fn whole_as_real(&self, value: i128) -> Result<Value, EncodeError> {
        let float = value as f64;
        // The cast back saturates far beyond 64 bits.
        if float as i128 == value { Ok(Value::Real(float)) } else { Err(self.unfit(value)) }
    }

    fn float(&self, value: f64) -> Result<Value, EncodeError> {
        let is_whole = self.affinity == Affinity::Integer || self.kind == Some(SqliteType::Integer);
        if !is_whole {
            return Ok(Value::Real(value));
        }
        // 2^63 as a float is exact; i64::MAX is not.
        if value.fract() == 0.0 && value.abs() < 9_223_372_036_854_775_808.0 {
            return Ok(Value::Integer(value as i64));
        }
        Err(self.unfit(format!("{value:?}")))
    }

    fn decimal(&self, value: Decimal) -> Result<Value, EncodeError> {
        let whole = value.rescaled(0).and_then(|value| i64::try_from(value).ok());
        let is_whole = self.affinity == Affinity::Integer || self.kind == Some(SqliteType::Integer);
        match whole {
            Some(whole) if self.affinity != Affinity::Real => Ok(Value::Integer(whole)),
            _ if is_whole => Err(self.unfit(value)),
            _ => value.to_float().map(Value::Real).ok_or_else(|| {
                EncodeError::new(
                    format!("{value} has more digits than a float of SQLite preserves"),
                    "round it in the query, or copy it into a column of type TEXT",
                )
            }),
        }
    }

    fn text<'a>(&self, text: &'a str) -> Result<ToSqlOutput<'a>, EncodeError> {
        let unchanged = || Ok(ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())));
        if matches!(self.affinity, Affinity::Text | Affinity::Blob) {
            return unchanged();
        }
        let shown = || self.unfit(format!("the text `{}`", text.chars().take(40).collect::<String>()));
        let Some(number) = Decimal::parse(text.trim_ascii()) else {
            // SQLite stores a text that is no number as a text. Only in a column of numbers is that unexpected.
            return if self.kind.is_some() || looks_like_number(text) { Err(shown()) } else { unchanged() };
        };
        let value = match number.rescaled(0).and_then(|value| i64::try_from(value).ok()) {
            Some(whole) if self.affinity != Affinity::Real => Value::Integer(whole),
            _ => self.decimal(number).map_err(|_| shown())?,
        };
        // In a column like DATE or JSON, the text itself must survive.
        let same = match &value {
            Value::Integer(value) => value.to_string() == text,
            Value::Real(value) => format!("{value:?}") == text,
            _ => false,
        };
        if self.kind.is_some() || same { Ok(ToSqlOutput::Owned(value)) } else { Err(shown()) }
    }
}

/// Whether SQLite might take a text for a number that is too long for ours.
fn looks_like_number(text: &str) -> bool {
    // SQLite's spaces include the vertical tab.
    let text = text.trim_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let is_digits = |part: &str| {
        let digits = part.strip_prefix(['-', '+']).unwrap_or(part);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    is_digits(&mantissa.replacen('.', "", 1)) && is_digits(exponent)
}

fn nan() -> EncodeError {
    EncodeError::new(
        "NaN, which SQLite stores as NULL",
        "exclude it in the query, or cast it to text and copy it into a column of type TEXT",
    )
}

/// The type of a new column.
///
/// # Errors
/// The Arrow type that no column can hold.
pub(super) fn column_type(data_type: &DataType) -> Result<String, String> {
    Ok(match plain(data_type) {
        DataType::Boolean => "BOOLEAN".into(),
        t if t.is_integer() => "INTEGER".into(),
        t if t.is_floating() => "REAL".into(),
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => {
            let digits = i32::from(*p) - i32::from((*s).min(0));
            match s {
                ..=0 if digits <= INTEGER_DIGITS => "INTEGER".into(),
                1.. if *p <= FLOAT_DIGITS => format!("DECIMAL({p}, {s})"),
                _ => "TEXT".into(),
            }
        }
        DataType::Date32 => "DATE".into(),
        DataType::Time32(_) | DataType::Time64(_) => "TIME".into(),
        DataType::Date64 | DataType::Timestamp(..) => "DATETIME".into(),
        t if t.is_binary() => "BLOB".into(),
        t if has_cells(t) => "TEXT".into(),
        other => return Err(other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use arrow_buffer::i256;

    use super::*;

    fn stored(declared: &str, cell: Cell<'_>) -> Option<Value> {
        match ColumnRule::new(declared).value(cell).ok()? {
            ToSqlOutput::Owned(value) => Some(value),
            ToSqlOutput::Borrowed(value) => value.try_into().ok(),
            _ => None,
        }
    }

    #[test]
    fn values_are_converted_exactly_or_refused() {
        use Value::{Integer, Real, Text};
        let check = |declared: &str, cell: Cell<'_>, expected: Option<Value>| {
            assert_eq!(stored(declared, cell), expected, "{cell:?} in {declared}");
        };
        let number = |value: i128, scale| Cell::Decimal(Decimal { value: i256::from_i128(value), scale });
        check("INTEGER", Cell::Text("42"), Some(Integer(42)));
        check("INTEGER", Cell::Text("1.5"), None);
        check("INTEGER", Cell::Text("x"), None);
        check("INTEGER", Cell::Double(1.5), None);
        check("INTEGER", Cell::Double(-3.0), Some(Integer(-3)));
        check("INTEGER", Cell::Double(9_223_372_036_854_775_808.0), None);
        check("INTEGER", Cell::Whole(i64::MAX.into()), Some(Integer(i64::MAX)));
        check("INTEGER", Cell::Whole(u64::MAX.into()), None);
        check("REAL", Cell::Whole(1 << 53), Some(Real(9_007_199_254_740_992.0)));
        check("REAL", Cell::Whole((1 << 53) + 1), None);
        check("REAL", Cell::Double(f64::NAN), None);
        check("TEXT", Cell::Double(f64::NAN), None);
        check("REAL", Cell::Double(f64::INFINITY), Some(Real(f64::INFINITY)));
        check("DECIMAL(10, 2)", number(1250, 2), Some(Real(12.5)));
        check("DECIMAL(10, 2)", number(1200, 2), Some(Integer(12)));
        check("DECIMAL(20, 2)", number(12_345_678_901_234_567_891, 2), None);
        check("DECIMAL(10, 2)", Cell::Text("0.10"), Some(Real(0.1)));
        check("DECIMAL(10, 2)", Cell::Text("0.1000000000000000000001"), None);
        check("TEXT", number(1250, 2), Some(Text("12.50".into())));
        check("TEXT", Cell::Text("007"), Some(Text("007".into())));
        check("DATE", Cell::Date(0), Some(Text("1970-01-01".into())));
        check("DATE", Cell::Text("20240101"), Some(Integer(20_240_101)));
        check("DATE", Cell::Text("0101"), None);
        check("JSON", Cell::Text("1.50"), None);
        check("JSON", Cell::Text("[1.50]"), Some(Text("[1.50]".into())));
        let long = "9".repeat(100);
        check("JSON", Cell::Text(&long), None);
        // Numbers that are too small, too long or in other spaces than ours.
        for text in ["1e-6000", "1e2000000000", "1e99999999999", &format!("{long}e-3"), "0E+99999", "\x0b5"] {
            check("DATE", Cell::Text(text), None);
        }
        for text in ["2024-02-29", "29.02.2024", "1e", "--1", "."] {
            check("DATE", Cell::Text(text), Some(Text(text.into())));
        }
        check("", Cell::Text("007"), Some(Text("007".into())));
        check("BOOLEAN", Cell::Bool(true), Some(Integer(1)));
    }

    #[test]
    fn types_are_matched_to_columns() {
        let takes = |declared: &str, from: DataType| ColumnRule::new(declared).takes(&from);
        assert!(takes("DATE", DataType::Date32) && takes("TEXT", DataType::Date32));
        assert!(!takes("INTEGER", DataType::Date32) && !takes("REAL", DataType::Boolean));
        assert!(takes("BLOB", DataType::Binary) && takes("", DataType::Binary));
        assert!(!takes("TEXT", DataType::Binary));
        assert_eq!(column_type(&DataType::Decimal128(15, 2)).unwrap(), "DECIMAL(15, 2)");
        assert_eq!(column_type(&DataType::Decimal128(16, 2)).unwrap(), "TEXT");
        assert_eq!(column_type(&DataType::Decimal128(10, -2)).unwrap(), "INTEGER");
        column_type(&DataType::Struct(arrow_schema::Fields::empty())).unwrap_err();
    }
}
