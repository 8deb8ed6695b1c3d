//! Database servers that hold lineitem, and Lightship's reader and writer of PostgreSQL.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use futures::TryStreamExt;
use lightship_sources::postgres::{PostgresDestination, PostgresSource};
use lightship_sources::{Destination, ReadOptions, Source, TableName, TableWrite, WriteMode};
use lightship_testkit::mariadb::MariaDb;
use lightship_testkit::postgres::Postgres;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::{TransferResult, print};
use crate::{Result, data};

/// The server does not wait for its disk, keeps the table in its cache, and accepts password logins
/// from every host.
const POSTGRES_SETTINGS: &[&str] = &[
    "shared_buffers=2GB",
    "max_wal_size=8GB",
    "autovacuum=off",
    "jit=off",
    "listen_addresses=*",
    "hba_file={dir}/pg_hba.conf",
];
const POSTGRES_HBA: &str = "local all all scram-sha-256\nhost all all all scram-sha-256\n";

const MARIADB_OPTIONS: &[&str] = &[
    "--innodb-buffer-pool-size=2G",
    "--innodb-log-file-size=512M",
    "--bind-address=0.0.0.0",
    "--local-infile=1",
];

/// The column types of TPC-H's specification.
const COLUMNS: &str = "(
    l_orderkey bigint not null, l_partkey bigint not null, l_suppkey bigint not null,
    l_linenumber integer not null, l_quantity numeric(15,2) not null,
    l_extendedprice numeric(15,2) not null, l_discount numeric(15,2) not null,
    l_tax numeric(15,2) not null, l_returnflag char(1) not null, l_linestatus char(1) not null,
    l_shipdate date not null, l_commitdate date not null, l_receiptdate date not null,
    l_shipinstruct char(25) not null, l_shipmode char(10) not null, l_comment varchar(44) not null)";

/// A database that is ready: the line that its process prints.
#[derive(Serialize, Deserialize)]
pub(crate) struct RunningDatabase {
    /// With 127.0.0.1 as the address, as its own host reaches it.
    pub(crate) uri: String,
    pub(crate) port: u16,
    pub(crate) user: String,
    pub(crate) password: String,
    /// Name and version of the server.
    pub(crate) version: String,
}

/// Runs a PostgreSQL server with the table loaded and vacuumed, until this process is killed.
pub(super) fn hold_postgres(file: &Path) -> Result<()> {
    let server = Postgres::start_prepared(POSTGRES_SETTINGS, |folder| {
        let written = std::fs::write(folder.join("pg_hba.conf"), POSTGRES_HBA);
        // If this fails, the server reports that the file is missing.
        written.unwrap_or_else(|error| eprintln!("pg_hba.conf: {error}"));
    });
    server.psql(&format!("create unlogged table lineitem {COLUMNS}"));
    Runtime::new()?.block_on(load_postgres(&server.uri(), "lineitem", file))?;
    server.psql("vacuum (analyze, freeze) lineitem");
    print(&RunningDatabase {
        uri: server.uri(),
        port: server.port(),
        user: server.user().into(),
        password: server.password().into(),
        version: format!("PostgreSQL {}", server.psql("show server_version").trim()),
    })?;
    park()
}

/// Copies the rows of a Parquet file into a table.
pub(crate) async fn load_postgres(uri: &str, table: &str, file: &Path) -> Result<()> {
    let (schema, batches) = data::open(file, data::BATCH_ROWS)?;
    let table = TableName { schema: None, name: table.into() };
    let mut destination =
        PostgresDestination::create(uri, &TableWrite::new(table, WriteMode::Append), &schema).await?;
    for batch in batches {
        destination.write(batch?).await?;
    }
    Box::new(destination).finish().await?;
    Ok(())
}

/// Runs a MariaDB server with the table loaded, until this process is killed.
pub(super) fn hold_mariadb(file: &Path) -> Result<()> {
    let server = MariaDb::start_with(MARIADB_OPTIONS);
    server.sql(&format!("create table lineitem {COLUMNS}"));
    let load = format!(
        "load data local infile '{}' into table lineitem character set utf8mb4 \
         fields terminated by ',' optionally enclosed by '\"' lines terminated by '\\n' ignore 1 lines",
        file.display()
    );
    let (port, user) = (format!("--port={}", server.port()), format!("--user={}", server.user()));
    let status = Command::new("mariadb")
        .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--local-infile=1"])
        .args([&port, &user, "--database=test", "--execute", &load])
        .env("MYSQL_PWD", server.password())
        .status()?;
    if !status.success() {
        return Err(format!("loading into MariaDB: {status}").into());
    }
    print(&RunningDatabase {
        uri: server.uri(),
        port: server.port(),
        user: server.user().into(),
        password: server.password().into(),
        version: format!("MariaDB {}", server.sql("select version()").trim()),
    })?;
    park()
}

/// Waits forever. The server ends when this process is killed.
fn park() -> ! {
    loop {
        std::thread::park();
    }
}

pub(super) async fn read_postgres(uri: &str, sql: &str) -> Result<TransferResult> {
    let source = PostgresSource::connect(uri).await?;
    let began = Instant::now();
    let mut answer = source.query(sql, &ReadOptions::default()).await?;
    let (mut rows, mut bytes) = (0, 0);
    while let Some(batch) = answer.batches.try_next().await? {
        rows += batch.num_rows() as u64;
        bytes += batch.get_array_memory_size() as u64;
    }
    TransferResult::since(began, rows, bytes)
}
