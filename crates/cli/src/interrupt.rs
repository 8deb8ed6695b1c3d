//! Ctrl-C: the first stops cleanly, the second at once.
//!
//! Queries have threads of their own (`lightship_engine`), so none of them keeps a signal from being seen.

use tokio::sync::watch;

use crate::commands::Command;
use crate::error::CliError;

/// Exit code of a program that was interrupted, as shells count it.
pub(crate) const EXIT_CODE: u8 = 130;

/// Runs a command. Interrupted, a transfer is dropped, which cancels the query
/// and removes what was half written; a node is asked to shut down.
pub(crate) async fn interruptible(command: Command, json: bool) -> Result<(), CliError> {
    let (ask, asked) = watch::channel(false);
    let signals = tokio::spawn(async move {
        signal().await;
        let _ = ask.send(true);
        signal().await;
        std::process::exit(EXIT_CODE.into());
    });
    let mut stop = asked.clone();
    let ends_by_itself = command.is_service();
    let done = tokio::select! {
        done = Box::pin(command.run(json, asked)) => done,
        _ = stop.wait_for(|&asked| asked), if !ends_by_itself => Err(CliError::interrupted()),
    };
    signals.abort();
    done
}

async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut stream) => {
                stream.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        result = tokio::signal::ctrl_c() => {
            if result.is_err() {
                std::future::pending::<()>().await;
            }
        }
        () = terminate => {}
    }
}
