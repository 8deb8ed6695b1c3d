//! Which codec a transfer should use, from what was measured: pure, and given the time.
//!
//! [`Bandwidth`] makes a rate of what the socket reports; [`Choice`] compares the
//! stages of a transfer under each codec and takes the one whose slowest stage is
//! least.

mod bandwidth;
mod choice;
#[cfg(test)]
mod tests;

pub(crate) use bandwidth::{Bandwidth, Carried};
pub(crate) use choice::{Choice, SAMPLE_BYTES_MIN, TRIAL_BYTES, Trial};

/// A rate whose past fades: amounts over weights, of which half is forgotten with
/// every `half_life` of weight that is added.
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

    /// Forgets all but this.
    fn set(&mut self, rate: f64, weight: f64) {
        (self.amount, self.weight) = (rate * weight, weight);
    }

    fn rate(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.amount / self.weight)
    }
}
