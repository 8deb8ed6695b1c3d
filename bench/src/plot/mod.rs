//! Results as pictures (SVG): lines over a quantity, dots beside names.
//!
//! Every value is a median with a bar from least to most. Series differ in
//! colour, in shape, and in name; the colours are those of Okabe and Ito, which
//! stay apart for the colour-blind.

mod axis;
mod dots;
mod lines;

pub(crate) use axis::Axis;
pub(crate) use dots::{Dots, DotsPanel};
pub(crate) use lines::{Lines, LinesPanel, Series};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Result;

/// Where all of it is drawn.
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const FONT: &str = "sans-serif";
const TEXT_PIXELS: i32 = 13;
const TITLE_PIXELS: i32 = 15;
/// A row of the legend, or of names.
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

fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// The shape of a series' values, around a pixel.
fn marker(series: usize, at: (i32, i32)) -> Polygon<(i32, i32)> {
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
    Polygon::new(points, colour(series).filled())
}

fn text(pixels: i32, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    (FONT, pixels).into_text_style(&(1, 1)).color(&INK).pos(Pos::new(horizontal, vertical))
}

/// Draws on a white canvas of this size.
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

/// About as wide as a text is: the canvas knows no fonts.
fn width(text: &str, pixels: i32) -> i32 {
    i32::try_from(text.chars().count()).unwrap_or(i32::MAX / 100) * pixels * 11 / 20
}

/// Names of series with their markers, in rows of at most `width_max`; where each
/// begins, and how high all are.
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
    names: &[String],
    places: &[(i32, i32)],
    origin: (i32, i32),
) -> Result<()> {
    for (series, (name, at)) in names.iter().zip(places).enumerate() {
        let (x, y) = (origin.0 + at.0, origin.1 + at.1 + ROW_PIXELS / 2);
        canvas.draw(&marker(series, (x + 6, y)))?;
        canvas.draw(&Text::new(name.clone(), (x + 16, y), text(TEXT_PIXELS, HPos::Left, VPos::Center)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Summary;

    fn value(median: f64) -> Summary {
        Summary { median, min: median * 0.9, max: median * 1.2 }
    }

    #[test]
    fn a_plot_has_all_its_series_axes_and_panels() {
        let series = |name: &str, factor: f64| Series {
            name: name.into(),
            points: [1.0, 10.0, 100.0].map(|x| (x, value(x * factor))).to_vec(),
        };
        let panel = |title: &str| LinesPanel {
            title: title.into(),
            y: Axis::log("seconds"),
            series: vec![series("ours", 1.0), series("theirs", 3.0)],
        };
        let lines = Lines { x: Axis::log("round trip, ms"), panels: vec![panel("left"), panel("right")] };
        let svg = lines.svg().expect("drawn");
        for word in ["ours", "theirs", "seconds", "round trip, ms", "left", "right"] {
            assert!(svg.contains(word), "{word}");
        }
        // Marks of both series at all three places of both panels, and in the legend.
        assert_eq!(svg.matches("<polygon").count(), 2 * 3 * 2 + 2);
    }

    #[test]
    fn dots_stand_beside_their_names_and_gaps_stay_empty() {
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
    fn nothing_measured_is_an_empty_picture() {
        let empty = Lines { x: Axis::linear("x"), panels: vec![] };
        assert!(empty.svg().expect("drawn").contains("<svg"));
        assert!(Dots { x: Axis::log("s"), panels: vec![] }.svg().expect("drawn").contains("<svg"));
    }
}
