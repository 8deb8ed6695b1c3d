//! Locations of objects as users type them.

use std::fmt;
use std::path::Path;

use object_store::path::Path as Key;

use crate::SourceError;
use crate::file_options::{FileOptions, query_part, split_name};

/// Which kind of service has the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectScheme {
    /// `s3://BUCKET/KEY`.
    S3,
    /// `gs://BUCKET/KEY`.
    Google,
    /// `az://CONTAINER/KEY`, or `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY`.
    Azure,
    /// `https://` or `http://`, of a server that only has files to read.
    Http,
}

/// An object, a prefix of objects that end in `/`, or a pattern of names.
///
/// `Display` and `Debug` show no query, which may be a signature.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ObjectLocation {
    scheme: ObjectScheme,
    /// Scheme and bucket, or scheme, host and port.
    root: String,
    /// The name of the object within the bucket, as it is; for [`ObjectScheme::Http`] percent-encoded.
    key: String,
    /// The query of an `https://` URL.
    query: Option<String>,
    /// How its bytes are read or written: the query part of the name; for [`ObjectScheme::Http`], whose query is the
    /// server's, the fragment.
    options: String,
}

/// The schemes of object stores, for messages.
pub(crate) const SCHEMES: &str = "s3://, gs://, az://, https://";

impl ObjectLocation {
    /// Parses `scheme://rest`; `None` for a scheme of another kind.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(scheme: &str, rest: &str) -> Option<Result<Self, String>> {
        let kind = match scheme {
            "s3" | "s3a" => ObjectScheme::S3,
            "gs" => ObjectScheme::Google,
            "az" | "abfs" | "abfss" => ObjectScheme::Azure,
            "http" | "https" => ObjectScheme::Http,
            _ => return None,
        };
        Some(match kind {
            ObjectScheme::Http => Self::http(scheme, rest),
            kind => Self::in_bucket(kind, scheme, rest),
        })
    }

    fn in_bucket(kind: ObjectScheme, scheme: &str, rest: &str) -> Result<Self, String> {
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let scheme = if scheme == "s3a" { "s3" } else { scheme };
        let has_account = matches!(scheme, "abfs" | "abfss");
        if bucket.is_empty() {
            return Err("the name of the bucket is missing".into());
        }
        if bucket.contains('@') && !has_account {
            return Err("credentials do not belong into it; they come from the environment (AWS_ACCESS_KEY_ID, \
                        GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY) or the files of the store's own tools"
                .into());
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !bucket.chars().all(|c| is_part(c) || (has_account && c == '@')) {
            return Err("the name of a bucket has only letters, digits, `-`, `_` and `.`".into());
        }
        let (key, options) = split_name(key);
        FileOptions::parse(options)?;
        // Checks it: no empty parts, `.`, `..` or control characters.
        Key::parse(key).map_err(|error| error.to_string())?;
        let (key, options) = (key.to_owned(), options.to_owned());
        Ok(Self { scheme: kind, root: format!("{scheme}://{bucket}"), key, query: None, options })
    }

    fn http(scheme: &str, rest: &str) -> Result<Self, String> {
        let url = url::Url::parse(&format!("{scheme}://{rest}")).map_err(|e| e.to_string())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a user and a password in it would be visible to other users of this host; they are not supported".into());
        }
        let key = url.path().trim_start_matches('/').to_owned();
        if key.is_empty() || key.ends_with('/') {
            return Err("it names no file; a web server has no folders to list".into());
        }
        Key::from_url_path(&key).map_err(|error| error.to_string())?;
        let root = url[..url::Position::BeforePath].to_owned();
        let options = url.fragment().unwrap_or_default().to_owned();
        FileOptions::parse(&options)?;
        Ok(Self { scheme: ObjectScheme::Http, root, key, query: url.query().map(str::to_owned), options })
    }

    /// The kind of service.
    pub fn scheme(&self) -> ObjectScheme {
        self.scheme
    }

    /// Scheme and bucket, as in `s3://bucket`; or scheme, host and port.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The bucket, or the container.
    pub fn bucket(&self) -> &str {
        self.root.split_once("://").map_or("", |(_, bucket)| bucket)
    }

    /// The query of the URL, which may be a signature.
    pub(crate) fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// The name of the object within its bucket, without a `/` at the end.
    ///
    /// # Panics
    /// Never: it was checked when it was parsed.
    pub fn key(&self) -> Key {
        match self.scheme {
            ObjectScheme::Http => Key::from_url_path(&self.key).unwrap_or_default(),
            _ => Key::parse(&self.key).unwrap_or_default(),
        }
    }

    /// How its bytes are read or written, where its name and its contents do not say.
    pub fn file_options(&self) -> FileOptions {
        // They were checked when they were parsed.
        FileOptions::parse(&self.options).unwrap_or_default()
    }

    /// Adds options, which are pairs of a name and a value. Those that it has already take precedence.
    ///
    /// # Errors
    /// [`SourceError::Location`] for an unknown option, or a value that it can't have.
    pub fn add_file_options(&mut self, options: &[(&str, String)]) -> Result<(), SourceError> {
        let own = std::mem::take(&mut self.options);
        self.options = query_part(options);
        if !own.is_empty() {
            self.options = format!("{}&{own}", self.options);
        }
        let invalid = |reason| SourceError::Location { given: self.to_string(), reason };
        FileOptions::parse(&self.options).map(drop).map_err(invalid)
    }

    /// Whether it can only be a prefix of objects: a bucket, or a name that ends in `/`.
    pub fn is_prefix(&self) -> bool {
        self.key.is_empty() || self.key.ends_with('/')
    }

    /// Another object of the same bucket.
    #[must_use]
    pub fn with_key(&self, key: &Key) -> Self {
        Self { key: key.to_string(), query: None, ..self.clone() }
    }

    /// The name of the object as a path, from which its kind of file is known.
    pub fn as_path(&self) -> &Path {
        Path::new(self.key.trim_end_matches('/'))
    }

    /// Something that is the same for all locations that share a [`super::Store`].
    pub fn store_key(&self) -> (String, Option<String>) {
        (self.root.clone(), self.query.clone())
    }
}

impl fmt::Display for ObjectLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.root, self.key)
    }
}

impl fmt::Debug for ObjectLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectLocation({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(uri: &str) -> Result<ObjectLocation, String> {
        let (scheme, rest) = uri.split_once("://").expect("a scheme");
        ObjectLocation::parse(scheme, rest).expect("an object store")
    }

    #[test]
    fn parts_of_a_location() {
        for (uri, root, key, is_prefix) in [
            ("s3://b/a/x.parquet", "s3://b", "a/x.parquet", false),
            ("s3a://b/day=1/", "s3://b", "day=1", true),
            ("s3://My_Bucket.eu", "s3://My_Bucket.eu", "", true),
            ("s3://b/100%/a b?#*.csv", "s3://b", "100%/a b?#*.csv", false),
            ("gs://b/x.csv", "gs://b", "x.csv", false),
            (
                "abfss://c@acc.dfs.core.windows.net/x.csv",
                "abfss://c@acc.dfs.core.windows.net",
                "x.csv",
                false,
            ),
            ("https://h:8443/a%20b.csv?sig=hush", "https://h:8443", "a b.csv", false),
        ] {
            let location = parse(uri).unwrap();
            assert_eq!((location.root(), location.key().as_ref()), (root, key), "{uri}");
            assert_eq!(location.is_prefix(), is_prefix, "{uri}");
        }
    }

    #[test]
    fn options_of_files_follow_the_name() {
        let mut location = parse("s3://b/a?b.csv?delimiter=;&header=false").unwrap();
        assert_eq!((location.key().as_ref(), location.to_string().as_str()), ("a?b.csv", "s3://b/a?b.csv"));
        location.add_file_options(&[("delimiter", ",".into()), ("null", "a&b".into())]).unwrap();
        let options = location.file_options();
        assert_eq!(
            (options.delimiter, options.header, options.nulls),
            (Some(b';'), Some(false), vec!["a&b".into()])
        );
        let signed = parse("https://h/x.csv?delimiter=server#delimiter=%7C").unwrap();
        assert_eq!((signed.query(), signed.file_options().delimiter), (Some("delimiter=server"), Some(b'|')));
        for wrong in ["s3://b/a.csv?delimiter=ab", "https://h/x.csv#colour=red", "s3://b/a.csv?colour=red"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn invalid_locations_are_refused_and_secrets_not_shown() {
        for (uri, word) in [
            ("s3://", "bucket is missing"),
            ("s3://key:secret@b/x", "credentials do not belong"),
            ("s3://b/a//x", "empty path segment"),
            ("s3://b/../x", "\"..\""),
            ("s3://b:80/x", "letters, digits"),
            ("https://u:p@h/x.csv", "password"),
            ("https://h/", "names no file"),
        ] {
            let message = parse(uri).unwrap_err();
            assert!(message.to_lowercase().contains(word), "{uri}: {message}");
        }
        let signed = parse("https://h/x.csv?sig=hush").unwrap();
        assert_eq!(format!("{signed} {signed:?}"), "https://h/x.csv ObjectLocation(https://h/x.csv)");
        assert_eq!(signed.query(), Some("sig=hush"));
    }
}
