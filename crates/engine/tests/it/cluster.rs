//! Queries over several nodes give the same result as on one node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use futures::StreamExt;
use lightship_engine::{
    ClusterConfig, ClusterLoad, Engine, EngineConfig, MemberChange, MemberState, change_members,
};
use lightship_testkit::results::{Order, difference};
use lightship_testkit::tpch;
use lightship_transport::net::{ClientConfig, Endpoint};
use lightship_wire::control::{ErrorCode, Reason};
use tempfile::TempDir;

use crate::support::{Node, Storage, engine, failure_of, free, met, run};

pub(crate) const SCALE: f64 = 0.01;

/// Connected nodes, each with the tables of its folder.
pub(crate) async fn cluster(
    folders: &[&Path],
    storage: Storage,
    partitions: usize,
    config: ClusterConfig,
) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for folder in folders {
        let engine = engine(folder, storage, partitions).await;
        let first: Vec<&Node> = nodes.iter().take(1).collect();
        nodes.push(Node::start(engine, &first, config.clone()).await);
    }
    for node in &nodes {
        met(node, nodes.len() - 1).await;
    }
    nodes
}

async fn compare(
    folders: &[&Path],
    storage: Storage,
    partitions: usize,
    config: ClusterConfig,
    whole: &Path,
) {
    let alone = engine(whole, Storage::Own, 2).await;
    let nodes = cluster(folders, storage, partitions, config).await;
    for (place, sql) in tpch::queries(SCALE).iter().enumerate() {
        let expected = run(&alone, sql).await.unwrap();
        let got = nodes[place % nodes.len()].query(sql).await;
        let got = got.unwrap_or_else(|failure| panic!("query {}: {failure:?}", place + 1));
        let order = if sql.contains("\norder by") { Order::Kept } else { Order::Any };
        if let Some(difference) = difference(&expected, &got, order) {
            panic!("query {}: {difference}", place + 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tpch_over_tables_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    tpch::write_parquet(SCALE, &whole, |_, _| {}).unwrap();
    // One node has no rows, another has most.
    let shards = tpch::write_shards(SCALE, &folder.path().join("parts"), &[1, 0, 5, 2]).unwrap();
    let shards: Vec<&Path> = shards.iter().map(AsRef::as_ref).collect();
    compare(&shards, Storage::Own, 2, ClusterConfig::default(), &whole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tpch_over_shared_tables() {
    let folder = tempfile::tempdir().unwrap();
    tpch::write_parquet(SCALE, folder.path(), |_, _| {}).unwrap();
    compare(&[folder.path(); 3], Storage::Shared, 3, ClusterConfig::default(), folder.path()).await;
}

/// Three nodes, each with a part of TPC-H's tables.
pub(crate) async fn three() -> (TempDir, Vec<PathBuf>, Vec<Node>) {
    let folder = tempfile::tempdir().unwrap();
    let shards = tpch::write_shards(SCALE, folder.path(), &[1, 1, 1]).unwrap();
    let paths: Vec<&Path> = shards.iter().map(AsRef::as_ref).collect();
    let nodes = cluster(&paths, Storage::Own, 2, ClusterConfig::default()).await;
    (folder, shards, nodes)
}

fn count(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// A shuffle between all nodes: many bytes are in flight when the query is stopped.
const LARGE: &str =
    "select a.l_orderkey, b.l_comment from lineitem a join lineitem b on a.l_partkey = b.l_partkey";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_query_leaves_nothing_behind() {
    let (_folder, _, nodes) = three().await;
    for sql in [LARGE, "select * from lineitem order by l_comment"] {
        let mut rows = nodes[0].engine.query(sql).await.unwrap().into_rows();
        assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
        drop(rows);
        free(&nodes).await;
    }
    // A limit drops most of the streams.
    assert_eq!(count(&nodes[1].query(&format!("{LARGE} limit 3")).await.unwrap()), 3);
    free(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_lost_during_a_query_is_named_and_the_others_release_it_within_a_second() {
    let (_folder, _, mut nodes) = three().await;
    let mut rows = nodes[0].engine.query(LARGE).await.unwrap().into_rows();
    assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
    let lost = nodes.pop().unwrap();
    let name = lost.name.clone();
    lost.kill();
    let failure = failure_of(&mut rows).await;
    assert_eq!(failure.code, ErrorCode::Peer, "{failure:?}");
    assert!(failure.message.contains(&name) && failure.retryable, "{failure:?}");
    tokio::time::timeout(Duration::from_secs(1), free(&nodes)).await.unwrap();
    // Later queries fail instead of leaving out its rows.
    let failure = nodes[1].query("select count(*) from lineitem").await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::Peer);
    assert!(failure.message.contains(&name), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_fail_while_a_node_is_stopped_and_work_once_it_is_removed_or_replaced() {
    let (_folder, shards, mut nodes) = three().await;
    let sql = "select * from orders";
    let all = count(&nodes[0].query(sql).await.unwrap());
    let stopped = nodes.pop().unwrap();
    let name = stopped.name.clone();
    stopped.leave().await;
    for node in &nodes {
        met(node, 1).await;
        let failure = node.query(sql).await.unwrap_err();
        assert!(failure.message.contains(&format!("node {name} has stopped")), "{failure:?}");
        assert!(failure.hint.unwrap().contains("lightship cluster remove"));
        // `region` is only on the first node.
        node.query("select count(*) from region").await.unwrap();
    }
    let states = "select node, state from cluster.nodes where state <> 'joined'";
    let shown = nodes[0].query(states).await.unwrap();
    assert_eq!(shown[0].column(0).as_string::<i32>().value(0), name);
    assert_eq!(shown[0].column(1).as_string::<i32>().value(0), "stopped");
    let address = nodes[1].address;
    let endpoint = Endpoint::Tcp { host: address.ip().to_string(), port: address.port(), tls: None };
    let change = MemberChange::Remove(name.clone());
    change_members(&endpoint, &ClientConfig::default(), change).await.unwrap();
    let mut cluster = nodes[0].engine.watch_cluster().unwrap();
    let is_removed = |node: &Node| {
        let members = node.engine.cluster_nodes();
        members.iter().any(|member| member.name == name && member.state == MemberState::Removed)
    };
    while !is_removed(&nodes[0]) {
        cluster.changed().await.unwrap();
    }
    let fewer = count(&nodes[0].query(sql).await.unwrap());
    assert_eq!(fewer, all * 2 / 3);
    // It is told of one node, and learns of all.
    let engine = engine(&shards[2], Storage::Own, 2).await;
    let new = Node::start(engine, &[&nodes[1]], ClusterConfig::default()).await;
    met(&new, 2).await;
    met(&nodes[0], 2).await;
    assert_eq!(count(&new.query(sql).await.unwrap()), all);
    assert_eq!(count(&nodes[0].query(sql).await.unwrap()), all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_node_in_join_fails_queries_of_tables_in_parts_only() {
    let folder = tempfile::tempdir().unwrap();
    tpch::write_parquet(SCALE, folder.path(), |_, _| {}).unwrap();
    // A port that was free a moment ago.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let config = || ClusterConfig { join: vec![dead.clone()], ..ClusterConfig::default() };
    let own = Node::start(engine(folder.path(), Storage::Own, 2).await, &[], config()).await;
    let failure = own.query("select count(*) from nation").await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::Peer);
    assert!(failure.message.contains(&dead) && failure.hint.is_some(), "{failure:?}");
    // Shared files do not need all nodes.
    let shared = Node::start(engine(folder.path(), Storage::Shared, 2).await, &[], config()).await;
    assert_eq!(count(&shared.query("select * from nation").await.unwrap()), 25);
    // An unknown table may be on the absent node.
    let failure = shared.query("select * from elsewhere").await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::Peer, "{failure:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_of_a_node_count_as_one() {
    let (_folder, _, nodes) = three().await;
    let sql = "select count(*) as n from orders";
    let before = nodes[0].query(sql).await.unwrap();
    let port = nodes[0].name.rsplit_once(':').unwrap().1.to_owned();
    let alias = vec![format!("localhost:{port}"), nodes[0].name.clone()];
    let empty = tempfile::tempdir().unwrap();
    let engine = engine(empty.path(), Storage::Own, 2).await;
    let new = Node::start(engine, &[], ClusterConfig { join: alias, ..ClusterConfig::default() }).await;
    met(&new, 3).await;
    assert_eq!(difference(&before, &new.query(sql).await.unwrap(), Order::Kept), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_files_as_parts_of_two_nodes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    tpch::write_parquet(SCALE, folder.path(), |_, _| {}).unwrap();
    let nodes = cluster(&[folder.path(); 2], Storage::Own, 2, ClusterConfig::default()).await;
    let failure = nodes[0].query("select count(*) from orders").await.unwrap_err();
    assert!(failure.message.contains("rows would be duplicated"), "{failure:?}");
    assert!(failure.hint.as_ref().unwrap().contains("--shared-table"), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_files_that_differ_are_refused() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (folder, scale) in folders.iter().zip([0.001, 0.002]) {
        tpch::write_parquet(scale, folder.path(), |_, _| {}).unwrap();
    }
    let nodes =
        cluster(&[folders[0].path(), folders[1].path()], Storage::Shared, 2, ClusterConfig::default()).await;
    let failure = nodes[0].query("select count(*) from orders").await.unwrap_err();
    assert!(failure.message.contains("see different files"), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_token_is_reported() {
    let (_folder, _, nodes) = three().await;
    let empty = tempfile::tempdir().unwrap();
    let config = ClusterConfig { token: "another".into(), ..ClusterConfig::default() };
    // The other nodes have no token and accept any; this one has one.
    let strict = Node::start(engine(empty.path(), Storage::Own, 2).await, &[], config).await;
    let config = ClusterConfig { join: vec![strict.name.clone()], ..ClusterConfig::default() };
    let outside = Node::start(engine(empty.path(), Storage::Own, 2).await, &[], config).await;
    let failure = outside.query("select count(*) from orders").await.unwrap_err();
    assert!(failure.message.contains("the token is not that of the cluster"), "{failure:?}");
    drop(nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_other_nodes_keep_their_code() {
    let (_folder, _, nodes) = three().await;
    let failure = nodes[0]
        .query("select 1 / (l_linenumber - l_linenumber) as x, count(*) from lineitem group by 1")
        .await
        .unwrap_err();
    assert_eq!(
        (failure.code, failure.reason),
        (ErrorCode::Data, Some(Reason::DivisionByZero)),
        "{failure:?}"
    );
    let failure = nodes[0].query("select nothing from orders").await.unwrap_err();
    assert_eq!(
        (failure.code, failure.reason),
        (ErrorCode::Sql, Some(Reason::UndefinedColumn)),
        "{failure:?}"
    );
    free(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_present_time_is_the_same_on_all_nodes() {
    let (_folder, _, nodes) = three().await;
    let sql = "select distinct now() as n from lineitem where l_shipdate < now()";
    let batches = nodes[0].query(sql).await.unwrap();
    assert_eq!(count(&batches), 1);
    let batch = batches.iter().find(|batch| batch.num_rows() > 0).unwrap();
    assert_eq!(batch.column(0).as_primitive::<TimestampNanosecondType>().value(0) % 1000, 0);
    free(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shuffle_may_have_one_group_or_many_small_ones() {
    let (_folder, _, nodes) = three().await;
    let got =
        nodes[0].query("select o_shippriority as p, count(distinct o_orderkey) as n from orders group by 1");
    assert_eq!(count(&got.await.unwrap()), 1);
    // A join of many groups with a few rows each.
    let sql = "select a.l_shipdate, count(*) as n from lineitem a join (select distinct l_shipdate as d from lineitem) b
        on a.l_shipdate = b.d group by 1 union all select l_shipdate, 1 from lineitem limit 100000";
    let rows = count(&nodes[2].query(sql).await.unwrap());
    assert!(rows > 60_000, "{rows}");
    free(&nodes).await;
}

/// Streams then have the smallest messages, and none waits for another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_work_with_hardly_any_memory_for_exchanges() {
    let folder = tempfile::tempdir().unwrap();
    let shards = tpch::write_shards(SCALE, folder.path(), &[1, 1]).unwrap();
    let mut nodes: Vec<Node> = Vec::new();
    for shard in &shards {
        let first: Vec<&Node> = nodes.iter().take(1).collect();
        let config = ClusterConfig { exchange_bytes: 1, ..ClusterConfig::default() };
        nodes.push(Node::start(engine(shard, Storage::Own, 2).await, &first, config).await);
    }
    for node in &nodes {
        met(node, 1).await;
    }
    for number in [18, 21] {
        let sql = &tpch::queries(SCALE)[number - 1];
        let expected = nodes[0].query(sql).await.unwrap();
        assert_eq!(difference(&expected, &nodes[1].query(sql).await.unwrap(), Order::Kept), None);
    }
    free(&nodes).await;
    assert_eq!(nodes[0].engine.cluster_load(), ClusterLoad::default());
}

/// The second row of an EXPLAIN.
pub(crate) fn explained(rows: &[RecordBatch]) -> serde_json::Value {
    let texts = rows[0].column(1).as_string::<i32>();
    serde_json::from_str(texts.value(1)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_stages_nodes_and_the_rows_sent_between_them() {
    let (_folder, _, nodes) = three().await;
    let sql = "select l_partkey, count(*) as n from lineitem group by l_partkey";
    let plan = explained(&nodes[0].query(&format!("explain {sql}")).await.unwrap());
    assert!(plan["seconds"].is_null() && plan["edges"].as_array().unwrap().is_empty(), "{plan:#}");
    let mut names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    let scans = &plan["stages"][0];
    let tasks: Vec<&str> =
        scans["tasks"].as_array().unwrap().iter().map(|t| t["node"].as_str().unwrap()).collect();
    assert_eq!(tasks, names, "each node reads its own rows");

    let run = explained(&nodes[0].query(&format!("explain analyze {sql}")).await.unwrap());
    let rows = count(&nodes[0].query(sql).await.unwrap()) as u64;
    assert_eq!(run["rows"], rows);
    let edges = run["edges"].as_array().unwrap();
    assert!(edges.iter().all(|edge| edge["from_node"] != edge["to_node"]), "{run:#}");
    assert!(edges.iter().all(|edge| edge["bytes_wire"].as_u64().unwrap() > 0), "{run:#}");
    // Each of three nodes sends to both others, and two send to the coordinator.
    assert_eq!(edges.len(), 3 * 2 + 2, "{run:#}");
    let to_root: u64 = edges.iter().filter(|e| e["to_stage"] == 0).map(|e| e["rows"].as_u64().unwrap()).sum();
    assert!(to_root > rows / 2 && to_root < rows, "{run:#}");
    let last = run["stages"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (last["stage"].as_u64(), last["tasks"][0]["node"].as_str()),
        (Some(0), Some(nodes[0].name.as_str()))
    );
}

/// A node without the files of a shared table has a part of another table that is read in the same stage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_table_may_be_absent_on_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    tpch::write_parquet(SCALE, &whole, |_, _| {}).unwrap();
    let parts = tpch::write_shards(SCALE, &folder.path().join("parts"), &[1, 1, 1]).unwrap();
    let mut nodes: Vec<Node> = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        let config = EngineConfig { partitions: 4, ..EngineConfig::default() };
        let mut engine = Engine::new(config).unwrap();
        engine.register_path("orders", &part.join("orders.parquet")).await.unwrap();
        if place < 2 {
            engine.register_shared_path("lineitem", &whole.join("lineitem.parquet")).await.unwrap();
        }
        let first: Vec<&Node> = nodes.iter().take(1).collect();
        nodes.push(Node::start(engine, &first, ClusterConfig::default()).await);
    }
    for node in &nodes {
        met(node, 2).await;
    }
    let alone = engine(&whole, Storage::Own, 2).await;
    let sql = "select count(*) as n, sum(k) as s from
        (select l_orderkey as k from lineitem union all select o_orderkey from orders)";
    let expected = run(&alone, sql).await.unwrap();
    for node in &nodes {
        assert_eq!(difference(&expected, &node.query(sql).await.unwrap(), Order::Kept), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recursive_query_reads_its_table_in_each_iteration() {
    let (folder, _, nodes) = three().await;
    let whole = folder.path().join("whole");
    tpch::write_parquet(SCALE, &whole, |_, _| {}).unwrap();
    let alone = engine(&whole, Storage::Own, 2).await;
    let shared = Node::start(engine(&whole, Storage::Shared, 2).await, &[], ClusterConfig::default()).await;
    let sql = "with recursive r as (select 0 as n union all
        select n_nationkey + 1 as n from nation join r on n_nationkey = r.n where n < 9) select count(*) as c from r";
    let expected = run(&alone, sql).await.unwrap();
    assert_eq!(difference(&expected, &shared.query(sql).await.unwrap(), Order::Kept), None);
    assert_eq!(difference(&expected, &nodes[1].query(sql).await.unwrap(), Order::Kept), None);
}

/// Checks that three nodes give the same results as one.
async fn same(queries: &[&str]) {
    let (folder, _, nodes) = three().await;
    let whole = folder.path().join("whole");
    tpch::write_parquet(SCALE, &whole, |_, _| {}).unwrap();
    let alone = engine(&whole, Storage::Own, 2).await;
    for (place, sql) in queries.iter().enumerate() {
        let expected = run(&alone, sql).await.unwrap();
        assert!(count(&expected) > 0, "{sql}");
        let got = nodes[place % nodes.len()].query(sql).await;
        let got = got.unwrap_or_else(|failure| panic!("{failure:?}: {sql}"));
        assert_eq!(difference(&expected, &got, Order::Any), None, "{sql}");
    }
    free(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recursive_queries_work_over_tables_of_any_size() {
    same(&[
        // A small table inside the recursion, a large one, two of them, then tables outside the recursion.
        "with recursive r as (select 0 as n union all
            select r.n + 1 from r join nation on n_nationkey = r.n where r.n < 20) select n from r",
        "with recursive r as (select 1 as n union all
            select r.n + 1 from r join lineitem on l_orderkey = r.n and l_linenumber = 1 where r.n < 40)
            select count(*) as c, max(n) as m from r",
        "with recursive r as (select 1 as n union all
            select r.n + 1 from r join orders on o_orderkey = r.n join customer on c_custkey = o_custkey
            where r.n < 6) select n from r",
        "with recursive r as (select min(o_orderkey) as n from orders union all
            select r.n + 1 from r where r.n < 30) select o_orderkey, o_totalprice from orders join r on o_orderkey = n",
        "with recursive r as (select n_nationkey as k, 0 as depth from nation where n_regionkey = 1 union all
            select n_regionkey, depth + 1 from nation join r on n_nationkey = k where depth < 4)
            select depth, k, count(*) as c from r group by depth, k",
        "with recursive r as (select 1 as n union all select n + 1 from r where n < 5)
            select n, (select count(*) from lineitem where l_linenumber = n) as c from r",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_the_cluster_can_be_joined_with_the_information_schema() {
    same(&[
        "select table_name, (select count(*) from nation) as n from information_schema.tables
            where table_name = 'nation'",
        "select t.table_name, n.n_name from information_schema.tables t join nation n on n.n_nationkey = 3
            where t.table_name = 'region'",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_and_sums_may_have_hundreds_of_terms() {
    let or: Vec<String> = (0..300).map(|n| format!("l_orderkey = {n}")).collect();
    let or = or.join(" or ");
    let sum = vec!["l_linenumber"; 200].join(" + ");
    same(&[
        &format!("select count(*) as c from lineitem where {or}"),
        &format!("select l_linenumber, sum({sum}) as s from lineitem group by 1"),
        &format!("select count(*) as c from lineitem join orders on l_orderkey = o_orderkey and ({or})"),
        &format!(
            "select count(*) as c from orders where {}",
            or.replace("l_orderkey = ", "o_custkey + o_orderkey = ")
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_endless_join_stops_on_all_nodes() {
    let (_folder, _, nodes) = three().await;
    for sql in [
        "select count(*) from lineitem a, lineitem b, lineitem c where a.l_comment || b.l_comment = c.l_comment || '!!'",
        "select count(*) from lineitem a, lineitem b, lineitem c",
    ] {
        let mut rows = nodes[0].engine.query(sql).await.unwrap().into_rows();
        // It computes, and has no rows yet.
        assert!(futures::poll!(rows.next()).is_pending());
        drop(rows);
        let ended = tokio::time::timeout(Duration::from_secs(60), free(&nodes)).await;
        let loads: Vec<_> = nodes.iter().map(|node| node.engine.cluster_load()).collect();
        ended.unwrap_or_else(|_| panic!("the parts end: {loads:?}, {sql}"));
    }
    // The threads are free too.
    assert_eq!(count(&nodes[1].query("select * from nation").await.unwrap()), 25);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_added_to_a_shared_folder_is_read_by_the_next_query() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("t");
    std::fs::create_dir(&table).unwrap();
    std::fs::write(table.join("1.csv"), "a\n1\n").unwrap();
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..2 {
        let mut engine = Engine::new(EngineConfig::default()).unwrap();
        engine.register_shared_path("t", &table).await.unwrap();
        let first: Vec<&Node> = nodes.iter().take(1).collect();
        nodes.push(Node::start(engine, &first, ClusterConfig::default()).await);
    }
    for node in &nodes {
        met(node, 1).await;
    }
    std::fs::write(table.join("2.csv"), "a\n2\n").unwrap();
    for node in &nodes {
        assert_eq!(count(&node.query("select a from t").await.unwrap()), 2);
    }
    // Generated rows can be joined with it.
    let sql = "select t.a from t join generate_series(1, 5) as g(v) on t.a = g.v";
    assert_eq!(count(&nodes[1].query(sql).await.unwrap()), 2);
}
