//! The head of a message (`docs/format.md`, sections 5 and 6).

use crate::bytes::{Put, Reader};
use crate::codec::{Codec, Compression};
use crate::error::{Result, WireError, malformed};
use crate::layout::{HEAD_FIXED_BYTES, LIGHT_HEAD_FIXED_BYTES, NODE_BYTES, SLICE_BYTES, aligned_bytes};

/// The layout of the columns in a message's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Arrow buffers as they are.
    Plain,
    /// Each column in its own encoding.
    Light {
        /// The compressor of the compressed part.
        compression: Compression,
        /// Bytes of the encodings' numbers and parameters.
        schemes_bytes: u32,
        /// The size of the compressed part after decompression.
        unpacked_bytes: u32,
    },
}

/// Numbers of the layouts. 1 was a light layout that left views, union types and intervals unencoded.
const PLAIN: u8 = 0;
const LIGHT: u8 = 2;

/// The fields before the tables of a message.
pub(crate) struct Head {
    pub(crate) rows: u32,
    pub(crate) layout: Layout,
    pub(crate) nodes: u32,
    pub(crate) slices: u32,
    /// The size of the body in the plain layout.
    pub(crate) body_bytes: u32,
}

impl Head {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.rows);
        let (compression, layout) = match self.layout {
            Layout::Plain => (Compression::None, PLAIN),
            Layout::Light { compression, .. } => (compression, LIGHT),
        };
        out.put_u8(compression as u8);
        out.put_u8(layout);
        out.put_u16(0);
        out.put_u32(self.nodes);
        out.put_u32(self.slices);
        out.put_u32(self.body_bytes);
        if let Layout::Light { schemes_bytes, unpacked_bytes, .. } = self.layout {
            out.put_u32(schemes_bytes);
            out.put_u32(unpacked_bytes);
        }
    }

    pub(crate) fn read(payload: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("message", payload);
        let rows = reader.u32()?;
        let compression = Compression::parse(reader.u8()?)?;
        let (layout, reserved) = (reader.u8()?, reader.u16()?);
        let (nodes, slices, body_bytes) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let layout = match (layout, reserved) {
            (PLAIN, 0) if compression == Compression::None => Layout::Plain,
            (PLAIN, 0) => return Err(malformed("message", "compression in the plain layout")),
            (LIGHT, 0) => {
                Layout::Light { compression, schemes_bytes: reader.u32()?, unpacked_bytes: reader.u32()? }
            }
            _ => return Err(malformed("message", format!("unknown layout {layout}.{reserved}"))),
        };
        let head = Self { rows, layout, nodes, slices, body_bytes };
        match head.bytes() {
            needed if needed > payload.len() as u64 => {
                Err(WireError::Truncated { what: "message head", needed, available: payload.len() as u64 })
            }
            _ => Ok(head),
        }
    }

    /// The offset of the tables.
    pub(crate) fn fixed_bytes(&self) -> usize {
        match self.layout {
            Layout::Plain => HEAD_FIXED_BYTES,
            Layout::Light { .. } => LIGHT_HEAD_FIXED_BYTES,
        }
    }

    /// The offset of the body.
    pub(crate) fn bytes(&self) -> u64 {
        let schemes = match self.layout {
            Layout::Plain => 0,
            Layout::Light { schemes_bytes, .. } => u64::from(schemes_bytes),
        };
        let tables = u64::from(self.nodes) * NODE_BYTES as u64 + u64::from(self.slices) * SLICE_BYTES as u64;
        aligned_bytes(self.fixed_bytes() as u64 + tables + schemes)
    }

    /// The codec of the message.
    pub(crate) fn codec(&self) -> Codec {
        match self.layout {
            Layout::Plain => Codec::None,
            Layout::Light { compression: Compression::None, .. } => Codec::Light,
            Layout::Light { compression: Compression::Lz4, .. } => Codec::LightLz4,
            Layout::Light { compression: Compression::Zstd, .. } => Codec::LightZstd,
        }
    }
}
