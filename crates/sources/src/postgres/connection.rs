//! One connection to a server: connecting, login, simple queries, and a read
//! buffer in which rows are decoded in place.
//!
//! Each row is a message, so nothing here allocates, copies or wakes a task per
//! message: [`Connection::fill`] reads as much as the socket has, and
//! [`Connection::buffered`] returns it.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures::future::BoxFuture;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::config::{Config, Host, SslMode};
use super::message::{Frame, MessageHeader, Parser, ServerError};
use crate::bulk::Bulk;
use crate::cancel;
use crate::limit::Permit;
use crate::tls::{self, Socket, Verify};
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
/// Maximum rows of a control query, which returns names, not data.
const CONTROL_ROWS_MAX: usize = 1 << 20;
/// How long the server may take to accept a cancel request.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// A row of a control query, as text.
pub(super) type TextRow = Vec<Option<String>>;

/// One column of a result, as the server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) name: String,
    pub(super) oid: u32,
    pub(super) modifier: i32,
}

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

    async fn log_in(&mut self) -> Result<()> {
        let config = self.config.clone();
        let fail = |e: io::Error| cant_connect(&config, e.to_string(), Some(e));
        let mut parameters = vec![
            ("user", &*config.user),
            ("database", &*config.database),
            ("application_name", &*config.application),
            ("client_encoding", "UTF8"),
            ("DateStyle", "ISO, YMD"),
            ("extra_float_digits", "3"),
            // A role may turn this off, which changes the meaning of backslashes in literals.
            ("standard_conforming_strings", "on"),
        ];
        if let Some(options) = &config.options {
            parameters.push(("options", options));
        }
        frontend::startup_message(parameters, &mut self.write).map_err(fail)?;
        self.flush().await.map_err(fail)?;
        let mut scram = None;
        loop {
            let frame = self.frame().await.map_err(fail)?;
            match frame.tag {
                b'R' => {
                    if let Authentication::Answer = self.authenticate(&frame.body, &mut scram)? {
                        self.flush().await.map_err(fail)?;
                    }
                }
                b'K' => {
                    let mut body = Parser(&frame.body);
                    self.key = Some((body.i32().map_err(fail)?, body.i32().map_err(fail)?));
                }
                b'E' => {
                    let error = ServerError::parse(&frame.body).map_err(fail)?;
                    // The server is there, but accepts no more connections, or is starting or stopping.
                    return Err(match error.code.get(..2) {
                        Some("53" | "57" | "58") => cant_connect(&config, error.message, None),
                        _ => self.refused(error.message),
                    });
                }
                b'Z' => return Ok(()),
                _ => {}
            }
        }
    }

    fn authenticate(&mut self, body: &[u8], scram: &mut Option<sasl::ScramSha256>) -> Result<Authentication> {
        let config = self.config.clone();
        let malformed = |e: io::Error| self.refused(e.to_string());
        let password = || {
            let missing = || self.refused("it requires a password, and none was given".into());
            config.password.as_deref().map(str::as_bytes).ok_or_else(missing)
        };
        let mut body = Parser(body);
        let mut answer = BytesMut::new();
        match body.i32().map_err(malformed)? {
            0 => return Ok(Authentication::Done),
            3 => frontend::password_message(password()?, &mut answer),
            5 => {
                let salt = body.array().map_err(malformed)?;
                let hash = md5_hash(config.user.as_bytes(), password()?, salt);
                frontend::password_message(hash.as_bytes(), &mut answer)
            }
            10 => {
                let mut mechanisms = Vec::new();
                while let Ok(name) = body.text() {
                    mechanisms.push(name);
                }
                if !mechanisms.iter().any(|name| name == sasl::SCRAM_SHA_256) {
                    return Err(
                        self.refused(format!("it requires {}, which is not supported", mechanisms.join(" ")))
                    );
                }
                let start = sasl::ScramSha256::new(password()?, sasl::ChannelBinding::unsupported());
                let sent = frontend::sasl_initial_response(sasl::SCRAM_SHA_256, start.message(), &mut answer);
                *scram = Some(start);
                sent
            }
            11 => match scram.as_mut() {
                Some(scram) => {
                    scram.update(body.0).map_err(malformed)?;
                    frontend::sasl_response(scram.message(), &mut answer)
                }
                None => Err(io::Error::other("unexpected message during login")),
            },
            12 => {
                let mut scram = scram
                    .take()
                    .ok_or_else(|| malformed(io::Error::other("unexpected message during login")))?;
                scram.finish(body.0).map_err(malformed)?;
                return Ok(Authentication::Done);
            }
            other => {
                return Err(self.refused(format!(
                    "it requires login method {other}, which is not supported; use a password"
                )));
            }
        }
        .map_err(malformed)?;
        self.write.unsplit(answer);
        Ok(Authentication::Answer)
    }

    fn refused(&self, reason: String) -> SourceError {
        SourceError::Login { target: format!("{:?}", self.config), reason }
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
        if header.tag == b'Z' {
            self.unfinished = self.unfinished.saturating_sub(1);
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
                        socket.poll_write(cx, bytes.chunk()).map(|written| match written? {
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

    /// Reads up to `ReadyForQuery`, so that the connection can be reused, and
    /// returns the first error on the way.
    pub(super) async fn until_ready(&mut self, mut on: impl FnMut(Frame) -> io::Result<()>) -> Result<()> {
        let mut failed = None;
        loop {
            let frame = match self.frame().await {
                Ok(frame) => frame,
                Err(e) => return Err(failed.unwrap_or_else(|| self.lost(e, 0))),
            };
            match frame.tag {
                b'Z' => return failed.map_or(Ok(()), Err),
                b'E' => {
                    let error = self.server_error(&frame.body, 0);
                    failed.get_or_insert(error);
                }
                _ if failed.is_none() => {
                    if let Err(e) = on(frame) {
                        failed = Some(self.lost(e, 0));
                    }
                }
                _ => {}
            }
        }
    }

    /// Appends a simple query; [`Self::until_ready`] reads its answer.
    pub(super) fn ask(&mut self, sql: &str) -> Result<()> {
        frontend::query(sql, &mut self.write).map_err(|_| nul_in_sql())?;
        self.unfinished += 1;
        Ok(())
    }

    /// Sends what [`Self::ask`] and similar functions appended.
    pub(super) async fn send(&mut self) -> Result<()> {
        self.flush().await.map_err(|e| self.lost(e, 0))
    }

    /// Runs control statements and returns their rows as text.
    pub(super) async fn simple(&mut self, sql: &str) -> Result<Vec<TextRow>> {
        self.ask(sql)?;
        self.send().await?;
        let mut rows = Vec::new();
        self.until_ready(|frame| {
            if frame.tag == b'D' {
                if rows.len() == CONTROL_ROWS_MAX {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "too many rows"));
                }
                rows.push(frame.text_row()?);
            }
            Ok(())
        })
        .await?;
        Ok(rows)
    }

    /// Appends a request to describe the result of `sql`.
    pub(super) fn ask_describe(&mut self, sql: &str) -> Result<()> {
        frontend::parse("", sql, [], &mut self.write)
            .and_then(|()| frontend::describe(b'S', "", &mut self.write))
            .map_err(|_| nul_in_sql())?;
        frontend::sync(&mut self.write);
        self.unfinished += 1;
        Ok(())
    }

    /// Reads the answer to [`Self::ask_describe`].
    ///
    /// # Errors
    /// The server's errors, with positions in `sql`; [`SourceError::Unsupported`]
    /// when the statement has parameters or returns no rows.
    pub(super) async fn described(&mut self) -> Result<Vec<Described>> {
        let mut columns = None;
        let mut parameters = 0;
        self.until_ready(|frame| {
            match frame.tag {
                b'T' => columns = Some(frame.columns()?),
                b't' => parameters = Parser(&frame.body).u16()?,
                _ => {}
            }
            Ok(())
        })
        .await?;
        if parameters > 0 {
            return Err(SourceError::Unsupported(format!(
                "the statement has {parameters} parameters ($1...); replace them with values"
            )));
        }
        columns.ok_or_else(|| SourceError::Unsupported("the statement returns no rows".into()))
    }

    /// Starts `sql`, with its columns in the given formats (0 text, 1 binary), and
    /// after it `then`, a statement without rows.
    pub(super) async fn execute(&mut self, sql: &str, formats: &[i16], then: Option<&str>) -> Result<()> {
        let appended = frontend::parse("", sql, [], &mut self.write)
            .and_then(|()| bind(formats, &mut self.write))
            .and_then(|()| frontend::execute("", 0, &mut self.write));
        appended.map_err(|_| nul_in_sql())?;
        frontend::sync(&mut self.write);
        self.unfinished += 1;
        if let Some(sql) = then {
            self.ask(sql)?;
        }
        self.send().await
    }

    /// Sends `rows` of a COPY, in messages of at most `message_bytes_max`.
    ///
    /// # Errors
    /// When the connection ended, or the server has sent an error, which is then the next frame.
    pub(super) async fn send_copy_data(&mut self, rows: &[u8], message_bytes_max: usize) -> io::Result<()> {
        for body in rows.chunks(message_bytes_max) {
            let mut header = [b'd'; MessageHeader::BYTES];
            header[1..].copy_from_slice(&(body.len() as u32 + 4).to_be_bytes());
            self.written += (header.len() + body.len()) as u64;
            self.write_all(&mut Buf::chain(&header[..], body), During::Copy).await?;
        }
        Ok(())
    }

    /// Ends a COPY into the server, which answers up to `ReadyForQuery`.
    pub(super) async fn send_copy_done(&mut self) -> Result<()> {
        frontend::copy_done(&mut self.write);
        self.send().await
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Closing the socket is not enough: the server notices it only when it writes.
        if let (1.., Some(key)) = (self.unfinished, self.key) {
            cancel::send(self.target(), request_cancel(self.config.clone(), key));
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

enum Authentication {
    Answer,
    Done,
}

/// Asks the server to cancel the statement of one connection. The outcome shows on that connection
/// only.
async fn request_cancel(config: Arc<Config>, (process, secret): (i32, i32)) -> Result<(), String> {
    let work = async {
        let mut socket = dial(&config, &Arc::default()).await.map_err(|e| e.to_string())?;
        let mut request = BytesMut::new();
        frontend::cancel_request(process, secret, &mut request);
        let sent = async {
            socket.write_all(&request).await?;
            socket.flush().await
        };
        sent.await.map_err(|e| e.to_string())?;
        // The server closes the connection once it has passed the request on; how does not matter.
        let _ = socket.read_u8().await;
        Ok(())
    };
    match tokio::time::timeout(CANCEL_TIMEOUT, work).await {
        Ok(done) => done,
        Err(_) => Err(format!("no answer within {} s", CANCEL_TIMEOUT.as_secs())),
    }
}

fn bind(formats: &[i16], buf: &mut BytesMut) -> io::Result<()> {
    let none: [(); 0] = [];
    let null = |(), _: &mut BytesMut| Ok(postgres_protocol::IsNull::Yes);
    frontend::bind("", "", [], none, null, formats.iter().copied(), buf).map_err(|e| match e {
        frontend::BindError::Serialization(e) => e,
        frontend::BindError::Conversion(e) => io::Error::other(e),
    })
}

fn nul_in_sql() -> SourceError {
    SourceError::Sql {
        reason: "the statement contains a NUL character or is too long".into(),
        position: None,
        code: None,
        hint: None,
    }
}

fn cant_connect(config: &Config, reason: String, source: Option<io::Error>) -> SourceError {
    SourceError::Connect { target: config.target(), reason, source: source.map(|e| Box::new(e) as _) }
}

/// "15.4 (Debian ...)" is 150004.
fn version_number(text: &str) -> u32 {
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let major = parts.next().unwrap_or(0);
    major.saturating_mul(10_000).saturating_add(parts.next().unwrap_or(0))
}

/// Connects to the server, with encryption as `sslmode` requires. Boxed, because
/// the futures of TLS handshakes are large.
fn dial<'a>(
    config: &'a Config,
    rows_expected: &'a Arc<AtomicBool>,
) -> BoxFuture<'a, Result<Box<dyn Socket>>> {
    Box::pin(async move {
        let fail = |e: io::Error| cant_connect(config, e.to_string(), Some(e));
        let host = match &config.host {
            Host::Unix(_) => {
                let path = config.socket().unwrap_or_default();
                return Ok(Box::new(UnixStream::connect(path).await.map_err(fail)?) as Box<dyn Socket>);
            }
            Host::Tcp(host) => host,
        };
        let tcp = TcpStream::connect((&**host, config.port)).await.map_err(fail)?;
        tcp.set_nodelay(true).map_err(fail)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(60));
        socket2::SockRef::from(&tcp).set_tcp_keepalive(&keepalive).map_err(fail)?;
        let mut tcp = Bulk::new(tcp, rows_expected.clone());
        if config.ssl_mode == SslMode::Disable {
            return Ok(Box::new(tcp) as Box<dyn Socket>);
        }
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        tcp.write_all(&request).await.map_err(fail)?;
        match tcp.read_u8().await.map_err(fail)? {
            b'S' => {}
            b'N' if config.ssl_mode == SslMode::Prefer => return Ok(Box::new(tcp) as Box<dyn Socket>),
            b'N' => {
                return Err(cant_connect(
                    config,
                    "the server has no TLS, but sslmode requires it".into(),
                    None,
                ));
            }
            _ => return Err(cant_connect(config, "it is not a PostgreSQL server".into(), None)),
        }
        let verify = match config.ssl_mode {
            SslMode::Disable | SslMode::Prefer => Verify::Nothing,
            // libpq verifies under `require` only when it was given an authority.
            SslMode::Require if config.ssl_root.is_none() => Verify::Nothing,
            SslMode::Require | SslMode::VerifyCa => Verify::Authority,
            SslMode::VerifyFull => Verify::Name,
        };
        let connector = tls::connector(verify, config.ssl_root.as_slice());
        let connector = connector.map_err(|reason| cant_connect(config, reason, None))?;
        let name = rustls::pki_types::ServerName::try_from(host.clone())
            .map_err(|e| cant_connect(config, e.to_string(), None))?;
        Ok(Box::new(connector.connect(name, tcp).await.map_err(fail)?) as Box<dyn Socket>)
    })
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
