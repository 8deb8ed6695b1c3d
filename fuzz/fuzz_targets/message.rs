//! A schema and a message of anyone's making: decoding never panics, and what it
//! accepts holds together.
#![no_main]

use std::sync::Arc;

use arrow_array::Array;
use arrow_buffer::Buffer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (schema, message) = input;
    let Ok(schema) = lightship_wire::schema::decode(schema) else { return };
    let payload = Buffer::from_vec(message.to_vec());
    if let Ok(batch) = lightship_wire::decode(&Arc::new(schema), payload, 1 << 20) {
        for column in batch.columns() {
            column.to_data().validate_full().expect("an accepted message holds together");
        }
    }
});
