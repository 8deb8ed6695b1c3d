//! Random types and schemas.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{
    DataType, Field, Fields, IntervalUnit, Schema, SchemaRef, TimeUnit, UnionFields, UnionMode,
};

use super::Rng;

/// Maximum nesting depth of types.
const DEPTH_MAX: u32 = 3;

pub(super) const KEY_TYPES: [DataType; 8] = [
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::UInt8,
    DataType::UInt16,
    DataType::UInt32,
    DataType::UInt64,
];

pub(super) const RUN_END_TYPES: [DataType; 3] = [DataType::Int16, DataType::Int32, DataType::Int64];

/// Every type without children, with a choice of parameters.
pub(super) fn leaf_types() -> Vec<DataType> {
    use DataType::*;
    let mut types = vec![Null, Boolean];
    types.extend(KEY_TYPES);
    types.extend([Float16, Float32, Float64, Date32, Date64]);
    types.extend([Time32(TimeUnit::Second), Time32(TimeUnit::Millisecond)]);
    types.extend([Time64(TimeUnit::Microsecond), Time64(TimeUnit::Nanosecond)]);
    for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond] {
        types.extend([Timestamp(unit, None), Duration(unit)]);
    }
    types.extend([
        Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        Timestamp(TimeUnit::Nanosecond, Some("Europe/Paris".into())),
        Timestamp(TimeUnit::Second, Some("-03:30".into())),
        Interval(IntervalUnit::YearMonth),
        Interval(IntervalUnit::DayTime),
        Interval(IntervalUnit::MonthDayNano),
    ]);
    types.extend([Binary, LargeBinary, BinaryView, FixedSizeBinary(5), FixedSizeBinary(16)]);
    types.extend([Utf8, LargeUtf8, Utf8View]);
    types.extend([
        Decimal32(9, 2),
        Decimal64(18, 4),
        Decimal128(15, 2),
        Decimal128(38, 10),
        Decimal256(76, 20),
    ]);
    types
}

pub(super) fn schema_of(seeds: &[u64]) -> SchemaRef {
    let fields: Vec<Field> = seeds.iter().enumerate().map(|(i, &seed)| column(i, &mut Rng(seed))).collect();
    let metadata = match seeds.first() {
        Some(seed) if seed % 4 == 0 => HashMap::from([("origin".into(), format!("seed {seed}"))]),
        _ => HashMap::new(),
    };
    Arc::new(Schema::new_with_metadata(fields, metadata))
}

fn column(index: usize, rng: &mut Rng) -> Field {
    let name = match rng.below(12) {
        0 => format!("naïve ☃ {index}"),
        1 => format!("a.b\"c'{index}"),
        2 if index == 0 => String::new(),
        _ => format!("c{index}"),
    };
    field(rng, &name, DEPTH_MAX)
}

fn field(rng: &mut Rng, name: &str, depth: u32) -> Field {
    let data_type = data_type(rng, depth);
    // The null type is always null; a union has no nulls of its own but shows those of its children.
    let always_null = matches!(data_type, DataType::Null | DataType::Union(..));
    let field = Field::new(name, data_type, always_null || !rng.one_in(4));
    match rng.below(8) {
        0 => field.with_metadata(HashMap::from([("unit".into(), "m/s".into()), ("k".into(), String::new())])),
        _ => field,
    }
}

/// A type that nests at most `depth` levels deep.
fn data_type(rng: &mut Rng, depth: u32) -> DataType {
    if depth == 0 || rng.one_in(2) {
        return leaf_type(rng);
    }
    let depth = depth - 1;
    let item = |rng: &mut Rng| Arc::new(field(rng, "item", depth));
    match rng.below(11) {
        0 => DataType::List(item(rng)),
        1 => DataType::LargeList(item(rng)),
        2 => DataType::ListView(item(rng)),
        3 => DataType::LargeListView(item(rng)),
        // Never 0: Arrow loses the number of such lists when it selects rows.
        4 => DataType::FixedSizeList(item(rng), 1 + rng.below(3) as i32),
        5 => {
            let fields = (0..rng.below(4)).map(|i| field(rng, &format!("f{i}"), depth));
            DataType::Struct(fields.collect())
        }
        6 => {
            let key =
                rng.pick(&[DataType::Utf8, DataType::Int32, DataType::Int64, DataType::Utf8View]).clone();
            map(key, data_type(rng, depth))
        }
        7 => union_of((0..1 + rng.below(3)).map(|_| data_type(rng, depth)).collect(), UnionMode::Sparse),
        8 => union_of((0..1 + rng.below(3)).map(|_| data_type(rng, depth)).collect(), UnionMode::Dense),
        9 => DataType::Dictionary(Box::new(rng.pick(&KEY_TYPES).clone()), Box::new(encodable_type(rng))),
        _ => run_end_encoded(rng.pick(&RUN_END_TYPES).clone(), encodable_type(rng)),
    }
}

fn leaf_type(rng: &mut Rng) -> DataType {
    let digits = |rng: &mut Rng, most: u8| -> (u8, i8) {
        let precision = 1 + rng.below(most.into()) as u8;
        let scale = rng.below(usize::from(precision) + 1) as i8;
        (precision, if rng.one_in(8) { -scale } else { scale })
    };
    match rng.pick(&leaf_types()) {
        DataType::Decimal32(..) => pair(digits(rng, 9), DataType::Decimal32),
        DataType::Decimal64(..) => pair(digits(rng, 18), DataType::Decimal64),
        DataType::Decimal128(..) => pair(digits(rng, 38), DataType::Decimal128),
        DataType::Decimal256(..) => pair(digits(rng, 76), DataType::Decimal256),
        DataType::FixedSizeBinary(_) => DataType::FixedSizeBinary(1 + rng.below(19) as i32),
        other => other.clone(),
    }
}

fn pair<A, B, T>((a, b): (A, B), make: impl FnOnce(A, B) -> T) -> T {
    make(a, b)
}

/// A type for the values of dictionaries and runs.
fn encodable_type(rng: &mut Rng) -> DataType {
    match leaf_type(rng) {
        DataType::Null => DataType::Utf8,
        other => other,
    }
}

pub(super) fn map(key: DataType, value: DataType) -> DataType {
    let entries = Fields::from(vec![Field::new("keys", key, false), Field::new("values", value, true)]);
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries), false)), false)
}

pub(super) fn run_end_encoded(ends: DataType, values: DataType) -> DataType {
    DataType::RunEndEncoded(
        Arc::new(Field::new("run_ends", ends, false)),
        Arc::new(Field::new("values", values, true)),
    )
}

/// A union whose type ids are not consecutive and do not start at zero.
pub(super) fn union_of(types: Vec<DataType>, mode: UnionMode) -> DataType {
    let fields = types
        .into_iter()
        .zip(0i8..)
        .map(|(t, i)| (3 + 2 * i, Arc::new(Field::new(format!("u{i}"), t, true))));
    DataType::Union(fields.collect::<UnionFields>(), mode)
}
