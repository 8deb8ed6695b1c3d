//! Controls the message size and the number of batches in flight during a transfer.
//!
//! With several batches in flight a batch need not be larger than one message, because the window hides
//! the extra time of first messages (`docs/cost-model.md`). So there are two sizes. Both follow from the
//! round trip and the *pace* P, the bytes of rows per second that arrive after all stages:
//!
//! - M, the message, is as large as allowed, because larger messages compress better. But it takes at
//!   most half a second, so that the sizes follow a change of the link from one message to the next.
//! - W, the window, covers the bandwidth-delay product, P times the round trip, plus a quarter for
//!   variation, plus the few batches that the ends work on. More batches would only queue on the way,
//!   encoded for an earlier state of the link.
//!
//! If the window is too small, the window itself limits the pace. By Little's law a batch takes W M / P
//! from credit to credit. If that is little more than the round trip, nothing queued anywhere, and the
//! link may be faster than measured. The pace is then doubled, until the window no longer limits it.

use std::collections::VecDeque;

use crate::error::{Result, within};

/// Maximum time of a message, unless it has the minimum size.
const MESSAGE_SECONDS_MAX: f64 = 0.5;
/// Minimum batches of an epoch.
const EPOCH_BATCHES_MIN: u64 = 4;
/// Minimum round trips of an epoch. If the window limits the pace, rows arrive in one burst per round trip.
const EPOCH_ROUND_TRIPS: f64 = 1.0;
/// Minimum time of an epoch. Batches that were already in a buffer arrive faster than over any link.
const EPOCH_SECONDS_MIN: f64 = 0.005;
/// The pace is the best of this many epochs, so that a brief delay at the sender does not count.
const EPOCHS: usize = 4;
/// The window covers this multiple of the bandwidth-delay product.
const COVER: f64 = 1.25;
/// A window limits the pace if it covers less than this multiple of the bandwidth-delay product, plus
/// half of the batches that the ends work on.
const BOUND: f64 = 1.1;
/// How much faster the link may be if the window limits the pace.
const UNSEEN: f64 = 2.0;
/// Sizes are reduced if they should be at most this fraction of the present memory, after [`EPOCHS`]
/// epochs.
const LESS: f64 = 0.6;
/// Sizes are increased at once if they should exceed this multiple of the present memory.
const MORE: f64 = 1.25;
/// M is changed only if it should be smaller or larger by more than this factor.
const OTHER_MESSAGE: f64 = 2.5;

/// Bounds for the sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Smallest message.
    pub message_bytes_min: u64,
    /// Largest message.
    pub message_bytes_max: u64,
    /// Batches that the ends work on: being encoded, on the wire, being decoded. The minimum window.
    pub busy_batches: u64,
    /// Maximum batches in flight.
    pub window_batches_max: u64,
    /// Maximum bytes of rows in flight.
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
    /// Maximum bytes of rows in flight.
    pub fn memory_bytes(&self) -> u64 {
        self.message_bytes.saturating_mul(self.window_batches)
    }
}

impl Bounds {
    /// # Errors
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) if a bound is zero, or the smallest
    /// message is larger than the largest.
    pub fn check(&self) -> Result<()> {
        within("largest message in bytes", self.message_bytes_max as f64, 1.0, f64::MAX)?;
        let max = self.message_bytes_max as f64;
        within("smallest message in bytes", self.message_bytes_min as f64, 1.0, max)?;
        within("least window in batches", self.busy_batches as f64, 1.0, f64::MAX)?;
        within("largest window in batches", self.window_batches_max as f64, 1.0, f64::MAX)?;
        within("memory in bytes", self.memory_bytes_max as f64, 1.0, f64::MAX)
    }

    /// The sizes for a pace in bytes of rows per second, and a round trip. A pace or round trip that is
    /// negative or not finite counts as zero.
    pub fn sizes(&self, bytes_per_second: f64, rtt_seconds: f64) -> Sizes {
        let pace = if bytes_per_second.is_finite() { bytes_per_second.max(0.0) } else { 0.0 };
        self.window(self.message(pace), pace, rtt_seconds)
    }

    /// The largest power of two whose time is within the limit.
    fn message(&self, pace: f64) -> u64 {
        let wanted = (pace * MESSAGE_SECONDS_MAX).max(1.0);
        let power = if wanted < (1u64 << 62) as f64 { 1u64 << (wanted as u64).ilog2() } else { u64::MAX };
        // The batches that the ends work on must fit into the memory, if possible.
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

/// Controls the sizes of a transfer. Call [`WindowController::arrived`] for each batch; it returns new sizes when
/// they should change.
#[derive(Debug, Clone)]
pub struct WindowController {
    bounds: Bounds,
    rtt_seconds: f64,
    sizes: Sizes,
    epoch: Option<Epoch>,
    /// When the last batch was consumed, in seconds.
    last: f64,
    /// Batches that may have been buffered before the consumer asked for them.
    gathered: u64,
    /// The paces of the last epochs in bytes per second, oldest first.
    paces: VecDeque<f64>,
}

/// What has arrived since the epoch began.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    began: f64,
    bytes: u64,
    batches: u64,
}

impl WindowController {
    /// A controller for a transfer that begins with these sizes.
    ///
    /// # Errors
    /// As [`Bounds::check`], and [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) for a round
    /// trip that is negative, not finite, or over a million seconds.
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

    /// The present sizes, as far as the controller knows.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Records that a batch with `bytes` of rows was consumed at `at_seconds`, measured from any fixed
    /// moment, after a wait of `waited_seconds`. Returns new sizes if they should change. A caller that
    /// can't apply them may ignore them; they are returned again later.
    pub fn arrived(&mut self, at_seconds: f64, bytes: u64, waited_seconds: f64) -> Option<Sizes> {
        let enough = (self.rtt_seconds * EPOCH_ROUND_TRIPS).max(EPOCH_SECONDS_MIN);
        // While the application was busy, up to a window of batches was buffered. The speed at which it
        // consumes these is not the link's pace.
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
            // The first batch only starts the epoch. So does a batch with an earlier time than the
            // epoch's start.
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

    /// Sets the sizes that were granted, which may differ from those requested.
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

    /// Limits the new sizes so that they fit into the memory together with what is in flight under the
    /// present ones.
    fn beside_what_flies(&self, wanted: Sizes) -> Sizes {
        let free = self.bounds.memory_bytes_max.saturating_sub(self.sizes.memory_bytes());
        let more = free / wanted.message_bytes.max(1);
        let window_batches = wanted.window_batches.min(self.sizes.window_batches.saturating_add(more));
        Sizes { window_batches, ..wanted }
    }
}

#[cfg(test)]
mod tests;
