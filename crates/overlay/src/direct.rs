//! The pool of direct connections: where hops are saved, by how much, and who gets a place.
//!
//! Samson's hybrid keeps some of a node's connections for direct ones, and gives them every period to
//! the destinations with the highest score, `(hops - 1) x bytes` sent since the last time: the
//! bytes that others would have to forward. Hops are those of the topology, so that a destination
//! that has a direct connection keeps its score. Beyond the thesis:
//!
//! - a place is kept until another destination is better by a margin, and earlier periods count
//!   in part: with uniform traffic nothing is reconnected for what is only chance;
//! - a receiver accepts a limited number, and refuses more;
//! - connections are used both ways, and score for what goes either way;
//! - places may be given out knowing what all nodes send, best scores first.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::error::{Result, count_within, within};
use crate::routes::Routes;
use crate::topology::NODES_MAX;
use crate::traffic::Demand;

/// Direct connections: who opened it, and to whom.
pub type Direct = BTreeSet<(u32, u32)>;

/// What those who give out places know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knowledge {
    /// Every node knows what it sends itself, as in the thesis. Receivers accept who comes first.
    Local,
    /// All is known of all: the best scores come first.
    Global,
}

/// Rules of the pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    /// Direct connections that a node may open.
    pub opened_max: usize,
    /// Direct connections that a node accepts, beside those it opens; no limit in the thesis.
    pub accepted_max: Option<usize>,
    /// Whether both ends send on them. In the thesis only who opened them does.
    pub both_ways: bool,
    /// What is known.
    pub knowledge: Knowledge,
    /// By how much, as a part, another destination must be better than the one that has the place. 0 in
    /// the thesis.
    pub margin: f64,
    /// The part of a period's bytes that still counts in the next one. 0 in the thesis.
    pub memory: f64,
}

impl Pool {
    /// The thesis' rules for so many direct connections a node.
    pub fn thesis(opened_max: usize) -> Self {
        let knowledge = Knowledge::Local;
        Self { opened_max, accepted_max: None, both_ways: false, knowledge, margin: 0.0, memory: 0.0 }
    }

    /// Ours.
    pub fn new(opened_max: usize, accepted_max: Option<usize>) -> Self {
        let knowledge = Knowledge::Global;
        Self { opened_max, accepted_max, both_ways: true, knowledge, margin: 0.25, memory: 0.9 }
    }

    /// # Errors
    /// [`OverlayError::OutOfRange`](crate::OverlayError::OutOfRange) for counts above 4096, a margin
    /// that is not between 0 and 100, and a memory that is not from 0 to below 1.
    pub fn check(&self) -> Result<()> {
        count_within("number of direct connections of a node", self.opened_max, 0, NODES_MAX)?;
        count_within("number of direct connections accepted", self.accepted_max.unwrap_or(0), 0, NODES_MAX)?;
        within("margin", self.margin, 0.0, 100.0)?;
        within("memory", self.memory, 0.0, 0.999)
    }

    /// Who gets the places, after traffic like `demand`, when these are the ones of `now`.
    pub fn assign(&self, routes: &Routes, demand: &Demand, now: &Direct, rng: &mut Rng) -> Direct {
        if self.opened_max == 0 {
            return Direct::new();
        }
        let mut candidates = self.candidates(routes, demand, now);
        // Equals in random order.
        rng.shuffle(&mut candidates);
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
        if self.knowledge == Knowledge::Local {
            self.by_node(&mut candidates, routes.topology().nodes(), rng);
        }
        self.give_out(&candidates, routes.topology().nodes())
    }

    /// Connections that would save hops.
    fn candidates(&self, routes: &Routes, demand: &Demand, now: &Direct) -> Vec<Candidate> {
        let mut scores: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for (from, to, bytes) in demand.pairs() {
            let forwards = routes.hops(from, to).saturating_sub(1);
            if forwards > 0 && bytes > 0.0 {
                let (from, to) = (from as u32, to as u32);
                let score = forwards as f64 * bytes;
                *scores.entry((from, to)).or_default() += score;
                if self.both_ways && self.knowledge == Knowledge::Global {
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

    /// Puts candidates, best first, in the order in which they come to the receivers: first what nodes
    /// have and would keep, then node by node at random.
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

    /// Gives places to candidates in order, until neither end has one left.
    fn give_out(&self, candidates: &[Candidate], nodes: usize) -> Direct {
        let (mut opened, mut accepted) = (vec![0; nodes], vec![0; nodes]);
        let mut direct = Direct::new();
        for Candidate { from, to, .. } in candidates {
            let (opener, receiver) = (&mut opened[*from as usize], &mut accepted[*to as usize]);
            let is_there = self.both_ways && direct.contains(&(*to, *from));
            if *opener < self.opened_max && self.accepted_max.is_none_or(|most| *receiver < most) && !is_there {
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
    /// Whether it comes after those that are kept; among them, when.
    turn: (bool, usize),
    score: f64,
}
