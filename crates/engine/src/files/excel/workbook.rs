//! Workbooks: their sheets, and the rows of a sheet one by one.

use std::io::{BufReader, Read as _};

use calamine::{
    Cell, Data, DataRef, Error, Ods, Reader as _, Sheet, SheetType, SheetVisible, Xls, Xlsb, Xlsx,
};
use lightship_sources::file_options::CellRange;

use super::SheetRules;
use super::cell::Value;
use crate::error::{EngineError, Result};
use crate::files::binary::unreadable;
use crate::files::input::{FilePath, Input};

/// How zip archives begin, such as workbooks since 2007.
const ZIP: &[u8] = b"PK\x03\x04";
/// How older workbooks begin, and those with a password.
const COMPOUND: &[u8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1";
/// OpenDocument files begin with a file of this name, at this offset.
const OPEN_DOCUMENT: (usize, &[u8]) = (30, b"mimetype");

/// Whether bytes begin as a workbook does.
pub(in crate::files) fn is_workbook(first: &[u8]) -> bool {
    first.starts_with(ZIP) || first.starts_with(COMPOUND)
}

type Bytes = BufReader<Input>;

/// An open workbook.
enum Book {
    Xlsx(Xlsx<Bytes>),
    Xlsb(Xlsb<Bytes>),
    Xls(Xls<Bytes>),
    Ods(Ods<Bytes>),
}

impl Book {
    /// Opens a workbook of the kind that its contents show: many files have the name of another kind.
    fn open(path: &FilePath) -> Result<Self> {
        let mut first = Vec::new();
        let read = path.open().and_then(|input| input.take(64).read_to_end(&mut first));
        read.map_err(|e| EngineError::reading(path, &e))?;
        let input = || path.open().map(BufReader::new).map_err(|e| EngineError::reading(path, &e));
        if first.starts_with(COMPOUND) {
            return match Xls::new(input()?) {
                Ok(book) => Ok(Self::Xls(book)),
                Err(error) => match Xlsx::new(input()?) {
                    Err(calamine::XlsxError::Password) => Err(EngineError::bad_file(
                        format!("{}: the workbook is protected by a password", path.display()),
                        "save it without one",
                    )),
                    _ => Err(failed(path, Error::Xls(error))),
                },
            };
        }
        if !first.starts_with(ZIP) {
            return Err(EngineError::bad_file(
                format!("{}: not a workbook of Excel", path.display()),
                "if it is a text, name its format, as in --input-format csv",
            ));
        }
        if first.get(OPEN_DOCUMENT.0..).is_some_and(|rest| rest.starts_with(OPEN_DOCUMENT.1)) {
            return Ods::new(input()?).map(Self::Ods).map_err(|e| failed(path, Error::Ods(e)));
        }
        match Xlsx::new(input()?) {
            Ok(book) => Ok(Self::Xlsx(book)),
            Err(error) => match Xlsb::new(input()?) {
                Ok(book) => Ok(Self::Xlsb(book)),
                Err(_) => Err(failed(path, Error::Xlsx(error))),
            },
        }
    }

    fn sheets(&self) -> &[Sheet] {
        match self {
            Self::Xlsx(book) => book.sheets_metadata(),
            Self::Xlsb(book) => book.sheets_metadata(),
            Self::Xls(book) => book.sheets_metadata(),
            Self::Ods(book) => book.sheets_metadata(),
        }
    }
}

fn failed(path: &FilePath, error: Error) -> EngineError {
    unreadable(path, "Excel", &error)
}

/// A row with a value.
pub(super) struct Row {
    /// Its number, from 1.
    pub(super) number: u32,
    /// The columns that have a value, from 0, in ascending order.
    pub(super) cells: Vec<(u32, Value)>,
}

/// A sheet of a workbook.
pub(super) struct Worksheet {
    path: FilePath,
    book: Book,
    pub(super) name: String,
    range: Option<CellRange>,
}

impl Worksheet {
    /// Opens the sheet that is asked for, or the first one that is shown.
    pub(super) fn open(path: &FilePath, rules: &SheetRules) -> Result<Self> {
        let book = Book::open(path)?;
        let name = rules.sheet.as_deref();
        let sheets = || book.sheets().iter().filter(|sheet| sheet.typ == SheetType::WorkSheet);
        let found = match name {
            Some(name) => sheets().find(|sheet| sheet.name == name),
            None => sheets().find(|sheet| sheet.visible == SheetVisible::Visible),
        };
        let Some(found) = found else {
            let names: Vec<&str> = sheets().map(|sheet| sheet.name.as_str()).collect();
            return Err(EngineError::Config(match name {
                Some(name) => {
                    let names = names.join("`, `");
                    format!("{}: there is no sheet `{name}`; its sheets are `{names}`", path.display())
                }
                None => format!("{}: the workbook has no sheet", path.display()),
            }));
        };
        let name = found.name.clone();
        Ok(Self { path: path.clone(), book, name, range: rules.range.clone() })
    }

    /// Passes on all rows that have a value, until `give` returns false.
    pub(super) fn rows(&mut self, mut give: impl FnMut(Row) -> Result<bool>) -> Result<()> {
        let (path, name) = (&self.path, self.name.as_str());
        let row = Row { number: 0, cells: Vec::new() };
        let mut rows = Rows { row, range: self.range.as_ref(), give: &mut give };
        match &mut self.book {
            Book::Xlsx(book) => {
                let fail = |error| failed(path, Error::Xlsx(error));
                let mut cells = book.worksheet_cells_reader(name).map_err(fail)?;
                rows.all(|| cells.next_cell().map_err(fail))
            }
            Book::Xlsb(book) => {
                let fail = |error| failed(path, Error::Xlsb(error));
                let mut cells = book.worksheet_cells_reader(name).map_err(fail)?;
                rows.all(|| cells.next_cell().map_err(fail))
            }
            // These can only be read as a whole.
            Book::Xls(book) => {
                rows.of(&book.worksheet_range(name).map_err(|e| failed(path, Error::Xls(e)))?)
            }
            Book::Ods(book) => {
                rows.of(&book.worksheet_range(name).map_err(|e| failed(path, Error::Ods(e)))?)
            }
        }
    }
}

/// Makes rows of cells.
struct Rows<'a> {
    /// The row of the last cell.
    row: Row,
    /// `None` for all.
    range: Option<&'a CellRange>,
    give: &'a mut dyn FnMut(Row) -> Result<bool>,
}

impl Rows<'_> {
    /// Takes a cell of a row, from 0. Returns whether more are wanted.
    fn add(&mut self, row: u32, column: u32, value: Option<Value>) -> Result<bool> {
        if let Some(range) = self.range
            && !(range.rows.contains(&row) && range.columns.contains(&column))
        {
            return Ok(true);
        }
        let number = row.saturating_add(1);
        let mut is_wanted = true;
        if number != self.row.number {
            is_wanted = self.end()?;
            self.row.number = number;
        }
        self.row.cells.extend(value.map(|value| (column, value)));
        Ok(is_wanted)
    }

    /// Passes on the row. Returns whether more are wanted.
    fn end(&mut self) -> Result<bool> {
        let mut cells = std::mem::take(&mut self.row.cells);
        if cells.is_empty() {
            return Ok(true);
        }
        // A cell that is given twice has its last value.
        cells.reverse();
        cells.sort_by_key(|(column, _)| *column);
        cells.dedup_by_key(|(column, _)| *column);
        (self.give)(Row { number: self.row.number, cells })
    }

    fn all<'a>(&mut self, mut next: impl FnMut() -> Result<Option<Cell<DataRef<'a>>>>) -> Result<()> {
        while let Some(cell) = next()? {
            let (row, column) = cell.get_position();
            if !self.add(row, column, Value::of(cell.get_value()))? {
                return Ok(());
            }
        }
        self.end().map(drop)
    }

    fn of(&mut self, range: &calamine::Range<Data>) -> Result<()> {
        let (first_row, first_column) = range.start().unwrap_or_default();
        for (row, column, cell) in range.used_cells() {
            let (row, column) = (first_row + row as u32, first_column + column as u32);
            if !self.add(row, column, Value::of_owned(cell))? {
                return Ok(());
            }
        }
        self.end().map(drop)
    }
}
