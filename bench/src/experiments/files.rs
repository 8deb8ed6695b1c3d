//! Files and objects: from each format to Arrow, Parquet and PostgreSQL, beside other engines.

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use lab::{Host, Lab};
use lightship_sources::writers::Format;
use lightship_testkit::s3;

use super::{OURS, side_by_side, under};
use crate::comparison::{Comparison, Contender};
use crate::data::{self, Data, DataFile};
use crate::links::LinkedHosts;
use crate::parts::{Part, RunningDatabase, TransferResult};
use crate::peers::{self, Peers};
use crate::process::Process;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::tables::{self, Ratio, Standing};
use crate::{Result, places};

const NAME: &str = "files";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 2, range: true },
    Figure { name: "peak MB", digits: 0, range: false },
];
/// Targets: the highest ratio of Lightship's seconds to the peer's, and to those of its own reading of other files.
const TARGETS: &[(&str, f64)] =
    &[("DuckDB", 1.0), ("Polars", 1.0), ("pyarrow", 1.0), ("psql \\copy from", 1.0)];
const BUCKET: &str = "bench";

/// The options of the benchmark.
#[derive(Args, Clone, Debug)]
pub(crate) struct FileSettings {
    #[command(flatten)]
    settings: Settings,
    /// Also files that are compressed as a whole: .csv.gz, .csv.zst, .jsonl.gz.
    #[arg(long)]
    compressed: bool,
    /// Parquet and CSV from a server of S3, over each link of --link (`local` by default), instead of files.
    #[arg(long)]
    s3: bool,
}

/// The files of lineitem that are read.
struct Sources {
    parquet: DataFile,
    /// What it is called in the report, and its path.
    others: Vec<(&'static str, PathBuf)>,
}

impl Sources {
    fn make(scale: f64, compressed: bool) -> Result<Self> {
        let parquet = Data::Lineitem.file(scale)?;
        let csv = parquet.csv()?;
        let jsonl = parquet.path.with_extension("jsonl");
        if !jsonl.exists() {
            eprintln!("writing {}", jsonl.display());
            let (schema, batches) = data::open(&parquet.path, data::BATCH_ROWS)?;
            data::write(&jsonl, Format::Json, schema, batches)?;
        }
        let newlines = parquet.path.with_file_name("lineitem_newlines.csv");
        if !newlines.exists() {
            eprintln!("writing {}", newlines.display());
            with_newlines(&csv, &newlines)?;
        }
        let mut others =
            vec![("CSV", csv.clone()), ("CSV with newlines", newlines), ("JSON lines", jsonl.clone())];
        if compressed {
            for (name, plain, program, extension) in [
                ("CSV, gz", &csv, "gzip", "gz"),
                ("CSV, zst", &csv, "zstd", "zst"),
                ("JSON lines, gz", &jsonl, "gzip", "gz"),
            ] {
                let path = PathBuf::from(format!("{}.{extension}", plain.display()));
                if !path.exists() {
                    eprintln!("writing {}", path.display());
                    let packed = std::process::Command::new(program).arg("-c").arg(plain).output()?;
                    std::fs::write(&path, packed.stdout)?;
                }
                others.push((name, path));
            }
        }
        Ok(Self { parquet, others })
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let parquet = std::iter::once(("Parquet", &*self.parquet.path));
        parquet.chain(self.others.iter().map(|(name, path)| (*name, &**path)))
    }
}

/// The same CSV, whose last value, the comment, has a newline in place of its first blank, and quotes around it.
fn with_newlines(from: &Path, to: &Path) -> Result<()> {
    let lines = BufReader::with_capacity(1 << 20, File::open(from)?).lines();
    let whole = to.with_extension("new");
    let mut written = BufWriter::with_capacity(1 << 20, File::create(&whole)?);
    for (number, line) in lines.enumerate() {
        let line = line?;
        match line.rsplit_once(',').filter(|(_, comment)| number > 0 && !comment.contains('"')) {
            Some((rest, comment)) => writeln!(written, "{rest},\"{}\"", comment.replacen(' ', "\n", 1))?,
            None => writeln!(written, "{line}")?,
        }
    }
    written.flush()?;
    Ok(std::fs::rename(whole, to)?)
}

/// Where the contenders run, and what they write.
struct Bench<'a> {
    peers: &'a Peers,
    lightship: String,
    folder: PathBuf,
    rows: u64,
    host: Option<&'a Host>,
    /// `NAME=VALUE` for the environment.
    environment: Vec<String>,
}

#[derive(Clone)]
enum Leaves {
    /// All rows in the table `target` of this database.
    Table(String),
    /// An Arrow or Parquet file.
    File(String),
}

impl Bench<'_> {
    fn target(&self, extension: &str) -> String {
        self.folder.join(format!("out.{extension}")).display().to_string()
    }

    fn contender<'b>(&'b self, name: &'b str, command: Vec<String>, leaves: Leaves) -> Contender<'b> {
        Contender::new(name, move || {
            // Removing earlier output is not part of the work, nor is writing back that of others.
            match &leaves {
                Leaves::Table(uri) => drop(psql(uri, "truncate target; checkpoint")?),
                Leaves::File(path) => drop(std::fs::remove_file(path)),
            }
            rustix::fs::sync();
            let words = std::iter::once("env").chain(self.environment.iter().map(String::as_str));
            let words: Vec<&str> = words.chain(command.iter().map(String::as_str)).collect();
            let done: TransferResult = self.peers.spawn(self.host, "peak.py", &words)?.result()?;
            let rows = match &leaves {
                Leaves::Table(uri) => psql(uri, "select count(*) from target")?.parse()?,
                Leaves::File(path) => super::jobs::rows_of(Path::new(path))?,
            };
            if rows != self.rows {
                return Err(format!("{rows} rows instead of {}", self.rows).into());
            }
            Ok(vec![done.seconds, done.peak_memory_bytes as f64 / 1e6])
        })
    }

    fn ours<'b>(
        &'b self,
        name: &'b str,
        source: &str,
        target: &str,
        table: &[&str],
        leaves: Leaves,
    ) -> Contender<'b> {
        let location = source.rsplit('/').next().unwrap_or(source);
        let named = location.split('.').next().unwrap_or(location);
        let sql = format!("select * from {named}");
        let command = [&[&*self.lightship, "copy", "--quiet", source, &sql, target], table].concat();
        self.contender(name, command.into_iter().map(str::to_owned).collect(), leaves)
    }

    fn peer<'b>(
        &'b self,
        name: &'b str,
        engine: &str,
        source: &str,
        target: &str,
        leaves: Leaves,
    ) -> Contender<'b> {
        let words = [engine, source, target].map(str::to_owned);
        self.contender(name, [self.peers.command("files_job.py"), words.to_vec()].concat(), leaves)
    }

    /// All ways from a source to a file of this extension.
    fn ways_to_file<'b>(&'b self, source: &str, extension: &str) -> Vec<Contender<'b>> {
        let target = self.target(extension);
        let leaves = || Leaves::File(target.clone());
        vec![
            self.ours(OURS, source, &target, &[], leaves()),
            self.peer("DuckDB", "duckdb", source, &target, leaves()),
            self.peer("Polars", "polars", source, &target, leaves()),
            self.peer("pyarrow", "pyarrow", source, &target, leaves()),
        ]
    }

    /// All ways from a source to the table `target`.
    fn ways_to_table<'b>(&'b self, source: &str, uri: &str) -> Vec<Contender<'b>> {
        let leaves = || Leaves::Table(uri.to_owned());
        let mut ways = vec![
            self.ours(OURS, source, uri, &["--table", "target"], leaves()),
            self.peer("DuckDB", "duckdb", source, uri, leaves()),
        ];
        if source.ends_with(".csv") {
            let copy = format!("\\copy target from '{source}' csv header");
            let command = ["psql", "-qX", uri, "-c", &copy].map(str::to_owned).to_vec();
            ways.push(self.contender("psql \\copy from", command, leaves()));
        }
        ways
    }
}

fn psql(uri: &str, sql: &str) -> Result<String> {
    let run = std::process::Command::new("psql").args(["-qAtX", uri, "-c", sql]).output()?;
    match run.status.success() {
        true => Ok(String::from_utf8_lossy(&run.stdout).trim().to_owned()),
        false => Err(format!("psql: {}", String::from_utf8_lossy(&run.stderr)).into()),
    }
}

/// From files of this host.
fn files(
    options: &FileSettings,
    bench: &Bench<'_>,
    sources: &Sources,
    results: &mut Results,
) -> Result<String> {
    let settings = &options.settings;
    let scale = settings.scale_or(1.0);
    eprintln!("loading lineitem into PostgreSQL");
    let mut server = Part::spawn(None, &["hold-postgres", &sources.parquet.argument()])?;
    let database: RunningDatabase = serde_json::from_str(&server.line()?)?;
    psql(&database.uri, "create table target (like lineitem)")?;
    for (name, path) in sources.all() {
        let source = path.display().to_string();
        for target in ["Arrow", "Parquet", "PostgreSQL"] {
            let case = format!("{name} to {target}");
            if !settings.wants_case(&case) || name == target {
                continue;
            }
            let contenders = match target {
                "PostgreSQL" => bench.ways_to_table(&source, &database.uri),
                target => bench.ways_to_file(&source, &target.to_lowercase()),
            };
            let place = Case { values: vec![case], scale, ..Case::default() };
            results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
        }
    }
    Ok(database.version)
}

/// From a server of S3 over links, beside the same files of this host.
fn objects(options: &FileSettings, peers: &Peers, sources: &Sources, results: &mut Results) -> Result<()> {
    let settings = &options.settings;
    let lab = Lab::new()?;
    for link in settings.links(&["local"]) {
        let course = LinkedHosts::open(&lab, &link)?;
        let mut server: Process = Part::spawn(Some(course.far()), &["serve-s3", BUCKET])?;
        let port = server.line()?;
        let endpoint = format!("http://{}:{port}", course.far_address());
        let environment = [
            ("AWS_ENDPOINT_URL", &*endpoint),
            ("AWS_ACCESS_KEY_ID", s3::ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", s3::SECRET_KEY),
            ("AWS_REGION", "us-east-1"),
        ];
        let bench = Bench {
            host: Some(course.near()),
            environment: environment.map(|(name, value)| format!("{name}={value}")).to_vec(),
            ..bench(peers, sources)?
        };
        for (name, path) in
            sources.all().filter(|(name, _)| matches!(*name, "Parquet" | "CSV" | "JSON lines"))
        {
            let case = format!("{name} from S3 to Arrow, {link}");
            if !settings.wants_case(&case) {
                continue;
            }
            let file = path.display().to_string();
            let object = format!("s3://{BUCKET}/{}", path.file_name().unwrap_or_default().display());
            // By its interface, which stores the object's tag: computing it for each request would take longer than sending.
            let mut upload = vec!["env".to_owned()];
            upload.extend(bench.environment.iter().cloned());
            upload.extend(peers.command("files_job.py"));
            upload.extend(["copy".to_owned(), file.clone(), object.clone()]);
            let words: Vec<&str> = upload.iter().map(String::as_str).collect();
            let _: TransferResult = peers.spawn(bench.host, "peak.py", &words)?.result()?;
            let target = bench.target("arrow");
            let mut contenders = bench.ways_to_file(&object, "arrow");
            contenders.push(bench.ours(
                "Lightship, local file",
                &file,
                &target,
                &[],
                Leaves::File(target.clone()),
            ));
            let note = format!("{}; {} bytes", course.measured, path.metadata()?.len());
            let place = Case { values: vec![case], scale: settings.scale_or(1.0), note };
            results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
        }
    }
    Ok(())
}

fn bench<'a>(peers: &'a Peers, sources: &Sources) -> Result<Bench<'a>> {
    let folder = places::data().join("files");
    std::fs::create_dir_all(&folder)?;
    let lightship = places::lightship()?.display().to_string();
    Ok(Bench { peers, lightship, folder, rows: sources.parquet.rows, host: None, environment: Vec::new() })
}

pub(crate) fn run(options: &FileSettings) -> Result<()> {
    let load = report::load();
    let settings = &options.settings;
    let peers = Peers::install()?;
    let mut versions = peers::tools(&[peers::PSQL])?;
    let scale = settings.scale_or(1.0);
    let sources = Sources::make(scale, options.compressed)?;
    let mut results = Results::open(&settings.results(), NAME, &["from and to"], FIGURES)?;
    match options.s3 {
        true => objects(options, &peers, &sources, &mut results)?,
        false => versions.push(files(options, &bench(&peers, &sources)?, &sources, &mut results)?),
    }
    versions.extend(peers::versions(&["duckdb==", "duckdb-extension", "polars", "pyarrow"]));
    let tables = results.places().into_iter().map(|place| {
        let standing = Standing { ratio: Ratio::Ours(OURS), targets: TARGETS };
        let table = tables::contenders(&results, place, Some(&standing));
        under(&results, &place.join(", "), place, &table)
    });
    Report {
        name: NAME,
        page: Page::Files,
        title: "From files and objects",
        text: format!(
            "lineitem (TPC-H, scale {scale}, {} rows) from a file, or from a server of S3, to an Arrow file, a Parquet file \
             (zstd, level 1) or an empty table of PostgreSQL, by one command, timed from its start to its end. Files are read \
             from the system's cache and written to disk. Memory is the peak of the command. The CSV with newlines has one in \
             each comment. The server of S3 (`--s3`) is the crate s3s-fs, on the other host of the link; beside it stands Lightship \
             with the same file on this host.",
            sources.parquet.rows
        ),
        tables: tables.collect(),
        plots: vec![(side_by_side(&results, "seconds")?, "Seconds by source and target")],
        versions,
        load,
        settings,
    }
    .publish()
}
