//! Figures of hosts over time.

use std::str::FromStr;

use lightship_usage::{Figure, Series, Subject};
use serde::Serialize;

use super::Recorder;

/// The most disks of a host in a series.
const DISKS_MAX: usize = 16;
/// The most points of a series.
const POINTS_MAX: usize = 2000;

/// Figures that are shown together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureGroup {
    /// Processors in use, and threads that wait for one.
    Cpu,
    /// Bytes per second of disks.
    Disk,
    /// For which fraction of the time each disk was busy.
    DiskBusy,
    /// Bytes per second of the network.
    Network,
    /// Bytes of memory.
    Memory,
    /// For which fraction of the time some task waited.
    Pressure,
}

impl FigureGroup {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::Disk, Self::DiskBusy, Self::Network, Self::Memory, Self::Pressure];

    /// Its name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Disk => "disk",
            Self::DiskBusy => "disk_busy",
            Self::Network => "network",
            Self::Memory => "memory",
            Self::Pressure => "pressure",
        }
    }

    /// The unit of its values.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Cpu => "processors",
            Self::Disk | Self::Network => "bytes_per_second",
            Self::DiskBusy | Self::Pressure => "fraction",
            Self::Memory => "bytes",
        }
    }

    /// Its figures, with a name each.
    fn figures(self) -> &'static [(Figure, &'static str)] {
        match self {
            Self::Cpu => &[
                (Figure::CpuUserNs, "user"),
                (Figure::CpuSystemNs, "system"),
                (Figure::CpuStolenNs, "stolen"),
                (Figure::RunQueueWaitNs, "waiting threads"),
            ],
            Self::Disk => &[(Figure::DiskReadBytes, "read"), (Figure::DiskWrittenBytes, "written")],
            Self::DiskBusy => &[(Figure::DiskBusyNs, "busy")],
            Self::Network => &[
                (Figure::NetworkReceivedBytes, "received"),
                (Figure::NetworkSentBytes, "sent"),
                (Figure::LoopbackReceivedBytes, "received, loopback"),
                (Figure::LoopbackSentBytes, "sent, loopback"),
            ],
            Self::Memory => &[(Figure::MemoryBytes, "used"), (Figure::MemoryAvailableBytes, "available")],
            Self::Pressure => &[
                (Figure::PressureCpuSomeNs, "processor"),
                (Figure::PressureIoSomeNs, "disk"),
                (Figure::PressureMemorySomeNs, "memory"),
            ],
        }
    }

    /// What a rate or level is multiplied by.
    fn factor(self) -> f64 {
        match self {
            // Nanoseconds per second.
            Self::Cpu | Self::DiskBusy | Self::Pressure => 1e-9,
            Self::Disk | Self::Network | Self::Memory => 1.0,
        }
    }
}

impl FromStr for FigureGroup {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|group| group.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
            format!("expected one of {}", names.join(", "))
        })
    }
}

/// One line of a series.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeriesLine {
    /// Its name, such as `user`, or the name of a disk.
    pub name: String,
    /// A value for each point; `None` where samples are missing.
    pub values: Vec<Option<f64>>,
}

/// Figures of a host over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeriesReport {
    /// The host.
    pub host: String,
    /// The figures.
    pub group: FigureGroup,
    /// The unit of all values.
    pub unit: &'static str,
    /// The middle of each point's time, in nanoseconds of the collector's clock.
    pub at_ns: Vec<u64>,
    /// The time that each point stands for, in nanoseconds.
    pub step_ns: u64,
    /// The lines. Figures that can't be had are left out.
    pub lines: Vec<SeriesLine>,
}

impl Recorder {
    /// Figures of a host from `from` to `to` nanoseconds of the collector's clock, in at most `points_max` points, and no
    /// finer than the samples. Counters are rates. `None` if the host is not known.
    pub fn series(
        &self,
        host: &str,
        group: FigureGroup,
        (from, to): (u64, u64),
        points_max: usize,
    ) -> Option<SeriesReport> {
        let state = self.state();
        let timeline = &state.timeline;
        timeline.counts(host)?;
        let points_max = points_max.min(POINTS_MAX);
        let figures: Vec<Figure> = group.figures().iter().map(|(figure, _)| *figure).collect();
        let series = |subject: &Subject| timeline.series(host, subject, &figures, (from, to), points_max);
        let values = |series: &Series, figure: Figure| -> Option<Vec<Option<f64>>> {
            let values = series.values.get(&figure)?.iter();
            Some(values.map(|value| value.map(|value| value * group.factor())).collect())
        };
        let of_host = series(&Subject::Host);
        let lines = if group == FigureGroup::DiskBusy {
            let disks = timeline.disks(host).filter_map(|subject| match subject {
                Subject::Disk(name) => Some((name, subject)),
                _ => None,
            });
            let line = |(name, subject): (&String, &Subject)| {
                Some(SeriesLine { name: name.clone(), values: values(&series(subject), Figure::DiskBusyNs)? })
            };
            disks.take(DISKS_MAX).filter_map(line).collect()
        } else {
            let line = |(figure, name): &(Figure, &str)| {
                Some(SeriesLine { name: (*name).to_owned(), values: values(&of_host, *figure)? })
            };
            group.figures().iter().filter_map(line).collect()
        };
        let (at_ns, step_ns) = (of_host.at_ns, of_host.step_ns);
        Some(SeriesReport { host: host.to_owned(), group, unit: group.unit(), at_ns, step_ns, lines })
    }
}
