//! Errors as a person or a script gets them: kind, cause, hint, exit code.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use lightship_engine::EngineError;
use lightship_netbench::{Fault, NetbenchError};
use lightship_overlay::OverlayError;
use lightship_session::{ErrorCode, Failure, ProfileError, TransportError};
use lightship_sources::SourceError;
use lightship_tuner::TunerError;
use serde::Serialize;

use crate::interrupt::{self, Ending};

/// What kind of failure; the exit code says it to scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Internal,
    Usage,
    Source,
    Network,
    Data,
    Limits,
    Interrupted,
    /// The terminal is gone.
    #[serde(rename = "hung-up")]
    HungUp,
    /// Whoever read our output has had enough. Not worth a word.
    #[serde(rename = "broken-pipe")]
    BrokenPipe,
}

impl Kind {
    fn exit_code(self) -> u8 {
        match self {
            Self::BrokenPipe => 0,
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Source => 3,
            Self::Network => 4,
            Self::Data => 5,
            Self::Limits => 6,
            Self::Interrupted => Ending::Interrupt.exit_code(),
            Self::HungUp => Ending::HangUp.exit_code(),
        }
    }
}

/// A failure of the command.
#[derive(Debug, Serialize)]
pub(crate) struct CliError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// Where it happened, of several places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) place: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<Position>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) needed_bytes: Option<u64>,
    /// How far the result came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rows: Option<u64>,
}

/// A place in the statement, from 1.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Position {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// Characters of a statement's line that are shown around an error.
const SHOWN_MAX: usize = 100;

impl Position {
    /// Finds the line of a column that was counted from an earlier one, over line ends.
    fn settle(&mut self, sql: &str) {
        for line in sql.lines().skip(self.line.saturating_sub(1) as usize) {
            // Behind the last character is still in the line.
            let places = u32::try_from(line.chars().count()).unwrap_or(u32::MAX).saturating_add(1);
            if self.column <= places {
                return;
            }
            self.column -= places;
            self.line += 1;
        }
        // Beyond the end there is nothing to point at; a peer may say anything.
        self.column = self.column.min(1);
    }
}

impl CliError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            place: None,
            hint: None,
            position: None,
            needed_bytes: None,
            rows: None,
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    pub(crate) fn interrupted() -> Self {
        match interrupt::ending() {
            Ending::Interrupt => Self::new(Kind::Interrupted, "interrupted; nothing was left half written"),
            Ending::HangUp => Self::new(Kind::HungUp, "the terminal hung up; nothing was left half written"),
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says at which of several places it happened.
    pub(crate) fn at(mut self, place: &str) -> Self {
        self.place = Some(place.to_owned());
        self
    }

    /// Says how far the result had come.
    pub(crate) fn after(mut self, rows: u64) -> Self {
        self.rows = Some(rows);
        self
    }

    /// Says where in `sql` the error lies.
    pub(crate) fn in_statement(mut self, sql: &str) -> Self {
        if let Some(position) = &mut self.position {
            position.settle(sql);
            let Position { line, column } = *position;
            let text = sql.lines().nth(line.saturating_sub(1) as usize).unwrap_or("");
            let before = column.saturating_sub(1) as usize;
            // Of a long line, what fits a terminal.
            let left_out =
                if text.chars().count() > SHOWN_MAX { before.saturating_sub(SHOWN_MAX / 2) } else { 0 };
            let text: String = text.chars().skip(left_out).take(SHOWN_MAX).collect();
            let indent = " ".repeat(before - left_out);
            self.message = format!("{}\n  {text}\n  {indent}^", self.message);
        }
        self
    }

    /// Prints it, and gives the exit code.
    pub(crate) fn report(self, json: bool) -> ExitCode {
        let code = ExitCode::from(self.kind.exit_code());
        if self.kind == Kind::BrokenPipe {
            return code;
        }
        let mut text = if json {
            printable_json(&serde_json::json!({ "error": self }).to_string())
        } else {
            let far = self.rows.map(|rows| format!(" (after {rows} rows)")).unwrap_or_default();
            let hint = self.hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
            // Errors of files begin with the path as it is.
            let place = self.place.filter(|place| !self.message.starts_with(place.as_str()));
            let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
            printable(&format!("error: {place}{}{far}{hint}", self.message))
        };
        text.push('\n');
        // There is no one left to tell if stderr is closed.
        let _ = std::io::stderr().write_all(text.as_bytes());
        code
    }
}

/// The text without what a terminal acts upon: what servers and files say may be meant to deceive.
fn printable(text: &str) -> String {
    escaped(text, |c, out| out.extend(c.escape_unicode()))
}

/// The same of JSON, which stays the same JSON.
fn printable_json(text: &str) -> String {
    // All of them are below 0x10000.
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

impl From<SourceError> for CliError {
    fn from(error: SourceError) -> Self {
        let message = error.to_string();
        match error.io_kind() {
            Some(ErrorKind::BrokenPipe)
                if !matches!(error, SourceError::Connect { .. } | SourceError::Lost { .. }) =>
            {
                return Self::new(Kind::BrokenPipe, message);
            }
            Some(ErrorKind::StorageFull) => {
                return Self::new(Kind::Limits, message)
                    .hint("nothing was left half written; make room and try again");
            }
            _ => {}
        }
        match error {
            SourceError::Location { .. } => Self::new(Kind::Usage, message),
            SourceError::Connect { .. } => Self::new(Kind::Network, message),
            SourceError::Lost { .. } => {
                Self::new(Kind::Network, message).hint("nothing was left half written; try again")
            }
            SourceError::Sql { position, hint, .. } => {
                let mut this = Self::new(Kind::Source, message);
                // Databases count characters of the whole statement: the line is found later.
                this.position = position.map(|column| Position { line: 1, column });
                this.hint = hint;
                this
            }
            SourceError::Value { .. } | SourceError::Malformed { .. } | SourceError::Arrow(_) => {
                Self::new(Kind::Data, message)
            }
            SourceError::Unfit { hint, .. } => Self { hint, ..Self::new(Kind::Data, message) },
            SourceError::RowTooLarge { bytes, bytes_max, .. } => {
                let times = bytes.div_ceil(bytes_max.max(1));
                let hint = format!("give it {times} times the memory (--memory), or choose parts of the row");
                Self { needed_bytes: Some(bytes), ..Self::new(Kind::Limits, message) }.hint(hint)
            }
            SourceError::DuplicateColumn { name, .. } => Self::new(Kind::Usage, message).hint(format!(
                "rename one in the SQL, as in `… as {name}_2`, or take numbered names with --duplicate-columns rename"
            )),
            SourceError::Busy { .. } => Self::new(Kind::Network, message)
                .hint("try again, or let the node open more connections (--source-connections)"),
            SourceError::Unsupported(_) => Self::new(Kind::Usage, message),
            _ => Self::new(Kind::Source, message),
        }
    }
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        let kind = match failure.code {
            ErrorCode::Internal | ErrorCode::Cancelled => Kind::Internal,
            ErrorCode::Protocol
            | ErrorCode::Busy
            | ErrorCode::ShuttingDown
            | ErrorCode::Lost
            | ErrorCode::Peer => Kind::Network,
            ErrorCode::RowTooLarge | ErrorCode::Limit | ErrorCode::Stalled => Kind::Limits,
            ErrorCode::Data => Kind::Data,
            _ => Kind::Source,
        };
        Self {
            hint: failure.hint,
            position: failure.position.map(|(line, column)| Position { line, column }),
            needed_bytes: failure.needed_bytes,
            ..Self::new(kind, failure.message)
        }
    }
}

impl From<TransportError> for CliError {
    fn from(error: TransportError) -> Self {
        let message = error.to_string();
        match error {
            TransportError::Failed(failure) => failure.into(),
            // The record of an alert, with which TLS answers what is none.
            TransportError::Wire(lightship_wire::WireError::Magic { found: [0x15, 0x03, ..] }) => {
                Self::new(Kind::Network, message)
                    .hint("the node takes only TLS: add ?tls=true, and &ca=FILE for an own authority")
            }
            TransportError::Wire(lightship_wire::WireError::Arrow(_)) => Self::new(Kind::Data, message),
            TransportError::Config(_) => Self::new(Kind::Usage, message)
                .hint("give --tls-cert, --tls-key and --token, or --insecure if the network is trusted"),
            TransportError::Token { .. } => Self::new(Kind::Usage, message),
            TransportError::Tls(_) => Self::new(Kind::Network, message),
            TransportError::Connect { .. } => Self::new(Kind::Network, message)
                .hint("is a node listening there? start one with `lightship node`"),
            TransportError::Unwelcome { .. } => Self::new(Kind::Network, message).hint(
                "the host can be reached: either no node listens on this port, or it is too busy to answer; try again",
            ),
            TransportError::Listen { source, .. } => {
                let this = Self::new(Kind::Network, message);
                match listen_hint(source.kind(), "--listen") {
                    Some(hint) => this.hint(hint),
                    None => this,
                }
            }
            _ => Self::new(Kind::Network, message),
        }
    }
}

/// What can be done where `option` has named an address that can't be listened on.
pub(crate) fn listen_hint(kind: ErrorKind, option: &str) -> Option<String> {
    match kind {
        ErrorKind::AddrInUse => Some(format!(
            "another process listens there: stop it, or give {option} another port; port 0 picks a free port"
        )),
        ErrorKind::PermissionDenied => Some("ports below 1024 are the system's: choose a higher one".into()),
        ErrorKind::AddrNotAvailable => Some(format!("{option} takes an address of this host")),
        _ => None,
    }
}

impl From<ProfileError> for CliError {
    fn from(error: ProfileError) -> Self {
        let this = Self::new(Kind::Source, error.to_string());
        match error {
            ProfileError::Damaged { .. } | ProfileError::OtherVersion { .. } => {
                this.hint("measure the link again: lightship calibrate URI")
            }
            _ => this,
        }
    }
}

impl From<NetbenchError> for CliError {
    fn from(error: NetbenchError) -> Self {
        let message = error.to_string();
        match error {
            NetbenchError::Listen { source, .. } => {
                let this = Self::new(Kind::Network, message);
                match listen_hint(source.kind(), "--listen") {
                    Some(hint) => this.hint(hint),
                    None => this,
                }
            }
            NetbenchError::Host { fault, .. } if fault.is_too_many_files() => {
                Self::new(Kind::Limits, message)
                    .hint("`ulimit -n 65536` allows more, in this shell; where it is refused, ask root")
            }
            NetbenchError::Host { fault, .. } => {
                let this = Self::new(Kind::Network, message);
                match fault {
                    Fault::Connect(_) | Fault::NoAnswer(_) => this.hint(
                        "is a server there? start one with `lightship netbench serve --listen 0.0.0.0`",
                    ),
                    Fault::Foreign | Fault::HungUp | Fault::Broke(_) => {
                        this.hint("a node is no server for this: start `lightship netbench serve` beside it")
                    }
                    _ => this,
                }
            }
            NetbenchError::Io { source, .. } if source.kind() == ErrorKind::StorageFull => {
                Self::new(Kind::Limits, message)
                    .hint("nothing was left half written; make room and try again")
            }
            NetbenchError::Io { .. } => Self::new(Kind::Source, message),
            NetbenchError::Damaged { .. } => Self::new(Kind::Source, message)
                .hint("it is left as it is: move it away, or write to another folder with --output"),
            _ => Self::internal(message),
        }
    }
}

impl From<TunerError> for CliError {
    fn from(error: TunerError) -> Self {
        let this = Self::usage(error.to_string());
        match error {
            TunerError::RowTooLarge { .. } => {
                this.hint("a batch holds one row at least: raise --batch-bytes-max and --memory")
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
            OverlayError::Stopped { .. } => Self::new(Kind::Interrupted, message),
            OverlayError::Nodes { nodes, below, above, .. } => {
                let this = Self::usage(message);
                let fits = [above, below].into_iter().flatten();
                match fits.min_by_key(|fits| fits.abs_diff(nodes)) {
                    Some(nodes) => this.hint(format!(
                        "--nodes {nodes}, or a topology that any number can have: --topology circulant"
                    )),
                    None => this,
                }
            }
            OverlayError::OddSockets { sockets, .. } => {
                Self::usage(message).hint(format!("--degree {}", sockets - 1))
            }
            OverlayError::Unconnected { .. } => {
                Self::usage(message).hint("add an offset that they don't share it with; 1 always will do")
            }
            _ => Self::usage(message),
        }
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Source(error) => error.into(),
            EngineError::Config(message) => Self::usage(message),
            error => error.to_failure().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_upon_is_shown() {
        let text = "a\u{1b}[2Jb\rc\u{9b}d\u{202e}e\n\tf é ☃";
        assert_eq!(printable(text), "a\\u{1b}[2Jb\\u{d}c\\u{9b}d\\u{202e}e\n\tf é ☃");
        let json = serde_json::to_string(text).expect("JSON");
        let shown = printable_json(&json);
        assert_eq!(shown, r#""a\u001b[2Jb\rc\u009bd\u202ee\n\tf é ☃""#);
        assert_eq!(serde_json::from_str::<String>(&shown).expect("JSON"), text);
    }
}
