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

use super::jobs::{Job, PROCESSORS};
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
    Encoding(Job<(Encoder, Encoded)>),
    BatchEnd,
    Retune(Retune),
    Resize(Sizes),
}

/// So many encoders are kept for the next rows of their kind: each may hold 200 KB for each column of text.
const ENCODERS_KEPT: usize = 4;

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

    fn put(&self, encoder: Encoder) {
        let mut idle = lock(&self.0);
        if idle.len() < ENCODERS_KEPT {
            idle.push(encoder);
        }
    }
}

/// The messages of one result that are being encoded: as many are in the making, or made and not
/// yet taken, as there are processors.
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

    pub(super) fn is_full(&self) -> bool {
        self.messages >= *PROCESSORS
    }

    /// Encodes at once, on this thread.
    pub(super) fn here(&mut self, codec: Codec, rows: &RecordBatch, bytes: u64) -> Encoded {
        let mut encoder = self.encoders.take();
        let encoded = encode(&mut encoder, codec, rows, bytes);
        self.encoders.put(encoder);
        encoded
    }

    /// Begins to encode.
    pub(super) fn start(&mut self, codec: Codec, rows: RecordBatch, bytes: u64) {
        let mut encoder = self.encoders.take();
        let job = Job::start(move || {
            let encoded = encode(&mut encoder, codec, &rows, bytes);
            (encoder, encoded)
        });
        self.steps.push_back(Pending::Encoding(job));
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
                Some(Pending::Encoding(job)) => {
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
