//! Tables without a relay, with messages in any order and arbitrary messages of a peer.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};

use super::header::{CircuitFrameKind, CircuitHeader, Why};
use super::pipe::{CircuitSizes, chunk};
use super::table::{CircuitTable, Key};
use crate::error::RelayError;

const WINDOW: u32 = 1000;

fn table(node: u32, circuits_max: usize) -> CircuitTable {
    CircuitTable::new(node, 2, CircuitSizes::new(WINDOW, 324).expect("room"), circuits_max)
}

/// A byte of a circuit's stream, one way.
fn byte(key: Key, from: usize, at: u64) -> u8 {
    (u64::from(key.circuit) * 31 + from as u64 * 7 + at * 13 + at / 251) as u8
}

struct Random(u64);

impl Random {
    /// A number below `most`.
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}

/// A circuit's state, as its user knows it.
#[derive(Debug, Default)]
struct End {
    written: u64,
    read: u64,
    is_finished: bool,
    at_end: bool,
    reset: bool,
}

/// Two nodes, their users, and messages in flight.
struct World {
    random: Random,
    tables: [CircuitTable; 2],
    way: Vec<(usize, Bytes)>,
    ends: [BTreeMap<(u32, bool), End>; 2],
    /// The bytes of each stream, once its writer has finished.
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

    /// Sends the next message of each node, then delivers a random one.
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

    /// Reads and drops everything in any order, and checks that nothing is left.
    fn end(&mut self) {
        let mut left = 100_000;
        while !(self.ends.iter().all(BTreeMap::is_empty)
            && self.tables.iter().all(CircuitTable::is_idle)
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
                    // Some are dropped early: the other end must not wait for them in vain.
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
    fn bytes_arrive_in_order_for_any_order_of_messages(seed in any::<u64>(), steps in 0..3000_usize) {
        let mut world = World::new(seed);
        for _ in 0..steps {
            world.act();
            if world.random.below(3) > 0 {
                world.move_on();
            }
        }
        world.end();
        // Neither node was cut off.
        prop_assert!(world.tables.iter_mut().zip([1, 0]).all(|(table, peer)| table.open(peer).is_ok()));
    }

    #[test]
    fn arbitrary_messages_neither_panic_nor_exceed_the_limit_of_circuits(
        messages in vec((0..7_u8, 0..4_u32, any::<bool>(), 0..5_u32, 0..2500_u64, 0..300_usize), 0..200)
    ) {
        let mut table = table(0, 2);
        let ours = table.open(1).expect("open");
        for (kind, circuit, by_sender, why, value, bytes) in messages {
            let header = CircuitHeader { kind: CircuitFrameKind::Open, circuit, by_sender, why: Why::Whole, value: value / 2 * 2 };
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
fn a_node_that_breaks_the_protocol_is_cut_off() {
    let of = |kind, value| CircuitHeader { kind, circuit: 1, by_sender: true, why: Why::Whole, value };
    let open = (of(CircuitFrameKind::Open, WINDOW.into()), 0);
    let data = |at, bytes| (of(CircuitFrameKind::Data, at), bytes);
    let end = |total| (of(CircuitFrameKind::End, total), 0);
    let theirs = |kind| {
        (
            CircuitHeader { by_sender: false, circuit: 9, ..of(kind, 0) },
            usize::from(kind == CircuitFrameKind::Data),
        )
    };
    for (said, expected) in [
        (vec![data(1, 1000)], "data beyond the window"),
        (vec![data(1000, 1)], "data beyond the window"),
        (vec![data(u64::MAX, 1)], "the offset of data overflows"),
        (vec![data(0, 10), data(9, 1)], "duplicate data"),
        (vec![data(5, 10), data(14, 3)], "duplicate data"),
        (vec![data(5, 10), data(3, 3)], "duplicate data"),
        (vec![data(5, 10), data(0, 20)], "duplicate data"),
        (vec![end(5), data(5, 1)], "data after the end"),
        (vec![data(5, 1), end(5)], "the offset of the end is invalid"),
        (vec![end(1001)], "the offset of the end is invalid"),
        (vec![end(5), end(5)], "duplicate end"),
        (vec![open, open], "duplicate open"),
        (vec![(of(CircuitFrameKind::Open, 999), 0)], "a different window size"),
        (vec![open, (of(CircuitFrameKind::Credit, 1001), 0)], "credit beyond the window"),
        (
            vec![open, (of(CircuitFrameKind::Done, 0), 0), (of(CircuitFrameKind::Done, 0), 0)],
            "duplicate done",
        ),
        (vec![theirs(CircuitFrameKind::Data)], "unknown circuit"),
        (vec![theirs(CircuitFrameKind::Done)], "unknown circuit"),
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
        // It is notified once.
        assert_eq!(table.next_message(), Some((1, Bytes::copy_from_slice(&CircuitHeader::OFF.encode()))));
        assert_eq!(table.next_message(), None);
    }
    // And this is what the notified node does.
    let mut table = table(0, 8);
    table.received(1, &Bytes::copy_from_slice(&CircuitHeader::OFF.encode()));
    assert_eq!(table.open(1), Err(RelayError::CutOff { node: 1 }));
    // Credit may come late.
    let mut table = self::table(0, 8);
    table.received(1, &Bytes::copy_from_slice(&of(CircuitFrameKind::Credit, 7).encode()));
    assert!(table.open(1).is_ok());
}

#[test]
fn a_node_that_opens_too_many_circuits_is_cut_off() {
    let mut table = table(0, 2);
    let opens = |table: &mut CircuitTable, circuits: std::ops::Range<u32>| {
        for circuit in circuits {
            let open = CircuitHeader {
                kind: CircuitFrameKind::Open,
                circuit,
                by_sender: true,
                why: Why::Whole,
                value: WINDOW.into(),
            };
            table.received(1, &Bytes::copy_from_slice(&open.encode()));
        }
    };
    opens(&mut table, 0..1028);
    assert_eq!((table.open_count(), table.counts.refused), (2, 1026));
    assert!(table.accept().expect("no failure").is_some());
    opens(&mut table, 1028..1029);
    assert_eq!(table.open(1), Err(RelayError::CircuitRules { node: 1, reason: "too many circuits" }));
}

#[test]
fn circuits_send_data_in_turn_after_urgent_messages() {
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
        let (header, _) = CircuitHeader::decode(&message).expect("ours");
        sent.push((header.kind, header.circuit));
    }
    let (data, first, third) = (CircuitFrameKind::Data, keys[0].circuit, keys[2].circuit);
    let cut = keys[1].circuit;
    assert_eq!(
        sent,
        [
            (CircuitFrameKind::End, cut),
            (CircuitFrameKind::Done, cut),
            (data, first),
            (data, third),
            (data, first),
            (data, third)
        ]
    );
}
