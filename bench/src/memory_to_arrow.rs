//! From the memory of a node to Arrow batches in a client.

use crate::comparison::{Comparison, Contender, Figure};
use crate::parts::{Part, Transferred};
use crate::peers::{self, Peers};
use crate::process::{Node, Process};
use crate::report::{self, Report};
use crate::{Result, places};

const SQL: &str = "select * from lineitem";
const ROWS: u64 = 6_001_215;
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "GB/s", digits: 2, range: false },
    Figure { name: "client peak MB", digits: 0, range: false },
];

fn figures(client: Process, rows: u64) -> Result<Vec<f64>> {
    let done: Transferred = client.result()?;
    if done.rows != rows {
        return Err(format!("{} rows instead of {rows}", done.rows).into());
    }
    let bytes = done.bytes as f64;
    Ok(vec![done.seconds, bytes / done.seconds / 1e9, done.peak_memory_bytes as f64 / 1e6])
}

pub(crate) fn run(rounds: u32) -> Result<()> {
    let load = report::load();
    let peers = Peers::install()?;
    let node = Node::start(true)?;
    let port = node.port.to_string();
    let fetch = || Part::spawn(&["fetch", &port, SQL]);

    let mut flight = peers.spawn("flight_server.py", &[&places::lineitem()?.display().to_string()])?;
    let flight_port = flight.line()?;
    let flight_client = |rows: &str| peers.spawn("flight_client.py", &[&flight_port, rows]);

    // As many bytes as ours moves.
    let bytes = fetch()?.result::<Transferred>()?.bytes;
    let mut socket = Part::spawn(&["socket-serve", &bytes.to_string()])?;
    let socket_port = socket.line()?;

    let contenders = vec![
        Contender::new("Lightship", || figures(fetch()?, ROWS)),
        Contender::new("Arrow Flight, 65536 rows a batch", || figures(flight_client("65536")?, ROWS))
            .target(0.8),
        Contender::new("Arrow Flight, 8192 rows a batch", || figures(flight_client("8192")?, ROWS))
            .target(0.8),
        Contender::new("plain socket", || figures(Part::spawn(&["socket-read", &socket_port])?, 0))
            .target(1.1),
    ];
    let mut comparison = Comparison { figures: FIGURES, contenders };
    comparison.run(rounds)?;
    Report {
        name: "memory-to-arrow",
        title: "From a node's memory to Arrow batches",
        text: format!(
            "TPC-H lineitem, scale 1 (6,001,215 rows, {} MB as Arrow), from the memory of one process to \
             Arrow batches in another, which counts and drops them; TCP over loopback, uncompressed. The clock \
             starts on an open connection, with the query. Arrow Flight is the C++ implementation through \
             pyarrow; both sizes of batches are shown. The plain socket carries the same number of bytes, \
             written from memory and read into one buffer, 1 MiB a call.",
            bytes / 1_000_000
        ),
        versions: peers::versions(&["pyarrow"]),
        rounds,
        load,
        comparison: &comparison,
    }
    .publish()
}
