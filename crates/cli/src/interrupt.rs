//! Signals that end a command: the first cleanly, the second at once.
//!
//! Queries run on separate threads (`lightship_engine`), so they don't delay the handling of signals.

use std::sync::OnceLock;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// A signal that ends the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Ctrl-C, and SIGTERM as service managers send it.
    Interrupt,
    /// SIGHUP: the terminal is gone.
    HangUp,
}

impl Ending {
    /// Exit code of a program that was ended by this signal, as in shells: 128 plus the signal's number.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::HangUp => 129,
            Self::Interrupt => 130,
        }
    }
}

/// The signal that came first.
static FIRST: OnceLock<Ending> = OnceLock::new();

/// The signal that ended this process; `Interrupt` if none has arrived.
pub(crate) fn ending() -> Ending {
    FIRST.get().copied().unwrap_or(Ending::Interrupt)
}

/// A channel that becomes true on the first signal. A second signal ends the process at once. Call this once, in a
/// Tokio runtime.
pub(crate) fn watch() -> watch::Receiver<bool> {
    let (ask, asked) = watch::channel(false);
    // This task runs until the process ends.
    tokio::spawn(async move {
        let mut signals = Signals::new();
        let first = signals.next().await;
        let _ = FIRST.set(first);
        let _ = ask.send(true);
        signals.next().await;
        std::process::exit(first.exit_code().into());
    });
    asked
}

/// The signals that have arrived since this value was created.
struct Signals {
    interrupt: Option<tokio::signal::unix::Signal>,
    terminate: Option<tokio::signal::unix::Signal>,
    hang_up: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    fn new() -> Self {
        // Under nohup SIGHUP is ignored. A handler would undo that, so none is installed.
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
