//! Queries over 16 and 32 nodes with few connections between them: an overlay, compared with direct connections.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use futures::TryStreamExt;
use lab::Lab;
use lightship_testkit::results::{Order, difference};
use lightship_testkit::tpch;
use tokio::runtime::Runtime;

use super::nodes::{Cluster, Setup, measured};
use crate::plot::{Axis, Dots, DotsPanel};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results, Run};
use crate::settings::Settings;
use crate::{Error, Result, parts, places, tables};

const NAME: &str = "cluster-overlay";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
    Figure { name: "processor seconds", digits: 2, range: false },
    Figure { name: "forwarded messages", digits: 0, range: false },
    Figure { name: "connections of a node, at most", digits: 0, range: false },
];
const FORWARDED: usize = 3;
const CONNECTIONS: usize = 4;
const NODES: [usize; 2] = [16, 32];
/// Connections that a node may have for rows.
const LIMITS: [usize; 3] = [4, 8, 16];
const DIRECT: &str = "direct";
const LINK: &str = "1gbit";
const PARTITIONS: usize = 2;
/// The overlay forms after all nodes have met.
const FORMING_MAX: Duration = Duration::from_secs(60);
/// Each sends rows from every node to every other, except for the last.
const QUERIES: [(&str, &str); 3] = [
    (
        "groups",
        "select count(*), sum(n) from (select l_partkey, l_suppkey, count(*) as n from lineitem \
         group by l_partkey, l_suppkey)",
    ),
    (
        "join",
        "select count(*), sum(a.l_quantity) from lineitem a join lineitem b \
         on a.l_partkey = b.l_partkey and a.l_suppkey = b.l_suppkey and a.l_linenumber < b.l_linenumber",
    ),
    ("rows", "select l_orderkey, l_comment from lineitem where l_quantity < 5"),
];

/// What a cluster's nodes have counted.
struct Counts {
    forwarded: f64,
    connections: f64,
}

fn counts(cluster: &Cluster<'_>) -> Result<Counts> {
    let mut counts = Counts { forwarded: 0.0, connections: 0.0 };
    for node in 0..cluster.len() {
        let sql = "select forwarded_messages, connections_max + direct_peers_max from cluster.overlay";
        let (_, rows) = cluster.query(node, sql)?;
        let of = |column: usize| {
            let value = rows.first().and_then(|batch| batch.column(column).as_primitive_opt::<UInt64Type>());
            value.map(|values| values.value(0) as f64).ok_or("a node without its part in the overlay")
        };
        counts.forwarded += of(0)?;
        counts.connections = f64::max(counts.connections, of(1)?);
    }
    Ok(counts)
}

/// Waits until all nodes use the overlay.
fn formed(cluster: &Cluster<'_>) -> Result<()> {
    let began = Instant::now();
    for node in 0..cluster.len() {
        loop {
            let (_, rows) = cluster.query(node, "select is_open from cluster.overlay")?;
            if rows.first().is_some_and(|batch| batch.column(0).as_boolean().value(0)) {
                break;
            }
            if began.elapsed() > FORMING_MAX {
                return Err("no overlay has formed".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// The answers of one node.
fn expected(whole: &Path) -> Result<Vec<Vec<RecordBatch>>> {
    Runtime::new()?.block_on(async {
        let engine = parts::open(whole, false, PARTITIONS).await?;
        let mut expected = Vec::new();
        for (_, sql) in QUERIES {
            let rows = engine.query(sql).await?.into_rows();
            expected.push(rows.try_collect().await.map_err(|failure| failure.message)?);
        }
        Ok::<_, Error>(expected)
    })
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let lab = Lab::new()?;
    let scale = settings.scale_or(0.1);
    let whole = places::data().join(format!("tpch-{scale}"));
    tpch::write_parquet(scale, &whole, |_, _| {})?;
    let expected = expected(&whole)?;
    let mut results = Results::open(&settings.results(), NAME, &["nodes", "query"], FIGURES)?;
    let program = std::env::current_exe()?;
    let mut limits: Vec<(String, Option<usize>, &Path)> = vec![(DIRECT.to_owned(), None, &program)];
    for most in LIMITS {
        limits.push((format!("{most} connections"), Some(most), &program));
        let before = settings.before.iter();
        limits.extend(
            before.map(|program| (format!("{most} connections, before"), Some(most), program.as_path())),
        );
    }
    limits.retain(|(name, ..)| settings.wants(name));
    // The nodes share the processors: 32 take minutes to start, several times.
    let tried = if settings.quick { &NODES[..1] } else { &NODES };
    for &nodes in tried.iter().filter(|nodes| settings.wants_case(&nodes.to_string())) {
        let folder = places::data().join(format!("parts-{scale}-{nodes}"));
        let shards = tpch::write_shards(scale, &folder, &vec![1; nodes])?;
        let folders: Vec<&Path> = shards.iter().map(PathBuf::as_path).collect();
        let hosts = lab.hosts(nodes, &LINK.parse()?)?;
        let note = format!("{LINK}: {}", measured(&hosts)?);
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); QUERIES.len()];
        for round in 1..=settings.rounds() {
            // With as many connections as peers, no overlay forms.
            let has_overlay = |limit: &Option<usize>| limit.is_none_or(|most| most < nodes - 1);
            for (name, limit, program) in limits.iter().filter(|(_, limit, _)| has_overlay(limit)) {
                // Without an overlay, connections are counted all the same.
                let connections = Some(limit.unwrap_or(nodes));
                let setup = Setup {
                    program,
                    hosts: &hosts,
                    number: 0,
                    folders: &folders,
                    partitions: PARTITIONS,
                    grpc: false,
                    connections,
                };
                let cluster = Cluster::start(&setup)?;
                if limit.is_some() {
                    formed(&cluster)?;
                }
                for (index, (query, sql)) in QUERIES.iter().enumerate() {
                    // The first run is planned by estimates, and opens connections.
                    let (_, rows) = cluster.query(index, sql)?;
                    if let Some(difference) = difference(&expected[index], &rows, Order::Any) {
                        return Err(format!("{nodes} nodes, {name}, {query}: {difference}").into());
                    }
                    let before = counts(&cluster)?;
                    let (mut values, _) = cluster.measure(index, sql)?;
                    let after = counts(&cluster)?;
                    values.extend([after.forwarded - before.forwarded, after.connections]);
                    eprintln!(
                        "{nodes} nodes, {query} {round}/{} {name}: seconds {:.3}, forwarded {:.0}, connections {:.0}",
                        settings.rounds(),
                        values[0],
                        values[FORWARDED],
                        values[CONNECTIONS]
                    );
                    let values_of = vec![nodes.to_string(), (*query).to_owned()];
                    let place = Case { values: values_of, scale, note: note.clone() };
                    runs[index].push(Run { place, contender: name.clone(), round, values });
                }
            }
        }
        runs.into_iter().try_for_each(|runs| results.add(runs))?;
    }
    Report {
        name: NAME,
        page: Page::Shuffle,
        title: "Queries over many nodes with few connections",
        text: format!(
            "The nodes of a cluster, each on its own host of the lab with {LINK} both ways, and a part of TPC-H at scale \
             {scale}. `direct`: a connection from every node to every other. Otherwise `--connections-between-nodes` is \
             the limit, and an overlay forms (`docs/overlay.md`). Every round starts the nodes again, for each limit in turn, \
             runs each query once without counting, compares its answer with that of a single node, and counts the \
             second run. `before`: the nodes of `--before`, which give half of the connections to the topology and a quarter to direct \
             connections by local traffic (commit bef2eeb). Connections are those that carry rows: of the overlay, and peers with direct streams. All nodes share \
             the two processors of one machine. `groups`: {}. `join`: {}. `rows`: {}.",
            QUERIES[0].1, QUERIES[1].1, QUERIES[2].1
        ),
        tables: vec![table(&results)],
        plots: vec![(plot(&results)?, "Seconds by query and limit of connections")],
        versions: vec!["datafusion 55.2".into(), "datafusion-distributed 4.0".into()],
        load,
        settings,
    }
    .publish()
}

fn table(results: &Results) -> String {
    let places: Vec<Vec<String>> = results.places().into_iter().map(<[String]>::to_vec).collect();
    let rows: Vec<String> = places
        .iter()
        .flat_map(|place| {
            results.contenders(place).into_iter().map(|name| format!("{}, {name}", place.join(", ")))
        })
        .collect();
    let columns =
        ["seconds", "this / direct", "wire MB", "processor seconds", "forwarded messages", "connections"];
    let cell = |row: &str, column: &str| {
        let Some((place, name)) = places.iter().find_map(|place| {
            let name = row.strip_prefix(&place.join(", "))?.strip_prefix(", ")?;
            Some((place, name))
        }) else {
            return String::new();
        };
        let of = |figure: usize| results.summary(place, name, figure);
        match column {
            "seconds" => tables::spread(of(0), 3),
            "this / direct" => tables::number(of(0).median / results.median(place, DIRECT), 2),
            "wire MB" => tables::number(of(1).median, 1),
            "processor seconds" => tables::number(of(2).median, 2),
            "forwarded messages" => tables::number(of(FORWARDED).median, 0),
            _ => tables::number(of(CONNECTIONS).median, 0),
        }
    };
    tables::grid("nodes, query, limit", &rows, &columns, cell)
}

fn plot(results: &Results) -> Result<String> {
    let panels = results.places().into_iter().map(|place| {
        let row = |name: &str| (name.to_owned(), vec![(name.to_owned(), results.summary(place, name, 0))]);
        let title = format!("{} nodes, {}", place[0], place[1]);
        DotsPanel { title, rows: results.contenders(place).into_iter().map(row).collect() }
    });
    Ok(Dots { x: Axis::log("seconds"), panels: panels.collect() }.svg()?)
}
