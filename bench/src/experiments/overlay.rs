//! Shuffles over overlays: the original's and ours, in virtual time and over sockets. All figures come from
//! `lightship overlay`; each round has its own seed.

mod bound;
mod hosts;

use lightship_overlay::Traffic;
use serde_json::Value;

use crate::Result;
use crate::places;
use crate::plot::{Axis, Dots, DotsPanel, Lines, LinesPanel, Series};
use crate::process::Process;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results, Run};
use crate::settings::Settings;
use crate::tables::{grid, number, spread};

const NAME: &str = "overlay";
const FIGURES: &[Figure] = &[
    Figure { name: "forwards a message", digits: 3, range: true },
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "floor seconds", digits: 3, range: false },
    Figure { name: "sockets of a node, at most", digits: 0, range: false },
    Figure { name: "of them it opened directly", digits: 0, range: false },
    Figure { name: "reconnections", digits: 0, range: false },
    Figure { name: "bound of memory MB", digits: 0, range: false },
    Figure { name: "peak memory MB", digits: 0, range: false },
    Figure { name: "forwards of a node, most over mean", digits: 2, range: false },
    Figure { name: "forwards of a node, deviation over mean", digits: 2, range: false },
    Figure { name: "seconds of a node, least over most", digits: 2, range: false },
    Figure { name: "lower bound of forwards", digits: 3, range: false },
    Figure { name: "segments sent again", digits: 0, range: true },
    Figure { name: "processors busy", digits: 2, range: true },
];
const FORWARDS: usize = 0;
const SECONDS: usize = 1;
const FLOOR: usize = 2;
const SOCKETS: usize = 3;
const DIRECT: usize = 4;
const RECONNECTIONS: usize = 5;
const BOUND: usize = 6;
const PEAK: usize = 7;
const MOST: usize = 8;
const DEVIATION: usize = 9;
const EVENNESS: usize = 10;
const LEAST: usize = 11;
const AGAIN: usize = 12;
const BUSY: usize = 13;

/// Forwards per message in the best of the original's archived runs with this skew: 8 connections that a node opens, and 4
/// direct ones. The run that its text discusses, 10 and 2, has 0.772.
const BEST: f64 = 0.667;
/// Percent of every node's messages that go to the first nodes, as in that run.
const SKEW: &str = "--skew 2,7,10,4,11,6,15";
const SIMULATE: &str = "simulate --nodes 60 --messages-per-node 5000";
/// Over sockets of one machine.
const RUN: &str = "run --nodes 60 --messages-per-node 1000";
/// The same in virtual time.
const LIKE_RUN: &str = "simulate --nodes 60 --messages-per-node 1000 --period 100ms";
/// Ours: as many direct connections as pay off, open from the beginning, chosen by the predicted traffic
/// of all nodes.
const AUTO: &str = "--direct auto --policy predicted";

const SIMULATED: &str = "simulated";
const OVER_SOCKETS: &str = "over sockets";
const ALIKE: &str = "simulated alike";

/// A name, the arguments, and whether traffic is skewed.
type Row = (&'static str, &'static str, bool);

const FORWARDS_ROWS: [Row; 29] = [
    ("original 12", "--topology original --degree 12", false),
    ("original 10", "--topology original --degree 10", false),
    ("original 12, skewed", "--topology original --degree 12", true),
    ("original 10 + 2", "--topology original --degree 10 --direct 2 --warm --period 350ms", false),
    ("original 10 + 2, skewed", "--topology original --degree 10 --direct 2 --warm --period 350ms", true),
    ("original 8 + 4, skewed", "--topology original --degree 8 --direct 4 --warm --period 350ms", true),
    ("circulant 12", "--topology circulant --degree 12", false),
    ("circulant 12, skewed", "--topology circulant --degree 12", true),
    ("7 + 5", "--topology circulant --degree 7 --direct 5 --policy predicted", false),
    ("12 with direct ones", "--topology circulant --degree 12 {auto}", true),
    ("12, accepting 24", "--topology circulant --degree 12 {auto} --accept 24", true),
    ("12, accepting 12", "--topology circulant --degree 12 {auto} --accept 12", true),
    ("12, accepting 6", "--topology circulant --degree 12 {auto} --accept 6", true),
    ("12, through others'", "--topology circulant --degree 12 {auto} --through all", true),
    (
        "12, accepting 24, through others'",
        "--topology circulant --degree 12 {auto} --accept 24 --through all",
        true,
    ),
    (
        "10 + 1, accepting 1",
        "--topology circulant --degree 10 --direct 1 --policy predicted --accept 1",
        true,
    ),
    ("8 + 2, accepting 2", "--topology circulant --degree 8 --direct 2 --policy predicted --accept 2", true),
    ("circulant 24, skewed", "--topology circulant --degree 24", true),
    ("24 with direct ones", "--topology circulant --degree 24 {auto}", true),
    ("24, accepting 24", "--topology circulant --degree 24 {auto} --accept 24", true),
    ("24, accepting 12", "--topology circulant --degree 24 {auto} --accept 12", true),
    ("24, accepting 6", "--topology circulant --degree 24 {auto} --accept 6", true),
    ("24, through others'", "--topology circulant --degree 24 {auto} --through all", true),
    (
        "24, accepting 24, through others'",
        "--topology circulant --degree 24 {auto} --accept 24 --through all",
        true,
    ),
    (
        "16 + 4, accepting 4",
        "--topology circulant --degree 16 --direct 4 --policy predicted --accept 4",
        true,
    ),
    (
        "14 + 5, accepting 5",
        "--topology circulant --degree 14 --direct 5 --policy predicted --accept 5",
        true,
    ),
    (
        "12 + 6, accepting 6",
        "--topology circulant --degree 12 --direct 6 --policy predicted --accept 6",
        true,
    ),
    (
        "12 + 6, accepting 6, uniform",
        "--topology circulant --degree 12 --direct 6 --policy predicted --accept 6",
        false,
    ),
    (
        "10 + 7, accepting 7",
        "--topology circulant --degree 10 --direct 7 --policy predicted --accept 7",
        true,
    ),
];

const POLICIES_ROWS: [Row; 12] = [
    ("thesis", "--topology circulant --degree 7 --direct 5 --policy thesis", true),
    ("local", "--topology circulant --degree 7 --direct 5 --policy local", true),
    ("local, predicted", "--topology circulant --degree 7 --direct 5 --policy local --warm", true),
    ("global", "--topology circulant --degree 7 --direct 5 --policy global", true),
    ("global, predicted", "--topology circulant --degree 7 --direct 5 --policy predicted", true),
    ("local, accepting 24", "--topology circulant --degree 7 --direct 5 --policy local --accept 24", true),
    ("global, accepting 24", "--topology circulant --degree 7 --direct 5 --policy global --accept 24", true),
    (
        "global, predicted, accepting 24",
        "--topology circulant --degree 7 --direct 5 --policy predicted --accept 24",
        true,
    ),
    ("reserve of 2", "--topology circulant --degree 10 --direct 2 --policy predicted", true),
    ("reserve of 4", "--topology circulant --degree 8 --direct 4 --policy predicted", true),
    ("reserve of 6", "--topology circulant --degree 6 --direct 6 --policy predicted", true),
    ("reserve chosen", "--topology circulant --degree 12 {auto}", true),
];

/// Rates of one connection, and their part of a node's 10 Gbit/s.
const LINK_RATES: [(&str, f64); 6] = [
    ("10Gbit/s", 1.0),
    ("2500Mbit/s", 1.0 / 4.0),
    ("1250Mbit/s", 1.0 / 8.0),
    ("833Mbit/s", 1.0 / 12.0),
    ("625Mbit/s", 1.0 / 16.0),
    ("312Mbit/s", 1.0 / 32.0),
];
const WITHOUT: &str = "without";
const WITH: &str = "with direct ones";
const WITH_24: &str = "accepting 24";
const WITH_12: &str = "accepting 12";
const UNIFORM: &str = "uniform, without";
const UNIFORM_WITH: &str = "uniform, with";
const TIME_ROWS: [Row; 6] = [
    (WITHOUT, "--topology circulant --degree 12", true),
    (WITH, "--topology circulant --degree 12 {auto}", true),
    (WITH_24, "--topology circulant --degree 12 {auto} --accept 24", true),
    (WITH_12, "--topology circulant --degree 12 {auto} --accept 12", true),
    (UNIFORM, "--topology circulant --degree 12", false),
    (UNIFORM_WITH, "--topology circulant --degree 12 {auto}", false),
];

const SOCKETS_ROWS: [Row; 6] = [
    ("original 12, over sockets", "--topology original --degree 12", false),
    ("circulant 12, over sockets", "--topology circulant --degree 12", false),
    ("circulant 12, skewed, over sockets", "--topology circulant --degree 12", true),
    (
        "circulant 8 + 2, accepting 2, over sockets",
        "--topology circulant --degree 8 --direct 2 --policy predicted --accept 2",
        true,
    ),
    ("12, accepting 24, over sockets", "--topology circulant --degree 12 {auto} --accept 24", true),
    ("12 with direct ones, over sockets", "--topology circulant --degree 12 {auto}", true),
];

/// Between hosts with limited links.
const HOSTS_ROWS: [Row; 9] = [
    ("original 12, between hosts", "--topology original --degree 12", false),
    ("original 10 + 2, between hosts", "--topology original --degree 10 --direct 2 --warm", false),
    ("original 12, skewed, between hosts", "--topology original --degree 12", true),
    ("original 10 + 2, skewed, between hosts", "--topology original --degree 10 --direct 2 --warm", true),
    ("original 8 + 4, skewed, between hosts", "--topology original --degree 8 --direct 4 --warm", true),
    ("circulant 12, between hosts", "--topology circulant --degree 12", false),
    ("circulant 12, skewed, between hosts", "--topology circulant --degree 12", true),
    (
        "8 + 2, accepting 2, between hosts",
        "--topology circulant --degree 8 --direct 2 --policy predicted --accept 2",
        true,
    ),
    ("12 with direct ones, between hosts", "--topology circulant --degree 12 {auto}", true),
];

/// The arguments of `lightship overlay`, without the seed.
fn arguments(verb: &str, (_, arguments, skewed): Row) -> String {
    let skew = if skewed { format!(" {SKEW}") } else { String::new() };
    format!("{verb} {}{skew}", arguments.replace("{auto}", AUTO))
}

/// The same with few messages.
fn few(arguments: &str) -> String {
    let option = "--messages-per-node ";
    match arguments.split_once(option) {
        Some((before, after)) => {
            let rest = after.split_once(' ').map_or("", |(_, rest)| rest);
            format!("{before}{option}20 {rest}")
        }
        None => arguments.to_owned(),
    }
}

/// What `lightship overlay` says of one shuffle.
fn said(arguments: &str, seed: u32) -> Result<Value> {
    let seed = seed.to_string();
    let words = ["--json", "overlay"].into_iter().chain(arguments.split_whitespace());
    let words = words.chain(["--quiet", "--seed", &seed]);
    Process::spawn(None, places::lightship()?, words)?.output()
}

/// The figures of one shuffle.
fn figures(said: &Value) -> Result<Vec<f64>> {
    let figure = |pointer: &str| said.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let megabytes = |pointer: &str| figure(pointer) / 1e6;
    let (forwarded, seconds) = (Balance::of(said, "forwarded"), Balance::of(said, "seconds"));
    Ok(vec![
        figure("/forwards_per_message"),
        figure("/seconds"),
        floor_seconds(said),
        figure("/sockets_max"),
        figure("/parameters/pool/opened_max"),
        figure("/reconnections"),
        megabytes("/memory_bytes_max"),
        megabytes("/peak_memory_bytes"),
        forwarded.most / forwarded.mean,
        forwarded.deviation / forwarded.mean,
        seconds.least / seconds.most,
        least_forwards(said)?,
        figure("/retransmitted_segments"),
        figure("/processors_busy"),
    ])
}

/// The fewest forwards a message that the sockets of each node allow for this traffic.
fn least_forwards(said: &Value) -> Result<f64> {
    let Some(traffic) = said.pointer("/parameters/traffic") else { return Ok(f64::NAN) };
    let traffic: Traffic = serde_json::from_value(traffic.clone())?;
    let nodes = said["per_node"].as_array().map(Vec::as_slice).unwrap_or_default();
    let sockets: Vec<usize> =
        nodes.iter().filter_map(|node| Some(node["sockets_max"].as_u64()? as usize)).collect();
    Ok(bound::forwards_min(&traffic.demand(sockets.len()), &sockets))
}

/// How a figure differs among nodes.
struct Balance {
    least: f64,
    mean: f64,
    most: f64,
    deviation: f64,
}

impl Balance {
    /// NaN if nodes have no such figure.
    fn of(said: &Value, figure: &str) -> Self {
        let nodes = said["per_node"].as_array().map(Vec::as_slice).unwrap_or_default();
        let values: Vec<f64> = nodes.iter().filter_map(|node| node[figure].as_f64()).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        Self {
            least: values.iter().copied().fold(f64::NAN, f64::min),
            mean,
            most: values.iter().copied().fold(f64::NAN, f64::max),
            deviation: (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt(),
        }
    }
}

/// Seconds of the busiest node for its own messages alone; NaN where they are not modelled.
fn floor_seconds(said: &Value) -> f64 {
    let parameter = |pointer: &str| said.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let bytes = parameter("/parameters/traffic/message_bytes");
    let rate = parameter("/parameters/network/node_bytes_per_second");
    let work = parameter("/parameters/network/message_seconds");
    let own = said["per_node"].as_array().into_iter().flatten().map(|node| {
        let count = |name: &str| node[name].as_f64().unwrap_or(f64::NAN);
        let (sent, received) = (count("sent"), count("received"));
        f64::max(sent.max(received) * bytes / rate, (sent + received) * work)
    });
    if rate.is_nan() { rate } else { own.fold(0.0, f64::max) }
}

/// Runs every row of the command with every seed, in turns.
fn run_rows(
    settings: &Settings,
    results: &mut Results,
    place: [&str; 2],
    rows: &[(&str, String)],
) -> Result<()> {
    run_rows_with(settings, results, place, rows, |arguments, seed| figures(&said(arguments, seed)?))
}

/// Runs every row with every seed, in turns, by `measure`.
fn run_rows_with(
    settings: &Settings,
    results: &mut Results,
    place: [&str; 2],
    rows: &[(&str, String)],
    mut measure: impl FnMut(&str, u32) -> Result<Vec<f64>>,
) -> Result<()> {
    let place = Case { values: place.map(ToOwned::to_owned).into(), ..Case::default() };
    let mut runs = Vec::new();
    for round in 1..=settings.rounds() {
        for (name, arguments) in rows.iter().filter(|(name, _)| settings.wants(name)) {
            let values = measure(&if settings.quick { few(arguments) } else { arguments.clone() }, round)?;
            eprintln!(
                "{place}{round}/{} {name}: {:.3} forwards, {:.3} s",
                settings.rounds(),
                values[0],
                values[1]
            );
            runs.push(Run { place: place.clone(), contender: (*name).to_owned(), round, values });
        }
    }
    results.add(runs)
}

fn measure_all(settings: &Settings, results: &mut Results) -> Result<()> {
    let rows = |verb: &str, rows: &[Row]| -> Vec<_> {
        rows.iter().map(|row| (row.0, arguments(verb, *row))).collect()
    };
    run_rows(settings, results, ["forwards", SIMULATED], &rows(SIMULATE, &FORWARDS_ROWS))?;
    run_rows(settings, results, ["policies", SIMULATED], &rows(SIMULATE, &POLICIES_ROWS))?;
    for (rate, _) in LINK_RATES {
        let verb = format!("{SIMULATE} --link-rate {rate}");
        run_rows(settings, results, ["time", rate], &rows(&verb, &TIME_ROWS))?;
    }
    run_rows(settings, results, ["sockets", OVER_SOCKETS], &rows(RUN, &SOCKETS_ROWS))?;
    run_rows(settings, results, ["sockets", ALIKE], &rows(LIKE_RUN, &SOCKETS_ROWS))?;
    hosts::measure(settings, results, &HOSTS_ROWS)
}

/// A table with a row for each command and the given columns of its results.
fn table(results: &Results, place: [&str; 2], verb: &str, rows: &[Row], columns: &[&str]) -> String {
    let names: Vec<_> = rows.iter().map(|row| row.0).collect();
    grid("", &names, columns, |name, column| {
        let of = |figure: usize| results.summary(&place, name, figure);
        let whole = |figure: usize| number(of(figure).median, 0);
        match column {
            "forwards a message" => spread(of(FORWARDS), 3),
            "of 0.667" => number(of(FORWARDS).median / BEST, 2),
            "lower bound" => number(of(LEAST).median, 3),
            "this / lower bound" => number(of(FORWARDS).median / of(LEAST).median, 2),
            "forwards of a node, most over mean" => number(of(MOST).median, 2),
            "deviation over mean" => number(of(DEVIATION).median, 2),
            "seconds of a node, least over most" => number(of(EVENNESS).median, 2),
            "simulated" => spread(results.summary(&[place[0], ALIKE], name, FORWARDS), 3),
            "forwards, simulated" => spread(results.summary(&[hosts::WHAT, hosts::ALIKE], name, FORWARDS), 3),
            "seconds, simulated" => spread(results.summary(&[hosts::WHAT, hosts::ALIKE], name, SECONDS), 2),
            "floor seconds" => number(results.summary(&[hosts::WHAT, hosts::ALIKE], name, FLOOR).median, 2),
            "seconds" => spread(of(SECONDS), 3),
            "sockets of a node, at most" => whole(SOCKETS),
            "direct ones it may open" => whole(DIRECT),
            "reconnections" => whole(RECONNECTIONS),
            "TCP segments sent again" => spread(of(AGAIN), 0),
            "processors busy" => number(of(BUSY).median, 2),
            "memory of messages, bound, MB" => whole(BOUND),
            "peak memory of the process, MB" => whole(PEAK),
            _ => rows.iter().find(|row| row.0 == name).map_or(String::new(), |row| {
                let command = arguments("", *row);
                format!("`{}`", command.trim().trim_start_matches(verb))
            }),
        }
    })
}

fn time_table(results: &Results) -> String {
    let rates: Vec<_> = LINK_RATES.iter().map(|(rate, _)| *rate).collect();
    let columns = ["of a node's rate", WITHOUT, WITH, WITH_24, WITH_12, "floor", UNIFORM, UNIFORM_WITH];
    grid("a connection", &rates, &columns, |rate, column| {
        let seconds = |name: &str| results.summary(&["time", rate], name, SECONDS).median;
        let changed = |without: &str| {
            let (with, without) = (seconds(column), seconds(without));
            if with.is_nan() {
                String::new()
            } else {
                format!("{with:.3} ({:+.1}%)", 100.0 * (with / without - 1.0))
            }
        };
        match column {
            "of a node's rate" => {
                let part =
                    LINK_RATES.iter().find(|(known, _)| *known == rate).map_or(f64::NAN, |(_, part)| *part);
                format!("1/{:.0}", 1.0 / part)
            }
            WITHOUT | UNIFORM => number(seconds(column), 3),
            "floor" => number(results.summary(&["time", rate], WITHOUT, FLOOR).median, 3),
            UNIFORM_WITH => changed(UNIFORM),
            _ => changed(WITHOUT),
        }
    })
}

const HOSTS_COLUMNS: [&str; 11] = [
    "seconds",
    "seconds, simulated",
    "floor seconds",
    "forwards a message",
    "forwards, simulated",
    "seconds of a node, least over most",
    "sockets of a node, at most",
    "reconnections",
    "TCP segments sent again",
    "processors busy",
    "command",
];

fn report(results: &Results) -> Vec<String> {
    let columns = [
        "forwards a message",
        "of 0.667",
        "lower bound",
        "this / lower bound",
        "forwards of a node, most over mean",
        "deviation over mean",
        "seconds",
        "seconds of a node, least over most",
        "direct ones it may open",
        "sockets of a node, at most",
        "reconnections",
        "command",
    ];
    let forwards = table(results, ["forwards", SIMULATED], SIMULATE, &FORWARDS_ROWS, &columns);
    let policies = table(results, ["policies", SIMULATED], SIMULATE, &POLICIES_ROWS, &columns);
    let columns = [
        "forwards a message",
        "simulated",
        "sockets of a node, at most",
        "reconnections",
        "memory of messages, bound, MB",
        "peak memory of the process, MB",
        "command",
    ];
    let sockets = table(results, ["sockets", OVER_SOCKETS], RUN, &SOCKETS_ROWS, &columns);
    let run = format!(
        "each row adds its arguments to `lightship overlay {RUN}`; `simulated` is the same with \
         `{LIKE_RUN}`"
    );
    vec![
        format!(
            "### Forwards\n\nEach row adds its arguments to `lightship overlay {SIMULATE}`. The lower bound is that of any connections that stay, \
             or change without regard to the messages of the moment, if each node has as many sockets as it had in this run: a linear \
             program over sockets and traffic (`bench/src/experiments/overlay/bound.rs`).\n\n{forwards}"
        ),
        format!("### Policies for direct connections\n\nThe same, with 12 sockets per node.\n\n{policies}"),
        format!(
            "### Time\n\n12 sockets per node: seconds by the rate of a single connection \
             (`--link-rate`). A node has 10 Gbit/s each way. The floor is the time that the busiest node \
             needs for its own messages.\n\n{}",
            time_table(results)
        ),
        format!("### Over sockets\n\n60 nodes in one process: {run}.\n\n{sockets}"),
        format!(
            "### Between hosts\n\n60 hosts of the lab, whose links carry 100 Mbit/s each way; all share the processors of this machine. \
             Simulated: each row adds its arguments to `lightship overlay {}`. The floor is the time that the busiest node needs for \
             its own messages.\n\n{}",
            hosts::LIKE,
            table(results, [hosts::WHAT, hosts::LINK], hosts::LIKE, &HOSTS_ROWS, &HOSTS_COLUMNS)
        ),
        format!(
            "### Between hosts with a limit of processor time\n\nThe same; each host has 0.025 of a processor, without the kernel's \
             part in sending and receiving.\n\n{}",
            table(results, [hosts::WHAT, hosts::LIMITED], hosts::LIKE, &HOSTS_ROWS, &HOSTS_COLUMNS)
        ),
    ]
}

fn forwards_plot(results: &Results) -> Result<String> {
    let place = ["forwards", SIMULATED];
    let rows = FORWARDS_ROWS.iter().filter(|row| row.2).map(|(name, ..)| {
        let whose = if name.starts_with("original") { "the original's" } else { "ours" };
        ((*name).to_owned(), vec![(whose.to_owned(), results.summary(&place, name, FORWARDS))])
    });
    let panel = DotsPanel { title: "60 nodes, skewed".into(), rows: rows.collect() };
    Ok(Dots { x: Axis::linear("forwards a message"), panels: vec![panel] }.svg()?)
}

fn time_plot(results: &Results) -> Result<String> {
    let panel = |title: &str, names: &[&str]| {
        let series = names.iter().map(|name| {
            let points = LINK_RATES
                .iter()
                .map(|(rate, part)| (*part, results.summary(&["time", rate], name, SECONDS)));
            Series { name: (*name).to_owned(), points: points.collect() }
        });
        LinesPanel { title: title.into(), y: Axis::log("seconds"), series: series.collect() }
    };
    let panels =
        vec![panel("skewed", &[WITHOUT, WITH, WITH_24, WITH_12]), panel("uniform", &[UNIFORM, UNIFORM_WITH])];
    Ok(Lines::new(Axis::log("a connection's part of a node's rate"), panels).svg()?)
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let mut results = Results::open(&settings.results(), NAME, &["what", "how"], FIGURES)?;
    measure_all(settings, &mut results)?;
    Report {
        name: NAME,
        page: Page::Shuffle,
        title: "Topologies and direct connections",
        text: format!(
            "Each of 60 nodes sends 5000 messages of 64 KB, in virtual time (`docs/overlay.md` says what \
             is modelled). In skewed traffic, `{SKEW}` gives the percentages of every node's messages \
             that go to node 0, node 1 and so on; the other 45% are spread evenly over all nodes. Each \
             round has its own seed (`--seed`); the tables show medians with minimum and maximum. A node \
             divides its sockets between the topology and direct connections. A direct connection counts \
             only for the node that opens it; the column `sockets of a node, at most` also counts those \
             that other nodes open. (`10 + 1, accepting 1` and the like have 12 or 24 sockets, counted \
             at both ends.) `{BEST}` is the best of the original's archived runs with this skew, of 8 \
             connections that a node opens and 4 direct ones; that of 10 and 2, which its text discusses, \
             has 0.772. `{AUTO}` divides the sockets and opens direct connections from the beginning, based on the traffic of \
             another seed."
        ),
        tables: report(&results),
        plots: vec![
            (forwards_plot(&results)?, "Forwards per message, by topology and pool"),
            (time_plot(&results)?, "Seconds by the rate of a connection"),
        ],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
