//! The options of a topology.

use clap::{Args, ValueEnum};
use lightship_overlay::{NODES_MAX, Shape, circulant};

use crate::error::CliError;

/// Number of sets of offsets that are tried for a circulant of up to `TRIES_NODES` nodes; fewer for
/// more nodes, because each try takes longer.
const TRIES: usize = 1000;
const TRIES_NODES: usize = 512;
const TRIES_MIN: usize = 50;

/// Families of topologies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Family {
    /// Every node is connected to all others.
    Mesh,
    /// Node i is connected to i - 1 and i + 1.
    Ring,
    /// Nodes whose numbers differ in one bit are connected; the number of nodes is a power of two.
    Hypercube,
    /// A grid whose opposite edges are joined.
    Torus,
    /// A node is connected to its parent and its children.
    Tree,
    /// Node i is connected to i +- c^k, where c is --base.
    Binomial,
    /// The generalised Kautz graph.
    Kautz,
    /// Node i is connected to i +- each offset; a search finds the offsets with the fewest hops.
    Circulant,
    /// The overlay of Samson's thesis.
    Original,
}

/// The topology and its number of nodes.
#[derive(Debug, Clone, Args)]
pub(super) struct ShapeArgs {
    /// Which nodes are connected.
    #[arg(long, value_name = "NAME", help_heading = "Topology")]
    pub(super) topology: Family,
    /// Number of nodes, 2 to 4096.
    #[arg(long, value_name = "N", help_heading = "Topology")]
    pub(super) nodes: usize,
    /// Connections per node: in a circulant, all; in a torus, two for each dimension; in a tree, to the
    /// children and the parent; in original and kautz, those that a node opens. The degree of a mesh, a
    /// ring and a hypercube is fixed.
    #[arg(long, value_name = "D", help_heading = "Topology")]
    pub(super) degree: Option<usize>,
    /// Base of a binomial graph. [default: 2, or the base that gives --degree]
    #[arg(long, value_name = "C", help_heading = "Topology")]
    base: Option<usize>,
    /// Offsets of a circulant. [default: those that a search finds, starting from --seed]
    #[arg(long, value_name = "N,...", value_delimiter = ',', help_heading = "Topology")]
    offsets: Vec<usize>,
    /// Send only on connections that a node has opened, as Kautz graphs are defined.
    #[arg(long, help_heading = "Topology")]
    one_way: bool,
    /// Seed of all random choices. The same seed gives the same choices.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(super) seed: u64,
}

impl ShapeArgs {
    /// The topology.
    pub(super) fn shape(&self) -> Result<Shape, CliError> {
        let Self { topology, nodes, .. } = *self;
        if !(2..=NODES_MAX).contains(&nodes) {
            return Err(CliError::usage(format!("--nodes {nodes}: expected 2 to {NODES_MAX}")));
        }
        let name = self.name();
        if self.base.is_some() && topology != Family::Binomial {
            return Err(CliError::usage(format!("--base is only for binomial graphs, not for a {name}")));
        }
        if !self.offsets.is_empty() && topology != Family::Circulant {
            return Err(CliError::usage(format!("--offsets are only for circulants, not for a {name}"))
                .hint("use --topology circulant"));
        }
        if self.one_way && topology != Family::Kautz {
            let ways = if topology == Family::Original { "one way" } else { "both ways" };
            return Err(CliError::usage(format!(
                "--one-way is for Kautz graphs; {name} is always used {ways}"
            )));
        }
        match topology {
            Family::Mesh => self.fixed(Shape::FullMesh, nodes - 1),
            Family::Ring => self.fixed(Shape::Ring, 2.min(nodes - 1)),
            Family::Hypercube => self.fixed(Shape::Hypercube, nodes.ilog2() as usize),
            Family::Torus => match self.degree.unwrap_or(4) {
                degree if degree % 2 == 0 && degree >= 4 => Ok(Shape::Torus { dimensions: degree / 2 }),
                degree => Err(CliError::usage(format!(
                    "--degree {degree}: a torus has 2 connections for each of at least 2 dimensions"
                ))
                .hint(format!("--degree {}", (degree + 1).max(4) / 2 * 2))),
            },
            Family::Tree => match self.required()? {
                degree @ (0 | 1) => Err(CliError::usage(format!(
                    "--degree {degree}: a node of a tree has at least 2 connections, to a parent and a child"
                ))
                .hint("--degree 3: two children")),
                degree => Ok(Shape::Tree { arity: degree - 1 }),
            },
            Family::Binomial => self.binomial(),
            Family::Kautz => Ok(Shape::Kautz { degree: self.required()?, both_ways: !self.one_way }),
            Family::Original => Ok(Shape::Original { degree: self.required()? }),
            Family::Circulant if !self.offsets.is_empty() => {
                if self.degree.is_some() {
                    return Err(CliError::usage("--offsets determine the degree").hint("leave out --degree"));
                }
                Ok(Shape::Circulant { offsets: self.offsets.clone() })
            }
            Family::Circulant => Ok(circulant(nodes, self.required()?, self.tries(), self.seed)?),
        }
    }

    /// How many sets of offsets to try for a circulant.
    pub(super) fn tries(&self) -> usize {
        (TRIES * TRIES_NODES / self.nodes.max(TRIES_NODES)).max(TRIES_MIN)
    }

    pub(super) fn name(&self) -> String {
        self.topology.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The degree, for topologies without a default.
    pub(super) fn required(&self) -> Result<usize, CliError> {
        self.degree.ok_or_else(|| {
            CliError::usage(format!("{} requires --degree, the connections per node", self.name()))
                .hint("for example --degree 6")
        })
    }

    /// A topology whose degree is fixed.
    fn fixed(&self, shape: Shape, degree: usize) -> Result<Shape, CliError> {
        match self.degree {
            // A hypercube with a wrong number of nodes is refused later, with a better error.
            Some(other) if other != degree && (shape != Shape::Hypercube || self.nodes.is_power_of_two()) => {
                let (name, nodes) = (self.name(), self.nodes);
                Err(CliError::usage(format!(
                    "--degree {other}: a node of a {name} of {nodes} has {degree} connections"
                ))
                .hint(format!("leave out --degree, or use --topology circulant --degree {other}")))
            }
            _ => Ok(shape),
        }
    }

    fn binomial(&self) -> Result<Shape, CliError> {
        match (self.base, self.degree) {
            (Some(base), None) => Ok(Shape::Binomial { base }),
            (None, None) => Ok(Shape::Binomial { base: 2 }),
            (Some(_), Some(_)) => Err(CliError::usage("--base determines the degree of a binomial graph")
                .hint("leave out --base or --degree")),
            (None, Some(degree)) => {
                let bases = || (2..=self.nodes).map(|base| (base, binomial_degree(self.nodes, base)));
                if let Some((base, _)) = bases().find(|(_, found)| *found == degree) {
                    return Ok(Shape::Binomial { base });
                }
                let mut degrees: Vec<_> = bases().map(|(_, degree)| degree).collect();
                degrees.dedup();
                let nearest = degrees.into_iter().min_by_key(|found| found.abs_diff(degree));
                Err(CliError::usage(format!(
                    "--degree {degree}: no binomial graph of {} nodes has this degree, with any base",
                    self.nodes
                ))
                .hint(match nearest {
                    Some(nearest) => format!("--degree {nearest}, or --topology circulant --degree {degree}"),
                    None => format!("--topology circulant --degree {degree}"),
                }))
            }
        }
    }
}

/// Connections of a node: two for each power of the base, or one if both lead to the same node.
fn binomial_degree(nodes: usize, base: usize) -> usize {
    let powers = std::iter::successors(Some(1), |power| Some(power * base));
    let both = powers.take_while(|power| *power < nodes).flat_map(|power| [power, nodes - power]);
    let mut both: Vec<_> = both.collect();
    both.sort_unstable();
    both.dedup();
    both.len()
}

#[cfg(test)]
mod tests {
    use lightship_overlay::{Routes, Topology, TopologyMetrics};

    use super::*;

    #[test]
    fn degrees_of_binomial_graphs() {
        for nodes in [2, 3, 7, 16, 60, 81] {
            for base in 2..6 {
                let topology = Topology::new(Shape::Binomial { base }, nodes).unwrap();
                let figures = TopologyMetrics::of(&Routes::new(topology));
                assert_eq!(binomial_degree(nodes, base), figures.sockets_max, "{nodes} {base}");
            }
        }
    }
}
