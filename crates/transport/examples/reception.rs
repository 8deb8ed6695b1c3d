//! Prints what the simulation of a reception takes: strategies and numbers of senders, trees and fan-outs.
//!
//! `cargo run --release -p lightship-transport --example reception [SEED]`

#![allow(clippy::print_stdout)]

use std::time::Instant;

use lightship_transport::proto::reception::ReceptionMode;
use lightship_transport::proto::reception::simulate::{
    Outcome, Simulation, SimulationReport, TreeSimulation,
};
use lightship_tuner::reception::ReceptionStrategy;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(1), |seed| seed.parse())?;
    println!(
        "seed {seed}; parts of 10 KB, 0.5 ms, 10 Gbit/s, backlog 128, at most 64 connections, budget 16 MiB"
    );
    strategies(seed)?;
    trees(seed)
}

fn strategies(seed: u64) -> Result<(), Box<dyn std::error::Error>> {
    let modes = [
        ("push", ReceptionMode::Push),
        ("back-off", ReceptionMode::BackOff),
        ("pull 1", ReceptionMode::Pull { connections: 1 }),
        ("pull 8", ReceptionMode::Pull { connections: 8 }),
        ("pull 32", ReceptionMode::Pull { connections: 32 }),
        ("auto", ReceptionMode::Auto),
    ];
    println!(
        "| senders | strategy | s | model s | refused | SYNs dropped | resent | asked | lost announcements | peak KB | run s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for senders in [1, 10, 100, 1000, 10_000, 100_000, 1_000_000] {
        for (name, mode) in modes {
            if senders > 100_000
                && !matches!(mode, ReceptionMode::Pull { connections: 32 } | ReceptionMode::Auto)
            {
                continue;
            }
            let simulation = Simulation::new(senders, mode, seed);
            let began = Instant::now();
            let report = simulation.run(began)?;
            let strategy = match mode {
                ReceptionMode::Pull { connections } => ReceptionStrategy::Pull { connections },
                _ => report.strategy,
            };
            let model = simulation.conditions().seconds(strategy)?;
            print(senders, name, &report, model, began.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

fn print(senders: u32, name: &str, report: &SimulationReport, model: f64, took: f64) {
    let SimulationReport { seconds, refused, dropped, retransmissions, asked, .. } = report;
    let outcome = if report.outcome == Outcome::Complete { "" } else { " (failed)" };
    let name = match report.strategy {
        ReceptionStrategy::Pull { connections } if name == "auto" => format!("auto: pull {connections}"),
        ReceptionStrategy::Push if name == "auto" => "auto: push".into(),
        _ => name.to_owned(),
    };
    println!(
        "| {senders} | {name}{outcome} | {seconds:.4} | {model:.4} | {refused} | {dropped} | {retransmissions} | {asked} | {} | {} | {took:.2} |",
        report.announcements_lost,
        report.used_bytes_peak / 1000
    );
}

fn trees(seed: u64) -> Result<(), Box<dyn std::error::Error>> {
    for (what, message_bytes, kept) in [("aggregates of 64 B", 64, 0.0), ("rows of 64 B, all kept", 64, 1.0)]
    {
        println!("\n{what}: seconds of a tree with fan-out f, against all servers at once (auto)\n");
        println!(
            "| senders | flat | f = 4 | f = 16 | f = 32 | f = 64 | f = 256 |\n|---|---|---|---|---|---|---|"
        );
        for senders in [10, 100, 1000, 10_000, 100_000] {
            let flat = Simulation {
                message_bytes,
                message_rows: 1,
                ..Simulation::new(senders, ReceptionMode::Auto, seed)
            };
            let mut line = format!("| {senders} | {:.4} |", flat.run(Instant::now())?.seconds);
            for fan_out in [4, 16, 32, 64, 256] {
                let tree = TreeSimulation { flat: flat.clone(), fan_out, kept, samples: 4 };
                let report = tree.run(Instant::now())?;
                line.push_str(&format!(" {:.4} ({}) |", report.seconds, report.levels));
            }
            println!("{line}");
        }
    }
    Ok(())
}
