//! Golden files: bytes of version 2, which must always be readable. The files are never edited;
//! `LIGHTSHIP_GOLDEN=write` writes those that are missing.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray, StringViewArray};
use arrow_buffer::Buffer;
use lightship_testkit::arrays;
use lightship_wire::cluster::{Recipient, Task};
use lightship_wire::control::{
    Accepted, BatchEnd, ErrorCode, Failure, Hello, Plan, Query, Queued, Stats, encode_credit,
};
use lightship_wire::frame::{FrameHeader, FrameKind, crc32c};
use lightship_wire::join::{Join, Placeholder, StripeOffer};
use lightship_wire::overlay::{ClassCredit, LinkNotice, LinkUse, Neighbour, Route, encode_lost};
use lightship_wire::shm::{Loan, Rendezvous, SegmentSlot, encode_release};
use lightship_wire::statement::{Action, Description, Statement};
use lightship_wire::tuning::{Progress, Retune, Sizes, Stage, Work};
use lightship_wire::{Codec, Encoder, decode, schema};

use crate::CODECS;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/v2").join(name)
}

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn writes_missing() -> bool {
    std::env::var_os("LIGHTSHIP_GOLDEN").is_some_and(|value| value == "write")
}

fn check(name: &str, bytes: &[u8]) {
    if !path(name).exists() && writes_missing() {
        std::fs::write(path(name), bytes).unwrap();
    }
    assert_eq!(bytes, golden(name), "{name} is not written as version 2 writes it");
}

#[test]
fn control_frames() {
    check(
        "hello.bin",
        &Hello {
            agent: "golden/1".into(),
            token: "secret".into(),
            capabilities: 0,
            ping_interval_ms: 10_000,
        }
        .encode(),
    );
    check("queued.bin", &Queued { ahead: 3, wait_ms: 10_000 }.encode());
    check("query.bin", &Query { sql: "select 1".into(), plan: Plan::default() }.encode());
    check("batch-end.bin", &BatchEnd { rows: 6_001_215, messages: 1000 }.encode());
    check("stats.bin", &Stats { produce_ns: 1, encode_ns: 2, send_ns: 3, wait_ns: 4 }.encode());
    check("credit.bin", &encode_credit(3));
    let failure = Failure {
        position: Some((1, 8)),
        needed_bytes: Some(77),
        ..Failure::new(ErrorCode::RowTooLarge, "too large").hint("allow more")
    };
    check("error.bin", &failure.encode());
    let accepted = Accepted { schema: arrays::every_type_schema().as_ref().clone(), rows_estimate: Some(7) };
    check("schema.bin", &accepted.encode().unwrap());
    let header = FrameHeader {
        kind: FrameKind::Message,
        flags: 1,
        stream: 2,
        payload_bytes: 9,
        part_bytes: 4,
        sequence: 3,
        payload_crc: crc32c(b"123456789"),
    };
    check("header.bin", &header.encode());
}

#[test]
fn frames_about_the_codec() {
    let mut progress = Progress { decoders: 2, consumed: Work { bytes: 3, ns: 4 }, ..Progress::default() };
    progress.decoded[Codec::None.index()].add(5, 6);
    progress.decoded[Codec::LightZstd.index()].add(7, 8);
    check("progress.bin", &progress.encode());
    check("resize.bin", &Sizes { batch_bytes: 3, message_bytes: 2, window_batches: 1 }.encode());
    check("retune.bin", &Retune { codec: Codec::LightLz4, slowest: Some(Stage::Send) }.encode());
}

#[test]
fn frames_between_client_and_server_on_one_host() {
    let meeting = Rendezvous {
        name: "lightship-00112233445566778899aabbccddeeff".into(),
        client_token: "client".into(),
        server_token: "server".into(),
    };
    check("rendezvous.bin", &meeting.encode());
    check(
        "place.bin",
        &SegmentSlot { segment: 1, offset: 1 << 20, bytes: 77, crc: crc32c(b"123456789") }.encode(),
    );
    check("release.bin", &encode_release(&[Loan { segment: 1, offset: 0 }, Loan { segment: 2, offset: 64 }]));
}

#[test]
fn frames_about_several_connections() {
    let secret = std::array::from_fn(|n| n as u8 * 17);
    check("stripe-offer.bin", &StripeOffer { secret, connections: 3 }.encode());
    check("join.bin", &Join { secret, connection: 2 }.encode());
    check(
        "placeholder.bin",
        &Placeholder { connection: 2, bytes: 77, rows: 33, body_bytes: 1 << 20 }.encode(),
    );
    let plan = Plan { streams: 3, ..Plan::default() };
    check("query.streams.bin", &Query { sql: "select 1".into(), plan }.encode());
}

#[test]
fn statements() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["ü"]));
    let row = RecordBatch::try_from_iter([("$1", text)]).unwrap();
    let columns = row.schema().as_ref().clone();
    let statement = |action| Statement { sql: "select $1".into(), plan: Plan::default(), action };
    check("statement.execute.bin", &statement(Action::Execute(row)).encode().unwrap());
    check("statement.describe.bin", &statement(Action::Describe).encode().unwrap());
    let description = Description { columns: columns.clone(), parameters: columns, is_update: false };
    check("description.bin", &description.encode().unwrap());
}

#[test]
fn frames_between_nodes() {
    let task = Task { recipient: Recipient::Engine, body: b"scan".to_vec(), plan: Plan::default() };
    check("task.bin", &task.encode());
    check("task.range.bin", &Task { recipient: Recipient::RangeFiles, ..task }.encode());
}

#[test]
fn frames_of_overlays() {
    let route = Route { from: 1, to: 258, hops: 3, accepted: true, tunnel: 4, number: 5 };
    check("route.bin", &route.encode());
    let (link, digest) = (LinkUse::DirectBothWays, 0x0123_4567_89ab_cdef);
    let neighbour = Neighbour { node: 1, peer: 2, link, number: 3, digest };
    check("neighbour.bin", &neighbour.encode());
    check("class-credit.bin", &ClassCredit { class: 1, count: 2, received: 3 }.encode());
    let broken = LinkNotice { by: 1, peer: 2, opened: true, topology: true, number: 3, received: Some(4) };
    check("link-notice.bin", &broken.encode());
    check("link-notice.opened.bin", &LinkNotice { received: None, ..broken }.encode());
    check("lost.bin", &encode_lost(7));
}

#[test]
fn messages_of_every_type() {
    if writes_missing() {
        let batch = arrays::every_type(33, 7);
        check("every-type.schema.bin", &schema::encode(&batch.schema()).unwrap());
        for codec in CODECS {
            check(&message_name(codec), &Encoder::new(codec).encode(&batch).unwrap().to_vec());
        }
    }
    let schema = Arc::new(schema::decode(&golden("every-type.schema.bin")).unwrap());
    let read = |codec| decode(&schema, Buffer::from_vec(golden(&message_name(codec))), u32::MAX).unwrap();
    let batch = read(Codec::None);
    assert_eq!((batch.num_rows(), batch.num_columns()), (33, schema.fields().len()));
    CODECS.into_iter().for_each(|codec| assert_eq!(read(codec), batch));
    // A later version of a compressor may write other bytes; the rest may not change.
    check("every-type.schema.bin", &schema::encode(&schema).unwrap());
    for codec in [Codec::None, Codec::Light] {
        check(&message_name(codec), &Encoder::new(codec).encode(&batch).unwrap().to_vec());
    }
}

/// Enough text for symbols.
#[test]
fn a_message_with_symbols() {
    let texts: Vec<String> =
        (0..400).map(|row| format!("row {row} says nearly what the row before it says")).collect();
    let columns: [(_, ArrayRef); 2] = [
        ("text", Arc::new(StringArray::from_iter_values(&texts))),
        ("view", Arc::new(StringViewArray::from_iter_values(&texts))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut encoder = Encoder::new(Codec::Light);
    let messages: Vec<_> = (0..8).map(|_| encoder.encode(&batch).unwrap().to_vec()).collect();
    check("symbols.bin", &messages[7]);
    let [first, last] = [0, 7].map(|message| messages[message].len());
    assert!(2 * last < first, "{last} bytes with symbols, {first} without");
    assert_eq!(decode(&batch.schema(), Buffer::from_vec(golden("symbols.bin")), u32::MAX).unwrap(), batch);
}

fn message_name(codec: Codec) -> String {
    format!("every-type.{codec}.bin")
}
