//! Turns a service's batches into the rows of messages: gathers small batches and cuts large ones. Rows are not copied.

use std::collections::VecDeque;
use std::time::Duration;

use arrow_array::RecordBatch;
use lightship_wire::control::{ErrorCode, Failure, Plan};
use lightship_wire::tuning::Sizes;
use lightship_wire::{Cutter, WireError, joined_bytes, message_bytes};

use crate::proto::batch_messages_max;

/// Packs rows into messages, and counts the open batch.
pub(super) struct Packer {
    plan: Plan,
    cutter: Cutter,
    /// Rows that are not sent yet, and what they add at most to a message with rows of others ([`joined_bytes`]).
    batches: VecDeque<(RecordBatch, u64)>,
    bytes: u64,
    /// The first row of the first batch that is not sent yet.
    start: usize,
    batch_rows: u64,
    batch_bytes: u64,
    batch_messages: u32,
}

/// The next step of a [`Packer`].
pub(super) enum Packed {
    /// Send these rows as a message.
    Rows(MessageRows),
    /// The open batch is full: end it, then call again.
    BatchFull,
    /// Everything that was pushed has been packed.
    Empty,
}

/// The rows of a message, in order.
pub(super) struct MessageRows {
    /// At least one batch.
    pub(super) batches: Vec<RecordBatch>,
    /// The maximum size of their message in the plain layout.
    pub(super) bytes: u64,
}

impl MessageRows {
    pub(super) fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The first `rows` of them; at least one batch.
    pub(super) fn first_rows(&self, mut rows: usize) -> Vec<RecordBatch> {
        let mut first = Vec::new();
        for batch in &self.batches {
            if rows == 0 && !first.is_empty() {
                break;
            }
            let taken = rows.min(batch.num_rows());
            first.push(batch.slice(0, taken));
            rows -= taken;
        }
        first
    }
}

impl Packer {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            cutter: Cutter::new(plan.message_bytes, plan.message_bytes_max),
            plan,
            batches: VecDeque::new(),
            bytes: 0,
            start: 0,
            batch_rows: 0,
            batch_bytes: 0,
            batch_messages: 0,
        }
    }

    /// Adds a batch.
    pub(super) fn push(&mut self, batch: RecordBatch) {
        if batch.num_rows() > 0 {
            let bytes = joined_bytes(&batch, 0, batch.num_rows());
            self.bytes += bytes;
            self.batches.push_back((batch, bytes));
        }
    }

    /// Whether there are enough rows for a message.
    pub(super) fn has_message(&self) -> bool {
        !self.is_empty() && self.bytes >= self.cutter.message_bytes()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
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
        let Some(message) = self.message()? else { return Ok(Packed::Empty) };
        let rows = message.num_rows();
        let full = rows == 0
            || self.batch_messages == batch_messages_max(self.plan.batch_bytes)
            || (self.batch_bytes > 0 && self.batch_bytes + message.bytes > self.plan.batch_bytes.into());
        if full {
            (self.batch_rows, self.batch_bytes, self.batch_messages) = (0, 0, 0);
            return Ok(Packed::BatchFull);
        }
        self.batch_rows += rows as u64;
        self.batch_bytes += message.bytes;
        self.batch_messages += 1;
        self.remove(rows);
        Ok(Packed::Rows(message))
    }

    /// The rows of the next message, without taking them. There are no rows in it if the open batch has the maximum
    /// number of rows.
    pub(super) fn message(&self) -> Result<Option<MessageRows>, Failure> {
        let Some((first, _)) = self.batches.front() else { return Ok(None) };
        let rows_max = match self.plan.batch_rows {
            0 => usize::MAX,
            rows => usize::try_from(u64::from(rows) - self.batch_rows).unwrap_or(usize::MAX),
        };
        let mut rows = self.cutter.next_rows(first, self.start).map_err(wire_failure)?.min(rows_max);
        let mut message = MessageRows {
            batches: vec![first.slice(self.start, rows)],
            bytes: message_bytes(first, self.start, rows),
        };
        if self.start + rows == first.num_rows() {
            let mut joined = joined_bytes(first, self.start, rows);
            // Others are added whole, so that large batches are cut evenly; or as many rows as the open batch needs.
            for (batch, bytes) in self.batches.iter().skip(1) {
                let wanted = batch.num_rows().min(rows_max - rows);
                let bytes = if wanted == batch.num_rows() { *bytes } else { joined_bytes(batch, 0, wanted) };
                if wanted == 0 || joined + bytes > self.cutter.message_bytes() {
                    break;
                }
                rows += wanted;
                joined += bytes;
                message.bytes = joined;
                message.batches.push(batch.slice(0, wanted));
            }
        }
        Ok(Some(message))
    }

    /// Removes the first rows.
    fn remove(&mut self, mut rows: usize) {
        while rows > 0
            && let Some((batch, bytes)) = self.batches.front_mut()
        {
            self.bytes -= *bytes;
            let rest = batch.num_rows() - self.start;
            if rows < rest {
                self.start += rows;
                *bytes = joined_bytes(batch, self.start, rest - rows);
                self.bytes += *bytes;
                return;
            }
            rows -= rest;
            self.start = 0;
            self.batches.pop_front();
        }
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
        WireError::Arrow(error) => Failure::new(ErrorCode::Data, error.to_string()),
        error => Failure::new(ErrorCode::Internal, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{BinaryArray, Int64Array};
    use arrow_select::concat::concat_batches;
    use lightship_wire::control::Plan;
    use lightship_wire::{Codec, Encoder};
    use proptest::prelude::*;

    use super::*;

    /// With a NULL in every third batch.
    fn batch(first: i64, rows: usize, bytes: usize) -> RecordBatch {
        let nulls = first % 3 == 0;
        let numbers =
            (first..first + rows as i64).map(|number| (!nulls || number != first).then_some(number));
        let numbers = Int64Array::from_iter(numbers);
        let texts = BinaryArray::from_iter_values(std::iter::repeat_n(vec![7; bytes], rows));
        let columns = [("n", Arc::new(numbers) as _, true), ("b", Arc::new(texts) as _, true)];
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    fn plan(batch_rows: u32) -> Plan {
        Plan { batch_rows, message_bytes: 1 << 16, batch_bytes: 1 << 18, ..Plan::default() }
    }

    /// Everything that a packer has, as the rows of each message and the messages of each batch.
    fn packed(packer: &mut Packer) -> (Vec<RecordBatch>, Vec<Vec<usize>>) {
        let (mut rows, mut batches) = (Vec::new(), vec![Vec::new()]);
        loop {
            match packer.next().unwrap() {
                Packed::Empty => return (rows, batches),
                Packed::BatchFull => batches.push(Vec::new()),
                Packed::Rows(message) => {
                    let encoded = Encoder::new(Codec::None).encode_all(&message.batches).unwrap();
                    assert!(u64::from(encoded.payload_bytes()) <= message.bytes);
                    batches.last_mut().unwrap().push(message.num_rows());
                    rows.extend(message.batches);
                }
            }
        }
    }

    #[test]
    fn small_batches_fill_messages_and_large_ones_are_cut_evenly() {
        let mut packer = Packer::new(plan(0));
        // Five of a quarter of a message: four fit, and the fifth waits for others.
        (0..5).for_each(|index| packer.push(batch(index * 150, 150, 88)));
        assert!(packer.has_message());
        let Packed::Rows(message) = packer.next().unwrap() else { panic!("no message") };
        assert_eq!((message.batches.len(), message.num_rows(), packer.has_message()), (4, 600, false));
        packer.push(batch(750, 1500, 88));
        let (_, batches) = packed(&mut packer);
        assert_eq!(batches, [[150, 500, 500, 500]]);
    }

    #[test]
    fn batches_have_the_number_of_rows_of_the_plan() {
        let mut packer = Packer::new(plan(100));
        (0..10).for_each(|index| packer.push(batch(index * 30, 30, 10)));
        assert_eq!(packed(&mut packer).1, [[100], [100], [100]]);
    }

    proptest! {
        #[test]
        fn all_rows_are_packed_in_order(
            sizes in prop::collection::vec((0usize..400, 0usize..400), 1..20),
            batch_rows in prop_oneof![Just(0u32), 1u32..500],
            pause in any::<u32>(),
        ) {
            let mut packer = Packer::new(plan(batch_rows));
            let (mut pushed, mut taken, mut first) = (Vec::new(), Vec::new(), 0);
            for (index, (rows, bytes)) in sizes.into_iter().enumerate() {
                let batch = batch(first, rows, bytes);
                first += rows as i64;
                pushed.push(batch.clone());
                packer.push(batch);
                if pause & (1 << index) != 0 {
                    taken.extend(packed(&mut packer).0);
                }
            }
            taken.extend(packed(&mut packer).0);
            let schema = pushed[0].schema();
            prop_assert_eq!(
                concat_batches(&schema, &taken).unwrap(),
                concat_batches(&schema, &pushed).unwrap()
            );
            prop_assert!(packer.is_empty() && packer.bytes == 0);
        }
    }
}
