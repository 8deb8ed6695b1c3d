//! Messages being encoded beside their connection, several at once, in order.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use lightship_wire::tuning::{Retune, Sizes};
use lightship_wire::{Codec, EncodedMessage, Encoder, WireError};

use super::jobs::{Held, Job, PROCESSORS, hold};
use super::lock;

/// A message, and what it took.
pub(super) struct Encoded {
    pub(super) message: Result<EncodedMessage, WireError>,
    pub(super) codec: Codec,
    /// Of its rows, as a plain message at most.
    pub(super) bytes: u64,
    pub(super) took: Duration,
}

/// What comes out, in the order in which it went in.
pub(super) enum Step {
    Message(Encoded),
    BatchEnd,
    Retune(Retune),
    Resize(Sizes),
}

enum Pending {
    Encoding { job: Job<(Encoder, Encoded)>, _room: Room },
    BatchEnd,
    Retune(Retune),
    Resize(Sizes),
}

/// A message's share of what may be in the making.
pub(super) struct Room(#[expect(dead_code, reason = "it is given back when dropped")] Option<Held>);

/// So many encoders are kept for the next rows of their kind, and so much memory by all of them: one may hold 200 KB for
/// each column of text.
const ENCODERS_KEPT: usize = 4;
const ENCODERS_BYTES_MAX: usize = 8 << 20;
/// Memory that an encoder keeps only for larger messages than most.
const SCRATCH_BYTES_MAX: usize = 2 << 20;

/// Encoders at rest. They keep what they learnt of the columns, which results of the same rows can share.
#[derive(Clone, Default)]
pub struct Encoders(Arc<Mutex<Vec<Encoder>>>);

impl std::fmt::Debug for Encoders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Encoders").finish_non_exhaustive()
    }
}

impl Encoders {
    fn take(&self) -> Encoder {
        lock(&self.0).pop().unwrap_or_else(|| Encoder::new(Codec::None))
    }

    fn put(&self, mut encoder: Encoder) {
        if encoder.memory_bytes() > SCRATCH_BYTES_MAX {
            encoder.shrink();
        }
        let mut idle = lock(&self.0);
        let kept: usize = idle.iter().map(Encoder::memory_bytes).sum();
        // One always: without it each message would find out again what the columns are like.
        let has_room = idle.len() < ENCODERS_KEPT && kept + encoder.memory_bytes() <= ENCODERS_BYTES_MAX;
        if idle.is_empty() || has_room {
            idle.push(encoder);
        }
    }
}

/// The messages of one result that are being encoded: as many are in the making, or made and not
/// yet taken, as there are processors, and as there is room for in the process; one always.
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

    /// Room for another message of so many bytes; nothing where others have to be taken first.
    pub(super) fn room(&self, bytes: u64) -> Option<Room> {
        match self.messages {
            // Where others have all the room, each result still goes on: none may wait for another one.
            0 => Some(Room(hold(bytes))),
            messages if messages >= *PROCESSORS => None,
            _ => hold(bytes).map(|held| Room(Some(held))),
        }
    }

    /// Encodes at once, on this thread.
    pub(super) fn here(&mut self, codec: Codec, rows: &RecordBatch, bytes: u64) -> Encoded {
        let mut encoder = self.encoders.take();
        let encoded = encode(&mut encoder, codec, rows, bytes);
        self.encoders.put(encoder);
        encoded
    }

    /// Begins to encode.
    pub(super) fn start(&mut self, codec: Codec, rows: RecordBatch, bytes: u64, room: Room) {
        let mut encoder = self.encoders.take();
        let job = Job::start(move || {
            let encoded = encode(&mut encoder, codec, &rows, bytes);
            (encoder, encoded)
        });
        self.steps.push_back(Pending::Encoding { job, _room: room });
        self.messages += 1;
    }

    /// The batch ends after what went in so far.
    pub(super) fn end_batch(&mut self) {
        self.steps.push_back(Pending::BatchEnd);
    }

    /// The codec changes after what went in so far.
    pub(super) fn retune(&mut self, retune: Retune) {
        self.steps.push_back(Pending::Retune(retune));
    }

    /// Sizes change after what went in so far.
    pub(super) fn resize(&mut self, sizes: Sizes) {
        self.steps.push_back(Pending::Resize(sizes));
    }

    /// What comes next; pending while there is nothing. Cancel-safe.
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

fn encode(encoder: &mut Encoder, codec: Codec, rows: &RecordBatch, bytes: u64) -> Encoded {
    let began = Instant::now();
    encoder.set_codec(codec);
    let message = encoder.encode(rows);
    Encoded { message, codec, bytes, took: began.elapsed() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::StringArray;

    use super::*;
    use crate::net::jobs::HELD_BYTES_MAX;

    fn rows(bytes: usize) -> RecordBatch {
        let column = StringArray::from(vec!["x".repeat(bytes)]);
        RecordBatch::try_from_iter([("text", Arc::new(column) as _)]).unwrap()
    }

    #[tokio::test]
    async fn messages_in_the_making_are_bounded_in_bytes() {
        let mut encoding = Encoding::new(Encoders::default());
        // Larger than all there may be: it is made, and no other beside it.
        let huge = HELD_BYTES_MAX + 1;
        let room = encoding.room(huge).unwrap();
        encoding.start(Codec::None, rows(1), huge, room);
        assert!(encoding.room(huge).is_none());
        assert!(matches!(encoding.next().await.unwrap(), Step::Message(_)));
        assert!(encoding.room(huge).is_some());
    }

    #[test]
    fn encoders_at_rest_are_bounded_in_bytes() {
        let encoders = Encoders::default();
        for _ in 0..2 * ENCODERS_KEPT {
            let mut encoder = Encoder::new(Codec::Zstd);
            encoder.encode(&rows(8 << 20)).unwrap();
            encoders.put(encoder);
        }
        let idle = lock(&encoders.0);
        assert!((1..=ENCODERS_KEPT).contains(&idle.len()));
        let kept: usize = idle.iter().map(Encoder::memory_bytes).sum();
        assert!(kept <= ENCODERS_BYTES_MAX, "{kept}");
    }
}
