//! A collector that receives from a socket.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::MissedTickBehavior;

use crate::collector::{Collector, CollectorEvent};
use crate::datagram::DATAGRAM_BYTES_MAX;
use crate::time::monotonic_ns;

/// The time between two looks for hosts that have left.
const TICK: Duration = Duration::from_millis(500);
/// What the system may hold of datagrams that were not received yet: samples of many hosts come at the same time.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Datagrams that are received before others have a turn.
const BURST_MAX: usize = 64;

/// A socket for [`run_collector`].
///
/// # Errors
/// If the address can't be had.
pub async fn bind_collector(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address).await?;
    // The system may allow less; then more is lost, and counted.
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
    Ok(socket)
}

/// Receives datagrams for a collector and answers them, until it is dropped. `on_event` must not block: what it does
/// adds to the round trips, and so to the bounds of the clocks.
///
/// An error of the socket, such as an unreachable sender that the network reports or missing memory, ends nothing: it is
/// logged, and after a pause more is received. What arrives meanwhile waits in the socket.
///
/// # Errors
/// If the runtime can't wait for the socket.
pub async fn run_collector(
    socket: &UdpSocket,
    collector: &Mutex<Collector>,
    mut on_event: impl FnMut(CollectorEvent),
) -> io::Result<Infallible> {
    // One byte more than allowed, so that a longer datagram is not taken for a shorter one.
    let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut events = Vec::new();
    let mut is_paused = false;
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                is_paused = false;
                lock(collector).tick(monotonic_ns(), &mut events);
            }
            ready = socket.readable(), if !is_paused => {
                ready?;
                for _ in 0..BURST_MAX {
                    let (bytes, from) = match socket.try_recv_from(&mut buffer) {
                        Ok(received) => received,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        // An answer did not arrive, as the system says now.
                        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                        Err(error) => {
                            // It may come again at once: it must not keep others from their turns.
                            is_paused = true;
                            tracing::warn!(%error, "cannot receive samples; trying again");
                            break;
                        }
                    };
                    let now_ns = monotonic_ns();
                    let datagram = buffer.get(..bytes).unwrap_or_default();
                    let answer = lock(collector).handle(datagram, from, now_ns, &mut events);
                    if let Some(answer) = answer {
                        // One that can't be sent is lost, as any datagram may be.
                        let _ = socket.try_send_to(&answer, from);
                    }
                }
            }
        }
        events.drain(..).for_each(&mut on_event);
        tokio::task::yield_now().await;
    }
}

fn lock(collector: &Mutex<Collector>) -> std::sync::MutexGuard<'_, Collector> {
    // A panic elsewhere leaves counts that may be off by one.
    collector.lock().unwrap_or_else(PoisonError::into_inner)
}
