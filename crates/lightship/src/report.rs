//! The report of a query or copy.

use lightship_session::{CodecReport, PlanReport, Report as Transferred, Retune, Stages};
use serde::Serialize;

/// What was planned and what happened. The serialised form is the object of `--stats` and `--json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Rows that arrived.
    pub rows: u64,
    /// Bytes of the rows as Arrow buffers.
    pub bytes_arrow: u64,
    /// Bytes on the wire from nodes; `None` if no source is a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_wire: Option<u64>,
    /// Bytes that the destination wrote.
    pub bytes_written: u64,
    /// Time from the query to the last row; of a copy, to the end of the destination's work.
    pub seconds: f64,
    /// `rows` divided by `seconds`.
    pub rows_per_second: f64,
    /// The plan of the transfer from a single node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanReport>,
    /// The carrier of the rows from nodes, if it was the same for all: `tcp`, `unix` or `shared memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    /// Messages from nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<u64>,
    /// Messages from nodes over additional connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_joined: Option<u64>,
    /// Time spent in each stage, summed over all nodes.
    pub stages: Stages,
    /// Messages and bytes for each codec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub codecs: Vec<CodecReport>,
    /// Changes of the plan during the transfer from a single node.
    pub retunes: Vec<Retune>,
    /// The sources, in the order given.
    pub sources: Vec<SourceReport>,
    /// What the user should know of a copy, such as what of a replaced table was not kept.
    pub notices: Vec<String>,
    /// Peak resident memory of this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
}

/// What one source delivered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceReport {
    /// The source, without password or token.
    pub uri: String,
    /// Rows that arrived from it.
    pub rows: u64,
    /// Bytes of the rows as Arrow buffers, before they were cast to the common columns.
    pub bytes_arrow: u64,
    /// Bytes on the wire from a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_wire: Option<u64>,
    /// Time from the query to its last row.
    pub seconds: f64,
    /// The carrier of the rows from a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    /// The plan for this node, if there are several sources. For a single source it is in [`Report::plan`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanReport>,
    /// Changes of that plan during the transfer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retunes: Vec<Retune>,
}

/// Running totals for one source.
#[derive(Debug, Clone)]
pub(crate) struct SourceTotals {
    /// Position among the sources given, from 0.
    pub(crate) number: usize,
    /// The source, without password or token.
    pub(crate) uri: String,
    pub(crate) rows: u64,
    /// Bytes of the rows as Arrow buffers, before they were cast to the common columns.
    pub(crate) bytes_arrow: u64,
    /// Time from the query to the last row.
    pub(crate) seconds: f64,
    /// The report of a node's transfer, once it has ended.
    pub(crate) node: Option<Transferred>,
}

impl Report {
    /// A report on `places` sources. `deliveries` holds those that have finished, in the order given.
    pub(crate) fn new(
        deliveries: &[SourceTotals],
        places: usize,
        seconds: f64,
        receive: f64,
        bytes_written: u64,
    ) -> Self {
        let nodes = || deliveries.iter().filter_map(|delivery| delivery.node.as_ref());
        let sum = |of: fn(&Transferred) -> u64| nodes().map(of).reduce(|all, one| all + one);
        let rows = deliveries.iter().map(|delivery| delivery.rows).sum();
        let carrier = nodes().next().map(|node| node.carrier);
        // Several nodes have several plans; no single one describes the whole transfer.
        let only = if places == 1 { nodes().next() } else { None };
        Self {
            rows,
            bytes_arrow: deliveries.iter().map(|delivery| delivery.bytes_arrow).sum(),
            bytes_wire: sum(|node| node.bytes_wire),
            bytes_written,
            seconds,
            rows_per_second: rows as f64 / seconds.max(f64::EPSILON),
            plan: only.map(|node| node.plan),
            carrier: carrier
                .filter(|carrier| nodes().all(|node| node.carrier == *carrier))
                .map(|carrier| carrier.to_string()),
            messages: sum(|node| node.messages),
            messages_joined: sum(|node| node.messages_joined),
            stages: Stages {
                node: nodes().filter_map(|node| node.stages.node).reduce(|all, one| all + one),
                receive,
                consume: (seconds - receive).max(0.0),
            },
            codecs: sum_by_codec(nodes().flat_map(|node| &node.codecs)),
            retunes: only.map(|node| node.retunes.clone()).unwrap_or_default(),
            sources: deliveries.iter().map(|delivery| SourceReport::new(delivery, only.is_none())).collect(),
            notices: Vec::new(),
            peak_memory_bytes: peak_memory_bytes(),
        }
    }
}

impl SourceReport {
    /// `planned`: include the plan, because the [`Report`] as a whole has none.
    fn new(delivery: &SourceTotals, planned: bool) -> Self {
        let node = delivery.node.as_ref();
        let of_plan = node.filter(|_| planned);
        Self {
            uri: delivery.uri.clone(),
            rows: delivery.rows,
            bytes_arrow: delivery.bytes_arrow,
            bytes_wire: node.map(|node| node.bytes_wire),
            seconds: delivery.seconds,
            carrier: node.map(|node| node.carrier.to_string()),
            plan: of_plan.map(|node| node.plan),
            retunes: of_plan.map(|node| node.retunes.clone()).unwrap_or_default(),
        }
    }
}

fn sum_by_codec<'a>(reports: impl Iterator<Item = &'a CodecReport>) -> Vec<CodecReport> {
    let mut all: Vec<CodecReport> = Vec::new();
    for one in reports {
        match all.iter_mut().find(|known| known.codec == one.codec) {
            Some(known) => {
                known.messages += one.messages;
                known.bytes_body += one.bytes_body;
                known.bytes_wire += one.bytes_wire;
            }
            None => all.push(*one),
        }
    }
    all
}

/// Peak resident memory of this process in bytes; `None` if the system does not report it.
pub fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
