//! The rows of a result, encoded one by one.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::{BufMut, BytesMut};
use futures::StreamExt as _;
use lightship_transport::net::{Answer, Rows};

use crate::encode::{Format, Values};
use crate::error::{PgError, PgResult, code};
use crate::types::PgColumn;

/// PostgreSQL's limit of a result; drivers have arrays of this size.
const COLUMNS_MAX: usize = 1664;

/// A result whose rows are taken one by one. It holds one batch.
pub(crate) struct RowStream {
    pub(crate) columns: Arc<[PgColumn]>,
    schema: SchemaRef,
    rows: Rows,
    /// The columns of the current batch.
    values: Vec<Values>,
    row: usize,
    batch_rows: usize,
    /// Rows before the current batch.
    before: u64,
}

impl RowStream {
    /// The rows of a service's answer.
    ///
    /// # Errors
    /// If it has too many columns.
    pub(crate) fn new(answer: Answer) -> PgResult<Self> {
        let columns: Arc<[PgColumn]> =
            answer.schema.fields().iter().map(|field| PgColumn::of(field)).collect();
        if columns.len() > COLUMNS_MAX {
            let message = format!("the result has {} columns; the limit is {COLUMNS_MAX}", columns.len());
            return Err(PgError::new(code::TOO_MANY_COLUMNS, message).hint("select fewer columns"));
        }
        Ok(Self::of(columns, answer.schema, answer.rows))
    }

    /// A result that is at hand.
    pub(crate) fn of_batch(columns: Vec<PgColumn>, batch: RecordBatch) -> Self {
        let schema = batch.schema();
        Self::of(columns.into(), schema, Box::pin(futures::stream::iter([Ok(batch)])))
    }

    fn of(columns: Arc<[PgColumn]>, schema: SchemaRef, rows: Rows) -> Self {
        Self { columns, schema, rows, values: Vec::new(), row: 0, batch_rows: 0, before: 0 }
    }

    /// Whether a row is at hand.
    pub(crate) fn has_row(&self) -> bool {
        self.row < self.batch_rows
    }

    /// Waits until a row is at hand; false at the end of the result.
    ///
    /// # Errors
    /// If the query fails, or the batch has values that can't be sent.
    pub(crate) async fn advance(&mut self) -> PgResult<bool> {
        while !self.has_row() {
            self.values.clear();
            self.before += self.batch_rows as u64;
            (self.row, self.batch_rows) = (0, 0);
            let Some(batch) = self.rows.next().await.transpose()? else { return Ok(false) };
            if batch.num_columns() != self.columns.len() {
                return Err(PgError::new(code::INTERNAL_ERROR, "a batch with other columns than the result"));
            }
            let fields = self.schema.fields().iter().zip(self.columns.iter());
            for ((field, column), array) in fields.zip(batch.columns()) {
                let values = Values::new(array, field, column).map_err(|error| of_column(error, column))?;
                self.values.push(values);
            }
            self.batch_rows = batch.num_rows();
        }
        Ok(true)
    }

    /// The next batch as it is. Only for results whose rows are not taken one by one.
    pub(crate) async fn next_batch(&mut self) -> PgResult<Option<RecordBatch>> {
        Ok(self.rows.next().await.transpose()?)
    }

    /// Drops the row at hand.
    pub(crate) fn skip_row(&mut self) {
        self.row += 1;
    }

    /// Takes the row at hand: `put` writes a value of it, given its column. What was written of a row that fails is
    /// removed.
    fn take_row(
        &mut self,
        out: &mut BytesMut,
        put: impl Fn(usize, &Values, usize, &mut BytesMut) -> PgResult<()>,
    ) -> PgResult<()> {
        let start = out.len();
        for (index, values) in self.values.iter().enumerate() {
            if let Err(error) = put(index, values, self.row, out) {
                out.truncate(start);
                let row = self.before + self.row as u64 + 1;
                let error = of_column(error, &self.columns[index]);
                return Err(PgError { message: format!("row {row}, {}", error.message), ..error });
            }
        }
        self.row += 1;
        Ok(())
    }

    /// Takes the row at hand as a message.
    pub(crate) fn put_message(&mut self, formats: &[Format], out: &mut BytesMut) -> PgResult<()> {
        let start = out.len();
        out.put_u8(b'D');
        out.put_i32(0);
        out.put_i16(self.columns.len() as i16);
        let done = self
            .take_row(out, |index, values, row, out| values.put_sized(row, formats[index], out))
            .and_then(|()| set_length(out, start));
        if done.is_err() {
            out.truncate(start);
        }
        done
    }

    /// Takes the row at hand as data of a copy: `put` writes a value of it.
    pub(crate) fn put_copy_data(
        &mut self,
        out: &mut BytesMut,
        begin: impl FnOnce(&mut BytesMut),
        put: impl Fn(usize, &Values, usize, &mut BytesMut) -> PgResult<()>,
        end: impl FnOnce(&mut BytesMut),
    ) -> PgResult<()> {
        let start = out.len();
        out.put_u8(b'd');
        out.put_i32(0);
        begin(out);
        let done = self.take_row(out, put).and_then(|()| {
            end(out);
            set_length(out, start)
        });
        if done.is_err() {
            out.truncate(start);
        }
        done
    }
}

/// Sets the length of the message that begins at `start`.
fn set_length(out: &mut BytesMut, start: usize) -> PgResult<()> {
    let length = out.len() - start - 1;
    // Clients refuse longer messages, and so does PostgreSQL.
    if length >= 1 << 30 {
        let error = PgError::new(code::PROGRAM_LIMIT, "a row of more than 1 GiB");
        return Err(error.hint("select fewer columns, or parts of the values"));
    }
    out[start + 1..start + 5].copy_from_slice(&(length as u32).to_be_bytes());
    Ok(())
}

fn of_column(error: PgError, column: &PgColumn) -> PgError {
    PgError { message: format!("column \"{}\": {}", column.name, error.message), ..error }
}
