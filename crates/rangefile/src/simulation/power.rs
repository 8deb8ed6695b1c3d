//! A node whose power is cut at any write to its disk, several times. Afterwards each write that was acknowledged
//! is there, and each other one is there wholly or not at all, for each request.
//!
//! `LIGHTSHIP_POWER=10000` runs that many seeds, `LIGHTSHIP_SEED=7` runs one. The power is cut at the same write for
//! the same seed. Which writes share a commit depends on the thread that commits, so that a seed need not repeat
//! a failure at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use lightship_testkit::seeds::seeds;
use lightship_transport::net::Caller;
use lightship_wire::control::{ErrorCode, Failure};

use super::disk::Disk;
use super::{definition, pairs, rows, runtime, write_in};
use crate::definition::Definition;
use crate::error::{RangeError, Result};
use crate::network::{Network, Reply};
use crate::request::WriteMode;
use crate::{ClientOptions, Interval, Node, RangeFile, ScanOptions};

const NAME: &str = "node:1";
const WRITERS: i64 = 3;
/// Keys of each writer.
const KEYS: i64 = 30;

/// What a request would change: `None` removes the key.
type Changes = Vec<(i64, Option<String>)>;

/// What is on disk, as far as the clients know.
#[derive(Default)]
struct Model {
    rows: BTreeMap<i64, String>,
    /// Requests without an answer.
    unsure: Vec<Changes>,
}

impl Model {
    fn apply(&mut self, changes: &Changes) {
        for (key, text) in changes {
            match text {
                Some(text) => drop(self.rows.insert(*key, text.clone())),
                None => drop(self.rows.remove(key)),
            }
        }
    }

    /// Compares with what is there after the power was cut.
    fn compare(&mut self, found: &BTreeMap<i64, String>) {
        for changes in std::mem::take(&mut self.unsure) {
            let is_there = changes.iter().all(|(key, text)| found.get(key) == text.as_ref());
            let is_missing = changes.iter().all(|(key, _)| found.get(key) == self.rows.get(key));
            assert!(is_there || is_missing, "a request is there in part: {changes:?}, found {found:?}");
            if is_there {
                self.apply(&changes);
            }
        }
        assert_eq!(*found, self.rows);
    }
}

/// The only node, and what is written to it.
struct Direct {
    node: Mutex<Option<Node>>,
    definition: Definition,
    model: Mutex<Model>,
}

impl Network for Arc<Direct> {
    fn nodes(&self) -> Vec<String> {
        vec![NAME.to_owned()]
    }

    fn request(&self, _: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        let direct = self.clone();
        async move {
            let node = direct.node.lock().unwrap().clone().expect("a node");
            let changes = write_in(&body, &direct.definition).map(|(mode, rows)| -> Changes {
                let is_kept = mode != WriteMode::Delete;
                rows.into_iter().map(|(key, text)| (key, is_kept.then_some(text))).collect()
            });
            let answered = node.answer(&body, &Caller { is_peer: false, address: None }).await;
            if let Some(changes) = changes {
                let mut model = direct.model.lock().unwrap();
                match &answered {
                    Ok(_) => model.apply(&changes),
                    Err(Failure { code: ErrorCode::Moved | ErrorCode::Data, .. }) => {}
                    Err(_) => model.unsure.push(changes),
                }
            }
            Ok(answered?.into())
        }
        .boxed()
    }
}

/// Writes keys of its own until the power is gone.
async fn write(direct: &Direct, file: RangeFile, writer: i64, mut random: fastrand::Rng) {
    for operation in 0..200 {
        let mut ids: Vec<i64> = (0..KEYS).map(|key| key * WRITERS + writer).collect();
        random.shuffle(&mut ids);
        ids.truncate(random.usize(1..8));
        let mode = [WriteMode::Upsert, WriteMode::Insert, WriteMode::Delete][random.usize(0..3)];
        let exists = {
            let model = direct.model.lock().unwrap();
            ids.iter().any(|id| model.rows.contains_key(id))
        };
        match file.write(mode, &rows(&ids, &format!("{writer}.{operation}.{}", random.u32(..)))).await {
            Ok(_) => assert!(mode != WriteMode::Insert || !exists, "{ids:?} were inserted twice"),
            Err(RangeError::Remote(failure)) if failure.code == ErrorCode::Data => {
                assert!(mode == WriteMode::Insert && exists, "{ids:?}: {failure}");
            }
            Err(_) => return,
        }
    }
}

/// Returns the number of cuts, and that of splits.
async fn run(seed: u64) -> (u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let definition = definition(random.u64(4..20));
    let direct = Arc::new(Direct { node: Mutex::new(None), definition, model: Mutex::default() });
    let network: Arc<dyn Network> = Arc::new(direct.clone());
    let mut disk = Disk::default();
    let mut cuts = 0;
    for life in 0..4 {
        // A cut while the database is opened, too.
        if life > 0 && random.u8(0..4) == 0 {
            disk.cut_after(random.u64(0..30));
        }
        let opened = disk.database().map_err(|error| error.to_string());
        let mut over = |database| Node::over(database, NAME, network.clone(), random.u64(..));
        let node = opened.and_then(|database| over(database).map_err(|error| error.to_string()));
        let node = match node {
            Ok(node) => node,
            Err(error) => {
                assert!(disk.is_off(), "the node does not open: {error}");
                disk = disk.lose_power(&mut random);
                continue;
            }
        };
        *direct.node.lock().unwrap() = Some(node.clone());
        node.recover().await;
        if life == 0 {
            RangeFile::create(network.clone(), &direct.definition, ClientOptions::default()).await.unwrap();
        }
        let file = RangeFile::open(network.clone(), "t", ClientOptions::default()).await.unwrap();
        match found(&file).await {
            Ok(found) => direct.model.lock().unwrap().compare(&found),
            Err(error) => assert!(disk.is_off(), "{error}"),
        }
        if life < 3 {
            disk.cut_after(random.u64(0..400));
            let writers = (0..WRITERS).map(|writer| write(&direct, file.clone(), writer, random.fork()));
            join_all(writers).await;
            cuts += 1;
            disk = disk.lose_power(&mut random);
        }
    }
    // The node has the network, too.
    let node = direct.node.lock().unwrap().take();
    (cuts, node.map_or(0, |node| node.buckets("t").len() as u64 - 1))
}

async fn found(file: &RangeFile) -> Result<BTreeMap<i64, String>> {
    use futures::TryStreamExt;
    let scanned = file.scan(Interval::ALL, &ScanOptions::default())?;
    let batches: Vec<_> = scanned.rows.try_collect().await?;
    let all: Vec<(i64, String)> = batches.iter().flat_map(pairs).collect();
    assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0), "not in order, or double: {all:?}");
    Ok(all.into_iter().collect())
}

#[test]
fn acknowledged_writes_survive_power_loss() {
    let (mut cuts, mut splits) = (0, 0);
    let seeds = seeds("LIGHTSHIP_POWER", 100);
    for seed in seeds.clone() {
        let ran = std::panic::catch_unwind(|| runtime().block_on(run(seed)));
        match ran {
            Ok(ran) => (cuts, splits) = (cuts + ran.0, splits + ran.1),
            Err(panic) => {
                eprintln!("seed {seed} failed; LIGHTSHIP_SEED={seed} repeats it");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("power: seeds {}-{}: {cuts} cuts, {splits} splits, 0 faults", seeds.start(), seeds.end());
}
