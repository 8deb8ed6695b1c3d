//! Nodes behind servers on this host, and clients that reach them by TCP.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lightship_rangefile::{
    Capacity, ClientOptions, Connections, Definition, Network, Node, RangeError, RangeFile,
};
use lightship_testkit::loopback;
use lightship_transport::TransportError;
use lightship_transport::net::{
    Answer, Caller, ClientConfig, Endpoint, Intake, Listen, Server, ServerConfig, Service,
};
use lightship_wire::cluster::Task;
use lightship_wire::control::{ErrorCode, Failure, Query};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::{options, schema};

type Answering<'a> = Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>>;

struct RangeService(Node);

impl Service for RangeService {
    fn query<'a>(&'a self, _: &'a Query) -> Answering<'a> {
        Box::pin(async { Err(Failure::new(ErrorCode::Sql, "no tables")) })
    }

    fn task<'a>(&'a self, task: &'a Task, caller: &'a Caller) -> Answering<'a> {
        Box::pin(self.0.answer(&task.body, caller))
    }

    fn has_range_files(&self) -> bool {
        true
    }

    fn beside<'a>(&'a self, intake: Intake) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.0.set_intake(intake);
        Box::pin(async {})
    }
}

struct Running {
    stop: watch::Sender<bool>,
    ended: JoinHandle<()>,
}

/// Binds an address on which a stopped node listened: a process that another test is starting has the
/// node's listener too, until its program begins.
async fn when_free<T>(bind: impl AsyncFn() -> io::Result<T>) -> T {
    loop {
        match bind().await {
            Ok(bound) => return bound,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Nodes with their folders and ports.
pub(crate) struct Sockets {
    host: Ipv4Addr,
    names: Arc<Mutex<Vec<String>>>,
    folders: Vec<TempDir>,
    running: Vec<Option<Running>>,
    starts: u64,
}

impl Sockets {
    pub(crate) async fn start(nodes: usize) -> Self {
        let (names, folders, running) = Default::default();
        let mut sockets = Self { host: loopback::own_host(), names, folders, running, starts: 0 };
        for node in 0..nodes {
            sockets.folders.push(tempfile::tempdir().unwrap());
            sockets.running.push(None);
            sockets.begin(node).await;
        }
        sockets
    }

    /// Starts a node, at the port that it had before.
    pub(crate) async fn begin(&mut self, node: usize) {
        let known = self.names.lock().unwrap().get(node).cloned();
        let anywhere = SocketAddr::from((self.host, 0));
        let address = known.as_ref().map_or(anywhere, |name| name.parse().unwrap());
        let config = ServerConfig {
            peer_token: Some(String::new()),
            shutdown_grace: Duration::ZERO,
            ..ServerConfig::default()
        };
        let bind = async || match Server::bind(&[Listen::Tcp(address)], config.clone()).await {
            Err(TransportError::Listen { source, .. }) => Err(source),
            bound => bound.map_err(io::Error::other),
        };
        let server = when_free(bind).await;
        let Some(Listen::Tcp(address)) = server.local().unwrap().pop() else { panic!("a TCP address") };
        if known.is_none() {
            self.names.lock().unwrap().push(address.to_string());
        }
        let network = self.network(ClientConfig { peer: true, ..ClientConfig::default() });
        let opened = loop {
            // What the node was doing when it was stopped may still hold its disk.
            self.starts += 1;
            let folder = self.folders[node].path();
            match Node::open(folder, &address.to_string(), network.clone(), self.starts) {
                Ok(node) => break node,
                Err(RangeError::InUse(_)) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        let (stop, shutdown) = watch::channel(false);
        let service = Arc::new(RangeService(opened.clone()));
        let ended = tokio::spawn(async move { server.run(service, shutdown).await.unwrap() });
        self.running[node] = Some(Running { stop, ended });
        opened.recover().await;
    }

    /// Stops a node in the middle of what it is sending.
    pub(crate) async fn stop(&mut self, node: usize) {
        if let Some(Running { stop, ended }) = self.running[node].take() {
            stop.send(true).unwrap();
            ended.await.unwrap();
        }
    }

    /// Stops a node, and takes its connections from then on without a word. Returns its name.
    pub(crate) async fn silence(&mut self, node: usize) -> String {
        self.stop(node).await;
        let name = self.names.lock().unwrap()[node].clone();
        let listener = when_free(async || tokio::net::TcpListener::bind(&name).await).await;
        tokio::spawn(async move {
            let mut taken = Vec::new();
            loop {
                taken.push(listener.accept().await.unwrap());
            }
        });
        name
    }

    fn network(&self, config: ClientConfig) -> Arc<dyn Network> {
        let names = self.names.clone();
        let address = |node: &str| {
            let (host, port) = node.rsplit_once(':').unwrap();
            Ok(Endpoint::Tcp { host: host.to_owned(), port: port.parse().unwrap(), tls: None })
        };
        Arc::new(Connections::new(move || names.lock().unwrap().clone(), address, config))
    }

    pub(crate) async fn create(&self, name: &str, capacity: Capacity) -> RangeFile {
        let definition = Definition::new(name, &schema(), &["id".into()], capacity).unwrap();
        RangeFile::create(self.network(ClientConfig::default()), &definition, options()).await.unwrap()
    }

    /// Opens the file as a client that knows nothing of its buckets but what the first node knows.
    pub(crate) async fn open(&self, name: &str, options: ClientOptions, shared_memory: bool) -> RangeFile {
        let config = ClientConfig { shared_memory, ..ClientConfig::default() };
        RangeFile::open(self.network(config), name, options).await.unwrap()
    }
}
