//! `lightship overlay run`: a shuffle over real sockets.

use std::time::Duration;

use clap::Args;
use lightship::{ErrorKind, peak_memory_bytes};
use lightship_overlay::simulate::Network;
use lightship_overlay::{DirectUse, Routes, Topology};
use lightship_relay::shuffle::{HEADER_BYTES, Load, Shuffle, ShuffleError, Shuffled, Site};

use super::answer::{FigureOrigin, FilesArgs, Measured, ShuffleResult, parameters};
use super::load::LoadArgs;
use super::shape::ShapeArgs;
use super::show::TopologyReport;
use crate::error::CliError;
use crate::progress::Count;
use crate::size::{Seconds, Size, grouped};

/// A run of more nodes on one machine would not be meaningful.
const NODES_MAX: usize = 256;
/// Descriptors that the process has open besides its sockets.
const DESCRIPTORS_SPARE: usize = 64;

/// Run a shuffle over an overlay, with real sockets on this machine
///
/// Like `simulate`, but with messages that are really sent. Every node runs in this process, listens
/// on the loopback interface, and opens only the connections of the topology and its direct
/// connections. Messages are forwarded hop by hop with bounded queues. At the end it checks that every
/// message arrived at its destination exactly once.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship overlay run --topology circulant --nodes 12 --degree 4
  lightship overlay run --topology original --nodes 60 --degree 10 \\
      --direct 2 --skew 2,7,10,4,11,6,15 --messages-per-node 500
  lightship overlay run --topology circulant --nodes 60 --degree 12 \\
      --direct auto --policy predicted --skew 2,7,10,4,11,6,15 --json

All nodes share the processors of this machine, so compare times only with each
other; forwards and connections are the same on any machines. Latency counts
from when a message is offered, so it includes the wait for room in its sender's
window.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Time between two assignments of direct connections.
    #[arg(long, value_name = "TIME", default_value = "100ms", help_heading = "Direct connections")]
    period: Seconds,
    /// Fail if the run takes longer.
    #[arg(long, value_name = "TIME", default_value = "10min")]
    timeout: Seconds,
    /// Memory for the messages of all nodes. A run that may need more is refused.
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    memory: Size,
    #[command(flatten)]
    files: FilesArgs,
}

pub(super) async fn cmd_run(args: &RunArgs, json: bool) -> Result<(), CliError> {
    let nodes = args.shape.nodes;
    if nodes > NODES_MAX {
        return Err(CliError::usage(format!(
            "--nodes {nodes}: at most {NODES_MAX} nodes can run in one process"
        ))
        .hint("lightship overlay simulate takes up to 4096"));
    }
    let load = args.load.load(&args.shape, DirectUse::Own, &Network::default())?;
    load.traffic.check(nodes)?;
    load.pool.check()?;
    if load.traffic.message_bytes < HEADER_BYTES as u64 {
        return Err(CliError::usage(format!(
            "--message-bytes {}: must be at least {HEADER_BYTES}, the size of a message's header",
            load.traffic.message_bytes
        )));
    }
    if args.load.queue == 0 || args.load.window == 0 {
        return Err(CliError::usage("--queue and --window must be at least 1"));
    }
    let (period, limit) = (duration("--period", args.period)?, duration("--timeout", args.timeout)?);
    let routes = Routes::new(Topology::new(load.shape.clone(), nodes)?);
    let topology = TopologyReport::of(&routes);
    let shuffle = Shuffle::new(
        routes,
        Load {
            traffic: load.traffic.clone(),
            pool: load.pool.clone(),
            last: load.last.clone(),
            queue_messages: args.load.queue,
            window_messages: args.load.window,
            period,
            seed: args.shape.seed,
        },
    );
    let memory_bytes_max = shuffle.memory_bytes_max();
    if memory_bytes_max > args.memory.0 {
        return Err(CliError::new(
            ErrorKind::Limits,
            format!(
                "messages of all nodes may take {}, but --memory allows {}",
                Size(memory_bytes_max),
                args.memory
            ),
        )
        .hint("use smaller messages, --queue 1, a smaller --window, or more --memory"));
    }
    descriptors(&topology, load.pool.opened_max)?;
    let quiet = args.files.quiet || json;
    let sites = vec![Site::loopback(); nodes];
    let progress = Count::new(shuffle.messages(), "messages", quiet);
    let done = tokio::time::timeout(limit, shuffle.run(&sites, |arrived| progress.set(arrived))).await;
    drop(progress);
    let done = done.map_err(|_| unfinished(&shuffle, args.timeout))?.map_err(failed)?;
    let Shuffled { per_node, direct, seconds, pairs, reconnections, refused } = done;
    let forwards: u64 = per_node.iter().map(|node| node.forwarded).sum();
    let messages = shuffle.messages();
    let answer = ShuffleResult {
        kind: FigureOrigin::Measured,
        seed: args.shape.seed,
        topology,
        parameters: parameters(&load, args.period.0, args.load.queue, args.load.window),
        split: load.split,
        messages,
        forwards,
        forwards_per_message: forwards as f64 / messages as f64,
        seconds,
        pairs,
        reconnections,
        sockets_max: per_node.iter().map(|node| node.sockets_max).max().unwrap_or(0),
        measured: Some(Measured { refused, memory_bytes_max, peak_memory_bytes: peak_memory_bytes() }),
        per_node,
        direct,
    };
    answer.give(&args.files, json)
}

/// The error for a run that took too long.
fn unfinished(shuffle: &Shuffle, limit: Seconds) -> CliError {
    let (arrived, messages) = (grouped(shuffle.arrived()), grouped(shuffle.messages()));
    CliError::new(ErrorKind::Limits, format!("after {limit}, {arrived} of {messages} messages had arrived"))
        .hint("allow more time with --timeout")
}

fn failed(error: ShuffleError) -> CliError {
    let kind = match &error {
        ShuffleError::Node { .. } | ShuffleError::Socket { .. } => ErrorKind::Network,
        ShuffleError::Messages(_) => ErrorKind::Data,
        ShuffleError::Invalid(_) => ErrorKind::Usage,
        _ => return CliError::internal(error.to_string()),
    };
    CliError::new(kind, error.to_string())
}

fn duration(name: &str, seconds: Seconds) -> Result<Duration, CliError> {
    Duration::try_from_secs_f64(seconds.0)
        .ok()
        .filter(|duration| *duration >= Duration::from_millis(1))
        .ok_or_else(|| CliError::usage(format!("{name} must be at least a millisecond")))
}

/// Checks before the run that the process may open enough sockets.
fn descriptors(topology: &TopologyReport, direct: usize) -> Result<(), CliError> {
    let nodes = topology.figures.nodes;
    let sockets = (topology.figures.sockets_mean * nodes as f64) as usize;
    // This process has both ends of each direct connection, and a listener for each node.
    let needed = sockets + nodes * (2 * direct + 1) + DESCRIPTORS_SPARE;
    let allowed = std::fs::read_to_string("/proc/self/limits").ok().and_then(|limits| {
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.to_owned();
        line.split_whitespace().next()?.parse::<usize>().ok()
    });
    match allowed {
        Some(allowed) if allowed < needed => Err(CliError::new(
            ErrorKind::Limits,
            format!(
                "the run needs {} open files and sockets, but this process may have {}",
                grouped(needed as u64),
                grouped(allowed as u64)
            ),
        )
        .hint(format!("raise the limit with `ulimit -n {needed}`, or use fewer nodes"))),
        _ => Ok(()),
    }
}
