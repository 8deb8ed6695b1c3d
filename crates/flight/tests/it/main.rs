//! Tests the server with arrow-flight's own client.

mod divided;
mod hostile;
mod limits;
mod metadata;
mod prepared;
mod queries;
mod security;
mod service;
mod writes;

use std::net::SocketAddr;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::FlightInfo;
use arrow_flight::error::FlightError;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_schema::{Schema, SchemaRef};
use futures::TryStreamExt;
use lightship_flight::{FlightConfig, FlightServer};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use service::Demo;

type Client = FlightSqlServiceClient<Channel>;

/// A server, until it is dropped or stopped.
struct Running {
    service: Arc<Demo>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<lightship_transport::Result<()>>,
}

impl Running {
    async fn new(config: FlightConfig) -> Self {
        let server = FlightServer::bind(([127, 0, 0, 1], 0).into(), config).await.unwrap();
        let (address, service) = (server.address().unwrap(), Arc::new(Demo::new()));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(server.run(service.clone(), stopped));
        Self { service, address, stop, task }
    }

    async fn open() -> (Self, Client) {
        let running = Self::new(FlightConfig::default()).await;
        let client = running.client().await;
        (running, client)
    }

    async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    async fn client(&self) -> Client {
        FlightSqlServiceClient::new(self.channel().await)
    }

    async fn stop(self) {
        self.stop.send(true).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

/// The status in an error.
fn status(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        other => panic!("{other}"),
    }
}

/// Fetches all rows of a result, and checks that its columns are the announced ones.
async fn fetch(client: &mut Client, info: FlightInfo) -> Result<(SchemaRef, Vec<RecordBatch>), FlightError> {
    let announced = info.clone().try_decode_schema().unwrap();
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let mut rows = client.do_get(ticket).await?;
    let mut batches = Vec::new();
    while let Some(batch) = rows.try_next().await? {
        batches.push(batch);
    }
    let schema = rows.schema().cloned().unwrap();
    assert_eq!(schema.as_ref(), &announced);
    Ok((schema, batches))
}

/// The rows of a statement, as one batch.
async fn query(client: &mut Client, sql: &str) -> Result<RecordBatch, FlightError> {
    let info = client.execute(sql.to_owned(), None).await?;
    let (schema, batches) = fetch(client, info).await?;
    Ok(arrow_select::concat::concat_batches(&schema, &batches).unwrap())
}

/// Waits until something is so, or fails.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..500 {
        if is_so() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("not in time: {what}");
}

fn names(schema: &Schema) -> Vec<&str> {
    schema.fields().iter().map(|field| field.name().as_str()).collect()
}
