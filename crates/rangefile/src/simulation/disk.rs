//! A disk in memory. When it loses power, each write that was not synced is there, is not there, or is there in
//! part, in any order; what was synced is there.

use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::{Database, StorageBackend};

/// What a disk writes wholly or not at all.
const SECTOR_BYTES: usize = 512;
/// Little, so that reads come from the disk.
const CACHE_BYTES: usize = 256 << 10;

#[derive(Debug)]
enum Change {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

impl Change {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Write(_, bytes) if bytes.is_empty())
    }

    fn apply(&self, contents: &mut Vec<u8>) {
        match self {
            Self::SetLen(len) => contents.resize(*len, 0),
            Self::Write(start, bytes) => {
                contents.resize(contents.len().max(start + bytes.len()), 0);
                contents[*start..start + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Contents {
    /// As it is read.
    now: Vec<u8>,
    synced: Vec<u8>,
    /// In order, those that were not synced.
    changes: Vec<Change>,
    /// Writes and syncs until it loses power.
    left: Option<u64>,
    is_off: bool,
    is_full: bool,
}

/// Cheap to clone; clones are the same disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk {
    contents: Arc<Mutex<Contents>>,
}

impl Disk {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn database(&self) -> Result<Database, redb::DatabaseError> {
        Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(self.clone())
    }

    /// Loses power after this many writes and syncs.
    pub(super) fn cut_after(&self, writes: u64) {
        self.lock().left = Some(writes);
    }

    pub(super) fn is_off(&self) -> bool {
        self.lock().is_off
    }

    /// Refuses writes from now on, or no longer.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.lock().is_full = is_full;
    }

    /// What is synced, as another disk.
    pub(super) fn synced(&self) -> Self {
        Self::of(self.lock().synced.clone())
    }

    fn of(contents: Vec<u8>) -> Self {
        let contents = Contents { now: contents.clone(), synced: contents, ..Contents::default() };
        Self { contents: Arc::new(Mutex::new(contents)) }
    }

    /// Switches it off. Returns a disk with what is there when it is on again.
    pub(super) fn lose_power(&self, random: &mut fastrand::Rng) -> Self {
        let mut contents = self.lock();
        contents.is_off = true;
        let mut found = std::mem::take(&mut contents.synced);
        // Changes of the length are in the journal of a file system: some first ones are there.
        let changes = std::mem::take(&mut contents.changes);
        drop(contents);
        let lengths = changes.iter().filter(|change| matches!(change, Change::SetLen(_))).count();
        let mut lengths_left = random.usize(0..=lengths);
        let mut kept: Vec<Change> = Vec::new();
        // Often all or nothing is lost.
        let chance = [0.0, 0.5, 0.9, 1.0][random.usize(0..4)];
        for change in changes {
            match change {
                Change::SetLen(_) if lengths_left == 0 => {}
                Change::SetLen(len) => {
                    lengths_left -= 1;
                    change.apply(&mut found);
                    for write in &mut kept {
                        if let Change::Write(start, bytes) = write {
                            bytes.truncate(len.saturating_sub(*start));
                        }
                    }
                }
                Change::Write(start, bytes) if random.f64() < chance => {
                    kept.push(match random.bool() {
                        true => Change::Write(start, bytes),
                        false => {
                            let pieces = bytes.chunks(SECTOR_BYTES).enumerate();
                            kept.extend(pieces.filter(|_| random.f64() < chance).map(|(piece, bytes)| {
                                Change::Write(start + piece * SECTOR_BYTES, bytes.to_vec())
                            }));
                            continue;
                        }
                    });
                }
                Change::Write(..) => {}
            }
        }
        // Any subset is any order, for two writes of a sector stay in theirs: the page cache has the later one.
        kept.iter().filter(|change| !change.is_empty()).for_each(|change| change.apply(&mut found));
        Self::of(found)
    }

    fn change(&self, change: Change) -> Result<(), Error> {
        let mut contents = self.lock();
        contents.check(true)?;
        if contents.is_full {
            return Err(Error::from(ErrorKind::StorageFull));
        }
        change.apply(&mut contents.now);
        contents.changes.push(change);
        contents.check(false)
    }
}

impl Contents {
    /// Fails if the disk is off; `counts` another write or sync.
    fn check(&mut self, counts: bool) -> Result<(), Error> {
        if counts && let Some(left) = &mut self.left {
            // The write that is under way may be on the disk too.
            self.is_off |= *left == 0;
            *left = left.saturating_sub(1);
        }
        if self.is_off { Err(Error::other("the disk is off")) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.lock().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let mut contents = self.lock();
        contents.check(false)?;
        let start = offset as usize;
        let found = contents.now.get(start..start + out.len());
        out.copy_from_slice(found.ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.change(Change::SetLen(len as usize))
    }

    fn sync_data(&self) -> Result<(), Error> {
        let mut contents = self.lock();
        contents.check(true)?;
        let Contents { synced, changes, .. } = &mut *contents;
        changes.drain(..).for_each(|change| change.apply(synced));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.change(Change::Write(offset as usize, data.to_vec()))
    }
}

#[test]
fn power_loss_keeps_what_was_synced_and_tears_the_rest() {
    let mut random = fastrand::Rng::with_seed(1);
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for _ in 0..200 {
        let disk = Disk::default();
        disk.write(0, &[1; 4096]).unwrap();
        disk.sync_data().unwrap();
        disk.write(1024, &[2; 2048]).unwrap();
        let after = disk.lose_power(&mut random);
        assert!(disk.write(0, &[3]).is_err());
        let contents = after.lock().now.clone();
        let changed = contents.chunks(SECTOR_BYTES).filter(|sector| sector.iter().all(|byte| *byte == 2));
        match changed.count() {
            0 => lost += 1,
            4 => kept += 1,
            _ => torn += 1,
        }
        assert!(contents[..1024].iter().chain(&contents[3072..]).all(|byte| *byte == 1));
    }
    assert!(kept > 10 && lost > 10 && torn > 10, "{kept} {lost} {torn}");
}
