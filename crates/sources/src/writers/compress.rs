//! Compresses a stream of bytes.

use std::io::{self, Write};

use flate2::write::GzEncoder;

use super::text_options::TextCompression;

/// Levels that are about as fast as lines are encoded. Higher ones are several times slower, and save about a fifth.
const GZIP_LEVEL: u32 = 1;
const ZSTD_LEVEL: i32 = 1;

/// A stream whose compressed bytes are taken out in between.
pub(super) enum Compressor {
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Compressor {
    /// `None` for no compression.
    pub(super) fn new(compression: TextCompression) -> io::Result<Option<Self>> {
        Ok(match compression {
            TextCompression::None => None,
            TextCompression::Gzip => {
                Some(Self::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL))))
            }
            TextCompression::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Some(Self::Zstd(encoder))
            }
        })
    }

    /// Compresses bytes, and returns what is ready.
    pub(super) fn compress(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(encoder) => {
                encoder.write_all(bytes)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
            Self::Zstd(encoder) => {
                encoder.write_all(bytes)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
        }
    }

    /// What a reader needs to see all bytes up to here.
    pub(super) fn flush(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(encoder) => {
                encoder.flush()?;
                Ok(std::mem::take(encoder.get_mut()))
            }
            Self::Zstd(encoder) => {
                encoder.flush()?;
                Ok(std::mem::take(encoder.get_mut()))
            }
        }
    }

    /// The end of the stream.
    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}
