//! Child processes, on hosts of the lab or on this host, that always end with this program.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use lab::Host;
use serde::de::DeserializeOwned;

use crate::{Result, places};

/// Unit of the times in `/proc/PID/stat` on all of Linux's platforms.
const TICKS_PER_SECOND: f64 = 100.0;

/// A running process. Dropping it kills it; if this program dies first, the system kills it
/// (Linux's parent death signal).
pub(crate) struct Process {
    name: String,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts `program` on a host; `None` is this host.
    pub(crate) fn spawn<A: AsRef<OsStr>>(
        host: Option<&Host>,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self> {
        let mut command = command(host, &program, arguments);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|e| format!("setpriv: {e}"))?;
        let stdout = child.stdout.take().ok_or("a process without stdout")?;
        Ok(Self { name: name(program.as_ref()), child, stdout: BufReader::new(stdout) })
    }

    /// The next line it prints.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            return Err(format!("{} ended: {}", self.name, self.child.wait()?).into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// The line of JSON that it prints. Fails unless the process ends successfully.
    pub(crate) fn result<T: DeserializeOwned>(mut self) -> Result<T> {
        let line = self.line()?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("{} ended: {status}", self.name).into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// All the JSON that it prints. Fails unless the process ends successfully.
    pub(crate) fn output(mut self) -> Result<serde_json::Value> {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("{} ended: {status}", self.name).into());
        }
        Ok(serde_json::from_str(&text)?)
    }

    /// The number of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A field of `/proc/PID/status` in bytes: `VmRSS`, `VmHWM`.
    pub(crate) fn memory_bytes(&self, field: &str) -> Result<u64> {
        memory_bytes(&self.child.id().to_string(), field)
    }

    /// Processor time of all its threads.
    pub(crate) fn processor_seconds(&self) -> Result<f64> {
        processor_seconds(&self.child.id().to_string())
    }

    /// Resets `VmHWM` to the current size.
    pub(crate) fn forget_peak(&self) -> Result<()> {
        Ok(std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Seconds from the start of `program` to its end. Its output is discarded.
pub(crate) fn timed<A: AsRef<OsStr>>(
    host: Option<&Host>,
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<f64> {
    let mut command = command(host, program, arguments);
    let began = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let seconds = began.elapsed().as_secs_f64();
    let status = status.map_err(|e| format!("setpriv: {e}"))?;
    if status.success() { Ok(seconds) } else { Err(format!("{program} ended: {status}").into()) }
}

/// `setpriv` execs the program, so the process id and the memory are the program's.
fn command<A: AsRef<OsStr>>(
    host: Option<&Host>,
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    let mut command = host.map_or_else(|| Command::new("setpriv"), |host| host.command("setpriv"));
    command.args(["--pdeathsig", "KILL"]).arg(program).args(arguments);
    // Benchmarks neither read nor change the user's link profiles.
    command.env("LIGHTSHIP_PROFILES", places::data().join("profiles"));
    command
}

fn name(program: &OsStr) -> String {
    Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Processor time of all threads of a process; `self` is this process.
pub(crate) fn processor_seconds(process: &str) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name may contain anything. The state and ten more fields follow it, then the times (proc(5)).
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks = fields.skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / TICKS_PER_SECOND)
}

/// A field of a process's status in bytes; `self` is this process.
pub(crate) fn memory_bytes(process: &str, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    let kilobytes: u64 = number.ok_or_else(|| format!("process {process} has no {field}"))?.parse()?;
    Ok(kilobytes * 1024)
}

/// A running node, at its own port.
pub(crate) struct Node {
    pub(crate) process: Process,
    pub(crate) port: u16,
    /// The JSON that it printed when it was ready: the addresses of its other protocols.
    ready: serde_json::Value,
}

impl Node {
    /// Starts a node that serves `NAME=PLACE`, and waits until it listens: on all addresses of a lab
    /// host, or on the loopback of this host.
    pub(crate) fn start(host: Option<&Host>, table: &str, in_memory: bool) -> Result<Self> {
        Self::start_with(host, table, in_memory, &[])
    }

    /// As [`Node::start`], with more arguments.
    pub(crate) fn start_with(
        host: Option<&Host>,
        table: &str,
        in_memory: bool,
        more: &[&str],
    ) -> Result<Self> {
        let arguments = [&["--table", table], in_memory.then_some("--in-memory").as_slice(), more].concat();
        Self::serve(host, &arguments)
    }

    /// Starts a node with the Parquet files of a folder as its tables.
    pub(crate) fn start_folder(folder: &Path) -> Result<Self> {
        Self::start_folder_with(folder, &[])
    }

    /// As [`Node::start_folder`], with more arguments.
    pub(crate) fn start_folder_with(folder: &Path, more: &[&str]) -> Result<Self> {
        let mut arguments: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if let (Some(name), Some("parquet")) =
                (path.file_stem(), path.extension().and_then(OsStr::to_str))
            {
                arguments.extend(["--table".to_owned(), format!("{}={}", name.display(), path.display())]);
            }
        }
        Self::serve(None, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts a node with range files in a folder, which joins the cluster of the node at a port, if one is given.
    pub(crate) fn start_range(folder: &Path, join: Option<u16>) -> Result<Self> {
        let folder = folder.display().to_string();
        let joined = join.map(|port| format!("127.0.0.1:{port}"));
        let cluster = match &joined {
            Some(address) => ["--join", address],
            None => ["--advertise", "127.0.0.1:0"],
        };
        Self::serve(None, &[&["--range-data", &folder][..], &cluster].concat())
    }

    fn serve(host: Option<&Host>, tables: &[&str]) -> Result<Self> {
        let mut arguments = [&["--json", "node"], tables].concat();
        arguments.extend(if host.is_some() {
            &["--listen", "0.0.0.0:0", "--insecure"][..]
        } else {
            &["--listen", "127.0.0.1:0"]
        });
        let mut process = Process::spawn(host, places::lightship()?, arguments)?;
        let line: serde_json::Value = serde_json::from_str(&process.line()?)?;
        let address = line["listening"][0].as_str().and_then(|address| address.rsplit_once(':'));
        let (_, port) = address.ok_or("the node did not print the address that it listens on")?;
        Ok(Self { port: port.parse()?, process, ready: line })
    }

    /// The address of `flight` or `postgres`, if the node was started with it.
    pub(crate) fn protocol(&self, name: &str) -> Result<String> {
        let address = self.ready[name].as_str();
        Ok(address.ok_or_else(|| format!("the node did not print its address for {name}"))?.to_owned())
    }

    /// Its URI for `lightship fetch` on this host.
    pub(crate) fn uri(&self) -> String {
        format!("lightship://127.0.0.1:{}", self.port)
    }
}
