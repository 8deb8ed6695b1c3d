//! Nodes with disks that lose power, on a simulated network.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::Int64Array;
use tokio::sync::watch;
use tokio::time::sleep;

use super::definition;
use super::disk::Disk;
use super::network::Simulated;
use crate::{ClientOptions, Grouping, Interval, Network, Node, RangeFile};

/// Nodes with their disks.
pub(super) struct Cluster {
    pub(super) network: Arc<Simulated>,
    pub(super) names: Vec<String>,
    pub(super) disks: Vec<Disk>,
    /// Of the nodes that run.
    alive: Vec<Option<watch::Sender<bool>>>,
}

impl Cluster {
    pub(super) fn new(nodes: usize, seed: u64, capacity: u64) -> Self {
        let names: Vec<String> = (0..nodes).map(|node| format!("node-{node}:1")).collect();
        let network = Simulated::new(seed, definition(capacity), &names);
        let disks = (0..nodes).map(|_| Disk::default()).collect();
        Self { network, names, disks, alive: (0..nodes).map(|_| None).collect() }
    }

    pub(super) async fn start(&mut self, node: usize, seed: u64) {
        let (alive, dead) = watch::channel(true);
        let network = self.network.from(&self.names[node], dead);
        let opened = self.start_with(node, seed, alive, network);
        opened.recover().await;
    }

    /// Starts a node on a network of its own. It does not recover yet.
    pub(super) fn start_with(
        &mut self,
        node: usize,
        seed: u64,
        alive: watch::Sender<bool>,
        network: Arc<dyn Network>,
    ) -> Node {
        let opened = Node::on(self.disks[node].clone(), &self.names[node], network, seed).expect("a node");
        self.network.connect(&self.names[node], opened.clone(), alive.subscribe());
        self.alive.resize_with(self.disks.len(), || None);
        self.alive[node] = Some(alive);
        opened
    }

    pub(super) fn crash(&mut self, node: usize, random: &mut fastrand::Rng) {
        self.network.disconnect(&self.names[node]);
        let alive = self.alive[node].take().expect("a node");
        // The disk first: what happens from now on is not acknowledged.
        self.disks[node] = self.disks[node].lose_power(random);
        let _ = alive.send(false);
    }

    pub(super) async fn client(&self, name: &str, grouping: Grouping) -> RangeFile {
        let (_, forever) = watch::channel(true);
        let network = self.network.from(name, forever);
        loop {
            let options = ClientOptions { grouping, ..ClientOptions::default() };
            if let Ok(file) = RangeFile::open(network.clone(), "t", options).await {
                return file;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Cluster {
    /// The nodes have the network, and it has them.
    fn drop(&mut self) {
        self.names.iter().for_each(|name| self.network.disconnect(name));
    }
}

pub(super) fn bound(file: &RangeFile, id: i64) -> Vec<u8> {
    file.definition().format().key(&[Arc::new(Int64Array::from(vec![id]))]).expect("a key")
}

pub(super) fn interval(file: &RangeFile, ids: &std::ops::Range<i64>) -> Interval {
    Interval::new(bound(file, ids.start), Some(bound(file, ids.end)))
}
