//! Instructions and cycles of processes, by perf_event_open(2), where the processor and the system allow it.

use std::collections::HashMap;

use lightship_usage::{Figure, Figures, HostSources, SubjectKind};
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// The most threads that are counted, if enough files may be open: each takes two.
const THREADS_MAX: usize = 256;
/// The error of the system if a program has no permission to count.
const EACCES: i32 = 13;

/// Instructions and cycles.
const FIGURES: [Figure; 2] = [Figure::Instructions, Figure::Cycles];
const EVENTS: [Hardware; 2] = [Hardware::INSTRUCTIONS, Hardware::CPU_CYCLES];

/// Counters of the processes. Each begins at 0 when the process is first seen.
pub(crate) struct Perf {
    processes: HashMap<u32, ProcessCounters>,
    threads: usize,
    threads_max: usize,
    /// Why there are no counters.
    failed: Option<String>,
    user_only: bool,
}

struct ProcessCounters {
    began_ns: u64,
    /// A pair for each thread at the beginning. Later threads are counted with the thread that starts them.
    threads: Vec<[Counter; 2]>,
    last: [u64; 2],
}

impl Perf {
    /// Counters that take at most `files_max` files.
    pub(crate) fn new(files_max: usize) -> Self {
        let threads_max = THREADS_MAX.min(files_max / EVENTS.len());
        Self { processes: HashMap::new(), threads: 0, threads_max, failed: None, user_only: false }
    }

    /// Reads the counters of one process.
    pub(crate) fn read(&mut self, proc: &std::path::Path, pid: u32, began_ns: u64, figures: &mut Figures) {
        if self.failed.is_some() {
            return;
        }
        if self.processes.get(&pid).is_none_or(|counters| counters.began_ns != began_ns) {
            let threads = match self.open(proc, pid) {
                Ok(threads) => threads,
                Err(error) => {
                    // If the process has ended, others may still be counted.
                    if proc.join(pid.to_string()).exists() {
                        self.failed = Some(explain(&error));
                    }
                    return;
                }
            };
            self.threads += threads.len();
            let counters = ProcessCounters { began_ns, threads, last: [0; 2] };
            if let Some(before) = self.processes.insert(pid, counters) {
                self.threads -= before.threads.len();
            }
        }
        let Some(counters) = self.processes.get_mut(&pid).filter(|counters| !counters.threads.is_empty())
        else {
            return;
        };
        let mut sums = [0_u64; 2];
        for thread in &mut counters.threads {
            for (sum, counter) in sums.iter_mut().zip(thread) {
                let Ok(read) = counter.read_full() else { return };
                let times = read.time_enabled().zip(read.time_running());
                let scaled = times.map_or(0, |(enabled, running)| scale(read.count(), enabled, running));
                *sum = sum.saturating_add(scaled);
            }
        }
        for ((last, sum), figure) in counters.last.iter_mut().zip(sums).zip(FIGURES) {
            *last = sum.max(*last);
            figures.set(figure, *last);
        }
    }

    /// Forgets the counters of processes that are not counted any more.
    pub(crate) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        self.processes.retain(|pid, _| keep(*pid));
        self.threads = self.processes.values().map(|counters| counters.threads.len()).sum();
    }

    fn open(&mut self, proc: &std::path::Path, pid: u32) -> std::io::Result<Vec<[Counter; 2]>> {
        let mut threads: Vec<i32> = std::fs::read_dir(proc.join(pid.to_string()).join("task"))?
            .filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok())
            .take(self.threads_max + 1)
            .collect();
        threads.sort_unstable();
        // Counting only some of the threads would give a wrong figure of the process.
        if self.threads + threads.len() > self.threads_max {
            return Ok(Vec::new());
        }
        let mut opened = Vec::with_capacity(threads.len());
        for thread in threads {
            opened.push([self.counter(thread, 0)?, self.counter(thread, 1)?]);
        }
        Ok(opened)
    }

    fn counter(&mut self, thread: i32, event: usize) -> std::io::Result<Counter> {
        let event = if event == 0 { EVENTS[0] } else { EVENTS[1] };
        let open = |user_only: bool| {
            Builder::new(event)
                .observe_pid(thread)
                .any_cpu()
                .inherit(true)
                .enabled(true)
                .exclude_kernel(user_only)
                .exclude_hv(true)
                .build()
        };
        match open(self.user_only) {
            Err(error) if error.raw_os_error() == Some(EACCES) && !self.user_only => {
                let counter = open(true)?;
                self.user_only = true;
                Ok(counter)
            }
            opened => opened,
        }
    }

    /// Writes the sources of the figures.
    pub(crate) fn report(&self, sources: &mut HostSources) {
        let host = "instructions and cycles are counted by process only";
        sources.set_unavailable(SubjectKind::Host, FIGURES, host);
        match &self.failed {
            Some(reason) => sources.set_unavailable(SubjectKind::Process, FIGURES, reason.clone()),
            None if self.processes.is_empty() => {}
            None if self.threads == 0 => {
                let reason =
                    format!("a counter for each thread would take more than {} files", self.threads_max * 2);
                sources.set_unavailable(SubjectKind::Process, FIGURES, reason);
            }
            None => {
                let from = if self.user_only {
                    "perf_event_open, in user mode only, since the agent first saw the process"
                } else {
                    "perf_event_open, since the agent first saw the process"
                };
                sources.set_available(SubjectKind::Process, FIGURES, from, 1);
            }
        }
    }
}

/// Estimates the count that a counter would have if it had not shared the processor's registers with others.
fn scale(count: u64, enabled: std::time::Duration, running: std::time::Duration) -> u64 {
    let scaled = (u128::from(count) * enabled.as_nanos()).checked_div(running.as_nanos());
    scaled.map_or(0, |scaled| u64::try_from(scaled).unwrap_or(u64::MAX))
}

pub(crate) fn explain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::Unsupported => {
            "the processor has no counters, or the hypervisor hides them (perf_event_open)".to_owned()
        }
        std::io::ErrorKind::PermissionDenied => {
            "no permission for perf_event_open; see sysctl kernel.perf_event_paranoid".to_owned()
        }
        _ => format!("perf_event_open: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lightship_usage::FigureSource;

    use super::*;

    #[test]
    fn instructions_rise_or_the_reason_is_known() {
        let (mut perf, mut figures, mut sources) =
            (Perf::new(100), Figures::default(), HostSources::default());
        let pid = std::process::id();
        perf.read("/proc".as_ref(), pid, 1, &mut figures);
        perf.report(&mut sources);
        match sources.get(SubjectKind::Process, Figure::Instructions).unwrap() {
            FigureSource::Available { .. } => {
                let before = figures.get(Figure::Instructions).unwrap();
                let sum =
                    std::hint::black_box((0..1_000_000_u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
                perf.read("/proc".as_ref(), pid, 1, &mut figures);
                assert!(figures.get(Figure::Instructions).unwrap() > before, "{sum}");
            }
            FigureSource::Unavailable { reason } => {
                assert!(reason.contains("perf_event_open"), "{reason}");
                assert_eq!(figures.get(Figure::Instructions), None);
            }
        }
    }

    #[test]
    fn counts_are_scaled_by_the_time_that_they_were_counted() {
        assert_eq!(scale(100, Duration::from_secs(2), Duration::from_secs(1)), 200);
        assert_eq!(scale(100, Duration::from_secs(2), Duration::ZERO), 0);
    }
}
