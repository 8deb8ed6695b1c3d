//! A reception in virtual time: the state machines of [`super`], with many senders behind the receiver's link.
//!
//! What a message meets, in order: half a round trip; the receiver's link, which carries one message at a time; and
//! a processor that decodes it. One thread of the receiver accepts and opens connections and reads announcements, one
//! at a time. Connections wait in the system's queue until they are accepted; if it is full, the request is dropped,
//! and repeated after a second, two, four and so on, as TCP does, or refused. Announcements wait in the socket's buffer; those that
//! do not fit are lost. A lost datagram is gone, a lost connection request is repeated, and a lost message arrives
//! later, together with those behind it.
//!
//! Not modelled: TCP's slow start and congestion windows, several senders on a host, the senders' links, and a query
//! that takes longer for some senders than for others.

mod agenda;
mod run;
mod tree;

use std::time::{Duration, Instant};

use lightship_tuner::reception::{Reception, ReceptionStrategy};

pub use self::tree::{TreeReport, TreeSimulation};

use super::{ReceptionConfig, ReceptionError, ReceptionMode, SenderConfig, Start};
use crate::{Result, TransportError};

/// The parameters of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Senders, each with one part; at most 10 million.
    pub senders: u32,
    /// How the strategy is chosen. `Auto` chooses for [`Simulation::conditions`].
    pub mode: ReceptionMode,
    /// When the receiver begins to pull.
    pub start: Start,
    /// Messages of a part.
    pub part_messages: u32,
    /// Parts have 0 to `2 part_messages` messages, evenly distributed, instead of the same number.
    pub is_varied: bool,
    /// Bytes of a message.
    pub message_bytes: u64,
    /// Rows of a message.
    pub message_rows: u64,
    /// Round trip, in seconds.
    pub rtt_seconds: f64,
    /// Rate of the receiver's link, in bytes per second.
    pub link_bytes_per_second: f64,
    /// The fraction of messages, datagrams and connection requests that is lost.
    pub loss: f64,
    /// The fraction of datagrams that arrive twice.
    pub doubles: f64,
    /// The longest time by which a datagram is late, in seconds: later ones may overtake it.
    pub jitter_seconds: f64,
    /// The fraction of senders whose connection is lost once, half-way. They can be asked again.
    pub crashes: f64,
    /// Time of a sender from the request to the first message, in seconds.
    pub request_seconds: f64,
    /// Time of the receiver to accept or open a connection, in seconds.
    pub connect_seconds: f64,
    /// Time of the receiver to read an announcement, in seconds.
    pub announcement_seconds: f64,
    /// Time of a processor of the receiver for a message, in seconds.
    pub message_seconds: f64,
    /// Time of a processor of the receiver for a row, in seconds.
    pub row_seconds: f64,
    /// Processors of the receiver that decode.
    pub processors: u32,
    /// Connections that wait to be accepted.
    pub backlog: u32,
    /// A full backlog refuses connection requests, instead of dropping them. The sender learns of it at once.
    /// Those of senders that back off are always refused: they don't wait for the system's repetitions.
    pub resets: bool,
    /// Time until a connection request is repeated, in seconds; doubled each time.
    pub retransmit_seconds: f64,
    /// How often a connection request is repeated before the sender sees an error.
    pub retransmissions: u32,
    /// Time until a lost message is repeated, in seconds.
    pub message_retransmit_seconds: f64,
    /// Announcements that the receiver's socket buffer holds.
    pub datagrams_max: u32,
    /// Connections at a time: the limit of the receiver's state machine.
    pub connections_max: u32,
    /// As [`ReceptionConfig::budget_bytes`].
    pub budget_bytes: u64,
    /// Times of the senders.
    pub sender: SenderConfig,
    /// As [`ReceptionConfig::in_order`]: a part's rank is its number, and its messages are decoded after those of all
    /// parts before it.
    pub in_order: bool,
    /// The seed of losses, crashes, pauses and sizes.
    pub seed: u64,
}

impl Simulation {
    /// `senders` parts of one message with 100 rows and 10 KB, over 10 Gbit/s and 0.5 ms.
    pub fn new(senders: u32, mode: ReceptionMode, seed: u64) -> Self {
        let announcement_seconds = 5e-6;
        let spread = 2.0 * f64::from(senders) * announcement_seconds;
        Self {
            senders,
            mode,
            start: Start::AsAnnounced,
            part_messages: 1,
            is_varied: false,
            message_bytes: 10_000,
            message_rows: 100,
            rtt_seconds: 0.5e-3,
            link_bytes_per_second: 1.25e9,
            loss: 0.0,
            doubles: 0.0,
            jitter_seconds: 0.0,
            crashes: 0.0,
            request_seconds: 1e-3,
            connect_seconds: 50e-6,
            announcement_seconds,
            message_seconds: 5e-6,
            row_seconds: 50e-9,
            processors: 2,
            backlog: 128,
            resets: false,
            retransmit_seconds: 1.0,
            retransmissions: 6,
            message_retransmit_seconds: 0.2,
            datagrams_max: 256,
            connections_max: 64,
            budget_bytes: 16 << 20,
            sender: SenderConfig {
                announce_spread: Duration::from_secs_f64(spread),
                ..SenderConfig::default()
            },
            in_order: false,
            seed,
        }
    }

    /// What the cost model is given.
    pub fn conditions(&self) -> Reception {
        let message_seconds = self.message_seconds + self.message_rows as f64 * self.row_seconds;
        Reception {
            parts: self.senders.into(),
            part_bytes: f64::from(self.part_messages) * self.message_bytes as f64,
            rtt_seconds: self.rtt_seconds,
            link_bytes_per_second: self.link_bytes_per_second,
            decode_bytes_per_second: (self.message_bytes as f64 / message_seconds.max(1e-12))
                .clamp(1.0, 1e15),
            processors: self.processors,
            connect_seconds: self.connect_seconds,
            request_seconds: self.request_seconds,
            announcement_seconds: self.announcement_seconds,
            // Those that wait, and those that are being received.
            backlog: self.backlog.saturating_add(self.connections_max),
            retransmit_seconds: self.retransmit_seconds,
            retransmissions: self.retransmissions,
            quiet_seconds: ReceptionConfig::default().quiet.as_secs_f64(),
            pause_seconds: self.sender.pause_first.as_secs_f64(),
            budget_bytes: self.budget_bytes as f64,
            connections_max: self.connections_max,
            ..Reception::default()
        }
    }

    /// Runs the simulation. The result depends on `start` in no way: it is where virtual time begins.
    ///
    /// # Errors
    /// [`TransportError::Config`] for invalid parameters.
    pub fn run(&self, start: Instant) -> Result<SimulationReport> {
        self.check()?;
        run::run(self, start)
    }

    fn check(&self) -> Result<()> {
        let seconds = [
            self.rtt_seconds,
            self.jitter_seconds,
            self.request_seconds,
            self.connect_seconds,
            self.announcement_seconds,
            self.message_seconds,
            self.row_seconds,
            self.retransmit_seconds,
            self.message_retransmit_seconds,
        ];
        let is_valid = self.senders <= 10_000_000
            && self.part_messages <= 1 << 20
            && (1..=1 << 30).contains(&self.message_bytes)
            && self.message_rows <= 1 << 30
            && seconds.iter().all(|seconds| (0.0..=3600.0).contains(seconds))
            && (1.0..=1e15).contains(&self.link_bytes_per_second)
            && (0.0..=0.5).contains(&self.loss)
            && (0.0..=1.0).contains(&self.doubles)
            && (0.0..=1.0).contains(&self.crashes)
            && (1..=1024).contains(&self.processors)
            && self.backlog > 0
            && self.datagrams_max > 0
            && self.retransmissions <= 20;
        if is_valid {
            Ok(())
        } else {
            Err(TransportError::Config("a parameter of the simulation is invalid".into()))
        }
    }

    fn config(&self) -> ReceptionConfig {
        ReceptionConfig {
            mode: self.mode,
            start: self.start,
            in_order: self.in_order,
            connections_max: self.connections_max,
            budget_bytes: self.budget_bytes,
            grant_bytes_min: self.message_bytes,
            parts_max: self.senders.max(1) as usize,
            // Half of the socket buffer.
            asks_max: (self.datagrams_max / 2).max(1) as usize,
            patience: Duration::from_secs(60),
            conditions: self.conditions(),
            ..ReceptionConfig::default()
        }
    }
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulationReport {
    /// The seed.
    pub seed: u64,
    /// The strategy; for pull, with the number of connections at the end.
    pub strategy: ReceptionStrategy,
    /// How it ended.
    pub outcome: Outcome,
    /// Virtual time from the query to the end of the last part, in seconds.
    pub seconds: f64,
    /// Connections refused by the receiver's state machine.
    pub refused: u64,
    /// Connection requests dropped or refused because the backlog was full.
    pub dropped: u64,
    /// Connection requests and messages repeated.
    pub retransmissions: u64,
    /// Announcements sent, with repetitions.
    pub announcements: u64,
    /// Announcements lost on the way, or because the socket buffer was full.
    pub announcements_lost: u64,
    /// Parts and holes asked again.
    pub asked: u64,
    /// Connections lost.
    pub lost: u64,
    /// The most bytes that had arrived and weren't decoded.
    pub buffered_bytes_peak: u64,
    /// The most bytes that were granted or buffered: what the budget limits.
    pub used_bytes_peak: u64,
    /// The most connections open at a time.
    pub open_peak: u32,
    /// Messages that arrived; those of all parts, once.
    pub messages: u64,
    /// Parts that weren't received exactly once, in order, to their end. Zero unless it failed.
    pub faulty_parts: u64,
    /// Events of the simulation.
    pub events: u64,
}

impl SimulationReport {
    fn new(seed: u64, strategy: ReceptionStrategy) -> Self {
        Self {
            seed,
            strategy,
            outcome: Outcome::Stuck,
            seconds: 0.0,
            refused: 0,
            dropped: 0,
            retransmissions: 0,
            announcements: 0,
            announcements_lost: 0,
            asked: 0,
            lost: 0,
            buffered_bytes_peak: 0,
            used_bytes_peak: 0,
            open_peak: 0,
            messages: 0,
            faulty_parts: 0,
            events: 0,
        }
    }
}

/// How a simulation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All parts were received.
    Complete,
    /// The reception failed.
    Failed(ReceptionError),
    /// A state machine waited for ever, or for more than a week of virtual time. A defect.
    Stuck,
}
