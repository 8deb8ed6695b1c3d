//! A table for a terminal.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use arrow_array::RecordBatch;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use unicode_width::UnicodeWidthChar;

use super::open_decimal::{self, without_zeros};
use super::output::Output;
use super::{BatchWriter, WriteOptions, unfit};
use crate::Result;

/// Keeps the first rows as text, writes them once there are enough, and writes at
/// the end how many followed.
pub(super) struct Table {
    output: Output,
    schema: SchemaRef,
    rows_max: usize,
    width_max: usize,
    shown: Vec<Vec<Cell>>,
    rows: u64,
    is_written: bool,
}

/// A text and its width on a terminal.
struct Cell {
    text: String,
    width: usize,
}

impl Table {
    pub(super) fn new(output: Output, schema: &SchemaRef, options: &WriteOptions) -> Self {
        Self {
            output,
            schema: schema.clone(),
            rows_max: options.table_rows,
            width_max: options.table_value_width.max(1),
            shown: Vec::new(),
            rows: 0,
            is_written: false,
        }
    }

    fn keep(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = batch.num_rows().min(self.rows_max.saturating_sub(self.shown.len()));
        if rows == 0 {
            return Ok(());
        }
        let options = FormatOptions::new().with_null("NULL");
        let columns: Vec<_> =
            batch.columns().iter().map(|c| ArrayFormatter::try_new(c, &options)).collect::<Result<_, _>>()?;
        for row in 0..rows {
            let cells = columns.iter().enumerate().map(|(i, column)| {
                let mut clip = Clip::new(self.width_max);
                let written = match open_decimal::is_open(self.schema.field(i).data_type()) {
                    true => column.value(row).try_to_string().and_then(|text| {
                        let written = clip.write_str(without_zeros(&text));
                        written.map_err(|e| ArrowError::InvalidArgumentError(e.to_string()))
                    }),
                    false => column.value(row).write(&mut clip),
                };
                // The formatter also fails when the clip is full, which is not an error.
                match written {
                    Err(error) if !clip.is_full => {
                        let column = self.schema.field(i).name();
                        Err(unfit(row, column, error.to_string(), "write it as arrow or parquet"))
                    }
                    _ => Ok(clip.cell),
                }
            });
            self.shown.push(cells.collect::<Result<_>>()?);
        }
        Ok(())
    }

    fn write_table(&mut self) -> Result<()> {
        self.is_written = true;
        let header: Vec<Cell> =
            self.schema.fields().iter().map(|field| clipped(field.name(), self.width_max)).collect();
        let widths: Vec<usize> = (0..header.len())
            .map(|i| self.shown.iter().map(|row| row[i].width).fold(header[i].width, usize::max))
            .collect();
        let numeric: Vec<bool> = self.schema.fields().iter().map(|f| is_numeric(f.data_type())).collect();
        let mut text = String::new();
        if !header.is_empty() {
            push_row(&mut text, &header, &widths, &numeric);
            let rules: Vec<String> = widths.iter().map(|&width| "─".repeat(width + 2)).collect();
            text.push_str(&rules.join("┼"));
            text.push('\n');
            self.shown.iter().for_each(|row| push_row(&mut text, row, &widths, &numeric));
        }
        self.shown.clear();
        self.put(&text)
    }

    fn put(&mut self, text: &str) -> Result<()> {
        self.output.write_all(text.as_bytes()).map_err(|source| self.output.failures().error(source))
    }
}

impl BatchWriter for Table {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        if !self.is_written {
            self.keep(batch)?;
            if self.shown.len() >= self.rows_max {
                self.write_table()?;
            }
        }
        Ok(())
    }

    fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn finish(mut self: Box<Self>) -> Result<Output> {
        if !self.is_written {
            self.write_table()?;
        }
        let more = self.rows.saturating_sub(self.rows_max as u64);
        let plural = |n: u64| if n == 1 { "row" } else { "rows" };
        if self.rows == 0 || self.schema.fields().is_empty() {
            self.put(&format!("({} {})\n", self.rows, plural(self.rows)))?;
        } else if more > 0 {
            self.put(&format!("… {more} more {}\n", plural(more)))?;
        }
        Ok(self.output)
    }
}

/// Whether values are aligned to the right, so that their digits line up.
fn is_numeric(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_numeric(values),
        DataType::RunEndEncoded(_, values) => is_numeric(values.data_type()),
        other => other.is_numeric(),
    }
}

fn push_row(text: &mut String, cells: &[Cell], widths: &[usize], numeric: &[bool]) {
    let last = cells.len().saturating_sub(1);
    for (i, cell) in cells.iter().enumerate() {
        let padding = " ".repeat(widths[i].saturating_sub(cell.width));
        let (before, after) = if numeric[i] { (padding.as_str(), "") } else { ("", padding.as_str()) };
        text.push(' ');
        text.push_str(before);
        text.push_str(&cell.text);
        if i < last {
            text.push_str(after);
            text.push_str(" │");
        }
    }
    text.push('\n');
}

/// Collects text up to the maximum width. Characters that would move the cursor or
/// control the terminal are shown as escapes.
struct Clip {
    cell: Cell,
    width_max: usize,
    is_full: bool,
}

impl Clip {
    fn new(width_max: usize) -> Self {
        Self { cell: Cell { text: String::new(), width: 0 }, width_max, is_full: false }
    }

    fn push(&mut self, c: char) -> fmt::Result {
        let width = c.width().unwrap_or(0);
        if self.cell.width + width > self.width_max {
            self.is_full = true;
            while self.cell.width + 1 > self.width_max {
                let Some(last) = self.cell.text.pop() else { break };
                self.cell.width -= last.width().unwrap_or(0);
            }
            self.cell.text.push('…');
            self.cell.width += 1;
            return Err(fmt::Error);
        }
        self.cell.text.push(c);
        self.cell.width += width;
        Ok(())
    }
}

impl fmt::Write for Clip {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.is_full {
            return Err(fmt::Error);
        }
        for c in text.chars() {
            // Characters without a width would let a value grow without a limit, and
            // those that change the direction would garble its neighbours.
            if c.is_control() || c.width().unwrap_or(0) == 0 {
                c.escape_default().try_for_each(|c| self.push(c))?;
            } else {
                self.push(c)?;
            }
        }
        Ok(())
    }
}

fn clipped(text: &str, width_max: usize) -> Cell {
    let mut clip = Clip::new(width_max);
    // An error means that the text was truncated.
    let _ = clip.write_str(text);
    clip.cell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cut_and_escaped() {
        let check = |text: &str, expected: &str, width: usize| {
            let cell = clipped(text, 8);
            assert_eq!((cell.text.as_str(), cell.width), (expected, width), "{text:?}");
        };
        check("", "", 0);
        check("12345678", "12345678", 8);
        check("123456789", "1234567…", 8);
        check("日本語日", "日本語日", 8);
        check("日本語日本", "日本語…", 7);
        check("a\tb\n", "a\\tb\\n", 6);
        check("\u{1b}[31m", "\\u{1b}[…", 8);
    }
}
