//! Workbooks of Excel (`.xlsx`, `.xlsm`, `.xlsb`, `.xls`) and OpenDocument spreadsheets (`.ods`): a sheet is a table.

mod cell;
mod reader;
mod workbook;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use lightship_sources::file_options::{CellRange, FileOptions, Sample};

use self::reader::SheetReader;
use self::workbook::Worksheet;
pub(super) use self::workbook::is_workbook;
use super::by_name::{Batches, FilePart, Format, Wanted};
use super::columns;
use super::input::FilePath;
use super::values::{self, Guess};
use crate::error::Result;

/// Sheets of workbooks.
#[derive(Debug)]
pub(super) struct Excel(Arc<SheetRules>);

/// Which cells are read, and what their values mean.
#[derive(Debug)]
struct SheetRules {
    /// `None` is the first sheet that is shown.
    sheet: Option<String>,
    /// `None` is the whole sheet.
    range: Option<CellRange>,
    /// Whether the first row that has a value has the names of the columns.
    has_header: bool,
    /// Texts that stand for NULL.
    nulls: Vec<String>,
    types: Vec<(String, DataType)>,
    all_text: bool,
    sample: Sample,
}

impl SheetRules {
    fn is_null(&self, text: &str) -> bool {
        self.nulls.iter().any(|null| null == text)
    }
}

impl Excel {
    pub(super) fn new(options: &FileOptions) -> Self {
        Self(Arc::new(SheetRules {
            sheet: options.sheet.clone(),
            range: options.range.clone(),
            has_header: options.header.unwrap_or(true),
            nulls: options.nulls.clone(),
            types: options.types.clone(),
            all_text: options.all_text,
            // A sheet has at most 1,048,576 rows.
            sample: options.sample.unwrap_or(Sample::All),
        }))
    }
}

/// The name of a column without a header: column A is `column_1`.
fn unnamed(column: u32) -> String {
    format!("column_{}", u64::from(column) + 1)
}

impl Format for Excel {
    fn name(&self) -> &'static str {
        "excel"
    }

    fn finds_parts(&self) -> bool {
        false
    }

    fn columns(&self, path: &FilePath) -> Result<Schema> {
        let rules = &*self.0;
        let mut sheet = Worksheet::open(path, rules)?;
        let mut found: BTreeMap<u32, (String, Guess)> = BTreeMap::new();
        let mut is_header = rules.has_header;
        let mut left = match rules.sample {
            Sample::Records(count) => count,
            Sample::All => u64::MAX,
        };
        sheet.rows(|row| {
            if is_header {
                is_header = false;
                found.extend(
                    row.cells.into_iter().map(|(column, name)| (column, (name.text, Guess::default()))),
                );
                return Ok(left > 0);
            }
            for (column, value) in row.cells {
                let (_, guess) = found.entry(column).or_insert_with(|| (unnamed(column), Guess::default()));
                if !rules.is_null(&value.text) {
                    value.guess(guess);
                }
            }
            left -= 1;
            Ok(left > 0)
        })?;
        let fields = found.into_values().map(|(name, guess)| {
            let given = columns::given_type(&rules.types, &name);
            let inferred = if rules.all_text { DataType::Utf8 } else { guess.data_type() };
            Field::new(name, given.unwrap_or(inferred), true)
        });
        let schema = Schema::new(fields.collect::<Vec<_>>());
        columns::unique(path, &schema)?;
        Ok(schema)
    }

    fn unknown(&self) -> DataType {
        DataType::Utf8
    }

    fn common(&self, a: &DataType, b: &DataType) -> Option<DataType> {
        Some(values::common(a, b))
    }

    fn read(&self, part: FilePart, wanted: &Wanted, batch_rows: usize) -> Result<Batches> {
        // A sheet can only be read from its start.
        if part.range.start > 0 || part.range.end == 0 {
            return Ok(Box::new(std::iter::empty()));
        }
        let sheet = Worksheet::open(&part.path, &self.0)?;
        let reader = SheetReader::new(self.0.clone(), part.path, wanted.clone(), batch_rows);
        reader.read(sheet)
    }
}
