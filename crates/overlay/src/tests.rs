//! The figures of the source, ours, and the tables of `docs/overlay.md`, made again.

use std::fmt::Write;

use super::*;
use crate::simulate::{Network, Report, Ties};

const DOCUMENT: &str = include_str!("../../../docs/overlay.md");
const NODES: usize = 60;
const TRIES: usize = 2000;
/// The archived run of the source's hybrid: 10 connections a node and 2 direct ones, under the skew.
const HYBRID: f64 = 13.9 / 18.0;

#[track_caller]
fn documented(table: &str) {
    assert!(DOCUMENT.contains(table), "docs/overlay.md does not have this table:\n\n{table}");
}

fn skewed() -> Traffic {
    Traffic { weights_percent: THESIS_WEIGHTS_PERCENT.to_vec(), ..Traffic::default() }
}

fn original(degree: usize, direct: usize) -> Simulation {
    let traffic = Traffic { messages_per_node: 3000, ..skewed() };
    let shape = Shape::Original { degree };
    Simulation { pool: Pool::thesis(direct), traffic, period_seconds: 0.5, ..Simulation::new(shape, NODES, 1) }
}

/// Ours with so many sockets, after a run of the same traffic with another seed.
struct Ours {
    sockets: usize,
    accepted_max: Option<usize>,
    through: Through,
    network: Network,
    traffic: Traffic,
}

impl Ours {
    fn new(sockets: usize, accepted_max: Option<usize>, traffic: Traffic) -> Self {
        Self { sockets, accepted_max, through: Through::Own, network: Network::default(), traffic }
    }

    fn without(&self, seed: u64) -> Result<Simulation> {
        let shape = circulant(NODES, self.sockets, TRIES, 1)?;
        let (traffic, network) = (self.traffic.clone(), self.network.clone());
        let ties = Ties::ShortestQueue;
        Ok(Simulation { ties, traffic, network, ..Simulation::new(shape, NODES, seed) })
    }

    fn run(&self) -> Result<(Split, Report)> {
        let last = self.without(2)?.run(None)?.demand;
        let pool = Pool::new(0, self.accepted_max);
        let Self { sockets, through, network, traffic, .. } = self;
        let reserve =
            Reserve { sockets: *sockets, pool: &pool, through: *through, network, message_bytes: traffic.message_bytes };
        let split = reserve.split(&last, TRIES, 1)?;
        let pool = Pool { opened_max: split.direct, ..pool };
        let simulation = Simulation { shape: split.shape.clone(), pool, through: *through, ..self.without(1)? };
        Ok((split, simulation.run(Some(&last))?))
    }
}

fn sockets_max(report: &Report) -> usize {
    report.per_node.iter().map(|node| node.sockets_max).max().unwrap_or_default()
}

#[test]
fn forwards() -> Result<()> {
    let mut table = String::from(
        "| | sockets opened for | of them direct | sockets of a node, at most | forwards a message | of 0.772 | seconds |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let mut row = |name: &str, opened: usize, direct: usize, report: &Report| {
        let forwards = report.forwards_per_message;
        let _ = writeln!(
            table,
            "| {name} | {opened} | {direct} | {} | {forwards:.2} | {:.2} | {:.2} |",
            sockets_max(report),
            forwards / HYBRID,
            report.seconds / (report.parameters.traffic.messages_per_node as f64 / 1000.0),
        );
    };
    for (degree, direct, expected) in [(12, 0, 1.05), (10, 0, 1.15), (10, 2, HYBRID), (9, 3, 14.4 / 18.0)] {
        // The source's runs are a hundred times as long: the first period, without direct connections, is
        // nothing there, and would be a third here.
        let simulation = original(degree, direct);
        let report = simulation.run(Some(&simulation.traffic.demand(NODES)))?;
        row("original", degree + direct, direct, &report);
        let found = report.forwards_per_message;
        assert!((found - expected).abs() < 0.04, "{degree} + {direct}: {found}, and not {expected}");
    }
    for (sockets, most) in [(12, 0.75), (24, 0.55)] {
        row("circulant", sockets, 0, &Ours::new(sockets, None, skewed()).without(1)?.run(None)?);
        for (name, accepted_max) in
            [("with a pool", None), ("accepting 24", Some(24)), ("accepting 12", Some(12)), ("accepting 6", Some(6))]
        {
            let (split, report) = Ours::new(sockets, accepted_max, skewed()).run()?;
            row(&format!("circulant {name}"), sockets, split.direct, &report);
            let found = report.forwards_per_message;
            assert!(accepted_max.is_some() || found < most * HYBRID, "{sockets} sockets: {found}");
        }
        let all = Ours { through: Through::All, ..Ours::new(sockets, None, skewed()) };
        let (split, report) = all.run()?;
        row("circulant with a pool, through others' direct connections", sockets, split.direct, &report);
    }
    documented(&table);
    Ok(())
}
