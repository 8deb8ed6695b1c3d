//! The counters of one process.

use std::io;
use std::path::PathBuf;

use lightship_usage::{Figure, Figures, HostSources, SubjectKind};

use super::clocks::{boot_ns, process_cpu_ns, tick_ns};
use super::disk_bytes::DiskBytes;
use super::file::{KernelFile, Roots, TextBuffer};
use super::quota::Quota;
use super::stat_line::StatLine;
use super::threads::Threads;
use super::waits::Waits;
use crate::time::monotonic_ns;

/// After this many samples, a process is read even if it has not run: the kernel may have reclaimed memory from it.
const UNREAD_MAX: u8 = 10;

/// The number of [`Group`]s.
const GROUPS: usize = 5;

/// Figures that come from the same file, and so are available or unavailable together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Io,
    Wait,
    Switches,
    DiskWait,
    Quota,
}

impl Group {
    const ALL: [Self; GROUPS] = [Self::Io, Self::Wait, Self::Switches, Self::DiskWait, Self::Quota];

    fn source(self) -> (&'static [Figure], &'static str, u64) {
        match self {
            Self::Io => (
                &[Figure::DiskReadBytes, Figure::DiskWrittenBytes],
                "/proc/PID/io, with ended children that were not counted themselves; writes when pages become dirty",
                1,
            ),
            Self::Wait => (
                &[Figure::RunQueueWaitNs],
                "/proc/PID/task/*/schedstat, without the last moments of ended threads",
                1,
            ),
            Self::Switches => (
                &[Figure::VoluntarySwitches, Figure::InvoluntarySwitches],
                "/proc/PID/task/*/status, without the last moments of ended threads",
                1,
            ),
            Self::DiskWait => (&[Figure::DiskWaitNs], "/proc/PID/task/*/stat, delay accounting", 0),
            Self::Quota => (
                &[Figure::QuotaWaitNs],
                "cpu.stat of the control groups that have a limit, up to the process's own wait",
                1,
            ),
        }
    }
}

/// What the readers of all processes share.
#[derive(Debug)]
pub(crate) struct ProcessContext {
    roots: Roots,
    tick_ns: u64,
    page_bytes: u64,
    /// Why the kernel does not count the time that threads wait for disks, if it does not.
    no_delays: Option<String>,
}

impl ProcessContext {
    pub(crate) fn new(roots: &Roots) -> Self {
        let delays = std::fs::read_to_string(roots.proc.join("sys/kernel/task_delayacct"));
        let no_delays = match delays.as_deref().map(str::trim) {
            Ok("0") => {
                Some("delay accounting is off; `sysctl kernel.task_delayacct=1` turns it on".to_owned())
            }
            Ok(_) => None,
            Err(_) => Some("this kernel does not tell whether delay accounting is on".to_owned()),
        };
        Self {
            roots: roots.clone(),
            tick_ns: tick_ns(),
            page_bytes: rustix::param::page_size() as u64,
            no_delays,
        }
    }
}

/// Reader of one process. If `keep` is set, its files stay open, which makes reads cheaper, and rules out that another
/// process with the same number is read. Otherwise, the time at which the process began shows that.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) began_ns: u64,
    pub(crate) parent: u32,
    pub(crate) name: String,
    pub(crate) figures: Figures,
    began_ticks: u64,
    path: PathBuf,
    /// `None` if its files do not stay open.
    stat: Option<std::fs::File>,
    io: KernelFile,
    threads: Threads,
    quota: Quota,
    disk_waits: Waits,
    failures: [Option<String>; GROUPS],
    clock_ns: Option<u64>,
    unread: u8,
    user_ns: u64,
    system_ns: u64,
    disk: DiskBytes,
}

impl Process {
    /// Begins to read a process. `keep` holds up to four files open, and one for each limit.
    ///
    /// # Errors
    /// If there is no such process, or it is hidden.
    pub(crate) fn open(
        context: &ProcessContext,
        pid: u32,
        keep: bool,
        buffer: &mut TextBuffer,
    ) -> io::Result<Self> {
        let folder: PathBuf = context.roots.proc.join(pid.to_string());
        let path = folder.join("stat");
        let stat = std::fs::File::open(&path)?;
        let text = buffer.read_lossy(&stat)?;
        let line = StatLine::parse(&text).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            pid,
            began_ns: line.began_ticks.saturating_mul(context.tick_ns),
            parent: line.parent,
            name: line.name.to_owned(),
            figures: Figures::default(),
            began_ticks: line.began_ticks,
            io: KernelFile::new(folder.join("io"), keep),
            threads: Threads::new(&folder, pid, keep),
            quota: Quota::new(&context.roots, &folder, keep),
            disk_waits: Waits::default(),
            path,
            stat: keep.then_some(stat),
            failures: [const { None }; GROUPS],
            clock_ns: None,
            unread: 0,
            user_ns: 0,
            system_ns: 0,
            disk: DiskBytes::default(),
        })
    }

    /// Reads what has changed into [`Self::figures`].
    ///
    /// # Errors
    /// If the process has ended.
    pub(crate) fn read(&mut self, context: &ProcessContext, buffer: &mut TextBuffer) -> Result<(), Ended> {
        let clock_ns = process_cpu_ns(self.pid);
        if clock_ns.is_some() && clock_ns == self.clock_ns && self.unread < UNREAD_MAX {
            self.unread += 1;
            return Ok(());
        }
        (self.clock_ns, self.unread) = (clock_ns, 0);
        let opened;
        let stat = match &self.stat {
            Some(stat) => stat,
            None => {
                opened = std::fs::File::open(&self.path).map_err(|_| Ended)?;
                &opened
            }
        };
        let text = buffer.read_lossy(stat).map_err(|_| Ended)?;
        let line = StatLine::parse(&text).filter(|line| line.began_ticks == self.began_ticks).ok_or(Ended)?;
        self.parent = line.parent;
        if self.name != line.name {
            self.name = line.name.to_owned();
        }
        self.figures.set(Figure::MemoryBytes, line.resident_pages.saturating_mul(context.page_bytes));
        let ns = |ticks: u64| ticks.saturating_mul(context.tick_ns);
        let (user_ns, system_ns) = (ns(line.user_ticks), ns(line.system_ticks));
        let (threads, ticks) = (line.threads, line.disk_wait_ticks);
        drop(text);
        self.divide(user_ns, system_ns, clock_ns);
        self.figures.set(Figure::CpuUserNs, self.user_ns);
        self.figures.set(Figure::CpuSystemNs, self.system_ns);

        let bytes = self.io.read(buffer).and_then(|text| {
            DiskBytes::parse(text).ok_or_else(|| "/proc/PID/io is not in the expected form".to_owned())
        });
        let bytes = bytes.map(|bytes| self.disk.update(bytes));
        self.figures.set(Figure::DiskReadBytes, bytes.as_ref().ok().map(|[read, _]| *read));
        self.figures.set(Figure::DiskWrittenBytes, bytes.as_ref().ok().map(|[_, written]| *written));

        let delays = context.no_delays.is_none().then_some(ticks);
        let (sums, failed) = self.threads.read(threads, delays, buffer);
        let disk_wait = context.no_delays.clone().or(failed.disk_wait);
        let quota = match &failed.wait {
            None => self.quota.read(monotonic_ns(), sums.run_queue_wait_ns, buffer),
            Some(failed) => Err(failed.clone()),
        };
        let age_ns = boot_ns().saturating_sub(self.began_ns);
        let disk_wait_ns =
            self.disk_waits.add(sums.disk_wait_ticks.saturating_mul(context.tick_ns), threads, age_ns);
        let held_ns = quota.as_ref().ok().copied().unwrap_or_default();
        self.failures = [bytes.err(), failed.wait, failed.switches, disk_wait, quota.err()];
        let mut set = |group: Group, figure, value| {
            let failed = self.failures.get(group as usize).is_some_and(Option::is_some);
            self.figures.set(figure, (!failed).then_some(value));
        };
        set(Group::Wait, Figure::RunQueueWaitNs, sums.run_queue_wait_ns);
        set(Group::Quota, Figure::QuotaWaitNs, held_ns);
        set(Group::Switches, Figure::VoluntarySwitches, sums.voluntary_switches);
        set(Group::Switches, Figure::InvoluntarySwitches, sums.involuntary_switches);
        set(Group::DiskWait, Figure::DiskWaitNs, disk_wait_ns);
        Ok(())
    }

    /// Divides the exact time of the process's clock as the ticks are divided, so that neither part falls: the rule
    /// of the kernel's own `cputime_adjust`.
    fn divide(&mut self, user_ns: u64, system_ns: u64, clock_ns: Option<u64>) {
        let Some(total_ns) = clock_ns else {
            self.user_ns = self.user_ns.max(user_ns);
            self.system_ns = self.system_ns.max(system_ns);
            return;
        };
        let more_ns = total_ns.saturating_sub(self.user_ns.saturating_add(self.system_ns));
        let ticks_ns = u128::from(user_ns) + u128::from(system_ns);
        let user_part = (u128::from(total_ns) * u128::from(user_ns)).checked_div(ticks_ns);
        let user_part = user_part.map_or(total_ns, |part| u64::try_from(part).unwrap_or(u64::MAX));
        let user_more_ns = user_part.saturating_sub(self.user_ns).min(more_ns);
        self.user_ns = self.user_ns.saturating_add(user_more_ns);
        self.system_ns = self.system_ns.saturating_add(more_ns - user_more_ns);
    }

    /// What the kernel adds to the counters of the parent when this process has ended.
    pub(crate) fn disk_bytes(&self) -> [u64; 2] {
        self.disk.raw()
    }

    /// Records that a counted child has ended.
    pub(crate) fn child_ended(&mut self, disk_bytes: [u64; 2]) {
        self.disk.child_ended(disk_bytes);
    }
}

/// The process has ended.
#[derive(Debug)]
pub(crate) struct Ended;

/// How many processes have a group of figures, and how many do not.
#[derive(Debug, Default)]
pub(crate) struct Tallies([(u32, u32, Option<String>); GROUPS]);

impl Tallies {
    pub(crate) fn add(&mut self, process: &Process) {
        for ((read, failed, reason), failure) in self.0.iter_mut().zip(&process.failures) {
            match failure {
                None => *read += 1,
                Some(failure) => {
                    *failed += 1;
                    if reason.is_none() {
                        *reason = Some(failure.clone());
                    }
                }
            }
        }
    }

    /// Writes the sources of all figures of processes.
    pub(crate) fn report(&self, context: &ProcessContext, sources: &mut HostSources) {
        let times = [Figure::CpuUserNs, Figure::CpuSystemNs];
        let from = "the process's clock: the sum is exact, and divided as the ticks of /proc/PID/stat are";
        sources.set_available(SubjectKind::Process, times, from, context.tick_ns);
        let from = "/proc/PID/stat, resident pages";
        sources.set_available(SubjectKind::Process, [Figure::MemoryBytes], from, context.page_bytes);
        let sequential = [Figure::DiskSequentialBytes, Figure::DiskRandomRequests];
        sources.set_unavailable(
            SubjectKind::Process,
            sequential,
            "/proc/PID/io has bytes, not where on the disk they are",
        );
        for (group, (read, failed, reason)) in Group::ALL.into_iter().zip(&self.0) {
            let (figures, from, resolution) = group.source();
            let figures = figures.iter().copied();
            let resolution = if group == Group::DiskWait { context.tick_ns } else { resolution };
            match reason {
                Some(reason) if *read == 0 => {
                    sources.set_unavailable(SubjectKind::Process, figures, reason.clone())
                }
                Some(reason) => {
                    let from = format!("{}; missing for some processes: {reason}", short(from));
                    sources.set_available(SubjectKind::Process, figures, from, resolution);
                }
                None if failed + read > 0 => {
                    sources.set_available(SubjectKind::Process, figures, from, resolution)
                }
                None => {}
            }
        }
    }
}

/// The file, without what it leaves out.
fn short(from: &str) -> &str {
    from.split(',').next().unwrap_or(from)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn exact_time_is_divided_as_the_ticks_are_and_no_part_falls() {
        let (context, mut buffer) = (ProcessContext::new(&Roots::default()), TextBuffer::default());
        let mut process = Process::open(&context, std::process::id(), true, &mut buffer).unwrap();
        process.divide(30, 10, Some(44));
        assert_eq!((process.user_ns, process.system_ns), (33, 11));
        process.divide(30, 30, Some(48));
        assert_eq!((process.user_ns, process.system_ns), (33, 15), "user would be 24");
        process.divide(30, 30, Some(40));
        assert_eq!((process.user_ns, process.system_ns), (33, 15), "a clock does not go back");
    }

    #[test]
    fn this_process_is_read_with_its_time_and_memory() {
        let (context, mut buffer) = (ProcessContext::new(&Roots::default()), TextBuffer::default());
        let mut process = Process::open(&context, std::process::id(), true, &mut buffer).unwrap();
        process.read(&context, &mut buffer).unwrap();
        let total = |process: &Process| {
            [Figure::CpuUserNs, Figure::CpuSystemNs]
                .map(|figure| process.figures.get(figure).unwrap())
                .iter()
                .sum::<u64>()
        };
        let before = total(&process);
        let worker = std::thread::spawn(move || {
            let mut sum = 0_u64;
            while process_cpu_ns(std::process::id()).unwrap() < before + 20_000_000 {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
        });
        worker.join().unwrap();
        process.read(&context, &mut buffer).unwrap();
        assert!(total(&process) >= before + 20_000_000);
        assert!(process.figures.get(Figure::MemoryBytes).unwrap() > 100_000);
        let mut tallies = Tallies::default();
        tallies.add(&process);
        let mut sources = HostSources::default();
        tallies.report(&context, &mut sources);
        assert!(sources.get(SubjectKind::Process, Figure::CpuUserNs).is_some());
    }

    #[test]
    fn written_bytes_rise_after_a_file_was_written() {
        let (context, mut buffer) = (ProcessContext::new(&Roots::default()), TextBuffer::default());
        let mut process = Process::open(&context, std::process::id(), true, &mut buffer).unwrap();
        process.read(&context, &mut buffer).unwrap();
        let Some(before) = process.figures.get(Figure::DiskWrittenBytes) else { return };
        // Files of a file system in memory are not counted.
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        process.clock_ns = None;
        process.read(&context, &mut buffer).unwrap();
        assert!(process.figures.get(Figure::DiskWrittenBytes).unwrap() >= before + (1 << 20));
    }

    #[test]
    fn a_process_that_ends_is_noticed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (context, mut buffer) = (ProcessContext::new(&Roots::default()), TextBuffer::default());
        let mut process = Process::open(&context, child.id(), true, &mut buffer).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        process.read(&context, &mut buffer).unwrap();
        assert_eq!(process.name, "cat");
        assert_eq!(process.parent, std::process::id());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(process.read(&context, &mut buffer).is_err());
        assert!(Process::open(&context, child.id(), true, &mut buffer).is_err());
    }

    #[test]
    fn figures_that_only_some_processes_have_are_available_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots { proc: folder.path().into(), sys: folder.path().into() };
        // Above the largest number of a process, so that none of them has a clock.
        for pid in [5_000_001, 5_000_002] {
            let process = folder.path().join(pid.to_string());
            std::fs::create_dir_all(&process).unwrap();
            let line = format!("{pid} (x) S 1 1 1 0 -1 4 5 0 0 0 30 10 0 0 20 0 1 0 7 9 24 1\n");
            std::fs::write(process.join("stat"), line).unwrap();
            if pid % 2 == 1 {
                std::fs::write(process.join("io"), "rchar: 1\nread_bytes: 512\nwrite_bytes: 1024\n").unwrap();
            }
        }
        let (context, mut buffer) = (ProcessContext::new(&roots), TextBuffer::default());
        let (mut tallies, mut sources) = (Tallies::default(), HostSources::default());
        for (pid, read) in [(5_000_001, Some(512)), (5_000_002, None)] {
            let mut process = Process::open(&context, pid, false, &mut buffer).unwrap();
            process.read(&context, &mut buffer).unwrap();
            assert_eq!(process.figures.get(Figure::DiskReadBytes), read);
            assert_eq!(process.figures.get(Figure::CpuUserNs), Some(30 * tick_ns()));
            assert_eq!(process.figures.get(Figure::RunQueueWaitNs), None);
            assert_eq!(process.figures.get(Figure::DiskWaitNs), None);
            tallies.add(&process);
        }
        tallies.report(&context, &mut sources);
        let text = |figure| format!("{:?}", sources.get(SubjectKind::Process, figure).unwrap());
        assert!(text(Figure::DiskReadBytes).contains("missing for some processes: this kernel has no"));
        assert!(text(Figure::RunQueueWaitNs).starts_with("Unavailable"));
        assert!(text(Figure::DiskWaitNs).contains("delay accounting"));
    }
}
