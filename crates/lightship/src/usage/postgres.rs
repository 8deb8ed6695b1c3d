//! The sessions that a command has at PostgreSQL servers, and what they wait for.
//!
//! `pg_stat_activity` shows what a session waits for at the moment. The time since the look before counts for what is
//! seen, so that times are as exact as looks are frequent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use lightship_monitor::{Agent, AgentOptions, Watch, unix_ns};
use lightship_sources::Location;
use lightship_usage::{
    ClockMap, Entry, Figure, Figures, HostWork, Sample, Subject, SubjectKind, Timeline, Worker,
};

use super::run::of_model;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::result::{Connection, connect};

/// The name of the server in reports; of several, with its number.
const HOST: &str = "postgresql";
/// The name of the server's processes.
const PROCESS: &str = "postgres";
/// How long the server may take to answer. A command is not kept from ending for longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The most sessions that are watched.
const SESSIONS_MAX: usize = 1000;

/// The application name of one run: it identifies the sessions of its command.
pub(super) fn application_name() -> String {
    format!("lightship usage {} {:x}", std::process::id(), unix_ns())
}

/// Connects to the servers of a command, whose sessions have this name of the application.
///
/// # Errors
/// If a URI is not one of PostgreSQL, a server can't be reached, or is named twice.
pub(super) fn open_all(
    uris: &[String],
    application: &str,
    interval_ns: u64,
) -> Result<Vec<PostgresSessions>> {
    let mut all: Vec<PostgresSessions> = Vec::with_capacity(uris.len());
    for (uri, number) in uris.iter().zip(1..) {
        let host = if uris.len() == 1 { HOST.to_owned() } else { format!("{HOST}-{number}") };
        let sessions = PostgresSessions::open(uri, host, application, interval_ns)?;
        // Its sessions would count twice.
        if let Some(other) = all.iter().find(|other| other.started == sessions.started) {
            let message = format!("{} and {} are the same server", other.host, sessions.host);
            return Err(Error::new(ErrorKind::Usage, message).hint("name each server once"));
        }
        all.push(sessions);
    }
    Ok(all)
}

/// Sessions of one command at one server.
pub(super) struct PostgresSessions {
    /// The name of the server in reports.
    host: String,
    /// When the server began, to the microsecond.
    started: String,
    runtime: tokio::runtime::Runtime,
    connection: Connection,
    /// See [`application_name`].
    application: String,
    /// Samples the server's processes; `None` if they are on another host.
    agent: Option<Agent>,
    sessions: BTreeMap<i32, Waits>,
    seen_ns: Option<u64>,
    number: u64,
    run: u64,
    /// Why the sessions can't be watched any longer.
    failed: Option<Error>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Waits {
    lock_ns: u64,
    client_ns: u64,
}

impl PostgresSessions {
    /// Connects to a server.
    ///
    /// # Errors
    /// If the URI is not one of PostgreSQL, or the server can't be reached.
    fn open(uri: &str, host: String, application: &str, interval_ns: u64) -> Result<Self> {
        let location = Location::parse(uri).map_err(Error::from)?;
        if !matches!(location, Location::Postgres(_)) {
            return Err(Error::new(ErrorKind::Usage, format!("{location} is not a PostgreSQL database")));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| Error::new(ErrorKind::Internal, format!("can't watch the sessions: {error}")))?;
        let mut connection =
            runtime.block_on(in_time(ANSWER_TIMEOUT, connect(&location, &Options::default())))?;
        let own = "select pg_backend_pid(), coalesce(inet_server_addr() <<= '127.0.0.0/8' \
                   or inet_server_addr() = '::1', true), pg_postmaster_start_time()::text";
        let batches = runtime.block_on(in_time(ANSWER_TIMEOUT, rows(&mut connection, own)))?;
        let row = batches.iter().find(|batch| batch.num_rows() > 0).ok_or_else(unexpected)?;
        let pid = row.column(0).as_primitive_opt::<Int32Type>().ok_or_else(unexpected)?.value(0);
        let is_near = row.column(1).as_boolean_opt().ok_or_else(unexpected)?.value(0);
        let started = row.column(2).as_string_opt::<i32>().ok_or_else(unexpected)?.value(0).to_owned();
        // A server in a container has processes with other numbers here.
        let name = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm"));
        let is_here = is_near && name.is_ok_and(|name| name.trim() == PROCESS);
        let agent = is_here.then(|| {
            let options = AgentOptions {
                watch: Watch::Names(vec![PROCESS.to_owned()]),
                sockets_interval_ns: interval_ns,
                ..AgentOptions::new(host.clone())
            };
            Agent::new(options, unix_ns())
        });
        Ok(Self {
            host,
            started,
            runtime,
            connection,
            application: application.to_owned(),
            agent,
            sessions: BTreeMap::new(),
            seen_ns: None,
            number: 0,
            run: unix_ns(),
            failed: None,
        })
    }

    /// Looks at the sessions, and samples the server's processes, at `now_ns` of the monotonic clock.
    ///
    /// # Errors
    /// If the sample is not valid. Once the server fails, its sessions are not watched any longer.
    pub(super) fn sample(&mut self, timeline: &mut Timeline, now_ns: u64) -> Result<()> {
        if self.failed.is_none()
            && let Err(error) = self.look(now_ns)
        {
            tracing::warn!(
                server = self.host,
                error = error.message,
                "the sessions at PostgreSQL are not watched any longer"
            );
            self.failed = Some(error);
        }
        let mut sample = match &mut self.agent {
            Some(agent) => agent.sample(now_ns),
            None => {
                let number = self.number;
                self.number += 1;
                Sample { host: self.host.clone(), run: self.run, number, at_ns: now_ns, entries: Vec::new() }
            }
        };
        sample.entries.extend(self.sessions.iter().map(|(pid, waits)| {
            let mut figures = Figures::default();
            figures.set(Figure::LockWaitNs, waits.lock_ns);
            figures.set(Figure::ClientWaitNs, waits.client_ns);
            Entry { subject: self.task(*pid), figures }
        }));
        timeline.set_clock(&self.host, ClockMap::identity()).map_err(of_model)?;
        timeline.insert(sample).map_err(of_model)?;
        Ok(())
    }

    fn task(&self, pid: i32) -> Subject {
        Subject::Task { query: self.application.clone(), stage: 0, task: pid.unsigned_abs() }
    }

    fn look(&mut self, now_ns: u64) -> Result<()> {
        // Parallel workers have the name of their leader, too; before PostgreSQL 13, that is all there is to know.
        let sql = format!(
            "select pid, coalesce(wait_event_type, '') as waits from pg_stat_activity \
             where application_name = '{}' limit {SESSIONS_MAX}",
            self.application
        );
        let batches = self.runtime.block_on(in_time(ANSWER_TIMEOUT, rows(&mut self.connection, &sql)))?;
        let passed_ns = self.seen_ns.replace(now_ns).map_or(0, |seen_ns| now_ns.saturating_sub(seen_ns));
        for batch in &batches {
            let pids = batch.column(0).as_primitive_opt::<Int32Type>().ok_or_else(unexpected)?;
            let waits = batch.column(1).as_string_opt::<i32>().ok_or_else(unexpected)?;
            for row in 0..batch.num_rows() {
                if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&pids.value(row)) {
                    continue;
                }
                let session = self.sessions.entry(pids.value(row)).or_default();
                match waits.value(row) {
                    "Lock" => session.lock_ns += passed_ns,
                    "Client" => session.client_ns += passed_ns,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// What worked for the command at the server.
    ///
    /// # Errors
    /// If the server has no samples.
    pub(super) fn work(&self, timeline: &mut Timeline, interval_ns: u64) -> Result<HostWork> {
        let mut sources = self.agent.as_ref().map(|agent| agent.sources().clone()).unwrap_or_default();
        if let Some(agent) = &self.agent {
            sources.processors = agent.facts().processors;
        }
        let figures = [Figure::LockWaitNs, Figure::ClientWaitNs];
        sources.set_available(SubjectKind::Task, figures, "pg_stat_activity", interval_ns);
        timeline.set_sources(&self.host, sources).map_err(of_model)?;
        let pids: BTreeSet<u32> = self.sessions.keys().map(|pid| pid.unsigned_abs()).collect();
        let is_own = |subject: &&Subject| match subject {
            Subject::Process { pid, .. } | Subject::Peer { pid, .. } => pids.contains(pid),
            Subject::Task { query, .. } => *query == self.application,
            _ => false,
        };
        let workers = timeline.subjects(&self.host).filter(is_own).cloned().map(Worker::own).collect();
        Ok(HostWork { host: self.host.clone(), workers, divides: true })
    }

    /// Whether no session of the command was seen.
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Whether the server is on this host.
    pub(super) fn is_here(&self) -> bool {
        self.agent.is_some()
    }

    /// The name of the server in reports.
    pub(super) fn host(&self) -> &str {
        &self.host
    }
}

/// What the server answers, unless it takes too long.
async fn in_time<T>(limit: Duration, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || Error::new(ErrorKind::Source, format!("PostgreSQL has not answered within {limit:?}"));
    tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| Err(late()))
}

async fn rows(connection: &mut Connection, sql: &str) -> Result<Vec<RecordBatch>> {
    let mut result = connection.query(sql).await?;
    let mut batches = Vec::new();
    while let Some(batch) = result.next().await? {
        batches.push(batch);
    }
    Ok(batches)
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Source, "pg_stat_activity has unexpected columns")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_answer_is_an_error_after_a_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let never = std::future::pending::<Result<()>>();
        let error = runtime.block_on(in_time(Duration::from_millis(10), never)).unwrap_err();
        assert_eq!(error.message, "PostgreSQL has not answered within 10ms");
    }
}
