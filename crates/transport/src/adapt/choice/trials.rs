//! Trials of candidates on the rows of a message: when they are due, which candidate is next, and what they show.

use std::time::Duration;

use lightship_wire::Codec;
use lightship_wire::tuning::Stage;

use super::{Choice, UNTRIED, ns, place};

/// Smaller messages are not used for trials.
pub(crate) const SAMPLE_BYTES_MIN: u64 = 64 << 10;
/// The share of the transfer's time that trials may take.
const TRIALS_SHARE: f64 = 0.01;
/// The same, while the link is the bottleneck and a candidate was never tried.
const UNTRIED_SHARE: f64 = 0.1;
/// Before the first message is sent, compressing candidates are tried only if that takes at most this share of
/// the message's estimated time.
const FIRST_TRIALS_SHARE: f64 = 0.05;
/// The size of the part of a message that is used for a trial.
pub(crate) const TRIAL_BYTES: u64 = 512 << 10;
/// The estimated cost of a trial of all candidates.
const TRIAL_NS_PER_BYTE: f64 = 12.0;
/// Batches between trials, unless the data changes.
const TRIAL_BATCHES: u32 = 64;
/// If the ratio changes by this factor, the data has changed.
const DRIFT: f64 = 1.25;

/// A codec tried on some rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    /// The codec.
    pub(crate) codec: Codec,
    /// Bytes of the rows.
    pub(crate) bytes: u64,
    /// Bytes of their message.
    pub(crate) sent_bytes: u64,
    /// The time of encoding.
    pub(crate) encode: Duration,
    /// The time of decoding.
    pub(crate) decode: Duration,
    /// The time of the whole trial, including work that is done only once.
    pub(crate) took: Duration,
}

impl Choice {
    /// Whether candidates should be tried on the next message, of `bytes`.
    ///
    /// `elapsed` is the time since the query, `bandwidth` the rate of the link in bytes per nanosecond.
    pub(crate) fn trial_due(&self, elapsed: Duration, bandwidth: Option<f64>, bytes: u64) -> bool {
        if bandwidth.is_none() || bytes < SAMPLE_BYTES_MIN {
            return false;
        }
        if self.among {
            return self.trial_pays(bandwidth, bytes);
        }
        let Some(since) = self.ratio_at_trial else { return true };
        let ratio = self.known(self.codec()).ratio.rate().unwrap_or(since);
        let drifted = ratio > since * DRIFT || since > ratio * DRIFT;
        let slow = self.pace(self.codec(), bandwidth).is_some_and(|pace| pace.slowest().0 == Stage::Send);
        let unknown = slow && self.has_untried(bandwidth);
        let share = if unknown { UNTRIED_SHARE } else { TRIALS_SHARE };
        let affordable = (ns(elapsed) * share - self.trials_ns) / TRIAL_NS_PER_BYTE;
        (drifted || unknown || self.batches_since_trial >= TRIAL_BATCHES)
            && affordable >= bytes.min(TRIAL_BYTES) as f64
    }

    /// The same for one of many results: once the link has taken long enough for the rows since the last trial, in all
    /// results, and takes more than the processors.
    fn trial_pays(&self, bandwidth: Option<f64>, bytes: u64) -> bool {
        let Some(pace) = self.codec.and_then(|codec| self.pace(codec, bandwidth)) else { return false };
        let send = pace.stages[place(Stage::Send)];
        let share = if self.has_untried(bandwidth) { UNTRIED_SHARE } else { TRIALS_SHARE };
        let cost = bytes.min(TRIAL_BYTES) as f64 * TRIAL_NS_PER_BYTE;
        send > pace.cpu / self.encoders && self.untried_bytes as f64 * send * share >= cost
    }

    /// Whether a candidate was never tried and may be worth a trial.
    fn has_untried(&self, bandwidth: Option<f64>) -> bool {
        let is_known = |codec: &Codec| self.stages(*codec, bandwidth).is_some();
        let known = Codec::ALL.into_iter().take_while(is_known).last();
        known.is_none_or(|last| {
            let stages = self.stages(last, bandwidth).unwrap_or_default();
            last != Codec::ALL[Codec::ALL.len() - 1]
                && (last == Codec::None || stages[place(Stage::Encode)] < stages[place(Stage::Send)])
        })
    }

    /// The next candidate to try, after `trials` on the same rows. It is not tried if encoding is already the
    /// bottleneck of the candidate before it.
    pub(crate) fn next_trial(&self, trials: &[Trial], bandwidth: Option<f64>) -> Option<Codec> {
        let next = *Codec::ALL.get(trials.len())?;
        let wire = |trial: &Trial| bandwidth.map_or(0.0, |rate| trial.sent_bytes as f64 / rate);
        let worthwhile = trials
            .last()
            .is_none_or(|last| last.codec == Codec::None || ns(last.encode) / self.encoders < wire(last));
        let in_use = self.codec.is_some_and(|codec| codec >= next);
        // So early, only a lower bound of the rate is known; a fast link is soon recognised.
        let too_early = self.codec.is_none()
            && next > Codec::Light
            && trials
                .last()
                .is_some_and(|last| wire(last) * FIRST_TRIALS_SHARE < last.bytes as f64 * TRIAL_NS_PER_BYTE);
        ((worthwhile && !too_early) || in_use).then_some(next)
    }

    /// Learns from trials of several candidates on the same rows.
    pub(crate) fn tried(&mut self, trials: &[Trial]) {
        // Count only the trials' own time, not that of frames that were sent meanwhile.
        self.trials_ns += trials.iter().map(|trial| ns(trial.took)).sum::<f64>();
        (self.batches_since_trial, self.untried_bytes) = (0, 0);
        // A slice differs from a whole message, and an idle processor from a busy one. The codec in use shows by
        // how much.
        let (mut ratio_by, mut encode_by) = (1.0, 1.0);
        let baseline = trials.iter().find(|trial| Some(trial.codec) == self.codec);
        if let Some((trial, known)) = baseline.map(|trial| (trial, self.known(trial.codec)))
            && trial.codec != Codec::None
            && let (Some(ratio), Some(encode)) = (known.ratio.rate(), known.encode.rate())
        {
            let bytes = trial.bytes as f64;
            ratio_by = (ratio * bytes / trial.sent_bytes as f64).clamp(0.5, 2.0);
            encode_by = (encode * bytes / ns(trial.encode).max(1.0)).clamp(0.5, 4.0);
        }
        let in_use = self.codec;
        for trial in trials {
            let bytes = trial.bytes as f64;
            let known = self.known_mut(trial.codec);
            known.decode_here = Some(ns(trial.decode) / bytes);
            if in_use == Some(trial.codec) {
                continue;
            }
            let by = if trial.codec == Codec::None { 1.0 } else { ratio_by };
            let ratio = trial.sent_bytes as f64 / bytes * by;
            let encode = ns(trial.encode) / bytes * encode_by;
            // A trial is short: give earlier measurements the same weight.
            let encode = known.encode.rate().map_or(encode, |before| (before + encode) / 2.0);
            known.ratio.set(ratio, bytes);
            known.encode.set(encode, bytes);
        }
        let codec = self.codec.unwrap_or(UNTRIED);
        self.ratio_at_trial = self.known(codec).ratio.rate().or(Some(1.0));
    }
}
