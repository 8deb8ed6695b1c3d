//! Nodes that join or leave between the planning of a query and its rows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use futures::TryStreamExt;
use lightship_engine::ClusterConfig;
use lightship_testkit::results::{Order, difference};
use lightship_testkit::tpch;
use tempfile::TempDir;

use crate::cluster::{SCALE, explained};
use crate::support::{Node, Storage, engine, met, run};

/// Rows of both tables are sent.
const JOIN: &str =
    "select l_orderkey, l_linenumber, o_totalprice from lineitem join orders on l_orderkey = o_orderkey";
const COUNT: &str = "select count(*) as n from lineitem";
/// All queries that run while a node joins.
const JOINS_WITHIN: Duration = Duration::from_secs(60);

/// A folder with all tables, and three with a part of each.
fn folders() -> (TempDir, PathBuf, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    tpch::write_parquet(SCALE, &whole, |_, _| {}).unwrap();
    let parts = tpch::write_shards(SCALE, &folder.path().join("parts"), &[1, 1, 1]).unwrap();
    (folder, whole, parts)
}

/// Adds a node with the tables of a folder, and waits until all have met.
async fn add(nodes: &mut Vec<Node>, folder: &Path, storage: Storage) {
    let engine = engine(folder, storage, 2).await;
    let first: Vec<&Node> = nodes.iter().take(1).collect();
    let node = Node::start(engine, &first, ClusterConfig::default()).await;
    nodes.push(node);
    for node in nodes.iter() {
        met(node, nodes.len() - 1).await;
    }
}

/// The nodes of the plan of a query, other than the coordinator's stage.
async fn planned_on(node: &Node, sql: &str) -> Vec<String> {
    let plan = explained(&node.query(&format!("explain {sql}")).await.unwrap());
    let stages = plan["stages"].as_array().unwrap().iter().filter(|stage| stage["stage"] != 0);
    let tasks = stages.flat_map(|stage| stage["tasks"].as_array().unwrap());
    tasks.map(|task| task["node"].as_str().unwrap().to_owned()).collect()
}

/// Plans a query, and has the last node leave while it runs: it gets all rows, or fails and names the node. Returns its name.
async fn leaves_during(nodes: &mut Vec<Node>, sql: &str, expected: &[RecordBatch]) -> String {
    let planned = nodes[0].engine.query(sql).await.unwrap();
    let gone = nodes.pop().unwrap();
    let name = gone.name.clone();
    let leaving = tokio::spawn(gone.leave());
    match planned.into_rows().try_collect::<Vec<RecordBatch>>().await {
        Ok(got) => assert_eq!(difference(expected, &got, Order::Any), None),
        Err(failure) => assert!(failure.message.contains(&name), "{failure:?}"),
    }
    leaving.await.unwrap();
    name
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_runs_on_the_nodes_that_it_was_planned_for_and_the_next_on_those_that_are_there() {
    let (_folder, whole, parts) = folders();
    let mut nodes = Vec::new();
    add(&mut nodes, &parts[0], Storage::Own).await;
    add(&mut nodes, &parts[1], Storage::Own).await;
    let expected = nodes[0].query(JOIN).await.unwrap();
    let planned = nodes[0].engine.query(JOIN).await.unwrap();
    add(&mut nodes, &parts[2], Storage::Own).await;
    let got: Vec<RecordBatch> = planned.into_rows().try_collect().await.unwrap();
    assert_eq!(difference(&expected, &got, Order::Any), None);

    let alone = engine(&whole, Storage::Own, 2).await;
    let expected = run(&alone, JOIN).await.unwrap();
    for node in &nodes {
        let got = node.query(JOIN).await.unwrap();
        assert_eq!(difference(&expected, &got, Order::Any), None);
        assert!(planned_on(node, JOIN).await.contains(&nodes[2].name));
    }

    // Its rows are missing once it leaves.
    leaves_during(&mut nodes, JOIN, &expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_of_shared_files_is_planned_without_a_node_that_has_left() {
    let (_folder, whole, _) = folders();
    let mut nodes = Vec::new();
    for _ in 0..3 {
        add(&mut nodes, &whole, Storage::Shared).await;
    }
    let alone = engine(&whole, Storage::Own, 2).await;
    let expected = run(&alone, JOIN).await.unwrap();
    let name = leaves_during(&mut nodes, JOIN, &expected).await;
    for node in &nodes {
        met(node, 1).await;
        let got = node.query(JOIN).await.unwrap();
        assert_eq!(difference(&expected, &got, Order::Any), None);
        assert!(!planned_on(node, JOIN).await.contains(&name));
    }
}

/// Asks until the rows of a node that joins are there. Each answer has all of its rows or none of them.
async fn grows(node: &Node, before: i64, after: i64) {
    loop {
        let rows = node.query(COUNT).await.unwrap();
        let found = rows[0].column(0).as_primitive::<Int64Type>().value(0);
        if found == after {
            return;
        }
        assert_eq!(found, before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_run_while_a_node_joins_have_all_of_its_rows_or_none() {
    let (_folder, whole, parts) = folders();
    let alone = engine(&whole, Storage::Own, 2).await;
    let count = |rows: &[RecordBatch]| rows[0].column(0).as_primitive::<Int64Type>().value(0);
    let after = count(&run(&alone, COUNT).await.unwrap());
    let mut nodes = Vec::new();
    add(&mut nodes, &parts[0], Storage::Own).await;
    add(&mut nodes, &parts[1], Storage::Own).await;
    let before = count(&nodes[0].query(COUNT).await.unwrap());
    assert!(before < after);
    let third = engine(&parts[2], Storage::Own, 2).await;
    let first = [&nodes[0]];
    let joining = Node::start(third, &first, ClusterConfig::default());
    let asking =
        async { tokio::join!(joining, grows(&nodes[0], before, after), grows(&nodes[1], before, after)).0 };
    let third = tokio::time::timeout(JOINS_WITHIN, asking).await.expect("it joins");
    met(&third, 2).await;
    assert_eq!(count(&third.query(COUNT).await.unwrap()), after);
}
