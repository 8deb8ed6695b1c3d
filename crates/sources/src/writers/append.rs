//! Adding rows to an existing file. What it holds is copied into the new file, which replaces it once it is complete, so
//! readers see all rows or the former ones. On the way it is checked that the former rows end where the new ones begin.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
use arrow_ipc::{MessageHeader, root_as_message};
use arrow_schema::{DataType, Schema, SchemaRef};

use super::Format;
use super::text_options::{Dialect, TextCompression};
use super::type_mapping::find;

/// Bytes that are copied at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum bytes of the header line of a CSV file beyond those of the expected one.
const HEADER_BYTES_MAX: u64 = 64 << 10;
/// Maximum bytes of the metadata of a message in an Arrow stream.
const METADATA_BYTES_MAX: u32 = 256 << 20;
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Why rows can't be added to a file.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The file can't be read, or the new one can't be written.
    Io(io::Error),
    /// The reason, and what can be done.
    Unfit(String, &'static str),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

const REPLACE: &str = "repair it, write to another file, or replace it with --mode replace";
const COLUMNS: &str = "select the same columns in the same order, or write to another file";

fn damaged(what: &str) -> Refusal {
    Refusal::Unfit(format!("rows can't be added to it: {what}"), REPLACE)
}

/// Refuses formats whose files can't grow.
pub(super) fn check_format(format: Format) -> Result<(), Refusal> {
    let (name, other) = match format {
        Format::Csv | Format::Json | Format::ArrowStream => return Ok(()),
        Format::Parquet => {
            ("a Parquet file", "write another file into a folder (FOLDER/), or use .csv, .json or .arrows")
        }
        Format::ArrowFile => {
            ("an Arrow file", "write another file into a folder (FOLDER/), or use a stream (.arrows)")
        }
        Format::Table | Format::Vertical => ("a table for people", "use .csv, .json or .arrows"),
    };
    Err(Refusal::Unfit(format!("rows can't be added to {name}, whose end lists all its rows"), other))
}

/// Copies what the file holds, so that rows of these columns can follow.
pub(super) fn copy(
    format: Format,
    schema: &SchemaRef,
    dialect: Option<&Dialect>,
    from: &mut File,
    to: &mut File,
) -> Result<(), Refusal> {
    if dialect.is_some_and(|dialect| dialect.compression != TextCompression::None) {
        let reason = "rows can't be added to a compressed file".to_owned();
        return Err(Refusal::Unfit(
            reason,
            "write another file into a folder (FOLDER/), or one that is not compressed",
        ));
    }
    match (format, dialect) {
        (Format::Csv, Some(dialect)) => csv(schema, dialect, from, to),
        (format, _) => copy_format(format, schema, from, to),
    }
}

fn copy_format(format: Format, schema: &SchemaRef, from: &mut File, to: &mut File) -> Result<(), Refusal> {
    match format {
        Format::Json => json(from, to),
        Format::ArrowStream => {
            let end = stream_end(schema, from)?;
            from.rewind()?;
            let copied = io::copy(&mut from.take(end), to)?;
            if copied < end { Err(damaged("it became shorter meanwhile")) } else { Ok(()) }
        }
        other => check_format(other),
    }
}

fn csv(schema: &Schema, dialect: &Dialect, from: &mut File, to: &mut File) -> Result<(), Refusal> {
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let expected: usize = names.iter().map(|name| 2 * name.len() + 3).sum();
    let start = Read::by_ref(from).take(expected as u64 + HEADER_BYTES_MAX);
    let mut reader = csv::ReaderBuilder::new();
    reader.has_headers(false).flexible(true).delimiter(dialect.delimiter).quote(dialect.quote);
    let mut reader = reader.from_reader(start);
    let first = reader.records().next().transpose();
    let first = first.map_err(|error| damaged(&format!("its header can't be read: {error}")))?;
    let first = first.unwrap_or_default();
    let has = first.iter().enumerate().map(|(at, name)| match at {
        0 => name.strip_prefix(BYTE_ORDER_MARK).unwrap_or(name),
        _ => name,
    });
    let has: Vec<_> = has.collect();
    if !dialect.header && has.len() != names.len() {
        let reason = format!(
            "rows can't be added to it: it has {} columns, and the result {}",
            has.len(),
            names.len()
        );
        return Err(Refusal::Unfit(reason, COLUMNS));
    }
    if dialect.header && has != names {
        let reason = format!(
            "rows can't be added to it: its columns are {}, and those of the result {}",
            has.join(", "),
            names.join(", ")
        );
        return Err(Refusal::Unfit(reason, COLUMNS));
    }
    let quotes = lines(dialect.quote, from, to)?;
    if quotes % 2 == 1 {
        return Err(damaged("a quote in it is not closed, so the new rows would be part of a value"));
    }
    Ok(())
}

fn json(from: &mut File, to: &mut File) -> Result<(), Refusal> {
    let first = BufReader::new(&*from).bytes().find(|byte| !matches!(byte, Ok(b' ' | b'\t' | b'\r' | b'\n')));
    match first.transpose()? {
        None | Some(b'{') => {}
        Some(_) => return Err(damaged("it does not hold an object on each line")),
    }
    lines(b'"', from, to)?;
    Ok(())
}

/// Copies all lines, with an end of the last one. Returns how many quotes they have.
fn lines(quote: u8, from: &mut File, to: &mut File) -> io::Result<usize> {
    from.rewind()?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let (mut quotes, mut last) = (0, b'\n');
    loop {
        let length = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        quotes += memchr::memchr_iter(quote, &chunk[..length]).count();
        last = chunk[length - 1];
        to.write_all(&chunk[..length])?;
    }
    if last != b'\n' {
        to.write_all(b"\n")?;
    }
    Ok(quotes)
}

/// Where the messages of a complete Arrow stream of these columns end, without the mark of the end.
fn stream_end(schema: &Schema, from: &mut File) -> Result<u64, Refusal> {
    let length = from.metadata()?.len();
    let is_truncated = || damaged("it is not a complete Arrow stream");
    let mut position = 0;
    let mut is_first = true;
    let word = |from: &mut File| -> Result<u32, Refusal> {
        let mut bytes = [0; 4];
        from.read_exact(&mut bytes).map_err(|_| is_truncated())?;
        Ok(u32::from_le_bytes(bytes))
    };
    while position < length {
        from.seek(SeekFrom::Start(position))?;
        let mut header_bytes = 4;
        let mut metadata_bytes = word(from)?;
        // Before 2019, the length was not preceded by this mark.
        if metadata_bytes == u32::MAX {
            metadata_bytes = word(from)?;
            header_bytes = 8;
        }
        if metadata_bytes == 0 {
            return match position + header_bytes == length {
                _ if is_first => Err(is_truncated()),
                true => Ok(position),
                false => Err(damaged("there are bytes after the end of its stream")),
            };
        }
        let metadata_end = position + header_bytes + u64::from(metadata_bytes);
        if metadata_bytes > METADATA_BYTES_MAX || metadata_end > length {
            return Err(is_truncated());
        }
        let mut metadata = vec![0; metadata_bytes as usize];
        from.read_exact(&mut metadata)?;
        let message = root_as_message(&metadata).map_err(|_| is_truncated())?;
        if is_first != (message.header_type() == MessageHeader::Schema) {
            return Err(is_truncated());
        }
        if is_first {
            check_schema(schema, &metadata)?;
            is_first = false;
        }
        let body = u64::try_from(message.bodyLength()).map_err(|_| is_truncated())?;
        position = metadata_end.checked_add(body).filter(|end| *end <= length).ok_or_else(is_truncated)?;
    }
    if is_first { Err(is_truncated()) } else { Ok(position) }
}

/// Whether rows of these columns can follow a schema's message.
fn check_schema(schema: &Schema, message: &[u8]) -> Result<(), Refusal> {
    let existing = arrow_ipc::convert::try_schema_from_flatbuffer_bytes(message)
        .map_err(|error| damaged(&format!("its columns can't be read: {error}")))?;
    let shown = |schema: &Schema| -> String {
        let fields = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
        fields.collect::<Vec<_>>().join(", ")
    };
    let is_same = existing.fields().len() == schema.fields().len()
        && existing.fields().iter().zip(schema.fields()).all(|(old, new)| {
            old.name() == new.name()
                && old.data_type() == new.data_type()
                && (old.is_nullable() || !new.is_nullable())
        });
    if !is_same {
        let reason = format!(
            "rows can't be added to it: its columns are {}, and those of the result {}",
            shown(&existing),
            shown(schema)
        );
        return Err(Refusal::Unfit(reason, COLUMNS));
    }
    // Dictionaries have numbers, which are those of our writer only in what it wrote.
    let is_dictionary = |t: &DataType| matches!(t, DataType::Dictionary(..));
    let has_dictionary =
        schema.fields().iter().any(|field| find(field.data_type(), &is_dictionary).is_some());
    if has_dictionary {
        let options = IpcWriteOptions::default();
        let mut tracker = DictionaryTracker::new(false);
        let generator = IpcDataGenerator::default();
        let ours = generator.schema_to_bytes_with_dictionary_tracker(schema, &mut tracker, &options);
        // The message in the file is padded.
        if message.get(..ours.ipc_message.len()) != Some(&ours.ipc_message[..]) {
            return Err(Refusal::Unfit(
                "rows can't be added to it: its dictionaries may have other numbers than those of the new rows".into(),
                "cast the columns with dictionaries to text in the query, and write to another file",
            ));
        }
    }
    Ok(())
}
