//! What is on the wire between two nodes: frames of a header of 36 bytes, and the bytes of a message or a token.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 2 | `LR` |
//! | 2 | 1 | version, 1 |
//! | 3 | 1 | kind |
//! | 4 | 4 | from: the node that made a message, opens a connection, or was lost |
//! | 8 | 4 | to: the node that a message or a connection is for |
//! | 12 | 4 | hops of a message; class of credit; use of a connection (hello); why (refuse) |
//! | 16 | 8 | number of a message; count of credit; digest of the topology (hello) |
//! | 24 | 4 | bytes that follow: of the message, or of the token (hello) |
//! | 28 | 4 | CRC-32C of these |
//! | 32 | 4 | CRC-32C of the header up to here |
//!
//! Numbers are little-endian. A hello opens a connection and is answered by accept or refuse; then come
//! messages, credit, a sign of life every few seconds, and a close or the word of a failure. The checksum of a message is its sender's: those
//! who forward it compare, and pass it on.

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 36;
/// Most bytes of a token.
pub(crate) const TOKEN_BYTES_MAX: usize = 1024;

/// Where the checksum of the header is.
const CRC_AT: usize = 32;

const MAGIC: [u8; 2] = *b"LR";
const VERSION: u8 = 1;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Hello = 1,
    Accept = 2,
    Refuse = 3,
    Message = 4,
    Credit = 5,
    Close = 6,
    Failed = 7,
    Alive = 8,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let kinds = [
            Self::Hello,
            Self::Accept,
            Self::Refuse,
            Self::Message,
            Self::Credit,
            Self::Close,
            Self::Failed,
            Self::Alive,
        ];
        kinds.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The use of a connection, as its hello says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Use {
    Topology = 0,
    DirectOneWay = 1,
    DirectBothWays = 2,
}

impl Use {
    pub(crate) fn of(number: u32) -> Option<Self> {
        let uses = [Self::Topology, Self::DirectOneWay, Self::DirectBothWays];
        uses.into_iter().find(|this| *this as u32 == number)
    }
}

/// Why a connection is refused, as the answer says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Why {
    /// It was not for this node, or there is no room for it.
    No = 0,
    /// The overlay is another.
    Overlay = 1,
    /// The token is not known.
    Token = 2,
}

impl Why {
    pub(crate) fn of(number: u32) -> Self {
        let whys = [Self::Overlay, Self::Token];
        whys.into_iter().find(|this| *this as u32 == number).unwrap_or(Self::No)
    }
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Hops, class, use, or why.
    pub(crate) hops: u32,
    /// Number, count, or digest.
    pub(crate) id: u64,
    pub(crate) bytes: u32,
    /// Of the bytes that follow.
    pub(crate) crc: u32,
}

impl Header {
    /// One of a kind, with nothing else to say.
    pub(crate) fn bare(kind: Kind, from: u32, to: u32) -> Self {
        Self { kind, from, to, hops: 0, id: 0, bytes: 0, crc: 0 }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..2].copy_from_slice(&MAGIC);
        out[2] = VERSION;
        out[3] = self.kind as u8;
        out[4..8].copy_from_slice(&self.from.to_le_bytes());
        out[8..12].copy_from_slice(&self.to.to_le_bytes());
        out[12..16].copy_from_slice(&self.hops.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        out[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        out[28..CRC_AT].copy_from_slice(&self.crc.to_le_bytes());
        let own = crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&own.to_le_bytes());
        out
    }

    /// What it says; or what is wrong with it.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, &'static str> {
        if bytes[..3] != [MAGIC[0], MAGIC[1], VERSION] {
            return Err("no frame");
        }
        let word =
            |at: usize| bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        if word(CRC_AT) != crc32c(&bytes[..CRC_AT]) {
            return Err("a damaged frame");
        }
        let kind = Kind::of(bytes[3]).ok_or("no frame")?;
        let header = Self {
            kind,
            from: word(4),
            to: word(8),
            hops: word(12),
            id: u64::from(word(20)) << 32 | u64::from(word(16)),
            bytes: word(24),
            crc: word(28),
        };
        let carries = matches!(kind, Kind::Message | Kind::Hello);
        let is_bare = header.bytes == 0 && header.crc == 0;
        if carries || is_bare { Ok(header) } else { Err("bytes where there are none") }
    }
}

/// CRC-32C (Castagnoli).
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn sealed(bytes: &mut [u8; HEADER_BYTES]) {
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is read as a header is written as the same bytes again.
        #[test]
        fn headers_are_read_as_they_are_written(
            mut bytes in any::<[u8; HEADER_BYTES]>(), kind in 0..12_u8, ours in any::<bool>()
        ) {
            if ours {
                bytes[..4].copy_from_slice(&[b'L', b'R', 1, kind]);
                if ![Kind::Message as u8, Kind::Hello as u8].contains(&kind) {
                    bytes[24..CRC_AT].fill(0);
                }
                sealed(&mut bytes);
            }
            let header = Header::decode(&bytes);
            prop_assert_eq!(header.is_ok(), ours && (1..=8).contains(&kind));
            if let Ok(header) = header {
                prop_assert_eq!(header.encode(), bytes);
            }
        }

        /// One bit is enough.
        #[test]
        fn damage_is_seen(bit in 0..8 * HEADER_BYTES, id in any::<u64>()) {
            let mut bytes = Header { id, hops: 1, ..Header::bare(Kind::Message, 1, 2) }.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&bytes).is_err());
        }
    }

    #[test]
    fn the_bytes_of_a_message() {
        let header = Header { kind: Kind::Message, from: 1, to: 2, hops: 3, id: 4, bytes: 5, crc: 6 };
        let mut expected = [0; HEADER_BYTES];
        expected[..4].copy_from_slice(&[b'L', b'R', 1, 4]);
        for (at, value) in [(4, 1), (8, 2), (12, 3), (16, 4), (24, 5), (28, 6)] {
            expected[at] = value;
        }
        sealed(&mut expected);
        assert_eq!(header.encode(), expected);
        // The check value of the Castagnoli polynomial.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn bytes_only_where_there_are_some() {
        for (kind, carries) in [(Kind::Credit, false), (Kind::Close, false), (Kind::Hello, true)] {
            let header = Header { bytes: 1, ..Header::bare(kind, 1, 2) };
            assert_eq!(Header::decode(&header.encode()).is_ok(), carries);
        }
    }
}
