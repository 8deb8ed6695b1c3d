//! Options for values of a database that Arrow's types can't all hold.

use std::str::FromStr;

use clap::Args;
use lightship::{InfiniteRule, NumericRule, Options};
use lightship_sources::ReadOptions;
use serde::Deserialize;

/// How to convert values of a database that Arrow's types can't all hold.
#[derive(Args, Default, Debug, Clone, Copy)]
pub(crate) struct ValueArgs {
    /// Type of PostgreSQL's numeric without a precision: decimal, decimal(P,S), string or double.
    /// [default: decimal]
    ///
    /// Sums, averages and quotients of numeric have no precision either. decimal is decimal(76,44) in a
    /// result, which holds the results of ordinary arithmetic exactly, and decimal(76,20) in a table of
    /// a node, which leaves room for products. A value that does not fit is an error. string holds all
    /// values, as text; double rounds. Many readers of Parquet support at most 38 digits.
    #[arg(long, value_name = "RULE")]
    pub(crate) numeric: Option<Numeric>,
    /// How to read PostgreSQL's infinite dates, timestamps and intervals, and decimals that are infinite
    /// or NaN: error, null or text. [default: error]
    ///
    /// error fails the query, null reads them as NULL, and text makes all columns of these types text.
    #[arg(long, value_name = "RULE")]
    pub(crate) infinite: Option<Infinite>,
}

impl ValueArgs {
    /// The options of a transfer with these rules.
    pub(crate) fn options(self) -> Options {
        self.options_with(NumericRule::RESULT)
    }

    /// How tables of a node are read.
    pub(crate) fn table_options(self) -> ReadOptions {
        self.options_with(NumericRule::TABLE).read_options(NumericRule::TABLE)
    }

    /// `decimal` is what `--numeric decimal` means.
    fn options_with(self, decimal: NumericRule) -> Options {
        Options {
            numeric: self.numeric.map(|Numeric(given)| given.unwrap_or(decimal)),
            infinite: self.infinite.map(|Infinite(given)| given),
            ..Options::default()
        }
    }

    /// Takes `numeric=...` or `infinite=...` from a URI, which overrides the option. Returns whether
    /// `pair` was one of them.
    ///
    /// # Errors
    /// If the value is not a known rule.
    pub(crate) fn take(&mut self, pair: &str) -> Result<bool, String> {
        match pair.split_once('=') {
            Some(("numeric", value)) => self.numeric = Some(value.parse()?),
            Some(("infinite", value)) => self.infinite = Some(value.parse()?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A rule for numbers; `None` is a decimal of the default size.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) struct Numeric(Option<NumericRule>);

impl FromStr for Numeric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "decimal" { Ok(Self(None)) } else { text.parse().map(|rule| Self(Some(rule))) }
    }
}

impl TryFrom<String> for Numeric {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A rule for values that are infinite or not a number.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) struct Infinite(InfiniteRule);

impl FromStr for Infinite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl TryFrom<String> for Infinite {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_parsed() {
        let rule = |text: &str| text.parse::<Numeric>().ok();
        assert_eq!(rule("decimal"), Some(Numeric(None)));
        assert_eq!(rule("string"), Some(Numeric(Some(NumericRule::String))));
        let decimal = |precision, scale| Some(Numeric(Some(NumericRule::Decimal { precision, scale })));
        assert_eq!(rule("decimal(38,10)"), decimal(38, 10));
        assert_eq!(rule("decimal(76, 0)"), decimal(76, 0));
        for wrong in
            ["", "float", "decimal(77,1)", "decimal(0,0)", "decimal(5,6)", "decimal(5)", "decimal(5,-1)"]
        {
            assert_eq!(rule(wrong), None, "{wrong}");
        }
        let mut values = ValueArgs::default();
        assert_eq!(values.take("numeric=double"), Ok(true));
        assert_eq!(values.take("sslmode=require"), Ok(false));
        assert!(values.take("infinite=maybe").is_err());
        let read = values.table_options();
        assert_eq!((read.numeric, read.infinite), (NumericRule::Double, InfiniteRule::Error));
    }
}
