//! The datagrams between agents and collectors: `docs/format.md`, section 11.
//!
//! All of them are authenticated with keys that are derived from the cluster's token, which itself is never sent. They
//! are not encrypted: anyone who can read the network's traffic sees names of processes and what they use.

mod bytes;
mod description;
mod sample;

use bytes::Reader;
pub use description::{Description, ProcessName, SourceRow};
pub use sample::SamplePart;
pub(crate) use sample::figures_bytes;

/// The most bytes of a datagram, so that it fits into an Ethernet packet with IPv6 and the header of a tunnel.
pub const DATAGRAM_BYTES_MAX: usize = 1400;
/// The most bytes of a host's name.
pub const HOST_BYTES_MAX: usize = 64;
/// The most bytes of a query's name in [`Subject::Task`](lightship_usage::Subject::Task).
pub const QUERY_BYTES_MAX: usize = 128;
/// The most datagrams of one sample.
pub const PARTS_MAX: u16 = 512;

const MAGIC: [u8; 4] = *b"LSUD";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 56;
const ANSWER_BYTES: usize = 40;
const TAG_BYTES: usize = 16;
/// The most bytes between header and tag.
const BODY_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEADER_BYTES - TAG_BYTES;

const KIND_SAMPLE: u8 = 1;
const KIND_DESCRIPTION: u8 = 2;
const KIND_ANSWER: u8 = 3;

const FLAG_ANSWER: u16 = 1;
const FLAG_ANSWERED: u16 = 2;

/// Why a datagram is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// It has more than [`DATAGRAM_BYTES_MAX`].
    #[error("the datagram is too long")]
    Long,
    /// It ends too early.
    #[error("the datagram is truncated")]
    Cut,
    /// It is not a datagram of this format.
    #[error("not a datagram of an agent or collector")]
    Foreign,
    /// It has a version that this program does not know.
    #[error("unknown version {0}")]
    Version(u8),
    /// Its sender does not have the token, or it was modified on the way.
    #[error("the datagram is not authentic")]
    Forged,
    /// A field has a value that it can't have.
    #[error("invalid {0}")]
    Invalid(&'static str),
}

/// The keys of a token: one for each direction, so that no datagram can be sent back to its sender.
#[derive(Clone)]
pub struct Keys {
    agent: [u8; 32],
    collector: [u8; 32],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    /// The keys of a token.
    pub fn of(token: &str) -> Self {
        let key = |context| blake3::derive_key(context, token.as_bytes());
        Self {
            agent: key("lightship 2026 usage datagrams from agents"),
            collector: key("lightship 2026 usage datagrams from collectors"),
        }
    }
}

/// The fields before the body of an agent's datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramHeader {
    /// The run of the agent.
    pub run: u64,
    /// Datagrams that the agent sent to this collector before, in this run.
    pub sequence: u64,
    /// What the collector answered last; 0 before its first answer.
    pub session: u64,
    /// When it was sent, on the agent's clock, in nanoseconds.
    pub sent_ns: u64,
    /// Whether the collector should answer it.
    pub wants_answer: bool,
    /// The last answer that the agent received.
    pub answered: Option<Answered>,
}

/// An answer that an agent received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// The number of the datagram that it answers.
    pub sequence: u64,
    /// When it was received, on the agent's clock, in nanoseconds.
    pub received_ns: u64,
}

/// The contents of a datagram of an agent.
#[derive(Debug, Clone, PartialEq)]
pub enum DatagramBody {
    /// A sample, or a part of it.
    Sample(SamplePart),
    /// The host and the sources of its figures, or a part of them.
    Description(Description),
}

/// A collector's answer to a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The run of the datagram.
    pub run: u64,
    /// Its number.
    pub sequence: u64,
    /// What the agent must send from now on. It proves that the agent receives answers, and is alive.
    pub session: u64,
    /// The greatest run of this host that the collector knows. A datagram of a smaller run may be a repetition of an
    /// old one.
    pub run_seen: u64,
}

/// A body that is ready to be sent, to one collector or many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealableBody {
    kind: u8,
    bytes: Vec<u8>,
}

impl SealableBody {
    /// The bodies of a sample. Entries above [`PARTS_MAX`] datagrams are left out; the second value is their number.
    pub fn of_sample(sample: &lightship_usage::Sample) -> (Vec<Self>, u64) {
        let (bodies, left_out) = sample::encode(sample);
        (bodies.into_iter().map(|bytes| Self { kind: KIND_SAMPLE, bytes }).collect(), left_out)
    }

    /// The bodies of a description.
    pub fn of_description(description: &Description) -> Vec<Self> {
        let bodies = description::encode(description);
        bodies.into_iter().map(|bytes| Self { kind: KIND_DESCRIPTION, bytes }).collect()
    }

    /// A body of any bytes.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn for_fuzzing(kind: u8, mut bytes: Vec<u8>) -> Self {
        bytes.truncate(BODY_BYTES_MAX);
        Self { kind, bytes }
    }

    /// The datagram with this body.
    pub fn seal(&self, header: &DatagramHeader, keys: &Keys) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.bytes.len() + TAG_BYTES);
        let mut flags = 0;
        if header.wants_answer {
            flags |= FLAG_ANSWER;
        }
        if header.answered.is_some() {
            flags |= FLAG_ANSWERED;
        }
        put_start(&mut bytes, self.kind, flags);
        let answered = header.answered.unwrap_or(Answered { sequence: 0, received_ns: 0 });
        let numbers = [
            header.run,
            header.sequence,
            header.session,
            header.sent_ns,
            answered.sequence,
            answered.received_ns,
        ];
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        bytes.extend_from_slice(&self.bytes);
        put_tag(&mut bytes, &keys.agent);
        bytes
    }
}

/// Reads a datagram of an agent. It is authenticated before its fields are read.
///
/// # Errors
/// If it is not authentic, or not in the format.
pub fn open(bytes: &[u8], keys: &Keys) -> Result<(DatagramHeader, DatagramBody), DatagramError> {
    let (kind, flags, mut reader) = authentic(bytes, &keys.agent)?;
    let mut header = DatagramHeader {
        run: reader.u64()?,
        sequence: reader.u64()?,
        session: reader.u64()?,
        ..Default::default()
    };
    header.sent_ns = reader.u64()?;
    let answered = Answered { sequence: reader.u64()?, received_ns: reader.u64()? };
    header.wants_answer = flags & FLAG_ANSWER != 0;
    header.answered = (flags & FLAG_ANSWERED != 0).then_some(answered);
    let body = match kind {
        KIND_SAMPLE => DatagramBody::Sample(sample::decode(&mut reader, header.run)?),
        KIND_DESCRIPTION => DatagramBody::Description(description::decode(&mut reader)?),
        _ => return Err(DatagramError::Invalid("kind")),
    };
    Ok((header, body))
}

impl Answer {
    /// The datagram of an answer.
    pub fn seal(&self, keys: &Keys) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ANSWER_BYTES + TAG_BYTES);
        put_start(&mut bytes, KIND_ANSWER, 0);
        let numbers = [self.run, self.sequence, self.session, self.run_seen];
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        put_tag(&mut bytes, &keys.collector);
        bytes
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If it is not authentic, or not in the format.
    pub fn open(bytes: &[u8], keys: &Keys) -> Result<Self, DatagramError> {
        let (kind, _, mut reader) = authentic(bytes, &keys.collector)?;
        if kind != KIND_ANSWER || bytes.len() != ANSWER_BYTES + TAG_BYTES {
            return Err(DatagramError::Invalid("kind"));
        }
        let answer = Self {
            run: reader.u64()?,
            sequence: reader.u64()?,
            session: reader.u64()?,
            run_seen: reader.u64()?,
        };
        Ok(answer)
    }
}

fn put_start(bytes: &mut Vec<u8>, kind: u8, flags: u16) {
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[VERSION, kind]);
    bytes.extend_from_slice(&flags.to_le_bytes());
}

fn put_tag(bytes: &mut Vec<u8>, key: &[u8; 32]) {
    let hash = blake3::keyed_hash(key, bytes);
    bytes.extend(hash.as_bytes().iter().take(TAG_BYTES));
}

/// Kind, flags, and what follows them up to the tag, of a datagram whose tag is right.
fn authentic<'a>(bytes: &'a [u8], key: &[u8; 32]) -> Result<(u8, u16, Reader<'a>), DatagramError> {
    if bytes.len() > DATAGRAM_BYTES_MAX {
        return Err(DatagramError::Long);
    }
    let mut start = Reader(bytes);
    if start.array()? != MAGIC {
        return Err(DatagramError::Foreign);
    }
    let version = start.byte()?;
    if version != VERSION {
        return Err(DatagramError::Version(version));
    }
    let (said, tag) = bytes.split_last_chunk::<TAG_BYTES>().ok_or(DatagramError::Cut)?;
    // blake3 compares whole hashes in constant time. A tag is half of a hash, so the other half is made equal.
    let expected = blake3::keyed_hash(key, said);
    let mut whole = *expected.as_bytes();
    whole.iter_mut().zip(tag).for_each(|(byte, given)| *byte = *given);
    if blake3::Hash::from_bytes(whole) != expected {
        return Err(DatagramError::Forged);
    }
    let mut reader = Reader(said);
    reader.take(MAGIC.len() + 1)?;
    let kind = reader.byte()?;
    let flags = u16::from_le_bytes(reader.array()?);
    Ok((kind, flags, reader))
}

#[cfg(test)]
mod tests;
