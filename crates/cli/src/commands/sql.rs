//! The query of a command: an argument, a file, or standard input.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use lightship::ErrorKind;

use crate::error::CliError;

/// No source takes a longer query.
const SQL_BYTES_MAX: u64 = 16 << 20;

/// The SQL query to run at the source.
#[derive(Args)]
pub(crate) struct SqlArgs {
    /// SQL query to run at the source; `-` reads it from standard input.
    #[arg(value_name = "SQL", conflicts_with = "file")]
    sql: Option<String>,
    /// Read the SQL query from this file instead; `-` is standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl SqlArgs {
    /// The query.
    ///
    /// # Errors
    /// If no query was given, or its file can't be read.
    pub(crate) async fn read(self) -> Result<String, CliError> {
        // On a thread of its own: a terminal may be typed at for long, and an interrupt must end that.
        let read = tokio::task::spawn_blocking(|| self.read_blocking());
        read.await.map_err(|error| CliError::internal(error.to_string()))?
    }

    /// Takes the query from the first positional argument if it is the only one: files may be named by options.
    pub(crate) fn take_from(&mut self, first: &mut Option<String>) {
        if self.sql.is_none() && self.file.is_none() {
            self.sql = first.take();
        }
    }

    /// Refuses to read the query from standard input.
    ///
    /// # Errors
    /// If it is to be read from there.
    pub(crate) fn not_from_stdin(&self) -> Result<(), CliError> {
        let is_stdin = self.sql.as_deref() == Some("-") || self.file.as_deref() == Some(Path::new("-"));
        match is_stdin {
            true => Err(CliError::usage("standard input can't be both the query and a table")
                .hint("give the query as an argument, or in a file with --file")),
            false => Ok(()),
        }
    }

    fn read_blocking(self) -> Result<String, CliError> {
        match (self.sql.as_deref(), self.file) {
            (Some("-"), _) => read_stdin(),
            (Some(sql), _) => Ok(sql.to_owned()),
            (None, Some(path)) if path == Path::new("-") => read_stdin(),
            (None, Some(path)) => read_file(&path, "--file"),
            (None, None) => {
                Err(CliError::usage("no query: expected SQL, --file FILE, or `-` for standard input"))
            }
        }
    }
}

/// The text of a file that `argument` names.
pub(super) fn read_file(path: &Path, argument: &str) -> Result<String, CliError> {
    let name = format!("{argument} {}", path.display());
    // The file is an argument of the command, not a source.
    let file = File::open(path).map_err(|error| CliError::usage(format!("{name}: {error}")))?;
    read(file, &name, ErrorKind::Usage)
}

/// The text of standard input.
pub(super) fn read_stdin() -> Result<String, CliError> {
    read(std::io::stdin().lock(), "standard input", ErrorKind::Source)
}

fn read(reader: impl Read, name: &str, kind: ErrorKind) -> Result<String, CliError> {
    let fail = |error: std::io::Error| CliError::new(kind, format!("{name}: {error}"));
    let mut bytes = Vec::new();
    reader.take(SQL_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > SQL_BYTES_MAX {
        return Err(CliError::usage(format!("{name}: a query of more than 16 MiB")));
    }
    let sql =
        String::from_utf8(bytes).map_err(|_| CliError::usage(format!("{name}: the query is not UTF-8")))?;
    // Editors of some systems put it at the beginning.
    Ok(sql.strip_prefix('\u{feff}').map_or(sql.clone(), str::to_owned))
}
