//! Line plots: values over a quantity, one line per series.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use crate::{
    Axis, Canvas, INK, Palette, ROW_PIXELS, RULE, TEXT_PIXELS, TITLE_PIXELS, draw, draw_legend, legend,
    marker, text,
};
use crate::{Result, Summary};

const PANEL: (i32, i32) = (430, 330);
const PANELS_BESIDE: usize = 3;
const MARGIN: i32 = 12;

/// Panels side by side with a common legend.
#[derive(Debug, Clone)]
pub struct Lines {
    x: Axis,
    panels: Vec<LinesPanel>,
    in_order: bool,
}

/// One coordinate system.
#[derive(Debug, Clone)]
pub struct LinesPanel {
    /// The title above the panel.
    pub title: String,
    /// The vertical axis.
    pub y: Axis,
    /// The lines. A series with the same name has the same colour in every panel.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Debug, Clone)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Points: a position on the x axis and a value.
    pub points: Vec<(f64, Summary)>,
}

impl Lines {
    /// Panels over one quantity. The series have no order.
    pub fn new(x: Axis, panels: Vec<LinesPanel>) -> Self {
        Self { x, panels, in_order: false }
    }

    /// Declares that the series are ordered by a second quantity, so that their colours form a ramp.
    pub fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// Draws the plot.
    ///
    /// # Errors
    /// [`PlotError`](crate::PlotError).
    pub fn svg(&self) -> Result<String> {
        let mut names: Vec<String> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name) {
                names.push(series.name.clone());
            }
        }
        let palette = if self.in_order { Palette::Ramp(names.len()) } else { Palette::Distinct };
        let count = |panels: usize| i32::try_from(panels).unwrap_or(1);
        let (beside, above) = match self.panels.len() {
            0 | 1 => (1, 1),
            4 => (2, 2),
            panels => (panels.min(PANELS_BESIDE), panels.div_ceil(PANELS_BESIDE)),
        };
        // A single panel is as wide as a page.
        let wide = if beside == 1 { PANEL.0 * 3 / 2 } else { PANEL.0 };
        let width = wide * count(beside) + 2 * MARGIN;
        let (places, legend_height) = legend(&names, width - 2 * MARGIN);
        let height = PANEL.1 * count(above) + legend_height + 2 * MARGIN;
        draw((width, height), |canvas| {
            draw_legend(canvas, palette, &names, &places, (MARGIN, MARGIN))?;
            let (_, rest) = canvas.split_vertically(legend_height + MARGIN);
            let areas = rest.margin(0, MARGIN, MARGIN, MARGIN).split_evenly((above, beside));
            for (panel, area) in self.panels.iter().zip(&areas) {
                self.panel(panel, palette, &names, area)?;
            }
            Ok(())
        })
    }

    fn panel(&self, panel: &LinesPanel, palette: Palette, names: &[String], area: &Canvas<'_>) -> Result<()> {
        let points = || panel.series.iter().flat_map(|series| &series.points);
        let x = self.x.scale(points().map(|(x, _)| *x));
        let y = panel.y.scale(points().flat_map(|(_, y)| [y.min, y.max]));
        let title = text(TITLE_PIXELS, HPos::Left, VPos::Top);
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.title, title)
            .margin_right(18)
            .x_label_area_size(2 * ROW_PIXELS + 4)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .bold_line_style(RULE)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style(text(TEXT_PIXELS, HPos::Left, VPos::Top))
            .x_desc(self.x.label.clone())
            .y_desc(panel.y.label.clone())
            .draw()?;
        for series in &panel.series {
            let number = names.iter().position(|name| *name == series.name).unwrap_or(0);
            let known: Vec<_> = series.points.iter().filter(|(_, y)| y.median.is_finite()).collect();
            let pixel = |x: f64, y: f64| chart.backend_coord(&(x, y));
            let line: Vec<_> = known.iter().map(|(x, y)| pixel(*x, y.median)).collect();
            let origin = area.get_base_pixel();
            let inside = |(x, y): (i32, i32)| (x - origin.0, y - origin.1);
            area.draw(&PathElement::new(
                line.iter().copied().map(inside).collect::<Vec<_>>(),
                palette.colour(number).stroke_width(2),
            ))?;
            for ((x, y), at) in known.iter().zip(line) {
                let bar = [inside(pixel(*x, y.min)), inside(pixel(*x, y.max))];
                area.draw(&PathElement::new(bar, palette.colour(number).stroke_width(1)))?;
                area.draw(&marker(palette, number, inside(at)))?;
            }
        }
        Ok(())
    }
}
