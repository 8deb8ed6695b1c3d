//! Settings of a server.

use std::sync::Arc;
use std::time::Duration;

use lightship_transport::{Result, TransportError};

use crate::divided::ENDPOINTS_MAX;

/// The longest token. A client sends it with each request.
const TOKEN_BYTES_MAX: usize = 4 << 10;
/// The most bytes of a message that are not rows.
const MESSAGE_OVERHEAD_BYTES: u32 = 64 << 10;
/// The largest message that clients written in Go accept, which includes ADBC's driver.
const CLIENT_MESSAGE_BYTES_MAX: u32 = 16 << 20;
/// Messages that have fewer bytes do not hold the statements that clients send.
const REQUEST_BYTES_MIN: u32 = 4 << 20;

/// Settings of a [`FlightServer`](crate::FlightServer).
#[derive(Clone)]
pub struct FlightConfig {
    /// Certificate and key; `None` means that nothing is encrypted.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Accepted tokens. A client presents one as a bearer token, or as the password of any user. If there are none,
    /// every client is accepted.
    pub tokens: Vec<String>,
    /// Allows listening beyond this host without TLS and tokens.
    pub insecure: bool,
    /// Addresses by which clients reach this server or others that answer the same queries, such as
    /// `grpc+tls://db.example:4290`, for results. If there are none, clients fetch results where they have asked.
    pub locations: Vec<String>,
    /// Endpoints of a result that has no order: clients that fetch them at the same time divide its rows over as many
    /// streams. Each can be fetched once, and within five minutes after it was asked for, where it was asked for: with
    /// more than one, `locations` must not be those of other servers. 1 to 64.
    pub endpoints: usize,
    /// The maximum number of connections of clients with a token. Requests on further ones are refused. Each holds
    /// some ten KiB, and its requests.
    pub connections_max: usize,
    /// The maximum number of connections that have not shown a token yet. Further ones wait in the system's backlog.
    pub unauthenticated_max: usize,
    /// The maximum number of concurrent requests of a connection.
    pub requests_max: u32,
    /// The maximum number of requests whose message has not arrived yet, of all connections; more wait. Each holds up
    /// to 8 MiB, and has as much time as a handshake.
    pub arriving_max: usize,
    /// The maximum number of clients that send rows or parameters at once; more wait as statements do. Each holds a
    /// message of up to `request_bytes_max`, and its rows, which can have 64 MiB if the message is compressed.
    pub uploads_max: usize,
    /// The maximum number of statements that run at once; as many again may be planned at once. Each holds four messages for
    /// each stream of its result, of about 1 MiB unless a row is larger, a batch of the engine, and the engine's own state.
    pub queries_max: usize,
    /// How long a statement waits for others to end before it is refused.
    pub queue_timeout: Duration,
    /// The largest message that is sent, from 64 KiB to just below 16 MiB, which is what some clients accept. It limits
    /// single rows: messages of several rows have about 1 MiB.
    pub message_bytes_max: u32,
    /// The largest message of rows or parameters that is accepted, at least 4 MiB. It limits the batches of ingestion.
    pub request_bytes_max: u32,
    /// How long a connection may take until its first request with a token, including the TLS handshake.
    pub handshake_timeout: Duration,
    /// The time between pings of a connection, which is closed if one is not answered within twice this.
    pub ping_interval: Duration,
    /// How long a client may take nothing of a result while rows wait for it, or send nothing of the rows that it has
    /// announced; then the statement fails. Without a limit, a client that only answers pings keeps its statement and
    /// the statement's resources for ever.
    pub stall_timeout: Option<Duration>,
    /// How long running statements may go on after a shutdown was requested.
    pub shutdown_grace: Duration,
}

impl Default for FlightConfig {
    fn default() -> Self {
        Self {
            tls: None,
            tokens: Vec::new(),
            insecure: false,
            locations: Vec::new(),
            endpoints: 1,
            connections_max: 256,
            unauthenticated_max: 256,
            requests_max: 64,
            arriving_max: 64,
            uploads_max: 16,
            queries_max: 256,
            queue_timeout: Duration::from_secs(10),
            message_bytes_max: CLIENT_MESSAGE_BYTES_MAX - MESSAGE_OVERHEAD_BYTES,
            request_bytes_max: CLIENT_MESSAGE_BYTES_MAX,
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(10),
            stall_timeout: Some(Duration::from_secs(15 * 60)),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

impl FlightConfig {
    /// The maximum number of sockets that the server has open.
    pub fn descriptors_max(&self) -> u64 {
        (self.connections_max as u64).saturating_add(self.unauthenticated_max as u64).saturating_add(1)
    }

    /// Checks the settings.
    pub(crate) fn check(&self) -> Result<()> {
        let fail = |what: &str| Err(TransportError::Config(what.to_owned()));
        for token in &self.tokens {
            if token.len() > TOKEN_BYTES_MAX {
                return Err(TransportError::Token { bytes: token.len(), bytes_max: TOKEN_BYTES_MAX });
            }
            // Clients send it in a header of HTTP.
            if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return fail("a token for Flight SQL must consist of ASCII characters without spaces");
            }
        }
        let limits = [self.connections_max, self.queries_max, self.arriving_max, self.uploads_max];
        if limits.contains(&0) || self.requests_max == 0 {
            return fail("the limits of connections, statements and requests must be above 0");
        }
        if !(1..=ENDPOINTS_MAX).contains(&self.endpoints) {
            return Err(TransportError::Config(format!("a result has from 1 to {ENDPOINTS_MAX} endpoints")));
        }
        let message_bytes = MESSAGE_OVERHEAD_BYTES..=CLIENT_MESSAGE_BYTES_MAX - MESSAGE_OVERHEAD_BYTES;
        if !message_bytes.contains(&self.message_bytes_max) {
            return fail("the largest message must have from 64 KiB to 16 MiB less 64 KiB");
        }
        if self.request_bytes_max < REQUEST_BYTES_MIN {
            return fail("the largest request must have at least 4 MiB");
        }
        for location in &self.locations {
            let is_tls = location.starts_with("grpc+tls://");
            if !is_tls && !location.starts_with("grpc://") && !location.starts_with("grpc+tcp://") {
                return Err(TransportError::Config(format!("{location}: expected grpc+tls:// or grpc://")));
            }
            // A client would use it, and fail.
            if is_tls != self.tls.is_some() {
                return Err(TransportError::Config(format!(
                    "{location}: TLS there and here must be the same"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        let config = FlightConfig::default;
        assert!(config().check().is_ok());
        for wrong in [
            FlightConfig { tokens: vec![String::new()], ..config() },
            FlightConfig { tokens: vec!["a\nb".into()], ..config() },
            FlightConfig { tokens: vec!["é".into()], ..config() },
            FlightConfig { tokens: vec!["a b".into()], ..config() },
            FlightConfig { tokens: vec!["t".repeat(TOKEN_BYTES_MAX + 1)], ..config() },
            FlightConfig { endpoints: 0, ..config() },
            FlightConfig { endpoints: ENDPOINTS_MAX + 1, ..config() },
            FlightConfig { queries_max: 0, ..config() },
            FlightConfig { uploads_max: 0, ..config() },
            FlightConfig { message_bytes_max: 16 << 20, ..config() },
            FlightConfig { message_bytes_max: 0, ..config() },
            FlightConfig { request_bytes_max: 1, ..config() },
            FlightConfig { locations: vec!["http://a".into()], ..config() },
            FlightConfig { locations: vec!["grpc+tls://a:1".into()], ..config() },
        ] {
            assert!(wrong.check().is_err());
        }
        assert!(FlightConfig { locations: vec!["grpc://a:1".into()], ..config() }.check().is_ok());
    }
}
