//! One receiver takes the answers to one query from many senders, as state machines without I/O or clock.
//!
//! The answer has parts; each comes from one sender. The strategies are those of M. Tsangou, S. Ndiaye, M. Seck and
//! W. Litwin, "Range Queries to Scalable Distributed Data Structure RP*", WDAS 2003, section "Range query":
//!
//! - push: every sender connects at once. A refused one gives up, and the receiver asks it again at the end.
//! - back-off: every sender connects at once. A refused one tries again after a random pause, which doubles.
//! - announce and pull: every sender announces itself in a small message. The receiver opens the connections, a few
//!   at a time.
//!
//! [`Receiver`] is the receiver's side. A driver passes it [`Event`]s with [`Receiver::handle`], then carries out
//! the [`Action`]s of [`Receiver::next_action`] until there are none, and calls again with [`Event::Tick`] at
//! [`Receiver::deadline`]. [`Sender`] is the same for a sender, before and between its connections; what it sends
//! on a connection is not its concern.
//!
//! Which parts there are is the caller's knowledge: a part is a number of the caller, and a [`Coverage`] says which
//! parts belong to the query and whether they cover it. The reception ends when they do and each has been received
//! to its end ([`Action::Done`]), or with an error that names the missing parts ([`Action::Failed`]). A connection
//! that is lost is opened again, and the part goes on after the last row that arrived.
//!
//! Memory: the senders together never have more than [`ReceptionConfig::budget_bytes`] in flight or waiting to be
//! consumed. The state takes about 200 bytes for each part.
//!
//! [`simulate`] runs the same state machines in virtual time.

mod budget;
mod config;
mod coverage;
mod part;
mod receiver;
mod sender;
pub mod simulate;
#[cfg(test)]
mod tests;

pub use config::{ReceptionConfig, ReceptionMode, Start};
pub use coverage::{Admission, Coverage, Sources};
pub use lightship_tuner::reception::{Reception as Conditions, ReceptionStrategy};
pub use receiver::{Receiver, ReceptionReport};
pub use sender::{Sender, SenderAction, SenderConfig, SenderEvent, SenderOutcome};

/// The most parts that an error names.
pub const NAMED_MAX: usize = 16;

/// What a sender says of itself in a small message. The driver keeps its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// The part that it has, by the caller's number.
    pub part: u64,
    /// Bytes of the part, if known. An estimate: it affects sizes and predictions, never what is received.
    pub bytes: Option<u64>,
    /// Rows of the part, if known.
    pub rows: Option<u64>,
    /// Parts with a smaller rank are pulled earlier; those of equal rank in the order of their announcements.
    pub rank: u64,
}

/// What happened, for [`Receiver::handle`]. Each part has at most one connection: after [`Action::Close`] and after
/// [`Event::Lost`], the driver reports nothing more of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A sender has announced itself. Repetitions are harmless.
    Announced(Announcement),
    /// A sender has connected by itself, and waits to be accepted.
    Connected {
        /// Its part.
        part: u64,
        /// The driver's number of the connection, which the answer repeats.
        connection: u64,
    },
    /// The connection of [`Action::Pull`] is open.
    Opened {
        /// The part.
        part: u64,
    },
    /// Rows have arrived.
    Received {
        /// The part.
        part: u64,
        /// Their bytes, at most what the sender was granted.
        bytes: u64,
        /// Their number.
        rows: u64,
    },
    /// The consumer has taken rows, so that their memory is free.
    Consumed {
        /// The part.
        part: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// A part has been received to its end.
    Ended {
        /// The part.
        part: u64,
    },
    /// The connection of a part could not be opened, or was lost before its end.
    Lost {
        /// The part.
        part: u64,
    },
    /// The sender no longer has the part, for instance because its keys have moved. The rest is a hole.
    Withdrawn {
        /// The part.
        part: u64,
    },
    /// The caller wants no more.
    Stop,
    /// The time of [`Receiver::deadline`] has come.
    Tick,
}

/// What a driver has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Tell the sender that its announcement has arrived, so that it waits.
    Acknowledge {
        /// The part.
        part: u64,
    },
    /// Open a connection to the sender of a part and request it.
    Pull {
        /// The part.
        part: u64,
        /// Rows of the part that have arrived before: the answer begins after them.
        from_row: u64,
        /// Bytes that the sender may have in flight.
        grant_bytes: u64,
    },
    /// Accept a connection, and request the part on it.
    Accept {
        /// The part.
        part: u64,
        /// The connection, as in [`Event::Connected`].
        connection: u64,
        /// As in [`Action::Pull`].
        from_row: u64,
        /// As in [`Action::Pull`].
        grant_bytes: u64,
    },
    /// Refuse a connection, and tell the sender why.
    Refuse {
        /// The part.
        part: u64,
        /// The connection, as in [`Event::Connected`].
        connection: u64,
        /// The reason.
        reason: Refusal,
    },
    /// Allow the sender of a part to send more, beyond earlier grants.
    Grant {
        /// The part.
        part: u64,
        /// Additional bytes.
        bytes: u64,
    },
    /// Send the query again to those who have this part or, if it is a hole, should have it.
    Ask {
        /// The part, or the hole by the number from [`Coverage::holes`].
        part: u64,
        /// As in [`Action::Pull`].
        from_row: u64,
    },
    /// Close the connection of a part: nothing arrived for too long.
    Close {
        /// The part.
        part: u64,
    },
    /// Tell a sender that its part is not wanted, or no longer.
    Stop {
        /// The part.
        part: u64,
    },
    /// All parts have been received. The last action.
    Done,
    /// The reception has failed; close all connections. The last action.
    Failed(ReceptionError),
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The receiver has as many connections as it takes, or no memory for another.
    Full,
    /// The part is being received on another connection, which may be lost without the receiver knowing it.
    Busy,
    /// The part has been received, or does not belong to the query.
    Unwanted,
    /// The reception has ended.
    Stopped,
}

/// Why a reception failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceptionError {
    /// Parts could not be received in the time allowed.
    #[error("{} of the answer can't be received: {}", plural(.parts.len(), *.more), named(.parts, *.more))]
    Missing {
        /// The numbers of the parts, or of the holes; at most [`NAMED_MAX`].
        parts: Vec<u64>,
        /// There are more.
        more: bool,
    },
    /// A sender sent more than it was granted.
    #[error("the sender of part {part} sent {bytes} bytes, but was granted {granted_bytes}")]
    Overrun {
        /// The part.
        part: u64,
        /// What it sent.
        bytes: u64,
        /// What it could send at that moment.
        granted_bytes: u64,
    },
    /// There are more parts than the receiver keeps track of.
    #[error("the answer has more than {parts_max} parts")]
    TooManyParts {
        /// The limit, [`ReceptionConfig::parts_max`].
        parts_max: usize,
    },
    /// The caller stopped the reception.
    #[error("the reception was stopped")]
    Stopped,
}

fn plural(parts: usize, more: bool) -> &'static str {
    if parts == 1 && !more { "a part" } else { "parts" }
}

fn named(parts: &[u64], more: bool) -> String {
    let mut names: Vec<_> = parts.iter().map(u64::to_string).collect();
    if more || names.is_empty() {
        names.push(if names.is_empty() { "unknown".into() } else { "others".into() });
    }
    names.join(", ")
}
