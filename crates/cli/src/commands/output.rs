//! Where rows and reports are written.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use lightship::{Format, Report, WriteOptions, WriteTarget};
use lightship_sources::writers::write_file;

use crate::error::CliError;
use crate::progress::Progress;
use crate::size::{Size, grouped};

/// Where rows are written, and how.
#[derive(Args)]
pub(crate) struct OutputArgs {
    /// File to write; `-` is stdout, the default.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Output format: arrow, stream, parquet, csv, json or table. [default: by the extension of the
    /// file]
    #[arg(long)]
    format: Option<String>,
    /// Number of rows that the table format shows; further rows are only counted.
    #[arg(long, value_name = "N", default_value_t = 40)]
    table_rows: usize,
}

/// What is reported of a transfer.
#[derive(Args)]
pub(crate) struct ReportArgs {
    /// Write the plan and the statistics of the transfer to this file, as JSON.
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

    /// Reports what happened, on stderr and in the file of `--stats`.
    pub(crate) fn finish(&self, report: &Report, json: bool) -> Result<(), CliError> {
        let internal = |e: serde_json::Error| CliError::internal(e.to_string());
        if let Some(path) = &self.stats {
            let text = serde_json::to_string_pretty(report).map_err(internal)?;
            write_file(path, (text + "\n").as_bytes())?;
        }
        if json {
            crate::say!("{}", serde_json::to_string(report).map_err(internal)?);
        } else if !self.quiet {
            crate::say!("{}", summary(report));
        }
        Ok(())
    }
}

impl OutputArgs {
    /// The file or stream of `--output`, and its format.
    pub(crate) fn destination(&self, json: bool) -> Result<(WriteTarget, Format), CliError> {
        let named = self.format.as_deref().map(Format::from_str).transpose()?;
        match self.output.as_deref() {
            Some(path) if path.as_os_str() != "-" => {
                let format = named.or_else(|| Format::from_path(path)).ok_or_else(|| {
                    CliError::usage(format!("{}: cannot infer the format from the file name", path.display()))
                        .hint("give the format with --format arrow|stream|parquet|csv|json|table")
                })?;
                Ok((WriteTarget::File(path.to_owned()), format))
            }
            _ => {
                if json && matches!(named, Some(Format::Csv | Format::Table)) {
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

    pub(crate) fn options(&self) -> WriteOptions {
        WriteOptions { table_rows: self.table_rows, ..WriteOptions::default() }
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
