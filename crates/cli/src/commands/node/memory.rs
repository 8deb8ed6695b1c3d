//! Divides the memory of a node.

use crate::error::CliError;
use crate::size::Size;

/// The shares of a node's memory, in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemoryShares {
    pub(super) tables: u64,
    pub(super) queries: u64,
    pub(super) rows: u64,
    pub(super) exchange: u64,
}

/// The memory of the program and its threads.
const PROGRAM_BYTES: u64 = 64 << 20;
/// The least memory of a node.
const MEMORY_BYTES_MIN: u64 = 2 * PROGRAM_BYTES;

impl MemoryShares {
    pub(super) fn of(memory: Size, in_memory: bool) -> Result<Self, CliError> {
        if memory.0 < MEMORY_BYTES_MIN {
            return Err(CliError::usage(format!("--memory: {memory} is not enough for a node"))
                .hint(format!("give it at least {}", Size(MEMORY_BYTES_MIN))));
        }
        let memory = memory.0 - PROGRAM_BYTES;
        let tables = if in_memory { memory / 2 } else { 0 };
        let rest = memory - tables;
        Ok(Self { tables, queries: rest / 2, rows: rest / 4, exchange: rest / 8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_within_the_memory() {
        const GIB: u64 = 1 << 30;
        let shares = MemoryShares::of(Size(4 * GIB + PROGRAM_BYTES), false).expect("enough");
        assert_eq!(shares, MemoryShares { tables: 0, queries: 2 * GIB, rows: GIB, exchange: GIB / 2 });
        let shares = MemoryShares::of(Size(4 * GIB + PROGRAM_BYTES), true).expect("enough");
        assert_eq!(shares, MemoryShares { tables: 2 * GIB, queries: GIB, rows: GIB / 2, exchange: GIB / 4 });
        assert!(MemoryShares::of(Size(MEMORY_BYTES_MIN - 1), false).is_err());
    }
}
