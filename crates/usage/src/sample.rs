//! What an agent counts on a host at one moment.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::figure::Figure;

/// Figures of one subject. A figure that is unavailable is missing, never 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figures(std::collections::BTreeMap<Figure, u64>);

impl Figures {
    /// A figure; `None` if it is unavailable.
    pub fn get(&self, figure: Figure) -> Option<u64> {
        self.0.get(&figure).copied()
    }

    /// Sets a figure, or removes it if the value is `None`.
    pub fn set(&mut self, figure: Figure, value: impl Into<Option<u64>>) {
        match value.into() {
            Some(value) => drop(self.0.insert(figure, value)),
            None => drop(self.0.remove(&figure)),
        }
    }

    /// The figures that are available, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Figure, u64)> + '_ {
        self.0.iter().map(|(figure, value)| (*figure, *value))
    }
}

impl Extend<(Figure, u64)> for Figures {
    fn extend<T: IntoIterator<Item = (Figure, u64)>>(&mut self, figures: T) {
        self.0.extend(figures);
    }
}

/// What a figure is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The whole host.
    Host,
    /// A disk, by its name.
    Disk(String),
    /// A network interface, by its name.
    Interface(String),
    /// A process. The time at which it began, in nanoseconds after the host did, tells it from others with its number.
    Process {
        /// Its number.
        pid: u32,
        /// When it began.
        began_ns: u64,
    },
    /// The sockets of a process to one other host, by its address.
    Peer {
        /// The process.
        pid: u32,
        /// When the process began.
        began_ns: u64,
        /// The other host.
        address: core::net::IpAddr,
    },
    /// A part of a query that is counted by the program that runs it: a task of a stage, or a database session.
    Task {
        /// The query.
        query: String,
        /// Its stage, from 0.
        stage: u32,
        /// The task of the stage, from 0.
        task: u32,
    },
}

impl Subject {
    /// All disks, in the order of subjects.
    pub(crate) const DISKS: Range<Self> = Self::Disk(String::new())..Self::Interface(String::new());
    /// All processes.
    pub(crate) const PROCESSES: Range<Self> = Self::Process { pid: 0, began_ns: 0 }..Self::Peer {
        pid: 0,
        began_ns: 0,
        address: core::net::IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED),
    };

    /// The tasks of a query.
    pub(crate) fn tasks(query: &str) -> Range<Self> {
        // No text is between a text and the same with a zero byte.
        let first = |query: String| Self::Task { query, stage: 0, task: 0 };
        first(query.to_owned())..first(format!("{query}\0"))
    }
}

/// The figures of one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What they are of.
    pub subject: Subject,
    /// The figures.
    pub figures: Figures,
}

/// What an agent counted at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The agent's host, by name.
    pub host: String,
    /// The run of the agent: greater after each start. Counters of processes go on; the agent's own begin at 0.
    pub run: u64,
    /// The number of the sample within the run, from 0: gaps are lost samples.
    pub number: u64,
    /// When it was taken, in nanoseconds on the host's monotonic clock.
    pub at_ns: u64,
    /// The figures.
    pub entries: Vec<Entry>,
}
