//! Queries that ask much of the ways between nodes: all rows to one, or very many streams.

use std::pin::pin;
use std::time::Duration;

use lightship_engine::{ClusterConfig, ClusterLoad};
use lightship_testkit::results::{Order, difference};
use lightship_testkit::tpch;
use lightship_wire::control::ErrorCode;
use tempfile::TempDir;

use crate::support::{Node, Storage, engine, free, met, run};

/// Beyond the limit, each stream of an exchange has so much.
const STREAM_BYTES: u64 = 128 << 10;

/// Four nodes with a part each of the tables, and one that has all of them.
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

    /// Asks one node, and answers the most that any of them held for exchanges meanwhile, every millisecond.
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

/// All orders have the same priority to be shipped with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_rows_have_one_key() {
    const LIMIT: u64 = 1 << 20;
    const PARTITIONS: usize = 2;
    let config = ClusterConfig { exchange_bytes: LIMIT, ..ClusterConfig::default() };
    let four = Four::start(0.01, PARTITIONS, &config).await;
    let queries = [
        "select o_shippriority, count(*) as n, count(distinct o_comment) as c from orders group by o_shippriority",
        // All rows of the table, to one node.
        "select max(place) as most, sum(length(o_comment)) as bytes from
            (select o_comment, row_number() over (partition by o_shippriority order by o_comment) as place from orders)",
        "select count(*) as n, sum(b.v) as s from orders a join
            (select o_shippriority as k, o_orderkey as v from orders where o_orderkey % 500 = 1) b
            on a.o_shippriority = b.k",
    ];
    for (place, sql) in queries.into_iter().enumerate() {
        let most = four.check(place, sql).await;
        // Of three other nodes, for each of at most three exchanges.
        let streams = 3 * 3 * PARTITIONS as u64;
        assert!(most > 0 && most <= LIMIT + streams * STREAM_BYTES, "{most} bytes: {sql}");
    }
}

/// Each of four tasks reads its partitions of three others: 960 streams in all, with some ten rows each.
const MANY: usize = 80;
const MANY_KEYS: &str =
    "select o_orderkey, count(*) as n, max(o_comment) as c from orders group by o_orderkey";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_partitions_of_a_few_rows() {
    // So tight that what a node holds says how many streams it reads.
    let config = ClusterConfig { exchange_bytes: 1, ..ClusterConfig::default() };
    let four = Four::start(0.01, MANY, &config).await;
    let streams = four.check(1, MANY_KEYS).await / STREAM_BYTES;
    // The node that was asked also reads the answers of the three others.
    assert!((200..=3 * 2 * MANY as u64).contains(&streams), "{streams} streams");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_streams_than_connections() {
    let config = ClusterConfig { connections_per_node_max: 32, ..ClusterConfig::default() };
    let four = Four::start(0.001, MANY, &config).await;
    for node in &four.nodes {
        let failure = node.query(MANY_KEYS).await.unwrap_err();
        assert_eq!(failure.code, ErrorCode::Limit, "{failure:?}");
        assert!(failure.message.contains("all 32 connections to node "), "{failure:?}");
        assert!(failure.hint.as_ref().is_some_and(|hint| hint.contains("--partitions")), "{failure:?}");
        free(&four.nodes).await;
        assert_eq!(node.engine.cluster_load(), ClusterLoad::default());
    }
    // What needs fewer goes on.
    let got = four.nodes[2].query("select * from nation").await.unwrap();
    assert_eq!(got.iter().map(arrow_array::RecordBatch::num_rows).sum::<usize>(), 25);
}
