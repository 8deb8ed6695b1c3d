//! Divides the bytes in flight among the parts that are being received.

use std::collections::HashMap;

/// What a part has of the budget, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// What its sender may still send.
    credit: u64,
    /// What arrived and wasn't consumed.
    buffered: u64,
    /// It is being received, so at least the floor is set aside for it.
    is_open: bool,
}

impl Held {
    fn bytes(self) -> u64 {
        self.credit + self.buffered
    }

    fn committed(self, floor: u64) -> u64 {
        if self.is_open { self.bytes().max(floor) } else { self.bytes() }
    }
}

/// The budget. Every open part has an equal share, but never less than the floor, so that each can always proceed: a
/// sender without data on the way always has credit for the floor.
#[derive(Debug)]
pub(super) struct Budget {
    max: u64,
    floor: u64,
    /// Set aside for the first part of those received in order.
    reserve: u64,
    held: HashMap<u64, Held>,
    committed: u64,
    /// Credit and buffered bytes of all parts; at most `committed`.
    used: u64,
    used_peak: u64,
}

impl Budget {
    pub(super) fn new(max: u64, floor: u64, in_order: bool) -> Self {
        let reserve = if in_order { floor } else { 0 };
        Self { max, floor, reserve, held: HashMap::new(), committed: 0, used: 0, used_peak: 0 }
    }

    /// The most bytes that were in flight or buffered at any time.
    pub(super) fn used_peak(&self) -> u64 {
        self.used_peak
    }

    /// Whether another part can be opened. The first one of those in order may use the reserve.
    pub(super) fn can_open(&self, part: u64, is_first: bool) -> bool {
        let mut held = self.held.get(&part).copied().unwrap_or_default();
        let before = held.committed(self.floor);
        held.is_open = true;
        let limit = if is_first { self.max } else { self.max - self.reserve };
        self.committed - before + held.committed(self.floor) <= limit
    }

    /// Opens a part, for which [`Budget::can_open`] holds. Returns the bytes that its sender is granted.
    pub(super) fn open(&mut self, part: u64, share: u64) -> u64 {
        self.change(part, |held| held.is_open = true);
        self.grant(part, share)
    }

    /// Grants a part what it lacks of its share, as far as there is room; always up to the floor. Zero if it lacks
    /// too little to be worth it.
    pub(super) fn grant(&mut self, part: u64, share: u64) -> u64 {
        let Some(&held) = self.held.get(&part) else { return 0 };
        let share = share.max(self.floor);
        let lacks = share.saturating_sub(held.bytes());
        if !held.is_open || (lacks < share / 4 && held.bytes() >= self.floor) {
            return 0;
        }
        let set_aside = held.committed(self.floor) - held.bytes();
        let free = (self.max - self.reserve).saturating_sub(self.committed);
        let bytes = lacks.min(set_aside + free);
        self.change(part, |held| held.credit += bytes);
        bytes
    }

    /// Notes that rows arrived. Fails with the credit of the part if they exceed it.
    pub(super) fn received(&mut self, part: u64, bytes: u64) -> Result<(), u64> {
        let credit = self.held.get(&part).map_or(0, |held| held.credit);
        if bytes > credit {
            return Err(credit);
        }
        self.change(part, |held| {
            held.credit -= bytes;
            held.buffered += bytes;
        });
        Ok(())
    }

    /// Notes that rows were consumed.
    pub(super) fn consumed(&mut self, part: u64, bytes: u64) {
        self.change(part, |held| held.buffered = held.buffered.saturating_sub(bytes));
    }

    /// The sender of a part sends no more.
    pub(super) fn close(&mut self, part: u64) {
        self.change(part, |held| (held.credit, held.is_open) = (0, false));
    }

    /// Whether everything that arrived of a part was consumed.
    pub(super) fn is_drained(&self, part: u64) -> bool {
        self.held.get(&part).is_none_or(|held| held.buffered == 0)
    }

    fn change(&mut self, part: u64, change: impl FnOnce(&mut Held)) {
        let held = self.held.entry(part).or_default();
        let before = *held;
        change(held);
        let after = *held;
        self.committed = self.committed - before.committed(self.floor) + after.committed(self.floor);
        self.used = self.used - before.bytes() + after.bytes();
        self.used_peak = self.used_peak.max(self.used);
        debug_assert!(self.used <= self.committed && self.committed <= self.max);
        if !after.is_open && after.bytes() == 0 {
            self.held.remove(&part);
        }
    }
}
