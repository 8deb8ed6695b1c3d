//! A way to a node that a test can make slow, or cut without a word.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::Node;

/// What it does with what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// All goes on at once.
    Open,
    /// As much goes on as is granted.
    Granted,
    /// Nothing is read, and nothing closed: packets that are lost.
    Silent,
}

/// Stands before a node. The others know the node by the proxy's address, and so all that they ask of it,
/// and its answers, come by here; what the node asks of others does not.
pub(crate) struct Proxy {
    /// The name of the node behind it.
    pub(crate) name: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    pace: watch::Sender<Pace>,
    target: watch::Sender<Option<SocketAddr>>,
    granted: Semaphore,
    /// Bytes that have gone from the node to those who asked.
    answered: AtomicU64,
}

impl Proxy {
    /// Listens; what connects waits until there is a node.
    pub(crate) async fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            pace: watch::Sender::new(Pace::Open),
            target: watch::Sender::new(None),
            granted: Semaphore::new(0),
            answered: AtomicU64::new(0),
        });
        let task = tokio::spawn(serve(listener, shared.clone()));
        Self { name, shared, task }
    }

    /// The node that is behind it.
    pub(crate) fn lead_to(&self, node: &Node) {
        self.shared.target.send_replace(Some(node.address));
    }

    /// All goes on again, with what has waited.
    pub(crate) fn open(&self) {
        self.shared.pace.send_replace(Pace::Open);
    }

    /// From now on, nothing passes.
    pub(crate) fn silence(&self) {
        self.shared.pace.send_replace(Pace::Silent);
    }

    /// From now on, as many bytes pass as [`Proxy::grant`] says.
    pub(crate) fn hold(&self) {
        self.shared.pace.send_replace(Pace::Granted);
    }

    /// So many more bytes pass, of all connections together.
    pub(crate) fn grant(&self, bytes: usize) {
        self.shared.granted.add_permits(bytes);
    }

    /// Bytes that have gone from the node to those who asked.
    pub(crate) fn answered_bytes(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connections end with it.
async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        shared.passes().await;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.silenced() => continue,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        let Ok((near, _)) = accepted else { continue };
        connections.spawn(carry(near, shared.clone()));
    }
}

async fn carry(near: TcpStream, shared: Arc<Shared>) {
    let mut target = shared.target.subscribe();
    let Ok(Some(address)) = target.wait_for(Option::is_some).await.map(|address| *address) else { return };
    let Ok(far) = TcpStream::connect(address).await else { return };
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    tokio::join!(shared.pump(near_read, far_write, false), shared.pump(far_read, near_write, true));
}

impl Shared {
    /// Waits until something may pass.
    async fn passes(&self) {
        // The sender is its own: it can't have gone.
        let _ = self.pace.subscribe().wait_for(|pace| *pace != Pace::Silent).await;
    }

    async fn silenced(&self) {
        let _ = self.pace.subscribe().wait_for(|pace| *pace == Pace::Silent).await;
    }

    /// To the end of what there is to read, or until nobody takes it.
    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, answers: bool) {
        let mut buffer = vec![0; 4 << 10];
        loop {
            self.passes().await;
            let read = tokio::select! {
                biased;
                () = self.silenced() => continue,
                read = from.read(&mut buffer) => read,
            };
            let Ok(count @ 1..) = read else { break };
            let mut pace = self.pace.subscribe();
            loop {
                let now = *pace.borrow_and_update();
                let may_pass = async {
                    match now {
                        Pace::Open => {}
                        Pace::Silent => std::future::pending().await,
                        Pace::Granted => {
                            self.granted.acquire_many(count as u32).await.expect("never closed").forget();
                        }
                    }
                };
                tokio::select! {
                    biased;
                    () = may_pass => break,
                    _ = pace.changed() => {}
                }
            }
            if answers {
                self.answered.fetch_add(count as u64, Ordering::Relaxed);
            }
            if to.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    }
}
