//! The two state machines, wired together under virtual time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{Int64Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_schema::Schema;
use lightship_wire::cluster::{CAPABILITY_CLUSTER, CAPABILITY_RANGE_FILES, Recipient, Task};
use lightship_wire::control::{Accepted, ErrorCode, Failure, Plan, Query, Stats};
use lightship_wire::frame::{FLAG_LAST, FrameHeader, FrameKind};
use lightship_wire::shm::{CAPABILITY_RENDEZVOUS, Loan, Rendezvous};
use lightship_wire::tuning::{CAPABILITY_RESIZE, Progress, Retune, Stage, Work};
use lightship_wire::{Codec, Encoder};

use super::*;
use crate::TransportError;

mod join;
mod queue;
mod resize;
mod stall;
mod statements;
mod streams;

const INTERVAL: Duration = Duration::from_secs(10);
const STALL: Duration = Duration::from_secs(60);

struct Pair {
    now: Instant,
    client: Client,
    server: Server,
    /// Of the last query.
    stream: u32,
}

fn split(frame: &Frame) -> (FrameHeader, Buffer) {
    let header = FrameHeader::decode(&frame.header).unwrap();
    let payload: Vec<u8> = frame.pieces().flatten().copied().collect();
    header.verify(&payload).unwrap();
    (header, Buffer::from_vec(payload))
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();
        let client = Client::new(now, "secret".into(), CAPABILITY_RESIZE, INTERVAL);
        let server = Server::new(now, INTERVAL, Some(STALL));
        Self { now, client, server, stream: 1 }
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

    fn requested(plan: Plan) -> Self {
        let mut pair = Self::greeted();
        pair.stream = pair.client.query(&Query { sql: "q".into(), plan }).unwrap();
        assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Query(q)] if q.sql == "q"));
        pair
    }

    fn accepted(plan: Plan) -> Self {
        let mut pair = Self::requested(plan);
        pair.accept();
        pair
    }

    fn accept(&mut self) {
        let schema = rows(0).schema().as_ref().clone();
        self.server.accept(self.stream, &Accepted { schema, rows_estimate: Some(3) }).unwrap();
        assert!(matches!(
            self.deliver_to_client().as_slice(),
            [ClientEvent::Accepted { rows_estimate: Some(3), .. }]
        ));
    }

    fn deliver_to_server(&mut self) -> Vec<ServerEvent> {
        let mut events = Vec::new();
        while let Some(frame) = self.client.poll_transmit() {
            let (header, payload) = split(&frame);
            events.extend(self.server.handle(self.now, &header, &payload).unwrap().map(|(_, event)| event));
        }
        events
    }

    fn deliver_to_client(&mut self) -> Vec<ClientEvent> {
        let mut events = Vec::new();
        while let Some(frame) = self.server.poll_transmit() {
            let (header, payload) = split(&frame);
            events.extend(self.client.handle(self.now, &header, payload).unwrap().map(|(_, event)| event));
        }
        events
    }

    fn send(&mut self, count: usize) {
        self.server.message(self.stream, Encoder::new(Codec::None).encode(&rows(count)).unwrap());
    }

    /// The client's error for a frame that a correct server does not send now.
    fn forge(
        &mut self,
        kind: FrameKind,
        flags: u16,
        stream: u32,
        sequence: u32,
        payload: Vec<u8>,
    ) -> TransportError {
        let header = FrameHeader::whole(kind, flags, stream, sequence, &payload);
        self.client.handle(self.now, &header, Buffer::from_vec(payload)).unwrap_err()
    }
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
    pair.server.end_batch(pair.stream);
    pair.send(7);
    pair.server.finish(pair.stream, &Stats { encode_ns: 9, ..Stats::default() });
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
        assert!(pair.server.has_credit(pair.stream));
        pair.send(1);
        pair.server.end_batch(pair.stream);
    }
    assert!(!pair.server.has_credit(pair.stream));
    pair.deliver_to_client();
    pair.client.consumed(pair.stream, 1, &Progress::default());
    pair.deliver_to_server();
    assert!(pair.server.has_credit(pair.stream));
}

#[test]
fn a_result_that_fills_its_window_exactly_can_end() {
    let mut pair = Pair::accepted(window(1));
    pair.send(1);
    pair.server.end_batch(pair.stream);
    assert!(!pair.server.has_credit(pair.stream));
    pair.server.finish(pair.stream, &Stats::default());
    assert!(matches!(pair.deliver_to_client().last(), Some(ClientEvent::Finished(t)) if t.rows == 1));
}

#[test]
fn connections_serve_one_query_after_the_other() {
    let mut pair = Pair::greeted();
    for _ in 0..3 {
        pair.stream = pair.client.query(&Query { sql: "q".into(), plan: window(1) }).unwrap();
        pair.deliver_to_server();
        pair.accept();
        pair.server.finish(pair.stream, &Stats::default());
        assert!(matches!(pair.deliver_to_client().last(), Some(ClientEvent::Finished(_))));
    }
}

#[test]
fn a_cancelled_query_leaves_the_connection_usable() {
    let mut pair = Pair::accepted(window(4));
    pair.send(1);
    pair.client.cancel(pair.stream);
    pair.client.cancel(pair.stream);
    assert!(pair.client.is_idle());
    assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Cancel]));
    pair.server.fail(pair.stream, &Failure::new(ErrorCode::Cancelled, "cancelled"));
    // Rows in flight are dropped, and so is the end.
    assert!(pair.deliver_to_client().is_empty());
    pair.stream = pair.client.query(&Query { sql: "q".into(), plan: window(1) }).unwrap();
    assert_eq!(pair.deliver_to_server().len(), 1);
}

#[test]
fn cancel_and_credit_may_come_too_late() {
    let mut pair = Pair::accepted(window(4));
    pair.send(1);
    pair.server.end_batch(pair.stream);
    pair.server.finish(pair.stream, &Stats::default());
    pair.client.consumed(pair.stream, 0, &Progress::default());
    pair.client.cancel(pair.stream);
    assert!(pair.deliver_to_server().is_empty());
    assert!(pair.deliver_to_client().is_empty());
    assert!(pair.client.is_idle() && pair.server.is_idle());
}

#[test]
fn failures_are_typed() {
    let mut pair = Pair::requested(window(1));
    let failure = Failure { position: Some((1, 8)), ..Failure::new(ErrorCode::Sql, "no such column") };
    pair.server.fail(pair.stream, &failure);
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
fn clients_send_only_tasks_for_range_files() {
    let task = |recipient| Task { recipient, body: b"get".to_vec(), plan: Plan::default() };
    let mut pair = Pair::new();
    pair.client = Client::new(pair.now, String::new(), CAPABILITY_RANGE_FILES | CAPABILITY_CLUSTER, INTERVAL);
    pair.deliver_to_server();
    pair.server.welcome(String::new(), CAPABILITY_RANGE_FILES, None);
    pair.deliver_to_client();
    assert!(matches!(pair.client.task(&task(Recipient::Engine)), Err(TransportError::Config(_))));
    pair.client.task(&task(Recipient::RangeFiles)).unwrap();
    let events = pair.deliver_to_server();
    assert!(matches!(events.as_slice(), [ServerEvent::Task(sent)] if *sent == task(Recipient::RangeFiles)));
    // A client that sends one for the engine all the same breaks the protocol.
    let payload = task(Recipient::Engine).encode();
    let header = FrameHeader::whole(FrameKind::Task, 0, 2, 0, &payload);
    let refused = pair.server.handle(pair.now, &header, &payload);
    assert!(matches!(refused, Err(TransportError::Protocol(_))), "{refused:?}");

    // A server without range files takes none.
    let mut pair = Pair::new();
    pair.deliver_to_server();
    pair.server.welcome(String::new(), 0, None);
    pair.deliver_to_client();
    assert!(matches!(pair.client.task(&task(Recipient::RangeFiles)), Err(TransportError::Config(_))));
    assert_eq!(pair.server.payload_bytes_max(FrameKind::Task), 0);
}

#[test]
fn a_rendezvous_is_only_for_clients_that_support_it() {
    let rendezvous = Rendezvous {
        name: "lightship-1".into(),
        client_token: "client".into(),
        server_token: "server".into(),
    };
    let mut pair = Pair::new();
    pair.client = Client::new(pair.now, String::new(), CAPABILITY_RENDEZVOUS | 1 << 63, INTERVAL);
    pair.deliver_to_server();
    pair.server.welcome("token".into(), 0, Some(&rendezvous));
    assert!(matches!(pair.deliver_to_client().as_slice(), [ClientEvent::Ready]));
    assert_eq!(pair.client.rendezvous(), Some(&rendezvous));
    let hello = pair.client.server();
    assert_eq!(hello.capabilities & (CAPABILITY_RENDEZVOUS | 1 << 63), CAPABILITY_RENDEZVOUS);
    assert_eq!(hello.token, "token");

    // A client without the capability ignores the bit, and refuses the frame.
    let mut pair = Pair::new();
    pair.deliver_to_server();
    pair.server.welcome(String::new(), 0, Some(&rendezvous));
    let (header, payload) = split(&pair.server.poll_transmit().unwrap());
    assert!(matches!(pair.client.handle(pair.now, &header, payload), Ok(Some((0, ClientEvent::Ready)))));
    let (header, payload) = split(&pair.server.poll_transmit().unwrap());
    let error = pair.client.handle(pair.now, &header, payload).unwrap_err().to_string();
    assert!(error.contains("Rendezvous"), "{error}");
}

#[test]
fn releases_are_allowed_at_any_time_and_give_no_credit() {
    let mut pair = Pair::accepted(window(1));
    pair.send(1);
    pair.server.end_batch(pair.stream);
    pair.deliver_to_client();
    pair.client.release(&[Loan { segment: 1, offset: 0 }]);
    assert!(pair.deliver_to_server().is_empty());
    assert!(!pair.server.has_credit(pair.stream));
    pair.server.finish(pair.stream, &Stats::default());
    pair.deliver_to_client();
    pair.client.release(&[Loan { segment: 1, offset: 64 }]);
    assert!(pair.deliver_to_server().is_empty());
}

#[test]
fn a_truncated_result_is_detected() {
    let mut pair = Pair::accepted(window(4));
    let end = lightship_wire::control::BatchEnd { rows: 5, messages: 1 };
    let error = pair.forge(FrameKind::BatchEnd, FLAG_LAST, 1, 1, end.encode()).to_string();
    assert!(error.contains("5 rows in 1 messages, but 0 rows in 0 messages"), "{error}");
}

#[test]
fn frames_out_of_order_are_refused() {
    let message = || Encoder::new(Codec::None).encode(&rows(1)).unwrap().to_vec();
    for (kind, stream, sequence, word) in [
        (FrameKind::Message, 1, 0, "frame 0 of stream 1"),
        (FrameKind::Message, 1, 2, "frame 2 of stream 1"),
        (FrameKind::Message, 2, 0, "stream 2"),
        (FrameKind::Query, 1, 1, "Query"),
        (FrameKind::Hello, 0, 1, "Hello"),
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
    pair.server.end_batch(pair.stream);
    pair.deliver_to_client();
    let error = pair.forge(FrameKind::Message, 0, 1, 3, message(1)).to_string();
    assert!(error.contains("without credit"), "{error}");

    let mut pair = Pair::accepted(Plan { batch_bytes: 1000, ..window(1) });
    pair.send(100);
    pair.deliver_to_client();
    let error = pair.forge(FrameKind::Message, 0, 1, 2, message(100)).to_string();
    assert!(error.contains("more than 1000 bytes"), "{error}");

    let mut pair = Pair::accepted(window(1));
    let most = batch_messages_max(Plan::default().batch_bytes);
    for _ in 0..most {
        pair.send(0);
    }
    pair.deliver_to_client();
    let error = pair.forge(FrameKind::Message, 0, 1, 1 + most, message(1)).to_string();
    assert!(error.contains("messages"), "{error}");
}

#[test]
fn a_message_larger_than_a_batch_is_sent_alone() {
    let mut pair = Pair::accepted(Plan { batch_bytes: 1000, ..window(3) });
    pair.send(1);
    pair.server.end_batch(pair.stream);
    let large = Encoder::new(Codec::None).encode(&rows(1000)).unwrap();
    assert!(pair.server.has_credit(pair.stream) && !pair.server.has_credit_for(pair.stream, &large));
    pair.deliver_to_client();
    pair.client.consumed(pair.stream, 1, &Progress::default());
    pair.deliver_to_server();
    assert!(pair.server.has_credit_for(pair.stream, &large));
    pair.server.message(pair.stream, large);
    pair.server.end_batch(pair.stream);
    assert!(!pair.server.has_credit(pair.stream));
    let events = pair.deliver_to_client();
    assert!(matches!(events.last(), Some(ClientEvent::BatchEnd { credit: 3 })));
    pair.client.consumed(pair.stream, 3, &Progress::default());
    pair.deliver_to_server();
    assert!(pair.server.has_credit(pair.stream));
}

#[test]
fn two_large_messages_at_once_are_refused() {
    let large = || Encoder::new(Codec::None).encode(&rows(1000)).unwrap().to_vec();
    let mut pair = Pair::accepted(Plan { batch_bytes: 1000, ..window(3) });
    pair.send(1);
    pair.server.end_batch(pair.stream);
    pair.deliver_to_client();
    let error = pair.forge(FrameKind::Message, 0, 1, 3, large()).to_string();
    assert!(error.contains("while other batches"), "{error}");
}

#[test]
fn ends_of_empty_batches_give_no_credit() {
    let mut pair = Pair::accepted(window(1));
    let end = lightship_wire::control::BatchEnd::default();
    let error = pair.forge(FrameKind::BatchEnd, 0, 1, 1, end.encode()).to_string();
    assert!(error.contains("without messages"), "{error}");
}

#[test]
fn a_suspended_process_does_not_give_up_its_peer() {
    let mut pair = Pair::accepted(window(1));
    pair.now += INTERVAL * 10;
    pair.client.wake(pair.now).unwrap();
    pair.deliver_to_server();
    pair.deliver_to_client();
    pair.now += INTERVAL;
    pair.client.wake(pair.now).unwrap();
}

#[test]
fn bytes_of_an_incomplete_frame_are_a_sign_of_life() {
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
    assert_eq!(pair.server.payload_bytes_max(FrameKind::Message), 0);
    assert_eq!(pair.client.payload_bytes_max(FrameKind::Message, 1), Plan::default().message_bytes_max);
    assert_eq!(Pair::greeted().client.payload_bytes_max(FrameKind::Message, 1), 0);
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
fn nodes_give_up_each_other_at_the_same_time() {
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
    let mut pair = Pair::requested(window(1));
    pair.server.accept(pair.stream, &Accepted { schema: Schema::empty(), rows_estimate: None }).unwrap();
    pair.server.finish(pair.stream, &Stats::default());
    assert_eq!(pair.deliver_to_client().len(), 2);
}

fn adaptive() -> Plan {
    Plan { codec: None, ..window(2) }
}

fn choose(pair: &mut Pair, codec: Codec, slowest: Option<Stage>) {
    pair.server.retune(pair.stream, &Retune { codec, slowest });
}

#[test]
fn the_producer_announces_its_codec_and_receives_measurements() {
    let mut pair = Pair::accepted(adaptive());
    choose(&mut pair, Codec::Light, None);
    pair.send(5);
    pair.server.end_batch(pair.stream);
    choose(&mut pair, Codec::LightZstd, Some(Stage::Send));
    pair.send(6);
    pair.send(7);
    pair.server.end_batch(pair.stream);
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
    progress.decoded[Codec::Light.index()].add(3, 4);
    pair.client.consumed(pair.stream, 1, &progress);
    assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Progress(p)] if *p == progress));
    pair.server.finish(pair.stream, &Stats::default());
    pair.client.consumed(pair.stream, 1, &progress);
    // Too late is no fault.
    assert!(pair.deliver_to_server().is_empty());
    let events = pair.deliver_to_client();
    let Some(ClientEvent::Finished(totals)) = events.last() else { panic!("{events:?}") };
    let retuned =
        Retuned { message: 1, from: Codec::Light, to: Codec::LightZstd, slowest: Some(Stage::Send) };
    assert_eq!(totals.retunes, [retuned]);
    let messages = totals.codecs.map(|of_codec| of_codec.messages);
    assert_eq!(messages, [0, 1, 0, 2]);
    assert_eq!(totals.codecs.map(|of_codec| of_codec.bytes_wire).iter().sum::<u64>(), totals.bytes_wire);
}

#[test]
fn a_fixed_codec_can_not_change() {
    let mut pair = Pair::accepted(window(2));
    choose(&mut pair, Codec::Light, None);
    pair.send(5);
    pair.server.end_batch(pair.stream);
    assert_eq!(pair.deliver_to_client().len(), 2);
    pair.client.consumed(pair.stream, 1, &Progress::default());
    assert!(pair.deliver_to_server().is_empty());
    let retune = Retune { codec: Codec::Light, slowest: None }.encode();
    let error = pair.forge(FrameKind::Retune, 0, 1, 3, retune).to_string();
    assert!(error.contains("unexpected change of codec"), "{error}");
}

#[test]
fn codecs_change_between_batches_and_are_announced_first() {
    let retune = || Retune { codec: Codec::Light, slowest: None }.encode();
    let mut pair = Pair::accepted(adaptive());
    choose(&mut pair, Codec::None, None);
    pair.send(1);
    pair.deliver_to_client();
    let error = pair.forge(FrameKind::Retune, 0, 1, 3, retune()).to_string();
    assert!(error.contains("unexpected change of codec"), "{error}");

    let message = Encoder::new(Codec::None).encode(&rows(1)).unwrap().to_vec();
    let error = Pair::accepted(adaptive()).forge(FrameKind::Message, 0, 1, 1, message).to_string();
    assert!(error.contains("before its codec"), "{error}");
}

#[test]
fn reported_changes_of_codec_are_bounded() {
    let mut pair = Pair::accepted(adaptive());
    for _ in 0..=2 * RETUNES_MAX {
        choose(&mut pair, Codec::Light, Some(Stage::Send));
    }
    pair.server.finish(pair.stream, &Stats::default());
    let events = pair.deliver_to_client();
    let Some(ClientEvent::Finished(totals)) = events.last() else { panic!("{events:?}") };
    assert_eq!(totals.retunes.len(), RETUNES_MAX);
}
