//! A shuffle over an overlay, message by message, in virtual time.
//!
//! What a message passes at every hop, each serving one at a time:
//!
//! 1. its link's queue, until the link is idle and the next node has room for its class
//!    ([`forwarding`](crate::forwarding));
//! 2. the node's processor, which all that is sent and received shares;
//! 3. the node's way out, and at the same time the link; then the link's latency;
//! 4. the next node's way in, and its processor. Where it has arrived it is consumed at once, elsewhere
//!    queued again.
//!
//! A sender has a limited number of its own messages queued, and makes the next one when one has left.
//! Not modelled: losses, congestion within the network, nodes that differ, the content of messages.

mod agenda;
mod network;
mod run;

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

pub use crate::latency::Latencies;

use crate::direct::Pool;
use crate::error::{Result, count_within, within};
use crate::forwarding::Classes;
use crate::routes::Routes;
use crate::topology::{Shape, Topology};
use crate::traffic::{Demand, Traffic};
use crate::ways::Through;

/// Is told how many messages have arrived, and says whether to go on.
pub type Watch<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

/// What links and nodes can do. Times that are 0 cost nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// From one end of a connection to the other.
    pub latency_seconds: f64,
    /// Of a connection, each way.
    pub link_bytes_per_second: f64,
    /// Of a node over all its connections, each way.
    pub node_bytes_per_second: f64,
    /// Of a node's processor, for each message that it sends and each that it receives.
    pub message_seconds: f64,
    /// Before a new direct connection carries anything.
    pub connect_seconds: f64,
}

impl Default for Network {
    /// 10 Gbit/s a node, of which a connection alone reaches a quarter (in the thesis' measurements
    /// throughput grows up to 4 connections); 50 us; 20 us of work for a message.
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

/// Which of several shortest ways a node takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ties {
    /// Any, as in the thesis.
    Random,
    /// The one for which the fewest messages wait here; among equals any.
    ShortestQueue,
}

/// A simulation: all that its result depends on, but for what an earlier run says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Simulation {
    /// Nodes.
    pub nodes: usize,
    /// The topology that stays.
    #[serde(flatten)]
    pub shape: Shape,
    /// Direct connections beside it.
    pub pool: Pool,
    /// Virtual time between assignments of direct connections.
    pub period_seconds: f64,
    /// Which of them a message may take.
    pub through: Through,
    /// How ties are broken.
    pub ties: Ties,
    /// What is sent.
    pub traffic: Traffic,
    /// Over what.
    pub network: Network,
    /// Messages that a queue holds: one queue a link and class. Memory of a node is at most this times
    /// links, classes and bytes of a message.
    pub queue_messages: usize,
    /// Own messages that a node has queued.
    pub window_messages: usize,
    /// Of destinations, ties, and places in the pool.
    pub seed: u64,
}

impl Simulation {
    /// Uniform traffic over a topology alone.
    pub fn new(shape: Shape, nodes: usize, seed: u64) -> Self {
        Self {
            nodes,
            shape,
            pool: Pool::new(0, None),
            period_seconds: 0.01,
            through: Through::Own,
            ties: Ties::Random,
            traffic: Traffic::default(),
            network: Network::default(),
            queue_messages: 4,
            window_messages: 32,
            seed,
        }
    }

    /// Runs it.
    ///
    /// `last` is what an earlier run sent ([`Report::demand`]): with it direct connections are there
    /// from the beginning.
    ///
    /// # Errors
    /// [`OverlayError`](crate::OverlayError) for parameters that make no sense.
    pub fn run(&self, last: Option<&Demand>) -> Result<Report> {
        self.run_watched(last, &mut |_| ControlFlow::Continue(()))
    }

    /// The same, telling `watch` now and then how many messages have arrived; it says whether to go on.
    ///
    /// # Errors
    /// As [`Simulation::run`], and [`OverlayError::Stopped`](crate::OverlayError::Stopped) when it said no.
    pub fn run_watched(&self, last: Option<&Demand>, watch: &mut Watch<'_>) -> Result<Report> {
        let routes = Routes::new(Topology::new(self.shape.clone(), self.nodes)?);
        self.check()?;
        run::run(self, &routes, Classes::for_shortest(routes.diameter(), self.through), last, watch)
    }

    #[cfg(test)]
    pub(crate) fn run_with(
        &self,
        routes: &Routes,
        classes: Classes,
        last: Option<&Demand>,
    ) -> Result<Report> {
        self.check()?;
        run::run(self, routes, classes, last, &mut |_| ControlFlow::Continue(()))
    }

    fn check(&self) -> Result<()> {
        self.pool.check()?;
        self.traffic.check(self.nodes)?;
        within("period in seconds", self.period_seconds, 1e-6, 1e6)?;
        count_within("messages of a queue", self.queue_messages, 1, 1 << 20)?;
        count_within("own messages of a node that are queued", self.window_messages, 1, 1 << 20)?;
        let Network { latency_seconds, message_seconds, connect_seconds, .. } = self.network;
        within("latency in seconds", latency_seconds, 0.0, 10.0)?;
        within("time of a message in seconds", message_seconds, 0.0, 1.0)?;
        within("time to connect in seconds", connect_seconds, 0.0, 100.0)?;
        within("bytes a second of a link", self.network.link_bytes_per_second, 1e4, 1e15)?;
        within("bytes a second of a node", self.network.node_bytes_per_second, 1e4, 1e15)
    }
}

/// What came of a simulation.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was simulated, its seed included.
    pub parameters: Simulation,
    /// Messages sent, all of which arrived.
    pub messages: u64,
    /// Times that a node passed one on.
    pub forwards: u64,
    /// `forwards / messages`.
    pub forwards_per_message: f64,
    /// Virtual time until the last one arrived.
    pub seconds: f64,
    /// Of the `nodes x (nodes - 1)` pairs, how many had a message. Where it is few, the run is a sample.
    pub pairs: usize,
    /// Direct connections opened after the start.
    pub reconnections: u64,
    /// Messages of the fullest queue, at any time.
    pub queued_most: usize,
    /// By node.
    pub per_node: Vec<NodeReport>,
    /// Direct connections at the end.
    pub direct: Vec<(u32, u32)>,
    /// What was sent, for the next run and for [`Reserve::split`](crate::Reserve::split).
    #[serde(skip)]
    pub demand: Demand,
}

/// What a node did.
#[derive(Debug, Clone, Serialize)]
pub struct NodeReport {
    /// Own messages.
    pub sent: u64,
    /// Messages for it.
    pub received: u64,
    /// Messages of others for others.
    pub forwarded: u64,
    /// Most sockets that it had at any time between two assignments, those others opened included.
    pub sockets_max: usize,
    /// Until it sent, received or forwarded its last message.
    pub seconds: f64,
    /// Of the messages it received, from when each was queued by its sender.
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
    fn what_is_sent_is_received_and_forwards_are_hops() -> Result<()> {
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

    /// Two nodes, one message each: out, over the link and in at the same time, and work at either end.
    #[test]
    fn a_message_takes_what_its_parts_take() -> Result<()> {
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
    fn what_makes_no_sense() {
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
