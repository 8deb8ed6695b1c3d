//! Assembles a message: head, tables, stored and compressed parts.

use arrow_buffer::Buffer;

use crate::bytes::Put;
use crate::codec::{Codec, Compression};
use crate::error::{Result, WireError};
use crate::frame::Crc32c;
use crate::head::{Head, Layout};
use crate::layout::{ALIGNMENT, padding};

pub(crate) static ZEROS: [u8; ALIGNMENT] = [0; ALIGNMENT];

/// A message ready to be sent: pieces of memory, most of them shared with the batch.
#[derive(Debug, Clone)]
pub struct EncodedMessage {
    head: Vec<u8>,
    body: Vec<Piece>,
    /// The compressed part comes last, without padding.
    compressed: Buffer,
    codec: Codec,
    payload_bytes: u32,
    body_bytes: u32,
    rows: u32,
    crc32c: u32,
}

impl EncodedMessage {
    /// Bytes on the wire, without the frame's header.
    pub fn payload_bytes(&self) -> u32 {
        self.payload_bytes
    }

    /// Bytes of the rows in the plain layout, which is about their size in memory.
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// Rows in it.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The codec. It is plain if no encoding makes the message smaller.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// The payload in pieces, including padding.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let body = self.body.iter().flat_map(|piece| [piece.bytes.as_slice(), &ZEROS[..piece.padding]]);
        let ends = [self.head.as_slice(), self.compressed.as_slice()];
        std::iter::once(ends[0]).chain(body).chain(std::iter::once(ends[1])).filter(|piece| !piece.is_empty())
    }

    /// CRC-32C of the payload, computed during encoding.
    pub fn crc32c(&self) -> u32 {
        self.crc32c
    }

    /// A copy of the payload in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.payload_bytes as usize);
        self.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}

/// Memory that is sent as it is, and the zeros after it.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) bytes: Buffer,
    pub(crate) padding: usize,
}

impl Piece {
    fn len(&self) -> usize {
        self.bytes.len() + self.padding
    }
}

impl From<Buffer> for Piece {
    /// All of a buffer.
    fn from(bytes: Buffer) -> Self {
        Self { padding: padding(bytes.len()), bytes }
    }
}

pub(crate) fn padded_bytes<'b>(buffers: impl IntoIterator<Item = &'b Buffer>) -> usize {
    buffers.into_iter().map(|buffer| buffer.len() + padding(buffer.len())).sum()
}

/// The parts of a message.
pub(crate) struct Parts {
    pub(crate) rows: usize,
    pub(crate) nodes: Vec<Node>,
    /// The table of buffers.
    pub(crate) lengths: Vec<u64>,
    pub(crate) body_bytes: usize,
    pub(crate) stored: Vec<Piece>,
    /// `None` in the plain layout.
    pub(crate) light: Option<LightParts>,
}

/// What only the light layout has.
pub(crate) struct LightParts {
    pub(crate) schemes: Vec<u8>,
    pub(crate) compression: Compression,
    /// The compressed part, and its size after decompression.
    pub(crate) compressed: Buffer,
    pub(crate) unpacked_bytes: usize,
}

impl Parts {
    /// Bytes after the head.
    pub(crate) fn body_len(&self) -> usize {
        let light = self.light.as_ref().map_or(0, |light| light.schemes.len() + light.compressed.len());
        light + self.stored_len()
    }

    fn stored_len(&self) -> usize {
        self.stored.iter().map(Piece::len).sum()
    }

    pub(crate) fn message(self) -> Result<EncodedMessage> {
        let fits = |value: u64, what| {
            u32::try_from(value).map_err(|_| WireError::TooLarge {
                what,
                bytes: value,
                limit: u64::from(u32::MAX),
            })
        };
        let layout = match &self.light {
            None => Layout::Plain,
            Some(light) => Layout::Light {
                compression: light.compression,
                schemes_bytes: fits(light.schemes.len() as u64, "message schemes")?,
                unpacked_bytes: fits(light.unpacked_bytes as u64, "message body")?,
            },
        };
        let head = Head {
            rows: fits(self.rows as u64, "message rows")?,
            layout,
            nodes: fits(self.nodes.len() as u64, "message nodes")?,
            slices: fits(self.lengths.len() as u64, "message buffers")?,
            body_bytes: fits(self.body_bytes as u64, "message body")?,
        };
        let mut bytes = Vec::with_capacity(head.bytes() as usize);
        head.put(&mut bytes);
        for node in &self.nodes {
            bytes.put_u32(fits(node.len as u64, "message node")?);
            bytes.put_u32(fits(node.nulls as u64, "message node")?);
        }
        for &length in &self.lengths {
            bytes.put_u32(fits(length, "message buffer")?);
        }
        if let Some(light) = &self.light {
            bytes.extend_from_slice(&light.schemes);
        }
        bytes.resize(head.bytes() as usize, 0);
        let stored_len = self.stored_len();
        let compressed = self.light.map(|light| light.compressed).unwrap_or_default();
        let sent = bytes.len() + stored_len + compressed.len();
        let mut message = EncodedMessage {
            payload_bytes: fits(sent as u64, "message")?,
            body_bytes: head.body_bytes,
            rows: head.rows,
            codec: head.codec(),
            crc32c: 0,
            head: bytes,
            body: self.stored,
            compressed,
        };
        let mut crc = Crc32c::new();
        message.pieces().for_each(|piece| crc.update(piece));
        message.crc32c = crc.finish();
        Ok(message)
    }
}

pub(crate) struct Node {
    pub(crate) len: usize,
    pub(crate) nulls: usize,
}
