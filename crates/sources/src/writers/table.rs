//! A table for a terminal.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use arrow_array::RecordBatch;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, SchemaRef};
use unicode_width::UnicodeWidthChar;

use super::output::Output;
use super::readable::Printer;
use super::{BatchWriter, WriteOptions, reason, unfit};
use crate::Result;

/// How values are shown that have no other form.
static PLAIN: FormatOptions<'static> = FormatOptions::new();

/// Minimum width to which columns of text are cut to fit a table.
const COLUMN_WIDTH_MIN: usize = 12;
/// Minimum width of the values in the vertical form.
const VERTICAL_WIDTH_MIN: usize = 20;
/// Maximum width of the values in the vertical form where the width of the terminal is not known.
const VERTICAL_WIDTH_MAX: usize = 10_000;

/// Keeps the first rows as text, writes them once there are enough, and writes at
/// the end how many followed.
pub(super) struct Table {
    output: Output,
    schema: SchemaRef,
    rows_max: usize,
    value_width_max: usize,
    /// Of the table.
    width_max: Option<usize>,
    is_vertical: bool,
    shown: Vec<Vec<Cell>>,
    rows: u64,
    is_written: bool,
    columns_left_out: usize,
}

/// A text and its width on a terminal.
struct Cell {
    text: String,
    width: usize,
}

impl Table {
    pub(super) fn new(output: Output, schema: &SchemaRef, options: &WriteOptions, is_vertical: bool) -> Self {
        let value_width_max = match (is_vertical, options.table_width) {
            (false, _) => options.table_value_width.max(1),
            (true, None) => VERTICAL_WIDTH_MAX,
            (true, Some(width)) => {
                let names = names(schema, options.table_value_width.max(1));
                width.saturating_sub(name_width(&names) + 4).max(VERTICAL_WIDTH_MIN)
            }
        };
        Self {
            output,
            schema: schema.clone(),
            rows_max: options.table_rows,
            value_width_max,
            width_max: options.table_width,
            is_vertical,
            shown: Vec::new(),
            rows: 0,
            is_written: false,
            columns_left_out: 0,
        }
    }

    fn keep(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = batch.num_rows().min(self.rows_max.saturating_sub(self.shown.len()));
        if rows == 0 {
            return Ok(());
        }
        // Only the rows that are shown are converted.
        let batch = batch.slice(0, rows);
        let columns = batch.columns().iter().zip(self.schema.fields());
        let columns =
            columns.map(|(column, field)| Ok((Printer::new(field, column)?, column.logical_nulls())));
        let columns: Vec<_> = columns.collect::<Result<_>>()?;
        for row in 0..rows {
            let cells = columns.iter().enumerate().map(|(i, (printer, nulls))| {
                if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                    return Ok(clipped("NULL", self.value_width_max));
                }
                let mut clip = Clip::new(self.value_width_max);
                let mut printed = printer.print(row, &mut clip);
                if printed.is_err() && !clip.is_full {
                    // Only shown, it need not be JSON: not-a-number in a structure.
                    clip = Clip::new(self.value_width_max);
                    let plain = ArrayFormatter::try_new(batch.column(i), &PLAIN);
                    printed = plain.and_then(|plain| plain.value(row).write(&mut clip));
                }
                match printed {
                    // It also fails when the clip is full, which is not an error.
                    Err(error) if !clip.is_full => {
                        let column = self.schema.field(i).name();
                        Err(unfit(row, column, reason(error), "write it as arrow or parquet"))
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
        let mut text = String::new();
        match self.is_vertical {
            true => self.put_vertical(&mut text),
            false => self.put_columns(&mut text),
        }
        self.shown.clear();
        self.put(&text)
    }

    fn put_columns(&mut self, text: &mut String) {
        let header = names(&self.schema, self.value_width_max);
        if header.is_empty() {
            return;
        }
        let widths: Vec<usize> = (0..header.len())
            .map(|i| self.shown.iter().map(|row| row[i].width).fold(header[i].width, usize::max))
            .collect();
        let numeric: Vec<bool> = self.schema.fields().iter().map(|f| is_numeric(f.data_type())).collect();
        let widths = match self.width_max {
            Some(width) => fitted(&widths, &numeric, width),
            None => widths,
        };
        self.columns_left_out = header.len() - widths.len();
        push_row(text, &header, &widths, &numeric);
        let rules: Vec<String> = widths.iter().map(|&width| "─".repeat(width + 2)).collect();
        text.push_str(&rules.join("┼"));
        text.push('\n');
        self.shown.iter().for_each(|row| push_row(text, row, &widths, &numeric));
    }

    fn put_vertical(&self, text: &mut String) {
        let names = names(&self.schema, self.value_width_max);
        let width = name_width(&names);
        for (row, cells) in self.shown.iter().enumerate() {
            let title = format!("─[ row {} ]", row + 1);
            text.push_str(&title);
            text.push_str(&"─".repeat((width + 2).saturating_sub(title.chars().count())));
            text.push('\n');
            for (name, cell) in names.iter().zip(cells) {
                let padding = " ".repeat(width - name.width);
                text.push_str(&format!(" {}{padding} │ {}\n", name.text, cell.text));
            }
        }
    }

    fn put(&mut self, text: &str) -> Result<()> {
        self.output.write_all(text.as_bytes()).map_err(|source| self.output.failures().error(source))
    }
}

fn names(schema: &SchemaRef, width_max: usize) -> Vec<Cell> {
    schema.fields().iter().map(|field| clipped(field.name(), width_max)).collect()
}

fn name_width(names: &[Cell]) -> usize {
    names.iter().map(|name| name.width).max().unwrap_or(0)
}

/// The widths of the columns that fit a table of this width: columns of text are cut, the widest first, and if that is
/// not enough, columns at the end are left out. The first is always there. Numbers are not cut.
fn fitted(widths: &[usize], numeric: &[bool], width_max: usize) -> Vec<usize> {
    // Each column has a blank on both sides, and a line between it and the next.
    let total = |widths: &[usize]| widths.iter().map(|width| width + 3).sum::<usize>().saturating_sub(1);
    let capped = |cap: usize, columns: usize| -> Vec<usize> {
        let widths = widths[..columns].iter().zip(numeric);
        widths.map(|(&width, &is_numeric)| if is_numeric { width } else { width.min(cap) }).collect()
    };
    let fits = |widths: &[usize]| total(widths) <= width_max;
    let columns =
        (1..=widths.len()).rev().find(|&columns| fits(&capped(COLUMN_WIDTH_MIN, columns))).unwrap_or(1);
    let widest = widths.iter().copied().max().unwrap_or(0);
    let caps = (COLUMN_WIDTH_MIN..=widest).rev();
    let best = caps.map(|cap| capped(cap, columns)).find(|widths| fits(widths));
    best.unwrap_or_else(|| capped(width_max.saturating_sub(2).max(1), columns))
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
        if self.columns_left_out > 0 {
            let columns = if self.columns_left_out == 1 { "column" } else { "columns" };
            let left_out = self.columns_left_out;
            self.put(&format!("… {left_out} more {columns}; --format vertical shows all\n"))?;
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
    let last = widths.len().saturating_sub(1);
    for (i, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        let cut;
        let cell = match cell.width > width {
            true => {
                cut = clipped(&cell.text, width);
                &cut
            }
            false => cell,
        };
        let padding = " ".repeat(width.saturating_sub(cell.width));
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
    fn columns_are_cut_or_left_out_to_fit() {
        let check = |widths: &[usize], numeric: &[bool], width, expected: &[usize]| {
            assert_eq!(fitted(widths, numeric, width), expected, "{widths:?} in {width}");
        };
        check(&[5, 40, 3], &[true, false, true], 80, &[5, 40, 3]);
        // 8 for the lines and blanks between three columns.
        check(&[5, 40, 3], &[true, false, true], 46, &[5, 30, 3]);
        check(&[20, 40, 30], &[false; 3], 68, &[20, 20, 20]);
        check(&[20, 40, 30], &[false; 3], 40, &[17, 17]);
        check(&[20, 40, 30], &[true; 3], 40, &[20]);
        check(&[40], &[false], 10, &[8]);
        check(&[40], &[true], 10, &[40]);
    }

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
