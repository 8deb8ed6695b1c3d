//! Frames other than messages (`docs/format.md`, section 3).

use arrow_schema::Schema;

use crate::bytes::{Put, Reader};
use crate::codec::Codec;
use crate::error::{Result, malformed};
pub use crate::reason::{CAPABILITY_REASONS, Reason};
use crate::schema;

/// First frame of either side, on stream 0.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Hello {
    /// Name and version of the program, for logs.
    pub agent: String,
    /// Bearer token; empty for none. A server sends none.
    pub token: String,
    /// Bits for optional capabilities: see [`crate::tuning`],
    /// [`crate::shm`] and [`crate::join`].
    pub capabilities: u64,
    /// This side pings after this much silence, and gives up after three times as much.
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
    /// If they are malformed.
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

/// The size of a queued frame's payload.
pub const QUEUED_BYTES: usize = 8;

/// All slots for clients are taken; the client waits in the queue for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// The number of clients before this one.
    pub ahead: u32,
    /// The time after which the server refuses the client.
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
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("queued", bytes);
        let queued = Self { ahead: reader.u32()?, wait_ms: reader.u32()? };
        reader.end()?;
        Ok(queued)
    }
}

/// How a result is transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// F: the maximum number of rows of a batch; 0 for no limit besides `batch_bytes`.
    pub batch_rows: u32,
    /// The maximum bytes of the messages of a batch, unless it is a single message. The consumer holds at
    /// most `window_batches` times this.
    pub batch_bytes: u32,
    /// M: the size to which messages are cut.
    pub message_bytes: u32,
    /// The largest message that the consumer accepts, if one row needs more than M.
    pub message_bytes_max: u32,
    /// W: batches that may be in flight or unconsumed.
    pub window_batches: u32,
    /// The codec. With `None`, the producer chooses it from measurements, and may change it at any batch.
    pub codec: Option<Codec>,
    /// The number of connections that carry the rows.
    pub streams: u32,
}

/// Number that means that the producer chooses the codec.
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
    /// The maximum bytes of rows that the consumer holds with this plan.
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

/// SQL, and the plan of its result's transfer.
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
        // Optional: see [`crate::join`].
        if self.plan.streams > 1 {
            out.put_u32(self.plan.streams);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed.
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
    /// The number of rows that the producer expects, if known.
    pub rows_estimate: Option<u64>,
}

impl Accepted {
    /// As bytes.
    ///
    /// # Errors
    /// If types are nested too deep.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        out.put_u64(self.rows_estimate.unwrap_or(u64::MAX));
        out.extend_from_slice(&schema::encode(&self.schema)?);
        Ok(out)
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("schema", bytes);
        let rows_estimate = Some(reader.u64()?).filter(|&rows| rows != u64::MAX);
        Ok(Self { schema: schema::decode(&bytes[8..])?, rows_estimate })
    }
}

/// The totals at the end of a batch or, with [`crate::frame::FLAG_LAST`], of the result. The consumer compares
/// them with what arrived.
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
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("batch end", bytes);
        let end = Self { rows: reader.u64()?, messages: reader.u64()? };
        reader.end()?;
        Ok(end)
    }
}

/// Where the producer spent its time, in nanoseconds; sent before the end of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Waiting for the query's rows.
    pub produce_ns: u64,
    /// Encoding rows as messages.
    pub encode_ns: u64,
    /// Writing to the socket.
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
    /// If they are malformed.
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

/// Encodes a credit for a number of batches.
pub fn encode_credit(batches: u32) -> Vec<u8> {
    batches.to_le_bytes().to_vec()
}

/// Decodes what [`encode_credit`] wrote.
///
/// # Errors
/// If the bytes are malformed.
pub fn decode_credit(bytes: &[u8]) -> Result<u32> {
    let mut reader = Reader::new("credit", bytes);
    let batches = reader.u32()?;
    reader.end()?;
    Ok(batches)
}

/// The kind of a failure. The numbers are part of the format and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum ErrorCode {
    /// An internal error of the server.
    Internal = 1,
    /// The peer broke the protocol.
    Protocol = 2,
    /// The token is missing or wrong.
    Unauthenticated = 3,
    /// The statement is not valid SQL, or refers to an unknown name.
    Sql = 4,
    /// The statement, or the stripe offer, is not allowed.
    Forbidden = 5,
    /// A source behind the server failed.
    Source = 6,
    /// A row is larger than the consumer accepts.
    RowTooLarge = 7,
    /// A memory or size limit of the server was reached.
    Limit = 8,
    /// The query was cancelled.
    Cancelled = 9,
    /// The server has the maximum number of clients.
    Busy = 10,
    /// The server is shutting down.
    ShuttingDown = 11,
    /// Values that can't be computed or carried (overflow, division by zero, a bad cast).
    Data = 12,
    /// A connection that joined the result was lost, with messages on it.
    Lost = 13,
    /// Another node of the cluster, named in the message, has failed or can't be reached.
    Peer = 14,
    /// The consumer took nothing of a result for longer than the server waits.
    Stalled = 15,
    /// The bucket of a range file does not have these keys; another one may.
    Moved = 16,
    /// The values of a statement's parameters are too many, too few, or can't be cast to what it requires. Only in
    /// answers to [`crate::statement::Statement`]s.
    Parameters = 17,
}

impl ErrorCode {
    /// An unknown code counts as internal.
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
            Moved,
            Parameters,
        ]
        .into_iter()
        .find(|&known| known as u16 == code)
        .unwrap_or(Internal)
    }
}

/// A typed error that is sent to the peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind.
    pub code: ErrorCode,
    /// What is wrong, if programs may react to it. Only peers with [`CAPABILITY_REASONS`] are told.
    pub reason: Option<Reason>,
    /// Whether a retry may succeed.
    pub retryable: bool,
    /// Line and column (from 1) in the statement, if known.
    pub position: Option<(u32, u32)>,
    /// If a limit was exceeded, the bytes that were needed.
    pub needed_bytes: Option<u64>,
    /// The message for the user.
    pub message: String,
    /// What the user can do.
    pub hint: Option<String>,
    /// What the program that gets it can do, in a format that depends on the request. Only for a request that asks for
    /// it: older programs refuse an error with details.
    pub details: Option<Box<[u8]>>,
}

/// The most bytes of [`Failure::details`]. More are not sent.
pub const DETAILS_BYTES_MAX: usize = 64 << 10;

impl Failure {
    /// A failure with only a kind and a message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let retryable =
            matches!(code, ErrorCode::Busy | ErrorCode::ShuttingDown | ErrorCode::Lost | ErrorCode::Moved);
        Self {
            code,
            reason: None,
            retryable,
            position: None,
            needed_bytes: None,
            message: message.into(),
            hint: None,
            details: None,
        }
    }

    /// Adds a hint.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Adds the reason.
    pub fn because(self, reason: impl Into<Option<Reason>>) -> Self {
        Self { reason: reason.into(), ..self }
    }

    /// As bytes that every peer reads: without the reason. Message and hint are cut at 64 KB.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_for(0)
    }

    /// As bytes for a peer with these capabilities.
    pub fn encode_for(&self, capabilities: u64) -> Vec<u8> {
        let reason = self.reason.filter(|_| capabilities & CAPABILITY_REASONS != 0);
        let cut = |text: &str| text[..text.floor_char_boundary(64 << 10)].to_owned();
        let mut out = Vec::new();
        out.put_u16(self.code as u16);
        // Peers without the capability take any bit for the first one.
        out.put_u8(u8::from(self.retryable) | reason.map_or(0, |reason| (reason as u8) << 1));
        let (line, column) = self.position.unwrap_or((0, 0));
        out.put_u32(line);
        out.put_u32(column);
        out.put_u64(self.needed_bytes.unwrap_or(0));
        out.put_str(&cut(&self.message));
        out.put_str(&cut(self.hint.as_deref().unwrap_or("")));
        if let Some(details) = self.details.as_ref().filter(|details| details.len() <= DETAILS_BYTES_MAX) {
            out.extend_from_slice(details);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("error", bytes);
        let code = ErrorCode::parse(reader.u16()?);
        let flags = reader.u8()?;
        let failure = Self {
            code,
            reason: Reason::parse(flags >> 1),
            retryable: flags & 1 != 0,
            position: Some((reader.u32()?, reader.u32()?)).filter(|&(line, _)| line > 0),
            needed_bytes: Some(reader.u64()?).filter(|&bytes| bytes > 0),
            message: reader.str()?.to_owned(),
            hint: Some(reader.str()?.to_owned()).filter(|hint| !hint.is_empty()),
            details: Some(reader.rest()).filter(|details| !details.is_empty()).map(Box::from),
        };
        if failure.details.as_ref().is_some_and(|details| details.len() > DETAILS_BYTES_MAX) {
            return Err(malformed("error", format!("more than {DETAILS_BYTES_MAX} bytes of details")));
        }
        Ok(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_frames_are_decoded_as_they_were_encoded() {
        let hello =
            Hello { agent: "a/1".into(), token: "t".into(), capabilities: 3, ping_interval_ms: 10_000 };
        assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
        let queued = Queued { ahead: 3, wait_ms: 10_000 };
        assert_eq!(Queued::decode(&queued.encode()).unwrap(), queued);
        let query = Query {
            sql: "select 'ü'".into(),
            plan: Plan { codec: Some(Codec::LightZstd), ..Plan::default() },
        };
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
    fn reasons_are_only_for_peers_that_know_them() {
        for reason in Reason::ALL {
            for retryable in [false, true] {
                let failure = Failure { retryable, ..Failure::new(ErrorCode::Sql, "x").because(reason) };
                let plain = failure.encode();
                assert_eq!(plain[2], u8::from(retryable));
                assert_eq!(Failure::decode(&plain).unwrap(), Failure { reason: None, ..failure.clone() });
                let full = failure.encode_for(CAPABILITY_REASONS | 1);
                assert_eq!(Failure::decode(&full).unwrap(), failure);
                assert_eq!(reason.sqlstate().len(), 5);
            }
        }
        // Of a newer version.
        let mut newer = Failure::new(ErrorCode::Sql, "x").encode();
        newer[2] = 127 << 1;
        assert_eq!(Failure::decode(&newer).unwrap(), Failure::new(ErrorCode::Sql, "x"));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let failure = Failure::new(ErrorCode::Sql, "ä".repeat(100_000));
        assert!(Failure::decode(&failure.encode()).unwrap().message.len() <= 64 << 10);
    }

    #[test]
    fn truncated_queries_are_refused() {
        let query = Query { sql: "select 1".into(), plan: Plan::default() }.encode();
        (0..query.len()).for_each(|len| assert!(Query::decode(&query[..len]).is_err(), "{len}"));
        let zero = Query { sql: String::new(), plan: Plan { window_batches: 0, ..Plan::default() } };
        assert!(Query::decode(&zero.encode()).is_err());
        for streams in [[0, 0, 0, 0].as_slice(), &[1, 0, 0, 0], &[2, 0, 0], &[2, 0, 0, 0, 0]] {
            assert!(Query::decode(&[&query, streams].concat()).is_err(), "{streams:?}");
        }
    }
}
