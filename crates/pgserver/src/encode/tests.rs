//! Tests of values in both formats.

use arrow_array::builder::{Int32Builder, ListBuilder, StringDictionaryBuilder, StringRunBuilder};

use super::*;
use crate::types::type_of;

fn values(array: ArrayRef) -> Values {
    let field = Field::new("x", array.data_type().clone(), true);
    Values::new(&array, &field, &PgColumn::of(&field)).unwrap()
}

fn texts(array: ArrayRef) -> Vec<Option<String>> {
    let rows = array.len();
    let values = values(array);
    let text = |row: usize| {
        let mut out = BytesMut::new();
        values.put(row, Format::Text, &mut out).unwrap();
        String::from_utf8(out.to_vec()).unwrap()
    };
    (0..rows).map(|row| (!values.is_null(row)).then(|| text(row))).collect()
}

fn check(array: impl Array + 'static, expected: &[Option<&str>]) {
    let expected: Vec<_> = expected.iter().map(|text| text.map(str::to_owned)).collect();
    assert_eq!(texts(Arc::new(array)), expected);
}

fn binary(array: impl Array + 'static, row: usize) -> Vec<u8> {
    let mut out = BytesMut::new();
    values(Arc::new(array)).put(row, Format::Binary, &mut out).unwrap();
    out.to_vec()
}

#[test]
fn values_have_the_text_of_postgresql() {
    check(BooleanArray::from(vec![Some(true), None, Some(false)]), &[Some("t"), None, Some("f")]);
    check(UInt8Array::from(vec![255]), &[Some("255")]);
    check(UInt64Array::from(vec![u64::MAX]), &[Some("18446744073709551615")]);
    check(Float64Array::from(vec![0.1, 1e300]), &[Some("0.1"), Some("1e+300")]);
    let decimals = Decimal128Array::from(vec![12_345, -5]).with_precision_and_scale(15, 2).unwrap();
    check(decimals, &[Some("123.45"), Some("-0.05")]);
    check(Decimal32Array::from(vec![5]).with_precision_and_scale(5, 1).unwrap(), &[Some("0.5")]);
    check(BinaryArray::from(vec![&b"\x00\xff"[..]]), &[Some("\\x00ff")]);
    check(Date32Array::from(vec![0]), &[Some("1970-01-01")]);
    check(Time64NanosecondArray::from(vec![1_000]), &[Some("00:00:00.000001")]);
    check(TimestampSecondArray::from(vec![1]).with_timezone("UTC"), &[Some("1970-01-01 00:00:01+00")]);
    check(DurationMillisecondArray::from(vec![1500]), &[Some("00:00:01.5")]);
    check(IntervalYearMonthArray::from(vec![13]), &[Some("1 year 1 mon")]);
    check(NullArray::new(2), &[None, None]);
}

#[test]
fn dictionaries_and_runs_are_sent_as_their_values() {
    let mut dictionary = StringDictionaryBuilder::<Int8Type>::new();
    dictionary.extend([Some("a"), None, Some("b"), Some("a")]);
    check(dictionary.finish(), &[Some("a"), None, Some("b"), Some("a")]);
    let mut runs = StringRunBuilder::<Int32Type>::new();
    runs.extend([Some("x"), Some("x"), None]);
    let runs = runs.finish();
    check(runs.slice(1, 2), &[Some("x"), None]);
}

#[test]
fn lists_are_arrays_and_nested_values_are_json() {
    let mut lists = ListBuilder::new(Int32Builder::new());
    lists.append_value([Some(1), None]);
    lists.append_value([]);
    lists.append_null();
    let lists = lists.finish();
    check(lists.clone(), &[Some("{1,NULL}"), Some("{}"), None]);
    let expected = [
        0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 23, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1, 255, 255, 255,
        255,
    ];
    assert_eq!(binary(lists.clone(), 0), expected);
    assert_eq!(binary(lists.clone(), 1), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 23]);
    let fields =
        vec![(Arc::new(Field::new("l", lists.data_type().clone(), true)), Arc::new(lists) as ArrayRef)];
    check(
        StructArray::from(fields),
        &[Some(r#"{"l":[1,null]}"#), Some(r#"{"l":[]}"#), Some(r#"{"l":null}"#)],
    );
}

#[test]
fn binary_values_have_the_format_of_postgresql() {
    assert_eq!(binary(Int8Array::from(vec![-1]), 0), [255, 255]);
    assert_eq!(binary(Date32Array::from(vec![10_957]), 0), [0; 4]);
    assert_eq!(binary(TimestampMicrosecondArray::from(vec![EPOCH_US + 1]), 0), [0, 0, 0, 0, 0, 0, 0, 1]);
    let one = Decimal128Array::from(vec![100]).with_precision_and_scale(10, 2).unwrap();
    assert_eq!(binary(one, 0), [0, 1, 0, 0, 0, 0, 0, 2, 0, 1]);
}

#[test]
fn values_that_postgresql_lacks_are_refused() {
    let refused = |array: ArrayRef, expected: &str| {
        let mut out = BytesMut::new();
        assert_eq!(values(array).put(0, Format::Text, &mut out).unwrap_err().code, expected);
    };
    let nan: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN]));
    let nested = vec![(Arc::new(Field::new("x", DataType::Float64, true)), nan)];
    refused(Arc::new(StructArray::from(nested)), code::NUMERIC_OUT_OF_RANGE);
    refused(Arc::new(TimestampNanosecondArray::from(vec![1])), code::DATETIME_OVERFLOW);
    refused(Arc::new(TimestampSecondArray::from(vec![i64::MAX])), code::DATETIME_OVERFLOW);
    refused(Arc::new(Date64Array::from(vec![1])), code::DATETIME_OVERFLOW);
    refused(Arc::new(StringArray::from(vec!["a\0b"])), code::CHARACTER_NOT_IN_REPERTOIRE);
}

#[test]
fn uuids_are_recognised_by_their_extension() {
    let array: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter([[0xabu8; 16]].iter()).unwrap());
    let metadata = [("ARROW:extension:name".to_owned(), "arrow.uuid".to_owned())].into();
    let field = Field::new("x", array.data_type().clone(), true).with_metadata(metadata);
    assert_eq!(type_of(&field).0, oid::UUID);
    let mut out = BytesMut::new();
    Values::new(&array, &field, &PgColumn::of(&field)).unwrap().put(0, Format::Text, &mut out).unwrap();
    assert_eq!(&out[..], b"abababab-abab-abab-abab-abababababab");
}
