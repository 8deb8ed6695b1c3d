//! Clients that wait in line for a place.

use lightship_wire::control::{CAPABILITY_QUEUE, Queued};
use lightship_wire::frame::HELLO_BYTES_MAX;

use super::*;

const QUEUED: Queued = Queued { ahead: 3, wait_ms: 10_000 };

#[test]
fn a_client_in_line_is_told_and_then_welcome() {
    let mut pair = Pair::new();
    pair.deliver_to_server();
    assert!(pair.server.queued(&QUEUED));
    let told = pair.deliver_to_client();
    assert!(matches!(told.as_slice(), [ClientEvent::Queued(queued)] if *queued == QUEUED), "{told:?}");
    // The server makes sure that the client is still there, and is answered.
    pair.now += INTERVAL;
    pair.server.wake(pair.now).unwrap();
    pair.deliver_to_client();
    pair.deliver_to_server();
    pair.now += 2 * INTERVAL;
    pair.server.wake(pair.now).unwrap();
    pair.server.welcome(String::new(), 0, None);
    assert!(matches!(pair.deliver_to_client().as_slice(), [ClientEvent::Ready]));
}

#[test]
fn a_client_of_before_is_not_told() {
    let mut pair = Pair::new();
    let (header, hello) = hello_frame(!CAPABILITY_QUEUE);
    pair.server.handle(pair.now, &header, &hello).unwrap();
    assert!(!pair.server.queued(&QUEUED));
    assert!(pair.server.poll_transmit().is_none());
}

#[test]
fn a_welcome_that_takes_long_is_not_judged_by_pings() {
    let mut pair = Pair::new();
    pair.deliver_to_server();
    for _ in 0..10 {
        pair.now = pair.client.deadline();
        pair.client.wake(pair.now).unwrap();
        assert!(pair.client.poll_transmit().is_none());
    }
    pair.server.welcome(String::new(), 0, None);
    assert!(matches!(pair.deliver_to_client().as_slice(), [ClientEvent::Ready]));
}

#[test]
fn strangers_can_say_hello_and_no_more() {
    let mut pair = Pair::new();
    for welcome in [false, true] {
        assert_eq!(pair.server.payload_bytes_max(Kind::Hello), HELLO_BYTES_MAX);
        for kind in [Kind::Query, Kind::Join, Kind::Ping, Kind::Error, Kind::Release, Kind::Credit] {
            assert_eq!(pair.server.payload_bytes_max(kind) > 0, welcome, "{kind:?}");
        }
        pair.deliver_to_server();
        pair.server.welcome(String::new(), 0, None);
    }
}
