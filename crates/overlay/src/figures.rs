//! Properties of a topology in numbers.

use serde::Serialize;

use crate::connectivity::{edge_connectivity, vertex_connectivity};
use crate::routes::Routes;
use crate::topology::{Symmetry, Topology};

/// Up to this many nodes, connectivity is computed; above, it is derived from theorems.
const NODES_COMPUTED: usize = 128;

/// An exact number or a lower bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LowerBound {
    /// The number.
    pub at_least: usize,
    /// Whether the number is exact.
    pub exact: bool,
}

/// Figures of a topology.
#[derive(Debug, Clone, Serialize)]
pub struct TopologyMetrics {
    /// Nodes.
    pub nodes: usize,
    /// The most sockets of any node, including those opened by others.
    pub sockets_max: usize,
    /// Mean sockets per node.
    pub sockets_mean: f64,
    /// The most hops between any two nodes.
    pub diameter: usize,
    /// Mean hops from one node to another.
    pub mean_hops: f64,
    /// The lower bound of mean hops for this number of outgoing links per node.
    pub moore_mean_hops: f64,
    /// Links that must fail before some node can't reach another.
    pub edge_connectivity: LowerBound,
    /// Nodes that must fail before some other node can't reach another.
    pub vertex_connectivity: LowerBound,
}

impl TopologyMetrics {
    /// Computes the figures. Up to 128 nodes, connectivity is exact. Above, a topology that looks the same
    /// from every node and uses links both ways has the connectivity that Mader and Watkins proved: with
    /// `d` links per node, edge connectivity `d` and vertex connectivity at least `2 (d + 1) / 3`. For other
    /// topologies the only bound is 1: they are connected.
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

fn connectivity(topology: &Topology) -> (LowerBound, LowerBound) {
    let symmetric = *topology.symmetry() != Symmetry::None;
    if topology.nodes() <= NODES_COMPUTED {
        let exact = |at_least| LowerBound { at_least, exact: true };
        return (exact(edge_connectivity(topology)), exact(vertex_connectivity(topology)));
    }
    let degree = topology.links(0).len();
    if symmetric && topology.both_ways() {
        let vertices = LowerBound { at_least: (2 * (degree + 1)).div_ceil(3), exact: false };
        return (LowerBound { at_least: degree, exact: true }, vertices);
    }
    let connected = LowerBound { at_least: 1, exact: false };
    (connected, connected)
}

/// The lower bound of mean hops for any topology. A node with `degree` links reaches at most `degree` nodes
/// in one hop, and with each further hop at most `degree` (both ways: `degree - 1`) times as many.
pub fn moore_mean_hops(nodes: usize, degree: usize, both_ways: bool) -> f64 {
    moore_hops(nodes, degree, both_ways) as f64 / nodes.saturating_sub(1).max(1) as f64
}

/// [`moore_mean_hops`] as a sum over all nodes.
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
