//! A service's batches as messages: gathered when small, cut when large, sent on credit.

use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use arrow_select::concat::concat_batches;
use lightship_wire::control::{ErrorCode, Failure, Plan, Stats};
use lightship_wire::{Cutter, EncodedMessage, Encoder, WireError, message_bytes};

/// Rows on their way into messages, and the batch that is open.
pub(super) struct Packer {
    plan: Plan,
    cutter: Cutter,
    encoder: Encoder,
    schema: SchemaRef,
    /// Batches too small for a message of their own, while the next one is at hand.
    small: Vec<RecordBatch>,
    small_bytes: u64,
    /// A batch being cut, and the first row not yet sent.
    cutting: Option<(RecordBatch, usize)>,
    batch_rows: u64,
    batch_bytes: u64,
    pub(super) stats: Stats,
}

/// What a [`Packer`] made.
pub(super) enum Packed {
    /// Send this.
    Message(EncodedMessage),
    /// The open batch is full: end it, then ask again.
    BatchFull,
    /// All that was pushed has been packed.
    Empty,
}

impl Packer {
    pub(super) fn new(plan: Plan, schema: SchemaRef) -> Self {
        Self {
            cutter: Cutter::new(plan.message_bytes, plan.message_bytes_max),
            encoder: Encoder::new(plan.codec.unwrap_or_default()),
            plan,
            schema,
            small: Vec::new(),
            small_bytes: 0,
            cutting: None,
            batch_rows: 0,
            batch_bytes: 0,
            stats: Stats::default(),
        }
    }

    /// Takes a batch. Returns whether there is enough for a message.
    pub(super) fn push(&mut self, batch: RecordBatch) -> bool {
        if batch.num_rows() > 0 {
            self.small_bytes += message_bytes(&batch, 0, batch.num_rows());
            self.small.push(batch);
        }
        self.small_bytes >= u64::from(self.plan.message_bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.cutting.is_none()
    }

    /// The next message. Needs credit unless it answers otherwise.
    pub(super) fn next(&mut self) -> Result<Packed, Failure> {
        let began = Instant::now();
        let packed = self.pack();
        self.stats.encode_ns += nanoseconds(began.elapsed());
        packed
    }

    fn pack(&mut self) -> Result<Packed, Failure> {
        if self.cutting.is_none() {
            let small = std::mem::take(&mut self.small);
            self.small_bytes = 0;
            let batch = match small.as_slice() {
                [] => return Ok(Packed::Empty),
                [batch] => batch.clone(),
                batches => concat_batches(&self.schema, batches).map_err(arrow_failure)?,
            };
            self.cutting = Some((batch, 0));
        }
        let Some((batch, start)) = &mut self.cutting else { return Ok(Packed::Empty) };
        let mut rows = self.cutter.next_rows(batch, *start).map_err(wire_failure)?;
        if self.plan.batch_rows > 0 {
            let wanted = u64::from(self.plan.batch_rows) - self.batch_rows;
            rows = rows.min(usize::try_from(wanted).unwrap_or(usize::MAX));
        }
        let fits = |rows: usize, used: u64| {
            used + message_bytes(batch, *start, rows) <= self.plan.batch_bytes.into()
        };
        if rows == 0 || (self.batch_bytes > 0 && !fits(rows, self.batch_bytes)) {
            self.end_batch();
            return Ok(Packed::BatchFull);
        }
        let message = self.encoder.encode(&batch.slice(*start, rows)).map_err(wire_failure)?;
        self.batch_rows += rows as u64;
        self.batch_bytes += u64::from(message.body_bytes().max(message.payload_bytes()));
        *start += rows;
        if *start == batch.num_rows() {
            self.cutting = None;
        }
        Ok(Packed::Message(message))
    }

    /// The batch was ended for a reason of the sender's.
    pub(super) fn end_batch(&mut self) {
        (self.batch_rows, self.batch_bytes) = (0, 0);
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn wire_failure(error: WireError) -> Failure {
    match error {
        WireError::RowTooLarge { needed_bytes, .. } => Failure {
            needed_bytes: Some(needed_bytes),
            ..Failure::new(ErrorCode::RowTooLarge, error.to_string())
                .hint(format!("allow messages of {needed_bytes} bytes (--message-bytes-max)"))
        },
        WireError::TooLarge { bytes, .. } => {
            Failure { needed_bytes: Some(bytes), ..Failure::new(ErrorCode::Limit, error.to_string()) }
        }
        error => Failure::new(ErrorCode::Internal, error.to_string()),
    }
}

fn arrow_failure(error: ArrowError) -> Failure {
    Failure::new(ErrorCode::Data, error.to_string())
}
