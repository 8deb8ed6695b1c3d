//! The light layout: sizes of encoded columns, and malformed messages.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{IntervalDayTime, IntervalMonthDayNano};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array,
    Decimal256Array, FixedSizeBinaryArray, Float16Array, Float32Array, Float64Array, Int64Array,
    IntervalDayTimeArray, IntervalMonthDayNanoArray, LargeStringArray, ListArray, RecordBatch, StringArray,
    StringViewArray, UInt64Array, types::Int32Type,
};
use arrow_buffer::{Buffer, NullBuffer, i256};
use lightship_wire::{Codec, Encoder, WireError, decode, peek};
use proptest::prelude::*;

use crate::travel;

const ROWS: usize = 5000;

fn one(column: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter([("c", column)]).unwrap()
}

/// The size of a message with one column, after a round trip.
fn sent(column: impl Array + 'static) -> u32 {
    let batch = one(Arc::new(column));
    for codec in [Codec::LightLz4, Codec::LightZstd] {
        assert_eq!(travel(&batch, codec), batch, "{codec}");
    }
    let message = Encoder::new(Codec::Light).encode(&batch).unwrap();
    let back = decode(&batch.schema(), Buffer::from_vec(message.to_vec()), message.body_bytes()).unwrap();
    assert_eq!(back, batch);
    back.column(0).to_data().validate_full().unwrap();
    message.payload_bytes()
}

/// Numbers without a pattern.
fn noise(index: usize) -> u64 {
    (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn below(limit: u64) -> impl Iterator<Item = u64> {
    (0..ROWS).map(move |index| noise(index) % limit)
}

/// About `bits` per row.
fn bits(bits: usize) -> std::ops::RangeInclusive<u32> {
    let bytes = (ROWS * bits).div_ceil(8) as u32;
    bytes..=bytes + 300
}

#[test]
fn columns_take_as_few_bits_as_they_need() {
    let small = Int64Array::from_iter_values(below(1000).map(|n| n as i64 - 500_000));
    assert!(bits(10).contains(&sent(small)));
    let wide = UInt64Array::from_iter_values(below(u64::MAX));
    assert!(bits(64).contains(&sent(wide)));
    let days = Date32Array::from_iter_values(below(2500).map(|n| n as i32));
    assert!(bits(12).contains(&sent(days)));
    let prices = Decimal128Array::from_iter_values(below(1 << 20).map(i128::from));
    assert!(bits(20).contains(&sent(prices.with_precision_and_scale(15, 2).unwrap())));
    let sorted = Int64Array::from_iter_values((0..ROWS as i64).map(|n| n * 1_000_003 + (n & 1)));
    assert!(bits(2).contains(&sent(sorted)));
    let few = Int64Array::from_iter_values(below(4).map(|n| noise(n as usize) as i64));
    assert!(bits(2).contains(&sent(few)));
    let constant = Int64Array::from_value(i64::MIN, ROWS);
    assert!(sent(constant) < 64);
}

#[test]
fn multiples_take_what_their_quotients_take() {
    // Days in milliseconds, whole seconds in microseconds, with dates before 1970.
    for unit in [86_400_000, 1_000_000, 3] {
        let multiples = below(1 << 20).map(|n| (n as i64 - 500_000) * unit + 7);
        assert!(bits(20).contains(&sent(Int64Array::from_iter_values(multiples))), "{unit}");
    }
    let wide = Decimal128Array::from_iter_values(below(1 << 20).map(|n| i128::from(n) * 1_000_000));
    assert!(bits(20).contains(&sent(wide.with_precision_and_scale(38, 6).unwrap())));
    // The ends of their types, and what one value more makes of a divisor.
    sent(Int64Array::from(vec![i64::MIN, i64::MIN + 10, i64::MAX - 7]));
    sent(UInt64Array::from(vec![0, u64::MAX, u64::MAX / 3]));
    let but_one = below(1 << 20).enumerate().map(|(row, n)| n as i64 * 1000 + i64::from(row == ROWS / 2));
    assert!(bits(30).contains(&sent(Int64Array::from_iter_values(but_one))));
}

#[test]
fn a_sample_that_misleads_costs_no_more_than_the_next_best() {
    // Runs, of which a sample sees few; too many in all for a dictionary.
    let runs = (0..200_000_u64).map(|row| (noise(row as usize / 8) % (1 << 36)) as i64);
    let bytes = sent(Int64Array::from_iter_values(runs));
    assert!(bytes < 200_000 * 37 / 8 + 1000, "{bytes}");
}

/// A sample of a sorted column has one value.
#[test]
fn sorted_columns_are_compressed() {
    let days = |row: usize| (row / 30_000) as i32;
    let batch = one(Arc::new(arrow_array::Int32Array::from_iter_values((0..200_000).map(days))));
    for (codec, most) in [(Codec::LightLz4, 2000), (Codec::LightZstd, 1000)] {
        assert_eq!(travel(&batch, codec), batch, "{codec}");
        let bytes = Encoder::new(codec).encode(&batch).unwrap().to_vec().len();
        assert!(bytes < most, "{codec}: {bytes}");
    }
}

#[test]
fn equal_booleans_are_sent_as_a_constant() {
    for rows in 0..100 {
        for value in [true, false] {
            sent(BooleanArray::from(vec![value; rows]));
            sent(BooleanArray::from_iter((0..rows).map(|row| (row % 3 > 0).then_some(value))));
            sent(BooleanArray::from(vec![value; rows + 5]).slice(5, rows));
        }
    }
}

#[test]
fn strings_take_the_size_of_their_pattern() {
    let few = StringArray::from_iter_values(below(4).map(|n| format!("one of the values, {n}")));
    assert!(bits(2).contains(&sent(few)));
    let words = ["slow ", "quick ", "silent ", "packages ", "deposits ", "among "];
    let text =
        |row: usize| (0..6).map(|word| words[(noise(row * 6 + word) % 6) as usize]).collect::<String>();
    let texts: Vec<_> = (0..ROWS).map(text).collect();
    let plain: usize = texts.iter().map(String::len).sum();
    assert!((sent(StringArray::from_iter_values(&texts)) as usize) < plain / 2);
    let noise: Vec<_> = (0..ROWS).map(|row| noise(row).to_le_bytes()).collect();
    assert!((sent(BinaryArray::from_iter_values(&noise)) as usize) < 8 * ROWS + 300);
    assert!(sent(StringArray::from_iter_values(std::iter::repeat_n("same", ROWS))) < 64);
    assert!(sent(StringArray::from_iter_values(std::iter::repeat_n("", ROWS))) < 64);
}

#[test]
fn other_types_are_encoded_as_well_as_these() {
    let texts: Vec<_> = below(4).map(|n| format!("one of the values, {n}")).collect();
    assert!(bits(2).contains(&sent(StringViewArray::from_iter_values(&texts))));
    assert!(bits(2).contains(&sent(LargeStringArray::from_iter_values(&texts))));
    // Short and long values, those below NULLs as long as may be.
    let mixed = |row: usize| (!row.is_multiple_of(3)).then(|| "x".repeat(row % 40));
    let views: StringViewArray = (0..ROWS).map(mixed).collect();
    let strings: StringArray = (0..ROWS).map(mixed).collect();
    assert_eq!(sent(views.clone()), sent(strings));
    sent(views.slice(7, ROWS - 20));
    let binary = BinaryViewArray::from_iter_values(below(u64::MAX).map(|n| n.to_le_bytes()));
    assert!((sent(binary) as usize) < 8 * ROWS + 300);

    for width in [0, 1, 3, 4] {
        let bytes = Buffer::from_vec(vec![7_u8; width * ROWS]);
        sent(FixedSizeBinaryArray::try_new_with_len(width as i32, bytes, None, ROWS).unwrap());
    }
    let ids = |row: u64| [noise(row as usize % 4).to_le_bytes(); 2].concat();
    let ids = FixedSizeBinaryArray::try_from_iter(below(u64::MAX).map(ids)).unwrap();
    assert!(bits(2).contains(&sent(ids)));
    let noise = FixedSizeBinaryArray::try_from_iter(below(u64::MAX).map(|n| n.to_le_bytes())).unwrap();
    assert!((sent(noise.clone()) as usize) < 8 * ROWS + 300);
    let nulls = NullBuffer::from_iter((0..ROWS).map(|row| row.is_multiple_of(2)));
    let (size, values, _) = noise.into_parts();
    let half = FixedSizeBinaryArray::new(size, values, Some(nulls));
    assert!((sent(half) as usize) < 4 * ROWS + ROWS / 8 + 300);

    let halves = Buffer::from_vec(below(8).map(|n| (n as u16) << 10).collect::<Vec<_>>());
    assert!(bits(3).contains(&sent(Float16Array::new(halves.into(), None))));
    let hours = below(24).map(|n| IntervalDayTime::new(1, n as i32));
    assert!(bits(5).contains(&sent(IntervalDayTimeArray::from_iter_values(hours))));
    let years = below(32).map(|n| IntervalMonthDayNano::new(12 * n as i32, 0, 500));
    assert!(bits(6).end() > &sent(IntervalMonthDayNanoArray::from_iter_values(years)));
    let months: IntervalMonthDayNanoArray = below(32)
        .enumerate()
        .map(|(row, n)| row.is_multiple_of(2).then(|| IntervalMonthDayNano::new(n as i32, 0, 500)))
        .collect();
    assert!(bits(4).end() > &sent(months));
}

/// Symbols cost milliseconds to find, and a table in each message.
#[test]
fn symbols_are_used_only_for_much_text() {
    let words = ["slow ", "quick ", "silent ", "packages ", "deposits ", "among "];
    let text = |row: usize| {
        (0..6)
            .map(|word| words[(noise(row * 6 + word) % 6) as usize])
            .chain([&*row.to_string()])
            .collect::<String>()
    };
    let batch = |rows: std::ops::Range<usize>| {
        one(Arc::new(StringArray::from_iter_values(rows.map(text))) as ArrayRef)
    };
    let plain = |batch: &RecordBatch| batch.column(0).as_string::<i32>().value_data().len();
    let mut encoder = Encoder::new(Codec::Light);
    let mut share = |batch: &RecordBatch| {
        let message = encoder.encode(batch).unwrap();
        let back = decode(&batch.schema(), Buffer::from_vec(message.to_vec()), message.body_bytes()).unwrap();
        assert_eq!(&back, batch);
        f64::from(message.payload_bytes()) / plain(batch) as f64
    };
    let few = batch(0..300);
    assert!(share(&few) > 0.9, "a little text");
    let many = batch(300..ROWS);
    assert!(plain(&many) > 64 << 10);
    assert!(share(&many) < 0.5, "as much as has been seen by now");
    assert!(share(&few) < 0.5, "with the symbols that are known");
    assert!(share(&batch(0..20)) > 0.9, "less than their table");
    assert!(share(&many) < 0.5, "which are kept all the same");
}

#[test]
fn decimal_floats_take_the_size_of_their_digits() {
    let cents = |n: u64| n as f64 / 100.0;
    assert!(bits(10).contains(&sent(Float64Array::from_iter_values(below(1000).map(cents)))));
    assert!(bits(10).contains(&sent(Float32Array::from_iter_values(below(1000).map(|n| cents(n) as f32)))));
    let odd = [f64::NAN, -0.0, f64::INFINITY, f64::MIN_POSITIVE / 2.0, f64::MAX, 1.0 / 3.0];
    let mut values: Vec<_> = below(1000).map(cents).collect();
    values[..6].copy_from_slice(&odd);
    let batch = one(Arc::new(Float64Array::from(values.clone())));
    let message = Encoder::new(Codec::Light).encode(&batch).unwrap();
    assert!(message.payload_bytes() < *bits(10).end());
    let back = decode(&batch.schema(), Buffer::from_vec(message.to_vec()), u32::MAX).unwrap();
    let back = back.column(0).as_any().downcast_ref::<Float64Array>().unwrap();
    let bits_of = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits_of(back.values()), bits_of(&values));
}

#[test]
fn a_null_takes_one_bit() {
    let every = |keep: usize| move |row: usize| row.is_multiple_of(keep);
    let numbers = |present: fn(usize) -> bool| {
        (0..ROWS).map(|row| present(row).then_some((noise(row) % 1000) as i64)).collect::<Int64Array>()
    };
    let tenth = sent(numbers(|row| row.is_multiple_of(10)));
    assert!((ROWS as u32 * 2 / 8..ROWS as u32 * 2 / 8 + 300).contains(&tenth), "{tenth}");
    assert!(sent(numbers(|_| false)) < 64);
    let texts: StringArray = (0..ROWS).map(|row| every(10)(row).then_some("thirteen byte")).collect();
    assert!(sent(texts) < ROWS as u32 / 8 + 100);
    assert!(sent(BooleanArray::from(vec![None; ROWS])) < 64);
}

#[test]
fn extreme_values_survive_a_round_trip() {
    let wide = [i128::MAX / 2, i128::MIN / 2, 0, 1, -1, i128::from(i64::MIN), i128::from(i64::MAX) + 1];
    sent(Decimal128Array::from_iter_values((0..ROWS).map(|row| wide[row % 7])));
    sent(Decimal128Array::from_iter_values((0..ROWS).map(|row| [i64::MIN, i64::MAX][row % 2].into())));
    let wider = [i256::MAX, i256::MIN, i256::ZERO, i256::from_i128(i64::MIN.into())];
    sent(Decimal256Array::from_iter_values((0..ROWS).map(|row| wider[row % 4])));
    sent(Int64Array::from_iter_values((0..ROWS).map(|row| [i64::MIN, i64::MAX, 0][row % 3])));
    sent(UInt64Array::from_iter_values((0..ROWS).map(|row| [0, u64::MAX][row % 2])));
    let long = "ü".repeat(70_000);
    sent(StringArray::from_iter_values((0..20).map(|row| &long[..row * 6000])));
    let lists = (0..ROWS).map(|row| (row % 3 > 0).then(|| (0..row as i32 % 5).map(Some)));
    sent(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
}

#[test]
fn an_encoding_that_no_longer_fits_is_replaced() {
    let column = |low: i64, step: i64| {
        one(Arc::new(Int64Array::from_iter_values((0..ROWS as i64).map(|n| low + n * step))) as _)
    };
    let random = one(Arc::new(Int64Array::from_iter_values(below(1 << 12).map(|n| n as i64))));
    let mut encoder = Encoder::new(Codec::Light);
    let mut sent = |batch: &RecordBatch| {
        let message = encoder.encode(batch).unwrap();
        let back = decode(&batch.schema(), Buffer::from_vec(message.to_vec()), u32::MAX).unwrap();
        assert_eq!(&back, batch);
        message.payload_bytes()
    };
    assert!(sent(&column(0, 1 << 40)) < 200, "sorted: differences");
    assert!(sent(&column(1 << 50, 1 << 20)) < 200);
    assert!(bits(12).contains(&sent(&random)), "no longer sorted: packed");
    assert!(sent(&column(0, 1 << 40)) < 200, "and sorted again");
}

#[test]
fn a_message_that_light_does_not_shrink_is_sent_plain() {
    let batch = one(Arc::new(UInt64Array::from_iter_values([u64::MAX, 0, 17])));
    let message = Encoder::new(Codec::Light).encode(&batch).unwrap();
    assert_eq!(message.codec(), Codec::None);
    assert_eq!(peek(&message.to_vec()).unwrap().codec, Codec::None);
}

#[test]
fn a_constant_can_not_exceed_the_memory_limit() {
    for column in [
        Arc::new(Int64Array::from_value(7, ROWS)) as ArrayRef,
        Arc::new(StringArray::from_iter_values(std::iter::repeat_n("x".repeat(50), ROWS))),
        Arc::new(BooleanArray::from(vec![true; ROWS])),
        Arc::new(FixedSizeBinaryArray::new(16, Buffer::from_vec(vec![7_u8; 16 * ROWS]), None)),
        Arc::new(StringViewArray::from_iter_values(std::iter::repeat_n("x".repeat(50), ROWS))),
        Arc::new(StringViewArray::from_iter_values(std::iter::repeat_n("x", ROWS))),
    ] {
        let batch = one(column);
        let message = Encoder::new(Codec::Light).encode(&batch).unwrap();
        assert_eq!(message.codec(), Codec::Light);
        let refused =
            |bytes: Vec<u8>, max| decode(&batch.schema(), Buffer::from_vec(bytes), max).unwrap_err();
        let error = refused(message.to_vec(), message.body_bytes() - 1);
        assert!(matches!(error, WireError::TooLarge { what: "message body", .. }), "{error}");
        // One that lies about it: the rows of its head and of its node are many more.
        let mut lying = message.to_vec();
        for place in [0, 28] {
            lying[place..place + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        }
        let error = refused(lying, u32::MAX);
        assert!(matches!(error, WireError::TooLarge { what: "decoded column", .. }), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Codes, lengths and tables of FSST that were tampered with: an error, or the right number of bytes.
    #[test]
    fn symbols_may_lie(flips in prop::collection::vec((any::<u32>(), any::<u8>()), 1..6)) {
        let texts = (0..300).map(|row| format!("furiously regular deposits {} sleep quickly", noise(row) % 997));
        let batch = one(Arc::new(StringArray::from_iter_values(texts)));
        let mut bytes = Encoder::new(Codec::Light).encode(&batch).unwrap().to_vec();
        for (place, byte) in flips {
            // Beyond head and tables: schemes and buffers.
            let start = 48;
            let place = start + place as usize % (bytes.len() - start);
            bytes[place] = byte;
        }
        if let Ok(back) = decode(&batch.schema(), Buffer::from_vec(bytes), 1 << 20) {
            prop_assert_eq!(back.num_rows(), 300);
            back.column(0).to_data().validate_full().unwrap();
        }
    }
}
