//! Predictions against the same query on changed machines.

use super::machine::*;
use super::scenarios::*;
use crate::*;

/// The hosts of a story, run on changed machines.
type Hosts = Vec<(&'static str, Machine, &'static [Op], usize)>;

fn changed(hosts: &Hosts, change: &Change) -> Story {
    let machine = |machine: &Machine| Machine {
        cpu: machine.cpu * change.cpu,
        disk: machine.disk * change.disk_sequential,
        access: machine.access / change.disk_random,
        link: machine.link * change.network,
        round_trip: machine.round_trip / change.round_trip,
        ..*machine
    };
    story(&hosts.iter().map(|(name, of, ops, units)| (*name, machine(of), *ops, *units)).collect::<Vec<_>>())
}

fn stories() -> Vec<(&'static str, Hosts)> {
    const AHEAD: &[Op] = &[Op::ReadAhead(2e6), Op::Cpu(0.02)];
    let slow = Machine { link: 12.5e6, ..NODE };
    let hogged = Machine { hogs: 4.0, ..NODE };
    vec![
        ("compute", vec![("node1", NODE, COMPUTE, 400), ("node2", NODE, COMPUTE, 300)]),
        ("scan", vec![("node1", NODE, SCAN, 400), ("node2", NODE, SCAN, 300)]),
        ("lookup", vec![("node1", NODE, LOOKUP, 400)]),
        ("mixed", vec![("node1", NODE, MIXED, 400)]),
        ("ahead", vec![("node1", NODE, AHEAD, 400)]),
        ("answer", vec![("node1", slow, ANSWER, 120)]),
        ("fetch", vec![("node1", NODE, FETCH, 60_000), ("client", NODE, &[Op::Sleep(0.001)], 1)]),
        ("hogged", vec![("node1", hogged, COMPUTE, 200)]),
    ]
}

fn changes() -> [Change; 9] {
    let none = Change::default();
    [
        Change { cpu: 2.0, ..none },
        Change { cpu: 0.5, ..none },
        Change { cpu: 4.0, ..none },
        Change { disk_sequential: 2.0, disk_random: 2.0, ..none },
        Change { disk_sequential: 0.5, disk_random: 0.5, ..none },
        Change { disk_random: 10.0, ..none },
        Change { network: 4.0, ..none },
        Change { network: 0.5, ..none },
        Change { round_trip: 4.0, ..none },
    ]
}

#[test]
#[allow(clippy::print_stdout)]
fn changes_turn_out_as_predicted() {
    for sampling in [FINE, COARSE] {
        let (mut sum, mut count, mut worst, mut inside) = (0.0, 0.0, 0.0f64, 0);
        for (name, hosts) in stories() {
            let before = changed(&hosts, &Change::default());
            let footprint = before.footprint(sampling);
            for change in changes() {
                let prediction = what_if(&footprint, &change, &History::default()).unwrap();
                let measured = changed(&hosts, &change).run_seconds();
                let run = PredictedRun { predicted_seconds: prediction.seconds, measured_seconds: measured };
                let error = run.relative_error();
                println!(
                    "{name:8} {:?}: {measured:.2} s, predicted {:.2} ({:.2} to {:.2}) {:.1}%",
                    change.kind(),
                    prediction.seconds,
                    prediction.low_seconds,
                    prediction.high_seconds,
                    error * 100.0
                );
                (sum, count, worst) = (sum + error, count + 1.0, worst.max(error));
                inside += u32::from((prediction.low_seconds..=prediction.high_seconds).contains(&measured));
            }
        }
        println!(
            "{:.1}% mean, {:.1}% worst, {inside} of {count} in the interval",
            sum / count * 100.0,
            worst * 100.0
        );
        assert!(sum / count <= 0.1 && worst <= 0.2, "{sampling:?}");
        assert!(f64::from(inside) >= 0.95 * count);
    }
}

/// A coordinator that works for a second after nodes have scanned their parts: a quarter each, or a half.
fn nodes(count: usize) -> Story {
    const NAMES: [&str; 4] = ["node1", "node2", "node3", "node4"];
    let hosts: Vec<_> = NAMES[..count].iter().map(|name| (*name, NODE, SCAN, 400 / count)).collect();
    let mut story = story(&hosts);
    let threads = vec![run(&NODE, &[Op::Cpu(0.01)], 100, 0.0, story.run_seconds() + BEFORE)];
    story.ran.push(Ran { name: "coordinator", machine: NODE, threads, divides: false, is_client: false });
    story
}

#[test]
fn more_nodes_divide_the_work_of_nodes_only() {
    let change =
        |from, to| Change { nodes: Some(NodesChange { from, to, divided: 1.0 }), ..Change::default() };
    for (from, to) in [(1, 2), (2, 4), (4, 1), (1, 4)] {
        for sampling in [FINE, COARSE] {
            let footprint = nodes(from as usize).footprint(sampling);
            let prediction = what_if(&footprint, &change(from, to), &History::default()).unwrap();
            let measured = nodes(to as usize).run_seconds();
            let error = (prediction.seconds / measured - 1.0).abs();
            assert!(error < 0.1, "{from} to {to}: {} s, measured {measured} s", prediction.seconds);
        }
    }
    // With half of the data replicated, half of the time of a scan stays.
    let footprint = nodes(2).footprint(FINE);
    let half = Change { nodes: Some(NodesChange { from: 2, to: 4, divided: 0.5 }), ..Change::default() };
    let prediction = what_if(&footprint, &half, &History::default()).unwrap();
    let scan = footprint.run_ns as f64 / 1e9 - 1.0;
    assert!((prediction.seconds - (0.75 * scan + 1.0)).abs() < 0.1, "{}", prediction.seconds);
}

/// When the nodes of a cluster know their plans, in seconds.
const PLANNED: f64 = 0.5;
/// What the first node does beside tasks, and after that.
const SENDING: f64 = 0.3;
const LAST_STAGE: f64 = 1.0;

/// Nodes that know each other: the first one plans, sends the plans, and after the scans of all it runs the last stage.
/// One node alone does all in one task. Disks are as fast as said, but for the first one, which is that of `NODE`.
fn cluster(count: usize, disk: f64) -> Story {
    const NAMES: [&str; 6] = ["node1", "node2", "node3", "node4", "node5", "node6"];
    let planned = BEFORE + PLANNED;
    let machine = |number| Machine { disk: if number == 0 { NODE.disk } else { disk }, ..NODE };
    let scan = |number, start| run(&machine(number), SCAN, 400 / count, 0.0, start);
    let began = planned + if count > 1 { SENDING } else { 0.0 };
    let scanned = scan(count as u32 - 1, began).end;
    let coordinate = [Op::Cpu(PLANNED), Op::Sleep(scanned - planned), Op::Cpu(LAST_STAGE)];
    let mut ran: Vec<Ran> = Vec::new();
    for (name, number) in NAMES[..count].iter().zip(0..) {
        let mut threads = Vec::new();
        if number == 0 {
            threads.push(run(&NODE, &coordinate, 1, 0.0, BEFORE).for_task(0, 0, planned));
        }
        if number == 0 && count > 1 {
            threads.push(run(&NODE, &[Op::Cpu(SENDING)], 1, 0.0, planned));
        }
        let stage = u32::from(count > 1);
        threads.push(scan(number, began).for_task(stage, number, began));
        ran.push(Ran { name, machine: machine(number), threads, divides: true, is_client: false });
    }
    let planned_ns = Some((PLANNED * 1e9) as u64);
    Story { ran, known: Known { planned_ns, ..Known::default() }, calibrated: NODE }
}

#[test]
fn planning_and_stages_of_one_task_stay_whole_on_any_number_of_nodes() {
    const RARE: Sampling = Sampling { interval: 0.2, ..FINE };
    let predict = |from: usize, to: u32, disk, sampling| {
        let footprint = cluster(from, disk).footprint(sampling);
        check_sum(&footprint);
        let nodes = Some(NodesChange { from: from as u32, to, divided: 1.0 });
        what_if(&footprint, &Change { nodes, ..Change::default() }, &History::default()).unwrap()
    };
    let changes = [(3, 6), (6, 3), (2, 4), (4, 2)].into_iter();
    // Nodes that are alike, or of which the first one never limits the scans.
    for ((from, to), disk) in changes.flat_map(|change| [(change, NODE.disk), (change, NODE.disk / 2.0)]) {
        for (sampling, error_max) in [(FINE, 0.03), (RARE, 0.1), (COARSE, 0.15)] {
            let prediction = predict(from, to, disk, sampling);
            let measured = cluster(to as usize, disk).run_seconds();
            let error = (prediction.seconds / measured - 1.0).abs();
            assert!(error < error_max, "{from} to {to}: {}, measured {measured}", prediction.seconds);
            assert!(
                prediction.notes.iter().any(|note| note.contains("would not be divided among more nodes"))
            );
        }
    }
    // With one node, the last stage is a part of its only task.
    let run = cluster(1, NODE.disk).run_seconds();
    let predicted = predict(1, 4, NODE.disk, FINE).seconds;
    assert!((predicted - (PLANNED + (run - PLANNED) / 4.0)).abs() < 0.05, "{predicted} of {run}");
}

#[test]
fn absurd_changes_are_refused() {
    let footprint = random_disk().footprint(COARSE);
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
        let change = Change { cpu: factor, ..Change::default() };
        assert!(matches!(
            what_if(&footprint, &change, &History::default()),
            Err(UsageError::OutOfRange { what: "factor of the CPU", .. })
        ));
    }
    let nodes =
        |from, to, divided| Change { nodes: Some(NodesChange { from, to, divided }), ..Change::default() };
    for change in [nodes(0, 2, 1.0), nodes(1, 0, 1.0), nodes(1, u32::MAX, 1.0), nodes(1, 2, 1.5)] {
        assert!(what_if(&footprint, &change, &History::default()).is_err());
    }
    let mut alone = footprint.clone();
    alone.hosts.iter_mut().for_each(|host| host.divides = false);
    let refused = what_if(&alone, &nodes(1, 2, 1.0), &History::default());
    assert!(matches!(refused, Err(UsageError::NothingDivides { .. })));
}

#[test]
fn past_errors_widen_the_interval_and_are_shown() {
    let footprint = cpu_bound().footprint(COARSE);
    let change = Change { cpu: 2.0, ..Change::default() };
    let mut history = History::default();
    for _ in 0..6 {
        history.add(ChangeKind::Cpu, PredictedRun { predicted_seconds: 1.0, measured_seconds: 2.0 }).unwrap();
    }
    let prediction = what_if(&footprint, &change, &history).unwrap();
    assert_eq!(prediction.error.unwrap().to_string(), "mean error 50%, worst 50%, in 6 earlier runs");
    assert!(prediction.high_seconds >= 1.499 * prediction.seconds);
    let same = what_if(&footprint, &Change::default(), &history).unwrap();
    assert!((same.seconds - same.measured_seconds).abs() < 1e-6);
    assert!(same.high_seconds - same.low_seconds < 1e-6);
}

#[test]
fn calibrated_speeds_give_the_change_between_hosts() {
    let speeds = |cpu, access| HostSpeeds {
        cpu_units_per_second: cpu,
        disk_access_seconds: Some(access),
        ..HostSpeeds::default()
    };
    let change = Change::between(&speeds(Some(100.0), 8e-3), &speeds(Some(250.0), 2e-3));
    assert_eq!(change, Change { cpu: 2.5, disk_random: 4.0, ..Change::default() });
    assert_eq!(Change::between(&speeds(None, 1.0), &speeds(Some(250.0), 1.0)), Change::default());
}
