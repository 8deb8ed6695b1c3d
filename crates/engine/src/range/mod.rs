//! Range files of this node and its cluster, as tables.
//!
//! A table is planned from what the node knows of the buckets: each part of the plan has an interval of keys, and
//! runs on the node that has the bucket, as far as is known ([`scan`]). The rows come through the client of
//! `lightship-rangefile`, which finds buckets that have moved in the meantime: where a scan runs affects its speed,
//! never its result.

mod condition;
mod names;
pub(crate) mod scan;
pub(crate) mod table;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use lightship_rangefile::{
    ClientOptions, Connections, LONE_NODE, Network, Node, RangeError, RangeFile, Reply, Result,
};
use lightship_transport::net::{Answer, Caller, ClientConfig, Endpoint, Intake};
use lightship_wire::control::{ErrorCode, Failure};
use tokio::runtime::Handle;

pub(crate) use self::names::WithRangeFiles;
use crate::cluster::{Cluster, ClusterConfig};

/// The range files of a node.
pub(crate) struct RangeFiles {
    node: Node,
    network: Arc<dyn Network>,
    /// Tells which other nodes there are, once the node has joined its cluster.
    cluster: Arc<OnceLock<Weak<Cluster>>>,
    /// The files that were used, with what is known of their buckets.
    used: Mutex<HashMap<String, RangeFile>>,
}

impl std::fmt::Debug for RangeFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RangeFiles({:?})", self.node)
    }
}

impl RangeFiles {
    /// Opens the range files in a folder. `config` is that of the cluster, if the node is going to join one.
    ///
    /// # Errors
    /// If the folder can't be used.
    pub(crate) fn open(folder: &Path, config: Option<&ClusterConfig>) -> Result<Self> {
        let name = config.map_or(LONE_NODE, |config| &config.name).to_owned();
        let cluster: Arc<OnceLock<Weak<Cluster>>> = Arc::default();
        let (known, own) = (cluster.clone(), name.clone());
        let nodes = move || match known.get().and_then(Weak::upgrade) {
            Some(cluster) => cluster.range_nodes(),
            None => vec![own.clone()],
        };
        let client = config.map_or_else(ClientConfig::default, ClusterConfig::client);
        let tls = config.and_then(|config| config.tls.clone());
        let address = move |node: &str| match node.rsplit_once(':') {
            Some((host, port)) if let Ok(port) = port.parse() => {
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                Ok(Endpoint::Tcp { host, port, tls: tls.clone() })
            }
            _ => Err(Failure::new(ErrorCode::Peer, format!("{node} is not the address of a node"))),
        };
        let connections: Arc<dyn Network> = Arc::new(Connections::new(nodes, address, client));
        let node = Node::open(folder, &name, connections.clone(), fastrand::u64(..))?;
        let network =
            Arc::new(Here { name, node: node.clone(), others: connections, runtime: Handle::current() });
        Ok(Self { node, network, cluster, used: Mutex::default() })
    }

    /// No file is created with one of these names.
    pub(crate) fn reserve(&self, tables: impl IntoIterator<Item = String>) {
        self.node.reserve(tables);
    }

    /// The node has joined its cluster.
    pub(crate) fn joined(&self, cluster: &Arc<Cluster>) {
        // A node joins once.
        let _ = self.cluster.set(Arc::downgrade(cluster));
    }

    /// Ends splits that were interrupted when the node last ran.
    pub(crate) async fn recover(&self) {
        self.node.recover().await;
    }

    /// Answers a request of a client or of another node.
    pub(crate) async fn answer(&self, body: &[u8], caller: &Caller) -> Result<Answer, Failure> {
        self.node.answer(body, caller).await
    }

    /// Lets clients ask the node to connect to them: the server behind `intake` serves these connections.
    pub(crate) fn set_intake(&self, intake: Intake) {
        self.node.set_intake(intake);
    }

    /// The names of the files that this node knows.
    pub(crate) fn names(&self) -> Vec<String> {
        self.node.files()
    }

    /// A file that this node knows.
    ///
    /// # Errors
    /// [`RangeError::NoFile`], or that no node can be reached.
    pub(crate) async fn file(&self, name: &str) -> Result<RangeFile> {
        match self.node.files().iter().any(|known| known == name) {
            true => self.open_file(name).await,
            false => Err(RangeError::NoFile(name.to_owned())),
        }
    }

    /// A file that is in a plan: this node may not know it yet.
    ///
    /// # Errors
    /// As [`RangeFiles::file`].
    pub(crate) async fn open_file(&self, name: &str) -> Result<RangeFile> {
        let used = || self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let found = used().get(name).filter(|file| self.node.has(file)).cloned();
        if let Some(file) = found {
            return Ok(file);
        }
        let file = RangeFile::open(self.network.clone(), name, ClientOptions::default()).await?;
        let mut used = used();
        // Others may have been dropped.
        used.retain(|_, file| self.node.has(file));
        used.insert(name.to_owned(), file.clone());
        Ok(file)
    }
}

/// The network of this node's own client: requests to the node itself stay in the process.
struct Here {
    name: String,
    node: Node,
    others: Arc<dyn Network>,
    /// Where requests run: queries come from threads of their own, which they may occupy.
    runtime: Handle,
}

impl Network for Here {
    fn nodes(&self) -> Vec<String> {
        self.others.nodes()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        let asked = if node == self.name {
            let here = self.node.clone();
            self.runtime.spawn(async move { Ok(here.answer(&body, &Caller::default()).await?.into()) })
        } else {
            self.runtime.spawn(self.others.request(node, body))
        };
        async move { asked.await.unwrap_or(Err(RangeError::Closed)) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field, Schema};
    use lightship_rangefile::{Capacity, Definition};

    use super::*;

    #[tokio::test]
    async fn the_clients_of_dropped_files_are_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = RangeFiles::open(folder.path(), None).expect("range files");
        let columns = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
        for name in ["a", "b", "c"] {
            let definition =
                Definition::new(name, &columns, &["id".into()], Capacity::default()).expect("valid");
            let options = ClientOptions::default();
            RangeFile::create(files.network.clone(), &definition, options).await.expect("created");
            files.file(name).await.expect("a file");
            let used = files.used.lock().expect("no panic").keys().cloned().collect::<Vec<_>>();
            assert_eq!(used, [name]);
            RangeFile::drop_file(&files.network, name, options).await.expect("dropped");
        }
    }
}
