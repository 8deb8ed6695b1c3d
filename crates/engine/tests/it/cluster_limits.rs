//! Queries that strain the exchange between nodes: all rows to one node, or very many streams.

use std::pin::pin;
use std::time::Duration;

use lightship_engine::{ClusterConfig, Engine, EngineConfig, Explained, Strategy};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_input_of_a_join_is_sent_to_all_nodes_if_they_have_too_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    tpch::write_parquet(0.05, &whole, |_, _| {}).unwrap();
    let shards = tpch::write_shards(0.05, &parts, &[1; 3]).unwrap();
    let expected = run(&engine(&whole, Storage::Own, 2).await, LARGE).await.unwrap();
    for (query_memory_bytes, has_broadcasts) in [(1 << 30, true), (5 << 20, false)] {
        let mut nodes: Vec<Node> = Vec::new();
        for shard in &shards {
            let config = EngineConfig { partitions: 2, query_memory_bytes, ..EngineConfig::default() };
            let mut engine = Engine::new(config).unwrap();
            for table in ["lineitem", "orders"] {
                engine.register_path(table, &shard.join(table).with_extension("parquet")).await.unwrap();
            }
            let first: Vec<&Node> = nodes.iter().take(1).collect();
            nodes.push(Node::start(engine, &first, ClusterConfig::default()).await);
        }
        for node in &nodes {
            met(node, 2).await;
        }
        let plan = nodes[0].query(&format!("explain {LARGE}")).await.unwrap();
        let plan: Explained = serde_json::from_value(explained(&plan)).unwrap();
        let ways: Vec<_> = plan.choices[0].ways.iter().map(|cost| cost.strategy).collect();
        assert_eq!(ways != [Strategy::Repartition], has_broadcasts, "{plan:#?}");
        let got = nodes[0].query(LARGE).await.unwrap();
        assert_eq!(difference(&expected, &got, Order::Any), None);
        free(&nodes).await;
    }
}
