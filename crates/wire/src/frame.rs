//! The header before everything that is sent (`docs/format.md`, section 2).

use crate::bytes::{Put, Reader};
use crate::cluster::TASK_BYTES_MAX;
use crate::control::QUEUED_BYTES;
use crate::error::{Result, WireError, malformed};

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"LSHP";
/// Version of the format that this crate reads and writes.
pub const VERSION: u8 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// Largest payload of any frame but those below and messages.
pub const CONTROL_BYTES_MAX: u32 = 1 << 20;
/// Largest payload of a hello: a server reads one from anybody who can reach it.
pub const HELLO_BYTES_MAX: u32 = 8 << 10;
/// Largest payload of a schema frame.
pub const SCHEMA_BYTES_MAX: u32 = 16 << 20;
/// Flag of a batch end: the result is complete, no more batches follow.
pub const FLAG_LAST: u16 = 1;
/// Flag of a ping: this is the answer.
pub const FLAG_REPLY: u16 = 1;
/// Flag of a message: its payload lies in shared memory, at the [`crate::local::Place`] sent in its stead.
pub const FLAG_PLACED: u16 = 1;
/// Flag of a placed message: the descriptor of a new segment came along, or before.
pub const FLAG_DESCRIPTOR: u16 = 2;
/// Flag of a message: its payload comes by a joined connection, as [`crate::join::Dealt`] says in its stead.
pub const FLAG_DEALT: u16 = 4;

const HEADER_CRC_OFFSET: usize = 28;
const _: () = assert!(HEADER_CRC_OFFSET + 4 == HEADER_BYTES);
const _: () = assert!(CONTROL_BYTES_MAX <= SCHEMA_BYTES_MAX);

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
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
    /// The consumer takes more batches.
    Credit = 6,
    /// The stream (or the connection, on stream 0) has failed.
    Error = 7,
    /// The consumer wants no more of this stream.
    Cancel = 8,
    /// Are you there? With [`FLAG_REPLY`]: yes.
    Ping = 9,
    /// What the producer measured.
    Stats = 10,
    /// What the consumer measured so far.
    Progress = 11,
    /// How the messages that follow are encoded, where the producer chooses.
    Retune = 12,
    /// What lets further connections join a result.
    Ticket = 13,
    /// This connection joins a result.
    Join = 14,
    /// A Unix socket of this host where client and server may meet.
    Meeting = 16,
    /// The consumer is done with these places in shared memory.
    Release = 17,
    /// How much is to travel at once: asked for, and begun.
    Resize = 18,
    /// What a node asks another one of its cluster for, and the plan of its transfer.
    Task = 19,
    /// All places are taken: the client waits in line for one.
    Queued = 20,
}

impl Kind {
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
            13 => Self::Ticket,
            14 => Self::Join,
            16 => Self::Meeting,
            17 => Self::Release,
            18 => Self::Resize,
            19 => Self::Task,
            20 => Self::Queued,
            other => return Err(malformed("frame", format!("unknown kind {other}"))),
        })
    }

    /// The largest payload a reader takes, where a message may have `message_bytes_max`.
    pub fn payload_bytes_max(self, message_bytes_max: u32) -> u32 {
        match self {
            Self::Message => message_bytes_max,
            Self::Hello => HELLO_BYTES_MAX,
            Self::Queued => QUEUED_BYTES as u32,
            Self::Schema => SCHEMA_BYTES_MAX,
            Self::Task => TASK_BYTES_MAX,
            _ => CONTROL_BYTES_MAX,
        }
    }
}

/// Header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// Meaning depends on the kind.
    pub flags: u16,
    /// Which result of this connection; 0 is the connection itself.
    pub stream: u32,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// Frames this side sent on this stream before this one.
    pub sequence: u64,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
}

impl Header {
    /// The header as it is sent.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.put_u8(VERSION);
        bytes.put_u8(self.kind as u8);
        bytes.put_u16(self.flags);
        bytes.put_u32(self.stream);
        bytes.put_u32(self.payload_bytes);
        bytes.put_u64(self.sequence);
        bytes.put_u32(self.payload_crc);
        bytes.put_u32(crc32c(&bytes));
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&bytes);
        header
    }

    /// Reads a header. The magic number is judged first, then the version, then
    /// the checksum, so that a peer of another kind or version is named as such.
    ///
    /// # Errors
    /// Every way in which 32 bytes are no header of this version.
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
        let sequence = reader.u64()?;
        let payload_crc = reader.u32()?;
        let found = reader.u32()?;
        let computed = crc32c(&bytes[..HEADER_CRC_OFFSET]);
        if found != computed {
            return Err(WireError::Checksum { what: "header", found, computed });
        }
        Ok(Self { kind: Kind::parse(kind)?, flags, stream, payload_bytes, sequence, payload_crc })
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

/// CRC-32C of bytes that lie in several places.
pub struct Crc32c(crc_fast::Digest);

impl Crc32c {
    /// Of no bytes yet.
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    /// Continues with these.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all.
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

    fn header() -> Header {
        Header {
            kind: Kind::Message,
            flags: 0x0102,
            stream: 7,
            payload_bytes: 9,
            sequence: 1 << 40,
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
    fn a_header_comes_back() {
        let header = header();
        assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        header.verify(b"123456789").unwrap();
        assert!(matches!(header.verify(b"123456780"), Err(WireError::Checksum { what: "payload", .. })));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = header().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = Header::decode(&bad).unwrap_err();
            match bit / 8 {
                0..4 => assert!(matches!(error, WireError::Magic { .. }), "{bit}: {error}"),
                4 => assert!(matches!(error, WireError::Version { .. }), "{bit}: {error}"),
                _ => assert!(matches!(error, WireError::Checksum { what: "header", .. }), "{bit}: {error}"),
            }
        }
    }
}
