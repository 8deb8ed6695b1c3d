//! Codes for distinct values, in order of appearance.

/// A hash table from values to codes. The values themselves are the caller's.
pub(super) struct Codes {
    /// Code + 1, or 0; open addressing.
    slots: Vec<u16>,
    distinct: u16,
    limit: u16,
    rows: Vec<u16>,
}

/// More distinct values than a dictionary takes.
pub(super) struct TooMany;

impl Codes {
    /// For so many rows; gives up beyond `limit` values.
    pub(super) fn new(rows: usize, limit: u16) -> Self {
        let limit = limit.min(u16::try_from(rows).unwrap_or(u16::MAX));
        let slots = (2 * usize::from(limit) + 1).next_power_of_two();
        Self { slots: vec![0; slots], distinct: 0, limit, rows: Vec::with_capacity(rows) }
    }

    /// Gives the next row its code. `same` says whether a code stands for its
    /// value. Returns whether the value is new, and then has the next code.
    #[inline(always)]
    pub(super) fn push(&mut self, hash: u64, same: impl Fn(usize) -> bool) -> Result<bool, TooMany> {
        // The high bits of a product depend on all bits of the value.
        let mask = self.slots.len() - 1;
        let mut at = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                if self.distinct == self.limit {
                    return Err(TooMany);
                }
                self.rows.push(self.distinct);
                self.distinct += 1;
                self.slots[at] = self.distinct;
                return Ok(true);
            }
            if same(usize::from(slot) - 1) {
                self.rows.push(slot - 1);
                return Ok(false);
            }
            at = (at + 1) & mask;
        }
    }

    /// The code of each row.
    pub(super) fn rows(&self) -> &[u16] {
        &self.rows
    }
}
