//! What A. Belghoul's thesis measured: two links, six queries, the limits and the grid of its
//! experiments. For comparisons, and for those who have measured nothing yet.

use crate::grid::Grid;
use crate::model::{Limits, LinkModel, Plane, Query};

/// The thesis' network of 10 Gbit/s.
pub const TEN_GIGABIT: LinkModel =
    LinkModel { first: Plane::new(2.02e-11, 1.17e-8, 4.5e-4), next: Plane::new(1.24e-14, 2.73e-10, 4.35e-6) };

/// The thesis' network of 50 Mbit/s.
pub const FIFTY_MEGABIT: LinkModel =
    LinkModel { first: Plane::new(1.94e-11, 2.94e-8, 5.12e-4), next: Plane::new(4.51e-11, 2.25e-8, 1.29e-4) };

/// The messages and batches that were possible: 512 to 32,767 bytes, 30 MB.
pub const LIMITS: Limits =
    Limits { message_bytes_min: 512, message_bytes_max: 32_767, batch_bytes_max: 30_000_000 };

/// The query whose iterations are published: 164,989,583 rows of 27 bytes.
pub const Q3: Query = query(164_989_583, 27);

/// The six queries. Sizes are published in millions of rows, but for [`Q3`].
pub const QUERIES: [(&str, Query); 6] = [
    ("Q1", query(165_000_000, 205)),
    ("Q2", query(165_000_000, 54)),
    ("Q3", Q3),
    ("Q4", query(4_000_000, 450)),
    ("Q5", query(4_000_000, 29)),
    ("Q6", query(55, 27)),
];

const fn query(rows: u64, row_bytes: u32) -> Query {
    Query { volume_bytes: rows * row_bytes as u64, row_bytes: row_bytes as f64 }
}

/// The 629 pairs that were run: messages of 1.5, 2, 4, ..., 32 KB by batches of 110 to
/// 1.1 million rows. The largest message is one byte short of 32 KB, as the limit is.
pub fn grid() -> Grid {
    let decades = [110, 1100, 11_000].into_iter().flat_map(|step| (1..=9).map(move |i| i * step));
    let message_bytes = std::iter::once(1536).chain((1..=16).map(|i| i * 2048));
    Grid {
        batch_rows: decades.chain((1..=10).map(|i| i * 110_000)).collect(),
        message_bytes: message_bytes.map(|bytes| bytes.min(LIMITS.message_bytes_max)).collect(),
    }
}
