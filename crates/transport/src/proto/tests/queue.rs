//! Clients that wait in the queue.

use lightship_wire::control::Queued;
use lightship_wire::frame::HELLO_BYTES_MAX;

use super::*;

const QUEUED: Queued = Queued { ahead: 3, wait_ms: 10_000 };

#[test]
fn a_queued_client_is_notified_and_then_welcomed() {
    let mut pair = Pair::new();
    pair.deliver_to_server();
    pair.server.queued(&QUEUED);
    let events = pair.deliver_to_client();
    assert!(matches!(events.as_slice(), [ClientEvent::Queued(queued)] if *queued == QUEUED), "{events:?}");
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
fn a_late_welcome_does_not_fail_by_missing_pings() {
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
fn an_unauthenticated_connection_can_only_send_a_hello() {
    let mut pair = Pair::new();
    for welcome in [false, true] {
        assert_eq!(pair.server.payload_bytes_max(FrameKind::Hello), HELLO_BYTES_MAX);
        for kind in [
            FrameKind::Query,
            FrameKind::Join,
            FrameKind::Ping,
            FrameKind::Error,
            FrameKind::Release,
            FrameKind::Credit,
        ] {
            assert_eq!(pair.server.payload_bytes_max(kind) > 0, welcome, "{kind:?}");
        }
        pair.deliver_to_server();
        pair.server.welcome(String::new(), 0, None);
    }
}
