//! Random values of a given type.

use std::sync::Arc;

use arrow_array::builder::{BinaryViewBuilder, StringViewBuilder};
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Int16Type, Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericBinaryArray, GenericListArray, GenericListViewArray,
    GenericStringArray, MapArray, NullArray, OffsetSizeTrait, PrimitiveArray, RunArray, StructArray,
    UnionArray, make_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer, i256};
use arrow_data::ArrayDataBuilder;
use arrow_schema::{
    DECIMAL128_MAX_PRECISION, DataType, FieldRef, IntervalUnit, TimeUnit, UnionFields, UnionMode,
};

use super::Rng;

/// Seconds from 1970 to the first and last moment that text formats can show.
const YEAR_1_S: i128 = -62_135_596_800;
const YEAR_9999_S: i128 = 253_402_300_799;

/// An array; one time in three, a slice from the middle of a larger one.
pub(super) fn array(rng: &mut Rng, data_type: &DataType, nullable: bool, len: usize) -> ArrayRef {
    if rng.one_in(3) {
        let (before, after) = (1 + rng.below(9), rng.below(5));
        whole_array(rng, data_type, nullable, before + len + after).slice(before, len)
    } else {
        whole_array(rng, data_type, nullable, len)
    }
}

fn whole_array(rng: &mut Rng, data_type: &DataType, nullable: bool, len: usize) -> ArrayRef {
    let nulls = if nullable { nulls(rng, len) } else { None };
    match data_type {
        DataType::Null => Arc::new(NullArray::new(len)),
        DataType::Boolean => {
            let bits = BooleanBuffer::collect_bool(len, |_| rng.one_in(2));
            Arc::new(arrow_array::BooleanArray::new(bits, nulls))
        }
        DataType::Utf8 => strings::<i32>(rng, len, nulls),
        DataType::LargeUtf8 => strings::<i64>(rng, len, nulls),
        DataType::Utf8View => {
            // Small blocks, so that the views point into several buffers.
            let mut builder = StringViewBuilder::new().with_fixed_block_size(64);
            texts(rng, len).iter().for_each(|text| builder.append_value(text));
            let (views, buffers, _) = builder.finish().into_parts();
            Arc::new(arrow_array::StringViewArray::new(views, buffers, nulls))
        }
        DataType::Binary => binaries::<i32>(rng, len, nulls),
        DataType::LargeBinary => binaries::<i64>(rng, len, nulls),
        DataType::BinaryView => {
            let mut builder = BinaryViewBuilder::new().with_fixed_block_size(64);
            texts(rng, len).iter().for_each(|text| builder.append_value(scramble(text)));
            let (views, buffers, _) = builder.finish().into_parts();
            Arc::new(arrow_array::BinaryViewArray::new(views, buffers, nulls))
        }
        DataType::List(item) => list::<i32>(rng, item, len, nulls),
        DataType::LargeList(item) => list::<i64>(rng, item, len, nulls),
        DataType::ListView(item) => list_view::<i32>(rng, item, len, nulls),
        DataType::LargeListView(item) => list_view::<i64>(rng, item, len, nulls),
        DataType::FixedSizeList(item, size) => {
            let values = array(rng, item.data_type(), item.is_nullable(), len * *size as usize);
            let list = FixedSizeListArray::try_new_with_length(item.clone(), *size, values, nulls, len);
            Arc::new(list.expect("values fill the lists"))
        }
        DataType::Struct(fields) => {
            let columns = fields.iter().map(|f| array(rng, f.data_type(), f.is_nullable(), len)).collect();
            let array = StructArray::try_new_with_length(fields.clone(), columns, nulls, len);
            Arc::new(array.expect("children are as long as the struct"))
        }
        DataType::Map(entries, ordered) => {
            let DataType::Struct(fields) = entries.data_type() else { panic!("map entries are a struct") };
            let offsets = offsets::<i32>(rng, len);
            let count = offsets.last().copied().unwrap_or(0) as usize;
            let keys = distinct_keys(fields[0].data_type(), count);
            let values = array(rng, fields[1].data_type(), fields[1].is_nullable(), count);
            let pairs = StructArray::new(fields.clone(), vec![keys, values], None);
            Arc::new(MapArray::new(entries.clone(), offsets, pairs, nulls, *ordered))
        }
        DataType::Union(fields, mode) => union_array(rng, fields, *mode, len),
        DataType::Dictionary(key, value) => {
            let distinct = 1 + rng.below(100);
            let values = array(rng, value, nullable, distinct);
            let keys = numbers(rng, len, 0, distinct as i128 - 1);
            let width = key.primitive_width().expect("dictionary keys are integers");
            let data = ArrayDataBuilder::new(data_type.clone())
                .len(len)
                .add_buffer(packed(&keys, width))
                .add_child_data(values.to_data())
                .nulls(nulls);
            make_array(data.build().expect("keys are below the number of values"))
        }
        DataType::RunEndEncoded(ends, values) => {
            let ends_type = ends.data_type();
            let ends = run_ends(rng, len);
            let values = array(rng, values.data_type(), nullable, ends.len());
            match ends_type {
                DataType::Int16 => runs::<Int16Type>(&ends, &values),
                DataType::Int32 => runs::<Int32Type>(&ends, &values),
                DataType::Int64 => runs::<Int64Type>(&ends, &values),
                other => panic!("run ends can't be {other}"),
            }
        }
        _ => fixed_width(rng, data_type, len, nulls),
    }
}

/// Validity: no buffer, all valid, all null, few or many nulls.
fn nulls(rng: &mut Rng, len: usize) -> Option<NullBuffer> {
    match rng.below(6) {
        0 | 1 => None,
        2 => Some(NullBuffer::new_valid(len)),
        3 => Some(NullBuffer::new_null(len)),
        4 => Some(NullBuffer::new(BooleanBuffer::collect_bool(len, |_| !rng.one_in(16)))),
        _ => Some(NullBuffer::new(BooleanBuffer::collect_bool(len, |_| rng.one_in(2)))),
    }
}

/// Numbers in `low..=high`, in one of the patterns of real columns.
fn numbers(rng: &mut Rng, len: usize, low: i128, high: i128) -> Vec<i128> {
    let first = rng.between(low, high);
    match rng.below(7) {
        0 => vec![first; len],
        1 => {
            // A sequence with a constant step, wrapping around within the range.
            let span = (high.wrapping_sub(low) as u128).saturating_add(1);
            let step = 1 + rng.below(1000) as u128;
            let start = first.wrapping_sub(low) as u128;
            (0..len as u128).map(|i| low.wrapping_add(((start + i * step) % span) as i128)).collect()
        }
        2 => {
            let choice: Vec<i128> = (0..4).map(|_| rng.between(low, high)).collect();
            (0..len).map(|_| *rng.pick(&choice)).collect()
        }
        3 => {
            let mut value = first;
            let next = |_| {
                if rng.one_in(8) {
                    value = rng.between(low, high);
                }
                value
            };
            (0..len).map(next).collect()
        }
        4 => (0..len).map(|_| rng.between(-100, 100).clamp(low, high)).collect(),
        5 => (0..len).map(|_| *rng.pick(&[low, high, 0i128.clamp(low, high), first])).collect(),
        _ => (0..len).map(|_| rng.between(low, high)).collect(),
    }
}

/// The low `width` bytes of each number, little-endian.
fn packed(numbers: &[i128], width: usize) -> Buffer {
    let mut bytes = MutableBuffer::with_capacity(numbers.len() * width);
    numbers.iter().for_each(|n| bytes.extend_from_slice(&n.to_le_bytes()[..width]));
    bytes.into()
}

fn fixed_width(rng: &mut Rng, data_type: &DataType, len: usize, nulls: Option<NullBuffer>) -> ArrayRef {
    let values = match data_type {
        DataType::FixedSizeBinary(width) => {
            let width = *width as usize;
            let distinct: Vec<Vec<u8>> =
                (0..1 + rng.below(20)).map(|_| (0..width).map(|_| rng.next() as u8).collect()).collect();
            let bytes: Vec<u8> = (0..len).flat_map(|_| rng.pick(&distinct).clone()).collect();
            Buffer::from_vec(bytes)
        }
        DataType::Float16 => floats(rng, len, &[0x0000, 0x8000, 0x7c00, 0x7e00, 0x0001, 0x7bff], 2, |x| {
            u64::from(<Float16Type as ArrowPrimitiveType>::Native::from_f64(x).to_bits())
        }),
        DataType::Float32 => {
            let special = [0.0, -0.0, f32::INFINITY, f32::NAN, f32::MIN_POSITIVE / 4.0, f32::MAX];
            floats(rng, len, &special.map(|f| u64::from(f.to_bits())), 4, |x| u64::from((x as f32).to_bits()))
        }
        DataType::Float64 => {
            let special = [0.0, -0.0, f64::NEG_INFINITY, f64::NAN, f64::MIN_POSITIVE / 4.0, f64::MAX];
            floats(rng, len, &special.map(f64::to_bits), 8, f64::to_bits)
        }
        DataType::Decimal256(precision, _) if *precision > DECIMAL128_MAX_PRECISION => {
            let most = 10i128.pow(u32::from(DECIMAL128_MAX_PRECISION)) - 1;
            let shift = i256::from_i128(10).wrapping_pow(u32::from(precision - DECIMAL128_MAX_PRECISION));
            let mut bytes = MutableBuffer::with_capacity(len * 32);
            for number in numbers(rng, len, -most, most) {
                bytes.extend_from_slice(&i256::from_i128(number).wrapping_mul(shift).to_le_bytes());
            }
            bytes.into()
        }
        DataType::Decimal256(..) => {
            let mut bytes = MutableBuffer::with_capacity(len * 32);
            let (low, high) = domain(data_type);
            for number in numbers(rng, len, low, high) {
                bytes.extend_from_slice(&i256::from_i128(number).to_le_bytes());
            }
            bytes.into()
        }
        DataType::Interval(IntervalUnit::DayTime) => parts(rng, len, &[4, 4]),
        DataType::Interval(IntervalUnit::MonthDayNano) => parts(rng, len, &[4, 4, 8]),
        DataType::Date64 => {
            let days = numbers(rng, len, YEAR_1_S / 86_400, YEAR_9999_S / 86_400);
            packed(&days.iter().map(|d| d * 86_400_000).collect::<Vec<_>>(), 8)
        }
        _ => {
            let (low, high) = domain(data_type);
            let width = data_type.primitive_width().expect("every other type is primitive");
            packed(&numbers(rng, len, low, high), width)
        }
    };
    let data = ArrayDataBuilder::new(data_type.clone()).len(len).add_buffer(values).nulls(nulls);
    make_array(data.build().expect("one value per row"))
}

/// Smallest and largest value of a type of whole numbers.
fn domain(data_type: &DataType) -> (i128, i128) {
    use DataType::*;
    let digits = |precision: u8| 10i128.pow(u32::from(precision)) - 1;
    let ticks = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 1i128,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    };
    match data_type {
        Int8 => (i8::MIN.into(), i8::MAX.into()),
        Int16 => (i16::MIN.into(), i16::MAX.into()),
        Int32 => (i32::MIN.into(), i32::MAX.into()),
        Int64 => (i64::MIN.into(), i64::MAX.into()),
        UInt8 => (0, u8::MAX.into()),
        UInt16 => (0, u16::MAX.into()),
        UInt32 => (0, u32::MAX.into()),
        UInt64 => (0, u64::MAX.into()),
        Date32 => (YEAR_1_S / 86_400, YEAR_9999_S / 86_400),
        Time32(unit) | Time64(unit) => (0, 86_400 * ticks(unit) - 1),
        Timestamp(TimeUnit::Nanosecond, _) => (i64::MIN.into(), i64::MAX.into()),
        // A day within either end, so that no time zone leaves the range.
        Timestamp(unit, _) => ((YEAR_1_S + 86_400) * ticks(unit), (YEAR_9999_S - 86_400) * ticks(unit)),
        Duration(_) => (-1_000_000_000_000, 1_000_000_000_000),
        Interval(IntervalUnit::YearMonth) => (-120_000, 120_000),
        Decimal32(precision, _)
        | Decimal64(precision, _)
        | Decimal128(precision, _)
        | Decimal256(precision, _) => (-digits(*precision), digits(*precision)),
        other => panic!("{other} is not a type of whole numbers"),
    }
}

/// Bit patterns of floats: cents, specials, or any bits.
fn floats(rng: &mut Rng, len: usize, special: &[u64], width: usize, bits: impl Fn(f64) -> u64) -> Buffer {
    let pattern = rng.below(3);
    let value = |_| match pattern {
        0 => bits(rng.between(-100_000, 100_000) as f64 / 100.0),
        1 => *rng.pick(special),
        _ => rng.next(),
    };
    packed(&(0..len).map(value).map(i128::from).collect::<Vec<_>>(), width)
}

/// Values made of several small signed numbers of the given widths.
fn parts(rng: &mut Rng, len: usize, widths: &[usize]) -> Buffer {
    let mut bytes = MutableBuffer::new(len * widths.iter().sum::<usize>());
    for _ in 0..len {
        for &width in widths {
            bytes.extend_from_slice(&rng.between(-10_000, 10_000).to_le_bytes()[..width]);
        }
    }
    bytes.into()
}

/// Text: few distinct words, a common prefix, a repeated character, or random characters.
fn texts(rng: &mut Rng, len: usize) -> Vec<String> {
    const WORDS: [&str; 8] = [
        "",
        "a",
        "exactly 12 b",
        "thirteen byte",
        "héé ☃ 日本語",
        "comma, \"quote\"",
        "line\nbreak",
        "\u{0}\u{1f600}",
    ];
    let pattern = rng.below(4);
    let text = |i: usize| match pattern {
        0 => rng.pick(&WORDS).to_string(),
        1 => format!("https://example.org/items/{i}"),
        2 => "x".repeat(rng.below(40)),
        _ => (0..rng.below(12)).filter_map(|_| char::from_u32(rng.below(0x2_0000) as u32)).collect(),
    };
    (0..len).map(text).collect()
}

/// Bytes that are not all valid text.
fn scramble(text: &str) -> Vec<u8> {
    text.bytes().map(|b| b.wrapping_mul(199)).collect()
}

fn strings<O: OffsetSizeTrait>(rng: &mut Rng, len: usize, nulls: Option<NullBuffer>) -> ArrayRef {
    let (offsets, bytes, _) = GenericStringArray::<O>::from_iter_values(texts(rng, len)).into_parts();
    Arc::new(GenericStringArray::new(offsets, bytes, nulls))
}

fn binaries<O: OffsetSizeTrait>(rng: &mut Rng, len: usize, nulls: Option<NullBuffer>) -> ArrayRef {
    let values = texts(rng, len);
    let values = GenericBinaryArray::<O>::from_iter_values(values.iter().map(|text| scramble(text)));
    let (offsets, bytes, _) = values.into_parts();
    Arc::new(GenericBinaryArray::new(offsets, bytes, nulls))
}

/// Offsets of `len` lists of 0 to 3 values.
fn offsets<O: OffsetSizeTrait>(rng: &mut Rng, len: usize) -> OffsetBuffer<O> {
    OffsetBuffer::from_lengths((0..len).map(|_| rng.below(4)))
}

fn list<O: OffsetSizeTrait>(
    rng: &mut Rng,
    item: &FieldRef,
    len: usize,
    nulls: Option<NullBuffer>,
) -> ArrayRef {
    let offsets = offsets::<O>(rng, len);
    let count = offsets.last().map_or(0, |o| o.as_usize());
    let values = array(rng, item.data_type(), item.is_nullable(), count);
    Arc::new(GenericListArray::new(item.clone(), offsets, values, nulls))
}

/// Lists that overlap, in any order.
fn list_view<O: OffsetSizeTrait>(
    rng: &mut Rng,
    item: &FieldRef,
    len: usize,
    nulls: Option<NullBuffer>,
) -> ArrayRef {
    let count = 4 + rng.below(len + 1);
    let values = array(rng, item.data_type(), item.is_nullable(), count);
    let sizes: Vec<usize> = (0..len).map(|_| rng.below(4)).collect();
    let starts: ScalarBuffer<O> = sizes.iter().map(|&n| O::usize_as(rng.below(count - n + 1))).collect();
    let sizes: ScalarBuffer<O> = sizes.iter().map(|&n| O::usize_as(n)).collect();
    Arc::new(GenericListViewArray::new(item.clone(), starts, sizes, values, nulls))
}

/// Map keys without duplicates.
fn distinct_keys(data_type: &DataType, count: usize) -> ArrayRef {
    let texts = (0..count).map(|i| format!("key {i}"));
    let numbers: Vec<i128> = (0..count as i128).collect();
    match data_type {
        DataType::Utf8 => Arc::new(GenericStringArray::<i32>::from_iter_values(texts)),
        DataType::LargeUtf8 => Arc::new(GenericStringArray::<i64>::from_iter_values(texts)),
        DataType::Utf8View => Arc::new(arrow_array::StringViewArray::from_iter_values(texts)),
        other => {
            let width = other.primitive_width().expect("map keys are text or numbers");
            let data = ArrayDataBuilder::new(other.clone()).len(count).add_buffer(packed(&numbers, width));
            make_array(data.build().expect("one number per key"))
        }
    }
}

fn union_array(rng: &mut Rng, fields: &UnionFields, mode: UnionMode, len: usize) -> ArrayRef {
    let choice: Vec<usize> = (0..len).map(|_| rng.below(fields.len())).collect();
    let ids: Vec<i8> = fields.iter().map(|(id, _)| id).collect();
    let type_ids: ScalarBuffer<i8> = choice.iter().map(|&child| ids[child]).collect();
    let mut counts = vec![0; fields.len()];
    let mut place = |child: usize| {
        counts[child] += 1;
        counts[child] - 1
    };
    let offsets: Option<ScalarBuffer<i32>> = match mode {
        UnionMode::Dense => Some(choice.iter().map(|&child| place(child)).collect()),
        UnionMode::Sparse => None,
    };
    let length = |child: usize| if mode == UnionMode::Dense { counts[child] as usize } else { len };
    let children = fields.iter().enumerate();
    let children =
        children.map(|(i, (_, f))| array(rng, f.data_type(), f.is_nullable(), length(i))).collect();
    Arc::new(UnionArray::try_new(fields.clone(), type_ids, offsets, children).expect("a value for each row"))
}

/// Ends of runs that cover `len` rows.
fn run_ends(rng: &mut Rng, len: usize) -> Vec<i128> {
    let mut ends = Vec::new();
    let mut end = 0;
    while end < len {
        end = len.min(end + 1 + rng.below(10));
        ends.push(end as i128);
    }
    ends
}

fn runs<R>(ends: &[i128], values: &ArrayRef) -> ArrayRef
where
    R: arrow_array::types::RunEndIndexType,
    R::Native: TryFrom<i128>,
{
    let native = |&end: &i128| R::Native::try_from(end).ok().expect("run ends fit their type");
    let ends = PrimitiveArray::<R>::new(ends.iter().map(native).collect(), None);
    Arc::new(RunArray::<R>::try_new(&ends, values).expect("one value per run"))
}
