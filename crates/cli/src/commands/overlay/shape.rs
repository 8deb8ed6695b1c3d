//! From what was typed to a topology.

use clap::{Args, ValueEnum};
use lightship_overlay::{NODES_MAX, Shape, circulant};

use crate::error::CliError;

/// Sets of offsets that are tried for a circulant, at up to this many nodes; fewer above, as a try
/// takes longer.
const TRIES: usize = 1000;
const TRIES_NODES: usize = 512;
const TRIES_MIN: usize = 50;

/// Families of topologies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Family {
    /// All to all.
    Mesh,
    /// Each to the one before and the one after.
    Ring,
    /// Each to those whose number differs in one bit.
    Hypercube,
    /// A grid whose edges are joined.
    Torus,
    /// Each to its parent and its children.
    Tree,
    /// Each to i +- c^k (--base).
    Binomial,
    /// The generalised Kautz graph.
    Kautz,
    /// Each to i +- offsets that a search finds.
    Circulant,
    /// The overlay of Samson's thesis.
    Original,
}

/// Which topology, of how many nodes.
#[derive(Debug, Clone, Args)]
pub(super) struct ShapeArgs {
    /// Which nodes are connected.
    #[arg(long, value_name = "NAME", help_heading = "Topology")]
    pub(super) topology: Family,
    /// How many nodes there are, 2 to 4096.
    #[arg(long, value_name = "N", help_heading = "Topology")]
    pub(super) nodes: usize,
    /// Connections of a node: of a circulant all it has; of a torus two for each dimension; of a tree its
    /// children and its parent; of the original and of Kautz those that it opens. Others have the
    /// degree that they have.
    #[arg(long, value_name = "D", help_heading = "Topology")]
    pub(super) degree: Option<usize>,
    /// Base of a binomial graph. [default: 2, or what gives the degree]
    #[arg(long, value_name = "C", help_heading = "Topology")]
    base: Option<usize>,
    /// Offsets of a circulant. [default: what a search from the seed finds]
    #[arg(long, value_name = "N,...", value_delimiter = ',', help_heading = "Topology")]
    offsets: Vec<usize>,
    /// Send on the connections that a node opened only, as a Kautz graph is defined.
    #[arg(long, help_heading = "Topology")]
    one_way: bool,
    /// Of all that is drawn at random: same seed, same result.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(super) seed: u64,
}

impl ShapeArgs {
    /// The topology.
    pub(super) fn shape(&self) -> Result<Shape, CliError> {
        let Self { topology, nodes, .. } = *self;
        if !(2..=NODES_MAX).contains(&nodes) {
            return Err(CliError::usage(format!("--nodes {nodes}: there are overlays of 2 to {NODES_MAX}")));
        }
        let name = self.name();
        if self.base.is_some() && topology != Family::Binomial {
            return Err(CliError::usage(format!("--base is of binomial graphs, and this is a {name}")));
        }
        if !self.offsets.is_empty() && topology != Family::Circulant {
            return Err(CliError::usage(format!("--offsets are of circulants, and this is a {name}"))
                .hint("--topology circulant"));
        }
        if self.one_way && topology != Family::Kautz {
            let ways = if topology == Family::Original { "is always used so" } else { "is not" };
            return Err(CliError::usage(format!("--one-way is for Kautz graphs; a {name} {ways}")));
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
                    "--degree {degree}: a node of a tree has a parent and a child at least"
                ))
                .hint("--degree 3: two children")),
                degree => Ok(Shape::Tree { arity: degree - 1 }),
            },
            Family::Binomial => self.binomial(),
            Family::Kautz => Ok(Shape::Kautz { degree: self.required()?, both_ways: !self.one_way }),
            Family::Original => Ok(Shape::Original { degree: self.required()? }),
            Family::Circulant if !self.offsets.is_empty() => {
                if self.degree.is_some() {
                    return Err(CliError::usage("--offsets say the degree").hint("leave --degree out"));
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

    /// The degree, where there is none to fall back to.
    pub(super) fn required(&self) -> Result<usize, CliError> {
        self.degree.ok_or_else(|| {
            CliError::usage(format!("--degree: how many connections has a node of this {}?", self.name()))
                .hint("for example --degree 6")
        })
    }

    /// A topology that has the degree it has.
    fn fixed(&self, shape: Shape, degree: usize) -> Result<Shape, CliError> {
        match self.degree {
            // Whether there is such a hypercube is for itself to say.
            Some(other) if other != degree && (shape != Shape::Hypercube || self.nodes.is_power_of_two()) => {
                let (name, nodes) = (self.name(), self.nodes);
                Err(CliError::usage(format!(
                    "--degree {other}: a node of a {name} of {nodes} has {degree} connections"
                ))
                .hint(format!("leave --degree out, or --topology circulant --degree {other}")))
            }
            _ => Ok(shape),
        }
    }

    fn binomial(&self) -> Result<Shape, CliError> {
        match (self.base, self.degree) {
            (Some(base), None) => Ok(Shape::Binomial { base }),
            (None, None) => Ok(Shape::Binomial { base: 2 }),
            (Some(_), Some(_)) => Err(CliError::usage("--base says the degree of a binomial graph")
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
                    "--degree {degree}: no binomial graph of {} nodes has it, whatever its base",
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

/// Connections of a node: two for each power of the base, but where both lead to the same node.
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
    use lightship_overlay::{Figures, Routes, Topology};

    use super::*;

    #[test]
    fn degrees_of_binomial_graphs() {
        for nodes in [2, 3, 7, 16, 60, 81] {
            for base in 2..6 {
                let topology = Topology::new(Shape::Binomial { base }, nodes).unwrap();
                let figures = Figures::of(&Routes::new(topology));
                assert_eq!(binomial_degree(nodes, base), figures.sockets_max, "{nodes} {base}");
            }
        }
    }
}
