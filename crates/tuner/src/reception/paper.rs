//! The measurements of M. Tsangou, S. Ndiaye, M. Seck and W. Litwin, "Range Queries to Scalable Distributed Data
//! Structure RP*", WDAS 2003: 8 PCs, Ethernet with 10 MB/s, 50 records from each server.
//!
//! The paper gives response times, but neither the bytes of a record nor the times of the parts. [`FITTED`] is fitted
//! to its table with the least mean relative error. Only these are determined by the table: the sum of connection
//! set-up and transfer for each part (6 ms, from push with up to 10 servers), the time of a part alone (15.75 ms,
//! the slope of pull), the fixed part of pull (0.196 s), the backlogs and the repetitions. How they are divided among
//! the parameters is a choice. Push and back-off can't be fitted with one backlog: push admits 14 servers at a time
//! (15 and 20 servers need one repetition, 30 and 40 two), whereas back-off refuses some of 10.

use super::Reception;

/// Response times in milliseconds: servers, push, back-off, pull. Push failed in most runs beyond 40 servers.
pub const RESPONSE_TIMES: [(u64, Option<f64>, f64, f64); 12] = [
    (1, Some(20.0), 24.0, 251.0),
    (5, Some(40.0), 44.0, 274.0),
    (10, Some(74.0), 476.0, 344.0),
    (15, Some(559.0), 504.0, 440.0),
    (20, Some(579.0), 997.0, 492.0),
    (30, Some(1616.0), 1536.0, 725.0),
    (40, Some(1612.0), 1755.0, 791.0),
    (60, None, 2591.0, 1140.0),
    (80, None, 3569.0, 1612.0),
    (100, None, 3653.0, 1759.0),
    (120, None, 4186.0, 2465.0),
    (140, None, 4877.0, 2313.0),
];

/// The backlog that fits the times of back-off.
pub const BACK_OFF_BACKLOG: u32 = 9;

/// The parameters that fit the table; [`Reception::backlog`] fits push. Pull takes one connection at a time.
pub const FITTED: Reception = Reception {
    parts: 1,
    part_bytes: 5_000.0,
    rtt_seconds: 0.5e-3,
    link_bytes_per_second: 10e6,
    decode_bytes_per_second: 1e9,
    processors: 1,
    connect_seconds: 6e-3,
    request_seconds: 8.245e-3,
    query_seconds: 4.25e-3,
    announce_seconds: 0.19125,
    announcement_seconds: 0.0,
    backlog: 14,
    retransmit_seconds: 0.5,
    retransmissions: 2,
    // The paper's receiver looks for holes at the end, but does not say when.
    quiet_seconds: 1e6,
    pause_seconds: 0.375,
    back_off_utilisation: 0.17,
    budget_bytes: 1e6,
    connections_max: 1,
};
