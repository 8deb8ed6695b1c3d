//! Rows that have arrived and wait for the consumer. The budget bounds them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use arrow_array::RecordBatch;

/// Rows in the order in which they are consumed.
#[derive(Debug)]
pub(super) enum RowQueue {
    /// As they arrived: part, rows, bytes of credit.
    Arrival(VecDeque<(u64, RecordBatch, u64)>),
    /// By the ranks of their parts.
    Rank {
        /// By rank and part.
        lanes: BTreeMap<(u64, u64), Lane>,
        /// The ranks of parts.
        ranks: HashMap<u64, u64>,
    },
}

/// The rows of a part.
#[derive(Debug, Default)]
pub(super) struct Lane {
    rows: VecDeque<(RecordBatch, u64)>,
    is_ended: bool,
}

impl RowQueue {
    pub(super) fn new(in_order: bool) -> Self {
        if in_order {
            Self::Rank { lanes: BTreeMap::new(), ranks: HashMap::new() }
        } else {
            Self::Arrival(VecDeque::new())
        }
    }

    /// A part is going to be received. The rank of a part doesn't change.
    pub(super) fn announced(&mut self, part: u64, rank: u64) {
        if let Self::Rank { lanes, ranks } = self {
            ranks.insert(part, rank);
            lanes.entry((rank, part)).or_default().is_ended = false;
        }
    }

    pub(super) fn push(&mut self, part: u64, rows: RecordBatch, bytes: u64) {
        match self {
            Self::Arrival(queue) => queue.push_back((part, rows, bytes)),
            Self::Rank { lanes, ranks } => {
                let rank = ranks.get(&part).copied().unwrap_or(u64::MAX);
                lanes.entry((rank, part)).or_default().rows.push_back((rows, bytes));
            }
        }
    }

    /// No more rows of a part come, unless it is announced again.
    pub(super) fn ended(&mut self, part: u64) {
        if let Self::Rank { lanes, ranks } = self
            && let Some(rank) = ranks.get(&part)
            && let Some(lane) = lanes.get_mut(&(*rank, part))
        {
            lane.is_ended = true;
        }
    }

    /// The next rows: those of the first part that has not ended, unless a hole precedes it.
    pub(super) fn next(&mut self, first_hole: Option<u64>) -> Option<(u64, RecordBatch, u64)> {
        let (lanes, ranks) = match self {
            Self::Arrival(queue) => return queue.pop_front(),
            Self::Rank { lanes, ranks } => (lanes, ranks),
        };
        while let Some(mut lane) = lanes.first_entry() {
            let (rank, part) = *lane.key();
            if first_hole.is_some_and(|hole| hole < rank) {
                return None;
            }
            if let Some((rows, bytes)) = lane.get_mut().rows.pop_front() {
                return Some((part, rows, bytes));
            }
            if !lane.get().is_ended {
                return None;
            }
            lane.remove();
            ranks.remove(&part);
        }
        None
    }
}
