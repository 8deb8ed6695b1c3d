//! Queries that would compute for hours stop at once, and do not disturb others.

use std::time::{Duration, Instant};

use crate::support::*;

/// Queries over `lineitem` that would take hours, and return hardly any row before their end.
const HOURS: [&str; 7] = [
    // A condition that is true for half of all pairs, one that is true for none, and one without output rows.
    "select count(*) from lineitem a, lineitem b where a.l_comment < b.l_comment || a.l_shipinstruct",
    "select count(*) from lineitem a, lineitem b
        where a.l_comment || '!' > b.l_comment || 'zz' and a.l_comment || b.l_comment = 'nothing'",
    "select count(*) from lineitem a where not exists
        (select 1 from lineitem b where b.l_comment || a.l_comment = 'nothing')",
    "select sum(a.l_linenumber + b.l_linenumber * c.l_linenumber) from lineitem a, lineitem b, lineitem c",
    // Every row matches a sixth of all rows by key, but none by the second condition.
    "select count(*) from lineitem a join lineitem b on a.l_linenumber = b.l_linenumber
        and a.l_comment || b.l_comment = 'nothing'",
    "select sum(a.value * b.value) from generate_series(1, 100000000) a, generate_series(1, 100000000) b",
    "with recursive r as (select 1 as n union all select n + 1 from r) select count(*) from r",
];

fn took(began: Instant, most: u64, what: &str) {
    assert!(began.elapsed() < Duration::from_secs(most), "{what}: {:?}", began.elapsed());
}

#[test]
fn one_interrupt_stops_a_query_over_a_file() {
    for (place, sql) in HOURS.into_iter().enumerate() {
        let client = Process::start(&["fetch", lineitem(), sql, "--quiet"]);
        client.computes();
        let began = Instant::now();
        client.signal(["INT", "TERM"][place % 2]);
        client.end().fails(INTERRUPTED, &["interrupted"]);
        took(began, 4, sql);
    }
}

#[test]
fn a_query_stops_when_its_client_is_gone() {
    let node = Node::start(&["--table", &lineitem_table()]);
    for sql in HOURS {
        let mut client = Process::start(&["fetch", &node.uri, sql]);
        node.process.computes();
        // Other clients are served meanwhile.
        node.serves();
        client.kill();
        // The node uses less than a tenth of a processor.
        until("the node is at rest", || {
            let (before, began) = (node.process.cpu_ticks(), Instant::now());
            while began.elapsed() < Duration::from_millis(500) {
                std::thread::park_timeout(Duration::from_millis(100));
            }
            node.process.cpu_ticks() - before < 5
        });
    }
}

#[test]
fn a_node_stops_while_it_computes() {
    for (place, sql) in HOURS.into_iter().enumerate().take(4) {
        let node = Node::start(&["--table", &lineitem_table()]);
        let client = Process::start(&["fetch", &node.uri, sql]);
        node.process.computes();
        let began = Instant::now();
        if place == 0 {
            // A second signal stops the node at once.
            node.process.signal("INT");
            node.process.says("stopping: running queries have 5 s to end");
            node.process.signal("TERM");
            node.process.end().fails(INTERRUPTED, &[]);
            took(began, 4, sql);
        } else {
            node.process.signal("TERM");
            node.process.end().succeeds();
            // The time that running queries have to end.
            took(began, 9, sql);
        }
        client.end().fails(NETWORK, &[]);
    }
}

/// Without a limit of depth such statements would overflow the stack.
#[test]
fn a_statement_of_a_hundred_kilobytes_does_not_stop_the_node() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let chains = ["+1", " or true", " and true", " union all select 1", "::int", " is null", "[1]"];
    for chain in chains {
        let sql = format!("select 1{}", chain.repeat(100_000 / chain.len()));
        for place in [node.uri.as_str(), lineitem()] {
            let outcome = lightship(&["fetch", place, &sql]).fails(LIMITS, &["levels deep", "hint: "]);
            assert!(outcome.stderr.len() < 1000, "{outcome}");
        }
        node.serves();
    }
    let nested = format!("select {}1{}", "(".repeat(50_000), ")".repeat(50_000));
    lightship(&["fetch", &node.uri, &nested]).fails(LIMITS, &["levels deep"]);
    node.serves();
}
