//! Sizes that follow a transfer on its way: how large messages are, and how many batches are in flight.
//!
//! With several batches in flight a batch need not be more than one message: what a first message takes
//! longer than another is hidden (`docs/cost-model.md`). So there are two sizes, and both follow from the
//! *pace* P, the bytes of rows a second that come in at the end of all stages, and the round trip:
//!
//! - M, the message, is as large as is allowed, for larger ones compress better, but takes no longer
//!   than half a second: a change of the link is followed from one message to the next;
//! - W, the window, covers what the link holds, P times the round trip, a quarter more for what is not
//!   even, and the few batches that the ends are busy with. More would only wait on the way, encoded
//!   for a link that was.
//!
//! A window that is too small makes the pace it is judged by. By Little's law W M / P is what a batch is on its
//! way from credit to credit; where that is little more than the round trip, nothing waited anywhere,
//! and the link may be faster than it was seen to be: the pace is taken as twice itself, until it is not the
//! window that bounds it.

use std::collections::VecDeque;

use crate::error::{Result, within};

/// A message takes no longer, where it may be smaller.
const MESSAGE_SECONDS_MAX: f64 = 0.5;
/// An epoch has so many batches at least,
const EPOCH_BATCHES_MIN: u64 = 4;
/// and takes so many round trips: a window that bounds comes in one burst each.
const EPOCH_ROUND_TRIPS: f64 = 1.0;
/// and no less time: what had gathered in a buffer comes faster than any link.
const EPOCH_SECONDS_MIN: f64 = 0.005;
/// The pace is the best of so many epochs: a sender that was held up for a moment recovers.
const EPOCHS: usize = 4;
/// The window covers so many times what the link holds.
const COVER: f64 = 1.25;
/// One that covers less, besides half of the batches that the ends are busy with, is what is waited for.
const BOUND: f64 = 1.1;
/// The link may then be so much faster.
const UNSEEN: f64 = 2.0;
/// Less than this of the present window is worth a change, once there are as many epochs,
const LESS: f64 = 0.6;
/// more than this at once.
const MORE: f64 = 1.25;
/// A message is changed when the pace asks for one so many times smaller or larger.
const OTHER_MESSAGE: f64 = 2.5;

/// Within what the sizes may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Smallest message.
    pub message_bytes_min: u64,
    /// Largest message.
    pub message_bytes_max: u64,
    /// Batches that the ends are busy with: in the making, on the wire, being read. The least window.
    pub busy_batches: u64,
    /// Most batches in flight.
    pub window_batches_max: u64,
    /// Most bytes of rows in flight.
    pub memory_bytes_max: u64,
}

/// M and W. A batch is one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// M.
    pub message_bytes: u64,
    /// W.
    pub window_batches: u64,
}

impl Sizes {
    /// Most bytes of rows in flight.
    pub fn memory_bytes(&self) -> u64 {
        self.message_bytes.saturating_mul(self.window_batches)
    }
}

impl Bounds {
    /// # Errors
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) when a bound is zero, or the smallest
    /// message is larger than the largest.
    pub fn check(&self) -> Result<()> {
        within("largest message in bytes", self.message_bytes_max as f64, 1.0, f64::MAX)?;
        let max = self.message_bytes_max as f64;
        within("smallest message in bytes", self.message_bytes_min as f64, 1.0, max)?;
        within("least window in batches", self.busy_batches as f64, 1.0, f64::MAX)?;
        within("largest window in batches", self.window_batches_max as f64, 1.0, f64::MAX)?;
        within("memory in bytes", self.memory_bytes_max as f64, 1.0, f64::MAX)
    }

    /// The sizes for a pace in bytes of rows a second, and a round trip. A pace or round trip that makes no
    /// sense counts as none.
    pub fn sizes(&self, bytes_per_second: f64, rtt_seconds: f64) -> Sizes {
        let pace = if bytes_per_second.is_finite() { bytes_per_second.max(0.0) } else { 0.0 };
        self.window(self.message(pace), pace, rtt_seconds)
    }

    /// The largest power of two that takes no longer than it may.
    fn message(&self, pace: f64) -> u64 {
        let wanted = (pace * MESSAGE_SECONDS_MAX).max(1.0);
        let power = if wanted < (1u64 << 62) as f64 { 1u64 << (wanted as u64).ilog2() } else { u64::MAX };
        // Batches that the ends are busy with must fit into the memory, if anything can.
        let fitting = (self.memory_bytes_max / self.busy_batches.max(1)).max(self.message_bytes_min);
        power.clamp(self.message_bytes_min, self.message_bytes_max.max(self.message_bytes_min)).min(fitting)
    }

    fn window(&self, message_bytes: u64, pace: f64, rtt_seconds: f64) -> Sizes {
        let rtt = if rtt_seconds.is_finite() { rtt_seconds.max(0.0) } else { 0.0 };
        let on_the_link = (pace * rtt * COVER / message_bytes as f64).ceil().min(1e9) as u64;
        let fitting = (self.memory_bytes_max / message_bytes.max(1)).min(self.window_batches_max).max(1);
        Sizes { message_bytes, window_batches: (self.busy_batches + on_the_link).min(fitting) }
    }
}

impl Epoch {
    fn at(began: f64) -> Self {
        Self { began, bytes: 0, batches: 0 }
    }
}

/// Follows a transfer. It is told of each batch that came, and says when its sizes should change.
#[derive(Debug, Clone)]
pub struct Flight {
    bounds: Bounds,
    rtt_seconds: f64,
    sizes: Sizes,
    epoch: Option<Epoch>,
    /// When the last batch was taken, in seconds.
    last: f64,
    /// Batches that may have been there before they were asked for.
    gathered: u64,
    /// The paces of the last epochs, in bytes a second, the latest last.
    paces: VecDeque<f64>,
}

/// What came in since some moment.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    began: f64,
    bytes: u64,
    batches: u64,
}

impl Flight {
    /// Of a transfer that begins with these sizes.
    ///
    /// # Errors
    /// As [`Bounds::check`], and
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) for a round trip that is negative, not finite,
    /// or over a million seconds.
    pub fn new(bounds: Bounds, rtt_seconds: f64, sizes: Sizes) -> Result<Self> {
        bounds.check()?;
        within("round trip in seconds", rtt_seconds, 0.0, 1e6)?;
        Ok(Self {
            bounds,
            rtt_seconds,
            sizes,
            epoch: None,
            last: f64::INFINITY,
            gathered: 0,
            paces: VecDeque::new(),
        })
    }

    /// The sizes it thinks there are.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// A batch of so many bytes of rows was taken at a time in seconds since any moment, after so long a wait for
    /// it. Answers the sizes that there should be from now on, if others than there are: whoever can't have
    /// them need not say so, as they are asked for again.
    pub fn arrived(&mut self, at_seconds: f64, bytes: u64, waited_seconds: f64) -> Option<Sizes> {
        let enough = (self.rtt_seconds * EPOCH_ROUND_TRIPS).max(EPOCH_SECONDS_MIN);
        // While the application was busy a window has gathered: how fast it takes that is not the link's pace.
        let busy = at_seconds - self.last - waited_seconds;
        self.last = at_seconds;
        if busy >= enough {
            (self.gathered, self.epoch) = (self.sizes.window_batches, None);
        }
        if self.gathered > 0 {
            self.gathered -= 1;
            return None;
        }
        let epoch = match &mut self.epoch {
            Some(epoch) if at_seconds >= epoch.began => epoch,
            // The first batch only begins the count. So does one that comes before the last.
            epoch => {
                *epoch = at_seconds.is_finite().then_some(Epoch::at(at_seconds));
                return None;
            }
        };
        epoch.bytes = epoch.bytes.saturating_add(bytes);
        epoch.batches += 1;
        let seconds = at_seconds - epoch.began;
        if epoch.batches < EPOCH_BATCHES_MIN || seconds < enough {
            return None;
        }
        let pace = epoch.bytes as f64 / seconds;
        self.epoch = Some(Epoch::at(at_seconds));
        self.judge(pace)
    }

    /// The wish was granted, or some of it: these are the sizes from now on.
    pub fn follow(&mut self, sizes: Sizes) {
        self.sizes = sizes;
        self.epoch = None;
        self.paces.clear();
    }

    fn judge(&mut self, pace: f64) -> Option<Sizes> {
        let Sizes { message_bytes, window_batches } = self.sizes;
        let message = message_bytes as f64;
        let on_the_link = pace * self.rtt_seconds / message;
        let bound = window_batches as f64 <= on_the_link * BOUND + self.bounds.busy_batches as f64 / 2.0;
        self.paces.push_back(pace);
        if self.paces.len() > EPOCHS {
            self.paces.pop_front();
        }
        let best = self.paces.iter().copied().fold(pace, f64::max);
        let pace = if bound { best * UNSEEN } else { best };
        let wanted = self.bounds.sizes(pace, self.rtt_seconds);
        let part = wanted.message_bytes as f64 / message;
        let wanted = if part > OTHER_MESSAGE || part * OTHER_MESSAGE < 1.0 {
            wanted
        } else {
            self.bounds.window(message_bytes, pace, self.rtt_seconds)
        };
        let wanted = self.beside_what_flies(wanted);
        let part = wanted.memory_bytes() as f64 / self.sizes.memory_bytes().max(1) as f64;
        let settled = self.paces.len() == EPOCHS;
        let worth = part > MORE || (settled && (part <= LESS || wanted.message_bytes != message_bytes));
        (worth && wanted != self.sizes).then_some(wanted)
    }

    /// With all that flies under the present sizes, the new ones must keep within the memory.
    fn beside_what_flies(&self, wanted: Sizes) -> Sizes {
        let free = self.bounds.memory_bytes_max.saturating_sub(self.sizes.memory_bytes());
        let more = free / wanted.message_bytes.max(1);
        let window_batches = wanted.window_batches.min(self.sizes.window_batches.saturating_add(more));
        Sizes { window_batches, ..wanted }
    }
}

#[cfg(test)]
mod tests;
