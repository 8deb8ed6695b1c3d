//! Shuffles over relays: every node sends messages to the others, direct connections follow the traffic, and every message
//! must arrive exactly once. All nodes are in this process, on one host or on several.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use lightship_overlay::simulate::NodeReport;
use lightship_overlay::{Direct, DirectPolicy, Histogram, Routes, Traffic, TrafficKnowledge, TrafficMatrix};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::{Config, Inbox, Message, Relay, RelayError, Security};

/// Header of a message: sender, receiver, number, time when it was offered.
pub const HEADER_BYTES: usize = 24;
const LOOKED_AT_EVERY: Duration = Duration::from_millis(100);

/// Why a shuffle failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShuffleError {
    /// A node failed.
    #[error("node {node}: {error}")]
    Node {
        /// Which node.
        node: usize,
        /// Why.
        error: RelayError,
    },
    /// A node can't listen.
    #[error("can't open a socket at {address}: {error}")]
    Socket {
        /// Where.
        address: IpAddr,
        /// Why.
        error: io::Error,
    },
    /// It can't be run.
    #[error("{0}")]
    Invalid(String),
    /// A message was lost, duplicated or damaged.
    #[error("{0}")]
    Messages(String),
    /// A task ended unexpectedly.
    #[error("a node's task: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Where a node runs.
#[derive(Debug, Clone)]
pub struct Site {
    /// The address at which it listens.
    pub address: IpAddr,
    /// Runs its connections, which belong to the network namespace of its threads.
    pub runtime: Handle,
}

impl Site {
    /// The loopback interface, and the runtime of the caller.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn loopback() -> Self {
        Self { address: Ipv4Addr::LOCALHOST.into(), runtime: Handle::current() }
    }
}

/// What is sent, and how much of it may wait.
#[derive(Debug, Clone)]
pub struct Load {
    /// The messages of all nodes.
    pub traffic: Traffic,
    /// How direct connections are assigned.
    pub pool: DirectPolicy,
    /// The traffic of an earlier run, by which direct connections are assigned before the start.
    pub last: Option<TrafficMatrix>,
    /// Messages that may wait at the receiving end of a connection, for each class of hops.
    pub queue_messages: usize,
    /// Messages of its own that a node may have queued.
    pub window_messages: usize,
    /// Time between two assignments of direct connections.
    pub period: Duration,
    /// Seed of destinations and of choices between equally good routes.
    pub seed: u64,
}

/// A shuffle over real sockets.
#[derive(Debug)]
pub struct Shuffle {
    routes: Arc<Routes>,
    load: Load,
    arrived: Arc<Arrived>,
}

/// The result of a shuffle.
#[derive(Debug, Clone)]
pub struct Shuffled {
    /// What each node did.
    pub per_node: Vec<NodeReport>,
    /// Direct connections at the end: the node that opened each, and its peer.
    pub direct: Vec<(u32, u32)>,
    /// Seconds until the last message arrived.
    pub seconds: f64,
    /// Pairs of nodes with a message from one to the other.
    pub pairs: usize,
    /// Direct connections opened after the start.
    pub reconnections: u64,
    /// Direct connections that were refused.
    pub refused: u64,
}

/// The messages that have arrived, of all nodes.
#[derive(Debug)]
struct Arrived {
    count: AtomicU64,
    messages: u64,
    /// One bit for each message, by sender.
    bits: Vec<Vec<AtomicU64>>,
    all: Notify,
}

impl Arrived {
    fn new(nodes: usize, messages_per_node: u64) -> Self {
        let words = messages_per_node.div_ceil(64);
        Self {
            count: AtomicU64::new(0),
            messages: messages_per_node * nodes as u64,
            bits: (0..nodes).map(|_| (0..words).map(|_| AtomicU64::new(0)).collect()).collect(),
            all: Notify::new(),
        }
    }

    /// Marks a message as arrived; `false` if it had arrived before, or was never sent.
    fn note(&self, from: usize, number: u64) -> bool {
        let word = usize::try_from(number / 64).ok().and_then(|word| self.bits.get(from)?.get(word));
        let bit = 1 << (number % 64);
        let is_new = word.is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0);
        if is_new && self.count.fetch_add(1, Ordering::AcqRel) + 1 == self.messages {
            self.all.notify_one();
        }
        is_new
    }

    fn missing(&self) -> u64 {
        let noted =
            self.bits.iter().flatten().map(|word| u64::from(word.load(Ordering::Acquire).count_ones()));
        self.messages - noted.sum::<u64>()
    }
}

impl Shuffle {
    /// A shuffle of `load` over these routes.
    pub fn new(routes: Routes, load: Load) -> Self {
        let nodes = routes.topology().nodes();
        let arrived = Arc::new(Arrived::new(nodes, load.traffic.messages_per_node));
        Self { routes: Arc::new(routes), load, arrived }
    }

    /// The messages of all nodes.
    pub fn messages(&self) -> u64 {
        self.arrived.messages
    }

    /// How many of them have arrived.
    pub fn arrived(&self) -> u64 {
        self.arrived.count.load(Ordering::Acquire)
    }

    /// Most bytes of messages that all nodes together can hold.
    pub fn memory_bytes_max(&self) -> u64 {
        let nodes = self.routes.topology().nodes();
        let pool = &self.load.pool;
        // A direct connection has a queue at its receiving end, or at both ends.
        let direct = pool.opened_max * if pool.both_ways { 2 } else { 1 };
        (0..nodes).map(|node| self.config(node, Vec::new()).memory_bytes_max(direct)).sum()
    }

    fn config(&self, node: usize, addresses: Vec<SocketAddr>) -> Config {
        let bytes = u32::try_from(self.load.traffic.message_bytes).unwrap_or(u32::MAX);
        Config {
            queue_messages: self.load.queue_messages,
            window_messages: self.load.window_messages,
            accepted_max: self.load.pool.accepted_max,
            direct_both_ways: self.load.pool.both_ways,
            seed: self.load.seed,
            // Other hosts can be reached only if the caller has given their addresses.
            security: Security { insecure: true, ..Security::default() },
            ..Config::new(node as u32, addresses, Arc::clone(&self.routes), bytes)
        }
    }

    /// Runs the shuffle to its end, with each node at its site. `told` is called with the messages that have arrived.
    ///
    /// # Errors
    /// If there are fewer sites than nodes, messages are smaller than their header, it ran before, a node fails, or a
    /// message was lost, duplicated or damaged.
    pub async fn run(&self, sites: &[Site], told: impl Fn(u64)) -> Result<Shuffled, ShuffleError> {
        let invalid = |why: &str| Err(ShuffleError::Invalid(why.to_owned()));
        if self.load.traffic.message_bytes < HEADER_BYTES as u64 {
            return invalid("messages are smaller than their header");
        }
        if self.load.period.is_zero() {
            return invalid("there is no time between two assignments of direct connections");
        }
        if self.arrived() > 0 {
            return invalid("it ran before");
        }
        let (relays, inboxes) = self.start(sites).await?;
        let relays = Arc::new(relays);
        let mut assignment = Assignment::new(self);
        assignment.begin(&relays).await;
        let began = Instant::now();
        let mut receivers = JoinSet::new();
        for (node, inbox) in inboxes.into_iter().enumerate() {
            let bytes = self.load.traffic.message_bytes as usize;
            receivers.spawn(receive(node, inbox, bytes, Arc::clone(&self.arrived), began));
        }
        let mut senders = JoinSet::new();
        let traffic = Arc::new(self.load.traffic.clone());
        for node in 0..relays.len() {
            let (relays, traffic, seed) = (Arc::clone(&relays), Arc::clone(&traffic), self.load.seed);
            senders.spawn(async move { send(node, &relays, &traffic, seed, began).await });
        }
        let period = self.load.period;
        let mut looked_at = tokio::time::interval(LOOKED_AT_EVERY);
        let mut assigned = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        assigned.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut sent_seconds = vec![0.0_f64; relays.len()];
        loop {
            tokio::select! {
                () = self.arrived.all.notified() => break,
                Some(done) = senders.join_next() => {
                    let (node, seconds) = done??;
                    sent_seconds[node] = seconds;
                }
                // Before the nodes are closed, a receiver ends only with an error.
                Some(done) = receivers.join_next() => drop(done??),
                _ = looked_at.tick() => told(self.arrived()),
                _ = assigned.tick(), if self.load.pool.opened_max > 0 => assignment.again(&relays),
            }
        }
        while let Some(done) = senders.join_next().await {
            let (node, seconds) = done??;
            sent_seconds[node] = seconds;
        }
        let direct = opened(&relays).into_iter().collect();
        close(&relays).await?;
        let mut received = Vec::new();
        while let Some(done) = receivers.join_next().await {
            received.push(done??);
        }
        received.sort_by_key(|received| received.node);
        self.check(&relays, &received)?;
        Ok(report(&relays, &assignment, &sent_seconds, received, direct))
    }

    async fn start(&self, sites: &[Site]) -> Result<(Vec<Relay>, Vec<Inbox>), ShuffleError> {
        let nodes = self.routes.topology().nodes();
        let Some(sites) = sites.get(..nodes) else {
            return Err(ShuffleError::Invalid(format!("{} sites for {nodes} nodes", sites.len())));
        };
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for site in sites {
            let address = site.address;
            let failed = |error| ShuffleError::Socket { address, error };
            let bound = site.runtime.spawn(TcpListener::bind((address, 0))).await?;
            let listener = bound.map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        let mut starting = JoinSet::new();
        for (node, (listener, site)) in listeners.into_iter().zip(sites).enumerate() {
            let config = self.config(node, addresses.clone());
            let start = async move { (node, Relay::start(listener, config).await) };
            starting.spawn_on(start, &site.runtime);
        }
        let mut started = Vec::new();
        while let Some(done) = starting.join_next().await {
            let (node, done) = done?;
            started.push((node, done.map_err(|error| ShuffleError::Node { node, error })?));
        }
        started.sort_by_key(|(node, _)| *node);
        Ok(started.into_iter().map(|(_, started)| started).unzip())
    }

    /// Checks that no message was lost, and that the forwards of nodes match the hops of messages.
    fn check(&self, relays: &[Relay], received: &[Received]) -> Result<(), ShuffleError> {
        let missing = self.arrived.missing();
        let hops: u64 = received.iter().map(|received| received.forwards).sum();
        let forwards: u64 = relays.iter().map(|relay| relay.stats().counts.forwarded).sum();
        if missing > 0 {
            return Err(ShuffleError::Messages(format!("{missing} messages were lost")));
        }
        if hops != forwards {
            return Err(ShuffleError::Messages(format!(
                "nodes forwarded {forwards} messages, but messages were forwarded {hops} times"
            )));
        }
        Ok(())
    }
}

fn report(
    relays: &[Relay],
    assignment: &Assignment,
    sent_seconds: &[f64],
    received: Vec<Received>,
    direct: Vec<(u32, u32)>,
) -> Shuffled {
    let pairs = received.iter().map(|received| received.senders.len()).sum();
    let seconds = received.iter().map(|received| received.seconds).fold(0.0, f64::max);
    let stats: Vec<_> = relays.iter().map(Relay::stats).collect();
    let nodes = received.into_iter().zip(&stats).zip(sent_seconds);
    let per_node = nodes.map(|((received, stats), sent_seconds)| NodeReport {
        sent: stats.counts.sent,
        received: stats.counts.received,
        forwarded: stats.counts.forwarded,
        sockets_max: stats.connections_max,
        seconds: received.seconds.max(sent_seconds.min(seconds)),
        latency: received.latency.percentiles(),
    });
    Shuffled {
        per_node: per_node.collect(),
        direct,
        seconds,
        pairs,
        reconnections: opened_count(relays) - assignment.first,
        refused: stats.iter().map(|stats| stats.refused).sum(),
    }
}

/// Sends a node's messages. Returns the node and the time when it was done.
async fn send(
    node: usize,
    relays: &[Relay],
    traffic: &Traffic,
    seed: u64,
    began: Instant,
) -> Result<(usize, f64), ShuffleError> {
    let bytes = traffic.message_bytes as usize;
    for (to, number) in traffic.destinations(node, relays.len(), seed).zip(0_u64..) {
        let mut message = vec![0; bytes];
        let offered_ns = began.elapsed().as_nanos() as u64;
        message[..4].copy_from_slice(&(node as u32).to_le_bytes());
        message[4..8].copy_from_slice(&(to as u32).to_le_bytes());
        message[8..16].copy_from_slice(&number.to_le_bytes());
        message[16..HEADER_BYTES].copy_from_slice(&offered_ns.to_le_bytes());
        relays[node]
            .send(to as u32, Bytes::from(message))
            .await
            .map_err(|error| ShuffleError::Node { node, error })?;
    }
    Ok((node, began.elapsed().as_secs_f64()))
}

/// What a node received.
struct Received {
    node: usize,
    latency: Histogram,
    forwards: u64,
    senders: BTreeSet<u32>,
    seconds: f64,
}

/// Receives until the node is closed.
async fn receive(
    node: usize,
    mut inbox: Inbox,
    bytes: usize,
    arrived: Arc<Arrived>,
    began: Instant,
) -> Result<Received, ShuffleError> {
    let mut received =
        Received { node, latency: Histogram::default(), forwards: 0, senders: BTreeSet::new(), seconds: 0.0 };
    while let Some(message) = inbox.recv().await.map_err(|error| ShuffleError::Node { node, error })? {
        let now = began.elapsed();
        let Some((number, offered_ns)) = read(node, bytes, &message) else {
            let text = format!("node {node} received a message that node {} did not send", message.from);
            return Err(ShuffleError::Messages(text));
        };
        received.latency.add((now.as_nanos() as u64).saturating_sub(offered_ns));
        received.forwards += message.hops as u64 - 1;
        received.senders.insert(message.from);
        received.seconds = now.as_secs_f64();
        if !arrived.note(message.from as usize, number) {
            let text = format!("node {node} received message {number} of node {} twice", message.from);
            return Err(ShuffleError::Messages(text));
        }
    }
    Ok(received)
}

/// The number of a message and when it was offered; `None` if it is not a message sent to this node.
fn read(node: usize, bytes: usize, message: &Message) -> Option<(u64, u64)> {
    let number = |from: usize, to: usize| {
        let bytes = message.bytes.get(from..to)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let is_ours = message.bytes.len() == bytes
        && number(0, 4)? == u64::from(message.from)
        && number(4, 8)? == node as u64
        && message.bytes[HEADER_BYTES..].iter().rev().take(8).all(|byte| *byte == 0);
    Some((number(8, 16)?, number(16, 24)?)).filter(|_| is_ours)
}

/// Assigns direct connections by the traffic, according to the policy.
struct Assignment {
    routes: Arc<Routes>,
    pool: DirectPolicy,
    /// Recent traffic; older traffic counts less.
    recent: TrafficMatrix,
    warm: bool,
    /// Connections that were opened before the start.
    first: u64,
    rng: Rng,
}

impl Assignment {
    fn new(shuffle: &Shuffle) -> Self {
        let (nodes, load) = (shuffle.routes.topology().nodes(), &shuffle.load);
        Self {
            routes: Arc::clone(&shuffle.routes),
            pool: load.pool.clone(),
            recent: load.last.clone().unwrap_or_else(|| TrafficMatrix::new(nodes)),
            warm: load.last.is_some(),
            first: 0,
            rng: Rng::with_seed(load.seed),
        }
    }

    async fn begin(&mut self, relays: &[Relay]) {
        if self.warm && self.pool.opened_max > 0 {
            self.assign(relays);
            for relay in relays {
                relay.direct_settled().await;
            }
            self.first = opened_count(relays);
        }
    }

    /// Assigns again after a period.
    fn again(&mut self, relays: &[Relay]) {
        for (node, relay) in relays.iter().enumerate() {
            for (to, bytes) in relay.take_demand() {
                self.recent.add(node, to as usize, bytes as f64);
            }
        }
        self.assign(relays);
        self.recent.fade(self.pool.memory);
    }

    fn assign(&mut self, relays: &[Relay]) {
        let now = opened(relays);
        let most = self.pool.opened_max;
        match self.pool.knowledge {
            TrafficKnowledge::Global => {
                let direct = self.pool.assign(&self.routes, &self.recent, &now, &mut self.rng);
                for (node, relay) in (0..).zip(relays) {
                    let peers = direct.range((node, 0)..=(node, u32::MAX)).map(|(_, to)| *to).collect();
                    relay.set_direct(peers, most);
                }
            }
            // Each node chooses by its own traffic, and accepts peers in the order in which they ask.
            TrafficKnowledge::Local => {
                for (node, relay) in (0..).zip(relays) {
                    let mine: Vec<_> = now.range((node, 0)..=(node, u32::MAX)).map(|(_, to)| *to).collect();
                    let sent = self.recent.of(node as usize);
                    let peers = self.pool.preferred(&self.routes, node, &sent, &mine, &mut self.rng);
                    relay.set_direct(peers, most);
                }
            }
        }
    }
}

/// Number of direct connections opened so far.
fn opened_count(relays: &[Relay]) -> u64 {
    relays.iter().map(|relay| relay.stats().opened).sum()
}

/// Direct connections: the node that opened each, and its peer.
fn opened(relays: &[Relay]) -> Direct {
    let of = |(node, relay): (u32, &Relay)| relay.direct().into_iter().map(move |to| (node, to));
    (0..).zip(relays).flat_map(of).collect()
}

/// Closes all nodes at the same time, because each waits for its neighbours.
async fn close(relays: &Arc<Vec<Relay>>) -> Result<(), ShuffleError> {
    let mut closing = JoinSet::new();
    for node in 0..relays.len() {
        let relays = Arc::clone(relays);
        closing.spawn(async move {
            relays[node].close().await.map_err(|error| ShuffleError::Node { node, error })
        });
    }
    while let Some(done) = closing.join_next().await {
        done??;
    }
    Ok(())
}
