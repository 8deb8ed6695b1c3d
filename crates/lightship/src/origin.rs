//! An opened source, and its result.

use std::path::Path;
use std::time::Instant;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::StreamExt;
use lightship_engine::{Engine, EngineConfig, FileAccess, FileLocation, STDIN};
use lightship_session::{Client, Transfer};
use lightship_sources::decoded::Slices;
use lightship_sources::file_options::{FileOptions, is_compressed};
use lightship_sources::limit::ConnectionLimits;
use lightship_sources::{Location, Source, StatementInfo, Tuples};

use crate::gather::Input;
use crate::options::PlaceOptions;
use crate::report::SourceTotals;
use crate::{Error, ErrorKind, Result, Statement, columns, node};

/// An opened source.
pub(crate) struct OpenSource {
    /// As it appears in profiles and messages, without the password.
    uri: String,
    opened: SourceKind,
}

enum SourceKind {
    Node(Box<Client>),
    Database(Box<dyn Source>),
    Files(Engine),
}

impl OpenSource {
    pub(crate) async fn open(location: &Location, options: &PlaceOptions) -> Result<Self> {
        let opened = match location {
            Location::Node { .. } | Location::NodeUnix { .. } => {
                let (endpoint, config) = node::endpoint(location)?;
                SourceKind::Node(Box::new(Client::connect_with(&endpoint, &config).await?))
            }
            Location::Path(_) | Location::Object(_) => {
                open_files(&[(files(location)?.0, location.clone())], options).await?
            }
            Location::Tables(tables) => open_files(tables, options).await?,
            database => SourceKind::Database(open_database(database, &ConnectionLimits::unlimited()).await?),
        };
        Ok(Self { uri: location.to_string(), opened })
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// The columns and parameters of a statement, which is not executed.
    pub(crate) async fn describe(&mut self, sql: &str, options: &PlaceOptions) -> Result<StatementInfo> {
        let described = match &mut self.opened {
            SourceKind::Node(client) => client.describe(sql).await?,
            SourceKind::Database(source) => return Ok(source.describe(sql, &options.read).await?),
            SourceKind::Files(engine) => engine.prepare(sql).await?,
        };
        Ok(StatementInfo { columns: described.columns, parameters: described.parameters })
    }

    /// Runs a query, with the values of its parameters if there are some. `number` is the position of this source among
    /// those given, from 0.
    pub(crate) async fn query(
        &mut self,
        number: usize,
        statement: &Statement,
        options: &PlaceOptions,
    ) -> Result<SourceResult<'_>> {
        let began = Instant::now();
        let Statement { sql, parameters } = statement;
        let rows = match &mut self.opened {
            SourceKind::Node(client) => {
                let known = node::known(&self.uri, sql, &client.carrier().to_string());
                let options = lightship_session::Options { known, ..options.transfer };
                Rows::Node(Box::new(match parameters {
                    None => client.fetch(sql, &options).await?,
                    Some(row) => client.execute(sql, row, &options).await?,
                }))
            }
            SourceKind::Database(source) => Rows::Database(match parameters {
                None => source.query(sql, &options.read).await?,
                Some(row) => source.execute(sql, row, &options.read).await?,
            }),
            SourceKind::Files(engine) => {
                let running = engine.execute(sql, parameters.as_ref()).await?;
                let (schema, rows_estimate) = (running.schema().clone(), running.rows_estimate());
                Rows::Files { schema, rows_estimate, rows: running.into_rows() }
            }
        };
        let uri = self.uri.clone();
        Ok(SourceResult {
            rows,
            waiting: None,
            row_bytes_max: options.read.row_bytes_max as u64,
            cast_to: None,
            began,
            delivery: SourceTotals { number, uri, rows: 0, bytes_arrow: 0, seconds: 0.0, node: None },
        })
    }
}

/// The result of a query at one source, while it arrives.
pub(crate) struct SourceResult<'a> {
    rows: Rows<'a>,
    /// The part of the latest batch that was not yet returned.
    waiting: Option<Slices>,
    row_bytes_max: u64,
    /// The common columns of all sources, if they differ from those of this one.
    cast_to: Option<SchemaRef>,
    began: Instant,
    delivery: SourceTotals,
}

enum Rows<'a> {
    Node(Box<Transfer<'a>>),
    Database(lightship_sources::Rows),
    Files { schema: SchemaRef, rows_estimate: Option<u64>, rows: lightship_transport::net::Rows },
}

impl SourceResult<'_> {
    pub(crate) fn schema(&self) -> SchemaRef {
        match &self.rows {
            Rows::Node(transfer) => transfer.schema().clone(),
            Rows::Database(rows) => rows.schema.clone(),
            Rows::Files { schema, .. } => schema.clone(),
        }
    }

    pub(crate) fn rows_estimate(&self) -> Option<u64> {
        match &self.rows {
            Rows::Node(transfer) => transfer.rows_estimate(),
            Rows::Database(rows) => rows.rows_estimate,
            Rows::Files { rows_estimate, .. } => *rows_estimate,
        }
    }

    /// Casts all later batches to these columns.
    pub(crate) fn cast_to(&mut self, schema: &SchemaRef) {
        self.cast_to = Some(schema.clone()).filter(|schema| *schema != self.schema());
    }

    /// Takes the source's offer to pass rows on undecoded.
    pub(crate) fn tuples(&mut self) -> Option<Tuples> {
        match &mut self.rows {
            // Rows must be decoded to be cast.
            Rows::Database(rows) if self.cast_to.is_none() => rows.tuples.take(),
            _ => None,
        }
    }

    async fn next_batch(&mut self) -> Result<Option<(RecordBatch, u64)>> {
        let next = loop {
            if let Some(slice) = self.waiting.as_mut().map(Slices::try_next).transpose()?.flatten() {
                break Some(slice);
            }
            let batch = match &mut self.rows {
                Rows::Node(transfer) => transfer.next().await?,
                Rows::Database(rows) => rows.batches.next().await.transpose()?,
                Rows::Files { rows, .. } => rows.next().await.transpose().map_err(Error::from)?,
            };
            let Some(batch) = batch else { break None };
            self.waiting = Some(Slices::new(batch, self.delivery.rows, self.row_bytes_max));
        };
        let Some(batch) = next else {
            self.delivery.seconds = self.began.elapsed().as_secs_f64();
            if let Rows::Node(transfer) = &self.rows {
                self.delivery.node = Some(transfer.report());
            }
            return Ok(None);
        };
        let bytes = lightship_wire::rows_bytes(&batch);
        self.delivery.rows += batch.num_rows() as u64;
        self.delivery.bytes_arrow += bytes;
        let Some(schema) = &self.cast_to else { return Ok(Some((batch, bytes))) };
        let cast = columns::cast(&batch, schema);
        Ok(Some((cast.map_err(|error| Error::new(ErrorKind::Data, error.to_string()))?, bytes)))
    }
}

/// A query at one source among several: its result, or the query before it runs.
pub(crate) enum SourceQuery<'a> {
    Waiting(Box<WaitingQuery<'a>>),
    Running(Box<SourceResult<'a>>),
    /// It could not be run.
    Failed {
        uri: String,
    },
}

/// A query that runs when it is the source's turn.
pub(crate) struct WaitingQuery<'a> {
    pub(crate) source: &'a mut OpenSource,
    /// The position of the source among those given, from 0.
    pub(crate) number: usize,
    pub(crate) statement: Statement,
    pub(crate) options: PlaceOptions,
    /// The columns that the source has announced.
    pub(crate) announced: SchemaRef,
    /// The common columns of all sources.
    pub(crate) cast_to: SchemaRef,
}

impl<'a> WaitingQuery<'a> {
    async fn run(self) -> Result<SourceResult<'a>> {
        let result = self.source.query(self.number, &self.statement, &self.options).await;
        let mut result = result.map_err(|error| error.in_statement(&self.statement.sql))?;
        if result.schema() != self.announced {
            let message = "the columns have changed since the query began";
            return Err(Error::new(ErrorKind::Data, message));
        }
        result.cast_to(&self.cast_to);
        Ok(result)
    }
}

impl<'a> SourceQuery<'a> {
    pub(crate) fn uri(&self) -> &str {
        match self {
            Self::Waiting(waiting) => waiting.source.uri(),
            Self::Running(result) => &result.delivery.uri,
            Self::Failed { uri } => uri,
        }
    }

    /// Casts all batches to these columns.
    pub(crate) fn cast_to(&mut self, schema: &SchemaRef) {
        match self {
            Self::Waiting(waiting) => waiting.cast_to = schema.clone(),
            Self::Running(result) => result.cast_to(schema),
            Self::Failed { .. } => {}
        }
    }

    /// What the source has delivered; `None` if its query has not run.
    pub(crate) fn into_delivery(self) -> Option<SourceTotals> {
        match self {
            Self::Running(result) => Some(result.delivery),
            Self::Waiting(_) | Self::Failed { .. } => None,
        }
    }

    /// The result. Runs the query if it has not run.
    async fn running(&mut self) -> Result<&mut SourceResult<'a>> {
        if let Self::Waiting(_) = self {
            let uri = self.uri().to_owned();
            if let Self::Waiting(waiting) = std::mem::replace(self, Self::Failed { uri }) {
                *self = Self::Running(Box::new(waiting.run().await?));
            }
        }
        match self {
            Self::Running(result) => Ok(result),
            _ => Err(Error::new(ErrorKind::Internal, "a query that has failed was read on")),
        }
    }
}

impl Input for SourceQuery<'_> {
    /// A batch, and its bytes before it was cast.
    type Item = (RecordBatch, u64);
    type Error = Error;

    async fn next(&mut self) -> Result<Option<Self::Item>> {
        self.running().await?.next_batch().await
    }

    fn size((batch, bytes): &Self::Item) -> (u64, u64) {
        (*bytes, batch.num_rows() as u64)
    }
}

/// Files as tables of an engine.
async fn open_files(tables: &[(String, Location)], options: &PlaceOptions) -> Result<SourceKind> {
    let query_memory_bytes = options.query_memory_bytes;
    let mut engine = Engine::new(EngineConfig { query_memory_bytes, ..EngineConfig::default() })?;
    for (name, location) in tables {
        match location {
            Location::Path(path) if is_stdin(path) => {
                engine.register_stdin(name, path, Box::new(std::io::stdin())).await?;
            }
            location => engine.register_files(name, files(location)?.1, FileAccess::Own).await?,
        }
    }
    Ok(SourceKind::Files(engine))
}

/// Whether the location of a file stands for standard input: `-`, perhaps with options.
pub fn is_stdin(location: &Path) -> bool {
    FileOptions::split(location).is_ok_and(|(path, _)| path == Path::new(STDIN))
}

/// Opens a database with no more connections to its server than the limits allow.
///
/// # Errors
/// If the location is not a database, or can't be opened.
pub async fn open_database(location: &Location, limits: &ConnectionLimits) -> Result<Box<dyn Source>> {
    lightship_sources::open(location, limits).await.map_err(|error| match location {
        // A file that can't be opened is not a network error.
        Location::Sqlite(_) => Error { kind: ErrorKind::Source, ..Error::from(error) },
        _ => error.into(),
    })
}

/// Files and the name of their table in SQL.
///
/// # Errors
/// If the location is a database or a node.
pub fn files(location: &Location) -> Result<(String, FileLocation)> {
    match location {
        Location::Path(path) => Ok((table_name(path), FileLocation::Path(path.clone()))),
        Location::Object(object) => {
            let path = object.as_path();
            let last = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let last = last.unwrap_or_else(|| object.bucket().to_owned());
            let name = match last.find(WILDCARDS) {
                Some(wildcard) => match (before_wildcard(&last[..wildcard]), path.parent()) {
                    ("", Some(folder)) if folder.file_name().is_some() => {
                        folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
                    }
                    ("", _) => object.bucket().to_owned(),
                    (before, _) => before.to_owned(),
                },
                None if object.is_prefix() || path.extension().is_none() => last,
                None if is_compressed(path) => without_extension(&without_extension(&last)),
                None => without_extension(&last),
            };
            Ok((sql_name(&name), FileLocation::Objects(object.clone())))
        }
        other => Err(Error::usage(format!("{other} has no files"))),
    }
}

/// The table name of a file or folder in SQL: its name, of a file without the extension, in lower case, with
/// `_` in place of characters that are neither letters nor digits. Of a pattern such as `sales-*.csv`, what precedes the
/// first wildcard, or the name of the folder. Standard input is `stdin`.
pub fn table_name(location: &Path) -> String {
    let path = FileOptions::split(location).map_or_else(|_| location.to_owned(), |(path, _)| path);
    if path == Path::new(STDIN) {
        return "stdin".to_owned();
    }
    let full = path.canonicalize().unwrap_or(path);
    let stem = if full.is_dir() { full.file_name() } else { full.file_stem() };
    let mut stem = stem.map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    if let (Some(wildcard), false) = (stem.find(WILDCARDS), full.exists()) {
        let before = before_wildcard(&stem[..wildcard]);
        let folder = full.parent().map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.to_owned()));
        let folder = || Some(folder?.file_name()?.to_string_lossy().into_owned());
        stem = if before.is_empty() { folder().unwrap_or_default() } else { before.to_owned() };
    } else if !full.is_dir() && is_compressed(&full) {
        stem = without_extension(&stem);
    }
    sql_name(&stem)
}

const WILDCARDS: [char; 3] = ['*', '?', '['];

/// What precedes a wildcard, without what separates them.
fn before_wildcard(text: &str) -> &str {
    text.trim_end_matches(|c: char| !c.is_alphanumeric())
}

/// `sales.csv.gz` is `sales`.
fn without_extension(name: &str) -> String {
    Path::new(name).file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn sql_name(name: &str) -> String {
    let mut name: String =
        name.to_lowercase().chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    if !name.starts_with(|c: char| c.is_alphabetic()) {
        name.insert(0, '_');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_names_like_files() {
        for (uri, expected) in [
            ("s3://b/a/Sales-1.0.parquet", "sales_1_0"),
            ("s3://b/a/sales.v2/", "sales_v2"),
            ("s3://b/a/sales", "sales"),
            ("s3://b/a/sales/*.csv", "sales"),
            ("s3://b/2024-*.csv", "_2024"),
            ("s3://b/*.csv", "b"),
            ("s3://b/x/sales-*.csv", "sales"),
            ("s3://b/sales.csv.gz?delimiter=;", "sales"),
            ("s3://my-bucket", "my_bucket"),
            ("https://h/a/x.csv?sig=y", "x"),
        ] {
            let (name, _) = files(&Location::parse(uri).expect("a location")).expect("files");
            assert_eq!(name, expected, "{uri}");
        }
    }

    #[test]
    fn a_folder_keeps_what_follows_a_dot_in_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, is_folder, expected) in [
            ("sales-1.0", true, "sales_1_0"),
            ("sales-1.1", true, "sales_1_1"),
            ("Sales.parquet", false, "sales"),
            ("2020.csv", false, "_2020"),
            ("sales.csv.gz", false, "sales"),
            ("sales.csv.v2", false, "sales_csv"),
        ] {
            let path = folder.path().join(name);
            if is_folder {
                std::fs::create_dir(&path).expect("a folder");
            } else {
                std::fs::write(&path, "").expect("a file");
            }
            assert_eq!(table_name(&path), expected);
        }
        for (location, expected) in [
            ("sales-20*.csv", "sales_20"),
            ("sales-*.csv", "sales"),
            ("Sales.parquet?format=csv", "sales"),
            ("-", "stdin"),
        ] {
            let location = if location == "-" { location.into() } else { folder.path().join(location) };
            assert_eq!(table_name(&location), expected);
        }
        let inside = folder.path().join("sales-1.0/*.csv");
        assert_eq!(table_name(&inside), "sales_1_0");
    }
}
