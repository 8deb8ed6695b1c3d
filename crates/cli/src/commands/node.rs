//! `lightship node`: serves tables.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use lightship_engine::{Engine, EngineConfig};
use lightship_sources::location::{NODE_PORT, redact};
use lightship_sources::{Location, ReadOptions, TableName};
use lightship_transport::net::{Listen, Server, ServerConfig, tls};
use serde::Deserialize;
use tokio::sync::watch;

use super::copy::table_name as parse_table;
use crate::error::{CliError, Kind};
use crate::feed::{open_shared, table_name};
use crate::size::{Size, grouped};

/// Serve tables: files, folders and tables of databases
///
/// Clients run SQL over the tables named here and over nothing else; no
/// statement opens a file or writes. Beyond this host a node listens only with
/// TLS and a token.
#[derive(Args, Deserialize, Default)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
#[command(after_long_help = "Examples:
  lightship node --table lineitem=lineitem.parquet
  lightship node --data warehouse/ --in-memory
  lightship node --table 'orders=postgresql://me@db/shop?table=public.orders'
  lightship node --listen 0.0.0.0:4270 --tls-cert cert.pem --tls-key key.pem --token-file tokens --data warehouse/

Each flag can stand in the file of --config, as TOML: listen = [\"127.0.0.1:4270\"],
table = [\"lineitem=lineitem.parquet\"], in-memory = true, query-memory = \"2GiB\".
A flag on the command line goes before the file; tables of both are served.")]
pub(crate) struct NodeArgs {
    /// Address to listen on, HOST[:PORT] or unix:PATH; several may be given.
    /// [default: 127.0.0.1:4270]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// A table and where it is: NAME=PATH, or NAME=URI?table=[SCHEMA.]TABLE of a database.
    #[arg(long, value_name = "NAME=PLACE")]
    table: Vec<String>,
    /// Serve each file and folder in this folder as a table of its name.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Read all file tables into memory first.
    #[arg(long)]
    in_memory: bool,
    /// Memory for tables with --in-memory; what does not fit is refused. [default: 4GiB]
    #[arg(long, value_name = "SIZE")]
    table_memory: Option<Size>,
    /// Memory for all running queries; what does not fit goes to disk or fails. [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    query_memory: Option<Size>,
    /// Folder for what queries put on disk. [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    spill_folder: Option<PathBuf>,
    /// Parts of a query that run at once; more need more memory. [default: the number of cores]
    #[arg(long, value_name = "N")]
    partitions: Option<usize>,
    /// Clients at once. [default: 256]
    #[arg(long, value_name = "N")]
    connections_max: Option<usize>,
    /// Certificate chain (PEM).
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM).
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// A token that lets a client in; several may be given. Others of this host
    /// can see it in the list of processes: --token-file keeps it to itself.
    #[arg(long)]
    token: Vec<String>,
    /// File with a token a line.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Listen beyond this host without TLS and token. Whoever reaches the port reads the tables.
    #[arg(long)]
    insecure: bool,
    /// Settings from a TOML file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
}

impl NodeArgs {
    /// What was typed, and from the file what was not.
    fn with_file(self) -> Result<Self, CliError> {
        let Some(path) = &self.config else { return Ok(self) };
        let text =
            std::fs::read_to_string(path).map_err(|e| CliError::usage(format!("{}: {e}", path.display())))?;
        let file: Self = toml::from_str(&text).map_err(|e| CliError::usage(toml_error(path, &text, &e)))?;
        let either = |typed: Vec<String>, file: Vec<String>| if typed.is_empty() { file } else { typed };
        Ok(Self {
            listen: either(self.listen, file.listen),
            table: [file.table, self.table].concat(),
            data: self.data.or(file.data),
            in_memory: self.in_memory || file.in_memory,
            table_memory: self.table_memory.or(file.table_memory),
            query_memory: self.query_memory.or(file.query_memory),
            spill_folder: self.spill_folder.or(file.spill_folder),
            partitions: self.partitions.or(file.partitions),
            connections_max: self.connections_max.or(file.connections_max),
            tls_cert: self.tls_cert.or(file.tls_cert),
            tls_key: self.tls_key.or(file.tls_key),
            token: either(self.token, file.token),
            token_file: self.token_file.or(file.token_file),
            insecure: self.insecure || file.insecure,
            config: self.config,
        })
    }

    fn server(&self) -> Result<ServerConfig, CliError> {
        let mut config = ServerConfig { insecure: self.insecure, ..ServerConfig::default() };
        config.tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(tls::server(certificate, key)?),
            (None, None) => None,
            _ => return Err(CliError::usage("--tls-cert and --tls-key belong together")),
        };
        config.tokens = self.token.clone();
        if let Some(path) = &self.token_file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| CliError::usage(format!("{}: {e}", path.display())))?;
            if text.trim().is_empty() {
                return Err(CliError::usage(format!("{}: no token in it", path.display())));
            }
            config.tokens.extend(text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned));
        }
        if config.tokens.iter().any(String::is_empty) {
            return Err(CliError::usage("a token is empty"));
        }
        if let Some(connections) = self.connections_max {
            config.connections_max = connections;
        }
        Ok(config)
    }

    fn engine(&self) -> EngineConfig {
        let mut config = EngineConfig::default();
        let bytes = |size: Size| usize::try_from(size.0).unwrap_or(usize::MAX);
        config.table_memory_bytes = self.table_memory.map_or(config.table_memory_bytes, bytes);
        config.query_memory_bytes = self.query_memory.map_or(config.query_memory_bytes, bytes);
        config.partitions = self.partitions.unwrap_or(config.partitions);
        config.spill_folder.clone_from(&self.spill_folder);
        config
    }

    fn addresses(&self) -> Result<Vec<Listen>, CliError> {
        if self.listen.is_empty() {
            return Ok(vec![Listen::Tcp(([127, 0, 0, 1], NODE_PORT).into())]);
        }
        self.listen.iter().map(|text| listen(text)).collect()
    }

    /// Names and places of all tables.
    fn tables(&self) -> Result<Vec<(String, String)>, CliError> {
        let mut tables = Vec::new();
        if let Some(folder) = &self.data {
            let fail = |e: std::io::Error| CliError::new(Kind::Source, format!("{}: {e}", folder.display()));
            for entry in std::fs::read_dir(folder).map_err(fail)? {
                let path = entry.map_err(fail)?.path();
                let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
                if !hidden {
                    tables.push((table_name(&path), path.display().to_string()));
                }
            }
            tables.sort();
        }
        for given in &self.table {
            let (name, place) = given.split_once('=').ok_or_else(|| {
                CliError::usage(format!("--table {}: NAME=PATH or NAME=URI belongs there", redact(given)))
            })?;
            if name.contains("://") {
                return Err(CliError::usage(format!(
                    "--table {}: the name is missing: NAME=URI",
                    redact(given)
                )));
            }
            tables.push((name.to_owned(), place.to_owned()));
        }
        Ok(tables)
    }
}

/// Where the file is wrong and why, without its values: there may be tokens and passwords among them.
pub(super) fn toml_error(path: &Path, text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text[..start].matches('\n').count();
    let key = text.lines().nth(line).and_then(|line| line.split_once('=')).map_or("", |(key, _)| key.trim());
    let why = error.message();
    let why = if why.starts_with("invalid type") { "a value of the wrong type" } else { why };
    format!("{}, line {}: {key}: {why}", path.display(), line + 1)
}

fn listen(text: &str) -> Result<Listen, CliError> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Listen::Unix(path.into()));
    }
    let fail = |reason: String| CliError::usage(format!("--listen {text}: {reason}"));
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let full = if has_port { text.to_owned() } else { format!("{text}:{NODE_PORT}") };
    let mut addresses = full.to_socket_addrs().map_err(|e| fail(e.to_string()))?;
    addresses.next().map(Listen::Tcp).ok_or_else(|| fail("no such host".into()))
}

/// The URI of a database without `table=…`, and the table, or else `name`.
fn split_table(uri: &str, name: &str) -> (String, TableName) {
    let Some((base, query)) = uri.split_once('?') else { return (uri.to_owned(), parse_table(name)) };
    let mut table = None;
    let rest: Vec<&str> = query
        .split('&')
        .filter(|pair| match pair.strip_prefix("table=") {
            Some(value) => {
                table = Some(value);
                false
            }
            None => true,
        })
        .collect();
    let base = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
    (base, parse_table(table.unwrap_or(name)))
}

async fn register(engine: &mut Engine, name: &str, place: &str, in_memory: bool) -> Result<(), CliError> {
    let (uri, table) = split_table(place, name);
    match Location::parse(&uri)? {
        Location::Path(_) if in_memory => engine.register_in_memory(name, Path::new(place)).await?,
        Location::Path(_) => engine.register_path(name, Path::new(place)).await?,
        Location::Node { .. } | Location::NodeUnix { .. } => {
            return Err(CliError::usage(format!("--table {name}: a table of another node can't be served")));
        }
        database => {
            let source = open_shared(&database).await?;
            engine.register_source(name, source, table, ReadOptions::default()).await?;
        }
    }
    Ok(())
}

pub(crate) async fn cmd_node(
    args: NodeArgs,
    json: bool,
    stop: watch::Receiver<bool>,
) -> Result<(), CliError> {
    let args = args.with_file()?;
    let (addresses, config) = (args.addresses()?, args.server()?);
    let mut engine = Engine::new(args.engine())?;
    // The address first: reading tables into memory for nothing is a waste.
    let server = Server::bind(&addresses, config).await?;
    for (name, place) in args.tables()? {
        let mut interrupted = stop.clone();
        tokio::select! {
            done = register(&mut engine, &name, &place, args.in_memory) => {
                done.map_err(|e| CliError { message: format!("table {name}: {}", e.message), ..e })?;
            }
            _ = interrupted.wait_for(|&asked| asked) => return Err(CliError::interrupted()),
        }
    }
    let listening: Vec<String> = server.local()?.iter().map(ToString::to_string).collect();
    if json {
        let tables: Vec<_> = engine
            .tables()
            .map(|t| serde_json::json!({"name": t.name, "columns": t.schema.fields().len(), "rows": t.rows, "memory_bytes": t.memory_bytes}))
            .collect();
        let ready = serde_json::json!({ "listening": listening, "tables": tables });
        super::manual::print(format!("{ready}\n").as_bytes())?;
    } else {
        for table in engine.tables() {
            let size = match table.rows {
                Some(rows) => {
                    format!(", {} rows, {} in memory", grouped(rows), Size(table.memory_bytes as u64))
                }
                None => String::new(),
            };
            crate::say!("table {}: {} columns{size}", table.name, table.schema.fields().len());
        }
        if engine.tables().next().is_none() {
            crate::say!("no tables: add some with --table NAME=PATH or --data DIR");
        }
        listening.iter().for_each(|address| crate::say!("listening on {address}"));
    }
    server.run(Arc::new(engine), stop).await?;
    Ok(())
}
