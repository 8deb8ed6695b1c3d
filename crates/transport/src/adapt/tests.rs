//! Simulates whole transfers under virtual time, and compares them with the best fixed codec.

use std::time::Duration;

use lightship_wire::Codec;
use lightship_wire::tuning::{Progress, Stage};

use super::*;

const MESSAGE_BYTES: u64 = 1 << 20;
const CODECS: [Codec; 4] = [Codec::None, Codec::Light, Codec::LightLz4, Codec::LightZstd];
const PROCESSORS: f64 = 2.0;
/// In bytes per nanosecond.
const MBIT: f64 = 1.25e-4;

/// True costs in nanoseconds per byte; ratios in bytes sent per byte.
#[derive(Clone, Copy)]
struct World {
    produce: f64,
    consume: f64,
    encode: [f64; 4],
    decode: [f64; 4],
    ratio: [f64; 4],
    rtt: Duration,
    /// The relative error of measurements.
    noise: f64,
    batches: usize,
    /// Whether both ends share their processors.
    one_host: bool,
    /// Whether the socket is always reported as empty, as it is while TCP's window opens.
    looks_empty: bool,
}

/// Numbers, dates and some words, in the shape of TPC-H's lineitem.
const TABLE: World = World {
    produce: 0.2,
    consume: 0.2,
    encode: [0.05, 0.9, 1.6, 4.0],
    decode: [0.02, 0.35, 0.7, 1.4],
    ratio: [1.0, 0.38, 0.30, 0.22],
    rtt: Duration::from_millis(1),
    noise: 0.0,
    batches: 1000,
    one_host: false,
    looks_empty: false,
};

/// Random bytes: no codec makes them smaller.
const NOISE: World = World { ratio: [1.0, 1.0, 1.0, 1.0], ..TABLE };

struct Outcome {
    seconds: f64,
    used: Vec<Codec>,
    changes: Vec<Option<Stage>>,
}

impl World {
    fn stages(&self, codec: usize, bandwidth: f64) -> [f64; 5] {
        let of = if codec == 0 { 1.0 } else { PROCESSORS };
        [
            self.produce,
            (self.encode[codec] / of).max((self.encode[codec] + self.produce) / PROCESSORS),
            self.ratio[codec] / bandwidth,
            (self.decode[codec] / of).max((self.decode[codec] + self.consume) / PROCESSORS),
            self.consume,
        ]
    }

    fn batch_ns(&self, codec: usize, bandwidth: f64) -> f64 {
        let work = self.produce + self.encode[codec] + self.decode[codec] + self.consume;
        let shared = if self.one_host { work / PROCESSORS } else { 0.0 };
        MESSAGE_BYTES as f64 * self.stages(codec, bandwidth).into_iter().fold(shared, f64::max)
    }

    /// Seconds with a fixed codec.
    fn fixed(&self, codec: usize, link: impl Fn(usize) -> f64) -> f64 {
        (0..self.batches).map(|batch| self.batch_ns(codec, link(batch))).sum::<f64>() / 1e9
    }

    fn best(&self, link: impl Fn(usize) -> f64 + Copy) -> f64 {
        (0..CODECS.len()).map(|codec| self.fixed(codec, link)).fold(f64::INFINITY, f64::min)
    }

    /// Runs a transfer whose codec is chosen during the transfer.
    fn run(&self, link: impl Fn(usize) -> f64) -> Outcome {
        let mut bandwidth = Bandwidth::new(self.rtt);
        bandwidth.expect(10 * 1448, self.rtt, 0.125);
        self.run_with(link, &mut Choice::new(PROCESSORS as usize), &mut bandwidth)
    }

    fn run_with(
        &self,
        link: impl Fn(usize) -> f64,
        choice: &mut Choice,
        bandwidth: &mut Bandwidth,
    ) -> Outcome {
        let mut random = 1u64;
        let mut noisy = |value: f64| {
            // Marsaglia's xorshift: deterministic.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            value * (1.0 + self.noise * (random as f64 / u64::MAX as f64 * 2.0 - 1.0))
        };
        let bytes = MESSAGE_BYTES as f64;
        let duration = |ns: f64| Duration::from_nanos(ns as u64);
        let mut progress = Progress { decoders: PROCESSORS as u32, ..Progress::default() };
        let (mut now_ns, mut used, mut changes) = (0.0, Vec::new(), Vec::new());
        for batch in 0..self.batches {
            choice.produced(MESSAGE_BYTES, duration(noisy(self.produce * bytes)));
            choice.progress(&progress);
            let rate = bandwidth.bytes_per_ns();
            choice.passed(duration(now_ns), rate, bandwidth.is_saturated() && !self.looks_empty);
            if choice.trial_due(duration(now_ns), rate, MESSAGE_BYTES) {
                let (mut trials, mut took) = (Vec::new(), 0.0);
                while let Some(codec) = choice.next_trial(&trials, rate) {
                    let place = CODECS.iter().position(|&c| c == codec).unwrap();
                    let part = MESSAGE_BYTES.min(TRIAL_BYTES) as f64;
                    let encode = noisy(self.encode[place] * part);
                    let decode = noisy(self.decode[place] * part);
                    took += encode + decode;
                    // A slice compresses less well than a whole message.
                    let by = if place == 0 { 1.0 } else { 1.1 };
                    trials.push(Trial {
                        codec,
                        bytes: part as u64,
                        sent_bytes: (self.ratio[place] * by * part) as u64,
                        encode: duration(encode),
                        decode: duration(decode),
                        took: duration(encode + decode),
                    });
                }
                choice.tried(&trials);
                now_ns += took;
            }
            if let Some(retune) = choice.decide(duration(now_ns), rate, MESSAGE_BYTES) {
                changes.push(retune.slowest);
                used.push(retune.codec);
            }
            let codec = choice.codec();
            let place = CODECS.iter().position(|&c| c == codec).unwrap();
            let link = link(batch);
            let took = self.batch_ns(place, link);
            now_ns += took;
            let sent = self.ratio[place] * bytes;
            choice.encoded(codec, MESSAGE_BYTES, sent as u64, duration(noisy(self.encode[place] * bytes)));
            let sending = sent / link;
            let saturated = sending * 2.0 >= took;
            bandwidth.observe(Carried { bytes: sent as u64, busy: duration(noisy(sending)), saturated });
            progress.consumed.add(MESSAGE_BYTES, noisy(self.consume * bytes) as u64);
            progress.decoded[codec.index()].add(MESSAGE_BYTES, noisy(self.decode[place] * bytes) as u64);
        }
        Outcome { seconds: now_ns / 1e9, used, changes }
    }
}

/// The time that a transfer may take: 5% more than with the best codec, and 15 ms to find that codec.
fn allowed(best: f64) -> f64 {
    1.05 * best + 0.015
}

/// Checks the codec at the end of a transfer, and its time.
fn check(name: &str, world: World, mbits: f64, expected: Codec) {
    let link = |_| mbits * MBIT;
    let (outcome, best) = (world.run(link), world.best(link));
    assert!(
        outcome.seconds <= allowed(best),
        "{name}: {} s, {best} s at best: {:?}",
        outcome.seconds,
        outcome.used
    );
    assert_eq!(outcome.used.last(), Some(&expected), "{name}: {:?}", outcome.used);
    assert!(outcome.used.len() <= 4, "{name} changes its mind: {:?}", outcome.used);
    assert_eq!(outcome.changes[0], None);
    assert!(outcome.changes[1..].iter().all(Option::is_some));
}

#[test]
fn each_link_gets_its_codec() {
    let slow_producer = World { produce: 20.0, ..TABLE };
    let slow_consumer = World { consume: 50.0, ..TABLE };
    // Neither encoding nor decoding alone is slower than the link, but both together are.
    let one_host =
        World { one_host: true, encode: [0.05, 1.3, 2.0, 4.0], decode: [0.02, 0.8, 1.0, 1.4], ..TABLE };
    let empty = World { looks_empty: true, ..TABLE };
    let far = World { rtt: Duration::from_millis(200), ..TABLE };
    for (name, world, mbits, expected) in [
        ("10 Gbit/s", TABLE, 10_000.0, Codec::Light),
        ("40 Gbit/s", TABLE, 40_000.0, Codec::None),
        ("1 Gbit/s", TABLE, 1000.0, Codec::LightZstd),
        ("100 Mbit/s", TABLE, 100.0, Codec::LightZstd),
        ("10 Mbit/s", TABLE, 10.0, Codec::LightZstd),
        ("10 Mbit/s, far away", far, 10.0, Codec::LightZstd),
        ("1 Gbit/s, far away", far, 1000.0, Codec::LightZstd),
        ("3 Gbit/s", TABLE, 3000.0, Codec::LightLz4),
        ("a slow producer", slow_producer, 1000.0, Codec::None),
        ("a slow consumer", slow_consumer, 1000.0, Codec::None),
        ("a slow consumer on a slow link", slow_consumer, 100.0, Codec::Light),
        ("nothing to gain", NOISE, 100.0, Codec::None),
        ("100 Mbit/s, with a socket that looks empty", empty, 100.0, Codec::LightZstd),
        ("10 Gbit/s within a host", one_host, 10_000.0, Codec::None),
    ] {
        check(name, world, mbits, expected);
    }
}

/// Results of eight messages each over one connection, as between the nodes of a cluster.
#[test]
fn short_results_learn_from_each_other() {
    for (name, world, mbits, expected) in [
        ("100 Mbit/s", TABLE, 100.0, Codec::LightZstd),
        ("10 Mbit/s", TABLE, 10.0, Codec::LightZstd),
        ("1 Gbit/s", TABLE, 1000.0, Codec::LightLz4),
        // Nothing is tried where the link takes less time than the processors.
        ("10 Gbit/s", TABLE, 10_000.0, Codec::Light),
        ("a slow producer, among others", World { produce: 200.0, ..TABLE }, 100.0, Codec::LightZstd),
        ("nothing to gain", NOISE, 100.0, Codec::None),
    ] {
        let world = World { batches: 8, ..world };
        let mut bandwidth = Bandwidth::new(world.rtt);
        bandwidth.expect(10 * 1448, world.rtt, 0.125);
        let (mut known, mut seconds, mut last) = (None, 0.0, Vec::new());
        for _ in 0..50 {
            let mut choice = Choice::among(PROCESSORS as usize, known);
            let outcome = world.run_with(|_| mbits * MBIT, &mut choice, &mut bandwidth);
            known = choice.codecs_known();
            seconds += outcome.seconds;
            last = outcome.used;
        }
        assert_eq!(last, [expected], "{name}");
        let best = 50.0 * world.best(|_| mbits * MBIT);
        assert!(mbits > 100.0 || seconds <= 1.05 * best + 0.1, "{name}: {seconds} s, {best} s at best");
    }
}

#[test]
fn what_one_result_knows_does_not_hide_what_another_knows() {
    let learn = |codec: Codec, bytes: u64, others| {
        let mut choice = Choice::among(2, others);
        let first = choice.decide(Duration::ZERO, Some(0.01), bytes).map(|retune| retune.codec);
        for _ in 0..8 {
            choice.encoded(codec, bytes, bytes / (1 + codec.index() as u64), Duration::from_micros(1));
        }
        (first, choice.codecs_known().unwrap())
    };
    // A result whose first rows are few begins with a codec: more may follow.
    let (first, light) = learn(Codec::Light, 100, None);
    assert_eq!(first, Some(Codec::Light));
    // That rows without a codec were sent says nothing against one.
    let (_, plain) = learn(Codec::None, MESSAGE_BYTES, None);
    assert_eq!(learn(Codec::None, MESSAGE_BYTES, Some(plain)).0, Some(Codec::Light));
    let both = light.and(plain);
    assert_eq!(learn(Codec::None, MESSAGE_BYTES, Some(both)).0, Some(Codec::Light));
    assert_eq!(learn(Codec::None, MESSAGE_BYTES, Some(plain.and(light))).0, Some(Codec::Light));
}

#[test]
fn noisy_measurements_change_nothing() {
    for mbits in [40_000.0, 10_000.0, 1000.0, 100.0, 10.0] {
        let link = |_| mbits * MBIT;
        let world = World { noise: 0.3, ..TABLE };
        let (outcome, best) = (world.run(link), world.best(link));
        assert!(
            outcome.seconds <= allowed(best),
            "{mbits}: {} for {best} s: {:?}",
            outcome.seconds,
            outcome.used
        );
        assert!(outcome.used.len() <= 4, "{mbits}: {:?}", outcome.used);
    }
}

#[test]
fn the_codec_follows_a_link_that_slows_to_a_tenth_and_recovers() {
    let link = |batch| if (2000..3000).contains(&batch) { 1000.0 * MBIT } else { 10_000.0 * MBIT };
    let world = World { batches: 5000, ..TABLE };
    let outcome = world.run(link);
    assert!(outcome.used.contains(&Codec::LightZstd), "{:?}", outcome.used);
    assert_eq!(outcome.used.last(), Some(&Codec::Light), "{:?}", outcome.used);
    assert!(outcome.changes.contains(&Some(Stage::Send)));
    assert!(outcome.used.len() <= 8, "{:?}", outcome.used);
    // The best codec for each part, and a little time to find it.
    let ideal: f64 = (0..world.batches)
        .map(|batch| (0..4).map(|codec| world.batch_ns(codec, link(batch))).fold(f64::INFINITY, f64::min))
        .sum();
    assert!(outcome.seconds <= 1.1 * ideal / 1e9, "{} for {} s", outcome.seconds, ideal / 1e9);
}

#[test]
fn trials_cost_little() {
    for mbits in [10_000.0, 1000.0, 10.0] {
        let link = |_| mbits * MBIT;
        // Data that changes all the time causes many trials.
        let outcome = World { noise: 0.5, ..TABLE }.run(link);
        assert!(outcome.seconds <= 1.08 * TABLE.best(link), "{mbits}: {}", outcome.seconds);
    }
    let mut choice = Choice::new(2);
    assert!(!choice.trial_due(Duration::from_secs(9), None, MESSAGE_BYTES));
    assert!(!choice.trial_due(Duration::from_secs(9), Some(1.0), SAMPLE_BYTES_MIN - 1));
    // A few packets need no codec.
    assert_eq!(choice.decide(Duration::ZERO, Some(1e-4), 100).map(|retune| retune.codec), Some(Codec::None));
}

#[test]
fn without_measurements_the_light_codec_is_used() {
    let mut choice = Choice::new(2);
    assert_eq!(
        choice.decide(Duration::ZERO, None, MESSAGE_BYTES).map(|retune| retune.codec),
        Some(Codec::Light)
    );
    for _ in 0..100 {
        choice.encoded(Codec::Light, MESSAGE_BYTES, MESSAGE_BYTES / 2, Duration::from_millis(1));
        assert_eq!(choice.decide(Duration::ZERO, None, MESSAGE_BYTES), None);
    }
}
