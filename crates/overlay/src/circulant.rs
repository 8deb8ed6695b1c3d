//! Circulants: offsets of few hops, found by a seeded search.
//!
//! There is no formula for the best offsets. Sets drawn at random are good, and better ones are found by
//! changing one offset at a time; at the sizes of a cluster the search often ends at the Moore
//! bound, which no graph can beat.

use fastrand::Rng;

use crate::error::{OverlayError, Result, count_within};
use crate::figures::moore_hops;
use crate::topology::{NODES_MAX, Shape, divisor};

/// Sets are drawn in this part of the tries, the best of them is improved in the rest.
const DRAWN_SHARE: usize = 2;
/// Changes without a gain, for each offset, after which the search sets out again.
const PATIENCE: usize = 60;
/// The busiest link has as much to carry as the mean, and no more than this.
const EVEN_PERCENT: usize = 103;

/// The circulant of `sockets` sockets a node with the least mean hops that `tries` tries from a seed find; of
/// those the least diameter, and then the least load of the busiest link under uniform traffic. A
/// try takes about `3 x nodes x sockets` steps.
///
/// # Errors
/// [`OverlayError::OutOfRange`] for sockets that are not between 2 (1 for two nodes) and nodes - 1,
/// [`OverlayError::OddSockets`] when neither they nor the nodes are even.
pub fn circulant(nodes: usize, sockets: usize, tries: usize, seed: u64) -> Result<Shape> {
    count_within("number of nodes", nodes, 2, NODES_MAX)?;
    count_within("number of sockets of a circulant", sockets, nodes.min(3) - 1, nodes - 1)?;
    if sockets % 2 == 1 && nodes % 2 == 1 {
        return Err(OverlayError::OddSockets { nodes, sockets });
    }
    let bound = moore_hops(nodes, sockets, true);
    let search = Search {
        nodes,
        // Of these, as many as there are pairs of sockets; the link half way round is a socket alone.
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
    /// No sum of hops is less.
    bound: usize,
    /// Nor the load of the busiest link, if the sum is that, but by this little.
    even: usize,
}

impl Search {
    fn run(&self, count: usize, tries: usize, rng: &mut Rng) -> Vec<usize> {
        // Consecutive offsets connect whatever the number of nodes.
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

    /// With another offset for one of them.
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

    /// Messages on the busiest link when each node sends one to each other: messages to node 0 followed
    /// back from the farthest, evenly over all shortest ways. Symmetry makes a link of each step stand
    /// for all. In thousandths.
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

/// What is to be least, the first first.
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
    use crate::{Figures, Routes, Topology};

    #[test]
    fn as_many_sockets_as_asked_for() -> Result<()> {
        for (nodes, sockets) in
            [(2, 1), (3, 2), (4, 3), (5, 4), (16, 2), (16, 5), (17, 6), (60, 11), (60, 59)]
        {
            let figures = Figures::of(&Routes::new(Topology::new(circulant(nodes, sockets, 50, 3)?, nodes)?));
            assert_eq!((figures.sockets_max, figures.edge_connectivity.at_least), (sockets, sockets));
        }
        Ok(())
    }

    #[test]
    fn found_again_from_the_seed() -> Result<()> {
        assert_eq!(circulant(100, 8, 200, 5)?, circulant(100, 8, 200, 5)?);
        Ok(())
    }

    #[test]
    fn what_there_is_not() {
        assert_eq!(circulant(61, 5, 10, 1), Err(OverlayError::OddSockets { nodes: 61, sockets: 5 }));
        for (nodes, sockets) in [(60, 0), (60, 1), (60, 60), (1, 1), (NODES_MAX + 1, 4)] {
            assert!(circulant(nodes, sockets, 10, 1).is_err(), "{nodes} {sockets}");
        }
    }
}
