//! Checks bytes that are said to be a key, before they are decoded: `arrow_row` panics at others.

use arrow_schema::DataType;

/// Before a value that is not NULL.
const NOT_NULL: u8 = 1;
/// The whole of an empty text or empty bytes.
const EMPTY: u8 = 1;
/// Before the blocks of a text, or of bytes.
const NOT_EMPTY: u8 = 2;
/// After a block that another one follows. Otherwise the number of the block's bytes is there.
const CONTINUED: u8 = 0xff;
/// The sizes of blocks: four small ones, then large ones.
const BLOCK_BYTES: [usize; 2] = [8, 32];
/// The number of small blocks.
const SMALL_BLOCKS: usize = 4;

/// Whether `bytes` are the encoding of values with these types, one after the other, and nothing else.
pub(crate) fn is_key<'a>(types: impl IntoIterator<Item = &'a DataType>, bytes: &[u8]) -> bool {
    let mut types = types.into_iter();
    types.try_fold(bytes, |rest, data_type| after_value(data_type, rest)).is_some_and(<[u8]>::is_empty)
}

/// What follows the value at the beginning of `bytes`; `None` if there is no such value.
fn after_value<'a>(data_type: &DataType, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let fixed = |width: usize| match bytes.split_first()? {
        (&NOT_NULL, value) => value.get(width..),
        _ => None,
    };
    match data_type {
        DataType::Boolean => fixed(1),
        DataType::FixedSizeBinary(width) => fixed(usize::try_from(*width).ok()?),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let mut text = Vec::new();
            let rest = after_blocks(bytes, |block| text.extend_from_slice(block))?;
            std::str::from_utf8(&text).is_ok().then_some(rest)
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => after_blocks(bytes, |_| ()),
        data_type => fixed(data_type.primitive_width()?),
    }
}

/// What follows a value in blocks.
fn after_blocks(bytes: &[u8], mut block: impl FnMut(&[u8])) -> Option<&[u8]> {
    let (first, mut rest) = bytes.split_first()?;
    match *first {
        EMPTY => return Some(rest),
        NOT_EMPTY => {}
        _ => return None,
    }
    for number in 0.. {
        let width = BLOCK_BYTES[usize::from(number >= SMALL_BLOCKS)];
        let (content, after) = rest.split_at_checked(width)?;
        let (&end, after) = after.split_first()?;
        if end != CONTINUED {
            let filled = content.get(..usize::from(end)).filter(|filled| !filled.is_empty())?;
            block(filled);
            return Some(after);
        }
        block(content);
        rest = after;
    }
    None
}
