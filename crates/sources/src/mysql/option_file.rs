//! The defaults of MySQL's own clients: the group `[client]` of `~/.my.cnf`, and environment variables.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Maximum bytes of an option file.
const BYTES_MAX: u64 = 1 << 20;

/// What the URI may leave out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Defaults {
    pub(super) host: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) socket: Option<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: Option<String>,
    pub(super) ssl_ca: Option<PathBuf>,
}

impl Defaults {
    /// The defaults of the user.
    ///
    /// # Errors
    /// If the option file can't be read, or a value in it is wrong.
    pub(super) fn read(env: &impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut this = Self::default();
        if let Some(path) = env("HOME").map(|home| Path::new(&home).join(".my.cnf")) {
            match read(&path) {
                Ok(Some(text)) => {
                    this.take(&text).map_err(|reason| format!("{}: {reason}", path.display()))?
                }
                Ok(None) => tracing::warn!("{} was ignored: everybody may write it", path.display()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        this.password = this.password.or_else(|| env("MYSQL_PWD"));
        this.host = this.host.or_else(|| env("MYSQL_HOST"));
        if let (None, Some(port)) = (this.port, env("MYSQL_TCP_PORT")) {
            this.port = Some(port.parse().map_err(|_| "MYSQL_TCP_PORT is not a port".to_owned())?);
        }
        this.socket = this.socket.or_else(|| env("MYSQL_UNIX_PORT"));
        this.user = this.user.or_else(|| env("USER"));
        Ok(this)
    }

    /// Takes the options of the group `[client]`; a later one replaces an earlier one.
    fn take(&mut self, text: &str) -> Result<(), String> {
        let mut is_client = false;
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';', '!']) {
                continue;
            }
            if let Some(group) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
                is_client = group.0.trim() == "client";
                continue;
            }
            if !is_client {
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = self::value(value);
            match &*key.trim().replace('_', "-") {
                "host" => self.host = Some(value),
                "port" => {
                    self.port = Some(
                        value.parse().map_err(|_| format!("line {}: the port is not a number", at + 1))?,
                    );
                }
                "socket" => self.socket = Some(value),
                "user" => self.user = Some(value),
                "password" => self.password = Some(value),
                "database" => self.database = Some(value),
                "ssl-ca" => self.ssl_ca = Some(value.into()),
                // Options of other programs of the group.
                _ => {}
            }
        }
        Ok(())
    }
}

/// A value without its quotes, escapes and comment.
fn value(text: &str) -> String {
    let text = text.trim();
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'));
    let inner = match quote {
        Some(quote) => text[1..].split_once(quote).map_or(&text[1..], |(inner, _)| inner),
        // A comment may follow a value.
        None => text.split(" #").next().unwrap_or(text).trim_end(),
    };
    let mut value = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            value.push(c);
            continue;
        }
        match chars.next() {
            Some('b') => value.push('\u{8}'),
            Some('t') => value.push('\t'),
            Some('n') => value.push('\n'),
            Some('r') => value.push('\r'),
            Some('s') => value.push(' '),
            Some('\\') => value.push('\\'),
            // An unknown sequence stays as it is.
            Some(other) => value.extend(['\\', other]),
            None => value.push('\\'),
        }
    }
    value
}

/// The text of an option file; `None` if everybody may write it.
fn read(path: &Path) -> io::Result<Option<String>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.permissions().mode() & 0o002 != 0 {
        return Ok(None);
    }
    let mut text = String::new();
    let length = file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if length as u64 > BYTES_MAX {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_mysql_reads_them() {
        for (text, expected) in [
            (" secret ", "secret"),
            ("\"two words\" # no", "two words"),
            ("'a\"b'", "a\"b"),
            (r"a\sb\\c\d", r"a b\c\d"),
            ("p#w", "p#w"),
            ("pw # why", "pw"),
            ("", ""),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
    }

    #[test]
    fn defaults_come_from_the_option_file_and_then_from_the_environment() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(".my.cnf");
        let text = "[mysqld]\nport=1\n[client]\nuser = joe\npassword='hu sh'\nport=3307\nssl_ca=/ca.pem\n\
                    !include x\nskip-ssl\n[mysql]\nuser=no\n";
        std::fs::write(&path, text).unwrap();
        let env = |more: &'static [(&'static str, &'static str)]| {
            let home = home.path().display().to_string();
            move |name: &str| match name {
                "HOME" => Some(home.clone()),
                name => more.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()),
            }
        };
        let defaults =
            Defaults::read(&env(&[("MYSQL_PWD", "no"), ("MYSQL_HOST", "db1"), ("USER", "me")])).unwrap();
        let expected = Defaults {
            host: Some("db1".into()),
            port: Some(3307),
            socket: None,
            user: Some("joe".into()),
            password: Some("hu sh".into()),
            database: None,
            ssl_ca: Some("/ca.pem".into()),
        };
        assert_eq!(defaults, expected);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let defaults = Defaults::read(&env(&[("MYSQL_PWD", "env"), ("USER", "me")])).unwrap();
        assert_eq!((defaults.password.as_deref(), defaults.user.as_deref()), (Some("env"), Some("me")));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "[client]\nport=x\n").unwrap();
        assert!(Defaults::read(&env(&[])).unwrap_err().contains("line 2"));
    }
}
