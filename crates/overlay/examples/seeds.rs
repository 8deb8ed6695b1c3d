//! Simulates shuffles from many seeds with queues of one message, and checks that none deadlocks and that
//! every message arrives.
//!
//! Each seed draws its own circulant, skew, pool of direct connections and windows. A deadlock is an error;
//! the messages that each node received are compared with those drawn for it.
//!
//!     cargo run --release -p lightship-overlay --example seeds -- 4096 1000 8     nodes, seeds, messages per node

use std::io::Write;
use std::time::Instant;

use fastrand::Rng;
use lightship_overlay::{DirectPolicy, DirectUse, Simulation, Traffic, TrafficKnowledge, circulant};

/// Sets of offsets tried for each seed.
const TRIES: usize = 8;
/// Seeds between two progress lines.
const SHOWN_SEEDS: u64 = 100;

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let arguments: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [nodes, seeds, messages] = arguments[..] else {
        return Err("expected three numbers: nodes, seeds, messages per node".into());
    };
    let (began, mut done) = (Instant::now(), Done::default());
    for seed in 1..=seeds {
        done.add(&drawn(nodes as usize, messages, seed)?).map_err(|error| format!("seed {seed}: {error}"))?;
        if seed.is_multiple_of(SHOWN_SEEDS) || seed == seeds {
            let seconds = began.elapsed().as_secs_f64();
            writeln!(std::io::stdout(), "{nodes} nodes, {seed} seeds: {done}, in {seconds:.0} s")?;
        }
    }
    Ok(())
}

/// The simulation of a seed.
fn drawn(nodes: usize, messages_per_node: u64, seed: u64) -> Result<Simulation> {
    let mut rng = Rng::with_seed(seed);
    let sockets = 2 * rng.usize(4..=12);
    let weights_percent = (0..rng.usize(0..8)).map(|_| rng.f64() * 12.0).collect();
    let pool = DirectPolicy {
        knowledge: if rng.bool() { TrafficKnowledge::Local } else { TrafficKnowledge::Global },
        both_ways: rng.bool(),
        margin: if rng.bool() { 0.25 } else { 0.0 },
        ..DirectPolicy::new(rng.usize(0..=4), rng.bool().then(|| rng.usize(1..=24)))
    };
    Ok(Simulation {
        pool,
        period_seconds: 10_f64.powf(-3.0 + 1.5 * rng.f64()),
        through: if rng.bool() { DirectUse::Own } else { DirectUse::All },
        traffic: Traffic { messages_per_node, weights_percent, ..Traffic::default() },
        queue_messages: 1,
        window_messages: rng.usize(1..=messages_per_node.min(32) as usize),
        ..Simulation::new(circulant(nodes, sockets, TRIES, seed)?, nodes, seed)
    })
}

/// Totals over all simulations.
#[derive(Default)]
struct Done {
    messages: u64,
    forwards: u64,
    reconnections: u64,
    hops_max: f64,
}

impl Done {
    fn add(&mut self, simulation: &Simulation) -> Result<()> {
        // A deadlock is an error here.
        let report = simulation.run(None)?;
        let Simulation { traffic, nodes, seed, .. } = simulation;
        let mut expected = vec![0; *nodes];
        for from in 0..*nodes {
            traffic.destinations(from, *nodes, *seed).for_each(|to| expected[to] += 1);
        }
        for (number, (node, expected)) in report.per_node.iter().zip(expected).enumerate() {
            if (node.sent, node.received) != (traffic.messages_per_node, expected) {
                let (sent, received) = (node.sent, node.received);
                return Err(format!("node {number} sent {sent}, received {received} of {expected}").into());
            }
        }
        self.messages += report.messages;
        self.forwards += report.forwards;
        self.reconnections += report.reconnections;
        self.hops_max = self.hops_max.max(report.forwards_per_message + 1.0);
        Ok(())
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} messages arrived, none lost or duplicated, {} forwards, {} reconnections, at most {:.1} mean hops",
            self.messages, self.forwards, self.reconnections, self.hops_max
        )
    }
}
