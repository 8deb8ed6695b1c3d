//! Chooses the codec whose slowest stage is fastest.
//!
//! A transfer is a pipeline, and runs at the pace of its slowest stage. A codec moves time from the link to the
//! processors of both ends, which pays as long as the link is the bottleneck. All times here are in nanoseconds
//! per byte of Arrow data, so that they can be compared.

mod trials;

use std::time::Duration;

use lightship_wire::Codec;
use lightship_wire::tuning::{Progress, Retune, Stage, Work};

pub(crate) use self::trials::{SAMPLE_BYTES_MIN, TRIAL_BYTES, Trial};
use super::Fading;

/// The codec while nothing is known of the link: it costs little and reduces the size.
const UNTRIED: Codec = Codec::Light;

/// Messages that fit TCP's first window (RFC 6928: 10 segments) take one round trip with any codec.
const TRIP_BYTES: u64 = 14 << 10;

/// The half-life of measured costs, in bytes.
const HALF_LIFE_BYTES: f64 = 16.0 * 1024.0 * 1024.0;
/// The half-life of a measured pace, in bytes.
const PACE_HALF_LIFE_BYTES: f64 = 4.0 * HALF_LIFE_BYTES;

/// Codecs within this factor of the best count as equal, and the cheapest of them is taken.
const AS_GOOD: f64 = 1.01;
/// A change of codec must promise at least this speed-up,
const FASTER: f64 = 1.05;
/// or, if it is not slower, reduce processor time to this share,
const CHEAPER: f64 = 0.8;
/// for this many batches in a row. A change that promises more than `MUCH_FASTER` is made at once.
const BATCHES_IN_A_ROW: u32 = 4;
const MUCH_FASTER: f64 = 1.3;

/// A codec must be in use for this many bytes, or for this time, before its pace counts as measured.
const SETTLED_BYTES: u64 = 32 << 20;
const SETTLED: Duration = Duration::from_millis(100);
/// If a batch takes longer than its stages explain, the link causes it if it is the bottleneck. Otherwise the
/// processors cause it, if the time exceeds the other stages by the factor `EXPLAINED`. The factor attributed
/// to either is at most `CONTENTION_MAX`.
const EXPLAINED: f64 = 1.1;
const CONTENTION_MAX: f64 = 4.0;
/// A link that is not the bottleneck may be faster than measured by this factor.
const UNSEEN: f64 = 3.0;
/// If the pace of the current codec changes by this factor, measured paces of other codecs are discarded.
const SHOWN_AS: f64 = 1.5;
/// A measured pace is valid for this many bytes of the result.
const SHOWN_BYTES: u64 = 512 << 20;
/// After a codec did not keep its predicted pace, this many bytes pass before another one is taken on a
/// prediction alone. The number doubles each time.
const DISTRUST_BYTES: u64 = 64 << 20;

/// What is known of a codec for the current data.
#[derive(Debug, Clone, Copy)]
struct CodecMeasurements {
    /// The time of one encoder.
    encode: Fading,
    /// The time of one decoder, at the consumer.
    decode: Fading,
    /// The same on this host, in trials.
    decode_here: Option<f64>,
    /// Bytes sent per byte.
    ratio: Fading,
    /// Its measured pace when it was last in use.
    shown: Option<Shown>,
}

/// What was learned of the codecs for rows of one kind, which other results with such rows can begin with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CodecsKnown {
    /// By [`Codec::index`].
    known: [CodecMeasurements; Codec::ALL.len()],
    /// Bytes of such rows since the last trial.
    untried_bytes: u64,
}

impl CodecsKnown {
    /// The same with what a later result has learned.
    pub(crate) fn and(mut self, later: Self) -> Self {
        for (known, later) in self.known.iter_mut().zip(later.known) {
            if later.encode.rate().is_some() || known.encode.rate().is_none() {
                *known = later;
            }
        }
        Self { untried_bytes: later.untried_bytes, ..self }
    }
}

/// A pace that was measured from end to end. The stages do not cover everything: for instance, both ends may
/// share a host, or a processor with other programs.
#[derive(Debug, Clone, Copy)]
struct Shown {
    took: f64,
    /// Bytes of the result at that time.
    at_bytes: u64,
    /// Whether the link was the bottleneck.
    saturated: bool,
}

/// The times of the stages with a codec.
#[derive(Debug, Clone, Copy)]
struct Pace {
    codec: Codec,
    stages: [f64; Stage::ALL.len()],
    /// Processor time of both ends.
    cpu: f64,
    /// The time of the whole transfer.
    time: f64,
    /// Whether `time` was measured, and not only predicted from the stages.
    shown: bool,
}

impl Pace {
    fn slowest(&self) -> (Stage, f64) {
        let stages = Stage::ALL.into_iter().zip(self.stages);
        stages.fold((Stage::Produce, 0.0), |most, stage| if stage.1 > most.1 { stage } else { most })
    }
}

/// Chooses the codec of a result, and revises the choice during the result.
#[derive(Debug)]
pub(crate) struct Choice {
    /// The number of concurrent encoders.
    encoders: f64,
    /// The number of concurrent decoders at the consumer.
    decoders: f64,
    codec: Option<Codec>,
    /// Whether many results share the link and the processors of both ends at the same time.
    among: bool,
    /// Bytes of rows like these since the last trial, if so: in other results too.
    untried_bytes: u64,
    /// Whether the encoders have yet to choose the columns' encodings, in the first message of each.
    searches: bool,
    /// By [`Codec::index`].
    known: [CodecMeasurements; Codec::ALL.len()],
    produce: Fading,
    consume: Fading,
    progress: Progress,
    /// Bytes of the result so far.
    bytes: u64,
    /// The factor by which the processors' stages take longer together than alone: both ends may be on one host,
    /// and other programs may use it.
    contention: f64,
    /// The factor by which the link takes longer than its rate predicts.
    congestion: f64,
    /// Whether the link was the bottleneck in the last batch.
    saturated: bool,
    /// The time per byte with the previous codec.
    before: Option<f64>,
    /// The time per byte when the current codec had settled.
    anchor: Option<f64>,
    /// Whether the current codec was taken on a prediction alone.
    on_promise: bool,
    /// The position in the result from which another codec may be taken on a prediction alone,
    trust_from: u64,
    /// and the delay after the next failed prediction.
    distrust_bytes: u64,
    /// The time per byte with the current codec,
    took: Fading,
    /// the total time with it,
    settling: Duration,
    /// and the total bytes with it.
    settling_bytes: u64,
    /// Messages since the codec was taken.
    messages: u32,
    /// When the last batch began, and the bytes of the result at that time. `None` before the first batch with a
    /// codec, which is still affected by the previous one.
    since: Option<(Duration, u64)>,
    /// A codec that looks better than the current one, and for how many batches it has.
    rival: Option<(Codec, u32)>,
    trials_ns: f64,
    batches_since_trial: u32,
    /// The ratio of the current codec when candidates were last tried.
    ratio_at_trial: Option<f64>,
}

impl Choice {
    /// For a producer with this many concurrent encoders.
    pub(crate) fn new(encoders: usize) -> Self {
        let fading = Fading::new(HALF_LIFE_BYTES);
        let known = CodecMeasurements {
            encode: fading,
            decode: fading,
            decode_here: None,
            ratio: fading,
            shown: None,
        };
        Self {
            encoders: encoders.max(1) as f64,
            decoders: 1.0,
            codec: None,
            among: false,
            untried_bytes: 0,
            searches: true,
            known: [known; Codec::ALL.len()],
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

    /// The same for one of many results that share the link and the processors at the same time. What one of them leaves
    /// idle, others use: so the codec is the one that takes least of both together, whatever the slowest stage of this
    /// result is. Each of them may be over before codecs are tried, so it begins with what others have learned.
    pub(crate) fn among(encoders: usize, others: Option<CodecsKnown>) -> Self {
        let choice = Self { among: true, ..Self::new(encoders) };
        match others {
            Some(CodecsKnown { known, untried_bytes }) => {
                Self { known, untried_bytes, searches: false, ..choice }
            }
            None => choice,
        }
    }

    /// What was learned of the codecs; `None` if nothing was.
    pub(crate) fn codecs_known(&self) -> Option<CodecsKnown> {
        let mut known = self.known;
        // How fast they were together with all else is different for other results.
        known.iter_mut().for_each(|known| known.shown = None);
        let is_any = known.iter().any(|known| known.ratio.rate().is_some());
        is_any.then_some(CodecsKnown { known, untried_bytes: self.untried_bytes })
    }

    /// The codec in use.
    pub(crate) fn codec(&self) -> Codec {
        self.codec.unwrap_or_default()
    }

    /// Counts rows from the source, and the time spent waiting for them.
    pub(crate) fn produced(&mut self, bytes: u64, waited: Duration) {
        self.produce.add(ns(waited), bytes as f64);
    }

    /// Counts an encoded message.
    pub(crate) fn encoded(&mut self, codec: Codec, bytes: u64, sent_bytes: u64, took: Duration) {
        self.bytes += bytes;
        self.untried_bytes += bytes;
        self.messages = self.messages.saturating_add(1);
        let searched = self.searches && f64::from(self.messages) <= self.encoders;
        let known = self.known_mut(codec);
        known.ratio.add(sent_bytes as f64, bytes as f64);
        if !searched {
            known.encode.add(ns(took), bytes as f64);
        }
    }

    /// Takes what the consumer has measured since the start of the result.
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
        for codec in Codec::ALL {
            let of = |progress: &Progress| progress.decoded[codec.index()];
            if let Some((ns, bytes)) = fresh(of(progress), of(&before)) {
                self.known_mut(codec).decode.add(ns, bytes);
            }
        }
    }

    /// Counts the end of a batch, `elapsed` after the query. `bandwidth` is the rate of the link in bytes per
    /// nanosecond; `saturated` is whether it was the bottleneck.
    pub(crate) fn passed(&mut self, elapsed: Duration, bandwidth: Option<f64>, saturated: bool) {
        let Some((since, before_bytes)) = self.since else { return };
        let took = elapsed.saturating_sub(since);
        let bytes = self.bytes - before_bytes;
        self.settling += took;
        self.settling_bytes += bytes;
        if !self.is_begun() || self.among {
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
        // If nothing else explains the time, the link is the bottleneck, even if its socket was empty.
        let saturated = saturated || took > (processors * CONTENTION_MAX).max(ends * EXPLAINED);
        let longer = |stage: f64| (took / stage.max(f64::MIN_POSITIVE)).clamp(1.0, CONTENTION_MAX);
        (self.contention, self.congestion) = match saturated {
            true => (1.0, longer(of(Stage::Send))),
            false if took > ends * EXPLAINED => (longer(processors), 1.0),
            false => (1.0, 1.0),
        };
        self.saturated = saturated;
        let at_bytes = self.bytes;
        self.known_mut(self.codec()).shown = Some(Shown { took, at_bytes, saturated });
    }

    /// Decides at the start of a batch, `elapsed` after the query, whose first message has `bytes`. Returns the
    /// codec to begin with or to change to.
    pub(crate) fn decide(&mut self, elapsed: Duration, bandwidth: Option<f64>, bytes: u64) -> Option<Retune> {
        self.batches_since_trial += 1;
        let retune = self.better(bandwidth, bytes);
        let searching = self.searches && f64::from(self.messages) <= 2.0 * self.encoders;
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
            // Rows of other results may have been sent without a codec before any was used.
            let is_tried =
                !self.among || (bandwidth.is_some() && self.known(UNTRIED).encode.rate().is_some());
            let codec = match self.best(bandwidth).filter(|_| is_tried) {
                // The first rows of one of many results may be few, however many follow.
                _ if bytes <= TRIP_BYTES && !self.among => Codec::None,
                Some(best) => best.codec,
                None => UNTRIED,
            };
            self.codec = Some(codec);
            return Some(Retune { codec, slowest: None });
        };
        if !self.among && !self.is_settled() {
            return None;
        }
        let best = self.best(bandwidth)?;
        // The pace of the current codec is known after its first message.
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

    /// Whether the effects of the previous codec and of filling buffers are over.
    fn is_begun(&self) -> bool {
        self.settling_bytes * 4 >= SETTLED_BYTES || self.settling * 4 >= SETTLED
    }

    /// Whether the pace of the current codec is known, or is already clearly below the prediction.
    fn is_settled(&self) -> bool {
        let well_below = self.on_promise
            && self.settling_bytes >= SETTLED_BYTES / 2
            && self.before.zip(self.took.rate()).is_some_and(|(before, took)| took > before * MUCH_FASTER);
        self.settling_bytes >= SETTLED_BYTES || self.settling >= SETTLED || well_below
    }

    /// The fastest candidate; among nearly equal ones, the one with the least processor time.
    fn best(&self, bandwidth: Option<f64>) -> Option<Pace> {
        let trusted =
            |pace: &Pace| pace.shown || self.bytes >= self.trust_from || Some(pace.codec) == self.codec;
        let paces = || Codec::ALL.into_iter().filter_map(|codec| self.pace(codec, bandwidth)).filter(trusted);
        let least = paces().map(|pace| pace.time).min_by(f64::total_cmp)?;
        paces().filter(|pace| pace.time <= least * AS_GOOD).min_by(|a, b| a.cpu.total_cmp(&b.cpu))
    }

    /// The pace with a codec: measured, or else predicted from its stages; `None` if it was neither used nor
    /// tried.
    fn pace(&self, codec: Codec, bandwidth: Option<f64>) -> Option<Pace> {
        let known = self.known(codec);
        let mut stages = self.stages(codec, bandwidth)?;
        for stage in [Stage::Encode, Stage::Decode] {
            stages[place(stage)] *= self.contention;
        }
        stages[place(Stage::Send)] *= self.congestion;
        let shown = known.shown.filter(|shown| self.bytes - shown.at_bytes < SHOWN_BYTES);
        if shown.is_none() && !self.among && !self.saturated && codec < self.codec() {
            stages[place(Stage::Send)] /= UNSEEN;
        }
        let cpu = known.encode.rate()? + self.decode(known);
        let time = match shown {
            _ if self.among => stages[place(Stage::Send)] + cpu / self.encoders,
            Some(Shown { saturated: false, took, .. }) => took,
            // The time that the link would take now.
            Some(_) => stages[place(Stage::Send)],
            None => stages.into_iter().fold(0.0, f64::max),
        };
        Some(Pace { codec, stages, cpu, time, shown: shown.is_some() })
    }

    /// The stages with a codec, if each end had its processors for itself.
    fn stages(&self, codec: Codec, bandwidth: Option<f64>) -> Option<[f64; Stage::ALL.len()]> {
        let known = self.known(codec);
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

    fn decode(&self, known: &CodecMeasurements) -> f64 {
        let here = || Some(known.decode_here? * self.consumer_slowness());
        known.decode.rate().or_else(here).unwrap_or(0.0)
    }

    /// The factor by which the consumer decodes more slowly than this host.
    fn consumer_slowness(&self) -> f64 {
        let both = |known: &CodecMeasurements| Some((known.decode.rate()?, known.decode_here?));
        let pairs = || self.known.iter().filter_map(both);
        let (there, here) = pairs().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        if here > 0.0 { there / here } else { 1.0 }
    }

    fn known(&self, codec: Codec) -> &CodecMeasurements {
        &self.known[codec.index()]
    }

    fn known_mut(&mut self, codec: Codec) -> &mut CodecMeasurements {
        &mut self.known[codec.index()]
    }
}

/// The index of a stage in an array of all stages.
fn place(stage: Stage) -> usize {
    stage as usize - Stage::ALL[0] as usize
}

/// Whether two paces differ by less than [`SHOWN_AS`].
fn alike(a: f64, b: f64) -> bool {
    a < b * SHOWN_AS && b < a * SHOWN_AS
}

fn ns(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}
