//! The clock of a host, as the collector's clock sees it. No I/O and no clock of its own.
//!
//! An exchange has four times, like those of NTP (D. Mills, RFC 5905): the agent sends, the collector receives and
//! answers at once, the agent receives. A datagram takes at least no time, so the offset (the agent's clock less the
//! collector's) was at least `sent - received` and at most `returned - answered`: an interval as wide as the round
//! trip. With time, each interval widens by the greatest drift. The offset is in all of them (K. Marzullo and S.
//! Owicki, "Maintaining the time in a distributed system", 1983); the estimate is a line through the exchanges with the
//! least round trips, moved into them. If they have nothing in common, the clock was set, or its agent lies.

mod line;

use std::collections::VecDeque;

use line::Line;

/// Times above this, 146 years, are refused, so that differences do not overflow.
const TIME_NS_MAX: u64 = 1 << 62;
/// The newest exchanges, which are kept whatever their round trip was.
const NEWEST_KEPT: usize = 16;
/// A clock that was set this often within [`STEPS_WINDOW_NS`] is not used.
const STEPS_MAX: usize = 4;
const STEPS_WINDOW_NS: i64 = 600_000_000_000;

/// What is assumed about clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOptions {
    /// The greatest difference of two clocks' rates, in millionths. Crystals have up to 100, in either direction. With
    /// a smaller value the bound is smaller, and wrong if a clock is worse.
    pub drift_ppm_max: u32,
    /// The resolution of both clocks together, in nanoseconds.
    pub resolution_ns: u64,
    /// Exchanges older than this, in nanoseconds, are forgotten.
    pub window_ns: u64,
    /// The most exchanges that are kept.
    pub exchanges_max: usize,
    /// A datagram that seems to have been on its way for longer, in nanoseconds, makes the clock doubtful.
    pub delay_ns_max: u64,
}

impl Default for ClockOptions {
    fn default() -> Self {
        Self {
            drift_ppm_max: 200,
            resolution_ns: 1000,
            window_ns: 300_000_000_000,
            exchanges_max: 64,
            delay_ns_max: 10_000_000_000,
        }
    }
}

/// The times of one exchange, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// When the agent sent, on its clock.
    pub sent_ns: u64,
    /// When the collector received, on its clock.
    pub received_ns: u64,
    /// When the collector answered, on its clock.
    pub answered_ns: u64,
    /// When the answer reached the agent, on the agent's clock.
    pub returned_ns: u64,
}

/// What an exchange shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockEvent {
    /// It agrees with those before.
    Agrees,
    /// It is older than what is used.
    Old,
    /// Its times are impossible: the answer was received before it was sent.
    Impossible,
    /// It does not agree with those before. The offset is unknown until another one agrees with either.
    Doubtful,
    /// The clock was set: two exchanges, or an exchange and a datagram, agree with each other, and not with those
    /// before.
    Stepped {
        /// By how much, in nanoseconds, about.
        by_ns: i64,
    },
}

/// The offset of a host's clock at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offset {
    /// The agent's clock less the collector's, in nanoseconds.
    pub offset_ns: i64,
    /// The true offset differs from it by at most this, in nanoseconds.
    pub bound_ns: u64,
}

/// A moment on the collector's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The time, in nanoseconds.
    pub time_ns: u64,
    /// The true time differs from it by at most this, in nanoseconds.
    pub bound_ns: u64,
}

/// Where the offset was, at one time of the collector.
#[derive(Debug, Clone, Copy)]
struct Interval {
    at_ns: i64,
    low_ns: i64,
    high_ns: i64,
}

impl Interval {
    fn width_ns(self) -> i64 {
        self.high_ns - self.low_ns
    }

    fn middle_ns(self) -> i64 {
        self.low_ns + self.width_ns() / 2
    }
}

/// An observation that only another offset than that of the exchanges would explain.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    interval: Interval,
    /// Whether it is an exchange, and not a datagram that seems to be sent in the future or very long ago.
    exchanged: bool,
}

/// The clock of one host.
#[derive(Debug)]
pub struct HostClock {
    options: ClockOptions,
    /// In the order of time.
    exchanges: VecDeque<Interval>,
    /// Contradicts the exchanges. While it is set, the offset is doubtful.
    candidate: Option<Candidate>,
    line: Option<Line>,
    /// When the clock was set.
    steps: VecDeque<i64>,
    /// Exchanges before this time are not used.
    not_before_ns: i64,
    impossible: u64,
    inconsistent: u64,
    stepped: u64,
}

impl HostClock {
    /// A clock before the first exchange.
    pub fn new(options: ClockOptions) -> Self {
        Self {
            options,
            exchanges: VecDeque::new(),
            candidate: None,
            line: None,
            steps: VecDeque::new(),
            not_before_ns: i64::MIN,
            impossible: 0,
            inconsistent: 0,
            stepped: 0,
        }
    }

    /// Adds an exchange.
    pub fn add(&mut self, exchange: &Exchange) -> ClockEvent {
        let Some(interval) = self.interval(exchange) else {
            self.impossible += 1;
            return ClockEvent::Impossible;
        };
        let newest = self.exchanges.back().map_or(interval.at_ns, |newest| newest.at_ns);
        if interval.at_ns < self.not_before_ns || newest - interval.at_ns > ns(self.options.window_ns) {
            return ClockEvent::Old;
        }
        let Some((low_ns, high_ns)) = self.limits(interval.at_ns) else {
            self.keep(interval);
            return ClockEvent::Agrees;
        };
        let agrees = interval.low_ns <= high_ns && low_ns <= interval.high_ns;
        let explains = self.candidate.is_some_and(|candidate| {
            let wider_ns = self.drift_ns(candidate.interval.at_ns.saturating_sub(interval.at_ns));
            interval.low_ns <= candidate.interval.high_ns.saturating_add(wider_ns)
                && candidate.interval.low_ns.saturating_sub(wider_ns) <= interval.high_ns
        });
        match self.candidate {
            // The round trip is so long that both are possible: perhaps the clock was set on the way.
            Some(_) if agrees && explains => return ClockEvent::Doubtful,
            Some(candidate) if explains => {
                return self.step(candidate, interval, i64::midpoint(low_ns, high_ns));
            }
            // Only an exchange after the doubt began says more. The one that a datagram reports took place before the
            // datagram was sent.
            Some(candidate) if !agrees || interval.at_ns > candidate.interval.at_ns => {
                self.inconsistent += u64::from(candidate.exchanged);
                self.candidate = None;
            }
            _ => {}
        }
        if agrees {
            self.keep(interval);
            return ClockEvent::Agrees;
        }
        self.candidate = Some(Candidate { interval, exchanged: true });
        ClockEvent::Doubtful
    }

    /// Checks the clock against a datagram that is not part of an exchange: it can't be received before it was sent.
    /// True if the clock has become doubtful.
    pub fn observe(&mut self, sent_ns: u64, received_ns: u64) -> bool {
        if sent_ns > TIME_NS_MAX || received_ns > TIME_NS_MAX {
            return false;
        }
        let Some((low_ns, high_ns)) = self.limits(ns(received_ns)) else { return false };
        let at_ns = ns(received_ns);
        let least_ns = ns(sent_ns) - at_ns;
        let early = least_ns > high_ns.saturating_add(ns(self.options.resolution_ns));
        let late = low_ns.saturating_sub(least_ns) > ns(self.options.delay_ns_max);
        if !early && !late || self.candidate.is_some_and(|candidate| candidate.exchanged) {
            return false;
        }
        // The offset that it would have with an ordinary delay.
        let most_ns = least_ns.saturating_add(ns(self.options.delay_ns_max));
        let interval = Interval { at_ns, low_ns: least_ns, high_ns: most_ns };
        self.candidate.replace(Candidate { interval, exchanged: false }).is_none()
    }

    /// The offset at a time of the collector; `None` if it is not known, or doubtful.
    pub fn offset(&self, at_ns: u64) -> Option<Offset> {
        self.offset_at(i64::try_from(at_ns).ok()?)
    }

    /// The time on the collector's clock of a time on the agent's; `None` if it is not known.
    pub fn to_collector(&self, agent_ns: u64) -> Option<Moment> {
        let agent_ns = i64::try_from(agent_ns).ok()?;
        let mut time_ns = self.exchanges.back()?.at_ns;
        let mut bound_ns = 0;
        // The offset depends on the time that is asked for, but little: each round is thousands of times closer.
        for _ in 0..3 {
            let offset = self.offset_at(time_ns)?;
            time_ns = agent_ns.checked_sub(offset.offset_ns)?;
            bound_ns = offset.bound_ns;
        }
        Some(Moment { time_ns: u64::try_from(time_ns).ok()?, bound_ns })
    }

    /// How much faster the agent's clock is than the collector's, in millionths; `None` if it is not known yet.
    pub fn drift_ppm(&self) -> Option<f64> {
        self.line.map(Line::drift_ppm)
    }

    /// The least round trip of the exchanges that are kept, in nanoseconds.
    pub fn round_trip_ns(&self) -> Option<u64> {
        let width =
            |interval: &Interval| interval.width_ns().saturating_sub(2 * ns(self.options.resolution_ns));
        self.exchanges.iter().map(width).min().and_then(|width| u64::try_from(width).ok())
    }

    /// How often the clock was set.
    pub fn steps(&self) -> u64 {
        self.stepped
    }

    /// Exchanges with impossible times, or that did not agree with those before and after.
    pub fn lies(&self) -> u64 {
        self.impossible.saturating_add(self.inconsistent)
    }

    /// Whether the last exchanges or datagrams contradict those before.
    pub fn is_doubtful(&self) -> bool {
        self.candidate.is_some()
    }

    /// Whether the clock was set so often that it is not used.
    pub fn is_unreliable(&self) -> bool {
        self.steps.len() >= STEPS_MAX
    }

    fn interval(&self, exchange: &Exchange) -> Option<Interval> {
        let Exchange { sent_ns, received_ns, answered_ns, returned_ns } = *exchange;
        if [sent_ns, received_ns, answered_ns, returned_ns].iter().any(|time| *time > TIME_NS_MAX) {
            return None;
        }
        let resolution_ns = ns(self.options.resolution_ns);
        let held_ns = ns(answered_ns) - ns(received_ns);
        if held_ns < 0 || returned_ns < sent_ns {
            return None;
        }
        let interval = Interval {
            at_ns: ns(answered_ns),
            low_ns: ns(sent_ns) - ns(received_ns) - resolution_ns - self.drift_ns(held_ns),
            high_ns: ns(returned_ns) - ns(answered_ns) + resolution_ns,
        };
        (interval.width_ns() >= 0).then_some(interval)
    }

    fn drift_ns(&self, passed_ns: i64) -> i64 {
        let drift =
            (i128::from(passed_ns).abs() * i128::from(self.options.drift_ppm_max) + 999_999) / 1_000_000;
        i64::try_from(drift).unwrap_or(i64::MAX)
    }

    /// The interval in which the offset is at a time, by all exchanges.
    fn limits(&self, at_ns: i64) -> Option<(i64, i64)> {
        let limits = self.exchanges.iter().map(|interval| {
            let wider_ns = self.drift_ns(at_ns.saturating_sub(interval.at_ns));
            (interval.low_ns.saturating_sub(wider_ns), interval.high_ns.saturating_add(wider_ns))
        });
        limits.reduce(|(low, high), (other_low, other_high)| (low.max(other_low), high.min(other_high)))
    }

    fn offset_at(&self, at_ns: i64) -> Option<Offset> {
        if self.candidate.is_some() || self.is_unreliable() {
            return None;
        }
        let (low_ns, high_ns) = self.limits(at_ns)?;
        let middle_ns = i64::midpoint(low_ns, high_ns);
        // The limits of exchanges that agree have something in common at each time.
        let (low_ns, high_ns) = (low_ns.min(middle_ns), high_ns.max(middle_ns));
        let offset_ns = self.line.map_or(middle_ns, |line| line.at(at_ns)).clamp(low_ns, high_ns);
        let bound_ns = high_ns.abs_diff(offset_ns).max(offset_ns.abs_diff(low_ns));
        Some(Offset { offset_ns, bound_ns })
    }

    fn step(&mut self, candidate: Candidate, interval: Interval, before_ns: i64) -> ClockEvent {
        self.exchanges.clear();
        (self.candidate, self.line) = (None, None);
        self.not_before_ns = candidate.interval.at_ns.min(interval.at_ns);
        self.stepped += 1;
        self.steps.push_back(interval.at_ns);
        if candidate.exchanged {
            self.keep(candidate.interval);
        }
        self.keep(interval);
        ClockEvent::Stepped { by_ns: interval.middle_ns().saturating_sub(before_ns) }
    }

    fn keep(&mut self, interval: Interval) {
        let index = self.exchanges.partition_point(|other| other.at_ns <= interval.at_ns);
        self.exchanges.insert(index, interval);
        let newest_ns = self.exchanges.back().map_or(interval.at_ns, |newest| newest.at_ns);
        self.exchanges.retain(|other| newest_ns - other.at_ns <= ns(self.options.window_ns));
        while self.steps.front().is_some_and(|step| newest_ns - step > STEPS_WINDOW_NS)
            || self.steps.len() > STEPS_MAX
        {
            self.steps.pop_front();
        }
        if self.exchanges.len() > self.options.exchanges_max.max(NEWEST_KEPT + 1) {
            let old = self.exchanges.len().saturating_sub(NEWEST_KEPT);
            let widest =
                self.exchanges.iter().take(old).enumerate().max_by_key(|(_, other)| other.width_ns());
            if let Some((index, _)) = widest {
                self.exchanges.remove(index);
            }
        }
        self.line = Line::fit(&self.exchanges, self.options.drift_ppm_max);
    }
}

fn ns(time_ns: u64) -> i64 {
    i64::try_from(time_ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
