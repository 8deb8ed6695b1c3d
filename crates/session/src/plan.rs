//! The settings of a transfer: what the user fixed, what is known of the link, and what is left to us.

use std::num::NonZeroU32;
use std::sync::LazyLock;

use lightship_tuner::{Bounds, Flight, Sizes};
use lightship_wire::Codec;
use lightship_wire::control::Plan;
use lightship_wire::join::JOINED_MAX;

use crate::known::Known;

/// Bytes of rows that a transfer may hold at once, when nothing else is said.
const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// Least memory a transfer makes sense with: two batches of two small messages.
pub(crate) const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// M: the source of the columnar protocol found the optimum near 1 MB.
const MESSAGE_BYTES_DEFAULT: u64 = 1 << 20;
/// Smaller ones cost both ends too much, and hardly compress.
const MESSAGE_BYTES_MIN: u64 = 64 << 10;
/// W, where nothing is known: batches of one message each make credit flow evenly, and so many of
/// them cover 10 Gbit/s at 10 ms.
const WINDOW_BATCHES_DEFAULT: u64 = 16;
/// W is never more.
const WINDOW_BATCHES_MAX: u64 = 256;

/// Connections that are tried for one result, where their number is left to us: others on the link are to
/// have their share.
pub(crate) const STREAMS_MAX: u32 = 4;

/// Batches that the ends are busy with: each processor has one in the making, or being read, at either end;
/// one is on the wire, one with the application. That the other end has more processors is not known.
static BUSY_BATCHES: LazyLock<u64> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get) as u64;
    (2 + 2 * processors).min(WINDOW_BATCHES_DEFAULT)
});

/// The memory bound of a transfer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory(pub u64);

impl Default for Memory {
    fn default() -> Self {
        Self(MEMORY_BYTES_DEFAULT)
    }
}

/// What a user may fix of a transfer. `None` is `auto`, and the default of all.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
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
    /// W: batches asked for and not yet consumed; memory is W times the batch. Left to us it begins
    /// with what is known of the link, and follows it on the way.
    pub window_batches: Option<u32>,
    /// How messages are encoded; left to us it follows the link. The stronger it is, the more of the
    /// processors of both ends it takes, and the less of the link.
    pub codec: Option<Codec>,
    /// Connections that the rows come over, where that is TCP: with more than 1, so many beside the
    /// first. They help where one connection is held down by loss, or by a limit for each; they cost
    /// the node a place and a handshake each, and others on the link their share. Left to us it is 1, and
    /// up to [`STREAMS_MAX`] where many segments are lost and trials show that more are faster.
    pub streams: Option<NonZeroU32>,
    /// What was seen of the link before. It makes the first plan; what is seen on the way corrects it.
    pub known: Known,
}

impl Options {
    /// For the first rows of a result, when the rest is of no interest: little else is on its way.
    pub fn first_rows() -> Self {
        Self { memory: Memory(2 * MEMORY_BYTES_MIN), window_batches: Some(1), ..Self::default() }
    }

    /// Bytes of rows that may be on their way.
    pub(crate) fn on_the_way_bytes(&self) -> u64 {
        (self.memory.0 / 2).max(MEMORY_BYTES_MIN)
    }

    /// Within what sizes may be chosen, with so many bytes on the way.
    fn bounds(&self, on_the_way: u64) -> Bounds {
        let share = on_the_way / self.window_batches.map_or(WINDOW_BATCHES_DEFAULT, u64::from).max(1);
        let message_bytes_max = self.message_bytes.map_or(MESSAGE_BYTES_DEFAULT.min(share), u64::from).max(1);
        Bounds {
            message_bytes_min: match self.message_bytes {
                Some(_) => message_bytes_max,
                None => MESSAGE_BYTES_MIN.min(message_bytes_max),
            },
            message_bytes_max,
            busy_batches: *BUSY_BATCHES,
            window_batches_max: WINDOW_BATCHES_MAX,
            memory_bytes_max: on_the_way,
        }
    }

    /// M and W that a transfer begins with over TCP, where neither is fixed.
    pub fn sizes(&self) -> Sizes {
        self.sizes_within(self.on_the_way_bytes())
    }

    fn sizes_within(&self, on_the_way: u64) -> Sizes {
        let bounds = self.bounds(on_the_way);
        match (self.window_batches, self.known.bytes_per_second, self.known.rtt_seconds) {
            (None, Some(pace), Some(rtt)) if self.batch_rows.is_none() => bounds.sizes(pace, rtt),
            (window, ..) => {
                // Large messages that the user asked for leave room for fewer of them.
                let message_bytes = bounds.message_bytes_max;
                let fitting = (on_the_way / message_bytes).clamp(1, WINDOW_BATCHES_DEFAULT);
                Sizes { message_bytes, window_batches: window.map_or(fitting, u64::from).max(1) }
            }
        }
    }

    /// Whether nothing of how rows travel is the user's.
    pub fn are_ours(&self) -> bool {
        let sizes = [self.batch_rows, self.message_bytes, self.window_batches];
        sizes.iter().all(Option::is_none) && self.codec.is_none() && self.memory.0 >= MEMORY_BYTES_DEFAULT / 2
    }

    /// The plan for a link, with so many bytes on the way. Where both ends share a host nothing is
    /// compressed; elsewhere the producer chooses the codec by what it measures.
    pub(crate) fn plan(&self, same_host: bool, on_the_way: u64) -> Plan {
        let Sizes { message_bytes, window_batches } = self.sizes_within(on_the_way);
        // Memory that is not on the way can hold one row that is larger than a message: whatever others
        // have on their way, lest a result depend on them.
        let row = self.message_bytes_max.map_or(self.on_the_way_bytes(), u64::from).max(message_bytes);
        let capped = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        Plan {
            batch_rows: self.batch_rows.unwrap_or(0),
            // A batch of so many rows, or one of so many in flight, is as large as there is room for.
            batch_bytes: capped(if self.window_batches.is_some() || self.batch_rows.is_some() {
                (on_the_way / window_batches).max(message_bytes)
            } else {
                message_bytes
            }),
            message_bytes: capped(message_bytes),
            message_bytes_max: capped(row),
            window_batches: capped(window_batches),
            codec: self.codec.or(same_host.then_some(Codec::None)),
            streams: self.streams.map_or(1, NonZeroU32::get).min(JOINED_MAX),
        }
    }

    /// Who follows the transfer of a plan; nobody where the user fixed what there is to change.
    pub(crate) fn flight(&self, plan: &Plan, on_the_way: u64) -> Option<Flight> {
        let rtt_seconds =
            self.known.rtt_seconds.filter(|_| self.window_batches.is_none() && self.batch_rows.is_none())?;
        let sizes =
            Sizes { message_bytes: plan.message_bytes.into(), window_batches: plan.window_batches.into() };
        Flight::new(self.bounds(on_the_way), rtt_seconds, sizes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(options: &Options) -> Plan {
        options.plan(true, options.on_the_way_bytes())
    }

    #[test]
    fn the_plan_keeps_within_the_memory() {
        for memory in [0, 1 << 20, 3 << 20, 64 << 20, 10 << 30] {
            for window_batches in [None, Some(0), Some(1), Some(7), Some(1000)] {
                for pace in [None, Some(1e3), Some(1e8), Some(1e12), Some(f64::NAN)] {
                    let known = Known { bytes_per_second: pace, rtt_seconds: Some(0.1), ..Known::default() };
                    let options =
                        Options { memory: Memory(memory), window_batches, known, ..Options::default() };
                    let plan = planned(&options);
                    let bound = memory.max(2 * MEMORY_BYTES_MIN) / 2;
                    assert!(plan.memory_bytes() <= bound, "{memory} {window_batches:?} {pace:?}: {plan:?}");
                    assert!(
                        plan.message_bytes <= plan.batch_bytes
                            && plan.message_bytes <= plan.message_bytes_max
                    );
                }
            }
        }
    }

    #[test]
    fn large_messages_leave_room_for_fewer() {
        for (message_bytes, window_batches) in [(1 << 10, 16), (8 << 20, 4), (32 << 20, 1)] {
            let options = Options { message_bytes: Some(message_bytes), ..Options::default() };
            let plan = planned(&options);
            assert_eq!(plan.window_batches, window_batches);
            assert!(plan.memory_bytes() <= MEMORY_BYTES_DEFAULT / 2, "{plan:?}");
        }
    }

    #[test]
    fn what_the_user_fixes_stands() {
        let known = Known { bytes_per_second: Some(1e3), rtt_seconds: Some(1.0), ..Known::default() };
        let options = Options {
            batch_rows: Some(100),
            message_bytes: Some(5000),
            window_batches: Some(2),
            codec: Some(Codec::Zstd),
            streams: NonZeroU32::new(3),
            known,
            ..Options::default()
        };
        let plan = planned(&options);
        assert_eq!((plan.batch_rows, plan.message_bytes, plan.window_batches), (100, 5000, 2));
        assert_eq!((plan.codec, plan.streams), (Some(Codec::Zstd), 3));
        assert!(options.flight(&plan, 1 << 20).is_none());
        let messages = Options { message_bytes: Some(5000), known, ..Options::default() };
        assert_eq!(planned(&messages).message_bytes, 5000);
        let default = Options::default();
        let elsewhere = default.plan(false, default.on_the_way_bytes());
        assert_eq!((elsewhere.streams, elsewhere.codec), (1, None));
        assert_eq!(planned(&default).codec, Some(Codec::None));
    }

    #[test]
    fn what_is_known_of_the_link_makes_the_window() {
        let window = |bytes_per_second, rtt_seconds| {
            let known = Known {
                bytes_per_second: Some(bytes_per_second),
                rtt_seconds: Some(rtt_seconds),
                ..Known::default()
            };
            let plan = planned(&Options { known, memory: Memory(1 << 30), ..Options::default() });
            assert_eq!(plan.batch_bytes, plan.message_bytes);
            u64::from(plan.window_batches) - *BUSY_BATCHES
        };
        // 1 Gbit/s on one site, and with 100 ms: 12 MB are on their way, and a quarter more.
        assert_eq!(window(125e6, 0.0003), 1);
        assert_eq!(window(125e6, 0.1), 15);
    }
}
