//! Errors of the benchmark.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::cpu::open_files_max;
use crate::wire::Refusal;

/// Why the values of a grid are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GridError {
    /// There is no value.
    #[error("expected at least one value")]
    Empty,
    /// A value can't be parsed.
    #[error("`{text}`: {why}")]
    Value {
        /// The text of the value.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A value is too small or too large.
    #[error("`{text}`: expected 1 to {most}")]
    Outside {
        /// The text of the value.
        text: String,
        /// The maximum.
        most: u32,
    },
    /// A range ends before it begins.
    #[error("`{text}`: the smaller value must come first")]
    Backwards {
        /// The text of the range.
        text: String,
    },
    /// There are too many values.
    #[error("more than {most} values")]
    TooMany {
        /// The maximum.
        most: usize,
    },
}

/// An invalid host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`: expected HOST[:PORT]")]
pub struct HostError {
    /// The text of the host.
    pub(crate) text: String,
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The name of the host has no address.
    #[error("no such host: {0}")]
    Resolve(#[source] io::Error),
    /// It could not be opened.
    #[error("can't connect: {}", said(.0))]
    Connect(#[source] io::Error),
    /// The server did not answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    NoAnswer(Duration),
    /// The other end is not a netbench server.
    #[error("the other end is not a netbench server")]
    Foreign,
    /// The other end closed it without an answer.
    #[error("closed without an answer: not a netbench server, or one far beyond its connection limit")]
    HungUp,
    /// The server refused it.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// It failed while in use.
    #[error("the connection failed: {}", said(.0))]
    Broke(#[source] io::Error),
    /// The answer does not match the message.
    #[error("the answer belongs to another message")]
    Mixed,
    /// The server did not receive as many bytes as were sent.
    #[error("{arrived} of {sent} bytes arrived")]
    Short {
        /// Bytes sent.
        sent: u64,
        /// Bytes that the server counted.
        arrived: u64,
    },
}

impl ConnectionError {
    /// Whether the limit of open files was reached.
    pub fn is_too_many_files(&self) -> bool {
        matches!(self, Self::Connect(source) | Self::Broke(source) | Self::Resolve(source)
            if is_too_many_files(source))
    }
}

/// The system's message; for too many open files, with the limit.
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

/// An error that prevents a benchmark from starting or its results from being read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetbenchError {
    /// The server can't listen.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A host that can't be measured.
    #[error("{host}: {fault}")]
    Host {
        /// Its name and port.
        host: String,
        /// Why.
        #[source]
        fault: ConnectionError,
    },
    /// A file that can't be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file with unexpected contents.
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
