//! How many files and sockets a process may have open.

use std::io;

/// Raises the limit of open files and sockets of this process as far as it may by itself, and answers how many
/// that are.
///
/// Systems begin processes with a low one (often 1024) for the sake of programs that wait with `select`, and
/// leave it to those that serve many to raise it.
///
/// # Errors
/// When the system refuses.
pub fn raise_descriptors() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the system writes one `rlimit`, to one that is ours.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the system reads one `rlimit`, of ours.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // Where the types are not the same width on all systems.
    #[allow(clippy::useless_conversion)]
    Ok(limit.rlim_cur.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_there_may_be() {
        let raised = raise_descriptors().unwrap();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let values: Vec<&str> = line.split_whitespace().take(2).collect();
        assert_eq!(values, vec![raised.to_string(); 2]);
        assert_eq!(raise_descriptors().unwrap(), raised);
    }
}
