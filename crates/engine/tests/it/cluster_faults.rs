//! Faulty networks and clients: other queries continue, and all resources are released.

use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use futures::StreamExt;
use lightship_engine::ClusterConfig;
use lightship_testkit::proxy::Proxy;
use lightship_testkit::results::{Order, difference};
use lightship_testkit::tpch;
use lightship_transport::net::{self, Connection, Endpoint, Incoming, Rows};
use lightship_wire::control::{ErrorCode, Plan, Query};
use tempfile::TempDir;

use crate::support::{Node, Storage, engine, failure_of, free, met};

const SCALE: f64 = 0.01;
/// Short, so that the tests are fast, but longer than any pause of a node on a busy machine.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Time between a node's timeout and the failure of the query.
const SLACK: Duration = Duration::from_secs(2);

/// A shuffle of many rows between all nodes.
const LARGE: &str =
    "select a.l_orderkey, b.l_comment from lineitem a join lineitem b on a.l_partkey = b.l_partkey";
const COUNT: &str = "select count(*) as n, sum(l_orderkey) as s from lineitem";

/// Three nodes, each with a part of the tables; some are behind a proxy.
struct Three {
    nodes: Vec<Node>,
    proxies: Vec<Option<Proxy>>,
    _folder: TempDir,
}

impl Three {
    async fn start(behind: [bool; 3], config: &ClusterConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shards = tpch::write_shards(SCALE, folder.path(), &[1, 1, 1]).unwrap();
        let (mut nodes, mut proxies) = (Vec::<Node>::new(), Vec::new());
        for (shard, behind) in shards.iter().zip(behind) {
            let engine = engine(shard, Storage::Own, 2).await;
            let proxy = if behind { Some(Proxy::listen().await) } else { None };
            let name = proxy.as_ref().map(|proxy| proxy.name.clone()).unwrap_or_default();
            let first: Vec<&Node> = nodes.iter().take(1).collect();
            let node = Node::start(engine, &first, ClusterConfig { name, ..config.clone() }).await;
            if let Some(proxy) = &proxy {
                proxy.lead_to(node.address);
            }
            nodes.push(node);
            proxies.push(proxy);
        }
        let three = Self { nodes, proxies, _folder: folder };
        three.all_met().await;
        three
    }

    async fn all_met(&self) {
        for node in &self.nodes {
            met(node, 2).await;
        }
    }

    /// The proxies of the nodes that have one.
    fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.proxies.iter().flatten()
    }

    /// Checks that all nodes answer with the expected rows.
    async fn all_answer(&self, expected: &[RecordBatch]) {
        for node in &self.nodes {
            let got = node.query(COUNT).await.unwrap();
            assert_eq!(difference(expected, &got, Order::Kept), None);
        }
    }
}

fn quick() -> ClusterConfig {
    ClusterConfig { ping_interval: PING_INTERVAL, ..ClusterConfig::default() }
}

/// A query that has returned its first rows and has many left.
async fn begun(node: &Node) -> Rows {
    let mut rows = node.engine.query(LARGE).await.unwrap().into_rows();
    assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_node_is_named_and_can_return() {
    let three = Three::start([false, false, true], &quick()).await;
    let expected = three.nodes[0].query(COUNT).await.unwrap();
    let proxy = three.proxies().next().unwrap();
    let mut rows = begun(&three.nodes[0]).await;
    proxy.silence();
    let cut = Instant::now();
    let failure = failure_of(&mut rows).await;
    assert!(cut.elapsed() < PING_INTERVAL * 3 + SLACK, "{:?}", cut.elapsed());
    assert_eq!(failure.code, ErrorCode::Peer, "{failure:?}");
    assert!(failure.message.contains(&proxy.name) && failure.retryable, "{failure:?}");
    // The connected nodes release everything, even though `rows` is not dropped.
    tokio::time::timeout(Duration::from_secs(1), free(&three.nodes[..2])).await.unwrap();
    let failure = three.nodes[1].query(COUNT).await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::Peer);
    assert!(failure.message.contains(&proxy.name), "{failure:?}");
    // So does the unreachable node, which nobody can notify of the end.
    tokio::time::timeout(PING_INTERVAL * 3 + SLACK, free(&three.nodes[2..])).await.unwrap();

    proxy.open();
    three.all_met().await;
    three.all_answer(&expected).await;
    free(&three.nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_fail_and_recover_when_no_node_reaches_another() {
    let three = Three::start([true; 3], &quick()).await;
    let expected = three.nodes[0].query(COUNT).await.unwrap();
    let mut rows = begun(&three.nodes[0]).await;
    three.proxies().for_each(Proxy::silence);
    let cut = Instant::now();
    let failure = failure_of(&mut rows).await;
    assert!(cut.elapsed() < PING_INTERVAL * 3 + SLACK, "{:?}", cut.elapsed());
    assert_eq!(failure.code, ErrorCode::Peer, "{failure:?}");
    assert!(three.nodes[1..].iter().any(|node| failure.message.contains(&node.name)), "{failure:?}");
    tokio::time::timeout(Duration::from_secs(1), free(&three.nodes[..1])).await.unwrap();
    // Nobody can notify them that the query has ended: their own timeouts end it.
    tokio::time::timeout(PING_INTERVAL * 3 + SLACK, free(&three.nodes[1..])).await.unwrap();
    // Until then, a node may use a connection whose other end has given it up.
    for node in &three.nodes {
        met(node, 0).await;
    }

    three.proxies().for_each(Proxy::open);
    three.all_met().await;
    three.all_answer(&expected).await;
    free(&three.nodes).await;
}

/// Its streams stay within the memory limit too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_node_holds_up_only_queries_that_need_it() {
    // The timeout must not end the query here.
    let patient = ClusterConfig { ping_interval: Duration::from_secs(60), exchange_bytes: 1, ..quick() };
    let three = Three::start([false, false, true], &patient).await;
    let proxy = three.proxies().next().unwrap();
    let sql = "select * from orders order by o_orderkey";
    let expected = three.nodes[1].query(sql).await.unwrap();
    proxy.hold();
    let mut slow = Box::pin(three.nodes[0].query(sql));
    // Enough to start the query, not to finish it.
    proxy.grant(16 << 10);
    // `region` is on the first node alone.
    for node in &three.nodes[..2] {
        for _ in 0..3 {
            tokio::select! {
                biased;
                _ = &mut slow => panic!("the query finished without the rows of the slow node"),
                fast = node.query("select count(*) as n from region") => { fast.unwrap(); }
            }
        }
    }
    // A few bytes at a time, for all connections together.
    let (mut steps, mut most) = (0, 0);
    let mut pace = tokio::time::interval(Duration::from_millis(1));
    let got = loop {
        tokio::select! {
            got = &mut slow => break got.unwrap(),
            _ = pace.tick() => {
                proxy.grant(4 << 10);
                steps += 1;
                most = most.max(three.nodes[0].engine.cluster_load().exchange_bytes);
            }
        }
    };
    assert!(steps > 20, "{steps} steps");
    // At most two partitions from each of two nodes.
    assert!(most > 0 && most <= 4 * (128 << 10), "{most} bytes");
    assert_eq!(difference(&expected, &got, Order::Kept), None);
    free(&three.nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_does_not_hold_up_others() {
    let tight = ClusterConfig { exchange_bytes: 1, ..quick() };
    let three = Three::start([false, false, true], &tight).await;
    let proxy = three.proxies().next().unwrap();
    let expected = three.nodes[1].query(COUNT).await.unwrap();
    let address = three.nodes[0].address;
    let endpoint = Endpoint::Tcp { host: address.ip().to_string(), port: address.port(), tls: None };
    let config = net::ClientConfig { shared_memory: false, ..net::ClientConfig::default() };
    let mut client = Connection::connect(&endpoint, &config).await.unwrap();
    let before = proxy.answered_bytes();
    let sql = "select a.l_comment as x, b.* from lineitem a join lineitem b on a.l_partkey = b.l_partkey";
    let plan = Plan { batch_bytes: 64 << 10, message_bytes: 64 << 10, ..Plan::default() };
    client.query(&Query { sql: sql.into(), plan }, 0).await.unwrap();
    assert!(matches!(client.next().await.unwrap(), Incoming::Rows(_)));
    // Other queries continue, more of them than buffers could hide.
    for round in 0..10 {
        let got = three.nodes[round % 3].query(COUNT).await.unwrap();
        assert_eq!(difference(&expected, &got, Order::Kept), None);
    }
    // The query still waits for the client. Its result has more than a hundred megabytes, of which only a few were sent.
    // Measurements of the link count too.
    let load = three.nodes[0].engine.cluster_load();
    assert!(load.parts > 0 && load.exchange_bytes > 0, "{load:?}");
    let came = proxy.answered_bytes() - before;
    assert!(came < 32 << 20, "{came} bytes for a client that reads nothing");
    drop(client);
    free(&three.nodes).await;
}
