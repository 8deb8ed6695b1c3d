//! Consumers that stall.

use super::*;

impl Pair {
    /// Sends all that credit allows, and waits for more credit.
    fn fill_and_wait(&mut self) {
        while self.server.has_credit(self.stream) {
            self.send(1);
            self.server.end_batch(self.stream);
        }
        self.server.waits(self.stream, self.now);
    }
}

#[test]
fn a_consumer_that_only_answers_pings_stalls() {
    let mut pair = Pair::accepted(window(2));
    pair.fill_and_wait();
    let began = pair.now;
    assert_eq!(pair.server.stall_deadline(pair.stream), Some(began + STALL));
    while pair.now < began + STALL {
        assert_eq!(pair.server.stalled(pair.stream, pair.now), None);
        pair.now += INTERVAL;
        pair.server.wake(pair.now).unwrap();
        pair.deliver_to_client();
        pair.deliver_to_server();
        pair.server.waits(pair.stream, pair.now);
    }
    assert_eq!(pair.server.stalled(pair.stream, pair.now), Some(STALL));
    pair.server.fail(pair.stream, &Failure::new(ErrorCode::Stalled, "too slow"));
    let events = pair.deliver_to_client();
    assert!(
        matches!(events.as_slice(), [ClientEvent::Failed(failure)] if failure.code == ErrorCode::Stalled && !failure.retryable),
        "{events:?}"
    );
    assert!(pair.client.is_idle() && pair.server.is_idle());
}

#[test]
fn a_suspended_node_first_handles_what_arrived_meanwhile() {
    let mut pair = Pair::accepted(window(2));
    pair.fill_and_wait();
    pair.deliver_to_client();
    pair.client.consumed(pair.stream, 1, &Progress::default());
    // Suspended, with the credit in the socket's buffer.
    pair.now += 5 * STALL;
    assert_eq!(pair.server.stalled(pair.stream, pair.now), None);
    assert_eq!(pair.server.stall_deadline(pair.stream), Some(pair.now + OVERSLEPT));
    pair.deliver_to_server();
    assert_eq!(pair.server.stall_deadline(pair.stream), None);
    // Nothing has come of one that takes nothing.
    pair.fill_and_wait();
    pair.now += 5 * STALL;
    assert_eq!(pair.server.stalled(pair.stream, pair.now), None);
    pair.now += OVERSLEPT;
    assert_eq!(pair.server.stalled(pair.stream, pair.now), Some(STALL));
}

#[test]
fn the_timeout_restarts_with_each_batch() {
    let mut pair = Pair::accepted(window(2));
    for _ in 0..20 {
        pair.fill_and_wait();
        pair.deliver_to_client();
        pair.now += STALL - INTERVAL;
        assert_eq!(pair.server.stalled(pair.stream, pair.now), None);
        pair.client.consumed(pair.stream, 1, &Progress::default());
        pair.deliver_to_server();
        assert_eq!(pair.server.stall_deadline(pair.stream), None);
    }
}

#[test]
fn a_credit_of_zero_does_not_restart_the_timeout() {
    let mut pair = Pair::accepted(window(1));
    pair.fill_and_wait();
    pair.deliver_to_client();
    pair.now += STALL;
    pair.client.consumed(pair.stream, 0, &Progress::default());
    pair.deliver_to_server();
    assert_eq!(pair.server.stalled(pair.stream, pair.now), Some(STALL));
}

#[test]
fn a_query_without_rows_to_send_does_not_stall() {
    let mut pair = Pair::accepted(window(1));
    pair.now += 10 * STALL;
    assert_eq!(pair.server.stalled(pair.stream, pair.now), None);
}

#[test]
fn nodes_of_the_cluster_may_wait_for_their_clients() {
    let now = Instant::now();
    let client = Client::new(now, String::new(), CAPABILITY_CLUSTER, INTERVAL);
    let server = Server::new(now, INTERVAL, Some(STALL));
    let mut pair = Pair { now, client, server, stream: 1 };
    pair.deliver_to_server();
    assert_eq!(pair.server.stall_timeout(), Some(STALL));
    pair.server.welcome(String::new(), CAPABILITY_CLUSTER, None);
    assert_eq!(pair.server.stall_timeout(), None);
    pair.deliver_to_client();
    pair.stream = pair.client.query(&Query { sql: "q".into(), plan: window(1) }).unwrap();
    pair.deliver_to_server();
    pair.accept();
    pair.fill_and_wait();
    pair.now += 1000 * STALL;
    assert_eq!(pair.server.stalled(pair.stream, pair.now), None);
}

#[test]
fn an_unrepresentable_limit_is_no_limit() {
    let mut stall = Stall::new(Some(Duration::MAX));
    stall.waits(Instant::now());
    assert_eq!(stall.deadline(), None);
}
