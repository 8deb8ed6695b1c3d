//! The header of a message between two ends of circuits.
//!
//! Every message of the relay is a header of 24 bytes; `data` has bytes after it.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 2 | `LC` |
//! | 2 | 1 | version, 1 |
//! | 3 | 1 | kind |
//! | 4 | 4 | circuit: the number that its opener gave it |
//! | 8 | 4 | opener: 0 the sender of this message, 1 its receiver |
//! | 12 | 4 | reason (end, done), else 0 |
//! | 16 | 8 | value |
//!
//! | kind | value | |
//! |---|---|---|
//! | 1 open | bytes of the opener's window | opens a circuit; the window is the same on all nodes |
//! | 2 data | offset in the stream of the first byte | bytes: at least one, and no more than was granted |
//! | 3 end | bytes of the whole stream | no more bytes follow; the reason is not 0 if the stream was cut short |
//! | 4 credit | offset in the stream | the receiver of this message may send up to this offset |
//! | 5 done | 0 | the sender needs no more bytes: it has all, or the circuit was dropped there |
//! | 6 off | 0 | the sender ignores all later messages of this node; circuit, opener and reason are 0 |
//!
//! Numbers are little-endian. Messages of a circuit may arrive in any order: the first of them creates the
//! circuit, and its open makes it ready to be accepted. Each end sends `end` once and `done` once, so that
//! both know what may still arrive: a circuit is forgotten when both have sent both, and all bytes up to
//! the end have arrived. Later credit is ignored. The reason is 1 if the circuit was dropped, 2 if there
//! were too many circuits, 3 if the node accepts none, 4 if the node is closing.

use bytes::Bytes;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 24;

const MAGIC: [u8; 3] = *b"LC\x01";

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CircuitFrameKind {
    Open = 1,
    Data = 2,
    End = 3,
    Credit = 4,
    Done = 5,
    Off = 6,
}

impl CircuitFrameKind {
    fn of(byte: u8) -> Option<Self> {
        let kinds = [Self::Open, Self::Data, Self::End, Self::Credit, Self::Done, Self::Off];
        kinds.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Why a stream ends, or is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Why {
    /// The stream is complete.
    Whole = 0,
    Dropped = 1,
    Full = 2,
    Unwanted = 3,
    Closing = 4,
}

impl Why {
    fn of(number: u32) -> Option<Self> {
        let whys = [Self::Whole, Self::Dropped, Self::Full, Self::Unwanted, Self::Closing];
        whys.into_iter().find(|why| *why as u32 == number)
    }
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CircuitHeader {
    pub(crate) kind: CircuitFrameKind,
    pub(crate) circuit: u32,
    /// Whether the sender of this message opened the circuit.
    pub(crate) by_sender: bool,
    pub(crate) why: Why,
    pub(crate) value: u64,
}

impl CircuitHeader {
    /// The message that cuts off a node.
    pub(crate) const OFF: Self =
        Self { kind: CircuitFrameKind::Off, circuit: 0, by_sender: true, why: Why::Whole, value: 0 };

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..3].copy_from_slice(&MAGIC);
        out[3] = self.kind as u8;
        out[4..8].copy_from_slice(&self.circuit.to_le_bytes());
        out[8..12].copy_from_slice(&u32::from(!self.by_sender).to_le_bytes());
        out[12..16].copy_from_slice(&(self.why as u32).to_le_bytes());
        out[16..].copy_from_slice(&self.value.to_le_bytes());
        out
    }

    /// Decodes a message into its header and the bytes that follow; the error says what is wrong with it.
    pub(crate) fn decode(message: &Bytes) -> Result<(Self, Bytes), &'static str> {
        let Some(head) = message.first_chunk::<HEADER_BYTES>() else {
            return Err("not a message of a circuit");
        };
        if head[..3] != MAGIC {
            return Err("not a message of a circuit");
        }
        let word =
            |at: usize| head[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let by_sender = match word(8) {
            0 => true,
            1 => false,
            _ => return Err("invalid opener"),
        };
        let header = Self {
            kind: CircuitFrameKind::of(head[3]).ok_or("not a message of a circuit")?,
            circuit: word(4),
            by_sender,
            why: Why::of(word(12)).ok_or("invalid reason")?,
            value: u64::from(word(20)) << 32 | u64::from(word(16)),
        };
        let bytes = message.slice(HEADER_BYTES..);
        match header.kind {
            CircuitFrameKind::Data if bytes.is_empty() => return Err("data without bytes"),
            CircuitFrameKind::Data => {}
            _ if !bytes.is_empty() => return Err("this kind of message has no payload"),
            CircuitFrameKind::Off if header != Self::OFF => return Err("a field of off is not 0"),
            CircuitFrameKind::Open if !by_sender => return Err("an open of the other end's circuit"),
            _ => {}
        }
        let may_say_why = matches!(header.kind, CircuitFrameKind::End | CircuitFrameKind::Done);
        if header.why != Why::Whole && !may_say_why {
            return Err("this kind of message has no reason");
        }
        Ok((header, bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_decoded_message_encodes_to_the_same_bytes(
            mut bytes in vec(any::<u8>(), 0..40), (kind, opener, why) in (0..8_u8, 0..3_u8, 0..6_u8), ours in any::<bool>()
        ) {
            if ours && bytes.len() >= HEADER_BYTES {
                bytes[..4].copy_from_slice(&[b'L', b'C', 1, kind]);
                bytes[8..16].copy_from_slice(&[opener, 0, 0, 0, why, 0, 0, 0]);
            }
            let message = Bytes::from(bytes);
            if let Ok((header, body)) = CircuitHeader::decode(&message) {
                prop_assert_eq!([&header.encode()[..], &body].concat(), message);
            }
        }

        #[test]
        fn an_encoded_header_decodes_to_the_same(circuit in any::<u32>(), by_sender in any::<bool>(), value in any::<u64>(), why in 0..5_u32) {
            let why = Why::of(why).expect("one of them");
            let header = CircuitHeader { kind: CircuitFrameKind::End, circuit, by_sender, why, value };
            let read = CircuitHeader::decode(&Bytes::copy_from_slice(&header.encode()));
            prop_assert_eq!(read, Ok((header, Bytes::new())));
        }
    }

    #[test]
    fn the_bytes_of_data_are_as_documented() {
        let header = CircuitHeader {
            kind: CircuitFrameKind::Data,
            circuit: 1,
            by_sender: false,
            why: Why::Whole,
            value: 0x0102_0304_0506,
        };
        let expected = [b'L', b'C', 1, 2, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0];
        assert_eq!(header.encode(), expected);
    }

    #[test]
    fn invalid_messages_are_refused() {
        let good = CircuitHeader { kind: CircuitFrameKind::Open, ..CircuitHeader::OFF };
        let bytes = |header: CircuitHeader, more: &[u8]| Bytes::from([&header.encode()[..], more].concat());
        let with = |at: usize, byte: u8| {
            let mut bytes = good.encode();
            bytes[at] = byte;
            Bytes::copy_from_slice(&bytes)
        };
        assert!(CircuitHeader::decode(&bytes(good, b"")).is_ok());
        for (message, expected) in [
            (Bytes::new(), "not a message of a circuit"),
            (bytes(good, b"").slice(..23), "not a message of a circuit"),
            (with(0, b'X'), "not a message of a circuit"),
            (with(2, 2), "not a message of a circuit"),
            (with(3, 7), "not a message of a circuit"),
            (with(8, 2), "invalid opener"),
            (with(12, 5), "invalid reason"),
            (with(12, 1), "this kind of message has no reason"),
            (bytes(good, b"x"), "this kind of message has no payload"),
            (bytes(CircuitHeader { kind: CircuitFrameKind::Data, ..good }, b""), "data without bytes"),
            (bytes(CircuitHeader { by_sender: false, ..good }, b""), "an open of the other end's circuit"),
            (bytes(CircuitHeader { circuit: 1, ..CircuitHeader::OFF }, b""), "a field of off is not 0"),
        ] {
            assert_eq!(CircuitHeader::decode(&message), Err(expected));
        }
    }
}
