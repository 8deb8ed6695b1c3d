//! What is on the wire between two nodes: frames of a header of 32 bytes, and a message's bytes.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 2 | `LR` |
//! | 2 | 1 | version, 1 |
//! | 3 | 1 | kind |
//! | 4 | 4 | from: the node that made a message, opens a connection, or was lost |
//! | 8 | 4 | to: the node that a message or a connection is for |
//! | 12 | 4 | hops of a message; class of credit; use of a connection (hello) |
//! | 16 | 8 | number of a message; count of credit; digest of the topology (hello) |
//! | 24 | 4 | bytes of the message, that follow |
//! | 28 | 4 | 0 |
//!
//! Numbers are little-endian. A hello opens a connection and is answered by accept or refuse; then come
//! messages, credit, and a close or the word of a failure.

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 32;

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
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let kinds =
            [Self::Hello, Self::Accept, Self::Refuse, Self::Message, Self::Credit, Self::Close, Self::Failed];
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

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Hops, class, or use.
    pub(crate) hops: u32,
    /// Number, count, or digest.
    pub(crate) id: u64,
    pub(crate) bytes: u32,
}

impl Header {
    /// One of a kind, with nothing else to say.
    pub(crate) fn bare(kind: Kind, from: u32, to: u32) -> Self {
        Self { kind, from, to, hops: 0, id: 0, bytes: 0 }
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
        out
    }

    /// Nothing when it is no header of ours.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let [m0, m1, version, kind, a0, a1, a2, a3, b0, b1, b2, b3, h0, h1, h2, h3, rest @ ..] = bytes;
        let [i0, i1, i2, i3, i4, i5, i6, i7, n0, n1, n2, n3, 0, 0, 0, 0] = rest else { return None };
        let kind = Kind::of(*kind).filter(|_| ([*m0, *m1], *version) == (MAGIC, VERSION))?;
        let header = Self {
            kind,
            from: u32::from_le_bytes([*a0, *a1, *a2, *a3]),
            to: u32::from_le_bytes([*b0, *b1, *b2, *b3]),
            hops: u32::from_le_bytes([*h0, *h1, *h2, *h3]),
            id: u64::from_le_bytes([*i0, *i1, *i2, *i3, *i4, *i5, *i6, *i7]),
            bytes: u32::from_le_bytes([*n0, *n1, *n2, *n3]),
        };
        // Only messages have bytes.
        (header.bytes == 0 || kind == Kind::Message).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is read as a header is written as the same bytes again.
        #[test]
        fn headers_are_read_as_they_are_written(
            mut bytes in any::<[u8; HEADER_BYTES]>(), kind in 0..9_u8, ours in any::<bool>()
        ) {
            if ours {
                bytes[..4].copy_from_slice(&[b'L', b'R', 1, kind]);
                bytes[28..].fill(0);
                if kind != Kind::Message as u8 {
                    bytes[24..28].fill(0);
                }
            }
            let header = Header::decode(&bytes);
            prop_assert_eq!(header.is_some(), ours && (1..=7).contains(&kind));
            if let Some(header) = header {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }

    #[test]
    fn the_bytes_of_a_message() {
        let header = Header { kind: Kind::Message, from: 1, to: 2, hops: 3, id: 4, bytes: 5 };
        let mut expected = [0; HEADER_BYTES];
        expected[..4].copy_from_slice(&[b'L', b'R', 1, 4]);
        for (at, value) in [(4, 1), (8, 2), (12, 3), (16, 4), (24, 5)] {
            expected[at] = value;
        }
        assert_eq!(header.encode(), expected);
    }
}
