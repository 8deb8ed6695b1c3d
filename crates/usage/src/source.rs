//! Where each figure of an agent comes from, and how fine it is; or why it can't be had.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::sample::{Figure, Subject};

/// The kind of a [`Subject`]: the same figure has different sources for a host and for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectKind {
    /// A whole host.
    Host,
    /// A disk.
    Disk,
    /// A network interface.
    Interface,
    /// A process.
    Process,
    /// The sockets of a process to one other host.
    Peer,
    /// A part of a query.
    Task,
}

impl SubjectKind {
    /// The kind of a subject.
    pub fn of(subject: &Subject) -> Self {
        match subject {
            Subject::Host => Self::Host,
            Subject::Disk(_) => Self::Disk,
            Subject::Interface(_) => Self::Interface,
            Subject::Process { .. } => Self::Process,
            Subject::Peer { .. } => Self::Peer,
            Subject::Task { .. } => Self::Task,
        }
    }
}

/// Where a figure comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureSource {
    /// It is counted.
    Available {
        /// The file or the call, such as `/proc/PID/stat`.
        from: String,
        /// The step in which it grows, in the figure's unit: 10,000,000 for nanoseconds that are counted in ticks of
        /// 10 ms. 1 or 0 if it is exact.
        resolution: u64,
    },
    /// It is not.
    Unavailable {
        /// Why, such as `no permission to read /proc/PID/io`.
        reason: String,
    },
}

impl FigureSource {
    /// The step in which the figure grows, in the figure's unit; 0 if it is exact or unavailable.
    pub fn resolution(&self) -> u64 {
        match self {
            Self::Available { resolution, .. } => *resolution,
            Self::Unavailable { .. } => 0,
        }
    }
}

impl std::fmt::Display for FigureSource {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Available { from, resolution } if *resolution > 1 => {
                write!(out, "{from}, in steps of {resolution}")
            }
            Self::Available { from, .. } => write!(out, "{from}"),
            Self::Unavailable { reason } => write!(out, "unavailable: {reason}"),
        }
    }
}

/// What a host's agent says about itself, once per run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSources {
    /// Processors of the host; 0 if they are not known. Time that exceeds what so many can give is no measurement.
    pub processors: u32,
    /// The sources. A figure that is not listed has an unknown source and is taken as exact.
    pub figures: BTreeMap<SubjectKind, BTreeMap<Figure, FigureSource>>,
}

impl HostSources {
    /// The source of a figure; `None` if the agent did not say.
    pub fn get(&self, kind: SubjectKind, figure: Figure) -> Option<&FigureSource> {
        self.figures.get(&kind)?.get(&figure)
    }

    /// Sets the source of a figure.
    pub fn set(&mut self, kind: SubjectKind, figure: Figure, source: FigureSource) {
        self.figures.entry(kind).or_default().insert(figure, source);
    }

    /// The most by which a figure can grow in a nanosecond, where physics sets a limit: processor time by one per
    /// processor, the time of one disk or one database session by one.
    pub fn growth_max(&self, kind: SubjectKind, figure: Figure) -> Option<f64> {
        let processors = (self.processors > 0).then(|| f64::from(self.processors));
        match figure {
            Figure::CpuUserNs
            | Figure::CpuSystemNs
            | Figure::CpuNs
            | Figure::CpuIdleNs
            | Figure::CpuStolenNs => processors,
            Figure::PressureCpuSomeNs
            | Figure::PressureIoSomeNs
            | Figure::PressureIoFullNs
            | Figure::PressureMemorySomeNs => Some(1.0),
            Figure::DiskBusyNs if kind == SubjectKind::Disk => Some(1.0),
            Figure::LockWaitNs | Figure::ClientWaitNs if kind == SubjectKind::Task => Some(1.0),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_survive_json_and_say_what_they_are() {
        let mut sources = HostSources { processors: 2, ..HostSources::default() };
        let ticks = FigureSource::Available { from: "/proc/PID/stat".into(), resolution: 10_000_000 };
        sources.set(SubjectKind::Process, Figure::CpuUserNs, ticks.clone());
        let missing = FigureSource::Unavailable { reason: "no permission".into() };
        sources.set(SubjectKind::Process, Figure::DiskReadBytes, missing.clone());
        let json = serde_json::to_string(&sources).unwrap();
        assert_eq!(serde_json::from_str::<HostSources>(&json).unwrap(), sources);
        assert_eq!(sources.get(SubjectKind::Process, Figure::CpuUserNs), Some(&ticks));
        assert_eq!(sources.get(SubjectKind::Host, Figure::CpuUserNs), None);
        assert_eq!(ticks.to_string(), "/proc/PID/stat, in steps of 10000000");
        assert_eq!(missing.to_string(), "unavailable: no permission");
        assert_eq!(missing.resolution(), 0);
    }

    #[test]
    fn growth_has_the_limits_of_the_machine() {
        let sources = HostSources { processors: 4, ..HostSources::default() };
        assert_eq!(sources.growth_max(SubjectKind::Host, Figure::CpuUserNs), Some(4.0));
        assert_eq!(sources.growth_max(SubjectKind::Disk, Figure::DiskBusyNs), Some(1.0));
        assert_eq!(sources.growth_max(SubjectKind::Process, Figure::DiskReadBytes), None);
        assert_eq!(HostSources::default().growth_max(SubjectKind::Host, Figure::CpuUserNs), None);
    }
}
