//! Who may be a node of an overlay, and who may read what is sent.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use subtle::ConstantTimeEq;

use crate::error::{RelayError, Result};
use crate::frame::TOKEN_BYTES_MAX;

/// Encryption between nodes, as both ends of a connection need it. Any node opens some and accepts others.
#[derive(Debug, Clone)]
pub struct Tls {
    /// For connections that this node accepts: its certificate.
    pub server: Arc<ServerConfig>,
    /// For connections that it opens: the authorities it trusts.
    pub client: Arc<ClientConfig>,
    /// What the certificate of each node is for, by number; one alone is that of all.
    pub names: Vec<ServerName<'static>>,
}

impl Tls {
    /// What a node's certificate is to be for.
    pub(crate) fn name(&self, node: u32) -> Option<ServerName<'static>> {
        match &self.names[..] {
            [all] => Some(all.clone()),
            names => names.get(node as usize).cloned(),
        }
    }
}

/// TLS and a token, both of which a node needs that listens beyond its host.
#[derive(Clone, Default)]
pub struct Security {
    /// None means plain TCP.
    pub tls: Option<Tls>,
    /// What every node has to know; none lets everybody in. At most 1024 bytes.
    pub token: Option<String>,
    /// Allows listening beyond this host without both.
    pub insecure: bool,
}

impl Security {
    /// Whether a node may listen there.
    pub(crate) fn check(&self, listens: SocketAddr) -> Result<()> {
        let wrong = |what: String| Err(RelayError::Config(what));
        if self.token.as_ref().is_some_and(|token| token.is_empty() || token.len() > TOKEN_BYTES_MAX) {
            return wrong(format!("a token has 1 to {TOKEN_BYTES_MAX} bytes"));
        }
        if self.tls.as_ref().is_some_and(|tls| tls.names.is_empty()) {
            return wrong("TLS, and no name that a certificate could be for".to_owned());
        }
        let safe = self.tls.is_some() && self.token.is_some();
        if !safe && !self.insecure && !listens.ip().is_loopback() {
            return wrong(format!("{listens} can be reached from other hosts, which takes TLS and a token"));
        }
        Ok(())
    }

    /// Whether a token lets who shows it in.
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
    fn beyond_this_host_it_takes_both() {
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
    fn a_certificate_is_for_the_node_that_has_it() {
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
    fn the_token_is_not_shown() {
        let security = Security { token: Some("secret".into()), ..Security::default() };
        assert!(!format!("{security:?}").contains("secret"));
        assert!(security.admits(b"secret"));
        assert!(!security.admits(b"secreT") && !security.admits(b""));
        assert!(Security::default().admits(b"") && Security::default().admits(b"any"));
    }
}
