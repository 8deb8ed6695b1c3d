//! Assessed queries on disk: one line of JSON each, in two files. When the second is full, it takes the place of the
//! first.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::recorder::StoredQuery;

const FILE: &str = "queries.jsonl";
const FILE_BEFORE: &str = "queries-before.jsonl";
/// The most bytes of each file. A query takes 10 to 100 KB.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// The queries in a folder, which no other collector may use.
#[derive(Debug)]
pub struct QueryLog {
    path: PathBuf,
    path_before: PathBuf,
    file_bytes_max: u64,
    file: File,
    bytes: u64,
}

impl QueryLog {
    /// Opens the log of a folder, which is created if necessary. It takes at most 64 MiB.
    ///
    /// # Errors
    /// If a file can't be created.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Self::open_with(folder, FILE_BYTES_MAX)
    }

    fn open_with(folder: &Path, file_bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join(FILE);
        let mut file = append(&path)?;
        let bytes = file.metadata()?.len();
        let mut log = Self { path_before: folder.join(FILE_BEFORE), path, file_bytes_max, bytes, file };
        if last_byte(&log.path)?.is_some_and(|byte| byte != b'\n') {
            // A crash has cut the last line.
            file = append(&log.path)?;
            file.write_all(b"\n")?;
            log.bytes += 1;
        }
        Ok(log)
    }

    /// The last `queries_max` queries that were written, the oldest first. Lines that can't be read are left out, and
    /// logged.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn read(&self, queries_max: usize) -> io::Result<Vec<StoredQuery>> {
        let mut queries = Vec::new();
        let mut damaged = 0_usize;
        for path in [&self.path, &self.path_before] {
            let text = end_of(path, self.file_bytes_max)?;
            for line in text.split(|byte| *byte == b'\n').rev().filter(|line| !line.is_empty()) {
                if queries.len() >= queries_max {
                    break;
                }
                match serde_json::from_slice::<StoredQuery>(line) {
                    Ok(query) if query.is_valid() => queries.push(query),
                    _ => damaged += 1,
                }
            }
        }
        if damaged > 0 {
            tracing::warn!(damaged, file = %self.path.display(), "lines of stored queries can't be read");
        }
        queries.reverse();
        Ok(queries)
    }

    /// Adds queries.
    ///
    /// # Errors
    /// If they can't be written. Then none of them is added.
    pub fn add(&mut self, queries: &[StoredQuery]) -> io::Result<()> {
        let mut text = Vec::new();
        for query in queries {
            let before = text.len();
            serde_json::to_writer(&mut text, query)?;
            text.push(b'\n');
            if (text.len() - before) as u64 > self.file_bytes_max {
                text.truncate(before);
            }
        }
        if text.is_empty() {
            return Ok(());
        }
        if self.bytes > 0 && self.bytes.saturating_add(text.len() as u64) > self.file_bytes_max {
            fs::rename(&self.path, &self.path_before)?;
            (self.file, self.bytes) = (append(&self.path)?, 0);
        }
        if let Err(error) = self.file.write_all(&text) {
            // What was written of them would damage the line that follows.
            self.file.set_len(self.bytes)?;
            return Err(error);
        }
        self.bytes += text.len() as u64;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

fn last_byte(path: &Path) -> io::Result<Option<u8>> {
    let text = end_of(path, 1)?;
    Ok(text.last().copied())
}

/// The last bytes of a file; none if there is no such file.
fn end_of(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(bytes_max)))?;
    let mut text = Vec::new();
    file.take(bytes_max).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Recorder, RecorderOptions};

    fn stored(id: &str) -> StoredQuery {
        let recorder = Recorder::new(RecorderOptions { wait_ns: 1, ..RecorderOptions::new(None) });
        recorder.query_began(id, "select 1", 5);
        recorder.query_ended(id, 10, crate::QueryEnd::default());
        recorder.tick(11);
        let (mut queries, last) = recorder.assessed_after(0);
        assert_eq!((queries.len(), last), (1, 1));
        assert_eq!(recorder.assessed_after(last), (Vec::new(), last));
        queries.remove(0)
    }

    fn ids(log: &QueryLog) -> Vec<String> {
        log.read(1000).unwrap().into_iter().map(|query| query.id).collect()
    }

    #[test]
    fn queries_come_back_after_a_restart_and_cut_lines_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = QueryLog::open(folder.path()).unwrap();
        log.add(&[stored("a"), stored("b")]).unwrap();
        log.add(&[]).unwrap();
        assert_eq!(log.read(9).unwrap(), [stored_as(&log, 0), stored_as(&log, 1)]);
        drop(log);
        let path = folder.path().join(FILE);
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 20]).unwrap();
        let mut log = QueryLog::open(folder.path()).unwrap();
        assert_eq!(ids(&log), ["a"]);
        log.add(&[stored("c")]).unwrap();
        assert_eq!(ids(&log), ["a", "c"]);
        assert_eq!(log.read(1).unwrap()[0].id, "c", "the last ones count");
    }

    fn stored_as(log: &QueryLog, index: usize) -> StoredQuery {
        let text = fs::read(&log.path).unwrap();
        serde_json::from_slice(text.split(|byte| *byte == b'\n').nth(index).unwrap()).unwrap()
    }

    #[test]
    fn old_queries_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let line = serde_json::to_vec(&stored("0")).unwrap().len() as u64 + 1;
        let mut log = QueryLog::open_with(folder.path(), 3 * line + 10).unwrap();
        (0..10).for_each(|number| log.add(&[stored(&number.to_string())]).unwrap());
        assert_eq!(ids(&log), ["6", "7", "8", "9"]);
        let bytes = |name: &str| fs::metadata(folder.path().join(name)).unwrap().len();
        assert!(bytes(FILE) <= log.file_bytes_max && bytes(FILE_BEFORE) <= log.file_bytes_max);
        let mut small = QueryLog::open_with(folder.path(), 10).unwrap();
        small.add(&[stored("large")]).unwrap();
        assert!(!ids(&log).contains(&"large".to_owned()), "one that is too large is left out");
    }

    #[test]
    fn a_folder_that_can_not_be_written_is_an_error_and_spoils_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = QueryLog::open(folder.path()).unwrap();
        log.add(&[stored("a")]).unwrap();
        log.file = File::open(&log.path).unwrap();
        assert!(log.add(&[stored("b")]).is_err());
        log.file = append(&log.path).unwrap();
        log.add(&[stored("c")]).unwrap();
        assert_eq!(ids(&log), ["a", "c"]);
    }
}
