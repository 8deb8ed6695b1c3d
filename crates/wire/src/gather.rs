//! A column of several batches in the plain layout. Large values are sent from where they are: copying them into one
//! array first would take about as long as all else that a sender does with them.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::ByteArrayType;
use arrow_buffer::{ArrowNativeType, BooleanBufferBuilder, Buffer, NullBuffer};
use arrow_schema::DataType;
use arrow_select::concat::concat;

use crate::encode::{PlainSink, Sink, Walk, used};
use crate::error::Result;
use crate::message::Node;

/// Smaller pieces are copied: each is a piece to send.
const PIECE_BYTES_MIN: usize = 16 << 10;

impl Walk<PlainSink> {
    /// The rows of several arrays of one type, in order.
    pub(crate) fn column(&mut self, arrays: &[&dyn Array]) -> Result<()> {
        use DataType::*;
        match arrays[0].data_type() {
            Utf8 => self.strings_of::<arrow_array::types::Utf8Type>(arrays),
            LargeUtf8 => self.strings_of::<arrow_array::types::LargeUtf8Type>(arrays),
            Binary => self.strings_of::<arrow_array::types::BinaryType>(arrays),
            LargeBinary => self.strings_of::<arrow_array::types::LargeBinaryType>(arrays),
            FixedSizeBinary(width) => self.fixed_of(arrays, *width as usize),
            other => match other.primitive_width() {
                Some(width) => self.fixed_of(arrays, width),
                None => self.array(&concat(arrays)?),
            },
        }
    }

    fn strings_of<T: ByteArrayType>(&mut self, arrays: &[&dyn Array]) -> Result<()> {
        let values = |array: &dyn Array| {
            let strings = array.as_bytes::<T>();
            let (start, len) = used(strings.offsets());
            strings.values().slice_with_length(start, len)
        };
        let bytes: usize = arrays.iter().map(|array| used(array.as_bytes::<T>().offsets()).1).sum();
        // If their offsets are too large for the type, it says so.
        if bytes / arrays.len() < PIECE_BYTES_MIN || T::Offset::from_usize(bytes).is_none() {
            return self.array(&concat(arrays)?);
        }
        self.nodes_of(arrays);
        let rows: usize = arrays.iter().map(|array| array.len()).sum();
        let mut offsets = Vec::with_capacity(rows + 1);
        let mut end = T::Offset::default();
        offsets.push(end);
        for array in arrays {
            let own = array.as_bytes::<T>().offsets();
            let (before, first) = (end, own[0]);
            offsets.extend(own[1..].iter().map(|&offset| before + (offset - first)));
            end = before + (own[own.len() - 1] - first);
        }
        self.sink.gathered(std::iter::once(Buffer::from_vec(offsets)));
        self.sink.gathered(arrays.iter().map(|array| values(*array)));
        Ok(())
    }

    /// Values of `width` bytes.
    fn fixed_of(&mut self, arrays: &[&dyn Array], width: usize) -> Result<()> {
        let rows: usize = arrays.iter().map(|array| array.len()).sum();
        if rows * width / arrays.len() < PIECE_BYTES_MIN {
            return self.array(&concat(arrays)?);
        }
        self.nodes_of(arrays);
        self.sink.gathered(arrays.iter().map(|array| {
            let data = array.to_data();
            data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
        }));
        Ok(())
    }

    /// The node of all arrays, and which of their rows are valid, if any is not.
    fn nodes_of(&mut self, arrays: &[&dyn Array]) {
        let len = arrays.iter().map(|array| array.len()).sum();
        let nulls = arrays.iter().map(|array| array.null_count()).sum();
        self.nodes.push(Node { len, nulls });
        if nulls > 0 {
            let mut valid = BooleanBufferBuilder::new(len);
            for array in arrays {
                match array.nulls() {
                    Some(nulls) => valid.append_buffer(nulls.inner()),
                    None => valid.append_n(array.len(), true),
                }
            }
            self.sink.nulls(&NullBuffer::new(valid.finish()));
        }
    }
}
