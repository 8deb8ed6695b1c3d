//! Queries over four nodes: Lightship's protocol between them, compared with datafusion-distributed's gRPC.

pub(crate) mod cluster_overlay;
mod nodes;
mod postgres;
pub(crate) mod skewed_join;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array as _, RecordBatch};
use futures::TryStreamExt;
use lab::Lab;
use lightship_engine::Explained;
use lightship_testkit::results::{Order, difference};
use lightship_testkit::tpch;
use tokio::runtime::Runtime;

use self::nodes::{Cluster, Setup, measured};
use super::OURS;
use crate::comparison::{Comparison, Contender};
use crate::parts;
use crate::plot::{Axis, Dots, DotsPanel};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::{Error, Result, places, tables};

const NAME: &str = "shuffle";
const GRPC: &str = "gRPC";
const WIRES: [&str; 2] = [OURS, GRPC];
/// The nodes of `--before`, an earlier build.
const BEFORE: &str = "before";
/// The same nodes over gRPC.
const GRPC_BEFORE: &str = "gRPC, before";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
    Figure { name: "processor seconds", digits: 2, range: false },
];
/// The edges of plans, in a file of their own.
const EDGES: &str = "shuffle-edges";
const EDGE_FIGURES: [Figure; 9] = [
    Figure { name: "edges", digits: 0, range: false },
    Figure { name: "error of seconds", digits: 2, range: false },
    Figure { name: "part with an error below the target", digits: 2, range: false },
    Figure { name: "error of bytes", digits: 2, range: false },
    Figure { name: "error of rows", digits: 2, range: false },
    Figure { name: "pairs of stages", digits: 0, range: false },
    Figure { name: "error of seconds of the slowest edge", digits: 2, range: false },
    Figure { name: "edges of first runs", digits: 0, range: false },
    Figure { name: "factor of seconds of first runs", digits: 2, range: false },
];
/// Places of the counts among the figures. What follows a count is an average over as many.
const COUNTS: [usize; 3] = [0, 5, 7];
/// The target for the error of the time.
const ERROR_MAX: f64 = 0.2;
/// Shorter edges are not counted.
const EDGE_SECONDS_MIN: f64 = 0.01;
const NODES: usize = 4;
const PARTITIONS: usize = 2;
/// Links, each with the target for our total time divided by gRPC's.
const LINKS: [(&str, f64); 3] = [("local", 1.0), ("1gbit", 0.7), ("100mbit", 0.5)];
/// Links, each with the target for our total time divided by that of the build before.
const LINKS_BEFORE: [(&str, f64); 4] =
    [("local", 1.0), ("1gbit", 0.9), ("100mbit", 0.85), ("1gbit+100mbit", 0.7)];
/// How the tables are stored: in parts, one per node, or whole, shared by all nodes.
const STORAGES: [&str; 2] = ["parts", "shared"];

/// The tables, and the expected answers of the queries.
struct Tpch {
    queries: [String; 22],
    /// The answers of one node.
    expected: Vec<Vec<RecordBatch>>,
    /// The answers of an independent database.
    postgres: postgres::Answers,
    /// A folder for each node.
    parts: Vec<PathBuf>,
    whole: PathBuf,
}

impl Tpch {
    fn open(scale: f64) -> Result<Self> {
        let whole = places::data().join(format!("tpch-{scale}"));
        tpch::write_parquet(scale, &whole, |_, _| {})?;
        let parts = tpch::write_shards(scale, &places::data().join(format!("parts-{scale}")), &[1; NODES])?;
        let queries = tpch::queries(scale);
        let postgres = postgres::Answers::open(&whole, scale, &queries)?;
        let expected = Runtime::new()?.block_on(async {
            let engine = parts::open(&whole, false, PARTITIONS).await?;
            let mut expected = Vec::new();
            for sql in &queries {
                let rows = engine.query(sql).await?.into_rows();
                expected.push(rows.try_collect().await.map_err(|failure| failure.message)?);
            }
            Ok::<_, Error>(expected)
        })?;
        let tpch = Self { queries, expected, postgres, parts, whole };
        // Before anything is measured: several nodes would repeat an error of the single node.
        for (query, one) in tpch.expected.iter().enumerate() {
            tpch.check(query, one).map_err(|error| format!("a single node, {error}"))?;
        }
        Ok(tpch)
    }

    /// Checks that an answer equals that of one node and that of PostgreSQL.
    ///
    /// The order of rows must match too: the queries order by enough columns to make it unique, and both
    /// systems sort text by its bytes. Only quotients may differ in precision: see [`difference`].
    fn check(&self, query: usize, got: &[RecordBatch]) -> Result<()> {
        let order = if self.queries[query].contains("\norder by") { Order::Kept } else { Order::Any };
        let others = [("a single node", &self.expected[query]), ("PostgreSQL", &self.postgres.rows[query])];
        for (name, expected) in others {
            if let Some(difference) = difference(expected, got, order) {
                return Err(format!("query {}, compared with {name}: {difference}", query + 1).into());
            }
        }
        Ok(())
    }
}

fn measure(
    settings: &Settings,
    lab: &Lab,
    link: &str,
    tpch: &Tpch,
    scale: f64,
    results: &mut Results,
    predicted: &mut Results,
) -> Result<()> {
    // `1gbit+100mbit`: the last node has the second link.
    let (first, last) = link.split_once('+').map_or((link, None), |(first, last)| (first, Some(last)));
    let hosts = lab.hosts(NODES, &first.parse()?)?;
    let note = measured(&hosts)?;
    if let (Some(last), Some(host)) = (last, hosts.last()) {
        host.reshape(&last.parse()?)?;
    }
    for storage in STORAGES {
        let this = std::env::current_exe()?;
        let builds = WIRES.iter().map(|wire| (*wire, &this));
        let earlier = settings.before.iter().flat_map(|program| [(BEFORE, program), (GRPC_BEFORE, program)]);
        let builds = builds.chain(earlier);
        let folders: Vec<&Path> = match storage {
            "shared" => vec![&tpch.whole],
            _ => tpch.parts.iter().map(PathBuf::as_path).collect(),
        };
        let start = |(number, (wire, program)): (usize, (&'static str, &PathBuf))| {
            let setup = Setup {
                program,
                hosts: &hosts,
                number,
                folders: &folders,
                partitions: PARTITIONS,
                grpc: wire == GRPC || wire == GRPC_BEFORE,
                connections: None,
            };
            Ok((wire, Cluster::start(&setup)?))
        };
        let clusters = builds.filter(|(wire, _)| settings.wants(wire)).enumerate().map(start);
        let clusters = clusters.collect::<Result<Vec<_>>>()?;
        for (query, sql) in tpch.queries.iter().enumerate() {
            let ours = clusters.iter().find(|(wire, _)| *wire == OURS);
            let before = ours.map(|(_, ours)| last_query(ours, query % NODES)).transpose()?.unwrap_or(0);
            let contenders = clusters.iter().map(|(wire, cluster)| {
                let mut checked = false;
                Contender::new(*wire, move || {
                    let (figures, rows) = cluster.measure(query % NODES, sql)?;
                    if !std::mem::replace(&mut checked, true) {
                        tpch.check(query, &rows)?;
                    }
                    Ok(figures)
                })
            });
            let comparison = Comparison { figures: FIGURES, contenders: contenders.collect() };
            let values = vec![link.to_owned(), storage.to_owned(), format!("{:02}", query + 1)];
            let place = Case { values, scale, note: note.clone() };
            results.add(comparison.run(settings, &place)?)?;
            let Some((_, ours)) = ours else { continue };
            let explained = Contender::new(OURS, move || edges(ours, query % NODES, sql, before));
            let comparison = Comparison { figures: &EDGE_FIGURES, contenders: vec![explained] };
            predicted.add(comparison.run(settings, &place)?)?;
        }
    }
    Ok(())
}

/// How well a cluster predicts its edges: how many took at least 10 ms, and the mean error of their time, as a part of what
/// was measured; the errors of their bytes and rows together, as parts of the query's bytes and rows, since an edge can have none;
/// the mean error of the time of the slowest edge between two stages; how many edges took at least 10 ms before their bytes were
/// known, in the queries after the one with number `before`, and the factor by which their time was wrong (a geometric mean).
fn edges(cluster: &Cluster<'_>, host: usize, sql: &str, before: i64) -> Result<Vec<f64>> {
    let (_, rows) = cluster.query(host, &format!("explain analyze {sql}"))?;
    let plans = rows.first().and_then(|batch| batch.column(1).as_string_opt::<i32>());
    let json = plans.filter(|plans| plans.len() == 2).ok_or("EXPLAIN has no plan")?.value(1);
    let explained: Explained = serde_json::from_str(json)?;
    let [mut of_seconds, mut of_slowest] = [const { Vec::new() }; 2];
    let [mut of_bytes, mut of_rows] = [(0.0, 0.0); 2];
    let error = |expected: f64, measured: f64| (expected - measured).abs() / measured.max(1e-9);
    // By pairs of stages: the expected and the measured time of the slowest edge.
    let mut slowest = BTreeMap::<_, Option<(f64, f64)>>::new();
    for edge in &explained.edges {
        let stages = (edge.from_stage, edge.to_stage);
        let expected = explained.expected_edges.iter().find(|expected| {
            (expected.from_stage, expected.to_stage) == stages
                && (&expected.from_node, &expected.to_node) == (&edge.from_node, &edge.to_node)
        });
        let Some(expected) = expected.filter(|edge| edge.is_known) else { continue };
        let known = slowest.entry(stages).or_insert(Some((expected.slowest_seconds, 0.0)));
        // If not all rows were read, the end is not known.
        *known = known.zip(edge.seconds).map(|((expected, known), took)| (expected, took.max(known)));
        let Some((bytes, took)) = edge.bytes_wire.zip(edge.seconds) else { continue };
        if took >= EDGE_SECONDS_MIN {
            of_seconds.push(error(expected.seconds, took));
            for (sum, expected, measured) in [
                (&mut of_bytes, expected.bytes_wire, bytes as f64),
                (&mut of_rows, expected.rows, edge.rows as f64),
            ] {
                *sum = (sum.0 + (expected - measured).abs(), sum.1 + measured);
            }
        }
    }
    let long = slowest.into_values().flatten().filter(|(_, measured)| *measured >= EDGE_SECONDS_MIN);
    of_slowest.extend(long.map(|(expected, measured)| error(expected, measured)));
    let first = first_runs(cluster, host, before)?;
    let part = |part: usize| part as f64 / of_seconds.len().max(1) as f64;
    let close = of_seconds.iter().filter(|error| **error <= ERROR_MAX).count();
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    Ok(vec![
        of_seconds.len() as f64,
        mean(&of_seconds),
        part(close),
        of_bytes.0 / of_bytes.1.max(1.0),
        of_rows.0 / of_rows.1.max(1.0),
        of_slowest.len() as f64,
        mean(&of_slowest),
        first.0 as f64,
        first.1,
    ])
}

/// The number of the last query that was planned on a host.
fn last_query(cluster: &Cluster<'_>, host: usize) -> Result<i64> {
    let (_, rows) =
        cluster.query(host, "select cast(coalesce(max(query), 0) as bigint) as last from cluster.edges")?;
    let last = rows.first().and_then(|rows| rows.column(0).as_primitive_opt::<Int64Type>());
    Ok(last.ok_or("cluster.edges has no numbers")?.value(0))
}

/// How many edges of later queries took at least 10 ms before their bytes were known, and the factor by which their time was
/// wrong, which is a geometric mean.
fn first_runs(cluster: &Cluster<'_>, host: usize, before: i64) -> Result<(i64, f64)> {
    let sql = format!(
        "select count(*) as edges, coalesce(exp(avg(abs(ln(expected_seconds / seconds)))), 1) as factor \
         from cluster.edges where query > {before} and not is_known and expected_seconds > 0 and seconds >= \
         {EDGE_SECONDS_MIN}"
    );
    let (_, rows) = cluster.query(host, &sql)?;
    let rows = rows.first().filter(|rows| rows.num_rows() == 1).ok_or("no row of cluster.edges")?;
    let edges = rows.column(0).as_primitive_opt::<Int64Type>().ok_or("no count")?.value(0);
    let factor = rows.column(1).as_primitive_opt::<Float64Type>().ok_or("no factor")?.value(0);
    Ok((edges, factor))
}

/// The mean errors of all edges.
fn predictions(results: &Results) -> String {
    let courses = results.courses();
    let names: Vec<String> = courses.iter().map(|course| course.join(", ")).collect();
    let columns = EDGE_FIGURES.map(|figure| figure.name);
    let cell = |row: &str, column: &str| {
        let Some(course) = courses.iter().find(|course| course.join(", ") == row) else {
            return String::new();
        };
        let figure = EDGE_FIGURES.iter().position(|known| known.name == column).unwrap_or(0);
        let count = COUNTS.into_iter().rfind(|count| *count <= figure).unwrap_or(0);
        let (mut all, mut weighted) = (0.0, 0.0);
        for query in results.values(2) {
            let of = |figure: usize| results.summary(&place(course, query), OURS, figure).median;
            if of(count) > 0.0 {
                all += of(count);
                weighted += of(count) * of(figure);
            }
        }
        match figure {
            _ if figure == count => tables::number(all, 0),
            _ if all > 0.0 => tables::number(weighted / all, 2),
            _ => String::new(),
        }
    };
    format!(
        "### Predictions\n\nEach query is explained with what was measured in the rounds before, then run. For all edges (the \
         rows from one node's task to another's) that take at least 10 ms and whose bytes are known from a run \
         before: the mean error of the predicted time, as a part of what was measured, and the sums of the errors of bytes and of rows in \
         a query, as parts of its bytes and rows (the mean of queries, by their numbers of edges). The time is that from the \
         request of the rows to their end. Target: a mean error of at most {ERROR_MAX:.2}. The slowest edge is that between two \
         stages, for which the second waits. First runs are edges whose bytes were not yet known, also those of a plan that a run \
         has changed: the factor is that between the time by the model of links, processors and starts (`docs/cost-model.md`) and the \
         measured one, whichever is longer (a geometric mean for each query). Over links, the model takes each node to have a host of its own, \
         but here all share the processors of one machine.\n\n{}",
        tables::grid("link, storage", &names, &columns, cell)
    )
}

fn place(course: &[String; 2], query: &str) -> [String; 3] {
    [course[0].clone(), course[1].clone(), query.to_owned()]
}

/// The table over all queries together.
fn totals(results: &Results) -> String {
    let courses = results.courses();
    let names: Vec<String> = courses.iter().map(|course| course.join(", ")).collect();
    let columns = [
        "Lightship, seconds",
        "gRPC, seconds",
        "ratio to gRPC",
        "to be at most",
        "Lightship, wire MB",
        "gRPC, wire MB",
        "Lightship, processor seconds",
        "gRPC, processor seconds",
    ];
    let cell = |row: &str, column: &str| {
        let Some(course) = courses.iter().find(|course| course.join(", ") == row) else {
            return String::new();
        };
        let total = |wire: &str, figure: usize| results.total(course, wire, figure);
        let target = LINKS.iter().find(|(link, _)| *link == course[0]);
        match column.split_once(", ") {
            Some((wire, "seconds")) => tables::spread(total(wire, 0), 2),
            Some((wire, "wire MB")) => tables::number(total(wire, 1).median, 1),
            Some((wire, _)) => tables::number(total(wire, 2).median, 1),
            None if column == "ratio to gRPC" => {
                tables::number(total(OURS, 0).median / total(GRPC, 0).median, 2)
            }
            None => target.map_or(String::new(), |(_, target)| format!("{target:.2}")),
        }
    };
    format!(
        "### All queries\n\nThe sum over the queries of each round: median, with minimum and maximum.\n\n{}",
        tables::grid("link, storage", &names, &columns, cell)
    )
}

/// The table that compares this build with an earlier one; empty if no earlier build was measured.
fn against_before(results: &Results) -> String {
    let courses = results.courses();
    let measured = |course: &&[String; 2]| !results.total(*course, BEFORE, 0).median.is_nan();
    let names: Vec<String> = courses.iter().filter(measured).map(|course| course.join(", ")).collect();
    if names.is_empty() {
        return String::new();
    }
    let columns = [
        "before, seconds",
        "now, seconds",
        "ratio to before",
        "to be at most",
        "gRPC, before, seconds",
        "ratio to gRPC, before",
        "before, wire MB",
        "now, wire MB",
        "gRPC, before, wire MB",
    ];
    let cell = |row: &str, column: &str| {
        let Some(course) = courses.iter().find(|course| course.join(", ") == row) else {
            return String::new();
        };
        let total = |name: &str, figure: usize| {
            results.total(course, if name == "now" { OURS } else { name }, figure)
        };
        if let Some(other) = column.strip_prefix("ratio to ") {
            return tables::number(total("now", 0).median / total(other, 0).median, 2);
        }
        match column.rsplit_once(", ") {
            Some((name, "seconds")) => tables::spread(total(name, 0), 2),
            Some((name, _)) => tables::number(total(name, 1).median, 1),
            None => {
                let target = LINKS_BEFORE.iter().find(|(link, _)| *link == course[0]);
                target.map_or(String::new(), |(_, target)| format!("{target:.2}"))
            }
        }
    };
    format!(
        "### Compared with an earlier build\n\nThe nodes of `--before` plan without what was measured of tables, links \
         and earlier queries (commit 2683fe1): by the rules of DataFusion and datafusion-distributed alone. `gRPC, before`: the same nodes over gRPC. \
         `1gbit+100mbit`: one node of four has 100 Mbit/s, both ways, the others 1 Gbit/s. The sum over the queries of each round: median, with minimum and maximum.\n\n{}",
        tables::grid("link, storage", &names, &columns, cell)
    )
}

fn ratios(results: &Results) -> String {
    let courses = results.courses();
    let names: Vec<String> = courses.iter().map(|course| course.join(", ")).collect();
    let cell = |query: &str, column: &str| {
        let course = courses.iter().find(|course| course.join(", ") == column);
        course.map_or(String::new(), |course| {
            let place = place(course, query);
            let (ours, grpc) = (results.median(&place, OURS), results.median(&place, GRPC));
            format!("{} ({})", tables::number(ours / grpc, 2), tables::number(ours, 3))
        })
    };
    format!(
        "### By query\n\nLightship's median divided by gRPC's; in parentheses, Lightship's seconds.\n\n{}",
        tables::grid("query", &results.values(2), &names, cell)
    )
}

fn plot(results: &Results) -> Result<String> {
    let panels = results.courses().into_iter().map(|course| {
        let row = |query: &&str| {
            let of = |wire: &&str| ((*wire).to_owned(), results.summary(&place(&course, query), wire, 0));
            (format!("query {query}"), WIRES.iter().map(of).collect())
        };
        DotsPanel { title: course.join(", "), rows: results.values(2).iter().map(row).collect() }
    });
    Ok(Dots { x: Axis::log("seconds"), panels: panels.collect() }.svg()?)
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let lab = Lab::new()?;
    let scale = settings.scale_or(1.0);
    let tpch = Tpch::open(scale)?;
    let mut results = Results::open(&settings.results(), NAME, &["link", "storage", "query"], FIGURES)?;
    let mut predicted =
        Results::open(&settings.results(), EDGES, &["link", "storage", "query"], &EDGE_FIGURES)?;
    for link in settings.links(&LINKS.map(|(link, _)| link)) {
        measure(settings, &lab, &link, &tpch, scale, &mut results, &mut predicted)?;
    }
    let links = results.values(0);
    let notes = links.iter().filter_map(|link| {
        let place = results.places().into_iter().find(|place| place[0] == *link)?;
        Some(format!("{link}: {}", results.notes(place).join(", ")))
    });
    let notes: Vec<String> = notes.collect();
    Report {
        name: NAME,
        page: Page::Shuffle,
        title: "Queries over four nodes, compared with datafusion-distributed's gRPC",
        text: format!(
            "TPC-H's 22 queries, each sent to one of {NODES} nodes by a client on its host, with \
             {PARTITIONS} partitions a node. Lightship and gRPC have the same \
             plans, tasks and nodes. Plans and rows go over Lightship's protocol or over the library's \
             gRPC (Arrow Flight, LZ4), each with its defaults. In parts, each node has a quarter of the \
             rows in its own files; shared, all nodes read the same files. The contenders take turns \
             query by query, on nodes that keep running. Each answer of the first round is compared, row \
             by row, with that of a single node and with that of PostgreSQL over the same rows: the \
             values and their order must be the same, whatever types hold them. Decimals must be equal, \
             except that quotients may differ in the last place of the shorter one; doubles may differ \
             by a billionth. Everything that a node sends shares its uplink. Bytes are those that the \
             hosts' interfaces received, headers of all layers included. Processor seconds are those of \
             all nodes together, which share the cores of one machine.\n\n{}.",
            notes.join("; ")
        ),
        tables: vec![totals(&results), against_before(&results), predictions(&predicted), ratios(&results)],
        plots: vec![(plot(&results)?, "Seconds by query and wire")],
        versions: vec!["datafusion 55.2".into(), "datafusion-distributed 4.0".into(), tpch.postgres.version],
        load,
        settings,
    }
    .publish()
}
