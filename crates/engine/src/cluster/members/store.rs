//! What a node of a cluster stores on disk: the roster, and the names of the tables that it has a part of.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::roster::{NODES_MAX, Roster};
use crate::error::{EngineError, Result};

/// The version of the file. Files of other versions are refused.
const VERSION: u32 = 1;
/// Larger files are refused.
const BYTES_MAX: u64 = 16 << 20;

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    version: u32,
    /// The node's name.
    node: String,
    pub(crate) members: Roster,
    /// Tables of which the node has had a part that it has not given up.
    pub(crate) parts: BTreeSet<String>,
}

impl State {
    /// The state of a node that has never been in a cluster.
    pub(crate) fn new(node: &str) -> Self {
        Self { version: VERSION, node: node.into(), members: Roster::default(), parts: BTreeSet::new() }
    }
}

/// The file of a node's state. Without a path, nothing is stored.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    path: Option<PathBuf>,
}

impl Store {
    /// The file of a node in a folder. The folder is created at the first write.
    pub(crate) fn new(folder: Option<&Path>, node: &str) -> Self {
        Self { path: Self::path(folder, node, "json") }
    }

    /// The file of a node with this extension; `None` without a folder. Nodes share a folder.
    pub(crate) fn path(folder: Option<&Path>, node: &str, extension: &str) -> Option<PathBuf> {
        let letter = |c: char| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => c.to_string(),
            c => format!("_{:x}_", u32::from(c)),
        };
        let name: String = node.chars().map(letter).collect();
        Some(folder?.join(format!("{name}.{extension}")))
    }

    /// The stored state of the node, or that of a new node if none was stored.
    ///
    /// # Errors
    /// When the file can't be read or is damaged: without it, rows could be missing silently.
    pub(crate) fn read(&self, node: &str) -> Result<State> {
        let Some(path) = &self.path else { return Ok(State::new(node)) };
        let damaged = |why: String| {
            EngineError::Config(format!(
                "{}: the list of the cluster's nodes can't be read: {why}. Restore the file; or delete it and give \
                 the number of nodes with --expect-nodes",
                path.display()
            ))
        };
        let bytes = match File::open(path).and_then(|file| read_at_most(file, BYTES_MAX)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::new(node)),
            Err(error) => return Err(damaged(error.to_string())),
        };
        let state: State = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if state.version != VERSION {
            return Err(damaged(format!("unsupported version {}, expected {VERSION}", state.version)));
        }
        if state.node != node {
            return Err(damaged(format!("it belongs to node {}", state.node)));
        }
        if state.members.len() > NODES_MAX {
            return Err(damaged(format!("it names more than {NODES_MAX} nodes")));
        }
        Ok(state)
    }

    /// Replaces the file atomically, and syncs it to disk.
    ///
    /// # Errors
    /// When the file can't be written.
    pub(crate) fn write(&self, state: &State) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let write = || -> io::Result<()> {
            let folder = path.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(folder)?;
            let mut file = tempfile::Builder::new().prefix(".").suffix(".part").tempfile_in(folder)?;
            file.write_all(serde_json::to_string_pretty(state)?.as_bytes())?;
            file.write_all(b"\n")?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            File::open(folder)?.sync_all()
        };
        write().map_err(|error| {
            EngineError::File(format!(
                "{}: the list of the cluster's nodes can't be written: {error}",
                path.display()
            ))
        })
    }
}

fn read_at_most(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::other("it is too large")),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_state_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(Some(&folder.path().join("not/there")), "[::1]:4270");
        let mut state = store.read("[::1]:4270").unwrap();
        assert_eq!(state, State::new("[::1]:4270"));
        state.members.admit("db/2:4270").unwrap();
        state.parts.insert("orders".into());
        store.write(&state).unwrap();
        assert_eq!(store.read("[::1]:4270").unwrap(), state);
        store.write(&State::new("[::1]:4270")).unwrap();
        assert_eq!(store.read("[::1]:4270").unwrap(), State::new("[::1]:4270"));
        let files = fs::read_dir(store.path.as_ref().unwrap().parent().unwrap()).unwrap();
        assert_eq!(files.count(), 1, "no partial file is left");
        let other = Store::new(Some(folder.path()), "b:1");
        assert_ne!(other.path, Store::new(Some(folder.path()), "b_3a_1").path);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_never_an_empty_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(Some(folder.path()), "a:1");
        let mut state = State::new("a:1");
        state.members.admit("b:1").unwrap();
        store.write(&state).unwrap();
        let path = store.path.clone().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let spoilt = [
            String::new(),
            text[..text.len() / 2].to_owned(),
            "{}".to_owned(),
            text.replace("\"version\": 1", "\"version\": 2"),
            text.replace("\"node\": \"a:1\"", "\"node\": \"c:1\""),
            text.replace("\"generation\": 1", "\"generation\": -1"),
        ];
        for spoilt in spoilt {
            assert_ne!(spoilt, text);
            fs::write(&path, &spoilt).unwrap();
            let error = store.read("a:1").expect_err(&spoilt).to_string();
            assert!(error.contains("--expect-nodes"), "{error}");
        }
        fs::remove_file(&path).and_then(|()| fs::create_dir(&path)).unwrap();
        store.read("a:1").unwrap_err();
        store.write(&state).unwrap_err();
    }
}
