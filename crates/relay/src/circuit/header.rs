//! What a message between two ends of circuits begins with.
//!
//! Every message of the relay, or of a trunk, is one of these headers of 24 bytes, and with `data`, bytes after it.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 2 | `LC` |
//! | 2 | 1 | version, 1 |
//! | 3 | 1 | kind |
//! | 4 | 4 | circuit: the number that its opener gave it |
//! | 8 | 4 | opener: 0 the sender of this message, 1 its receiver |
//! | 12 | 4 | why (end, done), else 0 |
//! | 16 | 8 | value |
//!
//! | kind | value | |
//! |---|---|---|
//! | 1 open | bytes of the opener's window | a circuit is there; the window is the same for all nodes |
//! | 2 data | offset in the stream of the first byte | bytes, one at least, and no more than was granted |
//! | 3 end | bytes of the whole stream | no others follow; why is 0, or says that it was cut short |
//! | 4 credit | offset in the stream | so far the receiver of this may send |
//! | 5 done | 0 | its sender needs no more bytes: it has all, or nobody reads them |
//! | 6 off | 0 | its sender takes nothing from this node any more; circuit, opener and why are 0 |
//!
//! Numbers are little-endian. Messages of a circuit may arrive in any order: a circuit is there with the first
//! of them, and handed to whoever accepts with its open. Each end says `end` once and `done` once, so that it is
//! known what may still come: a circuit is forgotten when both have said both, and all bytes up to the end have
//! come. Credit that comes later is ignored. Why is 1 when the circuit was dropped, 2 when there were too
//! many, 3 when nobody accepts any, 4 when the node closes.

use bytes::Bytes;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 24;

const MAGIC: [u8; 3] = *b"LC\x01";

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Open = 1,
    Data = 2,
    End = 3,
    Credit = 4,
    Done = 5,
    Off = 6,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let kinds = [Self::Open, Self::Data, Self::End, Self::Credit, Self::Done, Self::Off];
        kinds.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Why a stream ends, or is read no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Why {
    /// All is there.
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

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) circuit: u32,
    /// Whether the sender of this message has opened the circuit.
    pub(crate) by_sender: bool,
    pub(crate) why: Why,
    pub(crate) value: u64,
}

impl Header {
    /// That nothing more is taken.
    pub(crate) const OFF: Self =
        Self { kind: Kind::Off, circuit: 0, by_sender: true, why: Why::Whole, value: 0 };

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

    /// What a message says, and the bytes that follow; or what is wrong with it.
    pub(crate) fn decode(message: &Bytes) -> Result<(Self, Bytes), &'static str> {
        let Some(head) = message.first_chunk::<HEADER_BYTES>() else { return Err("no message of a circuit") };
        if head[..3] != MAGIC {
            return Err("no message of a circuit");
        }
        let word =
            |at: usize| head[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let by_sender = match word(8) {
            0 => true,
            1 => false,
            _ => return Err("a circuit of neither end"),
        };
        let header = Self {
            kind: Kind::of(head[3]).ok_or("no message of a circuit")?,
            circuit: word(4),
            by_sender,
            why: Why::of(word(12)).ok_or("an end for no reason")?,
            value: u64::from(word(20)) << 32 | u64::from(word(16)),
        };
        let bytes = message.slice(HEADER_BYTES..);
        match header.kind {
            Kind::Data if bytes.is_empty() => return Err("data without bytes"),
            Kind::Data => {}
            _ if !bytes.is_empty() => return Err("bytes where there are none"),
            Kind::Off if header != Self::OFF => return Err("more than an end"),
            Kind::Open if !by_sender => return Err("an open by another"),
            _ => {}
        }
        let may_say_why = matches!(header.kind, Kind::End | Kind::Done);
        if header.why != Why::Whole && !may_say_why {
            return Err("an end where there is none");
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

        /// Whatever can be read is written as the same bytes again; and nothing is a reason to panic.
        #[test]
        fn messages_are_read_as_they_are_written(
            mut bytes in vec(any::<u8>(), 0..40), (kind, opener, why) in (0..8_u8, 0..3_u8, 0..6_u8), ours in any::<bool>()
        ) {
            if ours && bytes.len() >= HEADER_BYTES {
                bytes[..4].copy_from_slice(&[b'L', b'C', 1, kind]);
                bytes[8..16].copy_from_slice(&[opener, 0, 0, 0, why, 0, 0, 0]);
            }
            let message = Bytes::from(bytes);
            if let Ok((header, body)) = Header::decode(&message) {
                prop_assert_eq!([&header.encode()[..], &body].concat(), message);
            }
        }

        #[test]
        fn headers_come_back(circuit in any::<u32>(), by_sender in any::<bool>(), value in any::<u64>(), why in 0..5_u32) {
            let why = Why::of(why).expect("one of them");
            let header = Header { kind: Kind::End, circuit, by_sender, why, value };
            let read = Header::decode(&Bytes::copy_from_slice(&header.encode()));
            prop_assert_eq!(read, Ok((header, Bytes::new())));
        }
    }

    #[test]
    fn the_bytes_of_data() {
        let header = Header {
            kind: Kind::Data,
            circuit: 1,
            by_sender: false,
            why: Why::Whole,
            value: 0x0102_0304_0506,
        };
        let expected = [b'L', b'C', 1, 2, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0];
        assert_eq!(header.encode(), expected);
    }

    #[test]
    fn what_is_none() {
        let good = Header { kind: Kind::Open, ..Header::OFF };
        let bytes = |header: Header, more: &[u8]| Bytes::from([&header.encode()[..], more].concat());
        let with = |at: usize, byte: u8| {
            let mut bytes = good.encode();
            bytes[at] = byte;
            Bytes::copy_from_slice(&bytes)
        };
        assert!(Header::decode(&bytes(good, b"")).is_ok());
        for (message, expected) in [
            (Bytes::new(), "no message of a circuit"),
            (bytes(good, b"").slice(..23), "no message of a circuit"),
            (with(0, b'X'), "no message of a circuit"),
            (with(2, 2), "no message of a circuit"),
            (with(3, 7), "no message of a circuit"),
            (with(8, 2), "a circuit of neither end"),
            (with(12, 5), "an end for no reason"),
            (with(12, 1), "an end where there is none"),
            (bytes(good, b"x"), "bytes where there are none"),
            (bytes(Header { kind: Kind::Data, ..good }, b""), "data without bytes"),
            (bytes(Header { by_sender: false, ..good }, b""), "an open by another"),
            (bytes(Header { circuit: 1, ..Header::OFF }, b""), "more than an end"),
        ] {
            assert_eq!(Header::decode(&message), Err(expected));
        }
    }
}
