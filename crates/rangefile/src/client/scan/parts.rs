//! The parts of a scan: how their rows are requested, and what becomes of failures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::SchemaRef;
use futures::future::{BoxFuture, try_join_all};
use futures::{FutureExt, StreamExt};
use lightship_transport::net::reception::{Asked, Fault, PartRows, Parts};
use lightship_transport::net::{PushToken, PushedConnection};
use lightship_transport::proto::reception::{Admission, Coverage, ReceptionError, Refusal};

use super::cover::{Cover, Found};
use crate::client::{RangeFile, is_retried};
use crate::error::{RangeError, Result};
use crate::key::{Interval, after};
use crate::network::{body, tell};
use crate::request::{Deliver, RequestKind};

/// What a scan reads.
pub(super) struct Source {
    pub(super) file: RangeFile,
    /// Positions of the columns that are read, those of the key among them; all if it is `None`.
    pub(super) columns: Option<Vec<u32>>,
    /// The columns that are returned, which are the first ones.
    pub(super) schema: SchemaRef,
}

impl Source {
    /// The columns that are read.
    pub(super) fn read_schema(&self) -> Result<SchemaRef> {
        let whole = &self.file.definition().schema;
        let Some(columns) = &self.columns else { return Ok(whole.clone()) };
        let columns: Vec<usize> = columns.iter().map(|&column| column as usize).collect();
        Ok(Arc::new(whole.project(&columns)?))
    }

    /// The key of a row as it was read.
    fn key(&self, row: &RecordBatch) -> Result<Vec<u8>> {
        let format = self.file.definition().format();
        let values = format.columns().iter().map(|&key| {
            let position = match &self.columns {
                None => Some(key),
                Some(columns) => columns.iter().position(|&column| column as usize == key),
            };
            position.and_then(|position| row.columns().get(position)).cloned()
        });
        let values: Option<Vec<_>> = values.collect();
        let missing = || RangeError::Definition("the answer of a bucket lacks columns of the key".into());
        format.key(&values.ok_or_else(missing)?)
    }
}

/// Where nodes connect to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listening {
    pub(super) port: u16,
    pub(super) token: PushToken,
    /// Whether nodes that are refused try again.
    pub(super) backs_off: bool,
}

/// The parts of a scan.
#[derive(Clone)]
pub(super) struct ScanParts {
    source: Arc<Source>,
    /// Locked after the image.
    cover: Arc<Mutex<Cover>>,
    /// If nodes connect to this client.
    listening: Option<Listening>,
}

impl ScanParts {
    pub(super) fn new(source: Arc<Source>, cover: Cover, listening: Option<Listening>) -> Self {
        Self { source, cover: Arc::new(Mutex::new(cover)), listening }
    }

    fn cover(&self) -> MutexGuard<'_, Cover> {
        self.cover.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks parts up in the image.
    fn resolve(&self, parts: &[u64]) -> Result<Option<Vec<u64>>> {
        let image = self.source.file.locked_image();
        let mut cover = self.cover();
        let mut found = Vec::new();
        let mut scattered = None;
        for &part in parts {
            match cover.resolve(part, &image) {
                Found::Parts(parts) => found.extend(parts),
                Found::Moved => return Ok(None),
                Found::Scattered => scattered = Some(cover.missing(&[part])),
            }
        }
        drop((image, cover));
        match scattered {
            Some((interval, failed)) => Err(self.source.file.missing(&interval, &failed)),
            None => Ok(Some(found)),
        }
    }

    /// Asks for parts whose owners are known. If nodes connect to this client, returns when they have done so, or
    /// given up.
    async fn request(&self, parts: &[u64]) -> Result<Asked> {
        let Some(listening) = self.listening else {
            return Ok(Asked::Announced(self.cover().announcements(parts)));
        };
        let mut nodes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        {
            let cover = self.cover();
            for &part in parts {
                if let Some(owner) = cover.get(part).and_then(|part| part.owner.as_ref()) {
                    nodes.entry(owner.node.clone()).or_default().push(part);
                }
            }
        }
        let asked = nodes.into_iter().map(|(node, parts)| async move {
            let deliver = Deliver {
                file: self.source.file.definition().name.clone(),
                parts,
                port: listening.port.into(),
                token: listening.token.as_bytes().to_vec(),
                backs_off: listening.backs_off,
            };
            match tell(&self.source.file.shared.network, &node, RequestKind::Deliver(deliver)).await {
                // The parts are asked for again.
                Err(error) if is_retried(&error) => Ok(()),
                told => told,
            }
        });
        try_join_all(asked).await?;
        Ok(Asked::Announced(Vec::new()))
    }
}

impl Coverage for ScanParts {
    fn admit(&mut self, part: u64) -> Admission {
        self.cover().admit(part)
    }

    fn withdraw(&mut self, part: u64) {
        self.cover().withdraw(part);
    }

    fn is_covered(&self) -> bool {
        self.cover().first_hole().is_none()
    }

    fn holes(&mut self, max: usize) -> Vec<u64> {
        self.cover().holes().take(max).collect()
    }
}

impl Parts for ScanParts {
    type Connection = PushedConnection;
    type Error = RangeError;

    fn begin(&mut self) -> BoxFuture<'static, Result<Asked>> {
        let this = self.clone();
        async move {
            let mut parts: Vec<u64> = this.cover().holes().collect();
            // All are marked as asked.
            let unknown: Vec<Interval> = {
                let mut cover = this.cover();
                let unknown: Vec<u64> = parts.iter().copied().filter(|part| cover.ask(*part)).collect();
                let unknown = unknown.into_iter().filter_map(|part| cover.get(part));
                unknown.map(|part| part.interval.clone()).collect()
            };
            if !unknown.is_empty() {
                this.source.file.look(&unknown).await;
                parts = this.resolve(&parts)?.unwrap_or_default();
            }
            this.request(&parts).await
        }
        .boxed()
    }

    fn ask(&mut self, part: u64) -> BoxFuture<'static, Result<Asked>> {
        let this = self.clone();
        async move {
            let (pause, stale) = {
                let mut cover = this.cover();
                let (pause, is_stale) = (cover.pause(part), cover.ask(part));
                let interval = cover.get(part).map(|part| part.interval.clone());
                (pause, interval.filter(|_| is_stale))
            };
            if let Some(interval) = stale {
                tokio::time::sleep(pause).await;
                this.source.file.look(&[interval]).await;
            }
            match this.resolve(&[part])? {
                // The others are holes, which are asked for in their turn.
                Some(_) if this.listening.is_some() => this.request(&[part]).await,
                Some(parts) => this.request(&parts).await,
                None => Ok(Asked::Withdrawn),
            }
        }
        .boxed()
    }

    fn open(
        &mut self,
        part: u64,
        connection: Option<PushedConnection>,
    ) -> BoxFuture<'static, Result<PartRows<RangeError>>> {
        let source = self.source.clone();
        let cover = self.cover();
        if let Some(ready) = cover.get(part).and_then(|part| part.ready.clone()) {
            return async { Ok(futures::stream::iter([Ok(ready)]).boxed()) }.boxed();
        }
        let Some(part) = cover.get(part).filter(|part| !part.is_complete()) else {
            // All its rows arrived, but not the end.
            return async { Ok(futures::stream::empty().boxed()) }.boxed();
        };
        let (interval, limit) = (part.interval.clone(), part.limit);
        let Some(owner) = part.owner.clone() else { return async { Err(RangeError::Moved) }.boxed() };
        drop(cover);
        if !source.file.is_owner(&interval, &owner) {
            // That has become known while the part waited for its turn.
            return async { Err(RangeError::Moved) }.boxed();
        }
        let scan = source.file.scan_request(&owner, &interval, limit, source.columns.as_ref());
        let (network, body) = (&source.file.shared.network, body(RequestKind::Scan(scan)));
        let requested = match connection {
            None => network.request(&owner.node, body),
            Some(connection) => network.request_on(&owner.node, connection, body),
        };
        async move {
            let reply = source.file.answered(&interval, &owner, None, requested).await;
            Ok(reply.unwrap_or(Err(RangeError::Moved))?.rows)
        }
        .boxed()
    }

    fn refuse(&mut self, connection: PushedConnection, reason: Refusal) {
        connection.refuse(reason);
    }

    fn arrived(&mut self, part: u64, rows: RecordBatch) -> Result<RecordBatch> {
        let count = rows.num_rows();
        let Some(last) = count.checked_sub(1) else { return Ok(rows) };
        let low = after(&self.source.key(&rows.slice(last, 1))?);
        self.cover().arrived(part, low, count as u64);
        let schema = self.source.schema.clone();
        let columns = rows.columns().iter().take(schema.fields().len()).cloned().collect();
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
    }

    fn ended(&mut self, part: u64) {
        self.cover().ended(part);
    }

    fn failed(&mut self, part: u64, error: RangeError) -> Fault<RangeError> {
        let file = &self.source.file;
        if !is_retried(&error) {
            return Fault::Fatal(error);
        }
        if !error.is_moved() {
            self.cover().failed(part, error);
            return Fault::Lost;
        }
        let asked =
            self.cover().get(part).and_then(|part| Some((part.interval.clone(), part.owner.clone()?)));
        let is_corrected =
            asked.is_some_and(|(interval, owner)| file.is_corrected(&interval, &owner, &error));
        let mut cover = self.cover();
        if is_corrected && cover.corrected(part) {
            return Fault::Withdrawn;
        }
        if !cover.is_lost(part, file.shared.options.patience, Instant::now()) {
            return Fault::Withdrawn;
        }
        let (interval, _) = cover.missing(&[part]);
        drop(cover);
        Fault::Fatal(file.missing(&interval, &error))
    }

    fn failure(&mut self, error: ReceptionError) -> RangeError {
        match error {
            ReceptionError::Missing { parts, .. } => {
                let (interval, failed) = self.cover().missing(&parts);
                self.source.file.missing(&interval, &failed)
            }
            error => error.into(),
        }
    }

    fn first_hole(&self) -> Option<u64> {
        self.cover().first_hole()
    }
}
