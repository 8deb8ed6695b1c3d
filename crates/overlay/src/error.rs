//! What can be wrong with a topology, and with the parameters of a simulation.

/// Result of this crate.
pub type Result<T, E = OverlayError> = std::result::Result<T, E>;

/// Inputs that no overlay can be made of, and a simulation that came to a standstill.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// A number that makes no sense here.
    #[error("the {what} is {value}, and not between {min} and {max}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// What it is.
        value: f64,
        /// The least that fits.
        min: f64,
        /// The most that fits.
        max: f64,
    },
    /// A topology that does not exist with so many nodes.
    #[error("there is no {topology} of {nodes} nodes; {}", fits(*.below, *.above))]
    Nodes {
        /// Which topology.
        topology: &'static str,
        /// How many nodes it was to have.
        nodes: usize,
        /// The next smaller number that fits, if any does.
        below: Option<usize>,
        /// The next larger number that fits, if any does.
        above: Option<usize>,
    },
    /// An odd number of sockets in a circulant of an odd number of nodes: the link that needs only one
    /// leads half way round, and there is no such node.
    #[error("{nodes} nodes can't have {sockets} sockets each: one of both must be even; {} would do", .sockets - 1)]
    OddSockets {
        /// How many nodes.
        nodes: usize,
        /// How many sockets each was to have.
        sockets: usize,
    },
    /// Offsets that share a divisor with the number of nodes: some nodes are never reached.
    #[error(
        "with these offsets one node in {step} is reached: all offsets and the number of nodes can be divided by {step}"
    )]
    Unconnected {
        /// The greatest common divisor.
        step: usize,
    },
    /// Whoever watched a simulation had it stopped.
    #[error("stopped when {delivered} of {messages} messages had arrived")]
    Stopped {
        /// Messages that had arrived.
        delivered: u64,
        /// All that were to.
        messages: u64,
    },
    /// Messages wait for each other in a circle. With classes by hops it does not happen.
    #[error("{undelivered} messages wait for each other since {seconds} s")]
    Deadlock {
        /// Messages not delivered, those not yet made included.
        undelivered: u64,
        /// Virtual time of the last event.
        seconds: f64,
    },
}

fn fits(below: Option<usize>, above: Option<usize>) -> String {
    match (below, above) {
        (Some(below), Some(above)) => format!("{below} or {above} would do"),
        (Some(one), None) | (None, Some(one)) => format!("{one} would do"),
        (None, None) => "no other number would do".to_owned(),
    }
}

/// Checks that a number is within `min..=max`.
pub(crate) fn within(what: &'static str, value: f64, min: f64, max: f64) -> Result<()> {
    // Written so that NaN is outside.
    if value >= min && value <= max {
        Ok(())
    } else {
        Err(OverlayError::OutOfRange { what, value, min, max })
    }
}

/// The same for counts.
pub(crate) fn count_within(what: &'static str, value: usize, min: usize, max: usize) -> Result<()> {
    within(what, value as f64, min as f64, max as f64)
}
