//! Stacked bars with names, in groups: where the time of each of several runs went.

use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use crate::{
    Axis, Canvas, INK, Palette, ROW_PIXELS, RULE, Result, TEXT_PIXELS, TITLE_PIXELS, draw, draw_legend,
    legend, text, width,
};

const WIDTH: i32 = 900;
const MARGIN: i32 = 12;
const LEFT: i32 = 80;
const BARS_HEIGHT: i32 = 190;
/// Space for the names of bars and groups.
const AXIS_HEIGHT: i32 = 2 * ROW_PIXELS + 8;

/// Panels below each other, with the same parts.
#[derive(Debug, Clone)]
pub struct Stacked {
    /// Names of the parts, from the bottom.
    pub parts: Vec<String>,
    /// The vertical axis of all panels, each with its own scale.
    pub y: Axis,
    /// Panels from the top.
    pub panels: Vec<StackedPanel>,
}

/// Bars over one scale.
#[derive(Debug, Clone)]
pub struct StackedPanel {
    /// The title above the panel.
    pub title: String,
    /// Groups of bars, from the left.
    pub groups: Vec<StackedGroup>,
}

/// Bars beside each other.
#[derive(Debug, Clone)]
pub struct StackedGroup {
    /// The name below the bars.
    pub name: String,
    /// Bars: a name, and a value for each part. Values that are not above 0 are left out.
    pub bars: Vec<(String, Vec<f64>)>,
}

impl Stacked {
    /// Draws the bars.
    ///
    /// # Errors
    /// [`PlotError`](crate::PlotError).
    pub fn svg(&self) -> Result<String> {
        let (places, legend_height) = legend(&self.parts, WIDTH - 2 * MARGIN);
        let panel_height = ROW_PIXELS * 3 / 2 + BARS_HEIGHT + AXIS_HEIGHT;
        let panels = i32::try_from(self.panels.len()).unwrap_or(0);
        draw((WIDTH, 2 * MARGIN + legend_height + panels * panel_height), |canvas| {
            draw_legend(canvas, Palette::Distinct, &self.parts, &places, (MARGIN, MARGIN))?;
            for (panel, number) in self.panels.iter().zip(0..) {
                self.panel(panel, canvas, MARGIN + legend_height + number * panel_height)?;
            }
            Ok(())
        })
    }

    fn panel(&self, panel: &StackedPanel, canvas: &Canvas<'_>, top: i32) -> Result<()> {
        let (first, right) = (top + ROW_PIXELS * 3 / 2, WIDTH - MARGIN);
        let last = first + BARS_HEIGHT;
        let style = |horizontal| text(TEXT_PIXELS, horizontal, VPos::Center);
        canvas.draw(&Text::new(
            panel.title.clone(),
            (LEFT, top + ROW_PIXELS / 2),
            text(TITLE_PIXELS, HPos::Left, VPos::Center),
        ))?;
        canvas.draw(&Text::new(self.y.label.clone(), (MARGIN, top + ROW_PIXELS / 2), style(HPos::Left)))?;
        let sums = panel.groups.iter().flat_map(|group| &group.bars).map(|(_, values)| sum(values));
        let scale = self.y.scale(sums);
        let height = |value: f64| scale.map(&value, (last, first));
        for tick in scale.key_points(0) {
            let y = height(tick);
            canvas.draw(&PathElement::new([(LEFT, y), (right, y)], RULE))?;
            canvas.draw(&Text::new(scale.format_ext(&tick), (LEFT - 8, y), style(HPos::Right)))?;
        }
        // A gap of one bar between groups.
        let slots: usize = panel.groups.iter().map(|group| group.bars.len() + 1).sum();
        let step = f64::from(right - LEFT) / slots.max(1) as f64;
        let place = |at: f64| LEFT + (at * step).round() as i32;
        let mut slot = 0.5;
        for group in &panel.groups {
            let middle = place(slot + group.bars.len() as f64 / 2.0);
            canvas.draw(&Text::new(
                group.name.clone(),
                (middle, last + 2 + ROW_PIXELS * 3 / 2),
                style(HPos::Center),
            ))?;
            for (name, values) in &group.bars {
                let (from, to) = (place(slot + 0.1), place(slot + 0.9));
                let mut low = 0.0;
                for (part, value) in values.iter().enumerate().filter(|(_, value)| **value > 0.0) {
                    let corners = [(from, height(low + value)), (to.max(from + 1), height(low))];
                    canvas.draw(&Rectangle::new(corners, Palette::Distinct.colour(part).filled()))?;
                    low += value;
                }
                // Names that would overlap are left out.
                if f64::from(width(name, TEXT_PIXELS)) <= step * 1.3 {
                    canvas.draw(&Text::new(
                        name.clone(),
                        ((from + to) / 2, last + 12),
                        style(HPos::Center),
                    ))?;
                }
                slot += 1.0;
            }
            slot += 1.0;
        }
        canvas.draw(&PathElement::new([(LEFT, last), (right, last)], INK))?;
        Ok(())
    }
}

fn sum(values: &[f64]) -> f64 {
    values.iter().filter(|value| **value > 0.0).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_bars_and_parts_are_drawn_with_their_names() {
        let group = |name: &str, bars: &[(&str, [f64; 2])]| StackedGroup {
            name: name.into(),
            bars: bars.iter().map(|(name, values)| ((*name).to_owned(), values.to_vec())).collect(),
        };
        let panel = StackedPanel {
            title: "1 part".into(),
            groups: vec![
                group("Q1", &[("1", [3.0, 1.0]), ("3", [1.0, f64::NAN])]),
                group("Q3", &[("1", [0.0, 2.0])]),
            ],
        };
        let stacked = Stacked {
            parts: vec!["CPU".into(), "disk".into()],
            y: Axis::linear("seconds"),
            panels: vec![panel.clone(), panel],
        };
        let svg = stacked.svg().expect("drawn");
        for word in ["CPU", "disk", "seconds", "1 part", "Q1", "Q3"] {
            assert!(svg.contains(word), "{word}");
        }
        // The background, and four values above 0 in each panel.
        assert_eq!(svg.matches("<rect ").count(), 1 + 2 * 4);
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn no_bars_give_an_empty_picture() {
        let empty = |panels| Stacked { parts: vec![], y: Axis::linear("s"), panels };
        let none = StackedPanel { title: "t".into(), groups: vec![] };
        for panels in [vec![], vec![none]] {
            let svg = empty(panels).svg().expect("drawn");
            assert!(svg.contains("<svg") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }
}
