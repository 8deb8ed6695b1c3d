//! A query's run: when it ran, what worked for it on each host, and what is known of it from outside.

use serde::{Deserialize, Serialize};

use crate::error::{Result, UsageError, within};
use crate::sample::Subject;

/// The most hosts of a query.
const HOSTS_MAX: usize = 1024;
/// The most subjects of a query on one host.
const SUBJECTS_MAX: usize = 4096;
/// The longest run, in nanoseconds: a hundred days. A longer one means that a clock is wrong.
const RUN_NS_MAX: u64 = 100 * 86_400 * 1_000_000_000;

/// Whether a subject worked for this query alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// For this query alone, as a process of its own, or a host that runs nothing else.
    #[default]
    Own,
    /// For others, too. An equal share is the estimate, and it is marked as shared.
    Shared {
        /// Labels of the other queries. Empty if they are not known: then all of the subject's use is taken.
        with: Vec<String>,
    },
}

/// Something that worked for a query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// The process, task, socket, disk or host.
    pub subject: Subject,
    /// Whether it worked for others, too.
    pub share: Share,
}

impl Worker {
    /// A subject that worked for this query alone.
    pub fn own(subject: Subject) -> Self {
        Self { subject, share: Share::Own }
    }

    /// A subject that worked for other queries, too.
    pub fn shared(subject: Subject, with: Vec<String>) -> Self {
        Self { subject, share: Share::Shared { with } }
    }
}

/// What worked for a query on one host.
///
/// A figure that several subjects have is counted once. It is taken from the first of these that has it: own
/// processes, own tasks, own whole host, shared processes, shared tasks, shared host. Figures of sockets are taken from
/// own peers before own processes, and those of disks from own disks likewise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostWork {
    /// The host.
    pub host: String,
    /// The subjects.
    pub workers: Vec<Worker>,
    /// Whether more nodes would divide its work: true for nodes with a part of the data, false for a coordinator or a
    /// client.
    pub divides: bool,
}

/// What is known of a query besides samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Known {
    /// Bytes of the result.
    pub result_bytes: Option<u64>,
    /// Exchanges of a request and its answer, one after the other, between the client or coordinator and the others.
    pub round_trips: Option<u64>,
    /// Threads that may work for the query on a host at once. 1 rules out that CPU, disk and lock waits overlap.
    pub parallelism: Option<u32>,
    /// Time for which the client waited for the query, in nanoseconds. During the rest of the run the client was busy,
    /// and the query may have waited for it.
    pub client_wait_ns: Option<u64>,
    /// When the query waited until there was room for it among others, in nanoseconds since it began: from, to. Waits do
    /// not overlap.
    pub queued_ns: Vec<(u64, u64)>,
    /// When the query had been planned, in nanoseconds since it began.
    pub planned_ns: Option<u64>,
    /// The time that was predicted for the query, in nanoseconds.
    pub predicted_ns: Option<u64>,
}

/// A query's run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuerySpan {
    /// Its name, for people.
    pub label: String,
    /// When it began, in nanoseconds on the time line.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// What worked for it.
    pub hosts: Vec<HostWork>,
    /// What else is known of it.
    pub known: Known,
}

impl QuerySpan {
    /// Its run time in nanoseconds.
    pub fn run_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.began_ns)
    }

    /// For which fraction of a step the query waited until there was room for it.
    pub(crate) fn queued(&self, from: u64, to: u64) -> f64 {
        let within = |&(began, ended): &(u64, u64)| {
            let (began, ended) = (self.began_ns.saturating_add(began), self.began_ns.saturating_add(ended));
            ended.min(to).saturating_sub(began.max(from))
        };
        let waited: u64 = self.known.queued_ns.iter().map(within).sum();
        (waited as f64 / to.saturating_sub(from).max(1) as f64).min(1.0)
    }

    /// Its beginning and end.
    pub(crate) fn span(&self) -> (u64, u64) {
        (self.began_ns, self.ended_ns)
    }

    /// Checks its times and sizes.
    ///
    /// # Errors
    /// If it took no time or more than a hundred days, has too many hosts or subjects, or a host twice.
    pub fn check(&self) -> Result<()> {
        if self.ended_ns <= self.began_ns {
            let (began_ns, ended_ns) = (self.began_ns, self.ended_ns);
            return Err(UsageError::NoDuration { label: self.label.clone(), began_ns, ended_ns });
        }
        within("run time of a query in nanoseconds", self.run_ns() as f64, 1.0, RUN_NS_MAX as f64)?;
        let workers = self.hosts.iter().map(|host| host.workers.len()).max().unwrap_or(0);
        for (what, found, max) in
            [("hosts", self.hosts.len(), HOSTS_MAX), ("subjects on a host", workers, SUBJECTS_MAX)]
        {
            if found > max {
                return Err(UsageError::TooMany { label: self.label.clone(), what, found, max });
            }
        }
        let mut names: Vec<&str> = self.hosts.iter().map(|host| host.host.as_str()).collect();
        names.sort_unstable();
        if let Some([host, _]) = names.array_windows().find(|[a, b]| a == b) {
            return Err(UsageError::HostTwice { label: self.label.clone(), host: (*host).into() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_without_duration_or_limits_are_refused() {
        let span = QuerySpan { label: "q".into(), began_ns: 5, ended_ns: 6, ..QuerySpan::default() };
        span.check().unwrap();
        assert!(QuerySpan { ended_ns: 5, ..span.clone() }.check().is_err());
        assert!(QuerySpan { ended_ns: u64::MAX, ..span.clone() }.check().is_err());
        let host = HostWork { host: "node1".into(), workers: Vec::new(), divides: true };
        assert!(QuerySpan { hosts: vec![host.clone(); HOSTS_MAX + 1], ..span.clone() }.check().is_err());
        let twice = QuerySpan { hosts: vec![host; 2], ..span.clone() }.check();
        assert!(matches!(twice, Err(UsageError::HostTwice { .. })));
        let json = serde_json::to_string(&span).unwrap();
        assert_eq!(serde_json::from_str::<QuerySpan>(&json).unwrap(), span);
    }
}
