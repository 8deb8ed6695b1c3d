//! One connection to a server: its socket, the messages read from it, and those written to it. Rows are
//! decoded in place in the read buffer.
//!
//! Each row is a message, so nothing here allocates, copies or wakes a task per
//! message: [`Connection::fill`] reads as much as the socket has, and
//! [`Connection::buffered`] returns it.

mod copy_data;
mod dial;
mod login;
mod statements;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use self::dial::{cant_connect, dial, end_session};
use super::config::Config;
use super::message::{Frame, MessageHeader, Parser, ServerError};
use crate::cancel;
use crate::limit::Permit;
use crate::tls::Socket;
use crate::{Result, SourceError};

/// Free buffer space for each read of the socket.
const READ_BYTES: usize = 256 << 10;
/// Maximum size of a message: the server can't build a larger one.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// Maximum size of a notice that is buffered for the log.
const NOTICE_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of answers buffered while statements are sent. Only a few bytes are sent after the
/// statement that they answer, and the server's socket accepts these even if the server waits.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Maximum pieces of messages for each write of the socket.
const PIECES_MAX: usize = 32;

/// A logged-in connection. Dropping it while a statement runs on it cancels the statement.
pub(super) struct Connection {
    socket: Box<dyn Socket>,
    rows_expected: Arc<AtomicBool>,
    read: BytesMut,
    write: BytesMut,
    config: Arc<Config>,
    key: Option<(i32, i32)>,
    /// `server_version_num`, e.g. 150004.
    version: u32,
    /// `server_encoding`, e.g. `UTF8`.
    encoding: String,
    /// Bytes written so far.
    written: u64,
    /// Remaining bytes of a long notice, which are dropped as they arrive.
    skip: usize,
    /// Statements that the server has not reported as done.
    unfinished: usize,
    /// Whether the server waits for the rows of a COPY.
    wants_rows: bool,
    /// The connection's permit, if connections are limited.
    permit: Option<Permit>,
}

impl Connection {
    /// Connects and logs in.
    ///
    /// # Errors
    /// [`SourceError::Connect`] when there is no server or it accepts no more
    /// connections, [`SourceError::Login`] when it refuses the login.
    pub(super) async fn open(config: &Arc<Config>) -> Result<Self> {
        let work = async {
            let rows_expected = Arc::default();
            let socket = dial(config, &rows_expected).await?;
            let mut connection = Self {
                socket,
                rows_expected,
                read: BytesMut::with_capacity(2 * READ_BYTES),
                write: BytesMut::new(),
                config: config.clone(),
                key: None,
                version: 0,
                encoding: String::new(),
                written: 0,
                skip: 0,
                unfinished: 0,
                wants_rows: false,
                permit: None,
            };
            connection.log_in().await?;
            Ok(connection)
        };
        match tokio::time::timeout(config.connect_timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(cant_connect(
                config,
                format!("no answer within {} s", config.connect_timeout.as_secs()),
                None,
            )),
        }
    }

    /// `server_version_num`.
    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// Whether the server's encoding can represent every text.
    pub(super) fn takes_any_text(&self) -> bool {
        matches!(&*self.encoding, "UTF8" | "SQL_ASCII")
    }

    /// Holds the permit for as long as the connection is open.
    pub(super) fn hold(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Closes the connection and returns its permit, for another connection.
    pub(super) fn into_permit(mut self) -> Option<Permit> {
        self.permit.take()
    }

    /// The server and the database, for messages.
    pub(super) fn target(&self) -> String {
        self.config.target()
    }

    /// Bytes written so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Sets whether rows of a result are expected. Many rows are read with fewer wake-ups.
    pub(super) fn expect_rows(&self, expected: bool) {
        self.rows_expected.store(expected, Ordering::Relaxed);
    }

    /// The received bytes that are not consumed yet.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.read
    }

    /// Removes the first `bytes` from the buffer.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.read.advance(bytes);
    }

    /// Reads once from the socket, as much as it has. Nothing is lost when the
    /// future is dropped.
    ///
    /// # Errors
    /// When the connection ended.
    pub(super) async fn fill(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_fill(cx)).await
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The buffer doubles while a long value arrives: the announced length alone allocates nothing.
        let free = self.read.capacity() - self.read.len();
        if free < READ_BYTES / 2 {
            self.read.reserve(READ_BYTES.max(self.read.len()));
        }
        // A read that is not ready has read nothing, so its future may be dropped.
        let read = match ready!(pin!(self.socket.read_buf(&mut self.read)).poll(cx)) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
            other => other.map(drop),
        };
        match &read {
            Ok(()) => self.drop_skipped(),
            // There is nothing left to cancel.
            Err(_) => self.unfinished = 0,
        }
        Poll::Ready(read)
    }

    fn drop_skipped(&mut self) {
        let bytes = self.skip.min(self.read.len());
        self.read.advance(bytes);
        self.skip -= bytes;
    }

    /// Removes messages that belong to no statement (notices, changed settings, notifications)
    /// from the front of the buffer. They are not stored, however many or long they are.
    fn take_unasked(&mut self) -> io::Result<()> {
        while let Some(header) = self.header()? {
            match header.tag {
                b'N' | b'S' | b'A' => {}
                _ => return Ok(()),
            }
            if let Some(body) = self.read.get(MessageHeader::BYTES..header.total()) {
                match header.tag {
                    b'N' => {
                        if let Ok(notice) = ServerError::parse(body) {
                            tracing::debug!(code = notice.code, message = notice.message, "notice");
                        }
                    }
                    b'S' => {
                        let mut body = Parser(body);
                        let (name, value) = (body.text()?, body.text()?);
                        match &*name {
                            "server_version" => self.version = version_number(&value),
                            "server_encoding" => self.encoding = value,
                            _ => {}
                        }
                    }
                    _ => {}
                }
            } else if header.body_bytes <= NOTICE_BYTES_MAX {
                return Ok(());
            }
            self.skip = header.total();
            self.drop_skipped();
        }
        Ok(())
    }

    /// The header of the first message in the buffer, once it has arrived.
    ///
    /// # Errors
    /// When its length is impossible.
    pub(super) fn header(&self) -> io::Result<Option<MessageHeader>> {
        let header = MessageHeader::parse(&self.read);
        if header.is_some_and(|h| h.body_bytes > MESSAGE_BYTES_MAX) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of an impossible length"));
        }
        Ok(header)
    }

    /// The next message, copied out. For all messages except rows.
    pub(super) async fn frame(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.buffered_frame()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// The next message, copied out; `None` if it is a row, which stays in the buffer.
    pub(super) async fn frame_or_row(&mut self) -> io::Result<Option<Frame>> {
        loop {
            self.take_unasked()?;
            if self.header()?.is_some_and(|header| header.tag == b'D') {
                return Ok(None);
            }
            if let Some(frame) = self.buffered_frame()? {
                return Ok(Some(frame));
            }
            self.fill().await?;
        }
    }

    fn buffered_frame(&mut self) -> io::Result<Option<Frame>> {
        self.take_unasked()?;
        let Some(header) = self.header()?.filter(|header| self.read.len() >= header.total()) else {
            return Ok(None);
        };
        let body = self.read[MessageHeader::BYTES..header.total()].to_vec();
        self.read.advance(header.total());
        match header.tag {
            b'Z' => (self.unfinished, self.wants_rows) = (self.unfinished.saturating_sub(1), false),
            b'G' => self.wants_rows = true,
            _ => {}
        }
        Ok(Some(Frame { tag: header.tag, body }))
    }

    /// Sends the appended messages.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        let mut write = self.write.split();
        self.written += write.len() as u64;
        let sent = self.write_all(&mut write, During::Statement).await;
        if sent.is_err() {
            self.unfinished = 0;
        }
        sent
    }

    /// Writes `bytes`, and meanwhile reads what the server sends. A server that can't send its
    /// notices reads no more rows, so without this both sides would wait for each other forever.
    ///
    /// # Errors
    /// When the connection ended; during a COPY also when the server has sent an error, which is
    /// then the next frame.
    async fn write_all(&mut self, bytes: &mut (impl Buf + Send), during: During) -> io::Result<()> {
        let mut is_flushed = false;
        while !is_flushed {
            poll_fn(|cx| {
                loop {
                    let socket = Pin::new(&mut self.socket);
                    let step = if bytes.has_remaining() {
                        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
                        let count = bytes.chunks_vectored(&mut pieces);
                        socket.poll_write_vectored(cx, &pieces[..count]).map(|written| match written? {
                            0 => Err(io::ErrorKind::WriteZero.into()),
                            count => {
                                bytes.advance(count);
                                Ok(())
                            }
                        })
                    } else {
                        socket.poll_flush(cx).map_ok(|()| is_flushed = true)
                    };
                    if step.is_ready() {
                        return step;
                    }
                    if self.read.len() >= ANSWER_BYTES_MAX {
                        return Poll::Pending;
                    }
                    ready!(self.poll_fill(cx))?;
                    self.take_unasked()?;
                    if during == During::Copy
                        && MessageHeader::parse(&self.read).is_some_and(|h| h.tag == b'E')
                    {
                        let error = io::Error::new(io::ErrorKind::ConnectionAborted, "the server refused");
                        return Poll::Ready(Err(error));
                    }
                }
            })
            .await?;
        }
        Ok(())
    }

    /// Converts an I/O error after `rows` rows.
    pub(super) fn lost(&self, error: io::Error, rows: u64) -> SourceError {
        match error.kind() {
            io::ErrorKind::InvalidData => {
                SourceError::Malformed { target: self.target(), reason: error.to_string() }
            }
            _ => SourceError::Lost { target: self.target(), rows, reason: error.to_string() },
        }
    }

    /// Converts an `ErrorResponse` after `rows` rows.
    pub(super) fn server_error(&mut self, body: &[u8], rows: u64) -> SourceError {
        // A failed statement runs no more.
        self.unfinished = 0;
        match ServerError::parse(body) {
            Ok(error) if error.ends_connection() => {
                SourceError::Lost { target: self.target(), rows, reason: error.message }
            }
            Ok(error) => error.into(),
            Err(e) => self.lost(e, rows),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Closing the socket is not enough: the server notices it only when it writes.
        if let (1.., Some(key)) = (self.unfinished, self.key) {
            let mut socket: Box<dyn Socket> = mem::replace(&mut self.socket, Box::new(tokio::io::empty()));
            if self.wants_rows {
                // The server ends the session now, even if the runtime is blocked. Not in other cases: a pooler
                // forgets whose statement it is to cancel when its client ends.
                let _ = socket.shutdown().now_or_never();
            }
            let permit = self.permit.take();
            let ended = end_session(self.config.clone(), key, socket);
            cancel::send(self.target(), ended.inspect(|_| drop(permit)));
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({:?})", self.config)
    }
}

/// What is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum During {
    /// Statements: all of them must arrive, even if the first one fails.
    Statement,
    /// Rows of a COPY: the server ignores those that follow an error.
    Copy,
}

/// "15.4 (Debian ...)" is 150004.
fn version_number(text: &str) -> u32 {
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let major = parts.next().unwrap_or(0);
    major.saturating_mul(10_000).saturating_add(parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_as_numbers() {
        for (text, number) in
            [("15.4 (Debian 15.4-1)", 150_004), ("17", 170_000), ("9.6.24", 90_006), ("x", 0)]
        {
            assert_eq!(version_number(text), number, "{text}");
        }
    }
}
