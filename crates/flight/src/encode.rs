//! Columns and rows as messages of Flight.

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc, SchemaResult};
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::{ArrowError, Schema};
use bytes::Bytes;
use lightship_wire::control::{ErrorCode, Failure};

/// Columns as `GetFlightInfo`, `GetSchema` and prepared statements have them.
pub(crate) fn schema_bytes(schema: &Schema) -> Result<Bytes, Failure> {
    let result = SchemaResult::try_from(SchemaAsIpc::new(schema, &IpcWriteOptions::default()));
    result.map(|result| result.schema).map_err(arrow_failure)
}

/// Encodes the rows of one result. Dictionaries below unions, which are the only ones left, are sent again when they
/// change.
pub(crate) struct MessageEncoder {
    generator: IpcDataGenerator,
    tracker: DictionaryTracker,
    options: IpcWriteOptions,
    context: IpcWriteContext,
}

impl MessageEncoder {
    /// For rows with these columns; also the message that announces them.
    pub(crate) fn new(schema: &Schema) -> (Self, FlightData) {
        let mut encoder = Self {
            generator: IpcDataGenerator::default(),
            tracker: DictionaryTracker::new(false),
            options: IpcWriteOptions::default(),
            context: IpcWriteContext::default(),
        };
        let Self { generator, tracker, options, .. } = &mut encoder;
        let first = generator.schema_to_bytes_with_dictionary_tracker(schema, tracker, options);
        (encoder, first.into())
    }

    /// The messages of these rows.
    ///
    /// # Errors
    /// If the rows can't be encoded, for example because a type is not supported.
    pub(crate) fn encode(&mut self, rows: &RecordBatch) -> Result<Vec<FlightData>, Failure> {
        let Self { generator, tracker, options, context } = self;
        let encoded = generator.encode(rows, tracker, options, context);
        let (dictionaries, rows) = encoded.map_err(arrow_failure)?;
        Ok(dictionaries.into_iter().chain([rows]).map(FlightData::from).collect())
    }
}

fn arrow_failure(error: ArrowError) -> Failure {
    Failure::new(ErrorCode::Data, error.to_string())
}
