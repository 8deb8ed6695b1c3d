//! `lab run` and `lab shell`: a command on host a, and optionally a server on host b.

use std::env;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use lab::{Host, Lab, LabError, Link};

use super::per_host::LimitArgs;

/// Run a command on host a, optionally with a server on host b
///
/// LAB_A, LAB_B … are the addresses of the hosts. The exit code is the command's, or 125
/// if the lab failed, 126 if the command can't be run, 127 if it is not found.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lab run --link wan -- ping -c 3 10.77.0.2
  lab run --link lan --serve 'lightship node --listen 0.0.0.0:4100 --insecure --data .' --port 4100 \\
      -- sh -c 'lightship fetch lightship://$LAB_B:4100 \"select 1\"'
  lab run --link 20mbit,5ms,0.5% --cpu a=0.5 --memory b=256MiB -- ./measure.sh
  lab run --link slow --hosts 3 -- sh -c 'echo $LAB_A $LAB_B $LAB_C'")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    hosts: HostArgs,
    /// The command to run.
    #[arg(value_name = "COMMAND")]
    program: String,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Open a shell on host a
///
/// Like `run` with $SHELL. LAB_A, LAB_B … are the addresses of the hosts.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lab shell --link wan
  lab shell --link lan --serve 'python3 -m http.server 8000' --port 8000")]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    hosts: HostArgs,
}

#[derive(Args)]
struct HostArgs {
    /// The link between the hosts: local, fast, lan, wan, slow, or numbers such as 50mbit,10ms,1%.
    #[arg(long, value_name = "LINK", default_value = "lan")]
    link: Link,
    /// Number of hosts. All of them can reach each other.
    #[arg(long, value_name = "N", default_value_t = 2)]
    hosts: usize,
    /// A shell command to run on host b meanwhile. It is killed at the end; its output goes
    /// to stderr.
    #[arg(long, value_name = "COMMAND")]
    serve: Option<String>,
    /// Wait until host b listens on this port before running the command.
    #[arg(long, value_name = "PORT", requires = "serve")]
    port: Option<u16>,
    #[command(flatten)]
    limits: LimitArgs,
}

const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
const USAGE: u8 = 2;
/// How long a server may take until it listens.
const SERVE_MAX: Duration = Duration::from_secs(60);
const SERVE_ASK_EVERY: Duration = Duration::from_millis(20);

pub(crate) fn cmd_run(args: RunArgs) -> Result<ExitCode, LabError> {
    run(&args.hosts, &args.program, &args.arguments)
}

pub(crate) fn cmd_shell(args: ShellArgs) -> Result<ExitCode, LabError> {
    run(&args.hosts, &env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into()), &[])
}

fn run(args: &HostArgs, program: &str, arguments: &[String]) -> Result<ExitCode, LabError> {
    let hosts = Lab::new()?.hosts(args.hosts, &args.link)?;
    if let Some(stranger) = args.limits.named().find(|name| hosts.iter().all(|host| host.name() != *name)) {
        return Ok(refuse(USAGE, &format!("no host `{stranger}` to limit")));
    }
    hosts.iter().try_for_each(|host| host.limit(&args.limits.of(host.name())))?;
    let a = &hosts[0];
    if let Some(left_out) = a.left_out() {
        eprintln!("lab: {} {left_out}", a.link());
    }

    let mut server = None;
    if let Some(line) = &args.serve {
        let Some(b) = hosts.get(1) else { return Ok(refuse(USAGE, "--serve needs a second host")) };
        let mut command = b.command("sh");
        // Standard input and output belong to the command.
        command.stdin(Stdio::null()).stdout(io::stderr());
        let child = prepare(&mut command, &hosts).args(["-c", line]).spawn();
        let child = server.insert(child.map_err(|source| LabError::Io { doing: line.clone(), source })?);
        if let Some(port) = args.port
            && let Err(error) = listening(a, (b.address(), port).into(), child)
        {
            return Ok(refuse(crate::FAILED, &format!("`{line}` on port {port}: {error}")));
        }
    }

    let mut command = a.command(program);
    let done = outlive_interrupts().and_then(|()| prepare(&mut command, &hosts).args(arguments).status());
    let code = match done {
        Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(refuse(NOT_FOUND, &format!("{program}: {error}")));
        }
        Err(error) => return Ok(refuse(CANNOT_RUN, &format!("{program}: {error}"))),
    };
    // Dropping the hosts kills the server, so that waiting for it ends.
    drop(hosts);
    server.map(|mut server| server.wait());
    Ok(ExitCode::from(code as u8))
}

fn refuse(code: u8, message: &str) -> ExitCode {
    eprintln!("error: {message}");
    ExitCode::from(code)
}

fn prepare<'a>(command: &'a mut Command, hosts: &[Host]) -> &'a mut Command {
    let name = |host: &Host| format!("LAB_{}", host.name().to_uppercase());
    command.envs(hosts.iter().map(|host| (name(host), host.address().to_string())))
}

/// Waits until `address` accepts a connection from `from`. Fails if `server` ends before.
fn listening(from: &Host, address: SocketAddr, server: &mut Child) -> io::Result<()> {
    let deadline = Instant::now() + SERVE_MAX;
    while Instant::now() < deadline {
        if let Some(status) = server.try_wait()? {
            return Err(io::Error::other(format!("ended with {status}")));
        }
        if from.run(|| TcpStream::connect_timeout(&address, SERVE_MAX)).is_ok() {
            return Ok(());
        }
        thread::sleep(SERVE_ASK_EVERY);
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not listen"))
}

/// Ignores Ctrl-C, so that only the command receives it and the lab waits for the command's end,
/// as a shell does. It installs a handler because the command would inherit `SIG_IGN`.
fn outlive_interrupts() -> io::Result<()> {
    extern "C" fn nothing(_: i32) {}
    let handler = nothing as extern "C" fn(i32) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: the handler does nothing; interrupted calls are restarted (signal(2), BSD).
        if unsafe { libc::signal(signal, handler) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
