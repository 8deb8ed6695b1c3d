//! Tables for people.

/// Rows of as many cells: the first column to the left, the others to the right.
pub(crate) fn columns(text: &mut String, rows: &[Vec<String>]) {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| {
        rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    for row in rows {
        let mut shown = String::from("  ");
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if i == 0 {
                shown.push_str(&format!("{cell:<width$}"));
            } else {
                shown.push_str(&format!("  {cell:>width$}"));
            }
        }
        text.push_str(shown.trim_end());
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
