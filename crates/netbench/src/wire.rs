//! The protocol of a benchmark connection, except for the messages themselves. Converts values to bytes
//! and back; no I/O.
//!
//! A connection begins with a header from the client, which the server answers:
//!
//! | offset | header | offset | answer |
//! |---|---|---|---|
//! | 0 | `LSNB` | 0 | `LSNB` |
//! | 4 | version | 4 | version |
//! | 5 | mode: 0 control, 1 swallow, 2 echo, 3 supply, 4 both | 5 | 0 accepted, else the reason of the refusal |
//! | 6 | 1: Nagle's algorithm stays on | 6 | zeros |
//! | 7 | 0 | 8 | the run (u64) of a control connection |
//! | 8 | the run for which bytes are counted (u64) | | |
//! | 16 | message size in bytes (u32) | | |
//! | 20 | zeros | | |
//!
//! Numbers are little-endian. What follows depends on the mode:
//!
//! - *echo*: messages of that size. Once a whole message has arrived, the server answers with one of the
//!   same size and the same beginning.
//! - *swallow*: messages until the client shuts down its side, then a [`ReceivedCount`] from the server.
//! - *supply*: bytes from the server, until the client closes the connection.
//! - *both*: swallow and supply at once. The last bytes from the server are the [`ReceivedCount`].
//! - *control*: a byte from the client, 1 when a measurement begins and 2 when it ends. The server answers
//!   each with a [`Reading`].

/// The first bytes of header and answer.
const MAGIC: [u8; 4] = *b"LSNB";
const VERSION: u8 = 1;
const NAGLE: u8 = 1;

/// The length of a frame header of Lightship's protocol, so that a node that receives one can reject it
/// at once.
pub(crate) const HEADER_BYTES: usize = 32;
pub(crate) const ANSWER_BYTES: usize = 16;
pub(crate) const TALLY_BYTES: usize = 16;
pub(crate) const READING_BYTES: usize = 32;

/// The maximum message size.
pub const MESSAGE_BYTES_MAX: u32 = 64 << 20;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Control,
    Swallow,
    Echo,
    Supply,
    Both,
}

/// The header of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    pub(crate) mode: Mode,
    /// Leaves `TCP_NODELAY` off at both ends.
    pub(crate) nagle: bool,
    /// The run from a control connection's answer; 0 if nothing is counted.
    pub(crate) run: u64,
    pub(crate) message_bytes: u32,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The protocol versions differ.
    #[error("the server speaks another version")]
    Version,
    /// The server has its maximum number of connections.
    #[error("the server has reached its connection limit (--connections-max)")]
    Full,
    /// The message size is 0 or larger than [`MESSAGE_BYTES_MAX`].
    #[error("the server accepts messages of 1 byte to 64 MiB")]
    Size,
    /// The run does not exist or has ended.
    #[error("the server does not know the run")]
    Run,
    /// The header is invalid.
    #[error("the server does not understand the header")]
    Malformed,
}

const REFUSALS: [Refusal; 5] =
    [Refusal::Version, Refusal::Full, Refusal::Size, Refusal::Run, Refusal::Malformed];

/// Why a header is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// It belongs to another protocol: it gets no answer.
    Foreign,
    Refused(Refusal),
}

impl RequestHeader {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = match self.mode {
            Mode::Control => 0,
            Mode::Swallow => 1,
            Mode::Echo => 2,
            Mode::Supply => 3,
            Mode::Both => 4,
        };
        bytes[6] = if self.nagle { NAGLE } else { 0 };
        bytes[8..16].copy_from_slice(&self.run.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.message_bytes.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let refused = |why| Err(HeaderError::Refused(why));
        if bytes[..4] != MAGIC {
            return Err(HeaderError::Foreign);
        }
        if bytes[4] != VERSION {
            return refused(Refusal::Version);
        }
        let mode = match bytes[5] {
            0 => Mode::Control,
            1 => Mode::Swallow,
            2 => Mode::Echo,
            3 => Mode::Supply,
            4 => Mode::Both,
            _ => return refused(Refusal::Malformed),
        };
        if bytes[6] & !NAGLE != 0 || bytes[7] != 0 || bytes[20..] != [0; 12] {
            return refused(Refusal::Malformed);
        }
        let header =
            Self { mode, nagle: bytes[6] == NAGLE, run: u64_at(bytes, 8), message_bytes: u32_at(bytes, 16) };
        if mode != Mode::Control && !(1..=MESSAGE_BYTES_MAX).contains(&header.message_bytes) {
            return refused(Refusal::Size);
        }
        Ok(header)
    }
}

/// A server's answer to a header: the run of a control connection, or why it is refused.
pub(crate) type Reply = Result<u64, Refusal>;

pub(crate) fn answer_to_bytes(answer: Reply) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    match answer {
        Ok(run) => bytes[8..].copy_from_slice(&run.to_le_bytes()),
        Err(why) => {
            let place = REFUSALS.iter().zip(1..).find(|(refusal, _)| **refusal == why);
            bytes[5] = place.map_or(u8::MAX, |(_, code)| code);
        }
    }
    bytes
}

/// `None` if the bytes belong to another protocol.
pub(crate) fn parse_answer(bytes: &[u8; ANSWER_BYTES]) -> Option<Reply> {
    if bytes[..4] != MAGIC {
        return None;
    }
    Some(match bytes[5] {
        _ if bytes[4] != VERSION => Err(Refusal::Version),
        0 => Ok(u64_at(bytes, 8)),
        code => Err(REFUSALS.get(usize::from(code) - 1).copied().unwrap_or(Refusal::Malformed)),
    })
}

/// What the server received over one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReceivedCount {
    pub(crate) bytes: u64,
    /// Complete messages.
    pub(crate) messages: u64,
}

impl ReceivedCount {
    pub(crate) fn to_bytes(self) -> [u8; TALLY_BYTES] {
        let mut bytes = [0; TALLY_BYTES];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&self.messages.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; TALLY_BYTES]) -> Self {
        Self { bytes: u64_at(bytes, 0), messages: u64_at(bytes, 8) }
    }
}

/// Requests of a client over a control connection.
pub(crate) const BEGIN: u8 = 1;
pub(crate) const END: u8 = 2;

/// The progress of a run, by the server's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    /// Time since the server started.
    pub(crate) nanoseconds: u64,
    /// Bytes received for the run over all its connections.
    pub(crate) bytes: u64,
    /// Percent of one core since [`BEGIN`].
    pub(crate) process_percent: Option<f64>,
    /// Percent of all cores since [`BEGIN`].
    pub(crate) system_percent: Option<f64>,
}

impl Reading {
    pub(crate) fn to_bytes(self) -> [u8; READING_BYTES] {
        let mut bytes = [0; READING_BYTES];
        bytes[..8].copy_from_slice(&self.nanoseconds.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.process_percent.unwrap_or(f64::NAN).to_le_bytes());
        bytes[24..].copy_from_slice(&self.system_percent.unwrap_or(f64::NAN).to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; READING_BYTES]) -> Self {
        let percent = |at| {
            let percent = f64::from_bits(u64_at(bytes, at));
            (percent.is_finite() && percent >= 0.0).then_some(percent)
        };
        Self {
            nanoseconds: u64_at(bytes, 0),
            bytes: u64_at(bytes, 8),
            process_percent: percent(16),
            system_percent: percent(24),
        }
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(mode: Mode) -> RequestHeader {
        RequestHeader { mode, nagle: true, run: 7, message_bytes: 1024 }
    }

    #[test]
    fn invalid_headers_are_refused() {
        let check = |at: usize, byte: u8, error: HeaderError| {
            let mut bytes = header(Mode::Echo).to_bytes();
            bytes[at] = byte;
            assert_eq!(RequestHeader::parse(&bytes), Err(error), "{at}: {byte}");
        };
        check(0, b'G', HeaderError::Foreign);
        check(4, 2, HeaderError::Refused(Refusal::Version));
        check(5, 5, HeaderError::Refused(Refusal::Malformed));
        check(6, 2, HeaderError::Refused(Refusal::Malformed));
        check(7, 1, HeaderError::Refused(Refusal::Malformed));
        check(31, 1, HeaderError::Refused(Refusal::Malformed));
        check(19, 0x40, HeaderError::Refused(Refusal::Size));
        let none = RequestHeader { message_bytes: 0, ..header(Mode::Swallow) };
        assert_eq!(RequestHeader::parse(&none.to_bytes()), Err(HeaderError::Refused(Refusal::Size)));
    }

    #[test]
    fn answers_survive_a_round_trip() {
        for answer in REFUSALS.map(Err).into_iter().chain([Ok(0), Ok(u64::MAX)]) {
            assert_eq!(parse_answer(&answer_to_bytes(answer)), Some(answer));
        }
        assert_eq!(parse_answer(b"HTTP/1.1 400 Bad"), None);
        let mut odd = answer_to_bytes(Ok(1));
        odd[5] = 200;
        assert_eq!(parse_answer(&odd), Some(Err(Refusal::Malformed)));
    }

    #[test]
    fn invalid_percentages_of_a_hostile_server_are_dropped() {
        let reading = Reading {
            nanoseconds: 5,
            bytes: 6,
            process_percent: Some(f64::INFINITY),
            system_percent: Some(-1.0),
        };
        let read = Reading::parse(&reading.to_bytes());
        assert_eq!(read, Reading { process_percent: None, system_percent: None, ..reading });
        let sane = Reading { process_percent: Some(99.5), system_percent: None, ..reading };
        assert_eq!(Reading::parse(&sane.to_bytes()), sane);
    }

    proptest! {
        #[test]
        fn headers_survive_a_round_trip(mode in 0..5, nagle: bool, run: u64, size in 1..=MESSAGE_BYTES_MAX) {
            let mode = [Mode::Control, Mode::Swallow, Mode::Echo, Mode::Supply, Mode::Both][mode as usize];
            let header = RequestHeader { mode, nagle, run, message_bytes: size };
            prop_assert_eq!(RequestHeader::parse(&header.to_bytes()), Ok(header));
        }

        #[test]
        fn any_accepted_header_serialises_to_the_same_bytes(mut bytes: [u8; HEADER_BYTES], ours: bool) {
            if ours {
                bytes[..5].copy_from_slice(b"LSNB\x01");
            }
            if let Ok(header) = RequestHeader::parse(&bytes) {
                prop_assert_eq!(header.to_bytes(), bytes);
            }
        }
    }
}
