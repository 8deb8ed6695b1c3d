//! Disks that are full, and nodes that come back with an old copy of theirs.

use std::time::Duration;

use tokio::time::sleep;

use super::cases::{create, found, run, started, upsert};
use super::cluster::bound;
use super::{pairs, rows};
use crate::error::RangeError;
use crate::request::WriteMode;

/// A node that comes back with an old disk has lost what was written since, and nobody notices: there is one copy of
/// each bucket. That is not promised; what is: it starts, and other nodes keep their rows.
#[test]
fn an_old_disk_loses_what_was_written_since() {
    run(async {
        let mut cluster = started(2, 100).await;
        let mut random = fastrand::Rng::with_seed(1);
        let file = create(&cluster).await.unwrap();
        upsert(&file, [1], "old").await;
        let old = cluster.disks[0].synced();
        upsert(&file, [1, 2], "new").await;
        cluster.crash(0, &mut random);
        cluster.disks[0] = old;
        cluster.start(0, 7).await;
        assert_eq!(found(&file).await, [(1, "old".to_owned())]);
    });
}

/// The node with the fewest rows can't store any: the others take them.
#[test]
fn a_node_whose_disk_is_full_does_not_stop_splits() {
    run(async {
        let cluster = started(3, 20).await;
        cluster.disks[1].set_full(true);
        let file = create(&cluster).await.unwrap();
        for start in (0..500).step_by(50) {
            upsert(&file, start..start + 50, "x").await;
        }
        sleep(Duration::from_secs(60)).await;
        let (buckets, _) = file.buckets().await;
        assert!(buckets.iter().all(|bucket| bucket.records <= Some(20)), "{buckets:?}");
        assert!(buckets.iter().all(|bucket| bucket.node != cluster.names[1]), "{buckets:?}");
        assert!(buckets.iter().any(|bucket| bucket.node == cluster.names[2]), "{buckets:?}");
        assert_eq!(found(&file).await.len(), 500);
    });
}

/// A disk that was full has lost nothing that was acknowledged. The node stores again after a restart, at the
/// latest.
#[test]
fn a_full_disk_loses_nothing() {
    run(async {
        let mut cluster = started(1, 100).await;
        let mut random = fastrand::Rng::with_seed(1);
        let file = create(&cluster).await.unwrap();
        upsert(&file, [1], "old").await;
        cluster.disks[0].set_full(true);
        let failed = file.write(WriteMode::Upsert, &rows(&[1, 2], "new")).await;
        assert!(matches!(failed, Err(RangeError::Remote(_))), "{failed:?}");
        cluster.disks[0].set_full(false);
        cluster.crash(0, &mut random);
        cluster.start(0, 7).await;
        assert_eq!(found(&file).await, [(1, "old".to_owned())]);
        upsert(&file, [1, 2], "new").await;
        assert_eq!(found(&file).await.len(), 2);
        assert_eq!(pairs(&file.get(bound(&file, 2)).await.unwrap()), [(2, "new".to_owned())]);
    });
}
