//! Checks of the lengths in Arrow files. The reader allocates what they say before it reads, so those of a damaged file
//! could take all memory.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use arrow_schema::ArrowError;
use datafusion::arrow::ipc::{Message, root_as_footer, root_as_message};

/// Before a message of a stream.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// After the footer of a file: its length, and six bytes that end the file.
const TAIL_BYTES: u64 = 10;

/// What codecs can make of a byte: zstd writes a run of 128 KiB in 4 bytes.
const EXPANSION_MAX: u64 = 1 << 16;

/// The largest buffer after decompression.
const BUFFER_BYTES_MAX: u64 = 1 << 36;

fn refused(what: &str) -> ArrowError {
    ArrowError::IpcError(format!("{what} is beyond the end of the file"))
}

/// Checks the lengths of all messages of a file with a footer.
pub(super) fn check_file(file: &mut File) -> Result<(), ArrowError> {
    let bytes = file.metadata()?.len();
    let mut tail = [0; TAIL_BYTES as usize];
    file.seek(SeekFrom::Start(bytes.checked_sub(TAIL_BYTES).ok_or_else(|| refused("the footer"))?))?;
    file.read_exact(&mut tail)?;
    let [a, b, c, d, ..] = tail;
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    let start = (bytes - TAIL_BYTES).checked_sub(length).ok_or_else(|| refused("the footer"))?;
    let mut footer = vec![0; length as usize];
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut footer)?;
    let footer = root_as_footer(&footer).map_err(|error| ArrowError::IpcError(error.to_string()))?;
    let blocks =
        footer.dictionaries().into_iter().flatten().chain(footer.recordBatches().into_iter().flatten());
    for block in blocks {
        let offset = u64::try_from(block.offset()).map_err(|_| refused("a batch"))?;
        let metadata = u64::try_from(block.metaDataLength()).map_err(|_| refused("a batch"))?;
        let body = u64::try_from(block.bodyLength()).map_err(|_| refused("a batch"))?;
        let end = offset.checked_add(metadata).and_then(|end| end.checked_add(body));
        if end.is_none_or(|end| end > bytes) || metadata < 8 {
            return Err(refused("a batch"));
        }
        let mut message = vec![0; metadata as usize];
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(&mut message)?;
        let prefix = if message[..4] == CONTINUATION { 8 } else { 4 };
        check_message(file, &message[prefix..], offset + metadata, bytes)?;
    }
    Ok(())
}

/// Checks the lengths of all messages of a stream.
pub(super) fn check_stream(file: &mut File) -> Result<(), ArrowError> {
    let bytes = file.metadata()?.len();
    let mut at = 0;
    while at + 4 <= bytes {
        let mut number = [0; 4];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut number)?;
        at += 4;
        if number == CONTINUATION {
            file.read_exact(&mut number)?;
            at += 4;
        }
        let length = u64::from(u32::from_le_bytes(number));
        if length == 0 {
            break;
        }
        if length > bytes - at {
            return Err(refused("a message"));
        }
        let mut message = vec![0; length as usize];
        file.read_exact(&mut message)?;
        at += length;
        at += check_message(file, &message, at, bytes)?;
    }
    Ok(())
}

/// Checks the lengths of a message whose body begins at `body`. Returns the length of the body.
fn check_message(file: &mut File, message: &[u8], body: u64, bytes: u64) -> Result<u64, ArrowError> {
    let message = root_as_message(message).map_err(|error| ArrowError::IpcError(error.to_string()))?;
    let length = u64::try_from(message.bodyLength()).ok().filter(|length| *length <= bytes - body);
    let length = length.ok_or_else(|| refused("the body of a message"))?;
    let batch = batch_of(&message);
    let Some(batch) = batch.filter(|batch| batch.compression().is_some()) else { return Ok(length) };
    for buffer in batch.buffers().into_iter().flatten() {
        let range = u64::try_from(buffer.offset()).ok().zip(u64::try_from(buffer.length()).ok());
        let (offset, packed) = range.ok_or_else(|| refused("a buffer"))?;
        if offset.checked_add(packed).is_none_or(|end| end > length) {
            return Err(refused("a buffer"));
        }
        if packed < 8 {
            continue;
        }
        let mut unpacked = [0; 8];
        file.seek(SeekFrom::Start(body + offset))?;
        file.read_exact(&mut unpacked)?;
        // -1 stands for a buffer that is not compressed.
        let unpacked = i64::from_le_bytes(unpacked);
        let limit = packed.saturating_mul(EXPANSION_MAX).min(BUFFER_BYTES_MAX);
        if unpacked != -1 && u64::try_from(unpacked).map_or(true, |unpacked| unpacked > limit) {
            return Err(ArrowError::IpcError("the length of a compressed buffer is not possible".into()));
        }
    }
    Ok(length)
}

fn batch_of<'a>(message: &Message<'a>) -> Option<datafusion::arrow::ipc::RecordBatch<'a>> {
    message.header_as_record_batch().or_else(|| message.header_as_dictionary_batch()?.data())
}
