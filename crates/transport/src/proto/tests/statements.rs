//! Statements with parameters, between sides of which one may not know them.

use lightship_wire::statement::{Action, CAPABILITY_STATEMENTS, Statement};

use super::*;

fn statement(action: Action) -> Statement {
    Statement { sql: "select $1".into(), plan: Plan { streams: 3, ..Plan::default() }, action }
}

/// A client and a server with these capabilities.
fn greeted(client: u64, server: u64) -> Pair {
    let mut pair = Pair::new();
    pair.client = Client::new(pair.now, String::new(), client, INTERVAL);
    pair.deliver_to_server();
    pair.server.welcome(String::new(), server, None);
    pair.deliver_to_client();
    pair
}

#[test]
fn statements_are_answered_like_queries() {
    let mut pair = greeted(CAPABILITY_STATEMENTS, CAPABILITY_STATEMENTS);
    for (stream, action) in [(1, Action::Execute(rows(1))), (2, Action::Describe)] {
        let statement = statement(action);
        pair.stream = pair.client.statement(&statement).unwrap();
        assert_eq!(pair.stream, stream);
        let events = pair.deliver_to_server();
        let [ServerEvent::Statement(received)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((&received.sql, &received.action), (&statement.sql, &statement.action));
        // No connection can join here.
        assert_eq!(received.plan.streams, 1);
        pair.accept();
        pair.server.finish(stream, &Stats::default());
        assert!(matches!(pair.deliver_to_client().as_slice(), [ClientEvent::Finished(_)]));
    }
}

#[test]
fn an_old_server_is_not_sent_statements() {
    let mut pair = greeted(CAPABILITY_STATEMENTS, 0);
    for (action, what) in [(Action::Execute(rows(1)), "parameters"), (Action::Describe, "descriptions")] {
        let error = pair.client.statement(&statement(action)).unwrap_err();
        assert!(matches!(error, TransportError::TooOld { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    // The connection is as usable as before.
    assert!(pair.client.poll_transmit().is_none());
    pair.client.query(&Query { sql: "q".into(), plan: Plan::default() }).unwrap();
    assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Query(_)]));
}

#[test]
fn only_one_row_of_parameters_is_sent() {
    let mut pair = greeted(CAPABILITY_STATEMENTS, CAPABILITY_STATEMENTS);
    for count in [0, 2] {
        let refused = pair.client.statement(&statement(Action::Execute(rows(count))));
        assert!(matches!(refused, Err(TransportError::Wire(_))), "{refused:?}");
    }
    assert!(pair.client.is_idle());
}

#[test]
fn statements_of_clients_that_did_not_announce_them_are_refused() {
    let mut pair = greeted(0, CAPABILITY_STATEMENTS);
    assert_eq!(pair.server.payload_bytes_max(FrameKind::Statement), 0);
    let payload = statement(Action::Describe).encode().unwrap();
    let header = FrameHeader::whole(FrameKind::Statement, 0, 1, 0, &payload);
    let refused = pair.server.handle(pair.now, &header, &payload);
    assert!(matches!(refused, Err(TransportError::Protocol(_))), "{refused:?}");
}
