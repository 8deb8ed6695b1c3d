//! Tables of aligned text.

use std::fmt::Write as _;

/// Appends rows with aligned columns: the first to the left, the others to the right.
pub(crate) fn columns(text: &mut String, rows: &[Vec<String>]) {
    aligned(text, 2, rows, 1);
}

/// Appends rows with an indent and aligned columns: the first `left` to the left, the others to the right.
pub(crate) fn aligned(text: &mut String, indent: usize, rows: &[Vec<String>], left: usize) {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    for row in rows {
        let mut line = " ".repeat(indent);
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            // Writing to a String can't fail.
            let _ = match column < left {
                true => write!(line, "{gap}{cell:<width$}"),
                false => write!(line, "{gap}{cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let cells = [["", "rows", "s"], ["plan", "1", "10"], ["a", "1,000", ""]];
        let mut text = String::new();
        columns(&mut text, &cells.map(|row| row.map(str::to_owned).to_vec()));
        assert_eq!(text, "         rows   s\n  plan      1  10\n  a     1,000\n");
    }
}
