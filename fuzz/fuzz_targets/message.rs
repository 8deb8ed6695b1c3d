//! An arbitrary schema and message: decoding never panics, and an accepted message is a valid batch.
//!
//! The input is the length of the schema (two bytes, little-endian), the schema, the message.
#![no_main]

use std::sync::Arc;

use arrow_array::Array;
use arrow_buffer::Buffer;
use libfuzzer_sys::fuzz_target;
use lightship_wire::{Codec, Encoder};

fuzz_target!(|input: &[u8]| {
    let Some((length, rest)) = input.split_first_chunk() else { return };
    let Some((schema, message)) = rest.split_at_checked(u16::from_le_bytes(*length).into()) else { return };
    let Ok(schema) = lightship_wire::schema::decode(schema) else { return };
    // An encoded schema decodes to the same.
    let again = lightship_wire::schema::encode(&schema).expect("a decoded schema can be encoded");
    assert_eq!(lightship_wire::schema::decode(&again).expect("an encoded schema can be decoded"), schema);
    let payload = Buffer::from_vec(message.to_vec());
    let schema = Arc::new(schema);
    let _ = lightship_wire::peek(&payload);
    let Ok(batch) = lightship_wire::decode(&schema, payload, 1 << 20) else { return };
    for column in batch.columns() {
        column.to_data().validate_full().expect("an accepted message is valid");
    }
    for codec in [Codec::None, Codec::Light] {
        let Ok(message) = Encoder::new(codec).encode(&batch) else { continue };
        let payload = Buffer::from_vec(message.to_vec());
        let again =
            lightship_wire::decode(&schema, payload, u32::MAX).expect("an encoded message can be decoded");
        assert_eq!(again.num_rows(), batch.num_rows());
    }
});
