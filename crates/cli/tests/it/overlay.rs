//! Overlays: the figures of topologies, simulations and runs, and the errors of impossible options.

use serde_json::Value;

use crate::support::*;

#[track_caller]
fn json(args: &[&str]) -> Value {
    let outcome = lightship(&[&["overlay"], args, &["--json"]].concat()).succeeds();
    assert_eq!(outcome.stderr, "");
    assert_eq!(outcome.text().lines().count(), 1, "{outcome}");
    serde_json::from_str(outcome.text()).expect("JSON on stdout")
}

#[track_caller]
fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

#[track_caller]
fn per_node(answer: &Value, key: &str) -> u64 {
    let nodes = answer["per_node"].as_array().expect("nodes");
    nodes.iter().map(|node| node[key].as_u64().expect("a count")).sum()
}

/// Checks the figures that every answer has.
#[track_caller]
fn adds_up(answer: &Value, nodes: u64, messages_per_node: u64) {
    assert_eq!(answer["messages"], nodes * messages_per_node);
    assert_eq!(per_node(answer, "sent"), nodes * messages_per_node);
    assert_eq!(per_node(answer, "received"), nodes * messages_per_node);
    assert_eq!(answer["forwards"], per_node(answer, "forwarded"));
    let forwards = number(answer, "/forwards") / number(answer, "/messages");
    assert!((number(answer, "/forwards_per_message") - forwards).abs() < 1e-9);
    assert!(number(answer, "/seconds") > 0.0);
    for node in answer["per_node"].as_array().expect("nodes") {
        assert!(number(node, "/seconds") <= number(answer, "/seconds"));
        assert!(number(node, "/latency/p50_seconds") <= number(node, "/latency/p99_seconds"));
    }
}

#[test]
fn show_prints_the_figures_of_a_topology() {
    for (args, degree, sockets, diameter, mean_hops) in [
        (["mesh", "60"].as_slice(), 59, 59, 1, 1.0),
        (&["ring", "8"], 2, 2, 4, 16.0 / 7.0),
        (&["hypercube", "64"], 6, 6, 6, 3.048),
        (&["torus", "60"], 4, 4, 8, 4.068),
        (&["torus", "60", "--degree", "6"], 6, 6, 5, 2.915),
        (&["tree", "60", "--degree", "12"], 12, 12, 4, 3.257),
        (&["binomial", "60"], 12, 12, 3, 2.034),
        (&["binomial", "60", "--base", "3"], 8, 8, 4, 2.508),
        (&["binomial", "60", "--degree", "8"], 8, 8, 4, 2.508),
        (&["kautz", "60", "--degree", "6", "--one-way"], 6, 12, 3, 2.260),
        (&["original", "60", "--degree", "6"], 6, 12, 5, 2.915),
        (&["circulant", "60", "--degree", "12"], 12, 12, 2, 1.797),
        (&["circulant", "60", "--offsets", "2,7,15,23,26,27"], 12, 12, 2, 1.797),
    ] {
        let shown = json(&[&["show", "--topology", args[0], "--nodes"], &args[1..]].concat());
        assert_eq!(shown["degree"], degree, "{shown}");
        assert!(shown["shape"]["topology"].is_string(), "{shown}");
        assert_eq!((&shown["sockets_max"], &shown["diameter"]), (&sockets.into(), &diameter.into()));
        assert!((number(&shown, "/mean_hops") - mean_hops).abs() < 1e-3, "{shown}");
        assert!((number(&shown, "/forwards_per_message") + 1.0 - mean_hops).abs() < 1e-3);
        assert!(number(&shown, "/moore_mean_hops") <= number(&shown, "/mean_hops") + 1e-9);
        assert!(number(&shown, "/edge_connectivity/at_least") >= 1.0);
    }
    let text = lightship(&["overlay", "show", "--topology", "ring", "--nodes", "8"]).succeeds();
    assert!(text.text().starts_with("ring of 8 nodes, used both ways\n"), "{text}");
}

#[test]
fn show_draws_a_topology() {
    let folder = Folder::new();
    let file = folder.arg("ring.svg");
    lightship(&["overlay", "show", "--topology", "ring", "--nodes", "12", "-o", &file]).succeeds();
    let svg = std::fs::read_to_string(&file).expect("a drawing");
    assert_eq!((svg.matches("<circle").count(), svg.matches("<line").count()), (12, 12));
    let nowhere = ["overlay", "show", "--topology", "ring", "--nodes", "12", "-o", "/nowhere/ring.svg"];
    lightship(&nowhere).fails(SOURCE, &["/nowhere/ring.svg"]);
    let mesh = ["overlay", "show", "--topology", "mesh", "--nodes", "1000", "-o", &folder.arg("mesh.svg")];
    lightship(&mesh).fails(LIMITS, &["999,000 links", "hint:"]);
}

#[test]
fn impossible_topologies_are_refused() {
    for (args, words) in [
        (
            &["hypercube", "6"] as &[&str],
            &["no hypercube of 6 nodes", "4 or 8", "hint: --nodes 8"] as &[&str],
        ),
        (&["hypercube", "60"], &["32 or 64", "--nodes 64"]),
        (&["hypercube", "8", "--degree", "4"], &["has 3 connections", "--topology circulant --degree 4"]),
        (&["ring", "8", "--degree", "3"], &["has 2 connections", "--topology circulant --degree 3"]),
        (&["torus", "59"], &["58 or 60", "hint: --nodes 60"]),
        (&["torus", "60", "--degree", "5"], &["2 connections for each", "hint: --degree 6"]),
        (&["tree", "60", "--degree", "1"], &["a parent and a child"]),
        (&["tree", "60"], &["--degree", "hint:"]),
        (&["binomial", "60", "--degree", "5"], &["with any base", "hint: --degree"]),
        (&["binomial", "60", "--base", "1"], &["base of a binomial graph must be"]),
        (&["binomial", "60", "--base", "2", "--degree", "12"], &["--base determines"]),
        (&["kautz", "60", "--degree", "60"], &["between 2 and 59"]),
        (&["original", "60", "--degree", "0"], &["between 1 and 59"]),
        (&["circulant", "61", "--degree", "5"], &["one of the two numbers must be even", "hint: --degree 4"]),
        (&["circulant", "60", "--degree", "60"], &["between 2 and 59"]),
        (&["circulant", "12", "--offsets", "2,4"], &["one node in 2", "hint:"]),
        (&["circulant", "12", "--offsets", "7"], &["between 1 and 6"]),
        (&["circulant", "12", "--offsets", "1", "--degree", "2"], &["--offsets determine"]),
        (&["ring", "12", "--offsets", "1"], &["only for circulants"]),
        (&["ring", "12", "--base", "2"], &["only for binomial graphs"]),
        (&["ring", "12", "--one-way"], &["for Kautz graphs"]),
        (&["ring", "1"], &["2 to 4096"]),
        (&["ring", "4097"], &["2 to 4096"]),
        (&["star", "12"], &["star", "mesh"]),
        (&["ring", "-3"], &["-3"]),
    ] {
        let args = [&["overlay", "show", "--topology", args[0], "--nodes"], &args[1..]].concat();
        lightship(&args).fails(USAGE, words);
    }
    // The error as JSON.
    let error = lightship(&["--json", "overlay", "show", "--topology", "hypercube", "--nodes", "6"]).json();
    assert_eq!(error["error"]["kind"], "usage");
    assert!(error["error"]["hint"].as_str().is_some_and(|hint| hint.starts_with("--nodes 8")), "{error}");
}

const SKEW: [&str; 2] = ["--skew", "2,7,10,4,11,6,15"];

/// Compares with the figures of docs/overlay.md.
#[test]
fn simulations_give_the_documented_figures() {
    let simulate = |args: &[&str]| {
        let answer = json(&[&["simulate", "--nodes", "60"], args].concat());
        assert_eq!((&answer["kind"], &answer["seed"]), (&"simulated".into(), &1.into()));
        number(&answer, "/forwards_per_message")
    };
    let original = ["--topology", "original", "--degree"];
    for (args, expected) in [
        ([&original[..], &["12"]].concat(), 1.05),
        ([&original[..], &["10"]].concat(), 1.15),
        (
            [&original[..], &["10", "--direct", "2", "--warm", "--messages-per-node", "5000"], &SKEW]
                .concat(),
            0.78,
        ),
    ] {
        let found = simulate(&args);
        assert!((found - expected).abs() < 0.01, "{args:?}: {found}, and not {expected}");
    }
    for (sockets, expected) in [("12", 0.53), ("24", 0.19)] {
        let args =
            ["--topology", "circulant", "--direct", "auto", "--policy", "predicted", "--degree", sockets];
        let found = simulate(&[&args[..], &SKEW].concat());
        assert!((found - expected).abs() < 0.01, "{sockets}: {found}, and not {expected}");
    }
}

#[test]
fn a_simulation_is_reproducible_and_written_in_every_format() {
    let folder = Folder::new();
    let (csv, plot) = (folder.arg("nodes.csv"), folder.arg("nodes.svg"));
    let args = ["simulate", "--topology", "circulant", "--nodes", "12", "--degree", "4", "--direct", "1"];
    let more = ["--messages-per-node", "50", "--message-bytes", "4KiB", "--seed", "7", "--accept", "3"];
    let skew = ["--skew", "20,30", "--policy", "local", "--csv", &csv, "--plot", &plot];
    let args = [&args[..], &more, &skew].concat();
    let answer = json(&args);
    adds_up(&answer, 12, 50);
    assert_eq!(answer["seed"], 7);
    assert_eq!(answer["topology"]["degree"], 4);
    assert_eq!(answer["parameters"]["policy"], "local");
    assert_eq!(answer["parameters"]["pool"]["accepted_max"], 3);
    assert_eq!(answer["parameters"]["traffic"]["message_bytes"], 4096);
    // 4 connections of the topology, 1 opened, 3 accepted.
    assert!(number(&answer, "/sockets_max") <= 8.0);
    assert_eq!(json(&args), answer, "the same seed, the same run");

    let text = std::fs::read_to_string(&csv).expect("a table");
    assert_eq!(text.lines().count(), 13);
    assert!(text.starts_with("node,sent,received,forwarded,sockets_max,p1_seconds,"), "{text}");
    assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("0,50,")), "{text}");
    assert!(std::fs::read_to_string(&plot).expect("a plot").starts_with("<svg "));

    let shown = lightship(&[&["overlay"], &args[..]].concat()).succeeds();
    for words in ["600 messages", "seed 7", "forwarded", "virtual time"] {
        assert!(shown.text().contains(words), "no `{words}` in {shown}");
    }
}

#[test]
fn direct_connections_are_reserved_only_for_skewed_traffic() {
    let split = |args: &[&str]| {
        let args =
            [&["simulate", "--nodes", "60", "--topology", "circulant", "--degree", "12"], args].concat();
        json(&[&args[..], &["--direct", "auto"]].concat())
    };
    let uniform = split(&[]);
    assert_eq!((&uniform["split"]["direct"], &uniform["reconnections"]), (&0.into(), &0.into()));
    let skewed = split(&SKEW);
    let direct = number(&skewed, "/split/direct");
    assert!(direct >= 1.0 && direct + number(&skewed, "/topology/degree") == 12.0, "{skewed}");
    assert!(number(&skewed, "/split/expected/forwards_per_message") > 0.0);
}

#[test]
fn impossible_simulations_are_refused() {
    for (args, words) in [
        (&["--direct", "auto"] as &[&str], &["sockets of a circulant", "hint:"] as &[&str]),
        (&["--skew", "50,60"], &["sum of the weights"]),
        (&["--skew", "1,2,3,4,5,6,7,8,9"], &["number of weights"]),
        (&["--skew", "x"], &["expected a percentage below 100"]),
        (&["--skew=-1"], &["expected a percentage below 100"]),
        (&["--messages-per-node", "0"], &["messages per node"]),
        (&["--message-bytes", "0"], &["message size in bytes"]),
        (&["--message-bytes", "200MB"], &["message size in bytes"]),
        (&["--period", "0s"], &["period"]),
        (&["--period", "5"], &["not a time"]),
        (&["--link-rate", "1B/s"], &["a link"]),
        (&["--queue", "0"], &["messages per queue"]),
        (&["--window", "0"], &["own messages"]),
        (&["--policy", "best"], &["best", "predicted"]),
        (&["--direct", "5000"], &["direct connections"]),
    ] {
        let run = ["overlay", "simulate", "--topology", "ring", "--nodes", "8"];
        lightship(&[&run, args].concat()).fails(USAGE, words);
    }
}

/// Runs with real sockets: every message arrives, with no more sockets than the topology has.
#[test]
fn runs_over_sockets_deliver_every_message() {
    for (args, sockets_max) in [
        (&["--topology", "circulant", "--nodes", "12", "--degree", "4"] as &[&str], 4),
        (&["--topology", "mesh", "--nodes", "8", "--queue", "1"], 7),
        (&["--topology", "kautz", "--nodes", "9", "--degree", "2", "--one-way"], 5),
        (&["--topology", "tree", "--nodes", "10", "--degree", "3", "--window", "1"], 3),
    ] {
        let run = ["run", "--messages-per-node", "60", "--message-bytes", "4KiB", "--seed", "3"];
        let answer = json(&[&run, args].concat());
        let nodes = number(&answer, "/topology/nodes") as u64;
        adds_up(&answer, nodes, 60);
        assert_eq!((&answer["kind"], &answer["seed"]), (&"measured".into(), &3.into()));
        let most = number(&answer, "/sockets_max");
        assert!(most >= 1.0 && most <= f64::from(sockets_max), "{answer}");
        // Messages have the same destinations and hops as in a simulation.
        let simulate = ["simulate", "--messages-per-node", "60", "--message-bytes", "4KiB", "--seed", "3"];
        let simulated = json(&[&simulate, args].concat());
        for key in ["/forwards", "/messages", "/pairs"] {
            assert_eq!(answer.pointer(key), simulated.pointer(key), "{key}");
        }
    }
}

#[test]
fn direct_connections_save_forwards() {
    let folder = Folder::new();
    let (csv, plot) = (folder.arg("nodes.csv"), folder.arg("nodes.svg"));
    let base = ["run", "--nodes", "10", "--messages-per-node", "300", "--message-bytes", "2KB"];
    let skew = ["--skew", "30,20", "--period", "5ms", "--accept", "2", "--direct", "1"];
    for policy in ["thesis", "local", "global", "predicted"] {
        let ring = ["--topology", "ring", "--policy", policy, "--warm", "--csv", &csv, "--plot", &plot];
        let answer = json(&[&base[..], &skew, &ring].concat());
        adds_up(&answer, 10, 300);
        assert_eq!(answer["parameters"]["policy"], policy);
        // 2 connections of the ring, 1 opened, 2 accepted.
        assert!(number(&answer, "/sockets_max") <= 5.0, "{answer}");
        // Without direct connections there are more forwards.
        let without = json(&[&base[..], &["--topology", "ring", "--skew", "30,20"]].concat());
        assert!(number(&answer, "/forwards") < number(&without, "/forwards"), "{policy}");
    }
    assert_eq!(std::fs::read_to_string(&csv).expect("a table").lines().count(), 11);
    assert!(std::fs::read_to_string(&plot).expect("a plot").starts_with("<svg "));
    let shown = lightship(&[&["overlay"], &base[..], &["--topology", "ring"]].concat()).succeeds();
    assert!(shown.text().contains("3,000 messages") && !shown.text().contains("virtual"), "{shown}");
}

#[test]
fn impossible_runs_are_refused() {
    for (code, args, words) in [
        (USAGE, &["--nodes", "300"] as &[&str], &["at most 256", "simulate"] as &[&str]),
        (USAGE, &["--message-bytes", "23"], &["must be at least 24"]),
        (USAGE, &["--messages-per-node", "0"], &["messages per node"]),
        (USAGE, &["--queue", "0"], &["--queue and --window must be at least 1"]),
        (USAGE, &["--window", "0"], &["--queue and --window must be at least 1"]),
        (USAGE, &["--timeout", "0s"], &["--timeout", "millisecond"]),
        (USAGE, &["--period", "0s"], &["--period", "millisecond"]),
        (USAGE, &["--direct", "auto"], &["sockets of a circulant"]),
        (LIMITS, &["--memory", "1MiB"], &["--memory allows", "hint:"]),
        (
            LIMITS,
            &["--messages-per-node", "100000", "--timeout", "1ms"],
            &["of 800,000 messages had arrived"],
        ),
    ] {
        let nodes = if args[0] == "--nodes" { &[] as &[&str] } else { &["--nodes", "8"] };
        lightship(&[&["overlay", "run", "--topology", "ring"], nodes, args].concat()).fails(code, words);
    }
}
