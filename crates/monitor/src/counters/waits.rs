//! Waits that can't have been.
//!
//! When a wake-up comes before the thread has gone to sleep, some kernels end a wait for a disk that has not begun: they
//! add the time since they were started, which is thousands of seconds.

/// What is added to the most that threads can have waited, for clocks that are read one after the other.
const SLACK_NS: u64 = 1_000_000_000;

/// Sums up the growth of a counter of waits, and leaves out what no thread can have waited.
#[derive(Debug, Default)]
pub(super) struct Waits {
    read_ns: u64,
    counted_ns: u64,
}

impl Waits {
    /// The sum, after the counter of a process was read that has this many threads and began `age_ns` ago.
    pub(super) fn add(&mut self, read_ns: u64, threads: u64, age_ns: u64) -> u64 {
        let grown_ns = read_ns.saturating_sub(self.read_ns);
        self.read_ns = read_ns;
        if grown_ns <= threads.max(1).saturating_mul(age_ns.saturating_add(SLACK_NS)) {
            self.counted_ns = self.counted_ns.saturating_add(grown_ns);
        }
        self.counted_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_wait_since_the_start_of_the_kernel_is_left_out_and_later_ones_count() {
        let mut waits = Waits::default();
        assert_eq!(waits.add(S, 1, 2 * S), S);
        // Twice the 7689 s for which the system had run, as was seen.
        assert_eq!(waits.add(S + 15_378 * S, 1, 3 * S), S);
        assert_eq!(waits.add(S + 15_378 * S + S / 2, 1, 4 * S), 3 * S / 2);
        // Many threads wait at once.
        assert_eq!(waits.add(S + 15_378 * S + 100 * S, 50, 5 * S), 101 * S);
    }
}
