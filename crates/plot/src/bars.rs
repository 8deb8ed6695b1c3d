//! Stacked bars, one for each of many numbered items.

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
const TITLE_HEIGHT: i32 = 30;
const BARS_HEIGHT: i32 = 210;
/// Space for the numbers below the bars.
const AXIS_HEIGHT: i32 = 40;
/// The most numbers shown.
const NUMBERS_MAX: usize = 16;
/// With more bars, there is no gap between them.
const APART_MAX: usize = 200;

/// Panels below each other that share the same bars.
#[derive(Debug, Clone)]
pub struct Bars {
    /// The title above all panels.
    pub title: String,
    /// What the numbers of the bars stand for.
    pub x: String,
    /// Panels from the top.
    pub panels: Vec<BarsPanel>,
}

/// Values of one quantity.
#[derive(Debug, Clone)]
pub struct BarsPanel {
    /// The vertical axis.
    pub y: Axis,
    /// Parts from the bottom: a name and a value for each bar. Values that are not a number are left out.
    pub parts: Vec<(String, Vec<f64>)>,
}

impl BarsPanel {
    fn count(&self) -> usize {
        self.parts.iter().map(|(_, values)| values.len()).max().unwrap_or(0)
    }

    /// Where each part of a bar begins and ends.
    fn parts_of(&self, bar: usize) -> Vec<(f64, f64)> {
        let mut top = 0.0;
        let value = |values: &Vec<f64>| values.get(bar).copied().filter(|value| *value > 0.0).unwrap_or(0.0);
        let part = |(_, values): &(String, Vec<f64>)| {
            let from = top;
            top += value(values);
            (from, top)
        };
        self.parts.iter().map(part).collect()
    }
}

impl Bars {
    /// Draws the bars.
    ///
    /// # Errors
    /// [`PlotError`](crate::PlotError).
    pub fn svg(&self) -> Result<String> {
        let panel_height = ROW_PIXELS * 3 / 2 + BARS_HEIGHT + AXIS_HEIGHT;
        let panels = i32::try_from(self.panels.len()).unwrap_or(0);
        draw((WIDTH, TITLE_HEIGHT + panels * panel_height + MARGIN), |canvas| {
            let title = text(TITLE_PIXELS, HPos::Left, VPos::Top);
            canvas.draw(&Text::new(self.title.clone(), (MARGIN, 6), title))?;
            for (panel, number) in self.panels.iter().zip(0..) {
                self.panel(panel, canvas, TITLE_HEIGHT + number * panel_height)?;
            }
            Ok(())
        })
    }

    fn panel(&self, panel: &BarsPanel, canvas: &Canvas<'_>, top: i32) -> Result<()> {
        let (first, right) = (top + ROW_PIXELS * 3 / 2, WIDTH - MARGIN);
        let last = first + BARS_HEIGHT;
        let style = |horizontal| text(TEXT_PIXELS, horizontal, VPos::Center);
        let label = panel.y.label.clone();
        let beside = MARGIN + width(&label, TEXT_PIXELS) + 2 * MARGIN;
        canvas.draw(&Text::new(label, (MARGIN, top + ROW_PIXELS / 2), style(HPos::Left)))?;
        let names: Vec<_> = panel.parts.iter().map(|(name, _)| name.clone()).collect();
        let (places, _) = legend(&names, WIDTH - beside);
        draw_legend(canvas, Palette::Distinct, &names, &places, (beside, top))?;

        let bars: Vec<_> = (0..panel.count()).map(|bar| panel.parts_of(bar)).collect();
        let scale = panel.y.scale(bars.iter().filter_map(|parts| parts.last()).map(|(_, top)| *top));
        let height = |value: f64| scale.map(&value, (last, first));
        for tick in scale.key_points(0) {
            let y = height(tick);
            canvas.draw(&PathElement::new([(LEFT, y), (right, y)], RULE))?;
            canvas.draw(&Text::new(scale.format_ext(&tick), (LEFT - 8, y), style(HPos::Right)))?;
        }
        let step = f64::from(right - LEFT) / bars.len().max(1) as f64;
        let place = |at: f64| LEFT + (at * step).round() as i32;
        let room = if bars.len() > APART_MAX { 0.0 } else { 0.1 };
        for (bar, parts) in bars.iter().enumerate() {
            let (from, to) = (place(bar as f64 + room), place(bar as f64 + 1.0 - room));
            for (part, (low, high)) in parts.iter().enumerate().filter(|(_, (low, high))| high > low) {
                let corners = [(from, height(*high)), (to.max(from + 1), height(*low))];
                canvas.draw(&Rectangle::new(corners, Palette::Distinct.colour(part).filled()))?;
            }
        }
        for bar in (0..bars.len()).step_by(bars.len().div_ceil(NUMBERS_MAX).max(1)) {
            let at = (place(bar as f64 + 0.5), last + 12);
            canvas.draw(&Text::new(bar.to_string(), at, style(HPos::Center)))?;
        }
        canvas.draw(&Text::new(self.x.clone(), (LEFT - 8, last + 12), style(HPos::Right)))?;
        canvas.draw(&PathElement::new([(LEFT, last), (right, last)], INK))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(panels: Vec<BarsPanel>) -> String {
        Bars { title: "a <ring> & more".into(), x: "node".into(), panels }.svg().expect("drawn")
    }

    #[test]
    fn each_value_is_drawn_as_a_part() {
        let parts = vec![("sent".into(), vec![1.0, 2.0, 0.0]), ("received".into(), vec![3.0, f64::NAN, 4.0])];
        let svg = bars(vec![BarsPanel { y: Axis::linear("messages"), parts }]);
        for word in ["a &lt;ring", "messages", "sent", "received", "node"] {
            assert!(svg.contains(word), "{word}");
        }
        // The background, and four values above 0.
        assert_eq!(svg.matches("<rect ").count(), 1 + 4);
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn parts_are_stacked() {
        let parts =
            vec![("a".into(), vec![1.0]), ("b".into(), vec![2.0, 5.0]), ("c".into(), vec![0.5, f64::NAN])];
        let panel = BarsPanel { y: Axis::linear("x"), parts };
        assert_eq!(panel.parts_of(0), [(0.0, 1.0), (1.0, 3.0), (3.0, 3.5)]);
        assert_eq!(panel.parts_of(1), [(0.0, 0.0), (0.0, 5.0), (5.0, 5.0)]);
    }

    #[test]
    fn no_bars_give_an_empty_picture() {
        let svg = bars(vec![BarsPanel { y: Axis::linear("x"), parts: vec![("a".into(), vec![])] }]);
        assert!(svg.contains("<svg") && !svg.contains("NaN") && !svg.contains("inf"));
        assert!(bars(vec![]).contains("<svg"));
    }
}
