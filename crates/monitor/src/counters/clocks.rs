//! Processor clocks of processes, and the units of the kernel's times.

/// Nanoseconds in one of the ticks in which the kernel reports times (`USER_HZ`), whatever its own tick is.
pub(crate) fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Nanoseconds since the system was started, by the clock that the beginnings of processes are counted with.
pub(crate) fn boot_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// The processor time that all threads of a process have used, including threads that have ended, in nanoseconds. The
/// clock of any process can be read without special permission. `None` if no process has this number.
pub(crate) fn process_cpu_ns(pid: u32) -> Option<u64> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    // The number of the clock, as `clock_getcpuclockid` of the C libraries computes it: the inverted number of the
    // process, and CPUCLOCK_SCHED, which is 2. C libraries rely on it, so the kernel keeps it stable.
    let clock: libc::clockid_t = ((!pid) << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes. A clock that does not exist is an error, not undefined behaviour.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if result != 0 {
        return None;
    }
    let seconds = u64::try_from(time.tv_sec).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(time.tv_nsec).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_this_process_advances_while_it_computes() {
        let pid = std::process::id();
        let before = process_cpu_ns(pid).unwrap();
        let mut sum = 0_u64;
        while process_cpu_ns(pid).unwrap() < before + 1_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert_eq!(process_cpu_ns(u32::MAX), None);
        assert_eq!(process_cpu_ns(4_194_305), None, "above the largest number of a process");
    }
}
