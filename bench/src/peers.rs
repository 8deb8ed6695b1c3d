//! The peers: Python programs in `bench/peers`, in an environment of their own.

use std::path::PathBuf;
use std::process::Command;

use crate::process::Process;
use crate::{Result, places};

const REQUIREMENTS: &str = include_str!("../peers/requirements.txt");

/// A Python with the pinned packages.
pub(crate) struct Peers {
    python: PathBuf,
}

impl Peers {
    /// Makes the environment, unless it is there with just these packages.
    pub(crate) fn install() -> Result<Self> {
        let folder = places::root().join("target/bench-venv");
        let python = folder.join("bin/python");
        let stamp = folder.join("requirements.txt");
        if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == REQUIREMENTS) {
            return Ok(Self { python });
        }
        eprintln!("installing the peers in {}", folder.display());
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let requirements = places::root().join("bench/peers/requirements.txt");
        succeed(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements))?;
        std::fs::write(stamp, REQUIREMENTS)?;
        Ok(Self { python })
    }

    /// Starts one of the programs.
    pub(crate) fn spawn(&self, program: &str, arguments: &[&str]) -> Result<Process> {
        let program = places::root().join("bench/peers").join(program).display().to_string();
        // Modules are not compiled into the checkout.
        let options = ["-B".to_owned(), program];
        let arguments = arguments.iter().map(ToString::to_string);
        Process::spawn(&self.python, options.into_iter().chain(arguments))
    }
}

/// Packages whose names begin like this, as they were pinned.
pub(crate) fn versions(prefixes: &[&str]) -> Vec<String> {
    let wanted = |line: &&str| prefixes.iter().any(|prefix| line.starts_with(prefix));
    REQUIREMENTS.lines().filter(wanted).map(|line| line.replace("==", " ")).collect()
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|e| format!("{command:?}: {e}"))?;
    if !status.success() {
        return Err(format!("{command:?}: {status}").into());
    }
    Ok(())
}
