//! Processors, memory and pressure of the whole host.

use lightship_usage::{Figure, Figures, HostSources, SubjectKind};

use super::clocks::tick_ns;
use super::file::{KernelFile, Roots, TextBuffer};

const CPU: [Figure; 4] = [Figure::CpuUserNs, Figure::CpuSystemNs, Figure::CpuIdleNs, Figure::CpuStolenNs];
const MEMORY: [Figure; 2] = [Figure::MemoryBytes, Figure::MemoryAvailableBytes];

/// The lines of `/proc/pressure/` that are read: file, line, figure.
const PRESSURE: [(&str, &str, Figure); 4] = [
    ("cpu", "some", Figure::PressureCpuSomeNs),
    ("io", "some", Figure::PressureIoSomeNs),
    ("io", "full", Figure::PressureIoFullNs),
    ("memory", "some", Figure::PressureMemorySomeNs),
];

/// Versions of `/proc/schedstat` whose eighth number of a processor is the time that threads waited for it.
const SCHEDSTAT_VERSIONS: std::ops::RangeInclusive<u32> = 15..=17;

/// Reader of `/proc/stat`, `/proc/schedstat`, `/proc/meminfo` and `/proc/pressure/`.
#[derive(Debug)]
pub(crate) struct Host {
    tick_ns: u64,
    stat: KernelFile,
    schedstat: KernelFile,
    meminfo: KernelFile,
    pressure: Vec<KernelFile>,
    /// The greatest values so far: the kernel's times of idle processors can fall.
    cpu: [u64; 4],
}

impl Host {
    pub(crate) fn new(roots: &Roots) -> Self {
        let file = |name: &str| KernelFile::new(roots.proc.join(name), true);
        Self {
            tick_ns: tick_ns(),
            stat: file("stat"),
            schedstat: file("schedstat"),
            meminfo: file("meminfo"),
            pressure: PRESSURE.iter().map(|(name, ..)| file(&format!("pressure/{name}"))).collect(),
            cpu: [0; 4],
        }
    }

    /// Reads all of it into `figures`.
    pub(crate) fn read(&mut self, buffer: &mut TextBuffer, figures: &mut Figures, sources: &mut HostSources) {
        let cpu = self.stat.read(buffer).and_then(|text| cpu_ticks(text).ok_or_else(|| odd("/proc/stat")));
        if let Ok(ticks) = &cpu {
            for ((greatest, ticks), figure) in self.cpu.iter_mut().zip(ticks).zip(CPU) {
                *greatest = ticks.saturating_mul(self.tick_ns).max(*greatest);
                figures.set(figure, *greatest);
            }
        }
        let from =
            "/proc/stat: user and nice; system and interrupts; idle, also while a disk is awaited; stolen";
        sources.set_read(SubjectKind::Host, CPU, cpu.err().as_deref(), from, self.tick_ns);

        let wait = self.schedstat.read(buffer).and_then(run_queue_wait_ns);
        figures.set(Figure::RunQueueWaitNs, wait.as_ref().ok().copied());
        sources.set_read(
            SubjectKind::Host,
            [Figure::RunQueueWaitNs],
            wait.err().as_deref(),
            "/proc/schedstat",
            1,
        );

        let memory =
            self.meminfo.read(buffer).and_then(|text| memory(text).ok_or_else(|| odd("/proc/meminfo")));
        if let Ok((total, available)) = memory {
            figures.set(Figure::MemoryBytes, total.saturating_sub(available));
            figures.set(Figure::MemoryAvailableBytes, available);
        }
        let from = "/proc/meminfo: MemTotal less MemAvailable; MemAvailable";
        sources.set_read(SubjectKind::Host, MEMORY, memory.err().as_deref(), from, 1024);

        for ((name, line, figure), file) in PRESSURE.into_iter().zip(&mut self.pressure) {
            let total = file.read(buffer).and_then(|text| {
                pressure_us(text, line).ok_or_else(|| format!("/proc/pressure/{name} has no line `{line}`"))
            });
            figures.set(figure, total.as_ref().ok().map(|us| us.saturating_mul(1000)));
            sources.set_read(SubjectKind::Host, [figure], total.err().as_deref(), "/proc/pressure", 1000);
        }
    }
}

fn odd(path: &str) -> String {
    format!("{path} is not in the expected form")
}

/// User, system, idle and stolen time of all processors together, in ticks. Kernels before 2.6.11 have no stolen time.
fn cpu_ticks(text: &str) -> Option<[u64; 4]> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let mut numbers = line.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (user, nice, system, idle) = (next()?, next()?, next()?, next()?);
    let [io_wait, interrupts, soft_interrupts, stolen] = [(); 4].map(|()| next().unwrap_or(0));
    let sum = |numbers: &[u64]| numbers.iter().fold(0_u64, |sum, number| sum.saturating_add(*number));
    Some([sum(&[user, nice]), sum(&[system, interrupts, soft_interrupts]), sum(&[idle, io_wait]), stolen])
}

/// Processors in `/proc/stat`.
pub(super) fn processors(text: &str) -> u32 {
    let lines = text.lines().filter_map(|line| line.strip_prefix("cpu"));
    lines.filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit())).count() as u32
}

fn run_queue_wait_ns(text: &str) -> Result<u64, String> {
    let version = text.lines().find_map(|line| line.strip_prefix("version ")?.trim().parse::<u32>().ok());
    if !version.is_some_and(|version| SCHEDSTAT_VERSIONS.contains(&version)) {
        return Err("/proc/schedstat has an unknown version".to_owned());
    }
    let mut waits = text
        .lines()
        .filter(|line| line.starts_with("cpu"))
        .map(|line| line.split_ascii_whitespace().nth(8).and_then(|word| word.parse::<u64>().ok()))
        .peekable();
    if waits.peek().is_none() {
        return Err(odd("/proc/schedstat"));
    }
    waits.try_fold(0_u64, |sum, wait| sum.checked_add(wait?)).ok_or_else(|| odd("/proc/schedstat"))
}

/// All and available memory, in bytes.
pub(crate) fn memory(text: &str) -> Option<(u64, u64)> {
    let kilobytes = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    Some((kilobytes("MemTotal:")?, kilobytes("MemAvailable:")?))
}

fn pressure_us(text: &str, line: &str) -> Option<u64> {
    let rest = text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(' '))?;
    rest.split_ascii_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use lightship_usage::FigureSource;

    use super::*;

    fn read(files: &[(&str, &str)]) -> (Figures, HostSources) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("pressure")).unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let roots = Roots { proc: folder.path().into(), sys: folder.path().into() };
        let (mut figures, mut sources) = (Figures::default(), HostSources::default());
        let mut host = Host::new(&roots);
        host.read(&mut TextBuffer::default(), &mut figures, &mut sources);
        (figures, sources)
    }

    #[test]
    fn processor_times_are_summed_by_what_they_are() {
        let (figures, _) =
            read(&[("stat", "cpu  1 2 3 4 5 6 7 8 1 0\ncpu0 1 2 3 4 5 6 7 8 1 0\nintr 5 6\n")]);
        let ticks = CPU.map(|figure| figures.get(figure).unwrap() / tick_ns());
        assert_eq!(ticks, [3, 16, 9, 8]);
    }

    #[test]
    fn figures_that_the_kernel_does_not_have_are_missing_and_the_reason_is_known() {
        let (figures, sources) = read(&[
            ("stat", "cpu  1 2\n"),
            ("schedstat", "version 99\ncpu0 0 0 0 0 0 0 0 5 0\n"),
            ("meminfo", "MemTotal: 100 kB\nMemFree: 50 kB\n"),
            ("pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"),
            ("pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=8\n"),
        ]);
        assert_eq!(
            figures.iter().collect::<Vec<_>>(),
            [(Figure::PressureCpuSomeNs, 7000), (Figure::PressureIoSomeNs, 8000)]
        );
        let reason = |figure| match sources.get(SubjectKind::Host, figure).unwrap() {
            FigureSource::Unavailable { reason } => reason.clone().into_owned(),
            FigureSource::Available { from, .. } => panic!("{figure:?} is available from {from}"),
        };
        assert_eq!(reason(Figure::CpuUserNs), "/proc/stat is not in the expected form");
        assert_eq!(reason(Figure::RunQueueWaitNs), "/proc/schedstat has an unknown version");
        assert_eq!(reason(Figure::MemoryBytes), "/proc/meminfo is not in the expected form");
        assert_eq!(reason(Figure::PressureIoFullNs), "/proc/pressure/io has no line `full`");
        assert!(reason(Figure::PressureMemorySomeNs).starts_with("this kernel has no"));
    }

    #[test]
    fn the_wait_of_all_processors_is_summed() {
        let text =
            "version 15\ntimestamp 1\ncpu0 0 0 0 0 0 0 10 5 1\ndomain0 03 0 0\ncpu1 0 0 0 0 0 0 10 6 1\n";
        assert_eq!(run_queue_wait_ns(text), Ok(11));
        assert!(run_queue_wait_ns("version 15\n").is_err());
        assert!(run_queue_wait_ns("version 15\ncpu0 1 2\n").is_err());
    }

    #[test]
    fn idle_time_does_not_fall() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots { proc: folder.path().into(), sys: folder.path().into() };
        let (mut figures, mut sources) = (Figures::default(), HostSources::default());
        let mut host = Host::new(&roots);
        for idle in [9, 7] {
            std::fs::write(folder.path().join("stat"), format!("cpu  1 1 1 {idle}\n")).unwrap();
            host.read(&mut TextBuffer::default(), &mut figures, &mut sources);
            assert_eq!(figures.get(Figure::CpuIdleNs), Some(9 * tick_ns()));
        }
    }

    #[test]
    fn this_host_has_processors_and_memory() {
        let (mut figures, mut sources) = (Figures::default(), HostSources::default());
        let mut host = Host::new(&Roots::default());
        host.read(&mut TextBuffer::default(), &mut figures, &mut sources);
        assert!(figures.get(Figure::CpuUserNs).unwrap() > 0);
        assert!(figures.get(Figure::MemoryBytes).unwrap() > 1 << 20);
    }
}
