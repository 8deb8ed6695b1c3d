//! From PostgreSQL to Arrow batches in a client, on one host.

use super::OURS;
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::parts::{Part, RunningDatabase, TransferResult};
use crate::peers::{self, Peers};
use crate::process::Process;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::tables::{self, Ratio, Standing};

const NAME: &str = "postgres-to-arrow";
const SQL: &str = "select * from lineitem";
const TARGETS: &[(&str, f64)] = &[("DuckDB postgres scanner", 0.75), ("ADBC", 0.45)];
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 2, range: true },
    Figure { name: "client peak MB", digits: 0, range: false },
];

fn figures(client: Process, rows: u64) -> Result<Vec<f64>> {
    let done = client.result::<TransferResult>()?.whole(rows)?;
    Ok(vec![done.seconds, done.peak_memory_bytes as f64 / 1e6])
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let peers = Peers::install()?;
    let scale = settings.scale_or(1.0);
    let file = Data::Lineitem.file(scale)?;
    let rows = file.rows;
    eprintln!("loading lineitem into PostgreSQL");
    let mut server = Part::spawn(None, &["hold-postgres", &file.argument()])?;
    let held: RunningDatabase = serde_json::from_str(&server.line()?)?;
    let uri = &*held.uri;
    let peers = &peers;
    let peer = |name: &'static str, program: &'static str, arguments: &'static [&'static str]| {
        let arguments = [&[uri], arguments].concat();
        Contender::new(name, move || figures(peers.spawn(None, program, &arguments)?, rows))
    };
    let contenders = vec![
        Contender::new(OURS, || figures(Part::spawn(None, &["postgres", uri, SQL])?, rows)),
        peer("DuckDB postgres scanner", "postgres_duckdb.py", &["lineitem"]),
        peer("ADBC", "postgres_adbc.py", &[SQL]),
        peer("ConnectorX, 1 partition", "postgres_connectorx.py", &["lineitem", "l_orderkey", "1"]),
        peer("ConnectorX, 2 partitions", "postgres_connectorx.py", &["lineitem", "l_orderkey", "2"]),
        peer("psycopg, COPY BINARY thrown away", "postgres_copy.py", &["lineitem"]),
    ];
    let mut results = Results::open(&settings.results(), NAME, &[], FIGURES)?;
    let place = Case { scale, ..Case::default() };
    results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
    let versions = [
        vec![held.version.clone()],
        peers::versions(&[
            "duckdb==",
            "duckdb-extension-postgres",
            "adbc",
            "connectorx",
            "psycopg",
            "pyarrow",
        ]),
    ];
    Report {
        name: NAME,
        page: Page::Transfer,
        title: "From PostgreSQL to Arrow batches",
        text: format!(
            "`{SQL}` (TPC-H, scale {scale}, {rows} rows, the column types of the specification) from a \
             PostgreSQL server on this host, with the table in its cache, over loopback TCP to Arrow \
             batches, which are counted and dropped; ConnectorX builds one table. The clock starts on an \
             open connection. Client memory is the peak of the client's process (VmHWM). Target for \
             Lightship: below 150 MB."
        ),
        tables: vec![tables::contenders::<&str>(
            &results,
            &[],
            Some(&Standing { ratio: Ratio::Ours(OURS), targets: TARGETS }),
        )],
        plots: Vec::new(),
        versions: versions.concat(),
        load,
        settings,
    }
    .publish()
}
