//! A network that loses, delays and doubles requests, cuts answers off, falls silent, and has partitions. It writes
//! down what each write did at the node that got it.
//!
//! The faults of the n-th request from one place to another are those of the seed, whatever else happens.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::Int64Array;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use futures::{FutureExt, TryStreamExt};
use lightship_testkit::linear::{Action, Event, Row};
use lightship_transport::net::{Answer, Caller, blob};
use lightship_wire::control::{ErrorCode, Failure};
use prost::Message;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::histories::KEYS;
use super::together::Answered;
use super::{pairs, write_in};
use crate::definition::Definition;
use crate::error::Result;
use crate::group::Grouped;
use crate::key::Interval;
use crate::network::{Network, Reply};
use crate::node::Node;
use crate::request::{Request, RequestKind, WriteMode};

/// A node while it runs.
#[derive(Clone)]
struct Running {
    node: Node,
    /// Sends when it crashes.
    alive: watch::Receiver<bool>,
}

/// What happens to a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// It does not arrive.
    Lost,
    /// It arrives long after the sender has given up.
    Late(Duration),
    /// It arrives twice.
    Double(Duration),
    /// Its answer does not arrive.
    AnswerLost,
    /// Its answer ends after this many rows.
    AnswerCut(usize),
    /// Nothing is heard of it for so long; then the connection is lost.
    Silent(Duration),
}

/// What becomes of requests and answers between two places that can't reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    /// They fail at once.
    Fails,
    /// They wait until the places can reach each other, or the connection is lost.
    Silent,
}

/// After so long without a packet, a connection is lost.
const CONNECTION_LOST: Duration = Duration::from_secs(30);
/// In the place of a name: every place.
const ANYWHERE: &str = "";

pub(super) struct Simulated {
    seed: u64,
    definition: Definition,
    nodes: Mutex<BTreeMap<String, Option<Running>>>,
    /// From where to where nothing goes.
    breaks: watch::Sender<BTreeMap<(String, String), Break>>,
    counts: Mutex<HashMap<(String, String), u64>>,
    is_calm: AtomicBool,
    /// Whether nodes hear of the splits of others.
    is_announced: AtomicBool,
    /// Moments, in their order.
    clock: AtomicU64,
    /// Parts that were covered by answers for many buckets, as far as these arrived.
    grouped: AtomicU64,
    events: Mutex<Vec<(i64, Event)>>,
    /// Answers of buckets to clients that scan, as far as these have read them.
    answers: Mutex<Vec<Answered>>,
    texts: Mutex<HashMap<String, Row>>,
    /// Answers that no node may give: of damage, of an old copy of a disk, or of a task that has panicked.
    broken: Mutex<Vec<String>>,
}

impl Simulated {
    pub(super) fn new(seed: u64, definition: Definition, nodes: &[String]) -> Arc<Self> {
        Arc::new(Self {
            seed,
            definition,
            nodes: Mutex::new(nodes.iter().map(|node| (node.clone(), None)).collect()),
            breaks: watch::Sender::default(),
            counts: Mutex::default(),
            is_calm: AtomicBool::new(true),
            is_announced: AtomicBool::new(true),
            clock: AtomicU64::new(1),
            grouped: AtomicU64::new(0),
            events: Mutex::default(),
            answers: Mutex::default(),
            texts: Mutex::default(),
            broken: Mutex::default(),
        })
    }

    pub(super) fn definition(&self) -> &Definition {
        &self.definition
    }

    /// The network as seen from a place, until `alive` is false: then nothing comes back.
    pub(super) fn from(self: &Arc<Self>, place: &str, alive: watch::Receiver<bool>) -> Arc<dyn Network> {
        Arc::new(Place { name: place.to_owned(), network: self.clone(), alive })
    }

    pub(super) fn connect(&self, name: &str, node: Node, alive: watch::Receiver<bool>) {
        self.nodes.lock().unwrap().insert(name.to_owned(), Some(Running { node, alive }));
    }

    pub(super) fn disconnect(&self, name: &str) {
        self.nodes.lock().unwrap().insert(name.to_owned(), None);
    }

    /// A node is no longer in the cluster.
    pub(super) fn remove(&self, name: &str) {
        self.nodes.lock().unwrap().remove(name);
    }

    pub(super) fn nodes(&self) -> Vec<Node> {
        self.nodes.lock().unwrap().values().flatten().map(|running| running.node.clone()).collect()
    }

    pub(super) fn part(&self, a: &str, b: &str, how: Break) {
        self.breaks.send_modify(|breaks| {
            breaks.insert((a.to_owned(), b.to_owned()), how);
        });
    }

    /// A node is stopped, and its connections stay open: it sends nothing, and takes nothing in.
    pub(super) fn silence(&self, node: &str) {
        self.part(node, ANYWHERE, Break::Silent);
    }

    pub(super) fn heal(&self) {
        self.breaks.send_modify(BTreeMap::clear);
    }

    /// How many requests a place has sent.
    pub(super) fn sent(&self, from: &str) -> u64 {
        let counts = self.counts.lock().unwrap();
        counts.iter().filter(|((place, _), _)| place == from).map(|(_, count)| count).sum()
    }

    /// Whether there are no faults.
    pub(super) fn set_calm(&self, is_calm: bool) {
        self.is_calm.store(is_calm, Ordering::Relaxed);
    }

    /// Whether nodes hear of the splits of others.
    pub(super) fn set_announced(&self, is_announced: bool) {
        self.is_announced.store(is_announced, Ordering::Relaxed);
    }

    pub(super) fn grouped(&self) -> u64 {
        self.grouped.load(Ordering::Relaxed)
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn record(&self, key: i64, event: Event) {
        self.events.lock().unwrap().push((key, event));
    }

    pub(super) fn events(&self) -> Vec<(i64, Event)> {
        self.events.lock().unwrap().clone()
    }

    pub(super) fn answers(&self) -> Vec<Answered> {
        self.answers.lock().unwrap().clone()
    }

    pub(super) fn broken(&self) -> Vec<String> {
        self.broken.lock().unwrap().clone()
    }

    /// The number of a row's text.
    pub(super) fn row(&self, text: &str) -> Row {
        let mut texts = self.texts.lock().unwrap();
        let next = texts.len() as Row;
        *texts.entry(text.to_owned()).or_insert(next)
    }

    /// Returns whether something gets from one place to another, as soon as that is decided.
    async fn passes(&self, from: &str, to: &str) -> bool {
        let between = |breaks: &BTreeMap<(String, String), Break>| {
            let all = [(from, to), (to, from), (from, ANYWHERE), (to, ANYWHERE)];
            all.iter().find_map(|(a, b)| breaks.get(&((*a).to_owned(), (*b).to_owned())).copied())
        };
        let mut breaks = self.breaks.subscribe();
        let decided = breaks.wait_for(|breaks| between(breaks) != Some(Break::Silent));
        match timeout(CONNECTION_LOST, decided).await {
            Ok(Ok(breaks)) => between(&breaks).is_none(),
            _ => false,
        }
    }

    /// How long a request and its answer take, and what happens to it.
    fn draw(&self, from: &str, to: &str) -> (Duration, Duration, Fault) {
        let mut counts = self.counts.lock().unwrap();
        let count = counts.entry((from.to_owned(), to.to_owned())).or_default();
        *count += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, from, to, *count).hash(&mut hasher);
        let mut random = fastrand::Rng::with_seed(hasher.finish());
        if self.is_calm.load(Ordering::Relaxed) {
            return (Duration::from_micros(200), Duration::from_micros(200), Fault::None);
        }
        let mut delay = || {
            Duration::from_micros(match random.u32(0..1000) {
                // Longer than a node holds writes back.
                0..3 => random.u64(5_000_000..15_000_000),
                3..50 => random.u64(3_000..500_000),
                _ => random.u64(50..3_000),
            })
        };
        let delays = (delay(), delay());
        let late = Duration::from_millis(random.u64(0..20_000));
        let fault = match random.u32(0..100) {
            0..2 => Fault::Lost,
            2..4 => Fault::Late(late),
            4..7 => Fault::Double(late),
            7..10 => Fault::AnswerLost,
            10..14 => Fault::AnswerCut(random.usize(0..6)),
            14 => Fault::Silent(CONNECTION_LOST),
            _ => Fault::None,
        };
        (delays.0, delays.1, fault)
    }

    /// A request arrives at a node.
    async fn deliver(&self, node: &str, body: &[u8], is_peer: bool) -> Result<Answer> {
        let found = self.nodes.lock().unwrap().get(node).cloned().flatten();
        let Some(Running { node: running, mut alive }) = found else {
            return Err(Failure::new(ErrorCode::Peer, format!("node {node} is down")).into());
        };
        let (start, write) = (self.now(), write_in(body, &self.definition));
        let caller = Caller { is_peer, address: None };
        let answered = tokio::select! {
            biased;
            () = crashed(&mut alive) => {
                Err(Failure::new(ErrorCode::Lost, format!("node {node} has crashed")))
            }
            answered = running.answer(body, &caller) => answered,
        };
        if let Err(failure) = &answered
            && (["damaged", "old copy"].iter().any(|word| failure.message.contains(word))
                || failure.code == ErrorCode::ShuttingDown)
        {
            self.broken.lock().unwrap().push(format!("{node}: {failure}"));
        }
        if let Some((mode, rows)) = write {
            self.written(mode, &rows, start, answered.as_ref().err());
        }
        Ok(answered?)
    }

    /// Counts the parts that an answer to a client covers, if it is one for many buckets.
    fn counting(self: &Arc<Self>, body: &[u8], reply: Reply) -> Reply {
        if !matches!(Request::decode(body).expect("a request").kind, Some(RequestKind::Group(_))) {
            return reply;
        }
        let network = self.clone();
        let rows = reply.rows.inspect_ok(move |rows| {
            let messages = (0..rows.num_rows()).filter_map(|row| Grouped::decode(blob(rows, row)?).ok());
            let covered: usize = messages.map(|grouped| grouped.covered.len()).sum();
            network.grouped.fetch_add(covered as u64, Ordering::Relaxed);
        });
        Reply { schema: reply.schema, rows: rows.boxed() }
    }

    /// Keeps what the answer of a bucket to a client says, if it is one.
    fn keeping(self: &Arc<Self>, body: &[u8], reply: Reply) -> Reply {
        let Some(RequestKind::Scan(scan)) = Request::decode(body).expect("a request").kind else {
            return reply;
        };
        let number = {
            let mut answers = self.answers.lock().unwrap();
            answers.push(Answered::default());
            answers.len() - 1
        };
        let range = Interval::from(scan.range);
        let bound =
            |id: i64| self.definition.format().key(&[Arc::new(Int64Array::from(vec![id]))]).expect("a key");
        let mut missing: BTreeSet<i64> = (0..KEYS).filter(|id| range.contains(&bound(*id))).collect();
        let mut left = scan.limit.unwrap_or(u64::MAX);
        let network = self.clone();
        let kept = reply.rows.map(Some).chain(stream::once(async { None })).filter_map(move |batch| {
            let found = match &batch {
                Some(Ok(batch)) => pairs(batch),
                // What is missing is not there, unless the limit or an error has ended the answer.
                None if left > 0 => {
                    let keys = &mut network.answers.lock().unwrap()[number].keys;
                    keys.extend(std::mem::take(&mut missing).into_iter().map(|id| (id, None)));
                    Vec::new()
                }
                _ => {
                    left = 0;
                    Vec::new()
                }
            };
            for (id, text) in found {
                let later = missing.split_off(&(id + 1));
                missing.remove(&id);
                let row = network.row(&text);
                let keys = &mut network.answers.lock().unwrap()[number].keys;
                keys.extend(std::mem::replace(&mut missing, later).into_iter().map(|id| (id, None)));
                keys.insert(id, Some(row));
                left -= 1;
            }
            std::future::ready(batch)
        });
        Reply { schema: reply.schema, rows: kept.boxed() }
    }

    fn written(&self, mode: WriteMode, rows: &[(i64, String)], start: u64, failed: Option<&Failure>) {
        let end = self.now();
        for (key, text) in rows {
            let row = self.row(text);
            let action = match mode {
                WriteMode::Upsert => Action::Upsert(row),
                WriteMode::Delete => Action::Delete,
                WriteMode::Insert => Action::Insert(row),
                WriteMode::InsertAgain => Action::InsertAgain(row),
            };
            let event = match failed {
                None => Event { action, start, end: Some(end) },
                Some(Failure { code: ErrorCode::Moved, .. }) => continue,
                Some(Failure { code: ErrorCode::Data, message, .. }) => {
                    if *message != format!("key {key} exists already") {
                        continue;
                    }
                    let is_again = mode == WriteMode::InsertAgain;
                    let action = if is_again { Action::RefusedAgain(row) } else { Action::Refused };
                    Event { action, start, end: Some(end) }
                }
                Some(_) => Event { action, start, end: None },
            };
            self.record(*key, event);
        }
    }
}

/// Whether a request tells a node of the split of another one.
fn is_of_split(body: &[u8]) -> bool {
    let kind = Request::decode(body).expect("a request").kind;
    matches!(kind, Some(RequestKind::Announce(directory)) if !directory.buckets.is_empty())
}

/// Returns when what is alive no longer is. What nobody can end is alive for ever.
async fn crashed(alive: &mut watch::Receiver<bool>) {
    if alive.wait_for(|alive| !alive).await.is_err() {
        std::future::pending().await
    }
}

/// Where requests come from.
struct Place {
    name: String,
    network: Arc<Simulated>,
    alive: watch::Receiver<bool>,
}

impl Network for Place {
    fn nodes(&self) -> Vec<String> {
        self.network.nodes.lock().unwrap().keys().cloned().collect()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        let (network, from, to) = (self.network.clone(), self.name.clone(), node.to_owned());
        let mut alive = self.alive.clone();
        let sent = async move {
            let is_peer = network.nodes.lock().unwrap().contains_key(&from);
            let (there, back, fault) = network.draw(&from, &to);
            sleep(there).await;
            let gone = |what: &str| Failure::new(ErrorCode::Lost, format!("{what} was lost"));
            let is_kept_back = !network.is_announced.load(Ordering::Relaxed) && is_of_split(&body);
            if is_kept_back || fault == Fault::Lost || !network.passes(&from, &to).await {
                return Err(Failure::new(ErrorCode::Peer, format!("node {to} can't be reached")).into());
            }
            // A task of its own: it goes on if the sender does not wait.
            let deliver = |after: Duration| {
                let (network, to, body) = (network.clone(), to.clone(), body.clone());
                tokio::spawn(async move {
                    sleep(after).await;
                    network.deliver(&to, &body, is_peer).await
                })
            };
            match fault {
                Fault::Late(after) => {
                    deliver(after);
                    return Err(gone("a request").into());
                }
                Fault::Double(after) => drop(deliver(after)),
                _ => {}
            }
            let answer = match deliver(Duration::ZERO).await {
                Ok(answer) => answer,
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            };
            sleep(back).await;
            if let Fault::Silent(time) = fault {
                sleep(time).await;
                return Err(gone("a connection").into());
            }
            if fault == Fault::AnswerLost || !network.passes(&to, &from).await {
                return Err(gone("an answer").into());
            }
            let reply = Reply::from(answer?);
            let reply = if is_peer { reply } else { network.keeping(&body, network.counting(&body, reply)) };
            match fault {
                Fault::AnswerCut(rows) => {
                    let mut left = rows;
                    let kept = reply.rows.map_ok(move |batch| {
                        let kept = batch.slice(0, batch.num_rows().min(left));
                        left -= kept.num_rows();
                        kept
                    });
                    let kept = kept.try_filter(|batch| std::future::ready(batch.num_rows() > 0));
                    let cut = stream::once(async move { Err(gone("a connection").into()) });
                    Ok(Reply { schema: reply.schema, rows: kept.chain(cut).boxed() })
                }
                _ => Ok(reply),
            }
        };
        async move {
            let answered = tokio::select! {
                biased;
                () = crashed(&mut alive) => None,
                answered = sent => Some(answered),
            };
            match answered {
                Some(answered) => answered,
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}
