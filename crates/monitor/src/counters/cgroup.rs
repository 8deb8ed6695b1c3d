//! The limits of the agent's control group, and what a container hides from it.

use super::file::{Roots, TextBuffer};
use super::host::{memory, processors};
use crate::facts::HostFacts;

/// The inode of the first namespace of processes (`PROC_PID_INIT_INO` of the kernel).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// A limit of version 1 at or above this means that there is no limit: the kernel then reports the most pages possible.
const MEMORY_LIMIT_MAX: u64 = 1 << 60;
/// The most folders above the agent's group that are read.
const DEPTH_MAX: usize = 32;

/// Limits of a host, and of the agent on it.
#[derive(Debug, Default)]
pub(crate) struct Limits;

impl Limits {
    /// Reads the limits into `facts`. A value that can't be read stays as it was.
    pub(crate) fn read(roots: &Roots, buffer: &mut TextBuffer, facts: &mut HostFacts) {
        if let Ok(text) = buffer.read_path(&roots.proc.join("stat")) {
            facts.processors = processors(text);
        }
        if let Ok(text) = buffer.read_path(&roots.proc.join("meminfo")) {
            facts.memory_bytes = memory(text).map(|(total, _)| total);
        }
        if let Ok(text) = buffer.read_path(&roots.proc.join("sys/kernel/osrelease")) {
            facts.kernel = text.trim().chars().take(64).collect();
        }
        let Ok(groups) = buffer.read_path(&roots.proc.join("self/cgroup")).map(str::to_owned) else { return };
        let mut limits = (None, None);
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let folder = |name: &str| roots.sys.join("fs/cgroup").join(name);
            let controllers: Vec<&str> = controllers.split(',').collect();
            if controllers == [""] {
                for root in [folder(""), folder("unified")] {
                    walk(&root, path, |group| {
                        lower(&mut limits.0, buffer.read_path(&group.join("cpu.max")).ok().and_then(cpu_max));
                        lower(
                            &mut limits.1,
                            buffer.read_path(&group.join("memory.max")).ok().and_then(number),
                        );
                    });
                }
            }
            if controllers.contains(&"cpu") {
                walk(&folder("cpu"), path, |group| {
                    let mut read = |name| buffer.read_path(&group.join(name)).ok().and_then(number);
                    let quota = read("cpu.cfs_quota_us").zip(read("cpu.cfs_period_us"));
                    lower(&mut limits.0, quota.and_then(|(quota, period)| milli(quota, period)));
                });
            }
            if controllers.contains(&"memory") {
                walk(&folder("memory"), path, |group| {
                    let limit = buffer.read_path(&group.join("memory.limit_in_bytes")).ok().and_then(number);
                    lower(&mut limits.1, limit.filter(|limit| *limit < MEMORY_LIMIT_MAX));
                });
            }
        }
        (facts.processor_limit_milli, facts.memory_limit_bytes) = limits;
    }
}

/// Calls `look` with a group's folder and those above it, all of which limit it.
fn walk(root: &std::path::Path, path: &str, mut look: impl FnMut(&std::path::Path)) {
    let relative = path.trim_start_matches('/');
    if relative.split('/').any(|part| part == "..") {
        // The group is outside what this container can see, so only the root can be read.
        return look(root);
    }
    let group = root.join(relative);
    group.ancestors().take_while(|folder| folder.starts_with(root)).take(DEPTH_MAX).for_each(&mut look);
}

fn lower(limit: &mut Option<u64>, other: Option<u64>) {
    *limit = match (*limit, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn cpu_max(text: &str) -> Option<u64> {
    let (quota, period) = text.trim().split_once(' ')?;
    milli(number(quota)?, number(period)?)
}

fn milli(quota_us: u64, period_us: u64) -> Option<u64> {
    quota_us.checked_mul(1000)?.checked_div(period_us)
}

/// What the agent can't see, in words; empty if it sees all processes.
pub(crate) fn hidden(roots: &Roots) -> String {
    let namespace = std::fs::read_link(roots.proc.join("self/ns/pid"));
    if namespace.is_ok_and(|namespace| namespace.as_os_str() != FIRST_PID_NAMESPACE) {
        "in a container: processes outside of it are not visible".to_owned()
    } else if !roots.proc.join("1/stat").exists() {
        "/proc hides the processes of other users".to_owned()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn limits(files: &[(&str, &str)]) -> (Option<u64>, Option<u64>) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let roots = Roots { proc: folder.path().join("proc"), sys: folder.path().join("sys") };
        let mut facts = HostFacts::default();
        Limits::read(&roots, &mut TextBuffer::default(), &mut facts);
        (facts.processor_limit_milli, facts.memory_limit_bytes)
    }

    #[test]
    fn the_lowest_limit_of_a_group_and_those_above_counts() {
        let found = limits(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "2000\n"),
            ("sys/fs/cgroup/a/memory.max", "1000\n"),
        ]);
        assert_eq!(found, (Some(1500), Some(1000)));
    }

    #[test]
    fn version_1_and_no_limits_are_understood() {
        let found = limits(&[
            ("proc/self/cgroup", "4:memory:/x\n1:cpu,cpuacct:/x\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(found, (Some(500), None));
        assert_eq!(
            limits(&[("proc/self/cgroup", "0::/../x\n"), ("sys/fs/cgroup/memory.max", "max")]),
            (None, None)
        );
        assert_eq!(limits(&[]), (None, None));
    }

    #[test]
    fn this_host_has_processors() {
        let mut facts = HostFacts::default();
        Limits::read(&Roots::default(), &mut TextBuffer::default(), &mut facts);
        assert!(facts.processors > 0 && facts.memory_bytes.is_some() && !facts.kernel.is_empty());
    }
}
