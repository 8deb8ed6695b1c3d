//! Joins in which one key has 30% of the rows, compared with an earlier build.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use futures::TryStreamExt;
use lab::{Lab, Limits};
use lightship_testkit::results::{Order, difference};
use parquet::arrow::ArrowWriter;
use tokio::runtime::Runtime;

use super::nodes::{Cluster, Setup, measured};
use super::{BEFORE, NODES, PARTITIONS};
use crate::comparison::{Comparison, Contender};
use crate::experiments::OURS;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::{Error, Result, parts, places, tables};

const NAME: &str = "skewed-join";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
    Figure { name: "processor seconds", digits: 2, range: false },
];
const LINKS: [&str; 2] = ["1gbit", "100mbit"];
/// The share of the rows that have the same key.
const SHARE: f64 = 0.3;
/// Rows at scale 1.
const EVENTS: f64 = 4_000_000.0;
const ITEMS: f64 = 1_000_000.0;
/// Of the ratio to the build before.
const TARGET: f64 = 0.7;
/// Processors of a node: with more, the nodes share two, and none can be the slowest.
const CPUS: f64 = 0.5;
const QUERIES: [(&str, &str); 2] = [
    ("narrow", "select count(*), sum(amount * price) from events join items using (item)"),
    (
        "wide",
        "select count(*), sum(amount * price), max(name), max(note) from events join items using (item)",
    ),
];

/// The tables of each node, and all rows in one folder.
struct Data {
    parts: Vec<PathBuf>,
    expected: Vec<Vec<RecordBatch>>,
}

fn write(rows: &RecordBatch, path: &Path) -> Result<()> {
    let mut writer = ArrowWriter::try_new(File::create(path)?, rows.schema(), None)?;
    writer.write(rows)?;
    writer.close()?;
    Ok(())
}

fn column(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Int64Array>())
}

impl Data {
    fn open(scale: f64) -> Result<Self> {
        let folder = places::data().join(format!("skewed-{scale}"));
        let (events, items) = ((EVENTS * scale) as usize, (ITEMS * scale).max(1.0) as usize);
        let mut random = fastrand::Rng::with_seed(1);
        let mut parts = Vec::new();
        for node in 0..NODES {
            let part = folder.join(node.to_string());
            std::fs::create_dir_all(&part)?;
            let keys: Vec<i64> = (0..events / NODES)
                .map(|_| if random.f64() < SHARE { 0 } else { random.usize(0..items) as i64 })
                .collect();
            let amounts: Vec<i64> = keys.iter().map(|_| random.i64(1..100)).collect();
            let notes: StringArray =
                keys.iter().map(|_| Some(format!("note {:x}", random.u32(..)))).collect();
            let rows = RecordBatch::try_from_iter([
                ("item", column(keys)),
                ("amount", column(amounts)),
                ("note", Arc::new(notes) as ArrayRef),
            ])?;
            write(&rows, &part.join("events.parquet"))?;
            let keys: Vec<i64> = (0..items as i64).filter(|key| *key as usize % NODES == node).collect();
            let prices: Float64Array = keys.iter().map(|_| Some(f64::from(random.u32(1..1000)))).collect();
            let names: StringArray =
                keys.iter().map(|key| Some(format!("item {key} {:x}", random.u64(..)))).collect();
            let rows = RecordBatch::try_from_iter([
                ("item", column(keys)),
                ("price", Arc::new(prices) as ArrayRef),
                ("name", Arc::new(names)),
            ])?;
            write(&rows, &part.join("items.parquet"))?;
            parts.push(part);
        }
        Ok(Self { expected: Self::expected(&parts)?, parts })
    }

    /// The answers of one node.
    fn expected(parts: &[PathBuf]) -> Result<Vec<Vec<RecordBatch>>> {
        Runtime::new()?.block_on(async {
            let mut engine = parts::open(&parts[0], false, PARTITIONS).await?;
            let mut all = Vec::new();
            for table in ["events", "items"] {
                for (index, part) in parts.iter().enumerate() {
                    let name = format!("{table}_{index}");
                    engine.register_path(&name, &part.join(format!("{table}.parquet"))).await?;
                }
                let union: Vec<String> =
                    (0..parts.len()).map(|index| format!("select * from {table}_{index}")).collect();
                all.push(format!("({}) {table}", union.join(" union all ")));
            }
            let mut expected = Vec::new();
            for (_, sql) in QUERIES {
                let sql = sql.replace("events join items", &format!("{} join {}", all[0], all[1]));
                let rows = engine.query(&sql).await?.into_rows();
                expected.push(rows.try_collect().await.map_err(|failure| failure.message)?);
            }
            Ok::<_, Error>(expected)
        })
    }
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let lab = Lab::new()?;
    let scale = settings.scale_or(1.0);
    let data = Data::open(scale)?;
    let folders: Vec<&Path> = data.parts.iter().map(PathBuf::as_path).collect();
    let mut results = Results::open(&settings.results(), NAME, &["link", "query"], FIGURES)?;
    let this = std::env::current_exe()?;
    for link in settings.links(&LINKS) {
        let hosts = lab.hosts(NODES, &link.parse()?)?;
        let note = measured(&hosts)?;
        for host in &hosts {
            host.limit(&Limits { cpus: Some(CPUS), ..Limits::default() })?;
        }
        let builds =
            [(OURS, &this)].into_iter().chain(settings.before.iter().map(|program| (BEFORE, program)));
        let start = |(number, (build, program)): (usize, (&'static str, &PathBuf))| {
            let setup = Setup {
                program,
                hosts: &hosts,
                number,
                folders: &folders,
                partitions: PARTITIONS,
                grpc: false,
                connections: None,
            };
            Ok((build, Cluster::start(&setup)?))
        };
        let clusters = builds.filter(|(build, _)| settings.wants(build)).enumerate().map(start);
        let clusters = clusters.collect::<Result<Vec<_>>>()?;
        for (index, (query, sql)) in QUERIES.iter().enumerate() {
            let contenders = clusters.iter().map(|(build, cluster)| {
                let expected = &data.expected[index];
                Contender::new(*build, move || {
                    let (figures, rows) = cluster.measure(0, sql)?;
                    match difference(expected, &rows, Order::Any) {
                        Some(difference) => Err(difference.into()),
                        None => Ok(figures),
                    }
                })
            });
            let comparison = Comparison { figures: FIGURES, contenders: contenders.collect() };
            let place = Case { values: vec![link.clone(), (*query).to_owned()], scale, note: note.clone() };
            results.add(comparison.run(settings, &place)?)?;
        }
    }
    Report {
        name: NAME,
        page: Page::Shuffle,
        title: "Joins with a frequent key",
        text: format!(
            "{NODES} nodes, each on its own host with {CPUS} of a processor, and a quarter of two tables: {EVENTS} events at scale 1, of \
             which {}% have the same item, and {ITEMS} items. A join that divides both tables by the item sends all events of that item \
             to one node. `before`: the nodes of `--before`, which plan without what was measured (commit 2683fe1). They take \
             turns; each answer is compared with that of a single node. The first, uncounted run is planned by estimates. \
             Target: at most {TARGET:.2} of the time before. `narrow`: {}. `wide`: {}.",
            SHARE * 100.0,
            QUERIES[0].1,
            QUERIES[1].1
        ),
        tables: vec![table(&results)],
        plots: Vec::new(),
        versions: vec!["datafusion 55.2".into(), "datafusion-distributed 4.0".into()],
        load,
        settings,
    }
    .publish()
}

fn table(results: &Results) -> String {
    let places: Vec<Vec<String>> = results.places().into_iter().map(<[String]>::to_vec).collect();
    let rows: Vec<String> = places.iter().map(|place| place.join(", ")).collect();
    let columns =
        ["before, seconds", "now, seconds", "ratio", "to be at most", "before, wire MB", "now, wire MB"];
    let cell = |row: &str, column: &str| {
        let Some(place) = places.iter().find(|place| place.join(", ") == row) else { return String::new() };
        let of = |build: &str, figure: usize| results.summary(place, build, figure);
        match column {
            "before, seconds" => tables::spread(of(BEFORE, 0), 2),
            "now, seconds" => tables::spread(of(OURS, 0), 2),
            "ratio" => tables::number(of(OURS, 0).median / of(BEFORE, 0).median, 2),
            "before, wire MB" => tables::number(of(BEFORE, 1).median, 1),
            "now, wire MB" => tables::number(of(OURS, 1).median, 1),
            _ => format!("{TARGET:.2}"),
        }
    };
    tables::grid("link, query", &rows, &columns, cell)
}
