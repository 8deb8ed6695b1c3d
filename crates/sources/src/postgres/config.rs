//! Address and login of a server, parsed from a libpq URI.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files::{self, Login, Password};
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
    /// What a user should know of the password file if the login fails.
    pub(super) password_file: Option<String>,
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
    /// Parses a URI. Missing parts come from libpq's service file, `PG...` environment variables and password file, in
    /// this order.
    ///
    /// # Errors
    /// [`SourceError::Location`] with what is wrong.
    pub(super) fn parse(uri: &str) -> Result<Self> {
        Self::read(uri, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
            .map_err(|reason| SourceError::Location { given: without_password(uri), reason })
    }

    fn read(uri: &str, env: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let settings = Settings::read(uri, &env)?;
        let host = match settings.get("host") {
            Some(host) if host.contains(',') => return Err("only one host is supported".into()),
            Some(host) if host.starts_with(['/', '@']) => Host::Unix(host.into()),
            Some(host) => Host::Tcp(host.into()),
            None => match ["/run/postgresql", "/var/run/postgresql", "/tmp"]
                .into_iter()
                .find(|folder| Path::new(folder).join(".s.PGSQL.5432").exists())
            {
                Some(folder) => Host::Unix(folder.into()),
                None => Host::Tcp("localhost".into()),
            },
        };
        let port = match settings.get("port") {
            Some(port) => port.parse().map_err(|_| format!("`{port}` is not a port"))?,
            None => 5432,
        };
        let user = settings.get("user").map(str::to_owned).or_else(|| env("USER"));
        let user = user.ok_or("the user is missing: postgresql://USER@host/database")?;
        let ssl_root = settings.get("sslrootcert");
        let of_system = ssl_root == Some("system");
        let ssl_mode = match settings.get("sslmode") {
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
        let connect_timeout = match settings.get("connect_timeout") {
            None => CONNECT_TIMEOUT,
            Some(seconds) => match seconds.parse() {
                Ok(0) => CONNECT_TIMEOUT,
                Ok(seconds) => Duration::from_secs(seconds),
                Err(_) => return Err(format!("connect_timeout `{seconds}` is not a number of seconds")),
            },
        };
        let mut this = Self {
            host,
            port,
            database: settings.get("dbname").unwrap_or(&user).to_owned(),
            user,
            password: settings.get("password").map(str::to_owned),
            password_file: None,
            ssl_mode,
            ssl_root: ssl_root.filter(|_| !of_system).map(PathBuf::from),
            application: settings.get("application_name").unwrap_or("lightship").to_owned(),
            options: settings.get("options").map(str::to_owned),
            connect_timeout,
        };
        let file = settings.get("passfile").map(PathBuf::from);
        if this.password.is_none()
            && let Some(file) = file.or_else(|| Some(home(&env)?.join(".pgpass")))
        {
            this.look_up_password(file);
        }
        Ok(this)
    }

    /// Takes the password from a password file, if the file has one for this login.
    fn look_up_password(&mut self, file: PathBuf) {
        let (host, port) = match &self.host {
            Host::Tcp(host) => (host.clone(), self.port.to_string()),
            Host::Unix(folder) => (folder.display().to_string(), self.port.to_string()),
        };
        let login = Login { host: &host, port: &port, database: &self.database, user: &self.user };
        match files::password(&file, &login) {
            Password::None => {}
            Password::Found(password) => {
                self.password = Some(password);
                self.password_file = Some(format!("the password is from {}", file.display()));
            }
            Password::Ignored(reason) => {
                tracing::warn!("{} was ignored: {reason}", file.display());
                self.password_file = Some(format!("{} was ignored: {reason}", file.display()));
            }
        }
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

/// Settings by libpq's names: those of the URI, then of the service, then of the environment.
struct Settings(HashMap<String, String>);

/// Environment variables, and the settings that they are defaults for.
const VARIABLES: [(&str, &str); 15] = [
    ("PGHOST", "host"),
    ("PGPORT", "port"),
    ("PGUSER", "user"),
    ("PGPASSWORD", "password"),
    ("PGPASSFILE", "passfile"),
    ("PGDATABASE", "dbname"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGAPPNAME", "application_name"),
    ("PGOPTIONS", "options"),
    ("PGCONNECT_TIMEOUT", "connect_timeout"),
    ("PGGSSENCMODE", "gssencmode"),
    ("PGCHANNELBINDING", "channel_binding"),
    ("PGTARGETSESSIONATTRS", "target_session_attrs"),
    ("PGREQUIREAUTH", "require_auth"),
];

impl Settings {
    fn read(uri: &str, env: &impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let url = url::Url::parse(uri).map_err(|e| e.to_string())?;
        if !matches!(url.scheme(), "postgresql" | "postgres") {
            return Err("it does not start with postgresql://".into());
        }
        let mut this = Self(HashMap::new());
        let host = url.host_str().map(|host| host.trim_matches(['[', ']'])).unwrap_or_default();
        for (key, text) in [
            ("host", host),
            ("user", url.username()),
            ("password", url.password().unwrap_or_default()),
            ("dbname", url.path().trim_start_matches('/')),
        ] {
            if !text.is_empty() {
                this.0.insert(key.into(), percent_decode(text)?);
            }
        }
        this.0.extend(url.port().map(|port| ("port".into(), port.to_string())));
        for (key, value) in url.query_pairs() {
            let key = if key == "hostaddr" { "host".into() } else { key };
            check(&key, &value)?;
            this.0.insert(key.into_owned(), value.into_owned());
        }
        let given: HashSet<String> = this.0.keys().cloned().collect();
        if let Some(name) = this.0.remove("service").or_else(|| env("PGSERVICE")) {
            for (key, value) in files::service(&name, &service_files(env))? {
                if key == "service" {
                    return Err(format!("service `{name}` names another service"));
                }
                let key = if key == "hostaddr" { "host".into() } else { key };
                check(&key, &value).map_err(|reason| format!("service `{name}`: {reason}"))?;
                if !given.contains(&key) {
                    this.0.insert(key, value);
                }
            }
        }
        for (variable, key) in VARIABLES {
            if !this.0.contains_key(key)
                && let Some(value) = env(variable)
            {
                check(key, &value).map_err(|reason| format!("{variable}: {reason}"))?;
                this.0.insert(key.into(), value);
            }
        }
        Ok(this)
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Refuses settings that would not be followed.
fn check(key: &str, value: &str) -> Result<(), String> {
    match key {
        "host" | "port" | "user" | "password" | "passfile" | "dbname" | "sslmode" | "sslrootcert"
        | "application_name" | "options" | "connect_timeout" | "service" => Ok(()),
        // These request nothing beyond the default.
        "gssencmode" | "channel_binding" if value != "require" => Ok(()),
        "target_session_attrs" if value == "any" => Ok(()),
        "fallback_application_name"
        | "keepalives"
        | "keepalives_idle"
        | "keepalives_interval"
        | "keepalives_count"
        | "tcp_user_timeout"
        | "client_encoding" => Ok(()),
        // It may be a secret.
        other if other.contains("password") => Err(format!("`{other}` is not supported")),
        other => Err(format!("`{other}={value}` is not supported")),
    }
}

/// The user's service file, and the system's.
fn service_files(env: &impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let user = env("PGSERVICEFILE").map(PathBuf::from).or_else(|| Some(home(env)?.join(".pg_service.conf")));
    let system = env("PGSYSCONFDIR").unwrap_or_else(|| "/etc/postgresql-common".into());
    user.into_iter().chain([Path::new(&system).join("pg_service.conf")]).collect()
}

fn home(env: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    env("HOME").map(PathBuf::from)
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
            ("postgresql://h/d?service=x", "no service `x`"),
            ("postgresql://h/d?requiressl=1", "requiressl"),
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

    #[test]
    fn missing_parts_come_from_the_service_the_environment_and_the_password_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(
            path("services"),
            "[shop]\nhost=db1\nport=6000\nuser=joe\ndbname=sales\n[deep]\nservice=shop\n",
        )
        .unwrap();
        std::fs::write(path("passwords"), "db1:6000:*:joe:hush\nh:*:*:*:other\n").unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path("passwords"), private).unwrap();
        let read = |uri: &str, more: &[(&str, &str)]| {
            let find =
                |name: &str| more.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            Config::read(uri, |name| match name {
                "PGSERVICEFILE" => Some(path("services")),
                "PGPASSFILE" => Some(path("passwords")),
                "USER" => Some("me".into()),
                other => find(other),
            })
        };
        let c = read("postgresql://?service=shop", &[("PGPORT", "1"), ("PGUSER", "no")]).unwrap();
        assert_eq!(
            (c.target(), &*c.user, c.password.as_deref()),
            ("db1:6000/sales".into(), "joe", Some("hush"))
        );
        // What is nearer to the user comes first.
        let c = read("postgresql://you@h:7/d?service=shop", &[]).unwrap();
        assert_eq!((c.target(), &*c.user, c.password.as_deref()), ("h:7/d".into(), "you", Some("other")));
        let c = read("postgresql://joe@db1:6000/", &[("PGPASSWORD", "env"), ("PGDATABASE", "x")]).unwrap();
        assert_eq!((c.password.as_deref(), &*c.database), (Some("env"), "x"));
        let c = read("postgresql://", &[("PGSERVICE", "shop"), ("PGAPPNAME", "a"), ("PGOPTIONS", "-c x=y")])
            .unwrap();
        assert_eq!(
            (c.target(), &*c.application, c.options.as_deref()),
            ("db1:6000/sales".into(), "a", Some("-c x=y"))
        );
        for (uri, more, word) in [
            ("postgresql://?service=deep", &[][..], "another service"),
            ("postgresql://?service=none", &[], "no service `none`"),
            ("postgresql://h", &[("PGCHANNELBINDING", "require")], "PGCHANNELBINDING"),
        ] {
            let message = read(uri, more).unwrap_err();
            assert!(message.contains(word), "{uri}: {message}");
        }
    }
}
