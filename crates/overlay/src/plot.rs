//! What every node of a run did, as a picture.

use std::fmt::Write;

use crate::simulate::NodeReport;

const WIDTH: f64 = 900.0;
const PANEL_HEIGHT: f64 = 210.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
/// Above a panel: its title and legend. Below: the numbers of the nodes.
const ABOVE: f64 = 48.0;
const BELOW: f64 = 40.0;
/// At most so many numbers along an axis.
const TICKS: f64 = 5.0;
const NODE_TICKS: usize = 16;

/// The colours of Okabe and Ito, which stay apart for the colour-blind.
const BLUE: &str = "#0072b2";
const ORANGE: &str = "#e69f00";
const RED: &str = "#d55e00";

/// An SVG: messages that every node sent, received and forwarded, upon each other, and the latencies of
/// what it received, from half to 99% of them.
pub fn plot(title: &str, nodes: &[NodeReport]) -> String {
    let height = 30.0 + 2.0 * (PANEL_HEIGHT + ABOVE + BELOW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"#282828\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let counts = |node: &NodeReport| [node.sent, node.received, node.forwarded].map(|count| count as f64);
    let most = nodes.iter().map(|node| counts(node).iter().sum()).fold(0.0, f64::max);
    let messages = Panel { top: 30.0 + ABOVE, count: nodes.len(), most };
    let legend = [("sent", BLUE), ("received", ORANGE), ("forwarded", RED)];
    messages.frame(&mut svg, "messages", &legend);
    for (number, node) in nodes.iter().enumerate() {
        let mut below = 0.0;
        for (count, (_, colour)) in counts(node).into_iter().zip(legend) {
            messages.bar(&mut svg, number, (below, below + count), colour);
            below += count;
        }
    }
    let ms = |seconds: f64| seconds * 1e3;
    let most = nodes.iter().map(|node| ms(node.latency.p99_seconds)).fold(0.0, f64::max);
    let latencies = Panel { top: messages.top + PANEL_HEIGHT + BELOW + ABOVE, count: nodes.len(), most };
    let legend = [("half of the messages", BLUE), ("up to 99%", ORANGE)];
    latencies.frame(&mut svg, "latency, ms", &legend);
    for (number, node) in nodes.iter().enumerate() {
        let (half, most) = (ms(node.latency.p50_seconds), ms(node.latency.p99_seconds));
        latencies.bar(&mut svg, number, (0.0, half), BLUE);
        latencies.bar(&mut svg, number, (half, most), ORANGE);
    }
    svg + "</svg>\n"
}

/// Bars, one a node.
struct Panel {
    top: f64,
    count: usize,
    /// The largest value.
    most: f64,
}

impl Panel {
    fn y(&self, value: f64) -> f64 {
        self.top + PANEL_HEIGHT * (1.0 - value / self.most.max(f64::MIN_POSITIVE))
    }

    fn step(&self) -> f64 {
        (WIDTH - LEFT - RIGHT) / self.count.max(1) as f64
    }

    fn bar(&self, svg: &mut String, number: usize, (from, to): (f64, f64), colour: &str) {
        if to <= from {
            return;
        }
        // With many nodes there is no room between them.
        let width = self.step() * if self.count > 200 { 1.0 } else { 0.8 };
        let (x, y) = (LEFT + (number as f64 + 0.5) * self.step() - width / 2.0, self.y(to));
        let high = self.y(from) - y;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{high:.2}\" fill=\"{colour}\"/>"
        );
    }

    fn frame(&self, svg: &mut String, label: &str, legend: &[(&str, &str)]) {
        let bottom = self.top + PANEL_HEIGHT;
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.1}\">{label}</text>", self.top - 12.0);
        let mut x = LEFT + 110.0;
        for (name, colour) in legend {
            let y = self.top - 12.0;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{y:.1}\">{name}</text>",
                y - 9.0,
                x + 15.0,
            );
            x += 34.0 + 7.0 * name.len() as f64;
        }
        let step = tick_step(self.most);
        for number in 0..=(self.most / step) as usize {
            let value = number as f64 * step;
            let y = self.y(value);
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#e1e1e1\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                // Without what rounding leaves behind.
                (value * 1e6).round() / 1e6,
            );
        }
        let every = self.count.div_ceil(NODE_TICKS).max(1);
        for number in (0..self.count).step_by(every) {
            let x = LEFT + (number as f64 + 0.5) * self.step();
            let y = bottom + 16.0;
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{number}</text>");
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">node</text>",
            LEFT - 8.0,
            bottom + 16.0
        );
        let _ = writeln!(svg, "<path d=\"M{LEFT} {bottom:.1}H{:.1}\" stroke=\"#282828\"/>", WIDTH - RIGHT);
    }
}

/// 1, 2 or 5 times a power of ten, so that there are few ticks.
fn tick_step(most: f64) -> f64 {
    let least = (most / TICKS).max(1e-6);
    let power = 10_f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power);
    step.into_iter().find(|step| *step >= least * 0.999).unwrap_or(10.0 * power)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Result, Shape, Simulation, Traffic};

    #[test]
    fn bars_for_every_node() -> Result<()> {
        let traffic = Traffic { messages_per_node: 20, ..Traffic::default() };
        let report = Simulation { traffic, ..Simulation::new(Shape::Ring, 6, 1) }.run(None)?;
        let svg = plot("a <ring> & more", &report.per_node);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt;ring> &amp; more"));
        // The ground, five of the legends, and of each node three and two.
        assert_eq!(svg.matches("<rect ").count(), 1 + 5 + 6 * 5);
        assert!(!svg.contains("NaN"));
        Ok(())
    }

    #[test]
    fn nothing_is_an_empty_picture() {
        let svg = plot("none", &[]);
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn steps_are_round() {
        for (most, step) in [(10.0, 2.0), (7.0, 2.0), (23_000.0, 5000.0), (0.9, 0.2), (100.0, 20.0)] {
            assert!((tick_step(most) / step - 1.0).abs() < 1e-9, "{most}: {}", tick_step(most));
        }
    }
}
