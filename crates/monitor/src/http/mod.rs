//! A recorder over HTTP: a page for people, JSON for programs, and metrics for Prometheus.
//!
//! | route | what |
//! |---|---|
//! | `/` | the page |
//! | `/api/overview` | [`Overview`](crate::recorder::Overview) |
//! | `/api/queries?limit=N` | the last queries, [`QueryRow`](crate::recorder::QueryRow) |
//! | `/api/queries/{id}` | [`QueryReport`](crate::recorder::QueryReport) |
//! | `/api/series?host=H&group=G&from_ns=A&to_ns=B&points=N` | [`SeriesReport`](crate::recorder::SeriesReport) |
//! | `/api/trace?from_ns=A&to_ns=B` | a trace for Perfetto |
//! | `/metrics` | metrics in the text format of OpenMetrics |
//!
//! With tokens, programs send `Authorization: Bearer TOKEN`, and people enter a token once: a cookie that is not the
//! token stands for it until the server ends, 12 hours at most. Without tokens, requests must name the server by an
//! address, `localhost` or one of [`HttpOptions::host_names`], so that pages of other sites can't read it by DNS
//! rebinding.

mod access;
mod files;
mod routes;
mod server;

use std::sync::Arc;
use std::time::Duration;

pub use server::serve;

/// Settings of [`serve`].
#[derive(Clone)]
pub struct HttpOptions {
    /// Tokens that give access, one of which is needed. Empty: nobody needs one.
    pub tokens: Vec<String>,
    /// Certificate and key; `None` for plain HTTP. Only HTTP/1.1 is spoken, so that no other protocol should be offered.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// What the title of the page says beside `Lightship`, such as the name of the node.
    pub title: String,
    /// Names by which the server may be called without a token, beside addresses and `localhost`.
    pub host_names: Vec<String>,
    /// The most connections; others wait until one ends. Each takes up to 100 KB, and what its answer takes.
    pub connections_max: usize,
    /// The most answers that are computed at a time; others wait.
    pub reports_max: usize,
    /// The most bytes of the head of a request, at least 8192.
    pub head_bytes_max: usize,
    /// How long the head of a request, or a TLS handshake, may take. An idle connection ends after it, too.
    pub head_timeout: Duration,
    /// How long an answer may take to be computed.
    pub answer_timeout: Duration,
    /// How long a connection may last. Clients open another one.
    pub connection_timeout: Duration,
    /// How long answers that are being sent are awaited when the server or a connection ends.
    pub grace: Duration,
}

impl HttpOptions {
    /// Defaults: no token, no TLS, 64 connections.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            tokens: Vec::new(),
            tls: None,
            title: title.into(),
            host_names: Vec::new(),
            connections_max: 64,
            reports_max: 4,
            head_bytes_max: 16 << 10,
            head_timeout: Duration::from_secs(20),
            answer_timeout: Duration::from_secs(20),
            connection_timeout: Duration::from_secs(600),
            grace: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for HttpOptions {
    /// Without tokens and keys.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("HttpOptions")
            .field("tokens", &self.tokens.len())
            .field("tls", &self.tls.is_some())
            .field("title", &self.title)
            .field("host_names", &self.host_names)
            .field("connections_max", &self.connections_max)
            .finish_non_exhaustive()
    }
}
