//! The producer's accounting of one result.

use lightship_wire::EncodedMessage;
use lightship_wire::control::{BatchEnd, Plan};
use lightship_wire::tuning::Sizes;

use crate::proto::batch_messages_max;

/// A result that is being sent.
#[derive(Debug)]
pub(super) struct Sending {
    /// Batches that may still be sent. Negative after the window shrank below what is outstanding.
    credit: i64,
    window_batches: u32,
    batch_bytes: u32,
    /// The producer chooses the codec.
    adaptive: bool,
    /// The open batch is a single message larger than a batch.
    oversize: bool,
    /// Such a batch has the whole window, and its credit has not come back yet.
    oversize_out: bool,
    end: BatchEnd,
    batch_messages: u32,
}

impl Sending {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            credit: plan.window_batches.into(),
            window_batches: plan.window_batches,
            batch_bytes: plan.batch_bytes,
            adaptive: plan.codec.is_none(),
            oversize: false,
            oversize_out: false,
            end: BatchEnd::default(),
            batch_messages: 0,
        }
    }

    pub(super) fn has_credit(&self) -> bool {
        self.credit > 0
    }

    pub(super) fn has_credit_for(&self, message: &EncodedMessage) -> bool {
        if self.is_oversize(message) {
            self.credit == i64::from(self.window_batches)
        } else {
            self.credit > 0
        }
    }

    /// Adds credit that the consumer gives back.
    pub(super) fn give(&mut self, credit: u32) {
        self.credit = (self.credit + i64::from(credit)).min(self.window_batches.into());
        self.oversize_out &= self.credit < i64::from(self.window_batches);
    }

    /// Counts a message to send. Returns whether the batch must end.
    pub(super) fn count(&mut self, message: &EncodedMessage) -> bool {
        debug_assert!(self.credit > 0, "a message without credit");
        self.oversize = self.is_oversize(message);
        self.end.rows += u64::from(message.rows());
        self.end.messages += 1;
        self.batch_messages += 1;
        self.batch_messages == batch_messages_max(self.batch_bytes)
    }

    fn is_oversize(&self, message: &EncodedMessage) -> bool {
        message.body_bytes().max(message.payload_bytes()) > self.batch_bytes
    }

    pub(super) fn is_adaptive(&self) -> bool {
        self.adaptive
    }

    pub(super) fn is_between_batches(&self) -> bool {
        self.batch_messages == 0
    }

    pub(super) fn may_resize(&self) -> bool {
        !self.oversize_out
    }

    pub(super) fn resize(&mut self, sizes: &Sizes) {
        debug_assert!(self.batch_messages == 0 && !self.oversize_out, "a resize out of place");
        self.credit += i64::from(sizes.window_batches) - i64::from(self.window_batches);
        self.window_batches = sizes.window_batches;
        self.batch_bytes = sizes.batch_bytes;
    }

    /// Ends the batch if it has messages. Returns the totals to send.
    pub(super) fn end_batch(&mut self) -> Option<BatchEnd> {
        if self.batch_messages == 0 {
            return None;
        }
        let taken = if self.oversize { self.window_batches } else { 1 };
        self.credit -= i64::from(taken);
        self.oversize_out |= std::mem::take(&mut self.oversize);
        self.batch_messages = 0;
        Some(self.end)
    }

    /// The totals of the result so far.
    pub(super) fn end(&self) -> BatchEnd {
        self.end
    }
}
