//! A cluster under faults: whatever happens to its nodes and their network, an answer is correct or an error.
//!
//! Nodes are processes, each behind a proxy whose address the other nodes use. A seed determines the
//! faults: nodes are killed, stopped, restarted or suspended; their network is cut, or silently drops
//! everything.
//! `LIGHTSHIP_RUNS=200 cargo test -p lightship-cli --test it nemesis -- --nocapture` runs more;
//! `LIGHTSHIP_SEED=N` replays one run.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use fastrand::Rng;
use lightship_testkit::loopback;
use lightship_testkit::proxy::Proxy;

use crate::support::*;

const NODES: usize = 3;
const ROWS: usize = 300;
const STEPS: usize = 12;
/// How long a client waits; it takes longer to notice that a node is silently cut off.
const CLIENT_PATIENCE: Duration = Duration::from_secs(2);
/// The default number of runs.
const RUNS: u64 = 3;

/// Queries that need all rows of all nodes, in different ways: an aggregate, a shuffle, rows.
const QUERIES: [&str; 3] = [
    "select count(*) as n, sum(v) as s from t",
    "select a.k % 7 as g, count(*) as n from t a join t b on a.k = b.k + 1 group by g order by g",
    "select k, v from t where k % 10 = 3 order by k",
];

struct Member {
    node: Option<Node>,
    proxy: Proxy,
    address: SocketAddr,
    is_suspended: bool,
    /// Whether its network carries nothing.
    is_cut: bool,
}

struct Cluster {
    folder: Folder,
    members: Vec<Member>,
    runtime: tokio::runtime::Runtime,
    /// What was done, shown if an answer is wrong.
    history: Vec<String>,
}

impl Member {
    fn is_well(&self) -> bool {
        self.node.is_some() && !self.is_suspended && !self.is_cut
    }
}

#[derive(Default)]
struct Counts {
    right: usize,
    refused: usize,
    unanswered: usize,
}

impl Cluster {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let folder = Folder::new();
        // Bind all at the same time, so that the ports differ.
        let host = loopback::own_host();
        let listeners = [(); NODES].map(|()| TcpListener::bind((host, 0)).expect("a port"));
        let members = listeners.into_iter().enumerate().map(|(number, listener)| {
            let rows =
                (0..ROWS).filter(|row| row % NODES == number).map(|row| format!("{row},{}\n", row * row));
            std::fs::create_dir_all(folder.file(&number.to_string())).expect("made");
            folder.write(&format!("{number}/t.csv"), format!("k,v\n{}", rows.collect::<String>()));
            let address = listener.local_addr().expect("bound");
            let proxy = runtime.block_on(Proxy::listen());
            proxy.lead_to(address);
            Member { node: None, proxy, address, is_suspended: false, is_cut: false }
        });
        let members = members.collect();
        let mut this = Self { folder, members, runtime, history: Vec::new() };
        this.until_all_answer();
        this
    }

    fn start_node(&mut self, number: usize) {
        let path = |name: &str| self.folder.arg(&format!("{name}{number}"));
        let (data, state) = (path(""), path("state-"));
        let (first, member) = (self.members[0].proxy.name.clone(), &mut self.members[number]);
        let listen = member.address.to_string();
        let mut words = vec!["--listen", &listen, "--advertise", &member.proxy.name, "--data", &data];
        words.extend(["--state-folder", &state, "--expect-nodes", "3"]);
        // The first node is started without --join.
        if number > 0 {
            words.extend(["--join", &first]);
        }
        member.node = Some(Node::start(&words));
    }

    /// Injects a fault into a random node, or ends its faults.
    fn disturb(&mut self, random: &mut Rng) {
        let number = random.usize(..NODES);
        if !self.members[number].is_well() {
            return self.heal(number);
        }
        let member = &mut self.members[number];
        let Some(node) = &mut member.node else { return };
        let what = match random.u8(..5) {
            0 => {
                node.process.kill();
                member.node = None;
                "killed"
            }
            1 => {
                node.process.signal("TERM");
                member.node.take().map(|node| node.process.end());
                "stopped"
            }
            2 => {
                node.process.signal("STOP");
                member.is_suspended = true;
                "suspended"
            }
            3 => {
                member.proxy.cut();
                member.is_cut = true;
                "cut"
            }
            _ => {
                member.proxy.silence();
                member.is_cut = true;
                "silent"
            }
        };
        self.history.push(format!("node {number} {what}"));
    }

    fn heal(&mut self, number: usize) {
        self.history.push(format!("node {number} healed"));
        let member = &mut self.members[number];
        member.proxy.open();
        if std::mem::take(&mut member.is_suspended)
            && let Some(node) = &member.node
        {
            node.process.signal("CONT");
        }
        member.is_cut = false;
        if member.node.is_none() {
            self.start_node(number);
        }
    }

    /// Sends a query to a random running node; panics at a wrong answer.
    fn ask(&mut self, random: &mut Rng, counts: &mut Counts) {
        let running: Vec<usize> = (0..NODES).filter(|n| self.members[*n].node.is_some()).collect();
        let Some(&number) = random.choice(&running) else { return };
        let query = random.usize(..QUERIES.len());
        let uri = format!("lightship://{}", self.members[number].address);
        let fetch = Process::start(&["fetch", "--quiet", "--format", "csv", &uri, QUERIES[query]]);
        let outcome = fetch.end_within(CLIENT_PATIENCE);
        self.history.push(format!("node {number} asked {query}: {:?}", outcome.code));
        match outcome.code {
            Some(0) => {
                assert_eq!(outcome.text(), expected(query), "after {:#?}", self.history);
                counts.right += 1;
            }
            // The node is suspended, or waits for a silent node.
            None => counts.unanswered += 1,
            Some(NETWORK) => counts.refused += 1,
            Some(_) => panic!("{outcome} after {:#?}", self.history),
        }
    }

    /// Ends all faults, and waits until all nodes answer correctly.
    fn until_all_answer(&mut self) {
        (0..NODES).for_each(|number| self.heal(number));
        for member in &self.members {
            let uri = format!("lightship://{}", member.address);
            for (query, sql) in QUERIES.iter().enumerate() {
                until("it answers again", || {
                    let outcome = lightship(&["fetch", "--quiet", "--format", "csv", &uri, sql]);
                    assert!(matches!(outcome.code, Some(0 | NETWORK)), "{outcome} after {:#?}", self.history);
                    if outcome.code == Some(0) {
                        assert_eq!(outcome.text(), expected(query), "after {:#?}", self.history);
                    }
                    outcome.code == Some(0)
                });
            }
        }
    }
}

/// The answer to a query, computed without a database.
fn expected(query: usize) -> String {
    let rows = 0..ROWS;
    match query {
        0 => format!("n,s\n{ROWS},{}\n", rows.map(|row| row * row).sum::<usize>()),
        1 => {
            let mut groups = [0; 7];
            (1..ROWS).for_each(|row| groups[row % 7] += 1);
            let lines = groups.iter().enumerate().map(|(group, count)| format!("{group},{count}\n"));
            format!("g,n\n{}", lines.collect::<String>())
        }
        _ => {
            let lines = rows.filter(|row| row % 10 == 3).map(|row| format!("{row},{}\n", row * row));
            format!("k,v\n{}", lines.collect::<String>())
        }
    }
}

fn run(seed: u64, counts: &mut Counts) {
    eprintln!("LIGHTSHIP_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let mut cluster = Cluster::start();
    for _ in 0..STEPS {
        cluster.disturb(&mut random);
        // Ask during the fault, and a little later.
        cluster.ask(&mut random, counts);
        cluster.ask(&mut random, counts);
    }
    cluster.until_all_answer();
    drop(cluster.members);
    cluster.runtime.shutdown_background();
}

#[test]
fn a_cluster_under_faults_never_gives_a_wrong_answer() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect("a number"));
    let mut counts = Counts::default();
    match number("LIGHTSHIP_SEED") {
        Some(seed) => run(seed, &mut counts),
        None => {
            (0..number("LIGHTSHIP_RUNS").unwrap_or(RUNS)).for_each(|_| run(fastrand::u64(..), &mut counts))
        }
    }
    let Counts { right, refused, unanswered } = counts;
    eprintln!(
        "{right} answers, all of them right; {refused} refused, {unanswered} without an answer in time"
    );
}
