//! Requests about many buckets at once, which a tree of nodes answers.
//!
//! The sender hands disjoint parts of what it asks for to a few nodes. Each answers for its own buckets and hands on the
//! rest in the same way. An answer says which parts it covers; what no answer covers, because a node is down or slow, or
//! a bucket has split, is left to the client, which asks the buckets themselves. So nothing is counted twice or left out,
//! whatever becomes of the requests.
//!
//! M. Tsangou, S. Ndiaye, M. Seck and W. Litwin, "Range Queries to Scalable Distributed Data Structure RP*" (2003), name
//! answers that a hierarchy of servers groups as further work.

mod message;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt, TryStreamExt, stream};
use lightship_transport::net::blob;
use prost::Message;

#[cfg(any(test, fuzzing))]
pub(crate) use self::message::GroupRows;
pub(crate) use self::message::{Group, Grouped};
use crate::error::Result;
use crate::key::Interval;
use crate::network::{Network, body, unexpected};
use crate::request::{Columns, RequestKind};

/// The most parts of a request.
pub(crate) const PARTS_MAX: usize = 8192;
/// The most nodes that a node, or a client, hands parts to.
pub(crate) const FAN_OUT_MAX: u32 = 16;
/// The most levels of nodes below the one that gets a request: more nodes than there are parts.
pub(crate) const HOPS_MAX: u32 = 4;
/// The longest time that a node may take for an answer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(10);
/// The most bytes of rows of an answer, as Arrow data.
pub(crate) const ROWS_BYTES_MAX: u64 = 4 << 20;
/// The part of the time of a request that a node gives to those that it asks: there must be time for their answers.
const WAIT_SHARE: [u32; 2] = [3, 4];
/// Bytes of an answer besides its rows: for each part, and for all.
const OVERHEAD_BYTES: [u64; 2] = [128, 128 << 10];

/// A part of a request: keys that a bucket should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupPart {
    /// The client's number.
    pub(crate) number: u32,
    pub(crate) bucket: u64,
    /// As the client knows it.
    pub(crate) epoch: u64,
    pub(crate) interval: Interval,
}

/// What is asked of all parts.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) file: String,
    /// Without it, the number of rows.
    pub(crate) rows: Option<WantedRows>,
    /// The most nodes that each node asks.
    pub(crate) fan_out: u32,
    /// Levels of nodes that may be asked: 0 if none may be.
    pub(crate) hops: u32,
    /// How long it may take.
    pub(crate) wait: Duration,
}

/// Which rows are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedRows {
    /// Most rows of each part.
    pub(crate) limit: Option<u64>,
    pub(crate) columns: Option<Columns>,
    /// Most bytes of all, as Arrow data.
    pub(crate) bytes_max: u64,
}

/// Parts by their nodes. The first node of it is asked, for all.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Subtree(Vec<(String, Vec<GroupPart>)>);

impl Subtree {
    /// Divides parts among at most `fan_out` subtrees, with as many nodes each.
    pub(crate) fn divide(nodes: BTreeMap<String, Vec<GroupPart>>, fan_out: u32) -> Vec<Self> {
        let fan_out = fan_out.clamp(1, FAN_OUT_MAX) as usize;
        let (count, mut nodes) = (nodes.len(), nodes.into_iter());
        let subtrees = (0..fan_out.min(count)).map(|index| {
            let size = (count - index).div_ceil(fan_out);
            Self(nodes.by_ref().take(size).collect())
        });
        subtrees.collect()
    }

    #[cfg(test)]
    pub(crate) fn into_nodes(self) -> Vec<(String, Vec<GroupPart>)> {
        self.0
    }

    fn parts(&self) -> impl Iterator<Item = &GroupPart> {
        self.0.iter().flat_map(|(_, parts)| parts)
    }
}

/// Asks for the parts of some nodes, at most `fan_out` of them. Returns what they answer, as it comes, until all of them have ended or failed, or the
/// time is over. Each part is covered at most once.
pub(crate) fn ask_nodes(
    network: &Arc<dyn Network>,
    nodes: BTreeMap<String, Vec<GroupPart>>,
    fan_out: u32,
    wanted: &Wanted,
) -> BoxStream<'static, Grouped> {
    let all: usize = nodes.values().map(Vec::len).sum();
    let Some(hops) = wanted.hops.checked_sub(1) else { return stream::empty().boxed() };
    let asked: SelectAll<_> = Subtree::divide(nodes, fan_out)
        .into_iter()
        .map(|subtree| {
            let share = subtree.parts().count();
            let rows = wanted.rows.as_ref().map(|rows| WantedRows {
                bytes_max: rows.bytes_max.saturating_mul(share as u64) / all.max(1) as u64,
                ..rows.clone()
            });
            ask_subtree(network, subtree, Wanted { rows, hops, ..wanted.clone() })
        })
        .collect();
    asked.take_until(tokio::time::sleep(wanted.wait)).boxed()
}

fn ask_subtree(network: &Arc<dyn Network>, subtree: Subtree, wanted: Wanted) -> BoxStream<'static, Grouped> {
    let Some((node, _)) = subtree.0.first() else { return stream::empty().boxed() };
    let node = node.clone();
    let missing: HashSet<u32> = subtree.parts().map(|part| part.number).collect();
    let overhead = OVERHEAD_BYTES[0] * missing.len() as u64 + OVERHEAD_BYTES[1];
    let has_rows = wanted.rows.is_some();
    let bytes_left = wanted.rows.as_ref().map_or(0, |rows| rows.bytes_max).saturating_mul(2) + overhead;
    let wait = wanted.wait * WAIT_SHARE[0] / WAIT_SHARE[1];
    let request = Group::new(subtree.0, &Wanted { wait, ..wanted });
    let requested = network.request(&node, body(RequestKind::Group(request)));
    let rows = stream::once(async move { requested.await.map(|reply| reply.rows) }).try_flatten().boxed();
    let answer = PartialAnswer { node, rows, has_rows, missing, bytes_left };
    stream::unfold(Some(answer), |answer| async move {
        let mut answer = answer?;
        match answer.next().await {
            Ok(messages) => messages.map(|messages| (stream::iter(messages), Some(answer))),
            Err(error) => {
                // What came before is as good as without it.
                tracing::debug!(node = answer.node, %error, "a node does not answer for others");
                None
            }
        }
    })
    .flatten()
    .boxed()
}

/// The answer of a node for a subtree.
struct PartialAnswer {
    node: String,
    rows: BoxStream<'static, Result<RecordBatch>>,
    /// Whether rows were asked for.
    has_rows: bool,
    /// Parts that it has not covered.
    missing: HashSet<u32>,
    bytes_left: u64,
}

impl PartialAnswer {
    async fn next(&mut self) -> Result<Option<Vec<Grouped>>> {
        let Some(rows) = self.rows.try_next().await? else { return Ok(None) };
        (0..rows.num_rows()).map(|row| self.message(blob(&rows, row))).collect::<Result<_>>().map(Some)
    }

    fn message(&mut self, bytes: Option<&[u8]>) -> Result<Grouped> {
        let unexpected = || unexpected(&self.node);
        let bytes = bytes.ok_or_else(unexpected)?;
        self.bytes_left = self.bytes_left.checked_sub(bytes.len() as u64).ok_or_else(unexpected)?;
        let grouped = Grouped::decode(bytes).map_err(|_| unexpected())?;
        let is_missing = grouped.covered.iter().all(|number| self.missing.remove(number));
        if is_missing && grouped.is_well_formed(self.has_rows) { Ok(grouped) } else { Err(unexpected()) }
    }
}
