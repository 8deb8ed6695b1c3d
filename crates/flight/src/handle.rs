//! What clients keep for the server: statements, in tickets and in handles of prepared statements.

use std::panic::catch_unwind;

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, IpcMessage};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use bytes::Bytes;
use futures::{TryStreamExt, stream};
use lightship_wire::control::{ErrorCode, Failure};
use prost::Message;
use tonic::Status;

use crate::encode::MessageEncoder;
use crate::intake::Batches;
use crate::plain::{growing_bytes, plain_batch, plain_schema};
use crate::running::RunId;
use crate::status::{invalid, status};

/// The largest statement, as on a node.
pub(crate) const STATEMENT_BYTES_MAX: usize = 1 << 20;
/// The most bytes of parameters that a client binds to a query: it sends them back with each request.
const PARAMETERS_BYTES_MAX: u64 = 1 << 20;

/// Tells handles of this server from those of others. It changes with their format.
const MAGIC: u32 = 0x4c53_4601;

/// A statement, with its parameters. As a ticket, it also has the columns that the client was told, and an identifier.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatementHandle {
    #[prost(fixed32, tag = "1")]
    magic: u32,
    #[prost(string, tag = "2")]
    pub(crate) sql: String,
    /// Messages of Flight with the columns of the parameters, and their rows.
    #[prost(message, repeated, tag = "3")]
    parameters: Vec<ParameterMessage>,
    #[prost(bytes = "bytes", tag = "4")]
    columns: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    run: Bytes,
    /// Of the ticket of one of several endpoints.
    #[prost(message, optional, tag = "6")]
    share: Option<Share>,
}

/// One of the endpoints over which a result is divided.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Share {
    #[prost(bytes = "bytes", tag = "1")]
    server: Bytes,
    /// When the server issued it, since its start.
    #[prost(uint64, tag = "2")]
    pub(crate) issued_ms: u64,
    /// Which of the endpoints it is.
    #[prost(uint32, tag = "3")]
    pub(crate) place: u32,
}

impl Share {
    pub(crate) fn new(server: RunId, issued_ms: u64, place: u32) -> Self {
        Self { server: Bytes::copy_from_slice(&server), issued_ms, place }
    }

    /// Whether this server has issued it.
    pub(crate) fn is_of(&self, server: &RunId) -> bool {
        self.server == server[..]
    }
}

#[derive(Clone, PartialEq, Message)]
struct ParameterMessage {
    #[prost(bytes = "bytes", tag = "1")]
    header: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    body: Bytes,
}

impl StatementHandle {
    /// A statement without parameters.
    ///
    /// # Errors
    /// If it is too large.
    pub(crate) fn new(sql: String) -> Result<Self, Status> {
        let handle = Self { magic: MAGIC, sql, ..Self::default() };
        handle.check_size()?;
        Ok(handle)
    }

    fn check_size(&self) -> Result<(), Status> {
        let bytes = self.sql.len();
        if bytes <= STATEMENT_BYTES_MAX {
            return Ok(());
        }
        let message = format!("the statement has {bytes} bytes; the limit is {STATEMENT_BYTES_MAX}");
        let hint = "put long lists of values into a file, and serve it as a table";
        Err(status(&Failure::new(ErrorCode::Limit, message).hint(hint)))
    }

    /// From the bytes of a client.
    ///
    /// # Errors
    /// If they are not those of a handle.
    pub(crate) fn read(bytes: &Bytes) -> Result<Self, Status> {
        let handle = Self::decode(bytes.clone()).ok().filter(|handle| handle.magic == MAGIC);
        let handle = handle.ok_or_else(|| invalid("unknown ticket or prepared statement"))?;
        handle.check_size()?;
        Ok(handle)
    }

    /// As bytes.
    pub(crate) fn bytes(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// With the rows of parameters, which replace earlier ones.
    ///
    /// # Errors
    /// If they are too large.
    pub(crate) fn with_parameters(self, batches: &[RecordBatch]) -> Result<Self, Status> {
        let Some(first) = batches.first() else { return Ok(Self { parameters: Vec::new(), ..self }) };
        let rows = concat_batches(first.schema_ref(), batches).map_err(arrow_status)?;
        let schema = plain_schema(first.schema_ref());
        check_parameters(growing_bytes(&rows, &schema, 0, rows.num_rows()))?;
        let rows = plain_batch(&rows, &schema).map_err(|failure| status(&failure))?;
        let (mut encoder, columns) = MessageEncoder::new(rows.schema_ref());
        let rows = encoder.encode(&rows).map_err(|failure| status(&failure))?;
        let messages = [columns].into_iter().chain(rows);
        let parameters: Vec<_> = messages
            .map(|data| ParameterMessage { header: data.data_header, body: data.data_body })
            .collect();
        let bytes: usize = parameters.iter().map(|message| message.header.len() + message.body.len()).sum();
        check_parameters(bytes as u64)?;
        Ok(Self { parameters, ..self })
    }

    /// The rows of parameters; `None` if none are bound.
    ///
    /// # Errors
    /// If they are malformed.
    pub(crate) async fn parameters(&self) -> Result<Option<RecordBatch>, Status> {
        if self.parameters.is_empty() {
            return Ok(None);
        }
        let messages = self.parameters.iter().map(|message| FlightData {
            data_header: message.header.clone(),
            data_body: message.body.clone(),
            ..FlightData::default()
        });
        let messages: Vec<_> = messages.map(Ok).collect();
        let batches: Vec<_> = Batches::new(stream::iter(messages), None).into_stream().try_collect().await?;
        let Some(first) = batches.first() else { return Ok(None) };
        concat_batches(first.schema_ref(), &batches).map(Some).map_err(arrow_status)
    }

    /// As a ticket for a result with these columns, or for a share of it.
    pub(crate) fn ticket(self, columns: Bytes, run: RunId, share: Option<Share>) -> Self {
        Self { columns, run: Bytes::copy_from_slice(&run), share, ..self }
    }

    /// The columns that the client was told, if this is a ticket.
    ///
    /// # Errors
    /// If they are malformed.
    pub(crate) fn columns(&self) -> Result<Option<SchemaRef>, Status> {
        if self.columns.is_empty() {
            return Ok(None);
        }
        let message = IpcMessage(self.columns.clone());
        // Arrow's decoder panics at some malformed types.
        let schema = catch_unwind(|| Schema::try_from(message));
        match schema {
            Ok(Ok(schema)) => Ok(Some(schema.into())),
            _ => Err(invalid("the ticket is malformed")),
        }
    }

    /// The identifier of the result, if this is a ticket.
    pub(crate) fn run(&self) -> Option<RunId> {
        self.run.as_ref().try_into().ok()
    }

    /// The share of the result that the ticket is for; `None` if it is for the whole result.
    pub(crate) fn share(&self) -> Option<&Share> {
        self.share.as_ref()
    }
}

/// Refuses parameters that are too large for a handle.
pub(crate) fn check_parameters(bytes: u64) -> Result<(), Status> {
    if bytes <= PARAMETERS_BYTES_MAX {
        return Ok(());
    }
    let message = format!("the parameters have {bytes} bytes; the limit is {PARAMETERS_BYTES_MAX}");
    Err(status(&Failure::new(ErrorCode::Limit, message)))
}

fn arrow_status(error: ArrowError) -> Status {
    invalid(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, NullArray, StringViewArray};
    use arrow_schema::{DataType, Field};

    use super::*;
    use crate::encode::schema_bytes;

    fn parameters(rows: i64) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        let texts = (0..rows).map(|row| format!("text number {row}, which is not inline"));
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values(texts));
        let nothing: ArrayRef = Arc::new(NullArray::new(rows as usize));
        RecordBatch::try_from_iter([("1", numbers), ("2", texts), ("3", nothing)]).unwrap()
    }

    #[tokio::test]
    async fn handles_are_read_as_they_were_written() {
        let handle = StatementHandle::new("select $1".into()).unwrap();
        assert_eq!(StatementHandle::read(&handle.bytes()).unwrap(), handle);
        assert_eq!(handle.parameters().await.unwrap(), None);
        let bound = handle.clone().with_parameters(&[parameters(2), parameters(1)]).unwrap();
        let read = StatementHandle::read(&bound.bytes()).unwrap();
        let rows = read.parameters().await.unwrap().unwrap();
        assert_eq!((rows.num_rows(), rows.num_columns()), (3, 3));
        assert_eq!(rows.schema().field(1).data_type(), &DataType::Utf8);
        assert_eq!(read.with_parameters(&[]).unwrap(), handle, "they can be taken away again");
    }

    #[test]
    fn tickets_have_columns_and_an_identifier() {
        let schema = Schema::new(vec![Field::new("a", DataType::Utf8, true)]);
        let handle = StatementHandle::new("select 1".into()).unwrap();
        assert!(handle.columns().unwrap().is_none() && handle.run().is_none());
        let ticket = handle.ticket(schema_bytes(&schema).unwrap(), [7; 16], Some(Share::new([8; 16], 9, 1)));
        assert_eq!(ticket.columns().unwrap().unwrap().as_ref(), &schema);
        assert_eq!(ticket.run(), Some([7; 16]));
        let read = StatementHandle::read(&ticket.bytes()).unwrap();
        let share = read.share().unwrap();
        assert_eq!((share.is_of(&[8; 16]), share.is_of(&[7; 16])), (true, false));
        assert_eq!((share.issued_ms, share.place), (9, 1));
    }

    #[tokio::test]
    async fn forged_handles_are_refused() {
        for bytes in [&b""[..], b"select 1", &[0xff; 40], &[0x0d, 1, 2, 3, 4]] {
            assert!(StatementHandle::read(&Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
        }
        assert!(StatementHandle::new("x".repeat(STATEMENT_BYTES_MAX + 1)).is_err());
        let large = StatementHandle { magic: MAGIC, sql: "x".repeat(2 << 20), ..StatementHandle::default() };
        assert!(StatementHandle::read(&large.bytes()).is_err());
        let handle = StatementHandle::new("select 1".into()).unwrap();
        assert!(handle.clone().with_parameters(&[parameters(100_000)]).is_err(), "too large");
        let bad = StatementHandle { columns: Bytes::from_static(b"no schema at all"), ..handle.clone() };
        assert!(bad.columns().is_err());
        // Every byte of the parameters is changed once: none of that may end the process.
        let bound = handle.with_parameters(&[parameters(2)]).unwrap();
        for (at, message) in bound.parameters.iter().enumerate() {
            for byte in 0..message.header.len() {
                let mut header = message.header.to_vec();
                header[byte] ^= 0x55;
                let mut forged = bound.clone();
                forged.parameters[at].header = header.into();
                let _ = forged.parameters().await;
            }
        }
    }
}
