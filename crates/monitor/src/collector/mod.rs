//! Collects the samples of many hosts on one time line. No I/O and no clock of its own.

mod assembly;
mod host;
mod report;
mod window;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use lightship_usage::{ClockMap, Sample};

use crate::clock::{ClockOptions, Moment};
use crate::datagram::{self, Answer, DatagramBody, DatagramError, DatagramHeader, Keys};
use assembly::Assembled;
use host::Host;
pub use report::{CollectorCounts, HostCounts, HostReport};

/// For each host of the limit, how many forgotten hosts there are whose last run is remembered.
const FORGOTTEN_PER_HOST: usize = 4;

/// Settings of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectorOptions {
    /// The most hosts. Each takes up to 400 KB beside its samples.
    pub hosts_max: usize,
    /// The most bytes of samples of which parts are missing, of all hosts together.
    pub bytes_max: usize,
    /// How long a host may be silent before it has left, in nanoseconds; at least three of its intervals.
    pub leave_ns: u64,
    /// What is assumed about the hosts' clocks.
    pub clock: ClockOptions,
}

impl Default for CollectorOptions {
    fn default() -> Self {
        Self { hosts_max: 256, bytes_max: 64 << 20, leave_ns: 10_000_000_000, clock: ClockOptions::default() }
    }
}

/// A sample on the collector's time line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedSample {
    /// The sample, with the entries that were received.
    pub sample: Sample,
    /// When it was taken, on the collector's clock, in nanoseconds. If the host's clock is not known, when it was
    /// received.
    pub time_ns: u64,
    /// The true time differs from it by at most this, in nanoseconds; `None` if the host's clock is not known.
    pub bound_ns: Option<u64>,
    /// Parts that were lost, or received too late.
    pub parts_missing: u16,
}

impl TimedSample {
    /// The clock of its host at that time, for [`Timeline::set_clock`](lightship_usage::Timeline::set_clock) before the
    /// sample is inserted; `None` if the clock is not known.
    pub fn clock(&self) -> Option<ClockMap> {
        Some(ClockMap {
            host_ns: self.sample.at_ns,
            line_ns: self.time_ns,
            bound_ns: self.bound_ns?,
            drift_ppb: 0,
            drift_bound_ppb: u64::from(ClockOptions::default().drift_ppm_max) * 1000,
        })
    }
}

/// An event of a collector.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CollectorEvent {
    /// A host has joined: it is new, or it was silent for too long.
    Joined {
        /// Its name.
        host: String,
        /// The run of its agent.
        run: u64,
    },
    /// The agent of a host has started again.
    Restarted {
        /// The host's name.
        host: String,
        /// The new run.
        run: u64,
    },
    /// A host has been silent for too long.
    Left {
        /// Its name.
        host: String,
    },
    /// There are more hosts than the limit.
    Refused {
        /// The name of the one that is refused.
        host: String,
    },
    /// The clock of a host contradicts itself: it was set, or the agent sends wrong times.
    ClockDoubtful {
        /// The host's name.
        host: String,
    },
    /// The clock of a host was set.
    ClockStepped {
        /// The host's name.
        host: String,
        /// By how much, in nanoseconds, about.
        by_ns: i64,
        /// Whether it was set so often that it is no longer used.
        unreliable: bool,
    },
    /// A sample.
    Sample(Arc<TimedSample>),
}

/// Collects samples.
#[derive(Debug)]
pub struct Collector {
    options: CollectorOptions,
    keys: Keys,
    /// The key of sessions, which prove that an agent has received an answer at its address.
    secret: [u8; 32],
    hosts: BTreeMap<String, Host>,
    /// The last runs of hosts that were forgotten.
    forgotten: BTreeMap<String, u64>,
    counts: CollectorCounts,
}

impl Collector {
    /// A collector. `secret` must be random, and different for each collector.
    pub fn new(options: CollectorOptions, token: &str, secret: [u8; 32]) -> Self {
        Self {
            options,
            keys: Keys::of(token),
            secret,
            hosts: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            counts: CollectorCounts::default(),
        }
    }

    /// Takes in a datagram that came at `now_ns` of the collector's clock. Returns the answer, which should be sent to
    /// `from` at once; it is never longer than the datagram.
    pub fn handle(
        &mut self,
        bytes: &[u8],
        from: SocketAddr,
        now_ns: u64,
        events: &mut Vec<CollectorEvent>,
    ) -> Option<Vec<u8>> {
        let (header, body) = match datagram::open(bytes, &self.keys) {
            Ok(opened) => opened,
            Err(DatagramError::Forged) => {
                self.counts.forged += 1;
                return None;
            }
            Err(_) => {
                self.counts.malformed += 1;
                return None;
            }
        };
        let name = match &body {
            DatagramBody::Sample(part) => part.sample.host.clone(),
            DatagramBody::Description(description) => description.host.clone(),
        };
        let session = self.session(&name, header.run, from);
        let known = self.hosts.get(&name).map(|host| host.run).or_else(|| self.forgotten.get(&name).copied());
        let answer = |run_seen| {
            let answer = Answer { run: header.run, sequence: header.sequence, session, run_seen };
            header.wants_answer.then(|| answer.seal(&self.keys))
        };
        let current = self.hosts.get(&name).is_some_and(|host| host.run == header.run);
        // After a host was forgotten, a datagram of the same run may be a repetition.
        if known.is_some_and(|known| known > header.run || known == header.run && !current) {
            self.counts.old_runs += 1;
            return answer(known.map_or(0, |known| known.max(header.run.saturating_add(1))));
        }
        if header.session != session {
            // It may be a repetition of an old datagram, and the clock of its host is not known yet.
            self.counts.unconfirmed += 1;
            return answer(header.run);
        }
        let answer = answer(header.run);
        if !current && !self.join(&name, &header, events) {
            return None;
        }
        let host = self.hosts.get_mut(&name)?;
        if !host.accept(&header, from, now_ns, &name, events) {
            return None;
        }
        match body {
            DatagramBody::Sample(part) => {
                let done = host.add_sample(part, now_ns);
                self.finish(&name, done, events);
            }
            DatagramBody::Description(description) => host.describe(description),
        }
        answer
    }

    /// Handles what depends only on time, such as hosts that leave. Call it about twice a second.
    pub fn tick(&mut self, now_ns: u64, events: &mut Vec<CollectorEvent>) {
        let mut all = Vec::new();
        for (name, host) in &mut self.hosts {
            let done = host.assembly.expire(now_ns);
            if !done.is_empty() {
                all.push((name.clone(), done));
            }
            if host.leaves(now_ns, self.options.leave_ns) {
                events.push(CollectorEvent::Left { host: name.clone() });
            }
        }
        for (name, done) in all {
            self.finish(&name, done, events);
        }
    }

    /// Converts a time on a host's clock to the collector's clock, by what is known now. `None` if the host's clock is
    /// not known.
    pub fn time_of(&self, host: &str, agent_ns: u64) -> Option<Moment> {
        self.hosts.get(host)?.clock.to_collector(agent_ns)
    }

    /// All hosts, including those that have left, as of `now_ns` on the collector's clock.
    pub fn hosts(&self, now_ns: u64) -> Vec<HostReport> {
        self.hosts.iter().map(|(name, host)| host.report(name, now_ns)).collect()
    }

    /// Datagrams that belong to no host.
    pub fn counts(&self) -> CollectorCounts {
        self.counts
    }

    /// An estimate of the memory that samples take of which parts are missing, in bytes.
    pub fn bytes(&self) -> usize {
        self.hosts.values().map(|host| host.assembly.bytes()).sum::<usize>()
    }

    /// What an agent must send to show that it receives answers at its address. It is computed for each datagram, so
    /// that senders that don't receive answers take no memory.
    fn session(&self, name: &str, run: u64, from: SocketAddr) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher
            .update(&run.to_le_bytes())
            .update(from.to_string().as_bytes())
            .update(b" ")
            .update(name.as_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
        // 0 is that of an agent that has no answer yet.
        u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
    }

    /// Makes room for a host, or for another run of it; false if there are too many.
    fn join(&mut self, name: &str, header: &DatagramHeader, events: &mut Vec<CollectorEvent>) -> bool {
        if let Some(host) = self.hosts.get_mut(name) {
            let done = host.restart(header.run, self.options.clock);
            events.push(CollectorEvent::Restarted { host: name.to_owned(), run: header.run });
            self.finish(name, done, events);
            return true;
        }
        if self.hosts.len() >= self.options.hosts_max {
            let left = self.hosts.iter().filter(|(_, host)| host.left).min_by_key(|(_, host)| host.last_ns);
            let Some((oldest, run)) = left.map(|(name, host)| (name.clone(), host.run)) else {
                self.counts.refused += 1;
                if self.counts.refused.is_power_of_two() {
                    events.push(CollectorEvent::Refused { host: name.to_owned() });
                }
                return false;
            };
            self.hosts.remove(&oldest);
            if self.forgotten.len() >= self.options.hosts_max.saturating_mul(FORGOTTEN_PER_HOST) {
                self.forgotten.pop_first();
            }
            self.forgotten.insert(oldest, run);
        }
        self.forgotten.remove(name);
        self.hosts.insert(name.to_owned(), Host::new(header.run, self.options.clock));
        events.push(CollectorEvent::Joined { host: name.to_owned(), run: header.run });
        true
    }

    /// Puts samples on the time line. If those of which parts are missing take too much memory, this host's are dropped.
    fn finish(&mut self, name: &str, done: Vec<Assembled>, events: &mut Vec<CollectorEvent>) {
        for done in done {
            let Some(host) = self.hosts.get_mut(name) else { return };
            let Assembled { sample, received_ns, parts_missing } = done;
            host.counts.samples += 1;
            host.counts.parts_missing += u64::from(parts_missing);
            let moment = host.clock.to_collector(sample.at_ns);
            let (time_ns, bound_ns) =
                moment.map_or((received_ns, None), |moment| (moment.time_ns, Some(moment.bound_ns)));
            let timed = TimedSample { sample, time_ns, bound_ns, parts_missing };
            events.push(CollectorEvent::Sample(Arc::new(timed)));
        }
        if self.bytes() > self.options.bytes_max
            && let Some(host) = self.hosts.get_mut(name)
        {
            host.counts.dropped += host.assembly.flush().len() as u64;
        }
    }
}

#[cfg(test)]
mod tests;
