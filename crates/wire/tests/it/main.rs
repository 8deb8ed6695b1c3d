//! Tests of the format through its public interface.

mod golden;
mod hostile;
mod light;
mod roundtrip;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use lightship_wire::{Codec, Encoder, decode};

const CODECS: [Codec; 4] = Codec::ALL;

/// The batch after it was sent and received.
fn travel(batch: &RecordBatch, codec: Codec) -> RecordBatch {
    let message = Encoder::new(codec).encode(batch).unwrap();
    assert_eq!(message.to_vec().len(), message.payload_bytes() as usize);
    decode(&batch.schema(), Buffer::from_vec(message.to_vec()), u32::MAX).unwrap()
}
