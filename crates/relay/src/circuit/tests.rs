//! Tables without a relay: whatever the order of messages, and whatever a peer says.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};

use super::header::{Header, Kind, Why};
use super::pipe::{Sizes, chunk};
use super::table::{Key, Table};
use crate::error::RelayError;

const WINDOW: u32 = 1000;

fn table(node: u32, circuits_max: usize) -> Table {
    Table::new(node, 2, Sizes::new(WINDOW, 324).expect("room"), circuits_max)
}

/// The stream of a circuit, one way.
fn byte(key: Key, from: usize, at: u64) -> u8 {
    (u64::from(key.circuit) * 31 + from as u64 * 7 + at * 13 + at / 251) as u8
}

struct Random(u64);

impl Random {
    /// Below so much.
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}

/// What a node's user knows of a circuit.
#[derive(Debug, Default)]
struct End {
    written: u64,
    read: u64,
    is_finished: bool,
    at_end: bool,
    reset: bool,
}

/// Two nodes, their users, and messages on their way.
struct World {
    random: Random,
    tables: [Table; 2],
    way: Vec<(usize, Bytes)>,
    ends: [BTreeMap<(u32, bool), End>; 2],
    /// What was written in all, when the writer had finished.
    wholes: BTreeMap<(u32, bool, usize), u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: Random(seed | 1),
            tables: [table(0, 4), table(1, 4)],
            way: Vec::new(),
            ends: Default::default(),
            wholes: BTreeMap::new(),
        }
    }

    fn key(&self, node: usize, (circuit, by_us): (u32, bool)) -> Key {
        Key { peer: 1 - node as u32, circuit, by_us }
    }

    /// Sends, or delivers any one message.
    fn move_on(&mut self) -> bool {
        for node in 0..2 {
            if let Some((to, message)) = self.tables[node].next_message() {
                self.way.push((to as usize, message));
            }
        }
        if self.way.is_empty() {
            return false;
        }
        let (to, message) = self.way.swap_remove(self.random.below(self.way.len()));
        self.tables[to].received(1 - to as u32, &message);
        true
    }

    fn act(&mut self) {
        let node = self.random.below(2);
        let what = self.random.below(12);
        if what == 0
            && let Ok(key) = self.tables[node].open(1 - node as u32)
        {
            self.ends[node].insert((key.circuit, true), End::default());
        }
        if let Some(key) = self.tables[node].accept().expect("no failure") {
            self.ends[node].insert((key.circuit, false), End::default());
        }
        if self.ends[node].is_empty() {
            return;
        }
        let at = self.random.below(self.ends[node].len());
        let name = *self.ends[node].keys().nth(at).expect("one of them");
        match what {
            1..=4 => self.write(node, name),
            5..=8 => self.read(node, name),
            9 => {
                let key = self.key(node, name);
                self.tables[node].pipe(key).expect("there").send.finish();
                self.tables[node].schedule(key);
                let end = self.ends[node].get_mut(&name).expect("there");
                end.is_finished = true;
                self.wholes.insert((name.0, name.1 == (node == 0), node), end.written);
            }
            10 if self.random.below(4) == 0 => self.drop_one(node, name),
            _ => {}
        }
    }

    fn drop_one(&mut self, node: usize, name: (u32, bool)) {
        let key = self.key(node, name);
        self.tables[node].orphan(key, Why::Dropped);
        self.ends[node].remove(&name);
    }

    fn write(&mut self, node: usize, name: (u32, bool)) {
        let key = self.key(node, name);
        let bytes = self.random.below(400) + 1;
        let end = self.ends[node].get_mut(&name).expect("there");
        let pipe = self.tables[node].pipe(key).expect("there");
        if pipe.send.is_ended() {
            return;
        }
        let bytes = bytes.min(pipe.send.room());
        if bytes == 0 {
            return;
        }
        let data: Vec<_> = (end.written..).take(bytes).map(|at| byte(key, node, at)).collect();
        if pipe.send.appends(bytes) {
            pipe.send.append(&[&data])
        } else {
            pipe.send.push(chunk(&[&data]))
        }
        end.written += bytes as u64;
        self.tables[node].schedule(key);
    }

    fn read(&mut self, node: usize, name: (u32, bool)) {
        let key = self.key(node, name);
        let end = self.ends[node].get_mut(&name).expect("there");
        let pipe = self.tables[node].pipe(key).expect("there");
        if pipe.receive.cut().is_some() {
            end.reset = true;
        } else if let Some((bytes, grants)) = pipe.receive.take() {
            assert!(!end.at_end);
            let expected = (end.read..).map(|at| byte(key, 1 - node, at));
            assert!(bytes.iter().copied().zip(expected).all(|(found, wanted)| found == wanted));
            end.read += bytes.len() as u64;
            if grants {
                pipe.grant();
                self.tables[node].schedule(key);
            }
        } else if pipe.receive.is_read() {
            end.at_end = true;
            let opened_by_0 = name.1 == (node == 0);
            assert_eq!(Some(&end.read), self.wholes.get(&(name.0, opened_by_0, 1 - node)));
        }
    }

    /// All is read and dropped, in any order, and then nothing is left.
    fn end(&mut self) {
        let mut left = 100_000;
        while !(self.ends.iter().all(BTreeMap::is_empty)
            && self.tables.iter().all(Table::is_idle)
            && self.way.is_empty())
        {
            left -= 1;
            assert!(left > 0, "it does not end: {:?} {:?}", self.ends, self.tables);
            for node in 0..2 {
                while let Some(key) = self.tables[node].accept().expect("no failure") {
                    self.ends[node].insert((key.circuit, false), End::default());
                }
                for name in self.ends[node].keys().copied().collect::<Vec<_>>() {
                    self.read(node, name);
                    let end = &self.ends[node][&name];
                    // Those that wait for the other end must not wait in vain.
                    if end.at_end || end.reset || self.random.below(50) == 0 {
                        self.drop_one(node, name);
                    }
                }
            }
            self.move_on();
        }
        assert!(self.tables.iter().all(|table| table.open_count() == 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_order_whatever_the_order(seed in any::<u64>(), steps in 0..3000_usize) {
        let mut world = World::new(seed);
        for _ in 0..steps {
            world.act();
            if world.random.below(3) > 0 {
                world.move_on();
            }
        }
        world.end();
        // Nobody has broken a rule.
        prop_assert!(world.tables.iter_mut().zip([1, 0]).all(|(table, peer)| table.open(peer).is_ok()));
    }

    /// Whatever a peer says, memory is bounded and nothing panics.
    #[test]
    fn any_message(
        messages in vec((0..7_u8, 0..4_u32, any::<bool>(), 0..5_u32, 0..2500_u64, 0..300_usize), 0..200)
    ) {
        let mut table = table(0, 2);
        let ours = table.open(1).expect("open");
        for (kind, circuit, by_sender, why, value, bytes) in messages {
            let header = Header { kind: Kind::Open, circuit, by_sender, why: Why::Whole, value: value / 2 * 2 };
            let mut message = header.encode().to_vec();
            message[3] = kind;
            message[12] = why as u8;
            message.extend(vec![0; bytes]);
            table.received(1, &message.into());
            while table.next_message().is_some() {}
            prop_assert!(table.open_count() <= 2);
        }
        let _ = table.pipe(ours).map(|pipe| pipe.receive.take());
    }
}

#[test]
fn who_breaks_the_rules_is_cut_off() {
    let of = |kind, value| Header { kind, circuit: 1, by_sender: true, why: Why::Whole, value };
    let open = (of(Kind::Open, WINDOW.into()), 0);
    let data = |at, bytes| (of(Kind::Data, at), bytes);
    let end = |total| (of(Kind::End, total), 0);
    let theirs =
        |kind| (Header { by_sender: false, circuit: 9, ..of(kind, 0) }, usize::from(kind == Kind::Data));
    for (said, expected) in [
        (vec![data(1, 1000)], "data beyond the window"),
        (vec![data(1000, 1)], "data beyond the window"),
        (vec![data(u64::MAX, 1)], "data beyond all bounds"),
        (vec![data(0, 10), data(9, 1)], "data for the second time"),
        (vec![data(5, 10), data(14, 3)], "data for the second time"),
        (vec![data(5, 10), data(3, 3)], "data for the second time"),
        (vec![data(5, 10), data(0, 20)], "data for the second time"),
        (vec![end(5), data(5, 1)], "data after the end"),
        (vec![data(5, 1), end(5)], "an end where there can be none"),
        (vec![end(1001)], "an end where there can be none"),
        (vec![end(5), end(5)], "an end after the end"),
        (vec![open, open], "an open for the second time"),
        (vec![(of(Kind::Open, 999), 0)], "a window of another size"),
        (vec![open, (of(Kind::Credit, 1001), 0)], "credit for what was not sent"),
        (vec![open, (of(Kind::Done, 0), 0), (of(Kind::Done, 0), 0)], "done for the second time"),
        (vec![theirs(Kind::Data)], "a word on a circuit that there is not"),
        (vec![theirs(Kind::Done)], "a word on a circuit that there is not"),
        ((0..100).map(|at| data(1 + 2 * at, 1)).collect(), "data in too many pieces"),
    ] {
        let mut table = table(0, 8);
        let ours = table.open(1).expect("open");
        while table.next_message().is_some() {}
        for (header, bytes) in said {
            let message = [&header.encode()[..], &vec![0; bytes]].concat();
            table.received(1, &message.into());
        }
        let error = RelayError::CircuitRules { node: 1, reason: expected };
        assert_eq!(table.pipe(ours).map(drop), Err(error.clone()));
        assert_eq!(table.open(1), Err(error));
        assert_eq!(table.open_count(), 0);
        // It is told so, once.
        assert_eq!(table.next_message(), Some((1, Bytes::copy_from_slice(&Header::OFF.encode()))));
        assert_eq!(table.next_message(), None);
    }
    // And takes it for what it is.
    let mut table = table(0, 8);
    table.received(1, &Bytes::copy_from_slice(&Header::OFF.encode()));
    assert_eq!(table.open(1), Err(RelayError::CutOff { node: 1 }));
    // Credit may come late.
    let mut table = self::table(0, 8);
    table.received(1, &Bytes::copy_from_slice(&of(Kind::Credit, 7).encode()));
    assert!(table.open(1).is_ok());
}

/// An honest node has no more circuits open than it takes; this one opens and opens.
#[test]
fn circuits_without_end() {
    let mut table = table(0, 2);
    let opens = |table: &mut Table, circuits: std::ops::Range<u32>| {
        for circuit in circuits {
            let open =
                Header { kind: Kind::Open, circuit, by_sender: true, why: Why::Whole, value: WINDOW.into() };
            table.received(1, &Bytes::copy_from_slice(&open.encode()));
        }
    };
    opens(&mut table, 0..1028);
    assert_eq!((table.open_count(), table.counts.refused), (2, 1026));
    assert!(table.accept().expect("no failure").is_some());
    opens(&mut table, 1028..1029);
    assert_eq!(table.open(1), Err(RelayError::CircuitRules { node: 1, reason: "circuits without end" }));
}

/// A circuit that has much to send has no more than its turn, and what is urgent does not wait for it.
#[test]
fn in_turn() {
    let mut table = table(0, 8);
    let keys: Vec<_> = (0..3).map(|_| table.open(1).expect("open")).collect();
    while table.next_message().is_some() {}
    for key in &keys {
        for _ in 0..2 {
            table.pipe(*key).expect("there").send.push(chunk(&[&[0; 300]]));
            table.schedule(*key);
        }
    }
    table.orphan(keys[1], Why::Dropped);
    let mut sent = Vec::new();
    while let Some((_, message)) = table.next_message() {
        let (header, _) = Header::decode(&message).expect("ours");
        sent.push((header.kind, header.circuit));
    }
    let (data, first, third) = (Kind::Data, keys[0].circuit, keys[2].circuit);
    let cut = keys[1].circuit;
    assert_eq!(
        sent,
        [(Kind::End, cut), (Kind::Done, cut), (data, first), (data, third), (data, first), (data, third)]
    );
}
