//! Locations of data as users type them: the URI of a database or a node, or a path.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use crate::adbc::AdbcLocation;
use crate::objects::{ObjectLocation, SCHEMES};
use crate::{Result, SourceError};

/// A location to read from or to write to, parsed but not yet opened.
///
/// `Display` and `Debug` never show a password or token.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// `lightship://[token@]host:port`, over TCP.
    Node {
        /// Host name or address.
        host: String,
        /// Port; 4270 when none was given.
        port: u16,
        /// Bearer token from the user part of the URI.
        token: Option<String>,
        /// TLS: `?tls=true`, or `?ca=FILE` for a private CA.
        tls: Tls,
        /// Whether rows may come through shared memory if the node is on this host;
        /// `?shm=false` disables it.
        shared_memory: bool,
        /// Whether the token may be sent unencrypted to another host: `?insecure=true`.
        insecure: bool,
    },
    /// `lightship+unix:PATH`.
    NodeUnix {
        /// Path of the socket.
        path: PathBuf,
        /// As in [`Location::Node`].
        shared_memory: bool,
    },
    /// `postgresql://...` or `postgres://...`, in libpq's syntax.
    Postgres(String),
    /// `mysql://...` or `mariadb://...`.
    MySql(String),
    /// `sqlite:FILE`.
    Sqlite(PathBuf),
    /// `adbc:DRIVER?OPTION=VALUE&...`: any database with an ADBC driver. Opening it loads the driver's library, so
    /// such a location must come from the user who started the process.
    Adbc(AdbcLocation),
    /// An object of an object store, or several: `s3://`, `gs://`, `az://`, `https://`.
    Object(ObjectLocation),
    /// A file, a folder, or files that match a pattern; perhaps with options, as in `sales.csv?delimiter=;`. `-` is
    /// standard input.
    Path(PathBuf),
    /// Several files or objects, each a table with a name.
    Tables(Vec<(String, Location)>),
}

/// TLS settings for a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tls {
    /// Plain TCP.
    #[default]
    Off,
    /// TLS, verified against the system's authorities.
    System,
    /// TLS, verified against the authorities in this PEM file.
    Ca(PathBuf),
}

/// The default port of a node.
pub const NODE_PORT: u16 = 4270;

impl Location {
    /// Parses what a user typed.
    ///
    /// # Errors
    /// [`SourceError::Location`], which says what is wrong and what is expected.
    pub fn parse(given: &str) -> Result<Self> {
        let fail = |reason: String| SourceError::Location { given: redact(given), reason };
        if given.is_empty() {
            return Err(fail("it is empty".into()));
        }
        if let Some(path) = given.strip_prefix("lightship+unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let (path, query) = path.split_once('?').unwrap_or((path, ""));
            if path.is_empty() {
                return Err(fail("the path of the socket is missing".into()));
            }
            let shared_memory = match query {
                "" | "shm=true" => true,
                "shm=false" => false,
                other => return Err(fail(format!("unknown option `{other}`; expected shm=false"))),
            };
            return Ok(Self::NodeUnix { path: path.into(), shared_memory });
        }
        if let Some(path) = given.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(fail("the path of the database file is missing".into()));
            }
            return Ok(Self::Sqlite(path.into()));
        }
        if let Some(rest) = given.strip_prefix("adbc:") {
            return Ok(Self::Adbc(AdbcLocation::parse(rest).map_err(fail)?));
        }
        let Some((scheme, rest)) = given.split_once("://") else {
            return Ok(Self::Path(given.into()));
        };
        if let Some(object) = ObjectLocation::parse(scheme, rest) {
            return Ok(Self::Object(object.map_err(fail)?));
        }
        match scheme {
            // Checked when it is opened: libpq accepts more than valid URLs.
            "postgresql" | "postgres" => Ok(Self::Postgres(given.to_owned())),
            "mysql" | "mariadb" => {
                url::Url::parse(given).map_err(|e| fail(e.to_string()))?;
                Ok(Self::MySql(given.replacen("mariadb://", "mysql://", 1)))
            }
            "lightship" => Self::node(given).map_err(fail),
            "file" => {
                let url = url::Url::parse(given).map_err(|e| fail(e.to_string()))?;
                let path = url.to_file_path().map_err(|()| fail("it does not name a local file".into()))?;
                Ok(Self::Path(path))
            }
            other => Err(fail(format!(
                "unknown scheme `{other}`; expected lightship://, lightship+unix:, \
                 postgresql://, mysql://, sqlite:, adbc:, {SCHEMES} or the path of a file or folder"
            ))),
        }
    }

    fn node(given: &str) -> std::result::Result<Self, String> {
        let url = url::Url::parse(given).map_err(|e| e.to_string())?;
        let host = match url.host() {
            Some(url::Host::Domain("")) | None => return Err("the host is missing".into()),
            Some(url::Host::Ipv6(address)) => address.to_string(),
            Some(host) => host.to_string(),
        };
        if url.password().is_some() {
            return Err("a node takes a token, not a user and password: lightship://TOKEN@host".into());
        }
        let token = match url.username() {
            "" => None,
            token => Some(percent_decode(token)?),
        };
        if !matches!(url.path(), "" | "/") {
            return Err(format!("a node has no databases; leave out `{}`", url.path()));
        }
        let (mut tls, mut shared_memory, mut insecure) = (Tls::Off, true, false);
        for (key, value) in url.query_pairs() {
            match (&*key, &*value) {
                ("tls", "true") => {
                    if tls == Tls::Off {
                        tls = Tls::System;
                    }
                }
                ("tls", "false") => tls = Tls::Off,
                ("ca", path) => tls = Tls::Ca(path.into()),
                ("shm", "true") => shared_memory = true,
                ("shm", "false") => shared_memory = false,
                ("insecure", "true") => insecure = true,
                ("insecure", "false") => insecure = false,
                (key, _) => {
                    return Err(format!(
                        "unknown option `{key}`; expected tls=true, ca=FILE, shm=false or insecure=true"
                    ));
                }
            }
        }
        Ok(Self::Node { host, port: url.port().unwrap_or(NODE_PORT), token, tls, shared_memory, insecure })
    }
}

/// Undoes percent-encoding.
///
/// # Errors
/// If a `%` stands alone, or the result is not UTF-8.
pub(crate) fn percent_decode(text: &str) -> std::result::Result<String, String> {
    let is_code = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if !text.split('%').skip(1).all(is_code) {
        return Err("a `%` is not followed by two hexadecimal digits".into());
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "it is not UTF-8 once decoded".into())
}

/// The URI without password and token, for messages and logs.
pub fn redact(uri: &str) -> String {
    if let Some(rest) = uri.strip_prefix("adbc:") {
        return match AdbcLocation::parse(rest) {
            Ok(location) => location.to_string(),
            Err(_) => format!("adbc:{}", rest.split_once('?').map_or(rest, |(driver, _)| driver)),
        };
    }
    let Some((scheme, rest)) = uri.split_once("://") else { return uri.to_owned() };
    // A key before a bucket is a mistake, and it may contain a `/`.
    if let ("s3" | "s3a" | "gs", Some((_, bucket))) = (scheme, rest.rsplit_once('@')) {
        return format!("{scheme}://***@{bucket}");
    }
    let mut end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // In an invalid URI, the password has such a character itself.
    let has_port =
        rest[..end].rsplit_once(':').is_none_or(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    if !rest[..end].contains('@')
        && !has_port
        && let Some(at) = rest.rfind('@')
    {
        end = at + rest[at..].find(['/', '?', '#']).unwrap_or(rest.len() - at);
    }
    let (authority, rest) = rest.split_at(end);
    let authority = match authority.rsplit_once('@') {
        None => authority.to_owned(),
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:***@{host}"),
            None if scheme == "lightship" => format!("***@{host}"),
            None => authority.to_owned(),
        },
    };
    let Some((path, query)) = rest.split_once('?') else { return format!("{scheme}://{authority}{rest}") };
    // It may be a signature.
    if matches!(scheme, "http" | "https") {
        return format!("{scheme}://{authority}{path}");
    }
    let hide = |pair: &str| match pair.split_once('=') {
        Some((key, _)) if key.to_ascii_lowercase().contains("password") => format!("{key}=***"),
        _ => pair.to_owned(),
    };
    let query: Vec<String> = query.split('&').map(hide).collect();
    format!("{scheme}://{authority}{path}?{}", query.join("&"))
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { host, port, .. } if host.contains(':') => write!(f, "lightship://[{host}]:{port}"),
            Self::Node { host, port, .. } => write!(f, "lightship://{host}:{port}"),
            Self::NodeUnix { path, .. } => write!(f, "lightship+unix:{}", path.display()),
            Self::Postgres(uri) | Self::MySql(uri) => f.write_str(&redact(uri)),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Adbc(location) => write!(f, "{location}"),
            Self::Object(object) => write!(f, "{object}"),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Tables(tables) => {
                let tables = tables.iter().map(|(name, place)| format!("{name}={place}"));
                f.write_str(&tables.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_parsed() {
        let node = |host: &str, port, token: Option<&str>, tls| Location::Node {
            host: host.into(),
            port,
            token: token.map(Into::into),
            tls,
            shared_memory: true,
            insecure: false,
        };
        let unix = |shared_memory| Location::NodeUnix { path: "/run/l.sock".into(), shared_memory };
        let check = |given: &str, expected: Location| {
            assert_eq!(Location::parse(given).unwrap(), expected, "{given}")
        };
        check("lightship://localhost", node("localhost", NODE_PORT, None, Tls::Off));
        check("lightship://s%2B3cret@db1:9000/?tls=true", node("db1", 9000, Some("s+3cret"), Tls::System));
        check("lightship://a&b=%25c@h", node("h", NODE_PORT, Some("a&b=%c"), Tls::Off));
        check("lightship://[::1]:9000", node("::1", 9000, None, Tls::Off));
        check("lightship://h?ca=/x.pem&tls=true", node("h", NODE_PORT, None, Tls::Ca("/x.pem".into())));
        check(
            "lightship://h?shm=false",
            Location::Node {
                host: "h".into(),
                port: NODE_PORT,
                token: None,
                tls: Tls::Off,
                shared_memory: false,
                insecure: false,
            },
        );
        check("lightship+unix:/run/l.sock", unix(true));
        check("lightship+unix:/run/l.sock?shm=false", unix(false));
        check("sqlite:a.db", Location::Sqlite("a.db".into()));
        check("a/b.parquet", Location::Path("a/b.parquet".into()));
        check("mariadb://u:p@h/db", Location::MySql("mysql://u:p@h/db".into()));
    }

    #[test]
    fn invalid_locations_are_refused_with_the_reason() {
        for (given, word) in [
            ("", "empty"),
            ("ftp://x/y", "scheme `ftp`"),
            ("lightship://", "host"),
            ("lightship://h/db", "no databases"),
            ("lightship://u:p@h", "token"),
            ("lightship://h?x=1", "`x`"),
            ("lightship+unix:/run/l.sock?x=1", "`x=1`"),
            ("lightship://h:99999", "port"),
            ("sqlite:", "missing"),
        ] {
            let message = Location::parse(given).unwrap_err().to_string();
            assert!(message.contains(word), "{given}: {message}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for uri in [
            "postgresql://joe:hush@h/db",
            "postgresql://h/db?user=joe&password=hush",
            "postgresql://joe:hush@/db",
            "postgresql://joe:hu/hush@h/db",
            "postgresql://joe:hu?hush@h/db",
            "postgresql://joe:hu#hush@h/db",
            "mysql://joe:hush@h/db",
            "lightship://hush@h:1",
            "adbc:x?uri=me:hush@account",
            "https://h/x.csv?X-Amz-Signature=hush",
        ] {
            let shown = format!("{0} {0:?}", Location::parse(uri).unwrap());
            assert!(!shown.contains("hush"), "{shown}");
        }
        assert!(!Location::parse("adbc:x?password=hush&broken").unwrap_err().to_string().contains("hush"));
        assert!(!Location::parse("s3://key:hush@bucket/x").unwrap_err().to_string().contains("hush"));
        assert!(!Location::parse("https://h:x/?sig=hush").unwrap_err().to_string().contains("hush"));
        assert!(!Location::parse("lightship://a:hush@h").unwrap_err().to_string().contains("hush"));
    }
}
