//! What the way to a node adds to a small query.

use crate::Result;
use crate::comparison::{Comparison, Contender, Figure};
use crate::parts::{Latencies, Part};
use crate::process::{Node, Process};
use crate::report::{self, Report};

const FIGURES: &[Figure] = &[
    Figure { name: "median us", digits: 0, range: true },
    Figure { name: "99th percentile us", digits: 0, range: true },
];
const SQL: &str = "select 1";
const COUNT: &str = "2000";

fn figures(process: Process) -> Result<Vec<f64>> {
    let Latencies { median_us, p99_us } = process.result()?;
    Ok(vec![median_us, p99_us])
}

pub(crate) fn run(rounds: u32) -> Result<()> {
    let load = report::load();
    let node = Node::start(false)?;
    let port = node.port.to_string();
    let contenders = vec![
        Contender::new("round trip to a node", || figures(Part::spawn(&["round-trips", &port, SQL, COUNT])?)),
        Contender::new("engine alone", || figures(Part::spawn(&["engine", SQL, COUNT])?)),
    ];
    let mut comparison = Comparison { figures: FIGURES, contenders };
    comparison.run(rounds)?;
    let added = comparison.median(0, 0) - comparison.median(1, 0);
    Report {
        name: "latency",
        title: "Round trip of a small query",
        text: format!(
            "`{SQL}`, {COUNT} times a round after 200 uncounted: on an open connection to a node over loopback \
             TCP, from the query to the end of its result, and in an engine inside the process, planned and \
             collected. The way adds {added:.0} us to the median; it is to add no more than 300."
        ),
        versions: Vec::new(),
        rounds,
        load,
        comparison: &comparison,
    }
    .publish()
}
