//! A service that counts what is asked of it, and servers and clients for it.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::{StreamExt, stream};
use lightship_transport::net::{
    Answer, ClientConfig, Connection, Delivery, Endpoint, Incoming, Listen, Prepared, Server, ServerConfig,
    Service,
};
use lightship_transport::{Result, TransportError};
use lightship_wire::control::{ErrorCode, Failure, Plan, Query, Reason};
use lightship_wire::frame::{FrameHeader, FrameKind};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Whatever has not happened by then will not happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Rows of each batch that the service makes: 8 KB.
pub(crate) const BATCH_ROWS: u64 = 1024;

/// Answers `BATCHES[ WORD]`: so many batches of numbers from 0 on, and then what
/// the word says: `fail`, `hang`, or nothing. `repeat` makes them numbers that only a
/// compressor of bytes can make small.
#[derive(Default)]
pub(crate) struct Numbers {
    /// Batches made so far, for all queries.
    pub(crate) made: AtomicU64,
    /// Results that were dropped, whole or not.
    pub(crate) dropped: watch::Sender<u64>,
    /// Of the last answer.
    pub(crate) delivery: Mutex<Arc<Delivery>>,
}

/// Tells when a result is dropped.
struct Guard(Arc<Numbers>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.dropped.send_modify(|count| *count += 1);
    }
}

/// The service that a server holds; a test holds the same numbers.
struct Shared(Arc<Numbers>);

impl Service for Shared {
    fn query<'a>(
        &'a self,
        query: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            let (count, then) = query.sql.split_once(' ').unwrap_or((&query.sql, ""));
            let refuse = |_| Failure {
                position: Some((1, 1)),
                ..Failure::new(ErrorCode::Sql, "no number").because(Reason::Syntax)
            };
            let count: u64 = count.parse().map_err(refuse)?;
            let guard = Guard(self.0.clone());
            let make = if then == "repeat" { repeating } else { batch };
            let rows = stream::iter(0..count).map(move |n| {
                guard.0.made.fetch_add(1, Ordering::Relaxed);
                Ok(make(n))
            });
            let rows = match then {
                "fail" => {
                    let failure = Failure::new(ErrorCode::Source, "the disk has gone").hint("find it");
                    rows.chain(stream::iter([Err(failure)])).boxed()
                }
                "hang" => rows.chain(stream::pending()).boxed(),
                _ => rows.boxed(),
            };
            let answer = Answer::new(schema(), Some(count * BATCH_ROWS), rows);
            *self.0.delivery.lock().unwrap() = answer.delivery.clone();
            Ok(answer)
        })
    }

    /// The number of batches is the first parameter.
    fn execute<'a>(
        &'a self,
        sql: &'a str,
        parameters: &'a RecordBatch,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            let count = parameters.column(0).as_primitive::<Int64Type>().value(0);
            let query = Query { sql: format!("{count} {sql}"), plan: Plan::default() };
            self.query(&query).await
        })
    }

    fn prepare<'a>(
        &'a self,
        sql: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Prepared, Failure>> + Send + 'a>> {
        Box::pin(async move {
            if sql == "fail" {
                return Err(Failure::new(ErrorCode::Sql, "no number"));
            }
            let parameters = Schema::new(vec![Field::new("$1", DataType::Int64, true)]);
            Ok(Prepared {
                columns: schema(),
                parameters: parameters.into(),
                is_update: false,
                is_ordered: true,
            })
        })
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]))
}

fn batch(n: u64) -> RecordBatch {
    let first = (n * BATCH_ROWS) as i64;
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + BATCH_ROWS as i64));
    RecordBatch::try_new(schema(), vec![column]).expect("columns follow the schema")
}

/// The same few thousand numbers of 40 bits over and over.
fn repeating(n: u64) -> RecordBatch {
    let rows = n * BATCH_ROWS..(n + 1) * BATCH_ROWS;
    let scattered = |row: u64| ((row % 2000 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24) as i64;
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.map(scattered)));
    RecordBatch::try_new(schema(), vec![column]).expect("columns follow the schema")
}

/// A server on a port of its own.
pub(crate) struct Running {
    pub(crate) endpoint: Endpoint,
    pub(crate) service: Arc<Numbers>,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) ended: JoinHandle<Result<()>>,
}

impl Running {
    pub(crate) async fn start(config: ServerConfig) -> Self {
        Self::start_at(Listen::Tcp(([127, 0, 0, 1], 0).into()), config).await
    }

    pub(crate) async fn start_at(listen: Listen, config: ServerConfig) -> Self {
        let server = Server::bind(&[listen], config).await.expect("an address");
        Self::of(server)
    }

    /// One that does not listen is at no path.
    pub(crate) fn of(server: Server) -> Self {
        let endpoint = match server.local().expect("an address").first() {
            Some(Listen::Tcp(address)) => {
                Endpoint::Tcp { host: address.ip().to_string(), port: address.port(), tls: None }
            }
            Some(Listen::Unix(path)) => Endpoint::Unix(path.clone()),
            None => Endpoint::Unix("/nowhere".into()),
        };
        let service = Arc::<Numbers>::default();
        let (stop, stopped) = watch::channel(false);
        let ended = tokio::spawn(server.run(Arc::new(Shared(service.clone())), stopped));
        Self { endpoint, service, stop, ended }
    }

    pub(crate) async fn connect(&self) -> Connection {
        self.try_connect(&ClientConfig::default()).await.expect("a connection")
    }

    pub(crate) async fn try_connect(&self, config: &ClientConfig) -> Result<Connection> {
        within(Connection::connect(&self.endpoint, config)).await
    }

    /// Waits until so many results have been dropped.
    pub(crate) async fn dropped(&self, count: u64) {
        let mut dropped = self.service.dropped.subscribe();
        within(dropped.wait_for(|&found| found >= count)).await.expect("the service is there");
    }

    pub(crate) fn made(&self) -> u64 {
        self.service.made.load(Ordering::Relaxed)
    }
}

/// No test waits for ever.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("it happens in time")
}

/// A plan of messages of one batch of the service each, so many on their way.
pub(crate) fn plan(window_batches: u32) -> Plan {
    Plan { message_bytes: 9 << 10, batch_bytes: 9 << 10, window_batches, ..Plan::default() }
}

pub(crate) async fn ask(connection: &mut Connection, sql: &str, plan: Plan) -> Result<()> {
    let (found, _) = within(connection.query(&Query { sql: sql.into(), plan }, plan.streams)).await?;
    assert_eq!(found, schema());
    Ok(())
}

/// Takes rows to the end, or so many at least, and checks that they are the next ones.
pub(crate) async fn take(connection: &mut Connection, first: u64, rows_max: u64) -> Result<u64> {
    let mut rows = first;
    while rows < rows_max {
        match within(connection.next()).await? {
            Incoming::Rows(batch) => {
                let values = batch.column(0).as_primitive::<Int64Type>();
                assert!(values.values().iter().zip(rows as i64..).all(|(&found, wanted)| found == wanted));
                rows += batch.num_rows() as u64;
            }
            Incoming::Finished(totals) => {
                assert_eq!(totals.rows, rows);
                break;
            }
        }
    }
    Ok(rows)
}

/// Asks for so many batches, and gets them all.
pub(crate) async fn whole(connection: &mut Connection, batches: u64, plan: Plan) {
    ask(connection, &batches.to_string(), plan).await.expect("an answer");
    assert_eq!(take(connection, 0, u64::MAX).await.expect("rows"), batches * BATCH_ROWS);
}

pub(crate) fn code(error: &TransportError) -> Option<ErrorCode> {
    match error {
        TransportError::Failed(failure) => Some(failure.code),
        _ => None,
    }
}

/// A frame as a peer of any intention sends it.
pub(crate) fn frame(kind: FrameKind, flags: u16, stream: u32, sequence: u32, payload: &[u8]) -> Vec<u8> {
    [&FrameHeader::whole(kind, flags, stream, sequence, payload).encode(), payload].concat()
}
