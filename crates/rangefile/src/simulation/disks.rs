//! Disks that are full, and nodes that come back with an old copy of theirs.

use std::time::Duration;

use lightship_wire::control::ErrorCode;
use tokio::time::sleep;

use super::cases::{client, create, found, run, started, upsert};
use super::cluster::bound;
use super::histories::settle;
use super::{pairs, rows};
use crate::error::RangeError;
use crate::request::WriteMode;
use crate::{ClientOptions, RangeFile};

/// A node that comes back with an old disk has lost what was written since, and nobody notices as long as its buckets
/// have not changed: there is one copy of each. That is not promised; what is: it starts, and other nodes keep their
/// rows.
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

/// After a split, the old disk has keys that another bucket has by now.
#[test]
fn a_bucket_of_an_old_disk_is_refused_after_a_split() {
    for other_starts_later in [false, true] {
        run(async move {
            let mut cluster = started(2, 10).await;
            let mut random = fastrand::Rng::with_seed(1);
            let stale = create(&cluster).await.unwrap();
            upsert(&stale, 0..8, "old").await;
            let old = cluster.disks[0].synced();
            let file = RangeFile::open(client(&cluster), "t", ClientOptions::default()).await.unwrap();
            upsert(&file, 8..12, "new").await;
            while cluster.network.nodes()[1].buckets("t").is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
            settle(&cluster).await;
            let upper = cluster.network.nodes()[1].buckets("t")[0].clone();
            cluster.crash(0, &mut random);
            if other_starts_later {
                cluster.crash(1, &mut random);
            }
            cluster.disks[0] = old;
            cluster.start(0, 7).await;
            if other_starts_later {
                cluster.start(1, 8).await;
                // The first node asks again until all have answered.
                sleep(Duration::from_secs(120)).await;
            }
            // It knows only the bucket of the first node.
            for refused in [
                stale.write(WriteMode::Upsert, &rows(&[11], "lost")).await.map(drop),
                stale.write(WriteMode::Upsert, &rows(&[0], "lost")).await.map(drop),
                stale.get(bound(&stale, 0)).await.map(drop),
                stale.count(&crate::Interval::ALL).await.map(drop),
            ] {
                let Err(RangeError::Remote(failure)) = refused else { panic!("{refused:?}") };
                assert_eq!(failure.code, ErrorCode::Source);
                let interval = format!("keys from {} to the last", upper.low_text);
                assert!(failure.message.contains(&interval), "{failure}");
            }
            let file = RangeFile::open(client(&cluster), "t", ClientOptions::default()).await.unwrap();
            assert_eq!(pairs(&file.get(bound(&file, 11)).await.unwrap()), [(11, "new".to_owned())]);
            // It neither splits nor merges.
            sleep(Duration::from_secs(600)).await;
            assert_eq!(cluster.network.nodes()[0].buckets("t").len(), 1);
            assert_eq!(cluster.network.nodes()[1].buckets("t").len(), 1);
        });
    }
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
