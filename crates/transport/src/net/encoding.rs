//! Encodes several messages at a time on other threads, and returns them in order.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use lightship_wire::tuning::{Retune, Sizes};
use lightship_wire::{Codec, EncodedMessage, Encoder, WireError};

use super::jobs::{EncodingPermit, Job, PROCESSORS, hold};
use super::lock;
use super::produce::MessageRows;
use crate::adapt::CodecsKnown;

/// An encoded message, and the time that it took.
pub(super) struct Encoded {
    pub(super) message: Result<EncodedMessage, WireError>,
    pub(super) codec: Codec,
    /// The maximum size of its rows in the plain layout.
    pub(super) bytes: u64,
    pub(super) took: Duration,
}

/// The output of [`Encoding`], in the order of its input.
pub(super) enum Step {
    Message(Encoded),
    BatchEnd,
    Retune(Retune),
    Resize(Sizes),
}

enum Pending {
    Encoding { job: Job<(Encoder, Encoded)>, _room: EncodingSlot },
    BatchEnd,
    Retune(Retune),
    Resize(Sizes),
}

/// A message's share of the memory for encoding. `None` for a result's first message, which needs no share.
pub(super) struct EncodingSlot(
    #[expect(dead_code, reason = "it is given back when dropped")] Option<EncodingPermit>,
);

/// Limits for idle encoders: their number, and their memory together. One may hold 200 KB for each column
/// of text.
const ENCODERS_KEPT: usize = 4;
const ENCODERS_BYTES_MAX: usize = 8 << 20;
/// An encoder with more memory than this, which only large messages need, is shrunk.
const SCRATCH_BYTES_MAX: usize = 2 << 20;

/// What results with similar rows can share.
#[derive(Clone, Default)]
pub struct Encoders(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    /// Idle encoders. They keep what they learnt of the columns.
    idle: Vec<Encoder>,
    codecs: Option<CodecsKnown>,
}

impl std::fmt::Debug for Encoders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Encoders").finish_non_exhaustive()
    }
}

impl Encoders {
    fn take(&self) -> Encoder {
        lock(&self.0).idle.pop().unwrap_or_else(|| Encoder::new(Codec::None))
    }

    fn put(&self, mut encoder: Encoder) {
        if encoder.memory_bytes() > SCRATCH_BYTES_MAX {
            encoder.shrink();
        }
        let idle = &mut lock(&self.0).idle;
        let kept: usize = idle.iter().map(Encoder::memory_bytes).sum();
        // Always keep one: without it, each message would have to examine the columns again.
        let has_room = idle.len() < ENCODERS_KEPT && kept + encoder.memory_bytes() <= ENCODERS_BYTES_MAX;
        if idle.is_empty() || has_room {
            idle.push(encoder);
        }
    }

    /// What results before have learned of the codecs.
    pub(super) fn codecs(&self) -> Option<CodecsKnown> {
        lock(&self.0).codecs
    }

    pub(super) fn learn(&self, codecs: CodecsKnown) {
        let known = &mut lock(&self.0).codecs;
        *known = Some(known.map_or(codecs, |known| known.and(codecs)));
    }
}

/// The messages of one result that are being encoded, or are encoded and not taken yet: at most one for each
/// processor, within the memory limit of the process. One is always allowed.
pub(super) struct Encoding {
    steps: VecDeque<Pending>,
    messages: usize,
    encoders: Encoders,
}

impl Encoding {
    pub(super) fn new(encoders: Encoders) -> Self {
        Self { steps: VecDeque::new(), messages: 0, encoders }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Room for another message of `bytes`; `None` if others must be taken first.
    pub(super) fn room(&self, bytes: u64) -> Option<EncodingSlot> {
        match self.messages {
            // A result never waits for another one, even if others have all the room.
            0 => Some(EncodingSlot(hold(bytes))),
            messages if messages >= *PROCESSORS => None,
            _ => hold(bytes).map(|held| EncodingSlot(Some(held))),
        }
    }

    /// Encodes immediately, on this thread.
    pub(super) fn here(&mut self, codec: Codec, rows: &MessageRows) -> Encoded {
        let mut encoder = self.encoders.take();
        let encoded = encode(&mut encoder, codec, rows);
        self.encoders.put(encoder);
        encoded
    }

    /// Starts to encode on another thread.
    pub(super) fn start(&mut self, codec: Codec, rows: MessageRows, room: EncodingSlot) {
        let mut encoder = self.encoders.take();
        let job = Job::start(move || {
            let encoded = encode(&mut encoder, codec, &rows);
            (encoder, encoded)
        });
        self.steps.push_back(Pending::Encoding { job, _room: room });
        self.messages += 1;
    }

    /// Ends the batch after the messages added so far.
    pub(super) fn end_batch(&mut self) {
        self.steps.push_back(Pending::BatchEnd);
    }

    /// Changes the codec after the messages added so far.
    pub(super) fn retune(&mut self, retune: Retune) {
        self.steps.push_back(Pending::Retune(retune));
    }

    /// Changes the sizes after the messages added so far.
    pub(super) fn resize(&mut self, sizes: Sizes) {
        self.steps.push_back(Pending::Resize(sizes));
    }

    /// The next step; pending while there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Step> {
        poll_fn(|context| {
            let step = match self.steps.front_mut() {
                None => return Poll::Pending,
                Some(Pending::BatchEnd) => Ok(Step::BatchEnd),
                Some(Pending::Retune(retune)) => Ok(Step::Retune(*retune)),
                Some(Pending::Resize(sizes)) => Ok(Step::Resize(*sizes)),
                Some(Pending::Encoding { job, .. }) => {
                    let done = ready!(Pin::new(job).poll(context));
                    self.messages -= 1;
                    done.map(|(encoder, encoded)| {
                        self.encoders.put(encoder);
                        Step::Message(encoded)
                    })
                }
            };
            self.steps.pop_front();
            Poll::Ready(step)
        })
        .await
    }
}

fn encode(encoder: &mut Encoder, codec: Codec, rows: &MessageRows) -> Encoded {
    let began = Instant::now();
    encoder.set_codec(codec);
    let message = encoder.encode_all(&rows.batches);
    Encoded { message, codec, bytes: rows.bytes, took: began.elapsed() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Decimal128Array, RecordBatch, StringArray};

    use super::*;
    use crate::net::jobs::HELD_BYTES_MAX;

    fn rows(bytes: usize) -> RecordBatch {
        let column = StringArray::from(vec!["x".repeat(bytes)]);
        RecordBatch::try_from_iter([("text", Arc::new(column) as _)]).unwrap()
    }

    /// Numbers that only a compressor of bytes makes smaller.
    fn repeating(bytes: usize) -> RecordBatch {
        let values = (0..bytes / 16).map(|row| [i128::MAX, i128::MIN][row % 2]);
        let column = Decimal128Array::from_iter_values(values);
        RecordBatch::try_from_iter([("number", Arc::new(column) as _)]).unwrap()
    }

    #[tokio::test]
    async fn messages_being_encoded_are_bounded_in_bytes() {
        let mut encoding = Encoding::new(Encoders::default());
        // Larger than the limit of the process: it is encoded, but no other beside it.
        let huge = HELD_BYTES_MAX + 1;
        let room = encoding.room(huge).unwrap();
        encoding.start(Codec::None, MessageRows { batches: vec![rows(1)], bytes: huge }, room);
        assert!(encoding.room(huge).is_none());
        assert!(matches!(encoding.next().await.unwrap(), Step::Message(_)));
        assert!(encoding.room(huge).is_some());
    }

    #[test]
    fn idle_encoders_are_bounded_in_bytes() {
        let encoders = Encoders::default();
        for _ in 0..2 * ENCODERS_KEPT {
            let mut encoder = Encoder::new(Codec::LightZstd);
            encoder.encode(&repeating(8 << 20)).unwrap();
            assert!(encoder.memory_bytes() > SCRATCH_BYTES_MAX);
            encoders.put(encoder);
        }
        let idle = &lock(&encoders.0).idle;
        assert!((1..=ENCODERS_KEPT).contains(&idle.len()));
        let kept: usize = idle.iter().map(Encoder::memory_bytes).sum();
        assert!(kept <= ENCODERS_BYTES_MAX, "{kept}");
    }
}
