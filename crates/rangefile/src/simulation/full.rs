//! Splits whose end can't be stored, because the disk is full, and nodes that go on when it has room again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::cases::{Gate, Holds, create, found, run, upsert};
use super::cluster::Cluster;
use super::rows;
use crate::RangeFile;
use crate::node::Node;
use crate::request::{RequestKind, WriteMode};

/// Two nodes, whose first one has sent a request of a split, but the second one does not have it yet.
async fn held_back(holds: Holds) -> (Cluster, RangeFile, Arc<Gate>) {
    let mut cluster = Cluster::new(2, 1, 10);
    cluster.start(1, 1).await;
    let (alive, dead) = watch::channel(true);
    let gate = Gate::new(cluster.network.from(&cluster.names[0], dead), holds);
    cluster.start_with(0, 7, alive, Arc::new(gate.clone())).recover().await;
    let file = create(&cluster).await.unwrap();
    upsert(&file, 0..11, "old").await;
    gate.arrived.notified().await;
    (cluster, file, gate)
}

/// The bucket splits once there is room: nobody needs to write to it, or to restart its node.
async fn has_split(cluster: &Cluster, file: &RangeFile) {
    sleep(Duration::from_secs(300)).await;
    for node in cluster.network.nodes() {
        assert_eq!(node.unsettled("t").await, 0, "{node:?}");
    }
    let (buckets, _) = file.buckets().await;
    assert_eq!(buckets.len(), 2, "{buckets:?}");
    assert!(buckets.iter().all(|bucket| bucket.records <= Some(10)), "{buckets:?}");
    assert_eq!(found(file).await.len(), 11);
}

#[test]
fn a_split_that_a_full_disk_interrupts_is_made_when_there_is_room() {
    run(async {
        let (cluster, file, gate) = held_back(|kind| matches!(kind, RequestKind::Receive(_))).await;
        cluster.disks[0].set_full(true);
        gate.pass.notify_one();
        sleep(Duration::from_secs(30)).await;
        file.write(WriteMode::Upsert, &rows(&[1], "new")).await.unwrap_err();
        cluster.disks[0].set_full(false);
        has_split(&cluster, &file).await;
    });
}

#[test]
fn a_split_is_confirmed_when_there_is_room() {
    run(async {
        let (cluster, file, gate) = held_back(|kind| matches!(kind, RequestKind::Activate(_))).await;
        cluster.disks[0].set_full(true);
        gate.pass.notify_one();
        sleep(Duration::from_secs(30)).await;
        assert_eq!(cluster.network.nodes()[0].unsettled("t").await, 1);
        cluster.disks[0].set_full(false);
        has_split(&cluster, &file).await;
    });
}

/// The disk of the new bucket's node is full when the keys become its own. This disk refuses every write, so that its database
/// can't even be read after the first one; others have room to open it.
#[test]
fn a_new_bucket_is_active_before_that_can_be_stored() {
    run(async {
        let (mut cluster, file, gate) = held_back(|kind| matches!(kind, RequestKind::Activate(_))).await;
        let is_active = |node: &Node| !node.buckets("t").is_empty();
        let write = async || file.write(WriteMode::Upsert, &rows(&[10], "new")).await;
        assert!(!is_active(&cluster.network.nodes()[1]));
        cluster.disks[1].set_full(true);
        gate.pass.notify_one();
        sleep(Duration::from_secs(30)).await;
        assert!(is_active(&cluster.network.nodes()[1]));
        let full = write().await.unwrap_err();
        assert!(full.to_string().contains("no storage space"), "{full}");
        // After a restart it learns of it again.
        cluster.crash(1, &mut fastrand::Rng::with_seed(1));
        let (alive, dead) = watch::channel(true);
        let network = cluster.network.from(&cluster.names[1], dead);
        let node = cluster.start_with(1, 9, alive, network);
        assert!(!is_active(&node));
        cluster.disks[1].set_full(true);
        node.recover().await;
        sleep(Duration::from_secs(30)).await;
        assert!(is_active(&node));
        cluster.disks[1].set_full(false);
        // Rows that are written before it was said again are stored with it.
        write().await.unwrap();
        cluster.crash(1, &mut fastrand::Rng::with_seed(2));
        cluster.start(1, 10).await;
        has_split(&cluster, &file).await;
        assert_eq!(found(&file).await[10], (10, "new".to_owned()));
    });
}

#[test]
fn a_node_that_starts_on_a_full_disk_ends_its_splits_when_there_is_room() {
    for holds in [(|kind| matches!(kind, RequestKind::Receive(_))) as Holds, |kind| {
        matches!(kind, RequestKind::Activate(_))
    }] {
        run(async move {
            let (mut cluster, file, _) = held_back(holds).await;
            cluster.crash(0, &mut fastrand::Rng::with_seed(1));
            let (alive, dead) = watch::channel(true);
            let network = cluster.network.from(&cluster.names[0], dead);
            let node = cluster.start_with(0, 8, alive, network);
            cluster.disks[0].set_full(true);
            node.recover().await;
            sleep(Duration::from_secs(30)).await;
            assert_eq!(node.unsettled("t").await, 1);
            cluster.disks[0].set_full(false);
            has_split(&cluster, &file).await;
        });
    }
}
