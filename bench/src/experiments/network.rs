//! The network alone: throughput and latency by connections and message size, with `lightship netbench`.

use std::fs;
use std::path::{Path, PathBuf};

use lab::Lab;
use lightship_netbench::{Latency, Plateau, ResultTable, Row, Settings as Netbench, figures};

use crate::links::LinkedHosts;
use crate::process::Process;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results, Run};
use crate::settings::Settings;
use crate::{Result, places, tables};

const NAME: &str = "network";
const FIGURES: &[Figure] = &[
    Figure { name: "MB/s", digits: 2, range: false },
    Figure { name: "MB/s the other way", digits: 2, range: false },
    Figure { name: "messages/s", digits: 0, range: false },
    Figure { name: "latency p50 us", digits: 0, range: false },
    Figure { name: "latency p99 us", digits: 0, range: false },
    Figure { name: "latency p99.9 us", digits: 0, range: false },
    Figure { name: "loaded latency p50 us", digits: 0, range: false },
    Figure { name: "loaded latency p99 us", digits: 0, range: false },
    Figure { name: "sender % of a core", digits: 0, range: false },
    Figure { name: "receiver % of a core", digits: 0, range: false },
    Figure { name: "failed connections", digits: 0, range: false },
];
const LINKS: [&str; 3] = ["fast", "lan", "wan"];
const DIRECTIONS: [&str; 2] = ["one way", "both ways"];
/// The grid of the shuffle's source: 11 numbers of connections and 13 message sizes.
const CONNECTIONS: &str = "2..2048";
const MESSAGE_BYTES: &str = "256..1MiB";
/// Over `wan`, where the messages of more connections take minutes for each pair.
const WAN_CONNECTIONS: &str = "2..256";
/// The pairs with `--quick`.
const FEW_CONNECTIONS: &str = "2,64";
const FEW_MESSAGE_BYTES: &str = "4KiB,1MiB";
/// Seconds of each phase of a pair.
const SECONDS: f64 = 0.4;
const NETBENCH: &str = "netbench";
/// The plots on the page, of each link and direction.
const PLOTS: [(&str, &str); 5] = [
    ("throughput-heat.svg", "Throughput by connections and message size"),
    ("throughput-by-message-size.svg", "Throughput and messages by message size"),
    ("latency-by-message-size.svg", "Latency by message size"),
    ("loaded-latency-by-message-size.svg", "Loaded latency by message size"),
    ("cpu-by-message-size.svg", "Processors by message size"),
];

/// A file in the folder of a sweep that has ended.
const ENDED: &str = "ended";

/// Runs a sweep between two hosts, or continues one that was interrupted, and returns its rows.
fn sweep(hosts: &LinkedHosts, quick: bool, both_ways: bool, folder: &Path) -> Result<Vec<Row>> {
    if folder.join(ENDED).exists() {
        fs::remove_dir_all(folder)?;
    }
    let program = places::lightship()?;
    let mut server = Process::spawn(
        Some(hosts.far()),
        &program,
        ["--json", "netbench", "serve", "--listen", "0.0.0.0:4271"],
    )?;
    server.line()?;
    let (address, seconds) = (hosts.far_address(), SECONDS.to_string());
    let output = folder.display().to_string();
    let mut arguments = vec!["--json", "netbench", "sweep", &address, "--output", &output];
    let (connections, message_bytes) = match &*hosts.link {
        _ if quick => (FEW_CONNECTIONS, FEW_MESSAGE_BYTES),
        "wan" => (WAN_CONNECTIONS, MESSAGE_BYTES),
        _ => (CONNECTIONS, MESSAGE_BYTES),
    };
    arguments.extend(["--connections", connections, "--message-bytes", message_bytes]);
    arguments.extend(["--seconds", &seconds]);
    arguments.extend(both_ways.then_some("--both-ways"));
    let mut sweep = Process::spawn(Some(hosts.near()), &program, &arguments)?;
    let mut pairs = 0;
    // The last object has the plateau.
    while !sweep.line()?.starts_with("{\"cells\"") {
        pairs += 1;
        if pairs % 11 == 0 {
            eprintln!("{} {pairs} pairs", hosts.link);
        }
    }
    fs::write(folder.join(ENDED), "")?;
    let settings = Netbench { seconds: SECONDS, latency_seconds: SECONDS, both_ways, ..Netbench::default() };
    let table = ResultTable::open(folder.join("netbench.csv"))?;
    Ok(table.rows(&format!("{address}:4271"), &settings))
}

fn values(row: &Row) -> Vec<f64> {
    let mega = |rate: Option<f64>| rate.map_or(f64::NAN, |rate| rate / 1e6);
    let us = |latency: Option<Latency>, of: fn(&Latency) -> f64| latency.as_ref().map_or(f64::NAN, of);
    vec![
        mega(row.throughput_bytes_per_second),
        mega(row.returned_bytes_per_second),
        row.messages_per_second.unwrap_or(f64::NAN),
        us(row.latency, |latency| latency.p50_us),
        us(row.latency, |latency| latency.p99_us),
        us(row.latency, |latency| latency.p999_us),
        us(row.loaded_latency, |latency| latency.p50_us),
        us(row.loaded_latency, |latency| latency.p99_us),
        row.client_cpu.process_percent.unwrap_or(f64::NAN),
        row.server_cpu.process_percent.unwrap_or(f64::NAN),
        f64::from(row.latency_failures.max(row.flood_failures)),
    ]
}

/// Where the sweeps keep their rows, so that an interrupted one continues.
fn folder(link: &str, direction: &str) -> PathBuf {
    places::data().join(NAME).join(format!("{link}-{}", direction.replace(' ', "-")))
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let lab = Lab::new()?;
    let dimensions = &["link", "direction", "connections", "message bytes"];
    let mut results = Results::open(&settings.results(), NAME, dimensions, FIGURES)?;
    let mut plots = Vec::new();
    let links = if settings.wants(NETBENCH) { settings.links(&LINKS) } else { Vec::new() };
    for link in links {
        let hosts = LinkedHosts::open(&lab, &link)?;
        for direction in DIRECTIONS {
            let folder = folder(&link, direction);
            for row in sweep(&hosts, settings.quick, direction == "both ways", &folder)? {
                let (connections, bytes) = (row.cell.connections, row.cell.message_bytes);
                let of = [link.clone(), direction.into(), connections.to_string(), bytes.to_string()];
                let place = Case { values: of.to_vec(), scale: 0.0, note: hosts.measured.clone() };
                let contender = NETBENCH.to_owned();
                results.add(vec![Run { place, contender, round: 1, values: values(&row) }])?;
            }
        }
    }
    for link in results.values(0) {
        // Those of the last run on this machine: the table of the page has all links.
        let folder = folder(link, DIRECTIONS[0]);
        let Ok(table) = ResultTable::open(folder.join("netbench.csv")) else { continue };
        let usual = Netbench { seconds: SECONDS, latency_seconds: SECONDS, ..Netbench::default() };
        let Some(hosts) = table.hosts().next().map(str::to_owned) else { continue };
        for figure in figures(&table.rows(&hosts, &usual))? {
            if let Some((_, shows)) = PLOTS.iter().find(|(file, _)| *file == figure.file) {
                plots.push((figure.svg, format!("{shows}, {link}")));
            }
        }
    }
    Report {
        name: NAME,
        page: Page::Network,
        title: "Connections and message sizes",
        text: format!(
            "`lightship netbench sweep` between two hosts of the lab, over plain TCP: 11 numbers of connections and 13 message \
             sizes, each for {SECONDS} s of latency and {SECONDS} s of load. Throughput is counted at the receiver, by its clock. \
             Both ways: the server sends as much as it can over the same connections at the same time. Latency is that of one message \
             at a time on each connection; loaded latency that of one more connection, while all others are saturated. \
             Both hosts share the two processors of this machine. {}.",
            notes(&results)
        ),
        tables: [vec![plateaus(&results)], DIRECTIONS.iter().flat_map(|way| grids(&results, way)).collect()].concat(),
        plots: plots.iter().map(|(svg, shows)| (svg.clone(), shows.as_str())).collect(),
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}

fn notes(results: &Results) -> String {
    let note = |link: &&str| {
        let place = results.places().into_iter().find(|place| place[0] == **link)?;
        Some(format!("{link}: {}", results.notes(place).join(", ")))
    };
    results.values(0).iter().filter_map(note).collect::<Vec<_>>().join("; ")
}

/// The rows of a link and a direction, as far as the plateau needs them.
fn rows(results: &Results, link: &str, direction: &str) -> Vec<Row> {
    let places = results.places().into_iter().filter(|place| place[0] == link && place[1] == direction);
    let row = |place: &[String]| {
        let of = |figure: usize| results.summary(place, NETBENCH, figure).median;
        let (connections, message_bytes) = (place[2].parse().ok()?, place[3].parse().ok()?);
        let mut row = Row::of(connections, message_bytes);
        row.throughput_bytes_per_second = Some(of(0) * 1e6).filter(|rate| rate.is_finite());
        row.flood_failures = of(10) as u32;
        Some(row)
    };
    places.filter_map(row).collect()
}

fn plateaus(results: &Results) -> String {
    let mut courses: Vec<String> = Vec::new();
    for place in results.places() {
        let course = format!("{}, {}", place[0], place[1]);
        if !courses.contains(&course) {
            courses.push(course);
        }
    }
    let columns =
        ["connections", "up to", "message bytes", "MB/s", "best MB/s", "failed connections, of all pairs"];
    let cell = |course: &str, column: &str| {
        let Some((link, direction)) = course.split_once(", ") else { return String::new() };
        let rows = rows(results, link, direction);
        let failed: u32 = rows.iter().map(|row| row.flood_failures).sum();
        let Some(plateau) = Plateau::of(&rows) else { return String::new() };
        match column {
            "connections" => plateau.connections.to_string(),
            "up to" => plateau.connections_max.map_or_else(|| "all measured".into(), |most| most.to_string()),
            "message bytes" => plateau.message_bytes.to_string(),
            "MB/s" => tables::number(plateau.bytes_per_second / 1e6, 1),
            "best MB/s" => tables::number(plateau.best_bytes_per_second / 1e6, 1),
            _ => failed.to_string(),
        }
    };
    format!(
        "### The plateau\n\nThe fewest connections, with them the smallest message, and the most connections, within 5% of the best \
         throughput. After `sweep --keep`, `lightship node` takes the most, at most 512, as its default for `--connections-between-nodes`: \
         with fewer, rows are forwarded for nothing, with more, all are slower.\n\n{}",
        tables::grid("link, direction", &courses, &columns, cell)
    )
}

/// Throughput and latency of a direction, by link.
fn grids(results: &Results, direction: &str) -> Vec<String> {
    let has = |link: &str| results.places().iter().any(|place| place[0] == link && place[1] == direction);
    let links: Vec<String> =
        results.values(0).into_iter().filter(|link| has(link)).map(str::to_owned).collect();
    let (counts, sizes) = (results.values(2), results.values(3));
    let grid = |link: &String, title: &str, figure: usize, digits: usize| {
        let cell = |size: &str, count: &str| {
            let place = [link.as_str(), direction, count, size];
            tables::number(results.summary(&place, NETBENCH, figure).median, digits)
        };
        format!(
            "### {title}, {link}, {direction}\n\n{}",
            tables::grid("message bytes \\ connections", &sizes, &counts, cell)
        )
    };
    let of_link = |link: &String| {
        let mut tables = vec![grid(link, "Throughput, MB/s", 0, 1)];
        if direction == DIRECTIONS[1] {
            tables.push(grid(link, "Throughput the other way, MB/s", 1, 1));
        }
        tables.push(grid(link, "Latency, median, us", 3, 0));
        tables.push(grid(link, "Loaded latency, median, us", 6, 0));
        tables
    };
    links.iter().flat_map(of_link).collect()
}
