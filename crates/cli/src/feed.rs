//! Where rows come from: a node, a database, or files on this host.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::StreamExt;
use lightship_engine::{Engine, EngineConfig};
use lightship_session::{Client, ClientConfig, Endpoint, Fact, Known, Options, Profiles, Transfer};
use lightship_sources::location::Tls;
use lightship_sources::mysql::MySqlSource;
use lightship_sources::postgres::PostgresSource;
use lightship_sources::sqlite::SqliteSource;
use lightship_sources::{Destination, Location, ReadOptions, Source};

use crate::error::{CliError, Kind};
use crate::progress::Progress;
use crate::report::{CodecReport, PlanReport, Report, RetuneReport, StagesReport, peak_memory_bytes};

/// Environment variable with the token for a node.
pub(crate) const TOKEN_VARIABLE: &str = "LIGHTSHIP_TOKEN";

/// A place to ask, opened.
pub(crate) enum Feed {
    Node {
        client: Box<Client>,
        /// As profiles name it.
        name: String,
    },
    Database(Box<dyn Source>),
    Files(Engine),
}

/// How to read from a feed.
#[derive(Default)]
pub(crate) struct FeedOptions {
    pub(crate) transfer: Options,
    pub(crate) read: ReadOptions,
    /// For queries over files, which run here.
    pub(crate) query_memory_bytes: Option<usize>,
}

impl Feed {
    pub(crate) async fn open(location: &Location, options: &FeedOptions) -> Result<Self, CliError> {
        Ok(match location {
            Location::Node { .. } | Location::NodeUnix { .. } => {
                let (endpoint, config) = endpoint(location)?;
                let client = Box::new(Client::connect_with(&endpoint, &config).await?);
                Self::Node { client, name: location.to_string() }
            }
            Location::Path(path) => {
                let mut config = EngineConfig::default();
                config.query_memory_bytes = options.query_memory_bytes.unwrap_or(config.query_memory_bytes);
                let mut engine = Engine::new(config)?;
                engine.register_path(&table_name(path), path).await?;
                Self::Files(engine)
            }
            database => Self::Database(open_database(database).await?),
        })
    }

    /// Asks, and moves the whole answer into what `create` opens for its schema.
    pub(crate) async fn pump<F, D>(
        &mut self,
        sql: &str,
        options: &FeedOptions,
        quiet: bool,
        create: F,
    ) -> Result<Report, CliError>
    where
        F: FnOnce(SchemaRef) -> D,
        D: Future<Output = Result<Box<dyn Destination>, CliError>>,
    {
        let began = Instant::now();
        let name = if let Self::Node { name, .. } = self { Some(name.clone()) } else { None };
        let mut answer = self.ask(sql, options).await.map_err(|error| error.in_statement(sql))?;
        let mut destination = create(answer.schema()).await?;
        let mut progress = Progress::new(answer.rows_estimate(), quiet);
        let (mut rows, mut bytes, mut receive) = (0, 0, Duration::ZERO);
        loop {
            let waiting = Instant::now();
            let batch = answer.next().await.map_err(|error| error.after(rows))?;
            receive += waiting.elapsed();
            let Some(batch) = batch else { break };
            let batch_bytes = lightship_wire::rows_bytes(&batch);
            rows += batch.num_rows() as u64;
            bytes += batch_bytes;
            progress.add(batch.num_rows() as u64, batch_bytes);
            destination.write(batch).await?;
        }
        let written = destination.finish().await?;
        drop(progress);
        let seconds = began.elapsed().as_secs_f64();
        let mut report = Report {
            rows,
            bytes_arrow: bytes,
            bytes_wire: None,
            bytes_written: written.bytes,
            seconds,
            rows_per_second: rows as f64 / seconds.max(f64::EPSILON),
            plan: None,
            carrier: None,
            messages: None,
            messages_joined: None,
            stages: StagesReport {
                receive: receive.as_secs_f64(),
                consume: (seconds - receive.as_secs_f64()).max(0.0),
                ..StagesReport::default()
            },
            codecs: Vec::new(),
            retunes: Vec::new(),
            peak_memory_bytes: peak_memory_bytes(),
        };
        if let Answer::Node(transfer) = &answer {
            let node = transfer.report();
            report.bytes_wire = Some(node.bytes_wire);
            report.plan = Some(PlanReport::new(&node));
            report.carrier = Some(node.carrier.to_string());
            report.messages = Some(node.messages);
            report.messages_joined = Some(node.messages_joined);
            report.stages.produce = Some(node.stages.produce);
            report.stages.encode = Some(node.stages.encode);
            report.stages.send = Some(node.stages.send);
            report.stages.wait = Some(node.stages.wait);
            report.stages.decode = Some(node.stages.decode);
            report.codecs = node.codecs.iter().map(CodecReport::from).collect();
            report.retunes = RetuneReport::all(&node);
            if let Some(name) = &name {
                keep(name, Fact::of(sql, &options.transfer, &node));
            }
        }
        Ok(report)
    }

    async fn ask(&mut self, sql: &str, options: &FeedOptions) -> Result<Answer<'_>, CliError> {
        Ok(match self {
            Self::Node { client, name } => {
                let known = known(name, sql, &client.carrier().to_string());
                Answer::Node(Box::new(client.fetch(sql, &Options { known, ..options.transfer }).await?))
            }
            Self::Database(source) => Answer::Database(source.query(sql, &options.read).await?),
            Self::Files(engine) => {
                let running = engine.query(sql).await?;
                let (schema, rows_estimate) = (running.schema().clone(), running.rows_estimate());
                Answer::Files { schema, rows_estimate, rows: running.into_rows() }
            }
        })
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
fn keep(name: &str, fact: Fact) {
    if let Ok(profiles) = Profiles::of_user()
        && let Err(error) = profiles.record(name, fact)
    {
        tracing::warn!(%error, "what this transfer took is not kept");
    }
}

/// A result on its way, from any feed.
enum Answer<'a> {
    Node(Box<Transfer<'a>>),
    Database(lightship_sources::Rows),
    Files { schema: SchemaRef, rows_estimate: Option<u64>, rows: lightship_transport::net::Rows },
}

impl Answer<'_> {
    fn schema(&self) -> SchemaRef {
        match self {
            Self::Node(transfer) => transfer.schema().clone(),
            Self::Database(rows) => rows.schema.clone(),
            Self::Files { schema, .. } => schema.clone(),
        }
    }

    fn rows_estimate(&self) -> Option<u64> {
        match self {
            Self::Node(transfer) => transfer.rows_estimate(),
            Self::Database(rows) => rows.rows_estimate,
            Self::Files { rows_estimate, .. } => *rows_estimate,
        }
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>, CliError> {
        Ok(match self {
            Self::Node(transfer) => transfer.next().await?,
            Self::Database(rows) => rows.batches.next().await.transpose()?,
            Self::Files { rows, .. } => rows.next().await.transpose()?,
        })
    }
}

/// Opens a database.
pub(crate) async fn open_database(location: &Location) -> Result<Box<dyn Source>, CliError> {
    Ok(match location {
        Location::Postgres(uri) => Box::new(PostgresSource::connect(uri).await?),
        Location::MySql(uri) => Box::new(MySqlSource::connect(uri).await?),
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
    let config = |token: Option<&String>, shared_memory| {
        let from_environment = || std::env::var(TOKEN_VARIABLE).unwrap_or_default();
        let token = token.cloned().unwrap_or_else(from_environment);
        ClientConfig { token, shared_memory, ..ClientConfig::default() }
    };
    match location {
        Location::NodeUnix { path, shared_memory } => {
            Ok((Endpoint::Unix(path.clone()), config(None, *shared_memory)))
        }
        Location::Node { host, port, token, tls, shared_memory } => {
            let tls = match tls {
                Tls::Off => None,
                Tls::System => {
                    let found = rustls_native_certs::load_native_certs();
                    Some(lightship_transport::net::tls::client(found.certs)?)
                }
                Tls::Ca(path) => Some(lightship_transport::net::tls::client_with_authority(path)?),
            };
            let endpoint = Endpoint::Tcp { host: host.clone(), port: *port, tls };
            Ok((endpoint, config(token.as_ref(), *shared_memory)))
        }
        other => Err(CliError::usage(format!("{other} is not a node"))),
    }
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

/// A source that can be shared by the tables of a node.
pub(crate) async fn open_shared(location: &Location) -> Result<Arc<dyn Source>, CliError> {
    open_database(location).await.map(Arc::from)
}
