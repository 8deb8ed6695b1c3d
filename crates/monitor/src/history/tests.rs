//! Files of samples, and folders that are full or in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lightship_usage::{Entry, Figure, Figures, Sample, Subject};

use super::disk::Folder;
use super::*;

const SECOND: i64 = 1_000_000_000;

fn timed(number: u64, entries: u32) -> TimedSample {
    let mut figures = Figures::default();
    figures.set(Figure::CpuUserNs, u64::MAX - number);
    figures.set(Figure::SocketBusyNs, number);
    let process = |pid| Entry { subject: Subject::Process { pid, began_ns: 7 }, figures: figures.clone() };
    let mut all: Vec<Entry> = [
        Subject::Host,
        Subject::Disk("sda".into()),
        Subject::Interface("eth0".into()),
        Subject::Peer { pid: 1, began_ns: 2, address: "::1".parse().unwrap() },
        Subject::Task { query: "q".into(), stage: 1, task: 2 },
    ]
    .into_iter()
    .map(|subject| Entry { subject, figures: figures.clone() })
    .collect();
    all.extend((0..entries).map(process));
    let sample = Sample { host: "a".into(), run: 1, number, at_ns: number * 10, entries: all };
    TimedSample { sample, time_ns: 0, bound_ns: number.is_multiple_of(2).then_some(5), parts_missing: 3 }
}

fn read(folder: &Path) -> Vec<TimedSample> {
    let mut samples = Vec::new();
    for (path, _) in history_files(folder).unwrap() {
        read_history(&path, |timed| samples.push(timed)).unwrap();
    }
    samples
}

fn options(folder: &Path) -> HistoryOptions {
    HistoryOptions { file_ns_max: 10 * SECOND as u64, ..HistoryOptions::new(folder) }
}

#[test]
fn samples_come_back_from_files_that_span_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let mut history = History::new(options.clone(), Box::new(Folder::open(&options.folder).unwrap()));
    for number in 0..25 {
        history.add(&timed(number, 3), number as i64 * SECOND).unwrap();
    }
    assert_eq!(history_files(folder.path()).unwrap().len(), 2);
    assert_eq!(read(folder.path()).len(), 22, "files that are not complete are not there");
    history.finish().unwrap();
    history.finish().unwrap();
    let samples = read(folder.path());
    assert_eq!(samples.len(), 25);
    for (number, sample) in (0..).zip(samples) {
        assert_eq!(sample, TimedSample { time_ns: number * SECOND as u64, ..timed(number, 3) });
    }
}

#[test]
fn only_one_collector_writes_to_a_folder_and_what_a_crash_has_left_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let first = Folder::open(folder.path()).unwrap();
    assert_eq!(Folder::open(folder.path()).err().unwrap().kind(), io::ErrorKind::ResourceBusy);
    drop(first);
    let left = folder.path().join("usage-next.parquet.partial");
    std::fs::write(&left, "cut").unwrap();
    let _second = Folder::open(folder.path()).unwrap();
    assert!(!left.exists());
    assert!(read_history(&folder.path().join("usage.lock"), |_| ()).is_err());
}

#[test]
fn the_oldest_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let options = HistoryOptions { bytes_max: 60_000, file_bytes_max: 10_000, ..options(folder.path()) };
    let mut history = History::new(options.clone(), Box::new(Folder::open(&options.folder).unwrap()));
    for number in 0..200 {
        history.add(&timed(number, 50), number as i64 * SECOND).unwrap();
    }
    history.finish().unwrap();
    let files = history_files(folder.path()).unwrap();
    assert!(files.iter().map(|(_, bytes)| bytes).sum::<u64>() <= 60_000, "{files:?}");
    assert_eq!(read(folder.path()).last().unwrap().sample.number, 199);
    assert!(read(folder.path())[0].sample.number > 0);
}

#[test]
fn a_file_ends_when_it_is_large() {
    let folder = tempfile::tempdir().unwrap();
    let options = HistoryOptions { file_bytes_max: 1, file_ns_max: u64::MAX, ..options(folder.path()) };
    let mut history = History::new(options.clone(), Box::new(Folder::open(&options.folder).unwrap()));
    let rows = timed(0, 1000).sample.entries.len() * 2;
    for number in 0..(ROWS_MAX / rows + 1) as u64 {
        history.add(&timed(number, 1000), number as i64).unwrap();
    }
    assert_eq!(history_files(folder.path()).unwrap().len(), 1);
    assert!(history.rows.count < ROWS_MAX);
}

/// A folder on a disk that may be full.
struct SmallDisk {
    folder: Folder,
    room: Arc<AtomicU64>,
}

struct SmallFile(Box<dyn Write + Send>, Arc<AtomicU64>);

impl Write for SmallFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.1.load(Ordering::Relaxed);
        self.1.store(
            room.checked_sub(bytes.len() as u64).ok_or(io::ErrorKind::StorageFull)?,
            Ordering::Relaxed,
        );
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Disk for SmallDisk {
    fn create(&mut self) -> io::Result<(PathBuf, Box<dyn Write + Send>)> {
        let (path, file) = self.folder.create()?;
        Ok((path, Box::new(SmallFile(file, self.room.clone()))))
    }

    fn publish(&mut self, partial: &Path, unix_seconds: u64) -> io::Result<()> {
        self.folder.publish(partial, unix_seconds)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.folder.remove(path)
    }

    fn list(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        self.folder.list()
    }
}

#[test]
fn a_full_disk_pauses_the_history_and_later_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    // The write fails at any place: in the rows, at the end of the file, and not at all.
    for room in [0, 10, 1000, 4000, 5000, 6000, 7000, 8000, 9000, 20_000] {
        let room = Arc::new(AtomicU64::new(room));
        let disk = SmallDisk { folder: Folder::open(folder.path()).unwrap(), room: room.clone() };
        let mut history = History::new(options.clone(), Box::new(disk));
        let mut failed = 0;
        for number in 0..40 {
            match history.add(&timed(number, 3), number as i64 * SECOND) {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error:?}");
                    assert!(folder.path().read_dir().unwrap().all(|entry| {
                        let name = entry.unwrap().file_name();
                        !name.to_str().unwrap().ends_with("partial")
                    }));
                    failed += 1;
                }
            }
        }
        assert!(failed <= 1, "it does not try again at once");
        if failed == 0 {
            continue;
        }
        let before = read(folder.path()).len();
        room.store(u64::MAX, Ordering::Relaxed);
        let lost = history.lost;
        assert!(lost > 0);
        let mut written = 0;
        for number in 100..125 {
            written += u32::from(history.add(&timed(number, 3), number as i64 * SECOND).unwrap());
        }
        assert!(written > 0, "it says when it goes on");
        history.finish().unwrap();
        assert_eq!(history.lost, lost);
        assert_eq!(read(folder.path()).len(), before + 25);
    }
}

#[test]
fn the_thread_writes_what_it_is_given_and_completes_the_last_file() {
    let folder = tempfile::tempdir().unwrap();
    let writer = HistoryWriter::open(HistoryOptions::new(folder.path())).unwrap();
    for number in 0..5 {
        writer.add(&Arc::new(timed(number, 1)));
    }
    assert_eq!(writer.status(), HistoryStatus::default());
    writer.close().unwrap();
    assert_eq!(read(folder.path()).len(), 5);
}
