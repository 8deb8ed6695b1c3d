//! datafusion-distributed's channel between workers, which is gRPC. Lightship's protocol is compared with it.

use std::net::{Ipv4Addr, SocketAddr};

use datafusion::error::{DataFusionError, Result};
use datafusion_distributed::grpc::DefaultChannelResolver;
use datafusion_distributed::{ChannelResolver, Worker, WorkerChannel};
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use url::Url;

/// A worker that serves gRPC, and the connections to other workers. All settings are the library's defaults.
pub(crate) struct Grpc {
    channels: DefaultChannelResolver,
    serving: JoinHandle<()>,
}

impl Grpc {
    /// Listens on all addresses, at the port after this node's own.
    pub(crate) fn serve(name: &str, worker: Worker) -> Result<Self> {
        let (_, port) = port(name)?;
        let incoming = TcpIncoming::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
        let server = Server::builder().add_service(worker.into_worker_server());
        // tonic sets this on sockets that it binds itself.
        let server = server.serve_with_incoming(incoming.with_nodelay(Some(true)));
        let serving = tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the gRPC server has failed");
            }
        });
        Ok(Self { channels: DefaultChannelResolver::default(), serving })
    }

    /// The channel to another node.
    pub(crate) async fn channel(&self, name: &str) -> Result<Box<dyn WorkerChannel>> {
        let (host, port) = port(name)?;
        let url = Url::parse(&format!("http://{host}:{port}"));
        let url = url.map_err(|error| DataFusionError::External(error.into()))?;
        self.channels.get_worker_client_for_url(&url).await
    }
}

impl Drop for Grpc {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The port at which a node is reached over gRPC: the one after its own.
fn port(name: &str) -> Result<(&str, u16)> {
    let (host, port) = name.rsplit_once(':').unwrap_or((name, ""));
    let port = port.parse::<u16>().ok().and_then(|port| port.checked_add(1));
    Ok((
        host,
        port.ok_or_else(|| {
            DataFusionError::Configuration(format!("{name}: gRPC needs the next port, which does not exist"))
        })?,
    ))
}
