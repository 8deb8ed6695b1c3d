//! Entry points of the fuzz targets; not part of the crate's interface.

use std::sync::{Arc, LazyLock};

use arrow_array::{Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use lightship_transport::net::Caller;
use lightship_wire::control::{ErrorCode, Failure};
use lightship_wire::{Codec, Encoder};
use prost::Message;
use redb::Database;
use redb::backends::InMemoryBackend;

use crate::bucket::decode_block;
use crate::definition::{Capacity, Definition};
use crate::error::Result;
use crate::group::{Group, GroupRows, Grouped};
use crate::key::Interval;
use crate::network::{Network, Reply, body};
use crate::node::Node;
use crate::request::{BucketRecord, Notice, RangeRecord, Request, RequestKind, Scan, Write, WriteMode};

/// The most batches that are read of an answer.
const BATCHES_MAX: usize = 100;

/// What a client asks: rows with these keys, an interval of keys, or any bytes.
pub type Asked = (Option<(u8, Vec<i8>)>, Option<(Vec<u8>, Option<Vec<u8>>, Option<u8>)>, Vec<u8>);

/// No other node.
struct Nobody;

impl Network for Nobody {
    fn nodes(&self) -> Vec<String> {
        Vec::new()
    }

    fn request(&self, _: &str, _: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        async { Err(Failure::new(ErrorCode::Peer, "there is no other node").into()) }.boxed()
    }
}

static DEFINITION: LazyLock<Definition> = LazyLock::new(|| {
    let columns =
        Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("text", DataType::Utf8, true)]);
    Definition::new("t", &columns, &["id".into()], Capacity::Records(50)).expect("a definition")
});

/// Sends requests of a client to a node that has a file with one bucket, and reads the answers.
pub async fn requests(asked: Vec<Asked>) {
    let database = Database::builder().create_with_backend(InMemoryBackend::new()).expect("a database");
    let node = Node::over(database, "here", Arc::new(Nobody), 1).expect("a node");
    let created = RequestKind::Create(DEFINITION.to_record().expect("a record"));
    answer(&node, body(created)).await;
    for (rows, interval, bytes) in asked {
        let Some(entry) = node.buckets("t").into_iter().next() else { return };
        if let Some((mode, keys)) = rows {
            let adjust = interval.as_ref();
            let adjust = adjust.map(|(low, high, _)| RangeRecord { low: low.clone(), high: high.clone() });
            let write = Write {
                file: "t".into(),
                bucket: entry.bucket,
                mode: i32::from(mode % 5),
                rows: message(mode.into(), &keys),
                adjust,
            };
            answer(&node, body(RequestKind::Write(write))).await;
        }
        if let Some((low, high, limit)) = interval {
            let scan = Scan {
                file: "t".into(),
                bucket: entry.bucket,
                range: RangeRecord { low, high },
                limit: limit.map(u64::from),
                columns: None,
                adjust: limit.is_some_and(|limit| limit % 2 == 0),
            };
            answer(&node, body(RequestKind::Count(scan.clone()))).await;
            answer(&node, body(RequestKind::Last(scan.clone()))).await;
            for rows in [None, Some(GroupRows { limit: scan.limit, bytes_max: 1000, columns: None })] {
                let mut group = Group { file: "t".into(), hops: 2, wait_ms: 1000, rows, ..Group::default() };
                for number in 0..3 {
                    group.nodes.push(["here", "there", "here"][number as usize].into());
                    group.owners.push(number);
                    group.numbers.push(number);
                    group.buckets.push(entry.bucket);
                    group.epochs.push(number.into());
                    group.lows.push(scan.range.low.clone());
                    group.highs.push(scan.range.high.clone().unwrap_or_default());
                }
                answer(&node, body(RequestKind::Group(group))).await;
            }
            answer(&node, body(RequestKind::Scan(scan))).await;
        }
        answer(&node, bytes).await;
    }
}

/// Rows as a write has them, whether they are in order or not.
fn message(mode: i32, keys: &[i8]) -> Vec<u8> {
    let schema = if mode == WriteMode::Delete as i32 { DEFINITION.loose() } else { &DEFINITION.schema };
    let ids = Int64Array::from_iter_values(keys.iter().map(|&key| key.into()));
    let texts: StringArray = keys.iter().map(|key| (key % 3 != 0).then(|| key.to_string())).collect();
    let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(ids), Arc::new(texts)]).expect("rows");
    let mut encoder = Encoder::new(Codec::Light);
    let message = encoder.encode(&batch).expect("a message");
    message.pieces().flatten().copied().collect()
}

async fn answer(node: &Node, body: Vec<u8>) {
    if let Ok(mut answer) = node.answer(&body, &Caller::default()).await {
        for _ in 0..BATCHES_MAX {
            if !matches!(answer.rows.next().await, Some(Ok(_))) {
                return;
            }
        }
    }
}

/// Decodes stored and sent bytes: a block, whose checksum is made right, and messages.
pub fn bytes(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    if let Some((header, message)) = block.split_at_mut_checked(8) {
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, message) as u32;
        header[4..].copy_from_slice(&crc.to_le_bytes());
    }
    let _ = decode_block(&DEFINITION, &block);
    let _ = Request::decode(bytes);
    let _ = Notice::decode(bytes);
    let _ = Grouped::decode(bytes);
    if let Ok(group) = Group::decode(bytes) {
        let _ = group.decode_parts();
    }
    if let Ok(record) = BucketRecord::decode(bytes) {
        let interval: Interval = record.range.into();
        let _ = interval.is_empty();
    }
}
