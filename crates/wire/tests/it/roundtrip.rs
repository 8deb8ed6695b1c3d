//! Round trips: decoded rows equal encoded rows.

use std::sync::Arc;

use arrow_array::builder::StringViewBuilder;
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray,
    Int32Array, Int64Array, LargeStringArray, ListArray, ListViewArray, RecordBatch, RecordBatchOptions,
    RunArray, StringArray,
};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_schema::{Field, Schema};
use arrow_select::concat::concat_batches;
use lightship_testkit::arrays;
use lightship_wire::{Codec, Cutter, Encoder, WireError, decode, message_bytes, schema};
use proptest::prelude::*;

use crate::{CODECS, travel};

/// A batch, cut at these places.
fn parts(batch: &RecordBatch, cuts: &[f64]) -> Vec<RecordBatch> {
    let rows = batch.num_rows();
    let mut ends: Vec<usize> = cuts.iter().map(|cut| (rows as f64 * cut) as usize).collect();
    ends.push(rows);
    ends.sort_unstable();
    let starts = std::iter::once(0).chain(ends.clone());
    starts.zip(ends).map(|(start, end)| batch.slice(start, end - start)).collect()
}

#[test]
fn parts_with_different_columns_are_refused() {
    let column = |array: ArrayRef| RecordBatch::try_from_iter([("c", array)]).unwrap();
    let parts = [
        column(Arc::new(StringArray::from(vec!["x".repeat(1 << 20)]))),
        column(Arc::new(BinaryArray::from_vec(vec![&[7; 1 << 20]]))),
    ];
    for codec in CODECS {
        assert!(Encoder::new(codec).encode_all(&parts).is_err());
        assert!(Encoder::new(codec).encode_all(&[]).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_batch_comes_back(batch in arrays::any_batch()) {
        for codec in CODECS {
            let back = travel(&batch, codec);
            prop_assert_eq!(&back, &batch);
            for column in back.columns() {
                column.to_data().validate_full().unwrap();
            }
        }
    }

    #[test]
    fn any_slice_comes_back(batch in arrays::any_batch(), from in 0.0..1.0, part in 0.0..1.0) {
        let start = (batch.num_rows() as f64 * from) as usize;
        let slice = batch.slice(start, ((batch.num_rows() - start) as f64 * part) as usize);
        prop_assert_eq!(travel(&slice, Codec::None), slice);
    }

    #[test]
    fn any_parts_come_back_as_one(batch in arrays::any_batch(), cuts in prop::collection::vec(0.0..1.0, 0..5)) {
        for codec in CODECS {
            let parts = parts(&batch, &cuts);
            let message = Encoder::new(codec).encode_all(&parts).unwrap();
            prop_assert_eq!(message.rows() as usize, batch.num_rows());
            let back = decode(batch.schema_ref(), Buffer::from_vec(message.to_vec()), u32::MAX).unwrap();
            prop_assert_eq!(&back, &concat_batches(batch.schema_ref(), &parts).unwrap());
        }
    }

    #[test]
    fn large_parts_are_sent_from_where_they_are(
        cuts in prop::collection::vec(0.0..1.0, 0..5), nulls in any::<bool>(), offset in 0usize..100,
    ) {
        let valid = |row: i64| !nulls || row % 3 != 0;
        let texts = || (0..20_000).map(|row| valid(row).then(|| format!("{row} {}", "x".repeat(row as usize % 20))));
        let numbers = || (0..20_000).map(|row| valid(row).then_some(row));
        let bytes = (0..20_000).map(|row: i64| valid(row).then(|| row.to_le_bytes()));
        let batch = RecordBatch::try_from_iter([
            ("utf8", Arc::new(StringArray::from_iter(texts())) as ArrayRef),
            ("large utf8", Arc::new(LargeStringArray::from_iter(texts()))),
            ("binary", Arc::new(BinaryArray::from_iter(texts()))),
            ("int64", Arc::new(Int64Array::from_iter(numbers()))),
            ("decimal", Arc::new(Decimal128Array::from_iter(numbers().map(|n| n.map(i128::from))))),
            ("fixed", Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, 8).unwrap())),
            ("bool", Arc::new(BooleanArray::from_iter(numbers().map(|n| n.map(|n| n % 2 == 0))))),
        ]).unwrap();
        let batch = batch.slice(offset, batch.num_rows() - offset);
        let message = Encoder::new(Codec::None).encode_all(&parts(&batch, &cuts)).unwrap();
        let back = decode(batch.schema_ref(), Buffer::from_vec(message.to_vec()), u32::MAX).unwrap();
        back.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
        prop_assert_eq!(&back, &batch);
        if !nulls {
            prop_assert_eq!(message.to_vec(), Encoder::new(Codec::None).encode(&batch).unwrap().to_vec());
        }
        let there = batch.column(4).to_data().buffers()[0].as_slice().as_ptr_range();
        prop_assert!(message.pieces().any(|piece| there.contains(&piece.as_ptr())));
    }

    #[test]
    fn any_schema_comes_back(expected in arrays::any_schema()) {
        let bytes = schema::encode(&expected).unwrap();
        prop_assert_eq!(&schema::decode(&bytes).unwrap(), expected.as_ref());
        for len in 0..bytes.len() {
            prop_assert!(schema::decode(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn pieces_fit_and_make_the_whole(batch in arrays::any_batch(), message_bytes_max in 200u32..20_000) {
        let cutter = Cutter::new(message_bytes_max, message_bytes_max);
        let mut start = 0;
        while start < batch.num_rows() {
            match cutter.next_rows(&batch, start) {
                Ok(rows) => {
                    prop_assert!(rows > 0);
                    let piece = batch.slice(start, rows);
                    let message = Encoder::new(Codec::None).encode(&piece).unwrap();
                    prop_assert!(message.payload_bytes() <= message_bytes_max);
                    prop_assert_eq!(travel(&piece, Codec::None), piece);
                    start += rows;
                }
                Err(WireError::RowTooLarge { row, needed_bytes, limit_bytes }) => {
                    prop_assert_eq!(row, start);
                    prop_assert!(needed_bytes > limit_bytes);
                    prop_assert_eq!(Cutter::new(1, needed_bytes as u32).next_rows(&batch, start).unwrap(), 1);
                    start += 1;
                }
                Err(other) => return Err(TestCaseError::fail(other.to_string())),
            }
        }
    }

    #[test]
    fn sizes_are_never_underestimated(batch in arrays::any_batch()) {
        let message = Encoder::new(Codec::None).encode(&batch).unwrap();
        prop_assert!(message.payload_bytes() as u64 <= message_bytes(&batch, 0, batch.num_rows()));
    }
}

#[test]
fn every_type_survives_a_round_trip() {
    for rows in [0, 1, 7, 8, 9, 1000] {
        let batch = arrays::every_type(rows, 42);
        for codec in CODECS {
            assert_eq!(travel(&batch, codec), batch);
        }
    }
}

#[test]
fn rows_without_columns_survive_a_round_trip() {
    let options = RecordBatchOptions::new().with_row_count(Some(12));
    let batch = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
    assert_eq!(travel(&batch, Codec::LightZstd).num_rows(), 12);
}

fn one(column: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter([("c", column)]).unwrap()
}

#[test]
fn values_that_no_row_uses_are_not_sent() {
    let long = "x".repeat(100_000);
    let sent = |batch: &RecordBatch| Encoder::new(Codec::None).encode(batch).unwrap().payload_bytes();

    let values = StringArray::from(vec![long.as_str(), "b", long.as_str()]);
    let keys = Int32Array::from(vec![1, 1, 1]);
    let dictionary = one(Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::new(values))));
    assert!(sent(&dictionary) < 200);
    assert_eq!(travel(&dictionary, Codec::None), dictionary);

    let mut views = StringViewBuilder::new();
    [long.as_str(), "thirteen bytes", long.as_str()].iter().for_each(|v| views.append_value(v));
    let views = one(Arc::new(views.finish())).slice(1, 1);
    assert!(sent(&views) < 200);
    assert_eq!(travel(&views, Codec::None), views);

    let strings = one(Arc::new(StringArray::from(vec![long.as_str(), "b", long.as_str()]))).slice(1, 1);
    assert!(sent(&strings) < 200);
}

#[test]
fn a_bitmap_is_sent_only_where_there_is_a_null() {
    let sent =
        |column: Int32Array| Encoder::new(Codec::None).encode(&one(Arc::new(column))).unwrap().body_bytes();
    let with = Int32Array::from((0..1024).map(|i| (i != 7).then_some(i)).collect::<Vec<_>>());
    assert_eq!(sent(with.clone()), 1024 * 4 + 128);
    assert_eq!(sent(with.slice(8, 1000)), 1000 * 4);
}

#[test]
fn plain_rows_are_not_copied() {
    let column = Int32Array::from_iter_values(0..1000);
    let batch = one(Arc::new(column.clone()));
    let message = Encoder::new(Codec::None).encode(&batch).unwrap();
    let there = column.values().inner().as_ptr();
    assert!(message.pieces().any(|piece| piece.as_ptr() == there));

    let payload = Buffer::from_vec(message.to_vec());
    let within = payload.as_ptr_range();
    let back = decode(&batch.schema(), payload, 1 << 20).unwrap();
    assert!(within.contains(&back.column(0).to_data().buffers()[0].as_ptr()));
}

#[test]
fn a_payload_at_an_unaligned_address_is_read() {
    let batch = arrays::every_type(20, 1);
    let mut bytes = vec![0];
    bytes.extend(Encoder::new(Codec::None).encode(&batch).unwrap().to_vec());
    let odd = Buffer::from_vec(bytes).slice(1);
    assert_eq!(decode(&batch.schema(), odd, u32::MAX).unwrap(), batch);
}

#[test]
fn strings_that_are_not_ascii_survive_a_round_trip() {
    for text in ["zwölf Boxkämpfer", "日本語", "\u{0}", ""] {
        let batch = one(Arc::new(StringArray::from(vec![Some(text), None, Some("a")])));
        assert_eq!(travel(&batch, Codec::None), batch);
    }
}

#[test]
fn a_row_over_the_limit_names_the_size_it_needs() {
    let batch = one(Arc::new(StringArray::from(vec!["x".repeat(5000)])));
    let error = Cutter::new(1000, 4000).next_rows(&batch, 0).unwrap_err();
    let WireError::RowTooLarge { row: 0, needed_bytes, limit_bytes: 4000 } = error else { panic!("{error}") };
    assert!((5000..5200).contains(&needed_bytes));
    assert_eq!(Cutter::new(1000, needed_bytes as u32).next_rows(&batch, 0).unwrap(), 1);
}

#[test]
fn lists_of_empty_values_survive_or_are_refused() {
    use arrow_array::{FixedSizeListArray, ListViewArray};
    use arrow_schema::{DataType, Field};
    let field = |data_type| Arc::new(Field::new("item", data_type, true));
    let nothing = arrow_array::new_empty_array(&DataType::Int32);
    let lists = FixedSizeListArray::try_new_with_length(field(DataType::Int32), 0, nothing, None, 5).unwrap();
    let batch = one(Arc::new(lists.clone()));
    assert_eq!(travel(&batch, Codec::None), batch);
    let binary = arrow_array::FixedSizeBinaryArray::try_new_with_len(0, Buffer::default(), None, 5).unwrap();
    let batch = one(Arc::new(binary));
    assert_eq!(travel(&batch, Codec::None), batch);

    let (offsets, sizes) = (vec![0, 2].into(), vec![2, 3].into());
    let item = field(lists.data_type().clone());
    let views = ListViewArray::try_new(item, offsets, sizes, Arc::new(lists), None).unwrap();
    let error = Encoder::new(Codec::None).encode(&one(Arc::new(views))).unwrap_err().to_string();
    assert!(error.contains("fixed-size values of 0"), "{error}");
}

#[test]
fn runs_below_lists_that_are_picked_end_with_them() {
    let ends = Int32Array::from(vec![100]);
    let runs = RunArray::<Int32Type>::try_new(&ends, &Int64Array::from(vec![7])).unwrap();
    let item = Arc::new(Field::new("item", runs.data_type().clone(), true));
    let offsets = OffsetBuffer::new((0..=100).collect::<Vec<i32>>().into());
    let lists = ListArray::try_new(item, offsets, Arc::new(runs), None).unwrap();
    let item = Arc::new(Field::new("item", lists.data_type().clone(), true));
    let (starts, sizes) = (vec![0], vec![100]);
    let views = ListViewArray::try_new(item, starts.into(), sizes.into(), Arc::new(lists), None).unwrap();
    let batch = RecordBatch::try_from_iter([("c", Arc::new(views) as _)]).unwrap();
    let message = Encoder::new(Codec::None).encode(&batch).unwrap();
    let (found, most) = (u64::from(message.payload_bytes()), message_bytes(&batch, 0, 1));
    assert!(found <= most, "{found} bytes, at most {most} were expected");
    assert_eq!(travel(&batch, Codec::None), batch);
}
