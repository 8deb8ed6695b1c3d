//! The source's experiment: five queries on 1, 3 and 6 nodes, with one factor changed at a time.

use lab::Lab;
use lightship_usage::{Change, NodesChange};

use super::outcome::{Explained, Row, Rows};
use super::predictions::Predicted;
use super::site::Hardware;
use super::system::{Configuration, LIGHTSHIP, NODES_MAX, POSTGRES, QUERIES, Running, System};
use super::traffic::TrafficRows;
use crate::Result;
use crate::settings::Settings;

pub(super) const NAME: &str = "usage-nodes";
pub(super) const DIMENSIONS: &[&str] = &["system", "tables", "nodes", "hardware", "query"];
/// The slower processor, disk (the source's first) and network.
pub(super) const BASE: Hardware = Hardware { cpus: 0.1, disk_bytes_per_s: 22_000_000 };
const FASTER_CPU: f64 = 2.5;
const FASTER_DISK_BYTES_PER_S: u64 = 30_500_000;
pub(super) const LINK: &str = "100mbit";
const FASTER_LINK: &str = "1gbit";
/// Names of the hardware.
pub(super) const SLOW: &str = "base";
pub(super) const CPU: &str = "CPU x2.5";
pub(super) const DISK: &str = "disk x1.39";
pub(super) const NETWORK: &str = "network x10";
pub(super) const HARDWARE: [&str; 4] = [SLOW, CPU, DISK, NETWORK];
/// Rows, as a multiple of scale 1, with which a run takes seconds.
const SCALES: [(&str, f64); 2] = [(POSTGRES, 0.05), (LIGHTSHIP, 0.25)];
/// The query whose traffic is shown.
pub(super) const TRAFFIC_QUERY: usize = 3;

pub(super) fn place(system: &str, configuration: Configuration, hardware: &str, query: usize) -> Vec<String> {
    let Configuration { nodes, .. } = configuration;
    [system, configuration.division_name(), &nodes.to_string(), hardware, &format!("Q{query}")]
        .map(str::to_owned)
        .to_vec()
}

/// Measures both systems. Predictions are stored before the runs that they predict.
pub(super) fn measure(settings: &Settings, lab: &Lab, rows: &mut Rows) -> Result<()> {
    System::each(settings, &SCALES, |system, scale| {
        let mut predicted = Predicted::open(&settings.results(), system.name())?;
        let mut traffic = TrafficRows::open(&settings.results())?;
        {
            let mut running = Running::start(lab, LINK, NODES_MAX, BASE, system, scale)?;
            for &configuration in settings.some_if_quick(&Configuration::ALL) {
                let mut round = Rounds { settings, rows, predicted: &mut predicted, traffic: &mut traffic };
                round.base(&mut running, configuration)?;
                let faster = Hardware { cpus: BASE.cpus * FASTER_CPU, ..BASE };
                round.changed(&running, CPU, faster)?;
                let faster = Hardware { disk_bytes_per_s: FASTER_DISK_BYTES_PER_S, ..BASE };
                round.changed(&running, DISK, faster)?;
            }
            let (bound_us, lost) = running.watcher.quality();
            eprintln!("clocks are bounded within {bound_us:.0} us; {lost} datagrams were lost");
        }
        let mut running = Running::start(lab, FASTER_LINK, NODES_MAX, BASE, system, scale)?;
        for &configuration in settings.some_if_quick(&Configuration::ALL) {
            running.configure(configuration)?;
            let mut round = Rounds { settings, rows, predicted: &mut predicted, traffic: &mut traffic };
            round.warm(&running)?;
            round.changed(&running, NETWORK, BASE)?;
        }
        Ok(())
    })
}

/// The change of a kind of hardware.
fn factor(hardware: &str) -> Change {
    let disk = FASTER_DISK_BYTES_PER_S as f64 / BASE.disk_bytes_per_s as f64;
    match hardware {
        CPU => Change { cpu: FASTER_CPU, ..Change::default() },
        DISK => Change { disk_sequential: disk, disk_random: disk, ..Change::default() },
        _ => Change { network: 10.0, ..Change::default() },
    }
}

/// Runs of all queries in a configuration.
struct Rounds<'a> {
    settings: &'a Settings,
    rows: &'a mut Rows,
    predicted: &'a mut Predicted,
    traffic: &'a mut TrafficRows,
}

impl Rounds<'_> {
    /// Runs each query once, so that programs and catalogues are in memory.
    fn warm(&self, running: &Running<'_>) -> Result<()> {
        running.limit(Hardware { cpus: 2.0, disk_bytes_per_s: 1_000_000_000 })?;
        running.warm()
    }

    /// Runs with the slower hardware, compares their times with predictions for this number of nodes, and stores
    /// predictions for other hardware.
    fn base(&mut self, running: &mut Running<'_>, configuration: Configuration) -> Result<()> {
        running.configure(configuration)?;
        self.warm(running)?;
        running.limit(BASE)?;
        let system = running.system.name();
        for &(query, tables) in self.settings.some_if_quick(&QUERIES) {
            let here = place(system, configuration, SLOW, query);
            let mut runs = self.runs(running, &here, query, self.settings.rounds())?;
            runs.sort_by(|a, b| a.0.seconds.total_cmp(&b.0.seconds));
            let Some(middle) = runs.len().checked_sub(1) else { continue };
            let (row, run) = runs.swap_remove(middle / 2);
            self.predicted.compare(&here, row.seconds)?;
            for hardware in [CPU, DISK, NETWORK] {
                let there = place(system, configuration, hardware, query);
                self.predicted.save(&here, &row, &there, &run.footprint, &factor(hardware))?;
            }
            for next in Configuration::ALL {
                let is_next = match configuration.nodes {
                    1 => next.nodes == 3,
                    nodes => nodes == 3 && next.nodes == 6 && next.division == configuration.division,
                };
                if !is_next {
                    continue;
                }
                let (from, to) = (configuration.nodes as u32, next.nodes as u32);
                let divided = running.system.divided(tables, next.division);
                let nodes = Some(NodesChange { from, to, divided });
                let change = Change { nodes, ..Change::default() };
                self.predicted.save(
                    &here,
                    &row,
                    &place(system, next, SLOW, query),
                    &run.footprint,
                    &change,
                )?;
            }
        }
        Ok(())
    }

    /// Runs a query some times. A run that fails is reported, and missing.
    fn runs(
        &mut self,
        running: &Running<'_>,
        here: &[String],
        query: usize,
        rounds: u32,
    ) -> Result<Vec<(Row, Explained)>> {
        let mut runs = Vec::new();
        for round in 1..=rounds {
            let (run, traffic) = match running.query(query) {
                Ok(done) => done,
                Err(error) => {
                    eprintln!("{} {round} failed: {error}", here.join(" "));
                    continue;
                }
            };
            if round == 1 && query == TRAFFIC_QUERY && here[3] == SLOW {
                self.traffic.add(here, traffic)?;
            }
            let row = Row::new(here.to_vec(), running.circumstances(), round, &run);
            say(&row);
            run.keep(&row)?;
            runs.push((row, run));
        }
        if !runs.is_empty() {
            self.rows.add(runs.iter().map(|(row, _)| row.clone()).collect())?;
        }
        Ok(runs)
    }

    /// Runs with other hardware, and compares.
    fn changed(&mut self, running: &Running<'_>, hardware: &str, limits: Hardware) -> Result<()> {
        running.limit(limits)?;
        let (system, configuration) = (running.system.name(), running.configuration);
        let rounds = self.settings.rounds().div_ceil(2).max(1);
        for &(query, _) in self.settings.some_if_quick(&QUERIES) {
            let here = place(system, configuration, hardware, query);
            if !self.runs(running, &here, query, rounds)?.is_empty() {
                let seconds = self.rows.median(&here).map_or(f64::NAN, |row| row.seconds);
                self.predicted.compare(&here, seconds)?;
            }
        }
        Ok(())
    }
}

pub(super) fn say(row: &Row) {
    let Row { place, round, seconds, limit, host, .. } = row;
    let explained = row.explained() * 100.0;
    eprintln!("{} {round}: {seconds:.2} s, {limit} {host}, {explained:.0}% explained", place.join(" "));
}
