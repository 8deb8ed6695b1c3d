//! The slowest stage of a transfer, which limits its speed whatever the sizes.

use serde::{Deserialize, Serialize};

use crate::error::{Result, within};

/// A stage that the rows pass through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The query.
    Produce,
    /// Rows to messages.
    Encode,
    /// The link.
    Send,
    /// Messages to rows.
    Decode,
    /// The application.
    Consume,
}

/// The rate of each stage in bytes of the volume per second; `None` if unknown.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// The query.
    pub produce: Option<f64>,
    /// Rows to messages.
    pub encode: Option<f64>,
    /// The link.
    pub send: Option<f64>,
    /// Messages to rows.
    pub decode: Option<f64>,
    /// The application.
    pub consume: Option<f64>,
}

impl Rates {
    /// # Errors
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) if a rate is below 1e-8 bytes per
    /// second (about a byte in three years), above 1e18, or not finite.
    pub fn check(&self) -> Result<()> {
        self.known().try_for_each(|(_, rate)| within("rate of a stage in bytes per second", rate, 1e-8, 1e18))
    }

    /// The slowest stage and its rate; `None` if no rate is known.
    pub fn slowest(&self) -> Option<(Stage, f64)> {
        self.known().min_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// The minimum seconds for `volume_bytes`: the stages work in parallel, at the rate of the
    /// slowest.
    pub fn least_seconds(&self, volume_bytes: u64) -> f64 {
        self.slowest().map_or(0.0, |(_, rate)| volume_bytes as f64 / rate)
    }

    fn known(&self) -> impl Iterator<Item = (Stage, f64)> {
        let stages = [
            (Stage::Produce, self.produce),
            (Stage::Encode, self.encode),
            (Stage::Send, self.send),
            (Stage::Decode, self.decode),
            (Stage::Consume, self.consume),
        ];
        stages.into_iter().filter_map(|(stage, rate)| Some((stage, rate?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_stage_limits_the_transfer() {
        let rates = Rates { produce: Some(2e9), decode: Some(5e8), send: Some(1e9), ..Rates::default() };
        assert_eq!(rates.slowest(), Some((Stage::Decode, 5e8)));
        assert_eq!(rates.least_seconds(1_000_000_000), 2.0);
        assert_eq!(Rates::default().least_seconds(1 << 40), 0.0);
    }

    #[test]
    fn invalid_rates_are_rejected() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Rates { send: Some(bad), ..Rates::default() }.check().is_err(), "{bad}");
        }
        assert_eq!(Rates::default().check(), Ok(()));
    }
}
