//! Encodes rows as a message (`docs/format.md`, sections 5 and 6).

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowDictionaryKeyType, RunEndIndexType};
use arrow_array::{
    Array, ArrayRef, ArrowNativeTypeOp, DictionaryArray, GenericByteViewArray, GenericListArray,
    GenericListViewArray, Int32Array, OffsetSizeTrait, PrimitiveArray, RecordBatch, RunArray, UInt64Array,
    UnionArray, downcast_dictionary_array, downcast_run_array, types::ByteViewType,
};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow_data::{ByteView, MAX_INLINE_VIEW_LEN};
use arrow_schema::{DataType, Field, Schema, UnionMode};
use arrow_select::concat::concat_batches;
use arrow_select::take::take;

use crate::codec::{Codec, Compression, Packer};
use crate::error::{Result, WireError, malformed};
use crate::layout::padding;
use crate::light::{COMPRESSED_FLAG, Columns, LightWriter};
use crate::message::{EncodedMessage, LightParts, Node, Parts, Piece, ZEROS, padded_bytes};

/// Bytes of scratch memory kept between messages: as much as a message of the usual size needs.
const SCRATCH_BYTES: usize = 1 << 20;

/// Encodes batches as messages. Between messages, it keeps its scratch memory and the encodings that it has chosen
/// for each column, so it should be reused for results with the same columns. Each message is self-contained.
pub struct Encoder {
    codec: Codec,
    scratch: Vec<u8>,
    packer: Packer,
    /// For each compressor: the best encoding may depend on it.
    columns: [Columns; Compression::ALL.len()],
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder")
            .field("codec", &self.codec)
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

impl Encoder {
    /// An encoder that encodes with `codec`.
    pub fn new(codec: Codec) -> Self {
        Self { codec, scratch: Vec::new(), packer: Packer::default(), columns: Default::default() }
    }

    /// Sets the codec of the next messages.
    pub fn set_codec(&mut self, codec: Codec) {
        self.codec = codec;
    }

    /// The approximate memory that is kept for the next message.
    pub fn memory_bytes(&self) -> usize {
        let columns: usize = self.columns.iter().map(Columns::memory_bytes).sum();
        self.scratch.capacity() + self.packer.memory_bytes() + columns
    }

    /// Frees memory that only saves the next message an allocation.
    pub fn shrink(&mut self) {
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_BYTES);
    }

    /// Encodes all rows of the batch as one message, of any size: see [`crate::Cutter`].
    ///
    /// If encoding does not make the message smaller, the plain layout is used.
    ///
    /// # Errors
    /// If the rows exceed what a frame can hold (4 GB) or Arrow can't compact them.
    pub fn encode(&mut self, batch: &RecordBatch) -> Result<EncodedMessage> {
        if self.codec.is_light()
            && let Some(message) = self.light(batch)?
        {
            return Ok(message);
        }
        plain(std::slice::from_ref(batch))
    }

    /// Encodes all rows of batches with the same columns, in order, as [`Encoder::encode`] does if they are one batch.
    /// In the plain layout, large values are not copied for it.
    ///
    /// # Errors
    /// As [`Encoder::encode`]; or if there is no batch, or their columns differ in type.
    pub fn encode_all(&mut self, batches: &[RecordBatch]) -> Result<EncodedMessage> {
        match batches {
            [] => Err(malformed("message", "no rows, and no columns")),
            [batch] => self.encode(batch),
            [first, rest @ ..] if !rest.iter().all(|batch| have_same_types(first, batch)) => {
                Err(malformed("message", "batches with different columns"))
            }
            batches if self.codec.is_light() => self.encode(&joined(batches)?),
            batches => plain(batches),
        }
    }

    /// `None` if the plain layout is not larger.
    fn light(&mut self, batch: &RecordBatch) -> Result<Option<EncodedMessage>> {
        let mut compression = self.codec.compression();
        let sink = LightWriter::new(&mut self.columns[compression as usize], compression, &mut self.packer);
        let mut walk = Walk { nodes: Vec::new(), sink };
        batch.columns().iter().try_for_each(|column| walk.array(column))?;
        let Walk { nodes, sink: LightWriter { schemes, buffers, plain_bytes, .. } } = walk;

        let worth = |flagged: &&(Buffer, bool)| flagged.1 && compression != Compression::None;
        let unpacked_bytes = padded_bytes(buffers.iter().filter(worth).map(|(buffer, _)| buffer));
        let chosen = buffers.iter().filter(worth).map(|(buffer, _)| buffer);
        let compressed = self.compress(compression, chosen, unpacked_bytes)?;
        if compressed.is_none() {
            compression = Compression::None;
        }
        let flagged = |worth: bool| worth && compression != Compression::None;
        let lengths = buffers.iter().map(|(buffer, worth)| {
            let flag = if flagged(*worth) { u64::from(COMPRESSED_FLAG) } else { 0 };
            // The highest bit of a length is a flag, so a buffer of 2 GB is not possible here.
            if buffer.len() < COMPRESSED_FLAG as usize { buffer.len() as u64 | flag } else { u64::MAX }
        });
        let lengths = lengths.collect();
        let stored = buffers.into_iter().filter(|&(_, worth)| !flagged(worth)).map(|(buffer, _)| buffer);
        let parts = Parts {
            rows: batch.num_rows(),
            nodes,
            lengths,
            body_bytes: plain_bytes,
            stored: stored.map(Piece::from).collect(),
            light: Some(LightParts {
                schemes,
                compression,
                unpacked_bytes: compressed.as_ref().map_or(0, |_| unpacked_bytes),
                compressed: compressed.unwrap_or_default(),
            }),
        };
        if parts.body_len() >= plain_bytes {
            return Ok(None);
        }
        parts.message().map(Some)
    }

    /// Compresses buffers, each padded; `None` if that does not make them smaller.
    fn compress<'b>(
        &mut self,
        compression: Compression,
        buffers: impl Iterator<Item = &'b Buffer>,
        bytes: usize,
    ) -> Result<Option<Buffer>> {
        if compression == Compression::None || bytes == 0 {
            return Ok(None);
        }
        self.scratch.clear();
        for buffer in buffers {
            self.scratch.extend_from_slice(buffer);
            self.scratch.extend_from_slice(&ZEROS[..padding(buffer.len())]);
        }
        let compressed = self.packer.compress(compression, &self.scratch)?;
        Ok(compressed.filter(|compressed| compressed.len() < bytes).map(Buffer::from_vec))
    }
}

/// One batch of all rows, whatever the batches say of NULLs.
fn joined(batches: &[RecordBatch]) -> Result<RecordBatch> {
    let fields = batches[0].schema_ref().fields().iter();
    let fields: Vec<Field> = fields.map(|field| field.as_ref().clone().with_nullable(true)).collect();
    Ok(concat_batches(&Arc::new(Schema::new(fields)), batches)?)
}

fn have_same_types(a: &RecordBatch, b: &RecordBatch) -> bool {
    a.num_columns() == b.num_columns()
        && a.columns().iter().zip(b.columns()).all(|(a, b)| a.data_type() == b.data_type())
}

/// Batches with the same columns in the plain layout.
fn plain(batches: &[RecordBatch]) -> Result<EncodedMessage> {
    let mut walk = Walk { nodes: Vec::new(), sink: PlainSink::default() };
    for column in 0..batches[0].num_columns() {
        match batches {
            [batch] => walk.array(batch.column(column))?,
            _ => walk.column(&batches.iter().map(|batch| &**batch.column(column)).collect::<Vec<_>>())?,
        }
    }
    let Walk { nodes, sink: PlainSink { lengths, pieces } } = walk;
    let parts = Parts {
        rows: batches.iter().map(RecordBatch::num_rows).sum(),
        nodes,
        body_bytes: lengths.iter().map(|&bytes| bytes as usize + padding(bytes as usize)).sum(),
        lengths,
        stored: pieces,
        light: None,
    };
    parts.message()
}

/// Receives the parts of arrays, in order.
pub(crate) trait Sink {
    /// The valid rows of an array that has NULLs.
    fn nulls(&mut self, nulls: &NullBuffer);
    fn booleans(&mut self, values: &BooleanBuffer);
    /// Values of a type of fixed width.
    fn fixed(&mut self, data_type: &DataType, values: Buffer, nulls: Option<&NullBuffer>);
    /// Offsets of lists.
    fn offsets<O: OffsetSizeTrait>(&mut self, offsets: &OffsetBuffer<O>);
    /// Strings or binary values.
    fn strings<O: OffsetSizeTrait>(
        &mut self,
        offsets: &OffsetBuffer<O>,
        values: &Buffer,
        nulls: Option<&NullBuffer>,
    );
    /// Views, and the values that they point to.
    fn views<T: ByteViewType>(&mut self, array: &GenericByteViewArray<T>) -> Result<()>;
}

/// The plain layout: every buffer as it is.
#[derive(Default)]
pub(crate) struct PlainSink {
    /// Of the buffers.
    lengths: Vec<u64>,
    pieces: Vec<Piece>,
}

impl PlainSink {
    fn buffer(&mut self, buffer: Buffer) {
        self.lengths.push(buffer.len() as u64);
        self.pieces.push(buffer.into());
    }

    /// A buffer whose parts are in several places.
    pub(crate) fn gathered(&mut self, parts: impl Iterator<Item = Buffer>) {
        let first = self.pieces.len();
        self.pieces.extend(parts.map(|bytes| Piece { bytes, padding: 0 }));
        let bytes: usize = self.pieces[first..].iter().map(|piece| piece.bytes.len()).sum();
        if let Some(last) = self.pieces[first..].last_mut() {
            last.padding = padding(bytes);
        }
        self.lengths.push(bytes as u64);
    }
}

impl Sink for PlainSink {
    fn nulls(&mut self, nulls: &NullBuffer) {
        self.buffer(nulls.inner().sliced());
    }

    fn booleans(&mut self, values: &BooleanBuffer) {
        self.buffer(values.sliced());
    }

    fn fixed(&mut self, _: &DataType, values: Buffer, _: Option<&NullBuffer>) {
        self.buffer(values);
    }

    /// Offsets that begin at zero; no offsets if there are no rows.
    fn offsets<O: OffsetSizeTrait>(&mut self, offsets: &OffsetBuffer<O>) {
        let first = offsets[0];
        self.buffer(if offsets.len() == 1 {
            Buffer::default()
        } else if first.as_usize() == 0 {
            offsets.inner().inner().clone()
        } else {
            Buffer::from_vec(offsets.iter().map(|&offset| offset - first).collect::<Vec<O>>())
        });
    }

    fn strings<O: OffsetSizeTrait>(
        &mut self,
        offsets: &OffsetBuffer<O>,
        values: &Buffer,
        _: Option<&NullBuffer>,
    ) {
        self.offsets(offsets);
        let (start, len) = used(offsets);
        self.buffer(values.slice_with_length(start, len));
    }

    /// Views as they are, if they contain all values. Otherwise the values in use are copied into one buffer, in
    /// order.
    fn views<T: ByteViewType>(&mut self, array: &GenericByteViewArray<T>) -> Result<()> {
        let views = array.views();
        let is_long = |view: u128| view as u32 > MAX_INLINE_VIEW_LEN;
        if !views.iter().any(|&view| is_long(view)) {
            self.buffer(views.inner().clone());
            self.buffer(Buffer::default());
            return Ok(());
        }
        let mut moved = Vec::with_capacity(views.len());
        let mut data = Vec::new();
        for (row, &raw) in views.iter().enumerate() {
            moved.push(match is_long(raw) {
                // The view of a NULL may be invalid.
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
        self.buffer(Buffer::from_vec(moved));
        self.buffer(Buffer::from_vec(data));
        Ok(())
    }
}

/// The first value that offsets refer to, and the number of values.
pub(crate) fn used<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> (usize, usize) {
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    (first.as_usize(), (last - first).as_usize())
}

/// Walks the arrays of a batch in depth-first order.
pub(crate) struct Walk<S> {
    pub(crate) nodes: Vec<Node>,
    pub(crate) sink: S,
}

impl<S: Sink> Walk<S> {
    pub(crate) fn array(&mut self, array: &dyn Array) -> Result<()> {
        use DataType::*;
        match array.data_type() {
            Null => {
                self.nodes.push(Node { len: array.len(), nulls: 0 });
                Ok(())
            }
            Boolean => {
                self.node(array);
                self.sink.booleans(array.as_boolean().values());
                Ok(())
            }
            Utf8 => self.byte_array(array.as_string::<i32>()),
            LargeUtf8 => self.byte_array(array.as_string::<i64>()),
            Binary => self.byte_array(array.as_binary::<i32>()),
            LargeBinary => self.byte_array(array.as_binary::<i64>()),
            Utf8View => {
                self.node(array);
                self.sink.views(array.as_string_view())
            }
            BinaryView => {
                self.node(array);
                self.sink.views(array.as_binary_view())
            }
            List(_) => self.list(array.as_list::<i32>()),
            LargeList(_) => self.list(array.as_list::<i64>()),
            ListView(_) => self.list_view(array.as_list_view::<i32>()),
            LargeListView(_) => self.list_view(array.as_list_view::<i64>()),
            Map(_, _) => {
                let map = array.as_map();
                self.node(array);
                self.sink.offsets(map.offsets());
                let (start, len) = used(map.offsets());
                self.array(&map.entries().slice(start, len))
            }
            FixedSizeList(_, _) => {
                let list = array.as_fixed_size_list();
                self.node(array);
                // Slice the values like the list.
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
                let values = values.slice_with_length(data.offset() * width, data.len() * width);
                self.sink.fixed(fixed, values, array.nulls());
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
            self.sink.nulls(nulls);
        }
    }

    fn byte_array<T: arrow_array::types::ByteArrayType>(
        &mut self,
        array: &arrow_array::GenericByteArray<T>,
    ) -> Result<()> {
        self.node(array);
        self.sink.strings(array.offsets(), array.values(), array.nulls());
        Ok(())
    }

    fn list<O: OffsetSizeTrait>(&mut self, list: &GenericListArray<O>) -> Result<()> {
        self.node(list);
        self.sink.offsets(list.offsets());
        let (start, len) = used(list.offsets());
        self.array(&list.values().slice(start, len))
    }

    /// The rows of a list view may lie anywhere and overlap. They are sent in row order, once for each row.
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
        let integers = if O::IS_LARGE { DataType::Int64 } else { DataType::Int32 };
        self.sink.fixed(&integers, Buffer::from_vec(offsets), None);
        self.sink.fixed(&integers, Buffer::from_vec(sizes), None);
        let indices = UInt64Array::from(indices);
        self.array(&take_rows(list.values(), &indices)?)
    }

    fn union(&mut self, union: &UnionArray, mode: UnionMode) -> Result<()> {
        self.nodes.push(Node { len: union.len(), nulls: 0 });
        self.sink.fixed(&DataType::Int8, union.type_ids().inner().clone(), None);
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
                self.sink.fixed(&DataType::Int32, Buffer::from_vec(moved), None);
                for (id, _) in fields.iter() {
                    let rows = Int32Array::from(std::mem::take(&mut used[id as usize & 127]));
                    self.array(&take_rows(union.child(id), &rows)?)?;
                }
                Ok(())
            }
            _ => fields.iter().try_for_each(|(id, _)| self.array(union.child(id))),
        }
    }

    /// Keys, and the values that rows use.
    fn dictionary<K: ArrowDictionaryKeyType>(&mut self, dictionary: &DictionaryArray<K>) -> Result<()> {
        let (keys, values) = (dictionary.keys(), dictionary.values());
        self.node(keys);
        let mut used = vec![false; values.len()];
        keys.iter().flatten().for_each(|key| used[key.as_usize()] = true);
        // The key of a NULL may be invalid, and a receiver would refuse it.
        let has_nulls = keys.null_count() > 0;
        if used.iter().all(|&used| used) && !has_nulls {
            self.sink.fixed(&K::DATA_TYPE, keys.values().inner().clone(), keys.nulls());
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
        self.sink.fixed(&K::DATA_TYPE, Buffer::from_vec(moved), keys.nulls());
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
        // Arrow loses their number when it selects rows.
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
