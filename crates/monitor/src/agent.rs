//! Takes samples of a host.

use lightship_usage::Sample;

use crate::datagram::Description;
use crate::options::AgentOptions;
use crate::probe::Probe;
use crate::source::{HostFacts, Sources};

/// Counts what a host and its processes use. It has no clock and no sockets of its own: [`crate::run_agent`] does.
pub struct Agent {
    options: AgentOptions,
    run: u64,
    number: u64,
    probe: Probe,
    sources: Sources,
}

impl Agent {
    /// An agent. `run` should be greater than that of an agent before it: [`crate::unix_ns`] is.
    pub fn new(options: AgentOptions, run: u64) -> Self {
        let options = options.bounded();
        let mut sources = Sources::default();
        let probe = Probe::new(&options, &mut sources);
        Self { options, run, number: 0, probe, sources }
    }

    /// Takes a sample at `now_ns` of [`crate::monotonic_ns`]. It reads files of the kernel, and takes up to some tens
    /// of milliseconds if there are many processes: do not call it where nothing may block.
    pub fn sample(&mut self, now_ns: u64) -> Sample {
        let entries = self.probe.read(now_ns, &mut self.sources);
        let number = self.number;
        self.number += 1;
        Sample { host: self.options.host.clone(), run: self.run, number, at_ns: now_ns, entries }
    }

    /// Where the figures come from, as of the last sample.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// What is known of the host, as of the last sample.
    pub fn facts(&self) -> &HostFacts {
        self.probe.facts()
    }

    /// All that a collector should know of the host beside samples.
    pub fn description(&self) -> Description {
        Description {
            host: self.options.host.clone(),
            interval_ns: self.options.interval_ns,
            facts: self.facts().clone(),
            sources: self.sources.iter().map(|(scope, figure, row)| (scope, figure, row.clone())).collect(),
            processes: self.probe.names(),
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use lightship_usage::{Figure, Subject};

    use super::*;
    use crate::options::Watch;
    use crate::source::{Availability, Scope};

    fn agent(watch: Watch) -> Agent {
        Agent::new(AgentOptions { watch, ..AgentOptions::new("here") }, 1)
    }

    #[test]
    fn every_figure_of_a_sample_has_a_source_and_every_other_one_a_reason() {
        let mut agent = agent(Watch::Busiest);
        let sample = agent.sample(0);
        let sample = [sample, agent.sample(1_000_000_000)].into_iter().next_back().unwrap();
        assert_eq!(sample.number, 1);
        let available = |scope, figure| {
            matches!(agent.sources().get(scope, figure), Some(Availability::Available { .. }))
        };
        for entry in &sample.entries {
            let scope = Scope::of(&entry.subject).unwrap();
            for (figure, _) in entry.figures.iter() {
                assert!(available(scope, figure), "{figure:?} of {:?}", entry.subject);
            }
        }
        let host = &sample.entries[0];
        assert_eq!(host.subject, Subject::Host);
        for figure in Scope::Host.figures() {
            assert_eq!(host.figures.get(*figure).is_some(), available(Scope::Host, *figure), "{figure:?}");
        }
        assert!(
            agent.sources().iter().all(|(_, _, row)| *row != Availability::Unavailable { reason: "".into() })
        );
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
