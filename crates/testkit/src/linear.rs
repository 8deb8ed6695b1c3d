//! Whether what was seen of one key could have happened in some order: each event at one moment between its start
//! and its end (linearizability; J. Wing and C. Gong, "Testing and Verifying Concurrent Objects", 1993). The
//! search tries the events that may be next, and remembers where it was.

use std::collections::HashSet;

/// A row of the key, by a number for its contents.
pub type Row = u32;

/// What happened to the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The row is this one now, whatever was there.
    Upsert(Row),
    /// There is no row now.
    Delete,
    /// The row is this one now. There was none.
    Insert(Row),
    /// Accepts a row that is the same.
    InsertAgain(Row),
    /// An insertion that found a row.
    Refused,
    /// An insertion of a row, again, that found another one.
    RefusedAgain(Row),
    /// This row was seen, or none.
    Read(Option<Row>),
}

/// An action, and when it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// Not before this moment.
    pub start: u64,
    /// Not after this moment; `None` if it has happened at some time after its start, or never.
    pub end: Option<u64>,
}

impl Event {
    /// Whether it changes what is there.
    pub fn is_change(&self) -> bool {
        !matches!(self.action, Action::Refused | Action::RefusedAgain(_) | Action::Read(_))
    }
}

impl Action {
    /// The row after it; `None` if it is impossible.
    fn apply(self, row: Option<Row>) -> Option<Option<Row>> {
        match self {
            Self::Upsert(new) => Some(Some(new)),
            Self::Delete => Some(None),
            Self::Insert(new) => row.is_none().then_some(Some(new)),
            Self::InsertAgain(new) => row.is_none_or(|row| row == new).then_some(Some(new)),
            Self::Refused => row.is_some().then_some(row),
            Self::RefusedAgain(new) => row.is_some_and(|row| row != new).then_some(row),
            Self::Read(seen) => (seen == row).then_some(row),
        }
    }
}

/// The most events without an end: a write whose requests are lost again and again has many.
const UNSURE_MAX: usize = 512;

/// Positions of events without an end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Used([u128; UNSURE_MAX / 128]);

impl Used {
    fn has(&self, at: usize) -> bool {
        self.0[at / 128] >> (at % 128) & 1 == 1
    }

    fn with(mut self, at: usize) -> Self {
        self.0[at / 128] |= 1 << (at % 128);
        self
    }
}

/// Where the search is: of the events in the order of their starts, all before `first` have happened, and those
/// after it whose bits are set; of those without an end, those whose bits are set.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    first: usize,
    later: u128,
    unsure: Used,
    row: Option<Row>,
}

/// Whether the events have an order in which all are possible. There is no row in the beginning.
pub fn is_linearizable(events: &[Event]) -> bool {
    let (mut sure, mut unsure): (Vec<Event>, Vec<Event>) =
        events.iter().partition(|event| event.end.is_some());
    sure.sort_by_key(|event| event.start);
    unsure.sort_by_key(|event| event.start);
    assert!(unsure.len() <= UNSURE_MAX, "{} events without an end", unsure.len());
    let mut open = vec![Place { first: 0, later: 0, unsure: Used::default(), row: None }];
    let mut seen = HashSet::new();
    while let Some(place) = open.pop() {
        if place.first == sure.len() {
            return true;
        }
        let is_open = |at: usize| at == place.first || place.later >> (at - place.first - 1) & 1 == 0;
        // An event that ends before another starts is before it.
        let mut limit = u64::MAX;
        for at in (place.first..sure.len()).take_while(|at| at - place.first <= 128) {
            if sure[at].start > limit {
                break;
            }
            if is_open(at) {
                limit = limit.min(sure[at].end.expect("an end"));
            }
        }
        let mut go = |next: Place| {
            if seen.insert(next) {
                open.push(next);
            }
        };
        for (at, event) in sure.iter().enumerate().skip(place.first) {
            if event.start > limit {
                break;
            }
            assert!(at - place.first <= 128, "too many events at once");
            if !is_open(at) {
                continue;
            }
            let mut next = place;
            if at == place.first {
                next.first += 1;
                while next.later & 1 == 1 {
                    (next.first, next.later) = (next.first + 1, next.later >> 1);
                }
                next.later >>= 1;
            } else {
                next.later |= 1 << (at - place.first - 1);
            }
            match event.action.apply(place.row) {
                Some(row) => go(Place { row, ..next }),
                None => prepared(place, event.action, &unsure, limit)
                    .for_each(|(unsure, row)| go(Place { unsure, row, ..next })),
            }
        }
    }
    false
}

/// The ways to make an action possible by events without an end: those that have happened then, and the row after
/// the action. Only an action that would be impossible without them needs such events right before it: one that
/// changes the row leaves the same row without them, and before any other they can just as well come later. Two
/// suffice, a deletion and an insertion.
fn prepared(
    place: Place,
    action: Action,
    unsure: &[Event],
    limit: u64,
) -> impl Iterator<Item = (Used, Option<Row>)> {
    let step = move |(used, row): (Used, Option<Row>)| {
        let is_free = move |at: usize| !used.has(at);
        let possible = unsure.iter().enumerate().take_while(move |(_, event)| event.start < limit);
        possible.filter_map(move |(at, event)| {
            // Of equal ones, the first.
            let is_first =
                !unsure[..at].iter().enumerate().any(|(at, e)| e.action == event.action && is_free(at));
            let row = (is_free(at) && is_first).then(|| event.action.apply(row))??;
            Some((used.with(at), row))
        })
    };
    let one = step((place.unsure, place.row));
    let two = one.clone().filter(|(_, row)| row.is_none()).flat_map(step);
    one.chain(two).filter_map(move |(used, row)| Some((used, action.apply(row)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: bool, events: &[(Action, u64, Option<u64>)]) {
        let events: Vec<Event> =
            events.iter().map(|&(action, start, end)| Event { action, start, end }).collect();
        assert_eq!(is_linearizable(&events), expected, "{events:?}");
    }

    #[test]
    fn orders_are_found() {
        use Action::{Delete, Insert, InsertAgain, Read, Refused, RefusedAgain, Upsert};
        check(true, &[(Upsert(1), 1, Some(4)), (Read(None), 2, Some(3)), (Read(Some(1)), 5, Some(6))]);
        check(false, &[(Upsert(1), 1, Some(2)), (Read(None), 3, Some(4))]);
        // A read sees a row that a later one does not.
        check(false, &[(Upsert(1), 1, Some(9)), (Read(Some(1)), 2, Some(3)), (Read(None), 4, Some(5))]);
        check(true, &[(Upsert(1), 1, None), (Read(None), 2, Some(3)), (Read(Some(1)), 4, Some(5))]);
        check(true, &[(Upsert(1), 1, None), (Read(None), 2, Some(3)), (Read(None), 4, Some(5))]);
        check(false, &[(Upsert(1), 1, None), (Read(Some(1)), 2, Some(3)), (Read(None), 4, Some(5))]);
        check(false, &[(Upsert(1), 4, None), (Read(Some(1)), 2, Some(3))]);
        check(false, &[(Insert(1), 1, Some(2)), (Insert(2), 3, Some(4))]);
        check(true, &[(Insert(1), 1, Some(2)), (Delete, 1, Some(4)), (Insert(2), 3, Some(4))]);
        check(true, &[(Insert(1), 1, Some(2)), (InsertAgain(1), 3, Some(4)), (Refused, 5, Some(6))]);
        check(false, &[(Insert(1), 1, Some(2)), (RefusedAgain(1), 3, Some(4))]);
        check(false, &[(Insert(1), 1, Some(2)), (Delete, 3, Some(4)), (Refused, 5, Some(6))]);
    }

    #[test]
    fn events_without_an_end_are_used_when_they_are_needed() {
        use Action::{Delete, Insert, InsertAgain, Read, Refused, Upsert};
        let deleted = (Delete, 2, None);
        check(
            true,
            &[(Insert(1), 1, Some(3)), (InsertAgain(2), 2, None), deleted, (Read(Some(2)), 5, Some(6))],
        );
        check(false, &[(Insert(1), 1, Some(3)), (InsertAgain(2), 2, None), (Read(Some(2)), 5, Some(6))]);
        check(true, &[(Upsert(1), 1, None), (Refused, 5, Some(6)), (Insert(2), 7, Some(8)), deleted]);
        check(false, &[(Upsert(1), 1, None), (Refused, 5, Some(6)), (Insert(2), 7, Some(8))]);
        // Those that nobody needs do not make the search long.
        let mut events: Vec<_> = (0..60).map(|row| (Upsert(row), 1, None)).collect();
        events.extend([deleted; 150]);
        events.extend(
            (0..60).map(|row| (Read(Some(59 - row)), 10 + u64::from(row), Some(10 + u64::from(row)))),
        );
        check(true, &events);
        events.push((Read(Some(59)), 80, Some(81)));
        check(false, &events);
    }

    #[test]
    fn many_events_are_searched() {
        let mut events = Vec::new();
        for round in 0..100u64 {
            for writer in 0..4 {
                let (start, end) = (round * 10, round * 10 + 9);
                let action = Action::Upsert(round as u32 * 4 + writer);
                events.push(Event { action, start, end: Some(end) });
            }
            let action = Action::Read(Some(round as u32 * 4 + 2));
            events.push(Event { action, start: round * 10 + 9, end: Some(round * 10 + 9) });
        }
        assert!(is_linearizable(&events));
        events.push(Event { action: Action::Read(None), start: 2000, end: Some(2001) });
        assert!(!is_linearizable(&events));
    }
}
