//! Routes: the hops between every two nodes, and every first step of a shortest path.
//!
//! If a topology looks the same from every node, the hops from one node suffice: N numbers. Otherwise
//! the hops are a table of N x N numbers: 33 MB at 4096 nodes.

use fastrand::Rng;

use crate::topology::{Symmetry, Topology};

/// Unreachable. Topologies of this crate are connected; graphs under test need not be.
pub(crate) const NONE: u16 = u16::MAX;

/// A topology with its shortest paths.
#[derive(Debug, Clone)]
pub struct Routes {
    topology: Topology,
    /// Indexed by difference if there is symmetry, else by `to x nodes + from`.
    hops: Vec<u16>,
}

impl Routes {
    /// Computes the shortest paths: `nodes x links` steps with symmetry, `nodes^2 x links` without.
    pub fn new(topology: Topology) -> Self {
        let hops = if *topology.symmetry() == Symmetry::None {
            let arrivals = topology.arrivals();
            (0..topology.nodes())
                .flat_map(|to| hops_from(to, |node| &arrivals[node], topology.nodes()))
                .collect()
        } else {
            hops_from(0, |node| topology.links(node), topology.nodes())
        };
        Self { topology, hops }
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The number of links on a shortest path.
    ///
    /// # Panics
    /// If a node does not exist.
    pub fn hops(&self, from: usize, to: usize) -> usize {
        let nodes = self.topology.nodes();
        assert!(from < nodes && to < nodes, "no node {from} or {to}: the topology has {nodes} nodes");
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

    /// A random one of [`Routes::next_hops`]; none if `from` is `to`.
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

    /// Mean hops from one node to another.
    pub fn mean_hops(&self) -> f64 {
        let sum: u64 = self.hops.iter().copied().map(u64::from).sum();
        let froms = self.hops.len() / self.topology.nodes();
        sum as f64 / (froms * (self.topology.nodes() - 1)) as f64
    }
}

/// Hops from a node to all nodes, by breadth-first search.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::{
        ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
    };

    use super::*;
    use crate::{Result, Shape};

    fn shapes() -> impl Strategy<Value = (Shape, usize)> {
        prop_oneof![
            (2..40usize).prop_map(|nodes| (Shape::FullMesh, nodes)),
            (2..40usize).prop_map(|nodes| (Shape::Ring, nodes)),
            (1..7u32).prop_map(|bits| (Shape::Hypercube, 1 << bits)),
            (2..5usize, 2..5usize, 2..5usize)
                .prop_map(|(a, b, c)| (Shape::Torus { dimensions: 3 }, a * b * c)),
            (3..40usize, 1..3usize).prop_map(|(nodes, arity)| (Shape::Tree { arity }, nodes)),
            (2..40usize, 2..5usize).prop_map(|(nodes, base)| (Shape::Binomial { base }, nodes)),
            (4..40usize, 2..4usize, any::<bool>())
                .prop_map(|(nodes, degree, both_ways)| (Shape::Kautz { degree, both_ways }, nodes)),
            (8..40usize, 1..7usize).prop_map(|(nodes, degree)| (Shape::Original { degree }, nodes)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn every_next_hop_is_one_nearer((shape, nodes) in shapes(), seed in any::<u64>()) {
            let topology = Topology::new(shape, nodes)?;
            let routes = Routes::new(topology.clone());
            let mut rng = Rng::with_seed(seed);
            for from in 0..nodes {
                // Search from each node, without using symmetry.
                let hops = hops_from(from, |node| topology.links(node), nodes);
                for (to, hops) in hops.into_iter().enumerate() {
                    prop_assert_eq!(routes.hops(from, to), usize::from(hops));
                    prop_assert_eq!(routes.next_hops(from, to).count() == 0, from == to);
                    let mut node = from;
                    for left in (0..routes.hops(from, to)).rev() {
                        let next = routes.next_hop(node, to, &mut rng);
                        prop_assert!(next.is_some());
                        node = next.unwrap_or_default();
                        prop_assert_eq!(routes.hops(node, to), left);
                    }
                    prop_assert_eq!(node, to);
                }
            }
        }
    }

    #[test]
    fn ties_are_broken_at_random_and_by_seed() -> Result<()> {
        let routes = Routes::new(Topology::new(Shape::Hypercube, 4096)?);
        assert_eq!((routes.diameter(), routes.next_hops(0, 4095).count()), (12, 12));
        let way = |seed| {
            let (mut rng, mut node, mut way) = (Rng::with_seed(seed), 0, Vec::new());
            while let Some(next) = routes.next_hop(node, 4095, &mut rng) {
                node = next;
                way.push(node);
            }
            way
        };
        assert_eq!(way(1), way(1));
        assert_ne!(way(1), way(2));
        Ok(())
    }
}
