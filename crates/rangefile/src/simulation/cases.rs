//! Single cases that random histories seldom meet.

use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};
use lightship_transport::net::{Caller, blobs};
use lightship_wire::control::{ErrorCode, Failure};
use lightship_wire::{Codec, Encoder};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::cluster::Cluster;
use super::disk::Disk;
use super::histories::settle;
use super::network::Break;
use super::{definition, pairs, rows, runtime};
use crate::error::Result;
use crate::key::Interval;
use crate::network::{Network, Reply, ask, body};

use crate::request::{BucketEntry, BucketName, Directory, Prepare, RequestKind, SplitOutcome, WriteMode};
use crate::{ClientOptions, Node, RangeFile, ScanOptions};

pub(super) fn run(test: impl Future<Output = ()>) {
    runtime().block_on(test);
}

pub(super) async fn started(nodes: usize, capacity: u64) -> Cluster {
    let mut cluster = Cluster::new(nodes, 1, capacity);
    for node in 0..nodes {
        cluster.start(node, node as u64 + 1).await;
    }
    cluster
}

/// The network as a client has it.
pub(super) fn client(cluster: &Cluster) -> Arc<dyn Network> {
    cluster.network.from("client", watch::channel(true).1)
}

pub(super) async fn create(cluster: &Cluster) -> Result<RangeFile> {
    RangeFile::create(client(cluster), cluster.network.definition(), ClientOptions::default()).await
}

pub(super) async fn found(file: &RangeFile) -> Vec<(i64, String)> {
    let scanned = file.scan(Interval::ALL, &ScanOptions::default()).unwrap();
    scanned.rows.try_collect::<Vec<_>>().await.unwrap().iter().flat_map(pairs).collect()
}

pub(super) async fn upsert(file: &RangeFile, ids: impl IntoIterator<Item = i64>, text: &str) {
    let ids: Vec<i64> = ids.into_iter().collect();
    file.write(WriteMode::Upsert, &rows(&ids, text)).await.unwrap();
}

/// The rows of a dropped file, on a node that was down, are not those of a new file of its name.
#[test]
fn a_dropped_file_does_not_come_back_in_a_new_one() {
    run(async {
        let mut cluster = started(2, 10).await;
        let mut random = fastrand::Rng::with_seed(1);
        let file = create(&cluster).await.unwrap();
        upsert(&file, 0..100, "old").await;
        while !file.buckets().await.0.iter().any(|bucket| bucket.node == cluster.names[1]) {
            sleep(Duration::from_millis(10)).await;
        }
        settle(&cluster).await;
        cluster.crash(1, &mut random);
        let dropped = RangeFile::drop_file(&client(&cluster), "t", ClientOptions::default()).await;
        dropped.expect_err("its part of the file stays");
        cluster.start(1, 7).await;
        let again = create(&cluster).await;
        assert!(matches!(&again, Err(error) if error.to_string().contains("exists already")), "{again:?}");
        // Once the node has dropped it too, there can be another one.
        let _ = RangeFile::drop_file(&client(&cluster), "t", ClientOptions::default()).await;
        let file = create(&cluster).await.unwrap();
        upsert(&file, [1], "new").await;
        assert_eq!(found(&file).await, [(1, "new".to_owned())]);
    });
}

/// Two nodes that can't reach each other may both create a file; it is not the same one.
#[test]
fn a_file_is_not_created_twice() {
    run(async {
        let cluster = started(2, 10).await;
        cluster.network.part(&cluster.names[0], &cluster.names[1], Break::Fails);
        let record = cluster.network.definition().to_record().unwrap();
        let network = client(&cluster);
        let created = ask::<Directory>(&network, &cluster.names[1], RequestKind::Create(record));
        created.await.unwrap();
        cluster.network.heal();
        create(&cluster).await.expect_err("the other node has a file of this name");
        assert!(cluster.network.nodes()[0].files().is_empty());
    });
}

/// A file whose creation was interrupted at any write to the disk is there with its first bucket, or not at all.
#[test]
fn an_interrupted_creation_is_whole_or_nothing() {
    for cut in 0..60 {
        run(async move {
            let mut cluster = started(2, 10).await;
            let mut random = fastrand::Rng::with_seed(cut);
            cluster.disks[0].cut_after(cut);
            let created = create(&cluster).await;
            cluster.crash(0, &mut random);
            cluster.start(0, 7).await;
            if !cluster.network.nodes()[0].files().is_empty() {
                assert_eq!(cluster.network.nodes()[0].buckets("t").len(), 1, "after {cut} writes");
            } else {
                assert!(created.is_err());
                // What the others have learned does not prevent another try.
                let _ = RangeFile::drop_file(&client(&cluster), "t", ClientOptions::default()).await;
                create(&cluster).await.unwrap();
            }
            let file = RangeFile::open(client(&cluster), "t", ClientOptions::default()).await.unwrap();
            upsert(&file, [1], "new").await;
        });
    }
}

/// A file is dropped while its buckets split; what the splits store is of no file any more.
#[test]
fn a_node_starts_after_a_file_was_dropped_while_it_split() {
    for round in 0..60 {
        run(async move {
            let mut cluster = started(1 + (round % 2) as usize, 4).await;
            let mut random = fastrand::Rng::with_seed(round);
            let file = create(&cluster).await.unwrap();
            let network = client(&cluster);
            let writing = async {
                for part in 0..20 {
                    let ids: Vec<i64> = (0..5).map(|id| id * 20 + part).collect();
                    if file.write(WriteMode::Upsert, &rows(&ids, "")).await.is_err() {
                        break;
                    }
                }
            };
            let dropping = async {
                for _ in 0..round * 5 {
                    tokio::task::yield_now().await;
                }
                sleep(Duration::from_millis(round % 7)).await;
                RangeFile::drop_file(&network, "t", ClientOptions::default()).await.unwrap();
            };
            futures::future::select(
                Box::pin(writing),
                Box::pin(dropping.then(|()| sleep(Duration::from_millis(50)))),
            )
            .await;
            let _ = RangeFile::drop_file(&network, "t", ClientOptions::default()).await;
            sleep(Duration::from_millis(50)).await;
            for node in 0..cluster.names.len() {
                cluster.crash(node, &mut random);
                cluster.start(node, 7).await;
            }
            assert!(cluster.network.nodes().iter().all(|node| node.files().is_empty()));
        });
    }
}

/// Other nodes are told of a split when it has ended. If the file was dropped meanwhile, it stays so.
#[test]
fn a_split_that_is_told_late_does_not_bring_back_a_dropped_file() {
    run(async {
        let cluster = started(1, 10).await;
        let node = &cluster.network.nodes()[0];
        let mut directory = Directory {
            file: cluster.network.definition().to_record().unwrap(),
            buckets: vec![BucketEntry { bucket: 5, node: "other".into(), ..BucketEntry::default() }],
            ..Directory::default()
        };
        node.answer(
            &body(RequestKind::Announce(directory.clone())),
            &Caller { is_peer: true, address: None },
        )
        .await
        .unwrap();
        assert!(node.files().is_empty());
        // A file that is created has no buckets yet.
        directory.buckets.clear();
        node.answer(&body(RequestKind::Announce(directory)), &Caller { is_peer: true, address: None })
            .await
            .unwrap();
        assert_eq!(node.files(), ["t"]);
    });
}

/// A network on which the question about a split is answered late, and with what was true before.
struct Stale {
    asked: Notify,
    answer: Notify,
}

impl Network for Arc<Stale> {
    fn nodes(&self) -> Vec<String> {
        vec!["old".into(), "new".into()]
    }

    fn request(&self, _: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        use prost::Message;
        let request = crate::request::Request::decode(&*body).unwrap();
        assert!(matches!(request.kind, Some(RequestKind::Outcome(_))));
        let stale = self.clone();
        async move {
            stale.asked.notify_one();
            stale.answer.notified().await;
            let outcome = SplitOutcome { committed: Some(false) };
            Ok(blobs(futures::stream::iter([Ok(outcome.encode_to_vec())])).into())
        }
        .boxed()
    }
}

/// A bucket that has become active stays, whatever an old answer says.
#[test]
fn a_late_answer_about_a_split_does_not_remove_an_active_bucket() {
    run(async {
        let stale = Arc::new(Stale { asked: Notify::new(), answer: Notify::new() });
        let database = Disk::default().database().unwrap();
        let node = Node::over(database, "new", Arc::new(stale.clone()), 1).unwrap();
        let file = definition(10).to_record().unwrap();
        let prepare = Prepare {
            file,
            bucket: 5,
            range: (&Interval::ALL).into(),
            epoch: 2,
            from_node: "old".into(),
            from_bucket: 1,
            bytes: 0,
        };
        node.answer(&body(RequestKind::Prepare(prepare)), &Caller { is_peer: true, address: None })
            .await
            .unwrap();
        stale.asked.notified().await;
        let name = BucketName { file: "t".into(), bucket: 5 };
        node.answer(&body(RequestKind::Activate(name)), &Caller { is_peer: true, address: None })
            .await
            .unwrap();
        stale.answer.notify_one();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(node.buckets("t").len(), 1);
    });
}

/// Whether a request is held back.
pub(super) type Holds = fn(&RequestKind) -> bool;

/// Holds back the first request of a kind until it may pass.
pub(super) struct Gate {
    network: Arc<dyn Network>,
    holds: Mutex<Option<Holds>>,
    pub(super) arrived: Notify,
    pub(super) pass: Notify,
}

impl Gate {
    pub(super) fn new(network: Arc<dyn Network>, holds: Holds) -> Arc<Self> {
        let (holds, arrived, pass) = (Mutex::new(Some(holds)), Notify::new(), Notify::new());
        Arc::new(Self { network, holds, arrived, pass })
    }
}

impl Network for Arc<Gate> {
    fn nodes(&self) -> Vec<String> {
        self.network.nodes()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        use prost::Message;
        let request = crate::request::Request::decode(&*body).unwrap();
        let (gate, sent) = (self.clone(), self.network.request(node, body));
        async move {
            let kind = request.kind.unwrap();
            let is_held = gate.holds.lock().unwrap().take_if(|holds| holds(&kind)).is_some();
            if is_held {
                gate.arrived.notify_one();
                gate.pass.notified().await;
            }
            sent.await
        }
        .boxed()
    }
}

/// Writes that wait while the last rows of a split are sent: those of keys that stay are stored, those of keys that
/// have moved are refused, and their client writes them to the new bucket.
#[test]
fn writes_that_wait_for_a_split_are_stored_by_the_owner() {
    run(async {
        let mut cluster = Cluster::new(2, 1, 10);
        cluster.start(1, 1).await;
        let (alive, dead) = watch::channel(true);
        let network = cluster.network.from(&cluster.names[0], dead);
        let gate = Gate::new(network, |kind| matches!(kind, RequestKind::Receive(_)));
        let node = cluster.start_with(0, 7, alive, Arc::new(gate.clone()));
        let file = create(&cluster).await.unwrap();
        upsert(&file, 0..11, "old").await;
        // They are so few that writes are held back while they are sent.
        gate.arrived.notified().await;
        let bucket = node.buckets("t")[0].bucket;
        let write = |id: i64| {
            let message = Encoder::new(Codec::None).encode(&rows(&[id], "direct")).unwrap();
            let mode = WriteMode::Upsert.into();
            let write = crate::request::Write {
                file: "t".into(),
                bucket,
                mode,
                rows: message.to_vec(),
                adjust: None,
            };
            let (node, request) = (node.clone(), body(RequestKind::Write(write)));
            tokio::spawn(async move {
                node.answer(&request, &Caller { is_peer: false, address: None }).await.map(drop)
            })
        };
        let (stays, moves) = (write(1), write(9));
        let client = {
            let file = file.clone();
            tokio::spawn(async move { upsert(&file, [2, 10], "client").await })
        };
        sleep(Duration::from_secs(5)).await;
        assert!(!stays.is_finished() && !moves.is_finished() && !client.is_finished());
        gate.pass.notify_one();
        stays.await.unwrap().unwrap();
        assert_eq!(moves.await.unwrap().unwrap_err().code, ErrorCode::Moved);
        client.await.unwrap();
        let text = |id| match id {
            1 => "direct",
            2 | 10 => "client",
            _ => "old",
        };
        let expected: Vec<_> = (0..11).map(|id| (id, text(id).to_owned())).collect();
        assert_eq!(found(&file).await, expected);
        assert_eq!(cluster.network.nodes()[1].buckets("t").len(), 1);
    });
}

/// Refuses the first write, as a node does that is busy.
struct Busy {
    network: Arc<dyn Network>,
    has_refused: AtomicBool,
}

impl Network for Busy {
    fn nodes(&self) -> Vec<String> {
        self.network.nodes()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        use prost::Message;
        let kind = crate::request::Request::decode(&*body).unwrap().kind;
        if matches!(kind, Some(RequestKind::Write(_))) && !self.has_refused.swap(true, Relaxed) {
            return async { Err(Failure::new(ErrorCode::Busy, "the node is busy").into()) }.boxed();
        }
        self.network.request(node, body)
    }
}

/// An insertion that was refused before it began has written nothing: a row that is there is somebody else's.
#[test]
fn an_insertion_that_a_busy_node_refused_finds_an_equal_row() {
    run(async {
        let cluster = started(1, 10).await;
        let file = create(&cluster).await.unwrap();
        file.write(WriteMode::Insert, &rows(&[1], "a")).await.unwrap();
        let busy = Arc::new(Busy { network: client(&cluster), has_refused: AtomicBool::new(false) });
        let file = RangeFile::open(busy.clone(), "t", ClientOptions::default()).await.unwrap();
        let failed = file.write(WriteMode::Insert, &rows(&[1], "a")).await.unwrap_err();
        assert!(failed.to_string().contains("exists already"), "{failed}");
        assert!(busy.has_refused.load(Relaxed));
    });
}

/// An insertion whose answer was lost is repeated, and the node does not remember the first one: a row that was
/// removed in between is there again. That is not prevented.
#[test]
fn a_repeated_insertion_may_bring_back_a_row() {
    run(async {
        let cluster = started(1, 10).await;
        let file = create(&cluster).await.unwrap();
        file.write(WriteMode::Insert, &rows(&[1], "a")).await.unwrap();
        file.write(WriteMode::InsertAgain, &rows(&[1], "a")).await.unwrap();
        file.write(WriteMode::InsertAgain, &rows(&[1], "b")).await.unwrap_err();
        file.write(WriteMode::Delete, &rows(&[1], "")).await.unwrap();
        file.write(WriteMode::InsertAgain, &rows(&[1], "a")).await.unwrap();
        assert_eq!(found(&file).await, [(1, "a".to_owned())]);
    });
}
