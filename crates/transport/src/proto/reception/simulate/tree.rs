//! A tree of servers that group the answers on the way to the receiver.

use std::time::Instant;

use lightship_tuner::reception::ReceptionTree;

use super::{Outcome, Simulation};
use crate::proto::reception::ReceptionMode;
use crate::{Result, TransportError};

/// The parameters of a tree: every server receives the answers of the servers below it, adds its own, and sends one
/// answer on.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeSimulation {
    /// The servers, their answers and the network. All servers receive as the receiver does, with the strategy that
    /// its mode chooses.
    pub flat: Simulation,
    /// Servers below each server, at least 2.
    pub fan_out: u32,
    /// The fraction of the bytes that it receives that a server sends on: 1 for rows, 0 for aggregates.
    pub kept: f64,
    /// Receptions that are simulated at each level; the level takes as long as the slowest.
    pub samples: u32,
}

/// The result of a tree.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeReport {
    /// Virtual time from the query to the end of the last answer, in seconds.
    pub seconds: f64,
    /// Levels of servers below the receiver.
    pub levels: u32,
    /// Bytes that the receiver gets.
    pub bytes: u64,
}

impl TreeSimulation {
    /// Runs the simulation: level by level from the leaves. A server answers when the slowest of the level below it
    /// has been received, so the result is an upper bound for trees whose servers differ.
    ///
    /// # Errors
    /// [`TransportError::Config`] for invalid parameters, or if a reception fails.
    pub fn run(&self, start: Instant) -> Result<TreeReport> {
        if self.fan_out < 2 || !(0.0..=1.0).contains(&self.kept) || self.samples == 0 {
            return Err(TransportError::Config("a parameter of the tree is invalid".into()));
        }
        let tree = ReceptionTree { fan_out: self.fan_out, kept: self.kept };
        let receptions = tree.receptions(self.flat.senders.into());
        let levels = receptions.len() as u32;
        let (mut seconds, mut bytes) = (0.0, 0);
        for (level, (senders, length)) in (1..).zip(receptions) {
            let messages =
                (f64::from(self.flat.part_messages) * length).ceil().min(f64::from(u32::MAX)) as u32;
            let mut slowest = 0.0f64;
            // There is one reception at the receiver, and many below.
            let samples = if level == levels { 1 } else { self.samples };
            for sample in 0..samples {
                let distinct = u64::from(level) << 32 | u64::from(sample);
                let simulation = Simulation {
                    senders,
                    part_messages: messages,
                    sender: Simulation::new(senders, ReceptionMode::Auto, 0).sender,
                    seed: self.flat.seed ^ distinct.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    ..self.flat.clone()
                };
                let report = simulation.run(start)?;
                if report.outcome != Outcome::Complete {
                    return Err(TransportError::Config(format!("level {level}: {:?}", report.outcome)));
                }
                slowest = slowest.max(report.seconds);
            }
            bytes = u64::from(senders) * u64::from(messages) * self.flat.message_bytes;
            seconds += slowest;
        }
        Ok(TreeReport { seconds, levels, bytes })
    }
}
