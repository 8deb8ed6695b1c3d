//! A connection: the handshake, then frames in both directions until both ends have closed.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use lightship_overlay::forwarder::{ConnectionId, Forwarder, Frame, Packet};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::error::{RelayError, Result};
use crate::frame::{HEADER_BYTES, RelayFrameKind, RelayHeader, TOKEN_BYTES_MAX, Use, Why, crc32c};
use crate::pulse::Heartbeat;
use crate::relay::Message;
use crate::socket::{Read, Socket, Write};
use crate::state::{Body, RelayState};

/// Enough for headers; messages bypass the buffer.
const READ_BUFFER_BYTES: usize = 4 << 10;
/// How long a failed node tries to notify the others.
const LINGER: Duration = Duration::from_secs(1);
/// The pause between two attempts to reach a node.
const RETRY: Duration = Duration::from_millis(50);
/// Memory for a message is allocated in steps of this size, as its bytes arrive.
const STEP_BYTES: usize = 1 << 20;

/// Opens a connection of the topology, and runs it. Retries until the relay stops: the peer may not have
/// started yet, or may not have restarted with the new settings yet.
pub(crate) async fn dial(shared: Arc<RelayState>, connection: ConnectionId, peer: u32) -> Result<()> {
    let opened = async {
        loop {
            let (reason, again) = match open(&shared, peer).await {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(why)) => (refusal(why).to_owned(), why != Why::Token),
                Err(e) => (e.to_string(), is_passing(e.kind())),
            };
            let error = RelayError::Connect { node: peer, reason };
            if !again {
                return Err(error);
            }
            shared.status.send_if_modified(|status| {
                status.attempts.insert(connection, error);
                false
            });
            sleep(RETRY).await;
        }
    };
    let socket = tokio::select! {
        opened = opened => opened?,
        () = shared.stopping() => return Ok(()),
    };
    run(shared, socket, connection, peer).await
}

/// Connects and sends a hello. The inner error is the peer's reason to refuse.
async fn open(shared: &RelayState, peer: u32) -> io::Result<Result<Socket, Why>> {
    let tcp = TcpStream::connect(shared.config.addresses[peer as usize]).await?;
    let mut socket = Socket::opened(tcp, peer, &shared.config.security).await?;
    let refused = greet(shared, &mut socket, peer, Use::Topology).await?;
    Ok(refused.map_or(Ok(socket), Err))
}

fn refusal(why: Why) -> &'static str {
    match why {
        Why::No => "it refused the connection",
        Why::Overlay => "it refused the connection: epoch, topology, queue size or largest message differ",
        Why::Token => "it refused the connection: the tokens differ",
    }
}

/// Whether a node that has not started yet, or is stopping, may cause this error.
fn is_passing(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::TimedOut
    )
}

/// Requests a direct connection, and runs it. A refusal is not an error.
pub(crate) async fn dial_direct(shared: Arc<RelayState>, peer: u32) -> Result<()> {
    let both_ways = shared.config.direct_both_ways;
    let greeted = async {
        let tcp = TcpStream::connect(shared.config.addresses[peer as usize]).await?;
        let mut socket = Socket::opened(tcp, peer, &shared.config.security).await?;
        let of = if both_ways { Use::DirectBothWays } else { Use::DirectOneWay };
        let refused = greet(&shared, &mut socket, peer, of).await?;
        Ok::<_, io::Error>(Some(socket).filter(|_| refused.is_none()))
    };
    let greeted = tokio::select! {
        greeted = timeout(shared.config.connect_timeout, greeted) => greeted,
        // The peer's listener may accept although no task answers.
        () = shared.failed() => return Ok(()),
    };
    // Errors are ignored here: if the peer has failed, the topology's connections report it.
    let greeted = greeted.ok().and_then(Result::ok);
    let is_refused = matches!(greeted, Some(None));
    let socket = greeted.flatten();
    let added = shared.with(|state| {
        state.asking.remove(&peer);
        state.unsettled = true;
        let Some(_) = &socket else {
            state.refused_count += u64::from(is_refused);
            state.wanted.refused.insert(peer);
            return Ok(None);
        };
        let connection = state.forwarder.add_direct(peer, true, both_ways);
        state.opened.insert(connection, peer);
        state.opened_count += 1;
        if shared.status.borrow().closing {
            // The peer has accepted it, so it is closed in order.
            state.forwarder.close(connection)?;
        }
        Ok(Some(connection))
    });
    shared.direct.notify_one();
    match (socket, added.map_err(RelayError::Unroutable)?) {
        (Some(socket), Some(connection)) => run(shared, socket, connection, peer).await,
        _ => Ok(()),
    }
}

/// Sends a hello and reads the answer; returns the reason if it is refused.
async fn greet(shared: &RelayState, socket: &mut Socket, peer: u32, of: Use) -> io::Result<Option<Why>> {
    let token = shared.config.security.token.as_deref().unwrap_or_default().as_bytes();
    let hello = RelayHeader {
        hops: of as u32,
        id: shared.digest,
        bytes: token.len() as u32,
        crc: crc32c(token),
        ..RelayHeader::bare(RelayFrameKind::Hello, shared.config.node, peer)
    };
    socket.send(&[&hello.encode(), token].concat()).await?;
    let not_a_node = || io::Error::new(io::ErrorKind::InvalidData, "it is not a node of an overlay");
    let answer = read_header(&mut socket.read).await?.map_err(|_| not_a_node())?;
    match answer.kind {
        RelayFrameKind::Accept => Ok(None),
        RelayFrameKind::Refuse => Ok(Some(Why::of(answer.hops))),
        _ => Err(not_a_node()),
    }
}

/// Answers the hello on an accepted connection, and runs it. A connection without a valid hello is not an
/// error.
pub(crate) async fn answer(shared: Arc<RelayState>, tcp: TcpStream) -> Result<()> {
    let greeted = async {
        let mut socket = Socket::accepted(tcp, &shared.config.security).await?;
        let hello = read_hello(&mut socket.read).await?;
        // A peer that gave up waiting for an answer may still be in the accept queue.
        let hello = if hung_up(&mut socket.read).await { None } else { hello };
        Ok::<_, io::Error>((socket, hello))
    };
    let greeted = tokio::select! {
        greeted = timeout(shared.config.connect_timeout, greeted) => greeted,
        () = shared.stopping() => return Ok(()),
    };
    let Ok(Ok((mut socket, Some((hello, token))))) = greeted else { return Ok(()) };
    let (peer, me) = (hello.from, shared.config.node);
    let admitted = admit(&shared, &hello, &token);
    let answer = match admitted {
        Ok(_) => RelayHeader::bare(RelayFrameKind::Accept, me, peer),
        Err(why) => RelayHeader { hops: why as u32, ..RelayHeader::bare(RelayFrameKind::Refuse, me, peer) },
    };
    let answered = socket.send(&answer.encode()).await;
    match (admitted, answered) {
        (Err(_), _) => Ok(()),
        (Ok(connection), Ok(())) => run(shared, socket, connection, peer).await,
        (Ok(connection), Err(e)) => {
            // Nothing was sent yet: queued messages take another route, if there is one.
            let closed = shared.with(|state| {
                let closed = state.forwarder.close(connection);
                state.forwarder.gone(connection);
                closed
            });
            closed.map_err(|_| RelayError::Lost { node: peer, kind: Some(e.kind()), by: None })
        }
    }
}

/// A hello and its token; `None` if it is invalid.
async fn read_hello(read: &mut Read) -> io::Result<Option<(RelayHeader, Bytes)>> {
    let Ok(hello) = read_header(read).await? else { return Ok(None) };
    if hello.kind != RelayFrameKind::Hello || hello.bytes as usize > TOKEN_BYTES_MAX {
        return Ok(None);
    }
    let token = read_body(read, hello.bytes as usize, || ()).await?;
    Ok((crc32c(&token) == hello.crc).then_some((hello, token)))
}

/// Whether the peer has closed, or has sent more before it was answered.
async fn hung_up(read: &mut Read) -> bool {
    let mut byte = [0];
    let mut byte = ReadBuf::new(&mut byte);
    poll_fn(|context| Poll::Ready(Pin::new(&mut *read).poll_read(context, &mut byte).is_ready())).await
}

/// The connection that a hello gets, or why it is refused.
fn admit(shared: &RelayState, hello: &RelayHeader, token: &[u8]) -> Result<ConnectionId, Why> {
    let (peer, me) = (hello.from, shared.config.node);
    let nodes = shared.config.addresses.len();
    if !shared.config.security.admits(token) {
        return Err(Why::Token);
    }
    if hello.id != shared.digest {
        return Err(Why::Overlay);
    }
    if hello.to != me || peer == me || peer as usize >= nodes {
        return Err(Why::No);
    }
    let direct = |both_ways| {
        shared.with(|state| {
            let most = shared.config.accepted_max.unwrap_or(nodes);
            // Checked under the lock, because a closing node closes its connections under it.
            if state.accepted.len() >= most || shared.status.borrow().closing {
                return None;
            }
            let connection = state.forwarder.add_direct(peer, both_ways, true);
            state.accepted.insert(connection);
            Some(connection)
        })
    };
    let connection = match Use::of(hello.hops) {
        None => None,
        Some(Use::DirectOneWay) => direct(false),
        Some(Use::DirectBothWays) => direct(true),
        Some(Use::Topology) => {
            let links = Forwarder::<Body>::topology_links(&shared.config.routes, me);
            let link = links.into_iter().find(|link| link.peer == peer && !link.opens);
            link.filter(|link| shared.with(|state| state.greeted.insert(link.id))).map(|link| link.id)
        }
    };
    connection.ok_or(Why::No)
}

/// Reads and writes frames until both ends have closed.
async fn run(shared: Arc<RelayState>, socket: Socket, connection: ConnectionId, peer: u32) -> Result<()> {
    let Socket { read, write } = socket;
    let wake = Arc::new(Notify::new());
    // Messages that were queued before the connection opened leave at once: the writer checks before it waits.
    shared.with(|state| {
        state.writers.insert(connection, Arc::clone(&wake));
        state.connections_max = state.connections_max.max(state.writers.len());
    });
    shared.status.send_if_modified(|status| status.missing.remove(&connection));
    let given_up = async {
        shared.failed().await;
        sleep(LINGER).await;
    };
    let frames = async {
        let heartbeat = Heartbeat::new(Instant::now(), shared.config.ping_interval);
        let read = async {
            let done = tokio::select! {
                done = read_frames(&shared, read, connection, peer, &heartbeat) => done,
                () = heartbeat.lost(&wake) => {
                    Err(RelayError::Lost { node: peer, kind: Some(io::ErrorKind::TimedOut), by: None })
                }
            };
            if let Err(error) = &done {
                // Immediately, because this is what ends the writer.
                shared.fail(error.clone());
            }
            done
        };
        // A write error also ends the reader, which first reads what the peer has sent.
        tokio::join!(read, write_frames(&shared, write, connection, &wake, &heartbeat)).0
    };
    let done = tokio::select! {
        done = frames => done,
        () = given_up => Ok(()),
    };
    shared.with(|state| {
        state.writers.remove(&connection);
        state.forwarder.gone(connection);
    });
    done
}

/// Reads until the peer has closed, or has failed.
async fn read_frames(
    shared: &RelayState,
    read: Read,
    connection: ConnectionId,
    peer: u32,
    heartbeat: &Heartbeat,
) -> Result<()> {
    let mut read = BufReader::with_capacity(READ_BUFFER_BYTES, read);
    let lost = |e: io::Error| RelayError::Lost { node: peer, kind: Some(e.kind()), by: None };
    let broken = |reason| RelayError::Malformed { node: peer, reason };
    let rules = |refusal| RelayError::Rules { node: peer, refusal };
    loop {
        let header = match read_header(&mut read).await {
            // After a failure, further errors are of no interest.
            Err(_) if shared.error().is_some() => return Ok(()),
            header => header.map_err(lost)?.map_err(broken)?,
        };
        heartbeat.heard(Instant::now());
        match header.kind {
            RelayFrameKind::Message => {
                let RelayHeader { from, to, hops, id, bytes, crc, .. } = header;
                if bytes > shared.config.message_bytes_max {
                    return Err(broken("the message is too large"));
                }
                let hops = hops as usize;
                let place = shared.with(|state| state.forwarder.admit(connection, (from, to, hops)));
                let place = place.map_err(rules)?;
                let alive = || heartbeat.heard(Instant::now());
                let bytes = read_body(&mut read, bytes as usize, alive).await.map_err(lost)?;
                let body = Body { bytes, crc };
                if !body.is_whole() {
                    return Err(broken("the checksum of the message is wrong"));
                }
                let packet = Packet { from, to, id, hops, body, place: Some(place) };
                shared
                    .with(|state| {
                        if let Some(packet) = state.forwarder.received(packet)? {
                            let message = Message { from: packet.from, bytes: packet.body.bytes, hops };
                            state.inbox.push_back((message, place));
                            shared.arrived.notify_one();
                        }
                        Ok(())
                    })
                    .map_err(RelayError::Unroutable)?;
            }
            RelayFrameKind::Credit => {
                let (class, count) = (header.hops as usize, usize::try_from(header.id).unwrap_or(usize::MAX));
                shared.with(|state| state.forwarder.credited(connection, class, count)).map_err(rules)?;
            }
            RelayFrameKind::Close => {
                return shared
                    .with(|state| state.forwarder.peer_closed(connection))
                    .map_err(RelayError::Unroutable);
            }
            RelayFrameKind::Failed => {
                shared.fail(RelayError::Lost { node: header.from, kind: None, by: Some(peer) });
            }
            RelayFrameKind::Alive => {}
            RelayFrameKind::Hello | RelayFrameKind::Accept | RelayFrameKind::Refuse => {
                return Err(broken("a second handshake"));
            }
        }
    }
}

async fn read_header(
    read: &mut (impl AsyncReadExt + Unpin),
) -> io::Result<Result<RelayHeader, &'static str>> {
    let mut bytes = [0; HEADER_BYTES];
    read.read_exact(&mut bytes).await?;
    Ok(RelayHeader::decode(&bytes))
}

/// Reads this many bytes; calls `alive` whenever some of them arrive.
async fn read_body(
    read: &mut (impl AsyncReadExt + Unpin),
    bytes: usize,
    alive: impl Fn(),
) -> io::Result<Bytes> {
    let mut body = Vec::with_capacity(bytes.min(STEP_BYTES));
    while body.len() < bytes {
        let left = bytes - body.len();
        if body.len() == body.capacity() {
            body.reserve_exact(left.min(body.len()));
        }
        if (&mut *read).take(left as u64).read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        alive();
    }
    Ok(body.into())
}

/// Writes frames until this end has closed or failed.
async fn write_frames(
    shared: &RelayState,
    write: Write,
    connection: ConnectionId,
    wake: &Notify,
    heartbeat: &Heartbeat,
) {
    let mut write = write;
    let written = async {
        let mut headers = BytesMut::new();
        loop {
            if let Some(error) = shared.error() {
                let node = error.node().unwrap_or(shared.config.node);
                write.write_all(&RelayHeader::bare(RelayFrameKind::Failed, node, 0).encode()).await?;
                return write.shutdown().await;
            }
            if heartbeat.take_due() {
                headers.extend_from_slice(
                    &RelayHeader::bare(RelayFrameKind::Alive, shared.config.node, 0).encode(),
                );
            }
            // Credit is small and is written together with the next frame.
            let frame = loop {
                match shared.with(|state| state.forwarder.next_frame(connection)) {
                    Some(Frame::Credit { class, count }) => {
                        let header = RelayHeader {
                            hops: class as u32,
                            id: count as u64,
                            ..RelayHeader::bare(RelayFrameKind::Credit, shared.config.node, 0)
                        };
                        headers.extend_from_slice(&header.encode());
                        if headers.len() >= READ_BUFFER_BYTES {
                            break None;
                        }
                    }
                    other => break other,
                }
            };
            match frame {
                Some(Frame::Message(packet)) => {
                    let header = RelayHeader {
                        kind: RelayFrameKind::Message,
                        from: packet.from,
                        to: packet.to,
                        hops: packet.hops as u32,
                        id: packet.id,
                        bytes: packet.body.bytes.len() as u32,
                        crc: packet.body.crc,
                    };
                    headers.extend_from_slice(&header.encode());
                    write.write_all_buf(&mut headers.split().chain(packet.body.bytes)).await?;
                    shared.with(|state| state.forwarder.left(packet.place, true));
                    if packet.place.is_none() {
                        shared.room.add_permits(1);
                    }
                }
                Some(Frame::Close) => {
                    headers.extend_from_slice(
                        &RelayHeader::bare(RelayFrameKind::Close, shared.config.node, 0).encode(),
                    );
                    write.write_all_buf(&mut headers).await?;
                    return write.flush().await;
                }
                _ if !headers.is_empty() => write.write_all_buf(&mut headers).await?,
                // TLS may hold back bytes until the flush.
                _ => {
                    write.flush().await?;
                    wake.notified().await;
                }
            }
        }
    };
    let _: io::Result<()> = written.await;
    heartbeat.closed();
}
