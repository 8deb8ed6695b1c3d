//! Finds the processes to count.

use std::collections::{HashMap, HashSet};

use super::clocks::process_cpu_ns;
use super::file::{Roots, TextBuffer};
use super::pids::Pids;
use super::stat_line::StatLine;
use crate::options::Watch;

/// After this many rounds, a known process is read again: another one may have its number.
const ROUNDS_MAX: u64 = 30;
/// The most processes that are read in a round, except in the first one. Each takes about 13 us.
const LOOKS_MAX: usize = 300;
/// The most bytes of a process's name that the kernel stores.
const NAME_BYTES_MAX: usize = 15;

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The processes to count, in the order of their numbers.
    pub(crate) pids: Vec<u32>,
    /// How many more there were.
    pub(crate) left_out: u32,
}

/// What is known about a process, whether it is counted or not.
#[derive(Debug, Default)]
struct Known {
    name: String,
    parent: u32,
    began_ticks: u64,
    first_round: u64,
    round: u64,
    cpu_ns: u64,
}

impl Known {
    /// The round in which a process was last read, or 0, if it should be read again; otherwise `None`. A process that
    /// has just begun may soon run another program, so that the time between two readings doubles each time.
    fn due(known: Option<&Self>, pid: u32, round: u64) -> Option<u64> {
        let Some(known) = known else { return Some(0) };
        let wait = (known.round - known.first_round).clamp(1, ROUNDS_MAX + u64::from(pid % 8));
        (round - known.round >= wait).then_some(known.round)
    }
}

/// Finds processes. After the first round, one over 5000 of them takes about 5 ms.
#[derive(Debug)]
pub(crate) struct Finder {
    watch: Watch,
    processes_max: usize,
    pids: Pids,
    known: HashMap<u32, Known>,
    /// Members of trees, with their beginnings.
    members: HashMap<u32, u64>,
    round: u64,
}

impl Finder {
    pub(crate) fn new(watch: Watch, processes_max: usize) -> Self {
        Self {
            watch,
            processes_max,
            pids: Pids::default(),
            known: HashMap::new(),
            members: HashMap::new(),
            round: 0,
        }
    }

    /// One round. Processes that are `counted` already are preferred if there are too many.
    pub(crate) fn find(
        &mut self,
        roots: &Roots,
        buffer: &mut TextBuffer,
        counted: impl Fn(u32) -> bool,
    ) -> Found {
        self.round += 1;
        let mut pids = match &self.watch {
            Watch::Nothing => return Found::default(),
            Watch::Processes(pids) => pids.iter().copied().collect::<HashSet<_>>().into_iter().collect(),
            Watch::All => self.pids.list(&roots.proc, buffer).to_vec(),
            Watch::Busiest => {
                self.pids.list(&roots.proc, buffer);
                return self.busiest(counted);
            }
            Watch::Names(names) => {
                let names: HashSet<String> = names.iter().map(|name| kept(name).to_owned()).collect();
                self.look(roots, buffer);
                self.known
                    .iter()
                    .filter(|(_, known)| names.contains(&known.name))
                    .map(|(pid, _)| *pid)
                    .collect()
            }
            Watch::Trees(roots_of_trees) => {
                let roots_of_trees = roots_of_trees.clone();
                self.look(roots, buffer);
                self.descend(&roots_of_trees)
            }
        };
        let left_out = pids.len().saturating_sub(self.processes_max) as u32;
        pids.sort_unstable_by_key(|pid| (!counted(*pid), *pid));
        pids.truncate(self.processes_max);
        pids.sort_unstable();
        Found { pids, left_out }
    }

    /// Reads the names and parents of new processes, and of some of the others.
    fn look(&mut self, roots: &Roots, buffer: &mut TextBuffer) {
        let round = self.round;
        let listed = self.pids.list(&roots.proc, buffer).to_vec();
        let known = &self.known;
        let mut due: Vec<(u64, u32)> =
            listed.iter().filter_map(|pid| Some((Known::due(known.get(pid), *pid, round)?, *pid))).collect();
        if round > 1 && due.len() > LOOKS_MAX {
            // Those that were read longest ago come first, and new ones before them.
            due.sort_unstable();
            due.truncate(LOOKS_MAX);
        }
        for (_, pid) in due {
            let path = roots.proc.join(pid.to_string()).join("stat");
            let Ok(file) = std::fs::File::open(path) else { continue };
            let Ok(text) = buffer.read_lossy(&file) else { continue };
            let Some(line) = StatLine::parse(&text) else { continue };
            let known = self.known.entry(pid).or_default();
            if known.began_ticks != line.began_ticks || known.first_round == 0 {
                *known = Known { began_ticks: line.began_ticks, first_round: round, ..Known::default() };
            }
            (known.parent, known.round) = (line.parent, round);
            if known.name != line.name {
                known.name = line.name.to_owned();
            }
        }
        let listed: HashSet<u32> = listed.into_iter().collect();
        self.known.retain(|pid, _| listed.contains(pid));
    }

    /// The members of the trees that have these roots.
    fn descend(&mut self, roots: &[u32]) -> Vec<u32> {
        let known = &self.known;
        self.members.retain(|pid, began| known.get(pid).is_some_and(|known| known.began_ticks == *began));
        for root in roots {
            if let Some(known) = known.get(root) {
                self.members.insert(*root, known.began_ticks);
            }
        }
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (pid, known) in known {
            children.entry(known.parent).or_default().push(*pid);
        }
        let mut open: Vec<u32> = self.members.keys().copied().collect();
        // Each process enters once, so that the loop ends whatever the parents are.
        while let Some(pid) = open.pop() {
            for child in children.remove(&pid).unwrap_or_default() {
                if let Some(known) = known.get(&child)
                    && self.members.insert(child, known.began_ticks).is_none()
                {
                    open.push(child);
                }
            }
        }
        self.members.keys().copied().collect()
    }

    /// The processes that used the most time since the last round. Only their clocks are read.
    fn busiest(&mut self, counted: impl Fn(u32) -> bool) -> Found {
        let round = self.round;
        let mut used: Vec<(u64, u32)> = Vec::with_capacity(self.pids.all().len());
        for pid in self.pids.all() {
            let Some(cpu_ns) = process_cpu_ns(*pid) else { continue };
            let known = self.known.entry(*pid).or_default();
            let before = if cpu_ns < known.cpu_ns { 0 } else { known.cpu_ns };
            used.push((cpu_ns - before, *pid));
            (known.cpu_ns, known.round) = (cpu_ns, round);
        }
        self.known.retain(|_, known| known.round == round);
        used.sort_unstable_by_key(|(used_ns, pid)| std::cmp::Reverse((*used_ns, counted(*pid), *pid)));
        let left_out = used.len().saturating_sub(self.processes_max) as u32;
        let mut pids: Vec<u32> = used.into_iter().take(self.processes_max).map(|(_, pid)| pid).collect();
        pids.sort_unstable();
        Found { pids, left_out }
    }
}

fn kept(name: &str) -> &str {
    let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name.get(..end).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Fixture(tempfile::TempDir);

    impl Fixture {
        fn process(&self, pid: u32, name: &str, parent: u32, began: u64) {
            let folder = self.0.path().join(pid.to_string());
            fs::create_dir_all(&folder).unwrap();
            let line =
                format!("{pid} ({name}) S {parent} 1 1 0 -1 4 5 0 0 0 1 1 0 0 20 0 1 0 {began} 9 24 1\n");
            fs::write(folder.join("stat"), line).unwrap();
        }

        fn end(&self, pid: u32) {
            fs::remove_dir_all(self.0.path().join(pid.to_string())).unwrap();
        }

        fn find(&self, finder: &mut Finder) -> Found {
            let roots = Roots { proc: self.0.path().into(), sys: self.0.path().into() };
            finder.find(&roots, &mut TextBuffer::default(), |_| false)
        }
    }

    fn fixture() -> Fixture {
        let fixture = Fixture(tempfile::tempdir().unwrap());
        fixture.process(1, "init", 0, 1);
        fixture.process(10, "postgres", 1, 10);
        fixture.process(11, "postgres", 10, 11);
        fixture.process(12, "worker", 11, 12);
        fixture.process(20, "other", 1, 20);
        fixture
    }

    #[test]
    fn processes_are_found_by_name_and_what_is_above_the_limit_is_counted() {
        let fixture = fixture();
        let mut finder = Finder::new(Watch::Names(vec!["postgres".into()]), 10);
        assert_eq!(fixture.find(&mut finder).pids, [10, 11]);
        // A child runs another program.
        fixture.process(20, "postgres", 1, 20);
        assert_eq!(fixture.find(&mut finder).pids, [10, 11, 20]);
        let mut finder = Finder::new(Watch::All, 2);
        assert_eq!(fixture.find(&mut finder), Found { pids: vec![1, 10], left_out: 3 });
        let mut finder = Finder::new(Watch::Processes(vec![12, 12, 99]), 5);
        assert_eq!(fixture.find(&mut finder).pids, [12, 99]);
    }

    #[test]
    fn a_tree_keeps_members_whose_parent_has_ended_but_not_reused_numbers() {
        let fixture = fixture();
        let mut finder = Finder::new(Watch::Trees(vec![10]), 10);
        assert_eq!(fixture.find(&mut finder).pids, [10, 11, 12]);
        fixture.end(11);
        fixture.process(12, "worker", 1, 12);
        fixture.process(13, "new", 12, 13);
        assert_eq!(fixture.find(&mut finder).pids, [10, 12, 13]);
        fixture.process(13, "reused", 1, 99);
        assert_eq!(fixture.find(&mut finder).pids, [10, 12]);
    }

    #[test]
    fn numbers_that_are_used_again_are_noticed_in_time() {
        let fixture = fixture();
        let mut finder = Finder::new(Watch::Names(vec!["late".into()]), 10);
        for _ in 0..5 {
            assert!(fixture.find(&mut finder).pids.is_empty());
        }
        fixture.process(20, "late", 1, 99);
        let found = (0..ROUNDS_MAX * 2).any(|_| fixture.find(&mut finder).pids == [20]);
        assert!(found);
    }

    #[test]
    fn names_are_compared_as_far_as_the_kernel_keeps_them() {
        assert_eq!(kept("datafusion-server"), "datafusion-serv");
        assert_eq!(kept("ééééééééé"), "ééééééé");
        assert_eq!(kept(""), "");
    }

    #[test]
    fn this_process_is_among_the_busiest() {
        let mut finder = Finder::new(Watch::Busiest, 5000);
        let found = finder.find(&Roots::default(), &mut TextBuffer::default(), |_| false);
        assert!(found.pids.contains(&std::process::id()));
        assert_eq!(found.left_out, 0);
    }
}
