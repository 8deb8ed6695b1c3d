//! Authentication and encryption between the nodes of an overlay.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use subtle::ConstantTimeEq;

use crate::error::{RelayError, Result};

/// Bytes of the longest token.
const TOKEN_BYTES_MAX: usize = 1024;

/// TLS between nodes, for both ends of a connection: a node opens some connections and accepts others.
#[derive(Debug, Clone)]
pub struct Tls {
    /// For connections that this node accepts, with its certificate.
    pub server: Arc<ServerConfig>,
    /// For connections that it opens, with the certificate authorities that it trusts.
    pub client: Arc<ClientConfig>,
    /// The name in each node's certificate, by number; a single name applies to all nodes.
    pub names: Vec<ServerName<'static>>,
}

impl Tls {
    /// The expected name in a node's certificate.
    pub(crate) fn name(&self, node: u32) -> Option<ServerName<'static>> {
        match &self.names[..] {
            [all] => Some(all.clone()),
            names => names.get(node as usize).cloned(),
        }
    }
}

/// TLS and a token. A node that listens beyond its host needs both.
#[derive(Clone, Default)]
pub struct Security {
    /// `None` is plain TCP.
    pub tls: Option<Tls>,
    /// The token that every node must have, at most 1024 bytes; `None` accepts any.
    pub token: Option<String>,
    /// Allows listening beyond this host without both.
    pub insecure: bool,
}

impl Security {
    /// Checks that a node may listen on this address.
    pub(crate) fn check(&self, listens: SocketAddr) -> Result<()> {
        let wrong = |what: String| Err(RelayError::Config(what));
        if self.token.as_ref().is_some_and(|token| token.is_empty() || token.len() > TOKEN_BYTES_MAX) {
            return wrong(format!("a token must have 1 to {TOKEN_BYTES_MAX} bytes"));
        }
        if self.tls.as_ref().is_some_and(|tls| tls.names.is_empty()) {
            return wrong("TLS needs the name in at least one certificate".to_owned());
        }
        let safe = self.tls.is_some() && self.token.is_some();
        if !safe && !self.insecure && !listens.ip().is_loopback() {
            return wrong(format!(
                "{listens} can be reached from other hosts, which requires TLS and a token"
            ));
        }
        Ok(())
    }

    /// Whether this token is accepted.
    pub(crate) fn admits(&self, token: &[u8]) -> bool {
        self.token.as_ref().is_none_or(|ours| ours.as_bytes().ct_eq(token).into())
    }
}

impl fmt::Debug for Security {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tls, token, insecure } = self;
        f.debug_struct("Security")
            .field("tls", &tls.is_some())
            .field("token", &token.is_some())
            .field("insecure", insecure)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_beyond_this_host_requires_tls_and_a_token() {
        let at = |address: &str| address.parse().expect("an address");
        let with = |token: &str| Security { token: Some(token.into()), ..Security::default() };
        let insecure = Security { insecure: true, ..Security::default() };
        assert_eq!(Security::default().check(at("127.0.0.1:1")), Ok(()));
        assert_eq!(Security::default().check(at("[::1]:1")), Ok(()));
        assert_eq!(insecure.check(at("0.0.0.0:1")), Ok(()));
        for security in [Security::default(), with("t")] {
            let refused = security.check(at("10.0.0.1:1")).expect_err("refused");
            assert!(refused.to_string().contains("TLS and a token"), "{refused}");
        }
        assert!(with("").check(at("127.0.0.1:1")).is_err());
        assert!(with(&"x".repeat(TOKEN_BYTES_MAX + 1)).check(at("127.0.0.1:1")).is_err());
    }

    #[test]
    fn each_node_has_its_own_certificate_name_or_all_the_same() {
        let names = |names: &[&'static str]| -> Vec<ServerName<'static>> {
            names.iter().map(|name| ServerName::try_from(*name).expect("a name")).collect()
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::server::ResolvesServerCertUsingSni::new()));
        let (server, client) = (Arc::new(server), Arc::new(client));
        let tls = |names| Tls { server: server.clone(), client: client.clone(), names };
        let each = tls(names(&["a.test", "10.0.0.1"]));
        assert_eq!(each.name(0), ServerName::try_from("a.test").ok());
        assert_eq!((each.name(1), each.name(2)), (ServerName::try_from("10.0.0.1").ok(), None));
        assert_eq!(tls(names(&["all.test"])).name(7), ServerName::try_from("all.test").ok());
        let none = Security { tls: Some(tls(Vec::new())), ..Security::default() };
        assert!(none.check("127.0.0.1:1".parse().expect("an address")).is_err());
    }

    #[test]
    fn debug_output_hides_the_token() {
        let security = Security { token: Some("secret".into()), ..Security::default() };
        assert!(!format!("{security:?}").contains("secret"));
        assert!(security.admits(b"secret"));
        assert!(!security.admits(b"secreT") && !security.admits(b""));
        assert!(Security::default().admits(b"") && Security::default().admits(b"any"));
    }
}
