//! From PostgreSQL to Arrow batches in a client.

use lightship_sources::postgres::PostgresDestination;
use lightship_sources::{Destination, TableName, WriteMode};
use lightship_testkit::postgres::Postgres;
use lightship_testkit::tpch;
use tokio::runtime::Runtime;

use crate::Result;
use crate::comparison::{Comparison, Contender, Figure};
use crate::parts::{Part, Transferred};
use crate::peers::{self, Peers};
use crate::process::Process;
use crate::report::{self, Report};

const ROWS: u64 = 6_001_215;
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 2, range: true },
    Figure { name: "client peak MB", digits: 0, range: false },
];

/// Nothing that would make the server wait for its disk, and the table in its cache.
const SETTINGS: &[&str] = &["shared_buffers=2GB", "max_wal_size=8GB", "autovacuum=off", "jit=off"];

/// As the benchmark's specification has it.
const TABLE: &str = "create unlogged table lineitem (
    l_orderkey bigint not null, l_partkey bigint not null, l_suppkey bigint not null,
    l_linenumber integer not null, l_quantity numeric(15,2) not null,
    l_extendedprice numeric(15,2) not null, l_discount numeric(15,2) not null,
    l_tax numeric(15,2) not null, l_returnflag char(1) not null, l_linestatus char(1) not null,
    l_shipdate date not null, l_commitdate date not null, l_receiptdate date not null,
    l_shipinstruct char(25) not null, l_shipmode char(10) not null, l_comment varchar(44) not null)";

/// A server with the table, loaded and vacuumed.
fn server() -> Result<Postgres> {
    eprintln!("loading lineitem into PostgreSQL");
    let server = Postgres::start_with(SETTINGS);
    server.psql(TABLE);
    Runtime::new()?.block_on(load(&server.uri()))?;
    server.psql("vacuum (analyze, freeze) lineitem");
    Ok(server)
}

async fn load(uri: &str) -> Result<()> {
    let mut batches = tpch::lineitem(1.0).peekable();
    let schema = batches.peek().ok_or("lineitem has no rows")?.schema();
    let table = TableName { schema: None, name: "lineitem".into() };
    let mut destination = PostgresDestination::create(uri, &table, &schema, WriteMode::Append).await?;
    for batch in batches {
        destination.write(batch).await?;
    }
    Box::new(destination).finish().await?;
    Ok(())
}

fn figures(client: Process) -> Result<Vec<f64>> {
    let done: Transferred = client.result()?;
    if done.rows != ROWS {
        return Err(format!("{} rows instead of {ROWS}", done.rows).into());
    }
    Ok(vec![done.seconds, done.peak_memory_bytes as f64 / 1e6])
}

pub(crate) fn run(rounds: u32) -> Result<()> {
    let load = report::load();
    let peers = Peers::install()?;
    let server = server()?;
    let uri = server.uri();
    let peer = |program: &str, arguments: &[&str]| {
        let arguments: Vec<_> = [&*uri].into_iter().chain(arguments.iter().copied()).collect();
        figures(peers.spawn(program, &arguments)?)
    };
    let sql = "select * from lineitem";
    let contenders = vec![
        Contender::new("Lightship", || figures(Part::spawn(&["postgres", &uri, sql])?)),
        Contender::new("DuckDB postgres scanner", || peer("postgres_duckdb.py", &["lineitem"])).target(0.75),
        Contender::new("ADBC", || peer("postgres_adbc.py", &[sql])).target(0.45),
        Contender::new("ConnectorX, 1 partition", || {
            peer("postgres_connectorx.py", &["lineitem", "l_orderkey", "1"])
        }),
        Contender::new("ConnectorX, 2 partitions", || {
            peer("postgres_connectorx.py", &["lineitem", "l_orderkey", "2"])
        }),
        Contender::new("psycopg, COPY BINARY thrown away", || peer("postgres_copy.py", &["lineitem"])),
    ];
    let mut comparison = Comparison { figures: FIGURES, contenders };
    comparison.run(rounds)?;
    let versions = [
        vec![format!("PostgreSQL {}", server.psql("show server_version").trim())],
        peers::versions(&["duckdb", "adbc", "connectorx", "psycopg", "pyarrow"]),
    ];
    Report {
        name: "postgres-to-arrow",
        title: "From PostgreSQL to Arrow batches",
        text: "`select * from lineitem` (TPC-H, scale 1, 6,001,215 rows, the types of the specification) from a \
               PostgreSQL on this host that has the table in its cache, over loopback TCP, to Arrow batches that \
               are counted and dropped; ConnectorX makes one table. The clock starts on an open connection. \
               Client memory is the most that its process held (VmHWM); ours is to stay below 150 MB."
            .into(),
        versions: versions.concat(),
        rounds,
        load,
        comparison: &comparison,
    }
    .publish()
}
