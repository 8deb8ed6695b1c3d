//! The rows of a sheet as batches of typed columns.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use arrow_array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{DataType, Field, Schema};
use lightship_sources::file_options::Sample;
use tokio::runtime::Handle;

use super::workbook::{Row, Worksheet};
use super::{SheetRules, unnamed};
use crate::error::{EngineError, Result};
use crate::files::by_name::{Batches, Wanted, until_end};
use crate::files::input::FilePath;
use crate::files::values;
use crate::threads;

/// Batches that wait for the query.
const BATCHES_WAITING: usize = 2;

/// A batch ends with the row in which its texts reach this size.
const BATCH_BYTES: usize = 4 << 20;

/// Collects the rows of a sheet into batches.
pub(super) struct SheetReader {
    rules: Arc<SheetRules>,
    path: FilePath,
    sheet: String,
    wanted: Wanted,
    batch_rows: usize,
    is_header: bool,
    /// The place among the wanted columns of each column of the sheet that has been seen; `None` if it is not wanted.
    places: HashMap<u32, Option<usize>>,
    /// The values of the wanted columns.
    texts: Vec<Vec<Option<String>>>,
    /// Bytes of these texts.
    bytes: usize,
    /// The number of each row.
    numbers: Vec<u32>,
}

impl SheetReader {
    pub(super) fn new(rules: Arc<SheetRules>, path: FilePath, wanted: Wanted, batch_rows: usize) -> Self {
        let texts = vec![Vec::new(); wanted.schema.fields().len()];
        let (is_header, batch_rows) = (rules.has_header, batch_rows.max(1));
        let (sheet, places, bytes, numbers) = Default::default();
        Self { rules, path, sheet, wanted, batch_rows, is_header, places, texts, bytes, numbers }
    }

    /// The rows of a sheet. A thread of its own reads it: the cells borrow from the workbook.
    pub(super) fn read(mut self, mut sheet: Worksheet) -> Result<Batches> {
        self.sheet.clone_from(&sheet.name);
        let (sender, receiver) = sync_channel(BATCHES_WAITING);
        let runtime = Handle::try_current();
        let thread = threads::spawn(move || {
            let _entered = runtime.as_ref().ok().map(Handle::enter);
            let rest = sheet.rows(|row| self.add(row, &sender)).and_then(|()| self.batch());
            // The last message says how it ended; nobody may want to know.
            let _ = match rest {
                Ok(Some(rest)) => sender.send(Ok(Some(rest))).and_then(|()| sender.send(Ok(None))),
                ended => sender.send(ended),
            };
        })?;
        let mut thread = Some(thread);
        Ok(Box::new(until_end(move || match receiver.recv() {
            Ok(message) => message,
            // The caller reports a panic of a reader.
            Err(_) => match thread.take().map(std::thread::JoinHandle::join) {
                Some(Err(panic)) => resume_unwind(panic),
                _ => Ok(None),
            },
        })))
    }

    /// Takes a row. Returns whether more are wanted.
    fn add(&mut self, row: Row, sender: &SyncSender<Result<Option<RecordBatch>>>) -> Result<bool> {
        if self.is_header {
            self.is_header = false;
            self.header(&row)?;
            return Ok(true);
        }
        for texts in &mut self.texts {
            texts.push(None);
        }
        for (column, value) in row.cells {
            let place = match self.places.get(&column) {
                Some(place) => *place,
                None => self.new_column(column, row.number)?,
            };
            if let Some(text) = place.and_then(|place| self.texts[place].last_mut())
                && !self.rules.is_null(&value.text)
            {
                self.bytes += value.text.len();
                *text = Some(value.text);
            }
        }
        self.numbers.push(row.number);
        if self.numbers.len() < self.batch_rows && self.bytes < BATCH_BYTES {
            return Ok(true);
        }
        let batch = self.batch()?;
        Ok(sender.send(Ok(batch)).is_ok())
    }

    /// Finds the wanted columns by their names.
    fn header(&mut self, row: &Row) -> Result<()> {
        let fields: Vec<Field> =
            row.cells.iter().map(|(_, name)| Field::new(&name.text, DataType::Utf8, true)).collect();
        let places = self.wanted.places(&self.path, &Schema::new(fields))?;
        self.places = row.cells.iter().map(|(column, _)| (*column, None)).collect();
        for (place, cell) in places.iter().enumerate() {
            if let Some((column, _)) = cell.and_then(|cell| row.cells.get(cell)) {
                self.places.insert(*column, Some(place));
            }
        }
        Ok(())
    }

    /// Finds a column that has no name in the sheet.
    fn new_column(&mut self, column: u32, row: u32) -> Result<Option<usize>> {
        let name = unnamed(column);
        if self.wanted.table.index_of(&name).is_err() {
            let message = format!(
                "{}: a value in column {}, which the table does not have",
                self.row(row),
                name_of(column)
            );
            let hint = match self.rules.sample {
                Sample::Records(_) => "infer the columns from all rows, with --sample all",
                Sample::All => "the file was changed after the table was opened; reopen the table",
            };
            return Err(EngineError::bad_file(message, hint));
        }
        let place = self.wanted.schema.index_of(&name).ok();
        self.places.insert(column, place);
        Ok(place)
    }

    /// The rows that were taken, if there are any.
    fn batch(&mut self) -> Result<Option<RecordBatch>> {
        let rows = self.numbers.len();
        if rows == 0 {
            return Ok(None);
        }
        let columns = self.wanted.schema.fields().iter().zip(&self.texts).map(|(field, texts)| {
            if texts.iter().all(Option::is_none) {
                return Ok(new_null_array(field.data_type(), rows));
            }
            values::parse(texts.iter().map(Option::as_deref), field.data_type())
                .map_err(|row| self.unfit(row, field))
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(self.wanted.schema.clone(), columns, &options);
        self.texts.iter_mut().for_each(Vec::clear);
        self.numbers.clear();
        self.bytes = 0;
        batch.map(Some).map_err(|e| EngineError::Internal(e.to_string()))
    }

    fn row(&self, number: u32) -> String {
        format!("{}, sheet `{}`, row {number}", self.path.display(), self.sheet)
    }

    fn unfit(&self, row: usize, field: &Field) -> EngineError {
        let place = self.wanted.schema.index_of(field.name()).unwrap_or_default();
        let text = self.texts[place][row].as_deref().unwrap_or_default();
        let (name, misfit) = (field.name(), values::misfit(text, field.data_type()));
        let message = format!("{}: column `{name}`: {misfit}", self.row(self.numbers[row]));
        EngineError::bad_file(message, format!("give the type of the column, as in --types {name}=text"))
    }
}

/// The letters of a column.
fn name_of(column: u32) -> String {
    let (mut letters, mut rest) = (Vec::new(), u64::from(column) + 1);
    while rest > 0 {
        letters.push(b'A' + ((rest - 1) % 26) as u8);
        rest = (rest - 1) / 26;
    }
    letters.iter().rev().map(|letter| char::from(*letter)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_letters() {
        let names: Vec<String> = [0, 25, 26, 701, 702, 16_383].into_iter().map(name_of).collect();
        assert_eq!(names, ["A", "Z", "AA", "ZZ", "AAA", "XFD"]);
    }
}
