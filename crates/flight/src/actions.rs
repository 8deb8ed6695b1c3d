//! Actions: prepared statements, and cancellation.

use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest,
    ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult, Any, Command as SqlCommand,
    ProstMessageExt,
};
use arrow_flight::{
    Action, ActionType, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightInfo,
    RenewFlightEndpointRequest,
};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use prost::Message;
use tonic::Status;

use crate::command::{no_transaction, no_transactions, sql_command};
use crate::encode::schema_bytes;
use crate::front::{Front, packed};
use crate::handle::StatementHandle;
use crate::plain::{plain_schema, plain_type};
use crate::status::{invalid, status, unsupported};

const CREATE_PREPARED_STATEMENT: &str = "CreatePreparedStatement";
const CLOSE_PREPARED_STATEMENT: &str = "ClosePreparedStatement";
const CANCEL_QUERY: &str = "CancelQuery";
const CANCEL_FLIGHT_INFO: &str = "CancelFlightInfo";
const RENEW_FLIGHT_ENDPOINT: &str = "RenewFlightEndpoint";

/// The actions that there are.
pub(crate) fn list() -> impl Iterator<Item = ActionType> + Send {
    let action = |(name, description): (&str, &str)| ActionType {
        r#type: name.to_owned(),
        description: description.to_owned(),
    };
    [
        (CREATE_PREPARED_STATEMENT, "Plans a statement, and returns a handle for it"),
        (CLOSE_PREPARED_STATEMENT, "Does nothing: the server keeps no statements"),
        (CANCEL_QUERY, "Cancels a result that is being sent"),
        (CANCEL_FLIGHT_INFO, "Cancels a result that is being sent"),
        (RENEW_FLIGHT_ENDPOINT, "Returns the endpoint as it is: endpoints do not expire"),
    ]
    .into_iter()
    .map(action)
}

impl Front {
    /// Runs an action, and returns its results.
    pub(crate) async fn act(&self, action: Action) -> Result<Vec<Bytes>, Status> {
        let body = &action.body;
        match action.r#type.as_str() {
            CREATE_PREPARED_STATEMENT => {
                let request: ActionCreatePreparedStatementRequest = unpack(body)?;
                no_transaction(request.transaction_id.as_ref())?;
                Ok(vec![packed(&self.create_prepared(request.query).await?)])
            }
            CLOSE_PREPARED_STATEMENT => {
                let request: ActionClosePreparedStatementRequest = unpack(body)?;
                StatementHandle::read(&request.prepared_statement_handle)?;
                Ok(Vec::new())
            }
            CANCEL_QUERY => {
                let request: ActionCancelQueryRequest = unpack(body)?;
                let info = FlightInfo::decode(request.info).map_err(malformed)?;
                // The numbers of both statuses are the same.
                let result = self.cancel(&info)? as i32;
                Ok(vec![packed(&ActionCancelQueryResult { result })])
            }
            CANCEL_FLIGHT_INFO => {
                let request = CancelFlightInfoRequest::decode(body.clone()).map_err(malformed)?;
                let info = request.info.ok_or_else(|| invalid("there is no information to cancel"))?;
                let status = self.cancel(&info)? as i32;
                Ok(vec![CancelFlightInfoResult { status }.encode_to_vec().into()])
            }
            RENEW_FLIGHT_ENDPOINT => {
                let request = RenewFlightEndpointRequest::decode(body.clone()).map_err(malformed)?;
                let endpoint = request.endpoint.ok_or_else(|| invalid("there is no endpoint to renew"))?;
                Ok(vec![endpoint.encode_to_vec().into()])
            }
            "BeginTransaction" | "EndTransaction" | "BeginSavepoint" | "EndSavepoint" => {
                Err(no_transactions())
            }
            "CreatePreparedSubstraitPlan" => Err(unsupported("Substrait plans are not supported")),
            other => Err(unsupported(format!("there is no action {other:?}"))),
        }
    }

    async fn create_prepared(&self, sql: String) -> Result<ActionCreatePreparedStatementResult, Status> {
        let handle = StatementHandle::new(sql)?;
        let prepared = self.prepare(&handle.sql).await?;
        let bytes = |schema: &Schema| schema_bytes(schema).map_err(|failure| status(&failure));
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: handle.bytes(),
            // JDBC takes a statement without columns for an update.
            dataset_schema: match prepared.is_update {
                true => Bytes::new(),
                false => bytes(&plain_schema(&prepared.columns))?,
            },
            parameter_schema: bytes(&parameter_schema(&prepared.parameters))?,
        })
    }

    /// Cancels the results with these tickets.
    fn cancel(&self, info: &FlightInfo) -> Result<CancelStatus, Status> {
        let tickets = info.endpoint.iter().filter_map(|endpoint| endpoint.ticket.as_ref());
        let mut is_cancelled = false;
        for ticket in tickets {
            if let Some(SqlCommand::TicketStatementQuery(ticket)) = sql_command(&ticket.ticket)? {
                let run = StatementHandle::read(&ticket.statement_handle)?.run();
                is_cancelled |= run.is_some_and(|run| self.running.cancel(&run));
            }
        }
        // A query runs only while its rows are being sent; otherwise there is nothing to cancel.
        Ok(if is_cancelled { CancelStatus::Cancelled } else { CancelStatus::NotCancellable })
    }
}

/// The parameters, with the types in which clients should send them.
fn parameter_schema(parameters: &Schema) -> Schema {
    let field = |field: &std::sync::Arc<Field>| {
        let data_type = match plain_type(field.data_type()) {
            // The driver for JDBC sends milliseconds, whatever the unit.
            DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Millisecond, zone),
            // The driver for JDBC could only send NULL. The service casts texts to what it needs.
            DataType::Null => DataType::Utf8,
            other => other,
        };
        Field::new(field.name(), data_type, true)
    };
    Schema::new(parameters.fields().iter().map(field).collect::<Vec<_>>())
}

fn unpack<M: ProstMessageExt>(body: &Bytes) -> Result<M, Status> {
    let any = Any::decode(body.clone()).map_err(malformed)?;
    let message = any.unpack().map_err(|error| invalid(error.to_string()))?;
    message.ok_or_else(|| invalid(format!("expected {}", M::type_url())))
}

fn malformed(error: prost::DecodeError) -> Status {
    invalid(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_declared_as_clients_send_them() {
        let zone = Some("UTC".into());
        let declared = |data_type: DataType| {
            let schema = parameter_schema(&Schema::new(vec![Field::new("$1", data_type, false)]));
            assert_eq!(schema.field(0).name(), "$1");
            assert!(schema.field(0).is_nullable());
            schema.field(0).data_type().clone()
        };
        assert_eq!(declared(DataType::Int64), DataType::Int64);
        assert_eq!(declared(DataType::Null), DataType::Utf8);
        assert_eq!(declared(DataType::Utf8View), DataType::Utf8);
        assert_eq!(
            declared(DataType::Timestamp(TimeUnit::Nanosecond, zone)),
            DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))
        );
    }
}
