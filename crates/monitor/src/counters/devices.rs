//! Disks and network interfaces: each one, and their sums.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use lightship_usage::{Entry, Figure, Figures, HostSources, Subject, SubjectKind};
use procfs_core::DiskStat;

use super::file::{KernelFile, Roots, TextBuffer};
use crate::growing::GrowingSum;

/// The most disks, and the most interfaces, in a sample. Further ones count only for the host.
const DEVICES_MAX: usize = 64;
/// The most disks, and the most interfaces, whose kind is remembered.
const KNOWN_MAX: usize = 4096;
/// The unit of `/proc/diskstats`, whatever a disk's own sectors are.
const SECTOR_BYTES: u64 = 512;
/// The type of loopback interfaces in `/sys/class/net/NAME/type` (`ARPHRD_LOOPBACK`).
const LOOPBACK_TYPE: &str = "772";

/// Received and sent bytes.
pub(crate) const NETWORK: [Figure; 2] = [Figure::NetworkReceivedBytes, Figure::NetworkSentBytes];
/// The same, over loopback.
pub(crate) const LOOPBACK: [Figure; 2] = [Figure::LoopbackReceivedBytes, Figure::LoopbackSentBytes];
const DISK: [Figure; 4] =
    [Figure::DiskReadBytes, Figure::DiskWrittenBytes, Figure::DiskReads, Figure::DiskWrites];

/// A file of the kernel with one line for each device, and the kinds of the devices.
#[derive(Debug)]
struct DeviceFile<K> {
    file: KernelFile,
    /// The folder of `/sys` that has a folder for each device.
    folder: PathBuf,
    /// Finds the kind of a device in its folder, which takes longer than to remember it.
    find: fn(&Path) -> K,
    kinds: HashMap<String, K>,
}

impl<K: Copy> DeviceFile<K> {
    fn new(file: PathBuf, folder: PathBuf, find: fn(&Path) -> K) -> Self {
        Self { file: KernelFile::new(file, true), folder, find, kinds: HashMap::new() }
    }

    fn kind(&mut self, name: &str) -> K {
        if let Some(kind) = self.kinds.get(name) {
            return *kind;
        }
        // Names of interfaces come and go with containers.
        if self.kinds.len() >= KNOWN_MAX {
            self.kinds.clear();
        }
        let kind = (self.find)(&self.folder.join(name));
        self.kinds.insert(name.to_owned(), kind);
        kind
    }
}

/// Reader of `/proc/diskstats`. The kind of a disk is whether it is one, and not a partition, or made of other disks.
#[derive(Debug)]
pub(crate) struct Disks {
    disks: DeviceFile<bool>,
    host: GrowingSum<String, 4>,
}

impl Disks {
    pub(crate) fn new(roots: &Roots, sources: &mut HostSources) -> Self {
        for kind in [SubjectKind::Host, SubjectKind::Disk] {
            sources.set_unavailable(
                kind,
                [Figure::DiskSequentialBytes, Figure::DiskRandomRequests],
                "/proc/diskstats has the number and size of requests, not where on the disk they are",
            );
        }
        let is_disk = |folder: &Path| folder.join("device").exists();
        let disks = DeviceFile::new(roots.proc.join("diskstats"), roots.sys.join("block"), is_disk);
        Self { disks, host: GrowingSum::default() }
    }

    /// Reads all disks into `entries`, and their sums into the `host`'s figures.
    pub(crate) fn read(
        &mut self,
        buffer: &mut TextBuffer,
        host: &mut Figures,
        entries: &mut Vec<Entry>,
        sources: &mut HostSources,
    ) {
        let text = match self.disks.file.read(buffer) {
            Ok(_) if !self.disks.folder.is_dir() => {
                Err("disks and partitions can't be told apart without /sys/block".into())
            }
            read => read,
        };
        let failed = match text {
            Ok(text) => {
                let mut disks = 0;
                for disk in text.lines().filter_map(|line| DiskStat::from_line(line).ok()) {
                    if !self.disks.kind(&disk.name) {
                        continue;
                    }
                    let bytes = |sectors: u64| sectors.saturating_mul(SECTOR_BYTES);
                    let values =
                        [bytes(disk.sectors_read), bytes(disk.sectors_written), disk.reads, disk.writes];
                    self.host.add(disk.name.clone(), values);
                    disks += 1;
                    if disks <= DEVICES_MAX {
                        let mut figures = Figures::default();
                        figures.extend(DISK.into_iter().zip(values));
                        figures.set(Figure::DiskBusyNs, disk.time_in_progress.saturating_mul(1_000_000));
                        entries.push(Entry { subject: Subject::Disk(disk.name), figures });
                    }
                }
                host.extend(DISK.into_iter().zip(self.host.finish()));
                (disks == 0).then(|| "no disk has a device in /sys/block".to_owned())
            }
            Err(reason) => Some(reason),
        };
        if failed.is_some() {
            DISK.into_iter().for_each(|figure| host.set(figure, None));
        }
        let from = "/proc/diskstats, of disks with a device in /sys/block";
        let bytes = [Figure::DiskReadBytes, Figure::DiskWrittenBytes];
        for kind in [SubjectKind::Host, SubjectKind::Disk] {
            sources.set_read(kind, bytes, failed.as_deref(), from, SECTOR_BYTES);
            sources.set_read(kind, [Figure::DiskReads, Figure::DiskWrites], failed.as_deref(), from, 1);
        }
        sources.set_read(SubjectKind::Disk, [Figure::DiskBusyNs], failed.as_deref(), from, 1_000_000);
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

impl InterfaceKind {
    fn find(folder: &Path) -> Self {
        match std::fs::read_to_string(folder.join("type")) {
            Ok(number) if number.trim() == LOOPBACK_TYPE => Self::Loopback,
            Err(_) if folder.ends_with("lo") => Self::Loopback,
            _ if folder.join("device").exists() => Self::Physical,
            _ => Self::Virtual,
        }
    }
}

/// Reader of `/proc/net/dev`.
#[derive(Debug)]
pub(crate) struct Interfaces {
    interfaces: DeviceFile<InterfaceKind>,
    network: GrowingSum<String, 2>,
    loopback: GrowingSum<String, 2>,
}

impl Interfaces {
    pub(crate) fn new(roots: &Roots) -> Self {
        let (file, folder) = (roots.proc.join("net/dev"), roots.sys.join("class/net"));
        let interfaces = DeviceFile::new(file, folder, InterfaceKind::find);
        Self { interfaces, network: GrowingSum::default(), loopback: GrowingSum::default() }
    }

    /// Reads all interfaces into `entries`, and their sums into the `host`'s figures.
    pub(crate) fn read(
        &mut self,
        buffer: &mut TextBuffer,
        host: &mut Figures,
        entries: &mut Vec<Entry>,
        sources: &mut HostSources,
    ) {
        let text = self.interfaces.file.read(buffer);
        let failed = text.as_ref().err().cloned();
        if let Ok(text) = text {
            let mut read: Vec<(&str, InterfaceKind, [u64; 2])> = text
                .lines()
                .filter_map(interface_bytes)
                .map(|(name, bytes)| (name, self.interfaces.kind(name), bytes))
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
            host.extend(NETWORK.into_iter().zip(self.network.finish()));
            host.extend(LOOPBACK.into_iter().zip(self.loopback.finish()));
            for (name, kind, bytes) in read.into_iter().take(DEVICES_MAX) {
                let mut figures = Figures::default();
                let names = if kind == InterfaceKind::Loopback { LOOPBACK } else { NETWORK };
                figures.extend(names.into_iter().zip(bytes));
                entries.push(Entry { subject: Subject::Interface(name.to_owned()), figures });
            }
        }
        let from = "/proc/net/dev, frames with their headers; host: interfaces with a device, or all if none has one";
        for kind in [SubjectKind::Host, SubjectKind::Interface] {
            let figures = NETWORK.into_iter().chain(LOOPBACK);
            sources.set_read(kind, figures, failed.as_deref(), from, 1);
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
        let (mut host, mut entries, mut sources) = (Figures::default(), Vec::new(), HostSources::default());
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
        let (mut host, mut entries, mut sources) = (Figures::default(), Vec::new(), HostSources::default());
        Interfaces::new(&roots).read(&mut TextBuffer::default(), &mut host, &mut entries, &mut sources);
        assert_eq!(host.get(Figure::NetworkReceivedBytes), Some(500));
    }

    #[test]
    fn partitions_and_disks_made_of_disks_are_left_out() {
        let (_folder, roots) = roots();
        fs::create_dir_all(roots.sys.join("block/sda/device")).unwrap();
        let (mut host, mut entries, mut sources) = (Figures::default(), Vec::new(), HostSources::default());
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
        let (mut host, mut entries, mut sources) = (Figures::default(), Vec::new(), HostSources::default());
        Disks::new(&roots, &mut sources).read(
            &mut TextBuffer::default(),
            &mut host,
            &mut entries,
            &mut sources,
        );
        assert_eq!(host.iter().count() + entries.len(), 0);
    }
}
