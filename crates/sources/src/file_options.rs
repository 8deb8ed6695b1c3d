//! How a file is read, where its name and its contents do not say: the query part of its location.
//!
//! `sales.csv?delimiter=;&header=false` is the file `sales.csv` with two options. The flags of the commands have the
//! same names, and end up in the same place.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use arrow_schema::{DataType, TimeUnit};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};

use crate::{Result, SourceError};

/// The names of all options.
const NAMES: [&str; 13] = [
    "format",
    "compression",
    "encoding",
    "delimiter",
    "header",
    "quote",
    "escape",
    "null",
    "types",
    "all-text",
    "sample",
    "sheet",
    "range",
];

/// What a query part can't hold as it is.
const RESERVED: &AsciiSet = &CONTROLS.add(b'%').add(b'&').add(b'#');

/// What the bytes of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileFormat {
    /// Apache Parquet.
    Parquet,
    /// Values separated by a delimiter.
    Csv,
    /// JSON objects: one on each line, one after the other, or in an array.
    Json,
    /// Arrow IPC, file or stream.
    Arrow,
    /// Avro object container files.
    Avro,
    /// Workbooks of Excel, and OpenDocument spreadsheets.
    Excel,
}

impl FileFormat {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parquet => "Parquet",
            Self::Csv => "CSV",
            Self::Json => "JSON",
            Self::Arrow => "Arrow",
            Self::Avro => "Avro",
            Self::Excel => "Excel",
        }
    }

    /// The formats that have an option.
    pub fn with_option(option: &str) -> &'static [Self] {
        match option {
            "delimiter" | "quote" | "escape" => &[Self::Csv],
            "header" | "null" => &[Self::Csv, Self::Excel],
            "compression" | "encoding" => &[Self::Csv, Self::Json],
            "types" | "all-text" | "sample" => &[Self::Csv, Self::Json, Self::Excel],
            "sheet" | "range" => &[Self::Excel],
            _ => &[Self::Parquet, Self::Csv, Self::Json, Self::Arrow, Self::Avro, Self::Excel],
        }
    }
}

/// How the bytes of a file are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compression {
    /// They are not.
    None,
    /// gzip, one or more members.
    Gzip,
    /// Zstandard, one or more frames.
    Zstd,
    /// bzip2, one or more streams.
    Bzip2,
    /// xz, one or more streams.
    Xz,
}

/// The records of each file from which the types of its columns are inferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sample {
    /// So many at its beginning.
    Records(u64),
    /// All.
    All,
}

/// How a file is read. What is `None` follows from the file's name or its contents, or is the default of its format.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileOptions {
    /// `format`.
    pub format: Option<FileFormat>,
    /// `compression`.
    pub compression: Option<Compression>,
    /// `encoding`: a label of the Encoding Standard, such as `latin1`.
    pub encoding: Option<String>,
    /// `delimiter`: separates the values of a record.
    pub delimiter: Option<u8>,
    /// `header`: whether the first record has the names of the columns.
    pub header: Option<bool>,
    /// `quote`: encloses values; `Some(None)` if no character does.
    pub quote: Option<Option<u8>>,
    /// `escape`: precedes a quote inside quotes, in place of another quote.
    pub escape: Option<u8>,
    /// `null`, several times: texts without quotes that are NULL, as an empty one is.
    pub nulls: Vec<String>,
    /// `types`: columns, and the types of their values.
    pub types: Vec<(String, DataType)>,
    /// `all-text`: all columns are text.
    pub all_text: bool,
    /// `sample`.
    pub sample: Option<Sample>,
    /// `sheet`: the name of the sheet of a workbook to read.
    pub sheet: Option<String>,
    /// `range`: the cells of the sheet to read.
    pub range: Option<CellRange>,
}

/// Cells of a sheet, by rows and columns from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellRange {
    /// Their rows.
    pub rows: RangeInclusive<u32>,
    /// Their columns.
    pub columns: RangeInclusive<u32>,
}

impl FileOptions {
    /// Splits a location into the path of a file and its options. The path is the longest part before a `?` that
    /// exists, so that a path with a `?` in its name works as it is.
    ///
    /// # Errors
    /// [`SourceError::Location`] for an unknown option, or a value that it can't have.
    pub fn split(location: &Path) -> Result<(PathBuf, Self)> {
        let bytes = location.as_os_str().as_bytes();
        let marks: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] == b'?').collect();
        let path = |end: usize| PathBuf::from(OsStr::from_bytes(&bytes[..end]));
        let existing =
            std::iter::once(bytes.len()).chain(marks.iter().rev().copied()).find(|&end| path(end).exists());
        let end = existing.or_else(|| marks.into_iter().find(|&mark| begins_options(&bytes[mark + 1..])));
        let end = end.unwrap_or(bytes.len());
        let query = bytes.get(end + 1..).unwrap_or_default();
        let options = std::str::from_utf8(query).map_err(|_| "the options are not UTF-8".to_owned());
        let options = options
            .and_then(Self::parse)
            .map_err(|reason| SourceError::Location { given: location.display().to_string(), reason })?;
        Ok((path(end), options))
    }

    /// Parses the query part of a location.
    pub(crate) fn parse(query: &str) -> std::result::Result<Self, String> {
        let mut options = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, "true"));
            let value =
                percent_decode(value.as_bytes()).decode_utf8().map_err(|_| format!("{name}: not UTF-8"))?;
            options.set(name, &value).map_err(|reason| match NAMES.contains(&name) {
                true => format!("{name}={value}: {reason}"),
                false => reason,
            })?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> std::result::Result<(), String> {
        match name {
            "format" => self.format = Some(format(value)?),
            "compression" => self.compression = Some(compression(value)?),
            "encoding" => self.encoding = Some(value.to_owned()),
            "delimiter" => self.delimiter = Some(delimiter(value)?),
            "header" => self.header = Some(boolean(value)?),
            "quote" => {
                self.quote = Some(match value {
                    "" | "none" => None,
                    one => Some(character(one)?),
                });
            }
            "escape" => self.escape = Some(character(value)?),
            "null" => self.nulls.push(value.to_owned()),
            "types" => self.types.extend(types(value)?),
            "all-text" => self.all_text = boolean(value)?,
            "sample" => self.sample = Some(value.parse()?),
            "sheet" => self.sheet = Some(value.to_owned()),
            "range" => self.range = Some(value.parse()?),
            other => return Err(format!("unknown option `{other}`; expected {}", NAMES.join(", "))),
        }
        Ok(())
    }

    /// The names of the given options that a format does not have.
    pub fn without_meaning(&self, format: FileFormat) -> Vec<&'static str> {
        let given = [
            ("compression", self.compression.is_some()),
            ("encoding", self.encoding.is_some()),
            ("delimiter", self.delimiter.is_some()),
            ("header", self.header.is_some()),
            ("quote", self.quote.is_some()),
            ("escape", self.escape.is_some()),
            ("null", !self.nulls.is_empty()),
            ("types", !self.types.is_empty()),
            ("all-text", self.all_text),
            ("sample", self.sample.is_some()),
            ("sheet", self.sheet.is_some()),
            ("range", self.range.is_some()),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name);
        given.filter(|name| !FileFormat::with_option(name).contains(&format)).collect()
    }
}

/// The compression that a file's name stands for.
pub fn compression_of(name: &Path) -> Option<Compression> {
    let extension = name.extension()?.to_str()?.to_ascii_lowercase();
    compression(&extension).ok().filter(|compression| *compression != Compression::None)
}

/// Whether a file's name stands for a compression.
pub fn is_compressed(name: &Path) -> bool {
    compression_of(name).is_some()
}

/// Whether a text begins as options do, and not as the rest of a pattern such as `a?b.csv`.
fn begins_options(text: &[u8]) -> bool {
    let name =
        text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')).count();
    match text.get(name) {
        Some(b'=') => name > 0,
        None | Some(b'&') => NAMES.iter().any(|known| known.as_bytes() == &text[..name]),
        Some(_) => false,
    }
}

/// The options as the query part of a location.
pub(crate) fn query_part(options: &[(&str, String)]) -> String {
    let pair = |(name, value): &(&str, String)| format!("{name}={}", utf8_percent_encode(value, RESERVED));
    options.iter().map(pair).collect::<Vec<_>>().join("&")
}

/// Splits the name of an object, which can't be looked for, at the first `?` that options follow.
pub(crate) fn split_name(name: &str) -> (&str, &str) {
    let mut marks = name.match_indices('?').map(|(at, _)| at);
    let mark = marks.find(|mark| begins_options(&name.as_bytes()[mark + 1..]));
    mark.map_or((name, ""), |mark| (&name[..mark], &name[mark + 1..]))
}

/// The location of a file with these options, which are pairs of a name and a value. The options that the location
/// has already take precedence.
pub fn with_file_options(location: &Path, options: &[(&str, String)]) -> PathBuf {
    if options.is_empty() {
        return location.to_owned();
    }
    let bytes = location.as_os_str().as_bytes();
    let path = FileOptions::split(location).map_or_else(|_| location.to_owned(), |(path, _)| path);
    let mut with = path.as_os_str().to_owned();
    with.push("?");
    with.push(query_part(options));
    if let Some(own) = bytes.get(path.as_os_str().len() + 1..) {
        with.push("&");
        with.push(OsStr::from_bytes(own));
    }
    with.into()
}

fn format(name: &str) -> std::result::Result<FileFormat, String> {
    Ok(match name {
        "parquet" => FileFormat::Parquet,
        "csv" => FileFormat::Csv,
        "json" | "jsonl" | "ndjson" => FileFormat::Json,
        "arrow" | "arrows" | "stream" => FileFormat::Arrow,
        "avro" => FileFormat::Avro,
        "excel" | "xlsx" | "xls" => FileFormat::Excel,
        _ => return Err("expected csv, json, parquet, arrow, avro or excel".into()),
    })
}

fn compression(name: &str) -> std::result::Result<Compression, String> {
    Ok(match name {
        "none" => Compression::None,
        "gzip" | "gz" => Compression::Gzip,
        "zstd" | "zst" => Compression::Zstd,
        "bzip2" | "bz2" => Compression::Bzip2,
        "xz" => Compression::Xz,
        _ => return Err("expected none, gzip, zstd, bzip2 or xz".into()),
    })
}

fn boolean(text: &str) -> std::result::Result<bool, String> {
    match text {
        "true" | "yes" | "1" => Ok(true),
        "false" | "no" | "0" => Ok(false),
        _ => Err("expected true or false".into()),
    }
}

fn character(text: &str) -> std::result::Result<u8, String> {
    match text.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r') => Ok(*byte),
        _ => Err("expected one ASCII character".into()),
    }
}

fn delimiter(text: &str) -> std::result::Result<u8, String> {
    match text {
        "tab" | "\\t" => Ok(b'\t'),
        "space" => Ok(b' '),
        one => character(one).map_err(|reason| format!("{reason}, `tab` or `space`")),
    }
}

impl FromStr for Sample {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            number => {
                let records = number.parse().ok().filter(|&records| records > 0);
                records.map(Self::Records).ok_or_else(|| "expected a number of records, or all".into())
            }
        }
    }
}

impl FromStr for CellRange {
    type Err = String;

    /// Parses `A3:D100`; without a row or a column after the colon, all that follow.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let expected = || "expected cells, as in A3:D100, A3:D or A3:".to_owned();
        let (first, last) = text.split_once(':').ok_or_else(expected)?;
        let (Some((Some(column), Some(row))), Some((last_column, last_row))) = (cell(first), cell(last))
        else {
            return Err(expected());
        };
        let (last_column, last_row) = (last_column.unwrap_or(u32::MAX), last_row.unwrap_or(u32::MAX));
        if column > last_column || row > last_row {
            return Err(expected());
        }
        Ok(Self { rows: row..=last_row, columns: column..=last_column })
    }
}

/// The column and the row of a cell such as `C4`, from 0, as far as they are given.
fn cell(name: &str) -> Option<(Option<u32>, Option<u32>)> {
    let digits = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    let (letters, number) = name.split_at(digits);
    let column = letters.bytes().try_fold(0_u32, |column, letter| {
        let place =
            letter.is_ascii_alphabetic().then(|| u32::from(letter.to_ascii_uppercase() - b'A') + 1)?;
        column.checked_mul(26)?.checked_add(place)
    })?;
    let row = if number.is_empty() { None } else { Some(number.parse::<u32>().ok()?.checked_sub(1)?) };
    Some((column.checked_sub(1), row))
}

/// Columns and their types, as in `a=text,"b, c"=decimal(20,4)`.
fn types(text: &str) -> std::result::Result<Vec<(String, DataType)>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, after) = match rest.strip_prefix('"') {
            None => rest.split_once('=').map(|(name, after)| (name.trim().to_owned(), after)),
            Some(quoted) => quoted_name(quoted)
                .and_then(|(name, after)| after.trim_start().strip_prefix('=').map(|after| (name, after))),
        }
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| format!("expected COLUMN=TYPE at `{rest}`"))?;
        // A comma in parentheses belongs to the type.
        let mut depth = 0;
        let end = after.find(|c: char| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            c == ',' && depth == 0
        });
        let (name_of_type, next) = after.split_at(end.unwrap_or(after.len()));
        found.push((name, data_type(name_of_type)?));
        rest = next.strip_prefix(',').unwrap_or(next).trim_start();
    }
    Ok(found)
}

/// A name up to its closing quote, and what follows.
fn quoted_name(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"')?;
        name.push_str(part);
        match after.strip_prefix('"') {
            Some(more) => {
                name.push('"');
                rest = more;
            }
            None => return Some((name, after)),
        }
    }
}

/// A type by its name in SQL.
fn data_type(name: &str) -> std::result::Result<DataType, String> {
    let name = name.trim().to_ascii_lowercase();
    if let Some(digits) = name.strip_prefix("decimal").or_else(|| name.strip_prefix("numeric")) {
        let inner = digits.trim().strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
        let (precision, scale) = match inner {
            None if digits.is_empty() => ("38", "10"),
            None => ("", ""),
            Some(inner) => inner.split_once(',').unwrap_or((inner, "0")),
        };
        return match (precision.trim().parse(), scale.trim().parse()) {
            (Ok(precision @ 1..=38_u8), Ok(scale)) if (0..=precision as i8).contains(&scale) => {
                Ok(DataType::Decimal128(precision, scale))
            }
            _ => Err(format!("`{name}`: expected decimal(PRECISION,SCALE) of at most 38 digits")),
        };
    }
    Ok(match name.as_str() {
        "text" | "varchar" | "string" => DataType::Utf8,
        "boolean" | "bool" => DataType::Boolean,
        "smallint" | "int2" => DataType::Int16,
        "integer" | "int" | "int4" => DataType::Int32,
        "bigint" | "int8" => DataType::Int64,
        "real" | "float4" => DataType::Float32,
        "double" | "double precision" | "float8" => DataType::Float64,
        "date" => DataType::Date32,
        "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "timestamptz" | "timestamp with time zone" => {
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
        }
        _ => {
            return Err(format!(
                "unknown type `{name}`; expected text, boolean, smallint, integer, bigint, real, double, \
                 decimal(PRECISION,SCALE), date, timestamp or timestamptz"
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> FileOptions {
        FileOptions::parse(query).unwrap()
    }

    #[test]
    fn ranges_of_cells_are_parsed() {
        let range = |text: &str| text.parse::<CellRange>().map(|range| (range.rows, range.columns));
        assert_eq!(range("A1:A1"), Ok((0..=0, 0..=0)));
        assert_eq!(range("b3:Aa100"), Ok((2..=99, 1..=26)));
        assert_eq!(range("A3:D"), Ok((2..=u32::MAX, 0..=3)));
        assert_eq!(range("A3:"), Ok((2..=u32::MAX, 0..=u32::MAX)));
        assert_eq!(range("A3:9"), Ok((2..=8, 0..=u32::MAX)));
        for wrong in
            ["", "A3", "A:B2", "3:B4", "B1:A2", "A2:A1", "A0:B2", "A1:ZZZZZZZZ9", "A1:B2:C3", "Ä1:B2"]
        {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_are_parsed() {
        let options =
            parse("delimiter=;&header=false&quote='&escape=\\&null=NA&null=-&sample=all&encoding=latin1");
        assert_eq!(
            (options.delimiter, options.header, options.quote),
            (Some(b';'), Some(false), Some(Some(b'\'')))
        );
        assert_eq!((options.escape, options.sample), (Some(b'\\'), Some(Sample::All)));
        assert_eq!(options.nulls, ["NA", "-"]);
        for tab in ["tab", "\\t", "%09", "\t"] {
            assert_eq!(parse(&format!("delimiter={tab}")).delimiter, Some(b'\t'));
        }
        assert_eq!(parse("delimiter=%26&quote=none").delimiter, Some(b'&'));
        assert!(parse("all-text").all_text);
        let types = parse("types=a=text, \"b,\"\"=\"=decimal(20,4),c = timestamptz").types;
        let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let expected = [("a", DataType::Utf8), ("b,\"=", DataType::Decimal128(20, 4)), ("c", utc)];
        assert_eq!(types, expected.map(|(name, of)| (name.to_owned(), of)));
    }

    #[test]
    fn invalid_options_are_refused_with_what_is_expected() {
        for (query, expected) in [
            ("delimiter=ab", "delimiter=ab: expected one ASCII character, `tab` or `space`"),
            ("delimiter=é", "one ASCII character"),
            ("header=maybe", "true or false"),
            ("colour=red", "unknown option `colour`; expected format, "),
            ("types=a", "expected COLUMN=TYPE at `a`"),
            ("types=a=money", "unknown type `money`"),
            ("types=a=decimal(39,2)", "at most 38 digits"),
            ("types=a=decimal(5,6)", "at most 38 digits"),
            ("sample=0", "a number of records, or all"),
            ("compression=rar", "zstd"),
        ] {
            let message = FileOptions::parse(query).unwrap_err();
            assert!(message.contains(expected), "{query}: {message}");
        }
    }

    #[test]
    fn a_question_mark_may_be_part_of_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| folder.path().join(name);
        std::fs::write(of("a?delimiter=x.csv"), "").unwrap();
        std::fs::write(of("b.csv"), "").unwrap();
        for (location, path, delimiter) in [
            ("a?delimiter=x.csv", "a?delimiter=x.csv", None),
            ("a?delimiter=x.csv?delimiter=;", "a?delimiter=x.csv", Some(b';')),
            ("b.csv?delimiter=?", "b.csv", Some(b'?')),
            ("b.csv?", "b.csv", None),
            // None of these exists.
            ("c.csv?delimiter=;", "c.csv", Some(b';')),
            ("c.csv?all-text", "c.csv", None),
            ("d?.csv", "d?.csv", None),
            ("d-??.csv?delimiter=;", "d-??.csv", Some(b';')),
        ] {
            let (found, options) = FileOptions::split(&of(location)).unwrap();
            assert_eq!((found, options.delimiter), (of(path), delimiter), "{location}");
        }
        assert!(FileOptions::split(&of("b.csv?x")).is_err());
    }

    #[test]
    fn options_are_added_to_a_location_and_its_own_take_precedence() {
        let given = [("delimiter", "&".to_owned()), ("null", "a=%".to_owned())];
        for (location, delimiter) in [("x.csv", b'&'), ("x.csv?delimiter=;", b';')] {
            let (path, options) =
                FileOptions::split(&with_file_options(Path::new(location), &given)).unwrap();
            assert_eq!(path, Path::new("x.csv"));
            assert_eq!((options.delimiter, options.nulls), (Some(delimiter), vec!["a=%".to_owned()]));
        }
        assert_eq!(with_file_options(Path::new("x.csv"), &[]), Path::new("x.csv"));
    }
}
