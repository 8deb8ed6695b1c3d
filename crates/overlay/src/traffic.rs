//! How much each node sends to each other node: as configured and as observed.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::error::{Result, count_within, within};

/// The skew of the archived runs of Samson's simulation.
pub const THESIS_WEIGHTS_PERCENT: [f64; 7] = [2.0, 7.0, 10.0, 4.0, 11.0, 6.0, 15.0];

/// The messages that every node sends to the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Messages that every node sends.
    pub messages_per_node: u64,
    /// Bytes of each.
    pub message_bytes: u64,
    /// Skew: the percentages of every node's messages that go to node 0, to node 1, and so on. The rest
    /// is divided evenly among all nodes. Empty means uniform. A node sends nothing to itself: its own
    /// share is divided among the others in the same proportions.
    pub weights_percent: Vec<f64>,
}

impl Default for Traffic {
    /// Uniform; each node sends 1000 messages of 64 KB.
    fn default() -> Self {
        Self { messages_per_node: 1000, message_bytes: 64 << 10, weights_percent: Vec::new() }
    }
}

impl Traffic {
    /// # Errors
    /// [`OverlayError::OutOfRange`](crate::OverlayError::OutOfRange) if messages are empty or larger than
    /// 100 MB, if a node sends none or more than a million, if there are more weights than nodes, or if a
    /// weight is negative or the weights sum to more than 99%.
    pub fn check(&self, nodes: usize) -> Result<()> {
        within("message size in bytes", self.message_bytes as f64, 1.0, 1e8)?;
        within("number of messages per node", self.messages_per_node as f64, 1.0, 1e6)?;
        count_within("number of weights", self.weights_percent.len(), 0, nodes)?;
        self.weights_percent.iter().try_for_each(|weight| within("weight in percent", *weight, 0.0, 99.0))?;
        within("sum of the weights in percent", self.weights_percent.iter().sum(), 0.0, 99.0)
    }

    /// The destinations of a node's messages, in order. They depend on nothing but the seed.
    pub fn destinations(&self, from: usize, nodes: usize, seed: u64) -> Destinations<'_> {
        let rng = Rng::with_seed(seed ^ (from as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Destinations { weights: &self.weights_percent, from, nodes, left: self.messages_per_node, rng }
    }

    /// The bytes between every two nodes that a run with this seed sends.
    pub fn drawn(&self, nodes: usize, seed: u64) -> TrafficMatrix {
        let mut demand = TrafficMatrix::new(nodes);
        for from in 0..nodes {
            let destinations = self.destinations(from, nodes, seed);
            destinations.for_each(|to| demand.add(from, to, self.message_bytes as f64));
        }
        demand
    }

    /// The expected bytes between every two nodes.
    pub fn demand(&self, nodes: usize) -> TrafficMatrix {
        let mut demand = TrafficMatrix::new(nodes);
        let rest = 100.0 - self.weights_percent.iter().sum::<f64>();
        let weight =
            |to: usize| self.weights_percent.get(to).copied().unwrap_or_default() + rest / nodes as f64;
        for from in 0..nodes {
            let others = (0..nodes).filter(|to| *to != from);
            let sum: f64 = others.clone().map(weight).sum();
            let bytes = (self.messages_per_node * self.message_bytes) as f64;
            others.for_each(|to| demand.add(from, to, bytes * weight(to) / sum));
        }
        demand
    }
}

/// See [`Traffic::destinations`].
#[derive(Debug, Clone)]
pub struct Destinations<'a> {
    weights: &'a [f64],
    from: usize,
    nodes: usize,
    left: u64,
    rng: Rng,
}

impl Destinations<'_> {
    fn draw(&mut self) -> usize {
        let mut percent = 100.0 * self.rng.f64();
        for (to, weight) in self.weights.iter().enumerate() {
            if percent < *weight {
                return to;
            }
            percent -= weight;
        }
        self.rng.usize(..self.nodes)
    }
}

impl Iterator for Destinations<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        // At least 1% goes to all nodes evenly, so another node is drawn soon.
        loop {
            let to = self.draw();
            if to != self.from {
                return Some(to);
            }
        }
    }
}

/// Bytes from node to node. Pairs without traffic take no memory.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficMatrix {
    rows: Vec<BTreeMap<u32, f64>>,
}

impl TrafficMatrix {
    /// No traffic between `nodes` nodes.
    pub fn new(nodes: usize) -> Self {
        Self { rows: vec![BTreeMap::new(); nodes] }
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.rows.len()
    }

    /// Adds bytes that were sent.
    ///
    /// # Panics
    /// If the sender does not exist.
    pub fn add(&mut self, from: usize, to: usize, bytes: f64) {
        *self.rows[from].entry(to as u32).or_default() += bytes;
    }

    /// Bytes from one node to another.
    pub fn bytes(&self, from: usize, to: usize) -> f64 {
        self.rows.get(from).and_then(|row| row.get(&(to as u32))).copied().unwrap_or_default()
    }

    /// The traffic that one node sent.
    pub fn of(&self, from: usize) -> Self {
        let mut of = Self::new(self.nodes());
        if let (Some(row), Some(sent)) = (of.rows.get_mut(from), self.rows.get(from)) {
            row.clone_from(sent);
        }
        of
    }

    /// All pairs with traffic: from, to, bytes.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize, f64)> + '_ {
        let rows = self.rows.iter().enumerate();
        rows.flat_map(|(from, row)| row.iter().map(move |(to, bytes)| (from, *to as usize, *bytes)))
    }

    /// The sum over all pairs.
    pub fn total_bytes(&self) -> f64 {
        self.pairs().map(|(_, _, bytes)| bytes).sum()
    }

    /// Multiplies all bytes by `part`. Pairs that fall below one byte are removed.
    pub fn fade(&mut self, part: f64) {
        for row in &mut self.rows {
            row.retain(|_, bytes| {
                *bytes *= part;
                *bytes >= 1.0
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_follow_the_weights() {
        let traffic = Traffic {
            messages_per_node: 20_000,
            weights_percent: THESIS_WEIGHTS_PERCENT.to_vec(),
            ..Traffic::default()
        };
        let expected = traffic.demand(60);
        for from in [3, 6, 40] {
            let mut counts = [0_u32; 60];
            traffic.destinations(from, 60, 9).for_each(|to| counts[to] += 1);
            assert_eq!((counts[from], counts.iter().sum::<u32>()), (0, 20_000));
            for (to, count) in counts.into_iter().enumerate() {
                let messages = expected.bytes(from, to) / traffic.message_bytes as f64;
                let error = (f64::from(count) - messages).abs();
                assert!(error <= 5.0 * messages.sqrt(), "{from} {to}: {count} {messages}");
            }
        }
        let total = (60 * traffic.messages_per_node * traffic.message_bytes) as f64;
        assert!((expected.total_bytes() / total - 1.0).abs() < 1e-9);
    }

    #[test]
    fn fading_forgets_small_remainders() {
        let mut demand = TrafficMatrix::new(3);
        demand.add(0, 1, 100.0);
        demand.add(0, 2, 1.5);
        demand.fade(0.5);
        assert_eq!(demand.pairs().collect::<Vec<_>>(), [(0, 1, 50.0)]);
        assert_eq!((demand.bytes(0, 2), demand.bytes(7, 1)), (0.0, 0.0));
    }
}
