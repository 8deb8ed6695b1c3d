//! TCP sockets, summed by process and remote host.

mod diag;
mod owners;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;

use crate::counters::{LOOPBACK, NETWORK};
use lightship_usage::{Entry, Figure, Figures, HostSources, Subject, SubjectKind};

use diag::{Socket, SocketCounters, SocketList};
pub(crate) use owners::Owner;
use owners::Owners;

/// Sockets that are read. A list of them takes about 2 us each.
const SOCKETS_MAX: usize = 50_000;
/// The most remote hosts of a process that are remembered. Bytes of forgotten ones stay in the sums of the process.
const PEERS_MAX: usize = 4096;
/// After this many lists, the files of processes are read again even if no socket is new: a process may pass one on.
const LISTS_PER_LOOK: u32 = 10;

const TIMES: [Figure; 3] =
    [Figure::SocketBusyNs, Figure::SocketReceiverLimitedNs, Figure::SocketSendBufferLimitedNs];
const SEGMENTS: [Figure; 3] =
    [Figure::SocketRetransmits, Figure::SocketSegmentsReceived, Figure::SocketSegmentsSent];
const FROM: &str = "sock_diag TCP_INFO; what sockets do between the last sample and their end is lost";
const FROM_OWNED: &str = "sock_diag TCP_INFO by /proc/PID/fd, TCP only, without the end of a socket's life";
/// The kernel counts these times in its ticks, of which the longest is 10 ms.
const TIME_RESOLUTION_NS: u64 = 10_000_000;

/// The last counters of a socket, and its owner.
#[derive(Debug)]
struct Known {
    counters: SocketCounters,
    owner: Option<Owner>,
    list: u64,
}

/// Sums of a process, or of its sockets to one host: loopback, and the counters.
#[derive(Debug, Default, Clone)]
struct Sums {
    network: SocketCounters,
    loopback: SocketCounters,
    list: u64,
}

impl Sums {
    fn add(&mut self, more: SocketCounters, loopback: bool, list: u64) {
        let sums = if loopback { &mut self.loopback } else { &mut self.network };
        for (sum, more) in sums.iter_mut().zip(more) {
            *sum = sum.saturating_add(more);
        }
        self.list = list;
    }

    fn bytes(&self) -> u64 {
        let [network_received, network_sent, ..] = self.network;
        let [loopback_received, loopback_sent, ..] = self.loopback;
        [network_received, network_sent, loopback_received, loopback_sent]
            .iter()
            .fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// The times and segments of both, and the bytes of each.
    fn write(&self, figures: &mut Figures, bytes: bool) {
        let [received, sent, ..] = self.network;
        let [loopback_received, loopback_sent, ..] = self.loopback;
        let both = self.network.into_iter().zip(self.loopback).map(|(one, other)| one.saturating_add(other));
        for (index, (figure, sum)) in TIMES.into_iter().chain(SEGMENTS).zip(both.skip(2)).enumerate() {
            figures.set(figure, if index < TIMES.len() { sum.saturating_mul(1000) } else { sum });
        }
        if bytes {
            figures.extend(NETWORK.into_iter().zip([received, sent]));
            figures.extend(LOOPBACK.into_iter().zip([loopback_received, loopback_sent]));
        }
    }
}

/// Reader of all sockets, with the sums of the counted processes. Sums begin at 0 with the agent, except that sockets
/// which are open then bring what they have counted before.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    list: Option<SocketList>,
    known: HashMap<u64, Known>,
    owners: Owners,
    host: Sums,
    processes: HashMap<u32, ProcessSums>,
    lists: u64,
    lists_since_look: u32,
    /// Sockets of the last list that were left out because there were too many.
    pub(crate) left_out: u64,
}

#[derive(Debug, Default)]
struct ProcessSums {
    began_ns: u64,
    own: Sums,
    peers: BTreeMap<IpAddr, Sums>,
}

impl Sockets {
    /// Reads all sockets, and adds them to the sums. `processes` are the counted ones, by ascending number. False if
    /// there is no list of sockets.
    pub(crate) fn read(
        &mut self,
        proc: &Path,
        processes: &[Owner],
        now_ns: u64,
        sources: &mut HostSources,
    ) -> bool {
        let failed = self.list_all(proc, processes, now_ns).err().map(|error| {
            self.list = None;
            format!("cannot list sockets (sock_diag): {error}")
        });
        sources.set_read(SubjectKind::Host, TIMES, failed.as_deref(), FROM, TIME_RESOLUTION_NS);
        sources.set_read(SubjectKind::Host, SEGMENTS, failed.as_deref(), FROM, 1);
        let read = failed.is_none();
        let (some, reason) = self.owners.outcome();
        let failed = failed.or_else(|| reason.filter(|_| !some).map(str::to_owned));
        let from: Cow<'static, str> = match reason {
            Some(reason) => format!("{FROM_OWNED}; missing for some processes: {reason}").into(),
            None => FROM_OWNED.into(),
        };
        let counts = || NETWORK.into_iter().chain(LOOPBACK).chain(SEGMENTS);
        for kind in [SubjectKind::Process, SubjectKind::Peer] {
            sources.set_read(kind, TIMES, failed.as_deref(), from.clone(), TIME_RESOLUTION_NS);
            sources.set_read(kind, counts(), failed.as_deref(), from.clone(), 1);
        }
        read
    }

    fn list_all(&mut self, proc: &Path, processes: &[Owner], now_ns: u64) -> std::io::Result<()> {
        let mut list = match self.list.take() {
            Some(list) => list,
            None => SocketList::open()?,
        };
        let mut sockets = Vec::with_capacity(self.known.len());
        self.left_out = list.list(SOCKETS_MAX, |socket| sockets.push(socket))?;
        self.list = Some(list);
        self.update(sockets, processes, |owners, processes| owners.look(proc, processes, now_ns));
        Ok(())
    }

    /// Adds one list of sockets.
    fn update(
        &mut self,
        sockets: Vec<Socket>,
        processes: &[Owner],
        mut look: impl FnMut(&mut Owners, &[Owner]) -> bool,
    ) {
        self.lists += 1;
        let lists = self.lists;
        let running: HashMap<u32, u64> =
            processes.iter().map(|process| (process.pid, process.began_ns)).collect();
        let runs = |owner: Owner| running.get(&owner.pid) == Some(&owner.began_ns);
        self.processes.retain(|pid, sums| runs(Owner { pid: *pid, began_ns: sums.began_ns }));

        let inodes: HashSet<u32> = sockets.iter().map(|socket| socket.inode).collect();
        self.owners.retain(&inodes, runs);
        self.lists_since_look += 1;
        // Sockets of processes that are not counted stay without an owner; they are new only once.
        let new = sockets.iter().any(|socket| socket.inode != 0 && !self.known.contains_key(&socket.cookie));
        if new || self.lists_since_look >= LISTS_PER_LOOK {
            if look(&mut self.owners, processes) {
                self.lists_since_look = 0;
            }
        } else {
            let unknown = |process: &&Owner| self.owners.looked(**process).is_none();
            let unknown: Vec<Owner> = processes.iter().filter(unknown).copied().collect();
            if !unknown.is_empty() {
                look(&mut self.owners, &unknown);
            }
        }

        // An address that some socket here has is this host's own, and the kernel carries it over loopback.
        let local: HashSet<IpAddr> = sockets.iter().map(|socket| socket.local).collect();
        for socket in sockets {
            let loopback = socket.remote.is_loopback() || local.contains(&socket.remote);
            let known = self.known.entry(socket.cookie).or_insert(Known {
                counters: [0; 8],
                owner: None,
                list: lists,
            });
            let mut more = [0; 8];
            for ((more, last), now) in more.iter_mut().zip(&mut known.counters).zip(socket.counters) {
                *more = now.saturating_sub(*last);
                *last = now.max(*last);
            }
            known.list = lists;
            self.host.add(more, loopback, lists);
            // A socket that its process has closed still sends what is left, for that process.
            let owner = self.owners.get(socket.inode).or(known.owner.filter(|owner| runs(*owner)));
            let Some(owner) = owner else { continue };
            if known.owner.is_none() {
                // It was read before its owner was known.
                more = known.counters;
            }
            known.owner = Some(owner);
            let sums = self.processes.entry(owner.pid).or_default();
            sums.began_ns = owner.began_ns;
            sums.own.add(more, loopback, lists);
            if sums.peers.len() >= PEERS_MAX && !sums.peers.contains_key(&socket.remote) {
                let oldest = sums.peers.iter().min_by_key(|(_, peer)| peer.list).map(|(address, _)| *address);
                oldest.map(|address| sums.peers.remove(&address));
            }
            sums.peers.entry(socket.remote).or_default().add(more, loopback, lists);
        }
        self.known.retain(|_, known| known.list == lists);
    }

    /// The host's sums. Its bytes come from its interfaces.
    pub(crate) fn host(&self, figures: &mut Figures) {
        self.host.write(figures, false);
    }

    /// The sums of a process: 0 if it had no socket since the agent began, and missing if its files could not be read.
    pub(crate) fn process(&self, process: Owner, figures: &mut Figures) {
        match self.processes.get(&process.pid).filter(|sums| sums.began_ns == process.began_ns) {
            Some(sums) => sums.own.write(figures, true),
            None if self.owners.looked(process) == Some(true) => Sums::default().write(figures, true),
            None => clear(figures),
        }
    }

    /// The sums by process and remote host, those with the most bytes first if there are more than `entries_max`.
    /// Returns how many were left out.
    pub(crate) fn peers(&self, entries_max: usize, entries: &mut Vec<Entry>) -> u64 {
        let mut all: Vec<(u32, u64, IpAddr, &Sums)> = self
            .processes
            .iter()
            .flat_map(|(pid, sums)| {
                sums.peers.iter().map(|(address, peer)| (*pid, sums.began_ns, *address, peer))
            })
            .collect();
        let left_out = all.len().saturating_sub(entries_max) as u64;
        if left_out > 0 {
            all.sort_by_key(|(_, _, _, sums)| std::cmp::Reverse(sums.bytes()));
            all.truncate(entries_max);
        }
        for (pid, began_ns, address, sums) in all {
            let mut figures = Figures::default();
            sums.write(&mut figures, true);
            entries.push(Entry { subject: Subject::Peer { pid, began_ns, address }, figures });
        }
        left_out
    }
}

/// Removes the figures of sockets.
pub(crate) fn clear(figures: &mut Figures) {
    for figure in TIMES.into_iter().chain(NETWORK).chain(LOOPBACK).chain(SEGMENTS) {
        figures.set(figure, None);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn socket(cookie: u64, inode: u32, remote: [u8; 4], counters: SocketCounters) -> Socket {
        Socket { cookie, inode, local: [10, 0, 0, 1].into(), remote: remote.into(), counters }
    }

    fn of(sockets: &Sockets, owner: Owner) -> Figures {
        let mut figures = Figures::default();
        sockets.process(owner, &mut figures);
        figures
    }

    fn owned(owner: Owner, inode: u32) -> impl FnMut(&mut Owners, &[Owner]) -> bool {
        move |owners, _| {
            let folder = tempfile::tempdir().unwrap();
            let files = folder.path().join(owner.pid.to_string()).join("fd");
            std::fs::create_dir_all(&files).unwrap();
            std::os::unix::fs::symlink(format!("socket:[{inode}]"), files.join("3")).unwrap();
            owners.look(folder.path(), &[owner], 0)
        }
    }

    #[test]
    fn sums_keep_what_closed_sockets_had_and_follow_orphans() {
        let owner = Owner { pid: 5, began_ns: 50 };
        let (mut sockets, peer) = (Sockets::default(), [10, 0, 0, 2]);
        sockets.update(vec![socket(1, 77, peer, [10, 20, 3, 2, 1, 4, 6, 7])], &[owner], owned(owner, 77));
        assert_eq!(of(&sockets, owner).get(Figure::NetworkSentBytes), Some(20));
        assert_eq!(of(&sockets, owner).get(Figure::SocketBusyNs), Some(3000));
        for (figure, value) in SEGMENTS.into_iter().zip([4, 6, 7]) {
            assert_eq!(of(&sockets, owner).get(figure), Some(value));
        }
        // Closed by the process, and still sending.
        sockets.update(vec![socket(1, 0, peer, [10, 25, 3, 2, 1, 4, 6, 7])], &[owner], |_, _| {
            panic!("nothing is new")
        });
        assert_eq!(of(&sockets, owner).get(Figure::NetworkSentBytes), Some(25));
        sockets.update(vec![], &[owner], |_, _| panic!());
        assert_eq!(of(&sockets, owner).get(Figure::NetworkSentBytes), Some(25));
        let mut entries = Vec::new();
        assert_eq!(sockets.peers(10, &mut entries), 0);
        let [Entry { subject: Subject::Peer { pid: 5, address, .. }, .. }] = &entries[..] else { panic!() };
        assert_eq!(*address, IpAddr::from(peer));
        assert_eq!(sockets.peers(0, &mut entries), 1);
        // The sums don't carry over to another process with the same number.
        let owner = Owner { pid: 5, began_ns: 60 };
        sockets.update(vec![], &[owner], |_, _| false);
        assert_eq!(of(&sockets, owner).get(Figure::NetworkSentBytes), None);
    }

    #[test]
    fn a_socket_whose_owner_is_found_late_counts_in_full() {
        let owner = Owner { pid: 5, began_ns: 50 };
        let mut sockets = Sockets::default();
        let list = |bytes| vec![socket(1, 77, [10, 0, 0, 2], [bytes, 0, 0, 0, 0, 0, 0, 0])];
        sockets.update(list(10), &[owner], |_, _| false);
        assert_eq!(
            of(&sockets, owner).get(Figure::NetworkReceivedBytes),
            None,
            "its files are not known yet"
        );
        sockets.update(list(16), &[owner], owned(owner, 77));
        assert_eq!(of(&sockets, owner).get(Figure::NetworkReceivedBytes), Some(16));
    }

    #[test]
    fn bytes_to_an_address_of_this_host_are_loopback() {
        let owner = Owner { pid: 5, began_ns: 50 };
        let mut sockets = Sockets::default();
        sockets.update(
            vec![socket(1, 77, [10, 0, 0, 1], [10, 0, 0, 0, 0, 0, 0, 0])],
            &[owner],
            owned(owner, 77),
        );
        assert_eq!(of(&sockets, owner).get(Figure::LoopbackReceivedBytes), Some(10));
        assert_eq!(of(&sockets, owner).get(Figure::NetworkReceivedBytes), Some(0));
    }

    #[test]
    fn remote_hosts_are_bounded() {
        let owner = Owner { pid: 5, began_ns: 50 };
        let mut sockets = Sockets::default();
        let all = |from: u32, to: u32| {
            (from..to)
                .map(|n| socket(n.into(), 77, n.to_be_bytes(), [1, 0, 0, 0, 0, 0, 0, 0]))
                .collect::<Vec<_>>()
        };
        sockets.update(all(1, 5000), &[owner], owned(owner, 77));
        assert_eq!(sockets.processes[&5].peers.len(), PEERS_MAX);
        assert_eq!(of(&sockets, owner).get(Figure::NetworkReceivedBytes), Some(4999));
    }

    #[test]
    fn a_connection_of_this_process_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let owner = Owner { pid: std::process::id(), began_ns: 1 };
        let (mut sockets, mut sources) = (Sockets::default(), HostSources::default());
        sockets.read("/proc".as_ref(), &[owner], 0, &mut sources);
        let sent = |sockets: &Sockets| of(sockets, owner).get(Figure::LoopbackReceivedBytes).unwrap();
        let before = sent(&sockets);
        client.write_all(&[7; 100_000]).unwrap();
        server.read_exact(&mut [0; 100_000]).unwrap();
        sockets.read("/proc".as_ref(), &[owner], 1, &mut sources);
        assert!(sent(&sockets) >= before + 100_000);
        let after = sent(&sockets);
        drop((client, server));
        sockets.read("/proc".as_ref(), &[owner], 2, &mut sources);
        assert!(sent(&sockets) >= after);
    }
}
