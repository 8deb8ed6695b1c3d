//! What a topology is worth, in numbers.

use serde::Serialize;

use crate::connectivity::{edge_connectivity, vertex_connectivity};
use crate::routes::Routes;
use crate::topology::{Symmetry, Topology};

/// Up to here connectivity is computed; above, what theorems say of it.
const NODES_COMPUTED: usize = 128;

/// A number that is known, or one that is known not to be less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Least {
    /// The number.
    pub at_least: usize,
    /// Whether it is not more either.
    pub exact: bool,
}

/// Figures of a topology.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Nodes.
    pub nodes: usize,
    /// Sockets of the node that has most, those that others opened included.
    pub sockets_max: usize,
    /// Sockets of a node, on the mean.
    pub sockets_mean: f64,
    /// Most hops between any two nodes.
    pub diameter: usize,
    /// Mean hops from a node to another.
    pub mean_hops: f64,
    /// What mean hops can't be below with as many links of a node to send on.
    pub moore_mean_hops: f64,
    /// Links that must fail before some node can't reach another.
    pub edge_connectivity: Least,
    /// Nodes that must fail before some other node can't reach another.
    pub vertex_connectivity: Least,
}

impl Figures {
    /// Computes them. Up to 128 nodes connectivity is exact; above, of topologies that look the same from
    /// every node and use links both ways, it is what Mader and Watkins proved (as many links as a node
    /// has; two thirds as many nodes, and one), and of others that they are connected.
    pub fn of(routes: &Routes) -> Self {
        let topology = routes.topology();
        let sockets = topology.sockets();
        let degrees = (0..topology.nodes()).map(|node| topology.links(node).len());
        let most = degrees.max().unwrap_or_default();
        let (edge_connectivity, vertex_connectivity) = connectivity(topology);
        Self {
            nodes: topology.nodes(),
            sockets_max: sockets.iter().copied().max().unwrap_or_default(),
            sockets_mean: sockets.iter().sum::<usize>() as f64 / topology.nodes() as f64,
            diameter: routes.diameter(),
            mean_hops: routes.mean_hops(),
            moore_mean_hops: moore_mean_hops(topology.nodes(), most, topology.both_ways()),
            edge_connectivity,
            vertex_connectivity,
        }
    }
}

fn connectivity(topology: &Topology) -> (Least, Least) {
    let symmetric = *topology.symmetry() != Symmetry::None;
    if topology.nodes() <= NODES_COMPUTED {
        let exact = |at_least| Least { at_least, exact: true };
        return (exact(edge_connectivity(topology)), exact(vertex_connectivity(topology)));
    }
    let degree = topology.links(0).len();
    if symmetric && topology.both_ways() {
        let vertices = Least { at_least: (2 * (degree + 1)).div_ceil(3), exact: false };
        return (Least { at_least: degree, exact: true }, vertices);
    }
    let connected = Least { at_least: 1, exact: false };
    (connected, connected)
}

/// Mean hops that no topology can be below: from a node with `degree` links there are at most `degree`
/// nodes at one hop, and at each hop more at most `degree` (both ways: `degree - 1`) times as many.
pub fn moore_mean_hops(nodes: usize, degree: usize, both_ways: bool) -> f64 {
    moore_hops(nodes, degree, both_ways) as f64 / nodes.saturating_sub(1).max(1) as f64
}

/// The same as a sum over all nodes.
pub(crate) fn moore_hops(nodes: usize, degree: usize, both_ways: bool) -> usize {
    let (mut left, mut ring, mut hops, mut sum) = (nodes.saturating_sub(1), degree, 1, 0);
    while left > 0 && ring > 0 {
        let reached = ring.min(left);
        sum += hops * reached;
        left -= reached;
        hops += 1;
        ring = ring.saturating_mul(if both_ways { degree - 1 } else { degree });
    }
    sum
}
