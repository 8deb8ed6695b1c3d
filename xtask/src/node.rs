//! Nodes for demonstrations.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A node on this host, stopped on drop.
pub(crate) struct Node {
    child: Child,
    /// The URI that it listens on.
    pub(crate) uri: String,
    /// The JSON that it printed when it was ready.
    pub(crate) ready: Value,
    _stdout: BufReader<ChildStdout>,
}

impl Node {
    /// Starts a node on a free port, and waits until it listens.
    ///
    /// # Errors
    /// When there is no such program, or the node does not start.
    pub(crate) fn start(lightship: &Path, args: &[&OsStr]) -> Result<Self> {
        let mut child = command(lightship)
            .args(["--json", "--log", "warn", "node", "--listen", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}; `make demo` builds it", lightship.display()))?;
        let mut stdout = BufReader::new(child.stdout.take().ok_or("the node has no stdout")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let ready: Value = serde_json::from_str(&line).map_err(|_| "the node did not start")?;
        let uri = ready["listening"][0]
            .as_str()
            .ok_or("the node did not print the address that it listens on")?
            .to_owned();
        Ok(Self { child, uri, ready, _stdout: stdout })
    }
}

/// The program to run. What it measures of links is not kept: the ports of demonstrations are never used again.
pub(crate) fn command(lightship: &Path) -> Command {
    let mut command = Command::new(lightship);
    command.env("LIGHTSHIP_PROFILES", "target/demo/profiles");
    command
}

impl Node {
    /// Asks it to stop. Nodes that are asked one after the other do not report each other as lost.
    pub(crate) fn ask_to_stop(&self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.ask_to_stop();
        let _ = self.child.wait();
    }
}
