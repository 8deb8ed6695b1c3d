//! Malformed bytes from a hostile peer: they cause an error, never a panic, and no memory is allocated for
//! data that is only announced.

use arrow_array::Array;
use arrow_buffer::Buffer;
use lightship_testkit::arrays;
use lightship_wire::cluster::Task;
use lightship_wire::control::{Accepted, Failure, Hello, Plan, Query};
use lightship_wire::join::{Join, Placeholder, StripeOffer};
use lightship_wire::statement::{Action, Description, Statement};
use lightship_wire::tuning::{Progress, Retune, Sizes};
use lightship_wire::{Codec, Encoder, WireError, decode, peek, schema};
use proptest::prelude::*;

/// Whatever a decoder accepts must be consistent.
fn attack(schema: &arrow_schema::SchemaRef, bytes: Vec<u8>) {
    if let Ok(batch) = decode(schema, Buffer::from_vec(bytes), 1 << 20) {
        for column in batch.columns() {
            column.to_data().validate_full().unwrap();
        }
        assert!(batch.slice(0, batch.num_rows().min(1)).num_rows() <= 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bits(batch in arrays::any_batch(), codec in 0..Codec::ALL.len(), flips in prop::collection::vec(any::<u32>(), 1..8)) {
        let mut bytes = Encoder::new(Codec::ALL[codec]).encode(&batch).unwrap().to_vec();
        for flip in flips {
            let bit = flip as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        attack(&batch.schema(), bytes);
    }

    #[test]
    fn overwritten_words(batch in arrays::any_batch(), light in any::<bool>(), words in prop::collection::vec((any::<u32>(), any::<u32>()), 1..4)) {
        let codec = if light { Codec::Light } else { Codec::None };
        let mut bytes = Encoder::new(codec).encode(&batch).unwrap().to_vec();
        for (place, word) in words {
            let place = place as usize % (bytes.len() / 4) * 4;
            bytes[place..place + 4].copy_from_slice(&word.to_le_bytes());
        }
        attack(&batch.schema(), bytes);
    }

    #[test]
    fn cut_short(batch in arrays::any_batch(), codec in 0..Codec::ALL.len(), part in 0.0..1.0) {
        let mut bytes = Encoder::new(Codec::ALL[codec]).encode(&batch).unwrap().to_vec();
        let len = (bytes.len() as f64 * part) as usize;
        bytes.truncate(len);
        prop_assert!(decode(&batch.schema(), Buffer::from_vec(bytes), u32::MAX).is_err());
    }

    #[test]
    fn statements_with_flipped_bits(batch in arrays::any_batch(), flips in prop::collection::vec(any::<u32>(), 0..4)) {
        prop_assume!(batch.num_rows() > 0);
        let action = Action::Execute(batch.slice(0, 1));
        let statement = Statement { sql: "select $1".into(), plan: Plan::default(), action };
        let mut bytes = statement.encode().unwrap();
        for flip in &flips {
            let bit = *flip as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        match Statement::decode(&bytes) {
            Ok(Statement { action: Action::Execute(row), .. }) => {
                prop_assert_eq!(row.num_rows(), 1);
                row.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
            }
            Ok(_) => {}
            Err(error) => prop_assert!(!flips.is_empty(), "{}", error),
        }
    }

    #[test]
    fn another_schema(batch in arrays::any_batch(), codec in 0..Codec::ALL.len(), other in arrays::any_schema()) {
        attack(&other, Encoder::new(Codec::ALL[codec]).encode(&batch).unwrap().to_vec());
    }

    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 0..300), schema in arrays::any_schema()) {
        let _ = schema::decode(&bytes);
        let _ = Hello::decode(&bytes);
        if let Ok(query) = Query::decode(&bytes) {
            prop_assert_eq!(Query::decode(&query.encode()).unwrap(), query);
        }
        let _ = Task::decode(&bytes);
        let _ = Statement::decode(&bytes);
        let _ = Description::decode(&bytes);
        let _ = StripeOffer::decode(&bytes);
        let _ = Join::decode(&bytes);
        let _ = Placeholder::decode(&bytes);
        let _ = Accepted::decode(&bytes);
        let _ = Failure::decode(&bytes);
        let _ = Retune::decode(&bytes);
        let _ = Sizes::decode(&bytes);
        if let Ok(progress) = Progress::decode(&bytes) {
            prop_assert_eq!(Progress::decode(&progress.encode()).unwrap(), progress);
        }
        attack(&schema, bytes);
    }

    #[test]
    fn damaged_schemas(schema in arrays::any_schema(), flips in prop::collection::vec(any::<u32>(), 1..8)) {
        let mut bytes = schema::encode(&schema).unwrap();
        for flip in flips {
            let bit = flip as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let _ = schema::decode(&bytes);
    }
}

#[test]
fn a_decompression_bomb_is_refused_before_it_is_unpacked() {
    // No integer encoding holds these; they are compressed as they are.
    let wide = (0..1usize << 19).map(|row| [i128::MAX, i128::MIN][row % 2]);
    let wide = arrow_array::Decimal128Array::from_iter_values(wide);
    let batch = arrow_array::RecordBatch::try_from_iter([("c", std::sync::Arc::new(wide) as _)]).unwrap();
    for codec in [Codec::LightLz4, Codec::LightZstd] {
        let message = Encoder::new(codec).encode(&batch).unwrap();
        assert_eq!(message.codec(), codec);
        let bytes = message.to_vec();
        assert!(bytes.len() < 300_000, "{codec:?}: {} bytes", bytes.len());
        let error = decode(&batch.schema(), Buffer::from_vec(bytes.clone()), 1 << 20).unwrap_err();
        assert!(matches!(error, WireError::TooLarge { bytes: 8_388_608, limit: 1_048_576, .. }), "{error}");

        // One that lies about its body, and then also about what it unpacks to, gets no more than it announced.
        let mut lying = bytes;
        for place in [16, 24] {
            lying[place..place + 4].copy_from_slice(&1024u32.to_le_bytes());
            assert!(decode(&batch.schema(), Buffer::from_vec(lying.clone()), 1 << 20).is_err());
        }
    }
}

#[test]
fn compression_in_the_plain_layout_is_refused() {
    let batch = arrays::every_type(9, 1);
    let mut bytes = Encoder::new(Codec::None).encode(&batch).unwrap().to_vec();
    assert_eq!(bytes[4..6], [0u8, 0]);
    for compression in [1, 2] {
        bytes[4] = compression;
        let error = decode(&batch.schema(), Buffer::from_vec(bytes.clone()), u32::MAX).unwrap_err();
        assert!(error.to_string().contains("compression in the plain layout"), "{error}");
        assert!(peek(&bytes).is_err());
    }
}

#[test]
fn types_nested_too_deep_are_refused() {
    let mut bytes = vec![0; 4];
    bytes.extend(1u32.to_le_bytes());
    for _ in 0..100_000 {
        bytes.extend([0, 0, 0, 0, 1, 0, 0, 0, 0, 31]);
    }
    let error = schema::decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("nested"), "{error}");
}

#[test]
fn counts_beyond_the_payload_are_refused() {
    let mut bytes = vec![0; 4];
    bytes.extend(u32::MAX.to_le_bytes());
    assert!(matches!(schema::decode(&bytes), Err(WireError::Truncated { .. })));
}
