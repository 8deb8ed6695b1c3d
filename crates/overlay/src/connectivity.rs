//! How many links or nodes must fail before a topology is disconnected. Paths without common links or
//! nodes are counted as flows (Menger's theorem).

use crate::topology::{Symmetry, Topology};

/// Links that must fail before some node can't reach another. Exact.
pub(crate) fn edge_connectivity(topology: &Topology) -> usize {
    let nodes = topology.nodes();
    let mut least = topology.links(0).len();
    // Every cut has node 0 on one of its sides.
    for other in 1..nodes {
        let mut flow = Flow::of_links(topology);
        least = least.min(flow.paths(0, other, least));
        if !topology.both_ways() {
            let mut flow = Flow::of_links(topology);
            least = least.min(flow.paths(other, 0, least));
        }
    }
    least
}

/// Nodes that must fail before some other node can't reach another; `nodes - 1` for a full mesh. Exact.
pub(crate) fn vertex_connectivity(topology: &Topology) -> usize {
    let nodes = topology.nodes();
    let symmetric = *topology.symmetry() != Symmetry::None;
    let mut least = nodes - 1;
    let mut from = 0;
    // Among any `least + 1` nodes, at least one is not in a smallest cut and is separated from some other
    // node. With symmetry, that node can be node 0.
    while from < nodes && from <= if symmetric { 0 } else { least } {
        for other in (0..nodes).filter(|other| *other != from) {
            for (a, b) in [(from, other), (other, from)] {
                if !topology.links(a).contains(&(b as u32)) {
                    let mut flow = Flow::of_nodes(topology);
                    // From the exit of `a` to the entry of `b`.
                    least = least.min(flow.paths(2 * a + 1, 2 * b, least));
                }
            }
        }
        from += 1;
    }
    least
}

/// A graph whose arcs carry one unit each.
struct Flow {
    arcs: Vec<Arc>,
    /// Arcs by start node. Arc `i ^ 1` is the reverse of arc `i`.
    from: Vec<Vec<usize>>,
}

struct Arc {
    to: usize,
    room: bool,
}

impl Flow {
    fn new(nodes: usize) -> Self {
        Self { arcs: Vec::new(), from: vec![Vec::new(); nodes] }
    }

    fn of_links(topology: &Topology) -> Self {
        let mut flow = Self::new(topology.nodes());
        for from in 0..topology.nodes() {
            topology.links(from).iter().for_each(|to| flow.join(from, *to as usize));
        }
        flow
    }

    /// Splits every node into an entry and an exit joined by one arc, so that at most one path uses it.
    fn of_nodes(topology: &Topology) -> Self {
        let mut flow = Self::new(2 * topology.nodes());
        for from in 0..topology.nodes() {
            flow.join(2 * from, 2 * from + 1);
            topology.links(from).iter().for_each(|to| flow.join(2 * from + 1, 2 * *to as usize));
        }
        flow
    }

    fn join(&mut self, from: usize, to: usize) {
        self.from[from].push(self.arcs.len());
        self.arcs.push(Arc { to, room: true });
        self.from[to].push(self.arcs.len());
        self.arcs.push(Arc { to: from, room: false });
    }

    /// The number of paths from one node to another without common arcs, counted up to `enough`.
    fn paths(&mut self, from: usize, to: usize, enough: usize) -> usize {
        (0..enough).take_while(|_| self.augment(from, to)).count()
    }

    fn augment(&mut self, from: usize, to: usize) -> bool {
        let mut came_by = vec![usize::MAX; self.from.len()];
        let mut queue = vec![from];
        let mut next = 0;
        while let Some(&node) = queue.get(next) {
            next += 1;
            for &arc in &self.from[node] {
                let end = self.arcs[arc].to;
                if self.arcs[arc].room && end != from && came_by[end] == usize::MAX {
                    came_by[end] = arc;
                    queue.push(end);
                }
            }
        }
        if came_by[to] == usize::MAX {
            return false;
        }
        let mut node = to;
        while node != from {
            let arc = came_by[node];
            self.arcs[arc].room = false;
            self.arcs[arc ^ 1].room = true;
            node = self.arcs[arc ^ 1].to;
        }
        true
    }
}
