//! The queries of a node, by the page that it serves (`lightship node --http`).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use lightship_transport::net::tls;
use lightship_usage::{Footprint, Verdict};
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use crate::error::{Error, ErrorKind, Result};

/// The most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The page of a node.
pub struct NodePage {
    url: Url,
    token: String,
    tls: Option<Arc<rustls::ClientConfig>>,
}

/// A query in a node's list.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeQuery {
    /// Its id.
    pub id: String,
    /// Its text.
    pub label: String,
    /// When it began, in nanoseconds of the node's clock. Below 0 if that was before the node's host was started.
    pub began_ns: i64,
    /// When it ended; `None` if it runs.
    pub ended_ns: Option<i64>,
    /// What limited it; `None` if that is not known, or not yet.
    pub limit_name: Option<String>,
    /// Why it was not assessed.
    pub reason: Option<String>,
    /// The error that ended it.
    pub error: Option<String>,
    /// The hosts that worked for it.
    pub hosts: Vec<String>,
}

/// All that a node knows of a query.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeQueryReport {
    /// What the list says of it.
    #[serde(flatten)]
    pub query: NodeQuery,
    /// What limited it.
    pub verdict: Option<Verdict>,
    /// Where its time went.
    pub footprint: Option<Footprint>,
}

impl NodePage {
    /// A page by its URL, with a token of the node; an empty one for none. `authority` is the certificate of the CA
    /// that signed the node's, in a PEM file; `None` for those of the system.
    ///
    /// # Errors
    /// If it is no `http` or `https` URL, the file can't be read, or the token would be sent to another host
    /// unencrypted.
    pub fn new(url: &str, token: String, authority: Option<&Path>) -> Result<Self> {
        let expected = |reason: &str| {
            Error::usage(format!("{url}: {reason}")).hint("expected a URL such as http://127.0.0.1:4280")
        };
        let parsed = Url::parse(url).map_err(|error| expected(&error.to_string()))?;
        let is_near = match parsed.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => return Err(expected("no host")),
        };
        let tls = match (parsed.scheme(), authority) {
            ("http", _) if !is_near && !token.is_empty() => {
                return Err(Error::usage(format!("the token would be sent to {url} unencrypted"))
                    .hint("use https, which the page of a node with a certificate has"));
            }
            ("http", _) => None,
            ("https", Some(path)) => Some(tls::client_with_authority(path)?),
            ("https", None) => Some(tls::client(rustls_native_certs::load_native_certs().certs)?),
            (other, _) => return Err(expected(&format!("{other} is not http or https"))),
        };
        Ok(Self { url: parsed, token, tls })
    }

    /// The last queries, the latest first.
    ///
    /// # Errors
    /// If the page can't be read.
    pub async fn queries(&self, limit: usize) -> Result<Vec<NodeQuery>> {
        self.get(&format!("/api/queries?limit={limit}")).await?.ok_or_else(|| self.is_no_page())
    }

    /// The query with an id.
    ///
    /// # Errors
    /// If the page can't be read, or has no such query.
    pub async fn query(&self, id: &str) -> Result<NodeQueryReport> {
        let mut path = self.url.clone();
        if let Ok(mut segments) = path.path_segments_mut() {
            segments.clear().extend(["api", "queries", id]);
        }
        let found = self.get(path.path()).await?;
        found.ok_or_else(|| {
            Error::usage(format!("the node has no query {id}"))
                .hint("list its queries with `lightship usage show --node URL`; it keeps the last 1000")
        })
    }

    fn is_no_page(&self) -> Error {
        Error::new(ErrorKind::Network, format!("{} is not the page of a node", self.url))
            .hint("give the address of `lightship node --http`")
    }

    fn lost(&self, error: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Network, format!("can't read {}: {error}", self.url))
    }

    /// The answer to a path; `None` if there is none.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        let reading = tokio::time::timeout(TIMEOUT, self.read(path)).await;
        let (status, body) =
            reading.map_err(|_| self.lost(format!("no answer within {} s", TIMEOUT.as_secs())))??;
        match status {
            StatusCode::OK => serde_json::from_slice(&body).map(Some).map_err(|_| self.is_no_page()),
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::UNAUTHORIZED => Err(Error::new(ErrorKind::Network, "the node refused the token")
                .hint("set LIGHTSHIP_TOKEN to a token of the node")),
            other => Err(self.lost(other)),
        }
    }

    async fn read(&self, path: &str) -> Result<(StatusCode, Bytes)> {
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.url.port_or_known_default().unwrap_or(443);
        let stream = TcpStream::connect((host, port)).await.map_err(|error| self.lost(error))?;
        match &self.tls {
            None => self.exchange(stream, path).await,
            Some(config) => {
                let name = ServerName::try_from(host.to_owned()).map_err(|error| self.lost(error))?;
                let stream = TlsConnector::from(config.clone()).connect(name, stream).await;
                self.exchange(stream.map_err(|error| self.lost(error))?, path).await
            }
        }
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        path: &str,
    ) -> Result<(StatusCode, Bytes)> {
        let lost = |error: hyper::Error| self.lost(error);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        let authority = match self.url.port() {
            Some(port) => format!("{}:{port}", self.url.host_str().unwrap_or_default()),
            None => self.url.host_str().unwrap_or_default().to_owned(),
        };
        let mut request = Request::get(path).header(header::HOST, authority);
        if !self.token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| self.lost(error))?;
        let answer = async {
            let answer = sender.send_request(request).await.map_err(lost)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            Ok((status, body.map_err(|error| self.lost(error))?.to_bytes()))
        };
        tokio::pin!(answer);
        // The connection does the work of the answer, and may end before it is taken.
        tokio::select! {
            answer = &mut answer => answer,
            ended = connection => match ended {
                Ok(()) => answer.await,
                Err(error) => Err(lost(error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_not_sent_unencrypted_to_other_hosts() {
        let refused = |url: &str| NodePage::new(url, "t".into(), None).err().map(|error| error.message);
        assert!(refused("http://10.0.0.1:4280").unwrap().contains("unencrypted"));
        assert!(refused("http://localhost.example:1").unwrap().contains("unencrypted"));
        for near in ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"] {
            assert_eq!(refused(near), None, "{near}");
        }
        for wrong in ["lightship://a:1", "127.0.0.1:4280", "", "file:///etc/passwd"] {
            assert!(refused(wrong).is_some(), "{wrong}");
        }
    }
}
