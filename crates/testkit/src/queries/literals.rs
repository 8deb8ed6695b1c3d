//! Literals to compare a column with: its own values, values near them, and values of other types.

use arrow_array::Array;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::DataType;

use super::tables::TEXTS;
use crate::rng::Rng;

/// Classes of types. Values within a class can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Integer,
    Float,
    Decimal,
    Text,
    Boolean,
    Date,
    Timestamp,
    Time,
    Bytes,
    /// Spans of time.
    Span,
    /// Types that are not compared: nested types, and the type of NULL.
    Other,
}

impl Class {
    pub(super) fn of(data_type: &DataType) -> Self {
        use DataType::*;
        match data_type {
            Dictionary(_, values) => Self::of(values),
            Float16 | Float32 | Float64 => Self::Float,
            Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => Self::Decimal,
            Utf8 | LargeUtf8 | Utf8View => Self::Text,
            Boolean => Self::Boolean,
            Date32 | Date64 => Self::Date,
            Timestamp(..) => Self::Timestamp,
            Time32(_) | Time64(_) => Self::Time,
            Binary | LargeBinary | BinaryView | FixedSizeBinary(_) => Self::Bytes,
            Duration(_) | Interval(_) => Self::Span,
            other if other.is_integer() => Self::Integer,
            _ => Self::Other,
        }
    }

    pub(super) fn is_sortable(self) -> bool {
        self != Self::Other
    }

    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Integer | Self::Float | Self::Decimal)
    }
}

const INTEGERS: &[&str] = &[
    "0",
    "1",
    "(-1)",
    "2",
    "127",
    "128",
    "255",
    "256",
    "(-129)",
    "32767",
    "32768",
    "65535",
    "2147483647",
    "2147483648",
    "(-2147483648)",
    "4294967295",
    "9223372036854775807",
    "18446744073709551615",
    "9007199254740993",
];
const FLOATS: &[&str] = &[
    "0.0",
    "(-0.0)",
    "0.1",
    "0.5",
    "1.5",
    "1e10",
    "1e308",
    "(-1e308)",
    "cast('NaN' as double)",
    "cast('inf' as double)",
    "cast('-inf' as double)",
    "cast(0.1 as float)",
    "16777216.0",
    "9007199254740992.0",
];
const DECIMALS: &[&str] = &[
    "cast(1.5 as decimal(3,1))",
    "cast('0.01' as decimal(38,10))",
    "cast('99999999999999999999999999999999999999' as decimal(38,0))",
    "cast(0 as decimal(10,5))",
    "1.50",
    "0.001",
];
const DATES: &[&str] = &[
    "date '1970-01-01'",
    "date '2024-02-29'",
    "date '0001-01-01'",
    "date '9999-12-31'",
    "date '2024-03-01'",
    "date '1969-12-31'",
];
const TIMESTAMPS: &[&str] = &[
    "timestamp '1970-01-01 00:00:00'",
    "timestamp '2024-02-29 12:00:00.5'",
    "timestamp '2024-02-29 12:00:00.000001'",
    "timestamp '1999-12-31 23:59:59.999999'",
    "timestamp '2024-02-29 00:00:00'",
    "timestamp '2024-07-01T10:00:00Z'",
];
const TIMES: &[&str] =
    &["time '00:00:00'", "time '12:00:00'", "time '23:59:59.999999'", "time '12:00:00.000001'"];
const BYTES: &[&str] = &["X'00ff'", "X''", "X'61'", "X'5c'", "X'612020'"];
const SPANS: &[&str] =
    &["interval '1 day'", "interval '24 hours'", "interval '1 month'", "interval '0 seconds'"];

/// A text as a literal.
pub(super) fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A literal to compare a column with.
pub(super) fn any(rng: &mut Rng, column: &dyn Array) -> String {
    let class = Class::of(column.data_type());
    match rng.below(20) {
        0..=9 => own(rng, column, class).unwrap_or_else(|| of_class(rng, class)),
        10..=11 => near(rng, column, class).unwrap_or_else(|| of_class(rng, class)),
        12..=17 => of_class(rng, class),
        18 => {
            let classes =
                [Class::Integer, Class::Float, Class::Decimal, Class::Text, Class::Date, Class::Timestamp];
            let other = *rng.pick(&classes);
            of_class(rng, other)
        }
        _ => "null".into(),
    }
}

/// A typical literal of a class.
pub(super) fn of_class(rng: &mut Rng, class: Class) -> String {
    let literals = match class {
        Class::Integer => INTEGERS,
        Class::Float => FLOATS,
        Class::Decimal => DECIMALS,
        Class::Date => DATES,
        Class::Timestamp => TIMESTAMPS,
        Class::Time => TIMES,
        Class::Bytes => BYTES,
        Class::Span => SPANS,
        Class::Boolean => &["true", "false"],
        Class::Text | Class::Other => return text(rng.pick::<&str>(&TEXTS)),
    };
    (*rng.pick(literals)).to_owned()
}

/// A random value of the column as text.
pub(super) fn sample(rng: &mut Rng, column: &dyn Array) -> Option<String> {
    if column.is_empty() {
        return None;
    }
    let row = rng.below(column.len());
    if column.is_null(row) {
        return None;
    }
    let formatter = ArrayFormatter::try_new(column, &FormatOptions::new()).ok()?;
    formatter.value(row).try_to_string().ok()
}

fn own(rng: &mut Rng, column: &dyn Array, class: Class) -> Option<String> {
    let sample = sample(rng, column)?;
    // Any type can be compared with one of its values as text.
    if rng.one_in(4) && class != Class::Bytes {
        return Some(text(&sample));
    }
    Some(match class {
        Class::Integer | Class::Decimal | Class::Boolean => format!("({sample})"),
        Class::Float if sample.contains(['N', 'i']) => format!("cast('{sample}' as double)"),
        Class::Float => format!("({sample})"),
        Class::Date => format!("date '{}'", sample.split('T').next().unwrap_or_default()),
        Class::Timestamp => format!("timestamp '{sample}'"),
        Class::Time => format!("time '{sample}'"),
        Class::Bytes => format!("X'{sample}'"),
        Class::Text | Class::Span | Class::Other => text(&sample),
    })
}

/// A value that differs little from one of the column.
fn near(rng: &mut Rng, column: &dyn Array, class: Class) -> Option<String> {
    let sample = sample(rng, column)?;
    Some(match class {
        Class::Text => text(&match rng.below(6) {
            0 => sample.to_uppercase(),
            1 => sample.to_lowercase(),
            2 => format!("{sample} "),
            3 => sample.trim().to_owned(),
            4 => sample.chars().rev().skip(1).collect::<Vec<_>>().into_iter().rev().collect(),
            _ => format!("{sample}\\"),
        }),
        Class::Integer | Class::Decimal => match rng.below(3) {
            0 => format!("({sample} + 1)"),
            1 if class == Class::Integer => format!("({sample}.5)"),
            _ => text(&format!(" {sample}")),
        },
        _ => return None,
    })
}

/// A pattern for LIKE that a value of the column may match.
pub(super) fn pattern(rng: &mut Rng, column: &dyn Array) -> String {
    let sample = sample(rng, column).unwrap_or_else(|| (*rng.pick(&TEXTS)).to_owned());
    let chars: Vec<char> = sample.chars().collect();
    let cut = rng.below(chars.len() + 1);
    let (before, after): (String, String) = (chars[..cut].iter().collect(), chars[cut..].iter().collect());
    text(&match rng.below(6) {
        0 => format!("{before}%"),
        1 => format!("%{after}"),
        2 => format!("{before}_{}", chars[(cut + 1).min(chars.len())..].iter().collect::<String>()),
        3 => format!("%{before}%"),
        4 => sample.replace('%', "\\%").replace('_', "\\_"),
        _ => sample,
    })
}
