//! PostgreSQL on each node: a union of nodes, of which each knows only its own part.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::Host;
use lightship_testkit::tpch;
use tokio::runtime::Runtime;

use super::system::{Division, NODES_MAX};
use crate::parts::load_postgres;
use crate::process::Process;
use crate::{Result, places};

const PORT: u16 = 5432;
const PATIENCE: Duration = Duration::from_secs(60);
/// The database with all rows, on the first node.
pub(super) const WHOLE: &str = "whole";
/// Small buffers, so that tables are read from the disk; one process for a query.
const SETTINGS: [&str; 13] = [
    "shared_buffers=2MB",
    "work_mem=16MB",
    "effective_cache_size=8MB",
    "max_parallel_workers_per_gather=0",
    "max_connections=20",
    "jit=off",
    "autovacuum=off",
    "fsync=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_wal_size=2GB",
    "log_min_messages=panic",
    "update_process_title=off",
];

/// The folders of the servers, with their data.
pub(super) struct Data {
    root: PathBuf,
    /// Bytes of each table, of all rows.
    bytes: Vec<(String, f64)>,
    /// Name and version.
    pub(super) version: String,
}

impl Data {
    /// Loads the data, unless that was done before.
    pub(super) fn open(scale: f64) -> Result<Self> {
        let root = places::data().join(format!("usage-postgres-{scale}"));
        let marker = root.join("loaded");
        if !marker.exists() {
            let _ = std::fs::remove_dir_all(&root);
            load(&root, scale)?;
            run(Command::new("sync").arg("-f").arg(&root))?;
            std::fs::write(&marker, "")?;
        }
        let server = Server::start(None, &root, 0)?;
        let sizes = server.psql(
            WHOLE,
            "select relname, pg_table_size(oid) from pg_class where relkind = 'r' and relnamespace = \
             'public'::regnamespace",
        )?;
        let size = |line: &str| {
            let (name, bytes) = line.split_once('|')?;
            Some((name.to_owned(), bytes.parse().ok()?))
        };
        let bytes = sizes.lines().filter_map(size).collect();
        let version = format!("PostgreSQL {}", server.psql(WHOLE, "show server_version")?);
        Ok(Self { root, bytes, version })
    }

    /// The folder of a node's server.
    pub(super) fn folder(&self, node: usize) -> PathBuf {
        folder(&self.root, node)
    }

    /// The part of the bytes of some tables that is in `divided` ones.
    pub(super) fn divided(&self, tables: &[&str], divided: &[&str]) -> f64 {
        let of = |names: &[&str]| -> f64 {
            let known = self.bytes.iter().filter(|(name, _)| names.contains(&name.as_str()));
            known.map(|(_, bytes)| bytes).sum()
        };
        let both: Vec<&str> = tables.iter().filter(|table| divided.contains(table)).copied().collect();
        of(&both) / of(tables)
    }

    /// Starts the server of a node.
    pub(super) fn start(&self, host: &Host, node: usize) -> Result<Server> {
        Server::start(Some(host), &self.root, node)
    }
}

fn folder(root: &Path, node: usize) -> PathBuf {
    root.join(format!("node{}", node + 1))
}

/// A running server.
pub(super) struct Server {
    pub(super) process: Process,
    folder: PathBuf,
}

impl Server {
    fn start(host: Option<&Host>, root: &Path, node: usize) -> Result<Self> {
        let folder = folder(root, node);
        let data = folder.join("data").display().to_string();
        let sockets = format!("unix_socket_directories={}", folder.display());
        let mut words = vec!["--regid=postgres", "--clear-groups"];
        let program = binary("postgres")?;
        words.extend([program.as_str(), "-D", &data, "-c", &sockets]);
        words.extend(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        // Outside of the lab, the socket in the folder is enough.
        words.extend(["-c", if host.is_some() { "listen_addresses=*" } else { "listen_addresses=" }]);
        // An option of setpriv, which starts all processes: a change of the user by a second one would undo its first.
        let process = Process::spawn(host, "--reuid=postgres", words)?;
        let server = Self { process, folder };
        let began = Instant::now();
        while server.psql("postgres", "select 1").is_err() {
            if began.elapsed() > PATIENCE {
                return Err(format!("PostgreSQL in {} does not answer", server.folder.display()).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Runs statements, and returns what they print.
    pub(super) fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let mut command = Command::new(binary("psql")?);
        command.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "postgres",
            "-d",
            database,
            "-c",
            sql,
        ]);
        command.arg("-h").arg(&self.folder);
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(format!("psql: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// The folder that has its socket.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The URI by the socket in the file system.
    fn uri(&self, database: &str) -> String {
        format!("postgresql:///{database}?host={}&port={PORT}&user=postgres", self.folder.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Cleanly, so that the next start recovers nothing; if it takes too long, it is killed.
        let _ = Command::new("kill").args(["-INT", &self.process.pid().to_string()]).status();
        let began = Instant::now();
        while self.folder.join("data/postmaster.pid").exists() && began.elapsed() < PATIENCE / 6 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The URI of a node's database, for other hosts.
pub(super) fn uri(host: &Host, database: &str) -> String {
    format!("postgresql://postgres@{}:{PORT}/{database}", host.address())
}

/// The database of a node in a configuration.
pub(super) fn database(nodes: usize, division: Division) -> String {
    match (nodes, division) {
        (1, _) => WHOLE.to_owned(),
        (nodes, Division::One) => format!("one{nodes}"),
        (nodes, Division::Two) => format!("two{nodes}"),
    }
}

/// Creates the servers' folders, and loads all databases.
fn load(root: &Path, scale: f64) -> Result<()> {
    let parquet = places::data().join(format!("tpch-{scale}"));
    tpch::write_parquet(scale, &parquet, |_, _| {})?;
    let rows = root.join("rows");
    std::fs::create_dir_all(&rows)?;
    run(Command::new("chown").arg("postgres:postgres").arg(&rows))?;
    let tables = tpch::POSTGRES_TABLES.replace("unlogged ", "");
    let copied = |name: &str| rows.join(format!("{name}.bin")).display().to_string();
    for node in 0..NODES_MAX {
        create(&folder(root, node))?;
        let server = Server::start(None, root, node)?;
        if node == 0 {
            eprintln!("PostgreSQL: loading TPC-H at scale {scale}");
            server.psql("postgres", &format!("create database {WHOLE}"))?;
            server.psql(WHOLE, &tables)?;
            Runtime::new()?.block_on(async {
                for name in tpch::TABLES {
                    load_postgres(&server.uri(WHOLE), name, &parquet.join(format!("{name}.parquet"))).await?;
                }
                Ok::<_, crate::Error>(())
            })?;
            keys(&server, WHOLE)?;
            for name in tpch::TABLES {
                server.psql(WHOLE, &format!("copy {name} to '{}' (format binary)", copied(name)))?;
            }
            for (name, key) in [("lineitem", "l_orderkey"), ("orders", "o_orderkey")] {
                for nodes in [3, NODES_MAX] {
                    for part in 0..nodes {
                        let to = copied(&format!("{name}-{nodes}-{part}"));
                        let select = format!("select * from {name} where {key} % {nodes} = {part}");
                        server.psql(WHOLE, &format!("copy ({select}) to '{to}' (format binary)"))?;
                    }
                }
            }
        }
        for nodes in [3, NODES_MAX].into_iter().filter(|nodes| node < *nodes) {
            for division in [Division::One, Division::Two] {
                let database = database(nodes, division);
                eprintln!("PostgreSQL: loading {database} of node {}", node + 1);
                server.psql("postgres", &format!("create database {database}"))?;
                server.psql(&database, &tables)?;
                for name in tpch::TABLES {
                    let from = match division.tables().contains(&name) {
                        true => copied(&format!("{name}-{nodes}-{node}")),
                        false => copied(name),
                    };
                    server.psql(&database, &format!("copy {name} from '{from}' (format binary)"))?;
                }
                keys(&server, &database)?;
            }
        }
        server.psql("postgres", "checkpoint")?;
    }
    std::fs::remove_dir_all(&rows)?;
    Ok(())
}

/// Keys, indexes and statistics: each statement on its own, as vacuum requires.
fn keys(server: &Server, database: &str) -> Result<()> {
    let mut statements =
        tpch::POSTGRES_KEYS.split(';').map(str::trim).filter(|statement| !statement.is_empty());
    statements.try_for_each(|statement| server.psql(database, statement).map(drop))
}

/// Creates the folder of a server that trusts all who reach it.
fn create(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    run(Command::new("chown").arg("postgres:postgres").arg(folder))?;
    let data = folder.join("data");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(binary("initdb")?);
    command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N", "-D"]).arg(&data);
    run(command.current_dir(folder).stdout(Stdio::null()))?;
    std::fs::write(data.join("pg_hba.conf"), "local all all trust\nhost all all all trust\n")?;
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended: {status}").into()) }
}

/// Debian keeps the server's programs outside the path, in one folder per version.
pub(super) fn binary(name: &str) -> Result<String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").map_err(|_| "PostgreSQL is not installed")?;
    let paths = versions.flatten().map(|version| version.path().join("bin").join(name));
    let found = paths.filter(|path| path.exists()).max().ok_or("PostgreSQL is not installed")?;
    Ok(found.display().to_string())
}
