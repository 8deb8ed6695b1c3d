//! Range files: bulk load, scan and single records, compared with the storage library alone and with a table.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::arrow::ArrowWriter;

use crate::comparison::{Comparison, Contender};
use crate::parts::{KeyOrder, Part, RangeResult, Records, TransferResult};
use crate::process::{Node, Process};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::{Result, places, tables};

const NAME: &str = "range-load";
const FIGURES: &[Figure] = &[
    Figure { name: "load s", digits: 2, range: true },
    Figure { name: "first scan s", digits: 2, range: false },
    Figure { name: "scan s", digits: 2, range: true },
    Figure { name: "one record us", digits: 0, range: false },
    Figure { name: "no record us", digits: 0, range: false },
    Figure { name: "later scan s", digits: 2, range: true },
];
const LOAD: usize = 0;
const SCAN: usize = 2;
const ONE: usize = 3;
const NONE: usize = 4;
const LATER: usize = 5;
const OURS: &str = "range file on 4 nodes";
const LIBRARY: &str = "redb alone, in one process";
const TABLE: &str = "table of one node, in memory";
const PARQUET: &str = "table of one node, from a Parquet file";
const NODES: usize = 4;
const ROUNDS_MAX: u32 = 3;
/// Orders of keys, with the number of records at scale 1. The library takes minutes for ten million in random order.
const ORDERS: [(&str, f64); 2] = [("ascending", 10e6), ("random", 2e6)];

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let scale = settings.scale_or(1.0);
    let folder = places::data().join("range");
    let mut results = Results::open(&settings.results(), NAME, &["keys"], FIGURES)?;
    for (order, records) in ORDERS {
        let records = (records * scale) as usize;
        let count = records.to_string();
        let file = parquet(&folder, records)?;
        let table = Node::start(None, &format!("t={}", file.display()), true)?;
        let from_file = Node::start(None, &format!("t={}", file.display()), false)?;
        let figures = |process: Process| -> Result<Vec<f64>> {
            let found: RangeResult = process.result()?;
            let RangeResult { load_seconds, first_scan_seconds, scan_seconds, get_us, .. } = found;
            let [absent_us, later] =
                [found.absent_us, found.later_scan_seconds].map(|value| value.unwrap_or(f64::NAN));
            Ok(vec![load_seconds, first_scan_seconds, scan_seconds, get_us, absent_us, later])
        };
        let ours = || {
            // New folders and new nodes: nothing is in their memory.
            let temporary = tempfile::tempdir_in(&folder)?;
            let mut nodes: Vec<Node> = Vec::new();
            for number in 0..NODES {
                let data = temporary.path().join(number.to_string());
                let first = nodes.first().map(|first| first.port);
                nodes.push(Node::start_range(&data, first)?);
            }
            figures(Part::spawn(None, &["range", &nodes[0].port.to_string(), &count, order])?)
        };
        let library = || {
            let folder = folder.display().to_string();
            figures(Part::spawn(None, &["library", &folder, &count, order])?)
        };
        let scan = |node: &Node| {
            let port = node.port.to_string();
            let fetch = ["fetch", "127.0.0.1", &port, "select * from t", "--tcp", "--threads", "many"];
            let result: TransferResult = Part::spawn(None, &fetch)?.result()?;
            let seconds = result.whole(records as u64)?.seconds;
            Ok(vec![f64::NAN, f64::NAN, seconds, f64::NAN, f64::NAN, f64::NAN])
        };
        let contenders = vec![
            Contender::new(OURS, ours).rounds_max(ROUNDS_MAX),
            Contender::new(LIBRARY, library).rounds_max(ROUNDS_MAX),
            Contender::new(TABLE, || scan(&table)),
            Contender::new(PARQUET, || scan(&from_file)),
        ];
        let note = format!("{records} records");
        let place = Case { values: vec![order.to_owned()], scale, note };
        results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
    }
    let rate = |figure: usize, order: &str, other: &str| {
        results.summary(&[order], other, figure).median / results.summary(&[order], OURS, figure).median
    };
    let later = |order: &str| {
        results.summary(&[order], TABLE, SCAN).median / results.summary(&[order], OURS, LATER).median
    };
    let trips = |order: &str| {
        results.summary(&[order], OURS, ONE).median / results.summary(&[order], OURS, NONE).median
    };
    let tables = ORDERS.map(|(order, _)| {
        let notes = results.notes(&[order]).get(1..).unwrap_or_default().join("; ");
        format!("Keys in {order} order, {notes}:\n\n{}", tables::contenders(&results, &[order], None))
    });
    Report {
        name: NAME,
        page: Page::Range,
        title: "Load, scan and single records of a range file",
        text: format!(
            "Records of 100 bytes, a key of 8 and a value that does not compress, into a new range file over {NODES} nodes on this host: all processes share its processors and its disk. `load` is from the first \
             insert to the last acknowledgement, with splits on the way; `scan` reads all records over loopback TCP, the \
             first time right after the load, then three times more (median); `one record` is the median of 2000 lookups \
             on open connections, `no record` of lookups whose key no block can have, which is a round trip and all but the \
             reading. redb alone does the same in one process without a network, a transaction with a sync for each 65,536 \
             records. Load rate as a multiple of redb's: {:.2} with ascending keys (target: at least 0.5), {:.2} with keys in \
             random order. Scan rate as a multiple of the table's in memory: {:.2} and {:.2} (target: at least 0.7), \
             {:.2} and {:.2} after a pause of 10 seconds, in which nodes merge what scans had to merge (`later scan`), and of \
             the table's from a Parquet file: {:.2} and {:.2}. One record in times of no record: {:.2} and {:.2} (target: at \
             most 1.5).",
            rate(LOAD, ORDERS[0].0, LIBRARY),
            rate(LOAD, ORDERS[1].0, LIBRARY),
            rate(SCAN, ORDERS[0].0, TABLE),
            rate(SCAN, ORDERS[1].0, TABLE),
            later(ORDERS[0].0),
            later(ORDERS[1].0),
            rate(SCAN, ORDERS[0].0, PARQUET),
            rate(SCAN, ORDERS[1].0, PARQUET),
            trips(ORDERS[0].0),
            trips(ORDERS[1].0),
        ),
        tables: tables.to_vec(),
        plots: Vec::new(),
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}

/// A file with the records, for the table.
fn parquet(folder: &Path, records: usize) -> Result<PathBuf> {
    let file = folder.join(format!("{records}.parquet"));
    if !file.exists() {
        std::fs::create_dir_all(folder)?;
        let batches = Records::new(records, KeyOrder::Ascending).batches()?;
        let schema = batches.first().ok_or("no records")?.schema();
        let mut writer = ArrowWriter::try_new(File::create(&file)?, schema, None)?;
        batches.iter().try_for_each(|batch| writer.write(batch))?;
        writer.close()?;
    }
    Ok(file)
}
