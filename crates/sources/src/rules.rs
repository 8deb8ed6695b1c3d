//! Rules for reading values of a database that Arrow's types can't always hold.

use std::fmt;
use std::str::FromStr;

/// The Arrow type of `numeric` without a declared precision (decision 0013).
///
/// A column declared `numeric(p, s)` is always a decimal of that precision and
/// scale (up to 76 digits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumericRule {
    /// A decimal, `Decimal128` up to 38 digits and `Decimal256` up to 76. A value that does not fit
    /// exactly is an error.
    Decimal {
        /// Digits, 1 to 76.
        precision: u8,
        /// Of these, digits after the decimal point.
        scale: i8,
    },
    /// Text, exact.
    String,
    /// `Float64`, rounded.
    Double,
}

impl NumericRule {
    /// Maximum digits of a decimal.
    pub const PRECISION_MAX: u8 = 76;
    /// For results, which Lightship does not compute with. Averages and quotients of ordinary numbers
    /// (16 to 24 decimal places), the product of two of them, and sums of integers fit.
    pub const RESULT: Self = Self::Decimal { precision: Self::PRECISION_MAX, scale: 44 };
    /// For tables that Lightship queries: the product of three such columns is still a decimal.
    pub const TABLE: Self = Self::Decimal { precision: Self::PRECISION_MAX, scale: 20 };
}

/// How to read infinite dates, timestamps and intervals, and decimals that are infinite or not a
/// number. Floats can hold such values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InfiniteRule {
    /// As errors.
    #[default]
    Error,
    /// As NULL.
    Null,
    /// As text: columns that could hold such values are read as the server prints them.
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
                "unknown rule `{text}`; expected decimal, decimal(P,S) with P up to {} and S up to P, string or \
                 double",
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
            other => return Err(format!("unknown rule `{other}`; expected error, null or text")),
        })
    }
}
