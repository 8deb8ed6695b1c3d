//! The connection of a shell and its settings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use arrow_array::cast::AsArray as _;
use arrow_schema::DataType;
use lightship::{
    Connection, ErrorKind, Format, Location, Options, Report, SharedBytes, Target, WriteOptions, WriteTarget,
    catalog, connect, explain,
};
use tokio::task::AbortHandle;

use super::command::{HELP, ShellCommand};
use super::editor::{SharedNames, SourceNames};
use super::pager;
use super::statement::{self, Dialect, Item};
use crate::commands::explain::shown;
use crate::commands::output::{summary, terminal_width, write_target};
use crate::commands::{manual, sql};
use crate::error::CliError;
use crate::progress::Progress;

/// Maximum width of a value in a table: more than elsewhere, because the pager scrolls.
const VALUE_WIDTH: usize = 100;
/// How deep files may include each other.
const INCLUDES_MAX: usize = 16;
/// Columns that are completed.
const COLUMNS_MAX: usize = 100_000;

/// What to do after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Quit,
}

pub(super) struct Session {
    location: Location,
    options: Options,
    /// `None` if it was lost, or given up with a query.
    connection: Option<Connection>,
    names: SharedNames,
    /// Reads the names.
    learning: Option<AbortHandle>,
    format: Format,
    table_rows: usize,
    /// The file of the next result.
    output: Option<PathBuf>,
    report: Option<Report>,
    is_interactive: bool,
    is_timed: bool,
    is_paged: bool,
    json: bool,
    includes: usize,
}

/// A format that is shown on a terminal.
pub(super) fn shown_format(name: &str) -> Result<Format, CliError> {
    match name.parse()? {
        format @ (Format::Table | Format::Vertical | Format::Csv | Format::Json) => Ok(format),
        _ => Err(CliError::usage(format!("{name}: expected table, vertical, csv or json"))
            .hint(r"\o FILE writes the next result to a file, in the format of its name")),
    }
}

impl Session {
    pub(super) async fn open(
        location: Location,
        options: Options,
        format: Format,
        table_rows: usize,
        is_interactive: bool,
        json: bool,
    ) -> Result<Self, CliError> {
        let connection = connect(&location, &options).await?;
        let names = Arc::new(RwLock::new(SourceNames::none(&location)));
        let mut this = Self {
            location,
            options,
            connection: Some(connection),
            names,
            learning: None,
            format,
            table_rows,
            output: None,
            report: None,
            is_interactive,
            is_timed: is_interactive,
            is_paged: true,
            json,
            includes: 0,
        };
        this.learn_names();
        Ok(this)
    }

    pub(super) fn location(&self) -> &Location {
        &self.location
    }

    pub(super) fn names(&self) -> &SharedNames {
        &self.names
    }

    /// A short name of the source.
    pub(super) fn prompt(&self) -> String {
        let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = match &self.location {
            Location::Node { host, .. } => Some(host.clone()),
            Location::NodeUnix { path, .. } | Location::Sqlite(path) | Location::Path(path) => stem(path),
            Location::Object(object) => stem(object.as_path()).or_else(|| Some(object.bucket().to_owned())),
            Location::Postgres(uri) | Location::MySql(uri) => {
                let database = uri.split('?').next().and_then(|uri| uri.split_once("://")?.1.split_once('/'));
                database.map(|(_, name)| name.to_owned())
            }
            Location::Adbc(location) => stem(Path::new(&location.driver)),
            Location::Tables(_) => None,
        };
        let name = name.map(|name| name.chars().filter(|c| !c.is_control()).collect::<String>());
        name.filter(|name| !name.is_empty()).unwrap_or_else(|| "lightship".to_owned())
    }

    fn dialect(&self) -> Dialect {
        self.names.read().unwrap_or_else(PoisonError::into_inner).dialect
    }

    /// Runs all statements and commands of a text, until one fails.
    pub(super) async fn run_all(&mut self, text: &str) -> Result<Next, CliError> {
        if self.is_interactive {
            match text.trim() {
                "exit" | "quit" => return Ok(Next::Quit),
                "help" => return self.run_command(ShellCommand::Help).await,
                _ => {}
            }
        }
        let mut rest = text;
        while let Some(item) = statement::next(&mut rest, self.dialect()) {
            let next = match item {
                Item::Command(line) => self.run_command(ShellCommand::parse(line)?).await?,
                Item::Statement(sql) | Item::Unfinished(sql) => self.run_statement(sql).await?,
            };
            if next == Next::Quit {
                return Ok(next);
            }
        }
        Ok(Next::Continue)
    }

    /// What ran was interrupted. The connection is given up, too: the source may not have answered the query yet.
    pub(super) fn cancel(&mut self) {
        self.connection = None;
        self.includes = 0;
        crate::say!("cancelled");
    }

    async fn run_statement(&mut self, sql: &str) -> Result<Next, CliError> {
        let (target, format) = match &self.output {
            Some(path) => (write_target(path)?, Format::from_path(path).unwrap_or(Format::Csv)),
            None => (WriteTarget::Stdout, self.format),
        };
        if self.output.is_none() && self.is_interactive && matches!(format, Format::Table | Format::Vertical)
        {
            let bytes = SharedBytes::default();
            self.copy(sql, WriteTarget::Memory(bytes.clone()), format).await?;
            let text = String::from_utf8_lossy(&bytes.take()).into_owned();
            pager::show(&text, self.is_paged)
                .map_err(|error| CliError::new(ErrorKind::Source, format!("the pager: {error}")))?;
        } else {
            self.copy(sql, target, format).await?;
            // A statement that failed can be corrected before.
            self.output = None;
        }
        let Some(report) = &self.report else { return Ok(Next::Continue) };
        if self.json {
            crate::say!("{}", serde_json::to_string(report).map_err(|e| CliError::internal(e.to_string()))?);
        } else if self.is_timed {
            crate::say!("{}", summary(report));
        }
        Ok(Next::Continue)
    }

    /// Runs a query and writes its result.
    async fn copy(&mut self, sql: &str, target: WriteTarget, format: Format) -> Result<(), CliError> {
        self.report = None;
        let connection = match &mut self.connection {
            Some(connection) => connection,
            lost => lost.insert(connect(&self.location, &self.options).await?),
        };
        let options = WriteOptions {
            table_rows: self.table_rows,
            table_value_width: VALUE_WIDTH,
            // A pager scrolls to the right.
            table_width: if self.is_interactive && !self.is_paged { terminal_width() } else { None },
            ..WriteOptions::default()
        };
        let mut progress = Progress::new(!self.is_interactive || self.json);
        match connection.copy(sql, Target::File { target, format, options }, &mut progress).await {
            Ok(report) => {
                self.report = Some(report);
                Ok(())
            }
            Err(error) => {
                // The next statement connects again.
                if error.kind == ErrorKind::Network {
                    self.connection = None;
                }
                Err(error.into())
            }
        }
    }

    async fn run_command(&mut self, command: ShellCommand) -> Result<Next, CliError> {
        match command {
            ShellCommand::Quit => return Ok(Next::Quit),
            ShellCommand::Help => manual::print(HELP.as_bytes())?,
            ShellCommand::Tables => {
                self.run_statement(catalog::tables(&self.location)).await?;
                self.learn_names();
            }
            ShellCommand::Columns(table) => {
                let columns = catalog::columns(&self.location, &table);
                self.run_statement(&columns).await?;
                if self.report.as_ref().is_some_and(|report| report.rows == 0) {
                    let error = CliError::new(ErrorKind::Source, format!("there is no table {table}"));
                    return Err(error.hint(r"\d lists the tables"));
                }
            }
            ShellCommand::Connect(uri) => {
                let location = Location::parse(&uri)?;
                self.connection = Some(connect(&location, &self.options).await?);
                *self.names.write().unwrap_or_else(PoisonError::into_inner) = SourceNames::none(&location);
                self.location = location;
                self.learn_names();
            }
            ShellCommand::Output(path) => self.output = Some(path),
            ShellCommand::Include(path) => {
                if self.includes == INCLUDES_MAX {
                    return Err(CliError::usage(format!(
                        "{}: files include each other too deeply",
                        path.display()
                    )));
                }
                // It may be a pipe that nobody writes to.
                let read = tokio::task::spawn_blocking(move || sql::read_file(&path, r"\i"));
                let text = read.await.map_err(|error| CliError::internal(error.to_string()))??;
                self.includes += 1;
                let ran = Box::pin(self.run_all(&text)).await;
                self.includes -= 1;
                return ran;
            }
            ShellCommand::Format(name) => self.format = shown_format(&name)?,
            ShellCommand::Pager(on) => self.is_paged = self.switched("pager", on, self.is_paged),
            ShellCommand::Timing(on) => self.is_timed = self.switched("timing", on, self.is_timed),
            ShellCommand::Report => {
                let Some(report) = &self.report else {
                    return Err(CliError::usage("no query has succeeded yet"));
                };
                let text =
                    serde_json::to_string_pretty(report).map_err(|e| CliError::internal(e.to_string()))?;
                manual::print((text + "\n").as_bytes())?;
            }
            ShellCommand::Explain { sql, analyze } => {
                let explained = explain(&self.location, &sql, analyze).await?;
                shown(explained)?.print(self.json)?;
            }
        }
        Ok(Next::Continue)
    }

    fn switched(&self, name: &str, on: Option<bool>, was: bool) -> bool {
        let is_on = on.unwrap_or(!was);
        if self.is_interactive {
            crate::say!("{name} is {}", if is_on { "on" } else { "off" });
        }
        is_on
    }

    /// Reads the names of tables and columns for completion, over another connection, while someone types.
    fn learn_names(&mut self) {
        if !self.is_interactive {
            return;
        }
        if let Some(earlier) = self.learning.take() {
            earlier.abort();
        }
        let (location, options, names) = (self.location.clone(), self.options, self.names.clone());
        let learning = tokio::spawn(async move {
            match read_names(&location, &options).await {
                Ok(tables) => names.write().unwrap_or_else(PoisonError::into_inner).tables = tables,
                Err(error) => tracing::debug!(%error, "no names of tables for completion"),
            }
        });
        self.learning = Some(learning.abort_handle());
    }
}

/// The columns of each table.
async fn read_names(
    location: &Location,
    options: &Options,
) -> lightship::Result<BTreeMap<String, BTreeSet<String>>> {
    let mut connection = connect(location, options).await?;
    let mut result = connection.query(catalog::all_columns(location)).await?;
    let mut tables = BTreeMap::<_, BTreeSet<_>>::new();
    let mut columns_left = COLUMNS_MAX;
    // Names that would act on the terminal are not suggested.
    let is_plain = |name: &str| !name.chars().any(char::is_control);
    while let Some(batch) = result.next().await? {
        let text = |index: usize| arrow_cast::cast(batch.column(index), &DataType::Utf8).ok();
        let (Some(of), Some(columns)) = (text(1), text(2)) else { continue };
        for (table, column) in of.as_string::<i32>().iter().zip(columns.as_string::<i32>()) {
            let (Some(table), Some(column)) = (table, column) else { continue };
            if columns_left == 0 {
                return Ok(tables);
            }
            columns_left -= 1;
            if is_plain(table) && is_plain(column) {
                tables.entry(table.to_owned()).or_default().insert(column.to_owned());
            }
        }
    }
    Ok(tables)
}
