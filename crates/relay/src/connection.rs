//! A connection: the handshake, then frames in both directions until both ends have closed.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use lightship_overlay::forwarder::{ConnectionId, Forwarder, Frame, Opened, Packet};
use lightship_wire::control::{ErrorCode, Failure, Hello};
use lightship_wire::frame::FrameKind;
use lightship_wire::overlay::{
    CAPABILITY_OVERLAY, ClassCredit, FLAG_ROUTED, LinkUse, Neighbour, decode_lost, encode_lost,
};
use tokio::io::{AsyncRead, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::error::{RelayError, Result};
use crate::frame::{
    ControlFrames, ReadError, RoutedFrame, decode_notice, encode_notice, head, read_header, read_part,
    read_route,
};
use crate::pulse::Heartbeat;
use crate::relay::Arrived;
use crate::socket::{Read, Socket, Write};
use crate::state::{RelayState, Signals};

/// Enough for headers; messages bypass the buffer.
const READ_BUFFER_BYTES: usize = 4 << 10;
/// How long a failed node tries to notify the others.
const LINGER: Duration = Duration::from_secs(1);
/// The pause between two attempts to reach a node.
const RETRY: Duration = Duration::from_millis(50);
/// The longest pause between two attempts to open a broken link again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Opens a connection of the topology, and runs it; if it breaks, opens it again. Retries until the relay stops:
/// the peer may not have started yet, or may not have restarted with the new settings yet.
pub(crate) async fn dial(shared: Arc<RelayState>, connection: ConnectionId, peer: u32) -> Result<()> {
    let opened = async {
        loop {
            let (reason, again) = match open(&shared, peer, 0).await {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(refusal)) => {
                    let again = refusal.code != ErrorCode::Unauthenticated;
                    (format!("it refused the connection: {}", refusal.message), again)
                }
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
    let mut socket = tokio::select! {
        opened = opened => opened?,
        () = shared.stopping() => return Ok(()),
    };
    let mut connection = connection;
    loop {
        if run(Arc::clone(&shared), socket, connection, peer).await? == Ended::Closed {
            return Ok(());
        }
        (socket, connection) = tokio::select! {
            opened = open_again(&shared, peer) => opened?,
            () = shared.stopping() => return Ok(()),
        };
    }
}

/// Opens a broken link again. Other routes are used until then, so that nothing is an error.
async fn open_again(shared: &RelayState, peer: u32) -> Result<(Socket, ConnectionId)> {
    let mut pause = RETRY;
    loop {
        sleep(pause).await;
        let number = shared.with(|state| state.forwarder.next_number());
        let opening = timeout(shared.config.connect_timeout, open(shared, peer, number));
        if let Ok(Ok(Ok(socket))) = opening.await {
            let opened = Opened { here: true, number };
            let connection = shared.with(|state| {
                if !state.forwarder.is_drawn(number) {
                    // The other end has found it broken in the meantime.
                    return Ok(None);
                }
                let connection = state.forwarder.reopen(peer, opened)?;
                if shared.status.borrow().closing {
                    // The peer has accepted it, so it is closed in order.
                    state.forwarder.close(connection)?;
                }
                Ok(Some(connection))
            });
            if let Some(connection) = connection.map_err(RelayError::Unroutable)? {
                return Ok((socket, connection));
            }
        }
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// Connects and sends a hello. The inner error is the peer's refusal.
async fn open(shared: &RelayState, peer: u32, number: u64) -> io::Result<Result<Socket, Failure>> {
    let tcp = TcpStream::connect(shared.config.addresses[peer as usize]).await?;
    let mut socket = Socket::opened(tcp, peer, &shared.config.security).await?;
    let refused = greet(shared, &mut socket, peer, (LinkUse::Topology, number)).await?;
    Ok(refused.map_or(Ok(socket), Err))
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
    let number = shared.with(|state| state.forwarder.next_number());
    let greeted = async {
        let tcp = TcpStream::connect(shared.config.addresses[peer as usize]).await?;
        let mut socket = Socket::opened(tcp, peer, &shared.config.security).await?;
        let link = if both_ways { LinkUse::DirectBothWays } else { LinkUse::DirectOneWay };
        let refused = greet(&shared, &mut socket, peer, (link, number)).await?;
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
        let Some(_) = socket.as_ref().filter(|_| state.forwarder.is_drawn(number)) else {
            state.refused_count += u64::from(is_refused);
            state.wanted.refused.insert(peer);
            return Ok(None);
        };
        let opened = Opened { here: true, number };
        let connection = state.forwarder.add_direct(peer, opened, true, both_ways);
        state.opened.insert(connection, peer);
        state.opened_count += 1;
        if shared.status.borrow().closing {
            // The peer has accepted it, so it is closed in order.
            state.forwarder.close(connection)?;
        }
        Ok(Some(connection))
    });
    shared.direct.notify_one();
    if let (Some(socket), Some(connection)) = (socket, added.map_err(RelayError::Unroutable)?) {
        run(shared, socket, connection, peer).await?;
    }
    Ok(())
}

fn hello(shared: &RelayState, token: &str) -> Vec<u8> {
    let ping_interval_ms = u32::try_from(shared.config.ping_interval.as_millis()).unwrap_or(u32::MAX);
    let agent = concat!("lightship/", env!("CARGO_PKG_VERSION")).to_owned();
    Hello { agent, token: token.to_owned(), capabilities: CAPABILITY_OVERLAY, ping_interval_ms }.encode()
}

/// Sends a hello and reads the answer; returns the failure if it is a refusal.
async fn greet(
    shared: &RelayState,
    socket: &mut Socket,
    peer: u32,
    (link, number): (LinkUse, u64),
) -> io::Result<Option<Failure>> {
    let token = shared.config.security.token.as_deref().unwrap_or_default();
    let neighbour = Neighbour { node: shared.config.node, peer, link, number, digest: shared.digest };
    let hello = socket.sent.encode(FrameKind::Hello, &hello(shared, token));
    let neighbour = socket.sent.encode(FrameKind::Neighbour, &neighbour.encode());
    socket.send(&[hello, neighbour].concat()).await?;
    let not_a_node = |what: String| {
        io::Error::new(io::ErrorKind::InvalidData, format!("it is not a node of an overlay: {what}"))
    };
    let answer = async {
        let header = read_header(&mut socket.read).await?;
        let payload = socket.received.read(&header, &mut socket.read).await?;
        Ok(match header.kind {
            FrameKind::Hello if Hello::decode(&payload)?.capabilities & CAPABILITY_OVERLAY != 0 => None,
            FrameKind::Error => Some(Failure::decode(&payload)?),
            kind => return Err(ReadError::Invalid(format!("an unexpected {kind:?} frame"))),
        })
    };
    answer.await.map_err(|error| match error {
        ReadError::Io(error) => error,
        ReadError::Invalid(what) => not_a_node(what),
    })
}

/// Answers the hello on an accepted connection, and runs it. A connection without a valid hello is not an
/// error.
pub(crate) async fn answer(shared: Arc<RelayState>, tcp: TcpStream) -> Result<()> {
    let greeted = async {
        let mut socket = Socket::accepted(tcp, &shared.config.security).await?;
        let hello = read_hello(&mut socket).await?;
        // A peer that gave up waiting for an answer may still be in the accept queue.
        let hello = if hung_up(&mut socket.read).await { None } else { hello };
        Ok::<_, ReadError>((socket, hello))
    };
    let greeted = tokio::select! {
        greeted = timeout(shared.config.connect_timeout, greeted) => greeted,
        () = shared.stopping() => return Ok(()),
    };
    let Ok(Ok((mut socket, Some((hello, neighbour))))) = greeted else { return Ok(()) };
    let peer = neighbour.node;
    let admitted = admit(&shared, &hello, &neighbour);
    let is_again = neighbour.link == LinkUse::Topology && neighbour.number > 0;
    let answer = match &admitted {
        Ok(_) => socket.sent.encode(FrameKind::Hello, &self::hello(&shared, "")),
        Err(refusal) => socket.sent.encode(FrameKind::Error, &refusal.encode()),
    };
    let answered = socket.send(&answer).await;
    match (admitted, answered) {
        (Err(_), _) => Ok(()),
        (Ok(connection), Ok(())) => run(shared, socket, connection, peer).await.map(|_| ()),
        (Ok(connection), Err(e)) if is_again => {
            shared.broke(connection, peer, RelayError::Lost { node: peer, kind: Some(e.kind()), by: None });
            shared.with(|state| state.forwarder.gone(connection));
            Ok(())
        }
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

/// The two frames of a node that connects; `None` if it is not a node of an overlay.
async fn read_hello(socket: &mut Socket) -> Result<Option<(Hello, Neighbour)>, ReadError> {
    let header = read_header(&mut socket.read).await?;
    if header.kind != FrameKind::Hello {
        return Ok(None);
    }
    let hello = Hello::decode(&socket.received.read(&header, &mut socket.read).await?)?;
    let header = read_header(&mut socket.read).await?;
    if header.kind != FrameKind::Neighbour || hello.capabilities & CAPABILITY_OVERLAY == 0 {
        return Ok(None);
    }
    let neighbour = Neighbour::decode(&socket.received.read(&header, &mut socket.read).await?)?;
    Ok(Some((hello, neighbour)))
}

/// Whether the peer has closed, or has sent more before it was answered.
async fn hung_up(read: &mut Read) -> bool {
    let mut byte = [0];
    let mut byte = ReadBuf::new(&mut byte);
    poll_fn(|context| Poll::Ready(Pin::new(&mut *read).poll_read(context, &mut byte).is_ready())).await
}

/// The connection that a hello gets, or why it is refused.
fn admit(shared: &RelayState, hello: &Hello, neighbour: &Neighbour) -> Result<ConnectionId, Failure> {
    let (peer, me) = (neighbour.node, shared.config.node);
    let nodes = shared.config.addresses.len();
    let refused = |code, message: &str| Err(Failure::new(code, message));
    if !shared.config.security.admits(hello.token.as_bytes()) {
        return refused(ErrorCode::Unauthenticated, "the tokens differ");
    }
    if neighbour.digest != shared.digest {
        return refused(ErrorCode::Busy, "epoch, topology, queue size or largest message differ");
    }
    if neighbour.peer != me || peer == me || peer as usize >= nodes {
        return refused(ErrorCode::Busy, "it is for another node");
    }
    let direct = |both_ways| {
        shared.with(|state| {
            let most = shared.config.accepted_max.unwrap_or(nodes);
            // Checked under the lock, because a closing node closes its connections under it.
            if state.accepted.len() >= most || shared.status.borrow().closing {
                return None;
            }
            let opened = Opened { here: false, number: neighbour.number };
            let connection = state.forwarder.add_direct(peer, opened, both_ways, true);
            state.accepted.insert(connection);
            Some(connection)
        })
    };
    let connection = match neighbour.link {
        LinkUse::DirectOneWay => direct(false),
        LinkUse::DirectBothWays => direct(true),
        LinkUse::Topology if neighbour.number > 0 => again(shared, peer, neighbour.number),
        LinkUse::Topology => {
            let links = Forwarder::<RoutedFrame>::topology_links(&shared.config.routes, me);
            let link = links.into_iter().find(|link| link.peer == peer && !link.opens);
            link.filter(|link| shared.with(|state| state.greeted.insert(link.id))).map(|link| link.id)
        }
    };
    connection.ok_or_else(|| Failure::new(ErrorCode::Busy, "it has no room for this connection"))
}

/// The connection that replaces a link of the topology; `None` if it is not a later one of a link that a neighbour opens.
fn again(shared: &RelayState, peer: u32, number: u64) -> Option<ConnectionId> {
    let opened = Opened { here: false, number };
    let reopened = shared.with(|state| {
        // The link was opened for the first time in the life of this node, and this number is new.
        let is_later = state.greeted.contains(&peer.into())
            && state.reopened.get(&peer).is_none_or(|last| *last < number);
        if !state.forwarder.recovers() || !is_later || shared.status.borrow().closing {
            return Ok(None);
        }
        state.reopened.insert(peer, number);
        // The peer knows that the last one is broken. This end may still wait for it.
        if let Some((last, _)) = state.forwarder.link_to(peer)
            && !state.forwarder.is_broken(last)
        {
            state.broken_count += 1;
            state.forwarder.broke(last)?;
            if let Some(signals) = state.writers.get(&last) {
                signals.cut.notify_one();
            }
        }
        state.forwarder.reopen(peer, opened).map(Some)
    });
    shared.direct.notify_one();
    reopened.unwrap_or_else(|refusal| {
        shared.fail(RelayError::Unroutable(refusal));
        None
    })
}

/// How a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Both ends have closed it, or this node ends.
    Closed,
    /// It broke, and is routed around.
    Broken,
}

/// Reads and writes frames until both ends have closed, or the connection has broken.
async fn run(shared: Arc<RelayState>, socket: Socket, connection: ConnectionId, peer: u32) -> Result<Ended> {
    let Socket { read, write, sent, received } = socket;
    let signals = Arc::new(Signals::default());
    // Messages that were queued before the connection opened leave at once: the writer checks before it waits.
    shared.with(|state| {
        state.writers.insert(connection, Arc::clone(&signals));
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
                done = read_frames(&shared, read, received, connection, peer, &heartbeat) => done,
                () = heartbeat.lost(&signals.write) => {
                    Err(RelayError::Lost { node: peer, kind: Some(io::ErrorKind::TimedOut), by: None })
                }
            };
            if let Err(error) = &done
                && shared.is_fatal(connection, error)
            {
                // Immediately, because this is what ends the writer.
                shared.fail(error.clone());
            }
            done
        };
        let write = async {
            let written = write_frames(&shared, write, sent, connection, &signals.write, &heartbeat).await;
            written.map_err(|e| RelayError::Lost { node: peer, kind: Some(e.kind()), by: None })
        };
        tokio::pin!(read, write);
        // After a write error the reader still reads what the peer has sent.
        let (done, written) = tokio::select! {
            done = &mut read => (done, None),
            written = &mut write => (read.await, Some(written)),
        };
        match (done, written) {
            (Ok(()), Some(written)) => written,
            (Ok(()), None) => write.await,
            (Err(error), None) if shared.is_fatal(connection, &error) => {
                // The writer still sends the peer the reason why this node ends.
                let _ = write.await;
                Err(error)
            }
            (Err(error), _) => Err(error),
        }
    };
    let done = tokio::select! {
        // Checked first: the other end no longer counts what still arrives.
        biased;
        () = signals.cut.notified() => Ok(Ended::Broken),
        done = frames => done.map(|()| Ended::Closed),
        () = given_up => Ok(Ended::Closed),
    };
    let done = match done {
        Err(error) if !shared.is_fatal(connection, &error) => {
            shared.broke(connection, peer, error);
            Ok(Ended::Broken)
        }
        done => done,
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
    mut received: ControlFrames,
    connection: ConnectionId,
    peer: u32,
    heartbeat: &Heartbeat,
) -> Result<()> {
    let mut read = BufReader::with_capacity(READ_BUFFER_BYTES, read);
    let lost = |error| match error {
        ReadError::Io(e) => RelayError::Lost { node: peer, kind: Some(e.kind()), by: None },
        ReadError::Invalid(reason) => RelayError::Malformed { node: peer, reason },
    };
    let broken = |reason: String| RelayError::Malformed { node: peer, reason };
    let rules = |refusal| RelayError::Rules { node: peer, refusal };
    loop {
        let header = match read_header(&mut read).await {
            // After a failure, further errors are of no interest.
            Err(_) if shared.error().is_some() => return Ok(()),
            header => header.map_err(lost)?,
        };
        heartbeat.heard(Instant::now());
        if header.flags & FLAG_ROUTED != 0 {
            let route = read_route(&mut read).await.map_err(lost)?;
            if header.part_bytes > shared.config.message_bytes_max {
                return Err(broken(format!("{} bytes in a {:?} frame", header.part_bytes, header.kind)));
            }
            let hops = usize::from(route.hops);
            let slot = shared.with(|state| state.forwarder.admit(connection, (route.from, route.to, hops)));
            let slot = slot.map_err(rules)?;
            let alive = || heartbeat.heard(Instant::now());
            let part = read_part(&mut read, header.part_bytes, alive).await.map_err(|e| lost(e.into()))?;
            let body = RoutedFrame {
                accepted: route.accepted,
                tunnel: route.tunnel,
                number: route.number,
                ..RoutedFrame::new(header, part)
            };
            let (from, to, slot) = (route.from, route.to, Some(slot));
            let packet = Packet { from, to, id: 0, hops, body, slot, resent: false };
            shared
                .with(|state| {
                    if let Some(Packet { from, body: frame, slot: Some(slot), .. }) =
                        state.forwarder.received(packet)?
                    {
                        state.inbox.push_back((Arrived { from, frame, hops }, slot));
                        shared.arrived.notify_one();
                    }
                    Ok(())
                })
                .map_err(RelayError::Unroutable)?;
            continue;
        }
        let payload = received.read(&header, &mut read).await.map_err(lost)?;
        match header.kind {
            FrameKind::ClassCredit => {
                let credit = ClassCredit::decode(&payload).map_err(|e| lost(e.into()))?;
                let (class, count) = (credit.class as usize, credit.count as usize);
                let credited =
                    shared.with(|state| state.forwarder.credited(connection, class, count, credit.received));
                credited.map_err(rules)?;
            }
            FrameKind::LinkNotice => {
                let notice = decode_notice(&payload).map_err(|e| lost(e.into()))?;
                if let Err(error) = shared.noticed(connection, peer, notice) {
                    // It ends this node, even if the notice was about this connection.
                    shared.fail(error.clone());
                    return Err(error);
                }
            }
            FrameKind::Close => {
                return shared
                    .with(|state| state.forwarder.peer_closed(connection))
                    .map_err(RelayError::Unroutable);
            }
            FrameKind::Lost => {
                let node = decode_lost(&payload).map_err(|e| lost(e.into()))?;
                shared.fail(RelayError::Lost { node, kind: None, by: Some(peer) });
            }
            FrameKind::Ping => {}
            kind => return Err(broken(format!("an unexpected {kind:?} frame"))),
        }
    }
}

/// Writes frames until this end has closed or failed.
async fn write_frames(
    shared: &RelayState,
    write: Write,
    mut sent: ControlFrames,
    connection: ConnectionId,
    wake: &Notify,
    heartbeat: &Heartbeat,
) -> io::Result<()> {
    let mut write = write;
    let written = async {
        let mut headers = BytesMut::new();
        loop {
            if let Some(error) = shared.error() {
                let node = error.node().unwrap_or(shared.config.node);
                write.write_all(&sent.encode(FrameKind::Lost, &encode_lost(node))).await?;
                return write.shutdown().await;
            }
            if heartbeat.take_due() {
                headers.extend_from_slice(&sent.encode(FrameKind::Ping, &[]));
            }
            // Credit is small and is written together with the next frame.
            let frame = loop {
                match shared.with(|state| state.forwarder.next_frame(connection)) {
                    Some(Frame::Credit { class, count, received }) => {
                        let credit = ClassCredit { class: class as u32, count: count as u32, received };
                        headers.extend_from_slice(&sent.encode(FrameKind::ClassCredit, &credit.encode()));
                        if headers.len() >= READ_BUFFER_BYTES {
                            break None;
                        }
                    }
                    Some(Frame::Notice(notice)) => {
                        let notice = encode_notice(notice);
                        headers.extend_from_slice(&sent.encode(FrameKind::LinkNotice, &notice));
                        if headers.len() >= READ_BUFFER_BYTES {
                            break None;
                        }
                    }
                    other => break other,
                }
            };
            match frame {
                Some(Frame::Message(packet)) => {
                    if packet.slot.is_none() && !packet.resent && packet.body.has_slot {
                        shared.room.add_permits(1);
                    }
                    headers.extend_from_slice(&head(&packet));
                    write.write_all_buf(&mut headers.split().chain(packet.body.part)).await?;
                }
                Some(Frame::Close) => {
                    headers.extend_from_slice(&sent.encode(FrameKind::Close, &[]));
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
    let written: io::Result<()> = written.await;
    heartbeat.closed();
    written
}
