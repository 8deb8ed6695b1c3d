//! Encoded pages of a Parquet row group, in memory up to a limit and beyond it in a temporary file.
//!
//! The chunks of a row group's columns follow each other in a file, so their pages wait until the group is
//! complete. With a file for them, row groups have a size that suits readers, whatever the memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use parquet::arrow::arrow_writer::{PageKey, PageStore, PageStoreArgs, PageStoreFactory};
use parquet::errors::{ParquetError, Result};

use super::output::Failures;

/// Where the pages of all columns are.
#[derive(Clone)]
pub(super) struct PageSpill {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    memory_bytes_max: usize,
    memory_bytes: usize,
    folder: PathBuf,
    /// Without a name, so that the system frees it when this process ends, however it ends.
    file: Option<File>,
    /// Where the next page goes in the file.
    end: u64,
    /// Pages in the file that have not been taken back.
    pages_in_file: usize,
    failures: Failures,
}

impl PageSpill {
    /// Keeps at most `memory_bytes_max` in memory, and the rest in a file in `folder`.
    pub(super) fn new(memory_bytes_max: usize, folder: PathBuf, failures: Failures) -> Self {
        let shared = Shared {
            memory_bytes_max,
            memory_bytes: 0,
            folder,
            file: None,
            end: 0,
            pages_in_file: 0,
            failures,
        };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for PageSpill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageSpill").finish_non_exhaustive()
    }
}

impl PageStoreFactory for PageSpill {
    fn create(&self, _: &PageStoreArgs<'_>) -> Result<Box<dyn PageStore>> {
        Ok(Box::new(ColumnPages { spill: self.clone(), pages: Vec::new() }))
    }
}

impl Shared {
    /// Appends a page to the file, and returns where it begins.
    fn append(&mut self, page: &[u8]) -> Result<u64> {
        let written = match &self.file {
            Some(file) => file.write_all_at(page, self.end),
            None => tempfile::tempfile_in(&self.folder).and_then(|file| {
                let file = self.file.insert(file);
                file.write_all_at(page, self.end)
            }),
        };
        written.map_err(|error| self.failed(error))?;
        let at = self.end;
        self.end += page.len() as u64;
        self.pages_in_file += 1;
        Ok(at)
    }

    fn read(&mut self, at: u64, bytes: usize) -> Result<Bytes> {
        let mut page = vec![0; bytes];
        match &self.file {
            Some(file) => file.read_exact_at(&mut page, at).map_err(|error| self.failed(error))?,
            None => return Err(taken_twice()),
        }
        self.pages_in_file -= 1;
        self.reuse();
        Ok(page.into())
    }

    /// Writes the pages of the next row group over those of the last one.
    fn reuse(&mut self) {
        if self.pages_in_file == 0 {
            self.end = 0;
        }
    }

    /// The error with the place of the file.
    fn failed(&self, error: io::Error) -> ParquetError {
        let reason = format!("a temporary file in {}: {error}", self.folder.display());
        self.failures.remember(io::Error::new(error.kind(), reason)).into()
    }
}

/// The pages of a column.
struct ColumnPages {
    spill: PageSpill,
    pages: Vec<Page>,
}

enum Page {
    Memory(Bytes),
    File { at: u64, bytes: usize },
    Taken,
}

impl PageStore for ColumnPages {
    fn put(&mut self, page: Bytes) -> Result<PageKey> {
        let mut shared = self.spill.lock();
        let page = if shared.memory_bytes + page.len() <= shared.memory_bytes_max {
            shared.memory_bytes += page.len();
            Page::Memory(page)
        } else {
            Page::File { at: shared.append(&page)?, bytes: page.len() }
        };
        self.pages.push(page);
        Ok(PageKey::new(self.pages.len() as u64 - 1))
    }

    fn take(&mut self, key: PageKey) -> Result<Bytes> {
        let page = usize::try_from(key.get()).ok().and_then(|at| self.pages.get_mut(at));
        let page = page.map_or(Page::Taken, |page| std::mem::replace(page, Page::Taken));
        let mut shared = self.spill.lock();
        match page {
            Page::Memory(bytes) => {
                shared.memory_bytes -= bytes.len();
                Ok(bytes)
            }
            Page::File { at, bytes } => shared.read(at, bytes),
            Page::Taken => Err(taken_twice()),
        }
    }
}

impl Drop for ColumnPages {
    fn drop(&mut self) {
        let mut shared = self.spill.lock();
        for page in &self.pages {
            match page {
                Page::Memory(bytes) => shared.memory_bytes -= bytes.len(),
                Page::File { .. } => shared.pages_in_file -= 1,
                Page::Taken => {}
            }
        }
        shared.reuse();
    }
}

fn taken_twice() -> ParquetError {
    ParquetError::General("a page was requested twice".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(spill: &PageSpill) -> ColumnPages {
        ColumnPages { spill: spill.clone(), pages: Vec::new() }
    }

    /// Bytes in memory and in the file.
    fn held(spill: &PageSpill) -> (usize, u64) {
        let shared = spill.lock();
        (shared.memory_bytes, shared.end)
    }

    #[test]
    fn pages_beyond_the_memory_are_in_a_file_that_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let spill = PageSpill::new(10, folder.path().into(), Failures::new("out"));
        for _ in 0..3 {
            let (mut first, mut second) = (pages(&spill), pages(&spill));
            let texts: Vec<Bytes> = (0..8_u8).map(|i| vec![i; 4].into()).collect();
            let keys: Vec<_> = texts
                .iter()
                .enumerate()
                .map(|(i, text)| if i % 2 == 0 { &mut first } else { &mut second }.put(text.clone()).unwrap())
                .collect();
            assert_eq!(held(&spill), (8, 24));
            for (i, (text, &key)) in texts.iter().zip(&keys).enumerate() {
                let pages = if i % 2 == 0 { &mut first } else { &mut second };
                assert_eq!(pages.take(key).unwrap(), text);
                pages.take(key).unwrap_err();
            }
            assert_eq!(held(&spill), (0, 0));
            // Pages that are not taken are freed too.
            let mut rest = pages(&spill);
            for text in texts {
                rest.put(text).unwrap();
            }
            drop(rest);
            assert_eq!(held(&spill), (0, 0));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    }

    #[test]
    fn an_error_names_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let mut pages = pages(&PageSpill::new(0, missing.clone(), Failures::new("out")));
        let error = pages.put(Bytes::from_static(b"x")).unwrap_err().to_string();
        assert!(error.contains(missing.to_str().unwrap()), "{error}");
    }
}
