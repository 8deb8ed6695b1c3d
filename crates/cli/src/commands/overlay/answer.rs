//! What a shuffle over an overlay came to, for people, scripts, tables and the eye.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use lightship_overlay::simulate::{Network, NodeReport, Ties};
use lightship_overlay::{Pool, Split, Through, Traffic};
use lightship_plot::{Axis, Bars, BarsPanel};
use serde::Serialize;

use super::load::{Load, Policy};
use super::show::Shown;
use crate::columns::columns;
use crate::commands::manual::print;
use crate::error::CliError;
use crate::size::{Seconds, Size, grouped};

/// Nodes that are shown to people; files have all of them.
const SHOWN_NODES: usize = 12;

/// Where the answer goes, besides stdout.
#[derive(Debug, Clone, Args)]
pub(super) struct FilesArgs {
    /// What every node did, as a table.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// The same as a picture (SVG).
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// No progress bar.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// Whether its figures come from a model or from sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Simulated,
    Measured,
}

/// What only sockets say.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measured {
    /// Direct connections that a node asked for and was refused.
    pub(super) refused: u64,
    /// Bytes of messages that all nodes together could hold.
    pub(super) memory_bytes_max: u64,
    /// Most that the process held, where the system says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peak_memory_bytes: Option<u64>,
}

/// All that the figures depend on.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Parameters {
    pub(super) policy: Policy,
    /// Whether there were direct connections from the beginning.
    pub(super) warm: bool,
    pub(super) pool: Pool,
    pub(super) period_seconds: f64,
    pub(super) through: Through,
    pub(super) ties: Ties,
    pub(super) traffic: Traffic,
    /// Messages of a queue, one a link and class.
    pub(super) queue_messages: usize,
    /// Own messages that a node has queued.
    pub(super) window_messages: usize,
    /// What links and nodes can do, where that is only assumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<Network>,
}

/// The object of `--json`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Answer {
    pub(super) kind: Kind,
    pub(super) seed: u64,
    pub(super) topology: Shown,
    pub(super) parameters: Parameters,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) split: Option<Split>,
    /// Messages sent, all of which arrived.
    pub(super) messages: u64,
    /// Times that a node passed one on.
    pub(super) forwards: u64,
    pub(super) forwards_per_message: f64,
    /// Until the last one arrived; virtual where it is simulated.
    pub(super) seconds: f64,
    /// Pairs of nodes that had a message, of nodes x (nodes - 1).
    pub(super) pairs: usize,
    /// Direct connections opened after the start.
    pub(super) reconnections: u64,
    /// Sockets of the node that ever had most.
    pub(super) sockets_max: usize,
    #[serde(flatten)]
    pub(super) measured: Option<Measured>,
    pub(super) per_node: Vec<NodeReport>,
    /// Direct connections at the end: who opened it, and to whom.
    pub(super) direct: Vec<(u32, u32)>,
}

impl Answer {
    /// Prints it, and writes the files that were asked for.
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
            "{name} of {} nodes, {} sockets{direct}: {:.2} forwards a message",
            of.nodes, of.sockets_max, self.forwards_per_message
        )
    }

    /// Messages that every node sent, received and forwarded, and the latencies of what it received, from half to
    /// 99% of them.
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
            part("half of the messages", of(|node| node.latency.p50_seconds)),
            part("up to 99%", of(beyond)),
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
            "{}: {:.3} hops on the mean, {} at most, {} sockets a node\n",
            self.topology.title(),
            figures.mean_hops,
            figures.diameter,
            figures.sockets_max
        );
        if pool.opened_max > 0 {
            let accepted = pool.accepted_max.map(|accepted| format!(", accepts {accepted}"));
            let how = match policy {
                Policy::Thesis => "each by its own traffic, as in the thesis",
                Policy::Local => "each by its own traffic",
                Policy::Global => "all traffic known",
                Policy::Predicted => "all traffic known",
            };
            let warm = if self.parameters.warm { ", and that of a run before" } else { "" };
            let _ = writeln!(
                text,
                "Direct: a node opens {}{}; {how}{warm}, every {}",
                pool.opened_max,
                accepted.unwrap_or_default(),
                Seconds(*period_seconds)
            );
        } else if self.split.is_some() {
            text.push_str("Direct: none, as none would pay under this traffic\n");
        }
        let skew = if traffic.weights_percent.is_empty() { "to all alike" } else { "skewed" };
        let _ = writeln!(
            text,
            "Sent: {} messages of {}, {skew}, seed {}; all arrived, once each",
            grouped(self.messages),
            Size(traffic.message_bytes),
            self.seed
        );
        let _ = writeln!(
            text,
            "Forwarded: {}, {:.3} a message",
            grouped(self.forwards),
            self.forwards_per_message
        );
        let rate = self.messages as f64 * traffic.message_bytes as f64 / self.seconds.max(f64::MIN_POSITIVE);
        let time = match self.kind {
            Kind::Simulated => " of virtual time",
            Kind::Measured => "",
        };
        let refused = self.measured.as_ref().map(|measured| measured.refused).filter(|refused| *refused > 0);
        let refused = refused.map(|refused| format!(", {} refused", grouped(refused))).unwrap_or_default();
        let _ = writeln!(
            text,
            "Time: {}{time} ({}/s of messages), {} reconnections{refused}, {} sockets of a node at most",
            Seconds(self.seconds),
            Size(rate as u64),
            grouped(self.reconnections),
            self.sockets_max
        );
        text.push('\n');
        self.nodes(&mut text);
        text
    }

    /// The nodes, or those of them that had most to do.
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
            let _ = writeln!(
                text,
                "  and {} nodes with less to do; --json and --csv have all",
                grouped(more as u64)
            );
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
pub(super) fn parameters(load: &Load, period_seconds: f64, queue: usize, window: usize) -> Parameters {
    Parameters {
        policy: load.policy,
        warm: load.last.is_some(),
        pool: load.pool.clone(),
        period_seconds,
        through: Through::Own,
        ties: Ties::ShortestQueue,
        traffic: load.traffic.clone(),
        queue_messages: queue,
        window_messages: window,
        network: None,
    }
}
