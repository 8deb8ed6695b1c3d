//! Errors of a lab.

use std::io;

use crate::check::Check;
use crate::measured::Measured;

/// Why hosts could not be created, limited or measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// This machine lacks something that every lab needs; each check has a hint.
    #[error("this machine can't run a lab{}", lines(.0))]
    Missing(Vec<Check>),
    /// No shaper on this machine can carry such a link.
    #[error(
        "{link} needs netem, which this kernel lacks; without it, {bandwidth_max} is the fastest such link"
    )]
    TooFast {
        /// The requested link.
        link: String,
        /// The same link at the highest bandwidth that rattan carries.
        bandwidth_max: String,
    },
    /// A link can change only between two hosts, and only if a token bucket shapes it.
    #[error(
        "can't change {from} to {to} in use: only a link of two hosts, without delay or loss, can change"
    )]
    Reshape {
        /// The current link.
        from: String,
        /// The requested link.
        to: String,
    },
    /// An invalid number of hosts.
    #[error("expected 1 to {max} hosts, not {asked}")]
    Hosts {
        /// The requested number.
        asked: usize,
        /// The maximum.
        max: usize,
    },
    /// A program that sets up the network failed.
    #[error("`{command}` failed: {stderr}")]
    Tool {
        /// Program and arguments.
        command: String,
        /// Its error output, trimmed.
        stderr: String,
    },
    /// `cargo install` of rattan failed; its output is on stderr.
    #[error("can't install rattan: `{command}` ended with {status}")]
    Install {
        /// Program and arguments.
        command: String,
        /// Its exit status.
        status: std::process::ExitStatus,
    },
    /// Rattan did not create the link.
    #[error("rattan did not bring the link up (its output is on stderr)")]
    Rattan(#[source] io::Error),
    /// A limit whose controller is not mounted or not enabled.
    #[error("no control group on this machine limits `{controller}`")]
    Controller {
        /// `cpu`, `cpuset`, `memory` or `io`.
        controller: &'static str,
    },
    /// An invalid limit.
    #[error("{0}")]
    Limit(String),
    /// A measurement differs too much from the requested link.
    #[error("the link differs from the requested one: {}\n{measured}", off.join("; "))]
    FarOff {
        /// The measurement.
        measured: Box<Measured>,
        /// The deviations, one phrase each.
        off: Vec<String>,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl LabError {
    /// For `map_err`: adds what was being done.
    pub(crate) fn io<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source: source.into() }
    }
}

fn lines(checks: &[Check]) -> String {
    checks.iter().map(|check| format!("\n  {check}")).collect()
}
