//! Rows to a message (`docs/format.md`, section 5): the plain layout.

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowDictionaryKeyType, RunEndIndexType};
use arrow_array::{
    Array, ArrayRef, ArrowNativeTypeOp, DictionaryArray, GenericByteViewArray, GenericListArray,
    GenericListViewArray, Int32Array, OffsetSizeTrait, PrimitiveArray, RecordBatch, RunArray, UInt64Array,
    UnionArray, downcast_dictionary_array, downcast_run_array, types::ByteViewType,
};
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer, OffsetBuffer};
use arrow_data::{ByteView, MAX_INLINE_VIEW_LEN};
use arrow_schema::{DataType, UnionMode};
use arrow_select::take::take;

use crate::bytes::Put;
use crate::codec::{Codec, Compression};
use crate::error::{Result, WireError, malformed};
use crate::frame::Crc32c;
use crate::layout::{ALIGNMENT, HEAD_FIXED_BYTES, NODE_BYTES, SLICE_BYTES, padding};

static ZEROS: [u8; ALIGNMENT] = [0; ALIGNMENT];

/// A message ready to be sent: pieces of memory, most of them the batch's own.
#[derive(Debug, Clone)]
pub struct EncodedMessage {
    head: Vec<u8>,
    body: Vec<Buffer>,
    /// Buffers are padded to where the next may begin; a compressed body is not.
    padded: bool,
    payload_bytes: u32,
    body_bytes: u32,
    rows: u32,
}

impl EncodedMessage {
    /// Bytes on the wire, without the frame's header.
    pub fn payload_bytes(&self) -> u32 {
        self.payload_bytes
    }

    /// Bytes of the body before compression: about what it takes in memory.
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// Rows in it.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The payload, piece by piece, padding included.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let pad = |buffer: &Buffer| if self.padded { &ZEROS[..padding(buffer.len())] } else { &[] };
        let body = self.body.iter().flat_map(move |buffer| [buffer.as_slice(), pad(buffer)]);
        std::iter::once(self.head.as_slice()).chain(body).filter(|piece| !piece.is_empty())
    }

    /// CRC-32C of the payload.
    pub fn crc32c(&self) -> u32 {
        let mut crc = Crc32c::new();
        self.pieces().for_each(|piece| crc.update(piece));
        crc.finish()
    }

    /// The payload in one piece: a copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.payload_bytes as usize);
        self.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}

/// Turns batches into messages. Keeps its scratch memory between them.
#[derive(Debug)]
pub struct Encoder {
    codec: Codec,
    scratch: Vec<u8>,
}

impl Encoder {
    /// An encoder that compresses with `codec`.
    pub fn new(codec: Codec) -> Self {
        Self { codec, scratch: Vec::new() }
    }

    /// The next messages are encoded with `codec`.
    pub fn set_codec(&mut self, codec: Codec) {
        self.codec = codec;
    }

    /// One message of all rows of the batch. Its size is not judged here: see [`crate::Cutter`].
    ///
    /// Where compressing does not make a body smaller it is sent as it is.
    ///
    /// # Errors
    /// When the rows pass what a frame can hold (4 GB) or Arrow can't compact them.
    pub fn encode(&mut self, batch: &RecordBatch) -> Result<EncodedMessage> {
        let mut walk = Walk::default();
        for column in batch.columns() {
            walk.array(column)?;
        }
        let body_bytes: usize = walk.buffers.iter().map(|b| b.len() + padding(b.len())).sum();

        let mut compression = Compression::None;
        let mut body = Vec::new();
        if self.codec.compression() != Compression::None && body_bytes > 0 {
            self.scratch.clear();
            for buffer in &walk.buffers {
                self.scratch.extend_from_slice(buffer);
                self.scratch.extend_from_slice(&ZEROS[..padding(buffer.len())]);
            }
            if let Some(packed) =
                self.codec.compression().compress(&self.scratch)?.filter(|packed| packed.len() < body_bytes)
            {
                compression = self.codec.compression();
                body = vec![Buffer::from_vec(packed)];
            }
        }

        let fits = |value: usize, what| {
            u32::try_from(value).map_err(|_| WireError::TooLarge {
                what,
                bytes: value as u64,
                limit: u64::from(u32::MAX),
            })
        };
        let head_bytes = HEAD_FIXED_BYTES + walk.nodes.len() * NODE_BYTES + walk.buffers.len() * SLICE_BYTES;
        let mut head = Vec::with_capacity(head_bytes + padding(head_bytes));
        head.put_u32(fits(batch.num_rows(), "message rows")?);
        head.put_u8(compression as u8);
        head.put_u8(0);
        head.put_u16(0);
        head.put_u32(fits(walk.nodes.len(), "message nodes")?);
        head.put_u32(fits(walk.buffers.len(), "message buffers")?);
        head.put_u32(fits(body_bytes, "message body")?);
        for node in &walk.nodes {
            head.put_u32(fits(node.len, "message node")?);
            head.put_u32(fits(node.nulls, "message node")?);
        }
        for buffer in &walk.buffers {
            head.put_u32(fits(buffer.len(), "message buffer")?);
        }
        head.resize(head_bytes + padding(head_bytes), 0);

        let padded = compression == Compression::None;
        if padded {
            body = walk.buffers;
        }
        let sent = if padded { body_bytes } else { body.iter().map(Buffer::len).sum() };
        Ok(EncodedMessage {
            payload_bytes: fits(head.len() + sent, "message")?,
            body_bytes: body_bytes as u32,
            rows: batch.num_rows() as u32,
            head,
            body,
            padded,
        })
    }
}

struct Node {
    len: usize,
    nulls: usize,
}

/// The arrays of a batch in depth-first order, and their buffers.
#[derive(Default)]
struct Walk {
    nodes: Vec<Node>,
    buffers: Vec<Buffer>,
}

impl Walk {
    fn array(&mut self, array: &dyn Array) -> Result<()> {
        use DataType::*;
        match array.data_type() {
            Null => {
                self.nodes.push(Node { len: array.len(), nulls: 0 });
                Ok(())
            }
            Boolean => {
                self.node(array);
                self.buffers.push(array.as_boolean().values().sliced());
                Ok(())
            }
            Utf8 => self.byte_array(array.as_string::<i32>()),
            LargeUtf8 => self.byte_array(array.as_string::<i64>()),
            Binary => self.byte_array(array.as_binary::<i32>()),
            LargeBinary => self.byte_array(array.as_binary::<i64>()),
            Utf8View => self.views(array.as_string_view()),
            BinaryView => self.views(array.as_binary_view()),
            List(_) => self.list(array.as_list::<i32>()),
            LargeList(_) => self.list(array.as_list::<i64>()),
            ListView(_) => self.list_view(array.as_list_view::<i32>()),
            LargeListView(_) => self.list_view(array.as_list_view::<i64>()),
            Map(_, _) => {
                let map = array.as_map();
                self.node(array);
                let (start, len) = self.offsets(map.offsets());
                self.array(&map.entries().slice(start, len))
            }
            FixedSizeList(_, _) => {
                let list = array.as_fixed_size_list();
                self.node(array);
                // The values of a sliced list are sliced with it.
                self.array(list.values())
            }
            Struct(_) => {
                self.node(array);
                array.as_struct().columns().iter().try_for_each(|column| self.array(column))
            }
            Union(_, mode) => self.union(array.as_union(), *mode),
            Dictionary(_, _) => downcast_dictionary_array!(
                array => self.dictionary(array),
                other => Err(malformed("message", format!("a dictionary of {other}")))
            ),
            RunEndEncoded(_, _) => downcast_run_array!(
                array => self.runs(array),
                other => Err(malformed("message", format!("runs of {other}")))
            ),
            fixed => {
                let width = match fixed {
                    FixedSizeBinary(width) => *width as usize,
                    fixed => fixed
                        .primitive_width()
                        .ok_or_else(|| malformed("message", format!("no layout for {fixed}")))?,
                };
                self.node(array);
                let data = array.to_data();
                let values = &data.buffers()[0];
                self.buffers.push(values.slice_with_length(data.offset() * width, data.len() * width));
                Ok(())
            }
        }
    }

    fn node(&mut self, array: &dyn Array) {
        self.node_of(array.len(), array.nulls());
    }

    fn node_of(&mut self, len: usize, nulls: Option<&NullBuffer>) {
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        self.nodes.push(Node { len, nulls: nulls.map_or(0, NullBuffer::null_count) });
        if let Some(nulls) = nulls {
            self.buffers.push(nulls.inner().sliced());
        }
    }

    /// Pushes offsets that begin at zero; returns where the values used begin and how many they are.
    fn offsets<O: OffsetSizeTrait>(&mut self, offsets: &OffsetBuffer<O>) -> (usize, usize) {
        let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
        self.buffers.push(if offsets.len() == 1 {
            Buffer::default()
        } else if first.as_usize() == 0 {
            offsets.inner().inner().clone()
        } else {
            Buffer::from_vec(offsets.iter().map(|&offset| offset - first).collect::<Vec<O>>())
        });
        (first.as_usize(), (last - first).as_usize())
    }

    fn byte_array<T: arrow_array::types::ByteArrayType>(
        &mut self,
        array: &arrow_array::GenericByteArray<T>,
    ) -> Result<()> {
        self.node(array);
        let (start, len) = self.offsets(array.offsets());
        self.buffers.push(array.values().slice_with_length(start, len));
        Ok(())
    }

    /// Views as they are where all values lie in them; else the values that are
    /// used move into one buffer, in order.
    fn views<T: ByteViewType>(&mut self, array: &GenericByteViewArray<T>) -> Result<()> {
        self.node(array);
        let views = array.views();
        let is_long = |view: u128| view as u32 > MAX_INLINE_VIEW_LEN;
        if !views.iter().any(|&view| is_long(view)) {
            self.buffers.push(views.inner().clone());
            self.buffers.push(Buffer::default());
            return Ok(());
        }
        let mut moved = Vec::with_capacity(views.len());
        let mut data = Vec::new();
        for (row, &raw) in views.iter().enumerate() {
            moved.push(match is_long(raw) {
                // What a NULL's view says is nobody's business, and may lie.
                true if array.is_null(row) => 0,
                true => {
                    let view = ByteView::from(raw);
                    let start = view.offset as usize;
                    let bytes = &array.data_buffers()[view.buffer_index as usize];
                    let offset = u32::try_from(data.len()).map_err(|_| WireError::TooLarge {
                        what: "values of a view column",
                        bytes: data.len() as u64,
                        limit: u64::from(u32::MAX),
                    })?;
                    data.extend_from_slice(&bytes[start..start + view.length as usize]);
                    view.with_buffer_index(0).with_offset(offset).as_u128()
                }
                false => raw,
            });
        }
        self.buffers.push(Buffer::from_vec(moved));
        self.buffers.push(Buffer::from_vec(data));
        Ok(())
    }

    fn list<O: OffsetSizeTrait>(&mut self, list: &GenericListArray<O>) -> Result<()> {
        self.node(list);
        let (start, len) = self.offsets(list.offsets());
        self.array(&list.values().slice(start, len))
    }

    /// A list view's rows may lie anywhere and overlap: sent in row order, each once a row.
    fn list_view<O: OffsetSizeTrait>(&mut self, list: &GenericListViewArray<O>) -> Result<()> {
        self.node(list);
        let mut indices = Vec::new();
        let mut offsets = Vec::with_capacity(list.len());
        let mut sizes = Vec::with_capacity(list.len());
        for row in 0..list.len() {
            let size = if list.is_null(row) { O::usize_as(0) } else { list.value_sizes()[row] };
            offsets.push(O::usize_as(indices.len()));
            sizes.push(size);
            let start = list.value_offsets()[row].as_usize();
            indices.extend((start..start + size.as_usize()).map(|i| i as u64));
        }
        self.buffers.push(Buffer::from_vec(offsets));
        self.buffers.push(Buffer::from_vec(sizes));
        let indices = UInt64Array::from(indices);
        self.array(&take_rows(list.values(), &indices)?)
    }

    fn union(&mut self, union: &UnionArray, mode: UnionMode) -> Result<()> {
        self.nodes.push(Node { len: union.len(), nulls: 0 });
        self.buffers.push(union.type_ids().inner().clone());
        let DataType::Union(fields, _) = union.data_type() else {
            return Err(malformed("message", "a union without fields"));
        };
        match (mode, union.offsets()) {
            (UnionMode::Dense, Some(offsets)) => {
                let mut used: [Vec<i32>; 128] = [const { Vec::new() }; 128];
                let moved: Vec<i32> = union
                    .type_ids()
                    .iter()
                    .zip(offsets.iter())
                    .map(|(&id, &offset)| {
                        let rows = &mut used[id as usize & 127];
                        rows.push(offset);
                        rows.len() as i32 - 1
                    })
                    .collect();
                self.buffers.push(Buffer::from_vec(moved));
                for (id, _) in fields.iter() {
                    let rows = Int32Array::from(std::mem::take(&mut used[id as usize & 127]));
                    self.array(&take_rows(union.child(id), &rows)?)?;
                }
                Ok(())
            }
            _ => fields.iter().try_for_each(|(id, _)| self.array(union.child(id))),
        }
    }

    /// Keys, and the values that some row uses.
    fn dictionary<K: ArrowDictionaryKeyType>(&mut self, dictionary: &DictionaryArray<K>) -> Result<()> {
        let (keys, values) = (dictionary.keys(), dictionary.values());
        self.node(keys);
        let mut used = vec![false; values.len()];
        keys.iter().flatten().for_each(|key| used[key.as_usize()] = true);
        // A key below a NULL may point anywhere; receivers are right to refuse it.
        let has_nulls = keys.null_count() > 0;
        if used.iter().all(|&used| used) && !has_nulls {
            self.buffers.push(keys.values().inner().clone());
            return self.array(values);
        }
        let mut next = 0;
        let places: Vec<usize> = used
            .iter()
            .map(|&used| {
                let place = next;
                next += usize::from(used);
                place
            })
            .collect();
        let moved: Vec<K::Native> = keys
            .iter()
            .map(|key| key.map_or(K::Native::ZERO, |key| K::Native::usize_as(places[key.as_usize()])))
            .collect();
        self.buffers.push(Buffer::from_vec(moved));
        if next == values.len() {
            return self.array(values);
        }
        let indices = used.iter().enumerate().filter(|(_, used)| **used).map(|(index, _)| index as u64);
        self.array(&take_rows(values, &UInt64Array::from_iter_values(indices))?)
    }

    fn runs<R: RunEndIndexType>(&mut self, runs: &RunArray<R>) -> Result<()> {
        self.nodes.push(Node { len: runs.len(), nulls: 0 });
        let ends = runs.run_ends();
        if runs.is_empty() {
            self.array(&PrimitiveArray::<R>::from_iter_values([]))?;
            return self.array(&runs.values().slice(0, 0));
        }
        let (first, last) = (ends.get_start_physical_index(), ends.get_end_physical_index());
        let (offset, len) = (ends.offset(), ends.len());
        let moved = ends.values()[first..=last].iter().map(|end| {
            let end = end.as_usize().saturating_sub(offset).min(len);
            R::Native::usize_as(end)
        });
        self.array(&PrimitiveArray::<R>::from_iter_values(moved))?;
        self.array(&runs.values().slice(first, last - first + 1))
    }
}

fn take_rows(values: &dyn Array, indices: &dyn Array) -> Result<ArrayRef> {
    if has_values_of_nothing(values.data_type()) {
        // Arrow loses their number when it picks rows.
        return Err(malformed(
            "message",
            "fixed-size values of 0 bytes or items below a list view, dense union or dictionary",
        ));
    }
    Ok(take(values, indices, None)?)
}

fn has_values_of_nothing(data_type: &DataType) -> bool {
    use DataType::*;
    match data_type {
        FixedSizeList(_, 0) | FixedSizeBinary(0) => true,
        FixedSizeList(item, _)
        | List(item)
        | LargeList(item)
        | ListView(item)
        | LargeListView(item)
        | Map(item, _) => has_values_of_nothing(item.data_type()),
        Struct(fields) => fields.iter().any(|field| has_values_of_nothing(field.data_type())),
        Union(fields, _) => fields.iter().any(|(_, field)| has_values_of_nothing(field.data_type())),
        Dictionary(_, values) => has_values_of_nothing(values),
        RunEndEncoded(_, values) => has_values_of_nothing(values.data_type()),
        _ => false,
    }
}
