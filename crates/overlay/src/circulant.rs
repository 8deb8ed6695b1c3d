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

/// The circulant of `sockets` sockets a node with the least mean hops, and of those the least diameter, that
/// `tries` tries from a seed find. A try takes about `nodes x sockets` steps.
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
    let search = Search {
        nodes,
        // Of these, as many as there are pairs of sockets; the link half way round is a socket alone.
        choice: (1..nodes.div_ceil(2)).collect(),
        half: (sockets % 2 == 1).then_some(nodes / 2),
        bound: moore_hops(nodes, sockets, true),
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
}

impl Search {
    fn run(&self, count: usize, tries: usize, rng: &mut Rng) -> Vec<usize> {
        // Consecutive offsets connect whatever the number of nodes.
        let mut best = self.choice[..count].to_vec();
        let mut best_cost = self.cost(&best);
        let drawn = (tries / DRAWN_SHARE).max(1);
        let (mut at, mut at_cost, mut idle) = (best.clone(), best_cost, 0);
        for trial in 0..tries {
            if best_cost.0 <= self.bound || count == self.choice.len() {
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

    /// Sum of the hops from node 0 to all others, and the most of them.
    fn cost(&self, offsets: &[usize]) -> (usize, usize) {
        let all = || offsets.iter().chain(&self.half);
        if all().fold(self.nodes, |step, offset| divisor(step, *offset)) > 1 {
            return (usize::MAX, usize::MAX);
        }
        let mut hops = vec![u16::MAX; self.nodes];
        let mut queue = Vec::with_capacity(self.nodes);
        hops[0] = 0;
        queue.push(0);
        let (mut next, mut sum, mut most) = (0, 0, 0);
        while let Some(&node) = queue.get(next) {
            next += 1;
            let there = hops[node];
            sum += usize::from(there);
            most = usize::from(there);
            for offset in all() {
                for to in [node + offset, node + self.nodes - offset] {
                    let to = if to >= self.nodes { to - self.nodes } else { to };
                    if hops[to] == u16::MAX {
                        hops[to] = there + 1;
                        queue.push(to);
                    }
                }
            }
        }
        (sum, most)
    }
}
