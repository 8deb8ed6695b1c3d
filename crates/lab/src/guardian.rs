//! Kills and removes what a network was, whatever becomes of its owner.
//!
//! The guardian waits for the end of its own input. It comes when the network is
//! dropped and when the process that holds the other end dies, of SIGKILL too; so
//! there is one way to clean up, not two.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::error::LabError;
use crate::say;

/// A killed process may take a moment to leave its group: 30 s in all, after which
/// the guardian says what it leaves. Its arguments are the groups.
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

/// The process that waits; on drop, it is let go and waited for.
#[derive(Debug)]
pub(crate) struct Guardian {
    process: Child,
}

impl Guardian {
    /// Watches over these groups, which may not be there yet. `roots` hold groups,
    /// and those hold processes.
    pub(crate) fn spawn(roots: &[PathBuf]) -> Result<Self, LabError> {
        let process = Command::new("sh")
            .args(["-c", SCRIPT, "lab-guardian"])
            .args(roots)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Away from the terminal's Ctrl-C, which is its cue.
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
