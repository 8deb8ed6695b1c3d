//! Dot plots: values beside row names.

use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use crate::{
    Axis, Canvas, INK, Palette, ROW_PIXELS, RULE, TEXT_PIXELS, TITLE_PIXELS, draw, draw_legend, legend,
    marker, text, width,
};
use crate::{Result, Summary};

const WIDTH: i32 = 900;
const MARGIN: i32 = 12;
/// Space above and below the rows of a panel, for its title, ticks and axis label.
const TITLE_HEIGHT: i32 = 26;
const AXIS_HEIGHT: i32 = 46;

/// Panels below each other with the same kind of axis.
#[derive(Debug, Clone)]
pub struct Dots {
    /// The horizontal axis.
    pub x: Axis,
    /// Panels from the top.
    pub panels: Vec<DotsPanel>,
}

/// A titled group of rows.
#[derive(Debug, Clone)]
pub struct DotsPanel {
    /// The title above the panel.
    pub title: String,
    /// Rows: a name, and a value for each series. A value that is not a number is a gap.
    pub rows: Vec<(String, Vec<(String, Summary)>)>,
}

impl DotsPanel {
    fn height(&self) -> i32 {
        TITLE_HEIGHT + AXIS_HEIGHT + ROW_PIXELS * i32::try_from(self.rows.len()).unwrap_or(0)
    }
}

impl Dots {
    /// Draws the dots.
    ///
    /// # Errors
    /// [`PlotError`](crate::PlotError).
    pub fn svg(&self) -> Result<String> {
        let rows = || self.panels.iter().flat_map(|panel| &panel.rows);
        let mut names: Vec<String> = Vec::new();
        for (name, _) in rows().flat_map(|(_, values)| values) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        // A single series needs no legend.
        if names.len() == 1 {
            names.clear();
        }
        let labels = rows().map(|(name, _)| width(name, TEXT_PIXELS)).max().unwrap_or(0) + 2 * MARGIN;
        let (places, legend_height) = legend(&names, WIDTH - 2 * MARGIN);
        let legend_height = if names.is_empty() { 0 } else { legend_height };
        let height = self.panels.iter().map(DotsPanel::height).sum::<i32>() + legend_height + 2 * MARGIN;
        draw((WIDTH, height), |canvas| {
            draw_legend(canvas, Palette::Distinct, &names, &places, (MARGIN, MARGIN))?;
            let mut top = MARGIN + legend_height;
            for panel in &self.panels {
                self.panel(panel, &names, canvas, (labels, top))?;
                top += panel.height();
            }
            Ok(())
        })
    }

    fn panel(
        &self,
        panel: &DotsPanel,
        names: &[String],
        canvas: &Canvas<'_>,
        (left, top): (i32, i32),
    ) -> Result<()> {
        let values = panel.rows.iter().flat_map(|(_, values)| values);
        let scale = self.x.scale(values.flat_map(|(_, value)| [value.min, value.max]));
        let (first, right) = (top + TITLE_HEIGHT, WIDTH - MARGIN - 24);
        let last = top + panel.height() - AXIS_HEIGHT;
        let column = |value: f64| scale.map(&value, (left, right));
        let style = |horizontal| text(TEXT_PIXELS, horizontal, VPos::Center);
        let title = text(TITLE_PIXELS, HPos::Left, VPos::Top);
        canvas.draw(&Text::new(panel.title.clone(), (MARGIN, top + 2), title))?;
        for tick in scale.key_points(0) {
            let x = column(tick);
            canvas.draw(&PathElement::new([(x, first), (x, last)], RULE))?;
            canvas.draw(&Text::new(scale.format_ext(&tick), (x, last + 9), style(HPos::Center)))?;
        }
        let middle = (left + right) / 2;
        canvas.draw(&Text::new(self.x.label.clone(), (middle, last + 26), style(HPos::Center)))?;
        for ((name, values), row) in panel.rows.iter().zip(0..) {
            let y = first + ROW_PIXELS * row + ROW_PIXELS / 2;
            canvas.draw(&Text::new(name.clone(), (left - MARGIN, y), style(HPos::Right)))?;
            canvas.draw(&PathElement::new([(left, y), (right, y)], RULE))?;
            for (series, value) in values.iter().filter(|(_, value)| value.median.is_finite()) {
                let number = names.iter().position(|name| name == series).unwrap_or(0);
                let at = |value: f64| (column(value), y);
                let bar = PathElement::new(
                    [at(value.min), at(value.max)],
                    Palette::Distinct.colour(number).stroke_width(2),
                );
                canvas.draw(&bar)?;
                canvas.draw(&marker(Palette::Distinct, number, at(value.median)))?;
            }
        }
        canvas.draw(&PathElement::new([(left, first), (left, last)], INK))?;
        canvas.draw(&PathElement::new([(left, last), (right, last)], INK))?;
        Ok(())
    }
}
