//! What the throw-away database servers share: a start at a free port, an end with this process, and statements
//! run by a command-line client.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// The user, the password and the database of each server.
pub(crate) const USER: &str = "tester";
pub(crate) const PASSWORD: &str = "s3cret:p@ss";
pub(crate) const DATABASE: &str = "test";

const START_MAX: Duration = Duration::from_secs(60);
/// How often a server is started, each time at another port.
const STARTS_MAX: u32 = 5;

/// How a server is started.
pub(crate) struct Launch<'a> {
    /// The server's name, for messages.
    pub(crate) name: &'a str,
    /// Its directory, where it writes the file `log`.
    pub(crate) dir: &'a Path,
    /// The command that runs it at a port; [`guarded`] makes it.
    pub(crate) server: &'a dyn Fn(u16) -> Command,
    /// A command that succeeds once it answers at that port.
    pub(crate) ping: &'a dyn Fn(u16) -> Command,
    /// Whether its log says that it has failed.
    pub(crate) has_failed: fn(&str) -> bool,
    /// What its log contains if another process has the port.
    pub(crate) port_taken: &'a str,
}

impl Launch<'_> {
    /// Starts the server and waits until it answers. Returns its process and its port.
    ///
    /// # Panics
    /// When the server is not installed, or does not start.
    pub(crate) fn start(&self) -> (Process, u16) {
        // The port is free now, but another process may take it before the server does.
        for _ in 0..STARTS_MAX {
            let port = free_port();
            let process = Process::spawn(&mut (self.server)(port));
            if self.wait_until_ready(port) {
                return (process, port);
            }
            let log = log(self.dir);
            assert!(log.contains(self.port_taken), "{} did not start:\n{log}", self.name);
            let _ = fs::remove_file(self.dir.join("log"));
        }
        panic!("no free port for {}", self.name);
    }

    /// Waits until the server answers; false if it fails instead.
    fn wait_until_ready(&self, port: u16) -> bool {
        let deadline = Instant::now() + START_MAX;
        let mut pause = Duration::from_millis(5);
        while Instant::now() < deadline {
            let mut ping = (self.ping)(port);
            let answered = ping.status().unwrap_or_else(|e| missing(&ping, &e));
            if answered.success() {
                return true;
            }
            if (self.has_failed)(&log(self.dir)) {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
        }
        false
    }
}

/// The running server, killed on drop.
#[derive(Debug)]
pub(crate) struct Process {
    guardian: Child,
    leash: Option<ChildStdin>,
}

/// Starts the server, and stops it at once when its own input ends: so the server ends
/// even if the process that holds the other end dies.
const GUARDIAN: &str = r#"signal=$1; dir=$2; shift 2; "$@" </dev/null & server=$!
    read -r word; kill -"$signal" $server; wait $server 2>/dev/null; [ -n "$word" ] || rm -rf "$dir""#;

/// A command that runs the program in its further arguments, and stops it with `signal` when its own input ends.
/// If that is because this process died, it also removes `dir`.
pub(crate) fn guarded(signal: &str, dir: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", GUARDIAN, "guardian", signal]).arg(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

impl Process {
    fn spawn(command: &mut Command) -> Self {
        let mut guardian = command.spawn().unwrap_or_else(|e| missing(command, &e));
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

/// Runs a client with `sql` as its input, and returns what it prints.
///
/// # Panics
/// When it fails.
pub(crate) fn ask(client: &mut Command, sql: &str) -> String {
    client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = client.spawn().unwrap_or_else(|e| missing(client, &e));
    // A client that has failed closes its input early; its error text is shown below.
    let _ = running.stdin.take().expect("a pipe").write_all(sql.as_bytes());
    let output = running.wait_with_output().expect("the client ends");
    assert!(
        output.status.success(),
        "{} failed: {}\n{}",
        name(client),
        String::from_utf8_lossy(&output.stderr),
        sql.chars().take(2000).collect::<String>()
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command whose output matters only if it fails.
///
/// # Panics
/// When it fails.
pub(crate) fn run_quietly(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| missing(command, &e));
    assert!(
        output.status.success(),
        "{} failed:\n{}{}",
        name(command),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Whether this process runs as root. The servers refuse to run as root.
pub(crate) fn is_root() -> bool {
    let mut id = Command::new("id");
    let output = id.arg("-u").output().unwrap_or_else(|e| missing(&id, &e));
    output.stdout.trim_ascii() == b"0"
}

/// A password as part of a URI.
pub(crate) fn encoded(password: &str) -> String {
    password.replace('%', "%25").replace('@', "%40").replace(':', "%3A")
}

fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap_or_default()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

fn name(command: &Command) -> String {
    Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn missing(command: &Command, error: &std::io::Error) -> ! {
    panic!("can't run {} ({error}); `make test` installs PostgreSQL and MariaDB", name(command))
}
