//! The header of a frame (`docs/format.md`, section 2).

use crate::bytes::{Put, Reader};
use crate::cluster::TASK_BYTES_MAX;
use crate::control::QUEUED_BYTES;
use crate::error::{Result, WireError, malformed};
use crate::overlay::OVERLAY_BYTES_MAX;
use crate::statement::STATEMENT_BYTES_MAX;

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"LSHP";
/// Version of the format that this crate reads and writes.
pub const VERSION: u8 = 2;
/// The size of a header.
pub const HEADER_BYTES: usize = 32;
/// Largest payload of a control frame, except those below.
pub const CONTROL_BYTES_MAX: u32 = 1 << 20;
/// Largest payload of a hello. A server reads one from every client that connects, before authentication.
pub const HELLO_BYTES_MAX: u32 = 8 << 10;
/// Largest payload of a schema frame.
pub const SCHEMA_BYTES_MAX: u32 = 16 << 20;
/// Flag of a batch end: the result is complete, no more batches follow.
pub const FLAG_LAST: u16 = 1;
/// Flag of a ping: it answers another ping.
pub const FLAG_REPLY: u16 = 1;
/// Flag of a message: its payload lies in shared memory, and the frame contains a [`crate::shm::SegmentSlot`].
pub const FLAG_PLACED: u16 = 1;
/// Flag of a placed message: the segment is new, and its descriptor was sent with this frame or an earlier one.
pub const FLAG_DESCRIPTOR: u16 = 2;
/// Flag of a message: its payload comes over a joined connection, and the frame contains a
/// [`crate::join::Placeholder`].
pub const FLAG_PLACEHOLDER: u16 = 4;

const HEADER_CRC_OFFSET: usize = 28;
const _: () = assert!(HEADER_CRC_OFFSET + 4 == HEADER_BYTES);
const _: () = assert!(CONTROL_BYTES_MAX <= SCHEMA_BYTES_MAX);

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame of either side: version, token, limits.
    Hello = 1,
    /// SQL and the plan of its transfer.
    Query = 2,
    /// Columns of the result: the query was accepted.
    Schema = 3,
    /// A run of rows.
    Message = 4,
    /// The batch is complete; with [`FLAG_LAST`] the result is.
    BatchEnd = 5,
    /// The consumer allows more batches.
    Credit = 6,
    /// The stream (or the connection, on stream 0) has failed.
    Error = 7,
    /// The consumer cancels the stream.
    Cancel = 8,
    /// A check that the peer is alive; with [`FLAG_REPLY`], the answer.
    Ping = 9,
    /// What the producer measured.
    Stats = 10,
    /// What the consumer measured so far.
    Progress = 11,
    /// The codec of the messages that follow, if the producer chooses it.
    Retune = 12,
    /// An offer that further connections join a result.
    StripeOffer = 13,
    /// This stream joins a result.
    Join = 14,
    /// A Unix socket on this host to which the client may move.
    Rendezvous = 16,
    /// The consumer releases slots of shared memory.
    Release = 17,
    /// A request for other sizes, or the answer to it.
    Resize = 18,
    /// A request to another node of the cluster, and the plan of its transfer.
    Task = 19,
    /// All slots are taken: the client waits in the queue.
    Queued = 20,
    /// The nodes at the ends of a connection of an overlay.
    Neighbour = 21,
    /// A neighbour in an overlay has room for more frames of a class.
    ClassCredit = 22,
    /// A tunnel, or a connection of an overlay, has ended in this direction.
    Close = 23,
    /// A node of the overlay was lost.
    Lost = 24,
    /// SQL with the values of its parameters, or a request to describe it.
    Statement = 25,
    /// What became of a connection of an overlay.
    LinkNotice = 26,
}

impl FrameKind {
    fn parse(byte: u8) -> Result<Self> {
        Ok(match byte {
            1 => Self::Hello,
            2 => Self::Query,
            3 => Self::Schema,
            4 => Self::Message,
            5 => Self::BatchEnd,
            6 => Self::Credit,
            7 => Self::Error,
            8 => Self::Cancel,
            9 => Self::Ping,
            10 => Self::Stats,
            11 => Self::Progress,
            12 => Self::Retune,
            13 => Self::StripeOffer,
            14 => Self::Join,
            16 => Self::Rendezvous,
            17 => Self::Release,
            18 => Self::Resize,
            19 => Self::Task,
            20 => Self::Queued,
            21 => Self::Neighbour,
            22 => Self::ClassCredit,
            23 => Self::Close,
            24 => Self::Lost,
            25 => Self::Statement,
            26 => Self::LinkNotice,
            other => return Err(malformed("frame", format!("unknown kind {other}"))),
        })
    }

    /// The largest payload that a reader accepts, if a message may have `message_bytes_max`.
    pub fn payload_bytes_max(self, message_bytes_max: u32) -> u32 {
        match self {
            Self::Message => message_bytes_max,
            Self::Hello => HELLO_BYTES_MAX,
            Self::Queued => QUEUED_BYTES as u32,
            Self::Schema => SCHEMA_BYTES_MAX,
            Self::Task => TASK_BYTES_MAX,
            Self::Statement => STATEMENT_BYTES_MAX,
            Self::Neighbour | Self::ClassCredit | Self::Close | Self::Lost | Self::LinkNotice => {
                OVERLAY_BYTES_MAX
            }
            _ => CONTROL_BYTES_MAX,
        }
    }
}

/// Header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// Meaning depends on the kind.
    pub flags: u16,
    /// The stream; 0 is the connection itself.
    pub stream: u32,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// Bytes of the payload that follow this header. If they are fewer than `payload_bytes`, the next frames of
    /// the stream continue the payload, with headers that differ only in this field.
    pub part_bytes: u32,
    /// Payloads that this side sent on this stream before this one, modulo 2^32.
    pub sequence: u32,
    /// CRC-32C of the whole payload.
    pub payload_crc: u32,
}

impl FrameHeader {
    /// The header of a frame with its whole payload.
    pub fn whole(kind: FrameKind, flags: u16, stream: u32, sequence: u32, payload: &[u8]) -> Self {
        let payload_bytes = payload.len() as u32;
        let payload_crc = crc32c(payload);
        Self { kind, flags, stream, payload_bytes, part_bytes: payload_bytes, sequence, payload_crc }
    }

    /// The header as it is sent.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.put_u8(VERSION);
        bytes.put_u8(self.kind as u8);
        bytes.put_u16(self.flags);
        bytes.put_u32(self.stream);
        bytes.put_u32(self.payload_bytes);
        bytes.put_u32(self.part_bytes);
        bytes.put_u32(self.sequence);
        bytes.put_u32(self.payload_crc);
        bytes.put_u32(crc32c(&bytes));
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&bytes);
        header
    }

    /// Decodes a header. The magic number is checked first, then the version, then the checksum, so that a peer
    /// with another protocol or version gets a specific error.
    ///
    /// # Errors
    /// If the bytes are not a valid header of this version.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self> {
        let mut reader = Reader::new("frame", bytes);
        let mut magic = [0; 4];
        magic.copy_from_slice(reader.take(4)?);
        if magic != MAGIC {
            return Err(WireError::Magic { found: magic });
        }
        let version = reader.u8()?;
        if version != VERSION {
            return Err(WireError::Version { found: version, known: VERSION });
        }
        let kind = reader.u8()?;
        let flags = reader.u16()?;
        let stream = reader.u32()?;
        let payload_bytes = reader.u32()?;
        let part_bytes = reader.u32()?;
        let sequence = reader.u32()?;
        let payload_crc = reader.u32()?;
        let found = reader.u32()?;
        let computed = crc32c(&bytes[..HEADER_CRC_OFFSET]);
        if found != computed {
            return Err(WireError::Checksum { what: "header", found, computed });
        }
        let kind = FrameKind::parse(kind)?;
        let is_whole = part_bytes == payload_bytes;
        let is_part = 0 < part_bytes && part_bytes < payload_bytes;
        if !is_whole && !is_part {
            return Err(malformed(
                "frame",
                format!("{part_bytes} of {payload_bytes} bytes of a {kind:?} frame"),
            ));
        }
        Ok(Self { kind, flags, stream, payload_bytes, part_bytes, sequence, payload_crc })
    }

    /// Compares the payload with the header's checksum.
    ///
    /// # Errors
    /// [`WireError::Checksum`].
    pub fn verify(&self, payload: &[u8]) -> Result<()> {
        let computed = crc32c(payload);
        if computed == self.payload_crc {
            Ok(())
        } else {
            Err(WireError::Checksum { what: "payload", found: self.payload_crc, computed })
        }
    }
}

/// CRC-32C (Castagnoli) of some bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-32C of bytes in several pieces.
pub struct Crc32c(crc_fast::Digest);

impl Crc32c {
    /// The checksum of no bytes.
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes.
    pub fn finish(self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Message,
            flags: 0x0102,
            stream: 7,
            payload_bytes: 9,
            part_bytes: 4,
            sequence: 1 << 30,
            payload_crc: crc32c(b"123456789"),
        }
    }

    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut parts = Crc32c::new();
        parts.update(b"1234");
        parts.update(b"");
        parts.update(b"56789");
        assert_eq!(parts.finish(), 0xe306_9283);
    }

    #[test]
    fn a_header_is_decoded_as_it_was_encoded() {
        let header = header();
        assert_eq!(FrameHeader::decode(&header.encode()).unwrap(), header);
        header.verify(b"123456789").unwrap();
        assert!(matches!(header.verify(b"123456780"), Err(WireError::Checksum { what: "payload", .. })));
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let good = header().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = FrameHeader::decode(&bad).unwrap_err();
            match bit / 8 {
                0..4 => assert!(matches!(error, WireError::Magic { .. }), "{bit}: {error}"),
                4 => assert!(matches!(error, WireError::Version { .. }), "{bit}: {error}"),
                _ => assert!(matches!(error, WireError::Checksum { what: "header", .. }), "{bit}: {error}"),
            }
        }
    }
}
