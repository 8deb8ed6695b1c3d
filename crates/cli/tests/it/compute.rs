//! Queries that compute for hours are stopped at once, and harm nobody.

use std::time::{Duration, Instant};

use crate::support::*;

/// Queries over `lineitem` that would take hours, and give hardly any row before their end.
const HOURS: [&str; 7] = [
    // A condition that holds for half of all pairs, one that holds for none, one for which no rows are made.
    "select count(*) from lineitem a, lineitem b where a.l_comment < b.l_comment || a.l_shipinstruct",
    "select count(*) from lineitem a, lineitem b
        where a.l_comment || '!' > b.l_comment || 'zz' and a.l_comment || b.l_comment = 'nothing'",
    "select count(*) from lineitem a where not exists
        (select 1 from lineitem b where b.l_comment || a.l_comment = 'nothing')",
    "select sum(a.l_linenumber + b.l_linenumber * c.l_linenumber) from lineitem a, lineitem b, lineitem c",
    // Every row finds a sixth of all rows, of which none fits.
    "select count(*) from lineitem a join lineitem b on a.l_linenumber = b.l_linenumber
        and a.l_comment || b.l_comment = 'nothing'",
    "select sum(a.value * b.value) from generate_series(1, 100000000) a, generate_series(1, 100000000) b",
    "with recursive r as (select 1 as n union all select n + 1 from r) select count(*) from r",
];

fn took(began: Instant, most: u64, what: &str) {
    assert!(began.elapsed() < Duration::from_secs(most), "{what}: {:?}", began.elapsed());
}

#[test]
fn a_query_over_a_file_is_interrupted_once() {
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
fn a_client_that_goes_takes_its_query_along() {
    let node = Node::start(&["--table", &lineitem_table()]);
    for sql in HOURS {
        let mut client = Process::start(&["fetch", &node.uri, sql]);
        node.process.computes();
        // Others are answered meanwhile.
        node.serves();
        client.kill();
        // Less than a tenth of a processor, while another process starts and is answered.
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
fn a_node_that_computes_is_stopped() {
    for (place, sql) in HOURS.into_iter().enumerate().take(4) {
        let node = Node::start(&["--table", &lineitem_table()]);
        let client = Process::start(&["fetch", &node.uri, sql]);
        node.process.computes();
        let began = Instant::now();
        if place == 0 {
            // Twice: at once.
            node.process.signal("INT");
            node.process.says("stopping: running queries have 5 s to end");
            node.process.signal("TERM");
            node.process.end().fails(INTERRUPTED, &[]);
            took(began, 4, sql);
        } else {
            node.process.signal("TERM");
            node.process.end().succeeds();
            // As long as queries have to end.
            took(began, 9, sql);
        }
        client.end().fails(NETWORK, &[]);
    }
}

/// Text that once ended the process for everybody.
#[test]
fn a_statement_of_a_hundred_kilobytes_ends_nothing() {
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
