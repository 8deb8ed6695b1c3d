//! Decodes a message to rows (`docs/format.md`, sections 5 and 6). Data is copied only if encoding, compression or
//! alignment requires it.

use arrow_array::types::{Int16Type, Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, GenericStringArray, OffsetSizeTrait, PrimitiveArray, RecordBatch, RecordBatchOptions,
    RunArray, make_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{DataType, SchemaRef, UnionMode};

use crate::bytes::Reader;
use crate::codec::Codec;
use crate::error::{Result, WireError, malformed};
use crate::head::{Head, Layout};
use crate::layout::{ALIGNMENT, NODE_BYTES, SLICE_BYTES, padding};
use crate::light::{COMPRESSED_FLAG, LightReader};

/// Decodes the rows of a message.
///
/// `payload` should begin at a multiple of 16, as memory from an allocator does; otherwise it is copied. A
/// body that decompresses to more than `body_bytes_max` is refused before memory is allocated for it.
///
/// # Errors
/// If the payload is not a message with that schema. No payload causes a panic, or an allocation beyond its
/// own size and `body_bytes_max`.
pub fn decode(schema: &SchemaRef, payload: Buffer, body_bytes_max: u32) -> Result<RecordBatch> {
    let head = Head::read(&payload)?;
    let allowed = |bytes: u32| match bytes {
        bytes if bytes > body_bytes_max => Err(WireError::TooLarge {
            what: "message body",
            bytes: bytes.into(),
            limit: body_bytes_max.into(),
        }),
        bytes => Ok(bytes as usize),
    };
    let body_bytes = allowed(head.body_bytes)?;
    // Reading the head has checked that all of it is present.
    let (nodes, rest) = payload[head.fixed_bytes()..].split_at(head.nodes as usize * NODE_BYTES);
    let (slices, schemes) = rest.split_at(head.slices as usize * SLICE_BYTES);
    let nodes = Reader::new("message nodes", nodes);
    let slices = Reader::new("message buffers", slices);
    let sent = payload.slice(head.bytes() as usize);
    match head.layout {
        Layout::Plain => {
            let body = exactly(sent, body_bytes)?;
            columns(schema, &head, PlainReader { nodes, slices, body: Body::new(body) })
        }
        Layout::Light { compression, schemes_bytes, unpacked_bytes } => {
            let stored_bytes = stored_bytes(slices.clone())?;
            if stored_bytes > sent.len() {
                return Err(WireError::Truncated {
                    what: "message body",
                    needed: stored_bytes as u64,
                    available: sent.len() as u64,
                });
            }
            let unpacked = compression.restore(sent.slice(stored_bytes), allowed(unpacked_bytes)?)?;
            let stored = Body::new(sent.slice_with_length(0, stored_bytes));
            let schemes = Reader::new("message schemes", &schemes[..schemes_bytes as usize]);
            let reader = LightReader::new(nodes, slices, schemes, stored, Body::new(unpacked), body_bytes);
            columns(schema, &head, reader)
        }
    }
}

fn columns(schema: &SchemaRef, head: &Head, source: impl Source) -> Result<RecordBatch> {
    let rows = head.rows as usize;
    let mut walk = Walk { source };
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
    walk.source.end()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

/// Bytes of the buffers that are not compressed, including padding.
fn stored_bytes(mut slices: Reader<'_>) -> Result<usize> {
    let mut total = 0usize;
    while !slices.is_empty() {
        let bytes = slices.u32()?;
        if bytes & COMPRESSED_FLAG == 0 {
            total = total.saturating_add(bytes as usize + padding(bytes as usize));
        }
    }
    Ok(total)
}

/// The properties of a message that are known without decoding its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peek {
    /// The number of rows.
    pub rows: u32,
    /// Bytes of its rows in the plain layout.
    pub body_bytes: u32,
    /// The codec.
    pub codec: Codec,
}

/// Reads the head of a message.
///
/// # Errors
/// If the head is malformed.
pub fn peek(payload: &[u8]) -> Result<Peek> {
    let head = Head::read(payload)?;
    Ok(Peek { rows: head.rows, body_bytes: head.body_bytes, codec: head.codec() })
}

/// The buffer itself if its address is aligned, as that of memory from an allocator is; otherwise a copy.
fn aligned(buffer: Buffer) -> Buffer {
    if (buffer.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
        return buffer;
    }
    let mut copy = MutableBuffer::with_capacity(buffer.len());
    copy.extend_from_slice(&buffer);
    copy.into()
}

/// Buffers in order, each padded with zeros.
pub(crate) struct Body {
    bytes: Buffer,
    offset: usize,
}

impl Body {
    pub(crate) fn new(bytes: Buffer) -> Self {
        Self { bytes: aligned(bytes), offset: 0 }
    }

    pub(crate) fn next(&mut self, bytes: usize) -> Result<Buffer> {
        let available = self.bytes.len() - self.offset;
        if bytes + padding(bytes) > available {
            return Err(WireError::Truncated {
                what: "message body",
                needed: (bytes + padding(bytes)) as u64,
                available: available as u64,
            });
        }
        let buffer = self.bytes.slice_with_length(self.offset, bytes);
        self.offset += bytes + padding(bytes);
        Ok(buffer)
    }

    pub(crate) fn end(self) -> Result<()> {
        match self.bytes.len() - self.offset {
            0 => Ok(()),
            rest => Err(malformed("message", format!("{rest} bytes of the body belong to no column"))),
        }
    }
}

/// Provides the parts of arrays, in order. Only their sizes have been checked.
pub(crate) trait Source {
    /// Length and NULL count of the next array.
    fn node(&mut self) -> Result<(usize, usize)>;
    /// The valid rows of an array that has NULLs.
    fn nulls(&mut self, len: usize, null_count: usize) -> Result<NullBuffer>;
    /// Bits of `len` values.
    fn booleans(&mut self, len: usize) -> Result<Buffer>;
    /// Values of a type of fixed width.
    fn fixed(&mut self, data_type: &DataType, len: usize, nulls: Option<&NullBuffer>) -> Result<Buffer>;
    /// Offsets of `len` rows.
    fn offsets<O: OffsetSizeTrait>(&mut self, len: usize) -> Result<Buffer>;
    /// Offsets of `len` rows, and their bytes.
    fn strings<O: OffsetSizeTrait>(
        &mut self,
        len: usize,
        nulls: Option<&NullBuffer>,
    ) -> Result<(Buffer, Buffer)>;
    /// Views of `len` rows into one buffer, and that buffer.
    fn views(&mut self, len: usize, nulls: Option<&NullBuffer>) -> Result<(Buffer, Buffer)>;
    /// Fails if parts are left.
    fn end(self) -> Result<()>;
}

/// The plain layout: every buffer as it is.
struct PlainReader<'a> {
    nodes: Reader<'a>,
    slices: Reader<'a>,
    body: Body,
}

impl PlainReader<'_> {
    /// A buffer of exactly this many bytes.
    fn raw(&mut self, bytes: usize) -> Result<Buffer> {
        exactly(self.any_raw()?, bytes)
    }

    /// A buffer.
    fn any_raw(&mut self) -> Result<Buffer> {
        let bytes = self.slices.u32()? as usize;
        self.body.next(bytes)
    }
}

impl Source for PlainReader<'_> {
    fn node(&mut self) -> Result<(usize, usize)> {
        Ok((self.nodes.u32()? as usize, self.nodes.u32()? as usize))
    }

    fn nulls(&mut self, len: usize, _: usize) -> Result<NullBuffer> {
        Ok(NullBuffer::new(BooleanBuffer::new(self.raw(len.div_ceil(8))?, 0, len)))
    }

    fn booleans(&mut self, len: usize) -> Result<Buffer> {
        self.raw(len.div_ceil(8))
    }

    fn fixed(&mut self, data_type: &DataType, len: usize, _: Option<&NullBuffer>) -> Result<Buffer> {
        self.raw(fixed_bytes(data_type, len)?)
    }

    /// If there are no rows, no offsets are sent.
    fn offsets<O: OffsetSizeTrait>(&mut self, len: usize) -> Result<Buffer> {
        if len == 0 {
            self.raw(0)?;
            return Ok(Buffer::from_vec(vec![O::default()]));
        }
        self.raw(bytes_of::<O>(len + 1)?)
    }

    fn strings<O: OffsetSizeTrait>(
        &mut self,
        len: usize,
        _: Option<&NullBuffer>,
    ) -> Result<(Buffer, Buffer)> {
        Ok((self.offsets::<O>(len)?, self.any_raw()?))
    }

    fn views(&mut self, len: usize, _: Option<&NullBuffer>) -> Result<(Buffer, Buffer)> {
        Ok((self.raw(bytes_of::<u128>(len)?)?, self.any_raw()?))
    }

    fn end(self) -> Result<()> {
        self.nodes.end()?;
        self.slices.end()?;
        self.body.end()
    }
}

/// The buffer, if it has this many bytes.
pub(crate) fn exactly(buffer: Buffer, bytes: usize) -> Result<Buffer> {
    match buffer.len() {
        len if len == bytes => Ok(buffer),
        len => Err(malformed("message", format!("a buffer of {len} bytes, expected {bytes}"))),
    }
}

/// Reads arrays in the order in which the encoder wrote them.
struct Walk<S> {
    source: S,
}

impl<S: Source> Walk<S> {
    /// The next array's length and NULLs.
    fn nullable(&mut self) -> Result<(usize, Option<NullBuffer>)> {
        let (len, null_count) = self.source.node()?;
        if null_count == 0 {
            return Ok((len, None));
        }
        let nulls = self.source.nulls(len, null_count)?;
        if nulls.null_count() == null_count {
            Ok((len, Some(nulls)))
        } else {
            Err(malformed("message", format!("{null_count} NULLs announced, {} found", nulls.null_count())))
        }
    }

    fn array(&mut self, data_type: &DataType) -> Result<ArrayData> {
        use DataType::*;
        match data_type {
            Null => {
                let (len, _) = self.source.node()?;
                Ok(ArrayDataBuilder::new(Null).len(len).build()?)
            }
            Boolean => {
                let (len, nulls) = self.nullable()?;
                let bits = self.source.booleans(len)?;
                Ok(builder(data_type, len, nulls).add_buffer(bits).build()?)
            }
            Utf8 => self.strings::<i32>(data_type),
            LargeUtf8 => self.strings::<i64>(data_type),
            Binary => self.bytes::<i32>(data_type),
            LargeBinary => self.bytes::<i64>(data_type),
            Utf8View | BinaryView => {
                let (len, nulls) = self.nullable()?;
                let (views, data) = self.source.views(len, nulls.as_ref())?;
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
                let (len, _) = self.source.node()?;
                let ids = self.source.fixed(&Int8, len, None)?;
                let mut array = builder(data_type, len, None).add_buffer(ids);
                if *mode == UnionMode::Dense {
                    array = array.add_buffer(self.source.fixed(&Int32, len, None)?);
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
                let keys = self.source.fixed(key, len, nulls.as_ref())?;
                let values = self.array(value)?;
                Ok(builder(data_type, len, nulls).add_buffer(keys).add_child_data(values).build()?)
            }
            RunEndEncoded(ends, values) => {
                let (len, _) = self.source.node()?;
                let ends = self.array(ends.data_type())?;
                let values = self.array(values.data_type())?;
                runs(data_type, len, ends, values)
            }
            fixed => {
                let (len, nulls) = self.nullable()?;
                let values = self.source.fixed(fixed, len, nulls.as_ref())?;
                Ok(builder(data_type, len, nulls).add_buffer(values).build()?)
            }
        }
    }

    fn bytes<O: OffsetSizeTrait>(&mut self, data_type: &DataType) -> Result<ArrayData> {
        let (len, nulls) = self.nullable()?;
        let (offsets, values) = self.source.strings::<O>(len, nulls.as_ref())?;
        Ok(builder(data_type, len, nulls).add_buffer(offsets).add_buffer(values).build()?)
    }

    fn strings<O: OffsetSizeTrait>(&mut self, data_type: &DataType) -> Result<ArrayData> {
        let (len, nulls) = self.nullable()?;
        let (offsets, values) = self.source.strings::<O>(len, nulls.as_ref())?;
        if values.is_ascii() {
            let offsets = ScalarBuffer::<O>::new(offsets, 0, len + 1);
            // Folded, not `all`: without an early exit the comparison is vectorised.
            let ascending = offsets.windows(2).fold(true, |ok, pair| ok & (pair[0] <= pair[1]));
            let (first, last) = (offsets[0], offsets[len]);
            if !ascending || first < O::default() || last.as_usize() > values.len() {
                return Err(malformed("message", "offsets that do not ascend within their values"));
            }
            // SAFETY: offsets are not negative, ascend and end within the values (checked above);
            // every slice of ASCII bytes is UTF-8.
            let array = unsafe {
                GenericStringArray::<O>::new_unchecked(OffsetBuffer::new_unchecked(offsets), values, nulls)
            };
            return Ok(array.into_data());
        }
        Ok(builder(data_type, len, nulls).add_buffer(offsets).add_buffer(values).build()?)
    }

    fn list<O: OffsetSizeTrait>(&mut self, data_type: &DataType, item: &DataType) -> Result<ArrayData> {
        let (len, nulls) = self.nullable()?;
        let offsets = self.source.offsets::<O>(len)?;
        let values = self.array(item)?;
        Ok(builder(data_type, len, nulls).add_buffer(offsets).add_child_data(values).build()?)
    }

    fn list_view<O: OffsetSizeTrait>(&mut self, data_type: &DataType, item: &DataType) -> Result<ArrayData> {
        let (len, nulls) = self.nullable()?;
        let integers = if O::IS_LARGE { DataType::Int64 } else { DataType::Int32 };
        let offsets = self.source.fixed(&integers, len, None)?;
        let sizes = self.source.fixed(&integers, len, None)?;
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
        Err(malformed("message", format!("{found} child values in an array that needs {expected:?}")))
    }
}

pub(crate) fn bytes_of<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).ok_or_else(|| malformed("message", "a length that overflows"))
}

/// Bytes of `len` values of a type of fixed width.
pub(crate) fn fixed_bytes(data_type: &DataType, len: usize) -> Result<usize> {
    let width = match data_type {
        DataType::FixedSizeBinary(width) => Some(*width as usize),
        other => other.primitive_width(),
    };
    width
        .and_then(|width| width.checked_mul(len))
        .ok_or_else(|| malformed("message", format!("no layout for {len} values of {data_type}")))
}

/// Uses the checked constructor, which verifies that run ends ascend.
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
    // The constructor chooses its own field names; restore the names and metadata of the schema.
    Ok(runs.into_builder().data_type(data_type.clone()).build()?)
}
