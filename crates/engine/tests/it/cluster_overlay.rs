//! Nodes with more peers than connections send rows over an overlay, and results stay the same.

use std::path::Path;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use futures::{StreamExt, TryStreamExt};
use lightship_engine::{ClusterConfig, OverlayConfig, OverlayState};
use lightship_testkit::proxy::Proxy;
use lightship_testkit::results::{Order, difference};
use lightship_testkit::tpch;
use lightship_wire::control::ErrorCode;

use crate::support::{Node, Storage, engine, failure_of, free, met, overlay_part, run};

const SCALE: f64 = 0.01;
const CONNECTIONS_MAX: usize = 4;

/// A shuffle in which most rows cross the network twice; more rows than can be in flight at a time.
const LARGE: &str =
    "select a.l_orderkey, b.l_comment from lineitem a join lineitem b on a.l_partkey = b.l_partkey";

/// A shuffle of few rows.
const SMALL: &str = "select l_partkey, count(*) as n from lineitem group by l_partkey";

/// With little memory for rows in flight, so that unread rows stay at their node.
fn config() -> ClusterConfig {
    with_overlay(overlay_part(CONNECTIONS_MAX))
}

fn with_overlay(overlay: OverlayConfig) -> ClusterConfig {
    ClusterConfig { overlay: Some(overlay), exchange_bytes: 1, ..ClusterConfig::default() }
}

async fn start(folder: &Path, storage: Storage, nodes: &[Node], config: ClusterConfig) -> Node {
    let engine = engine(folder, storage, 2).await;
    let first: Vec<&Node> = nodes.iter().take(1).collect();
    Node::start(engine, &first, config).await
}

/// Connected nodes, one for each folder.
async fn cluster(folders: &[&Path], storage: Storage) -> Vec<Node> {
    cluster_of(folders, storage, config).await
}

async fn cluster_of(folders: &[&Path], storage: Storage, config: impl Fn() -> ClusterConfig) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for folder in folders {
        nodes.push(start(folder, storage, &nodes, config()).await);
    }
    for node in &nodes {
        met(node, nodes.len() - 1).await;
    }
    nodes
}

/// Starts this number of nodes, each with a part of TPC-H's tables, and one without tables if `and_empty`. So
/// the rows of a join come from many nodes, for any coordinator.
async fn parts(folder: &Path, nodes: usize, and_empty: bool) -> Vec<Node> {
    let shards = tpch::write_shards(SCALE, &folder.join("parts"), &vec![1; nodes]).unwrap();
    let empty = folder.join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let folders = shards.iter().map(AsRef::as_ref).chain(and_empty.then_some(empty.as_path()));
    cluster(&folders.collect::<Vec<&Path>>(), Storage::Own).await
}

fn overlay(node: &Node) -> OverlayState {
    node.engine.cluster_overlay().unwrap()
}

/// Waits until all of these nodes see the overlay in this state.
async fn until(nodes: &[Node], is_so: impl Fn(&OverlayState) -> bool) {
    for node in nodes {
        let mut changes = node.engine.watch_cluster().unwrap();
        while !is_so(&overlay(node)) {
            changes.changed().await.unwrap();
        }
    }
}

fn all(nodes: usize) -> impl Fn(&OverlayState) -> bool {
    move |state| state.is_open && state.nodes.len() == nodes
}

fn count(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

fn streams(nodes: &[Node]) -> u64 {
    nodes.iter().map(|node| overlay(node).streams).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seven_nodes_with_four_connections_give_the_same_results_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    tpch::write_parquet(SCALE, &whole, |_, _| {}).unwrap();
    let shards = tpch::write_shards(SCALE, &folder.path().join("parts"), &[1, 2, 1, 0, 3, 1, 1]).unwrap();
    let shards: Vec<&Path> = shards.iter().map(AsRef::as_ref).collect();
    let alone = engine(&whole, Storage::Own, 2).await;
    let nodes = cluster(&shards, Storage::Own).await;
    until(&nodes, all(7)).await;
    let queries = tpch::queries(SCALE);
    for (place, number) in [3, 5, 7, 9, 10, 13, 18, 21].into_iter().enumerate() {
        let sql = &queries[number - 1];
        let expected = run(&alone, sql).await.unwrap();
        let got = nodes[place % nodes.len()].query(sql).await;
        let got = got.unwrap_or_else(|failure| panic!("query {number}: {failure:?}"));
        let order = if sql.contains("\norder by") { Order::Kept } else { Order::Any };
        assert_eq!(difference(&expected, &got, order), None, "query {number}");
    }
    let expected = run(&alone, &format!("select count(*) as n from ({LARGE})")).await.unwrap();
    let got = nodes[6].query(&format!("select count(*) as n from ({LARGE})")).await.unwrap();
    assert_eq!(difference(&expected, &got, Order::Kept), None);
    free(&nodes).await;
    let states: Vec<OverlayState> = nodes.iter().map(overlay).collect();
    assert!(states.iter().all(|state| state.is_open && state.streams > 0), "{states:#?}");
    assert!(states.iter().map(|state| state.forwarded).sum::<u64>() > 0, "{states:#?}");
    for state in &states {
        assert_eq!(state.topology, CONNECTIONS_MAX);
        assert!(state.connections >= 2 && state.connections_max <= CONNECTIONS_MAX, "{state:#?}");
    }
    // EXPLAIN shows it.
    let over_overlay = over_overlay(&nodes[0], SMALL).await;
    assert!(over_overlay.iter().all(|streams| *streams > 0), "{over_overlay:?}");
}

/// The streams over the overlay, for each pair of nodes with traffic.
async fn over_overlay(node: &Node, sql: &str) -> Vec<u64> {
    let rows = node.query(&format!("explain analyze {sql}")).await.unwrap();
    let explained: serde_json::Value =
        serde_json::from_str(rows[0].column(1).as_string::<i32>().value(1)).unwrap();
    let edges = explained["edges"].as_array().unwrap();
    assert!(edges.len() > 6, "{explained:#}");
    edges.iter().map(|edge| edge["overlay_streams"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_go_directly_up_to_the_limit_of_connections() {
    let folder = tempfile::tempdir().unwrap();
    let shards = tpch::write_shards(SCALE, folder.path(), &[1; 7]).unwrap();
    let shards: Vec<&Path> = shards.iter().map(AsRef::as_ref).collect();
    for (message_bytes_max, some_directly) in [(64 << 10, true), (16 << 10, false)] {
        // Four for the topology, and one for direct streams.
        let overlay = || Some(overlay_part(5));
        let with = || ClusterConfig { overlay: overlay(), message_bytes_max, ..ClusterConfig::default() };
        let nodes = cluster_of(&shards, Storage::Own, with).await;
        until(&nodes, all(7)).await;
        let streams = over_overlay(&nodes[3], LARGE).await;
        assert!(streams.iter().any(|streams| *streams > 0), "{streams:?}");
        assert_eq!(streams.contains(&0), some_directly, "{streams:?}");
        // Known to be few rows, which leave the direct connections to others, whatever a message could hold.
        // What is known may change the plan once more.
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams = over_overlay(&nodes[3], SMALL).await;
        }
        assert!(streams.iter().all(|streams| *streams > 0), "{streams:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_is_named_and_the_others_continue() {
    let folder = tempfile::tempdir().unwrap();
    // The last one has no rows; it only forwards.
    let mut nodes = parts(folder.path(), 6, true).await;
    until(&nodes, all(7)).await;
    let sql = "select count(*) as n, sum(l_orderkey) as s from lineitem";
    let expected = nodes[0].query(sql).await.unwrap();
    let mut rows = nodes[0].engine.query(LARGE).await.unwrap().into_rows();
    assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
    let lost = nodes.pop().unwrap();
    let name = lost.name.clone();
    lost.kill();
    let failure = failure_of(&mut rows).await;
    assert_eq!(failure.code, ErrorCode::Peer, "{failure:?}");
    assert!(failure.message.contains(&name) && failure.retryable, "{failure:?}");
    drop(rows);
    for node in &nodes {
        met(node, 5).await;
    }
    // Queries work whether or not the next overlay is formed already.
    for node in &nodes {
        assert_eq!(difference(&expected, &node.query(sql).await.unwrap(), Order::Kept), None);
    }
    until(&nodes, all(6)).await;
    let before = streams(&nodes);
    for node in &nodes {
        assert_eq!(difference(&expected, &node.query(sql).await.unwrap(), Order::Kept), None);
    }
    assert!(streams(&nodes) > before);
    free(&nodes).await;
}

/// The network between a node and those that connect to it breaks, and works again: its rows take other routes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_goes_on_when_connections_of_the_overlay_break() {
    let folder = tempfile::tempdir().unwrap();
    let shards = tpch::write_shards(SCALE, folder.path(), &[1; 10]).unwrap();
    let mut nodes: Vec<Node> = Vec::new();
    let mut proxies = Vec::new();
    for folder in &shards {
        let (mut overlay, proxy) = (overlay_part(8), Proxy::listen().await);
        proxy.lead_to(overlay.address.parse().unwrap());
        overlay.address.clone_from(&proxy.name);
        proxies.push(proxy);
        nodes.push(start(folder, Storage::Own, &nodes, with_overlay(overlay)).await);
    }
    until(&nodes, all(10)).await;
    let expected = count(&nodes[1].query(LARGE).await.unwrap());
    let broken = |nodes: &[Node]| nodes.iter().map(|node| overlay(node).broken_links).sum::<usize>();
    // The first by name, to which few others connect: none loses all of its connections.
    let mut places: Vec<usize> = (0..nodes.len()).collect();
    places.sort_by_key(|place| nodes[*place].name.clone());
    for place in places.into_iter().take(4) {
        let mut rows = nodes[place].engine.query(LARGE).await.unwrap().into_rows();
        let first = rows.next().await.unwrap().unwrap().num_rows();
        // Connections that others have opened to it.
        proxies[place].cut();
        proxies[place].open();
        let rest: Vec<RecordBatch> = rows.try_collect().await.unwrap();
        assert_eq!(first + count(&rest), expected, "{place}");
    }
    while broken(&nodes) > 0 {
        tokio::task::yield_now().await;
    }
    assert!(nodes.iter().all(|node| overlay(node).is_open && overlay(node).nodes.len() == 10));
    let rows = nodes[2].query("select broken_links, connections from cluster.overlay").await.unwrap();
    assert_eq!(rows[0].column(0).as_primitive::<UInt64Type>().value(0), 0);
    assert!(rows[0].column(1).as_primitive::<UInt64Type>().value(0) >= 2);
    free(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joining_node_does_not_interrupt_queries() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = parts(folder.path(), 7, false).await;
    until(&nodes, all(7)).await;
    let expected = count(&nodes[1].query(LARGE).await.unwrap());
    let mut rows = nodes[0].engine.query(LARGE).await.unwrap().into_rows();
    let first = rows.next().await.unwrap().unwrap().num_rows();
    nodes.push(start(&folder.path().join("empty"), Storage::Own, &nodes, config()).await);
    for node in &nodes {
        met(node, 7).await;
    }
    // Running streams stay on the old overlay; new ones do not use it.
    until(&nodes[..7], |state| !state.is_open && state.nodes.len() == 7).await;
    let before = streams(&nodes);
    assert_eq!(count(&nodes[3].query("select distinct l_suppkey from lineitem").await.unwrap()), 100);
    let after = streams(&nodes);
    let rest: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    assert_eq!(first + count(&rest), expected);
    assert_eq!(after, before, "directly");

    until(&nodes, all(8)).await;
    assert_eq!(count(&nodes[7].query("select distinct l_suppkey from lineitem").await.unwrap()), 100);
    assert!(streams(&nodes) > 0);
    for node in &nodes {
        assert!(overlay(node).connections_max <= CONNECTIONS_MAX);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_no_overlay_if_direct_connections_suffice() {
    let folder = tempfile::tempdir().unwrap();
    tpch::write_parquet(SCALE, folder.path(), |_, _| {}).unwrap();
    let nodes = cluster(&[folder.path(); 3], Storage::Shared).await;
    assert_eq!(count(&nodes[1].query("select distinct l_suppkey from lineitem").await.unwrap()), 100);
    for node in &nodes {
        let direct_peers_max = overlay(node).direct_peers_max;
        assert!(direct_peers_max <= 2);
        assert_eq!(overlay(node), OverlayState { direct_peers_max, ..OverlayState::default() });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_overlay_support_ends_the_overlay_for_all() {
    let folder = tempfile::tempdir().unwrap();
    tpch::write_parquet(SCALE, folder.path(), |_, _| {}).unwrap();
    let mut nodes = cluster(&[folder.path(); 6], Storage::Shared).await;
    until(&nodes, all(6)).await;
    let engine = engine(folder.path(), Storage::Shared, 2).await;
    let without = Node::start(engine, &[&nodes[0]], ClusterConfig::default()).await;
    met(&without, 6).await;
    assert_eq!(without.engine.cluster_overlay(), None);
    until(&nodes, |state| state.nodes.is_empty()).await;
    assert_eq!(count(&nodes[2].query("select distinct l_suppkey from lineitem").await.unwrap()), 100);
    // When it leaves, the others form the next overlay.
    without.leave().await;
    until(&nodes, all(6)).await;
    // With only five nodes, direct connections suffice.
    nodes.pop().unwrap().leave().await;
    until(&nodes, |state| state.nodes.is_empty()).await;
    assert_eq!(count(&nodes[2].query("select distinct l_suppkey from lineitem").await.unwrap()), 100);
}
