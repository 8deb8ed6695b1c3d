//! What a file is: by its name, by its contents, or as it was asked for.

use std::io::{Cursor, Read as _};
use std::path::Path;
use std::sync::Arc;

use datafusion::datasource::file_format::FileFormat;
use lightship_sources::file_options::{self, FileOptions, is_compressed};

use super::by_name::{FormatAdapter, TextFormat};
use super::bytes::Coding;
use super::input::FilePath;
use super::{arrow, avro, csv, excel, json, parquet_format};
use crate::error::{EngineError, Result};

/// Bytes at the beginning of a file that show what it is.
const SHOWN_BYTES: u64 = 64 << 10;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileKind {
    pub(super) format: file_options::FileFormat,
    /// The delimiter of CSV, where the name of the file stands for one.
    delimiter: Option<u8>,
}

impl FileKind {
    /// The kind that a file's name stands for, and the end of the name that does.
    pub(super) fn by_name(path: &Path) -> Option<(Self, String)> {
        use file_options::FileFormat::{Arrow, Avro, Csv, Excel, Json, Parquet};
        // Excel's note of who has a workbook open.
        if path.file_name()?.as_encoded_bytes().starts_with(b"~$") {
            return None;
        }
        let own = path.extension()?.to_str()?;
        let (inner, compression) = match is_compressed(path) {
            true => (Path::new(path.file_stem()?), Some(own)),
            false => (path, None),
        };
        let extension = inner.extension()?.to_str()?;
        let (format, delimiter) = match extension.to_ascii_lowercase().as_str() {
            "parquet" | "pq" if compression.is_none() => (Parquet, None),
            "arrow" | "feather" | "ipc" | "arrows" if compression.is_none() => (Arrow, None),
            "avro" if compression.is_none() => (Avro, None),
            "xlsx" | "xlsm" | "xlsb" | "xls" | "ods" if compression.is_none() => (Excel, None),
            "csv" => (Csv, Some(b',')),
            "tsv" | "tab" => (Csv, Some(b'\t')),
            "psv" => (Csv, Some(b'|')),
            "json" | "jsonl" | "ndjson" => (Json, None),
            _ => return None,
        };
        let suffix =
            compression.map_or(extension.to_owned(), |compression| format!("{extension}.{compression}"));
        Some((Self { format, delimiter }, suffix))
    }

    /// The kind of a file, whose contents are looked at if its name says nothing.
    pub(super) fn of_file(path: &FilePath, options: &FileOptions) -> Result<Self> {
        let named = Self::by_name(path).map(|(kind, _)| kind);
        if let Some(kind) = Self::given(options, named).or(named) {
            return Ok(kind);
        }
        let mut first = Vec::new();
        let read = path.open().and_then(|file| file.take(SHOWN_BYTES).read_to_end(&mut first));
        read.map_err(|e| EngineError::reading(path, &e))?;
        Self::by_content(&first, path, options)
    }

    /// The kind that the options give to a file, which has another by its name.
    pub(super) fn given(options: &FileOptions, named: Option<Self>) -> Option<Self> {
        let format = options.format?;
        let delimiter = named.filter(|named| named.format == format).and_then(|named| named.delimiter);
        Some(Self { format, delimiter })
    }

    /// The kind of a file that begins with these bytes.
    pub(super) fn by_content(first: &[u8], name: &Path, options: &FileOptions) -> Result<Self> {
        use file_options::FileFormat::{Arrow, Avro, Csv, Excel, Json, Parquet};
        let mut text = Vec::new();
        let coding = Coding::new(options)?;
        if let Ok((bytes, _)) = coding.decode(Box::new(Cursor::new(first.to_vec())), name) {
            // What is missing at the end does not matter.
            let _ = bytes.take(SHOWN_BYTES).read_to_end(&mut text);
        }
        let is_binary = text.contains(&0);
        let format = match text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text).trim_ascii_start() {
            [b'P', b'A', b'R', b'1', ..] => Parquet,
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] | [0xff, 0xff, 0xff, 0xff, ..] => Arrow,
            text if text.starts_with(avro::MAGIC) => Avro,
            text if excel::is_workbook(text) => Excel,
            _ if is_binary => {
                return Err(EngineError::bad_file(
                    format!("{}: unknown kind of file", name.display()),
                    "files of Parquet, CSV, JSON, Arrow, Avro and Excel can be read; name the format with --input-format \
                     csv, or the encoding with --encoding utf-16le",
                ));
            }
            [b'{' | b'[', ..] => Json,
            _ => Csv,
        };
        Ok(Self { format, delimiter: None })
    }

    /// How files of this kind are read. `root` is the URI of the store that has them, `None` for files of this host.
    pub(super) fn format(
        self,
        path: &Path,
        options: &FileOptions,
        root: Option<String>,
    ) -> Result<Arc<dyn FileFormat>> {
        self.check(path, options)?;
        Ok(match self.format {
            file_options::FileFormat::Parquet => Arc::new(parquet_format::Parquet::default()),
            file_options::FileFormat::Csv => {
                Arc::new(FormatAdapter::new(csv::Csv::new(options, self.delimiter)?, root))
            }
            file_options::FileFormat::Json => Arc::new(FormatAdapter::new(json::Json::new(options)?, root)),
            file_options::FileFormat::Arrow => Arc::new(FormatAdapter::new(arrow::Ipc, root)),
            file_options::FileFormat::Avro => Arc::new(FormatAdapter::new(avro::Avro, root)),
            file_options::FileFormat::Excel => Arc::new(FormatAdapter::new(excel::Excel::new(options), root)),
        })
    }

    /// How a text of this kind is read that can be read only once; `None` for formats that need a file.
    pub(super) fn stream_format(
        self,
        name: &Path,
        options: &FileOptions,
    ) -> Result<Option<Arc<dyn TextFormat>>> {
        self.check(name, options)?;
        Ok(match self.format {
            file_options::FileFormat::Csv => Some(Arc::new(csv::Csv::new(options, self.delimiter)?)),
            file_options::FileFormat::Json => Some(Arc::new(json::Json::new(options)?)),
            _ => None,
        })
    }

    /// Refuses options that the format does not have.
    fn check(self, path: &Path, options: &FileOptions) -> Result<()> {
        let Some(option) = options.without_meaning(self.format).first().copied() else { return Ok(()) };
        let others: Vec<&str> =
            file_options::FileFormat::with_option(option).iter().map(|format| format.name()).collect();
        Err(EngineError::Config(format!(
            "`{option}` is an option of {}, but {} is {}; give it in the location of the file that it is for, as in \
             sales.csv?delimiter=;",
            listed(&others),
            path.display(),
            self.format.name()
        )))
    }
}

/// Names with commas, and `and` before the last.
fn listed(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use lightship_sources::file_options::FileFormat::{Arrow, Avro, Csv, Excel, Json, Parquet};

    use super::*;

    #[test]
    fn names_say_what_a_file_is() {
        for (name, expected) in [
            ("a.parquet", Some((Parquet, None, "parquet"))),
            ("A.CSV", Some((Csv, Some(b','), "CSV"))),
            ("a.tsv.gz", Some((Csv, Some(b'\t'), "tsv.gz"))),
            ("a.psv", Some((Csv, Some(b'|'), "psv"))),
            ("a.txt", None),
            ("a.json.ZST", Some((Json, None, "json.ZST"))),
            ("a.ndjson", Some((Json, None, "ndjson"))),
            ("a.arrows", Some((Arrow, None, "arrows"))),
            ("a.parquet.gz", None),
            ("a.gz", None),
            ("csv", None),
            ("a.md", None),
            ("a.avro", Some((Avro, None, "avro"))),
            ("a.xlsx", Some((Excel, None, "xlsx"))),
            ("~$a.xlsx", None),
        ] {
            let found = FileKind::by_name(Path::new(name));
            let found = found.as_ref().map(|(kind, suffix)| (kind.format, kind.delimiter, suffix.as_str()));
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn contents_say_what_a_file_is() {
        let packed = zstd::encode_all(&b"  {\"a\": 1}"[..], 1).unwrap();
        let wide: Vec<u8> = "\u{feff}a;b\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let cases: [(&[u8], _); 12] = [
            (b"Obj\x01....", Avro),
            (b"PK\x03\x04....", Excel),
            (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Excel),
            (b"PAR1....", Parquet),
            (b"ARROW1\0\0", Arrow),
            (b"\xff\xff\xff\xff\x10\0\0\0", Arrow),
            (b"\n [{\"a\": 1}]", Json),
            (b"\xef\xbb\xbf{\"a\": 1}", Json),
            (&packed, Json),
            (b"a,b\n", Csv),
            (&wide, Csv),
            (b"", Csv),
        ];
        for (bytes, expected) in cases {
            let kind = FileKind::by_content(bytes, Path::new("x"), &FileOptions::default()).unwrap();
            assert_eq!(kind.format, expected, "{bytes:?}");
        }
        let error =
            FileKind::by_content(b"\x7fELF\0\0", Path::new("x"), &FileOptions::default()).unwrap_err();
        assert!(error.to_string().contains("x: unknown kind of file"), "{error}");
    }
}
