//! `lightship overlay show`: shows the properties of a topology.

use std::path::PathBuf;

use clap::Args;
use lightship::ErrorKind;
use lightship_overlay::{Direct, LowerBound, Routes, Shape, Topology, TopologyMetrics, draw};
use serde::Serialize;

use super::shape::ShapeArgs;
use crate::columns::columns;
use crate::commands::manual::print;
use crate::error::CliError;
use crate::size::grouped;

/// A drawing with more lines would be unreadable and huge.
const DRAWN_LINKS_MAX: usize = 200_000;

/// Show the properties of a topology: connections, hops, forwards
///
/// Prints how many connections and sockets a node has, how many hops it is from one node to another,
/// how often a message is forwarded if all nodes send to all, and how many links or nodes must fail
/// before some node can't reach another.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship overlay show --topology circulant --nodes 60 --degree 12
  lightship overlay show --topology binomial --nodes 60 --base 3 \\
      -o binomial.svg
  lightship overlay show --topology circulant --nodes 60 \\
      --offsets 2,7,15,23,26,27
  lightship overlay show --topology original --nodes 60 --degree 6 --json")]
pub(super) struct ShowArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Draw the topology to this file, as SVG.
    #[arg(short, long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
}

/// The object of `--json`, which is also part of that of `simulate` and `run`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TopologyReport {
    name: &'static str,
    /// The requested shape.
    pub(super) shape: Shape,
    /// Most connections that any node sends on.
    pub(super) degree: usize,
    /// Whether both ends of a connection send on it.
    pub(super) both_ways: bool,
    /// With uniform traffic from all to all, over shortest paths.
    forwards_per_message: f64,
    #[serde(flatten)]
    pub(super) figures: TopologyMetrics,
}

impl TopologyReport {
    pub(super) fn of(routes: &Routes) -> Self {
        let topology = routes.topology();
        let figures = TopologyMetrics::of(routes);
        Self {
            name: topology.shape().name(),
            shape: topology.shape().clone(),
            degree: (0..topology.nodes()).map(|node| topology.links(node).len()).max().unwrap_or(0),
            both_ways: topology.both_ways(),
            forwards_per_message: figures.mean_hops - 1.0,
            figures,
        }
    }

    /// `circulant of 60 nodes (offsets 2, 7)`.
    pub(super) fn title(&self) -> String {
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let of = match &self.shape {
            Shape::Circulant { offsets } => format!(" (offsets {})", list(offsets)),
            Shape::Binomial { base } => format!(" (base {base})"),
            Shape::Torus { dimensions } => format!(" ({dimensions} dimensions)"),
            Shape::Tree { arity } => format!(" ({arity} children each)"),
            Shape::Kautz { degree, .. } | Shape::Original { degree } => {
                format!(" ({degree} opened per node)")
            }
            _ => String::new(),
        };
        let ways = if self.both_ways { "both ways" } else { "one way" };
        format!("{} of {} nodes{of}, used {ways}", self.name, grouped(self.figures.nodes as u64))
    }

    fn text(&self) -> String {
        let figures = &self.figures;
        let least = |least: &LowerBound| {
            let at_least = if least.exact { "" } else { "at least " };
            format!("{at_least}{}", least.at_least)
        };
        let rows = [
            ("connections that a node sends on", self.degree.to_string()),
            (
                "sockets of a node",
                if figures.sockets_mean.fract() == 0.0 && figures.sockets_mean as usize == figures.sockets_max
                {
                    figures.sockets_max.to_string()
                } else {
                    format!("{:.1}, at most {}", figures.sockets_mean, figures.sockets_max)
                },
            ),
            ("diameter, hops", figures.diameter.to_string()),
            ("mean hops", format!("{:.3}", figures.mean_hops)),
            ("lower bound of mean hops", format!("{:.3}", figures.moore_mean_hops)),
            ("forwards per message", format!("{:.3}", self.forwards_per_message)),
            ("links that must fail to cut a node off", least(&figures.edge_connectivity)),
            ("nodes that must fail to cut a node off", least(&figures.vertex_connectivity)),
        ];
        let mut text = self.title() + "\n";
        columns(&mut text, &rows.map(|(name, value)| vec![name.to_owned(), value]));
        text
    }
}

pub(super) fn cmd_show(args: &ShowArgs, json: bool) -> Result<(), CliError> {
    let routes = Routes::new(Topology::new(args.shape.shape()?, args.shape.nodes)?);
    let shown = TopologyReport::of(&routes);
    if let Some(path) = &args.output {
        let topology = routes.topology();
        let links: usize = (0..topology.nodes()).map(|node| topology.links(node).len()).sum();
        if links > DRAWN_LINKS_MAX {
            let links = grouped(links as u64);
            return Err(CliError::new(
                ErrorKind::Limits,
                format!("{links} links are too many for a drawing"),
            )
            .hint("draw fewer nodes, or leave out -o to get the figures only"));
        }
        super::write(path, &draw(topology, &Direct::new()))?;
    }
    let text = if json {
        serde_json::to_string(&shown).map_err(|e| CliError::internal(e.to_string()))? + "\n"
    } else {
        shown.text()
    };
    print(text.as_bytes())
}
