//! The settings of a transfer: what the user fixed, and what is left to us.

use std::num::NonZeroU32;

use lightship_wire::Codec;
use lightship_wire::control::Plan;
use lightship_wire::join::JOINED_MAX;

/// Bytes of rows that a transfer may hold at once, when nothing else is said.
const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// Least memory a transfer makes sense with: two batches of two small messages.
pub(crate) const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// M: the source of the columnar protocol found the optimum near 1 MB.
const MESSAGE_BYTES_DEFAULT: u64 = 1 << 20;
/// W, at most: batches of one message each make credit flow evenly, and so many of
/// them cover 10 Gbit/s at 10 ms.
const WINDOW_BATCHES_DEFAULT: u64 = 16;

/// The memory bound of a transfer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory(pub u64);

impl Default for Memory {
    fn default() -> Self {
        Self(MEMORY_BYTES_DEFAULT)
    }
}

/// What a user may fix of a transfer. `None` is `auto`, and the default of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Rows held here at once take no more than this. Half of it is for rows on
    /// their way, half for those being consumed.
    pub memory: Memory,
    /// F: rows of a batch. Small batches cost a credit's round trip each, large ones memory.
    pub batch_rows: Option<u32>,
    /// M: bytes of a message. Small ones cost calls and headers, large ones memory and delay.
    pub message_bytes: Option<u32>,
    /// Largest message for a single row that is larger than M; bounded by the memory.
    pub message_bytes_max: Option<u32>,
    /// W: batches asked for and not yet consumed; memory is W times the batch.
    pub window_batches: Option<u32>,
    /// How messages are encoded; left to us it follows the link. The stronger it is, the more of the
    /// processors of both ends it takes, and the less of the link.
    pub codec: Option<Codec>,
    /// Connections that the rows come over, where that is TCP: with more than 1, so many beside the
    /// first. They help where one connection is held down by loss, or by a limit for each; they cost
    /// the node a place and a handshake each, and others on the link their share. Left to us it is 1:
    /// that one is held down can't be told from a link that is full.
    pub streams: Option<NonZeroU32>,
}

impl Options {
    /// For the first rows of a result, when the rest is of no interest: little else is on its way.
    pub fn first_rows() -> Self {
        Self { memory: Memory(2 * MEMORY_BYTES_MIN), window_batches: Some(1), ..Self::default() }
    }

    /// The plan for a link. Where both ends share a host nothing is compressed;
    /// elsewhere the producer chooses the codec by what it measures.
    pub fn plan(&self, same_host: bool) -> Plan {
        let on_the_way = (self.memory.0 / 2).max(MEMORY_BYTES_MIN);
        let share = on_the_way / self.window_batches.map_or(WINDOW_BATCHES_DEFAULT, u64::from).max(1);
        let message = self.message_bytes.map_or(MESSAGE_BYTES_DEFAULT.min(share), u64::from).max(1);
        // Large messages that the user asked for leave room for fewer of them.
        let fitting = (on_the_way / message).clamp(1, WINDOW_BATCHES_DEFAULT);
        let window = self.window_batches.map_or(fitting, u64::from).max(1);
        // Memory that is not on the way can hold one row that is larger than a message.
        let row = self.message_bytes_max.map_or(on_the_way, u64::from).max(message);
        let capped = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        Plan {
            batch_rows: self.batch_rows.unwrap_or(0),
            batch_bytes: capped(match self.window_batches {
                Some(_) => share.max(message),
                None => message,
            }),
            message_bytes: capped(message),
            message_bytes_max: capped(row),
            window_batches: capped(window),
            codec: self.codec.or(same_host.then_some(Codec::None)),
            streams: self.streams.map_or(1, NonZeroU32::get).min(JOINED_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_keeps_within_the_memory() {
        for memory in [0, 1 << 20, 3 << 20, 64 << 20, 10 << 30] {
            for window in [None, Some(0), Some(1), Some(7), Some(1000)] {
                let options =
                    Options { memory: Memory(memory), window_batches: window, ..Options::default() };
                let plan = options.plan(true);
                let bound = memory.max(2 * MEMORY_BYTES_MIN) / 2;
                assert!(plan.memory_bytes() <= bound, "{memory} {window:?}: {plan:?}");
                assert!(
                    plan.message_bytes <= plan.batch_bytes && plan.message_bytes <= plan.message_bytes_max
                );
            }
        }
    }

    #[test]
    fn large_messages_leave_room_for_fewer() {
        for (message_bytes, window_batches) in [(1 << 10, 16), (8 << 20, 4), (32 << 20, 1)] {
            let options = Options { message_bytes: Some(message_bytes), ..Options::default() };
            let plan = options.plan(true);
            assert_eq!(plan.window_batches, window_batches);
            assert!(plan.memory_bytes() <= MEMORY_BYTES_DEFAULT / 2, "{plan:?}");
        }
    }

    #[test]
    fn what_the_user_fixes_stands() {
        let options = Options {
            batch_rows: Some(100),
            message_bytes: Some(5000),
            window_batches: Some(2),
            codec: Some(Codec::Zstd),
            streams: NonZeroU32::new(3),
            ..Options::default()
        };
        let plan = options.plan(true);
        assert_eq!((plan.batch_rows, plan.message_bytes, plan.window_batches), (100, 5000, 2));
        assert_eq!((plan.codec, plan.streams), (Some(Codec::Zstd), 3));
        assert_eq!(Options::default().plan(false).streams, 1);
        assert_eq!(Options::default().plan(false).codec, None);
        assert_eq!(Options::default().plan(true).codec, Some(Codec::None));
    }
}
