//! The limit of open files and sockets of the process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files and sockets of this process to its hard limit, and returns it.
///
/// Systems start processes with a low limit (often 1024), because programs that use `select` can't handle
/// more. Programs that need more raise it themselves.
///
/// # Errors
/// If the system refuses.
pub fn raise_descriptors() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_the_hard_limit() {
        let raised = raise_descriptors().unwrap();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let values: Vec<&str> = line.split_whitespace().take(2).collect();
        assert_eq!(values, vec![raised.to_string(); 2]);
        assert_eq!(raise_descriptors().unwrap(), raised);
    }
}
