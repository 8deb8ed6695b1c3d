//! The measurements of A. Belghoul's thesis: two links, six queries, and the limits and grid of its
//! experiments. For comparison, and for use before a link is measured.

use crate::grid::Grid;
use crate::model::{Limits, LinkModel, Plane, Query};

/// The thesis' network of 10 Gbit/s.
pub const TEN_GIGABIT: LinkModel =
    LinkModel { first: Plane::new(2.02e-11, 1.17e-8, 4.5e-4), next: Plane::new(1.24e-14, 2.73e-10, 4.35e-6) };

/// The thesis' network of 50 Mbit/s.
pub const FIFTY_MEGABIT: LinkModel =
    LinkModel { first: Plane::new(1.94e-11, 2.94e-8, 5.12e-4), next: Plane::new(4.51e-11, 2.25e-8, 1.29e-4) };

/// The limits of the experiments: messages of 512 to 32,767 bytes, batches of up to 30 MB.
pub const LIMITS: Limits =
    Limits { message_bytes_min: 512, message_bytes_max: 32_767, batch_bytes_max: 30_000_000 };

/// The query with published iterations: 164,989,583 rows of 27 bytes.
pub const Q3: Query = query(164_989_583, 27);

/// The six queries. Except for [`Q3`], the published sizes are in millions of rows.
pub const QUERIES: [(&str, Query); 6] = [
    ("Q1", query(165_000_000, 205)),
    ("Q2", query(165_000_000, 54)),
    ("Q3", Q3),
    ("Q4", query(4_000_000, 450)),
    ("Q5", query(4_000_000, 29)),
    ("Q6", query(55, 27)),
];

/// The published Newton iterations for [`Q3`] over [`TEN_GIGABIT`], from k = 1: F^B, M, seconds.
pub const ITERATIONS: [(f64, f64, f64); 20] = [
    (1538.0, 682.0, 1353.0),
    (2311.0, 889.0, 905.3),
    (3474.0, 1135.0, 612.2),
    (5224.0, 1428.0, 410.3),
    (7859.0, 1779.0, 278.0),
    (11829.0, 2203.0, 188.6),
    (17817.0, 2719.0, 128.2),
    (26860.0, 3349.0, 88.2),
    (40535.0, 4122.0, 60.3),
    (61250.0, 5074.0, 42.2),
    (92691.0, 6249.0, 29.3),
    (140520.0, 7702.0, 20.9),
    (213490.0, 9502.0, 15.0),
    (325150.0, 11740.0, 10.9),
    (496640.0, 14528.0, 8.20),
    (761060.0, 18012.0, 6.25),
    (1170600.0, 22382.0, 4.88),
    (1807900.0, 27883.0, 3.90),
    (2804500.0, 32767.0, 3.22),
    (4385300.0, 32767.0, 2.75),
];

/// Rows of a batch and bytes of a message that were measured fastest, for Q1 to Q5: over [`TEN_GIGABIT`], then over
/// [`FIFTY_MEGABIT`].
pub const FASTEST: [[(u64, u64); 5]; 2] = [
    [(110_000, 32_767), (550_000, 32_767), (880_000, 32_767), (66_000, 32_767), (330_000, 32_767)],
    [(22_000, 32_767), (7_700, 32_767), (22_000, 24_576), (1_100, 30_720), (3_300, 22_528)],
];

const fn query(rows: u64, row_bytes: u32) -> Query {
    Query { volume_bytes: rows * row_bytes as u64, row_bytes: row_bytes as f64 }
}

/// The 629 measured pairs: messages of 1.5, 2, 4, ..., 32 KB, and batches of 110 to 1.1 million
/// rows. The largest message is one byte short of 32 KB, like the limit.
pub fn grid() -> Grid {
    let decades = [110, 1100, 11_000].into_iter().flat_map(|step| (1..=9).map(move |i| i * step));
    let message_bytes = std::iter::once(1536).chain((1..=16).map(|i| i * 2048));
    Grid {
        batch_rows: decades.chain((1..=10).map(|i| i * 110_000)).collect(),
        message_bytes: message_bytes.map(|bytes| bytes.min(LIMITS.message_bytes_max)).collect(),
    }
}
