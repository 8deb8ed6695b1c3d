//! The result of a shuffle over an overlay: text, JSON, CSV, and a plot.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use lightship_overlay::simulate::{Network, NodeReport, Ties};
use lightship_overlay::{DirectPolicy, DirectUse, Split, Traffic};
use lightship_plot::{Axis, Bars, BarsPanel};
use serde::Serialize;

use super::load::{Policy, ShuffleInput};
use super::show::TopologyReport;
use crate::columns::columns;
use crate::commands::manual::print;
use crate::error::CliError;
use crate::size::{Seconds, Size, grouped};

/// Number of nodes in the text; files have all nodes.
const SHOWN_NODES: usize = 12;

/// Files for the result, besides stdout.
#[derive(Debug, Clone, Args)]
pub(super) struct FilesArgs {
    /// Write the figures of every node to this file, as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Plot the figures of every node to this file, as SVG.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print no progress bar.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// Whether the figures come from a simulation or from sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FigureOrigin {
    Simulated,
    Measured,
}

/// Figures that only a run over sockets has.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measured {
    /// Direct connections that were refused.
    pub(super) refused: u64,
    /// Most bytes of messages that all nodes together can hold.
    pub(super) memory_bytes_max: u64,
    /// Peak memory of the process, if the system reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peak_memory_bytes: Option<u64>,
}

/// The parameters that determine the figures.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Parameters {
    pub(super) policy: Policy,
    /// Whether there were direct connections at the start.
    pub(super) warm: bool,
    pub(super) pool: DirectPolicy,
    pub(super) period_seconds: f64,
    pub(super) through: DirectUse,
    pub(super) ties: Ties,
    pub(super) traffic: Traffic,
    /// Messages per queue. Each link has one queue for each class.
    pub(super) queue_messages: usize,
    /// Messages of its own that a node may have queued.
    pub(super) window_messages: usize,
    /// Speed of links and nodes, in a simulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<Network>,
}

/// The object of `--json`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ShuffleResult {
    pub(super) kind: FigureOrigin,
    pub(super) seed: u64,
    pub(super) topology: TopologyReport,
    pub(super) parameters: Parameters,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) split: Option<Split>,
    /// Messages sent, all of which arrived.
    pub(super) messages: u64,
    /// How often nodes forwarded a message.
    pub(super) forwards: u64,
    pub(super) forwards_per_message: f64,
    /// Time until the last message arrived; virtual time in a simulation.
    pub(super) seconds: f64,
    /// Pairs of nodes with a message from one to the other, of nodes x (nodes - 1).
    pub(super) pairs: usize,
    /// Direct connections opened after the start.
    pub(super) reconnections: u64,
    /// Most sockets that a node had at any time.
    pub(super) sockets_max: usize,
    #[serde(flatten)]
    pub(super) measured: Option<Measured>,
    pub(super) per_node: Vec<NodeReport>,
    /// Direct connections at the end: the node that opened each, and its peer.
    pub(super) direct: Vec<(u32, u32)>,
}

impl ShuffleResult {
    /// Prints the answer, and writes the requested files.
    pub(super) fn give(&self, files: &FilesArgs, json: bool) -> Result<(), CliError> {
        if let Some(path) = &files.csv {
            self.write_csv(path)?;
        }
        if let Some(path) = &files.plot {
            super::write(path, &self.picture()?)?;
        }
        let text = if json {
            serde_json::to_string(self).map_err(|e| CliError::internal(e.to_string()))? + "\n"
        } else {
            self.text()
        };
        print(text.as_bytes())
    }

    fn title(&self) -> String {
        let of = &self.topology.figures;
        let direct = match self.parameters.pool.opened_max {
            0 => String::new(),
            direct => format!(" + {direct} direct"),
        };
        let name = self.topology.shape.name();
        format!(
            "{name} of {} nodes, {} sockets{direct}: {:.2} forwards per message",
            of.nodes, of.sockets_max, self.forwards_per_message
        )
    }

    /// Plots the messages that every node sent, received and forwarded, and the latencies of those
    /// received: median and 99th percentile.
    fn picture(&self) -> Result<String, CliError> {
        let of = |value: fn(&NodeReport) -> f64| self.per_node.iter().map(value).collect::<Vec<_>>();
        let part = |name: &str, values| (name.to_owned(), values);
        let messages = vec![
            part("sent", of(|node| node.sent as f64)),
            part("received", of(|node| node.received as f64)),
            part("forwarded", of(|node| node.forwarded as f64)),
        ];
        let beyond = |node: &NodeReport| node.latency.p99_seconds - node.latency.p50_seconds;
        let latencies = vec![
            part("median", of(|node| node.latency.p50_seconds)),
            part("up to the 99th percentile", of(beyond)),
        ];
        let bars = Bars {
            title: self.title(),
            x: "node".to_owned(),
            panels: vec![
                BarsPanel { y: Axis::linear("messages").thousands(), parts: messages },
                BarsPanel { y: Axis::linear("latency").seconds(), parts: latencies },
            ],
        };
        bars.svg().map_err(|e| CliError::internal(e.to_string()))
    }

    fn text(&self) -> String {
        let Parameters { pool, policy, traffic, period_seconds, .. } = &self.parameters;
        let figures = &self.topology.figures;
        let mut text = format!(
            "{}: {:.3} hops on average, {} at most, {} sockets per node\n",
            self.topology.title(),
            figures.mean_hops,
            figures.diameter,
            figures.sockets_max
        );
        if pool.opened_max > 0 {
            let accepted = pool.accepted_max.map(|accepted| format!(", accepts {accepted}"));
            let how = match policy {
                Policy::Thesis => "each node's own traffic, as in the thesis",
                Policy::Local => "each node's own traffic",
                Policy::Global => "the traffic of all nodes",
                Policy::Predicted => "the traffic of all nodes",
            };
            let warm = if self.parameters.warm { " and of an earlier run" } else { "" };
            let _ = writeln!(
                text,
                "Direct: a node opens {}{}; chosen by {how}{warm}, every {}",
                pool.opened_max,
                accepted.unwrap_or_default(),
                Seconds(*period_seconds)
            );
        } else if self.split.is_some() {
            text.push_str("Direct: none, because none would save time with this traffic\n");
        }
        let skew = if traffic.weights_percent.is_empty() { "uniform" } else { "skewed" };
        let _ = writeln!(
            text,
            "Sent: {} messages of {}, {skew}, seed {}; each arrived exactly once",
            grouped(self.messages),
            Size(traffic.message_bytes),
            self.seed
        );
        let _ = writeln!(
            text,
            "Forwarded: {}, {:.3} per message",
            grouped(self.forwards),
            self.forwards_per_message
        );
        let rate = self.messages as f64 * traffic.message_bytes as f64 / self.seconds.max(f64::MIN_POSITIVE);
        let time = match self.kind {
            FigureOrigin::Simulated => " of virtual time",
            FigureOrigin::Measured => "",
        };
        let refused = self.measured.as_ref().map(|measured| measured.refused).filter(|refused| *refused > 0);
        let refused = refused.map(|refused| format!(", {} refused", grouped(refused))).unwrap_or_default();
        let _ = writeln!(
            text,
            "Time: {}{time} ({}/s of messages), {} reconnections{refused}, at most {} sockets on a node",
            Seconds(self.seconds),
            Size(rate as u64),
            grouped(self.reconnections),
            self.sockets_max
        );
        text.push('\n');
        self.nodes(&mut text);
        text
    }

    /// The nodes, or the busiest ones.
    fn nodes(&self, text: &mut String) {
        let work = |node: &NodeReport| node.sent + node.received + 2 * node.forwarded;
        let mut numbers: Vec<_> = (0..self.per_node.len()).collect();
        numbers.sort_by_key(|number| std::cmp::Reverse(work(&self.per_node[*number])));
        numbers.truncate(SHOWN_NODES);
        numbers.sort_unstable();
        let heads =
            ["node", "sent", "received", "forwarded", "sockets", "latency 50%", "99%", "longest", "time"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        for number in numbers {
            let node = &self.per_node[number];
            let seconds = |seconds| Seconds(seconds).to_string();
            rows.push(vec![
                number.to_string(),
                grouped(node.sent),
                grouped(node.received),
                grouped(node.forwarded),
                node.sockets_max.to_string(),
                seconds(node.latency.p50_seconds),
                seconds(node.latency.p99_seconds),
                seconds(node.latency.max_seconds),
                seconds(node.seconds),
            ]);
        }
        columns(text, &rows);
        if let Some(more) = self.per_node.len().checked_sub(SHOWN_NODES).filter(|more| *more > 0) {
            let _ =
                writeln!(text, "  and {} less busy nodes; --json and --csv have all", grouped(more as u64));
        }
    }

    fn write_csv(&self, path: &Path) -> Result<(), CliError> {
        let mut text = String::from(
            "node,sent,received,forwarded,sockets_max,p1_seconds,p25_seconds,p50_seconds,p75_seconds,\
             p99_seconds,p999_seconds,max_seconds,seconds\n",
        );
        for (number, node) in self.per_node.iter().enumerate() {
            let latency = &node.latency;
            let _ = writeln!(
                text,
                "{number},{},{},{},{},{},{},{},{},{},{},{},{}",
                node.sent,
                node.received,
                node.forwarded,
                node.sockets_max,
                latency.p1_seconds,
                latency.p25_seconds,
                latency.p50_seconds,
                latency.p75_seconds,
                latency.p99_seconds,
                latency.p999_seconds,
                latency.max_seconds,
                node.seconds,
            );
        }
        super::write(path, &text)
    }
}

/// The parameters that a simulation and a run have in common.
pub(super) fn parameters(
    load: &ShuffleInput,
    period_seconds: f64,
    queue: usize,
    window: usize,
) -> Parameters {
    Parameters {
        policy: load.policy,
        warm: load.last.is_some(),
        pool: load.pool.clone(),
        period_seconds,
        through: DirectUse::Own,
        ties: Ties::ShortestQueue,
        traffic: load.traffic.clone(),
        queue_messages: queue,
        window_messages: window,
        network: None,
    }
}
