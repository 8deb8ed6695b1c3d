//! The answer to one query: rows to messages, and messages to the socket as credit allows.

use std::io;
use std::task::Poll;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use futures::StreamExt;
use lightship_wire::control::{ErrorCode, Failure, Plan, Stats};
use lightship_wire::{Codec, Encoder, WireError, decode, rows_bytes};

use super::conversation::{Link, Stop, attended, cancelled, flush, stalled_result};
use super::encoding::{Encoded, Encoders, Encoding, Step};
use super::frames::FrameWriter;
use super::jobs::{Job, PROCESSORS};
use super::meter::Meter;
use super::produce::{Packed, Packer, nanoseconds, wire_failure};
use super::striping::{Place, Room, Striping};
use super::{Rows, lock};
use crate::Result;
use crate::adapt::{Choice, SAMPLE_BYTES_MIN, TRIAL_BYTES, Trial};
use crate::proto::Server as Proto;

/// Frames that together are smaller than this wait for the next ones, or for the end of what is at hand.
const FLUSH_BYTES: usize = 256 << 10;
/// A message smaller than this is encoded before another thread would have taken it up.
const BESIDE_BYTES_MIN: u64 = 64 << 10;

/// The way of a result's rows to the socket.
pub(super) struct Answering<'a> {
    link: &'a Link,
    writer: &'a mut FrameWriter,
    meter: &'a mut Meter,
    packer: Packer,
    encoding: Encoding,
    codec: Codec,
    /// Where the plan leaves the codec to us.
    choice: Option<Choice>,
    /// Encoders of codecs that were tried: what they found in the columns is found once.
    trials: Vec<(Codec, Encoder)>,
    /// Where other connections may bring the messages.
    striping: Option<Striping>,
    /// No message is cut to more, whatever the consumer asks for.
    message_bytes_max: u32,
    began: Instant,
    stats: Stats,
}

impl<'a> Answering<'a> {
    pub(super) fn new(
        link: &'a Link,
        writer: &'a mut FrameWriter,
        meter: &'a mut Meter,
        plan: Plan,
        message_bytes_max: u32,
        schema: SchemaRef,
        striping: Option<Striping>,
    ) -> Self {
        let choice = plan.codec.is_none().then(|| Choice::new(*PROCESSORS));
        // What this connection has taken can't go by another one.
        if choice.is_some() || striping.is_some() {
            meter.attend();
        }
        Self {
            link,
            writer,
            meter,
            packer: Packer::new(plan, schema),
            encoding: Encoding::new(Encoders::default()),
            codec: plan.codec.unwrap_or_default(),
            choice,
            trials: Vec::new(),
            striping,
            message_bytes_max,
            began: Instant::now(),
            stats: Stats::default(),
        }
    }

    /// With encoders that others use, too.
    pub(super) fn encoded_by(mut self, encoders: Encoders) -> Self {
        self.encoding = Encoding::new(encoders);
        self
    }

    /// Sends all rows, and says that these were all.
    pub(super) async fn run(mut self, mut rows: Rows) -> Result<(), Stop> {
        let mut waited = Duration::ZERO;
        loop {
            let began = Instant::now();
            let polled = futures::poll!(rows.next());
            waited += began.elapsed();
            let item = match polled {
                Poll::Ready(item) => item,
                Poll::Pending => {
                    // Nothing at hand: what there is goes out rather than wait for more.
                    self.send_packed().await?;
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
                    if self.packer.push(batch) {
                        self.send_packed().await?;
                    }
                }
                Some(Err(failure)) => return Err(failure.into()),
                None => break,
            }
            self.check()?;
        }
        self.stats.produce_ns += nanoseconds(waited);
        self.send_packed().await?;
        self.drain().await?;
        lock(&self.link.shared).proto.finish(&self.stats);
        Ok(())
    }

    /// The next rows. Meanwhile messages go out as they are ready.
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
                () = self.link.wake.notified() => {
                    *waited += began.elapsed();
                    self.flush().await?;
                }
            }
        }
    }

    /// Packs all that was pushed, and sends it but for what is being encoded.
    async fn send_packed(&mut self) -> Result<(), Stop> {
        while !self.packer.is_empty() {
            if self.packer.is_between_batches() {
                self.resize();
                self.choose().await?;
            }
            match self.packer.next()? {
                Packed::Empty => break,
                Packed::BatchFull if self.encoding.is_empty() => lock(&self.link.shared).proto.end_batch(),
                Packed::BatchFull => self.encoding.end_batch(),
                Packed::Rows { rows, bytes }
                    if self.codec == Codec::None
                        || (self.encoding.is_empty() && bytes < BESIDE_BYTES_MIN) =>
                {
                    self.drain().await?;
                    self.credit(Proto::has_credit).await?;
                    let encoded = self.encoding.here(self.codec, &rows, bytes);
                    self.send(encoded).await?;
                }
                Packed::Rows { rows, bytes } => {
                    let room = loop {
                        match self.encoding.room(bytes) {
                            Some(room) => break room,
                            None => self.send_next().await?,
                        }
                    };
                    self.encoding.start(self.codec, rows, bytes, room);
                }
            }
        }
        Ok(())
    }

    /// Sends all that is being encoded.
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
                // The link need not wait with us.
                self.flush().await?;
                attended(self.encoding.next(), self.link, self.writer).await?
            }
        };
        self.take(step).await
    }

    async fn take(&mut self, step: io::Result<Step>) -> Result<(), Stop> {
        match step.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))? {
            Step::Message(encoded) => self.send(encoded).await?,
            Step::BatchEnd => lock(&self.link.shared).proto.end_batch(),
            Step::Retune(retune) => lock(&self.link.shared).proto.retune(&retune),
            Step::Resize(sizes) => {
                self.credit(Proto::may_resize).await?;
                lock(&self.link.shared).proto.resize(&sizes);
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
        self.credit(|proto| proto.has_credit_for(&message)).await?;
        let place = self.place().await?;
        let due = {
            let mut shared = lock(&self.link.shared);
            let dealt = place.is_some();
            let full = match place {
                None => shared.proto.message(message),
                Some(place) => {
                    let full = shared.proto.deal(place.connection, &message);
                    place.deal(message);
                    full
                }
            };
            if full {
                shared.proto.end_batch();
            }
            // The consumer needs to know where its rows come.
            dealt || shared.proto.queued_bytes() >= FLUSH_BYTES
        };
        if due {
            self.flush().await?;
        }
        Ok(())
    }

    /// Whether there is a reason to stop.
    fn check(&mut self) -> Result<(), Stop> {
        if lock(&self.link.shared).cancelled {
            return Err(cancelled(self.link));
        }
        if let Some(striping) = &mut self.striping {
            striping.look()?;
        }
        Ok(())
    }

    /// A joined connection with room for a message; waits for one. Nothing where none has joined.
    async fn place(&mut self) -> Result<Option<Place>, Stop> {
        loop {
            self.check()?;
            match self.striping.as_mut().map(Striping::room).transpose()? {
                None | Some(Room::Alone) => {
                    lock(&self.link.shared).proto.taken();
                    return Ok(None);
                }
                Some(Room::At(place)) => {
                    lock(&self.link.shared).proto.taken();
                    return Ok(Some(place));
                }
                Some(Room::Full) => {}
            }
            self.flush().await?;
            let waiting = Instant::now();
            wait_for_consumer(self.link, waiting).await?;
            self.stats.send_ns += nanoseconds(waiting.elapsed());
        }
    }

    /// Waits until a message may be sent.
    async fn credit(&mut self, enough: impl Fn(&Proto) -> bool) -> Result<(), Stop> {
        loop {
            self.check()?;
            {
                let mut shared = lock(&self.link.shared);
                if enough(&shared.proto) {
                    shared.proto.taken();
                    return Ok(());
                }
            }
            self.flush().await?;
            let waiting = Instant::now();
            wait_for_consumer(self.link, waiting).await?;
            self.stats.wait_ns += nanoseconds(waiting.elapsed());
        }
    }

    async fn flush(&mut self) -> Result<()> {
        let bytes = lock(&self.link.shared).proto.queued_bytes();
        let sending = Instant::now();
        flush(self.link, self.writer).await?;
        if bytes > 0 {
            let took = sending.elapsed();
            self.stats.send_ns += nanoseconds(took);
            self.meter.wrote(bytes as u64, took);
        }
        Ok(())
    }

    /// Between batches: follows the consumer's wish for other sizes.
    fn resize(&mut self) {
        let Some(mut sizes) = lock(&self.link.shared).resize.take() else { return };
        sizes.message_bytes = sizes.message_bytes.min(self.message_bytes_max);
        tracing::debug!(?sizes, "sizes changed");
        self.packer.resize(&sizes);
        // In its place behind what is being encoded.
        self.encoding.resize(sizes);
    }

    /// Between batches: looks whether another codec would be faster now.
    async fn choose(&mut self) -> Result<(), Stop> {
        let Some(mut choice) = self.choice.take() else { return Ok(()) };
        if let Some((rows, bytes)) = self.packer.message()? {
            if let Some(progress) = lock(&self.link.shared).progress.take() {
                choice.progress(&progress);
            }
            let now = Instant::now();
            let striped = self.striping.as_ref().and_then(Striping::bytes_per_ns);
            let bandwidth = striped.or_else(|| self.meter.bytes_per_ns(now));
            choice.passed(now - self.began, bandwidth, self.meter.is_saturated());
            if choice.trial_due(now - self.began, bandwidth, bytes) {
                self.try_codecs(&mut choice, &rows, bytes, bandwidth).await?;
            }
            if let Some(retune) = choice.decide(self.began.elapsed(), bandwidth, bytes) {
                tracing::debug!(codec = %retune.codec, slowest = ?retune.slowest, ?bandwidth, "codec chosen");
                self.codec = retune.codec;
                // In its place behind what is being encoded.
                self.encoding.retune(retune);
            }
        }
        self.choice = Some(choice);
        Ok(())
    }

    /// Tries candidates on the rows, while what was encoded before goes out.
    async fn try_codecs(
        &mut self,
        choice: &mut Choice,
        rows: &RecordBatch,
        bytes: u64,
        bandwidth: Option<f64>,
    ) -> Result<(), Stop> {
        let part = rows.slice(0, trial_rows(rows.num_rows(), bytes));
        let mut trials = Vec::new();
        while let Some(codec) = choice.next_trial(&trials, bandwidth) {
            let rows = part.clone();
            let encoder = self.trials.iter().position(|(tried, _)| *tried == codec);
            let encoder = encoder.map(|place| self.trials.swap_remove(place).1);
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
                    () = self.link.wake.notified() => self.flush().await?,
                }
            };
            let tried = tried.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
            let (encoder, trial) = tried.map_err(wire_failure)?;
            self.trials.push((codec, encoder));
            trials.push(trial);
        }
        choice.tried(&trials);
        Ok(())
    }
}

/// Waits until the consumer, or a connection that has joined, gives cause to look again.
async fn wait_for_consumer(link: &Link, now: Instant) -> Result<(), Stop> {
    lock(&link.shared).proto.waits(now);
    tokio::select! {
        () = link.wake.notified() => Ok(()),
        stop = stalled_result(link) => Err(stop),
    }
}

/// How many of a message's rows, that take so many bytes, are tried: one at least, or there is nothing to
/// measure.
fn trial_rows(rows: usize, bytes: u64) -> usize {
    let part = rows as u64 * TRIAL_BYTES / bytes.max(TRIAL_BYTES);
    (part as usize).max(1).min(rows)
}

/// Encodes rows and decodes them again. An encoder looks for the columns' encodings
/// in its first message, which is no part of the measure.
fn trial(encoder: Option<Encoder>, codec: Codec, rows: &RecordBatch) -> Result<(Encoder, Trial), WireError> {
    let began = Instant::now();
    let mut encoder = match encoder {
        Some(encoder) => encoder,
        None => {
            let mut encoder = Encoder::new(codec);
            encoder.encode(rows)?;
            encoder
        }
    };
    let encoding = Instant::now();
    let message = encoder.encode(rows)?;
    let encode = encoding.elapsed();
    let payload = Buffer::from_vec(message.to_vec());
    let decoding = Instant::now();
    decode(rows.schema_ref(), payload, u32::MAX)?;
    let trial = Trial {
        codec,
        bytes: rows_bytes(rows).max(1),
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
    fn a_part_of_a_message_is_tried_but_no_part_of_a_row() {
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
