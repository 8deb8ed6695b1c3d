//! Settings of a recorder, and how a query ended.

use std::collections::BTreeMap;

use lightship_usage::{HostSpeeds, Known, TimelineLimits};

use crate::time::{monotonic_ns, unix_ns};

/// Settings of a [`super::Recorder`].
#[derive(Debug, Clone, PartialEq)]
pub struct RecorderOptions {
    /// The name of the host that coordinates the queries. Queries without tasks in any sample are taken to have run
    /// there. `None` if it is not sampled.
    pub own_host: Option<String>,
    /// What the hosts can do, by name. Of others, what their agents say counts.
    pub speeds: BTreeMap<String, HostSpeeds>,
    /// The most hosts, and the most bytes of samples in memory.
    pub samples: TimelineLimits,
    /// The most queries. Those that were not assessed are dropped first, then the oldest of those that ended.
    pub queries_max: usize,
    /// The most bytes of ids, labels and errors of all queries together; the oldest queries are dropped.
    pub texts_bytes_max: usize,
    /// The most bytes of one label or error; longer ones are cut.
    pub text_bytes_max: usize,
    /// The most bytes of footprints; the oldest are dropped, and their verdicts kept. One takes about 10 to 100 KB.
    pub footprints_bytes_max: usize,
    /// The most queries that wait for their assessment; of those above, the shortest are not assessed.
    pub waiting_max: usize,
    /// The most queries that one tick assesses, the longest first. `examples/assess_cost.rs` shows what they cost.
    pub assessments_per_tick_max: usize,
    /// How long the samples that follow a query are awaited, in nanoseconds. Then it is assessed without.
    pub wait_ns: u64,
    /// The most events of hosts that are kept.
    pub events_max: usize,
    /// What is added to a time of the collector's clock to get nanoseconds since 1970. It is taken once, so that times
    /// in reports do not jump if the time of day is set.
    pub unix_offset_ns: i64,
}

impl RecorderOptions {
    /// The default of `queries_max`.
    pub const QUERIES_MAX: usize = 1000;

    /// Defaults: 1000 queries, and about 160 MB in all, of which 64 MiB are samples.
    pub fn new(own_host: Option<String>) -> Self {
        Self {
            own_host,
            speeds: BTreeMap::new(),
            samples: TimelineLimits::default(),
            queries_max: Self::QUERIES_MAX,
            texts_bytes_max: 4 << 20,
            text_bytes_max: 4096,
            footprints_bytes_max: 64 << 20,
            waiting_max: 256,
            assessments_per_tick_max: 16,
            wait_ns: 5_000_000_000,
            events_max: 500,
            unix_offset_ns: i64::try_from(unix_ns().saturating_sub(monotonic_ns())).unwrap_or(0),
        }
    }
}

/// How a query ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueryEnd {
    /// The error that ended it; `None` if it succeeded.
    pub error: Option<String>,
    /// What is known of it beside samples.
    pub known: Known,
}
