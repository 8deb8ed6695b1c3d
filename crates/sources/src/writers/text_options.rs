//! How lines of text are written.

use std::path::{Path, PathBuf};

use crate::file_options::{Compression, FileOptions};
use crate::objects::ObjectLocation;
use crate::{Result, SourceError};

/// How CSV is written, and how text is compressed. What is `None` follows from the file's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextOptions {
    /// Separates values. [default: a tab in `.tsv`, `|` in `.psv`, otherwise a comma]
    pub delimiter: Option<u8>,
    /// Whether the first line has the names of the columns.
    pub header: bool,
    /// Encloses values that need it; it is doubled inside.
    pub quote: u8,
    /// Stands for NULL, without quotes.
    pub null: String,
    /// Compression of CSV and JSON. [default: by the last extension, `.gz` or `.zst`]
    pub compression: Option<TextCompression>,
}

/// How lines of text are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextCompression {
    /// Not at all.
    None,
    /// gzip, at its quickest level.
    Gzip,
    /// Zstandard at level 1.
    Zstd,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { delimiter: None, header: true, quote: b'"', null: String::new(), compression: None }
    }
}

/// The same options for a file.
#[derive(Debug, Clone)]
pub(super) struct Dialect {
    pub(super) delimiter: u8,
    pub(super) header: bool,
    pub(super) quote: u8,
    pub(super) null: String,
    pub(super) compression: TextCompression,
}

impl TextOptions {
    /// Splits a location such as `sales.csv?delimiter=;&header=false` into the path of a file and its options:
    /// `delimiter`, `header`, `quote`, `null` and `compression`, as [`FileOptions`] has them for reading.
    ///
    /// # Errors
    /// [`SourceError::Location`] for an unknown option, one that applies to reading only, or a value that it can't have.
    pub fn split(location: &Path) -> Result<(PathBuf, Self)> {
        let (path, options) = FileOptions::split(location)?;
        let written = Self::written(options)
            .map_err(|reason| SourceError::Location { given: location.display().to_string(), reason })?;
        Ok((path, written))
    }

    /// The options of an object.
    ///
    /// # Errors
    /// As [`Self::split`].
    pub fn of_object(location: &ObjectLocation) -> Result<Self> {
        Self::written(location.file_options())
            .map_err(|reason| SourceError::Location { given: location.to_string(), reason })
    }

    fn written(options: FileOptions) -> std::result::Result<Self, String> {
        let FileOptions {
            format, compression, encoding, delimiter, header, quote, escape, nulls, types, ..
        } = options;
        for (name, is_given) in [
            ("format", format.is_some()),
            ("encoding", encoding.is_some()),
            ("escape", escape.is_some()),
            ("types", !types.is_empty()),
            ("all-text", options.all_text),
            ("sample", options.sample.is_some()),
        ] {
            if is_given {
                return Err(format!("`{name}` says how a file is read, and this one is written"));
            }
        }
        let compression = match compression {
            None => None,
            Some(Compression::None) => Some(TextCompression::None),
            Some(Compression::Gzip) => Some(TextCompression::Gzip),
            Some(Compression::Zstd) => Some(TextCompression::Zstd),
            Some(Compression::Bzip2 | Compression::Xz) => {
                return Err("files are written with gzip or zstd".into());
            }
        };
        let quote = match quote {
            None => b'"',
            Some(Some(quote)) => quote,
            Some(None) => return Err("values are written with quotes where they need some".into()),
        };
        let null = match <[String; 1]>::try_from(nulls) {
            Ok([null]) => null,
            Err(nulls) if nulls.is_empty() => String::new(),
            Err(_) => return Err("NULL is written as one text".into()),
        };
        Ok(Self { delimiter, header: header.unwrap_or(true), quote, null, compression })
    }

    /// The options for a file, or for a stream that has no name.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] for characters that are part of numbers and times, which are not quoted.
    pub(super) fn for_file(&self, path: Option<&Path>) -> Result<Dialect> {
        let (stem, compression) = path.map_or((None, TextCompression::None), |path| {
            let (stem, compression) = without_compression(path);
            (Some(stem), compression)
        });
        let delimiter = self.delimiter.unwrap_or_else(|| match stem.and_then(extension).as_deref() {
            Some("tsv") => b'\t',
            Some("psv") => b'|',
            _ => b',',
        });
        for (name, character) in [("delimiter", delimiter), ("quote", self.quote)] {
            if !character.is_ascii()
                || character.is_ascii_alphanumeric()
                || matches!(character, b'\n' | b'\r' | b'\0' | b'.' | b'+' | b'-' | b':' | b'\\')
            {
                let shown = char::from(character).escape_default();
                let reason =
                    format!("`{shown}` as {name} of CSV; expected one character that no number or time has");
                return Err(SourceError::Unsupported(reason));
            }
        }
        let has_special =
            |c: char| c == char::from(delimiter) || c == char::from(self.quote) || matches!(c, '\n' | '\r');
        if delimiter == self.quote || self.null.contains(has_special) {
            let reason = "CSV whose delimiter, quote and text for NULL can't be told apart";
            return Err(SourceError::Unsupported(reason.into()));
        }
        Ok(Dialect {
            delimiter,
            header: self.header,
            quote: self.quote,
            null: self.null.clone(),
            compression: self.compression.unwrap_or(compression),
        })
    }
}

/// The last extension of a name, in lower case.
pub(super) fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

/// A path without the extension that says how the file is compressed, and the compression.
pub(super) fn without_compression(path: &Path) -> (&Path, TextCompression) {
    let compression = match extension(path).as_deref() {
        Some("gz") => TextCompression::Gzip,
        Some("zst") => TextCompression::Zstd,
        _ => return (path, TextCompression::None),
    };
    (path.file_stem().map_or(path, Path::new), compression)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_how_text_is_written() {
        let check = |name: &str, delimiter, compression| {
            let dialect = TextOptions::default().for_file(Some(Path::new(name))).unwrap();
            assert_eq!((dialect.delimiter, dialect.compression), (delimiter, compression), "{name}");
        };
        check("a.csv", b',', TextCompression::None);
        check("a.TSV", b'\t', TextCompression::None);
        check("b/a.tsv.gz", b'\t', TextCompression::Gzip);
        check("a.psv.zst", b'|', TextCompression::Zstd);
        check("a.json.ZST", b',', TextCompression::Zstd);
    }

    #[test]
    fn options_follow_the_path() {
        let split = |location: &str| TextOptions::split(Path::new(location));
        let (path, options) = split("a.txt?delimiter=%26&header=no&null=NA&quote='&compression=gz").unwrap();
        assert_eq!(path, Path::new("a.txt"));
        let expected = TextOptions {
            delimiter: Some(b'&'),
            header: false,
            quote: b'\'',
            null: "NA".into(),
            compression: Some(TextCompression::Gzip),
        };
        assert_eq!(options, expected);
        assert_eq!(split("a.csv?delimiter=tab").unwrap().1.delimiter, Some(b'\t'));
        for plain in ["a.csv", "what?.csv"] {
            assert_eq!(split(plain).unwrap(), (plain.into(), TextOptions::default()));
        }
        for (query, reason) in [
            ("colour=red", "unknown option `colour`"),
            ("header=maybe", "true or false"),
            ("delimiter=ab", "one ASCII character"),
            ("compression=rar", "expected none, gzip"),
            ("compression=xz", "gzip or zstd"),
            ("types=a=text", "how a file is read"),
        ] {
            let error = split(&format!("a.csv?{query}")).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn characters_that_values_have_are_refused() {
        let check = |delimiter: Option<u8>, quote, null: &str| {
            let options = TextOptions { delimiter, quote, null: null.into(), ..TextOptions::default() };
            options.for_file(None).map(|_| ()).map_err(|error| error.to_string())
        };
        for delimiter in *b"1e.-:+\n\\" {
            assert!(check(Some(delimiter), b'"', "").unwrap_err().contains("as delimiter"));
        }
        for (delimiter, quote, null) in [(b';', b';', ""), (b';', b'"', "a;"), (b';', b'"', "\"\"")] {
            assert!(check(Some(delimiter), quote, null).unwrap_err().contains("told apart"));
        }
        check(Some(b';'), b'\'', "NULL").unwrap();
    }
}
