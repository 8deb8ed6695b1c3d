//! Finds what worked for a query, and assesses it.

use std::collections::BTreeMap;

use lightship_usage::{Footprint, HostWork, QuerySpan, Subject, Worker};

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

/// The samples after the end of a query that are awaited.
const AFTER_END: usize = 2;

/// The tasks of each query, by host.
type Tasks<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a Subject>>>;

impl State {
    /// Begins a tick: gives up queries that have waited for too long.
    pub(super) fn begin_tick(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.queries.expire(&self.options, now_ns);
    }

    /// Assesses the longest query whose samples have come, or were awaited for long enough; false if there is none.
    ///
    /// Which hosts worked for a query is known only when their samples have come, so all hosts are awaited that have
    /// not left. Two samples are: the pace after the end tells which part of the growth between the samples around the
    /// end was the query's.
    pub(super) fn assess_next(&mut self, now_ns: u64) -> bool {
        let awaited = |host: &str| self.timeline.last_samples(host, AFTER_END).last().copied().unwrap_or(0);
        let oldest = self.live_hosts().map(awaited).min();
        let wait_ns = self.options.wait_ns;
        let is_ready = |record: &Record| {
            record.ended_ns.is_some_and(|ended_ns| {
                oldest.is_none_or(|oldest| oldest > ended_ns) || now_ns.saturating_sub(ended_ns) >= wait_ns
            })
        };
        let Some(number) = self.queries.next_waiting(is_ready) else { return false };
        let Some(record) = self.queries.records.get(&number) else { return true };
        let Some(ended_ns) = record.ended_ns else { return true };
        let span = self.span(record, ended_ns);
        let late = |work: &&HostWork| self.timeline.span(&work.host).is_none_or(|span| span.1 <= ended_ns);
        let late_hosts: Vec<String> = span.hosts.iter().filter(late).map(|work| work.host.clone()).collect();
        match Footprint::new(&self.timeline, &self.options.speeds, &span) {
            Ok(footprint) => self.queries.assessed(&self.options, number, footprint, span, late_hosts),
            Err(error) => self.queries.give_up(number, &error.to_string()),
        }
        true
    }

    /// The run of a query, with what worked for it.
    fn span(&self, record: &Record, ended_ns: u64) -> QuerySpan {
        let (from, to) = (record.began_ns, ended_ns);
        let tasks = self.tasks();
        let none = BTreeMap::new();
        let own_tasks = tasks.get(record.id.as_str()).unwrap_or(&none);
        let mut hosts: Vec<HostWork> = own_tasks
            .iter()
            .map(|(host, own)| {
                let others = self.others(record, host, (from, to), &tasks, false);
                let mut workers: Vec<Worker> =
                    own.iter().take(TASKS_MAX).map(|task| Worker::own((*task).clone())).collect();
                workers.extend(self.processes(host, (from, to), &others));
                HostWork { host: (*host).to_owned(), workers, divides: true }
            })
            .collect();
        let own_host = self.options.own_host.as_deref();
        if let Some(host) = own_host.filter(|host| hosts.is_empty() && self.timeline.span(host).is_some()) {
            let others = self.others(record, host, (from, to), &tasks, true);
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

    /// All tasks in samples.
    fn tasks(&self) -> Tasks<'_> {
        let mut tasks = Tasks::new();
        for host in self.timeline.hosts() {
            for subject in self.timeline.subjects(host) {
                if let Subject::Task { query, .. } = subject {
                    tasks.entry(query).or_default().entry(host).or_default().push(subject);
                }
            }
        }
        tasks
    }

    /// Names of the other queries that ran on a host at the same time. Those without tasks in any sample are too short
    /// to matter for a query that has some.
    fn others(
        &self,
        record: &Record,
        host: &str,
        (from, to): (u64, u64),
        tasks: &Tasks<'_>,
        with_short: bool,
    ) -> Vec<String> {
        let mut names = Vec::new();
        let mut add = |label: &str| {
            let is_named = names.len() < NAMED_MAX;
            names.push(if is_named { label.chars().take(NAME_CHARS_MAX).collect() } else { String::new() });
        };
        for other in self.queries.records.values() {
            let is_here = match tasks.get(other.id.as_str()) {
                Some(hosts) => hosts.contains_key(host),
                None => with_short,
            };
            if is_here && other.id != record.id && other.overlaps(from, to) {
                add(&other.label);
            }
        }
        // Queries of other coordinators are known by their tasks alone.
        for (query, hosts) in tasks.iter().filter(|(query, _)| !self.queries.contains(query)) {
            let spans = hosts.get(host).into_iter().flatten();
            let mut spans = spans.filter_map(|task| self.timeline.subject_span(host, task));
            if **query != *record.id && spans.any(|(first, last)| first < to && last > from) {
                add(query);
            }
        }
        names
    }

    /// The processes of a host, which worked for a query and for `others`. Those that did nothing at the time are left
    /// out, because each costs as much as one that did; but one stays, so that it is known that nothing was done.
    fn processes(&self, host: &str, (from, to): (u64, u64), others: &[String]) -> Vec<Worker> {
        let subjects = self.timeline.subjects_within(host, from, to).into_iter();
        let processes = subjects.filter(|subject| matches!(subject, Subject::Process { .. }));
        let (active, idle): (Vec<&Subject>, Vec<&Subject>) =
            processes.take(PROCESSES_MAX).partition(|subject| {
                let used = self.timeline.used(host, subject, from, to).amounts;
                used.iter().any(|(figure, amount)| !figure.is_gauge() && amount.value > 0.0)
            });
        let chosen = if active.is_empty() { idle.into_iter().take(1).collect() } else { active };
        let worker = |subject: &Subject| match others {
            [] => Worker::own(subject.clone()),
            others => Worker::shared(subject.clone(), others.to_vec()),
        };
        chosen.into_iter().map(worker).collect()
    }
}
