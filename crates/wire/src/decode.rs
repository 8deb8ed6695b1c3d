//! A message to rows (`docs/format.md`, section 5). Nothing is copied out of
//! the payload but what compression or alignment forces.

use arrow_array::types::{Int16Type, Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, GenericStringArray, OffsetSizeTrait, PrimitiveArray, RecordBatch, RecordBatchOptions,
    RunArray, make_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{DataType, SchemaRef, UnionMode};

use crate::bytes::Reader;
use crate::codec::Compression;
use crate::error::{Result, WireError, malformed};
use crate::layout::{ALIGNMENT, HEAD_FIXED_BYTES, NODE_BYTES, SLICE_BYTES, padding};

/// The rows of a message.
///
/// `payload` should begin at a multiple of 16, as memory from an allocator does;
/// elsewhere it is copied. A body that decompresses to more than
/// `body_bytes_max` is refused before memory is taken for it.
///
/// # Errors
/// When the payload is no message of that schema. Whatever its bytes are: no
/// panic, no allocation beyond its own size and `body_bytes_max`.
pub fn decode(schema: &SchemaRef, payload: Buffer, body_bytes_max: u32) -> Result<RecordBatch> {
    let head = Head::read(&payload)?;
    if head.body_bytes > body_bytes_max {
        return Err(WireError::TooLarge {
            what: "message body",
            bytes: head.body_bytes.into(),
            limit: body_bytes_max.into(),
        });
    }
    let sent = &payload[head.bytes..];
    let body_bytes = head.body_bytes as usize;
    let body = match head.compression {
        Compression::None if sent.len() == body_bytes => aligned(payload.slice(head.bytes)),
        Compression::None => {
            return Err(malformed("message", format!("a body of {} bytes, not of {body_bytes}", sent.len())));
        }
        compression => aligned(Buffer::from_vec(compression.decompress(sent, body_bytes)?)),
    };
    let rows = head.rows;
    let tables = &payload[HEAD_FIXED_BYTES..];
    let (nodes, slices) = tables.split_at(head.nodes * NODE_BYTES);
    let mut walk = Walk {
        nodes: Reader::new("message nodes", nodes),
        slices: Reader::new("message buffers", &slices[..head.slices * SLICE_BYTES]),
        body,
        offset: 0,
    };
    let columns = schema
        .fields()
        .iter()
        .map(|field| {
            let data = walk.array(field.data_type())?;
            if data.len() == rows {
                Ok(make_array(data))
            } else {
                Err(malformed("message", format!("a column of {} rows in a message of {rows}", data.len())))
            }
        })
        .collect::<Result<Vec<ArrayRef>>>()?;
    walk.end()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

/// What a message says of itself, without its rows being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peek {
    /// Rows in it.
    pub rows: u32,
    /// Bytes of its body once decompressed.
    pub body_bytes: u32,
}

/// Reads the head of a message.
///
/// # Errors
/// When it has none.
pub fn peek(payload: &[u8]) -> Result<Peek> {
    let head = Head::read(payload)?;
    Ok(Peek { rows: head.rows as u32, body_bytes: head.body_bytes })
}

/// The fixed part of a message's head.
struct Head {
    rows: usize,
    compression: Compression,
    nodes: usize,
    slices: usize,
    body_bytes: u32,
    /// Bytes of head, tables and padding: where the body begins.
    bytes: usize,
}

impl Head {
    fn read(payload: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("message", payload);
        let rows = reader.u32()? as usize;
        let compression = Compression::parse(reader.u8()?)?;
        let (layout, reserved) = (reader.u8()?, reader.u16()?);
        if (layout, reserved) != (0, 0) {
            return Err(malformed("message", format!("unknown layout {layout}.{reserved}")));
        }
        let nodes = reader.u32()? as usize;
        let slices = reader.u32()? as usize;
        let body_bytes = reader.u32()?;
        let bytes = HEAD_FIXED_BYTES + nodes * NODE_BYTES + slices * SLICE_BYTES;
        let bytes = bytes + padding(bytes);
        if bytes > payload.len() {
            return Err(WireError::Truncated {
                what: "message head",
                needed: bytes as u64,
                available: payload.len() as u64,
            });
        }
        Ok(Self { rows, compression, nodes, slices, body_bytes, bytes })
    }
}

/// The buffer itself where it begins at an aligned address, as memory from an allocator does; else a copy.
fn aligned(buffer: Buffer) -> Buffer {
    if (buffer.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
        return buffer;
    }
    let mut copy = MutableBuffer::with_capacity(buffer.len());
    copy.extend_from_slice(&buffer);
    copy.into()
}

/// Reads arrays in the order in which the encoder wrote them.
struct Walk<'a> {
    nodes: Reader<'a>,
    slices: Reader<'a>,
    body: Buffer,
    offset: usize,
}

impl Walk<'_> {
    fn end(self) -> Result<()> {
        self.nodes.end()?;
        self.slices.end()?;
        match self.body.len() - self.offset {
            0 => Ok(()),
            rest => Err(malformed("message", format!("{rest} bytes of the body belong to no column"))),
        }
    }

    /// The next buffer, which must have exactly this many bytes.
    fn buffer(&mut self, bytes: usize) -> Result<Buffer> {
        match self.any_buffer()? {
            buffer if buffer.len() == bytes => Ok(buffer),
            buffer => {
                Err(malformed("message", format!("a buffer of {} bytes where {bytes} belong", buffer.len())))
            }
        }
    }

    fn any_buffer(&mut self) -> Result<Buffer> {
        let bytes = self.slices.u32()? as usize;
        let available = self.body.len() - self.offset;
        if bytes + padding(bytes) > available {
            return Err(WireError::Truncated {
                what: "message body",
                needed: (bytes + padding(bytes)) as u64,
                available: available as u64,
            });
        }
        let buffer = self.body.slice_with_length(self.offset, bytes);
        self.offset += bytes + padding(bytes);
        Ok(buffer)
    }

    /// Length and NULL count of the next array.
    fn node(&mut self) -> Result<(usize, usize)> {
        Ok((self.nodes.u32()? as usize, self.nodes.u32()? as usize))
    }

    /// The next array's length and NULLs.
    fn nullable(&mut self) -> Result<(usize, Option<NullBuffer>)> {
        let (len, null_count) = self.node()?;
        if null_count == 0 {
            return Ok((len, None));
        }
        let bits = self.buffer(len.div_ceil(8))?;
        let nulls = NullBuffer::new(BooleanBuffer::new(bits, 0, len));
        if nulls.null_count() == null_count {
            Ok((len, Some(nulls)))
        } else {
            Err(malformed("message", format!("{null_count} NULLs announced, {} there", nulls.null_count())))
        }
    }

    fn array(&mut self, data_type: &DataType) -> Result<ArrayData> {
        use DataType::*;
        match data_type {
            Null => {
                let (len, _) = self.node()?;
                Ok(ArrayDataBuilder::new(Null).len(len).build()?)
            }
            Boolean => {
                let (len, nulls) = self.nullable()?;
                let bits = self.buffer(len.div_ceil(8))?;
                Ok(builder(data_type, len, nulls).add_buffer(bits).build()?)
            }
            Utf8 => self.strings::<i32>(data_type),
            LargeUtf8 => self.strings::<i64>(data_type),
            Binary => self.bytes::<i32>(data_type),
            LargeBinary => self.bytes::<i64>(data_type),
            Utf8View | BinaryView => {
                let (len, nulls) = self.nullable()?;
                let views = self.buffer(bytes_of::<u128>(len)?)?;
                let data = self.any_buffer()?;
                let array = builder(data_type, len, nulls).add_buffer(views);
                Ok(if data.is_empty() { array } else { array.add_buffer(data) }.build()?)
            }
            List(item) => self.list::<i32>(data_type, item.data_type()),
            LargeList(item) => self.list::<i64>(data_type, item.data_type()),
            Map(entries, _) => self.list::<i32>(data_type, entries.data_type()),
            ListView(item) => self.list_view::<i32>(data_type, item.data_type()),
            LargeListView(item) => self.list_view::<i64>(data_type, item.data_type()),
            FixedSizeList(item, width) => {
                let (len, nulls) = self.nullable()?;
                let values = self.array(item.data_type())?;
                same_len(values.len(), len.checked_mul(*width as usize))?;
                Ok(builder(data_type, len, nulls).add_child_data(values).build()?)
            }
            Struct(fields) => {
                let (len, nulls) = self.nullable()?;
                let mut array = builder(data_type, len, nulls);
                for field in fields {
                    let column = self.array(field.data_type())?;
                    same_len(column.len(), Some(len))?;
                    array = array.add_child_data(column);
                }
                Ok(array.build()?)
            }
            Union(fields, mode) => {
                let (len, _) = self.node()?;
                let ids = self.buffer(len)?;
                let mut array = builder(data_type, len, None).add_buffer(ids);
                if *mode == UnionMode::Dense {
                    array = array.add_buffer(self.buffer(bytes_of::<i32>(len)?)?);
                }
                for (_, field) in fields.iter() {
                    let child = self.array(field.data_type())?;
                    if *mode == UnionMode::Sparse {
                        same_len(child.len(), Some(len))?;
                    }
                    array = array.add_child_data(child);
                }
                Ok(array.build()?)
            }
            Dictionary(key, value) => {
                let (len, nulls) = self.nullable()?;
                let keys = self.buffer(fixed_bytes(key, len)?)?;
                let values = self.array(value)?;
                Ok(builder(data_type, len, nulls).add_buffer(keys).add_child_data(values).build()?)
            }
            RunEndEncoded(ends, values) => {
                let (len, _) = self.node()?;
                let ends = self.array(ends.data_type())?;
                let values = self.array(values.data_type())?;
                runs(data_type, len, ends, values)
            }
            fixed => {
                let (len, nulls) = self.nullable()?;
                let values = self.buffer(fixed_bytes(fixed, len)?)?;
                Ok(builder(data_type, len, nulls).add_buffer(values).build()?)
            }
        }
    }

    /// Offsets of `len` values: none are sent where there are no values.
    fn offsets<O: OffsetSizeTrait>(&mut self, len: usize) -> Result<Buffer> {
        if len == 0 {
            self.buffer(0)?;
            return Ok(Buffer::from_vec(vec![O::default()]));
        }
        self.buffer(bytes_of::<O>(len + 1)?)
    }

    fn bytes<O: OffsetSizeTrait>(&mut self, data_type: &DataType) -> Result<ArrayData> {
        let (len, nulls) = self.nullable()?;
        let offsets = self.offsets::<O>(len)?;
        let values = self.any_buffer()?;
        Ok(builder(data_type, len, nulls).add_buffer(offsets).add_buffer(values).build()?)
    }

    fn strings<O: OffsetSizeTrait>(&mut self, data_type: &DataType) -> Result<ArrayData> {
        let (len, nulls) = self.nullable()?;
        let offsets = self.offsets::<O>(len)?;
        let values = self.any_buffer()?;
        if values.is_ascii() {
            let offsets = ScalarBuffer::<O>::new(offsets, 0, len + 1);
            // Folded, not `all`: without an early exit the comparison is vectorised.
            let ascending = offsets.windows(2).fold(true, |ok, pair| ok & (pair[0] <= pair[1]));
            let (first, last) = (offsets[0], offsets[len]);
            if !ascending || first < O::default() || last.as_usize() > values.len() {
                return Err(malformed("message", "offsets that do not ascend within their values"));
            }
            // SAFETY: offsets are not negative, ascend and end within the values (just checked);
            // every cut of ASCII bytes is UTF-8.
            let array = unsafe {
                GenericStringArray::<O>::new_unchecked(OffsetBuffer::new_unchecked(offsets), values, nulls)
            };
            return Ok(array.into_data());
        }
        Ok(builder(data_type, len, nulls).add_buffer(offsets).add_buffer(values).build()?)
    }

    fn list<O: OffsetSizeTrait>(&mut self, data_type: &DataType, item: &DataType) -> Result<ArrayData> {
        let (len, nulls) = self.nullable()?;
        let offsets = self.offsets::<O>(len)?;
        let values = self.array(item)?;
        Ok(builder(data_type, len, nulls).add_buffer(offsets).add_child_data(values).build()?)
    }

    fn list_view<O: OffsetSizeTrait>(&mut self, data_type: &DataType, item: &DataType) -> Result<ArrayData> {
        let (len, nulls) = self.nullable()?;
        let offsets = self.buffer(bytes_of::<O>(len)?)?;
        let sizes = self.buffer(bytes_of::<O>(len)?)?;
        let values = self.array(item)?;
        Ok(builder(data_type, len, nulls)
            .add_buffer(offsets)
            .add_buffer(sizes)
            .add_child_data(values)
            .build()?)
    }
}

fn builder(data_type: &DataType, len: usize, nulls: Option<NullBuffer>) -> ArrayDataBuilder {
    ArrayDataBuilder::new(data_type.clone()).len(len).nulls(nulls)
}

fn same_len(found: usize, expected: Option<usize>) -> Result<()> {
    if Some(found) == expected {
        Ok(())
    } else {
        Err(malformed("message", format!("{found} values below an array that needs {expected:?}")))
    }
}

fn bytes_of<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).ok_or_else(|| malformed("message", "a length that overflows"))
}

/// Bytes of `len` values of a type of fixed width.
fn fixed_bytes(data_type: &DataType, len: usize) -> Result<usize> {
    let width = match data_type {
        DataType::FixedSizeBinary(width) => Some(*width as usize),
        other => other.primitive_width(),
    };
    width
        .and_then(|width| width.checked_mul(len))
        .ok_or_else(|| malformed("message", format!("no layout for {len} values of {data_type}")))
}

/// Runs by the checked constructor: it verifies that ends ascend.
fn runs(data_type: &DataType, len: usize, ends: ArrayData, values: ArrayData) -> Result<ArrayData> {
    fn checked<R: arrow_array::types::RunEndIndexType>(
        ends: ArrayData,
        values: ArrayRef,
    ) -> Result<ArrayData> {
        Ok(RunArray::<R>::try_new(&PrimitiveArray::<R>::from(ends), &values)?.into_data())
    }
    if len == 0 {
        same_len(ends.len(), Some(0))?;
        same_len(values.len(), Some(0))?;
    }
    let values = make_array(values);
    let runs = match ends.data_type() {
        DataType::Int16 => checked::<Int16Type>(ends, values)?,
        DataType::Int32 => checked::<Int32Type>(ends, values)?,
        _ => checked::<Int64Type>(ends, values)?,
    };
    same_len(runs.len(), Some(len))?;
    // The constructor names the fields itself; the schema's names and metadata are put back.
    Ok(runs.into_builder().data_type(data_type.clone()).build()?)
}
