//! The sockets of a query on one host in one step of time.
//!
//! TCP counts a socket as busy from the moment in which it has data to send until all is acknowledged. Of that time, it
//! counts apart when the receiver's window was full, and when the send buffer was. The rest has one of these reasons:
//!
//! - The link is slow, which is the likeliest one.
//! - The receiver reads slowly. Between the moments in which its window is full, a little of it is free, and the socket
//!   counts as busy only. So where the window is full again and again, and the link by its calibrated rate needs less
//!   time, the receiver has the rest.
//! - All messages were small, and their acknowledgements are awaited. Receivers delay these, on Linux by 40 ms, if they
//!   have nothing to send. A link that is full carries full segments.

use crate::figure::Figure;
use crate::gather::Readings;
use crate::part::{Basis, Part};
use crate::query::QuerySpan;

/// TCP's smallest default send buffer, in bytes. If less was in flight in a round trip, the buffer was not the limit.
const SEND_BUFFER_BYTES: f64 = 16_384.0;
/// If the receiver's window is full for this part of the time for which sockets are busy, it limits them.
const RECEIVER_PART_MIN: f64 = 0.15;
/// Segments with less data than this on average do not fill a link: half of what an Ethernet frame carries.
const SMALL_SEGMENT_BYTES: f64 = 730.0;

/// If more than this part of the segments is sent again, acknowledgements are awaited because of the link.
const LOST_PART_MAX: f64 = 0.01;

/// What sockets did in a step, as fractions of it.
pub(crate) struct Network {
    /// The link at its rate, and the limits of sockets. Each with its basis, and whether it is shared.
    pub(crate) times: Vec<(Part, f64, Basis, bool)>,
    /// For how much of the step sockets were busy, all limits taken off, and the likeliest reason.
    pub(crate) busy: Option<(Part, f64)>,
}

/// The network of a query on a host from `from` to `to`.
pub(crate) fn network(readings: &Readings, span: &QuerySpan, from: u64, to: u64) -> Network {
    let length_ns = (to.saturating_sub(from)).max(1) as f64;
    let link = &readings.speeds.link;
    let own = |figure| readings.own(figure, from, to);
    let is_shared = |figure| readings.own.get(&figure).is_some_and(|reading| reading.is_shared);
    let received = own(Figure::NetworkReceivedBytes).zip(link.received_bytes_per_second);
    let sent = own(Figure::NetworkSentBytes).zip(link.sent_bytes_per_second);
    // Links are full duplex: the direction with more to do is the limit.
    let seconds = received.into_iter().chain(sent).map(|(bytes, rate)| bytes / rate).fold(0.0, f64::max);
    let busy = own(Figure::SocketBusyNs).map(|ns| ns / length_ns);
    let receiver = own(Figure::SocketReceiverLimitedNs).map_or(0.0, |ns| ns / length_ns);
    let buffer = own(Figure::SocketSendBufferLimitedNs).map_or(0.0, |ns| ns / length_ns);
    let reason = busy_reason(readings, span, from, to);
    let sockets_shared = is_shared(Figure::SocketBusyNs);
    let mut times = vec![(Part::ReceiverLimited, receiver, Basis::Counted, sockets_shared)];
    // A full buffer is the limit only if it holds no more than a round trip's bytes. Systems enlarge buffers, so that
    // without a calibrated round trip, a slow link or receiver is the likelier reason.
    let rate = own(Figure::NetworkSentBytes).unwrap_or(0.0) * 1e9 / length_ns;
    let in_flight = link.round_trip_seconds.map(|seconds| rate * seconds);
    let is_buffer = in_flight.is_some_and(|bytes| bytes >= SEND_BUFFER_BYTES);
    let formula = seconds * 1e9 / length_ns;
    if !is_buffer && buffer > formula && reason == Part::Network {
        times.push((Part::Network, buffer, Basis::Counted, sockets_shared));
    } else {
        times.push((Part::Network, formula, Basis::Formula, is_shared(Figure::NetworkSentBytes)));
    }
    if is_buffer {
        times.push((Part::SenderLimited, buffer, Basis::Counted, sockets_shared));
    }
    let limited = receiver + if is_buffer { buffer } else { 0.0 };
    Network { times, busy: busy.map(|busy| (reason, (busy - limited).clamp(0.0, 1.0))) }
}

/// Why sockets were busy while nothing limited them.
fn busy_reason(readings: &Readings, span: &QuerySpan, from: u64, to: u64) -> Part {
    let of_run = |figure| readings.own(figure, span.began_ns, span.ended_ns).unwrap_or(0.0);
    let receiver = of_run(Figure::SocketReceiverLimitedNs);
    // Without a rate, a slow link also fills the window of its receiver.
    let knows_rate = readings.speeds.link.sent_bytes_per_second.is_some();
    if knows_rate && receiver > 0.0 && receiver >= RECEIVER_PART_MIN * of_run(Figure::SocketBusyNs) {
        return Part::ReceiverLimited;
    }
    let loses = of_run(Figure::SocketRetransmits) > LOST_PART_MAX * of_run(Figure::SocketSegmentsSent);
    let is_small = |from, to| {
        let own = |figure| readings.own(figure, from, to);
        let (segments, bytes) = own(Figure::SocketSegmentsSent).zip(own(Figure::NetworkSentBytes))?;
        (segments > 0.0).then_some(bytes <= SMALL_SEGMENT_BYTES * segments)
    };
    // In a step without segments, those of other steps are awaited.
    match is_small(from, to).or_else(|| is_small(span.began_ns, span.ended_ns)) {
        Some(true) if !loses => Part::RoundTrips,
        _ => Part::Network,
    }
}
