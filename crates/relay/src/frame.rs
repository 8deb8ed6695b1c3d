//! The frames between two nodes: a header of 36 bytes, then the bytes of a message or a token.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 2 | `LR` |
//! | 2 | 1 | version, 1 |
//! | 3 | 1 | kind |
//! | 4 | 4 | from: the node that made a message, opens a connection, or was lost |
//! | 8 | 4 | to: the node that a message or a connection is for |
//! | 12 | 4 | hops of a message; class of credit; use of a connection (hello); reason (refuse) |
//! | 16 | 8 | number of a message; count of credit; digest of the topology (hello) |
//! | 24 | 4 | bytes that follow: of the message, or of the token (hello) |
//! | 28 | 4 | CRC-32C of the bytes that follow |
//! | 32 | 4 | CRC-32C of the header up to here |
//!
//! Numbers are little-endian. A hello opens a connection and is answered by accept or refuse. Then follow
//! messages, credit, heartbeats (alive), and at last close or failed. The first sender of a message
//! computes its checksum; forwarding nodes verify it and pass it on.

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 36;
/// Bytes of the longest token.
pub(crate) const TOKEN_BYTES_MAX: usize = 1024;

/// The offset of the header's checksum.
const CRC_AT: usize = 32;

const MAGIC: [u8; 2] = *b"LR";
const VERSION: u8 = 1;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RelayFrameKind {
    Hello = 1,
    Accept = 2,
    Refuse = 3,
    Message = 4,
    Credit = 5,
    Close = 6,
    Failed = 7,
    Alive = 8,
}

impl RelayFrameKind {
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

/// The use of a connection, as in its hello.
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

/// Why a connection is refused, as in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Why {
    /// It was not for this node, or the limit of connections is reached.
    No = 0,
    /// Epoch, topology, queue size or message size differ.
    Overlay = 1,
    /// The token is wrong.
    Token = 2,
}

impl Why {
    pub(crate) fn of(number: u32) -> Self {
        let whys = [Self::Overlay, Self::Token];
        whys.into_iter().find(|this| *this as u32 == number).unwrap_or(Self::No)
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RelayHeader {
    pub(crate) kind: RelayFrameKind,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Hops, class, use, or reason.
    pub(crate) hops: u32,
    /// Number, count, or digest.
    pub(crate) id: u64,
    pub(crate) bytes: u32,
    /// CRC-32C of the bytes that follow.
    pub(crate) crc: u32,
}

impl RelayHeader {
    /// A header whose other fields are 0.
    pub(crate) fn bare(kind: RelayFrameKind, from: u32, to: u32) -> Self {
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

    /// Decodes a header; the error says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, &'static str> {
        if bytes[..3] != [MAGIC[0], MAGIC[1], VERSION] {
            return Err("not a frame");
        }
        let word =
            |at: usize| bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        if word(CRC_AT) != crc32c(&bytes[..CRC_AT]) {
            return Err("the checksum of the header is wrong");
        }
        let kind = RelayFrameKind::of(bytes[3]).ok_or("not a frame")?;
        let header = Self {
            kind,
            from: word(4),
            to: word(8),
            hops: word(12),
            id: u64::from(word(20)) << 32 | u64::from(word(16)),
            bytes: word(24),
            crc: word(28),
        };
        let carries = matches!(kind, RelayFrameKind::Message | RelayFrameKind::Hello);
        let is_bare = header.bytes == 0 && header.crc == 0;
        if carries || is_bare { Ok(header) } else { Err("this kind of frame has no payload") }
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

        #[test]
        fn a_decoded_header_encodes_to_the_same_bytes(
            mut bytes in any::<[u8; HEADER_BYTES]>(), kind in 0..12_u8, ours in any::<bool>()
        ) {
            if ours {
                bytes[..4].copy_from_slice(&[b'L', b'R', 1, kind]);
                if ![RelayFrameKind::Message as u8, RelayFrameKind::Hello as u8].contains(&kind) {
                    bytes[24..CRC_AT].fill(0);
                }
                sealed(&mut bytes);
            }
            let header = RelayHeader::decode(&bytes);
            prop_assert_eq!(header.is_ok(), ours && (1..=8).contains(&kind));
            if let Ok(header) = header {
                prop_assert_eq!(header.encode(), bytes);
            }
        }

        #[test]
        fn a_single_wrong_bit_is_detected(bit in 0..8 * HEADER_BYTES, id in any::<u64>()) {
            let mut bytes = RelayHeader { id, hops: 1, ..RelayHeader::bare(RelayFrameKind::Message, 1, 2) }.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(RelayHeader::decode(&bytes).is_err());
        }
    }

    #[test]
    fn the_bytes_of_a_message_are_as_documented() {
        let header =
            RelayHeader { kind: RelayFrameKind::Message, from: 1, to: 2, hops: 3, id: 4, bytes: 5, crc: 6 };
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
    fn only_some_kinds_of_frames_have_a_payload() {
        for (kind, carries) in
            [(RelayFrameKind::Credit, false), (RelayFrameKind::Close, false), (RelayFrameKind::Hello, true)]
        {
            let header = RelayHeader { bytes: 1, ..RelayHeader::bare(kind, 1, 2) };
            assert_eq!(RelayHeader::decode(&header.encode()).is_ok(), carries);
        }
    }
}
