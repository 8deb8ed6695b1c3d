//! The time that the connection to a node adds to a small query.

use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::parts::{Latencies, Part};
use crate::process::{Node, Process};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::tables;

const NAME: &str = "round-trip";
const FIGURES: &[Figure] = &[
    Figure { name: "median us", digits: 0, range: true },
    Figure { name: "99th percentile us", digits: 0, range: true },
];
const SQL: &str = "select 1";
const COUNT: &str = "2000";
const NODE: &str = "round trip to a node";
const ENGINE: &str = "engine alone";
/// The query reads no table; the node needs one to start.
const SCALE: f64 = 0.01;

fn figures(process: Process) -> Result<Vec<f64>> {
    let Latencies { median_us, p99_us } = process.result()?;
    Ok(vec![median_us, p99_us])
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let table = format!("lineitem={}", Data::Lineitem.file(SCALE)?.argument());
    let node = Node::start(None, &table, false)?;
    let port = node.port.to_string();
    let contenders = vec![
        Contender::new(NODE, || figures(Part::spawn(None, &["round-trips", &port, SQL, COUNT])?)),
        Contender::new(ENGINE, || figures(Part::spawn(None, &["engine", SQL, COUNT])?)),
    ];
    let mut results = Results::open(&settings.results(), NAME, &[], FIGURES)?;
    results.add(Comparison { figures: FIGURES, contenders }.run(settings, &Case::default())?)?;
    let median = |contender| results.median::<&str>(&[], contender);
    let added = median(NODE) - median(ENGINE);
    Report {
        name: NAME,
        page: Page::Transfer,
        title: "Round trip of a small query",
        text: format!(
            "`{SQL}`, {COUNT} times a round after 200 warm-up queries: on an open connection to a node over \
             loopback TCP, from the query to the end of its result, and in an engine inside the process, \
             planned and collected. The connection adds {added:.0} us to the median. Target: at most 300 us."
        ),
        tables: vec![tables::contenders::<&str>(&results, &[], None)],
        plots: Vec::new(),
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
