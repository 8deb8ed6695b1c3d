//! Deadlock-free forwarding with bounded queues: classes by hop count.
//!
//! A forwarding node keeps a message until the next node has room for it. With bounded queues, messages
//! can wait for each other in a cycle: each node's queue is full of messages for which the next node has
//! no room. Then nothing moves again, whatever the bound.
//!
//! Here every node has a queue for each *class*, and a message that has made h hops is in class h. It
//! moves on only when the next node has room in class h + 1. Every wait is therefore for a higher class,
//! and no cycle can form:
//!
//! - A message in the highest class has arrived and is consumed. (A consumer may be slow; it may not
//!   stop, or wait for messages that it sends itself.)
//! - A message in class h that has not arrived waits for room in class h + 1 at the next node. If
//!   all classes above h empty in finite time, so does the queue it waits for, and the message moves.
//! - By induction from the highest class down, every queue empties in finite time. A message makes
//!   at most as many hops as there are classes, so it arrives.
//!
//! With shortest paths, `diameter + 1` classes suffice, with room for as little as one message each.
//!
//! Direct connections come and go. The argument still holds if a message enters one only when it could make
//! the rest of its route over the topology, which stays: [`Classes::may_hop`]. This is always so for a
//! direct connection to the destination. A direct connection to a node from which another one continues
//! needs one class more than the topology does.
//!
//! The classes are those of structured buffer pools (P. M. Merlin, P. J. Schweitzer, "Deadlock Avoidance
//! in Store-and-Forward Networks. I: Store-and-Forward Deadlock", 1980).

use serde::{Deserialize, Serialize};

use crate::ways::DirectUse;

/// The classes into which hop counts divide messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classes {
    count: usize,
    /// The first class that only messages on detours reach.
    detours: usize,
    /// All messages share one class: the baseline of the tests.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    single: bool,
}

impl Classes {
    /// The classes that shortest paths need: one more than the diameter of the topology, and another one if
    /// messages may take direct connections that don't lead straight to their destination.
    pub fn for_shortest(diameter: usize, through: DirectUse) -> Self {
        let count = diameter + 1 + usize::from(through == DirectUse::All);
        Self { count, detours: count, single: false }
    }

    /// Enough classes for messages that find the last link of their route broken, go back as far as they came,
    /// and then around: at most once around a ring.
    pub fn with_detours(diameter: usize) -> Self {
        Self { count: 3 * diameter + 1, detours: diameter + 1, single: false }
    }

    /// One class for all messages. This can deadlock.
    pub fn single() -> Self {
        Self { count: 1, detours: 1, single: true }
    }

    /// The number of classes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The class of a message that has made `hops` hops; `None` if that is more than allowed.
    pub fn of(&self, hops: usize) -> Option<usize> {
        if self.single { Some(0) } else { Some(hops).filter(|hops| *hops < self.count) }
    }

    /// Most messages in the queue of a class, if those of the usual classes hold `queue_messages`. Detours are rare,
    /// and one slot is enough to arrive.
    pub fn limit(&self, class: usize, queue_messages: usize) -> usize {
        if class < self.detours { queue_messages } else { 1 }
    }

    /// Whether a message that has made `hops` hops may make one more, to a node from which the destination
    /// is `hops_left` hops away over the topology.
    pub fn may_hop(&self, hops: usize, hops_left: usize) -> bool {
        self.of(hops + 1 + hops_left).is_some()
    }
}

/// The near end's view of the room in the queues at the far end of a link. Sending a message takes a
/// slot; the far end returns it when the message has left. A queue never exceeds its limit.
#[derive(Debug, Clone)]
pub struct Credits {
    /// Slots, and those taken, by class.
    limits: Vec<usize>,
    taken: Vec<usize>,
}

impl Credits {
    /// Queues of at most `queue_messages` messages, one for each class.
    pub fn new(classes: &Classes, queue_messages: usize) -> Self {
        let limits = (0..classes.count()).map(|class| classes.limit(class, queue_messages)).collect();
        Self { limits, taken: vec![0; classes.count()] }
    }

    /// Whether a class has room.
    pub fn has_room(&self, class: usize) -> bool {
        self.taken.get(class).is_some_and(|taken| *taken < self.limits[class])
    }

    /// Takes a slot; returns `false` if there is none.
    #[must_use]
    pub fn take(&mut self, class: usize) -> bool {
        let has_room = self.has_room(class);
        if has_room {
            self.taken[class] += 1;
        }
        has_room
    }

    /// Slots of a class that are taken.
    pub fn taken(&self, class: usize) -> usize {
        self.taken.get(class).copied().unwrap_or_default()
    }

    /// Slots of all classes that are taken.
    pub fn all_taken(&self) -> usize {
        self.taken.iter().sum()
    }

    /// Returns a slot.
    pub fn give(&mut self, class: usize) {
        if let Some(taken) = self.taken.get_mut(class) {
            *taken = taken.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Report, Simulation};
    use crate::{DirectPolicy, OverlayError, Result, Routes, Shape, Topology, Traffic};

    /// Queues of one message, nodes that send as fast as they can, and a pool that changes constantly.
    fn narrow(shape: Shape, nodes: usize, seed: u64, pool: DirectPolicy, through: DirectUse) -> Simulation {
        let traffic =
            Traffic { messages_per_node: 40, weights_percent: vec![30.0, 30.0], ..Traffic::default() };
        Simulation {
            traffic,
            pool,
            through,
            period_seconds: 1e-3,
            queue_messages: 1,
            window_messages: 1 + seed as usize % 4,
            ..Simulation::new(shape, nodes, seed)
        }
    }

    /// Checks that every message arrived exactly once.
    fn check(simulation: &Simulation, report: &Report) {
        let expected = simulation.traffic.drawn(simulation.nodes, simulation.seed);
        assert_eq!(report.demand, expected, "{simulation:?}");
    }

    #[test]
    fn classes_by_hops_never_deadlock() -> Result<()> {
        let shapes = [
            (Shape::Ring, 9),
            (Shape::Tree { arity: 2 }, 13),
            (Shape::Torus { dimensions: 2 }, 12),
            (Shape::Original { degree: 3 }, 14),
            (Shape::Kautz { degree: 2, both_ways: false }, 11),
            (Shape::Circulant { offsets: vec![2, 5] }, 16),
        ];
        for seed in 0..30 {
            for (shape, nodes) in shapes.clone() {
                let pools = [
                    (DirectPolicy::new(0, None), DirectUse::Own),
                    (
                        DirectPolicy { margin: 0.0, memory: 0.0, ..DirectPolicy::new(2, Some(3)) },
                        DirectUse::Own,
                    ),
                    (
                        DirectPolicy { margin: 0.0, memory: 0.0, ..DirectPolicy::new(2, Some(3)) },
                        DirectUse::All,
                    ),
                ];
                for (pool, through) in pools {
                    let simulation = narrow(shape.clone(), nodes, seed, pool, through);
                    check(&simulation, &simulation.run(None)?);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_single_class_can_deadlock() -> Result<()> {
        let routes = Routes::new(Topology::new(Shape::Ring, 9)?);
        let (mut arrived, mut stuck) = (0, 0);
        for seed in 0..30 {
            let simulation = narrow(Shape::Ring, 9, seed, DirectPolicy::new(0, None), DirectUse::Own);
            match simulation.run_with(&routes, Classes::single(), None) {
                Ok(report) => {
                    check(&simulation, &report);
                    arrived += 1;
                }
                Err(OverlayError::Deadlock { undelivered, .. }) => {
                    assert!(undelivered > 0);
                    stuck += 1;
                }
                Err(other) => return Err(other),
            }
        }
        assert!(stuck > 0, "{arrived} arrived");
        Ok(())
    }

    #[test]
    fn credits_count_slots_by_class() {
        let mut credits = Credits::new(&Classes::for_shortest(2, DirectUse::Own), 1);
        assert!(credits.take(2) && !credits.take(2) && credits.has_room(1));
        assert!(!credits.take(3));
        credits.give(2);
        assert!(credits.take(2));
    }

    #[test]
    fn a_hop_must_leave_enough_classes_to_arrive() {
        let classes = Classes::for_shortest(3, DirectUse::All);
        assert_eq!((classes.count(), classes.of(4), classes.of(5)), (5, Some(4), None));
        assert!(classes.may_hop(0, 3) && !classes.may_hop(1, 3) && classes.may_hop(3, 0));
    }
}
