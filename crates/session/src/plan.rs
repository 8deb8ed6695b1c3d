//! The settings of a transfer: what the user fixed, what is known about the link, and what is chosen
//! automatically.

use std::num::NonZeroU32;
use std::sync::LazyLock;

use lightship_tuner::{Bounds, Sizes, WindowController};
use lightship_wire::Codec;
use lightship_wire::control::Plan;
use lightship_wire::join::JOINED_MAX;

use crate::prior::LinkPrior;

/// Default for the bytes of rows that a transfer may hold at once.
const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// Minimum memory for rows in flight: two batches of two small messages.
pub(crate) const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// M: the paper on the columnar protocol found the optimum near 1 MB.
const MESSAGE_BYTES_DEFAULT: u64 = 1 << 20;
/// Smaller messages cost both ends too much, and hardly compress.
const MESSAGE_BYTES_MIN: u64 = 64 << 10;
/// W if nothing is known about the link. Batches of one message make credit flow evenly, and this many
/// cover 10 Gbit/s at 10 ms.
const WINDOW_BATCHES_DEFAULT: u64 = 16;
/// Maximum W.
const WINDOW_BATCHES_MAX: u64 = 256;

/// Maximum connections that are tried for one result if their number is `auto`. The limit leaves others
/// on the link their share.
pub(crate) const STREAMS_MAX: u32 = 4;

/// Batches that the two ends work on: each processor of either end encodes or decodes one, one is on
/// the wire, and one is with the application. The other end is assumed to have as many processors as
/// this one.
static BUSY_BATCHES: LazyLock<u64> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get) as u64;
    (2 + 2 * processors).min(WINDOW_BATCHES_DEFAULT)
});

/// The memory limit of a transfer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory(pub u64);

impl Default for Memory {
    fn default() -> Self {
        Self(MEMORY_BYTES_DEFAULT)
    }
}

/// The settings of a transfer that a user may fix. `None`, the default, is `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Options {
    /// Maximum memory for rows held by the receiver. Half of it is for rows in
    /// flight, half for rows being consumed.
    pub memory: Memory,
    /// F: rows per batch. Each batch costs a round trip of credit; large batches cost memory.
    pub batch_rows: Option<u32>,
    /// M: bytes per message. Small messages cost calls and headers, large ones memory and delay.
    pub message_bytes: Option<u32>,
    /// The largest message, for a single row larger than M; limited by the memory.
    pub message_bytes_max: Option<u32>,
    /// W: batches requested and not yet consumed. They take W times the size of a batch. `auto` starts
    /// from what is known about the link, and adapts during the transfer.
    pub window_batches: Option<u32>,
    /// How messages are encoded. A stronger codec takes more processor time at both ends and less of
    /// the link. `auto` adapts to the link.
    pub codec: Option<Codec>,
    /// TCP connections that carry the rows.
    /// They help if packet loss or a per-connection limit slows down a single connection. Each costs
    /// the node a connection slot and a handshake, and they take bandwidth from others on the link.
    /// `auto` is 1, and up to [`STREAMS_MAX`] if many segments are lost and trials show that more
    /// connections are faster.
    pub streams: Option<NonZeroU32>,
    /// What is known about the link from before. It determines the initial plan, which measurements
    /// during the transfer correct.
    pub known: LinkPrior,
}

impl Options {
    /// Options for reading only the first rows of a result: few other rows are in flight.
    pub fn first_rows() -> Self {
        Self { memory: Memory(2 * MEMORY_BYTES_MIN), window_batches: Some(1), ..Self::default() }
    }

    /// Maximum bytes of rows in flight.
    pub(crate) fn on_the_way_bytes(&self) -> u64 {
        (self.memory.0 / 2).max(MEMORY_BYTES_MIN)
    }

    /// Bounds for the sizes, with at most `on_the_way` bytes in flight.
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

    /// The initial M and W of a transfer over TCP if neither is fixed.
    pub fn sizes(&self) -> Sizes {
        self.sizes_within(self.on_the_way_bytes())
    }

    fn sizes_within(&self, on_the_way: u64) -> Sizes {
        let bounds = self.bounds(on_the_way);
        match (self.window_batches, self.known.bytes_per_second, self.known.rtt_seconds) {
            (None, Some(pace), Some(rtt)) if self.batch_rows.is_none() => bounds.sizes(pace, rtt),
            (window, ..) => {
                // If the user asked for large messages, fewer fit.
                let message_bytes = bounds.message_bytes_max;
                let fitting = (on_the_way / message_bytes).clamp(1, WINDOW_BATCHES_DEFAULT);
                Sizes { message_bytes, window_batches: window.map_or(fitting, u64::from).max(1) }
            }
        }
    }

    /// Whether all settings are `auto`, except `streams`, and the memory is at least half the default.
    pub fn are_ours(&self) -> bool {
        let sizes = [self.batch_rows, self.message_bytes, self.window_batches];
        sizes.iter().all(Option::is_none) && self.codec.is_none() && self.memory.0 >= MEMORY_BYTES_DEFAULT / 2
    }

    /// The plan for a link, with at most `on_the_way` bytes in flight. Rows are not compressed if both
    /// ends are on the same host; otherwise the producer chooses the codec by what it measures.
    pub(crate) fn plan(&self, same_host: bool, on_the_way: u64) -> Plan {
        let Sizes { message_bytes, window_batches } = self.sizes_within(on_the_way);
        // The other half of the memory can hold one row that is larger than a message. This limit
        // ignores the lease, so that the success of a transfer does not depend on other transfers.
        let row = self.message_bytes_max.map_or(self.on_the_way_bytes(), u64::from).max(message_bytes);
        let capped = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        Plan {
            batch_rows: self.batch_rows.unwrap_or(0),
            // If the user fixed F or W, a batch may be as large as the memory allows.
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

    /// The controller that adapts the sizes during the transfer; `None` if the user fixed F or W, or no
    /// round trip is known.
    pub(crate) fn flight(&self, plan: &Plan, on_the_way: u64) -> Option<WindowController> {
        let rtt_seconds =
            self.known.rtt_seconds.filter(|_| self.window_batches.is_none() && self.batch_rows.is_none())?;
        let sizes =
            Sizes { message_bytes: plan.message_bytes.into(), window_batches: plan.window_batches.into() };
        WindowController::new(self.bounds(on_the_way), rtt_seconds, sizes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(options: &Options) -> Plan {
        options.plan(true, options.on_the_way_bytes())
    }

    #[test]
    fn a_plan_stays_within_the_memory_limit() {
        for memory in [0, 1 << 20, 3 << 20, 64 << 20, 10 << 30] {
            for window_batches in [None, Some(0), Some(1), Some(7), Some(1000)] {
                for pace in [None, Some(1e3), Some(1e8), Some(1e12), Some(f64::NAN)] {
                    let known =
                        LinkPrior { bytes_per_second: pace, rtt_seconds: Some(0.1), ..LinkPrior::default() };
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
    fn large_messages_make_the_window_smaller() {
        for (message_bytes, window_batches) in [(1 << 10, 16), (8 << 20, 4), (32 << 20, 1)] {
            let options = Options { message_bytes: Some(message_bytes), ..Options::default() };
            let plan = planned(&options);
            assert_eq!(plan.window_batches, window_batches);
            assert!(plan.memory_bytes() <= MEMORY_BYTES_DEFAULT / 2, "{plan:?}");
        }
    }

    #[test]
    fn a_plan_keeps_the_settings_that_the_user_fixed() {
        let known = LinkPrior { bytes_per_second: Some(1e3), rtt_seconds: Some(1.0), ..LinkPrior::default() };
        let options = Options {
            batch_rows: Some(100),
            message_bytes: Some(5000),
            window_batches: Some(2),
            codec: Some(Codec::LightZstd),
            streams: NonZeroU32::new(3),
            known,
            ..Options::default()
        };
        let plan = planned(&options);
        assert_eq!((plan.batch_rows, plan.message_bytes, plan.window_batches), (100, 5000, 2));
        assert_eq!((plan.codec, plan.streams), (Some(Codec::LightZstd), 3));
        assert!(options.flight(&plan, 1 << 20).is_none());
        let messages = Options { message_bytes: Some(5000), known, ..Options::default() };
        assert_eq!(planned(&messages).message_bytes, 5000);
        let default = Options::default();
        let elsewhere = default.plan(false, default.on_the_way_bytes());
        assert_eq!((elsewhere.streams, elsewhere.codec), (1, None));
        assert_eq!(planned(&default).codec, Some(Codec::None));
    }

    #[test]
    fn the_window_follows_from_what_is_known_about_the_link() {
        let window = |bytes_per_second, rtt_seconds| {
            let known = LinkPrior {
                bytes_per_second: Some(bytes_per_second),
                rtt_seconds: Some(rtt_seconds),
                ..LinkPrior::default()
            };
            let plan = planned(&Options { known, memory: Memory(1 << 30), ..Options::default() });
            assert_eq!(plan.batch_bytes, plan.message_bytes);
            u64::from(plan.window_batches) - *BUSY_BATCHES
        };
        // 1 Gbit/s within a site, and with 100 ms: 12.5 MB in flight, plus a quarter.
        assert_eq!(window(125e6, 0.0003), 1);
        assert_eq!(window(125e6, 0.1), 15);
    }
}
