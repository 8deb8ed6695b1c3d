//! The clock of samples.

/// Nanoseconds on this host's monotonic clock, which no change of the time of day moves. It is the clock of a
/// [`Sample`](lightship_usage::Sample).
#[cfg(target_os = "linux")]
pub fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Nanoseconds since this was first called.
#[cfg(not(target_os = "linux"))]
pub fn monotonic_ns() -> u64 {
    static BEGAN: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    u64::try_from(BEGAN.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds since 1970, by the time of day.
pub fn unix_ns() -> u64 {
    let passed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
}
