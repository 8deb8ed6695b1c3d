//! A place to ask, and its answer.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Instant, SystemTime};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::StreamExt;
use lightship_engine::{Engine, EngineConfig};
use lightship_session::{Client, ClientConfig, Endpoint, Fact, Known, Options, Profiles, Transfer};
use lightship_sources::columns::DuplicateColumns;
use lightship_sources::decoded::Slices;
use lightship_sources::limit::ConnectionLimits;
use lightship_sources::location::Tls;
use lightship_sources::mysql::MySqlSource;
use lightship_sources::postgres::PostgresSource;
use lightship_sources::sqlite::SqliteSource;
use lightship_sources::{Location, ReadOptions, Source, Tuples};

use super::columns;
use super::turns::Supply;
use crate::error::{CliError, Kind};

/// Environment variable with the token for a node.
const TOKEN_VARIABLE: &str = "LIGHTSHIP_TOKEN";

/// How to read from a place.
pub(crate) struct FeedOptions {
    pub(crate) transfer: Options,
    pub(crate) read: ReadOptions,
    pub(crate) duplicate_columns: DuplicateColumns,
    /// For queries over files, which run here.
    pub(crate) query_memory_bytes: usize,
}

/// A place to ask, opened.
pub(super) struct Feed {
    /// As the user and profiles name it, without password.
    place: String,
    opened: Opened,
}

enum Opened {
    Node(Box<Client>),
    Database(Box<dyn Source>),
    Files(Engine),
}

impl Feed {
    pub(super) async fn open(location: &Location, options: &FeedOptions) -> Result<Self, CliError> {
        let opened = match location {
            Location::Node { .. } | Location::NodeUnix { .. } => {
                let (endpoint, config) = endpoint(location)?;
                Opened::Node(Box::new(Client::connect_with(&endpoint, &config).await?))
            }
            Location::Path(path) => {
                let query_memory_bytes = options.query_memory_bytes;
                let mut engine = Engine::new(EngineConfig { query_memory_bytes, ..EngineConfig::default() })?;
                engine.register_path(&table_name(path), path).await?;
                Opened::Files(engine)
            }
            database => Opened::Database(open_database(database, &ConnectionLimits::unlimited()).await?),
        };
        Ok(Self { place: location.to_string(), opened })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// `number` is that of the place, in the order in which they were named.
    pub(super) async fn ask(
        &mut self,
        number: usize,
        sql: &str,
        options: &FeedOptions,
    ) -> Result<Answer<'_>, CliError> {
        let began = Instant::now();
        let rows = match &mut self.opened {
            Opened::Node(client) => {
                let known = known(&self.place, sql, &client.carrier().to_string());
                Rows::Node(Box::new(client.fetch(sql, &Options { known, ..options.transfer }).await?))
            }
            Opened::Database(source) => Rows::Database(source.query(sql, &options.read).await?),
            Opened::Files(engine) => {
                let running = engine.query(sql).await?;
                let (schema, rows_estimate) = (running.schema().clone(), running.rows_estimate());
                Rows::Files { schema, rows_estimate, rows: running.into_rows() }
            }
        };
        let place = self.place.clone();
        let so_far = Ended { number, place, rows: 0, bytes_arrow: 0, seconds: 0.0, node: None };
        let (waiting, row_bytes_max) = (None, options.read.row_bytes_max as u64);
        Ok(Answer { rows, waiting, row_bytes_max, united: None, began, so_far })
    }
}

/// What is known of a link and a query. What can't be read, or is in doubt, is nothing known: the transfer finds
/// out.
pub(crate) fn known(name: &str, sql: &str, carrier: &str) -> Known {
    let Ok(profiles) = Profiles::of_user() else { return Known::default() };
    let unread = |error| tracing::warn!(%error, "going on without what was known of the link");
    let profile = profiles.find(name).map_err(unread).ok().flatten();
    let profile = profile.filter(|profile| profile.doubts(SystemTime::now()).is_empty());
    let mut facts = profiles.facts(name).map_err(unread).unwrap_or_default();
    facts.retain(|fact| fact.carrier == carrier);
    Known::of(profile.as_ref(), &facts, sql)
}

/// A result that has come is whole, whether or not this can be kept of it.
pub(super) fn keep(name: &str, fact: Fact) {
    if let Ok(profiles) = Profiles::of_user()
        && let Err(error) = profiles.record(name, fact)
    {
        tracing::warn!(%error, "what this transfer took is not kept");
    }
}

/// A result on its way, from any place.
pub(super) struct Answer<'a> {
    rows: Rows<'a>,
    /// Rows that came with those that were given last.
    waiting: Option<Slices>,
    row_bytes_max: u64,
    /// The schema of all answers together, where it is not that of this one.
    united: Option<SchemaRef>,
    began: Instant,
    so_far: Ended,
}

enum Rows<'a> {
    Node(Box<Transfer<'a>>),
    Database(lightship_sources::Rows),
    Files { schema: SchemaRef, rows_estimate: Option<u64>, rows: lightship_transport::net::Rows },
}

/// What an answer came to.
pub(super) struct Ended {
    pub(super) number: usize,
    pub(super) place: String,
    pub(super) rows: u64,
    /// As the rows came, before they were made to fit others.
    pub(super) bytes_arrow: u64,
    /// From the question to the last row.
    pub(super) seconds: f64,
    /// What a node's transfer has to say beyond that.
    pub(super) node: Option<lightship_session::Report>,
}

impl Answer<'_> {
    pub(super) fn schema(&self) -> SchemaRef {
        match &self.rows {
            Rows::Node(transfer) => transfer.schema().clone(),
            Rows::Database(rows) => rows.schema.clone(),
            Rows::Files { schema, .. } => schema.clone(),
        }
    }

    pub(super) fn rows_estimate(&self) -> Option<u64> {
        match &self.rows {
            Rows::Node(transfer) => transfer.rows_estimate(),
            Rows::Database(rows) => rows.rows_estimate,
            Rows::Files { rows_estimate, .. } => *rows_estimate,
        }
    }

    /// From now on rows come with these columns.
    pub(super) fn fit(&mut self, united: &SchemaRef) {
        self.united = Some(united.clone()).filter(|united| *united != self.schema());
    }

    /// The offer of its source to leave the rows as they are.
    pub(super) fn tuples(&mut self) -> Option<Tuples> {
        match &mut self.rows {
            // Columns made to fit others have to be there.
            Rows::Database(rows) if self.united.is_none() => rows.tuples.take(),
            _ => None,
        }
    }

    pub(super) fn place(&self) -> &str {
        &self.so_far.place
    }

    pub(super) fn ended(self) -> Ended {
        self.so_far
    }
}

impl Supply for Answer<'_> {
    /// Rows, and their bytes as they came.
    type Item = (RecordBatch, u64);
    type Error = CliError;

    async fn next(&mut self) -> Result<Option<Self::Item>, CliError> {
        let next = loop {
            if let Some(slice) = self.waiting.as_mut().map(Slices::try_next).transpose()?.flatten() {
                break Some(slice);
            }
            let batch = match &mut self.rows {
                Rows::Node(transfer) => transfer.next().await?,
                Rows::Database(rows) => rows.batches.next().await.transpose()?,
                Rows::Files { rows, .. } => rows.next().await.transpose()?,
            };
            let Some(batch) = batch else { break None };
            self.waiting = Some(Slices::new(batch, self.so_far.rows, self.row_bytes_max));
        };
        let Some(batch) = next else {
            self.so_far.seconds = self.began.elapsed().as_secs_f64();
            if let Rows::Node(transfer) = &self.rows {
                self.so_far.node = Some(transfer.report());
            }
            return Ok(None);
        };
        let bytes = lightship_wire::rows_bytes(&batch);
        self.so_far.rows += batch.num_rows() as u64;
        self.so_far.bytes_arrow += bytes;
        let Some(united) = &self.united else { return Ok(Some((batch, bytes))) };
        let fitted = columns::fit(&batch, united);
        Ok(Some((fitted.map_err(|error| CliError::new(Kind::Data, error.to_string()))?, bytes)))
    }
}

/// Opens a database, which has no more connections than the limits allow.
pub(crate) async fn open_database(
    location: &Location,
    limits: &ConnectionLimits,
) -> Result<Box<dyn Source>, CliError> {
    Ok(match location {
        Location::Postgres(uri) => Box::new(PostgresSource::connect_within(uri, limits).await?),
        Location::MySql(uri) => Box::new(MySqlSource::connect_within(uri, limits).await?),
        Location::Sqlite(path) => {
            // A file that can't be opened has nothing to do with the network.
            let as_source = |error| CliError { kind: Kind::Source, ..CliError::from(error) };
            Box::new(SqliteSource::open(path).map_err(as_source)?)
        }
        other => return Err(CliError::usage(format!("{other} is not a database"))),
    })
}

/// Where a node is, and how to be its client.
pub(crate) fn endpoint(location: &Location) -> Result<(Endpoint, ClientConfig), CliError> {
    endpoint_as(location, None)
}

/// With this token, if there is one, instead of that of the URI or the environment.
pub(crate) fn endpoint_as(
    location: &Location,
    own: Option<String>,
) -> Result<(Endpoint, ClientConfig), CliError> {
    let config = |token: Option<&String>, shared_memory| {
        let from_environment = || std::env::var(TOKEN_VARIABLE).unwrap_or_default();
        let token = own.clone().or_else(|| token.cloned()).unwrap_or_else(from_environment);
        ClientConfig { token, shared_memory, ..ClientConfig::default() }
    };
    match location {
        Location::NodeUnix { path, shared_memory } => {
            Ok((Endpoint::Unix(path.clone()), config(None, *shared_memory)))
        }
        Location::Node { host, port, token, tls, shared_memory, insecure } => {
            let tls = match tls {
                Tls::Off => None,
                Tls::System => {
                    let found = rustls_native_certs::load_native_certs();
                    Some(lightship_transport::net::tls::client(found.certs)?)
                }
                Tls::Ca(path) => Some(lightship_transport::net::tls::client_with_authority(path)?),
            };
            let config = config(token.as_ref(), *shared_memory);
            if tls.is_none() && !config.token.is_empty() && !insecure && !is_this_host(host) {
                return Err(CliError::usage(format!("the token would go to {host} in clear")).hint(
                    "encrypt the connection with ?tls=true, or ?ca=FILE for an own authority; on a network that \
                     you trust, ?insecure=true sends it all the same",
                ));
            }
            Ok((Endpoint::Tcp { host: host.clone(), port: *port, tls }, config))
        }
        other => Err(CliError::usage(format!("{other} is not a node"))),
    }
}

/// Whether what is sent there does not leave this host.
pub(crate) fn is_this_host(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The name under which SQL finds a file or folder: its own, without extension,
/// in lower case, what SQL has no letters for replaced.
pub(crate) fn table_name(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let stem = full.file_stem().map(|stem| stem.to_string_lossy().to_lowercase()).unwrap_or_default();
    let mut name: String = stem.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    if !name.starts_with(|c: char| c.is_alphabetic()) {
        name.insert(0, '_');
    }
    name
}
