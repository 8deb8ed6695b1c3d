//! What a distributed query did, as one object: what `EXPLAIN` sends, and what its clients read.

use serde::{Deserialize, Serialize};

/// A distributed query, explained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// From the first request to the last row, where it was run.
    pub seconds: Option<f64>,
    /// Rows of the result, where it was run.
    pub rows: Option<u64>,
    /// From those that scan tables to that of the coordinator, which is the last.
    pub stages: Vec<StageExplained>,
    /// What went between tasks, where it was run.
    pub edges: Vec<Edge>,
    /// The plan as DataFusion prints it.
    pub plan: String,
}

/// A part of the plan that runs on several nodes at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageExplained {
    /// Its number; 0 is that of the coordinator, the node that was asked.
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
    /// Rows that it produced, where it was run.
    pub rows: Option<u64>,
    /// Processor time of its operators, of all threads together.
    pub cpu_seconds: Option<f64>,
}

/// What went from one node's task to another's.
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
    /// As encoded, with headers; unknown where not all was read, as below a LIMIT.
    pub bytes_wire: Option<u64>,
    /// Streams that went over the overlay; the others went directly.
    pub overlay_streams: u64,
    /// The time that the receiver waited for these rows, of all its partitions together.
    pub wait_seconds: f64,
}
