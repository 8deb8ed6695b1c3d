//! Clusters of nodes that answer queries together, as processes.

use std::net::TcpListener;
use std::path::Path;

use lightship_testkit::loopback;
use lightship_testkit::results::{Order, difference};
use lightship_testkit::tpch;

use crate::security::certificates;
use crate::support::*;

const SCALE: f64 = 0.01;

/// A cluster with a node for each part of TPC-H's tables; returns when all nodes have joined each other.
fn cluster(parts: &[impl AsRef<Path>]) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for part in parts {
        let data = part.as_ref().to_str().expect("UTF-8").to_owned();
        let first = nodes.first().map(|node| node.address().to_owned());
        nodes.push(match &first {
            Some(first) => Node::start(&["--join", first, "--data", &data]),
            None => Node::start(&["--advertise", "127.0.0.1:0", "--data", &data]),
        });
    }
    for node in &nodes {
        for other in nodes.iter().filter(|other| other.uri != node.uri) {
            node.process.says(&format!("node {} joined", other.address()));
        }
    }
    nodes
}

fn answer(folder: &Folder, uri: &str, sql: &str) -> Vec<arrow_array::RecordBatch> {
    let file = folder.arg("answer.arrow");
    lightship(&["fetch", "--quiet", uri, sql, "-o", &file]).succeeds();
    read_arrow_file(file.as_ref()).1
}

#[test]
fn each_of_four_nodes_answers_like_a_single_node() {
    let folder = Folder::new();
    let whole = folder.file("whole");
    tpch::write_parquet(SCALE, &whole, |_, _| {}).expect("written");
    let alone = Node::start(&["--data", whole.to_str().expect("UTF-8")]);
    let parts = tpch::write_shards(SCALE, &folder.file("parts"), &[1, 2, 1, 1]).expect("written");
    let nodes = cluster(&parts);
    for number in [3, 13, 18] {
        let sql = &tpch::queries(SCALE)[number - 1];
        let (expected, got) =
            (answer(&folder, &alone.uri, sql), answer(&folder, &nodes[number % 4].uri, sql));
        assert_eq!(difference(&expected, &got, Order::Kept), None, "query {number}");
    }

    let sql = "select l_suppkey, count(*) from lineitem group by l_suppkey";
    let outcome = lightship(&["explain", &nodes[2].uri, "--analyze", sql]).succeeds();
    for words in ["stage 1, 4 nodes", "coordinator", "ShardScanExec", "waited for", "slowest edge", "rows in"]
    {
        assert!(outcome.text().contains(words), "{words}: {outcome}");
    }
    let explained = lightship(&["--json", "explain", &nodes[2].uri, "--analyze", sql]).succeeds();
    let explained: serde_json::Value = serde_json::from_str(explained.text()).expect("JSON");
    let edges = explained["edges"].as_array().expect("edges");
    assert_eq!(edges.len(), 4 * 3 + 3, "{explained:#}");
    // A single node shows its own plan.
    let plan = lightship(&["explain", &alone.uri, sql]).succeeds();
    assert!(plan.text().contains("physical_plan"), "{plan}");

    // Any client can explain in SQL.
    assert!(csv(&nodes[0].uri, &format!("explain {sql}")).contains("distributed_plan"));

    // Columns may have the same name.
    let twice = "select l_linenumber, l_linenumber from lineitem group by l_linenumber order by 1 limit 2";
    for uri in [&alone.uri, &nodes[1].uri] {
        let renamed =
            lightship(&["fetch", "--quiet", uri, twice, "--duplicate-columns", "rename"]).succeeds();
        assert_eq!(renamed.text(), "l_linenumber,l_linenumber_2\n1,1\n2,2\n");
    }
}

/// A cluster whose nodes keep their addresses over restarts; each node has one row of `t`.
pub(crate) struct Restartable {
    pub(crate) folder: Folder,
    addresses: Vec<String>,
}

impl Restartable {
    pub(crate) fn new(nodes: usize) -> Self {
        let folder = Folder::new();
        let host = loopback::own_host();
        // Bind all at the same time, so that the ports differ.
        let listeners: Vec<_> = (0..nodes).map(|_| TcpListener::bind((host, 0)).expect("a port")).collect();
        let address = |listener: &TcpListener| listener.local_addr().expect("bound").to_string();
        let addresses = listeners.iter().map(address).collect();
        for node in 0..nodes {
            std::fs::create_dir_all(folder.file(&node.to_string())).expect("made");
            folder.write(&format!("{node}/t.csv"), format!("a\n{}\n", 1 << node));
        }
        Self { folder, addresses }
    }

    /// The first node knows the others only from its state folder; the others join the first.
    pub(crate) fn start(&self, node: usize, more: &[&str]) -> Node {
        let address = self.addresses[node].as_str();
        let (data, state) = (self.folder.arg(&node.to_string()), self.folder.arg(&format!("state-{node}")));
        let mut words =
            vec!["--listen", address, "--advertise", address, "--data", &data, "--state-folder", &state];
        if node > 0 {
            words.extend(["--join", &self.addresses[0]]);
        }
        words.extend(more);
        Node::start(&words)
    }

    fn start_all(&self) -> Vec<Node> {
        let nodes: Vec<Node> = (0..self.addresses.len()).map(|node| self.start(node, &[])).collect();
        for (node, other) in nodes.iter().flat_map(|node| nodes.iter().map(move |other| (node, other))) {
            if node.uri != other.uri {
                node.process.says(&format!("node {} joined", other.address()));
            }
        }
        nodes
    }
}

const SUM: &str = "select sum(a) as s from t";

#[test]
fn after_any_restart_a_table_is_complete_or_an_error() {
    let cluster = Restartable::new(3);
    let mut nodes = cluster.start_all();
    assert_eq!(csv(&nodes[1].uri, SUM), "s\n7\n");
    nodes.iter_mut().for_each(|node| node.process.kill());
    drop(nodes);

    // The first node is started without --join.
    let first = cluster.start(0, &[]);
    let failed = lightship(&["fetch", &first.uri, SUM]);
    failed.fails(NETWORK, &["rows of `t` may be missing", "can't reach node", "lightship cluster remove"]);
    let second = cluster.start(1, &[]);
    until("the second node has joined", || {
        let failed = lightship(&["fetch", &first.uri, SUM]);
        assert_eq!(failed.code, Some(NETWORK), "{failed}");
        failed.stderr.contains(&cluster.addresses[2])
    });
    let third = cluster.start(2, &[]);
    for node in [&first, &second, &third] {
        until("all nodes have joined", || {
            let outcome = lightship(&["fetch", "--quiet", &node.uri, SUM]);
            assert!(outcome.code == Some(NETWORK) || outcome.text() == "s\n7\n", "{outcome}");
            outcome.code == Some(0)
        });
    }
}

#[test]
fn queries_fail_without_a_stopped_node_until_it_is_removed_and_include_it_when_it_is_added() {
    let cluster = Restartable::new(3);
    let mut nodes = cluster.start_all();
    let gone = nodes.pop().expect("a node");
    let name = cluster.addresses[2].as_str();
    gone.process.signal("TERM");
    gone.process.end().succeeds();
    for node in &nodes {
        node.process.says(&format!("node {name} has stopped"));
        lightship(&["fetch", &node.uri, SUM]).fails(NETWORK, &[&format!("node {name} has stopped")]);
    }
    let shown = lightship(&["cluster", "show", &nodes[0].uri]).succeeds();
    for words in ["coordinator", "stopped", "node", "part", name] {
        assert!(shown.text().contains(words), "{words}: {shown}");
    }

    // The node comes back, leaves again, and is removed.
    let back = cluster.start(2, &[]);
    nodes[0].process.says_times(&format!("node {name} joined"), 2);
    assert_eq!(csv(&nodes[0].uri, SUM), "s\n7\n");
    drop(back);
    lightship(&["cluster", "remove", &nodes[1].uri, "127.0.0.1:1"])
        .fails(SOURCE, &["not in the cluster", "lightship cluster show"]);
    lightship(&["cluster", "remove", &nodes[1].uri, &cluster.addresses[1]])
        .fails(SOURCE, &["ask another node"]);
    lightship(&["cluster", "add", &nodes[1].uri, name]).fails(SOURCE, &["in the cluster already"]);
    let removed = lightship(&["cluster", "remove", &nodes[1].uri, name]).succeeds();
    assert_eq!(removed.text(), format!("node {name} removed\n"));
    for node in &nodes {
        until("its rows no longer count", || {
            let outcome = lightship(&["fetch", "--quiet", &node.uri, SUM]);
            outcome.code == Some(0) && outcome.text() == "s\n3\n"
        });
    }

    // Starting the node again does not add it.
    let back = cluster.start(2, &[]);
    until("it knows that it was removed", || {
        let outcome = lightship(&["fetch", "--quiet", &back.uri, SUM]);
        assert_eq!(outcome.code, Some(NETWORK), "{outcome}");
        outcome.stderr.contains("was removed from the cluster")
    });
    assert_eq!(csv(&nodes[0].uri, SUM), "s\n3\n");
    let shown = lightship(&["--json", "cluster", "show", &nodes[0].uri]).succeeds();
    let shown: serde_json::Value = serde_json::from_str(shown.text()).expect("JSON");
    let of_removed = shown["nodes"].as_array().expect("nodes").iter().find(|node| node["node"] == name);
    assert_eq!(of_removed.expect("named")["state"], "removed", "{shown:#}");
    lightship(&["cluster", "add", &nodes[0].uri, name]).succeeds();
    for node in nodes.iter().chain([&back]) {
        until("its rows count again", || {
            let outcome = lightship(&["fetch", "--quiet", &node.uri, SUM]);
            outcome.code == Some(0) && outcome.text() == "s\n7\n"
        });
    }
}

#[test]
fn what_nodes_sent_is_known_after_a_restart() {
    let cluster = Restartable::new(2);
    let mut nodes = cluster.start_all();
    let edges = "select query, from_node, to_node, rows from cluster.edges where query <= 2 order by 1, 2, 3";
    for _ in 0..2 {
        lightship(&["explain", "--analyze", &nodes[0].uri, SUM]).succeeds();
    }
    let before = csv(&nodes[0].uri, edges);
    assert!(before.lines().any(|line| line.starts_with("2,")), "{before}");
    let first = nodes.remove(0);
    first.process.signal("TERM");
    first.process.end().succeeds();
    let again = cluster.start(0, &[]);
    assert_eq!(csv(&again.uri, edges), before);
}

#[test]
fn at_its_first_start_a_cluster_waits_for_the_expected_nodes() {
    let cluster = Restartable::new(2);
    let first = cluster.start(0, &["--expect-nodes", "2"]);
    lightship(&["fetch", &first.uri, SUM]).fails(NETWORK, &["1 of 2 nodes have joined", "--expect-nodes"]);
    let _second = cluster.start(1, &[]);
    first.process.says("joined");
    assert_eq!(csv(&first.uri, SUM), "s\n3\n");
}

#[test]
fn a_node_without_its_part_does_not_start_unless_the_part_is_dropped() {
    let cluster = Restartable::new(2);
    let nodes = cluster.start_all();
    drop(nodes);
    std::fs::remove_file(cluster.folder.file("1/t.csv")).expect("removed");
    let (address, state) = (cluster.addresses[1].as_str(), cluster.folder.arg("state-1"));
    let words = ["node", "--listen", address, "--advertise", address, "--state-folder", &state];
    lightship(&words).fails(USAGE, &["no longer has its part of table `t`", "--drop-part t"]);
    let first = cluster.start(0, &[]);
    let _second = Node::start(&[&words[1..], &["--drop-part", "t"]].concat());
    until("both nodes have joined", || lightship(&["fetch", "--quiet", &first.uri, SUM]).code == Some(0));
    assert_eq!(csv(&first.uri, SUM), "s\n1\n");
}

#[test]
fn two_nodes_can_not_serve_the_same_table_of_a_database_as_parts() {
    let folder = Folder::new();
    let sqlite = folder.arg("some.db");
    for sql in ["create table twice (a integer)", "insert into twice values (1)"] {
        rusqlite::Connection::open(&sqlite).and_then(|db| db.execute(sql, [])).expect("SQLite");
    }
    postgres().psql("create table twice (a int); insert into twice values (1)");
    mariadb().sql("create table twice (a int); insert into twice values (1)");
    for uri in [postgres().uri(), mariadb().uri(), format!("sqlite:{sqlite}")] {
        let table = format!("t={uri}?table=twice");
        let first = Node::start(&["--advertise", "127.0.0.1:0", "--table", &table]);
        assert_eq!(csv(&first.uri, SUM), "s\n1\n");
        let second = Node::start(&["--join", first.address(), "--table", &table]);
        first.process.says(&format!("node {} joined", second.address()));
        for node in [&first, &second] {
            lightship(&["fetch", &node.uri, SUM]).fails(
                SOURCE,
                &["one table of a database", "its rows would be duplicated", "a view with different rows"],
            );
        }
    }
}

#[test]
fn rows_go_over_an_overlay_if_there_are_more_nodes_than_connections() {
    let folder = Folder::new();
    let parts = tpch::write_shards(SCALE, folder.path(), &[1, 1, 1, 1]).expect("written");
    let mut nodes: Vec<Node> = Vec::new();
    for part in &parts {
        let data = part.to_str().expect("UTF-8");
        let overlay = ["--overlay-listen", "127.0.0.1:0", "--connections-between-nodes", "2", "--data", data];
        let first = nodes.first().map_or_else(
            || ["--advertise".to_owned(), "127.0.0.1:0".to_owned()],
            |first| ["--join".to_owned(), first.address().to_owned()],
        );
        let first: Vec<&str> = first.iter().map(String::as_str).collect();
        nodes.push(Node::start(&[&first[..], &overlay].concat()));
    }
    for node in &nodes {
        node.process.says("rows go over an overlay of 4 nodes");
    }
    let sql = "select l_suppkey, count(*) from lineitem group by l_suppkey";
    let explained = lightship(&["--json", "explain", &nodes[2].uri, "--analyze", sql]).succeeds();
    let explained: serde_json::Value = serde_json::from_str(explained.text()).expect("JSON");
    let edges = explained["edges"].as_array().expect("edges");
    assert!(edges.iter().all(|edge| edge["overlay_streams"].as_u64() > Some(0)), "{explained:#}");
    // When one node leaves, the others no longer need an overlay.
    let left = nodes.pop().expect("a node");
    let name = left.address().to_owned();
    left.process.signal("TERM");
    left.process.end().succeeds();
    for node in &nodes {
        node.process.says("rows go directly between nodes");
    }
    lightship(&["cluster", "remove", &nodes[0].uri, &name]).succeeds();
    lightship(&["fetch", "--quiet", &nodes[0].uri, "select count(*) from lineitem"]).succeeds();
}

#[test]
fn a_query_names_a_killed_node_and_the_node_can_rejoin() {
    let folder = Folder::new();
    let parts = tpch::write_shards(SCALE, folder.path(), &[1, 1, 1]).expect("written");
    let mut nodes = cluster(&parts);
    let sql = "select a.l_orderkey, b.l_comment from lineitem a join lineitem b on a.l_partkey = b.l_partkey";
    let mut fetch = Process::start(&["fetch", "--format", "csv", &nodes[0].uri, sql]);
    let mut rows = fetch.stuck_in_rows();
    let mut killed = nodes.pop().expect("a node");
    let (name, data) = (killed.address().to_owned(), parts[2].to_str().expect("UTF-8"));
    killed.process.kill();
    std::io::copy(&mut rows, &mut std::io::sink()).expect("a pipe");
    fetch.end().fails(NETWORK, &["node", &name]);
    nodes[1].process.says(&format!("node {name} was lost"));
    // Queries that need its rows fail.
    let count = "select count(*) as n from lineitem";
    lightship(&["fetch", &nodes[1].uri, count]).fails(NETWORK, &["rows of `lineitem` may be missing", &name]);
    let again = Node::start(&["--listen", &name, "--join", nodes[0].address(), "--data", data]);
    for node in &nodes {
        until("it has rejoined", || lightship(&["fetch", "--quiet", &node.uri, count]).code == Some(0));
    }
    assert_eq!(csv(&again.uri, count), csv(&nodes[0].uri, count));
}

#[test]
fn options_that_conflict_are_refused_at_once() {
    let folder = Folder::new();
    let table = format!("t={}", folder.write("t.csv", "a\n1\n"));
    lightship(&["node", "--listen", "0.0.0.0:0", "--join", "127.0.0.1:1", "--table", &table])
        .fails(USAGE, &["can be reached from other hosts", "--cluster-token-file"]);
    lightship(&["node", "--listen", "0.0.0.0:0", "--insecure", "--join", "127.0.0.1:1", "--table", &table])
        .fails(USAGE, &["--advertise"]);
    let token = folder.write("token", "\n");
    // The token is not sent to other hosts unencrypted: these hosts are not even looked up.
    let clear = "the cluster token would be sent to nowhere.invalid:4270 unencrypted";
    let known = folder.write("known", "s3cret\n");
    let own = ["--listen", "127.0.0.1:0", "--advertise", "127.0.0.1:1", "--cluster-token-file", &known];
    lightship(&[&["node", "--join", "nowhere.invalid"], &own[..]].concat())
        .fails(USAGE, &[clear, "--insecure"]);
    let remove = ["cluster", "remove", "lightship://nowhere.invalid", "n:1", "--cluster-token-file", &known];
    lightship(&remove).fails(USAGE, &["the token would be sent to nowhere.invalid unencrypted", "?tls=true"]);
    lightship(&["node", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1", "--cluster-token-file", &token])
        .fails(USAGE, &["no token in it"]);
    lightship(&["node", "--listen", "127.0.0.1:0", "--token", "t", "--advertise", "localhost:0"])
        .fails(USAGE, &["other nodes could join without one", "--cluster-token-file"]);
    let member = ["node", "--listen", "127.0.0.1:0", "--advertise", "localhost:0"];
    for (given, words) in [
        (&["--connections-between-nodes", "8"][..], &["--overlay-listen HOST:PORT"][..]),
        (&["--overlay-listen", "127.0.0.1:0", "--connections-between-nodes", "1"], &["must be at least 2"]),
        (&["--overlay-listen", "127.0.0.1"], &["expected HOST:PORT"]),
        (&["--overlay-listen", "127.0.0.1:0", "--overlay-advertise", "here"], &["expected HOST:PORT"]),
        (&["--overlay-listen", "0.0.0.0:0"], &["TLS and a cluster token", "--cluster-token-file"]),
        (&["--exchange-message", "1KiB"], &["4KiB to 16MiB"]),
    ] {
        lightship(&[&member, given].concat()).fails(USAGE, words);
    }
    lightship(&["explain", "sqlite:none.db", "select 1"]).fails(USAGE, &["only queries on nodes"]);

    // If a node of --join can't be reached, a shared table can be read, but a table in parts can't.
    let dead = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").to_string();
    let shared = Node::start(&["--join", &dead, "--shared-table", &table]);
    assert_eq!(csv(&shared.uri, "select a from t"), "a\n1\n");
    let own = Node::start(&["--join", &dead, "--table", &table]);
    lightship(&["fetch", &own.uri, "select a from t"]).fails(NETWORK, &[&dead, "--join"]);
}

#[test]
fn options_of_a_cluster_are_refused_outside_one() {
    let folder = Folder::new();
    let options = [
        ["--shared-table", "t=t.csv"],
        ["--shared-data", "data"],
        ["--expect-nodes", "3"],
        ["--state-folder", "state"],
        ["--drop-part", "t"],
        ["--cluster-token-file", "token"],
        ["--cluster-ca", "ca.pem"],
        ["--exchange-memory", "1GiB"],
        ["--exchange-message", "1MiB"],
        ["--overlay-listen", "127.0.0.1:0"],
        ["--overlay-advertise", "localhost:1"],
        ["--connections-between-nodes", "8"],
    ];
    for option in options {
        let expected =
            format!("{} requires a cluster, but neither --join nor --advertise is given", option[0]);
        lightship(&[&["node", "--listen", "127.0.0.1:0"], &option[..]].concat())
            .fails(USAGE, &[&expected, "hint: join a cluster with --join HOST:PORT, or start one"]);
    }
    // In the file, too.
    let config = folder.write("node.toml", "listen = [\"127.0.0.1:0\"]\nexpect-nodes = 3\n");
    lightship(&["node", "--config", &config]).fails(USAGE, &["--expect-nodes requires a cluster"]);
    // A folder that the environment names does not ask for a cluster.
    let state = folder.arg("state");
    let process = Process::start_with(&["node", "--listen", "127.0.0.1:0"], |command| {
        command.env("LIGHTSHIP_STATE", &state)
    });
    process.says("listening on");
}

#[test]
fn a_node_with_another_cluster_token_can_not_join() {
    let folder = Folder::new();
    let (right, wrong) = (folder.write("right", "a-long-secret\n"), folder.write("wrong", "another\n"));
    let table = format!("t={}", folder.write("t.csv", "a\n1\n"));
    let first =
        Node::start(&["--advertise", "127.0.0.1:0", "--cluster-token-file", &right, "--table", &table]);
    let member = Node::start(&["--join", first.address(), "--cluster-token-file", &right]);
    assert_eq!(csv(&member.uri, "select a from t"), "a\n1\n");
    let stranger = Node::start(&["--join", first.address(), "--cluster-token-file", &wrong]);
    lightship(&["fetch", &stranger.uri, "select a from t"])
        .fails(NETWORK, &["the token is not that of the cluster"]);
    first.serves();
}

#[test]
fn nodes_of_a_cluster_use_tls() {
    let folder = Folder::new();
    let ours = certificates();
    let tokens = (folder.write("clients", "of-clients\n"), folder.write("nodes", "of-nodes\n"));
    let (certificate, key, authority) = (ours.arg("cert.pem"), ours.arg("key.pem"), ours.arg("ca.pem"));
    let secure = [
        ["--tls-cert", &certificate],
        ["--tls-key", &key],
        ["--cluster-ca", &authority],
        ["--token-file", &tokens.0],
        ["--cluster-token-file", &tokens.1],
    ]
    .concat();
    let start = |words: &[&str]| Node::start(&[&secure[..], words].concat());
    let (low, high) = (folder.write("low.csv", "a\n1\n"), folder.write("high.csv", "a\n2\n"));
    let first =
        start(&["--listen", "0.0.0.0:0", "--advertise", "localhost:0", "--table", &format!("t={low}")]);
    let port = first.address().rsplit_once(':').expect("a port").1;
    let name = format!("localhost:{port}");
    let second = start(&["--join", &name, "--table", &format!("t={high}")]);
    second.process.says(&format!("node {name} joined"));
    first.process.says(&format!("node {} joined", second.address()));
    let uri = |token: &str| format!("lightship://{token}@{}?ca={authority}", second.address());
    assert_eq!(csv(&uri("of-clients"), "select sum(a) as s from t"), "s\n3\n");
    // A client can't use the token of the nodes.
    lightship(&["fetch", &uri("of-nodes"), "select 1"]).fails(SOURCE, &["the token is not known"]);

    lightship(&[&["node"], &secure[..4], &["--join", &name]].concat()).fails(USAGE, &["--cluster-ca"]);

    // Rows over an overlay are encrypted, too.
    let mut nodes: Vec<Node> = Vec::new();
    for place in 0..4 {
        let table = format!("t={}", folder.write(&format!("{place}.csv"), format!("a\n{place}\n")));
        let overlay =
            ["--overlay-listen", "0.0.0.0:0", "--connections-between-nodes", "2", "--table", &table];
        let first = nodes.first().map(|node| node.address().to_owned());
        nodes.push(match &first {
            Some(first) => start(&[&["--join", first][..], &overlay].concat()),
            None => start(&[&["--advertise", "127.0.0.1:0"][..], &overlay].concat()),
        });
    }
    for node in &nodes {
        node.process.says("rows go over an overlay of 4 nodes");
    }
    let uri = format!("lightship://of-clients@{}?ca={authority}", nodes[3].address());
    assert_eq!(csv(&uri, "select sum(a) as s from t"), "s\n6\n");
}

#[test]
fn the_links_between_nodes_are_shown_and_drawn() {
    let cluster = Restartable::new(3);
    let nodes = cluster.start_all();
    until("all links are measured", || {
        let shown = lightship(&["--json", "cluster", "links", &nodes[0].uri]).succeeds();
        let links: Vec<serde_json::Value> = serde_json::from_str(shown.text()).expect("JSON");
        assert!(links.iter().all(|link| link["bytes_per_second"].as_f64() > Some(0.0)), "{links:?}");
        links.len() == 6
    });
    let folder = Folder::new();
    let file = folder.arg("links.svg");
    let shown = lightship(&["cluster", "links", &nodes[1].uri, "--plot", &file]).succeeds();
    let drawn = std::fs::read_to_string(&file).expect("a plot");
    for address in &cluster.addresses {
        assert!(shown.text().contains(address.as_str()) && drawn.contains(address.as_str()), "{shown}");
    }
    assert!(shown.text().contains("first message") && drawn.contains("Mbit/s"), "{shown}");
}
