//! The peers: Python programs in `bench/peers`, in a virtual environment, and tools from Debian's
//! packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use lab::Host;

use crate::process::Process;
use crate::{Result, places};

const REQUIREMENTS: &str = include_str!("../peers/requirements.txt");

/// A Python with the pinned packages.
pub(crate) struct Peers {
    python: PathBuf,
}

impl Peers {
    /// Creates the environment, unless it exists with exactly these packages.
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

    /// Starts one of the programs on a host; `None` is this host.
    pub(crate) fn spawn(&self, host: Option<&Host>, program: &str, arguments: &[&str]) -> Result<Process> {
        let [python, options @ ..] = &self.command(program)[..] else { return Err("no command".into()) };
        let arguments = arguments.iter().map(ToString::to_string);
        Process::spawn(host, python, options.iter().cloned().chain(arguments))
    }

    /// Starts one of the programs, which can import the Python package `lightship` from a folder.
    pub(crate) fn spawn_with_package(
        &self,
        package: &Path,
        program: &str,
        arguments: &[&str],
    ) -> Result<Process> {
        let path = format!("PYTHONPATH={}", package.display());
        let words = [vec![path], self.command(program)].concat();
        let arguments = arguments.iter().map(ToString::to_string);
        Process::spawn(None, "env", words.into_iter().chain(arguments))
    }

    /// The command line of one of the programs.
    pub(crate) fn command(&self, program: &str) -> Vec<String> {
        let program = places::root().join("bench/peers").join(program).display().to_string();
        // `-B` keeps compiled modules out of the checkout.
        vec![self.python.display().to_string(), "-B".to_owned(), program]
    }
}

/// A driver in Java, downloaded once.
pub(crate) struct Jar(PathBuf);

impl Jar {
    /// Maven's coordinates: GROUP:ARTIFACT:VERSION.
    pub(crate) fn install(coordinates: &str) -> Result<Self> {
        let folder = places::root().join("target/jars");
        let [_, artifact, version] = coordinates.split(':').collect::<Vec<_>>()[..] else {
            return Err(format!("{coordinates}: expected GROUP:ARTIFACT:VERSION").into());
        };
        let path = folder.join(format!("{artifact}-{version}.jar"));
        if !path.exists() {
            eprintln!("installing {coordinates}");
            let output = format!("-DoutputDirectory={}", folder.display());
            let artifact = format!("-Dartifact={coordinates}");
            succeed(Command::new("mvn").args(["-q", "-B", "dependency:copy", &artifact, &output]))?;
        }
        Ok(Self(path))
    }

    /// Starts one of the programs in `bench/peers` with this driver on a host.
    pub(crate) fn spawn(&self, host: Option<&Host>, program: &str, arguments: &[&str]) -> Result<Process> {
        let program = places::root().join("bench/peers").join(program).display().to_string();
        let driver = self.0.display().to_string();
        Process::spawn(host, "java", [&["-cp", &driver, &program], arguments].concat())
    }
}

/// The pinned versions of the packages whose lines begin with one of the prefixes.
pub(crate) fn versions(prefixes: &[&str]) -> Vec<String> {
    let wanted = |line: &&str| prefixes.iter().any(|prefix| line.starts_with(prefix));
    REQUIREMENTS.lines().filter(wanted).map(|line| line.replace("==", " ")).collect()
}

/// A program of a Debian package.
#[derive(Clone, Copy)]
pub(crate) struct Tool {
    program: &'static str,
    package: &'static str,
}

/// OpenBSD's netcat: the traditional one has different options.
pub(crate) const NETCAT: Tool = Tool { program: "nc.openbsd", package: "netcat-openbsd" };
pub(crate) const LZ4: Tool = Tool { program: "lz4", package: "lz4" };
pub(crate) const ZSTD: Tool = Tool { program: "zstd", package: "zstd" };
pub(crate) const XZ: Tool = Tool { program: "xz", package: "xz-utils" };
pub(crate) const PSQL: Tool = Tool { program: "psql", package: "postgresql-client" };
pub(crate) const PGLOADER: Tool = Tool { program: "pgloader", package: "pgloader" };
pub(crate) const JAVA: Tool = Tool { program: "java", package: "openjdk-17-jdk-headless" };
pub(crate) const MAVEN: Tool = Tool { program: "mvn", package: "maven" };
pub(crate) const ODBC: Tool = Tool { program: "isql", package: "unixodbc" };
/// A library, not a program, by its whole path.
pub(crate) const PSQLODBC: Tool = Tool {
    program: if cfg!(target_arch = "aarch64") {
        "/usr/lib/aarch64-linux-gnu/odbc/psqlodbcw.so"
    } else {
        "/usr/lib/x86_64-linux-gnu/odbc/psqlodbcw.so"
    },
    package: "odbc-postgresql",
};
pub(crate) const MARIADB: Tool = Tool { program: "mariadb", package: "mariadb-client" };

/// Checks that the tools are installed, and returns the versions of their packages.
///
/// # Errors
/// When tools are missing: names them, and the command that installs them.
pub(crate) fn tools(tools: &[Tool]) -> Result<Vec<String>> {
    let there = |tool: &Tool| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(tool.program).exists())
    };
    let missing: Vec<_> = tools.iter().filter(|tool| !there(tool)).collect();
    if !missing.is_empty() {
        let list =
            |name: fn(&Tool) -> &str| missing.iter().map(|tool| name(tool)).collect::<Vec<_>>().join(" ");
        let (programs, packages) = (list(|tool| tool.program), list(|tool| tool.package));
        return Err(format!("missing: {programs}; install with: apt-get install {packages}").into());
    }
    Ok(tools.iter().map(|tool| format!("{} {}", tool.package, package_version(tool.package))).collect())
}

fn package_version(package: &str) -> String {
    let query = Command::new("dpkg-query").args(["--show", "--showformat=${Version}", package]).output();
    query.map_or_else(|_| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|e| format!("{command:?}: {e}"))?;
    if !status.success() {
        return Err(format!("{command:?}: {status}").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tools_are_named_with_their_packages() {
        let absent = Tool { program: "no-such-program", package: "no-such-package" };
        let error = tools(&[absent]).expect_err("it is missing").to_string();
        assert_eq!(error, "missing: no-such-program; install with: apt-get install no-such-package");
        assert!(tools(&[]).expect("nothing is missing").is_empty());
    }

    #[test]
    fn every_peer_is_pinned() {
        assert!(REQUIREMENTS.lines().all(|line| line.contains("==")), "{REQUIREMENTS}");
        assert!(!versions(&["pyarrow"]).is_empty());
    }
}
