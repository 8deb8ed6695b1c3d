//! Several clients at once.

use crate::support::*;

/// Rows and sum of keys of `lineitem`, from the file itself.
fn expected() -> (usize, i64) {
    let (_, batches) = read_parquet(lineitem().as_ref());
    (rows_of(&batches), sum(&batches, 0))
}

#[test]
fn ten_clients_at_once_get_complete_results() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let folder = Folder::new();
    let clients: Vec<_> = (0..10)
        .map(|n| {
            let file = folder.arg(&format!("{n}.arrow"));
            Process::start(&[
                "--json",
                "fetch",
                &node.uri,
                "select l_orderkey, l_comment from lineitem",
                "-o",
                &file,
            ])
        })
        .collect();
    for (n, client) in clients.into_iter().enumerate() {
        let report = client.end().succeeds().json();
        let (_, batches) = read_arrow_file(&folder.file(&format!("{n}.arrow")));
        assert_eq!((rows_of(&batches), sum(&batches, 0)), expected(), "client {n}");
        assert_eq!(report["rows"].as_u64(), Some(expected().0 as u64));
    }
}

#[test]
fn a_slow_client_does_not_delay_others() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let mut slow: Vec<_> =
        (0..3).map(|_| Process::start(&["fetch", "--quiet", &node.uri, "select * from lineitem"])).collect();
    let rest: Vec<_> = slow.iter_mut().map(Process::stuck_in_rows).collect();
    for _ in 0..3 {
        let fast = node.fetch(&["select * from lineitem", "--format", "stream", "--quiet"]).succeeds();
        assert_eq!(rows_of(&read_arrow_stream(&fast.stdout).1), expected().0);
    }
    // The slow clients get complete results when they read on.
    for rows in rest {
        assert_eq!(std::io::BufRead::lines(rows).count(), expected().0);
    }
    for client in slow {
        client.end().succeeds();
    }
}

#[test]
fn clients_beyond_the_limit_are_refused_without_a_queue() {
    let node = Node::start(&["--connections-max", "2", "--queue-timeout", "0"]);
    let mut clients: Vec<_> = (0..2).map(|_| Process::start(&["fetch", &node.uri, ENDLESS])).collect();
    let _rows: Vec<_> = clients.iter_mut().map(Process::stuck_in_rows).collect();
    let refused = lightship(&["--json", "fetch", &node.uri, "select 1"])
        .fails(NETWORK, &["all 2 connections of the node are taken"]);
    assert_eq!(refused.json()["error"]["kind"], "network");
    drop(clients.pop());
    node.process.connections_ended(2);
    node.serves();
}

#[test]
fn clients_beyond_the_limit_wait_in_the_queue() {
    let node =
        Node::start(&["--connections-max", "2", "--queue-timeout", "1min", "--table", &lineitem_table()]);
    let sql = "select * from lineitem";
    let clients: Vec<_> = (0..2 + 2)
        .map(|_| Process::start(&["fetch", "--quiet", &node.uri, sql, "--format", "csv", "-o", "/dev/null"]))
        .collect();
    for client in clients {
        client.end().succeeds();
    }
}
