//! Takes samples of a host.

use std::sync::{Arc, Mutex, PoisonError};

use lightship_usage::{Entry, HostSources, HostSpeeds, Sample, Subject, SubjectKind};

use crate::datagram::{Description, QUERY_BYTES_MAX};
use crate::facts::HostFacts;
use crate::options::AgentOptions;
use crate::probe::Probe;

/// The entries that a program adds to the samples of its agent: [`Subject::Task`] with what the program counts itself.
/// It is given the most entries that a sample takes.
pub type ProgramEntries = Arc<dyn Fn(usize) -> Vec<Entry> + Send + Sync>;

/// What an agent has done since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// Samples that were taken.
    pub samples: u64,
    /// Samples that were skipped, because the one before was not finished in time.
    pub samples_skipped: u64,
    /// The time that samples took, in nanoseconds.
    pub sampling_ns: u64,
    /// Entries that were left out of samples, because there were more than a limit, or because they are not valid.
    pub entries_left_out: u64,
    /// Collectors that samples are sent to.
    pub collectors: u64,
    /// Datagrams that were sent, to all collectors together.
    pub datagrams: u64,
    /// Bytes of these datagrams.
    pub datagram_bytes: u64,
    /// Datagrams that could not be sent.
    pub send_errors: u64,
    /// Other errors of sockets: one could not be opened, or the system reported one when answers were read.
    pub socket_errors: u64,
    /// Authentic answers of collectors.
    pub answers: u64,
    /// Answers that were not authentic.
    pub forged: u64,
}

/// Reads the counts of an agent while it runs. Clones read the same counts.
#[derive(Debug, Clone, Default)]
pub struct AgentCounter(Arc<Mutex<AgentCounts>>);

impl AgentCounter {
    /// The counts at this moment.
    pub fn get(&self) -> AgentCounts {
        // A panic elsewhere leaves numbers that may be off by one.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, add: impl FnOnce(&mut AgentCounts)) {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Counts what a host and its processes use. It has no clock and no sockets of its own: [`crate::run_agent`] does.
pub struct Agent {
    options: AgentOptions,
    run: u64,
    number: u64,
    probe: Probe,
    program: Option<ProgramEntries>,
    speeds: Option<HostSpeeds>,
    sources: HostSources,
    facts: HostFacts,
    counter: AgentCounter,
    /// Entries of the program that were left out so far.
    left_out: u64,
}

impl Agent {
    /// An agent. `run` should be greater than that of an agent before it: [`crate::unix_ns`] is.
    pub fn new(options: AgentOptions, run: u64) -> Self {
        let options = options.bounded();
        let mut sources = HostSources::unread();
        let probe = Probe::new(&options, &mut sources);
        let facts = probe.facts().clone();
        let counter = AgentCounter::default();
        Self {
            options,
            run,
            number: 0,
            probe,
            program: None,
            speeds: None,
            sources,
            facts,
            counter,
            left_out: 0,
        }
    }

    /// Adds the entries of a program to each sample, for example one for each task of a query that it runs. `entries`
    /// is called once for a sample, by the thread that takes it; it must not block, and its counters must not fall
    /// while a task is in the samples.
    ///
    /// Only [`Subject::Task`] is accepted, with a query of at most [`QUERY_BYTES_MAX`] bytes without control
    /// characters, and at most [`AgentOptions::tasks_max`] entries of a sample, the first ones. The others are left
    /// out, and counted in [`HostFacts::entries_left_out`]: a program that has more should give those that matter, and
    /// the others with the next sample.
    #[must_use]
    pub fn with_entries(mut self, entries: ProgramEntries) -> Self {
        self.program = Some(entries);
        self
    }

    /// Tells the collectors what the host can do at most, as it was measured
    /// ([`HostSpeedsStore::own_speeds`](crate::HostSpeedsStore::own_speeds)).
    #[must_use]
    pub fn with_speeds(mut self, speeds: Option<HostSpeeds>) -> Self {
        self.speeds = speeds;
        self
    }

    /// Takes a sample at `now_ns` of [`crate::monotonic_ns`]. It reads files of the kernel, and takes up to some tens
    /// of milliseconds if there are many processes: do not call it where nothing may block.
    pub fn sample(&mut self, now_ns: u64) -> Sample {
        let mut entries = self.probe.read(now_ns, &mut self.sources);
        if let Some(program) = &self.program {
            let added = program(self.options.tasks_max);
            let all = added.len();
            let valid = added.into_iter().filter(is_valid).take(self.options.tasks_max);
            let before = entries.len();
            entries.extend(valid);
            let (_, tasks) = entries.split_at(before);
            self.left_out += (all - tasks.len()) as u64;
            for task in tasks {
                let figures = task.figures.iter().map(|(figure, _)| figure);
                self.sources.set_available(SubjectKind::Task, figures, "counted by the program", 1);
            }
        }
        self.facts.clone_from(self.probe.facts());
        self.facts.entries_left_out += self.left_out;
        self.sources.processors = self.facts.processors;
        let number = self.number;
        self.number += 1;
        Sample { host: self.options.host.clone(), run: self.run, number, at_ns: now_ns, entries }
    }

    /// Where the figures come from, as of the last sample.
    pub fn sources(&self) -> &HostSources {
        &self.sources
    }

    /// What is known of the host, as of the last sample.
    pub fn facts(&self) -> &HostFacts {
        &self.facts
    }

    /// Reads the counts of this agent, also while [`crate::run_agent`] runs it.
    pub fn counter(&self) -> AgentCounter {
        self.counter.clone()
    }

    /// All that a collector should know of the host beside samples.
    pub fn description(&self) -> Description {
        Description {
            host: self.options.host.clone(),
            interval_ns: self.options.interval_ns,
            facts: self.facts().clone(),
            sources: self
                .sources
                .iter()
                .map(|(kind, figure, source)| (kind, figure, source.clone()))
                .collect(),
            processes: self.probe.names(),
            speeds: self.speeds.map(Box::new),
        }
    }

    /// The run.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// The settings, within their limits.
    pub fn options(&self) -> &AgentOptions {
        &self.options
    }
}

/// Whether an entry of a program can be in a datagram as it is. If a name were cut, two queries could become one.
fn is_valid(entry: &Entry) -> bool {
    match &entry.subject {
        Subject::Task { query, .. } => query.len() <= QUERY_BYTES_MAX && !query.contains(char::is_control),
        _ => false,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use lightship_usage::{Figure, FigureSource, Figures};

    use super::*;
    use crate::options::Watch;

    fn agent(watch: Watch) -> Agent {
        Agent::new(AgentOptions { watch, ..AgentOptions::new("here") }, 1)
    }

    #[test]
    fn every_figure_of_a_sample_has_a_source_and_every_other_one_a_reason() {
        let mut agent = agent(Watch::Busiest);
        let sample = agent.sample(0);
        let sample = [sample, agent.sample(1_000_000_000)].into_iter().next_back().unwrap();
        assert_eq!(sample.number, 1);
        let available =
            |kind, figure| matches!(agent.sources().get(kind, figure), Some(FigureSource::Available { .. }));
        for entry in &sample.entries {
            let kind = SubjectKind::of(&entry.subject);
            for (figure, _) in entry.figures.iter() {
                assert!(available(kind, figure), "{figure:?} of {:?}", entry.subject);
            }
        }
        let host = &sample.entries[0];
        assert_eq!(host.subject, Subject::Host);
        for figure in SubjectKind::Host.figures() {
            assert_eq!(
                host.figures.get(figure).is_some(),
                available(SubjectKind::Host, figure),
                "{figure:?}"
            );
        }
        let reason = |row: &FigureSource| match row {
            FigureSource::Available { .. } => None,
            FigureSource::Unavailable { reason } => Some(reason.clone().into_owned()),
        };
        assert!(
            agent.sources().iter().all(|(_, _, row)| reason(row).is_none_or(|reason| !reason.is_empty()))
        );
        // Of the host, all was read.
        let host = agent.sources().iter().filter(|(kind, ..)| *kind == SubjectKind::Host);
        assert!(host.filter_map(|(_, _, row)| reason(row)).all(|reason| reason != "not read yet"));
        let instructions = agent.sources().get(SubjectKind::Host, Figure::Instructions).and_then(reason);
        assert_eq!(instructions.unwrap(), "instructions and cycles are counted by process only");
    }

    #[test]
    fn without_a_process_its_figures_have_that_as_the_reason() {
        let mut agent = agent(Watch::Names(vec!["no such process".into()]));
        agent.sample(0);
        for figure in SubjectKind::Process.figures() {
            match agent.sources().get(SubjectKind::Process, figure).unwrap() {
                // Sockets are read for all processes at once.
                FigureSource::Available { from, .. } => assert!(from.starts_with("sock_diag"), "{figure:?}"),
                FigureSource::Unavailable { reason } => {
                    assert!(
                        reason == "none was counted yet" || reason.contains("perf_event_open"),
                        "{figure:?}: {reason}"
                    );
                }
            }
        }
    }

    #[test]
    fn this_process_is_among_those_with_its_name_and_descends_from_itself() {
        let pid = std::process::id();
        let name = std::fs::read_to_string("/proc/self/comm").unwrap().trim().to_owned();
        for watch in
            [Watch::Names(vec![name]), Watch::Trees(vec![pid]), Watch::Processes(vec![pid]), Watch::All]
        {
            let mut agent = agent(watch);
            let sample = agent.sample(5);
            let own = sample
                .entries
                .iter()
                .find(|entry| matches!(entry.subject, Subject::Process { pid: p, .. } if p == pid));
            assert!(own.unwrap().figures.get(Figure::CpuUserNs).is_some());
        }
    }

    #[test]
    fn this_process_alone_is_sampled_without_its_children() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let processes = |watch| {
            let sample = agent(watch).sample(0);
            let pid = |entry: &Entry| match entry.subject {
                Subject::Process { pid, .. } => Some(pid),
                _ => None,
            };
            sample.entries.iter().filter_map(pid).collect::<Vec<u32>>()
        };
        assert_eq!(processes(Watch::this_process()), [std::process::id()]);
        assert!(processes(Watch::Trees(vec![std::process::id()])).contains(&child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_begins_between_frequent_samples_is_in_the_next() {
        let mut agent = agent(Watch::Trees(vec![std::process::id()]));
        // On a busy machine a search may take so long that the next sample goes without one.
        let is_found = (0..20).any(|attempt| {
            let at_ns = attempt * 2_000_000_000;
            agent.sample(at_ns);
            let mut child =
                std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
            // Less than a second.
            let sample = agent.sample(at_ns + 500_000_000);
            let is_child =
                |entry: &Entry| matches!(entry.subject, Subject::Process { pid, .. } if pid == child.id());
            let is_found = sample.entries.iter().any(is_child);
            drop(child.stdin.take());
            child.wait().unwrap();
            is_found
        });
        assert!(is_found);
    }

    #[test]
    fn entries_of_the_program_are_added_within_their_limit_and_others_are_counted() {
        let mut figures = Figures::default();
        figures.set(Figure::LockWaitNs, 5);
        let task = |query: &str, task| Entry {
            subject: Subject::Task { query: query.into(), stage: 1, task },
            figures: figures.clone(),
        };
        let mut all: Vec<Entry> = (0..3).map(|number| task("q1", number)).collect();
        all.push(Entry { subject: Subject::Host, figures: figures.clone() });
        all.push(task(&"q".repeat(QUERY_BYTES_MAX + 1), 0));
        all.push(task("q\u{1b}[2J", 0));
        all.push(task("q2", 0));
        let options = AgentOptions { tasks_max: 2, ..AgentOptions::new("here") };
        let mut agent = Agent::new(options, 1).with_entries(Arc::new(move |entries_max| {
            assert_eq!(entries_max, 2);
            all.clone()
        }));
        for samples in 1..=2 {
            let sample = agent.sample(0);
            let tasks: Vec<&Entry> =
                sample.entries.iter().filter(|entry| matches!(entry.subject, Subject::Task { .. })).collect();
            assert_eq!(tasks, [&task("q1", 0), &task("q1", 1)]);
            assert_eq!(sample.entries.iter().filter(|entry| entry.subject == Subject::Host).count(), 1);
            assert_eq!(agent.facts().entries_left_out, 5 * samples);
        }
        let source = agent.sources().get(SubjectKind::Task, Figure::LockWaitNs).unwrap();
        assert!(matches!(source, FigureSource::Available { resolution: 1, .. }));
        assert_eq!(agent.sources().get(SubjectKind::Task, Figure::ClientWaitNs), None);
    }

    #[test]
    fn between_two_readings_of_sockets_their_figures_are_missing() {
        let mut agent = agent(Watch::Processes(vec![std::process::id()]));
        let own = |sample: &Sample| {
            let mut processes =
                sample.entries.iter().filter(|entry| matches!(entry.subject, Subject::Process { .. }));
            processes.next().unwrap().figures.clone()
        };
        assert!(own(&agent.sample(0)).get(Figure::SocketBusyNs).is_some());
        assert_eq!(own(&agent.sample(10_000_000)).get(Figure::SocketBusyNs), None);
        assert!(own(&agent.sample(500_000_000)).get(Figure::SocketBusyNs).is_some());
    }
}
