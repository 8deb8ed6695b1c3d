//! A node without an engine. It sends rows from memory unchanged, so that the protocol is measured and
//! not the query.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::stream;
use lightship_session::Failure;
use lightship_transport::net::{Answer, Listen, Server, ServerConfig, Service};
use lightship_wire::control::Query;
use tokio::sync::watch;

use super::print;
use crate::{Result, data};

/// Admits the largest messages that are tried.
const MESSAGE_BYTES_MAX: u32 = 256 << 20;

struct Table {
    schema: SchemaRef,
    batches: Arc<[RecordBatch]>,
}

impl Service for Table {
    fn query<'a>(
        &'a self,
        _query: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        let (schema, batches) = (self.schema.clone(), self.batches.clone());
        let rows_estimate = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        let rows = (0..batches.len()).map(move |at| Ok(batches[at].clone()));
        let answer = Answer::new(schema, Some(rows_estimate), Box::pin(stream::iter(rows)));
        Box::pin(async { Ok(answer) })
    }
}

/// Serves until it is killed.
pub(super) async fn run(file: &Path, batch_rows: usize) -> Result<()> {
    let (schema, batches) = data::read(file, batch_rows)?;
    let config =
        ServerConfig { insecure: true, message_bytes_max: MESSAGE_BYTES_MAX, ..ServerConfig::default() };
    let everywhere = Listen::Tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    let server = Server::bind(&[everywhere], config).await?;
    if let Some(Listen::Tcp(address)) = server.local()?.first() {
        print(&address.port())?;
    }
    // Held until the end: dropping the sender starts a shutdown.
    let (_alive, shutdown) = watch::channel(false);
    let service = Arc::new(Table { schema, batches: batches.into() });
    Ok(server.run(service, shutdown).await?)
}
