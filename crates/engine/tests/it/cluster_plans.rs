//! Plans of queries over several nodes depend on what was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array as _, ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::compute::concat_batches;
use datafusion::parquet::arrow::ArrowWriter;
use lightship_engine::{ClusterConfig, Engine, EngineConfig, ExpectedEdge, Explained, Strategy};
use lightship_testkit::results::{Order, difference};

use crate::cluster::{cluster, explained, three};
use crate::support::{Node, Storage, engine, met, run};

async fn explain(node: &Node, sql: &str) -> Explained {
    let rows = node.query(sql).await.unwrap();
    serde_json::from_value(explained(&rows)).unwrap()
}

/// The way in which each operator is run.
fn ways(plan: &Explained) -> Vec<Strategy> {
    plan.choices.iter().map(|choice| choice.ways[0].strategy).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_query_sent_is_expected_of_the_next() {
    let (_folder, _, nodes) = three().await;
    let sql = "select o_orderpriority, count(*) from lineitem join orders on l_orderkey = o_orderkey \
               where l_comment like '%the%' group by o_orderpriority";
    let first = explain(&nodes[0], &format!("explain {sql}")).await;
    assert!(!first.expected_edges.is_empty());
    for edge in &first.expected_edges {
        assert!(!edge.is_known && edge.codec.is_none(), "{edge:?}");
        let longest = edge.link_seconds.max(edge.processor_seconds);
        assert!(edge.processor_seconds > 0.0 && edge.seconds >= longest, "{edge:?}");
        assert!(edge.slowest_seconds >= edge.seconds, "{edge:?}");
    }
    // The first run may change the plan; the second leaves it as it is.
    explain(&nodes[0], &format!("explain analyze {sql}")).await;
    sends_what_is_expected(&nodes[0], sql).await;
}

/// Runs a query until its plan remains the same, and compares what its edges sent with what the next run is expected to
/// send.
async fn sends_what_is_expected(node: &Node, sql: &str) {
    // What a run has shown of rows, links and processors may change the plan of the next.
    for _ in 0..8 {
        let ran = explain(node, &format!("explain analyze {sql}")).await;
        let next = explain(node, &format!("explain {sql}")).await;
        let mut sent = BTreeMap::<_, f64>::new();
        for edge in &ran.edges {
            *sent.entry((edge.from_stage, edge.to_stage)).or_default() += edge.rows as f64;
        }
        let mut expected = BTreeMap::<_, f64>::new();
        for edge in &next.expected_edges {
            *expected.entry((edge.from_stage, edge.to_stage)).or_default() += edge.rows;
        }
        assert!(!sent.is_empty());
        if ways(&ran) != ways(&next) || !sent.keys().eq(expected.keys()) {
            continue;
        }
        // Nodes of one host send rows as they are.
        let codec = |rows: f64| if rows > 0.0 { Some("none") } else { None };
        for edge in &ran.edges {
            assert_eq!(edge.codec.as_deref(), codec(edge.rows as f64), "{edge:?}");
        }
        for edge in &next.expected_edges {
            assert!(
                edge.is_known && edge.seconds >= edge.link_seconds && edge.slowest_seconds >= edge.seconds,
                "{edge:?}"
            );
        }
        for (stages, rows) in &sent {
            // A shuffle does not divide few rows evenly.
            assert!(
                (rows - expected[stages]).abs() <= 0.1 * rows + 10.0,
                "{stages:?}: {sent:?} {expected:?}"
            );
        }
        return;
    }
    panic!("the plan changed after each run of {sql}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_edges_is_expected_from_queries_that_read_them_alike() {
    let (_folder, _, nodes) = three().await;
    let join = "from lineitem join orders on l_orderkey = o_orderkey where l_comment like '%the%'";
    let rows = format!("select l_orderkey, o_orderpriority {join}");
    let groups = format!("select o_orderpriority, count(l_orderkey) {join} group by o_orderpriority");
    // Next to no work: it shows how long stages take to start.
    let idle = "explain analyze select n_name from nation join region on n_regionkey = r_regionkey";
    let idle = explain(&nodes[0], idle).await;
    let is_read = idle.edges.iter().any(|edge| edge.from_node != edge.to_node && edge.seconds.is_some());
    // On a machine that is very busy, even these rows were expected to be work.
    let is_idle = is_read && idle.expected_edges.iter().all(|edge| edge.work_seconds < 0.001);
    for round in 0..8 {
        // Which side of a join is read first depends on the rows that the first run gave.
        explain(&nodes[0], &format!("explain analyze {rows}")).await;
        let ran = explain(&nodes[0], &format!("explain analyze {rows}")).await;
        let before = explain(&nodes[0], &format!("explain {rows}")).await;
        // It sends the same rows to the join, for another query.
        let other = explain(&nodes[0], &format!("explain {groups}")).await;
        assert!(other.expected_edges.iter().any(|edge| edge.is_known), "{other:#?}");
        if round == 0 {
            // How long that takes there is not known: as long as the work, and the start of the stages.
            let is_first = |edge: &&ExpectedEdge| {
                other.expected_edges.iter().all(|other| other.to_stage != edge.from_stage)
            };
            let edges = other.expected_edges.iter().filter(is_first);
            let edges = edges.filter(|edge| edge.seconds > edge.link_seconds);
            let starts: Vec<f64> = edges.map(|edge| edge.seconds - edge.work_seconds).collect();
            assert!(!is_idle || starts.first().is_some_and(|start| *start > 0.0), "{other:#?}");
            assert!(starts.iter().all(|start| (start - starts[0]).abs() < 1e-9), "{other:#?}");
        }
        explain(&nodes[0], &format!("explain analyze {groups}")).await;
        let after = explain(&nodes[0], &format!("explain {rows}")).await;
        if ways(&ran) != ways(&before) || ways(&before) != ways(&after) {
            continue;
        }
        // No edge is expected to take less than its link does, which may have been measured in the meantime.
        let of_rows = |edge: &ExpectedEdge| edge.seconds > 2.0 * edge.link_seconds;
        let edges = before.expected_edges.iter().zip(&after.expected_edges);
        let compared: Vec<_> = edges.filter(|(before, after)| of_rows(before) && of_rows(after)).collect();
        assert!(!compared.is_empty(), "{before:#?}");
        for (before, after) in compared {
            assert_eq!(before.seconds, after.seconds, "{before:?} {after:?}");
        }
        return;
    }
    panic!("the plan changed after each run of {groups}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_earlier_queries_sent_is_beside_what_was_expected() {
    let (_folder, _, nodes) = three().await;
    let sql =
        "select count(*) from lineitem join orders on l_orderkey = o_orderkey where l_comment like '%e%'";
    let edges = async || {
        let columns = "query, is_known, expected_rows, rows, bytes, expected_seconds, seconds";
        let batches =
            nodes[0].query(&format!("select {columns} from cluster.edges order by query")).await.unwrap();
        batches.first().map(|first| concat_batches(&first.schema(), &batches).unwrap())
    };
    assert_eq!(edges().await.map_or(0, |all| all.num_rows()), 0);
    for _ in 0..3 {
        explain(&nodes[0], &format!("explain analyze {sql}")).await;
    }
    let all = edges().await.unwrap();
    let query = all.column(0).as_primitive::<UInt64Type>();
    assert_eq!(query.values().iter().collect::<BTreeSet<_>>(), BTreeSet::from([&1, &2, &3]));
    let (is_known, expected) = (all.column(1).as_boolean(), all.column(2).as_primitive::<Float64Type>());
    let rows = all.column(3).as_primitive::<UInt64Type>();
    for row in 0..all.num_rows() {
        assert_eq!(is_known.value(row), query.value(row) > 1, "{row}: {all:?}");
        if query.value(row) == 3 {
            let (expected, rows) = (expected.value(row), rows.value(row) as f64);
            assert!((rows - expected).abs() <= 0.2 * rows + 10.0, "{row}: {all:?}");
        }
    }
    // Of queries whose rows are read, the nodes report once they have ended.
    nodes[0].query(sql).await.unwrap();
    while edges().await.unwrap().column(0).as_primitive::<UInt64Type>().iter().flatten().max() != Some(4) {
        tokio::task::yield_now().await;
    }
    // Other nodes know what they have planned themselves.
    let of_other = nodes[1].query("select * from cluster.edges").await.unwrap();
    assert_eq!(of_other.iter().map(RecordBatch::num_rows).sum::<usize>(), 0);
}

/// Adds a file with these rows of `a`, and a text in each, to the folder of a table.
fn numbers(folder: &Path, name: &str, file: &str, rows: Range<u32>) {
    let table = folder.join(name);
    std::fs::create_dir_all(&table).unwrap();
    let lines: String = rows.map(|a| format!("{a},text of row {a} of this table\n")).collect();
    std::fs::write(table.join(file), format!("a,b\n{lines}")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expected_rows_follow_tables_that_grow_and_shrink_a_thousandfold() {
    let folder = tempfile::tempdir().unwrap();
    numbers(folder.path(), "few", "1.csv", 0..100);
    numbers(folder.path(), "many", "1.csv", 0..50_000);
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..3 {
        let mut engine = Engine::new(EngineConfig::default()).unwrap();
        for table in ["few", "many"] {
            engine.register_shared_path(table, &folder.path().join(table)).await.unwrap();
        }
        let first: Vec<&Node> = nodes.iter().take(1).collect();
        nodes.push(Node::start(engine, &first, ClusterConfig::default()).await);
    }
    for node in &nodes {
        met(node, 2).await;
    }
    let sql = "select count(*) as n, max(few.b) as b from few join many on few.a = many.a";
    let joined = async |rows: i64| {
        let found = nodes[0].query(sql).await.unwrap();
        assert_eq!(found[0].column(0).as_primitive::<Int64Type>().value(0), rows);
    };
    joined(100).await;
    sends_what_is_expected(&nodes[0], sql).await;
    // What was learned of this table is wrong by a factor of 1000 now.
    numbers(folder.path(), "few", "2.csv", 100..100_000);
    joined(50_000).await;
    explain(&nodes[0], &format!("explain analyze {sql}")).await;
    sends_what_is_expected(&nodes[0], sql).await;
    // And in the other direction.
    std::fs::remove_file(folder.path().join("few/2.csv")).unwrap();
    joined(100).await;
    explain(&nodes[0], &format!("explain analyze {sql}")).await;
    sends_what_is_expected(&nodes[0], sql).await;
}

const FEW: i64 = 60;
const MANY: i64 = 1000 * FEW;

/// The rows of each of three nodes. Their files differ in size: those that look alike would be refused as
/// duplicates.
fn shares(rows: i64) -> [Range<i64>; 3] {
    [0..rows / 6, rows / 6..rows / 2, rows / 2..rows]
}

/// A folder for each of three nodes, and one for all rows.
fn folders(folder: &Path) -> ([PathBuf; 3], PathBuf) {
    let parts = ["0", "1", "2"].map(|node| folder.join(node));
    let whole = folder.join("whole");
    parts.iter().chain([&whole]).for_each(|folder| std::fs::create_dir(folder).unwrap());
    (parts, whole)
}

/// Writes a file, in place of the one that is there.
fn write(path: &Path, rows: &RecordBatch) {
    let part = path.with_extension("part");
    let mut writer = ArrowWriter::try_new(File::create(&part).unwrap(), rows.schema(), None).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
    std::fs::rename(&part, path).unwrap();
}

/// The numbers as `a`, and one of a thousand as `b`.
fn pairs(numbers: Range<i64>) -> RecordBatch {
    let (a, b) = (numbers.clone(), numbers.map(|a| a % 1000));
    let columns: [(_, ArrayRef); 2] =
        [("a", Arc::new(a.collect::<Int64Array>())), ("b", Arc::new(b.collect::<Int64Array>()))];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Writes the part of a table that each node has.
fn write_parts(folders: &[PathBuf; 3], table: &str, rows: i64) {
    for (folder, share) in folders.iter().zip(shares(rows)) {
        write(&folder.join(format!("{table}.parquet")), &pairs(share));
    }
}

/// Checks that each node gives the same rows as one engine with all files.
async fn same(alone: &Engine, nodes: &[Node], sql: &str) {
    let expected = run(alone, sql).await.unwrap();
    for node in nodes {
        let got = node.query(sql).await.unwrap_or_else(|failure| panic!("{failure:?}: {sql}"));
        assert_eq!(difference(&expected, &got, Order::Any), None, "{sql}");
    }
}

/// The rows that are expected of the inputs of each join and aggregation.
fn inputs(plan: &Explained) -> Vec<Vec<f64>> {
    plan.choices.iter().map(|choice| choice.rows.clone()).collect()
}

/// Runs a join of inputs with this many rows, and an aggregation of [`MANY`], and checks that the next run is planned by
/// these numbers, sends what is expected and gives the same rows as one engine.
async fn are_planned_by_what_was_measured(
    alone: &Engine,
    nodes: &[Node],
    [join, groups]: [&str; 2],
    rows: [i64; 2],
    way: Strategy,
) {
    for sql in [join, groups] {
        explain(&nodes[0], &format!("explain analyze {sql}")).await;
    }
    let after = explain(&nodes[0], &format!("explain {join}")).await;
    assert_eq!(inputs(&after), [rows.map(|rows| rows as f64)]);
    assert_eq!(ways(&after), [way], "{after:#?}");
    let after = explain(&nodes[0], &format!("explain {groups}")).await;
    assert_eq!(inputs(&after), [[MANY as f64]]);
    for sql in [join, groups] {
        sends_what_is_expected(&nodes[0], sql).await;
        same(alone, nodes, sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_without_statistics_are_joined_and_grouped_and_then_planned_by_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (parts, whole) = folders(folder.path());
    write(&whole.join("few.parquet"), &pairs(0..FEW));
    write(&whole.join("many.parquet"), &pairs(0..MANY));
    let alone = engine(&whole, Storage::Own, 2).await;
    let mut nodes: Vec<Node> = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        let mut engine = Engine::new(EngineConfig { partitions: 2, ..EngineConfig::default() }).unwrap();
        for (table, rows) in [("few", FEW), ("many", MANY)] {
            let numbers = shares(rows)[place].clone();
            // One node of three knows how many rows it has of one of the tables.
            let file = if place == 0 && table == "many" {
                let file = part.join("many.parquet");
                write(&file, &pairs(numbers));
                file
            } else {
                let file = part.join(format!("{table}.csv"));
                let lines: String = numbers.map(|a| format!("{a},{}\n", a % 1000)).collect();
                std::fs::write(&file, format!("a,b\n{lines}")).unwrap();
                file
            };
            engine.register_path(table, &file).await.unwrap();
        }
        let first: Vec<&Node> = nodes.iter().take(1).collect();
        nodes.push(Node::start(engine, &first, ClusterConfig::default()).await);
    }
    for node in &nodes {
        met(node, 2).await;
    }
    let estimates = nodes[0].query("select rows_estimate from cluster.parts").await.unwrap();
    let all: usize = estimates.iter().map(RecordBatch::num_rows).sum();
    let unknown: usize = estimates.iter().map(|batch| batch.column(0).null_count()).sum();
    assert_eq!((all, unknown), (6, 5));

    let join = "select count(*) as n, sum(few.b) as b from few join many on few.a = many.a";
    let groups = "select b, count(*) as n, max(a) as high from many group by b";
    for sql in [join, groups] {
        let before = explain(&nodes[0], &format!("explain {sql}")).await;
        assert!(before.choices.is_empty(), "{before:#?}");
        assert!(before.expected_edges.iter().all(|edge| !edge.is_known), "{before:#?}");
    }
    for sql in [join, groups] {
        same(&alone, &nodes, sql).await;
    }
    are_planned_by_what_was_measured(&alone, &nodes, [join, groups], [FEW, MANY], Strategy::BroadcastLeft)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statistics_that_are_wrong_by_a_factor_of_a_thousand_cost_no_rows_and_only_the_first_plan() {
    let folder = tempfile::tempdir().unwrap();
    let (parts, whole) = folders(folder.path());
    write_parts(&parts, "grown", FEW);
    write_parts(&parts, "shrunk", MANY);
    let paths = parts.each_ref().map(PathBuf::as_path);
    let nodes = cluster(&paths, Storage::Own, 2, ClusterConfig::default()).await;
    // Each node has described its files when it joined.
    write_parts(&parts, "grown", MANY);
    write_parts(&parts, "shrunk", FEW);
    write(&whole.join("grown.parquet"), &pairs(0..MANY));
    write(&whole.join("shrunk.parquet"), &pairs(0..FEW));
    let alone = engine(&whole, Storage::Own, 2).await;

    let join = "select count(*) as n, sum(grown.b) as b, max(shrunk.b) as high \
                from grown join shrunk on grown.a = shrunk.a";
    let groups = "select b, count(*) as n, min(a) as low, max(a) as high from grown group by b";
    let before = explain(&nodes[0], &format!("explain {join}")).await;
    assert_eq!(inputs(&before), [[FEW as f64, MANY as f64]]);
    assert_eq!(ways(&before), [Strategy::BroadcastLeft], "{before:#?}");
    for sql in [
        join,
        groups,
        "select b, count(*) as n, min(a) as low, max(a) as high from shrunk group by b",
        // No answer comes from the statistics, and no limit or condition is left out because of them.
        "select count(*) as n, min(a) as low, max(a) as high from grown",
        "select count(*) as n, min(a) as low, max(a) as high from shrunk",
        "select count(*) as n from (select a from grown limit 50000) as some_rows",
        "select count(*) as n from (select a from shrunk limit 50000) as some_rows",
        "select count(*) as n from grown where a >= 60",
        "select count(*) as n from shrunk where a < 60",
    ] {
        same(&alone, &nodes, sql).await;
    }
    // In the order of the statement: the second input is the one that is sent to all nodes now.
    are_planned_by_what_was_measured(&alone, &nodes, [join, groups], [MANY, FEW], Strategy::BroadcastRight)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_join_runs_the_way_that_is_expected_to_be_the_fastest() {
    let (_folder, _, nodes) = three().await;
    for (sql, way) in [
        // Few rows are sent to all nodes, many are divided.
        ("select count(*) from lineitem join supplier on l_suppkey = s_suppkey", Strategy::BroadcastLeft),
        (
            "select count(*) from lineitem a join lineitem b on a.l_orderkey = b.l_orderkey",
            Strategy::Repartition,
        ),
    ] {
        let plan = explain(&nodes[1], &format!("explain {sql}")).await;
        let [choice] = plan.choices.as_slice() else { panic!("{plan:#?}") };
        assert_eq!(choice.ways[0].strategy, way, "{choice:#?}");
        assert!(choice.ways.iter().all(|other| other.seconds() >= choice.ways[0].seconds()), "{choice:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_as_many_groups_are_aggregated_once() {
    let (_folder, _, nodes) = three().await;
    let sql = "select l_orderkey, l_linenumber, sum(l_quantity), count(distinct l_partkey) from lineitem \
               group by l_orderkey, l_linenumber order by 1, 2";
    let before = nodes[2].query(sql).await.unwrap();
    explain(&nodes[2], &format!("explain analyze {sql}")).await;
    let plan = explain(&nodes[2], &format!("explain {sql}")).await;
    assert!(ways(&plan).contains(&Strategy::AggregateOnce), "{plan:#?}");
    let after = nodes[2].query(sql).await.unwrap();
    assert_eq!(difference(&before, &after, Order::Kept), None);
    // Few groups are worth it.
    let sql = "select l_returnflag, count(*) from lineitem group by l_returnflag";
    explain(&nodes[2], &format!("explain analyze {sql}")).await;
    let plan = explain(&nodes[2], &format!("explain {sql}")).await;
    assert_eq!(ways(&plan), [Strategy::AggregateTwice], "{plan:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_links_between_nodes_are_measured() {
    let (_folder, _, nodes) = three().await;
    let mut changes = nodes[0].engine.watch_cluster().unwrap();
    let links = loop {
        let sql =
            "select * from cluster.links where encode_bytes_per_second > 0 and decode_bytes_per_second > 0";
        let links = nodes[0].query(sql).await.unwrap();
        if links.iter().map(arrow_array::RecordBatch::num_rows).sum::<usize>() == 6 {
            break links;
        }
        changes.changed().await.unwrap();
    };
    for batch in links {
        for column in ["bytes_per_second", "first_message_seconds"] {
            let values = batch.column_by_name(column).unwrap().as_primitive::<Float64Type>();
            assert!(values.iter().flatten().all(|value| value > 0.0), "{batch:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_learned_beside_an_input_of_few_rows() {
    let (_folder, _, nodes) = three().await;
    // Each node has all 25 nations, and so reads all rows of the other input.
    let sql = "select count(n_name) from lineitem join orders on l_orderkey = o_orderkey \
               join customer on c_custkey = o_custkey join nation on n_nationkey = c_nationkey \
               where o_comment like '%ss%' and l_comment like '%ss%'";
    sends_what_is_expected(&nodes[0], sql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_learned_from_rows_that_a_limit_left_out() {
    let (_folder, _, nodes) = three().await;
    let join = "from lineitem join orders on l_orderkey = o_orderkey where l_comment like '%e%'";
    let whole = format!("explain select l_orderkey, o_comment {join}");
    let rows = |plan: &Explained| plan.choices.iter().map(|choice| choice.rows.clone()).collect::<Vec<_>>();
    let before = explain(&nodes[0], &whole).await;
    for limited in [
        format!("select l_orderkey, o_comment {join} limit 3"),
        format!("select count(*) from (select l_orderkey {join} limit 3) as few"),
        // No row of the left side is found, so that the right side is not read.
        "select count(*) from nation join lineitem on n_nationkey = l_orderkey where n_name = 'NOWHERE'"
            .into(),
        // Nor if all keys of the left side are NULL.
        "select count(*) from (select nullif(n_nationkey, 7) as key from nation where n_nationkey = 7) as one \
         join lineitem on key = l_orderkey where l_comment like '%e%'"
            .into(),
        // What is below an aggregation that nobody reads is not read either.
        "select count(*) from nation join (select l_orderkey, count(*) from lineitem where l_comment like '%e%' \
         group by l_orderkey) as one on n_nationkey = l_orderkey where n_name = 'NOWHERE'"
            .into(),
    ] {
        explain(&nodes[0], &format!("explain analyze {limited}")).await;
    }
    let after = explain(&nodes[0], &whole).await;
    assert!(!rows(&before).is_empty());
    assert_eq!(rows(&before), rows(&after));
}

/// The numbers as `k1`, and what `second` makes of them as `k2`.
fn keyed(numbers: Range<i64>, second: fn(i64) -> Option<i64>) -> [(&'static str, ArrayRef); 2] {
    let (k1, k2) = (numbers.clone(), numbers.map(second));
    [("k1", Arc::new(k1.collect::<Int64Array>())), ("k2", Arc::new(k2.collect::<Int64Array>()))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_beside_a_divided_join_by_two_keys_are_learned_only_if_all_partitions_read_theirs() {
    const LEFT: i64 = 6_000;
    const RIGHT: i64 = 33_000;
    let folder = tempfile::tempdir().unwrap();
    let (parts, whole) = folders(folder.path());
    // However rows are divided, the second key is NULL in all of them in all partitions but one.
    let gaps = |numbers| {
        RecordBatch::try_from_iter(keyed(numbers, |number| (number == 6).then_some(number))).unwrap()
    };
    // Each partition has other rows too.
    let some = |numbers| {
        RecordBatch::try_from_iter(keyed(numbers, |number| (number % 10 != 0).then_some(number))).unwrap()
    };
    let right = |numbers: Range<i64>| {
        let [(_, p1), (_, p2)] = keyed(numbers.clone(), Some);
        let notes = numbers.map(|number| Some(if number % 2 == 0 { "even" } else { "odd" }));
        let notes: ArrayRef = Arc::new(notes.collect::<StringArray>());
        RecordBatch::try_from_iter([("p1", p1), ("p2", p2), ("note", notes)]).unwrap()
    };
    let (left_shares, right_shares) = (shares(LEFT), shares(RIGHT));
    let shared = parts.iter().zip(left_shares.into_iter().zip(right_shares));
    for (folder, (left_share, right_share)) in shared.chain([(&whole, (0..LEFT, 0..RIGHT))]) {
        write(&folder.join("gaps.parquet"), &gaps(left_share.clone()));
        write(&folder.join("some_gaps.parquet"), &some(left_share));
        write(&folder.join("numbers.parquet"), &right(right_share));
    }
    let alone = engine(&whole, Storage::Own, 2).await;
    let paths = parts.each_ref().map(PathBuf::as_path);
    let nodes = cluster(&paths, Storage::Own, 2, ClusterConfig::default()).await;
    let joined = |left: &str| {
        format!(
            "select count(*) as n, sum(p2) as p2 from {left} join numbers on k1 = p1 and k2 = p2 \
             where note like '%e%'"
        )
    };
    let (gaps, some) = (joined("gaps"), joined("some_gaps"));
    let before = explain(&nodes[0], &format!("explain {gaps}")).await;
    assert_eq!(ways(&before), [Strategy::Repartition], "{before:#?}");
    // The rows with NULL are the ones that are kept in memory.
    assert!(before.plan.contains("(k1@"), "{}", before.plan);
    let right_rows = |plan: &Explained| inputs(plan)[0][1];
    // How many rows the condition keeps is a guess.
    assert!((right_rows(&before) - RIGHT as f64 / 2.0).abs() > 1000.0, "{before:#?}");
    same(&alone, &nodes, &gaps).await;
    explain(&nodes[0], &format!("explain analyze {gaps}")).await;
    let after = explain(&nodes[0], &format!("explain {gaps}")).await;
    assert_eq!(right_rows(&after), right_rows(&before));
    same(&alone, &nodes, &some).await;
    explain(&nodes[0], &format!("explain analyze {some}")).await;
    let after = explain(&nodes[0], &format!("explain {gaps}")).await;
    assert_eq!(right_rows(&after), RIGHT as f64 / 2.0);
}
