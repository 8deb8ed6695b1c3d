//! Processes that end with us, whatever happens, on hosts of the lab or here.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use lab::Host;
use serde::de::DeserializeOwned;

use crate::{Result, places};

/// Of the times in `/proc/PID/stat`, on all platforms that Linux has today.
const TICKS_PER_SECOND: f64 = 100.0;

/// A running process. It is killed on drop; when this program dies instead, the
/// system kills it (Linux' parent death signal).
pub(crate) struct Process {
    name: String,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts `program` on a host; `None` is here.
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

    /// The line of JSON that it prints, once it has ended well.
    pub(crate) fn result<T: DeserializeOwned>(mut self) -> Result<T> {
        let line = self.line()?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("{} ended: {status}", self.name).into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// All the JSON that it prints, once it has ended well.
    pub(crate) fn output(mut self) -> Result<serde_json::Value> {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("{} ended: {status}", self.name).into());
        }
        Ok(serde_json::from_str(&text)?)
    }

    /// A figure of `/proc/PID/status` in bytes: `VmRSS`, `VmHWM`.
    pub(crate) fn memory_bytes(&self, field: &str) -> Result<u64> {
        memory_bytes(&self.child.id().to_string(), field)
    }

    /// What all its threads have taken of the processors.
    pub(crate) fn processor_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Behind the name, which may hold anything, stand the state and ten more before the times (proc(5)).
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        let ticks = fields.skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
        Ok(ticks / TICKS_PER_SECOND)
    }

    /// Lets `VmHWM` begin anew at the present size.
    pub(crate) fn forget_peak(&self) -> Result<()> {
        Ok(std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Seconds that `program` takes from its start to its end, its output thrown away.
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

/// `setpriv` becomes the program itself: the process's number and memory are the program's.
fn command<A: AsRef<OsStr>>(
    host: Option<&Host>,
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    let mut command = host.map_or_else(|| Command::new("setpriv"), |host| host.command("setpriv"));
    command.args(["--pdeathsig", "KILL"]).arg(program).args(arguments);
    // What this machine's user knows of links is no part of it, nor is what is found his.
    command.env("LIGHTSHIP_PROFILES", places::data().join("profiles"));
    command
}

fn name(program: &OsStr) -> String {
    Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A figure of a process' status in bytes; `self` is this process.
pub(crate) fn memory_bytes(process: &str, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    let kilobytes: u64 = number.ok_or_else(|| format!("no {field} of process {process}"))?.parse()?;
    Ok(kilobytes * 1024)
}

/// A node with one table, at a port of its own.
pub(crate) struct Node {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

impl Node {
    /// Starts one for `NAME=PLACE` and waits until it listens: on a host of the lab
    /// for all that reach it, or here for this host.
    pub(crate) fn start(host: Option<&Host>, table: &str, in_memory: bool) -> Result<Self> {
        Self::start_with(host, table, in_memory, &[])
    }

    /// With more arguments.
    pub(crate) fn start_with(
        host: Option<&Host>,
        table: &str,
        in_memory: bool,
        more: &[&str],
    ) -> Result<Self> {
        let arguments = [&["--table", table], in_memory.then_some("--in-memory").as_slice(), more].concat();
        Self::serve(host, &arguments)
    }

    /// With the Parquet files of a folder as its tables.
    pub(crate) fn start_folder(folder: &Path) -> Result<Self> {
        let mut arguments = Vec::new();
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
        let (_, port) = address.ok_or("the node does not say where it listens")?;
        Ok(Self { port: port.parse()?, process })
    }

    /// Its address for `lightship fetch` of this host.
    pub(crate) fn uri(&self) -> String {
        format!("lightship://127.0.0.1:{}", self.port)
    }
}
