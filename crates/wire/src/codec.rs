//! Compression of a whole message body.

use std::fmt;
use std::str::FromStr;

use crate::error::{Result, WireError, malformed};

/// How the body of a message is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Codec {
    /// Not at all: the receiver reads the Arrow buffers where they arrived.
    #[default]
    None = 0,
    /// LZ4 block. Cheap; pays from a few hundred megabytes a second downwards.
    Lz4 = 1,
    /// Zstandard frame, level 1. Pays on slow links.
    Zstd = 2,
}

const ZSTD_LEVEL: i32 = 1;

impl Codec {
    pub(crate) fn parse(byte: u8) -> Result<Self> {
        Ok(match byte {
            0 => Self::None,
            1 => Self::Lz4,
            2 => Self::Zstd,
            other => return Err(malformed("message", format!("unknown codec {other}"))),
        })
    }

    /// Compresses; `None` where the codec is none.
    pub(crate) fn compress(self, body: &[u8]) -> Result<Option<Vec<u8>>> {
        match self {
            Self::None => Ok(None),
            Self::Lz4 => Ok(Some(lz4_flex::block::compress(body))),
            Self::Zstd => {
                zstd::bulk::compress(body, ZSTD_LEVEL).map(Some).map_err(|e| malformed("zstd", e.to_string()))
            }
        }
    }

    /// Restores a body of exactly `body_bytes`, which the caller has bounded.
    pub(crate) fn decompress(self, packed: &[u8], body_bytes: usize) -> Result<Vec<u8>> {
        let body = match self {
            Self::None => packed.to_vec(),
            Self::Lz4 => lz4_flex::block::decompress(packed, body_bytes)
                .map_err(|e| malformed("lz4 body", e.to_string()))?,
            Self::Zstd => zstd::bulk::decompress(packed, body_bytes)
                .map_err(|e| malformed("zstd body", e.to_string()))?,
        };
        if body.len() == body_bytes {
            Ok(body)
        } else {
            Err(WireError::Truncated {
                what: "decompressed body",
                needed: body_bytes as u64,
                available: body.len() as u64,
            })
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

impl FromStr for Codec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "lz4" => Ok(Self::Lz4),
            "zstd" => Ok(Self::Zstd),
            other => Err(format!("no codec `{other}`; there are none, lz4, zstd")),
        }
    }
}
