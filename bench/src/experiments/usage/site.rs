//! Hosts of the lab: a coordinator without limits, and nodes with limited processors, disks and links.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use lab::{Host, Lab, LabError, Limits};
use lightship_monitor::monotonic_ns;
use lightship_usage::HostSpeeds;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use crate::links::summary;
use crate::process::Process;
use crate::{Result, places};

/// The name of the client's processes, by which they differ from those of nodes and agents.
const CLIENT: &str = "fetch-client";
/// The host of the client.
pub(super) const COORDINATOR: &str = "coordinator";

/// A limit that no disk reaches: those of a host can't be taken off.
const UNLIMITED_BYTES_PER_S: u64 = 1 << 40;
/// The port of the server that a link is measured against.
const NETBENCH_PORT: u16 = 4271;

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
    /// What a node can do, as `lightship calibrate host` has measured it.
    pub(super) speeds: HostSpeeds,
    /// Where the command has stored these speeds.
    calibrated: TempDir,
    /// The link as the lab measures it, as text.
    pub(super) measured: String,
}

impl Site {
    /// Joins a coordinator and nodes by links, and calibrates a node as a user would, while nothing else runs there. Its
    /// disk is as fast as that of `calibrated`; its processors are not limited, so that it can fill the link.
    pub(super) fn open(lab: &Lab, link: &str, nodes: usize, calibrated: Hardware) -> Result<Self> {
        let mut hosts = lab.hosts(nodes + 1, &link.parse()?)?.into_iter();
        let coordinator = hosts.next().ok_or("no host")?;
        let nodes: Vec<Host> = hosts.collect();
        let node = nodes.first().ok_or("no node")?;
        let measured = match lab::verify(&coordinator, node) {
            Ok(measured) => measured,
            // The machine is busy: the measurement is shown beside the figures.
            Err(LabError::FarOff { measured, .. }) => *measured,
            Err(error) => return Err(error.into()),
        };
        let folder = tempfile::tempdir()?;
        let cpus = std::thread::available_parallelism()?.get() as f64;
        limit(node, Hardware { cpus, ..calibrated })?;
        let speeds = calibrate(&coordinator, node, folder.path());
        limit(node, Hardware { cpus, disk_bytes_per_s: UNLIMITED_BYTES_PER_S })?;
        let (speeds, measured) = (speeds?, summary(&measured));
        Ok(Self { coordinator, nodes, speeds, calibrated: folder, measured })
    }

    /// The folder with the speeds, for `LIGHTSHIP_HOSTS`.
    pub(super) fn calibrated(&self) -> &Path {
        self.calibrated.path()
    }

    /// Limits all nodes.
    pub(super) fn limit(&self, hardware: Hardware) -> Result<()> {
        self.nodes.iter().try_for_each(|node| limit(node, hardware))
    }
}

/// Runs `lightship calibrate host` on a node, against the coordinator. The speeds are stored in `folder`.
fn calibrate(coordinator: &Host, node: &Host, folder: &Path) -> Result<HostSpeeds> {
    let program = places::lightship()?.display().to_string();
    let peer = format!("{}:{NETBENCH_PORT}", coordinator.address());
    let mut server =
        Process::spawn(Some(coordinator), &program, ["--json", "netbench", "serve", "--listen", &peer])?;
    server.line()?;
    let hosts = format!("LIGHTSHIP_HOSTS={}", folder.display());
    std::fs::create_dir_all(places::data())?;
    let data = places::data().display().to_string();
    let words =
        [&hosts, &program, "--json", "calibrate", "host", "--quiet", "--folder", &data, "--link", &peer];
    let mut measured = Process::spawn(Some(node), "env", words)?.output()?;
    Ok(serde_json::from_value(measured["speeds"].take())?)
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
