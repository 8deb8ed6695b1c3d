//! Bytes over time, by node and direction.

use std::path::{Path, PathBuf};

use super::collect::Traffic;
use crate::Result;

const NAME: &str = "usage-traffic";
const COLUMNS: [&str; 9] =
    ["system", "tables", "nodes", "hardware", "query", "host", "seconds", "received, Mbit/s", "sent, Mbit/s"];

/// The rate of a host around a moment of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rate {
    pub(super) place: Vec<String>,
    pub(super) host: String,
    /// Since the first sample.
    pub(super) seconds: f64,
    pub(super) received_mbit_per_s: f64,
    pub(super) sent_mbit_per_s: f64,
}

/// The traffic of runs, in a file.
pub(super) struct TrafficRows {
    path: PathBuf,
    pub(super) rows: Vec<Rate>,
}

impl TrafficRows {
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let mut all = Self { path: folder.join(format!("{NAME}.csv")), rows: Vec::new() };
        if all.path.exists() {
            for record in csv::Reader::from_path(&all.path)?.records() {
                let record = record?;
                let number = |at: usize| record.get(at).unwrap_or_default().parse::<f64>();
                all.rows.push(Rate {
                    place: record.iter().take(5).map(ToOwned::to_owned).collect(),
                    host: record.get(5).unwrap_or_default().to_owned(),
                    seconds: number(6)?,
                    received_mbit_per_s: number(7)?,
                    sent_mbit_per_s: number(8)?,
                });
            }
        }
        Ok(all)
    }

    /// Adds the traffic of a run, which replaces that of an earlier one at the same place.
    pub(super) fn add(&mut self, place: &[String], traffic: Vec<Traffic>) -> Result<()> {
        self.rows.retain(|rate| rate.place != place);
        self.rows.extend(rates(place, &traffic));
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(COLUMNS)?;
        for rate in &self.rows {
            let numbers = [rate.seconds, rate.received_mbit_per_s, rate.sent_mbit_per_s];
            let numbers = numbers.iter().map(|number| format!("{number:.4}"));
            writer.write_record(rate.place.iter().cloned().chain([rate.host.clone()]).chain(numbers))?;
        }
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(&self.path, writer.into_inner().map_err(|e| e.into_error())?)?)
    }
}

/// Rates between the samples of each host.
fn rates(place: &[String], traffic: &[Traffic]) -> Vec<Rate> {
    let first_ns = traffic.iter().map(|at| at.at_ns).min().unwrap_or(0);
    let mut hosts: Vec<&str> = traffic.iter().map(|at| at.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut rates = Vec::new();
    for host in hosts {
        let samples: Vec<&Traffic> = traffic.iter().filter(|at| at.host == host).collect();
        for pair in samples.windows(2) {
            let [before, after] = pair else { continue };
            let seconds = after.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
            let rate = |before: f64, after: f64| (after - before).max(0.0) * 8.0 / 1e6 / seconds.max(1e-3);
            rates.push(Rate {
                place: place.to_vec(),
                host: host.to_owned(),
                seconds: (after.at_ns - first_ns) as f64 / 1e9 - seconds / 2.0,
                received_mbit_per_s: rate(before.received, after.received),
                sent_mbit_per_s: rate(before.sent, after.sent),
            });
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_between_the_samples_of_a_host() {
        let at = |host: &str, ms: u64, received: f64| Traffic {
            host: host.into(),
            at_ns: ms * 1_000_000,
            received,
            sent: 0.0,
        };
        let traffic = [at("a", 1000, 0.0), at("b", 1050, 5.0), at("a", 1100, 12_500.0), at("b", 1150, 5.0)];
        let rates = rates(&[], &traffic);
        let shown: Vec<_> = rates.iter().map(|rate| (&*rate.host, rate.received_mbit_per_s)).collect();
        assert_eq!(shown, [("a", 1.0), ("b", 0.0)]);
        assert!((rates[0].seconds - 0.05).abs() < 1e-9);
    }
}
