//! Turns a service's batches into the rows of messages: gathers small batches and cuts large ones.

use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use arrow_select::concat::concat_batches;
use lightship_wire::control::{ErrorCode, Failure, Plan};
use lightship_wire::tuning::Sizes;
use lightship_wire::{Cutter, WireError, message_bytes};

use crate::proto::batch_messages_max;

/// Packs rows into messages, and counts the open batch.
pub(super) struct Packer {
    plan: Plan,
    cutter: Cutter,
    schema: SchemaRef,
    /// Batches that are too small for a message, while more are ready.
    small: Vec<RecordBatch>,
    small_bytes: u64,
    /// A batch being cut, and the first row not yet sent.
    cutting: Option<(RecordBatch, usize)>,
    batch_rows: u64,
    batch_bytes: u64,
    batch_messages: u32,
}

/// The next step of a [`Packer`].
pub(super) enum Packed {
    /// Send these rows as a message.
    Rows {
        /// The rows.
        rows: RecordBatch,
        /// The maximum size of their message in the plain layout.
        bytes: u64,
    },
    /// The open batch is full: end it, then call again.
    BatchFull,
    /// Everything that was pushed has been packed.
    Empty,
}

impl Packer {
    pub(super) fn new(plan: Plan, schema: SchemaRef) -> Self {
        Self {
            cutter: Cutter::new(plan.message_bytes, plan.message_bytes_max),
            plan,
            schema,
            small: Vec::new(),
            small_bytes: 0,
            cutting: None,
            batch_rows: 0,
            batch_bytes: 0,
            batch_messages: 0,
        }
    }

    /// Adds a batch. Returns whether there are enough rows for a message.
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

    /// Whether the next message is the first of its batch.
    pub(super) fn is_between_batches(&self) -> bool {
        self.batch_messages == 0
    }

    /// Changes the sizes. Only between batches.
    pub(super) fn resize(&mut self, sizes: &Sizes) {
        debug_assert!(self.is_between_batches());
        (self.plan.batch_bytes, self.plan.message_bytes) = (sizes.batch_bytes, sizes.message_bytes);
        self.cutter = Cutter::new(sizes.message_bytes, self.plan.message_bytes_max);
    }

    /// Takes the rows of the next message.
    pub(super) fn next(&mut self) -> Result<Packed, Failure> {
        let Some((rows, bytes)) = self.message()? else { return Ok(Packed::Empty) };
        let full = rows.num_rows() == 0
            || self.batch_messages == batch_messages_max(self.plan.batch_bytes)
            || (self.batch_bytes > 0 && self.batch_bytes + bytes > self.plan.batch_bytes.into());
        if full {
            (self.batch_rows, self.batch_bytes, self.batch_messages) = (0, 0, 0);
            return Ok(Packed::BatchFull);
        }
        self.batch_rows += rows.num_rows() as u64;
        self.batch_bytes += bytes;
        self.batch_messages += 1;
        if let Some((batch, start)) = &mut self.cutting {
            *start += rows.num_rows();
            if *start == batch.num_rows() {
                self.cutting = None;
            }
        }
        Ok(Packed::Rows { rows, bytes })
    }

    /// The rows of the next message, without taking them, and the maximum size of their message in the plain
    /// layout. There are no rows in it if the open batch has the maximum number of rows.
    pub(super) fn message(&mut self) -> Result<Option<(RecordBatch, u64)>, Failure> {
        if self.cutting.is_none() {
            let small = std::mem::take(&mut self.small);
            self.small_bytes = 0;
            let batch = match small.as_slice() {
                [] => return Ok(None),
                [batch] => batch.clone(),
                batches => concat_batches(&self.schema, batches).map_err(arrow_failure)?,
            };
            self.cutting = Some((batch, 0));
        }
        let Some((batch, start)) = &self.cutting else { return Ok(None) };
        let mut rows = self.cutter.next_rows(batch, *start).map_err(wire_failure)?;
        if self.plan.batch_rows > 0 {
            let wanted = u64::from(self.plan.batch_rows) - self.batch_rows;
            rows = rows.min(usize::try_from(wanted).unwrap_or(usize::MAX));
        }
        Ok(Some((batch.slice(*start, rows), message_bytes(batch, *start, rows))))
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn wire_failure(error: WireError) -> Failure {
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
