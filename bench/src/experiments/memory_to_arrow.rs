//! From the memory of a node to Arrow batches in a client.

use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::parts::{Part, TransferResult};
use crate::peers::{self, Peers};
use crate::process::{Node, Process};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::tables::{self, Ratio, Standing};

const NAME: &str = "memory-to-arrow";
const SQL: &str = "select * from lineitem";
const FLIGHT: [(&str, &str); 2] =
    [("Arrow Flight, 65536 rows a batch", "65536"), ("Arrow Flight, 8192 rows a batch", "8192")];
const SHARED: &str = "Lightship, shared memory";
const TCP: &str = "Lightship, TCP";
const SOCKET: &str = "plain socket";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "GB/s", digits: 2, range: false },
    Figure { name: "client peak MB", digits: 0, range: false },
];

fn figures(client: Process, rows: u64) -> Result<Vec<f64>> {
    let done = client.result::<TransferResult>()?.whole(rows)?;
    let bytes = done.bytes as f64;
    Ok(vec![done.seconds, bytes / done.seconds / 1e9, done.peak_memory_bytes as f64 / 1e6])
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let peers = Peers::install()?;
    let scale = settings.scale_or(1.0);
    let file = Data::Lineitem.file(scale)?;
    let rows = file.rows;
    let node = Node::start(None, &format!("lineitem={}", file.argument()), true)?;
    let port = node.port.to_string();
    let own = ["fetch", "127.0.0.1", &port, SQL, "--codec", "none"];
    let fetch = |more: &[&str]| Part::spawn(None, &[&own, more].concat());

    let mut flight = peers.spawn(None, "flight_server.py", &[&file.argument(), "127.0.0.1"])?;
    let flight_port = flight.line()?;
    let flight_client =
        |rows: &str| peers.spawn(None, "flight_client.py", &["127.0.0.1", &flight_port, rows, "none"]);

    // The number of bytes that Lightship transfers.
    let bytes = fetch(&["--tcp"])?.result::<TransferResult>()?.bytes;
    let mut socket = Part::spawn(None, &["socket-serve", &bytes.to_string()])?;
    let socket_port = socket.line()?;

    let mut contenders = vec![
        Contender::new(SHARED, || figures(fetch(&[])?, rows)),
        Contender::new(TCP, || figures(fetch(&["--tcp"])?, rows)),
    ];
    for (name, batch_rows) in FLIGHT {
        let flight_client = &flight_client;
        contenders.push(Contender::new(name, move || figures(flight_client(batch_rows)?, rows)));
    }
    let socket_read = || figures(Part::spawn(None, &["socket-read", &socket_port])?, 0);
    contenders.push(Contender::new(SOCKET, socket_read));
    let mut results = Results::open(&settings.results(), NAME, &[], FIGURES)?;
    let place = Case { scale, ..Case::default() };
    results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
    let standing = Standing { ratio: Ratio::Of(FLIGHT[0].0), targets: &[(SHARED, 0.5), (TCP, 0.8)] };
    let to_socket = results.median::<&str>(&[], TCP) / results.median::<&str>(&[], SOCKET);
    Report {
        name: NAME,
        page: Page::Transfer,
        title: "From a node's memory to Arrow batches",
        text: format!(
            "TPC-H lineitem, scale {scale} ({rows} rows, {} MB as Arrow), from the memory of one process to \
             Arrow batches in another, which counts and drops them. Nothing is compressed. Lightship uses \
             shared memory, its default on one host, or loopback TCP. The clock starts with the query, on an \
             open connection. Arrow Flight is the C++ implementation through pyarrow, with two sizes of \
             batches. The plain socket carries the same number of bytes, written from memory and read into \
             one buffer, 1 MiB per call. Lightship over TCP takes {to_socket:.2} of the plain socket's time. \
             Target: at most 1.10.",
            bytes / 1_000_000
        ),
        tables: vec![tables::contenders::<&str>(&results, &[], Some(&standing))],
        plots: Vec::new(),
        versions: peers::versions(&["pyarrow"]),
        load,
        settings,
    }
    .publish()
}
