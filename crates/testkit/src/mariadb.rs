//! A throw-away MariaDB server.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::server::{self, DATABASE, Launch, PASSWORD, Process, USER};

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
        let launch = Launch {
            name: "MariaDB",
            dir: dir.path(),
            server: &|port| server_command(dir.path(), user, port, options),
            ping: &|_| ping(dir.path()),
            has_failed: |log| log.contains("[ERROR] Aborting"),
            port_taken: "Bind on TCP/IP port",
        };
        let (process, port) = launch.start();
        let server = Self { _process: process, dir, port };
        server.run(
            None,
            &format!(
                "CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4;
                 CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
                 GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;"
            ),
        );
        server
    }

    /// `mysql://user:password@127.0.0.1:port/test`.
    pub fn uri(&self) -> String {
        self.uri_as(USER, PASSWORD, DATABASE)
    }

    /// The URI with another user, password or database.
    pub fn uri_as(&self, user: &str, password: &str, database: &str) -> String {
        let password = server::encoded(password);
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
        let mut client = Command::new("mariadb");
        client
            .args(["--no-defaults", "--user=root", "--batch", "--skip-column-names", "--binary-mode"])
            .args(["--default-character-set=utf8mb4", "--init-command=SET time_zone='+00:00'"])
            .arg(socket_option(self.dir.path()))
            .args(database);
        server::ask(&mut client, text)
    }
}

/// The command that runs the server.
fn server_command(dir: &Path, user: Option<&str>, port: u16, options: &[&str]) -> Command {
    let mut command = server::guarded("KILL", dir);
    command
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
        .stderr(Stdio::null());
    command
}

/// Creates the system tables in `dir/data`, owned by the user that runs the server.
fn install(dir: &Path, user: Option<&str>) {
    for part in ["data", "tmp"] {
        fs::create_dir(dir.join(part)).expect("a directory for the server");
    }
    if let Some(user) = user {
        server::run_quietly(Command::new("chown").arg("-R").arg(user).arg(dir));
    }
    server::run_quietly(
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

fn ping(dir: &Path) -> Command {
    let mut ping = Command::new("mariadb-admin");
    ping.args(["--no-defaults", "--user=root", "--silent", "ping"]).arg(socket_option(dir));
    ping.stdout(Stdio::null()).stderr(Stdio::null());
    ping
}

/// The server refuses to run as root; the package has created a user for it.
fn server_user() -> Option<&'static str> {
    server::is_root().then_some("mysql")
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
