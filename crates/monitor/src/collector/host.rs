//! What a collector knows about one host.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::CollectorEvent;
use super::assembly::{Assembled, Assembly};
use super::report::{HostCounts, HostReport};
use super::window::{Arrival, Window};
use crate::clock::{ClockEvent, ClockOptions, Exchange, HostClock};
use crate::datagram::{DatagramHeader, Description, ProcessName, SamplePart};
use crate::facts::HostFacts;
use lightship_usage::{HostSources, HostSpeeds};

/// The most answers for which the time of arrival is awaited.
const ANSWERS_MAX: usize = 64;
/// The most processes whose names are remembered.
const PROCESSES_MAX: usize = 2000;

#[derive(Debug)]
pub(super) struct Host {
    pub(super) run: u64,
    pub(super) left: bool,
    pub(super) last_ns: u64,
    pub(super) clock: HostClock,
    pub(super) assembly: Assembly,
    pub(super) counts: HostCounts,
    from: Option<SocketAddr>,
    window: Window,
    /// Lost in earlier runs.
    lost_before: u64,
    /// Answers: the number of the answered datagram, when it was sent on the agent's clock, and when it was received.
    answers: VecDeque<(u64, u64, u64)>,
    interval_ns: u64,
    facts: HostFacts,
    sources: HostSources,
    speeds: Option<HostSpeeds>,
    /// By number and beginning.
    processes: BTreeMap<(u32, u64), ProcessName>,
}

impl Host {
    pub(super) fn new(run: u64, clock: ClockOptions) -> Self {
        Self {
            run,
            left: false,
            last_ns: 0,
            clock: HostClock::new(clock),
            assembly: Assembly::default(),
            counts: HostCounts::default(),
            from: None,
            window: Window::default(),
            lost_before: 0,
            answers: VecDeque::new(),
            interval_ns: 0,
            facts: HostFacts::default(),
            sources: HostSources::default(),
            speeds: None,
            processes: BTreeMap::new(),
        }
    }

    /// Begins another run: the host may have another clock, too. Returns the open samples of the run before.
    pub(super) fn restart(&mut self, run: u64, clock: ClockOptions) -> Vec<Assembled> {
        let done = self.assembly.flush();
        let lost_before = self.lost_before.saturating_add(self.window.lost());
        *self = Self { counts: self.counts, left: self.left, lost_before, ..Self::new(run, clock) };
        done
    }

    /// Records the header of a datagram; false if the datagram was received before.
    pub(super) fn accept(
        &mut self,
        header: &DatagramHeader,
        from: SocketAddr,
        now_ns: u64,
        name: &str,
        events: &mut Vec<CollectorEvent>,
    ) -> bool {
        match self.window.accept(header.sequence) {
            Arrival::Next => {}
            Arrival::Reordered => self.counts.reordered += 1,
            Arrival::Doubled => {
                self.counts.doubled += 1;
                return false;
            }
            Arrival::Old => {
                self.counts.old += 1;
                return false;
            }
        }
        self.counts.received += 1;
        (self.from, self.last_ns) = (Some(from), now_ns);
        if std::mem::take(&mut self.left) {
            events.push(CollectorEvent::Joined { host: name.to_owned(), run: self.run });
        }
        if self.clock.observe(header.sent_ns, now_ns) {
            events.push(CollectorEvent::ClockDoubtful { host: name.to_owned() });
        }
        if let Some(exchange) = self.exchange(header) {
            let doubtful = self.clock.is_doubtful();
            match self.clock.add(&exchange) {
                ClockEvent::Stepped { by_ns } => events.push(CollectorEvent::ClockStepped {
                    host: name.to_owned(),
                    by_ns,
                    unreliable: self.clock.is_unreliable(),
                }),
                ClockEvent::Doubtful if !doubtful => {
                    events.push(CollectorEvent::ClockDoubtful { host: name.to_owned() });
                }
                _ => {}
            }
        }
        if header.wants_answer {
            if self.answers.len() >= ANSWERS_MAX {
                self.answers.pop_front();
            }
            self.answers.push_back((header.sequence, header.sent_ns, now_ns));
        }
        true
    }

    /// The exchange that a datagram reports. The agent says only when it received the answer; the collector knows the
    /// other times.
    fn exchange(&mut self, header: &DatagramHeader) -> Option<Exchange> {
        let answered = header.answered?;
        let index = self.answers.iter().position(|(sequence, ..)| *sequence == answered.sequence)?;
        let (_, sent_ns, received_ns) = self.answers.remove(index)?;
        // The answer leaves a little later, which only adds to the round trip.
        Some(Exchange { sent_ns, received_ns, answered_ns: received_ns, returned_ns: answered.received_ns })
    }

    pub(super) fn add_sample(&mut self, part: SamplePart, now_ns: u64) -> Vec<Assembled> {
        self.assembly.add(part, now_ns)
    }

    pub(super) fn describe(&mut self, description: Description) {
        (self.facts, self.interval_ns) = (description.facts, description.interval_ns);
        self.sources.processors = self.facts.processors;
        for (kind, figure, source) in description.sources {
            self.sources.set(kind, figure, source);
        }
        self.speeds = description.speeds.map(|speeds| *speeds).or(self.speeds);
        for process in description.processes {
            if self.processes.len() >= PROCESSES_MAX {
                self.processes.pop_first();
            }
            self.processes.insert((process.pid, process.began_ns), process);
        }
    }

    /// Whether it has just been silent for too long.
    pub(super) fn leaves(&mut self, now_ns: u64, leave_ns: u64) -> bool {
        let limit_ns = leave_ns.max(self.interval_ns.saturating_mul(3));
        let leaves = !self.left && now_ns.saturating_sub(self.last_ns) > limit_ns;
        self.left |= leaves;
        leaves
    }

    pub(super) fn report(&self, name: &str, now_ns: u64) -> HostReport {
        HostReport {
            host: name.to_owned(),
            run: self.run,
            from: self.from,
            left: self.left,
            silent_ns: now_ns.saturating_sub(self.last_ns),
            offset: self.clock.offset(now_ns),
            drift_ppm: self.clock.drift_ppm(),
            round_trip_ns: self.clock.round_trip_ns(),
            clock_steps: self.clock.steps(),
            clock_lies: self.clock.lies(),
            clock_doubtful: self.clock.is_doubtful(),
            clock_unreliable: self.clock.is_unreliable(),
            counts: HostCounts { lost: self.lost_before.saturating_add(self.window.lost()), ..self.counts },
            interval_ns: self.interval_ns,
            facts: self.facts.clone(),
            sources: self.sources.clone(),
            speeds: self.speeds,
            processes: self.processes.values().cloned().collect(),
        }
    }
}
