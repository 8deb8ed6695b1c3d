//! Reproduces the figures of the thesis, ours, and the tables of `docs/overlay.md`.

use std::fmt::Write;

use super::*;
use crate::simulate::{Network, Report, Ties};

const DOCUMENT: &str = include_str!("../../../docs/overlay.md");
const NODES: usize = 60;
const TRIES: usize = 1000;
/// The archived run of the thesis' hybrid: 10 connections per node and 2 direct ones, under the skew.
const HYBRID: f64 = 13.9 / 18.0;

#[track_caller]
fn documented(table: &str) {
    assert!(DOCUMENT.contains(table), "docs/overlay.md does not have this table:\n\n{table}");
}

fn uniform() -> Traffic {
    Traffic { messages_per_node: 1000, ..Traffic::default() }
}

fn skewed() -> Traffic {
    Traffic { weights_percent: THESIS_WEIGHTS_PERCENT.to_vec(), ..uniform() }
}

fn original(degree: usize, direct: usize) -> Simulation {
    let traffic = Traffic { messages_per_node: 2000, ..skewed() };
    let shape = Shape::Original { degree };
    Simulation {
        pool: DirectPolicy::thesis(direct),
        traffic,
        period_seconds: 0.35,
        ..Simulation::new(shape, NODES, 1)
    }
}

/// Our configuration, after a run of the same traffic with another seed.
struct Ours {
    sockets: usize,
    accepted_max: Option<usize>,
    through: DirectUse,
    network: Network,
    traffic: Traffic,
    /// Traffic of the previous run.
    last: Traffic,
}

impl Ours {
    fn new(sockets: usize, accepted_max: Option<usize>, traffic: Traffic) -> Self {
        let (network, last) = (Network::default(), traffic.clone());
        Self { sockets, accepted_max, through: DirectUse::Own, network, traffic, last }
    }

    fn without(&self, seed: u64) -> Result<Simulation> {
        let shape = circulant(NODES, self.sockets, TRIES, 1)?;
        let (traffic, network) = (self.traffic.clone(), self.network.clone());
        let ties = Ties::ShortestQueue;
        Ok(Simulation { ties, traffic, network, ..Simulation::new(shape, NODES, seed) })
    }

    fn last(&self) -> Result<TrafficMatrix> {
        Ok(Simulation { traffic: self.last.clone(), ..self.without(2)? }.run(None)?.demand)
    }

    fn run(&self) -> Result<(Split, Report)> {
        self.run_after(&self.last()?)
    }

    fn run_after(&self, last: &TrafficMatrix) -> Result<(Split, Report)> {
        let pool = DirectPolicy::new(0, self.accepted_max);
        let Self { sockets, through, network, traffic, .. } = self;
        let reserve = Reserve {
            sockets: *sockets,
            pool: &pool,
            through: *through,
            network,
            message_bytes: traffic.message_bytes,
        };
        let split = reserve.split(last, TRIES, 1)?;
        let pool = DirectPolicy { opened_max: split.direct, ..pool };
        let simulation =
            Simulation { shape: split.shape.clone(), pool, through: *through, ..self.without(1)? };
        assert!(split.expected.seconds <= split.considered[0].1.seconds);
        Ok((split, simulation.run(Some(last))?))
    }
}

fn sockets_max(report: &Report) -> usize {
    report.per_node.iter().map(|node| node.sockets_max).max().unwrap_or_default()
}

#[test]
fn forwards_match_the_thesis_and_the_document() -> Result<()> {
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
        // The runs of the thesis are a hundred times as long. The first period, which has no direct
        // connections, is negligible there but would be a third of the run here.
        let simulation = original(degree, direct);
        let report = simulation.run(Some(&simulation.traffic.demand(NODES)))?;
        row("original", degree + direct, direct, &report);
        let found = report.forwards_per_message;
        assert!((found - expected).abs() < 0.04, "{degree} + {direct}: {found}, expected {expected}");
    }
    for (sockets, most) in [(12, 0.75), (24, 0.55)] {
        let last = Ours::new(sockets, None, skewed()).last()?;
        row("circulant", sockets, 0, &Ours::new(sockets, None, skewed()).without(1)?.run(None)?);
        for (name, accepted_max) in [
            ("with a pool", None),
            ("accepting 24", Some(24)),
            ("accepting 12", Some(12)),
            ("accepting 6", Some(6)),
        ] {
            let (split, report) = Ours::new(sockets, accepted_max, skewed()).run_after(&last)?;
            row(&format!("circulant {name}"), sockets, split.direct, &report);
            let found = report.forwards_per_message;
            assert!(accepted_max.is_some() || found < most * HYBRID, "{sockets} sockets: {found}");
        }
        for (name, accepted_max) in [("with a pool", None), ("accepting 24", Some(24))] {
            let all = Ours { through: DirectUse::All, ..Ours::new(sockets, accepted_max, skewed()) };
            let (split, report) = all.run_after(&last)?;
            row(&format!("circulant {name}, through others'"), sockets, split.direct, &report);
        }
    }
    documented(&table);
    Ok(())
}

/// One network for each of three bottlenecks: the nodes' ports, their processors (messages of 8 KB), and
/// connections with a sixteenth of a node's rate each.
fn networks() -> [(&'static str, Network, u64); 3] {
    let node = Network::default();
    let connections =
        Network { link_bytes_per_second: node.node_bytes_per_second / 16.0, ..Network::default() };
    [("nodes", node.clone(), 64 << 10), ("processors", node, 8 << 10), ("connections", connections, 64 << 10)]
}

#[test]
fn times_match_the_document() -> Result<()> {
    let mut table = String::from(
        "| limit | traffic | ties at random | without a pool | with one | accepting 24 | through others' | floor |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (name, network, message_bytes) in networks() {
        let sized = |traffic| Traffic { message_bytes, ..traffic };
        let traffics = [
            ("skewed", skewed(), skewed()),
            ("uniform", uniform(), uniform()),
            ("uniform after skewed", uniform(), skewed()),
        ];
        for (traffic, of, last) in traffics {
            let ours = |accepted_max, through| Ours {
                through,
                network: network.clone(),
                last: sized(last.clone()),
                ..Ours::new(12, accepted_max, sized(of.clone()))
            };
            let last = ours(None, DirectUse::Own).last()?;
            let without = ours(None, DirectUse::Own).without(1)?;
            let random = Simulation { ties: Ties::Random, ..without.clone() }.run(None)?.seconds;
            let without = without.run(None)?;
            let received =
                without.per_node.iter().map(|node| node.sent.max(node.received)).max().unwrap_or_default();
            let worked =
                without.per_node.iter().map(|node| node.sent + node.received).max().unwrap_or_default();
            let floor = f64::max(
                received as f64 * message_bytes as f64 / network.node_bytes_per_second,
                worked as f64 * network.message_seconds,
            );
            let without = without.seconds;
            let _ = write!(table, "| {name} | {traffic} | {random:.3} | {without:.3} |");
            let configured = [(None, DirectUse::Own), (Some(24), DirectUse::Own), (None, DirectUse::All)];
            for (accepted_max, through) in configured {
                let (split, report) = ours(accepted_max, through).run_after(&last)?;
                let change = 100.0 * (report.seconds / without - 1.0);
                let _ = write!(table, " {:.3} ({change:+.1}%), {} direct |", report.seconds, split.direct);
                let most = match (name, traffic) {
                    ("connections", "skewed") => -10.0,
                    // The busiest receiver is as busy with a pool as without.
                    (_, "skewed") => 3.0,
                    (_, "uniform") if through == DirectUse::Own => 1.0,
                    (_, "uniform") => 3.0,
                    // A wrong prediction may cost any time.
                    _ => f64::INFINITY,
                };
                assert!(change <= most, "{name}, {traffic}, {accepted_max:?}, {through:?}: {change:+.2}%");
            }
            let _ = writeln!(table, " {floor:.3} |");
        }
    }
    documented(&table);
    Ok(())
}

/// With 24 sockets, a pool also pays off for uniform traffic if connections are not the bottleneck.
#[test]
fn a_pool_does_not_slow_down_uniform_traffic() -> Result<()> {
    for (name, network, message_bytes) in networks() {
        for accepted_max in [None, Some(24)] {
            let traffic = Traffic { message_bytes, ..uniform() };
            let ours = Ours { network: network.clone(), ..Ours::new(24, accepted_max, traffic) };
            let (split, report) = ours.run()?;
            let without = ours.without(1)?.run(None)?.seconds;
            let change = 100.0 * (report.seconds / without - 1.0);
            assert!(change <= 1.0, "{name}, {accepted_max:?}: {} direct, {change:+.2}%", split.direct);
        }
    }
    Ok(())
}

#[test]
fn policies_match_the_document() -> Result<()> {
    let ours = Ours::new(12, None, skewed());
    let last = ours.last()?;
    let (split, with) = ours.run_after(&last)?;
    let mut table = String::from(
        "| | forwards a message | reconnections | forwards, accepting 24 | reconnections |\n|---|---|---|---|---|\n",
    );
    let base = DirectPolicy { opened_max: split.direct, ..DirectPolicy::new(0, None) };
    let rows = [
        ("each node knows its own traffic", TrafficKnowledge::Local, None, base.margin, base.memory),
        ("all is known", TrafficKnowledge::Global, None, base.margin, base.memory),
        ("its own, and the last run", TrafficKnowledge::Local, Some(&last), base.margin, base.memory),
        ("all, and the last run", TrafficKnowledge::Global, Some(&last), base.margin, base.memory),
        ("the same without margin and memory", TrafficKnowledge::Global, Some(&last), 0.0, 0.0),
    ];
    for (name, knowledge, last, margin, memory) in rows {
        let _ = write!(table, "| {name} |");
        for accepted_max in [None, Some(24)] {
            let pool = DirectPolicy { knowledge, accepted_max, margin, memory, ..base.clone() };
            let report = Simulation { pool, shape: split.shape.clone(), ..ours.without(1)? }.run(last)?;
            let _ = write!(table, " {:.2} | {} |", report.forwards_per_message, report.reconnections);
        }
        table += "\n";
    }
    assert!(with.reconnections < 120, "{}", with.reconnections);
    documented(&table);
    Ok(())
}

#[test]
fn topologies_match_the_document() -> Result<()> {
    let kautz = |both_ways| Shape::Kautz { degree: 6, both_ways };
    let shapes = [
        (Shape::FullMesh, NODES),
        (Shape::Ring, NODES),
        (Shape::Tree { arity: 11 }, NODES),
        (Shape::Torus { dimensions: 2 }, NODES),
        (Shape::Torus { dimensions: 3 }, NODES),
        (Shape::Hypercube, 64),
        (Shape::Original { degree: 6 }, NODES),
        (Shape::Original { degree: 8 }, NODES),
        (Shape::Original { degree: 10 }, NODES),
        (Shape::Original { degree: 12 }, NODES),
        (kautz(false), NODES),
        (kautz(true), NODES),
        (Shape::Binomial { base: 2 }, NODES),
        (Shape::Binomial { base: 3 }, NODES),
        (circulant(NODES, 12, TRIES, 1)?, NODES),
        (circulant(NODES, 24, TRIES, 1)?, NODES),
    ];
    let mut table = String::from(
        "| topology | nodes | sockets of a node | diameter | mean hops | Moore bound | links cut | nodes cut |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (shape, nodes) in shapes {
        let routes = Routes::new(Topology::new(shape, nodes)?);
        let figures = TopologyMetrics::of(&routes);
        let _ = writeln!(
            table,
            "| {}, {} | {nodes} | {:.1} | {} | {:.3} | {:.3} | {} | {} |",
            routes.topology().shape().name(),
            if routes.topology().both_ways() { "both ways" } else { "one way" },
            figures.sockets_mean,
            figures.diameter,
            figures.mean_hops,
            figures.moore_mean_hops,
            figures.edge_connectivity.at_least,
            figures.vertex_connectivity.at_least,
        );
    }
    documented(&table);
    Ok(())
}

/// Mean hops as computed for the thesis, at 60 nodes.
#[test]
fn mean_hops_match_the_thesis() -> Result<()> {
    let check = |shape: Shape, sockets: usize, expected: f64| -> Result<()> {
        let name = shape.name();
        let routes = Routes::new(Topology::new(shape, NODES)?);
        let figures = TopologyMetrics::of(&routes);
        assert!(
            (figures.mean_hops - expected).abs() < 0.006,
            "{name}: {}, expected {expected}",
            figures.mean_hops
        );
        assert!(figures.sockets_max <= sockets, "{name}: {}", figures.sockets_max);
        Ok(())
    };
    for (degree, expected) in [(6, 2.92), (8, 2.34), (10, 2.15), (12, 2.05)] {
        check(Shape::Original { degree }, 2 * degree, expected)?;
    }
    check(Shape::Circulant { offsets: vec![1, 2, 4, 8, 15, 30] }, 12, 2.02)?;
    check(Shape::Binomial { base: 2 }, 12, 2.03)?;
    check(Shape::Kautz { degree: 6, both_ways: true }, 12, 1.92)?;
    check(circulant(NODES, 12, TRIES, 1)?, 12, 1.797)?;
    check(circulant(NODES, 24, TRIES, 1)?, 24, 1.593)?;
    check(Shape::Circulant { offsets: vec![2, 7, 15, 23, 26, 27] }, 12, 1.797)
}

#[test]
fn a_large_sparse_simulation_delivers_all_messages() -> Result<()> {
    let shape = circulant(NODES_MAX, 16, 30, 1)?;
    let traffic = Traffic { messages_per_node: 20, ..skewed() };
    let pool = DirectPolicy::new(2, Some(16));
    let report = Simulation { traffic, pool, ..Simulation::new(shape, NODES_MAX, 1) }.run(None)?;
    assert_eq!(report.messages, 20 * NODES_MAX as u64);
    assert!(report.pairs < 20 * NODES_MAX && report.forwards > 0);
    Ok(())
}

#[test]
fn a_report_serialises_and_its_parameters_repeat_the_run() -> Result<(), Box<dyn std::error::Error>> {
    let traffic = Traffic { messages_per_node: 5, ..skewed() };
    let simulation =
        Simulation { traffic, pool: DirectPolicy::new(1, None), ..Simulation::new(Shape::Ring, 8, 7) };
    let json = serde_json::to_value(simulation.run(None)?)?;
    assert_eq!(json["messages"], 40);
    assert_eq!(json["parameters"]["seed"], 7);
    assert_eq!(json["parameters"]["topology"], "ring");
    assert_eq!(json["per_node"].as_array().map(Vec::len), Some(8));
    assert!(json["forwards"].is_u64() && json["forwards_per_message"].is_f64() && json["seconds"].is_f64());
    assert!(json["per_node"][3]["latency"]["p99_seconds"].is_f64());
    let again: Simulation = serde_json::from_value(json["parameters"].clone())?;
    assert_eq!(again, simulation);
    assert_eq!(serde_json::to_value(again.run(None)?)?, json);
    Ok(())
}
