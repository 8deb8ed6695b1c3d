//! The commands of the shell itself, which begin with `\`.

use std::path::PathBuf;

use crate::error::CliError;

/// A command, after its `\`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ShellCommand {
    Help,
    Quit,
    Tables,
    Columns(String),
    Connect(String),
    Output(PathBuf),
    Include(PathBuf),
    Format(String),
    Pager(Option<bool>),
    Timing(Option<bool>),
    Report,
    Explain { sql: String, analyze: bool },
}

/// What `\?` prints.
pub(super) const HELP: &str = r"Statements end with `;` and may have several lines. Ctrl-C clears the line, or cancels
the query that runs; Ctrl-D quits; Tab completes names; Ctrl-R searches the history;
Ctrl-O opens $EDITOR.

  \d              list the tables
  \d TABLE        list the columns of a table
  \explain SQL    show how a node runs a query
  \analyze SQL    run it there, and show what was measured
  \o FILE         write the next result to a file (.parquet, .csv, .json, .arrow)
  \format NAME    show results as table, csv or json
  \i FILE         run the statements of a file
  \report         show the plan and the statistics of the last query, as JSON
  \timing on|off  print rows, bytes and time of each query
  \pager on|off   show long results in $PAGER
  \c URI          connect to another source
  \q              quit
";

impl ShellCommand {
    pub(super) fn parse(line: &str) -> Result<Self, CliError> {
        let line = line.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
        let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let argument = argument.trim();
        let required = |what: &str| match argument {
            "" => Err(CliError::usage(format!("\\{name}: {what} is missing"))),
            argument => Ok(argument.to_owned()),
        };
        let command = match name {
            "?" | "h" | "help" => Self::Help,
            "q" | "quit" => Self::Quit,
            "d" | "dt" if argument.is_empty() => Self::Tables,
            "d" => Self::Columns(argument.to_owned()),
            "c" | "connect" => Self::Connect(required("a URI")?),
            "o" => Self::Output(required("the name of a file")?.into()),
            "i" => Self::Include(required("the name of a file")?.into()),
            "format" => Self::Format(required("table, csv or json")?),
            "pager" => Self::Pager(switch(name, argument)?),
            "timing" => Self::Timing(switch(name, argument)?),
            "report" => Self::Report,
            "explain" => Self::Explain { sql: required("a query")?, analyze: false },
            "analyze" => Self::Explain { sql: required("a query")?, analyze: true },
            _ => {
                return Err(
                    CliError::usage(format!("\\{name}: no such command")).hint(r"\? lists the commands")
                );
            }
        };
        Ok(command)
    }
}

/// `None` means the opposite of what is set.
fn switch(name: &str, argument: &str) -> Result<Option<bool>, CliError> {
    match argument {
        "" => Ok(None),
        "on" => Ok(Some(true)),
        "off" => Ok(Some(false)),
        _ => Err(CliError::usage(format!("\\{name}: expected on or off, not `{argument}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_arguments_that_they_need() {
        let parse = |line: &str| ShellCommand::parse(line).map_err(|error| error.error.message);
        assert_eq!(parse("d"), Ok(ShellCommand::Tables));
        assert_eq!(parse("d;"), Ok(ShellCommand::Tables));
        assert_eq!(parse("q ; "), Ok(ShellCommand::Quit));
        assert_eq!(parse("d  public.orders;"), Ok(ShellCommand::Columns("public.orders".into())));
        assert_eq!(parse("timing"), Ok(ShellCommand::Timing(None)));
        assert_eq!(parse("timing off"), Ok(ShellCommand::Timing(Some(false))));
        assert_eq!(parse("timing often"), Err(r"\timing: expected on or off, not `often`".into()));
        assert_eq!(parse("o"), Err(r"\o: the name of a file is missing".into()));
        assert_eq!(parse("x"), Err(r"\x: no such command".into()));
        let sql = "select 1".to_owned();
        assert_eq!(parse("explain select 1;"), Ok(ShellCommand::Explain { sql, analyze: false }));
    }
}
