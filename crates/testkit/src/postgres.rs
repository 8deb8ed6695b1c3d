//! A throw-away PostgreSQL server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::server::{self, DATABASE, Launch, PASSWORD, Process, USER};

/// A server in its own directory, at `127.0.0.1` and its own port, and at a Unix
/// socket in that directory.
///
/// Dropping it kills the server and removes its directory; so does the end of this
/// process. It has one database, `test`, and one superuser with a password (SCRAM).
#[derive(Debug)]
pub struct Postgres {
    // Dropped in this order: first the process, then its files.
    _process: Process,
    dir: TempDir,
    port: u16,
}

impl Postgres {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    /// When PostgreSQL is not installed, or does not start.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// As [`Postgres::start`], with more settings for the server (`name=value`).
    /// In a value, `{dir}` stands for the server's directory, to name files that
    /// `prepare` puts there.
    ///
    /// # Panics
    /// As [`Postgres::start`].
    pub fn start_with(settings: &[&str]) -> Self {
        Self::start_prepared(settings, |_| {})
    }

    /// As [`Postgres::start_with`]; `prepare` may put files into the directory of
    /// the server before it starts. The server's user becomes their owner.
    ///
    /// # Panics
    /// As [`Postgres::start`].
    pub fn start_prepared(settings: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::Builder::new().prefix("lightship-pg-").tempdir().expect("a temporary directory");
        prepare(dir.path());
        install(dir.path());
        let launch = Launch {
            name: "PostgreSQL",
            dir: dir.path(),
            server: &|port| server_command(dir.path(), port, settings),
            ping: &|port| ping(dir.path(), port),
            // A client that connects too early gets a FATAL error that does not count.
            has_failed: |log| {
                log.lines().any(|line| line.contains("FATAL:") && !line.contains("starting up"))
            },
            port_taken: "could not bind",
        };
        let (process, port) = launch.start();
        let server = Self { _process: process, dir, port };
        server.run("postgres", &format!("CREATE DATABASE {DATABASE}"));
        server
    }

    /// `postgresql://user:password@127.0.0.1:port/test`.
    pub fn uri(&self) -> String {
        self.uri_as(USER, PASSWORD, DATABASE)
    }

    /// The URI with another user, password or database.
    pub fn uri_as(&self, user: &str, password: &str, database: &str) -> String {
        let password = server::encoded(password);
        format!("postgresql://{user}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// The URI for the Unix socket.
    pub fn uri_unix(&self) -> String {
        let password = server::encoded(PASSWORD);
        let dir = self.dir.path().display();
        format!("postgresql:///{DATABASE}?host={dir}&port={}&user={USER}&password={password}", self.port)
    }

    /// The port it listens on, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The user of [`Postgres::uri`].
    pub fn user(&self) -> &'static str {
        USER
    }

    /// The password of [`Postgres::user`], not percent-encoded.
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// Runs statements in the database `test`, time zone UTC; returns what the
    /// client prints: rows of tab-separated values without a header.
    ///
    /// # Panics
    /// When a statement fails.
    pub fn psql(&self, sql: &str) -> String {
        self.run(DATABASE, sql)
    }

    fn run(&self, database: &str, sql: &str) -> String {
        let mut client = Command::new(binary("psql"));
        client
            .args(["-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-f", "-"])
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER, "-d", database])
            .env("PGPASSWORD", PASSWORD)
            .env("PGTZ", "UTC")
            .env("PGCLIENTENCODING", "UTF8");
        server::ask(&mut client, sql)
    }
}

/// The command that runs the server.
fn server_command(dir: &Path, port: u16, settings: &[&str]) -> Command {
    let log = fs::File::create(dir.join("log")).expect("a log");
    let own = format!("unix_socket_directories={}", dir.display());
    let mut words = as_server_user();
    words.push(binary("postgres").display().to_string());
    words.extend(["-D".into(), dir.join("data").display().to_string()]);
    words.extend(["-p".into(), port.to_string()]);
    let fixed = [
        "listen_addresses=127.0.0.1",
        "fsync=off",
        "temp_file_limit=1GB",
        "shared_buffers=64MB",
        "max_connections=50",
        &own,
    ];
    for setting in fixed.iter().chain(settings) {
        words.extend(["-c".into(), setting.replace("{dir}", &dir.display().to_string())]);
    }
    let mut command = server::guarded("QUIT", dir);
    command.args(words).stderr(log);
    command
}

/// Creates the database files in `dir/data`, owned by the user that runs the server.
fn install(dir: &Path) {
    fs::write(dir.join("password"), PASSWORD).expect("a file for the password");
    fs::create_dir(dir.join("data")).expect("a directory for the data");
    let mut words = as_server_user();
    if !words.is_empty() {
        server::run_quietly(Command::new("chown").arg("-R").arg("postgres:postgres").arg(dir));
    }
    words.push(binary("initdb").display().to_string());
    words.extend(["-U", USER, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "-N"].map(Into::into));
    words.push(format!("--pwfile={}", dir.join("password").display()));
    words.push(format!("--pgdata={}", dir.join("data").display()));
    server::run_quietly(Command::new(&words[0]).args(&words[1..]).current_dir(dir));
}

fn ping(dir: &Path, port: u16) -> Command {
    let mut ping = Command::new(binary("pg_isready"));
    ping.args(["-q", "-h", &dir.display().to_string(), "-p", &port.to_string()]);
    ping
}

/// The server refuses to run as root; the package has created a user for it.
fn as_server_user() -> Vec<String> {
    match server::is_root() {
        true => ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"].map(Into::into).into(),
        false => vec![],
    }
}

/// Debian keeps the server's programs outside the path, in one folder per version.
fn binary(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> =
        versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists()).collect();
    found.sort();
    found.pop().unwrap_or_else(|| name.into())
}
