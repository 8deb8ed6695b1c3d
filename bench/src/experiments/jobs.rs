//! Whole jobs as users run them: transfers by one command, and TPC-H on one node.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use lightship_testkit::tpch;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};

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

const NAME: &str = "jobs";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 2, range: true },
    Figure { name: "peak MB", digits: 0, range: false },
];
const ALL: &str = "select * from lineitem";
/// Targets: the highest ratio of Lightship's seconds to the peer's.
const TARGETS: &[(&str, f64)] =
    &[("psql | psql", 1.0), ("psql \\copy to", 0.8), ("DuckDB", 1.0), ("DataFusion", 1.0), ("pgloader", 1.0)];

/// The servers and files that the jobs read and write.
struct Places {
    postgres: RunningDatabase,
    mariadb: RunningDatabase,
    parquet: DataFile,
    csv: PathBuf,
    folder: PathBuf,
    /// The servers, which end when these are dropped.
    _processes: [Process; 2],
}

impl Places {
    fn open(scale: f64) -> Result<Self> {
        let parquet = Data::Lineitem.file(scale)?;
        let csv = parquet.csv()?;
        eprintln!("loading lineitem into PostgreSQL and MariaDB");
        let hold = |part: &str, file: &Path| {
            let mut process = Part::spawn(None, &[part, &file.display().to_string()])?;
            let held: RunningDatabase = serde_json::from_str(&process.line()?)?;
            Ok::<_, crate::Error>((process, held))
        };
        let (first, postgres) = hold("hold-postgres", &parquet.path)?;
        let (second, mariadb) = hold("hold-mariadb", &csv)?;
        let folder = places::data().join("jobs");
        std::fs::create_dir_all(&folder)?;
        let places = Self { postgres, mariadb, parquet, csv, folder, _processes: [first, second] };
        places.psql("create table target (like lineitem)")?;
        Ok(places)
    }

    /// Path of a file that a job writes.
    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn psql(&self, sql: &str) -> Result<String> {
        let uri = &self.postgres.uri;
        let run = std::process::Command::new("psql").args(["-qAtX", uri, "-c", sql]).output()?;
        match run.status.success() {
            true => Ok(String::from_utf8_lossy(&run.stdout).trim().to_owned()),
            false => Err(format!("psql: {}", String::from_utf8_lossy(&run.stderr)).into()),
        }
    }
}

/// The output of a job, which is checked.
#[derive(Clone, Copy)]
enum Leaves<'a> {
    /// All rows in the table `target`.
    Table,
    File(&'a str),
    Nothing,
}

/// One way to do a job: a command that runs to its end.
fn way<'a>(
    places: &'a Places,
    peers: &'a Peers,
    name: &'static str,
    command: Vec<String>,
    leaves: Leaves<'a>,
) -> Contender<'a> {
    Contender::new(name, move || {
        match leaves {
            // Removing earlier output is not part of the job.
            Leaves::Table => drop(places.psql("truncate target; checkpoint")?),
            Leaves::File(path) => drop(std::fs::remove_file(path)),
            Leaves::Nothing => {}
        }
        // Nor is writing back the output of other contenders.
        rustix::fs::sync();
        let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        let done: TransferResult = peers.spawn(None, "peak.py", &arguments)?.result()?;
        match leaves {
            Leaves::Table
                if places.psql("select count(*) from target")? != places.parquet.rows.to_string() =>
            {
                return Err("wrong number of rows in the table target".into());
            }
            Leaves::File(path) if rows_of(Path::new(path))? != places.parquet.rows => {
                return Err(format!("{path}: wrong number of rows").into());
            }
            _ => {}
        }
        Ok(vec![done.seconds, done.peak_memory_bytes as f64 / 1e6])
    })
}

/// Rows in a file, from its footer or its lines: no text of lineitem has a line break.
pub(super) fn rows_of(path: &Path) -> Result<u64> {
    let file = File::open(path)?;
    Ok(match path.extension().and_then(OsStr::to_str) {
        Some("parquet") => {
            let footer = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())?;
            u64::try_from(footer.metadata().file_metadata().num_rows())?
        }
        Some("csv") => {
            let (mut reader, mut lines) = (BufReader::with_capacity(1 << 20, file), 0);
            loop {
                let bytes = reader.fill_buf()?;
                if bytes.is_empty() {
                    break lines - 1;
                }
                lines += memchr::memchr_iter(b'\n', bytes).count() as u64;
                let taken = bytes.len();
                reader.consume(taken);
            }
        }
        _ => arrow_ipc::reader::FileReader::try_new(file, None)?
            .try_fold(0, |rows, batch| batch.map(|batch| rows + batch.num_rows() as u64))?,
    })
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// The jobs between places, each with all ways to do it, Lightship first.
fn jobs<'a>(places: &'a Places, peers: &'a Peers) -> Result<Vec<(&'static str, Vec<Contender<'a>>)>> {
    let (postgres, mariadb) = (&*places.postgres.uri, &*places.mariadb.uri);
    let (parquet, csv) = (places.parquet.argument(), places.csv.display().to_string());
    let lightship = crate::places::lightship()?.display().to_string();
    let file = |name: &str| -> &'a str { Box::leak(places.file(name).into_boxed_str()) };
    let ours = |from: &str, sql: &str, to: &str, more: &[&str], leaves: Leaves<'a>| {
        let command = [&[&*lightship, "copy", "--quiet", from, sql, to], more].concat();
        way(places, peers, OURS, words(&command), leaves)
    };
    let into_table = |from: &str, sql: &str| ours(from, sql, postgres, &["--table", "target"], Leaves::Table);
    let into_file = |from: &str, sql: &str, to: &'a str| ours(from, sql, to, &[], Leaves::File(to));
    let peer = |name, command: &[&str], leaves| way(places, peers, name, words(command), leaves);
    let python = |program: &str| peers.command(program);
    let duckdb = |statement: &str, leaves| {
        let attach = format!("attach '{postgres}' as pg (type postgres)");
        let command = [python("duckdb_job.py"), vec![attach, statement.to_owned()]].concat();
        way(places, peers, "DuckDB", command, leaves)
    };
    let load = places.folder.join("mariadb.load");
    std::fs::write(
        &load,
        format!(
            "load database from {} into {} with data only, truncate, no foreign keys \
             including only table names matching 'lineitem' \
             alter schema 'test' rename to 'public' alter table names matching 'lineitem' rename to 'target';",
            pgloader_uri("mysql", &places.mariadb),
            pgloader_uri("pgsql", &places.postgres),
        ),
    )?;
    let (out_parquet, out_csv, out_arrow) = (file("out.parquet"), file("out.csv"), file("out.arrow"));
    // The same compression as Lightship's.
    let zstd = "(format parquet, compression zstd, compression_level 1)";
    let copy_all = format!("\\copy lineitem to '{out_csv}' csv header");
    Ok(vec![
        (
            "PostgreSQL to Parquet",
            vec![
                into_file(postgres, ALL, out_parquet),
                duckdb(
                    &format!("copy (select * from pg.lineitem) to '{out_parquet}' {zstd}"),
                    Leaves::File(out_parquet),
                ),
            ],
        ),
        (
            "PostgreSQL to CSV",
            vec![
                into_file(postgres, ALL, out_csv),
                peer("psql \\copy to", &["psql", "-qX", postgres, "-c", &copy_all], Leaves::File(out_csv)),
            ],
        ),
        (
            "PostgreSQL to PostgreSQL",
            vec![
                into_table(postgres, ALL),
                peer(
                    "psql | psql",
                    &[
                        "sh",
                        "-c",
                        &format!(
                            "psql -qX '{postgres}' -c 'copy lineitem to stdout (format binary)' | \
                             psql -qX '{postgres}' -c 'copy target from stdin (format binary)'"
                        ),
                    ],
                    Leaves::Table,
                ),
            ],
        ),
        (
            "Parquet to PostgreSQL",
            vec![
                into_table(&parquet, ALL),
                duckdb(&format!("insert into pg.target select * from '{parquet}'"), Leaves::Table),
            ],
        ),
        (
            "CSV to PostgreSQL",
            vec![
                into_table(&csv, ALL),
                peer(
                    "psql \\copy from",
                    &["psql", "-qX", postgres, "-c", &format!("\\copy target from '{csv}' csv header")],
                    Leaves::Table,
                ),
            ],
        ),
        (
            "CSV to Parquet",
            vec![
                into_file(&csv, ALL, out_parquet),
                duckdb(
                    &format!("copy (select * from '{csv}') to '{out_parquet}' {zstd}"),
                    Leaves::File(out_parquet),
                ),
            ],
        ),
        (
            "MariaDB to Arrow",
            vec![
                into_file(mariadb, ALL, out_arrow),
                peer(
                    "mariadb -q, text thrown away",
                    &["sh", "-c", &mariadb_command(&places.mariadb)],
                    Leaves::Nothing,
                ),
                way(
                    places,
                    peers,
                    "ConnectorX, in memory",
                    [python("connectorx_job.py"), words(&[mariadb, "lineitem"])].concat(),
                    Leaves::Nothing,
                ),
            ],
        ),
        (
            "MariaDB to PostgreSQL",
            vec![
                into_table(mariadb, ALL),
                peer("pgloader", &["pgloader", "--quiet", &load.display().to_string()], Leaves::Table)
                    .rounds_max(1),
            ],
        ),
    ])
}

/// pgloader does not decode percent signs; `@`, which ends a password, is doubled.
fn pgloader_uri(scheme: &str, held: &RunningDatabase) -> String {
    let RunningDatabase { user, password, port, .. } = held;
    format!("{scheme}://{user}:{}@127.0.0.1:{port}/test", password.replace('@', "@@"))
}

fn mariadb_command(held: &RunningDatabase) -> String {
    let (port, user, password) = (held.port, &held.user, &held.password);
    format!(
        "MYSQL_PWD='{password}' mariadb --no-defaults --protocol=tcp --host=127.0.0.1 --port={port} \
         --user={user} --database=test --quick --execute '{ALL}' > /dev/null"
    )
}

/// The queries of TPC-H over Parquet files, one after the other.
fn queries<'a>(folder: &'a Path, scale: f64, peers: &'a Peers) -> Result<Vec<Contender<'a>>> {
    let file = places::data().join("jobs/queries.json");
    std::fs::write(&file, serde_json::to_string(&tpch::queries(scale))?)?;
    let file = file.display().to_string();
    let figures = |done: TransferResult, peak_bytes: u64| vec![done.seconds, peak_bytes as f64 / 1e6];
    let peer = |name: &'static str, engine: &'static str| {
        let (folder, file) = (folder.display().to_string(), file.clone());
        Contender::new(name, move || {
            let done: TransferResult =
                peers.spawn(None, "queries.py", &[engine, &folder, &file])?.result()?;
            let peak_bytes = done.peak_memory_bytes;
            Ok(figures(done, peak_bytes))
        })
    };
    let (folder, own_file) = (folder.to_owned(), file.clone());
    let ours = Contender::new(OURS, move || {
        let node = Node::start_folder(&folder)?;
        let done = Part::spawn(None, &["queries", &node.port.to_string(), &own_file])?.result()?;
        Ok(figures(done, node.process.memory_bytes("VmHWM")?))
    });
    Ok(vec![ours, peer("DataFusion", "datafusion"), peer("DuckDB's engine", "duckdb")])
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let peers = Peers::install()?;
    let tools = peers::tools(&[peers::PSQL, peers::PGLOADER, peers::MARIADB])?;
    let scale = settings.scale_or(1.0);
    let places = Places::open(scale)?;
    let mut results = Results::open(&settings.results(), NAME, &["job"], FIGURES)?;
    let mut all = jobs(&places, &peers)?;
    let parquet_folder = places.parquet.path.parent().ok_or("a file without a folder")?;
    all.push(("TPC-H, 22 queries over Parquet", queries(parquet_folder, scale, &peers)?));
    all.retain(|(job, _)| settings.wants_case(job));
    for (job, contenders) in all {
        let place = Case { values: vec![job.to_owned()], scale, ..Case::default() };
        results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
    }
    let tables = results.places().into_iter().map(|place| {
        let standing = Standing { ratio: Ratio::Ours(OURS), targets: TARGETS };
        let table = tables::contenders(&results, place, Some(&standing));
        under(&results, &place.join(", "), place, &table)
    });
    let versions = [
        vec![places.postgres.version.clone(), places.mariadb.version.clone()],
        tools,
        peers::versions(&["duckdb==", "duckdb-extension-postgres", "connectorx", "datafusion"]),
    ];
    Report {
        name: NAME,
        page: Page::Transfer,
        title: "Whole jobs",
        text: format!(
            "lineitem (TPC-H, scale {scale}, {} rows) from one place to another by one command, timed from \
             its start to its end. Servers run on this host and have the table in their caches. The target \
             table is empty; files are written to disk and read from the system's cache. Memory is the peak \
             of the command's largest process. pgloader runs once. The 22 queries of TPC-H run one after the \
             other over the same Parquet files. Lightship runs them over TCP on a freshly started node, and \
             its memory is the node's.",
            places.parquet.rows
        ),
        tables: tables.collect(),
        plots: vec![(side_by_side(&results, "seconds")?, "Seconds by job")],
        versions: versions.concat(),
        load,
        settings,
    }
    .publish()
}
