//! The client: reads and writes a range file on all nodes that have buckets of it.

mod ends;
mod group;
mod owners;
mod scan;
mod write;
mod writer;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt};
use lightship_wire::control::{ErrorCode, Failure};
use tokio::time::sleep;

pub use self::group::Grouping;
use self::owners::{Asked, Retry};
pub use self::scan::{Order, ScanOptions, ScanReport, Scanned};
pub use self::writer::RowWriter;
use crate::definition::Definition;
use crate::error::{RangeError, Result};
use crate::image::{IMAGE_BYTES_MAX, Image, Owner, Piece};
use crate::key::{Interval, Key};
use crate::locate::{Room, locate};
use crate::network::{Network, ask, ask_one, body, patiently, silent, tell};
use crate::request::{
    BucketEntry, Columns, Counted, Directory, FileName, FileRecord, List, RequestKind, Scan,
};

/// After so long without an answer, the next node is asked too where the file is.
const NEXT_NODE: Duration = Duration::from_millis(250);

/// The first and the longest pause before a request is repeated.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// The most nodes that a client knows.
const NODES_MAX: usize = 10_000;

/// How a client behaves.
#[derive(Debug, Clone, Copy)]
pub struct ClientOptions {
    /// How long a part of the file may be unreachable, or send nothing, before the operation fails. After a quarter of it, two
    /// seconds at most, a client asks other nodes whether they have the keys by now. To create, list and drop files may take
    /// longer, as long as the node answers.
    pub patience: Duration,
    /// The maximum number of requests to different buckets at a time. Each costs its node a thread while it reads.
    pub connections_max: usize,
    /// Whether counts, and scans with [`ReceptionMode::Auto`](crate::ReceptionMode::Auto), ask for many buckets together.
    pub grouping: Grouping,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), connections_max: 16, grouping: Grouping::Auto }
    }
}

/// A range file. Cheap to clone; clones share what they know of its buckets.
#[derive(Clone)]
pub struct RangeFile {
    shared: Arc<Shared>,
}

struct Shared {
    network: Arc<dyn Network>,
    definition: Arc<Definition>,
    record: FileRecord,
    image: Mutex<Image>,
    /// Nodes that may have buckets.
    nodes: Mutex<Vec<String>>,
    asked: Asked,
    /// The connections at a time with which the last scan ended.
    scan_connections: Mutex<Option<u32>>,
    options: ClientOptions,
}

impl std::fmt::Debug for RangeFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RangeFile").field(&self.shared.definition.name).finish()
    }
}

impl RangeFile {
    /// Creates a file on the first node that the network names.
    ///
    /// # Errors
    /// [`RangeError::FileExists`], or that the node can't be reached or does not answer in time.
    pub async fn create(
        network: Arc<dyn Network>,
        definition: &Definition,
        options: ClientOptions,
    ) -> Result<Self> {
        let node = first(&network)?;
        let created = ask_one(&network, &node, RequestKind::Create(definition.to_record()?));
        let directory = patiently(&network, &node, options.patience, created).await?;
        Self::of(network, directory, options)
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`RangeError::NoFile`], or that no node can be reached.
    pub async fn open(network: Arc<dyn Network>, name: &str, options: ClientOptions) -> Result<Self> {
        let mut failed = RangeError::NoFile(name.to_owned());
        let mut nodes = network.nodes().into_iter();
        let mut asked = FuturesUnordered::new();
        let mut patience = std::pin::pin!(sleep(options.patience));
        loop {
            match nodes.next() {
                Some(node) => asked.push({
                    let network = &network;
                    async move { locate(network, &node, name, false, &Room::default()).await }
                }),
                None if asked.is_empty() => return Err(failed),
                None => {}
            }
            tokio::select! {
                biased;
                Some(found) = asked.next() => match found {
                    Ok(directory) => {
                        drop(asked);
                        return Self::of(network, directory, options);
                    }
                    Err(RangeError::Remote(failure)) if failure.code == ErrorCode::Sql => {}
                    Err(error) => failed = error,
                },
                () = sleep(NEXT_NODE), if nodes.len() > 0 => {}
                () = patience.as_mut() => {
                    let nobody = || Failure::new(ErrorCode::Peer, "no node answers").into();
                    return Err(if matches!(failed, RangeError::NoFile(_)) { nobody() } else { failed });
                }
            }
        }
    }

    /// The definitions of all files that the first node knows.
    ///
    /// # Errors
    /// If the node can't be reached, or does not answer in time.
    pub async fn list(network: &Arc<dyn Network>, options: ClientOptions) -> Result<Vec<Definition>> {
        let node = first(network)?;
        let listed = ask(network, &node, RequestKind::List(List {}));
        let records: Vec<FileRecord> = patiently(network, &node, options.patience, listed).await?;
        records.iter().map(Definition::from_record).collect()
    }

    /// Removes the file with all its rows from all nodes.
    ///
    /// # Errors
    /// If there is no such file, or a node can't be reached or does not answer in time: its part of the file stays.
    pub async fn drop_file(network: &Arc<dyn Network>, name: &str, options: ClientOptions) -> Result<()> {
        let node = first(network)?;
        let dropping = FileName { name: name.to_owned(), ..FileName::default() };
        let dropped = tell(network, &node, RequestKind::Drop(dropping));
        patiently(network, &node, options.patience, dropped).await
    }

    fn of(network: Arc<dyn Network>, directory: Directory, options: ClientOptions) -> Result<Self> {
        let definition = Arc::new(Definition::from_record(&directory.file)?);
        let record = directory.file;
        // The names that the nodes have for each other: the client may have reached one by another address.
        let mut nodes = directory.nodes;
        nodes.sort();
        nodes.dedup();
        nodes.truncate(NODES_MAX);
        let mut image = Image::default();
        learn(&mut image, &directory.buckets)?;
        let (image, nodes) = (Mutex::new(image), Mutex::new(nodes));
        let (asked, scan_connections) = (Mutex::default(), Mutex::default());
        let shared = Shared { network, definition, record, image, nodes, asked, scan_connections, options };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What the file is.
    pub fn definition(&self) -> &Arc<Definition> {
        &self.shared.definition
    }

    /// How its nodes are reached.
    pub fn network(&self) -> Arc<dyn Network> {
        self.shared.network.clone()
    }

    /// What identifies the file.
    pub(crate) fn record(&self) -> &FileRecord {
        &self.shared.record
    }

    /// What is known of the owners of its keys.
    pub fn image(&self) -> Image {
        self.locked_image().clone()
    }

    fn scan_connections(&self) -> MutexGuard<'_, Option<u32>> {
        self.shared.scan_connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked_image(&self) -> MutexGuard<'_, Image> {
        self.shared.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes that may have buckets.
    fn nodes(&self) -> Vec<String> {
        self.shared.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The row with a key; no rows if there is none.
    ///
    /// # Errors
    /// [`RangeError::Missing`] if its bucket does not answer in time.
    pub async fn get(&self, key: Key) -> Result<RecordBatch> {
        let interval = Interval::of_key(&key);
        self.with_owner(&interval, |owner| {
            let (scan, owner) = (self.scan_request(&owner, &interval, Some(1), None), owner.clone());
            async move {
                let reply = self.shared.network.request(&owner.node, body(RequestKind::Scan(scan))).await?;
                let rows: Vec<RecordBatch> = reply.rows.try_collect().await?;
                Ok(arrow_select::concat::concat_batches(&reply.schema, &rows)?)
            }
        })
        .await
    }

    /// The number of rows with keys in an interval.
    ///
    /// # Errors
    /// [`RangeError::Missing`] if a bucket does not answer in time.
    pub async fn count(&self, interval: &Interval) -> Result<u64> {
        let pieces = self.locked_image().route(interval);
        let (mut total, mut rest) = self.count_grouped(pieces).await;
        while !rest.is_empty() {
            let pieces: Vec<Piece> = {
                let image = self.locked_image();
                rest.drain(..).flat_map(|interval| image.route(&interval)).collect()
            };
            let counted = pieces.into_iter().map(|(piece, _)| async move {
                let counted = self
                    .with_owner(&piece, |owner| {
                        let scan = self.scan_request(&owner, &piece, None, None);
                        async move {
                            let kind = RequestKind::Count(scan);
                            ask_one::<Counted>(&self.shared.network, &owner.node, kind).await
                        }
                    })
                    .await;
                (piece, counted)
            });
            let mut counted =
                futures::stream::iter(counted).buffer_unordered(self.shared.options.connections_max);
            while let Some((piece, counted)) = counted.next().await {
                match counted {
                    Ok(Counted { rows }) => total = rows.saturating_add(total),
                    // It belongs to several buckets now.
                    Err(RangeError::Moved) => rest.push(piece),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(total)
    }

    fn scan_request(
        &self,
        owner: &Owner,
        piece: &Interval,
        limit: Option<u64>,
        columns: Option<&Vec<u32>>,
    ) -> Scan {
        Scan {
            file: self.shared.definition.name.clone(),
            bucket: owner.bucket,
            range: piece.into(),
            limit,
            columns: columns.map(|positions| Columns { positions: positions.clone() }),
            adjust: true,
        }
    }

    /// Sends a request to the bucket that has an interval, again and again until it answers or the client's
    /// patience ends.
    ///
    /// # Errors
    /// [`RangeError::Moved`] if the interval belongs to several buckets; [`RangeError::Missing`] if nobody
    /// answers in time; otherwise what the bucket answers.
    async fn with_owner<T, F: Future<Output = Result<T>>>(
        &self,
        interval: &Interval,
        request: impl Fn(Owner) -> F,
    ) -> Result<T> {
        let mut retry = Retry::new(self);
        loop {
            let pieces = self.locked_image().route(interval);
            let (asked, failed) = match pieces.as_slice() {
                [(_, Some(owner))] => {
                    let requested = request(owner.clone());
                    let answer = self.answered(interval, owner, Some(retry.deadline()), requested).await;
                    match answer.unwrap_or_else(|| Err(silent(&owner.node))) {
                        Err(error) if is_retried(&error) => (Some(owner), error),
                        done => return done,
                    }
                }
                [(_, None)] => (None, RangeError::Moved),
                _ => return Err(RangeError::Moved),
            };
            retry.again(interval, asked, &failed).await?;
        }
    }
}

/// Whether another try may succeed: the image was stale, or the node can't be reached.
fn is_retried(error: &RangeError) -> bool {
    match error {
        RangeError::Moved => true,
        RangeError::Remote(failure) => {
            matches!(
                failure.code,
                ErrorCode::Moved
                    | ErrorCode::Peer
                    | ErrorCode::Lost
                    | ErrorCode::Busy
                    | ErrorCode::ShuttingDown
            ) || failure.retryable
        }
        _ => false,
    }
}

impl RangeFile {
    fn missing(&self, interval: &Interval, why: &RangeError) -> RangeError {
        let why = match why {
            RangeError::Moved => "no node that answers has them".to_owned(),
            error if error.is_moved() => "they move from node to node".to_owned(),
            error => error.to_string(),
        };
        let (from, to) = self.shared.definition.format().display_interval(interval);
        RangeError::Missing { from, to, why }
    }
}

fn first(network: &Arc<dyn Network>) -> Result<String> {
    network.nodes().into_iter().next().ok_or_else(|| RangeError::Definition("no node is known".into()))
}

/// Learns of buckets.
///
/// # Errors
/// If an image has no room for them.
fn learn(image: &mut Image, buckets: &[BucketEntry]) -> Result<()> {
    match buckets.iter().all(|entry| image.learn(entry)) {
        true => Ok(()),
        false => Err(RangeError::TooManyBuckets { bytes_max: IMAGE_BYTES_MAX }),
    }
}
