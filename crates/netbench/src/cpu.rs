//! Processor use of this process and of the whole host.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use lightship_tuner::median;
use procfs_core::process::{LimitValue, Limits, Stat};
use procfs_core::{ExplicitSystemInfo, FromBufRead, FromBufReadSI, FromRead, KernelStats};
use serde::{Deserialize, Serialize};

/// The interval between two samples.
pub(crate) const EVERY: Duration = Duration::from_millis(100);
/// The number of intervals that a percentage spans. The kernel counts in ticks of 10 ms, a tenth of a single
/// interval.
const SPAN: usize = 5;
/// `USER_HZ`, the unit in which Linux reports times to programs, whatever the kernel's own tick is.
const TICKS_PER_SECOND: u64 = 100;
/// Enough for a host with thousands of processors and interrupts.
const TEXT_MAX: usize = 4 << 20;
/// The maximum number of samples, more than the longest phase has.
const SAMPLES_MAX: usize = 10_000;

/// Medians of the samples taken during a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Use by the process, in percent of one core: 200 if it keeps two cores busy. `None` if the
    /// system does not report it.
    pub process_percent: Option<f64>,
    /// Use of the host, in percent of all its cores, from 0 to 100.
    pub system_percent: Option<f64>,
}

/// Processor time used so far.
#[derive(Debug, Clone, Copy)]
struct Used {
    at: Instant,
    process_ticks: Option<u64>,
    /// Busy and total ticks of all cores.
    system_ticks: Option<(u64, u64)>,
}

/// The files in which the system reports processor time. Open them early: later, connections may have used
/// up the limit of open files.
#[derive(Debug)]
pub(crate) struct Meter {
    process: Option<File>,
    system: Option<File>,
}

impl Meter {
    pub(crate) fn open() -> Self {
        Self { process: File::open("/proc/self/stat").ok(), system: File::open("/proc/stat").ok() }
    }

    fn used(&self) -> Used {
        let process = self.process.as_ref().and_then(text).and_then(|text| Stat::from_read(&text[..]).ok());
        let system = self.system.as_ref().and_then(text).and_then(|text| {
            let info = ExplicitSystemInfo {
                boot_time_secs: 0,
                ticks_per_second: TICKS_PER_SECOND,
                page_size: 4096,
                is_little_endian: cfg!(target_endian = "little"),
            };
            KernelStats::from_buf_read(&text[..], &info).ok()
        });
        Used {
            at: Instant::now(),
            process_ticks: process.map(|stat| stat.utime.saturating_add(stat.stime)),
            system_ticks: system.map(|stats| {
                let total = stats.total;
                let counted = [total.irq, total.softirq, total.steal].into_iter().flatten();
                let busy = total.user + total.nice + total.system + counted.sum::<u64>();
                (busy, busy + total.idle + total.iowait.unwrap_or(0))
            }),
        }
    }
}

/// Reads a system file from its beginning. Several threads may do so at once.
fn text(file: &File) -> Option<Vec<u8>> {
    let mut text = vec![0; 16 << 10];
    let mut read = 0;
    while read < TEXT_MAX {
        if read == text.len() {
            text.resize(2 * read, 0);
        }
        match file.read_at(&mut text[read..], read as u64).ok()? {
            0 => break,
            count => read += count,
        }
    }
    text.truncate(read);
    Some(text)
}

/// Samples taken during a measurement.
#[derive(Debug)]
pub(crate) struct Sampler<'a> {
    meter: &'a Meter,
    samples: Vec<Used>,
}

impl<'a> Sampler<'a> {
    /// Takes the first sample.
    pub(crate) fn start(meter: &'a Meter) -> Self {
        Self { meter, samples: vec![meter.used()] }
    }

    /// Takes another sample.
    pub(crate) fn sample(&mut self) {
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(self.meter.used());
        }
    }

    /// Takes the last sample and returns the medians.
    pub(crate) fn finish(mut self) -> Cpu {
        self.sample();
        summarise(&self.samples)
    }
}

fn summarise(samples: &[Used]) -> Cpu {
    let span = SPAN.min(samples.len().saturating_sub(1));
    let pairs = || samples.iter().zip(samples.iter().skip(span));
    Cpu {
        process_percent: median(pairs().filter_map(|(from, to)| process(from, to))),
        system_percent: median(pairs().filter_map(|(from, to)| system(from, to))),
    }
}

fn process(from: &Used, to: &Used) -> Option<f64> {
    let ticks = to.process_ticks?.checked_sub(from.process_ticks?)?;
    let seconds = to.at.duration_since(from.at).as_secs_f64();
    (seconds > 0.0).then(|| ticks as f64 / TICKS_PER_SECOND as f64 / seconds * 100.0)
}

fn system(from: &Used, to: &Used) -> Option<f64> {
    let ((busy_from, all_from), (busy_to, all_to)) = (from.system_ticks?, to.system_ticks?);
    // The kernel may correct idle time downwards.
    let (busy, all) = (busy_to.saturating_sub(busy_from), all_to.checked_sub(all_from)?);
    (all > 0).then(|| (busy as f64 / all as f64 * 100.0).min(100.0))
}

/// The number of files, including sockets, that this process may have open. `None` if there is no limit
/// or it is unknown.
pub fn open_files_max() -> Option<u64> {
    // Read once, because a process that has reached the limit can't read it any more.
    static LIMIT: OnceLock<Option<u64>> = OnceLock::new();
    *LIMIT.get_or_init(|| parse_limit(&std::fs::read("/proc/self/limits").ok()?))
}

fn parse_limit(text: &[u8]) -> Option<u64> {
    match Limits::from_buf_read(text).ok()?.max_open_files.soft_limit {
        LimitValue::Value(limit) => Some(limit),
        LimitValue::Unlimited => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(began: Instant, at_ms: u64, process: u64, system: (u64, u64)) -> Used {
        let at = began + Duration::from_millis(at_ms);
        Used { at, process_ticks: Some(process), system_ticks: Some(system) }
    }

    #[test]
    fn percentages_are_of_one_core_and_of_all() {
        let began = Instant::now();
        // The process uses one and a half cores.
        let busy = [used(began, 0, 100, (0, 0)), used(began, 1000, 250, (160, 200))];
        assert_eq!(summarise(&busy), Cpu { process_percent: Some(150.0), system_percent: Some(80.0) });
        assert_eq!(summarise(&busy[..1]), Cpu::default());
        assert_eq!(summarise(&[]), Cpu::default());
    }

    #[test]
    fn percentages_tolerate_late_ticks() {
        let began = Instant::now();
        // Half a core; every other sample is a tick ahead.
        let samples: Vec<_> =
            (0..20).map(|n| used(began, n * 100, n * 5 + n % 2, (n * 10, n * 20))).collect();
        let cpu = summarise(&samples);
        assert!((cpu.process_percent.expect("known") - 50.0).abs() <= 2.0, "{cpu:?}");
        assert_eq!(cpu.system_percent, Some(50.0));
    }

    #[test]
    fn this_host_reports_its_use() {
        let meter = Meter::open();
        let mut sampler = Sampler::start(&meter);
        sampler.sample();
        let used = sampler.samples[0];
        assert!(used.process_ticks.is_some() && used.system_ticks.is_some_and(|(busy, all)| busy <= all));
        assert!(open_files_max().is_none_or(|limit| limit > 3));
    }
}
