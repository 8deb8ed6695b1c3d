//! Codes for distinct values, in order of appearance.

/// A hash table from values to codes. The values themselves are the caller's.
pub(super) struct Codes {
    /// Code + 1, or 0; open addressing.
    slots: Vec<u16>,
    distinct: u16,
    limit: u16,
    /// Slots of other values that may still be looked at: hashes that are alike must not
    /// make the work quadratic.
    misses_left: usize,
    rows: Vec<u16>,
}

/// The maximum average of misses per row. A table that is at most half full stays far below it.
const MISSES_PER_ROW: usize = 8;

/// There are too many distinct values, or too many collisions of hashes.
pub(super) struct TooMany;

impl Codes {
    /// For this many rows; gives up beyond `limit` values.
    pub(super) fn new(rows: usize, limit: u16) -> Self {
        let limit = limit.min(u16::try_from(rows).unwrap_or(u16::MAX));
        let slots = (2 * usize::from(limit) + 1).next_power_of_two();
        Self {
            slots: vec![0; slots],
            distinct: 0,
            limit,
            misses_left: rows.saturating_mul(MISSES_PER_ROW),
            rows: Vec::with_capacity(rows),
        }
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
            self.misses_left = self.misses_left.checked_sub(1).ok_or(TooMany)?;
            at = (at + 1) & mask;
        }
    }

    /// The code of each row.
    pub(super) fn rows(&self) -> &[u16] {
        &self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the rows get a code.
    fn coded(rows: usize, value: impl Fn(usize) -> u64, hash: impl Fn(u64) -> u64) -> usize {
        let mut codes = Codes::new(rows, 1 << 12);
        let mut distinct = Vec::new();
        for row in 0..rows {
            let value = value(row);
            match codes.push(hash(value), |code| distinct[code] == value) {
                Ok(true) => distinct.push(value),
                Ok(false) => {}
                Err(TooMany) => return row,
            }
            assert_eq!(distinct[usize::from(codes.rows()[row])], value);
        }
        rows
    }

    #[test]
    fn equal_values_have_equal_codes() {
        assert_eq!(coded(10_000, |row| row as u64 % 4000, |value| value), 10_000);
        assert_eq!(coded(10_000, |row| row as u64 % 7, |_| 1), 10_000);
    }

    #[test]
    fn too_many_values_or_collisions_are_given_up() {
        assert_eq!(coded(10_000, |row| row as u64, |value| value), 1 << 12);
        // The n-th value would meet n others: 4000 of them 8 million.
        assert!(coded(4000, |row| row as u64, |_| 1) < 300);
    }
}
