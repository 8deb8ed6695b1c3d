//! Errors in samples, queries, speeds and changes.

/// A result whose error is [`UsageError`].
pub type Result<T, E = UsageError> = std::result::Result<T, E>;

/// Inputs that can't be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// A number is not finite, or out of range.
    #[error("the {what} is {value:?}, expected {min:?} to {max:?}")]
    OutOfRange {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: f64,
        /// The minimum.
        min: f64,
        /// The maximum.
        max: f64,
    },
    /// A sample came from a host whose clock is not mapped to the time line yet.
    #[error("the clock of host {host} is not known yet")]
    NoClock {
        /// The host.
        host: String,
    },
    /// There are more hosts than the time line keeps.
    #[error("there are more than {max} hosts")]
    TooManyHosts {
        /// The limit.
        max: usize,
    },
    /// The name of a host is empty or too long.
    #[error("the name of a host has {bytes} bytes, expected 1 to {max}")]
    HostName {
        /// Its length.
        bytes: usize,
        /// The maximum.
        max: usize,
    },
    /// A sample takes more memory than a host may use for all of its samples.
    #[error("a sample of host {host} takes {bytes} bytes, but at most {max} are kept")]
    SampleTooLarge {
        /// The host.
        host: String,
        /// What the sample takes.
        bytes: usize,
        /// The most that it may take.
        max: usize,
    },
    /// A query ended before it began, or in the same nanosecond.
    #[error("the query {label:?} ended at {ended_ns} ns, but began at {began_ns} ns")]
    NoDuration {
        /// The query.
        label: String,
        /// When it began.
        began_ns: u64,
        /// When it ended.
        ended_ns: u64,
    },
    /// A query lists too many hosts or subjects.
    #[error("the query {label:?} has {found} {what}, expected at most {max}")]
    TooMany {
        /// The query.
        label: String,
        /// What there are too many of.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A query lists a host twice, whose use would be counted twice.
    #[error("the query {label:?} lists host {host} twice")]
    HostTwice {
        /// The query.
        label: String,
        /// The host.
        host: String,
    },
    /// The text of a change can't be read.
    #[error("cannot read the change `{}`: {why}", .text.escape_debug())]
    ChangeText {
        /// The text.
        text: String,
        /// What is wrong with it, or what is expected.
        why: String,
    },
    /// A change of the number of nodes, for a query of which no sampled host does work that more nodes would divide.
    #[error("no sampled host of the query {label:?} does work that more nodes would divide")]
    NothingDivides {
        /// The query.
        label: String,
    },
}

/// Checks that a number is finite and within `min..=max`.
pub(crate) fn within(what: &'static str, value: f64, min: f64, max: f64) -> Result<()> {
    // Written so that NaN is outside.
    if value >= min && value <= max { Ok(()) } else { Err(UsageError::OutOfRange { what, value, min, max }) }
}
