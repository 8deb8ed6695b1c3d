//! Chooses the codec of a transfer from measurements. Does no I/O and reads no clock.
//!
//! [`Bandwidth`] computes a rate from what the socket reports. [`Choice`] compares the stages of a transfer with
//! each codec, and takes the codec whose slowest stage is fastest.

mod bandwidth;
mod choice;
#[cfg(test)]
mod tests;

pub(crate) use bandwidth::{Bandwidth, Carried};
pub(crate) use choice::{Choice, CodecsKnown, SAMPLE_BYTES_MIN, TRIAL_BYTES, Trial};

/// A rate with exponential decay: the sum of amounts divided by the sum of weights. Each time that `half_life`
/// of weight is added, earlier values lose half of their influence.
#[derive(Debug, Clone, Copy)]
struct Fading {
    half_life: f64,
    amount: f64,
    weight: f64,
}

impl Fading {
    fn new(half_life: f64) -> Self {
        Self { half_life, amount: 0.0, weight: 0.0 }
    }

    fn add(&mut self, amount: f64, weight: f64) {
        let kept = (-weight / self.half_life).exp2();
        self.amount = self.amount * kept + amount;
        self.weight = self.weight * kept + weight;
    }

    /// Replaces all earlier values.
    fn set(&mut self, rate: f64, weight: f64) {
        (self.amount, self.weight) = (rate * weight, weight);
    }

    fn rate(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.amount / self.weight)
    }
}
