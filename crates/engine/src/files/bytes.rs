//! The text of a file: its bytes, decompressed and decoded to UTF-8 while they are read.

use std::io::{self, BufReader, Cursor, Read, Seek as _, SeekFrom};
use std::path::Path;

use encoding_rs::{Decoder, DecoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE};
use lightship_sources::file_options::{Compression, FileOptions, compression_of};
use lightship_sources::objects::ObjectError;

use super::input::FilePath;
use super::read_ahead::ReadAhead;
use super::text::CHUNK_BYTES;
use crate::error::{EngineError, Result};

/// Memory for decompressing xz, whose strongest preset needs 65 MiB.
const XZ_BYTES_MAX: u64 = 256 << 20;

/// Windows of Zstandard frames: 128 MiB, as of the `zstd` program.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Bytes that show how a file is compressed.
const MAGIC_BYTES: u64 = 10;

/// The bytes of a text.
pub(super) type Bytes = Box<dyn Read + Send>;

/// How the bytes of a file become text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Coding {
    /// As given; otherwise, it follows from each file's name or contents.
    compression: Option<Compression>,
    /// As given; otherwise UTF-8, or UTF-16 after its byte order mark.
    encoding: Option<&'static Encoding>,
}

impl Coding {
    /// # Errors
    /// For an unknown encoding.
    pub(super) fn new(options: &FileOptions) -> Result<Self> {
        let encoding = options.encoding.as_deref().map(|label| {
            let unknown = || EngineError::Config(format!(
                "unknown encoding `{label}`; expected a label of the Encoding Standard, such as utf-8, latin1, \
                 windows-1252, utf-16le or shift_jis"
            ));
            Encoding::for_label(label.as_bytes()).ok_or_else(unknown)
        });
        Ok(Self { compression: options.compression, encoding: encoding.transpose()? })
    }

    /// The text of bytes that are read only once. Whether they are read as they are.
    pub(super) fn decode(self, bytes: Bytes, name: &Path) -> io::Result<(Bytes, bool)> {
        let (bytes, magic) = peek(bytes, MAGIC_BYTES)?;
        let given = self.compression.or_else(|| compression_of(name));
        let compression = given.unwrap_or_else(|| by_magic(&magic));
        let bytes = decompressed(bytes, compression)?;
        let (bytes, first) = peek(bytes, 2)?;
        let encoding = self.encoding.unwrap_or(match *first {
            [0xff, 0xfe] => UTF_16LE,
            [0xfe, 0xff] => UTF_16BE,
            _ => UTF_8,
        });
        if encoding == UTF_8 && compression == Compression::None {
            return Ok((bytes, true));
        }
        let bytes = if encoding == UTF_8 { bytes } else { Box::new(Decoded::new(bytes, encoding)) };
        Ok((Box::new(ReadAhead::new(bytes)), false))
    }
}

/// The compression of bytes that begin like this.
fn by_magic(bytes: &[u8]) -> Compression {
    match bytes {
        [0x1f, 0x8b, 8, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59] => Compression::Bzip2,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
        _ => Compression::None,
    }
}

/// The first bytes, which are not taken away.
pub(super) fn peek(mut bytes: Bytes, count: u64) -> io::Result<(Bytes, Vec<u8>)> {
    let mut first = Vec::new();
    bytes.by_ref().take(count).read_to_end(&mut first)?;
    Ok((Box::new(Cursor::new(first.clone()).chain(bytes)), first))
}

/// The first bytes up to the end of a line, or all, which are not taken away; of a long line at most 64 KiB. Does not wait
/// for more than that.
pub(super) fn peek_line(mut bytes: Bytes) -> io::Result<(Bytes, Vec<u8>)> {
    const LINE_BYTES_MAX: usize = 64 << 10;
    let (mut first, mut count) = (vec![0; LINE_BYTES_MAX], 0);
    while count < first.len() {
        match bytes.read(&mut first[count..]) {
            Ok(0) => break,
            Ok(more) => {
                count += more;
                if !first[..count].trim_ascii().is_empty() && first[..count].contains(&b'\n') {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    first.truncate(count);
    Ok((Box::new(Cursor::new(first.clone()).chain(bytes)), first))
}

/// The text after its byte order mark, and how long that is.
pub(super) fn skip_mark(bytes: Bytes) -> io::Result<(Bytes, u64)> {
    let (mut bytes, first) = peek(bytes, BYTE_ORDER_MARK.len() as u64)?;
    let mark = if first == BYTE_ORDER_MARK { first.len() as u64 } else { 0 };
    bytes.read_exact(&mut vec![0; mark as usize])?;
    Ok((bytes, mark))
}

fn decompressed(bytes: Bytes, compression: Compression) -> io::Result<Bytes> {
    let named = |name: &'static str, bytes: Bytes| -> Bytes { Box::new(Named { name, bytes }) };
    let buffered = |bytes| BufReader::with_capacity(CHUNK_BYTES, bytes);
    Ok(match compression {
        Compression::None => bytes,
        Compression::Gzip => named("gzip", Box::new(flate2::bufread::MultiGzDecoder::new(buffered(bytes)))),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(buffered(bytes))?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            named("zstd", Box::new(decoder))
        }
        Compression::Bzip2 => named("bzip2", Box::new(bzip2::bufread::MultiBzDecoder::new(buffered(bytes)))),
        Compression::Xz => {
            let flags = liblzma::stream::CONCATENATED;
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_BYTES_MAX, flags)?;
            named("xz", Box::new(liblzma::bufread::XzDecoder::new_stream(buffered(bytes), stream)))
        }
    })
}

/// Bytes that can't be decompressed or decoded.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Damaged(String);

/// Decompressed bytes, with the name of the compression in errors.
struct Named {
    name: &'static str,
    bytes: Bytes,
}

impl Read for Named {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.bytes.read(buffer).map_err(|error| {
            // The errors of the operating system and of object stores, and those of what is decompressed in turn.
            if error.raw_os_error().is_some() || ObjectError::find(&error).is_some() {
                return error;
            }
            let problem = match error.kind() {
                io::ErrorKind::UnexpectedEof => "incomplete".to_owned(),
                _ => format!("damaged or incomplete: {error}"),
            };
            io::Error::other(Damaged(format!("the {} data is {problem}", self.name)))
        })
    }
}

/// Bytes in another encoding, as UTF-8.
struct Decoded {
    bytes: Bytes,
    encoding: &'static Encoding,
    decoder: Decoder,
    input: Vec<u8>,
    /// The part of `input` that is still to be decoded.
    unread: std::ops::Range<usize>,
    output: Vec<u8>,
    given: usize,
    /// Position of `unread` among all bytes.
    offset: u64,
    is_done: bool,
}

impl Decoded {
    fn new(bytes: Bytes, encoding: &'static Encoding) -> Self {
        Self {
            bytes,
            encoding,
            decoder: encoding.new_decoder_with_bom_removal(),
            input: vec![0; CHUNK_BYTES],
            unread: 0..0,
            output: Vec::new(),
            given: 0,
            offset: 0,
            is_done: false,
        }
    }

    fn decode_more(&mut self) -> io::Result<()> {
        if self.unread.is_empty() {
            self.unread = 0..self.bytes.read(&mut self.input)?;
        }
        let ends = self.unread.is_empty();
        self.given = 0;
        // Enough for any encoding.
        self.output.resize(3 * CHUNK_BYTES + 16, 0);
        let source = &self.input[self.unread.clone()];
        let (result, read, written) =
            self.decoder.decode_to_utf8_without_replacement(source, &mut self.output, ends);
        self.output.truncate(written);
        self.unread.start += read;
        self.offset += read as u64;
        match result {
            DecoderResult::Malformed(bytes, after) => {
                let at = self.offset - u64::from(bytes) - u64::from(after);
                let name = self.encoding.name();
                Err(io::Error::other(Damaged(format!("byte {at} of the text is not {name}"))))
            }
            DecoderResult::InputEmpty => {
                self.is_done = ends;
                Ok(())
            }
            DecoderResult::OutputFull => Ok(()),
        }
    }
}

impl Read for Decoded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.output.len() && !self.is_done {
            self.decode_more()?;
        }
        let count = buffer.len().min(self.output.len() - self.given);
        buffer[..count].copy_from_slice(&self.output[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

/// A file that holds text. Offsets are those of the text.
#[derive(Debug, Clone)]
pub(super) struct TextFile {
    pub(super) path: FilePath,
    coding: Coding,
    /// Whether the file's bytes are the text.
    pub(super) is_plain: bool,
    /// Where the text begins: after its byte order mark.
    pub(super) start: u64,
}

impl TextFile {
    pub(super) fn open(path: &FilePath, coding: Coding) -> Result<Self> {
        let opened = || -> io::Result<Self> {
            let (bytes, is_plain) = coding.decode(Box::new(path.open()?), path)?;
            let (_, start) = skip_mark(bytes)?;
            Ok(Self { path: path.clone(), coding, is_plain, start })
        };
        opened().map_err(|e| failed(path, &e))
    }

    /// The text from an offset on, which takes time if it is not plain.
    pub(super) fn from(&self, offset: u64) -> io::Result<Bytes> {
        let mut file = self.path.open()?;
        if self.is_plain {
            file.seek(SeekFrom::Start(offset))?;
            return Ok(Box::new(file));
        }
        let (mut bytes, _) = self.coding.decode(Box::new(file), &self.path)?;
        io::copy(&mut bytes.by_ref().take(offset), &mut io::sink())?;
        Ok(bytes)
    }

    /// The line number, from 1, of an offset.
    pub(super) fn line_of(&self, offset: u64) -> io::Result<u64> {
        let mut before = self.from(0)?.take(offset);
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut line = 1;
        loop {
            match before.read(&mut chunk)? {
                0 => return Ok(line),
                count => line += memchr::memchr_iter(b'\n', &chunk[..count]).count() as u64,
            }
        }
    }
}

/// The bytes that may precede a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The error of a failed read.
pub(super) fn failed(path: &Path, error: &io::Error) -> EngineError {
    let message = format!("{}: {error}", path.display());
    match error.get_ref().is_some_and(|inner| inner.is::<Damaged>()) {
        true => {
            EngineError::bad_file(message, "write the file again, or give its --compression or --encoding")
        }
        false => EngineError::reading(path, error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn text_of(name: &str, bytes: &[u8], options: &FileOptions) -> Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let file = TextFile::open(&path.clone().into(), Coding::new(options)?)?;
        let mut text = String::new();
        let mut bytes = file.from(file.start).map_err(|e| failed(&path, &e))?;
        bytes.read_to_string(&mut text).map_err(|e| failed(&path, &e))?;
        Ok(text)
    }

    fn compress(text: &[u8]) -> [(&'static str, Vec<u8>); 4] {
        let level = flate2::Compression::default();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
        gzip.write_all(text).unwrap();
        let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::default());
        bzip2.write_all(text).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 6);
        xz.write_all(text).unwrap();
        // Without a checksum, damage may go undetected.
        let mut zstd = zstd::Encoder::new(Vec::new(), 3).unwrap();
        zstd.include_checksum(true).unwrap();
        zstd.write_all(text).unwrap();
        [
            ("gz", gzip.finish().unwrap()),
            ("zst", zstd.finish().unwrap()),
            ("bz2", bzip2.finish().unwrap()),
            ("xz", xz.finish().unwrap()),
        ]
    }

    #[test]
    fn compressed_text_is_recognised_by_name_and_by_content() {
        let text = "a,b\n1,é\n".repeat(1000);
        for (extension, bytes) in compress(text.as_bytes()) {
            for name in [format!("t.csv.{extension}"), "t.csv".to_owned()] {
                assert_eq!(text_of(&name, &bytes, &FileOptions::default()).unwrap(), text, "{name}");
                // Two members, as `cat` makes them.
                let twice = [bytes.clone(), bytes.clone()].concat();
                assert_eq!(
                    text_of(&name, &twice, &FileOptions::default()).unwrap(),
                    text.repeat(2),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn truncated_and_damaged_compressed_text_is_refused_with_the_name_of_the_file() {
        let mut random = fastrand::Rng::with_seed(1);
        let text: String = (0..3000).map(|n| format!("{n},{}\n", random.u64(..))).collect();
        for (extension, bytes) in compress(text.as_bytes()) {
            let name = format!("t.csv.{extension}");
            for end in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
                let error = text_of(&name, &bytes[..end], &FileOptions::default()).expect_err(&name);
                assert!(matches!(error, EngineError::BadFile { .. }), "{name} at {end}: {error:?}");
                assert!(error.to_string().contains(&name), "{error}");
            }
            for _ in 0..200 {
                let mut bytes = bytes.clone();
                let at = random.usize(..bytes.len());
                bytes[at] ^= 1 << random.u8(..8);
                // A flipped bit in a name or a time within the header of gzip does no harm.
                match text_of(&name, &bytes, &FileOptions::default()) {
                    Ok(read) => assert_eq!(read, text, "{name} at {at}"),
                    Err(EngineError::BadFile { .. }) => {}
                    Err(error) => panic!("{name} at {at}: {error:?}"),
                }
            }
        }
    }

    #[test]
    fn other_encodings_are_decoded() {
        let options =
            |encoding: &str| FileOptions { encoding: Some(encoding.into()), ..FileOptions::default() };
        assert_eq!(text_of("t.csv", b"caf\xe9,\x80", &options("latin1")).unwrap(), "café,€");
        let wide = |text: &str, big: bool| -> Vec<u8> {
            let bytes = |unit: u16| if big { unit.to_be_bytes() } else { unit.to_le_bytes() };
            text.encode_utf16().flat_map(bytes).collect()
        };
        let text = "a,😀é\n".repeat(100_000);
        for big in [false, true] {
            let marked = wide(&format!("\u{feff}{text}"), big);
            assert_eq!(text_of("t.csv", &marked, &FileOptions::default()).unwrap(), text);
            let label = if big { "utf-16be" } else { "utf-16le" };
            assert_eq!(text_of("t.csv", &wide(&text, big), &options(label)).unwrap(), text);
        }
        assert_eq!(text_of("t.csv", "\u{feff}a".as_bytes(), &FileOptions::default()).unwrap(), "a");
        let error = text_of("t.csv", b"ab\x81\x20c", &options("shift_jis")).unwrap_err();
        assert!(error.to_string().contains("t.csv: byte 2 of the text is not Shift_JIS"), "{error}");
        let odd = [wide("\u{feff}ab", false), vec![1]].concat();
        assert!(text_of("t.csv", &odd, &FileOptions::default()).is_err());
        assert!(matches!(text_of("t.csv", b"", &options("klingon")), Err(EngineError::Config(_))));
    }

    /// A gigabyte of zeros is read piece by piece.
    #[test]
    fn a_large_expansion_takes_little_memory() {
        let zeros = zstd::encode_all(io::repeat(0).take(1 << 30), 1).unwrap();
        let (mut bytes, _) =
            Coding::default().decode(Box::new(Cursor::new(zeros)), Path::new("t.csv.zst")).unwrap();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut total = 0_u64;
        loop {
            match bytes.read(&mut chunk).unwrap() {
                0 => break,
                count => total += count as u64,
            }
        }
        assert_eq!(total, 1 << 30);
    }
}
