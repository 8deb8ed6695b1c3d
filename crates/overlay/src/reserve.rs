//! Chooses from the traffic how many sockets to reserve for direct connections.
//!
//! A socket given to the pool is taken from the topology, which lengthens the paths of all messages.
//! That pays off for skewed traffic and seldom for uniform traffic. The split is therefore computed from
//! the traffic of an earlier run or from a forecast.

use fastrand::Rng;
use serde::Serialize;

use crate::circulant::circulant;
use crate::direct::{Direct, DirectPolicy};
use crate::error::Result;
use crate::forwarding::Classes;
use crate::routes::Routes;
use crate::simulate::Network;
use crate::topology::{Shape, Topology};
use crate::traffic::TrafficMatrix;
use crate::ways::{DirectUse, HybridRoutes, Load, NodeLoad};

/// A reserve must save at least this share. A smaller gain may be chance and does not pay for reconnecting.
const GAIN_MIN: f64 = 0.05;

/// The inputs of the choice.
#[derive(Debug, Clone)]
pub struct Reserve<'a> {
    /// Sockets per node. A direct connection counts at the node that opens it.
    pub sockets: usize,
    /// Rules of the pool. Its `opened_max` is ignored: it is the result of the choice.
    pub pool: &'a DirectPolicy,
    /// Which direct connections a message may take.
    pub through: DirectUse,
    /// Capacities of links and nodes.
    pub network: &'a Network,
    /// Message size in bytes.
    pub message_bytes: u64,
}

/// A division of a node's sockets between a circulant and a pool.
#[derive(Debug, Clone, Serialize)]
pub struct Split {
    /// The topology.
    pub shape: Shape,
    /// Sockets per node that the topology takes.
    pub topology_sockets: usize,
    /// Direct connections that a node may open.
    pub direct: usize,
    /// The estimate for this split.
    pub expected: Expected,
    /// All splits considered: the number of direct connections and the estimate.
    pub considered: Vec<(usize, Expected)>,
}

/// The estimate for a split.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Expected {
    /// Forwards per message.
    pub forwards_per_message: f64,
    /// A lower bound on the time of the traffic: the maximum of the busiest link's time, `own_seconds`,
    /// and the mean time of a node including forwards.
    pub seconds: f64,
    /// The time that the busiest node needs to send and receive its own messages, whatever the split.
    pub own_seconds: f64,
}

impl Reserve<'_> {
    /// Returns the split that minimises the sum of forwards and time, each relative to its value without
    /// direct connections. The split must be expected to save 5% of the forwards, and 5% of the time or
    /// all of the time that can be saved. If no split does, nothing is reserved. The topology keeps at
    /// least half of the sockets, because traffic may change.
    ///
    /// `tries` and `seed` are passed to [`circulant`]. At most `sockets / 2` splits are considered, each in
    /// `pairs with traffic + destinations x nodes x links` steps.
    ///
    /// # Errors
    /// As [`circulant`] and [`DirectPolicy::check`].
    pub fn split(&self, demand: &TrafficMatrix, tries: usize, seed: u64) -> Result<Split> {
        self.pool.check()?;
        let nodes = demand.nodes();
        let (shape, without) = self.expected(0, demand, tries, seed)?;
        let mut best = Split {
            shape,
            topology_sockets: self.sockets,
            direct: 0,
            expected: without,
            considered: vec![(0, without)],
        };
        let forwards_max = without.forwards_per_message * (1.0 - GAIN_MIN);
        let seconds_max = f64::max(without.seconds * (1.0 - GAIN_MIN), without.own_seconds);
        let mut least = f64::INFINITY;
        for direct in 1..=self.sockets / 2 {
            let topology_sockets = self.sockets - direct;
            // With an odd number of nodes, a circulant needs an even number of sockets.
            if topology_sockets < 2 || topology_sockets % 2 == 1 && nodes % 2 == 1 {
                continue;
            }
            let (shape, expected) = self.expected(direct, demand, tries, seed)?;
            best.considered.push((direct, expected));
            let gains = expected.forwards_per_message < forwards_max && expected.seconds <= seconds_max;
            let cost = expected.forwards_per_message / without.forwards_per_message
                + expected.seconds / without.seconds;
            // Without traffic, this is NaN and nothing is reserved.
            if gains && cost < least {
                least = cost;
                best = Split { shape, topology_sockets, direct, expected, ..best };
            }
        }
        Ok(best)
    }

    fn expected(
        &self,
        direct: usize,
        demand: &TrafficMatrix,
        tries: usize,
        seed: u64,
    ) -> Result<(Shape, Expected)> {
        let nodes = demand.nodes();
        let shape = circulant(nodes, self.sockets - direct, tries, seed)?;
        let routes = Routes::new(Topology::new(shape.clone(), nodes)?);
        let pool = DirectPolicy { opened_max: direct, ..self.pool.clone() };
        let opened = pool.assign(&routes, demand, &Direct::new(), &mut Rng::with_seed(seed));
        let mut ways = HybridRoutes::new(&routes, self.through);
        ways.change(&opened, pool.both_ways);
        let load = ways.load(demand, &Classes::for_shortest(routes.diameter(), self.through));
        Ok((shape, self.expect(&load)))
    }

    fn expect(&self, load: &Load) -> Expected {
        let Network { link_bytes_per_second, node_bytes_per_second, message_seconds, .. } = *self.network;
        let message_seconds_per_byte = message_seconds / (self.message_bytes as f64).max(1.0);
        let seconds = |node: &NodeLoad| {
            let way = (node.sent.max(node.received) + node.forwarded) / node_bytes_per_second;
            let work = (node.sent + node.received + 2.0 * node.forwarded) * message_seconds_per_byte;
            way.max(work)
        };
        // Forwards can move to other nodes; a node's own messages can't.
        let own = load.nodes.iter().map(|node| seconds(&NodeLoad { forwarded: 0.0, ..*node }));
        let own_seconds = own.fold(0.0, f64::max);
        let mean = load.nodes.iter().map(seconds).sum::<f64>() / load.nodes.len().max(1) as f64;
        Expected {
            forwards_per_message: load.forwarded_part(),
            seconds: own_seconds.max(mean).max(load.link_most / link_bytes_per_second),
            own_seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{THESIS_WEIGHTS_PERCENT, Traffic};

    fn split(nodes: usize, sockets: usize, traffic: &Traffic, accepted_max: Option<usize>) -> Result<Split> {
        let (pool, network) = (DirectPolicy::new(0, accepted_max), Network::default());
        let reserve = Reserve {
            sockets,
            pool: &pool,
            through: DirectUse::Own,
            network: &network,
            message_bytes: 1 << 16,
        };
        reserve.split(&traffic.demand(nodes), 200, 1)
    }

    fn skewed() -> Traffic {
        Traffic { weights_percent: THESIS_WEIGHTS_PERCENT.to_vec(), ..Traffic::default() }
    }

    #[test]
    fn a_reserve_is_made_for_skewed_traffic_only() -> Result<()> {
        assert_eq!(split(60, 12, &Traffic::default(), None)?.direct, 0);
        let free = split(60, 12, &skewed(), None)?;
        assert!(free.direct >= 3 && free.direct + free.topology_sockets == 12, "{free:?}");
        let limited = split(60, 12, &skewed(), Some(6))?;
        assert!(limited.expected.forwards_per_message > free.expected.forwards_per_message, "{limited:?}");
        // All splits considered are listed, and the chosen one is not expected to be slower.
        assert_eq!((free.considered.len(), free.considered[0].0), (7, 0));
        assert!(free.expected.seconds <= free.considered[0].1.seconds);
        Ok(())
    }

    #[test]
    fn an_odd_number_of_nodes_keeps_the_topology_sockets_even() -> Result<()> {
        let split = split(61, 12, &skewed(), None)?;
        assert_eq!((split.topology_sockets % 2, split.considered.len()), (0, 4));
        Ok(())
    }

    #[test]
    fn too_few_sockets_or_no_traffic_reserves_nothing() -> Result<()> {
        assert_eq!(split(60, 2, &skewed(), None)?.direct, 0);
        assert!(split(60, 1, &skewed(), None).is_err());
        let (pool, network) = (DirectPolicy::new(0, None), Network::default());
        let reserve =
            Reserve { sockets: 6, pool: &pool, through: DirectUse::All, network: &network, message_bytes: 1 };
        assert_eq!(reserve.split(&TrafficMatrix::new(20), 10, 1)?.direct, 0);
        Ok(())
    }
}
