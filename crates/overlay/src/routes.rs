//! Routes: the hops between every two nodes, and every first step of a shortest way.
//!
//! Where a topology looks the same from every node, the hops from one of them say all: N numbers.
//! Elsewhere they are a table of N x N: 33 MB at 4096 nodes.

use fastrand::Rng;

use crate::topology::{Symmetry, Topology};

/// There is no way. Topologies of this crate are connected; graphs under test need not be.
pub(crate) const NONE: u16 = u16::MAX;

/// A topology with the shortest ways through it.
#[derive(Debug, Clone)]
pub struct Routes {
    topology: Topology,
    /// By difference where there is symmetry, or else by `to x nodes + from`.
    hops: Vec<u16>,
}

impl Routes {
    /// Finds them: `nodes x links` steps with symmetry, `nodes^2 x links` without.
    pub fn new(topology: Topology) -> Self {
        let hops = if *topology.symmetry() == Symmetry::None {
            let arrivals = topology.arrivals();
            (0..topology.nodes()).flat_map(|to| hops_from(to, |node| &arrivals[node], topology.nodes())).collect()
        } else {
            hops_from(0, |node| topology.links(node), topology.nodes())
        };
        Self { topology, hops }
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Links that the shortest way crosses.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn hops(&self, from: usize, to: usize) -> usize {
        let nodes = self.topology.nodes();
        assert!(from < nodes && to < nodes, "{nodes} nodes, and none that is {from} or {to}");
        usize::from(match self.topology.symmetry() {
            Symmetry::None => self.hops[to * nodes + from],
            symmetry => self.hops[symmetry.difference(nodes, from, to)],
        })
    }

    /// Every neighbour of `from` that is one hop nearer to `to`.
    ///
    /// # Panics
    /// As [`Routes::hops`].
    pub fn next_hops(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + '_ {
        let hops = self.hops(from, to);
        let links = self.topology.links(from).iter().map(|node| *node as usize);
        links.filter(move |node| self.hops(*node, to) + 1 == hops)
    }

    /// One of them at random; none when the message is there.
    ///
    /// # Panics
    /// As [`Routes::hops`].
    pub fn next_hop(&self, from: usize, to: usize, rng: &mut Rng) -> Option<usize> {
        rng.choice(self.next_hops(from, to).collect::<Vec<_>>())
    }

    /// The most hops between any two nodes.
    pub fn diameter(&self) -> usize {
        self.hops.iter().copied().max().map_or(0, usize::from)
    }

    /// Mean hops from a node to another.
    pub fn mean_hops(&self) -> f64 {
        let sum: u64 = self.hops.iter().copied().map(u64::from).sum();
        let froms = self.hops.len() / self.topology.nodes();
        sum as f64 / (froms * (self.topology.nodes() - 1)) as f64
    }
}

/// Hops from a node to all, breadth first.
pub(crate) fn hops_from<'a>(from: usize, links: impl Fn(usize) -> &'a [u32], nodes: usize) -> Vec<u16> {
    let mut hops = vec![NONE; nodes];
    hops[from] = 0;
    let mut queue = Vec::with_capacity(nodes);
    queue.push(from);
    let mut next = 0;
    while let Some(&node) = queue.get(next) {
        next += 1;
        for to in links(node) {
            let to = *to as usize;
            if hops[to] == NONE {
                hops[to] = hops[node] + 1;
                queue.push(to);
            }
        }
    }
    hops
}
