//! Codecs, and the compressors of the light layout.

use std::fmt;
use std::str::FromStr;

use arrow_buffer::Buffer;

use crate::error::{Result, WireError, malformed};

/// The layout of a message, and its compressor. The numbers are part of the format; 1 and 2 are not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Codec {
    /// Arrow buffers as they are. The receiver uses them in place.
    #[default]
    None = 0,
    /// Each column in its cheapest encoding. Worthwhile for links of up to about 1 GB/s.
    Light = 3,
    /// The same; buffers that LZ4 makes smaller are compressed with it.
    LightLz4 = 4,
    /// The same with Zstandard. The smallest messages, for slow links.
    LightZstd = 5,
}

impl Codec {
    /// All codecs, in order of the cost of encoding.
    pub const ALL: [Self; 4] = [Self::None, Self::Light, Self::LightLz4, Self::LightZstd];

    /// The codec's place in [`Self::ALL`], which is not its number on the wire.
    pub fn index(self) -> usize {
        match self {
            Self::None => 0,
            Self::Light => 1,
            Self::LightLz4 => 2,
            Self::LightZstd => 3,
        }
    }

    /// From its number on the wire.
    pub(crate) fn parse(byte: u8) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|&codec| codec as u8 == byte)
            .ok_or_else(|| malformed("plan", format!("unknown codec {byte}")))
    }

    /// Whether each column has its own encoding.
    pub(crate) fn is_light(self) -> bool {
        self != Self::None
    }

    /// The compressor.
    pub(crate) fn compression(self) -> Compression {
        match self {
            Self::None | Self::Light => Compression::None,
            Self::LightLz4 => Compression::Lz4,
            Self::LightZstd => Compression::Zstd,
        }
    }
}

/// A general compressor of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Compression {
    None = 0,
    /// LZ4 block.
    Lz4 = 1,
    /// Zstandard frame.
    Zstd = 2,
}

const ZSTD_LEVEL: i32 = 1;

impl Compression {
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::Zstd];

    pub(crate) fn parse(byte: u8) -> Result<Self> {
        Ok(match byte {
            0 => Self::None,
            1 => Self::Lz4,
            2 => Self::Zstd,
            other => return Err(malformed("message", format!("unknown compression {other}"))),
        })
    }

    /// Decompresses to exactly `body_bytes`, which the caller has bounded.
    pub(crate) fn restore(self, packed: Buffer, body_bytes: usize) -> Result<Buffer> {
        let body = match self {
            Self::None if packed.len() == body_bytes => return Ok(packed),
            Self::None => {
                let sent = packed.len();
                return Err(malformed("message", format!("a body of {sent} bytes, not of {body_bytes}")));
            }
            _ if body_bytes == 0 && packed.is_empty() => return Ok(packed),
            Self::Lz4 => lz4_flex::block::decompress(&packed, body_bytes)
                .map_err(|e| malformed("lz4 body", e.to_string()))?,
            Self::Zstd => zstd::bulk::decompress(&packed, body_bytes)
                .map_err(|e| malformed("zstd body", e.to_string()))?,
        };
        if body.len() == body_bytes {
            Ok(Buffer::from_vec(body))
        } else {
            Err(WireError::Truncated {
                what: "decompressed body",
                needed: body_bytes as u64,
                available: body.len() as u64,
            })
        }
    }
}

/// Reuses the memory of earlier compressions: a context of Zstandard is large, and creating it costs more than
/// compressing a small buffer.
#[derive(Default)]
pub(crate) struct Packer {
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

/// The approximate memory of a Zstandard compressor at the level that is used.
const ZSTD_BYTES: usize = 1 << 20;

impl Packer {
    /// The approximate memory that is kept.
    pub(crate) fn memory_bytes(&self) -> usize {
        if self.zstd.is_some() { ZSTD_BYTES } else { 0 }
    }

    /// `None` without compression.
    pub(crate) fn compress(&mut self, compression: Compression, body: &[u8]) -> Result<Option<Vec<u8>>> {
        let failed = |error: std::io::Error| malformed("zstd", error.to_string());
        match compression {
            Compression::None => Ok(None),
            Compression::Lz4 => Ok(Some(lz4_flex::block::compress(body))),
            Compression::Zstd => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(failed)?),
                };
                zstd.compress(body).map(Some).map_err(failed)
            }
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Light => "light",
            Self::LightLz4 => "light+lz4",
            Self::LightZstd => "light+zstd",
        })
    }
}

impl FromStr for Codec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|codec| codec.to_string() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(ToString::to_string).collect();
            format!("unknown codec `{text}`; expected one of {}", known.join(", "))
        })
    }
}
