//! Errors as people and scripts get them: the message, a hint, the exit code.

use std::io::{ErrorKind as IoErrorKind, Write};

use lightship::{Error, ErrorKind};
use lightship_engine::EngineError;
use lightship_netbench::{ConnectionError, NetbenchError};
use lightship_overlay::OverlayError;
use lightship_session::{Failure, ProfileError, TransportError};
use lightship_sources::SourceError;
use lightship_tuner::TunerError;

use crate::interrupt::{self, Ending};

/// A failure of the command.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) error: Box<Error>,
    /// The signal that ended the command, if one did.
    ending: Option<Ending>,
    /// The exit code of a command that was run, which says itself what went wrong.
    of_command: Option<u8>,
}

impl CliError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error::new(kind, message).into()
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    pub(crate) fn interrupted() -> Self {
        let ending = interrupt::ending();
        let what = match ending {
            Ending::Interrupt => "interrupted",
            Ending::HangUp => "the terminal hung up",
        };
        Self::ended(ending, format!("{what}; nothing was left half written"))
    }

    fn ended(ending: Ending, message: String) -> Self {
        let error = Box::new(Error::new(ErrorKind::Internal, message));
        Self { error, ending: Some(ending), of_command: None }
    }

    /// A command that was run failed with an exit code. Nothing is printed.
    pub(crate) fn of_command(code: u8) -> Self {
        let error = Box::new(Error::new(ErrorKind::Source, "the command failed"));
        Self { error, ending: None, of_command: Some(code) }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { error: Box::new(self.error.hint(hint)), ..self }
    }

    /// Adds the line of `sql` that contains the error.
    pub(crate) fn in_statement(self, sql: &str) -> Self {
        Self { error: Box::new(self.error.in_statement(sql)), ..self }
    }

    /// Adds the name of the table that the error concerns.
    pub(crate) fn of_table(mut self, name: &str) -> Self {
        self.error.message = format!("table {name}: {}", self.error.message);
        self
    }

    fn exit_code(&self) -> u8 {
        if let Some(code) = self.of_command {
            return code;
        }
        match (self.ending, self.error.kind) {
            (Some(ending), _) => ending.exit_code(),
            (None, ErrorKind::BrokenPipe) => 0,
            (None, ErrorKind::Usage) => 2,
            (None, ErrorKind::Source) => 3,
            (None, ErrorKind::Network) => 4,
            (None, ErrorKind::Data) => 5,
            (None, ErrorKind::Limits) => 6,
            (None, ErrorKind::Cancelled) => Ending::Interrupt.exit_code(),
            (None, _) => 1,
        }
    }

    fn json(&self) -> String {
        let mut error = serde_json::json!({ "error": self.error });
        match self.ending {
            Some(Ending::Interrupt) => error["error"]["kind"] = "interrupted".into(),
            Some(Ending::HangUp) => error["error"]["kind"] = "hung-up".into(),
            None => {}
        }
        printable_json(&error.to_string())
    }

    /// Prints the error and returns the exit code.
    pub(crate) fn report(self, json: bool) -> u8 {
        let code = self.exit_code();
        // The reader has closed the output: not a failure.
        if self.error.kind == ErrorKind::BrokenPipe || self.of_command.is_some() {
            return code;
        }
        let mut text = if json {
            self.json()
        } else {
            let Error { message, place, hint, rows, .. } = *self.error;
            let far = match rows {
                None | Some(0) => String::new(),
                Some(1) => " (after 1 row)".to_owned(),
                Some(rows) => format!(" (after {rows} rows)"),
            };
            let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
            // Messages about files already begin with the path.
            let place = place.filter(|place| !message.starts_with(&**place));
            let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
            printable(&format!("error: {place}{message}{far}{hint}"))
        };
        text.push('\n');
        // If stderr is closed, the error can't be reported.
        let _ = std::io::stderr().write_all(text.as_bytes());
        code
    }
}

/// Escapes the characters that control a terminal: texts of servers and files may be crafted to deceive.
fn printable(text: &str) -> String {
    escaped(text, |c, out| out.extend(c.escape_unicode()))
}

/// The same for JSON text, whose meaning does not change.
fn printable_json(text: &str) -> String {
    // All escaped characters are below 0x10000.
    escaped(text, |c, out| out.push_str(&format!("\\u{:04x}", c as u32)))
}

fn escaped(text: &str, escape: impl Fn(char, &mut String)) -> String {
    let acts = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if acts(c) => escape(c, &mut out),
            c => out.push(c),
        }
    }
    out
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        Self { error: Box::new(error), ending: None, of_command: None }
    }
}

/// Converts errors that the library classifies.
macro_rules! known_to_the_library {
    ($($error:ty),*) => {$(
        impl From<$error> for CliError {
            fn from(error: $error) -> Self {
                Error::from(error).into()
            }
        }
    )*};
}

known_to_the_library!(SourceError, Failure, ProfileError, EngineError);

impl From<TransportError> for CliError {
    fn from(error: TransportError) -> Self {
        let hint = match &error {
            TransportError::Listen { source, .. } => listen_hint(source.kind(), "--listen"),
            _ => None,
        };
        let this = Self::from(Error::from(error));
        match hint {
            Some(hint) => this.hint(hint),
            None => this,
        }
    }
}

/// The hint for an address of `option` that can't be listened on.
pub(crate) fn listen_hint(kind: IoErrorKind, option: &str) -> Option<String> {
    match kind {
        IoErrorKind::AddrInUse => Some(format!(
            "another process listens there: stop it, or give {option} another port; port 0 picks a free port"
        )),
        IoErrorKind::PermissionDenied => {
            Some("ports below 1024 are reserved for root: choose a higher one".into())
        }
        IoErrorKind::AddrNotAvailable => Some(format!("{option} must be an address of this host")),
        _ => None,
    }
}

impl From<NetbenchError> for CliError {
    fn from(error: NetbenchError) -> Self {
        let message = error.to_string();
        match error {
            NetbenchError::Listen { source, .. } => {
                let this = Self::new(ErrorKind::Network, message);
                match listen_hint(source.kind(), "--listen") {
                    Some(hint) => this.hint(hint),
                    None => this,
                }
            }
            NetbenchError::Host { fault, .. } if fault.is_too_many_files() => {
                Self::new(ErrorKind::Limits, message).hint(
                    "raise the limit in this shell: `ulimit -n 65536`; above the hard limit, root has to",
                )
            }
            NetbenchError::Host { fault, .. } => {
                let this = Self::new(ErrorKind::Network, message);
                match fault {
                    ConnectionError::Connect(_) | ConnectionError::NoAnswer(_) => this.hint(
                        "is a server running there? start one with `lightship netbench serve --listen 0.0.0.0`",
                    ),
                    ConnectionError::Foreign | ConnectionError::HungUp | ConnectionError::Broke(_) => {
                        this.hint("a node does not answer netbench: start `lightship netbench serve` on its host")
                    }
                    _ => this,
                }
            }
            NetbenchError::Io { source, .. } if source.kind() == IoErrorKind::StorageFull => {
                Self::new(ErrorKind::Limits, message)
                    .hint("nothing was left half written; make room and try again")
            }
            NetbenchError::Io { .. } => Self::new(ErrorKind::Source, message),
            NetbenchError::Damaged { .. } => Self::new(ErrorKind::Source, message)
                .hint("the file was not changed: move it away, or choose another folder with --output"),
            _ => Self::internal(message),
        }
    }
}

impl From<TunerError> for CliError {
    fn from(error: TunerError) -> Self {
        let this = Self::usage(error.to_string());
        match error {
            TunerError::RowTooLarge { .. } => {
                this.hint("a batch holds at least one row: raise --batch-bytes-max and --memory")
            }
            _ => this,
        }
    }
}

impl From<OverlayError> for CliError {
    fn from(error: OverlayError) -> Self {
        let message = error.to_string();
        match error {
            OverlayError::Deadlock { .. } => Self::internal(message),
            OverlayError::Stopped { .. } => Self::ended(Ending::Interrupt, message),
            OverlayError::Nodes { nodes, below, above, .. } => {
                let this = Self::usage(message);
                let fits = [above, below].into_iter().flatten();
                match fits.min_by_key(|fits| fits.abs_diff(nodes)) {
                    Some(nodes) => this.hint(format!(
                        "--nodes {nodes}, or --topology circulant, which exists for any number of nodes"
                    )),
                    None => this,
                }
            }
            OverlayError::OddSockets { sockets, .. } => {
                Self::usage(message).hint(format!("--degree {}", sockets - 1))
            }
            OverlayError::Unconnected { .. } => {
                Self::usage(message).hint("add an offset without this divisor, for example 1")
            }
            _ => Self::usage(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_control_a_terminal_are_escaped() {
        let text = "a\u{1b}[2Jb\rc\u{9b}d\u{202e}e\n\tf é ☃";
        assert_eq!(printable(text), "a\\u{1b}[2Jb\\u{d}c\\u{9b}d\\u{202e}e\n\tf é ☃");
        let json = serde_json::to_string(text).expect("JSON");
        let shown = printable_json(&json);
        assert_eq!(shown, r#""a\u001b[2Jb\rc\u009bd\u202ee\n\tf é ☃""#);
        assert_eq!(serde_json::from_str::<String>(&shown).expect("JSON"), text);
    }
}
