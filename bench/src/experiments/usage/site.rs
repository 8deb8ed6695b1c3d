//! Hosts of the lab: a coordinator without limits, and nodes with limited processors, disks and links.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use lab::{Host, Lab, LabError, Limits, Measured};
use lightship_monitor::monotonic_ns;
use lightship_usage::{HostSpeeds, LinkSpeeds};
use rustix::fs::{Advice, fadvise};

use crate::links::summary;
use crate::process::Process;
use crate::{Result, places};

/// The name of the client's processes, by which they differ from those of nodes and agents.
const CLIENT: &str = "fetch-client";
/// The host of the client.
pub(super) const COORDINATOR: &str = "coordinator";

/// What PostgreSQL reads at a random place.
const PAGE_BYTES: f64 = 8192.0;

/// What a node may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Hardware {
    /// Processors.
    pub(super) cpus: f64,
    /// Bytes per second that it reads from the disk.
    pub(super) disk_bytes_per_s: u64,
}

/// Hosts of a network.
pub(super) struct Site {
    pub(super) coordinator: Host,
    pub(super) nodes: Vec<Host>,
    /// The link of each host, as measured, and its disk.
    pub(super) speeds: HostSpeeds,
    /// The measurement, as text.
    pub(super) measured: String,
}

impl Site {
    /// Joins a coordinator and nodes by links. The disks of all are as fast as the limit of `calibrated`: whatever the
    /// order, a disk that it slows down reads that many bytes a second.
    pub(super) fn open(lab: &Lab, link: &str, nodes: usize, calibrated: Hardware) -> Result<Self> {
        let mut hosts = lab.hosts(nodes + 1, &link.parse()?)?.into_iter();
        let coordinator = hosts.next().ok_or("no host")?;
        let nodes: Vec<Host> = hosts.collect();
        let measured: Measured = match lab::verify(&coordinator, nodes.first().ok_or("no node")?) {
            Ok(measured) => measured,
            // The machine is busy: the measurement is shown beside the figures.
            Err(LabError::FarOff { measured, .. }) => *measured,
            Err(error) => return Err(error.into()),
        };
        let rate = |mbit: f64| Some(mbit * 1e6 / 8.0);
        let link = LinkSpeeds {
            received_bytes_per_second: rate(measured.mbit_per_s.b_to_a),
            sent_bytes_per_second: rate(measured.mbit_per_s.a_to_b),
            round_trip_seconds: Some(measured.rtt_ms.median / 1e3),
        };
        let disk = calibrated.disk_bytes_per_s as f64;
        let speeds = HostSpeeds {
            link,
            disk_read_bytes_per_second: Some(disk),
            disk_write_bytes_per_second: Some(disk),
            disk_access_seconds: Some(PAGE_BYTES / disk),
            ..HostSpeeds::default()
        };
        Ok(Self { coordinator, nodes, speeds, measured: summary(&measured) })
    }

    /// Limits all nodes.
    pub(super) fn limit(&self, hardware: Hardware) -> Result<()> {
        self.nodes.iter().try_for_each(|node| limit(node, hardware))
    }
}

/// Limits one node.
pub(super) fn limit(node: &Host, hardware: Hardware) -> Result<()> {
    let Hardware { cpus, disk_bytes_per_s } = hardware;
    let limits = Limits {
        cpus: Some(cpus),
        disk_read_bytes_per_s: Some(disk_bytes_per_s),
        disk_write_bytes_per_s: Some(disk_bytes_per_s),
        ..Limits::default()
    };
    Ok(node.limit(&limits)?)
}

/// The name of a node, numbered from 1.
pub(super) fn name(number: usize) -> String {
    format!("node{number}")
}

/// Starts a program in the network of a host, but outside of its limits.
pub(super) fn command_outside(host: &Host, words: &[&str]) -> Result<Process> {
    // The groups that have limits, in version 1 and 2.
    const LEAVE: &str = "for group in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/{cpu,cpuset,blkio}/cgroup.procs; do \
                         [ -e $group ] && echo $$ >$group; done; exec \"$@\" 2>/dev/null";
    let arguments = [&["-c", LEAVE, "bash"], words].concat();
    Process::spawn(Some(host), "bash", arguments)
}

/// The client program under its own name.
fn client() -> Result<PathBuf> {
    let path = places::data().join(CLIENT);
    let _ = std::fs::remove_file(&path);
    std::fs::create_dir_all(places::data())?;
    std::fs::hard_link(places::lightship()?, &path)?;
    Ok(path)
}

/// A client on the coordinator's host.
pub(super) struct Client {
    program: PathBuf,
}

impl Client {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { program: client()? })
    }

    /// What makes an agent count clients.
    pub(super) fn watched() -> [&'static str; 2] {
        ["--process", CLIENT]
    }

    /// Runs a command of the client, drops its output, and returns when it began and ended.
    pub(super) fn run(&self, host: &Host, words: &[String]) -> Result<(u64, u64)> {
        self.run_with(host, words, Stdio::null(), |_| Ok(()))
    }

    /// As [`Client::run`]; `read` reads what goes to `output`.
    pub(super) fn run_with(
        &self,
        host: &Host,
        words: &[String],
        output: Stdio,
        read: impl FnOnce(Option<std::process::ChildStdout>) -> Result<()>,
    ) -> Result<(u64, u64)> {
        let mut command = host.command(&self.program);
        command.args(words).stdin(Stdio::null()).stdout(output);
        command.env("LIGHTSHIP_PROFILES", places::data().join("profiles"));
        let began_ns = monotonic_ns();
        let mut child = command.spawn()?;
        let was_read = read(child.stdout.take());
        let status = child.wait()?;
        let ended_ns = monotonic_ns();
        was_read?;
        if status.success() {
            Ok((began_ns, ended_ns))
        } else {
            Err(format!("the client ended: {status}").into())
        }
    }
}

/// Drops the pages of all files in a folder from the page cache, unless they were written and not yet stored.
pub(super) fn forget(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        match entry.file_type()? {
            kind if kind.is_dir() => forget(&path)?,
            // A temporary file may have gone.
            kind if kind.is_file() => {
                let Ok(file) = File::open(&path) else { continue };
                fadvise(&file, 0, None, Advice::DontNeed)?;
            }
            _ => {}
        }
    }
    Ok(())
}
