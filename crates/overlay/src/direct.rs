//! The pool of direct connections: decides which node pairs get one.
//!
//! Samson's hybrid reserves some of a node's connections for direct ones. Every period it assigns them to
//! the destinations with the highest score, `(hops - 1) x bytes` sent in the last period: the bytes that
//! other nodes would have to forward. Hops are those of the topology, so that a destination with a direct
//! connection keeps its score. Beyond the thesis:
//!
//! - A destination keeps its place until another one is better by a margin, and earlier periods count in
//!   part. So uniform traffic does not cause reconnections by chance.
//! - A receiver accepts a limited number of direct connections and refuses more.
//! - Connections are used both ways, and traffic in either direction adds to the score.
//! - Places may be assigned with knowledge of all nodes' traffic, best scores first.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::error::{Result, count_within, within};
use crate::routes::Routes;
use crate::topology::NODES_MAX;
use crate::traffic::TrafficMatrix;

/// Direct connections: the node that opened it, and the node it leads to.
pub type Direct = BTreeSet<(u32, u32)>;

/// What is known when places are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficKnowledge {
    /// Every node knows only its own traffic, as in the thesis. Receivers accept in order of arrival.
    Local,
    /// The traffic of all nodes is known: the best scores come first.
    Global,
}

/// Rules of the pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectPolicy {
    /// Direct connections that a node may open.
    pub opened_max: usize,
    /// Direct connections that a node accepts in addition to those it opens. No limit in the thesis.
    pub accepted_max: Option<usize>,
    /// Whether both ends send on a direct connection. In the thesis, only the end that opened it does.
    pub both_ways: bool,
    /// What is known when places are assigned.
    pub knowledge: TrafficKnowledge,
    /// The relative margin by which another destination must be better to take over a place. 0 in the
    /// thesis.
    pub margin: f64,
    /// The share of a period's bytes that still counts in the next period. 0 in the thesis.
    pub memory: f64,
}

impl DirectPolicy {
    /// The rules of the thesis, with `opened_max` direct connections per node.
    pub fn thesis(opened_max: usize) -> Self {
        let knowledge = TrafficKnowledge::Local;
        Self { opened_max, accepted_max: None, both_ways: false, knowledge, margin: 0.0, memory: 0.0 }
    }

    /// The rules of Lightship.
    pub fn new(opened_max: usize, accepted_max: Option<usize>) -> Self {
        let knowledge = TrafficKnowledge::Global;
        Self { opened_max, accepted_max, both_ways: true, knowledge, margin: 0.25, memory: 0.9 }
    }

    /// # Errors
    /// [`OverlayError::OutOfRange`](crate::OverlayError::OutOfRange) if a count is above 4096, the margin is
    /// not between 0 and 100, or the memory is not between 0 and 0.999.
    pub fn check(&self) -> Result<()> {
        count_within("number of direct connections per node", self.opened_max, 0, NODES_MAX)?;
        count_within("number of direct connections accepted", self.accepted_max.unwrap_or(0), 0, NODES_MAX)?;
        within("margin", self.margin, 0.0, 100.0)?;
        within("memory", self.memory, 0.0, 0.999)
    }

    /// Assigns the direct connections for traffic like `demand`, given the current ones, `now`.
    pub fn assign(&self, routes: &Routes, demand: &TrafficMatrix, now: &Direct, rng: &mut Rng) -> Direct {
        if self.opened_max == 0 {
            return Direct::new();
        }
        let mut candidates = self.best_first(routes, demand, now, rng);
        if self.knowledge == TrafficKnowledge::Local {
            self.by_node(&mut candidates, routes.topology().nodes(), rng);
        }
        self.give_out(&candidates, routes.topology().nodes())
    }

    /// Connections that would save hops, as (from, to), best first.
    pub(crate) fn ranked(
        &self,
        routes: &Routes,
        demand: &TrafficMatrix,
        now: &Direct,
        rng: &mut Rng,
    ) -> Vec<(u32, u32)> {
        let candidates = self.best_first(routes, demand, now, rng);
        candidates.into_iter().map(|candidate| (candidate.from, candidate.to)).collect()
    }

    fn best_first(
        &self,
        routes: &Routes,
        demand: &TrafficMatrix,
        now: &Direct,
        rng: &mut Rng,
    ) -> Vec<Candidate> {
        let mut candidates = self.candidates(routes, demand, now);
        // Equal scores end up in random order.
        rng.shuffle(&mut candidates);
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
        candidates
    }

    /// Connections that would save hops.
    fn candidates(&self, routes: &Routes, demand: &TrafficMatrix, now: &Direct) -> Vec<Candidate> {
        let mut scores: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for (from, to, bytes) in demand.pairs() {
            let forwards = routes.hops(from, to).saturating_sub(1);
            if forwards > 0 && bytes > 0.0 {
                let (from, to) = (from as u32, to as u32);
                let score = forwards as f64 * bytes;
                *scores.entry((from, to)).or_default() += score;
                if self.both_ways && self.knowledge == TrafficKnowledge::Global {
                    *scores.entry((to, from)).or_default() += score;
                }
            }
        }
        let candidate = |((from, to), score)| {
            let kept = now.contains(&(from, to));
            let turn = (false, 0);
            Candidate { from, to, kept, turn, score: if kept { score * (1.0 + self.margin) } else { score } }
        };
        scores.into_iter().map(candidate).collect()
    }

    /// Sorts candidates, given best first, into the order in which they reach the receivers: first the
    /// connections that nodes have and would keep, then the others, node by node in random order.
    fn by_node(&self, candidates: &mut [Candidate], nodes: usize, rng: &mut Rng) {
        let mut order: Vec<_> = (0..nodes).collect();
        rng.shuffle(&mut order);
        let mut asked = vec![0; nodes];
        for candidate in candidates.iter_mut() {
            let from = candidate.from as usize;
            asked[from] += 1;
            candidate.turn = (!(candidate.kept && asked[from] <= self.opened_max), order[from]);
        }
        candidates.sort_by_key(|candidate| candidate.turn);
    }

    /// Gives places to candidates in order, as long as both ends have one left.
    fn give_out(&self, candidates: &[Candidate], nodes: usize) -> Direct {
        let (mut opened, mut accepted) = (vec![0; nodes], vec![0; nodes]);
        let mut direct = Direct::new();
        for Candidate { from, to, .. } in candidates {
            let (opener, receiver) = (&mut opened[*from as usize], &mut accepted[*to as usize]);
            let is_there = self.both_ways && direct.contains(&(*to, *from));
            if *opener < self.opened_max && self.accepted_max.is_none_or(|most| *receiver < most) && !is_there
            {
                *opener += 1;
                *receiver += 1;
                direct.insert((*from, *to));
            }
        }
        direct
    }
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    from: u32,
    to: u32,
    kept: bool,
    /// Whether it comes after the kept ones, and the random position of its node.
    turn: (bool, usize),
    score: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, Topology};

    fn routes() -> Result<Routes> {
        Ok(Routes::new(Topology::new(Shape::Ring, 12)?))
    }

    fn demand(pairs: &[(usize, usize, f64)]) -> TrafficMatrix {
        let mut demand = TrafficMatrix::new(12);
        pairs.iter().for_each(|(from, to, bytes)| demand.add(*from, *to, *bytes));
        demand
    }

    #[track_caller]
    fn assigned(
        pool: &DirectPolicy,
        pairs: &[(usize, usize, f64)],
        now: &[(u32, u32)],
        expected: &[(u32, u32)],
    ) -> Result<()> {
        let now = now.iter().copied().collect();
        for seed in 0..8 {
            let found = pool.assign(&routes()?, &demand(pairs), &now, &mut Rng::with_seed(seed));
            assert_eq!(found, expected.iter().copied().collect());
        }
        Ok(())
    }

    #[test]
    fn the_score_is_hops_saved_times_bytes() -> Result<()> {
        let pool = DirectPolicy::thesis(1);
        // 1 hop away, 2 and 6: scores 0, 100 and 150.
        assigned(&pool, &[(0, 1, 1e6), (0, 2, 100.0), (0, 6, 30.0)], &[], &[(0, 6)])?;
        assigned(
            &DirectPolicy::thesis(3),
            &[(0, 1, 1e6), (0, 2, 100.0), (0, 6, 30.0)],
            &[],
            &[(0, 2), (0, 6)],
        )?;
        assigned(&DirectPolicy::thesis(0), &[(0, 6, 30.0)], &[(0, 6)], &[])
    }

    #[test]
    fn a_place_is_kept_until_another_destination_is_better_by_the_margin() -> Result<()> {
        let pool = DirectPolicy { margin: 0.25, ..DirectPolicy::thesis(1) };
        assigned(&pool, &[(0, 5, 100.0), (0, 7, 120.0)], &[(0, 5)], &[(0, 5)])?;
        assigned(&pool, &[(0, 5, 100.0), (0, 7, 130.0)], &[(0, 5)], &[(0, 7)])?;
        assigned(&DirectPolicy::thesis(1), &[(0, 5, 100.0), (0, 7, 120.0)], &[(0, 5)], &[(0, 7)])
    }

    #[test]
    fn a_receiver_refuses_more_than_it_accepts() -> Result<()> {
        let pairs = [(0, 6, 100.0), (1, 6, 100.0), (2, 6, 500.0), (2, 7, 10.0)];
        // With global knowledge the best score wins.
        let pool = DirectPolicy { both_ways: false, ..DirectPolicy::new(1, Some(1)) };
        assigned(&pool, &pairs, &[], &[(2, 6)])?;
        let local = DirectPolicy { knowledge: TrafficKnowledge::Local, ..pool };
        // With local knowledge the existing connection stays, and a refused node opens another.
        assigned(&local, &pairs, &[(0, 6)], &[(0, 6), (2, 7)])
    }

    #[test]
    fn one_connection_serves_both_ways() -> Result<()> {
        let pool = DirectPolicy::new(1, None);
        let direct = pool.assign(
            &routes()?,
            &demand(&[(0, 6, 100.0), (6, 0, 100.0), (6, 1, 50.0)]),
            &Direct::new(),
            &mut Rng::with_seed(1),
        );
        // Nodes 6 and 0 share one connection, so one of them has a place left.
        assert!(direct.contains(&(0, 6)) != direct.contains(&(6, 0)), "{direct:?}");
        assert!(direct.iter().any(|pair| [(6, 1), (1, 6)].contains(pair)), "{direct:?}");
        Ok(())
    }

    #[test]
    fn invalid_pools_are_errors() {
        for pool in [
            DirectPolicy { margin: f64::NAN, ..DirectPolicy::new(1, None) },
            DirectPolicy { memory: 1.0, ..DirectPolicy::new(1, None) },
            DirectPolicy::new(NODES_MAX + 1, None),
            DirectPolicy::new(1, Some(NODES_MAX + 1)),
        ] {
            assert!(pool.check().is_err(), "{pool:?}");
        }
    }
}
