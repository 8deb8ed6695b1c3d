//! Asks for many buckets by one request to each of a few nodes, which ask the others. What they do not cover is left to
//! requests to the buckets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use futures::StreamExt;
use lightship_wire::decode;

use super::RangeFile;
use crate::definition::Capacity;
use crate::error::{RangeError, Result};
use crate::group::{
    FAN_OUT_MAX, GroupPart, Grouped, HOPS_MAX, PARTS_MAX, ROWS_BYTES_MAX, Wanted, WantedRows, ask_nodes,
};
use crate::image::{Owner, Piece};
use crate::key::Interval;
use crate::request::Columns;

/// Whether requests for many buckets are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grouping {
    /// If there are several buckets for each node, and their answers are small.
    #[default]
    Auto,
    /// Each bucket is asked by itself.
    Never,
    /// All that can be, for comparisons.
    Always {
        /// The most nodes that the client asks.
        first: u32,
        /// The most nodes that each of them asks.
        fan_out: u32,
    },
}

/// The fewest parts for which a tree is used.
const PARTS_MIN: usize = 8;
/// With fewer parts for each node than this, the buckets answer as soon.
const PARTS_PER_NODE_MIN: usize = 2;
/// The largest answer of a part, as expected, and the most bytes of all: rows as Arrow data.
#[derive(Clone, Copy)]
struct Limits {
    part_bytes: u64,
    all_bytes: u64,
}

/// If all nodes are on this host.
const LOCAL: Limits = Limits { part_bytes: 32 << 10, all_bytes: ROWS_BYTES_MAX };
/// Otherwise: several nodes may answer at the same time, and together they should not overflow the queue of a link.
const REMOTE: Limits = Limits { part_bytes: 16 << 10, all_bytes: 512 << 10 };
/// Bytes of keys in a request.
const KEY_BYTES_MAX: usize = 512 << 10;
/// Bytes of a part in a request besides its keys.
const PART_BYTES: usize = 32;
/// The longest time that a tree may take. Then what is missing is asked for without it.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// About the bytes of a value whose width is not fixed.
const VALUE_BYTES: u64 = 32;

/// Which rows a scan asks for.
pub(super) struct GroupedScan<'a> {
    pub(super) columns: Option<&'a Vec<u32>>,
    /// The columns of the answer.
    pub(super) schema: &'a SchemaRef,
    pub(super) limit: Option<u64>,
}

impl RangeFile {
    /// The number of rows in the pieces that a tree of nodes has answered for, and the intervals of the other pieces.
    pub(super) async fn count_grouped(&self, mut pieces: Vec<Piece>) -> (u64, Vec<Interval>) {
        let (mut total, mut rest) = (0_u64, Vec::new());
        while !pieces.is_empty() {
            let later = pieces.split_off(fitting(&pieces));
            let is_worth = self.is_worth_grouping(&pieces);
            let mut covered = vec![false; pieces.len()];
            if is_worth {
                self.ask_grouped(&pieces, None, |grouped| {
                    total = grouped.count.saturating_add(total);
                    grouped.covered.iter().for_each(|&part| covered[part as usize] = true);
                    Ok(())
                })
                .await;
            }
            let missing = pieces.into_iter().zip(covered).filter(|(_, is_covered)| !is_covered);
            rest.extend(missing.map(|((piece, _), _)| piece));
            pieces = later;
        }
        (total, rest)
    }

    /// How many of the first pieces of a scan are asked for together; 0 if they are too few, or their answers too large.
    pub(super) fn pieces_grouped(
        &self,
        pieces: &[Piece],
        scan: &GroupedScan<'_>,
        budget_bytes: u64,
    ) -> usize {
        let expected = |piece: &Piece| self.expected_bytes(piece, scan);
        let limits = self.limits(budget_bytes);
        let is_forced = matches!(self.shared.options.grouping, Grouping::Always { .. });
        let mut bytes = 0_u64;
        let small = pieces.iter().take_while(|piece| {
            let expected = expected(piece);
            bytes = bytes.saturating_add(expected);
            bytes <= limits.all_bytes && (expected <= limits.part_bytes || is_forced)
        });
        let small = small.count();
        let together = fitting(&pieces[..small]);
        if self.is_worth_grouping(&pieces[..together]) { together } else { 0 }
    }

    /// The rows of each piece that a tree of nodes has answered for.
    pub(super) async fn rows_grouped(
        &self,
        pieces: &[Piece],
        scan: &GroupedScan<'_>,
        budget_bytes: u64,
    ) -> Vec<Option<RecordBatch>> {
        let mut found = vec![None; pieces.len()];
        let bytes_max = self.limits(budget_bytes).all_bytes;
        let columns = scan.columns.map(|positions| Columns { positions: positions.clone() });
        let wanted = WantedRows { limit: scan.limit, columns, bytes_max };
        self.ask_grouped(pieces, Some(wanted), |grouped| {
            let rows = Buffer::from_vec(grouped.rows.unwrap_or_default());
            let rows = decode(scan.schema, rows, u32::try_from(2 * ROWS_BYTES_MAX).unwrap_or(u32::MAX))?;
            if rows.num_rows() as u64 != grouped.count {
                return Err(RangeError::Definition("an answer has other rows than it names".into()));
            }
            let mut start = 0;
            for (part, rows_of_part) in grouped.covered.iter().zip(grouped.counts) {
                found[*part as usize] = Some(rows.slice(start, rows_of_part as usize));
                start += rows_of_part as usize;
            }
            Ok(())
        })
        .await;
        found
    }

    /// Asks for pieces with known owners, and passes on what is answered: parts are the positions of pieces.
    async fn ask_grouped(
        &self,
        pieces: &[Piece],
        rows: Option<WantedRows>,
        mut answered: impl FnMut(Grouped) -> Result<()>,
    ) {
        let mut nodes: BTreeMap<String, Vec<GroupPart>> = BTreeMap::new();
        for (number, (interval, owner)) in (0..).zip(pieces) {
            let Some(Owner { bucket, node, epoch, .. }) = owner.as_ref() else { continue };
            let part = GroupPart { number, bucket: *bucket, epoch: *epoch, interval: interval.clone() };
            nodes.entry(node.clone()).or_default().push(part);
        }
        let (first, fan_out) = match self.shared.options.grouping {
            Grouping::Always { first, fan_out } => (first, fan_out),
            _ => (FAN_OUT_MAX, FAN_OUT_MAX),
        };
        let wanted = Wanted {
            file: self.definition().name.clone(),
            rows,
            fan_out,
            hops: HOPS_MAX + 1,
            wait: (self.shared.options.patience / 4).min(WAIT_MAX),
        };
        let mut answers = ask_nodes(&self.shared.network, nodes, first, &wanted);
        while let Some(mut grouped) = answers.next().await {
            self.learn_changed(&std::mem::take(&mut grouped.changed));
            if let Err(error) = answered(grouped) {
                tracing::debug!(%error, "an answer for several buckets can't be read");
            }
        }
    }

    /// Learns of buckets that have changed, on nodes that are known.
    pub(super) fn learn_changed(&self, changed: &[crate::request::BucketEntry]) {
        if changed.is_empty() {
            return;
        }
        let nodes = self.nodes();
        let mut image = self.locked_image();
        for entry in changed.iter().filter(|entry| nodes.contains(&entry.node)) {
            image.learn(entry);
        }
    }

    /// The limits for a scan with this budget.
    fn limits(&self, budget_bytes: u64) -> Limits {
        let is_local = self.shared.network.round_trip().is_some_and(|round_trip| round_trip.is_zero());
        let limits = if is_local { LOCAL } else { REMOTE };
        Limits { all_bytes: limits.all_bytes.min(budget_bytes / 4), ..limits }
    }

    fn is_worth_grouping(&self, pieces: &[Piece]) -> bool {
        match self.shared.options.grouping {
            Grouping::Never => false,
            Grouping::Always { .. } => !pieces.is_empty(),
            Grouping::Auto => {
                let owners = pieces.iter().filter_map(|(_, owner)| owner.as_ref());
                let nodes: BTreeSet<&str> = owners.clone().map(|owner| owner.node.as_str()).collect();
                let known = owners.count();
                known >= PARTS_MIN && known >= nodes.len() * PARTS_PER_NODE_MIN
            }
        }
    }

    /// About the bytes of a part's rows, at most.
    fn expected_bytes(&self, (interval, owner): &Piece, scan: &GroupedScan<'_>) -> u64 {
        let Some(owner) = owner else { return 0 };
        let row_bytes = || -> u64 {
            let fields = self.definition().schema.fields().iter();
            fields
                .map(|field| field.data_type().primitive_width().map_or(VALUE_BYTES, |width| width as u64))
                .sum()
        };
        let row_bytes = match (owner.records, owner.bytes) {
            (Some(records @ 1..), Some(bytes)) => bytes / records,
            _ => row_bytes(),
        };
        // Nobody has told what the bucket holds: it is full.
        let bytes = owner.bytes.unwrap_or(match self.definition().capacity {
            Capacity::Bytes(bytes) => bytes,
            Capacity::Records(records) => records.saturating_mul(row_bytes),
        });
        let rows_max = if interval.is_of_key() { Some(1) } else { scan.limit };
        rows_max.map_or(bytes, |rows| rows.saturating_mul(row_bytes).min(bytes))
    }
}

/// How many of the first pieces fit into a request.
fn fitting(pieces: &[Piece]) -> usize {
    let mut bytes = 0;
    let fitting = pieces.iter().take(PARTS_MAX).take_while(|(interval, _)| {
        bytes += interval.low.len() + interval.high.as_ref().map_or(0, Vec::len) + PART_BYTES;
        bytes <= KEY_BYTES_MAX
    });
    // A single one always fits.
    fitting.count().max(1).min(pieces.len())
}
