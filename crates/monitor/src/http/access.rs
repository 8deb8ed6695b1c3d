//! Who may read: tokens, the cookie that stands for one, and the name by which the server is called.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, COOKIE, HOST};
use axum::http::{HeaderMap, Uri};
use tokio::sync::Mutex;

use super::HttpOptions;
use crate::time::unix_ns;

/// How the name of the cookie begins.
const COOKIE_NAME: &str = "lightship_session_";
/// How long a cookie is valid, in seconds.
const SESSION_SECONDS: u64 = 12 * 3600;
/// The time that each wrong token takes; they wait for each other, which limits how many can be tried.
const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(100);

/// What a request may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// It may read.
    Granted,
    /// It has no token, and no valid cookie.
    Missing,
    /// Its token is wrong.
    Wrong,
    /// It calls the server by a name that may be of another site.
    UnknownName,
}

pub(super) struct Gate {
    /// Random, another one for each server: hashes of tokens and cookies mean nothing elsewhere.
    secret: [u8; 32],
    /// Hashes, because their comparison takes the same time for all.
    tokens: Vec<blake3::Hash>,
    host_names: Vec<String>,
    has_tls: bool,
    /// Browsers send a cookie to all ports of a host, so that each server on it needs a name of its own.
    cookie_name: String,
    wrong: Mutex<()>,
}

impl Gate {
    /// For a server on a port.
    pub(super) fn new(options: &HttpOptions, port: u16) -> io::Result<Self> {
        let mut secret = [0; 32];
        let random = rustls::crypto::ring::default_provider().secure_random.fill(&mut secret);
        random.map_err(|_| io::Error::other("the system provides no random bytes"))?;
        let server = blake3::hash(format!("{port} {}", options.title).as_bytes()).to_hex();
        let tokens = options.tokens.iter().filter(|token| !token.is_empty());
        Ok(Self {
            tokens: tokens.map(|token| hash(&secret, "token", token)).collect(),
            host_names: options.host_names.clone(),
            has_tls: options.tls.is_some(),
            cookie_name: format!("{COOKIE_NAME}{}", server.get(..8).unwrap_or_default()),
            wrong: Mutex::new(()),
            secret,
        })
    }

    pub(super) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Whether a request may read.
    pub(super) fn check(&self, headers: &HeaderMap, uri: &Uri) -> Access {
        if !self.has_tokens() {
            // A page of another site has the name of that site in its requests, even if the name leads here.
            let host = headers.get(HOST).and_then(|host| host.to_str().ok()).or_else(|| uri.host());
            return match host.is_some_and(|host| self.is_own_name(host)) {
                true => Access::Granted,
                false => Access::UnknownName,
            };
        }
        if let Some(authorization) = headers.get(AUTHORIZATION) {
            let token = authorization.to_str().ok().and_then(|value| {
                let (scheme, token) = value.split_once(' ')?;
                scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
            });
            return if token.is_some_and(|token| self.is_token(token)) {
                Access::Granted
            } else {
                Access::Wrong
            };
        }
        let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let mut cookies = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == self.cookie_name).then_some(value)
        });
        let now_seconds = unix_ns() / 1_000_000_000;
        if cookies.any(|value| self.is_session(value, now_seconds)) {
            Access::Granted
        } else {
            Access::Missing
        }
    }

    /// Whether a token gives access. It takes the same time whichever characters are wrong.
    pub(super) fn is_token(&self, token: &str) -> bool {
        let hash = hash(&self.secret, "token", token);
        self.tokens.iter().fold(false, |found, known| found | (*known == hash))
    }

    /// Waits after a wrong token.
    pub(super) async fn delay_wrong(&self) {
        let _turn = self.wrong.lock().await;
        tokio::time::sleep(WRONG_TOKEN_DELAY).await;
    }

    /// The header that gives a browser a session.
    pub(super) fn session_cookie(&self) -> String {
        let expires = unix_ns() / 1_000_000_000 + SESSION_SECONDS;
        self.cookie(&format!("{expires}.{}", self.session_hash(expires)), SESSION_SECONDS)
    }

    /// The header that ends a session in the browser.
    pub(super) fn no_cookie(&self) -> String {
        self.cookie("", 0)
    }

    fn cookie(&self, value: &str, seconds: u64) -> String {
        let secure = if self.has_tls { "; Secure" } else { "" };
        let name = &self.cookie_name;
        format!("{name}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}")
    }

    fn is_session(&self, value: &str, now_seconds: u64) -> bool {
        let Some((expires, mac)) = value.split_once('.') else { return false };
        let (Ok(expires), Ok(mac)) = (expires.parse::<u64>(), blake3::Hash::from_hex(mac)) else {
            return false;
        };
        self.session_hash(expires) == mac && now_seconds < expires
    }

    fn session_hash(&self, expires: u64) -> blake3::Hash {
        hash(&self.secret, "session", &expires.to_string())
    }

    /// Whether the server is called by an address, or by a name that is surely its own.
    fn is_own_name(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_known = |known: &String| known.eq_ignore_ascii_case(name);
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok()
            || self.host_names.iter().any(is_known)
    }
}

fn hash(secret: &[u8; 32], purpose: &str, text: &str) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(purpose.as_bytes()).update(b" ").update(text.as_bytes());
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn gate(tokens: &[&str]) -> Gate {
        gate_on(80, "node", tokens)
    }

    fn gate_on(port: u16, title: &str, tokens: &[&str]) -> Gate {
        let tokens = tokens.iter().map(|token| (*token).to_owned()).collect();
        let host_names = vec!["db.example".to_owned()];
        Gate::new(&HttpOptions { tokens, host_names, ..HttpOptions::new(title) }, port).unwrap()
    }

    fn check(gate: &Gate, name: &'static str, value: &str) -> Access {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        gate.check(&headers, &Uri::from_static("/"))
    }

    #[test]
    fn without_tokens_only_addresses_and_own_names_are_served() {
        let gate = gate(&[]);
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:4100", "10.0.0.7", "[::1]:4100", "db.example:1"]
        {
            assert_eq!(check(&gate, "host", host), Access::Granted, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", "[::1", "", "["] {
            let expected = if host == "[::1" { Access::Granted } else { Access::UnknownName };
            assert_eq!(check(&gate, "host", host), expected, "{host}");
        }
        assert_eq!(gate.check(&HeaderMap::new(), &Uri::from_static("/")), Access::UnknownName);
    }

    #[test]
    fn one_of_the_tokens_or_a_cookie_is_needed() {
        let gate = gate(&["first", "", "second"]);
        assert_eq!(check(&gate, "authorization", "Bearer first"), Access::Granted);
        assert_eq!(check(&gate, "authorization", "bearer second"), Access::Granted);
        for wrong in ["Bearer third", "Bearer ", "Bearer firs", "Basic first", "first"] {
            assert_eq!(check(&gate, "authorization", wrong), Access::Wrong, "{wrong}");
        }
        assert_eq!(check(&gate, "host", "localhost"), Access::Missing);
        let cookie = gate.session_cookie();
        let cookie = cookie.split(';').next().unwrap();
        assert!(!cookie.contains("first"));
        assert_eq!(check(&gate, "cookie", &format!("other=1; {cookie}")), Access::Granted);
        assert_eq!(check(&gate, "cookie", &cookie.replace('.', "9.")), Access::Missing);
        assert_eq!(check(&gate, "cookie", &format!("{}=first", gate.cookie_name)), Access::Missing);
    }

    #[test]
    fn servers_on_one_host_have_cookies_with_different_names() {
        let name = |port, title| gate_on(port, title, &["t"]).cookie_name;
        assert_ne!(name(4280, "a"), name(4281, "a"));
        assert_ne!(name(4280, "a"), name(4280, "b"));
        assert_eq!(name(4280, "a"), name(4280, "a"), "one that starts again replaces its cookie");
        let (one, other) = (gate_on(1, "a", &["t"]), gate_on(2, "a", &["t"]));
        let cookie = |gate: &Gate| gate.session_cookie().split(';').next().unwrap().to_owned();
        let both = format!("{}; {}", cookie(&one), cookie(&other));
        assert!([one, other].iter().all(|gate| check(gate, "cookie", &both) == Access::Granted));
    }

    #[test]
    fn sessions_expire_and_are_of_one_server() {
        let (one, other) = (gate(&["t"]), gate(&["t"]));
        let value = format!("1000.{}", one.session_hash(1000));
        assert!(one.is_session(&value, 999));
        assert!(!one.is_session(&value, 1000));
        assert!(!other.is_session(&value, 999));
        assert!(!one.is_session(&format!("2000.{}", one.session_hash(1000)), 999));
    }
}
