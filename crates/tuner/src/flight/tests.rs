//! Tests the controller on simulated links.

use proptest::prelude::*;

use super::*;

const MB: u64 = 1 << 20;
const BOUNDS: Bounds = Bounds {
    message_bytes_min: 64 << 10,
    message_bytes_max: MB,
    busy_batches: 6,
    window_batches_max: 256,
    memory_bytes_max: 64 << 20,
};

/// A producer that waits only for credit, a link, and a consumer that takes no time.
struct Wire {
    rtt: f64,
    /// When the link becomes free.
    free: f64,
    /// When the producer received each unused credit.
    credits: std::collections::VecDeque<f64>,
    /// Credits to withhold, because the window is now smaller than what is in flight.
    owed: u64,
    sizes: Sizes,
}

impl Wire {
    fn new(rtt: f64, sizes: Sizes) -> Self {
        let credits = (0..sizes.window_batches).map(|_| 0.0).collect();
        Self { rtt, free: 0.0, credits, owed: 0, sizes }
    }

    /// Sends the next batch over a link of `rate` bytes per second. Returns its time of arrival and its
    /// bytes.
    fn batch(&mut self, rate: f64) -> (f64, u64) {
        let credit = self.credits.pop_front().expect("a window has a batch");
        let bytes = self.sizes.message_bytes;
        self.free = self.free.max(credit) + bytes as f64 / rate;
        let arrives = self.free + self.rtt / 2.0;
        if self.owed > 0 {
            self.owed -= 1
        } else {
            self.credits.push_back(arrives + self.rtt / 2.0)
        }
        (arrives, bytes)
    }

    fn resize(&mut self, at: f64, sizes: Sizes) {
        let (old, new) = (self.sizes.window_batches, sizes.window_batches);
        self.owed += old.saturating_sub(new);
        for _ in 0..new.saturating_sub(old) {
            if self.owed > 0 { self.owed -= 1 } else { self.credits.push_back(at + self.rtt / 2.0) }
        }
        self.sizes = sizes;
    }
}

/// The outcome of a run over a link whose rate may depend on the time.
struct Ran {
    seconds: f64,
    changes: Vec<(usize, Sizes)>,
    sizes: Sizes,
    most_bytes: u64,
}

fn run(rtt: f64, start: Sizes, bounds: Bounds, bytes: u64, rate: impl Fn(usize, f64) -> f64) -> Ran {
    let mut flight = WindowController::new(bounds, rtt, start).expect("bounds that make sense");
    let mut wire = Wire::new(rtt, start);
    let (mut ran, mut left) = (Ran { seconds: 0.0, changes: Vec::new(), sizes: start, most_bytes: 0 }, bytes);
    for i in 0.. {
        let (at, came) = wire.batch(rate(i, wire.free));
        let last = std::mem::replace(&mut ran.seconds, at);
        left = left.saturating_sub(came);
        if left == 0 {
            break;
        }
        if let Some(sizes) = flight.arrived(at, came, at - last) {
            // Including what was in flight under the old sizes.
            let more = sizes.window_batches.saturating_sub(wire.sizes.window_batches) * sizes.message_bytes;
            ran.most_bytes = ran.most_bytes.max(wire.sizes.memory_bytes() + more).max(sizes.memory_bytes());
            wire.resize(at, sizes);
            flight.follow(sizes);
            ran.changes.push((i, sizes));
        }
    }
    ran.sizes = flight.sizes();
    ran
}

const START: Sizes = Sizes { message_bytes: MB, window_batches: 16 };

#[test]
fn a_long_fat_link_is_filled() {
    // 1 Gbit/s with 200 ms: 25 MB are in flight.
    let ran = run(0.2, START, BOUNDS, 4 << 30, |_, _| 125e6);
    let ideal = (4u64 << 30) as f64 / 125e6 + 0.2;
    assert!(ran.seconds < ideal * 1.03, "{} of {ideal}: {:?}", ran.seconds, ran.changes);
    assert!((30..=45).contains(&ran.sizes.window_batches), "{:?}", ran.changes);
    // Compared with fixed sizes.
    let fixed = 16.0 * MB as f64 / 0.2;
    assert!(ran.seconds < (4u64 << 30) as f64 / fixed * 0.7);
}

#[test]
fn a_window_of_one_batch_grows_to_fill_the_link() {
    let start = Sizes { message_bytes: MB, window_batches: 1 };
    let ran = run(0.1, start, BOUNDS, 1 << 30, |_, _| 125e6);
    assert!((16..=28).contains(&ran.sizes.window_batches), "{:?}", ran.changes);
    assert!(ran.changes.len() <= 6, "{:?}", ran.changes);
}

#[test]
fn the_window_is_small_if_that_fills_the_link() {
    for (rate, rtt) in [(125e6, 0.0003), (12.5e6, 0.05), (5e9, 0.00005)] {
        let ran = run(rtt, START, BOUNDS, 1 << 30, |_, _| rate);
        assert!(ran.sizes.window_batches <= 8, "{rate}: {:?}", ran.changes);
        let ideal = (1u64 << 30) as f64 / rate + rtt;
        assert!(ran.seconds < ideal * 1.001, "{rate}: {} of {ideal}", ran.seconds);
        assert_eq!(ran.changes.len(), 1, "{rate}: {:?}", ran.changes);
    }
}

#[test]
fn a_cut_to_a_tenth_is_followed_within_a_few_batches() {
    let rate = |_: usize, at: f64| if at < 10.0 { 125e6 } else { 12.5e6 };
    let start = Sizes { message_bytes: MB, window_batches: 30 };
    let ran = run(0.15, start, BOUNDS, 2 << 30, rate);
    let before = (10.0 * 125e6 / MB as f64) as usize;
    let after: Vec<_> = ran.changes.iter().filter(|(i, _)| *i > before).collect();
    assert!(!after.is_empty() && after[0].0 < before + 60, "{before}: {:?}", ran.changes);
    assert!(ran.sizes.window_batches <= 14, "{:?}", ran.changes);
    let ideal = 10.0 + ((2u64 << 30) as f64 - 1.25e9) / 12.5e6;
    assert!(ran.seconds < ideal * 1.02, "{} of {ideal}", ran.seconds);
}

#[test]
fn a_link_that_gets_faster_again_is_filled_again() {
    let rate = |_: usize, at: f64| if (5.0..10.0).contains(&at) { 6e6 } else { 125e6 };
    let ran = run(0.2, START, BOUNDS, 3 << 30, rate);
    let ideal = 10.0 + ((3u64 << 30) as f64 - 5.0 * 131e6) / 125e6;
    assert!(ran.seconds < ideal * 1.05, "{} of {ideal}: {:?}", ran.seconds, ran.changes);
}

#[test]
fn messages_are_small_if_large_ones_would_take_seconds() {
    let ran = run(0.02, START, BOUNDS, 64 << 20, |_, _| 200e3);
    assert_eq!(ran.sizes.message_bytes, 64 << 10, "{:?}", ran.changes);
    // On a faster link they become large again.
    let faster = run(0.02, ran.sizes, BOUNDS, 64 << 20, |_, _| 20e6);
    assert_eq!(faster.sizes.message_bytes, MB, "{:?}", faster.changes);
}

#[test]
fn buffered_batches_are_not_taken_for_a_fast_link() {
    let settled = Sizes { message_bytes: MB, window_batches: 8 };
    let mut flight = WindowController::new(BOUNDS, 0.1, settled).expect("bounds that make sense");
    let mut at = 0.0;
    flight.arrived(at, MB, 0.1);
    for _ in 0..100 {
        // The application is busy for a second. Then it consumes a window at once, and some batches that it
        // waits for.
        at += 1.0;
        for i in 0..16 {
            let waited = if i < 8 { 0.0 } else { 0.08 };
            at += waited + 1e-5;
            let wanted = flight.arrived(at, MB, waited);
            assert!(wanted.is_none_or(|sizes| sizes.window_batches <= 10), "{wanted:?}");
        }
    }
}

#[test]
fn jumping_clocks_and_invalid_numbers_are_handled() {
    let mut flight = WindowController::new(BOUNDS, 0.01, START).expect("bounds that make sense");
    for at in [0.0, 5.0, -100.0, -99.0, f64::NAN, 3.0, f64::INFINITY, 4.0, 4.0, 4.0, 4.0, 4.0, 1e300, 1.0] {
        let wanted = flight.arrived(at, u64::MAX / 4, at);
        assert!(wanted.is_none_or(|sizes| sizes.memory_bytes() <= BOUNDS.memory_bytes_max), "{wanted:?}");
    }
    for (pace, rtt) in [(f64::NAN, 1.0), (1e300, 1e300), (-1.0, -1.0), (0.0, f64::NAN), (f64::INFINITY, 0.0)]
    {
        let sizes = BOUNDS.sizes(pace, rtt);
        assert!(
            sizes.memory_bytes() <= BOUNDS.memory_bytes_max && sizes.window_batches > 0,
            "{pace}: {sizes:?}"
        );
    }
    for bounds in [
        Bounds { message_bytes_min: 0, ..BOUNDS },
        Bounds { message_bytes_min: MB + 1, ..BOUNDS },
        Bounds { busy_batches: 0, ..BOUNDS },
        Bounds { window_batches_max: 0, ..BOUNDS },
        Bounds { memory_bytes_max: 0, ..BOUNDS },
    ] {
        assert!(WindowController::new(bounds, 0.0, START).is_err(), "{bounds:?}");
    }
    assert!(WindowController::new(BOUNDS, f64::NAN, START).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sizes_are_stable_on_a_stable_link(
        rate in 1e6..1e9f64, rtt in 0.0..0.2f64, jitter in proptest::collection::vec(0.8..1.2f64, 64),
    ) {
        let ran = run(rtt, START, BOUNDS, 1 << 30, |i, _| rate * jitter[i % jitter.len()]);
        prop_assert!(ran.changes.len() <= 6, "{:?}", ran.changes);
    }

    #[test]
    fn the_memory_limit_holds_on_any_link(
        rates in proptest::collection::vec(1e5..2e9f64, 1..20), rtt in 0.0..0.3f64, memory in 1u64..64, window in 1..20u64,
    ) {
        let bounds = Bounds { memory_bytes_max: memory << 20, ..BOUNDS };
        let start = Sizes { message_bytes: 64 << 10, window_batches: window.min(memory * 16) };
        let ran = run(rtt, start, bounds, 512 << 20, |i, _| rates[i / 50 % rates.len()]);
        prop_assert!(ran.most_bytes <= bounds.memory_bytes_max, "{} > {}: {:?}", ran.most_bytes, memory << 20, ran.changes);
    }

    #[test]
    fn most_of_any_link_is_used(rate in 1e5..1e9f64, rtt in 0.0..0.05f64) {
        let bytes = 512u64 << 20;
        let ran = run(rtt, START, BOUNDS, bytes, |_, _| rate);
        let ideal = bytes as f64 / rate + rtt;
        prop_assert!(ran.seconds < ideal * 1.03 + 6.0 * rtt, "{} of {}: {:?}", ran.seconds, ideal, ran.changes);
    }
}
