//! Queries that strain the exchange between nodes: all rows to one node, or very many streams.

use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use lightship_engine::{Choice, ClusterConfig, Engine, EngineConfig, Explained, Strategy};
use lightship_testkit::results::{Order, difference};
use lightship_testkit::tpch;
use tempfile::TempDir;

use crate::cluster::explained;
use crate::support::{Node, Storage, engine, free, met, run};

/// Memory of each stream beyond the limit.
const STREAM_BYTES: u64 = 128 << 10;

/// Four nodes, each with a part of the tables, and an engine with all rows.
struct Four {
    nodes: Vec<Node>,
    alone: lightship_engine::Engine,
    _folder: TempDir,
}

impl Four {
    async fn start(scale: f64, partitions: usize, config: &ClusterConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("whole");
        tpch::write_parquet(scale, &whole, |_, _| {}).unwrap();
        let shards = tpch::write_shards(scale, &folder.path().join("parts"), &[1; 4]).unwrap();
        let mut nodes: Vec<Node> = Vec::new();
        for shard in &shards {
            let first: Vec<&Node> = nodes.iter().take(1).collect();
            nodes.push(
                Node::start(engine(shard, Storage::Own, partitions).await, &first, config.clone()).await,
            );
        }
        for node in &nodes {
            met(node, 3).await;
        }
        Self { nodes, alone: engine(&whole, Storage::Own, 2).await, _folder: folder }
    }

    /// Runs a query on a node and checks its result. Returns the most bytes that any node held for
    /// exchanges, sampled every millisecond.
    async fn check(&self, node: usize, sql: &str) -> u64 {
        let expected = run(&self.alone, sql).await.unwrap();
        let mut most = 0;
        let mut query = pin!(self.nodes[node].query(sql));
        let mut look = tokio::time::interval(Duration::from_millis(1));
        let got = loop {
            tokio::select! {
                got = &mut query => break got.unwrap_or_else(|failure| panic!("{sql}: {failure:?}")),
                _ = look.tick() => {
                    let held = self.nodes.iter().map(|node| node.engine.cluster_load().exchange_bytes);
                    most = held.fold(most, u64::max);
                }
            }
        };
        assert_eq!(difference(&expected, &got, Order::Any), None, "{sql}");
        free(&self.nodes).await;
        most
    }
}

/// All orders have the same shipping priority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shuffle_of_a_single_key_stays_within_the_memory_limit() {
    const LIMIT: u64 = 1 << 20;
    const PARTITIONS: usize = 2;
    let config = ClusterConfig { exchange_bytes: LIMIT, ..ClusterConfig::default() };
    let four = Four::start(0.01, PARTITIONS, &config).await;
    let queries = [
        "select o_shippriority, count(*) as n, count(distinct o_comment) as c from orders group by o_shippriority",
        // Sends all rows of the table to one node.
        "select max(place) as most, sum(length(o_comment)) as bytes from
            (select o_comment, row_number() over (partition by o_shippriority order by o_comment) as place from orders)",
        "select count(*) as n, sum(b.v) as s from orders a join
            (select o_shippriority as k, o_orderkey as v from orders where o_orderkey % 500 = 1) b
            on a.o_shippriority = b.k",
    ];
    for (place, sql) in queries.into_iter().enumerate() {
        let most = four.check(place, sql).await;
        // From three other nodes, for at most three exchanges.
        let streams = 3 * 3 * PARTITIONS as u64;
        assert!(most > 0 && most <= LIMIT + streams * STREAM_BYTES, "{most} bytes: {sql}");
    }
}

/// Each of four tasks reads its partitions from three others: 960 streams in all, with about ten rows each.
const MANY: usize = 80;
const MANY_KEYS: &str =
    "select o_orderkey, count(*) as n, max(o_comment) as c from orders group by o_orderkey";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shuffle_may_have_a_thousand_streams_of_a_few_rows() {
    // So little that the memory of a node shows how many streams it reads.
    let config = ClusterConfig { exchange_bytes: 1, ..ClusterConfig::default() };
    let four = Four::start(0.01, MANY, &config).await;
    let streams = four.check(1, MANY_KEYS).await / STREAM_BYTES;
    // The coordinator also reads the results of the three others.
    assert!((200..=3 * 2 * MANY as u64).contains(&streams), "{streams} streams");
}

/// 75,000 orders with their comments. All of them do not fit in the memory of a node, a third does.
const LARGE: &str = "select count(*) as n, max(o_comment) as c, sum(l_quantity) as q
    from lineitem join orders on l_orderkey = o_orderkey";

/// The tables as a whole, and in thirds.
fn tables() -> (TempDir, PathBuf, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    tpch::write_parquet(0.05, &whole, |_, _| {}).unwrap();
    let thirds = tpch::write_shards(0.05, &folder.path().join("parts"), &[1; 3]).unwrap();
    (folder, whole, thirds)
}

/// Three nodes with a third of the tables each, and this much memory for queries.
async fn three(query_memory_bytes: usize, thirds: &[PathBuf]) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for third in thirds {
        let config = EngineConfig { partitions: 2, query_memory_bytes, ..EngineConfig::default() };
        let mut engine = Engine::new(config).unwrap();
        for table in ["lineitem", "orders"] {
            engine.register_path(table, &third.join(table).with_extension("parquet")).await.unwrap();
        }
        let first: Vec<&Node> = nodes.iter().take(1).collect();
        nodes.push(Node::start(engine, &first, ClusterConfig::default()).await);
    }
    for node in &nodes {
        met(node, 2).await;
    }
    nodes
}

/// The first choice of the plan of a query.
async fn first_choice(node: &Node, sql: &str) -> Choice {
    let plan = node.query(&format!("explain {sql}")).await.unwrap();
    let plan: Explained = serde_json::from_value(explained(&plan)).unwrap();
    plan.choices[0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_input_of_a_join_is_sent_to_all_nodes_if_they_have_too_little_memory() {
    let (_folder, whole, thirds) = tables();
    let expected = run(&engine(&whole, Storage::Own, 2).await, LARGE).await.unwrap();
    for (query_memory_bytes, has_broadcasts) in [(1 << 30, true), (5 << 20, false)] {
        let nodes = three(query_memory_bytes, &thirds).await;
        let choice = first_choice(&nodes[0], LARGE).await;
        let ways: Vec<_> = choice.ways.iter().map(|cost| cost.strategy).collect();
        assert_eq!(ways != [Strategy::Repartition], has_broadcasts, "{choice:#?}");
        let got = nodes[0].query(LARGE).await.unwrap();
        assert_eq!(difference(&expected, &got, Order::Any), None);
        free(&nodes).await;
    }
}

/// Of the 75,000 orders, 4% are expected to meet the conditions, which all do. They do not fit in 9 MiB, a third does.
const UNDERESTIMATED: &str = "select count(*) as n, max(o_comment) as c, max(o_clerk) as d,
    max(o_orderpriority) as p, max(o_totalprice) as t, max(o_orderdate) as o, max(l_comment) as l,
    max(l_shipinstruct) as s, sum(l_quantity) as q
    from lineitem join (select *, random() as r from orders where o_custkey % 2 < 2) on l_orderkey = o_orderkey
    where r % 2 < 2";

/// Of the 300,000 rows of either side, a third does not fit in 9 MiB.
const TOO_LARGE: &str = "select count(*) as n, max(a.l_comment) as a, max(b.l_comment) as b,
    max(a.l_shipinstruct) as c, max(b.l_shipinstruct) as d, max(a.l_shipmode) as e, max(b.l_shipmode) as f,
    sum(a.l_extendedprice) as g, sum(b.l_extendedprice) as h, sum(a.l_tax) as i, sum(b.l_tax) as j
    from lineitem a join lineitem b on a.l_orderkey = b.l_orderkey and a.l_linenumber = b.l_linenumber";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_whose_joins_need_too_much_memory_begins_again_with_others() {
    let (_folder, whole, thirds) = tables();
    let alone = engine(&whole, Storage::Own, 2).await;
    let nodes = three(9 << 20, &thirds).await;
    let before = first_choice(&nodes[0], UNDERESTIMATED).await;
    assert_ne!(before.ways[0].strategy, Strategy::Repartition, "{before:#?}");
    for sql in [UNDERESTIMATED, TOO_LARGE] {
        let expected = run(&alone, sql).await.unwrap();
        let got = nodes[0].query(sql).await.unwrap();
        assert_eq!(difference(&expected, &got, Order::Any), None);
        free(&nodes).await;
    }
    // How many rows there are is known once all nodes have reported. On a busy machine, some report too late.
    let began = Instant::now();
    let mut ran = began;
    while first_choice(&nodes[0], UNDERESTIMATED).await.ways[0].strategy != Strategy::Repartition {
        assert!(began.elapsed() < Duration::from_secs(60));
        if ran.elapsed() > Duration::from_secs(3) {
            nodes[0].query(UNDERESTIMATED).await.unwrap();
            ran = Instant::now();
        }
    }
    // Another node has its own estimates.
    for (sql, joins) in
        [(UNDERESTIMATED, vec!["mode=Partitioned", "SortMergeJoin"]), (TOO_LARGE, vec!["SortMergeJoin"])]
    {
        let run = nodes[1].query(&format!("explain analyze {sql}")).await.unwrap();
        let run: Explained = serde_json::from_value(explained(&run)).unwrap();
        assert!(joins.iter().any(|join| run.plan.contains(join)), "{}", run.plan);
        assert!(!run.plan.contains("CollectLeft"), "{}", run.plan);
    }
}

/// Waits until no operator of a query holds memory.
async fn memory_is_free(nodes: &[Node]) {
    let began = Instant::now();
    while nodes.iter().any(|node| node.engine.query_memory() > 0) {
        let held: Vec<_> = nodes.iter().map(|node| node.engine.query_memory()).collect();
        assert!(began.elapsed() < Duration::from_secs(30), "{held:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_query_held_is_free_soon_after_its_end() {
    let (_folder, _, thirds) = tables();
    let nodes = three(1 << 30, &thirds).await;
    // All nodes have a hash table of all orders.
    let choice = first_choice(&nodes[0], UNDERESTIMATED).await;
    assert_ne!(choice.ways[0].strategy, Strategy::Repartition, "{choice:#?}");
    nodes[0].query(UNDERESTIMATED).await.unwrap();
    memory_is_free(&nodes).await;
    // One whose rows are not all read.
    let each = format!("select * {}", &UNDERESTIMATED[UNDERESTIMATED.find("from").unwrap()..]);
    let mut rows = nodes[1].engine.query(&each).await.unwrap().into_rows();
    rows.next().await.unwrap().unwrap();
    let began = Instant::now();
    while nodes.iter().all(|node| node.engine.query_memory() == 0) {
        assert!(began.elapsed() < Duration::from_secs(30));
        tokio::task::yield_now().await;
    }
    drop(rows);
    memory_is_free(&nodes).await;
}
