//! Builds the links of a topology from its shape.

use serde::{Deserialize, Serialize};

use super::{NODES_MAX, Symmetry};
use crate::error::{OverlayError, Result, count_within};

/// A family of topologies, with the parameters that select one of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "topology")]
#[non_exhaustive]
pub enum Shape {
    /// Every node is connected to every other.
    FullMesh,
    /// Every node is connected to the previous and the next.
    Ring,
    /// Every node is connected to the nodes whose numbers differ in one bit. The number of nodes must be a
    /// power of two.
    Hypercube,
    /// A grid whose edges are joined. Its sides are at least 2 and as equal as the number of nodes allows.
    Torus {
        /// Number of sides, at least 2.
        dimensions: usize,
    },
    /// Node i has the children `arity i + 1` to `arity i + arity`.
    Tree {
        /// Children per node, at least 1.
        arity: usize,
    },
    /// The binomial graph of Angskun, Bosilca and Dongarra with any base: node i is connected to
    /// `i +- base^k`, for each `base^k` below the number of nodes.
    Binomial {
        /// At least 2.
        base: usize,
    },
    /// The generalised Kautz graph of Imase and Itoh: links from node i to `-(degree i + j)`, j = 1 to
    /// degree. Links from a node to itself and duplicate links are left out.
    Kautz {
        /// Connections that a node opens.
        degree: usize,
        /// Whether links are used both ways; the graph itself uses them one way.
        both_ways: bool,
    },
    /// The overlay of Samson's thesis: links from node i to `i + round(nodes^(k / degree))`, k = 0 to
    /// degree - 1, used one way. Duplicate links are left out.
    Original {
        /// Connections that a node opens. Others open as many to it.
        degree: usize,
    },
    /// Node i is connected to `i +- offset`, both ways. [`circulant`](crate::circulant()) finds good
    /// offsets.
    Circulant {
        /// From 1 to half the number of nodes. An offset of exactly half takes one socket per node, any
        /// other offset two.
        offsets: Vec<usize>,
    },
}

/// The result of a construction. It may list a link that is used both ways in one direction only.
pub(super) struct Built {
    pub(super) links: Vec<Vec<u32>>,
    pub(super) both_ways: bool,
    pub(super) symmetry: Symmetry,
}

impl Shape {
    /// The name of the family.
    pub fn name(&self) -> &'static str {
        match self {
            Self::FullMesh => "full mesh",
            Self::Ring => "ring",
            Self::Hypercube => "hypercube",
            Self::Torus { .. } => "torus",
            Self::Tree { .. } => "tree",
            Self::Binomial { .. } => "binomial graph",
            Self::Kautz { .. } => "generalised Kautz graph",
            Self::Original { .. } => "original overlay",
            Self::Circulant { .. } => "circulant",
        }
    }

    pub(super) fn build(&self, nodes: usize) -> Result<Built> {
        count_within("number of nodes", nodes, 2, NODES_MAX)?;
        let shifted = |offsets: &[usize], both_ways| Built {
            links: rule(nodes, |i| offsets.iter().map(move |offset| i + offset)),
            both_ways,
            symmetry: Symmetry::Shift,
        };
        match self {
            Self::FullMesh => {
                let all: Vec<_> = (1..nodes).collect();
                Ok(Built { both_ways: true, ..shifted(&all, false) })
            }
            Self::Ring => Ok(shifted(&[1], true)),
            Self::Hypercube => {
                let above = nodes.next_power_of_two();
                if above != nodes {
                    let above_fits = Some(above).filter(|above| *above <= NODES_MAX);
                    let topology = self.name();
                    return Err(OverlayError::Nodes {
                        topology,
                        nodes,
                        below: Some(above / 2),
                        above: above_fits,
                    });
                }
                let bits = nodes.ilog2();
                let links = rule(nodes, |i| (0..bits).map(move |bit| i ^ (1 << bit)));
                Ok(Built { links, both_ways: true, symmetry: Symmetry::Bits })
            }
            Self::Torus { dimensions } => torus(self.name(), nodes, *dimensions),
            Self::Tree { arity } => {
                count_within("arity of a tree", *arity, 1, nodes - 1)?;
                let links = (0..nodes)
                    .map(|i| (arity * i + 1..=arity * i + arity).filter(|child| *child < nodes))
                    .map(|children| children.map(|child| child as u32).collect())
                    .collect();
                Ok(Built { links, both_ways: true, symmetry: Symmetry::None })
            }
            Self::Binomial { base } => {
                count_within("base of a binomial graph", *base, 2, NODES_MAX)?;
                let powers = std::iter::successors(Some(1), |power| Some(power * base));
                let offsets: Vec<_> = powers.take_while(|power| *power < nodes).collect();
                Ok(shifted(&offsets, true))
            }
            Self::Kautz { degree, both_ways } => {
                // With degree 1, node i links only to -(i + 1), which links only to i.
                count_within("degree of a generalised Kautz graph", *degree, nodes.min(3) - 1, nodes - 1)?;
                let links = rule(nodes, |i| (1..=*degree).map(move |j| nodes * nodes - (degree * i + j)));
                Ok(Built { links, both_ways: *both_ways, symmetry: Symmetry::None })
            }
            Self::Original { degree } => {
                count_within("degree of the original overlay", *degree, 1, nodes - 1)?;
                let power = |k: usize| (nodes as f64).powf(k as f64 / *degree as f64).round() as usize;
                let offsets: Vec<_> = (0..*degree).map(power).collect();
                Ok(shifted(&offsets, false))
            }
            Self::Circulant { offsets } => {
                count_within("number of offsets", offsets.len(), 1, nodes / 2)?;
                offsets.iter().try_for_each(|offset| count_within("offset", *offset, 1, nodes / 2))?;
                let step = offsets.iter().fold(nodes, |step, offset| divisor(step, *offset));
                if step > 1 {
                    return Err(OverlayError::Unconnected { step });
                }
                Ok(shifted(offsets, true))
            }
        }
    }
}

/// Applies a rule to all nodes, modulo their number.
fn rule<I: Iterator<Item = usize>>(nodes: usize, to: impl Fn(usize) -> I) -> Vec<Vec<u32>> {
    (0..nodes).map(|i| to(i).map(|to| (to % nodes) as u32).collect()).collect()
}

/// The greatest common divisor.
pub(crate) fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn torus(name: &'static str, nodes: usize, dimensions: usize) -> Result<Built> {
    count_within("number of dimensions of a torus", dimensions, 2, 12)?;
    let Some(sizes) = sides(nodes, dimensions) else {
        let fits = |nodes: &usize| sides(*nodes, dimensions).is_some();
        let (below, above) = ((2..nodes).rev().find(fits), (nodes..=NODES_MAX).find(fits));
        return Err(OverlayError::Nodes { topology: name, nodes, below, above });
    };
    let step = |i: usize, dimension: usize| {
        let stride: usize = sizes[..dimension].iter().product();
        let at = i / stride % sizes[dimension];
        i - at * stride + (at + 1) % sizes[dimension] * stride
    };
    let links = rule(nodes, |i| (0..dimensions).map(move |dimension| step(i, dimension)));
    Ok(Built { links, both_ways: true, symmetry: Symmetry::Grid(sizes) })
}

/// The sides of a torus, the shortest first and as long as possible; none is shorter than 2.
fn sides(nodes: usize, dimensions: usize) -> Option<Vec<usize>> {
    if dimensions == 1 {
        return (nodes >= 2).then(|| vec![nodes]);
    }
    let most = (nodes as f64).powf(1.0 / dimensions as f64).round() as usize;
    (2..=most).rev().filter(|side| nodes.is_multiple_of(*side)).find_map(|side| {
        let mut rest = sides(nodes / side, dimensions - 1)?;
        rest.insert(0, side);
        Some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    #[track_caller]
    fn links(shape: Shape, nodes: usize, node: usize, expected: &[u32]) {
        let found = Topology::new(shape, nodes).map(|topology| topology.links(node).to_vec());
        assert_eq!(found.as_deref(), Ok(expected));
    }

    #[test]
    fn each_shape_gives_a_node_its_links() {
        links(Shape::FullMesh, 4, 2, &[0, 1, 3]);
        links(Shape::Ring, 6, 0, &[1, 5]);
        links(Shape::Ring, 2, 0, &[1]);
        links(Shape::Hypercube, 8, 5, &[1, 4, 7]);
        links(Shape::Torus { dimensions: 2 }, 12, 0, &[1, 2, 3, 9]);
        links(Shape::Torus { dimensions: 3 }, 8, 7, &[3, 5, 6]);
        links(Shape::Tree { arity: 3 }, 9, 1, &[0, 4, 5, 6]);
        links(Shape::Binomial { base: 3 }, 20, 0, &[1, 3, 9, 11, 17, 19]);
        links(Shape::Kautz { degree: 2, both_ways: false }, 6, 0, &[4, 5]);
        links(Shape::Original { degree: 6 }, 60, 0, &[1, 2, 4, 8, 15, 30]);
        links(Shape::Original { degree: 6 }, 60, 50, &[5, 20, 51, 52, 54, 58]);
        // The six offsets would be 1, 1, 2, 3, 4 and 5.
        links(Shape::Original { degree: 6 }, 7, 0, &[1, 2, 3, 4, 5]);
        links(Shape::Circulant { offsets: vec![1, 3] }, 6, 0, &[1, 3, 5]);
    }

    #[test]
    fn torus_sides_are_nearly_equal() {
        for (nodes, dimensions, expected) in [
            (60, 2, Some(vec![6, 10])),
            (64, 3, Some(vec![4, 4, 4])),
            (60, 3, Some(vec![4, 3, 5])),
            (59, 2, None),
        ] {
            assert_eq!(sides(nodes, dimensions), expected);
        }
    }

    #[track_caller]
    fn refused(shape: Shape, nodes: usize, expected: &str) {
        let found = Topology::new(shape, nodes).err().map(|error| error.to_string());
        assert_eq!(found.as_deref(), Some(expected));
    }

    #[test]
    fn impossible_topologies_are_errors() {
        refused(Shape::Hypercube, 6, "there is no hypercube of 6 nodes; 4 or 8 would do");
        refused(Shape::Torus { dimensions: 2 }, 59, "there is no torus of 59 nodes; 58 or 60 would do");
        refused(Shape::Torus { dimensions: 3 }, 6, "there is no torus of 6 nodes; 8 would do");
        refused(
            Shape::Original { degree: 0 },
            60,
            "the degree of the original overlay must be between 1 and 59, not 0",
        );
        refused(
            Shape::Kautz { degree: 60, both_ways: true },
            60,
            "the degree of a generalised Kautz graph must be between 2 and 59, not 60",
        );
        refused(Shape::Ring, 1, "the number of nodes must be between 2 and 4096, not 1");
        refused(Shape::Tree { arity: 0 }, 4, "the arity of a tree must be between 1 and 3, not 0");
        refused(
            Shape::Binomial { base: 1 },
            4,
            "the base of a binomial graph must be between 2 and 4096, not 1",
        );
        refused(Shape::Circulant { offsets: vec![7] }, 12, "the offset must be between 1 and 6, not 7");
        refused(
            Shape::Circulant { offsets: vec![2, 4] },
            12,
            "these offsets reach only one node in 2: 2 divides all of them and the number of nodes",
        );
    }
}
