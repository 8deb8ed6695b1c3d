//! What two ends say to each other besides rows (`docs/format.md`, section 3).

use arrow_schema::Schema;

use crate::bytes::{Put, Reader};
use crate::codec::Codec;
use crate::error::{Result, malformed};
use crate::schema;

/// First frame of either side, on stream 0.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Hello {
    /// Name and version of the program, for logs.
    pub agent: String,
    /// Bearer token; empty for none. A server sends none.
    pub token: String,
    /// Bits for what this side can do beyond what every peer can: see [`crate::tuning`],
    /// [`crate::local`] and [`crate::join`].
    pub capabilities: u64,
    /// This side pings after so long a silence, and gives up after three times as long.
    pub ping_interval_ms: u32,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hello").field("agent", &self.agent).finish_non_exhaustive()
    }
}

impl Hello {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_str(&self.agent);
        out.put_str(&self.token);
        out.put_u64(self.capabilities);
        out.put_u32(self.ping_interval_ms);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are no hello.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("hello", bytes);
        let hello = Self {
            agent: reader.str()?.to_owned(),
            token: reader.str()?.to_owned(),
            capabilities: reader.u64()?,
            ping_interval_ms: reader.u32()?,
        };
        reader.end()?;
        Ok(hello)
    }
}

/// Bit of a hello: the client can be told that it waits in line.
pub const CAPABILITY_QUEUE: u64 = 1 << 7;
/// Payload of a frame that says so.
pub const QUEUED_BYTES: usize = 8;

/// All places for clients are taken; the client waits in line for one, and is welcome when its turn comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// Clients that wait for longer.
    pub ahead: u32,
    /// The server refuses the client after it has waited for so long.
    pub wait_ms: u32,
}

impl Queued {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(QUEUED_BYTES);
        out.put_u32(self.ahead);
        out.put_u32(self.wait_ms);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are no place in line.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("queued", bytes);
        let queued = Self { ahead: reader.u32()?, wait_ms: reader.u32()? };
        reader.end()?;
        Ok(queued)
    }
}

/// How a result travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// F: most rows of a batch; 0 leaves it to `batch_bytes`.
    pub batch_rows: u32,
    /// A batch is closed before its messages' bodies pass this many bytes
    /// (unless one message alone does). The consumer holds at most
    /// `window_batches` times as much.
    pub batch_bytes: u32,
    /// M: the size that messages are cut to.
    pub message_bytes: u32,
    /// The largest message that the consumer takes, where one row needs more than M.
    pub message_bytes_max: u32,
    /// W: batches that may be on their way or unconsumed.
    pub window_batches: u32,
    /// How messages are encoded; `None` leaves it to the producer, which measures
    /// what pays and may change it at any batch.
    pub codec: Option<Codec>,
    /// Connections that the rows come over: 1, or so many beside the one that asked.
    pub streams: u32,
}

/// In the place of a codec: the producer chooses.
const CODEC_AUTO: u8 = u8::MAX;

impl Default for Plan {
    fn default() -> Self {
        Self {
            batch_rows: 0,
            batch_bytes: 4 << 20,
            message_bytes: 1 << 20,
            message_bytes_max: 64 << 20,
            window_batches: 4,
            codec: Some(Codec::None),
            streams: 1,
        }
    }
}

impl Plan {
    /// Most bytes of rows that this plan has the consumer hold.
    pub fn memory_bytes(&self) -> u64 {
        (u64::from(self.window_batches) * u64::from(self.batch_bytes)).max(self.message_bytes_max.into())
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.batch_rows);
        out.put_u32(self.batch_bytes);
        out.put_u32(self.message_bytes);
        out.put_u32(self.message_bytes_max);
        out.put_u32(self.window_batches);
        out.put_u8(self.codec.map_or(CODEC_AUTO, |codec| codec as u8));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let plan = Self {
            batch_rows: reader.u32()?,
            batch_bytes: reader.u32()?,
            message_bytes: reader.u32()?,
            message_bytes_max: reader.u32()?,
            window_batches: reader.u32()?,
            codec: match reader.u8()? {
                CODEC_AUTO => None,
                codec => Some(Codec::parse(codec)?),
            },
            streams: 1,
        };
        for (name, value) in [
            ("batch_bytes", plan.batch_bytes),
            ("message_bytes", plan.message_bytes),
            ("message_bytes_max", plan.message_bytes_max),
            ("window_batches", plan.window_batches),
        ] {
            if value == 0 {
                return Err(malformed("plan", format!("{name} is 0")));
            }
        }
        Ok(plan)
    }
}

/// SQL, and how its result is to travel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The statement.
    pub sql: String,
    /// The plan of its transfer.
    pub plan: Plan,
}

impl Query {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.plan.put(&mut out);
        out.put_str(&self.sql);
        // Not every peer knows of it: see [`crate::join`].
        if self.plan.streams > 1 {
            out.put_u32(self.plan.streams);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are no query.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("query", bytes);
        let mut plan = Plan::read(&mut reader)?;
        let sql = reader.str()?.to_owned();
        if !reader.is_empty() {
            plan.streams = reader.u32()?;
            if plan.streams < 2 {
                return Err(malformed("query", format!("{} streams", plan.streams)));
            }
        }
        reader.end()?;
        Ok(Self { sql, plan })
    }
}

/// The columns of a result: the query was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// Columns.
    pub schema: Schema,
    /// How many rows the producer expects, where it knows.
    pub rows_estimate: Option<u64>,
}

impl Accepted {
    /// As bytes.
    ///
    /// # Errors
    /// When types are nested too deep.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        out.put_u64(self.rows_estimate.unwrap_or(u64::MAX));
        out.extend_from_slice(&schema::encode(&self.schema)?);
        Ok(out)
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are no schema.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("schema", bytes);
        let rows_estimate = Some(reader.u64()?).filter(|&rows| rows != u64::MAX);
        Ok(Self { schema: schema::decode(&bytes[8..])?, rows_estimate })
    }
}

/// What a batch, or with [`crate::frame::FLAG_LAST`] the result, came to: the
/// consumer compares it with what arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchEnd {
    /// Rows of the result so far.
    pub rows: u64,
    /// Messages of the result so far.
    pub messages: u64,
}

impl BatchEnd {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64(self.rows);
        out.put_u64(self.messages);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("batch end", bytes);
        let end = Self { rows: reader.u64()?, messages: reader.u64()? };
        reader.end()?;
        Ok(end)
    }
}

/// Where the producer's time went, in nanoseconds; sent before the end of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Waiting for the query's rows.
    pub produce_ns: u64,
    /// Rows to messages.
    pub encode_ns: u64,
    /// Handing bytes to the socket.
    pub send_ns: u64,
    /// Waiting for credit.
    pub wait_ns: u64,
}

impl Stats {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for value in [self.produce_ns, self.encode_ns, self.send_ns, self.wait_ns] {
            out.put_u64(value);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("stats", bytes);
        let stats = Self {
            produce_ns: reader.u64()?,
            encode_ns: reader.u64()?,
            send_ns: reader.u64()?,
            wait_ns: reader.u64()?,
        };
        reader.end()?;
        Ok(stats)
    }
}

/// How many batches more the consumer takes.
pub fn encode_credit(batches: u32) -> Vec<u8> {
    batches.to_le_bytes().to_vec()
}

/// What [`encode_credit`] wrote.
///
/// # Errors
/// When the bytes are no credit.
pub fn decode_credit(bytes: &[u8]) -> Result<u32> {
    let mut reader = Reader::new("credit", bytes);
    let batches = reader.u32()?;
    reader.end()?;
    Ok(batches)
}

/// What kind of failure. The numbers are the format's and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum ErrorCode {
    /// A fault of the server itself.
    Internal = 1,
    /// The peer broke the protocol.
    Protocol = 2,
    /// The token is missing or wrong.
    Unauthenticated = 3,
    /// The statement is not SQL, or names what is not there.
    Sql = 4,
    /// The statement, or the ticket, is not allowed here.
    Forbidden = 5,
    /// A source behind the server failed.
    Source = 6,
    /// A row is larger than the consumer takes.
    RowTooLarge = 7,
    /// A memory or size limit of the server was reached.
    Limit = 8,
    /// The query was cancelled.
    Cancelled = 9,
    /// The server has as many clients as it takes.
    Busy = 10,
    /// The server is shutting down.
    ShuttingDown = 11,
    /// Values that can't be computed or carried (overflow, division by zero, a bad cast).
    Data = 12,
    /// A connection that joined the result was lost, with messages on it.
    Lost = 13,
    /// Another node of the cluster, which the message names, has failed or can't be reached.
    Peer = 14,
    /// The consumer took nothing of a result for longer than the server waits.
    Stalled = 15,
}

impl ErrorCode {
    /// A code of a later version counts as internal.
    fn parse(code: u16) -> Self {
        use ErrorCode::*;
        [
            Protocol,
            Unauthenticated,
            Sql,
            Forbidden,
            Source,
            RowTooLarge,
            Limit,
            Cancelled,
            Busy,
            ShuttingDown,
            Data,
            Lost,
            Peer,
            Stalled,
        ]
        .into_iter()
        .find(|&known| known as u16 == code)
        .unwrap_or(Internal)
    }
}

/// A typed error on its way to the peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind.
    pub code: ErrorCode,
    /// Whether the same may succeed later.
    pub retryable: bool,
    /// Line and column (from 1) in the statement, where known.
    pub position: Option<(u32, u32)>,
    /// Bytes that would have been needed, for limits.
    pub needed_bytes: Option<u64>,
    /// For a person.
    pub message: String,
    /// What the person can do.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure with nothing but a kind and words.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let retryable = matches!(code, ErrorCode::Busy | ErrorCode::ShuttingDown | ErrorCode::Lost);
        Self { code, retryable, position: None, needed_bytes: None, message: message.into(), hint: None }
    }

    /// With a hint.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// As bytes. Texts are cut at 64 KB.
    pub fn encode(&self) -> Vec<u8> {
        let cut = |text: &str| text[..text.floor_char_boundary(64 << 10)].to_owned();
        let mut out = Vec::new();
        out.put_u16(self.code as u16);
        out.put_u8(u8::from(self.retryable));
        let (line, column) = self.position.unwrap_or((0, 0));
        out.put_u32(line);
        out.put_u32(column);
        out.put_u64(self.needed_bytes.unwrap_or(0));
        out.put_str(&cut(&self.message));
        out.put_str(&cut(self.hint.as_deref().unwrap_or("")));
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are no failure.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("error", bytes);
        let failure = Self {
            code: ErrorCode::parse(reader.u16()?),
            retryable: reader.u8()? != 0,
            position: Some((reader.u32()?, reader.u32()?)).filter(|&(line, _)| line > 0),
            needed_bytes: Some(reader.u64()?).filter(|&bytes| bytes > 0),
            message: reader.str()?.to_owned(),
            hint: Some(reader.str()?.to_owned()).filter(|hint| !hint.is_empty()),
        };
        reader.end()?;
        Ok(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_frames_come_back() {
        let hello =
            Hello { agent: "a/1".into(), token: "t".into(), capabilities: 3, ping_interval_ms: 10_000 };
        assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
        let queued = Queued { ahead: 3, wait_ms: 10_000 };
        assert_eq!(Queued::decode(&queued.encode()).unwrap(), queued);
        let query =
            Query { sql: "select 'ü'".into(), plan: Plan { codec: Some(Codec::Zstd), ..Plan::default() } };
        assert_eq!(Query::decode(&query.encode()).unwrap(), query);
        let striped = Query { plan: Plan { streams: 4, ..query.plan }, ..query };
        assert_eq!(Query::decode(&striped.encode()).unwrap(), striped);
        let end = BatchEnd { rows: 1 << 40, messages: 3 };
        assert_eq!(BatchEnd::decode(&end.encode()).unwrap(), end);
        let stats = Stats { produce_ns: 1, encode_ns: 2, send_ns: 3, wait_ns: 4 };
        assert_eq!(Stats::decode(&stats.encode()).unwrap(), stats);
        assert_eq!(decode_credit(&encode_credit(7)).unwrap(), 7);
        for rows_estimate in [None, Some(0), Some(9)] {
            let accepted = Accepted { schema: Schema::empty(), rows_estimate };
            assert_eq!(Accepted::decode(&accepted.encode().unwrap()).unwrap(), accepted);
        }
        let failure = Failure {
            position: Some((1, 8)),
            needed_bytes: Some(9),
            ..Failure::new(ErrorCode::Busy, "full").hint("later")
        };
        assert_eq!(Failure::decode(&failure.encode()).unwrap(), failure);
        assert!(failure.retryable);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let failure = Failure::new(ErrorCode::Sql, "ä".repeat(100_000));
        assert!(Failure::decode(&failure.encode()).unwrap().message.len() <= 64 << 10);
    }

    #[test]
    fn every_cut_is_refused() {
        let query = Query { sql: "select 1".into(), plan: Plan::default() }.encode();
        (0..query.len()).for_each(|len| assert!(Query::decode(&query[..len]).is_err(), "{len}"));
        let zero = Query { sql: String::new(), plan: Plan { window_batches: 0, ..Plan::default() } };
        assert!(Query::decode(&zero.encode()).is_err());
        for streams in [[0, 0, 0, 0].as_slice(), &[1, 0, 0, 0], &[2, 0, 0], &[2, 0, 0, 0, 0]] {
            assert!(Query::decode(&[&query, streams].concat()).is_err(), "{streams:?}");
        }
    }
}
