//! What makes a transfer slow on purpose: a reader that takes its time, and a link with a delay.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use lab::Host;

use crate::Result;

/// The most pieces that are on their way.
const PIECES_MAX: usize = 4096;

/// Reads to the end, at a rate in bytes per second.
pub(super) fn read(mut from: impl Read, bytes_per_s: f64) -> Result<()> {
    let began = Instant::now();
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        let bytes = from.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        total += bytes;
        let due = Duration::from_secs_f64(total as f64 / bytes_per_s);
        thread::sleep(due.saturating_sub(began.elapsed()));
    }
}

/// Forwards connections from a port of a host to an address, and delays the bytes in both directions. It ends with this
/// program.
pub(super) fn delayed(host: &Host, to: SocketAddr, delay: Duration) -> Result<u16> {
    let listener = host.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    let port = listener.local_addr()?.port();
    // Connections are opened where the listener is: on a thread of its own in the host's network.
    let (ask, asked) = sync_channel::<()>(1);
    let (give, given) = sync_channel::<std::io::Result<TcpStream>>(1);
    host.run(move || {
        // A thread has the network of the one that starts it.
        thread::spawn(move || while asked.recv().is_ok() && give.send(TcpStream::connect(to)).is_ok() {});
        Ok(())
    })?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            if ask.send(()).is_err() {
                return;
            }
            let Ok(Ok(server)) = given.recv() else { return };
            if let Err(error) = join(&client, &server, delay) {
                eprintln!("the link with a delay: {error}");
            }
        }
    });
    Ok(port)
}

fn join(client: &TcpStream, server: &TcpStream, delay: Duration) -> std::io::Result<()> {
    for stream in [client, server] {
        stream.set_nodelay(true)?;
    }
    forward(client.try_clone()?, server.try_clone()?, delay);
    forward(server.try_clone()?, client.try_clone()?, delay);
    Ok(())
}

/// Forwards one direction until it ends.
fn forward(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (send, receive) = sync_channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(bytes @ 1..) = from.read(&mut buffer) {
            if send.send((Instant::now() + delay, buffer[..bytes].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        deliver(&receive, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
}

fn deliver(pieces: &Receiver<(Instant, Vec<u8>)>, to: &mut TcpStream) {
    for (due, bytes) in pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
}
