//! Requests between nodes, in the bytes of a [`Task`](lightship_wire::cluster::Task). They are Protocol
//! Buffers, so that a node can read enough of a request of another version to refuse it by name.

use arrow_array::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion_distributed::TaskKey;
use lightship_transport::net::blob;
use prost::{Message, Oneof};
use uuid::Uuid;

/// A request of a node to another.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(oneof = "RequestKind", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(crate) kind: Option<RequestKind>,
}

/// The kinds of request, each with the rows of its answer.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum RequestKind {
    /// [`Description`]s of the node: one at once, and one at each change until it leaves.
    #[prost(message, tag = "1")]
    Watch(Watch),
    /// Sends a part of a plan. The answer has [`super::metrics::TaskReport`]s once the query has ended.
    #[prost(message, tag = "2")]
    SetPlan(SetPlan),
    /// The query of a part has ended. No rows.
    #[prost(message, tag = "3")]
    Finish(Key),
    /// Rows of one partition of a part.
    #[prost(message, tag = "4")]
    Execute(Execute),
    /// Rows of a table's part that the node has.
    #[prost(message, tag = "5")]
    Scan(Scan),
    /// Removes a node from the cluster, or adds it again. No rows.
    #[prost(message, tag = "6")]
    Change(Change),
    /// Messages of random bytes, to measure the link.
    #[prost(message, tag = "7")]
    Probe(Probe),
}

/// The node that requests descriptions.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Watch {
    /// Its name, which is the address that others reach it at.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// A random number, drawn when its process started.
    #[prost(uint64, tag = "2")]
    pub(crate) instance: u64,
    /// Must be the same on all nodes: see [`super::VERSION`].
    #[prost(string, tag = "3")]
    pub(crate) version: String,
}

/// A node, as it describes itself.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Description {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint64, tag = "2")]
    pub(crate) instance: u64,
    #[prost(message, repeated, tag = "3")]
    pub(crate) tables: Vec<Table>,
    /// The nodes of the cluster as it knows them.
    #[prost(message, repeated, tag = "4")]
    pub(crate) members: Vec<MemberEntry>,
    /// Set if it can be part of overlays.
    #[prost(message, optional, tag = "5")]
    pub(crate) overlay: Option<OverlayPart>,
    /// What it has measured of the links to it.
    #[prost(message, repeated, tag = "6")]
    pub(crate) links: Vec<LinkEntry>,
    /// What it has measured of its processor.
    #[prost(message, optional, tag = "7")]
    pub(crate) processor: Option<ProcessorEntry>,
}

/// A link to the node that describes itself.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinkEntry {
    /// The node that sends, HOST:PORT.
    #[prost(string, tag = "1")]
    pub(crate) from: String,
    #[prost(uint64, tag = "2")]
    pub(crate) bytes_per_second: u64,
    /// From a request to its first message.
    #[prost(uint64, tag = "3")]
    pub(crate) first_message_ns: u64,
    /// Of each further small message.
    #[prost(uint64, tag = "4")]
    pub(crate) message_ns: u64,
}

/// Picoseconds of one thread of a node, as `cost::rates` measures them.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ProcessorEntry {
    #[prost(uint64, tag = "1")]
    pub(crate) build_row_ps: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) probe_row_ps: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) group_row_ps: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) route_row_ps: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) encode_byte_ps: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) decode_byte_ps: u64,
    #[prost(uint64, tag = "7")]
    pub(crate) scan_byte_ps: u64,
}

/// Messages to measure a link with.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Probe {
    #[prost(uint32, tag = "1")]
    pub(crate) messages: u32,
    /// Of each message.
    #[prost(uint32, tag = "2")]
    pub(crate) bytes: u32,
    /// A random number, the same in all probes of a measurement: a node takes part in one at a time.
    #[prost(uint64, tag = "3")]
    pub(crate) measurement: u64,
}

/// A node that belongs to the cluster, or was removed from it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberEntry {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// How often it was added.
    #[prost(uint64, tag = "2")]
    pub(crate) generation: u64,
    #[prost(bool, tag = "3")]
    pub(crate) removed: bool,
}

/// A change of the nodes that belong to the cluster.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Change {
    /// HOST:PORT.
    #[prost(string, tag = "1")]
    pub(crate) node: String,
    /// Whether it is removed; otherwise it is added again.
    #[prost(bool, tag = "2")]
    pub(crate) remove: bool,
}

/// How a node can be part of an overlay.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OverlayPart {
    /// HOST:PORT, as others reach it.
    #[prost(string, tag = "1")]
    pub(crate) address: String,
    /// The most connections for rows that it may have.
    #[prost(uint64, tag = "2")]
    pub(crate) connections_max: u64,
    /// The epoch of the overlay that it is part of, as long as streams may go over it.
    #[prost(fixed64, optional, tag = "3")]
    pub(crate) epoch: Option<u64>,
}

/// A table, or the part of it that a node has.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Table {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// As `lightship_wire::schema` encodes it.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) schema: Vec<u8>,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) rows: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub(crate) bytes: Option<u64>,
    /// Whether all nodes that have the table read the same files.
    #[prost(bool, tag = "5")]
    pub(crate) shared: bool,
    /// A hash of the names, sizes and times of its files, or of the database's table; 0 if neither is known.
    #[prost(uint64, tag = "6")]
    pub(crate) fingerprint: u64,
    /// Whether its rows are in a database; the fingerprint is then that of the database's table.
    #[prost(bool, tag = "7")]
    pub(crate) in_database: bool,
    /// What is known of its columns, as `cost::statistics` encodes it.
    #[prost(bytes = "vec", tag = "8")]
    pub(crate) statistics: Vec<u8>,
}

/// Identifies a part of a query.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Key {
    #[prost(bytes = "vec", tag = "1")]
    query: Vec<u8>,
    #[prost(uint64, tag = "2")]
    stage: u64,
    #[prost(uint64, tag = "3")]
    task: u64,
}

impl From<TaskKey> for Key {
    fn from(key: TaskKey) -> Self {
        Self {
            query: key.query_id.as_bytes().to_vec(),
            stage: key.stage_id as u64,
            task: key.task_number as u64,
        }
    }
}

impl Key {
    pub(crate) fn to_task(&self) -> Result<TaskKey> {
        let query_id = Uuid::from_slice(&self.query).map_err(|e| malformed(&e.to_string()))?;
        Ok(TaskKey { query_id, stage_id: self.stage as usize, task_number: self.task as usize })
    }
}

/// A part of a plan for a node.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetPlan {
    #[prost(message, required, tag = "1")]
    pub(crate) key: Key,
    #[prost(uint64, tag = "2")]
    pub(crate) tasks: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) plan: Vec<u8>,
    /// The node's address, as the coordinator knows it.
    #[prost(string, tag = "4")]
    pub(crate) url: String,
    #[prost(uint64, tag = "5")]
    pub(crate) query_start_ns: u64,
    /// Settings, by name.
    #[prost(message, repeated, tag = "6")]
    pub(crate) headers: Vec<Header>,
}

/// A setting of a query.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

/// A partition of a part that was set before.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Execute {
    #[prost(message, required, tag = "1")]
    pub(crate) key: Key,
    #[prost(uint64, tag = "2")]
    pub(crate) partition: u64,
    #[prost(oneof = "Head", tags = "3, 4")]
    pub(crate) head: Option<Head>,
}

/// How the rows of a part are distributed to its readers.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Head {
    /// Each reader gets all rows. The value is the number of partitions.
    #[prost(uint64, tag = "3")]
    Broadcast(u64),
    /// Rows are distributed to partitions by this partitioning.
    #[prost(bytes = "vec", tag = "4")]
    Repartition(Vec<u8>),
}

/// Rows of a table's part.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Scan {
    #[prost(string, tag = "1")]
    pub(crate) table: String,
    /// The columns to read and their types, as `lightship_wire::schema` encodes them.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) schema: Vec<u8>,
    /// Conditions that all must hold.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(crate) filters: Vec<Vec<u8>>,
    #[prost(uint64, optional, tag = "4")]
    pub(crate) fetch: Option<u64>,
    /// Which rows, and where they are.
    #[prost(message, optional, tag = "5")]
    pub(crate) shards: Option<Shards>,
    /// The number of partitions that they are distributed to.
    #[prost(uint64, tag = "6")]
    pub(crate) partitions: u64,
}

/// Which rows of a table a scan reads.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Shards {
    /// The nodes whose parts of the table are read; for a shared table, all nodes that can read its files.
    #[prost(string, repeated, tag = "1")]
    pub(crate) nodes: Vec<String>,
    /// For a shared table, the share of its files.
    #[prost(message, optional, tag = "2")]
    pub(crate) share: Option<Share>,
    /// Estimates for the planner.
    #[prost(uint64, optional, tag = "3")]
    pub(crate) rows: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub(crate) bytes: Option<u64>,
}

/// One of `of` parts of the files that all nodes can read.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Share {
    #[prost(uint64, tag = "1")]
    pub(crate) part: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) of: u64,
    /// As in [`Table`]: a node that sees different files refuses the scan.
    #[prost(uint64, tag = "3")]
    pub(crate) fingerprint: u64,
    /// Partitions of each part. Every node cuts the files into `of` times this many pieces.
    #[prost(uint64, tag = "4")]
    pub(crate) partitions: u64,
}

/// A leaf of a plan that is sent to another node.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Leaf {
    #[prost(oneof = "LeafKind", tags = "1, 2")]
    pub(crate) kind: Option<LeafKind>,
}

/// The kinds of leaf.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum LeafKind {
    /// Rows of a table that is in parts or shared.
    #[prost(message, tag = "1")]
    Scan(Scan),
    /// Rows of a range file.
    #[prost(message, tag = "2")]
    RangeScan(RangeScan),
}

/// Rows of a range file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeScan {
    #[prost(string, tag = "1")]
    pub(crate) file: String,
    /// The columns to read and their types, as `lightship_wire::schema` encodes them.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) schema: Vec<u8>,
    /// The columns that the rows of each partition are in the order of.
    #[prost(string, repeated, tag = "3")]
    pub(crate) key: Vec<String>,
    #[prost(uint64, tag = "4")]
    pub(crate) partitions: u64,
    /// In order.
    #[prost(message, repeated, tag = "5")]
    pub(crate) parts: Vec<RangeScanPart>,
    /// Most rows of each partition.
    #[prost(uint64, optional, tag = "6")]
    pub(crate) fetch: Option<u64>,
    /// Estimates for the planner.
    #[prost(uint64, tag = "7")]
    pub(crate) rows: u64,
    #[prost(uint64, tag = "8")]
    pub(crate) bytes: u64,
}

/// An interval of keys.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeScanPart {
    #[prost(uint64, tag = "1")]
    pub(crate) partition: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) low: Vec<u8>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) high: Option<Vec<u8>>,
    /// The node that had it when the scan was planned.
    #[prost(string, optional, tag = "4")]
    pub(crate) node: Option<String>,
}

/// The message in a row of another node's answer.
pub(crate) fn message_at<M: Message + Default>(rows: &RecordBatch, row: usize) -> Result<M> {
    let bytes = blob(rows, row).ok_or_else(|| malformed("an answer without a message"))?;
    M::decode(bytes).map_err(|e| malformed(&e.to_string()))
}

/// The error for a request that can't be decoded.
pub(crate) fn malformed(why: &str) -> DataFusionError {
    DataFusionError::Execution(format!("malformed request of another node: {why}"))
}
