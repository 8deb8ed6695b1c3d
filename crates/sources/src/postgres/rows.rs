//! Collects rows, as the server sends them, into batches.
//!
//! A row (a `DataRow` message, or a tuple of binary COPY) is an `i16` count of
//! columns and, for each, an `i32` length (-1 is NULL) and the value.

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, SchemaRef};

use super::decode::{Bad, Column};
use super::types::PgType;
use crate::ReadOptions;

/// A row has at most 1 GiB, so a batch below this size still has 31-bit offsets after one more row.
pub(super) const BATCH_BYTES_MAX: usize = 512 << 20;
/// Rows for which a column has room at first.
const FIRST_ROWS: usize = 1024;

/// Columns being filled, closed into batches.
pub(super) struct Decoder {
    schema: SchemaRef,
    columns: Vec<Column>,
    rows: usize,
    bytes: usize,
    row_bytes: usize,
    /// Whether values may be longer than they were on the wire.
    expands: bool,
    batch_rows: usize,
    batch_bytes: usize,
}

impl Decoder {
    /// A decoder for rows of `kinds`, with the fields of `schema`.
    pub(super) fn new(schema: SchemaRef, kinds: &[PgType], options: &ReadOptions) -> Self {
        let batch_rows = options.batch_rows.clamp(1, i32::MAX as usize);
        Self {
            columns: kinds
                .iter()
                .map(|kind| Column::new(kind, batch_rows.min(FIRST_ROWS), options.infinite))
                .collect(),
            schema,
            rows: 0,
            bytes: 0,
            row_bytes: kinds.iter().map(PgType::fixed_bytes).sum(),
            expands: kinds.iter().any(|kind| match kind {
                PgType::List(item) => **item == PgType::NumericText,
                kind => *kind == PgType::NumericText,
            }),
            batch_rows,
            batch_bytes: options.batch_bytes.clamp(1, BATCH_BYTES_MAX),
        }
    }

    /// Decodes one row. The decoder can't be used after an error.
    ///
    /// # Errors
    /// What is wrong, and the index of the column if it is in one.
    #[inline]
    pub(super) fn row(&mut self, body: &[u8]) -> Result<(), (Option<usize>, Box<Bad>)> {
        let outside = |what| (None, Bad::malformed(what));
        let (count, mut rest) = body.split_first_chunk::<2>().ok_or_else(|| outside("an empty row"))?;
        if usize::from(u16::from_be_bytes(*count)) != self.columns.len() {
            return Err(outside("a row with the wrong number of columns"));
        }
        let mut variable = 0;
        for (at, column) in self.columns.iter_mut().enumerate() {
            let (length, after) = rest.split_first_chunk::<4>().ok_or_else(|| outside("a truncated row"))?;
            let length = i32::from_be_bytes(*length);
            if length < 0 {
                column.append_null();
                rest = after;
                continue;
            }
            let length = length as usize;
            let (value, after) = after.split_at_checked(length).ok_or_else(|| outside("a truncated row"))?;
            column.append(value).map_err(|bad| (Some(at), bad))?;
            variable += if column.variable { length } else { 0 };
            rest = after;
        }
        if !rest.is_empty() {
            return Err(outside("a row longer than its columns"));
        }
        self.rows += 1;
        self.bytes += self.row_bytes + variable;
        Ok(())
    }

    /// Rows decoded since the last batch.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the batch must be closed before the next row.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.rows >= self.batch_rows
            || self.bytes >= self.batch_bytes
            || self.expands
                && self.columns.iter().map(Column::expanded_bytes).sum::<usize>() >= self.batch_bytes
    }

    /// Closes the batch and begins the next.
    ///
    /// # Errors
    /// When text is not UTF-8.
    pub(super) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        // The next batch is probably as large as this one.
        let room = if self.rows == 0 { FIRST_ROWS.min(self.batch_rows) } else { self.rows };
        let columns = self
            .columns
            .iter_mut()
            .zip(self.schema.fields())
            .map(|(column, field)| column.finish(field.data_type(), room))
            .collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        (self.rows, self.bytes) = (0, 0);
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_schema::Schema;
    use proptest::prelude::*;

    use super::*;

    fn decoder(kinds: &[PgType], options: &ReadOptions) -> Decoder {
        let fields: Vec<_> = kinds.iter().enumerate().map(|(i, kind)| kind.field(&i.to_string())).collect();
        Decoder::new(Arc::new(Schema::new(fields)), kinds, options)
    }

    fn row(values: &[Option<&[u8]>]) -> Vec<u8> {
        let mut body = (values.len() as u16).to_be_bytes().to_vec();
        for value in values {
            match value {
                None => body.extend((-1i32).to_be_bytes()),
                Some(value) => {
                    body.extend((value.len() as i32).to_be_bytes());
                    body.extend(*value);
                }
            }
        }
        body
    }

    fn every_kind() -> Vec<PgType> {
        vec![
            PgType::Bool,
            PgType::Int16,
            PgType::Int32,
            PgType::Int64,
            PgType::UInt32,
            PgType::Float32,
            PgType::Float64,
            PgType::Decimal128 { precision: 15, scale: 2 },
            PgType::Decimal256 { precision: 76, scale: 10 },
            PgType::NumericText,
            PgType::NumericDouble,
            PgType::Money { scale: 2 },
            PgType::Date,
            PgType::Time,
            PgType::Timestamp,
            PgType::TimestampTz,
            PgType::Interval,
            PgType::Uuid,
            PgType::Bytes,
            PgType::Utf8,
            PgType::Jsonb,
            PgType::List(Box::new(PgType::Int32)),
            PgType::TextList,
        ]
    }

    #[test]
    fn batches_close_at_their_limits_of_bytes_and_rows() {
        let options = ReadOptions { batch_rows: 3, batch_bytes: 1000, ..Default::default() };
        let mut decoder = decoder(&[PgType::Utf8], &options);
        for rows in 1..=3 {
            assert!(!decoder.is_full());
            decoder.row(&row(&[Some(b"ab")])).unwrap();
            assert_eq!(decoder.rows(), rows);
        }
        assert!(decoder.is_full());
        assert_eq!(decoder.finish().unwrap().num_rows(), 3);
        decoder.row(&row(&[Some(&[b'x'; 1000])])).unwrap();
        assert!(decoder.is_full());
        let batch = decoder.finish().unwrap();
        assert_eq!(batch.column(0).as_string::<i32>().value(0).len(), 1000);
    }

    #[test]
    fn every_kind_takes_nulls() {
        let kinds = every_kind();
        let mut decoder = decoder(&kinds, &ReadOptions::default());
        for _ in 0..2 {
            decoder.row(&row(&vec![None; kinds.len()])).unwrap();
            let batch = decoder.finish().unwrap();
            assert!(batch.columns().iter().all(|column| column.len() == 1 && column.null_count() == 1));
        }
    }

    #[test]
    fn broken_text_is_refused() {
        let mut decoder = decoder(&[PgType::Utf8], &ReadOptions::default());
        decoder.row(&row(&[Some(b"\xff")])).unwrap();
        decoder.finish().unwrap_err();
    }

    #[test]
    fn infinite_times_are_refused() {
        for (kind, value) in [
            (PgType::Date, &i32::MAX.to_be_bytes()[..]),
            (PgType::Date, &i32::MIN.to_be_bytes()),
            (PgType::Timestamp, &i64::MAX.to_be_bytes()),
            (PgType::TimestampTz, &i64::MIN.to_be_bytes()),
        ] {
            let (column, bad) =
                decoder(&[kind], &ReadOptions::default()).row(&row(&[Some(value)])).unwrap_err();
            assert!(column == Some(0) && matches!(*bad, Bad::Value(_)));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(value in proptest::collection::vec(any::<u8>(), 0..60)) {
            for kind in every_kind() {
                let mut decoder = decoder(&[kind], &ReadOptions::default());
                if decoder.row(&row(&[Some(&value)])).is_ok() {
                    let _ = decoder.finish();
                }
            }
            let _ = decoder(&every_kind(), &ReadOptions::default()).row(&value);
        }
    }
}
