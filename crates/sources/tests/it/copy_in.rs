//! Random batches of all types are copied into PostgreSQL: each value is stored unchanged, or
//! refused with its row and column.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, IntervalMonthDayNanoType};
use arrow_array::{Array, ArrayRef, BooleanArray, Int64Array, RecordBatch};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, IntervalUnit, Schema, TimeUnit};
use arrow_select::nullif::nullif;
use lightship_sources::{Destination, SourceError, WriteMode};
use lightship_testkit::arrays;

use crate::postgres::{destination, query, server, shown, write};

const ROWS: usize = 60;

/// Whether a table can have a column of this type that reads back unchanged.
fn has_column(data_type: &DataType) -> bool {
    use DataType::*;
    let digits = |precision: u8, scale: i8| i32::from(precision) - i32::from(scale.min(0)) <= 76;
    match data_type {
        Struct(_) | Map(..) | Union(..) | ListView(_) | LargeListView(_) => false,
        List(item) | LargeList(item) | FixedSizeList(item, _) => {
            let is_encoded = matches!(item.data_type(), Dictionary(..) | RunEndEncoded(..));
            !item.data_type().is_nested() && !is_encoded && has_column(item.data_type())
        }
        Dictionary(_, values) => has_column(values),
        RunEndEncoded(_, values) => has_column(values.data_type()),
        Decimal32(p, s) | Decimal64(p, s) | Decimal128(p, s) | Decimal256(p, s) => digits(*p, *s),
        _ => true,
    }
}

/// The values of a dictionary or runs, decoded.
fn plain(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Dictionary(_, values) => cast(array, values).unwrap(),
        DataType::RunEndEncoded(_, values) => cast(array, values.data_type()).unwrap(),
        _ => array.clone(),
    }
}

/// Whether PostgreSQL can store this value of a plain array.
fn is_fit(array: &ArrayRef, row: usize) -> bool {
    use DataType::*;
    let number = |array: &ArrayRef| cast(array, &Int64).unwrap().as_primitive::<Int64Type>().value(row);
    if array.is_null(row) {
        return true;
    }
    match array.data_type() {
        Utf8 | LargeUtf8 | Utf8View => {
            !cast(array, &Utf8).unwrap().as_string::<i32>().value(row).contains('\0')
        }
        Timestamp(TimeUnit::Nanosecond, _)
        | Time64(TimeUnit::Nanosecond)
        | Duration(TimeUnit::Nanosecond) => number(array) % 1000 == 0,
        Interval(IntervalUnit::MonthDayNano) => {
            array.as_primitive::<IntervalMonthDayNanoType>().value(row).nanoseconds % 1000 == 0
        }
        List(_) => all_fit(&array.as_list::<i32>().value(row)),
        LargeList(_) => all_fit(&array.as_list::<i64>().value(row)),
        FixedSizeList(..) => all_fit(&array.as_fixed_size_list().value(row)),
        _ => true,
    }
}

fn all_fit(items: &ArrayRef) -> bool {
    (0..items.len()).all(|item| is_fit(items, item))
}

/// Whether the value can be read back: Arrow has intervals in nanoseconds.
fn is_readable(array: &ArrayRef, row: usize) -> bool {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1000,
        TimeUnit::Nanosecond => 1,
    };
    match array.data_type() {
        _ if array.is_null(row) => true,
        DataType::Duration(of) => {
            let value = cast(array, &DataType::Int64).unwrap().as_primitive::<Int64Type>().value(row);
            value.checked_mul(unit(of)).is_some()
        }
        DataType::List(_) => all_readable(&array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => all_readable(&array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(..) => all_readable(&array.as_fixed_size_list().value(row)),
        _ => true,
    }
}

fn all_readable(items: &ArrayRef) -> bool {
    (0..items.len()).all(|item| is_readable(items, item))
}

/// Replaces rows that don't pass by NULL.
fn without(array: &ArrayRef, passes: impl Fn(&ArrayRef, usize) -> bool) -> ArrayRef {
    let fails: Vec<bool> = (0..array.len()).map(|row| !passes(array, row)).collect();
    if !fails.contains(&true) {
        return array.clone();
    }
    nullif(array, &BooleanArray::from(fails)).unwrap()
}

fn texts(array: &ArrayRef) -> Vec<String> {
    shown(&RecordBatch::try_from_iter_with_nullable([("a", array.clone(), true)]).unwrap(), 0)
}

/// A batch of a column with row numbers, and then these columns.
fn batch(columns: &[ArrayRef]) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
    let columns: Vec<_> = std::iter::once(&numbers).chain(columns).cloned().collect();
    let fields =
        columns.iter().enumerate().map(|(i, c)| Field::new(format!("c{i}"), c.data_type().clone(), true));
    RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns).unwrap()
}

#[tokio::test]
async fn random_values_are_stored_or_refused() {
    let (mut refused, mut types) = (0, std::collections::BTreeSet::new());
    for seed in 0..24 {
        // Every type at the ends of its range, then random types.
        let random = if seed < 4 { arrays::every_type(ROWS, seed) } else { arrays::batch(seed, ROWS) };
        let columns: Vec<_> =
            random.columns().iter().filter(|c| has_column(c.data_type())).cloned().collect();
        let values: Vec<ArrayRef> = columns.iter().map(plain).collect();
        types.extend(values.iter().map(|values| values.data_type().to_string()));
        let table = format!("random_{seed}");

        // Unchanged, with their encodings: the first value that does not fit is refused.
        let first = (0..ROWS).find_map(|row| {
            let column = values.iter().position(|values| !is_fit(values, row))?;
            Some((row as u64 + 1, format!("c{}", column + 1)))
        });
        let expected = first.clone();
        match write(&table, &batch(&columns)).await {
            Ok(_) => assert_eq!(first, None, "{seed}"),
            Err(SourceError::Unfit { row, column, .. }) => {
                refused += 1;
                assert_eq!(Some((row, column)), expected, "{seed}");
            }
            Err(error) => panic!("{seed}: {error}"),
        }
        server().psql(&format!("DROP TABLE IF EXISTS {table}"));

        // Without the values that don't fit, all values read back.
        let fit: Vec<_> = values.iter().map(|c| without(&without(c, is_fit), is_readable)).collect();
        let fit = batch(&fit);
        let mut destination = destination(&table, &fit.schema(), WriteMode::Create).await.unwrap();
        destination.write(fit.clone()).await.unwrap();
        Box::new(destination).finish().await.unwrap();
        let back = query(&format!("SELECT * FROM {table} ORDER BY c0")).await.unwrap();
        assert_eq!(back.num_rows(), ROWS);
        for (i, (written, read)) in fit.columns().iter().zip(back.columns()).enumerate() {
            let written = cast(written, read.data_type()).unwrap();
            // All NaNs become the same one, and are printed alike.
            let is_same = &written == read || texts(&written) == texts(read);
            assert!(is_same, "seed {seed}, column {i}, {}: {written:?} {read:?}", fit.column(i).data_type());
        }
        // The refused row is counted over all batches.
        if let Some((row, column)) = first {
            let two = async {
                let mut destination = self::destination(&table, &fit.schema(), WriteMode::Append).await?;
                destination.write(fit.clone()).await?;
                destination.write(batch(&values)).await
            };
            match two.await.unwrap_err() {
                SourceError::Unfit { row: at, column: of, hint, .. } => {
                    assert_eq!((at, of, hint.is_some()), (row + ROWS as u64, column, true));
                }
                error => panic!("{seed}: {error}"),
            }
        }
    }
    assert!(refused >= 6 && types.len() > 45, "{refused} refused, {} types", types.len());
}

#[tokio::test]
async fn lists_of_a_slice_are_written() {
    use arrow_array::ListArray;
    let lists = (0..6).map(|row| (row != 4).then(|| (0..row).map(Some).collect::<Vec<_>>()));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
    let batch = RecordBatch::try_from_iter_with_nullable([("l", lists, true)]).unwrap();
    write("lists_of_a_slice", &batch.slice(2, 3)).await.unwrap();
    assert_eq!(server().psql("SELECT l FROM lists_of_a_slice").trim_end(), "{0,1}\n{0,1,2}");
}

#[tokio::test]
async fn dates_at_the_ends_of_the_servers_calendar_are_written() {
    use arrow_array::{Date32Array, TimestampMicrosecondArray, TimestampSecondArray};
    let day = |text: &str| {
        let days = server().psql(&format!("SELECT '{text}'::date - '1970-01-01'::date"));
        days.trim().parse::<i32>().unwrap()
    };
    let (first, last) = (day("4714-11-24 BC"), day("5874897-12-31"));
    let check = async |array: ArrayRef, text: Option<&str>| {
        let batch = RecordBatch::try_from_iter_with_nullable([("t", array.clone(), true)]).unwrap();
        server().psql("DROP TABLE IF EXISTS ends_of_time");
        match (write("ends_of_time", &batch).await, text) {
            (Ok(_), Some(text)) => assert_eq!(server().psql("SELECT t FROM ends_of_time").trim(), text),
            (Err(SourceError::Unfit { row: 1, .. }), None) => {}
            (other, _) => panic!("{array:?}: {other:?}"),
        }
    };
    let date = |days: i32| Arc::new(Date32Array::from(vec![days])) as ArrayRef;
    check(date(first), Some("4714-11-24 BC")).await;
    check(date(last), Some("5874897-12-31")).await;
    // The server's infinities are the extreme values of the type.
    for days in [first - 1, last + 1, i32::MIN, i32::MAX, i32::MIN + 10_957] {
        check(date(days), None).await;
    }
    let us = |us: i64| Arc::new(TimestampMicrosecondArray::from(vec![us])) as ArrayRef;
    check(us(i64::MAX), Some("294247-01-10 04:00:54.775807")).await;
    check(us(-210_866_803_200_000_000), Some("4714-11-24 00:00:00 BC")).await;
    for value in [i64::MIN, i64::MIN + 946_684_800_000_000, -210_866_803_200_000_001] {
        check(us(value), None).await;
    }
    check(Arc::new(TimestampSecondArray::from(vec![i64::MAX / 1000])), None).await;
}

#[tokio::test]
async fn written_values_are_printed_by_the_server_as_expected() {
    use arrow_array::types::IntervalDayTimeType;
    use arrow_array::{
        Decimal256Array, DurationNanosecondArray, FixedSizeBinaryArray, Float16Array, PrimitiveArray,
        Time64NanosecondArray, TimestampNanosecondArray, UInt64Array,
    };
    use arrow_buffer::{IntervalDayTime, i256};
    let half = cast(&(Arc::new(arrow_array::Float32Array::from(vec![0.25])) as ArrayRef), &DataType::Float16)
        .unwrap();
    let half: &Float16Array = half.as_primitive();
    let most = i256::from_string(&"9".repeat(76)).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("half", Arc::new(half.clone())),
        ("big", Arc::new(UInt64Array::from(vec![u64::MAX]))),
        ("wide", Arc::new(Decimal256Array::from(vec![most]).with_precision_and_scale(76, 20).unwrap())),
        (
            "at",
            Arc::new(TimestampNanosecondArray::from(vec![1_000_000_001_000]).with_timezone("Europe/Paris")),
        ),
        ("time", Arc::new(Time64NanosecondArray::from(vec![86_399_999_999_000]))),
        ("span", Arc::new(DurationNanosecondArray::from(vec![-1_500_000_000]))),
        ("days", Arc::new(PrimitiveArray::<IntervalDayTimeType>::from(vec![IntervalDayTime::new(-3, 1500)]))),
        ("bytes", Arc::new(FixedSizeBinaryArray::try_from_iter([[1u8, 255]].iter()).unwrap())),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    write("few_values", &batch).await.unwrap();
    let expected = format!(
        "0.25\t18446744073709551615\t{}.{}\t1970-01-01 00:16:40.000001+00\t23:59:59.999999\t-00:00:01.5\t\
         -3 days +00:00:01.5\t\\x01ff",
        "9".repeat(56),
        "9".repeat(20)
    );
    assert_eq!(server().psql("SELECT * FROM few_values").trim(), expected);
}

/// A number in the same digits, however it was written.
fn number(text: &str) -> String {
    let text = text.trim().replace(['$', ','], "").to_lowercase().replace("infinity", "inf");
    if text.contains('e') {
        return text.parse::<f64>().unwrap().to_string();
    }
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[tokio::test]
async fn numbers_of_every_kind_are_unchanged_in_columns_of_every_kind() {
    // The server prints every accepted number as Arrow does, except for trailing zeros.
    let columns = ["int2", "int4", "int8", "float4", "float8", "numeric", "numeric(12, 3)", "money", "oid"];
    let mut accepted = 0;
    for (n, to) in columns.iter().enumerate() {
        for from in [
            DataType::Int8,
            DataType::UInt16,
            DataType::Int32,
            DataType::UInt32,
            DataType::Int64,
            DataType::UInt64,
            DataType::Float32,
            DataType::Float64,
            DataType::Decimal64(18, 4),
            DataType::Decimal128(15, 2),
            DataType::Decimal128(9, -3),
            DataType::Decimal256(60, 10),
        ] {
            let table = format!("number_{n}");
            server().psql(&format!("DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (a {to})"));
            for seed in 0..4 {
                let values = arrays::array_of(&from, false, 1, seed);
                let batch = RecordBatch::try_from_iter([("a", values)]).unwrap();
                match write(&table, &batch).await {
                    Ok(_) => {
                        accepted += 1;
                        let sql =
                            format!("WITH d AS (DELETE FROM {table} RETURNING a) SELECT a::text FROM d");
                        let found = server().psql(&sql);
                        let wanted = shown(&batch, 0).remove(0);
                        let is_same = match (&from, *to) {
                            // The same number has more digits there.
                            (DataType::Float32, "float8") => {
                                found.trim().parse::<f64>().unwrap() as f32 == wanted.parse::<f32>().unwrap()
                            }
                            _ => number(&found) == number(&wanted),
                        };
                        assert!(is_same, "{from} to {to}: {found} for {wanted}");
                    }
                    Err(SourceError::Unfit { row: 1, .. } | SourceError::Value { .. }) => {}
                    Err(error) => panic!("{from} to {to}: {error}"),
                }
            }
        }
    }
    assert!(accepted > 100, "{accepted}");
}
