//! Compares two results, and describes the first difference.
//!
//! Values are compared, not their representation: widths of integers, views, and text in place of a number of
//! arbitrary precision don't matter. Doubles may differ by 1e-9 of their size, because sums depend on the order
//! of their terms. Decimals must be equal. Only quotients, which each database cuts to its own number of places,
//! may differ by less than one in the last place of the shorter one.

use std::cmp::Ordering;
use std::fmt;

use arrow_array::RecordBatch;
use arrow_buffer::i256;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::DataType;

/// The largest difference of two doubles, relative to their size.
const DOUBLE_ERROR: f64 = 1e-9;
/// A decimal with at least this many decimal places may be a quotient.
const QUOTIENT_PLACES: u32 = 6;

/// Whether the order of rows is part of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Rows must be in the same order.
    Kept,
    /// The same rows may be in any order.
    Any,
}

/// Describes the first difference for a test's message; `None` if the results are equal.
///
/// Rows in any order are sorted by columns of text, then by exact numbers, then by doubles. A result without
/// batches has no columns, and equals any result without rows.
pub fn difference(expected: &[RecordBatch], got: &[RecordBatch], order: Order) -> Option<String> {
    let kinds = match (expected.first(), got.first()) {
        (Some(expected), Some(got)) => match kinds(expected, got) {
            Ok(kinds) => kinds,
            Err(message) => return Some(message),
        },
        (one, other) => one.or(other).map(own_kinds).unwrap_or_default(),
    };
    let (mut expected, mut got) = (rows(expected, &kinds), rows(got, &kinds));
    if order == Order::Any {
        expected.sort_by(compare);
        got.sort_by(compare);
    }
    let differs = |number: &usize| !same(expected.get(*number), got.get(*number));
    let number = (0..expected.len().max(got.len())).find(differs)?;
    let counts = match expected.len() == got.len() {
        true => format!("of {} rows", got.len()),
        false => format!("{} rows instead of {}", got.len(), expected.len()),
    };
    let sorted = if order == Order::Any { ", sorted" } else { "" };
    let [expected, got] = [expected.get(number), got.get(number)].map(shown);
    Some(format!(
        "{counts}{sorted}, row {} is the first that differs:\n  expected {expected}\n  got      {got}",
        number + 1
    ))
}

/// How the values of a column are compared. Rows are sorted by columns of the first kind first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ValueKind {
    Text,
    Number,
    Double,
}

impl ValueKind {
    fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Dictionary(_, values) => Self::of(values),
            _ if data_type.is_floating() => Self::Double,
            _ if data_type.is_numeric() => Self::Number,
            _ => Self::Text,
        }
    }
}

/// The kind of each column: one that is numeric on one side is compared as numbers.
fn kinds(expected: &RecordBatch, got: &RecordBatch) -> Result<Vec<ValueKind>, String> {
    let names = |batch: &RecordBatch| {
        batch.schema_ref().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>()
    };
    let (expected_names, got_names) = (names(expected), names(got));
    if expected_names != got_names {
        return Err(format!("different columns:\n  expected {expected_names:?}\n  got      {got_names:?}"));
    }
    Ok(own_kinds(expected).into_iter().zip(own_kinds(got)).map(|(one, other)| one.max(other)).collect())
}

fn own_kinds(batch: &RecordBatch) -> Vec<ValueKind> {
    batch.columns().iter().map(|column| ValueKind::of(column.data_type())).collect()
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Null,
    Text(String),
    /// Digits, and how many of them are decimal places.
    Number(i256, u32),
    Double(f64),
}

impl Value {
    fn parse(text: String, kind: ValueKind) -> Self {
        let value = match kind {
            ValueKind::Text => None,
            ValueKind::Number => number(&text),
            ValueKind::Double => text.parse().ok().map(Self::Double),
        };
        value.unwrap_or(Self::Text(text))
    }
}

fn number(text: &str) -> Option<Value> {
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    let digits = i256::from_string(&format!("{whole}{places}"))?;
    Some(Value::Number(digits, places.len() as u32))
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Double(value) => write!(f, "{value}"),
            Self::Number(digits, places) => {
                let digits = digits.to_string();
                let (sign, digits) = digits.strip_prefix('-').map_or(("", &*digits), |digits| ("-", digits));
                let digits = format!("{digits:0>width$}", width = *places as usize + 1);
                let (whole, places) = digits.split_at(digits.len() - *places as usize);
                let point = if places.is_empty() { "" } else { "." };
                write!(f, "{sign}{whole}{point}{places}")
            }
        }
    }
}

type Row = Vec<Value>;

fn rows(batches: &[RecordBatch], kinds: &[ValueKind]) -> Vec<Row> {
    let options = FormatOptions::new();
    let mut rows = Vec::new();
    for batch in batches {
        assert_eq!(batch.num_columns(), kinds.len(), "batches of one result have the same columns");
        let formatters = batch.columns().iter().map(|column| {
            ArrayFormatter::try_new(column.as_ref(), &options).expect("every type can be shown")
        });
        let formatters: Vec<_> = formatters.collect();
        rows.extend((0..batch.num_rows()).map(|row| {
            let cells = batch.columns().iter().zip(&formatters).zip(kinds);
            cells
                .map(|((column, formatter), kind)| match column.is_null(row) {
                    true => Value::Null,
                    false => Value::parse(formatter.value(row).to_string(), *kind),
                })
                .collect::<Row>()
        }));
    }
    rows
}

fn same(expected: Option<&Row>, got: Option<&Row>) -> bool {
    let (Some(expected), Some(got)) = (expected, got) else { return false };
    expected.iter().zip(got).all(|(expected, got)| match (expected, got) {
        (Value::Double(one), Value::Double(other)) => {
            one == other
                || one.is_nan() && other.is_nan()
                || (one - other).abs() <= DOUBLE_ERROR * one.abs().max(other.abs())
        }
        (Value::Number(one, places), Value::Number(other, other_places)) => {
            let (less, more) = (*places.min(other_places), *places.max(other_places));
            let Some((one, other)) = aligned((*one, *places), (*other, *other_places)) else { return false };
            let quotient = less >= QUOTIENT_PLACES && more > less;
            let last = if quotient { ten_to(more - less).unwrap_or(i256::ONE) } else { i256::ONE };
            one.wrapping_sub(other).wrapping_abs() < last
        }
        (one, other) => one == other,
    })
}

/// The digits of both with the same number of decimal places, unless they overflow.
fn aligned((one, places): (i256, u32), (other, other_places): (i256, u32)) -> Option<(i256, i256)> {
    let most = places.max(other_places);
    let moved = |digits: i256, places| digits.checked_mul(ten_to(most - places)?);
    Some((moved(one, places)?, moved(other, other_places)?))
}

fn ten_to(power: u32) -> Option<i256> {
    i256::from_i128(10).checked_pow(power)
}

fn compare(one: &Row, other: &Row) -> Ordering {
    let by = |kind: ValueKind| {
        let pairs =
            one.iter().zip(other).filter(move |(one, other)| kind_of(one).max(kind_of(other)) == kind);
        pairs.map(|(one, other)| compare_values(one, other)).find(|order| order.is_ne())
    };
    by(ValueKind::Text)
        .or_else(|| by(ValueKind::Number))
        .or_else(|| by(ValueKind::Double))
        .unwrap_or(Ordering::Equal)
}

fn kind_of(value: &Value) -> ValueKind {
    match value {
        Value::Null | Value::Text(_) => ValueKind::Text,
        Value::Number(..) => ValueKind::Number,
        Value::Double(_) => ValueKind::Double,
    }
}

fn compare_values(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Text(one), Value::Text(other)) => one.cmp(other),
        (Value::Double(one), Value::Double(other)) => one.total_cmp(other),
        (Value::Number(one, places), Value::Number(other, other_places)) => {
            aligned((*one, *places), (*other, *other_places))
                .map_or(Ordering::Equal, |(one, other)| one.cmp(&other))
        }
        (Value::Null, Value::Null) => Ordering::Equal,
        (Value::Null, _) => Ordering::Less,
        (_, Value::Null) => Ordering::Greater,
        (one, other) => kind_of(one).cmp(&kind_of(other)),
    }
}

fn shown(row: Option<&Row>) -> String {
    row.map_or("no row".into(), |row| row.iter().map(Value::to_string).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use std::slice;
    use std::sync::Arc;

    use arrow_array::*;

    use super::*;

    fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
        RecordBatch::try_from_iter(
            columns.into_iter().zip('a'..).map(|(column, name)| (name.to_string(), column)),
        )
        .expect("columns of one length")
    }

    fn check(expected: ArrayRef, got: ArrayRef, order: Order) -> Option<String> {
        difference(&[batch(vec![expected])], &[batch(vec![got])], order)
    }

    fn decimals(values: &[i128], scale: i8) -> ArrayRef {
        let array = Decimal128Array::from_iter_values(values.iter().copied());
        Arc::new(array.with_precision_and_scale(38, scale).expect("a decimal"))
    }

    fn doubles(values: &[f64]) -> ArrayRef {
        Arc::new(Float64Array::from(values.to_vec()))
    }

    fn texts(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    #[test]
    fn equal_values_in_different_representations_are_equal() {
        let same: [(ArrayRef, ArrayRef); 9] = [
            (Arc::new(Int32Array::from(vec![1, -7])), Arc::new(Int64Array::from(vec![1, -7]))),
            (Arc::new(Int32Array::from(vec![1995])), texts(&["1995"])),
            (texts(&["x", ""]), Arc::new(StringViewArray::from(vec!["x", ""]))),
            (decimals(&[150, -7], 2), decimals(&[1500, -70], 3)),
            (decimals(&[-25_537_587], 6), texts(&["-25.5375871168549970"])),
            (decimals(&[12_345], 2), doubles(&[123.450_000_000_01])),
            (doubles(&[1e300, f64::NAN, 0.0]), doubles(&[1.000_000_000_1e300, f64::NAN, -0.0])),
            (doubles(&[23_512.752_857_142_856]), texts(&["23512.752857142857"])),
            (
                Arc::new(Int64Array::from(vec![None, Some(2)])),
                Arc::new(Int64Array::from(vec![None, Some(2)])),
            ),
        ];
        for (expected, got) in same {
            assert_eq!(check(expected.clone(), got.clone(), Order::Kept), None);
            assert_eq!(check(got, expected, Order::Any), None);
        }
    }

    #[test]
    fn different_values_are_found() {
        let other: [(ArrayRef, ArrayRef); 9] = [
            (decimals(&[150], 2), decimals(&[151], 2)),
            (decimals(&[15], 1), decimals(&[159], 2)),
            (decimals(&[25_537_587], 6), texts(&["25.5375881"])),
            (doubles(&[1.0]), doubles(&[1.000_000_01])),
            (doubles(&[1.0]), doubles(&[f64::NAN])),
            (texts(&["a"]), texts(&["a "])),
            (texts(&["1.0"]), texts(&["1"])),
            (Arc::new(Int64Array::from(vec![None])), Arc::new(Int64Array::from(vec![0]))),
            (texts(&["n/a"]), Arc::new(Int64Array::from(vec![0]))),
        ];
        for (expected, got) in other {
            assert!(check(expected.clone(), got.clone(), Order::Kept).is_some(), "{expected:?} {got:?}");
            assert!(check(got, expected, Order::Any).is_some());
        }
    }

    #[test]
    fn row_order_matters_only_if_it_is_kept() {
        let (one, other) = (texts(&["a", "b", "b"]), texts(&["b", "a", "b"]));
        assert_eq!(check(one.clone(), other.clone(), Order::Any), None);
        let message = check(one.clone(), other, Order::Kept).expect("another order");
        assert_eq!(
            message,
            "of 3 rows, row 1 is the first that differs:\n  expected \"a\"\n  got      \"b\""
        );
        // Duplicates count.
        assert!(check(one, texts(&["a", "a", "b"]), Order::Any).is_some());
    }

    #[test]
    fn rows_are_sorted_by_text_before_doubles() {
        let expected = batch(vec![doubles(&[1.0, 1.0 + 1e-12]), texts(&["x", "y"])]);
        let got = batch(vec![doubles(&[1.0, 1.0 + 1e-12]), texts(&["y", "x"])]);
        assert_eq!(difference(&[expected], &[got], Order::Any), None);
    }

    #[test]
    fn missing_rows_are_found() {
        let (one, two) = (batch(vec![decimals(&[-5], 2)]), batch(vec![decimals(&[1050], 2)]));
        let message =
            difference(&[one.clone(), two.clone()], slice::from_ref(&one), Order::Any).expect("fewer rows");
        let words = "1 rows instead of 2, sorted, row 2 is the first that differs:\n  expected 10.50\n  got      no row";
        assert_eq!(message, words);
        assert!(
            difference(&[], slice::from_ref(&one), Order::Any)
                .is_some_and(|message| message.contains("-0.05"))
        );
        assert_eq!(difference(&[], &[two.slice(0, 0)], Order::Kept), None);
        assert_eq!(difference(&[two.clone(), one.clone()], &[one, two], Order::Any), None);
    }

    #[test]
    fn different_columns_are_found() {
        let (one, two) = (batch(vec![doubles(&[])]), batch(vec![doubles(&[]), texts(&[])]));
        assert!(
            difference(&[one], &[two], Order::Any)
                .is_some_and(|message| message.contains("different columns"))
        );
    }
}
