//! Every order of events of a split: a search through all states that the nodes, their disks, and the messages
//! between them can be in.
//!
//! The steps are those of [`crate::split`], applied to the records that nodes store. Around them, the model does
//! what `node/split.rs` does; one event of the model is what happens there between two moments at which something
//! is stored, sent or received:
//!
//! | model | code |
//! |---|---|
//! | `begin` | `Node::split`, to the request `Prepare` |
//! | `Work::Preparing`, `Copying`, `Frozen` | where `Node::copy_and_commit` is; `Frozen` holds the writer |
//! | `round`, `freeze` | `Copy::send`: only what changed since the last round |
//! | `commit`, `fail`, `abort` | `Node::committed`; any error of `copy_and_commit`; what `Node::split` does then |
//! | `send Activate`, `Activated` | `Node::confirm`, also after a restart |
//! | `ask`, `Decided` | `Node::settle`; `Bucket::asks` is a question without an answer yet |
//! | `write`, `execute` | a write in `Bucket::pending`, and `Bucket::write_pending`, which checks it |
//! | `recover` | `Node::recover` abandons a split that was not decided |
//!
//! A message stays in flight after it was delivered, so it can arrive twice, late, and in any order, even after a
//! restart of either node; `lose` removes all of them. A crash keeps what is stored, and only that. A request
//! that is not answered fails at any time, as the network promises.
//!
//! A key's rows are numbered; of each bucket the model knows the latest row of each key.

mod events;
mod scenarios;

use std::collections::HashMap;
use std::fmt::Write as _;

use prost::Message as _;

use crate::key::Interval;
use crate::request::{BucketRecord, RangeRecord};

const KEYS: usize = 4;
const BUCKETS: usize = 4;

/// The latest row of each key; 0 if there is none.
type Rows = [u8; KEYS];

/// A split that may happen, once.
#[derive(Clone, Copy)]
struct Split {
    origin: u8,
    median: u8,
    child: u8,
}

/// What may happen.
struct Scenario {
    name: &'static str,
    /// The node of each bucket.
    nodes: [u8; BUCKETS],
    /// The keys of the buckets that are there in the beginning, with a row for each.
    first: &'static [(u8, Option<u8>)],
    splits: &'static [Split],
    /// The last row of each key.
    rows_max: Rows,
    crashes: u8,
    losses: u8,
}

/// A fault that the search must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutation {
    None,
    /// The old bucket decides before its last rows were received.
    CommitsEarly,
    /// The new bucket is active as soon as it is prepared.
    ActiveWhenPrepared,
    /// A question about a split that is not decided is answered as if it were abandoned.
    DecidesEarly,
    /// Runs are received in any order.
    AnyOrder,
    /// A write is checked when it arrives, not when it is stored.
    ChecksOnArrival,
    /// The old bucket forgets a split that it has decided before the new one has confirmed that, and says that
    /// there was none.
    ForgetsGiven,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Work {
    None,
    Preparing,
    Copying { sent: Rows, number: u8, waits: bool },
    Frozen { number: u8, waits: bool },
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Bucket {
    /// Stored: the record, by its number in [`Records`], and the rows.
    record: u16,
    rows: Rows,
    /// Lost in a crash.
    work: Work,
    /// A bit for each key that a write waits for.
    pending: u8,
    /// Whether its question about its split was sent and not answered.
    asks: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Message {
    /// The new bucket, its keys, and its epoch.
    Prepare(u8, u8, Option<u8>, u8),
    Prepared(u8),
    Receive(u8, u8, Rows),
    Received(u8, u8),
    Activate(u8),
    Activated(u8),
    Outcome(u8),
    Decided(u8, Option<bool>),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    buckets: [Option<Bucket>; BUCKETS],
    /// The last row of each key whose write was acknowledged.
    acknowledged: Rows,
    /// A bit for each split that has begun.
    begun: u8,
    crashes: u8,
    losses: u8,
    /// In order.
    messages: Vec<Message>,
}

/// What the search needs to know of a record.
#[derive(Clone)]
struct Known {
    record: BucketRecord,
    is_active: bool,
    /// A bit for each key.
    keys: u8,
    splitting: Option<u8>,
    given: Option<(u8, u8)>,
}

/// All records that occur, with numbers: states are small, and each step of [`crate::split`] is computed once.
#[derive(Default)]
struct Records {
    numbers: HashMap<Vec<u8>, u16>,
    known: Vec<Known>,
    computed: HashMap<(u16, u8, u8), Option<u16>>,
}

impl Records {
    fn number(&mut self, record: BucketRecord) -> u16 {
        let bytes = record.encode_to_vec();
        if let Some(&number) = self.numbers.get(&bytes) {
            return number;
        }
        let keys = |range: &RangeRecord| {
            let range: Interval = range.clone().into();
            (0..KEYS).filter(|&key| range.contains(&[key as u8 + 1])).fold(0, |keys, key| keys | 1 << key)
        };
        self.known.push(Known {
            is_active: record.incoming.is_none(),
            keys: keys(&record.range),
            splitting: record.splitting.as_ref().map(|child| child.bucket as u8),
            given: record.given.as_ref().map(|child| (child.bucket as u8, keys(&child.range))),
            record,
        });
        let number = self.known.len() as u16 - 1;
        self.numbers.insert(bytes, number);
        number
    }

    fn get(&self, number: u16) -> &Known {
        &self.known[usize::from(number)]
    }

    /// The record after a step, which is identified by two numbers; `None` if the step refuses.
    fn step(
        &mut self,
        record: u16,
        id: (u8, u8),
        step: impl FnOnce(&BucketRecord) -> Option<BucketRecord>,
    ) -> Option<u16> {
        if let Some(&computed) = self.computed.get(&(record, id.0, id.1)) {
            return computed;
        }
        let computed = step(&self.get(record).record).map(|record| self.number(record));
        self.computed.insert((record, id.0, id.1), computed);
        computed
    }
}

/// Which step, with an argument.
type Label = (&'static str, u8);

struct Search {
    scenario: Scenario,
    mutation: Mutation,
    records: Records,
    numbers: HashMap<State, u32>,
    states: Vec<State>,
    /// How each state was reached first.
    parents: Vec<(u32, Label)>,
    /// Steps that are not failures.
    steps: Vec<(u32, u32)>,
}

fn bound(key: u8) -> Vec<u8> {
    if key == 0 { Vec::new() } else { vec![key + 1] }
}

fn range(low: u8, high: Option<u8>) -> RangeRecord {
    RangeRecord { low: bound(low), high: high.map(bound) }
}

fn name(node: u8) -> String {
    format!("node-{node}")
}

impl Search {
    fn new(scenario: Scenario, mutation: Mutation) -> Self {
        Self {
            scenario,
            mutation,
            records: Records::default(),
            numbers: HashMap::new(),
            states: Vec::new(),
            parents: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Searches all states. Returns their number, or how a property is broken.
    fn run(mut self) -> Result<usize, String> {
        let mut first = State {
            buckets: [None; BUCKETS],
            acknowledged: [1; KEYS],
            begun: 0,
            crashes: 0,
            losses: 0,
            messages: Vec::new(),
        };
        for (bucket, &(low, high)) in self.scenario.first.iter().enumerate() {
            let record = BucketRecord { range: range(low, high), epoch: 1, ..BucketRecord::default() };
            let record = self.records.number(record);
            let keys = self.records.get(record).keys;
            let rows = std::array::from_fn(|key| keys >> key & 1);
            first.buckets[bucket] = Some(Bucket { record, rows, work: Work::None, pending: 0, asks: false });
        }
        self.reach(first, 0, ("", 0), false);
        let mut at = 0;
        while at < self.states.len() {
            let state = self.states[at].clone();
            if let Some(broken) = self.broken(&state) {
                return Err(self.told(at as u32, &broken));
            }
            self.expand(&state, at as u32);
            at += 1;
        }
        match self.stuck() {
            Some(state) => Err(self.told(state, "from here, the split never ends")),
            None => Ok(self.states.len()),
        }
    }

    fn reach(&mut self, mut state: State, from: u32, label: Label, is_failure: bool) {
        self.forget_answers(&mut state);
        let number = match self.numbers.get(&state) {
            Some(&number) => number,
            None => {
                let number = self.states.len() as u32;
                self.states.push(state.clone());
                self.parents.push((from, label));
                self.numbers.insert(state, number);
                number
            }
        };
        if !is_failure && number != from {
            self.steps.push((from, number));
        }
    }

    /// Removes answers that nobody waits for: their connection is gone, and they change nothing.
    fn forget_answers(&self, state: &mut State) {
        let State { buckets, messages, .. } = state;
        let origin = |child: u8| {
            buckets.iter().flatten().find(|bucket| self.records.get(bucket.record).splitting == Some(child))
        };
        messages.retain(|message| match *message {
            Message::Prepared(child) => origin(child).is_some_and(|origin| origin.work == Work::Preparing),
            Message::Received(child, received) => origin(child).is_some_and(|origin| match origin.work {
                Work::Copying { number, waits, .. } | Work::Frozen { number, waits } => {
                    waits && number == received
                }
                _ => false,
            }),
            Message::Activated(child) => buckets
                .iter()
                .flatten()
                .any(|bucket| self.records.get(bucket.record).given.is_some_and(|given| given.0 == child)),
            Message::Decided(child, _) => buckets[usize::from(child)].is_some_and(|bucket| bucket.asks),
            _ => true,
        });
    }

    /// The property that a state breaks.
    fn broken(&self, state: &State) -> Option<String> {
        for key in 0..KEYS {
            let bit = 1 << key;
            let mut owners = state.buckets.iter().flatten().filter(|bucket| {
                let known = self.records.get(bucket.record);
                known.is_active && known.keys & bit != 0
            });
            let holder = match (owners.next(), owners.next()) {
                (Some(_), Some(_)) => return Some(format!("key {key} has two owners")),
                (Some(owner), None) => Some(owner),
                // It was given away; the new owner is not active yet.
                (None, _) => state.buckets.iter().flatten().find_map(|bucket| {
                    let (child, keys) = self.records.get(bucket.record).given?;
                    (keys & bit != 0).then_some(state.buckets[usize::from(child)].as_ref()).flatten()
                }),
            };
            match holder {
                None => return Some(format!("key {key} has no owner, and will have none")),
                Some(holder) if holder.rows[key] < state.acknowledged[key] => {
                    return Some(format!("an acknowledged row of key {key} is lost"));
                }
                Some(_) => {}
            }
        }
        None
    }

    /// A state from which no steps without failures lead to the end of all splits.
    fn stuck(&self) -> Option<u32> {
        let is_done = |state: &State| {
            state.buckets.iter().flatten().all(|bucket| {
                let known = self.records.get(bucket.record);
                known.is_active && known.splitting.is_none() && known.given.is_none()
            })
        };
        // The steps by where they lead.
        let mut starts = vec![0u32; self.states.len() + 1];
        self.steps.iter().for_each(|&(_, to)| starts[to as usize + 1] += 1);
        for state in 1..starts.len() {
            starts[state] += starts[state - 1];
        }
        let mut next = starts.clone();
        let mut sources = vec![0u32; self.steps.len()];
        for &(from, to) in &self.steps {
            sources[next[to as usize] as usize] = from;
            next[to as usize] += 1;
        }
        let mut ends: Vec<bool> = self.states.iter().map(is_done).collect();
        let mut open: Vec<u32> = (0..ends.len() as u32).filter(|&state| ends[state as usize]).collect();
        while let Some(state) = open.pop() {
            for &from in &sources[starts[state as usize] as usize..starts[state as usize + 1] as usize] {
                if !std::mem::replace(&mut ends[from as usize], true) {
                    open.push(from);
                }
            }
        }
        ends.iter().position(|ends| !ends).map(|state| state as u32)
    }

    /// The steps that lead to a state.
    fn told(&self, state: u32, what: &str) -> String {
        let mut labels = Vec::new();
        let mut at = state;
        while at != 0 {
            let (parent, label) = self.parents[at as usize];
            labels.push(label);
            at = parent;
        }
        let mut text = format!("{what}, after:");
        for (step, argument) in labels.iter().rev() {
            let _ = write!(text, "\n  {step} {argument}");
        }
        text
    }
}

impl State {
    fn send(&mut self, message: Message) {
        if let Err(at) = self.messages.binary_search(&message) {
            self.messages.insert(at, message);
        }
    }
}
