//! A connection that does not use the driver, because the driver has no cursors: it logs in and sends commands
//! of the protocol. Rows are counted, and never decoded into values.

use std::io;
use std::path::PathBuf;

use bytes::BytesMut;
use mysql_async::{DriverError, Error, Opts, ServerError, SslOpts};
use mysql_common::constants::{CapabilityFlags, Command, StatusFlags};
use mysql_common::io::ParseBuf;
use mysql_common::packets::{
    AuthPlugin, AuthSwitchRequest, ErrPacket, HandshakePacket, HandshakeResponse, OkPacketDeserializer,
    OldEofPacket, SslRequest, StmtPacket,
};
use mysql_common::proto::MySerialize;
use mysql_common::proto::codec::PacketCodec;
use mysql_common::proto::codec::error::PacketCodecError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::kill::{ConnectionLock, kill};
use crate::Fetched;
use crate::tls::{self, Socket, Verify};

/// Free buffer space for each read of the socket.
const READ_BYTES: usize = 64 << 10;
/// Maximum size of a packet during login.
const LOGIN_PACKET_BYTES_MAX: usize = 64 << 10;
/// Maximum size of a received row and of a sent statement.
const PACKET_BYTES_MAX: usize = 64 << 20;
/// The header of a packet.
const HEADER_BYTES: u64 = 4;
/// `utf8mb4_general_ci`, which every server has.
const COLLATION: u8 = 45;
/// Maximum columns of a result.
const COLUMNS_MAX: u64 = 65_535;

/// Required capabilities, which all servers of this century have.
const NEEDED: CapabilityFlags = CapabilityFlags::CLIENT_PROTOCOL_41
    .union(CapabilityFlags::CLIENT_SECURE_CONNECTION)
    .union(CapabilityFlags::CLIENT_PLUGIN_AUTH);
const WANTED: CapabilityFlags = NEEDED
    .union(CapabilityFlags::CLIENT_LONG_PASSWORD)
    .union(CapabilityFlags::CLIENT_TRANSACTIONS)
    .union(CapabilityFlags::CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA);

type Result<T, E = Error> = std::result::Result<T, E>;

/// The server's id of a prepared statement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared(u32);

/// A logged-in connection. Dropping it while it waits for an answer kills its statement.
pub(super) struct ProtocolConnection {
    socket: Box<dyn Socket>,
    codec: PacketCodec,
    read: BytesMut,
    packet: Vec<u8>,
    opts: Opts,
    /// The server's id of this connection.
    id: u32,
    /// The named lock by which its statements are cancelled.
    mark: Option<ConnectionLock>,
    /// Whether the server knows our capabilities.
    introduced: bool,
    /// Whether an answer is expected.
    waits: bool,
}

impl ProtocolConnection {
    /// Connects and logs in. TLS trusts the authorities in these files.
    pub(super) async fn open(opts: &Opts, authorities: &[PathBuf]) -> Result<Self> {
        if opts.compression().is_some() {
            return Err(refused("cursors don't support compression; remove `compression` from the URI"));
        }
        let socket: Box<dyn Socket> = match opts.socket() {
            Some(path) => Box::new(UnixStream::connect(path).await?),
            None => {
                let tcp = TcpStream::connect((opts.ip_or_hostname(), opts.tcp_port())).await?;
                tcp.set_nodelay(opts.tcp_nodelay())?;
                Box::new(tcp)
            }
        };
        let mut codec = PacketCodec::default();
        codec.max_allowed_packet = LOGIN_PACKET_BYTES_MAX;
        let (read, packet, opts) = (BytesMut::new(), Vec::new(), opts.clone());
        let mut raw =
            Self { socket, codec, read, packet, opts, id: 0, mark: None, introduced: false, waits: false };
        raw.log_in(authorities).await?;
        raw.codec.max_allowed_packet = PACKET_BYTES_MAX;
        let mark = ConnectionLock::new();
        let taken = raw.run(&mark.take()).await;
        raw.mark = mark.taken(taken)?;
        Ok(raw)
    }

    async fn log_in(&mut self, authorities: &[PathBuf]) -> Result<()> {
        let opts = self.opts.clone();
        self.next().await?;
        let greeting = ParseBuf(&self.packet).parse::<HandshakePacket<'_>>(()).map_err(malformed)?;
        let (can, mut nonce, id) = (greeting.capabilities(), greeting.nonce(), greeting.connection_id());
        let mut plugin = match greeting.auth_plugin() {
            Some(AuthPlugin::CachingSha2Password) => AuthPlugin::CachingSha2Password,
            _ => AuthPlugin::MysqlNativePassword,
        };
        self.id = id;
        if !can.contains(NEEDED) {
            return Err(refused("the server is too old, or not a MySQL server"));
        }
        let mut capabilities = WANTED & can;
        let secure = match opts.ssl_opts() {
            Some(_) if !can.contains(CapabilityFlags::CLIENT_SSL) => {
                return Err(DriverError::NoClientSslFlagFromServer.into());
            }
            Some(tls) if opts.socket().is_none() => {
                capabilities |= CapabilityFlags::CLIENT_SSL;
                self.encrypt(tls, authorities, capabilities).await?;
                true
            }
            _ => opts.socket().is_some(),
        };
        let answer = plugin.gen_data(opts.pass(), &nonce);
        let response = HandshakeResponse::new(
            answer.as_deref(),
            // The first version with utf8mb4.
            (5, 5, 3),
            opts.user().map(str::as_bytes),
            opts.db_name().map(str::as_bytes),
            Some(plugin.borrow()),
            capabilities,
            None,
            PACKET_BYTES_MAX as u32,
        );
        self.send(&serialized(&response)).await?;
        self.introduced = true;
        let mut switched = false;
        loop {
            self.next().await?;
            match *self.packet {
                [0x00, ..] => return Ok(()),
                [0xfe, _, ..] if !switched => {
                    switched = true;
                    let switch =
                        ParseBuf(&self.packet).parse::<AuthSwitchRequest<'_>>(()).map_err(malformed)?;
                    plugin = known(&switch.auth_plugin(), opts.enable_cleartext_plugin())?;
                    nonce = switch.plugin_data().to_vec();
                    let answer = plugin.gen_data(opts.pass(), &nonce).as_ref().map(serialized);
                    self.send(&answer.unwrap_or_default()).await?;
                }
                // The server has the password's hash in its cache; its decision follows.
                [0x01, 0x03] => {}
                // It has not, and requires the password itself.
                [0x01, 0x04] if secure => {
                    let password = [opts.pass().unwrap_or_default().as_bytes(), &[0]].concat();
                    self.send(&password).await?;
                }
                [0x01, 0x04] => {
                    let name = "caching_sha2_password, which requires TLS here (?require_ssl=true)";
                    return Err(DriverError::UnknownAuthPlugin { name: name.into() }.into());
                }
                _ => return Err(refused("unexpected message during login")),
            }
        }
    }

    /// Switches to TLS. Unencrypted data after the greeting is an error.
    async fn encrypt(
        &mut self,
        opts: &SslOpts,
        authorities: &[PathBuf],
        capabilities: CapabilityFlags,
    ) -> Result<()> {
        let request = SslRequest::new(capabilities, PACKET_BYTES_MAX as u32, COLLATION);
        self.send(&serialized(&request)).await?;
        if !self.read.is_empty() {
            return Err(refused("unexpected data before the TLS handshake"));
        }
        let verify = match (opts.accept_invalid_certs(), opts.skip_domain_validation()) {
            (true, _) => Verify::Nothing,
            (false, true) => Verify::Authority,
            (false, false) => Verify::Name,
        };
        let connector = tls::connector(verify, authorities).map_err(io::Error::other)?;
        let host = opts.tls_hostname_override().unwrap_or(self.opts.ip_or_hostname()).to_owned();
        let name = rustls::pki_types::ServerName::try_from(host).map_err(io::Error::other)?;
        let plain = std::mem::replace(&mut self.socket, Box::new(tokio::io::empty()));
        self.socket = Box::new(Box::pin(connector.connect(name, plain)).await?);
        Ok(())
    }

    /// Runs a statement that returns no rows.
    pub(super) async fn run(&mut self, sql: &str) -> Result<()> {
        self.command(Command::COM_QUERY, sql.as_bytes()).await?;
        self.next().await?;
        self.waits = false;
        match self.packet.first() {
            Some(0x00) => Ok(()),
            _ => Err(refused("unexpected rows")),
        }
    }

    /// Prepares a single statement without parameters.
    pub(super) async fn prepare(&mut self, sql: &str) -> Result<Prepared> {
        self.command(Command::COM_STMT_PREPARE, sql.as_bytes()).await?;
        self.next().await?;
        let packet = ParseBuf(&self.packet).parse::<StmtPacket>(()).map_err(malformed)?;
        let prepared = Prepared(packet.statement_id());
        let (parameters, columns) = (packet.num_params(), packet.num_columns());
        for described in [parameters, columns] {
            if described > 0 {
                self.until_end(u64::from(described)).await?;
            }
        }
        self.waits = false;
        if parameters > 0 {
            self.forget(prepared).await?;
            return Err(DriverError::StmtParamsMismatch { required: parameters, supplied: 0 }.into());
        }
        Ok(prepared)
    }

    /// Opens a cursor for a statement. Returns `false` if the statement has none; rows may follow then, so
    /// the connection can't be reused.
    pub(super) async fn execute(&mut self, statement: Prepared) -> Result<bool> {
        // A read-only cursor, and one iteration.
        let body = [&statement.0.to_le_bytes()[..], &[1], &1_u32.to_le_bytes()].concat();
        self.command(Command::COM_STMT_EXECUTE, &body).await?;
        self.next().await?;
        if self.packet.first() == Some(&0x00) {
            self.waits = false;
            return Ok(false);
        }
        let (_, status) = self.until_end(COLUMNS_MAX).await?;
        let opened = status.contains(StatusFlags::SERVER_STATUS_CURSOR_EXISTS);
        self.waits = !opened;
        Ok(opened)
    }

    /// Fetches rows from a statement's cursor.
    pub(super) async fn fetch(&mut self, statement: Prepared, rows: u32) -> Result<(Fetched, StatusFlags)> {
        let body = [statement.0.to_le_bytes(), rows.to_le_bytes()].concat();
        self.command(Command::COM_STMT_FETCH, &body).await?;
        let counted = self.until_end(rows.into()).await?;
        self.waits = false;
        Ok(counted)
    }

    /// Closes a statement and its cursor. The server does not answer.
    pub(super) async fn forget(&mut self, statement: Prepared) -> Result<()> {
        self.command(Command::COM_STMT_CLOSE, &statement.0.to_le_bytes()).await?;
        self.waits = false;
        Ok(())
    }

    /// Counts packets up to the end marker. More than `most` packets are an error.
    async fn until_end(&mut self, most: u64) -> Result<(Fetched, StatusFlags)> {
        let mut counted = Fetched::default();
        loop {
            let bytes = self.next().await?;
            // A row with this first byte has more than 16 MB.
            if self.packet.first() == Some(&0xfe) && self.packet.len() < 9 {
                let end = ParseBuf(&self.packet).parse::<OkPacketDeserializer<'_, OldEofPacket>>(WANTED);
                return Ok((counted, end.map_err(malformed)?.into_inner().status_flags()));
            }
            counted.rows += 1;
            counted.bytes += bytes;
            if counted.rows > most {
                return Err(refused("more packets than requested"));
            }
        }
    }

    async fn command(&mut self, command: Command, body: &[u8]) -> Result<()> {
        self.codec.reset_seq_id();
        self.waits = true;
        self.send(&[&[command as u8], body].concat()).await
    }

    async fn send(&mut self, packet: &[u8]) -> Result<()> {
        let mut out = BytesMut::new();
        self.codec.encode(&mut &packet[..], &mut out)?;
        self.socket.write_all(&out).await?;
        self.socket.flush().await?;
        Ok(())
    }

    /// Reads the next packet and returns its bytes on the wire; an error packet becomes an error.
    async fn next(&mut self) -> Result<u64> {
        self.packet.clear();
        let most = self.codec.max_allowed_packet;
        let unreadable = |error| match error {
            PacketCodecError::PacketTooLarge => refused(&format!("a packet of more than {most} bytes")),
            other => refused(&other.to_string()),
        };
        while !self.codec.decode(&mut self.read, &mut self.packet).map_err(unreadable)? {
            self.read.reserve(READ_BYTES);
            if self.socket.read_buf(&mut self.read).await? == 0 {
                return Err(
                    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection").into()
                );
            }
        }
        match self.packet.first() {
            Some(0xff) => {
                self.waits = false;
                let known = if self.introduced { WANTED } else { CapabilityFlags::empty() };
                Err(match ParseBuf(&self.packet).parse::<ErrPacket<'_>>(known).map_err(malformed)? {
                    ErrPacket::Error(error) => Error::Server(ServerError {
                        code: error.error_code(),
                        message: error.message_str().into_owned(),
                        state: error.sql_state_ref().map(|state| state.as_str().into()).unwrap_or_default(),
                    }),
                    ErrPacket::Progress(_) => refused("an unexpected progress report"),
                })
            }
            Some(_) => Ok(self.packet.len() as u64 + HEADER_BYTES),
            None => Err(refused("an empty packet")),
        }
    }
}

impl Drop for ProtocolConnection {
    fn drop(&mut self) {
        if let Some(mark) = self.mark.take().filter(|_| self.waits) {
            kill(self.opts.clone(), mark);
        }
    }
}

impl std::fmt::Debug for ProtocolConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Raw").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The plugin, if it is a supported login by password.
fn known(plugin: &AuthPlugin<'_>, clear: bool) -> Result<AuthPlugin<'static>, DriverError> {
    match plugin {
        AuthPlugin::MysqlNativePassword => Ok(AuthPlugin::MysqlNativePassword),
        AuthPlugin::CachingSha2Password => Ok(AuthPlugin::CachingSha2Password),
        AuthPlugin::MysqlClearPassword if clear => Ok(AuthPlugin::MysqlClearPassword),
        AuthPlugin::MysqlClearPassword => Err(DriverError::CleartextPluginDisabled),
        other => {
            let name = String::from_utf8_lossy(other.as_bytes()).into_owned();
            Err(DriverError::UnknownAuthPlugin { name })
        }
    }
}

fn serialized(packet: &impl MySerialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.serialize(&mut bytes);
    bytes
}

/// An error for a server that violates the protocol or is not supported.
fn refused(reason: &str) -> Error {
    io::Error::new(io::ErrorKind::InvalidData, reason).into()
}

fn malformed(error: io::Error) -> Error {
    refused(&error.to_string())
}
