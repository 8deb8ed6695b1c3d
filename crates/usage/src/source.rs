//! Where each figure of an agent comes from, and its resolution; or why it is unavailable.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::figure::Figure;
use crate::sample::Subject;

/// The kind of a [`Subject`]: the same figure has different sources for a host and for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
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
    /// All of them, in the order of their numbers, which are part of the datagrams' format: new ones come last.
    pub const ALL: [Self; 6] =
        [Self::Host, Self::Disk, Self::Interface, Self::Process, Self::Peer, Self::Task];

    /// The figures that agents count of a subject of this kind; none for tasks, which programs count themselves.
    pub fn figures(self) -> impl Iterator<Item = Figure> {
        Figure::ALL.into_iter().filter(move |figure| figure.kinds().contains(&self))
    }

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
        /// The file or the call, such as `/proc/PID/stat`, and what it leaves out.
        from: Cow<'static, str>,
        /// The step in which it grows, in the figure's unit: 10,000,000 for nanoseconds that are counted in ticks of
        /// 10 ms. 1 or 0 if it is exact.
        resolution: u64,
    },
    /// It is unavailable.
    Unavailable {
        /// Why, such as `no permission to read /proc/PID/io`.
        reason: Cow<'static, str>,
    },
}

impl FigureSource {
    /// The most bytes of a text in a [`HostSources`]; longer ones are cut.
    pub const TEXT_BYTES_MAX: usize = 160;

    /// The same, with a text that is not too long.
    fn cut(mut self) -> Self {
        let (Self::Available { from: text, .. } | Self::Unavailable { reason: text }) = &mut self;
        if text.len() > Self::TEXT_BYTES_MAX {
            let mut end = Self::TEXT_BYTES_MAX;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            *text = text.get(..end).unwrap_or_default().to_owned().into();
        }
        self
    }

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

/// Where the figures of a host come from, as its agent reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSources {
    /// Processors of the host; 0 if they are not known. Processor time beyond what they can give is
    /// invalid.
    pub processors: u32,
    /// The sources. A figure that is not listed has an unknown source and is taken as exact.
    pub figures: BTreeMap<SubjectKind, BTreeMap<Figure, FigureSource>>,
}

impl HostSources {
    /// The sources before an agent's first sample: every figure that agents count is unavailable, as nothing was read.
    pub fn unread() -> Self {
        let mut sources = Self::default();
        for kind in SubjectKind::ALL {
            let reason = if kind == SubjectKind::Host { "not read yet" } else { "none was counted yet" };
            sources.set_unavailable(kind, kind.figures(), reason);
        }
        sources
    }

    /// The source of a figure; `None` if the agent did not report it.
    pub fn get(&self, kind: SubjectKind, figure: Figure) -> Option<&FigureSource> {
        self.figures.get(&kind)?.get(&figure)
    }

    /// All sources, in order.
    pub fn iter(&self) -> impl Iterator<Item = (SubjectKind, Figure, &FigureSource)> {
        let of_kind = |(kind, figures): (&SubjectKind, _)| {
            let kind = *kind;
            BTreeMap::iter(figures).map(move |(figure, source)| (kind, *figure, source))
        };
        self.figures.iter().flat_map(of_kind)
    }

    /// Sets the source of a figure.
    pub fn set(&mut self, kind: SubjectKind, figure: Figure, source: FigureSource) {
        self.figures.entry(kind).or_default().insert(figure, source.cut());
    }

    /// Says where figures come from. `resolution` is in the figures' unit.
    pub fn set_available(
        &mut self,
        kind: SubjectKind,
        figures: impl IntoIterator<Item = Figure>,
        from: impl Into<Cow<'static, str>>,
        resolution: u64,
    ) {
        self.set_all(kind, figures, FigureSource::Available { from: from.into(), resolution });
    }

    /// Says why figures are unavailable.
    pub fn set_unavailable(
        &mut self,
        kind: SubjectKind,
        figures: impl IntoIterator<Item = Figure>,
        reason: impl Into<Cow<'static, str>>,
    ) {
        self.set_all(kind, figures, FigureSource::Unavailable { reason: reason.into() });
    }

    /// Says where figures come from, or, if `failed` has a reason, why they are unavailable.
    pub fn set_read(
        &mut self,
        kind: SubjectKind,
        figures: impl IntoIterator<Item = Figure>,
        failed: Option<&str>,
        from: impl Into<Cow<'static, str>>,
        resolution: u64,
    ) {
        match failed {
            None => self.set_available(kind, figures, from, resolution),
            Some(reason) => self.set_unavailable(kind, figures, reason.to_owned()),
        }
    }

    fn set_all(
        &mut self,
        kind: SubjectKind,
        figures: impl IntoIterator<Item = Figure>,
        source: FigureSource,
    ) {
        let source = source.cut();
        for figure in figures {
            let sources = self.figures.entry(kind).or_default();
            // Agents set them with each sample, and they hardly ever change.
            if sources.get(&figure) != Some(&source) {
                sources.insert(figure, source.clone());
            }
        }
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
        assert_eq!(sources.iter().count(), 2);
    }

    #[test]
    fn before_the_first_sample_every_counted_figure_is_unavailable() {
        let sources = HostSources::unread();
        let counted: usize = Figure::ALL.into_iter().map(|figure| figure.kinds().len()).sum();
        assert_eq!(sources.iter().count(), counted);
        assert!(sources.iter().all(|(_, _, source)| matches!(source, FigureSource::Unavailable { .. })));
        let disk: Vec<Figure> = SubjectKind::Disk.figures().collect();
        assert!(disk.contains(&Figure::DiskBusyNs) && !disk.contains(&Figure::CpuUserNs));
        assert_eq!(SubjectKind::Task.figures().count(), 0);
        // The numbers of the datagrams' format.
        assert!((0..).zip(SubjectKind::ALL).all(|(number, kind)| kind as u8 == number));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let mut sources = HostSources::default();
        sources.set_unavailable(SubjectKind::Host, [Figure::CpuUserNs], "é".repeat(200));
        sources.set_available(SubjectKind::Host, [Figure::Cycles], "a".to_owned() + &"é".repeat(200), 1);
        let length = |figure| match sources.get(SubjectKind::Host, figure).unwrap() {
            FigureSource::Available { from: text, .. } | FigureSource::Unavailable { reason: text } => {
                text.len()
            }
        };
        assert_eq!((length(Figure::CpuUserNs), length(Figure::Cycles)), (160, 159));
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
