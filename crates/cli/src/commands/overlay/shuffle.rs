//! Runs all nodes of a shuffle in one process: sends and receives messages, assigns direct connections,
//! and checks that every message arrived exactly once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use lightship::ErrorKind;
use lightship_overlay::simulate::NodeReport;
use lightship_overlay::{Direct, DirectPolicy, Histogram, Routes, Traffic, TrafficKnowledge, TrafficMatrix};
use lightship_relay::{Config, Inbox, Message, Relay, RelayError};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::load::ShuffleInput;
use crate::error::CliError;
use crate::progress::Count;
use crate::size::{Seconds, grouped};

/// Header of a message: sender, receiver, number, time when it was offered.
pub(super) const HEADER_BYTES: usize = 24;
const LOOKED_AT_EVERY: Duration = Duration::from_millis(100);

/// A shuffle over real sockets.
pub(super) struct Shuffle {
    routes: Arc<Routes>,
    traffic: Arc<Traffic>,
    pool: DirectPolicy,
    queue_messages: usize,
    window_messages: usize,
    period: Duration,
    seed: u64,
    arrived: Arc<Arrived>,
}

/// The result of a shuffle.
pub(super) struct Done {
    pub(super) per_node: Vec<NodeReport>,
    pub(super) direct: Vec<(u32, u32)>,
    pub(super) seconds: f64,
    pub(super) pairs: usize,
    pub(super) reconnections: u64,
    pub(super) refused: u64,
}

/// The messages that have arrived, of all nodes.
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
    pub(super) fn new(
        routes: Routes,
        load: &ShuffleInput,
        queue_messages: usize,
        window_messages: usize,
        period: Duration,
        seed: u64,
    ) -> Self {
        let nodes = routes.topology().nodes();
        let arrived = Arc::new(Arrived::new(nodes, load.traffic.messages_per_node));
        Self {
            routes: Arc::new(routes),
            traffic: Arc::new(load.traffic.clone()),
            pool: load.pool.clone(),
            queue_messages,
            window_messages,
            period,
            seed,
            arrived,
        }
    }

    pub(super) fn messages(&self) -> u64 {
        self.arrived.messages
    }

    /// Most bytes of messages that all nodes together can hold.
    pub(super) fn memory_bytes_max(&self) -> u64 {
        let nodes = self.routes.topology().nodes();
        // A direct connection has a queue at its receiving end, or at both ends.
        let direct = self.pool.opened_max * if self.pool.both_ways { 2 } else { 1 };
        (0..nodes).map(|node| self.config(node, Vec::new()).memory_bytes_max(direct)).sum()
    }

    /// The error for a run that took too long.
    pub(super) fn unfinished(&self, limit: Seconds) -> CliError {
        let arrived = self.arrived.count.load(Ordering::Acquire);
        CliError::new(
            ErrorKind::Limits,
            format!(
                "after {limit}, {} of {} messages had arrived",
                grouped(arrived),
                grouped(self.messages())
            ),
        )
        .hint("allow more time with --timeout")
    }

    fn config(&self, node: usize, addresses: Vec<std::net::SocketAddr>) -> Config {
        let bytes = u32::try_from(self.traffic.message_bytes).unwrap_or(u32::MAX);
        Config {
            queue_messages: self.queue_messages,
            window_messages: self.window_messages,
            accepted_max: self.pool.accepted_max,
            direct_both_ways: self.pool.both_ways,
            seed: self.seed,
            ..Config::new(node as u32, addresses, Arc::clone(&self.routes), bytes)
        }
    }

    /// Runs the shuffle to its end.
    ///
    /// # Errors
    /// If a node fails, or a message was lost, duplicated or damaged.
    pub(super) async fn run(&self, load: &ShuffleInput, quiet: bool) -> Result<Done, CliError> {
        let (relays, inboxes) = self.start().await?;
        let relays = Arc::new(relays);
        let mut assignment = Assignment::new(self, load);
        assignment.begin(&relays).await;
        let began = Instant::now();
        let mut receivers = JoinSet::new();
        for (node, inbox) in inboxes.into_iter().enumerate() {
            let bytes = self.traffic.message_bytes as usize;
            receivers.spawn(receive(node, inbox, bytes, Arc::clone(&self.arrived), began));
        }
        let mut senders = JoinSet::new();
        for node in 0..relays.len() {
            let (relays, traffic, seed) = (Arc::clone(&relays), Arc::clone(&self.traffic), self.seed);
            senders.spawn(async move { send(node, &relays, &traffic, seed, began).await });
        }
        let progress = Count::new(self.messages(), "messages", quiet);
        let mut looked_at = tokio::time::interval(LOOKED_AT_EVERY);
        let mut assigned = tokio::time::interval_at(tokio::time::Instant::now() + self.period, self.period);
        assigned.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut sent_seconds = vec![0.0_f64; relays.len()];
        loop {
            tokio::select! {
                () = self.arrived.all.notified() => break,
                Some(done) = senders.join_next() => {
                    let (node, seconds) = joined(done)??;
                    sent_seconds[node] = seconds;
                }
                // Before the nodes are closed, a receiver ends only with an error.
                Some(done) = receivers.join_next() => drop(joined(done)??),
                _ = looked_at.tick() => progress.set(self.arrived.count.load(Ordering::Relaxed)),
                _ = assigned.tick(), if self.pool.opened_max > 0 => assignment.again(&relays),
            }
        }
        drop(progress);
        while let Some(done) = senders.join_next().await {
            let (node, seconds) = joined(done)??;
            sent_seconds[node] = seconds;
        }
        let direct = opened(&relays).into_iter().collect();
        close(&relays).await?;
        let mut received = Vec::new();
        while let Some(done) = receivers.join_next().await {
            received.push(joined(done)??);
        }
        received.sort_by_key(|received| received.node);
        self.check(&relays, &received)?;
        Ok(self.report(&relays, &assignment, &sent_seconds, received, direct))
    }

    async fn start(&self) -> Result<(Vec<Relay>, Vec<Inbox>), CliError> {
        let nodes = self.routes.topology().nodes();
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for _ in 0..nodes {
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| socket(&e))?;
            addresses.push(listener.local_addr().map_err(|e| socket(&e))?);
            listeners.push(listener);
        }
        let mut starting = JoinSet::new();
        for (node, listener) in listeners.into_iter().enumerate() {
            let config = self.config(node, addresses.clone());
            starting.spawn(async move { (node, Relay::start(listener, config).await) });
        }
        let mut started = Vec::new();
        while let Some(done) = starting.join_next().await {
            let (node, done) = joined(done)?;
            started.push((node, done.map_err(|e| failed(node, &e))?));
        }
        started.sort_by_key(|(node, _)| *node);
        Ok(started.into_iter().map(|(_, started)| started).unzip())
    }

    /// Checks that no message was lost, and that the forwards of nodes match the hops of messages.
    fn check(&self, relays: &[Relay], received: &[Received]) -> Result<(), CliError> {
        let missing = self.arrived.missing();
        let hops: u64 = received.iter().map(|received| received.forwards).sum();
        let forwards: u64 = relays.iter().map(|relay| relay.stats().counts.forwarded).sum();
        if missing > 0 {
            return Err(CliError::new(ErrorKind::Data, format!("{} messages were lost", grouped(missing))));
        }
        if hops != forwards {
            return Err(CliError::new(
                ErrorKind::Data,
                format!("nodes forwarded {forwards} messages, but messages were forwarded {hops} times"),
            ));
        }
        Ok(())
    }

    fn report(
        &self,
        relays: &[Relay],
        assignment: &Assignment,
        sent_seconds: &[f64],
        received: Vec<Received>,
        direct: Vec<(u32, u32)>,
    ) -> Done {
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
        Done {
            per_node: per_node.collect(),
            direct,
            seconds,
            pairs,
            reconnections: opened_count(relays) - assignment.first,
            refused: stats.iter().map(|stats| stats.refused).sum(),
        }
    }
}

/// Sends a node's messages. Returns the node and the time when it was done.
async fn send(
    node: usize,
    relays: &[Relay],
    traffic: &Traffic,
    seed: u64,
    began: Instant,
) -> Result<(usize, f64), CliError> {
    let bytes = traffic.message_bytes as usize;
    for (to, number) in traffic.destinations(node, relays.len(), seed).zip(0_u64..) {
        let mut message = vec![0; bytes];
        let offered_ns = began.elapsed().as_nanos() as u64;
        message[..4].copy_from_slice(&(node as u32).to_le_bytes());
        message[4..8].copy_from_slice(&(to as u32).to_le_bytes());
        message[8..16].copy_from_slice(&number.to_le_bytes());
        message[16..HEADER_BYTES].copy_from_slice(&offered_ns.to_le_bytes());
        relays[node].send(to as u32, Bytes::from(message)).await.map_err(|e| failed(node, &e))?;
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
) -> Result<Received, CliError> {
    let mut received =
        Received { node, latency: Histogram::default(), forwards: 0, senders: BTreeSet::new(), seconds: 0.0 };
    while let Some(message) = inbox.recv().await.map_err(|e| failed(node, &e))? {
        let now = began.elapsed();
        let Some((number, offered_ns)) = read(node, bytes, &message) else {
            let text = format!("node {node} received a message that node {} did not send", message.from);
            return Err(CliError::new(ErrorKind::Data, text));
        };
        received.latency.add((now.as_nanos() as u64).saturating_sub(offered_ns));
        received.forwards += message.hops as u64 - 1;
        received.senders.insert(message.from);
        received.seconds = now.as_secs_f64();
        if !arrived.note(message.from as usize, number) {
            let text = format!("node {node} received message {number} of node {} twice", message.from);
            return Err(CliError::new(ErrorKind::Data, text));
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
    fn new(shuffle: &Shuffle, load: &ShuffleInput) -> Self {
        let nodes = shuffle.routes.topology().nodes();
        Self {
            routes: Arc::clone(&shuffle.routes),
            pool: shuffle.pool.clone(),
            recent: load.last.clone().unwrap_or_else(|| TrafficMatrix::new(nodes)),
            warm: load.last.is_some(),
            first: 0,
            rng: Rng::with_seed(shuffle.seed),
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
async fn close(relays: &Arc<Vec<Relay>>) -> Result<(), CliError> {
    let mut closing = JoinSet::new();
    for node in 0..relays.len() {
        let relays = Arc::clone(relays);
        closing.spawn(async move { relays[node].close().await.map_err(|e| failed(node, &e)) });
    }
    while let Some(done) = closing.join_next().await {
        joined(done)??;
    }
    Ok(())
}

fn joined<T>(done: Result<T, tokio::task::JoinError>) -> Result<T, CliError> {
    done.map_err(|e| CliError::internal(format!("a node's task: {e}")))
}

fn failed(node: usize, error: &RelayError) -> CliError {
    CliError::new(ErrorKind::Network, format!("node {node}: {error}"))
}

fn socket(error: &std::io::Error) -> CliError {
    CliError::new(ErrorKind::Network, format!("can't open a socket on the loopback interface: {error}"))
}
