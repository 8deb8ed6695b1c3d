//! One connection: who is at the other end, and then frames both ways until both have closed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use lightship_overlay::forwarder::{ConnectionId, Forwarder, Frame, Packet};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::error::{RelayError, Result};
use crate::frame::{HEADER_BYTES, Header, Kind, Use};
use crate::relay::Message;
use crate::state::Shared;

/// Enough for headers; messages are read past it.
const READ_BUFFER_BYTES: usize = 4 << 10;
/// How long a node that has failed says so to others.
const LINGER: Duration = Duration::from_secs(1);
/// Between two attempts to reach a node that does not listen yet.
const RETRY: Duration = Duration::from_millis(50);
/// Memory for a message is taken in steps, as its bytes arrive.
const STEP_BYTES: usize = 1 << 20;

/// Opens a connection of the topology, and runs it.
pub(crate) async fn dial(shared: Arc<Shared>, connection: ConnectionId, peer: u32) -> Result<()> {
    let wrong = |reason: String| RelayError::Connect { node: peer, reason };
    let attempt = async {
        loop {
            match TcpStream::connect(shared.config.addresses[peer as usize]).await {
                // It has not started yet.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => sleep(RETRY).await,
                done => return done,
            }
        }
    };
    let greeted = async {
        let mut socket = attempt.await?;
        let accepted = greet(&shared, &mut socket, peer, Use::Topology).await?;
        Ok::<_, io::Error>((socket, accepted))
    };
    let done = tokio::select! {
        done = timeout(shared.config.connect_timeout, greeted) => done,
        () = shared.failed() => return Ok(()),
    };
    let (socket, accepted) =
        done.map_err(|_| wrong("it took too long".to_owned()))?.map_err(|e| wrong(e.to_string()))?;
    if !accepted {
        return Err(wrong("it refuses: has it the same topology, queues and largest message?".to_owned()));
    }
    run(shared, socket, connection, peer).await
}

/// Asks for a direct connection, and runs it. That it is refused is no error.
pub(crate) async fn dial_direct(shared: Arc<Shared>, peer: u32) -> Result<()> {
    let both_ways = shared.config.direct_both_ways;
    let greeted = async {
        let mut socket = TcpStream::connect(shared.config.addresses[peer as usize]).await?;
        let of = if both_ways { Use::DirectBothWays } else { Use::DirectOneWay };
        let accepted = greet(&shared, &mut socket, peer, of).await?;
        Ok::<_, io::Error>(Some(socket).filter(|_| accepted))
    };
    // What is wrong with the peer shows on the topology's connections.
    let greeted = timeout(shared.config.connect_timeout, greeted).await.ok().and_then(Result::ok);
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
            // The peer counts on it: it is closed in good order.
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

async fn greet(shared: &Shared, socket: &mut TcpStream, peer: u32, of: Use) -> io::Result<bool> {
    socket.set_nodelay(true)?;
    let hello =
        Header { hops: of as u32, id: shared.digest, ..Header::bare(Kind::Hello, shared.config.node, peer) };
    socket.write_all(&hello.encode()).await?;
    match read_header(socket).await?.map(|header| header.kind) {
        Some(Kind::Accept) => Ok(true),
        Some(Kind::Refuse) => Ok(false),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no node of an overlay")),
    }
}

/// Answers whoever has connected, and runs the connection. Strangers are no error.
pub(crate) async fn answer(shared: Arc<Shared>, mut socket: TcpStream) -> Result<()> {
    let hello = tokio::select! {
        hello = timeout(shared.config.connect_timeout, read_header(&mut socket)) => hello,
        () = shared.stopping() => return Ok(()),
    };
    let Ok(Ok(Some(hello))) = hello else { return Ok(()) };
    if socket.set_nodelay(true).is_err() {
        return Ok(());
    }
    let (peer, me) = (hello.from, shared.config.node);
    let connection = admit(&shared, &hello);
    let kind = if connection.is_some() { Kind::Accept } else { Kind::Refuse };
    let answered = socket.write_all(&Header::bare(kind, me, peer).encode()).await;
    match (connection, answered) {
        (None, _) => Ok(()),
        (Some(connection), Ok(())) => run(shared, socket, connection, peer).await,
        (Some(connection), Err(e)) => {
            // Nothing was sent yet: what waits goes another way, where there is one.
            let closed = shared.with(|state| {
                let closed = state.forwarder.close(connection);
                state.forwarder.gone(connection);
                closed
            });
            closed.map_err(|_| RelayError::Lost { node: peer, kind: Some(e.kind()), by: None })
        }
    }
}

/// Whether a hello may have its connection, and which that is.
fn admit(shared: &Shared, hello: &Header) -> Option<ConnectionId> {
    let (peer, me) = (hello.from, shared.config.node);
    let is_ours = hello.kind == Kind::Hello && hello.to == me && hello.id == shared.digest;
    let nodes = shared.config.addresses.len();
    if !is_ours || peer == me || peer as usize >= nodes {
        return None;
    }
    let direct = |both_ways| {
        shared.with(|state| {
            let most = shared.config.accepted_max.unwrap_or(nodes);
            // Asked under the lock, under which a closing node closes what it has.
            if state.accepted.len() >= most || shared.status.borrow().closing {
                return None;
            }
            let connection = state.forwarder.add_direct(peer, both_ways, true);
            state.accepted.insert(connection);
            Some(connection)
        })
    };
    match Use::of(hello.hops)? {
        Use::DirectOneWay => direct(false),
        Use::DirectBothWays => direct(true),
        Use::Topology => {
            let links = Forwarder::<Bytes>::topology_links(&shared.config.routes, me);
            let link = links.into_iter().find(|link| link.peer == peer && !link.opens)?;
            shared.with(|state| state.greeted.insert(link.id)).then_some(link.id)
        }
    }
}

/// Frames both ways, until both ends have closed.
async fn run(shared: Arc<Shared>, socket: TcpStream, connection: ConnectionId, peer: u32) -> Result<()> {
    let (read, write) = socket.into_split();
    let wake = Arc::new(Notify::new());
    // What waits since before there was a socket goes out at once: the writer asks before it waits.
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
        let read = async {
            let done = read_frames(&shared, read, connection, peer).await;
            if let Err(error) = &done {
                // At once, as it is what ends the writer.
                shared.fail(error.clone());
            }
            done
        };
        // An error of the writer shows at the reader, with what the peer had to say before.
        tokio::join!(read, write_frames(&shared, write, connection, &wake)).0
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
    shared: &Shared,
    read: OwnedReadHalf,
    connection: ConnectionId,
    peer: u32,
) -> Result<()> {
    let mut read = BufReader::with_capacity(READ_BUFFER_BYTES, read);
    let lost = |e: io::Error| RelayError::Lost { node: peer, kind: Some(e.kind()), by: None };
    let broken = |reason| RelayError::Malformed { node: peer, reason };
    let rules = |refusal| RelayError::Rules { node: peer, refusal };
    loop {
        let header = match read_header(&mut read).await {
            // After a failure there is nothing more to find out.
            Err(_) if shared.error().is_some() => return Ok(()),
            header => header.map_err(lost)?.ok_or(broken("no frame"))?,
        };
        match header.kind {
            Kind::Message => {
                let Header { from, to, hops, id, bytes, .. } = header;
                if bytes > shared.config.message_bytes_max {
                    return Err(broken("a message larger than agreed"));
                }
                let hops = hops as usize;
                let place = shared.with(|state| state.forwarder.admit(connection, (from, to, hops)));
                let place = place.map_err(rules)?;
                let body = read_body(&mut read, bytes as usize).await.map_err(lost)?;
                let packet = Packet { from, to, id, hops, body, place: Some(place) };
                shared
                    .with(|state| {
                        if let Some(packet) = state.forwarder.received(packet)? {
                            let message = Message { from: packet.from, bytes: packet.body, hops };
                            state.inbox.push_back((message, place));
                            shared.arrived.notify_one();
                        }
                        Ok(())
                    })
                    .map_err(RelayError::Unroutable)?;
            }
            Kind::Credit => {
                let (class, count) = (header.hops as usize, usize::try_from(header.id).unwrap_or(usize::MAX));
                shared.with(|state| state.forwarder.credited(connection, class, count)).map_err(rules)?;
            }
            Kind::Close => {
                return shared
                    .with(|state| state.forwarder.peer_closed(connection))
                    .map_err(RelayError::Unroutable);
            }
            Kind::Failed => {
                shared.fail(RelayError::Lost { node: header.from, kind: None, by: Some(peer) });
            }
            Kind::Hello | Kind::Accept | Kind::Refuse => {
                return Err(broken("a greeting where there was one"));
            }
        }
    }
}

async fn read_header(read: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Option<Header>> {
    let mut bytes = [0; HEADER_BYTES];
    read.read_exact(&mut bytes).await?;
    Ok(Header::decode(&bytes))
}

async fn read_body(read: &mut (impl AsyncReadExt + Unpin), bytes: usize) -> io::Result<Bytes> {
    let mut body = Vec::with_capacity(bytes.min(STEP_BYTES));
    while body.len() < bytes {
        let left = bytes - body.len();
        if body.len() == body.capacity() {
            body.reserve_exact(left.min(body.len()));
        }
        if (&mut *read).take(left as u64).read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(body.into())
}

/// Writes what there is, until this end has closed or failed.
async fn write_frames(shared: &Shared, write: OwnedWriteHalf, connection: ConnectionId, wake: &Notify) {
    let mut write = write;
    let written = async {
        let mut headers = BytesMut::new();
        loop {
            if let Some(error) = shared.error() {
                let node = error.node().unwrap_or(shared.config.node);
                write.write_all(&Header::bare(Kind::Failed, node, 0).encode()).await?;
                return write.shutdown().await;
            }
            // Credit is little, and goes out with what follows it: one of each class at most.
            let frame = loop {
                match shared.with(|state| state.forwarder.next_frame(connection)) {
                    Some(Frame::Credit { class, count }) => {
                        let header = Header {
                            hops: class as u32,
                            id: count as u64,
                            ..Header::bare(Kind::Credit, shared.config.node, 0)
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
                    let header = Header {
                        kind: Kind::Message,
                        from: packet.from,
                        to: packet.to,
                        hops: packet.hops as u32,
                        id: packet.id,
                        bytes: packet.body.len() as u32,
                    };
                    headers.extend_from_slice(&header.encode());
                    write.write_all_buf(&mut headers.split().chain(packet.body)).await?;
                    shared.with(|state| state.forwarder.left(packet.place, true));
                    if packet.place.is_none() {
                        shared.room.add_permits(1);
                    }
                }
                Some(Frame::Close) => {
                    headers.extend_from_slice(&Header::bare(Kind::Close, shared.config.node, 0).encode());
                    return write.write_all_buf(&mut headers).await;
                }
                _ if !headers.is_empty() => write.write_all_buf(&mut headers).await?,
                _ => wake.notified().await,
            }
        }
    };
    let _: io::Result<()> = written.await;
}
