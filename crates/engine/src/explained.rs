//! The explanation of a distributed query, which `EXPLAIN` sends and clients read as JSON.

use serde::{Deserialize, Serialize};

/// A distributed query, explained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Time from the first request to the last row, if the query was run.
    pub seconds: Option<f64>,
    /// Rows of the result, if the query was run.
    pub rows: Option<u64>,
    /// From the stages that scan tables to the coordinator's stage, which is the last.
    pub stages: Vec<StageExplained>,
    /// What tasks sent each other, if the query was run.
    pub edges: Vec<Edge>,
    /// The plan as DataFusion prints it.
    pub plan: String,
}

/// A part of the plan that runs on several nodes at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageExplained {
    /// Its number; 0 is the coordinator's stage.
    pub stage: usize,
    /// Stages whose rows it reads.
    pub reads: Vec<usize>,
    /// One for each node that runs it.
    pub tasks: Vec<TaskExplained>,
    /// Its operators, from the root, one a line.
    pub operators: Vec<String>,
}

/// A stage on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskExplained {
    /// The node, HOST:PORT.
    pub node: String,
    /// Rows that it produced, if the query was run.
    pub rows: Option<u64>,
    /// Processor time of its operators, summed over all threads.
    pub cpu_seconds: Option<f64>,
}

/// What one node's task sent to another's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    /// The stage that sent.
    pub from_stage: usize,
    /// The stage that received.
    pub to_stage: usize,
    /// The node that sent, HOST:PORT.
    pub from_node: String,
    /// The node that received, HOST:PORT.
    pub to_node: String,
    /// Rows.
    pub rows: u64,
    /// Bytes as encoded, with headers; `None` if not everything was read, as below a LIMIT.
    pub bytes_wire: Option<u64>,
    /// Streams sent over the overlay; the others were sent directly.
    pub overlay_streams: u64,
    /// Time that the receiver waited for these rows, summed over its partitions.
    pub wait_seconds: f64,
}
