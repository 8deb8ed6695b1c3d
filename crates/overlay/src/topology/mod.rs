//! Topologies: which nodes keep connections to each other.
//!
//! A connection takes a socket at either end. If a topology uses its links *both ways*, a node sends on
//! all of its sockets; if it uses them *one way*, a node sends only on the connections it opened.

mod shape;

use serde::Serialize;

pub use shape::Shape;
pub(crate) use shape::divisor;

use crate::error::Result;

/// The maximum number of nodes of a topology.
pub const NODES_MAX: usize = 4096;

/// The symmetry that makes a topology look the same from every node. With one, the hops from a single node
/// suffice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Symmetry {
    /// Links depend on the difference of node numbers modulo the number of nodes.
    Shift,
    /// Links depend on the bits in which node numbers differ.
    Bits,
    /// Links depend on the differences of coordinates, modulo these sizes.
    Grid(Vec<usize>),
    /// No symmetry.
    None,
}

impl Symmetry {
    /// The node that lies relative to node 0 as `to` does relative to `from`.
    pub(crate) fn difference(&self, nodes: usize, from: usize, to: usize) -> usize {
        match self {
            // Without a division, because it runs for every message.
            Self::Shift if to >= from => to - from,
            Self::Shift => to + nodes - from,
            Self::Bits => from ^ to,
            Self::Grid(sizes) => {
                let (mut from, mut to, mut stride, mut difference) = (from, to, 1, 0);
                for size in sizes {
                    difference += (to % size + size - from % size) % size * stride;
                    (from, to, stride) = (from / size, to / size, stride * size);
                }
                difference
            }
            Self::None => to,
        }
    }
}

/// Nodes, numbered from 0, and the links between them.
#[derive(Debug, Clone, Serialize)]
pub struct Topology {
    shape: Shape,
    nodes: usize,
    both_ways: bool,
    /// Outgoing links by node, sorted.
    #[serde(skip)]
    links: Vec<Vec<u32>>,
    #[serde(skip)]
    symmetry: Symmetry,
}

impl Topology {
    /// A topology of `nodes` nodes.
    ///
    /// # Errors
    /// [`OverlayError`](crate::OverlayError) if there is no such topology; it names the nearest possible one.
    pub fn new(shape: Shape, nodes: usize) -> Result<Self> {
        let shape::Built { mut links, both_ways, symmetry } = shape.build(nodes)?;
        if both_ways {
            for from in 0..nodes {
                for to in links[from].clone() {
                    links[to as usize].push(from as u32);
                }
            }
        }
        for (from, links) in links.iter_mut().enumerate() {
            links.retain(|to| *to as usize != from);
            links.sort_unstable();
            links.dedup();
        }
        Ok(Self { shape, nodes, both_ways, links, symmetry })
    }

    /// The shape it was built from.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Whether both ends of a link send on it.
    pub fn both_ways(&self) -> bool {
        self.both_ways
    }

    /// The nodes that a node sends to directly, sorted.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn links(&self, node: usize) -> &[u32] {
        &self.links[node]
    }

    /// For each node, the nodes that send to it.
    pub(crate) fn arrivals(&self) -> Vec<Vec<u32>> {
        if self.both_ways {
            return self.links.clone();
        }
        let mut arrivals = vec![Vec::new(); self.nodes];
        for (from, links) in self.links.iter().enumerate() {
            links.iter().for_each(|to| arrivals[*to as usize].push(from as u32));
        }
        arrivals
    }

    /// The number of sockets of each node, including those opened by others.
    pub fn sockets(&self) -> Vec<usize> {
        let mut sockets: Vec<_> = self.links.iter().map(Vec::len).collect();
        if !self.both_ways {
            // Two nodes that send to each other have a connection each way.
            self.links.iter().flatten().for_each(|to| sockets[*to as usize] += 1);
        }
        sockets
    }

    pub(crate) fn symmetry(&self) -> &Symmetry {
        &self.symmetry
    }
}
