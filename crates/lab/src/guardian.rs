//! Kills the processes of a network and removes its groups, however its owner ends.
//!
//! The guardian waits for the end of its own input. It comes when the network is dropped and
//! when the process that holds the other end dies, even by SIGKILL. So a single clean-up
//! covers both cases.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::error::LabError;
use crate::say;

/// Its arguments are the root groups. A killed process may take a moment to leave its group, so
/// the guardian tries for 30 s and then reports the groups that it could not remove.
const SCRIPT: &str = r#"
    read -r _
    tries=0
    while [ $tries -lt 1500 ]; do
        left=
        for root; do
            [ -d "$root" ] || continue
            left="$left $root"
            for group in "$root"/*/; do
                while read -r pid; do kill -9 "$pid"; done < "$group/cgroup.procs"
                rmdir "$group"
            done
            rmdir "$root"
        done 2>/dev/null
        [ -n "$left" ] || exit 0
        tries=$((tries + 1))
        sleep 0.02
    done
    echo "lab: could not remove$left" >&2
    exit 1"#;

/// The guardian process. Dropping this closes its input and waits for it to end.
#[derive(Debug)]
pub(crate) struct Guardian {
    process: Child,
}

impl Guardian {
    /// Starts a guardian for the groups below `roots`, which may not exist yet. The groups below
    /// the roots contain the processes.
    pub(crate) fn spawn(roots: &[PathBuf]) -> Result<Self, LabError> {
        let process = Command::new("sh")
            .args(["-c", SCRIPT, "lab-guardian"])
            .args(roots)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // The terminal's Ctrl-C must not kill it: then it has work to do.
            .process_group(0)
            .spawn()
            .map_err(LabError::io("can't start `sh`"))?;
        Ok(Self { process })
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        if let Err(error) = self.process.wait() {
            say(&format!("lab: lost the guardian: {error}"));
        }
    }
}
