//! How many sockets to give to direct connections: chosen from the traffic.
//!
//! A socket given to the pool is one less for the topology, whose ways grow longer for all. That pays
//! where traffic is skewed, and seldom where it is uniform; so the split is what the traffic of an
//! earlier run, or what is known of the next, makes it.

use fastrand::Rng;
use serde::Serialize;

use crate::circulant::circulant;
use crate::direct::{Direct, Pool};
use crate::error::Result;
use crate::forwarding::Classes;
use crate::routes::Routes;
use crate::simulate::Network;
use crate::topology::{Shape, Topology};
use crate::traffic::Demand;
use crate::ways::{Load, NodeLoad, Through, Ways};

/// A reserve is made only if it saves this part: less may be chance, and would be paid for with reconnecting.
const GAIN_MIN: f64 = 0.05;

/// What is given, and how places are given out.
#[derive(Debug, Clone)]
pub struct Reserve<'a> {
    /// Sockets of a node. Direct connections count where they are opened.
    pub sockets: usize,
    /// Rules of the pool; its `opened_max` is what is looked for, and counts for nothing.
    pub pool: &'a Pool,
    /// Which direct connections a message may take.
    pub through: Through,
    /// What links and nodes can do.
    pub network: &'a Network,
    /// Bytes of a message.
    pub message_bytes: u64,
}

/// A circulant and a pool that share a node's sockets.
#[derive(Debug, Clone, Serialize)]
pub struct Split {
    /// The topology.
    pub shape: Shape,
    /// Sockets of a node that it takes.
    pub topology_sockets: usize,
    /// Direct connections that a node may open.
    pub direct: usize,
    /// What is expected of it.
    pub expected: Expected,
    /// All that were looked at, by direct connections.
    pub considered: Vec<(usize, Expected)>,
}

/// What is expected of a split.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Expected {
    /// Forwards of a message.
    pub forwards_per_message: f64,
    /// The traffic takes no less: the busiest link's time, `own_seconds`, and the mean node's with all
    /// that is forwarded, whichever is most.
    pub seconds: f64,
    /// What the node that sends or receives most takes for that alone, whatever the split.
    pub own_seconds: f64,
}

impl Reserve<'_> {
    /// The split with the least forwards and the least time, each as a part of what they are without direct
    /// connections, and both counting alike. It must be expected to save 5% of the forwards and 5% of the
    /// time, or all of the time that can be saved; if none does, there is no reserve. At least half of
    /// the sockets stay with the topology, as traffic may change.
    ///
    /// `tries` and `seed` are for [`circulant`]. At most half as many splits are looked at as there are
    /// sockets, each in `pairs with traffic + destinations x nodes x links` steps.
    ///
    /// # Errors
    /// As [`circulant`] and [`Pool::check`].
    pub fn split(&self, demand: &Demand, tries: usize, seed: u64) -> Result<Split> {
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
            // With an odd number of nodes, there is a circulant for every other number of sockets.
            if topology_sockets < 2 || topology_sockets % 2 == 1 && nodes % 2 == 1 {
                continue;
            }
            let (shape, expected) = self.expected(direct, demand, tries, seed)?;
            best.considered.push((direct, expected));
            let gains = expected.forwards_per_message < forwards_max && expected.seconds <= seconds_max;
            let cost = expected.forwards_per_message / without.forwards_per_message
                + expected.seconds / without.seconds;
            // With nothing sent that is NaN, and no reserve.
            if gains && cost < least {
                least = cost;
                best = Split { shape, topology_sockets, direct, expected, ..best };
            }
        }
        Ok(best)
    }

    fn expected(&self, direct: usize, demand: &Demand, tries: usize, seed: u64) -> Result<(Shape, Expected)> {
        let nodes = demand.nodes();
        let shape = circulant(nodes, self.sockets - direct, tries, seed)?;
        let routes = Routes::new(Topology::new(shape.clone(), nodes)?);
        let pool = Pool { opened_max: direct, ..self.pool.clone() };
        let opened = pool.assign(&routes, demand, &Direct::new(), &mut Rng::with_seed(seed));
        let mut ways = Ways::new(&routes, self.through);
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
        // What a node sends and receives itself, nobody can do for it; what it forwards, others can.
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
        let (pool, network) = (Pool::new(0, accepted_max), Network::default());
        let reserve = Reserve {
            sockets,
            pool: &pool,
            through: Through::Own,
            network: &network,
            message_bytes: 1 << 16,
        };
        reserve.split(&traffic.demand(nodes), 200, 1)
    }

    fn skewed() -> Traffic {
        Traffic { weights_percent: THESIS_WEIGHTS_PERCENT.to_vec(), ..Traffic::default() }
    }

    #[test]
    fn as_the_traffic_is() -> Result<()> {
        assert_eq!(split(60, 12, &Traffic::default(), None)?.direct, 0);
        let free = split(60, 12, &skewed(), None)?;
        assert!(free.direct >= 3 && free.direct + free.topology_sockets == 12, "{free:?}");
        let limited = split(60, 12, &skewed(), Some(6))?;
        assert!(limited.expected.forwards_per_message > free.expected.forwards_per_message, "{limited:?}");
        // Everything that was looked at; nothing that is expected to be slower.
        assert_eq!((free.considered.len(), free.considered[0].0), (7, 0));
        assert!(free.expected.seconds <= free.considered[0].1.seconds);
        Ok(())
    }

    #[test]
    fn an_odd_number_of_nodes() -> Result<()> {
        let split = split(61, 12, &skewed(), None)?;
        assert_eq!((split.topology_sockets % 2, split.considered.len()), (0, 4));
        Ok(())
    }

    #[test]
    fn nothing_to_choose_from() -> Result<()> {
        assert_eq!(split(60, 2, &skewed(), None)?.direct, 0);
        assert!(split(60, 1, &skewed(), None).is_err());
        // No traffic, no reserve.
        let (pool, network) = (Pool::new(0, None), Network::default());
        let reserve =
            Reserve { sockets: 6, pool: &pool, through: Through::All, network: &network, message_bytes: 1 };
        assert_eq!(reserve.split(&Demand::new(20), 10, 1)?.direct, 0);
        Ok(())
    }
}
