//! Finds what worked for a query, and assesses it.

use std::collections::{BTreeMap, HashSet};

use lightship_usage::{Footprint, HostSpeeds, HostWork, QuerySpan, Result, Subject, Timeline, Worker};

use super::queries::Record;
use super::state::State;

/// The most processes of a query on a host: those above are left out.
const PROCESSES_MAX: usize = 1024;
/// The most tasks of a query on a host.
const TASKS_MAX: usize = 1024;
/// Of the queries that share a process, so many are named; the others are counted.
const NAMED_MAX: usize = 8;
/// The most bytes of a label that names a query with which another one shares.
const NAME_CHARS_MAX: usize = 60;
/// The most queries of other coordinators on a host that are taken into account.
const ELSEWHERE_MAX: usize = 4096;

/// The samples after the end of a query that are awaited.
const AFTER_END: usize = 2;

/// A query that is to be assessed, with what is needed for that, so that the state can change meanwhile.
pub(super) struct Assignment {
    number: u64,
    span: QuerySpan,
    /// Hosts whose samples after the query's end did not come in time.
    late_hosts: Vec<String>,
    samples: Timeline,
    speeds: BTreeMap<String, HostSpeeds>,
}

impl Assignment {
    pub(super) fn assess(&self) -> Result<Footprint> {
        Footprint::new(&self.samples, &self.speeds, &self.span)
    }
}

/// The queries of which there are tasks in the samples of a host, as of the beginning of a tick.
#[derive(Debug, Default)]
struct QueriesOnHost {
    /// Those that are recorded.
    own: HashSet<String>,
    /// Those of other coordinators, with the first and the last moment of their tasks.
    elsewhere: BTreeMap<String, (u64, u64)>,
}

/// What a tick has found out for all of its assessments.
#[derive(Debug, Default)]
pub(super) struct Tick {
    now_ns: u64,
    /// The beginning of the first query that it assesses.
    since_ns: u64,
    hosts: BTreeMap<String, QueriesOnHost>,
}

#[cfg(test)]
impl Tick {
    /// The queries that it knows, on all hosts together.
    pub(super) fn queries(&self) -> usize {
        self.hosts.values().map(|on_host| on_host.own.len() + on_host.elsewhere.len()).sum()
    }
}

impl State {
    /// Begins a tick: gives up queries that have waited for too long. `None` if no query can be assessed.
    pub(super) fn begin_tick(&mut self, now_ns: u64) -> Option<Tick> {
        self.now_ns = self.now_ns.max(now_ns);
        self.queries.expire(&self.options, now_ns);
        let is_ready = self.is_ready(now_ns);
        let ready = self.queries.all_waiting().filter(|record| is_ready(record));
        let since = ready.map(|record| record.span().0).min()?;
        let mut hosts: BTreeMap<String, QueriesOnHost> = BTreeMap::new();
        for host in self.timeline.hosts() {
            let on_host = hosts.entry(host.to_owned()).or_default();
            for (subject, (first, last)) in self.timeline.tasks(host).filter(|(_, span)| span.1 >= since) {
                let Subject::Task { query, .. } = subject else { continue };
                if self.queries.contains(query) {
                    if !on_host.own.contains(query) {
                        on_host.own.insert(query.clone());
                    }
                } else if let Some(span) = on_host.elsewhere.get_mut(query) {
                    *span = (span.0.min(first), span.1.max(last));
                } else if on_host.elsewhere.len() < ELSEWHERE_MAX {
                    on_host.elsewhere.insert(query.clone(), (first, last));
                }
            }
        }
        Some(Tick { now_ns, since_ns: since, hosts })
    }

    /// Whether the samples of a query have come, or were awaited for long enough.
    ///
    /// Which hosts worked for a query is known only when their samples have come, so all hosts are awaited that have
    /// not left. Two samples are: the pace after the end tells which part of the growth between the samples around the
    /// end was the query's.
    fn is_ready(&self, now_ns: u64) -> impl Fn(&Record) -> bool + use<> {
        let awaited = |host: &str| self.timeline.last_samples(host, AFTER_END).last().copied().unwrap_or(0);
        let oldest = self.live_hosts().map(awaited).min();
        let wait_ns = self.options.wait_ns;
        move |record| {
            record.span().1.is_some_and(|ended_ns| {
                oldest.is_none_or(|oldest| oldest > ended_ns) || now_ns.saturating_sub(ended_ns) >= wait_ns
            })
        }
    }

    /// The longest query that can be assessed.
    pub(super) fn next_assignment(&mut self, tick: &Tick) -> Option<Assignment> {
        let is_ready = self.is_ready(tick.now_ns);
        let number =
            self.queries.next_waiting(|record| record.span().0 >= tick.since_ns && is_ready(record))?;
        let record = self.queries.records.get(&number)?;
        let ended_ns = record.span().1?;
        let span = self.span(record, ended_ns, tick);
        let late = |work: &&HostWork| self.timeline.span(&work.host).is_none_or(|span| span.1 <= ended_ns);
        let late_hosts: Vec<String> = span.hosts.iter().filter(late).map(|work| work.host.clone()).collect();
        let speeds = span.hosts.iter().filter_map(|work| Some((work.host.clone(), self.speeds(&work.host)?)));
        let speeds = speeds.collect();
        Some(Assignment { number, samples: self.timeline.excerpt(&span), span, late_hosts, speeds })
    }

    /// Keeps what an assessment found.
    pub(super) fn finish(&mut self, assignment: Assignment, assessed: Result<Footprint>) {
        let Assignment { number, late_hosts, .. } = assignment;
        match assessed {
            Ok(footprint) => self.queries.assessed(&self.options, number, footprint, late_hosts),
            Err(error) => self.queries.not_assessable(number, &error.to_string()),
        }
    }

    /// What a host can do at most, if it is known.
    fn speeds(&self, host: &str) -> Option<HostSpeeds> {
        let told = || self.hosts.get(host)?.report.as_ref()?.speeds;
        self.options.speeds.get(host).copied().or_else(told)
    }

    /// The run of a query, with what worked for it.
    fn span(&self, record: &Record, ended_ns: u64, tick: &Tick) -> QuerySpan {
        let (from, to) = (record.span().0, ended_ns);
        let mut hosts: Vec<HostWork> = Vec::new();
        for host in self.timeline.hosts() {
            let own = self.timeline.tasks_of(host, &record.id).take(TASKS_MAX);
            let mut workers: Vec<Worker> = own.map(|task| Worker::own(task.clone())).collect();
            if !workers.is_empty() {
                let others = self.others(record, host, (from, to), tick, false);
                workers.extend(self.processes(host, (from, to), &others));
                hosts.push(HostWork { host: host.to_owned(), workers, divides: true });
            }
        }
        let own_host = self.options.own_host.as_deref();
        if let Some(host) = own_host.filter(|host| hosts.is_empty() && self.timeline.span(host).is_some()) {
            let others = self.others(record, host, (from, to), tick, true);
            let workers = self.processes(host, (from, to), &others);
            hosts.push(HostWork { host: host.to_owned(), workers, divides: true });
        }
        QuerySpan {
            label: record.label.clone(),
            began_ns: from,
            ended_ns: to,
            hosts,
            known: record.known.clone(),
        }
    }

    /// Names of the other queries that ran on a host at the same time. Those without tasks in any sample are too short
    /// to matter for a query that has some.
    fn others(
        &self,
        record: &Record,
        host: &str,
        (from, to): (u64, u64),
        tick: &Tick,
        with_short: bool,
    ) -> Vec<String> {
        let mut names = Vec::new();
        let mut add = |label: &str| {
            let is_named = names.len() < NAMED_MAX;
            names.push(if is_named { label.chars().take(NAME_CHARS_MAX).collect() } else { String::new() });
        };
        let on_host = tick.hosts.get(host);
        let is_here = |id: &str| on_host.is_some_and(|on_host| on_host.own.contains(id));
        let is_short = |id: &str| !tick.hosts.values().any(|on_host| on_host.own.contains(id));
        for other in self.queries.records.values() {
            if other.id != record.id
                && other.overlaps(from, to)
                && (is_here(&other.id) || with_short && is_short(&other.id))
            {
                add(&other.label);
            }
        }
        // Queries of other coordinators are known by their tasks alone.
        for (query, &(first, last)) in on_host.into_iter().flat_map(|on_host| &on_host.elsewhere) {
            if *query != record.id && first < to && last > from {
                add(query);
            }
        }
        names
    }

    /// The processes of a host, which worked for a query and for `others`. Those that did nothing at the time are left
    /// out, because each costs as much as one that did; but one stays, so that it is known that nothing was done.
    fn processes(&self, host: &str, (from, to): (u64, u64), others: &[String]) -> Vec<Worker> {
        let processes = self.timeline.processes_within(host, from, to).into_iter().take(PROCESSES_MAX);
        let (active, idle): (Vec<&Subject>, Vec<&Subject>) =
            processes.partition(|subject| self.timeline.is_active(host, subject, from, to));
        let chosen = if active.is_empty() { idle.into_iter().take(1).collect() } else { active };
        let worker = |subject: &Subject| match others {
            [] => Worker::own(subject.clone()),
            others => Worker::shared(subject.clone(), others.to_vec()),
        };
        chosen.into_iter().map(worker).collect()
    }
}
