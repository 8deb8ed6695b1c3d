//! What nodes ask each other for, as bytes of a [`Task`](lightship_wire::cluster::Task): Protocol Buffers,
//! so that a node of another version is understood far enough to be told so.

use datafusion::error::{DataFusionError, Result};
use datafusion_distributed::TaskKey;
use prost::{Message, Oneof};
use uuid::Uuid;

/// What a node asks another one for.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(oneof = "Ask", tags = "1, 2, 3, 4, 5, 6")]
    pub(crate) ask: Option<Ask>,
}

/// The things that can be asked for. What the rows of the answer are is said of each.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Ask {
    /// [`Description`]s of the node, one now and one at each change, until it leaves.
    #[prost(message, tag = "1")]
    Watch(Watch),
    /// Takes a part of a plan; [`super::metrics::TaskReport`]s once the query has ended.
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
    /// Removes a node from the cluster, or takes it in again. No rows.
    #[prost(message, tag = "6")]
    Change(Change),
}

/// Who asks for descriptions.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Watch {
    /// The asking node's name, by which it can be reached.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// Drawn when its process began.
    #[prost(uint64, tag = "2")]
    pub(crate) instance: u64,
    /// What it must have in common with others: see [`super::VERSION`].
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
    /// Its part in overlays, where it has one.
    #[prost(message, optional, tag = "5")]
    pub(crate) overlay: Option<OverlayPart>,
}

/// A node that belongs to the cluster, or was removed from it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberEntry {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// Counts how often it was taken in.
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
    /// It is removed; otherwise taken in again.
    #[prost(bool, tag = "2")]
    pub(crate) remove: bool,
}

/// How a node can be part of an overlay.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OverlayPart {
    /// HOST:PORT, as others reach it.
    #[prost(string, tag = "1")]
    pub(crate) address: String,
    /// Connections with rows that it may have.
    #[prost(uint64, tag = "2")]
    pub(crate) connections_max: u64,
    /// The overlay that it is part of, as long as streams may go over that.
    #[prost(fixed64, optional, tag = "3")]
    pub(crate) epoch: Option<u64>,
}

/// A table, or the part of it that a node has.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Table {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// As `lightship_wire::schema` writes it.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) schema: Vec<u8>,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) rows: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub(crate) bytes: Option<u64>,
    /// All nodes that have the table read the same files.
    #[prost(bool, tag = "5")]
    pub(crate) shared: bool,
    /// Of the names, sizes and times of its files, or of the database's table; 0 where neither is known.
    #[prost(uint64, tag = "6")]
    pub(crate) fingerprint: u64,
    /// Its rows are in a database, and the fingerprint is of its table there.
    #[prost(bool, tag = "7")]
    pub(crate) in_database: bool,
}

/// Which part of which query.
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
    /// The node's address, as the asking node knows it.
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

/// What stands between a part and those who read it.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Head {
    /// Each reader gets all rows; so many partitions.
    #[prost(uint64, tag = "3")]
    Broadcast(u64),
    /// Rows are dealt to partitions so.
    #[prost(bytes = "vec", tag = "4")]
    Repartition(Vec<u8>),
}

/// Rows of a table's part.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Scan {
    #[prost(string, tag = "1")]
    pub(crate) table: String,
    /// Columns that are read, with types, as `lightship_wire::schema` writes them.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) schema: Vec<u8>,
    /// Conditions that all hold.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(crate) filters: Vec<Vec<u8>>,
    #[prost(uint64, optional, tag = "4")]
    pub(crate) fetch: Option<u64>,
    /// Where the rows are.
    #[prost(message, optional, tag = "5")]
    pub(crate) shards: Option<Shards>,
    /// Into how many partitions they are dealt.
    #[prost(uint64, tag = "6")]
    pub(crate) partitions: u64,
}

/// Which rows of a table a scan is of.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Shards {
    /// Those that these nodes have as their own; of a shared table, all.
    #[prost(string, repeated, tag = "1")]
    pub(crate) nodes: Vec<String>,
    /// Of a shared table, one of so many parts of its files.
    #[prost(message, optional, tag = "2")]
    pub(crate) share: Option<Share>,
    /// What the planner may expect.
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
    /// As in [`Table`]: who finds other files must not take part.
    #[prost(uint64, tag = "3")]
    pub(crate) fingerprint: u64,
    /// Partitions of each part: all cut the files into `of` x so many pieces, whoever reads them.
    #[prost(uint64, tag = "4")]
    pub(crate) partitions: u64,
}

/// Bytes that are not what they should be.
pub(crate) fn malformed(why: &str) -> DataFusionError {
    DataFusionError::Execution(format!("what another node asks for can't be read: {why}"))
}
