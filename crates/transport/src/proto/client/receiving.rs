//! The consumer's accounting of one result.

use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use lightship_wire::control::{BatchEnd, Plan, Stats};
use lightship_wire::frame::HEADER_BYTES;
use lightship_wire::join::Placeholder;
use lightship_wire::tuning::{Retune, Sizes, Stage};
use lightship_wire::{Codec, WireError};

use crate::proto::message::{Message, PendingMessage};
use crate::proto::{RETUNES_MAX, batch_messages_max};
use crate::{Result, TransportError};

/// The totals of a result, as the consumer counted them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Rows.
    pub rows: u64,
    /// Messages.
    pub messages: u64,
    /// Messages that came over joined connections.
    pub messages_joined: u64,
    /// Batches.
    pub batches: u64,
    /// Bytes of messages on the wire, headers included.
    pub bytes_wire: u64,
    /// Where the producer spent its time.
    pub producer: Stats,
    /// Totals of each codec, by [`Codec::index`].
    pub codecs: [CodecTotals; Codec::ALL.len()],
    /// The first [`RETUNES_MAX`] changes of the codec, if the producer chose it.
    pub retunes: Vec<Retuned>,
    /// The first [`RETUNES_MAX`] changes of the sizes.
    pub resizes: Vec<Resized>,
}

/// The totals of one codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CodecTotals {
    /// Messages.
    pub messages: u64,
    /// Bytes of their bodies once decoded.
    pub bytes_body: u64,
    /// Their bytes on the wire, headers included.
    pub bytes_wire: u64,
}

/// A change of the codec during a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retuned {
    /// The number of the first message in the new codec, from 0.
    pub message: u64,
    /// The old codec.
    pub from: Codec,
    /// The new codec.
    pub to: Codec,
    /// The slowest stage with the old codec.
    pub slowest: Option<Stage>,
}

/// A change of the sizes during a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resized {
    /// The number of the first message with the new sizes, from 0.
    pub message: u64,
    /// The old sizes.
    pub from: Sizes,
    /// The new sizes.
    pub to: Sizes,
}

/// A result that is being received.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) plan: Plan,
    /// The number of connections that may have joined.
    joined: u32,
    schema: SchemaRef,
    /// The codec of the next messages, if known.
    codec: Option<Codec>,
    pub(super) totals: Totals,
    batch_messages: u32,
    batch_bytes: u64,
    /// Batches that the producer may still send. Negative after the window shrank below what is outstanding.
    credit: i64,
    /// Sizes that were requested and not answered yet.
    pub(super) requested: Option<Sizes>,
    /// A message larger than a batch has the whole window.
    oversize_out: bool,
}

pub(super) fn sizes_of(plan: &Plan) -> Sizes {
    Sizes {
        batch_bytes: plan.batch_bytes,
        message_bytes: plan.message_bytes,
        window_batches: plan.window_batches,
    }
}

impl Receiving {
    pub(super) fn new(plan: Plan, joined: u32, schema: SchemaRef) -> Self {
        Self {
            plan,
            joined,
            schema,
            codec: plan.codec,
            totals: Totals::default(),
            batch_messages: 0,
            batch_bytes: 0,
            credit: plan.window_batches.into(),
            requested: None,
            oversize_out: false,
        }
    }

    /// Counts a batch that the application has consumed.
    pub(super) fn consumed(&mut self, credit: u32) {
        self.credit += i64::from(credit);
        self.oversize_out &= self.credit < i64::from(self.plan.window_batches);
    }

    pub(super) fn retune(&mut self, retune: &Retune) -> Result<()> {
        if self.plan.codec.is_some() || self.batch_messages > 0 {
            return Err(TransportError::Protocol("an unexpected change of codec".into()));
        }
        if let Some(from) = self.codec.replace(retune.codec)
            && self.totals.retunes.len() < RETUNES_MAX
        {
            let (message, to, slowest) = (self.totals.messages, retune.codec, retune.slowest);
            self.totals.retunes.push(Retuned { message, from, to, slowest });
        }
        Ok(())
    }

    pub(super) fn resize(&mut self, to: &Sizes) -> Result<()> {
        let is_requested = self.requested.take().is_some_and(|requested| to.are_within(&requested));
        if !is_requested || self.batch_messages > 0 || self.oversize_out {
            return Err(TransportError::Protocol("an unexpected change of sizes".into()));
        }
        let from = sizes_of(&self.plan);
        self.credit += i64::from(to.window_batches) - i64::from(from.window_batches);
        (self.plan.batch_bytes, self.plan.message_bytes, self.plan.window_batches) =
            (to.batch_bytes, to.message_bytes, to.window_batches);
        if self.totals.resizes.len() < RETUNES_MAX {
            self.totals.resizes.push(Resized { message: self.totals.messages, from, to: *to });
        }
        Ok(())
    }

    pub(super) fn placeholder(&mut self, placeholder: Placeholder) -> Result<PendingMessage> {
        let Placeholder { connection, bytes, rows, body_bytes } = placeholder;
        if connection > self.joined {
            return Err(TransportError::Protocol(format!(
                "a placeholder for connection {connection}, but {} were offered",
                self.joined
            )));
        }
        // The payload would be refused when it arrives.
        if bytes.max(body_bytes) > self.plan.message_bytes_max {
            return Err(WireError::TooLarge {
                what: "message on a joined connection",
                bytes: bytes.max(body_bytes).into(),
                limit: self.plan.message_bytes_max.into(),
            }
            .into());
        }
        let message = self.message(rows, body_bytes, bytes.into(), Buffer::default())?;
        self.totals.messages_joined += 1;
        Ok(PendingMessage { placeholder, message })
    }

    /// Counts a message with a payload of `bytes`.
    pub(super) fn message(
        &mut self,
        rows: u32,
        body_bytes: u32,
        bytes: u64,
        payload: Buffer,
    ) -> Result<Message> {
        if self.credit <= 0 {
            return Err(TransportError::Protocol("a message without credit".into()));
        }
        let Some(codec) = self.codec else {
            return Err(TransportError::Protocol("a message before its codec was chosen".into()));
        };
        self.batch_messages += 1;
        let messages_max = batch_messages_max(self.plan.batch_bytes);
        if self.batch_messages > messages_max {
            return Err(TransportError::Protocol(format!("a batch of more than {messages_max} messages")));
        }
        self.totals.messages += 1;
        let bytes_wire = HEADER_BYTES as u64 + bytes;
        self.totals.bytes_wire += bytes_wire;
        let of_codec = &mut self.totals.codecs[codec.index()];
        of_codec.messages += 1;
        of_codec.bytes_body += u64::from(body_bytes);
        of_codec.bytes_wire += bytes_wire;
        // A batch has at most `batch_bytes`, unless it is a single message.
        self.batch_bytes += u64::from(body_bytes).max(bytes);
        if self.batch_messages > 1 && self.batch_bytes > u64::from(self.plan.batch_bytes) {
            return Err(TransportError::Protocol(format!(
                "a batch of more than {} bytes",
                self.plan.batch_bytes
            )));
        }
        if self.batch_bytes > self.plan.batch_bytes.into() && self.credit < self.plan.window_batches.into() {
            return Err(TransportError::Protocol(
                "a message larger than a batch while other batches are outstanding".into(),
            ));
        }
        self.totals.rows += u64::from(rows);
        Ok(Message {
            codec,
            payload,
            schema: self.schema.clone(),
            body_bytes,
            body_bytes_max: self.plan.message_bytes_max,
        })
    }

    pub(super) fn batch_end(&mut self, payload: &[u8], last: bool) -> Result<u32> {
        let end = BatchEnd::decode(payload)?;
        if (end.rows, end.messages) != (self.totals.rows, self.totals.messages) {
            return Err(TransportError::Protocol(format!(
                "the producer sent {} rows in {} messages, but {} rows in {} messages arrived",
                end.rows, end.messages, self.totals.rows, self.totals.messages
            )));
        }
        let mut taken = 0;
        if self.batch_messages > 0 {
            // `message` has checked that an oversize batch had the whole window.
            let oversize = self.batch_bytes > self.plan.batch_bytes.into();
            self.oversize_out |= oversize;
            taken = if oversize { self.plan.window_batches } else { 1 };
            self.credit -= i64::from(taken);
            self.totals.batches += 1;
        } else if !last {
            // The credit for it would widen the window.
            return Err(TransportError::Protocol("the end of a batch without messages".into()));
        }
        (self.batch_messages, self.batch_bytes) = (0, 0);
        Ok(taken)
    }
}
