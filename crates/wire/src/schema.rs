//! Columns and their types (`docs/format.md`, section 4).

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{
    DataType, Field, FieldRef, Fields, IntervalUnit, Schema, TimeUnit, UnionFields, UnionMode,
};

use crate::bytes::{Put, Reader};
use crate::error::{Result, malformed};

/// The maximum nesting of types. Writer and reader refuse deeper ones, because both walk them recursively.
pub const DEPTH_MAX: usize = 64;

const NULLABLE: u8 = 1;
const ORDERED: u8 = 2;
const FIELD_BYTES_MIN: usize = 4 + 1 + 4 + 1;

/// Encodes a schema.
///
/// # Errors
/// If types are nested deeper than [`DEPTH_MAX`].
pub fn encode(schema: &Schema) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    put_metadata(&mut out, schema.metadata());
    out.put_u32(schema.fields().len() as u32);
    for field in schema.fields() {
        put_field(&mut out, field, DEPTH_MAX)?;
    }
    Ok(out)
}

/// Decodes a schema that [`encode`] wrote.
///
/// # Errors
/// If the bytes are malformed, or describe a type that Arrow does not have.
pub fn decode(bytes: &[u8]) -> Result<Schema> {
    let mut reader = Reader::new("schema", bytes);
    let metadata = metadata(&mut reader)?;
    let fields = fields(&mut reader, DEPTH_MAX)?;
    reader.end()?;
    Ok(Schema::new_with_metadata(fields, metadata))
}

fn put_metadata(out: &mut Vec<u8>, metadata: &HashMap<String, String>) {
    let mut pairs: Vec<_> = metadata.iter().collect();
    pairs.sort();
    out.put_u32(pairs.len() as u32);
    for (key, value) in pairs {
        out.put_str(key);
        out.put_str(value);
    }
}

fn metadata(reader: &mut Reader<'_>) -> Result<HashMap<String, String>> {
    let count = reader.count(8)?;
    let mut metadata = HashMap::with_capacity(count);
    for _ in 0..count {
        let key = reader.str()?.to_owned();
        metadata.insert(key, reader.str()?.to_owned());
    }
    Ok(metadata)
}

fn put_field(out: &mut Vec<u8>, field: &Field, depth: usize) -> Result<()> {
    out.put_str(field.name());
    let ordered = field.dict_is_ordered().unwrap_or(false);
    out.put_u8(if field.is_nullable() { NULLABLE } else { 0 } | if ordered { ORDERED } else { 0 });
    put_metadata(out, field.metadata());
    put_type(out, field.data_type(), depth)
}

fn field(reader: &mut Reader<'_>, depth: usize) -> Result<Field> {
    let name = reader.str()?.to_owned();
    let flags = reader.u8()?;
    if flags & !(NULLABLE | ORDERED) != 0 {
        return Err(malformed("schema", format!("unknown field flags {flags:#x}")));
    }
    let metadata = metadata(reader)?;
    let data_type = data_type(reader, depth)?;
    let field = Field::new(name, data_type, flags & NULLABLE != 0).with_metadata(metadata);
    Ok(if flags & ORDERED != 0 { field.with_dict_is_ordered(true) } else { field })
}

fn fields(reader: &mut Reader<'_>, depth: usize) -> Result<Fields> {
    let count = reader.count(FIELD_BYTES_MIN)?;
    (0..count).map(|_| field(reader, depth)).collect()
}

fn put_type(out: &mut Vec<u8>, data_type: &DataType, depth: usize) -> Result<()> {
    use DataType::*;
    let Some(below) = depth.checked_sub(1) else {
        return Err(malformed("schema", format!("types nested deeper than {DEPTH_MAX}")));
    };
    match data_type {
        Null => out.put_u8(0),
        Boolean => out.put_u8(1),
        Int8 => out.put_u8(2),
        Int16 => out.put_u8(3),
        Int32 => out.put_u8(4),
        Int64 => out.put_u8(5),
        UInt8 => out.put_u8(6),
        UInt16 => out.put_u8(7),
        UInt32 => out.put_u8(8),
        UInt64 => out.put_u8(9),
        Float16 => out.put_u8(10),
        Float32 => out.put_u8(11),
        Float64 => out.put_u8(12),
        Utf8 => out.put_u8(13),
        LargeUtf8 => out.put_u8(14),
        Utf8View => out.put_u8(15),
        Binary => out.put_u8(16),
        LargeBinary => out.put_u8(17),
        BinaryView => out.put_u8(18),
        FixedSizeBinary(width) => {
            out.put_u8(19);
            out.put_i32(*width);
        }
        Date32 => out.put_u8(20),
        Date64 => out.put_u8(21),
        Time32(unit) => put_unit(out, 22, *unit),
        Time64(unit) => put_unit(out, 23, *unit),
        Timestamp(unit, zone) => {
            put_unit(out, 24, *unit);
            out.put_u8(u8::from(zone.is_some()));
            if let Some(zone) = zone {
                out.put_str(zone);
            }
        }
        Duration(unit) => put_unit(out, 25, *unit),
        Interval(unit) => {
            out.put_u8(26);
            out.put_u8(match unit {
                IntervalUnit::YearMonth => 0,
                IntervalUnit::DayTime => 1,
                IntervalUnit::MonthDayNano => 2,
            });
        }
        Decimal32(precision, scale) => put_decimal(out, 27, *precision, *scale),
        Decimal64(precision, scale) => put_decimal(out, 28, *precision, *scale),
        Decimal128(precision, scale) => put_decimal(out, 29, *precision, *scale),
        Decimal256(precision, scale) => put_decimal(out, 30, *precision, *scale),
        List(item) => put_nested(out, 31, item, below)?,
        LargeList(item) => put_nested(out, 32, item, below)?,
        ListView(item) => put_nested(out, 33, item, below)?,
        LargeListView(item) => put_nested(out, 34, item, below)?,
        FixedSizeList(item, length) => {
            put_nested(out, 35, item, below)?;
            out.put_i32(*length);
        }
        Struct(fields) => {
            out.put_u8(36);
            out.put_u32(fields.len() as u32);
            for field in fields {
                put_field(out, field, below)?;
            }
        }
        Map(entries, sorted) => {
            put_nested(out, 37, entries, below)?;
            out.put_u8(u8::from(*sorted));
        }
        Union(fields, mode) => {
            out.put_u8(38);
            out.put_u8(match mode {
                UnionMode::Sparse => 0,
                UnionMode::Dense => 1,
            });
            out.put_u32(fields.len() as u32);
            for (id, field) in fields.iter() {
                out.put_u8(id as u8);
                put_field(out, field, below)?;
            }
        }
        Dictionary(key, value) => {
            out.put_u8(39);
            put_type(out, key, below)?;
            put_type(out, value, below)?;
        }
        RunEndEncoded(ends, values) => {
            put_nested(out, 40, ends, below)?;
            put_field(out, values, below)?;
        }
    }
    Ok(())
}

fn data_type(reader: &mut Reader<'_>, depth: usize) -> Result<DataType> {
    use DataType::*;
    let Some(below) = depth.checked_sub(1) else {
        return Err(malformed("schema", format!("types nested deeper than {DEPTH_MAX}")));
    };
    Ok(match reader.u8()? {
        0 => Null,
        1 => Boolean,
        2 => Int8,
        3 => Int16,
        4 => Int32,
        5 => Int64,
        6 => UInt8,
        7 => UInt16,
        8 => UInt32,
        9 => UInt64,
        10 => Float16,
        11 => Float32,
        12 => Float64,
        13 => Utf8,
        14 => LargeUtf8,
        15 => Utf8View,
        16 => Binary,
        17 => LargeBinary,
        18 => BinaryView,
        19 => FixedSizeBinary(length(reader)?),
        20 => Date32,
        21 => Date64,
        22 => match unit(reader)? {
            unit @ (TimeUnit::Second | TimeUnit::Millisecond) => Time32(unit),
            unit => return Err(malformed("schema", format!("Time32 in {unit:?}"))),
        },
        23 => match unit(reader)? {
            unit @ (TimeUnit::Microsecond | TimeUnit::Nanosecond) => Time64(unit),
            unit => return Err(malformed("schema", format!("Time64 in {unit:?}"))),
        },
        24 => {
            let unit = unit(reader)?;
            Timestamp(unit, if flag(reader)? { Some(Arc::from(reader.str()?)) } else { None })
        }
        25 => Duration(unit(reader)?),
        26 => Interval(match reader.u8()? {
            0 => IntervalUnit::YearMonth,
            1 => IntervalUnit::DayTime,
            2 => IntervalUnit::MonthDayNano,
            other => return Err(malformed("schema", format!("unknown interval unit {other}"))),
        }),
        27 => decimal(reader, 9).map(|(p, s)| Decimal32(p, s))?,
        28 => decimal(reader, 18).map(|(p, s)| Decimal64(p, s))?,
        29 => decimal(reader, 38).map(|(p, s)| Decimal128(p, s))?,
        30 => decimal(reader, 76).map(|(p, s)| Decimal256(p, s))?,
        31 => List(nested(reader, below)?),
        32 => LargeList(nested(reader, below)?),
        33 => ListView(nested(reader, below)?),
        34 => LargeListView(nested(reader, below)?),
        35 => {
            let item = nested(reader, below)?;
            FixedSizeList(item, length(reader)?)
        }
        36 => Struct(fields(reader, below)?),
        37 => {
            let entries = nested(reader, below)?;
            match entries.data_type() {
                Struct(pair) if pair.len() == 2 && !entries.is_nullable() => {}
                other => return Err(malformed("schema", format!("a map of {other}"))),
            }
            Map(entries, flag(reader)?)
        }
        38 => {
            let mode = if flag(reader)? { UnionMode::Dense } else { UnionMode::Sparse };
            let count = reader.count(1 + FIELD_BYTES_MIN)?;
            let mut ids = Vec::with_capacity(count);
            let mut fields = Vec::with_capacity(count);
            for _ in 0..count {
                ids.push(reader.u8()? as i8);
                fields.push(field(reader, below)?);
            }
            Union(UnionFields::try_new(ids, fields).map_err(|e| malformed("schema", e.to_string()))?, mode)
        }
        39 => {
            let key = data_type(reader, below)?;
            if !key.is_dictionary_key_type() {
                return Err(malformed("schema", format!("a dictionary with keys of {key}")));
            }
            Dictionary(Box::new(key), Box::new(data_type(reader, below)?))
        }
        40 => {
            let ends = nested(reader, below)?;
            if !ends.data_type().is_run_ends_type() || ends.is_nullable() {
                return Err(malformed("schema", format!("run ends of {}", ends.data_type())));
            }
            RunEndEncoded(ends, nested(reader, below)?)
        }
        other => return Err(malformed("schema", format!("unknown type {other}"))),
    })
}

fn put_nested(out: &mut Vec<u8>, tag: u8, field: &Field, below: usize) -> Result<()> {
    out.put_u8(tag);
    put_field(out, field, below)
}

fn nested(reader: &mut Reader<'_>, depth: usize) -> Result<FieldRef> {
    field(reader, depth).map(Arc::new)
}

fn put_unit(out: &mut Vec<u8>, tag: u8, unit: TimeUnit) {
    out.put_u8(tag);
    out.put_u8(match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    });
}

fn unit(reader: &mut Reader<'_>) -> Result<TimeUnit> {
    Ok(match reader.u8()? {
        0 => TimeUnit::Second,
        1 => TimeUnit::Millisecond,
        2 => TimeUnit::Microsecond,
        3 => TimeUnit::Nanosecond,
        other => return Err(malformed("schema", format!("unknown time unit {other}"))),
    })
}

fn put_decimal(out: &mut Vec<u8>, tag: u8, precision: u8, scale: i8) {
    out.put_u8(tag);
    out.put_u8(precision);
    out.put_u8(scale as u8);
}

fn decimal(reader: &mut Reader<'_>, digits: u8) -> Result<(u8, i8)> {
    let (precision, scale) = (reader.u8()?, reader.u8()? as i8);
    let scale_fits = i16::from(scale).abs() <= i16::from(digits) && i16::from(scale) <= i16::from(precision);
    if (1..=digits).contains(&precision) && scale_fits {
        Ok((precision, scale))
    } else {
        Err(malformed("schema", format!("a decimal of precision {precision} and scale {scale}")))
    }
}

/// A width or length in a type: never negative.
fn length(reader: &mut Reader<'_>) -> Result<i32> {
    match reader.i32()? {
        length @ 0.. => Ok(length),
        length => Err(malformed("schema", format!("a fixed size of {length}"))),
    }
}

fn flag(reader: &mut Reader<'_>) -> Result<bool> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(malformed("schema", format!("{other}, expected 0 or 1"))),
    }
}
