//! Sizes and order of the parts of a message (`docs/format.md`, section 5).

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowDictionaryKeyType, ByteViewType, RunEndIndexType};
use arrow_array::{
    Array, DictionaryArray, GenericByteViewArray, GenericListViewArray, OffsetSizeTrait, RecordBatch,
    RunArray, UnionArray, downcast_dictionary_array, downcast_run_array,
};
use arrow_buffer::{ArrowNativeType, OffsetBuffer};
use arrow_data::MAX_INLINE_VIEW_LEN;
use arrow_schema::{DataType, UnionMode};

/// Every buffer of a body begins at a multiple of this from the start of the payload, which suffices for every
/// Arrow type.
pub(crate) const ALIGNMENT: usize = 16;
/// The size of a head before its tables.
pub(crate) const HEAD_FIXED_BYTES: usize = 20;
/// The same in the light layout.
pub(crate) const LIGHT_HEAD_FIXED_BYTES: usize = 28;
/// Bytes of an entry in the table of nodes.
pub(crate) const NODE_BYTES: usize = 8;
/// Bytes of an entry in the table of buffers.
pub(crate) const SLICE_BYTES: usize = 4;

const _: () = assert!(align_of::<i128>() <= ALIGNMENT && align_of::<arrow_buffer::i256>() <= ALIGNMENT);

/// The number of bytes from `bytes` to the next multiple of the alignment.
pub(crate) const fn padding(bytes: usize) -> usize {
    bytes.wrapping_neg() % ALIGNMENT
}

/// The next multiple of the alignment.
pub(crate) const fn aligned_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT as u64)
}

/// The maximum size of `len` rows from `start` as a message in the plain layout.
///
/// It includes the maximum padding. Values that rows share (dictionaries, list views) count for each row that uses
/// them, but never for more than all values.
pub fn message_bytes(batch: &RecordBatch, start: usize, len: usize) -> u64 {
    let mut size = Size::default();
    for column in batch.columns() {
        size.array(column, start, len);
    }
    size.message_bytes()
}

/// The maximum size of a batch's rows as Arrow buffers, without other rows of the same buffers. It is an
/// upper bound like [`message_bytes`].
pub fn rows_bytes(batch: &RecordBatch) -> u64 {
    let mut size = Size::default();
    for column in batch.columns() {
        size.array(column, 0, batch.num_rows());
    }
    size.body_bytes
}

/// The most that `len` rows from `start` add to the size of a message with rows of other batches: where those have NULLs,
/// these have a bitmap, too.
pub fn joined_bytes(batch: &RecordBatch, start: usize, len: usize) -> u64 {
    let mut size = Size { assumes_nulls: true, ..Size::default() };
    for column in batch.columns() {
        size.array(column, start, len);
    }
    size.message_bytes()
}

#[derive(Default)]
struct Size {
    /// Whether every column is taken to have NULLs.
    assumes_nulls: bool,
    nodes: u64,
    buffers: u64,
    body_bytes: u64,
}

impl Size {
    /// With the head and the maximum padding.
    fn message_bytes(&self) -> u64 {
        let tables = self.nodes * NODE_BYTES as u64 + self.buffers * SLICE_BYTES as u64;
        HEAD_FIXED_BYTES as u64 + tables + self.body_bytes + (1 + self.buffers) * (ALIGNMENT as u64 - 1)
    }

    fn buffer(&mut self, bytes: usize) {
        self.buffers += 1;
        self.body_bytes += bytes as u64;
    }

    fn node(&mut self, array: &dyn Array, len: usize) {
        self.nodes += 1;
        if self.assumes_nulls || array.null_count() > 0 {
            self.buffer(len.div_ceil(8));
        }
    }

    fn offsets<O: OffsetSizeTrait>(
        &mut self,
        offsets: &OffsetBuffer<O>,
        start: usize,
        len: usize,
    ) -> (usize, usize) {
        self.buffer(if len == 0 { 0 } else { (len + 1) * size_of::<O>() });
        let first = offsets[start].as_usize();
        (first, offsets[start + len].as_usize() - first)
    }

    fn array(&mut self, array: &dyn Array, start: usize, len: usize) {
        use DataType::*;
        match array.data_type() {
            Null => self.nodes += 1,
            Boolean => {
                self.node(array, len);
                self.buffer(len.div_ceil(8));
            }
            Utf8 => self.byte_array(array, array.as_string::<i32>().offsets(), start, len),
            LargeUtf8 => self.byte_array(array, array.as_string::<i64>().offsets(), start, len),
            Binary => self.byte_array(array, array.as_binary::<i32>().offsets(), start, len),
            LargeBinary => self.byte_array(array, array.as_binary::<i64>().offsets(), start, len),
            Utf8View => self.views(array.as_string_view(), start, len),
            BinaryView => self.views(array.as_binary_view(), start, len),
            List(_) => {
                let list = array.as_list::<i32>();
                self.list(array, list.offsets(), list.values(), start, len);
            }
            LargeList(_) => {
                let list = array.as_list::<i64>();
                self.list(array, list.offsets(), list.values(), start, len);
            }
            Map(_, _) => {
                let map = array.as_map();
                self.list(array, map.offsets(), map.entries(), start, len);
            }
            ListView(_) => self.list_view(array.as_list_view::<i32>(), start, len),
            LargeListView(_) => self.list_view(array.as_list_view::<i64>(), start, len),
            FixedSizeList(_, width) => {
                let width = *width as usize;
                self.node(array, len);
                self.array(array.as_fixed_size_list().values(), start * width, len * width);
            }
            Struct(_) => {
                self.node(array, len);
                for column in array.as_struct().columns() {
                    self.array(column, start, len);
                }
            }
            Union(_, mode) => self.union(array.as_union(), *mode, start, len),
            Dictionary(_, _) => downcast_dictionary_array!(
                array => self.dictionary(array, start, len),
                _ => {}
            ),
            RunEndEncoded(_, _) => downcast_run_array!(
                array => self.runs(array, start, len),
                _ => {}
            ),
            fixed => {
                let width = match fixed {
                    FixedSizeBinary(width) => *width as usize,
                    fixed => fixed.primitive_width().unwrap_or(0),
                };
                self.node(array, len);
                self.buffer(len * width);
            }
        }
    }

    fn byte_array<O: OffsetSizeTrait>(
        &mut self,
        array: &dyn Array,
        offsets: &OffsetBuffer<O>,
        start: usize,
        len: usize,
    ) {
        self.node(array, len);
        let (_, bytes) = self.offsets(offsets, start, len);
        self.buffer(bytes);
    }

    fn views<T: ByteViewType>(&mut self, array: &GenericByteViewArray<T>, start: usize, len: usize) {
        self.node(array, len);
        self.buffer(len * size_of::<u128>());
        let lengths = array.views()[start..start + len].iter().map(|&view| view as u32);
        let long = lengths.filter(|&length| length > MAX_INLINE_VIEW_LEN);
        self.buffer(long.map(|length| length as usize).sum());
    }

    fn list<O: OffsetSizeTrait>(
        &mut self,
        array: &dyn Array,
        offsets: &OffsetBuffer<O>,
        values: &dyn Array,
        start: usize,
        len: usize,
    ) {
        self.node(array, len);
        let (first, values_len) = self.offsets(offsets, start, len);
        self.array(values, first, values_len);
    }

    fn list_view<O: OffsetSizeTrait>(&mut self, list: &GenericListViewArray<O>, start: usize, len: usize) {
        self.node(list, len);
        self.buffer(len * size_of::<O>());
        self.buffer(len * size_of::<O>());
        let runs = has_runs(list.values().data_type());
        let mut values = Self::default();
        for row in (start..start + len).filter(|&row| list.is_valid(row)) {
            let (first, count) = (list.value_offsets()[row].as_usize(), list.value_sizes()[row].as_usize());
            // If rows are selected one by one, each may be a run.
            let step = if runs { 1 } else { count.max(1) };
            for first in (first..first + count).step_by(step) {
                values.array(list.values(), first, step);
            }
        }
        // The rows' values are sent as one array: its tables count once.
        let mut tables = Self::default();
        tables.array(list.values(), 0, 0);
        self.nodes += tables.nodes;
        self.buffers += tables.buffers + u64::from(has_nulls(list.values()));
        self.body_bytes += values.body_bytes;
    }

    fn union(&mut self, union: &UnionArray, mode: UnionMode, start: usize, len: usize) {
        self.nodes += 1;
        self.buffer(len);
        let DataType::Union(fields, _) = union.data_type() else { return };
        match (mode, union.offsets()) {
            (UnionMode::Dense, Some(offsets)) => {
                self.buffer(len * size_of::<i32>());
                for (id, _) in fields.iter() {
                    self.array(union.child(id), 0, 0);
                }
                let mut values = Self::default();
                for row in start..start + len {
                    values.array(union.child(union.type_id(row)), offsets[row].as_usize(), 1);
                }
                self.body_bytes += values.body_bytes;
            }
            _ => fields.iter().for_each(|(id, _)| self.array(union.child(id), start, len)),
        }
    }

    /// An upper bound: a value counts for each row that uses it, but never for more than all values.
    fn dictionary<K: ArrowDictionaryKeyType>(
        &mut self,
        dictionary: &DictionaryArray<K>,
        start: usize,
        len: usize,
    ) {
        let keys = dictionary.keys();
        self.node(keys, len);
        self.buffer(len * size_of::<K::Native>());
        let mut whole = Self::default();
        whole.array(dictionary.values(), 0, dictionary.values().len());
        let mut bytes = whole.body_bytes;
        // For small dictionaries, a closer estimate is not worth its cost.
        if bytes > (len * size_of::<K::Native>()) as u64 {
            let mut used = vec![false; dictionary.values().len()];
            let mut values = Self::default();
            for row in (start..start + len).filter(|&row| keys.is_valid(row)) {
                let key = keys.value(row).as_usize();
                if !std::mem::replace(&mut used[key], true) {
                    values.array(dictionary.values(), key, 1);
                }
            }
            bytes = bytes.min(values.body_bytes);
        }
        self.nodes += whole.nodes;
        self.buffers += whole.buffers;
        self.body_bytes += bytes;
    }

    fn runs<R: RunEndIndexType>(&mut self, runs: &RunArray<R>, start: usize, len: usize) {
        self.nodes += 2;
        let slice = runs.slice(start, len);
        let (first, count) = match len {
            0 => (0, 0),
            _ => {
                let ends = slice.run_ends();
                let first = ends.get_start_physical_index();
                (first, ends.get_end_physical_index() - first + 1)
            }
        };
        self.buffer(count * size_of::<R::Native>());
        self.array(runs.values(), first, count);
    }
}

fn has_runs(data_type: &DataType) -> bool {
    use DataType::*;
    match data_type {
        RunEndEncoded(_, _) => true,
        List(item)
        | LargeList(item)
        | ListView(item)
        | LargeListView(item)
        | FixedSizeList(item, _)
        | Map(item, _) => has_runs(item.data_type()),
        Struct(fields) => fields.iter().any(|field| has_runs(field.data_type())),
        Union(fields, _) => fields.iter().any(|(_, field)| has_runs(field.data_type())),
        Dictionary(_, values) => has_runs(values),
        _ => false,
    }
}

fn has_nulls(array: &dyn Array) -> bool {
    array.null_count() > 0
}
