//! What is searched, in how many states.
//!
//! `LIGHTSHIP_SEARCH=deep` adds a crash and a loss of messages to each scenario; that takes minutes.

use super::{Mutation, Scenario, Search, Split};

/// A bucket splits; if that is abandoned, it tries again.
const AGAIN: Scenario = Scenario {
    name: "a split, and another try",
    nodes: [0, 1, 1, 0],
    first: &[(0, None)],
    splits: &[Split { origin: 0, median: 2, child: 1 }, Split { origin: 0, median: 2, child: 2 }],
    rows_max: [1, 1, 2, 1],
    crashes: 1,
    losses: 0,
};

/// The same with more failures, on the way of one split.
const FAILURES: Scenario = Scenario {
    name: "a split with many failures",
    nodes: [0, 1, 1, 0],
    first: &[(0, None)],
    splits: &[Split { origin: 0, median: 2, child: 1 }],
    rows_max: [1, 1, 3, 1],
    crashes: 3,
    losses: 1,
};

/// A bucket splits twice, and its child splits back to the first node: then both do at once.
const CHAIN: Scenario = Scenario {
    name: "splits in a row, and of both buckets at once",
    nodes: [0, 1, 1, 0],
    first: &[(0, None)],
    splits: &[
        Split { origin: 0, median: 2, child: 1 },
        Split { origin: 0, median: 1, child: 2 },
        Split { origin: 1, median: 3, child: 3 },
    ],
    rows_max: [1, 1, 1, 1],
    crashes: 0,
    losses: 0,
};

/// Two buckets of two nodes split to each other.
const CROSSED: Scenario = Scenario {
    name: "two splits in opposite directions",
    nodes: [0, 1, 1, 0],
    first: &[(0, Some(2)), (2, None)],
    splits: &[Split { origin: 0, median: 1, child: 2 }, Split { origin: 1, median: 3, child: 3 }],
    rows_max: [1, 1, 1, 1],
    crashes: 1,
    losses: 0,
};

/// A bucket splits within its node.
const LOCAL: Scenario = Scenario {
    name: "a split within a node",
    nodes: [0, 0, 0, 0],
    first: &[(0, None)],
    splits: &[Split { origin: 0, median: 2, child: 1 }, Split { origin: 1, median: 3, child: 2 }],
    rows_max: [1, 1, 1, 2],
    crashes: 1,
    losses: 0,
};

fn check(scenario: Scenario) {
    let deeper = u8::from(std::env::var("LIGHTSHIP_SEARCH").is_ok_and(|how| how == "deep"));
    let (crashes, losses) = (scenario.crashes + deeper, scenario.losses + deeper);
    let (name, start) = (scenario.name, std::time::Instant::now());
    match Search::new(Scenario { crashes, losses, ..scenario }, Mutation::None).run() {
        Ok(states) => eprintln!(
            "{name}, {crashes} crashes, {losses} losses of all messages: {states} states in {:.1} s",
            start.elapsed().as_secs_f64()
        ),
        Err(broken) => panic!("{name}: {broken}"),
    }
}

#[test]
fn a_split_is_repeated_in_every_order_of_events() {
    check(AGAIN);
}

#[test]
fn a_split_survives_many_failures() {
    check(FAILURES);
}

#[test]
fn splits_follow_each_other_in_every_order_of_events() {
    check(CHAIN);
}

#[test]
fn two_buckets_split_in_every_order_of_events() {
    check(CROSSED);
}

#[test]
fn a_bucket_splits_within_its_node_in_every_order_of_events() {
    check(LOCAL);
}

#[test]
fn the_search_finds_faults() {
    for (mutation, expected) in [
        (Mutation::CommitsEarly, "is lost"),
        (Mutation::ActiveWhenPrepared, "two owners"),
        (Mutation::DecidesEarly, "has no owner"),
        (Mutation::AnyOrder, "is lost"),
        (Mutation::ChecksOnArrival, "is lost"),
        (Mutation::ForgetsGiven, "has no owner"),
    ] {
        let broken = Search::new(FAILURES, mutation).run().expect_err("a fault");
        assert!(broken.contains(expected), "{mutation:?}: {broken}");
    }
}
