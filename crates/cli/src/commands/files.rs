//! Files as tables: which ones, and how they are read.

use clap::Args;
use lightship::{Location, files, is_stdin};
use lightship_sources::file_options::with_file_options;

use crate::error::CliError;

/// How files are read. In the location of a file, these are its query part, as in `sales.csv?delimiter=;&header=false`;
/// there they concern only this file.
#[derive(Args)]
#[command(next_help_heading = "Files")]
pub(crate) struct FileArgs {
    /// Format of the files: csv, json, parquet, arrow, avro or excel. [default: by name, or by content]
    #[arg(long, value_name = "FORMAT")]
    input_format: Option<String>,
    /// Compression: none, gzip, zstd, bzip2 or xz. [default: by name, or by content]
    #[arg(long, value_name = "NAME")]
    input_compression: Option<String>,
    /// Encoding of text, such as latin1 or utf-16le. [default: UTF-8, or UTF-16 after its byte order mark]
    #[arg(long, value_name = "LABEL")]
    encoding: Option<String>,
    /// Character between values: one of ASCII, `tab` or `space`. [default: by name; else by the first line]
    #[arg(long, value_name = "CHAR", allow_hyphen_values = true)]
    delimiter: Option<String>,
    /// The first record has values. The columns are called column_1, column_2 and so on.
    #[arg(long)]
    no_header: bool,
    /// Character around values, or `none`. [default: "]
    #[arg(long, value_name = "CHAR")]
    quote: Option<String>,
    /// Character before a quote inside quotes; two quotes stand for one in any case.
    #[arg(long, value_name = "CHAR")]
    escape: Option<String>,
    /// Text without quotes that is NULL, besides the empty one. Can be repeated.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    null: Vec<String>,
    /// Types of columns, as in a=text,b=decimal(20,4).
    ///
    /// Types are text, boolean, smallint, integer, bigint, real, double, decimal(PRECISION,SCALE), date, timestamp and
    /// timestamptz. A name with a comma or an equals sign is in double quotes.
    #[arg(long, value_name = "COLUMN=TYPE,...")]
    types: Option<String>,
    /// All columns are text.
    #[arg(long)]
    all_text: bool,
    /// Records of each file from which types are inferred, or `all`, which reads the files once more. [default: 1000 of
    /// CSV, 256 MiB of JSON, all of Excel]
    #[arg(long, value_name = "N|all")]
    sample: Option<String>,
    /// Name of the sheet of a workbook. [default: the first that is shown]
    #[arg(long, value_name = "NAME")]
    sheet: Option<String>,
    /// Cells of the sheet, as in A3:D100, A3:D or A3:, of which the first row has the names. [default: all]
    #[arg(long, value_name = "CELLS")]
    range: Option<String>,
}

impl FileArgs {
    fn options(&self) -> Vec<(&'static str, String)> {
        let texts = [
            ("format", &self.input_format),
            ("compression", &self.input_compression),
            ("encoding", &self.encoding),
            ("delimiter", &self.delimiter),
            ("quote", &self.quote),
            ("escape", &self.escape),
            ("types", &self.types),
            ("sample", &self.sample),
            ("sheet", &self.sheet),
            ("range", &self.range),
        ];
        let texts = texts.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
        let nulls = self.null.iter().map(|null| ("null", null.clone()));
        let header = self.no_header.then(|| ("header", "false".to_owned()));
        let all_text = self.all_text.then(|| ("all-text", "true".to_owned()));
        texts.chain(nulls).chain(header).chain(all_text).collect()
    }

    /// The sources: the given locations, with the tables in the first of them.
    ///
    /// # Errors
    /// If a location is not valid, or the options have no file to apply to.
    pub(super) fn locations<'a>(
        &self,
        uris: impl Iterator<Item = &'a str>,
        tables: &[String],
    ) -> Result<Vec<Location>, CliError> {
        let mut locations = uris.map(Location::parse).collect::<Result<Vec<_>, _>>()?;
        if !tables.is_empty() {
            let mut all = Vec::new();
            match locations.first().cloned() {
                None => {}
                Some(place @ (Location::Path(_) | Location::Object(_))) => {
                    all.push((files(&place)?.0, place))
                }
                Some(other) => {
                    let problem = format!("--table adds files to files, but {other} is not one");
                    return Err(CliError::usage(problem).hint("a node serves files and databases as tables"));
                }
            }
            for table in tables {
                all.push(named(table)?);
            }
            locations.splice(..locations.len().min(1), [Location::Tables(all)]);
        }
        let options = self.options();
        let mut files = 0;
        for place in locations.iter_mut().flat_map(places) {
            match place {
                Location::Path(path) => *path = with_file_options(path, &options),
                Location::Object(object) => object.add_file_options(&options)?,
                _ => continue,
            }
            files += 1;
        }
        match options.first() {
            Some((name, _)) if files == 0 => {
                Err(CliError::usage(format!("`{name}` is an option of files, but no source is a file")))
            }
            _ => Ok(locations),
        }
    }
}

/// The single places of a location.
fn places(location: &mut Location) -> Vec<&mut Location> {
    match location {
        Location::Tables(tables) => tables.iter_mut().map(|(_, place)| place).collect(),
        place => vec![place],
    }
}

/// A table's name and file, from NAME=PATH.
fn named(given: &str) -> Result<(String, Location), CliError> {
    let fail = || CliError::usage(format!("--table {given}: expected NAME=PATH"));
    let (name, path) =
        given.split_once('=').filter(|(name, path)| is_name(name) && !path.is_empty()).ok_or_else(fail)?;
    match Location::parse(path)? {
        place @ (Location::Path(_) | Location::Object(_)) => Ok((name.to_owned(), place)),
        other => Err(CliError::usage(format!("--table {name}: {other} is not a file"))
            .hint("a node serves tables of databases beside files")),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Whether an argument names a file as a table: NAME=PATH.
pub(super) fn is_table(given: &str) -> bool {
    given.split_once('=').is_some_and(|(name, _)| is_name(name))
}

/// Whether a location reads standard input.
pub(super) fn reads_stdin(location: &mut Location) -> bool {
    places(location).into_iter().any(|place| matches!(place, Location::Path(path) if is_stdin(path)))
}
