//! The request for many buckets, and the messages of its answer. Lists instead of messages for each part: these would take
//! many times their bytes when they are decoded.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message;

use super::{FAN_OUT_MAX, GroupPart, HOPS_MAX, PARTS_MAX, ROWS_BYTES_MAX, WAIT_MAX, Wanted, WantedRows};
use crate::error::{RangeError, Result};
use crate::key::Interval;
use crate::request::{BucketEntry, Columns};

/// Parts of several nodes. The answer is [`Grouped`]s.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Group {
    /// The file.
    #[prost(string, tag = "1")]
    pub(crate) file: String,
    /// The names of the nodes.
    #[prost(string, repeated, tag = "2")]
    pub(crate) nodes: Vec<String>,
    /// Of each part, the position of its node in `nodes`.
    #[prost(uint32, repeated, tag = "3")]
    pub(crate) owners: Vec<u32>,
    /// Of each part, the number that the client has given it.
    #[prost(uint32, repeated, tag = "4")]
    pub(crate) numbers: Vec<u32>,
    /// Of each part, its bucket.
    #[prost(fixed64, repeated, tag = "5")]
    pub(crate) buckets: Vec<u64>,
    /// Of each part, the epoch of its bucket, as the client knows it.
    #[prost(uint64, repeated, tag = "6")]
    pub(crate) epochs: Vec<u64>,
    /// Of each part, the least bytes in it.
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub(crate) lows: Vec<Vec<u8>>,
    /// Of each part, the least bytes after it; no bytes if it has the last keys.
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub(crate) highs: Vec<Vec<u8>>,
    /// Which rows are asked for. Without it, their number is.
    #[prost(message, optional, tag = "9")]
    pub(crate) rows: Option<GroupRows>,
    /// The most nodes that a node asks.
    #[prost(uint32, tag = "10")]
    pub(crate) fan_out: u32,
    /// Levels of nodes that may be asked.
    #[prost(uint32, tag = "11")]
    pub(crate) hops: u32,
    /// How long the answer may take.
    #[prost(uint32, tag = "12")]
    pub(crate) wait_ms: u32,
}

/// Which rows are asked for.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct GroupRows {
    /// Most rows of each part.
    #[prost(uint64, optional, tag = "1")]
    pub(crate) limit: Option<u64>,
    /// Positions of the columns; all if it is missing.
    #[prost(message, optional, tag = "2")]
    pub(crate) columns: Option<Columns>,
    /// Most bytes of all, as Arrow data. Parts for which there is no room are not covered.
    #[prost(uint64, tag = "3")]
    pub(crate) bytes_max: u64,
}

/// What is known of some parts. An answer has several of these; a part is covered by one of them, or by none.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Grouped {
    /// The number of rows in all parts that it covers.
    #[prost(uint64, tag = "1")]
    pub(crate) count: u64,
    /// The numbers of these parts.
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) covered: Vec<u32>,
    /// If rows were asked for, how many there are of each of them, in the same order.
    #[prost(uint64, repeated, tag = "3")]
    pub(crate) counts: Vec<u64>,
    /// These rows, in the same order, as a message with the columns that were asked for.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) rows: Option<Vec<u8>>,
    /// Buckets that have changed since the epochs of the request.
    #[prost(message, repeated, tag = "5")]
    pub(crate) changed: Vec<BucketEntry>,
}

impl Group {
    /// The request for the parts of some nodes.
    pub(crate) fn new(nodes: Vec<(String, Vec<GroupPart>)>, wanted: &Wanted) -> Self {
        let rows = wanted.rows.clone();
        let mut group = Self {
            file: wanted.file.clone(),
            rows: rows.map(|WantedRows { limit, columns, bytes_max }| GroupRows {
                limit,
                columns,
                bytes_max,
            }),
            fan_out: wanted.fan_out,
            hops: wanted.hops,
            wait_ms: u32::try_from(wanted.wait.as_millis()).unwrap_or(u32::MAX),
            ..Self::default()
        };
        for ((node, parts), position) in nodes.into_iter().zip(0..) {
            group.nodes.push(node);
            for part in parts {
                group.owners.push(position);
                group.numbers.push(part.number);
                group.buckets.push(part.bucket);
                group.epochs.push(part.epoch);
                group.lows.push(part.interval.low);
                group.highs.push(part.interval.high.unwrap_or_default());
            }
        }
        group
    }

    /// The parts by their nodes, and what is asked of them, within this node's limits.
    ///
    /// # Errors
    /// If the lists don't fit together, or there are too many parts.
    pub(crate) fn decode_parts(self) -> Result<(BTreeMap<String, Vec<GroupPart>>, Wanted)> {
        let refuse = |why: &str| Err(RangeError::Definition(why.to_owned()));
        let parts = self.owners.len();
        if parts > PARTS_MAX || self.nodes.len() > parts {
            return refuse("a request for too many parts");
        }
        let lengths =
            [self.numbers.len(), self.buckets.len(), self.epochs.len(), self.lows.len(), self.highs.len()];
        if lengths.iter().any(|length| *length != parts) {
            return refuse("a request whose parts are incomplete");
        }
        let mut nodes: BTreeMap<String, Vec<GroupPart>> = BTreeMap::new();
        let keys = self.lows.into_iter().zip(self.highs);
        let lists = self.owners.iter().zip(self.numbers).zip(self.buckets).zip(self.epochs).zip(keys);
        for ((((&owner, number), bucket), epoch), (low, high)) in lists {
            let Some(node) = self.nodes.get(owner as usize) else {
                return refuse("a request for parts of no node");
            };
            let interval = Interval::new(low, (!high.is_empty()).then_some(high));
            let part = GroupPart { number, bucket, epoch, interval };
            match nodes.get_mut(node) {
                Some(parts) => parts.push(part),
                None => drop(nodes.insert(node.clone(), vec![part])),
            }
        }
        let rows = self.rows.map(|GroupRows { limit, columns, bytes_max }| WantedRows {
            limit,
            columns,
            bytes_max: bytes_max.min(ROWS_BYTES_MAX),
        });
        let wanted = Wanted {
            file: self.file,
            rows,
            fan_out: self.fan_out.clamp(1, FAN_OUT_MAX),
            hops: self.hops.min(HOPS_MAX),
            wait: Duration::from_millis(self.wait_ms.into()).min(WAIT_MAX),
        };
        Ok((nodes, wanted))
    }
}

impl Grouped {
    /// Whether its lists fit together, and it has rows if these were asked for.
    pub(super) fn is_well_formed(&self, has_rows: bool) -> bool {
        let sum = self.counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
        match &self.rows {
            Some(_) => has_rows && self.counts.len() == self.covered.len() && sum == Some(self.count),
            None => self.counts.is_empty() && (self.covered.is_empty() || !has_rows),
        }
    }

    /// Adds what is known of other parts. Only for numbers of rows.
    pub(crate) fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.covered.extend(other.covered);
        self.changed.extend(other.changed);
    }
}
