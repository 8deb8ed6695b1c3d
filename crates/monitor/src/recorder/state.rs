//! The samples, hosts and queries of a recorder.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use lightship_usage::{Figure, HostSources, Subject, Timeline, UsageError};

use super::hosts::Host;
use super::options::{QueryEnd, RecorderOptions};
use super::queries::Queries;
use super::report::NotableEvent;
use crate::collector::{CollectorCounts, CollectorEvent, HostReport, TimedSample};
use crate::history::HistoryStatus;

/// Something that has arrived.
#[derive(Debug)]
pub(super) enum Arrival {
    Event { event: CollectorEvent, now_ns: u64 },
    Began { id: String, label: String, at_ns: u64 },
    Ended { id: String, at_ns: u64, end: QueryEnd },
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) options: RecorderOptions,
    pub(super) timeline: Timeline,
    pub(super) hosts: BTreeMap<String, Host>,
    pub(super) queries: Queries,
    pub(super) events: VecDeque<NotableEvent>,
    pub(super) collector: CollectorCounts,
    /// What became of the samples on disk; `None` if they are not kept there.
    pub(super) history: Option<HistoryStatus>,
    /// What arrived while there was no room for it.
    pub(super) arrivals_dropped: u64,
    /// Samples that the time line did not take: of hosts above the limit, or too large.
    pub(super) samples_refused: u64,
    /// The time of the last tick or sample.
    pub(super) now_ns: u64,
}

impl State {
    pub(super) fn new(options: RecorderOptions) -> Self {
        Self {
            timeline: Timeline::new(options.samples),
            hosts: BTreeMap::new(),
            queries: Queries::default(),
            events: VecDeque::new(),
            collector: CollectorCounts::default(),
            history: None,
            arrivals_dropped: 0,
            samples_refused: 0,
            now_ns: 0,
            options,
        }
    }

    pub(super) fn take(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Event { event, now_ns } => self.event(event, now_ns),
            Arrival::Began { id, label, at_ns } => self.queries.began(&self.options, id, label, at_ns),
            Arrival::Ended { id, at_ns, end } => self.queries.ended(&self.options, &id, at_ns, end),
        }
    }

    fn event(&mut self, event: CollectorEvent, now_ns: u64) {
        let (host, text) = match event {
            CollectorEvent::Sample(timed) => return self.sample(timed),
            CollectorEvent::Joined { host, .. } => (host, "joined".to_owned()),
            CollectorEvent::Restarted { host, .. } => (host, "its agent started again".to_owned()),
            CollectorEvent::Left { host } => (host, "left: nothing came from it for too long".to_owned()),
            CollectorEvent::Refused { host } => (host, "refused: there are too many hosts".to_owned()),
            CollectorEvent::ClockDoubtful { host } => (host, "its clock contradicts itself".to_owned()),
            CollectorEvent::ClockStepped { host, by_ns, .. } => {
                let text = format!("its clock was set by about {:.3} s", by_ns as f64 / 1e9);
                (host, text)
            }
        };
        self.note(host, text, now_ns);
    }

    fn note(&mut self, host: String, text: String, at_ns: u64) {
        while self.events.len() >= self.options.events_max.max(1) {
            self.events.pop_front();
        }
        self.events.push_back(NotableEvent { at_ns, host, text });
    }

    fn sample(&mut self, timed: Arc<TimedSample>) {
        self.now_ns = self.now_ns.max(timed.time_ns);
        let name = timed.sample.host.as_str();
        let Some(clock) = timed.clock() else {
            // Its moment is not known well enough to be compared with those of queries.
            if let Some(host) = self.hosts.get_mut(name) {
                host.without_clock += 1;
            }
            return;
        };
        let placed = self.timeline.set_clock(name, clock);
        if placed.and_then(|()| self.timeline.insert(timed.sample.clone())).is_err() {
            self.samples_refused += 1;
            return;
        }
        let host = self.hosts.entry(name.to_owned()).or_default();
        if host.last.as_ref().is_none_or(|last| last.time_ns <= timed.time_ns) {
            host.last = Some(timed);
        }
    }

    /// Takes what the collector says of its hosts.
    pub(super) fn update(&mut self, reports: Vec<HostReport>, counts: CollectorCounts) {
        self.collector = counts;
        let names: std::collections::BTreeSet<&str> =
            reports.iter().map(|report| report.host.as_str()).collect();
        let timeline = &mut self.timeline;
        self.hosts.retain(|name, _| {
            let is_known = names.contains(name.as_str());
            if !is_known {
                timeline.remove(name);
            }
            is_known
        });
        for report in reports {
            let known = self.hosts.entry(report.host.clone()).or_default();
            let lost = report.counts.lost.saturating_sub(known.lost_noted);
            known.lost_noted = known.lost_noted.max(report.counts.lost);
            let sources = HostSources { processors: report.facts.processors, ..report.sources.clone() };
            // A host without samples is not on the time line yet.
            match self.timeline.set_sources(&report.host, sources) {
                Ok(()) | Err(UsageError::NoClock { .. }) => {}
                Err(error) => tracing::debug!(%error, "cannot set the sources of a host"),
            }
            let name = report.host.clone();
            known.report = Some(report);
            if lost > 0 {
                let text =
                    format!("{lost} {} lost", if lost == 1 { "datagram was" } else { "datagrams were" });
                self.note(name, text, self.now_ns);
            }
        }
    }

    /// The hosts whose samples are awaited: those that have not left.
    pub(super) fn live_hosts(&self) -> impl Iterator<Item = &str> {
        let is_live = |host: &&str| {
            let report = self.hosts.get(*host).and_then(|host| host.report.as_ref());
            report.is_none_or(|report| !report.left)
        };
        self.timeline.hosts().filter(is_live)
    }

    /// A figure of the last sample of a host.
    pub(super) fn last_figure(&self, host: &str, figure: Figure) -> Option<u64> {
        let last = self.hosts.get(host)?.last.as_ref()?;
        let mut entries = last.sample.entries.iter();
        entries.find(|entry| entry.subject == Subject::Host)?.figures.get(figure)
    }
}
