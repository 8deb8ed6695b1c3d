//! Errors of topologies and simulations.

/// The result type of this crate.
pub type Result<T, E = OverlayError> = std::result::Result<T, E>;

/// Invalid inputs, and simulations that did not finish.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// A number out of its valid range.
    #[error("the {what} must be between {min} and {max}, not {value}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: f64,
        /// The minimum.
        min: f64,
        /// The maximum.
        max: f64,
    },
    /// A topology that does not exist for this number of nodes.
    #[error("there is no {topology} of {nodes} nodes; {}", fits(*.below, *.above))]
    Nodes {
        /// Which topology.
        topology: &'static str,
        /// The requested number of nodes.
        nodes: usize,
        /// The next smaller number that works, if any.
        below: Option<usize>,
        /// The next larger number that works, if any.
        above: Option<usize>,
    },
    /// An odd number of sockets in a circulant with an odd number of nodes. A link that takes only one
    /// socket leads half way round, where an odd circle has no node.
    #[error(
        "{nodes} nodes can't have {sockets} sockets each: one of the two numbers must be even; try {} sockets",
        .sockets - 1
    )]
    OddSockets {
        /// The number of nodes.
        nodes: usize,
        /// The requested number of sockets per node.
        sockets: usize,
    },
    /// Offsets that share a divisor with the number of nodes: some nodes are never reached.
    #[error(
        "these offsets reach only one node in {step}: {step} divides all of them and the number of nodes"
    )]
    Unconnected {
        /// The greatest common divisor.
        step: usize,
    },
    /// The watch callback stopped a simulation.
    #[error("stopped when {delivered} of {messages} messages had arrived")]
    Stopped {
        /// Messages that had arrived.
        delivered: u64,
        /// All messages of the simulation.
        messages: u64,
    },
    /// Messages wait for each other in a cycle. This can't happen with classes by hop count.
    #[error("deadlock: {undelivered} messages have waited for each other since {seconds} s")]
    Deadlock {
        /// Messages not delivered, including those not yet created.
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
    // Written so that NaN is out of range.
    if value >= min && value <= max {
        Ok(())
    } else {
        Err(OverlayError::OutOfRange { what, value, min, max })
    }
}

/// [`within`] for counts.
pub(crate) fn count_within(what: &'static str, value: usize, min: usize, max: usize) -> Result<()> {
    within(what, value as f64, min as f64, max as f64)
}
