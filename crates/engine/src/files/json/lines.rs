//! Files that have each object on its own line, which may be read in parts.

use std::io::{self, Read as _};
use std::panic::resume_unwind;
use std::thread::{self, available_parallelism};

use super::objects::Objects;
use super::shape::Shapes;
use crate::files::bytes::TextFile;
use crate::files::text::CHUNK_BYTES;
use crate::threads::THREAD_NAME;

/// Less is not worth a thread.
const PART_BYTES_MIN: u64 = 4 << 20;

/// The first line that begins at an offset of a plain file of `bytes` bytes, or later.
pub(super) fn start(text: &TextFile, bytes: u64, offset: u64) -> io::Result<u64> {
    if offset <= text.start || offset >= bytes {
        return Ok(offset.clamp(text.start.min(bytes), bytes));
    }
    // From one byte earlier: a line may begin exactly at the offset.
    let mut at = offset - 1;
    let mut rest = text.from(at)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match rest.read(&mut chunk)? {
            0 => return Ok(bytes),
            count => match memchr::memchr(b'\n', &chunk[..count]) {
                Some(newline) => return Ok((at + newline as u64 + 1).min(bytes)),
                None => at += count as u64,
            },
        }
    }
}

/// Learns from the lines of the first `sample_bytes` bytes of a plain file of this host, on all processors. `None` for other
/// and for small files, and if something is wrong with a line: reading the lines in order finds the first such line.
pub(super) fn learn(text: &TextFile, sample_bytes: u64) -> io::Result<Option<Shapes>> {
    if !text.is_plain || text.path.is_remote() {
        return Ok(None);
    }
    let processors = available_parallelism().map_or(1, usize::from) as u64;
    learn_in_parts(text, sample_bytes, |bytes| processors.min(bytes / PART_BYTES_MIN))
}

fn learn_in_parts(
    text: &TextFile,
    sample_bytes: u64,
    parts: impl Fn(u64) -> u64,
) -> io::Result<Option<Shapes>> {
    let file_bytes = text.path.bytes()?;
    let bytes = file_bytes.saturating_sub(text.start).min(sample_bytes);
    let parts = parts(bytes);
    if parts < 2 {
        return Ok(None);
    }
    // The line that the sample ends in is read too.
    let cut = |part: u64| {
        start(text, file_bytes, text.start + if part == parts { bytes } else { bytes / parts * part })
    };
    let learn_part = |part: u64| -> io::Result<Option<Shapes>> {
        let (from, to) = (cut(part)?, cut(part + 1)?);
        let mut objects = Objects::new(Box::new(text.from(from)?.take(to.saturating_sub(from))), true);
        let mut shapes = Shapes::default();
        while let Some((_, object)) = objects.next()? {
            if shapes.add(object).is_err() {
                return Ok(None);
            }
        }
        Ok(Some(shapes))
    };
    let learned = thread::scope(|scope| {
        let thread = || thread::Builder::new().name(THREAD_NAME.into());
        let spawn = |part: u64| thread().spawn_scoped(scope, move || learn_part(part));
        let threads = (0..parts).map(spawn).collect::<io::Result<Vec<_>>>()?;
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<io::Result<Option<Vec<Shapes>>>>()
    })?;
    Ok(learned
        .and_then(|learned| learned.into_iter().try_fold(Shapes::default(), |all, next| all.and(next).ok())))
}

#[cfg(test)]
mod tests {
    use lightship_sources::file_options::FileOptions;

    use super::*;
    use crate::files::bytes::Coding;

    #[test]
    fn parts_learn_what_one_reader_learns() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.json");
        let schema = |text: &str, sample_bytes: u64, parts: u64| {
            std::fs::write(&path, text).unwrap();
            let path = path.clone().into();
            let text = TextFile::open(&path, Coding::new(&FileOptions::default()).unwrap()).unwrap();
            let shapes = learn_in_parts(&text, sample_bytes, |_| parts).unwrap();
            shapes.map(|shapes| shapes.schema())
        };
        let one = |lines: &[&str]| {
            let mut shapes = Shapes::default();
            lines.iter().for_each(|line| shapes.add(line.as_bytes()).unwrap());
            Some(shapes.schema())
        };
        let lines =
            ["{\"z\": 1}", "{\"a\": [null]}", "", "{\"a\": [1.5], \"z\": true}", "  {\"b\": {\"c\": \"é\"}}"];
        let known =
            ["{\"z\": 1}", "{\"a\": [null]}", "{\"a\": [1.5], \"z\": true}", "{\"b\": {\"c\": \"é\"}}"];
        for text in [lines.join("\n"), format!("\u{feff}{}\r\n", lines.join("\r\n"))] {
            for parts in 2..text.len() as u64 + 3 {
                assert_eq!(schema(&text, u64::MAX, parts), one(&known), "{parts}");
            }
        }
        // A line that begins in the sample belongs to it.
        let text = lines.join("\n");
        for (sample_bytes, count) in [(9, 1), (10, 2), (24, 2), (25, 3), (48, 3), (49, 4)] {
            assert_eq!(schema(&text, sample_bytes, 2), one(&known[..count]), "{sample_bytes}");
        }
        // What is wrong is left to those who read in order.
        for wrong in ["{\"a\": 1}\n{\"a\": [1]}", "{\"a\": 1}\nx", "{\"a\": 1}\n{\"b\": 1, \"b\": 2}"] {
            assert_eq!(schema(wrong, u64::MAX, 2), None);
        }
        assert_eq!(schema("{\"a\": 1}\n{\"a\": 2}", u64::MAX, 1), None);
    }
}
