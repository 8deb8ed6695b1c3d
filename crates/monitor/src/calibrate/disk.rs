//! Measures a disk with direct I/O on a temporary file.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstatfs, fstatvfs, major, minor};

use super::pace::Pace;
use super::{CalibrateOptions, HostCalibrateError, SpeedKind};

/// Bytes of a sequential request.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes of a random request: a page of PostgreSQL.
const PAGE_BYTES: usize = 8 << 10;
/// Addresses, offsets and lengths of direct I/O are multiples of this, which all usual disks allow.
const ALIGNMENT: usize = 4096;
/// The least bytes that a sequential measurement writes in each repetition.
const REPETITION_BYTES_MIN: u64 = BLOCK_BYTES as u64;
/// File systems in memory: their numbers in `linux/magic.h`.
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

const KINDS: [SpeedKind; 4] =
    [SpeedKind::DiskWrite, SpeedKind::DiskRead, SpeedKind::DiskRandomRead, SpeedKind::DiskRandomWrite];

/// What is known of the measured disk besides its speeds.
#[derive(Debug, Default)]
pub(super) struct MeasuredDisk {
    pub(super) name: Option<String>,
    pub(super) disk_bytes: Option<u64>,
    pub(super) file_bytes: u64,
}

/// A file without a name.
pub(super) struct TemporaryFile {
    folder: PathBuf,
    file: File,
    bytes_max: u64,
    repetitions: u32,
}

impl TemporaryFile {
    pub(super) fn create(options: &CalibrateOptions) -> Result<Self, HostCalibrateError> {
        let folder = options.folder.clone();
        let repetitions = options.repetitions;
        let create = || -> io::Result<(File, u64)> {
            // It has no name from the beginning, where the file system has that, or is unlinked at once.
            let file = tempfile::tempfile_in(&folder)?;
            let space = fstatvfs(&file)?;
            let free = space.f_bavail.saturating_mul(space.f_frsize);
            let bytes_max = options.bytes_max.min(free / 2);
            if bytes_max < REPETITION_BYTES_MIN * u64::from(repetitions) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok((file, bytes_max))
        };
        match create() {
            Ok((file, bytes_max)) => Ok(Self { folder, file, bytes_max, repetitions }),
            Err(error) => Err(explain(&folder, error)),
        }
    }

    /// Measures the disk.
    ///
    /// # Errors
    /// If the disk is full, or fails.
    pub(super) fn measure(self, pace: &mut Pace<'_>) -> Result<MeasuredDisk, HostCalibrateError> {
        let mut disk = disk_of(&self.file);
        if let Err(reason) = self.set_direct() {
            pace.miss(KINDS, &reason);
            return Ok(disk);
        }
        match measure(&self.file, self.bytes_max / u64::from(self.repetitions), pace) {
            Ok(bytes) => {
                disk.file_bytes = bytes;
                Ok(disk)
            }
            Err(error) => Err(explain(&self.folder, error)),
        }
    }

    /// Turns on direct I/O.
    ///
    /// # Errors
    /// The reason in words, if the page cache can't be avoided.
    fn set_direct(&self) -> Result<(), String> {
        // The numbers are the same in all widths of the system's type.
        let kind = fstatfs(&self.file).map(|system| system.f_type as u64 & 0xffff_ffff);
        if matches!(kind, Ok(TMPFS | RAMFS)) {
            return Err(format!("{} is in memory, not on a disk", self.folder.display()));
        }
        let set = || -> io::Result<()> {
            fcntl_setfl(&self.file, fcntl_getfl(&self.file)? | OFlags::DIRECT)?;
            // Some file systems accept the flag, but no request.
            self.file.write_all_at(Aligned::new(ALIGNMENT).bytes(), 0)
        };
        match set() {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(format!(
                "the file system of {} has no direct I/O: only the page cache could be measured",
                self.folder.display()
            )),
            // Another error comes again, and is reported, when the file is written.
            _ => Ok(()),
        }
    }
}

/// Measures a file that is written and read in up to `repetition_bytes` for each repetition. Returns its bytes.
fn measure(file: &File, repetition_bytes: u64, pace: &mut Pace<'_>) -> io::Result<u64> {
    let mut block = Aligned::new(BLOCK_BYTES);
    // Some disks compress, and random bytes can't be compressed.
    fastrand::Rng::with_seed(1).fill(block.bytes_mut());
    // Where each repetition ends.
    let mut ends = vec![0_u64];
    pace.repeat(SpeedKind::DiskWrite, |until| {
        let began = Instant::now();
        let first = ends.last().copied().unwrap_or(0);
        let mut at = first;
        loop {
            file.write_all_at(block.bytes(), at)?;
            at += BLOCK_BYTES as u64;
            if Instant::now() >= until || at - first + BLOCK_BYTES as u64 > repetition_bytes {
                break;
            }
        }
        // The disk may have the bytes in a cache of its own.
        file.sync_data()?;
        ends.push(at);
        Ok::<f64, io::Error>((at - first) as f64 / seconds(began))
    })?;
    let file_bytes = ends.last().copied().unwrap_or(0);

    let mut extents = ends.windows(2).map(|ends| (ends.first().copied(), ends.last().copied())).cycle();
    let cached = counting_reads(pace, SpeedKind::DiskRead, |until| {
        let Some((Some(first), Some(end))) = extents.next() else { return Ok((0.0, 0)) };
        let began = Instant::now();
        let mut at = first;
        while at < end {
            file.read_exact_at(block.bytes_mut(), at)?;
            at += BLOCK_BYTES as u64;
            if Instant::now() >= until {
                break;
            }
        }
        Ok(((at - first) as f64 / seconds(began), at - first))
    })?;
    let mut random = fastrand::Rng::with_seed(2);
    let mut page = Aligned::new(PAGE_BYTES);
    let mut places = || random.u64(0..(file_bytes / PAGE_BYTES as u64).max(1)) * PAGE_BYTES as u64;
    let cached_pages = counting_reads(pace, SpeedKind::DiskRandomRead, |until| {
        let (each, count) = repeated(until, || file.read_exact_at(page.bytes_mut(), places()))?;
        Ok((each, count * PAGE_BYTES as u64))
    })?;
    pace.repeat(SpeedKind::DiskRandomWrite, |until| {
        let began = Instant::now();
        let (_, count) = repeated(until, || file.write_all_at(page.bytes(), places()))?;
        file.sync_data()?;
        Ok::<f64, io::Error>(seconds(began) / count as f64)
    })?;
    for (is_cached, kind) in [(cached, SpeedKind::DiskRead), (cached_pages, SpeedKind::DiskRandomRead)] {
        if is_cached {
            pace.miss([kind], "the page cache answered in spite of direct I/O");
        }
    }
    Ok(file_bytes)
}

/// Repeats a measurement that returns its value and the bytes that it read. True if most of these bytes did not come
/// from a disk, as far as the system counts that.
fn counting_reads(
    pace: &mut Pace<'_>,
    kind: SpeedKind,
    mut measure: impl FnMut(Instant) -> io::Result<(f64, u64)>,
) -> io::Result<bool> {
    let before = read_bytes();
    let mut asked = 0;
    pace.repeat(kind, |until| {
        let (value, bytes) = measure(until)?;
        asked += bytes;
        Ok::<f64, io::Error>(value)
    })?;
    Ok(read_bytes().zip(before).is_some_and(|(after, before)| after.saturating_sub(before) < asked / 2))
}

/// Bytes that this thread has read from disks so far.
fn read_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes:")?.trim().parse().ok())
}

/// Repeats a request until a time, at least once. Returns the seconds of one, and their number.
fn repeated(until: Instant, mut request: impl FnMut() -> io::Result<()>) -> io::Result<(f64, u64)> {
    let began = Instant::now();
    let mut count = 0_u64;
    loop {
        request()?;
        count += 1;
        if Instant::now() >= until {
            return Ok((seconds(began) / count as f64, count));
        }
    }
}

fn seconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64().max(1e-9)
}

fn explain(folder: &Path, error: io::Error) -> HostCalibrateError {
    let folder = folder.to_owned();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => HostCalibrateError::DiskFull { folder },
        _ => HostCalibrateError::Disk { folder, source: error },
    }
}

/// The disk of a file, and its size, if the file system is on one.
fn disk_of(file: &File) -> MeasuredDisk {
    let mut disk = MeasuredDisk::default();
    let Ok(metadata) = file.metadata() else { return disk };
    let device = metadata.dev();
    let path = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let Ok(mut folder) = std::fs::canonicalize(path) else { return disk };
    if folder.join("partition").exists() {
        folder.pop();
    }
    disk.name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let sectors = std::fs::read_to_string(folder.join("size"));
    // The unit is 512 bytes, whatever the disk's own sectors are.
    disk.disk_bytes = sectors.ok().and_then(|text| text.trim().parse::<u64>().ok()?.checked_mul(512));
    disk
}

/// Bytes at an address that direct I/O accepts.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Self {
        let memory = vec![0; length + ALIGNMENT];
        // The memory does not move as long as nothing is added to it.
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { memory, start, length }
    }

    fn bytes(&self) -> &[u8] {
        self.memory.get(self.start..self.start + self.length).unwrap_or_default()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.start..self.start + self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CalibrateProgress, SpeedResult};
    use super::*;

    fn with_pace<T>(
        run: impl FnOnce(&mut Pace<'_>) -> T,
    ) -> (T, std::collections::BTreeMap<SpeedKind, SpeedResult>) {
        let duration = std::time::Duration::from_millis(100);
        let options = CalibrateOptions { duration, ..CalibrateOptions::new("/") };
        let mut on_progress = |_: CalibrateProgress| ();
        let mut pace = Pace::new(&options, &mut on_progress);
        let result = run(&mut pace);
        (result, pace.into_results())
    }

    #[test]
    fn a_full_disk_is_an_error_of_its_own() {
        let full = File::options().read(true).write(true).open("/dev/full").unwrap();
        let (measured, results) = with_pace(|pace| measure(&full, 1 << 20, pace));
        let error = explain("/somewhere".as_ref(), measured.unwrap_err());
        assert_eq!(error.to_string(), "the disk of /somewhere is full, or a quota is reached");
        assert!(results.is_empty());
    }

    #[test]
    fn speeds_of_the_page_cache_are_not_given() {
        if read_bytes().is_none() {
            // The system does not count them.
            return;
        }
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (bytes, results) = with_pace(|pace| measure(&file, 1 << 20, pace));
        assert_eq!(bytes.unwrap(), 5 << 20);
        for kind in [SpeedKind::DiskRead, SpeedKind::DiskRandomRead] {
            let SpeedResult::Missing { reason } = &results[&kind] else { panic!("{results:?}") };
            assert!(reason.contains("page cache"), "{reason}");
        }
        assert!(matches!(results[&SpeedKind::DiskWrite], SpeedResult::Measured(_)));
    }

    #[test]
    fn buffers_are_aligned() {
        for length in [ALIGNMENT, PAGE_BYTES, BLOCK_BYTES] {
            let mut buffer = Aligned::new(length);
            assert_eq!(buffer.bytes().as_ptr().align_offset(ALIGNMENT), 0);
            assert_eq!((buffer.bytes().len(), buffer.bytes_mut().len()), (length, length));
        }
    }
}
