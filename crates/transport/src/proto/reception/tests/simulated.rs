//! Many senders and one receiver in virtual time.

use std::time::{Duration, Instant};

use fastrand::Rng;
use lightship_tuner::reception::ReceptionStrategy;

use crate::Result;
use crate::proto::reception::simulate::{Outcome, Simulation, SimulationReport, TreeSimulation};
use crate::proto::reception::{ReceptionMode, SenderConfig, Start};

const PULL: ReceptionMode = ReceptionMode::Pull { connections: 16 };

/// Runs a simulation, and checks what holds for all of them.
fn check(simulation: &Simulation) -> Result<SimulationReport> {
    let report = simulation.run(Instant::now())?;
    let replay = format!("seed {}: {simulation:?} {report:?}", simulation.seed);
    assert_eq!(report.outcome, Outcome::Complete, "{replay}");
    assert_eq!(report.faulty_parts, 0, "{replay}");
    assert!(report.used_bytes_peak <= simulation.budget_bytes, "{replay}");
    assert!(report.buffered_bytes_peak <= simulation.budget_bytes, "{replay}");
    let connections = simulation.connections_max + u32::from(simulation.in_order);
    assert!(report.open_peak <= connections, "{replay}");
    Ok(report)
}

fn random(seed: u64) -> Simulation {
    let mut rng = Rng::with_seed(seed);
    let senders = [1, 2, 10, 100, 1000][rng.usize(0..5)];
    let senders = rng.u32(0..=senders);
    let mode = match rng.u8(0..4) {
        0 => ReceptionMode::Push,
        1 => ReceptionMode::BackOff,
        2 => ReceptionMode::Pull { connections: rng.u32(1..100) },
        _ => ReceptionMode::Auto,
    };
    let in_order = rng.bool() && !matches!(mode, ReceptionMode::Push | ReceptionMode::BackOff);
    let messages = [1, 3, 20][rng.usize(0..3)];
    Simulation {
        start: if rng.bool() { Start::AsAnnounced } else { Start::WhenCovered },
        part_messages: messages,
        is_varied: rng.bool(),
        loss: [0.0, 0.01, 0.2][rng.usize(0..3)],
        crashes: [0.0, 0.1, 1.0][rng.usize(0..3)],
        rtt_seconds: [0.0, 0.5e-3, 0.1][rng.usize(0..3)],
        link_bytes_per_second: [1e6, 1.25e9][rng.usize(0..2)],
        backlog: rng.u32(1..200),
        retransmissions: rng.u32(0..8),
        resets: rng.bool(),
        datagrams_max: rng.u32(1..300),
        connections_max: rng.u32(1..100),
        budget_bytes: rng.u64(20_000..1_000_000),
        processors: rng.u32(1..4),
        sender: SenderConfig {
            announce_spread: Duration::from_micros(rng.u64(0..20_000)),
            ..SenderConfig::default()
        },
        in_order,
        ..Simulation::new(senders, mode, seed)
    }
}

#[test]
fn every_part_is_received_once_within_the_budget() -> Result<()> {
    for seed in 0..200 {
        check(&random(seed))?;
    }
    Ok(())
}

#[test]
fn datagrams_may_be_doubled_and_overtake_each_other() -> Result<()> {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let (doubles, jitter_seconds) = ([0.0, 0.1, 1.0][rng.usize(0..3)], [0.0, 1e-3, 0.5][rng.usize(0..3)]);
        let mode = ReceptionMode::Pull { connections: rng.u32(1..100) };
        let simulation = if rng.bool() { random(seed) } else { Simulation { mode, ..random(seed) } };
        check(&Simulation { doubles, jitter_seconds, ..simulation })?;
    }
    Ok(())
}

#[test]
fn a_simulation_can_be_replayed() -> Result<()> {
    for seed in 0..20 {
        assert_eq!(check(&random(seed))?, check(&random(seed))?, "seed {seed}");
    }
    Ok(())
}

#[test]
fn push_leaves_holes_which_are_asked_again() -> Result<()> {
    let small = Simulation {
        backlog: 10,
        connections_max: 10,
        retransmissions: 1,
        ..Simulation::new(1000, ReceptionMode::Push, 1)
    };
    let report = check(&small)?;
    assert!(report.asked > 500 && report.dropped + report.refused > 500, "{report:?}");
    // With few senders there is nothing to refuse.
    let few = check(&Simulation { senders: 10, ..small })?;
    assert_eq!((few.asked, few.dropped, few.refused), (0, 0, 0));
    assert!(few.seconds < 0.01, "{few:?}");
    Ok(())
}

#[test]
fn pull_is_linear() -> Result<()> {
    let seconds = |senders| -> Result<f64> { Ok(check(&Simulation::new(senders, PULL, 1))?.seconds) };
    let thousand: f64 = seconds(1000)? - seconds(500)?;
    let ten_thousand: f64 = seconds(10_000)? - seconds(5000)?;
    let slope = ten_thousand / thousand;
    assert!((9.0..11.0).contains(&slope), "{slope}");
    Ok(())
}

#[test]
fn overflowing_announcements_are_repeated() -> Result<()> {
    let sender = SenderConfig { announce_spread: Duration::ZERO, ..SenderConfig::default() };
    let report = check(&Simulation { sender, ..Simulation::new(5000, PULL, 1) })?;
    assert!(report.announcements_lost > 1000, "{report:?}");
    let spread = check(&Simulation::new(5000, PULL, 1))?;
    assert!(spread.announcements_lost < 50 && spread.seconds < report.seconds, "{spread:?}");
    Ok(())
}

#[test]
fn auto_is_nearly_as_fast_as_the_best() -> Result<()> {
    for (senders, part_messages, rtt_seconds) in
        [(1, 1, 0.5e-3), (4, 1, 0.5e-3), (4, 50, 0.02), (100, 1, 0.5e-3), (1000, 10, 0.02), (5000, 1, 5e-3)]
    {
        let run =
            |mode| check(&Simulation { part_messages, rtt_seconds, ..Simulation::new(senders, mode, 3) });
        let auto = run(ReceptionMode::Auto)?;
        let others =
            [ReceptionMode::Push, ReceptionMode::BackOff, ReceptionMode::Pull { connections: 4 }, PULL];
        let mut best = f64::INFINITY;
        for mode in others {
            best = best.min(run(mode)?.seconds);
        }
        assert!(auto.seconds < 1.3 * best, "{senders} senders: {best} {auto:?}");
    }
    Ok(())
}

/// The closed forms, against the simulation with the same parameters.
#[test]
fn the_model_predicts_the_simulation() -> Result<()> {
    for senders in [10, 100, 1000, 10_000] {
        for connections in [1, 4, 16, 64] {
            let mode = ReceptionMode::Pull { connections };
            let simulation = Simulation::new(senders, mode, 5);
            let seconds = check(&simulation)?.seconds;
            let strategy = ReceptionStrategy::Pull { connections };
            let predicted = simulation.conditions().seconds(strategy).expect("valid parameters");
            let ratio = predicted / seconds;
            assert!((0.6..1.7).contains(&ratio), "{senders} {connections}: {predicted} {seconds}");
        }
        let simulation = Simulation::new(senders.min(100), ReceptionMode::Push, 5);
        let seconds = check(&simulation)?.seconds;
        let predicted = simulation.conditions().seconds(ReceptionStrategy::Push).expect("valid parameters");
        assert!((0.6..1.7).contains(&(predicted / seconds)), "{senders}: {predicted} {seconds}");
    }
    Ok(())
}

#[test]
fn a_tree_is_faster_for_small_answers_of_many() -> Result<()> {
    let tiny =
        Simulation { message_bytes: 64, message_rows: 1, ..Simulation::new(10_000, ReceptionMode::Auto, 1) };
    let tree = TreeSimulation { flat: tiny.clone(), fan_out: 32, kept: 0.0, samples: 2 };
    let (flat, grouped) = (check(&tiny)?.seconds, tree.run(Instant::now())?);
    assert_eq!(grouped.levels, 3);
    assert!(grouped.seconds * 5.0 < flat, "{flat} {grouped:?}");
    // With few servers, the levels cost more than they save.
    let few = Simulation { senders: 8, sender: SenderConfig::default(), ..tiny };
    let tree = TreeSimulation { flat: few.clone(), fan_out: 2, kept: 0.0, samples: 2 };
    assert!(tree.run(Instant::now())?.seconds > check(&few)?.seconds);
    Ok(())
}

#[test]
fn invalid_parameters_are_errors() {
    let simulation = Simulation::new(10, ReceptionMode::Auto, 1);
    for simulation in [
        Simulation { loss: 0.9, ..simulation.clone() },
        Simulation { rtt_seconds: f64::NAN, ..simulation.clone() },
        Simulation { budget_bytes: 0, ..simulation.clone() },
        Simulation { backlog: 0, ..simulation },
    ] {
        assert!(simulation.run(Instant::now()).is_err(), "{simulation:?}");
    }
}
