//! What clients send: parameters, updates, and rows to insert.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_cast::cast;
use arrow_flight::FlightData;
use arrow_flight::sql::{Command as SqlCommand, DoPutPreparedStatementResult, DoPutUpdateResult};
use arrow_schema::{DataType, SchemaRef};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use lightship_transport::net::Answer;
use lightship_wire::control::{ErrorCode, Failure};
use lightship_wire::message_bytes;
use prost::Message;
use tonic::{Status, Streaming};

use crate::command::{name, no_transaction, sql_command};
use crate::front::{Front, query_of};
use crate::handle::{StatementHandle, check_parameters};
use crate::intake::{Batches, in_time};
use crate::plain::{plain_batch, plain_schema, rows_at_once};
use crate::status::{invalid, status, unsupported};

impl Front {
    /// Handles the client's messages, and returns the answer to it.
    pub(crate) async fn put(&self, mut messages: Streaming<FlightData>) -> Result<Bytes, Status> {
        let _permit = self.admission.upload().await.map_err(|failure| status(&failure))?;
        let stall_timeout = self.config.stall_timeout;
        let first = in_time(stall_timeout, messages.message()).await??;
        let first = first.ok_or_else(|| invalid("nothing was sent"))?;
        let descriptor = first.flight_descriptor.as_ref();
        let descriptor = descriptor.ok_or_else(|| invalid("the first message has no descriptor"))?;
        let command = sql_command(&descriptor.cmd)?;
        let command = command.ok_or_else(|| invalid("expected a command of Flight SQL"))?;
        let mut batches = Batches::new(stream::iter([Ok(first)]).chain(messages), stall_timeout);
        let record_count = match command {
            SqlCommand::CommandPreparedStatementQuery(query) => {
                let handle = StatementHandle::read(&query.prepared_statement_handle)?;
                let handle = bind(handle, &mut batches).await?;
                let prepared_statement_handle = Some(handle.bytes());
                let result = DoPutPreparedStatementResult { prepared_statement_handle };
                return Ok(result.encode_to_vec().into());
            }
            SqlCommand::CommandPreparedStatementUpdate(update) => {
                let handle = StatementHandle::read(&update.prepared_statement_handle)?;
                self.update(handle, batches).await?
            }
            SqlCommand::CommandStatementUpdate(update) => {
                no_transaction(update.transaction_id.as_ref())?;
                self.update(StatementHandle::new(update.query)?, batches).await?
            }
            SqlCommand::CommandStatementIngest(ingest) => self.ingest(ingest, batches).await?,
            other => return Err(unsupported(format!("{} is not supported", name(&other)))),
        };
        Ok(DoPutUpdateResult { record_count }.encode_to_vec().into())
    }

    /// Runs an update once, or once for each row of parameters, which it gets here or with its handle. Returns the
    /// number of rows that were changed.
    async fn update(&self, handle: StatementHandle, mut batches: Batches) -> Result<i64, Status> {
        if !self.prepare(&handle.sql).await?.is_update {
            return Err(invalid("the statement is no update; ask for its rows with GetFlightInfo"));
        }
        let bound = handle.parameters().await?;
        let _permit = self.admission.run().await.map_err(|failure| status(&failure))?;
        let mut update = Update { front: self, sql: &handle.sql, runs: 0, changed: 0 };
        while let Some(batch) = batches.next().await? {
            if batch.num_columns() > 0 {
                update.run_for_rows(&batch).await?;
            }
        }
        match (batches.schema(), bound) {
            // Some clients send a batch without columns for a statement without parameters.
            (Some(schema), _) if !schema.fields().is_empty() => {}
            (_, Some(bound)) => update.run_for_rows(&bound).await?,
            (_, None) => update.run(None).await?,
        }
        Ok(update.changed)
    }
}

/// Binds the rows that a client sends to a statement.
async fn bind(handle: StatementHandle, batches: &mut Batches) -> Result<StatementHandle, Status> {
    let (mut bound, mut bytes) = (Vec::new(), 0_u64);
    while let Some(batch) = batches.next().await? {
        bytes = bytes.saturating_add(message_bytes(&batch, 0, batch.num_rows()));
        check_parameters(bytes)?;
        if batch.num_columns() > 0 {
            bound.push(batch);
        }
    }
    handle.with_parameters(&bound)
}

/// An update that runs, perhaps many times.
struct Update<'a> {
    front: &'a Front,
    sql: &'a str,
    /// How many times it has run.
    runs: u64,
    /// Rows that it has changed.
    changed: i64,
}

impl Update<'_> {
    async fn run_for_rows(&mut self, parameters: &RecordBatch) -> Result<(), Status> {
        for piece in Pieces::new(parameters, self.front.config.request_bytes_max.into()) {
            let piece = piece.map_err(|failure| status(&failure))?;
            for row in 0..piece.num_rows() {
                self.run(Some(&piece.slice(row, 1))).await?;
            }
        }
        Ok(())
    }

    async fn run(&mut self, parameters: Option<&RecordBatch>) -> Result<(), Status> {
        let service = &self.front.service;
        let ran = async {
            let answer = match parameters {
                Some(parameters) => service.execute(self.sql, parameters).await?,
                None => service.query(&query_of(self.sql)).await?,
            };
            changed_rows(answer).await
        };
        match ran.await {
            Ok(changed) => {
                (self.runs, self.changed) = (self.runs + 1, self.changed.saturating_add(changed));
                Ok(())
            }
            Err(failure) if self.runs == 0 => Err(status(&failure)),
            Err(failure) => {
                let message = format!("{}; it had run for {} rows of parameters", failure.message, self.runs);
                Err(status(&Failure { message, ..failure }))
            }
        }
    }
}

/// The number of rows that an update has changed, which is its result.
pub(crate) async fn changed_rows(answer: Answer) -> Result<i64, Failure> {
    let (mut rows, mut changed) = (answer.rows, 0_i64);
    while let Some(batch) = rows.try_next().await? {
        let [count] = batch.columns() else {
            return Err(Failure::new(ErrorCode::Internal, "the result of an update has one column"));
        };
        let counts = cast(count, &DataType::Int64)
            .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
        let counts = counts.as_primitive::<Int64Type>().iter().flatten();
        changed = counts.fold(changed, i64::saturating_add);
    }
    Ok(changed)
}

/// The rows of a batch as plain values, in pieces of bounded size.
pub(crate) struct Pieces<'a> {
    batch: &'a RecordBatch,
    schema: SchemaRef,
    start: usize,
    row_bytes_max: u64,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(batch: &'a RecordBatch, row_bytes_max: u64) -> Self {
        Self { batch, schema: plain_schema(batch.schema_ref()), start: 0, row_bytes_max }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<RecordBatch, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.start >= self.batch.num_rows() {
            return None;
        }
        let rows = rows_at_once(self.batch, &self.schema, self.start, self.row_bytes_max);
        let piece = rows.and_then(|rows| {
            let piece = plain_batch(&self.batch.slice(self.start, rows), &self.schema)?;
            self.start += rows;
            Ok(piece)
        });
        if piece.is_err() {
            self.start = self.batch.num_rows();
        }
        Some(piece)
    }
}
