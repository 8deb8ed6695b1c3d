//! Signals that end a command: the first cleanly, the second at once.
//!
//! Queries have threads of their own (`lightship_engine`), so none of them keeps a signal from being seen.

use std::sync::OnceLock;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::commands::Command;
use crate::error::CliError;

/// A signal that asks for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Ctrl-C, and SIGTERM as service managers send it.
    Interrupt,
    /// SIGHUP: the terminal is gone.
    HangUp,
}

impl Ending {
    /// Exit code of a program that was ended so, as shells count it: 128 and the signal's number.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::HangUp => 129,
            Self::Interrupt => 130,
        }
    }
}

/// The signal that came first.
static FIRST: OnceLock<Ending> = OnceLock::new();

/// What asked this process to end, as far as anything did.
pub(crate) fn ending() -> Ending {
    FIRST.get().copied().unwrap_or(Ending::Interrupt)
}

/// Runs a command. Interrupted, a transfer is dropped, which cancels the query
/// and removes what was half written; a node is asked to shut down.
pub(crate) async fn interruptible(command: Command, json: bool) -> Result<(), CliError> {
    let (ask, asked) = watch::channel(false);
    // To the end of the process: a second one ends what is still waited for.
    tokio::spawn(async move {
        let mut signals = Signals::new();
        let first = signals.next().await;
        let _ = FIRST.set(first);
        let _ = ask.send(true);
        signals.next().await;
        std::process::exit(first.exit_code().into());
    });
    let mut stop = asked.clone();
    let ends_by_itself = command.is_service();
    let done = tokio::select! {
        done = Box::pin(command.run(json, asked)) => done,
        _ = stop.wait_for(|&asked| asked), if !ends_by_itself => Err(CliError::interrupted()),
    };
    done
}

/// The signals, from the moment on when it was made.
struct Signals {
    interrupt: Option<tokio::signal::unix::Signal>,
    terminate: Option<tokio::signal::unix::Signal>,
    hang_up: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    fn new() -> Self {
        // Under nohup SIGHUP is ignored, and stays so: a handler would undo it.
        let hang_up = if is_ignored(SignalKind::hangup()) { None } else { signal(SignalKind::hangup()).ok() };
        Self {
            interrupt: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
            hang_up,
        }
    }

    async fn next(&mut self) -> Ending {
        async fn one(signal: &mut Option<tokio::signal::unix::Signal>) {
            match signal {
                Some(signal) => {
                    signal.recv().await;
                }
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = one(&mut self.interrupt) => Ending::Interrupt,
            () = one(&mut self.terminate) => Ending::Interrupt,
            () = one(&mut self.hang_up) => Ending::HangUp,
        }
    }
}

/// Whether this process was started with a signal ignored.
fn is_ignored(signal: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw_value() - 1) & 1 == 1
}
