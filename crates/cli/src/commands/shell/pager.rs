//! Shows long texts in a pager.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::{Command, Stdio};

use terminal_size::{Height, Width, terminal_size};

/// Prints a text, in the pager if it does not fit on the terminal.
pub(super) fn show(text: &str, is_paged: bool) -> io::Result<()> {
    if !(is_paged && io::stdout().is_terminal() && exceeds_terminal(text)) {
        return print(text);
    }
    let pager = std::env::var("PAGER").ok().filter(|pager| !pager.trim().is_empty());
    let pager = pager.unwrap_or_else(|| "less".to_owned());
    let mut command = Command::new("sh");
    command.args(["-c", &pager]).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // Long lines are cut instead of wrapped, and the text stays on the terminal.
        command.env("LESS", "SRX");
    }
    let mut child = command.spawn()?;
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(text.as_bytes()));
    let status = child.wait()?;
    match written {
        // The shell did not find it.
        _ if status.code() == Some(127) => print(text),
        // It was left before the end.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn exceeds_terminal(text: &str) -> bool {
    let Some((Width(columns), Height(rows))) = terminal_size() else { return false };
    // A line for the summary, and one for the prompt.
    let lines_max = usize::from(rows).saturating_sub(2);
    text.lines().count() > lines_max || text.lines().any(|line| line.chars().count() > usize::from(columns))
}
