//! Which process has a socket: `/proc/PID/fd` says it, the kernel's list of sockets does not.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Files that are read in a second. Each takes about 2 us.
const FILES_PER_SECOND: u64 = 2000;
/// The most files that are read at once, after a time in which few were.
const FILES_BURST: u64 = 8000;
/// The time for a process besides its files, in units of files.
const FILES_PER_PROCESS: u64 = 4;
/// The most sockets whose files are remembered.
const INODES_MAX: usize = 100_000;

/// Sockets' files of the counted processes.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The process that has a file, by the file's inode.
    processes: HashMap<u32, Owner>,
    /// Files that may still be looked at, and when that was computed.
    allowance: u64,
    at_ns: Option<u64>,
    /// The number of the process to continue with.
    next: u32,
    /// Processes whose files were looked at, when they began, and why they could not be read.
    looked: HashMap<u32, (u64, Option<&'static str>)>,
    /// The agent's own network namespace, if the kernel tells.
    namespace: Option<Option<PathBuf>>,
}

/// A process that has a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    pub(crate) began_ns: u64,
}

impl Owners {
    pub(super) fn get(&self, inode: u32) -> Option<Owner> {
        self.processes.get(&inode).copied()
    }

    /// Whether the files of a process could be read; `None` if that was not tried yet.
    pub(super) fn looked(&self, process: Owner) -> Option<bool> {
        self.looked
            .get(&process.pid)
            .filter(|(began_ns, _)| *began_ns == process.began_ns)
            .map(|(_, failed)| failed.is_none())
    }

    /// Whether the files of some process could be read, and why those of another could not.
    pub(super) fn outcome(&self) -> (bool, Option<&'static str>) {
        let mut outcomes = self.looked.values().map(|(_, failed)| *failed);
        (self.looked.values().any(|(_, failed)| failed.is_none()), outcomes.find_map(|failed| failed))
    }

    /// Looks at the files of processes, in turn, as far as the allowance goes. Returns whether all were looked at.
    ///
    /// Of several processes with the same socket, the one that began last is its owner: a server that starts a
    /// process for each connection hands it down.
    pub(super) fn look(&mut self, proc: &Path, processes: &[Owner], now_ns: u64) -> bool {
        let passed_ns = self.at_ns.map_or(u64::MAX, |at_ns| now_ns.saturating_sub(at_ns));
        let more = (u128::from(passed_ns) * u128::from(FILES_PER_SECOND) / 1_000_000_000) as u64;
        self.allowance = self.allowance.saturating_add(more).min(FILES_BURST);
        self.at_ns = Some(now_ns);
        let start = processes.partition_point(|process| process.pid < self.next);
        let (before, after) = processes.split_at_checked(start).unwrap_or((processes, &[]));
        for process in after.iter().chain(before) {
            if self.allowance == 0 {
                self.next = process.pid;
                return false;
            }
            self.look_at(proc, *process);
        }
        self.next = 0;
        true
    }

    fn look_at(&mut self, proc: &Path, process: Owner) {
        self.allowance = self.allowance.saturating_sub(FILES_PER_PROCESS);
        // The list has the sockets of this network namespace only.
        let namespace = |process: &str| std::fs::read_link(proc.join(process).join("ns/net"));
        let own = self.namespace.get_or_insert_with(|| namespace("self").ok()).as_ref();
        let pid = process.pid.to_string();
        if own.is_some_and(|own| namespace(&pid).is_ok_and(|other| other != *own)) {
            self.looked
                .insert(process.pid, (process.began_ns, Some("they are in another network namespace")));
            return;
        }
        let folder = proc.join(pid).join("fd");
        let files = match std::fs::read_dir(&folder) {
            Ok(files) => files,
            Err(error) => {
                if error.kind() == std::io::ErrorKind::PermissionDenied {
                    let failed = Some("no permission to read /proc/PID/fd");
                    self.looked.insert(process.pid, (process.began_ns, failed));
                }
                return;
            }
        };
        for file in files.filter_map(Result::ok) {
            self.allowance = self.allowance.saturating_sub(1);
            let Some(inode) = std::fs::read_link(file.path()).ok().and_then(|link| inode(link.to_str()?))
            else {
                continue;
            };
            if self.processes.len() >= INODES_MAX && !self.processes.contains_key(&inode) {
                return;
            }
            let owner = self.processes.entry(inode).or_insert(process);
            if owner.began_ns <= process.began_ns {
                *owner = process;
            }
        }
        self.looked.insert(process.pid, (process.began_ns, None));
    }

    /// Forgets files that no socket has any more, and processes that have ended.
    pub(super) fn retain(&mut self, inodes: &HashSet<u32>, runs: impl Fn(Owner) -> bool) {
        self.processes.retain(|inode, owner| inodes.contains(inode) && runs(*owner));
        self.looked.retain(|pid, (began_ns, _)| runs(Owner { pid: *pid, began_ns: *began_ns }));
    }
}

fn inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(proc: &Path, pid: u32, began_ns: u64, inodes: std::ops::Range<u32>) -> Owner {
        let folder = proc.join(pid.to_string()).join("fd");
        std::fs::create_dir_all(&folder).unwrap();
        for inode in inodes {
            symlink(format!("socket:[{inode}]"), folder.join(inode.to_string())).unwrap();
        }
        Owner { pid, began_ns }
    }

    #[test]
    fn the_youngest_process_with_a_socket_owns_it() {
        let folder = tempfile::tempdir().unwrap();
        let processes = [
            process(folder.path(), 1, 30, 5..7),
            process(folder.path(), 2, 20, 5..6),
            process(folder.path(), 3, 40, 5..6),
        ];
        let mut owners = Owners::default();
        assert!(owners.look(folder.path(), &processes, 0));
        assert_eq!(owners.get(5).unwrap().pid, 3);
        assert_eq!(owners.get(6).unwrap().pid, 1);
        owners.retain(&[5, 6].into(), |owner| owner.pid != 3);
        assert_eq!(owners.looked(processes[0]), Some(true));
        assert_eq!(owners.looked(processes[2]), None);
        assert!(owners.look(folder.path(), &processes[..2], 0));
        assert_eq!(owners.get(5).unwrap().pid, 1);
        assert_eq!(inode("socket:[x]"), None);
        assert_eq!(inode("pipe:[5]"), None);
    }

    #[test]
    fn processes_of_another_network_namespace_are_not_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let processes = [1, 2].map(|pid| process(folder.path(), pid, 1, pid * 10..pid * 10 + 1));
        for (name, namespace) in [("self", "net:[1]"), ("1", "net:[1]"), ("2", "net:[2]")] {
            let links = folder.path().join(name).join("ns");
            std::fs::create_dir_all(&links).unwrap();
            symlink(namespace, links.join("net")).unwrap();
        }
        let mut owners = Owners::default();
        owners.look(folder.path(), &processes, 0);
        assert_eq!(processes.map(|process| owners.looked(process)), [Some(true), Some(false)]);
        assert!(owners.get(20).is_none());
        assert!(matches!(owners.outcome(), (true, Some(_))));
    }

    #[test]
    fn looks_are_limited_by_time_and_go_on_where_they_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let processes: Vec<_> =
            (1..=3).map(|pid| process(folder.path(), pid, 1, pid * 10..pid * 10 + 5)).collect();
        let mut owners = Owners { allowance: 0, at_ns: Some(0), ..Owners::default() };
        // Nine files in 4.5 ms.
        assert!(!owners.look(folder.path(), &processes, 4_500_000));
        assert!(owners.get(10).is_some() && owners.get(20).is_none());
        assert!(!owners.look(folder.path(), &processes, 9_000_000));
        assert!(owners.get(20).is_some() && owners.get(30).is_none());
        assert!(owners.look(folder.path(), &processes, 20_000_000));
        assert!(owners.get(30).is_some());
    }
}
