//! A device that forgets what was not synced: the file system of a loop device is shut down without writing its journal,
//! as if the power had failed, and mounted again. Rows that were acknowledged must be there.
//! It needs ext4, loop devices and root; where it can't run, it says why. `LIGHTSHIP_SHUTDOWNS=100` makes many rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use lightship_rangefile::{Capacity, Definition, Node, RangeFile, WriteMode};
use lightship_testkit::seeds::seeds;

use crate::support::{InProcess, all, options, rows, schema};

/// `_IOR('X', 125, __u32)` of Linux, and the flag that leaves the journal unwritten.
const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;
const NO_LOG_FLUSH: u32 = 2;

const NAME: &str = "node:1";
const WRITERS: i64 = 4;
const KEYS: i64 = 200;

fn command(program: &str, args: &[&str]) -> Result<(), String> {
    let done = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    let why = || format!("{program}: {}", String::from_utf8_lossy(&done.stderr).trim());
    done.status.success().then_some(()).ok_or_else(why)
}

/// A file system in a file. It is unmounted when it is dropped.
struct Device {
    folder: tempfile::TempDir,
}

impl Device {
    fn new() -> Result<Self, String> {
        let device = Self { folder: tempfile::tempdir().expect("a folder") };
        File::create(device.path("image")).expect("a file").set_len(256 << 20).expect("a sparse file");
        std::fs::create_dir(device.path("mount")).expect("a folder");
        command("mkfs.ext4", &["-q", "-F", &device.path("image")])?;
        device.mount()?;
        Ok(device)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn mount(&self) -> Result<(), String> {
        command("mount", &["-o", "loop", &self.path("image"), &self.path("mount")])
    }

    /// Drops what was not synced. The file system does nothing more until it is mounted again.
    fn shut_down(&self) {
        let mount = File::open(self.path("mount")).expect("a folder");
        // SAFETY: the request reads a u32, which lives until the call returns.
        let done = unsafe { libc::ioctl(mount.as_raw_fd(), EXT4_IOC_SHUTDOWN, &NO_LOG_FLUSH) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Mounts it again, once the node has closed its file.
    fn mount_again(&self) {
        let began = Instant::now();
        while let Err(error) = command("umount", &[&self.path("mount")]) {
            assert!(began.elapsed() < Duration::from_secs(60), "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.mount().expect("it can be mounted again");
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = command("umount", &[&self.path("mount")]);
    }
}

/// The texts that keys may have: the last one that was acknowledged (empty: none was), and that of a write that failed.
type Texts = BTreeMap<i64, Vec<String>>;

/// Upserts keys of its own until that fails. Writes that are acknowledged after `is_off` was set count as failed. A machine
/// without power acknowledges nothing, but here the kernel may report that a sync succeeded after it shut down the file system.
async fn write(file: RangeFile, writer: i64, mut random: fastrand::Rng, is_off: Arc<AtomicBool>) -> Texts {
    let mut texts = Texts::new();
    loop {
        let count = random.usize(1..20);
        let ids: BTreeSet<i64> = (0..count).map(|_| random.i64(0..KEYS) * WRITERS + writer).collect();
        let note = format!(".{}", random.u64(..));
        let is_written = file.write(WriteMode::Upsert, &rows(ids.iter().copied(), &note)).await.is_ok();
        let is_sure = is_written && !is_off.load(Ordering::SeqCst);
        for id in ids {
            let known = texts.entry(id).or_insert_with(|| vec![String::new()]);
            known.retain(|_| !is_sure);
            known.push(format!("{id}{note}"));
        }
        if !is_written {
            return texts;
        }
    }
}

/// Returns the number of keys that must be there.
fn round(seed: u64, device: &Device) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = device.folder.path().join(format!("mount/range-{seed}"));
    let network = Arc::new(InProcess::default());
    let open = |seed| {
        let node = Node::open(&folder, NAME, network.clone(), seed).expect("a node");
        network.set(NAME, Some(node.clone()));
        node
    };
    // With its runtime, all tasks of the node end.
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let capacity = Capacity::Records(random.u64(20..400));
    let definition = Definition::new("t", &schema(), &["id".into()], capacity).unwrap();
    let (file, written) = runtime().block_on(async {
        open(1);
        let file = RangeFile::create(network.clone(), &definition, options()).await.unwrap();
        let is_off = Arc::new(AtomicBool::new(false));
        let begin = |writer| tokio::spawn(write(file.clone(), writer, random.fork(), is_off.clone()));
        let writers: Vec<_> = (0..WRITERS).map(begin).collect();
        tokio::time::sleep(Duration::from_millis(random.u64(20..400))).await;
        is_off.store(true, Ordering::SeqCst);
        device.shut_down();
        (file, join_all(writers).await)
    });
    network.set(NAME, None);
    device.mount_again();
    let found: BTreeMap<i64, String> = runtime().block_on(async {
        open(2).recover().await;
        all(&file).await.into_iter().collect()
    });
    network.set(NAME, None);
    std::fs::remove_dir_all(&folder).expect("it can be removed");
    let written = written.into_iter().flat_map(|texts| texts.expect("a writer"));
    let check = |(id, texts): (i64, Vec<String>)| {
        let found = found.get(&id).cloned().unwrap_or_default();
        assert!(texts.contains(&found), "seed {seed}, key {id}: {found:?} instead of {texts:?}");
        usize::from(!texts[0].is_empty())
    };
    written.map(check).sum()
}

#[test]
fn acknowledged_rows_survive_a_device_that_forgets() {
    let skipped = |why| eprintln!("skipped: no ext4 can be mounted here: {why}");
    let Ok(device) = Device::new().map_err(skipped) else { return };
    let seeds = seeds("LIGHTSHIP_SHUTDOWNS", 30);
    let rows: usize = seeds.clone().map(|seed| round(seed, &device)).sum();
    eprintln!("shutdowns: seeds {}-{}: {rows} acknowledged rows, none was lost", seeds.start(), seeds.end());
}
