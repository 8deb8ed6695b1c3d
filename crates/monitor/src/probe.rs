//! All readers of a Linux host together.

use std::collections::BTreeMap;

use lightship_usage::{Entry, Figures, HostSources, Subject};

use crate::counters::{
    Disks, Finder, Host, Interfaces, Limits, Process, ProcessContext, Roots, Tallies, TextBuffer, hidden,
};
use crate::datagram::ProcessName;
use crate::facts::HostFacts;
use crate::options::AgentOptions;
use crate::perf::Perf;
use crate::sockets::{self, Owner, Sockets};
use crate::time::monotonic_ns;

/// The longest time between two searches for new processes; if samples are more frequent, each one searches.
const FIND_INTERVAL_NS: u64 = 1_000_000_000;
/// A search is not repeated before this many times its own duration: it takes long where there are many processes.
const FIND_PAUSE: u64 = 50;
/// The time between two readings of the host's limits.
const LIMITS_INTERVAL_NS: u64 = 60_000_000_000;
/// Files of each process that stay open.
const FILES_PER_PROCESS: usize = 4;

/// Readers of the host, its disks and interfaces, and the counted processes.
pub(crate) struct Probe {
    options: AgentOptions,
    roots: Roots,
    buffer: TextBuffer,
    host: Host,
    disks: Disks,
    interfaces: Interfaces,
    context: ProcessContext,
    finder: Finder,
    processes: BTreeMap<u32, Process>,
    /// Processes whose files may stay open.
    kept_open_max: usize,
    sockets: Sockets,
    perf: Perf,
    found_ns: Option<u64>,
    /// How long the last search took.
    find_took_ns: u64,
    read_ns: Option<u64>,
    sockets_ns: Option<u64>,
    limits_ns: Option<u64>,
    facts: HostFacts,
}

impl Probe {
    pub(crate) fn new(options: &AgentOptions, sources: &mut HostSources) -> Self {
        let roots = Roots::default();
        // Of the files that this program may open, processes get a quarter, and their hardware counters an eighth.
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let kept_open_max = files / 4 / FILES_PER_PROCESS;
        Self {
            options: options.clone(),
            buffer: TextBuffer::default(),
            host: Host::new(&roots),
            disks: Disks::new(&roots, sources),
            interfaces: Interfaces::new(&roots),
            context: ProcessContext::new(&roots),
            finder: Finder::new(options.watch.clone(), options.processes_max),
            processes: BTreeMap::new(),
            kept_open_max,
            sockets: Sockets::default(),
            perf: Perf::new(files / 8),
            found_ns: None,
            find_took_ns: 0,
            read_ns: None,
            sockets_ns: None,
            limits_ns: None,
            facts: HostFacts { hidden: hidden(&roots), ..HostFacts::default() },
            roots,
        }
    }

    /// Reads everything.
    pub(crate) fn read(&mut self, now_ns: u64, sources: &mut HostSources) -> Vec<Entry> {
        if due(&mut self.limits_ns, now_ns, LIMITS_INTERVAL_NS) {
            Limits::read(&self.roots, &mut self.buffer, &mut self.facts);
        }
        // What a process has used before it is found can't be placed in time.
        let between_ns = self.read_ns.map_or(0, |before_ns| now_ns.saturating_sub(before_ns));
        let pause_ns = between_ns.max(self.find_took_ns.saturating_mul(FIND_PAUSE));
        if due(&mut self.found_ns, now_ns, pause_ns.min(FIND_INTERVAL_NS)) {
            let began_ns = monotonic_ns();
            self.find();
            self.find_took_ns = monotonic_ns().saturating_sub(began_ns);
        }
        self.read_ns = Some(now_ns);
        let mut host = Figures::default();
        let mut devices = Vec::new();
        self.host.read(&mut self.buffer, &mut host, sources);
        self.disks.read(&mut self.buffer, &mut host, &mut devices, sources);
        self.interfaces.read(&mut self.buffer, &mut host, &mut devices, sources);
        self.read_processes(sources);
        let mut peers = Vec::new();
        self.read_sockets(now_ns, &mut host, &mut peers, sources);

        let mut entries = Vec::with_capacity(1 + devices.len() + self.processes.len() + peers.len());
        entries.push(Entry { subject: Subject::Host, figures: host });
        entries.extend(devices);
        entries.extend(self.processes.values().map(|process| Entry {
            subject: Subject::Process { pid: process.pid, began_ns: process.began_ns },
            figures: process.figures.clone(),
        }));
        entries.extend(peers);
        entries
    }

    /// Facts about the host.
    pub(crate) fn facts(&self) -> &HostFacts {
        &self.facts
    }

    /// The names of the counted processes.
    pub(crate) fn names(&self) -> Vec<ProcessName> {
        let name = |process: &Process| ProcessName {
            pid: process.pid,
            began_ns: process.began_ns,
            parent: process.parent,
            name: process.name.clone(),
        };
        self.processes.values().map(name).collect()
    }

    fn find(&mut self) {
        let processes = &mut self.processes;
        let found = self.finder.find(&self.roots, &mut self.buffer, |pid| processes.contains_key(&pid));
        processes.retain(|pid, _| found.pids.binary_search(pid).is_ok());
        for pid in found.pids {
            let keep = processes.len() < self.kept_open_max;
            if !processes.contains_key(&pid)
                && let Ok(process) = Process::open(&self.context, pid, keep, &mut self.buffer)
            {
                processes.insert(pid, process);
            }
        }
        self.facts.processes = u32::try_from(processes.len()).unwrap_or(u32::MAX);
        self.facts.processes_left_out = found.left_out;
        self.perf.retain(|pid| processes.contains_key(&pid));
    }

    fn read_processes(&mut self, sources: &mut HostSources) {
        let mut tallies = Tallies::default();
        let mut ended = Vec::new();
        for process in self.processes.values_mut() {
            if process.read(&self.context, &mut self.buffer).is_err() {
                ended.push((process.pid, process.parent, process.disk_bytes()));
                continue;
            }
            self.perf.read(&self.roots.proc, process.pid, process.began_ns, &mut process.figures);
            tallies.add(process);
        }
        for (pid, parent, disk_bytes) in &ended {
            self.processes.remove(pid);
            if let Some(parent) = self.processes.get_mut(parent) {
                parent.child_ended(*disk_bytes);
            }
        }
        if !self.processes.is_empty() {
            tallies.report(&self.context, sources);
        }
        self.perf.report(sources);
    }

    fn read_sockets(
        &mut self,
        now_ns: u64,
        host: &mut Figures,
        peers: &mut Vec<Entry>,
        sources: &mut HostSources,
    ) {
        if !due(&mut self.sockets_ns, now_ns, self.options.sockets_interval_ns) {
            self.processes.values_mut().for_each(|process| sockets::clear(&mut process.figures));
            return;
        }
        let owner = |process: &Process| Owner { pid: process.pid, began_ns: process.began_ns };
        let owners: Vec<Owner> = self.processes.values().map(owner).collect();
        let read = self.sockets.read(&self.roots.proc, &owners, now_ns, sources);
        for process in self.processes.values_mut() {
            match read {
                true => self.sockets.process(owner(process), &mut process.figures),
                false => sockets::clear(&mut process.figures),
            }
        }
        if read {
            self.sockets.host(host);
            self.facts.entries_left_out += self.sockets.peers(self.options.peers_max, peers);
        }
        self.facts.sockets_left_out = self.sockets.left_out;
    }
}

/// Whether an interval has passed; if so, a new one begins. An eighth of it may be missing, because samples are not
/// taken at exact times.
fn due(last_ns: &mut Option<u64>, now_ns: u64, interval_ns: u64) -> bool {
    let due = last_ns.is_none_or(|last_ns| now_ns.saturating_sub(last_ns) >= interval_ns - interval_ns / 8);
    if due {
        *last_ns = Some(now_ns);
    }
    due
}
