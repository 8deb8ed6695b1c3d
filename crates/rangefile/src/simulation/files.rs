//! Files that are created and dropped while some nodes are away.

use std::sync::Arc;
use std::time::Duration;

use lightship_transport::net::Caller;
use tokio::sync::watch;
use tokio::time::sleep;

use super::cases::{Gate, client, create, found, run, started, upsert};
use super::cluster::Cluster;
use super::histories::settle;
use super::network::Break;
use crate::network::{ask, body, tell};
use crate::request::{Directory, FileName, Locate, RequestKind};
use crate::{ClientOptions, RangeFile};

/// What a client is answered that asks one node for the file.
async fn located(cluster: &Cluster, node: usize) -> crate::Result<Vec<Directory>> {
    let locate = Locate { file: "t".into(), ..Locate::default() };
    ask(&client(cluster), &cluster.names[node], RequestKind::Locate(locate)).await
}

#[test]
fn a_node_that_joins_later_knows_the_files() {
    run(async {
        let mut cluster = Cluster::new(3, 1, 100);
        cluster.start(0, 1).await;
        let file = create(&cluster).await.unwrap();
        upsert(&file, [1], "old").await;
        cluster.start(1, 2).await;
        assert_eq!(cluster.network.nodes()[1].files(), ["t"]);
        // Also from a node that was not there either when it was created.
        cluster.crash(0, &mut fastrand::Rng::with_seed(1));
        cluster.start(2, 3).await;
        assert_eq!(cluster.network.nodes()[1].files(), ["t"]);
        cluster.start(0, 4).await;
        assert_eq!(found(&file).await, [(1, "old".to_owned())]);
    });
}

#[test]
fn a_node_that_could_not_be_told_of_a_file_finds_it_when_it_is_asked() {
    run(async {
        let cluster = started(2, 100).await;
        cluster.network.part(&cluster.names[0], &cluster.names[1], Break::Fails);
        create(&cluster).await.unwrap();
        located(&cluster, 1).await.unwrap_err();
        cluster.network.heal();
        assert_eq!(located(&cluster, 1).await.unwrap().len(), 1);
        assert_eq!(cluster.network.nodes()[1].files(), ["t"]);
    });
}

#[test]
fn a_node_that_could_not_be_told_of_a_file_learns_of_it_later() {
    run(async {
        let cluster = started(2, 100).await;
        // Until it has compared itself with all others.
        sleep(Duration::from_secs(60)).await;
        cluster.network.part(&cluster.names[0], &cluster.names[1], Break::Fails);
        create(&cluster).await.unwrap();
        sleep(Duration::from_secs(120)).await;
        assert!(cluster.network.nodes()[1].files().is_empty());
        cluster.network.heal();
        sleep(Duration::from_secs(120)).await;
        assert_eq!(cluster.network.nodes()[1].files(), ["t"]);
    });
}

/// A file with buckets on both nodes is dropped while the second one is not in the cluster.
async fn dropped_without_the_second(cluster: &mut Cluster) {
    let file = create(cluster).await.unwrap();
    upsert(&file, 0..100, "old").await;
    while cluster.network.nodes()[1].buckets("t").is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    settle(cluster).await;
    cluster.crash(1, &mut fastrand::Rng::with_seed(1));
    cluster.network.remove(&cluster.names[1]);
    RangeFile::drop_file(&client(cluster), "t", ClientOptions::default()).await.unwrap();
}

#[test]
fn a_file_that_was_dropped_while_a_node_was_away_does_not_come_back_with_it() {
    run(async {
        let mut cluster = started(2, 10).await;
        dropped_without_the_second(&mut cluster).await;
        cluster.start(1, 7).await;
        sleep(Duration::from_secs(300)).await;
        assert!(cluster.network.nodes().iter().all(|node| node.files().is_empty()));
        assert!(cluster.network.nodes()[1].buckets("t").is_empty());
        let file = create(&cluster).await.unwrap();
        assert_eq!(found(&file).await, []);
    });
}

#[test]
fn a_node_that_was_away_learns_of_another_file_of_the_same_name() {
    run(async {
        let mut cluster = started(2, 10).await;
        dropped_without_the_second(&mut cluster).await;
        let file = create(&cluster).await.unwrap();
        upsert(&file, [1], "new").await;
        cluster.start(1, 7).await;
        assert_eq!(cluster.network.nodes()[1].files(), ["t"]);
        assert!(cluster.network.nodes()[1].buckets("t").is_empty());
        let located = located(&cluster, 1).await.unwrap();
        assert_eq!(&located[0].file, file.record());
        assert_eq!(found(&file).await, [(1, "new".to_owned())]);
    });
}

/// A third node learns of the file before the one that was away knows that it was dropped.
#[test]
fn a_dropped_file_that_others_have_learned_of_is_forgotten_by_all() {
    run(async {
        let mut cluster = started(2, 10).await;
        dropped_without_the_second(&mut cluster).await;
        let names = cluster.names.clone();
        cluster.names.push("node-2:1".into());
        cluster.disks.push(super::disk::Disk::default());
        cluster.network.part(&names[0], &names[1], Break::Fails);
        cluster.start(1, 7).await;
        cluster.start(2, 8).await;
        assert_eq!(cluster.network.nodes()[2].files(), ["t"]);
        cluster.network.heal();
        sleep(Duration::from_secs(3600)).await;
        assert!(cluster.network.nodes().iter().all(|node| node.files().is_empty()));
    });
}

#[test]
fn a_file_is_dropped_by_a_node_that_does_not_know_it() {
    run(async {
        let cluster = started(2, 100).await;
        cluster.network.part(&cluster.names[0], &cluster.names[1], Break::Fails);
        create(&cluster).await.unwrap();
        cluster.network.heal();
        let dropping = || RequestKind::Drop(FileName { name: "t".into(), ..FileName::default() });
        tell(&client(&cluster), &cluster.names[1], dropping()).await.unwrap();
        assert!(cluster.network.nodes()[0].files().is_empty());
        let again = tell(&client(&cluster), &cluster.names[1], dropping()).await.unwrap_err();
        assert!(again.to_string().contains("there is no range file t"), "{again}");
    });
}

#[test]
fn a_late_drop_leaves_another_file_of_the_same_name() {
    run(async {
        let mut cluster = Cluster::new(2, 1, 100);
        cluster.start(1, 1).await;
        let (alive, dead) = watch::channel(true);
        let network = cluster.network.from(&cluster.names[0], dead);
        let gate = Gate::new(network, |kind| matches!(kind, RequestKind::Drop(_)));
        cluster.start_with(0, 7, alive, Arc::new(gate.clone())).recover().await;
        create(&cluster).await.unwrap();
        let drop_by = |node: usize| {
            let (network, node) = (client(&cluster), cluster.names[node].clone());
            let dropping = FileName { name: "t".into(), ..FileName::default() };
            async move { tell(&network, &node, RequestKind::Drop(dropping)).await }
        };
        let late = tokio::spawn(drop_by(0));
        gate.arrived.notified().await;
        drop_by(1).await.unwrap();
        let file = create(&cluster).await.unwrap();
        upsert(&file, [1], "new").await;
        gate.pass.notify_one();
        late.await.unwrap().unwrap();
        assert!(cluster.network.nodes().iter().all(|node| node.files() == ["t"]));
        // Nor does a node learn later that it was dropped.
        sleep(Duration::from_secs(300)).await;
        assert_eq!(found(&file).await, [(1, "new".to_owned())]);
    });
}

#[test]
fn a_node_that_did_not_know_a_file_remembers_that_it_was_dropped() {
    run(async {
        let cluster = started(2, 100).await;
        cluster.network.part(&cluster.names[0], &cluster.names[1], Break::Fails);
        let file = create(&cluster).await.unwrap();
        cluster.network.heal();
        RangeFile::drop_file(&client(&cluster), "t", ClientOptions::default()).await.unwrap();
        let late = Directory { file: file.record().clone(), ..Directory::default() };
        for node in cluster.network.nodes() {
            let peer = Caller { is_peer: true, address: None };
            let announced = node.answer(&body(RequestKind::Announce(late.clone())), &peer).await;
            assert!(announced.is_err());
            assert!(node.files().is_empty());
        }
    });
}
