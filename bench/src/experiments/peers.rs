//! From memory to memory over a link: Lightship and today's peers (Tables 1 and 2 of the paper).

use lab::Lab;

use super::servers::{MemoryServer, Peer, netcat, over};
use super::{OURS, OVER_A_LINK, side_by_side, under};
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::links::LinkedHosts;
use crate::peers::{self, Peers};
use crate::report::{self, Page, Report};
use crate::results::{Case, Results};
use crate::settings::{Settings, codecs};
use crate::tables::{self, Ratio, Standing};

const NAME: &str = "peers";
const FLIGHT: [&str; 3] = ["none", "lz4", "zstd"];
const NETCAT: [(&str, Option<[&str; 2]>); 3] = [
    ("netcat, CSV", None),
    ("netcat, CSV, lz4", Some(["lz4 -1 -c", "lz4 -dc"])),
    ("netcat, CSV, zstd", Some(["zstd -1 -qc", "zstd -qdc"])),
];
/// The paper's heavyweight compressors, and today's. They keep up with slow links only.
const HEAVY: [(&str, Option<[&str; 2]>); 3] = [
    ("netcat, CSV, gzip", Some(["gzip -6 -c", "gzip -dc"])),
    ("netcat, CSV, zstd 19", Some(["zstd -19 -qc", "zstd -qdc"])),
    ("netcat, CSV, xz", Some(["xz -6 -T1 -c", "xz -dc"])),
];
const SLOW: &str = "slow";
const QUACK: &str = "DuckDB Quack";

fn measure(settings: &Settings, course: &LinkedHosts, peers: &Peers, results: &mut Results) -> Result<()> {
    let scale = settings.scale_over(&course.link);
    let file = Data::Lineitem.file(scale)?;
    let memory = MemoryServer::start(course, &file)?;
    let flight_name = |codec: &str| format!("Arrow Flight, {codec}");
    let flight = FLIGHT.iter().any(|codec| settings.wants(&flight_name(codec)));
    let flight = flight.then(|| Peer::flight(course, peers, &file)).transpose()?;
    let csv = file.csv()?;
    let csv_bytes = csv.metadata()?.len();
    let quack = settings.wants(QUACK).then(|| Peer::quack(course, peers, &file)).transpose()?;
    let mut contenders = Vec::new();
    for codec in codecs() {
        let memory = &memory;
        let auto = codec == "auto";
        let name = if auto { OURS.to_owned() } else { format!("{OURS}, {codec}") };
        contenders.push(Contender::new(name, move || {
            let fixed = ["--codec", &codec, "--tcp"];
            over(course, || Ok(memory.fetch(if auto { &[] } else { &fixed })?.seconds))
        }));
    }
    if let Some(flight) = &flight {
        for codec in FLIGHT {
            let get = move || over(course, || Ok(flight.get(codec)?.seconds));
            contenders.push(Contender::new(flight_name(codec), get));
        }
    }
    let heavy = if course.link == SLOW { &HEAVY[..] } else { &[] };
    for &(name, pipe) in NETCAT.iter().chain(heavy) {
        let csv = &csv;
        contenders.push(Contender::new(name, move || {
            let values = over(course, || netcat(course, csv, pipe))?;
            // A decompressor notices missing bytes itself.
            if pipe.is_none() && values[1] * 1e6 < csv_bytes as f64 {
                return Err(format!("received {:.0} MB of {csv_bytes} bytes", values[1]).into());
            }
            Ok(values)
        }));
    }
    if let Some(quack) = &quack {
        contenders.push(Contender::new(QUACK, move || over(course, || Ok(quack.read(&[])?.seconds))));
    }
    let place = Case { values: vec![course.link.clone()], scale, note: course.measured.clone() };
    results.add(Comparison { figures: OVER_A_LINK, contenders }.run(settings, &place)?)
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let tools = peers::tools(&[peers::NETCAT, peers::LZ4, peers::ZSTD, peers::XZ])?;
    let peers = Peers::install()?;
    let lab = Lab::new()?;
    let mut results = Results::open(&settings.results(), NAME, &["link"], OVER_A_LINK)?;
    for link in settings.links(&["local", "lan", "wan", SLOW]) {
        measure(settings, &LinkedHosts::open(&lab, &link)?, &peers, &mut results)?;
    }
    let standing = Standing { ratio: Ratio::Ours(OURS), targets: &[] };
    let tables = results.places().into_iter().map(|place| {
        let table = tables::contenders(&results, place, Some(&standing));
        under(&results, &place.join(", "), place, &table)
    });
    Report {
        name: NAME,
        page: Page::ColumnarProtocol,
        title: "From memory, compared with the peers",
        text: "TPC-H lineitem from the memory of a process on one host to Arrow batches in a process on \
               another, which counts and drops them. The row `Lightship` uses the defaults (codec `auto`, \
               and shared memory where both ends are on one host); its other rows use TCP and one codec for \
               the whole result. Arrow Flight is the C++ implementation through pyarrow, 65536 rows a batch, \
               with the compression of Arrow IPC. netcat sends the table as CSV from a file in the page \
               cache, and its output is discarded; with a compressor it stands for the paper's netcat with \
               Snappy and GZIP (level 1, one thread at each end), over `slow` also GZIP and XZ at level 6 and Zstandard at \
               level 19. Quack answers `from t` from a table in \
               DuckDB's memory. The clock starts on an open connection; netcat's starts with its process. \
               Bytes on the wire are all that the near host received, headers included; on the local link, \
               all bytes over the loopback."
            .into(),
        tables: tables.collect(),
        plots: vec![(side_by_side(&results, "seconds")?, "Seconds by contender and link")],
        versions: [peers::versions(&["pyarrow", "duckdb==", "duckdb-extension-quack"]), tools].concat(),
        load,
        settings,
    }
    .publish()
}
