//! Changes of sizes during a result.

use lightship_wire::tuning::Sizes;

use super::*;

const SMALL: Plan = Plan {
    batch_rows: 0,
    batch_bytes: 1 << 20,
    message_bytes: 1 << 20,
    message_bytes_max: 2 << 20,
    window_batches: 2,
    codec: Some(Codec::None),
    streams: 1,
};

fn sizes(window_batches: u32) -> Sizes {
    Sizes { batch_bytes: SMALL.batch_bytes, message_bytes: SMALL.message_bytes, window_batches }
}

impl Pair {
    /// The client asks, and the server does as it says after what is on its way.
    fn resize(&mut self, wanted: Sizes) {
        assert!(self.client.resize(self.stream, wanted));
        let events = self.deliver_to_server();
        assert!(matches!(events.as_slice(), [ServerEvent::Resize(sizes)] if *sizes == wanted), "{events:?}");
        self.server.resize(self.stream, &wanted);
        self.deliver_to_client();
    }

    /// Batches until there is no credit.
    fn fill(&mut self) -> u32 {
        let mut batches = 0;
        while self.server.has_credit(self.stream) {
            self.send(1);
            self.server.end_batch(self.stream);
            batches += 1;
        }
        batches
    }

    /// The consumer takes a batch.
    fn consume(&mut self) {
        self.client.consumed(self.stream, 1, &Progress::default());
        self.deliver_to_server();
    }
}

#[test]
fn a_window_grows_and_shrinks_with_batches_in_flight() {
    let mut pair = Pair::accepted(SMALL);
    assert_eq!(pair.fill(), 2);
    pair.resize(sizes(5));
    assert_eq!(pair.fill(), 3);
    // While five are out, the window becomes one: four must come home before it counts.
    pair.resize(sizes(1));
    for _ in 0..4 {
        pair.consume();
        assert_eq!(pair.fill(), 0);
    }
    pair.consume();
    assert_eq!(pair.fill(), 1);
    pair.consume();
    pair.server.finish(pair.stream, &Stats::default());
    let events = pair.deliver_to_client();
    let Some(ClientEvent::Finished(totals)) = events.last() else { panic!("{events:?}") };
    let at: Vec<_> = totals.resizes.iter().map(|r| (r.message, r.from, r.to)).collect();
    assert_eq!(at, [(2, sizes(2), sizes(5)), (5, sizes(5), sizes(1))]);
}

#[test]
fn a_message_larger_than_a_batch_waits_for_the_current_window() {
    let mut pair = Pair::accepted(Plan { batch_bytes: 1, ..SMALL });
    pair.resize(Sizes { batch_bytes: 1, ..sizes(3) });
    let large = Encoder::new(Codec::None).encode(&rows(9)).unwrap();
    assert!(pair.server.has_credit_for(pair.stream, &large));
    pair.send(9);
    pair.server.end_batch(pair.stream);
    let events = pair.deliver_to_client();
    assert!(matches!(events.last(), Some(ClientEvent::BatchEnd { credit: 3 })), "{events:?}");
    assert!(!pair.server.has_credit(pair.stream));
    pair.client.consumed(pair.stream, 3, &Progress::default());
    pair.deliver_to_server();
    assert!(pair.server.has_credit_for(pair.stream, &large));
}

#[test]
fn only_one_request_at_a_time_and_none_without_a_result() {
    let mut pair = Pair::greeted();
    assert!(!pair.client.resize(pair.stream, sizes(3)));
    let mut pair = Pair::accepted(SMALL);
    assert!(pair.client.resize(pair.stream, sizes(3)));
    assert!(!pair.client.resize(pair.stream, sizes(4)));
    pair.deliver_to_server();
    pair.server.resize(pair.stream, &sizes(3));
    pair.deliver_to_client();
    assert!(pair.client.resize(pair.stream, sizes(4)));
    // It crosses the end of the result.
    pair.server.finish(pair.stream, &Stats::default());
    assert_eq!(pair.deliver_to_server().len(), 0);
    assert!(matches!(pair.deliver_to_client().as_slice(), [ClientEvent::Finished(_)]));
}

#[test]
fn a_server_without_the_capability_gets_no_request() {
    let mut pair = Pair::new();
    pair.deliver_to_server();
    pair.server.welcome(String::new(), 0, None);
    pair.deliver_to_client();
    pair.stream = pair.client.query(&Query { sql: "q".into(), plan: SMALL }).unwrap();
    pair.deliver_to_server();
    pair.accept();
    assert!(!pair.client.resize(pair.stream, sizes(3)));
}

#[test]
fn a_server_limits_the_requested_window() {
    let mut pair = Pair::accepted(SMALL);
    assert!(pair.client.resize(pair.stream, sizes(u32::MAX)));
    let events = pair.deliver_to_server();
    let [ServerEvent::Resize(taken)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(taken.window_batches, WINDOW_BATCHES_MAX);
    pair.server.resize(pair.stream, taken);
    assert_eq!(pair.deliver_to_client().len(), 0);
}

#[test]
fn sizes_without_a_request_are_refused() {
    let mut pair = Pair::accepted(SMALL);
    let error = pair.forge(FrameKind::Resize, 0, 1, 1, sizes(2).encode());
    assert!(matches!(error, TransportError::Protocol(_)), "{error}");
    for larger in [
        sizes(4),
        Sizes { batch_bytes: SMALL.batch_bytes + 1, ..sizes(3) },
        Sizes { message_bytes: SMALL.message_bytes + 1, ..sizes(3) },
    ] {
        let mut pair = Pair::accepted(SMALL);
        assert!(pair.client.resize(pair.stream, sizes(3)));
        let error = pair.forge(FrameKind::Resize, 0, 1, 1, larger.encode());
        assert!(matches!(error, TransportError::Protocol(_)), "{error}");
    }
    // Within a batch.
    let mut pair = Pair::accepted(SMALL);
    assert!(pair.client.resize(pair.stream, sizes(3)));
    pair.send(1);
    pair.deliver_to_client();
    let error = pair.forge(FrameKind::Resize, 0, 1, 2, sizes(3).encode());
    assert!(matches!(error, TransportError::Protocol(_)), "{error}");
    // Twice.
    let mut pair = Pair::accepted(SMALL);
    pair.resize(sizes(3));
    pair.deliver_to_client();
    let error = pair.forge(FrameKind::Resize, 0, 1, 2, sizes(3).encode());
    assert!(matches!(error, TransportError::Protocol(_)), "{error}");
}
