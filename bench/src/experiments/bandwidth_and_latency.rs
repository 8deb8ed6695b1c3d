//! A million rows of lineitem over links that differ only in the round trip, or only in the bandwidth.

use lab::Lab;

use super::servers::{Database, MemoryServer, Peer, over, postgres_peer};
use super::{OURS, OVER_A_LINK, add_version, under};
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::links::LinkedHosts;
use crate::peers::{self, Peers};
use crate::plot::{Axis, Lines, LinesPanel, Series};
use crate::report::{self, Page, Report};
use crate::results::{Case, Results};
use crate::settings::Settings;
use crate::tables::{self, Ratio, Standing};

const MILLION_ROWS_AT_SCALE_1: f64 = 6.001215;
/// A million rows.
const SCALE: f64 = 0.1666;
const COPY: &str = "PostgreSQL, COPY BINARY";
/// Rounds of the peers on links where a run takes minutes.
const SLOW_ROUNDS: u32 = 2;
const SLOW_MBIT: f64 = 10.0;

/// A sweep over links that differ in one dimension.
struct Sweep {
    name: &'static str,
    title: &'static str,
    text: &'static str,
    /// Name of the dimension, and label of the axis.
    dimension: &'static [&'static str],
    /// Values of the dimension, each with its link.
    links: &'static [(f64, &'static str)],
}

/// 100 Mbit/s: TCP fills it at each of these round trips, and every delay shaper keeps up.
const LATENCY: Sweep = Sweep {
    name: "latency",
    title: "Latency",
    text: "over links of 100 Mbit/s with different round trips.",
    dimension: &["round trip, ms"],
    links: &[(0.1, "100mbit,0.05ms"), (1.0, "100mbit,0.5ms"), (10.0, "100mbit,5ms"), (100.0, "100mbit,50ms")],
};

const BANDWIDTH: Sweep = Sweep {
    name: "bandwidth",
    title: "Bandwidth",
    text: "over links without delay with different bandwidths. At 10 Mbit/s the peers run twice.",
    dimension: &["bandwidth, Mbit/s"],
    links: &[(10.0, "10mbit"), (100.0, "100mbit"), (1000.0, "1000mbit")],
};

pub(crate) fn latency(settings: &Settings) -> Result<()> {
    sweep(&LATENCY, settings)
}

pub(crate) fn bandwidth(settings: &Settings) -> Result<()> {
    sweep(&BANDWIDTH, settings)
}

fn sweep(sweep: &Sweep, settings: &Settings) -> Result<()> {
    let load = report::load();
    let peers = Peers::install()?;
    let lab = Lab::new()?;
    let mut results = Results::open(&settings.results(), sweep.name, sweep.dimension, OVER_A_LINK)?;
    let mut versions = peers::versions(&["pyarrow", "psycopg"]);
    let all: Vec<_> = sweep.links.iter().map(|(_, link)| *link).collect();
    let wanted = settings.links(&all);
    for (value, link) in sweep.links.iter().filter(|(_, link)| wanted.iter().any(|wanted| wanted == link)) {
        let course = LinkedHosts::open(&lab, link)?;
        let slow = sweep.name == BANDWIDTH.name && *value <= SLOW_MBIT;
        if let Some(version) = measure(settings, &course, &peers, *value, slow, &mut results)? {
            add_version(&mut versions, &version);
        }
    }
    let standing = Standing { ratio: Ratio::Ours(OURS), targets: &[] };
    let section = |place: &[String]| {
        let table = tables::contenders(&results, place, Some(&standing));
        under(&results, &format!("{}: {}", sweep.dimension[0], place[0]), place, &table)
    };
    Report {
        name: sweep.name,
        page: Page::ColumnarProtocol,
        title: sweep.title,
        text: format!(
            "{:.1} million rows of lineitem {} Lightship (codec `auto`) and Arrow Flight transfer from \
             memory to Arrow batches. COPY BINARY reads from a PostgreSQL server with the table in its \
             cache; the client discards the bytes.",
            settings.scale_or(SCALE) * MILLION_ROWS_AT_SCALE_1,
            sweep.text
        ),
        tables: results.places().into_iter().map(section).collect(),
        plots: vec![(plot(sweep, &results)?, "Seconds by contender")],
        versions,
        load,
        settings,
    }
    .publish()
}

fn measure(
    settings: &Settings,
    course: &LinkedHosts,
    peers: &Peers,
    value: f64,
    slow: bool,
    results: &mut Results,
) -> Result<Option<String>> {
    let scale = settings.scale_or(SCALE);
    let file = Data::Lineitem.file(scale)?;
    let memory = MemoryServer::start(course, &file)?;
    let flight = Peer::flight(course, peers, &file)?;
    let server =
        settings.wants(COPY).then(|| Database::start(course, "hold-postgres", &file.path)).transpose()?;
    let (memory, flight) = (&memory, &flight);
    let rounds_max = if slow { SLOW_ROUNDS } else { u32::MAX };
    let mut contenders = vec![Contender::new(OURS, move || over(course, || Ok(memory.fetch(&[])?.seconds)))];
    for (name, codec) in [("Arrow Flight, none", "none"), ("Arrow Flight, zstd", "zstd")] {
        let get = move || over(course, || Ok(flight.get(codec)?.seconds));
        contenders.push(Contender::new(name, get).rounds_max(rounds_max));
    }
    if let Some(server) = &server {
        let uri = server.uri_near(course);
        let copy = move || {
            let copied = postgres_peer(course, peers, "postgres_copy.py", &[&uri, "lineitem"], file.rows)?;
            Ok(copied.seconds)
        };
        contenders.push(Contender::new(COPY, move || over(course, &copy)).rounds_max(rounds_max));
    }
    let place = Case { values: vec![value.to_string()], scale, note: course.measured.clone() };
    results.add(Comparison { figures: OVER_A_LINK, contenders }.run(settings, &place)?)?;
    Ok(server.map(|server| server.held.version))
}

fn plot(sweep: &Sweep, results: &Results) -> Result<String> {
    let mut names = Vec::new();
    for name in results.places().into_iter().flat_map(|place| results.contenders(place)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let series = |name: &str| {
        let point =
            |place: &[String]| (place[0].parse().unwrap_or(f64::NAN), results.summary(place, name, 0));
        Series { name: name.into(), points: results.places().into_iter().map(point).collect() }
    };
    let series = names.into_iter().map(series).collect();
    let panel = LinesPanel { title: sweep.title.into(), y: Axis::log("seconds"), series };
    Ok(Lines::new(Axis::log(sweep.dimension[0]), vec![panel]).svg()?)
}
