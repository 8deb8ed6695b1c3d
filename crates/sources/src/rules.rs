//! What becomes of values of a database that Arrow's types can't all hold.

use std::fmt;
use std::str::FromStr;

/// What `numeric` without a stated precision becomes in Arrow (decision 0013).
///
/// A column declared `numeric(p, s)` is always a decimal of that precision and
/// scale (up to 76 digits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumericRule {
    /// A decimal, `Decimal128` up to 38 digits and `Decimal256` up to 76; a value that does not fit
    /// exactly is an error that says so.
    Decimal {
        /// Digits, 1 to 76.
        precision: u8,
        /// Of these, digits behind the point.
        scale: i8,
    },
    /// Text, exact.
    String,
    /// `Float64`, rounded.
    Double,
}

impl NumericRule {
    /// Most digits of a decimal.
    pub const PRECISION_MAX: u8 = 76;
    /// For results, with which nothing is computed here: averages and quotients of ordinary numbers
    /// fit (16 to 24 places), the product of two of them, and sums of integers.
    pub const RESULT: Self = Self::Decimal { precision: Self::PRECISION_MAX, scale: 44 };
    /// For tables that are queried here: the product of three such columns is a decimal as well.
    pub const TABLE: Self = Self::Decimal { precision: Self::PRECISION_MAX, scale: 20 };
}

/// What becomes of infinite dates, timestamps and intervals, and of decimals that are infinite or
/// not a number. Floats hold such values themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InfiniteRule {
    /// They are errors.
    #[default]
    Error,
    /// They become NULL.
    Null,
    /// Columns that could hold such values arrive as text, as the server prints it.
    Text,
}

impl fmt::Display for NumericRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decimal { precision, scale } => write!(f, "decimal({precision},{scale})"),
            Self::String => f.write_str("string"),
            Self::Double => f.write_str("double"),
        }
    }
}

/// `decimal` is [`NumericRule::RESULT`].
impl FromStr for NumericRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let other = || {
            format!(
                "no rule `{text}`; there are decimal, decimal(P,S) with P up to {} and S up to P, string, double",
                Self::PRECISION_MAX
            )
        };
        Ok(match text {
            "decimal" => Self::RESULT,
            "string" => Self::String,
            "double" => Self::Double,
            text => {
                let sizes = text.strip_prefix("decimal(").and_then(|rest| rest.strip_suffix(')'));
                let (precision, scale) = sizes.and_then(|sizes| sizes.split_once(',')).ok_or_else(other)?;
                let precision: u8 = precision.trim().parse().map_err(|_| other())?;
                let scale: u8 = scale.trim().parse().map_err(|_| other())?;
                if !(1..=Self::PRECISION_MAX).contains(&precision) || scale > precision {
                    return Err(other());
                }
                Self::Decimal { precision, scale: scale.cast_signed() }
            }
        })
    }
}

impl fmt::Display for InfiniteRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Null => "null",
            Self::Text => "text",
        })
    }
}

impl FromStr for InfiniteRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "error" => Self::Error,
            "null" => Self::Null,
            "text" => Self::Text,
            other => return Err(format!("no rule `{other}`; there are error, null, text")),
        })
    }
}
