//! Why sockets are busy: the link, the receiver, or acknowledgements that take their time.

use std::collections::BTreeMap;

use super::corners::*;
use super::machine::*;
use super::scenarios::*;
use crate::*;

const S: u64 = 1_000_000_000;

/// A footprint of a process with sockets, over a calibrated link of 1 Gbit/s. What grows does so from second 2 to 12, the
/// query's time.
fn sockets(figures: &[(Figure, Growth)]) -> Footprint {
    let cpu: Growth = |t| (t - 2.0).clamp(0.0, 10.0) * 0.05;
    let mut entries = vec![(process("a"), Figure::CpuUserNs, cpu)];
    entries.extend(figures.iter().map(|(figure, growth)| (peer("a"), *figure, *growth)));
    let link = LinkSpeeds {
        received_bytes_per_second: Some(1.25e8),
        sent_bytes_per_second: Some(1.25e8),
        round_trip_seconds: Some(1e-4),
    };
    let speeds = BTreeMap::from([("node1".to_owned(), HostSpeeds { link, ..HostSpeeds::default() })]);
    let span = span(2 * S, 12 * S, [process("a"), peer("a")].map(Worker::own).to_vec());
    let footprint = Footprint::new(&one_host(S / 10, 14 * S, &entries), &speeds, &span).unwrap();
    check_sum(&footprint);
    show("sockets", &footprint);
    footprint
}

/// Rows at 10 MB/s, in full segments.
const SENT: (Figure, Growth) = (Figure::NetworkSentBytes, |t| (t - 2.0).clamp(0.0, 10.0) * 1e7 / 1e9);
const SEGMENTS: (Figure, Growth) =
    (Figure::SocketSegmentsSent, |t| (t - 2.0).clamp(0.0, 10.0) * 7000.0 / 1e9);
const BUSY: (Figure, Growth) = (Figure::SocketBusyNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.85);

#[test]
fn a_receiver_whose_window_is_full_now_and_then_is_the_limit_and_not_the_link() {
    let window: Growth = |t| (t - 2.0).clamp(0.0, 10.0) * 0.35;
    let footprint = sockets(&[SENT, SEGMENTS, BUSY, (Figure::SocketReceiverLimitedNs, window)]);
    let verdict = Verdict::new(&footprint);
    assert_eq!(verdict.limit, Limit::Receiver, "{}", verdict.sentence);
    let of = |part| footprint.division.fraction(part);
    // The bytes need 80 ms of each second.
    assert!((of(Part::Network) - 0.08).abs() < 0.01 && of(Part::ReceiverLimited) > 0.75);
    let needed = "The link needs 800 ms for the bytes at its calibrated rate.";
    assert!(verdict.evidence.iter().any(|line| line == needed), "{:?}", verdict.evidence);
    // What TCP did not count as the receiver's is not certain.
    let receiver = footprint.division.parts.iter().find(|time| time.part == Part::ReceiverLimited).unwrap();
    assert!(receiver.low_ns <= 36 * S / 10 && receiver.high_ns >= receiver.ns, "{receiver:?}");
}

#[test]
fn a_full_send_buffer_behind_a_slow_receiver_is_the_receiver_too() {
    let window: Growth = |t| (t - 2.0).clamp(0.0, 10.0) * 0.2;
    let buffer: Growth = |t| (t - 2.0).clamp(0.0, 10.0) * 0.5;
    let slow: (Figure, Growth) = (Figure::NetworkSentBytes, |t| (t - 2.0).clamp(0.0, 10.0) * 1e6 / 1e9);
    let figures =
        [slow, BUSY, (Figure::SocketReceiverLimitedNs, window), (Figure::SocketSendBufferLimitedNs, buffer)];
    assert_eq!(Verdict::new(&sockets(&figures)).limit, Limit::Receiver);
}

#[test]
fn a_window_that_is_hardly_ever_full_leaves_the_link_as_the_reason() {
    let window: Growth = |t| (t - 2.0).clamp(0.0, 10.0) * 0.02;
    let footprint = sockets(&[SENT, SEGMENTS, BUSY, (Figure::SocketReceiverLimitedNs, window)]);
    assert_eq!(Verdict::new(&footprint).limit, Limit::Network);
}

/// Ten small messages a second, each of which is acknowledged after 40 ms, on two connections.
const SMALL: (Figure, Growth) = (Figure::NetworkSentBytes, |t| (t - 2.0).clamp(0.0, 10.0) * 1500.0 / 1e9);
const FEW: (Figure, Growth) = (Figure::SocketSegmentsSent, |t| (t - 2.0).clamp(0.0, 10.0) * 10.0 / 1e9);

#[test]
fn acknowledgements_that_are_delayed_are_no_slow_link() {
    let busy: Growth = |t| (t - 2.0).clamp(0.0, 10.0) * 0.55;
    let footprint = sockets(&[SMALL, FEW, (Figure::SocketBusyNs, busy)]);
    let of = |part| footprint.division.fraction(part);
    assert!(of(Part::Network) < 0.01 && (of(Part::RoundTrips) - 0.55).abs() < 0.02);
    let verdict = Verdict::new(&footprint);
    assert_eq!(verdict.limit, Limit::Mixed, "the query may not have waited for them: {}", verdict.sentence);
    assert!(verdict.evidence.iter().any(|line| line.contains("acknowledgements of small messages")));
    // A faster link does not help.
    let faster = Change { network: 10.0, ..Change::default() };
    let prediction = what_if(&footprint, &faster, &History::default()).unwrap();
    assert!((prediction.seconds / prediction.measured_seconds - 1.0).abs() < 0.01);
}

#[test]
fn acknowledgements_that_are_awaited_nearly_all_the_time_are_latency() {
    let busy: Growth = |t| (t - 2.0).clamp(0.0, 10.0) * 0.95;
    let verdict = Verdict::new(&sockets(&[SMALL, FEW, (Figure::SocketBusyNs, busy)]));
    assert_eq!(verdict.limit, Limit::RoundTrips, "{}", verdict.sentence);
}

#[test]
fn a_link_that_loses_segments_is_slow_also_for_small_messages() {
    let busy: Growth = |t| (t - 2.0).clamp(0.0, 10.0) * 0.8;
    let lost: Growth = |t| (t - 2.0).clamp(0.0, 10.0) * 2.0 / 1e9;
    let figures = [SMALL, FEW, (Figure::SocketBusyNs, busy), (Figure::SocketRetransmits, lost)];
    assert_eq!(Verdict::new(&sockets(&figures)).limit, Limit::Network);
}

#[test]
fn a_link_that_stalls_is_not_taken_for_acknowledgements_of_small_messages() {
    // Full segments for 2 s, whose acknowledgements then take 6 s.
    let sent: Growth = |t| (t - 2.0).clamp(0.0, 2.0) * 1e7 / 1e9;
    let segments: Growth = |t| (t - 2.0).clamp(0.0, 2.0) * 7000.0 / 1e9;
    let busy: Growth = |t| (t - 2.0).clamp(0.0, 8.0);
    let figures = [
        (Figure::NetworkSentBytes, sent),
        (Figure::SocketSegmentsSent, segments),
        (Figure::SocketBusyNs, busy),
    ];
    let footprint = sockets(&figures);
    assert!(footprint.division.fraction(Part::RoundTrips) < 0.02);
    assert_eq!(Verdict::new(&footprint).limit, Limit::Network);
}
