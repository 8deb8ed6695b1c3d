//! Converts views to strings and back. Views contain short values, which would otherwise not be encoded.

use arrow_array::types::ByteViewType;
use arrow_array::{Array, GenericByteViewArray};
use arrow_buffer::Buffer;
use arrow_data::{ByteView, MAX_INLINE_VIEW_LEN};

use super::strings::Strings;
use crate::error::{Result, WireError};

/// The maximum bytes of short values, which the views contain.
pub(super) const INLINE_BYTES: usize = MAX_INLINE_VIEW_LEN as usize;

fn is_long(length: u32) -> bool {
    length > MAX_INLINE_VIEW_LEN
}

/// The concatenated values of the rows that are not NULL, and the bytes of those too long for a view.
pub(super) fn gather<T: ByteViewType>(array: &GenericByteViewArray<T>) -> Result<(Strings, usize)> {
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    let valid = |row: usize| nulls.is_none_or(|nulls| nulls.is_valid(row));
    let views = array.views();
    let kept = || views.iter().enumerate().filter(|&(row, _)| valid(row)).map(|(_, &view)| view);
    let lengths: Vec<u32> = kept().map(|view| view as u32).collect();
    let sum = |lengths: &mut dyn Iterator<Item = &u32>| lengths.map(|&length| u64::from(length)).sum::<u64>();
    let total = sum(&mut lengths.iter());
    let limit = u64::from(u32::MAX);
    if total > limit {
        return Err(WireError::TooLarge { what: "values of a view column", bytes: total, limit });
    }
    let long = sum(&mut lengths.iter().filter(|&&length| is_long(length)));
    let mut bytes = Vec::with_capacity(total as usize);
    for raw in kept() {
        let length = raw as u32;
        if is_long(length) {
            let view = ByteView::from(raw);
            let start = view.offset as usize;
            let buffer = &array.data_buffers()[view.buffer_index as usize];
            bytes.extend_from_slice(&buffer[start..start + length as usize]);
        } else {
            bytes.extend_from_slice(&raw.to_le_bytes()[4..4 + length as usize]);
        }
    }
    Ok((Strings { lengths: lengths.into(), bytes: Buffer::from_vec(bytes) }, long as usize))
}

/// Views of concatenated values.
pub(super) fn build(lengths: &[u32], bytes: &[u8]) -> Vec<u128> {
    let mut start = 0;
    let view = |&length: &u32| {
        let value = &bytes[start..start + length as usize];
        let offset = start as u32;
        start += length as usize;
        let mut view = [0; size_of::<u128>()];
        view[..4].copy_from_slice(&length.to_le_bytes());
        if is_long(length) {
            view[4..8].copy_from_slice(&value[..4]);
            // The first buffer, which has number 0.
            view[12..].copy_from_slice(&offset.to_le_bytes());
        } else {
            view[4..4 + value.len()].copy_from_slice(value);
        }
        u128::from_le_bytes(view)
    };
    lengths.iter().map(view).collect()
}
