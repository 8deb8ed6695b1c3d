//! Tests of a server over a small service, with raw messages and with psql.

mod bad_input;
mod client;
mod copy;
mod extended;
mod limits;
mod lite;
mod psql;
mod service;
mod simple;

use std::net::SocketAddr;
use std::sync::Arc;

use lightship_pgserver::{PgConfig, PgServer};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use self::client::Client;
use self::service::Tables;

/// A server, until it is dropped.
struct TestServer {
    address: SocketAddr,
    tables: Arc<Tables>,
    stop: watch::Sender<bool>,
    /// `None` once it has ended.
    task: Option<tokio::task::JoinHandle<lightship_transport::Result<()>>>,
    runtime: Runtime,
}

impl TestServer {
    fn start() -> Self {
        Self::with(PgConfig::default())
    }

    fn with(config: PgConfig) -> Self {
        let runtime = Runtime::new().unwrap();
        let tables = Arc::new(Tables::default());
        let (stop, stopped) = watch::channel(false);
        let server = {
            let _guard = runtime.enter();
            PgServer::bind(([127, 0, 0, 1], 0).into(), config).unwrap()
        };
        let address = server.address();
        let task = Some(runtime.spawn(server.run(tables.clone(), stopped)));
        Self { address, tables, stop, task, runtime }
    }

    fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Stops it, and waits until it has ended.
    fn stop(&mut self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.take() {
            self.runtime.block_on(task).unwrap().unwrap();
        }
    }
}
