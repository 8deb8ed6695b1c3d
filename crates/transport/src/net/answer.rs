//! Answers one query: turns rows into messages, and sends them as credit allows.

use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use futures::StreamExt;
use lightship_wire::control::{ErrorCode, Failure, Plan, Stats};
use lightship_wire::{Codec, Encoder, WireError, decode, rows_bytes};

use super::encoding::{Encoded, Encoders, Encoding, Step};
use super::jobs::{Job, PROCESSORS};
use super::produce::{MessageRows, Packed, Packer, nanoseconds, wire_failure};
use super::stream::{Stop, Stream};
use super::striping::{ReservedConnection, StripeTarget, Striping};
use super::{Delivery, Rows, lock};
use crate::Result;
use crate::adapt::{Choice, SAMPLE_BYTES_MIN, TRIAL_BYTES, Trial};
use crate::proto::Server as Proto;

/// Frames are sent once they have this size together, or when no more rows are ready.
const FLUSH_BYTES: usize = 256 << 10;
/// A smaller message is encoded in place: passing it to another thread would take longer.
const BESIDE_BYTES_MIN: u64 = 64 << 10;

/// Sends the rows of one result.
pub(super) struct Answering<'a> {
    stream: &'a Stream,
    packer: Packer,
    encoding: Encoding,
    /// What other results share.
    shared: Option<Encoders>,
    codec: Codec,
    /// Chooses the codec, if the plan leaves it to the producer.
    choice: Option<Choice>,
    /// Encoders of codecs that were tried. They remember what they learnt of the columns.
    trials: Vec<(Codec, Encoder)>,
    /// Distributes messages, if other connections may join the result.
    striping: Option<Striping>,
    /// The server's limit for the size of messages, whatever the consumer requests.
    message_bytes_max: u32,
    began: Instant,
    stats: Stats,
    delivery: Arc<Delivery>,
}

impl<'a> Answering<'a> {
    pub(super) fn new(
        stream: &'a Stream,
        plan: Plan,
        message_bytes_max: u32,
        striping: Option<Striping>,
    ) -> Self {
        let choice = plan.codec.is_none().then(|| Choice::new(*PROCESSORS));
        // Keep the kernel's buffer short: bytes in it can't go over another connection.
        if choice.is_some() || striping.is_some() {
            lock(&stream.link.meter).attend();
        }
        Self {
            stream,
            packer: Packer::new(plan),
            encoding: Encoding::new(Encoders::default()),
            shared: None,
            codec: plan.codec.unwrap_or_default(),
            choice,
            trials: Vec::new(),
            striping,
            message_bytes_max,
            began: Instant::now(),
            stats: Stats::default(),
            delivery: Arc::default(),
        }
    }

    /// Shares encoders, and what is known of the codecs, with other results.
    pub(super) fn encoded_by(mut self, encoders: Option<Encoders>) -> Self {
        if let Some(encoders) = encoders {
            self.choice = self.choice.map(|_| Choice::among(*PROCESSORS, encoders.codecs()));
            self.encoding = Encoding::new(encoders.clone());
            self.shared = Some(encoders);
        }
        self
    }

    /// Counts what is sent for the service.
    pub(super) fn counted_by(mut self, delivery: Arc<Delivery>) -> Self {
        self.delivery = delivery;
        self
    }

    /// Sends all rows and the end of the result.
    pub(super) async fn run(mut self, mut rows: Rows) -> Result<Stats, Stop> {
        let mut waited = Duration::ZERO;
        loop {
            let began = Instant::now();
            let polled = futures::poll!(rows.next());
            waited += began.elapsed();
            let item = match polled {
                Poll::Ready(item) => item,
                Poll::Pending => {
                    // No rows are ready: send what there is instead of waiting for more.
                    self.send_all().await?;
                    self.flush().await?;
                    self.wait_for(&mut rows, &mut waited).await?
                }
            };
            match item {
                Some(Ok(batch)) => {
                    let waited = std::mem::take(&mut waited);
                    self.stats.produce_ns += nanoseconds(waited);
                    if let Some(choice) = &mut self.choice {
                        choice.produced(rows_bytes(&batch), waited);
                    }
                    self.packer.push(batch);
                    while self.packer.has_message() {
                        self.send_packed().await?;
                    }
                }
                Some(Err(failure)) => return Err(failure.into()),
                None => break,
            }
            self.check()?;
        }
        self.stats.produce_ns += nanoseconds(waited);
        self.send_all().await?;
        self.drain().await?;
        if let Some(choice) = &self.choice {
            self.share(choice);
        }
        Ok(self.stats)
    }

    /// Waits for the next rows. Meanwhile sends messages as they are ready.
    async fn wait_for(
        &mut self,
        rows: &mut Rows,
        waited: &mut Duration,
    ) -> Result<Option<Result<RecordBatch, Failure>>, Stop> {
        loop {
            self.check()?;
            let began = Instant::now();
            tokio::select! {
                biased;
                item = rows.next() => {
                    *waited += began.elapsed();
                    return Ok(item);
                }
                step = self.encoding.next(), if !self.encoding.is_empty() => {
                    *waited += began.elapsed();
                    self.take(step).await?;
                    self.flush().await?;
                }
                () = self.stream.state.wake.notified() => {
                    *waited += began.elapsed();
                    self.flush().await?;
                }
            }
        }
    }

    /// Packs everything that was pushed, and sends it, except messages that are still being encoded.
    async fn send_all(&mut self) -> Result<(), Stop> {
        while !self.packer.is_empty() {
            self.send_packed().await?;
        }
        Ok(())
    }

    /// Packs the next message, and sends it, or begins to encode it; or ends a batch.
    async fn send_packed(&mut self) -> Result<(), Stop> {
        if self.packer.is_between_batches() {
            self.resize();
            self.choose().await?;
        }
        match self.packer.next()? {
            Packed::Empty => {}
            Packed::BatchFull if self.encoding.is_empty() => self.stream.proto().end_batch(self.stream.id),
            Packed::BatchFull => self.encoding.end_batch(),
            Packed::Rows(rows)
                if self.codec == Codec::None
                    || (self.encoding.is_empty() && rows.bytes < BESIDE_BYTES_MIN) =>
            {
                self.drain().await?;
                self.credit(|proto, id| proto.has_credit(id)).await?;
                let encoded = self.encoding.here(self.codec, &rows);
                self.send(encoded).await?;
            }
            Packed::Rows(rows) => {
                let room = loop {
                    match self.encoding.room(rows.bytes) {
                        Some(room) => break room,
                        None => self.send_next().await?,
                    }
                };
                self.encoding.start(self.codec, rows, room);
            }
        }
        Ok(())
    }

    /// Waits for all messages that are being encoded, and sends them.
    async fn drain(&mut self) -> Result<(), Stop> {
        while !self.encoding.is_empty() {
            self.send_next().await?;
        }
        Ok(())
    }

    async fn send_next(&mut self) -> Result<(), Stop> {
        let polled = futures::poll!(std::pin::pin!(self.encoding.next()));
        let step = match polled {
            Poll::Ready(step) => step,
            Poll::Pending => {
                // Send what is ready before waiting for the encoder.
                self.flush().await?;
                self.stream.attended(self.encoding.next()).await?
            }
        };
        self.take(step).await
    }

    async fn take(&mut self, step: io::Result<Step>) -> Result<(), Stop> {
        match step.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))? {
            Step::Message(encoded) => self.send(encoded).await?,
            Step::BatchEnd => self.stream.proto().end_batch(self.stream.id),
            Step::Retune(retune) => self.stream.proto().retune(self.stream.id, &retune),
            Step::Resize(sizes) => {
                self.credit(|proto, id| proto.may_resize(id)).await?;
                self.stream.proto().resize(self.stream.id, &sizes);
            }
        }
        Ok(())
    }

    async fn send(&mut self, encoded: Encoded) -> Result<(), Stop> {
        let message = encoded.message.map_err(wire_failure)?;
        self.stats.encode_ns += nanoseconds(encoded.took);
        if let Some(choice) = &mut self.choice {
            choice.encoded(encoded.codec, encoded.bytes, message.payload_bytes().into(), encoded.took);
        }
        self.credit(|proto, id| proto.has_credit_for(id, &message)).await?;
        self.delivery.sent(message.payload_bytes());
        let reserved = self.reserve().await?;
        let due = {
            let id = self.stream.id;
            let mut proto = self.stream.proto();
            let is_distributed = reserved.is_some();
            let full = match reserved {
                None => proto.message(id, message),
                Some(reserved) => {
                    let full = proto.placeholder(id, reserved.connection, &message);
                    reserved.send(message);
                    full
                }
            };
            if full {
                proto.end_batch(id);
            }
            // The consumer needs the placeholder before it can use the payload.
            is_distributed || proto.queued_bytes(id) >= FLUSH_BYTES
        };
        if due {
            self.flush().await?;
        }
        Ok(())
    }

    /// Fails if the client has cancelled the result or a joined connection was lost.
    fn check(&mut self) -> Result<(), Stop> {
        self.stream.check()?;
        if let Some(striping) = &mut self.striping {
            striping.look()?;
        }
        Ok(())
    }

    /// Waits for a joined connection with room for a message. `None` if none has joined.
    async fn reserve(&mut self) -> Result<Option<ReservedConnection>, Stop> {
        loop {
            self.check()?;
            match self.striping.as_mut().map(Striping::room).transpose()? {
                None | Some(StripeTarget::Alone) => {
                    self.stream.proto().taken(self.stream.id);
                    return Ok(None);
                }
                Some(StripeTarget::At(reserved)) => {
                    self.stream.proto().taken(self.stream.id);
                    return Ok(Some(reserved));
                }
                Some(StripeTarget::Full) => {}
            }
            self.flush().await?;
            let waiting = Instant::now();
            self.stream.wait_for_consumer(waiting).await?;
            self.stats.send_ns += nanoseconds(waiting.elapsed());
        }
    }

    /// Waits until `enough` holds: usually, until the credit suffices for a message.
    async fn credit(&mut self, enough: impl Fn(&Proto, u32) -> bool) -> Result<(), Stop> {
        let delivery = self.delivery.clone();
        // One wait, however often it is woken.
        let mut counted = None;
        loop {
            self.check()?;
            {
                let (mut proto, id) = (self.stream.proto(), self.stream.id);
                if enough(&proto, id) {
                    proto.taken(id);
                    return Ok(());
                }
            }
            self.flush().await?;
            let waiting = Instant::now();
            counted.get_or_insert_with(|| delivery.wait());
            self.stream.wait_for_consumer(waiting).await?;
            self.stats.wait_ns += nanoseconds(waiting.elapsed());
        }
    }

    async fn flush(&mut self) -> Result<()> {
        let sending = Instant::now();
        if self.stream.flush().await? {
            self.stats.send_ns += nanoseconds(sending.elapsed());
        }
        Ok(())
    }

    /// Between batches: applies the sizes that the consumer has requested.
    fn resize(&mut self) {
        let Some(mut sizes) = self.stream.state.messages().resize.take() else { return };
        sizes.message_bytes = sizes.message_bytes.min(self.message_bytes_max);
        tracing::debug!(?sizes, "sizes changed");
        self.packer.resize(&sizes);
        // Takes effect after the messages that are being encoded.
        self.encoding.resize(sizes);
    }

    /// Between batches: checks whether another codec would be faster now.
    async fn choose(&mut self) -> Result<(), Stop> {
        let Some(mut choice) = self.choice.take() else { return Ok(()) };
        if let Some(rows) = self.packer.message()? {
            let bytes = rows.bytes;
            if let Some(progress) = self.stream.state.messages().progress.take() {
                choice.progress(&progress);
            }
            let now = Instant::now();
            let striped = self.striping.as_ref().and_then(Striping::bytes_per_ns);
            let (bandwidth, is_saturated) = {
                let mut meter = lock(&self.stream.link.meter);
                (striped.or_else(|| meter.bytes_per_ns(now)), meter.is_saturated())
            };
            choice.passed(now - self.began, bandwidth, is_saturated);
            if choice.trial_due(now - self.began, bandwidth, bytes) {
                self.try_codecs(&mut choice, &rows, bandwidth).await?;
            }
            if let Some(retune) = choice.decide(self.began.elapsed(), bandwidth, bytes) {
                tracing::debug!(codec = %retune.codec, slowest = ?retune.slowest, ?bandwidth, "codec chosen");
                self.codec = retune.codec;
                // Takes effect after the messages that are being encoded.
                self.encoding.retune(retune);
            }
        }
        self.choice = Some(choice);
        Ok(())
    }

    /// Tries candidate codecs on the rows. Meanwhile sends messages that were encoded before.
    async fn try_codecs(
        &mut self,
        choice: &mut Choice,
        rows: &MessageRows,
        bandwidth: Option<f64>,
    ) -> Result<(), Stop> {
        let part = rows.first_rows(trial_rows(rows.num_rows(), rows.bytes));
        let mut trials = Vec::new();
        while let Some(codec) = choice.next_trial(&trials, bandwidth) {
            let rows = part.clone();
            let encoder = self.trials.iter().position(|(tried, _)| *tried == codec);
            let encoder = encoder.map(|index| self.trials.swap_remove(index).1);
            let mut job = Job::start(move || trial(encoder, codec, &rows));
            let tried = loop {
                self.check()?;
                tokio::select! {
                    biased;
                    tried = &mut job => break tried,
                    step = self.encoding.next(), if !self.encoding.is_empty() => {
                        self.take(step).await?;
                        self.flush().await?;
                    }
                    () = self.stream.state.wake.notified() => self.flush().await?,
                }
            };
            let tried = tried.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
            let (encoder, trial) = tried.map_err(wire_failure)?;
            self.trials.push((codec, encoder));
            trials.push(trial);
        }
        choice.tried(&trials);
        self.share(choice);
        Ok(())
    }

    /// Tells other results what was learned of the codecs.
    fn share(&self, choice: &Choice) {
        if let (Some(shared), Some(known)) = (&self.shared, choice.codecs_known()) {
            shared.learn(known);
        }
    }
}

/// How many rows of a message to use for a trial: at least one, if there are any.
fn trial_rows(rows: usize, bytes: u64) -> usize {
    let part = rows as u64 * TRIAL_BYTES / bytes.max(TRIAL_BYTES);
    (part as usize).max(1).min(rows)
}

/// Measures encoding and decoding of rows. A new encoder first encodes them once without being measured,
/// because it chooses the columns' encodings in its first message.
fn trial(
    encoder: Option<Encoder>,
    codec: Codec,
    rows: &[RecordBatch],
) -> Result<(Encoder, Trial), WireError> {
    let began = Instant::now();
    let mut encoder = match encoder {
        Some(encoder) => encoder,
        None => {
            let mut encoder = Encoder::new(codec);
            encoder.encode_all(rows)?;
            encoder
        }
    };
    let encoding = Instant::now();
    let message = encoder.encode_all(rows)?;
    let encode = encoding.elapsed();
    let payload = Buffer::from_vec(message.to_vec());
    let decoding = Instant::now();
    decode(rows[0].schema_ref(), payload, u32::MAX)?;
    let trial = Trial {
        codec,
        bytes: rows.iter().map(rows_bytes).sum::<u64>().max(1),
        sent_bytes: message.payload_bytes().into(),
        encode,
        decode: decoding.elapsed(),
        took: began.elapsed(),
    };
    Ok((encoder, trial))
}

const _: () = assert!(BESIDE_BYTES_MIN <= SAMPLE_BYTES_MIN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_uses_part_of_a_message_but_whole_rows() {
        for (rows, bytes, tried) in [
            (1000, 1000, 1000),
            (1000, 2 * TRIAL_BYTES, 500),
            (1, 1 << 31, 1),
            (3, 100 * TRIAL_BYTES, 1),
            (0, 0, 0),
        ] {
            assert_eq!(trial_rows(rows, bytes), tried, "{rows} rows of {bytes} bytes");
        }
    }
}
