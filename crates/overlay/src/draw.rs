//! Draws a topology.

use std::f64::consts::TAU;
use std::fmt::Write;

use crate::direct::Direct;
use crate::topology::Topology;

/// Width and height.
const SIZE: f64 = 640.0;
const RADIUS: f64 = 290.0;
/// Above this many nodes, their numbers don't fit.
const NUMBERED_MAX: usize = 128;

/// Draws an SVG: nodes on a circle, links as lines, direct connections dashed.
pub fn draw(topology: &Topology, direct: &Direct) -> String {
    let nodes = topology.nodes();
    let at = |node: usize, radius: f64| {
        let angle = TAU * node as f64 / nodes as f64 - TAU / 4.0;
        (SIZE / 2.0 + radius * angle.cos(), SIZE / 2.0 + radius * angle.sin())
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {SIZE} {SIZE}\" font-family=\"sans-serif\" \
         font-size=\"9\" text-anchor=\"middle\">\n<title>{} of {nodes} nodes</title>\n",
        topology.shape().name()
    );
    let mut lines = |of: &mut dyn Iterator<Item = (usize, usize)>, style: &str| {
        let _ = writeln!(svg, "<g {style}>");
        for (from, to) in of {
            let ((x1, y1), (x2, y2)) = (at(from, RADIUS), at(to, RADIUS));
            let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
        }
        svg += "</g>\n";
    };
    // One line for both directions.
    let is_drawn = |from: usize, to: usize| from < to || !topology.links(to).contains(&(from as u32));
    let links = (0..nodes).flat_map(|from| topology.links(from).iter().map(move |to| (from, *to as usize)));
    lines(&mut links.filter(|(from, to)| is_drawn(*from, *to)), "stroke=\"#456\" stroke-width=\"0.6\"");
    if !direct.is_empty() {
        let mut direct = direct.iter().map(|(from, to)| (*from as usize, *to as usize));
        lines(&mut direct, "stroke=\"#c40\" stroke-width=\"0.8\" stroke-dasharray=\"4 3\"");
    }
    for node in 0..nodes {
        let (x, y) = at(node, RADIUS);
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#123\"/>");
        if nodes <= NUMBERED_MAX {
            let (x, y) = at(node, RADIUS + 14.0);
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\">{node}</text>", y + 3.0);
        }
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Result, Shape};

    #[test]
    fn each_link_is_drawn_as_one_line() -> Result<()> {
        let count = |shape, direct: &[(u32, u32)]| -> Result<_> {
            let svg = draw(&Topology::new(shape, 12)?, &direct.iter().copied().collect());
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
            Ok((svg.matches("<line ").count(), svg.matches("<circle ").count()))
        };
        assert_eq!(count(Shape::Ring, &[])?, (12, 12));
        assert_eq!(count(Shape::Circulant { offsets: vec![1, 6] }, &[(0, 4)])?, (19, 12));
        assert_eq!(count(Shape::Original { degree: 2 }, &[])?, (24, 12));
        Ok(())
    }
}
