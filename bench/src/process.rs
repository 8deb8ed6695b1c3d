//! Processes that end with us, whatever happens.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;

use crate::{Result, places};

/// A running process. It is killed on drop; when this program dies instead, the
/// system kills it (Linux' parent death signal).
pub(crate) struct Process {
    name: String,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts `program`, with `arguments`.
    pub(crate) fn spawn<A: AsRef<OsStr>>(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self> {
        let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        // It becomes the program itself: the process's number and memory are the program's.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("setpriv: {e}"))?;
        let stdout = child.stdout.take().ok_or("a process without stdout")?;
        Ok(Self { name, child, stdout: BufReader::new(stdout) })
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

    /// A figure of `/proc/PID/status` in bytes: `VmRSS`, `VmHWM`.
    pub(crate) fn memory_bytes(&self, field: &str) -> Result<u64> {
        memory_bytes(&self.child.id().to_string(), field)
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

/// A figure of a process' status in bytes; `self` is this process.
pub(crate) fn memory_bytes(process: &str, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    let kilobytes: u64 = number.ok_or_else(|| format!("no {field} of process {process}"))?.parse()?;
    Ok(kilobytes * 1024)
}

/// A node with lineitem as its table, at a port of its own.
pub(crate) struct Node {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

impl Node {
    /// Starts it and waits until it listens.
    pub(crate) fn start(in_memory: bool) -> Result<Self> {
        let table = format!("lineitem={}", places::lineitem()?.display());
        let mut arguments = vec!["--json", "node", "--listen", "127.0.0.1:0", "--table", &table];
        arguments.extend(in_memory.then_some("--in-memory"));
        let mut process = Process::spawn(places::lightship()?, arguments)?;
        let line: serde_json::Value = serde_json::from_str(&process.line()?)?;
        let address = line["listening"][0].as_str().and_then(|address| address.rsplit_once(':'));
        let (_, port) = address.ok_or("the node does not say where it listens")?;
        Ok(Self { port: port.parse()?, process })
    }

    /// Its address for `lightship fetch`.
    pub(crate) fn uri(&self) -> String {
        format!("lightship://127.0.0.1:{}", self.port)
    }
}
