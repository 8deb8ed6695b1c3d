//! Range files: from creation to scans after splits, over several nodes that are killed and restarted.

use std::fmt::Write as _;

use crate::cluster::Restartable;
use crate::support::*;

/// Starts a node with range files, which come back with it.
pub(crate) fn start(cluster: &Restartable, node: usize) -> Node {
    let folder = cluster.folder.arg(&format!("range-{node}"));
    cluster.start(node, &["--range-data", &folder])
}

pub(crate) fn joined(nodes: &[Node]) {
    for (node, other) in nodes.iter().flat_map(|node| nodes.iter().map(move |other| (node, other))) {
        if node.uri != other.uri {
            node.process.says(&format!("node {} joined", other.address()));
        }
    }
}

fn range(args: &[&str]) -> Outcome {
    lightship(&[&["range"], args].concat())
}

/// The buckets as JSON.
fn buckets(uri: &str, name: &str) -> Vec<serde_json::Value> {
    let shown = lightship(&["--json", "range", "buckets", uri, name]).succeeds();
    let shown: serde_json::Value = serde_json::from_str(shown.text()).expect("JSON");
    shown["buckets"].as_array().expect("buckets").clone()
}

#[test]
fn a_range_file_grows_over_three_nodes() {
    let cluster = Restartable::new(3);
    let folder = Folder::new();
    let mut nodes: Vec<Node> = (0..3).map(|node| start(&cluster, node)).collect();
    joined(&nodes);
    let uris: Vec<String> = nodes.iter().map(|node| node.uri.clone()).collect();
    let columns = "id bigint, name text, price decimal(10,2)";
    let args =
        ["create", &uris[0], "orders", "--key", "id", "--columns", columns, "--capacity-records", "500"];
    range(&args).succeeds();
    range(&args).fails(SOURCE, &["orders exists already"]);

    // Every other number, in no order.
    let mut text = String::from("id,name,price\n");
    (0..10_000u64).for_each(|n| writeln!(text, "{0},name {0},{0}.50", n * 7919 % 10_000 * 2).expect("text"));
    let file = folder.write("rows.csv", text);
    let typed = "select id, name, cast(price as decimal(10,2)) as price from rows";
    let inserted = range(&["insert", &uris[1], "orders", &file, typed]).succeeds();
    assert!(inserted.stderr.contains("10,000 rows"), "{inserted}");
    range(&["insert", &uris[1], "orders", &file, typed])
        .fails(DATA, &["key", "exists already", "0 rows were written"]);

    until("there are many buckets on all nodes", || {
        let buckets = buckets(&uris[2], "orders");
        let has_some = |node: &Node| buckets.iter().any(|bucket| bucket["node"] == node.address());
        buckets.len() >= 20 && nodes.iter().all(has_some)
    });
    let plot = folder.arg("buckets.svg");
    range(&["buckets", &uris[0], "orders", "--plot", &plot]).succeeds();
    let plot = std::fs::read_to_string(plot).expect("a plot");
    assert!(plot.contains("Range file orders") && plot.contains("requests"));
    let all = buckets(&uris[1], "orders");
    assert!(all[0]["to"].as_str().is_some_and(|to| !to.is_empty()), "{all:?}");
    assert!(all.iter().any(|bucket| bucket["written_rows"].as_u64() > Some(0)), "{all:?}");
    let table = range(&["buckets", &uris[2], "orders"]).succeeds();
    assert!(table.text().contains("rows written"), "{table}");

    // The whole, in order; then parts of it.
    let scanned = range(&["scan", &uris[2], "orders", "--columns", "id", "--quiet"]).succeeds();
    let expected: String = (0..10_000).map(|n| format!("{}\n", n * 2)).collect();
    assert!(scanned.text() == format!("id\n{expected}"), "the scan is not complete and in order");
    let part = range(&["scan", &uris[0], "orders", "--from", "100", "--to", "105", "--quiet"]).succeeds();
    assert_eq!(part.text(), "id,name,price\n100,name 100,100.50\n102,name 102,102.50\n104,name 104,104.50\n");
    let few =
        range(&["scan", &uris[0], "orders", "--from", "-5", "--limit", "1", "--columns", "name"]).succeeds();
    assert_eq!(few.text(), "name\nname 0\n");
    assert_eq!(range(&["scan", &uris[1], "orders", "--count"]).succeeds().text(), "10000\n");
    let one = range(&["get", &uris[1], "orders", "4712", "--quiet"]).succeeds();
    assert_eq!(one.text(), "id,name,price\n4712,name 4712,4712.50\n");
    let none = range(&["get", &uris[1], "orders", "4711"]).succeeds();
    assert!(none.stderr.contains("no row has this key"), "{none}");

    // In SQL: conditions on the key select buckets.
    let sql = "select count(*) as n, sum(price) as s from orders";
    for uri in &uris {
        assert_eq!(csv(uri, sql), "n,s\n10000,99995000.00\n");
        assert_eq!(csv(uri, &format!("{sql} where id between 10 and 14")), "n,s\n3,37.50\n");
        assert_eq!(
            csv(uri, "select id from orders where id in (4, 5, 8, 19998) order by id"),
            "id\n4\n8\n19998\n"
        );
    }
    // Several conditions on the key, which the planner passes on one after the other.
    let of = |condition: &str| csv(&uris[1], &format!("select id from orders where {condition} order by id"));
    assert_eq!(of("id in (4, 6, 8, 10) and id > 6"), "id\n8\n10\n");
    assert_eq!(of("id = 6 and id > 8"), "id\n");
    assert_eq!(of("id in (4, 6, 8) and id in (6, 10)"), "id\n6\n");
    assert_eq!(of("id >= 4 and id < 10 and id <> 6 and name like 'name%'"), "id\n4\n8\n");
    assert_eq!(of("id < 3 or id > 19996"), "id\n0\n2\n19998\n");
    assert_eq!(csv(&uris[0], "select id from orders order by id desc limit 2"), "id\n19998\n19996\n");
    // Enough rows are in a bucket, or in two more.
    let reads =
        || buckets(&uris[0], "orders").iter().filter_map(|bucket| bucket["reads"].as_u64()).sum::<u64>();
    for (sql, expected) in [
        ("select count(*) as n from (select id from orders limit 100)", "n\n100\n"),
        ("select max(id) as id from (select id from orders order by id limit 100)", "id\n198\n"),
    ] {
        for uri in &uris {
            let before = reads();
            assert_eq!(csv(uri, sql), expected);
            let asked = reads().saturating_sub(before);
            assert!((1..=3).contains(&asked), "{sql} asked {asked} buckets");
        }
    }
    // A limit is one limit, also beside a scan that several nodes divide among them.
    let limited = "select id from orders limit 100";
    for (sql, expected) in [
        (format!("select count(*) as n from (({limited}) union all select id from orders)"), "n\n10100\n"),
        (
            format!("select count(*) as n from (({limited} offset 50) union all select id from orders)"),
            "n\n10100\n",
        ),
        (
            format!("select count(a.id) as n from ({limited}) a right join orders b on a.id = b.id"),
            "n\n100\n",
        ),
        (
            format!("select count(*) as n from orders b right join ({limited}) a on a.id = b.id + 1"),
            "n\n100\n",
        ),
        (format!("select count(*) as n from orders b cross join ({limited}) a"), "n\n1000000\n"),
    ] {
        assert_eq!(csv(&uris[1], &sql), expected, "{sql}");
    }
    let joined_to_itself = "select count(*) as n from orders a join orders b on a.id = b.id + 2";
    assert_eq!(csv(&uris[0], joined_to_itself), "n\n9999\n");
    let plan = lightship(&["explain", &uris[0], "select name from orders where id = 300"]).succeeds();
    assert!(
        plan.text().contains("RangeScanExec: file=orders") && plan.text().contains("buckets=1"),
        "{plan}"
    );
    let plan =
        lightship(&["explain", &uris[0], "select name, count(*) from orders group by name"]).succeeds();
    assert!(plan.text().contains("stage 1, 3 nodes"), "{plan}");

    // Changes, by command and by SQL.
    let changed = folder.write("changed.csv", "id,name,price\n2,two,2.00\n3,three,3.00\n");
    let typed = "select id, name, cast(price as decimal(10,2)) as price from changed";
    range(&["insert", &uris[0], "orders", "--mode", "upsert", &changed, typed, "--quiet"]).succeeds();
    assert_eq!(csv(&uris[2], "insert into orders values (5, 'five', 5.0), (7, null, null)"), "count\n2\n");
    lightship(&["fetch", &uris[2], "insert into orders values (7, 'x', 1)"])
        .fails(DATA, &["key 7 exists already"]);
    lightship(&["fetch", &uris[2], "insert into t values (7)"]).fails(SOURCE, &["node"]);
    let from_itself = "insert into orders select id + 100000, name, price from orders";
    lightship(&["fetch", &uris[2], from_itself]).fails(SOURCE, &["can't read the same file"]);
    let explained = lightship(&["fetch", &uris[2], "explain analyze insert into orders values (11, 'x', 1)"]);
    explained.fails(SOURCE, &[]);
    range(&["create", &uris[0], "t", "--key", "a", "--columns", "a bigint"])
        .fails(SOURCE, &["the name of a table"]);
    let copied =
        ["copy", &uris[0], "select 9 as id, 'nine' as name", &uris[1], "--table", "orders", "--quiet"];
    lightship(&copied).succeeds();
    assert_eq!(
        csv(&uris[1], "select id, name from orders where id < 10 order by id"),
        "id,name\n0,name 0\n2,two\n3,three\n4,name 4\n5,five\n6,name 6\n7,\n8,name 8\n9,nine\n"
    );
    assert_eq!(range(&["delete", &uris[1], "orders", "7"]).succeeds().text(), "1 row deleted\n");

    // A node is killed: what it had is missing, by name, until it is back.
    let rows = range(&["scan", &uris[0], "orders", "--count"]).succeeds().text().to_owned();
    nodes[2].process.kill();
    let failed = range(&["scan", &uris[0], "orders", "--timeout", "1s", "--quiet"]);
    failed.fails(NETWORK, &["no bucket answered for keys from", nodes[2].address()]);
    let some = range(&["buckets", &uris[0], "orders"]);
    assert!(some.text().contains("gap"), "{some}");
    some.fails(NETWORK, &[nodes[2].address(), "did not answer"]);
    nodes[2] = start(&cluster, 2);
    assert_eq!(range(&["scan", &uris[0], "orders", "--count"]).succeeds().text(), rows);

    // All are killed: what was acknowledged is there.
    nodes.iter_mut().for_each(|node| node.process.kill());
    drop(nodes);
    let nodes: Vec<Node> = (0..3).map(|node| start(&cluster, node)).collect();
    joined(&nodes);
    assert_eq!(range(&["scan", &uris[1], "orders", "--count"]).succeeds().text(), rows);

    let listed = range(&["list", &uris[1]]).succeeds();
    assert!(listed.text().contains("orders") && listed.text().contains("500 records"), "{listed}");
    range(&["drop", &uris[1], "orders"]).succeeds();
    for uri in &uris {
        range(&["get", uri, "orders", "2"]).fails(SOURCE, &["there is no range file orders"]);
        lightship(&["fetch", uri, "select * from orders"]).fails(SOURCE, &["orders"]);
    }
    // The name is free again.
    range(&["create", &uris[2], "orders", "--key", "k", "--columns", "k text, v text"]).succeeds();
    assert_eq!(csv(&uris[0], "select count(*) as n from orders"), "n\n0\n");
}

#[test]
fn a_lone_node_has_range_files_too() {
    let folder = Folder::new();
    let data = folder.arg("range");
    let node = Node::start(&["--range-data", &data]);
    let create = |name: &str, more: &[&str]| range(&[&["create", &node.uri, name], more].concat());
    let rows = folder.write("days.csv", "day,place,count\n2026-01-02,b,1\n2026-01-01,a,2\n2026-01-01,b,3\n");
    create("days", &["--like", &rows, "--key", "day", "--key", "place"]).succeeds();
    range(&["insert", &node.uri, "days", &rows, "--quiet"]).succeeds();
    let of_day = range(&["get", &node.uri, "days", "2026-01-01", "--quiet"]).succeeds();
    assert_eq!(of_day.text(), "day,place,count\n2026-01-01,a,2\n2026-01-01,b,3\n");
    let one =
        range(&["scan", &node.uri, "days", "--from", "2026-01-01", "b", "--columns", "count", "--quiet"]);
    assert_eq!(one.succeeds().text(), "count\n3\n1\n");
    assert_eq!(range(&["delete", &node.uri, "days", "2026-01-01"]).succeeds().text(), "2 rows deleted\n");
    assert_eq!(csv(&node.uri, "select place from days"), "place\nb\n");

    range(&["get", &node.uri, "days", "yesterday"]).fails(USAGE, &["yesterday is not a value of column day"]);
    range(&["get", &node.uri, "days", "2026-01-01", "a", "b"]).fails(USAGE, &["day, place"]);
    range(&["get", &node.uri, "nights", "1"]).fails(SOURCE, &["there is no range file nights"]);
    create("x", &["--key", "id", "--columns", "id int("])
        .fails(SOURCE, &["--columns 'id bigint, name text'"]);
    create("x", &["--key", "nr", "--columns", "id int"]).fails(USAGE, &["no column nr", "id"]);
    create("x", &["--key", "id"]).fails(USAGE, &["--columns", "--like"]);
    let wrong = folder.write("wrong.csv", "day,place\n2026-01-01,a\n,b\n");
    range(&["insert", &node.uri, "days", &wrong])
        .fails(DATA, &["row 2", "`day`", "NULL in a column of the key"]);
    let extra = folder.write("extra.csv", "day,place,other\n2026-01-01,a,b\n");
    range(&["insert", &node.uri, "days", &extra]).fails(DATA, &["no column other", "day, place, count"]);
    let without = folder.write("without.csv", "place\na\n");
    range(&["insert", &node.uri, "days", &without]).fails(DATA, &["no column day"]);
    let unfit = folder.write("unfit.csv", "day,place,count\n2026-01-01,a,1.5\n");
    range(&["insert", &node.uri, "days", &unfit]).fails(DATA, &["row 1", "`count`"]);

    // No other process may use the folder, and a node without range files says so.
    let second = Node::try_start(&["--range-data", &data]).map(|_| ()).expect_err("refused");
    second.fails(SOURCE, &["in use by another process"]);
    let without = Node::start(&[]);
    range(&["list", &without.uri]).fails(SOURCE, &["has no range files", "--range-data"]);
}

#[test]
fn nodes_without_range_files_take_part_in_queries() {
    let cluster = Restartable::new(3);
    let nodes: Vec<Node> =
        (0..3).map(|node| if node < 2 { start(&cluster, node) } else { cluster.start(2, &[]) }).collect();
    joined(&nodes);
    let columns = ["--key", "a", "--columns", "a bigint, name text", "--capacity-records", "2"];
    range(&[&["create", &nodes[0].uri, "names"][..], &columns].concat()).succeeds();
    let insert = "insert into names values (1, 'one'), (2, 'two'), (3, 'three'), (4, 'four'), (5, 'five')";
    assert_eq!(csv(&nodes[1].uri, insert), "count\n5\n");
    // The table t has a part on each node.
    let joined = "select t.a, name from t join names on t.a = names.a order by 1";
    for node in &nodes[..2] {
        assert_eq!(csv(&node.uri, joined), "a,name\n1,one\n2,two\n4,four\n");
    }
    lightship(&["fetch", &nodes[2].uri, joined]).fails(SOURCE, &["names"]);
}

#[test]
fn a_node_that_joins_later_answers_for_all_range_files() {
    let cluster = Restartable::new(2);
    let first = start(&cluster, 0);
    let columns = ["--key", "a", "--columns", "a bigint, name text"];
    range(&[&["create", &first.uri, "names"][..], &columns].concat()).succeeds();
    assert_eq!(csv(&first.uri, "insert into names values (1, 'one'), (2, 'two')"), "count\n2\n");
    let nodes = [first, start(&cluster, 1)];
    joined(&nodes);
    let second = &nodes[1].uri;
    assert_eq!(range(&["scan", second, "names", "--quiet"]).succeeds().text(), "a,name\n1,one\n2,two\n");
    until("the new node knows the file", || range(&["list", second]).succeeds().text().contains("names"));
    // The table t has a part on each node.
    let joined = "select t.a, name from t join names on t.a = names.a order by 1";
    for node in &nodes {
        assert_eq!(csv(&node.uri, joined), "a,name\n1,one\n2,two\n");
    }
}
