//! Where rows and reports are written.

use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use lightship::{Format, Location, Report, WriteOptions, WriteTarget};
use lightship_sources::writers::{FileMode, TextOptions, check_target, write_file};
use terminal_size::{Width, terminal_size_of};

use crate::error::CliError;
use crate::progress::Progress;
use crate::size::{Size, grouped};

/// Where rows are written, and how.
#[derive(Args)]
pub(crate) struct OutputArgs {
    /// File to write, or object (s3://BUCKET/KEY, gs://…, az://…); `-` is stdout, the default.
    ///
    /// The name says how: .parquet, .arrow, .csv, .tsv (tabs), .psv (|), .json; .gz or .zst after CSV and JSON compress
    /// them. Options of text follow the name: 'FILE?delimiter=;&header=false&quote=%27&null=NA&compression=gzip'.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Output format: arrow, stream, parquet, csv, json, table, or vertical, a table with one value on each
    /// line. [default: by the extension of the file]
    #[arg(long)]
    format: Option<String>,
    /// Number of rows that the table format shows; further rows are only counted.
    #[arg(long, value_name = "N", default_value_t = 40)]
    table_rows: usize,
}

/// What is reported of a transfer.
#[derive(Args)]
pub(crate) struct ReportArgs {
    /// Write the plan and the statistics of the transfer to this file, as JSON; `-` is stdout.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Print no progress bar and no summary.
    #[arg(short, long)]
    quiet: bool,
}

impl ReportArgs {
    pub(crate) fn progress(&self, json: bool) -> Progress {
        Progress::new(self.quiet || json)
    }

    /// Fails if the file of `--stats` can't be written, before the query runs. `has_rows` says whether rows are
    /// written to stdout.
    pub(crate) fn check(&self, has_rows: bool) -> Result<(), CliError> {
        match &self.stats {
            Some(path) if is_stdout(path) && has_rows => {
                Err(CliError::usage("--stats - and the rows would both be written to stdout")
                    .hint("write the rows to a file with -o FILE, or the statistics with --stats FILE"))
            }
            Some(path) if !is_stdout(path) => {
                Ok(check_target(WriteTarget::File(path.clone()), FileMode::Replace)?)
            }
            _ => Ok(()),
        }
    }

    /// Reports what happened, on stderr and in the file of `--stats`.
    pub(crate) fn finish(&self, report: &Report, json: bool) -> Result<(), CliError> {
        let internal = |e: serde_json::Error| CliError::internal(e.to_string());
        if let Some(path) = &self.stats {
            let text = serde_json::to_string_pretty(report).map_err(internal)?;
            match is_stdout(path) {
                true => writeln!(std::io::stdout(), "{text}").map_err(|source| {
                    lightship_sources::SourceError::Io { path: "standard output".into(), source }
                })?,
                false => drop(write_file(path, (text + "\n").as_bytes())?),
            }
        }
        match (self.quiet, json) {
            (true, _) => {}
            (false, true) => crate::say!("{}", serde_json::to_string(report).map_err(internal)?),
            (false, false) => crate::say!("{}", summary(report)),
        }
        Ok(())
    }
}

impl OutputArgs {
    /// The file or stream of `--output`, its format and how it is written. Fails if the file can't be opened.
    pub(crate) fn destination(&self, json: bool) -> Result<(WriteTarget, Format, WriteOptions), CliError> {
        let split = self.output.as_deref().map(TextOptions::split).transpose()?;
        let (path, text) = split.map_or_else(Default::default, |(path, text)| (Some(path), text));
        let (target, format) = self.target(path.as_deref(), json)?;
        check_target(target.clone(), FileMode::Replace)?;
        // On a terminal a table is cut to its width.
        let width = match target {
            WriteTarget::Stdout => terminal_width(),
            _ => None,
        };
        let options =
            WriteOptions { text, table_rows: self.table_rows, table_width: width, ..WriteOptions::default() };
        Ok((target, format, options))
    }

    fn target(&self, path: Option<&Path>, json: bool) -> Result<(WriteTarget, Format), CliError> {
        let named = self.format.as_deref().map(Format::from_str).transpose()?;
        match path {
            Some(path) if !is_stdout(path) => {
                let format = named.or_else(|| Format::from_path(path)).ok_or_else(|| {
                    CliError::usage(format!("{}: cannot infer the format from the file name", path.display()))
                        .hint("give the format with --format arrow|stream|parquet|csv|json|table|vertical")
                })?;
                Ok((write_target(path)?, format))
            }
            _ => {
                if json && matches!(named, Some(Format::Csv | Format::Table | Format::Vertical)) {
                    let name = self.format.as_deref().unwrap_or_default();
                    return Err(CliError::usage(format!(
                        "--json prints rows as JSON lines, which contradicts --format {name}"
                    ))
                    .hint("leave out one of them; --stats FILE writes the report as JSON for any format"));
                }
                let terminal = std::io::stdout().is_terminal();
                let format = named.unwrap_or(match (json, terminal) {
                    (true, _) => Format::Json,
                    (false, true) => Format::Table,
                    (false, false) => Format::Csv,
                });
                if terminal && matches!(format, Format::ArrowFile | Format::ArrowStream | Format::Parquet) {
                    return Err(CliError::usage("a binary format can't be written to a terminal")
                        .hint("write to a file with -o FILE, or to a pipe"));
                }
                Ok((WriteTarget::Stdout, format))
            }
        }
    }
}

/// The width of the terminal that stdout is, in cells.
pub(super) fn terminal_width() -> Option<usize> {
    terminal_size_of(std::io::stdout()).map(|(Width(width), _)| width.into())
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The file or object that a path or URI names.
pub(super) fn write_target(given: &Path) -> Result<WriteTarget, CliError> {
    let Some(uri) = given.to_str().filter(|given| given.contains("://")) else {
        return Ok(WriteTarget::File(given.to_owned()));
    };
    match Location::parse(uri)? {
        Location::Path(path) => Ok(WriteTarget::File(path)),
        Location::Object(object) => Ok(WriteTarget::Object(object)),
        other => Err(CliError::usage(format!("{other} is neither a file nor an object"))
            .hint("`lightship copy` writes to databases and nodes")),
    }
}

/// The summary on stderr, one line.
pub(super) fn summary(report: &Report) -> String {
    let rate = if report.seconds > 0.0 { (report.bytes_arrow as f64 / report.seconds) as u64 } else { 0 };
    // Shared memory is not a wire. If rows came partly through both, neither is named.
    let by = report.carrier.as_deref().map(|carrier| match carrier {
        "tcp" | "unix" => "on the wire".to_owned(),
        other => format!("through {other}"),
    });
    let wire = report.bytes_wire.zip(by).map(|(b, by)| format!(", {} {by}", Size(b))).unwrap_or_default();
    let from = match report.sources.len() {
        0 | 1 => String::new(),
        places => format!(" from {places} sources"),
    };
    let peak = report.peak_memory_bytes.map(|b| format!(", peak memory {}", Size(b))).unwrap_or_default();
    format!(
        "{} {}{from}, {} in {:.2} s ({}/s){wire}{peak}",
        grouped(report.rows),
        if report.rows == 1 { "row" } else { "rows" },
        Size(report.bytes_arrow),
        report.seconds,
        Size(rate),
    )
}
