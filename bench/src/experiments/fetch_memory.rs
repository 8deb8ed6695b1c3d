//! Peak memory of `lightship fetch` and of a node, for large results.

use std::path::Path;

use tempfile::TempDir;

use crate::comparison::{Comparison, Contender};
use crate::data::{Data, DataFile};
use crate::parts::TransferResult;
use crate::peers::Peers;
use crate::process::Node;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::{Result, places, tables};

const NAME: &str = "fetch-memory";
const FIGURES: &[Figure] = &[
    Figure { name: "fetch over idle MiB", digits: 1, range: true },
    Figure { name: "node over idle MiB", digits: 1, range: true },
    Figure { name: "fetch idle MiB", digits: 1, range: false },
    Figure { name: "node idle MiB", digits: 1, range: false },
    Figure { name: "seconds", digits: 1, range: false },
];
const MIB: f64 = 1024.0 * 1024.0;
const ONE: &str = "select * from lineitem";
const TEN: &str = "select lineitem.* from lineitem \
                   cross join (values (1), (2), (3), (4), (5), (6), (7), (8), (9), (10)) as ten(n)";

/// Fetches into a file in `folder`, and checks that all `rows` arrived.
fn fetch(peers: &Peers, node: &Node, folder: &Path, sql: &str, rows: u64) -> Result<TransferResult> {
    let path = |name| folder.join(name).display().to_string();
    let (lightship, output, stats) =
        (places::lightship()?.display().to_string(), path("x.parquet"), path("stats.json"));
    let command = [
        &lightship,
        "fetch",
        &node.uri(),
        sql,
        "-o",
        &output,
        "--memory",
        "64MiB",
        "--quiet",
        "--stats",
        &stats,
    ];
    let done = peers.spawn(None, "peak.py", &command)?.result()?;
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(stats)?)?;
    if stats["rows"] != rows {
        return Err(format!("{} rows instead of {rows}", stats["rows"]).into());
    }
    Ok(done)
}

/// Measures one result from a freshly started node.
fn measure(peers: &Peers, file: &DataFile, folder: &Path, sql: &str, rows: u64) -> Result<Vec<f64>> {
    let node = Node::start(None, &format!("lineitem={}", file.argument()), false)?;
    let idle = fetch(peers, &node, folder, "select 1", 1)?.peak_memory_bytes as f64;
    let node_idle = node.process.memory_bytes("VmRSS")? as f64;
    node.process.forget_peak()?;
    let done = fetch(peers, &node, folder, sql, rows)?;
    let node_peak = node.process.memory_bytes("VmHWM")? as f64;
    let fetch_over = (done.peak_memory_bytes as f64 - idle) / MIB;
    Ok(vec![fetch_over, (node_peak - node_idle) / MIB, idle / MIB, node_idle / MIB, done.seconds])
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let peers = Peers::install()?;
    let scale = settings.scale_or(1.0);
    let file = Data::Lineitem.file(scale)?;
    let folder = TempDir::new_in(places::data())?;
    let measure = |sql, times| measure(&peers, &file, folder.path(), sql, times * file.rows);
    let contenders = vec![
        Contender::new("lineitem, 1 GB", || measure(ONE, 1)),
        Contender::new("lineitem ten times, 10 GB", || measure(TEN, 10)).rounds_max(1),
    ];
    let mut results = Results::open(&settings.results(), NAME, &[], FIGURES)?;
    let place = Case { scale, ..Case::default() };
    results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
    Report {
        name: NAME,
        page: Page::Transfer,
        title: "Memory of a fetch",
        text: format!(
            "`lightship fetch URI SQL -o x.parquet --memory 64MiB` from a node that serves lineitem (TPC-H, \
             scale {scale}) from its Parquet file. Idle is measured with `select 1`: for the command it is \
             the peak of that run, for the node the memory that it holds after it. Memory is resident \
             memory, code included. Target for both: below 64 MiB over idle. The large result is fetched \
             once, with `{TEN}`."
        ),
        tables: vec![tables::contenders::<&str>(&results, &[], None)],
        plots: Vec::new(),
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
