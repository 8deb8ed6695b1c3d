//! A throw-away PostgreSQL server.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

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

const USER: &str = "tester";
const PASSWORD: &str = "s3cret:p@ss";
const DATABASE: &str = "test";
const START_MAX: Duration = Duration::from_secs(60);

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
        // The port is free now, but another process may take it before the server does.
        for _ in 0..5 {
            let port = free_port();
            let process = Process::spawn(dir.path(), port, settings);
            if wait_until_ready(dir.path(), port) {
                let server = Self { _process: process, dir, port };
                server.run("postgres", &format!("CREATE DATABASE {DATABASE}"));
                return server;
            }
            let log = log(dir.path());
            assert!(log.contains("could not bind"), "PostgreSQL did not start:\n{log}");
            let _ = fs::remove_file(dir.path().join("log"));
        }
        panic!("no free port for PostgreSQL");
    }

    /// `postgresql://user:password@127.0.0.1:port/test`.
    pub fn uri(&self) -> String {
        self.uri_as(USER, PASSWORD, DATABASE)
    }

    /// The URI with another user, password or database.
    pub fn uri_as(&self, user: &str, password: &str, database: &str) -> String {
        let password = password.replace('%', "%25").replace('@', "%40").replace(':', "%3A");
        format!("postgresql://{user}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// The URI for the Unix socket.
    pub fn uri_unix(&self) -> String {
        let password = PASSWORD.replace('@', "%40").replace(':', "%3A");
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
        let mut client = Command::new(binary("psql"))
            .args(["-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-f", "-"])
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER, "-d", database])
            .env("PGPASSWORD", PASSWORD)
            .env("PGTZ", "UTC")
            .env("PGCLIENTENCODING", "UTF8")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| missing("psql", &e));
        // A client that has failed closes its input early; its error text is shown below.
        let _ = client.stdin.take().expect("a pipe").write_all(sql.as_bytes());
        let output = client.wait_with_output().expect("the client ends");
        assert!(
            output.status.success(),
            "psql failed: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            sql.chars().take(2000).collect::<String>()
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// The running server, killed on drop.
#[derive(Debug)]
struct Process {
    guardian: Child,
    leash: Option<ChildStdin>,
}

/// Starts the server, and stops it at once when its own input ends: so the server ends
/// even if the process that holds the other end dies.
const GUARDIAN: &str = r#"dir=$1; shift; "$@" </dev/null & server=$!
    read -r word; kill -QUIT $server; wait $server 2>/dev/null; [ -n "$word" ] || rm -rf "$dir""#;

impl Process {
    fn spawn(dir: &Path, port: u16, settings: &[&str]) -> Self {
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
        let mut guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .arg(dir)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| missing("sh", &e));
        let leash = guardian.stdin.take();
        Self { guardian, leash }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A word means that the owner removes the folder; without one the guardian removes it.
        if let Some(mut leash) = self.leash.take() {
            let _ = leash.write_all(b"ended\n");
        }
        let _ = self.guardian.wait();
    }
}

/// Creates the database files in `dir/data`, owned by the user that runs the server.
fn install(dir: &Path) {
    fs::write(dir.join("password"), PASSWORD).expect("a file for the password");
    fs::create_dir(dir.join("data")).expect("a directory for the data");
    let mut words = as_server_user();
    if !words.is_empty() {
        run_quietly(Command::new("chown").arg("-R").arg("postgres:postgres").arg(dir));
    }
    words.push(binary("initdb").display().to_string());
    words.extend(["-U", USER, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "-N"].map(Into::into));
    words.push(format!("--pwfile={}", dir.join("password").display()));
    words.push(format!("--pgdata={}", dir.join("data").display()));
    run_quietly(Command::new(&words[0]).args(&words[1..]).current_dir(dir));
}

/// Waits until the server answers; false if it fails instead.
fn wait_until_ready(dir: &Path, port: u16) -> bool {
    let deadline = Instant::now() + START_MAX;
    let mut pause = Duration::from_millis(5);
    while Instant::now() < deadline {
        let answered = Command::new(binary("pg_isready"))
            .args(["-q", "-h", &dir.display().to_string(), "-p", &port.to_string()])
            .status()
            .unwrap_or_else(|e| missing("pg_isready", &e));
        if answered.success() {
            return true;
        }
        // A client that connects too early gets a FATAL error that does not count.
        if log(dir).lines().any(|line| line.contains("FATAL:") && !line.contains("starting up")) {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
    false
}

/// The server refuses to run as root; the package has created a user for it.
fn as_server_user() -> Vec<String> {
    let id = Command::new("id").arg("-u").output().unwrap_or_else(|e| missing("id", &e));
    match id.stdout.trim_ascii() {
        b"0" => ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"].map(Into::into).into(),
        _ => vec![],
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

fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap_or_default()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

fn run_quietly(command: &mut Command) {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().unwrap_or_else(|e| missing(&program, &e));
    assert!(
        output.status.success(),
        "{program}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn missing(program: &str, error: &std::io::Error) -> ! {
    panic!("can't run {program} ({error}); `make test` installs PostgreSQL")
}
