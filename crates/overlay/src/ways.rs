//! Routes of messages over a topology with additional direct connections.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::direct::Direct;
use crate::forwarding::Classes;
use crate::routes::{Routes, hops_from};
use crate::traffic::TrafficMatrix;

/// Which direct connections a message may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectUse {
    /// Only one that leads from the current node to the destination, as in the thesis.
    Own,
    /// Any on a shortest path. All nodes know all direct connections.
    All,
}

/// Shortest paths over a topology and direct connections.
#[derive(Debug)]
pub(crate) struct HybridRoutes<'a> {
    pub(crate) routes: &'a Routes,
    through: DirectUse,
    /// By node, the other ends of its outgoing and incoming direct connections.
    out: Vec<Vec<u32>>,
    into: Vec<Vec<u32>>,
    /// By destination, the hops from every node to it; computed on demand.
    fields: Vec<Option<Vec<u16>>>,
    arrivals: Vec<Vec<u32>>,
}

impl<'a> HybridRoutes<'a> {
    pub(crate) fn new(routes: &'a Routes, through: DirectUse) -> Self {
        let nodes = routes.topology().nodes();
        let none = || vec![Vec::new(); nodes];
        let arrivals = if through == DirectUse::All { routes.topology().arrivals() } else { Vec::new() };
        Self { routes, through, out: none(), into: none(), fields: vec![None; nodes], arrivals }
    }

    /// Replaces the direct connections.
    pub(crate) fn change(&mut self, direct: &Direct, both_ways: bool) {
        let lists = self.out.iter_mut().chain(&mut self.into);
        lists.for_each(Vec::clear);
        self.fields.fill(None);
        for &(from, to) in direct {
            self.out[from as usize].push(to);
            self.into[to as usize].push(from);
            if both_ways {
                self.out[to as usize].push(from);
                self.into[from as usize].push(to);
            }
        }
        self.out.iter_mut().for_each(|nodes| nodes.sort_unstable());
    }

    /// Fills `next` with the nodes to which a message for `to` may go next from `from`, after `hops` hops.
    pub(crate) fn next(
        &mut self,
        from: usize,
        to: usize,
        hops: usize,
        classes: &Classes,
        next: &mut Vec<usize>,
    ) {
        next.clear();
        if self.out[from].binary_search(&(to as u32)).is_ok() {
            next.push(to);
            return;
        }
        if self.through == DirectUse::All {
            self.field(to);
            let field = self.fields[to].as_deref().unwrap_or_default();
            let links = self.routes.topology().links(from).iter().chain(&self.out[from]);
            let nearer = links.map(|node| *node as usize).filter(|node| field[*node] + 1 == field[from]);
            next.extend(nearer.filter(|node| classes.may_hop(hops, self.routes.hops(*node, to))));
        }
        if next.is_empty() {
            next.extend(self.routes.next_hops(from, to));
        }
    }

    fn field(&mut self, to: usize) {
        if self.fields[to].is_some() {
            return;
        }
        let joined: Vec<Vec<u32>>;
        let links = if self.into.iter().all(Vec::is_empty) {
            &self.arrivals
        } else {
            joined = self.arrivals.iter().zip(&self.into).map(|(a, b)| [a.as_slice(), b].concat()).collect();
            &joined
        };
        self.fields[to] = Some(hops_from(to, |node| &links[node], links.len()));
    }

    /// The load that traffic causes if ties are divided evenly.
    pub(crate) fn load(&mut self, demand: &TrafficMatrix, classes: &Classes) -> Load {
        let nodes = self.routes.topology().nodes();
        let mut load =
            Load { total: demand.total_bytes(), nodes: vec![NodeLoad::default(); nodes], link_most: 0.0 };
        let mut links: Vec<BTreeMap<usize, f64>> = vec![BTreeMap::new(); nodes];
        let mut columns: Vec<Vec<(usize, f64)>> = vec![Vec::new(); nodes];
        for (from, to, bytes) in demand.pairs() {
            columns[to].push((from, bytes));
            load.nodes[from].sent += bytes;
            load.nodes[to].received += bytes;
        }
        let (mut next, mut order): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..nodes).collect());
        for (to, column) in columns.iter().enumerate().filter(|(_, column)| !column.is_empty()) {
            let mut through = vec![0.0; nodes];
            column.iter().for_each(|(from, bytes)| through[*from] += bytes);
            if self.through == DirectUse::All {
                self.field(to);
            }
            // From the farthest node on, so that all traffic through a node has reached it.
            order.sort_unstable_by_key(|node| std::cmp::Reverse(self.hops_left(*node, to)));
            for from in order.iter().copied().filter(|from| *from != to) {
                if through[from] > 0.0 {
                    self.next(from, to, 0, classes, &mut next);
                    let part = through[from] / next.len() as f64;
                    for node in &next {
                        through[*node] += part;
                        *links[from].entry(*node).or_default() += part;
                    }
                }
            }
            column.iter().for_each(|(from, bytes)| through[*from] -= bytes);
            through[to] = 0.0;
            load.nodes.iter_mut().zip(through).for_each(|(node, bytes)| node.forwarded += bytes);
        }
        load.link_most = links.iter().flat_map(BTreeMap::values).copied().fold(0.0, f64::max);
        load
    }

    fn hops_left(&self, from: usize, to: usize) -> usize {
        match self.fields[to].as_ref().filter(|_| self.through == DirectUse::All) {
            Some(field) => usize::from(field[from]),
            None => self.routes.hops(from, to),
        }
    }
}

/// Bytes that nodes and links carry.
#[derive(Debug)]
pub(crate) struct Load {
    total: f64,
    pub(crate) nodes: Vec<NodeLoad>,
    /// Bytes on the busiest link.
    pub(crate) link_most: f64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NodeLoad {
    pub(crate) sent: f64,
    pub(crate) received: f64,
    pub(crate) forwarded: f64,
}

impl Load {
    /// Bytes forwarded per byte sent.
    pub(crate) fn forwarded_part(&self) -> f64 {
        self.nodes.iter().map(|node| node.forwarded).sum::<f64>() / self.total.max(f64::MIN_POSITIVE)
    }
}
