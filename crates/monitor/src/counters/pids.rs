//! The numbers of all processes. Listing `/proc` takes about 5 us for each process; reading its clock takes a tenth of
//! that.

use std::path::Path;

use super::clocks::process_cpu_ns;
use super::file::TextBuffer;

/// The most processes that are listed.
const LISTED_MAX: usize = 100_000;
/// Rounds after which `/proc` is listed again in any case.
const ROUNDS_MAX: u32 = 30;
/// The most new numbers that are tried one by one; if the kernel has assigned more since the last round, `/proc` is
/// listed.
const TRIED_MAX: u32 = 5000;

/// The running processes.
#[derive(Debug, Default)]
pub(super) struct Pids {
    pids: Vec<u32>,
    /// The last number that the kernel has assigned to a process or thread.
    newest: Option<u32>,
    rounds: u32,
}

impl Pids {
    /// Those of the last list.
    pub(super) fn all(&self) -> &[u32] {
        &self.pids
    }

    /// All processes, in the order of their numbers.
    pub(super) fn list(&mut self, proc: &Path, buffer: &mut TextBuffer) -> &[u32] {
        // It is read before the list, so that no process is between them.
        let newest = buffer.read_path(&proc.join("loadavg")).ok().and_then(newest);
        self.rounds += 1;
        match (self.newest, newest) {
            (Some(before), Some(newest))
                if self.rounds < ROUNDS_MAX
                    && newest.checked_sub(before).is_some_and(|given| given <= TRIED_MAX) =>
            {
                self.pids.extend(before.saturating_add(1)..=newest);
                self.pids.sort_unstable();
                self.pids.dedup();
                // The number of a thread that is not a process has no such clock.
                self.pids.retain(|pid| process_cpu_ns(*pid).is_some());
            }
            _ => {
                self.rounds = 0;
                self.pids.clear();
                if let Ok(folder) = std::fs::read_dir(proc) {
                    let pids =
                        folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
                    self.pids.extend(pids.take(LISTED_MAX));
                }
                self.pids.sort_unstable();
            }
        }
        self.newest = newest;
        &self.pids
    }
}

/// The last word of `/proc/loadavg`.
fn newest(text: &str) -> Option<u32> {
    text.split_ascii_whitespace().nth(4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn processes_that_begin_and_end_are_noticed_without_another_list() {
        let (mut pids, mut buffer) = (Pids::default(), TextBuffer::default());
        assert!(pids.list("/proc".as_ref(), &mut buffer).contains(&std::process::id()));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(pids.list("/proc".as_ref(), &mut buffer).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        let listed = pids.list("/proc".as_ref(), &mut buffer);
        assert!(!listed.contains(&child.id()) && listed.is_sorted());
        assert_eq!(pids.rounds, 2);
        assert_eq!(newest("0.1 0.2 0.3 1/2\n"), None);
    }
}
