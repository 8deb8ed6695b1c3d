//! JSON: objects on a line each, one after the other, or in an array.

mod array;
mod columns;
mod lines;
mod objects;
mod problem;
mod reader;
mod scan;
mod shape;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use lightship_sources::file_options::{FileOptions, Sample};

use self::array::{ArrayItems, NotAnArray};
use self::objects::Objects;
use self::reader::JsonReader;
use self::shape::Shapes;
use super::by_name::{Batches, FilePart, Format, TextFormat, Wanted, until_end};
use super::bytes::{self, Bytes, Coding, TextFile, peek_line, skip_mark};
use super::columns::given_type;
use super::input::FilePath;
use crate::error::{EngineError, Result};

/// Bytes of each file from which its fields are inferred. A field that first appears after them is refused.
const SAMPLE_BYTES: u64 = 256 << 20;

/// The same of a text that can be read only once, which are kept until it is read.
const STREAM_SAMPLE_BYTES: u64 = 16 << 20;

/// Files of JSON.
#[derive(Debug)]
pub(super) struct Json(Arc<JsonRules>);

/// How objects are read, and what their values mean.
#[derive(Debug)]
struct JsonRules {
    coding: Coding,
    types: Vec<(String, DataType)>,
    all_text: bool,
    sample: Option<Sample>,
}

/// Where the objects of a text are.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Layout {
    /// Each on its own line.
    Lines,
    /// One after the other, over several lines.
    Objects,
    /// In an array.
    Array,
}

/// A text, for messages about it.
#[derive(Debug, Clone)]
enum Origin {
    /// A part of a file that begins at this offset of its text.
    File(TextFile, u64),
    /// A text that can be read only once.
    Stream(PathBuf),
}

impl Origin {
    fn path(&self) -> &Path {
        match self {
            Self::File(text, _) => &text.path,
            Self::Stream(name) => name,
        }
    }

    /// `PATH, line N`, of a line of the part.
    fn line(&self, line: u64) -> String {
        let before = match self {
            Self::File(text, start) => text.line_of(*start).unwrap_or(1) - 1,
            Self::Stream(_) => 0,
        };
        format!("{}, line {}", self.path().display(), before + line)
    }

    fn failed(&self, error: &io::Error) -> EngineError {
        match (self, error.get_ref().and_then(|inner| inner.downcast_ref::<NotAnArray>())) {
            (Self::File(text, _), Some(refused)) => {
                let line =
                    text.line_of(refused.offset).map_or(String::new(), |line| format!(", line {line}"));
                EngineError::bad_file(format!("{}{line}: {refused}", text.path.display()), HINT)
            }
            (Self::Stream(name), Some(refused)) => {
                EngineError::bad_file(format!("{}: {refused}", name.display()), HINT)
            }
            (_, None) => bytes::failed(self.path(), error),
        }
    }

    fn refused(&self, line: u64, problem: &str) -> EngineError {
        EngineError::bad_file(format!("{}: {problem}", self.line(line)), HINT)
    }
}

const HINT: &str = "write one JSON object per line, or an array of objects";

impl Json {
    pub(super) fn new(options: &FileOptions) -> Result<Self> {
        Ok(Self(Arc::new(JsonRules {
            coding: Coding::new(options)?,
            types: options.types.clone(),
            all_text: options.all_text,
            sample: options.sample,
        })))
    }
}

impl Layout {
    /// Whether the text is an array, judged by its beginning. Lines are read as objects too.
    fn of(bytes: Bytes) -> io::Result<(Bytes, Self)> {
        let (bytes, first) = peek_line(bytes)?;
        let layout = match first.trim_ascii_start().first() {
            Some(b'[') => Self::Array,
            _ => Self::Objects,
        };
        Ok((bytes, layout))
    }

    /// Whether each object is on its own line, judged by the first one. A file that deviates later is refused when it is
    /// read in parts, because its first part ends inside an object.
    fn of_file(text: &TextFile) -> io::Result<Self> {
        let (bytes, layout) = Self::of(text.from(text.start)?)?;
        if layout == Self::Array {
            return Ok(layout);
        }
        let mut lines = Objects::new(bytes, true);
        let is_whole = match lines.next()? {
            Some((_, line)) => serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok(),
            None => true,
        };
        Ok(if is_whole { Self::Lines } else { Self::Objects })
    }

    /// The objects of a text that begins at an offset.
    fn objects(self, bytes: Bytes, offset: u64) -> Objects {
        match self {
            Self::Array => Objects::new(Box::new(ArrayItems::new(bytes, offset)), false),
            other => Objects::new(bytes, other == Self::Lines),
        }
    }
}

impl JsonRules {
    /// Infers the fields of the objects at the beginning of a text.
    fn infer(&self, mut objects: Objects, origin: &Origin, sample_bytes: u64) -> Result<Schema> {
        let records = match self.sample {
            Some(Sample::Records(records)) => records,
            _ => u64::MAX,
        };
        let mut shapes = Shapes::default();
        let (mut count, mut bytes) = (0, 0);
        while count < records
            && bytes < self.sample_bytes(sample_bytes)
            && let Some((line, object)) = objects.next().map_err(|e| origin.failed(&e))?
        {
            count += 1;
            bytes += object.len() as u64;
            shapes.add(object).map_err(|problem| origin.refused(line, &problem.message(object)))?;
        }
        Ok(self.schema(&shapes))
    }

    /// How many bytes are read to infer fields if `usual` are where nothing else is asked for.
    fn sample_bytes(&self, usual: u64) -> u64 {
        if self.sample.is_some() { u64::MAX } else { usual }
    }

    fn schema(&self, shapes: &Shapes) -> Schema {
        let schema = shapes.schema();
        let fields = schema.fields().iter().map(|field| {
            let given = given_type(&self.types, field.name());
            let is_text = self.all_text && !field.data_type().is_nested();
            let found = if is_text { DataType::Utf8 } else { field.data_type().clone() };
            Field::new(field.name(), given.unwrap_or(found), true)
        });
        Schema::new(fields.collect::<Vec<_>>())
    }

    /// What to do about an object that does not fit the inferred fields.
    fn fields_hint(&self) -> String {
        let first = match self.sample {
            Some(Sample::All) => "all objects".to_owned(),
            Some(Sample::Records(count)) => format!("the first {count} objects"),
            None => format!("the first {} MiB", SAMPLE_BYTES >> 20),
        };
        format!(
            "fields are inferred from {first} of each file when the table is opened; reopen the table, give the type of \
             the field, as in --types NAME=text, or use --sample all"
        )
    }

    fn begin_stream(&self, origin: &Origin, bytes: Bytes) -> Result<Objects> {
        let begun = || {
            let (bytes, start) = skip_mark(self.coding.decode(bytes, origin.path())?.0)?;
            let (bytes, layout) = Layout::of(bytes)?;
            Ok(layout.objects(bytes, start))
        };
        begun().map_err(|e| origin.failed(&e))
    }
}

impl Format for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn columns(&self, path: &FilePath) -> Result<Schema> {
        let text = TextFile::open(path, self.0.coding)?;
        let origin = Origin::File(text.clone(), text.start);
        let layout = Layout::of_file(&text).map_err(|e| origin.failed(&e))?;
        let is_sample_in_bytes = !matches!(self.0.sample, Some(Sample::Records(_)));
        if layout == Layout::Lines && is_sample_in_bytes {
            let learned = lines::learn(&text, self.0.sample_bytes(SAMPLE_BYTES));
            if let Some(shapes) = learned.map_err(|e| origin.failed(&e))? {
                return Ok(self.0.schema(&shapes));
            }
        }
        let bytes = text.from(text.start).map_err(|e| origin.failed(&e))?;
        self.0.infer(layout.objects(bytes, text.start), &origin, SAMPLE_BYTES)
    }

    fn unknown(&self) -> DataType {
        DataType::Utf8
    }

    fn common(&self, a: &DataType, b: &DataType) -> Option<DataType> {
        shape::common(a, b)
    }

    fn read(&self, part: FilePart, wanted: &Wanted, batch_rows: usize) -> Result<Batches> {
        let text = TextFile::open(&part.path, self.0.coding)?;
        let origin = Origin::File(text.clone(), text.start);
        let layout = Layout::of_file(&text).map_err(|e| origin.failed(&e))?;
        let is_whole = part.range == (0..part.bytes) || layout != Layout::Lines || !text.is_plain;
        if is_whole && part.range.start > 0 {
            // The first part has all objects.
            return Ok(Box::new(std::iter::empty()));
        }
        let begun = || -> io::Result<(u64, Bytes)> {
            if is_whole {
                return Ok((text.start, text.from(text.start)?));
            }
            let start = lines::start(&text, part.bytes, part.range.start)?;
            let end = lines::start(&text, part.bytes, part.range.end)?;
            Ok((start, Box::new(text.from(start)?.take(end.saturating_sub(start)))))
        };
        let (start, bytes) = begun().map_err(|e| origin.failed(&e))?;
        let origin = Origin::File(text, start);
        let objects = layout.objects(bytes, start);
        let mut reader = JsonReader::new(self.0.clone(), origin, objects, wanted, batch_rows);
        Ok(until_end(move || reader.next()))
    }
}

impl TextFormat for Json {
    fn columns_of_stream(&self, name: &Path, bytes: Bytes) -> Result<Schema> {
        let origin = Origin::Stream(name.to_owned());
        self.0.infer(self.0.begin_stream(&origin, bytes)?, &origin, STREAM_SAMPLE_BYTES)
    }

    fn read_stream(&self, name: &Path, bytes: Bytes, wanted: &Wanted, batch_rows: usize) -> Result<Batches> {
        let origin = Origin::Stream(name.to_owned());
        let objects = self.0.begin_stream(&origin, bytes)?;
        let mut reader = JsonReader::new(self.0.clone(), origin, objects, wanted, batch_rows);
        Ok(until_end(move || reader.next()))
    }
}
