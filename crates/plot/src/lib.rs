//! Plots of measurements (SVG): data in, text out. No files, no clock.
//!
//! - [`Lines`]: values over a quantity, one line per series, in panels side by side.
//! - [`Dots`]: values beside row names.
//! - [`Heat`]: a value for each pair of two quantities.
//! - [`Bars`]: stacked bars, one for each of many items.
//! - [`Stacked`]: stacked bars with names, in groups.
//! - [`Axis`]: a quantity with its unit, linear or logarithmic.
//! - [`Summary`]: several measurements of one value, drawn as the median with a bar from minimum to maximum.
//!
//! Series differ in colour and marker shape. The colours are those of Okabe and Ito, which colour-blind
//! readers can distinguish; series that have an order get a ramp from dark to light. Values that are not a
//! number are gaps.
//!
//! ```
//! use lightship_plot::{Axis, Lines, LinesPanel, Series, Summary};
//!
//! let points = vec![(1.0, Summary::single(3.0)), (10.0, Summary::of([7.0, 8.0, 12.0].into_iter()))];
//! let series = vec![Series { name: "ours".into(), points }];
//! let panel = LinesPanel { title: "over wan".into(), y: Axis::linear("seconds"), series };
//! let svg = Lines::new(Axis::log("round trip, ms"), vec![panel]).svg()?;
//! assert!(svg.starts_with("<svg"));
//! # Ok::<(), lightship_plot::PlotError>(())
//! ```

mod axis;
mod bars;
mod dots;
mod heat;
mod lines;
mod stacked;

pub use axis::{Axis, binary_bytes};
pub use bars::{Bars, BarsPanel};
pub use dots::{Dots, DotsPanel};
pub use heat::{Heat, HeatCell};
pub use lines::{Lines, LinesPanel, Series};
pub use stacked::{Stacked, StackedGroup, StackedPanel};

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A picture that can't be drawn.
#[derive(Debug, thiserror::Error)]
#[error("can't draw: {0}")]
pub struct PlotError(#[from] DrawingAreaErrorKind<std::io::Error>);

type Result<T, E = PlotError> = std::result::Result<T, E>;

/// Median, minimum and maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Median. Not a number if there are no values.
    pub median: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
}

impl Summary {
    /// The summary of any number of values.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        Self { median: (at(last / 2) + at(last.div_ceil(2))) / 2.0, min: at(0), max: at(last) }
    }

    /// The summary of one value; a gap if it is not a number.
    pub fn single(value: f64) -> Self {
        Self { median: value, min: value, max: value }
    }
}

/// The drawing area.
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const FONT: &str = "sans-serif";
const TEXT_PIXELS: i32 = 13;
const TITLE_PIXELS: i32 = 15;
/// Height of a row of the legend or of names.
const ROW_PIXELS: i32 = 20;
const MARKER_PIXELS: i32 = 4;
const INK: RGBColor = RGBColor(40, 40, 40);
const RULE: RGBColor = RGBColor(225, 225, 225);
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// From dark to light, without colours too light for a white page.
const RAMP: [RGBColor; 5] = [
    RGBColor(68, 1, 84),
    RGBColor(59, 82, 139),
    RGBColor(33, 145, 140),
    RGBColor(94, 190, 80),
    RGBColor(235, 190, 20),
];

/// The colours of series.
#[derive(Debug, Clone, Copy)]
enum Palette {
    /// As different as possible.
    Distinct,
    /// A ramp for this number of ordered series.
    Ramp(usize),
}

impl Palette {
    fn colour(self, series: usize) -> RGBColor {
        match self {
            Self::Distinct => COLOURS[series % COLOURS.len()],
            Self::Ramp(count) => ramp(series as f64 / count.saturating_sub(1).max(1) as f64),
        }
    }
}

/// The colour at a position on the ramp, from 0 to 1.
fn ramp(part: f64) -> RGBColor {
    let at = part.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let (from, to) = (RAMP[at.floor() as usize], RAMP[at.ceil() as usize]);
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * at.fract()).round() as u8;
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

/// The marker of a series, centred on a pixel.
fn marker(palette: Palette, series: usize, at: (i32, i32)) -> Polygon<(i32, i32)> {
    const ROUND: [(f64, f64); 8] = [
        (1.0, 0.0),
        (0.7, 0.7),
        (0.0, 1.0),
        (-0.7, 0.7),
        (-1.0, 0.0),
        (-0.7, -0.7),
        (0.0, -1.0),
        (0.7, -0.7),
    ];
    let outline: &[(f64, f64)] = match series % COLOURS.len() {
        0 => &ROUND,
        1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2 => &[(0.0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
        3 => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
        4 => &[(0.0, 1.2), (1.1, -0.9), (-1.1, -0.9)],
        5 => &[(1.2, 0.0), (-0.9, 1.1), (-0.9, -1.1)],
        _ => &[(-1.2, 0.0), (0.9, 1.1), (0.9, -1.1)],
    };
    let scaled = |value: f64| (value * f64::from(MARKER_PIXELS)).round() as i32;
    let points: Vec<_> = outline.iter().map(|(x, y)| (at.0 + scaled(*x), at.1 + scaled(*y))).collect();
    Polygon::new(points, palette.colour(series).filled())
}

fn text(pixels: i32, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    (FONT, pixels).into_text_style(&(1, 1)).color(&INK).pos(Pos::new(horizontal, vertical))
}

/// Draws on a white canvas of the given size.
fn draw(size: (i32, i32), paint: impl FnOnce(&Canvas<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let side = |pixels: i32| u32::try_from(pixels).unwrap_or(1);
        let canvas = SVGBackend::with_string(&mut svg, (side(size.0), side(size.1))).into_drawing_area();
        canvas.fill(&WHITE)?;
        paint(&canvas)?;
        canvas.present()?;
    }
    Ok(svg)
}

/// Estimates the width of a text: the canvas has no font metrics.
fn width(text: &str, pixels: i32) -> i32 {
    i32::try_from(text.chars().count()).unwrap_or(i32::MAX / 100) * pixels * 11 / 20
}

/// Lays out the names and markers of series in rows of at most `width_max`. Returns the position of each
/// and the total height.
fn legend(names: &[String], width_max: i32) -> (Vec<(i32, i32)>, i32) {
    let (mut at, mut places) = ((0, 0), Vec::new());
    for name in names {
        let wide = width(name, TEXT_PIXELS) + 36;
        if at.0 > 0 && at.0 + wide > width_max {
            at = (0, at.1 + ROW_PIXELS);
        }
        places.push(at);
        at.0 += wide;
    }
    (places, at.1 + ROW_PIXELS * 3 / 2)
}

fn draw_legend(
    canvas: &Canvas<'_>,
    palette: Palette,
    names: &[String],
    places: &[(i32, i32)],
    origin: (i32, i32),
) -> Result<()> {
    for (series, (name, at)) in names.iter().zip(places).enumerate() {
        let (x, y) = (origin.0 + at.0, origin.1 + at.1 + ROW_PIXELS / 2);
        canvas.draw(&marker(palette, series, (x + 6, y)))?;
        canvas.draw(&Text::new(name.clone(), (x + 16, y), text(TEXT_PIXELS, HPos::Left, VPos::Center)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(median: f64) -> Summary {
        Summary { median, min: median * 0.9, max: median * 1.2 }
    }

    #[test]
    fn a_plot_shows_all_its_series_axes_and_panels() {
        let series = |name: &str, factor: f64| Series {
            name: name.into(),
            points: [1.0, 10.0, 100.0].map(|x| (x, value(x * factor))).to_vec(),
        };
        let panel = |title: &str| LinesPanel {
            title: title.into(),
            y: Axis::log("seconds"),
            series: vec![series("ours", 1.0), series("theirs", 3.0)],
        };
        let lines = Lines::new(Axis::log("round trip, ms"), vec![panel("left"), panel("right")]);
        let svg = lines.svg().expect("drawn");
        for word in ["ours", "theirs", "seconds", "round trip, ms", "left", "right"] {
            assert!(svg.contains(word), "{word}");
        }
        // Markers of both series at all three points of both panels, and in the legend.
        assert_eq!(svg.matches("<polygon").count(), 2 * 3 * 2 + 2);
    }

    #[test]
    fn dots_are_drawn_beside_their_names_and_gaps_stay_empty() {
        let panel = DotsPanel {
            title: "over wan".into(),
            rows: vec![
                ("Lightship".into(), vec![("lineitem".into(), value(1.0)), ("acs".into(), value(2.0))]),
                ("netcat".into(), vec![("lineitem".into(), value(5.0)), ("acs".into(), value(f64::NAN))]),
            ],
        };
        let svg = Dots { x: Axis::log("seconds"), panels: vec![panel] }.svg().expect("drawn");
        for word in ["Lightship", "netcat", "lineitem", "acs", "seconds", "over wan"] {
            assert!(svg.contains(word), "{word}");
        }
        assert_eq!(svg.matches("<polygon").count(), 3 + 2);
    }

    #[test]
    fn ordered_series_get_distinct_colours_of_the_ramp() {
        let series = |n: u32| Series { name: format!("{n}"), points: vec![(1.0, value(f64::from(n)))] };
        let series = (1..=11).map(series).collect();
        let panel = LinesPanel { title: String::new(), y: Axis::log("s"), series };
        let lines = Lines::new(Axis::doubling("x"), vec![panel]).in_order();
        let svg = lines.svg().expect("drawn");
        let colours: std::collections::BTreeSet<_> =
            svg.lines().filter(|line| line.contains("<polygon")).filter_map(fill).collect();
        assert_eq!(colours.len(), 11, "{colours:?}");
        assert_eq!((ramp(0.0), ramp(1.0), ramp(7.0)), (RAMP[0], RAMP[4], RAMP[4]));
    }

    fn fill(line: &str) -> Option<&str> {
        line.split("fill=\"").nth(1)?.split('"').next()
    }

    #[test]
    fn a_summary_is_a_median_with_its_range() {
        let of = |values: &[f64]| Summary::of(values.iter().copied());
        assert_eq!(of(&[3.0, 1.0, 2.0]), Summary { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(of(&[4.0, 1.0]), Summary { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(of(&[4.0]), Summary::single(4.0));
        assert!(of(&[]).median.is_nan());
    }

    #[test]
    fn no_measurements_give_an_empty_picture() {
        let empty = Lines::new(Axis::linear("x"), vec![]);
        assert!(empty.svg().expect("drawn").contains("<svg"));
        assert!(Dots { x: Axis::log("s"), panels: vec![] }.svg().expect("drawn").contains("<svg"));
    }
}
