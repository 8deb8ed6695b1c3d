//! `lightship node`: serves tables to clients and other nodes.

mod check;
mod cluster;
mod databases;
mod memory;
mod overlay;
mod protocols;
mod tables;
mod usage;

use std::net::ToSocketAddrs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use lightship_engine::{Engine, EngineConfig, TaskMeters};
use lightship_sources::location::NODE_PORT;
use lightship_transport::net::{Listen, Server, ServerConfig, raise_descriptors, tls};
use lightship_transport::proto::QUEUE_TIMEOUT_MAX;
use serde::Deserialize;
use tokio::sync::watch;

use self::cluster::follow;
pub(in crate::commands) use self::cluster::token_in;
use self::databases::Databases;
use self::memory::MemoryShares;
use self::tables::{register, register_shared};
use super::values::{Infinite, Numeric, ValueArgs};
use crate::error::CliError;
use crate::size::{Limit, Size, grouped};

/// Serve files, folders and tables of databases
///
/// Clients run SQL over the tables named here and over nothing else; no statement opens a file, or
/// writes anything but range files (--range-data). To listen on an address that other hosts can reach, a node needs TLS and a token.
///
/// On Ctrl-C or SIGTERM it accepts no more connections and gives running queries 5 seconds to end;
/// then they are cancelled. A second signal ends it at once with exit code 130.
///
/// With --join, or with --advertise for the first node, it is a node of a cluster: a query to any
/// node is answered by all. A table of a cluster is either in parts, where each node has rows of its
/// own, or shared, in files that all nodes can read.
#[derive(Args, Deserialize, Default)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
#[command(after_long_help = "Examples:
  lightship node --table lineitem=lineitem.parquet
  lightship node --data warehouse/ --in-memory
  lightship node --range-data /var/lib/lightship
  lightship node --table 'orders=postgresql://me@db/shop?table=public.orders'
  lightship node --listen 0.0.0.0:4270 --data warehouse/ \\
      --tls-cert cert.pem --tls-key key.pem --token-file tokens
  lightship node --listen 10.0.0.2:4270 --join 10.0.0.1:4270 --data part2/ \\
      --tls-cert cert.pem --tls-key key.pem --cluster-ca ca.pem \\
      --token-file tokens --cluster-token-file secret

Every option can be set in a TOML file given with --config:
  listen = [\"127.0.0.1:4270\"]
  table = [\"lineitem=lineitem.parquet\"]
  query-memory = \"2GiB\"
Options of the command line override the file; the tables of both are served.")]
pub(crate) struct NodeArgs {
    /// Address to listen on: HOST[:PORT] or unix:PATH. Port 0 picks a free port. Can be repeated.
    /// [default: 127.0.0.1:4270]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// Also answer Arrow Flight SQL on this address: HOST:PORT, for ADBC, JDBC and pyarrow.
    ///
    /// Tokens, TLS and limits are those of the node. Each protocol has --connections-max connections of its own.
    #[arg(long, value_name = "HOST:PORT")]
    flight: Option<String>,
    /// Endpoints of each result of Flight SQL without ORDER BY, 1 to 64: a client that fetches several at once
    /// divides the rows over as many streams. [default: 1]
    ///
    /// ADBC's driver and that for JDBC do; with pyarrow, a program must fetch each endpoint.
    #[arg(long, value_name = "COUNT")]
    flight_endpoints: Option<usize>,
    /// Also answer clients of PostgreSQL on this address: HOST:PORT, such as psql, psycopg and JDBC.
    ///
    /// Their password is a token of the node, and any name of a user and of a database will do. They run
    /// the SQL of the node, not that of PostgreSQL; queries of its catalog are answered too.
    #[arg(long, value_name = "HOST:PORT")]
    postgres: Option<String>,
    /// Serve this table: NAME=PATH of a file or folder, NAME=s3://BUCKET/KEY of an object store, or
    /// NAME=URI?table=[SCHEMA.]TABLE of a database. Can be repeated.
    ///
    /// Other users of the host can see what a command line has. Passwords belong into ~/.pgpass, ~/.my.cnf or another
    /// file of the database's own clients, or the table into the file of --config.
    #[arg(long, value_name = "NAME=PLACE")]
    table: Vec<String>,
    /// Serve each file and folder in this folder as a table named after it. It may be in an object store:
    /// s3://BUCKET/PREFIX.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep range files in this folder, which is created if it is missing: tables that grow over the
    /// nodes of a cluster.
    ///
    /// Clients may create, change and drop range files (`lightship range`), and query them as tables. Nodes
    /// of a cluster move buckets of range files to each other; each has a folder of its own.
    #[arg(long, value_name = "DIR")]
    range_data: Option<PathBuf>,
    /// Load the tables of files into memory at startup, so that queries read no files. --table-memory
    /// limits their size.
    #[arg(long)]
    in_memory: bool,
    /// Total memory of the node, which is divided between the options below. Each of them overrides
    /// its share.
    ///
    /// The program itself gets 64 MiB. Of the rest, half is for --query-memory, a quarter for
    /// --row-memory, an eighth for --exchange-memory, and the remainder for small allocations. With
    /// --in-memory, half of the rest is for --table-memory, and the other shares are halved.
    /// [default: the default of each option]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Memory for tables with --in-memory. The node does not start if they need more. [default: 4GiB]
    #[arg(long, value_name = "SIZE")]
    table_memory: Option<Size>,
    /// Memory for sorts, joins and aggregates of all running queries. A query that needs more spills
    /// to disk, or fails if it can't. [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    query_memory: Option<Size>,
    /// Memory for the rows that all queries are reading and sending. When it is used up, further
    /// queries wait until others end. [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    row_memory: Option<Size>,
    /// Folder for data that queries spill to disk. [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    spill_folder: Option<PathBuf>,
    /// Number of partitions of a query that run in parallel. More need more memory. [default: the
    /// number of cores]
    #[arg(long, value_name = "N")]
    partitions: Option<usize>,
    /// Number of clients served at once, at least 1. Further clients wait in a queue. [default: 256]
    #[arg(long, value_name = "N")]
    connections_max: Option<usize>,
    /// How long a client waits in the queue before it is refused, at most 1h; 0 refuses at once.
    /// [default: 10s]
    ///
    /// The queue holds as many clients as --connections-max, but at most 256.
    #[arg(long, value_name = "DURATION")]
    queue_timeout: Option<Limit>,
    /// End a result with an error if the client takes no rows for this long; `never` disables this.
    /// [default: 15min]
    ///
    /// A stalled result holds a connection, memory, and a snapshot in a database that it reads from,
    /// which keeps the database from removing old rows. The limit does not apply between nodes.
    #[arg(long, value_name = "DURATION")]
    stall_timeout: Option<Limit>,
    /// File with the certificate chain for TLS (PEM). Requires --tls-key.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate (PEM).
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Serve only clients that present this token. Can be repeated. Other users of this host can see the
    /// token in the list of processes; --token-file avoids that.
    #[arg(long)]
    token: Vec<String>,
    /// File with tokens for clients, one per line.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Listen without TLS and a token, even on an address that other hosts can reach. Anyone who reaches
    /// the port can read the tables.
    #[arg(long)]
    insecure: bool,
    /// Join the cluster of these nodes. One of them is enough: the nodes learn the others from each
    /// other. If a host name has several addresses, each of them is a node.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    join: Vec<String>,
    /// The address by which other nodes reach this node. Without --join it starts a new cluster.
    /// [default: that of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Serve a table in files that all nodes of the cluster can read, also in an object store. Each node reads a
    /// share of them. Can be repeated.
    #[arg(long, value_name = "NAME=PATH")]
    shared_table: Vec<String>,
    /// Serve each file and folder in this folder, or below s3://BUCKET/PREFIX, as a shared table named after it.
    #[arg(long, value_name = "DIR")]
    shared_data: Option<PathBuf>,
    /// Number of nodes in the cluster, including this one. Queries of tables in parts fail until that
    /// many have joined.
    ///
    /// Use it for the first start of a cluster; later each node knows the members from --state-folder.
    #[arg(long, value_name = "N")]
    expect_nodes: Option<usize>,
    /// Folder in which a node of a cluster stores the members of the cluster.
    ///
    /// After a restart, queries of tables in parts fail until all members have joined. If a member is
    /// stopped or lost, they fail until it is back or is removed with `lightship cluster remove`. A node
    /// whose port is picked by the system (port 0) stores nothing unless a folder is given: it can't come
    /// back under its name.
    ///
    /// What nodes sent each other in the last queries is stored there too.
    ///
    /// [default: lightship/cluster below XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "DIR", env = "LIGHTSHIP_STATE", hide_env_values = true)]
    state_folder: Option<PathBuf>,
    /// Give up this node's part of a table that it served in its last run: the rows of the part no
    /// longer belong to the table. Without it, a node that lacks such a part does not start.
    #[arg(long, value_name = "TABLE")]
    drop_part: Vec<String>,
    /// File with the token by which the nodes of a cluster recognise each other. Clients have other
    /// tokens (--token-file).
    #[arg(long, value_name = "FILE")]
    cluster_token_file: Option<PathBuf>,
    /// File with the certificate of the CA that signed the certificates of the nodes (PEM). Required
    /// for a cluster with TLS.
    #[arg(long, value_name = "FILE")]
    cluster_ca: Option<PathBuf>,
    /// Memory for rows in flight from other nodes, for all queries together. When it is used up, each
    /// further stream still gets 128 KiB. [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    exchange_memory: Option<Size>,
    /// Largest message of rows between nodes, from 4KiB to 16MiB. [default: 1MiB]
    ///
    /// With --overlay-listen, the default is the size that `lightship netbench sweep --keep` has saved
    /// for the hosts of --join, if any, but from 64KiB to 1MiB.
    #[arg(long, value_name = "SIZE")]
    exchange_message: Option<Size>,
    /// Address to listen on for connections of an overlay. An overlay forms only if all nodes have
    /// this option.
    ///
    /// If there are more other nodes than --connections-between-nodes, rows go over the overlay: each
    /// node keeps few connections, and forwards rows for others. Most rows then cross the network
    /// twice, so use it only where the number of connections is the bottleneck.
    #[arg(long, value_name = "HOST:PORT")]
    overlay_listen: Option<String>,
    /// The address by which other nodes reach --overlay-listen. [default: that of --overlay-listen; if
    /// that is 0.0.0.0, the host of --advertise with its port]
    #[arg(long, value_name = "HOST:PORT")]
    overlay_advertise: Option<String>,
    /// Number of connections for rows to other nodes, at least 2. With more other nodes, rows go over
    /// an overlay. [default: 64]
    ///
    /// The smallest number of all nodes counts. If `lightship netbench sweep --keep` has saved results
    /// for hosts of --join, the default is the most connections, up to 512, with which all of them had
    /// nearly their best throughput, unless no number that was measured was too large.
    #[arg(long, value_name = "N")]
    connections_between_nodes: Option<usize>,
    /// Number of connections to each database server, for all queries together. [default: 16]
    ///
    /// A query uses one for each table that it reads, and waits up to 30 seconds for it. A large table
    /// of PostgreSQL is read over several if they are free.
    #[arg(long, value_name = "N")]
    source_connections: Option<NonZeroUsize>,
    /// Type of PostgreSQL's numeric without a precision, in tables: decimal, decimal(P,S), string or
    /// double. [default: decimal, which is decimal(76,20)]
    ///
    /// A query fails at a value that does not fit. string holds all values, as text; double rounds.
    /// `numeric=RULE` in the URI of a table overrides this.
    #[arg(long, value_name = "RULE")]
    numeric: Option<Numeric>,
    /// How to read infinite dates, timestamps and intervals of PostgreSQL, and decimals that are
    /// infinite or NaN: error, null or text. [default: error]
    ///
    /// error fails the query, null reads them as NULL, and text makes all columns of these types text.
    /// `infinite=RULE` in the URI of a table overrides this.
    #[arg(long, value_name = "RULE")]
    infinite: Option<Infinite>,
    /// Record what queries use: processors, disks, network and waits, of this host and of each task.
    ///
    /// Samples travel by UDP, on the port of the node. The nodes of a cluster with this option send them to
    /// each other, so that each shows all; other hosts send theirs with `lightship agent`. `--http` shows the
    /// hosts, and where the time of each query went.
    #[arg(long)]
    usage: bool,
    /// Time between two samples, from 10ms to 1h. Implies --usage. [default: 1s]
    #[arg(long, value_name = "DURATION")]
    usage_interval: Option<Limit>,
    /// Keep samples in Parquet files in this folder, at most 1 GiB, and assessed queries, at most 64 MiB. Implies --usage.
    #[arg(long, value_name = "DIR")]
    usage_data: Option<PathBuf>,
    /// Serve a page about hosts and queries on this address: HOST:PORT. Implies --usage.
    ///
    /// It shows the text of queries. Readers need a token of the node, if it has any. On an address that
    /// other hosts can reach, it needs TLS and a token, as the node itself does.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Send spans of the queries to this OpenTelemetry receiver, such as http://localhost:4318, by OTLP over HTTP.
    /// Implies --usage.
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Read options from this TOML file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
}

/// The default of --source-connections.
const SOURCE_CONNECTIONS: NonZeroUsize = NonZeroUsize::new(16).expect("above 0");

/// How long a node that stops waits for the end of what it records.
const RECORDING_TIMEOUT: Duration = Duration::from_secs(5);

impl NodeArgs {
    /// The options of the command line, completed with those of the file.
    fn with_file(self) -> Result<Self, CliError> {
        let Some(path) = &self.config else { return Ok(self) };
        let text =
            std::fs::read_to_string(path).map_err(|e| CliError::usage(format!("{}: {e}", path.display())))?;
        let file: Self = toml::from_str(&text).map_err(|e| CliError::usage(toml_error(path, &text, &e)))?;
        let either = |typed: Vec<String>, file: Vec<String>| if typed.is_empty() { file } else { typed };
        Ok(Self {
            listen: either(self.listen, file.listen),
            flight: self.flight.or(file.flight),
            flight_endpoints: self.flight_endpoints.or(file.flight_endpoints),
            postgres: self.postgres.or(file.postgres),
            table: [file.table, self.table].concat(),
            data: self.data.or(file.data),
            range_data: self.range_data.or(file.range_data),
            in_memory: self.in_memory || file.in_memory,
            memory: self.memory.or(file.memory),
            table_memory: self.table_memory.or(file.table_memory),
            query_memory: self.query_memory.or(file.query_memory),
            row_memory: self.row_memory.or(file.row_memory),
            spill_folder: self.spill_folder.or(file.spill_folder),
            partitions: self.partitions.or(file.partitions),
            connections_max: self.connections_max.or(file.connections_max),
            queue_timeout: self.queue_timeout.or(file.queue_timeout),
            stall_timeout: self.stall_timeout.or(file.stall_timeout),
            tls_cert: self.tls_cert.or(file.tls_cert),
            tls_key: self.tls_key.or(file.tls_key),
            token: either(self.token, file.token),
            token_file: self.token_file.or(file.token_file),
            insecure: self.insecure || file.insecure,
            join: either(self.join, file.join),
            advertise: self.advertise.or(file.advertise),
            shared_table: [file.shared_table, self.shared_table].concat(),
            shared_data: self.shared_data.or(file.shared_data),
            expect_nodes: self.expect_nodes.or(file.expect_nodes),
            state_folder: self.state_folder.or(file.state_folder),
            drop_part: [file.drop_part, self.drop_part].concat(),
            cluster_token_file: self.cluster_token_file.or(file.cluster_token_file),
            cluster_ca: self.cluster_ca.or(file.cluster_ca),
            exchange_memory: self.exchange_memory.or(file.exchange_memory),
            exchange_message: self.exchange_message.or(file.exchange_message),
            overlay_listen: self.overlay_listen.or(file.overlay_listen),
            overlay_advertise: self.overlay_advertise.or(file.overlay_advertise),
            connections_between_nodes: self.connections_between_nodes.or(file.connections_between_nodes),
            source_connections: self.source_connections.or(file.source_connections),
            numeric: self.numeric.or(file.numeric),
            infinite: self.infinite.or(file.infinite),
            usage: self.usage || file.usage,
            usage_interval: self.usage_interval.or(file.usage_interval),
            usage_data: self.usage_data.or(file.usage_data),
            http: self.http.or(file.http),
            #[cfg(feature = "otlp")]
            otlp: self.otlp.or(file.otlp),
            config: self.config,
        })
    }

    fn server(&self) -> Result<ServerConfig, CliError> {
        let mut config = ServerConfig { insecure: self.insecure, ..ServerConfig::default() };
        config.tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(tls::server(certificate, key)?),
            (None, None) => None,
            _ => return Err(CliError::usage("--tls-cert and --tls-key must be given together")),
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
            config.queue_max = config.queue_max.min(connections);
            // A small node keeps few sockets open for clients that have not shown a token.
            config.unauthenticated_max =
                config.unauthenticated_max.min(connections.saturating_mul(2).max(64));
        }
        match self.queue_timeout {
            Some(Limit(Some(timeout))) if timeout.is_zero() => config.queue_max = 0,
            Some(Limit(Some(timeout))) if timeout <= QUEUE_TIMEOUT_MAX => config.queue_timeout = timeout,
            Some(_) => return Err(CliError::usage("--queue-timeout must be at most 1h")),
            None => {}
        }
        if let Some(Limit(timeout)) = self.stall_timeout {
            config.stall_timeout = timeout.filter(|timeout| !timeout.is_zero());
        }
        if self.is_clustered() {
            config.peer_token = Some(self.cluster_token()?);
        }
        Ok(config)
    }

    /// The shares of --memory, if it is given.
    fn shares(&self) -> Result<Option<MemoryShares>, CliError> {
        self.memory.map(|memory| MemoryShares::of(memory, self.in_memory)).transpose()
    }

    fn engine(&self) -> Result<EngineConfig, CliError> {
        let mut config = EngineConfig::default();
        if let Some(shares) = self.shares()? {
            let bytes = |share: u64| usize::try_from(share).unwrap_or(usize::MAX);
            config.table_memory_bytes = bytes(shares.tables);
            config.query_memory_bytes = bytes(shares.queries);
            config.row_memory_bytes = bytes(shares.rows);
        }
        let bytes = |size: Size| usize::try_from(size.0).unwrap_or(usize::MAX);
        config.table_memory_bytes = self.table_memory.map_or(config.table_memory_bytes, bytes);
        config.query_memory_bytes = self.query_memory.map_or(config.query_memory_bytes, bytes);
        config.row_memory_bytes = self.row_memory.map_or(config.row_memory_bytes, bytes);
        config.partitions = self.partitions.unwrap_or(config.partitions);
        config.spill_folder.clone_from(&self.spill_folder);
        Ok(config)
    }

    fn addresses(&self) -> Result<Vec<Listen>, CliError> {
        if self.listen.is_empty() {
            return Ok(vec![Listen::Tcp(([127, 0, 0, 1], NODE_PORT).into())]);
        }
        self.listen.iter().map(|text| listen(text)).collect()
    }
}

/// Where the error in a file is and what it is, without values, which may be tokens or passwords.
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

/// Raises the limit of open files and sockets, and warns if it is below what the node may need.
fn check_descriptors(needed: u64) {
    match raise_descriptors() {
        Ok(limit) if limit >= needed => {}
        Ok(limit) => crate::say!(
            "this process may open {limit} files and sockets, but needs up to {needed} for all its connections: \
             beyond the limit, clients and nodes are refused. Raise the limit (`ulimit -n {needed}`, \
             LimitNOFILE={needed} of systemd), or lower --connections-max"
        ),
        Err(error) => crate::say!("cannot read the open-file limit: {error}"),
    }
}

pub(crate) async fn cmd_node(
    args: NodeArgs,
    json: bool,
    stop: watch::Receiver<bool>,
) -> Result<(), CliError> {
    let visible = args.tables_with_passwords().join(", ");
    if !visible.is_empty() {
        crate::say!(
            "note: other users of this host can see the password of {visible} in the list of processes; keep it in \
             ~/.pgpass or ~/.my.cnf, or the table in the file of --config"
        );
    }
    let args = args.with_file()?;
    args.check()?;
    let (addresses, config) = (args.addresses()?, args.server()?);
    check_descriptors(config.descriptors_max() + args.protocol_descriptors_max(&config));
    let grace = config.shutdown_grace;
    let meters = args.records_usage().then(TaskMeters::new);
    let mut engine = Engine::new(EngineConfig { meters: meters.clone(), ..args.engine()? })?;
    let for_usage = config.clone();
    // Reserve the address before loading tables, which would be wasted work if it is taken. Clients that connect
    // before the tables are ready are refused at once, rather than left waiting for a welcome.
    let protocols = args.reserve_protocols(&config).await?;
    let reserved = Server::reserve(&addresses, config).await?;
    let values = ValueArgs { numeric: args.numeric, infinite: args.infinite };
    let mut databases = Databases::new(args.source_connections.unwrap_or(SOURCE_CONNECTIONS), values);
    for (name, place) in args.tables().await? {
        let mut interrupted = stop.clone();
        tokio::select! {
            done = register(&mut engine, &mut databases, &name, &place, args.in_memory) => {
                done.map_err(|e| e.of_table(&name))?;
            }
            _ = interrupted.wait_for(|&asked| asked) => return Err(CliError::interrupted()),
        }
    }
    for (name, place) in args.shared_tables().await? {
        register_shared(&mut engine, &name, &place).await.map_err(|e| e.of_table(&name))?;
    }
    // Listen before joining the cluster: another process may have taken the address meanwhile.
    let server = reserved.listen()?;
    let addresses = server.local()?;
    let cluster = args.is_clustered().then(|| args.cluster(&addresses)).transpose()?;
    if let Some(folder) = &args.range_data {
        engine.open_range_files(folder, cluster.as_ref())?;
    }
    let usage = match meters {
        Some(meters) => {
            let name = cluster.as_ref().map(|cluster| cluster.name.as_str());
            Some(args.usage(meters, &addresses, name, &for_usage).await?)
        }
        None => None,
    };
    let page = usage.as_ref().map(|usage| usage.page(for_usage.tls.is_some())).transpose()?.flatten();
    if let Some(cluster) = cluster {
        engine.join(cluster).await?;
    }
    let protocols = protocols.listen()?;
    let places = protocols.places.clone();
    let listening: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if json {
        let tables: Vec<_> = engine
            .tables()
            .map(|t| serde_json::json!({"name": t.name, "columns": t.schema.fields().len(), "rows": t.rows, "memory_bytes": t.memory_bytes}))
            .collect();
        let ready = serde_json::json!({ "listening": listening, "flight": places.flight, "postgres": places.postgres, "page": page, "tables": tables });
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
        for file in engine.range_files() {
            crate::say!("range file {file}");
        }
        if engine.tables().next().is_none() && args.range_data.is_none() {
            crate::say!("no tables: add some with --table NAME=PATH, --data DIR or --range-data DIR");
        }
        if let Some(page) = &page {
            crate::say!("hosts and queries are shown at {page}");
        }
        listening.iter().for_each(|address| crate::say!("listening on {address}"));
        if let Some(place) = &places.flight {
            crate::say!("Flight SQL: {place}");
        }
        if let Some(place) = &places.postgres {
            crate::say!("for clients of PostgreSQL: {place}");
        }
    }
    let engine = Arc::new(engine);
    let follow = tokio::spawn(follow(engine.clone(), stop.clone()));
    let (recovering, storing) = (engine.clone(), engine.clone());
    tokio::spawn(async move { recovering.recover_range_files().await });
    let others = tokio::spawn(protocols.run(engine.clone(), stop.clone()));
    let recording = usage.map(|usage| tokio::spawn(usage.run(engine.clone(), stop.clone())));
    let mut asked = stop.clone();
    let announce = tokio::spawn(async move {
        if asked.wait_for(|&asked| asked).await.is_ok() {
            crate::say!("stopping: running queries have {} s to end", grace.as_secs());
        }
    });
    let ended = server.run(engine, stop).await;
    // They end within the same time as the node's own server.
    let _ = others.await;
    storing.store().await;
    follow.abort();
    announce.abort();
    if let Some(recording) = recording {
        // It completes the files of --usage-data.
        let _ = tokio::time::timeout(RECORDING_TIMEOUT, recording).await;
    }
    Ok(ended?)
}
