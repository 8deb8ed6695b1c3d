//! Clients as their users call them: Python libraries that read from PostgreSQL, and the clients of a node's protocols.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::{OURS, side_by_side, under};
use crate::comparison::{Comparison, Contender};
use crate::data::{Data, DataFile};
use crate::parts::{Part, RunningDatabase, TransferResult};
use crate::peers::{self, Peers};
use crate::process::{Node, Process};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::tables::{self, Ratio, Standing};
use crate::{Result, places};

const NAME: &str = "clients";
const SQL: &str = "select * from lineitem";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "client peak MB", digits: 0, range: false },
];

const CONNECTORX: &str = "ConnectorX";
const CONNECTORX_2: &str = "ConnectorX, 2 partitions";
const CONNECTORX_STREAM: &str = "ConnectorX, stream";
const ADBC: &str = "ADBC";
const DUCKDB: &str = "DuckDB postgres scanner";
const RUST: &str = "Lightship, Rust";
const PYTHON: &str = "Lightship, Python";
const NODE: &str = "Lightship node";
const NODE_2: &str = "Lightship node, 2 endpoints";
const POSTGRES: &str = "PostgreSQL";
const FLIGHT: &str = "pyarrow's server";

/// From PostgreSQL, by one call.
const ARROW: &str = "PostgreSQL to pyarrow";
const PANDAS: &str = "PostgreSQL to pandas";
const POLARS: &str = "PostgreSQL to Polars";
const STREAM: &str = "PostgreSQL, batches dropped";
/// From a node.
const NODE_TABLE: &str = "node: to a table";
const NODE_BATCHES: &str = "node: batches dropped";
/// From a node and another server of the same protocol, by the same client.
const FLIGHT_ADBC: &str = "flight: ADBC";
const FLIGHT_PYARROW: &str = "flight: pyarrow";
const WIRE_ROWS: &str = "postgres: psycopg, rows";
const WIRE_COPY: &str = "postgres: psycopg, COPY BINARY";
const WIRE_ADBC: &str = "postgres: ADBC";
const WIRE_CONNECTORX: &str = "postgres: ConnectorX";
const WIRE_DUCKDB: &str = "postgres: DuckDB postgres scanner";

/// How the contenders of a case are compared.
fn standing(case: &str) -> Standing<'static> {
    let (ratio, targets): (_, &[_]) = match case {
        ARROW => (Ratio::Ours(OURS), &[(CONNECTORX, 0.45), (CONNECTORX_2, 0.45), (ADBC, 1.0)]),
        PANDAS | POLARS => (
            Ratio::Ours(OURS),
            &[
                (CONNECTORX, 1.0),
                (CONNECTORX_2, 1.0),
                (ADBC, 1.0),
                ("ADBC, Arrow types", 1.0),
                ("SQLAlchemy and psycopg", 1.0),
            ],
        ),
        NODE_TABLE | NODE_BATCHES => (Ratio::Of(RUST), &[(PYTHON, 1.1)]),
        FLIGHT_ADBC | FLIGHT_PYARROW => (Ratio::Of(FLIGHT), &[(NODE, 1.3)]),
        WIRE_ROWS | WIRE_COPY | WIRE_ADBC | WIRE_CONNECTORX | WIRE_DUCKDB => {
            (Ratio::Of(POSTGRES), &[(NODE, 1.0)])
        }
        _ => (Ratio::Ours(OURS), &[]),
    };
    Standing { ratio, targets }
}

/// The servers, and what runs the clients.
struct Bench<'a> {
    peers: &'a Peers,
    /// Folder with the Python package.
    package: TempDir,
    postgres: RunningDatabase,
    node: Node,
    /// The same, with `--flight-endpoints`.
    divided: Node,
    flight: String,
    rows: u64,
    /// Servers that end when these are dropped.
    _processes: [Process; 2],
    _files: TempDir,
}

impl<'a> Bench<'a> {
    fn open(peers: &'a Peers, file: &DataFile) -> Result<Self> {
        let package = package()?;
        eprintln!("loading lineitem into PostgreSQL");
        let mut holder = Part::spawn(None, &["hold-postgres", &file.argument()])?;
        let postgres: RunningDatabase = serde_json::from_str(&holder.line()?)?;
        // The other servers have the rows as PostgreSQL returns them: `char` padded with spaces.
        let files = places::temporary()?;
        let copy = files.path().join("lineitem.parquet").display().to_string();
        let fetched = Command::new(places::lightship()?)
            .args(["fetch", "-q", &postgres.uri, SQL, "-o", &copy])
            .status()?;
        if !fetched.success() {
            return Err(format!("fetching lineitem: {fetched}").into());
        }
        let protocols = ["--flight", "127.0.0.1:0", "--postgres", "127.0.0.1:0"];
        let start = |more: &[&str]| Node::start_with(None, &format!("lineitem={copy}"), true, more);
        let node = start(&protocols)?;
        let divided = start(&["--flight", "127.0.0.1:0", "--flight-endpoints", "2"])?;
        let mut server = peers.spawn(None, "flight_server.py", &[&copy, "127.0.0.1"])?;
        let flight = format!("grpc://127.0.0.1:{}", server.line()?);
        Ok(Self {
            peers,
            package,
            postgres,
            node,
            divided,
            flight,
            rows: file.rows,
            _processes: [holder, server],
            _files: files,
        })
    }

    fn figures(&self, client: Process) -> Result<Vec<f64>> {
        let done = client.result::<TransferResult>()?.whole(self.rows)?;
        Ok(vec![done.seconds, done.peak_memory_bytes as f64 / 1e6])
    }

    /// A contender of `clients.py`, which reads in this way.
    fn client(&self, name: &'static str, way: &'static str, uri: &str) -> Contender<'_> {
        let uri = uri.to_owned();
        Contender::new(name, move || {
            let arguments = [way, &uri, SQL];
            self.figures(self.peers.spawn_with_package(self.package.path(), "clients.py", &arguments)?)
        })
    }

    /// A contender that is one of the other programs.
    fn program(
        &self,
        name: &'static str,
        uri: &str,
        program: &'static str,
        arguments: &'static [&'static str],
    ) -> Contender<'_> {
        let uri = uri.to_owned();
        Contender::new(name, move || {
            self.figures(self.peers.spawn(None, program, &[&[&*uri], arguments].concat())?)
        })
    }

    /// The Rust client of the node.
    fn rust(&self, more: &'static [&'static str]) -> Contender<'_> {
        let port = self.node.port.to_string();
        Contender::new(RUST, move || {
            let own = ["fetch", "127.0.0.1", &port, SQL, "--threads", "many"];
            self.figures(Part::spawn(None, &[&own, more].concat())?)
        })
    }

    fn cases(&self) -> Result<Vec<(&'static str, Vec<Contender<'_>>)>> {
        let postgres = &*self.postgres.uri;
        let from = |name, way| self.client(name, way, postgres);
        let node = self.node.uri();
        let flight = self.node.protocol("flight")?;
        // The node accepts any user name; without one, clients send the name of the system's user.
        let wire = self.node.protocol("postgres")?.replace("://", "://me@");
        let both = |name: [&'static str; 2], way, uris: [&str; 2]| {
            vec![self.client(name[0], way, uris[0]), self.client(name[1], way, uris[1])]
        };
        let mut flight_adbc = both([NODE, FLIGHT], "flight_adbc", [&flight, &self.flight]);
        flight_adbc.push(self.client(NODE_2, "flight_adbc", &self.divided.protocol("flight")?));
        let wires = |program, arguments| {
            vec![
                self.program(NODE, &wire, program, arguments),
                self.program(POSTGRES, postgres, program, arguments),
            ]
        };
        Ok(vec![
            (
                ARROW,
                vec![
                    from(OURS, "lightship_arrow"),
                    from(CONNECTORX, "connectorx_arrow"),
                    from(CONNECTORX_2, "connectorx_arrow_2"),
                    from(ADBC, "adbc_arrow"),
                    from(DUCKDB, "duckdb_arrow"),
                    from("psycopg, rows made to Arrow", "psycopg_arrow").rounds_max(1),
                ],
            ),
            (
                PANDAS,
                vec![
                    from(OURS, "lightship_pandas"),
                    from("Lightship, Arrow types", "lightship_pandas_arrow"),
                    from(CONNECTORX, "connectorx_pandas"),
                    from(ADBC, "adbc_pandas"),
                    from("ADBC, Arrow types", "adbc_pandas_arrow"),
                    from("SQLAlchemy and psycopg", "sqlalchemy_pandas").rounds_max(1),
                ],
            ),
            (
                POLARS,
                vec![
                    from(OURS, "lightship_polars"),
                    from(CONNECTORX, "connectorx_polars"),
                    from(CONNECTORX_2, "connectorx_polars_2"),
                    from(ADBC, "adbc_polars"),
                ],
            ),
            (
                STREAM,
                vec![
                    from(OURS, "lightship_stream"),
                    from(CONNECTORX_STREAM, "connectorx_stream"),
                    from(ADBC, "adbc_stream"),
                ],
            ),
            (NODE_TABLE, vec![self.client(PYTHON, "node_table", &node), self.rust(&["--keep"])]),
            (NODE_BATCHES, vec![self.client(PYTHON, "node_batches", &node), self.rust(&[])]),
            (FLIGHT_ADBC, flight_adbc),
            (FLIGHT_PYARROW, both([NODE, FLIGHT], "flight_pyarrow", [&flight, &self.flight])),
            (WIRE_ROWS, wires("postgres_rows.py", &["lineitem"])),
            (WIRE_COPY, wires("postgres_copy.py", &["lineitem"])),
            (WIRE_ADBC, wires("postgres_adbc.py", &[SQL])),
            (WIRE_CONNECTORX, wires("postgres_connectorx.py", &["lineitem", "l_orderkey", "1"])),
            (WIRE_DUCKDB, wires("postgres_duckdb.py", &["lineitem"])),
        ])
    }
}

/// A folder for `PYTHONPATH` with the package `lightship` of this build.
fn package() -> Result<TempDir> {
    let folder = places::temporary()?;
    let package = folder.path().join("lightship");
    std::fs::create_dir(&package)?;
    for entry in std::fs::read_dir(places::root().join("python/lightship"))? {
        let path = entry?.path();
        if let (Some("py"), Some(name)) = (path.extension().and_then(OsStr::to_str), path.file_name()) {
            std::fs::copy(&path, package.join(name))?;
        }
    }
    link(&places::extension()?, &package.join("_lightship.abi3.so"))?;
    Ok(folder)
}

/// A second name for a large file.
fn link(from: &Path, to: &Path) -> Result<()> {
    Ok(std::fs::hard_link(from, to).or_else(|_| std::fs::copy(from, to).map(drop))?)
}

/// What a streamed read needs of the memory that a table of ConnectorX needs.
fn memory(results: &Results) -> String {
    let median = |case: &str, name| results.summary(&[case], name, 1).median;
    let share = median(STREAM, OURS) / median(ARROW, CONNECTORX);
    if share.is_nan() {
        return String::new();
    }
    format!(
        " Lightship's stream has {share:.2} of the peak memory of ConnectorX's table of the same rows. Target: at \
         most 0.25."
    )
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let peers = Peers::install()?;
    let scale = settings.scale_or(1.0);
    let file = Data::Lineitem.file(scale)?;
    let bench = Bench::open(&peers, &file)?;
    let mut results = Results::open(&settings.results(), NAME, &["case"], FIGURES)?;
    for (case, contenders) in bench.cases()? {
        if settings.wants_case(case) {
            let place = Case { values: vec![case.to_owned()], scale, ..Case::default() };
            results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
        }
    }
    let tables = results.places().into_iter().map(|place| {
        let case = place.join(", ");
        under(&results, &case, place, &tables::contenders(&results, place, Some(&standing(&case))))
    });
    let versions = peers::versions(&[
        "adbc",
        "connectorx",
        "duckdb==",
        "duckdb-extension-postgres",
        "pandas",
        "polars",
        "psycopg",
        "pyarrow",
        "sqlalchemy",
    ]);
    Report {
        name: NAME,
        page: Page::Clients,
        title: "Clients in Python, and clients of a node's protocols",
        text: format!(
            "`{SQL}` (TPC-H, scale {scale}, {} rows, the column types of the specification), over loopback, by a \
             process that is started for each run and has imported its libraries before the clock starts. Memory is \
             the peak of that process (VmHWM), libraries included.\n\n\
             **From PostgreSQL**, which has the table in its cache: one call, with the connection. The libraries \
             return different types for `numeric`: Lightship, DuckDB and ConnectorX decimals, ADBC texts, \
             ConnectorX in pandas floats; pandas holds decimals and dates as objects, unless it is told to keep \
             Arrow's types. ConnectorX connects twice to read two partitions. SQLAlchemy and psycopg, which make an \
             object of each value, run once.{}\n\n\
             **From a node** that has the same rows in memory: on an open connection, with shared memory, to a table \
             that is kept, and to batches that are dropped. The Rust client is that of the crate `session`.\n\n\
             **Flight**: the same clients read from a node (`--flight`) and from the C++ server of pyarrow, which \
             sends the same rows from memory, 65536 a batch. With two endpoints (`--flight-endpoints 2`) the driver \
             reads a result in two streams. **PostgreSQL's protocol**: the same clients read from a \
             node (`--postgres`) and from PostgreSQL. These clocks start on an open connection, except ConnectorX's, \
             and batches are dropped.",
            file.rows,
            memory(&results)
        ),
        tables: tables.collect(),
        plots: vec![(side_by_side(&results, "seconds")?, "Seconds by case")],
        versions: [vec![bench.postgres.version.clone()], versions].concat(),
        load,
        settings,
    }
    .publish()
}
