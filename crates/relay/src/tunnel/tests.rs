//! Two tables without relays, with frames in any order.

use std::collections::BTreeMap;
use std::task::{Poll, Waker};

use bytes::Bytes;
use lightship_wire::frame::{FrameHeader, FrameKind};
use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};

use super::TunnelsConfig;
use super::table::{Key, TunnelTable};
use crate::error::RelayError;
use crate::frame::RoutedFrame;

const CONFIG: TunnelsConfig = TunnelsConfig { unread_bytes_max: 1 << 20, tunnels_max: 3 };

fn table(node: u32) -> TunnelTable {
    TunnelTable::new(node, 2, CONFIG)
}

fn frame(sequence: u32) -> (FrameHeader, Bytes) {
    let part = Bytes::from(vec![sequence as u8; 10]);
    (FrameHeader::whole(FrameKind::Message, 0, 1, sequence, &part), part)
}

/// A tunnel's end, as its user knows it.
#[derive(Debug, Default)]
struct User {
    sent: u32,
    read: u32,
    has_ended: bool,
    reads: bool,
    at_end: bool,
}

/// Two nodes, their users, and frames in flight.
struct World {
    rng: fastrand::Rng,
    tables: [TunnelTable; 2],
    flying: Vec<(usize, RoutedFrame)>,
    users: [BTreeMap<(u32, bool), User>; 2],
    /// How many frames were sent in each direction of a tunnel that has ended, by opener's number and sender.
    totals: BTreeMap<(u32, bool, usize), u32>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            tables: [table(0), table(1)],
            flying: Vec::new(),
            users: Default::default(),
            totals: BTreeMap::new(),
        }
    }

    fn key(node: usize, (tunnel, opened_here): (u32, bool)) -> Key {
        Key { peer: 1 - node as u32, tunnel, opened_here }
    }

    /// Delivers a random frame.
    fn deliver(&mut self) -> bool {
        for node in 0..2 {
            let ends = self.tables[node].take_ends();
            self.flying.extend(ends.into_iter().map(|(to, end)| (to as usize, end)));
        }
        if self.flying.is_empty() {
            return false;
        }
        let (to, frame) = self.flying.swap_remove(self.rng.usize(..self.flying.len()));
        self.tables[to].received(1 - to as u32, frame).expect("a correct peer");
        true
    }

    fn act(&mut self) {
        let node = self.rng.usize(..2);
        if self.rng.u8(..10) == 0
            && let Ok(key) = self.tables[node].open(1 - node as u32)
        {
            self.users[node].insert((key.tunnel, true), User { reads: true, ..User::default() });
        }
        if let Some(key) = self.tables[node].accept().expect("no failure") {
            self.users[node].insert((key.tunnel, false), User { reads: true, ..User::default() });
        }
        let names: Vec<_> = self.users[node].keys().copied().collect();
        let Some(name) = self.rng.choice(names) else { return };
        match self.rng.u8(..20) {
            0..9 => self.send(node, name),
            9..18 => self.read(node, name),
            18 => self.end(node, name),
            _ => self.stop_reading(node, name),
        }
    }

    fn user(&mut self, node: usize, name: (u32, bool)) -> &mut User {
        self.users[node].get_mut(&name).expect("there")
    }

    fn send(&mut self, node: usize, name: (u32, bool)) {
        let user = self.user(node, name);
        if !user.has_ended {
            let (header, part) = frame(user.sent);
            user.sent += 1;
            let frame = self.tables[node].number(Self::key(node, name), header, part).expect("open");
            self.flying.push((1 - node, frame));
        }
    }

    fn read(&mut self, node: usize, name: (u32, bool)) {
        if !self.user(node, name).reads {
            return;
        }
        match self.tables[node].next(Self::key(node, name), Waker::noop()).expect("no failure") {
            Poll::Pending => {}
            Poll::Ready(Some(next)) => {
                let user = self.user(node, name);
                assert!(!user.at_end);
                assert_eq!(next, frame(user.read));
                user.read += 1;
            }
            Poll::Ready(None) => {
                let opener = if name.1 { node } else { 1 - node };
                let total = self.totals.get(&(name.0, opener == 0, 1 - node)).copied();
                let user = self.user(node, name);
                user.at_end = true;
                // A tunnel that was refused has no user at the other end.
                assert_eq!(user.read, total.unwrap_or(0));
            }
        }
    }

    fn end(&mut self, node: usize, name: (u32, bool)) {
        let user = self.user(node, name);
        if !std::mem::replace(&mut user.has_ended, true) {
            let (sent, opener) = (user.sent, if name.1 { node } else { 1 - node });
            self.totals.insert((name.0, opener == 0, node), sent);
            self.tables[node].end(Self::key(node, name));
        }
        self.forget(node, name);
    }

    fn stop_reading(&mut self, node: usize, name: (u32, bool)) {
        if std::mem::replace(&mut self.user(node, name).reads, false) {
            self.tables[node].stop_reading(Self::key(node, name));
        }
        self.forget(node, name);
    }

    fn forget(&mut self, node: usize, name: (u32, bool)) {
        let user = self.user(node, name);
        if user.has_ended && !user.reads {
            self.users[node].remove(&name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_in_any_order_arrive_once_and_in_order(seed in any::<u64>()) {
        let mut world = World::new(seed);
        for _ in 0..2000 {
            world.act();
            if world.rng.u8(..3) > 0 {
                world.deliver();
            }
        }
        // Everything arrives, is read to the end, and is forgotten.
        loop {
            for node in 0..2 {
                while let Some(key) = world.tables[node].accept().expect("no failure") {
                    world.users[node].insert((key.tunnel, false), User { reads: true, ..User::default() });
                }
                for name in world.users[node].keys().copied().collect::<Vec<_>>() {
                    world.end(node, name);
                    if world.users[node].contains_key(&name) {
                        world.read(node, name);
                        if world.user(node, name).at_end {
                            world.stop_reading(node, name);
                        }
                    }
                }
            }
            if !world.deliver() && world.users.iter().all(BTreeMap::is_empty) {
                break;
            }
        }
        for table in &world.tables {
            prop_assert!(table.is_idle(), "{} left", table.open_count());
        }
    }
}

fn routed(tunnel: u32, number: u32) -> RoutedFrame {
    let (header, part) = frame(number);
    RoutedFrame { tunnel, number, ..RoutedFrame::new(header, part) }
}

fn close(tunnel: u32, number: u32) -> RoutedFrame {
    let header = FrameHeader::whole(FrameKind::Close, 0, 0, 0, &[]);
    RoutedFrame { tunnel, number, ..RoutedFrame::new(header, Bytes::new()) }
}

#[test]
fn frames_that_no_correct_peer_sends_are_refused() {
    for (frames, expected) in [
        (vec![routed(0, 0)], "outside of tunnels"),
        (vec![RoutedFrame { accepted: true, ..routed(1, 0) }], "was not opened"),
        (vec![routed(1, 0), routed(1, 0)], "no place"),
        (vec![routed(1, 2), routed(1, 2)], "no place"),
        (vec![routed(1, 5), close(1, 0)], "after its end"),
        (vec![close(1, 0), routed(1, 1)], "no place"),
        ((3..2000).map(|tunnel| routed(tunnel, 1)).collect(), "opened out of order"),
        ((1..2000).map(|tunnel| routed(tunnel, 0)).collect(), "has opened 1027 tunnels"),
        ((1..20_000).map(|number| routed(1, number)).collect(), "bytes out of order"),
    ] {
        let mut table = table(0);
        let refused = frames.into_iter().find_map(|frame| table.received(1, frame).err());
        assert!(refused.as_ref().is_some_and(|why| why.contains(expected)), "{refused:?}, {expected}");
    }
}

#[test]
fn numbers_of_frames_start_again_after_the_last_one() {
    let mut table = table(0);
    table.received(1, routed(1, 0)).expect("the first");
    let key = table.accept().expect("no failure").expect("a tunnel");
    table.set_next(key, u32::MAX);
    for number in [0, u32::MAX, 1] {
        table.received(1, routed(1, number)).expect("in the window");
    }
    let sequences: Vec<_> =
        std::iter::from_fn(|| match table.next(key, Waker::noop()).expect("no failure") {
            Poll::Ready(next) => next.map(|(header, _)| header.sequence),
            Poll::Pending => None,
        })
        .collect();
    assert_eq!(sequences, [0, u32::MAX, 0, 1]);
}

#[test]
fn late_frames_of_a_tunnel_that_has_failed_are_ignored() {
    let mut table = table(0);
    table.received(1, routed(1, 0)).expect("the first");
    let key = table.accept().expect("no failure").expect("a tunnel");
    table.fail_peer(1, &RelayError::Closed);
    table.stop_reading(key);
    table.end(key);
    assert!(table.is_idle());
    table.received(1, routed(1, 1)).expect("ignored");
    assert!(table.is_idle() && table.accept().expect("no failure").is_none());
    // Also while its user still holds it.
    table.received(1, routed(2, 0)).expect("the first");
    let key = table.accept().expect("no failure").expect("a tunnel");
    table.fail_peer(1, &RelayError::Closed);
    table.received(1, routed(2, 1)).expect("ignored");
    assert!(table.next(key, Waker::noop()).is_err());
}

#[test]
fn only_unread_frames_of_a_tunnel_that_is_not_read_are_dropped() {
    let mut table = table(0);
    for number in 0..30_000 {
        table.received(1, routed(1, number)).expect("in order");
    }
    let key = table.accept().expect("no failure").expect("a tunnel");
    assert!(matches!(table.next(key, Waker::noop()), Err(RelayError::Unread { node: 1, .. })));
    table.received(1, close(1, 30_000)).expect("the end");
    table.stop_reading(key);
    table.end(key);
    assert!(table.is_idle());
}
