//! Circulants: a seeded search for offsets with few hops.
//!
//! No formula gives the best offsets. Random sets are good, and changing one offset at a time improves
//! them. At cluster sizes the search often reaches the Moore bound, which no graph can beat.

use fastrand::Rng;

use crate::error::{OverlayError, Result, count_within};
use crate::figures::moore_hops;
use crate::topology::{NODES_MAX, Shape, divisor};

/// `1 / DRAWN_SHARE` of the tries draw random sets; the rest improve the best of them.
const DRAWN_SHARE: usize = 2;
/// Changes without a gain, per offset, after which the search restarts.
const PATIENCE: usize = 60;
/// With the fewest possible hops, the search stops once the busiest link carries at most this percentage
/// of the mean load.
const EVEN_PERCENT: usize = 103;

/// Searches for the circulant with `sockets` sockets per node that has the fewest mean hops, then the
/// smallest diameter, then the least load on the busiest link under uniform traffic. The search makes
/// `tries` tries from `seed`; a try takes about `3 x nodes x sockets` steps.
///
/// # Errors
/// [`OverlayError::OutOfRange`] if `sockets` is not between 2 (1 for two nodes) and `nodes - 1`;
/// [`OverlayError::OddSockets`] if both `sockets` and `nodes` are odd.
pub fn circulant(nodes: usize, sockets: usize, tries: usize, seed: u64) -> Result<Shape> {
    count_within("number of nodes", nodes, 2, NODES_MAX)?;
    count_within("number of sockets of a circulant", sockets, nodes.min(3) - 1, nodes - 1)?;
    if sockets % 2 == 1 && nodes % 2 == 1 {
        return Err(OverlayError::OddSockets { nodes, sockets });
    }
    let bound = moore_hops(nodes, sockets, true);
    let search = Search {
        nodes,
        // Each of these offsets takes two sockets; the link half way round takes one.
        choice: (1..nodes.div_ceil(2)).collect(),
        half: (sockets % 2 == 1).then_some(nodes / 2),
        bound,
        even: bound * 1000 * EVEN_PERCENT / 100 / sockets,
    };
    let mut rng = Rng::with_seed(seed);
    let mut offsets = search.run(sockets / 2, tries.max(1), &mut rng);
    offsets.extend(search.half);
    offsets.sort_unstable();
    Ok(Shape::Circulant { offsets })
}

struct Search {
    nodes: usize,
    choice: Vec<usize>,
    half: Option<usize>,
    /// The least possible sum of hops.
    bound: usize,
    /// The load of the busiest link at which the search stops when the sum of hops is `bound`.
    even: usize,
}

impl Search {
    fn run(&self, count: usize, tries: usize, rng: &mut Rng) -> Vec<usize> {
        // Consecutive offsets connect any number of nodes.
        let mut best = self.choice[..count].to_vec();
        let mut best_cost = self.cost(&best);
        let drawn = (tries / DRAWN_SHARE).max(1);
        let (mut at, mut at_cost, mut idle) = (best.clone(), best_cost, 0);
        for trial in 0..tries {
            let is_least = best_cost.hops <= self.bound && best_cost.busiest <= self.even;
            if is_least || count == self.choice.len() {
                break;
            }
            let restart = trial >= drawn && idle > PATIENCE * count;
            let found = if trial < drawn || restart {
                rng.choose_multiple(self.choice.iter().copied(), count)
            } else {
                self.changed(&at, rng)
            };
            let cost = self.cost(&found);
            idle = if trial < drawn || restart || cost < at_cost { 0 } else { idle + 1 };
            if restart || cost <= at_cost {
                (at, at_cost) = (found, cost);
            }
            if at_cost < best_cost {
                (best, best_cost) = (at.clone(), at_cost);
            }
        }
        best
    }

    /// Replaces one of the offsets by a random one.
    fn changed(&self, offsets: &[usize], rng: &mut Rng) -> Vec<usize> {
        let mut changed = offsets.to_vec();
        loop {
            let offset = self.choice[rng.usize(..self.choice.len())];
            if !changed.contains(&offset) {
                changed[rng.usize(..offsets.len())] = offset;
                return changed;
            }
        }
    }

    fn cost(&self, offsets: &[usize]) -> Cost {
        let steps: Vec<_> =
            offsets.iter().flat_map(|offset| [*offset, self.nodes - offset]).chain(self.half).collect();
        if steps.iter().fold(self.nodes, |step, offset| divisor(step, *offset)) > 1 {
            return Cost { hops: usize::MAX, ..Cost::default() };
        }
        let mut hops = vec![u16::MAX; self.nodes];
        let mut order = Vec::with_capacity(self.nodes);
        hops[0] = 0;
        order.push(0);
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            next += 1;
            for step in &steps {
                let to = self.wrapped(node + step);
                if hops[to] == u16::MAX {
                    hops[to] = hops[node] + 1;
                    order.push(to);
                }
            }
        }
        let sum = order.iter().map(|node| usize::from(hops[*node])).sum();
        let diameter = order.last().map_or(0, |node| usize::from(hops[*node]));
        Cost { hops: sum, diameter, busiest: self.busiest(&steps, &hops, &order) }
    }

    fn wrapped(&self, node: usize) -> usize {
        if node >= self.nodes { node - self.nodes } else { node }
    }

    /// Thousandths of messages on the busiest link when each node sends one message to every other node.
    /// Follows the messages to node 0 from the farthest node, divided evenly over all shortest paths. By
    /// symmetry, one link per step represents all.
    fn busiest(&self, steps: &[usize], hops: &[u16], order: &[usize]) -> usize {
        let mut passing = vec![1.0; self.nodes];
        let mut load = vec![0.0; steps.len()];
        let nearer = |node: usize, step: usize| {
            let to = self.wrapped(node + step);
            (hops[to] < hops[node]).then_some(to)
        };
        for &node in order.iter().rev() {
            let ways = steps.iter().filter(|step| nearer(node, **step).is_some()).count();
            let part = passing[node] / ways.max(1) as f64;
            for (step, load) in steps.iter().zip(&mut load) {
                if let Some(to) = nearer(node, *step) {
                    passing[to] += part;
                    *load += part;
                }
            }
        }
        load.into_iter().fold(0.0, |most: f64, load| most.max(load * 1000.0)) as usize
    }
}

/// What the search minimises, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Cost {
    /// Sum of the hops from a node to all others.
    hops: usize,
    diameter: usize,
    busiest: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Routes, Topology, TopologyMetrics};

    #[test]
    fn a_circulant_has_the_requested_sockets() -> Result<()> {
        for (nodes, sockets) in
            [(2, 1), (3, 2), (4, 3), (5, 4), (16, 2), (16, 5), (17, 6), (60, 11), (60, 59)]
        {
            let figures =
                TopologyMetrics::of(&Routes::new(Topology::new(circulant(nodes, sockets, 50, 3)?, nodes)?));
            assert_eq!((figures.sockets_max, figures.edge_connectivity.at_least), (sockets, sockets));
        }
        Ok(())
    }

    #[test]
    fn the_same_seed_finds_the_same_circulant() -> Result<()> {
        assert_eq!(circulant(100, 8, 200, 5)?, circulant(100, 8, 200, 5)?);
        Ok(())
    }

    #[test]
    fn impossible_circulants_are_errors() {
        assert_eq!(circulant(61, 5, 10, 1), Err(OverlayError::OddSockets { nodes: 61, sockets: 5 }));
        for (nodes, sockets) in [(60, 0), (60, 1), (60, 60), (1, 1), (NODES_MAX + 1, 4)] {
            assert!(circulant(nodes, sockets, 10, 1).is_err(), "{nodes} {sockets}");
        }
    }
}
