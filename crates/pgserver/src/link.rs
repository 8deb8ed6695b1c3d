//! The bytes of a connection, in both directions, within limits.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::error::{PgError, SessionEnd, code};

/// Messages that are collected before they are sent.
const OUT_BYTES: usize = 64 << 10;
/// How much of what a client sends is read ahead while a statement runs.
const AHEAD_BYTES: usize = 64 << 10;
/// How much is read of a connection that is being closed, and for how long.
const DRAIN_READS: usize = 256;
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest message of types that have no long parts.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// The longest message of a client that has not authenticated, and the longest startup packet. As in PostgreSQL.
const STRANGER_BYTES_MAX: usize = 10_000;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A message of a client.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    pub(crate) body: Bytes,
}

/// A connection to a client.
pub(crate) struct Link {
    reader: Reader,
    writer: Writer,
    input: BytesMut,
    /// Messages to the client that are not sent yet.
    pub(crate) out: BytesMut,
    message_bytes_max: usize,
    /// How long a client may take nothing.
    stall_timeout: Option<Duration>,
}

impl Link {
    /// A connection to a client that has not authenticated.
    pub(crate) fn new(reader: Reader, writer: Writer, stall_timeout: Option<Duration>) -> Self {
        Self {
            reader,
            writer,
            input: BytesMut::new(),
            out: BytesMut::new(),
            message_bytes_max: STRANGER_BYTES_MAX,
            stall_timeout,
        }
    }

    /// Accepts longer messages from now on.
    pub(crate) fn accept_messages(&mut self, bytes_max: usize) {
        self.message_bytes_max = bytes_max;
    }

    /// Reads until there are `length` bytes. Memory grows as they arrive.
    async fn fill(&mut self, length: usize) -> Result<(), SessionEnd> {
        while self.input.len() < length {
            self.input.reserve((length - self.input.len()).clamp(4 << 10, 64 << 10));
            if self.reader.read_buf(&mut self.input).await? == 0 {
                return Err(SessionEnd::Closed);
            }
        }
        Ok(())
    }

    /// The next message. Cancel-safe.
    pub(crate) async fn message(&mut self) -> Result<Message, SessionEnd> {
        self.fill(5).await?;
        let kind = self.input[0];
        let length = (&self.input[1..5]).get_u32() as usize;
        let max = match kind {
            b'Q' | b'P' | b'B' | b'd' => self.message_bytes_max,
            b'E' | b'D' | b'C' | b'p' | b'S' | b'H' | b'X' | b'c' | b'f' | b'F' => {
                SHORT_BYTES_MAX.min(self.message_bytes_max)
            }
            _ => {
                return Err(SessionEnd::Fatal(PgError::protocol(format!(
                    "invalid frontend message type {kind}"
                ))));
            }
        };
        if length < 4 {
            return Err(SessionEnd::Fatal(PgError::protocol("invalid message length")));
        }
        if length > max {
            let error =
                PgError::new(code::PROGRAM_LIMIT, format!("a message of {length} bytes; the limit is {max}"));
            return Err(SessionEnd::Fatal(error.hint("put long lists of values into a table").fatal()));
        }
        self.fill(1 + length).await?;
        self.input.advance(5);
        let body = self.input.split_to(length - 4).freeze();
        if self.input.is_empty() {
            // Lets go of what a large message needed.
            self.input = BytesMut::new();
        }
        Ok(Message { kind, body })
    }

    /// The first message of a connection, which has no type: its code, and the rest.
    pub(crate) async fn startup(&mut self) -> Result<(u32, Bytes), SessionEnd> {
        self.fill(4).await?;
        let length = (&self.input[..4]).get_u32() as usize;
        if !(8..=STRANGER_BYTES_MAX).contains(&length) {
            return Err(SessionEnd::Fatal(PgError::protocol("invalid length of startup packet")));
        }
        self.fill(length).await?;
        self.input.advance(4);
        let mut body = self.input.split_to(length - 4).freeze();
        Ok((body.get_u32(), body))
    }

    /// Whether bytes have arrived that belong to no message that was read. After a request for TLS there must be none:
    /// somebody on the way could have put them there.
    pub(crate) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Its two halves.
    pub(crate) fn into_parts(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }

    /// Returns when the client has closed the connection. Meanwhile it reads ahead, within a limit. Cancel-safe.
    pub(crate) async fn closed(&mut self) -> SessionEnd {
        loop {
            if self.input.len() >= AHEAD_BYTES {
                return std::future::pending().await;
            }
            self.input.reserve(4 << 10);
            match self.reader.read_buf(&mut self.input).await {
                Ok(0) => return SessionEnd::Closed,
                Ok(_) => {}
                Err(error) => return error.into(),
            }
        }
    }

    /// Whether so much is collected that it should be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.out.len() >= OUT_BYTES
    }

    /// Sends what is collected, if it is much.
    pub(crate) async fn send_if_full(&mut self) -> Result<(), SessionEnd> {
        if self.is_full() { self.flush().await } else { Ok(()) }
    }

    /// Sends what is collected.
    ///
    /// # Errors
    /// If the client takes nothing for too long.
    pub(crate) async fn flush(&mut self) -> Result<(), SessionEnd> {
        let limit = self.stall_timeout;
        let stalled = |limit: Duration| SessionEnd::Stalled(limit.as_secs());
        while self.out.has_remaining() {
            let write = self.writer.write_buf(&mut self.out);
            let written = match limit {
                Some(limit) => timeout(limit, write).await.map_err(|_| stalled(limit))??,
                None => write.await?,
            };
            if written == 0 {
                return Err(SessionEnd::Closed);
            }
        }
        if self.out.capacity() > 4 * OUT_BYTES {
            self.out = BytesMut::new();
        }
        match limit {
            Some(limit) => timeout(limit, self.writer.flush()).await.map_err(|_| stalled(limit))??,
            None => self.writer.flush().await?,
        }
        Ok(())
    }

    /// Sends the last messages and closes the connection.
    pub(crate) async fn close(mut self) {
        let brief = Duration::from_secs(2);
        let _ = timeout(brief, self.flush()).await;
        let _ = timeout(brief, self.writer.shutdown()).await;
        // The system resets a connection whose bytes were not read, and the client could miss the last message.
        let drained = async {
            for _ in 0..DRAIN_READS {
                self.input.clear();
                self.input.reserve(4 << 10);
                if !matches!(self.reader.read_buf(&mut self.input).await, Ok(1..)) {
                    break;
                }
            }
        };
        let _ = timeout(DRAIN_TIMEOUT, drained).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(bytes: &'static [u8]) -> Link {
        let mut link = Link::new(Box::new(bytes), Box::new(tokio::io::sink()), None);
        link.accept_messages(1 << 20);
        link
    }

    #[tokio::test]
    async fn hostile_lengths_are_refused_before_memory_is_allocated() {
        let check = async |bytes: &'static [u8], expected: &str| {
            let mut link = link(bytes);
            match link.message().await.unwrap_err() {
                SessionEnd::Fatal(error) => assert_eq!(error.code, expected),
                other => panic!("{other}"),
            }
            assert!(link.input.capacity() < 100 << 10);
        };
        check(b"Q\x40\x00\x00\x00select", code::PROGRAM_LIMIT).await;
        check(b"Q\xff\xff\xff\xffselect", code::PROGRAM_LIMIT).await;
        check(b"Q\x00\x00\x00\x03", code::PROTOCOL_VIOLATION).await;
        check(b"S\x00\x02\x00\x00", code::PROGRAM_LIMIT).await;
        check(b"!\x00\x00\x00\x04", code::PROTOCOL_VIOLATION).await;
        assert!(matches!(link(b"Q\x00\x00\x00\x10sel").message().await, Err(SessionEnd::Closed)));
        assert!(matches!(link(b"\x7f\xff\xff\xff").startup().await, Err(SessionEnd::Fatal(_))));
        assert!(matches!(link(b"\x00\x00\x00\x04").startup().await, Err(SessionEnd::Fatal(_))));
    }

    #[tokio::test]
    async fn messages_are_read_one_by_one() {
        let mut link = link(b"Q\x00\x00\x00\x06a\x00S\x00\x00\x00\x04X");
        let first = link.message().await.unwrap();
        assert_eq!((first.kind, &first.body[..]), (b'Q', &b"a\0"[..]));
        assert_eq!(link.message().await.unwrap().kind, b'S');
        assert!(matches!(link.message().await, Err(SessionEnd::Closed)));
    }
}
