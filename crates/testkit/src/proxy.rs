//! A proxy before a node, which a test can slow down, silence or cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

/// What the proxy does with the bytes that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Everything passes at once.
    Open,
    /// Only granted bytes pass.
    Granted,
    /// Nothing is read and nothing is closed, as if packets were lost.
    Silent,
    /// All connections are closed, new ones too.
    Cut,
}

/// A proxy before a node. Other nodes know the node by the proxy's address, so their requests to it and its
/// answers go through the proxy. The node's own requests to others do not.
pub struct Proxy {
    /// The name of the node behind it.
    pub name: String,
    shared: Arc<ProxyState>,
    task: JoinHandle<()>,
}

struct ProxyState {
    pace: watch::Sender<Pace>,
    target: watch::Sender<Option<SocketAddr>>,
    granted: Semaphore,
    /// Bytes that the node has sent to those that connected.
    answered: AtomicU64,
}

impl Proxy {
    /// Starts to listen. Connections wait until [`Proxy::lead_to`] names the node.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let name = listener.local_addr().expect("bound").to_string();
        let shared = Arc::new(ProxyState {
            pace: watch::Sender::new(Pace::Open),
            target: watch::Sender::new(None),
            granted: Semaphore::new(0),
            answered: AtomicU64::new(0),
        });
        let task = tokio::spawn(serve(listener, shared.clone()));
        Self { name, shared, task }
    }

    /// Sets the node behind the proxy.
    pub fn lead_to(&self, node: SocketAddr) {
        self.shared.target.send_replace(Some(node));
    }

    /// Closes all connections from now on.
    pub fn cut(&self) {
        self.shared.pace.send_replace(Pace::Cut);
    }

    /// Lets everything pass again, including the bytes that have waited.
    pub fn open(&self) {
        self.shared.pace.send_replace(Pace::Open);
    }

    /// Lets nothing pass from now on.
    pub fn silence(&self) {
        self.shared.pace.send_replace(Pace::Silent);
    }

    /// Lets only as many bytes pass from now on as [`Proxy::grant`] allows.
    pub fn hold(&self) {
        self.shared.pace.send_replace(Pace::Granted);
    }

    /// Lets this many more bytes pass, over all connections together.
    pub fn grant(&self, bytes: usize) {
        self.shared.granted.add_permits(bytes);
    }

    /// Bytes that the node has sent to those that connected.
    pub fn answered_bytes(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts connections. They end with this task.
async fn serve(listener: TcpListener, shared: Arc<ProxyState>) {
    let mut connections = JoinSet::new();
    loop {
        shared.passes().await;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.is(Pace::Silent) => continue,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        let Ok((near, _)) = accepted else { continue };
        connections.spawn(carry(near, shared.clone()));
    }
}

async fn carry(near: TcpStream, shared: Arc<ProxyState>) {
    let mut target = shared.target.subscribe();
    let Ok(Some(address)) = target.wait_for(Option::is_some).await.map(|address| *address) else { return };
    let Ok(far) = TcpStream::connect(address).await else { return };
    if near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).is_err() {
        return;
    }
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    let both = async {
        tokio::join!(shared.pump(near_read, far_write, false), shared.pump(far_read, near_write, true))
    };
    tokio::select! {
        _ = both => {}
        () = shared.is(Pace::Cut) => {}
    }
}

impl ProxyState {
    /// Waits until the proxy is not silent.
    async fn passes(&self) {
        // It can't fail: `self` holds the sender.
        let _ = self.pace.subscribe().wait_for(|pace| *pace != Pace::Silent).await;
    }

    async fn is(&self, wanted: Pace) {
        let _ = self.pace.subscribe().wait_for(|pace| *pace == wanted).await;
    }

    /// Copies until `from` ends or `to` accepts no more.
    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, answers: bool) {
        let mut buffer = vec![0; 4 << 10];
        loop {
            self.passes().await;
            let read = tokio::select! {
                biased;
                () = self.is(Pace::Silent) => continue,
                read = from.read(&mut buffer) => read,
            };
            let Ok(count @ 1..) = read else { break };
            let mut pace = self.pace.subscribe();
            loop {
                let now = *pace.borrow_and_update();
                let may_pass = async {
                    match now {
                        Pace::Open | Pace::Cut => {}
                        Pace::Silent => std::future::pending().await,
                        Pace::Granted => {
                            let granted = self.granted.acquire_many(count as u32).await;
                            granted.expect("never closed").forget();
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
