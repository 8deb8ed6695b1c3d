//! Disks and network interfaces, each and all together.

use std::collections::HashMap;
use std::path::PathBuf;

use lightship_usage::{Entry, Figure, Figures, Subject};
use procfs_core::DiskStat;

use super::file::{KernelFile, Roots, TextBuffer};
use crate::growing::GrowingSum;
use crate::source::{Scope, Sources};

/// Disks and interfaces in a sample, each. What is above counts for the host only.
const DEVICES_MAX: usize = 64;
/// Devices that are told apart at all.
const KNOWN_MAX: usize = 4096;
/// The unit of `/proc/diskstats`, whatever a disk's own sectors are.
const SECTOR_BYTES: u64 = 512;
/// The type of loopback interfaces in `/sys/class/net/NAME/type` (`ARPHRD_LOOPBACK`).
const LOOPBACK_TYPE: &str = "772";

const DISK: [Figure; 4] =
    [Figure::DiskReadBytes, Figure::DiskWrittenBytes, Figure::DiskReads, Figure::DiskWrites];

/// Reader of `/proc/diskstats`.
#[derive(Debug)]
pub(crate) struct Disks {
    file: KernelFile,
    block: PathBuf,
    /// Whether a name is that of a disk, and not of a partition, or of something made of other disks.
    real: HashMap<String, bool>,
    host: GrowingSum<String, 4>,
}

impl Disks {
    pub(crate) fn new(roots: &Roots, sources: &mut Sources) -> Self {
        sources.unavailable(
            Scope::Disk,
            &[Figure::DiskSequentialBytes, Figure::DiskRandomRequests],
            "/proc/diskstats has the number and size of requests, not where on the disk they are",
        );
        Self {
            file: KernelFile::new(roots.proc.join("diskstats"), true),
            block: roots.sys.join("block"),
            real: HashMap::new(),
            host: GrowingSum::default(),
        }
    }

    /// Reads all disks into `entries`, and their sums into the `host`'s figures.
    pub(crate) fn read(
        &mut self,
        buffer: &mut TextBuffer,
        host: &mut Figures,
        entries: &mut Vec<Entry>,
        sources: &mut Sources,
    ) {
        let text = match self.file.read(buffer) {
            Ok(_) if !self.block.is_dir() => {
                Err("disks and partitions can't be told apart without /sys/block".into())
            }
            read => read,
        };
        let failed = match text {
            Ok(text) => {
                let block = &self.block;
                let mut disks = 0;
                for disk in text.lines().filter_map(|line| DiskStat::from_line(line).ok()) {
                    if !remembered(&mut self.real, &disk.name, |name| {
                        block.join(name).join("device").exists()
                    }) {
                        continue;
                    }
                    let bytes = |sectors: u64| sectors.saturating_mul(SECTOR_BYTES);
                    let values =
                        [bytes(disk.sectors_read), bytes(disk.sectors_written), disk.reads, disk.writes];
                    self.host.add(disk.name.clone(), values);
                    disks += 1;
                    if disks <= DEVICES_MAX {
                        let mut figures = Figures::default();
                        DISK.into_iter().zip(values).for_each(|(figure, value)| figures.set(figure, value));
                        figures.set(Figure::DiskBusyNs, disk.time_in_progress.saturating_mul(1_000_000));
                        entries.push(Entry { subject: Subject::Disk(disk.name), figures });
                    }
                }
                DISK.into_iter().zip(self.host.finish()).for_each(|(figure, value)| host.set(figure, value));
                (disks == 0).then(|| "no disk has a device in /sys/block".to_owned())
            }
            Err(reason) => Some(reason),
        };
        if failed.is_some() {
            DISK.into_iter().for_each(|figure| host.set(figure, None));
        }
        let from = "/proc/diskstats, of disks with a device in /sys/block";
        let bytes = [Figure::DiskReadBytes, Figure::DiskWrittenBytes];
        for scope in [Scope::Host, Scope::Disk] {
            sources.note(scope, &bytes, failed.as_deref(), from, SECTOR_BYTES);
            sources.note(scope, &[Figure::DiskReads, Figure::DiskWrites], failed.as_deref(), from, 1);
        }
        sources.note(Scope::Disk, &[Figure::DiskBusyNs], failed.as_deref(), from, 1_000_000);
    }
}

/// What an interface is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InterfaceKind {
    Loopback,
    /// It has a device.
    Physical,
    /// A bridge, a tunnel, the end of a container's network.
    Virtual,
}

const NETWORK: [Figure; 2] = [Figure::NetworkReceivedBytes, Figure::NetworkSentBytes];
const LOOPBACK: [Figure; 2] = [Figure::LoopbackReceivedBytes, Figure::LoopbackSentBytes];

/// Reader of `/proc/net/dev`.
#[derive(Debug)]
pub(crate) struct Interfaces {
    file: KernelFile,
    class: PathBuf,
    kinds: HashMap<String, InterfaceKind>,
    network: GrowingSum<String, 2>,
    loopback: GrowingSum<String, 2>,
}

impl Interfaces {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            file: KernelFile::new(roots.proc.join("net/dev"), true),
            class: roots.sys.join("class/net"),
            kinds: HashMap::new(),
            network: GrowingSum::default(),
            loopback: GrowingSum::default(),
        }
    }

    /// Reads all interfaces into `entries`, and their sums into the `host`'s figures.
    pub(crate) fn read(
        &mut self,
        buffer: &mut TextBuffer,
        host: &mut Figures,
        entries: &mut Vec<Entry>,
        sources: &mut Sources,
    ) {
        let text = self.file.read(buffer);
        let failed = text.as_ref().err().cloned();
        if let Ok(text) = text {
            let class = &self.class;
            let mut read: Vec<(&str, InterfaceKind, [u64; 2])> = text
                .lines()
                .filter_map(interface_bytes)
                .map(|(name, bytes)| {
                    (name, remembered(&mut self.kinds, name, |name| kind(class, name)), bytes)
                })
                .collect();
            // Traffic of virtual interfaces goes over physical ones. A container has only virtual ones.
            let physical = read.iter().any(|(_, kind, _)| *kind == InterfaceKind::Physical);
            let counted = if physical { InterfaceKind::Physical } else { InterfaceKind::Virtual };
            read.sort_by_key(|(_, kind, _)| *kind != counted && *kind != InterfaceKind::Loopback);
            for (name, kind, bytes) in &read {
                match kind {
                    InterfaceKind::Loopback => self.loopback.add((*name).to_owned(), *bytes),
                    kind if *kind == counted => self.network.add((*name).to_owned(), *bytes),
                    _ => {}
                }
            }
            for (figure, value) in NETWORK.into_iter().zip(self.network.finish()) {
                host.set(figure, value);
            }
            for (figure, value) in LOOPBACK.into_iter().zip(self.loopback.finish()) {
                host.set(figure, value);
            }
            for (name, kind, bytes) in read.into_iter().take(DEVICES_MAX) {
                let mut figures = Figures::default();
                let names = if kind == InterfaceKind::Loopback { LOOPBACK } else { NETWORK };
                names.into_iter().zip(bytes).for_each(|(figure, value)| figures.set(figure, value));
                entries.push(Entry { subject: Subject::Interface(name.to_owned()), figures });
            }
        }
        let from = "/proc/net/dev, frames with their headers; host: interfaces with a device, or all if none has one";
        for scope in [Scope::Host, Scope::Interface] {
            for figures in [NETWORK, LOOPBACK] {
                sources.note(scope, &figures, failed.as_deref(), from, 1);
            }
        }
    }
}

/// The name of an interface, and bytes received and sent.
fn interface_bytes(line: &str) -> Option<(&str, [u64; 2])> {
    // Old kernels leave no blank between colon and number.
    let (name, numbers) = line.rsplit_once(':')?;
    let mut numbers = numbers.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
    let received = numbers.next()??;
    Some((name.trim(), [received, numbers.nth(7)??]))
}

fn kind(class: &std::path::Path, name: &str) -> InterfaceKind {
    let folder = class.join(name);
    match std::fs::read_to_string(folder.join("type")) {
        Ok(number) if number.trim() == LOOPBACK_TYPE => InterfaceKind::Loopback,
        Err(_) if name == "lo" => InterfaceKind::Loopback,
        _ if folder.join("device").exists() => InterfaceKind::Physical,
        _ => InterfaceKind::Virtual,
    }
}

/// What is known of a name; found out if it is new.
fn remembered<T: Copy>(known: &mut HashMap<String, T>, name: &str, find: impl FnOnce(&str) -> T) -> T {
    if let Some(value) = known.get(name) {
        return *value;
    }
    // Names of interfaces come and go with containers.
    if known.len() >= KNOWN_MAX {
        known.clear();
    }
    let value = find(name);
    known.insert(name.to_owned(), value);
    value
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const DEV: &str = "Inter-|   Receive                     |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:   100 1 0 0 0 0 0 0   101 1 0 0 0 0 0 0
  eth0:200 1 0 0 0 0 0 0   201 1 0 0 0 0 0 0
 veth1: 300 1 0 0 0 0 0 0   301 1 0 0 0 0 0 0
";
    const DISKSTATS: &str = "   8 0 sda 10 0 100 5 20 0 200 6 0 7 11 0 0 0 0 0 0
   8 1 sda1 10 0 100 5 20 0 200 6 0 7 11
 253 0 dm-0 10 0 100 5 20 0 200 6 0 7 11
odd
";

    fn roots() -> (tempfile::TempDir, Roots) {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots { proc: folder.path().join("proc"), sys: folder.path().join("sys") };
        fs::create_dir_all(roots.proc.join("net")).unwrap();
        fs::write(roots.proc.join("net/dev"), DEV).unwrap();
        fs::write(roots.proc.join("diskstats"), DISKSTATS).unwrap();
        (folder, roots)
    }

    #[test]
    fn traffic_is_counted_once_and_loopback_apart() {
        let (_folder, roots) = roots();
        fs::create_dir_all(roots.sys.join("class/net/eth0/device")).unwrap();
        let (mut host, mut entries, mut sources) = (Figures::default(), Vec::new(), Sources::default());
        let mut interfaces = Interfaces::new(&roots);
        interfaces.read(&mut TextBuffer::default(), &mut host, &mut entries, &mut sources);
        assert_eq!(host.get(Figure::NetworkReceivedBytes), Some(200));
        assert_eq!(host.get(Figure::NetworkSentBytes), Some(201));
        assert_eq!(host.get(Figure::LoopbackSentBytes), Some(101));
        assert_eq!(entries.len(), 3);

        fs::write(roots.proc.join("net/dev"), "a\nb\n    lo: 1 1 0 0 0 0 0 0   1 1 0 0 0 0 0 0\n").unwrap();
        interfaces.read(&mut TextBuffer::default(), &mut host, &mut entries, &mut sources);
        assert_eq!(
            host.get(Figure::NetworkSentBytes),
            Some(201),
            "an interface that vanishes takes nothing away"
        );
    }

    #[test]
    fn a_container_without_physical_interfaces_counts_the_virtual_ones() {
        let (_folder, roots) = roots();
        let (mut host, mut entries, mut sources) = (Figures::default(), Vec::new(), Sources::default());
        Interfaces::new(&roots).read(&mut TextBuffer::default(), &mut host, &mut entries, &mut sources);
        assert_eq!(host.get(Figure::NetworkReceivedBytes), Some(500));
    }

    #[test]
    fn partitions_and_disks_made_of_disks_are_left_out() {
        let (_folder, roots) = roots();
        fs::create_dir_all(roots.sys.join("block/sda/device")).unwrap();
        let (mut host, mut entries, mut sources) = (Figures::default(), Vec::new(), Sources::default());
        Disks::new(&roots, &mut sources).read(
            &mut TextBuffer::default(),
            &mut host,
            &mut entries,
            &mut sources,
        );
        assert_eq!(host.get(Figure::DiskReadBytes), Some(100 * 512));
        let [Entry { subject, figures }] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!(*subject, Subject::Disk("sda".to_owned()));
        assert_eq!(figures.get(Figure::DiskBusyNs), Some(7_000_000));
        assert_eq!(figures.get(Figure::DiskWrites), Some(20));
        assert_eq!(figures.get(Figure::DiskSequentialBytes), None);
    }

    #[test]
    fn without_sys_disks_are_unavailable_rather_than_counted_twice() {
        let (_folder, roots) = roots();
        let (mut host, mut entries, mut sources) = (Figures::default(), Vec::new(), Sources::default());
        Disks::new(&roots, &mut sources).read(
            &mut TextBuffer::default(),
            &mut host,
            &mut entries,
            &mut sources,
        );
        assert_eq!(host.iter().count() + entries.len(), 0);
    }
}
