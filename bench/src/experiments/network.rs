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
/// The columns of the data file, in the order of [`values`]: all that a plot or a table needs.
const FIGURES: &[Figure] = &[
    Figure { name: "MB/s", digits: 2, range: false },
    Figure { name: "MB/s the other way", digits: 2, range: false },
    Figure { name: "messages/s", digits: 0, range: false },
    Figure { name: "latency p1 us", digits: 0, range: false },
    Figure { name: "latency p25 us", digits: 0, range: false },
    Figure { name: "latency p50 us", digits: 0, range: false },
    Figure { name: "latency p75 us", digits: 0, range: false },
    Figure { name: "latency p99 us", digits: 0, range: false },
    Figure { name: "latency p99.9 us", digits: 0, range: false },
    Figure { name: "loaded latency p1 us", digits: 0, range: false },
    Figure { name: "loaded latency p25 us", digits: 0, range: false },
    Figure { name: "loaded latency p50 us", digits: 0, range: false },
    Figure { name: "loaded latency p75 us", digits: 0, range: false },
    Figure { name: "loaded latency p99 us", digits: 0, range: false },
    Figure { name: "loaded latency p99.9 us", digits: 0, range: false },
    Figure { name: "sender % of a core", digits: 0, range: false },
    Figure { name: "sender's host %", digits: 0, range: false },
    Figure { name: "receiver % of a core", digits: 0, range: false },
    Figure { name: "receiver's host %", digits: 0, range: false },
    Figure { name: "failed connections", digits: 0, range: false },
];
/// Columns that tables show, by their place in [`FIGURES`].
const RATE: usize = 0;
const RATE_BACK: usize = 1;
const LATENCY: usize = 5;
const LOADED_LATENCY: usize = 11;
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

/// Percentiles of the latency, in the order of the columns.
const PERCENTILES: [fn(&mut Latency) -> &mut f64; 6] = [
    |latency| &mut latency.p1_us,
    |latency| &mut latency.p25_us,
    |latency| &mut latency.p50_us,
    |latency| &mut latency.p75_us,
    |latency| &mut latency.p99_us,
    |latency| &mut latency.p999_us,
];

/// A row of the data file; what was not measured is NaN.
fn values(row: &Row) -> Vec<f64> {
    let or_nan = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let mut values = vec![
        or_nan(row.throughput_bytes_per_second) / 1e6,
        or_nan(row.returned_bytes_per_second) / 1e6,
        or_nan(row.messages_per_second),
    ];
    for mut latency in [row.latency, row.loaded_latency] {
        values.extend(PERCENTILES.map(|of| latency.as_mut().map_or(f64::NAN, |latency| *of(latency))));
    }
    for cpu in [row.client_cpu, row.server_cpu] {
        values.extend([or_nan(cpu.process_percent), or_nan(cpu.system_percent)]);
    }
    values.push(f64::from(row.latency_failures.max(row.flood_failures)));
    values
}

/// The row of a pair that has these [`values`].
fn row(connections: u32, message_bytes: u32, values: &[f64]) -> Row {
    let mut values = values.iter().copied();
    let mut next = || values.next().filter(|value| !value.is_nan());
    let mut row = Row::of(connections, message_bytes);
    row.throughput_bytes_per_second = next().map(|rate| rate * 1e6);
    row.returned_bytes_per_second = next().map(|rate| rate * 1e6);
    row.messages_per_second = next();
    for latency in [&mut row.latency, &mut row.loaded_latency] {
        for of in PERCENTILES {
            if let Some(value) = next() {
                *of(latency.get_or_insert_default()) = value;
            }
        }
    }
    for cpu in [&mut row.client_cpu, &mut row.server_cpu] {
        (cpu.process_percent, cpu.system_percent) = (next(), next());
    }
    row.flood_failures = next().unwrap_or(0.0) as u32;
    row
}

/// Where the sweeps keep their rows, so that an interrupted one continues.
fn folder(quick: bool, link: &str, direction: &str) -> PathBuf {
    let data = if quick { places::quick() } else { places::data() };
    data.join(NAME).join(format!("{link}-{}", direction.replace(' ', "-")))
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
            let folder = folder(settings.quick, &link, direction);
            for row in sweep(&hosts, settings.quick, direction == "both ways", &folder)? {
                let (connections, bytes) = (row.cell.connections, row.cell.message_bytes);
                let of = [link.clone(), direction.into(), connections.to_string(), bytes.to_string()];
                let place = Case { values: of.to_vec(), scale: 0.0, note: hosts.measured.clone() };
                let contender = NETBENCH.to_owned();
                results.add(vec![Run { place, contender, round: 1, values: values(&row) }])?;
            }
        }
    }
    for [link, direction] in results.courses() {
        for figure in figures(&rows(&results, &link, &direction))? {
            if let Some((_, shows)) = PLOTS.iter().find(|(file, _)| *file == figure.file) {
                plots.push((figure.svg, format!("{shows}, {link}, {direction}")));
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
             Both ways: the server sends as much as it can over the same connections at the same time, which counts as it arrives, read or not; \
             the plots show the throughput from the client to the server. Latency is that of one message \
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

/// The rows of a link and a direction.
fn rows(results: &Results, link: &str, direction: &str) -> Vec<Row> {
    let places = results.places().into_iter().filter(|place| place[0] == link && place[1] == direction);
    let of = |place: &[String]| {
        let values: Vec<f64> =
            (0..FIGURES.len()).map(|figure| results.summary(place, NETBENCH, figure).median).collect();
        Some(row(place[2].parse().ok()?, place[3].parse().ok()?, &values))
    };
    places.filter_map(of).collect()
}

fn plateaus(results: &Results) -> String {
    let courses: Vec<String> = results.courses().iter().map(|course| course.join(", ")).collect();
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
         throughput. That is the second best number of connections, because a link may let a burst pass. After `sweep --keep`, `lightship node` takes the most, at most 512, as its default for `--connections-between-nodes`: \
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
        let mut tables = vec![grid(link, "Throughput, MB/s", RATE, 1)];
        if direction == DIRECTIONS[1] {
            tables.push(grid(link, "Throughput the other way, MB/s", RATE_BACK, 1));
        }
        tables.push(grid(link, "Latency, median, us", LATENCY, 0));
        tables.push(grid(link, "Loaded latency, median, us", LOADED_LATENCY, 0));
        tables
    };
    links.iter().flat_map(of_link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written() {
        let written: Vec<f64> = (1..=FIGURES.len()).map(|value| value as f64).collect();
        assert_eq!(values(&row(2, 256, &written)), written);
        // The columns that tables show.
        assert_eq!(FIGURES[LATENCY].name, "latency p50 us");
        assert_eq!(FIGURES[LOADED_LATENCY].name, "loaded latency p50 us");
        assert_eq!(FIGURES[RATE_BACK].name, "MB/s the other way");
        // Nothing was measured.
        let none = row(2, 256, &vec![f64::NAN; FIGURES.len()]);
        assert_eq!(none, Row::of(2, 256));
        assert_eq!(values(&none).iter().filter(|value| !value.is_nan()).collect::<Vec<_>>(), [&0.0]);
    }
}
