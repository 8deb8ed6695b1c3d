//! The way of a message when there are direct connections beside the topology.

use serde::{Deserialize, Serialize};

use crate::direct::Direct;
use crate::forwarding::Classes;
use crate::routes::{NONE, Routes, hops_from};
use crate::traffic::Demand;

/// Which direct connections a message may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Through {
    /// One that leads from where it is to where it goes, as in the thesis.
    Own,
    /// Any on a shortest way; all nodes know of all of them.
    All,
}

/// Shortest ways over a topology and direct connections.
#[derive(Debug)]
pub(crate) struct Ways<'a> {
    pub(crate) routes: &'a Routes,
    through: Through,
    /// By node, where its direct connections lead, and whence others lead to it.
    out: Vec<Vec<u32>>,
    into: Vec<Vec<u32>>,
    /// By destination, hops of all nodes to it, of those asked for.
    fields: Vec<Option<Vec<u16>>>,
    arrivals: Vec<Vec<u32>>,
}

impl<'a> Ways<'a> {
    pub(crate) fn new(routes: &'a Routes, through: Through) -> Self {
        let nodes = routes.topology().nodes();
        let none = || vec![Vec::new(); nodes];
        let arrivals = if through == Through::All { routes.topology().arrivals() } else { Vec::new() };
        Self { routes, through, out: none(), into: none(), fields: vec![None; nodes], arrivals }
    }

    /// Takes other direct connections into account than before.
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
    }

    /// All nodes to which a message for `to` may go next from another node, after so many hops.
    pub(crate) fn next(&mut self, from: usize, to: usize, hops: usize, classes: &Classes, next: &mut Vec<usize>) {
        next.clear();
        if self.out[from].contains(&(to as u32)) {
            next.push(to);
            return;
        }
        if self.through == Through::All {
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

    /// Hops of a message, if nodes on its way have no shortcut of their own.
    fn hops(&mut self, from: usize, to: usize) -> usize {
        if self.out[from].contains(&(to as u32)) {
            return 1;
        }
        if self.through == Through::Own {
            return self.routes.hops(from, to);
        }
        self.field(to);
        let hops = self.fields[to].as_ref().map_or(NONE, |field| field[from]);
        usize::from(hops)
    }

    /// Bytes that others forward, for each byte that is sent.
    pub(crate) fn forwarded_part(&mut self, demand: &Demand) -> f64 {
        let mut forwarded = 0.0;
        for (from, to, bytes) in demand.pairs() {
            forwarded += bytes * (self.hops(from, to) - 1) as f64;
        }
        forwarded / demand.total_bytes().max(f64::MIN_POSITIVE)
    }
}
