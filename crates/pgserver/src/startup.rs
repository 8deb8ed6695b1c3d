//! The beginning of a connection: encryption, the client's settings, authentication.

use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::error::{PgError, SessionEnd, code};
use crate::link::Link;
use crate::message::{self, Fields};
use crate::scram::{MECHANISM, Verifier};
use crate::server::Shared;
use crate::session::Session;
use crate::settings::Settings;

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;
/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;
const AUTHENTICATED: i32 = 0;
const SASL: i32 = 10;
const SASL_CONTINUE: i32 = 11;
const SASL_FINAL: i32 = 12;

/// What a client says about itself.
pub(crate) struct Introduction {
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) settings: Settings,
    warnings: Vec<String>,
    /// Options of the protocol that are not known here, if an answer about them is due.
    unknown: Option<Vec<String>>,
}

/// Leads a connection to the point where it takes statements. `None` if it wanted something else.
pub(crate) async fn accept(
    stream: TcpStream,
    shared: Arc<Shared>,
    shutdown: watch::Receiver<bool>,
) -> Result<Option<Session>, SessionEnd> {
    let mut first = [0; 1];
    if stream.peek(&mut first).await? == 0 {
        return Err(SessionEnd::Closed);
    }
    let (mut link, mut is_encrypted) = match &shared.tls {
        // TLS without a request, since PostgreSQL 17.
        Some(tls) if first[0] == TLS_HANDSHAKE => {
            (Box::pin(encrypt(stream, tls, true, &shared)).await?, true)
        }
        _ => {
            let (reader, writer) = stream.into_split();
            (link(&shared, reader, writer), false)
        }
    };
    // GSS and TLS may be asked for once each.
    for _ in 0..3 {
        let (code, body) = match link.startup().await {
            Ok(packet) => packet,
            Err(end) => return Err(refuse(link, end).await),
        };
        match code {
            GSS_REQUEST => {
                link.out.put_u8(b'N');
                link.flush().await?;
            }
            SSL_REQUEST => {
                let tls = shared.tls.as_ref().filter(|_| !is_encrypted);
                link.out.put_u8(if tls.is_some() { b'S' } else { b'N' });
                link.flush().await?;
                if let Some(tls) = tls {
                    if link.has_input() {
                        let error = PgError::protocol("received unencrypted data after SSL request");
                        return Err(refuse(link, SessionEnd::Fatal(error)).await);
                    }
                    let (reader, writer) = link.into_parts();
                    link = Box::pin(encrypt(tokio::io::join(reader, writer), tls, false, &shared)).await?;
                    is_encrypted = true;
                }
            }
            CANCEL_REQUEST => {
                let mut body = body;
                if let (Ok(process), Ok(secret)) = (body.try_get_u32(), body.try_get_u32()) {
                    shared.sessions.cancel(process, secret);
                }
                link.close().await;
                return Ok(None);
            }
            version => {
                let begun = begin(&mut link, version, body, is_encrypted, &shared, &shutdown).await;
                return match begun {
                    Ok(introduction) => session(link, introduction, shared, shutdown).await.map(Some),
                    Err(end) => Err(refuse(link, end).await),
                };
            }
        }
    }
    let error = PgError::protocol("encryption was requested again");
    Err(refuse(link, SessionEnd::Fatal(error)).await)
}

fn link(
    shared: &Shared,
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
) -> Link {
    Link::new(Box::new(reader), Box::new(writer), shared.config.stall_timeout)
}

async fn encrypt(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    tls: &TlsAcceptor,
    needs_name: bool,
    shared: &Shared,
) -> Result<Link, SessionEnd> {
    let stream = tls.accept(stream).await?;
    if needs_name && stream.get_ref().1.alpn_protocol().is_none() {
        let message = "TLS without a request requires the protocol's name (ALPN)";
        return Err(SessionEnd::Fatal(PgError::protocol(message)));
    }
    let (reader, writer) = tokio::io::split(stream);
    Ok(link(shared, reader, writer))
}

/// Tells the client why the connection ends, and closes it.
async fn refuse(mut link: Link, end: SessionEnd) -> SessionEnd {
    if let SessionEnd::Fatal(error) = &end {
        message::put_error(&mut link.out, error);
        link.close().await;
    }
    end
}

/// Reads what the client says about itself, and authenticates it.
async fn begin(
    link: &mut Link,
    version: u32,
    body: Bytes,
    is_encrypted: bool,
    shared: &Shared,
    shutdown: &watch::Receiver<bool>,
) -> Result<Introduction, SessionEnd> {
    if version >> 16 != 3 {
        let message = format!(
            "unsupported frontend protocol {}.{}: server supports 3.0",
            version >> 16,
            version & 0xffff
        );
        return Err(SessionEnd::Fatal(PgError::unsupported(message).fatal()));
    }
    let introduction = introduction(version, body).map_err(|error| SessionEnd::Fatal(error.fatal()))?;
    if shared.tls.is_some() && !is_encrypted {
        let error =
            PgError::new(code::INVALID_AUTHORIZATION, "this server requires TLS").hint("use sslmode=require");
        return Err(SessionEnd::Fatal(error.fatal()));
    }
    if *shutdown.borrow() {
        let error = PgError::new(code::CANNOT_CONNECT_NOW, "the database system is shutting down");
        return Err(SessionEnd::Fatal(error.fatal()));
    }
    if let Some(unknown) = &introduction.unknown {
        message::put_negotiation(&mut link.out, unknown);
    }
    if let Some(verifier) = &shared.verifier {
        authenticate(link, verifier, &introduction.user).await?;
    }
    Ok(introduction)
}

fn introduction(version: u32, body: Bytes) -> Result<Introduction, PgError> {
    let mut fields = Fields::new(body);
    let (mut user, mut database) = (String::new(), None);
    let mut wanted = Vec::new();
    let mut unknown = Vec::new();
    loop {
        let name = fields.string()?;
        if name.is_empty() {
            break;
        }
        let value = fields.string()?;
        match name.as_str() {
            "user" => user = value,
            "database" => database = Some(value).filter(|name| !name.is_empty()),
            "options" => wanted.extend(options(&value)),
            "replication" if matches!(value.as_str(), "false" | "off" | "no" | "0") => {}
            "replication" => return Err(PgError::unsupported("replication is not supported")),
            option if option.starts_with("_pq_.") => unknown.push(name),
            _ => wanted.push((name, value)),
        }
    }
    if user.is_empty() {
        return Err(PgError::new(
            code::INVALID_AUTHORIZATION,
            "no PostgreSQL user name specified in startup packet",
        ));
    }
    let mut settings = Settings::new(&user);
    let mut warnings = Vec::new();
    for (name, value) in wanted {
        let change = match settings.set(&name, Some(&value)) {
            Ok(change) => change,
            // Of the hundreds of settings of PostgreSQL only some are known here.
            Err(error) if error.code == code::UNDEFINED_OBJECT => {
                warnings.push(error.message);
                continue;
            }
            Err(error) => return Err(error),
        };
        // Drivers send the time zone of their host to every server: not worth a warning each time.
        warnings.extend(change.warning.filter(|_| !name.eq_ignore_ascii_case("timezone")));
    }
    settings.begin();
    let is_newer = version & 0xffff != 0;
    let unknown = (is_newer || !unknown.is_empty()).then_some(unknown);
    let database = database.unwrap_or_else(|| user.clone());
    Ok(Introduction { user, database, settings, warnings, unknown })
}

/// The settings in `-c name=value --name=value`.
fn options(text: &str) -> Vec<(String, String)> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => word.extend(chars.next()),
            c if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    let setting = |text: &str| {
        let (name, value) = text.split_once('=')?;
        Some((name.replace('-', "_"), value.to_owned()))
    };
    let mut found = Vec::new();
    let mut words = words.iter().filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        let text = match word.strip_prefix("-c") {
            Some("") => words.next().map(String::as_str),
            Some(rest) => Some(rest),
            None => word.strip_prefix("--"),
        };
        found.extend(text.and_then(setting));
    }
    found
}

/// SCRAM-SHA-256 with one of the tokens as the password.
async fn authenticate(link: &mut Link, verifier: &Verifier, user: &str) -> Result<(), SessionEnd> {
    let wrong = || {
        let message = format!("password authentication failed for user \"{user}\"");
        SessionEnd::Fatal(
            PgError::new(code::INVALID_PASSWORD, message).hint("the password is a token of the node").fatal(),
        )
    };
    message::put_authentication(&mut link.out, SASL, format!("{MECHANISM}\0\0").as_bytes());
    link.flush().await?;
    let mut first = password_message(link).await?;
    let chosen = first.string().map_err(SessionEnd::Fatal)?;
    if chosen != MECHANISM {
        return Err(SessionEnd::Fatal(PgError::protocol(
            "client selected an invalid SASL authentication mechanism",
        )));
    }
    let first = first.value().map_err(SessionEnd::Fatal)?.unwrap_or_default();
    let malformed = || SessionEnd::Fatal(PgError::protocol("malformed SCRAM message"));
    let exchange = verifier.begin(&first).ok_or_else(malformed)?;
    message::put_authentication(&mut link.out, SASL_CONTINUE, exchange.message().as_bytes());
    link.flush().await?;
    let last = password_message(link).await?.rest();
    let proof = verifier.finish(&exchange, &last).ok_or_else(wrong)?;
    message::put_authentication(&mut link.out, SASL_FINAL, proof.as_bytes());
    Ok(())
}

async fn password_message(link: &mut Link) -> Result<Fields, SessionEnd> {
    let message = link.message().await?;
    if message.kind != b'p' {
        return Err(SessionEnd::Fatal(PgError::protocol("expected a SASL response")));
    }
    Ok(Fields::new(message.body))
}

/// The session of a client that has authenticated.
async fn session(
    mut link: Link,
    introduction: Introduction,
    shared: Arc<Shared>,
    shutdown: watch::Receiver<bool>,
) -> Result<Session, SessionEnd> {
    let Ok(slot) = shared.clients.clone().try_acquire_owned() else {
        let max = shared.config.connections_max;
        let message = format!("sorry, too many clients already: all {max} connections are taken");
        let error = PgError::new(code::TOO_MANY_CONNECTIONS, message).hint("try again later").fatal();
        return Err(refuse(link, SessionEnd::Fatal(error)).await);
    };
    let Some(key) = shared.sessions.begin() else {
        let error = PgError::new(code::INTERNAL_ERROR, "the system has no random numbers").fatal();
        return Err(refuse(link, SessionEnd::Fatal(error)).await);
    };
    message::put_authentication(&mut link.out, AUTHENTICATED, &[]);
    for (name, value) in introduction.settings.reported() {
        message::put_parameter_status(&mut link.out, name, value);
    }
    message::put_key(&mut link.out, key.process, key.secret);
    for warning in &introduction.warnings {
        message::put_warning(&mut link.out, warning);
    }
    message::put_ready(&mut link.out, b'I');
    link.flush().await?;
    link.accept_messages(shared.config.message_bytes_max);
    Ok(Session::new(link, shared, introduction, key, slot, shutdown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(parts: &[&str]) -> Bytes {
        let mut body: Vec<u8> = parts.iter().flat_map(|part| part.bytes().chain([0])).collect();
        body.push(0);
        body.into()
    }

    #[test]
    fn clients_introduce_themselves() {
        let parts = [
            "user",
            "me",
            "application_name",
            "psql",
            "TimeZone",
            "Europe/Berlin",
            "options",
            "-c statement_timeout=5s",
        ];
        let read = introduction(0x3_0000, packet(&parts)).unwrap();
        assert_eq!((read.user.as_str(), read.database.as_str()), ("me", "me"));
        assert_eq!(read.settings.get("application_name").unwrap(), "psql");
        assert_eq!(read.settings.get("timezone").unwrap(), "UTC");
        assert_eq!(read.settings.get("statement_timeout").unwrap(), "5000");
        assert!(read.warnings.is_empty() && read.unknown.is_none());
        let newer = introduction(0x3_0002, packet(&["user", "me", "_pq_.x", "1"])).unwrap();
        assert_eq!(newer.unknown, Some(vec!["_pq_.x".to_owned()]));
        assert!(introduction(0x3_0000, packet(&["database", "x"])).is_err());
        assert_eq!(
            introduction(0x3_0000, packet(&["user", "me", "nonsense", "x"])).unwrap().warnings.len(),
            1
        );
        assert!(introduction(0x3_0000, packet(&["user", "me", "client_encoding", "LATIN1"])).is_err());
        assert!(introduction(0x3_0000, Bytes::from_static(b"user\0me")).is_err());
    }

    #[test]
    fn options_have_several_forms() {
        let expected =
            [("a", "1"), ("b_c", "x y"), ("d", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(options(r"-c a=1 --b-c=x\ y -cd=2 -x"), expected);
    }
}
