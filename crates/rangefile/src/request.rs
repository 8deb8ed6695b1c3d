//! Requests to a node about range files, and what a node stores besides rows. Both are Protocol Buffers.

use prost::{Message, Oneof};

use crate::group::Group;
use crate::key::Interval;

/// A request of a client or of another node.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    /// Which one.
    #[prost(oneof = "RequestKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18")]
    pub(crate) kind: Option<RequestKind>,
}

/// The kinds of request. Of clients: 1 to 7, and 14 to 17. Only other nodes of the cluster may send the others.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum RequestKind {
    /// Creates a file with one bucket. The answer is its [`Directory`].
    #[prost(message, tag = "1")]
    Create(FileRecord),
    /// Asks what the node knows about a file. The answer is a [`Directory`].
    #[prost(message, tag = "2")]
    Locate(Locate),
    /// Changes rows of a bucket. The answer is [`Written`], once the rows are on disk.
    #[prost(message, tag = "3")]
    Write(Write),
    /// Rows of a bucket, in the order of their keys. The answer is these rows.
    #[prost(message, tag = "4")]
    Scan(Scan),
    /// The number of rows of a bucket. The answer is [`Counted`].
    #[prost(message, tag = "5")]
    Count(Scan),
    /// The files of the node. The answer is a [`FileRecord`] for each.
    #[prost(message, tag = "6")]
    List(List),
    /// Removes a file with all its rows from this node. No rows.
    #[prost(message, tag = "7")]
    Drop(FileName),
    /// Tells of a file, and of where its buckets are. No rows.
    #[prost(message, tag = "8")]
    Announce(Directory),
    /// Prepares a bucket that is going to receive the upper part of another one. No rows.
    #[prost(message, tag = "9")]
    Prepare(Prepare),
    /// Adds a run of rows to a bucket that was prepared. No rows.
    #[prost(message, tag = "10")]
    Receive(Receive),
    /// The other bucket has given up these keys: this one now has them. No rows.
    #[prost(message, tag = "11")]
    Activate(BucketName),
    /// Asks what became of a split. The answer is a [`SplitOutcome`].
    #[prost(message, tag = "12")]
    Outcome(BucketName),
    /// The bucket before this one has shrunk, and both may fit into one: this one should move to it. No rows.
    #[prost(message, tag = "13")]
    Approach(BucketName),
    /// Asks the node to connect to the client for each of some parts. No rows; the answer ends when the client has
    /// accepted the last one, or the node has given up.
    #[prost(message, tag = "14")]
    Deliver(Deliver),
    /// Asks the node to announce its buckets that meet an interval in a [`Notice`] each, until the client drops the
    /// answer. No rows.
    #[prost(message, tag = "15")]
    Advertise(Advertise),
    /// Asks for parts of several nodes, which the node collects. The answer is [`Grouped`](crate::group::Grouped)s.
    #[prost(message, tag = "16")]
    Group(Group),
    /// The row of a bucket with the greatest key in an interval. The answer is this row, if there is one.
    #[prost(message, tag = "17")]
    Last(Scan),
    /// Asks which of some files the node has dropped. The answer is these, as [`FileNumbers`].
    #[prost(message, tag = "18")]
    Dropped(FileNumbers),
}

impl RequestKind {
    /// Whether clients read or write rows with it.
    pub(crate) fn uses_rows(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Scan(_) | Self::Last(_) | Self::Count(_) | Self::Group(_))
    }
}

/// A file's definition.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct FileRecord {
    /// Its name.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// Its columns, as `lightship_wire::schema` encodes them.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) schema: Vec<u8>,
    /// Names of the key's columns.
    #[prost(string, repeated, tag = "3")]
    pub(crate) key: Vec<String>,
    /// Capacity of a bucket in records.
    #[prost(uint64, optional, tag = "4")]
    pub(crate) capacity_records: Option<u64>,
    /// Capacity of a bucket in bytes.
    #[prost(uint64, optional, tag = "5")]
    pub(crate) capacity_bytes: Option<u64>,
    /// Given when it is created: another file of the same name has another one.
    #[prost(fixed64, tag = "6")]
    pub(crate) id: u64,
}

/// The name of a file.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct FileName {
    /// The name.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// Of a node: only the file with this [`FileRecord::id`], which is also remembered as dropped if it is not there;
    /// 0: any file of the name. Of a client, it does not count.
    #[prost(fixed64, tag = "2")]
    pub(crate) number: u64,
}

/// Files, by [`FileRecord::id`].
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct FileNumbers {
    /// Their numbers.
    #[prost(fixed64, repeated, tag = "1")]
    pub(crate) numbers: Vec<u64>,
}

/// All files.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct List {}

/// What is asked about a file.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Locate {
    /// The file.
    #[prost(string, tag = "1")]
    pub(crate) file: String,
    /// Only the node's own buckets, of which it is certain; otherwise also what it knows of others.
    #[prost(bool, tag = "2")]
    pub(crate) own: bool,
    /// Only buckets whose keys begin here, or later.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) from: Vec<u8>,
    /// Of the node's own buckets, only those with keys in this interval. Nodes may ignore it.
    #[prost(message, optional, tag = "4")]
    pub(crate) within: Option<RangeRecord>,
}

/// A bucket, as a node knows it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BucketEntry {
    /// Identifies the bucket in its file.
    #[prost(fixed64, tag = "1")]
    pub bucket: u64,
    /// The node that has it, HOST:PORT.
    #[prost(string, tag = "2")]
    pub node: String,
    /// Its keys.
    #[prost(message, required, tag = "3")]
    pub range: RangeRecord,
    /// Grows with each change of the owner of any of its keys.
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
    /// About the number of its records. Only of the node's own buckets.
    #[prost(uint64, optional, tag = "5")]
    pub records: Option<u64>,
    /// About its bytes of Arrow data. Only of the node's own buckets.
    #[prost(uint64, optional, tag = "6")]
    pub bytes: Option<u64>,
    /// The low end of its keys as text; empty for the first bucket.
    #[prost(string, tag = "7")]
    pub low_text: String,
    /// What it was asked for. Only of the node's own buckets.
    #[prost(message, optional, tag = "8")]
    pub load: Option<BucketLoad>,
}

/// Requests that a bucket has answered since its node was started or the bucket was made, and their rows. A bucket that
/// joins the one before it adds its own to that one's.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct BucketLoad {
    /// Scans, counts and reads of single rows. Of a request for many buckets, each part is one.
    #[prost(uint64, tag = "1")]
    pub reads: u64,
    /// Rows that were read for them. Counts have none.
    #[prost(uint64, tag = "2")]
    pub read_rows: u64,
    /// Writes.
    #[prost(uint64, tag = "3")]
    pub writes: u64,
    /// Rows that they wrote or removed.
    #[prost(uint64, tag = "4")]
    pub written_rows: u64,
}

/// A file, and where its buckets are.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Directory {
    /// The file.
    #[prost(message, required, tag = "1")]
    pub(crate) file: FileRecord,
    /// Buckets.
    #[prost(message, repeated, tag = "2")]
    pub(crate) buckets: Vec<BucketEntry>,
    /// Nodes that may have other buckets of it.
    #[prost(string, repeated, tag = "3")]
    pub(crate) nodes: Vec<String>,
    /// Set if there are other buckets, for which there was no room: [`Locate::from`] of the next request.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) next: Option<Vec<u8>>,
    /// The free bytes of the node's disk, if they are known; 0 after its storage has failed. Only of the first answer to a
    /// question.
    #[prost(uint64, optional, tag = "5")]
    pub(crate) free_bytes: Option<u64>,
}

/// An interval of keys.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeRecord {
    /// The least bytes in it.
    #[prost(bytes = "vec", tag = "1")]
    pub low: Vec<u8>,
    /// The least bytes after it.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub high: Option<Vec<u8>>,
}

impl From<&Interval> for RangeRecord {
    fn from(interval: &Interval) -> Self {
        Self { low: interval.low.clone(), high: interval.high.clone() }
    }
}

impl From<RangeRecord> for Interval {
    fn from(record: RangeRecord) -> Self {
        Self { low: record.low, high: record.high }
    }
}

/// A bucket of a file, as the sender knows it.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct BucketName {
    /// The file.
    #[prost(string, tag = "1")]
    pub(crate) file: String,
    /// The bucket.
    #[prost(fixed64, tag = "2")]
    pub(crate) bucket: u64,
}

/// What a write does to rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum WriteMode {
    /// Adds rows; fails if a key exists.
    Insert = 0,
    /// Adds rows, in place of rows with the same keys.
    Upsert = 1,
    /// Removes the rows with these keys. Other columns are ignored.
    Delete = 2,
    /// As insert, after an insert with an unknown outcome: a row that exists exactly as it is, is accepted.
    InsertAgain = 3,
}

/// Rows for a bucket.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Write {
    /// The file.
    #[prost(string, tag = "1")]
    pub(crate) file: String,
    /// The bucket.
    #[prost(fixed64, tag = "2")]
    pub(crate) bucket: u64,
    /// What to do.
    #[prost(enumeration = "WriteMode", tag = "3")]
    pub(crate) mode: i32,
    /// A message with rows of the file's columns, in the order of their keys, without a key twice.
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) rows: Vec<u8>,
    /// The keys of the rows. If it is there, a refusal has an [`Adjustment`] for them.
    #[prost(message, optional, tag = "5")]
    pub(crate) adjust: Option<RangeRecord>,
}

/// What a node that refuses keys knows of where they are. It is in the details of the failure.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Adjustment {
    /// Buckets, as many as there is room for.
    #[prost(message, repeated, tag = "1")]
    pub(crate) buckets: Vec<BucketEntry>,
}

/// Rows are on disk.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Written {
    /// Their number.
    #[prost(uint64, tag = "1")]
    pub(crate) rows: u64,
}

/// Which rows of a bucket are read.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Scan {
    /// The file.
    #[prost(string, tag = "1")]
    pub(crate) file: String,
    /// The bucket.
    #[prost(fixed64, tag = "2")]
    pub(crate) bucket: u64,
    /// The keys. If the bucket does not have all of them, the request fails.
    #[prost(message, required, tag = "3")]
    pub(crate) range: RangeRecord,
    /// Most rows.
    #[prost(uint64, optional, tag = "4")]
    pub(crate) limit: Option<u64>,
    /// Positions of the columns; all if it is missing.
    #[prost(message, optional, tag = "5")]
    pub(crate) columns: Option<Columns>,
    /// Whether a refusal has an [`Adjustment`].
    #[prost(bool, tag = "6")]
    pub(crate) adjust: bool,
}

/// Parts that a client waits for. It requests their rows on the connections.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Deliver {
    /// The file.
    #[prost(string, tag = "1")]
    pub(crate) file: String,
    /// The client's numbers of the parts, one connection for each.
    #[prost(uint64, repeated, tag = "2")]
    pub(crate) parts: Vec<u64>,
    /// The port on which the client listens, at the address that the request comes from.
    #[prost(uint32, tag = "3")]
    pub(crate) port: u32,
    /// What the node has to show, 16 bytes.
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) token: Vec<u8>,
    /// Whether a refused connection is tried again after a pause.
    #[prost(bool, tag = "5")]
    pub(crate) backs_off: bool,
}

/// The longest [`Notice`] in bytes, so that it fits a packet of any network.
pub(crate) const NOTICE_BYTES_MAX: usize = 1200;

/// Buckets that a client looks for.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Advertise {
    /// The file.
    #[prost(string, tag = "1")]
    pub(crate) file: String,
    /// The keys. Buckets that have some of them are announced.
    #[prost(message, required, tag = "2")]
    pub(crate) range: RangeRecord,
    /// The client's UDP port, at the address that the request comes from.
    #[prost(uint32, tag = "3")]
    pub(crate) port: u32,
    /// What each announcement has to show, 16 bytes.
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) token: Vec<u8>,
}

/// The announcement of a bucket: a UDP message.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Notice {
    /// As in the [`Advertise`] that it answers.
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) token: Vec<u8>,
    /// The bucket. Its text is left out if the message would be too long.
    #[prost(message, required, tag = "2")]
    pub(crate) bucket: BucketEntry,
}

/// Positions of columns.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Columns {
    /// From 0.
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) positions: Vec<u32>,
}

/// A number of rows.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Counted {
    /// The number.
    #[prost(uint64, tag = "1")]
    pub(crate) rows: u64,
}

/// A bucket that is going to receive the upper part of another one.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Prepare {
    /// The file.
    #[prost(message, required, tag = "1")]
    pub(crate) file: FileRecord,
    /// The new bucket.
    #[prost(fixed64, tag = "2")]
    pub(crate) bucket: u64,
    /// Its keys.
    #[prost(message, required, tag = "3")]
    pub(crate) range: RangeRecord,
    /// Its epoch.
    #[prost(uint64, tag = "4")]
    pub(crate) epoch: u64,
    /// The node of the bucket that splits.
    #[prost(string, tag = "5")]
    pub(crate) from_node: String,
    /// The bucket that splits.
    #[prost(fixed64, tag = "6")]
    pub(crate) from_bucket: u64,
    /// About the bytes of the rows that will come.
    #[prost(uint64, tag = "7")]
    pub(crate) bytes: u64,
}

/// A run of rows for a bucket that was prepared.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Receive {
    /// The file.
    #[prost(string, tag = "1")]
    pub(crate) file: String,
    /// The bucket.
    #[prost(fixed64, tag = "2")]
    pub(crate) bucket: u64,
    /// Counts the runs, from 1. A run that was received already is ignored.
    #[prost(uint64, tag = "3")]
    pub(crate) number: u64,
    /// Blocks of stored rows.
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub(crate) blocks: Vec<Vec<u8>>,
}

/// What became of a split.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct SplitOutcome {
    /// Whether the new bucket has its keys; `None` while this is not decided.
    #[prost(bool, optional, tag = "1")]
    pub(crate) committed: Option<bool>,
}

/// What a node stores about a bucket.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct BucketRecord {
    /// Its file.
    #[prost(string, tag = "1")]
    pub(crate) file: String,
    /// Its keys.
    #[prost(message, required, tag = "2")]
    pub(crate) range: RangeRecord,
    /// As in [`BucketEntry`].
    #[prost(uint64, tag = "3")]
    pub(crate) epoch: u64,
    /// Set until the keys are its own: where they come from.
    #[prost(message, optional, tag = "4")]
    pub(crate) incoming: Option<Origin>,
    /// A split that has begun and is not decided.
    #[prost(message, optional, tag = "5")]
    pub(crate) splitting: Option<Child>,
    /// A split that is decided, until the new bucket has confirmed it.
    #[prost(message, optional, tag = "6")]
    pub(crate) given: Option<Child>,
    // Tag 7 is reserved.
}

/// The bucket that a new one comes from.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Origin {
    /// Its node.
    #[prost(string, tag = "1")]
    pub(crate) node: String,
    /// The bucket.
    #[prost(fixed64, tag = "2")]
    pub(crate) bucket: u64,
    /// Runs that were received.
    #[prost(uint64, tag = "3")]
    pub(crate) runs: u64,
}

/// The new bucket of a split.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Child {
    /// The bucket.
    #[prost(fixed64, tag = "1")]
    pub(crate) bucket: u64,
    /// Its node.
    #[prost(string, tag = "2")]
    pub(crate) node: String,
    /// Its keys.
    #[prost(message, required, tag = "3")]
    pub(crate) range: RangeRecord,
    /// Its epoch.
    #[prost(uint64, tag = "4")]
    pub(crate) epoch: u64,
    /// The low end of its keys as text.
    #[prost(string, tag = "5")]
    pub(crate) low_text: String,
}

/// What a node stores about a run of rows.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RunRecord {
    /// How often its rows were merged; runs of equal levels are merged.
    #[prost(uint32, tag = "1")]
    pub(crate) level: u32,
    /// Its blocks.
    #[prost(message, repeated, tag = "2")]
    pub(crate) blocks: Vec<BlockRecord>,
    /// The greatest key.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) last: Vec<u8>,
    /// The number of its rows that are deletions.
    #[prost(uint64, tag = "4")]
    pub(crate) deletions: u64,
    /// A Bloom filter of its keys: bits in groups of 64.
    #[prost(fixed64, repeated, tag = "5")]
    pub(crate) filter: Vec<u64>,
    /// The number of its hashes.
    #[prost(uint32, tag = "6")]
    pub(crate) filter_hashes: u32,
    /// Runs with a greater age are newer: of rows with equal keys, theirs count.
    #[prost(uint64, tag = "7")]
    pub(crate) age: u64,
}

/// What a node stores about a block of rows.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct BlockRecord {
    /// The least key.
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) first: Vec<u8>,
    /// Its rows.
    #[prost(uint32, tag = "2")]
    pub(crate) rows: u32,
    /// Bytes of its rows as Arrow data.
    #[prost(uint64, tag = "3")]
    pub(crate) bytes: u64,
}
