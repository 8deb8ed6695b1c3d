//! The requests of Flight, in front of a service.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::metadata::{GetCatalogsBuilder, GetDbSchemasBuilder, SqlInfoData, XdbcTypeInfoData};
use arrow_flight::sql::{CommandGetTableTypes, ProstMessageExt, TicketStatementQuery};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, Location, PollInfo, PutResult, SchemaResult, Ticket,
};
use arrow_schema::{DataType, Schema, SchemaRef};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use lightship_transport::Result as TransportResult;
use lightship_transport::net::{Answer, Prepared, Rows, Service};
use lightship_wire::control::{ErrorCode, Failure, Plan, Query};
use prost::Message;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

use crate::FlightConfig;
use crate::admission::Admission;
use crate::catalog;
use crate::command::{Command, Metadata};
use crate::divided::{DividedResults, Fetched};
use crate::encode::schema_bytes;
use crate::gate::Gate;
use crate::handle::StatementHandle;
use crate::keys;
use crate::plain::{are_sent_as, plain_schema};
use crate::results::{Messages, ResultLimits};
use crate::running::Running;
use crate::sql_info;
use crate::status::{status, unsupported};
use crate::type_info::type_info;

/// How a result is requested from a service. Messages of Flight have sizes of their own.
pub(crate) fn query_of(sql: &str) -> Query {
    Query { sql: sql.to_owned(), plan: Plan::default() }
}

/// Answers requests with a service.
pub(crate) struct Front {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) config: Arc<FlightConfig>,
    pub(crate) admission: Admission,
    pub(crate) running: Arc<Running>,
    divided: Arc<DividedResults>,
    gate: Arc<Gate>,
    sql_info: SqlInfoData,
    type_info: XdbcTypeInfoData,
}

impl Front {
    pub(crate) fn new(
        service: Arc<dyn Service>,
        config: Arc<FlightConfig>,
        gate: Arc<Gate>,
    ) -> TransportResult<Self> {
        // Range files are the only tables that can be written.
        let sql_info = sql_info::sql_info(&config, !service.has_range_files())?;
        let running = Running::new()?;
        Ok(Self {
            service,
            admission: Admission::new(&config),
            config,
            divided: Arc::new(DividedResults::new(&running)?),
            running: Arc::new(running),
            gate,
            sql_info,
            type_info: type_info()?,
        })
    }

    /// Plans a statement.
    pub(crate) async fn prepare(&self, sql: &str) -> Result<Prepared, Status> {
        let _permit = self.admission.plan().await.map_err(|failure| status(&failure))?;
        self.service.prepare(sql).await.map_err(|failure| status(&failure))
    }

    /// The columns of what a client asks for, as they are sent, and the number of endpoints that divide its rows.
    async fn described(&self, command: &Command) -> Result<(SchemaRef, usize), Status> {
        let metadata = match command {
            Command::Statement(statement) => {
                let prepared = self.prepare(&statement.sql).await?;
                let is_divided = !prepared.is_update && !prepared.is_ordered;
                let endpoints = if is_divided { self.config.endpoints } else { 1 };
                return Ok((self.statement_columns(statement, prepared).await?, endpoints));
            }
            Command::Metadata(metadata) => metadata,
        };
        let columns = match metadata {
            Metadata::Catalogs => GetCatalogsBuilder::new().schema(),
            Metadata::Schemas(_) => GetDbSchemasBuilder::new(None::<String>, None::<String>).schema(),
            Metadata::Tables(command) => catalog::no_tables(command).schema(),
            Metadata::TableTypes => CommandGetTableTypes {}.into_builder().schema(),
            Metadata::SqlInfo(_) => {
                sql_info::columns(&self.sql_info).map_err(|error| Status::internal(error.to_string()))?
            }
            Metadata::TypeInfo(_) => self.type_info.schema(),
            Metadata::PrimaryKeys(_) => keys::primary_key_columns(),
            Metadata::ForeignKeys => keys::foreign_key_columns(),
        };
        Ok((columns, 1))
    }

    /// The columns of a statement, which can depend on the types of the values that are bound to it.
    async fn statement_columns(
        &self,
        statement: &StatementHandle,
        prepared: Prepared,
    ) -> Result<SchemaRef, Status> {
        let mut parameters = prepared.parameters.fields().iter();
        let depends = !prepared.is_update && parameters.any(|field| field.data_type() == &DataType::Null);
        let bound = if depends { statement.parameters().await? } else { None };
        let Some(bound) = bound.filter(|bound| bound.num_rows() > 0) else {
            return Ok(plain_schema(&prepared.columns));
        };
        let _permit = self.admission.run().await.map_err(|failure| status(&failure))?;
        // Its rows are dropped at once: only with these values it is known what they are.
        let answer = self.service.execute(&statement.sql, &bound.slice(0, 1)).await;
        Ok(plain_schema(&answer.map_err(|failure| status(&failure))?.schema))
    }

    /// The rows about the tables or the server.
    async fn metadata(&self, metadata: Metadata) -> Result<RecordBatch, Failure> {
        let service = self.service.as_ref();
        let built = match metadata {
            Metadata::Catalogs => return catalog::catalogs(service).await,
            Metadata::Schemas(command) => return catalog::schemas(service, &command).await,
            Metadata::Tables(command) => return catalog::matching_tables(service, &command).await,
            Metadata::TableTypes => {
                let mut builder = CommandGetTableTypes {}.into_builder();
                catalog::TABLE_TYPES.iter().for_each(|kind| builder.append(kind));
                builder.build()
            }
            Metadata::SqlInfo(command) => sql_info::selected(&self.sql_info, &command.info),
            Metadata::TypeInfo(command) => self.type_info.record_batch(command.data_type),
            Metadata::PrimaryKeys(command) => return keys::primary_keys(service, &command).await,
            Metadata::ForeignKeys => Ok(RecordBatch::new_empty(keys::foreign_key_columns())),
        };
        built.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
    }

    /// Where the rows of a descriptor are. Nothing runs yet, and nothing is kept.
    async fn flight_info(&self, descriptor: FlightDescriptor) -> Result<FlightInfo, Status> {
        let command = Command::of_descriptor(&descriptor)?;
        let (schema, endpoints) = self.described(&command).await?;
        let schema = schema_bytes(&schema).map_err(|failure| status(&failure))?;
        let tickets = match command {
            Command::Statement(statement) => self.tickets(&statement, &schema, endpoints)?,
            Command::Metadata(_) => vec![descriptor.cmd.clone()],
        };
        let locations = self.config.locations.iter().map(|uri| Location { uri: uri.clone() });
        let endpoint = FlightEndpoint {
            // Without one, clients ask where they have asked before.
            location: locations.collect(),
            ..FlightEndpoint::default()
        };
        let endpoints = tickets
            .into_iter()
            .map(|ticket| FlightEndpoint { ticket: Some(Ticket { ticket }), ..endpoint.clone() });
        let endpoint: Vec<_> = endpoints.collect();
        Ok(FlightInfo {
            schema,
            flight_descriptor: Some(descriptor),
            ordered: endpoint.len() == 1,
            endpoint,
            total_records: -1,
            total_bytes: -1,
            app_metadata: Bytes::new(),
        })
    }

    /// The tickets for the result of a statement.
    fn tickets(
        &self,
        statement: &StatementHandle,
        schema: &Bytes,
        count: usize,
    ) -> Result<Vec<Bytes>, Status> {
        let run = self.running.identifier().map_err(|error| Status::internal(error.to_string()))?;
        let ticket = |share| {
            let statement_handle = statement.clone().ticket(schema.clone(), run, share).bytes();
            TicketStatementQuery { statement_handle }.as_any().encode_to_vec().into()
        };
        Ok(match count {
            1 => vec![ticket(None)],
            count => self.divided.shares(count).map(Some).map(ticket).collect(),
        })
    }

    /// Sends the rows of a statement, or a share of them.
    async fn results(&self, statement: StatementHandle) -> Result<Messages, Status> {
        let parameters = statement.parameters().await?;
        let (declared, id, share) = (statement.columns()?, statement.run(), statement.share().cloned());
        let sql: Arc<str> = statement.sql.into();
        // From here on, so that a client can cancel while its query is planned.
        let run = id.map(|id| self.running.begin(id));
        let start = async {
            let permit = self.admission.run().await?;
            Ok((start(self.service.clone(), sql, parameters).await?, permit))
        };
        let starting = async {
            let (Some(id), Some(share)) = (id, share) else {
                let (answer, permit) = start.await?;
                return Ok((answer.schema, answer.rows, Some(permit)));
            };
            match self.divided.fetch(id, &share)? {
                Fetched::Share(share) => Ok((share.start(start).await?, share.rows(), None)),
                Fetched::Nothing => {
                    let none = declared.clone().unwrap_or_else(|| Arc::new(Schema::empty()));
                    Ok((none, stream::empty().boxed() as Rows, None))
                }
            }
        };
        let cancelled = async {
            match &run {
                Some(run) => run.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let started = tokio::select! {
            started = starting => started,
            () = cancelled => Err(Failure::new(ErrorCode::Cancelled, "the query was cancelled")),
        };
        let (found, rows, permit) = started.map_err(|failure: Failure| status(&failure))?;
        let schema = declared.unwrap_or_else(|| plain_schema(&found));
        if !are_sent_as(&found, &schema) {
            return Err(status(&changed()));
        }
        let limits = ResultLimits::new(&self.config);
        Ok(Messages::send(schema, rows, limits, run, permit))
    }
}

fn changed() -> Failure {
    let failure = Failure::new(ErrorCode::Data, "the columns have changed since the statement was planned");
    Failure { retryable: true, ..failure }.hint("run the statement again")
}

/// Starts a statement. With several rows of parameters, it runs once for each, and its results follow each other.
async fn start(
    service: Arc<dyn Service>,
    sql: Arc<str>,
    parameters: Option<RecordBatch>,
) -> Result<Answer, Failure> {
    let Some(parameters) = parameters else { return service.query(&query_of(&sql)).await };
    if parameters.num_rows() == 0 {
        return Err(Failure::new(ErrorCode::Sql, "the statement was sent no row of parameters"));
    }
    let first = service.execute(&sql, &parameters.slice(0, 1)).await?;
    if parameters.num_rows() == 1 {
        return Ok(first);
    }
    let schema = first.schema.clone();
    let rest = stream::iter(1..parameters.num_rows()).then(move |row| {
        let (service, sql, row) = (service.clone(), sql.clone(), parameters.slice(row, 1));
        let schema = schema.clone();
        async move {
            let answer = service.execute(&sql, &row).await?;
            if answer.schema.fields() == schema.fields() { Ok(answer.rows) } else { Err(changed()) }
        }
    });
    let rows: Rows = Box::pin(first.rows.chain(rest.try_flatten()));
    Ok(Answer::new(first.schema, None, rows))
}

/// Packs the answer to an action.
pub(crate) fn packed(message: &impl ProstMessageExt) -> Bytes {
    message.as_any().encode_to_vec().into()
}

#[tonic::async_trait]
impl FlightService for Front {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;

    /// The token was checked with the headers. The answer says how later requests show it.
    async fn handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        let bearer = self.gate.bearer(request.metadata().as_ref());
        let answer =
            HandshakeResponse { protocol_version: 0, payload: Bytes::copy_from_slice(bearer.as_bytes()) };
        let mut response = Response::new(stream::iter([Ok(answer)]).boxed());
        if let Ok(value) = MetadataValue::try_from(format!("Bearer {bearer}")) {
            response.metadata_mut().insert("authorization", value);
        }
        Ok(response)
    }

    async fn list_flights(
        &self,
        _request: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        Err(unsupported("there is no list of flights; ask for tables with CommandGetTables"))
    }

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.flight_info(request.into_inner()).await.map(Response::new)
    }

    /// Complete at once: nothing runs before the rows are fetched.
    async fn poll_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        let info = self.flight_info(request.into_inner()).await?;
        Ok(Response::new(PollInfo { info: Some(info), progress: Some(1.0), ..PollInfo::default() }))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let command = Command::of_descriptor(request.get_ref())?;
        let (columns, _) = self.described(&command).await?;
        let schema = schema_bytes(&columns).map_err(|failure| status(&failure))?;
        Ok(Response::new(SchemaResult { schema }))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let messages = match Command::of_ticket(request.get_ref())? {
            Command::Statement(statement) => self.results(statement).await?,
            Command::Metadata(metadata) => {
                let permit = self.admission.plan().await.map_err(|failure| status(&failure))?;
                let batch = self.metadata(metadata).await.map_err(|failure| status(&failure))?;
                let (schema, limits) = (batch.schema(), ResultLimits::new(&self.config));
                Messages::send(schema, Box::pin(stream::iter([Ok(batch)])), limits, None, Some(permit))
            }
        };
        Ok(Response::new(messages.boxed()))
    }

    async fn do_put(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        let result = self.put(request.into_inner()).await?;
        Ok(Response::new(stream::iter([Ok(PutResult { app_metadata: result })]).boxed()))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let results = self.act(request.into_inner()).await?;
        let results = results.into_iter().map(|body| Ok(arrow_flight::Result { body }));
        Ok(Response::new(stream::iter(results).boxed()))
    }

    async fn list_actions(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        Ok(Response::new(stream::iter(crate::actions::list().map(Ok)).boxed()))
    }

    async fn do_exchange(
        &self,
        _request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(unsupported("DoExchange is not supported"))
    }
}
