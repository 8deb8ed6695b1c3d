//! The codec whose slowest stage is least.
//!
//! A transfer is a pipeline, and runs at the pace of its slowest stage. A codec
//! moves time from the wire to the processors of both ends, and pays as long as the
//! wire is what all wait for. All times here are nanoseconds a byte of Arrow data,
//! so that they can be compared.

use std::time::Duration;

use lightship_wire::Codec;
use lightship_wire::tuning::{Progress, Retune, Stage, Work};

use super::Fading;

/// What is chosen from, in the order of what encoding costs. LZ4 and Zstandard on
/// the plain layout are worse than the light layout in both respects.
const CANDIDATES: [Codec; 4] = [Codec::None, Codec::Light, Codec::LightLz4, Codec::LightZstd];
/// In use as long as nothing is known of a link: next to no cost, and less to send.
const UNTRIED: Codec = Codec::Light;

/// Smaller messages are no sample, and a result that ends with one no transfer to optimise.
pub(crate) const SAMPLE_BYTES_MIN: u64 = 64 << 10;
/// Messages that fit the first window of TCP (RFC 6928: 10 segments) take one trip,
/// whatever their codec.
const TRIP_BYTES: u64 = 14 << 10;
/// Trials may take this part of the transfer's time,
const TRIALS_SHARE: f64 = 0.01;
/// or this one while the link is what all wait for, and a candidate was never tried.
const UNTRIED_SHARE: f64 = 0.1;
/// Before the first message has left, those that compress are tried only where that is no more
/// than this part of the time that the message will take.
const FIRST_TRIALS_SHARE: f64 = 0.05;
/// What is tried of a message.
pub(crate) const TRIAL_BYTES: u64 = 512 << 10;
/// What a byte is thought to cost in a trial of all candidates.
const TRIAL_NS_PER_BYTE: f64 = 12.0;
/// Batches between trials, unless the rows change their nature.
const TRIAL_BATCHES: u32 = 64;
/// A ratio that has moved by this factor is another nature.
const DRIFT: f64 = 1.25;

/// Half of a cost is forgotten after so many bytes.
const HALF_LIFE_BYTES: f64 = 16.0 * 1024.0 * 1024.0;
/// Half of a pace is.
const PACE_HALF_LIFE_BYTES: f64 = 4.0 * HALF_LIFE_BYTES;

/// Codecs this close to the best are as good, and the one that costs least is taken.
const AS_GOOD: f64 = 1.01;
/// A change must promise at least this,
const FASTER: f64 = 1.05;
/// or, where it is no slower, this much less of the processors,
const CHEAPER: f64 = 0.8;
/// so many batches in a row; one that promises more than `MUCH_FASTER` is made at once.
const BATCHES_IN_A_ROW: u32 = 4;
const MUCH_FASTER: f64 = 1.3;

/// Under a codec for so many bytes, or for so long, before it has shown its pace.
const SETTLED_BYTES: u64 = 32 << 20;
const SETTLED: Duration = Duration::from_millis(100);
/// What takes longer than the stages explain is the link's where that is what all wait for; else, where it
/// is this much longer than the others explain, the processors'. By up to this factor.
const EXPLAINED: f64 = 1.1;
const CONTENTION_MAX: f64 = 4.0;
/// A link that is not what is waited for may be as much faster than it was seen to be.
const UNSEEN: f64 = 3.0;
/// Where the pace of the codec in use is another by this factor, what was shown of other codecs no longer
/// holds.
const SHOWN_AS: f64 = 1.5;
/// It holds for so many bytes of the result.
const SHOWN_BYTES: u64 = 512 << 20;
/// Bytes before another codec is taken on a promise alone, after one did not hold: twice as many each time.
const DISTRUST_BYTES: u64 = 64 << 20;

/// What is known of a codec on the rows at hand.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Nanoseconds of one encoder.
    encode: Fading,
    /// Nanoseconds of one decoder, at the consumer.
    decode: Fading,
    /// The same on this host, in trials.
    decode_here: Option<f64>,
    /// Bytes sent.
    ratio: Fading,
    /// What came of it when it was last in use.
    shown: Option<Shown>,
}

/// A pace that was measured from end to end. The stages do not know all: that both ends share a host, say,
/// or a processor with others.
#[derive(Debug, Clone, Copy)]
struct Shown {
    took: f64,
    /// Bytes of the result by then.
    at_bytes: u64,
    /// Whether the link was what all waited for.
    saturated: bool,
}

/// A codec tried on some rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    /// Which.
    pub(crate) codec: Codec,
    /// Bytes of the rows.
    pub(crate) bytes: u64,
    /// Bytes of their message.
    pub(crate) sent_bytes: u64,
    /// Rows to message.
    pub(crate) encode: Duration,
    /// Message to rows.
    pub(crate) decode: Duration,
    /// All of it, what is done only once included.
    pub(crate) took: Duration,
}

/// The stages' times under a codec.
#[derive(Debug, Clone, Copy)]
struct Pace {
    codec: Codec,
    stages: [f64; Stage::ALL.len()],
    /// Of the processors of both ends.
    cpu: f64,
    /// Of the whole.
    time: f64,
    /// Whether that was measured, and not only promised by the stages.
    shown: bool,
}

impl Pace {
    fn slowest(&self) -> (Stage, f64) {
        let stages = Stage::ALL.into_iter().zip(self.stages);
        stages.fold((Stage::Produce, 0.0), |most, stage| if stage.1 > most.1 { stage } else { most })
    }
}

/// Chooses the codec of a result, and chooses again as it goes.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Encoders that run at once.
    encoders: f64,
    /// Decoders of the consumer that run at once.
    decoders: f64,
    codec: Option<Codec>,
    known: [Known; CANDIDATES.len()],
    produce: Fading,
    consume: Fading,
    progress: Progress,
    /// Bytes of the result so far.
    bytes: u64,
    /// How much longer the stages of the processors take together than each of them would alone: both ends
    /// may be on one host, which may have other things to do.
    contention: f64,
    /// How much longer the link takes than its rate says.
    congestion: f64,
    /// Whether the link was what all waited for in the last batch.
    saturated: bool,
    /// What a byte took under the codec before.
    before: Option<f64>,
    /// What a byte took when the codec in use had settled.
    anchor: Option<f64>,
    /// Whether it was taken on a promise alone.
    on_promise: bool,
    /// Not before then is another codec taken on a promise alone,
    trust_from: u64,
    /// and so much later after the next one that does not hold.
    distrust_bytes: u64,
    /// What a byte took under the codec in use,
    took: Fading,
    /// in so much time,
    settling: Duration,
    /// for so many bytes.
    settling_bytes: u64,
    /// Messages since the codec was taken.
    messages: u32,
    /// When the last batch began, after so many bytes; nothing before the first one under a codec, in
    /// which the one before still shows.
    since: Option<(Duration, u64)>,
    /// The codec that looks better than the one in use, and for how many batches.
    rival: Option<(Codec, u32)>,
    trials_ns: f64,
    batches_since_trial: u32,
    /// Of the codec in use, when candidates were last tried.
    ratio_at_trial: Option<f64>,
}

impl Choice {
    /// For a producer that encodes so many messages at once.
    pub(crate) fn new(encoders: usize) -> Self {
        let fading = Fading::new(HALF_LIFE_BYTES);
        let known = Known { encode: fading, decode: fading, decode_here: None, ratio: fading, shown: None };
        Self {
            encoders: encoders.max(1) as f64,
            decoders: 1.0,
            codec: None,
            known: [known; CANDIDATES.len()],
            produce: fading,
            consume: fading,
            progress: Progress::default(),
            bytes: 0,
            contention: 1.0,
            congestion: 1.0,
            saturated: true,
            before: None,
            anchor: None,
            on_promise: true,
            trust_from: 0,
            distrust_bytes: DISTRUST_BYTES,
            took: Fading::new(PACE_HALF_LIFE_BYTES),
            settling: Duration::ZERO,
            settling_bytes: 0,
            messages: 0,
            since: None,
            rival: None,
            trials_ns: 0.0,
            batches_since_trial: 0,
            ratio_at_trial: None,
        }
    }

    /// The codec in use.
    pub(crate) fn codec(&self) -> Codec {
        self.codec.unwrap_or_default()
    }

    /// So many bytes of rows were waited for.
    pub(crate) fn produced(&mut self, bytes: u64, waited: Duration) {
        self.produce.add(ns(waited), bytes as f64);
    }

    /// A message was encoded.
    pub(crate) fn encoded(&mut self, codec: Codec, bytes: u64, sent_bytes: u64, took: Duration) {
        self.bytes += bytes;
        self.messages = self.messages.saturating_add(1);
        // The first message of an encoder is also the one in which it looks for the columns' encodings.
        let searched = f64::from(self.messages) <= self.encoders;
        if let Some(known) = self.known_mut(codec) {
            known.ratio.add(sent_bytes as f64, bytes as f64);
            if !searched {
                known.encode.add(ns(took), bytes as f64);
            }
        }
    }

    /// What the consumer has measured since the beginning.
    pub(crate) fn progress(&mut self, progress: &Progress) {
        let fresh = |now: Work, before: Work| {
            let bytes = now.bytes.saturating_sub(before.bytes) as f64;
            (bytes > 0.0).then(|| (now.ns.saturating_sub(before.ns) as f64, bytes))
        };
        if progress.decoders > 0 {
            self.decoders = progress.decoders.into();
        }
        if let Some((ns, bytes)) = fresh(progress.consumed, self.progress.consumed) {
            self.consume.add(ns, bytes);
        }
        let before = std::mem::replace(&mut self.progress, *progress);
        for codec in CANDIDATES {
            let of = |progress: &Progress| progress.decoded[codec as usize];
            if let (Some((ns, bytes)), Some(known)) =
                (fresh(of(progress), of(&before)), self.known_mut(codec))
            {
                known.decode.add(ns, bytes);
            }
        }
    }

    /// A batch ended, so long after the query, while the link carried `bandwidth` bytes a nanosecond, and
    /// was what all waited for if `saturated`.
    pub(crate) fn passed(&mut self, elapsed: Duration, bandwidth: Option<f64>, saturated: bool) {
        let Some((since, before_bytes)) = self.since else { return };
        let took = elapsed.saturating_sub(since);
        let bytes = self.bytes - before_bytes;
        self.settling += took;
        self.settling_bytes += bytes;
        if !self.is_begun() {
            return;
        }
        self.took.add(ns(took), bytes as f64);
        let Some(took) = self.took.rate().filter(|_| self.is_settled()) else { return };
        if !alike(*self.anchor.get_or_insert(took), took) {
            self.anchor = Some(took);
            self.known.iter_mut().for_each(|known| known.shown = None);
        }
        let Some(stages) = self.stages(self.codec(), bandwidth) else { return };
        let of = |stage: Stage| stages[place(stage)];
        let (processors, ends) =
            (of(Stage::Encode).max(of(Stage::Decode)), of(Stage::Produce).max(of(Stage::Consume)));
        // What nothing else explains is the link, whatever its socket held at the moment.
        let saturated = saturated || took > (processors * CONTENTION_MAX).max(ends * EXPLAINED);
        let longer = |stage: f64| (took / stage.max(f64::MIN_POSITIVE)).clamp(1.0, CONTENTION_MAX);
        (self.contention, self.congestion) = match saturated {
            true => (1.0, longer(of(Stage::Send))),
            false if took > ends * EXPLAINED => (longer(processors), 1.0),
            false => (1.0, 1.0),
        };
        self.saturated = saturated;
        let at_bytes = self.bytes;
        if let Some(known) = self.known_mut(self.codec()) {
            known.shown = Some(Shown { took, at_bytes, saturated });
        }
    }

    /// Whether candidates should be tried on the next message, of `bytes`.
    ///
    /// `elapsed` is the time since the query, `bandwidth` the link's in bytes a nanosecond.
    pub(crate) fn trial_due(&self, elapsed: Duration, bandwidth: Option<f64>, bytes: u64) -> bool {
        if bandwidth.is_none() || bytes < SAMPLE_BYTES_MIN {
            return false;
        }
        let Some(since) = self.ratio_at_trial else { return true };
        let ratio = self.known(self.codec()).and_then(|known| known.ratio.rate()).unwrap_or(since);
        let drifted = ratio > since * DRIFT || since > ratio * DRIFT;
        let slow = self.pace(self.codec(), bandwidth).is_some_and(|pace| pace.slowest().0 == Stage::Send);
        let unknown = slow && self.has_untried(bandwidth);
        let share = if unknown { UNTRIED_SHARE } else { TRIALS_SHARE };
        let affordable = (ns(elapsed) * share - self.trials_ns) / TRIAL_NS_PER_BYTE;
        (drifted || unknown || self.batches_since_trial >= TRIAL_BATCHES)
            && affordable >= bytes.min(TRIAL_BYTES) as f64
    }

    /// Whether there is a candidate of which nothing is known, and that may be worth a trial.
    fn has_untried(&self, bandwidth: Option<f64>) -> bool {
        let is_known = |codec: &Codec| self.stages(*codec, bandwidth).is_some();
        let known = CANDIDATES.into_iter().take_while(is_known).last();
        known.is_none_or(|last| {
            let stages = self.stages(last, bandwidth).unwrap_or_default();
            last != CANDIDATES[CANDIDATES.len() - 1]
                && (last == Codec::None || stages[place(Stage::Encode)] < stages[place(Stage::Send)])
        })
    }

    /// The next candidate to try, after `trials` on the same rows: one that costs more
    /// is not tried when its encoding already bounds the one before.
    pub(crate) fn next_trial(&self, trials: &[Trial], bandwidth: Option<f64>) -> Option<Codec> {
        let next = *CANDIDATES.get(trials.len())?;
        let wire = |trial: &Trial| bandwidth.map_or(0.0, |rate| trial.sent_bytes as f64 / rate);
        let worthwhile = trials
            .last()
            .is_none_or(|last| last.codec == Codec::None || ns(last.encode) / self.encoders < wire(last));
        let in_use = self.codec.is_some_and(|codec| codec >= next);
        // What is known of a link so early is its least rate; a fast one is seen to be so soon.
        let too_early = self.codec.is_none()
            && next > Codec::Light
            && trials
                .last()
                .is_some_and(|last| wire(last) * FIRST_TRIALS_SHARE < last.bytes as f64 * TRIAL_NS_PER_BYTE);
        ((worthwhile && !too_early) || in_use).then_some(next)
    }

    /// Learns from trials of several candidates on the same rows.
    pub(crate) fn tried(&mut self, trials: &[Trial]) {
        // Their own time, not that of a socket that was served meanwhile.
        self.trials_ns += trials.iter().map(|trial| ns(trial.took)).sum::<f64>();
        self.batches_since_trial = 0;
        // A slice differs from a whole message, and a processor at rest from one at work: what is in
        // use shows by how much.
        let (mut ratio_by, mut encode_by) = (1.0, 1.0);
        let baseline = trials.iter().find(|trial| Some(trial.codec) == self.codec);
        if let Some((trial, known)) = baseline.and_then(|trial| Some((trial, self.known(trial.codec)?)))
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
            let Some(known) = self.known_mut(trial.codec) else { continue };
            known.decode_here = Some(ns(trial.decode) / bytes);
            if in_use == Some(trial.codec) {
                continue;
            }
            let by = if trial.codec == Codec::None { 1.0 } else { ratio_by };
            let ratio = trial.sent_bytes as f64 / bytes * by;
            let encode = ns(trial.encode) / bytes * encode_by;
            // A trial is short: what was known before counts as much.
            let encode = known.encode.rate().map_or(encode, |before| (before + encode) / 2.0);
            known.ratio.set(ratio, bytes);
            known.encode.set(encode, bytes);
        }
        let codec = self.codec.unwrap_or(UNTRIED);
        self.ratio_at_trial = self.known(codec).and_then(|known| known.ratio.rate()).or(Some(1.0));
    }

    /// At the start of a batch whose first message has so many `bytes`, so long after the query: the
    /// codec to change to, or to begin with.
    pub(crate) fn decide(&mut self, elapsed: Duration, bandwidth: Option<f64>, bytes: u64) -> Option<Retune> {
        self.batches_since_trial += 1;
        let retune = self.better(bandwidth, bytes);
        let searching = f64::from(self.messages) <= 2.0 * self.encoders;
        self.since = (!searching).then_some((elapsed, self.bytes));
        if retune.is_some() {
            self.before = self.took.rate();
            (self.took, self.anchor) = (Fading::new(PACE_HALF_LIFE_BYTES), None);
            (self.settling, self.settling_bytes, self.messages, self.since) = (Duration::ZERO, 0, 0, None);
        }
        retune
    }

    fn better(&mut self, bandwidth: Option<f64>, bytes: u64) -> Option<Retune> {
        let Some(current) = self.codec else {
            let codec = match self.best(bandwidth) {
                _ if bytes <= TRIP_BYTES => Codec::None,
                Some(best) => best.codec,
                None => UNTRIED,
            };
            self.codec = Some(codec);
            return Some(Retune { codec, slowest: None });
        };
        if !self.is_settled() {
            return None;
        }
        let best = self.best(bandwidth)?;
        // The one in use is known after its first message.
        let now = self.pace(current, bandwidth)?;
        let gain = now.time / best.time.max(f64::MIN_POSITIVE);
        let cheaper = gain * AS_GOOD >= 1.0 && best.cpu < now.cpu * CHEAPER;
        if best.codec == current || (gain < FASTER && !cheaper) {
            self.rival = None;
            return None;
        }
        let batches = self.rival.filter(|rival| rival.0 == best.codec).map_or(1, |rival| rival.1 + 1);
        if gain < MUCH_FASTER && batches < BATCHES_IN_A_ROW {
            self.rival = Some((best.codec, batches));
            return None;
        }
        if best.shown && self.on_promise {
            self.trust_from = self.bytes + self.distrust_bytes;
            self.distrust_bytes = self.distrust_bytes.saturating_mul(2);
        }
        self.on_promise = !best.shown;
        self.rival = None;
        self.codec = Some(best.codec);
        Some(Retune { codec: best.codec, slowest: Some(now.slowest().0) })
    }

    /// Whether what was there before the codec in use, and buffers that fill, no longer show.
    fn is_begun(&self) -> bool {
        self.settling_bytes * 4 >= SETTLED_BYTES || self.settling * 4 >= SETTLED
    }

    /// Whether the codec in use has shown what it can do, or soon that it can't hold what it promised.
    fn is_settled(&self) -> bool {
        let well_below = self.on_promise
            && self.settling_bytes >= SETTLED_BYTES / 2
            && self.before.zip(self.took.rate()).is_some_and(|(before, took)| took > before * MUCH_FASTER);
        self.settling_bytes >= SETTLED_BYTES || self.settling >= SETTLED || well_below
    }

    /// The candidate that takes least; of those as good, the one of least work.
    fn best(&self, bandwidth: Option<f64>) -> Option<Pace> {
        let trusted =
            |pace: &Pace| pace.shown || self.bytes >= self.trust_from || Some(pace.codec) == self.codec;
        let paces = || CANDIDATES.into_iter().filter_map(|codec| self.pace(codec, bandwidth)).filter(trusted);
        let least = paces().map(|pace| pace.time).min_by(f64::total_cmp)?;
        paces().filter(|pace| pace.time <= least * AS_GOOD).min_by(|a, b| a.cpu.total_cmp(&b.cpu))
    }

    /// The pace under a codec: what it has shown, or else what its stages promise; `None` while it was
    /// neither used nor tried.
    fn pace(&self, codec: Codec, bandwidth: Option<f64>) -> Option<Pace> {
        let known = self.known(codec)?;
        let mut stages = self.stages(codec, bandwidth)?;
        for stage in [Stage::Encode, Stage::Decode] {
            stages[place(stage)] *= self.contention;
        }
        stages[place(Stage::Send)] *= self.congestion;
        let shown = known.shown.filter(|shown| self.bytes - shown.at_bytes < SHOWN_BYTES);
        if shown.is_none() && !self.saturated && codec < self.codec() {
            stages[place(Stage::Send)] /= UNSEEN;
        }
        let time = match shown {
            Some(Shown { saturated: false, took, .. }) => took,
            // What the link takes for it now.
            Some(_) => stages[place(Stage::Send)],
            None => stages.into_iter().fold(0.0, f64::max),
        };
        let cpu = known.encode.rate()? + self.decode(known);
        Some(Pace { codec, stages, cpu, time, shown: shown.is_some() })
    }

    /// The stages under a codec, as if each end had its processors for itself.
    fn stages(&self, codec: Codec, bandwidth: Option<f64>) -> Option<[f64; Stage::ALL.len()]> {
        let known = self.known(codec)?;
        let (encode, decode, ratio) = (known.encode.rate()?, self.decode(known), known.ratio.rate()?);
        let produce = self.produce.rate().unwrap_or(0.0);
        let consume = self.consume.rate().unwrap_or(0.0);
        let encoders = if codec == Codec::None { 1.0 } else { self.encoders };
        let decoders = if codec == Codec::None { 1.0 } else { self.decoders };
        // Encoders share their processors with the query, decoders theirs with the application.
        let shared = |own: f64, other: f64, processors: f64| (own + other) / processors;
        Some(Stage::ALL.map(|stage| match stage {
            Stage::Produce => produce,
            Stage::Encode => (encode / encoders).max(shared(encode, produce, self.encoders)),
            Stage::Send => bandwidth.map_or(0.0, |rate| ratio / rate),
            Stage::Decode => (decode / decoders).max(shared(decode, consume, self.decoders)),
            Stage::Consume => consume,
        }))
    }

    fn decode(&self, known: &Known) -> f64 {
        let here = || Some(known.decode_here? * self.consumer_slowness());
        known.decode.rate().or_else(here).unwrap_or(0.0)
    }

    /// By how much the consumer decodes slower than this host.
    fn consumer_slowness(&self) -> f64 {
        let both = |known: &Known| Some((known.decode.rate()?, known.decode_here?));
        let pairs = || self.known.iter().filter_map(both);
        let (there, here) = pairs().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        if here > 0.0 { there / here } else { 1.0 }
    }

    fn known(&self, codec: Codec) -> Option<&Known> {
        CANDIDATES.iter().position(|&candidate| candidate == codec).map(|place| &self.known[place])
    }

    fn known_mut(&mut self, codec: Codec) -> Option<&mut Known> {
        CANDIDATES.iter().position(|&candidate| candidate == codec).map(|place| &mut self.known[place])
    }
}

/// Of a stage in an array of all.
fn place(stage: Stage) -> usize {
    stage as usize - Stage::ALL[0] as usize
}

/// Whether two rates are of the same world.
fn alike(a: f64, b: f64) -> bool {
    a < b * SHOWN_AS && b < a * SHOWN_AS
}

fn ns(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}
