//! The columns that several answers have in common.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_cast::{CastOptions, can_cast_types, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef};

use crate::error::{CliError, Kind};

/// Digits of a `Decimal128` and of a `Decimal256`.
const DIGITS_MAX_128: u8 = 38;
const DIGITS_MAX_256: u8 = 76;

/// The schema that holds the rows of all answers without loss; an answer alone keeps its own.
///
/// # Errors
/// Where there is none: what differs, and at which two places.
pub(super) fn unite(answers: &[(&str, SchemaRef)]) -> Result<SchemaRef, CliError> {
    let [(place, first), others @ ..] = answers else {
        return Err(CliError::internal("no place was asked"));
    };
    if others.iter().all(|(_, schema)| schema == first) {
        return Ok(first.clone());
    }
    let columns = |schema: &Schema| match schema.fields().len() {
        1 => "1 column".to_owned(),
        count => format!("{count} columns"),
    };
    if let Some((other, schema)) = others.iter().find(|(_, s)| s.fields().len() != first.fields().len()) {
        let message =
            format!("the answers don't fit: {} at {place}, {} at {other}", columns(first), columns(schema));
        return Err(CliError::new(Kind::Data, message).hint("name the columns in the SQL, instead of *"));
    }
    let fields = (0..first.fields().len()).map(|at| column(answers, at)).collect::<Result<Vec<_>, _>>()?;
    let metadata = others.iter().fold(first.metadata().clone(), |all, (_, s)| shared(all, s.metadata()));
    Ok(Arc::new(Schema::new_with_metadata(fields, metadata)))
}

/// The column at this place, from 0, of all answers.
fn column(answers: &[(&str, SchemaRef)], at: usize) -> Result<Field, CliError> {
    let (first_place, first) = (answers[0].0, answers[0].1.field(at));
    let mut united = first.clone();
    for (i, (place, schema)) in answers.iter().enumerate().skip(1) {
        let field = schema.field(at);
        let number = at + 1;
        if field.name() != first.name() {
            let (one, other) = (first.name(), field.name());
            let message = format!(
                "the answers don't fit: column {number} is `{one}` at {first_place}, `{other}` at {place}"
            );
            let hint = format!("name it in the SQL, as in `… as {one}`, and list the columns instead of *");
            return Err(CliError::new(Kind::Data, message).hint(hint));
        }
        united = common_field(&united, field).ok_or_else(|| {
            // The one that it does not go with; where all of them together are too much, the first.
            let type_at = |i: usize| answers[i].1.field(at).data_type();
            let with = (0..i).find(|&j| common(type_at(j), field.data_type()).is_none()).unwrap_or(0);
            let message = format!(
                "the answers don't fit: column {number}, `{}`, is {} at {}, {} at {place}",
                field.name(),
                type_at(with),
                answers[with].0,
                field.data_type(),
            );
            let hint =
                format!("cast it in the SQL, so that all answer the same: cast({} as …)", field.name());
            CliError::new(Kind::Data, message).hint(hint)
        })?;
    }
    Ok(united)
}

/// Under the name of the first.
fn common_field(a: &Field, b: &Field) -> Option<Field> {
    let data_type = common(a.data_type(), b.data_type())?;
    let castable = can_cast_types(a.data_type(), &data_type) && can_cast_types(b.data_type(), &data_type);
    let nullable = a.is_nullable() || b.is_nullable() || a.data_type().is_null() || b.data_type().is_null();
    let field = Field::new(a.name(), data_type, nullable);
    castable.then(|| field.with_metadata(shared(a.metadata().clone(), b.metadata())))
}

/// What both say: a column is not of an extension type if half of it is not.
fn shared(mut a: HashMap<String, String>, b: &HashMap<String, String>) -> HashMap<String, String> {
    a.retain(|key, value| b.get(key) == Some(value));
    a
}

/// The smallest type that has every value of both, where that is plain to see.
fn common(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{
        Binary, BinaryView, Dictionary, LargeBinary, LargeList, LargeUtf8, List, Null, Struct, Timestamp,
        Utf8, Utf8View,
    };
    let field = |a: &FieldRef, b: &FieldRef| common_field(a, b).map(Arc::new);
    match (a, b) {
        (a, b) if a == b => Some(a.clone()),
        (Null, other) | (other, Null) => Some(other.clone()),
        (Dictionary(_, values), other) | (other, Dictionary(_, values)) => common(values, other),
        // Views are no shape that all readers know.
        (Utf8 | Utf8View, Utf8 | Utf8View) => Some(Utf8),
        (Utf8 | LargeUtf8 | Utf8View, Utf8 | LargeUtf8 | Utf8View) => Some(LargeUtf8),
        (Binary | BinaryView, Binary | BinaryView) => Some(Binary),
        (Binary | LargeBinary | BinaryView, Binary | LargeBinary | BinaryView) => Some(LargeBinary),
        (Timestamp(unit, Some(a)), Timestamp(other, Some(b))) if unit == other && is_utc(a) && is_utc(b) => {
            Some(Timestamp(*unit, Some("UTC".into())))
        }
        (List(a), List(b)) => field(a, b).map(List),
        (LargeList(a), LargeList(b)) => field(a, b).map(LargeList),
        (Struct(a), Struct(b)) => {
            let same = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.name() == b.name());
            let fields = || a.iter().zip(b).map(|(a, b)| field(a, b)).collect::<Option<Fields>>();
            same.then(fields)?.map(Struct)
        }
        (a, b) if a.is_integer() && b.is_integer() => common_integer(a, b),
        (a, b) if a.is_floating() && b.is_floating() => {
            Some(if a.primitive_width() > b.primitive_width() { a.clone() } else { b.clone() })
        }
        (a, b) => common_decimal(a, b),
    }
}

fn is_utc(zone: &str) -> bool {
    matches!(zone, "UTC" | "Etc/UTC" | "Z" | "+00:00" | "+00")
}

fn common_integer(a: &DataType, b: &DataType) -> Option<DataType> {
    let (a_bytes, b_bytes) = (a.primitive_width()?, b.primitive_width()?);
    if a.is_signed_integer() == b.is_signed_integer() {
        return Some(if a_bytes > b_bytes { a.clone() } else { b.clone() });
    }
    let (signed, unsigned) = if a.is_signed_integer() { (a_bytes, b_bytes) } else { (b_bytes, a_bytes) };
    match signed.max(2 * unsigned) {
        2 => Some(DataType::Int16),
        4 => Some(DataType::Int32),
        8 => Some(DataType::Int64),
        _ => None,
    }
}

/// Of two decimals, or a decimal and an integer.
fn common_decimal(a: &DataType, b: &DataType) -> Option<DataType> {
    if !a.is_decimal() && !b.is_decimal() {
        return None;
    }
    let ((a_whole, a_scale), (b_whole, b_scale)) = (digits(a)?, digits(b)?);
    let scale = a_scale.max(b_scale);
    let precision = u8::try_from(a_whole.max(b_whole) + i16::from(scale)).ok()?;
    if (1..=DIGITS_MAX_128).contains(&precision) {
        return Some(DataType::Decimal128(precision, scale));
    }
    (1..=DIGITS_MAX_256).contains(&precision).then_some(DataType::Decimal256(precision, scale))
}

/// Digits before the point, and behind it.
fn digits(number: &DataType) -> Option<(i16, i8)> {
    use DataType::{
        Decimal32, Decimal64, Decimal128, Decimal256, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32,
        UInt64,
    };
    Some(match *number {
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => (i16::from(precision) - i16::from(scale), scale),
        Int8 | UInt8 => (3, 0),
        Int16 | UInt16 => (5, 0),
        Int32 | UInt32 => (10, 0),
        Int64 => (19, 0),
        UInt64 => (20, 0),
        _ => return None,
    })
}

/// Rows of one answer as rows of all.
pub(super) fn fit(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    // Nothing becomes NULL because it does not fit.
    let exact = CastOptions { safe: false, ..CastOptions::default() };
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| cast_with_options(column, field.data_type(), &exact));
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns.collect::<Result<_, _>>()?, &rows)
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Decimal128Array, Int32Array, Int64Array, NullArray, StringArray};
    use arrow_schema::{DataType::*, TimeUnit};

    use super::*;

    fn schema(columns: &[(&str, DataType, bool)]) -> SchemaRef {
        let fields =
            columns.iter().map(|(name, data_type, nullable)| Field::new(*name, data_type.clone(), *nullable));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    #[test]
    fn types_that_have_one_in_common() {
        let dictionary = Dictionary(Box::new(Int8), Box::new(Utf8));
        let utc = |zone: &str| Timestamp(TimeUnit::Microsecond, Some(zone.into()));
        let list = |name, data_type| List(Arc::new(Field::new(name, data_type, false)));
        let cases = [
            (Int32, Int64, Some(Int64)),
            (UInt8, UInt32, Some(UInt32)),
            (UInt32, Int8, Some(Int64)),
            (UInt8, Int8, Some(Int16)),
            (UInt8, Int64, Some(Int64)),
            (UInt64, Int64, None),
            (Float32, Float64, Some(Float64)),
            (Int32, Float64, None),
            (Null, Boolean, Some(Boolean)),
            (Utf8, LargeUtf8, Some(LargeUtf8)),
            (Utf8, Utf8View, Some(Utf8)),
            (Utf8View, LargeUtf8, Some(LargeUtf8)),
            (BinaryView, Binary, Some(Binary)),
            (Utf8, Binary, None),
            (dictionary.clone(), dictionary.clone(), Some(dictionary.clone())),
            (dictionary.clone(), Utf8, Some(Utf8)),
            (dictionary.clone(), Dictionary(Box::new(Int32), Box::new(Utf8)), Some(Utf8)),
            (dictionary, Int8, None),
            (Decimal128(12, 2), Decimal128(38, 10), Some(Decimal128(38, 10))),
            (Decimal128(38, 2), Decimal128(38, 10), Some(Decimal256(46, 10))),
            (Decimal256(76, 0), Decimal256(76, 1), None),
            (Decimal128(5, 2), Int64, Some(Decimal128(21, 2))),
            (Decimal128(5, -2), Decimal128(4, -3), Some(Decimal128(5, -2))),
            (Decimal128(5, 2), Float64, None),
            (utc("UTC"), utc("+00:00"), Some(utc("UTC"))),
            (utc("UTC"), utc("Europe/Berlin"), None),
            (utc("UTC"), Timestamp(TimeUnit::Microsecond, None), None),
            (Timestamp(TimeUnit::Second, None), Timestamp(TimeUnit::Nanosecond, None), None),
            (Date32, Timestamp(TimeUnit::Second, None), None),
            (list("item", Int32), list("element", Int64), Some(list("item", Int64))),
            (list("item", Int32), list("item", Utf8), None),
        ];
        for (a, b, expected) in cases {
            assert_eq!(common(&a, &b), expected, "{a} with {b}");
            // A list's element has the name of the first; all else is the same the other way round.
            if !a.is_nested() || expected.is_none() {
                assert_eq!(common(&b, &a), expected, "{b} with {a}");
            }
        }
    }

    #[test]
    fn rows_are_the_same_afterwards() {
        let narrow = schema(&[("a", Int32, false), ("b", Null, true), ("c", Decimal128(4, 1), false)]);
        let wide = schema(&[("a", Int64, true), ("b", Utf8, false), ("c", Decimal128(6, 2), true)]);
        let united = unite(&[("x", narrow.clone()), ("y", wide)]).expect("one schema");
        assert_eq!(united, schema(&[("a", Int64, true), ("b", Utf8, true), ("c", Decimal128(6, 2), true)]));
        let decimals = |values: Vec<i128>, precision, scale| {
            Arc::new(
                Decimal128Array::from(values).with_precision_and_scale(precision, scale).expect("decimals"),
            )
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![i32::MIN, 7])),
            Arc::new(NullArray::new(2)),
            decimals(vec![9999, -1], 4, 1),
        ];
        let batch = RecordBatch::try_new(narrow, columns).expect("a batch");
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![i64::from(i32::MIN), 7])),
            Arc::new(StringArray::from(vec![None::<&str>; 2])),
            decimals(vec![99990, -10], 6, 2),
        ];
        assert_eq!(
            fit(&batch, &united).expect("fits"),
            RecordBatch::try_new(united, columns).expect("a batch")
        );
    }

    #[test]
    fn rows_without_columns_stay() {
        let (plain, tagged) =
            (Schema::empty(), Schema::empty().with_metadata([("k".into(), "v".into())].into()));
        let united = unite(&[("x", Arc::new(plain)), ("y", Arc::new(tagged.clone()))]).expect("one schema");
        assert!(united.metadata().is_empty());
        let rows = RecordBatchOptions::new().with_row_count(Some(7));
        let batch = RecordBatch::try_new_with_options(Arc::new(tagged), vec![], &rows).expect("a batch");
        assert_eq!(fit(&batch, &united).expect("fits").num_rows(), 7);
    }

    #[test]
    fn what_differs_is_said() {
        let one = schema(&[("a", Int32, false), ("b", Utf8, true)]);
        let cases = [
            (&[("a", Int32, false)] as &[_], &["2 columns at x", "1 column at z"] as &[_]),
            (&[("a", Int32, false), ("B", Utf8, true)], &["column 2 is `b` at x, `B` at z"]),
            (&[("a", Int32, false), ("b", Date32, true)], &["column 2, `b`, is Utf8 at x, Date32 at z"]),
        ];
        for (other, words) in cases {
            let error =
                unite(&[("x", one.clone()), ("y", one.clone()), ("z", schema(other))]).expect_err("no");
            assert_eq!(error.kind, Kind::Data);
            assert!(error.hint.is_some());
            for word in words {
                assert!(error.message.contains(word), "no `{word}` in {}", error.message);
            }
        }
    }
}
