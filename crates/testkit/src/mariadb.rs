//! A throw-away MariaDB server.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server in its own directory, at `127.0.0.1` and its own port.
///
/// Dropping it kills the server and removes its directory; so does the end of this
/// process. It has one database, `test`, and one user with a password and all rights.
#[derive(Debug)]
pub struct MariaDb {
    // Dropped in this order: first the process, then its files.
    _process: Process,
    dir: TempDir,
    port: u16,
}

const USER: &str = "tester";
const PASSWORD: &str = "s3cret:p@ss";
const DATABASE: &str = "test";
const START_MAX: Duration = Duration::from_secs(60);

impl MariaDb {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    /// When MariaDB is not installed, or does not start.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// As [`MariaDb::start`], with more options for the server (`--name=value`).
    ///
    /// # Panics
    /// As [`MariaDb::start`].
    pub fn start_with(options: &[&str]) -> Self {
        let dir =
            tempfile::Builder::new().prefix("lightship-mariadb-").tempdir().expect("a temporary directory");
        let user = server_user();
        install(dir.path(), user);
        // The port is free now, but another process may take it before the server does.
        for _ in 0..5 {
            let port = free_port();
            let process = Process::spawn(dir.path(), user, port, options);
            if wait_until_ready(dir.path()) {
                let server = Self { _process: process, dir, port };
                server.run(
                    None,
                    &format!(
                        "CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4;
                         CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
                         GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;"
                    ),
                );
                return server;
            }
            let log = log(dir.path());
            assert!(log.contains("Bind on TCP/IP port"), "MariaDB did not start:\n{log}");
            let _ = fs::remove_file(dir.path().join("log"));
        }
        panic!("no free port for MariaDB");
    }

    /// `mysql://user:password@127.0.0.1:port/test`.
    pub fn uri(&self) -> String {
        self.uri_as(USER, PASSWORD, DATABASE)
    }

    /// The URI with another user, password or database.
    pub fn uri_as(&self, user: &str, password: &str, database: &str) -> String {
        let password = password.replace('%', "%25").replace('@', "%40").replace(':', "%3A");
        format!("mysql://{user}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// The port it listens on, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The user of [`MariaDb::uri`].
    pub fn user(&self) -> &'static str {
        USER
    }

    /// The password of [`MariaDb::user`], not percent-encoded.
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// Runs statements as root in the database `test`, time zone UTC; returns
    /// what the client prints: rows of tab-separated values without a header.
    ///
    /// # Panics
    /// When a statement fails.
    pub fn sql(&self, text: &str) -> String {
        self.run(Some(DATABASE), text)
    }

    fn run(&self, database: Option<&str>, text: &str) -> String {
        let mut client = Command::new("mariadb")
            .args(["--no-defaults", "--user=root", "--batch", "--skip-column-names", "--binary-mode"])
            .args(["--default-character-set=utf8mb4", "--init-command=SET time_zone='+00:00'"])
            .arg(socket_option(self.dir.path()))
            .args(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| missing("mariadb", &e));
        // A client that has failed closes its input early; its error text is shown below.
        let _ = client.stdin.take().expect("a pipe").write_all(text.as_bytes());
        let output = client.wait_with_output().expect("the client ends");
        assert!(
            output.status.success(),
            "mariadb failed: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            text.chars().take(2000).collect::<String>()
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

/// Starts the server, and kills it when its own input ends: so the server ends even
/// if the process that holds the other end dies.
const GUARDIAN: &str = r#"dir=$1; shift; "$@" & server=$!
    read -r word; kill -9 $server; wait $server 2>/dev/null; [ -n "$word" ] || rm -rf "$dir""#;

impl Process {
    fn spawn(dir: &Path, user: Option<&str>, port: u16, options: &[&str]) -> Self {
        let mut guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .arg(dir)
            .args([server_binary(), "--no-defaults"])
            .args(user.map(|user| format!("--user={user}")))
            .args(directory_options(dir))
            .arg(socket_option(dir))
            .arg(format!("--pid-file={}", dir.join("pid").display()))
            .arg(format!("--log-error={}", dir.join("log").display()))
            .arg(format!("--port={port}"))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--skip-log-bin"])
            .args(["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"])
            .args(["--innodb-log-file-size=16M", "--innodb-doublewrite=0", "--innodb-flush-method=nosync"])
            .args(["--aria-pagecache-buffer-size=1M", "--key-buffer-size=1M", "--performance-schema=0"])
            .args(["--max-allowed-packet=256M", "--character-set-server=utf8mb4"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
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

/// Creates the system tables in `dir/data`, owned by the user that runs the server.
fn install(dir: &Path, user: Option<&str>) {
    for part in ["data", "tmp"] {
        fs::create_dir(dir.join(part)).expect("a directory for the server");
    }
    if let Some(user) = user {
        run_quietly(Command::new("chown").arg("-R").arg(user).arg(dir));
    }
    run_quietly(
        Command::new("mariadb-install-db")
            .arg("--no-defaults")
            .args(user.map(|user| format!("--user={user}")))
            .args(directory_options(dir))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"])
            .args([
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-doublewrite=0",
                "--innodb-flush-method=nosync",
            ])
            .args(["--innodb-log-file-size=16M", "--innodb-buffer-pool-size=16M"]),
    );
}

/// Waits until the server answers; false if it fails instead.
fn wait_until_ready(dir: &Path) -> bool {
    let deadline = Instant::now() + START_MAX;
    let mut pause = Duration::from_millis(5);
    while Instant::now() < deadline {
        let answered = Command::new("mariadb-admin")
            .args(["--no-defaults", "--user=root", "--silent", "ping"])
            .arg(socket_option(dir))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap_or_else(|e| missing("mariadb-admin", &e));
        if answered.success() {
            return true;
        }
        if log(dir).contains("[ERROR] Aborting") {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
    false
}

/// The server refuses to run as root; the package has created a user for it.
fn server_user() -> Option<&'static str> {
    let id = Command::new("id").arg("-u").output().unwrap_or_else(|e| missing("id", &e));
    (id.stdout.trim_ascii() == b"0").then_some("mysql")
}

/// `/usr/sbin` is not on every user's path.
fn server_binary() -> &'static str {
    let known = ["/usr/sbin/mariadbd", "/usr/libexec/mariadbd", "/usr/local/bin/mariadbd"];
    known.into_iter().find(|path| Path::new(path).exists()).unwrap_or("mariadbd")
}

/// Each server has its own directory for temporary files too: at its start, a server
/// removes the files of all others from a shared directory.
fn directory_options(dir: &Path) -> [String; 2] {
    [format!("--datadir={}", dir.join("data").display()), format!("--tmpdir={}", dir.join("tmp").display())]
}

fn socket_option(dir: &Path) -> String {
    format!("--socket={}", dir.join("socket").display())
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
        "{program} failed:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn missing(program: &str, error: &std::io::Error) -> ! {
    panic!("can't run {program} ({error}); `make test` installs MariaDB")
}

#[cfg(test)]
mod tests {
    use super::MariaDb;

    #[test]
    fn a_server_starts_answers_and_leaves_no_files() {
        let server = MariaDb::start();
        assert_eq!(server.sql("SELECT DATABASE(), @@time_zone"), "test\t+00:00\n");
        let dir = server.dir.path().to_owned();
        let port = server.port();
        drop(server);
        assert!(!dir.exists());
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}
