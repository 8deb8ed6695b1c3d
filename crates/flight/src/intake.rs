//! Reads rows that clients send. Nothing of it is trusted.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_ipc::MessageHeader;
use arrow_schema::SchemaRef;
use futures::{FutureExt, Stream, StreamExt, future, stream};
use lightship_wire::control::{ErrorCode, Failure};
use tokio::time::timeout;
use tonic::Status;

use crate::status::{invalid, status};

/// The most rows of a message. Rows without values have no size, so that the size of messages does not bound them.
const MESSAGE_ROWS_MAX: usize = 1 << 22;
/// The most bytes of a message after it was decompressed.
const DECOMPRESSED_BYTES_MAX: u64 = 64 << 20;
/// The most bytes of all dictionaries of a stream together. They are kept until it ends.
const DICTIONARIES_BYTES_MAX: u64 = 64 << 20;
/// Each compressed buffer begins with its decompressed length.
const LENGTH_BYTES: usize = 8;

/// The batches of a stream of messages.
pub(crate) struct Batches {
    decoder: FlightDataDecoder,
    schema: Option<SchemaRef>,
    /// How long the next message may take.
    stall_timeout: Option<Duration>,
}

impl Batches {
    /// Reads messages. Those without content, as some clients send, are passed over.
    pub(crate) fn new(
        messages: impl Stream<Item = Result<FlightData, Status>> + Send + 'static,
        stall_timeout: Option<Duration>,
    ) -> Self {
        let mut dictionaries_bytes = 0;
        let checked = messages.filter_map(move |message| {
            let checked = match message {
                Ok(data) if data.data_header.is_empty() => None,
                Ok(data) => Some(check(&data, &mut dictionaries_bytes).map(|()| data)),
                Err(status) => Some(Err(status)),
            };
            future::ready(checked.map(|checked| checked.map_err(FlightError::from)))
        });
        Self { decoder: FlightDataDecoder::new(checked), schema: None, stall_timeout }
    }

    /// The columns, once a batch or the end was read; `None` if none were announced.
    pub(crate) fn schema(&self) -> Option<&SchemaRef> {
        self.schema.as_ref()
    }

    /// The next batch.
    ///
    /// # Errors
    /// If it is malformed or too large.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>, Status> {
        loop {
            // Arrow's decoder panics at some malformed messages.
            let decoded = AssertUnwindSafe(self.decoder.next()).catch_unwind();
            let decoded = in_time(self.stall_timeout, decoded).await?;
            let decoded = decoded.map_err(|_| invalid("a message is malformed"))?;
            let Some(decoded) = decoded else { return Ok(None) };
            match decoded.map_err(decode_status)?.payload {
                DecodedPayload::None => {}
                DecodedPayload::Schema(_) if self.schema.is_some() => {
                    return Err(invalid("the columns are announced twice"));
                }
                DecodedPayload::Schema(schema) => self.schema = Some(schema),
                DecodedPayload::RecordBatch(batch) if batch.num_rows() > MESSAGE_ROWS_MAX => {
                    let message = format!(
                        "a message has {} rows; at most {MESSAGE_ROWS_MAX} are accepted",
                        batch.num_rows()
                    );
                    return Err(status(&Failure::new(ErrorCode::Limit, message)));
                }
                DecodedPayload::RecordBatch(batch) => return Ok(Some(batch)),
            }
        }
    }

    /// All batches as a stream.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<RecordBatch, Status>> {
        stream::unfold(Some(self), |batches| async {
            let mut batches = batches?;
            match batches.next().await {
                Ok(batch) => Some((Ok(batch?), Some(batches))),
                Err(status) => Some((Err(status), None)),
            }
        })
    }
}

/// Fails if a client sends nothing for too long.
pub(crate) async fn in_time<T>(limit: Option<Duration>, sent: impl Future<Output = T>) -> Result<T, Status> {
    let Some(limit) = limit else { return Ok(sent.await) };
    timeout(limit, sent).await.map_err(|_| {
        let message = format!("the client sent nothing for {} seconds", limit.as_secs_f32());
        status(&Failure::new(ErrorCode::Stalled, message))
    })
}

fn decode_status(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        error => invalid(error.to_string()),
    }
}

/// Checks what Arrow's decoder takes for granted: that buffers lie within the message, and that those that are
/// compressed have a reasonable size.
fn check(data: &FlightData, dictionaries_bytes: &mut u64) -> Result<(), Status> {
    let malformed = || invalid("a message is malformed");
    let message = arrow_ipc::root_as_message(&data.data_header).map_err(|_| malformed())?;
    let (batch, is_dictionary) = match message.header_type() {
        MessageHeader::RecordBatch => (message.header_as_record_batch(), false),
        MessageHeader::DictionaryBatch => {
            (message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data()), true)
        }
        _ => return Ok(()),
    };
    let batch = batch.ok_or_else(malformed)?;
    let mut bytes = 0_u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let start = usize::try_from(buffer.offset()).map_err(|_| malformed())?;
        let len = usize::try_from(buffer.length()).map_err(|_| malformed())?;
        let end = start.checked_add(len).ok_or_else(malformed)?;
        let body = data.data_body.get(start..end).ok_or_else(malformed)?;
        let decompressed = match (batch.compression(), body.first_chunk::<LENGTH_BYTES>()) {
            // -1 says that this buffer is not compressed.
            (Some(_), Some(length)) => u64::try_from(i64::from_le_bytes(*length)).unwrap_or(0),
            _ => 0,
        };
        bytes = bytes.saturating_add(decompressed.max(len as u64));
    }
    for node in batch.nodes().into_iter().flatten() {
        if node.length() < 0 || node.null_count() < 0 || node.null_count() > node.length() {
            return Err(malformed());
        }
    }
    let bytes_max = if is_dictionary {
        *dictionaries_bytes = dictionaries_bytes.saturating_add(bytes);
        bytes = *dictionaries_bytes;
        DICTIONARIES_BYTES_MAX
    } else {
        DECOMPRESSED_BYTES_MAX
    };
    if bytes <= bytes_max {
        return Ok(());
    }
    let what = if is_dictionary { "dictionaries have" } else { "a message has" };
    let message = format!("{what} {bytes} bytes when decompressed; at most {bytes_max} are accepted");
    Err(status(&Failure::new(ErrorCode::Limit, message)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, NullArray, StringArray};
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};

    use super::*;
    use crate::encode::MessageEncoder;

    fn messages(batch: &RecordBatch) -> Vec<FlightData> {
        let (mut encoder, first) = MessageEncoder::new(batch.schema_ref());
        [first].into_iter().chain(encoder.encode(batch).unwrap()).collect()
    }

    async fn read(messages: Vec<FlightData>) -> Result<Vec<RecordBatch>, Status> {
        let mut batches = Batches::new(stream::iter(messages.into_iter().map(Ok)), None);
        let mut read = Vec::new();
        while let Some(batch) = batches.next().await? {
            read.push(batch);
        }
        Ok(read)
    }

    fn batch() -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
        RecordBatch::try_from_iter([("n", numbers), ("t", texts)]).unwrap()
    }

    #[tokio::test]
    async fn batches_are_read_between_empty_messages() {
        let mut sent = messages(&batch());
        sent.insert(0, FlightData::default());
        sent.push(FlightData::default());
        assert_eq!(read(sent).await.unwrap(), [batch()]);
        assert!(read(Vec::new()).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn malformed_messages_are_refused() {
        let sent = messages(&batch());
        let [schema, rows] = sent.as_slice() else { panic!("{}", sent.len()) };
        assert!(read(vec![rows.clone()]).await.is_err(), "rows without columns");
        assert!(read(vec![schema.clone(), schema.clone()]).await.is_err(), "columns twice");
        let cut = FlightData { data_body: rows.data_body.slice(..8), ..rows.clone() };
        assert!(read(vec![schema.clone(), cut]).await.is_err(), "buffers outside of the message");
        let junk = FlightData { data_header: vec![1; 64].into(), ..FlightData::default() };
        assert!(read(vec![junk]).await.is_err());
        for byte in 0..rows.data_header.len() {
            let mut header = rows.data_header.to_vec();
            header[byte] ^= 0xff;
            let _ =
                read(vec![schema.clone(), FlightData { data_header: header.into(), ..rows.clone() }]).await;
        }
    }

    #[tokio::test]
    async fn compressed_messages_say_how_large_they_are() {
        let batch = batch();
        let options =
            IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
        let mut tracker = DictionaryTracker::new(false);
        let encoded = IpcDataGenerator::default().encode(
            &batch,
            &mut tracker,
            &options,
            &mut IpcWriteContext::default(),
        );
        let compressed: FlightData = encoded.unwrap().1.into();
        let schema = messages(&batch).swap_remove(0);
        assert_eq!(read(vec![schema.clone(), compressed.clone()]).await.unwrap(), [batch]);
        // The buffers, which are aligned to 64 bytes, begin with their lengths.
        let mut body = compressed.data_body.to_vec();
        body.chunks_mut(64).for_each(|buffer| buffer[..8].copy_from_slice(&(1_u64 << 40).to_le_bytes()));
        let forged = FlightData { data_body: body.into(), ..compressed };
        let refused = read(vec![schema, forged]).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
    }

    #[tokio::test]
    async fn rows_without_values_are_limited() {
        let nothing: ArrayRef = Arc::new(NullArray::new(MESSAGE_ROWS_MAX + 1));
        let many = RecordBatch::try_from_iter([("nothing", nothing)]).unwrap();
        let refused = read(messages(&many)).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    }
}
