//! Conditions on the rows of a table that are pushed down to a source.
//!
//! A source checks a condition so that it returns fewer rows; the returned rows are checked again.
//! So the source must keep every row whose Arrow values satisfy the condition, and the condition must
//! not fail there. [`Comparison`] says which comparisons of a column guarantee that.

use arrow_array::temporal_conversions::{date32_to_datetime, timestamp_us_to_datetime};
use arrow_buffer::i256;

use crate::{Dialect, select};

/// Longer conditions are not pushed down, because servers limit the length of statements.
const CONDITION_BYTES_MAX: usize = 64 << 10;
/// SQLite limits the depth of expressions to 1000, and a chain of OR is as deep as it is long.
const ALTERNATIVES_MAX: usize = 500;
/// Maximum nesting of AND and OR.
const DEPTH_MAX: usize = 16;
/// 0001-01-01 to 9999-12-31 in days: the dates that all sources write with a four-digit year.
const DAYS: std::ops::RangeInclusive<i32> = -719_162..=2_932_896;
const DAY_US: i64 = 86_400_000_000;

/// Which comparisons of a column have the same meaning at the source as in Arrow. Each level
/// includes the levels before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Comparable {
    /// None: not even NULL means the same.
    Nothing,
    /// `IS NULL` and `IS NOT NULL`.
    Nulls,
    /// Equality with a text of ASCII characters. The source's encoding may lack other characters,
    /// which makes the comparison fail.
    EqualAscii,
    /// Equality with any value.
    Equal,
    /// Less than and greater than any value.
    Ordered,
}

/// How a column is compared at the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Which comparisons can be pushed down.
    pub comparable: Comparable,
    /// The expression to compare with a value, in the source's SQL.
    pub operand: String,
    /// The column itself, in the source's SQL.
    pub column: String,
}

/// A condition on a table's columns, which are identified by position.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// All of these are true.
    All(Vec<Condition>),
    /// One of these is true.
    Any(Vec<Condition>),
    /// A column compared with a value.
    Compare(usize, Operator, Literal),
    /// A column is equal to one of these.
    In(usize, Vec<Literal>),
    /// A column is NULL.
    IsNull(usize),
    /// A column is not NULL.
    IsNotNull(usize),
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operator {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A value of the same Arrow type as the column that it is compared with.
#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    /// `Boolean`.
    Boolean(bool),
    /// An integer of any width.
    Integer(i128),
    /// `Float64`.
    Float(f64),
    /// A decimal of any width: this number, divided by 10 to the power of the scale.
    Decimal(i256, i8),
    /// `Date32`.
    Days(i32),
    /// `Timestamp(us)`, without a zone or in UTC.
    Timestamp {
        /// Microseconds since 1970.
        us: i64,
        /// Whether the column has a zone.
        utc: bool,
    },
    /// `Utf8`.
    Text(String),
}

impl Condition {
    /// The condition in the source's SQL; `None` if it can't be pushed down. Parts of
    /// [`Condition::All`] that can't be pushed down are left out.
    pub fn sql(&self, dialect: Dialect, columns: &[Comparison]) -> Option<String> {
        self.at_depth(dialect, columns, DEPTH_MAX).filter(|sql| sql.len() <= CONDITION_BYTES_MAX)
    }

    fn at_depth(&self, dialect: Dialect, columns: &[Comparison], depth: usize) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        let joined = |parts: Vec<String>, word: &str| match parts.len() {
            0 => None,
            1..=ALTERNATIVES_MAX => Some(format!("({})", parts.join(word))),
            _ => None,
        };
        let nulls = |column: usize| {
            columns.get(column).filter(|c| c.comparable >= Comparable::Nulls).map(|c| &c.column)
        };
        match self {
            Self::All(parts) => {
                let parts = parts.iter().filter_map(|part| part.at_depth(dialect, columns, depth));
                joined(parts.collect(), " AND ")
            }
            Self::Any(parts) => {
                let parts = parts.iter().map(|part| part.at_depth(dialect, columns, depth));
                joined(parts.collect::<Option<_>>()?, " OR ")
            }
            Self::Compare(column, operator, value) => {
                let column = columns.get(*column)?;
                let needed = match operator {
                    Operator::Equal => needed(value),
                    _ => Comparable::Ordered,
                };
                let sql = literal(dialect, value).filter(|_| column.comparable >= needed)?;
                Some(format!("{} {} {sql}", column.operand, operator.sql(value)))
            }
            Self::In(column, values) => {
                let column = columns.get(*column)?;
                let values = values
                    .iter()
                    .map(|value| literal(dialect, value).filter(|_| column.comparable >= needed(value)));
                let values = values.collect::<Option<Vec<_>>>()?;
                (!values.is_empty()).then(|| format!("{} IN ({})", column.operand, values.join(", ")))
            }
            Self::IsNull(column) => Some(format!("{} IS NULL", nulls(*column)?)),
            Self::IsNotNull(column) => Some(format!("{} IS NOT NULL", nulls(*column)?)),
        }
    }
}

impl Operator {
    /// In Arrow, -0 is less than 0; in databases they are equal.
    fn sql(self, value: &Literal) -> &'static str {
        match (self, value) {
            (Self::Equal, _) => "=",
            (Self::Less, Literal::Float(_)) | (Self::LessOrEqual, _) => "<=",
            (Self::Less, _) => "<",
            (Self::Greater, Literal::Float(_)) | (Self::GreaterOrEqual, _) => ">=",
            (Self::Greater, _) => ">",
        }
    }
}

/// What a column must support for a test of equality with a value.
fn needed(value: &Literal) -> Comparable {
    match value {
        Literal::Text(text) if text.is_ascii() => Comparable::EqualAscii,
        _ => Comparable::Equal,
    }
}

/// A value in the source's SQL; `None` if the source might read another value.
fn literal(dialect: Dialect, value: &Literal) -> Option<String> {
    use Dialect::{Adbc, MySql, Postgres, Sqlite};
    Some(match (value, dialect) {
        (_, Adbc) => return None,
        (Literal::Boolean(value), Postgres) => value.to_string(),
        (Literal::Boolean(value), MySql | Sqlite) => u8::from(*value).to_string(),
        (Literal::Integer(value), _) => value.to_string(),
        (Literal::Float(value), _) if !(value.is_normal() || *value == 0.0) => return None,
        (Literal::Float(value), Postgres) => format!("'{value:e}'::float8"),
        (Literal::Float(value), MySql) => format!("{value:e}"),
        (Literal::Float(value), Sqlite) => exactly_read(*value)?,
        (Literal::Decimal(..), Sqlite) => return None,
        (Literal::Decimal(unscaled, scale), _) => decimal(*unscaled, *scale),
        (Literal::Days(_) | Literal::Timestamp { .. }, Sqlite) => return None,
        (Literal::Days(days), _) => {
            let date = DAYS.contains(days).then(|| date32_to_datetime(*days)).flatten()?;
            format!("DATE '{}'", date.format("%Y-%m-%d"))
        }
        (Literal::Timestamp { us, utc }, _) => {
            let days = i32::try_from(us.div_euclid(DAY_US)).ok().filter(|days| DAYS.contains(days));
            let time = days.and_then(|_| timestamp_us_to_datetime(*us))?;
            let time = time.format("%Y-%m-%d %H:%M:%S%.6f");
            match (dialect, utc) {
                (Postgres, true) => format!("TIMESTAMPTZ '{time}+00'"),
                // Each connection has its time zone set to UTC.
                _ => format!("TIMESTAMP '{time}'"),
            }
        }
        (Literal::Text(text), _) if text.contains('\0') => return None,
        (Literal::Text(text), Postgres) => {
            postgres_protocol::escape::escape_literal(text).trim_start().to_owned()
        }
        // Whether a backslash begins an escape depends on the session's sql_mode.
        (Literal::Text(text), MySql) if text.contains('\\') => {
            let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
            format!("_utf8mb4 X'{digits}'")
        }
        (Literal::Text(text), MySql | Sqlite) => format!("'{}'", text.replace('\'', "''")),
    })
}

/// The digits of a float; `None` if SQLite might read another float from them. SQLite has its own
/// algorithm, which is exact if the digits and the power of ten are floats themselves: one
/// multiplication or division then gives the nearest float.
fn exactly_read(value: f64) -> Option<String> {
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    let places = digits.split_once('.').map_or(0, |(_, places)| places.len());
    let count = digits.bytes().filter(u8::is_ascii_digit).count();
    let power = exponent - i32::try_from(places).ok()?;
    (count <= 15 && (-22..=22).contains(&power)).then_some(text)
}

/// All digits of a decimal.
fn decimal(unscaled: i256, scale: i8) -> String {
    let text = unscaled.to_string();
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
    let places = usize::from(scale.unsigned_abs());
    match scale {
        ..=0 => format!("{sign}{digits}{}", "0".repeat(places)),
        _ => {
            let digits = format!("{digits:0>width$}", width = places + 1);
            let (whole, fraction) = digits.split_at(digits.len() - places);
            format!("{sign}{whole}.{fraction}")
        }
    }
}

impl Comparison {
    /// The comparison of a column by its own name.
    pub(crate) fn plain(column: String, comparable: Comparable) -> Self {
        Self { comparable, operand: column.clone(), column }
    }

    /// As [`Comparison::plain`], with the name quoted for MySQL and SQLite.
    pub(crate) fn backticked(name: &str, comparable: Comparable) -> Self {
        Self::plain(select::identifier(name), comparable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(comparable: Comparable) -> Vec<Comparison> {
        ["\"a\"", "\"b\""].map(|name| Comparison::plain(name.into(), comparable)).into()
    }

    fn equal(column: usize, value: Literal) -> Condition {
        Condition::Compare(column, Operator::Equal, value)
    }

    #[test]
    fn literals_are_written_in_each_dialect() {
        let check = |value: Literal, expected: [Option<&str>; 3]| {
            for (dialect, expected) in
                [Dialect::Postgres, Dialect::MySql, Dialect::Sqlite].into_iter().zip(expected)
            {
                assert_eq!(literal(dialect, &value).as_deref(), expected, "{dialect:?}");
            }
        };
        let text = |text: &str| Literal::Text(text.into());
        check(Literal::Boolean(true), [Some("true"), Some("1"), Some("1")]);
        check(Literal::Integer(-5), [Some("-5"); 3]);
        check(Literal::Float(0.1), [Some("'1e-1'::float8"), Some("1e-1"), Some("1e-1")]);
        check(
            Literal::Float(0.1 + 0.2),
            [Some("'3.0000000000000004e-1'::float8"), Some("3.0000000000000004e-1"), None],
        );
        check(Literal::Float(1e300), [Some("'1e300'::float8"), Some("1e300"), None]);
        check(Literal::Float(f64::NAN), [None; 3]);
        check(Literal::Float(5e-324), [None; 3]);
        let price = |unscaled, scale| Literal::Decimal(i256::from_i128(unscaled), scale);
        check(price(-5, 2), [Some("-0.05"), Some("-0.05"), None]);
        check(price(12345, 2), [Some("123.45"), Some("123.45"), None]);
        check(price(7, -2), [Some("700"), Some("700"), None]);
        check(Literal::Days(0), [Some("DATE '1970-01-01'"), Some("DATE '1970-01-01'"), None]);
        check(Literal::Days(i32::MAX), [None; 3]);
        check(
            Literal::Timestamp { us: -1, utc: true },
            [
                Some("TIMESTAMPTZ '1969-12-31 23:59:59.999999+00'"),
                Some("TIMESTAMP '1969-12-31 23:59:59.999999'"),
                None,
            ],
        );
        check(Literal::Timestamp { us: i64::MIN, utc: false }, [None; 3]);
        check(text("it's"), [Some("'it''s'"); 3]);
        check(text(r"a\'b"), [Some(r"E'a\\''b'"), Some("_utf8mb4 X'615c2762'"), Some(r"'a\''b'")]);
        check(text("a\0b"), [None; 3]);
    }

    #[test]
    fn only_comparisons_that_a_column_supports_are_pushed_down() {
        let check = |condition: &Condition, least: Comparable| {
            use Comparable::*;
            for comparable in [Nothing, Nulls, EqualAscii, Equal, Ordered] {
                let sql = condition.sql(Dialect::Postgres, &columns(comparable));
                assert_eq!(sql.is_some(), comparable >= least, "{condition:?} of {comparable:?}");
            }
        };
        check(&Condition::IsNull(0), Comparable::Nulls);
        check(&equal(0, Literal::Text("x".into())), Comparable::EqualAscii);
        check(&equal(0, Literal::Text("ü".into())), Comparable::Equal);
        check(&Condition::In(0, vec![Literal::Integer(1)]), Comparable::Equal);
        check(&Condition::Compare(0, Operator::Less, Literal::Integer(1)), Comparable::Ordered);
        assert_eq!(equal(2, Literal::Integer(1)).sql(Dialect::Postgres, &columns(Comparable::Ordered)), None);
    }

    #[test]
    fn pushed_down_conditions_keep_every_matching_row() {
        let columns = [
            Comparison::plain("a".into(), Comparable::Ordered),
            Comparison::plain("b".into(), Comparable::Nulls),
        ];
        let check = |condition: Condition, expected: Option<&str>| {
            assert_eq!(condition.sql(Dialect::MySql, &columns).as_deref(), expected, "{condition:?}");
        };
        let (can, cant) = (equal(0, Literal::Integer(1)), equal(1, Literal::Integer(2)));
        check(Condition::All(vec![can.clone(), cant.clone()]), Some("(a = 1)"));
        check(Condition::All(vec![can.clone(), Condition::IsNull(1)]), Some("(a = 1 AND b IS NULL)"));
        check(Condition::All(vec![cant.clone()]), None);
        check(Condition::Any(vec![can.clone(), cant.clone()]), None);
        check(Condition::Any(vec![can.clone(), Condition::IsNotNull(1)]), Some("(a = 1 OR b IS NOT NULL)"));
        let partly = Condition::All(vec![can.clone(), cant.clone()]);
        check(Condition::Any(vec![partly, can.clone()]), Some("((a = 1) OR a = 1)"));
        // Arrow orders -0 before 0.
        check(Condition::Compare(0, Operator::Less, Literal::Float(0.0)), Some("a <= 0e0"));
        check(Condition::Compare(0, Operator::Greater, Literal::Float(-0.0)), Some("a >= -0e0"));
        check(Condition::Any(vec![can.clone(); ALTERNATIVES_MAX + 1]), None);
        check(Condition::In(0, vec![Literal::Text("x".repeat(CONDITION_BYTES_MAX))]), None);
        let deep = (0..DEPTH_MAX).fold(can, |inner, _| Condition::Any(vec![inner]));
        check(deep, None);
    }
}
