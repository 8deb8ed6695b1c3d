//! Objects of object stores as tables.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::object_store::path::Path as Key;
use datafusion::object_store::{Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt as _};
use datafusion::prelude::SessionContext;
use futures::TryStreamExt as _;
use glob::Pattern;
use lightship_sources::SourceError;
use lightship_sources::file_options::FileOptions;
use lightship_sources::objects::{ObjectError, ObjectErrorKind, ObjectLocation, ObjectScheme, Store};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use url::Url;

use super::input::FilePath;
use super::kind::FileKind;
use super::{Found, filter, hash, kind_in_folder, one_kind, table};
use crate::error::{EngineError, Result};

/// Maximum number of objects of a table.
const OBJECTS_MAX: usize = 1_000_000;

/// Characters of a name that mean something else in a URL.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'%')
    .add(b'?')
    .add(b'#')
    .add(b'\\')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'|')
    .add(b'^');

/// Objects that form a table.
struct Objects {
    /// The prefix that they share, or the one object.
    prefix: Key,
    is_folder: bool,
    pattern: Option<Pattern>,
    objects: Vec<ObjectMeta>,
}

/// A table over an object, over the objects below a prefix, or over those whose names match a pattern.
pub(super) async fn open(
    context: &SessionContext,
    location: &ObjectLocation,
) -> Result<Arc<dyn TableProvider>> {
    let fail = |reason: String| EngineError::File(format!("{location}: {reason}"));
    let store = Store::of(location).map_err(SourceError::from)?;
    let found = find(&store, location).await?;
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let options = location.file_options();
    let objects = found.objects.iter().map(|object| FilePath::of(Some(location.root()), &store, object));
    let objects = objects.collect::<std::result::Result<Vec<_>, _>>().map_err(of_store)?;
    let (kind, suffix) = match &objects[..] {
        [file] if !found.is_folder => {
            let file = file.clone();
            let options = options.clone();
            let kind = tokio::task::spawn_blocking(move || FileKind::of_file(&file, &options)).await;
            (kind.map_err(|e| EngineError::Internal(e.to_string()))??, String::new())
        }
        _ => kind_of_folder(&found, &options).map_err(fail)?,
    };
    let root = url_of_store(location)?;
    context.register_object_store(&root, store);
    let mut url = root;
    let path = utf8_percent_encode(found.prefix.as_ref(), ESCAPED).to_string();
    url.set_path(&if found.is_folder && !path.is_empty() { format!("/{path}/") } else { format!("/{path}") });
    let urls = vec![ListingTableUrl::try_new(url, found.pattern)?];
    let root = Some(location.root().to_owned());
    let found = Found { kind, suffix: filter(&suffix), urls, paths: Vec::new(), objects, root };
    table(context, Path::new(&location.to_string()), found, &options).await
}

/// The URL under which DataFusion knows the store. Two signed URLs of one host have different stores.
fn url_of_store(location: &ObjectLocation) -> Result<Url> {
    let (root, query) = location.store_key();
    let (scheme, authority) = root.split_once("://").unwrap_or(("", &root));
    // Not the location itself: a name of a bucket need not be a valid host.
    let authority = hash(format!("{authority}?{}", query.unwrap_or_default()).as_bytes());
    let url = Url::parse(&format!("lightship-{scheme}://{authority:x}/"));
    url.map_err(|error| EngineError::Internal(format!("{location}: {error}")))
}

fn missing(location: &ObjectLocation) -> EngineError {
    let error = ObjectError {
        object: location.to_string(),
        reason: "there is no such object, and none whose name begins with it and `/`".into(),
        hint: Some("check the name and the bucket; names are case sensitive".into()),
        kind: ObjectErrorKind::Missing,
    };
    EngineError::Source(error.into())
}

fn of_store(error: StoreError) -> EngineError {
    EngineError::from(datafusion::error::DataFusionError::from(error))
}

/// Finds the objects of a table.
async fn find(store: &Store, location: &ObjectLocation) -> Result<Objects> {
    let key = location.key();
    if !location.is_prefix() {
        match store.head(&key).await {
            Ok(meta) => {
                return Ok(Objects { prefix: key, is_folder: false, pattern: None, objects: vec![meta] });
            }
            // It may be a prefix, or a pattern.
            Err(StoreError::NotFound { .. }) if location.scheme() != ObjectScheme::Http => {}
            Err(error) => return Err(of_store(error)),
        }
    }
    let is_wild = |text: &str| text.contains(['*', '?', '[']);
    let (prefix, pattern) = match key.as_ref().rsplit_once('/').unwrap_or(("", key.as_ref())) {
        (folder, name) if is_wild(name) && !location.is_prefix() && !is_wild(folder) => {
            let pattern = Pattern::new(name).map_err(|error| {
                EngineError::Config(format!("{location}: `{name}` is not a pattern: {error}"))
            })?;
            (
                Key::parse(folder).map_err(|error| EngineError::Config(format!("{location}: {error}")))?,
                Some(pattern),
            )
        }
        (folder, _) if is_wild(folder) => {
            let message = format!("{location}: only the last part of a name may have wildcards");
            return Err(EngineError::Config(message));
        }
        _ => (key, None),
    };
    let mut objects = Vec::new();
    let mut listed = store.list(Some(&prefix).filter(|prefix| !prefix.as_ref().is_empty()));
    while let Some(meta) = listed.try_next().await.map_err(of_store)? {
        if objects.len() >= OBJECTS_MAX {
            return Err(EngineError::TooComplex {
                message: format!("{location}: more than {OBJECTS_MAX} objects"),
                position: None,
                hint: Some("read a narrower prefix".into()),
            });
        }
        objects.push(meta);
    }
    let found = Objects { prefix, is_folder: true, pattern, objects };
    if found.objects.is_empty() { Err(missing(location)) } else { Ok(found) }
}

/// The kind of the files of a folder and their extension; a reason if it can't be read as one table.
fn kind_of_folder(found: &Objects, options: &FileOptions) -> std::result::Result<(FileKind, String), String> {
    let names = || {
        found.objects.iter().map(|meta| {
            let key = meta.location.as_ref();
            let name = key.strip_prefix(found.prefix.as_ref()).unwrap_or(key).trim_start_matches('/');
            let (folders, file) = name.rsplit_once('/').unwrap_or(("", name));
            (name, folders, file)
        })
    };
    // First, whatever the order of the objects: the data of such a table looks like that of others.
    if let Some(what) = names().find_map(|(_, folders, file)| table_format(folders, file)) {
        return Err(format!("{what}, whose files are not all part of it; {READ_BY_DUCKDB}"));
    }
    let mut kinds = BTreeSet::new();
    for (name, folders, file) in names() {
        let Some(kind) = kind_in_folder(Path::new(file), options) else { continue };
        if folders.split('/').any(|folder| folder.starts_with('.')) {
            continue;
        }
        let is_read = folders.is_empty() || folders.split('/').all(|folder| folder.contains('='));
        match &found.pattern {
            Some(pattern) if !is_read || !pattern.matches(file) => continue,
            None if !is_read => return Err(format!("{name}: {}", super::UNREAD_HINT)),
            _ => {}
        }
        if file.starts_with('.') {
            return Err(format!("{name}: {}", super::HIDDEN_HINT));
        }
        kinds.insert(kind);
    }
    one_kind(kinds)
}

/// What to do with a table of a lake.
const READ_BY_DUCKDB: &str = "read it by DuckDB (docs/guide/object-stores.md)";

/// The table format that a file below a folder belongs to.
fn table_format(folders: &str, file: &str) -> Option<&'static str> {
    if folders == "_delta_log" {
        Some("this is a Delta table")
    } else if folders == "metadata" && (file == "version-hint.text" || file.ends_with(".metadata.json")) {
        Some("this is an Iceberg table")
    } else {
        None
    }
}

/// Tells versions of a table's objects apart: a hash of their names, sizes, times and tags. Never 0.
pub(super) async fn fingerprint(location: &ObjectLocation) -> Result<u64> {
    let store = Store::of(location).map_err(SourceError::from)?;
    let mut objects = find(&store, location).await?.objects;
    objects.sort_by(|a, b| a.location.cmp(&b.location));
    let mut text = String::new();
    let options = location.file_options();
    if options != FileOptions::default() {
        let _ = writeln!(text, "{options:?}");
    }
    for meta in objects {
        let changed = meta.last_modified.timestamp();
        let _ =
            writeln!(text, "{}\0{}\0{changed}\0{}", meta.location, meta.size, meta.e_tag.unwrap_or_default());
    }
    Ok(hash(text.as_bytes()).max(1))
}
