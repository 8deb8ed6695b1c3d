//! Several results at once on one connection.

use std::collections::HashMap;

use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::proto::outbox::PART_BYTES;

impl Pair {
    /// Begins another result beside those that are on their way.
    fn begin(&mut self, plan: Plan) -> u32 {
        self.stream = self.client.query(&Query { sql: "q".into(), plan }).unwrap();
        self.deliver_to_server();
        self.accept();
        self.stream
    }

    fn send_on(&mut self, stream: u32, count: usize) {
        self.server.message(stream, Encoder::new(Codec::None).encode(&rows(count)).unwrap());
    }

    /// All frames that wait, as stream, kind and bytes of this part.
    fn frames(&mut self) -> Vec<(u32, FrameKind, u32)> {
        let header = |frame: Frame| FrameHeader::decode(&frame.header).unwrap();
        std::iter::from_fn(|| self.server.poll_transmit())
            .map(header)
            .map(|header| (header.stream, header.kind, header.part_bytes))
            .collect()
    }
}

/// Rows of a message of at least this many bytes.
fn rows_of(bytes: u32) -> usize {
    bytes as usize / 8
}

#[test]
fn each_result_has_its_own_credit() {
    let mut pair = Pair::greeted();
    let (first, second) = (pair.begin(window(1)), pair.begin(window(1)));
    pair.send_on(first, 1);
    pair.server.end_batch(first);
    assert!(!pair.server.has_credit(first));
    assert!(pair.server.has_credit(second));
    pair.deliver_to_client();
    pair.client.consumed(first, 1, &Progress::default());
    pair.deliver_to_server();
    assert!(pair.server.has_credit(first));
}

#[test]
fn a_cancelled_result_leaves_the_others() {
    let mut pair = Pair::greeted();
    let (first, second) = (pair.begin(window(2)), pair.begin(window(2)));
    pair.send_on(first, 1);
    pair.send_on(second, 2);
    pair.client.cancel(first);
    assert!(matches!(pair.deliver_to_server().as_slice(), [ServerEvent::Cancel]));
    pair.server.fail(first, &Failure::new(ErrorCode::Cancelled, "cancelled"));
    pair.server.finish(second, &Stats::default());
    let events = pair.deliver_to_client();
    assert!(
        matches!(events.as_slice(), [ClientEvent::Message(_), ClientEvent::Finished(totals)] if totals.rows == 2),
        "{events:?}"
    );
    assert!(pair.client.is_idle() && pair.server.is_idle());
}

#[test]
fn a_message_alone_on_its_connection_is_sent_whole() {
    let mut pair = Pair::greeted();
    let only = pair.begin(window(2));
    pair.send_on(only, rows_of(4 * PART_BYTES));
    let frames = pair.frames();
    assert_eq!(frames.len(), 1);
    assert!(frames[0].2 > 4 * PART_BYTES);
}

#[test]
fn large_messages_take_turns_in_parts_and_small_frames_leave_first() {
    let mut pair = Pair::greeted();
    let (large, other, small) = (pair.begin(window(2)), pair.begin(window(2)), pair.begin(window(2)));
    pair.send_on(large, rows_of(3 * PART_BYTES));
    pair.send_on(other, rows_of(3 * PART_BYTES));
    pair.send_on(small, 1);
    pair.server.finish(small, &Stats::default());
    let frames = pair.frames();
    let order: Vec<u32> = frames.iter().map(|(stream, ..)| *stream).collect();
    assert_eq!(order[..3], [small, small, small], "{frames:?}");
    assert_eq!(order[3..7], [large, other, large, other], "{frames:?}");
    let sent =
        |of: u32| frames.iter().filter(|(stream, ..)| *stream == of).map(|(.., bytes)| bytes).sum::<u32>();
    assert!(sent(large) > 3 * PART_BYTES && sent(large) == sent(other));
}

#[test]
fn a_stream_of_small_frames_does_not_keep_a_large_one_waiting() {
    let mut pair = Pair::greeted();
    let (large, small) = (pair.begin(window(2)), pair.begin(window(2)));
    pair.send_on(large, rows_of(PART_BYTES));
    for _ in 0..100 {
        pair.send_on(small, 1);
    }
    let at = pair.frames().iter().position(|(stream, ..)| *stream == large).unwrap();
    assert!(at <= 16, "{at}");
}

#[test]
fn streams_are_bounded_and_come_in_order() {
    let mut pair = Pair::greeted();
    for _ in 0..STREAMS_MAX {
        pair.client.query(&Query { sql: "q".into(), plan: window(1) }).unwrap();
    }
    let refused = pair.client.query(&Query { sql: "q".into(), plan: window(1) }).unwrap_err();
    assert!(matches!(refused, TransportError::Full { .. }), "{refused}");
    pair.deliver_to_server();
    let query = Query { sql: "q".into(), plan: window(1) }.encode();
    for stream in [1, STREAMS_MAX as u32, STREAMS_MAX as u32 + 2] {
        let header = FrameHeader::whole(FrameKind::Query, 0, stream, 0, &query);
        let error = pair.server.handle(pair.now, &header, &query).unwrap_err().to_string();
        assert!(error.contains("out of order"), "{error}");
    }
    let header = FrameHeader::whole(FrameKind::Query, 0, STREAMS_MAX as u32 + 1, 0, &query);
    let error = pair.server.handle(pair.now, &header, &query).unwrap_err().to_string();
    assert!(error.contains("results at once"), "{error}");
}

#[test]
fn large_queries_are_not_overtaken_by_small_ones() {
    let mut pair = Pair::greeted();
    let large = "x".repeat(1 << 16);
    for sql in [&large, "q", &large, "q"] {
        pair.client.query(&Query { sql: sql.into(), plan: window(1) }).unwrap();
    }
    assert_eq!(pair.deliver_to_server().len(), 4);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is sent and taken in whatever order, each result arrives whole, in order, and within its window.
    #[test]
    fn results_that_share_a_connection_arrive_whole(
        steps in proptest::collection::vec((0..4_usize, any::<u8>()), 1..200)
    ) {
        let mut pair = Pair::greeted();
        let streams: Vec<u32> = (1..=4).map(|batches| pair.begin(window(batches))).collect();
        let mut sent: HashMap<u32, Vec<usize>> = HashMap::new();
        let mut taken: HashMap<u32, Vec<usize>> = HashMap::new();
        let mut owed: HashMap<u32, u32> = HashMap::new();
        let mut finished = 0;
        let mut parts: HashMap<u32, Vec<u8>> = HashMap::new();
        for (of, size) in steps {
            let stream = streams[of];
            match size % 4 {
                0 | 1 if pair.server.has_credit(stream) => {
                    let count = usize::from(size) * 400;
                    sent.entry(stream).or_default().push(count);
                    pair.send_on(stream, count);
                    pair.server.end_batch(stream);
                }
                2 => {
                    let credit = owed.remove(&stream).unwrap_or(0);
                    pair.client.consumed(stream, credit, &Progress::default());
                    pair.deliver_to_server();
                }
                _ => take(&mut pair, usize::from(size), &mut parts, &mut taken, &mut owed, &mut finished),
            }
        }
        for stream in &streams {
            pair.server.finish(*stream, &Stats::default());
        }
        take(&mut pair, usize::MAX, &mut parts, &mut taken, &mut owed, &mut finished);
        prop_assert_eq!(sent, taken);
        prop_assert_eq!(finished, streams.len());
        prop_assert!(pair.client.is_idle() && pair.server.is_idle());
    }
}

/// Delivers frames to the client as a reader does: parts are put together.
fn take(
    pair: &mut Pair,
    frames: usize,
    parts: &mut HashMap<u32, Vec<u8>>,
    taken: &mut HashMap<u32, Vec<usize>>,
    owed: &mut HashMap<u32, u32>,
    finished: &mut usize,
) {
    for _ in 0..frames {
        let Some(frame) = pair.server.poll_transmit() else { return };
        let header = FrameHeader::decode(&frame.header).unwrap();
        let payload = parts.entry(header.stream).or_default();
        frame.pieces().for_each(|piece| payload.extend_from_slice(piece));
        if payload.len() < header.payload_bytes as usize {
            continue;
        }
        let payload = parts.remove(&header.stream).unwrap();
        header.verify(&payload).unwrap();
        match pair.client.handle(pair.now, &header, Buffer::from_vec(payload)).unwrap() {
            Some((stream, ClientEvent::Message(message))) => {
                taken.entry(stream).or_default().push(message.decode().unwrap().num_rows());
            }
            Some((stream, ClientEvent::BatchEnd { credit })) => *owed.entry(stream).or_default() += credit,
            Some((_, ClientEvent::Finished(_))) => *finished += 1,
            _ => {}
        }
    }
}
