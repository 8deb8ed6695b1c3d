//! The two state machines, wired together under virtual time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{Int64Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_schema::Schema;
use lightship_wire::cluster::CAPABILITY_CLUSTER;
use lightship_wire::control::{Accepted, ErrorCode, Failure, Hello, Plan, Query, Stats};
use lightship_wire::frame::{FLAG_LAST, Header, Kind, crc32c};
use lightship_wire::local::{CAPABILITY_MEETING, Loan, Meeting};
use lightship_wire::tuning::{CAPABILITY_RESIZE, Progress, Retune, Stage, Work};
use lightship_wire::{Codec, Encoder};

use super::*;
use crate::TransportError;

mod join;
mod queue;
mod resize;
mod stall;

const INTERVAL: Duration = Duration::from_secs(10);
const STALL: Duration = Duration::from_secs(60);

struct Pair {
    now: Instant,
    client: Client,
    server: Server,
}

fn split(frame: &Frame) -> (Header, Buffer) {
    let header = Header::decode(&frame.header).unwrap();
    let payload: Vec<u8> = frame.payload.pieces().flatten().copied().collect();
    header.verify(&payload).unwrap();
    (header, Buffer::from_vec(payload))
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();
        let client = Client::new(now, "secret".into(), CAPABILITY_RESIZE, INTERVAL);
        let server = Server::new(now, INTERVAL, Some(STALL));
        Self { now, client, server }
    }

    fn greeted() -> Self {
        let mut pair = Self::new();
        assert!(
            matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Hello(h)] if h.token == "secret")
        );
        pair.server.welcome(String::new(), CAPABILITY_RESIZE, None);
        assert!(matches!(pair.deliver_to_client().as_slice(), [ClientEvent::Ready]));
        pair
    }

    fn asked(plan: Plan) -> Self {
        let mut pair = Self::greeted();
        pair.client.query(&Query { sql: "q".into(), plan }).unwrap();
        assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Query(q)] if q.sql == "q"));
        pair
    }

    fn accepted(plan: Plan) -> Self {
        let mut pair = Self::asked(plan);
        pair.accept();
        pair
    }

    fn accept(&mut self) {
        let schema = rows(0).schema().as_ref().clone();
        self.server.accept(&Accepted { schema, rows_estimate: Some(3) }).unwrap();
        assert!(matches!(
            self.deliver_to_client().as_slice(),
            [ClientEvent::Accepted { rows_estimate: Some(3), .. }]
        ));
    }

    fn deliver_to_server(&mut self) -> Vec<ServerEvent> {
        let mut events = Vec::new();
        while let Some(frame) = self.client.poll_transmit() {
            let (header, payload) = split(&frame);
            events.extend(self.server.handle(self.now, &header, &payload).unwrap());
        }
        events
    }

    fn deliver_to_client(&mut self) -> Vec<ClientEvent> {
        let mut events = Vec::new();
        while let Some(frame) = self.server.poll_transmit() {
            let (header, payload) = split(&frame);
            events.extend(self.client.handle(self.now, &header, payload).unwrap());
        }
        events
    }

    fn send(&mut self, count: usize) {
        self.server.message(Encoder::new(Codec::None).encode(&rows(count)).unwrap());
    }

    /// What the client says to a frame that no honest server sends now.
    fn forge(
        &mut self,
        kind: Kind,
        flags: u16,
        stream: u32,
        sequence: u64,
        payload: Vec<u8>,
    ) -> TransportError {
        let header = Header {
            kind,
            flags,
            stream,
            payload_bytes: payload.len() as u32,
            sequence,
            payload_crc: crc32c(&payload),
        };
        self.client.handle(self.now, &header, Buffer::from_vec(payload)).unwrap_err()
    }
}

/// The first frame of a peer that can do no more than this.
fn hello_frame(capabilities: u64) -> (Header, Vec<u8>) {
    let hello = Hello { ping_interval_ms: 1, capabilities, ..Hello::default() }.encode();
    let header = Header {
        kind: Kind::Hello,
        flags: 0,
        stream: 0,
        payload_bytes: hello.len() as u32,
        sequence: 0,
        payload_crc: crc32c(&hello),
    };
    (header, hello)
}

fn rows(count: usize) -> RecordBatch {
    let column = Int64Array::from_iter_values(0..count as i64);
    RecordBatch::try_from_iter([("n", Arc::new(column) as _)]).unwrap()
}

fn window(window_batches: u32) -> Plan {
    Plan { window_batches, ..Plan::default() }
}

#[test]
fn a_result_arrives_whole() {
    let mut pair = Pair::accepted(window(2));
    pair.send(5);
    pair.send(6);
    pair.server.end_batch();
    pair.send(7);
    pair.server.finish(&Stats { encode_ns: 9, ..Stats::default() });
    let events = pair.deliver_to_client();
    let counts: Vec<usize> = events
        .iter()
        .filter_map(|e| match e {
            ClientEvent::Message(message) => Some(message.clone().decode().unwrap().num_rows()),
            _ => None,
        })
        .collect();
    assert_eq!(counts, [5, 6, 7]);
    let Some(ClientEvent::Finished(totals)) = events.last() else { panic!("{events:?}") };
    assert_eq!((totals.rows, totals.messages, totals.batches, totals.producer.encode_ns), (18, 3, 2, 9));
    assert!(pair.client.is_idle() && pair.server.is_idle());
}

#[test]
fn the_window_holds_the_producer_back() {
    let mut pair = Pair::accepted(window(2));
    for _ in 0..2 {
        assert!(pair.server.has_credit());
        pair.send(1);
        pair.server.end_batch();
    }
    assert!(!pair.server.has_credit());
    pair.deliver_to_client();
    pair.client.consumed(1, &Progress::default());
    pair.deliver_to_server();
    assert!(pair.server.has_credit());
}

#[test]
fn a_result_that_fills_its_window_exactly_can_end() {
    let mut pair = Pair::accepted(window(1));
    pair.send(1);
    pair.server.end_batch();
    assert!(!pair.server.has_credit());
    pair.server.finish(&Stats::default());
    assert!(matches!(pair.deliver_to_client().last(), Some(ClientEvent::Finished(t)) if t.rows == 1));
}

#[test]
fn connections_serve_one_query_after_the_other() {
    let mut pair = Pair::greeted();
    for _ in 0..3 {
        pair.client.query(&Query { sql: "q".into(), plan: window(1) }).unwrap();
        assert!(pair.client.query(&Query { sql: "q".into(), plan: window(1) }).is_err());
        pair.deliver_to_server();
        pair.accept();
        pair.server.finish(&Stats::default());
        assert!(matches!(pair.deliver_to_client().last(), Some(ClientEvent::Finished(_))));
    }
}

#[test]
fn a_cancelled_query_leaves_the_connection_usable() {
    let mut pair = Pair::accepted(window(4));
    pair.send(1);
    pair.client.cancel();
    pair.client.cancel();
    assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Cancel]));
    pair.server.fail(&Failure::new(ErrorCode::Cancelled, "cancelled"));
    let events = pair.deliver_to_client();
    // Rows that were on their way are dropped unread.
    assert!(matches!(events.as_slice(), [ClientEvent::Failed(f)] if f.code == ErrorCode::Cancelled));
    pair.client.query(&Query { sql: "q".into(), plan: window(1) }).unwrap();
    assert_eq!(pair.deliver_to_server().len(), 1);
}

#[test]
fn cancel_and_credit_may_come_too_late() {
    let mut pair = Pair::accepted(window(4));
    pair.send(1);
    pair.server.end_batch();
    pair.server.finish(&Stats::default());
    pair.client.cancel();
    pair.client.consumed(1, &Progress::default());
    assert!(pair.deliver_to_server().is_empty());
    assert!(matches!(pair.deliver_to_client().last(), Some(ClientEvent::Finished(_))));
}

#[test]
fn failures_are_typed() {
    let mut pair = Pair::asked(window(1));
    let failure = Failure { position: Some((1, 8)), ..Failure::new(ErrorCode::Sql, "no such column") };
    pair.server.fail(&failure);
    assert!(matches!(pair.deliver_to_client().as_slice(), [ClientEvent::Failed(f)] if *f == failure));

    let mut pair = Pair::new();
    pair.deliver_to_server();
    pair.server.refuse(&Failure::new(ErrorCode::Unauthenticated, "who?"));
    let frame = pair.server.poll_transmit().unwrap();
    let (header, payload) = split(&frame);
    let error = pair.client.handle(pair.now, &header, payload).unwrap_err();
    assert!(matches!(error, TransportError::Failed(f) if f.code == ErrorCode::Unauthenticated));
}

#[test]
fn a_meeting_is_for_those_who_would_come() {
    let meeting =
        Meeting { name: "lightship-1".into(), client_token: "client".into(), server_token: "server".into() };
    let mut pair = Pair::new();
    pair.client = Client::new(pair.now, String::new(), CAPABILITY_MEETING | 1 << 63, INTERVAL);
    pair.deliver_to_server();
    pair.server.welcome("token".into(), 0, Some(&meeting));
    assert!(matches!(pair.deliver_to_client().as_slice(), [ClientEvent::Ready]));
    assert_eq!(pair.client.meeting(), Some(&meeting));
    let hello = pair.client.server();
    assert_eq!(hello.capabilities & (CAPABILITY_MEETING | 1 << 63), CAPABILITY_MEETING);
    assert_eq!(hello.token, "token");

    // One that did not offer to come takes the bit for nothing, and the frame for a mistake.
    let mut pair = Pair::new();
    pair.deliver_to_server();
    pair.server.welcome(String::new(), 0, Some(&meeting));
    let (header, payload) = split(&pair.server.poll_transmit().unwrap());
    assert!(matches!(pair.client.handle(pair.now, &header, payload), Ok(Some(ClientEvent::Ready))));
    let (header, payload) = split(&pair.server.poll_transmit().unwrap());
    let error = pair.client.handle(pair.now, &header, payload).unwrap_err().to_string();
    assert!(error.contains("Meeting"), "{error}");
}

#[test]
fn releases_go_at_any_time_and_mean_no_credit() {
    let mut pair = Pair::accepted(window(1));
    pair.send(1);
    pair.server.end_batch();
    pair.deliver_to_client();
    pair.client.release(&[Loan { segment: 1, offset: 0 }]);
    assert!(pair.deliver_to_server().is_empty());
    assert!(!pair.server.has_credit());
    pair.server.finish(&Stats::default());
    pair.deliver_to_client();
    pair.client.release(&[Loan { segment: 1, offset: 64 }]);
    assert!(pair.deliver_to_server().is_empty());
}

#[test]
fn a_short_result_is_noticed() {
    let mut pair = Pair::accepted(window(4));
    let end = lightship_wire::control::BatchEnd { rows: 5, messages: 1 };
    let error = pair.forge(Kind::BatchEnd, FLAG_LAST, 1, 1, end.encode()).to_string();
    assert!(error.contains("5 rows in 1 messages, 0 in 0"), "{error}");
}

#[test]
fn frames_out_of_order_or_place_are_refused() {
    let message = || Encoder::new(Codec::None).encode(&rows(1)).unwrap().to_vec();
    for (kind, stream, sequence, word) in [
        (Kind::Message, 1, 0, "frame 0 of stream 1"),
        (Kind::Message, 1, 2, "frame 2 of stream 1"),
        (Kind::Message, 2, 0, "stream 2"),
        (Kind::Query, 1, 1, "Query"),
        (Kind::Hello, 0, 1, "Hello"),
    ] {
        let error = Pair::accepted(window(1)).forge(kind, 0, stream, sequence, message()).to_string();
        assert!(error.contains(word), "{kind:?}: {error}");
    }
}

#[test]
fn a_server_that_sends_more_than_it_may_is_refused() {
    let message = |count| Encoder::new(Codec::None).encode(&rows(count)).unwrap().to_vec();

    let mut pair = Pair::accepted(window(1));
    pair.send(1);
    pair.server.end_batch();
    pair.deliver_to_client();
    let error = pair.forge(Kind::Message, 0, 1, 3, message(1)).to_string();
    assert!(error.contains("without credit"), "{error}");

    let mut pair = Pair::accepted(Plan { batch_bytes: 1000, ..window(1) });
    pair.send(100);
    pair.deliver_to_client();
    let error = pair.forge(Kind::Message, 0, 1, 2, message(100)).to_string();
    assert!(error.contains("more than 1000 bytes"), "{error}");

    let mut pair = Pair::accepted(window(1));
    let most = batch_messages_max(Plan::default().batch_bytes);
    for _ in 0..most {
        pair.send(0);
    }
    pair.deliver_to_client();
    let error = pair.forge(Kind::Message, 0, 1, 1 + u64::from(most), message(1)).to_string();
    assert!(error.contains("messages"), "{error}");
}

#[test]
fn a_message_larger_than_a_batch_travels_alone() {
    let mut pair = Pair::accepted(Plan { batch_bytes: 1000, ..window(3) });
    pair.send(1);
    pair.server.end_batch();
    let large = Encoder::new(Codec::None).encode(&rows(1000)).unwrap();
    assert!(pair.server.has_credit() && !pair.server.has_credit_for(&large));
    pair.deliver_to_client();
    pair.client.consumed(1, &Progress::default());
    pair.deliver_to_server();
    assert!(pair.server.has_credit_for(&large));
    pair.server.message(large);
    pair.server.end_batch();
    assert!(!pair.server.has_credit());
    let events = pair.deliver_to_client();
    assert!(matches!(events.last(), Some(ClientEvent::BatchEnd { credit: 3 })));
    pair.client.consumed(3, &Progress::default());
    pair.deliver_to_server();
    assert!(pair.server.has_credit());
}

#[test]
fn two_large_messages_at_once_are_refused() {
    let large = || Encoder::new(Codec::None).encode(&rows(1000)).unwrap().to_vec();
    let mut pair = Pair::accepted(Plan { batch_bytes: 1000, ..window(3) });
    pair.send(1);
    pair.server.end_batch();
    pair.deliver_to_client();
    let error = pair.forge(Kind::Message, 0, 1, 3, large()).to_string();
    assert!(error.contains("beside other batches"), "{error}");
}

#[test]
fn ends_of_empty_batches_mint_no_credit() {
    let mut pair = Pair::accepted(window(1));
    let end = lightship_wire::control::BatchEnd::default();
    let error = pair.forge(Kind::BatchEnd, 0, 1, 1, end.encode()).to_string();
    assert!(error.contains("without messages"), "{error}");
}

#[test]
fn who_slept_does_not_blame_the_peer() {
    let mut pair = Pair::accepted(window(1));
    pair.now += INTERVAL * 10;
    pair.client.wake(pair.now).unwrap();
    pair.deliver_to_server();
    pair.deliver_to_client();
    pair.now += INTERVAL;
    pair.client.wake(pair.now).unwrap();
}

#[test]
fn bytes_of_a_frame_that_is_not_whole_are_a_sign_of_life() {
    let mut pair = Pair::accepted(window(1));
    for _ in 0..10 {
        pair.now += INTERVAL / 2;
        pair.client.received(pair.now);
        pair.client.wake(pair.now).unwrap();
    }
}

#[test]
fn clients_can_send_no_rows() {
    let pair = Pair::accepted(window(1));
    assert_eq!(pair.server.payload_bytes_max(Kind::Message), 0);
    assert_eq!(pair.client.payload_bytes_max(Kind::Message), Plan::default().message_bytes_max);
    assert_eq!(Pair::greeted().client.payload_bytes_max(Kind::Message), 0);
}

#[test]
fn a_quiet_peer_is_pinged_and_answers() {
    let mut pair = Pair::accepted(window(1));
    for _ in 0..10 {
        pair.now += INTERVAL;
        pair.client.wake(pair.now).unwrap();
        pair.server.wake(pair.now).unwrap();
        pair.deliver_to_server();
        pair.deliver_to_client();
        pair.deliver_to_server();
    }
    assert!(pair.client.deadline() > pair.now);
}

#[test]
fn a_silent_peer_is_given_up() {
    let mut pair = Pair::accepted(window(1));
    let began = pair.now;
    loop {
        pair.now = pair.client.deadline().max(pair.now + Duration::from_millis(1));
        match pair.client.wake(pair.now) {
            Ok(()) => assert!(pair.now - began < INTERVAL * 3),
            Err(TransportError::Silent { after }) => {
                assert_eq!(after, INTERVAL * 3);
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn nodes_lose_each_other_at_the_same_time() {
    let interval_of = |capabilities, client_interval| {
        let mut pair = Pair::new();
        pair.client = Client::new(pair.now, String::new(), capabilities, client_interval);
        pair.deliver_to_server();
        pair.server.welcome(String::new(), capabilities, None);
        pair.server.deadline() - pair.now
    };
    let short = INTERVAL / 5;
    assert_eq!(interval_of(CAPABILITY_CLUSTER, short), short);
    assert_eq!(interval_of(CAPABILITY_CLUSTER, INTERVAL * 2), INTERVAL);
    assert!(interval_of(CAPABILITY_CLUSTER, Duration::ZERO) > Duration::ZERO);
    // Clients are given the server's time.
    assert_eq!(interval_of(CAPABILITY_RESIZE, short), INTERVAL);
}

#[test]
fn schemas_of_no_columns_are_fine() {
    let mut pair = Pair::asked(window(1));
    pair.server.accept(&Accepted { schema: Schema::empty(), rows_estimate: None }).unwrap();
    pair.server.finish(&Stats::default());
    assert_eq!(pair.deliver_to_client().len(), 2);
}

fn adaptive() -> Plan {
    Plan { codec: None, ..window(2) }
}

fn choose(pair: &mut Pair, codec: Codec, slowest: Option<Stage>) {
    pair.server.retune(&Retune { codec, slowest });
}

#[test]
fn the_producer_says_what_it_chooses_and_hears_what_was_measured() {
    let mut pair = Pair::accepted(adaptive());
    choose(&mut pair, Codec::Light, None);
    pair.send(5);
    pair.server.end_batch();
    choose(&mut pair, Codec::LightZstd, Some(Stage::Send));
    pair.send(6);
    pair.send(7);
    pair.server.end_batch();
    let codecs: Vec<_> = pair
        .deliver_to_client()
        .iter()
        .filter_map(|event| match event {
            ClientEvent::Message(message) => Some(message.codec()),
            _ => None,
        })
        .collect();
    assert_eq!(codecs, [Codec::Light, Codec::LightZstd, Codec::LightZstd]);
    let mut progress = Progress { decoders: 3, consumed: Work { bytes: 1, ns: 2 }, ..Progress::default() };
    progress.decoded[Codec::Light as usize].add(3, 4);
    pair.client.consumed(1, &progress);
    assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Progress(p)] if *p == progress));
    pair.server.finish(&Stats::default());
    pair.client.consumed(1, &progress);
    // Too late is no fault.
    assert!(pair.deliver_to_server().is_empty());
    let events = pair.deliver_to_client();
    let Some(ClientEvent::Finished(totals)) = events.last() else { panic!("{events:?}") };
    let retuned =
        Retuned { message: 1, from: Codec::Light, to: Codec::LightZstd, slowest: Some(Stage::Send) };
    assert_eq!(totals.retunes, [retuned]);
    let messages = totals.codecs.map(|of_codec| of_codec.messages);
    assert_eq!(messages, [0, 0, 0, 1, 0, 2]);
    assert_eq!(totals.codecs.map(|of_codec| of_codec.bytes_wire).iter().sum::<u64>(), totals.bytes_wire);
}

#[test]
fn a_codec_that_is_fixed_is_not_discussed() {
    let mut pair = Pair::accepted(window(2));
    choose(&mut pair, Codec::Light, None);
    pair.send(5);
    pair.server.end_batch();
    assert_eq!(pair.deliver_to_client().len(), 2);
    pair.client.consumed(1, &Progress::default());
    assert!(pair.deliver_to_server().is_empty());
    let retune = Retune { codec: Codec::Light, slowest: None }.encode();
    let error = pair.forge(Kind::Retune, 0, 1, 3, retune).to_string();
    assert!(error.contains("where none may be"), "{error}");
}

#[test]
fn codecs_change_between_batches_and_are_said_beforehand() {
    let retune = || Retune { codec: Codec::Light, slowest: None }.encode();
    let mut pair = Pair::accepted(adaptive());
    choose(&mut pair, Codec::None, None);
    pair.send(1);
    pair.deliver_to_client();
    let error = pair.forge(Kind::Retune, 0, 1, 3, retune()).to_string();
    assert!(error.contains("where none may be"), "{error}");

    let message = Encoder::new(Codec::None).encode(&rows(1)).unwrap().to_vec();
    let error = Pair::accepted(adaptive()).forge(Kind::Message, 0, 1, 1, message).to_string();
    assert!(error.contains("before its codec"), "{error}");
}

#[test]
fn changes_without_end_are_not_kept() {
    let mut pair = Pair::accepted(adaptive());
    for _ in 0..=2 * RETUNES_MAX {
        choose(&mut pair, Codec::Light, Some(Stage::Send));
    }
    pair.server.finish(&Stats::default());
    let events = pair.deliver_to_client();
    let Some(ClientEvent::Finished(totals)) = events.last() else { panic!("{events:?}") };
    assert_eq!(totals.retunes.len(), RETUNES_MAX);
}

#[test]
fn a_server_of_before_is_asked_for_what_it_knows() {
    let now = Instant::now();
    let mut client = Client::new(now, String::new(), 0, INTERVAL);
    let (header, hello) = hello_frame(0);
    client.handle(now, &header, Buffer::from_vec(hello)).unwrap();
    assert_eq!(client.settle(adaptive()).unwrap().codec, Some(Codec::Lz4));
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        assert_eq!(client.settle(Plan { codec: Some(codec), ..window(1) }).unwrap().codec, Some(codec));
    }
    for codec in [Codec::Light, Codec::LightLz4, Codec::LightZstd] {
        let plan = Plan { codec: Some(codec), ..window(1) };
        let error = client.query(&Query { sql: "q".into(), plan }).unwrap_err();
        assert!(
            matches!(&error, TransportError::Config(text) if text.contains(&codec.to_string())),
            "{error}"
        );
    }
    assert!(client.is_idle());
    client.query(&Query { sql: "q".into(), plan: adaptive() }).unwrap();
    let sent = std::iter::from_fn(|| client.poll_transmit()).last().unwrap();
    assert_eq!(Query::decode(&split(&sent).1).unwrap().plan.codec, Some(Codec::Lz4));
}
