//! A result whose messages come by other connections.

use lightship_wire::EncodedMessage;
use lightship_wire::frame::FLAG_DEALT;
use lightship_wire::join::{CAPABILITY_JOIN, Dealt, Join, Ticket};

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
    fn ticketed(plan: Plan) -> Self {
        let mut pair = Self::joinable();
        pair.client.query(&Query { sql: "q".into(), plan }).unwrap();
        assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Query(q)] if q.plan == plan));
        let ticket = Ticket { secret: SECRET, connections: plan.streams };
        pair.server.ticket(&ticket);
        assert!(matches!(pair.deliver_to_client().as_slice(), [ClientEvent::Ticket(t)] if *t == ticket));
        pair.accept();
        pair
    }

    /// A connection that joins.
    fn joined(connection: u32) -> Self {
        let mut pair = Self::joinable();
        let join = Join { secret: SECRET, connection };
        pair.client.join(&join, Plan::default().message_bytes_max).unwrap();
        assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Join(j)] if *j == join));
        pair
    }

    /// The payloads that have come.
    fn payloads(&mut self) -> Vec<Buffer> {
        let payload = |event| match event {
            ClientEvent::Payload(payload) => payload,
            other => panic!("{other:?}"),
        };
        self.deliver_to_client().into_iter().map(payload).collect()
    }
}

fn dealt(event: &ClientEvent) -> Option<Awaited> {
    match event {
        ClientEvent::Dealt(awaited) => Some(awaited.clone()),
        _ => None,
    }
}

#[test]
fn the_first_connection_says_the_order() {
    let mut main = Pair::ticketed(striped(2));
    let mut others = [Pair::joined(1), Pair::joined(2)];
    let mut deal = |main: &mut Pair, connection: u32, count| {
        let message = encoded(count);
        main.server.deal(connection, &message);
        others[connection as usize - 1].server.bring(message);
    };
    main.send(5);
    deal(&mut main, 2, 6);
    deal(&mut main, 1, 7);
    main.server.end_batch();
    deal(&mut main, 2, 8);
    main.server.finish(&Stats::default());
    let events = main.deliver_to_client();
    // What has not come yet is counted already: credit and completeness need not wait for it.
    let Some(ClientEvent::Finished(totals)) = events.last() else { panic!("{events:?}") };
    assert_eq!((totals.rows, totals.messages, totals.messages_joined, totals.batches), (26, 4, 3, 2));
    let mut payloads = others.each_mut().map(|other| {
        other.server.leave();
        assert!(other.server.is_idle());
        other.payloads().into_iter()
    });
    let mut counts = Vec::new();
    for event in &events {
        let message = match event {
            ClientEvent::Message(message) => message.clone(),
            ClientEvent::Dealt(awaited) => {
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
fn dealt_messages_take_credit() {
    let mut main = Pair::ticketed(Plan { streams: 2, ..window(1) });
    main.server.deal(1, &encoded(1));
    main.server.end_batch();
    assert!(!main.server.has_credit());
    assert!(matches!(main.deliver_to_client().last(), Some(ClientEvent::BatchEnd { credit: 1 })));
    // Nor does a consumer take one without credit.
    let dealt = Dealt { connection: 1, bytes: 40, rows: 1, body_bytes: 16 };
    let error = main.forge(Kind::Message, FLAG_DEALT, 1, 4, dealt.encode()).to_string();
    assert!(error.contains("without credit"), "{error}");
}

#[test]
fn what_was_not_announced_is_refused() {
    let mut main = Pair::ticketed(striped(2));
    main.server.deal(1, &encoded(5));
    let events = main.deliver_to_client();
    let awaited = dealt(&events[0]).unwrap();
    let payload = |count| Buffer::from_vec(encoded(count).to_vec());
    assert!(awaited.clone().arrive(payload(6)).is_err());
    assert!(awaited.clone().arrive(Buffer::default()).is_err());
    awaited.arrive(payload(5)).unwrap();
}

#[test]
fn messages_are_dealt_to_connections_that_there_are() {
    let sized = |connection, bytes| Dealt { connection, bytes, rows: 1, body_bytes: 16 }.encode();
    for (payload, word) in [
        (sized(3, 40), "connection 3, where 2"),
        (sized(1, u32::MAX), "limit"),
        (sized(1, 40)[..15].to_vec(), "cut short"),
    ] {
        let error = Pair::ticketed(striped(2)).forge(Kind::Message, FLAG_DEALT, 1, 2, payload).to_string();
        assert!(error.contains(word), "{error}");
    }
    let error = Pair::accepted(window(1)).forge(Kind::Message, FLAG_DEALT, 1, 1, sized(1, 40)).to_string();
    assert!(error.contains("where 0"), "{error}");
}

#[test]
fn tickets_that_nobody_asked_for_are_refused() {
    let ticket = |connections| Ticket { secret: SECRET, connections }.encode();
    let ask = |streams| {
        let mut pair = Pair::joinable();
        pair.client.query(&Query { sql: "q".into(), plan: striped(streams) }).unwrap();
        pair
    };
    ask(1).forge(Kind::Ticket, 0, 1, 0, ticket(1));
    ask(2).forge(Kind::Ticket, 0, 1, 0, ticket(3));
    Pair::joinable().forge(Kind::Ticket, 0, 0, 1, ticket(1));
    // Nor a second one, nor one after the schema.
    Pair::ticketed(striped(2)).forge(Kind::Ticket, 0, 1, 2, ticket(2));
}

#[test]
fn a_cancelled_result_awaits_nothing() {
    let mut main = Pair::ticketed(striped(2));
    main.client.cancel();
    main.server.deal(1, &encoded(5));
    assert!(main.deliver_to_client().is_empty());
}

#[test]
fn who_joins_does_nothing_else() {
    let mut joined = Pair::joined(1);
    assert!(joined.client.query(&Query { sql: "q".into(), plan: window(1) }).is_err());
    assert!(joined.client.join(&Join { secret: SECRET, connection: 2 }, 1).is_err());
    let place = Dealt { connection: 1, bytes: 40, rows: 1, body_bytes: 16 };
    joined.forge(Kind::Message, FLAG_DEALT, 1, 0, place.encode());

    let mut receiving = Pair::ticketed(striped(2));
    assert!(receiving.client.join(&Join { secret: SECRET, connection: 1 }, 1).is_err());
    let join = Join { secret: SECRET, connection: 1 }.encode();
    let header = Header {
        kind: Kind::Join,
        flags: 0,
        stream: 1,
        payload_bytes: join.len() as u32,
        sequence: 1,
        payload_crc: crc32c(&join),
    };
    assert!(receiving.server.handle(receiving.now, &header, &join).is_err());
}

#[test]
fn a_refused_connection_is_told_so() {
    let mut joined = Pair::joined(1);
    joined.server.fail(&Failure::new(ErrorCode::Forbidden, "no"));
    assert!(
        matches!(joined.deliver_to_client().as_slice(), [ClientEvent::Failed(f)] if f.code == ErrorCode::Forbidden)
    );
    assert!(joined.client.is_idle() && joined.server.is_idle());
}

#[test]
fn a_server_that_knows_of_no_tickets_is_not_asked_for_one() {
    let mut pair = Pair::greeted();
    assert_eq!(pair.client.settle(striped(4)).unwrap().streams, 1);
    pair.client.query(&Query { sql: "q".into(), plan: striped(4) }).unwrap();
    assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Query(q)] if q.plan.streams == 1));
}
