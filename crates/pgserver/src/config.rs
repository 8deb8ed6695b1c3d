//! Settings of a server.

use std::sync::Arc;
use std::time::Duration;

/// Settings of a server for clients of PostgreSQL.
#[derive(Clone)]
pub struct PgConfig {
    /// Certificate and key. With it, clients without TLS are refused. `None` means plain TCP.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Accepted passwords, for any name of a user. If empty, every client is accepted.
    pub tokens: Vec<String>,
    /// Allows listening beyond this host without TLS and tokens.
    pub insecure: bool,
    /// The maximum number of concurrent clients; more are refused. Each may hold a batch of the engine, the engine's
    /// own state, and what is limited below.
    pub connections_max: usize,
    /// The maximum number of concurrent connections that have not authenticated yet; more wait in the system's backlog.
    /// Each holds a socket and some ten KiB. Requests to cancel a statement count as such.
    pub unauthenticated_max: usize,
    /// The longest message of a client, such as the values of the parameters of a statement. A client holds at most
    /// two of them.
    pub message_bytes_max: usize,
    /// What the prepared statements and the portals of a client may hold.
    pub prepared_bytes_max: usize,
    /// The maximum number of open portals and cursors of a client. Each may hold a query of the engine.
    pub portals_max: usize,
    /// The time allowed for the TLS handshake and the authentication together.
    pub handshake_timeout: Duration,
    /// How long a client may be idle between two statements.
    pub idle_timeout: Option<Duration>,
    /// How long a client may take nothing of a result while rows wait for it, and how long it may leave a cursor or
    /// portal open without a statement.
    pub stall_timeout: Option<Duration>,
    /// How long running queries may go on after a shutdown was requested.
    pub shutdown_grace: Duration,
}

impl Default for PgConfig {
    fn default() -> Self {
        Self {
            tls: None,
            tokens: Vec::new(),
            insecure: false,
            connections_max: 256,
            unauthenticated_max: 256,
            message_bytes_max: 16 << 20,
            prepared_bytes_max: 16 << 20,
            portals_max: 64,
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Some(Duration::from_secs(8 * 60 * 60)),
            stall_timeout: Some(Duration::from_secs(15 * 60)),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

impl PgConfig {
    /// The maximum number of sockets of the server.
    pub fn descriptors_max(&self) -> u64 {
        (self.connections_max as u64).saturating_add(self.unauthenticated_max as u64).saturating_add(1)
    }
}
