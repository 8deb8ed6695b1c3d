//! Starts the servers of a sweep with a command of the user.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lightship::ErrorKind;
use lightship_netbench::{Host, Target};

use crate::error::CliError;

/// How long a server may take to answer after its command was started.
const START_MAX: Duration = Duration::from_secs(30);
/// The pause between two attempts to reach it.
const RETRY: Duration = Duration::from_millis(100);

/// The server of a host. Dropping it closes its stdin and ends the command.
#[derive(Debug)]
pub(super) struct StartedServer(Child);

impl Drop for StartedServer {
    fn drop(&mut self) {
        // The end of stdin ends `serve --until-eof`, also on another host.
        self.0.stdin.take();
        // Fails only if it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server on each host, and waits until all answer.
///
/// # Errors
/// If the command can't be run, ends before its server answers, or the server does not answer in time.
pub(super) async fn start_servers(command: &str, hosts: &[Host]) -> Result<Vec<StartedServer>, CliError> {
    if !command.contains("{host}") && !command.contains("{port}") && hosts.len() > 1 {
        let why = format!("--start {command}: it would start the same server for each host");
        return Err(CliError::usage(why).hint("{host} stands for the host, {port} for its port"));
    }
    let failed = |why: String| CliError::new(ErrorKind::Network, format!("--start: {why}"));
    let mut servers = Vec::new();
    for host in hosts {
        let line = command.replace("{host}", host.name()).replace("{port}", &host.port().to_string());
        let mut start = Command::new("sh");
        start.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = start.spawn().map_err(|error| failed(format!("sh: {error}")))?;
        servers.push((StartedServer(child), line));
    }
    let began = Instant::now();
    for (host, (server, line)) in hosts.iter().zip(&mut servers) {
        while let Err(error) = Target::find(host).await {
            let ended = server.0.try_wait().map_err(|error| failed(format!("{line}: {error}")))?;
            if let Some(status) = ended {
                return Err(failed(format!(
                    "`{line}` has ended ({status}), and no server answers at {host}"
                )));
            }
            if began.elapsed() > START_MAX {
                let hint = format!("`{line}` was started {} seconds ago", START_MAX.as_secs());
                return Err(CliError::from(error).hint(hint));
            }
            tokio::time::sleep(RETRY).await;
        }
    }
    Ok(servers.into_iter().map(|(server, _)| server).collect())
}
