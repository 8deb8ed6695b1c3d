//! Range files: receptions in virtual time, to a million servers, and trees of servers. Each round has its own seed.

use std::time::Instant;

use lightship_transport::proto::reception::ReceptionMode;
use lightship_transport::proto::reception::simulate::{
    Outcome, Simulation, SimulationReport, TreeSimulation,
};

use crate::plot::{Axis, Lines, LinesPanel, Series};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results, Run};
use crate::settings::Settings;
use crate::{Result, tables};

const NAME: &str = "range-virtual";
const DIMENSIONS: &[&str] = &["answers", "servers"];
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 4, range: true },
    Figure { name: "refused", digits: 0, range: false },
    Figure { name: "dropped connection requests", digits: 0, range: false },
    Figure { name: "asked again", digits: 0, range: false },
    Figure { name: "announcements lost", digits: 0, range: false },
    Figure { name: "in flight MB, at most", digits: 2, range: false },
];
const SERVERS: [u32; 7] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000];
/// With more, only the fastest are simulated; the page says why.
const ALL_STRATEGIES_MAX: u32 = 100_000;
const PARTS: &str = "100 rows, 10 KB";
const STRATEGIES: [(&str, ReceptionMode); 6] = [
    ("push", ReceptionMode::Push),
    ("back-off", ReceptionMode::BackOff),
    ("pull 1", ReceptionMode::Pull { connections: 1 }),
    ("pull 8", ReceptionMode::Pull { connections: 8 }),
    ("pull 32", ReceptionMode::Pull { connections: 32 }),
    ("auto", ReceptionMode::Auto),
];
/// Small answers, of which a server sends on nothing but its own aggregate, or all.
const GROUPED: [(&str, f64); 2] = [("aggregates of 64 B", 0.0), ("rows of 64 B, all kept", 1.0)];
const SMALL_BYTES: u64 = 64;
const FLAT: &str = "no tree";
const FAN_OUTS: [(&str, u32); 4] =
    [("tree of 4", 4), ("tree of 16", 16), ("tree of 64", 64), ("tree of 256", 256)];
/// Receptions that are simulated at each level of a tree.
const SAMPLES: u32 = 4;

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let mut results = Results::open(&settings.results(), NAME, DIMENSIONS, FIGURES)?;
    // The largest takes minutes.
    let most = if settings.quick { 3 } else { SERVERS.len() };
    for &servers in &SERVERS[..most] {
        for (name, mode) in STRATEGIES {
            let is_light = matches!(mode, ReceptionMode::Pull { connections: 32 } | ReceptionMode::Auto);
            if servers <= ALL_STRATEGIES_MAX || is_light {
                let values = |seed| Ok(values(&Simulation::new(servers, mode, seed).run(Instant::now())?));
                results.add(rounds(settings, [PARTS, &servers.to_string()], name, values)?)?;
            }
        }
        for (kind, kept) in GROUPED {
            let place = [kind, &servers.to_string()];
            let flat = |seed| Simulation {
                message_bytes: SMALL_BYTES,
                message_rows: 1,
                ..Simulation::new(servers, ReceptionMode::Auto, seed)
            };
            let values = |seed| Ok(values(&flat(seed).run(Instant::now())?));
            results.add(rounds(settings, place, FLAT, values)?)?;
            for (name, fan_out) in FAN_OUTS {
                let values = |seed| {
                    let tree = TreeSimulation { flat: flat(seed), fan_out, kept, samples: SAMPLES };
                    let seconds = tree.run(Instant::now())?.seconds;
                    Ok([&[seconds][..], &[f64::NAN; FIGURES.len() - 1]].concat())
                };
                results.add(rounds(settings, place, name, values)?)?;
            }
        }
    }
    Report {
        name: NAME,
        page: Page::Range,
        title: "In virtual time, to a million servers",
        text: format!(
            "The state machines that receive real scans, with simulated servers, network and clock: one part for each \
             server, a round trip of 0.5 ms, a link of 10 Gbit/s, a backlog of 128 connection requests, at most 64 \
             connections at a time, a budget of 16 MiB. {} runs of each, with seeds from 1. Push and back-off break when \
             the servers outnumber the backlog: connection requests are dropped, or repeated after pauses. A tree \
             of f: every server receives the answers of up to f servers below it, and sends one answer on. Not \
             modelled: TCP's slow start, the servers' own links, several servers on a host. With more than {} servers only \
             `pull 32` and `auto` are simulated: the others take minutes of computing for each run, so their cells are \
             empty. The paper has no such figure: it measures up to 140 servers, and names trees of servers as further work.",
            settings.rounds(),
            ALL_STRATEGIES_MAX,
        ),
        tables: tables_of(&results),
        plots: vec![(plot(&results)?, "Seconds of a reception by number of servers")],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}

/// A run for each seed from 1.
fn rounds(
    settings: &Settings,
    place: [&str; 2],
    contender: &str,
    values: impl Fn(u64) -> Result<Vec<f64>>,
) -> Result<Vec<Run>> {
    let place = Case { values: place.map(str::to_owned).to_vec(), scale: 1.0, ..Case::default() };
    let rounds = 1..=if settings.wants(contender) { settings.rounds() } else { 0 };
    let run = |round: u32| {
        let values = values(round.into())?;
        eprintln!("{place}{round}/{} {contender}: {:.4} s", settings.rounds(), values[0]);
        Ok(Run { place: place.clone(), contender: contender.to_owned(), round, values })
    };
    rounds.map(run).collect()
}

/// The figures; without a time if the reception failed.
fn values(report: &SimulationReport) -> Vec<f64> {
    let seconds = if report.outcome == Outcome::Complete { report.seconds } else { f64::NAN };
    let counts = [report.refused, report.dropped, report.asked, report.announcements_lost];
    let peak = report.used_bytes_peak as f64 / 1e6;
    [&[seconds][..], &counts.map(|count| count as f64), &[peak]].concat()
}

fn contenders(kind: &str) -> Vec<&'static str> {
    match kind {
        PARTS => STRATEGIES.map(|(name, _)| name).to_vec(),
        _ => [&[FLAT][..], &FAN_OUTS.map(|(name, _)| name)].concat(),
    }
}

fn kinds() -> impl Iterator<Item = &'static str> {
    std::iter::once(PARTS).chain(GROUPED.map(|(kind, _)| kind))
}

fn tables_of(results: &Results) -> Vec<String> {
    let servers = results.values(1);
    let grid = |kind: &str, figure: usize| {
        let digits = FIGURES[figure].digits;
        tables::grid("servers", &servers, &contenders(kind), |servers, name| {
            tables::number(results.summary(&[kind, servers], name, figure).median, digits)
        })
    };
    let mut all: Vec<_> = kinds().map(|kind| format!("Seconds, {kind}:\n\n{}", grid(kind, 0))).collect();
    for (at, figure) in FIGURES.iter().enumerate().skip(1) {
        all.push(format!("{}, {PARTS}:\n\n{}", figure.name, grid(PARTS, at)));
    }
    all
}

fn plot(results: &Results) -> Result<String> {
    let panels = kinds().map(|kind| {
        let series = contenders(kind).into_iter().map(|name| {
            let point =
                |servers: u32| (f64::from(servers), results.summary(&[kind, &servers.to_string()], name, 0));
            Series { name: name.to_owned(), points: SERVERS.map(point).to_vec() }
        });
        LinesPanel { title: kind.to_owned(), y: Axis::log("seconds"), series: series.collect() }
    });
    Ok(Lines::new(Axis::log("servers"), panels.collect()).svg()?)
}
