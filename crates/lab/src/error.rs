//! What can go wrong in a lab.

use std::io;

use crate::measure::Measured;
use crate::tools::Check;

/// Why hosts could not be made, limited or measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// This machine lacks what every lab needs; each check has its hint.
    #[error("this machine can't be a lab{}", lines(.0))]
    Missing(Vec<Check>),
    /// No shaper of this machine carries a link of this kind.
    #[error(
        "{link}: the kernel has no netem, and without it {bandwidth_max} is the most for a link with delay or loss"
    )]
    TooFast {
        /// What was asked for.
        link: String,
        /// The most that rattan carries.
        bandwidth_max: String,
    },
    /// Only between two hosts, and only by token buckets, can a link become another one.
    #[error("{from} can't become {to} while it is there: it can only for two hosts, without delay or loss")]
    Reshape {
        /// The link there is.
        from: String,
        /// What was asked for.
        to: String,
    },
    /// As many hosts can't be had.
    #[error("{asked} hosts were asked for; a lab has 1 to {max}")]
    Hosts {
        /// What was asked for.
        asked: usize,
        /// The most there can be.
        max: usize,
    },
    /// A program that sets up the network failed.
    #[error("`{command}` failed: {stderr}")]
    Tool {
        /// Program and arguments.
        command: String,
        /// What it said, trimmed.
        stderr: String,
    },
    /// `cargo install` of rattan failed; its own words stand on stderr.
    #[error("rattan could not be installed: `{command}` ended with {status}")]
    Install {
        /// Program and arguments.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// Rattan gave no link.
    #[error("rattan did not bring the link up (what it said stands on stderr)")]
    Rattan(#[source] io::Error),
    /// A limit whose controller is not mounted, or not enabled.
    #[error("no control group on this machine limits `{controller}`")]
    Controller {
        /// `cpu`, `cpuset`, `memory` or `io`.
        controller: &'static str,
    },
    /// A limit that makes no sense.
    #[error("{0}")]
    Limit(String),
    /// What was measured is far from what was asked for.
    #[error("the link is not what was asked for: {}\n{measured}", off.join("; "))]
    FarOff {
        /// What was measured.
        measured: Box<Measured>,
        /// What is wrong with it, one phrase each.
        off: Vec<String>,
    },
    /// The system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl LabError {
    /// For `map_err`: says what was being done.
    pub(crate) fn io<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source: source.into() }
    }
}

fn lines(checks: &[Check]) -> String {
    checks.iter().map(|check| format!("\n  {check}")).collect()
}
