//! Starts a command, and samples what it uses until it ends.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use lightship_monitor::{Agent, AgentOptions, HostSpeedsStore, Watch, monotonic_ns, unix_ns};
use lightship_usage::{
    ClockMap, Footprint, HostSpeeds, HostWork, QuerySpan, Subject, Timeline, TimelineLimits, Verdict, Worker,
};

use super::postgres::{PostgresSessions, application_name, open_all};
use super::{Record, Records};
use crate::error::{Error, ErrorKind, Result};

/// Time between two samples at first: a short command needs many samples to be explained.
const INTERVAL_MIN: Duration = Duration::from_millis(20);
/// The longest time between two samples: the interval grows with the run time.
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// The interval is the time that the command has run, divided by this.
const INTERVAL_PART: u32 = 200;
/// The shortest time between two readings of sockets, because there may be many on the host.
const SOCKETS_INTERVAL: Duration = Duration::from_millis(50);

/// How a command is run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The name of the run.
    pub label: String,
    /// The name of this host in the report.
    pub host: String,
    /// The PostgreSQL servers whose sessions work for the command, as URIs.
    pub postgres: Vec<String>,
}

/// Runs a command to its end. Its input and output are those of this process.
///
/// Blocks the thread.
///
/// # Errors
/// If the label is not valid, the command can't be started, or too little was sampled to say anything.
pub fn run(command: &[String], options: &RunOptions) -> Result<Record> {
    Records::check_label(&options.label)?;
    let [program, arguments @ ..] = command else {
        return Err(Error::new(ErrorKind::Usage, "there is no command to run"));
    };
    let application = application_name();
    let mut servers = open_all(&options.postgres, &application, nanoseconds(SOCKETS_INTERVAL))?;
    let mut starting = Command::new(program);
    starting.args(arguments);
    if !servers.is_empty() {
        starting.env("PGAPPNAME", &application);
    }
    let began_unix_ms = unix_ns() / 1_000_000;
    let began_ns = monotonic_ns();
    let mut child = starting.spawn().map_err(|error| {
        let failed = Error::new(ErrorKind::Usage, format!("can't start {program}: {error}"));
        match error.kind() {
            io::ErrorKind::NotFound => failed.hint("give the command after `--`, each argument on its own"),
            _ => failed,
        }
    })?;
    let sampled = sample(&child, began_ns, options, &mut servers);
    // Wait for the command even if it could not be sampled.
    let waited = child.wait();
    let (mut timeline, ended_ns) = sampled?;
    let status = waited
        .map_err(|error| Error::new(ErrorKind::Internal, format!("can't wait for {program}: {error}")))?;
    let workers =
        timeline.subjects(&options.host).filter(|subject| matches!(subject, Subject::Process { .. }));
    let workers = workers.cloned().map(Worker::own).collect();
    let mut hosts = vec![HostWork { host: options.host.clone(), workers, divides: servers.is_empty() }];
    for sessions in &servers {
        if sessions.is_empty() {
            tracing::warn!(server = sessions.host(), "no session of the command was seen at PostgreSQL");
        } else {
            hosts.push(sessions.work(&mut timeline, nanoseconds(INTERVAL_MIN))?);
        }
    }
    let span = QuerySpan { label: options.label.clone(), began_ns, ended_ns, hosts, ..QuerySpan::default() };
    let here = servers.iter().filter(|sessions| sessions.is_here()).map(PostgresSessions::host);
    let speeds = speeds(here.chain([options.host.as_str()]));
    let footprint = Footprint::new(&timeline, &speeds, &span).map_err(of_model)?;
    let verdict = Verdict::new(&footprint);
    Ok(Record {
        label: options.label.clone(),
        command: command.to_vec(),
        began_unix_ms,
        exit_code: status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1),
        footprint,
        verdict,
    })
}

/// The measured speeds of this host, which has these names in the report; empty if it was not measured.
fn speeds<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, HostSpeeds> {
    let speeds = HostSpeedsStore::own_speeds();
    names.filter_map(|name| Some((name.to_owned(), speeds?))).collect()
}

/// Samples the processes of a command until its first one ends. Returns when that was.
fn sample(
    child: &Child,
    began_ns: u64,
    options: &RunOptions,
    servers: &mut [PostgresSessions],
) -> Result<(Timeline, u64)> {
    let pid = child.id();
    let settings = AgentOptions {
        watch: Watch::Trees(vec![pid]),
        sockets_interval_ns: nanoseconds(SOCKETS_INTERVAL),
        ..AgentOptions::new(options.host.clone())
    };
    let mut agent = Agent::new(settings, unix_ns());
    let mut timeline = Timeline::new(TimelineLimits::default());
    timeline.set_clock(&options.host, ClockMap::identity()).map_err(of_model)?;
    let (tell, ended) = channel();
    let waiting = std::thread::spawn(move || {
        wait(pid);
        // Sending fails only if sampling has failed, and the receiver is dropped.
        let _ = tell.send(monotonic_ns());
    });
    let ended_ns = loop {
        timeline.insert(agent.sample(monotonic_ns())).map_err(of_model)?;
        for sessions in &mut *servers {
            sessions.sample(&mut timeline, monotonic_ns())?;
        }
        let ran = Duration::from_nanos(monotonic_ns().saturating_sub(began_ns));
        match ended.recv_timeout((ran / INTERVAL_PART).clamp(INTERVAL_MIN, INTERVAL_MAX)) {
            Ok(ended_ns) => break ended_ns,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break monotonic_ns(),
        }
    };
    // It has ended, but was not waited for, so its counters can still be read.
    timeline.insert(agent.sample(monotonic_ns())).map_err(of_model)?;
    for sessions in servers {
        sessions.sample(&mut timeline, monotonic_ns())?;
    }
    timeline.set_sources(&options.host, agent.sources().clone()).map_err(of_model)?;
    // The thread has sent the time as its last step; a panic of it is handled above.
    let _ = waiting.join();
    Ok((timeline, ended_ns))
}

/// Waits until a child has ended, without reaping it.
#[cfg(target_os = "linux")]
fn wait(pid: u32) {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
}

/// Samples are taken on Linux only.
#[cfg(not(target_os = "linux"))]
fn wait(_: u32) {}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn of_model(error: lightship_usage::UsageError) -> Error {
    Error::new(ErrorKind::Data, error.to_string())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use lightship_usage::{Limit, Part};

    use super::*;

    fn shell(script: &str) -> Record {
        let command = ["sh", "-c", script].map(str::to_owned);
        run(&command, &RunOptions { label: "t".into(), host: "here".into(), postgres: Vec::new() }).unwrap()
    }

    #[test]
    fn a_command_that_computes_is_limited_by_the_processor() {
        // About a second, in a child of the shell and in the shell itself.
        let record = shell("i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done");
        let division = &record.footprint.division;
        let used = [Part::Cpu, Part::RunQueueWait, Part::Stolen].map(|part| division.fraction(part));
        assert!(used.iter().sum::<f64>() > 0.8, "{record:?}");
        assert!(matches!(record.verdict.limit, Limit::Cpu | Limit::CpuContended), "{record:?}");
        assert_eq!(record.exit_code, 0);
    }

    #[test]
    fn a_command_that_sleeps_is_not_explained() {
        // Long enough that starting it does not matter, however busy this machine is.
        let record = shell("sleep 2; exit 3");
        assert!(record.footprint.division.fraction(Part::Unexplained) > 0.8, "{record:?}");
        assert_eq!((record.verdict.limit, record.exit_code), (Limit::Inefficient, 3));
    }

    #[test]
    fn a_command_that_is_not_there_is_an_error() {
        let options = RunOptions { label: "t".into(), host: "here".into(), postgres: Vec::new() };
        let error = run(&["/no/such/program".to_owned()], &options).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(run(&[], &options).is_err());
    }

    #[test]
    fn records_survive_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::at(folder.path());
        let record = shell("true");
        records.keep(&record).unwrap();
        assert_eq!(records.labels().unwrap(), ["t"]);
        let found = records.find("t").unwrap();
        assert_eq!((&found.verdict, &found.command), (&record.verdict, &record.command));
        assert_eq!(found.footprint.hosts[0].figures.len(), record.footprint.hosts[0].figures.len());
    }
}
