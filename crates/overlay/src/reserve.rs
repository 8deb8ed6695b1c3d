//! How many sockets to give to direct connections: chosen from the traffic.
//!
//! A socket given to the pool is one less for the topology, whose ways grow longer for all. It pays
//! where traffic is skewed, and never where it is uniform; so the split is what the traffic of an
//! earlier run, or what is known of the next, makes it.

use fastrand::Rng;
use serde::Serialize;

use crate::circulant::circulant;
use crate::direct::{Direct, Pool};
use crate::error::Result;
use crate::routes::Routes;
use crate::topology::{Shape, Topology};
use crate::traffic::Demand;
use crate::ways::{Through, Ways};

/// A reserve is made only if it saves this part of the forwards: less may be chance, and would be
/// paid for with reconnecting.
const GAIN_MIN: f64 = 0.05;

/// A circulant and a pool that share a node's sockets.
#[derive(Debug, Clone, Serialize)]
pub struct Split {
    /// The topology.
    pub shape: Shape,
    /// Sockets of a node that it takes.
    pub topology_sockets: usize,
    /// Direct connections that a node may open.
    pub direct: usize,
    /// What it is expected to come to.
    pub forwards_per_message: f64,
    /// All that were looked at: direct connections, forwards a message.
    pub considered: Vec<(usize, f64)>,
}

/// The split of `sockets` sockets a node with the fewest forwards under traffic like `demand`; without
/// a reserve unless one saves 5% of them. Direct connections count where they are opened.
///
/// `pool` says how places are given out (its `opened_max` counts for nothing), `tries` is for
/// [`circulant`].
///
/// # Errors
/// As [`circulant`] and [`Pool::check`].
pub fn split(
    sockets: usize,
    demand: &Demand,
    pool: &Pool,
    through: Through,
    tries: usize,
    seed: u64,
) -> Result<Split> {
    pool.check()?;
    let nodes = demand.nodes();
    let mut best: Option<Split> = None;
    let mut considered = Vec::new();
    // Two sockets connect all nodes; with one alone, and an odd number of nodes, there is no circulant.
    for direct in 0..=sockets.saturating_sub(2) {
        let topology_sockets = sockets - direct;
        if direct > 0 && topology_sockets % 2 == 1 && nodes % 2 == 1 {
            continue;
        }
        let shape = circulant(nodes, topology_sockets, tries, seed)?;
        let routes = Routes::new(Topology::new(shape.clone(), nodes)?);
        let pool = Pool { opened_max: direct, ..pool.clone() };
        let opened = pool.assign(&routes, demand, &Direct::new(), &mut Rng::with_seed(seed));
        let mut ways = Ways::new(&routes, through);
        ways.change(&opened, pool.both_ways);
        let forwards = ways.forwarded_part(demand);
        considered.push((direct, forwards));
        // The more are direct, the better it must be than without.
        let needed = best.as_ref().map_or(f64::MAX, |best: &Split| match best.direct {
            0 => best.forwards_per_message * (1.0 - GAIN_MIN),
            _ => best.forwards_per_message,
        });
        if forwards < needed {
            best = Some(Split { shape, topology_sockets, direct, forwards_per_message: forwards, considered: Vec::new() });
        }
    }
    // With fewer than two sockets there was nothing to look at, and the search says what is wrong.
    match best {
        Some(best) => Ok(Split { considered, ..best }),
        None => {
            let shape = circulant(nodes, sockets, tries, seed)?;
            Ok(Split { shape, topology_sockets: sockets, direct: 0, forwards_per_message: 0.0, considered })
        }
    }
}
