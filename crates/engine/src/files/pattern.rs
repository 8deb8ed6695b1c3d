//! Paths with wildcards: `data/2024-*.csv` stands for all files whose names match.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use glob::MatchOptions;

use crate::error::{EngineError, Result};

/// A path with wildcards: `*`, `?`, `[abc]`, and `**` for folders at any depth.
#[derive(Debug)]
pub(super) struct Pattern {
    text: PathBuf,
    /// The folder before the first wildcard.
    pub(super) folder: PathBuf,
}

impl Pattern {
    /// `None` for a path without wildcards, or one that exists as it is.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let is_wild =
            |part: &OsStr| part.as_encoded_bytes().iter().any(|byte| matches!(byte, b'*' | b'?' | b'['));
        if !is_wild(path.as_os_str()) || path.exists() {
            return None;
        }
        let plain: PathBuf = path.components().take_while(|part| !is_wild(part.as_os_str())).collect();
        let is_current = plain.components().all(|part| part == Component::CurDir);
        let folder = if is_current { PathBuf::from(".") } else { plain };
        Some(Self { text: path.to_owned(), folder })
    }

    /// The last part of the path.
    pub(super) fn file_name(&self) -> Option<&str> {
        self.text.file_name()?.to_str()
    }

    /// Whether folders of the path are named `COLUMN=VALUE`.
    pub(super) fn has_partitions(&self) -> bool {
        let folders = self.text.parent().and_then(|parent| parent.strip_prefix(&self.folder).ok());
        folders.is_some_and(|folders| folders.iter().any(|part| part.as_encoded_bytes().contains(&b'=')))
    }

    /// The files that match, sorted.
    ///
    /// # Errors
    /// If none does, or a folder can't be read.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>> {
        let fail = |reason: String| EngineError::File(format!("{}: {reason}", self.text.display()));
        let text = self.text.to_str().ok_or_else(|| fail("the pattern is not UTF-8".into()))?;
        let options = MatchOptions {
            require_literal_separator: true,
            require_literal_leading_dot: true,
            ..MatchOptions::default()
        };
        let paths = glob::glob_with(text, options).map_err(|e| fail(e.to_string()))?;
        let mut files = Vec::new();
        for path in paths {
            let path = path.map_err(|e| fail(e.to_string()))?;
            if path.is_file() {
                files.push(path.canonicalize().map_err(|e| fail(e.to_string()))?);
            }
        }
        files.sort();
        if files.is_empty() {
            return Err(fail("no file matches".into()));
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_begin_in_a_folder() {
        for (text, folder, partitions) in [
            ("data/2024-*.csv", "data", false),
            ("*.csv", ".", false),
            ("/a/b/**/c?.csv", "/a/b", false),
            ("a/year=*/x.csv", "a", true),
            ("a/year=2024/*.csv", "a/year=2024", false),
        ] {
            let pattern = Pattern::of(Path::new(text)).unwrap();
            assert_eq!(
                (pattern.folder.as_path(), pattern.has_partitions()),
                (Path::new(folder), partitions),
                "{text}"
            );
        }
        assert!(Pattern::of(Path::new("a/b.csv")).is_none());
    }
}
