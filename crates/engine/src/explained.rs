//! The explanation of a distributed query, which `EXPLAIN` sends and clients read as JSON.

use serde::{Deserialize, Serialize};

/// A distributed query, explained.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Time from the first request to the last row, if the query was run.
    pub seconds: Option<f64>,
    /// Rows of the result, if the query was run.
    pub rows: Option<u64>,
    /// From the stages that scan tables to the coordinator's stage, which is the last.
    pub stages: Vec<StageExplained>,
    /// What tasks sent each other, if the query was run.
    pub edges: Vec<Edge>,
    /// What tasks are expected to send each other.
    #[serde(default)]
    pub expected_edges: Vec<ExpectedEdge>,
    /// How its joins and aggregations run, in their order.
    #[serde(default)]
    pub choices: Vec<Choice>,
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
    /// Nodes that could run it too, and do not.
    #[serde(default)]
    pub left_out: Option<LeftOut>,
}

/// Nodes that receive no rows which any node can receive, because they receive slowly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// HOST:PORT.
    pub nodes: Vec<String>,
    /// The time to receive the rows if all nodes received their share, as a multiple of that of the others alone.
    pub time_with_all: f64,
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
    /// The codec of most of these rows, which their sender chooses while they are sent; `None` if nothing was sent.
    #[serde(default)]
    pub codec: Option<String>,
    /// Streams sent over the overlay; the others were sent directly.
    pub overlay_streams: u64,
    /// Time that the receiver waited for these rows, summed over its partitions.
    pub wait_seconds: f64,
    /// Time from the request of these rows to the end of the last partition; `None` if not everything was read.
    #[serde(default)]
    pub seconds: Option<f64>,
}

/// What one node's task is expected to send to another's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpectedEdge {
    /// The stage that sends.
    pub from_stage: usize,
    /// The stage that receives.
    pub to_stage: usize,
    /// The node that sends, HOST:PORT.
    pub from_node: String,
    /// The node that receives, HOST:PORT.
    pub to_node: String,
    /// Rows.
    pub rows: f64,
    /// Bytes as encoded.
    pub bytes_wire: f64,
    /// The codec of most of these rows when they were last sent.
    #[serde(default)]
    pub codec: Option<String>,
    /// Time that the link needs for them, beside the other edges of both nodes.
    pub link_seconds: f64,
    /// Time of a node's processor for its part in the stages that give these rows, for coding them, and for the operators
    /// that get them first.
    #[serde(default)]
    pub processor_seconds: f64,
    /// The longest of: the time of the link without the first message, that of the processor, and the work of each edge below.
    #[serde(default)]
    pub work_seconds: f64,
    /// Time from the request of these rows to their end, at least that of the link. It is the usual one of the last runs in
    /// which these rows were sent to the same place of a plan; otherwise the work and the time to start the stages, and no
    /// less than that of each edge below.
    pub seconds: f64,
    /// The same of the slowest edge between these two stages.
    #[serde(default)]
    pub slowest_seconds: f64,
    /// Whether a query before has sent these rows, to whatever place of its plan, so that their bytes are known.
    pub is_known: bool,
    /// Bytes of a message of one of its streams, as rows in memory; smaller if there is not enough memory.
    #[serde(default)]
    pub message_bytes: u64,
    /// Batches of one of its streams that may be in flight.
    #[serde(default)]
    pub window_batches: u32,
}

/// How a join or an aggregation runs on several nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// All nodes get all rows of a join's first input.
    BroadcastLeft,
    /// All nodes get all rows of a join's second input.
    BroadcastRight,
    /// Each node gets the rows of both inputs of a join whose keys have its hashes.
    Repartition,
    /// Each node aggregates its rows before they are sent, and the groups that it gets.
    AggregateTwice,
    /// Each node aggregates the rows that it gets.
    AggregateOnce,
}

/// How an operator is run, and what the other ways would have cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The condition of the join, or what the aggregation groups by.
    pub on: String,
    /// Rows expected of each input.
    pub rows: Vec<f64>,
    /// Each way that is possible, the chosen one first.
    pub ways: Vec<Cost>,
}

/// The predicted cost of a way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The way.
    pub strategy: Strategy,
    /// Seconds of the processors of a node.
    pub processor_seconds: f64,
    /// Seconds of a node's link.
    pub link_seconds: f64,
    /// Bytes that all nodes send together, before encoding.
    pub bytes: f64,
}

impl Cost {
    /// Processor and link together.
    pub fn seconds(&self) -> f64 {
        self.processor_seconds + self.link_seconds
    }
}
