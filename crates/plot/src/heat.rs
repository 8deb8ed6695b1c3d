//! Heat maps: a value for each pair of two quantities, as colours.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use crate::{INK, RULE, Result, TEXT_PIXELS, TITLE_PIXELS, draw, ramp, text, width};

const CELL: (i32, i32) = (64, 26);
const MARGIN: i32 = 12;
const TITLE_HEIGHT: i32 = 30;
/// Space below the cells for column names and the axis label.
const AXIS_HEIGHT: i32 = 50;

/// A table of colours, from the lowest value (dark) to the highest (light).
#[derive(Debug, Clone)]
pub struct Heat {
    /// The title above the table: what the values are, with their unit.
    pub title: String,
    /// The label of the columns, and their names from the left.
    pub columns: (String, Vec<String>),
    /// The label of the rows, and their names from the bottom.
    pub rows: (String, Vec<String>),
    /// Cells by row from the bottom, then by column; `None` if nothing was measured.
    pub cells: Vec<Vec<Option<HeatCell>>>,
}

/// The cell of one pair.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatCell {
    /// The value that determines the colour. If it is not a number, the cell is grey.
    pub value: f64,
    /// The text in the cell.
    pub text: String,
}

impl Heat {
    /// Draws the heat map.
    ///
    /// # Errors
    /// [`PlotError`](crate::PlotError).
    pub fn svg(&self) -> Result<String> {
        let count = |names: &[String]| i32::try_from(names.len()).unwrap_or(0);
        let labels = self.rows.1.iter().map(|name| width(name, TEXT_PIXELS)).max().unwrap_or(0);
        let left = labels + 3 * MARGIN + TEXT_PIXELS;
        let (right, bottom) =
            (left + CELL.0 * count(&self.columns.1), TITLE_HEIGHT + MARGIN + CELL.1 * count(&self.rows.1));
        let size = (right.max(left + width(&self.title, TITLE_PIXELS)) + MARGIN, bottom + AXIS_HEIGHT);
        let style = |horizontal| text(TEXT_PIXELS, horizontal, VPos::Center);
        draw(size, |canvas| {
            let title = text(TITLE_PIXELS, HPos::Left, VPos::Top);
            canvas.draw(&Text::new(self.title.clone(), (left, MARGIN), title))?;
            for (name, row) in self.rows.1.iter().zip(0..) {
                let y = bottom - CELL.1 * row - CELL.1 / 2;
                canvas.draw(&Text::new(name.clone(), (left - MARGIN, y), style(HPos::Right)))?;
            }
            for (name, column) in self.columns.1.iter().zip(0..) {
                let x = left + CELL.0 * column + CELL.0 / 2;
                canvas.draw(&Text::new(name.clone(), (x, bottom + 12), style(HPos::Center)))?;
            }
            let middle = (left + right) / 2;
            canvas.draw(&Text::new(self.columns.0.clone(), (middle, bottom + 34), style(HPos::Center)))?;
            let upwards = style(HPos::Center).transform(FontTransform::Rotate270);
            let centre = (MARGIN, (TITLE_HEIGHT + MARGIN + bottom) / 2);
            canvas.draw(&Text::new(self.rows.0.clone(), centre, upwards))?;
            let part = self.part();
            for (row, cells) in (0..).zip(&self.cells) {
                for (column, cell) in (0..).zip(cells) {
                    let Some(cell) = cell else { continue };
                    let corner = (left + CELL.0 * column, bottom - CELL.1 * (row + 1));
                    let end = (corner.0 + CELL.0 - 1, corner.1 + CELL.1 - 1);
                    let (fill, ink) = match cell.value.is_finite() {
                        true => {
                            let part = part(cell.value);
                            (ramp(part), if part < 0.6 { WHITE } else { INK })
                        }
                        false => (RULE, INK),
                    };
                    canvas.draw(&Rectangle::new([corner, end], fill.filled()))?;
                    let at = (corner.0 + CELL.0 / 2, corner.1 + CELL.1 / 2);
                    canvas.draw(&Text::new(cell.text.clone(), at, style(HPos::Center).color(&ink)))?;
                }
            }
            Ok(())
        })
    }

    /// Maps a value to its position between the lowest (0) and the highest (1).
    fn part(&self) -> impl Fn(f64) -> f64 {
        let values =
            || self.cells.iter().flatten().flatten().map(|cell| cell.value).filter(|v| v.is_finite());
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        move |value| if high > low { (value - low) / (high - low) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_shows_its_text_and_gaps_are_empty() {
        let cell = |value: f64| Some(HeatCell { value, text: format!("v{value}") });
        let heat = Heat {
            title: "throughput".into(),
            columns: ("message".into(), vec!["256 B".into(), "1 KiB".into()]),
            rows: ("connections".into(), vec!["2".into(), "4".into()]),
            cells: vec![vec![cell(1.0), None], vec![cell(9.0), cell(f64::NAN)]],
        };
        let svg = heat.svg().expect("drawn");
        for word in ["throughput", "message", "connections", "256 B", "v1", "v9", "vNaN"] {
            assert!(svg.contains(word), "{word}");
        }
        // The background and three cells.
        assert_eq!(svg.matches("<rect").count(), 4);
        assert_eq!([heat.part()(1.0), heat.part()(5.0), heat.part()(9.0)], [0.0, 0.5, 1.0]);
        let none = Heat { columns: ("".into(), vec![]), rows: ("".into(), vec![]), cells: vec![], ..heat };
        assert!(none.svg().expect("drawn").contains("<svg"));
    }
}
