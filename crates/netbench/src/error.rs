//! What can go wrong.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::cpu::open_files_max;
use crate::wire::Refusal;

/// Values of a grid that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GridError {
    /// There is none.
    #[error("no value in it")]
    Empty,
    /// One is no value.
    #[error("`{text}`: {why}")]
    Value {
        /// What was written.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// One is too small or too large.
    #[error("`{text}`: from 1 to {most}")]
    Outside {
        /// What was written.
        text: String,
        /// Largest value.
        most: u32,
    },
    /// A range ends before it begins.
    #[error("`{text}`: the smaller one goes first")]
    Backwards {
        /// What was written.
        text: String,
    },
    /// More than anyone waits for.
    #[error("more than {most} values")]
    TooMany {
        /// So many are taken.
        most: usize,
    },
}

/// A host that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no HOST[:PORT]")]
pub struct HostError {
    /// What was written.
    pub(crate) text: String,
}

/// What became of a connection that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The name of the host has no address.
    #[error("no such host: {0}")]
    Resolve(#[source] io::Error),
    /// It could not be made.
    #[error("can't connect: {}", said(.0))]
    Connect(#[source] io::Error),
    /// Nobody answered.
    #[error("no answer within {} s", .0.as_secs())]
    NoAnswer(Duration),
    /// Something answered that is no server of this kind.
    #[error("what answers there is no netbench server")]
    Foreign,
    /// It was closed before anything was said.
    #[error("it hung up: no netbench server, or one with far too many connections")]
    HungUp,
    /// The server does not take it.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// It broke while it was used.
    #[error("it broke: {}", said(.0))]
    Broke(#[source] io::Error),
    /// An answer came to something else than what was sent.
    #[error("the answer is to another message")]
    Mixed,
    /// Less arrived than was sent, or more.
    #[error("{arrived} bytes arrived of {sent}")]
    Short {
        /// Bytes that were sent.
        sent: u64,
        /// Bytes that the server counted.
        arrived: u64,
    },
}

impl Fault {
    /// Whether this process has as many files open as it may.
    pub fn is_too_many_files(&self) -> bool {
        matches!(self, Self::Connect(source) | Self::Broke(source) | Self::Resolve(source)
            if is_too_many_files(source))
    }
}

/// What the system says, and of too many files how many that is.
fn said(error: &io::Error) -> String {
    match open_files_max() {
        Some(limit) if is_too_many_files(error) => format!("{error}: the limit is {limit} (ulimit -n)"),
        _ => error.to_string(),
    }
}

/// `EMFILE`, and `ENFILE`.
pub(crate) fn is_too_many_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

/// What stops a benchmark before it has begun, or keeps its results from being written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetbenchError {
    /// The server can't listen.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A host where nothing can be measured.
    #[error("{host}: {fault}")]
    Host {
        /// Its name and port.
        host: String,
        /// Why.
        #[source]
        fault: Fault,
    },
    /// A file that can't be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A file that is not what it is taken for.
    #[error("{}: {why}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A plot can't be drawn.
    #[error(transparent)]
    Plot(#[from] lightship_plot::PlotError),
}
