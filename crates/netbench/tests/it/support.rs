//! Servers for tests.

use std::sync::Arc;
use std::time::Duration;

use lightship_netbench::{Counters, Host, Server, ServerConfig, Settings, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const BRIEF: Settings =
    Settings { seconds: 0.15, latency_seconds: 0.15, both_ways: false, delay_ms: 0.0, nodelay: true };

/// A server that runs until this is stopped or dropped.
pub(crate) struct Running {
    pub(crate) address: String,
    pub(crate) counters: Arc<Counters>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn start(config: ServerConfig) -> Self {
        let server = Server::bind("127.0.0.1:0", config).await.expect("it listens");
        let address = server.local_address().expect("an address").to_string();
        let (stop, stopped) = oneshot::channel();
        let counters = server.counters();
        let task = tokio::spawn(server.serve(async {
            let _ = stopped.await;
        }));
        Self { address, counters, stop, task }
    }

    pub(crate) fn host(&self) -> Host {
        self.address.parse().expect("a host")
    }

    pub(crate) async fn target(&self) -> Target {
        Target::find(&self.host()).await.expect("it answers")
    }

    /// A connection to it, without a header.
    pub(crate) async fn raw(&self) -> Raw {
        Raw(TcpStream::connect(&self.address).await.expect("it listens"))
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        within(self.task).await.expect("no panic");
    }
}

/// A raw connection to a server.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        within(self.0.write_all(bytes)).await.expect("sent");
    }

    pub(crate) async fn receive<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        within(self.0.read_exact(&mut bytes)).await.expect("received");
        bytes
    }

    /// The bytes received until the server closes.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A connection closed with unread bytes is reset, which also ends it.
        let _ = within(self.0.read_to_end(&mut bytes)).await;
        bytes
    }
}

/// A header: mode, run, message size.
pub(crate) fn header(mode: u8, run: u64, message_bytes: u32) -> Vec<u8> {
    let numbers = [&run.to_le_bytes()[..], &message_bytes.to_le_bytes(), &[0; 12]].concat();
    [b"LSNB\x01", &[mode, 0, 0][..], &numbers].concat()
}

/// Waits for `work`, at most [`PATIENCE`].
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

/// Waits until `done` returns true.
pub(crate) async fn until(done: impl Fn() -> bool) {
    within(async {
        while !done() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
