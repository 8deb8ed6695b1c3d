//! A shuffle over an overlay, message by message, in virtual time.
//!
//! At every hop a message passes these stages, each of which serves one message at a time:
//!
//! 1. the queue of its link, until the link is idle and the next node has room in the message's next class
//!    ([`forwarding`](crate::forwarding));
//! 2. the node's processor, which sending and receiving share;
//! 3. the node's outbound port and, at the same time, the link; then the link's latency;
//! 4. the next node's inbound port and processor. The destination consumes the message at once; any other
//!    node queues it again.
//!
//! A sender queues a limited number of its own messages and creates the next one when one has left.
//! Not modelled: losses, congestion within the network, nodes that differ, the content of messages.

mod agenda;
mod network;
mod run;

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

pub use crate::latency::Latencies;

use crate::direct::DirectPolicy;
use crate::error::{Result, count_within, within};
use crate::forwarding::Classes;
use crate::routes::Routes;
use crate::topology::{Shape, Topology};
use crate::traffic::{Traffic, TrafficMatrix};
use crate::ways::DirectUse;

/// A callback that receives the number of delivered messages and returns whether to continue.
pub type Watch<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

/// Capacities of links and nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// Latency from one end of a connection to the other.
    pub latency_seconds: f64,
    /// Rate of a connection in each direction.
    pub link_bytes_per_second: f64,
    /// Rate of a node over all its connections in each direction.
    pub node_bytes_per_second: f64,
    /// Processor time of a node for each message that it sends or receives.
    pub message_seconds: f64,
    /// Time until a new direct connection can carry messages.
    pub connect_seconds: f64,
}

impl Default for Network {
    /// 10 Gbit/s per node, of which one connection reaches a quarter (in the thesis' measurements,
    /// throughput grows up to 4 connections); 50 us of latency; 20 us of processor time per message.
    fn default() -> Self {
        Self {
            latency_seconds: 50e-6,
            link_bytes_per_second: 312.5e6,
            node_bytes_per_second: 1.25e9,
            message_seconds: 20e-6,
            connect_seconds: 1e-3,
        }
    }
}

/// Which of several shortest paths a node takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ties {
    /// A random one, as in the thesis.
    Random,
    /// The one with the fewest messages waiting at this node; a random one among equals.
    ShortestQueue,
}

/// The parameters of a simulation. Its result also depends on the traffic of an earlier run, if given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Simulation {
    /// Nodes.
    pub nodes: usize,
    /// The permanent topology.
    #[serde(flatten)]
    pub shape: Shape,
    /// The pool of direct connections.
    pub pool: DirectPolicy,
    /// Virtual time between assignments of direct connections.
    pub period_seconds: f64,
    /// Which direct connections a message may take.
    pub through: DirectUse,
    /// How ties between shortest paths are broken.
    pub ties: Ties,
    /// The messages to send.
    pub traffic: Traffic,
    /// Capacities of links and nodes.
    pub network: Network,
    /// Messages that a queue holds. There is one queue per link and class, so a node's memory is at most
    /// `queue_messages x links x classes x message size`.
    pub queue_messages: usize,
    /// Own messages that a node may have queued.
    pub window_messages: usize,
    /// The seed of destinations, ties and pool assignments.
    pub seed: u64,
}

impl Simulation {
    /// Uniform traffic over a topology without direct connections.
    pub fn new(shape: Shape, nodes: usize, seed: u64) -> Self {
        Self {
            nodes,
            shape,
            pool: DirectPolicy::new(0, None),
            period_seconds: 0.01,
            through: DirectUse::Own,
            ties: Ties::Random,
            traffic: Traffic::default(),
            network: Network::default(),
            queue_messages: 4,
            window_messages: 32,
            seed,
        }
    }

    /// Runs the simulation.
    ///
    /// `last` is the traffic of an earlier run ([`Report::demand`]). If given, direct connections are
    /// assigned from it at the start.
    ///
    /// # Errors
    /// [`OverlayError`](crate::OverlayError) for invalid parameters.
    pub fn run(&self, last: Option<&TrafficMatrix>) -> Result<Report> {
        self.run_watched(last, &mut |_| ControlFlow::Continue(()))
    }

    /// Like [`Simulation::run`], but calls `watch` regularly with the number of delivered messages.
    ///
    /// # Errors
    /// As [`Simulation::run`], and [`OverlayError::Stopped`](crate::OverlayError::Stopped) if `watch` breaks.
    pub fn run_watched(&self, last: Option<&TrafficMatrix>, watch: &mut Watch<'_>) -> Result<Report> {
        let routes = Routes::new(Topology::new(self.shape.clone(), self.nodes)?);
        self.check()?;
        run::run(self, &routes, Classes::for_shortest(routes.diameter(), self.through), last, watch)
    }

    #[cfg(test)]
    pub(crate) fn run_with(
        &self,
        routes: &Routes,
        classes: Classes,
        last: Option<&TrafficMatrix>,
    ) -> Result<Report> {
        self.check()?;
        run::run(self, routes, classes, last, &mut |_| ControlFlow::Continue(()))
    }

    fn check(&self) -> Result<()> {
        self.pool.check()?;
        self.traffic.check(self.nodes)?;
        within("period in seconds", self.period_seconds, 1e-6, 1e6)?;
        count_within("number of messages per queue", self.queue_messages, 1, 1 << 20)?;
        count_within("number of own messages queued per node", self.window_messages, 1, 1 << 20)?;
        let Network { latency_seconds, message_seconds, connect_seconds, .. } = self.network;
        within("latency in seconds", latency_seconds, 0.0, 10.0)?;
        within("processor time per message in seconds", message_seconds, 0.0, 1.0)?;
        within("time to connect in seconds", connect_seconds, 0.0, 100.0)?;
        within("rate of a link in bytes per second", self.network.link_bytes_per_second, 1e4, 1e15)?;
        within("rate of a node in bytes per second", self.network.node_bytes_per_second, 1e4, 1e15)
    }
}

/// The result of a simulation.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The parameters, including the seed.
    pub parameters: Simulation,
    /// Messages sent. All of them arrived.
    pub messages: u64,
    /// How often a node forwarded a message.
    pub forwards: u64,
    /// `forwards / messages`.
    pub forwards_per_message: f64,
    /// Virtual time until the last message arrived.
    pub seconds: f64,
    /// How many of the `nodes x (nodes - 1)` pairs exchanged a message. If few did, the run is a sample.
    pub pairs: usize,
    /// Direct connections opened after the start.
    pub reconnections: u64,
    /// The greatest length that any queue reached, in messages.
    pub queued_most: usize,
    /// Results by node.
    pub per_node: Vec<NodeReport>,
    /// Direct connections at the end.
    pub direct: Vec<(u32, u32)>,
    /// The traffic sent, for the next run and for [`Reserve::split`](crate::Reserve::split).
    #[serde(skip)]
    pub demand: TrafficMatrix,
}

/// The results of one node.
#[derive(Debug, Clone, Serialize)]
pub struct NodeReport {
    /// Own messages sent.
    pub sent: u64,
    /// Messages received for this node.
    pub received: u64,
    /// Messages between other nodes that it forwarded.
    pub forwarded: u64,
    /// The most sockets it had at any time between two assignments, including those opened by others.
    pub sockets_max: usize,
    /// Virtual time at which it sent, received or forwarded its last message.
    pub seconds: f64,
    /// Latency of the messages it received, from when the sender queued each one.
    pub latency: Latencies,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Simulation {
        let traffic = Traffic { messages_per_node: 50, ..Traffic::default() };
        Simulation { traffic, ..Simulation::new(Shape::Ring, 6, 1) }
    }

    #[test]
    fn every_message_is_received_and_forwards_match_hops() -> Result<()> {
        let simulation = small();
        let report = simulation.run(None)?;
        let sum = |of: fn(&NodeReport) -> u64| report.per_node.iter().map(of).sum::<u64>();
        assert_eq!((report.messages, sum(|node| node.sent), sum(|node| node.received)), (300, 300, 300));
        let routes = Routes::new(Topology::new(Shape::Ring, 6)?);
        let bytes = simulation.traffic.message_bytes as f64;
        let hops = |(from, to, sent): (usize, usize, f64)| (routes.hops(from, to) - 1) as f64 * sent / bytes;
        assert_eq!(report.forwards as f64, report.demand.pairs().map(hops).sum::<f64>());
        assert_eq!(report.forwards, sum(|node| node.forwarded));
        Ok(())
    }

    /// Two nodes send one message each. The ports and the link work at the same time; the processors at
    /// both ends add to that.
    #[test]
    fn a_message_takes_the_sum_of_its_stages() -> Result<()> {
        let traffic = Traffic { messages_per_node: 1, message_bytes: 1000, ..Traffic::default() };
        let network = Network {
            latency_seconds: 0.5,
            link_bytes_per_second: 10_000.0,
            node_bytes_per_second: 20_000.0,
            message_seconds: 0.01,
            ..Network::default()
        };
        let simulation = Simulation { traffic, network, ..Simulation::new(Shape::FullMesh, 2, 1) };
        let seconds = simulation.run(None)?.seconds;
        assert!((seconds - (0.01 + 0.1 + 0.5 + 0.01)).abs() < 1e-9, "{seconds}");
        Ok(())
    }

    #[test]
    fn a_full_mesh_forwards_nothing() -> Result<()> {
        let report = Simulation { shape: Shape::FullMesh, ..small() }.run(None)?;
        assert_eq!(report.forwards, 0);
        Ok(())
    }

    #[test]
    fn invalid_parameters_are_errors() {
        let network = Network { link_bytes_per_second: 0.0, ..Network::default() };
        let weights = |weights: &[f64]| Traffic { weights_percent: weights.to_vec(), ..Traffic::default() };
        for simulation in [
            Simulation { network, ..small() },
            Simulation { period_seconds: f64::NAN, ..small() },
            Simulation { queue_messages: 0, ..small() },
            Simulation { window_messages: 0, ..small() },
            Simulation { traffic: weights(&[60.0, 60.0]), ..small() },
            Simulation { traffic: weights(&[-1.0]), ..small() },
            Simulation { traffic: weights(&[1.0; 7]), ..small() },
            Simulation { nodes: 1, ..small() },
        ] {
            assert!(simulation.run(None).is_err(), "{simulation:?}");
        }
    }
}
