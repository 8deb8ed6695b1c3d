//! Plans of queries over several nodes depend on what was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, UInt64Type};
use datafusion::arrow::compute::concat_batches;
use lightship_engine::{ClusterConfig, Engine, EngineConfig, ExpectedEdge, Explained, Strategy};
use lightship_testkit::results::{Order, difference};

use crate::cluster::{explained, three};
use crate::support::{Node, met};

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
    assert!(first.expected_edges.iter().all(|edge| !edge.is_known), "{first:#?}");
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
    for _ in 0..8 {
        // Which side of a join is read first depends on the rows that the first run gave.
        explain(&nodes[0], &format!("explain analyze {rows}")).await;
        let ran = explain(&nodes[0], &format!("explain analyze {rows}")).await;
        let before = explain(&nodes[0], &format!("explain {rows}")).await;
        // It sends the same rows to the join, for another query.
        let other = explain(&nodes[0], &format!("explain {groups}")).await;
        assert!(other.expected_edges.iter().any(|edge| edge.is_known), "{other:#?}");
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
        let links = nodes[0].query("select * from cluster.links").await.unwrap();
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
