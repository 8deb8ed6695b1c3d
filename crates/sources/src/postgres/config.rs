//! Address and login of a server, parsed from a libpq URI.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::location::{percent_decode, redact};
use crate::{Result, SourceError};

/// The connection timeout if the URI has none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// Host name or address.
    Tcp(String),
    /// Folder of the server's socket.
    Unix(PathBuf),
}

/// libpq's `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Everything a connection needs. `Debug` shows no password.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) host: Host,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) database: String,
    pub(super) ssl_mode: SslMode,
    /// Authorities to trust instead of the system's.
    pub(super) ssl_root: Option<PathBuf>,
    pub(super) application: String,
    /// libpq's `options`: settings of the session.
    pub(super) options: Option<String>,
    pub(super) connect_timeout: Duration,
}

impl Config {
    /// Parses a URI. Missing parts come from libpq's `PG...` environment variables.
    ///
    /// # Errors
    /// [`SourceError::Location`] with what is wrong.
    pub(super) fn parse(uri: &str) -> Result<Self> {
        Self::read(uri, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
            .map_err(|reason| SourceError::Location { given: without_password(uri), reason })
    }

    fn read(uri: &str, env: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let url = url::Url::parse(uri).map_err(|e| e.to_string())?;
        if !matches!(url.scheme(), "postgresql" | "postgres") {
            return Err("it does not start with postgresql://".into());
        }
        let given = |text: &str| (!text.is_empty()).then(|| percent_decode(text)).transpose();
        let mut host = url.host_str().map(|h| h.trim_matches(['[', ']'])).map_or(Ok(None), given)?;
        let mut port = url.port().map(|port| port.to_string());
        let mut user = given(url.username())?;
        let mut password = url.password().map_or(Ok(None), given)?;
        let mut database = given(url.path().trim_start_matches('/'))?;
        let (mut ssl_mode, mut ssl_root, mut application) = (None, None, None);
        let (mut options, mut timeout) = (None, None);
        for (key, value) in url.query_pairs() {
            let value = value.into_owned();
            match &*key {
                "host" | "hostaddr" => host = Some(value),
                "port" => port = Some(value),
                "user" => user = Some(value),
                "password" => password = Some(value),
                "dbname" => database = Some(value),
                "sslmode" => ssl_mode = Some(value),
                "sslrootcert" => ssl_root = Some(value),
                "application_name" => application = Some(value),
                "options" => options = Some(value),
                "connect_timeout" => timeout = Some(value),
                // These request nothing beyond the default.
                "gssencmode" | "channel_binding" if value != "require" => {}
                "target_session_attrs" if value == "any" => {}
                "fallback_application_name"
                | "keepalives"
                | "keepalives_idle"
                | "keepalives_interval"
                | "keepalives_count"
                | "tcp_user_timeout"
                | "client_encoding" => {}
                other => return Err(format!("`{other}={value}` is not supported")),
            }
        }

        let host = match host.or_else(|| env("PGHOST")) {
            Some(host) if host.contains(',') => return Err("only one host is supported".into()),
            Some(host) if host.starts_with(['/', '@']) => Host::Unix(host.into()),
            Some(host) => Host::Tcp(host),
            None => match ["/run/postgresql", "/var/run/postgresql", "/tmp"]
                .into_iter()
                .find(|folder| Path::new(folder).join(".s.PGSQL.5432").exists())
            {
                Some(folder) => Host::Unix(folder.into()),
                None => Host::Tcp("localhost".into()),
            },
        };
        let port = match port.or_else(|| env("PGPORT")) {
            Some(port) => port.parse().map_err(|_| format!("`{port}` is not a port"))?,
            None => 5432,
        };
        let user = user
            .or_else(|| env("PGUSER"))
            .or_else(|| env("USER"))
            .ok_or("the user is missing: postgresql://USER@host/database")?;
        let ssl_root = ssl_root.or_else(|| env("PGSSLROOTCERT"));
        let of_system = ssl_root.as_deref() == Some("system");
        let ssl_mode = match ssl_mode.or_else(|| env("PGSSLMODE")).as_deref() {
            None if of_system => SslMode::VerifyFull,
            // Anybody can get a certificate for their own name from an authority that the system trusts.
            Some(weak) if of_system && weak != "verify-full" => {
                return Err(format!("sslrootcert=system requires sslmode=verify-full, not `{weak}`"));
            }
            None | Some("prefer" | "allow") => SslMode::Prefer,
            Some("disable") => SslMode::Disable,
            Some("require") => SslMode::Require,
            Some("verify-ca") => SslMode::VerifyCa,
            Some("verify-full") => SslMode::VerifyFull,
            Some(other) => {
                return Err(format!(
                    "unknown sslmode `{other}`; expected disable, prefer, require, verify-ca or verify-full"
                ));
            }
        };
        let ssl_root = ssl_root.filter(|_| !of_system).map(PathBuf::from);
        let connect_timeout = match timeout.or_else(|| env("PGCONNECT_TIMEOUT")) {
            None => CONNECT_TIMEOUT,
            Some(seconds) => match seconds.parse() {
                Ok(0) => CONNECT_TIMEOUT,
                Ok(seconds) => Duration::from_secs(seconds),
                Err(_) => return Err(format!("connect_timeout `{seconds}` is not a number of seconds")),
            },
        };
        Ok(Self {
            host,
            port,
            database: database.or_else(|| env("PGDATABASE")).unwrap_or_else(|| user.clone()),
            user,
            password: password.or_else(|| env("PGPASSWORD")),
            ssl_mode,
            ssl_root,
            application: application.unwrap_or_else(|| "lightship".into()),
            options,
            connect_timeout,
        })
    }

    /// The path of the Unix socket, if the server is reached through one.
    pub(super) fn socket(&self) -> Option<PathBuf> {
        match &self.host {
            Host::Unix(folder) => Some(folder.join(format!(".s.PGSQL.{}", self.port))),
            Host::Tcp(_) => None,
        }
    }

    /// Host, port and database, for messages.
    pub(super) fn target(&self) -> String {
        match &self.host {
            Host::Tcp(host) if host.contains(':') => format!("[{host}]:{}/{}", self.port, self.database),
            Host::Tcp(host) => format!("{host}:{}/{}", self.port, self.database),
            Host::Unix(_) => {
                format!("{}/{}", self.socket().unwrap_or_default().display(), self.database)
            }
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.target())
    }
}

/// The URI without its password, in the authority or the query.
fn without_password(uri: &str) -> String {
    let uri = redact(uri);
    let Some((start, rest)) = uri.split_once("password=") else { return uri };
    let end = rest.find('&').unwrap_or(rest.len());
    format!("{start}password=***{}", &rest[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(uri: &str) -> Result<Config, String> {
        Config::read(uri, |name| (name == "USER").then(|| "me".to_owned()))
    }

    #[test]
    fn uris_are_read_as_libpq_does() {
        let c = read("postgresql://joe:p%40ss@db1:6000/sales?sslmode=require&application_name=x").unwrap();
        assert_eq!((c.host, c.port), (Host::Tcp("db1".into()), 6000));
        assert_eq!((&*c.user, c.password.as_deref(), &*c.database), ("joe", Some("p@ss"), "sales"));
        assert_eq!((c.ssl_mode, &*c.application), (SslMode::Require, "x"));

        let c = read("postgresql:///db?host=/run/pg&port=7").unwrap();
        assert_eq!((c.socket(), &*c.user), (Some("/run/pg/.s.PGSQL.7".into()), "me"));
        let c = read("postgres://%2Frun%2Fpg").unwrap();
        assert_eq!((c.host, &*c.database), (Host::Unix("/run/pg".into()), "me"));
        let c = read("postgresql://[::1]:5/db").unwrap();
        assert_eq!(c.target(), "[::1]:5/db");
    }

    #[test]
    fn sslrootcert_system_requires_full_verification() {
        let mode = |query: &str| read(&format!("postgresql://h/d?{query}")).map(|c| (c.ssl_mode, c.ssl_root));
        let full = Ok((SslMode::VerifyFull, None));
        assert_eq!(mode("sslrootcert=system"), full);
        assert_eq!(mode("sslrootcert=system&sslmode=verify-full"), full);
        for weak in ["disable", "prefer", "require", "verify-ca"] {
            assert!(mode(&format!("sslmode={weak}&sslrootcert=system")).unwrap_err().contains(weak));
        }
        assert_eq!(mode("sslrootcert=/x.pem"), Ok((SslMode::Prefer, Some("/x.pem".into()))));
    }

    #[test]
    fn errors_of_invalid_uris_show_no_secrets() {
        for (uri, word) in [
            ("postgresql://h/d?sslmode=maybe", "maybe"),
            ("postgresql://h/d?service=x", "service"),
            ("postgresql://h/d?connect_timeout=soon", "soon"),
            ("postgresql://a%zz@h/d", "hexadecimal"),
        ] {
            let message = read(uri).unwrap_err();
            assert!(message.contains(word), "{uri}: {message}");
        }
        let error = Config::parse("postgresql://h/d?password=hush&service=x").unwrap_err().to_string();
        assert!(!error.contains("hush"), "{error}");
        let config = read("postgresql://joe:hush@h/d").unwrap();
        assert!(!format!("{config:?}").contains("hush"));
    }
}
