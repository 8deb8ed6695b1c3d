//! `lightship overlay simulate`: a shuffle in virtual time.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use lightship_overlay::simulate::{Network, Ties};
use lightship_overlay::{DirectUse, Routes, Shape, Simulation, Topology};

use super::answer::{FigureOrigin, FilesArgs, Parameters, ShuffleResult, parameters};
use super::load::{LoadArgs, Policy};
use super::shape::{Family, ShapeArgs};
use super::show::TopologyReport;
use crate::error::CliError;
use crate::progress::Count;
use crate::size::{Rate, Seconds};

/// Simulate a shuffle over an overlay: forwards, time, latency
///
/// Every node sends messages to others. Messages between nodes without a connection are forwarded, with
/// bounded queues that can't deadlock. Every period, direct connections are assigned where they save
/// most forwards. The same seed gives the same result. docs/overlay.md describes the model.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship overlay simulate --topology original --nodes 60 --degree 10 \\
      --direct 2 --skew 2,7,10,4,11,6,15 --messages-per-node 5000
  lightship overlay simulate --topology circulant --nodes 60 --degree 12 \\
      --direct auto --policy predicted --skew 2,7,10,4,11,6,15 --json
  lightship overlay simulate --topology mesh --nodes 60 \\
      --link-rate 500Mbit/s --plot mesh.svg

With --direct auto, a direct connection counts at the node that opens it;
--accept limits those that others open to a node.")]
pub(super) struct SimulateArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Virtual time between two assignments of direct connections. [default: 100ms with --policy thesis,
    /// else 10ms]
    #[arg(long, value_name = "TIME", help_heading = "Direct connections")]
    period: Option<Seconds>,
    /// Direct connections that a message may take: own, those that lead straight to its destination, or
    /// all on a shortest path, for which every node must know every direct connection.
    #[arg(long, value_name = "own|all", default_value = "own", help_heading = "Direct connections")]
    through: ThroughArg,
    /// How to choose between several shortest paths: at random, or by the shortest queue. [default:
    /// random with --topology original, else shortest-queue]
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    ties: Option<TiesArg>,
    /// Rate of a node over all its connections, in each direction.
    #[arg(long, value_name = "RATE", default_value = "10Gbit/s", help_heading = "Network")]
    node_rate: Rate,
    /// Rate of a connection, in each direction.
    #[arg(long, value_name = "RATE", default_value = "2.5Gbit/s", help_heading = "Network")]
    link_rate: Rate,
    /// Time from one end of a connection to the other.
    #[arg(long, value_name = "TIME", default_value = "50us", help_heading = "Network")]
    latency: Seconds,
    /// Processor time of a node to send or receive a message.
    #[arg(long, value_name = "TIME", default_value = "20us", help_heading = "Network")]
    message_time: Seconds,
    /// Time until a new direct connection carries messages.
    #[arg(long, value_name = "TIME", default_value = "1ms", help_heading = "Network")]
    connect_time: Seconds,
    #[command(flatten)]
    files: FilesArgs,
}

/// With more nodes, even the preparation of a simulation takes seconds.
const SLOW_NODES: usize = 1000;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ThroughArg {
    Own,
    All,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TiesArg {
    Random,
    ShortestQueue,
}

impl SimulateArgs {
    fn network(&self) -> Network {
        Network {
            latency_seconds: self.latency.0,
            link_bytes_per_second: self.link_rate.0,
            node_bytes_per_second: self.node_rate.0,
            message_seconds: self.message_time.0,
            connect_seconds: self.connect_time.0,
        }
    }

    fn ties(&self) -> Ties {
        match self.ties {
            Some(TiesArg::Random) => Ties::Random,
            Some(TiesArg::ShortestQueue) => Ties::ShortestQueue,
            None if self.shape.topology == Family::Original => Ties::Random,
            None => Ties::ShortestQueue,
        }
    }
}

/// Stops a simulation on another thread when it is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) async fn cmd_simulate(args: &SimulateArgs, json: bool) -> Result<(), CliError> {
    let (network, ties) = (args.network(), args.ties());
    let through = match args.through {
        ThroughArg::Own => DirectUse::Own,
        ThroughArg::All => DirectUse::All,
    };
    let quiet = args.files.quiet || json;
    let planning = (args.shape.nodes > SLOW_NODES).then(|| Count::spinner("choosing connections", quiet));
    let load = args.load.load(&args.shape, through, &network)?;
    drop(planning);
    // The thesis' policy has no margin: with a short period, chance decides.
    let period_default = if load.policy == Policy::Thesis { 0.1 } else { 0.01 };
    let period_seconds = args.period.map_or(period_default, |period| period.0);
    let simulation = Simulation {
        pool: load.pool.clone(),
        period_seconds,
        through,
        ties,
        traffic: load.traffic.clone(),
        network: network.clone(),
        queue_messages: args.load.queue,
        window_messages: args.load.window,
        ..Simulation::new(load.shape.clone(), args.shape.nodes, args.shape.seed)
    };
    let stop = StopOnDrop(Arc::default());
    let stopped = stop.0.clone();
    let total = load.traffic.messages_per_node.saturating_mul(args.shape.nodes as u64);
    let last = load.last.clone();
    // On a separate thread, so that an interrupt is handled meanwhile.
    let run = tokio::task::spawn_blocking(move || {
        let progress = Count::new(total, "messages", quiet);
        simulation.run_watched(last.as_ref(), &mut |delivered| {
            progress.set(delivered);
            if stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    let report = run.await.map_err(|e| CliError::internal(e.to_string()))??;
    let shown = shown(load.shape.clone(), args.shape.nodes)?;
    let parameters = Parameters {
        through,
        ties,
        network: Some(network),
        ..parameters(&load, period_seconds, args.load.queue, args.load.window)
    };
    let answer = ShuffleResult {
        kind: FigureOrigin::Simulated,
        seed: args.shape.seed,
        topology: shown,
        parameters,
        split: load.split,
        messages: report.messages,
        forwards: report.forwards,
        forwards_per_message: report.forwards_per_message,
        seconds: report.seconds,
        pairs: report.pairs,
        reconnections: report.reconnections,
        sockets_max: report.per_node.iter().map(|node| node.sockets_max).max().unwrap_or(0),
        measured: None,
        per_node: report.per_node,
        direct: report.direct,
    };
    answer.give(&args.files, json)
}

/// The topology's figures.
fn shown(shape: Shape, nodes: usize) -> Result<TopologyReport, CliError> {
    Ok(TopologyReport::of(&Routes::new(Topology::new(shape, nodes)?)))
}
