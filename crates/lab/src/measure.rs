//! Measures a link with its own traffic: TCP both ways, a ping-pong, and datagrams that may
//! get lost.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::link::{Link, Shape};
use crate::measured::{EachWay, Measured, RoundTrip};
use crate::network::Host;

/// Goodput over bandwidth: headers take 4 to 6 %, and a busy machine some more.
const BANDWIDTH_RATIO_MIN: f64 = 0.7;
const BANDWIDTH_RATIO_MAX: f64 = 1.1;
/// Shortest round trip over the requested one: below 1 only by the clock's resolution.
const RTT_RATIO_MIN: f64 = 0.98;
const RTT_RATIO_MAX: f64 = 1.2;
const RTT_MS_SPARE: f64 = 5.0;
/// About three standard deviations of 1000 draws at 1 %; the ratio covers higher shares.
const LOSS_SPARE: f64 = 0.01;
const LOSS_RATIO_SPARE: f64 = 0.5;

const PINGS_MAX: usize = 100;
const PINGS_MIN: usize = 10;
const PINGS_TIME: Duration = Duration::from_secs(1);
const PROBES: usize = 1000;
const PROBE_BYTES: usize = 64;
/// Slow enough for a link of 1 Mbit/s and a thread that wakes late.
const PROBE_EVERY: Duration = Duration::from_millis(1);
const CHUNK_BYTES: usize = 256 << 10;
const DRAINED_BYTES_MAX: usize = 64 << 20;
/// Round trips until a connection reaches its speed, and round trips of each time span after that.
const WARM_ROUND_TRIPS: u32 = 12;
const STEADY_ROUND_TRIPS: u32 = 6;
const WARM_MIN: Duration = Duration::from_millis(750);
const STEADY_MIN: Duration = Duration::from_millis(400);
/// Timeout for connecting, reading and writing; longer than any step takes on a supported link.
const PATIENCE: Duration = Duration::from_secs(150);

/// Measures the link between two hosts. Takes some seconds, more on slow links.
///
/// Compares the results with the requested link, unless it is local:
///
/// - TCP's goodput must be 0.7 to 1.1 times the bandwidth. With loss only the upper bound
///   applies, because loss limits TCP.
/// - The shortest round trip must be 0.98 to 1.2 times the requested one and at most 5 ms more.
/// - The loss may differ by half of the requested loss plus 1 %.
///
/// # Errors
/// [`LabError::FarOff`] with the measurement if it is out of bounds; [`LabError::Io`] if the
/// hosts do not reach each other.
pub fn verify(a: &Host, b: &Host) -> Result<Measured, LabError> {
    let failed = || format!("can't measure the link between {} and {}", a.name(), b.name());
    let measured = measure(a, b).map_err(LabError::io(failed()))?;
    let off = off(&measured);
    if off.is_empty() { Ok(measured) } else { Err(LabError::FarOff { measured: Box::new(measured), off }) }
}

fn measure(a: &Host, b: &Host) -> io::Result<Measured> {
    let (rtt_ms, rtt) = ping(a, b)?;
    let loss = thread::scope(|scope| {
        let back = scope.spawn(|| lost(b, a, rtt));
        let a_to_b = lost(a, b, rtt)?;
        let b_to_a = back.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        io::Result::Ok(EachWay { a_to_b, b_to_a })
    })?;
    let mbit_per_s = EachWay { a_to_b: goodput(a, b, rtt)?, b_to_a: goodput(b, a, rtt)? };
    let (link, shaper) = (*a.link(), a.shaper());
    let congestion_control = a.run(|| fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control"))?;
    Ok(Measured {
        link,
        shaper,
        mbit_per_s,
        rtt_ms,
        loss,
        congestion_control: congestion_control.trim().to_owned(),
        left_out: a.left_out(),
    })
}

/// The values that are out of bounds, one phrase each.
fn off(measured: &Measured) -> Vec<String> {
    let Link::Wire(shape) = measured.link else { return Vec::new() };
    let Shape { bandwidth_bits_per_s, loss, .. } = shape;
    let mut off = Vec::new();
    for (way, mbit_per_s, lost) in [
        ("a to b", measured.mbit_per_s.a_to_b, measured.loss.a_to_b),
        ("b to a", measured.mbit_per_s.b_to_a, measured.loss.b_to_a),
    ] {
        if let Some(bits) = bandwidth_bits_per_s {
            let asked = bits as f64 / 1e6;
            let ratio = mbit_per_s / asked;
            if ratio > BANDWIDTH_RATIO_MAX || (ratio < BANDWIDTH_RATIO_MIN && loss == 0.0) {
                off.push(format!("{mbit_per_s:.1} Mbit/s {way}, expected {asked}"));
            }
        }
        if (lost - loss).abs() > LOSS_SPARE + loss * LOSS_RATIO_SPARE {
            off.push(format!("{:.2} % lost {way}, expected {}", lost * 100.0, loss * 100.0));
        }
    }
    let asked_ms = shape.round_trip().as_secs_f64() * 1e3;
    let least_ms = if measured.left_out.is_some() { 0.0 } else { asked_ms * RTT_RATIO_MIN };
    let most_ms = (asked_ms * RTT_RATIO_MAX).min(asked_ms + RTT_MS_SPARE).max(RTT_MS_SPARE);
    let min_ms = measured.rtt_ms.min;
    if !(least_ms..=most_ms).contains(&min_ms) {
        off.push(format!("a round trip of {min_ms:.3} ms, expected {asked_ms}"));
    }
    off
}

/// Connects `from` to a listener on `to`. Returns (`from`'s end, `to`'s end).
fn connect(from: &Host, to: &Host) -> io::Result<(TcpStream, TcpStream)> {
    let listener = to.run(|| TcpListener::bind((to.address(), 0)))?;
    let address = listener.local_addr()?;
    let ours = from.run(|| TcpStream::connect_timeout(&address, PATIENCE))?;
    let (theirs, _) = listener.accept()?;
    for stream in [&ours, &theirs] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
    }
    Ok((ours, theirs))
}

/// Measures the round trip. Also returns the shortest one, by which later steps scale their times.
fn ping(a: &Host, b: &Host) -> io::Result<(RoundTrip, Duration)> {
    let (mut ours, mut theirs) = connect(a, b)?;
    let mut taken = thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while theirs.read_exact(&mut byte).and_then(|()| theirs.write_all(&byte)).is_ok() {}
        });
        let began = Instant::now();
        let mut taken = Vec::with_capacity(PINGS_MAX);
        while taken.len() < PINGS_MIN || (taken.len() < PINGS_MAX && began.elapsed() < PINGS_TIME) {
            let sent = Instant::now();
            ours.write_all(&[1])?;
            ours.read_exact(&mut [0])?;
            taken.push(sent.elapsed());
        }
        // The thread at the other end ends when it reads the end of the stream.
        ours.shutdown(Shutdown::Both)?;
        io::Result::Ok(taken)
    })?;
    taken.sort_unstable();
    let ms = |place: usize| taken[place].as_secs_f64() * 1e3;
    Ok((RoundTrip { min: ms(0), median: ms(taken.len() / 2) }, taken[0]))
}

/// Payload in 1e6 bits per second, after the connection's slow start: the median of three time spans.
/// Bytes behind a lost one are readable only once that one is sent again, so a span can get those of
/// the span before it. A link that is too fast is so in every span.
fn goodput(from: &Host, to: &Host, rtt: Duration) -> io::Result<f64> {
    let (mut sender, mut receiver) = connect(from, to)?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let chunk = vec![0; CHUNK_BYTES];
            // Send until the receiver closes.
            while sender.write_all(&chunk).is_ok() {}
        });
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut receive_for = |time: Duration| {
            // Discard bytes that arrived before this time span, while the thread was not scheduled.
            drain(&mut receiver, &mut chunk)?;
            let (began, mut bytes) = (Instant::now(), 0);
            while began.elapsed() < time {
                match receiver.read(&mut chunk)? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    read => bytes += read,
                }
            }
            io::Result::Ok(bytes as f64 * 8.0 / 1e6 / began.elapsed().as_secs_f64())
        };
        let steady = STEADY_MIN + rtt * STEADY_ROUND_TRIPS;
        let measured = receive_for(WARM_MIN + rtt * WARM_ROUND_TRIPS)
            .and_then(|_| Ok([receive_for(steady)?, receive_for(steady)?, receive_for(steady)?]));
        // Closing with unread bytes resets the connection, which ends the sender at once.
        drop(receiver);
        let mut spans = measured?;
        spans.sort_unstable_by(f64::total_cmp);
        Ok(spans[1])
    })
}

/// Discards the bytes that have arrived. The limit ends it if the sender is as fast as this loop.
fn drain(receiver: &mut TcpStream, chunk: &mut [u8]) -> io::Result<()> {
    receiver.set_nonblocking(true)?;
    let mut left = DRAINED_BYTES_MAX;
    let drained = loop {
        match receiver.read(chunk) {
            Ok(0) => break Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) if read < left => left -= read,
            Ok(_) => break Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    receiver.set_nonblocking(false)?;
    drained
}

/// The share of [`PROBES`] datagrams that did not arrive.
fn lost(from: &Host, to: &Host, rtt: Duration) -> io::Result<f64> {
    let receiver = to.run(|| UdpSocket::bind((to.address(), 0)))?;
    let sender = from.run(|| UdpSocket::bind((from.address(), 0)))?;
    let address: SocketAddr = receiver.local_addr()?;
    let silence = Duration::from_millis(500) + rtt * 2;
    receiver.set_read_timeout(Some(silence))?;
    thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let mut arrived = 0;
            let mut probe = [0; PROBE_BYTES];
            while arrived < PROBES && receiver.recv(&mut probe).is_ok() {
                arrived += 1;
            }
            arrived
        });
        for _ in 0..PROBES {
            sender.send_to(&[0; PROBE_BYTES], address)?;
            thread::sleep(PROBE_EVERY);
        }
        let arrived = counting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(1.0 - arrived as f64 / PROBES as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shaper::Shaper;

    fn measured(link: &str, mbit_per_s: f64, rtt_ms: f64, loss: f64) -> Measured {
        Measured {
            link: link.parse().unwrap(),
            shaper: Shaper::Rattan,
            mbit_per_s: EachWay { a_to_b: mbit_per_s, b_to_a: mbit_per_s },
            rtt_ms: RoundTrip { min: rtt_ms, median: rtt_ms },
            loss: EachWay { a_to_b: loss, b_to_a: loss },
            congestion_control: "cubic".into(),
            left_out: None,
        }
    }

    #[test]
    fn only_results_out_of_bounds_are_reported() {
        for (link, mbit_per_s, rtt_ms, loss) in [
            ("wan", 95.0, 50.4, 0.0),
            ("wan,1%", 7.0, 50.4, 0.012),
            ("fast", 9000.0, 0.04, 0.0),
            ("local", 3.0, 70.0, 0.5),
        ] {
            assert_eq!(off(&measured(link, mbit_per_s, rtt_ms, loss)), [""; 0], "{link}");
        }
        for (link, mbit_per_s, rtt_ms, loss, phrases) in [
            ("wan", 60.0, 50.4, 0.0, 2),
            ("wan", 120.0, 50.4, 0.0, 2),
            ("wan", 95.0, 25.0, 0.0, 1),
            ("wan", 95.0, 61.0, 0.0, 1),
            ("wan,5%", 7.0, 50.4, 0.0, 2),
        ] {
            assert_eq!(off(&measured(link, mbit_per_s, rtt_ms, loss)).len(), phrases, "{link} {mbit_per_s}");
        }
        let left_out = Some("without its delay".to_owned());
        assert!(off(&Measured { left_out, ..measured("lan", 950.0, 0.05, 0.0) }).is_empty());
    }
}
