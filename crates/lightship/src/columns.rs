//! Finds common columns for the results of several sources.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_cast::CastOptions;
use arrow_schema::{ArrowError, Field, Schema, SchemaRef};
use lightship_sources::{common_field, common_metadata, common_type};

use crate::{Error, ErrorKind, Result};

/// The schema that holds the rows of all results without loss. A single result keeps its own schema.
///
/// # Errors
/// If there is no such schema. The error names the first difference, and two sources that differ.
pub(crate) fn unite(answers: &[(&str, SchemaRef)]) -> Result<SchemaRef> {
    let [(place, first), others @ ..] = answers else {
        return Err(Error::new(ErrorKind::Internal, "no source was queried"));
    };
    if others.iter().all(|(_, schema)| schema == first) {
        return Ok(first.clone());
    }
    let columns = |schema: &Schema| match schema.fields().len() {
        1 => "1 column".to_owned(),
        count => format!("{count} columns"),
    };
    if let Some((other, schema)) = others.iter().find(|(_, s)| s.fields().len() != first.fields().len()) {
        let message = format!(
            "the sources return different columns: {} at {place}, {} at {other}",
            columns(first),
            columns(schema)
        );
        return Err(Error::new(ErrorKind::Data, message).hint("list the columns in the SQL instead of *"));
    }
    let fields = (0..first.fields().len()).map(|at| column(answers, at)).collect::<Result<Vec<_>, _>>()?;
    let metadata =
        others.iter().fold(first.metadata().clone(), |all, (_, s)| common_metadata(all, s.metadata()));
    Ok(Arc::new(Schema::new_with_metadata(fields, metadata)))
}

/// The common column for position `at`, from 0.
fn column(answers: &[(&str, SchemaRef)], at: usize) -> Result<Field> {
    let (first_place, first) = (answers[0].0, answers[0].1.field(at));
    let mut united = first.clone();
    for (i, (place, schema)) in answers.iter().enumerate().skip(1) {
        let field = schema.field(at);
        let number = at + 1;
        if field.name() != first.name() {
            let (one, other) = (first.name(), field.name());
            let message = format!(
                "the sources return different columns: column {number} is `{one}` at {first_place}, \
                 `{other}` at {place}"
            );
            let hint = format!("rename it in the SQL, as in `… as {one}`, and list the columns instead of *");
            return Err(Error::new(ErrorKind::Data, message).hint(hint));
        }
        united = common_field(&united, field).ok_or_else(|| {
            // The first type that this one has no common type with; the first of all if only the
            // combination fails.
            let type_at = |i: usize| answers[i].1.field(at).data_type();
            let with = (0..i).find(|&j| common_type(type_at(j), field.data_type()).is_none()).unwrap_or(0);
            let message = format!(
                "the sources return different columns: column {number}, `{}`, is {} at {}, {} at {place}",
                field.name(),
                type_at(with),
                answers[with].0,
                field.data_type(),
            );
            let hint = format!(
                "cast it in the SQL so that all sources return the same type: cast({} as …)",
                field.name()
            );
            Error::new(ErrorKind::Data, message).hint(hint)
        })?;
    }
    Ok(united)
}

/// Casts a batch of one result to the common columns.
pub(crate) fn cast(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    // Fail instead of replacing a value that does not fit by NULL.
    let exact = CastOptions { safe: false, ..CastOptions::default() };
    let columns = batch.columns().iter().zip(schema.fields());
    let columns =
        columns.map(|(column, field)| arrow_cast::cast_with_options(column, field.data_type(), &exact));
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns.collect::<Result<_, _>>()?, &rows)
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Decimal128Array, Int32Array, Int64Array, NullArray, StringArray};
    use arrow_schema::DataType::{self, *};

    use super::*;

    fn schema(columns: &[(&str, DataType, bool)]) -> SchemaRef {
        let fields =
            columns.iter().map(|(name, data_type, nullable)| Field::new(*name, data_type.clone(), *nullable));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    #[test]
    fn casting_keeps_the_values() {
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
            cast(&batch, &united).expect("fits"),
            RecordBatch::try_new(united, columns).expect("a batch")
        );
    }

    #[test]
    fn rows_without_columns_are_kept() {
        let (plain, tagged) =
            (Schema::empty(), Schema::empty().with_metadata([("k".into(), "v".into())].into()));
        let united = unite(&[("x", Arc::new(plain)), ("y", Arc::new(tagged.clone()))]).expect("one schema");
        assert!(united.metadata().is_empty());
        let rows = RecordBatchOptions::new().with_row_count(Some(7));
        let batch = RecordBatch::try_new_with_options(Arc::new(tagged), vec![], &rows).expect("a batch");
        assert_eq!(cast(&batch, &united).expect("fits").num_rows(), 7);
    }

    #[test]
    fn the_error_names_the_difference() {
        let one = schema(&[("a", Int32, false), ("b", Utf8, true)]);
        let cases = [
            (&[("a", Int32, false)] as &[_], &["2 columns at x", "1 column at z"] as &[_]),
            (&[("a", Int32, false), ("B", Utf8, true)], &["column 2 is `b` at x, `B` at z"]),
            (&[("a", Int32, false), ("b", Date32, true)], &["column 2, `b`, is Utf8 at x, Date32 at z"]),
        ];
        for (other, words) in cases {
            let error =
                unite(&[("x", one.clone()), ("y", one.clone()), ("z", schema(other))]).expect_err("no");
            assert_eq!(error.kind, ErrorKind::Data);
            assert!(error.hint.is_some());
            for word in words {
                assert!(error.message.contains(word), "no `{word}` in {}", error.message);
            }
        }
    }
}
