//! Processors and disk of a query that a limit of its control group holds back.
//!
//! Threads are not alike: some compute, and many may wait for what they have asked a disk for ahead. The number of those
//! that wait tells nothing then. What does is for how much of the time processors and disk are in use: if the threads
//! always have to wait for more quota, no disk could make them faster, and if the disk always has requests, no processor
//! could. If both are in use for parts of the time, each has its share of it; the more threads there are, the less of it
//! has the one that is in use for less, because its work is hidden behind the other. For N equal threads that take turns
//! at two devices, the shares are about the Nth powers of the times for which these are in use.

use crate::disk::disk_work;
use crate::figure::Figure;
use crate::gather::Readings;
use crate::load::PARALLELISM_SLACK;
use crate::query::QuerySpan;

/// Times of threads in a step, as fractions of it.
pub(crate) struct Waits {
    /// Using processors; `None` if that is not known.
    pub(crate) cpu: Option<f64>,
    /// Ready to run.
    pub(crate) waited: Option<f64>,
    /// Of that, held back by the limit.
    pub(crate) quota: f64,
    /// Using processors, or waiting for those that the query itself used, or for the quota.
    pub(crate) cpu_self: f64,
    /// Waiting for disks; `None` if that is not counted.
    pub(crate) disk_wait: Option<f64>,
}

/// The same, as the processors and the disk were in use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Held {
    /// Of the time of both, that of processors.
    pub(crate) cpu_time: f64,
    /// And of the disk.
    pub(crate) disk_time: f64,
    /// For how much of the step processors or the quota would be in use if the disk took no time.
    pub(crate) cpu_alone: f64,
    /// The same of the disk, as far as its speed is known.
    pub(crate) disk_alone: f64,
}

/// Divides the time of threads that use processors and of those that wait for disks. `None` if no limit holds them back, or
/// they can have followed each other.
pub(crate) fn held_back(
    readings: &Readings,
    span: &QuerySpan,
    (from, to): (u64, u64),
    waits: Waits,
) -> Option<Held> {
    let disk_wait = waits.disk_wait.filter(|wait| *wait > 0.0)?;
    let length_ns = to.saturating_sub(from).max(1) as f64;
    let pressure = readings.around(Figure::PressureIoSomeNs, from, to).map(|wait| wait / length_ns);
    // Bytes are counted when they are asked for: only in the whole run do they belong to the waits.
    let disk = disk_work(readings, span.began_ns, span.ended_ns);
    let seconds = disk.and_then(|disk| Some(disk.sequential_seconds? + disk.random_seconds?));
    let needed = seconds.map(|seconds| seconds * 1e9 / readings.disk_in_use_ns.max(1.0));
    let needed = needed.map(|needed| needed.min(1.0) * disk_wait.min(1.0));
    divide(&waits, disk_wait, in_use(disk_wait, pressure, needed), needed)
}

/// For how much of a step a disk has requests. While the host says that no thread waits, none does; but it weighs the
/// waits on each processor by the work of that processor, and with a quota that can be far less than the disk needs.
fn in_use(disk_wait: f64, pressure: Option<f64>, needed: Option<f64>) -> f64 {
    disk_wait.min(1.0).min(pressure.unwrap_or(1.0)).max(needed.unwrap_or(0.0))
}

/// The same for a disk that has requests for `disk_in_use` of the step, and by calibration needs `needed` of it.
fn divide(waits: &Waits, disk_wait: f64, disk_in_use: f64, needed: Option<f64>) -> Option<Held> {
    let &Waits { quota, cpu_self, .. } = waits;
    let both = cpu_self + disk_wait;
    if quota <= 0.0 || both <= 1.0 {
        return None;
    }
    // The wait for the quota is that of all threads that were ready to run.
    let ready = (waits.waited.unwrap_or(quota) - PARALLELISM_SLACK).ceil().max(1.0);
    let cpu_in_use = (waits.cpu.unwrap_or(0.0) + quota / ready).clamp(f64::MIN_POSITIVE, 1.0);
    // A disk that is as fast as it was calibrated is in use for no longer. A slower one shows in that the processors are
    // not always in use.
    let disk_in_use =
        needed.map_or(disk_in_use, |needed| needed + (disk_in_use - needed) * (1.0 - cpu_in_use));
    let ratio = (disk_in_use / cpu_in_use).powf(both);
    let disk_part = if ratio.is_finite() { ratio / (1.0 + ratio) } else { 1.0 };
    // Without the limit, all threads can compute, and those that wait for the disk wait for no one else.
    let limited = quota.min(1.0);
    let disk_time = disk_wait + (disk_part * both - disk_wait) * limited;
    Some(Held {
        cpu_time: both - disk_time,
        disk_time,
        cpu_alone: cpu_in_use,
        disk_alone: needed.unwrap_or(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(cpu: f64, quota: f64, disk_wait: f64, needed: Option<f64>) -> Option<f64> {
        let waited = Some(quota * 1.02);
        let waits =
            Waits { cpu: Some(cpu), waited, quota, cpu_self: cpu + quota, disk_wait: Some(disk_wait) };
        let held = divide(&waits, disk_wait, disk_wait.min(1.0), needed)?;
        let both = held.cpu_time + held.disk_time;
        assert!((both - cpu - quota - disk_wait).abs() < 1e-9 && held.cpu_time >= 0.0, "{held:?}");
        Some(held.disk_time / both)
    }

    #[test]
    fn a_thread_that_takes_turns_needs_no_division() {
        assert_eq!(divided(0.1, 0.4, 0.5, None), None);
        assert_eq!(divided(0.9, 0.0, 5.0, None), None);
        // Nearly in turns.
        assert!((divided(0.1, 0.5, 0.45, None).unwrap() - 0.45 / 1.05).abs() < 0.03);
    }

    #[test]
    fn a_disk_is_in_use_for_as_long_as_its_bytes_take() {
        // Measured: 42 MB at 22 MB/s in 2.4 s, in which four threads waited, and a pressure of a fifth.
        assert_eq!(in_use(4.2, Some(0.21), Some(0.8)), 0.8);
        assert_eq!(in_use(4.2, Some(0.21), None), 0.21);
        assert_eq!((in_use(4.2, None, Some(0.8)), in_use(0.5, Some(0.9), None)), (1.0, 0.5));
    }

    #[test]
    fn many_threads_that_wait_for_a_disk_are_one_use_of_it() {
        let tie = divided(0.1, 0.9, 6.0, None).unwrap();
        assert!((0.45..0.65).contains(&tie), "{tie}");
        // The disk needs less than the waits suggest: the threads ask ahead.
        assert!(divided(0.1, 0.9, 6.0, Some(0.6)).unwrap() < 0.2);
        // The quota lasts for most of the step.
        assert!(divided(0.1, 0.3, 6.0, Some(1.0)).unwrap() > 0.9);
        // A disk that has become slower than it was.
        assert!(divided(0.1, 0.3, 6.0, Some(0.1)).unwrap() > 0.8);
    }
}
