//! The budget under random sequences of operations.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::budget::Budget;

#[derive(Debug, Clone, Copy)]
enum Operation {
    Open,
    /// A fraction of the credit arrives.
    Receive(f64),
    /// A fraction of what is buffered is consumed.
    Consume(f64),
    Close,
}

fn operation() -> impl Strategy<Value = (u64, Operation)> {
    let one = prop_oneof![
        2 => Just(Operation::Open),
        3 => (0.0f64..=1.0).prop_map(Operation::Receive),
        3 => (0.0f64..=1.0).prop_map(Operation::Consume),
        1 => Just(Operation::Close),
    ];
    (0u64..8, one)
}

proptest! {
    /// The sum never exceeds the budget, and an open part without data on the way can send at least the floor.
    #[test]
    fn the_budget_is_kept_and_every_part_can_proceed(
        floor in 1u64..1000,
        extra in 0u64..5000,
        in_order: bool,
        share in 1u64..5000,
        operations in prop::collection::vec(operation(), 0..200),
    ) {
        let max = floor * 2 + extra;
        let mut budget = Budget::new(max, floor, in_order);
        // Credit, buffered bytes, and whether it is open.
        let mut parts: BTreeMap<u64, (u64, u64, bool)> = BTreeMap::new();
        for (id, operation) in operations {
            let part = parts.entry(id).or_default();
            match operation {
                Operation::Open if !part.2 && budget.can_open(id, false) => {
                    *part = (budget.open(id, share), part.1, true);
                }
                Operation::Open => {}
                Operation::Receive(fraction) if part.2 => {
                    let bytes = (part.0 as f64 * fraction) as u64;
                    prop_assert!(budget.received(id, bytes).is_ok());
                    *part = (part.0 - bytes, part.1 + bytes, true);
                    prop_assert_eq!(budget.received(id, part.0 + 1), Err(part.0));
                }
                Operation::Receive(_) => {}
                Operation::Consume(fraction) => {
                    let bytes = (part.1 as f64 * fraction) as u64;
                    budget.consumed(id, bytes);
                    part.1 -= bytes;
                    if part.2 {
                        part.0 += budget.grant(id, share);
                    }
                }
                Operation::Close => {
                    budget.close(id);
                    *part = (0, part.1, false);
                }
            }
            let sum: u64 = parts.values().map(|(credit, buffered, _)| credit + buffered).sum();
            prop_assert!(sum <= max);
            for (credit, buffered, is_open) in parts.values() {
                prop_assert!(!is_open || credit + buffered >= floor);
            }
            prop_assert_eq!(budget.is_drained(id), parts[&id].1 == 0);
        }
        prop_assert!(budget.used_peak() <= max);
    }
}

#[test]
fn the_first_part_of_an_order_can_use_the_reserve() {
    let mut budget = Budget::new(300, 100, true);
    assert_eq!((budget.open(1, 100), budget.open(2, 100)), (100, 100));
    assert!(!budget.can_open(0, false));
    assert!(budget.can_open(0, true));
    assert_eq!(budget.open(0, 300), 100);
    assert_eq!(budget.used_peak(), 300);
}
