//! Files that keep settings and passwords for libpq: `pg_service.conf` and `.pgpass`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Maximum bytes of such a file.
const BYTES_MAX: u64 = 1 << 20;
/// The folders that servers' sockets are in by default, which a password file calls `localhost`.
const SOCKET_FOLDERS: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

/// The settings of a service: those of the section `[name]` in the first of `files` that has it.
///
/// # Errors
/// If no file has the section, a file can't be read, or a line is not a setting.
pub(super) fn service(name: &str, files: &[PathBuf]) -> Result<Vec<(String, String)>, String> {
    for path in files {
        let text = match read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        if let Some(settings) = section(&text, name)
            .map_err(|line| format!("{}: line {line} is not KEY=VALUE", path.display()))?
        {
            return Ok(settings);
        }
    }
    let files: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
    Err(format!("there is no service `{name}` in {}", files.join(" or ")))
}

/// The settings of a section; an error is the number of the line that is not one.
fn section(text: &str, name: &str) -> Result<Option<Vec<(String, String)>>, usize> {
    let mut found = None;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            if found.is_some() {
                break;
            }
            found = (section == name).then(Vec::new);
        } else if let Some(settings) = &mut found {
            let (key, value) = line.split_once('=').ok_or(at + 1)?;
            settings.push((key.trim_end().to_owned(), value.trim_start().to_owned()));
        }
    }
    Ok(found)
}

/// What a password file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Password {
    Found(String),
    /// It has no line for this login, or there is no such file.
    None,
    /// The file is not used, for this reason.
    Ignored(String),
}

/// The login that a password is for.
pub(super) struct Login<'a> {
    /// The host, or the folder of the socket.
    pub(super) host: &'a str,
    pub(super) port: &'a str,
    pub(super) database: &'a str,
    pub(super) user: &'a str,
}

/// The password of the first line that fits.
pub(super) fn password(path: &Path, login: &Login<'_>) -> Password {
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Password::None,
        Err(error) => return Password::Ignored(error.to_string()),
    };
    if !metadata.is_file() {
        return Password::Ignored("it is not a file".into());
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return Password::Ignored("others may read it; make it private with chmod 600".into());
    }
    match read(path) {
        Ok(text) => {
            text.lines().find_map(|line| line_password(line, login)).map_or(Password::None, Password::Found)
        }
        Err(error) => Password::Ignored(error.to_string()),
    }
}

/// The password in a line `host:port:database:user:password`, if it is for this login.
fn line_password(line: &str, login: &Login<'_>) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let host = if SOCKET_FOLDERS.contains(&login.host) { "localhost" } else { login.host };
    let mut rest = line;
    for wanted in [host, login.port, login.database, login.user] {
        let (given, is_any);
        (given, is_any, rest) = field(rest)?;
        if !is_any && given != wanted {
            return None;
        }
    }
    // The password ends with the line; a colon in it need not be escaped.
    let mut password = String::new();
    let mut chars = rest.chars();
    while let Some(c) = chars.next() {
        password.push(if c == '\\' { chars.next()? } else { c });
    }
    Some(password)
}

/// The first field of a line, whether it is `*`, and the rest after the colon.
fn field(line: &str) -> Option<(String, bool, &str)> {
    let mut text = String::new();
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            ':' => {
                let is_any = &line[..at] == "*";
                return Some((text, is_any, &line[at + 1..]));
            }
            '\\' => text.push(chars.next()?.1),
            c => text.push(c),
        }
    }
    None
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let length = File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if length as u64 > BYTES_MAX {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};

    use super::*;

    #[test]
    fn passwords_are_found_as_libpq_finds_them() {
        let check = |line: &str, host: &str, database: &str, expected: Option<&str>| {
            let login = Login { host, port: "5432", database, user: "me" };
            assert_eq!(line_password(line, &login).as_deref(), expected, "{line}");
        };
        check("h:5432:d:me:secret", "h", "d", Some("secret"));
        check("*:*:*:*:secret", "h", "d", Some("secret"));
        check("h:5433:d:me:secret", "h", "d", None);
        check("h:5432:d:you:secret", "h", "d", None);
        check("localhost:*:*:me:x", "/var/run/postgresql", "d", Some("x"));
        check("/srv/pg:*:*:me:x", "/srv/pg", "d", Some("x"));
        // Escapes, in the fields and in the password.
        check(r"h:*:a\:b:me:p\:a\\ss", "h", "a:b", Some(r"p:a\ss"));
        check("h:*:d:me:p:w", "h", "d", Some("p:w"));
        check(r"\*:*:*:me:x", "h", "d", None);
        check(r"\*:*:*:me:x", "*", "d", Some("x"));
        check("# h:5432:d:me:secret", "h", "d", None);
        check("h:5432:d:me", "h", "d", None);
        check("h:5432:d:me:", "h", "d", Some(""));
        check(r"h:5432:d:me:x\", "h", "d", None);
    }

    #[test]
    fn a_password_file_that_others_may_read_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgpass");
        let login = Login { host: "h", port: "1", database: "d", user: "me" };
        assert_eq!(password(&path, &login), Password::None);
        write(&path, "# comment\nother:*:*:*:no\nh:*:*:*:first\nh:*:*:*:second\n").unwrap();
        for (mode, is_used) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match password(&path, &login) {
                Password::Found(found) => assert!(is_used && found == "first", "{mode:o}"),
                Password::Ignored(reason) => assert!(!is_used && reason.contains("chmod"), "{mode:o}"),
                Password::None => panic!("{mode:o}"),
            }
        }
        assert!(matches!(password(folder.path(), &login), Password::Ignored(_)));
    }

    #[test]
    fn services_are_sections_of_the_first_file_that_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let (user, system) = (folder.path().join("user"), folder.path().join("system"));
        write(&user, "# mine\n[a]\nhost=h1\nport = 5433\n\n[b]\noptions=-c a=b\n[bad]\nnothing\n").unwrap();
        write(&system, "[a]\nhost=other\n[c]\nhost=h3\n").unwrap();
        let files = [user, folder.path().join("missing"), system];
        let find = |name: &str| service(name, &files);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(find("a").unwrap(), [pair("host", "h1"), pair("port", "5433")]);
        assert_eq!(find("b").unwrap(), [pair("options", "-c a=b")]);
        assert_eq!(find("c").unwrap(), [pair("host", "h3")]);
        assert!(find("d").unwrap_err().contains("no service `d`"));
        assert!(find("bad").unwrap_err().contains("line 9"));
    }
}
