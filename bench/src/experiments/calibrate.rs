//! Links measured by `lightship calibrate`, the plans of `lightship tune` for them, and the time of a driver
//! with its default fetch size and with the tuned one.

use lab::Lab;
use serde_json::Value;

use super::servers::{Database, built, postgres_peer};
use super::under;
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::{Data, DataFile};
use crate::links::LinkedHosts;
use crate::peers::Peers;
use crate::places;
use crate::plot::{Axis, Dots, DotsPanel};
use crate::process::{Node, Process};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results, Run};
use crate::settings::Settings;
use crate::tables;

const NAME: &str = "calibrate";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 2, range: true },
    Figure { name: "pairs", digits: 0, range: false },
    Figure { name: "round trip ms", digits: 2, range: false },
    Figure { name: "MB/s", digits: 1, range: false },
    Figure { name: "fit error %", digits: 1, range: false },
    Figure { name: "rows a batch", digits: 0, range: false },
    Figure { name: "message bytes", digits: 0, range: false },
    Figure { name: "in flight", digits: 0, range: false },
    Figure { name: "predicted seconds", digits: 2, range: false },
];
const ROWS_OF_BATCH: usize = 5;
/// The contender that is a measurement, not a transfer.
const CALIBRATE: &str = "calibrate and tune";
const PSYCOPG: &str = "psycopg, its own 2,000 rows";
const TUNED: &str = "psycopg, rows as tuned";
const SQL: &str = "select * from lineitem";

/// Runs `lightship` on the near host, and returns its JSON.
fn ask(course: &LinkedHosts, arguments: &[&str]) -> Result<Value> {
    let arguments = [&["--json"], arguments].concat();
    Process::spawn(Some(course.near()), places::lightship()?, arguments)?.output()
}

fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Measures a link, saves its profile, and plans the fetch of the table.
fn calibrate(course: &LinkedHosts, uri: &str) -> Result<Vec<f64>> {
    let found = ask(course, &["calibrate", uri, "--seconds", "2"])?;
    let tuned = ask(course, &["tune", uri, SQL])?;
    let pairs = found.get("samples").and_then(Value::as_array).map_or(0, Vec::len);
    Ok(vec![
        number(&found, "/seconds"),
        pairs as f64,
        number(&found, "/rtt_seconds") * 1e3,
        number(&found, "/bytes_per_second") / 1e6,
        number(&found, "/calibration/relative_error") * 100.0,
        number(&tuned, "/plan/batch_rows"),
        number(&tuned, "/plan/message_bytes"),
        number(&tuned, "/plan/window_batches"),
        number(&tuned, "/plan/predicted_seconds"),
    ])
}

fn measure(
    settings: &Settings,
    course: &LinkedHosts,
    name: &str,
    scale: f64,
    uri: &str,
    results: &mut Results,
) -> Result<()> {
    let values = vec![course.link.clone(), name.to_owned()];
    let place = Case { values, scale, note: course.measured.clone() };
    let mut runs = Vec::new();
    for round in 1..=settings.rounds() {
        let values = calibrate(course, uri)?;
        eprintln!("{place}{round}/{}: {values:.2?}", settings.rounds());
        runs.push(Run { place: place.clone(), contender: CALIBRATE.into(), round, values });
    }
    results.add(runs)
}

/// Times a driver with its default fetch size, and with the tuned one.
fn drivers(
    settings: &Settings,
    course: &LinkedHosts,
    peers: &Peers,
    file: &DataFile,
    scale: f64,
    uri: &str,
    results: &mut Results,
) -> Result<()> {
    let values = vec![course.link.clone(), "PostgreSQL".to_owned()];
    let rows = results.summary(&values, CALIBRATE, ROWS_OF_BATCH).median;
    let place = Case { values, scale, note: course.measured.clone() };
    let contender = |name: &str, rows: f64| {
        let (uri, rows, whole) = (uri.to_owned(), rows.to_string(), file.rows);
        Contender::new(name, move || {
            let done = postgres_peer(course, peers, "postgres_rows.py", &[&uri, "lineitem", &rows], whole)?;
            Ok([vec![done.seconds], vec![f64::NAN; FIGURES.len() - 1]].concat())
        })
    };
    let contenders = vec![contender(PSYCOPG, 2000.0), contender(TUNED, rows.round())];
    results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)
}

fn report(results: &Results) -> Vec<String> {
    let places = results.places();
    let names: Vec<String> = places.iter().map(|place| place.join(", ")).collect();
    let rows: Vec<&str> = names.iter().map(String::as_str).collect();
    let columns: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
    let cell = |row: &str, column: &str| {
        let place = names.iter().position(|name| name == row).and_then(|at| places.get(at));
        let figure = FIGURES.iter().position(|figure| figure.name == column);
        let found = place.zip(figure).map(|(place, at)| results.summary(place, CALIBRATE, at).median);
        found.map_or(String::new(), |value| tables::number(value, 3))
    };
    let all =
        format!("### Measurements and plans\n\n{}", tables::grid("link, endpoint", &rows, &columns, cell));
    let drivers = places.iter().filter(|place| results.contenders(place).contains(&TUNED)).map(|place| {
        let columns = ["seconds", "of its own"];
        let own = results.median(place, PSYCOPG);
        let table = tables::grid("", &[PSYCOPG, TUNED], &columns, |row, column| match column {
            "seconds" => tables::spread(results.summary(place, row, 0), 2),
            _ => tables::number(results.median(place, row) / own, 2),
        });
        under(results, &format!("A driver, {}", place.join(", ")), place, &table)
    });
    std::iter::once(all).chain(drivers).collect()
}

fn plot(results: &Results) -> Result<String> {
    let places = results.places().into_iter().filter(|place| results.contenders(place).contains(&TUNED));
    let panels = places.map(|place| {
        let row =
            |name: &str| (name.to_owned(), vec![("seconds".to_owned(), results.summary(place, name, 0))]);
        DotsPanel { title: place.join(", "), rows: [PSYCOPG, TUNED].map(row).into() }
    });
    Ok(Dots { x: Axis::log("seconds"), panels: panels.collect() }.svg()?)
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    built()?;
    let peers = Peers::install()?;
    let lab = Lab::new()?;
    let mut results = Results::open(&settings.results(), NAME, &["link", "endpoint"], FIGURES)?;
    for link in settings.links(&["local", "fast", "lan", "wan", "slow"]) {
        let course = LinkedHosts::open(&lab, &link)?;
        let scale = settings.scale_or(if link == "slow" { 0.02 } else { 0.1 });
        let file = Data::Lineitem.file(scale)?;
        {
            let node = Node::start(Some(course.far()), &format!("lineitem={}", file.path.display()), true)?;
            let uri = format!("lightship://{}:{}?shm=false", course.far_address(), node.port);
            measure(settings, &course, "a node", scale, &uri, &mut results)?;
        }
        {
            let server = Database::start(&course, "hold-postgres", &file.path)?;
            let uri = server.uri_near(&course);
            measure(settings, &course, "PostgreSQL", scale, &uri, &mut results)?;
            drivers(settings, &course, &peers, &file, scale, &uri, &mut results)?;
        }
        let server = Database::start(&course, "hold-mariadb", &file.csv()?)?;
        measure(settings, &course, "MariaDB", scale, &server.uri_near(&course), &mut results)?;
    }
    Report {
        name: NAME,
        page: Page::Mind,
        title: "Measured links and tuned drivers",
        text: "`lightship calibrate` for two seconds and then `lightship tune URI 'select * from \
               lineitem'`, on one host, for a node, a PostgreSQL server and a MariaDB server on another. \
               The round trip is the shortest time from the request for a batch to its first row. The \
               fit error is the model's error on the samples that it was fitted to. For a database, a \
               batch is the result of one fetch from a cursor, and nothing else is in flight. Then \
               psycopg reads the table through a server-side cursor and discards the rows, with its \
               default fetch size and with the tuned one."
            .into(),
        tables: report(&results),
        plots: vec![(plot(&results)?, "psycopg with its default fetch size and with the tuned one")],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
