//! The counters of threads: the files of a process have those of its first thread only.

use std::path::{Path, PathBuf};

use super::file::{KernelFile, TextBuffer, reason};
use super::stat_line::StatLine;
use crate::growing::GrowingSum;

/// The most threads of a process that are read. Each takes about 10 us of a sample in which it has run.
pub(super) const THREADS_MAX: u64 = 256;

/// Sums over the threads of a process, including threads that have ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ThreadSums {
    pub(super) run_queue_wait_ns: u64,
    pub(super) voluntary_switches: u64,
    pub(super) involuntary_switches: u64,
    pub(super) disk_wait_ticks: u64,
}

/// Why sums are unavailable.
#[derive(Debug, Default)]
pub(super) struct ThreadFailures {
    pub(super) wait: Option<String>,
    pub(super) switches: Option<String>,
    pub(super) disk_wait: Option<String>,
}

/// Reader of the threads of one process. What a thread counts between its last reading and its end is lost.
#[derive(Debug)]
pub(super) struct Threads {
    folder: PathBuf,
    /// The first thread's, for processes with one.
    schedstat: KernelFile,
    status: KernelFile,
    /// Of each thread: runs on a processor, and then the sums.
    sums: GrowingSum<u32, 5>,
    pid: u32,
}

impl Threads {
    pub(super) fn new(folder: &Path, pid: u32, keep: bool) -> Self {
        Self {
            folder: folder.join("task"),
            schedstat: KernelFile::new(folder.join("schedstat"), keep),
            status: KernelFile::new(folder.join("status"), keep),
            sums: GrowingSum::default(),
            pid,
        }
    }

    /// Reads all threads. `disk_wait_ticks` are those of the first thread; `None` if the kernel does not count them.
    pub(super) fn read(
        &mut self,
        threads: u64,
        disk_wait_ticks: Option<u64>,
        buffer: &mut TextBuffer,
    ) -> (ThreadSums, ThreadFailures) {
        let mut failures = ThreadFailures::default();
        if threads > THREADS_MAX {
            let reason = || Some(format!("the process has more than {THREADS_MAX} threads"));
            failures = ThreadFailures { wait: reason(), switches: reason(), disk_wait: reason() };
            return (ThreadSums::default(), failures);
        }
        if threads <= 1 {
            let (schedstat, status) = (&mut self.schedstat, &mut self.status);
            let runs = schedstat.read(buffer).and_then(|text| runs(text).ok_or_else(|| odd("schedstat")));
            let switches = |buffer: &mut TextBuffer| {
                status.read(buffer).and_then(|text| switches(text).ok_or_else(|| odd("status")))
            };
            add(&mut self.sums, self.pid, runs, disk_wait_ticks, switches, buffer, &mut failures);
        } else {
            match std::fs::read_dir(&self.folder) {
                Ok(folder) => {
                    let threads = folder
                        .filter_map(|thread| thread.ok()?.file_name().to_str()?.parse::<u32>().ok())
                        .take(THREADS_MAX as usize);
                    for thread in threads {
                        self.read_thread(thread, disk_wait_ticks.is_some(), buffer, &mut failures);
                    }
                }
                Err(error) => {
                    let reason = reason(&self.folder, &error);
                    failures.wait = Some(reason.clone());
                    failures.switches = Some(reason);
                }
            }
        }
        let [_, run_queue_wait_ns, voluntary_switches, involuntary_switches, disk_wait_ticks] =
            self.sums.finish();
        let sums =
            ThreadSums { run_queue_wait_ns, voluntary_switches, involuntary_switches, disk_wait_ticks };
        (sums, failures)
    }

    fn read_thread(
        &mut self,
        thread: u32,
        delays: bool,
        buffer: &mut TextBuffer,
        failures: &mut ThreadFailures,
    ) {
        let folder = self.folder.join(thread.to_string());
        let path = folder.join("schedstat");
        let runs = match buffer.read_path(&path) {
            Ok(text) => runs(text).ok_or_else(|| odd("schedstat")),
            // It has ended meanwhile.
            Err(_) if !folder.exists() => return,
            Err(error) => Err(reason(&path, &error)),
        };
        let mut ticks = None;
        if delays && let Ok(file) = std::fs::File::open(folder.join("stat")) {
            ticks =
                buffer.read_lossy(&file).ok().and_then(|text| Some(StatLine::parse(&text)?.disk_wait_ticks));
        }
        let switches = |buffer: &mut TextBuffer| {
            let path = folder.join("status");
            let text = buffer.read_path(&path).map_err(|error| reason(&path, &error))?;
            switches(text).ok_or_else(|| odd("status"))
        };
        add(&mut self.sums, thread, runs, ticks, switches, buffer, failures);
    }
}

/// Adds the counters of one thread. Its switches are read only if it has run since the last time.
fn add(
    sums: &mut GrowingSum<u32, 5>,
    thread: u32,
    runs: Result<(u64, u64), String>,
    disk_wait_ticks: Option<u64>,
    switches: impl FnOnce(&mut TextBuffer) -> Result<(u64, u64), String>,
    buffer: &mut TextBuffer,
    failures: &mut ThreadFailures,
) {
    let last = sums.keep(&thread);
    let (times, wait_ns) = match runs {
        Ok((wait_ns, times)) => (Some(times), wait_ns),
        Err(reason) => {
            failures.wait = Some(reason);
            (None, 0)
        }
    };
    if times.is_some() && last.is_some_and(|[last, ..]| Some(last) == times) {
        return;
    }
    let (voluntary, involuntary) = switches(buffer).unwrap_or_else(|reason| {
        failures.switches = Some(reason);
        (0, 0)
    });
    let values = [times.unwrap_or(0), wait_ns, voluntary, involuntary, disk_wait_ticks.unwrap_or(0)];
    sums.add(thread, values);
}

fn odd(name: &str) -> String {
    format!("/proc/PID/{name} is not in the expected form")
}

/// The time for which a thread waited for a processor, in nanoseconds, and how often it ran.
fn runs(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().skip(1).map(|word| word.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Voluntary and involuntary switches.
fn switches(text: &str) -> Option<(u64, u64)> {
    let find = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((find("voluntary_ctxt_switches:")?, find("nonvoluntary_ctxt_switches:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_texts_are_refused() {
        assert_eq!(runs("5 6 7\n"), Some((6, 7)));
        assert_eq!(runs("5\n"), None);
        assert_eq!(
            switches("Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n"),
            Some((5, 6))
        );
        assert_eq!(switches("voluntary_ctxt_switches:\t5\n"), None);
    }

    #[test]
    fn threads_that_have_ended_stay_in_the_sums() {
        let folder = tempfile::tempdir().unwrap();
        let status =
            |voluntary| format!("voluntary_ctxt_switches: {voluntary}\nnonvoluntary_ctxt_switches: 1\n");
        let write = |thread: &str, wait: u64, runs: u64, voluntary: u64| {
            let folder = folder.path().join(thread);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("schedstat"), format!("0 {wait} {runs}\n")).unwrap();
            std::fs::write(folder.join("status"), status(voluntary)).unwrap();
        };
        let mut threads = Threads::new(folder.path(), 7, false);
        let mut buffer = TextBuffer::default();
        write("task/7", 10, 1, 1);
        write("task/8", 20, 1, 2);
        let (sums, _) = threads.read(2, None, &mut buffer);
        assert_eq!((sums.run_queue_wait_ns, sums.voluntary_switches, sums.involuntary_switches), (30, 3, 2));
        std::fs::remove_dir_all(folder.path().join("task/8")).unwrap();
        // Switches of a thread that has not run are not read.
        write("task/7", 10, 1, 100);
        let (sums, _) = threads.read(2, None, &mut buffer);
        assert_eq!((sums.run_queue_wait_ns, sums.voluntary_switches), (30, 3));
        // With one thread left, the files of the process are its own.
        write("", 15, 2, 5);
        let (sums, failures) = threads.read(1, None, &mut buffer);
        assert_eq!((sums.run_queue_wait_ns, sums.voluntary_switches), (35, 7));
        assert!(failures.wait.is_none() && failures.switches.is_none());
        let (_, failures) = threads.read(THREADS_MAX + 1, None, &mut buffer);
        assert!(failures.wait.is_some());
    }
}
