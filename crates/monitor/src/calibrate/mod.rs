//! What this host can do at most: its processors, memory and disk, measured once while nothing else runs.
//!
//! The formulas of `lightship-usage` need these speeds ([`HostSpeeds`]). Each one is measured at least five times, and
//! the median counts. Speeds that can't be measured are missing, with the reason. The link is measured elsewhere, against
//! another host, and added ([`HostSpeedsMeasured::set_link`]).
//!
//! - Processor: a fixed kernel of integer operations and accesses to a table of 256 KiB, which fits into the second
//!   cache of most processors. Only ratios of hosts mean something. With hardware counters, also cycles per instruction
//!   and the clock.
//! - Memory: a processor sums up a buffer that is larger than its caches.
//! - Disk: a temporary file without a name is written and read with direct I/O, past the page cache: in sequence, in
//!   blocks of 1 MiB, and at random places, in pages of 8 KiB, always one request at a time. If the file is much
//!   smaller than the disk, the arm of a magnetic disk moves less than it would elsewhere.

#[cfg(target_os = "linux")]
mod cpu;
#[cfg(target_os = "linux")]
mod disk;
#[cfg(target_os = "linux")]
mod pace;
mod store;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use lightship_usage::{HostSpeeds, LinkSpeeds};
use serde::{Deserialize, Serialize};

pub use store::HostSpeedsStore;

/// Version of the file format and of the processor's kernel: speeds of other versions can't be compared.
const VERSION: u32 = 1;

/// How a host is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalibrateOptions {
    /// The folder of the temporary file: on the disk that the database uses.
    pub folder: PathBuf,
    /// The most bytes of the temporary file, from 8 MiB. It never takes more than half of the free space.
    pub bytes_max: u64,
    /// The most bytes of memory that are read. Never more than a quarter of the available memory is used.
    pub memory_bytes_max: u64,
    /// How long all measurements take together, about, from 100 ms. A slow disk may take longer.
    pub duration: Duration,
    /// How often each speed is measured, from 5.
    pub repetitions: u32,
}

impl CalibrateOptions {
    /// Defaults: 10 s, a file of up to 1 GiB, up to 1 GiB of memory.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            bytes_max: 1 << 30,
            memory_bytes_max: 1 << 30,
            duration: Duration::from_secs(10),
            repetitions: 5,
        }
    }

    /// The same, with every value within its limits.
    #[cfg(target_os = "linux")]
    fn bounded(&self) -> Self {
        let repetitions = self.repetitions.clamp(5, 100);
        // Each repetition writes a block at least.
        let bytes_min = (u64::from(repetitions) << 20).max(8 << 20);
        Self {
            folder: self.folder.clone(),
            bytes_max: self.bytes_max.clamp(bytes_min, 1 << 40),
            memory_bytes_max: self.memory_bytes_max,
            duration: self.duration.clamp(Duration::from_millis(100), Duration::from_secs(3600)),
            repetitions,
        }
    }
}

/// Why the link of a host is not among its speeds.
const LINK_MISSING: &str =
    "needs another host that runs `lightship netbench serve`, and `--link` with its name";

/// A speed that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SpeedKind {
    /// Work units per second of one processor.
    ProcessorOne,
    /// Work units per second of all processors together.
    ProcessorAll,
    /// Processor cycles of an instruction.
    CyclesPerInstruction,
    /// Cycles per second of one processor.
    CyclesPerSecond,
    /// Bytes per second that one processor reads from memory.
    MemoryRead,
    /// Bytes per second that are written to the disk in sequence.
    DiskWrite,
    /// Bytes per second that are read from the disk in sequence.
    DiskRead,
    /// Seconds to read a page at a random place.
    DiskRandomRead,
    /// Seconds to write a page at a random place.
    DiskRandomWrite,
    /// Bytes per second that the host sends over its link.
    LinkSend,
    /// Bytes per second that it receives.
    LinkReceive,
    /// Seconds from a small message to its answer.
    LinkRoundTrip,
}

impl SpeedKind {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Self; 12] = [
        Self::ProcessorOne,
        Self::ProcessorAll,
        Self::CyclesPerInstruction,
        Self::CyclesPerSecond,
        Self::MemoryRead,
        Self::DiskWrite,
        Self::DiskRead,
        Self::DiskRandomRead,
        Self::DiskRandomWrite,
        Self::LinkSend,
        Self::LinkReceive,
        Self::LinkRoundTrip,
    ];
    /// Those of the link.
    const LINK: [Self; 3] = [Self::LinkSend, Self::LinkReceive, Self::LinkRoundTrip];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::ProcessorOne => "processor, one",
            Self::ProcessorAll => "processors, all",
            Self::CyclesPerInstruction => "cycles per instruction",
            Self::CyclesPerSecond => "clock",
            Self::MemoryRead => "memory, read",
            Self::DiskWrite => "disk, sequential write",
            Self::DiskRead => "disk, sequential read",
            Self::DiskRandomRead => "disk, random read",
            Self::DiskRandomWrite => "disk, random write",
            Self::LinkSend => "link, send",
            Self::LinkReceive => "link, receive",
            Self::LinkRoundTrip => "link, round trip",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::ProcessorOne | Self::ProcessorAll => "units/s",
            Self::CyclesPerInstruction => "cycles",
            Self::CyclesPerSecond => "cycles/s",
            Self::MemoryRead | Self::DiskWrite | Self::DiskRead | Self::LinkSend | Self::LinkReceive => {
                "bytes/s"
            }
            Self::DiskRandomRead | Self::DiskRandomWrite | Self::LinkRoundTrip => "s",
        }
    }
}

/// The values of repeated measurements, in the unit of their [`SpeedKind`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSpread {
    /// The median.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// How many there are.
    pub repetitions: u32,
}

impl MeasuredSpread {
    /// The spread of `values`; NaN if there are none.
    fn of(values: &mut [f64]) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let (half, last) = (values.len() / 2, values.len().saturating_sub(1));
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(at(half.saturating_sub(1)), at(half))
        } else {
            at(half)
        };
        Self { median, min: at(0), max: at(last), repetitions: values.len() as u32 }
    }
}

/// The result of measuring a speed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeedResult {
    /// It was measured.
    Measured(MeasuredSpread),
    /// It could not be measured.
    Missing {
        /// Why not.
        reason: String,
    },
}

/// The measured speeds of a host, with what was measured and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostSpeedsMeasured {
    version: u32,
    /// The host's name.
    pub host: String,
    /// When it was measured, in seconds since 1970.
    pub measured_at: u64,
    /// The version of the operating system's kernel.
    pub kernel: String,
    /// The folder of the temporary file.
    pub folder: PathBuf,
    /// The disk of that folder, by its name in `/sys/block`; `None` if the file system has no single disk.
    pub disk: Option<String>,
    /// Bytes of the temporary file.
    pub file_bytes: u64,
    /// The host at the other end of the link that was measured, as it was given.
    #[serde(default)]
    pub link_peer: Option<String>,
    /// The speeds as the model takes them: medians.
    pub speeds: HostSpeeds,
    /// All results.
    pub results: BTreeMap<SpeedKind, SpeedResult>,
}

/// Repeated measurements of a link, as the host sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LinkValues {
    /// Bytes per second that it sends.
    pub sent_bytes_per_second: Vec<f64>,
    /// Bytes per second that it receives.
    pub received_bytes_per_second: Vec<f64>,
    /// Seconds from a small message to its answer.
    pub round_trip_seconds: Vec<f64>,
}

impl HostSpeedsMeasured {
    /// Adds the speeds of the link to `peer`.
    ///
    /// # Errors
    /// [`HostCalibrateError::Implausible`] if there is no value, or a median is out of range.
    pub fn set_link(&mut self, peer: &str, mut values: LinkValues) -> Result<(), HostCalibrateError> {
        let spreads = [
            &mut values.sent_bytes_per_second,
            &mut values.received_bytes_per_second,
            &mut values.round_trip_seconds,
        ]
        .map(|values| MeasuredSpread::of(values));
        let [sent, received, round_trip] = spreads.map(|spread| Some(spread.median));
        let link = LinkSpeeds {
            sent_bytes_per_second: sent,
            received_bytes_per_second: received,
            round_trip_seconds: round_trip,
        };
        let speeds = HostSpeeds { link, ..self.speeds };
        speeds.check()?;
        self.speeds = speeds;
        self.link_peer = Some(peer.to_owned());
        self.results.extend(SpeedKind::LINK.into_iter().zip(spreads.map(SpeedResult::Measured)));
        Ok(())
    }
}

/// The measurement that begins now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalibrateProgress {
    /// What is measured.
    pub kind: SpeedKind,
    /// The repetition, from 1.
    pub repetition: u32,
    /// How many repetitions there are.
    pub repetitions: u32,
}

/// A host could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostCalibrateError {
    /// The temporary file did not fit.
    #[error("the disk of {} is full, or a quota is reached", .folder.display())]
    DiskFull {
        /// The folder of the temporary file.
        folder: PathBuf,
    },
    /// The temporary file could not be created, written or read.
    #[error("cannot measure the disk of {}: {source}", .folder.display())]
    Disk {
        /// The folder of the temporary file.
        folder: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A measured value is not plausible.
    #[error("implausible measurement: {0}")]
    Implausible(#[from] lightship_usage::UsageError),
    /// This operating system is not supported.
    #[error("hosts are measured on Linux only")]
    Unsupported,
}

/// Measures this host. Blocks the thread; `on_progress` is called before each repetition.
///
/// The temporary file has no name, so that nothing is left of it if the program is ended.
///
/// # Errors
/// If the disk is full, or the temporary file can't be created, written or read. A speed that this host does not allow
/// to measure, such as that of a disk whose file system has no direct I/O, is no error: it is missing from the result,
/// with the reason.
#[cfg(target_os = "linux")]
pub fn calibrate_host(
    options: &CalibrateOptions,
    mut on_progress: impl FnMut(CalibrateProgress),
) -> Result<HostSpeedsMeasured, HostCalibrateError> {
    let options = options.bounded();
    let mut pace = pace::Pace::new(&options, &mut on_progress);
    pace.miss(SpeedKind::LINK, LINK_MISSING);
    // The file first: if there is no room for it, the error comes at once.
    let file = disk::TemporaryFile::create(&options)?;
    let processors = cpu::measure(&mut pace, options.memory_bytes_max);
    let disk = file.measure(&mut pace)?;
    let results = pace.into_results();
    let median = |kind| match results.get(&kind) {
        Some(SpeedResult::Measured(spread)) => Some(spread.median),
        _ => None,
    };
    let speeds = HostSpeeds {
        processors,
        cpu_units_per_second: median(SpeedKind::ProcessorOne),
        cycles_per_instruction: median(SpeedKind::CyclesPerInstruction),
        cycles_per_second: median(SpeedKind::CyclesPerSecond),
        disk_read_bytes_per_second: median(SpeedKind::DiskRead),
        disk_write_bytes_per_second: median(SpeedKind::DiskWrite),
        disk_access_seconds: median(SpeedKind::DiskRandomRead),
        disk_bytes: disk.disk_bytes,
        memory_bytes_per_second: median(SpeedKind::MemoryRead),
        ..HostSpeeds::default()
    };
    speeds.check()?;
    let system = rustix::system::uname();
    Ok(HostSpeedsMeasured {
        version: VERSION,
        host: lightship_session::host_name(),
        measured_at: crate::time::unix_ns() / 1_000_000_000,
        kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
        folder: options.folder,
        disk: disk.name,
        file_bytes: disk.file_bytes,
        link_peer: None,
        speeds,
        results,
    })
}

/// Measures this host: on Linux only.
///
/// # Errors
/// [`HostCalibrateError::Unsupported`].
#[cfg(not(target_os = "linux"))]
pub fn calibrate_host(
    _: &CalibrateOptions,
    _: impl FnMut(CalibrateProgress),
) -> Result<HostSpeedsMeasured, HostCalibrateError> {
    Err(HostCalibrateError::Unsupported)
}
