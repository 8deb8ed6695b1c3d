//! Answers to requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow_buffer::Buffer;
use futures::future::join_all;
use futures::{StreamExt, stream};
use lightship_transport::net::{Answer, Caller, blobs};
use lightship_wire::control::{ErrorCode, Failure};
use prost::Message;

use super::adjust::Adjusting;
use super::{File, Node, scan};
use crate::bucket::KeyedRows;
use crate::error::{RangeError, Result};
use crate::key::Interval;
use crate::network::{ask_one, patiently, tell};
use crate::request::{
    BucketRecord, Counted, Directory, FileName, FileRecord, Locate, RangeRecord, Request, RequestKind,
    SplitOutcome, Write, WriteMode, Written,
};
use crate::split;

/// The largest request without rows: decoded, it can take eight times as much.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// The first bytes of requests with rows: the tags of write and receive, of a field with a length.
const WITH_ROWS: [u8; 2] = [3 << 3 | 2, 10 << 3 | 2];

/// How long another node may send nothing while a file is created or dropped.
const PEER_PATIENCE: Duration = Duration::from_secs(4);

/// The largest rows of a write, as Arrow data.
const WRITE_BYTES_MAX: u32 = 64 << 20;

impl Node {
    /// Answers a request.
    ///
    /// # Errors
    /// The failure for the sender.
    pub async fn answer(&self, body: &[u8], caller: &Caller) -> Result<Answer, Failure> {
        let has_rows = body.first().is_some_and(|tag| WITH_ROWS.contains(tag));
        if body.len() > REQUEST_BYTES_MAX && !has_rows {
            return Err(Failure::new(ErrorCode::Protocol, "a request about a range file is too large"));
        }
        let request = Request::decode(body).map_err(|e| {
            Failure::new(ErrorCode::Protocol, format!("malformed request about a range file: {e}"))
        })?;
        let adjusting = request.kind.as_ref().and_then(Adjusting::of);
        // A task of its own: what has begun to change is changed, even if the sender is gone.
        let (node, caller) = (self.clone(), *caller);
        let answered = tokio::spawn(async move { node.answered(request, &caller).await });
        let answered = answered.await.unwrap_or(Err(RangeError::Closed));
        answered.map_err(|error| self.refusal(&error, adjusting))
    }

    pub(super) async fn answered(&self, request: Request, caller: &Caller) -> Result<Answer> {
        let Some(kind) = request.kind else {
            return Err(RangeError::Definition("empty request".into()));
        };
        if kind.uses_rows() {
            self.until_compared().await;
        }
        match kind {
            RequestKind::Create(record) => self.create(record).await.map(message),
            RequestKind::Locate(locate) => self.locate(&locate, caller.is_peer).await.map(message),
            RequestKind::Write(write) => self.write(write).await.map(message),
            RequestKind::Scan(request) => {
                let (file, bucket) = self.bucket(&request.file, request.bucket)?;
                let is_of_key = Interval::from(request.range.clone()).is_of_key();
                let answer = scan::scan(&bucket, request).await?;
                if !is_of_key {
                    self.tidy_later(&file, &bucket);
                }
                Ok(answer)
            }
            RequestKind::Count(request) => {
                let bucket = self.bucket(&request.file, request.bucket)?.1;
                Ok(message(Counted { rows: scan::count(&bucket, request.range.into()).await? }))
            }
            RequestKind::Last(request) => {
                scan::last(&self.bucket(&request.file, request.bucket)?.1, request).await
            }
            RequestKind::List(_) => Ok(messages(self.records())),
            RequestKind::Drop(name) => self.drop_file(name, caller.is_peer).await.map(|()| nothing()),
            RequestKind::Deliver(deliver) => self.deliver(deliver, caller),
            RequestKind::Advertise(advertise) => self.advertise(advertise, caller),
            RequestKind::Group(group) => self.group(group),
            _ if !caller.is_peer => {
                Err(Failure::new(ErrorCode::Forbidden, "only nodes of the cluster may request this").into())
            }
            RequestKind::Announce(directory) => self.announced(&directory).await.map(|()| nothing()),
            RequestKind::Prepare(prepare) => {
                self.check_room(&prepare.from_node, prepare.bytes).await?;
                let file = self.know(&prepare.file).await?;
                let existing = file.bucket(prepare.bucket);
                let record = match &existing {
                    Some(bucket) => split::prepare(Some(&bucket.writer.lock().await.record), &prepare)?,
                    None => split::prepare(None, &prepare)?,
                };
                if existing.is_none() {
                    let bucket = self.add_bucket(&file, prepare.bucket, record).await?;
                    let (node, from) = (self.clone(), prepare.from_node);
                    tokio::spawn(async move { node.settle(&file, &bucket, &from).await });
                }
                Ok(nothing())
            }
            RequestKind::Receive(receive) => {
                let (_, bucket) = self.bucket(&receive.file, receive.bucket)?;
                bucket.receive(receive).await?;
                Ok(nothing())
            }
            RequestKind::Activate(name) => {
                let (file, bucket) = self.bucket(&name.file, name.bucket)?;
                self.activate(&file, &bucket).await?;
                Ok(nothing())
            }
            RequestKind::Approach(name) => {
                let (file, bucket) = self.bucket(&name.file, name.bucket)?;
                bucket.look_at_neighbours();
                self.maintain(&file, &bucket);
                Ok(nothing())
            }
            RequestKind::Dropped(files) => Ok(message(self.dropped(files).await?)),
            RequestKind::Outcome(name) => Ok(message(self.outcome(&name.file, name.bucket).await?)),
        }
    }

    /// Creates a file. Its first bucket is on this node.
    async fn create(&self, record: FileRecord) -> Result<Directory> {
        // The name is for the whole cluster: no node may have another file of this name.
        if self.file(&record.name).is_ok() {
            return Err(RangeError::FileExists(record.name));
        }
        self.check_name(&record.name)?;
        // Not the file that another node creates, or has kept of one that was dropped.
        let record = FileRecord { id: self.new_id(), ..record };
        let bucket = BucketRecord {
            file: record.name.clone(),
            range: RangeRecord::from(&Interval::ALL),
            epoch: 1,
            ..BucketRecord::default()
        };
        let file = self.add_file(&record, Some((self.new_id(), bucket))).await?;
        // One that can't be reached learns of the file later: see `files.rs`.
        let announced = Directory {
            file: record.clone(),
            buckets: Vec::new(),
            nodes: vec![self.shared.name.clone()],
            ..Directory::default()
        };
        let (mut told, mut is_refused) = (Vec::new(), false);
        for (node, answer) in self.tell_others(&RequestKind::Announce(announced)).await {
            match answer {
                Ok(()) => told.push(node),
                // It has another file of this name.
                Err(RangeError::Remote(failure)) if failure.code == ErrorCode::Sql => is_refused = true,
                // It has no range files.
                Err(error) if error.has_no_file() => {}
                Err(error) => {
                    tracing::warn!(node, %error, file = record.name, "a node does not know of the new range file yet");
                }
            }
        }
        if is_refused {
            let name = FileName { name: record.name.clone(), number: record.id };
            // A node that misses this refuses the name until it compares its files with those of this node.
            self.tell_all(told, &RequestKind::Drop(name)).await;
            self.forget(&record.name, Some(record.id)).await?;
            return Err(RangeError::FileExists(record.name));
        }
        file.is_new.store(false, Ordering::Release);
        Ok(self.directory(&file, &Locate { own: true, ..Locate::default() }).await)
    }

    async fn locate(&self, locate: &Locate, is_peer: bool) -> Result<Directory> {
        let file = match self.file(&locate.file) {
            // Nodes that asked each other would never end.
            Err(RangeError::NoFile(name)) if !is_peer => self.find_file(&name).await?,
            known => known?,
        };
        Ok(self.directory(&file, locate).await)
    }

    async fn directory(&self, file: &File, locate: &Locate) -> Directory {
        let (mut nodes, mut free_bytes) = (Vec::new(), None);
        if locate.from.is_empty() {
            nodes = self.others();
            nodes.push(self.shared.name.clone());
            free_bytes = self.shared.blocks.store().free_bytes().await;
        }
        Directory { free_bytes, ..file.directory(&self.shared.name, locate, nodes) }
    }

    /// Sends a request to all other nodes at the same time. Returns their answers.
    async fn tell_others(&self, kind: &RequestKind) -> Vec<(String, Result<()>)> {
        self.tell_all(self.others(), kind).await
    }

    async fn tell_all(&self, nodes: Vec<String>, kind: &RequestKind) -> Vec<(String, Result<()>)> {
        let told = nodes.into_iter().map(|node| async move {
            let network = &self.shared.network;
            let told = patiently(network, &node, PEER_PATIENCE, tell(network, &node, kind.clone())).await;
            (node, told)
        });
        join_all(told).await
    }

    /// The other nodes.
    pub(super) fn others(&self) -> Vec<String> {
        let mut nodes = self.shared.network.nodes();
        nodes.retain(|node| *node != self.shared.name);
        nodes
    }

    async fn announced(&self, directory: &Directory) -> Result<()> {
        if !directory.buckets.is_empty() && self.file(&directory.file.name).is_err() {
            // The end of a split, told late: the file may be dropped. It would come back.
            return Ok(());
        }
        let file = self.learn_file(&directory.file).await?;
        directory.buckets.iter().for_each(|entry| self.learn(&file, entry));
        Ok(())
    }

    async fn write(&self, write: Write) -> Result<Written> {
        let (file, bucket) = self.bucket(&write.file, write.bucket)?;
        if file.is_new() {
            let message = format!("range file {} is being created", write.file);
            return Err(Failure::new(ErrorCode::Busy, message).into());
        }
        let mode = WriteMode::try_from(write.mode)
            .map_err(|_| RangeError::Definition(format!("unknown kind of write {}", write.mode)))?;
        let definition = &file.definition;
        let schema = if mode == WriteMode::Delete { definition.loose() } else { &definition.schema };
        // Before it takes memory, which writes to other buckets need.
        bucket.wait_for_split().await;
        // Before there are rows: what waits is bounded in bytes.
        let bytes = lightship_wire::peek(&write.rows)?.body_bytes.max(write.rows.len() as u32);
        let reserved = self.shared.blocks.reserve_write(bytes).await?;
        let rows = lightship_wire::decode(schema, Buffer::from_vec(write.rows), WRITE_BYTES_MAX)?;
        let rows = rows.with_schema(definition.loose().clone())?;
        let rows = KeyedRows::new(&file.definition, rows, None)?;
        let count = rows.len() as u64;
        bucket.write(mode, rows, reserved).await?;
        bucket.load.written(count);
        self.maintain(&file, &bucket);
        Ok(Written { rows: count })
    }

    pub(super) async fn outcome(&self, file: &str, child: u64) -> Result<SplitOutcome> {
        // The child names its origin's file only; the origin is the bucket that knows it.
        let file = self.file(file)?;
        let mut committed = Some(false);
        for bucket in file.all() {
            match split::outcome(&bucket.writer.lock().await.record, child) {
                Some(false) => {}
                found => committed = found,
            }
        }
        Ok(SplitOutcome { committed })
    }

    async fn drop_file(&self, name: FileName, is_peer: bool) -> Result<()> {
        let number_of = |name: &FileName| (name.number != 0).then_some(name.number);
        if is_peer {
            return self.forget(&name.name, number_of(&name)).await;
        }
        let file = &name.name;
        // Only this one: before all nodes have dropped it, others may have done so, and created another one of its name.
        let own = self.file(file).ok().map(|file| file.record.id);
        // A node that is down would keep its buckets until it comes back.
        let asked = self.others().into_iter().map(|node| async move {
            let locate = Locate { file: file.clone(), own: true, ..Locate::default() };
            let network = &self.shared.network;
            let asked = ask_one::<Directory>(network, &node, RequestKind::Locate(locate));
            match patiently(network, &node, PEER_PATIENCE, asked).await {
                Ok(directory) => Ok(Some(directory.file.id)),
                Err(error) if error.has_no_file() => Ok(None),
                Err(error) => Err(error),
            }
        });
        let asked: Vec<Option<u64>> = join_all(asked).await.into_iter().collect::<Result<_>>()?;
        let elsewhere = asked.into_iter().flatten().next();
        let Some(number) = own.or(elsewhere) else { return Err(RangeError::NoFile(name.name)) };
        let name = FileName { number, ..name };
        let known = match self.forget(&name.name, number_of(&name)).await {
            Err(RangeError::NoFile(_)) if elsewhere.is_some() => Ok(()),
            known => known,
        };
        for (_, told) in self.tell_others(&RequestKind::Drop(name)).await {
            match told {
                Err(error) if error.has_no_file() => {}
                told => told?,
            }
        }
        known
    }
}

fn message(message: impl Message + 'static) -> Answer {
    messages(vec![message])
}

fn messages<M: Message + 'static>(messages: Vec<M>) -> Answer {
    blobs(stream::iter(messages).map(|message| Ok(message.encode_to_vec())))
}

fn nothing() -> Answer {
    messages::<Written>(Vec::new())
}
