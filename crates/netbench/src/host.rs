//! Host names of servers, and their addresses.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use tokio::net::lookup_host;

use crate::connect::ClientConnection;
use crate::error::{ConnectionError, HostError, NetbenchError};
use crate::wire::Mode;

/// The default port of a server.
pub const PORT: u16 = 4271;

/// The name and port of a server, such as `db.example`, `10.2.1.1:4271` or `[::1]:4271`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    name: String,
    port: u16,
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let error = || HostError { text: text.to_owned() };
        let is_address = |name: &str| name.parse::<std::net::Ipv6Addr>().is_ok();
        let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, rest)) if is_address(name) => match rest.strip_prefix(':') {
                Some(port) => (name, Some(port)),
                None if rest.is_empty() => (name, None),
                None => return Err(error()),
            },
            Some(_) => return Err(error()),
            None if is_address(text) => (text, None),
            None => match text.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (text, None),
            },
        };
        let port = port.map_or(Ok(PORT), str::parse).map_err(|_| error())?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let fits = !name.is_empty() && (is_address(name) || name.chars().all(is_name));
        if fits && port > 0 { Ok(Self { name: name.to_owned(), port }) } else { Err(error()) }
    }
}

impl Host {
    /// The name or address, without brackets.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// A host with its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The host as given.
    pub host: Host,
    /// The resolved address.
    pub address: SocketAddr,
}

impl Target {
    /// Resolves the host to the first address at which a server answers.
    ///
    /// # Errors
    /// [`NetbenchError::Host`].
    pub async fn find(host: &Host) -> Result<Self, NetbenchError> {
        let fail = |fault| NetbenchError::Host { host: host.to_string(), fault };
        let found = lookup_host((host.name.as_str(), host.port))
            .await
            .map_err(|e| fail(ConnectionError::Resolve(e)))?;
        let mut failed = None;
        // A name may have an address without a listener, as localhost often has ::1.
        for address in found {
            match ClientConnection::to(address, Mode::Control, 0, 0, true).await {
                Ok(opened) => {
                    opened.close().await;
                    return Ok(Self { host: host.clone(), address });
                }
                Err(fault) => failed = Some(fault),
            }
        }
        let nothing = || ConnectionError::Resolve(std::io::Error::from(std::io::ErrorKind::NotFound));
        Err(fail(failed.unwrap_or_else(nothing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_parsed_with_and_without_a_port() {
        for (text, shown) in [
            ("db.example", "db.example:4271"),
            ("10.2.1.1:99", "10.2.1.1:99"),
            ("[::1]:99", "[::1]:99"),
            ("::1", "[::1]:4271"),
            ("[fe80::1]", "[fe80::1]:4271"),
        ] {
            let host: Host = text.parse().expect(text);
            assert_eq!(host.to_string(), shown);
            assert_eq!(host.to_string().parse(), Ok(host));
        }
        for text in
            ["", ":1", "a:", "a:0", "a:b", "a:1:2", "a b", "lightship://a", "[a]:1", "[::1]x", "a:70000"]
        {
            assert!(text.parse::<Host>().is_err(), "{text}");
        }
    }
}
