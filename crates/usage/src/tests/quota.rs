//! Queries that a limit of their control group holds back, while many of their threads read ahead.

use std::collections::BTreeMap;

use super::corners::*;
use super::machine::*;
use super::scenarios::*;
use crate::*;

const S: u64 = 1_000_000_000;
const DISK_BYTES_PER_SECOND: f64 = 22e6;

/// What a process used and waited for in each second: processors, its quota, the disk, and megabytes that it read.
struct PerSecond {
    cpu: Growth,
    quota: Growth,
    disk_wait: Growth,
    bytes: Growth,
}

/// A tenth of a processor, used all the time, and six threads that ask the disk ahead for 13 MB/s.
const COMPUTES: PerSecond =
    PerSecond { cpu: |t| 0.1 * t, quota: |t| 0.88 * t, disk_wait: |t| 5.0 * t, bytes: |t| 0.013 * t };
/// The quota lasts, and the disk does not.
const READS: PerSecond =
    PerSecond { cpu: |t| 0.05 * t, quota: |t| 0.4 * t, disk_wait: |t| 5.0 * t, bytes: |t| 0.022 * t };

fn footprint(of: &PerSecond, is_calibrated: bool, pressure: Option<Growth>) -> Footprint {
    let waited = of.quota;
    let mut entries = vec![
        (process("a"), Figure::CpuUserNs, of.cpu),
        (process("a"), Figure::RunQueueWaitNs, waited),
        (process("a"), Figure::QuotaWaitNs, of.quota),
        (process("a"), Figure::DiskWaitNs, of.disk_wait),
        (process("a"), Figure::DiskReadBytes, of.bytes),
    ];
    entries.extend(pressure.map(|pressure| (Subject::Host, Figure::PressureIoSomeNs, pressure)));
    let speeds = HostSpeeds {
        disk_read_bytes_per_second: is_calibrated.then_some(DISK_BYTES_PER_SECOND),
        disk_access_seconds: is_calibrated.then_some(5e-3),
        ..HostSpeeds::default()
    };
    let speeds = BTreeMap::from([("node1".to_owned(), speeds)]);
    let span = span(5 * S, 15 * S, vec![Worker::own(process("a"))]);
    let footprint = Footprint::new(&one_host(S / 5, 20 * S, &entries), &speeds, &span).unwrap();
    check_sum(&footprint);
    show("quota", &footprint);
    footprint
}

/// The predicted time, as a part of the measured one.
fn predicted(footprint: &Footprint, change: Change) -> f64 {
    let prediction = what_if(footprint, &change, &History::default()).unwrap();
    prediction.seconds / prediction.measured_seconds
}

const FASTER_CPU: Change =
    Change { cpu: 2.5, disk_sequential: 1.0, disk_random: 1.0, network: 1.0, round_trip: 1.0, nodes: None };
const FASTER_DISK: Change = Change { cpu: 1.0, disk_sequential: 1.4, ..FASTER_CPU };

#[test]
fn threads_that_read_ahead_do_not_hide_that_the_quota_is_the_limit() {
    let footprint = footprint(&COMPUTES, true, None);
    assert_eq!(Verdict::new(&footprint).limit, Limit::Cpu);
    // With more quota, the bytes still need 0.59 of each second.
    let faster = predicted(&footprint, FASTER_CPU);
    assert!((faster - 0.59).abs() < 0.05, "{faster}");
    let disk = predicted(&footprint, FASTER_DISK);
    assert!(disk > 0.94, "{disk}");
}

#[test]
fn a_disk_that_always_has_requests_is_the_limit_while_the_quota_lasts() {
    let footprint = footprint(&READS, true, None);
    assert_eq!(Verdict::new(&footprint).limit, Limit::DiskSequential);
    assert!(predicted(&footprint, FASTER_CPU) > 0.94);
    let disk = predicted(&footprint, FASTER_DISK);
    assert!((0.7..0.8).contains(&disk), "{disk}");
}

#[test]
fn the_pressure_of_the_host_says_for_how_long_threads_waited_for_the_disk() {
    // The kernel counts too much, as some do.
    let footprint = footprint(&COMPUTES, false, Some(|t| 0.5 * t));
    assert_eq!(Verdict::new(&footprint).limit, Limit::Cpu);
}

#[test]
fn without_calibration_and_pressure_both_may_be_the_limit() {
    let footprint = footprint(&COMPUTES, false, None);
    for part in [Part::Cpu, Part::DiskSequential] {
        let fraction = footprint.division.fraction(part);
        assert!((0.3..0.7).contains(&fraction), "{part:?}: {fraction}");
    }
}
