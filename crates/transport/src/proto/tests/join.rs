//! A result whose messages come by other connections.

use lightship_wire::EncodedMessage;
use lightship_wire::frame::FLAG_PLACEHOLDER;
use lightship_wire::join::{CAPABILITY_JOIN, Join, Placeholder, StripeOffer};

use super::*;

const SECRET: [u8; 16] = [7; 16];

fn striped(streams: u32) -> Plan {
    Plan { streams, ..window(4) }
}

fn encoded(count: usize) -> EncodedMessage {
    Encoder::new(Codec::None).encode(&rows(count)).unwrap()
}

impl Pair {
    /// Both can have results joined.
    fn joinable() -> Self {
        let mut pair = Self::new();
        pair.client = Client::new(pair.now, "secret".into(), CAPABILITY_JOIN, INTERVAL);
        pair.deliver_to_server();
        pair.server.welcome(String::new(), CAPABILITY_JOIN, None);
        pair.deliver_to_client();
        pair
    }

    /// A query that as many connections may join as its plan says.
    fn with_offer(plan: Plan) -> Self {
        let mut pair = Self::joinable();
        pair.stream = pair.client.query(&Query { sql: "q".into(), plan }).unwrap();
        assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Query(q)] if q.plan == plan));
        let offer = StripeOffer { secret: SECRET, connections: plan.streams };
        pair.server.offer_stripes(pair.stream, &offer);
        assert!(matches!(pair.deliver_to_client().as_slice(), [ClientEvent::StripeOffer(t)] if *t == offer));
        pair.accept();
        pair
    }

    /// A connection that joins.
    fn joined(connection: u32) -> Self {
        let mut pair = Self::joinable();
        let join = Join { secret: SECRET, connection };
        pair.stream = pair.client.join(&join, Plan::default().message_bytes_max).unwrap();
        assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Join(j)] if *j == join));
        pair
    }

    /// The payloads that have come.
    fn payloads(&mut self) -> Vec<Buffer> {
        let payload = |event| match event {
            ClientEvent::Payload(payload) => Some(payload),
            // There are no more.
            ClientEvent::Finished(_) => None,
            other => panic!("{other:?}"),
        };
        self.deliver_to_client().into_iter().filter_map(payload).collect()
    }
}

fn pending(event: &ClientEvent) -> Option<PendingMessage> {
    match event {
        ClientEvent::Placeholder(awaited) => Some(awaited.clone()),
        _ => None,
    }
}

#[test]
fn the_first_connection_defines_the_order() {
    let mut main = Pair::with_offer(striped(2));
    let mut others = [Pair::joined(1), Pair::joined(2)];
    let mut send_joined = |main: &mut Pair, connection: u32, count| {
        let message = encoded(count);
        main.server.placeholder(main.stream, connection, &message);
        others[connection as usize - 1].server.joined_message(1, message);
    };
    main.send(5);
    send_joined(&mut main, 2, 6);
    send_joined(&mut main, 1, 7);
    main.server.end_batch(main.stream);
    send_joined(&mut main, 2, 8);
    main.server.finish(main.stream, &Stats::default());
    let events = main.deliver_to_client();
    // What has not come yet is counted already: credit and completeness need not wait for it.
    let Some(ClientEvent::Finished(totals)) = events.last() else { panic!("{events:?}") };
    assert_eq!((totals.rows, totals.messages, totals.messages_joined, totals.batches), (26, 4, 3, 2));
    let mut payloads = others.each_mut().map(|other| {
        other.server.finish_joined(other.stream);
        assert!(other.server.is_idle());
        other.payloads().into_iter()
    });
    let mut counts = Vec::new();
    for event in &events {
        let message = match event {
            ClientEvent::Message(message) => message.clone(),
            ClientEvent::Placeholder(awaited) => {
                let payload = payloads[awaited.connection() as usize - 1].next().unwrap();
                awaited.clone().arrive(payload).unwrap()
            }
            _ => continue,
        };
        counts.push(message.decode().unwrap().num_rows());
    }
    assert_eq!(counts, [5, 6, 7, 8]);
}

#[test]
fn placeholders_take_credit() {
    let mut main = Pair::with_offer(Plan { streams: 2, ..window(1) });
    main.server.placeholder(main.stream, 1, &encoded(1));
    main.server.end_batch(main.stream);
    assert!(!main.server.has_credit(main.stream));
    assert!(matches!(main.deliver_to_client().last(), Some(ClientEvent::BatchEnd { credit: 1 })));
    // Nor does a consumer take one without credit.
    let placeholder = Placeholder { connection: 1, bytes: 40, rows: 1, body_bytes: 16 };
    let error = main.forge(FrameKind::Message, FLAG_PLACEHOLDER, 1, 4, placeholder.encode()).to_string();
    assert!(error.contains("without credit"), "{error}");
}

#[test]
fn payloads_that_differ_from_their_placeholder_are_refused() {
    let mut main = Pair::with_offer(striped(2));
    main.server.placeholder(main.stream, 1, &encoded(5));
    let events = main.deliver_to_client();
    let awaited = pending(&events[0]).unwrap();
    let payload = |count| Buffer::from_vec(encoded(count).to_vec());
    assert!(awaited.clone().arrive(payload(6)).is_err());
    assert!(awaited.clone().arrive(Buffer::default()).is_err());
    awaited.arrive(payload(5)).unwrap();
}

#[test]
fn placeholders_must_name_an_offered_connection() {
    let sized = |connection, bytes| Placeholder { connection, bytes, rows: 1, body_bytes: 16 }.encode();
    for (payload, word) in [
        (sized(3, 40), "connection 3, but 2"),
        (sized(1, u32::MAX), "limit"),
        (sized(1, 40)[..15].to_vec(), "cut short"),
    ] {
        let error = Pair::with_offer(striped(2))
            .forge(FrameKind::Message, FLAG_PLACEHOLDER, 1, 2, payload)
            .to_string();
        assert!(error.contains(word), "{error}");
    }
    let error =
        Pair::accepted(window(1)).forge(FrameKind::Message, FLAG_PLACEHOLDER, 1, 1, sized(1, 40)).to_string();
    assert!(error.contains("but 0 were offered"), "{error}");
}

#[test]
fn stripe_offers_without_a_request_are_refused() {
    let offer = |connections| StripeOffer { secret: SECRET, connections }.encode();
    let ask = |streams| {
        let mut pair = Pair::joinable();
        pair.stream = pair.client.query(&Query { sql: "q".into(), plan: striped(streams) }).unwrap();
        pair
    };
    ask(1).forge(FrameKind::StripeOffer, 0, 1, 0, offer(1));
    ask(2).forge(FrameKind::StripeOffer, 0, 1, 0, offer(3));
    Pair::joinable().forge(FrameKind::StripeOffer, 0, 0, 1, offer(1));
    // Nor a second one, nor one after the schema.
    Pair::with_offer(striped(2)).forge(FrameKind::StripeOffer, 0, 1, 2, offer(2));
}

#[test]
fn a_cancelled_result_waits_for_no_payloads() {
    let mut main = Pair::with_offer(striped(2));
    main.client.cancel(main.stream);
    main.server.placeholder(main.stream, 1, &encoded(5));
    assert!(main.deliver_to_client().is_empty());
}

#[test]
fn a_joined_stream_carries_only_payloads() {
    let mut joined = Pair::joined(1);
    let placeholder = Placeholder { connection: 1, bytes: 40, rows: 1, body_bytes: 16 };
    joined.forge(FrameKind::Message, FLAG_PLACEHOLDER, 1, 0, placeholder.encode());

    let mut receiving = Pair::with_offer(striped(2));
    let join = Join { secret: SECRET, connection: 1 }.encode();
    let header = FrameHeader::whole(FrameKind::Join, 0, 1, 1, &join);
    assert!(receiving.server.handle(receiving.now, &header, &join).is_err());
}

#[test]
fn a_refused_join_gets_an_error() {
    let mut joined = Pair::joined(1);
    joined.server.fail(joined.stream, &Failure::new(ErrorCode::Forbidden, "no"));
    assert!(
        matches!(joined.deliver_to_client().as_slice(), [ClientEvent::Failed(f)] if f.code == ErrorCode::Forbidden)
    );
    assert!(joined.client.is_idle() && joined.server.is_idle());
}

#[test]
fn a_server_without_the_capability_gets_no_request_for_streams() {
    let mut pair = Pair::greeted();
    assert_eq!(pair.client.settle(striped(4)).streams, 1);
    pair.stream = pair.client.query(&Query { sql: "q".into(), plan: striped(4) }).unwrap();
    assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Query(q)] if q.plan.streams == 1));
}
