//! A node with many clients at once.

use std::thread::sleep;
use std::time::Duration;

use crate::comparison::{Comparison, Contender};
use crate::data::{Data, DataFile};
use crate::parts::{LoadResult, Part};
use crate::peers::{self, Peers};
use crate::process::{Node, Process};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::{Result, places, tables};

use super::servers::FLIGHT_BATCH_ROWS;
use super::{side_by_side_titled, under};

const NAME: &str = "load";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 2, range: true },
    Figure { name: "MB/s", digits: 0, range: false },
    Figure { name: "small query, median ms", digits: 1, range: false },
    Figure { name: "99th percentile ms", digits: 1, range: false },
    Figure { name: "peak MiB", digits: 0, range: true },
    Figure { name: "MiB 10 s later", digits: 0, range: true },
    Figure { name: "processor seconds", digits: 1, range: false },
];
const MIB: f64 = 1024.0 * 1024.0;
const CLIENTS: [usize; 4] = [1, 10, 100, 300];
/// The pause after which the remaining memory is read: by then, unused memory has been released.
const REST: Duration = Duration::from_secs(10);
const LARGE: &str = "select * from lineitem";
const SMALL: &str = "select * from lineitem limit 1";

/// Loads a freshly started server, and measures it meanwhile and afterwards.
fn measure(server: &Process, rows: u64, load: impl FnOnce() -> Result<Process>) -> Result<Vec<f64>> {
    let before = server.processor_seconds()?;
    let loaded: LoadResult = load()?.result()?;
    if loaded.rows != rows {
        return Err(format!("{} rows instead of {rows}", loaded.rows).into());
    }
    let processor_seconds = server.processor_seconds()? - before;
    let peak = server.memory_bytes("VmHWM")? as f64 / MIB;
    sleep(REST);
    let rest = server.memory_bytes("VmRSS")? as f64 / MIB;
    let small = [loaded.small.median_us / 1e3, loaded.small.p99_us / 1e3];
    let throughput = loaded.bytes as f64 / loaded.seconds / 1e6;
    Ok(vec![loaded.seconds, throughput, small[0], small[1], peak, rest, processor_seconds])
}

/// Loads a node that accepts all connections.
fn ours(file: &DataFile, clients: usize, in_memory: bool, tls: bool) -> Result<Vec<f64>> {
    let folder = places::temporary()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (certificate, key) = (path("cert.pem"), path("key.pem"));
    let mut more = vec!["--connections-max", "400"];
    if tls {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        std::fs::write(&certificate, own.cert.pem())?;
        std::fs::write(&key, own.signing_key.serialize_pem())?;
        more.extend(["--tls-cert", &certificate, "--tls-key", &key]);
    }
    let node = Node::start_with(None, &format!("lineitem={}", file.argument()), in_memory, &more)?;
    let (port, count) = (node.port.to_string(), clients.to_string());
    let mut arguments = vec!["load", &port, LARGE, "--clients", &count, "--small", SMALL];
    if tls {
        arguments.extend(["--ca", &certificate]);
    }
    measure(&node.process, clients as u64 * file.rows, || Part::spawn(None, &arguments))
}

fn flight(peers: &Peers, file: &DataFile, clients: usize) -> Result<Vec<f64>> {
    let mut server = peers.spawn(None, "flight_server.py", &[&file.argument(), "127.0.0.1"])?;
    let port = server.line()?;
    let arguments = [&port, &clients.to_string(), FLIGHT_BATCH_ROWS];
    measure(&server, clients as u64 * file.rows, || peers.spawn(None, "flight_load.py", &arguments))
}

fn title(place: &[String]) -> String {
    let clients = place.join(", ");
    if clients == "1" { "1 client".to_owned() } else { format!("{clients} clients") }
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let peers = Peers::install()?;
    let scale = settings.scale_or(0.25);
    let file = Data::Lineitem.file(scale)?;
    let mut results = Results::open(&settings.results(), NAME, &["clients"], FIGURES)?;
    let counts = settings.some_if_quick(&CLIENTS).into_iter().copied();
    for clients in counts.filter(|clients| settings.wants_case(&clients.to_string())) {
        let (file, peers) = (&file, &peers);
        let contenders = vec![
            Contender::new("Lightship, from Parquet", move || ours(file, clients, false, false)),
            Contender::new("Lightship, from memory", move || ours(file, clients, true, false)),
            Contender::new("Lightship, from memory, TLS", move || ours(file, clients, true, true)),
            Contender::new("Arrow Flight, from memory", move || flight(peers, file, clients)),
        ];
        let place = Case { values: vec![clients.to_string()], scale, ..Case::default() };
        results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
    }
    let tables = results
        .places()
        .into_iter()
        .map(|place| under(&results, &title(place), place, &tables::contenders(&results, place, None)));
    Report {
        name: NAME,
        page: Page::Transfer,
        title: "Many clients at once",
        text: format!(
            "The given number of clients fetch all of lineitem (TPC-H, scale {scale}, {} rows) from a \
             freshly started node at the same time, each over its own TCP connection on one host. All \
             clients run in one process. Meanwhile another client repeatedly fetches one row (`{SMALL}`). \
             Memory is the server's resident memory, tables and code included; processor seconds are the \
             server's. Arrow Flight is the C++ server through pyarrow; its clients are threads of one Python \
             process.",
            file.rows
        ),
        tables: tables.collect(),
        plots: vec![(side_by_side_titled(&results, "seconds", title)?, "Seconds by number of clients")],
        versions: peers::versions(&["pyarrow"]),
        load,
        settings,
    }
    .publish()
}
