//! Predicts how long a receiver takes for the answers of many senders to one query, and chooses how it receives them.
//!
//! Three strategies, after M. Tsangou, S. Ndiaye, M. Seck and W. Litwin, "Range Queries to Scalable Distributed Data
//! Structure RP*", WDAS 2003: senders connect at once ([`ReceptionStrategy::Push`]); they connect, and refused ones
//! try again after a random pause ([`ReceptionStrategy::BackOff`]); or they announce themselves, and the receiver
//! connects to a few at a time ([`ReceptionStrategy::Pull`]). [`Reception::choose`] takes the one with the shortest
//! predicted time.
//!
//! With n parts, and s seconds for each part at the bottleneck (a connection's set-up, the link, or the processors
//! that decode), the predicted times are:
//!
//! - push: `query + 3 rtt + request + wait(i) + (n - i M) s`. A backlog of M admits M senders in each round; all refused
//!   ones repeat at the same time, so round i begins after `wait(i) = R (2^i - 1)`. If that is earlier, or the system
//!   repeats no more, the receiver asks them again after a quiet time, which adds `quiet + n s`.
//! - back-off: `query + 3 rtt + request + min(n, M) s + [n > M] (pause + (n - M) s / u)`. The pauses leave the receiver
//!   idle: it is used for a fraction u of the time.
//! - pull: `query + announce + rtt + max(L + 2 n a, n max(s, c + a, L / k))`. L is the time of a part alone: two
//!   round trips (the connection, the request), the sender's time for the request, the transfer and the decoding. The
//!   receiver takes a for an announcement and c for a connection; announcements are spread over `2 n a`.
//!
//! A refused connection costs the receiver as much as an announcement.

mod connections;
pub mod paper;
#[cfg(test)]
mod tests;

pub use connections::ConnectionController;

use crate::error::{Result, within};

/// The maximum number of parts of a prediction.
const PARTS_MAX: u64 = 1 << 40;
/// The longest time, in seconds, of any parameter.
const SECONDS_MAX: f64 = 1e6;

/// How the answers of many senders are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReceptionStrategy {
    /// Every sender connects at once. A refused sender gives up; the receiver asks it again at the end.
    Push,
    /// Every sender connects at once. A refused sender tries again after a random pause, which doubles.
    BackOff,
    /// Every sender announces itself in a small message. The receiver opens the connections.
    Pull {
        /// Connections at a time, at least 1.
        connections: u32,
    },
}

/// What the time of a reception depends on. All values are measured, or limits of the receiver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reception {
    /// Parts of the answer, one from each sender.
    pub parts: u64,
    /// Mean bytes of a part.
    pub part_bytes: f64,
    /// Round trip between receiver and senders, in seconds.
    pub rtt_seconds: f64,
    /// Rate of the receiver's link, in bytes per second.
    pub link_bytes_per_second: f64,
    /// Rate at which one processor of the receiver decodes, in bytes per second.
    pub decode_bytes_per_second: f64,
    /// Processors of the receiver that decode.
    pub processors: u32,
    /// Time of the receiver for the set-up of a connection, in seconds. Connections are set up one after the other.
    pub connect_seconds: f64,
    /// Time from a request's arrival at a sender to the first byte of its answer, in seconds.
    pub request_seconds: f64,
    /// Time to send the query to the senders, beyond the first half of a round trip, in seconds.
    pub query_seconds: f64,
    /// Time before the first announcement that doesn't depend on the number of parts, in seconds.
    pub announce_seconds: f64,
    /// Time of the receiver for an announcement, in seconds.
    pub announcement_seconds: f64,
    /// Connections that the receiver admits at a time, with those that wait to be accepted. At least 1.
    pub backlog: u32,
    /// Time until a refused connection of [`ReceptionStrategy::Push`] is repeated by the system, in seconds. It
    /// doubles each time.
    pub retransmit_seconds: f64,
    /// How often the system repeats a refused connection; zero if refusals are explicit.
    pub retransmissions: u32,
    /// Time without news after which the receiver asks the refused senders of [`ReceptionStrategy::Push`] again, in
    /// seconds; the longest time if it doesn't.
    pub quiet_seconds: f64,
    /// The first pause of [`ReceptionStrategy::BackOff`], in seconds.
    pub pause_seconds: f64,
    /// The fraction of the time, above 0 and at most 1, for which the receiver is busy under back-off.
    pub back_off_utilisation: f64,
    /// Bytes that all senders together may have in flight.
    pub budget_bytes: f64,
    /// The maximum number of connections that the receiver opens at a time. At least 1.
    pub connections_max: u32,
}

impl Default for Reception {
    /// A thousand parts of 64 KiB over 10 Gbit/s and 0.5 ms. The utilisation is that of the simulation in
    /// `transport` (`proto::reception::simulate`) with 100 to 10,000 senders.
    fn default() -> Self {
        Self {
            parts: 1000,
            part_bytes: 65_536.0,
            rtt_seconds: 0.5e-3,
            link_bytes_per_second: 1.25e9,
            decode_bytes_per_second: 1e9,
            processors: 2,
            connect_seconds: 50e-6,
            request_seconds: 1e-3,
            query_seconds: 0.0,
            announce_seconds: 0.0,
            announcement_seconds: 5e-6,
            backlog: 128,
            retransmit_seconds: 1.0,
            retransmissions: 6,
            quiet_seconds: 0.2,
            pause_seconds: 10e-3,
            back_off_utilisation: 0.5,
            budget_bytes: 64e6,
            connections_max: 64,
        }
    }
}

/// A strategy and what it was compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReceptionChoice {
    /// The strategy with the shortest predicted time.
    pub strategy: ReceptionStrategy,
    /// Its predicted time, in seconds.
    pub seconds: f64,
    /// The predicted time of [`ReceptionStrategy::Push`], in seconds.
    pub push_seconds: f64,
    /// The predicted time of [`ReceptionStrategy::BackOff`], in seconds.
    pub back_off_seconds: f64,
    /// The predicted time of [`ReceptionStrategy::Pull`] with the best number of connections, in seconds.
    pub pull_seconds: f64,
    /// The best number of connections for [`ReceptionStrategy::Pull`].
    pub connections: u32,
}

impl Reception {
    /// Checks that all parameters are in range.
    ///
    /// # Errors
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) names the first parameter that is not.
    pub fn check(&self) -> Result<()> {
        let counts = [
            ("number of parts", self.parts, 0, PARTS_MAX),
            ("number of processors", self.processors.into(), 1, 1 << 16),
            ("backlog", self.backlog.into(), 1, 1 << 30),
            ("number of retransmissions", self.retransmissions.into(), 0, 30),
            ("maximum number of connections", self.connections_max.into(), 1, 1 << 30),
        ];
        for (what, value, min, max) in counts {
            within(what, value as f64, min as f64, max as f64)?;
        }
        let seconds = [
            ("round trip in seconds", self.rtt_seconds),
            ("time per connection in seconds", self.connect_seconds),
            ("time per request in seconds", self.request_seconds),
            ("time to send the query in seconds", self.query_seconds),
            ("time before announcements in seconds", self.announce_seconds),
            ("time per announcement in seconds", self.announcement_seconds),
            ("retransmission time in seconds", self.retransmit_seconds),
            ("quiet time in seconds", self.quiet_seconds),
            ("pause in seconds", self.pause_seconds),
        ];
        for (what, value) in seconds {
            within(what, value, 0.0, SECONDS_MAX)?;
        }
        within("bytes of a part", self.part_bytes, 0.0, 1e15)?;
        within("rate of the link in bytes per second", self.link_bytes_per_second, 1.0, 1e15)?;
        within("rate of decoding in bytes per second", self.decode_bytes_per_second, 1.0, 1e15)?;
        within("budget in bytes", self.budget_bytes, 1.0, 1e18)?;
        within("utilisation under back-off", self.back_off_utilisation, 1e-6, 1.0)
    }

    /// Chooses the strategy with the shortest predicted time. Of equal ones, it takes the one that loads the
    /// receiver least: pull before back-off before push.
    ///
    /// # Errors
    /// As [`Reception::check`].
    pub fn choose(&self) -> Result<ReceptionChoice> {
        let connections = self.connections()?;
        let pull = ReceptionStrategy::Pull { connections };
        let pull_seconds = self.seconds(pull)?;
        let back_off_seconds = self.seconds(ReceptionStrategy::BackOff)?;
        let push_seconds = self.seconds(ReceptionStrategy::Push)?;
        let (strategy, seconds) = if pull_seconds <= back_off_seconds.min(push_seconds) {
            (pull, pull_seconds)
        } else if back_off_seconds < push_seconds {
            (ReceptionStrategy::BackOff, back_off_seconds)
        } else {
            (ReceptionStrategy::Push, push_seconds)
        };
        Ok(ReceptionChoice { strategy, seconds, push_seconds, back_off_seconds, pull_seconds, connections })
    }

    /// The predicted time of a strategy in seconds, from the query to the last byte.
    ///
    /// # Errors
    /// As [`Reception::check`], and for zero connections.
    pub fn seconds(&self, strategy: ReceptionStrategy) -> Result<f64> {
        self.check()?;
        Ok(match strategy {
            ReceptionStrategy::Push => self.push(),
            ReceptionStrategy::BackOff => self.back_off(),
            ReceptionStrategy::Pull { connections } => {
                within("number of connections", connections.into(), 1.0, f64::from(u32::MAX))?;
                self.pull(connections)
            }
        })
    }

    /// The least number of connections that saturates the bottleneck: `L / s`, rounded up, within
    /// [`Reception::connections_max`].
    ///
    /// # Errors
    /// As [`Reception::check`].
    pub fn connections(&self) -> Result<u32> {
        self.check()?;
        let most = u64::from(self.connections_max).min(self.parts.max(1));
        let bottleneck = self.part_seconds(self.processors).max(self.thread_seconds());
        if bottleneck <= 0.0 {
            return Ok(most as u32);
        }
        // A little less than saturation is near enough; it also absorbs rounding errors.
        let enough = (self.part_alone_seconds() / bottleneck - 1e-3).ceil();
        Ok((enough.max(1.0) as u64).min(most) as u32)
    }

    /// The least number of parts, up to `parts_max`, for which pull is the fastest strategy. With some more parts,
    /// push may be faster again: just before its next repetition, the wait for the last one is shared by many.
    ///
    /// # Errors
    /// As [`Reception::check`], and if `parts_max` is above a million.
    pub fn break_even(&self, parts_max: u64) -> Result<Option<u64>> {
        within("maximum number of parts", parts_max as f64, 1.0, 1e6)?;
        for parts in 1..=parts_max {
            let choice = Self { parts, ..*self }.choose()?;
            if matches!(choice.strategy, ReceptionStrategy::Pull { .. }) {
                return Ok(Some(parts));
            }
        }
        Ok(None)
    }

    /// How many senders connect before the system's repetitions end. The others are holes.
    pub fn push_parts_max(&self) -> u64 {
        u64::from(self.backlog).saturating_mul(u64::from(self.retransmissions) + 1)
    }

    /// Time for a part at the bottleneck, in seconds: what each further part adds if enough of them are received at
    /// the same time by `processors`.
    fn part_seconds(&self, processors: u32) -> f64 {
        let link = self.part_bytes / self.link_bytes_per_second;
        let decode = self.part_bytes / (self.decode_bytes_per_second * f64::from(processors.max(1)));
        let budget = self.part_bytes * self.rtt_seconds / self.budget_bytes;
        self.connect_seconds.max(link).max(decode).max(budget)
    }

    /// Time of the thread that opens connections and reads announcements, for a part that is pulled, in seconds.
    fn thread_seconds(&self) -> f64 {
        self.connect_seconds + self.announcement_seconds
    }

    /// Time for a part that is pulled while no other is, in seconds.
    fn part_alone_seconds(&self) -> f64 {
        let bytes = self.part_bytes / self.link_bytes_per_second
            + self.part_bytes / self.decode_bytes_per_second
            + (self.part_bytes / self.budget_bytes - 1.0).max(0.0) * self.rtt_seconds;
        self.connect_seconds + 2.0 * self.rtt_seconds + self.request_seconds + bytes
    }

    /// Time from the query to the first byte of those that connect by themselves.
    fn push_start_seconds(&self) -> f64 {
        // The query, the connection, the sender's name, its acceptance, and the answer.
        self.query_seconds + 3.0 * self.rtt_seconds + self.request_seconds
    }

    fn push(&self) -> f64 {
        let (n, backlog) = (self.parts as f64, f64::from(self.backlog));
        let part = self.part_seconds(self.processors);
        // The receiver asks again: a backlog at a time, or as many as it connects to.
        let refused = (n - backlog).max(0.0);
        let asked = part.max((2.0 * self.rtt_seconds + self.request_seconds) / backlog);
        let asked =
            if refused > 0.0 { self.quiet_seconds + backlog * part + refused * asked } else { n * part };
        let asked = asked + refused * self.announcement_seconds;
        if self.parts > self.push_parts_max() {
            return self.push_start_seconds() + asked;
        }
        // Unless the system repeats earlier.
        let rounds = self.parts.div_ceil(u64::from(self.backlog)).saturating_sub(1) as i32;
        let wait = self.retransmit_seconds * (2f64.powi(rounds) - 1.0);
        let repeated = (wait + (n - f64::from(rounds) * backlog) * part).max(n * part);
        self.push_start_seconds() + repeated.min(asked)
    }

    fn back_off(&self) -> f64 {
        let (n, backlog) = (self.parts as f64, f64::from(self.backlog));
        let part = self.part_seconds(self.processors);
        let refused = (n - backlog).max(0.0);
        let pause = if refused > 0.0 { self.pause_seconds } else { 0.0 };
        self.push_start_seconds() + n.min(backlog) * part + pause + refused * part / self.back_off_utilisation
    }

    fn pull(&self, connections: u32) -> f64 {
        let n = self.parts as f64;
        let at_once = connections.min(self.processors);
        let alone = self.part_alone_seconds();
        let part = self.part_seconds(at_once).max(self.thread_seconds()).max(alone / f64::from(connections));
        let announced = 2.0 * n * self.announcement_seconds + alone;
        let before = self.query_seconds + self.announce_seconds + self.rtt_seconds;
        before + if n > 0.0 { announced.max(n * part) } else { 0.0 }
    }
}

/// What a hierarchy of servers takes that groups the answers on the way: every server receives from at most `fan_out`
/// others, adds its own answer, and sends the result on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReceptionTree {
    /// Servers below each server, at least 2.
    pub fan_out: u32,
    /// The fraction, 0 to 1, of the bytes that it receives that a server sends on: 1 for rows, 0 for aggregates,
    /// which stay as long as one answer.
    pub kept: f64,
}

impl ReceptionTree {
    /// Levels of servers below the receiver for this many parts.
    pub fn levels(&self, parts: u64) -> u32 {
        let (mut levels, mut reached, mut level) = (0, 0u64, 1u64);
        while reached < parts {
            level = level.saturating_mul(self.fan_out.max(2).into());
            reached = reached.saturating_add(level);
            levels += 1;
        }
        levels
    }

    /// The receptions of the levels, from the leaves to the receiver, with the servers divided evenly: how many answers a
    /// server of the level receives, and how many times as long as a leaf's each is.
    pub fn receptions(&self, parts: u64) -> Vec<(u32, f64)> {
        let fan_out = f64::from(self.fan_out.max(2));
        let levels = self.levels(parts);
        let mut receptions = Vec::new();
        // Servers below the one that receives.
        let mut below = parts as f64;
        for level in 1..=levels {
            let children = if level == levels { below.ceil().max(1.0) } else { fan_out };
            let size = (below / children).max(1.0);
            receptions.push((children.min(fan_out) as u32, 1.0 + self.kept * (size - 1.0)));
            below = size - 1.0;
        }
        receptions.reverse();
        receptions
    }

    /// The predicted time in seconds, from the query to the last byte: each level pays for the reception of at most
    /// `fan_out` answers with the strategy that is fastest for so few, and passes on the query.
    ///
    /// # Errors
    /// As [`Reception::check`], and for a fan-out below 2.
    pub fn seconds(&self, reception: &Reception) -> Result<f64> {
        reception.check()?;
        within("fan-out", self.fan_out.into(), 2.0, f64::from(u32::MAX))?;
        within("fraction of bytes that is sent on", self.kept, 0.0, 1.0)?;
        let mut seconds = 0.0;
        for (children, length) in self.receptions(reception.parts) {
            let part_bytes = reception.part_bytes * length;
            seconds += Reception { parts: children.into(), part_bytes, ..*reception }.choose()?.seconds;
        }
        Ok(seconds)
    }
}
